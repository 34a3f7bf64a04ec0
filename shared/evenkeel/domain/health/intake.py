"""What a new fact about a node means: it opens an incident, joins the open one, or is old news.

fact ──▶ known copy? ──▶ about a life that is over, or before its last return to service? ──▶ open incident?
KNOWN                             LATE                                          JOIN / OPEN / IDLE
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.health.assessment import (
    CORROBORATION,
    assess,
    cured_at,
    cures_with,
    is_evidence,
    merged,
    signals_of,
    trust,
)
from evenkeel.domain.health.faults import NODE_RUNGS, Catalogue, CheckpointTrust, Fault, Rung, shipped
from evenkeel.domain.health.incidents import (
    Cure,
    FactKind,
    Incident,
    IncidentState,
    NodeFact,
    Progress,
    Repetition,
    SickSeat,
    Signal,
    StageTimes,
)
from evenkeel.domain.health.recurrence import (
    SILENCE,
    History,
    Occurrence,
    places,
    remembered,
    repetition,
    seat_place,
)
from evenkeel.domain.values import Instant, Value

_SOURCE_RESOLUTION = timedelta(seconds=1)
"""Event times are cut to whole seconds, so a fault may seem up to this much older than it is."""
_PROGRESS_KEPT = 10
_STICKY = timedelta(hours=3)
"""So long a code that is said again and again is one."""
NOT_READY = "node:not_ready"


class Intake(StrEnum):
    """What to do with a fact."""

    OPEN = "OPEN"
    JOIN = "JOIN"
    KNOWN = "KNOWN"
    """A copy of a fact that was heard before."""
    LATE = "LATE"
    """News of what is over: an earlier life, or before the node was last returned to service."""
    EXPECTED = "EXPECTED"
    """What a repair of ours does to the machine: remembered, and no evidence."""
    IDLE = "IDLE"
    """Without an open incident: a healthy-again signal, news of a repair, or the mere trace of another fault."""


class LastIncident(Value):
    """How the last settled incident of a life left it: the line that old news does not cross."""

    incident_id: str
    returned_at: Instant | None = None
    """When the machine was found valid again; None where it was not."""
    returned_by: str = ""
    """The incident that it was found valid in, this one or one before it; empty = this one."""
    is_over: bool = False
    """The machine was replaced: nothing that is said of it matters any more."""


class IntakeDecision(Value):
    """What to do with a fact, and why."""

    action: Intake
    reason: str
    incident: Incident | None = None
    """The incident as it is to be stored, where one opens or is joined; the open one where the copy is known."""
    histories: dict[str, History] = {}
    """What is to be remembered with it, by place."""


def join_or_open(
    fact: NodeFact,
    seat: SickSeat,
    *,
    known_as: str,
    last: LastIncident | None,
    current: Incident | None,
    new_id: str,
    now: datetime,
    histories: Mapping[str, History] | None = None,
    catalogue: Catalogue | None = None,
) -> IntakeDecision:
    """Decide what a fact means.

    Drills and real facts are kept apart: `known_as`, `last`, `current` and `histories` are of the fact's own kind.

    Args:
        fact: The fact.
        seat: The machine it is about.
        known_as: Incident that this very fact joined before; empty where it is new.
        last: How the last settled incident of this life ended.
        current: The open incident of this life.
        new_id: Id for a new incident.
        now: The time.
        histories: What is remembered at each of the fault's `places`.
        catalogue: The faults as the site has them; None = as shipped.
    """
    catalogue, histories = catalogue or shipped(), histories or {}
    if current is not None and current.is_drill is not fact.is_drill:
        current = None
    if last and last.is_over:
        return IntakeDecision(action=Intake.LATE, reason=f"The machine was replaced by {last.incident_id}.")
    returned_at = last.returned_at if last else None
    happened_after = returned_at is None or fact.observed_at + _SOURCE_RESOLUTION > returned_at
    # What an incident heard that gave the machine to a person is no news for as long as the machine is theirs.
    returned_by = (last.returned_by or last.incident_id) if last else ""
    if known_as and not (known_as == returned_by and returned_at and fact.observed_at > returned_at):
        is_current = current is not None and current.incident_id == known_as
        reason = f"Heard before, by {known_as}."
        return IntakeDecision(action=Intake.KNOWN, reason=reason, incident=current if is_current else None)
    if not happened_after:
        assert last
        return IntakeDecision(action=Intake.LATE, reason=f"Older than the return to service after {last.incident_id}.")
    if current is not None and _is_our_doing(fact, current):
        reason = f"{current.incident_id} has the machine repaired: that takes it down."
        return IntakeDecision(action=Intake.EXPECTED, reason=reason, incident=current)
    if current is not None:
        return IntakeDecision(
            action=Intake.JOIN,
            reason=f"Joins {current.incident_id}, open for this machine.",
            incident=joined(current, fact, seat=seat, histories=histories, catalogue=catalogue),
            histories=_remembered(fact, seat, current.incident_id, histories, catalogue),
        )
    if fact.kind is FactKind.RECOVERED:
        return IntakeDecision(action=Intake.IDLE, reason="Healthy, and no incident is open.")
    if fact.kind is FactKind.PROGRESS:
        return IntakeDecision(action=Intake.IDLE, reason="News of a machine about which no incident is open.")
    fault = catalogue.look_up(fact.fault_key)
    if not is_evidence(fault):
        reason = f"{fault.name}: by itself it says nothing of the machine, and no incident is open."
        return IntakeDecision(action=Intake.IDLE, reason=reason)
    same = _still_watched(fact, fault, seat, returned_at, histories)
    if same is not None:
        return IntakeDecision(
            action=Intake.IDLE,
            reason=f"{fault.name}: still the burst that {same.incident_id} recorded.",
            histories=_remembered(fact, seat, same.incident_id, histories, catalogue),
        )
    return IntakeDecision(
        action=Intake.OPEN,
        reason="The first signal of this sickness.",
        incident=opened(
            fact,
            seat,
            incident_id=new_id,
            now=now,
            returned_at=returned_at,
            histories=histories,
            catalogue=catalogue,
        ),
        histories=_remembered(fact, seat, new_id, histories, catalogue),
    )


def _is_our_doing(fact: NodeFact, incident: Incident) -> bool:
    """Whether a machine is down because it is being repaired: since the call, until it was seen to be back."""
    asked_at, back_at = incident.stages.repair_asked_at, incident.stages.node_back_at
    if fact.fault_key != NOT_READY or asked_at is None or not incident.repairs:
        return False
    return fact.observed_at + _SOURCE_RESOLUTION > asked_at and (back_at is None or fact.observed_at <= back_at)


def _still_watched(
    fact: NodeFact, fault: Fault, seat: SickSeat, returned_at: datetime | None, histories: Mapping[str, History]
) -> Occurrence | None:
    """Return the occurrence that already tells all that a signal of a watched fault says; None where it says more.

    A sticky code may be said each minute for hours. It is one incident and one occurrence, until there is silence, or
    another witness, or it has gone on for so long that it counts anew.
    """
    if fault.ladder[0] is not Rung.WATCH:
        return None
    history = histories.get(seat_place(seat.slot), History())
    return next(
        (
            each
            for each in history.occurrences
            if each.life == seat.life.key
            and (each.fault_key, each.gpu, each.link) == (fact.fault_key, fact.gpu, fact.link)
            and fact.source in each.sources
            and each.first_at - SILENCE <= fact.observed_at <= each.last_at + SILENCE
            and fact.observed_at <= each.first_at + _STICKY
            and {*seat.job_ids} <= {*each.jobs}
            and (returned_at is None or each.last_at > returned_at)
        ),
        None,
    )


def _remembered(
    fact: NodeFact,
    seat: SickSeat,
    incident_id: str,
    histories: Mapping[str, History],
    catalogue: Catalogue,
) -> dict[str, History]:
    """Return the histories that change."""
    fault = catalogue.look_up(fact.fault_key)
    if fact.kind is not FactKind.SICKENED or not is_evidence(fault):
        return {}
    at = {place: histories.get(place, History()) for place in places(fault, seat)}
    after = {place: remembered(history, fact, seat, incident_id) for place, history in at.items()}
    return {place: history for place, history in after.items() if history != at[place]}


def opened(
    fact: NodeFact,
    seat: SickSeat,
    *,
    incident_id: str,
    now: datetime,
    returned_at: datetime | None,
    histories: Mapping[str, History],
    catalogue: Catalogue,
) -> Incident:
    """Return a new incident with its first signal, and with those of an earlier one that may still bear witness."""
    ours = Incident(
        incident_id=incident_id,
        life=seat.life,
        slot=seat.slot,
        node_name=seat.node_name,
        pool=seat.pool,
        instance_type=seat.instance_type,
        boot_id=seat.boot_id,
        state=IncidentState.OPEN,
        severity=catalogue.look_up(fact.fault_key).severity,
        fault_key=fact.fault_key,
        first_signal_at=fact.observed_at,
        last_signal_at=fact.observed_at,
        deadline_at=fact.deadline_at,
        opened_at=now,
        is_drill=fact.is_drill,
        stages=StageTimes(detected_at=now),
    )
    signals: tuple[Signal, ...] = ()
    for each in _still_bearing_witness(fact, seat, returned_at, histories):
        signals = merged(signals, each)
    repeated = _repetitions((), fact, seat, incident_id, histories, catalogue)
    return _assessed(ours, merged(signals, _signal(fact)), repeated, catalogue)


def _still_bearing_witness(
    fact: NodeFact, seat: SickSeat, returned_at: datetime | None, histories: Mapping[str, History]
) -> list[Signal]:
    """Return the signals of this life's last minutes whose incident is settled already, with nothing done."""
    history = histories.get(seat_place(seat.slot), History())
    return [
        Signal(
            fault_key=each.fault_key,
            source=source,
            gpu=each.gpu,
            link=each.link,
            first_at=each.first_at,
            last_at=each.last_at,
        )
        for each in history.occurrences
        for source in each.sources
        if each.life == seat.life.key
        and abs(fact.observed_at - each.last_at) <= CORROBORATION
        and (returned_at is None or each.last_at > returned_at)
    ]


def joined(
    incident: Incident,
    fact: NodeFact,
    *,
    seat: SickSeat | None = None,
    histories: Mapping[str, History] | None = None,
    catalogue: Catalogue | None = None,
) -> Incident:
    """Return an incident with one more signal, judged anew. In whatever order signals join, they come to the same.

    A drill never joins a real incident, nor a real fact a drill's: such an incident stays as it is.
    """
    if fact.is_drill is not incident.is_drill:
        return incident
    catalogue = catalogue or shipped()
    counted = incident.but(evidence_count=incident.evidence_count + 1)
    if fact.kind is FactKind.PROGRESS:
        said = Progress(code=fact.code, at=fact.observed_at, instance_id=fact.instance_id, message=fact.detail)
        return counted.but(progress=sorted((*incident.progress, said), key=lambda each: each.at)[-_PROGRESS_KEPT:])
    if fact.kind is FactKind.RECOVERED:
        cures = cures_with(incident.cures, Cure(fault_key=fact.fault_key, source=fact.source, at=fact.observed_at))
        return counted.but(cures=cures, recovered_at=cured_at(signals_of(incident), cures))
    if not is_evidence(catalogue.look_up(fact.fault_key)):
        return counted
    before, repeated = signals_of(incident), incident.repetitions
    repeated = _repetitions(
        repeated,
        fact,
        seat or _seat_of(incident),
        incident.incident_id,
        histories or {},
        catalogue,
    )
    deadlines = [at for at in (incident.deadline_at, fact.deadline_at) if at]
    after = counted.but(
        deadline_at=min(deadlines, default=None),
        last_signal_at=max(incident.last_signal_at or fact.observed_at, fact.observed_at),
    )
    return _assessed(after, merged(before, _signal(fact)), repeated, catalogue)


def _assessed(
    incident: Incident, signals: tuple[Signal, ...], repeated: Sequence[Repetition], catalogue: Catalogue
) -> Incident:
    found = assess(signals, repeated, catalogue)
    return incident.but(
        signals=signals,
        repetitions=tuple(repeated),
        fault_key=found.fault_key,
        severity=max(incident.severity, found.severity, key=lambda each: each.rank),
        asked_rung=found.asked_rung,
        asked_because=found.asked_because,
        sources=found.sources,
        witnesses=found.witnesses,
        first_signal_at=found.first_signal_at,
        recovered_at=cured_at(signals, incident.cures),
    )


def _repetitions(
    before: Sequence[Repetition],
    fact: NodeFact,
    seat: SickSeat,
    incident_id: str,
    histories: Mapping[str, History],
    catalogue: Catalogue,
) -> tuple[Repetition, ...]:
    """Return the repetitions known before with that of this fact; of one fault the highest count stands."""
    found = repetition(
        catalogue.look_up(fact.fault_key),
        fact,
        seat,
        [each for place, each in sorted(histories.items())],
        incident_id=incident_id,
    )
    if found is None:
        return tuple(before)
    best = {each.fault_key: each for each in sorted((*before, found), key=lambda each: each.count)}
    return tuple(best[key] for key in sorted(best))


def _signal(fact: NodeFact) -> Signal:
    return Signal(
        fault_key=fact.fault_key,
        source=fact.source,
        gpu=fact.gpu,
        link=fact.link,
        first_at=fact.observed_at,
        last_at=fact.observed_at,
    )


def _seat_of(incident: Incident) -> SickSeat:
    return SickSeat(life=incident.life, slot=incident.slot, pool=incident.pool)


def rungs_of(incident: Incident, catalogue: Catalogue | None = None) -> tuple[Rung, ...]:
    """Return the rungs of an incident, in order: its fault's, without those gentler than what is asked for."""
    ladder = (catalogue or shipped()).look_up(incident.fault_key).ladder
    if not incident.asked_rung:
        return ladder
    asked = Rung(incident.asked_rung)
    if asked is Rung.PAGE_HUMAN:
        return (asked,)
    stronger = tuple(rung for rung in ladder if rung.strength > asked.strength)
    return ladder[ladder.index(asked) :] if asked in ladder else (asked, *stronger)


def doubt_of(incident: Incident, catalogue: Catalogue) -> tuple[CheckpointTrust, datetime]:
    """Return how far checkpoints are trusted after an incident, and from which signal on they are not."""
    return trust(signals_of(incident), catalogue)


def ladder_of(incident: Incident, catalogue: Catalogue | None = None) -> tuple[str, ...]:
    """Return the rungs of an incident that touch the machine, in order."""
    return tuple(rung for rung in rungs_of(incident, catalogue) if rung in NODE_RUNGS)
