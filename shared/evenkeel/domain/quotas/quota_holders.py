"""The workloads that hold quota, as documents in the short form."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from evenkeel.domain.kueue.objects import PODS, Admitted, Amounts, Key, PodSet, Workload
from evenkeel.domain.queue_simulation import short_form

Json = dict[str, Any]

_NEVER_PREEMPTED = 2**31 - 1
_SUM_PREFIX = "others-of-"


class QuotaHolder(NamedTuple):
    """A job that holds quota."""

    name: str
    queue: str
    use: Mapping[str, Mapping[str, int]]
    """flavor → resource → amount."""
    pods: int
    priority: int
    reserved_at: float | None
    queued_at: float = 0.0
    is_evicted: bool = False
    sub_queue: str = ""
    work_at_risk: float | None = None
    is_pinned: bool = False


def admitted_holder(holder: QuotaHolder) -> Admitted:
    """Return a holder of quota as Kueue's scheduler reads it, with a pod set for each flavor."""
    pod_sets: list[PodSet] = []
    flavors: list[dict[str, str]] = []
    for flavor, amounts in holder.use.items():
        for resources, count in (
            (sorted(amounts.keys() - {PODS}), holder.pods),
            ([PODS] if PODS in amounts else [], amounts.get(PODS, 0)),
        ):
            if resources:
                requests = {name: amounts[name] // count for name in resources if name != PODS}
                pod_sets.append(PodSet(f"{flavor}-{len(pod_sets)}", count, requests))
                flavors.append(dict.fromkeys(resources, flavor))
    workload = Workload(
        holder.name,
        holder.queue,
        tuple(pod_sets),
        priority=holder.priority,
        created_at=holder.queued_at,
        sub_queue=holder.sub_queue,
    )
    return Admitted(
        workload,
        tuple(flavors),
        workload.counts,
        holder.reserved_at,
        holder.is_evicted,
        work_at_risk=holder.work_at_risk,
        is_pinned=holder.is_pinned,
    )


def admitted_document(admitted: Admitted, *, was_evicted: bool) -> Json:
    """Return an admitted workload in the short form, without fields that have their default.

    A cycle makes thousands of these documents, so they do not pass through the models of the short form.

    Args:
        admitted: The workload.
        was_evicted: Whether it had been asked to stop before the Kueue cycle.
    """
    workload, at, work_at_risk = admitted.workload, admitted.reserved_at, admitted.work_at_risk
    document: Json = {"name": workload.workload_id, "queue": workload.queue, "priority": workload.priority}
    if workload.created_at:
        document["createdAt"] = workload.created_at
    if workload.requeued_at is not None:
        document["requeuedAt"] = workload.requeued_at
    document["podSets"] = [
        _pod_set_document(pod_set, count) for pod_set, count in zip(workload.pod_sets, admitted.counts, strict=True)
    ]
    admission: Json = {"at": at} if at is not None else {}
    admission |= {"flavors": [dict(flavor) for flavor in admitted.flavors], "counts": list(admitted.counts)}
    if was_evicted:
        admission["evicted"] = True
    if work_at_risk is not None:
        admission["workAtRisk"] = work_at_risk
    if admitted.is_pinned:
        admission["pinned"] = True
    document["admitted"] = admission
    return document


def _pod_set_document(pod_set: PodSet, count: int) -> Json:
    document: Json = {"name": pod_set.name}
    if count != 1:
        document["count"] = count
    if pod_set.requests:
        document["requests"] = {
            resource: short_form.to_quantity(resource, amount) for resource, amount in pod_set.requests.items()
        }
    return document


def sum_by_queue(uses: Iterable[tuple[str, Amounts]]) -> list[tuple[str, Amounts]]:
    """Return each queue with the sum of its use, by name. A queue without use is left out.

    Args:
        uses: (queue, use) of holders.
    """
    by_queue: dict[str, Amounts] = {}
    for queue, amounts in uses:
        total = by_queue.setdefault(queue, {})
        for key, amount in amounts.items():
            total[key] = total.get(key, 0) + amount
    return [(queue, amounts) for queue, amounts in sorted(by_queue.items()) if any(amounts.values())]


def sum_document(queue: str, amounts: Amounts) -> Json:
    """Return the sum of a queue's use as the document of one holder. It can never be preempted."""
    name = f"{_SUM_PREFIX}{queue}"
    holder = QuotaHolder(name, queue, by_flavor_and_resource(amounts), 1, _NEVER_PREEMPTED, 0.0)
    document = admitted_document(admitted_holder(holder), was_evicted=False)
    del document["admitted"]["counts"]  # a sum has all its pods
    return document


def is_sum(name: str) -> bool:
    """Whether a job of this name is a sum of holders."""
    return name.startswith(_SUM_PREFIX)


def by_flavor_and_resource(amounts: Mapping[Key, int]) -> dict[str, dict[str, int]]:
    """Return amounts as flavor → resource → amount."""
    by_flavor: dict[str, dict[str, int]] = {}
    for (flavor, resource), amount in amounts.items():
        by_flavor.setdefault(flavor, {})[resource] = amount
    return by_flavor


def by_key(by_flavor: Mapping[str, Mapping[str, int]]) -> Amounts:
    """Return amounts by (flavor, resource)."""
    return {(flavor, resource): amount for flavor, amounts in by_flavor.items() for resource, amount in amounts.items()}
