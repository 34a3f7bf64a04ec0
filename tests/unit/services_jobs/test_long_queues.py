"""Queues longer than a pass reads: nobody stands hidden behind others for good."""

import contextlib
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.policy import Policy
from evenkeel.ports import Put, Table
from evenkeel.services.storage import rows
from tests.fakes.crashes import Crash
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.story import Story
from tests.unit.services_jobs.test_teams import MEMBERS, set_up


def crowded(parked: int, **more: Any) -> tuple[Story, Job]:
    """A small job behind many that ask for what there is not, each in a way of its own."""
    policy = Policy(scheduling=SchedulingPolicy(heads_per_pass=5))
    story = Story(size=2, policy=policy)
    set_up(story, a_team("red", 8, members=MEMBERS, queue=more))
    for number in range(parked):
        story.world.clock.advance(1)
        # Its own shape: one that asks for just the same as another is parked with it, and says nothing new.
        story.submit(f"large-{number}", team="red", nodes=2 + number, accelerators_per_node=8)
    story.world.clock.advance(1)
    return story, story.submit("small", team="red", nodes=1, accelerators_per_node=8)


@pytest.mark.parametrize("parked", [20, 60, 100])
def test_a_small_job_behind_any_number_of_parked_ones_is_looked_at_within_as_many_passes_as_pages(parked: int) -> None:
    story, small = crowded(parked)

    passes = 0
    while story.job(small.job_id).state is JobState.PENDING and passes <= parked:
        story.run_pass()
        passes += 1

    assert story.job(small.job_id).state is JobState.STARTING
    assert passes <= parked / 5 + 1


def test_what_is_said_of_those_who_wait_is_said_of_many_in_one_commit() -> None:
    story, _ = crowded(30)
    before = len(story.world.ledger.commits)

    story.run_pass()

    commits = story.world.ledger.commits[before:]
    waiting = [
        sum(isinstance(write, Put) and write.row.doc.get("state") == JobState.PENDING for write in writes)
        for writes in commits
    ]
    assert sum(waiting) >= 25
    assert [count for count in waiting if count][:2] == [12, 12]


def test_who_waits_as_others_do_is_told_nothing_new_when_another_speaks_for_them() -> None:
    story = Story(size=2)
    set_up(story, a_team("red", 8, members=MEMBERS))
    jobs = [story.submit(f"key-{number}", team="red", nodes=2, accelerators_per_node=8) for number in range(3)]
    story.run_pass()
    before = story.world.ledger.get(rows.job_key(jobs[2].job_id))
    assert before
    assert before.doc["reason"].startswith("As others of its queue")

    story.cancel(jobs[0].job_id)
    story.run_pass()

    assert not story.job(jobs[1].job_id).reason.startswith("As others")
    assert story.world.ledger.get(rows.job_key(jobs[2].job_id)) == before


def test_a_strict_queue_is_not_read_past_its_head() -> None:
    story, small = crowded(60, strategy="StrictFIFO")

    for _ in range(20):
        story.run_pass()

    assert story.job(small.job_id).state is JobState.PENDING
    turn = story.world.ledger.get(rows.turn_key())
    assert turn is None or "red" not in turn.doc["cursors"]


def test_a_pass_that_dies_before_it_notes_where_it_stopped_reads_the_same_page_again() -> None:
    story, small = crowded(60)
    for _ in range(3):
        story.run_pass()
    noted = story.world.ledger.get(rows.turn_key())
    assert noted
    story.plan.at = len(story.plan.effects) + 1
    with contextlib.suppress(Crash):
        story.run_pass()
    story.plan.at = 0

    for _ in range(13):
        story.run_pass()

    assert story.job(small.job_id).state is JobState.STARTING


def test_once_the_end_of_a_queue_was_read_the_turn_begins_anew() -> None:
    story, small = crowded(40)
    for _ in range(12):
        story.run_pass()
    assert story.job(small.job_id).state is JobState.STARTING
    late = story.submit("late", team="red", nodes=1, accelerators_per_node=8)
    story.cancel(small.job_id)
    story.stop(small.job_id)
    story.settle(small.job_id)

    for _ in range(12):
        story.run_pass()

    assert story.job(late.job_id).state is JobState.STARTING


def crowded_without_teams(parked: int, **asked: Any) -> tuple[Story, Job]:
    """A small job behind many that cannot start, in the one queue that there is without teams."""
    story = Story(size=2, policy=Policy(scheduling=SchedulingPolicy(heads_per_pass=5)))
    for number in range(parked):
        story.world.clock.advance(1)
        story.submit(f"large-{number}", **{"nodes": 3, **asked})
    story.world.clock.advance(1)
    return story, story.submit("small", nodes=1)


def cycles_until_started(story: Story, job: Job, most: int) -> int:
    cycles = 0
    while story.job(job.job_id).state is JobState.PENDING and cycles < most:
        story.run_pass()
        cycles += 1
    assert story.job(job.job_id).state is JobState.STARTING
    return cycles


@pytest.mark.parametrize("parked", [5, 20, 60, 100])
@pytest.mark.parametrize(
    "asked",
    [{"nodes": 64}, {"accelerators_per_node": 9}, {"instance_types": ("ml.p9.xlarge",)}],
    ids=["too-many-nodes", "too-many-accelerators", "unknown-type"],
)
def test_unfit_jobs_without_teams_starve_nobody(parked: int, asked: dict[str, Any]) -> None:
    story, small = crowded_without_teams(parked, **asked)

    assert cycles_until_started(story, small, parked) <= parked / 5 + 1


def test_paused_jobs_without_teams_starve_nobody() -> None:
    story, small = crowded_without_teams(60, nodes=1)
    for row in story.world.ledger.by_state(Table.JOBS, "JOB#PENDING", limit=60).rows:
        job = rows.read(row, Job)
        story.set_job(job.but(not_before=story.world.clock.now() + timedelta(hours=1)))

    assert cycles_until_started(story, small, 20) <= 13


def test_jobs_of_a_removed_team_starve_nobody() -> None:
    story = Story(size=2, policy=Policy(scheduling=SchedulingPolicy(heads_per_pass=5)))
    set_up(story, a_team("red", 16, members=MEMBERS))
    for number in range(40):
        job = story.submit(f"key-{number}", team="red", nodes=1)
        story.set_job(job.but(spec=job.spec.but(team="gone"), queue="a-gone", namespace="gone"))
    late = story.submit("late", team="red", nodes=1)

    assert cycles_until_started(story, late, 10) == 1
    for _ in range(10):
        story.run_pass()
    told = [row.doc["reason"] for row in story.world.ledger.by_state(Table.JOBS, "JOB#PENDING").rows]
    assert set(told) == {"There is no team gone any more."}


def test_jobs_from_before_teams_are_looked_at_in_turn() -> None:
    story = Story(size=2, policy=Policy(scheduling=SchedulingPolicy(heads_per_pass=5)))
    jobs = [story.submit(f"key-{number}", team="nobodys", nodes=1) for number in range(30)]
    known = story.submit("known", team="red", nodes=1)
    set_up(story, a_team("red", 16, members=MEMBERS))

    assert cycles_until_started(story, known, 7) <= 7
    for _ in range(8):
        story.run_pass()
    assert {story.job(job.job_id).reason for job in jobs} == {"There is no team nobodys any more."}


@pytest.mark.parametrize("cycles", range(1, 14))
def test_younger_job_does_not_overtake_on_a_later_page(cycles: int) -> None:
    story = Story(size=3, policy=Policy(scheduling=SchedulingPolicy(heads_per_pass=5)))
    holders = [story.running(nodes=1) for _ in range(3)]
    for number in range(30):
        story.submit(f"unfit-{number}", nodes=64)
    story.world.clock.advance(1)
    first = story.submit("first", nodes=2)
    second = story.submit("second", nodes=1)
    story.world.clock.advance(1)
    for number in range(15):
        story.submit(f"more-{number}", nodes=64)
    story.world.clock.advance(1)
    last = story.submit("last", nodes=1)
    for _ in range(10 + cycles):
        story.run_pass()

    order: list[str] = []
    for holder in holders:
        story.world.cluster.finish_pods(holder.job_id, 1)
        story.settle(holder.job_id)
        for _ in range(1 if holder is not holders[-1] else 20):
            order += [name.removesuffix("-a1") for name in story.run_pass().admitted]

    assert order == [first.job_id, second.job_id]
    assert story.job(last.job_id).state is JobState.PENDING


def test_jobs_without_a_matching_node_are_not_remembered_as_barriers() -> None:
    story, small = crowded_without_teams(60, nodes=1, instance_types=("ml.p9.xlarge",))
    for row in story.world.ledger.by_state(Table.JOBS, "JOB#PENDING", limit=60).rows:
        job = rows.read(row, Job)
        story.set_job(job.but(current_attempt=1))  # the machines that they ran on are gone for good

    for _ in range(10):
        story.run_pass()

    turn = story.world.ledger.get(rows.turn_key())
    assert turn
    assert "barriers" not in turn.doc
    assert cycles_until_started(story, small, 5) <= 5
