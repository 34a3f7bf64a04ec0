"""Refuse objects that a real API server could not decode into its types."""

from __future__ import annotations

from typing import Any

from evenkeel_local.gpu_cluster import catalogue, errors, field_table, schemas
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import ResourceType


def _object_schema(required: tuple[str, ...] = (), /, **properties: Obj) -> Obj:
    return {"type": "object", "properties": properties, "required": list(required)}


def _list_schema(items: Obj) -> Obj:
    return {"type": "array", "items": items}


def _map_schema(values: Obj) -> Obj:
    return {"type": "object", "additionalProperties": values}


TEXT: Obj = {"type": "string"}
FLAG: Obj = {"type": "boolean"}
ANY_OBJECT: Obj = {"type": "object"}
COLUMN = _object_schema(("name", "jsonPath"), name=TEXT, type=TEXT, jsonPath=TEXT, priority={"type": "integer"})
VERSION = _object_schema(
    ("name",),
    name=TEXT,
    served=FLAG,
    storage=FLAG,
    schema=_object_schema(openAPIV3Schema=ANY_OBJECT),
    subresources=_map_schema(ANY_OBJECT),
    additionalPrinterColumns=_list_schema(COLUMN),
)
NAMES = _object_schema(
    **dict.fromkeys(("plural", "kind", "singular", "listKind"), TEXT),
    shortNames=_list_schema(TEXT),
    categories=_list_schema(TEXT),
)
CONDITION = _object_schema(
    ("type", "status"), **dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime"), TEXT)
)
DEFINITION = _object_schema(
    spec=_object_schema(group=TEXT, scope=TEXT, names=NAMES, versions=_list_schema(VERSION)),
    status=_object_schema(conditions=_list_schema(CONDITION)),
)
"""A CustomResourceDefinition, as far as this cluster reads it. The field table does not have this kind."""


def without_nulls(value: Any) -> Any:
    """Return a value without its nulls: the API server drops them."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _has_null_item(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_null_item, value.values()))
    return isinstance(value, list) and any(item is None or _has_null_item(item) for item in value)


def check_decodes(rt: ResourceType, obj: Obj) -> None:
    """Refuse an object that does not decode.

    Raises:
        ApiError: 400 for a value of another type than its field.
    """
    try:
        _decode(rt, obj)
    except field_table.DecodingFailed as failure:
        message = f'{rt.kind} in version "{rt.version}" cannot be handled as a {rt.kind}: {failure}'
        raise errors.bad_request(message) from failure


def _decode(rt: ResourceType, obj: Obj) -> None:
    message = field_table.message_of(rt)
    if not isinstance(obj.get("metadata"), dict):
        raise field_table.DecodingFailed("json: cannot unmarshal metadata: it must be an object")
    if _has_null_item(obj["metadata"] if message is None else obj):
        raise field_table.DecodingFailed("json: cannot unmarshal null: a list must not have null items")
    if message is not None:
        field_table.decode_object(message, obj, [])
        return
    field_table.decode_object("meta/ObjectMeta", obj["metadata"], [])
    if rt.key == catalogue.DEFINITIONS.key:
        for _, field, why in schemas.check_value(DEFINITION, obj):
            raise field_table.DecodingFailed(f"json: cannot unmarshal {field}: {why}")
