"""JSON patches (RFC 6902), merge patches (RFC 7386) and Kubernetes' strategic merge patches."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import jsonpatch

from evenkeel_local.gpu_cluster import errors
from evenkeel_local.gpu_cluster.store import clone

MERGE_KEYS: dict[str, str] = {
    **dict.fromkeys(("containers", "initContainers", "ephemeralContainers", "env", "volumes", "secrets"), "name"),
    **dict.fromkeys(("imagePullSecrets", "resourceClaims", "schedulingGates"), "name"),
    **dict.fromkeys(("conditions", "addresses"), "type"),
    **dict.fromkeys(("hostAliases", "podIPs", "hostIPs"), "ip"),
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ownerReferences": "uid",
    "topologySpreadConstraints": "topologyKey",
}
"""List fields that a strategic merge merges item by item, with the key of an item.

Source: the `patchMergeKey` tags of `k8s.io/api/core/v1/types.go`. A patch replaces `taints` and `tolerations`, which
have none.
"""
SET_LISTS = frozenset({"finalizers", "podCIDRs"})
"""Lists of plain values that a strategic merge joins as sets (`patchStrategy: merge` without a key)."""
MAX_OPERATIONS = 10_000
DIRECTIVES = (None, "delete", "merge", "replace")


class PatchFailed(Exception):
    """Raised if a JSON patch does not apply to the object. The API server then answers 422."""


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply an RFC 7386 merge patch."""
    if not isinstance(patch, dict):
        return clone(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """Apply an RFC 6902 patch.

    Raises:
        ApiError: 400 for a malformed patch, 413 for too many operations.
        PatchFailed: a test failed, a path is missing or an operation is unknown.
    """
    if not isinstance(operations, list):
        raise errors.bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    if len(operations) > MAX_OPERATIONS:
        message = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise errors.ApiError(413, "RequestEntityTooLarge", message)
    if not all(isinstance(operation, dict) for operation in operations):
        raise errors.bad_request("json: cannot unmarshal value into Go value of type jsonpatch.Operation")
    try:
        return _JsonPatch([{"value": None} | operation for operation in operations]).apply(clone(target), in_place=True)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as failure:
        raise PatchFailed(str(failure)) from failure


class _TestOperation(jsonpatch.TestOperation):
    """A test operation that takes a missing member as null, as the API server does."""

    def apply(self, obj: Any) -> Any:
        parent, last = self.pointer.to_last(obj)
        if isinstance(parent, dict) and last is not None and self.operation["value"] is None and last not in parent:
            return obj
        return super().apply(obj)


class _JsonPatch(jsonpatch.JsonPatch):
    """A JSON patch whose `test` compares values as the API server does."""

    operations = MappingProxyType({**jsonpatch.JsonPatch.operations, "test": _TestOperation})


def strategic_patch(target: Any, patch: Any, kind: str = "") -> Any:
    """Apply a strategic merge patch to a built-in object.

    `kind` decides the merge key of `ports`, which differs between a Service and a container.
    """
    if not isinstance(patch, dict):
        return clone(patch)
    directive = patch.get("$patch")
    if directive not in DIRECTIVES:
        raise errors.bad_request(f"Unknown patch type found: {directive}")
    if directive == "delete":
        return {}
    result = {} if directive == "replace" or not isinstance(target, dict) else dict(target)
    orders = {key[len("$setElementOrder/") :]: value for key, value in patch.items() if key.startswith("$setElement")}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.split("/", 1)[1]
            result[field] = [item for item in result.get(field) or () if item not in value]
        elif key == "$retainKeys":
            result = {name: item for name, item in result.items() if name in value}
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _strategic_list(key, result.get(key), value, kind, orders.get(key))
        else:
            result[key] = strategic_patch(result.get(key), value, kind)
    return result


def _merge_key(field: str, kind: str) -> str | None:
    if field == "ports":
        return "port" if kind == "Service" else "containerPort"
    return MERGE_KEYS.get(field)


def _strategic_list(field: str, current: Any, patch: list[Any], kind: str, order: list[Any] | None) -> list[Any]:
    present: list[Any] = list(current) if isinstance(current, list) else []
    if field in SET_LISTS:
        return present + [item for item in patch if item not in present]
    key = _merge_key(field, kind)
    if key is None or any(not isinstance(item, dict) for item in patch):
        return [item for item in clone(patch) if not (isinstance(item, dict) and item == {"$patch": "replace"})]
    if {"$patch": "replace"} in patch:
        return [item for item in clone(patch) if item != {"$patch": "replace"}]
    for item in patch:
        if key not in item:
            raise errors.ApiError(500, "", f"map: map[] does not contain declared merge key: {key}")
        at = next((n for n, old in enumerate(present) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            present = [old for old in present if old.get(key) != item[key]]
        elif at is None:
            present.append(strategic_patch({}, item, kind))
        else:
            present[at] = strategic_patch(present[at], item, kind)
    if order:
        stored_keys = [item.get(key) for item in current] if isinstance(current, list) else []
        return _in_patch_order(present, [entry[key] for entry in order if key in entry], stored_keys, key)
    return present


def _in_patch_order(items: list[Any], order: list[Any], stored: list[Any], key: str) -> list[Any]:
    """Return items in the order of the patch. Items that it omits stay before the item that followed them."""
    named_items = sorted(
        (item for item in items if item.get(key) in order), key=lambda item: order.index(item.get(key))
    )
    unordered_items = [item for item in items if item.get(key) not in order]
    result: list[Any] = []
    while named_items and unordered_items:
        first_key, right = unordered_items[0].get(key), named_items[0].get(key)
        is_unordered_first = first_key in stored and right in stored and stored.index(first_key) < stored.index(right)
        result.append(unordered_items.pop(0) if is_unordered_first else named_items.pop(0))
    return result + unordered_items + named_items
