"""Jobs that evict each other without end: how to recognise a repeated state, and which setting would end the loop.

A Kueue cycle depends only on the scheduler's state and the time. If evicted jobs stop at once, a state that repeats at
the same time repeats without end.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from evenkeel.domain.kueue.cycle_decisions import CycleDecision
from evenkeel.domain.kueue.objects import PreemptionPolicy, PreemptionRules
from evenkeel.domain.kueue.preemption import Reason
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.kueue.snapshot import ClusterQueueSnapshot


class Setting(NamedTuple):
    """A changed preemption setting of one queue."""

    queue: str
    field: str
    """Its name below Kueue's `spec.preemption`."""
    value: str
    preemption: PreemptionRules


class Eviction(NamedTuple):
    """An eviction: the preempting queue, and the rule that allowed it."""

    queue: str
    reason: Reason
    by: str
    """The preempting job."""
    victim: str


def evictions_of(decisions: Iterable[CycleDecision]) -> tuple[Eviction, ...]:
    """Return the evictions that these decisions caused, in their order."""
    return tuple(
        Eviction(decision.workload.queue, victim.reason, decision.workload.workload_id, victim.workload_id)
        for decision in decisions
        for victim in decision.victims
    )


def state_digest(scheduler: Scheduler) -> bytes:
    """Hash everything that determines the scheduler's further cycles at one instant.

    Counters that only grow are reduced to the compared fact: whether a queue changed since a scan of its flavors.
    """
    queues = (_queue_state(scheduler, name, queue) for name, queue in sorted(scheduler.snapshot.queues.items()))
    pairs = sorted((sorted(pair), at) for pair, at in scheduler.snapshot.evicted_at.items())
    return hashlib.blake2b(repr((tuple(queues), pairs)).encode(), digest_size=16).digest()


def _queue_state(scheduler: Scheduler, name: str, queue: ClusterQueueSnapshot) -> object:
    pending = scheduler.pending[name]
    admitted = sorted(
        (
            job,
            workload.is_evicted,
            workload.is_ready,
            workload.reserved_at,
            workload.counts,
            [sorted(f.items()) for f in workload.flavors],
            workload.topology,
        )
        for job, workload in queue.admitted.items()
    )
    waiting = [
        (
            workload.workload.workload_id,
            workload.workload.shape,
            workload.flavor_cursor
            and (
                [sorted(tried.items()) for tried in workload.flavor_cursor.tried],
                queue.generation > workload.flavor_cursor.generation,
                min(2, scheduler.cycles - workload.flavor_cursor.cycle),
            ),
        )
        for workload in pending.all()
    ]
    return admitted, waiting, pending.sticky, sorted(pending.parked_shapes)


def candidate_settings(scheduler: Scheduler, evictions: Iterable[Eviction]) -> Iterator[Setting]:
    """Yield settings that would have forbidden some of these evictions, the smallest change of each queue first."""
    rules = dict.fromkeys((eviction.queue, eviction.reason) for eviction in evictions)
    for queue, reason in rules:
        policies = scheduler.snapshot.queues[queue].spec.preemption
        match reason:
            case Reason.IN_CLUSTER_QUEUE:
                for policy in _stricter_policies(policies.within):
                    yield Setting(queue, "withinClusterQueue", policy, replace(policies, within=policy))
            case Reason.IN_COHORT_RECLAIM_WHILE_BORROWING:
                yield Setting(queue, "borrowWithinCohort.policy", "Never", replace(policies, borrow_within=None))
            case Reason.IN_COHORT_RECLAMATION | Reason.IN_COHORT_FAIR_SHARING:
                for policy in _stricter_policies(policies.reclaim):
                    yield Setting(queue, "reclaimWithinCohort", policy, replace(policies, reclaim=policy))


def _stricter_policies(policy: PreemptionPolicy) -> tuple[PreemptionPolicy, ...]:
    if policy in (PreemptionPolicy.ANY, PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY):
        return (PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.NEVER)
    return (PreemptionPolicy.NEVER,)
