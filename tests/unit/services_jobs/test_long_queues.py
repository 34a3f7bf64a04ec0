"""Queues that are too long for one cycle: every job is examined within some cycles."""

import contextlib
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.policy import Policy
from evenkeel.domain.scheduling.queue_cursors import queues_to_read
from evenkeel.ports import Put, Table
from evenkeel.services.tables import job_rows, quota_rows, rows
from tests.fakes.counting import CountedCalls
from tests.fakes.crashes import Crash
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_teams import MEMBERS, set_up_teams


def crowded_queue(parked: int, **more: Any) -> tuple[JobScenario, Job]:
    """A small job behind many jobs that cannot start, each for a different reason."""
    policy = Policy(scheduling=SchedulingPolicy(jobs_per_page=5))
    scenario = JobScenario(size=2, policy=policy)
    set_up_teams(scenario, a_team("red", 8, members=MEMBERS, queue=more))
    for number in range(parked):
        scenario.world.clock.advance(1)
        # Each job has a different shape: a job of an equal shape would be parked with the first, without its own
        # decision.
        scenario.submit(f"large-{number}", team="red", nodes=2 + number, accelerators_per_node=8)
    scenario.world.clock.advance(1)
    return scenario, scenario.submit("small", team="red", nodes=1, accelerators_per_node=8)


@pytest.mark.parametrize("parked", [20, 60, 100])
def test_each_queued_job_is_examined_within_one_cycle_per_page(parked: int) -> None:
    scenario, small = crowded_queue(parked)

    cycles = 0
    while scenario.job(small.job_id).state is JobState.PENDING and cycles <= parked:
        scenario.run_scheduling_cycle()
        cycles += 1

    assert scenario.job(small.job_id).state is JobState.STARTING
    assert cycles <= parked / 5 + 1


@settings(max_examples=12, deadline=None)
@given(teams=st.integers(1, 7), parked=st.integers(1, 14))
def test_each_job_of_each_long_queue_is_examined_in_turn(teams: int, parked: int) -> None:
    terms = SchedulingPolicy(jobs_per_page=2, max_jobs_per_cycle=1)
    scenario = JobScenario(size=teams + 1, policy=Policy(scheduling=terms))
    names = [f"team-{number}" for number in range(teams)]
    set_up_teams(scenario, *(a_team(name, 8, cohort=name, members=MEMBERS) for name in names))
    for name in names:
        for number in range(parked):
            scenario.submit(f"{name}-{number}", team=name, nodes=2 + number, accelerators_per_node=8)
    small = [scenario.submit(f"{name}-small", team=name, nodes=1, accelerators_per_node=8).job_id for name in names]
    turns = math.ceil((teams + 1) / terms.long_queues_per_cycle)

    for _ in range(turns * (math.ceil((parked + 1) / 2) + 1)):
        scenario.run_scheduling_cycle()

    assert {scenario.job(job_id).state for job_id in small} == {JobState.STARTING}


def test_cycle_makes_equal_number_of_reads_for_longer_queue() -> None:
    read = []
    for parked in (60, 120):
        scenario, _ = crowded_queue(parked)
        calls = CountedCalls(scenario.world)
        scenario.ledger = calls.ports["ledger"]
        scenario.run_scheduling_cycle()
        read.append({name: calls.calls[name] for name in ("ledger.by_state", "ledger.batch_get", "ledger.get")})

    assert read[0] == read[1]


def test_many_long_queues_take_turns() -> None:
    long = ["a", "b", "c", "d"]

    assert queues_to_read(long, None, 3) == ("a", "b", "c")
    assert queues_to_read(long, "c", 3) == ("d", "a", "b")
    assert queues_to_read(["a", "d"], "c", 3) == ("d", "a")
    assert queues_to_read([], "c", 3) == ()


def test_pending_reasons_are_written_in_batches() -> None:
    scenario, _ = crowded_queue(30)
    before = len(scenario.world.ledger.commits)

    scenario.run_scheduling_cycle()

    commits = scenario.world.ledger.commits[before:]
    waiting = [
        sum(isinstance(write, Put) and write.row.doc.get("state") == JobState.PENDING for write in writes)
        for writes in commits
    ]
    assert sum(waiting) >= 25
    assert [count for count in waiting if count][:2] == [12, 12]


def test_pending_reason_of_identical_jobs_is_not_rewritten() -> None:
    scenario = JobScenario(size=2)
    set_up_teams(scenario, a_team("red", 8, members=MEMBERS))
    jobs = [scenario.submit(f"key-{number}", team="red", nodes=2, accelerators_per_node=8) for number in range(3)]
    scenario.run_scheduling_cycle()
    before = scenario.world.ledger.get(job_rows.job_key(jobs[2].job_id))
    assert before
    assert before.doc["reason"].startswith("A job with the same request waits in its queue")

    scenario.cancel(jobs[0].job_id)
    scenario.run_scheduling_cycle()

    assert not scenario.job(jobs[1].job_id).reason.startswith("As others")
    assert scenario.world.ledger.get(job_rows.job_key(jobs[2].job_id)) == before


def test_strict_queue_is_not_read_past_its_head() -> None:
    scenario, small = crowded_queue(60, strategy="StrictFIFO")

    for _ in range(20):
        scenario.run_scheduling_cycle()

    assert scenario.job(small.job_id).state is JobState.PENDING
    turn = scenario.world.ledger.get(quota_rows.queue_cursors_key())
    assert turn is None or "red" not in turn.doc["cursors"]


def test_cycle_after_a_crash_reads_the_same_page_again() -> None:
    scenario, small = crowded_queue(60)
    for _ in range(3):
        scenario.run_scheduling_cycle()
    noted = scenario.world.ledger.get(quota_rows.queue_cursors_key())
    assert noted
    scenario.plan.at = len(scenario.plan.effects) + 1
    with contextlib.suppress(Crash):
        scenario.run_scheduling_cycle()
    scenario.plan.at = 0

    for _ in range(13):
        scenario.run_scheduling_cycle()

    assert scenario.job(small.job_id).state is JobState.STARTING


def test_reading_restarts_after_the_end_of_a_queue() -> None:
    scenario, small = crowded_queue(40)
    for _ in range(12):
        scenario.run_scheduling_cycle()
    assert scenario.job(small.job_id).state is JobState.STARTING
    late = scenario.submit("late", team="red", nodes=1, accelerators_per_node=8)
    scenario.cancel(small.job_id)
    scenario.stop(small.job_id)
    scenario.settle(small.job_id)

    for _ in range(12):
        scenario.run_scheduling_cycle()

    assert scenario.job(late.job_id).state is JobState.STARTING


def crowded_queue_without_teams(parked: int, **parameters: Any) -> tuple[JobScenario, Job]:
    """A small job behind many jobs that cannot start, in the only queue of a fleet without teams."""
    scenario = JobScenario(size=2, policy=Policy(scheduling=SchedulingPolicy(jobs_per_page=5)))
    for number in range(parked):
        scenario.world.clock.advance(1)
        scenario.submit(f"large-{number}", **{"nodes": 3, **parameters})
    scenario.world.clock.advance(1)
    return scenario, scenario.submit("small", nodes=1)


def cycles_until_started(scenario: JobScenario, job: Job, most: int) -> int:
    cycles = 0
    while scenario.job(job.job_id).state is JobState.PENDING and cycles < most:
        scenario.run_scheduling_cycle()
        cycles += 1
    assert scenario.job(job.job_id).state is JobState.STARTING
    return cycles


@pytest.mark.parametrize("parked", [5, 20, 60, 100])
@pytest.mark.parametrize(
    "parameters",
    [{"nodes": 64}, {"accelerators_per_node": 9}, {"instance_types": ("ml.p9.xlarge",)}],
    ids=["too-many-nodes", "too-many-accelerators", "unknown-type"],
)
def test_unfit_jobs_without_teams_starve_no_job(parked: int, parameters: dict[str, Any]) -> None:
    scenario, small = crowded_queue_without_teams(parked, **parameters)

    assert cycles_until_started(scenario, small, parked) <= parked / 5 + 1


def test_paused_jobs_without_teams_starve_no_job() -> None:
    scenario, small = crowded_queue_without_teams(60, nodes=1)
    for row in scenario.world.ledger.by_state(Table.JOBS, "JOB#PENDING", limit=60).rows:
        job = rows.decode(row, Job)
        scenario.set_job(job.replace(not_before=scenario.world.clock.now() + timedelta(hours=1)))

    assert cycles_until_started(scenario, small, 20) <= 13


def test_jobs_of_a_removed_team_starve_no_job() -> None:
    scenario = JobScenario(size=2, policy=Policy(scheduling=SchedulingPolicy(jobs_per_page=5)))
    set_up_teams(scenario, a_team("red", 16, members=MEMBERS))
    for number in range(40):
        job = scenario.submit(f"key-{number}", team="red", nodes=1)
        scenario.set_job(job.replace(spec=job.spec.replace(team="gone"), queue="a-gone", namespace="gone"))
    late = scenario.submit("late", team="red", nodes=1)

    assert cycles_until_started(scenario, late, 10) == 1
    for _ in range(10):
        scenario.run_scheduling_cycle()
    reasons = [row.doc["reason"] for row in scenario.world.ledger.by_state(Table.JOBS, "JOB#PENDING").rows]
    assert set(reasons) == {"Team gone no longer exists."}


def test_jobs_older_than_the_teams_are_examined_in_order() -> None:
    scenario = JobScenario(size=2, policy=Policy(scheduling=SchedulingPolicy(jobs_per_page=5)))
    jobs = [scenario.submit(f"key-{number}", team="nobodys", nodes=1) for number in range(30)]
    known = scenario.submit("known", team="red", nodes=1)
    set_up_teams(scenario, a_team("red", 16, members=MEMBERS))

    assert cycles_until_started(scenario, known, 7) <= 7
    for _ in range(8):
        scenario.run_scheduling_cycle()
    assert {scenario.job(job.job_id).reason for job in jobs} == {"Team nobodys no longer exists."}


@pytest.mark.parametrize(
    "cycles", [pytest.param(number, marks=() if number % 3 == 1 else pytest.mark.exhaustive) for number in range(1, 14)]
)
def test_younger_job_does_not_overtake_on_a_later_page(cycles: int) -> None:
    scenario = JobScenario(size=3, policy=Policy(scheduling=SchedulingPolicy(jobs_per_page=5)))
    holders = [scenario.running(nodes=1) for _ in range(3)]
    for number in range(30):
        scenario.submit(f"unfit-{number}", nodes=64)
    scenario.world.clock.advance(1)
    first = scenario.submit("first", nodes=2)
    second = scenario.submit("second", nodes=1)
    scenario.world.clock.advance(1)
    for number in range(15):
        scenario.submit(f"more-{number}", nodes=64)
    scenario.world.clock.advance(1)
    last = scenario.submit("last", nodes=1)
    for _ in range(10 + cycles):
        scenario.run_scheduling_cycle()

    order: list[str] = []
    for holder in holders:
        scenario.world.cluster.finish_pods(holder.job_id, 1)
        scenario.settle(holder.job_id)
        for _ in range(1 if holder is not holders[-1] else 20):
            order += [name.removesuffix("-a1") for name in scenario.run_scheduling_cycle().admitted]

    assert order == [first.job_id, second.job_id]
    assert scenario.job(last.job_id).state is JobState.PENDING


def test_jobs_without_a_matching_node_are_not_remembered_as_barriers() -> None:
    scenario, small = crowded_queue_without_teams(60, nodes=1, instance_types=("ml.p9.xlarge",))
    for row in scenario.world.ledger.by_state(Table.JOBS, "JOB#PENDING", limit=60).rows:
        job = rows.decode(row, Job)
        scenario.set_job(job.replace(current_attempt=1))  # their former nodes were removed permanently

    for _ in range(10):
        scenario.run_scheduling_cycle()

    turn = scenario.world.ledger.get(quota_rows.queue_cursors_key())
    assert turn
    assert "barriers" not in turn.doc
    assert cycles_until_started(scenario, small, 5) <= 5
