"""The events of a node after a decision of the mode `observe` are recorded and reported."""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.health.incidents import FactKind, IncidentState
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.manual_cordons import ManualCordon
from evenkeel.domain.shadow.shadow_cases import Actor, Aftermath, NodeEventKind
from evenkeel.domain.values import rfc3339
from evenkeel.services.queries.incidents import read_shadow_report
from evenkeel.services.recovery import manual_cordons
from evenkeel.services.storage import pagination
from evenkeel.services.sweep import inventory_steps, unhealthy_node_steps
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import fleet_rows, incident_rows, rows
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.crashes import CrashTiming
from tests.unit.services_recovery.recovery_scenario import RecoveryScenario, a_fact

HOUR = 3600


def recovery_in_observe_mode(mode: Mode = Mode.OBSERVE, **facts: Any) -> RecoveryScenario:
    recovery = RecoveryScenario(mode=mode, with_job=False)
    sweep(recovery)
    recovery.report_fault(**facts)
    assert recovery.recover() in (IncidentState.OBSERVED, IncidentState.RECOVERED)
    return recovery


def sweep(recovery: RecoveryScenario) -> None:
    sweep_run = SweepRun(recovery.world.context(policy=recovery.policy, mode=recovery.mode), {})
    inventory_steps.refresh_fleet(sweep_run)
    unhealthy_node_steps.resume_work(sweep_run)
    recovery.scenario.sweep()


def recorded_events(recovery: RecoveryScenario) -> list[tuple[NodeEventKind, Actor]]:
    row = recovery.world.ledger.get(incident_rows.aftermath_key(recovery.incident_id))
    return [(event.kind, event.actor) for event in rows.decode(row, Aftermath).events] if row else []


def a_step(recovery: RecoveryScenario, code: str, **changes: Any) -> Any:
    step = {"kind": FactKind.PROGRESS, "source": "hyperpod.cluster-event", "code": code, "fault_key": ""}
    return a_fact(**{**step, "observed_at": recovery.now, "occurrence": code, **changes})


def name_of(recovery: RecoveryScenario) -> str:
    [name] = [node.name for node in recovery.world.cluster.by_name.values() if node.instance_id == instance_id(1)]
    return name


def read_report(recovery: RecoveryScenario, **parameters: Any) -> Any:
    context = recovery.world.context(policy=recovery.policy, mode=recovery.mode)
    return read_shadow_report.show_shadow_report(
        read_shadow_report.ShadowFilter(**parameters), pagination.PageRequest(), context
    )


def reported_verdicts(recovery: RecoveryScenario) -> tuple[str, str]:
    (case,) = read_report(recovery)["items"]
    return case["cordon"]["verdict"], case["repair"]["verdict"]


# ---------------------------------------------------------------- recording


def test_step_of_hyperpods_repair_is_recorded_once() -> None:
    recovery = recovery_in_observe_mode()
    step = a_step(recovery, "reboot_in_progress")

    outcomes = [recovery.ingest(step) for _ in range(2)]

    assert [outcome.outcome for outcome in outcomes] == ["IGNORED", "IGNORED"]
    assert recorded_events(recovery) == [(NodeEventKind.REBOOTED, Actor.HYPERPOD)]


def test_step_on_new_instance_is_recorded_by_node_slot() -> None:
    recovery = recovery_in_observe_mode()
    logical_id = recovery.incident.slot.removeprefix(f"{CLUSTER}/")

    recovery.ingest(a_step(recovery, "replacement_started", instance_id=instance_id(77), logical_id=logical_id))

    assert recorded_events(recovery) == [(NodeEventKind.REPLACED, Actor.HYPERPOD)]


def test_hyperpod_step_that_changes_no_node_is_not_recorded() -> None:
    recovery = recovery_in_observe_mode()

    recovery.ingest(a_step(recovery, "replacement_failed"))

    assert recorded_events(recovery) == []


def test_recovery_signal_is_recorded_once() -> None:
    recovery = recovery_in_observe_mode()
    healthy = a_fact(kind=FactKind.RECOVERED, fault_key="", code="", observed_at=recovery.now + timedelta(seconds=60))

    for _ in range(2):
        recovery.ingest(healthy)

    assert recorded_events(recovery) == [(NodeEventKind.RECOVERED, Actor.UNKNOWN)]


@pytest.mark.parametrize("kind", ["drill", "late", "act"])
def test_facts_of_drills_and_late_facts_are_not_recorded(kind: str) -> None:
    recovery = recovery_in_observe_mode(Mode.ACT if kind == "act" else Mode.OBSERVE)
    if kind == "late":
        recovery.world.clock.advance(15 * 24 * HOUR)

    recovery.ingest(a_step(recovery, "reboot_in_progress", is_drill=kind == "drill"))

    assert recorded_events(recovery) == []


def test_first_cordon_of_a_person_is_recorded_by_the_sweep() -> None:
    recovery = recovery_in_observe_mode()
    recovery.world.cluster.set_node(name_of(recovery), is_cordoned=True)

    for _ in range(2):
        recovery.world.clock.advance(60)
        sweep(recovery)

    assert recorded_events(recovery) == [(NodeEventKind.CORDONED, Actor.PERSON)]


def test_report_shows_time_and_author_of_cordon_through_evenkeel() -> None:
    recovery = recovery_in_observe_mode()
    cordon = ManualCordon(life_key=recovery.incident.life.key, by="role/Op (bo)", reason="noise", at=recovery.now)
    manual_cordons.record_cordon(recovery.world.ledger, cordon)
    recovery.world.cluster.set_node(name_of(recovery), is_cordoned=True)
    recovery.world.clock.advance(60)

    sweep(recovery)

    (case,) = read_report(recovery)["items"]
    assert case["cordon"]["happenedAt"] == rfc3339(cordon.at)
    assert case["cordon"]["evidence"] == ["role/Op (bo): noise"]


def test_reboot_of_unhealthy_node_in_observe_mode_is_recorded() -> None:
    recovery = recovery_in_observe_mode()
    recovery.world.cluster.set_node(name_of(recovery), boot_id="boot-2")

    for _ in range(2):
        recovery.world.clock.advance(60)
        sweep(recovery)

    assert recorded_events(recovery) == [(NodeEventKind.REBOOTED, Actor.UNKNOWN)]


def test_end_of_unhealthy_state_is_recorded_in_observe_mode() -> None:
    recovery = recovery_in_observe_mode()
    recovery.set_fault_label(instance_id(1))
    recovery.world.cluster.set_node(name_of(recovery), boot_id="boot-2")
    recovery.world.clock.advance(60)

    sweep(recovery)

    assert recorded_events(recovery) == [(NodeEventKind.REBOOTED, Actor.UNKNOWN)]


@pytest.mark.parametrize("when", list(CrashTiming))
def test_crash_before_or_after_a_write_loses_no_event(when: CrashTiming) -> None:
    recovery = recovery_in_observe_mode()
    recovery.plan.effects.clear()
    recovery.plan.at, recovery.plan.when = 1, when

    recovery.ingest(a_step(recovery, "reboot_in_progress"))

    assert recovery.crashes == 1
    assert recorded_events(recovery) == [(NodeEventKind.REBOOTED, Actor.HYPERPOD)]


# ---------------------------------------------------------------- the report


def test_decision_counts_as_earlier_if_hyperpod_repairs_later() -> None:
    recovery = recovery_in_observe_mode()
    recovery.world.clock.advance(600)
    recovery.ingest(a_step(recovery, "reboot_in_progress"))

    document = read_report(recovery)

    (case,) = document["items"]
    assert (case["repair"]["verdict"], case["repair"]["actor"]) == ("EARLIER", "HyperPod")
    assert case["repair"]["seconds"] >= 600
    assert document["summary"]["falseReboots"]["of"] == 1


def test_shadow_verdict_is_unknown_until_its_window_ends() -> None:
    recovery = recovery_in_observe_mode()

    document = read_report(recovery)

    assert reported_verdicts(recovery) == ("UNKNOWN", "UNKNOWN")
    assert document["items"][0]["cordon"]["cause"] == "WINDOW_OPEN"
    assert (document["summary"]["falseCordons"]["of"], document["summary"]["falseCordons"]["unknown"]) == (0, 1)
    assert document["summary"]["falseCordons"]["share"] is None


def heal_node(recovery: RecoveryScenario, hours: int = 26) -> None:
    """Let the node report itself healthy, and work since."""
    recovery.world.clock.advance(300)
    recovery.set_fault_label(instance_id(1))
    recovery.ingest(a_fact(kind=FactKind.RECOVERED, fault_key="", code="", observed_at=recovery.now))
    sweep(recovery)
    recovery.world.clock.advance(hours * HOUR)
    sweep(recovery)


def test_node_that_healed_by_itself_proves_the_cordon_wrong() -> None:
    recovery = recovery_in_observe_mode()
    heal_node(recovery)

    document = read_report(recovery)

    assert reported_verdicts(recovery) == ("WOULD_HAVE_BEEN_WRONG", "WOULD_HAVE_BEEN_WRONG")
    assert document["summary"]["falseCordons"]["count"] == document["summary"]["falseCordons"]["of"] == 1


def test_reboot_with_unknown_actor_leaves_repair_verdict_unknown() -> None:
    recovery = recovery_in_observe_mode()
    row = recovery.world.ledger.get(incident_rows.unhealthy_key(recovery.incident.life))
    assert row
    heal_node(recovery)
    recovery.world.cluster.set_node(name_of(recovery), boot_id="boot-9")
    recovery.world.clock.advance(60)
    sweep(recovery)

    assert reported_verdicts(recovery) == ("UNKNOWN", "UNKNOWN")


def test_stale_node_list_gives_no_verdict() -> None:
    recovery = recovery_in_observe_mode()
    heal_node(recovery, hours=1)
    recovery.world.clock.advance(30 * HOUR)

    (case,) = read_report(recovery)["items"]

    assert (case["cordon"]["verdict"], case["cordon"]["cause"]) == ("UNKNOWN", "NOTHING_KNOWN")


def test_later_fault_of_a_node_joins_its_shadow_case() -> None:
    recovery = recovery_in_observe_mode()
    recovery.world.clock.advance(HOUR)
    recovery.report_fault(observed_at=recovery.now, envelope_id="later")
    recovery.recover()

    document = read_report(recovery)

    assert (document["summary"]["cases"], document["summary"]["incidents"]) == (1, 2)
    assert len(document["items"][0]["incidentIds"]) == 2


def test_shadow_report_contains_no_incident_of_mode_act() -> None:
    recovery = recovery_in_observe_mode(Mode.ACT)

    assert read_report(recovery)["summary"]["cases"] == 0


def test_shadow_report_shows_when_the_node_was_removed() -> None:
    recovery = recovery_in_observe_mode()
    key = fleet_rows.node_key(CLUSTER, instance_id(1))
    row = recovery.world.ledger.get(key)
    assert row
    recovery.world.clock.advance(1800)
    doc = {**row.doc, "isGone": True, "isReady": False, "changedAt": rfc3339(recovery.now)}
    recovery.scenario.store_row(fleet_rows.node_row(CLUSTER, instance_id(1), doc, row.version, None))

    (case,) = read_report(recovery)["items"]

    assert case["cordon"]["verdict"] == "EARLIER"
    assert case["cordon"]["happenedAt"] == rfc3339(recovery.now)


def test_shadow_report_is_filtered_by_pool_and_time() -> None:
    recovery = recovery_in_observe_mode()

    assert read_report(recovery, pool="other")["summary"]["cases"] == 0
    assert read_report(recovery, pool=recovery.incident.pool)["summary"]["cases"] == 1
    assert read_report(recovery, since=recovery.now + timedelta(seconds=1))["summary"]["cases"] == 0
