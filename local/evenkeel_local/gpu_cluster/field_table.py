"""The fields of the built-in kinds, from `protobuf_fields.txt`: how bodies decode, and what OpenAPI shows.

A real API server decodes a body into Go types. It answers 400 to a value of another type. `fieldValidation` of the
request decides about unknown fields: ignore, warn or refuse. `tools/protobuf_fields.py` makes the table from the Go
types of `k8s.io/api` 0.33 and describes its notation.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib import resources
from typing import Any

from evenkeel_local.gpu_cluster import quantities
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import ResourceType

TYPES = {"s": (str, "string"), "b": (bool, "bool"), "i": (int, "int64"), "y": (str, "[]uint8")}
SHOWN: dict[str, Obj] = {
    "s": {"type": "string"},
    "b": {"type": "boolean"},
    "i": {"type": "integer"},
    "y": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"type": "string"},
    "intorstring": {"type": "string", "format": "int-or-string"},
    "json": {"type": "object"},
}


WIDE = frozenset(
    {
        *("activeDeadlineSeconds", "deletionGracePeriodSeconds", "expirationSeconds", "gracePeriodSeconds"),
        *("terminationGracePeriodSeconds", "tolerationSeconds", "fsGroup", "runAsGroup", "runAsUser"),
        *("supplementalGroups", "generation", "observedGeneration", "revision", "sizeBytes"),
    }
)
"""Number fields of 64 bits; all other number fields have 32."""
REQUIRED = {"core/ContainerStatus": ("name",), "core/NodeAddress": ("type", "address")}
"""Fields that controllers read of a message; conditions need a type and a status."""
INDEX = re.compile(r"\[[0-9]+\]")


class DecodingFailed(Exception):
    """Raised if a value does not fit its field. The message names the field and the reason."""


@dataclass(frozen=True)
class _FieldPosition:
    """Where a value is in an object: its Go struct and its path."""

    struct: str
    path: str

    def inside(self, step: str) -> _FieldPosition:
        """Return the position of an item of a list or map."""
        return _FieldPosition(self.struct, self.path + step)

    @property
    def name(self) -> str:
        """The name of the field."""
        return self.path.rpartition(".")[2].partition("[")[0]

    @property
    def shown(self) -> str:
        """The field as Go names it, without list indexes."""
        return f"Go struct field {self.struct}.{INDEX.sub('', self.path)}"


@dataclass(frozen=True)
class Field:
    """A field of a message."""

    name: str
    kind: str
    inline: bool
    left_out_when_zero: bool


@dataclass
class FieldTable:
    """The fields of each message by number, and the message of each kind."""

    messages: dict[str, dict[int, Field]] = field(default_factory=dict)
    roots: dict[tuple[str, str], str] = field(default_factory=dict)

    def message_of(self, api_version: str, kind: str) -> str | None:
        """Return the message of a kind; the kinds of `meta` are the same in every group."""
        return self.roots.get((api_version, kind)) or self.roots.get(("*", kind))

    @functools.cached_property
    def by_name(self) -> dict[str, dict[str, Field]]:
        """Return the fields of each message by JSON name; fields of inline messages are lifted."""
        return {name: dict(self._inline_fields(name)) for name in self.messages}

    def _inline_fields(self, message: str) -> Iterator[tuple[str, Field]]:
        for inlined in self.messages[message].values():
            if inlined.inline:
                yield from self._inline_fields(inlined.kind)
            else:
                yield inlined.name, inlined


@functools.cache
def field_table() -> FieldTable:
    """Return the table, read once."""
    table = FieldTable()
    text = resources.files(__package__).joinpath("protobuf_fields.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        name, *fields = line.split()
        if name == "!":
            message, api_version = fields
            table.roots[(api_version, message.partition("/")[2])] = message
        else:
            table.messages[name] = dict(map(_read_field, fields))
    return table


def message_of(rt: ResourceType) -> str | None:
    """Return the message of a built-in kind; None for custom kinds and for kinds that the table lacks."""
    return None if rt.custom else field_table().message_of(rt.api_version, rt.kind)


def _read_field(text: str) -> tuple[int, Field]:
    name, _, definition = text.partition("=")
    number, _, kind = definition.partition(":")
    return int(number), Field(name, kind.strip("^?"), kind.startswith("^"), kind.endswith("?"))


def decode_object(message: str, obj: Obj, unknown_fields: list[str]) -> Obj:
    """Return an object with only the fields of its type. The paths of other fields are added to `unknown_fields`.

    Zero values of `omitempty` fields are dropped, as Go drops them.

    Raises:
        DecodingFailed: a value is of another type than its field.
    """
    document: Obj = {key: obj[key] for key in ("apiVersion", "kind") if key in obj}
    return document | _decode_members(
        message, {key: value for key, value in obj.items() if key not in document}, "", unknown_fields
    )


def _decode_members(message: str, value: Obj, path: str, unknown_fields: list[str]) -> Obj:
    fields = field_table().by_name[message]
    struct = message.partition("/")[2]
    members: Obj = {}
    for name, item in value.items():
        at = f"{path}.{name}" if path else name
        field_type = fields.get(name)
        if field_type is None:
            unknown_fields.append(at)
            continue
        if item is None:
            continue
        decoded_value = _coerce(field_type.kind, item, _FieldPosition(struct, at), unknown_fields)
        if decoded_value or not field_type.left_out_when_zero:
            members[name] = decoded_value
    for name in REQUIRED.get(message, ("type", "status") if message.endswith("Condition") else ()):
        if name not in value:
            raise DecodingFailed(f"{path}.{name} is missing")
    return members


def _coerce(kind: str, value: Any, at: _FieldPosition, unknown_fields: list[str]) -> Any:
    if value is None:  # in a list or map, Go decodes null to the zero value
        return _zero_value(kind)
    if kind.startswith("[]"):
        if not isinstance(value, list):
            raise _type_mismatch(value, at, _go_type(kind, at))
        return [_coerce(kind[2:], item, at.inside(f"[{number}]"), unknown_fields) for number, item in enumerate(value)]
    if kind.startswith("{}"):
        if not isinstance(value, dict):
            raise _type_mismatch(value, at, _go_type(kind, at))
        return {key: _coerce(kind[2:], item, at.inside(f".{key}"), unknown_fields) for key, item in value.items()}
    if "/" in kind:
        if not isinstance(value, dict):
            raise _type_mismatch(value, at, _go_type(kind, at))
        return _decode_members(kind, value, at.path, unknown_fields)
    if kind == "quantity":
        try:
            return quantities.canonical_text(value)
        except ValueError as error:
            raise DecodingFailed(str(error)) from error
    _check_leaf(kind, value, at)
    return value


def _go_type(kind: str, at: _FieldPosition) -> str:
    """Return a type as Go writes it."""
    if kind.startswith("[]"):
        return f"[]{_go_type(kind[2:], at)}"
    if kind.startswith("{}"):
        return f"map[string]{_go_type(kind[2:], at)}"
    if "/" in kind:
        return f"v1.{kind.partition('/')[2]}"
    if kind == "i":
        return "int64" if at.name in WIDE else "int32"
    return TYPES[kind][1] if kind in TYPES else kind


def _zero_value(kind: str) -> Any:
    if kind.startswith("[]"):
        return []
    if "/" in kind or kind.startswith("{}"):
        return {}
    return {"s": "", "y": "", "b": False, "i": 0, "intorstring": 0, "quantity": "0"}.get(kind)


def _check_leaf(kind: str, value: Any, at: _FieldPosition) -> None:
    if kind in TYPES and (not isinstance(value, TYPES[kind][0]) or (kind == "i" and isinstance(value, bool))):
        raise _type_mismatch(value, at, _go_type(kind, at))
    if kind == "i" and not -(bound := 2**63 if at.name in WIDE else 2**31) <= value < bound:
        raise DecodingFailed(f"json: cannot unmarshal number {value} into {at.shown} of type {_go_type(kind, at)}")
    if kind == "intorstring" and (isinstance(value, bool) or not isinstance(value, int | str)):
        raise _type_mismatch(value, at, "IntOrString")
    try:
        if kind == "y":
            base64.b64decode(value, validate=True)
        elif kind in ("time", "microtime"):
            datetime.fromisoformat(value)
    except (ValueError, TypeError, binascii.Error) as error:
        raise DecodingFailed(f"{at.path}: {error}") from error


def _type_mismatch(value: Any, at: _FieldPosition, wanted_kind: str) -> DecodingFailed:
    names = {str: "string", bool: "bool", dict: "object", list: "array"}
    described_kind = next((name for kind, name in names.items() if isinstance(value, kind)), "number")
    if isinstance(value, float):
        described_kind = f"number {value}"
    return DecodingFailed(f"json: cannot unmarshal {described_kind} into {at.shown} of type {wanted_kind}")


def openapi_schemas(message: str) -> dict[str, Obj]:
    """Return the OpenAPI schemas of a message and of every message that it refers to."""
    kinds: dict[str, Obj] = {}
    messages_to_visit = [message]
    while messages_to_visit:
        name = messages_to_visit.pop()
        if name in kinds:
            continue
        members = field_table().by_name[name]
        kinds[name] = {
            "type": "object",
            "properties": {member: _openapi_type(member_field.kind) for member, member_field in members.items()},
        }
        messages_to_visit += [inner for member in members.values() if "/" in (inner := member.kind.lstrip("[]{}"))]
    return kinds


def schema_ref(message: str) -> Obj:
    """Return the reference to a message's schema."""
    return {"$ref": f"#/components/schemas/{message.replace('/', '.')}"}


def _openapi_type(kind: str) -> Obj:
    if kind.startswith("[]"):
        return {"type": "array", "items": _openapi_type(kind[2:])}
    if kind.startswith("{}"):
        return {"type": "object", "additionalProperties": _openapi_type(kind[2:])}
    return {"allOf": [schema_ref(kind)]} if "/" in kind else dict(SHOWN[kind])
