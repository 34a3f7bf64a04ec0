"""Each state of a recovery: twice, in every mode, under a hold, and against people and other owners."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.nodes import FleetNode, Node, NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.repair import choose_repair
from evenkeel.domain.recovery.repair_facts import RepairFacts
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.domain.recovery.validation import CheckResult
from evenkeel.domain.resources import Resources
from evenkeel.domain.waiting import ConditionKind
from evenkeel.ports import EvenkeelError, PageNotSent, Put, Refused, Table, Throttled
from evenkeel.services.incidents import settle_incident
from evenkeel.services.recovery import check_node, cordon_node, drain_node, plan_recovery, repair_node, return_node
from evenkeel.services.resume import plan_resume
from evenkeel.services.tables import fleet_rows, incident_rows, rows
from tests.examples import examples
from tests.fakes import CrashPlan
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario, a_fact

NODE = f"hyperpod-{instance_id(1)}"


def recovery_of_faulty_node(**settings_: Any) -> RecoveryScenario:
    fact = settings_.pop("fact", {})
    recovery = RecoveryScenario(**settings_)
    recovery.report_fault(**fact)
    return recovery


def effect_names(recovery: RecoveryScenario) -> list[str]:
    """Names of the calls to the cluster and the provider since the incident."""
    cluster_calls = [
        call[0]
        for call in recovery.world.cluster.calls
        if call[0] in ("cordon", "return_to_service", "stop", "delete_node")
    ]
    return cluster_calls + [rung for rung, _ in recovery.world.provider.asked]


# ---------------------------------------------------------------- twice


def test_repeated_workflow_task_takes_effect_once() -> None:
    recovery = recovery_of_faulty_node()
    states: list[tuple[str, Any]] = [
        ("PlanRecovery", plan_recovery),
        ("CordonNode", cordon_node),
        ("DrainNode", drain_node),
        ("PlanResume", plan_resume),
        ("RepairNode", repair_node),
    ]
    for name, service in states:
        first = recovery.run_state(name, service)
        before = (effect_names(recovery), len(recovery.timeline_kinds()))
        again = recovery.run_state(name, service)

        assert again.outcome == first.outcome, name
        assert (effect_names(recovery), len(recovery.timeline_kinds())) == before, name
    assert recovery.world.provider.accepted == [("reboot", instance_id(1))]


def test_repeated_return_and_settlement_take_effect_once() -> None:
    recovery = recovery_of_faulty_node()
    recovery.recover()
    before = (effect_names(recovery), recovery.timeline_kinds(), recovery.incident)

    returned = recovery.run_state("ReturnNode", return_node)
    settled = recovery.run_state(
        "SettleIncident", settle_incident, failure={"Error": "States.Timeout", "Cause": "late"}
    )

    assert (returned.outcome, settled.outcome) == ("RETURNED", "RECOVERED")
    assert (effect_names(recovery), recovery.timeline_kinds(), recovery.incident) == before


def test_person_is_alerted_once_per_incident() -> None:
    recovery = recovery_of_faulty_node(is_stuck=True, size=2, fact={"fault_key": "hp:NvidiaErrorTerminate"})
    recovery.recover()

    recovery.run_state("SettleIncident", settle_incident)

    [page] = recovery.world.on_call.alerts
    assert page.key == f"{recovery.incident_id}-WAITING_FOR_PERSON"
    assert recovery.job_id in page.message


@pytest.mark.parametrize("error", [Refused("the topic is gone"), Throttled("slow down")])
def test_page_that_was_not_sent_is_repeated(error: EvenkeelError) -> None:
    recovery = recovery_of_faulty_node(is_stuck=True, size=2, fact={"fault_key": "hp:NvidiaErrorTerminate"})
    alert = recovery.world.on_call.alert

    def refuse(subject: str, message: str, *, key: str) -> None:
        recovery.world.on_call.alert = alert  # type: ignore[method-assign]
        raise error

    recovery.world.on_call.alert = refuse  # type: ignore[method-assign]
    with pytest.raises(PageNotSent):
        recovery.recover()

    recovery.run_state("SettleIncident", settle_incident)

    [page] = recovery.world.on_call.alerts
    assert page.key == f"{recovery.incident_id}-WAITING_FOR_PERSON"
    assert recovery.incident.paged_at


FAILURE = {"Error": "PermanentError", "Cause": "NotAllowed: patch node: 403"}


def test_failed_run_leaves_the_incident_open_without_an_alert() -> None:
    recovery = recovery_of_faulty_node()
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("RepairNode", repair_node)
    first = recovery.run_state("SettleIncident", settle_incident, failure=FAILURE)
    again = recovery.run_state("SettleIncident", settle_incident, failure=FAILURE)

    assert (first.outcome, again) == ("FAILED", first)
    assert recovery.incident.state is IncidentState.RECOVERING
    assert recovery.timeline_kinds().count("failed") == 1
    assert recovery.world.on_call.alerts == []
    assert recovery.lease
    assert recovery.lease.incident_id == recovery.incident_id


def test_next_run_of_a_failed_recovery_succeeds() -> None:
    recovery = recovery_of_faulty_node()
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("RepairNode", repair_node)
    recovery.run_state("SettleIncident", settle_incident, failure=FAILURE)
    row = recovery.world.ledger.get(incident_rows.incident_key(recovery.incident_id))
    assert row
    recovery.world.ledger.commit(
        Put(incident_rows.incident_row(recovery.incident.replace(run=2, failed_at=None), row.version))
    )
    recovery.run = 2

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.world.provider.accepted == [("reboot", instance_id(1))]


def test_last_failed_run_closes_the_incident_and_alerts_person() -> None:
    recovery = recovery_of_faulty_node(policy=QUICK.replace(watch=QUICK.watch.replace(max_runs=1)))
    recovery.run_state("PlanRecovery", plan_recovery)

    result = recovery.run_state("SettleIncident", settle_incident, failure=FAILURE)

    assert (result.outcome, recovery.incident.state) == ("FAILED", IncidentState.FAILED)
    assert [page.key for page in recovery.world.on_call.alerts] == [f"{recovery.incident_id}-FAILED"]


def test_effects_of_a_reboot_by_evenkeel_are_no_evidence() -> None:
    recovery = recovery_of_faulty_node()
    for name, service in (("PlanRecovery", plan_recovery), ("RepairNode", repair_node)):
        recovery.run_state(name, service)
    before = recovery.incident
    recovery.world.clock.advance(5)
    down = a_fact(fault_key="node:not_ready", source="kubernetes.node", observed_at=recovery.now)

    heard = [recovery.ingest(down).outcome for _ in range(2)]

    assert heard == ["EXPECTED", "DUPLICATE"]
    assert recovery.incident == before


# ---------------------------------------------------------------- modes


@pytest.mark.parametrize(
    "changes",
    [{"mode": Mode.OBSERVE}, {"fact": {"is_drill": True}}],
    ids=["observe", "a drill that may not act"],
)
def test_observe_mode_records_and_changes_nothing(changes: dict[str, Any]) -> None:
    recovery = recovery_of_faulty_node(**changes)
    outcome = recovery.recover()

    assert outcome == IncidentState.OBSERVED
    assert effect_names(recovery) == []
    assert recovery.job.current_attempt == 1
    [decision] = decisions_of_kind(recovery, "RECOVERY")
    assert (decision.action, decision.is_dry_run) == ("ACT", True)


def test_drill_repairs_its_node_if_drills_may_act() -> None:
    recovery = recovery_of_faulty_node(drills_may_act=True, fact={"is_drill": True})

    assert recovery.recover() == IncidentState.RECOVERED


@pytest.mark.parametrize("service", [cordon_node, drain_node, plan_resume, repair_node])
def test_no_recovery_step_acts_in_mode_observe(service: Any) -> None:
    recovery = recovery_of_faulty_node()
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.mode = Mode.OBSERVE

    outcome = recovery.run_state("Any", service)

    assert effect_names(recovery) == []
    assert "observe" in outcome.reason


def test_observe_mode_records_the_same_decision_as_act_mode() -> None:
    acted, observed = recovery_of_faulty_node(), recovery_of_faulty_node(mode=Mode.OBSERVE)
    acted.recover()
    observed.recover()

    [would], [did] = decisions_of_kind(observed, "RECOVERY"), decisions_of_kind(acted, "RECOVERY")
    assert (would.action, would.facts | {"mode": "act"}) == (did.action, did.facts)


# ---------------------------------------------------------------- hold


def test_hold_allows_cordons_and_delays_stops_and_repairs() -> None:
    recovery = recovery_of_faulty_node()
    recovery.hold_automation(seconds=60)
    for name, service in (("PlanRecovery", plan_recovery), ("CordonNode", cordon_node), ("DrainNode", drain_node)):
        recovery.run_state(name, service)

    assert recovery.run_state("RepairNode", repair_node).outcome == "HELD"
    assert recovery.run_state("RepairNode", repair_node).outcome == "HELD"
    assert effect_names(recovery) == ["cordon"]
    assert recovery.job.stop_request is None
    assert recovery.timeline_kinds().count("held") == 1


def test_recovery_continues_after_a_hold() -> None:
    recovery = recovery_of_faulty_node()
    recovery.hold_automation(seconds=60)

    assert recovery.recover() == IncidentState.RECOVERED
    assert "AwaitGuardrails: RELEASED" in recovery.visited
    assert recovery.job.current_attempt == 2


def test_job_that_a_hold_keeps_running_is_not_overdue() -> None:
    recovery = recovery_of_faulty_node(size=2)
    allowed = recovery.policy.jobs.resume_deadline_seconds
    recovery.hold_automation(seconds=10 * allowed)
    for name, service in (
        ("PlanRecovery", plan_recovery),
        ("CordonNode", cordon_node),
        ("DrainNode", drain_node),
        ("PlanResume", plan_resume),
        ("RepairNode", repair_node),
    ):
        recovery.run_state(name, service)
    recovery.open_wait(ConditionKind.JOBS_RESUMED)

    recovery.world.clock.advance(5 * allowed)
    under_hold = recovery.evaluate_waits_once()
    recovery.world.clock.advance(5 * allowed)
    just_released = recovery.evaluate_waits_once()
    recovery.run_state("RepairNode", repair_node)
    recovery.scenario.settle(recovery.job_id, 1)
    recovery.world.clock.advance(allowed - 1)
    stopped = recovery.evaluate_waits_once()
    recovery.world.clock.advance(1)

    assert (under_hold, just_released, stopped) == ([], [], [])
    assert recovery.evaluate_waits_once() == ["DEADLINE_PASSED"]


def test_release_of_a_hold_moves_jobs_off_a_cordoned_node() -> None:
    recovery = RecoveryScenario()
    recovery.world.cluster.set_node(NODE, is_cordoned=True)
    recovery.hold_automation(seconds=60)
    recovery.report_fault()

    assert recovery.recover() == IncidentState.STOOD_DOWN
    assert "AwaitGuardrails: RELEASED" in recovery.visited
    assert effect_names(recovery) == ["stop"]
    assert (recovery.job.state, recovery.job.current_attempt) == (JobState.RUNNING, 2)


@pytest.mark.parametrize(
    ("fault_key", "outcome"), [("hp:NvidiaErrorReboot", "INVALID"), ("hp:NvidiaErrorTerminate", "VALID")]
)
def test_late_signal_of_a_replaced_node_spares_its_replacement(fault_key: str, outcome: str) -> None:
    recovery = recovery_of_faulty_node(fact={"fault_key": fault_key})
    for name, service in (("PlanRecovery", plan_recovery), ("CordonNode", cordon_node), ("RepairNode", repair_node)):
        recovery.run_state(name, service)
    recovery.world.provider.finish_all()
    recovery.set_fault_label(instance_id(1))
    recovery.open_wait(ConditionKind.NODE_VALID)
    life = recovery.incident.life
    node = FleetNode(life=life, slot=recovery.incident.slot, changed_at=recovery.now)
    recovery.scenario.store_row(fleet_rows.node_row(life.cluster, life.instance_id, node.to_json(), 0, None))
    recovery.world.clock.advance(61)

    late = recovery.ingest(a_fact(fault_key=fault_key, observed_at=recovery.now, envelope_id="late"))

    assert (late.outcome, recovery.evaluate_waits_once()) == ("JOIN", [outcome])


# ---------------------------------------------------------------- what vouches for a node

DEEP = QUICK.replace(repair=QUICK.repair.replace(deep_checks_after=("hardware",), deep_check_min_seconds=1))
TESTED = QUICK.replace(repair=QUICK.repair.replace(test_job_image="registry/node-test:1"))
EXAMINED = {"fault_key": "xid:79", "source": "hyperpod.node-labels"}


def recovery_after_reboot(policy: Policy) -> RecoveryScenario:
    recovery = recovery_of_faulty_node(policy=policy, fact=EXAMINED)
    for name, service in (("PlanRecovery", plan_recovery), ("CordonNode", cordon_node), ("RepairNode", repair_node)):
        recovery.run_state(name, service)
    recovery.world.provider.finish_all()
    recovery.set_fault_label(instance_id(1))
    return recovery


def test_deep_check_runs_once_and_validates_the_node() -> None:
    recovery = recovery_after_reboot(DEEP)
    outcomes = [recovery.run_state("CheckNode", check_node).outcome for _ in range(2)]
    recovery.open_wait(ConditionKind.NODE_VALID)
    recovery.world.clock.advance(30)
    during = recovery.evaluate_waits_once()
    recovery.world.provider.finish_check(instance_id(1))

    assert outcomes == ["DEEP", "DEEP"]
    assert recovery.world.provider.examined == [instance_id(1)]
    assert (during, recovery.evaluate_waits_once()) == ([], ["VALID"])
    [decision] = decisions_of_kind(recovery, "CHECK")
    assert decision.action == "DEEP"


def test_hyperpod_repairs_a_node_after_a_failed_deep_check() -> None:
    recovery = recovery_after_reboot(DEEP)
    recovery.run_state("CheckNode", check_node)
    recovery.open_wait(ConditionKind.NODE_VALID)
    recovery.world.clock.advance(30)
    recovery.world.provider.finish_check(instance_id(1), passed=False)
    failed = recovery.evaluate_waits_once()
    recovery.deliver_wait_answers()
    asked_before = list(recovery.world.provider.asked)

    assert failed == ["INVALID"]
    assert recovery.run_state("RepairNode", repair_node).outcome == "REQUESTED"
    assert recovery.world.provider.asked == asked_before
    assert recovery.lease
    assert recovery.lease.requests[-1].rung == "owner"


def test_refused_deep_check_is_replaced_by_a_basic_check() -> None:
    recovery = recovery_after_reboot(DEEP)
    recovery.world.provider.by_id[instance_id(1)] = recovery.world.provider.by_id[instance_id(1)].replace(
        status="Failure"
    )

    assert recovery.run_state("CheckNode", check_node).outcome == "BASIC"


@pytest.mark.parametrize(("result", "outcome"), [(CheckResult.PASSED, "VALID"), (CheckResult.FAILED, "INVALID")])
def test_result_of_validation_job_decides_whether_node_returns(result: CheckResult, outcome: str) -> None:
    recovery = recovery_after_reboot(TESTED)
    recovery.world.cluster.every_check = CheckResult.PENDING
    outcomes = [recovery.run_state("CheckNode", check_node).outcome for _ in range(2)]
    recovery.open_wait(ConditionKind.NODE_VALID)
    recovery.world.clock.advance(30)
    during = recovery.evaluate_waits_once()
    recovery.world.cluster.every_check = result

    assert outcomes == ["TEST_JOB", "TEST_JOB"]
    assert [spec.node_name for spec in recovery.world.cluster.checks.values()] == [NODE]
    assert (during, recovery.evaluate_waits_once()) == ([], [outcome])


def test_each_failed_validation_gets_its_own_check() -> None:
    recovery = recovery_after_reboot(TESTED)
    recovery.run_state("CheckNode", check_node)
    recovery.world.cluster.every_check = CheckResult.FAILED
    recovery.open_wait(ConditionKind.NODE_VALID)
    recovery.evaluate_waits_once()
    recovery.deliver_wait_answers()
    recovery.world.clock.advance(1)

    recovery.run_state("CheckNode", check_node)

    assert len(recovery.world.cluster.checks) == 2


# ---------------------------------------------------------------- nodes that keep coming back


def test_node_marked_lemon_settles_longer_and_is_then_replaced() -> None:
    policy = QUICK.replace(repair=QUICK.repair.replace(lemon_returns=2, flap_margin_factor=3))
    recovery = RecoveryScenario(policy=policy, with_job=False)
    took, lemons = [], []
    for number in range(3):
        at = recovery.now + timedelta(seconds=1)
        recovery.report_fault(
            fault_key="node:not_ready", source="kubernetes.node", observed_at=at, occurrence=str(number)
        )
        recovery.world.clock.advance(2)
        assert recovery.recover() == IncidentState.RECOVERED
        stages = recovery.incident.stages
        assert stages.validated_at
        assert stages.planned_at
        took.append((stages.validated_at - stages.planned_at).total_seconds())
        assert recovery.lease
        lemons.append(recovery.lease.lemon)

    assert took[1] > took[0]
    assert lemons == ["", recovery.incident.life.key, ""]
    assert recovery.world.provider.accepted == [("replace", instance_id(1))]


def test_lemon_that_recovers_by_itself_is_still_replaced() -> None:
    recovery = RecoveryScenario(policy=QUICK.replace(repair=QUICK.repair.replace(lemon_returns=0)), with_job=False)
    recovery.report_fault(fault_key="node:not_ready", source="kubernetes.node")

    recovery.run_state("PlanRecovery", plan_recovery)

    assert recovery.run_state("RepairNode", repair_node).rung == "replace"


# ---------------------------------------------------------------- people and other owners


def test_cordon_of_a_person_stays_and_its_jobs_move() -> None:
    recovery = RecoveryScenario()
    recovery.world.cluster.set_node(NODE, is_cordoned=True)
    recovery.report_fault()

    assert recovery.recover() == IncidentState.STOOD_DOWN
    assert recovery.world.provider.asked == []
    node = recovery.world.cluster.node(CLUSTER, NODE)
    assert node
    assert (node.is_cordoned, node.incident_id) == (True, None)
    assert (recovery.job.state, recovery.job.current_attempt) == (JobState.RUNNING, 2)


def test_recovery_leaves_the_repair_to_automatic_node_recovery() -> None:
    recovery = RecoveryScenario()
    recovery.world.provider.settings = recovery.world.provider.settings.replace(repairs_by_itself=True)
    recovery.report_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    # HyperPod's own repair, not ours:
    recovery.world.provider.reboot(instance_id(1))
    recovery.world.provider.asked.clear()

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.world.provider.asked == []
    assert recovery.incident.repairs == ()


def test_evenkeel_takes_over_if_hyperpod_does_not_repair() -> None:
    recovery = RecoveryScenario()
    recovery.world.provider.settings = recovery.world.provider.settings.replace(repairs_by_itself=True)
    recovery.report_fault()
    heard_at = recovery.now

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.world.provider.accepted == [("reboot", instance_id(1))]
    assert recovery.incident.repairs == ("reboot",)
    asked_at = recovery.incident.stages.repair_requested_at
    assert asked_at == heard_at
    assert recovery.lease
    marked, called = recovery.lease.requests
    assert (marked.rung, called.rung) == ("owner", "reboot")
    assert (called.requested_at - marked.requested_at).total_seconds() >= QUICK.repair.takeover_seconds


@pytest.mark.parametrize("turned_automatic_after", ["PlanRecovery", "RepairNode"])
def test_hyperpod_repairs_if_node_recovery_changed_after_plan(turned_automatic_after: str) -> None:
    recovery = RecoveryScenario(is_stuck=True)
    recovery.report_fault()
    assert recovery.run_state("PlanRecovery", plan_recovery).outcome == "ACT"
    calls = []
    if turned_automatic_after == "RepairNode":
        assert recovery.run_state("RepairNode", repair_node).outcome == "REQUESTED"
        calls = list(recovery.world.provider.asked)
        recovery.world.clock.advance(QUICK.repair.reboot_deadline_seconds + 1)
    recovery.world.provider.settings = recovery.world.provider.settings.replace(repairs_by_itself=True)

    repair = recovery.run_state("RepairNode", repair_node)

    assert repair.outcome == "REQUESTED"
    assert repair.reason.endswith("HyperPod repairs this node itself: Evenkeel waits and requests nothing.")
    assert recovery.world.provider.asked == calls
    assert recovery.lease
    assert recovery.lease.requests[-1].rung == "owner"


def test_jobs_stop_after_hold_if_hyperpod_repairs_their_node() -> None:
    recovery = RecoveryScenario(is_stuck=True)
    recovery.hold_automation(seconds=20)
    recovery.report_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("DrainNode", drain_node)
    assert recovery.run_state("RepairNode", repair_node).outcome == "HELD"
    assert recovery.job.stop_of(1) is None
    recovery.world.clock.advance(21)
    recovery.world.provider.settings = recovery.world.provider.settings.replace(repairs_by_itself=True)

    assert recovery.run_state("RepairNode", repair_node).outcome == "REQUESTED"
    assert recovery.job.stop_of(1)
    assert recovery.world.provider.asked == []


def test_reboot_by_evenkeel_is_no_repair_by_hyperpod() -> None:
    recovery = RecoveryScenario(replacement_is_faulty=True)
    recovery.report_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("RepairNode", repair_node)
    recovery.world.provider.finish(instance_id(1))
    recovery.world.clock.advance(QUICK.repair.reboot_deadline_seconds + 1)
    recovery.world.provider.settings = recovery.world.provider.settings.replace(repairs_by_itself=True)
    recovery.run_state("RepairNode", repair_node)
    recovery.open_wait(ConditionKind.NODE_BACK)

    assert recovery.evaluate_waits_once() == []
    recovery.world.clock.advance(QUICK.repair.takeover_seconds + 1)
    assert recovery.run_state("RepairNode", repair_node).rung == "replace"


def test_node_that_hangs_after_reboot_by_evenkeel_is_replaced() -> None:
    recovery = RecoveryScenario(is_stuck=True)
    recovery.report_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("RepairNode", repair_node)
    recovery.world.cluster.set_node(NODE, boot_id="boot-after-reboot")  # HyperPod's status stays Pending
    recovery.world.clock.advance(QUICK.repair.reboot_deadline_seconds + 1)

    assert recovery.run_state("RepairNode", repair_node).rung == "replace"


def test_slow_reboot_by_evenkeel_ends_wait_for_hyperpod() -> None:
    recovery = RecoveryScenario(is_stuck=True)
    provider = recovery.world.provider
    recovery.report_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("RepairNode", repair_node)
    provider.finish(instance_id(1))
    recovery.set_fault_label(instance_id(1))
    recovery.world.cluster.lose_node(NODE)
    recovery.world.clock.advance(QUICK.repair.reboot_deadline_seconds + 1)
    provider.settings = provider.settings.replace(repairs_by_itself=True)
    assert recovery.run_state("RepairNode", repair_node).reason.endswith("Evenkeel waits and requests nothing.")
    recovery.world.cluster.ready_node(NODE)
    recovery.world.clock.advance(QUICK.repair.takeover_seconds + 1)

    assert recovery.run_state("RepairNode", repair_node).outcome == "HEALTHY"
    assert ("replace", instance_id(1)) not in provider.asked


def test_evenkeel_waits_for_repair_that_hyperpod_began_earlier() -> None:
    recovery = RecoveryScenario()
    recovery.world.provider.reboot(instance_id(1))
    recovery.world.provider.asked.clear()
    recovery.report_fault()

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.world.provider.asked == []


def test_repair_that_the_provider_finished_before_the_wait_counts() -> None:
    recovery = RecoveryScenario()
    recovery.world.provider.settings = recovery.world.provider.settings.replace(repairs_by_itself=True)
    recovery.report_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.world.provider.reboot(instance_id(1))
    recovery.world.provider.finish(instance_id(1))
    recovery.world.provider.asked.clear()
    waits = recovery.run_state("RepairNode", repair_node)
    recovery.open_wait(ConditionKind.NODE_BACK)

    assert (waits.outcome, recovery.evaluate_waits_once()) == ("REQUESTED", ["NODE_BACK"])
    recovery.set_fault_label(instance_id(1))
    assert recovery.run_state("RepairNode", repair_node).outcome == "HEALTHY"
    assert recovery.world.provider.asked == []


def test_active_provider_repair_is_never_interrupted() -> None:
    recovery = RecoveryScenario(is_stuck=True)
    recovery.world.provider.settings = recovery.world.provider.settings.replace(repairs_by_itself=True)
    recovery.report_fault()
    recovery.world.provider.reboot(instance_id(1))
    recovery.world.provider.asked.clear()

    assert recovery.recover() == IncidentState.WAITING_FOR_PERSON
    assert recovery.world.provider.asked == []


def test_recovery_waits_while_hyperpod_updates_the_cluster() -> None:
    recovery = RecoveryScenario()
    updating = recovery.world.provider.settings.replace(status="SystemUpdating")
    recovery.world.provider.settings = updating
    recovery.report_fault()
    first = recovery.run_state("PlanRecovery", plan_recovery)
    again = recovery.run_state("PlanRecovery", plan_recovery)
    recovery.open_wait(ConditionKind.REPAIR_POSSIBLE)
    during = recovery.evaluate_waits_once()
    recovery.world.provider.settings = updating.replace(status="InService")

    assert (first.outcome, again, during, recovery.evaluate_waits_once()) == ("LATER", first, [], ["REPAIR_POSSIBLE"])
    assert effect_names(recovery) == []
    assert recovery.recover() == IncidentState.RECOVERED


def test_cluster_update_delays_the_next_repair() -> None:
    recovery = recovery_of_faulty_node()
    for name, service in (("PlanRecovery", plan_recovery), ("CordonNode", cordon_node)):
        recovery.run_state(name, service)
    recovery.world.provider.settings = recovery.world.provider.settings.replace(status="RollingBack")

    outcomes = [recovery.run_state("RepairNode", repair_node).outcome for _ in range(2)]

    assert outcomes == ["LATER", "LATER"]
    assert recovery.world.provider.asked == []
    assert recovery.timeline_kinds().count("waits") == 1


def test_job_finishes_before_the_repair_of_a_minor_fault() -> None:
    recovery = RecoveryScenario(policy=QUICK.replace(repair=QUICK.repair.replace(drain_scale=0.001)))
    recovery.report_fault(fault_key="xid:63")
    for name, service in (("PlanRecovery", plan_recovery), ("CordonNode", cordon_node), ("DrainNode", drain_node)):
        recovery.run_state(name, service)
    waits = recovery.run_state("RepairNode", repair_node)
    recovery.open_wait(ConditionKind.REPAIR_POSSIBLE)
    running = recovery.evaluate_waits_once()
    before = effect_names(recovery)
    recovery.world.cluster.finish_pods(recovery.job_id, 1)

    assert (waits.outcome, running, before) == ("LATER", [], ["cordon"])
    assert recovery.evaluate_waits_once() == ["REPAIR_POSSIBLE"]
    assert recovery.run_state("RepairNode", repair_node).outcome == "REQUESTED"


def test_job_past_its_finishing_time_is_stopped_before_the_repair() -> None:
    recovery = RecoveryScenario(policy=QUICK.replace(repair=QUICK.repair.replace(drain_scale=0.001)))
    recovery.report_fault(fault_key="xid:63")

    assert recovery.recover() == IncidentState.RECOVERED
    assert "AwaitRepairPossible: REPAIR_POSSIBLE" in recovery.visited
    assert recovery.world.provider.accepted == [("reboot", instance_id(1))]
    assert effect_names(recovery)[:2] == ["cordon", "stop"]
    assert recovery.job.current_attempt == 2


def recovery_that_waits_for_jobs(**settings: bool) -> RecoveryScenario:
    """A recovery after a minor fault, whose job may run on for 87 s."""
    recovery = RecoveryScenario(policy=QUICK.replace(repair=QUICK.repair.replace(drain_scale=0.001)))
    recovery.world.provider.settings = recovery.world.provider.settings.replace(**settings)
    recovery.report_fault(fault_key="xid:63")
    for name, service in (("PlanRecovery", plan_recovery), ("CordonNode", cordon_node), ("DrainNode", drain_node)):
        recovery.run_state(name, service)
    return recovery


def test_takeover_from_hyperpod_waits_for_jobs_that_may_finish() -> None:
    recovery = recovery_that_waits_for_jobs(repairs_by_itself=True)
    assert recovery.run_state("RepairNode", repair_node).outcome == "REQUESTED"
    recovery.world.clock.advance(QUICK.repair.takeover_seconds + 1)

    assert recovery.run_state("RepairNode", repair_node).outcome == "LATER"
    assert effect_names(recovery) == ["cordon"]


@pytest.mark.parametrize(
    "fact",
    [{"fault_key": "xid:79"}, {"fault_key": "health:instance_retirement", "deadline_at": "2026-11-03T10:20:00Z"}],
)
def test_worse_fault_or_deadline_ends_wait_for_jobs(fact: dict[str, Any]) -> None:
    recovery = recovery_that_waits_for_jobs()
    assert recovery.run_state("RepairNode", repair_node).outcome == "LATER"
    recovery.open_wait(ConditionKind.REPAIR_POSSIBLE)
    assert recovery.evaluate_waits_once() == []
    recovery.world.clock.advance(1)

    recovery.ingest(a_fact(**fact, source="hyperpod.node-labels", observed_at=recovery.now, envelope_id="worse"))

    assert recovery.evaluate_waits_once() == ["REPAIR_POSSIBLE"]
    recovery.run_state("RepairNode", repair_node)
    assert recovery.job.stop_of(1)


def test_worse_fault_during_reboot_leads_to_replacement() -> None:
    recovery = recovery_of_faulty_node(policy=DEEP, fact=EXAMINED)
    for name, service in (("PlanRecovery", plan_recovery), ("CordonNode", cordon_node), ("RepairNode", repair_node)):
        recovery.run_state(name, service)
    recovery.world.clock.advance(1)
    recovery.ingest(a_fact(fault_key="hp:NvidiaErrorTerminate", observed_at=recovery.now, envelope_id="worse"))
    recovery.world.provider.finish_all()
    recovery.set_fault_label(instance_id(1))
    recovery.world.clock.advance(1)

    assert recovery.await_condition("AwaitNode", ConditionKind.NODE_BACK)["outcome"] == "NODE_BACK"
    assert recovery.run_state("CheckNode", check_node).outcome == "BASIC"
    assert recovery.await_condition("AwaitValidation", ConditionKind.NODE_VALID)["outcome"] == "INVALID"
    assert recovery.run_state("RepairNode", repair_node).rung == "replace"


def test_worse_fault_that_ended_leads_to_no_replacement() -> None:
    recovery = recovery_after_reboot(QUICK)
    recovery.world.clock.advance(1)
    recovery.ingest(a_fact(fault_key="hp:NvidiaErrorTerminate", observed_at=recovery.now, envelope_id="worse"))
    recovery.world.clock.advance(1)
    for fault_key in ("xid:79", "hp:NvidiaErrorTerminate"):
        cleared = a_fact(kind="RECOVERED", fault_key=fault_key, observed_at=recovery.now, envelope_id=fault_key)
        recovery.ingest(cleared)

    assert recovery.await_condition("AwaitValidation", ConditionKind.NODE_VALID)["outcome"] == "VALID"


def signal_after_boot(**changes: Any) -> RecoveryScenario:
    """Return a recovery whose node rebooted, and then had a signal before its validation began."""
    recovery = recovery_after_reboot(QUICK)
    recovery.world.clock.advance(10)
    recovery.world.cluster.set_node(NODE, ready_since=recovery.now)
    recovery.world.clock.advance(2)
    again = {"fault_key": "hp:NvidiaErrorReboot", "source": "hyperpod.node-health", "envelope_id": "again", **changes}
    recovery.ingest(a_fact(observed_at=recovery.now - timedelta(seconds=again.pop("age", 0)), **again))
    recovery.world.clock.advance(1)
    return recovery


def test_signal_between_boot_and_validation_fails_the_validation() -> None:
    recovery = signal_after_boot()

    assert recovery.await_condition("AwaitValidation", ConditionKind.NODE_VALID)["outcome"] == "INVALID"
    assert recovery.run_state("RepairNode", repair_node).rung == "replace"


@pytest.mark.parametrize("changes", [{"source": "hyperpod.node-labels"}, {"age": 3}], ids=["mark", "before the boot"])
def test_signal_that_a_boot_can_clear_fails_no_validation(changes: dict[str, Any]) -> None:
    recovery = signal_after_boot(**changes)

    assert recovery.await_condition("AwaitValidation", ConditionKind.NODE_VALID)["outcome"] == "VALID"


@pytest.mark.parametrize("kind", [ConditionKind.NODE_BACK, ConditionKind.NODE_VALID, ConditionKind.RELEASED])
@pytest.mark.parametrize("how", ["label", "uncordon"])
def test_opt_out_by_a_person_cancels_the_recovery(kind: ConditionKind, how: str) -> None:
    recovery = recovery_of_faulty_node()
    for name, service in (("PlanRecovery", plan_recovery), ("CordonNode", cordon_node), ("DrainNode", drain_node)):
        recovery.run_state(name, service)
    recovery.hold_automation()
    if kind is ConditionKind.NODE_BACK:
        recovery.world.cluster.lose_node(NODE)
    recovery.open_wait(kind)
    before = recovery.evaluate_waits_once()
    if how == "label":
        node = recovery.world.cluster.node(CLUSTER, NODE)
        assert node
        recovery.world.cluster.set_node(NODE, labels={**node.labels, "evenkeel.io/automation": "off"})
    else:
        recovery.world.cluster.set_node(NODE, is_cordoned=False, incident_id=None)

    assert (before, recovery.evaluate_waits_once()) == ([], ["OPTED_OUT"])
    assert recovery.run_state("RepairNode", repair_node).outcome == "STAND_DOWN"
    assert recovery.world.provider.asked == []
    assert recovery.incident.node_branch == "STOOD_DOWN"
    recovery.deliver_wait_answers()
    assert recovery.incident.invalid_at is None


def test_opted_out_pool_is_left_alone() -> None:
    recovery = RecoveryScenario(with_job=False)
    for node in list(recovery.world.cluster.by_name.values()):
        recovery.world.cluster.set_node(node.name, labels={**node.labels, "evenkeel.io/automation": "OFF"})
    recovery.scenario.sweep()
    recovery.world.cluster.remove_node(NODE)
    recovery.report_fault()

    assert recovery.recover() == IncidentState.STOOD_DOWN
    assert effect_names(recovery) == []


def test_recreated_node_object_does_not_count_as_uncordon() -> None:
    recovery = recovery_of_faulty_node()
    for name, service in (("PlanRecovery", plan_recovery), ("CordonNode", cordon_node)):
        recovery.run_state(name, service)
    recovery.world.clock.advance(5)
    recovery.world.cluster.set_node(NODE, is_cordoned=False, incident_id=None, created_at=recovery.now)

    assert recovery.run_state("RepairNode", repair_node).outcome == "REQUESTED"


def test_jobs_of_already_replaced_node_resume_with_distrusted_checkpoints() -> None:
    recovery = recovery_of_faulty_node(fact={"fault_key": "xid:48", "source": "hyperpod.node-labels"})
    recovery.world.provider.replace(instance_id(1))
    recovery.world.provider.finish(instance_id(1))
    recovery.world.provider.asked.clear()

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.world.provider.asked == []
    plan = recovery.job.resume_plan
    assert plan is not None
    assert plan.distrust_after is not None
    assert [node.name for node in recovery.world.cluster.by_name.values() if node.is_awaiting_validation] == []


def test_karpenter_node_is_drained_and_terminated_once() -> None:
    recovery = RecoveryScenario()
    machine = recovery.world.cluster.node(CLUSTER, NODE)
    assert machine
    del recovery.world.provider.by_id[instance_id(1)]
    labels = {**machine.labels, "karpenter.sh/nodepool": "burst"}
    born = recovery.now
    node = recovery.world.cluster.set_node(NODE, labels=labels, hyperpod_cluster_id=None, created_at=born)
    life = NodeLife(cluster=CLUSTER, instance_id=instance_id(1), launched_at=born)
    stored = FleetNode.from_node(Node(life=life, kubernetes=node), Resources(accelerators=8), born)
    recovery.world.ledger.commit(Put(fleet_rows.node_row(CLUSTER, instance_id(1), stored.to_json(), 0, None)))
    recovery.report_fault(source="kubernetes.node", fault_key="node:not_ready", observed_at=recovery.now)
    recovery.set_fault_label(instance_id(1), "NvidiaErrorReboot")

    assert recovery.recover() == IncidentState.RECOVERED
    assert effect_names(recovery) == ["cordon", "stop", "delete_node"]
    assert recovery.incident.node_branch == "GONE"
    assert recovery.job.current_attempt == 2


def test_second_incident_of_a_node_slot_stands_down() -> None:
    recovery = recovery_of_faulty_node()
    for name, service in (("PlanRecovery", plan_recovery), ("RepairNode", repair_node)):
        recovery.run_state(name, service)
    recovery.world.provider.finish_all()
    first = recovery.incident_id
    other = recovery.incident.replace(incident_id="inc-other", repairs=())
    recovery.world.ledger.commit(Put(incident_rows.incident_row(other, 0)))
    recovery.incident_id = "inc-other"

    result = recovery.run_state("RepairNode", repair_node)

    assert (result.outcome, first in result.reason) == ("STAND_DOWN", True)


def test_superseded_run_of_a_recovery_changes_nothing() -> None:
    recovery = recovery_of_faulty_node()
    recovery.run = 2
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run = 1

    assert recovery.run_state("PlanRecovery", plan_recovery).outcome == "NOTHING"
    assert recovery.run_state("RepairNode", repair_node).outcome == "STAND_DOWN"
    assert recovery.run_state("SettleIncident", settle_incident).outcome == "STOOD_DOWN"
    assert recovery.incident.state is IncidentState.RECOVERING
    assert effect_names(recovery) == []


@pytest.mark.parametrize("rung", ["reboot", "replace"])
def test_second_run_continues_after_the_first(rung: str) -> None:
    recovery = recovery_of_faulty_node(
        fact={"fault_key": "hp:NvidiaErrorReboot" if rung == "reboot" else "hp:NvidiaErrorTerminate"}
    )
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("CordonNode", cordon_node)
    recovery.run_state("RepairNode", repair_node)
    recovery.advance_five_seconds()
    recovery.run = 2

    assert recovery.recover() == IncidentState.RECOVERED
    assert recovery.world.provider.accepted == [(rung, instance_id(1))]


# ---------------------------------------------------------------- jobs


def test_affected_job_is_stopped_with_the_grace_of_the_fault() -> None:
    policy = QUICK.replace(repair=QUICK.repair.replace(drain_scale=0.05))
    recovery = recovery_of_faulty_node(policy=policy)
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("DrainNode", drain_node)

    request = recovery.job.stop_request
    assert request
    assert (request.attempt, request.outcome, request.grace_seconds) == (1, AttemptState.LOST, 15)


def test_repair_waits_for_the_grace_of_the_pods() -> None:
    policy = QUICK.replace(repair=QUICK.repair.replace(drain_scale=0.05))
    recovery = recovery_of_faulty_node(policy=policy)
    recovery.world.cluster.stop = lambda *_: None  # type: ignore[method-assign]  # its pods take their time to save
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("DrainNode", drain_node)
    recovery.world.clock.advance(5)

    early = recovery.run_state("RepairNode", repair_node)
    recovery.world.clock.advance(early.wait_seconds)
    late = recovery.run_state("RepairNode", repair_node)

    assert (early.outcome, early.wait_seconds) == ("RETRY", 10)
    assert late.outcome == "REQUESTED"


def test_job_that_failed_with_its_node_belongs_to_the_incident() -> None:
    recovery = RecoveryScenario()
    recovery.scenario.world.cluster.fail_pods(recovery.job_id, 1, exit_code=1)
    recovery.set_fault_label(instance_id(1), "NvidiaErrorReboot")
    recovery.scenario.world.cluster.set_node(NODE, is_ready=False, not_ready_since=recovery.now)
    recovery.scenario.settle(recovery.job_id, 1)
    recovery.report_fault()

    recovery.recover()

    assert [affected.job_id for affected in recovery.incident.affected_jobs] == [recovery.job_id]
    assert recovery.incident.stages.jobs_resumed_at


def test_job_whose_pods_vanished_with_the_node_is_affected() -> None:
    recovery = RecoveryScenario()
    recovery.set_fault_label(instance_id(1), "NvidiaErrorReboot")
    recovery.scenario.world.cluster.fail_pods(recovery.job_id, 1, exit_code=134)
    recovery.scenario.world.cluster.set_node(NODE, is_ready=False, not_ready_since=recovery.now)
    recovery.scenario.settle(recovery.job_id, 1)
    recovery.scenario.world.cluster.jobs.clear()
    recovery.report_fault()

    for name, service in (("PlanRecovery", plan_recovery), ("DrainNode", drain_node)):
        recovery.run_state(name, service)

    assert [(affected.job_id, affected.attempt) for affected in recovery.incident.affected_jobs] == [
        (recovery.job_id, 1)
    ]


def test_attempt_that_ended_before_the_fault_is_not_affected() -> None:
    recovery = RecoveryScenario()
    recovery.scenario.world.cluster.fail_pods(recovery.job_id, 1, exit_code=1)
    recovery.scenario.settle(recovery.job_id, 1)
    recovery.world.clock.advance(recovery.policy.jobs.attribution_delay_seconds + 1)
    recovery.report_fault(observed_at=recovery.now)

    for name, service in (("PlanRecovery", plan_recovery), ("DrainNode", drain_node)):
        recovery.run_state(name, service)

    assert recovery.incident.affected_jobs == ()


def test_application_failure_is_reattributed_to_a_faulty_node() -> None:
    recovery = RecoveryScenario()
    recovery.scenario.world.cluster.fail_pods(recovery.job_id, 1, exit_code=134)
    recovery.scenario.settle(recovery.job_id, 1)
    assert (recovery.scenario.attempt(recovery.job_id, 1).state, recovery.job.application_failures) == ("FAILED", 1)

    recovery.report_fault()
    for name, service in (
        ("PlanRecovery", plan_recovery),
        ("DrainNode", drain_node),
        ("DrainNode", drain_node),
    ):
        recovery.run_state(name, service)

    assert recovery.job.application_failures == 0
    assert recovery.scenario.timeline(recovery.job_id).count("forgiven") == 1


def test_alert_names_a_node_that_never_started() -> None:
    recovery = recovery_of_faulty_node(is_stuck=True, size=2, fact={"fault_key": "hp:NvidiaErrorTerminate"})
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.run_state("RepairNode", repair_node)
    patient = recovery.world.provider.by_id.pop(instance_id(1))
    new_node = patient.replace(instance_id=instance_id(99), launched_at=recovery.now, status="Pending")
    recovery.world.provider.by_id[new_node.instance_id] = new_node
    recovery.world.clock.advance(QUICK.repair.replace_deadline_seconds)

    result = recovery.run_state("RepairNode", repair_node)

    assert result.outcome == "ASK_PERSON"
    assert new_node.instance_id in result.reason
    assert recovery.incident.replacement_instance_id == new_node.instance_id


def test_checkpoints_near_a_corrupting_fault_are_distrusted() -> None:
    recovery = recovery_of_faulty_node(fact={"fault_key": "hp:NvidiaErrorTerminate"})
    for name, service in (("PlanRecovery", plan_recovery), ("DrainNode", drain_node), ("PlanResume", plan_resume)):
        recovery.run_state(name, service)

    assert recovery.job.distrust_after
    assert recovery.job.distrust_after < recovery.incident.first_signal_at
    assert recovery.job.resume_plan
    assert recovery.job.resume_plan.avoid == (recovery.incident.life.key,)


def test_node_without_a_job_is_repaired() -> None:
    recovery = recovery_of_faulty_node(with_job=False)

    assert recovery.recover() == IncidentState.RECOVERED
    assert "PlanResume: NO_JOBS" in recovery.visited


def test_person_is_alerted_if_a_job_never_resumes() -> None:
    recovery = recovery_of_faulty_node(size=2)
    recovery.run_jobs = lambda: None  # type: ignore[method-assign]  # no cycle runs

    assert recovery.recover() == IncidentState.JOB_NOT_RESUMED
    assert len(recovery.world.on_call.alerts) == 1


# ---------------------------------------------------------------- decisions


def decisions_of_kind(recovery: RecoveryScenario, kind: str) -> list[Decision]:
    page = recovery.world.ledger.by_state(Table.INCIDENTS, f"DEC#{recovery.incident_id}")
    read_decisions = [rows.decode(row, Decision) for row in page.rows]
    return [decision for decision in read_decisions if decision.kind == kind]


def test_every_decision_of_the_ladder_replays_from_its_record() -> None:
    recovery = recovery_of_faulty_node(replacement_is_faulty=True)
    recovery.recover()

    repair_decisions = decisions_of_kind(recovery, "REPAIR")

    assert [decision.action for decision in repair_decisions] == ["REBOOT", "REPLACE"]
    for decision in repair_decisions:
        facts = RepairFacts.model_validate(decision.facts)
        assert choose_repair(facts, recovery.policy.repair).action == decision.action
        assert decision.policy_hash == recovery.policy.hash


# ---------------------------------------------------------------- whatever the provider does


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    answers=st.lists(st.sampled_from([*RepairAnswer]), max_size=4),
    lost=st.integers(0, 2),
    is_stuck=st.booleans(),
    replacement_is_faulty=st.booleans(),
    fault=st.sampled_from(["hp:NvidiaErrorReboot", "hp:NvidiaErrorTerminate", "xid:79"]),
    crash=st.integers(0, 60),
    when=st.sampled_from(["before", "after"]),
)
def test_node_is_replaced_at_most_once_and_the_recovery_ends(
    answers: list[RepairAnswer],
    lost: int,
    is_stuck: bool,
    replacement_is_faulty: bool,
    fault: str,
    crash: int,
    when: str,
) -> None:
    recovery = RecoveryScenario(
        is_stuck=is_stuck, replacement_is_faulty=replacement_is_faulty, plan=CrashPlan(at=crash, when=when)
    )
    recovery.world.provider.scripted.extend(answer for answer in answers if answer is not RepairAnswer.ACCEPTED)
    recovery.world.provider.lost_replies = lost
    recovery.report_fault(fault_key=fault)

    outcome = recovery.recover()

    assert outcome in (IncidentState.RECOVERED, IncidentState.WAITING_FOR_PERSON)
    assert max(recovery.world.provider.accepted_calls("replace").values(), default=0) <= 1
    assert max(recovery.world.provider.accepted_calls("reboot").values(), default=0) <= 2
    assert recovery.comparable_end()["open"] == []
    assert recovery.comparable_end()["waits"] == []
    assert recovery.comparable_end()["holder"] == ""


def test_late_fact_makes_the_repair_stronger_before_it_runs() -> None:
    recovery = recovery_of_faulty_node()
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.ingest(a_fact(fault_key="hp:NvidiaErrorTerminate", envelope_id="worse"))

    recovery.run_state("RepairNode", repair_node)

    assert recovery.world.provider.accepted == [("replace", instance_id(1))]
