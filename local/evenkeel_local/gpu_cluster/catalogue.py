"""The kinds of object the cluster knows: the built-in ones, and those that custom resource definitions add."""

from __future__ import annotations

from typing import Any

from evenkeel_local.gpu_cluster.store import ResourceType, ScalePaths

Json = dict[str, Any]

PODS = ResourceType("", "v1", "pods", "Pod", singular="pod", short_names=("po",), categories=("all",), has_status=True)
NODES = ResourceType("", "v1", "nodes", "Node", False, "node", ("no",), has_status=True)
NAMESPACES = ResourceType("", "v1", "namespaces", "Namespace", False, "namespace", ("ns",), has_status=True)
SERVICES = ResourceType("", "v1", "services", "Service", True, "service", ("svc",), ("all",), has_status=True)
CONFIG_MAPS = ResourceType("", "v1", "configmaps", "ConfigMap", True, "configmap", ("cm",))
SECRETS = ResourceType("", "v1", "secrets", "Secret", True, "secret")
SERVICE_ACCOUNTS = ResourceType("", "v1", "serviceaccounts", "ServiceAccount", True, "serviceaccount", ("sa",))
EVENTS = ResourceType("", "v1", "events", "Event", True, "event", ("ev",))
ENDPOINTS = ResourceType("", "v1", "endpoints", "Endpoints", True, "endpoints", ("ep",))
VOLUME_CLAIMS = ResourceType(
    "",
    "v1",
    "persistentvolumeclaims",
    "PersistentVolumeClaim",
    True,
    "persistentvolumeclaim",
    ("pvc",),
    has_status=True,
)
RESOURCE_QUOTAS = ResourceType(
    "", "v1", "resourcequotas", "ResourceQuota", True, "resourcequota", ("quota",), has_status=True
)
LIMIT_RANGES = ResourceType("", "v1", "limitranges", "LimitRange", True, "limitrange", ("limits",))
JOBS = ResourceType("batch", "v1", "jobs", "Job", True, "job", categories=("all",), has_status=True)
DEPLOYMENTS = ResourceType(
    "apps",
    "v1",
    "deployments",
    "Deployment",
    True,
    "deployment",
    ("deploy",),
    ("all",),
    has_status=True,
    scale=ScalePaths(),
)
REPLICA_SETS = ResourceType(
    "apps",
    "v1",
    "replicasets",
    "ReplicaSet",
    True,
    "replicaset",
    ("rs",),
    ("all",),
    has_status=True,
    scale=ScalePaths(),
)
LEASES = ResourceType("coordination.k8s.io", "v1", "leases", "Lease", True, "lease")
BUDGETS = ResourceType(
    "policy",
    "v1",
    "poddisruptionbudgets",
    "PodDisruptionBudget",
    True,
    "poddisruptionbudget",
    ("pdb",),
    has_status=True,
)
PRIORITY_CLASSES = ResourceType(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, "priorityclass", ("pc",)
)
RBAC = "rbac.authorization.k8s.io"
ROLES = ResourceType(RBAC, "v1", "roles", "Role", True, "role")
ROLE_BINDINGS = ResourceType(RBAC, "v1", "rolebindings", "RoleBinding", True, "rolebinding")
CLUSTER_ROLES = ResourceType(RBAC, "v1", "clusterroles", "ClusterRole", False, "clusterrole")
CLUSTER_ROLE_BINDINGS = ResourceType(
    RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, "clusterrolebinding"
)
DEFINITIONS = ResourceType(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    False,
    "customresourcedefinition",
    ("crd", "crds"),
    ("api-extensions",),
    has_status=True,
)

BUILT_IN = (
    PODS,
    NODES,
    NAMESPACES,
    SERVICES,
    CONFIG_MAPS,
    SECRETS,
    SERVICE_ACCOUNTS,
    EVENTS,
    ENDPOINTS,
    VOLUME_CLAIMS,
    RESOURCE_QUOTAS,
    LIMIT_RANGES,
    JOBS,
    DEPLOYMENTS,
    REPLICA_SETS,
    LEASES,
    BUDGETS,
    PRIORITY_CLASSES,
    ROLES,
    ROLE_BINDINGS,
    CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS,
    DEFINITIONS,
)


class ResourceCatalogue:
    """Finds resource types by path; custom resource definitions come and go."""

    def __init__(self) -> None:
        self._types: dict[tuple[str, str, str], ResourceType] = {
            (rt.group, rt.version, rt.plural): rt for rt in BUILT_IN
        }

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        """Return the type at a path, or nothing."""
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
        """Return the type of a kind, or nothing."""
        for rt in self._types.values():
            if rt.kind == kind and rt.api_version == api_version:
                return rt
        return None

    def by_key(self, key: tuple[str, str]) -> ResourceType:
        """Return the (first served) type stored under a key."""
        for rt in self._types.values():
            if rt.key == key:
                return rt
        raise KeyError(key)

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

    def withdraw(self, definition: Json) -> None:
        """Stop serving a custom resource definition."""
        spec = definition["spec"]
        for at in [at for at in self._types if at[0] == spec["group"] and at[2] == spec["names"]["plural"]]:
            del self._types[at]


def _scale_paths(stated: Json | None) -> ScalePaths | None:
    if stated is None:
        return None
    return ScalePaths(
        stated.get("specReplicasPath") or "", stated.get("statusReplicasPath") or "", stated.get("labelSelectorPath")
    )
