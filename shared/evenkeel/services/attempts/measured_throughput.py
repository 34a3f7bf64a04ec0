"""Record the throughput that a resume point reports on its job, at the size of the attempt that wrote it.

`mark_running` records it. If only rank 0 reads the checkpoint, its report may come later: `settle_attempt` records it.
"""

from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.ports import Ledger
from evenkeel.services.tables import job_rows, rows


def with_reported_throughput(job: Job, attempt: Attempt, ledger: Ledger) -> Job:
    """Return an elastic job with the throughput that the resume point of its attempt reports; else the job itself.

    Repeats are safe: a report replaces the earlier report of the same size.
    """
    if job.spec.elastic is None or attempt.resume_from is None or attempt.resumed_throughput is None:
        return job
    row = ledger.get(job_rows.attempt_key(job.job_id, attempt.resume_from.attempt))
    return job.with_throughput(rows.decode(row, Attempt).ranks, attempt.resumed_throughput) if row else job
