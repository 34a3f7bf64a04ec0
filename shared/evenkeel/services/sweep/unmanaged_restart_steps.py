"""Take the next steps of restarts of unmanaged jobs, and find jobs that failed after their node was drained."""

from evenkeel.domain.health.incidents import JobAction
from evenkeel.domain.recovery.unmanaged_restarts import UnmanagedRestart
from evenkeel.ports import Table
from evenkeel.services.recovery import restart_unmanaged
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import unmanaged_restart_rows


def continue_restarts(sweep: SweepRun) -> int:
    """Advance each restart by one step. Look again at nodes under repair: a job may have failed since the drain.

    Idempotent: yes, each step is decided from the object in the cluster.
    """
    advanced_count = 0
    for _, restart in sweep.readable_rows(
        sweep.read_present_rows(sweep.list_rows(Table.INCIDENTS, unmanaged_restart_rows.LIVE)), UnmanagedRestart
    ):
        with sweep.isolate_item(f"restart of {restart.label}"):
            advanced_count += restart_unmanaged.advance(restart, sweep.context).stage is not restart.stage
    for incident in sweep.open_incidents:
        leaves_jobs = incident.plan is None or incident.plan.jobs is JobAction.LEAVE
        if not leaves_jobs and (incident.unmanaged_workloads or incident.unmanaged_jobs):
            with sweep.isolate_item(incident.incident_id):
                restart_unmanaged.run_if_allowed(incident, sweep.context)
    return advanced_count
