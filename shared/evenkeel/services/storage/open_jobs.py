"""Counters of open jobs, for each principal and each queue. The counters enforce the policy's limits on submissions.

A job is open from its submission until it has ended. Its counters change in the same commit as the job. A submission
writes each counter at the version that it read. So of two submissions that compete for the last job of a limit, one
is refused.
"""

from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.plurals import count_of
from evenkeel.ports import Add, Key, Ledger, Put, Refused, Row
from evenkeel.services.tables import job_rows


class TooManyOpenJobs(Refused):
    """A principal or a team has as many open jobs as the policy allows."""

    code = "TOO_MANY_OPEN_JOBS"


def counter_names_of(job: Job) -> tuple[str, ...]:
    """Return the counters of a job: of its submitter and of its queue. The queue without teams has the empty name."""
    return (f"principal#{job.submitter}", f"queue#{job.queue}")


def increment_writes(job: Job, ledger: Ledger, limits: SchedulingPolicy) -> tuple[Put, ...]:
    """Return the writes that add a new job to the counters of its submitter and its queue, for the same commit.

    Raises:
        TooManyOpenJobs: a limit is reached; names the limit.
    """
    by_principal, by_queue = counter_names_of(job)
    whose = f"Team {job.queue}" if job.queue else "The queue that all jobs share"
    return (
        _increment_put(by_principal, job.submitter, limits.max_open_jobs_per_principal, "PerPrincipal", ledger),
        _increment_put(by_queue, whose, limits.max_open_jobs_per_team, "PerTeam", ledger),
    )


def _increment_put(name: str, whose: str, limit_jobs: int, limit: str, ledger: Ledger) -> Put:
    key = job_rows.open_jobs_key(name)
    row = ledger.get(key) or Row(key, {})
    count = int(row.doc.get("jobs", 0))
    if count >= limit_jobs:
        raise TooManyOpenJobs(
            f"{whose} has {count_of(count, 'open job')}, and the policy allows {limit_jobs} "
            f"(scheduling.maxOpenJobs{limit}). Cancel jobs that are not needed, or submit again when some have ended."
        )
    return Put(Row(key, {**row.doc, "jobs": count + 1}, row.version))


def queue_mark_key(queue: str) -> Key:
    """Return the key of a queue's counter. Its version marks the queue (`domain/scheduling/queue_heads.py`)."""
    return job_rows.open_jobs_key(f"queue#{queue}")


def queue_mark_writes(job: Job) -> tuple[Add, ...]:
    """Return the write that marks the queue of a pending job as changed, for the commit that changes its position."""
    return (Add(queue_mark_key(job.queue), {}),) if job.state is JobState.PENDING else ()


def decrement_writes(job: Job) -> tuple[Add, ...]:
    """Return the writes that remove a job from these counters, for the commit that ends it."""
    return tuple(Add(job_rows.open_jobs_key(name), {"jobs": -1}) for name in job.open_job_counters)
