"""Read and change parts of a Kubernetes object: labels, owners, conditions, finalizers."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import name_of

ENDED = ("Succeeded", "Failed")


def labels_of(obj: Obj) -> Mapping[str, str]:
    """Return an object's labels."""
    return obj["metadata"].get("labels") or {}


def annotations_of(obj: Obj) -> Mapping[str, str]:
    """Return an object's annotations."""
    return obj["metadata"].get("annotations") or {}


def is_deleting(obj: Obj) -> bool:
    """Whether an object waits for its deletion."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def has_ended(pod: Obj) -> bool:
    """Whether a pod has succeeded or failed."""
    return pod["status"].get("phase") in ENDED


def condition_of(obj: Obj, kind: str) -> Obj | None:
    """Return an object's condition of one type, or None."""
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition["type"] == kind:
            return dict(condition)
    return None


def is_true(obj: Obj, kind: str) -> bool:
    """Whether an object's condition of one type is true."""
    return (condition_of(obj, kind) or {}).get("status") == "True"


def owner_reference(obj: Obj, *, controller: bool = True) -> dict[str, Any]:
    """Return the reference that makes `obj` the owner of another object."""
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": name_of(obj),
        "uid": obj["metadata"]["uid"],
        "controller": controller,
        "blockOwnerDeletion": True,
    }


def controller_of(obj: Obj) -> Obj | None:
    """Return the owner reference of the object's controller, or None."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return dict(reference)
    return None


def put(part: MutableMapping[str, Any], field: str, value: Any) -> None:
    """Set a field, or remove it if the value is empty: the API omits empty lists."""
    if value:
        part[field] = value
    else:
        part.pop(field, None)


def add_owner(obj: Obj, reference: Obj) -> None:
    """Add an owner reference."""
    obj["metadata"].setdefault("ownerReferences", []).append(reference)


def remove_owner(obj: Obj, uid: str) -> None:
    """Remove the owner references to one UID."""
    references = [reference for reference in obj["metadata"].get("ownerReferences") or () if reference["uid"] != uid]
    put(obj["metadata"], "ownerReferences", references)


def remove_finalizer(obj: Obj, finalizer: str) -> None:
    """Remove a finalizer. Other finalizers still prevent the removal of the object."""
    put(
        obj["metadata"],
        "finalizers",
        [finalizer_name for finalizer_name in obj["metadata"].get("finalizers") or () if finalizer_name != finalizer],
    )
