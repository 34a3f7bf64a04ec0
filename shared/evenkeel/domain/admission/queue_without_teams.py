"""Admit jobs in queue order, without quotas."""

from collections.abc import Iterable
from datetime import datetime

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.decide_job import Action, AdmissionDecision, AdmissionFacts, decide
from evenkeel.domain.admission.offers import PoolFit, SharedFits, pool_instance_types
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy


def decide_in_queue_order(
    snapshot: AdmissionInput, policy: SchedulingPolicy, now: datetime
) -> tuple[AdmissionDecision, ...]:
    """Decide about every pending job, in queue order. No decision exceeds the free amounts of a node."""
    capacities = snapshot.capacities
    shared_fits = SharedFits(capacities, policy)
    decisions: list[AdmissionDecision] = []
    barrier = FifoBarrier()
    for request in sorted(snapshot.pending, key=lambda request: request.queue_order_key):
        offers = shared_fits.fits_of(request, capacities)
        facts = AdmissionFacts(request=request, offers=offers, blocked_by=barrier.blocker_of(offers), now=now)
        decision = decide(facts)
        if decision.action is Action.WAIT:
            barrier.add(request.job_id, offers)
        if decision.action is Action.ADMIT:
            capacities = shared_fits.subtract(capacities, request, decision.nodes)
        decisions.append(decision)
    return tuple(decisions)


class FifoBarrier:
    """The jobs that wait for nodes. Each blocks only the later jobs that could take the same kind of node."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, frozenset[tuple[str, str]]]] = []

    def add(self, job_id: str, offers: Iterable[PoolFit]) -> None:
        """Let a job block later jobs."""
        self._waiting.append((job_id, pool_instance_types(offers)))

    def blocker_of(self, offers: Iterable[PoolFit]) -> str:
        """Return the first waiting job that could take a node of these offers; empty if there is none."""
        kinds = pool_instance_types(offers)
        return next((job_id for job_id, blocked_kinds in self._waiting if blocked_kinds & kinds), "")


def with_spares(facts: AdmissionFacts, policy: SchedulingPolicy) -> AdmissionFacts:
    """Return the facts with the spares that a policy reserves in each pool. Nodes and quotas stay the same."""
    if facts.request.is_recovery:
        return facts
    offers = tuple(
        offer.replace_unchecked(reserved_spares=policy.spare_nodes.get(offer.pool, 0)) for offer in facts.offers
    )
    return facts.replace_unchecked(offers=offers)
