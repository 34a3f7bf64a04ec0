"""The plan of a person's change of a job: what stops, what waits, and what the next scheduling cycle would decide.

The change runs as usual on a ledger that stores nothing. So the plan is refused exactly where the change is refused.
"""

from typing import Any, assert_never

from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.change_effects import JobChange, change_effects
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.values import Value
from evenkeel.ports import Ledger, NotFound, Table
from evenkeel.services.context import Context
from evenkeel.services.jobs import cancel_job, check_role, set_priority, suspend_job
from evenkeel.services.queries.jobs import plan_unsubmitted_job
from evenkeel.services.storage import team_setup
from evenkeel.services.storage.dry_run import DryRunLedger, NullCycleRequests, NullTelemetry
from evenkeel.services.storage.training_plan_ends import with_training_plan_ends
from evenkeel.services.tables import job_rows, rows

Json = dict[str, Any]

_MAX_AHEAD = 1000


class PlanJobChangeRequest(Value):
    """A request for the plan of a change."""

    change: JobChange
    job_id: str
    requester: check_role.Requester
    priority_class: str = ""
    """The class that the job would get."""


def run(request: PlanJobChangeRequest, context: Context) -> Json:
    """Return the plan of a change. Changes and records nothing.

    Raises:
        NotFound: there is no such job.
        NotYourTeam: the caller may not change the job.
        JobEnded: the job has ended or is being cancelled.
        Invalid: there is no such priority class.
    """
    row = context.ledger.get(job_rows.job_key(request.job_id))
    if row is None:
        raise NotFound(f"There is no job {request.job_id}.")
    job_before = rows.decode(row, Job)
    job_after = _changed_job(request, row.version, context)
    attempt = _latest_attempt(job_before, context.ledger)
    stops = attempt if job_after.stop_request is not None and job_after != job_before else None
    return {
        "jobId": job_before.job_id,
        "dryRun": True,
        "change": request.change,
        "state": job_before.state,
        "nextState": job_after.state,
        "effects": list(change_effects(request.change, job_before, job_after, attempt)),
        "stops": None if stops is None or stops.state.has_ended else _stop_document(stops, job_after),
        "queue": _queue_document(job_before, job_after, context.ledger),
        "decision": _next_decision(job_after, context),
    }


def _changed_job(request: PlanJobChangeRequest, version: int, context: Context) -> Job:
    dry_run = context.replace(
        ledger=DryRunLedger(context.ledger), telemetry=NullTelemetry(), cycle_requests=NullCycleRequests()
    )
    job_id, requester = request.job_id, request.requester
    match request.change:
        case JobChange.CANCEL:
            result = cancel_job.run(cancel_job.CancelJobRequest(job_id=job_id, requester=requester), dry_run)
            if result.outcome is cancel_job.CancelOutcome.ALREADY_ENDED:
                raise suspend_job.JobEnded(result.job)
            return result.job
        case JobChange.SUSPEND:
            return suspend_job.suspend(suspend_job.JobChangeRequest(job_id=job_id, requester=requester), dry_run)
        case JobChange.RESUME:
            return suspend_job.resume(suspend_job.JobChangeRequest(job_id=job_id, requester=requester), dry_run)
        case JobChange.PRIORITY:
            return set_priority.run(
                set_priority.SetPriorityRequest(
                    job_id=job_id, priority_class=request.priority_class, expected=version, requester=requester
                ),
                dry_run,
            )
    assert_never(request.change)


def _latest_attempt(job: Job, ledger: Ledger) -> Attempt | None:
    row = ledger.get(job_rows.attempt_key(job.job_id, job.current_attempt)) if job.current_attempt else None
    return rows.decode(row, Attempt) if row else None


def _stop_document(attempt: Attempt, job_after: Job) -> Json:
    return {
        "attempt": attempt.attempt,
        "nodes": [life.instance_id for life in attempt.nodes],
        "gpus": attempt.accelerators,
        "graceSeconds": job_after.stop_request.grace_seconds if job_after.stop_request else None,
    }


def _queue_document(job_before: Job, job_after: Job, ledger: Ledger) -> Json | None:
    """Return the queue position before and after the change; None if the job is in no queue."""
    pending_jobs = [job for job in (job_before, job_after) if job.state is JobState.PENDING]
    if not pending_jobs:
        return None
    prefix = job_rows.queue_prefix(pending_jobs[0].queue) if pending_jobs[0].queue else ""
    page = ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", prefix=prefix, limit=_MAX_AHEAD)
    sort_keys = [row.state[1] for row in page.rows if row.state and row.key != job_rows.job_key(job_before.job_id)]

    def position(job: Job) -> int | None:
        if job.state is not JobState.PENDING:
            return None
        ahead = sum(order < job_rows.queue_order(job) for order in sort_keys)
        return None if page.cursor is not None and ahead == len(sort_keys) else ahead + 1

    return {"position": position(job_before), "positionAfter": position(job_after)}


def _next_decision(job_after: Job, context: Context) -> Json | None:
    """Return what the next scheduling cycle would decide about the changed job; None if it would not be asked."""
    if job_after.state is not JobState.PENDING or context.site.admission is AdmissionAuthority.KUEUE:
        return None
    setup = team_setup.load_setup(context.ledger).setup
    cycle = plan_unsubmitted_job.preview_cycle(job_after, setup, with_training_plan_ends(context))
    return plan_unsubmitted_job.decision_document(cycle.decision)
