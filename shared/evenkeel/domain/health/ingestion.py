"""Decide what a new fact about a node does: open an incident, join the open incident, or neither.

fact ─▶ already recorded? ─▶ node replaced, or returned to service since? ─▶ caused by a repair? ─▶ open incident?
        DUPLICATE            STALE                                           EXPECTED               JOIN, OPEN, IGNORED
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.health.classification import ClassifiedFact
from evenkeel.domain.health.faults import FaultCatalogue, Rung
from evenkeel.domain.health.incident_updates import (
    counted_incident_id,
    is_new_since_return,
    open_incident,
    with_fact,
    with_next_incident_id,
)
from evenkeel.domain.health.incidents import FactKind, Incident, NodeFact
from evenkeel.domain.health.recurrence import (
    SERIES_GAP,
    FaultHistory,
    FaultOccurrence,
    history_keys,
    slot_history_key,
    with_occurrence,
)
from evenkeel.domain.values import Instant, Value

_SOURCE_RESOLUTION = timedelta(seconds=1)
"""Sources truncate event times to whole seconds, so a fault may be up to this much newer than its recorded time."""
_MAX_SERIES = timedelta(hours=3)
"""A code that only counts (`Rung.WATCH`) counts again after this time, if it is reported without a pause."""
NOT_READY = "node:not_ready"


class IngestAction(StrEnum):
    """Effect of a new fact on the incidents of its node."""

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


class IngestDecision(Value):
    """Effect of a new fact, with its reason."""

    action: IngestAction
    reason: str
    incident: Incident | None = None
    """For OPEN and JOIN, the incident to store. For DUPLICATE and EXPECTED, the open incident, if there is one."""
    histories: dict[str, FaultHistory] = {}
    """The changed fault histories to store, by history key."""


class NodeHistory(Value):
    """The stored incidents and faults of a fact's node. A drill's fact gets only drills, a real fact none."""

    known_incident_id: str = ""
    """Incident that recorded this fact before; empty if the fact is new."""
    last_incident: LastIncident | None = None
    """How the last settled incident of this node life ended."""
    open_incident: Incident | None = None
    """The open incident of this node life."""
    histories: dict[str, FaultHistory] = {}
    """The fault history of each of the fault's `history_keys`."""


def decide_ingestion(
    classified_fact: ClassifiedFact, node_history: NodeHistory, catalogue: FaultCatalogue, *, new_id: str, now: datetime
) -> IngestDecision:
    """Decide whether a fact opens an incident, joins the open incident, or changes no incident.

    Args:
        classified_fact: The fact, its node and its fault.
        node_history: The stored incidents and faults of the node.
        catalogue: The faults with the site's overrides, for the other signals of the incident.
        new_id: Id for a new incident, or for the next one of a node that failed again after its return.
        now: The current time.
    """
    fact, last_incident, incident = classified_fact.fact, node_history.last_incident, node_history.open_incident
    if incident is not None and incident.is_drill is not fact.is_drill:
        incident = None
    decision = _decide_duplicate_or_stale(classified_fact, node_history.known_incident_id, last_incident, incident)
    if decision is not None:
        return decision
    if incident is not None and _is_caused_by_repair(fact, incident):
        reason = f"The repair by {incident.incident_id} takes the node down, so this is expected."
        return IngestDecision(action=IngestAction.EXPECTED, reason=reason, incident=incident)
    if incident is not None:
        if classified_fact.is_evidence:
            incident = with_next_incident_id(incident, fact, new_id)
        return IngestDecision(
            action=IngestAction.JOIN,
            reason=f"The report joins {incident.incident_id}, which is open for the node.",
            incident=with_fact(incident, classified_fact, node_history.histories, catalogue),
            histories=_updated_histories(classified_fact, counted_incident_id(incident, fact), node_history.histories),
        )
    return _decide_without_open_incident(classified_fact, node_history, catalogue, new_id=new_id, now=now)


def _decide_duplicate_or_stale(
    classified_fact: ClassifiedFact, known_id: str, last_incident: LastIncident | None, incident: Incident | None
) -> IngestDecision | None:
    """Return the decision if the fact is already recorded or is older than the node's return; None otherwise."""
    fact = classified_fact.fact
    if last_incident and last_incident.is_replaced:
        return IngestDecision(action=IngestAction.STALE, reason=f"{last_incident.incident_id} replaced the node.")
    returned_at = last_incident.returned_at if last_incident else None
    is_older = returned_at is not None and fact.observed_at + _SOURCE_RESOLUTION <= returned_at
    # A fact key covers a minute. A fact with a known key is still new if it happened after that incident returned the
    # node to service. While a person owns the node, it has not returned, so every recorded fact is a duplicate.
    returned_by = (last_incident.returned_by or last_incident.incident_id) if last_incident else ""
    is_new = known_id == returned_by and returned_at is not None and fact.observed_at > returned_at
    if incident is not None and known_id == incident.incident_id:  # the node may be back while its jobs still wait
        is_new = classified_fact.is_evidence and is_new_since_return(incident, fact)
    if known_id and not is_new:
        is_current = incident is not None and incident.incident_id == known_id
        reason = f"{known_id} already recorded this report."
        return IngestDecision(action=IngestAction.DUPLICATE, reason=reason, incident=incident if is_current else None)
    if is_older:
        assert last_incident
        return IngestDecision(
            action=IngestAction.STALE,
            reason=f"The report is older than the node's return to service after {last_incident.incident_id}.",
        )
    return None


def _decide_without_open_incident(
    classified_fact: ClassifiedFact, node_history: NodeHistory, catalogue: FaultCatalogue, *, new_id: str, now: datetime
) -> IngestDecision:
    """Decide whether a new fact about a node without an open incident opens one."""
    fact, last_incident = classified_fact.fact, node_history.last_incident
    returned_at = last_incident.returned_at if last_incident else None
    if fact.kind is FactKind.RECOVERED:
        return IngestDecision(action=IngestAction.IGNORED, reason="The node is healthy and has no open incident.")
    if fact.kind is FactKind.PROGRESS:
        return IngestDecision(
            action=IngestAction.IGNORED, reason="Repair progress for a node without an open incident."
        )
    if not classified_fact.is_evidence:
        reason = f"{classified_fact.fault.name} alone does not prove a node fault, and the node has no open incident."
        return IngestDecision(action=IngestAction.IGNORED, reason=reason)
    occurrence = _repeated_occurrence(classified_fact, returned_at, node_history.histories)
    if occurrence is not None:
        return IngestDecision(
            action=IngestAction.IGNORED,
            reason=f"{classified_fact.fault.name}: an earlier incident of the node already recorded these reports.",
            histories=_updated_histories(classified_fact, occurrence.incident_id, node_history.histories),
        )
    return IngestDecision(
        action=IngestAction.OPEN,
        reason="The first report of this fault.",
        incident=open_incident(
            classified_fact, node_history.histories, catalogue, incident_id=new_id, now=now, returned_at=returned_at
        ),
        histories=_updated_histories(classified_fact, new_id, node_history.histories),
    )


def _is_caused_by_repair(fact: NodeFact, incident: Incident) -> bool:
    """Whether the node is NotReady because of Evenkeel's repair: between the request and the node's return."""
    requested_at, back_at = incident.stages.repair_requested_at, incident.stages.node_back_at
    if fact.fault_key != NOT_READY or requested_at is None or not incident.repairs:
        return False
    return fact.observed_at + _SOURCE_RESOLUTION > requested_at and (back_at is None or fact.observed_at <= back_at)


def _repeated_occurrence(
    classified_fact: ClassifiedFact, returned_at: datetime | None, histories: Mapping[str, FaultHistory]
) -> FaultOccurrence | None:
    """Return the recorded occurrence that a signal repeats, if its fault only counts; None for new evidence.

    A source may report a code every minute for hours. These reports are one incident and one occurrence until the
    source pauses, another source reports the code, or three hours have passed.
    """
    fact, affected_node, fault = classified_fact
    if fault.ladder[0] is not Rung.WATCH:
        return None
    history = histories.get(slot_history_key(affected_node.slot), FaultHistory())
    return next(
        (
            occurrence
            for occurrence in history.occurrences
            if occurrence.life_key == affected_node.life.key
            and (occurrence.fault_key, occurrence.gpu, occurrence.link) == (fact.fault_key, fact.gpu, fact.link)
            and fact.source in occurrence.sources
            and occurrence.first_at - SERIES_GAP <= fact.observed_at <= occurrence.last_at + SERIES_GAP
            and fact.observed_at <= occurrence.first_at + _MAX_SERIES
            and {*affected_node.job_ids} <= {*occurrence.jobs}
            and (returned_at is None or occurrence.last_at > returned_at)
        ),
        None,
    )


def _updated_histories(
    classified_fact: ClassifiedFact, incident_id: str, histories: Mapping[str, FaultHistory]
) -> dict[str, FaultHistory]:
    """Return the fault histories that the fact changes, by history key."""
    if not classified_fact.is_evidence:
        return {}
    fact, affected_node, fault = classified_fact
    stored_histories = {key: histories.get(key, FaultHistory()) for key in history_keys(fault, affected_node)}
    new_histories = {
        key: with_occurrence(history, fact, affected_node, incident_id) for key, history in stored_histories.items()
    }
    return {key: history for key, history in new_histories.items() if history != stored_histories[key]}
