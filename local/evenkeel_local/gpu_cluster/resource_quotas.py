"""Admission of pods under the ResourceQuotas of their namespace.

Source: the admission plugin ResourceQuota of Kubernetes 1.33 and `pkg/quota/v1/evaluator/core/pods.go`. Quotas with
scopes are ignored, and the use of a quota is not written into its status.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.objects import has_ended
from evenkeel_local.gpu_cluster.pod_topology import Amounts
from evenkeel_local.gpu_cluster.quantities import parse_quantity
from evenkeel_local.gpu_cluster.store import Store, namespace_of

_MUST_BE_SPECIFIED = ("cpu", "memory")
"""Resources that each container must name if a quota limits them. Other resources count as 0 if omitted."""


def quota_refusal(pod: Obj, store: Store) -> str:
    """Return why a quota of the namespace refuses a new pod, with Kubernetes's wording; empty if no quota does."""
    namespace = namespace_of(pod)
    quotas = [document for document in store.each(catalogue.RESOURCE_QUOTAS.key) if namespace_of(document) == namespace]
    if not quotas:
        return ""
    requested_use = _quota_use(pod)
    pods = [
        document
        for document in store.each(catalogue.PODS.key)
        if namespace_of(document) == namespace and not has_ended(document)
    ]
    used_amounts = _sum_amounts(map(_quota_use, pods))
    for quota in quotas:
        spec, name = quota.get("spec") or {}, quota["metadata"]["name"]
        hard = {} if spec.get("scopes") or spec.get("scopeSelector") else spec.get("hard") or {}
        if missing_resources := "; ".join(_missing_resources(pod, hard)):
            return f"failed quota: {name}: must specify {missing_resources}"
        limits = {key: parse_quantity(amount) for key, amount in hard.items()}
        over = sorted(
            key
            for key in limits
            if used_amounts.get(key, 0) + requested_use.get(key, 0) > limits[key] and requested_use.get(key)
        )
        if over:
            requested_text = ",".join(f"{key}={requested_use[key].normalize():f}" for key in over)
            in_use = ",".join(f"{key}={used_amounts.get(key, Decimal(0)).normalize():f}" for key in over)
            limits_text = ",".join(f"{key}={hard[key]}" for key in over)
            return f"exceeded quota: {name}, requested: {requested_text}, used: {in_use}, limited: {limits_text}"
    return ""


def _missing_resources(pod: Obj, hard: Obj) -> Iterator[str]:
    """Yield the resources that containers must specify, with their names."""
    for key in sorted(hard):
        section, _, resource = key.rpartition(".") if "." in key else ("requests", "", key)
        if resource not in _MUST_BE_SPECIFIED or section not in ("requests", "limits"):
            continue
        lacking_containers = [
            container["name"]
            for container in pod["spec"]["containers"]
            if resource not in ((container.get("resources") or {}).get(section) or {})
        ]
        if lacking_containers:
            yield f"{key} for: {','.join(lacking_containers)}"


def _quota_use(pod: Obj) -> Amounts:
    """Return the amounts of a pod that count against quotas, under each name that a quota may use."""
    amounts: Amounts = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for container in pod["spec"].get("containers") or ():
        for section in ("requests", "limits"):
            for name, amount in ((container.get("resources") or {}).get(section) or {}).items():
                keys = [f"{section}.{name}", *([name] if section == "requests" and name in _MUST_BE_SPECIFIED else [])]
                for key in keys:
                    amounts[key] = amounts.get(key, Decimal(0)) + parse_quantity(amount)
    return amounts


def _sum_amounts(all_amounts: Iterator[Amounts]) -> Amounts:
    total: Amounts = {}
    for amounts in all_amounts:
        for name, amount in amounts.items():
            total[name] = total.get(name, Decimal(0)) + amount
    return total
