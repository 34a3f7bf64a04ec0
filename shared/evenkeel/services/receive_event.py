"""A signal about a node: find the machine, let it join or open its one incident, start the recovery.

raw copy kept ─▶ life resolved ─▶ one commit: FACT, OPEN#life, incident, evidence, story ─▶ start <incident>-r1
                     │ cannot                                                                  ▲
                     └─▶ UNRESOLVED row ─▶ the sweeper asks again                 a copy starts it again
"""

import contextlib
from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.health.faults import look_up
from evenkeel.domain.health.incidents import Evidence, FactKind, Incident, IncidentState, NodeFact, SickSeat
from evenkeel.domain.health.intake import Intake, IntakeDecision, LastIncident, join_or_open
from evenkeel.domain.nodes import FleetNode, Node, NodeLife
from evenkeel.domain.values import Value
from evenkeel.ports import (
    Check,
    Clock,
    Conflict,
    Delete,
    Ids,
    Ledger,
    Machine,
    Provider,
    Put,
    Row,
    Table,
    Telemetry,
    Workflows,
    Write,
)
from evenkeel.services import incident_record, rows

UNRESOLVED = "UNRESOLVED"
WRITER = "receive_event"
_GIVE_UP_AFTER = timedelta(hours=6)
"""A fact about a machine that nobody knows is kept this long; then it was another cluster's."""
_RETRIED_AT_ONCE = 25


class Outcome(Value):
    """What became of a fact."""

    outcome: str
    """An `Intake`, or UNRESOLVED."""
    reason: str
    incident_id: str = ""
    started: bool = False
    """Whether this very call started the recovery."""


def seat_of(node: Node) -> SickSeat:
    """Return the seat of a machine whose views were just read."""
    there = node.kubernetes
    return SickSeat(
        life=node.life,
        slot=node.slot,
        node_name=there.name if there else "",
        pool=node.pool,
        instance_type=node.provider.instance_type if node.provider else (there.instance_type if there else ""),
        boot_id=there.boot_id if there else "",
    )


def run(
    fact: NodeFact,
    *,
    ledger: Ledger,
    provider: Provider,
    workflows: Workflows,
    clock: Clock,
    ids: Ids,
    telemetry: Telemetry,
    clusters: tuple[str, ...],
    drills_may_act: bool,
) -> Outcome:
    """Take in a fact from the queue: resolve its machine, then note it.

    `clusters` are the Kubernetes clusters of the fleet; HyperPod's machines join the first.

    Idempotent: yes, by the fact's own row: any number of copies, in any order, at once, make one incident.
    """
    seat = resolve(fact.instance_id, ledger=ledger, provider=provider, clusters=clusters)
    if seat is None:
        return _keep_for_later(fact, ledger=ledger, clock=clock, telemetry=telemetry)
    return note_fact(
        fact,
        seat,
        ledger=ledger,
        workflows=workflows,
        clock=clock,
        ids=ids,
        telemetry=telemetry,
        drills_may_act=drills_may_act,
    )


def resolve(instance_id: str, *, ledger: Ledger, provider: Provider, clusters: tuple[str, ...]) -> SickSeat | None:
    """Find the life behind an instance id: the fleet's memory, else the provider. Never guessed; None where unknown."""
    for cluster in clusters:
        row = ledger.get(rows.node_key(cluster, instance_id))
        if row is not None:
            seen = rows.read(row, FleetNode)
            return SickSeat(
                life=seen.life,
                slot=seen.slot,
                node_name=seen.node_name,
                pool=seen.pool,
                instance_type=seen.instance_type,
                boot_id=seen.boot_id,
            )
    record = provider.node(instance_id) if clusters else None
    if record is None:
        return None
    life = NodeLife(cluster=clusters[0], instance_id=instance_id, launched_at=record.launched_at)
    return seat_of(Node(life=life, provider=record))


def note_fact(
    fact: NodeFact,
    seat: SickSeat,
    *,
    ledger: Ledger,
    workflows: Workflows,
    clock: Clock,
    ids: Ids,
    telemetry: Telemetry,
    drills_may_act: bool,
) -> Outcome:
    """Let a fact about a known machine join or open its incident, and see that the recovery runs.

    Idempotent: yes, by the fact's row and the conditions of the commit.

    Raises:
        Conflict: somebody else was first too often; the same call may soon succeed.
    """
    for _ in range(incident_record.TRIES):
        try:
            decision = _note_once(fact, seat, ledger=ledger, clock=clock, ids=ids, drills_may_act=drills_may_act)
        except Conflict:
            continue
        break
    else:
        raise Conflict(f"the incident of {seat.life.key} kept changing under fact {fact.fact_key}")
    incident = decision.incident
    _count(decision, fact, telemetry)
    started = False
    if incident is not None and incident.state is IncidentState.OPEN:
        started = start_recovery(incident, workflows)
    return Outcome(
        outcome=decision.action,
        reason=decision.reason,
        incident_id=incident.incident_id if incident else "",
        started=started,
    )


def start_recovery(incident: Incident, workflows: Workflows) -> bool:
    """Start the recovery of an incident; False where an execution of that name exists.

    Idempotent: yes, by the execution's name. Where the name is taken and nothing runs, the sweeper starts the next run.
    """
    document = {"schemaVersion": 1, "incidentId": incident.incident_id, "run": incident.run}
    return workflows.start(Machine.RECOVER_NODE, incident.execution_name, document)


def _note_once(
    fact: NodeFact, seat: SickSeat, *, ledger: Ledger, clock: Clock, ids: Ids, drills_may_act: bool
) -> IntakeDecision:
    now = clock.now()
    known, last_row, pointer, forgotten = ledger.get_each(
        rows.fact_key(fact.fact_key),
        rows.last_key(seat.life),
        rows.open_key(seat.life),
        rows.unresolved_row({}, fact.fact_key, now).key,
    )
    current_row = ledger.get(rows.incident_key(pointer.doc["incidentId"])) if pointer else None
    decision = join_or_open(
        fact,
        seat,
        known_as=known.doc["incidentId"] if known else "",
        last=rows.read(last_row, LastIncident) if last_row else None,
        current=rows.read(current_row, Incident) if current_row else None,
        drills_may_act=drills_may_act,
        new_id=ids.new("inc"),
        now=now,
    )
    writes: list[Write] = []
    if decision.action in (Intake.OPEN, Intake.JOIN):
        assert decision.incident
        writes = _recorded(decision.incident, fact, known, pointer, current_row, decision.action, now)
    if forgotten is not None:
        writes.append(Delete(forgotten.key, forgotten.version))
    if writes:
        ledger.commit(*writes)
    return decision


def _recorded(
    incident: Incident,
    fact: NodeFact,
    known: Row | None,
    pointer: Row | None,
    current: Row | None,
    action: Intake,
    now: datetime,
) -> list[Write]:
    opens = action is Intake.OPEN
    subject = incident.incident_id
    evidence = Evidence(incident_id=subject, fact=fact, joined_at=now, opened=opens)
    kind = _TOLD_AS[fact.kind]
    story = rows.evidence_row(evidence).key.sk.removeprefix("EVIDENCE#")
    entry = incident_record.told_row(subject, kind, _told(fact, opens=opens), at=now, writer=WRITER)
    keyed = Row(type(entry.key)(entry.key.table, entry.key.pk, f"EVENT#{story}"), entry.doc, 0, None, entry.expires_at)
    return [
        Put(rows.fact_row(fact.fact_key, subject, now, known.version if known else 0)),
        # The pointer is put by the first and held by every other: two first-comers cannot both open.
        Put(rows.open_row(incident.life, subject)) if opens else Check(pointer.key, pointer.version),  # type: ignore[union-attr]  # joins only what is open
        Put(rows.incident_row(incident, 0 if opens else current.version)),  # type: ignore[union-attr]  # the same
        Put(rows.evidence_row(evidence)),
        Put(keyed),
    ]


_TOLD_AS = {FactKind.SICKENED: "sickened", FactKind.RECOVERED: "recovered", FactKind.PROGRESS: "progress"}

_SOURCES = {
    "hyperpod.node-health": "HyperPod's health event",
    "hyperpod.node-labels": "HyperPod's marks on the node",
    "kubernetes.node": "its node object",
}


def _told(fact: NodeFact, *, opens: bool) -> str:
    source = _SOURCES.get(fact.source, fact.source)
    if fact.kind is FactKind.RECOVERED:
        return f"Healthy again, by {source}."
    if fact.kind is FactKind.PROGRESS:
        return f"{fact.instance_id}: {fact.code.replace('_', ' ')}, by {source}."
    fault = look_up(fact.fault_key)
    code = f", {fact.code}" if fact.code and fact.code not in fault.key else ""
    first = "" if opens else "Also: "
    drill = " This is a drill." if fact.is_drill and opens else ""
    return f"{first}{fault.name} ({fault.key}{code}), by {source}.{drill}"


def _count(decision: IntakeDecision, fact: NodeFact, telemetry: Telemetry) -> None:
    incident = decision.incident
    telemetry.count(f"Facts{decision.action.title()}", source=fact.source)
    if decision.action is Intake.OPEN and incident:
        telemetry.count("IncidentsOpened", severity=incident.severity, drill=str(incident.is_drill).lower())
        telemetry.info(
            "IncidentOpened",
            incidentId=incident.incident_id,
            nodeLife=incident.life.key,
            fault=incident.fault_key,
            simulated=incident.is_drill,
        )


# ---------------------------------------------------------------- facts whose machine is not known yet


def _keep_for_later(fact: NodeFact, *, ledger: Ledger, clock: Clock, telemetry: Telemetry) -> Outcome:
    reason = f"No control plane knows {fact.instance_id} yet; kept for the sweeper."
    row = rows.unresolved_row(fact.to_json(), fact.fact_key, clock.now())
    if ledger.get(row.key) is None:
        try:
            ledger.commit(Put(row))
        except Conflict:
            pass  # a copy of it came first, and is kept
        else:
            telemetry.count("FactsUnresolved")
            telemetry.warning("FactUnresolved", instanceId=fact.instance_id, source=fact.source)
    return Outcome(outcome=UNRESOLVED, reason=reason)


def retry_unresolved(
    *,
    ledger: Ledger,
    provider: Provider,
    workflows: Workflows,
    clock: Clock,
    ids: Ids,
    telemetry: Telemetry,
    clusters: tuple[str, ...],
    drills_may_act: bool,
) -> tuple[Outcome, ...]:
    """Try again to resolve the facts that were kept; give up those that nobody ever knew. For the sweeper.

    Idempotent: yes, as `note_fact` is.
    """
    page = ledger.by_state(Table.INCIDENTS, UNRESOLVED, limit=_RETRIED_AT_ONCE)
    outcomes = []
    for row in page.rows:
        fact = rows.read(row, NodeFact)
        seat = resolve(fact.instance_id, ledger=ledger, provider=provider, clusters=clusters)
        if seat is not None:
            rest: dict[str, Any] = {
                "ledger": ledger,
                "workflows": workflows,
                "clock": clock,
                "ids": ids,
                "telemetry": telemetry,
                "drills_may_act": drills_may_act,
            }
            outcomes.append(note_fact(fact, seat, **rest))
        elif clock.now() - _kept_since(row) > _GIVE_UP_AFTER:
            telemetry.count("FactsGivenUp")
            with contextlib.suppress(Conflict):  # somebody resolved it meanwhile
                ledger.commit(Delete(row.key, row.version))
    return tuple(outcomes)


def _kept_since(row: Row) -> datetime:
    assert row.state
    return datetime.fromisoformat(row.state[1])
