"""A fault that turns out to corrupt after its job runs again: the job is taken back, once, whatever crashes."""

from datetime import timedelta

import pytest

from evenkeel.domain.decisions import Decision
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.replay import replay
from evenkeel.ports import Table
from evenkeel.services.recovery import cordon_node, drain_node, plan_recovery
from evenkeel.services.resume import plan_resume
from evenkeel.services.tables import job_rows, rows
from tests.fakes import CrashPlan
from tests.fakes.counting import CountedCalls
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario, a_fact

CORRUPTS = "xid:48"


def recovery_of_moved_job(plan: CrashPlan | None = None, *, policy: object = QUICK) -> RecoveryScenario:
    """A job with a checkpoint from just before the fault, which runs again on other nodes, resumed from there."""
    recovery = RecoveryScenario(size=5, plan=plan or CrashPlan(), policy=policy)  # type: ignore[arg-type]
    scenario, world = recovery.scenario, recovery.world
    job = scenario.job(recovery.job_id)
    scenario.set_job(job.replace(spec=job.spec.replace(checkpoint_uri="s3://checkpoints/one")))
    scenario.save_checkpoint(job.job_id, 1, 10, seconds=-3600)
    scenario.save_checkpoint(job.job_id, 1, 20)
    world.clock.advance(10)
    recovery.report_fault(observed_at=recovery.now)
    for service in (plan_recovery, cordon_node, drain_node, plan_resume):
        recovery.run_state("", service)
    recovery.run_jobs()
    recovery.run_jobs()
    return recovery


def report_corrupting_fault(recovery: RecoveryScenario) -> None:
    recovery.ingest(
        a_fact(fault_key=CORRUPTS, code="48", envelope_id="2", observed_at=recovery.incident.first_signal_at)
    )


def sweep(recovery: RecoveryScenario) -> None:
    recovery.call_until_done(lambda: plan_resume.roll_back_jobs(recovery.incident, recovery.context()))


def resumed_step(recovery: RecoveryScenario) -> int | None:
    point = recovery.scenario.attempt(recovery.job_id, recovery.job.current_attempt).resume_from
    return point.step if point else None


def test_job_from_a_distrusted_checkpoint_resumes_from_an_earlier_one() -> None:
    recovery = recovery_of_moved_job()
    assert (recovery.job.state, recovery.job.current_attempt, resumed_step(recovery)) == (JobState.RUNNING, 2, 20)

    report_corrupting_fault(recovery)
    recovery.scenario.sweep()
    recovery.scenario.sweep()

    assert recovery.job.rollbacks == 1
    assert [affected.attempt for affected in recovery.incident.affected_jobs] == [2]
    # Saved while the job stops. It descends from a checkpoint after the corrupting fault.
    recovery.scenario.save_checkpoint(recovery.job_id, 2, 30)
    recovery.run_jobs()
    recovery.run_jobs()
    assert (recovery.job.state, recovery.job.current_attempt, resumed_step(recovery)) == (JobState.RUNNING, 3, 10)
    assert recovery.job.application_failures == 0
    assert recovery.scenario.timeline(recovery.job_id).count("rolled back") == 1
    (record,) = rollbacks(recovery)
    assert replay(record, QUICK).differs_from(record) == ""


def test_rollbacks_of_one_incident_read_the_fleet_once() -> None:
    recovery = recovery_of_moved_job()
    report_corrupting_fault(recovery)
    incident = recovery.incident
    counted = CountedCalls(recovery.world)
    vars(recovery).update(counted.ports)

    count = plan_resume.roll_back_jobs(incident.replace(affected_jobs=incident.affected_jobs * 2), recovery.context())

    assert (count, counted.calls["cluster.nodes"]) == (2, 1)


def test_trusted_signal_rolls_no_job_back() -> None:
    recovery = recovery_of_moved_job()

    sweep(recovery)
    recovery.scenario.sweep()

    assert (recovery.job.rollbacks, recovery.job.stop_request) == (0, None)


def test_job_rolled_back_too_often_waits_for_a_person() -> None:
    recovery = recovery_of_moved_job(policy=QUICK.replace(jobs=QUICK.jobs.replace(max_rollbacks=0)))
    report_corrupting_fault(recovery)

    sweep(recovery)
    sweep(recovery)
    recovery.run_state("PlanResume", plan_resume)

    assert recovery.job.stop_request is None
    assert recovery.job.current_attempt == 2
    assert recovery.world.telemetry.totals["JobsOnDistrustedCheckpoints"] == 1
    (record,) = rollbacks(recovery)
    assert (record.action, replay(record, recovery.policy).differs_from(record)) == ("LIMIT", "")
    scenario = recovery.world.ledger.partition(Table.INCIDENTS, f"INC#{recovery.incident_id}", "EVENT#")
    texts = [row.doc["text"] for row in scenario if row.doc["decisionId"] == record.decision_id]
    assert [text.endswith("already rolled back 0 times. A person must check it.") for text in texts] == [True]


def rollbacks(recovery: RecoveryScenario) -> list[Decision]:
    page = recovery.world.ledger.by_state(Table.INCIDENTS, f"DEC#{recovery.incident_id}")
    return [record for row in page.rows if (record := rows.decode(row, Decision)).kind == "ROLLBACK"]


def test_late_corrupting_fault_affects_a_job_that_moved_away() -> None:
    recovery = recovery_of_moved_job()
    scenario = recovery.scenario
    ended_at = scenario.attempt(recovery.job_id, 1).ended_at
    assert ended_at
    soon = recovery.incident.replace(first_signal_at=ended_at + timedelta(seconds=200), fault_key=CORRUPTS, signals=())

    affected = drain_node.find_affected_jobs(soon, recovery.world.context(policy=QUICK)).jobs
    trusted = soon.replace(fault_key="hp:NvidiaErrorReboot")
    not_affected = drain_node.find_affected_jobs(trusted, recovery.world.context(policy=QUICK)).jobs

    assert [(job.job_id, job.attempt) for job in affected] == [(recovery.job_id, 1)]
    assert not_affected == ()


def test_late_corrupting_fault_affects_a_job_that_was_stopped() -> None:
    recovery = RecoveryScenario(size=5, policy=QUICK)
    scenario = recovery.scenario
    job = scenario.job(recovery.job_id)
    scenario.set_job(job.replace(stop_request=job.stop_request_now("Preempted.", "schedule_jobs/job-b", recovery.now)))
    scenario.stop(job.job_id)
    scenario.settle(job.job_id)
    assert scenario.attempt(job.job_id).state is AttemptState.STOPPED
    recovery.world.clock.advance(10)
    recovery.report_fault(observed_at=recovery.now)
    corrupting = recovery.incident.replace(fault_key=CORRUPTS, signals=())

    affected = drain_node.find_affected_jobs(corrupting, recovery.context()).jobs
    not_affected = drain_node.find_affected_jobs(recovery.incident, recovery.context()).jobs

    assert [(affected_job.job_id, affected_job.attempt) for affected_job in affected] == [(job.job_id, 1)]
    assert not_affected == ()


@pytest.mark.parametrize("when", ["before", "after"])
def test_job_is_rolled_back_once_after_a_crash(when: str) -> None:
    plan = CrashPlan()
    recovery = recovery_of_moved_job(plan)
    report_corrupting_fault(recovery)
    plan.at, plan.when = len(plan.effects) + 1, when

    sweep(recovery)
    sweep(recovery)

    assert recovery.crashes == 1
    assert recovery.job.rollbacks == 1
    assert recovery.scenario.timeline(recovery.job_id).count("rolled back") == 1


def test_hold_delays_a_rollback() -> None:
    recovery = recovery_of_moved_job()
    recovery.hold_automation(seconds=60)
    report_corrupting_fault(recovery)

    sweep(recovery)
    recovery.run_state("", plan_resume)
    assert (recovery.job.rollbacks, recovery.job.stop_request) == (0, None)
    recovery.world.clock.advance(60)
    sweep(recovery)

    assert recovery.job.rollbacks == 1


@pytest.mark.parametrize(("is_pinned", "through"), [(True, 0), (False, 2)])
def test_suspicion_counts_until_a_pin_respects_it(is_pinned: bool, through: int) -> None:
    recovery = recovery_of_moved_job()
    scenario, distrusted_from = recovery.scenario, recovery.now - timedelta(hours=1)
    scenario.set_job(recovery.job.replace(distrust_after=distrusted_from, distrust_through_attempt=1))
    attempt = scenario.attempt(recovery.job_id, 2)
    scenario.store_row(job_rows.attempt_row(attempt.replace(is_pinned=is_pinned), 0))

    recovery.report_fault(int(attempt.nodes[0].instance_id[-2:]), envelope_id="2")
    for service in (plan_recovery, cordon_node, drain_node, plan_resume):
        recovery.run_state("", service)

    assert recovery.job.distrust_through_attempt == through
    assert recovery.job.distrust_after == (None if is_pinned else distrusted_from)
