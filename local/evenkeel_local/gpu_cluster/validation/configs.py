"""Checks of ConfigMaps and Secrets, and of their changes.

Source: `pkg/apis/core/validation` of Kubernetes 1.33.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.objects import annotations_of
from evenkeel_local.gpu_cluster.validation import names
from evenkeel_local.gpu_cluster.validation.causes import Cause, forbidden, immutable, invalid, required, too_long

MAX_BYTES = 1024 * 1024
WHOLE = "[]"
"""The field that a message names for the whole object."""
SET_ONCE = "field is immutable when `immutable` is set"
ACCOUNT = "kubernetes.io/service-account.name"
NEEDED_KEYS = {"kubernetes.io/ssh-auth": ("ssh-privatekey",), "kubernetes.io/tls": ("tls.crt", "tls.key")}
DOCKER_KEYS = {"kubernetes.io/dockercfg": ".dockercfg", "kubernetes.io/dockerconfigjson": ".dockerconfigjson"}
PASSWORD = ("username", "password")


def _check_keys(data: Obj, field: str) -> Iterator[Cause]:
    for key in data:
        yield from names.causes(f"{field}[{key}]", key, names.config_key_errors(key))


def _decoded_size(text: str) -> int:
    return len(text) * 3 // 4 - text[-2:].count("=")


def check_config_map(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a ConfigMap."""
    data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
    yield from _check_keys(data, "data")
    for key in data:
        if key in binary:
            yield invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    yield from _check_keys(binary, "binaryData")
    size = sum(len(value.encode()) for value in data.values()) + sum(map(_decoded_size, binary.values()))
    if size > MAX_BYTES:
        yield too_long(WHOLE, MAX_BYTES)


def check_secret(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a Secret."""
    data, kind = obj.get("data") or {}, obj.get("type")
    yield from _check_keys(data, "data")
    if sum(map(_decoded_size, data.values())) > MAX_BYTES:
        yield too_long("data", MAX_BYTES)
    if kind == "kubernetes.io/service-account-token" and not annotations_of(obj).get(ACCOUNT):
        yield required(f"metadata.annotations[{ACCOUNT}]")
    for key in NEEDED_KEYS.get(kind or "", ()):
        if key not in data:
            yield required(f"data[{key}]")
    if kind == "kubernetes.io/basic-auth" and not any(key in data for key in PASSWORD):
        for key in PASSWORD:
            yield required(f"data[{key}]")
    if kind in DOCKER_KEYS:
        yield from _check_docker(data.get(DOCKER_KEYS[kind]), f"data[{DOCKER_KEYS[kind]}]")


def _check_docker(text: str | None, field: str) -> Iterator[Cause]:
    if text is None:
        yield required(field)
        return
    try:
        json.loads(base64.b64decode(text))
    except ValueError as error:
        yield invalid(field, "<secret contents redacted>", str(error))


def check_config_map_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    """Yield the problems of a change of a ConfigMap."""
    yield from _check_set_once(obj, old, ("data", "binaryData"))


def check_secret_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    """Yield the problems of a change of a Secret."""
    if obj.get("type") != old.get("type"):
        yield immutable("type", obj.get("type"))
    yield from _check_set_once(obj, old, ("data",))


def _check_set_once(obj: Obj, old: Obj, fields: tuple[str, ...]) -> Iterator[Cause]:
    if not old.get("immutable"):
        return
    if not obj.get("immutable"):
        yield forbidden("immutable", SET_ONCE)
    for field in fields:
        if (obj.get(field) or {}) != (old.get(field) or {}):
            yield forbidden(field, SET_ONCE)
