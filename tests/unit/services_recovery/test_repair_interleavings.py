"""Another service or a person changes an incident while RepairNode decides: no repair follows the change."""

from collections.abc import Callable
from typing import Any

import pytest

from evenkeel.ports import Conflict
from evenkeel.services.incidents import recovery_step, settle_incident
from evenkeel.services.recovery import cordon_node, drain_node, plan_recovery, repair_node, set_manual_cordon
from evenkeel.services.storage import incident_store
from tests.fakes.cluster import instance_id
from tests.interleaving import InterleavedLedger, at_every_point
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario


def recovery_before_repair() -> RecoveryScenario:
    recovery = RecoveryScenario(with_job=False)
    recovery.scenario.sweep()
    recovery.report_fault()
    for name, service in (("PlanRecovery", plan_recovery), ("CordonNode", cordon_node), ("DrainNode", drain_node)):
        recovery.run_state(name, service)
    return recovery


def repair(recovery: RecoveryScenario, **ports: Any) -> str:
    request = recovery_step.RecoveryStepRequest(incident_id=recovery.incident_id, run=1)
    return repair_node.run(request, recovery.world.context(policy=recovery.policy, **ports)).outcome


def settle(recovery: RecoveryScenario) -> None:
    parts = {
        "plan": {"outcome": "ACT"},
        "node": {"outcome": "STOOD_DOWN", "reason": "A person took the node."},
        "jobs": {"outcome": "NO_JOBS"},
    }
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


@pytest.mark.parametrize("act", [settle, start_next_run, RecoveryScenario.hold_automation])
def test_no_repair_follows_end_of_run_or_hold(act: Callable[[RecoveryScenario], None]) -> None:
    def run(at: int) -> int:
        recovery = recovery_before_repair()
        repair_requests = recovery.world.provider.asked
        requests_before_act: list[int] = []

        def interrupt() -> None:
            requests_before_act.append(len(repair_requests))
            act(recovery)

        ledger = InterleavedLedger(recovery.world.ledger, at, interrupt)
        try:
            repair(recovery, ledger=ledger)
        except Conflict:
            assert not repair_requests
        assert requests_before_act in ([], [len(repair_requests)]), f"a repair after {act.__name__} before call {at}"
        return ledger.calls

    for _ in at_every_point(run):
        pass


class ClusterWithActDuringDrain:
    """The cluster. A person acts once, when RepairNode lists the Jobs that it has drained."""

    def __init__(self, cluster: Any, act: Callable[[], None]) -> None:
        self._cluster, self._act = cluster, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def workloads(self, cluster: str) -> Any:
        act, self._act = self._act, lambda: None
        act()
        return self._cluster.workloads(cluster)


@pytest.mark.parametrize(
    ("act", "outcome"), [(RecoveryScenario.hold_automation, "HELD"), (uncordon, "STAND_DOWN"), (settle, "STAND_DOWN")]
)
def test_no_repair_follows_act_during_drain(act: Callable[[RecoveryScenario], None], outcome: str) -> None:
    recovery = recovery_before_repair()
    cluster = ClusterWithActDuringDrain(recovery.world.cluster, lambda: act(recovery))

    assert repair(recovery, cluster=cluster) == outcome
    assert recovery.world.provider.asked == []
