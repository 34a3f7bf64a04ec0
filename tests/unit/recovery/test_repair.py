"""The repair ladder, rung by rung."""

from typing import Any

import pytest

from evenkeel.domain.health.faults import NODE_RUNGS, Rung
from evenkeel.domain.health.incidents import RepairProgress
from evenkeel.domain.recovery.guardrails import REPAIRS
from evenkeel.domain.recovery.holds import Hold
from evenkeel.domain.recovery.node_slot import ObservedNode, SlotState
from evenkeel.domain.recovery.plan import NodeOwner
from evenkeel.domain.recovery.repair import choose_repair
from evenkeel.domain.recovery.repair_facts import Repair, RepairDecision
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.recovery.repair_requests import request_deadline
from tests.unit.recovery.facts import (
    INVALID,
    LIFE,
    VALID,
    a_repair_request,
    a_slot_state,
    a_successor,
    at,
    repair_facts,
)

POLICY = RepairPolicy(
    reboot_deadline_seconds=100,
    replace_deadline_seconds=200,
    takeover_seconds=150,
    owner_deadline_seconds=500,
    karpenter_deadline_seconds=300,
    reconcile_after_seconds=50,
)
HOLD = Hold(by="ana", reason="looking", since=at(0), until=at(900))
REBOOTED = a_slot_state(boot_id="boot-2")
GONE = SlotState(original=ObservedNode())


BOOTED = a_slot_state(boot_id="boot-2", ready_since=at(15))
"""The node has another boot id, and became Ready 15 s after the incident opened."""
STARTING = a_slot_state(boot_id="boot-2", is_ready=False, not_ready_since=at(15))


def progress_facts(*steps: tuple[str, float]) -> tuple[RepairProgress, ...]:
    return tuple(RepairProgress(code=code, at=at(seconds), instance_id=LIFE.instance_id) for code, seconds in steps)


def with_status(status: str) -> SlotState:
    slot_state = a_slot_state()
    assert slot_state.original.provider_node
    return slot_state.replace(
        original=slot_state.original.replace(provider_node=slot_state.original.provider_node.replace(status=status))
    )


def choose(**changes: Any) -> RepairDecision:
    return choose_repair(repair_facts(**changes), POLICY)


@pytest.mark.parametrize(
    ("why", "changes", "action"),
    [
        ("a reboot may clear it", {}, Repair.REBOOT),
        ("no reboot clears it", {"ladder": ("replace",)}, Repair.REPLACE),
        ("there is no rung", {"ladder": ()}, Repair.ASK_PERSON),
        ("the mode forbids it", {"not_allowed": "Mode is observe."}, Repair.STAND_DOWN),
        ("another incident repairs the node slot", {"lease_holder": "inc-2"}, Repair.STAND_DOWN),
        ("a person holds the node", {"is_manual_cordon": True}, Repair.STAND_DOWN),
        ("a person holds automation", {"hold": HOLD}, Repair.HOLD),
        ("HyperPod owns it", {"owner": NodeOwner.HYPERPOD}, Repair.AWAIT),
        (
            "HyperPod has rebooted it before we looked",
            {"owner": NodeOwner.HYPERPOD, "slot_state": REBOOTED, "validity": VALID},
            Repair.HEALTHY,
        ),
        ("… and it is coming up", {"owner": NodeOwner.HYPERPOD, "slot_state": REBOOTED}, Repair.AWAIT),
        ("it is Ready by itself", {"fault_key": "node:not_ready", "validity": VALID}, Repair.HEALTHY),
        ("it looks well, and the fault is in the hardware", {"validity": VALID}, Repair.REBOOT),
        ("it is healthy again, says HyperPod", {"has_recovered": True, "validity": VALID}, Repair.HEALTHY),
        (
            "it was well and faulted while it was validated",
            {"fault_key": "node:not_ready", "validity": VALID, "invalid_at": at(15)},
            Repair.REBOOT,
        ),
    ],
)
def test_repair_decision_before_any_call_has_the_expected_action(
    why: str, changes: dict[str, Any], action: Repair
) -> None:
    assert choose(**changes).action is action, why


@pytest.mark.parametrize(
    ("why", "changes", "action"),
    [
        ("the reboot is under way", {"requests": (a_repair_request(),)}, Repair.AWAIT),
        (
            "it rebooted and is well",
            {"requests": (a_repair_request(),), "slot_state": REBOOTED, "validity": VALID},
            Repair.HEALTHY,
        ),
        ("it rebooted and is coming up", {"requests": (a_repair_request(),), "slot_state": REBOOTED}, Repair.AWAIT),
        (
            "it rebooted and failed its validation",
            {"requests": (a_repair_request(),), "slot_state": REBOOTED, "invalid_at": at(60), "now": at(70)},
            Repair.REPLACE,
        ),
        (
            "it rebooted, looks well, and faulted while it was validated",
            {
                "requests": (a_repair_request(),),
                "slot_state": REBOOTED,
                "invalid_at": at(60),
                "validity": VALID,
                "now": at(70),
            },
            Repair.REPLACE,
        ),
        ("the reboot did not bring it back", {"requests": (a_repair_request(),), "now": at(111)}, Repair.REPLACE),
        ("the replacement is under way", {"requests": (a_repair_request("replace"),), "now": at(111)}, Repair.AWAIT),
        ("the replacement never came", {"requests": (a_repair_request("replace"),), "now": at(211)}, Repair.ASK_PERSON),
        ("something runs on it already", {"requests": (a_repair_request(answer="IN_USE"),)}, Repair.AWAIT),
        ("the machine is another's already", {"requests": (a_repair_request(answer="NO_SUCH_NODE"),)}, Repair.AWAIT),
        ("the provider was not ready", {"requests": (a_repair_request(answer="NOT_NOW"),)}, Repair.PAUSE),
        ("… and may be now", {"requests": (a_repair_request(answer="NOT_NOW"),), "now": at(41)}, Repair.REBOOT),
        ("the provider failed", {"requests": (a_repair_request(answer="FAILED"),), "now": at(41)}, Repair.REBOOT),
        (
            "the provider failed twice",
            {
                "requests": (a_repair_request(answer="FAILED"), a_repair_request(seconds=41, answer="FAILED")),
                "now": at(80),
            },
            Repair.REPLACE,
        ),
        (
            "the provider put it off for ever",
            {"requests": tuple(a_repair_request(seconds=n, answer="NOT_NOW") for n in range(10)), "now": at(80)},
            Repair.ASK_PERSON,
        ),
        (
            "three calls are enough",
            {
                "requests": tuple(a_repair_request(seconds=n, answer="FAILED") for n in range(3)),
                "ladder": ("replace",),
                "now": at(80),
            },
            Repair.ASK_PERSON,
        ),
        (
            "HyperPod has rebooted it",
            {
                "owner": NodeOwner.HYPERPOD,
                "requests": (a_repair_request("owner"),),
                "now": at(511),
                "slot_state": REBOOTED,
                "validity": VALID,
            },
            Repair.HEALTHY,
        ),
    ],
)
def test_repair_decision_after_a_call_has_the_expected_action(
    why: str, changes: dict[str, Any], action: Repair
) -> None:
    decision = choose(**changes)

    assert decision.action is action, f"{why}: {decision.reason}"


OWN_REBOOT_THEN_WAIT = (a_repair_request(), a_repair_request("owner", seconds=261, boot_id="boot-2"))
LEFT_TO_HYPERPOD = {"owner": NodeOwner.HYPERPOD, "requests": (a_repair_request("owner"),)}


@pytest.mark.parametrize(
    ("why", "changes", "action"),
    [
        ("the label is young", {"now": at(150)}, Repair.AWAIT),
        ("nothing was done since the label", {"now": at(160)}, Repair.REBOOT),
        ("nothing was done, and HyperPod is busy", {"now": at(160), "provider_busy": "Hands off."}, Repair.LATER),
        (
            "nothing was done, and jobs may finish",
            {"now": at(160), "has_work": True, "work_may_run_until": at(161)},
            Repair.LATER,
        ),
        ("an attempt runs, by its status", {"now": at(160), "slot_state": with_status("Pending")}, Repair.AWAIT),
        (
            "an attempt runs, by its events",
            {"now": at(160), "progress": progress_facts(("reboot_in_progress", 20))},
            Repair.AWAIT,
        ),
        (
            "an attempt runs for too long, and is not crossed",
            {"now": at(530), "progress": progress_facts(("replacement_started", 20))},
            Repair.ASK_PERSON,
        ),
        (
            "an attempt failed lately",
            {"now": at(530), "progress": progress_facts(("replacement_failed", 40))},
            Repair.AWAIT,
        ),
        (
            "no new attempt since",
            {"now": at(540), "progress": progress_facts(("replacement_failed", 40))},
            Repair.REBOOT,
        ),
        ("no capacity", {"now": at(540), "progress": progress_facts(("insufficient_capacity", 40))}, Repair.ASK_PERSON),
        ("it rebooted and is sick still", {"now": at(300), "slot_state": REBOOTED}, Repair.AWAIT),
        ("it rebooted, is sick, and nothing followed", {"now": at(511), "slot_state": REBOOTED}, Repair.REBOOT),
        (
            "taken over",
            {"requests": (a_repair_request("owner"), a_repair_request(seconds=160)), "now": at(170)},
            Repair.AWAIT,
        ),
        (
            "NodeRecovery is Automatic since Evenkeel's reboot",
            {"requests": (a_repair_request(),), "now": at(261)},
            Repair.AWAIT,
        ),
        (
            "Evenkeel's own reboot is no action of HyperPod",
            {"requests": OWN_REBOOT_THEN_WAIT, "slot_state": REBOOTED, "now": at(420)},
            Repair.REPLACE,
        ),
        (
            "… nor is a report about it",
            {
                "requests": OWN_REBOOT_THEN_WAIT,
                "slot_state": REBOOTED,
                "progress": progress_facts(("reboot_in_progress", 20)),
                "now": at(420),
            },
            Repair.REPLACE,
        ),
        (
            "HyperPod reported an attempt after that",
            {
                "requests": OWN_REBOOT_THEN_WAIT,
                "slot_state": REBOOTED,
                "progress": progress_facts(("reboot_in_progress", 300)),
                "now": at(420),
            },
            Repair.AWAIT,
        ),
        (
            "Evenkeel's request had no effect, so the report is about HyperPod",
            {
                "requests": (a_repair_request(answer="NOT_NOW"), a_repair_request("owner", 30)),
                "progress": progress_facts(("reboot_in_progress", 20)),
                "now": at(420),
            },
            Repair.AWAIT,
        ),
        (
            "it rebooted, looks well and failed its validation",
            {"slot_state": REBOOTED, "validity": VALID, "invalid_at": at(60), "now": at(70)},
            Repair.REBOOT,
        ),
        (
            "it failed its validation before the wait",
            {"slot_state": REBOOTED, "validity": VALID, "invalid_at": at(5), "now": at(70)},
            Repair.HEALTHY,
        ),
        (
            "it rebooted before the first decision, and failed its validation",
            {"requests": (), "slot_state": REBOOTED, "validity": VALID, "invalid_at": at(60), "now": at(70)},
            Repair.AWAIT,
        ),
        (
            "taken over in vain",
            {"requests": (a_repair_request("owner"), a_repair_request(seconds=160)), "now": at(261)},
            Repair.REPLACE,
        ),
    ],
)
def test_evenkeel_repairs_only_if_hyperpod_does_not_act(why: str, changes: dict[str, Any], action: Repair) -> None:
    decision = choose(**{**LEFT_TO_HYPERPOD, **changes})

    assert decision.action is action, f"{why}: {decision.reason}"


@pytest.mark.parametrize(
    ("why", "changes", "action"),
    [
        ("it is at it", {}, Repair.AWAIT),
        ("a hold does not matter", {"hold": HOLD}, Repair.AWAIT),
        ("it updates the cluster", {"provider_busy": "Hands off."}, Repair.LATER),
        ("it tests the node", {"slot_state": with_status("DeepHealthCheckInProgress")}, Repair.REBOOT),
        ("Evenkeel requested that", {"requests": (a_repair_request(),), "now": at(111)}, Repair.REPLACE),
        (
            "Evenkeel requested that in an earlier incident",
            {"requests": (a_repair_request(seconds=-200, incident_id="inc-0"),)},
            Repair.REPLACE,
        ),
        (
            "Evenkeel's request is too old to explain it",
            {"requests": (a_repair_request(seconds=-600, incident_id="inc-0"),)},
            Repair.AWAIT,
        ),
        (
            "the node returned to service after Evenkeel's request",
            {"requests": (a_repair_request(seconds=-200, incident_id="inc-0"),), "returned_at": at(-100)},
            Repair.AWAIT,
        ),
        (
            "the node returned to service before Evenkeel's request",
            {"requests": (a_repair_request(seconds=-200, incident_id="inc-0"),), "returned_at": at(-300)},
            Repair.REPLACE,
        ),
        ("its request was refused", {"requests": (a_repair_request(answer="NOT_NOW"),), "now": at(41)}, Repair.AWAIT),
        ("it takes too long", {"requests": (a_repair_request("owner"),), "now": at(511)}, Repair.ASK_PERSON),
    ],
)
def test_repair_that_hyperpod_runs_is_left_alone(why: str, changes: dict[str, Any], action: Repair) -> None:
    decision = choose(**{"slot_state": with_status("Pending"), **changes})

    assert decision.action is action, f"{why}: {decision.reason}"


@pytest.mark.parametrize(
    ("why", "changes", "action"),
    [
        (
            "the replacement failed",
            {"requests": (a_repair_request("replace"),), "code": "replacement_failed"},
            Repair.ASK_PERSON,
        ),
        ("the reboot failed", {"code": "reboot_failed"}, Repair.REPLACE),
        (
            "no capacity",
            {"requests": (a_repair_request("replace"),), "code": "insufficient_capacity"},
            Repair.ASK_PERSON,
        ),
        ("it is at it", {"requests": (a_repair_request("replace"),), "code": "replacement_started"}, Repair.AWAIT),
    ],
)
def test_repair_wait_ends_when_the_provider_reports_a_result(why: str, changes: dict[str, Any], action: Repair) -> None:
    decision = choose(
        **{
            "requests": (a_repair_request(),),
            "progress": progress_facts((changes.pop("code"), 30)),
            "now": at(31),
            **changes,
        }
    )

    assert decision.action is action, f"{why}: {decision.reason}"


def test_failure_reported_before_a_repair_call_does_not_count() -> None:
    assert (
        choose(requests=(a_repair_request(),), progress=progress_facts(("reboot_failed", 5)), now=at(31)).action
        is Repair.AWAIT
    )


def test_every_node_rung_maps_to_a_repair() -> None:
    assert {rung.name for rung in NODE_RUNGS} <= {repair.name for repair in Repair}
    assert {rung for rung in NODE_RUNGS if rung is not Rung.DIAGNOSE} == {Rung(act) for act in REPAIRS}


def test_replacement_without_capacity_names_the_next_step() -> None:
    decision = choose(
        requests=(a_repair_request("replace"),), progress=progress_facts(("insufficient_capacity", 30)), now=at(31)
    )

    assert "training plan" in decision.reason
    assert decision.action is Repair.ASK_PERSON
    assert [alternative.option for alternative in decision.alternatives] == [Rung.REPLACE]


LEFT_TO_KARPENTER = {"owner": NodeOwner.KARPENTER, "now": at(20)}


@pytest.mark.parametrize(
    ("why", "repairs", "changes", "action"),
    [
        ("its repair is off", False, {}, Repair.REPLACE),
        ("its repair is on", True, {}, Repair.AWAIT),
        ("it is at it", True, {"requests": (a_repair_request("karpenter"),), "now": at(300)}, Repair.AWAIT),
        ("it does nothing", True, {"requests": (a_repair_request("karpenter"),), "now": at(310)}, Repair.REPLACE),
        (
            "it gave the machine back",
            True,
            {"requests": (a_repair_request("karpenter"),), "slot_state": GONE},
            Repair.NOT_NEEDED,
        ),
        ("we gave it back", False, {"requests": (a_repair_request("replace"),), "slot_state": GONE}, Repair.NOT_NEEDED),
        ("it is being drained", False, {"requests": (a_repair_request("replace"),)}, Repair.AWAIT),
        ("it went by itself", False, {"slot_state": GONE}, Repair.NOT_NEEDED),
    ],
)
def test_karpenter_nodes_are_drained_and_terminated(
    why: str, repairs: bool, changes: dict[str, Any], action: Repair
) -> None:
    facts = repair_facts(**{**LEFT_TO_KARPENTER, **changes})

    decision = choose_repair(facts, POLICY.replace(karpenter_repairs=repairs))

    assert decision.action is action, f"{why}: {decision.reason}"


@pytest.mark.parametrize(
    ("why", "changes", "action", "drains"),
    [
        ("opted out", {"opt_out_reason": "Left to people."}, Repair.STAND_DOWN, False),
        (
            "opted out while a reboot runs",
            {"opt_out_reason": "Left.", "requests": (a_repair_request(),)},
            Repair.STAND_DOWN,
            False,
        ),
        ("a person's cordon", {"is_manual_cordon": True}, Repair.STAND_DOWN, True),
        ("a person's cordon under a hold", {"is_manual_cordon": True, "hold": HOLD}, Repair.HOLD, False),
        ("HyperPod updates the cluster", {"provider_busy": "Hands off."}, Repair.LATER, False),
        ("work may end first", {"has_work": True, "work_may_run_until": at(21)}, Repair.LATER, False),
        ("… and has had its time", {"has_work": True, "work_may_run_until": at(20)}, Repair.REBOOT, True),
        ("… and has ended", {"work_may_run_until": at(21)}, Repair.REBOOT, True),
        ("it is to be examined", {"ladder": ("diagnose", "replace")}, Repair.DIAGNOSE, True),
        (
            "the node already failed validation",
            {"ladder": ("diagnose", "replace"), "invalid_at": at(10)},
            Repair.REPLACE,
            True,
        ),
        ("its node slot was repaired too often today", {"calls_today": 6}, Repair.ASK_PERSON, False),
        ("it came back too often", {"returns": 3}, Repair.REPLACE, True),
        ("spot takes it", {"fault_key": "ec2:spot_interruption", "ladder": ()}, Repair.STAND_DOWN, True),
        (
            "EC2 may take it",
            {"fault_key": "ec2:rebalance_recommendation", "ladder": (), "leaves_work": True},
            Repair.STAND_DOWN,
            False,
        ),
        ("nobody's machine", {"owner": NodeOwner.NONE}, Repair.ASK_PERSON, True),
        ("its machine is gone, and its node slot is empty", {"slot_state": GONE}, Repair.AWAIT, False),
        ("… and stays empty", {"slot_state": GONE, "now": at(200)}, Repair.NOT_NEEDED, False),
    ],
)
def test_opt_out_hold_or_another_obstacle_stops_a_repair(
    why: str, changes: dict[str, Any], action: Repair, drains: bool
) -> None:
    decision = choose(**changes)

    assert (decision.action, decision.drains) == (action, drains), f"{why}: {decision.reason}"


@pytest.mark.parametrize(
    ("why", "changes", "drains"),
    [
        ("HyperPod stops them without a warning", {}, True),
        ("a hold keeps them", {"hold": HOLD}, False),
        ("the plan leaves them", {"leaves_work": True}, False),
        ("they may still finish", {"work_may_run_until": at(21)}, False),
        ("they had their time", {"work_may_run_until": at(20)}, True),
    ],
)
def test_jobs_stop_before_hyperpod_repairs_their_node(why: str, changes: dict[str, Any], drains: bool) -> None:
    decision = choose(owner=NodeOwner.HYPERPOD, **changes)

    assert (decision.action, decision.drains) == (Repair.AWAIT, drains), why


FAILED_DEEP_CHECK = {"deep_check_failed_at": at(60), "invalid_at": at(60), "slot_state": REBOOTED, "now": at(70)}


@pytest.mark.parametrize(
    ("why", "changes", "action", "marks"),
    [
        ("HyperPod repairs what failed its own check", {"requests": (a_repair_request(),)}, Repair.AWAIT, "owner"),
        ("it is awaited", {"requests": (a_repair_request(), a_repair_request("owner", 65))}, Repair.AWAIT, ""),
        (
            "it did nothing",
            {"requests": (a_repair_request(), a_repair_request("owner", 65)), "now": at(800)},
            Repair.REPLACE,
            "",
        ),
        (
            "it failed again and again",
            {"requests": tuple(a_repair_request("owner", seconds) for seconds in (10, 20, 30))},
            Repair.ASK_PERSON,
            "",
        ),
    ],
)
def test_hyperpod_repairs_a_node_that_failed_its_deep_check(
    why: str, changes: dict[str, Any], action: Repair, marks: str
) -> None:
    decision = choose(**{**FAILED_DEEP_CHECK, **changes})

    assert (decision.action, decision.awaited_owner) == (action, marks), f"{why}: {decision.reason}"


@pytest.mark.parametrize(
    ("why", "changes", "action"),
    [
        ("it is valid", {"validity": VALID}, Repair.HEALTHY),
        ("it is not valid yet", {}, Repair.AWAIT),
        ("it is still starting", {"slot_state": STARTING}, Repair.AWAIT),
        ("it does not become valid in time", {"now": at(116)}, Repair.REPLACE),
        ("it failed its validation after the boot", {"validity": VALID, "invalid_at": at(18)}, Repair.REPLACE),
        ("it failed a validation before the boot", {"validity": VALID, "invalid_at": at(12)}, Repair.HEALTHY),
        ("the fault was reported again after the boot", {"validity": VALID, "last_fault_at": at(16)}, Repair.REBOOT),
        ("it went NotReady before the fault", {"slot_state": STARTING, "last_fault_at": at(15)}, Repair.REBOOT),
        ("it was NotReady, and has the same boot", {"slot_state": a_slot_state(ready_since=at(15))}, Repair.REBOOT),
        ("the time of the boot is unknown", {"slot_state": REBOOTED}, Repair.REBOOT),
        ("the boot id at opening is unknown", {"boot_id_at_opening": ""}, Repair.REBOOT),
        ("the time of the fault is unknown", {"last_fault_at": None}, Repair.REBOOT),
        ("no reboot clears the fault", {"validity": VALID, "ladder": ("replace",)}, Repair.REPLACE),
        ("the fault is diagnosed first", {"validity": VALID, "ladder": ("diagnose", "reboot")}, Repair.DIAGNOSE),
        ("it returned to service too often", {"validity": VALID, "returns": 9}, Repair.REPLACE),
    ],
)
def test_node_that_booted_since_its_fault_is_not_rebooted(why: str, changes: dict[str, Any], action: Repair) -> None:
    """A person rebooted it, or Evenkeel did so before the tables were restored."""
    decision = choose(**{"slot_state": BOOTED, "last_fault_at": at(-5), **changes})

    assert decision.action is action, (why, decision.reason)


def test_skipped_reboot_states_that_the_node_has_already_rebooted() -> None:
    decision = choose(slot_state=BOOTED, last_fault_at=at(-5), invalid_at=at(18))

    assert decision.action is Repair.REPLACE
    assert decision.reason.startswith("The reboot did not clear the fault")
    assert {alternative.option: alternative.why_not for alternative in decision.alternatives} == {
        "reboot": "the node has already rebooted since its latest fault signal"
    }


@pytest.mark.parametrize("answer", ["", "UNKNOWN"], ids=["crashed", "no reply"])
@pytest.mark.parametrize(
    ("why", "rung", "changes", "action"),
    [
        ("it is awaited first", "reboot", {"now": at(30)}, Repair.AWAIT),
        ("no trace: once more", "reboot", {"now": at(61)}, Repair.REBOOT),
        ("no trace: once more", "replace", {"now": at(61)}, Repair.REPLACE),
        ("it has booted again", "reboot", {"now": at(61), "slot_state": REBOOTED}, Repair.AWAIT),
        ("its status changed", "replace", {"now": at(61), "status": "Pending"}, Repair.AWAIT),
        ("it took effect and never came", "replace", {"now": at(300), "status": "Pending"}, Repair.ASK_PERSON),
    ],
)
def test_repair_call_without_reply_is_judged_by_the_node(
    why: str, rung: str, changes: dict[str, Any], action: Repair, answer: str
) -> None:
    status = changes.get("status", "Running")
    slot_state = changes.get("slot_state") or a_slot_state()
    assert slot_state.original.provider_node
    original = slot_state.original.replace(provider_node=slot_state.original.provider_node.replace(status=status))
    ladder = ("reboot", "replace") if rung == "reboot" else ("replace",)
    requests = (a_repair_request(rung, answer=answer),)

    decision = choose(
        requests=requests, now=changes["now"], slot_state=slot_state.replace(original=original), ladder=ladder
    )

    assert decision.action is action, f"{why}: {decision.reason}"


def test_repair_call_is_repeated_at_most_once() -> None:
    calls_without_reply = (
        a_repair_request("replace", answer="UNKNOWN"),
        a_repair_request("replace", seconds=61, answer="UNKNOWN"),
    )

    assert choose(requests=calls_without_reply, now=at(200), ladder=("replace",)).action is Repair.ASK_PERSON


def test_node_is_replaced_at_most_once_over_all_incidents() -> None:
    earlier_request = a_repair_request("replace", seconds=-900, incident_id="inc-0")

    assert choose(requests=(earlier_request,), ladder=("replace",)).action is Repair.ASK_PERSON


def test_recently_rebooted_node_is_replaced_at_once() -> None:
    earlier_request = a_repair_request("reboot", seconds=-900, incident_id="inc-0")

    assert choose(requests=(earlier_request,)).action is Repair.REPLACE


@pytest.mark.parametrize(
    ("why", "changes", "action"),
    [
        ("it is well", {"validity": VALID}, Repair.HEALTHY),
        ("it is coming up", {"validity": INVALID}, Repair.AWAIT),
        ("it does not come up", {"validity": INVALID, "now": at(400)}, Repair.ASK_PERSON),
        ("it failed its validation", {"validity": INVALID, "invalid_at": at(90), "now": at(91)}, Repair.ASK_PERSON),
        ("the one before it failed, not this one", {"validity": VALID, "invalid_at": at(30)}, Repair.HEALTHY),
    ],
)
@pytest.mark.parametrize(
    "requests", [(), (a_repair_request("replace"),)], ids=["replaced by another", "replaced by us"]
)
def test_repair_is_over_once_a_replacement_has_the_slot(
    why: str, changes: dict[str, Any], action: Repair, requests: Any
) -> None:
    assert choose(requests=requests, slot_state=a_slot_state(successor=a_successor()), **changes).action is action, why


def test_each_alternative_repair_states_why_it_was_not_chosen() -> None:
    decision = choose()

    assert [alternative.option for alternative in decision.alternatives] == ["replace"]
    assert all(alternative.why_not for alternative in decision.alternatives)


def test_repair_call_without_a_reply_has_a_shorter_wait() -> None:
    assert request_deadline(a_repair_request(answer="UNKNOWN"), POLICY) == at(60)
    assert request_deadline(a_repair_request(), POLICY) == at(110)


def test_repair_decision_replays_from_its_facts() -> None:
    facts = repair_facts(requests=(a_repair_request(),), now=at(111))

    stored_facts = type(facts).model_validate(facts.to_json())

    assert choose_repair(stored_facts, POLICY) == choose_repair(facts, POLICY)


@pytest.mark.parametrize(
    ("why", "answer", "changes", "action"),
    [
        ("it had no reply", "UNKNOWN", {}, Repair.PAUSE),
        ("its caller died", "", {}, Repair.PAUSE),
        ("it was accepted", "ACCEPTED", {}, Repair.PAUSE),
        (
            "it looks well, and may go down yet",
            "UNKNOWN",
            {"validity": VALID, "has_recovered": True},
            Repair.PAUSE,
        ),
        ("it failed", "FAILED", {}, Repair.REBOOT),
        ("it was put off", "NOT_NOW", {}, Repair.REBOOT),
        ("it took effect", "UNKNOWN", {"slot_state": REBOOTED}, Repair.REBOOT),
        ("it had its time", "UNKNOWN", {"now": at(400)}, Repair.REBOOT),
    ],
)
def test_repair_call_of_an_earlier_incident_is_awaited(
    why: str, answer: str, changes: dict[str, Any], action: Repair
) -> None:
    earlier_request = a_repair_request(seconds=-5, answer=answer, incident_id="inc-0")

    decision = choose(requests=(earlier_request,), **changes)

    assert decision.action is action, f"{why}: {decision.reason}"
    assert decision.action is not Repair.PAUSE or 0 < decision.wait_seconds <= POLICY.retry_seconds
