"""A person suspends a job, or resumes it.

PENDING ─ suspend ─▶ SUSPENDED ─ resume ─▶ PENDING
RUNNING ─ suspend ─▶ stop request with its grace period ─ settled ─▶ SUSPENDED
"""

from collections.abc import Callable

from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import NotFound, Put, Refused
from evenkeel.services.context import Context
from evenkeel.services.jobs import check_role
from evenkeel.services.storage import open_jobs, team_setup
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import job_rows, rows, subject_rows

WRITER = "suspend_job"


class JobChangeRequest(Value):
    """A request to suspend or resume a job."""

    job_id: str
    requester: check_role.Requester
    reason: str = ""


class JobEnded(Refused):
    """The job has ended or is being cancelled, so it cannot be suspended or resumed."""

    code = "JOB_ENDED"

    def __init__(self, job: Job) -> None:
        state_text = f"has ended ({job.state.lower()})" if job.state.has_ended else "is being cancelled"
        super().__init__(f"{job.job_id} {state_text}: {job.reason}" if job.reason else f"{job.job_id} {state_text}.")


def suspend(request: JobChangeRequest, context: Context) -> Job:
    """Suspend a job: at once while it is pending, else after its attempt has stopped.

    After it resumes, its time of submission decides its queue position again. Works in every mode, because a person
    decides.

    Idempotent: yes, by the job's own mark.

    Raises:
        NotFound: there is no such job.
        NotYourTeam: the caller may not change it.
        JobEnded: it has ended or is being cancelled.
        Conflict: the job kept changing during the request.
    """

    def changed(job: Job) -> Job | None:
        if job.is_suspended:
            return None
        reason = f"Suspended by {_requester_text(request)}."
        if job.state is JobState.PENDING:
            return job.replace(
                state=JobState.SUSPENDED,
                is_suspended=True,
                suspended_at=context.now,
                reason=reason,
                displacing_since=None,  # other jobs take the nodes that were freed for it
                resize=None,
            )
        stop_request = job.stop_request_now(reason, f"suspend/{request.requester.actor}", context.now)
        return job.replace(is_suspended=True, suspended_at=context.now, stop_request=stop_request)

    return _commit_change(request, "suspended", changed, context)


def resume(request: JobChangeRequest, context: Context) -> Job:
    """Resume a suspended job: it waits for capacity again, at the queue position of its time of submission.

    A job that is still stopping waits after it has stopped.

    Idempotent: yes, by the job's own mark. A job that is not suspended stays unchanged.

    Raises:
        NotFound: there is no such job.
        NotYourTeam: the caller may not change it.
        JobEnded: it has ended or is being cancelled.
        Conflict: the job kept changing during the request.
    """

    def changed(job: Job) -> Job | None:
        if not job.is_suspended:
            return None
        suspended_seconds = (context.now - job.suspended_at).total_seconds() if job.suspended_at else 0.0
        resumed_job = job.replace(
            is_suspended=False, suspended_at=None, suspended_seconds=job.suspended_seconds + max(0.0, suspended_seconds)
        )
        if job.state is not JobState.SUSPENDED:
            return resumed_job
        # With any resume plan, the job would go before older jobs. Distrusted checkpoints stay distrusted.
        return resumed_job.replace(
            state=JobState.PENDING,
            reason=f"Resumed by {request.requester.actor}.",
            resume_plan=None,
            lost_at=None,
            resumed_after=job.current_attempt,
        )

    return _commit_change(request, "resumed", changed, context)


def _requester_text(request: JobChangeRequest) -> str:
    return f"{request.requester.actor}{f': {request.reason}' if request.reason else ''}"


def _commit_change(request: JobChangeRequest, kind: str, change: Callable[[Job], Job | None], context: Context) -> Job:
    setup = team_setup.load_setup(context.ledger).setup

    def commit_once() -> tuple[Job, bool]:
        row = context.ledger.get(job_rows.job_key(request.job_id))
        if row is None:
            raise NotFound(f"There is no job {request.job_id}.")
        job = rows.decode(row, Job)
        check_role.to_change(request.requester, job, setup)
        if job.state.has_ended or job.state is JobState.STOPPING:
            raise JobEnded(job)
        changed_job = change(job)
        if changed_job is None:
            return job, False
        entry = TimelineEntry(
            at=context.now, kind=kind, text=f"{kind.capitalize()} by {_requester_text(request)}.", writer=WRITER
        )
        context.ledger.commit(
            Put(job_rows.job_row(changed_job, row.version)),
            Put(subject_rows.timeline_row(job.job_id, entry, f"{kind}-{row.version}")),
            *open_jobs.queue_mark_writes(changed_job),
        )
        return changed_job, True

    job, is_changed = until_committed(commit_once, f"{request.job_id} kept changing while it was to be {kind}.")
    if is_changed:
        context.cycle_requests.request(f"{job.job_id} {kind}")
    return job
