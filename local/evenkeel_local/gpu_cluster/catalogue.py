"""The kinds of objects: the built-in kinds, and the kinds that custom resource definitions add."""

from __future__ import annotations

from typing import Any, Final

from evenkeel_local.gpu_cluster.store import ResourceType, ScalePaths

Json = dict[str, Any]

RBAC = "rbac.authorization.k8s.io"


def _resource_type(group: str, plural: str, kind: str, *short: str, **more: Any) -> ResourceType:
    return ResourceType(group, "v1", plural, kind, singular=kind.lower(), short_names=short, **more)


ALL: Final = ("all",)
PODS = _resource_type("", "pods", "Pod", "po", categories=ALL, has_status=True)
NODES = _resource_type("", "nodes", "Node", "no", namespaced=False, has_status=True)
NAMESPACES = _resource_type("", "namespaces", "Namespace", "ns", namespaced=False, has_status=True)
SERVICES = _resource_type("", "services", "Service", "svc", categories=ALL, has_status=True)
CONFIG_MAPS = _resource_type("", "configmaps", "ConfigMap", "cm")
SECRETS = _resource_type("", "secrets", "Secret")
SERVICE_ACCOUNTS = _resource_type("", "serviceaccounts", "ServiceAccount", "sa")
EVENTS = _resource_type("", "events", "Event", "ev")
ENDPOINTS = _resource_type("", "endpoints", "Endpoints", "ep")
VOLUME_CLAIMS = _resource_type("", "persistentvolumeclaims", "PersistentVolumeClaim", "pvc", has_status=True)
RESOURCE_QUOTAS = _resource_type("", "resourcequotas", "ResourceQuota", "quota", has_status=True)
LIMIT_RANGES = _resource_type("", "limitranges", "LimitRange", "limits")
JOBS = _resource_type("batch", "jobs", "Job", categories=ALL, has_status=True)
DEPLOYMENTS = _resource_type(
    "apps", "deployments", "Deployment", "deploy", categories=ALL, has_status=True, scale=ScalePaths()
)
REPLICA_SETS = _resource_type(
    "apps", "replicasets", "ReplicaSet", "rs", categories=ALL, has_status=True, scale=ScalePaths()
)
LEASES = _resource_type("coordination.k8s.io", "leases", "Lease")
BUDGETS = _resource_type("policy", "poddisruptionbudgets", "PodDisruptionBudget", "pdb", has_status=True)
PRIORITY_CLASSES = _resource_type("scheduling.k8s.io", "priorityclasses", "PriorityClass", "pc", namespaced=False)
ROLES = _resource_type(RBAC, "roles", "Role")
ROLE_BINDINGS = _resource_type(RBAC, "rolebindings", "RoleBinding")
CLUSTER_ROLES = _resource_type(RBAC, "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = _resource_type(RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
DEFINITIONS = _resource_type(
    "apiextensions.k8s.io",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    *("crd", "crds"),
    namespaced=False,
    categories=("api-extensions",),
    has_status=True,
)
BUILT_IN = tuple(value for value in list(globals().values()) if isinstance(value, ResourceType))


class ResourceCatalogue:
    """Finds resource types; custom resource definitions add and remove some."""

    def __init__(self) -> None:
        self._types = {(rt.group, rt.version, rt.plural): rt for rt in BUILT_IN}
        self._index()

    def _index(self) -> None:
        self._by_kind = {(rt.api_version, rt.kind): rt for rt in self._types.values()}

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        """Return the type at a path, or None."""
        return self._types.get((group, version, plural))

    def of_group(self, group: str, version: str) -> list[ResourceType]:
        """Return the types of one group version."""
        return [rt for rt in self._types.values() if rt.group == group and rt.version == version]

    def group_versions(self) -> dict[str, list[str]]:
        """Return the served versions of each group, the core group included as the empty string."""
        groups: dict[str, list[str]] = {}
        for group, version, _ in self._types:
            versions = groups.setdefault(group, [])
            if version not in versions:
                versions.append(version)
        return groups

    def all(self) -> list[ResourceType]:
        """Return every type."""
        return list(self._types.values())

    def by_kind(self, api_version: str, kind: str) -> ResourceType | None:
        """Return the type of a kind, or None."""
        return self._by_kind.get((api_version, kind))

    def define(self, definition: Json) -> None:
        """Serve the versions of a custom resource definition."""
        self.withdraw(definition)
        spec = definition["spec"]
        names = spec["names"]
        for version in spec["versions"]:
            if not version.get("served"):
                continue
            subresources = version.get("subresources") or {}
            rt = ResourceType(
                group=spec["group"],
                version=version["name"],
                plural=names["plural"],
                kind=names["kind"],
                namespaced=spec["scope"] == "Namespaced",
                singular=names.get("singular") or names["kind"].lower(),
                short_names=tuple(names.get("shortNames") or ()),
                categories=tuple(names.get("categories") or ()),
                has_status="status" in subresources,
                scale=_scale_paths(subresources.get("scale")),
                custom=True,
                schema=(version.get("schema") or {}).get("openAPIV3Schema"),
                columns=tuple(version.get("additionalPrinterColumns") or ()),
            )
            self._types[(rt.group, rt.version, rt.plural)] = rt
        self._index()

    def withdraw(self, definition: Json) -> None:
        """Stop serving a custom resource definition."""
        spec = definition["spec"]
        group, plural = spec["group"], spec["names"]["plural"]
        for type_key in [known_key for known_key in self._types if (known_key[0], known_key[2]) == (group, plural)]:
            del self._types[type_key]
        self._index()


def _scale_paths(stated: Json | None) -> ScalePaths | None:
    if stated is None:
        return None
    return ScalePaths(
        stated.get("specReplicasPath") or "", stated.get("statusReplicasPath") or "", stated.get("labelSelectorPath")
    )
