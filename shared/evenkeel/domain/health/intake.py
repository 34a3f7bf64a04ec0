"""What a new fact about a node means: it opens an incident, joins the open one, or is old news.

fact ──▶ known copy? ──▶ about a life that is over, or before its last return to service? ──▶ open incident?
KNOWN                             LATE                                          JOIN / OPEN / IDLE
"""

from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.health.faults import NODE_RUNGS, Fault, look_up
from evenkeel.domain.health.incidents import FactKind, Incident, IncidentState, NodeFact, Progress, SickSeat, StageTimes
from evenkeel.domain.values import Instant, Value

_SOURCE_RESOLUTION = timedelta(seconds=1)
"""Event times are cut to whole seconds, so a fault may seem up to this much older than it is."""


_PROGRESS_KEPT = 10


class Intake(StrEnum):
    """What to do with a fact."""

    OPEN = "OPEN"
    JOIN = "JOIN"
    KNOWN = "KNOWN"
    """A copy of a fact that was heard before."""
    LATE = "LATE"
    """News of what is over: an earlier life, or before the node was last returned to service."""
    IDLE = "IDLE"
    """A healthy-again signal, or news of a repair, without an open incident."""


class LastIncident(Value):
    """How the last settled incident of a life left it: the line that old news does not cross."""

    incident_id: str
    returned_at: Instant | None = None
    """When the machine was found valid again; None where it was not."""
    is_over: bool = False
    """The machine was replaced: nothing that is said of it matters any more."""


class IntakeDecision(Value):
    """What to do with a fact, and why."""

    action: Intake
    reason: str
    incident: Incident | None = None
    """The incident as it is to be stored, where one opens or is joined; the open one where the copy is known."""


def join_or_open(
    fact: NodeFact,
    seat: SickSeat,
    *,
    known_as: str,
    last: LastIncident | None,
    current: Incident | None,
    drills_may_act: bool,
    new_id: str,
    now: datetime,
) -> IntakeDecision:
    """Decide what a fact means.

    Args:
        fact: The fact.
        seat: The machine it is about.
        known_as: Incident that this very fact joined before; empty where it is new.
        last: How the last settled incident of this life ended.
        current: The open incident of this life.
        drills_may_act: Whether drill events count as much as real ones here.
        new_id: Id for a new incident.
        now: The time.
    """
    if last and last.is_over:
        return IntakeDecision(action=Intake.LATE, reason=f"The machine was replaced by {last.incident_id}.")
    returned_at = last.returned_at if last else None
    happened_after = returned_at is None or fact.observed_at + _SOURCE_RESOLUTION > returned_at
    if known_as and not (last and known_as == last.incident_id and returned_at and fact.observed_at > returned_at):
        is_current = current is not None and current.incident_id == known_as
        reason = f"Heard before, by {known_as}."
        return IntakeDecision(action=Intake.KNOWN, reason=reason, incident=current if is_current else None)
    if not happened_after:
        assert last
        return IntakeDecision(action=Intake.LATE, reason=f"Older than the return to service after {last.incident_id}.")
    if current is not None:
        return IntakeDecision(
            action=Intake.JOIN,
            reason=f"Joins {current.incident_id}, open for this machine.",
            incident=joined(current, fact, drills_may_act=drills_may_act),
        )
    if fact.kind is FactKind.RECOVERED:
        return IntakeDecision(action=Intake.IDLE, reason="Healthy, and no incident is open.")
    if fact.kind is FactKind.PROGRESS:
        return IntakeDecision(action=Intake.IDLE, reason="News of a machine about which no incident is open.")
    return IntakeDecision(
        action=Intake.OPEN,
        reason="The first signal of this sickness.",
        incident=opened(fact, seat, incident_id=new_id, now=now),
    )


def opened(fact: NodeFact, seat: SickSeat, *, incident_id: str, now: datetime) -> Incident:
    """Return a new incident with its first signal."""
    return Incident(
        incident_id=incident_id,
        life=seat.life,
        slot=seat.slot,
        node_name=seat.node_name,
        pool=seat.pool,
        instance_type=seat.instance_type,
        boot_id=seat.boot_id,
        state=IncidentState.OPEN,
        severity=look_up(fact.fault_key).severity,
        fault_key=fact.fault_key,
        asked_rung=_asked_rung(fact.fault_key),
        first_signal_at=fact.observed_at,
        last_signal_at=fact.observed_at,
        sources=(fact.source,),
        deadline_at=fact.deadline_at,
        opened_at=now,
        is_drill=fact.is_drill,
        stages=StageTimes(detected_at=now),
    )


def joined(incident: Incident, fact: NodeFact, *, drills_may_act: bool) -> Incident:
    """Return an incident with one more signal. The worst fault wins, and an Xid refines a HyperPod fault type."""
    counted = incident.but(evidence_count=incident.evidence_count + 1)
    if fact.kind is FactKind.RECOVERED:
        if fact.observed_at <= incident.first_signal_at:
            return counted
        return counted.but(recovered_at=max(fact.observed_at, incident.recovered_at or fact.observed_at))
    if fact.kind is FactKind.PROGRESS:
        said = Progress(code=fact.code, at=fact.observed_at, instance_id=fact.instance_id, message=fact.detail)
        return counted.but(progress=sorted((*incident.progress, said), key=lambda each: each.at)[-_PROGRESS_KEPT:])
    if fact.is_drill and not incident.is_drill and not drills_may_act:
        # Anybody who may put events can forge a drill: it is kept as evidence, and changes nothing.
        return counted
    if incident.is_drill and not fact.is_drill and not drills_may_act:
        # The first real signal: from here on only what is real counts.
        fault_key, asked = fact.fault_key, _asked_rung(fact.fault_key)
        severity = look_up(fact.fault_key).severity
    else:
        fault_key = worse(incident.fault_key, fact.fault_key)
        asked = incident.asked_rung or _asked_rung(fact.fault_key)
        severity = max(incident.severity, look_up(fact.fault_key).severity, key=lambda each: each.rank)
    return counted.but(
        fault_key=fault_key,
        severity=severity,
        asked_rung=asked,
        is_drill=incident.is_drill and fact.is_drill,
        sources=tuple(dict.fromkeys((*incident.sources, fact.source))),
        deadline_at=min((at for at in (incident.deadline_at, fact.deadline_at) if at), default=None),
        first_signal_at=min(incident.first_signal_at, fact.observed_at),
        last_signal_at=max(incident.last_signal_at or fact.observed_at, fact.observed_at),
    )


def worse(current: str, other: str) -> str:
    """Return the fault key that an incident is to carry.

    Source: one burst is one fault of the severity of its worst row; HyperPod sees less first and is refined by the Xid.
    """
    if current == other:
        return current
    ours, theirs = look_up(current), look_up(other)
    if _refines(current, other):
        return other if theirs.severity.rank >= ours.severity.rank or theirs.repairs_node else current
    if _refines(other, current):
        return current if ours.severity.rank >= theirs.severity.rank or ours.repairs_node else other
    return other if theirs.severity.rank > ours.severity.rank else current


def _refines(vague: str, exact: str) -> bool:
    return vague.startswith("hp:") and exact.startswith("xid:") and exact != "xid:*"


def _asked_rung(fault_key: str) -> str:
    """What HyperPod itself asks for, where it asks for the last node rung at once."""
    rungs = look_up(fault_key).node_rungs
    return rungs[0] if fault_key.startswith("hp:") and rungs == NODE_RUNGS[-1:] else ""


def ladder_of(incident: Incident) -> tuple[str, ...]:
    """Return the node rungs of an incident, in order: its fault's, without those gentler than HyperPod asks for."""
    fault: Fault = look_up(incident.fault_key)
    rungs = fault.node_rungs
    if incident.asked_rung:
        return rungs[rungs.index(incident.asked_rung) :] if incident.asked_rung in rungs else (incident.asked_rung,)
    return rungs
