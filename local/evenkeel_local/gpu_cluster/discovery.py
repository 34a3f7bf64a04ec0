"""The API's description of itself: health, version, groups, resources."""

from __future__ import annotations

import json

from evenkeel_local.gpu_cluster import metrics, openapi
from evenkeel_local.gpu_cluster.catalogue import ResourceCatalogue
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.objects import put
from evenkeel_local.gpu_cluster.store import ResourceType

SERVED_VERSION = "v1.33.0"
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def discovery_document(path: str, accept: str, types: ResourceCatalogue) -> tuple[bytes, str] | None:
    """Return the body and content type of a path that describes the API; None for any other path."""
    segments = [segment for segment in path.split("/") if segment]
    if path in ("/healthz", "/livez", "/readyz") or path.startswith(("/livez/", "/readyz/", "/healthz/")):
        return b"ok", "text/plain"
    body = _describe(segments, types)
    if body is None:
        return None
    return json.dumps(body).encode(), "application/json"


def _describe(segments: list[str], types: ResourceCatalogue) -> Obj | None:
    if segments[:2] == ["openapi", "v3"]:
        return _openapi_document(segments[2:], types)
    if segments == ["version"]:
        return {
            "major": "1",
            "minor": "33",
            "gitVersion": SERVED_VERSION,
            "gitCommit": "",
            "gitTreeState": "clean",
            "buildDate": "2025-04-23T13:37:10Z",
            "goVersion": "",
            "compiler": "",
            "platform": "linux/amd64",
        }
    if segments == ["api"]:
        return {
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        }
    if segments == ["apis"]:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": _api_groups(types)}
    if segments == ["api", "v1"]:
        return _resource_list("v1", types.of_group("", "v1"))
    if len(segments) == 2 and segments[0] == "apis":
        return next((group for group in _api_groups(types) if group["name"] == segments[1]), None)
    if segments == ["apis", metrics.GROUP, metrics.VERSION]:
        return _resource_list(f"{metrics.GROUP}/{metrics.VERSION}", [metrics.PODS, metrics.NODES], ["get", "list"])
    if len(segments) == 3 and segments[0] == "apis":
        resource_types = types.of_group(segments[1], segments[2])
        return _resource_list(f"{segments[1]}/{segments[2]}", resource_types) if resource_types else None
    return None


def _openapi_document(segments: list[str], types: ResourceCatalogue) -> Obj | None:
    if not segments:
        return openapi.openapi_index(types)
    if segments == ["api", "v1"]:
        return openapi.openapi_document("", "v1", types.of_group("", "v1"))
    if len(segments) == 3 and segments[0] == "apis" and (resource_types := types.of_group(segments[1], segments[2])):
        return openapi.openapi_document(segments[1], segments[2], resource_types)
    return None


def _api_groups(types: ResourceCatalogue) -> list[Obj]:
    groups: list[Obj] = []
    for group, versions in {**types.group_versions(), metrics.GROUP: [metrics.VERSION]}.items():
        if not group:
            continue
        version_documents = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
        group_document = {"name": group, "versions": version_documents, "preferredVersion": version_documents[0]}
        groups.append({"kind": "APIGroup", "apiVersion": "v1", **group_document})
    return groups


def _resource_list(group_version: str, types: list[ResourceType], verbs: list[str] = VERBS) -> Obj:
    resources: list[Obj] = []
    for rt in types:
        entry = _resource_json(rt, rt.plural, rt.kind, verbs) | {"singularName": rt.singular}
        put(entry, "shortNames", list(rt.short_names))
        put(entry, "categories", list(rt.categories))
        resources.append(entry)
        resources.extend(_subresources(rt))
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _resource_json(rt: ResourceType, name: str, kind: str, verbs: list[str]) -> Obj:
    return {"name": name, "singularName": "", "namespaced": rt.namespaced, "kind": kind, "verbs": verbs}


def _subresources(rt: ResourceType) -> list[Obj]:
    subresources: list[Obj] = []

    def add(name: str, kind: str, verbs: list[str], group: str = "", version: str = "") -> None:
        more = {"group": group, "version": version} if group else {}
        subresources.append(_resource_json(rt, f"{rt.plural}/{name}", kind, verbs) | more)

    if rt.has_status:
        add("status", rt.kind, ["get", "patch", "update"])
    if rt.scale is not None:
        add("scale", "Scale", ["get", "patch", "update"], "autoscaling", "v1")
    if rt.key == ("", "pods"):
        add("eviction", "Eviction", ["create"], "policy", "v1")
        add("log", "Pod", ["get"])
        add("exec", "PodExecOptions", ["create", "get"])
        add("binding", "Binding", ["create"])
    if rt.key == ("", "namespaces"):
        add("finalize", "Namespace", ["update"])
    return subresources
