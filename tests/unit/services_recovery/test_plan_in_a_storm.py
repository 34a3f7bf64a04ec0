"""A plan needs few calls of HyperPod: the last sweep has read its settings, and may stand in for a refused answer."""

from typing import Any

import pytest

from evenkeel.domain.decisions import Decision
from evenkeel.domain.nodes import ProviderNode
from evenkeel.ports import EvenkeelError, NotAllowed, Put, Row, Throttled, Unreachable
from evenkeel.services.recovery import cordon_node, plan_recovery, repair_node
from evenkeel.services.recovery.plan_recovery import PlanRecoveryResult
from evenkeel.services.tables import fleet_rows, rows, subject_rows
from tests.fakes.cluster import instance_id
from tests.fakes.counting import CountedCalls
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario

RECENT, OLD = 150, 151


def recovery_after_sweep(seconds: float) -> RecoveryScenario:
    """Return a recovery that begins so many seconds after the last sweep."""
    recovery = RecoveryScenario(with_job=False)
    recovery.scenario.sweep()
    recovery.world.clock.advance(seconds)
    recovery.report_fault()
    return recovery


def refuse_node_reads(recovery: RecoveryScenario, error: EvenkeelError) -> None:
    """Let HyperPod refuse to describe a node."""

    def node(instance_id: str) -> ProviderNode | None:
        raise error

    recovery.world.provider.node = node  # type: ignore[method-assign]  # the only call that is refused


def facts_of_decision(recovery: RecoveryScenario, plan: PlanRecoveryResult) -> Any:
    row = recovery.world.ledger.get(subject_rows.decision_key(plan.decision_id))
    assert row is not None
    return rows.decode(row, Decision).facts


@pytest.mark.parametrize(("seconds", "reads"), [(RECENT, 0), (OLD, 1)])
def test_plan_reads_settings_from_hyperpod_only_after_missed_sweeps(seconds: int, reads: int) -> None:
    recovery = recovery_after_sweep(seconds)
    counted = CountedCalls(recovery.world)
    vars(recovery).update(counted.ports)

    plan = recovery.run_state("PlanRecovery", plan_recovery)

    assert plan.outcome == "ACT"
    assert counted.calls["provider.cluster"] == reads
    assert (facts_of_decision(recovery, plan)["clusterReadAt"] is None) == (reads == 1)


def test_ended_update_of_the_cluster_delays_no_plan() -> None:
    recovery = RecoveryScenario(with_job=False)
    in_service = recovery.world.provider.settings
    recovery.world.provider.settings = in_service.replace(status="SystemUpdating")
    recovery.scenario.sweep()
    recovery.world.provider.settings = in_service
    recovery.report_fault()

    assert recovery.run_state("PlanRecovery", plan_recovery).outcome == "ACT"


def test_update_after_the_sweep_still_delays_the_repair() -> None:
    recovery = recovery_after_sweep(30)
    recovery.world.provider.settings = recovery.world.provider.settings.replace(status="SystemUpdating")

    outcomes = [
        recovery.run_state(name, service).outcome
        for name, service in (
            ("PlanRecovery", plan_recovery),
            ("CordonNode", cordon_node),
            ("RepairNode", repair_node),
        )
    ]

    assert outcomes == ["ACT", "CORDONED", "LATER"]
    assert recovery.world.provider.asked == []


@pytest.mark.parametrize("error", [Throttled("rate exceeded"), Unreachable("no answer")])
def test_refused_status_is_taken_from_a_recent_sweep(error: EvenkeelError) -> None:
    recovery = recovery_after_sweep(RECENT)
    refuse_node_reads(recovery, error)

    plan = recovery.run_state("PlanRecovery", plan_recovery)

    facts = facts_of_decision(recovery, plan)
    assert plan.outcome == "ACT"
    assert (facts["nodeStatus"], facts["nodeReadAt"]) == ("Running", facts["clusterReadAt"])


def test_refused_status_of_an_old_sweep_is_not_used() -> None:
    recovery = recovery_after_sweep(OLD)
    refuse_node_reads(recovery, Throttled("rate exceeded"))

    with pytest.raises(Throttled):
        recovery.run_state("PlanRecovery", plan_recovery)


def test_denied_call_is_not_replaced_by_the_sweep() -> None:
    recovery = recovery_after_sweep(RECENT)
    refuse_node_reads(recovery, NotAllowed("403"))

    with pytest.raises(NotAllowed):
        recovery.run_state("PlanRecovery", plan_recovery)


def test_status_of_a_failed_fleet_list_is_not_used() -> None:
    recovery = RecoveryScenario(with_job=False)
    recovery.scenario.sweep()
    recovery.world.clock.advance(OLD)

    def nodes() -> tuple[ProviderNode, ...]:
        raise Throttled("list nodes: rate exceeded")

    recovery.world.provider.nodes = nodes  # type: ignore[method-assign]  # the sweep cannot list
    recovery.scenario.sweep()
    recovery.report_fault()
    refuse_node_reads(recovery, Throttled("rate exceeded"))

    with pytest.raises(Throttled):
        recovery.run_state("PlanRecovery", plan_recovery)


def test_node_missing_in_hyperpod_is_gone_despite_the_sweep() -> None:
    recovery = recovery_after_sweep(RECENT)
    del recovery.world.provider.by_id[instance_id(1)]
    recovery.world.cluster.remove_node(f"hyperpod-{instance_id(1)}")

    plan = recovery.run_state("PlanRecovery", plan_recovery)

    assert facts_of_decision(recovery, plan)["isNodeGone"]


@pytest.mark.parametrize("change", [{"settings": {"name": 7}}, {"settingsReadAt": "2999-01-01T00:00:00.000000Z"}])
def test_settings_that_prove_nothing_are_read_from_hyperpod_and_replaced(change: dict[str, Any]) -> None:
    recovery = recovery_after_sweep(30)
    key, ledger = fleet_rows.hyperpod_key(), recovery.world.ledger
    stored = ledger.get(key)
    assert stored is not None
    ledger.commit(Put(Row(key, stored.doc | change, stored.version)))

    plan = recovery.run_state("PlanRecovery", plan_recovery)
    recovery.world.clock.advance(60)
    recovery.scenario.sweep()

    assert (plan.outcome, facts_of_decision(recovery, plan)["clusterReadAt"]) == ("ACT", None)
    replaced = ledger.get(key)
    assert replaced is not None
    assert replaced.doc.keys() == stored.doc.keys()
    assert replaced.doc["settings"] == stored.doc["settings"]


def test_status_of_a_sweep_in_the_future_is_not_used() -> None:
    recovery = recovery_after_sweep(30)
    key, ledger = fleet_rows.hyperpod_key(), recovery.world.ledger
    stored = ledger.get(key)
    assert stored is not None
    ledger.commit(Put(Row(key, stored.doc | {"nodesReadAt": "2999-01-01T00:00:00.000000Z"}, stored.version)))
    refuse_node_reads(recovery, Throttled("rate exceeded"))

    with pytest.raises(Throttled):
        recovery.run_state("PlanRecovery", plan_recovery)
