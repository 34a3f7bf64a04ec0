"""Elastic jobs through scheduling cycles: they start small, grow on idle nodes, shrink and grow back."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.decisions import Decision
from evenkeel.domain.elastic.sizes import ElasticPolicy
from evenkeel.domain.external.adoption_policy import ServingWorkload
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import Job, JobState, ResumeOption, ResumePlan
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.quotas.teams import FleetQuotas
from evenkeel.domain.replay import replay
from evenkeel.ports import Table
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.records import explain
from evenkeel.services.tables import quota_rows, rows
from tests.crash_points import SIDES, effects_of
from tests.examples import examples
from tests.fakes.cluster import CLUSTER, a_node
from tests.fakes.crashes import Crash, CrashPlan, CrashTiming
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_suspend_and_priority import suspend
from tests.unit.services_jobs.test_teams import MEMBERS, set_up_teams

TERMS = ElasticPolicy(resize_seconds=10, snooze_seconds=30, backoff_seconds=60)
POLICY = Policy(scheduling=SchedulingPolicy(elastic=TERMS))
ELASTIC: dict[str, Any] = {"nodes": 2, "elastic": {"min_nodes": 1, "max_nodes": 4}}


def a_scenario(size: int = 4, **more: Any) -> JobScenario:
    return JobScenario(size=size, **{"policy": POLICY, **more})


def a_shared_scenario(size: int = 4, red: int = 32, **more: Any) -> JobScenario:
    scenario = a_scenario(size, **more)
    set_up_teams(scenario, a_team("red", red, members=MEMBERS), FleetQuotas(priority_classes={"low": 1, "high": 10}))
    return scenario


def node_name(number: int) -> str:
    return a_node(number).name


def stop_and_readmit(scenario: JobScenario, job_id: str) -> None:
    """Stop an attempt as run_job does: end its pods, settle it, and run the next cycle."""
    number = scenario.job(job_id).current_attempt
    scenario.save_checkpoint(job_id, number, 10 * number)
    scenario.stop(job_id, number)
    scenario.settle(job_id, number)


def carry_out_resize(scenario: JobScenario, job_id: str) -> Job:
    """Carry out a requested resize, and return the running job."""
    for step in (
        lambda: stop_and_readmit(scenario, job_id),
        scenario.run_scheduling_cycle,
        lambda: scenario.launch(job_id, scenario.job(job_id).current_attempt),
        lambda: scenario.run_attempt(job_id, scenario.job(job_id).current_attempt),
    ):
        scenario.world.clock.advance(0.25)
        step()
    return scenario.job(job_id)


def decision_records(scenario: JobScenario, job_id: str) -> list[Decision]:
    decision_rows = scenario.world.ledger.by_state(Table.INCIDENTS, f"DEC#{job_id}").rows
    return [decision for row in decision_rows if (decision := rows.decode(row, Decision)).kind == "RESIZE"]


def wait_idle(scenario: JobScenario, seconds: float) -> None:
    scenario.run_scheduling_cycle()
    scenario.world.clock.advance(seconds)
    scenario.run_scheduling_cycle()


def test_job_starts_at_the_largest_size_that_fits() -> None:
    scenario = a_scenario(size=3)

    job = scenario.started(nodes=4, elastic={"min_nodes": 1, "max_nodes": 4, "sizes": [1, 2, 4]})

    attempt = scenario.attempt(job.job_id)
    assert (job.state, job.size, attempt.ranks, attempt.accelerators) == (JobState.STARTING, 2, 2, 16)
    assert job.reason.startswith("The job starts with 2 of 4 nodes. ")
    assert scenario.usage() == 16


def test_pods_ranks_and_end_follow_the_attempt_size() -> None:
    scenario = a_scenario(size=2)
    job = scenario.running(nodes=4, elastic={"min_nodes": 1, "max_nodes": 4})

    assert scenario.job(job.job_id).state is JobState.RUNNING
    scenario.world.cluster.finish_pods(job.job_id, 1)
    scenario.settle(job.job_id)

    assert scenario.job(job.job_id).state is JobState.SUCCEEDED
    assert scenario.usage() == 0


def test_inelastic_job_waits_for_all_its_nodes() -> None:
    scenario = a_scenario(size=1)

    assert scenario.started(nodes=2).state is JobState.PENDING


def test_quota_limits_the_starting_size() -> None:
    scenario = a_shared_scenario(red=16)

    job = scenario.started(team="red", nodes=4, elastic={"min_nodes": 1, "max_nodes": 4})

    assert (job.state, job.size) == (JobState.STARTING, 2)


@pytest.mark.parametrize("is_suspended_first", [False, True])
def test_suspension_ends_a_requested_resize(*, is_suspended_first: bool) -> None:
    scenario = a_scenario()
    job = scenario.running(**ELASTIC)
    wait_idle(scenario, 21)
    assert scenario.job(job.job_id).resize

    if is_suspended_first:
        suspend(scenario, job)
    stop_and_readmit(scenario, job.job_id)
    if not is_suspended_first:
        suspend(scenario, job)

    assert (scenario.job(job.job_id).state, scenario.job(job.job_id).resize) == (JobState.SUSPENDED, None)


@pytest.mark.parametrize("end", ["finish", "cancel"])
def test_ended_job_leaves_the_list_of_resizing_jobs(end: str) -> None:
    scenario = a_scenario()
    job = scenario.running(**ELASTIC)
    wait_idle(scenario, 21)
    assert stored_idle_record(scenario)["resizing"] == [job.job_id]

    if end == "finish":
        scenario.world.cluster.finish_pods(job.job_id, 1)
        scenario.settle(job.job_id)
    else:
        stop_and_readmit(scenario, job.job_id)
        scenario.cancel(job.job_id)
    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).state.has_ended
    assert stored_idle_record(scenario).get("resizing", []) == []


def test_job_grows_after_idle_nodes_cost_more_than_a_resize() -> None:
    scenario = a_scenario()
    job = scenario.running(**ELASTIC)
    scenario.run_scheduling_cycle()
    scenario.world.clock.advance(19)
    scenario.run_scheduling_cycle()
    assert scenario.job(job.job_id).resize is None

    scenario.world.clock.advance(2)  # two nodes for 21 seconds: 42 node-seconds, and the resize costs 40
    scenario.run_scheduling_cycle()

    resizing = scenario.job(job.job_id)
    assert resizing.resize
    assert (resizing.resize.from_nodes, resizing.resize.nodes) == (2, 4)
    assert resizing.stop_request
    assert resizing.stop_request.grace_seconds == resizing.spec.grace_seconds
    grown = carry_out_resize(scenario, job.job_id)
    assert (grown.state, grown.current_attempt, grown.size, grown.application_failures) == (JobState.RUNNING, 2, 4, 0)
    assert scenario.attempt(job.job_id, 1).state is AttemptState.STOPPED
    assert scenario.usage() == 32


def test_timeline_shows_each_step_of_a_resize() -> None:
    scenario = a_scenario()
    job = scenario.running(**ELASTIC)
    wait_idle(scenario, 21)

    carry_out_resize(scenario, job.job_id)

    timeline = scenario.timeline(job.job_id)
    assert timeline[timeline.index("resized") :] == ["resized", "settled", "admitted", "launched", "running"]


def test_every_resize_replays_from_its_record() -> None:
    scenario = a_scenario()
    job = scenario.running(**ELASTIC)
    wait_idle(scenario, 21)

    (record,) = decision_records(scenario, job.job_id)

    assert record.action == "GROW"
    assert replay(record, POLICY).differs_from(record) == ""


def test_idle_record_drops_only_jobs_that_ended() -> None:
    scenario = a_scenario()
    job = scenario.running(**ELASTIC)
    wait_idle(scenario, 21)
    carry_out_resize(scenario, job.job_id)
    scenario.run_scheduling_cycle()
    assert stored_idle_record(scenario) == {"jobs": [job.job_id], "resizing": [], "idleSince": {}, "lastAnnounced": {}}

    scenario.world.cluster.finish_pods(job.job_id, 2)
    scenario.settle(job.job_id, 2)
    scenario.run_scheduling_cycle()

    assert stored_idle_record(scenario) == {}


def stored_idle_record(scenario: JobScenario) -> dict[str, Any]:
    row = scenario.world.ledger.get(quota_rows.tree_key())
    assert row
    return (row.doc.get("schedulerState") or {}).get("elastic") or {}


def test_why_explains_a_resize_and_its_alternatives() -> None:
    scenario = a_scenario()
    job = scenario.running(**ELASTIC)
    wait_idle(scenario, 21)

    document = explain.why_job(job.job_id, Reader(), scenario.world.context())

    assert (document["decision"]["kind"], document["decision"]["action"]) == ("RESIZE", "GROW")
    assert "as much as a resize to 4 nodes costs" in document["decision"]["reason"]


def test_no_job_grows_while_a_pending_job_fits() -> None:
    scenario = a_scenario()
    job = scenario.running(**ELASTIC)
    scenario.submit("large", nodes=4)

    wait_idle(scenario, 600)

    assert scenario.job(job.job_id).resize is None


def test_no_job_grows_onto_nodes_of_a_pending_minimum_size() -> None:
    scenario = a_scenario(size=3)
    job = scenario.running(nodes=1, elastic={"min_nodes": 1, "max_nodes": 3})
    other = scenario.submit("other", nodes=4, elastic={"min_nodes": 3, "max_nodes": 4})
    scenario.set_job(other.replace(current_attempt=1))  # it ran when the pool was larger

    wait_idle(scenario, 600)

    assert scenario.job(job.job_id).resize is None


def test_job_does_not_grow_again_during_its_snooze() -> None:
    scenario = a_scenario(size=3)
    job = scenario.running(nodes=1, elastic={"min_nodes": 1, "max_nodes": 4})
    other = scenario.running(nodes=1)
    wait_idle(scenario, 25)
    carry_out_resize(scenario, job.job_id)
    scenario.world.cluster.finish_pods(other.job_id, 1)
    scenario.settle(other.job_id)

    wait_idle(scenario, 29)
    assert scenario.job(job.job_id).live_resize() is None
    scenario.world.clock.advance(5)
    scenario.run_scheduling_cycle()
    assert scenario.job(job.job_id).live_resize() is not None


def test_growth_stops_at_the_team_quota() -> None:
    scenario = a_shared_scenario(red=24)
    job = scenario.running(team="red", **ELASTIC)

    wait_idle(scenario, 100)

    request = scenario.job(job.job_id).live_resize()
    assert request
    assert request.nodes == 3


def test_job_whose_growth_found_no_nodes_returns_and_backs_off() -> None:
    scenario = a_scenario()
    job = scenario.running(**ELASTIC)
    wait_idle(scenario, 21)
    scenario.world.cluster.cordon(CLUSTER, node_name(4), None)

    back = carry_out_resize(scenario, job.job_id)

    assert (back.size, back.failed_growths) == (3, 1)
    assert back.growth_failed_at is not None


def assert_shrinks_for(scenario: JobScenario, job_id: str, nodes: int, for_job: str) -> None:
    """Check that a job gets a request to shrink to this size for another job, and is not preempted."""
    wish = scenario.job(job_id).live_resize()
    assert wish
    assert (wish.nodes, wish.for_job) == (nodes, for_job)
    assert not scenario.job(job_id).is_preempted


def test_higher_class_shrinks_a_job_instead_of_preempting_it() -> None:
    scenario = a_shared_scenario()
    low = scenario.running(team="red", priority_class="low", nodes=4, elastic={"min_nodes": 1, "max_nodes": 4})
    high = scenario.submit("high", team="red", priority_class="high", nodes=2)

    scenario.run_scheduling_cycle()

    assert_shrinks_for(scenario, low.job_id, 2, high.job_id)
    (record,) = decision_records(scenario, low.job_id)
    assert (record.action, replay(record, POLICY).differs_from(record)) == ("SHRINK", "")
    scenario.run_scheduling_cycle()
    scenario.run_scheduling_cycle()
    assert len(decision_records(scenario, low.job_id)) == 1
    shrunk = carry_out_resize(scenario, low.job_id)
    assert (shrunk.state, shrunk.size, scenario.job(high.job_id).state) == (JobState.RUNNING, 2, JobState.STARTING)


def test_job_with_a_cordoned_node_shrinks_by_further_nodes_needed() -> None:
    scenario = a_shared_scenario(size=3, red=24)
    low = scenario.running(team="red", priority_class="low", nodes=3, elastic={"min_nodes": 1, "max_nodes": 3})
    scenario.world.cluster.set_node(node_name(1), is_cordoned=True)
    high = scenario.submit("high", team="red", priority_class="high", nodes=1)

    scenario.run_scheduling_cycle()

    assert_shrinks_for(scenario, low.job_id, 1, high.job_id)
    shrunk = carry_out_resize(scenario, low.job_id)
    assert (shrunk.state, shrunk.size, scenario.job(high.job_id).state) == (JobState.RUNNING, 1, JobState.STARTING)


def test_higher_class_job_behind_unfit_jobs_shrinks_elastic_job() -> None:
    scenario = a_shared_scenario()
    low = scenario.running(team="red", priority_class="low", nodes=4, elastic={"min_nodes": 1, "max_nodes": 4})
    set_up_teams(scenario, a_team("blue", 0, members=MEMBERS))
    for nodes in (1, 2, 3, 4):
        scenario.submit(f"hopeless-{nodes}", team="blue", nodes=nodes)
    high = scenario.submit("high", team="red", priority_class="high", nodes=2)

    scenario.run_scheduling_cycle()

    assert_shrinks_for(scenario, low.job_id, 2, high.job_id)


def test_only_job_that_uses_the_needed_quota_shrinks() -> None:
    scenario = a_scenario(size=7)
    classes = FleetQuotas(priority_classes={"low": 1, "high": 10})
    teams = [a_team(name, gpus, cohort="", members=MEMBERS) for name, gpus in (("red", 16), ("blue", 48))]
    set_up_teams(scenario, *teams, classes)
    spec: dict[str, Any] = {"elastic": {"min_nodes": 1, "max_nodes": 3}, "priority_class": "low"}
    blue = scenario.running(team="blue", nodes=1, accelerators_per_node=4, **spec)
    wait_idle(scenario, 21)
    carry_out_resize(scenario, blue.job_id)
    low = scenario.running(team="red", nodes=2, **spec)
    high = scenario.submit("high", team="red", priority_class="high", nodes=1)

    scenario.run_scheduling_cycle()

    wish = scenario.job(low.job_id).live_resize()
    assert wish
    assert (wish.nodes, wish.for_job, scenario.job(blue.job_id).live_resize()) == (1, high.job_id, None)
    assert not scenario.job(low.job_id).is_preempted


def test_job_admitted_in_same_cycle_takes_no_returned_nodes() -> None:
    scenario = a_scenario(size=5)
    classes = FleetQuotas(priority_classes={"low": 1, "high": 10})
    teams = [a_team(name, gpus, cohort="", members=MEMBERS) for name, gpus in (("red", 32), ("blue", 24))]
    set_up_teams(scenario, *teams, classes)
    low = scenario.running(team="red", priority_class="low", nodes=4, elastic={"min_nodes": 1, "max_nodes": 4})
    first = scenario.submit("first", team="blue", nodes=3, elastic={"min_nodes": 1, "max_nodes": 3})
    high = scenario.submit("high", team="red", priority_class="high", nodes=2)

    scenario.run_scheduling_cycle()

    assert_shrinks_for(scenario, low.job_id, 2, high.job_id)
    assert scenario.job(first.job_id).size == 1


def test_grown_job_returns_nodes_to_equal_job_behind_unfit_jobs() -> None:
    scenario = a_shared_scenario()
    job = scenario.running(team="red", priority_class="low", **ELASTIC)
    wait_idle(scenario, 21)
    carry_out_resize(scenario, job.job_id)
    set_up_teams(scenario, a_team("blue", 0, members=MEMBERS))
    for nodes in (1, 2, 3, 4):
        scenario.submit(f"hopeless-{nodes}", team="blue", nodes=nodes)
    other = scenario.submit("other", team="red", priority_class="low", nodes=1)

    scenario.run_scheduling_cycle()

    wish = scenario.job(job.job_id).live_resize()
    assert wish
    assert (wish.nodes, wish.for_job) == (3, other.job_id)


def test_shrunk_job_grows_back_after_the_higher_class_ends() -> None:
    scenario = a_shared_scenario()
    low = scenario.running(team="red", priority_class="low", nodes=4, elastic={"min_nodes": 1, "max_nodes": 4})
    high = scenario.submit("high", team="red", priority_class="high", nodes=2)
    scenario.run_scheduling_cycle()
    carry_out_resize(scenario, low.job_id)
    scenario.run_attempt(high.job_id, 1)
    scenario.world.cluster.finish_pods(high.job_id, 1)
    scenario.settle(high.job_id)

    wait_idle(scenario, 40)

    grown = carry_out_resize(scenario, low.job_id)
    assert (grown.size, grown.application_failures, grown.launch_failures) == (4, 0, 0)


def test_job_that_cannot_shrink_enough_is_preempted() -> None:
    scenario = a_shared_scenario()
    low = scenario.running(team="red", priority_class="low", nodes=4, elastic={"min_nodes": 3, "max_nodes": 4})
    scenario.submit("high", team="red", priority_class="high", nodes=4)

    scenario.run_scheduling_cycle()

    assert scenario.job(low.job_id).is_preempted
    assert scenario.job(low.job_id).live_resize() is None


def test_job_of_equal_priority_reclaims_only_nodes_beyond_requested_size() -> None:
    scenario = a_scenario()
    job = scenario.running(**ELASTIC)
    wait_idle(scenario, 21)
    carry_out_resize(scenario, job.job_id)
    scenario.submit("other", nodes=1)

    scenario.run_scheduling_cycle()

    wish = scenario.job(job.job_id).live_resize()
    assert wish
    assert wish.nodes == 3
    stop_and_readmit(scenario, job.job_id)
    scenario.run_scheduling_cycle()
    scenario.submit("third", nodes=3)
    scenario.run_scheduling_cycle()
    assert scenario.job(job.job_id).live_resize() is None


def test_observe_mode_records_a_resize_once_without_acting() -> None:
    scenario = a_scenario()
    job = scenario.running(**ELASTIC)
    scenario.mode = Mode.OBSERVE

    wait_idle(scenario, 21)
    wait_idle(scenario, 21)

    assert len(decision_records(scenario, job.job_id)) == 1
    assert scenario.job(job.job_id).stop_request is None


def test_suspended_job_drops_its_planned_growth() -> None:
    scenario = a_scenario()
    job = scenario.running(**ELASTIC)
    wait_idle(scenario, 21)
    held = scenario.job(job.job_id)
    scenario.set_job(held.replace(is_suspended=True))

    stop_and_readmit(scenario, job.job_id)

    assert scenario.job(job.job_id).state is JobState.SUSPENDED
    assert scenario.job(job.job_id).resize is None


@pytest.mark.parametrize("when", SIDES)
@pytest.mark.parametrize("at", effects_of(29))
def test_growth_reaches_the_same_size_after_any_crash(at: int, when: CrashTiming) -> None:
    scenario = a_scenario(plan=CrashPlan(0, when))
    job = scenario.running(**ELASTIC)
    scenario.plan.at = len(scenario.plan.effects) + at
    for _ in range(60):
        try:
            scenario.run_scheduling_cycle()
            current = scenario.job(job.job_id)
            if current.stop_request and current.state is JobState.RUNNING:
                stop_and_readmit(scenario, job.job_id)
            elif current.state is JobState.STARTING:
                scenario.run_attempt(job.job_id, current.current_attempt)
        except Crash:
            pass
        scenario.world.clock.advance(7)

    end = scenario.job(job.job_id)
    assert (end.state, end.size, end.current_attempt) == (JobState.RUNNING, 4, 2)
    assert scenario.usage() == 32
    assert len(decision_records(scenario, job.job_id)) == 1


@settings(max_examples=examples(16), deadline=None)
@given(
    size=st.integers(2, 6),
    least=st.integers(1, 2),
    span=st.integers(0, 4),
    red=st.sampled_from([0, 16, 24, 48]),
    steps=st.lists(st.sampled_from(["wait", "high", "end", "cordon"]), max_size=6),
)
def test_sizes_stay_allowed_and_resizes_stop_in_unchanged_fleet(
    size: int, least: int, span: int, red: int, steps: list[str]
) -> None:
    scenario = a_shared_scenario(size, red) if red else a_scenario(size)
    team: dict[str, Any] = {"team": "red", "priority_class": "low"} if red else {}
    job = scenario.started(nodes=least, elastic={"min_nodes": least, "max_nodes": least + span}, **team)
    high_jobs: list[str] = []

    def settle_down(rounds: int) -> int:
        resizes = 0
        for _ in range(rounds):
            scenario.run_scheduling_cycle()
            for name in (job.job_id, *high_jobs):
                current = scenario.job(name)
                if current.stop_request and current.state in (JobState.RUNNING, JobState.STARTING):
                    stop_and_readmit(scenario, name)
                    resizes += name == job.job_id
                elif current.state is JobState.STARTING:
                    scenario.run_attempt(name, current.current_attempt)
            current = scenario.job(job.job_id)
            assert current.size in (0, *range(least, least + span + 1))
            assert not red or scenario.usage("red") <= red
            scenario.world.clock.advance(20)
        return resizes

    settle_down(2)
    for step in steps:
        if step == "high":
            higher = {"team": "red", "priority_class": "high"} if red else {}
            high_jobs.append(scenario.submit(f"high-{len(high_jobs)}", nodes=1, **higher).job_id)
        elif step == "end" and high_jobs:
            name = high_jobs.pop()
            if scenario.job(name).state is JobState.RUNNING:
                scenario.world.cluster.finish_pods(name, scenario.job(name).current_attempt)
                scenario.settle(name, scenario.job(name).current_attempt)
            else:
                high_jobs.append(name)
        elif step == "cordon":
            scenario.world.cluster.cordon(CLUSTER, node_name(size), None)
        settle_down(4)
    settle_down(40)
    assert settle_down(40) == 0


def lose_node(scenario: JobScenario, job_id: str, waits_seconds: float) -> None:
    """Remove a node of a job permanently, and plan the recovery of the job."""
    affected = scenario.attempt(job_id, scenario.job(job_id).current_attempt)
    scenario.world.cluster.remove_node(affected.node_names[0])
    now = scenario.world.clock.now()
    stop = scenario.job(job_id).stop_request_now("Its node is gone.", "recover_node/inc-1", now)
    plan = ResumePlan(
        incident_id="inc-1",
        after_attempt=affected.attempt,
        option=ResumeOption.SHRINK,
        shrinks_at=now + timedelta(seconds=waits_seconds),
        planned_at=now,
    )
    scenario.set_job(
        scenario.job(job_id)
        .replace(stop_request=stop.replace(outcome=AttemptState.LOST))
        .with_plan(plan, is_still_distrusted=False)
    )
    stop_and_readmit(scenario, job_id)


def test_job_waits_for_a_spare_and_then_shrinks() -> None:
    scenario = a_scenario(size=3)
    job = scenario.running(nodes=3, elastic={"min_nodes": 1, "max_nodes": 3})
    lose_node(scenario, job.job_id, waits_seconds=60)

    scenario.run_scheduling_cycle()
    assert scenario.job(job.job_id).state is JobState.PENDING
    scenario.world.clock.advance(61)
    scenario.run_scheduling_cycle()

    again = scenario.job(job.job_id)
    assert (again.state, again.size, again.application_failures) == (JobState.STARTING, 2, 0)


def test_job_waits_for_a_spare_before_recovery_has_planned() -> None:
    scenario = a_scenario(size=3)
    job = scenario.running(nodes=3, elastic={"min_nodes": 1, "max_nodes": 3})
    scenario.world.cluster.lose_node(scenario.attempt(job.job_id, 1).node_names[0])
    scenario.world.clock.advance(POLICY.jobs.lost_node_seconds + 1)
    scenario.world.cluster.fail_pods(job.job_id, 1, 1, 2, exit_code=76)
    scenario.settle(job.job_id, 1)

    scenario.run_scheduling_cycle()
    waits = scenario.job(job.job_id)
    scenario.world.clock.advance(TERMS.spare_wait_seconds)
    scenario.run_scheduling_cycle()
    again = scenario.job(job.job_id)

    assert (scenario.attempt(job.job_id, 1).state, waits.state) == (AttemptState.LOST, JobState.PENDING)
    assert (again.state, again.size, again.lost_at) == (JobState.STARTING, 2, None)


def test_grown_job_resumes_at_its_last_size() -> None:
    scenario = a_shared_scenario(size=5)
    job = scenario.running(team="red", priority_class="high", **ELASTIC)
    wait_idle(scenario, 21)
    carry_out_resize(scenario, job.job_id)
    lose_node(scenario, job.job_id, waits_seconds=0)

    scenario.run_scheduling_cycle()

    again = scenario.job(job.job_id)
    assert (again.state, again.size) == (JobState.STARTING, 4)


# ---------------------------------------------------------------- serving


CHAT = ServingWorkload(cluster=CLUSTER, namespace="serving", name="chat", max_replicas=3)


def a_replica(number: int, node: str = "", **changes: Any) -> UnmanagedPod:
    facts: dict[str, Any] = {
        "namespace": "serving",
        "name": f"chat-7d9f-{number}",
        "uid": f"uid-{number}",
        "node_name": node,
        "accelerators": 8,
        "kind": "ReplicaSet",
        "workload": "chat-7d9f",
    }
    return UnmanagedPod.model_validate({**facts, **changes})


def a_serving_scenario(size: int = 4) -> JobScenario:
    return a_scenario(size, policy=Policy(scheduling=SchedulingPolicy(elastic=TERMS, serving=(CHAT,))))


def test_pending_replicas_shrink_an_elastic_job_until_the_spike_ends() -> None:
    scenario = a_serving_scenario()
    job = scenario.running(nodes=4, elastic={"min_nodes": 1, "max_nodes": 4})
    scenario.world.cluster.unmanaged = [a_replica(1), a_replica(2)]

    scenario.run_scheduling_cycle()

    wish = scenario.job(job.job_id).live_resize()
    assert wish
    assert (wish.nodes, wish.for_job) == (2, "serving/chat")
    stop_and_readmit(scenario, job.job_id)
    scenario.run_scheduling_cycle()
    assert scenario.job(job.job_id).size == 2
    scenario.run_attempt(job.job_id, 2)
    free = [
        node_name(number)
        for number in range(1, 5)
        if node_name(number) not in scenario.attempt(job.job_id, 2).node_names
    ]
    scenario.world.cluster.unmanaged = [a_replica(1, free[0]), a_replica(2, free[1])]
    wait_idle(scenario, 600)
    assert scenario.job(job.job_id).live_resize() is None
    scenario.world.cluster.unmanaged = []
    wait_idle(scenario, 31)
    assert carry_out_resize(scenario, job.job_id).size == 4


def test_nodes_for_pending_replicas_go_to_no_job() -> None:
    scenario = a_serving_scenario(size=2)
    scenario.world.cluster.unmanaged = [a_replica(1)]

    job = scenario.started(nodes=2, elastic={"min_nodes": 1, "max_nodes": 2})

    assert job.size == 1


@pytest.mark.parametrize(
    "pod",
    [
        a_replica(1, namespace="other"),
        a_replica(1, workload="chatter-7d9f"),
        a_replica(1, kind="Job", workload="chat"),
        a_replica(1, accelerators=0),
    ],
)
def test_unregistered_deployment_shrinks_no_job(pod: UnmanagedPod) -> None:
    scenario = a_serving_scenario()
    job = scenario.running(nodes=4, elastic={"min_nodes": 1, "max_nodes": 4})
    scenario.world.cluster.unmanaged = [pod]

    scenario.run_scheduling_cycle()

    assert scenario.job(job.job_id).live_resize() is None


def test_nodes_are_freed_for_registered_replicas_only() -> None:
    scenario = a_serving_scenario(size=6)
    job = scenario.running(nodes=6, elastic={"min_nodes": 1, "max_nodes": 6})
    scenario.world.cluster.unmanaged = [a_replica(number) for number in range(5)]

    scenario.run_scheduling_cycle()

    wish = scenario.job(job.job_id).live_resize()
    assert wish
    assert wish.nodes == 3


@pytest.mark.parametrize("when", SIDES)
@pytest.mark.parametrize("at", effects_of(33))
def test_both_jobs_run_after_any_crash_of_a_shrink(at: int, when: CrashTiming) -> None:
    scenario = a_shared_scenario(plan=CrashPlan(0, when))
    low = scenario.running(team="red", priority_class="low", nodes=4, elastic={"min_nodes": 1, "max_nodes": 4})
    high = scenario.submit("high", team="red", priority_class="high", nodes=2)
    scenario.plan.at = len(scenario.plan.effects) + at
    for _ in range(40):
        try:
            scenario.run_scheduling_cycle()
            for name in (low.job_id, high.job_id):
                current = scenario.job(name)
                number = current.current_attempt
                if current.stop_request and current.state in (JobState.RUNNING, JobState.STARTING):
                    stop_and_readmit(scenario, name)
                elif current.state is JobState.STARTING:
                    scenario.run_attempt(name, number)
        except Crash:
            pass
        assert scenario.usage("red") <= 32
        scenario.world.clock.advance(3)

    ends = [scenario.job(name) for name in (low.job_id, high.job_id)]
    assert [(end.state, end.size, end.application_failures) for end in ends] == [
        (JobState.RUNNING, 2, 0),
        (JobState.RUNNING, 2, 0),
    ]
    assert not ends[0].is_preempted
    assert [record.action for record in decision_records(scenario, low.job_id)] == ["SHRINK"]


def test_resizes_beyond_one_commit_continue_in_later_cycles() -> None:
    scenario = a_shared_scenario(size=60, red=480)
    sizes = {"min_nodes": 1, "max_nodes": 2}
    names = [scenario.running(team="red", priority_class="low", nodes=2, elastic=sizes).job_id for _ in range(30)]
    scenario.submit("high", team="red", priority_class="high", nodes=30)
    counts = []

    for _ in range(3):
        scenario.run_scheduling_cycle()
        counts.append(sum(scenario.job(name).live_resize() is not None for name in names))

    assert counts == [24, 30, 30]
    assert not any(scenario.job(name).is_preempted for name in names)
