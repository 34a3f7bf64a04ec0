"""Hold a job back because somebody says so, and let it go on.

PENDING ─ suspend ─▶ SUSPENDED ─ resume ─▶ PENDING
RUNNING ─ suspend ─▶ asked to stop, with its grace to save ─ settled ─▶ SUSPENDED
"""

from collections.abc import Callable

from evenkeel.domain.health.incidents import TimelineEntry
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.values import Value
from evenkeel.ports import NotFound, Put, Refused
from evenkeel.services.context import Context
from evenkeel.services.jobs import check_authority
from evenkeel.services.storage import read_setup, rows
from evenkeel.services.storage.retries import until_committed

WRITER = "suspend_job"


class Request(Value):
    """Which job, and by whom."""

    job_id: str
    requester: check_authority.Requester
    reason: str = ""


class JobEnded(Refused):
    """The job has ended, or is being cancelled: there is nothing left to hold back or to let go on."""

    code = "JOB_ENDED"


def suspend(request: Request, context: Context) -> Job:
    """Hold a job back: at once while it waits, else when its attempt has ended, which is asked to stop.

    Its place in the queue is by submission, as before, once it is resumed. Works in every mode: it is a person's wish.

    Idempotent: yes, by the job's own mark.

    Raises:
        NotFound: there is no such job.
        NotYourTeam: the caller may not change it.
        JobEnded: it has ended or is being cancelled.
        Conflict: the job kept changing under the request.
    """

    def changed(job: Job) -> Job | None:
        if job.is_suspended:
            return None
        why = f"Suspended by {_by(request)}."
        if job.state is JobState.PENDING:
            return job.but(state=JobState.SUSPENDED, is_suspended=True, reason=why)
        asked = job.with_stop_request(why, f"suspend/{request.requester.actor}", context.now)
        return job.but(is_suspended=True, stop_request=asked)

    return _change(request, "suspended", changed, context)


def resume(request: Request, context: Context) -> Job:
    """Let a suspended job wait for capacity again. One that is still being stopped then waits when it has.

    Idempotent: yes, by the job's own mark; a job that nobody holds back stays as it is.

    Raises:
        NotFound: there is no such job.
        NotYourTeam: the caller may not change it.
        JobEnded: it has ended or is being cancelled.
        Conflict: the job kept changing under the request.
    """

    def changed(job: Job) -> Job | None:
        if not job.is_suspended:
            return None
        if job.state is not JobState.SUSPENDED:
            return job.but(is_suspended=False)
        return job.but(state=JobState.PENDING, is_suspended=False, reason=f"Resumed by {request.requester.actor}.")

    return _change(request, "resumed", changed, context)


def _by(request: Request) -> str:
    return f"{request.requester.actor}{f': {request.reason}' if request.reason else ''}"


def _change(request: Request, kind: str, changed: Callable[[Job], Job | None], context: Context) -> Job:
    setup = read_setup.run(context.ledger).setup

    def attempt() -> tuple[Job, bool]:
        row = context.ledger.get(rows.job_key(request.job_id))
        if row is None:
            raise NotFound(f"There is no job {request.job_id}.")
        job = rows.read(row, Job)
        check_authority.to_change(request.requester, job, setup)
        if job.state.has_ended or job.state is JobState.STOPPING:
            raise JobEnded(job.reason or f"{job.job_id} has ended.")
        after = changed(job)
        if after is None:
            return job, False
        entry = TimelineEntry(at=context.now, kind=kind, text=f"{kind.capitalize()} by {_by(request)}.", writer=WRITER)
        context.ledger.commit(
            Put(rows.job_row(after, row.version)),
            Put(rows.timeline_row(job.job_id, entry, f"{kind}-{row.version}")),
        )
        return after, True

    job, is_changed = until_committed(attempt, f"{request.job_id} kept changing while it was to be {kind}.")
    if is_changed:
        context.passes.request(f"{job.job_id} {kind}")
    return job
