"""Put facts into incidents: open an incident with its first fact, or add one more fact to an open incident.

The order of the facts does not matter: each fact leads to a new assessment of all signals.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from evenkeel.domain.health.assessment import (
    CORROBORATION,
    add_cleared_fault,
    assess,
    cleared_at,
    has_same_subject,
    merge_signal,
    signals_of,
    signals_to_clear,
)
from evenkeel.domain.health.classification import ClassifiedFact
from evenkeel.domain.health.faults import FaultCatalogue, Severity
from evenkeel.domain.health.incidents import (
    AffectedNode,
    ClearedFault,
    FactKind,
    Incident,
    IncidentState,
    NodeBranchResult,
    NodeFact,
    Recurrence,
    RepairProgress,
    Signal,
    StageTimes,
)
from evenkeel.domain.health.recurrence import FaultHistory, find_recurrence, slot_history_key

_MAX_PROGRESS = 10


def open_incident(
    classified_fact: ClassifiedFact,
    histories: Mapping[str, FaultHistory],
    catalogue: FaultCatalogue,
    *,
    incident_id: str,
    now: datetime,
    returned_at: datetime | None,
) -> Incident:
    """Return a new incident with its first signal, and with recent signals that may still corroborate it."""
    fact, affected_node, fault = classified_fact
    incident = Incident(
        incident_id=incident_id,
        life=affected_node.life,
        slot=affected_node.slot,
        node_name=affected_node.node_name,
        pool=affected_node.pool,
        instance_type=affected_node.instance_type,
        boot_id=affected_node.boot_id,
        state=IncidentState.OPEN,
        severity=fault.severity,
        fault_key=fact.fault_key,
        first_signal_at=fact.observed_at,
        last_signal_at=fact.observed_at,
        deadline_at=fact.deadline_at,
        opened_at=now,
        is_drill=fact.is_drill,
        stages=StageTimes(detected_at=now),
    )
    signals: tuple[Signal, ...] = ()
    for signal in _corroborating_signals(fact, affected_node, returned_at, histories):
        signals = merge_signal(signals, signal)
    recurrences = _updated_recurrences((), classified_fact, incident_id, histories)
    return _reassess(incident, merge_signal(signals, _signal_of_fact(fact)), recurrences, catalogue)


def _corroborating_signals(
    fact: NodeFact, affected_node: AffectedNode, returned_at: datetime | None, histories: Mapping[str, FaultHistory]
) -> list[Signal]:
    """Return the signals of settled incidents of this node life that may still corroborate the fact.

    They are within `CORROBORATION` of the fact and newer than the node's last return to service.
    """
    history = histories.get(slot_history_key(affected_node.slot), FaultHistory())
    return [
        Signal(
            fault_key=occurrence.fault_key,
            source=source,
            gpu=occurrence.gpu,
            link=occurrence.link,
            first_at=occurrence.first_at,
            last_at=occurrence.last_at,
        )
        for occurrence in history.occurrences
        for source in occurrence.sources
        if occurrence.life_key == affected_node.life.key
        and abs(fact.observed_at - occurrence.last_at) <= CORROBORATION
        and (returned_at is None or occurrence.last_at > returned_at)
    ]


def with_fact(
    incident: Incident,
    classified_fact: ClassifiedFact,
    histories: Mapping[str, FaultHistory],
    catalogue: FaultCatalogue,
) -> Incident:
    """Return an incident with one more fact, assessed again. The order of the facts does not matter.

    A drill's fact never changes a real incident, nor a real fact a drill's incident.
    """
    fact = classified_fact.fact
    if fact.is_drill is not incident.is_drill:
        return incident
    updated_incident = incident.replace(evidence_count=incident.evidence_count + 1)
    if fact.kind is FactKind.PROGRESS:
        latest_progress = RepairProgress(
            code=fact.code, at=fact.observed_at, instance_id=fact.instance_id, message=fact.detail
        )
        return updated_incident.replace(
            progress=sorted((*incident.progress, latest_progress), key=lambda progress: progress.at)[-_MAX_PROGRESS:]
        )
    if fact.kind is FactKind.RECOVERED:
        cleared_faults = add_cleared_fault(
            incident.cleared_faults, ClearedFault(fault_key=fact.fault_key, source=fact.source, at=fact.observed_at)
        )
        signals = signals_to_clear(signals_of(incident), catalogue)
        return updated_incident.replace(cleared_faults=cleared_faults, recovered_at=cleared_at(signals, cleared_faults))
    if not classified_fact.is_evidence:
        return updated_incident
    counted_id = counted_incident_id(incident, fact)
    recurrences = _updated_recurrences(incident.recurrences, classified_fact, counted_id, histories)
    deadlines = [at for at in (incident.deadline_at, fact.deadline_at) if at]
    updated_incident = updated_incident.replace(
        deadline_at=min(deadlines, default=None),
        last_signal_at=max(incident.last_signal_at or fact.observed_at, fact.observed_at),
    )
    return _reassess(
        updated_incident, merge_signal(signals_of(incident), _signal_of_fact(fact)), recurrences, catalogue
    )


def with_next_incident_id(incident: Incident, fact: NodeFact, new_id: str) -> Incident:
    """Return the incident with the id of the next one if the fact is from after the node's return to service."""
    if incident.next_incident_id or not _is_after_return(incident, fact):
        return incident
    return incident.replace(next_incident_id=new_id)


def counted_incident_id(incident: Incident, fact: NodeFact) -> str:
    """Return the incident under which a fault counts: the next one if the node returned to service before the fault."""
    return (_is_after_return(incident, fact) and incident.next_incident_id) or incident.incident_id


def is_new_since_return(incident: Incident, fact: NodeFact) -> bool:
    """Return whether a fault is from after the node's return, and later than each signal of the same fault.

    So a copy of it is not new.
    """
    return _is_after_return(incident, fact) and not any(
        signal.last_at >= fact.observed_at
        for signal in signals_of(incident)
        if has_same_subject(signal, _signal_of_fact(fact))
    )


def _is_after_return(incident: Incident, fact: NodeFact) -> bool:
    validated_at = incident.stages.validated_at
    return validated_at is not None and not incident.replacement_instance_id and fact.observed_at > validated_at


def has_failed_after_return(incident: Incident, catalogue: FaultCatalogue) -> bool:
    """Whether a fault that needs a repair was reported after the node returned to service, and is not gone."""
    validated_at = incident.stages.validated_at
    if incident.node_branch != NodeBranchResult.RETURNED or validated_at is None or incident.replacement_instance_id:
        return False
    later_faults = [catalogue.look_up(signal.fault_key) for signal in _signals_since(incident, validated_at)]
    return not incident.has_recovered and any(fault.repairs_node and fault.acts_alone for fault in later_faults)


def _signals_since(incident: Incident, validated_at: datetime) -> tuple[Signal, ...]:
    """Return the signals that were reported after the node passed its validation, as if they began after it."""
    return tuple(
        signal.replace(first_at=max(signal.first_at, validated_at))
        for signal in signals_of(incident)
        if signal.last_at > validated_at
    )


def continued_incident(incident: Incident, *, incident_id: str, now: datetime) -> Incident:
    """Return the next incident of a node: with the evidence of the last one, and nothing of its recovery."""
    return incident.replace(
        incident_id=incident_id,
        state=IncidentState.OPEN,
        run=1,
        opened_at=now,
        resumes=incident.incident_id,
        next_incident_id="",
        plan=None,
        approval=None,
        mode="",
        block=None,
        affected_jobs=(),
        unmanaged_workloads=(),
        unmanaged_jobs={},
        failed_evictions={},
        repairs=(),
        replacement_instance_id="",
        progress=(),
        check=None,
        invalid_at=None,
        cordon_marked_at=None,
        failed_at=None,
        node_branch="",
        paged_at=None,
        outcome="",
        stages=StageTimes(detected_at=now),
    )


def incident_after_return(
    incident: Incident, catalogue: FaultCatalogue, *, incident_id: str, now: datetime
) -> Incident:
    """Return the next incident of a node that failed again after it returned to service.

    The recovery was still open because of its jobs, so the signals joined it, and no step of it reacts to them. The
    next incident has these signals, and the jobs.
    """
    validated_at = incident.stages.validated_at
    assert validated_at
    signals = _signals_since(incident, validated_at)
    next_incident = continued_incident(incident, incident_id=incident_id, now=now).replace(
        boot_id="",
        severity=Severity.INFO,
        evidence_count=len(signals),
        acknowledgement=None,
        resumed=0,
        affected_jobs=incident.affected_jobs,
    )
    return _reassess(next_incident, signals, incident.recurrences, catalogue)


def _reassess(
    incident: Incident, signals: tuple[Signal, ...], recurrences: Sequence[Recurrence], catalogue: FaultCatalogue
) -> Incident:
    assessment = assess(signals, recurrences, catalogue)
    return incident.replace(
        signals=signals,
        recurrences=tuple(recurrences),
        fault_key=assessment.fault_key,
        severity=max(incident.severity, assessment.severity, key=lambda severity: severity.rank),
        min_rung=assessment.min_rung,
        min_rung_reason=assessment.min_rung_reason,
        sources=assessment.sources,
        independent_sources=assessment.independent_sources,
        first_signal_at=assessment.first_signal_at,
        recovered_at=cleared_at(signals_to_clear(signals, catalogue), incident.cleared_faults),
    )


def _updated_recurrences(
    earlier_recurrences: Sequence[Recurrence],
    classified_fact: ClassifiedFact,
    incident_id: str,
    histories: Mapping[str, FaultHistory],
) -> tuple[Recurrence, ...]:
    """Return the known recurrences and the recurrence of this fact. For each fault, keep the highest count."""
    sorted_histories = [history for history_key, history in sorted(histories.items())]
    new_recurrence = find_recurrence(classified_fact, sorted_histories, incident_id=incident_id)
    if new_recurrence is None:
        return tuple(earlier_recurrences)
    highest_by_key = {
        recurrence.fault_key: recurrence
        for recurrence in sorted((*earlier_recurrences, new_recurrence), key=lambda recurrence: recurrence.count)
    }
    return tuple(highest_by_key[key] for key in sorted(highest_by_key))


def _signal_of_fact(fact: NodeFact) -> Signal:
    return Signal(
        fault_key=fact.fault_key,
        source=fact.source,
        gpu=fact.gpu,
        link=fact.link,
        first_at=fact.observed_at,
        last_at=fact.observed_at,
    )
