"""The repair ladder, rung by rung."""

from typing import Any

import pytest

from evenkeel.domain.policy import RepairPolicy
from evenkeel.domain.recovery.leases import Hold
from evenkeel.domain.recovery.plan import Owner
from evenkeel.domain.recovery.repair import Repair, RepairDecision, choose_repair, deadline_of
from tests.unit.recovery.facts import (
    ILL,
    WELL,
    a_seat,
    a_successor,
    an_ask,
    at,
    repair_facts,
)

POLICY = RepairPolicy(
    reboot_deadline_seconds=100, replace_deadline_seconds=200, owner_deadline_seconds=500, reconcile_after_seconds=50
)
HOLD = Hold(by="ana", reason="looking", since=at(0), until=at(900))
REBOOTED = a_seat(boot_id="boot-2")


def choose(**changes: Any) -> RepairDecision:
    return choose_repair(repair_facts(**changes), POLICY)


@pytest.mark.parametrize(
    ("why", "changes", "action"),
    [
        ("a reboot may clear it", {}, Repair.REBOOT),
        ("no reboot clears it", {"ladder": ("replace",)}, Repair.REPLACE),
        ("there is no rung", {"ladder": ()}, Repair.ASK_PERSON),
        ("the mode forbids it", {"not_allowed": "Mode is observe."}, Repair.STAND_DOWN),
        ("another incident repairs the seat", {"lease_holder": "inc-2"}, Repair.STAND_DOWN),
        ("a person holds the node", {"is_persons_cordon": True}, Repair.STAND_DOWN),
        ("a person holds automation", {"hold": HOLD}, Repair.HOLD),
        ("HyperPod owns it", {"owner": Owner.HYPERPOD}, Repair.AWAIT),
        ("it is Ready by itself", {"fault_key": "node:not_ready", "validity": WELL}, Repair.HEALTHY),
        ("it looks well, and the fault is in the hardware", {"validity": WELL}, Repair.REBOOT),
        ("it is healthy again, says HyperPod", {"has_recovered": True, "validity": WELL}, Repair.HEALTHY),
        (
            "it was well and faulted while it was validated",
            {"fault_key": "node:not_ready", "validity": WELL, "invalid_at": at(15)},
            Repair.REBOOT,
        ),
    ],
)
def test_before_any_call(why: str, changes: dict[str, Any], action: Repair) -> None:
    assert choose(**changes).action is action, why


@pytest.mark.parametrize(
    ("why", "changes", "action"),
    [
        ("the reboot is under way", {"asks": (an_ask(),)}, Repair.AWAIT),
        ("it rebooted and is well", {"asks": (an_ask(),), "seat": REBOOTED, "validity": WELL}, Repair.HEALTHY),
        ("it rebooted and is coming up", {"asks": (an_ask(),), "seat": REBOOTED}, Repair.AWAIT),
        (
            "it rebooted and failed its validation",
            {"asks": (an_ask(),), "seat": REBOOTED, "invalid_at": at(60), "now": at(70)},
            Repair.REPLACE,
        ),
        (
            "it rebooted, looks well, and faulted while it was validated",
            {"asks": (an_ask(),), "seat": REBOOTED, "invalid_at": at(60), "validity": WELL, "now": at(70)},
            Repair.REPLACE,
        ),
        ("the reboot did not bring it back", {"asks": (an_ask(),), "now": at(111)}, Repair.REPLACE),
        ("the replacement is under way", {"asks": (an_ask("replace"),), "now": at(111)}, Repair.AWAIT),
        ("the replacement never came", {"asks": (an_ask("replace"),), "now": at(211)}, Repair.ASK_PERSON),
        ("something runs on it already", {"asks": (an_ask(answer="IN_USE"),)}, Repair.AWAIT),
        ("the machine is another's already", {"asks": (an_ask(answer="NO_SUCH_NODE"),)}, Repair.AWAIT),
        ("the provider was not ready", {"asks": (an_ask(answer="NOT_NOW"),)}, Repair.PAUSE),
        ("… and may be now", {"asks": (an_ask(answer="NOT_NOW"),), "now": at(41)}, Repair.REBOOT),
        ("the provider failed", {"asks": (an_ask(answer="FAILED"),), "now": at(41)}, Repair.REBOOT),
        (
            "the provider failed twice",
            {"asks": (an_ask(answer="FAILED"), an_ask(seconds=41, answer="FAILED")), "now": at(80)},
            Repair.REPLACE,
        ),
        (
            "the provider put it off for ever",
            {"asks": tuple(an_ask(seconds=n, answer="NOT_NOW") for n in range(10)), "now": at(80)},
            Repair.ASK_PERSON,
        ),
        (
            "three calls are enough",
            {
                "asks": tuple(an_ask(seconds=n, answer="FAILED") for n in range(3)),
                "ladder": ("replace",),
                "now": at(80),
            },
            Repair.ASK_PERSON,
        ),
        (
            "HyperPod is late",
            {"owner": Owner.HYPERPOD, "asks": (an_ask("owner"),), "now": at(511)},
            Repair.ASK_PERSON,
        ),
        ("HyperPod is at it", {"owner": Owner.HYPERPOD, "asks": (an_ask("owner"),), "now": at(300)}, Repair.AWAIT),
        (
            "HyperPod has rebooted it",
            {"owner": Owner.HYPERPOD, "asks": (an_ask("owner"),), "now": at(511), "seat": REBOOTED, "validity": WELL},
            Repair.HEALTHY,
        ),
    ],
)
def test_after_a_call(why: str, changes: dict[str, Any], action: Repair) -> None:
    decision = choose(**changes)

    assert decision.action is action, f"{why}: {decision.reason}"


@pytest.mark.parametrize("answer", ["", "UNKNOWN"], ids=["crashed", "no reply"])
@pytest.mark.parametrize(
    ("why", "rung", "changes", "action"),
    [
        ("it is awaited first", "reboot", {"now": at(30)}, Repair.AWAIT),
        ("no trace: once more", "reboot", {"now": at(61)}, Repair.REBOOT),
        ("no trace: once more", "replace", {"now": at(61)}, Repair.REPLACE),
        ("it has booted again", "reboot", {"now": at(61), "seat": REBOOTED}, Repair.AWAIT),
        ("its status changed", "replace", {"now": at(61), "status": "Pending"}, Repair.AWAIT),
        ("it took effect and never came", "replace", {"now": at(300), "status": "Pending"}, Repair.ASK_PERSON),
    ],
)
def test_a_lost_reply(why: str, rung: str, changes: dict[str, Any], action: Repair, answer: str) -> None:
    status = changes.get("status", "Running")
    seat = changes.get("seat") or a_seat()
    assert seat.patient.record
    patient = seat.patient.but(record=seat.patient.record.but(status=status))
    ladder = ("reboot", "replace") if rung == "reboot" else ("replace",)
    asks = (an_ask(rung, answer=answer),)

    decision = choose(asks=asks, now=changes["now"], seat=seat.but(patient=patient), ladder=ladder)

    assert decision.action is action, f"{why}: {decision.reason}"


def test_a_call_is_repeated_once_only() -> None:
    lost = (an_ask("replace", answer="UNKNOWN"), an_ask("replace", seconds=61, answer="UNKNOWN"))

    assert choose(asks=lost, now=at(200), ladder=("replace",)).action is Repair.ASK_PERSON


def test_a_life_is_replaced_once_also_by_a_later_incident() -> None:
    earlier = an_ask("replace", seconds=-900, incident_id="inc-0")

    assert choose(asks=(earlier,), ladder=("replace",)).action is Repair.ASK_PERSON


def test_a_machine_that_was_rebooted_lately_is_replaced_at_once() -> None:
    earlier = an_ask("reboot", seconds=-900, incident_id="inc-0")

    assert choose(asks=(earlier,)).action is Repair.REPLACE


@pytest.mark.parametrize(
    ("why", "changes", "action"),
    [
        ("it is well", {"validity": WELL}, Repair.HEALTHY),
        ("it is coming up", {"validity": ILL}, Repair.AWAIT),
        ("it does not come up", {"validity": ILL, "now": at(400)}, Repair.ASK_PERSON),
        ("it failed its validation", {"validity": ILL, "invalid_at": at(90), "now": at(91)}, Repair.ASK_PERSON),
        ("the one before it failed, not this one", {"validity": WELL, "invalid_at": at(30)}, Repair.HEALTHY),
    ],
)
@pytest.mark.parametrize("asks", [(), (an_ask("replace"),)], ids=["replaced by another", "replaced by us"])
def test_another_machine_in_the_seat(why: str, changes: dict[str, Any], action: Repair, asks: Any) -> None:
    assert choose(asks=asks, seat=a_seat(successor=a_successor()), **changes).action is action, why


def test_alternatives_say_why_not() -> None:
    decision = choose()

    assert [each.option for each in decision.alternatives] == ["replace"]
    assert all(each.why_not for each in decision.alternatives)


def test_a_call_without_a_reply_is_awaited_for_less() -> None:
    assert deadline_of(an_ask(answer="UNKNOWN"), POLICY) == at(60)
    assert deadline_of(an_ask(), POLICY) == at(110)


def test_the_decision_replays_from_its_facts() -> None:
    facts = repair_facts(asks=(an_ask(),), now=at(111))

    again = type(facts).model_validate(facts.to_json())

    assert choose_repair(again, POLICY) == choose_repair(facts, POLICY)
