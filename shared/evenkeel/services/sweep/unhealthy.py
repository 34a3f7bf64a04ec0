"""Nodes that an incident left unhealthy: forgotten once they are well, worked on once that is allowed."""

import contextlib
from functools import partial

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.recovery.seats import look
from evenkeel.domain.recovery.unhealthy import UnhealthyNode, resumed, why_over, why_resume
from evenkeel.domain.recovery.validation import expected_accelerators
from evenkeel.domain.values import milliseconds
from evenkeel.ports import Conflict, Delete, Put, Row, Table
from evenkeel.services.incidents import receive_event
from evenkeel.services.recovery import plan_recovery
from evenkeel.services.storage import incident_record, rows
from evenkeel.services.sweep.round import WRITER, Round


def resume_work(sweep: Round) -> int:
    """Look at every unhealthy node again: the mode, the policy, a veto or a person's answer may have changed.

    Idempotent: yes, by the row, which goes with the commit that opens the next incident.
    """
    return sum(_look(sweep, row) for row in sweep.as_stored(sweep.listed(Table.INCIDENTS, "UNHEALTHY")))


def _look(sweep: Round, row: Row) -> bool:
    ledger = sweep.world.ledger
    left = rows.read(row, UnhealthyNode)
    if left.trusted_by:
        return False
    incident, _ = incident_record.load(ledger, left.incident_id)
    if ledger.get(rows.open_key(left.life)) is not None:
        return False  # a newer incident works on it
    if left.life.cluster not in sweep.nodes_of or sweep.records is None:
        return False  # a control plane that could not be read says nothing of its nodes
    nodes = tuple(node for node in sweep.kubernetes if node.cluster == left.life.cluster)
    records = sweep.records
    seat = look(incident.life, incident.slot, incident.pool, records=records, nodes=nodes, since=incident.opened_at)
    kind = incident.instance_type or (seat.patient.node.instance_type if seat.patient.node else "")
    peers = [node for node in nodes if node.name != incident.node_name]
    is_gone = not seat.patient.is_there
    over = why_over(incident, seat.patient, expected=expected_accelerators(kind, peers))
    if is_gone or over:
        _forget(sweep, row, incident, over or "The machine is gone.")
        return False
    plan = plan_recovery.would_plan(
        incident,
        seat,
        nodes=nodes,
        settings=sweep.settings,
        cluster=sweep.world.cluster,
        policy=sweep.policy,
        stack_mode=sweep.mode,
    )
    reason = why_resume(incident, plan, now=sweep.now)
    return bool(reason) and _resume(sweep, row, left, incident, reason)


def _forget(sweep: Round, row: Row, incident: Incident, reason: str) -> None:
    line = partial(incident_record.told, incident.incident_id, at=sweep.now, writer=WRITER)
    with contextlib.suppress(Conflict):  # the next round looks again
        sweep.world.ledger.commit(Delete(row.key, row.version), line("node", f"No longer unhealthy. {reason}"))


def _resume(sweep: Round, row: Row, left: UnhealthyNode, before: Incident, reason: str) -> bool:
    """Open the incident that goes on, and start its recovery."""
    world, now = sweep.world, sweep.now
    after = resumed(before, left, incident_id=world.ids.new("inc"), now=now)
    in_seat = world.ledger.get(rows.seat_key(after.slot))
    try:
        world.ledger.commit(
            Delete(row.key, row.version),
            Put(rows.open_row(after.life, after.incident_id), born=milliseconds(now)),
            Put(rows.incident_row(after, 0)),
            Put(rows.seat_row(after, in_seat.version if in_seat else 0, now)),
            incident_record.told(
                after.incident_id, "resumed", f"Continues {before.incident_id}. {reason}", at=now, writer=WRITER
            ),
            incident_record.told(
                before.incident_id,
                "resumed",
                f"{after.incident_id} continues this. {reason}",
                at=now,
                writer=WRITER,
            ),
        )
    except Conflict:
        return False  # a signal opened an incident at this moment
    world.telemetry.count("RecoveriesResumed")
    world.telemetry.info("RecoveryResumed", incidentId=after.incident_id, resumes=before.incident_id, reason=reason)
    receive_event.start_recovery(after, world.workflows)
    return True
