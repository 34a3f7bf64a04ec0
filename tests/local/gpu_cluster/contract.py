"""Shared parts of the API suites: the optional real server, paths, and the deletion of a namespace."""

from __future__ import annotations

import contextlib
import os

from tests.local.gpu_cluster.kube_client import Json, KubeApiError, KubeClient

REAL = os.environ.get("EVENKEEL_KUBE_APISERVER")


def jobs_of(space: str) -> str:
    return space.replace("/api/v1", "/apis/batch/v1") + "/jobs"


def deployments_of(space: str) -> str:
    return space.replace("/api/v1", "/apis/apps/v1") + "/deployments"


def budgets_of(space: str) -> str:
    return space.replace("/api/v1", "/apis/policy/v1") + "/poddisruptionbudgets"


def delete_everything_in(api: KubeClient, space: str) -> None:
    """Delete all objects in a namespace, and the namespace itself, as the namespace controller does."""
    for collection in (
        f"{space}/pods",
        f"{space}/configmaps",
        f"{space}/serviceaccounts",
        jobs_of(space),
        deployments_of(space),
        budgets_of(space),
    ):
        for item in api.items(collection):
            path = f"{collection}/{item['metadata']['name']}"
            if item["metadata"].get("finalizers"):
                api.patch(path, {"metadata": {"finalizers": None}})
            with contextlib.suppress(KubeApiError):
                api.delete(path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
    with contextlib.suppress(KubeApiError):
        finalize(api, space)


def finalize(api: KubeClient, space: str) -> Json:
    """Remove the finalizers from the spec of a namespace."""
    name = space.rsplit("/", 1)[1]
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {"finalizers": []}}
    return dict(api.call("PUT", f"{space}/finalize", body))
