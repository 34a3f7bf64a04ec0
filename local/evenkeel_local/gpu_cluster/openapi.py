"""OpenAPI v3, as far as kubectl needs it: the operations, their field validation, and the custom schemas.

Built-in kinds have their fields, without descriptions or merge keys: kubectl uses its compiled merge keys.
"""

from __future__ import annotations

from evenkeel_local.gpu_cluster import field_table
from evenkeel_local.gpu_cluster.catalogue import ResourceCatalogue
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import ResourceType

META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def openapi_index(types: ResourceCatalogue) -> Obj:
    """Return the list of documents, one for each group version."""
    paths: Obj = {}
    for group, versions in types.group_versions().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else "api/v1"
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}"}
    return {"paths": paths}


def openapi_document(group: str, version: str, types: list[ResourceType]) -> Obj:
    """Return the document of one group version."""
    prefix = f"/apis/{group}/{version}" if group else "/api/v1"
    paths: Obj = {}
    schemas: Obj = {META: {"type": "object", "description": "ObjectMeta is metadata that all objects have."}}
    for rt in types:
        scope_path = "namespaces/{namespace}/" if rt.namespaced else ""
        group_version_kind = {"group": rt.group, "version": rt.version, "kind": rt.kind}
        name = schema_name(rt)
        paths[f"{prefix}/{scope_path}{rt.plural}/{{name}}"] = {
            verb: _operation_json(verb, group_version_kind, name, rt) for verb in ("get", "put", "patch", "delete")
        }
        paths[f"{prefix}/{scope_path}{rt.plural}"] = {"post": _operation_json("post", group_version_kind, name, rt)}
        message = field_table.message_of(rt)
        if message is None:
            schemas[name] = _kind_schema(rt, group_version_kind)
        else:
            message_schemas = field_table.openapi_schemas(message)
            schemas.update({schema_path.replace("/", "."): schema for schema_path, schema in message_schemas.items()})
            properties = {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                **message_schemas[message]["properties"],
            }
            schemas[name] = {
                "type": "object",
                "properties": properties,
                "x-kubernetes-group-version-kind": [group_version_kind],
            }
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.33.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def schema_name(rt: ResourceType) -> str:
    """Return the name of a kind's schema."""
    group = ".".join(reversed((rt.group or "core.api.k8s.io").split(".")))
    return f"{group}.{rt.version}.{rt.kind}"


def _operation_json(verb: str, kind: Obj, schema: str, rt: ResourceType) -> Obj:
    operation: Obj = {
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind": kind,
        "responses": {"200": {"description": "OK"}},
    }
    if verb in ("post", "put", "patch"):
        operation["parameters"] = [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in ("dryRun", "fieldManager", "fieldValidation")
        ]
    if verb == "patch":
        accepted_types = ["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"]
        operation["requestBody"] = {"content": {name: {"schema": {"type": "object"}} for name in accepted_types}}
    return operation


def _kind_schema(rt: ResourceType, kind: Obj) -> Obj:
    own_schema = rt.schema or {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    properties = {
        **(own_schema.get("properties") or {}),
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"allOf": [{"$ref": f"#/components/schemas/{META}"}]},
    }
    return {**own_schema, "properties": properties, "x-kubernetes-group-version-kind": [kind]}
