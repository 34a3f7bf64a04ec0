"""The workloads that hold quota, as documents in the short form."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from evenkeel.domain.kueue.objects import PODS, Admitted, Amounts, Key
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


def holder_document(holder: QuotaHolder) -> Json:
    """Return a holder of quota in the short form, as a document."""
    return holder_job(holder).model_dump(mode="json", by_alias=True, exclude_defaults=True)


def admitted_holder(holder: QuotaHolder) -> Admitted:
    """Return a holder of quota as Kueue's scheduler reads it."""
    job = holder_job(holder)
    return job.to_admitted(job.to_workload(holder.priority))


def holder_job(holder: QuotaHolder) -> short_form.ShortJob:
    """Return a holder of quota in the short form, with a pod set for each flavor."""
    pod_sets: list[short_form.ShortPodSet] = []
    flavors: list[dict[str, str]] = []
    for flavor, amounts in holder.use.items():
        for resources, count in (
            (sorted(amounts.keys() - {PODS}), holder.pods),
            ([PODS] if PODS in amounts else [], amounts.get(PODS, 0)),
        ):
            if resources:
                requests = {
                    name: short_form.to_quantity(name, amounts[name] // count) for name in resources if name != PODS
                }
                pod_sets.append(
                    short_form.ShortPodSet(name=f"{flavor}-{len(pod_sets)}", count=count, requests=requests)
                )
                flavors.append(dict.fromkeys(resources, flavor))
    return short_form.ShortJob(
        name=holder.name,
        queue=holder.queue,
        priority=holder.priority,
        created_at=holder.queued_at,
        pod_sets=tuple(pod_sets),
        sub_queue=holder.sub_queue,
        admitted=short_form.ShortAdmission(
            at=holder.reserved_at,
            flavors=tuple(flavors),
            evicted=holder.is_evicted,
            work_at_risk=holder.work_at_risk,
            pinned=holder.is_pinned,
        ),
    )


def admitted_document(admitted: Admitted, *, was_evicted: bool) -> Json:
    """Return an admitted workload in the short form.

    Args:
        admitted: The workload.
        was_evicted: Whether it had been asked to stop before the Kueue cycle.
    """
    workload = admitted.workload
    pods = [
        short_form.ShortPodSet(
            name=pod_set.name,
            count=count,
            requests={
                resource: short_form.to_quantity(resource, amount) for resource, amount in pod_set.requests.items()
            },
        )
        for pod_set, count in zip(workload.pod_sets, admitted.counts, strict=True)
    ]
    job = short_form.ShortJob(
        name=workload.workload_id,
        queue=workload.queue,
        priority=workload.priority,
        created_at=workload.created_at,
        requeued_at=workload.requeued_at,
        pod_sets=tuple(pods),
        admitted=short_form.ShortAdmission(
            at=admitted.reserved_at,
            flavors=tuple(dict(flavor) for flavor in admitted.flavors),
            counts=admitted.counts,
            evicted=was_evicted,
            work_at_risk=admitted.work_at_risk,
            pinned=admitted.is_pinned,
        ),
    )
    return job.model_dump(mode="json", by_alias=True, exclude_defaults=True)


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
    return holder_document(QuotaHolder(name, queue, by_flavor_and_resource(amounts), 1, _NEVER_PREEMPTED, 0.0))


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
