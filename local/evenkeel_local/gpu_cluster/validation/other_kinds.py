"""Checks of nodes, services, roles, priority classes, quotas, claims and definitions, and of their changes.

Source: `pkg/apis/{core,rbac,scheduling}/validation` of Kubernetes 1.33.
"""

from __future__ import annotations

from collections.abc import Iterator

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.store import clone, name_of
from evenkeel_local.gpu_cluster.validation import names
from evenkeel_local.gpu_cluster.validation.causes import (
    Cause,
    at_least_zero,
    duplicate,
    forbidden,
    immutable,
    invalid,
    one_of,
    required,
)
from evenkeel_local.gpu_cluster.validation.containers import check_amount
from evenkeel_local.gpu_cluster.validation.pods import check_taints

HIGHEST_PRIORITY = 1_000_000_000
RESERVED = "system-"
ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
LIMIT_TYPES = ("Container", "PersistentVolumeClaim", "Pod")
SERVICE_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")


def check_node(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a node. Errors about taints name the field `metadata.taints`, as in the real API."""
    yield from check_taints((obj.get("spec") or {}).get("taints") or (), "metadata.taints")
    for section in ("capacity", "allocatable"):
        for name, amount in ((obj.get("status") or {}).get(section) or {}).items():
            yield from check_amount(name, amount, f"status.{section}.{name}")


def check_node_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    """Yield the problems of a change of a node."""
    old_provider_id, new_provider_id = old["spec"].get("providerID"), (obj.get("spec") or {}).get("providerID")
    if old_provider_id and old_provider_id != new_provider_id:
        yield forbidden("spec.providerID", 'node updates may not change providerID except from "" to valid')


def check_service(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a service."""
    spec = obj.get("spec") or {}
    kind, ports = spec.get("type"), spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None" and kind != "ExternalName":
        yield required("spec.ports")
    yield from one_of("spec.type", kind, SERVICE_TYPES)
    yield from names.check_labels(spec.get("selector"), "spec.selector")
    names_used: set[str] = set()
    for number, port in enumerate(ports):
        at, name = f"spec.ports[{number}]", port.get("name") or ""
        if not name and len(ports) > 1:
            yield required(f"{at}.name")
        elif name:
            yield from names.causes(f"{at}.name", name, names.label_errors(name))
            if name in names_used:
                yield duplicate(f"{at}.name", name)
            names_used.add(name)
        yield from names.causes(f"{at}.port", port.get("port") or 0, names.port_number_errors(port.get("port") or 0))
        yield from one_of(f"{at}.protocol", port.get("protocol"), ("SCTP", "TCP", "UDP"))
        if isinstance(target := port.get("targetPort"), int):
            yield from names.causes(f"{at}.targetPort", target, names.port_number_errors(target))


def check_priority(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a priority class."""
    if name_of(obj).startswith(RESERVED):
        message = f"priority class names with '{RESERVED}' prefix are reserved for system use only"
        yield forbidden("metadata.name", message)
    if (obj.get("value") or 0) > HIGHEST_PRIORITY:
        yield forbidden("value", f"maximum allowed value of a user defined priority is {HIGHEST_PRIORITY}")
    yield from one_of("preemptionPolicy", obj.get("preemptionPolicy"), ("Never", "PreemptLowerPriority"))


def check_priority_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    """Yield the problems of a change of a priority class."""
    if obj.get("value") != old.get("value"):
        yield forbidden("value", "may not be changed in an update.")
    if obj.get("preemptionPolicy") != old.get("preemptionPolicy"):
        yield immutable("preemptionPolicy", obj.get("preemptionPolicy"))


def check_quota(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a ResourceQuota."""
    for name, amount in ((obj.get("spec") or {}).get("hard") or {}).items():
        at = f"spec.hard[{name}]"
        yield from names.causes(at, name, names.qualified_name_errors(name))
        yield from check_amount(name, amount, at)


def check_limits(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a LimitRange."""
    kinds: set[str] = set()
    for number, limit in enumerate((obj.get("spec") or {}).get("limits") or ()):
        at, kind = f"spec.limits[{number}]", limit.get("type") or ""
        if "/" not in kind:
            yield from one_of(f"{at}.type", kind, LIMIT_TYPES)
        if kind in kinds:
            yield duplicate(f"{at}.type", kind)
        kinds.add(kind)
        for section in ("max", "min", "default", "defaultRequest"):
            for name, amount in (limit.get(section) or {}).items():
                yield from check_amount(name, amount, f"{at}.{section}[{name}]")


def check_binding(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a role binding."""
    ref = obj.get("roleRef") or {}
    yield from one_of("roleRef.kind", ref.get("kind") or "", ("Role", "ClusterRole"), sort=False)
    if not ref.get("name"):
        yield required("roleRef.name")
    for number, subject in enumerate(obj.get("subjects") or ()):
        at, kind = f"subjects[{number}]", subject.get("kind") or ""
        if not subject.get("name"):
            yield required(f"{at}.name")
        yield from one_of(f"{at}.kind", kind, ("ServiceAccount", "User", "Group"), sort=False)
        if kind == "ServiceAccount" and not subject.get("namespace"):
            yield required(f"{at}.namespace")


def check_binding_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    """Yield the problems of a change of a role binding."""
    if obj.get("roleRef") != old.get("roleRef"):
        yield invalid("roleRef", obj.get("roleRef"), "cannot change roleRef")


def check_definition(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a custom resource definition."""
    spec = obj.get("spec") or {}
    spec_names = spec.get("names") or {}
    for field in ("group", "scope", "versions"):
        if not spec.get(field):
            yield required(f"spec.{field}")
    for field in ("plural", "kind"):
        if not spec_names.get(field):
            yield required(f"spec.names.{field}")
    if spec_names.get("plural") and name_of(obj) != f"{spec_names['plural']}.{spec.get('group')}":
        yield invalid("metadata.name", name_of(obj), 'must be spec.names.plural+"."+spec.group')
    for number, version in enumerate(spec.get("versions") or ()):
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            yield required(f"spec.versions[{number}].schema.openAPIV3Schema", "schemas are required")


def check_role(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a role."""
    for number, rule in enumerate(obj.get("rules") or ()):
        at = f"rules[{number}]"
        if not rule.get("verbs"):
            yield required(f"{at}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            if obj["metadata"].get("namespace"):
                message = "namespaced rules cannot apply to non-resource URLs"
                yield invalid(f"{at}.nonResourceURLs", rule["nonResourceURLs"], message)
            if any(rule.get(field) for field in ("apiGroups", "resources", "resourceNames")):
                message = "rules cannot apply to both regular resources and non-resource URLs"
                yield invalid(f"{at}.nonResourceURLs", rule["nonResourceURLs"], message)
            continue
        if not rule.get("apiGroups"):
            yield required(f"{at}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            yield required(f"{at}.resources", "resource rules must supply at least one resource")


def check_claim(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a volume claim."""
    spec = obj.get("spec") or {}
    if not spec.get("accessModes"):
        yield required("spec.accessModes", "at least 1 access mode is required")
    for mode in spec.get("accessModes") or ():
        yield from one_of("spec.accessModes", mode, ACCESS_MODES)
    amount = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if amount is None:
        yield required("spec.resources[storage]")
    else:
        yield from check_amount("storage", amount, "spec.resources[storage]")


def check_claim_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    """Yield the problems of a change of a volume claim: only its size may grow."""
    new_spec, old_spec = clone(obj["spec"]), clone(old["spec"])
    for spec in (new_spec, old_spec):
        (spec.get("resources") or {}).pop("requests", None)
        spec.pop("volumeAttributesClassName", None)
    if new_spec != old_spec:
        message = "resources.requests and volumeAttributesClassName for bound claims"
        yield forbidden("spec", f"spec is immutable after creation except {message}")


# Status


def check_budget_status(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of the status of a budget."""
    for field in ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"):
        yield from at_least_zero(f"status.{field}", (obj.get("status") or {}).get(field))
