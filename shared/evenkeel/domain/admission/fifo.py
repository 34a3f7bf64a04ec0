"""Admit jobs in queue order, without quotas."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from evenkeel.domain.admission.decide import Action, AdmissionDecision, AdmissionFacts, decide
from evenkeel.domain.admission.offers import PoolFit, pool_fits, pool_kinds, subtract_assigned
from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.admission.request import AdmissionRequest
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.values import Value


class AdmissionAuthority(StrEnum):
    """Who decides which jobs start."""

    EVENKEEL = "evenkeel"
    KUEUE = "kueue"
    """Kueue alone: Evenkeel hands each job over, and follows."""


class QueueSnapshot(Value):
    """All that one pass over the queue of everybody rests on."""

    capacities: tuple[NodeCapacity, ...]
    pending: tuple[AdmissionRequest, ...]


def admit(snapshot: QueueSnapshot, policy: SchedulingPolicy, now: datetime) -> tuple[AdmissionDecision, ...]:
    """Decide about every pending job, in queue order. Never puts more on a node than is free there."""
    capacities = snapshot.capacities
    decisions: list[AdmissionDecision] = []
    line = FifoBarrier()
    for request in sorted(snapshot.pending, key=lambda request: request.queue_order_key):
        offers = pool_fits(request, capacities, policy)
        facts = AdmissionFacts(request=request, offers=offers, blocked_by=line.before(offers), now=now)
        decision = decide(facts)
        if decision.action is Action.WAIT:
            line.waits(request.job_id, offers)
        if decision.action is Action.ADMIT:
            capacities = subtract_assigned(capacities, request, decision.nodes)
        decisions.append(decision)
    return tuple(decisions)


class FifoBarrier:
    """Who waits for machines, and thereby holds up those who could take them. Other machines are nobody's to hold."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, frozenset[tuple[str, str]]]] = []

    def waits(self, job_id: str, offers: Iterable[PoolFit]) -> None:
        """Let a job hold up those behind it."""
        self._waiting.append((job_id, pool_kinds(offers)))

    def before(self, offers: Iterable[PoolFit]) -> str:
        """Return the first that waits for machines that are offered to another one, too; empty where nobody does."""
        kinds = pool_kinds(offers)
        return next((job_id for job_id, wanted in self._waiting if wanted & kinds), "")


def with_spares(facts: AdmissionFacts, policy: SchedulingPolicy) -> AdmissionFacts:
    """Return facts as they would be if pools kept back what this policy says: machines and quotas stay as they were."""
    if facts.request.is_recovery:
        return facts
    offers = tuple(
        offer.model_copy(update={"reserved_spares": policy.spare_nodes.get(offer.pool, 0)}) for offer in facts.offers
    )
    return facts.model_copy(update={"offers": offers})
