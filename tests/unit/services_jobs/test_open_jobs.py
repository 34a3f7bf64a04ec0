"""Open jobs have a limit for each principal and for each team, also where submissions race."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any

import pytest

from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.policy import Policy
from evenkeel.ports import Key, Ledger, Row, Table
from evenkeel.services.storage import rows
from evenkeel.services.storage.open_jobs import TooManyOpenJobs
from tests.unit.services_jobs.story import Story
from tests.unit.services_jobs.test_passes import _locked
from tests.unit.services_jobs.test_teams import shared


def a_story(**limits: int) -> Story:
    return Story(policy=Policy(scheduling=SchedulingPolicy.model_validate(limits)))


def open_of(story: Story, name: str) -> int:
    row = story.world.ledger.get(rows.open_jobs_key(name))
    return int(row.doc["jobs"]) if row else 0


def test_submission_beyond_principals_limit_is_refused() -> None:
    story = a_story(most_open_jobs_per_principal=2)
    story.submit("a")
    story.submit("b")

    with pytest.raises(TooManyOpenJobs, match=r"role/ana has 2 open jobs.* 2 \(scheduling.mostOpenJobsPerPrincipal\)"):
        story.submit("c")

    assert story.submission("c", principal="role/bo").job.state is JobState.PENDING
    assert len(story.world.ledger.by_state(Table.JOBS, "JOB#PENDING").rows) == 3


def test_submission_beyond_teams_limit_is_refused() -> None:
    story = shared()
    story.policy = Policy(scheduling=SchedulingPolicy(most_open_jobs_per_team=1))
    story.submit("a", team="red")

    with pytest.raises(TooManyOpenJobs, match=r"Team red has 1 open jobs.*scheduling.mostOpenJobsPerTeam"):
        story.submission("b", principal="role/bo", team="red")

    story.submit("c", team="blue")


def test_limit_without_teams_counts_all_jobs() -> None:
    story = a_story(most_open_jobs_per_team=1)
    story.submit("a")

    with pytest.raises(TooManyOpenJobs, match="The queue that all jobs share has 1 open jobs"):
        story.submission("b", principal="role/bo", team="another")


def test_repeat_of_a_submission_is_answered_at_the_limit() -> None:
    story = a_story(most_open_jobs_per_principal=1)
    job = story.submit("a")

    assert story.submission("a").job.job_id == job.job_id
    assert open_of(story, "principal#role/ana") == 1


def test_ended_jobs_free_their_place() -> None:
    story = a_story(most_open_jobs_per_principal=2)
    done, cancelled = story.running(), story.submit("cancelled")
    story.world.cluster.finish_pods(done.job_id, 1)
    story.settle(done.job_id)
    story.settle(done.job_id)
    story.cancel(cancelled.job_id)
    story.cancel(cancelled.job_id)

    assert (open_of(story, "principal#role/ana"), open_of(story, "queue#")) == (0, 0)
    story.submit("next")


def test_interrupted_job_stays_open() -> None:
    story = a_story()
    job = story.running()
    story.world.cluster.stop(story.attempt(job.job_id), 0)

    story.settle(job.job_id)

    assert open_of(story, "principal#role/ana") == 1


def test_job_older_than_the_limits_is_not_subtracted() -> None:
    story = a_story()
    job = story.submit("a")
    story.set_job(job.but(counted_in=()))

    story.cancel(job.job_id)

    assert open_of(story, "principal#role/ana") == 1


@dataclass
class Meeting:
    """Lets all rivals read a counter before any of them commits."""

    ledger: Ledger
    barrier: Barrier = field(default_factory=lambda: Barrier(4))
    met: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ledger, name)

    def get(self, key: Key) -> Row | None:
        row = self.ledger.get(key)
        if key == rows.open_jobs_key("principal#role/ana") and self.met < 4:
            self.met += 1
            self.barrier.wait(60)
        return row


def test_racing_submissions_stay_within_the_limit() -> None:
    story = a_story(most_open_jobs_per_principal=2)
    story.world.ids = _locked(story.world.ids)
    story.ledger = Meeting(story.world.ledger)  # type: ignore[assignment]

    def submit(number: int) -> bool:
        try:
            story.submit(f"key-{number}")
        except TooManyOpenJobs:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        accepted = [each.result(90) for each in [threads.submit(submit, number) for number in range(4)]]

    assert sorted(accepted) == [False, False, True, True]
    assert open_of(story, "principal#role/ana") == 2
    assert len(story.world.ledger.by_state(Table.JOBS, "JOB#PENDING").rows) == 2


def test_shipped_limits_are_the_policys_defaults() -> None:
    shipped = Policy().scheduling
    assert (shipped.most_open_jobs_per_principal, shipped.most_open_jobs_per_team) == (500, 2000)
