"""A person cancels a job."""

from datetime import datetime
from enum import StrEnum

from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import NotFound, Put
from evenkeel.services.context import Context
from evenkeel.services.jobs import check_role
from evenkeel.services.storage import open_jobs, team_setup
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import job_rows, rows, subject_rows

WRITER = "cancel_job"


class CancelJobRequest(Value):
    """A request to cancel a job."""

    job_id: str
    requester: check_role.Requester
    reason: str = ""


class CancelOutcome(StrEnum):
    """The outcome of a cancel request."""

    CANCELLED = "CANCELLED"
    """The job had not started, or was cancelled before."""
    STOPPING = "STOPPING"
    """Its attempt was asked to stop."""
    ALREADY_ENDED = "ALREADY_ENDED"
    """The job had succeeded or failed before."""


class CancelJobResult(Value):
    """The job after the request."""

    outcome: CancelOutcome
    job: Job


def run(request: CancelJobRequest, context: Context) -> CancelJobResult:
    """Cancel a job: at once while it is pending, else by a stop request that the attempt's workflow carries out.

    Idempotent: yes, by the job's state. Works in every mode, because a person decides and not automation.

    Raises:
        NotFound: there is no such job.
        NotYourTeam: the caller may not change the job.
        Conflict: the job kept changing during the request.
    """
    setup = team_setup.load_setup(context.ledger).setup
    message = f"{request.job_id} kept changing while it was to be cancelled."
    outcome, is_changed = until_committed(lambda: _cancel(request, setup, context), message)
    if is_changed:
        context.cycle_requests.request(f"{request.job_id} cancelled")
    return outcome


def _cancel(request: CancelJobRequest, setup: TeamSetup, context: Context) -> tuple[CancelJobResult, bool]:
    """Return the outcome, and whether this call changed the job."""
    row = context.ledger.get(job_rows.job_key(request.job_id))
    if row is None:
        raise NotFound(f"There is no job {request.job_id}.")
    job = rows.decode(row, Job)
    check_role.to_change(request.requester, job, setup)
    if job.state.has_ended:
        was_cancelled = job.state is JobState.CANCELLED
        outcome = CancelOutcome.CANCELLED if was_cancelled else CancelOutcome.ALREADY_ENDED
        return CancelJobResult(outcome=outcome, job=job), False
    if job.state is JobState.STOPPING:
        return CancelJobResult(outcome=CancelOutcome.STOPPING, job=job), False
    actor = request.requester.actor
    reason = f"Cancelled by {actor}{f': {request.reason}' if request.reason else ''}."
    changed_job = _cancelled_job(job, actor, reason, context.now)
    entry = TimelineEntry(at=context.now, kind="cancelled", text=reason, writer=WRITER)
    context.ledger.commit(
        Put(job_rows.job_row(changed_job, row.version)),
        Put(subject_rows.timeline_row(job.job_id, entry, f"cancelled-{row.version}")),
        *(open_jobs.decrement_writes(changed_job) if changed_job.state.has_ended else ()),
    )
    is_over = changed_job.state is JobState.CANCELLED
    return CancelJobResult(
        outcome=CancelOutcome.CANCELLED if is_over else CancelOutcome.STOPPING, job=changed_job
    ), True


def _cancelled_job(job: Job, actor: str, reason: str, now: datetime) -> Job:
    if job.state in (JobState.PENDING, JobState.SUSPENDED):
        return job.replace(state=JobState.CANCELLED, reason=reason, ended_at=now, not_before=None)
    return job.replace(
        state=JobState.STOPPING, reason=reason, stop_request=job.stop_request_now(reason, f"cancel/{actor}", now)
    )
