"""A workflow task that is delivered again after its time changes nothing: its step is over."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.jobs.job import JobState
from evenkeel.ports import Conflict
from evenkeel.services.incidents import recovery_step, settle_incident
from evenkeel.services.recovery import (
    check_node,
    cordon_node,
    drain_node,
    plan_recovery,
    repair_node,
    return_node,
    set_manual_cordon,
)
from evenkeel.services.storage import incident_store
from evenkeel.services.storage.guardrail_registers import RegisterName
from tests.fakes.cluster import CLUSTER, instance_id
from tests.interleaving import InterleavedLedger, at_every_point
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario, a_fact

NODE = f"hyperpod-{instance_id(1)}"
UNTIL_CORDON = (("PlanRecovery", plan_recovery), ("CordonNode", cordon_node))
UNTIL_RETURN = (*UNTIL_CORDON, ("DrainNode", drain_node), ("RepairNode", repair_node))


def recovery_after(*states: tuple[str, Any]) -> RecoveryScenario:
    recovery = RecoveryScenario(with_job=False)
    recovery.scenario.sweep()
    recovery.report_fault()
    for name, service in states:
        recovery.run_state(name, service)
    return recovery


def recovery_before_return() -> RecoveryScenario:
    recovery = recovery_after(*UNTIL_RETURN)
    recovery.advance_five_seconds()
    recovery.run_state("CheckNode", check_node)
    return recovery


def deliver_again(service: Any, incident_id: str, recovery: RecoveryScenario, **ports: Any) -> str:
    request = recovery_step.RecoveryStepRequest(incident_id=incident_id, run=1)
    return str(service.run(request, recovery.world.context(policy=recovery.policy, **ports)).outcome)


def settle(recovery: RecoveryScenario, node_outcome: str = "RETURNED") -> None:
    parts = {"plan": {"outcome": "ACT"}, "node": {"outcome": node_outcome}, "jobs": {"outcome": "NO_JOBS"}}
    request = {"incident_id": recovery.incident_id, "run": 1, **parts}
    settle_incident.run(settle_incident.SettleIncidentRequest.model_validate(request), recovery.world.context())


def start_next_run(recovery: RecoveryScenario) -> None:
    incident_store.update_incident(
        recovery.world.ledger, recovery.incident_id, lambda incident: (incident.replace(run=2), [])
    )


def uncordon(recovery: RecoveryScenario) -> None:
    request = set_manual_cordon.SetManualCordonRequest(
        instance_id=instance_id(1), by="role/Op (ana)", reason="it is well", request_id="op-1", fingerprint="1"
    )
    set_manual_cordon.uncordon_as_person(request, recovery.world.context())


def node_effects(recovery: RecoveryScenario) -> int:
    return len([call for call in recovery.world.cluster.calls if call[0] in ("cordon", "return_to_service")])


def is_cordoned(recovery: RecoveryScenario) -> bool:
    node = recovery.world.cluster.node(CLUSTER, NODE)
    assert node
    return node.is_cordoned


def test_late_cordon_leaves_returned_node_in_service() -> None:
    recovery = recovery_before_return()
    recovery.run_state("ReturnNode", return_node)

    assert deliver_again(cordon_node, recovery.incident_id, recovery) == "NOT_ALLOWED"
    assert not is_cordoned(recovery)
    assert recovery.guardrail_register(RegisterName.CORDONS).entries == ()


def test_late_cordon_leaves_node_that_person_uncordoned() -> None:
    recovery = recovery_after(*UNTIL_CORDON)
    uncordon(recovery)

    assert deliver_again(cordon_node, recovery.incident_id, recovery) == "CORDONED"
    assert not is_cordoned(recovery)
    assert recovery.guardrail_register(RegisterName.CORDONS).entries == ()


def test_cordon_of_superseded_run_does_nothing() -> None:
    recovery = recovery_after(("PlanRecovery", plan_recovery))
    start_next_run(recovery)

    assert deliver_again(cordon_node, recovery.incident_id, recovery) == "NOT_ALLOWED"
    assert not is_cordoned(recovery)


def test_late_drain_stops_no_job_on_returned_node() -> None:
    recovery = RecoveryScenario(size=2)
    recovery.report_fault()
    plan = recovery.run_state("PlanRecovery", plan_recovery)
    for name, service in (("CordonNode", cordon_node), ("DrainNode", drain_node)):
        recovery.run_state(name, service)
    recovery.node_branch(plan)
    for _ in range(3):
        recovery.advance_five_seconds()
    assert (recovery.job.state, recovery.job.current_attempt) == (JobState.RUNNING, 2)

    deliver_again(drain_node, recovery.incident_id, recovery)

    assert recovery.job.stop_of(2) is None


def test_late_repair_requests_nothing_for_returned_node() -> None:
    recovery = recovery_before_return()
    recovery.run_state("ReturnNode", return_node)
    requests_before = list(recovery.world.provider.asked)
    recovery.world.clock.advance(600)
    recovery.set_fault_label(instance_id(1), "NvidiaErrorReboot")

    deliver_again(repair_node, recovery.incident_id, recovery)

    assert recovery.world.provider.asked == requests_before


def test_late_return_leaves_node_that_waits_for_person() -> None:
    recovery = RecoveryScenario(with_job=False)
    first_incident_id = recovery.report_fault()
    recovery.recover()
    recovery.world.clock.advance(3600)
    recovery.report_fault(observed_at=recovery.now)
    for name, service in UNTIL_CORDON:
        recovery.run_state(name, service)
    settle(recovery, "WAITING_FOR_PERSON")
    assert recovery.incident.state is IncidentState.WAITING_FOR_PERSON

    assert deliver_again(return_node, first_incident_id, recovery) == "RETURNED"
    assert is_cordoned(recovery)


def test_return_of_superseded_run_does_nothing() -> None:
    recovery = recovery_before_return()
    start_next_run(recovery)

    assert deliver_again(return_node, recovery.incident_id, recovery) == "STOOD_DOWN"
    assert is_cordoned(recovery)


@pytest.mark.parametrize(("owner", "text"), [("", "a person"), ("other", "{other}")])
def test_return_names_owner_of_cordon_that_stays(owner: str, text: str) -> None:
    recovery = recovery_before_return()
    other_incident_id = recovery.ingest(a_fact(3)).incident_id
    recovery.world.cluster.set_node(NODE, incident_id=other_incident_id if owner else None)

    returned = recovery.run_state("ReturnNode", return_node)

    owner_text = text.format(other=other_incident_id)
    assert returned.reason == f"{NODE} is healthy but stays cordoned, because {owner_text} cordoned it."


@pytest.mark.parametrize("act", [settle, start_next_run])
@pytest.mark.parametrize("service", [cordon_node, return_node])
def test_no_step_acts_on_node_after_end_of_run(service: Any, act: Callable[[RecoveryScenario], None]) -> None:
    def run(at: int) -> int:
        before_step = recovery_before_return if service is return_node else lambda: recovery_after(UNTIL_CORDON[0])
        recovery = before_step()
        effects_before_act: list[int] = []

        def interrupt() -> None:
            act(recovery)
            effects_before_act.append(node_effects(recovery))

        ledger = InterleavedLedger(recovery.world.ledger, at, interrupt)
        with contextlib.suppress(Conflict):
            deliver_again(service, recovery.incident_id, recovery, ledger=ledger)
        assert effects_before_act in ([], [node_effects(recovery)]), f"an effect after {act.__name__} before call {at}"
        return ledger.calls

    for _ in at_every_point(run):
        pass
