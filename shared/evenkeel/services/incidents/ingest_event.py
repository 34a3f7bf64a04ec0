"""Ingest facts about nodes: find the node, add the fact to its incident or open one, and start the recovery.

An event may carry several facts. Each fact has its own row and is ingested separately, so a partly ingested event is
simply ingested again. `entry.event` archives the raw event.

    fact ─▶ find the node ─▶ one commit: FACT, OPEN#life, incident, evidence, timeline ─▶ start <incident>-r1
              │ unknown                                                                     ▲
              ├─▶ UNRESOLVED row ─▶ the sweep tries again              a duplicate starts it again
              └─▶ counted and dropped, if the source also reports nodes of other fleets
"""

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from evenkeel.domain.health.classification import ClassifiedFact
from evenkeel.domain.health.groups import GroupFact
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
from evenkeel.domain.nodes import FleetNode, Node, NodeLife
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode, with_cleared_fault
from evenkeel.domain.values import Value, milliseconds
from evenkeel.domain.words import count_of
from evenkeel.events import driver_lines
from evenkeel.events.outcomes import ParsedEvent
from evenkeel.ports import (
    ConditionCheck,
    Conflict,
    Delete,
    EvenkeelError,
    Ledger,
    Put,
    Row,
    Table,
    Telemetry,
    WorkflowName,
    Workflows,
    Write,
)
from evenkeel.services.context import Context
from evenkeel.services.incidents import note_group_fact, record_observed_aftermath
from evenkeel.services.storage import fleet_rows, incident_record, incident_rows, rows

UNRESOLVED, UNRESOLVED_DRILL = "UNRESOLVED", "UNRESOLVED-DRILL"
WRITER = "receive_event"
_UNRESOLVED_KEPT = timedelta(hours=6)
"""Time for which a fact about an unknown node is stored. A fact that is older was about another cluster."""
_RETRY_BATCH = 25
_MAX_CLOCK_SKEW = timedelta(minutes=5)
"""A fact from further in the future than clocks differ counts as a fact from now."""
_MAX_NOTICES_BEFORE_LISTING = 5
_CLUSTER_ID = re.compile(r".*:cluster/[a-z0-9]{12}", re.ASCII)


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


def _affected_node_of(node: Node) -> AffectedNode:
    """Return the affected node of a node's two views."""
    kubernetes_node = node.kubernetes
    return AffectedNode(
        life=node.life,
        slot=node.slot,
        node_name=kubernetes_node.name if kubernetes_node else "",
        pool=node.pool,
        instance_type=node.provider.instance_type
        if node.provider
        else (kubernetes_node.instance_type if kubernetes_node else ""),
        boot_id=kubernetes_node.boot_id if kubernetes_node else "",
    )


def run(event: ParsedEvent, context: Context) -> dict[str, Any]:
    """Ingest one event. An event that names many nodes is queued as several events instead.

    So the work of one invocation is limited, and an urgent event does not wait until hundreds of nodes are ingested.

    Idempotent: yes, as `ingest_facts`: a part that is queued twice has the same facts.
    """
    if not event.smaller_events:
        return summarize_outcomes(ingest_facts(event.facts, context))
    for part in event.smaller_events:
        context.inbox.put(part)
    return {
        "outcome": "SPLIT",
        "reason": f"{count_of(len(event.facts), 'fact')}, queued as {count_of(len(event.smaller_events), 'event')}.",
    }


def ingest_facts(facts: Iterable[NodeFact | GroupFact], context: Context) -> tuple[IngestResult, ...]:
    """Ingest the facts of one event, each by itself. A failing fact does not stop the rest.

    Idempotent: yes, as `ingest_fact` and `note_group_fact.run`. A fact that was ingested before a failure is a
    duplicate later.

    Raises:
        EvenkeelError: the first failure, after every fact was tried.
    """
    outcomes: list[IngestResult] = []
    failures: list[EvenkeelError] = []
    for fact in facts:
        try:
            if _is_of_another_cluster(fact.cluster_arn, context.site.hyperpod_cluster_arn):
                outcomes.append(
                    _other_fleet_outcome(
                        f"The event is about cluster {fact.cluster_arn}.", fact.source, context.telemetry
                    )
                )
            elif isinstance(fact, GroupFact):
                noted = note_group_fact.run(fact, context)
                outcomes.append(IngestResult(outcome=FactOutcome(noted.outcome), reason=noted.reason))
            else:
                outcomes.append(ingest_fact(fact, context))
        except EvenkeelError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return tuple(outcomes)


def summarize_outcomes(outcomes: tuple[IngestResult, ...]) -> dict[str, Any]:
    """Return the handler's answer for an event: its single outcome, or the number of each outcome."""
    if len(outcomes) == 1:
        return outcomes[0].to_json()
    counts = Counter(result.outcome for result in outcomes)
    return {"outcome": "INGESTED", "reason": ", ".join(f"{count} {result}" for result, count in counts.items())}


def _is_of_another_cluster(stated_arn: str, own_arn: str) -> bool:
    """Return whether an event names another cluster. An ARN that ends in a name, not in an id, is no proof.

    Without a HyperPod cluster, every stated ARN is another cluster.
    """
    if not stated_arn or stated_arn == own_arn:
        return False
    return not own_arn or (_CLUSTER_ID.fullmatch(stated_arn) is not None and _CLUSTER_ID.fullmatch(own_arn) is not None)


def _other_fleet_outcome(reason: str, source: str, telemetry: Telemetry) -> IngestResult:
    telemetry.count("FactsOtherFleet", source=source.partition(":")[0])
    return IngestResult(outcome=FactOutcome.OTHER_FLEET, reason=reason)


def ingest_fact(fact: NodeFact, context: Context) -> IngestResult:
    """Ingest one fact: find its node, then record it.

    Idempotent: yes, by the fact's own row. Any number of copies, in any order and at once, make one incident.
    """
    if fact.kind is FactKind.PROGRESS:
        affected = _node_in_repair(fact, context)
        if affected is None:
            node = find_affected_node(fact.instance_id, context, asks_provider=False)
            record_observed_aftermath.record_progress(fact, node.life if node else None, context)
            return IngestResult(outcome=FactOutcome.IGNORED, reason="No repair of this node is in progress.")
    else:
        affected = find_affected_node(
            fact.instance_id, context, asks_provider=not signal_source(fact.source).is_account_wide
        )
    if affected is None:
        return _outcome_of_unknown_node(fact, context)
    return ingest_fact_of_known_node(_without_future_time(fact, context.clock.now()), affected, context)


def _outcome_of_unknown_node(fact: NodeFact, context: Context) -> IngestResult:
    """Store a fact about a node that no control plane lists, unless it is a drill or about another fleet."""
    if fact.is_drill and not context.site.drills_may_act:
        return _other_fleet_outcome(
            f"The drill names {fact.instance_id}, which is not a node of this fleet.", fact.source, context.telemetry
        )
    if signal_source(fact.source).is_account_wide:
        _store_fact_of_unlisted_instance(fact, context.replace(now=context.clock.now()))
        return _other_fleet_outcome(f"{fact.instance_id} is not a node of this fleet.", fact.source, context.telemetry)
    return _store_unresolved(_without_future_time(fact, context.clock.now()), context)


def _without_future_time(fact: NodeFact, now: datetime) -> NodeFact:
    """Limit a fact's time to now: no later fact could supersede one from the future. Its identity stays the same."""
    if fact.observed_at <= now + _MAX_CLOCK_SKEW:
        return fact
    return fact.replace(observed_at=now, occurrence=fact.occurrence or f"{fact.observed_at:%Y%m%dT%H%M}")


def _node_in_repair(fact: NodeFact, context: Context) -> AffectedNode | None:
    """Find the open incident of a fact about a repair: the node's incident, else its slot's incident.

    A fact about a replacement may name either node, or a node that never ran. HyperPod is not called.
    """
    node = find_affected_node(fact.instance_id, context, asks_provider=False)
    if node is not None and context.ledger.get(incident_rows.open_key(node.life, is_drill=fact.is_drill)) is not None:
        return node
    slot = f"{context.site.clusters[0]}/{fact.logical_id}" if context.site.clusters and fact.logical_id else ""
    pointer = context.ledger.get(incident_rows.slot_key(slot, is_drill=fact.is_drill)) if slot else None
    row = context.ledger.get(incident_rows.incident_key(pointer.doc["incidentId"])) if pointer else None
    incident = rows.decode(row, Incident) if row else None
    if incident is None or incident.state.is_settled:
        return None
    return AffectedNode(
        life=incident.life,
        slot=incident.slot,
        node_name=incident.node_name,
        pool=incident.pool,
        instance_type=incident.instance_type,
        boot_id=incident.boot_id,
    )


def find_affected_node(instance_id: str, context: Context, *, asks_provider: bool) -> AffectedNode | None:
    """Find the node life of an instance id in the fleet table; None if it is unknown.

    If `asks_provider`, HyperPod is asked about an instance that the table does not list.
    """
    keys = [fleet_rows.node_key(cluster, instance_id) for cluster in context.site.clusters]
    for row in context.read_rows(*keys) if keys else ():
        if row is not None:
            node = rows.decode(row, FleetNode)
            return AffectedNode(
                life=node.life,
                slot=node.slot,
                node_name=node.node_name,
                pool=node.pool,
                instance_type=node.instance_type,
                boot_id=node.boot_id,
                job_ids=node.job_ids,
            )
    provider_node = context.provider.node(instance_id) if asks_provider and context.site.clusters else None
    if provider_node is None:
        return None
    life = NodeLife(cluster=context.site.clusters[0], instance_id=instance_id, launched_at=provider_node.launched_at)
    return _affected_node_of(Node(life=life, provider=provider_node))


def ingest_fact_of_known_node(fact: NodeFact, affected: AffectedNode, context: Context) -> IngestResult:
    """Let a fact about a known node join or open its incident, and ensure that the recovery runs.

    Idempotent: yes, by the fact's row and the conditions of the commit.

    Raises:
        Conflict: other writers were first too often. The same call may soon succeed.
    """
    for _ in range(incident_record.MAX_TRIES):
        try:
            decision = _try_to_ingest(fact, affected, context)
        except Conflict:
            continue
        break
    else:
        raise Conflict(f"the incident of {affected.life.key} kept changing under fact {fact.fact_key}")
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


class _FactRows(NamedTuple):
    """The rows from which a fact about a node is decided. Absent rows are None."""

    fact: Row | None
    """An earlier copy of the fact."""
    last_incident: Row | None
    """The last incident of the node life."""
    pointer: Row | None
    """The pointer to the open incident of the node life."""
    unresolved: Row | None
    """The fact, stored while its node was unknown."""
    slot: Row | None
    """The pointer to the last incident of the node slot."""
    incident: Row | None
    """The open incident."""
    histories: Mapping[str, Row | None]
    """Fault location (node slot, job or instance group) → its earlier faults."""

    def to_node_history(self) -> NodeHistory:
        """Return the content of the rows, for the decision."""
        return NodeHistory(
            known_incident_id=self.fact.doc["incidentId"] if self.fact else "",
            last_incident=rows.decode(self.last_incident, LastIncident) if self.last_incident else None,
            open_incident=rows.decode(self.incident, Incident) if self.incident else None,
            histories={key: rows.decode(row, FaultHistory) for key, row in self.histories.items() if row},
        )


def _try_to_ingest(fact: NodeFact, affected: AffectedNode, context: Context) -> IngestDecision:
    """Load the rows, decide, and commit. Raises Conflict if a row changed since it was read."""
    now = context.clock.now()
    if fact.job_id:
        affected = affected.replace(job_ids=(fact.job_id,))
    classified_fact = ClassifiedFact.of(fact, affected, context.policy.catalogue)
    fact_rows = _read_fact_rows(classified_fact, affected, context.ledger)
    decision = decide_ingestion(
        classified_fact, fact_rows.to_node_history(), context.policy.catalogue, new_id=context.ids.new("inc"), now=now
    )
    writes = [*_ingestion_writes(decision, classified_fact, affected, fact_rows, context, now)]
    for key, history in decision.histories.items():
        writes.append(
            Put(
                incident_rows.history_row(
                    key, history, _row_version(fact_rows.histories[key]), now, is_drill=fact.is_drill
                )
            )
        )
    if decision.action is IngestAction.OPEN and decision.incident:
        writes.append(Put(incident_rows.slot_row(decision.incident, _row_version(fact_rows.slot), now)))
    if fact_rows.unresolved is not None:
        writes.append(Delete(fact_rows.unresolved.key, fact_rows.unresolved.version))
    if writes:
        context.ledger.commit(*writes)
    return decision


def _read_fact_rows(classified_fact: ClassifiedFact, affected: AffectedNode, ledger: Ledger) -> _FactRows:
    fact, is_drill = classified_fact.fact, classified_fact.fact.is_drill
    keys = history_keys(classified_fact.fault, affected) if fact.kind is FactKind.FAULT else ()
    fact_row, last, pointer, unresolved, slot, *histories = ledger.batch_get(
        incident_rows.fact_key(fact.fact_key),
        incident_rows.last_key(affected.life, is_drill=is_drill),
        incident_rows.open_key(affected.life, is_drill=is_drill),
        incident_rows.unresolved_key(fact.fact_key),
        incident_rows.slot_key(affected.slot, is_drill=is_drill),
        *(incident_rows.history_key(key, is_drill=is_drill) for key in keys),
    )
    incident = ledger.get(incident_rows.incident_key(pointer.doc["incidentId"])) if pointer else None
    return _FactRows(fact_row, last, pointer, unresolved, slot, incident, dict(zip(keys, histories, strict=True)))


def _ingestion_writes(
    decision: IngestDecision,
    classified_fact: ClassifiedFact,
    affected: AffectedNode,
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
            yield from _clear_unhealthy_node(fact, affected, context)
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
                incident_rows.last_key(affected.life, is_drill=fact.is_drill), _row_version(fact_rows.last_incident)
            )


def _row_version(row: Row | None) -> int:
    return row.version if row else 0


def _clear_unhealthy_node(fact: NodeFact, affected: AffectedNode, context: Context) -> list[Write]:
    """Record which marks of an unhealthy node are gone since its incident was settled. Forget it once all are gone."""
    row = context.ledger.get(incident_rows.unhealthy_key(affected.life))
    if row is None:
        return []
    node = rows.decode(row, UnhealthyNode)
    if node.trusted_by:
        return []
    incident, _ = incident_record.load_incident(context.ledger, node.incident_id)
    cleared = ClearedFault(fault_key=fact.fault_key, source=fact.source, at=fact.observed_at)
    after = with_cleared_fault(node, incident, cleared, context.policy.catalogue)
    return [Put(incident_rows.unhealthy_row(after, row.version)) if after else Delete(row.key, row.version)]


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
    entry = incident_record.timeline_row_of(incident_id, _TIMELINE_KINDS[fact.kind], text, at=now, writer=WRITER)
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
    first = "" if opens else "Also: "
    drill = " This is a drill." if fact.is_drill and opens else ""
    return f"{first}{fault.name} ({fault.key}{code}), reported by {source}.{drill}"


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


# ---------------------------------------------------------------- facts whose node is not known yet


def _store_unresolved(fact: NodeFact, context: Context) -> IngestResult:
    reason = f"No control plane lists {fact.instance_id} yet; the sweep tries again."
    row = incident_rows.unresolved_row(fact.to_json(), fact.fact_key, context.clock.now())
    if context.ledger.get(row.key) is None:
        try:
            context.ledger.commit(Put(row))
        except Conflict:
            pass  # another delivery of this fact was stored first
        else:
            context.telemetry.count("FactsUnresolved")
            context.telemetry.warning("FactUnresolved", instanceId=fact.instance_id, source=fact.source)
    return IngestResult(outcome=FactOutcome.UNRESOLVED, reason=reason)


def _store_fact_of_unlisted_instance(fact: NodeFact, context: Context) -> None:
    """Store a notice about an instance that no sweep has listed yet, for an hour.

    AWS may reclaim a Spot instance before a sweep lists it.
    """
    for _ in range(incident_record.MAX_TRIES):
        row = context.ledger.get(incident_rows.notice_before_listing_key(fact.instance_id, is_drill=fact.is_drill))
        facts = facts_of_unlisted_instance(row) if row else ()
        if any(node_fact.fact_key == fact.fact_key for node_fact in facts):
            return
        node_facts = (*facts, fact)[-_MAX_NOTICES_BEFORE_LISTING:]
        with contextlib.suppress(Conflict):  # another notice about this instance was stored first
            version = row.version if row else 0
            context.ledger.commit(
                Put(
                    incident_rows.notice_before_listing_row(
                        fact.instance_id, node_facts, context.now, version, is_drill=fact.is_drill
                    )
                )
            )
            return
    # Without the error, the notice would be lost silently.
    raise Conflict(f"the stored facts of {fact.instance_id} changed on every try")


def facts_of_unlisted_instance(row: Row) -> tuple[NodeFact, ...]:
    """Return the stored notices about an instance that no sweep had listed."""
    return tuple(rows.parse(row.key, NodeFact, fact) for fact in row.doc["facts"])


def retry_unresolved(context: Context) -> tuple[IngestResult, ...]:
    """Try again to find the nodes of the stored facts, and drop facts whose node stays unknown. Called by the sweep.

    Each call takes the next facts of the list, so every fact is tried however long the list is. Drills come after real
    facts, and are left out if drills may not act.

    Idempotent: yes, as `ingest_fact_of_known_node`.

    Raises:
        EvenkeelError: the first failure, after each fact was tried.
    """
    outcomes: list[IngestResult] = []
    failures: list[EvenkeelError] = []
    for row, fact in rows.readable_rows(_next_unresolved(context), NodeFact, failures.append):
        try:
            affected = find_affected_node(fact.instance_id, context, asks_provider=True)
            if affected is not None:
                outcomes.append(ingest_fact_of_known_node(fact, affected, context))
                continue
        except EvenkeelError as error:
            failures.append(error)
            continue
        if context.clock.now() - _stored_at(row) > _UNRESOLVED_KEPT:
            context.telemetry.count("FactsDropped")
            with contextlib.suppress(Conflict):  # another writer resolved it meanwhile
                context.ledger.commit(Delete(row.key, row.version))
    if failures:
        raise failures[0]
    return tuple(outcomes)


def _next_unresolved(context: Context) -> list[Row]:
    """Return the facts to retry now, and store where the next call continues."""
    row = context.ledger.get(incident_rows.retry_cursors_key())
    cursors = dict(row.doc) if row else {}
    facts: list[Row] = []
    for state in (UNRESOLVED, UNRESOLVED_DRILL) if context.site.drills_may_act else (UNRESOLVED,):
        if len(facts) < _RETRY_BATCH:
            page = context.ledger.by_state(
                Table.INCIDENTS, state, limit=_RETRY_BATCH - len(facts), cursor=cursors.get(state) or None
            )
            facts += page.rows
            cursors[state] = page.cursor or ""
    if cursors != (dict(row.doc) if row else {}):
        after = Row(incident_rows.retry_cursors_key(), cursors, row.version if row else 0)
        with contextlib.suppress(Conflict):  # another sweep stored its own position
            context.ledger.commit(Put(after))
    return facts


def _stored_at(row: Row) -> datetime:
    assert row.state
    _, stored_at = row.state
    return datetime.fromisoformat(stored_at)
