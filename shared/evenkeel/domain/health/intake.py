"""What a new fact about a node means: it opens an incident, joins the open one, or is old news.

fact ──▶ known copy? ──▶ about a life that is over, or before its last return to service? ──▶ open incident?
DUPLICATE                         STALE                                         JOIN / OPEN / IGNORED
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
"""Event times are cut to whole seconds, so a fault may seem up to this much older than it is."""
_MAX_PROGRESS = 10
_MAX_BURST = timedelta(hours=3)
"""So long a code that is said again and again is one."""
NOT_READY = "node:not_ready"


class IntakeAction(StrEnum):
    """What to do with a fact."""

    OPEN = "OPEN"
    JOIN = "JOIN"
    DUPLICATE = "DUPLICATE"
    """A copy of a fact that is already recorded."""
    STALE = "STALE"
    """News of what is over: an earlier life, or before the node was last returned to service."""
    EXPECTED = "EXPECTED"
    """What a repair of ours does to the machine: remembered, and no evidence."""
    IGNORED = "IGNORED"
    """Without an open incident: a healthy-again signal, news of a repair, or the mere trace of another fault."""


class LastIncident(Value):
    """How the last settled incident of a life left it: the line that old news does not cross."""

    incident_id: str
    returned_at: Instant | None = None
    """When the machine was found valid again; None where it was not."""
    returned_by: str = ""
    """The incident that it was found valid in, this one or one before it; empty = this one."""
    is_replaced: bool = False
    """The machine was replaced: nothing that is said of it matters any more."""


class IntakeDecision(Value):
    """What to do with a fact, and why."""

    action: IntakeAction
    reason: str
    incident: Incident | None = None
    """The incident as it is to be stored, where one opens or is joined; the open one where the copy is known."""
    histories: dict[str, FaultHistory] = {}
    """What is to be remembered with it, by place."""


def join_or_open(
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
    """Decide what a fact means.

    Drills and real facts are kept apart: `known_as`, `last`, `current` and `histories` are of the fact's own kind.

    Args:
        fact: The fact.
        affected: The machine it is about.
        known_incident_id: Incident that this very fact joined before; empty where it is new.
        last: How the last settled incident of this life ended.
        current: The open incident of this life.
        new_id: Id for a new incident.
        now: The time.
        histories: What is remembered at each of the fault's `places`.
        catalogue: The faults as the site has them; None = as shipped.
    """
    catalogue, histories = catalogue or default_catalogue(), histories or {}
    if current is not None and current.is_drill is not fact.is_drill:
        current = None
    if last and last.is_replaced:
        return IntakeDecision(action=IntakeAction.STALE, reason=f"{last.incident_id} replaced the node.")
    returned_at = last.returned_at if last else None
    happened_after = returned_at is None or fact.observed_at + _SOURCE_RESOLUTION > returned_at
    # While a person owns the node, facts already recorded by that incident are duplicates.
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
        reason = f"{fault.name}: alone it is no evidence about the node, and no incident is open."
        return IntakeDecision(action=IntakeAction.IGNORED, reason=reason)
    same = _watched_occurrence(fact, fault, affected, returned_at, histories)
    if same is not None:
        return IntakeDecision(
            action=IntakeAction.IGNORED,
            reason=f"{fault.name}: part of the burst that {same.incident_id} recorded.",
            histories=_updated_histories(fact, affected, same.incident_id, histories, catalogue),
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
    """Whether a machine is down because it is being repaired: since the call, until it was seen to be back."""
    asked_at, back_at = incident.stages.repair_requested_at, incident.stages.node_back_at
    if fact.fault_key != NOT_READY or asked_at is None or not incident.repairs:
        return False
    return fact.observed_at + _SOURCE_RESOLUTION > asked_at and (back_at is None or fact.observed_at <= back_at)


def _watched_occurrence(
    fact: NodeFact,
    fault: Fault,
    affected: AffectedNode,
    returned_at: datetime | None,
    histories: Mapping[str, FaultHistory],
) -> FaultOccurrence | None:
    """Return the occurrence that already tells all that a signal of a watched fault says; None where it says more.

    A sticky code may be said each minute for hours. It is one incident and one occurrence, until there is silence, or
    another witness, or it has gone on for so long that it counts anew.
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
    """Return the histories that change."""
    fault = catalogue.look_up(fact.fault_key)
    if fact.kind is not FactKind.SICKENED or not is_evidence(fault):
        return {}
    at = {place: histories.get(place, FaultHistory()) for place in history_keys(fault, affected)}
    after = {place: with_occurrence(history, fact, affected, incident_id) for place, history in at.items()}
    return {place: history for place, history in after.items() if history != at[place]}


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
    """Return a new incident with its first signal, and with those of an earlier one that may still bear witness."""
    ours = Incident(
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
    repeated = _updated_recurrences((), fact, affected, incident_id, histories, catalogue)
    return _reassess(ours, merge_signal(signals, _signal(fact)), repeated, catalogue)


def _recent_signals(
    fact: NodeFact, affected: AffectedNode, returned_at: datetime | None, histories: Mapping[str, FaultHistory]
) -> list[Signal]:
    """Return the signals of this life's last minutes whose incident is settled already, with nothing done."""
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
    """Return an incident with one more signal, judged anew. In whatever order signals join, they come to the same.

    A drill never joins a real incident, nor a real fact a drill's: such an incident stays as it is.
    """
    if fact.is_drill is not incident.is_drill:
        return incident
    catalogue = catalogue or default_catalogue()
    counted = incident.but(evidence_count=incident.evidence_count + 1)
    if fact.kind is FactKind.PROGRESS:
        latest = RepairProgress(code=fact.code, at=fact.observed_at, instance_id=fact.instance_id, message=fact.detail)
        return counted.but(progress=sorted((*incident.progress, latest), key=lambda each: each.at)[-_MAX_PROGRESS:])
    if fact.kind is FactKind.RECOVERED:
        cures = add_cleared_fault(
            incident.cleared_faults, ClearedFault(fault_key=fact.fault_key, source=fact.source, at=fact.observed_at)
        )
        return counted.but(cleared_faults=cures, recovered_at=cleared_at(signals_of(incident), cures))
    if not is_evidence(catalogue.look_up(fact.fault_key)):
        return counted
    before, repeated = signals_of(incident), incident.recurrences
    repeated = _updated_recurrences(
        repeated,
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
    return _reassess(after, merge_signal(before, _signal(fact)), repeated, catalogue)


def _reassess(
    incident: Incident, signals: tuple[Signal, ...], repeated: Sequence[Recurrence], catalogue: FaultCatalogue
) -> Incident:
    found = assess(signals, repeated, catalogue)
    return incident.but(
        signals=signals,
        recurrences=tuple(repeated),
        fault_key=found.fault_key,
        severity=max(incident.severity, found.severity, key=lambda each: each.rank),
        min_rung=found.min_rung,
        min_rung_reason=found.min_rung_reason,
        sources=found.sources,
        independent_sources=found.independent_sources,
        first_signal_at=found.first_signal_at,
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
    """Return the known recurrences with that of this fact; of one fault the highest count stands."""
    found = find_recurrence(
        catalogue.look_up(fact.fault_key),
        fact,
        affected,
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


def _affected_node_of(incident: Incident) -> AffectedNode:
    return AffectedNode(life=incident.life, slot=incident.slot, pool=incident.pool)


def rungs_of(incident: Incident, catalogue: FaultCatalogue | None = None) -> tuple[Rung, ...]:
    """Return the rungs of an incident, in order: its fault's, without those gentler than what is asked for."""
    ladder = (catalogue or default_catalogue()).look_up(incident.fault_key).ladder
    if not incident.min_rung:
        return ladder
    asked = Rung(incident.min_rung)
    if asked is Rung.PAGE_HUMAN:
        return (asked,)
    stronger = tuple(rung for rung in ladder if rung.strength > asked.strength)
    return ladder[ladder.index(asked) :] if asked in ladder else (asked, *stronger)


def checkpoint_trust_of(incident: Incident, catalogue: FaultCatalogue) -> tuple[CheckpointTrust, datetime]:
    """Return how far checkpoints are trusted after an incident, and from which signal on they are not."""
    return checkpoint_trust(signals_of(incident), catalogue)


def ladder_of(incident: Incident, catalogue: FaultCatalogue | None = None) -> tuple[str, ...]:
    """Return the rungs of an incident that touch the machine, in order."""
    return tuple(rung for rung in rungs_of(incident, catalogue) if rung in NODE_RUNGS)
