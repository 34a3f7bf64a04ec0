"""Request bodies in Kubernetes' protobuf encoding, which helm and kubectl send for built-in kinds.

Answers are always JSON. The field table describes each message. Other kinds are refused with 415, as a real server does
for custom resources.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from evenkeel_local.gpu_cluster import errors
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.field_table import field_table

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
DEEPEST = 64
"""Greatest depth of nested messages."""


class _InvalidProtobuf(Exception):
    """Raised if bytes are not valid protobuf."""


def decode_body(body: bytes) -> Obj:
    """Return the object in a request body.

    Raises:
        ApiError: 400 if the bytes are not valid protobuf, 415 for an unknown kind.
    """
    if not body.startswith(MAGIC):
        raise errors.bad_request("the body is not Kubernetes protobuf: it lacks the magic number")
    try:
        # runtime.Unknown: 1 is the TypeMeta (1 apiVersion, 2 kind), 2 the object's own bytes.
        envelope = dict(_read_fields(body[len(MAGIC) :]))
        meta = dict(_read_fields(_require_bytes(envelope.get(1, b""))))
        api_version, kind = (_require_bytes(meta.get(number, b"")).decode() for number in (1, 2))
        message = field_table().message_of(api_version, kind)
        if message is None:
            raise errors.unsupported_media_type(
                f"this server does not read {kind} of {api_version} as protobuf: use application/json (with kubectl, "
                "apply the object that --dry-run=client -o yaml prints)"
            )
        obj = _decode_message(message, _require_bytes(envelope.get(2, b"")))
    except (_InvalidProtobuf, UnicodeDecodeError) as error:
        raise errors.bad_request(f"the body is not readable as protobuf: {error}") from error
    return {"apiVersion": api_version, "kind": kind, **obj}


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _InvalidProtobuf("a number does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _read_varint(data, at)
            yield number, value
        elif wire in (1, 2, 5):
            size = 8 if wire == 1 else 4
            if wire == 2:
                size, at = _read_varint(data, at)
            if at + size > len(data):
                raise _InvalidProtobuf("a field is cut off")
            yield number, data[at : at + size]
            at += size
        else:
            raise _InvalidProtobuf(f"wire type {wire}")


def _require_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise _InvalidProtobuf("a number is in a field of bytes")
    return value


def _decode_message(name: str, data: bytes, depth: int = 0) -> Obj:
    if depth > DEEPEST:
        raise _InvalidProtobuf("messages are nested too deeply")
    message = field_table().messages[name]
    document: Obj = {}
    for number, raw in _read_fields(data):
        field = message.get(number)
        if field is None:
            continue
        if field.kind.startswith("[]"):
            document.setdefault(field.name, []).append(_decode_value(field.kind[2:], raw, depth))
        elif field.kind.startswith("{}"):
            key, item = _decode_map_entry(field.kind[2:], _require_bytes(raw), depth)
            document.setdefault(field.name, {})[key] = item
        else:
            value = _decode_value(field.kind, raw, depth)
            if field.inline:
                document.update(value)
            elif value is not None and (value or not field.left_out_when_zero):
                document[field.name] = value
    return document


def _decode_map_entry(kind: str, data: bytes, depth: int) -> tuple[str, Any]:
    parts = dict(_read_fields(data))
    key, raw = _require_bytes(parts.get(1, b"")).decode(), parts.get(2, b"")
    if kind.startswith("[]"):  # a map cannot hold lists, so a message has the list as its first field
        return key, [
            _decode_value(kind[2:], item, depth) for number, item in _read_fields(_require_bytes(raw)) if number == 1
        ]
    return key, _decode_value(kind, raw, depth)


def _decode_value(kind: str, raw: int | bytes, depth: int) -> Any:
    if kind in ("i", "b"):
        if not isinstance(raw, int):
            raise _InvalidProtobuf("a number field has bytes")
        signed = raw - (1 << 64) if raw >> 63 else raw
        return bool(raw) if kind == "b" else signed
    data = _require_bytes(raw)
    leaf = _LEAVES.get(kind)
    return leaf(data) if leaf is not None else _decode_message(kind, data, depth + 1)


def _decode_time(data: bytes, spelling: str = "%Y-%m-%dT%H:%M:%SZ") -> str | None:
    parts = dict(_read_fields(data))
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    if not isinstance(seconds, int) or not isinstance(nanos, int):
        raise _InvalidProtobuf("a time is no number")
    if not seconds:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanos // 1000).strftime(spelling)
    except (OverflowError, ValueError, OSError) as error:
        raise _InvalidProtobuf(f"no time: {seconds} s and {nanos} ns") from error


def _int_or_string(data: bytes) -> int | str:
    parts = dict(_read_fields(data))
    if parts.get(1, 0):
        return _require_bytes(parts.get(3, b"")).decode()
    number = parts.get(2, 0)
    if not isinstance(number, int):
        raise _InvalidProtobuf("a number field has bytes")
    return number - (1 << 64) if number >> 63 else number


def _decode_json(data: bytes) -> Any:
    try:
        return json.loads(_require_bytes(dict(_read_fields(data)).get(1, b"")) or b"null")
    except ValueError as error:
        raise _InvalidProtobuf(f"no JSON: {error}") from error


_LEAVES: dict[str, Callable[[bytes], Any]] = {
    "s": bytes.decode,
    "y": lambda data: base64.b64encode(data).decode(),
    "quantity": lambda data: _require_bytes(dict(_read_fields(data)).get(1, b"")).decode(),
    "intorstring": _int_or_string,
    "time": _decode_time,
    "microtime": functools.partial(_decode_time, spelling="%Y-%m-%dT%H:%M:%S.%fZ"),
    "json": _decode_json,
}
