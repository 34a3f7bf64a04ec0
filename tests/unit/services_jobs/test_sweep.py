from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.external.workloads import Comeback, ForeignPod
from evenkeel.domain.health.faults import Severity, shipped
from evenkeel.domain.health.groups import GroupFact, GroupFactKind
from evenkeel.domain.health.incidents import Incident, IncidentState
from evenkeel.domain.health.policy import WatchPolicy
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.nodes import FleetNode, KubernetesNode, NodeCondition, NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.recovery.guardrails import Entry, Register
from evenkeel.domain.recovery.leases import Lease, Return
from evenkeel.domain.recovery.policy import RepairPolicy
from evenkeel.domain.sources import SourceState
from evenkeel.domain.waiting import Answer, Condition, ConditionKind, Wait, WaitState
from evenkeel.ports import ExecutionState, Machine, Table, Throttled, Unreachable
from evenkeel.services.incidents import note_group_fact, receive_event
from evenkeel.services.queries import read_jobs, read_sources
from evenkeel.services.storage import guard_register, locks, rows
from evenkeel.services.storage.guard_register import Which
from tests.fakes import a_provider_node
from tests.fakes.cluster import CLUSTER, TAINT_TEXT, a_node, instance_id
from tests.fakes.system import A_MOMENT
from tests.unit.services_jobs.story import Story
from tests.unit.services_recovery.recovery import a_fact


def an_incident(story: Story, number: int = 1, **changes: Any) -> Incident:
    now = story.world.clock.now()
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
    story.put(rows.incident_row(incident, 0))
    if not incident.state.is_settled:
        story.put(rows.open_row(life, incident.incident_id))
    return incident


def fleet(story: Story) -> dict[str, FleetNode]:
    listed = story.world.ledger.by_state(Table.FLEET, "NODE").rows
    return {row.doc["life"]["instanceId"]: rows.read(row, FleetNode) for row in listed}


def later(story: Story, seconds: float = 60) -> None:
    story.world.clock.advance(seconds)


# ---------------------------------------------------------------- nothing amiss


def test_a_sweep_over_a_sound_fleet_mends_nothing() -> None:
    story = Story()
    story.running()
    later(story)

    outcome = story.sweep()

    assert (outcome.outcome, outcome.mended, outcome.failed) == ("SWEPT", {}, ())
    assert story.world.ledger.get(rows.heartbeat_key("sweep_fleet"))


def test_a_second_sweep_writes_only_its_lock_and_heartbeat() -> None:
    story = Story()
    story.running()
    later(story)
    story.sweep()
    before = story.world.ledger.contents()
    later(story)

    story.sweep()

    after = story.world.ledger.contents()
    assert {key for key in after if after[key] != before.get(key)} == {
        "FLEET HEARTBEAT#sweep_fleet META",
        "FLEET LOCK#sweep META",
    }


def test_only_one_sweeps() -> None:
    story = Story()
    assert locks.take(story.world.ledger, "sweep", "op-other", seconds=60, now=story.world.clock.now())

    assert story.sweep().outcome == "HELD_BY_ANOTHER"


def test_a_step_that_fails_leaves_the_others_alone() -> None:
    story = Story()
    job = story.submit()
    story.world.workflows.start = _refuse  # type: ignore[method-assign]
    story.run_pass()
    del story.world.workflows.start
    later(story)
    story.submit("key-waits", nodes=4)
    story.world.passes.request = _refuse  # type: ignore[method-assign]

    outcome = story.sweep()

    assert {failure.partition(":")[0] for failure in outcome.failed} == {"pass"}
    assert outcome.mended == {"attempts": 1}
    assert story.world.workflows.names(Machine.RUN_JOB) == [f"{job.job_id}-a1"]


def _refuse(*_: Any, **__: Any) -> Any:
    raise Unreachable("no answer")


# ---------------------------------------------------------------- the fleet's memory


def test_every_machine_is_remembered() -> None:
    story = Story(size=2)
    story.running(nodes=1)

    story.sweep()

    nodes = fleet(story)
    assert set(nodes) == {instance_id(1), instance_id(2)}
    first = nodes[instance_id(1)]
    assert (first.pool, first.slot, first.is_ready) == ("p5-workers", f"{CLUSTER}/seat-1", True)
    assert (first.accelerators, first.accelerators_in_use) == (8, 8)


def test_a_machine_that_left_is_marked_gone_and_expires() -> None:
    story = Story(size=2)
    story.sweep()
    story.world.cluster.remove_node(a_node(2).name)
    del story.world.provider.by_id[instance_id(2)]

    story.sweep()

    assert [fleet(story)[instance_id(number)].is_gone for number in (1, 2)] == [False, True]
    row = story.world.ledger.get(rows.node_key(CLUSTER, instance_id(2)))
    assert row
    assert row.expires_at


def test_a_provider_that_does_not_answer_makes_no_machine_gone() -> None:
    story = Story(size=2)
    story.sweep()
    story.world.provider.nodes = _refuse  # type: ignore[method-assign]

    story.sweep()

    assert not any(node.is_gone for node in fleet(story).values())


def test_a_long_list_is_taken_up_where_it_was_left() -> None:
    story = Story(size=250, policy=Policy(watch=WatchPolicy(sweep_page_budget=1)))
    story.sweep()
    for number in range(1, 251):
        story.world.cluster.set_node(a_node(number).name, zone="us-west-2b")

    for _ in range(4):
        story.sweep()

    assert {node.zone for node in fleet(story).values()} == {"us-west-2b"}


# ---------------------------------------------------------------- incidents


def test_an_incident_whose_workflow_never_began_is_started() -> None:
    story = Story()
    an_incident(story)
    later(story)

    assert story.sweep().mended == {"incidents": 1}
    assert story.sweep().mended == {}
    assert story.world.workflows.names(Machine.RECOVER_NODE) == ["inc-1-r1"]


def test_a_fresh_incident_is_left_to_whoever_opened_it() -> None:
    story = Story()
    an_incident(story)

    story.sweep()

    assert story.world.workflows.executions == {}


@pytest.mark.parametrize("ended", [ExecutionState.FAILED, ExecutionState.SUCCEEDED])
def test_an_incident_that_its_workflow_left_open_goes_on_in_the_next_run(ended: ExecutionState) -> None:
    story = Story()
    incident = an_incident(story, state=IncidentState.RECOVERING)
    story.world.workflows.start(Machine.RECOVER_NODE, incident.execution_name, {})
    story.world.workflows.finish(Machine.RECOVER_NODE, incident.execution_name, ended)
    later(story)

    story.sweep()
    story.sweep()

    assert story.world.workflows.names(Machine.RECOVER_NODE) == ["inc-1-r1", "inc-1-r2"]
    assert story.world.workflows.executions[Machine.RECOVER_NODE, "inc-1-r2"] == {
        "schemaVersion": 1,
        "incidentId": "inc-1",
        "run": 2,
    }


def test_a_crash_between_the_next_runs_number_and_its_start_is_mended() -> None:
    story = Story()
    an_incident(story, state=IncidentState.RECOVERING, run=2)
    story.world.workflows.start(Machine.RECOVER_NODE, "inc-1-r1", {})
    story.world.workflows.finish(Machine.RECOVER_NODE, "inc-1-r1", ExecutionState.FAILED)
    later(story)

    story.sweep()

    assert story.world.workflows.names(Machine.RECOVER_NODE) == ["inc-1-r1", "inc-1-r2"]


def test_a_run_that_failed_is_followed_by_another_one_after_a_pause_that_doubles() -> None:
    story = Story()
    failed_at = story.world.clock.now()
    incident = an_incident(story, state=IncidentState.RECOVERING, run=2, failed_at=failed_at)
    story.world.workflows.start(Machine.RECOVER_NODE, incident.execution_name, {})
    story.world.workflows.finish(Machine.RECOVER_NODE, incident.execution_name, ExecutionState.FAILED)
    pause = story.policy.watch.failed_run_backoff_seconds * 2

    story.world.clock.advance(pause - 1)
    story.sweep()
    early = story.world.workflows.names(Machine.RECOVER_NODE)
    story.world.clock.advance(1)
    story.sweep()

    assert early == ["inc-1-r2"]
    assert story.world.workflows.names(Machine.RECOVER_NODE) == ["inc-1-r2", "inc-1-r3"]
    row = story.world.ledger.get(rows.incident_key("inc-1"))
    assert row
    assert rows.read(row, Incident).failed_at is None


def test_a_recovery_that_ends_again_and_again_calls_a_person() -> None:
    story = Story()
    incident = an_incident(story, run=5)
    story.world.workflows.start(Machine.RECOVER_NODE, incident.execution_name, {})
    story.world.workflows.finish(Machine.RECOVER_NODE, incident.execution_name, ExecutionState.FAILED)
    later(story)

    story.sweep()

    assert story.world.workflows.names(Machine.RECOVER_NODE) == ["inc-1-r5"]
    assert [line.level for line in story.world.telemetry.lines] == ["ERROR"]


def test_a_settled_incident_is_left_alone() -> None:
    story = Story()
    an_incident(story, state=IncidentState.RECOVERED)
    later(story)

    assert story.sweep().mended == {}


def test_a_ghost_is_closed_and_an_open_incident_is_not() -> None:
    story = Story()
    ghost = an_incident(story, 1, incident_id="inc-1", state=IncidentState.RECOVERED)
    story.put(rows.open_row(ghost.life, "inc-1"))
    alive = an_incident(story, 2, incident_id="inc-2")

    outcome = story.sweep()

    assert outcome.mended["ghosts"] == 1
    assert story.world.ledger.get(rows.open_key(ghost.life)) is None
    assert story.world.ledger.get(rows.open_key(alive.life))


# ---------------------------------------------------------------- attempts


def test_an_attempt_that_was_asked_to_stop_and_let_run_is_stopped() -> None:
    story = Story()
    job = story.running(grace_seconds=44)
    story.cancel(job.job_id)
    later(story)

    story.sweep()

    assert ("stop", f"{job.job_id}-a1", 44) in story.world.cluster.calls
    assert story.job(job.job_id).state is JobState.STOPPING  # its workflow settles it


def test_an_attempt_without_its_workflow_is_settled_once_it_ended() -> None:
    story = Story()
    job = story.running()
    story.world.workflows.finish(Machine.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    later(story)
    running = story.sweep()
    story.world.cluster.finish_pods(job.job_id, 1)

    ended = story.sweep()

    assert (running.mended, ended.mended) == ({}, {"attempts": 1})
    assert (story.job(job.job_id).state, story.usage()) == (JobState.SUCCEEDED, 0)


def test_an_attempt_without_its_workflow_is_marked_running() -> None:
    story = Story()
    job = story.started()
    story.launch(job.job_id)
    story.world.cluster.run_pods(job.job_id, 1)
    story.world.workflows.finish(Machine.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    later(story)

    story.sweep()

    assert story.job(job.job_id).state is JobState.RUNNING


def test_an_attempt_that_its_workflow_never_launched_goes_back_to_the_queue() -> None:
    story = Story()
    job = story.started()
    story.world.workflows.finish(Machine.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    later(story)

    story.sweep()

    assert (story.job(job.job_id).state, story.attempt(job.job_id).state) == (
        JobState.PENDING,
        AttemptState.NEVER_RAN,
    )
    assert (story.usage(), story.charges()) == (0, [])


def test_what_a_settled_attempt_left_running_is_ended() -> None:
    story = Story()
    job = story.running()
    stop = story.world.cluster.stop
    story.world.cluster.stop = lambda *_: None  # type: ignore[method-assign]  # the settlement's last effect is lost
    story.settle(job.job_id, failure={"Error": "States.Timeout"})
    story.world.cluster.stop = stop  # type: ignore[method-assign]
    later(story)

    assert story.sweep().mended == {"workloads": 1}
    assert story.world.cluster.jobs == {CLUSTER: {}}


def test_ended_pods_are_kept_for_their_logs_and_then_deleted() -> None:
    story = Story()
    job = story.running()
    story.world.cluster.finish_pods(job.job_id, 1)
    story.settle(job.job_id)
    later(story, 3600)
    story.sweep()
    kept = dict(story.world.cluster.jobs[CLUSTER])
    later(story, 86_400)

    story.sweep()

    assert (len(kept), story.world.cluster.jobs[CLUSTER]) == (1, {})


# ---------------------------------------------------------------- waits


def a_due_wait(story: Story) -> str:
    job = story.running()
    now = story.world.clock.now()
    condition = Condition(kind=ConditionKind.ATTEMPT_RUNNING, facts={"attempt": 1})
    wait = Wait(
        subject=job.job_id,
        name="attempt-1-running",
        generation=1,
        token="token",
        opened_at=now,
        deadline_at=now.replace(hour=23),
        condition=condition,
    )
    story.put(rows.wait_row(wait, 0))
    return job.job_id


def asked(story: Story) -> int:
    return len(story.world.wait_answers.requests)


def test_a_wait_that_nobody_watches_is_answered_at_once() -> None:
    story = Story()
    a_due_wait(story)

    assert (story.sweep().mended, asked(story)) == ({"waits": 1}, 1)


def test_a_wait_that_has_just_fallen_due_is_the_watchs() -> None:
    story = Story()
    a_due_wait(story)
    assert locks.take(story.world.ledger, "watch", "op-watch", seconds=600, now=story.world.clock.now())

    first = (story.sweep().mended, asked(story))
    later(story, 5)
    second = (story.sweep().mended, asked(story))
    later(story, 5)
    third = (story.sweep().mended, asked(story))

    assert [first, second, third] == [({}, 0), ({}, 0), ({"waits": 1}, 1)]


def test_an_answer_that_was_recorded_and_not_delivered_is_delivered() -> None:
    story = Story()
    job_id = a_due_wait(story)
    row = story.world.ledger.get(rows.wait_key(job_id, "attempt-1-running"))
    assert row
    answer = Answer(outcome="RUNNING", reason="All pods run.")
    story.put(rows.wait_row(rows.read(row, Wait).but(state=WaitState.ANSWERED, answer=answer), 0))

    story.sweep()

    assert [request.answer["outcome"] for request in story.world.wait_answers.requests] == ["RUNNING"]


# ---------------------------------------------------------------- arrivals


def arrive(story: Story, number: int = 9, **changes: Any) -> str:
    """Let a machine boot for the first time, behind its taint."""
    node = a_node(number, is_awaiting_validation=True, taints=(TAINT_TEXT,), **changes)
    story.world.cluster.add_node(node)
    record = a_provider_node(number)
    story.world.provider.by_id[record.instance_id] = record
    return node.name


def is_tainted(story: Story, name: str) -> bool:
    node = story.world.cluster.node(CLUSTER, name)
    assert node
    return node.is_awaiting_validation


def test_a_sound_arrival_is_released_and_the_queue_is_asked() -> None:
    story = Story()
    name = arrive(story)

    story.sweep()

    assert not is_tainted(story, name)
    assert "machines arrived" in story.world.passes.reasons
    life = fleet(story)[instance_id(9)].life
    (row,) = story.world.ledger.by_state(Table.INCIDENTS, f"DEC#{life.key}").rows
    assert (row.doc["kind"], row.doc["action"]) == ("VALIDATION", "RELEASE")


def test_in_observe_mode_an_arrival_is_decided_once_and_stays() -> None:
    story = Story(mode=Mode.OBSERVE)
    name = arrive(story)

    story.sweep()
    story.sweep()

    assert is_tainted(story, name)
    assert story.world.cluster.calls == []
    life = fleet(story)[instance_id(9)].life
    assert len(story.world.ledger.by_state(Table.INCIDENTS, f"DEC#{life.key}").rows) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"is_ready": False},
        {"accelerators": 7},
        {"labels": {"sagemaker.amazonaws.com/node-health-status": "UnschedulablePendingReplacement"}},
        {"is_cordoned": True},
    ],
)
def test_an_unsound_arrival_stays_out(changes: dict[str, Any]) -> None:
    story = Story()
    name = arrive(story, **changes)

    story.sweep()

    assert is_tainted(story, name)


def test_a_replacement_is_validated_by_its_incident_and_not_by_the_sweeper() -> None:
    story = Story()
    an_incident(story, 1, slot=f"{CLUSTER}/seat-9")
    name = arrive(story)

    story.sweep()

    assert is_tainted(story, name)


def test_without_seats_any_open_incident_of_the_pool_keeps_arrivals() -> None:
    story = Story()
    incident = an_incident(story, 1)
    story.put(rows.incident_row(incident.but(slot=incident.life.key), 0))
    name = arrive(story)

    story.sweep()

    assert is_tainted(story, name)


# ---------------------------------------------------------------- signals, figures


def test_a_sick_node_that_the_watch_missed_opens_its_incident() -> None:
    story = Story()
    story.sweep()
    story.world.cluster.lose_node(a_node(1).name)
    later(story, 301)

    story.sweep()

    assert len(story.world.workflows.names(Machine.RECOVER_NODE)) == 1


def test_gauges_count_what_there_is() -> None:
    story = Story(size=2)
    story.running(nodes=1)
    story.submit("later", nodes=2)
    story.world.cluster.lose_node(a_node(2).name)

    story.sweep()

    totals = story.world.telemetry.totals
    assert (totals["JobsPending"], totals["JobsRunning"]) == (1, 1)
    assert (totals["NodesReady"], totals["NodesNotReady"]) == (1, 1)


def test_rounds_that_come_quickly_count_once_a_minute() -> None:
    story = Story()
    for _ in range(3):
        story.sweep()
        later(story, 1)
    quickly = [metric.name for metric in story.world.telemetry.metrics].count("NodesReady")
    later(story, 60)

    story.sweep()

    assert quickly == 1
    assert [metric.name for metric in story.world.telemetry.metrics].count("NodesReady") == 2


def test_a_queue_is_looked_at_even_if_every_request_was_lost() -> None:
    story = Story()
    story.submit()
    story.world.passes.reasons.clear()

    story.sweep()

    assert story.world.passes.reasons == ["sweep"]


# ---------------------------------------------------------------- signals that no watch brings


@pytest.mark.parametrize("is_drill", [False, True])
def test_the_end_of_a_reservation_sickens_the_machines_that_hold_it_once(*, is_drill: bool) -> None:
    story = Story()
    now = story.world.clock.now()
    goes_at = now + timedelta(minutes=40)
    ending = GroupFact(
        kind=GroupFactKind.RESERVATION_EXPIRING,
        source="ec2.notice",
        code="cr-06b1d8f3a7c24e905",
        deadline_at=goes_at,
        observed_at=now,
        envelope_id="one",
        is_drill=is_drill,
    )
    note_group_fact.run(ending, ledger=story.world.ledger, clock=story.world.clock, telemetry=story.world.telemetry)
    held = {"karpenter.k8s.aws/capacity-reservation-id": "cr-06b1d8f3a7c24e905"}
    story.world.cluster.set_node(a_node(2).name, labels=held)

    story.sweep()
    story.sweep()

    found = story.world.ledger.by_state(Table.INCIDENTS, "INC#OPEN").rows
    incidents = [rows.read(row, Incident) for row in found]
    assert [(each.life.instance_id, each.deadline_at) for each in incidents] == [(instance_id(2), goes_at)]
    assert [(each.evidence_count, each.is_drill) for each in incidents] == [(1, is_drill)]


def test_a_condition_that_is_stuck_is_counted_and_no_sickness() -> None:
    story = Story()
    since = story.world.clock.now() - timedelta(days=3)
    stuck = NodeCondition(type="AcceleratedHardwareReady", status="False", reason="NvidiaXID79Error", changed_at=since)
    story.world.cluster.set_node(a_node(2).name, conditions=(stuck,))

    story.sweep()

    assert story.world.ledger.by_state(Table.INCIDENTS, "INC#OPEN").rows == ()
    assert story.world.telemetry.totals["ConditionsStale"] == 1


def test_a_lemon_is_shown_and_counted_until_its_window_is_over() -> None:
    story = Story(policy=Policy(repair=RepairPolicy(lemon_returns=1, flap_window_hours=1)))
    story.sweep()
    node = next(rows.read(row, FleetNode) for key, row in story.world.ledger.rows.items() if key.pk.startswith("NODE#"))
    returned = Return(life=node.life.key, at=story.world.clock.now())
    lease = Lease(slot=node.slot, incident_id="", taken_at=returned.at, returns=(returned,), lemon=node.life.key)
    story.put(rows.lease_row(lease, 0))
    key = rows.node_key(node.life.cluster, node.life.instance_id)

    seen = []
    for _ in range(2):
        story.sweep()
        row = story.world.ledger.get(key)
        assert row
        seen.append(rows.read(row, FleetNode).is_lemon)
        story.world.clock.advance(3700)

    row = story.world.ledger.get(rows.lease_key(node.slot))
    assert row
    assert (seen, rows.read(row, Lease).lemon) == ([True, False], "")


# ---------------------------------------------------------------- work that is not ours


def test_others_work_is_remembered_where_it_is_and_forgotten_when_it_ends() -> None:
    story = Story(size=2)
    pod = ForeignPod(
        namespace="research",
        name="llama-0",
        uid="u",
        node_name=f"hyperpod-{instance_id(1)}",
        accelerators=8,
        kind="PyTorchJob",
        workload="llama",
        comeback=Comeback.BY_OWNER,
    )
    story.world.cluster.foreign.append(pod)
    story.sweep()

    node = story.world.ledger.get(rows.node_key(CLUSTER, instance_id(1)))
    (listed,) = read_jobs.list_foreign(story.world.ledger, [CLUSTER])["items"]
    assert node
    assert (node.doc["others"], node.doc["acceleratorsInUse"]) == (["PyTorchJob research/llama"], 8)
    assert (listed["name"], listed["accelerators"]) == ("llama", 8)
    commits = len(story.world.ledger.commits)
    story.sweep()
    keys = [key for commit in story.world.ledger.commits[commits:] for key in map(str, commit)]
    assert not [key for key in keys if "FOREIGN#" in key]

    story.world.cluster.foreign.clear()
    story.sweep()

    assert read_jobs.list_foreign(story.world.ledger, [CLUSTER])["items"] == []


# ---------------------------------------------------------------- what was said too early


def say_too_early(story: Story) -> None:
    """Tell of a machine that no sweep has seen yet."""
    world = story.world
    fact = a_fact(
        1, source="ec2.notice", fault_key="ec2:spot_interruption", code="terminate", observed_at=world.clock.now()
    )
    said = receive_event.run(
        fact,
        ledger=world.ledger,
        provider=world.provider,
        workflows=world.workflows,
        clock=world.clock,
        ids=world.ids,
        telemetry=world.telemetry,
        clusters=(CLUSTER,),
        drills_may_act=False,
        catalogue=shipped(),
    )
    assert said.outcome == "FOREIGN"


def test_a_notice_about_a_machine_that_no_sweep_has_seen_yet_is_taken_in_once_one_has() -> None:
    story = Story()
    say_too_early(story)
    assert not story.world.workflows.names(Machine.RECOVER_NODE)

    outcome = story.sweep()

    assert outcome.mended["early"] == 1
    assert len(story.world.workflows.names(Machine.RECOVER_NODE)) == 1
    assert story.world.ledger.get(rows.early_key(instance_id(1))) is None
    assert "early" not in story.sweep().mended


def test_a_notice_is_kept_while_sweeps_see_its_machine_and_cannot_write_it_down() -> None:
    story = Story()
    say_too_early(story)
    commit = story.world.ledger.commit

    def throttled(*writes: Any, token: str = "") -> None:
        if any(getattr(write, "row", write).key == rows.node_key(CLUSTER, instance_id(1)) for write in writes):
            raise Unreachable("commit")
        commit(*writes, token=token)

    story.world.ledger.commit = throttled  # type: ignore[method-assign]
    story.sweep()
    story.world.ledger.commit = commit  # type: ignore[method-assign]

    assert story.sweep().mended["early"] == 1


def test_a_notice_is_taken_in_of_a_machine_that_a_sweep_wrote_down_before_it_died_and_that_is_gone_by_now() -> None:
    story = Story()
    say_too_early(story)
    by_state = story.world.ledger.by_state

    def throttled(table: Table, state: str, **how: Any) -> Any:
        if state == "EARLY":
            raise Unreachable("by_state")
        return by_state(table, state, **how)

    story.world.ledger.by_state = throttled  # type: ignore[method-assign]
    story.sweep()
    story.world.ledger.by_state = by_state  # type: ignore[method-assign]
    story.world.cluster.remove_node(a_node(1).name)
    del story.world.provider.by_id[instance_id(1)]

    assert fleet(story)[instance_id(1)].is_gone is False
    assert story.sweep().mended["early"] == 1
    assert story.world.ledger.get(rows.early_key(instance_id(1))) is None


# ---------------------------------------------------------------- a cluster or HyperPod gives no answer

BURST = "burst-eks"


def a_burst_node(number: int = 9, **changes: Any) -> KubernetesNode:
    """A node of a second cluster, which HyperPod knows nothing of."""
    facts = {"cluster": BURST, "name": f"burst-{number}", "hyperpod_cluster_id": "", "created_at": A_MOMENT}
    return a_node(number, **{**facts, **changes})


def sources(story: Story, *clusters: str, after: float = 0) -> dict[str, SourceState]:
    now = story.world.clock.now() + timedelta(seconds=after)
    names = clusters or (CLUSTER,)
    ages = read_sources.run(story.world.ledger, clusters=names, has_hyperpod=True, policy=story.policy, now=now)
    return {age.source.name: age.state for age in ages}


def test_sweep_reports_every_source_it_read() -> None:
    story = Story()

    story.sweep()

    found = sources(story)
    read = {name for name, state in found.items() if state is SourceState.CURRENT}
    assert read == set(found) - {f"kubernetes-watch/{CLUSTER}", "scheduling-cycle"}


@pytest.mark.parametrize("lists", ["*", "nodes", "workloads", "accelerators_in_use", "pods"])
def test_machines_of_a_blind_cluster_are_not_gone(lists: str) -> None:
    story = Story()
    story.sweep()
    before = fleet(story)
    story.world.cluster.blind[CLUSTER] = {lists}
    later(story, 600)

    story.sweep()

    assert fleet(story) == before
    assert sources(story)[f"kubernetes-list/{CLUSTER}"] is SourceState.STALE


@pytest.mark.parametrize("blind", [CLUSTER, BURST])
def test_blind_cluster_does_not_hide_the_other(blind: str) -> None:
    story = Story()
    story.world.cluster.add_node(a_burst_node())
    story.sweep(CLUSTER, BURST)
    story.world.cluster.blind[blind] = {"*"}
    seen = BURST if blind == CLUSTER else CLUSTER
    name = "burst-9" if blind == CLUSTER else story.world.cluster.nodes(CLUSTER)[0].name
    story.world.cluster.set_node(name, cluster=seen, is_cordoned=True)
    later(story, 600)

    outcome = story.sweep(CLUSTER, BURST)

    changed = [node for node in fleet(story).values() if node.is_cordoned]
    assert [node.node_name for node in changed] == [name]
    assert {each.split(":")[0] for each in outcome.failed} == {f"kubernetes-list/{blind}", f"kueue/{blind}"}
    found = sources(story, CLUSTER, BURST)
    assert found[f"kubernetes-list/{blind}"] is SourceState.STALE
    assert found[f"kubernetes-list/{seen}"] is SourceState.CURRENT


def test_attempt_on_a_blind_cluster_is_neither_settled_nor_stopped() -> None:
    story = Story()
    job = story.running()
    story.world.workflows.finish(Machine.RUN_JOB, f"{job.job_id}-a1", ExecutionState.FAILED)
    story.world.cluster.blind[CLUSTER] = {"*"}
    later(story, 600)
    calls = len(story.world.cluster.calls)

    story.sweep()

    assert story.attempt(job.job_id).state is AttemptState.RUNNING
    assert story.world.cluster.calls[calls:] == []


def test_cordon_on_a_blind_cluster_keeps_its_place() -> None:
    story = Story()
    incident = an_incident(story, state=IncidentState.RECOVERED)
    entry = Entry(incident_id=incident.incident_id, life=incident.life.key, pool="p5-workers", since=A_MOMENT)
    story.put(guard_register.entering(Which.CORDONS, Register(), 0, entry, asks=False).row)
    story.world.cluster.blind[CLUSTER] = {"*"}
    later(story, 600)

    story.sweep()

    register, _ = guard_register.load(story.world.ledger, Which.CORDONS, story.world.clock.now())
    assert [each.incident_id for each in register.entries] == ["inc-1"]


def test_hyperpod_without_answer_does_not_stop_the_sweep() -> None:
    story = Story()
    story.world.cluster.add_node(a_burst_node())
    story.sweep(CLUSTER, BURST)
    before = fleet(story)
    story.world.provider.nodes = _throttle  # type: ignore[method-assign]
    story.world.cluster.set_node("burst-9", cluster=BURST, is_cordoned=True)
    later(story, 600)

    outcome = story.sweep(CLUSTER, BURST)

    after = fleet(story)
    assert {name for name in after if after[name] != before[name]} == {instance_id(9)}
    assert [each.split(":")[0] for each in outcome.failed] == ["hyperpod"]
    found = sources(story, CLUSTER, BURST)
    assert (found["hyperpod"], found[f"kubernetes-list/{CLUSTER}"]) == (SourceState.STALE, SourceState.CURRENT)


def _throttle(*_: Any, **__: Any) -> Any:
    raise Throttled("Rate exceeded")


def test_nodes_of_a_blind_fleet_are_not_counted() -> None:
    story = Story()
    story.world.cluster.blind[CLUSTER] = {"*"}

    story.sweep()

    assert not [metric for metric in story.world.telemetry.metrics if metric.name.startswith("Nodes")]


def test_pool_sizes_of_a_blind_fleet_stay() -> None:
    story = Story()
    story.sweep()
    before = story.world.ledger.get(rows.pools_row({}, 0).key)
    story.world.cluster.blind[CLUSTER] = {"*"}
    later(story)

    story.sweep()

    assert before is not None
    assert story.world.ledger.get(before.key) == before


def test_kueue_that_cannot_be_read_is_reported_alone() -> None:
    story = Story()
    story.sweep()
    story.world.cluster.blind[CLUSTER] = {"kueue_namespaces"}
    later(story, 660)

    outcome = story.sweep()

    found = sources(story)
    assert [each.split(":")[0] for each in outcome.failed] == [f"kueue/{CLUSTER}"]
    assert {name for name, state in found.items() if state is SourceState.STALE} == {f"kueue/{CLUSTER}"}


def test_step_that_fails_for_one_item_goes_on_with_the_others() -> None:
    story = Story()
    first, second = story.started(nodes=1), story.started(nodes=1)
    for job in (first, second):
        story.world.workflows.executions.pop((Machine.RUN_JOB, f"{job.job_id}-a1"))
        story.world.workflows.states.pop((Machine.RUN_JOB, f"{job.job_id}-a1"))
    later(story, 600)
    state = story.world.workflows.state

    def refuse_first(machine: Machine, name: str) -> ExecutionState:
        if name.startswith(first.job_id):
            raise Unreachable("no answer")
        return state(machine, name)

    story.world.workflows.state = refuse_first  # type: ignore[method-assign]

    outcome = story.sweep()

    assert [each.split(":")[0] for each in outcome.failed] == ["attempts"]
    assert f"{second.job_id}-a1" in story.world.workflows.names(Machine.RUN_JOB)


def test_stale_sources_are_counted_by_kind() -> None:
    story = Story()
    story.sweep()
    story.world.cluster.blind[CLUSTER] = {"*"}
    later(story, 600)
    story.world.telemetry.metrics.clear()

    story.sweep()

    stale = {m.dimensions["source"]: m.value for m in story.world.telemetry.metrics if m.name == "SourcesStale"}
    assert (stale["kubernetes-list"], stale["hyperpod"]) == (1, 0)
    ages = {m.dimensions["source"]: m.value for m in story.world.telemetry.metrics if m.name == "SourceAgeSeconds"}
    assert ages["kubernetes-list"] == 600


def test_events_that_nobody_handles_are_reported() -> None:
    story = Story()
    story.sweep()
    story.world.inbox.backlog = 12
    later(story, 660)

    outcome = story.sweep()

    assert outcome.failed == ("event-queue: 12 events wait to be handled.",)
    assert sources(story)["event-queue"] is SourceState.STALE
