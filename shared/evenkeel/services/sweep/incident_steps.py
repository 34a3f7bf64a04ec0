"""Incidents without a running recovery, and records that recoveries left behind."""

import contextlib

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.recovery.guardrails import RegisterEntry
from evenkeel.domain.recovery.settling import next_run_at
from evenkeel.ports import Conflict, Delete, ExecutionState, Put, Table, WorkflowName, get_all
from evenkeel.services.incidents import record_node_fact, recovery_step
from evenkeel.services.resume import plan_resume
from evenkeel.services.storage import guardrail_registers, incident_store
from evenkeel.services.storage.guardrail_registers import RegisterName
from evenkeel.services.sweep.sweep_run import WRITER, SweepRun
from evenkeel.services.tables import incident_rows, rows


def resume_incidents(sweep: SweepRun) -> int:
    """Start the workflow of every open incident that has none: the same run if it never started, else the next run."""
    resumed_count = 0
    for incident in sweep.open_incidents:
        with sweep.isolate_item(incident.incident_id):
            resumed_count += _resume_incident(sweep, incident)
    return resumed_count


def _resume_incident(sweep: SweepRun, incident: Incident) -> bool:
    if sweep.is_fresh(incident.opened_at):
        return False
    state = sweep.execution_state(WorkflowName.RECOVER_NODE, incident.execution_name)
    if state is ExecutionState.RUNNING:
        return False
    if state is ExecutionState.NONE:
        return record_node_fact.start_recovery(incident, sweep.context.workflows)
    due_at = next_run_at(incident, sweep.context.policy.watch)
    if due_at is not None and sweep.context.now < due_at:
        return False
    if incident.run >= sweep.context.policy.watch.max_runs:
        sweep.context.telemetry.count("IncidentsStuck")
        sweep.context.telemetry.error(
            "RecoveryWorkflowFails",
            incident_id=incident.incident_id,
            run=incident.run,
            runbook="recovery-failed",
        )
        return False
    return _start_next_run(sweep, incident)


def _start_next_run(sweep: SweepRun, ended_incident: Incident) -> bool:
    """Start the next run of an incident that is still open after its run ended, unless it was settled meanwhile."""

    def change(incident: Incident) -> tuple[Incident, list[Put]] | None:
        if incident.state.is_settled or incident.run != ended_incident.run:
            return None
        text = f"Run {ended_incident.run} of the recovery workflow ended early; run {ended_incident.run + 1} continues."
        subject = incident.incident_id
        entry = incident_store.timeline_put(
            subject, f"resumed-{ended_incident.run + 1}", text, at=sweep.context.now, writer=WRITER
        )
        return incident.replace(run=ended_incident.run + 1, failed_at=None), [entry]

    next_incident = incident_store.update_incident(sweep.context.ledger, ended_incident.incident_id, change)
    if next_incident.state.is_settled:
        return False
    return record_node_fact.start_recovery(next_incident, sweep.context.workflows)


def roll_back_jobs(sweep: SweepRun) -> int:
    """Roll back jobs that resumed from a checkpoint which a later signal of an open incident distrusts."""
    context = sweep.context
    rolled_back_count = 0
    for incident in sweep.open_incidents:
        with sweep.isolate_item(incident.incident_id):
            if incident.affected_jobs and _may_act_on(sweep, incident):
                rolled_back_count += plan_resume.roll_back_jobs(incident, context)
    if rolled_back_count:
        context.cycle_requests.request("jobs were rolled back")
    return rolled_back_count


def _may_act_on(sweep: SweepRun, incident: Incident) -> bool:
    plans_action = incident.plan is not None and incident.plan.intends_action
    return plans_action and not recovery_step.why_may_not_act(incident, sweep.context)


def delete_stale_pointers(sweep: SweepRun) -> int:
    """Delete pointers to settled incidents. They would keep the next fault of the node out."""
    ledger = sweep.context.ledger
    deleted_count = 0
    pointers = sweep.read_present_rows(sweep.list_rows(Table.INCIDENTS, "OPEN"))
    incidents = get_all(ledger, (incident_rows.incident_key(pointer.doc["incidentId"]) for pointer in pointers))
    for pointer in pointers:
        incident = incidents.get(incident_rows.incident_key(pointer.doc["incidentId"]))
        with sweep.isolate_item(pointer.key.pk), contextlib.suppress(Conflict):
            if incident is None or rows.decode(incident, Incident).state.is_settled:
                ledger.commit(Delete(pointer.key, pointer.version))
                deleted_count += 1
    return deleted_count


def reconcile_registers(sweep: SweepRun) -> int:
    """Remove nodes from the registers of repairs and cordons if an earlier removal was lost."""
    cordon_incidents = {
        (node.cluster, node.instance_id): node.incident_id for node in sweep.kubernetes if node.incident_id is not None
    }

    def is_settled(entry: RegisterEntry) -> bool:
        row = sweep.context.ledger.get(incident_rows.incident_key(entry.incident_id))
        incidents = [incident for _, incident in sweep.readable_rows([row] if row else [], Incident)]
        return incidents[0].state.is_settled if incidents else row is None

    def is_free(entry: RegisterEntry) -> bool:
        life = NodeLife.from_key(entry.life_key)
        if life.cluster in sweep.context.site.clusters and life.cluster not in sweep.nodes_of:
            return False  # whether its cordon annotation is still there is unknown
        return (life.cluster, life.instance_id) not in cordon_incidents and not sweep.is_fresh(entry.since)

    removed_count = 0
    for which, is_over in ((RegisterName.REPAIRS, is_settled), (RegisterName.CORDONS, is_free)):
        for is_drill in (False, True):
            with sweep.isolate_item(f"register of {'drill ' if is_drill else ''}{which}"):
                removed_count += guardrail_registers.remove_outdated_entries(
                    which, is_over, sweep.context, is_drill=is_drill
                )
    return removed_count
