"""A fault that comes again, and a site's own mind, through the services: remembered once, whatever dies or repeats."""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.health.faults import Rung
from evenkeel.domain.health.incidents import Incident, IncidentState
from evenkeel.domain.health.recurrence import FaultHistory
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.policy import changed
from evenkeel.domain.recovery.settling import BranchEnd
from evenkeel.services.incidents import settle_incident
from evenkeel.services.recovery import plan_recovery
from evenkeel.services.tables import fleet_rows, incident_rows, rows
from tests.fakes import CrashPlan
from tests.fakes.cluster import CLUSTER, instance_id
from tests.fakes.crashes import CrashTiming
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario, a_fact

LATER = "2026-11-04T10:15:00Z"


def incident_of(recovery: RecoveryScenario) -> Incident:
    row = recovery.world.ledger.get(incident_rows.incident_key(recovery.incident_id))
    assert row
    return rows.decode(row, Incident)


def fault_history(recovery: RecoveryScenario) -> FaultHistory:
    location = f"slot/{incident_of(recovery).slot}"
    row = recovery.world.ledger.get(incident_rows.history_key(location))
    assert row
    return rows.decode(row, FaultHistory)


def report_fault_again(recovery: RecoveryScenario, **changes: Any) -> None:
    recovery.world.clock.advance(timedelta(days=1).total_seconds())
    recovery.report_fault(observed_at=LATER, envelope_id="again", **changes)


def test_second_fault_leads_to_replacement_instead_of_reboot() -> None:
    recovery = RecoveryScenario()
    recovery.report_fault()
    assert recovery.recover() == IncidentState.RECOVERED

    report_fault_again(recovery)
    recovery.recover()

    assert [rung for rung, _ in recovery.world.provider.asked] == ["reboot", "replace"]
    assert incident_of(recovery).min_rung == Rung.REPLACE
    assert len(fault_history(recovery).occurrences) == 2


def test_duplicate_signal_is_counted_once() -> None:
    recovery = RecoveryScenario()
    recovery.report_fault()
    before = fault_history(recovery)

    recovery.ingest(a_fact())
    recovery.ingest(a_fact(envelope_id="copy"))

    assert fault_history(recovery) == before


@pytest.mark.parametrize("when", list(CrashTiming))
def test_crash_during_the_write_records_whole_fault_or_nothing(when: CrashTiming) -> None:
    recovery = RecoveryScenario(with_job=False, plan=CrashPlan(at=1, when=when))

    recovery.report_fault()

    assert recovery.crashes == 1
    assert recovery.plan.effects[0] == "commit"
    assert len(fault_history(recovery).occurrences) == 1
    assert incident_of(recovery).state is IncidentState.OPEN


def test_sweep_records_the_jobs_of_a_node() -> None:
    recovery = RecoveryScenario()

    recovery.scenario.sweep()

    row = recovery.world.ledger.get(fleet_rows.node_key(CLUSTER, instance_id(1)))
    assert row
    assert rows.decode(row, FleetNode).job_ids == (recovery.job_id,)


def test_second_hang_counts_even_if_job_runs_on_another_node() -> None:
    recovery = RecoveryScenario()
    for number, at in ((1, "2026-11-03T10:15:00Z"), (2, "2026-11-03T12:15:00Z")):
        fact = a_fact(number, fault_key="train:hang", source="site:watcher", job_id=recovery.job_id, observed_at=at)
        outcome = recovery.ingest(fact)
        recovery.world.clock.advance(timedelta(hours=3).total_seconds())
        row = recovery.world.ledger.get(incident_rows.incident_key(outcome.incident_id))
        assert row
        incident = rows.decode(row, Incident)

    assert incident.min_rung == Rung.DIAGNOSE
    assert "in this job" in incident.min_rung_reason


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ({}, ["reboot"]),
        ({"hp:NvidiaErrorReboot": {"ladder": ["replace"]}}, ["replace"]),
        ({"hp:NvidiaErrorReboot": {"ladder": ["watch"]}}, []),
        ({"hp:NvidiaErrorReboot": {"actsAlone": False}}, []),
    ],
)
def test_recovery_follows_the_ladder_of_the_site_policy(faults: dict[str, Any], expected: list[str]) -> None:
    recovery = RecoveryScenario(policy=changed(QUICK, {"faults": faults}))
    recovery.report_fault()

    recovery.recover()

    assert [rung for rung, _ in recovery.world.provider.asked] == expected


def test_every_decision_names_its_catalogue() -> None:
    policy = changed(QUICK, {"faults": {"hp:NvidiaErrorReboot": {"severity": "minor"}}})
    recovery = RecoveryScenario(policy=policy)
    recovery.report_fault()

    recovery.recover()

    decisions = [row.doc for key, row in recovery.world.ledger.rows.items() if key.pk.startswith("DEC#")]
    named = {doc["kind"]: doc["catalogueHash"] for doc in decisions}
    assert {"RECOVERY", "REPAIR", "RESUME"} <= set(named)
    assert {named[kind] for kind in ("RECOVERY", "REPAIR", "RESUME")} == {policy.catalogue.hash}


# ---------------------------------------------------------------- what comes between the plan and the end


def settle_with_plan(
    recovery: RecoveryScenario, plan: plan_recovery.PlanRecoveryResult
) -> settle_incident.SettleIncidentResult:
    branch_end = BranchEnd(outcome=plan.outcome, reason=plan.reason)
    outcome: settle_incident.SettleIncidentResult = recovery.run_state(
        "SettleIncident", settle_incident, plan=branch_end
    )
    return outcome


def test_worse_fault_after_the_plan_keeps_the_incident_open() -> None:
    recovery = RecoveryScenario()
    recovery.report_fault(fault_key="sxid:11012")
    plan = recovery.run_state("PlanRecovery", plan_recovery)
    recovery.ingest(a_fact(envelope_id="worse"))

    first, again = settle_with_plan(recovery, plan), settle_with_plan(recovery, plan)

    assert (plan.outcome, first.outcome, again.outcome) == ("NOTHING", "STOOD_DOWN", "STOOD_DOWN")
    assert (incident_of(recovery).state, incident_of(recovery).run) == (IncidentState.OPEN, 2)
    recovery.run = 2
    recovery.set_fault_label(instance_id(1), "NvidiaErrorReboot")
    assert recovery.recover() == IncidentState.RECOVERED
    assert [rung for rung, _ in recovery.world.provider.asked] == ["reboot"]


def test_sweep_starts_the_next_run_after_a_new_fault_joined() -> None:
    recovery = RecoveryScenario()
    recovery.report_fault(fault_key="sxid:11012")
    plan = recovery.run_state("PlanRecovery", plan_recovery)
    recovery.ingest(a_fact(envelope_id="worse"))
    settle_with_plan(recovery, plan)

    recovery.world.clock.advance(60)
    recovery.scenario.sweep()

    names = {name for _, name in recovery.world.workflows.executions}
    assert f"{recovery.incident_id}-r2" in names


def test_incident_is_closed_if_later_fault_changes_nothing() -> None:
    recovery = RecoveryScenario()
    recovery.report_fault(fault_key="sxid:11012")
    plan = recovery.run_state("PlanRecovery", plan_recovery)
    recovery.ingest(a_fact(fault_key="sxid:11012", link="7", envelope_id="same"))

    assert settle_with_plan(recovery, plan).outcome == IncidentState.OBSERVED
