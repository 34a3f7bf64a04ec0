"""A person sets a job's priority class."""

from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.validation import check_spec
from evenkeel.domain.quotas.permissions import check_permitted
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import Conflict, Invalid, NotFound, Put, StaleVersion
from evenkeel.services.context import Context
from evenkeel.services.jobs import check_role
from evenkeel.services.jobs.suspend_job import JobEnded
from evenkeel.services.storage import open_jobs, team_setup
from evenkeel.services.tables import job_rows, rows, subject_rows

WRITER = "set_priority"


class SetPriorityRequest(Value):
    """A request to change a priority class."""

    job_id: str
    priority_class: str
    expected: int
    """Version of the job that the request was written for."""
    requester: check_role.Requester
    reason: str = ""


def run(request: SetPriorityRequest, context: Context) -> Job:
    """Set a job's priority class, and so its queue position and the jobs that it may preempt.

    A running job keeps running. The next scheduling cycle uses the new priority.

    Idempotent: yes, a repeated request finds the class that it names.

    Raises:
        NotFound: there is no such job.
        NotYourTeam: the caller may not change it.
        JobEnded: it has ended or is being cancelled.
        Invalid: there is no such class.
        StaleVersion: the job has changed since.
    """
    setup = team_setup.load_setup(context.ledger).setup
    row = context.ledger.get(job_rows.job_key(request.job_id))
    if row is None:
        raise NotFound(f"There is no job {request.job_id}.")
    job = rows.decode(row, Job)
    check_role.to_change(request.requester, job, setup)
    if job.state.has_ended or job.state is JobState.STOPPING:
        raise JobEnded(job)
    spec = job.spec.replace(priority_class=request.priority_class)
    faults = (
        *check_spec(spec),
        *check_permitted(spec, setup, context.policy.priority_classes, context.policy.jobs.allowed),
    )
    wrong = tuple(fault for fault in faults if fault.field == "priorityClass")
    if wrong:
        raise Invalid("The job cannot have this class.", wrong)
    changed_job = job.replace(spec=spec, priority=setup.priority_of(request.priority_class))
    if changed_job == job:
        return job
    if row.version != request.expected:
        raise StaleVersion(f"{request.job_id} is at version {row.version}, not {request.expected}.")
    old_class, new_class = (name or "(unset)" for name in (job.spec.priority_class, request.priority_class))
    reason_text = f": {request.reason}" if request.reason else ""
    text = f"Priority class {old_class} became {new_class}, by {request.requester.actor}{reason_text}."
    entry = TimelineEntry(at=context.now, kind="priority changed", text=text, writer=WRITER)
    try:
        context.ledger.commit(
            Put(job_rows.job_row(changed_job, row.version)),
            Put(subject_rows.timeline_row(job.job_id, entry, f"ranked-{row.version}")),
            *open_jobs.queue_mark_writes(changed_job),
        )
    except Conflict as error:
        raise StaleVersion(f"{request.job_id} changed during this request. Read it again and retry.") from error
    context.cycle_requests.request(f"{job.job_id} ranked")
    return changed_job
