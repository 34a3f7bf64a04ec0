"""Holding a job back, letting it go on, and giving it another class: once, by whom, and in every state."""

from typing import Any

import pytest

from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.quotas.teams import FleetQuotas
from evenkeel.ports import Invalid, StaleVersion
from evenkeel.services.admin import set_quotas
from evenkeel.services.jobs import cancel_job, rank_job, submit_job, suspend_job
from evenkeel.services.jobs.check_authority import Asker, NotYourTeam
from evenkeel.services.storage import rows
from tests.unit.scheduling.test_governance import ANA, OTHER, member
from tests.unit.scheduling.test_teams import a_team
from tests.unit.services_jobs.story import Story, a_spec

ASKER = Asker(principal="role/Ana", identity=ANA, actor="role/Ana (ana)")
STRANGER = Asker(principal="role/Other", identity=OTHER, actor="role/Other (ana)")


def suspend(story: Story, job: Job, asker: Asker = ASKER) -> Job:
    request = suspend_job.Request(job_id=job.job_id, asker=asker, reason="needs a look")
    return suspend_job.suspend(request, story.world.ledger, story.world.passes, now=story.world.clock.now())


def resume(story: Story, job: Job, asker: Asker = ASKER) -> Job:
    request = suspend_job.Request(job_id=job.job_id, asker=asker)
    return suspend_job.resume(request, story.world.ledger, story.world.passes, now=story.world.clock.now())


def rank(story: Story, job: Job, name: str, expected: int | None = None, asker: Asker = ASKER) -> Job:
    row = story.world.ledger.get(rows.job_key(job.job_id))
    assert row
    version = row.version if expected is None else expected
    request = rank_job.Request(job_id=job.job_id, priority_class=name, expected=version, asker=asker)
    return rank_job.run(request, story.world.ledger, story.world.passes, now=story.world.clock.now())


def set_up(story: Story) -> None:
    fleet = FleetQuotas.model_validate({"priorityClasses": {"high": 100, "low": -1}})
    team = a_team("nlp", namespace="nlp", serviceAccount="trainer", members=[member(ANA, "submitter")])
    for part in (fleet, team):
        request = set_quotas.Request(part=part, expected=0, by="ops", reason="first")
        set_quotas.run(request, story.world.ledger, story.world.passes, now=story.world.clock.now())


def submit(story: Story, asker: Asker = ASKER, **changes: Any) -> Job:
    world = story.world
    return submit_job.run(
        submit_job.Request(spec=a_spec(**{"team": "", **changes}), asker=asker, idempotency_key="key-1"),
        world.ledger,
        world.passes,
        world.ids,
        cluster="research-eks",
        namespace="shared",
        now=world.clock.now(),
    ).job


def test_a_waiting_job_is_suspended_at_once_and_no_pass_takes_it() -> None:
    story = Story()
    job = story.submit()

    suspended = [suspend(story, job) for _ in range(2)]
    story.run_pass()

    assert [each.state for each in suspended] == [JobState.SUSPENDED] * 2
    assert story.job(job.job_id).state is JobState.SUSPENDED


def test_a_resumed_job_waits_in_its_old_place() -> None:
    story = Story()
    job = story.submit()
    before = story.world.ledger.get(rows.job_key(job.job_id))
    suspend(story, job)

    resumed = [resume(story, job) for _ in range(2)]

    after = story.world.ledger.get(rows.job_key(job.job_id))
    assert [each.state for each in resumed] == [JobState.PENDING] * 2
    assert before
    assert after
    assert after.state == before.state


def test_a_running_job_is_stopped_with_grace_and_rests_until_it_is_resumed() -> None:
    story = Story()
    job = story.running()

    asked = suspend(story, job)
    story.stop(job.job_id)
    story.settle(job.job_id)

    assert (asked.state, asked.stop_request and asked.stop_request.outcome) == (
        JobState.RUNNING,
        AttemptState.STOPPED,
    )
    rested = story.job(job.job_id)
    assert (rested.state, rested.application_failures, rested.stop_request) == (JobState.SUSPENDED, 0, None)
    assert story.charges() == []
    resume(story, job)
    story.run_pass()
    assert story.job(job.job_id).current_attempt == 2


def test_a_job_that_is_resumed_while_it_stops_waits_again() -> None:
    story = Story()
    job = story.running()
    suspend(story, job)

    resume(story, job)
    story.stop(job.job_id)
    story.settle(job.job_id)

    assert story.job(job.job_id).state is JobState.PENDING


def test_a_suspended_job_can_be_cancelled_and_is_then_over() -> None:
    story = Story()
    job = story.submit()
    suspend(story, job)

    outcome = story.cancel(job.job_id)

    assert (outcome.outcome, outcome.job.state) == (cancel_job.CancelOutcome.CANCELLED, JobState.CANCELLED)
    with pytest.raises(suspend_job.JobEnded):
        resume(story, job)
    with pytest.raises(suspend_job.JobEnded):
        rank(story, job, "high")


def test_a_job_gets_what_its_team_has() -> None:
    story = Story()
    set_up(story)

    job = submit(story, priority_class="high")

    assert (job.spec.team, job.queue, job.namespace, job.service_account) == ("nlp", "nlp", "nlp", "trainer")
    assert (job.priority, job.owner, job.submitted_by) == (100, "role/Ana", "role/Ana (ana)")


def test_a_stranger_can_do_nothing_with_a_teams_job() -> None:
    story = Story()
    set_up(story)
    job = submit(story)
    before = len(story.world.ledger.commits)

    with pytest.raises(NotYourTeam):
        submit(story, STRANGER, team="nlp", checkpoint_uri="")
    with pytest.raises(NotYourTeam):
        suspend(story, job, STRANGER)
    with pytest.raises(NotYourTeam):
        resume(story, job, STRANGER)
    with pytest.raises(NotYourTeam):
        rank(story, job, "high", asker=STRANGER)
    request = cancel_job.Request(job_id=job.job_id, asker=STRANGER)
    with pytest.raises(NotYourTeam):
        cancel_job.run(request, story.world.ledger, story.world.passes, now=story.world.clock.now())

    assert len(story.world.ledger.commits) == before


def test_a_job_of_an_unknown_team_is_refused_by_field() -> None:
    story = Story()
    set_up(story)

    with pytest.raises(Invalid) as refused:
        submit(story, team="speech")

    assert [field for field, _ in refused.value.faults] == ["team"]


def test_the_first_answer_is_given_again_whoever_has_left_the_team_since() -> None:
    story = Story()
    job = submit(story)
    set_up(story)

    assert submit(story).job_id == job.job_id


def test_another_class_is_another_place_in_the_queue() -> None:
    story = Story()
    set_up(story)
    job = submit(story)

    ranked = [rank(story, job, "high") for _ in range(2)]

    assert [(each.spec.priority_class, each.priority) for each in ranked] == [("high", 100)] * 2
    row = story.world.ledger.get(rows.job_key(job.job_id))
    assert row
    assert row.state == ("JOB#PENDING", rows.queue_order(ranked[0]))


def test_a_class_is_given_to_the_job_as_it_was_seen() -> None:
    story = Story()
    set_up(story)
    job = submit(story)

    with pytest.raises(StaleVersion):
        rank(story, job, "high", expected=7)
    with pytest.raises(Invalid):
        rank(story, job, "hihg")

    assert story.job(job.job_id).priority == -1
