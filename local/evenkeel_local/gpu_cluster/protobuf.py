"""Request bodies in Kubernetes' protobuf encoding, which helm and `kubectl create` send for some kinds.

Answers are always JSON, which every client takes. Field numbers are those of the `generated.proto` files in
`k8s.io/api` and `k8s.io/apimachinery`; kinds that are not listed are refused with 415.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from evenkeel_local.gpu_cluster import errors
from evenkeel_local.gpu_cluster.errors import Obj

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"

Field = tuple[str, str]
"""(name, type): a scalar, a message, `[]` before it for a list, `map:` before it for a map of strings."""

MESSAGES: dict[str, dict[int, Field]] = {
    "Unknown": {
        1: ("typeMeta", "TypeMeta"),
        2: ("raw", "raw"),
        3: ("contentEncoding", "string"),
        4: ("contentType", "string"),
    },
    "TypeMeta": {1: ("apiVersion", "string"), 2: ("kind", "string")},
    "ObjectMeta": {
        1: ("name", "string"),
        2: ("generateName", "string"),
        3: ("namespace", "string"),
        5: ("uid", "string"),
        6: ("resourceVersion", "string"),
        7: ("generation", "int"),
        8: ("creationTimestamp", "Time"),
        9: ("deletionTimestamp", "Time"),
        10: ("deletionGracePeriodSeconds", "int"),
        11: ("labels", "map:string"),
        12: ("annotations", "map:string"),
        13: ("ownerReferences", "[]OwnerReference"),
        14: ("finalizers", "[]string"),
    },
    "OwnerReference": {
        1: ("kind", "string"),
        3: ("name", "string"),
        4: ("uid", "string"),
        5: ("apiVersion", "string"),
        6: ("controller", "bool"),
        7: ("blockOwnerDeletion", "bool"),
    },
    "Time": {1: ("seconds", "int"), 2: ("nanos", "int")},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "int"),
        2: ("preconditions", "Preconditions"),
        3: ("orphanDependents", "bool"),
        4: ("propagationPolicy", "string"),
        5: ("dryRun", "[]string"),
    },
    "Preconditions": {1: ("uid", "string"), 2: ("resourceVersion", "string")},
    "Secret": {
        1: ("metadata", "ObjectMeta"),
        2: ("data", "map:bytes"),
        3: ("type", "string"),
        4: ("stringData", "map:string"),
        5: ("immutable", "bool"),
    },
    "ConfigMap": {
        1: ("metadata", "ObjectMeta"),
        2: ("data", "map:string"),
        3: ("binaryData", "map:bytes"),
        4: ("immutable", "bool"),
    },
    "Namespace": {1: ("metadata", "ObjectMeta"), 2: ("spec", "NamespaceSpec"), 3: ("status", "NamespaceStatus")},
    "NamespaceSpec": {1: ("finalizers", "[]string")},
    "NamespaceStatus": {1: ("phase", "string")},
    "ServiceAccount": {1: ("metadata", "ObjectMeta"), 4: ("automountServiceAccountToken", "bool")},
    "PolicyRule": {
        1: ("verbs", "[]string"),
        2: ("apiGroups", "[]string"),
        3: ("resources", "[]string"),
        4: ("resourceNames", "[]string"),
        5: ("nonResourceURLs", "[]string"),
    },
    "Subject": {1: ("kind", "string"), 2: ("apiGroup", "string"), 3: ("name", "string"), 4: ("namespace", "string")},
    "RoleRef": {1: ("apiGroup", "string"), 2: ("kind", "string"), 3: ("name", "string")},
    "Role": {1: ("metadata", "ObjectMeta"), 2: ("rules", "[]PolicyRule")},
    "ClusterRole": {1: ("metadata", "ObjectMeta"), 2: ("rules", "[]PolicyRule")},
    "RoleBinding": {1: ("metadata", "ObjectMeta"), 2: ("subjects", "[]Subject"), 3: ("roleRef", "RoleRef")},
    "ClusterRoleBinding": {1: ("metadata", "ObjectMeta"), 2: ("subjects", "[]Subject"), 3: ("roleRef", "RoleRef")},
    "PriorityClass": {
        1: ("metadata", "ObjectMeta"),
        2: ("value", "int"),
        3: ("globalDefault", "bool"),
        4: ("description", "string"),
        5: ("preemptionPolicy", "string"),
    },
    "Eviction": {1: ("metadata", "ObjectMeta"), 2: ("deleteOptions", "DeleteOptions")},
    "SelfSubjectReview": {1: ("metadata", "ObjectMeta")},
    "SelfSubjectAccessReview": {1: ("metadata", "ObjectMeta"), 2: ("spec", "SelfSubjectAccessReviewSpec")},
    "SelfSubjectAccessReviewSpec": {
        1: ("resourceAttributes", "ResourceAttributes"),
        2: ("nonResourceAttributes", "NonResourceAttributes"),
    },
    "ResourceAttributes": {
        1: ("namespace", "string"),
        2: ("verb", "string"),
        3: ("group", "string"),
        4: ("version", "string"),
        5: ("resource", "string"),
        6: ("subresource", "string"),
        7: ("name", "string"),
    },
    "NonResourceAttributes": {1: ("path", "string"), 2: ("verb", "string")},
}


class _Broken(Exception):
    """The bytes are no protobuf."""


def decode(body: bytes) -> Obj:
    """Return the object in a request body.

    Raises:
        ApiError: 400 when the bytes cannot be read, 415 for a kind that is not known here.
    """
    if not body.startswith(MAGIC):
        raise errors.bad_request("the body is not Kubernetes protobuf: it lacks the magic number")
    try:
        envelope = _message("Unknown", body[len(MAGIC) :])
        meta = envelope.get("typeMeta") or {}
        kind = str(meta.get("kind") or "")
        if kind not in MESSAGES:
            raise errors.unsupported_media_type(
                f"this server does not read {kind} as protobuf: use application/json (with kubectl, apply the object "
                "that --dry-run=client -o yaml prints)"
            )
        obj = _message(kind, envelope.get("raw") or b"")
    except (_Broken, UnicodeDecodeError) as broken:
        raise errors.bad_request(f"the body is not readable as protobuf: {broken}") from broken
    return {"apiVersion": meta.get("apiVersion", ""), "kind": kind, **obj}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _Broken("a number does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire in (1, 2, 5):
            size = 8 if wire == 1 else 4
            if wire == 2:
                size, at = _varint(data, at)
            if at + size > len(data):
                raise _Broken("a field is cut off")
            yield number, data[at : at + size]
            at += size
        else:
            raise _Broken(f"wire type {wire}")


def _message(name: str, data: bytes) -> Obj:
    known = MESSAGES[name]
    found: Obj = {}
    for number, value in _fields(data):
        if number not in known:
            continue
        field, kind = known[number]
        if kind.startswith("[]"):
            found.setdefault(field, []).append(_value(kind[2:], value))
        elif kind.startswith("map:"):
            key, item = _entry(kind[4:], value)
            found.setdefault(field, {})[key] = item
        elif (decoded := _value(kind, value)) is not None:
            found[field] = decoded
    return {field: value for field, value in found.items() if value not in ("", None)}


def _entry(kind: str, value: int | bytes) -> tuple[str, Any]:
    if isinstance(value, int):
        raise _Broken("a map entry is a number")
    parts = dict(_fields(value))
    empty = b""
    return str(_value("string", parts.get(1, empty))), _value(kind, parts.get(2, empty))


def _value(kind: str, value: int | bytes) -> Any:
    if kind in ("int", "bool"):
        if not isinstance(value, int):
            raise _Broken(f"a {kind} is no number")
        signed = value - (1 << 64) if value >> 63 else value
        return bool(value) if kind == "bool" else signed
    if isinstance(value, int):
        raise _Broken(f"a {kind} is a number")
    if kind == "string":
        return value.decode()
    if kind == "bytes":
        return base64.b64encode(value).decode()
    if kind == "raw":
        return value
    if kind == "Time":
        seconds = _message("Time", value).get("seconds")
        return None if not seconds else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return _message(kind, value)
