"""Checks of an object's metadata, at its creation and at each change.

Source: `k8s.io/apimachinery/pkg/api/validation/objectmeta.go`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import ResourceType, TypeKey
from evenkeel_local.gpu_cluster.validation import names
from evenkeel_local.gpu_cluster.validation.causes import Cause, forbidden, immutable, invalid, required, too_long

ANNOTATION_BYTES = 256 * 1024
PROPAGATING = ("orphan", "foregroundDeletion")
STANDARD_FINALIZERS = ("kubernetes", *PROPAGATING)
NAMES: dict[TypeKey, Callable[[str], list[str]]] = {
    catalogue.SERVICES.key: names.service_name_errors,
    catalogue.NAMESPACES.key: names.label_errors,
    catalogue.BUDGETS.key: names.path_segment_errors,
    catalogue.ROLES.key: names.path_segment_errors,
    catalogue.ROLE_BINDINGS.key: names.path_segment_errors,
    catalogue.CLUSTER_ROLES.key: names.path_segment_errors,
    catalogue.CLUSTER_ROLE_BINDINGS.key: names.path_segment_errors,
}
"""The name check of each kind; the names of other kinds are DNS subdomains."""


def check_metadata(rt: ResourceType, obj: Obj) -> Iterator[Cause]:
    """Yield the problems of an object's metadata."""
    metadata = obj["metadata"]
    name = metadata.get("name") or ""
    judge = NAMES.get(rt.key, names.subdomain_errors)
    if prefix := metadata.get("generateName"):
        checked_name = f"{prefix[:-1]}a" if prefix.endswith("-") else prefix
        yield from names.causes("metadata.generateName", prefix, judge(checked_name))
    yield from names.causes("metadata.name", name, judge(name))
    yield from names.check_labels(metadata.get("labels"), "metadata.labels")
    yield from check_annotations(metadata.get("annotations") or {}, "metadata.annotations")
    yield from _check_owners(metadata.get("ownerReferences") or [])
    yield from _check_finalizers(rt, metadata.get("finalizers") or [])


def check_annotations(annotations: dict[str, str], field: str) -> Iterator[Cause]:
    """Yield the problems of annotations."""
    for key in annotations:
        yield from names.causes(field, key, names.qualified_name_errors(key.lower()))
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > ANNOTATION_BYTES:
        yield too_long(field, ANNOTATION_BYTES)


def _check_owners(references: list[Obj]) -> Iterator[Cause]:
    field, controller = "metadata.ownerReferences", ""
    for reference in references:
        if not (reference.get("apiVersion") or "").rpartition("/")[2]:
            yield invalid(f"{field}.apiVersion", reference.get("apiVersion", ""), "version must not be empty")
        for name_of_field in ("kind", "name", "uid"):
            if not reference.get(name_of_field):
                yield invalid(f"{field}.{name_of_field}", reference.get(name_of_field, ""), "must not be empty")
        if (reference.get("apiVersion"), reference.get("kind")) == ("v1", "Event"):
            yield invalid(field, reference, "/v1, Kind=Event is disallowed from being an owner")
        if reference.get("controller"):
            this = f"{reference.get('kind')}/{reference.get('name')}"
            if controller:
                message = 'Only one reference can have Controller set to true. Found "true" in references for'
                yield invalid(field, references, f"{message} {controller} and {this}")
            controller = controller or this


def _check_finalizers(rt: ResourceType, finalizers: list[str]) -> Iterator[Cause]:
    field = "metadata.finalizers"
    for number, finalizer in enumerate(finalizers):
        yield from names.causes(field, finalizer, names.qualified_name_errors(finalizer))
        if not rt.custom and "/" not in finalizer and finalizer not in STANDARD_FINALIZERS:
            message = "name is neither a standard finalizer name nor is it fully qualified"
            yield invalid(f"{field}[{number}]", finalizer, message)
    if all(name in finalizers for name in PROPAGATING):
        yield invalid(field, finalizers, "finalizer orphan and foregroundDeletion cannot be both set")


def check_metadata_update(new_metadata: Obj, old_metadata: Obj) -> Iterator[Cause]:
    """Yield the problems of a change of an object's metadata; `new_metadata` is the metadata that the client sent.

    The server ignores `creationTimestamp` and `generation`.
    """
    if old_metadata.get("deletionTimestamp"):
        added_finalizers = sorted(set(new_metadata.get("finalizers") or ()) - set(old_metadata.get("finalizers") or ()))
        if added_finalizers:
            finalizers_text = ", ".join(map(json.dumps, added_finalizers))
            message = "no new finalizers can be added if the object is being deleted, found new finalizers []string"
            yield forbidden("metadata.finalizers", f"{message}{{{finalizers_text}}}")
    if new_metadata.get("uid") and new_metadata["uid"] != old_metadata["uid"]:
        yield immutable("metadata.uid", new_metadata["uid"])
    elif new_metadata.get("deletionTimestamp") and not old_metadata.get("deletionTimestamp"):
        yield immutable("metadata.deletionTimestamp", new_metadata["deletionTimestamp"])
    seconds = new_metadata.get("deletionGracePeriodSeconds")
    if seconds is not None and seconds != old_metadata.get("deletionGracePeriodSeconds"):
        yield immutable("metadata.deletionGracePeriodSeconds", seconds)


def name_is_required() -> Cause:
    """Return the cause for an object without `name` and `generateName`."""
    return required("metadata.name", "name or generateName is required")
