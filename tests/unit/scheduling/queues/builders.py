"""Builders of queues, workloads and schedulers for tests."""

from collections.abc import Mapping
from typing import Any

from evenkeel.domain.kueue.cycle_decisions import CycleDecision
from evenkeel.domain.kueue.objects import (
    Admitted,
    Cohort,
    Flavor,
    FlavorQuotas,
    Fungibility,
    PodSet,
    PreemptionPolicy,
    PreemptionRules,
    Queue,
    Quota,
    ResourceGroup,
    Workload,
)
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.snapshot import SchedulerRules

GPU = "gpu"
ANY, NEVER = PreemptionPolicy.ANY, PreemptionPolicy.NEVER
LOWER, LOWER_OR_NEWER = PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY

Amount = int | Quota


def a_group(flavors: Mapping[str, Amount], resource: str = GPU) -> ResourceGroup:
    """Return a group of one resource; a bare number is nominal quota."""
    given = {name: quota if isinstance(quota, Quota) else Quota(quota) for name, quota in flavors.items()}
    return ResourceGroup((resource,), tuple(FlavorQuotas(name, {resource: quota}) for name, quota in given.items()))


def a_queue(  # noqa: PLR0913 - a builder: a test states only the arguments that matter
    name: str,
    nominal: Amount | Mapping[str, Amount] = 0,
    cohort: str = "fleet",
    *,
    borrow: int | None = None,
    lend: int | None = None,
    within: PreemptionPolicy = NEVER,
    reclaim: PreemptionPolicy = NEVER,
    borrow_within: Any = None,
    fungibility: Fungibility | None = None,
    weight: float = 1.0,
    **rest: Any,
) -> Queue:
    """Return a queue; a bare number is quota of the flavor `hp`."""
    flavors = nominal if isinstance(nominal, Mapping) else {"hp": nominal}
    limited = {
        flavor: Quota(amount, borrow, lend) if isinstance(amount, int) else amount for flavor, amount in flavors.items()
    }
    return Queue(
        name,
        cohort,
        (a_group(limited),),
        fair_weight=weight,
        preemption=PreemptionRules(within, reclaim, borrow_within),
        fungibility=fungibility or Fungibility(),
        **rest,
    )


def a_workload(name: str, queue: str, gpus: int = 1, *, at: float = 0.0, priority: int = 0, **rest: Any) -> Workload:
    """Return a workload of one pod that requests this many devices."""
    return Workload(name, queue, (PodSet("main", 1, {GPU: gpus}),), priority=priority, created_at=at, **rest)


def an_admitted_workload(
    name: str,
    queue: str,
    gpus: int = 1,
    *,
    at: float = 0.0,
    flavor: str = "hp",
    priority: int = 0,
    evicted: bool = False,
) -> Admitted:
    """Return a workload that was admitted at this time."""
    workload = a_workload(name, queue, gpus, priority=priority)
    return Admitted(workload, ({GPU: flavor},), (1,), reserved_at=at, is_evicted=evicted)


def a_scheduler(
    *queues: Queue,
    cohorts: tuple[Cohort, ...] = (),
    admitted: tuple[Admitted, ...] = (),
    waiting: tuple[Workload, ...] = (),
    flavors: tuple[Flavor, ...] = (),
    fair: bool = False,
    strategies: tuple[str, ...] | None = None,
) -> Scheduler:
    """Return a scheduler in this state. Flavors that are not given have neither labels nor taints."""
    named = {flavor.name for flavor in flavors}
    used = {flavor.flavor for queue in queues for group in queue.groups for flavor in group.flavors}
    plain = tuple(Flavor(name) for name in sorted(used - named))
    rules = SchedulerRules(fair, strategies) if strategies else SchedulerRules(fair)
    scheduler = Scheduler(queues, cohorts, (*flavors, *plain), rules)
    for running in admitted:
        scheduler.restore(running)
    for workload in waiting:
        scheduler.submit(workload)
    return scheduler


def decisions_by_workload(decisions: list[CycleDecision]) -> dict[str, CycleDecision]:
    """Return the decisions by workload."""
    return {decision.workload.workload_id: decision for decision in decisions}


def victims(decision: CycleDecision) -> dict[str, str]:
    """Return victim → reason."""
    return {victim.workload_id: str(victim.reason) for victim in decision.victims}
