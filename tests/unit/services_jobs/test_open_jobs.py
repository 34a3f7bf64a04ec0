"""The number of open jobs is limited for each principal and each team, even if submissions race."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any

import pytest

from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.policy import Policy
from evenkeel.ports import Key, Ledger, Row, Table
from evenkeel.services.storage.open_jobs import TooManyOpenJobs
from evenkeel.services.tables import job_rows
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_scheduling_cycles import _locked_counter
from tests.unit.services_jobs.test_teams import shared_fleet


def a_scenario(**limits: int) -> JobScenario:
    return JobScenario(policy=Policy(scheduling=SchedulingPolicy.model_validate(limits)))


def open_jobs_of(scenario: JobScenario, name: str) -> int:
    row = scenario.world.ledger.get(job_rows.open_jobs_key(name))
    return int(row.doc["jobs"]) if row else 0


def test_submission_beyond_principals_limit_is_refused() -> None:
    scenario = a_scenario(max_open_jobs_per_principal=2)
    scenario.submit("a")
    scenario.submit("b")

    with pytest.raises(TooManyOpenJobs, match=r"role/ana has 2 open jobs.* 2 \(scheduling.maxOpenJobsPerPrincipal\)"):
        scenario.submit("c")

    assert scenario.submission("c", principal="role/bo").job.state is JobState.PENDING
    assert len(scenario.world.ledger.by_state(Table.JOBS, "JOB#PENDING").rows) == 3


def test_submission_beyond_teams_limit_is_refused() -> None:
    scenario = shared_fleet()
    scenario.policy = Policy(scheduling=SchedulingPolicy(max_open_jobs_per_team=1))
    scenario.submit("a", team="red")

    with pytest.raises(TooManyOpenJobs, match=r"Team red has 1 open job,.*scheduling.maxOpenJobsPerTeam"):
        scenario.submission("b", principal="role/bo", team="red")

    scenario.submit("c", team="blue")


def test_limit_of_open_jobs_without_teams_counts_all_jobs() -> None:
    scenario = a_scenario(max_open_jobs_per_team=1)
    scenario.submit("a")

    with pytest.raises(TooManyOpenJobs, match="The queue that all jobs share has 1 open job,"):
        scenario.submission("b", principal="role/bo", team="another")


def test_repeated_submission_is_answered_even_at_the_limit() -> None:
    scenario = a_scenario(max_open_jobs_per_principal=1)
    job = scenario.submit("a")

    assert scenario.submission("a").job.job_id == job.job_id
    assert open_jobs_of(scenario, "principal#role/ana") == 1


def test_ended_jobs_no_longer_count_against_the_limit() -> None:
    scenario = a_scenario(max_open_jobs_per_principal=2)
    done, cancelled = scenario.running(), scenario.submit("cancelled")
    scenario.world.cluster.finish_pods(done.job_id, 1)
    scenario.settle(done.job_id)
    scenario.settle(done.job_id)
    scenario.cancel(cancelled.job_id)
    scenario.cancel(cancelled.job_id)

    assert (open_jobs_of(scenario, "principal#role/ana"), open_jobs_of(scenario, "queue#")) == (0, 0)
    scenario.submit("next")


def test_interrupted_job_stays_open() -> None:
    scenario = a_scenario()
    job = scenario.running()
    scenario.world.cluster.stop(scenario.attempt(job.job_id), 0)

    scenario.settle(job.job_id)

    assert open_jobs_of(scenario, "principal#role/ana") == 1


def test_job_submitted_before_the_limits_is_not_subtracted() -> None:
    scenario = a_scenario()
    job = scenario.submit("a")
    scenario.set_job(job.replace(open_job_counters=()))

    scenario.cancel(job.job_id)

    assert open_jobs_of(scenario, "principal#role/ana") == 1


@dataclass
class BarrierLedger:
    """A ledger that lets all concurrent callers read a counter before any of them commits."""

    ledger: Ledger
    barrier: Barrier = field(default_factory=lambda: Barrier(4))
    met: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ledger, name)

    def get(self, key: Key) -> Row | None:
        row = self.ledger.get(key)
        if key == job_rows.open_jobs_key("principal#role/ana") and self.met < 4:
            self.met += 1
            self.barrier.wait(60)
        return row


def test_racing_submissions_stay_within_the_limit() -> None:
    scenario = a_scenario(max_open_jobs_per_principal=2)
    scenario.world.ids = _locked_counter(scenario.world.ids)
    scenario.ledger = BarrierLedger(scenario.world.ledger)  # type: ignore[assignment]

    def submit(number: int) -> bool:
        try:
            scenario.submit(f"key-{number}")
        except TooManyOpenJobs:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        accepted = [future.result(90) for future in [threads.submit(submit, number) for number in range(4)]]

    assert sorted(accepted) == [False, False, True, True]
    assert open_jobs_of(scenario, "principal#role/ana") == 2
    assert len(scenario.world.ledger.by_state(Table.JOBS, "JOB#PENDING").rows) == 2


def test_shipped_limits_are_the_policy_defaults() -> None:
    shipped = Policy().scheduling
    assert (shipped.max_open_jobs_per_principal, shipped.max_open_jobs_per_team) == (500, 2000)
