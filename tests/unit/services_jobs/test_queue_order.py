from datetime import timedelta
from itertools import product
from typing import Any

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.team_queues import TeamQueues
from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.quotas.teams import Team, TeamSetup
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Put, Table
from evenkeel.services.tables import job_rows
from tests.fakes.ledger import InMemoryLedger
from tests.unit.scheduling.builders import NOW, a_job, a_spec


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


def jobs_of_every_order(**changes: Any) -> list[Job]:
    """Return jobs with all combinations of priority and times, and with ids in another order."""
    times = (NOW, NOW + timedelta(microseconds=1), NOW + timedelta(seconds=1))
    orders = product((-(2**31), -1, 0, 9, 10, 2**31 - 1), times, (None, *times), (False, True))
    return [
        a_queued_job(number * 37 % 144, priority=priority, submitted_at=submitted_at, queued_at=queued_at, **changes)
        for number, (priority, submitted_at, queued_at, _) in enumerate(orders)
    ]


def test_stored_queue_has_the_order_of_the_queue_engine() -> None:
    groups = [{"ml.p5.48xlarge": {"nvidia.com/gpu": 16}}]
    team = Team.model_validate({"name": "red", "namespace": "red", "queue": {"cohort": "fleet", "groups": groups}})
    queues = TeamQueues(AdmissionInput(setup=TeamSetup(teams=(team,))), EconomyPolicy(), NOW)
    jobs = jobs_of_every_order(queue="red", spec=a_spec(team="red"))

    def engine_order(job: Job) -> tuple[int, float, str, str]:
        return queues.to_kueue(AdmissionRequest.of(job)).to_workload(job.priority).order

    assert sorted(jobs, key=job_rows.queue_order) == sorted(jobs, key=engine_order)


def test_stored_queue_without_teams_has_the_order_of_admission() -> None:
    jobs = jobs_of_every_order()

    by_admission = sorted(jobs, key=lambda job: AdmissionRequest.of(job).queue_order_key)
    assert sorted(jobs, key=job_rows.queue_order) == by_admission
