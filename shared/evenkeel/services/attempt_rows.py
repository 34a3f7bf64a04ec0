"""A job and one of its attempts, read together with the versions that a write depends on."""

from typing import NamedTuple

from evenkeel.domain.scheduling.jobs import Attempt, Job
from evenkeel.domain.values import Value
from evenkeel.ports import Ledger, NotFound
from evenkeel.services import rows


class Request(Value):
    """One attempt: the input of most states of its workflow."""

    schema_version: int = 1
    job_id: str
    attempt: int


class Found(NamedTuple):
    """What was read. Each write is conditional on the version it was read at."""

    job: Job
    job_version: int
    attempt: Attempt
    attempt_version: int


def load(ledger: Ledger, job_id: str, attempt: int) -> Found:
    """Read a job and one attempt.

    Raises:
        NotFound: there is no such job or attempt.
    """
    job = ledger.get(rows.job_key(job_id))
    row = ledger.get(rows.attempt_key(job_id, attempt))
    if job is None or row is None:
        raise NotFound(f"There is no attempt {attempt} of {job_id}.")
    return Found(rows.read(job, Job), job.version, rows.read(row, Attempt), row.version)
