"""A recorded decision is decided again from its own facts, and from nothing else."""

import re
from pathlib import Path
from typing import Any

import pytest

from evenkeel.domain.decisions import Decision
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery.node_slot import ObservedNode
from evenkeel.domain.replay import KINDS, CannotReplayError, replay
from tests.fakes.cluster import a_node
from tests.fakes.system import A_MOMENT

SERVICES = Path(__file__).resolve().parents[2] / "shared" / "evenkeel" / "services"
RENTING = SERVICES.parent / "domain" / "renting"


def a_record(node: KubernetesNode | None = None, **changes: Any) -> Decision:
    """Return the decision record about a node that was put into service."""
    facts = {
        "decision_id": "dec-1",
        "kind": "VALIDATION",
        "subject": "research-eks/i-1/1",
        "action": "RELEASE",
        "reason": "The node is Running and Ready, has no fault label and offers 8 accelerators.",
        "facts": {"observed": ObservedNode(node=node or a_node()).to_json(), "expected": 8},
        "policy_hash": Policy().hash,
        "decided_at": A_MOMENT,
    }
    return Decision.model_validate(facts | changes)


def test_replay_of_equal_facts_gives_an_equal_answer() -> None:
    record = a_record()
    assert replay(record, Policy()).differs_from(record) == ""


def test_replay_reports_a_changed_answer() -> None:
    record = a_record(a_node(accelerators=7))
    assert replay(record, Policy()).differs_from(record) == "its action was 'RELEASE' and would be 'KEEP'"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"engine_version": "0"}, "needs engine 0"),
        ({"policy_hash": "abc"}, "needs policy abc"),
        ({"catalogue_hash": "abc"}, "needs catalogue abc"),
        ({"kind": "WHIM"}, "unknown kind WHIM"),
    ],
)
def test_record_that_cannot_be_replayed_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(CannotReplayError, match=why):
        replay(a_record(**changes), Policy(), catalogue_hash="def")


def test_every_decision_kind_can_be_replayed() -> None:
    texts = [path.read_text() for folder in (SERVICES, RENTING) for path in folder.rglob("*.py")]
    recorded = {
        kind
        for text in texts
        for kind in re.findall(r'(?:kind=|decision_of\(\s*|DepartureDecision\()"([A-Z_]+)"', text)
    }

    assert recorded == KINDS
