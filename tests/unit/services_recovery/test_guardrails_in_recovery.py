"""Guardrails during recoveries: limits under races, order of blocked recoveries, approvals, and uncordons."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.domain.health.incidents import Incident, IncidentState
from evenkeel.domain.nodes import FleetNode, Node, NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode, ModeRule
from evenkeel.domain.recovery.fleet_summary import FleetSummary
from evenkeel.domain.recovery.guardrails import GuardrailName, RegisterEntry
from evenkeel.domain.recovery.repair_policy import GuardrailPolicy
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.domain.resources import NONE
from evenkeel.domain.waiting import ConditionKind
from evenkeel.ports import Conflict, Invalid, Ledger, Put, Row, Table, Write
from evenkeel.services.incidents import approve_recovery, note_group_fact, settle_incident
from evenkeel.services.recovery import (
    cordon_node,
    drain_node,
    hold_automation,
    plan_recovery,
    repair_node,
    return_node,
    set_manual_cordon,
)
from evenkeel.services.storage import guardrail_registers
from evenkeel.services.storage.guardrail_registers import RegisterName
from evenkeel.services.tables import fleet_rows, incident_rows, rows
from tests.fakes import InMemoryLedger, a_context
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario, answer_plan

K = ConditionKind
P5 = "p5-workers"


def guardrail_policy(**changes: Any) -> Policy:
    """A policy whose shares limit no recovery, unless a test changes it."""
    wide = {"pool_repair_share": None, "pool_cordon_share": None, "shared_cause_count": 99} | changes
    return QUICK.replace(repair=QUICK.repair.replace(guardrails=GuardrailPolicy.model_validate(wide)))


def recovery_of_fleet(
    size: int = 6, *, with_job: bool = False, policy: Policy | None = None, **settings: Any
) -> RecoveryScenario:
    """Return a recovery in a fleet that a sweep has recorded."""
    recovery = RecoveryScenario(size=size, with_job=with_job, policy=policy or guardrail_policy(), **settings)
    for number in range(1, size + 1):
        record_node(recovery, number)
    return recovery


def record_node(recovery: RecoveryScenario, number: int, **changes: Any) -> None:
    machine = instance_id(number)
    kubernetes_node = next(node for node in recovery.world.cluster.by_name.values() if node.instance_id == machine)
    record = recovery.world.provider.by_id[machine]
    life = NodeLife(cluster=CLUSTER, instance_id=machine, launched_at=record.launched_at)
    fleet_node = FleetNode.from_node(
        Node(life=life, kubernetes=kubernetes_node, provider=record), NONE, recovery.now
    ).replace(**changes)
    row = recovery.world.ledger.get(fleet_rows.node_key(CLUSTER, machine))
    fresh = fleet_rows.node_row(CLUSTER, machine, fleet_node.to_json(), row.version if row else 0, None)
    recovery.world.ledger.commit(Put(fresh))
    nodes = [rows.decode(row, FleetNode) for row in recovery.world.ledger.by_state(Table.FLEET, "NODE").rows]
    boot_seconds = recovery.policy.watch.first_boot_grace_seconds
    able = Counter(node.pool for node in nodes if node.can_be_acted_on(recovery.now, boot_seconds=boot_seconds))
    stored = recovery.world.ledger.get(fleet_rows.summary_key())
    summary = FleetSummary(nodes=able).to_json()
    recovery.world.ledger.commit(Put(Row(fleet_rows.summary_key(), summary, stored.version if stored else 0)))


def recover_until_repair(recovery: RecoveryScenario, number: int, **fact: Any) -> str:
    """Take a node's recovery to the point where its repair is due; return the incident."""
    incident_id = recovery.report_fault(number, **fact)
    for name, service in (("Plan", plan_recovery), ("Cordon", cordon_node), ("Drain", drain_node)):
        recovery.run_state(name, service)
    return incident_id


def run_repair(recovery: RecoveryScenario, incident_id: str) -> repair_node.RepairNodeResult:
    recovery.incident_id = incident_id
    outcome: repair_node.RepairNodeResult = recovery.run_state("RepairNode", repair_node)
    return outcome


def stored_incident(recovery: RecoveryScenario, incident_id: str) -> Incident:
    recovery.incident_id = incident_id
    return recovery.incident


def registered_lives(recovery: RecoveryScenario, which: RegisterName) -> list[str]:
    return [entry.life_key.split("/")[1] for entry in recovery.guardrail_register(which).entries]


# ---------------------------------------------------------------- limits, races, crashes


def test_second_repair_of_a_pool_waits_for_the_first() -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(pool_repairs=1))
    first, second = recover_until_repair(recovery, 1), recover_until_repair(recovery, 2)

    assert run_repair(recovery, first).outcome == "REQUESTED"
    barred = run_repair(recovery, second)

    assert (barred.outcome, barred.reason) == (
        "BLOCKED",
        "1 of 6 nodes of p5-workers is in repair; the limit is 1.",
    )
    blocked = stored_incident(recovery, second)
    assert blocked.state is IncidentState.BLOCKED
    assert blocked.block
    assert (blocked.block.guardrail, blocked.block.action) == (GuardrailName.POOL_REPAIRS, "reboot")
    recovery.open_wait(K.RELEASED)
    assert recovery.evaluate_waits_once() == []
    recovery.world.provider.finish_all()
    recovery.incident_id = first
    recovery.run_state("ReturnNode", return_node)
    recovery.incident_id = second
    assert recovery.evaluate_waits_once() == ["RELEASED"]
    assert run_repair(recovery, second).outcome == "REQUESTED"
    assert (stored_incident(recovery, second).state, stored_incident(recovery, second).block) == (
        IncidentState.RECOVERING,
        None,
    )
    assert registered_lives(recovery, RegisterName.REPAIRS) == [instance_id(2)]


def test_repeatedly_blocked_repair_is_reported_once() -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(pool_repairs=1))
    first, second = recover_until_repair(recovery, 1), recover_until_repair(recovery, 2)
    run_repair(recovery, first)

    outcomes = [run_repair(recovery, second).outcome for _ in range(3)]

    assert outcomes == ["BLOCKED"] * 3
    assert recovery.timeline_kinds().count("blocked") == 1
    assert recovery.world.telemetry.totals["ActionsBlocked"] == 1
    assert len(recovery.world.provider.asked) == 1


class ConcurrentWriter:
    """A ledger with a concurrent write right before the first write of a named row."""

    def __init__(self, ledger: Ledger, pk: str, does: Callable[[], Any]) -> None:
        self._ledger, self._pk, self._does = ledger, pk, does

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        does = self._does
        if any(isinstance(write, Put) and write.row.key.pk == self._pk for write in writes):
            self._does = lambda: None
            does()
        self._ledger.commit(*writes, client_token=client_token)


def test_only_one_of_two_concurrent_repairs_is_made() -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(pool_repairs=1))
    first, second = recover_until_repair(recovery, 1), recover_until_repair(recovery, 2)
    in_memory_ledger = recovery.ledger

    def other() -> None:
        recovery.ledger = in_memory_ledger
        assert run_repair(recovery, second).outcome == "REQUESTED"
        recovery.incident_id = first

    recovery.ledger = ConcurrentWriter(in_memory_ledger, "REGISTER#repairs", other)  # type: ignore[assignment]
    with pytest.raises(Conflict):
        run_repair(recovery, first)

    assert run_repair(recovery, first).outcome == "BLOCKED"
    assert recovery.world.provider.asked == [("reboot", instance_id(2))]


def test_only_one_of_two_concurrent_cordons_is_made() -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(pool_cordons=1))
    first, second = recovery.report_fault(1), recovery.report_fault(2)
    for incident_id in (first, second):
        recovery.incident_id = incident_id
        recovery.run_state("Plan", plan_recovery)
    in_memory_ledger = recovery.ledger

    def other() -> None:
        recovery.ledger, recovery.incident_id = in_memory_ledger, second
        assert recovery.run_state("Cordon", cordon_node).outcome == "CORDONED"
        recovery.incident_id = first

    recovery.ledger = ConcurrentWriter(in_memory_ledger, "REGISTER#cordons", other)  # type: ignore[assignment]
    recovery.incident_id = first
    assert recovery.run_state("Cordon", cordon_node).outcome == "BLOCKED"
    assert [call[1] for call in recovery.world.cluster.calls if call[0] == "cordon"] == [f"hyperpod-{instance_id(2)}"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_crash_around_repair_call_leaves_one_entry_and_one_call(at: int, when: str) -> None:
    recovery = recovery_of_fleet()
    faulty = recover_until_repair(recovery, 1)
    recovery.plan.effects.clear()
    recovery.plan.at, recovery.plan.when = at, when

    run_repair(recovery, faulty)
    recovery.world.clock.advance(40)
    run_repair(recovery, faulty)

    assert recovery.crashes == 1
    assert recovery.world.provider.accepted_calls("reboot").total() == 1
    assert registered_lives(recovery, RegisterName.REPAIRS) == [instance_id(1)]


def test_settled_incident_leaves_the_repair_register() -> None:
    recovery = recovery_of_fleet()
    faulty = recover_until_repair(recovery, 1)
    run_repair(recovery, faulty)

    ends = {"outcome": "WAITING_FOR_PERSON", "reason": "No repair step is left."}
    recovery.run_state("Settle", settle_incident, plan={"outcome": "ACT"}, node=ends, jobs={"outcome": "NO_JOBS"})

    assert registered_lives(recovery, RegisterName.REPAIRS) == []
    assert registered_lives(recovery, RegisterName.CORDONS) == [instance_id(1)], (
        "keep the node in the register: it still has Evenkeel's cordon"
    )


def test_node_counts_against_guardrail_limits_during_its_whole_repair() -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(pool_repairs=1))
    first, second = recover_until_repair(recovery, 1), recover_until_repair(recovery, 2)
    run_repair(recovery, first)
    recovery.world.clock.advance(QUICK.repair.reboot_deadline_seconds + QUICK.repair.validation_deadline_seconds)

    assert run_repair(recovery, second).outcome == "BLOCKED"


def test_guardrail_register_drops_ended_entries_and_keeps_concurrent_changes() -> None:
    recovery = recovery_of_fleet()
    ledger: InMemoryLedger = recovery.world.ledger
    for number in (1, 2):
        register, version = guardrail_registers.load_register(
            RegisterName.CORDONS, a_context(ledger=ledger, now=recovery.now)
        )
        entry = RegisterEntry(life_key=f"c/i-{number}/0", incident_id=f"inc-{number}", pool=P5, since=recovery.now)
        ledger.commit(
            guardrail_registers.addition_put(RegisterName.CORDONS, register, version, entry, is_request=False)
        )

    def over(entry: RegisterEntry) -> bool:
        return entry.incident_id == "inc-1"

    assert (
        guardrail_registers.remove_outdated_entries(
            RegisterName.CORDONS, over, a_context(ledger=ledger, now=recovery.now)
        )
        == 1
    )
    assert (
        guardrail_registers.remove_outdated_entries(
            RegisterName.CORDONS, over, a_context(ledger=ledger, now=recovery.now)
        )
        == 0
    )
    assert registered_lives(recovery, RegisterName.CORDONS) == ["i-2"]


def add_register_entry(recovery: RecoveryScenario, life: str, incident_id: str) -> None:
    register, version = guardrail_registers.load_register(RegisterName.CORDONS, recovery.context())
    entry = RegisterEntry(life_key=life, incident_id=incident_id, pool=P5, since=recovery.now)
    recovery.ledger.commit(
        guardrail_registers.addition_put(RegisterName.CORDONS, register, version, entry, is_request=False)
    )


def test_guardrail_entry_added_during_the_check_is_kept() -> None:
    recovery = recovery_of_fleet()
    add_register_entry(recovery, "c/i-1/0", "inc-1")

    def over(entry: RegisterEntry) -> bool:
        add_register_entry(recovery, "c/i-1/0", "inc-2")
        return entry.incident_id == "inc-1"

    assert guardrail_registers.remove_outdated_entries(RegisterName.CORDONS, over, recovery.context()) == 0
    assert registered_lives(recovery, RegisterName.CORDONS) == ["i-1"]


def test_guardrail_entry_of_an_earlier_incident_is_not_reused() -> None:
    recovery = recovery_of_fleet()
    faulty = recovery.report_fault(1)
    recovery.run_state("Plan", plan_recovery)
    add_register_entry(recovery, recovery.incident.life.key, "inc-before")
    recovery.world.clock.advance(300)

    recovery.run_state("Cordon", cordon_node)

    (entry,) = recovery.guardrail_register(RegisterName.CORDONS).entries
    assert (entry.incident_id, entry.since) == (faulty, recovery.now), (
        "the sweep removed the entry of the earlier incident"
    )


# ---------------------------------------------------------------- cordons


def blocked_cordon(**settings: Any) -> tuple[RecoveryScenario, str]:
    """A fleet with a job on nodes 1 and 2, where the cordon of node 1 is blocked by the cordon of node 5."""
    recovery = recovery_of_fleet(with_job=True, policy=guardrail_policy(pool_cordons=1), **settings)
    recovery.report_fault(5)
    recovery.run_state("Plan", plan_recovery)
    recovery.run_state("Cordon", cordon_node)
    faulty = recovery.report_fault(1)
    recovery.run_state("Plan", plan_recovery)
    return recovery, faulty


def test_blocked_cordon_keeps_the_jobs_running() -> None:
    recovery, faulty = blocked_cordon()

    cordoned = recovery.run_state("Cordon", cordon_node)
    drained = recovery.run_state("Drain", drain_node)
    repaired = run_repair(recovery, faulty)

    assert (cordoned.outcome, drained.outcome, repaired.outcome) == ("BLOCKED", "JOBS_AFFECTED", "BLOCKED")
    assert drained.reason.startswith("The jobs keep running. The node is not cordoned yet")
    assert recovery.job.stop_request is None
    assert recovery.world.provider.asked == []


def test_removed_node_does_not_wait_for_a_cordon() -> None:
    recovery, faulty = blocked_cordon()
    recovery.run_state("Cordon", cordon_node)
    recovery.world.cluster.remove_node(f"hyperpod-{instance_id(1)}", CLUSTER)

    assert recovery.run_state("Cordon", cordon_node).outcome == "GONE"
    assert stored_incident(recovery, faulty).block is None
    assert registered_lives(recovery, RegisterName.CORDONS) == [instance_id(5)]


def test_node_that_joins_again_after_a_refusal_is_not_cordoned(monkeypatch: pytest.MonkeyPatch) -> None:
    recovery, _ = blocked_cordon()
    read_node, is_first_read = recovery.world.cluster.node, iter([True])
    # Gone in the first read only.
    monkeypatch.setattr(
        recovery.world.cluster, "node", lambda *names: None if next(is_first_read, False) else read_node(*names)
    )

    outcome = recovery.run_state("Cordon", cordon_node).outcome

    node = read_node(CLUSTER, f"hyperpod-{instance_id(1)}")
    assert node is not None
    assert (outcome, node.is_cordoned) == ("GONE", False)
    assert registered_lives(recovery, RegisterName.CORDONS) == [instance_id(5)]


def test_cordon_wait_ends_when_the_node_is_removed() -> None:
    recovery, faulty = blocked_cordon()
    recovery.run_state("Cordon", cordon_node)
    run_repair(recovery, faulty)
    recovery.open_wait(K.RELEASED)
    assert recovery.evaluate_waits_once() == []

    recovery.world.cluster.remove_node(f"hyperpod-{instance_id(1)}", CLUSTER)

    assert recovery.evaluate_waits_once() == ["RELEASED"]
    assert run_repair(recovery, faulty).outcome != "BLOCKED"
    assert registered_lives(recovery, RegisterName.CORDONS) == [instance_id(5)]


def test_jobs_of_a_dead_node_stop_despite_a_blocked_cordon() -> None:
    recovery, _ = blocked_cordon()
    recovery.run_state("Cordon", cordon_node)
    recovery.world.cluster.kill_node(f"hyperpod-{instance_id(1)}", CLUSTER)
    recovery.world.clock.advance(QUICK.jobs.lost_node_seconds + 1)

    recovery.run_state("Drain", drain_node)

    assert recovery.job.stop_request


def test_delayed_cordon_precedes_the_repair() -> None:
    recovery, faulty = blocked_cordon()
    recovery.run_state("Cordon", cordon_node)
    run_repair(recovery, faulty)
    recovery.open_wait(K.RELEASED)
    assert recovery.evaluate_waits_once() == []
    set_manual_cordon.uncordon_as_person(by_operator(5), recovery.context())

    assert recovery.evaluate_waits_once() == ["RELEASED"]
    first = run_repair(recovery, faulty)

    assert first.outcome == "REQUESTED"
    assert recovery.incident.stages.cordoned_at
    assert recovery.job.stop_request
    assert registered_lives(recovery, RegisterName.CORDONS) == [instance_id(1)]


# ---------------------------------------------------------------- never blocked


def by_operator(number: int) -> set_manual_cordon.SetManualCordonRequest:
    return set_manual_cordon.SetManualCordonRequest(
        instance_id=instance_id(number),
        by="role/Op (ana)",
        reason="it is well",
        request_id=f"op-{number}",
        fingerprint=str(number),
    )


TIGHT = guardrail_policy(fleet_repairs=1, pool_repairs=1, fleet_cordons=1, pool_cordons=1, repairs_per_hour=1)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("is_held", [False, True])
def test_uncordon_is_never_blocked(mode: Mode, *, is_held: bool) -> None:
    recovery = recovery_of_fleet(policy=TIGHT)
    faulty = recover_until_repair(recovery, 1)
    run_repair(recovery, faulty)
    recovery.world.provider.finish_all()
    recovery.mode = mode
    if is_held:
        recovery.hold_automation()

    returned = recovery.run_state("ReturnNode", return_node)

    assert returned.outcome == "RETURNED"
    assert not recovery.world.cluster.by_name[CLUSTER, f"hyperpod-{instance_id(1)}"].is_cordoned
    assert registered_lives(recovery, RegisterName.REPAIRS) == registered_lives(recovery, RegisterName.CORDONS) == []


@pytest.mark.parametrize("is_held", [False, True])
def test_operator_uncordons_under_any_hold_once(*, is_held: bool) -> None:
    recovery = recovery_of_fleet(policy=TIGHT)
    faulty = recover_until_repair(recovery, 1)
    if is_held:
        recovery.hold_automation()

    answers = [set_manual_cordon.uncordon_as_person(by_operator(1), recovery.context()).outcome for _ in range(2)]

    assert answers == ["RELEASED", "ALREADY_FREE"]
    assert registered_lives(recovery, RegisterName.CORDONS) == []
    assert stored_incident(recovery, faulty).incident_id == faulty
    assert recovery.timeline_kinds().count("uncordoned") == 1
    assert run_repair(recovery, faulty).outcome == "STAND_DOWN", "a person opted this node out of automation"


def test_cordon_from_outside_evenkeel_is_kept() -> None:
    recovery = recovery_of_fleet()
    node = recovery.world.cluster.by_name[CLUSTER, f"hyperpod-{instance_id(1)}"]
    recovery.world.cluster.set_node(node.name, is_cordoned=True)

    with pytest.raises(set_manual_cordon.CordonedOutsideEvenkeel):
        set_manual_cordon.uncordon_as_person(by_operator(1), recovery.context())

    assert recovery.world.cluster.by_name[CLUSTER, node.name].is_cordoned


# ---------------------------------------------------------------- shared causes, old evidence


def test_faults_in_one_zone_stop_repairs_and_alert_once() -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(shared_cause_count=3))
    faulty = [recover_until_repair(recovery, number) for number in (1, 2, 3, 4)]

    outcomes = [run_repair(recovery, incident_id).outcome for incident_id in faulty]
    again = [run_repair(recovery, incident_id).outcome for incident_id in faulty]

    assert outcomes == again == ["BLOCKED"] * 4
    assert recovery.world.provider.asked == []
    [page] = recovery.world.on_call.alerts
    assert page.key == "shared-cause-zone/us-west-2a"
    block = stored_incident(recovery, faulty[0]).block
    assert block
    assert block.guardrail == GuardrailName.SHARED_CAUSE


def test_incident_unblocked_during_check_counts_for_shared_cause() -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(shared_cause_count=3))
    first, _, third = (recover_until_repair(recovery, number) for number in (1, 2, 3))
    assert run_repair(recovery, first).outcome == "BLOCKED"
    ledger = recovery.world.ledger
    by_state = ledger.by_state

    def end_block_after_read(table: Table, state: str, **how: Any) -> Any:
        page = by_state(table, state, **how)
        if state == f"INC#{IncidentState.RECOVERING}":
            row = ledger.get(incident_rows.incident_key(first))
            assert row
            unblocked = rows.decode(row, Incident).without_block().replace(state=IncidentState.RECOVERING)
            ledger.commit(Put(incident_rows.incident_row(unblocked, row.version)))
        return page

    ledger.by_state = end_block_after_read  # type: ignore[method-assign]

    assert run_repair(recovery, third).outcome == "BLOCKED"


def test_shared_cause_alerts_once_while_active_and_again_later() -> None:
    recovery = recovery_of_fleet(8, policy=guardrail_policy(shared_cause_count=3, shared_cause_window_seconds=300))
    pages = recovery.world.on_call.alerts
    first = recover_until_repair(recovery, 1)
    recovery.world.clock.advance(200)
    second, _ = recover_until_repair(recovery, 2), recover_until_repair(recovery, 3)
    assert (run_repair(recovery, first).outcome, len(pages)) == ("BLOCKED", 1)

    recovery.world.clock.advance(120)
    fourth = recover_until_repair(recovery, 4)
    assert (run_repair(recovery, second).outcome, run_repair(recovery, fourth).outcome) == ("BLOCKED", "BLOCKED")
    assert len(pages) == 1, "page once: two of these three nodes were in the page"

    for number in (1, 2, 3, 4):
        disconnect_node(recovery, number)
    recovery.world.clock.advance(100_000)
    assert run_repair(recovery, recover_until_repair(recovery, 8)).outcome == "BLOCKED"
    assert len(pages) == 1, "page once: the shared cause of that page has not ended"

    end_cause(recovery)
    recovery.world.clock.advance(10)
    later = [recover_until_repair(recovery, number) for number in (5, 6, 7)]
    assert [run_repair(recovery, incident_id).outcome for incident_id in later] == ["BLOCKED"] * 3
    assert [page.key for page in pages] == ["shared-cause-zone/us-west-2a"] * 2


def test_retry_after_a_failed_alert_sends_it_once() -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(shared_cause_count=3))
    faulty = [recover_until_repair(recovery, number) for number in (1, 2, 3)]
    recovery.plan.effects.clear()
    recovery.plan.at, recovery.plan.when = 3, "before"

    run_repair(recovery, faulty[0])
    assert recovery.plan.effects[2] == "alert"
    assert len(recovery.world.on_call.alerts) == 1
    recovery.world.clock.advance(121)
    run_repair(recovery, faulty[1])
    run_repair(recovery, faulty[2])

    assert len(recovery.world.on_call.alerts) == 1


def end_cause(recovery: RecoveryScenario, cause: str = "zone/us-west-2a", **changes: Any) -> dict[str, Any]:
    request = hold_automation.ReleaseRequest(
        by="role/Op (bo)", reason="the zone is back", cause=cause, request_id="e-1", fingerprint="f"
    ).replace(**changes)
    return hold_automation.release_hold(request, recovery.world.context())


def disconnect_node(recovery: RecoveryScenario, number: int) -> None:
    [node] = [node for node in recovery.world.cluster.by_name.values() if node.instance_id == instance_id(number)]
    recovery.world.cluster.set_node(node.name, is_ready=False, not_ready_since=recovery.now)
    record_node(recovery, number)


def recovery_with_shared_cause(**limits: Any) -> tuple[RecoveryScenario, list[str]]:
    limits = {"shared_cause_count": 3, "shared_cause_window_seconds": 300, **limits}
    recovery = recovery_of_fleet(8, policy=guardrail_policy(**limits))
    faulty = [recover_until_repair(recovery, number) for number in (1, 2, 3, 4)]
    for number in (1, 2, 3, 4):
        disconnect_node(recovery, number)
    for incident_id in faulty:
        assert run_repair(recovery, incident_id).outcome == "BLOCKED"
        recovery.open_wait(K.RELEASED)
    return recovery, faulty


def instances_repaired_per_round(recovery: RecoveryScenario, faulty: list[str]) -> list[list[str]]:
    let_go = []
    for incident_id in faulty:
        recovery.incident_id = incident_id
        let_go.append(recovery.evaluate_waits_once())
    return let_go


@pytest.mark.parametrize("seconds", [301, 3_600, 86_400])
def test_shared_cause_outlasts_its_window_while_machines_are_unhealthy(seconds: float) -> None:
    recovery, faulty = recovery_with_shared_cause()
    recovery.world.clock.advance(seconds)

    assert instances_repaired_per_round(recovery, faulty) == [[], [], [], []]
    assert [run_repair(recovery, incident_id).outcome for incident_id in faulty] == ["BLOCKED"] * 4
    assert recovery.world.provider.asked == []
    assert len(recovery.world.on_call.alerts) == 1


def test_shared_cause_during_a_hold_alerts_after_the_hold() -> None:
    recovery = recovery_of_fleet(8, policy=guardrail_policy(shared_cause_count=3, shared_cause_window_seconds=300))
    recovery.hold_automation(seconds=60)
    faulty = [recover_until_repair(recovery, number) for number in (1, 2, 3)]
    for number, incident_id in enumerate(faulty, start=1):
        disconnect_node(recovery, number)
        assert run_repair(recovery, incident_id).outcome == "HELD"
        recovery.open_wait(K.RELEASED)
    recovery.world.clock.advance(61)

    assert instances_repaired_per_round(recovery, faulty) == [["RELEASED"]] * 3
    assert [run_repair(recovery, incident_id).outcome for incident_id in faulty] == ["BLOCKED"] * 3
    assert len(recovery.world.on_call.alerts) == 1


def test_shared_cause_ends_when_too_few_machines_are_unhealthy() -> None:
    recovery, faulty = recovery_with_shared_cause()
    recovery.world.clock.advance(301)
    for number in (1, 2):
        record_node(recovery, number, is_gone=True, is_ready=False)

    assert run_repair(recovery, faulty[2]).outcome == "REQUESTED"


def test_ended_shared_cause_releases_few_repairs_at_once() -> None:
    recovery, faulty = recovery_with_shared_cause(pool_repairs=2)
    recovery.world.clock.advance(301)
    answer = end_cause(recovery)

    assert end_cause(recovery) == answer, "the same request again"
    assert instances_repaired_per_round(recovery, faulty) == [["RELEASED"], ["RELEASED"], [], []]
    row = recovery.world.ledger.get(fleet_rows.ended_causes_key())
    assert row
    end = row.doc["causes"]["zone/us-west-2a"]
    assert (end["by"], end["reason"]) == ("role/Op (bo)", "the zone is back")


@pytest.mark.parametrize("changes", [{"cause": "zone/nowhere"}, {"reason": ""}, {"pool": P5}])
def test_ending_an_unknown_cause_or_without_reason_is_refused(changes: dict[str, Any]) -> None:
    recovery, _ = recovery_with_shared_cause()

    with pytest.raises(Invalid):
        end_cause(recovery, **changes)


@pytest.mark.parametrize(("is_drill", "outcome"), [(True, "BLOCKED"), (False, "REQUESTED")])
def test_shared_cause_of_drills_blocks_only_drills(outcome: str, *, is_drill: bool) -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(shared_cause_count=3), drills_may_act=True)
    for number in (2, 3):
        recover_until_repair(recovery, number, is_drill=True)

    assert run_repair(recovery, recover_until_repair(recovery, 1, is_drill=is_drill)).outcome == outcome


@pytest.mark.parametrize(("is_drill", "outcome"), [(True, "REQUESTED"), (False, "BLOCKED")])
def test_group_fact_of_a_drill_blocks_no_real_repair(outcome: str, *, is_drill: bool) -> None:
    recovery = recovery_of_fleet()
    faulty = recover_until_repair(recovery, 1, fault_key="hp:NvidiaErrorTerminate")
    trouble = GroupFact(
        kind=GroupFactKind.NO_CAPACITY,
        source="hyperpod.cluster-event",
        instance_group=P5,
        observed_at=recovery.now,
        envelope_id="one",
        is_drill=is_drill,
    )
    world = recovery.world
    note_group_fact.run(trouble, world.context())

    recovery.open_wait(K.RELEASED)
    assert recovery.evaluate_waits_once() == (["RELEASED"] if is_drill else [])
    assert run_repair(recovery, faulty).outcome == outcome


def test_planned_maintenance_is_no_shared_cause() -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(shared_cause_count=3))
    for number in (2, 3):
        recover_until_repair(recovery, number)
        record_node(recovery, number, provider_status="SystemUpdating")

    assert run_repair(recovery, recover_until_repair(recovery, 1)).outcome == "REQUESTED"


def test_node_that_is_healthy_after_long_hold_is_only_validated() -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(stale_after_seconds=600))
    faulty = recover_until_repair(recovery, 1)
    recovery.hold_automation(seconds=900)
    assert run_repair(recovery, faulty).outcome == "HELD"
    recovery.open_wait(K.RELEASED)
    recovery.set_fault_label(instance_id(1))
    recovery.world.clock.advance(901)

    assert recovery.evaluate_waits_once() == ["RELEASED"]
    looked = run_repair(recovery, faulty)

    assert looked.outcome == "HEALTHY"
    assert "Evenkeel validates it and does not repair it" in looked.reason
    assert recovery.world.provider.asked == []


def test_node_that_is_faulty_after_long_hold_is_repaired() -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(stale_after_seconds=600))
    faulty = recover_until_repair(recovery, 1)
    recovery.hold_automation(seconds=900)
    run_repair(recovery, faulty)
    recovery.world.clock.advance(901)

    assert run_repair(recovery, faulty).outcome == "REQUESTED"


# ---------------------------------------------------------------- holds


def set_hold(recovery: RecoveryScenario, **scope: str) -> None:
    request = hold_automation.HoldRequest(
        by="ana",
        reason="looking",
        until=recovery.now + timedelta(seconds=600),
        request_id=f"r{scope}",
        fingerprint="f",
        allows_unknown=True,
        **scope,
    )
    hold_automation.set_hold(request, recovery.context())


@pytest.mark.parametrize(
    ("scope", "outcome"),
    [
        ({}, "HELD"),
        ({"pool": P5}, "HELD"),
        ({"instance_id": instance_id(1)}, "HELD"),
        ({"pool": "other"}, "REQUESTED"),
        ({"instance_id": instance_id(2)}, "REQUESTED"),
    ],
)
def test_hold_blocks_repairs_within_its_scope_only(scope: dict[str, str], outcome: str) -> None:
    recovery = recovery_of_fleet()
    faulty = recover_until_repair(recovery, 1)
    set_hold(recovery, **scope)

    assert run_repair(recovery, faulty).outcome == outcome


def test_released_hold_leaves_holds_of_other_scopes() -> None:
    recovery = recovery_of_fleet()
    set_hold(recovery)
    set_hold(recovery, pool=P5)
    release = hold_automation.ReleaseRequest(by="bo", reason="", request_id="x", fingerprint="f")

    answer = hold_automation.release_hold(release, recovery.context())

    shown = hold_automation.show_automation(recovery.context(drills_may_act=False))
    assert answer["wasHeld"] is True
    assert [hold["pool"] for hold in shown["holds"]] == [P5]


# ---------------------------------------------------------------- modes and approval


def test_recovery_acts_only_after_approval() -> None:
    recovery = recovery_of_fleet(mode=Mode.RECOMMEND)
    touched: list[int] = []

    def meanwhile() -> None:
        touched.append(len(recovery.world.cluster.calls) + len(recovery.world.provider.asked))
        if recovery.incident.approval is None:
            answer_plan(recovery)

    recovery.meanwhile = meanwhile
    recovery.report_fault(1)

    assert recovery.recover() == IncidentState.RECOVERED
    assert touched[0] == 0
    assert recovery.world.provider.accepted == [("reboot", instance_id(1))]
    assert "approved" in recovery.timeline_kinds()


def test_declined_plan_is_settled_as_observed() -> None:
    recovery = recovery_of_fleet(mode=Mode.RECOMMEND)

    def meanwhile() -> None:
        if recovery.incident.approval is None:
            answer_plan(recovery, approves=False)

    recovery.meanwhile = meanwhile
    recovery.report_fault(1)

    assert recovery.recover() == IncidentState.OBSERVED
    assert recovery.world.cluster.calls == []


def test_unanswered_plan_counts_as_declined() -> None:
    recovery = recovery_of_fleet(mode=Mode.RECOMMEND)
    recovery.report_fault(1)

    assert recovery.recover() == IncidentState.OBSERVED
    assert "AwaitApproval: DEADLINE_PASSED" in recovery.visited


def test_second_approval_is_refused_with_author_of_the_first() -> None:
    recovery = recovery_of_fleet(mode=Mode.RECOMMEND)
    recovery.report_fault(1)
    recovery.run_state("Plan", plan_recovery)
    first = answer_plan(recovery)

    with pytest.raises(approve_recovery.AlreadyAnswered, match=r"Approved by role/Op \(ana\)"):
        answer_plan(recovery, by="role/Op (bo)", approves=False)

    assert answer_plan(recovery).approval == first.approval, "answer a repeated request with success"
    assert recovery.timeline_kinds().count("approved") == 1


def test_approval_of_another_plan_is_refused() -> None:
    recovery = recovery_of_fleet(mode=Mode.RECOMMEND)
    recovery.report_fault(1)
    recovery.run_state("Plan", plan_recovery)

    with pytest.raises(approve_recovery.PlanSuperseded, match="is out of date"):
        answer_plan(recovery, decision_id="dec-0")


def test_approval_is_refused_if_node_rebooted_since_the_plan() -> None:
    recovery = recovery_of_fleet(mode=Mode.RECOMMEND)
    recovery.report_fault(1)
    recovery.run_state("Plan", plan_recovery)
    record_node(recovery, 1, boot_id="another")

    with pytest.raises(approve_recovery.PlanSuperseded, match="rebooted"):
        answer_plan(recovery)


def test_approval_is_refused_if_no_plan_awaits_one() -> None:
    recovery = recovery_of_fleet()
    recovery.report_fault(1)
    recovery.run_state("Plan", plan_recovery)

    with pytest.raises(approve_recovery.PlanSuperseded, match="has no plan that needs approval"):
        answer_plan(recovery)


def test_worse_fault_needs_a_new_approval() -> None:
    recovery = recovery_of_fleet(mode=Mode.RECOMMEND)
    recovery.report_fault(1)
    first = recovery.run_state("Plan", plan_recovery)
    answer_plan(recovery)
    recovery.report_fault(1, fault_key="hp:NvidiaErrorTerminate", envelope_id="e-2", observed_at="2026-11-03T10:16:00Z")
    recovery.open_wait(K.APPROVED)

    assert recovery.evaluate_waits_once() == ["SUPERSEDED"]
    second = recovery.run_state("Plan", plan_recovery)

    assert second.outcome == "ASK"
    assert second.decision_id != first.decision_id
    with pytest.raises(approve_recovery.PlanSuperseded):
        answer_plan(recovery, decision_id=first.decision_id)
    assert recovery.run_state("Cordon", cordon_node).outcome == "NOT_ALLOWED", (
        "the old approval does not cover the new plan"
    )


def test_approved_action_is_checked_again_before_it_runs() -> None:
    recovery = recovery_of_fleet(mode=Mode.RECOMMEND)
    faulty = recovery.report_fault(1)
    recovery.run_state("Plan", plan_recovery)
    answer_plan(recovery)
    recovery.run_state("Cordon", cordon_node)
    recovery.hold_automation()

    assert run_repair(recovery, faulty).outcome == "HELD"


@pytest.mark.parametrize("service", [cordon_node, drain_node, repair_node])
def test_approved_plan_stops_in_mode_observe(service: Any) -> None:
    recovery = recovery_of_fleet(mode=Mode.RECOMMEND)
    recovery.report_fault(1)
    recovery.run_state("Plan", plan_recovery)
    answer_plan(recovery)
    recovery.mode = Mode.OBSERVE

    recovery.run_state("Any", service)

    assert recovery.world.cluster.calls == []
    assert recovery.world.provider.asked == []


def test_mode_rule_lowers_the_mode_of_its_pool_only() -> None:
    policy = guardrail_policy().replace(modes=(ModeRule(pool=P5, mode=Mode.OBSERVE),))
    recovery = recovery_of_fleet(policy=policy)
    recovery.report_fault(1)

    assert recovery.recover() == IncidentState.OBSERVED
    assert recovery.incident.mode == "observe"
    assert recovery.world.cluster.calls == []


def approved_recovery_with_worse_fault(rungs: str, worse: str) -> tuple[RecoveryScenario, str]:
    """A recovery approved for one fault that then ingests a worse fault."""
    recovery = recovery_of_fleet(mode=Mode.RECOMMEND)
    faulty = recovery.report_fault(1, fault_key=rungs, source="hyperpod.node-labels")
    recovery.run_state("Plan", plan_recovery)
    answer_plan(recovery)
    recovery.run_state("Cordon", cordon_node)
    recovery.report_fault(1, fault_key=worse, source="hyperpod.node-labels", envelope_id="e-2")
    return recovery, faulty


def test_approval_covers_only_the_named_plan() -> None:
    recovery, faulty = approved_recovery_with_worse_fault("health:instance_reboot", "xid:79")

    stands = run_repair(recovery, faulty)
    ended = {"outcome": "STOOD_DOWN", "reason": stands.reason}
    recovery.run_state("Settle", settle_incident, plan={"outcome": "ASK"}, node=ended, jobs={"outcome": "NO_JOBS"})

    assert stands.outcome == "STAND_DOWN"
    assert stands.reason == "A person approved reboot, but xid:79 now needs replace."
    assert recovery.world.provider.asked == []
    assert (recovery.incident.state, recovery.incident.run) == (IncidentState.OPEN, 2), (
        "start run 2, which asks for approval again"
    )
    recovery.run = 2
    recovery.run_state("Plan", plan_recovery)
    recovery.open_wait(K.APPROVED)
    assert recovery.evaluate_waits_once() == []


def test_approval_covers_a_worse_fault_with_the_same_rungs() -> None:
    recovery, faulty = approved_recovery_with_worse_fault("hp:NvidiaErrorReboot", "xid:79")

    assert run_repair(recovery, faulty).outcome == "REQUESTED"


def test_approval_at_exactly_the_deadline_counts() -> None:
    recovery = recovery_of_fleet(mode=Mode.RECOMMEND)
    recovery.report_fault(1)
    recovery.run_state("Plan", plan_recovery)
    recovery.open_wait(K.APPROVED)
    recovery.world.clock.advance(QUICK.repair.approval_deadline_seconds)
    assert recovery.evaluate_waits_once() == ["DEADLINE_PASSED"]
    answer_plan(recovery)

    recovery.run_state(
        "Settle", settle_incident, plan={"outcome": "DECLINED", "reason": "No person approved the plan."}
    )

    assert (recovery.incident.state, recovery.incident.run) == (IncidentState.OPEN, 2)
    assert recovery.incident.outcome.startswith("The approval came just as its deadline passed.")
    recovery.run = 2
    recovery.run_state("Plan", plan_recovery)
    recovery.open_wait(K.APPROVED)
    assert recovery.evaluate_waits_once() == ["APPROVED"], "the approval counts, so no person must approve again"


def test_failed_run_leaves_the_guardrail_queue() -> None:
    recovery = recovery_of_fleet(policy=guardrail_policy(pool_repairs=1))
    first, second, third = (recover_until_repair(recovery, number) for number in (1, 2, 3))
    run_repair(recovery, first)
    for incident_id in (second, third):
        run_repair(recovery, incident_id)
    recovery.incident_id = second
    recovery.run_state("Settle", settle_incident, failure={"Error": "KeyError", "Cause": "a bug"})
    recovery.incident_id = first
    recovery.run_state("ReturnNode", return_node)

    recovery.incident_id = third
    recovery.open_wait(K.RELEASED)

    assert recovery.evaluate_waits_once() == ["RELEASED"]


def test_refused_repair_request_does_not_count_for_repair_rate() -> None:
    recovery = recovery_of_fleet()
    recovery.report_fault(fault_key="hp:NvidiaErrorTerminate")
    recovery.world.provider.scripted.extend([RepairAnswer.NOT_NOW] * 3)

    assert recovery.recover() == IncidentState.RECOVERED

    repairs, _ = guardrail_registers.load_register(RegisterName.REPAIRS, recovery.context())
    assert len(recovery.world.provider.asked) == 4
    assert len(repairs.requested_at) == 1
