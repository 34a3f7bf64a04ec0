"""Admit jobs in queue order, without quotas: first come, first served on free nodes.

A job is admitted if its gang fits on one instance type of one pool. The first job that does not fit blocks later jobs
that could take the same nodes, so small jobs never starve a large one. With `backfillSeconds` it does so only after it
has waited that long. A job that resumes after a recovery comes first:
its capacity was granted before. With teams, `queue_with_teams.py` decides the order.
"""

from collections.abc import Iterable
from datetime import datetime

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision, AdmissionFacts, decide
from evenkeel.domain.admission.pool_fits import PoolFit, SharedFits, pool_instance_types
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy


def decide_in_queue_order(
    admission_input: AdmissionInput, policy: SchedulingPolicy, now: datetime
) -> tuple[AdmissionDecision, ...]:
    """Decide about every pending job, in queue order. No decision exceeds the free amounts of a node."""
    capacities = admission_input.capacities
    shared_fits = SharedFits(capacities, policy)
    decisions: list[AdmissionDecision] = []
    barrier = FifoBarrier()
    for request in sorted(admission_input.pending, key=lambda request: request.queue_order_key):
        fits = shared_fits.fits_of(request, capacities)
        facts = AdmissionFacts(request=request, fits=fits, blocked_by=barrier.blocker_of(fits), now=now)
        decision = decide(facts)
        if decision.action is AdmissionAction.WAIT and not request.may_be_overtaken:
            barrier.add(request.job_id, fits)
        if decision.action is AdmissionAction.ADMIT:
            capacities = shared_fits.subtract(capacities, request, decision.nodes)
        decisions.append(decision)
    return tuple(decisions)


class FifoBarrier:
    """The jobs that wait for nodes. Each blocks only the later jobs that could take the same kind of node."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, frozenset[tuple[str, str]]]] = []

    def add(self, job_id: str, fits: Iterable[PoolFit]) -> None:
        """Let a job block later jobs."""
        self._waiting.append((job_id, pool_instance_types(fits)))

    def blocker_of(self, fits: Iterable[PoolFit]) -> str:
        """Return the first waiting job that could take a node of these fits; empty if there is none."""
        kinds = pool_instance_types(fits)
        return next((job_id for job_id, blocked_kinds in self._waiting if blocked_kinds & kinds), "")


def with_spares(facts: AdmissionFacts, policy: SchedulingPolicy) -> AdmissionFacts:
    """Return the facts with the spares that a policy reserves in each pool. Nodes and quotas stay the same."""
    if facts.request.is_recovery:
        return facts
    fits = tuple(fit.replace_unchecked(reserved_spares=policy.spare_nodes.get(fit.pool, 0)) for fit in facts.fits)
    return facts.replace_unchecked(fits=fits)
