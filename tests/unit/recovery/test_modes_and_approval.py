"""The permission to act by mode, and the effect of an approval."""

from typing import Any

import pytest

from evenkeel.domain.health.incidents import Approval, Incident, IncidentState, StoredRecoveryPlan
from evenkeel.domain.policy_section import Mode, ModeRule
from evenkeel.domain.recovery.approval import evaluate_approval, is_approved
from evenkeel.domain.recovery.modes import current_mode, most_cautious_mode
from evenkeel.domain.waiting import WaitOutcome
from tests.fakes import a_node
from tests.unit.recovery.facts import LIFE, SLOT, at

OBSERVE, R, A = Mode.OBSERVE, Mode.RECOMMEND, Mode.ACT


@pytest.mark.parametrize(
    ("why", "stack", "rules", "expected"),
    [
        ("no rule", A, [], A),
        ("a rule for all", A, [{"mode": R}], R),
        ("the stack is the ceiling", OBSERVE, [{"mode": A}], OBSERVE),
        ("this class", A, [{"fault_class": "gpu", "mode": R}], R),
        ("another class", A, [{"fault_class": "network", "mode": R}], A),
        ("this pool", A, [{"pool": "p5", "mode": OBSERVE}], OBSERVE),
        ("another pool", A, [{"pool": "g6", "mode": OBSERVE}], A),
        ("class and pool", A, [{"fault_class": "gpu", "pool": "g6", "mode": OBSERVE}], A),
        (
            "the least daring that fits",
            A,
            [{"mode": R}, {"pool": "p5", "mode": OBSERVE}, {"fault_class": "gpu", "mode": A}],
            OBSERVE,
        ),
    ],
)
def test_mode_follows_the_stack_and_its_rules(
    why: str, stack: Mode, rules: list[dict[str, Any]], expected: Mode
) -> None:
    assert most_cautious_mode(stack, [ModeRule.model_validate(rule) for rule in rules], "gpu", "p5") is expected, why


@pytest.mark.parametrize(
    ("why", "stack", "planned", "is_approved", "expected"),
    [
        ("acts", A, "act", False, A),
        ("not approved", A, "recommend", False, R),
        ("approved", A, "recommend", True, A),
        ("approved on a stack that recommends", R, "recommend", True, A),
        ("the stack was set back", OBSERVE, "recommend", True, OBSERVE),
        ("the stack was set back in mid recovery", R, "act", False, R),
        ("planned before there were modes", A, "", False, A),
        ("an approval does not lift observe", A, "observe", True, OBSERVE),
    ],
)
def test_step_runs_in_the_safer_mode_of_plan_and_stack(
    why: str, stack: Mode, planned: str, is_approved: bool, expected: Mode
) -> None:
    assert current_mode(stack, planned, is_approved=is_approved) is expected, why


def approval_facts(**changes: Any) -> Incident:
    facts: dict[str, Any] = {
        "incident_id": "inc-1",
        "life": LIFE,
        "slot": SLOT,
        "node_name": "n1",
        "pool": "p5",
        "instance_type": "ml.p5.48xlarge",
        "state": IncidentState.RECOVERING,
        "severity": "major",
        "fault_key": "xid:79",
        "first_signal_at": at(0),
        "opened_at": at(1),
        "plan": StoredRecoveryPlan(
            run=1,
            outcome="ASK",
            repairs_node=True,
            evidence_wait_seconds=0,
            max_repairs=3,
            decision_id="dec-1",
            reason="",
            fault_key="xid:79",
            boot_id="boot-1",
        ),
    }
    return Incident.model_validate({**facts, **changes})


def an_answer(*, approves: bool = True, decision_id: str = "dec-1") -> Approval:
    return Approval(decision_id=decision_id, approves=approves, by="role/Op (ana)", reason="go", at=at(9))


@pytest.mark.parametrize(
    ("why", "changes", "boot_id", "outcome"),
    [
        ("nobody said anything", {}, "boot-1", None),
        ("approved", {"approval": an_answer()}, "boot-1", WaitOutcome.APPROVED),
        ("approved, and the node is not to be seen", {"approval": an_answer()}, "", WaitOutcome.APPROVED),
        ("declined", {"approval": an_answer(approves=False)}, "boot-1", WaitOutcome.DECLINED),
        ("another plan was approved", {"approval": an_answer(decision_id="dec-0")}, "boot-1", None),
        ("a worse fault came", {"approval": an_answer(), "fault_key": "xid:95"}, "boot-1", WaitOutcome.SUPERSEDED),
        ("it has booted again", {"approval": an_answer()}, "boot-2", WaitOutcome.SUPERSEDED),
        ("it is healthy again", {"approval": an_answer(), "recovered_at": at(5)}, "boot-1", WaitOutcome.SUPERSEDED),
        ("it was healthy, and is sick again", {"recovered_at": at(5), "last_signal_at": at(6)}, "boot-1", None),
    ],
)
def test_approval_wait_ends_by_answer_deadline_or_changed_node(
    why: str, changes: dict[str, Any], boot_id: str, outcome: str | None
) -> None:
    wait_answer = evaluate_approval(approval_facts(**changes), a_node(1, boot_id=boot_id) if boot_id else None)

    assert (wait_answer.outcome if wait_answer else None) == outcome, why


def test_approval_does_not_apply_to_another_plan() -> None:
    assert is_approved(approval_facts(approval=an_answer()))
    assert not is_approved(approval_facts(approval=an_answer(approves=False)))
    assert not is_approved(approval_facts(approval=an_answer(decision_id="dec-0")))
    assert not is_approved(approval_facts())
