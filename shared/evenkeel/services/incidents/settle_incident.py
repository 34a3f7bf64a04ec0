"""State SettleIncident of recover_node: the only service that closes an incident. It pages a person if needed.

The two results:

    Evenkeel failed, and runs are left ─▶ recorded; the incident stays open, and the sweep starts the next run
    otherwise, one commit: settle the incident, delete OPEN#life, release the lease ─▶ page ─▶ record the page
"""

from typing import Any

from evenkeel.domain.health.classification import IncidentFault
from evenkeel.domain.health.incident_updates import has_failed_after_return, incident_after_return
from evenkeel.domain.health.incidents import Incident, IncidentState, NodeBranchResult
from evenkeel.domain.health.ingestion import LastIncident
from evenkeel.domain.outbound import notices
from evenkeel.domain.recovery.repair_lease import RepairLease, freed_lease
from evenkeel.domain.recovery.settling import (
    ALERTING_STATES,
    BranchEnd,
    IncidentEnd,
    choose_incident_end,
    error_message,
    has_next_run,
    why_new_plan,
)
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode, unhealthy_after
from evenkeel.domain.values import Value
from evenkeel.ports import Delete, EvenkeelError, PageNotSent, Put, Row, Write
from evenkeel.services.context import Context
from evenkeel.services.incidents import recovery_step
from evenkeel.services.storage import guardrail_registers, incident_store
from evenkeel.services.storage.guardrail_registers import RegisterName
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import fleet_rows, incident_rows, rows

WRITER = "settle_incident"
_CAUSE_LIMIT = 300


class SettleIncidentRequest(recovery_step.RecoveryStepRequest):
    """The results of one run of a recovery."""

    plan: BranchEnd | None = None
    node: BranchEnd | None = None
    jobs: BranchEnd | None = None
    failure: dict[str, Any] | None = None
    """`{Error, Cause}` if the workflow itself failed."""


class SettleIncidentResult(Value):
    """The outcome of the incident."""

    outcome: IncidentState
    reason: str


def run(request: SettleIncidentRequest, context: Context) -> SettleIncidentResult:
    """Close an incident, and alert people if they must act. A failure of Evenkeel closes it only with its last run.

    Idempotent: yes, the first outcome stands. The key of the page is the incident and its outcome, and it is recorded.
    """
    message = f"incident {request.incident_id} changed on every try to settle it"
    settled = until_committed(lambda: _try_to_settle(request, context), message, tries=incident_store.MAX_TRIES)
    if isinstance(settled, SettleIncidentResult):
        return settled
    _alert_on_call(settled, context)
    return SettleIncidentResult(outcome=settled.state, reason=settled.outcome)


def _try_to_settle(request: SettleIncidentRequest, context: Context) -> Incident | SettleIncidentResult:
    """Settle the incident once, and return it. If it stays open, return the result of this run instead."""
    incident, version = incident_store.load_incident(context.ledger, request.incident_id)
    if request.run < incident.run:
        return SettleIncidentResult(outcome=IncidentState.STOOD_DOWN, reason=f"Run {incident.run} took over.")
    if incident.state.is_settled:
        return incident
    if incident.failed_at is not None and request.run == incident.run:
        return SettleIncidentResult(outcome=IncidentState.FAILED, reason=incident.outcome)
    rungs = IncidentFault.of(incident, context.policy.catalogue).rungs
    incident_end = choose_incident_end(rungs, request.plan, request.node, request.jobs, _failure_text(request.failure))
    workflow_outcome = request.plan.outcome if request.plan else ""
    next_run_reason = (
        ""
        if request.failure or incident.run >= context.policy.watch.max_runs
        else why_new_plan(incident, rungs, workflow_outcome)
    )
    settled_incident = incident.replace(
        state=incident_end.state, outcome=incident_end.reason, block=None
    ).with_stage_time("settled_at", context.now)
    if next_run_reason:
        return _hand_over_to_next_run(incident, version, next_run_reason, context)
    if has_next_run(incident_end, incident, context.policy.watch):
        return _leave_open(incident, version, incident_end, context)
    further_writes = _settlement_writes(settled_incident, request, incident_end, context)
    context.ledger.commit(Put(incident_rows.incident_row(settled_incident, version)), *further_writes)
    _count_settled(settled_incident, context)
    return settled_incident


def _hand_over_to_next_run(
    incident: Incident, version: int, next_run_reason: str, context: Context
) -> SettleIncidentResult:
    """Leave the incident to its next run, for facts that joined it after the plan. The sweep starts that run."""
    run_number = incident.run + 1
    reason = f"{next_run_reason} Run {run_number} makes a new plan."
    entry = incident_store.timeline_put(
        incident.incident_id, f"resumed-{run_number}", reason, at=context.now, writer=WRITER
    )
    reopened_incident = incident.replace(state=IncidentState.OPEN, run=run_number, outcome=reason, block=None)
    context.ledger.commit(Put(incident_rows.incident_row(reopened_incident, version)), entry)
    context.telemetry.count("RecoveriesReplanned")
    context.telemetry.info("RecoveryReplanned", run=run_number, reason=reason)
    return SettleIncidentResult(outcome=IncidentState.STOOD_DOWN, reason=reason)


def _leave_open(incident: Incident, version: int, incident_end: IncidentEnd, context: Context) -> SettleIncidentResult:
    """Record that this run failed. Its pointer and its lease stay for the next run."""
    reason = f"{incident_end.reason} Run {incident.run + 1} starts later."
    entry = incident_store.timeline_put(incident.incident_id, "failed", reason, at=context.now, writer=WRITER)
    # The run no longer waits for a guardrail, so its entry must not block later incidents.
    open_incident = incident.without_block().replace(failed_at=context.now, outcome=reason)
    context.ledger.commit(Put(incident_rows.incident_row(open_incident, version)), entry)
    context.telemetry.count("RecoveryRunsFailed")
    context.telemetry.warning("RecoveryRunFailed", run=incident.run, reason=incident_end.reason)
    return SettleIncidentResult(outcome=IncidentState.FAILED, reason=reason)


def _failure_text(failure: dict[str, Any] | None) -> str:
    if not failure:
        return ""
    cause = error_message(str(failure.get("Cause", "")))[:_CAUSE_LIMIT]
    return f"{failure.get('Error', 'unknown')}: {cause}"


def _settlement_writes(
    incident: Incident, request: SettleIncidentRequest, incident_end: IncidentEnd, context: Context
) -> list[Write]:
    subject = incident.incident_id
    writes: list[Write] = [
        incident_store.timeline_put(
            subject,
            "settled",
            f"{_STATE_TEXT[incident_end.state]} {incident_end.reason}",
            at=context.now,
            writer=WRITER,
        )
    ]
    is_drill = incident.is_drill
    writes += guardrail_registers.removal_writes(RegisterName.REPAIRS, context, incident.life.key, is_drill=is_drill)
    pointer = context.ledger.get(incident_rows.open_key(incident.life, is_drill=is_drill))
    if pointer is not None and pointer.doc["incidentId"] == subject:
        writes += _pointer_writes(incident, pointer, context)
    was_returned = request.node is not None and request.node.outcome == NodeBranchResult.RETURNED
    lease_row = context.ledger.get(fleet_rows.lease_key(incident.slot, is_drill=is_drill))
    lease = (
        rows.decode(lease_row, RepairLease)
        if lease_row
        else RepairLease(slot=incident.slot, incident_id="", taken_at=context.now)
    )
    if lease.incident_id in ("", subject) and (lease_row is not None or was_returned):
        released_lease = freed_lease(
            lease,
            incident.life,
            context.policy.repair,
            is_returned=was_returned,
            is_over=bool(incident.replacement_instance_id),
            now=context.now,
        )
        writes.append(
            Put(fleet_rows.lease_row(released_lease, lease_row.version if lease_row else 0, is_drill=is_drill))
        )
    last_row = context.ledger.get(incident_rows.last_key(incident.life, is_drill=is_drill))
    earlier_end = rows.decode(last_row, LastIncident) if last_row else None
    is_replaced = bool(incident.replacement_instance_id)
    last_incident = LastIncident(
        incident_id=subject,
        returned_at=(incident.stages.validated_at or incident.stages.returned_at) if was_returned else None,
        is_replaced=is_replaced,
    )
    if last_incident.returned_at is None and earlier_end is not None:
        last_incident = last_incident.replace(
            returned_at=earlier_end.returned_at, returned_by=earlier_end.returned_by or earlier_end.incident_id
        )
    version = last_row.version if last_row else 0
    writes.append(Put(incident_rows.last_row(incident.life, last_incident, version, context.now, is_drill=is_drill)))
    if not is_drill:
        writes += _unhealthy_node_writes(incident, context, is_well=was_returned or is_replaced)
    return writes


def _pointer_writes(incident: Incident, pointer: Row, context: Context) -> list[Write]:
    """Delete the pointer to a settled incident, or open the next one. The sweep starts the recovery of that one."""
    now, is_drill = context.now, incident.is_drill
    catalogue = context.policy.catalogue
    if not has_failed_after_return(incident, catalogue):
        return [Delete(pointer.key, pointer.version)]
    next_id = incident.next_incident_id or context.ids.new("inc")
    next_incident = incident_after_return(incident, catalogue, incident_id=next_id, now=now)
    slot_row = context.ledger.get(incident_rows.slot_key(incident.slot, is_drill=is_drill))
    text = f"The node failed again after its return in {incident.incident_id}."
    return [
        Put(incident_rows.open_row(incident.life, next_id, pointer.version, is_drill=is_drill)),
        Put(incident_rows.incident_row(next_incident, 0)),
        Put(incident_rows.slot_row(next_incident, slot_row.version if slot_row else 0, now)),
        incident_store.timeline_put(next_id, "resumed", text, at=now, writer=WRITER),
    ]


def _unhealthy_node_writes(incident: Incident, context: Context, *, is_well: bool) -> list[Write]:
    """Record that the node is left unhealthy. Delete the record once it is repaired."""
    row = context.ledger.get(incident_rows.unhealthy_key(incident.life))
    node = unhealthy_after(incident, IncidentFault.of(incident, context.policy.catalogue).node_rungs)
    if node is not None:
        stored_node = rows.decode(row, UnhealthyNode) if row else None
        if stored_node and stored_node.trusted_at and stored_node.trusted_at >= incident.opened_at:
            return []  # a person took the node from this very incident
        return [Put(incident_rows.unhealthy_row(node, row.version if row else 0))]
    return [Delete(row.key, row.version)] if row and is_well else []


_STATE_TEXT = {
    IncidentState.RECOVERED: "Recovered.",
    IncidentState.OBSERVED: "Observed.",
    IncidentState.STOOD_DOWN: "Stood down.",
    IncidentState.WAITING_FOR_PERSON: "Needs a person.",
    IncidentState.JOB_NOT_RESUMED: "A job did not resume.",
    IncidentState.FAILED: "Failed.",
}


def _alert_on_call(incident: Incident, context: Context) -> None:
    """Alert the people on call. After a crash before the record, the alert is sent again with the same key.

    Raises:
        PageNotSent: the alert was not sent, whatever the reason.
    """
    if incident.state not in ALERTING_STATES or incident.paged_at is not None:
        return
    where = incident.node_name or incident.life.instance_id
    drill = "[drill] " if incident.is_drill else ""
    subject = f"{drill}{incident.incident_id}: {_STATE_TEXT[incident.state].rstrip('.').lower()}, {where}"
    message = notices.alert_text(notices.incident_notice(incident))
    try:
        context.on_call.alert(subject, message, key=f"{incident.incident_id}-{incident.state}")
    except EvenkeelError as error:
        raise PageNotSent(f"{incident.incident_id}: {type(error).__name__}: {error}") from error
    context.telemetry.error("IncidentNeedsPerson", outcome=incident.state, reason=incident.outcome, runbook=_RUNBOOK)

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        return None if current.paged_at else (current.replace(paged_at=context.now), [])

    incident_store.update_incident(context.ledger, incident.incident_id, change)


_RUNBOOK = "incident-needs-person"


def _count_settled(incident: Incident, context: Context) -> None:
    context.telemetry.count("IncidentsSettled", outcome=incident.state)
    context.telemetry.seconds(
        "DetectedToSettled", (context.now - incident.opened_at).total_seconds(), outcome=incident.state
    )
    context.telemetry.info("IncidentSettled", outcome=incident.state, reason=incident.outcome)
