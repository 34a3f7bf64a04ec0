"""Suspending, resuming and reprioritising a job: one effect, the author, and every state of the job."""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.change_effects import JobChange
from evenkeel.domain.jobs.job import Job, JobState, ResumeOption, ResumePlan
from evenkeel.domain.quotas.teams import FleetQuotas
from evenkeel.ports import Invalid, Put, StaleVersion
from evenkeel.services.admin import set_quotas
from evenkeel.services.jobs import cancel_job, set_priority, submit_job, suspend_job
from evenkeel.services.jobs.check_role import NotYourTeam, Requester
from evenkeel.services.queries.jobs import plan_job_change, read_queue
from evenkeel.services.tables import job_rows
from tests.unit.scheduling.test_governance import ANA, OTHER, member
from tests.unit.scheduling.test_teams import a_team
from tests.unit.services_jobs.job_scenario import JobScenario, a_spec

ASKER = Requester(principal="role/Ana", identity=ANA, actor="role/Ana (ana)")
STRANGER = Requester(principal="role/Other", identity=OTHER, actor="role/Other (ana)")


def suspend(scenario: JobScenario, job: Job, requester: Requester = ASKER) -> Job:
    request = suspend_job.JobChangeRequest(job_id=job.job_id, requester=requester, reason="needs a look")
    return suspend_job.suspend(request, scenario.world.context())


def resume(scenario: JobScenario, job: Job, requester: Requester = ASKER) -> Job:
    request = suspend_job.JobChangeRequest(job_id=job.job_id, requester=requester)
    return suspend_job.resume(request, scenario.world.context())


def change_priority(
    scenario: JobScenario, job: Job, name: str, expected: int | None = None, requester: Requester = ASKER
) -> Job:
    row = scenario.world.ledger.get(job_rows.job_key(job.job_id))
    assert row
    version = row.version if expected is None else expected
    request = set_priority.SetPriorityRequest(
        job_id=job.job_id, priority_class=name, expected=version, requester=requester
    )
    return set_priority.run(request, scenario.world.context())


def set_up_team(scenario: JobScenario) -> None:
    fleet = FleetQuotas.model_validate({"priorityClasses": {"high": 100, "low": -1}})
    team = a_team("nlp", namespace="nlp", serviceAccount="trainer", members=[member(ANA, "submitter")])
    for part in (fleet, team):
        request = set_quotas.SetQuotasRequest(part=part, expected=0, by="ops", reason="first")
        set_quotas.run(request, scenario.world.context())


def submit(scenario: JobScenario, requester: Requester = ASKER, **changes: Any) -> Job:
    return submit_job.run(
        submit_job.SubmitJobRequest(
            spec=a_spec(**{"team": "", **changes}), requester=requester, idempotency_key="key-1"
        ),
        scenario.world.context(clusters=("research-eks",), job_namespace="shared"),
    ).job


def test_pending_job_is_suspended_and_not_admitted() -> None:
    scenario = JobScenario()
    job = scenario.submit()

    suspended = [suspend(scenario, job) for _ in range(2)]
    scenario.run_scheduling_cycle()

    assert [job.state for job in suspended] == [JobState.SUSPENDED] * 2
    assert scenario.job(job.job_id).state is JobState.SUSPENDED


def test_resumed_job_keeps_its_queue_position() -> None:
    scenario = JobScenario()
    job = scenario.submit()
    before = scenario.world.ledger.get(job_rows.job_key(job.job_id))
    suspend(scenario, job)

    resumed = [resume(scenario, job) for _ in range(2)]

    after = scenario.world.ledger.get(job_rows.job_key(job.job_id))
    assert [job.state for job in resumed] == [JobState.PENDING] * 2
    assert before
    assert after
    assert after.state == before.state


def test_resumed_job_of_recovery_waits_behind_older_jobs() -> None:
    scenario = JobScenario(size=2)
    older_job, job = scenario.submit("older", nodes=2), scenario.submit("planned", nodes=2)
    row = scenario.world.ledger.get(job_rows.job_key(job.job_id))
    assert row
    plan = ResumePlan(
        incident_id="inc-1", after_attempt=0, option=ResumeOption.SPARE, planned_at=scenario.world.clock.now()
    )
    planned_job = scenario.job(job.job_id).with_plan(plan, is_still_distrusted=False)
    scenario.world.ledger.commit(Put(job_rows.job_row(planned_job, row.version)))

    suspend(scenario, job)
    resume(scenario, job)
    scenario.run_scheduling_cycle()

    states = [scenario.job(waiting_job.job_id).state for waiting_job in (older_job, job)]
    assert states == [JobState.STARTING, JobState.PENDING]


def test_resume_plan_after_a_resume_gives_no_earlier_position() -> None:
    scenario = JobScenario(size=2)
    job = scenario.running(nodes=2)
    older_job = scenario.submit("older", nodes=2)
    older = scenario.job(older_job.job_id).replace(submitted_at=job.submitted_at - timedelta(hours=1))
    scenario.set_job(older)
    suspend(scenario, job)
    scenario.stop(job.job_id)
    scenario.settle(job.job_id)
    resume(scenario, job)
    now = scenario.world.clock.now()
    plan = ResumePlan(incident_id="inc-1", after_attempt=1, option=ResumeOption.SPARE, planned_at=now)
    scenario.set_job(scenario.job(job.job_id).with_plan(plan, is_still_distrusted=False))

    scenario.run_scheduling_cycle()

    states = [scenario.job(waiting_job.job_id).state for waiting_job in (older_job, job)]
    assert states == [JobState.STARTING, JobState.PENDING]


def test_time_of_each_suspension_is_summed() -> None:
    scenario = JobScenario()
    job = scenario.submit()

    for hours in (2, 3):
        suspend(scenario, job)
        scenario.world.clock.advance(hours * 3600)
        suspend(scenario, job)  # a repeat does not begin again
        resume(scenario, job)
        scenario.world.clock.advance(3600)

    rested = scenario.job(job.job_id)
    assert (rested.suspended_seconds, rested.suspended_at) == (5 * 3600, None)


def test_running_job_is_stopped_with_grace_and_suspended() -> None:
    scenario = JobScenario()
    job = scenario.running()

    suspended = suspend(scenario, job)
    scenario.stop(job.job_id)
    scenario.settle(job.job_id)

    assert (suspended.state, suspended.stop_request and suspended.stop_request.outcome) == (
        JobState.RUNNING,
        AttemptState.STOPPED,
    )
    rested = scenario.job(job.job_id)
    assert (rested.state, rested.application_failures, rested.stop_request) == (JobState.SUSPENDED, 0, None)
    assert scenario.charges() == []
    resume(scenario, job)
    scenario.run_scheduling_cycle()
    assert scenario.job(job.job_id).current_attempt == 2


def test_job_resumed_while_stopping_is_pending_again() -> None:
    scenario = JobScenario()
    job = scenario.running()
    suspend(scenario, job)

    resume(scenario, job)
    scenario.stop(job.job_id)
    scenario.settle(job.job_id)

    assert scenario.job(job.job_id).state is JobState.PENDING


def test_suspended_job_can_be_cancelled() -> None:
    scenario = JobScenario()
    job = scenario.submit()
    suspend(scenario, job)

    result = scenario.cancel(job.job_id)

    assert (result.outcome, result.job.state) == (cancel_job.CancelOutcome.CANCELLED, JobState.CANCELLED)
    with pytest.raises(suspend_job.JobEnded):
        resume(scenario, job)
    with pytest.raises(suspend_job.JobEnded):
        change_priority(scenario, job, "high")


def test_submitted_job_gets_the_settings_of_its_team() -> None:
    scenario = JobScenario()
    set_up_team(scenario)

    job = submit(scenario, priority_class="high")

    assert (job.spec.team, job.queue, job.namespace, job.service_account) == ("nlp", "nlp", "nlp", "trainer")
    assert (job.priority, job.submitter, job.submitted_by) == (100, "role/Ana", "role/Ana (ana)")


def test_caller_outside_the_team_cannot_change_its_job() -> None:
    scenario = JobScenario()
    set_up_team(scenario)
    job = submit(scenario)
    before = len(scenario.world.ledger.commits)

    with pytest.raises(NotYourTeam):
        submit(scenario, STRANGER, team="nlp", checkpoint_uri="")
    with pytest.raises(NotYourTeam):
        suspend(scenario, job, STRANGER)
    with pytest.raises(NotYourTeam):
        resume(scenario, job, STRANGER)
    with pytest.raises(NotYourTeam):
        change_priority(scenario, job, "high", requester=STRANGER)
    request = cancel_job.CancelJobRequest(job_id=job.job_id, requester=STRANGER)
    with pytest.raises(NotYourTeam):
        cancel_job.run(request, scenario.world.context())

    assert len(scenario.world.ledger.commits) == before


def test_job_of_unknown_team_is_refused_by_field() -> None:
    scenario = JobScenario()
    set_up_team(scenario)

    with pytest.raises(Invalid) as refused:
        submit(scenario, team="speech")

    assert [field for field, _ in refused.value.faults] == ["team"]


def test_repeated_request_gets_the_first_answer_after_membership_ended() -> None:
    scenario = JobScenario()
    job = submit(scenario)
    set_up_team(scenario)

    assert submit(scenario).job_id == job.job_id


def test_new_priority_class_changes_the_queue_position() -> None:
    scenario = JobScenario()
    set_up_team(scenario)
    job = submit(scenario)

    ranked = [change_priority(scenario, job, "high") for _ in range(2)]

    assert [(job.spec.priority_class, job.priority) for job in ranked] == [("high", 100)] * 2
    row = scenario.world.ledger.get(job_rows.job_key(job.job_id))
    assert row
    assert row.state == ("JOB#PENDING", job_rows.queue_order(ranked[0]))


def test_priority_change_needs_the_version_that_was_read() -> None:
    scenario = JobScenario()
    set_up_team(scenario)
    job = submit(scenario)

    with pytest.raises(StaleVersion):
        change_priority(scenario, job, "high", expected=7)
    with pytest.raises(Invalid):
        change_priority(scenario, job, "hihg")

    assert scenario.job(job.job_id).priority == -1


def test_priority_plan_shows_the_position_that_the_change_gives() -> None:
    scenario = JobScenario()
    set_up_team(scenario)
    submit(scenario, name="first")
    second = submit_job.run(
        submit_job.SubmitJobRequest(
            spec=a_spec(team="", name="second", checkpoint_uri=""), requester=ASKER, idempotency_key="key-2"
        ),
        scenario.world.context(clusters=("research-eks",), job_namespace="shared"),
    ).job
    request = plan_job_change.PlanJobChangeRequest(
        change=JobChange.PRIORITY, job_id=second.job_id, requester=ASKER, priority_class="high"
    )

    plan = plan_job_change.run(request, scenario.world.context())
    change_priority(scenario, second, "high")

    assert plan["queue"] == {"position": 2, "positionAfter": 1}
    assert plan["effects"][0] == "The class (unset) (priority -1) becomes high (priority 100)."
    position = read_queue.queue_position(scenario.job(second.job_id), scenario.world.context())
    assert position is not None
    assert position["position"] == plan["queue"]["positionAfter"]


def test_stranger_gets_no_plan_of_a_change() -> None:
    scenario = JobScenario()
    set_up_team(scenario)
    job = submit(scenario)
    request = plan_job_change.PlanJobChangeRequest(change=JobChange.CANCEL, job_id=job.job_id, requester=STRANGER)

    with pytest.raises(NotYourTeam):
        plan_job_change.run(request, scenario.world.context())
