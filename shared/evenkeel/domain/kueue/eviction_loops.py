"""Jobs that evict each other for ever: how a repeated state is recognised, and which single setting would end it.

A cycle is a function of the scheduler's state and the time. Where an evicted job stops at once, a state that was there
before at the same time comes again without end.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from evenkeel.domain.kueue.cycle import Decision, Scheduler
from evenkeel.domain.kueue.objects import Preemption, PreemptionPolicy
from evenkeel.domain.kueue.preemption import Reason
from evenkeel.domain.kueue.snapshot import Team


class Setting(NamedTuple):
    """Another preemption setting of one queue."""

    queue: str
    field: str
    """As Kueue names it below `spec.preemption`."""
    value: str
    preemption: Preemption


class Eviction(NamedTuple):
    """Which queue had a job evicted, and under which rule."""

    queue: str
    reason: Reason
    by: str
    """The job that was given the room."""
    victim: str


def evictions_of(decisions: Iterable[Decision]) -> tuple[Eviction, ...]:
    """Return the evictions that these decisions caused, in their order."""
    return tuple(
        Eviction(each.workload.queue, victim.reason, each.workload.workload_id, victim.workload_id)
        for each in decisions
        for victim in each.victims
    )


def state_digest(scheduler: Scheduler) -> bytes:
    """Hash everything that decides the scheduler's further cycles at one instant.

    Counters that only grow are reduced to what the rules compare: whether a queue changed since a scan of its flavors.
    """
    teams = (_team_state(scheduler, name, team) for name, team in sorted(scheduler.snapshot.teams.items()))
    pairs = sorted((sorted(pair), at) for pair, at in scheduler.snapshot.evicted_at.items())
    return hashlib.blake2b(repr((tuple(teams), pairs)).encode(), digest_size=16).digest()


def _team_state(scheduler: Scheduler, name: str, team: Team) -> object:
    pending = scheduler.pending[name]
    admitted = sorted(
        (job, each.is_evicted, each.is_ready, each.reserved_at, each.counts, [sorted(f.items()) for f in each.flavors])
        for job, each in team.admitted.items()
    )
    waiting = [
        (
            each.workload.workload_id,
            each.workload.shape,
            each.progress
            and (
                [sorted(tried.items()) for tried in each.progress.tried],
                team.generation > each.progress.generation,
                min(2, scheduler.cycles - each.progress.cycle),
            ),
        )
        for each in pending.all()
    ]
    return admitted, waiting, pending.sticky, sorted(pending.parked_shapes)


def candidate_settings(scheduler: Scheduler, evictions: Iterable[Eviction]) -> Iterator[Setting]:
    """Yield settings that would have forbidden some of these evictions: the smallest change of each queue first."""
    rules = dict.fromkeys((each.queue, each.reason) for each in evictions)
    for queue, reason in rules:
        policies = scheduler.snapshot.teams[queue].queue.preemption
        match reason:
            case Reason.IN_CLUSTER_QUEUE:
                for policy in _stricter(policies.within):
                    yield Setting(queue, "withinClusterQueue", policy, replace(policies, within=policy))
            case Reason.IN_COHORT_RECLAIM_WHILE_BORROWING:
                yield Setting(queue, "borrowWithinCohort.policy", "Never", replace(policies, borrow_within=None))
            case Reason.IN_COHORT_RECLAMATION | Reason.IN_COHORT_FAIR_SHARING:
                for policy in _stricter(policies.reclaim):
                    yield Setting(queue, "reclaimWithinCohort", policy, replace(policies, reclaim=policy))


def _stricter(policy: PreemptionPolicy) -> tuple[PreemptionPolicy, ...]:
    if policy in (PreemptionPolicy.ANY, PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY):
        return (PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.NEVER)
    return (PreemptionPolicy.NEVER,)
