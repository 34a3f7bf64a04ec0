import contextlib
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.external.unmanaged_workloads import PodRecreation, UnmanagedPod
from evenkeel.domain.health.faults import Severity
from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.domain.health.health_policy import WatchPolicy
from evenkeel.domain.health.incidents import Incident, IncidentState
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedWorkload
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.nodes import FleetNode, KubernetesNode, NodeCondition, NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.guardrails import Register, RegisterEntry
from evenkeel.domain.recovery.repair_lease import NodeReturn, RepairLease
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.sources import SourceState
from evenkeel.domain.waiting import ConditionKind, Wait, WaitAnswer, WaitCondition, WaitState
from evenkeel.ports import ExecutionState, Put, Row, Table, Throttled, Unreachable, WorkflowName
from evenkeel.services.incidents import ingest_event, note_group_fact
from evenkeel.services.queries.fleet import read_sources
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.storage import fleet_counts, guardrail_registers, locks
from evenkeel.services.storage.guardrail_registers import RegisterName
from evenkeel.services.tables import fleet_rows, incident_rows, rows, subject_rows
from tests.fakes import a_provider_node
from tests.fakes.cluster import CLUSTER, TAINT_TEXT, a_node, instance_id
from tests.fakes.system import A_MOMENT
from tests.unit.api.seeds import PLAN_AWAITING_APPROVAL
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_recovery.recovery_scenario import a_fact


def an_incident(scenario: JobScenario, number: int = 1, **changes: Any) -> Incident:
    now = scenario.world.clock.now()
    record = a_provider_node(number)
    life = NodeLife(cluster=CLUSTER, instance_id=record.instance_id, launched_at=record.launched_at)
    facts: dict[str, Any] = {
        "incident_id": "inc-1",
        "life": life,
        "slot": f"{CLUSTER}/{record.logical_id}",
        "node_name": a_node(number).name,
        "pool": "p5-workers",
        "instance_type": "ml.p5.48xlarge",
        "state": IncidentState.OPEN,
        "severity": Severity.CRITICAL,
        "fault_key": "xid:79",
        "first_signal_at": now,
        "opened_at": now,
    }
    incident = Incident.model_validate({**facts, **changes})
    scenario.store_row(incident_rows.incident_row(incident, 0))
    if not incident.state.is_settled:
        scenario.store_row(incident_rows.open_row(life, incident.incident_id))
    return incident


def stored_nodes(scenario: JobScenario) -> dict[str, FleetNode]:
    listed = scenario.world.ledger.by_state(Table.FLEET, "NODE").rows
    return {row.doc["life"]["instanceId"]: rows.decode(row, FleetNode) for row in listed}


def sweep_later(scenario: JobScenario, seconds: float = 60) -> None:
    scenario.world.clock.advance(seconds)


# ---------------------------------------------------------------- nothing amiss


def test_sweep_of_a_healthy_fleet_corrects_nothing() -> None:
    scenario = JobScenario()
    scenario.running()
    sweep_later(scenario)

    result = scenario.sweep()

    assert (result.outcome, result.corrections, result.failed) == ("SWEPT", {}, ())
    assert scenario.world.ledger.get(fleet_rows.heartbeat_key("sweep_fleet"))


def test_second_sweep_writes_only_lock_heartbeat_counts_and_settings() -> None:
    scenario = JobScenario()
    scenario.running()
    sweep_later(scenario)
    scenario.sweep()
    before = scenario.world.ledger.contents()
    sweep_later(scenario)

    scenario.sweep()

    after = scenario.world.ledger.contents()
    assert {key for key in after if after[key] != before.get(key)} == {
        "FLEET HEARTBEAT#sweep_fleet META",
        "FLEET HYPERPOD#cluster META",
        "FLEET LOCK#sweep META",
        "FLEET OVERVIEW#fleet META",
    }


def test_one_sweeper_runs_at_a_time() -> None:
    scenario = JobScenario()
    assert locks.take_lock(scenario.world.ledger, "sweep", "op-other", seconds=60, now=scenario.world.clock.now())

    assert scenario.sweep().outcome == "LOCKED"


def test_failed_sweep_step_does_not_stop_the_other_steps() -> None:
    scenario = JobScenario()
    job = scenario.submit()
    scenario.world.workflows.start = raise_unreachable  # type: ignore[method-assign]
    scenario.run_scheduling_cycle()
    del scenario.world.workflows.start
    sweep_later(scenario)
    scenario.submit("key-waits", nodes=4)
    scenario.world.cycle_requests.request = raise_unreachable  # type: ignore[method-assign]

    outcome = scenario.sweep()

    assert {failure.partition(":")[0] for failure in outcome.failed} == {"request_cycle"}
    assert outcome.corrections == {"attempts": 1}
    assert scenario.world.workflows.names(WorkflowName.RUN_JOB) == [f"{job.job_id}-a1"]


def raise_unreachable(*_: Any, **__: Any) -> Any:
    raise Unreachable("no answer")


# ---------------------------------------------------------------- the fleet's memory


def test_every_node_is_recorded() -> None:
    scenario = JobScenario(size=2)
    scenario.running(nodes=1)

    scenario.sweep()

    nodes = stored_nodes(scenario)
    assert set(nodes) == {instance_id(1), instance_id(2)}
    first = nodes[instance_id(1)]
    assert (first.pool, first.slot, first.is_ready) == ("p5-workers", f"{CLUSTER}/seat-1", True)
    assert (first.accelerators, first.accelerators_in_use) == (8, 8)


def test_removed_node_is_marked_gone_and_expires() -> None:
    scenario = JobScenario(size=2)
    scenario.sweep()
    scenario.world.cluster.remove_node(a_node(2).name)
    del scenario.world.provider.by_id[instance_id(2)]

    scenario.sweep()

    assert [stored_nodes(scenario)[instance_id(number)].is_gone for number in (1, 2)] == [False, True]
    row = scenario.world.ledger.get(fleet_rows.node_key(CLUSTER, instance_id(2)))
    assert row
    assert row.expires_at


def test_sweep_records_time_of_change_only_if_nodes_changed() -> None:
    scenario = JobScenario(size=2)

    def changed_at() -> str:
        row = scenario.world.ledger.get(fleet_rows.nodes_changed_key())
        assert row
        return str(row.doc["at"])

    scenario.sweep()
    first = changed_at()
    scenario.world.clock.advance(60)
    scenario.sweep()
    unchanged = changed_at()
    scenario.world.clock.advance(60)
    scenario.world.cluster.remove_node(a_node(2).name)
    del scenario.world.provider.by_id[instance_id(2)]
    scenario.sweep()

    assert first == unchanged
    assert changed_at() > first


def test_time_of_change_is_recorded_if_later_row_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = JobScenario(size=3)
    scenario.sweep()
    ledger, key = scenario.world.ledger, fleet_rows.nodes_changed_key()
    before = ledger.get(key)
    assert before
    scenario.world.clock.advance(60)
    for number in (1, 2):
        scenario.world.cluster.remove_node(a_node(number).name)
        del scenario.world.provider.by_id[instance_id(number)]
    commit, node_writes = ledger.commit, iter(range(1_000))

    def fails_at_second_node(*writes: Any, **options: Any) -> None:
        is_node = any(isinstance(write, Put) and write.row.key.pk.startswith("NODE#") for write in writes)
        if is_node and next(node_writes) == 1:
            raise Throttled("too many writes")
        commit(*writes, **options)

    monkeypatch.setattr(ledger, "commit", fails_at_second_node)
    with contextlib.suppress(Throttled):
        scenario.sweep()

    after = ledger.get(key)
    assert after
    assert after.doc["at"] > before.doc["at"]


def test_no_node_is_marked_gone_while_hyperpod_fails() -> None:
    scenario = JobScenario(size=2)
    scenario.sweep()
    scenario.world.provider.nodes = raise_unreachable  # type: ignore[method-assign]

    scenario.sweep()

    assert not any(node.is_gone for node in stored_nodes(scenario).values())


def test_next_sweep_continues_a_long_list() -> None:
    scenario = JobScenario(size=250, policy=Policy(watch=WatchPolicy(sweep_page_budget=1)))
    scenario.sweep()
    for number in range(1, 251):
        scenario.world.cluster.set_node(a_node(number).name, zone="us-west-2b")

    for _ in range(4):
        scenario.sweep()

    assert {node.zone for node in stored_nodes(scenario).values()} == {"us-west-2b"}


# ---------------------------------------------------------------- incidents


def test_sweeper_starts_an_incident_without_a_workflow() -> None:
    scenario = JobScenario()
    an_incident(scenario)
    sweep_later(scenario)

    assert scenario.sweep().corrections == {"incidents": 1}
    assert scenario.sweep().corrections == {}
    assert scenario.world.workflows.names(WorkflowName.RECOVER_NODE) == ["inc-1-r1"]


def test_sweeper_leaves_a_fresh_incident_alone() -> None:
    scenario = JobScenario()
    an_incident(scenario)

    scenario.sweep()

    assert scenario.world.workflows.executions == {}


@pytest.mark.parametrize("ended", [ExecutionState.FAILED, ExecutionState.SUCCEEDED])
def test_open_incident_after_a_failed_run_gets_another_run(ended: ExecutionState) -> None:
    scenario = JobScenario()
    incident = an_incident(scenario, state=IncidentState.RECOVERING)
    scenario.world.workflows.start(WorkflowName.RECOVER_NODE, incident.execution_name, {})
    scenario.world.workflows.finish(WorkflowName.RECOVER_NODE, incident.execution_name, ended)
    sweep_later(scenario)

    scenario.sweep()
    scenario.sweep()

    assert scenario.world.workflows.names(WorkflowName.RECOVER_NODE) == ["inc-1-r1", "inc-1-r2"]
    assert scenario.world.workflows.executions[WorkflowName.RECOVER_NODE, "inc-1-r2"] == {
        "schemaVersion": 1,
        "incidentId": "inc-1",
        "run": 2,
    }


def test_crash_before_the_start_of_a_run_is_repaired() -> None:
    scenario = JobScenario()
    an_incident(scenario, state=IncidentState.RECOVERING, run=2)
    scenario.world.workflows.start(WorkflowName.RECOVER_NODE, "inc-1-r1", {})
    scenario.world.workflows.finish(WorkflowName.RECOVER_NODE, "inc-1-r1", ExecutionState.FAILED)
    sweep_later(scenario)

    scenario.sweep()

    assert scenario.world.workflows.names(WorkflowName.RECOVER_NODE) == ["inc-1-r1", "inc-1-r2"]


def test_failed_run_is_repeated_after_a_doubling_pause() -> None:
    scenario = JobScenario()
    failed_at = scenario.world.clock.now()
    incident = an_incident(scenario, state=IncidentState.RECOVERING, run=2, failed_at=failed_at)
    scenario.world.workflows.start(WorkflowName.RECOVER_NODE, incident.execution_name, {})
    scenario.world.workflows.finish(WorkflowName.RECOVER_NODE, incident.execution_name, ExecutionState.FAILED)
    pause = scenario.policy.watch.failed_run_backoff_seconds * 2

    scenario.world.clock.advance(pause - 1)
    scenario.sweep()
    early = scenario.world.workflows.names(WorkflowName.RECOVER_NODE)
    scenario.world.clock.advance(1)
    scenario.sweep()

    assert early == ["inc-1-r2"]
    assert scenario.world.workflows.names(WorkflowName.RECOVER_NODE) == ["inc-1-r2", "inc-1-r3"]
    row = scenario.world.ledger.get(incident_rows.incident_key("inc-1"))
    assert row
    assert rows.decode(row, Incident).failed_at is None


def test_repeatedly_failed_recovery_alerts_a_person() -> None:
    scenario = JobScenario()
    incident = an_incident(scenario, run=5)
    scenario.world.workflows.start(WorkflowName.RECOVER_NODE, incident.execution_name, {})
    scenario.world.workflows.finish(WorkflowName.RECOVER_NODE, incident.execution_name, ExecutionState.FAILED)
    sweep_later(scenario)

    scenario.sweep()

    assert scenario.world.workflows.names(WorkflowName.RECOVER_NODE) == ["inc-1-r5"]
    assert [line.level for line in scenario.world.telemetry.lines] == ["ERROR"]


def test_settled_incident_is_left_alone() -> None:
    scenario = JobScenario()
    an_incident(scenario, state=IncidentState.RECOVERED)
    sweep_later(scenario)

    assert scenario.sweep().corrections == {}


def test_incident_of_a_vanished_node_is_closed() -> None:
    scenario = JobScenario()
    ghost = an_incident(scenario, 1, incident_id="inc-1", state=IncidentState.RECOVERED)
    scenario.store_row(incident_rows.open_row(ghost.life, "inc-1"))
    alive = an_incident(scenario, 2, incident_id="inc-2")

    outcome = scenario.sweep()

    assert outcome.corrections["stale_pointers"] == 1
    assert scenario.world.ledger.get(incident_rows.open_key(ghost.life)) is None
    assert scenario.world.ledger.get(incident_rows.open_key(alive.life))


# ---------------------------------------------------------------- attempts


def test_unfinished_stop_of_an_attempt_is_repeated() -> None:
    scenario = JobScenario()
    job = scenario.running(grace_seconds=44)
    scenario.cancel(job.job_id)
    sweep_later(scenario)

    scenario.sweep()

    assert ("stop", f"{job.job_id}-a1", 44) in scenario.world.cluster.calls
    assert scenario.job(job.job_id).state is JobState.STOPPING  # its workflow settles it


def test_attempt_without_its_workflow_is_settled_once_it_ended() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    sweep_later(scenario)
    running = scenario.sweep()
    scenario.world.cluster.finish_pods(job.job_id, 1)

    ended = scenario.sweep()

    assert (running.corrections, ended.corrections) == ({}, {"attempts": 1})
    assert (scenario.job(job.job_id).state, scenario.usage()) == (JobState.SUCCEEDED, 0)


def running_without_workflow(scenario: JobScenario) -> str:
    """Return the id of a running job whose workflow has failed."""
    job = scenario.running(nodes=1)
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    return job.job_id


@pytest.mark.parametrize("is_running", [True, False])
def test_node_that_returns_before_settlement_ends_no_attempt(
    monkeypatch: pytest.MonkeyPatch, *, is_running: bool
) -> None:
    scenario = JobScenario()
    job = scenario.running(nodes=1) if is_running else scenario.started(nodes=1)
    if not is_running:
        scenario.launch(job.job_id)
    state = scenario.attempt(job.job_id).state
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    (name,) = scenario.attempt(job.job_id).node_names
    scenario.world.cluster.lose_node(name)
    sweep_later(scenario, scenario.policy.jobs.lost_node_seconds + 61)
    workload = scenario.world.cluster.workload

    def return_node_first(attempt: Attempt) -> ObservedWorkload:
        scenario.world.cluster.ready_node(name)
        return workload(attempt)

    monkeypatch.setattr(scenario.world.cluster, "workload", return_node_first)

    swept = scenario.sweep()

    assert "attempts" not in swept.corrections
    assert (scenario.attempt(job.job_id).state, scenario.job(job.job_id).application_failures) == (state, 0)


def test_sweep_stops_attempt_without_workflow_past_run_deadline() -> None:
    scenario = JobScenario()
    job_id = running_without_workflow(scenario)
    sweep_later(scenario, scenario.policy.jobs.run_deadline_seconds)
    assert scenario.sweep().corrections.get("attempts") is None
    sweep_later(scenario)

    corrections = [scenario.sweep().corrections["attempts"], scenario.sweep().corrections["attempts"]]

    assert corrections == [1, 1]
    assert (scenario.job(job_id).state, scenario.usage()) == (JobState.FAILED, 0)
    assert scenario.attempt(job_id).reason == "The attempt ran past its deadline."


def test_sweep_stops_attempt_without_workflow_whose_pods_never_start() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.launch(job.job_id)
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    sweep_later(scenario, scenario.policy.jobs.running_deadline_seconds)
    assert scenario.sweep().corrections.get("attempts") is None
    sweep_later(scenario)

    scenario.sweep()
    scenario.sweep()

    assert (scenario.attempt(job.job_id).state, scenario.job(job.job_id).state) == (
        AttemptState.NEVER_RAN,
        JobState.PENDING,
    )
    assert scenario.usage() == 0


@pytest.mark.parametrize("is_marked", [True, False])
def test_slow_sweep_leaves_attempt_that_began_to_run(monkeypatch: pytest.MonkeyPatch, *, is_marked: bool) -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.launch(job.job_id)
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    sweep_later(scenario, scenario.policy.jobs.running_deadline_seconds + 60)
    state = scenario.world.workflows.state

    def start_pods_first(machine: WorkflowName, name: str) -> ExecutionState:
        scenario.world.cluster.run_pods(job.job_id, 1)
        if is_marked:
            scenario.mark_running(job.job_id)  # by a sweep that overlaps
        return state(machine, name)

    monkeypatch.setattr(scenario.world.workflows, "state", start_pods_first)

    swept = scenario.sweep()

    assert "attempts" not in swept.corrections
    assert scenario.job(job.job_id).stop_request is None
    assert scenario.sweep().failed == ()
    assert (scenario.attempt(job.job_id).state, scenario.job(job.job_id).state) == (
        AttemptState.RUNNING,
        JobState.RUNNING,
    )


def test_sweep_settles_attempt_without_workflow_past_stop_deadline() -> None:
    scenario = JobScenario()
    job_id = running_without_workflow(scenario)
    scenario.cancel(job_id)
    (name,) = scenario.attempt(job_id).node_names
    scenario.world.cluster.lose_node(name)
    scenario.stop(job_id)
    scenario.world.cluster.ready_node(name)  # its pod stays in Terminating
    sweep_later(scenario)
    scenario.sweep()
    assert scenario.job(job_id).state is JobState.STOPPING
    sweep_later(scenario, scenario.policy.jobs.stop_deadline_seconds)

    scenario.sweep()

    assert (scenario.job(job_id).state, scenario.usage()) == (JobState.CANCELLED, 0)


def test_attempt_without_its_workflow_is_marked_running() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.launch(job.job_id)
    scenario.world.cluster.run_pods(job.job_id, 1)
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    sweep_later(scenario)

    scenario.sweep()

    assert scenario.job(job.job_id).state is JobState.RUNNING


def test_job_returns_to_queue_if_its_workflow_never_launched() -> None:
    scenario = JobScenario()
    job = scenario.started()
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    sweep_later(scenario)

    scenario.sweep()

    assert (scenario.job(job.job_id).state, scenario.attempt(job.job_id).state) == (
        JobState.PENDING,
        AttemptState.NEVER_RAN,
    )
    assert (scenario.usage(), scenario.charges()) == (0, [])


def test_pods_of_a_settled_attempt_are_deleted() -> None:
    scenario = JobScenario()
    job = scenario.running()
    stop = scenario.world.cluster.stop
    scenario.world.cluster.stop = lambda *_: None  # type: ignore[method-assign]  # the settlement's last effect is lost
    scenario.settle(job.job_id, ended={"facts": {"state": "FAILED", "reason": "It failed."}})
    scenario.world.cluster.stop = stop  # type: ignore[method-assign]
    sweep_later(scenario)

    assert scenario.sweep().corrections == {"workloads": 1}
    assert scenario.world.cluster.jobs == {CLUSTER: {}}


def test_ended_pods_are_kept_for_their_logs_and_then_deleted() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.cluster.finish_pods(job.job_id, 1)
    scenario.settle(job.job_id)
    sweep_later(scenario, 3600)
    scenario.sweep()
    kept = dict(scenario.world.cluster.jobs[CLUSTER])
    sweep_later(scenario, 86_400)

    scenario.sweep()

    assert (len(kept), scenario.world.cluster.jobs[CLUSTER]) == (1, {})


# ---------------------------------------------------------------- waits


def a_due_wait(scenario: JobScenario) -> str:
    job = scenario.running()
    now = scenario.world.clock.now()
    condition = WaitCondition(kind=ConditionKind.ATTEMPT_RUNNING, facts={"attempt": 1})
    wait = Wait(
        subject=job.job_id,
        name="attempt-1-running",
        generation=1,
        token="token",
        opened_at=now,
        deadline_at=now.replace(hour=23),
        condition=condition,
    )
    scenario.store_row(subject_rows.wait_row(wait, 0))
    return job.job_id


def requested_answers(scenario: JobScenario) -> int:
    return len(scenario.world.wait_answers.requests)


def test_sweep_answers_a_due_wait_if_no_watcher_runs() -> None:
    scenario = JobScenario()
    a_due_wait(scenario)

    assert (scenario.sweep().corrections, requested_answers(scenario)) == ({"waits": 1}, 1)


def test_sweep_leaves_a_newly_due_wait_to_the_watcher() -> None:
    scenario = JobScenario()
    a_due_wait(scenario)
    assert locks.take_lock(scenario.world.ledger, "watch", "op-watch", seconds=600, now=scenario.world.clock.now())

    first = (scenario.sweep().corrections, requested_answers(scenario))
    sweep_later(scenario, 5)
    second = (scenario.sweep().corrections, requested_answers(scenario))
    sweep_later(scenario, 5)
    third = (scenario.sweep().corrections, requested_answers(scenario))

    assert [first, second, third] == [({}, 0), ({}, 0), ({"waits": 1}, 1)]


def test_recorded_answer_is_delivered_by_the_sweep() -> None:
    scenario = JobScenario()
    job_id = a_due_wait(scenario)
    row = scenario.world.ledger.get(subject_rows.wait_key(job_id, "attempt-1-running"))
    assert row
    answer = WaitAnswer(outcome="RUNNING", reason="All pods run.")
    scenario.store_row(
        subject_rows.wait_row(rows.decode(row, Wait).replace(state=WaitState.ANSWERED, answer=answer), 0)
    )

    scenario.sweep()

    assert [request.answer["outcome"] for request in scenario.world.wait_answers.requests] == ["RUNNING"]


# ---------------------------------------------------------------- arrivals


def add_new_node(scenario: JobScenario, number: int = 9, **changes: Any) -> str:
    """Add a new node with the taint of a node that awaits validation."""
    node = a_node(number, is_awaiting_validation=True, taints=(TAINT_TEXT,), **changes)
    scenario.world.cluster.add_node(node)
    record = a_provider_node(number)
    scenario.world.provider.by_id[record.instance_id] = record
    return node.name


def is_tainted(scenario: JobScenario, name: str) -> bool:
    node = scenario.world.cluster.node(CLUSTER, name)
    assert node
    return node.is_awaiting_validation


def test_healthy_new_node_is_released_and_a_cycle_requested() -> None:
    scenario = JobScenario()
    name = add_new_node(scenario)

    scenario.sweep()

    assert not is_tainted(scenario, name)
    assert "nodes arrived" in scenario.world.cycle_requests.reasons
    life = stored_nodes(scenario)[instance_id(9)].life
    (row,) = scenario.world.ledger.by_state(Table.INCIDENTS, f"DEC#{life.key}").rows
    assert (row.doc["kind"], row.doc["action"]) == ("VALIDATION", "RELEASE")


def test_observe_mode_records_release_once_and_keeps_taint() -> None:
    scenario = JobScenario(mode=Mode.OBSERVE)
    name = add_new_node(scenario)

    scenario.sweep()
    scenario.sweep()

    assert is_tainted(scenario, name)
    assert scenario.world.cluster.calls == []
    life = stored_nodes(scenario)[instance_id(9)].life
    assert len(scenario.world.ledger.by_state(Table.INCIDENTS, f"DEC#{life.key}").rows) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"is_ready": False},
        {"accelerators": 7},
        {"labels": {"sagemaker.amazonaws.com/node-health-status": "UnschedulablePendingReplacement"}},
        {"is_cordoned": True},
    ],
)
def test_faulty_new_node_stays_tainted(changes: dict[str, Any]) -> None:
    scenario = JobScenario()
    name = add_new_node(scenario, **changes)

    scenario.sweep()

    assert is_tainted(scenario, name)


def test_replacement_node_is_validated_by_its_incident() -> None:
    scenario = JobScenario()
    an_incident(scenario, 1, slot=f"{CLUSTER}/seat-9")
    name = add_new_node(scenario)

    scenario.sweep()

    assert is_tainted(scenario, name)


def test_new_node_waits_for_incident_if_slots_are_unknown() -> None:
    scenario = JobScenario()
    incident = an_incident(scenario, 1)
    scenario.store_row(incident_rows.incident_row(incident.replace(slot=incident.life.key), 0))
    name = add_new_node(scenario)

    scenario.sweep()

    assert is_tainted(scenario, name)


def test_replacement_stays_tainted_if_list_of_incidents_is_cut() -> None:
    scenario = JobScenario(policy=Policy(watch=WatchPolicy(sweep_page_budget=1)))
    an_incident(scenario, 1, slot=f"{CLUSTER}/seat-9")
    name = add_new_node(scenario)

    scenario.sweep()
    scenario.sweep()

    assert is_tainted(scenario, name)


def test_replacement_stays_tainted_if_its_incident_changes_during_sweep() -> None:
    scenario = JobScenario()
    incident = an_incident(scenario, 1, slot=f"{CLUSTER}/seat-9", state=IncidentState.BLOCKED)
    name = add_new_node(scenario)
    by_state = scenario.world.ledger.by_state

    def end_block_after_read(table: Table, state: str, **how: Any) -> Any:
        page = by_state(table, state, **how)
        if state == f"INC#{IncidentState.RECOVERING}":
            scenario.store_row(incident_rows.incident_row(incident.replace(state=IncidentState.RECOVERING), 0))
        return page

    scenario.world.ledger.by_state = end_block_after_read  # type: ignore[method-assign]

    scenario.sweep()

    assert is_tainted(scenario, name)


# ---------------------------------------------------------------- signals, figures


def test_sweep_opens_an_incident_that_the_watch_missed() -> None:
    scenario = JobScenario()
    scenario.sweep()
    scenario.world.cluster.lose_node(a_node(1).name)
    sweep_later(scenario, 301)

    scenario.sweep()

    assert len(scenario.world.workflows.names(WorkflowName.RECOVER_NODE)) == 1


def test_sweep_emits_current_counts_as_metrics() -> None:
    scenario = JobScenario(size=2)
    scenario.running(nodes=1)
    scenario.submit("later", nodes=2)
    scenario.world.cluster.lose_node(a_node(2).name)

    scenario.sweep()

    totals = scenario.world.telemetry.totals
    assert (totals["JobsPending"], totals["JobsRunning"]) == (1, 1)
    assert (totals["NodesReady"], totals["NodesNotReady"], totals["NodesCordoned"]) == (1, 1, 0)
    assert totals["AcceleratorsInDemand"] == 8 + 2 * 8


def test_frequent_sweeps_count_once_per_minute() -> None:
    scenario = JobScenario()
    for _ in range(3):
        scenario.sweep()
        sweep_later(scenario, 1)
    quickly = [metric.name for metric in scenario.world.telemetry.metrics].count("NodesReady")
    sweep_later(scenario, 60)

    scenario.sweep()

    assert quickly == 1
    assert [metric.name for metric in scenario.world.telemetry.metrics].count("NodesReady") == 2


def test_sweep_requests_a_cycle_after_lost_requests() -> None:
    scenario = JobScenario()
    scenario.submit()
    scenario.world.cycle_requests.reasons.clear()

    scenario.sweep()

    assert scenario.world.cycle_requests.reasons == ["sweep"]


# ---------------------------------------------------------------- signals that no watch brings


@pytest.mark.parametrize("is_drill", [False, True])
def test_expiring_reservation_opens_one_incident_per_node(*, is_drill: bool) -> None:
    scenario = JobScenario()
    now = scenario.world.clock.now()
    ends_notice_at = now + timedelta(minutes=40)
    ending = GroupFact(
        kind=GroupFactKind.RESERVATION_EXPIRING,
        source="ec2.notice",
        code="cr-06b1d8f3a7c24e905",
        deadline_at=ends_notice_at,
        observed_at=now,
        envelope_id="one",
        is_drill=is_drill,
    )
    note_group_fact.run(ending, scenario.world.context())
    held = {"karpenter.k8s.aws/capacity-reservation-id": "cr-06b1d8f3a7c24e905"}
    scenario.world.cluster.set_node(a_node(2).name, labels=held)

    scenario.sweep()
    scenario.sweep()

    incident_rows = scenario.world.ledger.by_state(Table.INCIDENTS, "INC#OPEN").rows
    incidents = [rows.decode(row, Incident) for row in incident_rows]
    assert [(incident.life.instance_id, incident.deadline_at) for incident in incidents] == [
        (instance_id(2), ends_notice_at)
    ]
    assert [(incident.evidence_count, incident.is_drill) for incident in incidents] == [(1, is_drill)]


def test_stale_node_condition_is_counted_but_opens_no_incident() -> None:
    scenario = JobScenario()
    since = scenario.world.clock.now() - timedelta(days=3)
    stuck = NodeCondition(type="AcceleratedHardwareReady", status="False", reason="NvidiaXID79Error", changed_at=since)
    scenario.world.cluster.set_node(a_node(2).name, conditions=(stuck,))

    scenario.sweep()

    assert scenario.world.ledger.by_state(Table.INCIDENTS, "INC#OPEN").rows == ()
    assert scenario.world.telemetry.totals["ConditionsStale"] == 1


def test_lemon_is_counted_until_its_window_ends() -> None:
    scenario = JobScenario(policy=Policy(repair=RepairPolicy(lemon_returns=1, flap_window_hours=1)))
    scenario.sweep()
    node = next(
        rows.decode(row, FleetNode) for key, row in scenario.world.ledger.rows.items() if key.pk.startswith("NODE#")
    )
    returned = NodeReturn(life_key=node.life.key, at=scenario.world.clock.now())
    lease = RepairLease(slot=node.slot, incident_id="", taken_at=returned.at, returns=(returned,), lemon=node.life.key)
    scenario.store_row(fleet_rows.lease_row(lease, 0))
    key = fleet_rows.node_key(node.life.cluster, node.life.instance_id)

    lemons = []
    for _ in range(2):
        scenario.sweep()
        row = scenario.world.ledger.get(key)
        assert row
        lemons.append(rows.decode(row, FleetNode).is_lemon)
        scenario.world.clock.advance(3700)

    row = scenario.world.ledger.get(fleet_rows.lease_key(node.slot))
    assert row
    assert (lemons, rows.decode(row, RepairLease).lemon) == ([True, False], "")


# ---------------------------------------------------------------- work that is not ours


def test_unmanaged_workloads_are_recorded_while_they_run() -> None:
    scenario = JobScenario(size=2)
    pod = UnmanagedPod(
        namespace="research",
        name="llama-0",
        uid="u",
        node_name=f"hyperpod-{instance_id(1)}",
        accelerators=8,
        kind="PyTorchJob",
        workload="llama",
        recreation=PodRecreation.BY_OWNER,
    )
    scenario.world.cluster.unmanaged.append(pod)
    scenario.sweep()

    node = scenario.world.ledger.get(fleet_rows.node_key(CLUSTER, instance_id(1)))
    (listed,) = read_jobs.list_unmanaged(scenario.world.context())["items"]
    assert node
    assert (node.doc["unmanagedWorkloads"], node.doc["acceleratorsInUse"]) == (["PyTorchJob research/llama"], 8)
    assert (listed["name"], listed["accelerators"]) == ("llama", 8)
    commits = len(scenario.world.ledger.commits)
    scenario.sweep()
    keys = [key for commit in scenario.world.ledger.commits[commits:] for key in map(str, commit)]
    assert not [key for key in keys if "UNMANAGED#" in key]

    scenario.world.cluster.unmanaged.clear()
    scenario.sweep()

    assert read_jobs.list_unmanaged(scenario.world.context())["items"] == []


# ---------------------------------------------------------------- what was said too early


def ingest_notice_before_listing(scenario: JobScenario) -> None:
    """Ingest a notice about a node that no sweep has recorded yet."""
    world = scenario.world
    fact = a_fact(
        1, source="ec2.notice", fault_key="ec2:spot_interruption", code="terminate", observed_at=world.clock.now()
    )
    result = ingest_event.ingest_fact(fact, world.context(drills_may_act=False))
    assert result.outcome == "OTHER_FLEET"


def test_notice_about_an_unseen_instance_is_ingested_after_a_sweep() -> None:
    scenario = JobScenario()
    ingest_notice_before_listing(scenario)
    assert not scenario.world.workflows.names(WorkflowName.RECOVER_NODE)

    outcome = scenario.sweep()

    assert outcome.corrections["early"] == 1
    assert len(scenario.world.workflows.names(WorkflowName.RECOVER_NODE)) == 1
    assert scenario.world.ledger.get(incident_rows.notice_before_listing_key(instance_id(1))) is None
    assert "early" not in scenario.sweep().corrections


def test_notice_is_kept_while_its_node_cannot_be_recorded() -> None:
    scenario = JobScenario()
    ingest_notice_before_listing(scenario)
    commit = scenario.world.ledger.commit

    def throttled(*writes: Any, client_token: str = "") -> None:
        if any(getattr(write, "row", write).key == fleet_rows.node_key(CLUSTER, instance_id(1)) for write in writes):
            raise Unreachable("commit")
        commit(*writes, client_token=client_token)

    scenario.world.ledger.commit = throttled  # type: ignore[method-assign]
    scenario.sweep()
    scenario.world.ledger.commit = commit  # type: ignore[method-assign]

    assert scenario.sweep().corrections["early"] == 1


def test_notice_is_ingested_for_a_node_that_has_since_gone() -> None:
    scenario = JobScenario()
    ingest_notice_before_listing(scenario)
    by_state = scenario.world.ledger.by_state

    def throttled(table: Table, state: str, **how: Any) -> Any:
        if state == "EARLY":
            raise Unreachable("by_state")
        return by_state(table, state, **how)

    scenario.world.ledger.by_state = throttled  # type: ignore[method-assign]
    scenario.sweep()
    scenario.world.ledger.by_state = by_state  # type: ignore[method-assign]
    scenario.world.cluster.remove_node(a_node(1).name)
    del scenario.world.provider.by_id[instance_id(1)]

    assert stored_nodes(scenario)[instance_id(1)].is_gone is False
    assert scenario.sweep().corrections["early"] == 1
    assert scenario.world.ledger.get(incident_rows.notice_before_listing_key(instance_id(1))) is None


def test_unreadable_notice_does_not_stop_other_notices() -> None:
    scenario = JobScenario()
    ingest_notice_before_listing(scenario)
    key = incident_rows.notice_before_listing_key(instance_id(0))
    fact = {"kind": "VALUE_OF_A_NEWER_RELEASE"}
    unreadable_row = Row(key, {"instanceId": instance_id(2), "facts": [fact]}, 0, ("EARLY", "0"))
    scenario.store_row(unreadable_row)

    outcome = scenario.sweep()

    assert outcome.corrections["early"] == 1
    assert [failure.partition(":")[0] for failure in outcome.failed] == ["early"]
    assert scenario.world.ledger.get(key) is not None


# ---------------------------------------------------------------- one bad item of an incident step


def test_unreadable_register_does_not_stop_other_register() -> None:
    scenario = JobScenario()
    now = scenario.world.clock.now()
    entry = RegisterEntry(life_key=an_incident(scenario).life.key, pool="p5-workers", incident_id="inc-1", since=now)
    scenario.store_row(
        Row(fleet_rows.register_key(RegisterName.REPAIRS), {"entries": "VALUE_OF_A_NEWER_RELEASE"}),
        guardrail_registers.addition_put(RegisterName.CORDONS, Register(), 0, entry, is_request=False).row,
    )
    sweep_later(scenario)

    outcome = scenario.sweep()

    assert [failure.partition(":")[0] for failure in outcome.failed] == ["registers"]
    register, _ = guardrail_registers.load_register(RegisterName.CORDONS, scenario.world.context())
    assert register.entries == ()


def test_failed_check_of_drill_does_not_stop_other_rollbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = JobScenario()
    facts = {"plan": PLAN_AWAITING_APPROVAL.replace(outcome="ACT"), "affected_jobs": [{"jobId": "job-1", "attempt": 1}]}
    drill = an_incident(scenario, 1, incident_id="inc-1", is_drill=True, **facts)
    an_incident(scenario, 2, incident_id="inc-2", **facts)
    checked_ids: list[str] = []

    def note_check(incident: Incident, _context: Any) -> int:
        checked_ids.append(incident.incident_id)
        return 0

    monkeypatch.setattr("evenkeel.services.resume.plan_resume.roll_back_jobs", note_check)
    get = scenario.world.ledger.get

    def refuse_pointer_of_drill(key: Any) -> Any:
        if key == incident_rows.open_key(drill.life):
            raise Unreachable("no answer")
        return get(key)

    scenario.world.ledger.get = refuse_pointer_of_drill  # type: ignore[method-assign]

    outcome = scenario.sweep()

    assert checked_ids == ["inc-2"]
    assert [failure.partition(":")[0] for failure in outcome.failed] == ["rollbacks"]


# ---------------------------------------------------------------- a cluster or HyperPod gives no answer

BURST = "burst-eks"


def a_burst_node(number: int = 9, **changes: Any) -> KubernetesNode:
    """Return a node of a second cluster without HyperPod."""
    facts = {"cluster": BURST, "name": f"burst-{number}", "hyperpod_cluster_id": "", "created_at": A_MOMENT}
    return a_node(number, **{**facts, **changes})


def states_of_sources(scenario: JobScenario, *clusters: str, after: float = 0) -> dict[str, SourceState]:
    now = scenario.world.clock.now() + timedelta(seconds=after)
    names = clusters or (CLUSTER,)
    ages = read_sources.read_source_ages(scenario.world.context(clusters=names, now=now))
    return {age.source.name: age.state for age in ages}


def test_sweep_reports_every_source_it_read() -> None:
    scenario = JobScenario()

    scenario.sweep()

    source_states = states_of_sources(scenario)
    read = {name for name, state in source_states.items() if state is SourceState.CURRENT}
    assert read == set(source_states) - {f"kubernetes-watch/{CLUSTER}", "scheduling-cycle"}


@pytest.mark.parametrize("is_readable", [True, False])
def test_first_sweep_counts_its_own_answers_as_current(*, is_readable: bool) -> None:
    scenario = JobScenario()
    scenario.world.cluster.unreadable_lists[CLUSTER] = set() if is_readable else {"*"}

    scenario.sweep()

    counts = fleet_counts.load_counts(scenario.world.ledger)
    assert counts is not None
    parts = [counts["gpus"], counts["jobs"], *counts["nodes"]["pools"]]
    assert {part["isStale"] for part in parts} == {not is_readable}
    assert {part["lastSeenAt"] for part in parts} == {None}
    has_number = counts["gpus"]["total"] is not None
    assert has_number == is_readable


@pytest.mark.parametrize("lists", ["*", "nodes", "workloads", "resources_in_use", "pods"])
def test_nodes_of_an_unreadable_cluster_are_not_gone(lists: str) -> None:
    scenario = JobScenario()
    scenario.sweep()
    before = stored_nodes(scenario)
    scenario.world.cluster.unreadable_lists[CLUSTER] = {lists}
    sweep_later(scenario, 600)

    scenario.sweep()

    assert stored_nodes(scenario) == before
    assert states_of_sources(scenario)[f"kubernetes-list/{CLUSTER}"] is SourceState.STALE


@pytest.mark.parametrize("blind", [CLUSTER, BURST])
def test_readable_cluster_is_swept_beside_an_unreadable_one(blind: str) -> None:
    scenario = JobScenario()
    scenario.world.cluster.add_node(a_burst_node())
    scenario.sweep(CLUSTER, BURST)
    scenario.world.cluster.unreadable_lists[blind] = {"*"}
    readable = BURST if blind == CLUSTER else CLUSTER
    name = "burst-9" if blind == CLUSTER else scenario.world.cluster.nodes(CLUSTER)[0].name
    scenario.world.cluster.set_node(name, cluster=readable, is_cordoned=True)
    sweep_later(scenario, 600)

    outcome = scenario.sweep(CLUSTER, BURST)

    changed = [node for node in stored_nodes(scenario).values() if node.is_cordoned]
    assert [node.node_name for node in changed] == [name]
    assert {failure.split(":")[0] for failure in outcome.failed} == {f"kubernetes-list/{blind}", f"kueue/{blind}"}
    source_states = states_of_sources(scenario, CLUSTER, BURST)
    assert source_states[f"kubernetes-list/{blind}"] is SourceState.STALE
    assert source_states[f"kubernetes-list/{readable}"] is SourceState.CURRENT


def test_attempt_on_an_unreadable_cluster_is_left_alone() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.workflows.finish(WorkflowName.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    scenario.world.cluster.unreadable_lists[CLUSTER] = {"*"}
    sweep_later(scenario, 600)
    calls = len(scenario.world.cluster.calls)

    scenario.sweep()

    assert scenario.attempt(job.job_id).state is AttemptState.RUNNING
    assert scenario.world.cluster.calls[calls:] == []


def test_cordon_on_an_unreadable_cluster_keeps_its_guardrail_entry() -> None:
    scenario = JobScenario()
    incident = an_incident(scenario, state=IncidentState.RECOVERED)
    entry = RegisterEntry(
        incident_id=incident.incident_id, life_key=incident.life.key, pool="p5-workers", since=A_MOMENT
    )
    scenario.store_row(
        guardrail_registers.addition_put(RegisterName.CORDONS, Register(), 0, entry, is_request=False).row
    )
    scenario.world.cluster.unreadable_lists[CLUSTER] = {"*"}
    sweep_later(scenario, 600)

    scenario.sweep()

    register, _ = guardrail_registers.load_register(RegisterName.CORDONS, scenario.world.context())
    assert [entry.incident_id for entry in register.entries] == ["inc-1"]


def test_failing_hyperpod_does_not_stop_the_sweep() -> None:
    scenario = JobScenario()
    scenario.world.cluster.add_node(a_burst_node())
    scenario.sweep(CLUSTER, BURST)
    before = stored_nodes(scenario)
    scenario.world.provider.nodes = raise_throttled  # type: ignore[method-assign]
    scenario.world.cluster.set_node("burst-9", cluster=BURST, is_cordoned=True)
    sweep_later(scenario, 600)

    outcome = scenario.sweep(CLUSTER, BURST)

    after = stored_nodes(scenario)
    assert {name for name in after if after[name] != before[name]} == {instance_id(9)}
    assert [failure.split(":")[0] for failure in outcome.failed] == ["hyperpod"]
    source_states = states_of_sources(scenario, CLUSTER, BURST)
    assert (source_states["hyperpod"], source_states[f"kubernetes-list/{CLUSTER}"]) == (
        SourceState.STALE,
        SourceState.CURRENT,
    )


def raise_throttled(*_: Any, **__: Any) -> Any:
    raise Throttled("Rate exceeded")


def test_nodes_of_an_unreadable_fleet_are_not_counted() -> None:
    scenario = JobScenario()
    scenario.world.cluster.unreadable_lists[CLUSTER] = {"*"}

    scenario.sweep()

    assert not [metric for metric in scenario.world.telemetry.metrics if metric.name.startswith("Nodes")]


def test_pool_sizes_of_an_unreadable_fleet_are_kept() -> None:
    scenario = JobScenario()
    scenario.sweep()
    before = scenario.world.ledger.get(fleet_rows.summary_key())
    scenario.world.cluster.unreadable_lists[CLUSTER] = {"*"}
    sweep_later(scenario)

    scenario.sweep()

    assert before is not None
    assert scenario.world.ledger.get(before.key) == before


def test_unreadable_kueue_is_reported_separately() -> None:
    scenario = JobScenario()
    scenario.sweep()
    scenario.world.cluster.unreadable_lists[CLUSTER] = {"kueue_namespaces"}
    sweep_later(scenario, 660)

    outcome = scenario.sweep()

    source_states = states_of_sources(scenario)
    assert [failure.split(":")[0] for failure in outcome.failed] == [f"kueue/{CLUSTER}"]
    assert {name for name, state in source_states.items() if state is SourceState.STALE} == {f"kueue/{CLUSTER}"}


def test_failed_item_does_not_stop_the_sweep_step() -> None:
    scenario = JobScenario()
    first, second = scenario.started(nodes=1), scenario.started(nodes=1)
    for job in (first, second):
        scenario.world.workflows.executions.pop((WorkflowName.RUN_JOB, f"{job.job_id}-a1"))
        scenario.world.workflows.states.pop((WorkflowName.RUN_JOB, f"{job.job_id}-a1"))
    sweep_later(scenario, 600)
    state = scenario.world.workflows.state

    def refuse_first(machine: WorkflowName, name: str) -> ExecutionState:
        if name.startswith(first.job_id):
            raise Unreachable("no answer")
        return state(machine, name)

    scenario.world.workflows.state = refuse_first  # type: ignore[method-assign]

    outcome = scenario.sweep()

    assert [failure.split(":")[0] for failure in outcome.failed] == ["attempts"]
    assert f"{second.job_id}-a1" in scenario.world.workflows.names(WorkflowName.RUN_JOB)


def test_sweep_counts_stale_sources_by_kind() -> None:
    scenario = JobScenario()
    scenario.sweep()
    scenario.world.cluster.unreadable_lists[CLUSTER] = {"*"}
    sweep_later(scenario, 600)
    scenario.world.telemetry.metrics.clear()

    scenario.sweep()

    stale = {m.dimensions["source"]: m.value for m in scenario.world.telemetry.metrics if m.name == "SourcesStale"}
    assert (stale["kubernetes-list"], stale["hyperpod"]) == (1, 0)
    ages = {m.dimensions["source"]: m.value for m in scenario.world.telemetry.metrics if m.name == "SourceAgeSeconds"}
    assert ages["kubernetes-list"] == 600


def test_sweep_reports_a_backlog_of_the_event_queue() -> None:
    scenario = JobScenario()
    scenario.sweep()
    scenario.world.inbox.backlog = 12
    sweep_later(scenario, 660)

    outcome = scenario.sweep()

    assert outcome.failed == ("event-queue: 12 events are waiting.",)
    assert states_of_sources(scenario)["event-queue"] is SourceState.STALE
