"""Structural schemas of custom resources: defaults, pruning and validation.

Supported: type, properties, required, items, additionalProperties, enum, minimum and maximum, lengths, pattern,
nullable, default, `x-kubernetes-preserve-unknown-fields` and `x-kubernetes-int-or-string`. Not supported: CEL rules,
`oneOf`, `anyOf`, `allOf`, formats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import clone

Cause = tuple[str, str, str]
PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
ALWAYS_KEPT = ("apiVersion", "kind", "metadata")


def fill_defaults(schema: Obj, value: Any) -> Any:
    """Return a value with the schema's defaults."""
    if isinstance(value, dict):
        result = dict(value)
        for name, inner in (schema.get("properties") or {}).items():
            if name not in result and "default" in inner:
                result[name] = clone(inner["default"])
            if name in result:
                result[name] = fill_defaults(inner, result[name])
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            properties = schema.get("properties") or {}
            result = {name: item if name in properties else fill_defaults(extra, item) for name, item in result.items()}
        return result
    if isinstance(value, list) and schema.get("items"):
        return [fill_defaults(schema["items"], item) for item in value]
    return value


def prune(schema: Obj, value: Any, path: str = "", dropped: list[str] | None = None) -> Any:
    """Return a value without unknown fields. Their paths are added to `dropped`."""
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        extra = schema.get("additionalProperties")
        keep_all = bool(schema.get(PRESERVE)) or extra is True
        result: Obj = {}
        for name, item in value.items():
            at = f"{path}.{name}" if path else name
            if not path and name in ALWAYS_KEPT:
                result[name] = item
            elif name in properties:
                result[name] = prune(properties[name], item, at, dropped)
            elif isinstance(extra, dict):
                result[name] = prune(extra, item, at, dropped)
            elif keep_all or schema.get(INT_OR_STRING):
                result[name] = item
            elif dropped is not None:
                dropped.append(at)
        return result
    if isinstance(value, list) and schema.get("items"):
        return [prune(schema["items"], item, f"{path}[{index}]", dropped) for index, item in enumerate(value)]
    return value


def check_value(schema: Obj, value: Any, path: str = "") -> Iterator[Cause]:
    """Yield the problems of a value."""
    at = path or "<nil>"
    if type_error := _find_type_error(schema, value, at):
        yield type_error
        return
    if value is None or schema.get(INT_OR_STRING):
        return
    choices = schema.get("enum")
    if choices and value not in choices:
        choices_text = ", ".join(json.dumps(choice) for choice in choices)
        yield (
            "FieldValueNotSupported",
            at,
            f"Unsupported value: {json.dumps(value)}: supported values: {choices_text}",
        )
    if isinstance(value, dict):
        yield from _check_map(schema, value, path)
    elif isinstance(value, list):
        yield from _check_size(schema, "Items", len(value), at)
        for index, item in enumerate(value):
            yield from check_value(schema.get("items") or {}, item, f"{path}[{index}]")
    elif isinstance(value, str):
        yield from _check_size(schema, "Length", len(value), at)
        if (pattern := schema.get("pattern")) and not re.search(pattern, value):
            yield _invalid_cause(at, json.dumps(value), f"match '{pattern}'")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _check_number(schema, value, at)


def _find_type_error(schema: Obj, value: Any, at: str) -> Cause | None:
    """Return the error if a value does not have the type of its schema; None if it has."""
    kind = schema.get("type")
    if value is None:
        if schema.get("nullable") or not kind:
            return None
        return _wrong_type(at, '"null"', f'{at} in body must be of type {kind}: "null"')
    if schema.get(INT_OR_STRING):
        if isinstance(value, int | str) and not isinstance(value, bool):
            return None
        return _wrong_type(at, json.dumps(value), "must be an integer or a string")
    if kind and not _has_type(kind, value):
        return _wrong_type(at, json.dumps(value), f'{at} in body must be of type {kind}: "{_value_name(value)}"')
    return None


def _wrong_type(at: str, shown: str, rule: str) -> Cause:
    return ("FieldValueTypeInvalid", at, f"Invalid value: {shown}: {rule}")


def _invalid_cause(at: str, shown: Any, rule: str) -> Cause:
    return ("FieldValueInvalid", at, f"Invalid value: {shown}: {at} in body should {rule}")


def _check_map(schema: Obj, value: Obj, path: str) -> Iterator[Cause]:
    for name in schema.get("required") or ():
        if name not in value:
            yield ("FieldValueRequired", f"{path}.{name}" if path else name, "Required value")
    properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
    for name, item in value.items():
        at = f"{path}.{name}" if path else name
        if not path and name in ALWAYS_KEPT:
            continue
        if name in properties:
            yield from check_value(properties[name], item, at)
        elif isinstance(extra, dict):
            yield from check_value(extra, item, at)


def _check_size(schema: Obj, noun: str, size: int, at: str) -> Iterator[Cause]:
    minimum, maximum = schema.get(f"min{noun}"), schema.get(f"max{noun}")
    if minimum is not None and size < minimum:
        yield ("FieldValueInvalid", at, f"Invalid value: {at} in body should have at least {minimum}")
    if maximum is not None and size > maximum:
        yield ("FieldValueTooLong", at, f"Too long: may not be more than {maximum}")


def _check_number(schema: Obj, value: float, at: str) -> Iterator[Cause]:
    minimum, maximum = schema.get("minimum"), schema.get("maximum")
    if minimum is not None and (value < minimum or (schema.get("exclusiveMinimum") and value == minimum)):
        yield _invalid_cause(at, value, f"be greater than or equal to {minimum}")
    if maximum is not None and (value > maximum or (schema.get("exclusiveMaximum") and value == maximum)):
        yield _invalid_cause(at, value, f"be less than or equal to {maximum}")


def _has_type(kind: str, value: Any) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    python_type = {"string": str, "boolean": bool, "object": dict, "array": list}.get(kind, object)
    return isinstance(value, python_type)


def _value_name(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (dict, "object"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null"
