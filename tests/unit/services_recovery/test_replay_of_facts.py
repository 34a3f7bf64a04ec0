"""The replay of recorded facts decides as the service does in the mode `observe`."""

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.shadow.replay_facts import FactReplay, RecordedNodeState
from evenkeel.domain.shadow.shadow_cases import ShadowDecision, shadow_decision
from evenkeel.services.incidents.find_affected_node import find_affected_node
from tests.examples import examples
from tests.fakes.cluster import instance_id
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario, a_fact

FAULTS = ("hp:NvidiaErrorReboot", "hp:NvidiaErrorTerminate", "xid:79", "xid:63", "xid:31", "gpu:driver_hang", "xid:48")
SOURCES = ("hyperpod.node-health", "eks.node-conditions", "nvsentinel.node-conditions")
FACTS = st.lists(
    st.tuples(
        st.integers(5, 4000),
        st.integers(1, 2),
        st.sampled_from(FAULTS),
        st.sampled_from(SOURCES),
        st.sampled_from([FactKind.FAULT, FactKind.FAULT, FactKind.RECOVERED]),
    ),
    max_size=8,
)


def comparable_decision(decision: ShadowDecision) -> tuple[Any, ...]:
    return (
        decision.node,
        decision.slot,
        decision.fault_key,
        decision.first_signal_at,
        decision.cordons,
        decision.repair,
        decision.owner,
        decision.reason,
    )


@settings(max_examples=examples(60), deadline=None)
@given(FACTS)
def test_replayed_facts_give_the_decision_of_the_service(steps: list[tuple[int, int, str, str, FactKind]]) -> None:
    recovery = RecoveryScenario(mode=Mode.OBSERVE, with_job=False)
    recovery.scenario.sweep()
    facts: list[NodeFact] = []
    for pause, number, fault_key, source, kind in steps:
        recovery.world.clock.advance(pause)
        fact = a_fact(
            number,
            kind=kind,
            source=source,
            fault_key=fault_key if kind is FactKind.FAULT else "",
            code="",
            observed_at=recovery.now,
            envelope_id=f"e-{len(facts)}",
        )
        facts.append(fact)
        result = recovery.ingest(fact)
        if result.outcome == "OPEN":
            recovery.incident_id, recovery.run = result.incident_id, 1
            recovery.recover()

    def node_at(instance: str, _at: object) -> RecordedNodeState:
        affected = find_affected_node(instance, recovery.context(), asks_provider=False)
        assert affected
        return RecordedNodeState(affected=affected, is_hyperpod=True)

    replayed = FactReplay(recovery.policy, node_at).decide_incidents((fact.observed_at, fact) for fact in facts)

    replayed_decisions = sorted(
        comparable_decision(decision) for incident in replayed if (decision := shadow_decision(incident))
    )
    served = sorted(
        comparable_decision(decision) for incident in recovery.incidents() if (decision := shadow_decision(incident))
    )
    assert replayed_decisions == served


def test_replay_joins_two_facts_within_a_second_into_one_decision() -> None:
    recovery = RecoveryScenario(mode=Mode.OBSERVE, with_job=False)
    recovery.scenario.sweep()
    first = a_fact(observed_at=recovery.now)
    second = first.replace(fault_key="xid:79", observed_at=recovery.now + timedelta(seconds=1))
    affected = find_affected_node(instance_id(1), recovery.context(), asks_provider=False)
    assert affected

    replay = FactReplay(recovery.policy, lambda _instance, _at: RecordedNodeState(affected=affected, is_hyperpod=True))
    (incident,) = replay.decide_incidents((fact.observed_at, fact) for fact in (first, second))

    assert (incident.fault_key, incident.evidence_count) == ("xid:79", 2)
