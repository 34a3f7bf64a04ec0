"""Server-side printing: the tables that `kubectl get` shows."""

from __future__ import annotations

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import ResourceType, name_of


def wanted(accept: str) -> bool:
    """Whether the client asked for a table."""
    return "as=Table" in accept


def table(rt: ResourceType, objects: list[Obj], metadata: Obj, include: str) -> Obj:
    """Return a `meta.k8s.io/v1` Table of objects."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [{"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}],
        "rows": [{"cells": [name_of(obj)], "object": obj} for obj in objects],
    }
