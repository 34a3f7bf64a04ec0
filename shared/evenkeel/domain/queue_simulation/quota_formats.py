"""Convert quotas between formats: Kueue's manifests, HyperPod's JSON and the short form.

The result lists the properties that the new format cannot express.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from evenkeel.domain.kueue.capacity import quotas_of
from evenkeel.domain.kueue.objects import (
    NO_QUOTA,
    Cohort,
    Flavor,
    Fungibility,
    PreemptionRules,
    Queue,
    QueueingStrategy,
    ResourceGroup,
    StopPolicy,
)
from evenkeel.domain.queue_simulation import hyperpod_cluster_policy, queue_manifests, short_form
from evenkeel.domain.queue_simulation.documents import Json
from evenkeel.domain.queue_simulation.setup import QuotaDocuments


class Format(StrEnum):
    """A format of quota documents."""

    KUEUE = "kueue"
    HYPERPOD = "hyperpod"
    EVENKEEL = "evenkeel"


@dataclass(frozen=True, slots=True)
class ConvertedQuotas:
    """Quotas in another format."""

    documents: tuple[Json, ...]
    losses: tuple[str, ...]
    """Properties that the new format cannot express."""


def convert(declared: QuotaDocuments, into: Format) -> ConvertedQuotas:
    """Return all declarations in a format."""
    match into:
        case Format.KUEUE:
            return ConvertedQuotas(tuple(_manifests(declared)), tuple(_lost_in_kueue(declared)))
        case Format.HYPERPOD:
            return _convert_to_hyperpod(declared)
        case Format.EVENKEEL:
            return ConvertedQuotas((_short_form(declared),), tuple(_lost_in_short_form(declared)))


# ---------------------------------------------------------------- the short form


def _short_form(declared: QuotaDocuments) -> Json:
    queues, cohorts, _ = declared.everything()
    written = short_form.ShortQuotas(
        queues=tuple(short_form.ShortQueue.of(queue) for queue in queues),
        cohorts=tuple(short_form.ShortCohort.of(cohort) for cohort in cohorts),
        flavors=tuple(short_form.ShortFlavor.of(flavor) for flavor in declared.flavors.values()),
        priority_classes=declared.priorities,
        fair_sharing=declared.rules.fair_sharing or None,
    )
    return written.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _lost_in_short_form(declared: QuotaDocuments) -> Iterator[str]:
    for namespace, name in declared.local_queues:
        yield f"LocalQueue {namespace}/{name}: jobs of the short form name their queue directly"
    for name, document in declared.cluster_queues.items():
        selector = document.spec.namespace_selector
        if selector is not None and (selector.match_labels or selector.match_expressions):
            yield f"ClusterQueue {name}: its namespace selector"
    for name in declared.namespaces:
        yield f"Namespace {name}: its labels"


# ---------------------------------------------------------------- Kueue


def _manifest(kind: str, name: str, namespace: str = "", **fields: Any) -> Json:
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": queue_manifests.API_VERSION, "kind": kind, "metadata": meta} | fields


def _manifests(declared: QuotaDocuments) -> Iterator[Json]:
    queues, cohorts, flavors = declared.everything()
    for flavor in flavors:
        yield _manifest("ResourceFlavor", flavor.name, spec=_flavor(flavor))
    for cohort in cohorts:
        yield _manifest("Cohort", cohort.name, spec=_cohort(cohort))
    for queue in queues:
        yield _manifest("ClusterQueue", queue.name, spec=_queue(queue, declared))
    for (namespace, name), document in declared.local_queues.items():
        spec: Json = {"clusterQueue": document.spec.cluster_queue}
        if document.spec.stop_policy:
            spec["stopPolicy"] = document.spec.stop_policy
        yield _manifest("LocalQueue", name, namespace, spec=spec)
    for name, value in declared.priorities.items():
        yield _manifest("WorkloadPriorityClass", name, value=value)
    for name, labels in declared.namespaces.items():
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _flavor(flavor: Flavor) -> Json:
    written = short_form.ShortFlavor.of(flavor).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    names = {"labels": "nodeLabels", "taints": "nodeTaints", "tolerations": "tolerations"}
    return {names[key]: value for key, value in written.items() if key in names}


def _cohort(cohort: Cohort) -> Json:
    spec: Json = {"parentName": cohort.parent} if cohort.parent else {}
    if cohort.groups:
        spec["resourceGroups"] = [_group(group) for group in cohort.groups]
    if cohort.fair_weight != 1.0:
        spec["fairSharing"] = {"weight": f"{cohort.fair_weight:g}"}
    return spec


def _queue(queue: Queue, declared: QuotaDocuments) -> Json:
    cluster_queue = declared.cluster_queues.get(queue.name)
    selector = cluster_queue.spec.namespace_selector if cluster_queue else None
    is_none = (
        cluster_queue is not None and selector is None and "namespace_selector" in cluster_queue.spec.model_fields_set
    )
    spec: Json = {
        "namespaceSelector": None
        if is_none
        else selector.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        if selector
        else {},
        "resourceGroups": [_group(group) for group in queue.groups],
    }
    if queue.cohort:
        spec["cohortName"] = queue.cohort
    if queue.strategy is not QueueingStrategy.BEST_EFFORT:
        spec["queueingStrategy"] = str(queue.strategy)
    if queue.stop is not StopPolicy.NONE:
        spec["stopPolicy"] = str(queue.stop)
    elif queue.inactive and not cluster_queue:
        spec["stopPolicy"] = str(StopPolicy.HOLD)
    if queue.fair_weight != 1.0:
        spec["fairSharing"] = {"weight": f"{queue.fair_weight:g}"}
    if queue.by_use:
        spec["admissionScope"] = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    if queue.preemption != PreemptionRules():
        preemption = queue.preemption
        spec["preemption"] = {
            "withinClusterQueue": str(preemption.within),
            "reclaimWithinCohort": str(preemption.reclaim),
        }
        if preemption.borrow_within is not None:
            borrow: Json = {"policy": "LowerPriority"}
            if preemption.borrow_within.max_priority_threshold is not None:
                borrow["maxPriorityThreshold"] = preemption.borrow_within.max_priority_threshold
            spec["preemption"]["borrowWithinCohort"] = borrow
    if queue.fungibility != Fungibility():
        chosen = queue.fungibility
        spec["flavorFungibility"] = {
            "whenCanBorrow": str(chosen.when_can_borrow),
            "whenCanPreempt": str(chosen.when_can_preempt),
        }
        if chosen.preference != Fungibility().preference:
            spec["flavorFungibility"]["preference"] = str(chosen.preference)
    return spec


def _group(group: ResourceGroup) -> Json:
    def written(resource: str, flavor: Any) -> Json:
        quota = flavor.quotas.get(resource, NO_QUOTA)
        document: Json = {"name": resource, "nominalQuota": short_form.to_quantity(resource, quota.nominal)}
        if quota.borrow is not None:
            document["borrowingLimit"] = short_form.to_quantity(resource, quota.borrow)
        if quota.lend is not None:
            document["lendingLimit"] = short_form.to_quantity(resource, quota.lend)
        return document

    return {
        "coveredResources": list(group.resources),
        "flavors": [
            {"name": flavor.flavor, "resources": [written(resource, flavor) for resource in group.resources]}
            for flavor in group.flavors
        ],
    }


def _lost_in_kueue(declared: QuotaDocuments) -> Iterator[str]:
    queues, _, _ = declared.everything()
    for queue in queues:
        if queue.inactive and queue.name not in declared.cluster_queues:
            yield f"{queue.name}: {queue.inactive}: its stop policy becomes Hold"
    if declared.rules.fair_sharing:
        yield "fair sharing is on: Kueue sets it in its configuration, not in a manifest"
    if declared.shares_idle:
        yield "idle capacity: its queue holds the capacity that is idle now, and does not follow the cluster"


# ---------------------------------------------------------------- HyperPod


def _convert_to_hyperpod(declared: QuotaDocuments) -> ConvertedQuotas:
    quotas, losses = [], []
    shares_idle = declared.shares_idle or any(
        name.startswith(hyperpod_cluster_policy.IDLE_PREFIX) for name in declared.queues
    )
    for queue in declared.queues.values():
        if queue.name.startswith(hyperpod_cluster_policy.IDLE_PREFIX):
            continue  # HyperPod creates this queue from the cluster's capacity
        quota, lost = hyperpod_cluster_policy.compute_quota_of(queue, declared.types)
        again = quota.to_queue(declared.types)
        losses += lost or list(_changed_amounts(queue, again))
        quotas.append(quota.model_dump(mode="json", by_alias=True, exclude_none=True))
    losses += [f"cohort {name}: HyperPod has only one cohort" for name in declared.cohorts]
    losses += [
        f"LocalQueue {namespace}/{name}"
        for namespace, name in declared.local_queues
        if name != f"{namespace}-localqueue" or not namespace.startswith("hyperpod-ns-")
    ]
    losses += [
        f"flavor {flavor.name}: its labels, taints and tolerations"
        for flavor in declared.flavors.values()
        if flavor != hyperpod_cluster_policy.flavor_of(flavor.name)
        and (flavor.labels or flavor.taints or flavor.tolerations)
    ]
    classes: list[Json] = []
    for name, weight in declared.priorities.items():
        if (
            not name.endswith("-priority")
            or not 0 <= weight <= 100
            or len(classes) == hyperpod_cluster_policy.MAX_CLASSES
        ):
            losses.append(f"priority class {name}: {weight}")
            continue
        classes.append({"Name": name.removesuffix("-priority"), "Weight": weight})
    policy = {
        "PriorityClasses": classes,
        "FairShare": "Enabled" if declared.rules.fair_sharing else "Disabled",
        "IdleResourceSharing": "Enabled" if shares_idle else "Disabled",
    }
    return ConvertedQuotas((*quotas, {"Name": "policy", "SchedulerConfig": policy}), tuple(losses))


def _changed_amounts(source: Queue, converted: Queue) -> Iterator[str]:
    """Yield the amounts that change by the conversion."""
    old, new = (quotas_of(queue.groups) for queue in (source, converted))
    for key in sorted(old.keys() | new.keys()):
        quota, new_quota = old.get(key, NO_QUOTA), new.get(key, NO_QUOTA)
        for name in ("nominal", "borrow", "lend"):
            amount, new_amount = getattr(quota, name), getattr(new_quota, name)
            if amount != new_amount and (quota.nominal or new_quota.nominal or name == "nominal"):
                change = f"{_amount_text(key[1], amount)} becomes {_amount_text(key[1], new_amount)}"
                yield f"{source.name}: {'/'.join(key)}: {name} {change}"


def _amount_text(resource: str, amount: int | None) -> str:
    return "no limit" if amount is None else short_form.to_quantity(resource, amount)
