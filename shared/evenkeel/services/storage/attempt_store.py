"""A job and one of its attempts, read together with the versions that a write depends on."""

from collections.abc import Iterable
from typing import NamedTuple

from evenkeel.domain.jobs.attempt import Attempt, ObservedWorkload
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.values import Value
from evenkeel.ports import Ledger, NotFound, get_all
from evenkeel.services.tables import job_rows, rows


class AttemptRequest(Value):
    """An attempt: the input of most states of its workflow."""

    schema_version: int = 1
    job_id: str
    attempt: int


class StoredAttempt(NamedTuple):
    """A job and an attempt as read. Each write is conditional on the version that was read."""

    job: Job
    job_version: int
    attempt: Attempt
    attempt_version: int


def load_attempt(ledger: Ledger, job_id: str, attempt: int) -> StoredAttempt:
    """Read a job and one attempt.

    Raises:
        NotFound: there is no such job or attempt.
    """
    job = ledger.get(job_rows.job_key(job_id))
    row = ledger.get(job_rows.attempt_key(job_id, attempt))
    if job is None or row is None:
        raise NotFound(f"{job_id} has no attempt {attempt}.")
    return StoredAttempt(rows.decode(job, Job), job.version, rows.decode(row, Attempt), row.version)


def owned_workloads(
    ledger: Ledger, workloads: Iterable[tuple[str, ObservedWorkload]]
) -> list[tuple[Attempt, ObservedWorkload]]:
    """Return the Jobs and pods that belong to attempts, each with its attempt from the ledger.

    Objects that only carry the labels of an attempt are left out (`Attempt.owns`).

    Args:
        ledger: Holds the attempts.
        workloads: Objects with Evenkeel's labels, each with the name of its cluster.
    """
    keys = [
        (job_rows.attempt_key(workload.job_id, workload.attempt), cluster, workload) for cluster, workload in workloads
    ]
    stored_rows = get_all(ledger, (key for key, _, _ in keys))
    attempts = {row.key: attempt for row, attempt in rows.readable_rows(stored_rows.values(), Attempt)}
    pairs = ((attempts[key], cluster, workload) for key, cluster, workload in keys if key in attempts)
    return [
        (attempt, workload)
        for attempt, cluster, workload in pairs
        if attempt.cluster == cluster and attempt.owns(workload)
    ]
