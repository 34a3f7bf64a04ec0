"""Another service writes between any two ledger calls of a scheduling cycle: quota still follows the rules."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pytest

from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.quotas.teams import FleetQuotas, Team
from evenkeel.ports import Put, Write
from evenkeel.services.jobs.check_role import Requester
from evenkeel.services.storage import charge_rows
from evenkeel.services.tables import rows
from tests.fakes.cluster import GPUS
from tests.interleaving import InterleavedLedger, at_every_point
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs import admission_audit
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_suspend_and_priority import change_priority, resume, suspend
from tests.unit.services_jobs.test_teams import MEMBERS, set_up_teams, setup_of

ANA = Requester(principal="role/ana", identity="111122223333:role/ana", actor="role/ana")


def red_quota(gpus: int) -> Team:
    return a_team("red", gpus, members=MEMBERS, queue={"cohort": ""})


@dataclass
class InterleavingFixture:
    """Four nodes; team red may use two nodes, team blue the other two.

    `alpha` of red runs on one node. `beta`, younger and of the same class, waits for two, which is all that red has.
    `low` of blue runs on two nodes; `high` of blue has a higher class, wants two nodes and waits for its turn.
    """

    scenario: JobScenario
    alpha: Job
    beta: Job
    low: Job
    high: Job

    @classmethod
    def with_jobs(cls) -> "InterleavingFixture":
        scenario = JobScenario(size=4)
        set_up_teams(
            scenario,
            red_quota(16),
            a_team("blue", 16, members=MEMBERS, queue={"cohort": ""}),
            FleetQuotas(priority_classes={"low": 1, "high": 10, "top": 20}),
        )
        alpha = scenario.running(team="red", nodes=1)
        low = scenario.running(team="blue", nodes=2, priority_class="low")
        scenario.world.clock.advance(1)
        beta = scenario.submit("beta", team="red", nodes=2)
        high = scenario.submit("high", team="blue", nodes=2, priority_class="high")
        return cls(scenario, alpha, beta, low, high)

    def job(self, job: Job) -> Job:
        return self.scenario.job(job.job_id)

    def settle(self, job: Job) -> None:
        self.scenario.world.cluster.stop(self.scenario.attempt(job.job_id), 0)
        self.scenario.settle(job.job_id)


def settle_alpha(fleet: InterleavingFixture) -> None:
    fleet.settle(fleet.alpha)


def settle_low(fleet: InterleavingFixture) -> None:
    fleet.settle(fleet.low)


def settle_both(fleet: InterleavingFixture) -> None:
    fleet.settle(fleet.alpha)
    fleet.settle(fleet.low)


def succeed_low(fleet: InterleavingFixture) -> None:
    fleet.scenario.world.cluster.finish_pods(fleet.low.job_id, 1)
    fleet.scenario.settle(fleet.low.job_id)


def suspend_alpha_and_resume_it(fleet: InterleavingFixture) -> None:
    suspend(fleet.scenario, fleet.alpha, ANA)
    resume(fleet.scenario, fleet.alpha, ANA)
    fleet.settle(fleet.alpha)


def suspend_alpha_for_good(fleet: InterleavingFixture) -> None:
    suspend(fleet.scenario, fleet.alpha, ANA)
    fleet.settle(fleet.alpha)


def cancel_beta(fleet: InterleavingFixture) -> None:
    fleet.scenario.cancel(fleet.beta.job_id)


def cancel_alpha(fleet: InterleavingFixture) -> None:
    fleet.scenario.cancel(fleet.alpha.job_id)
    fleet.settle(fleet.alpha)


def suspend_high(fleet: InterleavingFixture) -> None:
    suspend(fleet.scenario, fleet.high, ANA)


def rank_low_above_high(fleet: InterleavingFixture) -> None:
    change_priority(fleet.scenario, fleet.low, "top", requester=ANA)


def rank_high_below_low(fleet: InterleavingFixture) -> None:
    change_priority(fleet.scenario, fleet.high, "", requester=ANA)


def lower_the_quota_of_red(fleet: InterleavingFixture) -> None:
    set_up_teams(fleet.scenario, red_quota(8))


def settle_alpha_and_lower_the_quota(fleet: InterleavingFixture) -> None:
    fleet.settle(fleet.alpha)
    set_up_teams(fleet.scenario, red_quota(8))


def run_another_cycle(fleet: InterleavingFixture) -> None:
    ledger, fleet.scenario.ledger = fleet.scenario.ledger, fleet.scenario.world.ledger
    fleet.scenario.run_scheduling_cycle()
    fleet.scenario.ledger = ledger


def settle_alpha_and_run_another_cycle(fleet: InterleavingFixture) -> None:
    fleet.settle(fleet.alpha)
    run_another_cycle(fleet)


def sweep(fleet: InterleavingFixture) -> None:
    ledger, fleet.scenario.ledger = fleet.scenario.ledger, fleet.scenario.world.ledger
    fleet.scenario.world.cluster.stop(fleet.scenario.attempt(fleet.alpha.job_id), 0)
    fleet.scenario.sweep()
    fleet.scenario.settle(fleet.alpha.job_id)
    fleet.scenario.ledger = ledger


WRITERS = (
    settle_alpha,
    settle_low,
    settle_both,
    succeed_low,
    suspend_alpha_and_resume_it,
    suspend_alpha_for_good,
    cancel_beta,
    cancel_alpha,
    suspend_high,
    rank_low_above_high,
    rank_high_below_low,
    lower_the_quota_of_red,
    settle_alpha_and_lower_the_quota,
    run_another_cycle,
    settle_alpha_and_run_another_cycle,
    sweep,
)


@pytest.mark.parametrize(
    "lags",
    [pytest.param(False, marks=pytest.mark.exhaustive), True],
    ids=["index-current", "index-lags"],
)
@pytest.mark.parametrize("act", WRITERS, ids=lambda writer: writer.__name__)
def test_no_write_during_a_cycle_breaks_quota_rules(act: Callable[[InterleavingFixture], None], lags: bool) -> None:
    def run(at: int) -> int:
        fleet = InterleavingFixture.with_jobs()
        scenario = fleet.scenario
        interleaved = InterleavedLedger(scenario.world.ledger, at, lambda: act(fleet), lags=lags)
        scenario.ledger = interleaved  # type: ignore[assignment]
        scenario.run_scheduling_cycle()
        scenario.ledger = scenario.world.ledger
        if interleaved.calls < at:
            return interleaved.calls
        scenario.run_scheduling_cycle()

        assert list(found_faults(fleet)) == [], f"before call {at}"
        return interleaved.calls

    assert len(list(at_every_point(run))) >= 8


def found_faults(fleet: InterleavingFixture) -> Iterator[str]:
    scenario = fleet.scenario
    yield from admission_audit.broken_limits(scenario.world.ledger.commits, setup_of(scenario), GPUS)
    yield from wrong_preemptions(scenario.world.ledger.commits)
    alpha, beta = fleet.job(fleet.alpha), fleet.job(fleet.beta)
    if alpha.state is JobState.PENDING and beta.current_attempt:
        yield f"alpha waits behind beta: {alpha.reason}"
    held = {charge.job_id for charge in charge_rows.live_charges(scenario.world.ledger)}
    for job in (alpha, beta, fleet.job(fleet.low), fleet.job(fleet.high)):
        if (job.job_id in held) != job.state.has_live_attempt:
            yield f"{job.job_id} is {job.state}, and its charge is {'held' if job.job_id in held else 'not held'}"


def wrong_preemptions(commits: Iterable[tuple[Write, ...]]) -> Iterator[str]:
    """Yield each job that was preempted for a job without a higher priority at that time."""
    jobs: dict[str, Job] = {}
    for writes in commits:
        written = [write.row for write in writes if isinstance(write, Put) and write.row.key.sk == "META"]
        for row in (row for row in written if row.key.pk.startswith("JOB#")):
            job = rows.decode(row, Job)
            stop_request, before = job.stop_request, jobs.get(job.job_id)
            jobs[job.job_id] = job
            by = stop_request.by.removeprefix("schedule_jobs/") if stop_request else ""
            is_new = stop_request is not None and not (before and before.stop_request == stop_request)
            if is_new and by in jobs and jobs[by].priority <= job.priority:
                yield f"{job.job_id} of priority {job.priority} stops for {by} of priority {jobs[by].priority}"
