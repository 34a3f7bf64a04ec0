"""Other controllers that repair nodes: their marks, and the decisions about a marked node."""

from typing import Any

import pytest

from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.recovery.node_slot import ObservedNode, SlotState
from evenkeel.domain.recovery.other_controllers import ControllerMark, controller_mark, is_manual_cordon
from evenkeel.domain.recovery.plan import NodeOwner, plan_recovery
from evenkeel.domain.recovery.recovery_waits import evaluate_node_back
from evenkeel.domain.recovery.repair import choose_repair
from evenkeel.domain.recovery.repair_facts import Repair, RepairDecision
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from tests.fakes import a_node
from tests.unit.recovery.facts import (
    INVALID,
    VALID,
    a_repair_request,
    a_slot_state,
    a_successor,
    at,
    plan_facts,
    repair_facts,
)

STATE = "dgxc.nvidia.com/nvsentinel-state"
ACTIVE_CONTROLLER = ControllerMark(controller="NVSentinel", mark=f"{STATE}=draining")
FAILED_CONTROLLER = ControllerMark(controller="NVSentinel", mark=f"{STATE}=remediation-failed", has_given_up=True)
POLICY = RepairPolicy(controller_deadline_seconds=600, replace_deadline_seconds=200)
EMPTY_SLOT = SlotState(original=ObservedNode())


def a_marked_node(label: str = "", taint: str = "", **changes: Any) -> KubernetesNode:
    key, _, value = label.partition("=")
    return a_node(1, labels={key: value} if label else {}, taints=(taint,) if taint else (), **changes)


@pytest.mark.parametrize(
    ("label", "taint", "controller", "has_given_up"),
    [
        (f"{STATE}=quarantined", "", "NVSentinel", False),
        (f"{STATE}=draining", "", "NVSentinel", False),
        (f"{STATE}=drain-succeeded", "", "NVSentinel", False),
        (f"{STATE}=remediating", "", "NVSentinel", False),
        (f"{STATE}=remediation-succeeded", "", "NVSentinel", False),
        (f"{STATE}=drain-failed", "", "NVSentinel", True),
        (f"{STATE}=remediation-failed", "", "NVSentinel", True),
        ("", "aws-node-termination-handler/spot-itn=i-0:NoSchedule", "aws-node-termination-handler", False),
        ("", "aws-node-termination-handler/scheduled-maintenance=e:NoSchedule", "aws-node-termination-handler", False),
        ("aws-node-termination-handler/action=UncordonAfterReboot", "", "aws-node-termination-handler", False),
        ("", "remediation.medik8s.io/self-node-remediation=:NoSchedule", "self-node-remediation", False),
        ("", "remediation.medik8s.io/fence-agents-remediation=:NoSchedule", "fence-agents-remediation", False),
        ("", "medik8s.io/fence-agents-remediation=:NoExecute", "fence-agents-remediation", False),
    ],
)
def test_node_mark_identifies_its_controller(label: str, taint: str, controller: str, has_given_up: bool) -> None:
    node = a_marked_node(label, taint, is_cordoned=True)

    mark = controller_mark(node)

    assert mark is not None
    assert (mark.controller, mark.has_given_up) == (controller, has_given_up)
    assert mark.mark in (label, taint.partition("=")[0])
    assert not is_manual_cordon(node)


@pytest.mark.parametrize(
    ("label", "taint"),
    [
        ("", ""),
        (f"{STATE}=unheard-of", ""),
        ("k8saas.nvidia.com/ManagedByNVSentinel=false", ""),
        ("", "medik8s.io/drain=drain:NoSchedule"),
        ("", "aws-node-termination-handler/unheard-of=:NoSchedule"),
        ("", "node.kubernetes.io/unschedulable=:NoSchedule"),
    ],
)
def test_cordon_without_a_known_mark_belongs_to_a_person(label: str, taint: str) -> None:
    assert controller_mark(a_marked_node(label, taint)) is None
    assert is_manual_cordon(a_marked_node(label, taint, is_cordoned=True))
    assert not is_manual_cordon(a_marked_node(label, taint, is_cordoned=True, incident_id="inc-1"))
    assert not is_manual_cordon(None)


@pytest.mark.parametrize(("mark", "word"), [(ACTIVE_CONTROLLER, "waits"), (FAILED_CONTROLLER, "gave up")])
def test_plan_moves_jobs_and_leaves_the_repair_to_its_controller(mark: ControllerMark, word: str) -> None:
    plan = plan_recovery(plan_facts(controller=mark), POLICY)

    assert (plan.outcome, plan.owner, plan.jobs) == ("ACT", NodeOwner.CONTROLLER, "MOVE")
    assert word in plan.reason
    assert mark.mark in plan.reason
    rejected = {alternative.option: alternative.why_not for alternative in plan.alternatives}
    assert rejected["reboot then replace"] == "two repairs of one node would conflict"


def choose(**changes: Any) -> RepairDecision:
    return choose_repair(repair_facts(**changes), POLICY)


WAITING = a_repair_request("controller", 10)


@pytest.mark.parametrize(
    ("why", "changes", "action"),
    [
        ("it works", {"controller": ACTIVE_CONTROLLER}, Repair.AWAIT),
        ("it works on a node that looks healthy", {"controller": ACTIVE_CONTROLLER, "validity": VALID}, Repair.AWAIT),
        ("it gave up", {"controller": FAILED_CONTROLLER}, Repair.ASK_PERSON),
        ("it has released the node before", {"owner": NodeOwner.CONTROLLER}, Repair.AWAIT),
        ("its mark came after the plan", {"owner": NodeOwner.HYPERPOD, "controller": ACTIVE_CONTROLLER}, Repair.AWAIT),
        (
            "a person cordoned the node too",
            {"controller": ACTIVE_CONTROLLER, "is_manual_cordon": True},
            Repair.STAND_DOWN,
        ),
        ("it waits", {"controller": ACTIVE_CONTROLLER, "requests": (WAITING,), "now": at(609)}, Repair.AWAIT),
        (
            "it takes too long",
            {"controller": ACTIVE_CONTROLLER, "requests": (WAITING,), "now": at(610)},
            Repair.ASK_PERSON,
        ),
        ("it gave up later", {"controller": FAILED_CONTROLLER, "requests": (WAITING,)}, Repair.ASK_PERSON),
        ("it released the node", {"requests": (WAITING,), "validity": VALID}, Repair.HEALTHY),
        ("the released node starts", {"requests": (WAITING,), "validity": INVALID}, Repair.AWAIT),
        (
            "the released node failed its validation",
            {"requests": (WAITING,), "validity": INVALID, "invalid_at": at(60)},
            Repair.ASK_PERSON,
        ),
        ("the node is gone", {"requests": (WAITING,), "slot_state": EMPTY_SLOT}, Repair.AWAIT),
        (
            "no replacement came",
            {"requests": (WAITING,), "slot_state": EMPTY_SLOT, "now": at(210)},
            Repair.NOT_NEEDED,
        ),
        (
            "a reboot by Evenkeel failed, and then the mark came",
            {"requests": (a_repair_request("reboot", 10),), "controller": ACTIVE_CONTROLLER, "now": at(2000)},
            Repair.AWAIT,
        ),
        (
            "an earlier run of this incident requested a reboot",
            {"owner": NodeOwner.CONTROLLER, "requests": (a_repair_request("reboot", 10),), "now": at(2000)},
            Repair.ASK_PERSON,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_evenkeel_requests_nothing_for_a_node_of_another_controller(
    why: str, changes: dict[str, Any], action: Repair
) -> None:
    facts: dict[str, Any] = {"owner": NodeOwner.CONTROLLER, "validity": INVALID, **changes}
    if "owner" not in changes and "requests" in changes and changes["requests"][0].rung == "reboot":
        facts["owner"] = NodeOwner.EVENKEEL

    decided = choose(**facts)

    assert decided.action is action, why
    assert decided.rung == ""


@pytest.mark.parametrize(
    "requests", [(), (a_repair_request("reboot", 10),)], ids=["no request", "a reboot that did not help"]
)
def test_wait_for_another_controller_is_recorded(requests: Any) -> None:
    decided = choose(controller=ACTIVE_CONTROLLER, requests=requests, now=at(2000))

    assert (decided.action, decided.awaited_owner) == (Repair.AWAIT, "controller")


@pytest.mark.parametrize(
    ("slot_state", "outcome"),
    [
        (a_slot_state(labels={STATE: "draining"}, is_ready=True), None),
        (a_slot_state(labels={STATE: "remediation-succeeded"}, is_ready=True, boot_id="boot-2"), None),
        (a_slot_state(labels={STATE: "drain-failed"}), "REPAIR_FAILED"),
        (a_slot_state(is_ready=False), None),
        (a_slot_state(is_ready=True), "NODE_BACK"),
        (a_slot_state(labels={STATE: "draining"}, successor=a_successor(is_ready=True)), "NODE_BACK"),
        (EMPTY_SLOT, None),
    ],
    ids=["works", "rebooted", "gave up", "released, not Ready", "released", "replaced", "gone"],
)
def test_wait_for_another_controller_ends_when_it_is_done(slot_state: SlotState, outcome: str | None) -> None:
    answer = evaluate_node_back(
        slot_state, rung="controller", boot_id_before="boot-1", owner="CONTROLLER", since=at(10)
    )

    assert (answer.outcome if answer else None) == outcome


@pytest.mark.parametrize(
    "requests",
    [(), (a_repair_request("replace", 10),), (a_repair_request("owner", 10),), (WAITING,)],
    ids=["none", "by Evenkeel", "by HyperPod", "by another controller"],
)
def test_node_that_hyperpods_karpenter_ended_is_not_awaited(requests: Any) -> None:
    facts = {"slot_state": EMPTY_SLOT, "requests": requests, "now": at(20)}

    assert choose(**facts).action is not Repair.NOT_NEEDED
    assert choose(**facts, has_karpenter=True).action is Repair.NOT_NEEDED
    assert choose(**facts, has_karpenter=True, owner=NodeOwner.HYPERPOD).action is Repair.NOT_NEEDED
