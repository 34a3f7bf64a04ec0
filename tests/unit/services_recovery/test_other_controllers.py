"""The whole recovery of a node that another controller repairs."""

from collections.abc import Sequence
from typing import Any

import pytest

from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.jobs.job import JobState
from evenkeel.services.queries.fleet import read_nodes
from evenkeel.services.recovery import plan_recovery
from tests.fakes.cluster import a_node, instance_id
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario

NODE = a_node(1).name
STATE = "dgxc.nvidia.com/nvsentinel-state"
TAINT = "remediation.medik8s.io/self-node-remediation=:NoSchedule"


class ControllerScenario(RecoveryScenario):
    """A fleet with another controller, which works on the first node from before the fault on."""

    def __init__(self, states: Sequence[str] = ("draining",), *, releases: bool = True, **changes: Any) -> None:
        self.states = [*states]
        self.releases = releases
        self.turns = 0
        super().__init__(**changes)
        self.world.cluster.set_node(NODE, is_cordoned=True, labels={STATE: "quarantined"})

    def advance_five_seconds(self) -> None:
        """Continue with the next state every four turns, and release the node at the end."""
        self.turns += 1
        due, left = divmod(self.turns, 4)
        if left == 0 and due <= len(self.states):
            self.world.cluster.set_node(NODE, labels={STATE: self.states[due - 1]})
        elif left == 0 and due == len(self.states) + 1 and self.releases:
            self.world.cluster.set_node(NODE, labels={}, is_cordoned=False, boot_id="boot-of-nvsentinel")
        super().advance_five_seconds()

    def requested_rungs(self) -> list[str]:
        return [request.rung for request in self.lease.requests] if self.lease else []

    def provider_call_count(self) -> int:
        provider = self.world.provider
        return provider.accepted_calls("reboot").total() + provider.accepted_calls("replace").total()


FAULT: dict[str, Any] = {"source": "kubernetes.node", "fault_key": "xid:79"}


def test_node_returns_to_service_after_nvsentinel_repaired_it() -> None:
    recovery = ControllerScenario(("draining", "remediating", "remediation-succeeded"))
    recovery.report_fault(**FAULT)

    assert recovery.recover() == IncidentState.RECOVERED
    assert (recovery.provider_call_count(), recovery.requested_rungs()) == (0, ["controller"])
    assert recovery.incident.plan is not None
    assert recovery.incident.plan.owner == "CONTROLLER"
    assert not recovery.world.cluster.by_name[("research-eks", NODE)].is_cordoned
    assert recovery.job.state is JobState.RUNNING
    assert recovery.world.on_call.alerts == []


def test_recovery_continues_if_node_controller_removes_cordon_of_evenkeel() -> None:
    recovery = ControllerScenario(("remediating",))
    recovery.world.cluster.set_node(NODE, is_cordoned=False)  # it has set its label, and not yet its cordon
    recovery.report_fault(**FAULT)

    assert recovery.recover() == IncidentState.RECOVERED
    assert "cordoned" in recovery.timeline_kinds()
    assert (recovery.provider_call_count(), recovery.requested_rungs()) == (0, ["controller"])


def test_person_is_alerted_when_nvsentinel_gives_up() -> None:
    recovery = ControllerScenario(("draining", "drain-failed"), releases=False)
    recovery.report_fault(**FAULT)

    assert recovery.recover() == IncidentState.WAITING_FOR_PERSON
    assert recovery.provider_call_count() == 0
    assert "drain-failed" in recovery.incident.outcome
    assert recovery.job.state is JobState.RUNNING


def test_person_is_alerted_when_nvsentinel_takes_too_long() -> None:
    recovery = ControllerScenario(releases=False)
    recovery.report_fault(**FAULT)

    assert recovery.recover() == IncidentState.WAITING_FOR_PERSON
    assert recovery.provider_call_count() == 0
    assert "has not repaired this node within" in recovery.incident.outcome


def test_node_that_its_controller_terminates_is_not_repaired() -> None:
    recovery = ControllerScenario(releases=False)
    recovery.world.cluster.set_node(NODE, labels={}, taints=("aws-node-termination-handler/spot-itn=:NoSchedule",))
    recovery.report_fault(**FAULT)

    def end() -> None:
        recovery.world.cluster.remove_node(NODE)
        del recovery.world.provider.by_id[instance_id(1)]

    recovery.states = []
    recovery.run_jobs()
    end()

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.provider_call_count() == 0


@pytest.mark.parametrize("mark", [{"labels": {STATE: "remediating"}}, {"taints": (TAINT,)}], ids=["label", "taint"])
def test_repair_stops_if_another_controller_marks_node_after_planning(mark: dict[str, Any]) -> None:
    recovery = RecoveryScenario()
    recovery.report_fault(**FAULT)
    marked = False
    first_branch = recovery.node_branch

    def node_branch(plan: Any) -> dict[str, Any]:
        nonlocal marked
        recovery.world.cluster.set_node(NODE, **mark)
        marked = True
        return first_branch(plan)

    recovery.node_branch = node_branch  # type: ignore[method-assign]  # the mark comes before the branch

    assert recovery.recover() == IncidentState.WAITING_FOR_PERSON
    assert marked
    assert recovery.world.provider.accepted_calls("reboot").total() == 0
    assert recovery.world.provider.accepted_calls("replace").total() == 0


def test_node_of_hyperpods_own_karpenter_is_repaired_by_hyperpod() -> None:
    recovery = RecoveryScenario()
    recovery.world.provider.settings = recovery.world.provider.settings.replace(
        repairs_by_itself=True, has_karpenter=True
    )
    recovery.world.cluster.set_node(NODE, labels={"karpenter.sh/nodepool": "research"})
    recovery.report_fault(**FAULT)

    plan = recovery.run_state("PlanRecovery", plan_recovery)

    assert plan.outcome == "ACT"
    assert recovery.incident.plan is not None
    assert recovery.incident.plan.owner == "HYPERPOD"


def test_sweep_records_the_controller_until_it_releases_the_node() -> None:
    recovery = ControllerScenario(with_job=False)

    def shown() -> str | None:
        recovery.scenario.sweep()
        node = read_nodes.show_node(instance_id(1), recovery.context())
        return str(node["repairedBy"]) if node["repairedBy"] else None

    assert shown() == f"NVSentinel ({STATE}=quarantined)"
    recovery.world.cluster.set_node(NODE, labels={STATE: "remediation-failed"})
    assert shown() == f"NVSentinel, which gave up ({STATE}=remediation-failed)"
    recovery.world.cluster.set_node(NODE, labels={}, is_cordoned=False)
    assert shown() is None
