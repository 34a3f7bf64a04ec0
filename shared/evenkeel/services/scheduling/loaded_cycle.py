"""Everything that a scheduling cycle read, and the reads of jobs that its steps share."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from evenkeel.domain.jobs.job import Job
from evenkeel.domain.scheduling.cycle_snapshot import CycleSnapshot
from evenkeel.domain.scheduling.queue_heads import QueueHeads
from evenkeel.ports import EvenkeelError, Key, Ledger, Row, get_all
from evenkeel.services.storage import charge_rows
from evenkeel.services.tables import rows

READS_AT_ONCE = 8

StoredJobs = Mapping[str, tuple[Job, int]]
"""Job id → the job and the version of its row."""


class StoredHeads(NamedTuple):
    """The heads of many queues as of this cycle, with the row in which the next cycle finds them."""

    heads: QueueHeads
    row: Row
    are_current: bool
    """Whether the cycle read every head whose mark has changed."""


class LoadedCycle(NamedTuple):
    """Everything that a cycle read, with the rows and versions that its commits depend on."""

    tree: Row
    snapshot: CycleSnapshot
    versions: Mapping[str, int] = {}
    """Job id → version of its row."""
    charges: charge_rows.Charges = charge_rows.Charges()
    outdated: tuple[Row, ...] = ()
    """Rows of released charges that no job needs now."""
    cursors_row: Row | None = None
    """The row of the queue cursors; None if no queue is longer than its first page."""
    heads: StoredHeads | None = None
    """The heads of the queues; None if there are few queues, so that each cycle reads all of them."""
    errors: Mapping[str, EvenkeelError] = {}
    """Cluster that could not be read → the error."""

    @property
    def is_whole(self) -> bool:
        """Whether the cycle read all clusters, and the heads of all queues that have changed."""
        return not self.errors and (self.heads is None or self.heads.are_current)

    def stored(self, job_id: str) -> tuple[Job, int]:
        """Return a job that the cycle read, with the version of its row."""
        job = self.snapshot.known_job(job_id)
        assert job is not None, f"the plan names {job_id}, which was not read"
        return job, self.versions[job_id]


def read_jobs(ledger: Ledger, keys: Iterable[Key]) -> dict[str, tuple[Job, int]]:
    found_rows = get_all(ledger, keys).values()
    return {job.job_id: (job, row.version) for row, job in rows.readable_rows(found_rows, Job)}


def jobs_by_id(stored_jobs: StoredJobs) -> dict[str, Job]:
    return {job_id: job for job_id, (job, _) in stored_jobs.items()}


def versions_of(stored_jobs: StoredJobs) -> dict[str, int]:
    return {job_id: version for job_id, (_, version) in stored_jobs.items()}
