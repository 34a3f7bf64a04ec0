"""The whole recovery of a node that neither HyperPod nor Karpenter manages."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evenkeel.domain.health.incidents import Incident, IncidentState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.nodes import FleetNode, Node, NodeLife
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.node_groups import GroupMember, NodeGroup
from evenkeel.domain.recovery.repair_requests import RepairAnswer, RepairRequest
from evenkeel.domain.resources import Resources
from evenkeel.ports import Put, Unreachable
from evenkeel.services.recovery import plan_recovery, repair_node
from evenkeel.services.tables import fleet_rows
from tests.crash_points import crash_mark
from tests.fakes import CrashPlan, crashing
from tests.fakes.cluster import CLUSTER, a_node, instance_id
from tests.fakes.crashes import CrashTiming
from tests.fakes.node_groups import InMemoryNodeGroups
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario, answer_plan

FAULTY = instance_id(1)
GROUP = NodeGroup(name="eks-workers", cluster=CLUSTER, nodegroup="workers", desired=3, in_service=3)


class GroupScenario(RecoveryScenario):
    """A fleet whose nodes belong to an Auto Scaling group of a managed node group."""

    def __init__(self, group: NodeGroup | None = GROUP, **changes: Any) -> None:
        self.has_capacity = True
        self.turns = self.eks_terminates_at = 0
        super().__init__(**changes)
        self.groups = InMemoryNodeGroups(is_slow=True)
        self.node_groups: Any = crashing(self.groups, self.plan, "terminate")
        born = self.now
        for number in range(1, self.size + 1):
            del self.world.provider.by_id[instance_id(number)]
            name = a_node(number).name
            node = self.world.cluster.set_node(name, hyperpod_cluster_id=None, created_at=born)
            life = NodeLife(cluster=CLUSTER, instance_id=instance_id(number), launched_at=born)
            stored = FleetNode.from_node(Node(life=life, kubernetes=node), Resources(accelerators=8), born)
            self.world.ledger.commit(Put(fleet_rows.node_row(CLUSTER, instance_id(number), stored.to_json(), 0, None)))
            if group:
                self.groups.put(GroupMember(instance_id=instance_id(number), group=group, lifecycle="InService"))

    def context(self, **given: Any) -> Any:
        return super().context(**{"node_groups": self.node_groups, **given})

    def advance_five_seconds(self) -> None:
        self.turns += 1
        if self.turns == self.eks_terminates_at:
            self.change_membership(lifecycle="Terminating")
        elif self.has_capacity:
            for gone, launched in self.groups.finish():
                self.replace_instance(gone, launched)
        super().advance_five_seconds()

    def replace_instance(self, gone: str, launched: str) -> None:
        node = next(node for node in self.world.cluster.by_name.values() if node.instance_id == gone)
        self.world.cluster.remove_node(node.name)
        self.world.cluster.add_node(
            node.replace(name=f"ip-{launched}", instance_id=launched, labels={}, is_cordoned=False, incident_id=None)
        )

    def change_membership(self, **changes: Any) -> None:
        """Change the membership of the faulty node."""
        member = self.groups.member(FAULTY)
        assert member
        self.groups.put(member.replace(**changes))

    def with_fault(self) -> "GroupScenario":
        self.report_fault(source="kubernetes.node", fault_key="xid:79", observed_at=self.now)
        self.set_fault_label(FAULTY, "NvidiaErrorTerminate")
        return self

    def repair_requests(self) -> tuple[RepairRequest, ...]:
        return self.lease.requests if self.lease else ()


def test_group_replaces_a_faulty_node_without_a_person() -> None:
    recovery = GroupScenario().with_fault()

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.groups.terminated == [FAULTY]
    assert recovery.incident.node_branch == "GONE"
    assert recovery.world.on_call.alerts == []
    assert recovery.job.state is JobState.RUNNING
    assert recovery.groups.group(GROUP.name) == GROUP


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda scenario: scenario.change_membership(is_protected=True), "protected from scale-in"),
        (lambda scenario: scenario.change_membership(lifecycle="Standby"), "Standby"),
        (lambda scenario: scenario.groups.set_group(GROUP.replace(suspended=("Launch",))), "suspended Launch"),
        (lambda scenario: scenario.groups.set_group(GROUP.replace(cluster="other")), "belongs to cluster other"),
        (lambda scenario: scenario.groups.set_group(GROUP.replace(cluster="")), "no tag of a cluster"),
    ],
    ids=["protected", "standby", "suspended", "other-cluster", "no-cluster"],
)
def test_person_repairs_a_node_that_its_group_must_keep(change: Callable[[GroupScenario], None], reason: str) -> None:
    recovery = GroupScenario().with_fault()
    change(recovery)

    assert recovery.recover() == IncidentState.WAITING_FOR_PERSON
    assert recovery.groups.terminated == []
    assert reason in recovery.incident.outcome
    assert recovery.job.state is JobState.RUNNING


def test_person_repairs_a_node_outside_every_group() -> None:
    recovery = GroupScenario(group=None).with_fault()

    assert recovery.recover() == IncidentState.WAITING_FOR_PERSON
    assert "is in no Auto Scaling group" in recovery.incident.outcome


def test_evenkeel_terminates_nothing_if_eks_auto_repair_acts_in_time() -> None:
    recovery = GroupScenario(GROUP.replace(has_auto_repair=True)).with_fault()
    recovery.eks_terminates_at = 3

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.groups.terminated == []
    assert [request.rung for request in recovery.repair_requests()] == ["node_group"]


def test_person_repairs_node_if_auto_repair_does_nothing() -> None:
    recovery = GroupScenario(GROUP.replace(has_auto_repair=True)).with_fault()

    assert recovery.recover() == IncidentState.WAITING_FOR_PERSON
    assert recovery.groups.terminated == []
    assert "did not replace" in recovery.incident.outcome


def test_evenkeel_terminates_nothing_if_another_program_already_does() -> None:
    recovery = GroupScenario().with_fault()
    recovery.change_membership(lifecycle="Terminating")

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.groups.terminated == []


def test_person_is_alerted_if_replacement_has_no_capacity() -> None:
    recovery = GroupScenario().with_fault()
    recovery.has_capacity = False

    assert recovery.recover() == IncidentState.WAITING_FOR_PERSON
    assert recovery.groups.terminated == [FAULTY]


def test_observe_mode_terminates_no_instance() -> None:
    recovery = GroupScenario(mode=Mode.OBSERVE).with_fault()

    assert recovery.recover() == IncidentState.OBSERVED
    assert recovery.groups.terminated == []


def test_approved_plan_may_terminate_the_instance() -> None:
    recovery = GroupScenario(mode=Mode.RECOMMEND).with_fault()
    incidents: list[Incident] = []

    def approve() -> None:
        if not incidents:
            incidents.append(answer_plan(recovery))

    recovery.meanwhile = approve

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.groups.terminated == [FAULTY]


def test_hold_delays_the_termination_of_an_instance() -> None:
    recovery = GroupScenario().with_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.hold_automation()

    assert recovery.run_state("RepairNode", repair_node).outcome == "HELD"
    assert recovery.groups.terminated == []


def test_opt_out_prevents_the_termination_of_an_instance() -> None:
    recovery = GroupScenario().with_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    node = a_node(1).name
    labels = {**recovery.world.cluster.by_name[CLUSTER, node].labels, "evenkeel.io/automation": "off"}
    recovery.world.cluster.set_node(node, labels=labels)

    assert recovery.run_state("RepairNode", repair_node).outcome == "STAND_DOWN"
    assert recovery.groups.terminated == []


class GroupsWithoutReply:
    """A group whose termination takes effect, or not, without a reply."""

    def __init__(self, groups: InMemoryNodeGroups, *, arrives: bool) -> None:
        self.groups = groups
        self.arrives = arrives
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.groups, name)

    def terminate(self, instance_id: str) -> RepairAnswer:
        self.calls += 1
        if self.arrives or self.calls > 1:
            self.groups.terminate(instance_id)
        if self.calls > 1:
            return RepairAnswer.ACCEPTED
        raise Unreachable("no reply")


@pytest.mark.parametrize(("arrives", "calls"), [(True, 1), (False, 2)])
def test_termination_without_a_reply_is_repeated_only_without_effect(arrives: bool, calls: int) -> None:
    recovery = GroupScenario().with_fault()
    recovery.node_groups = GroupsWithoutReply(recovery.groups, arrives=arrives)

    assert recovery.recover() == IncidentState.RECOVERED
    assert (recovery.node_groups.calls, recovery.groups.terminated) == (calls, [FAULTY])


def effects() -> Iterator[Any]:
    recovery = GroupScenario().with_fault()
    recovery.recover()
    for number, name in enumerate(recovery.plan.effects, start=1):
        for when in CrashTiming:
            yield pytest.param(number, when, id=f"{when}-{number}-{name}", marks=crash_mark(number, when))


@pytest.mark.parametrize(("number", "when"), list(effects()))
def test_crash_at_any_effect_terminates_one_instance(number: int, when: CrashTiming) -> None:
    recovery = GroupScenario(plan=CrashPlan(at=number, when=when)).with_fault()

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.crashes == 1
    assert recovery.groups.terminated == [FAULTY]
