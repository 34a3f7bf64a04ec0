"""Admit jobs in queue order, without quotas."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from evenkeel.domain.admission.decide import Action, AdmissionDecision, AdmissionFacts, decide
from evenkeel.domain.admission.offers import Offer, offers_for, pool_kinds, without_seats
from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.admission.request import Request
from evenkeel.domain.capacity.node_capacity import Room
from evenkeel.domain.values import Value


class Admission(StrEnum):
    """Who decides which jobs start."""

    EVENKEEL = "evenkeel"
    KUEUE = "kueue"
    """Kueue alone: Evenkeel hands each job over, and follows."""


class Snapshot(Value):
    """All that one pass over the queue of everybody rests on."""

    rooms: tuple[Room, ...]
    pending: tuple[Request, ...]


def admit(snapshot: Snapshot, policy: SchedulingPolicy, now: datetime) -> tuple[AdmissionDecision, ...]:
    """Decide about every pending job, in queue order. Never puts more on a node than is free there."""
    rooms = snapshot.rooms
    decisions: list[AdmissionDecision] = []
    line = Line()
    for request in sorted(snapshot.pending, key=lambda request: request.place_in_queue):
        offers = offers_for(request, rooms, policy)
        facts = AdmissionFacts(request=request, offers=offers, behind=line.before(offers), now=now)
        decision = decide(facts)
        if decision.action is Action.WAIT:
            line.waits(request.job_id, offers)
        if decision.action is Action.ADMIT:
            rooms = without_seats(rooms, request, decision.nodes)
        decisions.append(decision)
    return tuple(decisions)


class Line:
    """Who waits for machines, and thereby holds up those who could take them. Other machines are nobody's to hold."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, frozenset[tuple[str, str]]]] = []

    def waits(self, job_id: str, offers: Iterable[Offer]) -> None:
        """Let a job hold up those behind it."""
        self._waiting.append((job_id, pool_kinds(offers)))

    def before(self, offers: Iterable[Offer]) -> str:
        """Return the first that waits for machines that are offered to another one, too; empty where nobody does."""
        kinds = pool_kinds(offers)
        return next((job_id for job_id, wanted in self._waiting if wanted & kinds), "")


def with_spares(facts: AdmissionFacts, policy: SchedulingPolicy) -> AdmissionFacts:
    """Return facts as they would be if pools kept back what this policy says: machines and quotas stay as they were."""
    if facts.request.is_recovery:
        return facts
    offers = tuple(
        offer.model_copy(update={"kept_back": policy.spare_nodes.get(offer.pool, 0)}) for offer in facts.offers
    )
    return facts.model_copy(update={"offers": offers})
