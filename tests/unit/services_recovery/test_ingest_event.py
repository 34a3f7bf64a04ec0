"""Ingestion of signals: copied, late, concurrent, and about nodes that are not known yet."""

import itertools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.health.incidents import Evidence, FactKind, Incident, IncidentState, NodeFact
from evenkeel.domain.health.recurrence import FaultHistory
from evenkeel.domain.nodes import FleetNode, Node, NodeLife
from evenkeel.domain.recovery.guardrails import GuardrailAction
from evenkeel.domain.resources import NONE
from evenkeel.domain.waiting import ConditionKind
from evenkeel.ports import Key, Put, Row, Table
from evenkeel.services.incidents import ingest_event, settle_incident, unresolved_facts
from evenkeel.services.incidents.record_node_fact import IngestResult
from evenkeel.services.recovery import cordon_node, drain_node, plan_recovery
from evenkeel.services.recovery.guardrail_inputs import GuardrailInputs
from evenkeel.services.resume import plan_resume
from evenkeel.services.storage import incident_store
from evenkeel.services.tables import fleet_rows, incident_rows, rows
from tests.fakes import FakeWorld, a_provider_node
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario, a_fact


def ingest_fact(world: FakeWorld, fact: NodeFact) -> IngestResult:
    return ingest_event.ingest_fact(fact, world.context())


def stored_incidents(world: FakeWorld) -> list[str]:
    return [key.pk for key in world.ledger.rows if key.pk.startswith("INC#") and key.sk == "META"]


COPIES = [
    a_fact(envelope_id="first"),
    a_fact(envelope_id="first"),
    a_fact(envelope_id="another", observed_at="2026-11-03T10:15:02Z"),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_signal_received_three_times_opens_one_incident(order: tuple[int, ...]) -> None:
    world = FakeWorld()

    outcomes = [ingest_fact(world, COPIES[index]).outcome for index in order]

    assert outcomes == ["OPEN", "DUPLICATE", "DUPLICATE"]
    assert len(stored_incidents(world)) == len(world.workflows.executions) == 1


@pytest.mark.parametrize("_attempt", range(5))
def test_concurrent_signals_open_one_incident_and_one_execution(_attempt: int) -> None:
    world = FakeWorld()
    facts = [
        a_fact(source="kubernetes.node", fault_key="node:not_ready", envelope_id="k8s"),
        a_fact(source="hyperpod.node-labels", fault_key="xid:79", envelope_id="labels"),
    ]
    together = threading.Barrier(len(COPIES) + len(facts))
    outcomes: list[str] = []

    def deliver(fact: NodeFact) -> None:
        together.wait(timeout=5)
        outcomes.append(ingest_fact(world, fact).outcome)

    threads = [threading.Thread(target=deliver, args=(fact,)) for fact in [*COPIES, *facts]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)

    assert sorted(outcomes) == ["DUPLICATE", "DUPLICATE", "JOIN", "JOIN", "OPEN"]
    assert len(stored_incidents(world)) == len(world.workflows.executions) == 1
    assert len(world.ledger.partition(Table.INCIDENTS, stored_incidents(world)[0], "EVIDENCE#")) == 3


def test_duplicate_signal_starts_execution_that_a_crash_left_unstarted() -> None:
    world = FakeWorld()
    ingest_fact(world, COPIES[0])
    world.workflows.executions.clear()

    assert ingest_fact(world, COPIES[1]).has_started_recovery
    assert len(world.workflows.executions) == 1


def test_evidence_shows_opening_and_joined_signals() -> None:
    world = FakeWorld()
    ingest_fact(world, a_fact())
    ingest_fact(world, a_fact(source="kubernetes.node", fault_key="node:not_ready", envelope_id="k8s"))

    [partition] = stored_incidents(world)
    stored = [rows.decode(row, Evidence) for row in world.ledger.partition(Table.INCIDENTS, partition, "EVIDENCE#")]

    assert sorted((evidence.fact.source, evidence.opened) for evidence in stored) == [
        ("hyperpod.node-health", True),
        ("kubernetes.node", False),
    ]


# ---------------------------------------------------------------- which node


def test_node_life_of_an_incident_comes_from_the_provider() -> None:
    world = FakeWorld()

    result = ingest_fact(world, a_fact(number=77))

    assert result.outcome == "UNRESOLVED"
    assert stored_incidents(world) == []
    assert world.workflows.executions == {}


def test_sweep_opens_the_incident_of_a_late_node() -> None:
    world = FakeWorld()
    ingest_fact(world, a_fact(number=77))
    ingest_fact(world, a_fact(number=77, envelope_id="copy"))
    assert unresolved_facts.retry_unresolved(world.context()) == ()

    world.provider.by_id[instance_id(77)] = a_provider_node(77)
    outcomes = unresolved_facts.retry_unresolved(world.context())

    assert [outcome.outcome for outcome in outcomes] == ["OPEN"]
    assert unresolved_facts.retry_unresolved(world.context()) == ()
    assert len(stored_incidents(world)) == 1


def test_unresolved_fact_about_an_unknown_node_expires() -> None:
    world = FakeWorld()
    ingest_fact(world, a_fact(number=77))

    world.clock.advance(timedelta(hours=7).total_seconds())
    unresolved_facts.retry_unresolved(world.context())

    assert world.ledger.by_state(Table.INCIDENTS, unresolved_facts.UNRESOLVED).rows == ()
    assert world.telemetry.totals["FactsDropped"] == 1


def test_node_is_looked_up_in_fleet_table_before_provider() -> None:
    world = FakeWorld()
    remembered = {
        "life": {"cluster": CLUSTER, "instanceId": instance_id(50), "launchedAt": "2026-11-01T00:00:00Z"},
        "slot": f"{CLUSTER}/seat-50",
        "nodeName": "node-50",
        "pool": "burst",
        "changedAt": "2026-11-03T00:00:00Z",
    }
    world.ledger.commit(Put(fleet_rows.node_row(CLUSTER, instance_id(50), remembered, 0, None)))

    assert ingest_fact(world, a_fact(number=50)).outcome == "OPEN"


# ---------------------------------------------------------------- after the end


def test_late_copy_does_not_reopen_settled_incident() -> None:
    recovery = RecoveryScenario()
    recovery.report_fault()
    recovery.recover()

    outcomes = [
        recovery.ingest(a_fact(envelope_id="late")).outcome,
        recovery.ingest(a_fact(observed_at="2026-11-03T10:14:00Z", envelope_id="later")).outcome,
    ]

    assert outcomes == ["DUPLICATE", "STALE"]
    assert len(recovery.incidents()) == 1


def test_same_fault_after_return_to_service_opens_second_incident() -> None:
    recovery = RecoveryScenario()
    recovery.report_fault()
    recovery.recover()
    first = recovery.incident_id

    recovery.report_fault(observed_at=recovery.now + timedelta(seconds=1), envelope_id="again")

    assert recovery.incident_id not in ("", first)
    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.incident.repairs == ("replace",)


def failed_again_after_return(fault_key: str = "xid:79") -> tuple[RecoveryScenario, Incident, Incident]:
    """Return a recovery whose node failed again while it still waited for jobs, and both incidents."""
    recovery = RecoveryScenario(size=2)
    recovery.report_fault()
    plan = recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("CordonNode", cordon_node)
    recovery.run_state("DrainNode", drain_node)
    recovery.run_state("PlanResume", plan_resume)
    node = recovery.node_branch(plan)
    first = recovery.incident_id
    recovery.world.clock.advance(60)
    recovery.ingest(a_fact(fault_key=fault_key, observed_at=recovery.now, envelope_id="again"))
    recovery.open_wait(ConditionKind.JOBS_RESUMED)
    assert recovery.evaluate_waits_once() == ["QUEUED"]
    parts = {"plan": {"outcome": "ACT"}, "node": node, "jobs": {"outcome": "QUEUED"}}
    assert recovery.run_state("SettleIncident", settle_incident, **parts).outcome == IncidentState.RECOVERED
    [following] = [incident for incident in recovery.incidents() if incident.incident_id != first]
    return recovery, recovery.incident, following


def test_fault_after_return_opens_next_incident_at_once() -> None:
    recovery, first, following = failed_again_after_return()

    assert (following.state, following.fault_key) == (IncidentState.OPEN, "xid:79")
    assert following.resumes == first.incident_id
    recovery.incident_id = following.incident_id
    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.incident.repairs == ("replace",)


def test_same_fault_in_minute_of_return_opens_next_incident() -> None:
    recovery = RecoveryScenario(size=2)
    recovery.report_fault()
    incident_store.update_incident(
        recovery.world.ledger,
        recovery.incident_id,
        lambda incident: (
            incident.replace(node_branch="RETURNED").with_stage_time("validated_at", incident.first_signal_at),
            [],
        ),
    )
    again = a_fact(observed_at=recovery.incident.first_signal_at + timedelta(seconds=2), envelope_id="again")

    outcomes = [recovery.ingest(again).outcome for _ in range(2)]
    recorded_by = recovery.world.ledger.get(incident_rows.fact_key(again.fact_key))
    known_ids = {incident.incident_id for incident in recovery.incidents()}
    parts = {"plan": {"outcome": "ACT"}, "node": {"outcome": "RETURNED"}, "jobs": {"outcome": "QUEUED"}}
    recovery.run_state("SettleIncident", settle_incident, **parts)

    assert outcomes == ["JOIN", "DUPLICATE"]
    assert recorded_by is not None
    assert recorded_by.doc["incidentId"] in known_ids
    assert len(recovery.incidents()) == 2


def test_fault_after_return_counts_for_shared_cause() -> None:
    recovery, first, following = failed_again_after_return()

    facts = GuardrailInputs(recovery.context()).read_facts(GuardrailAction.REPLACE, following).facts

    assert (first.evidence_count, following.evidence_count) == (2, 1)
    assert [cause.open_at for cause in facts.causes] == [(following.opened_at,)] * len(facts.causes)
    assert facts.causes


def test_fault_after_return_is_counted_for_next_incident() -> None:
    recovery, first, following = failed_again_after_return(a_fact().fault_key)

    row = recovery.world.ledger.get(incident_rows.history_key(f"slot/{first.slot}"))

    assert row
    occurrences = rows.decode(row, FaultHistory).occurrences
    assert [occurrence.incident_id for occurrence in occurrences] == [first.incident_id, following.incident_id]


def test_late_signal_of_a_replaced_node_opens_no_incident() -> None:
    recovery = RecoveryScenario()
    recovery.report_fault(fault_key="hp:NvidiaErrorTerminate")
    recovery.recover()
    row = {
        "life": recovery.incident.life.to_json(),
        "slot": recovery.incident.slot,
        "changedAt": "2026-11-03T00:00:00Z",
        "isGone": True,
    }
    recovery.world.ledger.commit(Put(fleet_rows.node_row(CLUSTER, instance_id(1), row, 0, None)))

    result = recovery.ingest(a_fact(observed_at=recovery.now + timedelta(minutes=5), envelope_id="ghost"))

    assert result.outcome == "STALE"


class CrashingLedger:
    """A ledger whose batch read is not atomic, as in DynamoDB: another write happens during it."""

    def __init__(self, ledger: Any, *, after: int, happens: Callable[[], Any]) -> None:
        self._ledger, self._after, self._happens = ledger, after, [happens]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def batch_get(self, *keys: Key) -> tuple[Row | None, ...]:
        if len(keys) == 1:  # the node of the fact
            return self._ledger.batch_get(*keys)  # type: ignore[no-any-return]  # any ledger
        first = self._ledger.batch_get(*keys[: self._after])
        while self._happens:
            self._happens.pop()()
        return (*first, *self._ledger.batch_get(*keys[self._after :]))


@pytest.mark.parametrize("after", range(1, 6))
def test_signal_during_settlement_opens_no_second_incident(after: int) -> None:
    recovery = RecoveryScenario()
    recovery.report_fault(fault_key="hp:NvidiaErrorTerminate")
    late = a_fact(fault_key="hp:NvidiaErrorTerminate", observed_at="2026-11-03T10:16:00Z", envelope_id="late")
    torn = CrashingLedger(recovery.world.ledger, after=after, happens=recovery.recover)

    outcome = ingest_event.ingest_fact(late, recovery.world.context(ledger=torn)).outcome

    assert outcome == "STALE"
    assert len(recovery.incidents()) == 1


def test_recovery_signal_before_any_action_ends_the_incident() -> None:
    recovery = RecoveryScenario()
    recovery.report_fault()
    recovery.ingest(
        a_fact(kind=FactKind.RECOVERED, fault_key="", observed_at="2026-11-03T10:15:30Z", envelope_id="well")
    )

    assert recovery.recover() == IncidentState.OBSERVED
    assert recovery.world.cluster.calls.count(("cordon", "hyperpod-" + instance_id(1), recovery.incident_id)) == 0


def test_fault_on_a_node_with_hundreds_of_jobs_is_ingested() -> None:
    world = FakeWorld()
    fact = a_fact(fault_key="xid:43")
    ingest_fact(world, a_fact(fault_key="xid:43", envelope_id="earlier", observed_at="2026-11-03T09:00:00Z"))
    node = Node(
        life=NodeLife(cluster=CLUSTER, instance_id=fact.instance_id, launched_at=world.clock.now()),
        provider=a_provider_node(1),
    )
    fleet_node = FleetNode.from_node(node, NONE, world.clock.now()).replace(
        job_ids=tuple(f"job-{n:03d}" for n in range(250))
    )
    row = fleet_rows.node_row(CLUSTER, fact.instance_id, fleet_node.to_json(), 0, None)
    world.ledger.commit(Put(row))

    assert ingest_fact(world, fact).outcome in ("OPEN", "JOIN")
