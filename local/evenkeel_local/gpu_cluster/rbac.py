"""Authorization: the cluster's own Roles, ClusterRoles and bindings, evaluated at each request."""

from __future__ import annotations

from collections.abc import Iterator

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.api_server import RequestInfo
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.identity import User
from evenkeel_local.gpu_cluster.objects import labels_of
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.store import Store

READ = ["get", "list", "watch"]
ADMIN_VIEW = "eks:admin-view"
FREE_TO_ASK = frozenset(
    {
        ("authentication.k8s.io", "selfsubjectreviews"),
        ("authorization.k8s.io", "selfsubjectaccessreviews"),
        ("authorization.k8s.io", "selfsubjectrulesreviews"),
    }
)
"""Reviews that every user may create, by the role `system:basic-user`."""


class RbacAuthorizer:
    """Refuses requests with the messages of the real authorizer."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def refusal(self, user: User, request: RequestInfo) -> str | None:
        """Return why a request is refused; None if a rule allows it."""
        if user.is_master or (request.group, request.plural) in FREE_TO_ASK:
            return None
        if any(rule_allows(rule, request) for rule in self.rules(user, request.namespace)):
            return None
        text = f'User "{user.name}" cannot {request.verb} resource "{request.resource}" in API group "{request.group}" '
        return text + (f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope")

    def rules(self, user: User, namespace: str) -> Iterator[Obj]:
        """Yield the rules of a user in a namespace, or at the cluster scope."""
        for access in user.access:
            if access.namespaces is None or namespace in access.namespaces:
                yield from self._cluster_role(access.role)
        for binding in self._store.each(catalogue.CLUSTER_ROLE_BINDINGS.key):
            if _binding_applies(binding, user, ""):
                yield from self._cluster_role(binding["roleRef"]["name"])
        if not namespace:
            return
        for binding in self._store.all(catalogue.ROLE_BINDINGS.key, namespace):
            if not _binding_applies(binding, user, namespace):
                continue
            ref = binding["roleRef"]
            if ref["kind"] == "ClusterRole":
                yield from self._cluster_role(ref["name"])
            else:
                role = self._store.find(catalogue.ROLES.key, namespace, ref["name"])
                yield from (role or {}).get("rules") or ()

    def _cluster_role(self, name: str) -> Iterator[Obj]:
        role = self._store.find(catalogue.CLUSTER_ROLES.key, "", name)
        if role is None:
            return
        yield from role.get("rules") or ()
        for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ():
            for other in self._store.each(catalogue.CLUSTER_ROLES.key):
                if other is not role and matches_selector(selector, labels_of(other)):
                    yield from other.get("rules") or ()


def _binding_applies(binding: Obj, user: User, namespace: str) -> bool:
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name")
        if kind == "User" and name == user.name:
            return True
        if kind == "Group" and name in user.groups:
            return True
        if kind == "ServiceAccount":
            account = f"system:serviceaccount:{subject.get('namespace') or namespace}:{name}"
            if account == user.name:
                return True
    return False


def rule_allows(rule: Obj, request: RequestInfo) -> bool:
    """Whether one rule allows a request."""
    if not _includes(rule.get("verbs"), request.verb):
        return False
    if not request.plural:
        return any(
            path in ("*", request.path) or (path.endswith("*") and request.path.startswith(path[:-1]))
            for path in rule.get("nonResourceURLs") or ()
        )
    if not _includes(rule.get("apiGroups"), request.group):
        return False
    resources = rule.get("resources") or []
    is_resource_named = request.resource in resources or "*" in resources
    if not is_resource_named and not (request.subresource and f"*/{request.subresource}" in resources):
        return False
    allowed_names = rule.get("resourceNames") or []
    return not allowed_names or request.name in allowed_names


def _includes(values: list[str] | None, wanted_value: str) -> bool:
    return values is not None and (wanted_value in values or "*" in values)


def bootstrap_roles() -> list[Obj]:
    """Return the cluster roles and bindings of a new cluster."""

    def role(name: str, rules: list[Obj]) -> Obj:
        return {
            "apiVersion": f"{catalogue.RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
            "rules": rules,
        }

    all_rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    workloads = [
        {
            "apiGroups": [""],
            "resources": ["pods", "services", "configmaps", "persistentvolumeclaims", "endpoints", "serviceaccounts"],
        },
        {"apiGroups": ["batch"], "resources": ["jobs"]},
        {"apiGroups": ["apps"], "resources": ["deployments", "deployments/scale", "replicasets", "replicasets/scale"]},
        {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"]},
    ]
    readable = [{**rule, "verbs": READ} for rule in workloads]
    documents: list[Obj] = [
        *readable,
        {"apiGroups": [""], "resources": ["pods/log", "pods/status", "events", "namespaces"], "verbs": READ},
    ]
    edit_rules: list[Obj] = [
        *documents,
        *({**rule, "verbs": ["create", "delete", "deletecollection", "patch", "update"]} for rule in workloads),
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]},
    ]
    return [
        role("cluster-admin", [all_rule, {"nonResourceURLs": ["*"], "verbs": ["*"]}]),
        role("view", documents),
        role(ADMIN_VIEW, [{**all_rule, "verbs": READ}]),
        role("edit", edit_rules),
        role(
            "admin",
            [*edit_rules, {"apiGroups": [catalogue.RBAC], "resources": ["roles", "rolebindings"], "verbs": ["*"]}],
        ),
        {
            "apiVersion": f"{catalogue.RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "cluster-admin", "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
            "roleRef": {"apiGroup": catalogue.RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": catalogue.RBAC, "kind": "Group", "name": "system:masters"}],
        },
    ]
