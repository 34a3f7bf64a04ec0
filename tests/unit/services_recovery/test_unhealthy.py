"""A node without a permitted repair is shown as unhealthy; its recovery resumes as soon as a repair is allowed."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.health.incidents import FactKind, Incident, IncidentState
from evenkeel.domain.policy_section import Mode, ModeRule
from evenkeel.domain.recovery.opt_out import AUTOMATION_LABEL
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode
from evenkeel.ports import Put, Refused
from evenkeel.services.queries.fleet import read_nodes, read_status
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.recovery import plan_recovery, set_manual_cordon
from evenkeel.services.sweep import inventory_steps, unhealthy_node_steps
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import incident_rows, rows
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario, a_fact, answer_plan


def name_of(recovery: RecoveryScenario) -> str:
    [name] = [node.name for node in recovery.world.cluster.by_name.values() if node.instance_id == instance_id(1)]
    return name


def a_sweep_run(recovery: RecoveryScenario) -> SweepRun:
    return SweepRun(recovery.world.context(policy=recovery.policy, mode=recovery.mode), {})


def sweep(recovery: RecoveryScenario) -> int:
    """Look at the fleet as the sweep does; return how many recoveries were resumed."""
    sweep_run = a_sweep_run(recovery)
    inventory_steps.refresh_fleet(sweep_run)
    return unhealthy_node_steps.resume_work(sweep_run)


def newest_incident(recovery: RecoveryScenario) -> Incident:
    return max(recovery.incidents(), key=lambda incident: (incident.opened_at, incident.incident_id))


def follow_resumed_recovery(recovery: RecoveryScenario) -> str:
    """Follow the recovery that the sweep resumed."""
    assert sweep(recovery) == 1
    recovery.incident_id, recovery.run = newest_incident(recovery).incident_id, 1
    assert f"{recovery.incident_id}-r1" in recovery.execution_names()
    return recovery.recover()


def status_of(recovery: RecoveryScenario) -> dict[str, Any]:
    return read_status.show_status((), recovery.world.context(mode=recovery.mode))


def unhealthy_row(recovery: RecoveryScenario) -> UnhealthyNode | None:
    row = recovery.world.ledger.get(incident_rows.unhealthy_key(recovery.incident.life))
    return rows.decode(row, UnhealthyNode) if row and not row.doc["trustedBy"] else None


def answer_once(recovery: RecoveryScenario, *, approves: bool = True) -> None:
    """Answer the plan unless it has an answer."""
    if recovery.incident.approval is None:
        answer_plan(recovery, approves=approves)


def declined_recovery(mode: Mode = Mode.RECOMMEND, **more: Any) -> RecoveryScenario:
    recovery = RecoveryScenario(mode=mode, with_job=False, **more)
    recovery.report_fault()
    recovery.meanwhile = lambda: answer_once(recovery, approves=False)
    assert recovery.recover() == IncidentState.OBSERVED
    recovery.meanwhile = None
    return recovery


def unanswered_recovery() -> RecoveryScenario:
    recovery = RecoveryScenario(mode=Mode.RECOMMEND, with_job=False)
    recovery.report_fault()
    assert recovery.recover() == IncidentState.OBSERVED
    return recovery


def observed_recovery() -> RecoveryScenario:
    recovery = RecoveryScenario(mode=Mode.OBSERVE, with_job=False)
    recovery.report_fault()
    assert recovery.recover() == IncidentState.OBSERVED
    return recovery


ENDS = [declined_recovery, unanswered_recovery, observed_recovery]


# ---------------------------------------------------------------- status of unhealthy nodes


@pytest.mark.parametrize("end", ENDS)
def test_unrepaired_node_is_unhealthy_and_its_gpus_are_not_free(end: Callable[[], RecoveryScenario]) -> None:
    recovery = end()
    sweep(recovery)
    overview = status_of(recovery)
    node = read_nodes.show_node(instance_id(1), recovery.world.context())

    assert overview["nodes"]["pools"][0]["states"] == {"IN_SERVICE": 2, "UNHEALTHY": 1}
    assert overview["gpus"]["free"] == overview["gpus"]["inService"] == 16
    assert overview["health"] != "OK"
    assert [incident["incidentId"] for incident in overview["unhealthy"]] == [recovery.incident_id]
    assert overview["next"] == f"evenkeel incidents show {recovery.incident_id}"
    assert node["state"] == "UNHEALTHY"
    assert node["unhealthy"]["reason"] == recovery.incident.outcome
    assert node["marks"] == ["sagemaker.amazonaws.com/fault-types=NvidiaErrorReboot"]


def test_node_with_fault_labels_is_unhealthy_before_any_incident() -> None:
    recovery = RecoveryScenario(with_job=False)
    recovery.set_fault_label(instance_id(1), "NvidiaErrorReboot")
    sweep(recovery)

    assert status_of(recovery)["nodes"]["pools"][0]["states"] == {"IN_SERVICE": 2, "UNHEALTHY": 1}


def test_fault_without_a_label_makes_its_node_unhealthy() -> None:
    recovery = RecoveryScenario(mode=Mode.OBSERVE, with_job=False)
    recovery.report_fault(fault_key="xid:79", source="site:prober")
    recovery.recover()
    sweep(recovery)

    assert status_of(recovery)["nodes"]["pools"][0]["states"] == {"IN_SERVICE": 2, "UNHEALTHY": 1}


def test_fault_without_a_repair_keeps_its_node_in_service() -> None:
    recovery = RecoveryScenario(mode=Mode.OBSERVE, with_job=False)
    recovery.report_fault(fault_key="xid:31")
    recovery.recover()
    sweep(recovery)

    assert unhealthy_row(recovery) is None
    assert status_of(recovery)["nodes"]["pools"][0]["states"] == {"IN_SERVICE": 3}


# ---------------------------------------------------------------- when work is resumed


@pytest.mark.parametrize("end", ENDS)
def test_node_is_repaired_once_the_mode_is_act_again(end: Callable[[], RecoveryScenario]) -> None:
    recovery = end()
    before = recovery.incident
    recovery.mode = Mode.ACT

    assert follow_resumed_recovery(recovery) == IncidentState.RECOVERED
    assert recovery.incident.resumes == before.incident_id
    assert recovery.incident.signals == before.signals
    assert recovery.world.provider.accepted_calls("reboot").total() == 1
    assert unhealthy_row(recovery) is None
    sweep(recovery)
    assert status_of(recovery)["nodes"]["pools"][0]["states"] == {"IN_SERVICE": 3}


@pytest.mark.parametrize("end", ENDS)
def test_sweep_starts_no_recovery_of_an_unchanged_incident(end: Callable[[], RecoveryScenario]) -> None:
    recovery = end()

    resumed = []
    for _ in range(50):
        resumed.append(sweep(recovery))
        recovery.world.clock.advance(600)

    assert sum(resumed) == 0
    assert unhealthy_row(recovery) is not None


@pytest.mark.parametrize("end", [declined_recovery, unanswered_recovery])
def test_plan_approved_after_its_end_is_carried_out(end: Callable[[], RecoveryScenario]) -> None:
    recovery = end()
    plan = recovery.incident.plan
    answer_plan(recovery, by="role/Op (bo)")

    assert follow_resumed_recovery(recovery) == IncidentState.RECOVERED
    assert plan
    assert recovery.incident.plan
    assert recovery.incident.plan.decision_id == plan.decision_id
    assert "AwaitApproval: APPROVED" in recovery.visited


def test_approval_after_a_repair_is_refused() -> None:
    recovery = declined_recovery()
    first = recovery.incident_id
    recovery.mode = Mode.ACT
    follow_resumed_recovery(recovery)
    recovery.incident_id = first

    with pytest.raises(Refused):
        answer_plan(recovery)


def test_declined_plan_cannot_be_declined_again() -> None:
    recovery = declined_recovery()

    with pytest.raises(Refused):
        answer_plan(recovery, approves=False, by="role/Op (bo)")


def test_change_to_recommend_requests_approval() -> None:
    recovery = observed_recovery()
    recovery.mode = Mode.RECOMMEND
    recovery.meanwhile = lambda: answer_once(recovery)

    assert follow_resumed_recovery(recovery) == IncidentState.RECOVERED


def test_policy_that_allows_the_class_resumes_the_recovery() -> None:
    watched = QUICK.replace(modes=(ModeRule(mode=Mode.OBSERVE),))
    recovery = RecoveryScenario(with_job=False, policy=watched)
    recovery.report_fault()
    assert recovery.recover() == IncidentState.OBSERVED
    assert sweep(recovery) == 0
    recovery.policy = QUICK

    assert follow_resumed_recovery(recovery) == IncidentState.RECOVERED


def test_removed_opt_out_resumes_the_recovery() -> None:
    recovery = RecoveryScenario(with_job=False)
    recovery.report_fault()
    node = next(node for node in recovery.world.cluster.by_name.values() if node.name == name_of(recovery))
    recovery.world.cluster.set_node(node.name, labels={**node.labels, AUTOMATION_LABEL: "off"})
    assert recovery.recover() == IncidentState.STOOD_DOWN
    assert sweep(recovery) == 0
    recovery.world.cluster.set_node(node.name, labels=node.labels)

    assert follow_resumed_recovery(recovery) == IncidentState.RECOVERED


def test_recovery_stopped_by_the_mode_continues() -> None:
    recovery = RecoveryScenario(with_job=False)
    recovery.report_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    recovery.mode = Mode.OBSERVE
    assert recovery.recover() == IncidentState.STOOD_DOWN
    assert sweep(recovery) == 0
    recovery.mode = Mode.ACT
    recovery.world.clock.advance(timedelta(minutes=6).total_seconds())

    assert follow_resumed_recovery(recovery) == IncidentState.RECOVERED


def test_resumed_incident_has_no_answers_of_earlier_recovery() -> None:
    recovery = declined_recovery()
    row = recovery.world.ledger.get(incident_rows.incident_key(recovery.incident_id))
    assert row
    with_answers = recovery.incident.replace(
        failed_evictions={"research/a": "it has a budget"}, unmanaged_jobs={"PyTorchJob research/a": "MOVE"}
    )
    recovery.world.ledger.commit(Put(incident_rows.incident_row(with_answers, row.version)))
    recovery.mode = Mode.ACT

    assert sweep(recovery) == 1

    resumed = newest_incident(recovery)
    assert resumed.incident_id != recovery.incident_id
    assert (resumed.failed_evictions, resumed.unmanaged_jobs) == ({}, {})


@pytest.mark.parametrize("mode", [Mode.ACT, Mode.RECOMMEND])
def test_node_that_a_person_cordoned_is_not_resumed(mode: Mode) -> None:
    recovery = RecoveryScenario(mode=mode, with_job=False)
    recovery.report_fault()
    recovery.meanwhile = lambda: answer_once(recovery)
    recovery.world.cluster.set_node(name_of(recovery), is_cordoned=True)
    recovery.recover()

    resumed = []
    for _ in range(50):
        resumed.append(sweep(recovery))
        recovery.world.clock.advance(600)

    assert sum(resumed) == 0


# ---------------------------------------------------------------- when it is over


def uncordon(recovery: RecoveryScenario) -> None:
    request = set_manual_cordon.SetManualCordonRequest(
        instance_id=instance_id(1), by="role/Op (bo)", reason="mended", request_id="r-1", fingerprint="f-1"
    )
    set_manual_cordon.uncordon_as_person(request, recovery.world.context())


def test_recovery_signals_end_the_unhealthy_state() -> None:
    recovery = declined_recovery()
    recovery.set_fault_label(instance_id(1))
    recovery.ingest(
        a_fact(kind=FactKind.RECOVERED, fault_key="", observed_at=recovery.now, occurrence="w", envelope_id="well")
    )

    assert unhealthy_row(recovery) is None


def test_partial_recovery_keeps_the_unhealthy_state() -> None:
    recovery = RecoveryScenario(mode=Mode.OBSERVE, with_job=False)
    recovery.report_fault()
    recovery.ingest(a_fact(source="site:prober", fault_key="xid:79", envelope_id="other"))
    recovery.recover()
    cured: dict[str, Any] = {"kind": FactKind.RECOVERED, "fault_key": "", "occurrence": "w", "envelope_id": "well"}
    recovery.ingest(a_fact(observed_at=recovery.now, **cured))
    assert unhealthy_row(recovery) is not None
    recovery.ingest(a_fact(source="site:prober", observed_at=recovery.now, **cured))

    assert unhealthy_row(recovery) is None


def test_signal_without_a_repair_does_not_keep_node_unhealthy() -> None:
    recovery = RecoveryScenario(mode=Mode.OBSERVE, with_job=False)
    recovery.report_fault()
    recovery.ingest(a_fact(source="site:prober", fault_key="xid:999", envelope_id="unlisted"))
    recovery.recover()
    assert {signal.fault_key for signal in recovery.incident.signals} == {"hp:NvidiaErrorReboot", "xid:999"}

    recovery.ingest(
        a_fact(kind=FactKind.RECOVERED, fault_key="", observed_at=recovery.now, occurrence="w", envelope_id="well")
    )

    assert unhealthy_row(recovery) is None


def test_reboot_by_a_person_ends_the_unhealthy_state() -> None:
    recovery = declined_recovery()
    recovery.set_fault_label(instance_id(1))
    recovery.world.cluster.set_node(name_of(recovery), boot_id="another-boot")

    assert sweep(recovery) == 0
    assert unhealthy_row(recovery) is None


def test_removed_node_ends_the_unhealthy_state() -> None:
    recovery = declined_recovery()
    recovery.world.cluster.by_name.pop((CLUSTER, name_of(recovery)))
    del recovery.world.provider.by_id[instance_id(1)]

    assert sweep(recovery) == 0
    assert unhealthy_row(recovery) is None


def test_uncordon_by_a_person_ends_the_unhealthy_state() -> None:
    recovery = declined_recovery()
    sweep(recovery)
    uncordon(recovery)

    assert unhealthy_row(recovery) is None


def test_uncordon_ends_unhealthy_state_despite_concurrent_write() -> None:
    recovery = declined_recovery()
    sweep(recovery)
    ledger, key = recovery.world.ledger, incident_rows.unhealthy_key(recovery.incident.life)
    commit = ledger.commit
    stored_rows = [ledger.rows[key]]

    def write_first(*writes: Any, client_token: str = "") -> None:
        if stored_rows and any(isinstance(write, Put) and write.row.key == key for write in writes):
            commit(Put(stored_rows.pop()))
        commit(*writes, client_token=client_token)

    ledger.commit = write_first  # type: ignore[method-assign]

    uncordon(recovery)

    assert stored_rows == []
    assert unhealthy_row(recovery) is None


# ---------------------------------------------------------------- what a plan that asks says


def test_pending_approval_shows_its_deadline_and_default() -> None:
    recovery = RecoveryScenario(mode=Mode.RECOMMEND)
    recovery.report_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    approval = read_incidents.incident_summary(recovery.incident, recovery.now)["pendingApproval"]

    by = recovery.now + timedelta(seconds=QUICK.repair.approval_deadline_seconds)
    assert approval["answerBy"] == f"{by:%Y-%m-%dT%H:%M:%S}.000000Z"
    assert approval["ifUnanswered"].startswith(
        f"No answer by {by:%H:%M}Z: nothing is done; the node stays unhealthy and "
    )


def test_expired_approval_shows_its_default() -> None:
    recovery = RecoveryScenario(mode=Mode.RECOMMEND)
    recovery.report_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    by = recovery.now + timedelta(seconds=QUICK.repair.approval_deadline_seconds)

    text = read_incidents.incident_summary(recovery.incident, by)["pendingApproval"]["ifUnanswered"]

    assert text.startswith(f"No answer came by {by:%H:%M}Z: nothing was done; ")
    assert f"evenkeel incidents approve {recovery.incident_id}" in text


def test_pending_approval_names_the_jobs_of_the_node() -> None:
    recovery = RecoveryScenario(mode=Mode.RECOMMEND)
    recovery.report_fault()
    recovery.run_state("PlanRecovery", plan_recovery)
    [with_jobs] = read_incidents.with_jobs(recovery.world.ledger, [recovery.incident])
    lanes = read_incidents.job_lanes(with_jobs, read_incidents.load_affected_jobs(recovery.world.ledger, with_jobs))

    assert [(lane["jobId"], lane["phase"]) for lane in lanes] == [(recovery.job_id, "runs on the unhealthy node")]


def test_new_fault_after_an_uncordon_makes_the_node_unhealthy() -> None:
    recovery = declined_recovery()
    sweep(recovery)
    uncordon(recovery)
    recovery.world.clock.advance(3600)
    recovery.ingest(a_fact(source="site:prober", fault_key="xid:79", envelope_id="new", observed_at=recovery.now))
    recovery.incident_id, recovery.run = newest_incident(recovery).incident_id, 1
    recovery.mode = Mode.OBSERVE
    recovery.recover()
    sweep(recovery)

    assert unhealthy_row(recovery) is not None
