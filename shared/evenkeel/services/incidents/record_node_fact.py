"""Record a fact about a known node: let it join or open an incident, and start the recovery.

one commit: FACT, OPEN#life, incident, evidence, timeline ─▶ start <incident>-r1, also for a duplicate
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.health.classification import ClassifiedFact
from evenkeel.domain.health.incidents import (
    AffectedNode,
    ClearedFault,
    Evidence,
    FactKind,
    Incident,
    IncidentState,
    NodeFact,
)
from evenkeel.domain.health.ingestion import IngestAction, IngestDecision, LastIncident, NodeHistory, decide_ingestion
from evenkeel.domain.health.recurrence import FaultHistory, history_keys
from evenkeel.domain.health.signal_sources import signal_source
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode, with_cleared_fault
from evenkeel.domain.values import Value, milliseconds
from evenkeel.events import driver_lines
from evenkeel.ports import (
    ConditionCheck,
    Delete,
    Ledger,
    Put,
    Row,
    Telemetry,
    WorkflowName,
    Workflows,
    Write,
)
from evenkeel.services.context import Context
from evenkeel.services.incidents import record_observed_aftermath
from evenkeel.services.storage import incident_store
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import incident_rows, rows

WRITER = "receive_event"


class FactOutcome(StrEnum):
    """Outcome of one fact."""

    UNRESOLVED = "UNRESOLVED"
    """No control plane lists the node yet. The fact is stored, and the sweep tries again."""
    OTHER_FLEET = "OTHER_FLEET"
    """The node belongs to another fleet."""
    NOTED = "NOTED"
    """The fact is about an instance group or a cluster, and is stored."""
    # The values of `IngestAction`, for facts about known nodes.
    OPEN = "OPEN"
    JOIN = "JOIN"
    DUPLICATE = "DUPLICATE"
    STALE = "STALE"
    EXPECTED = "EXPECTED"
    IGNORED = "IGNORED"


class IngestResult(Value):
    """The outcome for a fact, and its reason."""

    outcome: FactOutcome
    reason: str
    incident_id: str = ""
    has_started_recovery: bool = False
    """Whether this call started the recovery."""


def run(fact: NodeFact, affected_node: AffectedNode, context: Context) -> IngestResult:
    """Let a fact about a known node join or open an incident, and ensure that its recovery runs.

    Idempotent: yes, by the fact's row and the conditions of the commit.

    Raises:
        Conflict: other writers were first too often. The same call may soon succeed.
    """
    decision = until_committed(
        lambda: _try_to_ingest(fact, affected_node, context),
        f"the incident of {affected_node.life.key} kept changing under fact {fact.fact_key}",
        tries=incident_store.MAX_TRIES,
    )
    incident = decision.incident
    _emit_metrics(decision, fact, context.telemetry)
    has_started = False
    if incident is not None and incident.state is IncidentState.OPEN:
        has_started = start_recovery(incident, context.workflows)
    return IngestResult(
        outcome=FactOutcome(decision.action),
        reason=decision.reason,
        incident_id=incident.incident_id if incident else "",
        has_started_recovery=has_started,
    )


def start_recovery(incident: Incident, workflows: Workflows) -> bool:
    """Start the recovery of an incident. Return False if an execution of that name exists.

    Idempotent: yes, by the execution's name. If the name is taken and nothing runs, the sweep starts the next run.
    """
    document = {"schemaVersion": 1, "incidentId": incident.incident_id, "run": incident.run}
    return workflows.start(WorkflowName.RECOVER_NODE, incident.execution_name, document)


def _try_to_ingest(fact: NodeFact, affected_node: AffectedNode, context: Context) -> IngestDecision:
    """Load the rows, decide, and commit. Raises Conflict if a row changed since it was read."""
    now = context.clock.now()
    if fact.job_id:
        affected_node = affected_node.replace(job_ids=(fact.job_id,))
    classified_fact = ClassifiedFact.of(fact, affected_node, context.policy.catalogue)
    fact_rows = _read_fact_rows(classified_fact, affected_node, context.ledger)
    decision = decide_ingestion(
        classified_fact, fact_rows.to_node_history(), context.policy.catalogue, new_id=context.ids.new("inc"), now=now
    )
    writes = [*_ingestion_writes(decision, classified_fact, affected_node, fact_rows, context, now)]
    for key, history in decision.histories.items():
        version = _row_version(fact_rows.histories[key])
        writes.append(Put(incident_rows.history_row(key, history, version, now, is_drill=fact.is_drill)))
    if decision.action is IngestAction.OPEN and decision.incident:
        writes.append(Put(incident_rows.slot_row(decision.incident, _row_version(fact_rows.slot), now)))
    if fact_rows.unresolved is not None:
        writes.append(Delete(fact_rows.unresolved.key, fact_rows.unresolved.version))
    if writes:
        context.ledger.commit(*writes)
    return decision


class _FactRows(NamedTuple):
    """The rows that decide what happens to a fact. A row that does not exist is None."""

    fact: Row | None
    """An earlier copy of the fact."""
    last_incident: Row | None
    """The last incident of the node life."""
    pointer: Row | None
    """The row that names the open incident of the node life."""
    unresolved: Row | None
    """The fact, stored while its node was unknown."""
    slot: Row | None
    """The row that names the last incident of the node slot."""
    incident: Row | None
    """The open incident."""
    histories: Mapping[str, Row | None]
    """Node slot, job or instance group → its earlier faults."""

    def to_node_history(self) -> NodeHistory:
        """Return the content of the rows, for the decision."""
        return NodeHistory(
            known_incident_id=self.fact.doc["incidentId"] if self.fact else "",
            last_incident=rows.decode(self.last_incident, LastIncident) if self.last_incident else None,
            open_incident=rows.decode(self.incident, Incident) if self.incident else None,
            histories={key: rows.decode(row, FaultHistory) for key, row in self.histories.items() if row},
        )


def _read_fact_rows(classified_fact: ClassifiedFact, affected_node: AffectedNode, ledger: Ledger) -> _FactRows:
    fact, is_drill = classified_fact.fact, classified_fact.fact.is_drill
    keys = history_keys(classified_fact.fault, affected_node) if fact.kind is FactKind.FAULT else ()
    fact_row, last_row, pointer, unresolved_row, slot_row, *histories = ledger.batch_get(
        incident_rows.fact_key(fact.fact_key),
        incident_rows.last_key(affected_node.life, is_drill=is_drill),
        incident_rows.open_key(affected_node.life, is_drill=is_drill),
        incident_rows.unresolved_key(fact.fact_key),
        incident_rows.slot_key(affected_node.slot, is_drill=is_drill),
        *(incident_rows.history_key(key, is_drill=is_drill) for key in keys),
    )
    incident = ledger.get(incident_rows.incident_key(pointer.doc["incidentId"])) if pointer else None
    return _FactRows(
        fact_row, last_row, pointer, unresolved_row, slot_row, incident, dict(zip(keys, histories, strict=True))
    )


def _ingestion_writes(
    decision: IngestDecision,
    classified_fact: ClassifiedFact,
    affected_node: AffectedNode,
    fact_rows: _FactRows,
    context: Context,
    now: datetime,
) -> Iterator[Write]:
    fact = classified_fact.fact
    match decision.action:
        case IngestAction.EXPECTED if decision.incident:
            yield Put(
                incident_rows.fact_row(fact.fact_key, decision.incident.incident_id, now, _row_version(fact_rows.fact))
            )
        case IngestAction.IGNORED if fact.kind is FactKind.RECOVERED and not fact.is_drill:
            yield from _clear_unhealthy_node(fact, affected_node, context)
            if fact_rows.last_incident is not None:
                yield from record_observed_aftermath.aftermath_writes_for_fact(
                    fact, fact_rows.last_incident.doc["incidentId"], context
                )
        case IngestAction.JOIN:
            assert decision.incident
            yield from _joining_writes(decision.incident, classified_fact, fact_rows, now)
        case IngestAction.OPEN:
            assert decision.incident
            yield from _opening_writes(decision.incident, classified_fact, fact_rows, now)
            # The rows are read at different times. An incident settled between two reads would otherwise seem missing.
            yield ConditionCheck(
                incident_rows.last_key(affected_node.life, is_drill=fact.is_drill),
                _row_version(fact_rows.last_incident),
            )


def _clear_unhealthy_node(fact: NodeFact, affected_node: AffectedNode, context: Context) -> list[Write]:
    """Record that a fault of an unhealthy node is gone. Delete the node's row once all its faults are gone."""
    row = context.ledger.get(incident_rows.unhealthy_key(affected_node.life))
    if row is None:
        return []
    node = rows.decode(row, UnhealthyNode)
    if node.trusted_by:
        return []
    incident, _ = incident_store.load_incident(context.ledger, node.incident_id)
    cleared_fault = ClearedFault(fault_key=fact.fault_key, source=fact.source, at=fact.observed_at)
    node_after = with_cleared_fault(node, incident, cleared_fault, context.policy.catalogue)
    return [Put(incident_rows.unhealthy_row(node_after, row.version)) if node_after else Delete(row.key, row.version)]


def _opening_writes(
    incident: Incident, classified_fact: ClassifiedFact, fact_rows: _FactRows, now: datetime
) -> Iterator[Write]:
    """Yield the writes of a fact that opens an incident."""
    yield from _fact_writes(incident, classified_fact, fact_rows, opens=True, now=now)
    # The first writer creates the pointer, and all others check it. So two writers cannot both open an incident.
    yield Put(
        incident_rows.open_row(incident.life, incident.incident_id, is_drill=incident.is_drill),
        first_version=milliseconds(now),
    )
    yield Put(incident_rows.incident_row(incident, 0))


def _joining_writes(
    incident: Incident, classified_fact: ClassifiedFact, fact_rows: _FactRows, now: datetime
) -> Iterator[Write]:
    """Yield the writes of a fact that joins the open incident."""
    assert fact_rows.pointer
    assert fact_rows.incident
    yield from _fact_writes(incident, classified_fact, fact_rows, opens=False, now=now)
    yield ConditionCheck(fact_rows.pointer.key, fact_rows.pointer.version)
    yield Put(incident_rows.incident_row(incident, fact_rows.incident.version))


def _fact_writes(
    incident: Incident, classified_fact: ClassifiedFact, fact_rows: _FactRows, *, opens: bool, now: datetime
) -> Iterator[Write]:
    """Yield the fact as recorded by the incident, as its evidence, and as an entry of its timeline."""
    fact, incident_id = classified_fact.fact, incident.incident_id
    evidence = Evidence(incident_id=incident_id, fact=fact, joined_at=now, opened=opens)
    evidence_row = incident_rows.evidence_row(evidence)
    text = _timeline_text(classified_fact, opens=opens)
    entry = incident_store.timeline_row_of(incident_id, _TIMELINE_KINDS[fact.kind], text, at=now, writer=WRITER)
    key = entry.key._replace(sk=f"EVENT#{evidence_row.key.sk.removeprefix('EVIDENCE#')}")
    yield Put(incident_rows.fact_row(fact.fact_key, incident_id, now, _row_version(fact_rows.fact)))
    yield Put(evidence_row)
    yield Put(Row(key, entry.doc, 0, None, entry.expires_at))


_TIMELINE_KINDS = {FactKind.FAULT: "fault", FactKind.RECOVERED: "recovered", FactKind.PROGRESS: "progress"}


def _timeline_text(classified_fact: ClassifiedFact, *, opens: bool) -> str:
    fact, fault = classified_fact.fact, classified_fact.fault
    source = signal_source(fact.source).text
    if fact.kind is FactKind.RECOVERED:
        return f"Healthy again, reported by {source}."
    if fact.kind is FactKind.PROGRESS:
        return f"{fact.instance_id}: {fact.code.replace('_', ' ')}, reported by {source}."
    code = f", {fact.code}" if fact.code and fact.code not in fault.key else ""
    prefix = "" if opens else "Also: "
    drill = " This is a drill." if fact.is_drill and opens else ""
    return f"{prefix}{fault.name} ({fault.key}{code}), reported by {source}.{drill}"


_FACT_METRICS = {
    IngestAction.OPEN: "FactsOpened",
    IngestAction.JOIN: "FactsJoined",
    IngestAction.DUPLICATE: "FactsDuplicate",
    IngestAction.STALE: "FactsStale",
    IngestAction.EXPECTED: "FactsExpected",
    IngestAction.IGNORED: "FactsIgnored",
}


def _emit_metrics(decision: IngestDecision, fact: NodeFact, telemetry: Telemetry) -> None:
    incident = decision.incident
    # A site may have many detectors. The metric counts them as one.
    source = fact.source.partition(":")[0]
    telemetry.count(_FACT_METRICS[decision.action], source=source)
    if fact.code == driver_lines.UNPARSED and decision.action in (IngestAction.OPEN, IngestAction.JOIN):
        telemetry.count("XidsUnparsed", source=source)
        telemetry.warning("XidUnparsed", instanceId=fact.instance_id, source=fact.source, line=fact.detail)
    if decision.action is IngestAction.OPEN and incident:
        telemetry.count("IncidentsOpened", severity=incident.severity, drill=str(incident.is_drill).lower())
        telemetry.info(
            "IncidentOpened",
            incidentId=incident.incident_id,
            nodeLife=incident.life.key,
            fault=incident.fault_key,
            isDrill=incident.is_drill,
        )


def _row_version(row: Row | None) -> int:
    return row.version if row else 0
