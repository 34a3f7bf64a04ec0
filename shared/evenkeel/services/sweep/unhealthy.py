"""Nodes that an incident left unhealthy: forgotten once they are healthy, repaired once that is allowed."""

import contextlib
from functools import partial

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.recovery.node_slot import find_slot_state
from evenkeel.domain.recovery.unhealthy import UnhealthyNode, resumed_incident, why_healthy, why_resume
from evenkeel.domain.recovery.validation import expected_accelerators
from evenkeel.domain.values import milliseconds
from evenkeel.ports import Conflict, Delete, Put, Row, Table
from evenkeel.services.incidents import receive_event
from evenkeel.services.recovery import plan_recovery
from evenkeel.services.storage import incident_record, incident_rows, rows
from evenkeel.services.sweep.sweep_run import WRITER, SweepRun


def resume_work(sweep: SweepRun) -> int:
    """Check every unhealthy node again: the mode, the policy, an opt-out or a person's answer may have changed.

    Idempotent: yes, by the row, which is deleted in the commit that opens the next incident.
    """
    return sum(_check(sweep, row) for row in sweep.as_stored(sweep.listed(Table.INCIDENTS, "UNHEALTHY")))


def _check(sweep: SweepRun, row: Row) -> bool:
    ledger = sweep.context.ledger
    left = rows.read(row, UnhealthyNode)
    if left.trusted_by:
        return False
    incident, _ = incident_record.load(ledger, left.incident_id)
    if ledger.get(incident_rows.open_key(left.life)) is not None:
        return False  # a newer incident works on it
    if left.life.cluster not in sweep.nodes_of or sweep.records is None:
        return False  # nothing is known about nodes of an unreadable control plane
    nodes = tuple(node for node in sweep.kubernetes if node.cluster == left.life.cluster)
    records = sweep.records
    slot_state = find_slot_state(
        incident.life, incident.slot, incident.pool, records=records, nodes=nodes, since=incident.opened_at
    )
    kind = incident.instance_type or (slot_state.original.node.instance_type if slot_state.original.node else "")
    peers = [node for node in nodes if node.name != incident.node_name]
    is_gone = not slot_state.original.is_there
    over = why_healthy(
        incident,
        slot_state.original,
        sweep.context.policy.catalogue,
        expected=expected_accelerators(kind, peers),
    )
    if is_gone or over:
        _forget(sweep, row, incident, over or "The node is gone.")
        return False
    plan = plan_recovery.preview_plan(
        incident,
        slot_state,
        nodes,
        sweep.settings,
        sweep.context,
    )
    reason = why_resume(incident, plan, now=sweep.context.now)
    return bool(reason) and _resume(sweep, row, left, incident, reason)


def _forget(sweep: SweepRun, row: Row, incident: Incident, reason: str) -> None:
    line = partial(incident_record.timeline_put, incident.incident_id, at=sweep.context.now, writer=WRITER)
    with contextlib.suppress(Conflict):  # the next sweep checks again
        sweep.context.ledger.commit(Delete(row.key, row.version), line("node", f"No longer unhealthy. {reason}"))


def _resume(sweep: SweepRun, row: Row, left: UnhealthyNode, before: Incident, reason: str) -> bool:
    """Open the incident that continues, and start its recovery."""
    context, now = sweep.context, sweep.context.now
    after = resumed_incident(before, left, incident_id=context.ids.new("inc"), now=now)
    slot_now = context.ledger.get(incident_rows.slot_key(after.slot))
    try:
        context.ledger.commit(
            Delete(row.key, row.version),
            Put(incident_rows.open_row(after.life, after.incident_id), first_version=milliseconds(now)),
            Put(incident_rows.incident_row(after, 0)),
            Put(incident_rows.slot_row(after, slot_now.version if slot_now else 0, now)),
            incident_record.timeline_put(
                after.incident_id, "resumed", f"Continues {before.incident_id}. {reason}", at=now, writer=WRITER
            ),
            incident_record.timeline_put(
                before.incident_id,
                "resumed",
                f"{after.incident_id} continues this. {reason}",
                at=now,
                writer=WRITER,
            ),
        )
    except Conflict:
        return False  # a signal opened an incident at this moment
    context.telemetry.count("RecoveriesResumed")
    context.telemetry.info("RecoveryResumed", incidentId=after.incident_id, resumes=before.incident_id, reason=reason)
    receive_event.start_recovery(after, context.workflows)
    return True
