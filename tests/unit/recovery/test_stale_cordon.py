"""A node that recovers while it waits for a cordon stops waiting."""

from datetime import timedelta

from evenkeel.domain.health.faults import Severity
from evenkeel.domain.recovery.guardrails import (
    BlockedAction,
    GuardrailAction,
    GuardrailFacts,
    Register,
    RegisterEntry,
    unblocked_actions,
)
from evenkeel.domain.recovery.repair_policy import GuardrailPolicy
from tests.fakes.system import A_MOMENT

POLICY = GuardrailPolicy(stale_after_seconds=300)


def a_blocked_cordon(*, looks_healthy: bool, age: float) -> BlockedAction:
    other_entry = RegisterEntry(life_key="research-eks/i-2/1", incident_id="inc-2", pool="p5-workers", since=A_MOMENT)
    facts = GuardrailFacts(
        life_key="research-eks/i-1/1",
        pool="p5-workers",
        under_way=Register(entries=(other_entry,)),
        pool_nodes=3,
        evidence_at=A_MOMENT - timedelta(seconds=age),
        looks_healthy=looks_healthy,
        now=A_MOMENT,
    )
    return BlockedAction(
        incident_id="inc-1", severity=Severity.MAJOR, opened_at=A_MOMENT, action=GuardrailAction.CORDON, facts=facts
    )


def test_healthy_node_needs_no_cordon_slot() -> None:
    assert unblocked_actions([a_blocked_cordon(looks_healthy=True, age=301)], POLICY) == {"inc-1"}


def test_faulty_nodes_wait_for_a_cordon_slot() -> None:
    assert unblocked_actions([a_blocked_cordon(looks_healthy=False, age=301)], POLICY) == frozenset()
    assert unblocked_actions([a_blocked_cordon(looks_healthy=True, age=299)], POLICY) == frozenset()
