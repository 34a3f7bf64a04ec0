from datetime import timedelta
from typing import Any

from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Put, Table
from evenkeel.services.storage import job_rows
from tests.fakes.ledger import InMemoryLedger
from tests.unit.scheduling.builders import NOW, a_job


def a_queued_job(number: int, **changes: Any) -> Job:
    return a_job(job_id=f"job-{number}", state=JobState.PENDING, **changes)


def listed_job_ids(*jobs: Job, queue: str) -> list[str]:
    ledger = InMemoryLedger()
    ledger.commit(*(Put(job_rows.job_row(job, 0)) for job in jobs))
    page = ledger.by_state(Table.JOBS, "JOB#PENDING", prefix=job_rows.queue_prefix(queue))
    return [row.doc["jobId"] for row in page.rows]


def test_queue_is_listed_by_priority_then_time_then_id() -> None:
    later = NOW + timedelta(seconds=1)
    jobs = (
        a_queued_job(1, queue="red", submitted_at=later),
        a_queued_job(2, queue="red"),
        a_queued_job(3, queue="red", priority=7, submitted_at=later),
        a_queued_job(4, queue="red", priority=-(2**31)),
        a_queued_job(5, queue="red", priority=2**31 - 1, submitted_at=later),
        a_queued_job(6, queue="red"),
    )

    assert listed_job_ids(*jobs, queue="red") == ["job-5", "job-3", "job-2", "job-6", "job-1", "job-4"]


def test_listed_queue_contains_only_its_own_jobs() -> None:
    jobs = (a_queued_job(1, queue="red"), a_queued_job(2, queue="red-2"), a_queued_job(3), a_queued_job(4, queue="re"))

    assert listed_job_ids(*jobs, queue="red") == ["job-1"]


def test_requeued_job_is_ordered_by_its_new_time() -> None:
    jobs = (a_queued_job(1, queue="red", queued_at=NOW + timedelta(seconds=9)), a_queued_job(2, queue="red"))

    assert listed_job_ids(*jobs, queue="red") == ["job-2", "job-1"]


def test_started_job_leaves_its_queue() -> None:
    row = job_rows.job_row(a_queued_job(1, queue="red", priority=3).replace(state=JobState.RUNNING), 0)

    assert row.state == ("JOB#RUNNING", f"{rfc3339(NOW)}#job-1")
