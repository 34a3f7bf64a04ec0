"""Server-side apply: who owns which field, and when two owners disagree."""

from __future__ import annotations

from evenkeel_local.gpu_cluster import patches
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import ResourceType


def track_write(rt: ResourceType, new: Obj, old: Obj | None, manager: str, subresource: str) -> None:
    """Note in `new` that a manager wrote the fields in which it differs from `old`."""


def own(obj: Obj, config: Obj, manager: str, subresource: str) -> None:
    """Note in a new object that a manager applied all of it."""


def applied(rt: ResourceType, old: Obj, config: Obj, manager: str, force: bool, subresource: str) -> Obj:
    """Return `old` with a configuration applied."""
    merged = patches.strategic_patch(old, config, rt.kind)
    assert isinstance(merged, dict)
    return merged
