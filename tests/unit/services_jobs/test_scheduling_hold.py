"""While a person holds scheduling, no job starts, stops, changes size or gets rented nodes."""

from datetime import timedelta

import pytest

from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.replay import replay
from evenkeel.ports import Invalid
from evenkeel.services.recovery import hold_automation
from evenkeel.services.scheduling import schedule_jobs
from evenkeel.services.tables import quota_rows
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_teams import decision_records, shared_fleet


def hold_scheduling(scenario: JobScenario, *, stops_scheduling: bool = True, pool: str = "") -> None:
    context = scenario.world.context()
    request = hold_automation.HoldRequest(
        by="role/Op (ana)",
        reason="network work",
        until=context.now + timedelta(hours=1),
        pool=pool,
        stops_scheduling=stops_scheduling,
        request_id=f"hold-{stops_scheduling}-{pool}",
        fingerprint="f",
    )
    hold_automation.set_hold(request, context)


def release_hold(scenario: JobScenario) -> None:
    request = hold_automation.ReleaseRequest(by="role/Op (ana)", reason="", request_id="release", fingerprint="f")
    hold_automation.release_hold(request, scenario.world.context())


def test_no_job_starts_while_scheduling_is_held() -> None:
    scenario = JobScenario(size=4)
    job = scenario.submit(nodes=2)
    hold_scheduling(scenario)

    scenario.run_scheduling_cycle()

    held = scenario.job(job.job_id)
    assert held.state is JobState.PENDING
    until = scenario.world.context().now + timedelta(hours=1)
    assert held.reason == f"role/Op (ana) holds admissions until {until:%Y-%m-%d %H:%M}Z: network work"
    assert scenario.charges() == []


@pytest.mark.parametrize("mode", Mode)
def test_wait_during_a_hold_is_recorded_with_the_stacks_mode(mode: Mode) -> None:
    scenario = JobScenario(size=4)
    job = scenario.submit(nodes=2)
    hold_scheduling(scenario)

    schedule_jobs.run(scenario.context().replace(mode=mode))

    (record,) = decision_records(scenario, job.job_id)
    assert record.mode == mode
    assert record.reason.startswith("role/Op (ana) holds admissions until ")


@pytest.mark.parametrize("end", ["release", "expiry"])
def test_job_starts_after_the_end_of_the_hold(end: str) -> None:
    scenario = JobScenario(size=4)
    job = scenario.submit(nodes=2)
    hold_scheduling(scenario)
    scenario.run_scheduling_cycle()

    if end == "release":
        release_hold(scenario)
    else:
        scenario.world.clock.advance(3600)
    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.STARTING


def test_held_cycles_preempt_nothing_and_record_the_reason_once() -> None:
    scenario = shared_fleet(size=2, red=16, blue=0)
    low = scenario.running(team="red", priority_class="low")
    high = scenario.submit("high", team="red", priority_class="high")
    hold_scheduling(scenario)

    scenario.run_scheduling_cycle()
    scenario.world.clock.advance(60)
    scenario.run_scheduling_cycle()

    assert scenario.job(low.job_id).stop_of(1) is None
    assert scenario.job(low.job_id).state is JobState.RUNNING
    (record,) = decision_records(scenario, high.job_id)
    assert record.action == "EXCLUDED"
    assert replay(record, Policy()).differs_from(record) == ""


def test_hold_on_repairs_alone_does_not_hold_admissions() -> None:
    scenario = JobScenario(size=4)
    job = scenario.submit(nodes=2)
    hold_scheduling(scenario, stops_scheduling=False)

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state is JobState.STARTING


def test_held_cycle_keeps_the_state_of_earlier_cycles() -> None:
    scenario = shared_fleet(size=2, red=16, blue=0)
    scenario.running(team="red")
    scenario.run_scheduling_cycle()
    before = scenario.world.ledger.get(quota_rows.tree_key())
    hold_scheduling(scenario)

    scenario.run_scheduling_cycle()

    assert scenario.world.ledger.get(quota_rows.tree_key()) == before


def test_scheduling_is_held_only_on_the_whole_fleet() -> None:
    scenario = JobScenario(size=4)
    with pytest.raises(Invalid, match="no scope"):
        hold_scheduling(scenario, pool="p5-workers")
