"""A hold puts off every stop of a job, and none is forgotten over it: also where no repair would come back to it."""

from typing import Any

import pytest

from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.guardrails import GuardrailAction, GuardrailName
from evenkeel.domain.waiting import ConditionKind
from evenkeel.ports import Put, Write
from evenkeel.services.recovery import drain_node, plan_recovery
from tests.crash_points import SIDES
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario

RESTARTS_JOB = "xid:31"


def recovery_under_hold(**settings: Any) -> RecoveryScenario:
    recovery = RecoveryScenario(**settings)
    recovery.hold_automation(seconds=60)
    return recovery


def stop_calls(recovery: RecoveryScenario) -> list[str]:
    return [call[0] for call in recovery.world.cluster.calls if call[0] == "stop"]


def test_restart_that_a_hold_delayed_follows_once_hold_ends() -> None:
    recovery = recovery_under_hold()
    recovery.report_fault(fault_key=RESTARTS_JOB)

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.visited[1:4] == ["DrainNode: HELD", "AwaitStopAllowed: RELEASED", "DrainNode: JOBS_AFFECTED"]
    assert (recovery.job.state, recovery.job.current_attempt) == (JobState.RUNNING, 2)
    assert recovery.timeline_kinds().count("held") == 1


def test_incident_that_waits_for_a_hold_is_shown_as_blocked() -> None:
    recovery = recovery_under_hold()
    recovery.report_fault(fault_key=RESTARTS_JOB)
    recovery.run_state("PlanRecovery", plan_recovery)

    outcomes = [recovery.run_state("DrainNode", drain_node).outcome for _ in range(2)]

    block = recovery.incident.block
    assert outcomes == ["HELD", "HELD"]
    assert block
    assert (block.guardrail, block.action) == (GuardrailName.HOLD, GuardrailAction.STOP)
    assert recovery.incident.state is IncidentState.BLOCKED
    assert stop_calls(recovery) == []
    recovery.open_wait(ConditionKind.RELEASED)
    assert recovery.evaluate_waits_once() == []
    recovery.world.clock.advance(60)
    assert recovery.evaluate_waits_once() == ["RELEASED"]
    assert recovery.run_state("DrainNode", drain_node).outcome == "JOBS_AFFECTED"
    assert (recovery.incident.block, recovery.incident.state) == (None, IncidentState.RECOVERING)
    assert stop_calls(recovery) == ["stop"]


def test_hold_set_between_check_and_commit_prevents_stop() -> None:
    recovery = RecoveryScenario()
    recovery.report_fault(fault_key=RESTARTS_JOB)
    recovery.run_state("PlanRecovery", plan_recovery)
    commit = recovery.world.ledger.commit

    def commit_after_new_hold(*writes: Write, client_token: str = "") -> None:
        if any(isinstance(write, Put) and write.row.doc.get("stopRequest") for write in writes):
            recovery.world.ledger.commit = commit  # type: ignore[method-assign]
            recovery.hold_automation(seconds=60)
        commit(*writes, client_token=client_token)

    recovery.world.ledger.commit = commit_after_new_hold  # type: ignore[method-assign]

    assert recovery.run_state("DrainNode", drain_node).outcome == "HELD"
    assert stop_calls(recovery) == []
    assert recovery.job.stop_request is None


def test_unrepaired_node_is_drained_after_the_hold() -> None:
    recovery = recovery_under_hold()
    recovery.report_fault(fault_key="ec2:spot_interruption")

    assert recovery.recover() == IncidentState.STOOD_DOWN
    assert "AwaitGuardrails: RELEASED" in recovery.visited
    assert (recovery.job.state, recovery.job.current_attempt) == (JobState.RUNNING, 2)


@pytest.mark.parametrize("when", SIDES)
@pytest.mark.parametrize("at", range(1, 12))
def test_recovery_under_a_hold_ends_the_same_after_crash(at: int, when: str) -> None:
    undisturbed, crashed = recovery_under_hold(), recovery_under_hold()
    crashed.plan.at, crashed.plan.when = at, when
    for recovery in (undisturbed, crashed):
        recovery.report_fault(fault_key=RESTARTS_JOB)
        recovery.recover()

    assert crashed.crashes == 1
    assert crashed.comparable_end() == undisturbed.comparable_end()


def test_observe_mode_stops_nothing_and_waits_for_no_hold() -> None:
    recovery = recovery_under_hold(mode=Mode.OBSERVE)
    recovery.report_fault(fault_key=RESTARTS_JOB)

    assert recovery.recover() == IncidentState.OBSERVED
    assert stop_calls(recovery) == []
