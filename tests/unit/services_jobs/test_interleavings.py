"""Another writer between any two ledger calls of a scheduling cycle: quota passes on by the rules alone."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pytest

from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.quotas.teams import FleetQuotas, Team
from evenkeel.ports import Put, Write
from evenkeel.services.jobs.check_authority import Asker
from evenkeel.services.storage import read_charges, rows
from tests.fakes.cluster import GPUS
from tests.interleaving import Interleaved, every_point
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs import audit
from tests.unit.services_jobs.story import Story
from tests.unit.services_jobs.test_suspend_and_rank import rank, resume, suspend
from tests.unit.services_jobs.test_teams import MEMBERS, set_up, setup_of

ANA = Asker(principal="role/ana", identity="111122223333:role/ana", actor="role/ana")


def red(gpus: int) -> Team:
    return a_team("red", gpus, members=MEMBERS, queue={"cohort": ""})


@dataclass
class Fleet:
    """Four nodes; team red may use two of them, team blue the others.

    `alpha` of red runs on one node. `beta`, younger and of the same class, waits for two, which is all that red has.
    `low` of blue runs on two nodes; `high` of blue has a higher class, wants two nodes and waits for its turn.
    """

    story: Story
    alpha: Job
    beta: Job
    low: Job
    high: Job

    @classmethod
    def laid_out(cls) -> "Fleet":
        story = Story(size=4)
        set_up(
            story,
            red(16),
            a_team("blue", 16, members=MEMBERS, queue={"cohort": ""}),
            FleetQuotas(priority_classes={"low": 1, "high": 10, "top": 20}),
        )
        alpha = story.running(team="red", nodes=1)
        low = story.running(team="blue", nodes=2, priority_class="low")
        story.world.clock.advance(1)
        beta = story.submit("beta", team="red", nodes=2)
        high = story.submit("high", team="blue", nodes=2, priority_class="high")
        return cls(story, alpha, beta, low, high)

    def job(self, job: Job) -> Job:
        return self.story.job(job.job_id)

    def settle(self, job: Job) -> None:
        self.story.world.cluster.stop(self.story.attempt(job.job_id), 0)
        self.story.settle(job.job_id)


def settle_alpha(fleet: Fleet) -> None:
    fleet.settle(fleet.alpha)


def settle_low(fleet: Fleet) -> None:
    fleet.settle(fleet.low)


def settle_both(fleet: Fleet) -> None:
    fleet.settle(fleet.alpha)
    fleet.settle(fleet.low)


def succeed_low(fleet: Fleet) -> None:
    fleet.story.world.cluster.finish_pods(fleet.low.job_id, 1)
    fleet.story.settle(fleet.low.job_id)


def suspend_alpha_and_resume_it(fleet: Fleet) -> None:
    suspend(fleet.story, fleet.alpha, ANA)
    resume(fleet.story, fleet.alpha, ANA)
    fleet.settle(fleet.alpha)


def suspend_alpha_for_good(fleet: Fleet) -> None:
    suspend(fleet.story, fleet.alpha, ANA)
    fleet.settle(fleet.alpha)


def cancel_beta(fleet: Fleet) -> None:
    fleet.story.cancel(fleet.beta.job_id)


def cancel_alpha(fleet: Fleet) -> None:
    fleet.story.cancel(fleet.alpha.job_id)
    fleet.settle(fleet.alpha)


def suspend_high(fleet: Fleet) -> None:
    suspend(fleet.story, fleet.high, ANA)


def rank_low_above_high(fleet: Fleet) -> None:
    rank(fleet.story, fleet.low, "top", asker=ANA)


def rank_high_below_low(fleet: Fleet) -> None:
    rank(fleet.story, fleet.high, "", asker=ANA)


def lower_the_quota_of_red(fleet: Fleet) -> None:
    set_up(fleet.story, red(8))


def settle_alpha_and_lower_the_quota(fleet: Fleet) -> None:
    fleet.settle(fleet.alpha)
    set_up(fleet.story, red(8))


def run_another_cycle(fleet: Fleet) -> None:
    ledger, fleet.story.ledger = fleet.story.ledger, fleet.story.world.ledger
    fleet.story.run_pass()
    fleet.story.ledger = ledger


def settle_alpha_and_run_another_cycle(fleet: Fleet) -> None:
    fleet.settle(fleet.alpha)
    run_another_cycle(fleet)


def sweep(fleet: Fleet) -> None:
    ledger, fleet.story.ledger = fleet.story.ledger, fleet.story.world.ledger
    fleet.story.world.cluster.stop(fleet.story.attempt(fleet.alpha.job_id), 0)
    fleet.story.sweep()
    fleet.story.settle(fleet.alpha.job_id)
    fleet.story.ledger = ledger


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


@pytest.mark.parametrize("lags", [False, True], ids=["index-current", "index-lags"])
@pytest.mark.parametrize("act", WRITERS, ids=lambda each: each.__name__)
def test_no_writer_in_mid_cycle_moves_quota_against_the_rules(act: Callable[[Fleet], None], lags: bool) -> None:
    def run(at: int) -> int:
        fleet = Fleet.laid_out()
        story = fleet.story
        interleaved = Interleaved(story.world.ledger, at, lambda: act(fleet), lags=lags)
        story.ledger = interleaved  # type: ignore[assignment]
        story.run_pass()
        story.ledger = story.world.ledger
        if interleaved.calls < at:
            return interleaved.calls
        story.run_pass()

        assert list(faults(fleet)) == [], f"before call {at}"
        return interleaved.calls

    assert len(list(every_point(run))) >= 8


def faults(fleet: Fleet) -> Iterator[str]:
    story = fleet.story
    yield from audit.faults(story.world.ledger.commits, setup_of(story), GPUS)
    yield from wrong_preemptions(story.world.ledger.commits)
    alpha, beta = fleet.job(fleet.alpha), fleet.job(fleet.beta)
    if alpha.state is JobState.PENDING and beta.current_attempt:
        yield f"alpha waits behind beta: {alpha.reason}"
    held = {charge.job_id for charge in read_charges.held(story.world.ledger)}
    for job in (alpha, beta, fleet.job(fleet.low), fleet.job(fleet.high)):
        if (job.job_id in held) != job.state.has_live_attempt:
            yield f"{job.job_id} is {job.state}, and its charge is {'held' if job.job_id in held else 'not held'}"


def wrong_preemptions(commits: Iterable[tuple[Write, ...]]) -> Iterator[str]:
    """Yield each job that was asked to stop for one that had no higher priority at that moment."""
    jobs: dict[str, Job] = {}
    for writes in commits:
        written = [write.row for write in writes if isinstance(write, Put) and write.row.key.sk == "META"]
        for row in (row for row in written if row.key.pk.startswith("JOB#")):
            job = rows.read(row, Job)
            asked, before = job.stop_request, jobs.get(job.job_id)
            jobs[job.job_id] = job
            by = asked.by.removeprefix("schedule_jobs/") if asked else ""
            is_new = asked is not None and not (before and before.stop_request == asked)
            if is_new and by in jobs and jobs[by].priority <= job.priority:
                yield f"{job.job_id} of priority {job.priority} stops for {by} of priority {jobs[by].priority}"
