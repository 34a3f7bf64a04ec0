"""Server-side apply: field owners and conflicts.

A field is a path of `FieldsV1` elements: `f:name` for a member, `k:{"name":"x"}` for an item of a list with keys,
`v:"x"` for an item of a set. Any other list is one field. Sources: KEP-555 and the `listType` marks of `k8s.io/api`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from evenkeel_local.gpu_cluster import errors, patches
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.objects import put
from evenkeel_local.gpu_cluster.store import ResourceType, clone

Path = tuple[str, ...]

LIST_KEYS: dict[str, tuple[str, ...]] = {
    **{field: (key,) for field, key in patches.MERGE_KEYS.items() if field != "hostIPs"},
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
SETS = frozenset({"finalizers"})
ATOMIC = frozenset(
    {
        *("nodeSelector", "selector", "labelSelector", "roleRef", "secretRef", "fieldRef", "resourceFieldRef"),
        *("configMapKeyRef", "secretKeyRef", "involvedObject", "requiredDuringSchedulingIgnoredDuringExecution"),
    }
)
NEVER_OWNED = frozenset(
    {
        *("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"),
        *("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generateName"),
    }
)


@dataclass(frozen=True)
class Writer:
    """A writer of fields."""

    manager: str
    operation: str
    subresource: str
    api_version: str


class _Shape:
    """The kind of list or map of a field: by its name for built-in kinds, by its schema for custom kinds."""

    def __init__(self, rt: ResourceType, schema: Obj | None) -> None:
        self._rt = rt
        self._schema = schema

    def member(self, name: str) -> _Shape:
        """Return the shape of a member of a map."""
        properties = (self._schema or {}).get("properties") or {}
        inner = properties.get(name) or (self._schema or {}).get("additionalProperties")
        return _Shape(self._rt, inner if isinstance(inner, dict) else None)

    @property
    def item(self) -> _Shape:
        """The shape of a list's items."""
        return _Shape(self._rt, (self._schema or {}).get("items"))

    def is_atomic(self, name: str) -> bool:
        """Whether a map is one field."""
        if self._rt.custom:
            return (self._schema or {}).get("x-kubernetes-map-type") == "atomic"
        return name in ATOMIC

    def keys(self, name: str) -> tuple[str, ...]:
        """Return the keys of a list's items; empty for a list that is one field."""
        if self._rt.custom:
            return tuple((self._schema or {}).get("x-kubernetes-list-map-keys") or ())
        if name == "ports":
            return ("port", "protocol") if self._rt.kind == "Service" else ("containerPort", "protocol")
        return LIST_KEYS.get(name, ())

    def is_set(self, name: str) -> bool:
        """Whether a list is a set of plain values."""
        if self._rt.custom and name != "finalizers":
            return (self._schema or {}).get("x-kubernetes-list-type") == "set"
        return name in SETS


def _root_shape(rt: ResourceType) -> _Shape:
    return _Shape(rt, rt.schema)


def _item_element(item: Any, keys: tuple[str, ...]) -> str | None:
    if not isinstance(item, dict):
        return None
    keys_of_item = {key: item.get(key, "TCP" if key == "protocol" else None) for key in keys}
    if any(value is None for value in keys_of_item.values()):
        return None
    return "k:" + json.dumps(keys_of_item, separators=(",", ":"), sort_keys=True)


def fields_of(rt: ResourceType, obj: Obj) -> set[Path]:
    """Return every field that an object sets."""
    fields: set[Path] = set()
    shape = _root_shape(rt)
    for name, value in obj.items():
        if name in ("apiVersion", "kind"):
            continue
        if name == "metadata":
            for inner, item in value.items():
                if inner not in NEVER_OWNED:
                    fields.update(_walk_fields(("f:metadata", f"f:{inner}"), inner, item, _Shape(rt, None)))
        else:
            fields.update(_walk_fields((f"f:{name}",), name, value, shape.member(name)))
    return fields


def _walk_fields(path: Path, name: str, value: Any, shape: _Shape) -> Iterator[Path]:
    if isinstance(value, dict) and value and not shape.is_atomic(name):
        for key, item in value.items():
            yield from _walk_fields((*path, f"f:{key}"), key, item, shape.member(key))
        return
    if isinstance(value, list) and value:
        if shape.is_set(name):
            for item in value:
                yield (*path, "v:" + json.dumps(item))
            return
        keys = shape.keys(name)
        elements = [_item_element(item, keys) for item in value] if keys else []
        if elements and all(elements):
            for element, item in zip(elements, value, strict=True):
                at = (*path, str(element))
                yield at
                for key, inner in item.items():
                    yield from _walk_fields((*at, f"f:{key}"), key, inner, shape.item.member(key))
            return
    yield path


# Reading and removing by path


def _find_value(obj: Any, path: Path) -> tuple[bool, Any]:
    for element in path:
        kind, _, text = element.partition(":")
        if kind == "f":
            if not isinstance(obj, dict) or text not in obj:
                return False, None
            obj = obj[text]
            continue
        if not isinstance(obj, list):
            return False, None
        index = _item_index(obj, kind, text)
        if index is None:
            return False, None
        obj = obj[index]
    return True, obj


def _item_index(items: list[Any], kind: str, text: str) -> int | None:
    expected_value = json.loads(text)
    for index, item in enumerate(items):
        if kind == "v" and item == expected_value:
            return index
        if kind == "k" and _item_element(item, tuple(expected_value)) == f"k:{text}":
            return index
    return None


def _remove_value(obj: Any, path: Path) -> None:
    exists, parent = _find_value(obj, path[:-1])
    if not exists:
        return
    kind, _, text = path[-1].partition(":")
    if kind == "f" and isinstance(parent, dict):
        parent.pop(text, None)
    elif isinstance(parent, list) and (index := _item_index(parent, kind, text)) is not None:
        del parent[index]


# managedFields


def _read_managers(obj: Obj) -> dict[Writer, tuple[set[Path], str]]:
    managers: dict[Writer, tuple[set[Path], str]] = {}
    for entry in obj.get("metadata", {}).get("managedFields") or ():
        operation, manager = entry.get("operation", "Update"), entry.get("manager", "")
        writer = Writer(manager, operation, entry.get("subresource", ""), entry.get("apiVersion", ""))
        managers[writer] = (set(_decode_paths(entry.get("fieldsV1") or {}, ())), entry.get("time", ""))
    return managers


def _decode_paths(tree: Obj, path: Path) -> Iterator[Path]:
    for element, inner in tree.items():
        if element == ".":
            yield path
        elif inner:
            yield from _decode_paths(inner, (*path, element))
        else:
            yield (*path, element)


def _encode_paths(paths: set[Path]) -> Obj:
    tree: Obj = {}
    for path in sorted(paths):
        at = tree
        for element in path:
            at = at.setdefault(element, {})
    for path in sorted(paths):
        at = tree
        for element in path:
            at = at[element]
        if at and "." not in at:
            at["."] = {}
    return tree


def _write_managers(obj: Obj, managers: dict[Writer, tuple[set[Path], str]]) -> None:
    entries = []
    for writer, (paths, time) in managers.items():
        if not paths:
            continue
        entry: Obj = {
            "manager": writer.manager,
            "operation": writer.operation,
            "apiVersion": writer.api_version,
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _encode_paths(paths),
        }
        put(entry, "subresource", writer.subresource)
        entries.append(entry)
    put(obj["metadata"], "managedFields", entries)


def _current_timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Writes


def track_write(rt: ResourceType, new: Obj, old: Obj | None, manager: str, subresource: str) -> None:
    """Record in `new` that a manager wrote the fields that differ from `old`.

    A create, update or patch takes a field from its former owner.
    """
    paths_after = fields_of(rt, new)
    paths_before = fields_of(rt, old) if old is not None else set()
    changed_paths = {
        path
        for path in paths_after
        if path not in paths_before or _find_value(new, path)[1] != _find_value(old, path)[1]
    }
    if subresource == "status":
        changed_paths = {path for path in changed_paths if path[0] == "f:status"}
    elif rt.has_status:
        changed_paths = {path for path in changed_paths if path[0] != "f:status"}
    removed_paths = paths_before - paths_after
    if "managedFields" not in new["metadata"] and old is not None and "managedFields" in old["metadata"]:
        new["metadata"]["managedFields"] = clone(old["metadata"]["managedFields"])
    managers = _read_managers(new)
    if not changed_paths and not removed_paths and managers:
        return
    writer = Writer(manager, "Update", subresource, rt.api_version)
    for other_writer, (paths, time) in list(managers.items()):
        managers[other_writer] = (paths - removed_paths - (changed_paths if other_writer != writer else set()), time)
    if changed_paths:
        managers[writer] = (managers.get(writer, (set(), ""))[0] | changed_paths, _current_timestamp())
    _write_managers(new, managers)


def record_ownership(rt: ResourceType, obj: Obj, config: Obj, manager: str, subresource: str) -> None:
    """Record in a new object that one manager applied all its fields."""
    obj.setdefault("metadata", {}).pop("managedFields", None)
    _write_managers(
        obj, {Writer(manager, "Apply", subresource, rt.api_version): (fields_of(rt, config), _current_timestamp())}
    )


def apply_configuration(rt: ResourceType, old: Obj, config: Obj, manager: str, force: bool, subresource: str) -> Obj:
    """Return `old` with a configuration applied.

    Raises:
        ApiError: 409 if another manager owns a field that would change, without `force`.
    """
    writer = Writer(manager, "Apply", subresource, rt.api_version)
    managers = _read_managers(old)
    fields = fields_of(rt, config)
    conflicts = {
        other_writer: clashing_paths
        for other_writer, (paths, _) in managers.items()
        if other_writer != writer and (clashing_paths := _find_conflicts(paths & fields, old, config))
    }
    if conflicts and not force:
        raise _conflict_error(rt, conflicts)
    for other_writer, clashing_paths in conflicts.items():
        managers[other_writer] = (managers[other_writer][0] - clashing_paths, managers[other_writer][1])
    former, time = managers.get(writer, (set(), ""))
    new: Obj = _merge_values(old, config, "", _root_shape(rt))
    other_paths = {path for other_writer, (paths, _) in managers.items() if other_writer != writer for path in paths}
    for path in sorted(former - fields, key=len, reverse=True):
        if not any(path_kept[: len(path)] == path for path_kept in other_paths | fields):
            _remove_value(new, path)
    managers[writer] = (fields, time if former == fields else _current_timestamp())
    _write_managers(new, managers)
    return new


def _find_conflicts(paths: set[Path], old: Obj, config: Obj) -> set[Path]:
    clashing_paths: set[Path] = set()
    for path in paths:
        if path[-1].startswith(("k:", "v:")):
            continue
        exists, value = _find_value(old, path)
        if exists and value != _find_value(config, path)[1]:
            clashing_paths.add(path)
    return clashing_paths


def _format_path(path: Path) -> str:
    text = ""
    for element in path:
        kind, _, content = element.partition(":")
        if kind == "f":
            text += f".{content}"
        elif kind == "k":
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(content).items()) + "]"
        else:
            text += f"[={content}]"
    return text


def _conflict_error(rt: ResourceType, conflicts: dict[Writer, set[Path]]) -> errors.ApiError:
    clashes = [
        (_format_manager(writer), _format_path(path)) for writer in conflicts for path in sorted(conflicts[writer])
    ]
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": field}
        for manager, field in clashes
    ]
    if len(clashes) == 1:
        message = f"Apply failed with 1 conflict: conflict with {clashes[0][0]}: {clashes[0][1]}"
    else:
        lines = []
        for manager in sorted({manager for manager, _ in clashes}):
            lines += [f"conflicts with {manager}:", *(f"- {field}" for by, field in clashes if by == manager)]
        message = f"Apply failed with {len(clashes)} conflicts: " + "\n".join(lines)
    return errors.ApiError(409, "Conflict", message, {"causes": causes})


def _format_manager(writer: Writer) -> str:
    text = json.dumps(writer.manager)
    if writer.operation == "Apply":
        return text
    subresource = f' with subresource "{writer.subresource}"' if writer.subresource else ""
    return f"{text}{subresource} using {writer.api_version}"


def _merge_values(old: Any, config: Any, name: str, shape: _Shape) -> Any:
    if isinstance(config, dict) and isinstance(old, dict) and not (name and shape.is_atomic(name)):
        result = dict(old)
        for key, value in config.items():
            result[key] = _merge_values(old.get(key), value, key, shape.member(key))
        return result
    if isinstance(config, list) and isinstance(old, list):
        if shape.is_set(name):
            return old + [item for item in config if item not in old]
        keys = shape.keys(name)
        if keys and all(_item_element(item, keys) for item in [*old, *config]):
            result_list = list(old)
            for item in config:
                element = str(_item_element(item, keys))
                index = _item_index(result_list, "k", element[2:])
                if index is None:
                    result_list.append(clone(item))
                else:
                    result_list[index] = _merge_values(result_list[index], item, "", shape.item)
            return result_list
    return clone(config)
