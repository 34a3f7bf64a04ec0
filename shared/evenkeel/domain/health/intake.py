"""Decide what a new fact about a node does: open an incident, join the open incident, or neither.

fact ─▶ already recorded? ─▶ node replaced, or returned to service since? ─▶ caused by a repair? ─▶ open incident?
        DUPLICATE            STALE                                           EXPECTED               JOIN, OPEN, IGNORED
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.health.assessment import (
    CORROBORATION,
    add_cleared_fault,
    assess,
    checkpoint_trust,
    cleared_at,
    is_evidence,
    merge_signal,
    signals_of,
)
from evenkeel.domain.health.faults import NODE_RUNGS, CheckpointTrust, Fault, FaultCatalogue, Rung, default_catalogue
from evenkeel.domain.health.incidents import (
    AffectedNode,
    ClearedFault,
    FactKind,
    Incident,
    IncidentState,
    NodeFact,
    Recurrence,
    RepairProgress,
    Signal,
    StageTimes,
)
from evenkeel.domain.health.recurrence import (
    BURST_GAP,
    FaultHistory,
    FaultOccurrence,
    find_recurrence,
    history_keys,
    slot_history_key,
    with_occurrence,
)
from evenkeel.domain.values import Instant, Value

_SOURCE_RESOLUTION = timedelta(seconds=1)
"""Sources cut event times to whole seconds, so a fault may look older than it is by up to this much."""
_MAX_PROGRESS = 10
_MAX_BURST = timedelta(hours=3)
"""A watched code that is reported without a pause counts again after this time."""
NOT_READY = "node:not_ready"


class IntakeAction(StrEnum):
    """The effect of a fact."""

    OPEN = "OPEN"
    JOIN = "JOIN"
    DUPLICATE = "DUPLICATE"
    """Another delivery of a fact that is already recorded."""
    STALE = "STALE"
    """The node was replaced, or it returned to service after the fact."""
    EXPECTED = "EXPECTED"
    """Evenkeel's own repair causes the fact. It is recorded, but it is not evidence of a fault."""
    IGNORED = "IGNORED"
    """No incident is open, and the fact alone opens none: a recovery, repair progress, or a consequence of a fault."""


class LastIncident(Value):
    """How the last settled incident of a node life ended. Facts from before its return to service are stale."""

    incident_id: str
    returned_at: Instant | None = None
    """Time at which the node passed validation; None if it did not."""
    returned_by: str = ""
    """Incident in which the node passed validation: this one or an earlier one. Empty = this one."""
    is_replaced: bool = False
    """Whether the node was replaced. Further facts about it have no effect."""


class IntakeDecision(Value):
    """The effect of a fact, with its reason."""

    action: IntakeAction
    reason: str
    incident: Incident | None = None
    """For OPEN and JOIN, the incident to store. For DUPLICATE and EXPECTED, the open incident, if there is one."""
    histories: dict[str, FaultHistory] = {}
    """The changed fault histories to store, by history key."""


def join_or_open(  # noqa: PLR0913 - keyword-only facts
    fact: NodeFact,
    affected: AffectedNode,
    *,
    known_incident_id: str,
    last: LastIncident | None,
    current: Incident | None,
    new_id: str,
    now: datetime,
    histories: Mapping[str, FaultHistory] | None = None,
    catalogue: FaultCatalogue | None = None,
) -> IntakeDecision:
    """Decide the effect of a fact.

    Drills and real facts are kept apart: for a drill, all arguments describe drills; for a real fact, real incidents.

    Args:
        fact: The fact.
        affected: The node that the fact is about.
        known_incident_id: Incident that recorded this fact before; empty if the fact is new.
        last: How the last settled incident of this node life ended.
        current: The open incident of this node life.
        new_id: Id for a new incident.
        now: The current time.
        histories: The fault history of each of the fault's `history_keys`.
        catalogue: The faults with the site's overrides; None = as shipped.
    """
    catalogue, histories = catalogue or default_catalogue(), histories or {}
    if current is not None and current.is_drill is not fact.is_drill:
        current = None
    if last and last.is_replaced:
        return IntakeDecision(action=IntakeAction.STALE, reason=f"{last.incident_id} replaced the node.")
    returned_at = last.returned_at if last else None
    happened_after = returned_at is None or fact.observed_at + _SOURCE_RESOLUTION > returned_at
    # A fact key covers a minute. A fact with a known key is still new if it happened after that incident returned the
    # node to service. While a person owns the node, it has not returned, so every recorded fact is a duplicate.
    returned_by = (last.returned_by or last.incident_id) if last else ""
    if known_incident_id and not (known_incident_id == returned_by and returned_at and fact.observed_at > returned_at):
        is_current = current is not None and current.incident_id == known_incident_id
        reason = f"{known_incident_id} already recorded this signal."
        return IntakeDecision(action=IntakeAction.DUPLICATE, reason=reason, incident=current if is_current else None)
    if not happened_after:
        assert last
        return IntakeDecision(
            action=IntakeAction.STALE,
            reason=f"The signal is older than the node's return to service after {last.incident_id}.",
        )
    if current is not None and _is_caused_by_repair(fact, current):
        reason = f"The repair by {current.incident_id} takes the node down, so this is expected."
        return IntakeDecision(action=IntakeAction.EXPECTED, reason=reason, incident=current)
    if current is not None:
        return IntakeDecision(
            action=IntakeAction.JOIN,
            reason=f"The signal joins {current.incident_id}, which is open for this node.",
            incident=with_fact(current, fact, affected=affected, histories=histories, catalogue=catalogue),
            histories=_updated_histories(fact, affected, current.incident_id, histories, catalogue),
        )
    if fact.kind is FactKind.RECOVERED:
        return IntakeDecision(action=IntakeAction.IGNORED, reason="The node is healthy and has no open incident.")
    if fact.kind is FactKind.PROGRESS:
        return IntakeDecision(
            action=IntakeAction.IGNORED, reason="Repair progress for a node without an open incident."
        )
    fault = catalogue.look_up(fact.fault_key)
    if not is_evidence(fault):
        reason = f"{fault.name}: this alone does not show a node fault, and no incident is open."
        return IntakeDecision(action=IntakeAction.IGNORED, reason=reason)
    recorded = _watched_occurrence(fact, fault, affected, returned_at, histories)
    if recorded is not None:
        return IntakeDecision(
            action=IntakeAction.IGNORED,
            reason=f"{fault.name}: {recorded.incident_id} already recorded this burst.",
            histories=_updated_histories(fact, affected, recorded.incident_id, histories, catalogue),
        )
    return IntakeDecision(
        action=IntakeAction.OPEN,
        reason="The first signal of this fault.",
        incident=open_incident(
            fact,
            affected,
            incident_id=new_id,
            now=now,
            returned_at=returned_at,
            histories=histories,
            catalogue=catalogue,
        ),
        histories=_updated_histories(fact, affected, new_id, histories, catalogue),
    )


def _is_caused_by_repair(fact: NodeFact, incident: Incident) -> bool:
    """Whether the node is NotReady because of Evenkeel's repair: between the request and the node's return."""
    requested_at, back_at = incident.stages.repair_requested_at, incident.stages.node_back_at
    if fact.fault_key != NOT_READY or requested_at is None or not incident.repairs:
        return False
    return fact.observed_at + _SOURCE_RESOLUTION > requested_at and (back_at is None or fact.observed_at <= back_at)


def _watched_occurrence(
    fact: NodeFact,
    fault: Fault,
    affected: AffectedNode,
    returned_at: datetime | None,
    histories: Mapping[str, FaultHistory],
) -> FaultOccurrence | None:
    """Return the recorded occurrence that a signal of a watched fault repeats; None if the signal adds something.

    A source may report a code every minute for hours. These reports are one incident and one occurrence until the
    source pauses, another source reports the code, or three hours have passed.
    """
    if fault.ladder[0] is not Rung.WATCH:
        return None
    history = histories.get(slot_history_key(affected.slot), FaultHistory())
    return next(
        (
            each
            for each in history.occurrences
            if each.life == affected.life.key
            and (each.fault_key, each.gpu, each.link) == (fact.fault_key, fact.gpu, fact.link)
            and fact.source in each.sources
            and each.first_at - BURST_GAP <= fact.observed_at <= each.last_at + BURST_GAP
            and fact.observed_at <= each.first_at + _MAX_BURST
            and {*affected.job_ids} <= {*each.jobs}
            and (returned_at is None or each.last_at > returned_at)
        ),
        None,
    )


def _updated_histories(
    fact: NodeFact,
    affected: AffectedNode,
    incident_id: str,
    histories: Mapping[str, FaultHistory],
    catalogue: FaultCatalogue,
) -> dict[str, FaultHistory]:
    """Return the fault histories that the fact changes, by history key."""
    fault = catalogue.look_up(fact.fault_key)
    if fact.kind is not FactKind.SICKENED or not is_evidence(fault):
        return {}
    before = {key: histories.get(key, FaultHistory()) for key in history_keys(fault, affected)}
    after = {key: with_occurrence(history, fact, affected, incident_id) for key, history in before.items()}
    return {key: history for key, history in after.items() if history != before[key]}


def open_incident(
    fact: NodeFact,
    affected: AffectedNode,
    *,
    incident_id: str,
    now: datetime,
    returned_at: datetime | None,
    histories: Mapping[str, FaultHistory],
    catalogue: FaultCatalogue,
) -> Incident:
    """Return a new incident with its first signal, and with recent signals that may still corroborate it."""
    incident = Incident(
        incident_id=incident_id,
        life=affected.life,
        slot=affected.slot,
        node_name=affected.node_name,
        pool=affected.pool,
        instance_type=affected.instance_type,
        boot_id=affected.boot_id,
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
    for each in _recent_signals(fact, affected, returned_at, histories):
        signals = merge_signal(signals, each)
    recurrences = _updated_recurrences((), fact, affected, incident_id, histories, catalogue)
    return _reassess(incident, merge_signal(signals, _signal(fact)), recurrences, catalogue)


def _recent_signals(
    fact: NodeFact, affected: AffectedNode, returned_at: datetime | None, histories: Mapping[str, FaultHistory]
) -> list[Signal]:
    """Return the signals of settled incidents of this node life that may still corroborate the fact.

    They are within `CORROBORATION` of the fact and newer than the node's last return to service.
    """
    history = histories.get(slot_history_key(affected.slot), FaultHistory())
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
        if each.life == affected.life.key
        and abs(fact.observed_at - each.last_at) <= CORROBORATION
        and (returned_at is None or each.last_at > returned_at)
    ]


def with_fact(
    incident: Incident,
    fact: NodeFact,
    *,
    affected: AffectedNode | None = None,
    histories: Mapping[str, FaultHistory] | None = None,
    catalogue: FaultCatalogue | None = None,
) -> Incident:
    """Return an incident with one more fact, assessed again. The order of the facts does not matter.

    A drill's fact never changes a real incident, nor a real fact a drill's incident.
    """
    if fact.is_drill is not incident.is_drill:
        return incident
    catalogue = catalogue or default_catalogue()
    counted = incident.but(evidence_count=incident.evidence_count + 1)
    if fact.kind is FactKind.PROGRESS:
        latest = RepairProgress(code=fact.code, at=fact.observed_at, instance_id=fact.instance_id, message=fact.detail)
        return counted.but(progress=sorted((*incident.progress, latest), key=lambda each: each.at)[-_MAX_PROGRESS:])
    if fact.kind is FactKind.RECOVERED:
        cleared = add_cleared_fault(
            incident.cleared_faults, ClearedFault(fault_key=fact.fault_key, source=fact.source, at=fact.observed_at)
        )
        return counted.but(cleared_faults=cleared, recovered_at=cleared_at(signals_of(incident), cleared))
    if not is_evidence(catalogue.look_up(fact.fault_key)):
        return counted
    before, recurrences = signals_of(incident), incident.recurrences
    recurrences = _updated_recurrences(
        recurrences,
        fact,
        affected or _affected_node_of(incident),
        incident.incident_id,
        histories or {},
        catalogue,
    )
    deadlines = [at for at in (incident.deadline_at, fact.deadline_at) if at]
    after = counted.but(
        deadline_at=min(deadlines, default=None),
        last_signal_at=max(incident.last_signal_at or fact.observed_at, fact.observed_at),
    )
    return _reassess(after, merge_signal(before, _signal(fact)), recurrences, catalogue)


def _reassess(
    incident: Incident, signals: tuple[Signal, ...], recurrences: Sequence[Recurrence], catalogue: FaultCatalogue
) -> Incident:
    assessment = assess(signals, recurrences, catalogue)
    return incident.but(
        signals=signals,
        recurrences=tuple(recurrences),
        fault_key=assessment.fault_key,
        severity=max(incident.severity, assessment.severity, key=lambda each: each.rank),
        min_rung=assessment.min_rung,
        min_rung_reason=assessment.min_rung_reason,
        sources=assessment.sources,
        independent_sources=assessment.independent_sources,
        first_signal_at=assessment.first_signal_at,
        recovered_at=cleared_at(signals, incident.cleared_faults),
    )


def _updated_recurrences(
    before: Sequence[Recurrence],
    fact: NodeFact,
    affected: AffectedNode,
    incident_id: str,
    histories: Mapping[str, FaultHistory],
    catalogue: FaultCatalogue,
) -> tuple[Recurrence, ...]:
    """Return the known recurrences and that of this fact. For each fault, keep the highest count."""
    found = find_recurrence(
        catalogue.look_up(fact.fault_key),
        fact,
        affected,
        [each for history_key, each in sorted(histories.items())],
        incident_id=incident_id,
    )
    if found is None:
        return tuple(before)
    highest = {each.fault_key: each for each in sorted((*before, found), key=lambda each: each.count)}
    return tuple(highest[key] for key in sorted(highest))


def _signal(fact: NodeFact) -> Signal:
    return Signal(
        fault_key=fact.fault_key,
        source=fact.source,
        gpu=fact.gpu,
        link=fact.link,
        first_at=fact.observed_at,
        last_at=fact.observed_at,
    )


def _affected_node_of(incident: Incident) -> AffectedNode:
    return AffectedNode(life=incident.life, slot=incident.slot, pool=incident.pool)


def rungs_of(incident: Incident, catalogue: FaultCatalogue | None = None) -> tuple[Rung, ...]:
    """Return the rungs of an incident in order: those of its fault, without the rungs below `min_rung`."""
    ladder = (catalogue or default_catalogue()).look_up(incident.fault_key).ladder
    if not incident.min_rung:
        return ladder
    min_rung = Rung(incident.min_rung)
    if min_rung is Rung.PAGE_HUMAN:
        return (min_rung,)
    stronger = tuple(rung for rung in ladder if rung.strength > min_rung.strength)
    return ladder[ladder.index(min_rung) :] if min_rung in ladder else (min_rung, *stronger)


def checkpoint_trust_of(incident: Incident, catalogue: FaultCatalogue) -> tuple[CheckpointTrust, datetime]:
    """Return how far checkpoints are trusted after an incident, and the time from which they are not."""
    return checkpoint_trust(signals_of(incident), catalogue)


def ladder_of(incident: Incident, catalogue: FaultCatalogue | None = None) -> tuple[str, ...]:
    """Return the rungs of an incident that act on the node itself, in order."""
    return tuple(rung for rung in rungs_of(incident, catalogue) if rung in NODE_RUNGS)
