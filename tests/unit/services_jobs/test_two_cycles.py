"""A scheduling cycle while another cycle commits its admissions."""

from typing import Any

from evenkeel.domain.jobs.job import JobState
from evenkeel.ports import Write
from evenkeel.services.scheduling import schedule_jobs
from tests.fakes.system import FixedClock
from tests.unit.services_jobs.job_scenario import JobScenario


class RivalLedger:
    """A ledger into which another cycle admits a job right before the first commit."""

    def __init__(self, scenario: JobScenario) -> None:
        self._scenario = scenario
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scenario.world.ledger, name)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        self.commits += 1
        if self.commits == 1:
            admit_another_job(self._scenario, "rival-0")
        self._scenario.world.ledger.commit(*writes, client_token=client_token)


class RivalClock(FixedClock):
    """A clock: while a cycle waits, another cycle admits a job, the first `rivals` times."""

    def __init__(self, scenario: JobScenario, rivals: int) -> None:
        super().__init__(scenario.world.clock.now())
        self._scenario, self._rivals = scenario, rivals
        self.sleeps = 0

    def sleep_about(self, seconds: float) -> None:
        self.sleeps += 1
        if self.sleeps <= self._rivals:
            admit_another_job(self._scenario, f"rival-{self.sleeps}")


def admit_another_job(scenario: JobScenario, key: str) -> None:
    scenario.submit(key, nodes=1)
    scenario.run_scheduling_cycle()


def test_cycle_decides_again_once_no_other_cycle_commits() -> None:
    scenario = JobScenario(size=8)
    job = scenario.submit("own", nodes=1)
    ledger, clock = RivalLedger(scenario), RivalClock(scenario, rivals=2)

    result = schedule_jobs.run(scenario.context(ledger=ledger, clock=clock))

    assert result.is_complete
    assert clock.sleeps == 3
    assert scenario.job(job.job_id).state is not JobState.PENDING


def test_cycle_waits_for_other_cycles_only_a_limited_time() -> None:
    scenario = JobScenario(size=16)
    scenario.submit("own", nodes=1)
    ledger, clock = RivalLedger(scenario), RivalClock(scenario, rivals=100)

    schedule_jobs.run(scenario.context(ledger=ledger, clock=clock))

    assert clock.sleeps == 5


def test_undisturbed_cycle_never_waits() -> None:
    scenario = JobScenario(size=8)
    scenario.submit("own", nodes=1)
    clock = RivalClock(scenario, rivals=0)

    schedule_jobs.run(scenario.context(clock=clock))

    assert clock.sleeps == 0
