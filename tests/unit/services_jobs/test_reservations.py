"""Nodes of an expiring reservation: jobs leave them in time, and no job that would not finish starts on them."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from evenkeel.adapters.capacity_reservations import Ec2CapacityReservations
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.capacity_blocks import CapacityReservation
from evenkeel.domain.capacity.capacity_policy import ReservedPool
from evenkeel.domain.capacity.training_plans import TrainingPlan
from evenkeel.domain.decisions import Decision
from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.elastic.sizes import ElasticPolicy
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.nodes import RESERVATION_LABELS
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.replay import replay
from evenkeel.ports import Put, Row
from evenkeel.services.sweep.sweep_fleet import SweepOutcome
from evenkeel.services.tables import fleet_rows
from tests.fakes.cluster import CLUSTER
from tests.fakes.counting import CountedCalls
from tests.fakes.system import A_MOMENT as NOW
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_jobs.test_rentals import SPOT, RentalScenario, a_policy
from tests.unit.services_jobs.test_teams import MEMBERS, set_up_teams

HELD_SECONDS = 3600
"""Seconds from the start in which jobs may use the reservation."""
GRACE_SECONDS, MARGIN_SECONDS = 30, 60
SAVES_AT = HELD_SECONDS - GRACE_SECONDS - MARGIN_SECONDS
"""Second at which the last save begins."""
CHECKPOINT_SECONDS, LAUNCH_SECONDS, RESUME_SECONDS = 300, 60, 60
LAST_START = SAVES_AT - CHECKPOINT_SECONDS - LAUNCH_SECONDS - RESUME_SECONDS
"""Last second at which a job with checkpoints may start."""
TERMS = ElasticPolicy(resize_seconds=10, snooze_seconds=0)


def a_plan(**changes: Any) -> ReservedPool:
    ends_at = NOW + timedelta(seconds=HELD_SECONDS + 1800)
    facts = {"cluster": CLUSTER, "pool": "p5-workers", "starts_at": NOW - timedelta(days=30), "ends_at": ends_at}
    return ReservedPool.model_validate({**facts, **changes})


def policy_with(plan: ReservedPool) -> Policy:
    scheduling = SchedulingPolicy(reservations=(plan,), elastic=TERMS)
    economy = EconomyPolicy(expected_checkpoint_seconds=CHECKPOINT_SECONDS, expected_launch_seconds=LAUNCH_SECONDS)
    return a_policy().replace(scheduling=scheduling, economy=economy)


POLICY = policy_with(a_plan())


def run_cycle_at(renting: RentalScenario, seconds: float) -> None:
    """Move the clock to this time after the start, and run a cycle."""
    renting.world.clock.advance(seconds - (renting.world.clock.now() - NOW).total_seconds())
    renting.scenario.run_scheduling_cycle()


def a_job_at_work(renting: RentalScenario, **changes: Any) -> Job:
    job = renting.scenario.submit("at-work", **changes)
    renting.scenario.run_scheduling_cycle()
    renting.run_attempt(job.job_id, 1)
    return renting.scenario.job(job.job_id)


def migration_decisions(renting: RentalScenario) -> list[Decision]:
    return renting.decision_records("MIGRATION")


def test_job_is_stopped_once_to_save_before_its_reservation_ends() -> None:
    renting = RentalScenario(policy=POLICY)
    job = a_job_at_work(renting)

    run_cycle_at(renting, SAVES_AT - 1)
    before = renting.scenario.job(job.job_id)
    run_cycle_at(renting, SAVES_AT)
    stopped = renting.scenario.job(job.job_id)
    run_cycle_at(renting, SAVES_AT + 1)

    assert before.stop_request is None
    assert stopped.stop_request is not None
    assert stopped.stop_request.grace_seconds == GRACE_SECONDS
    assert stopped.reason.startswith(
        "The job saves a checkpoint and leaves: The reservation of p5-workers is usable until "
    )
    assert renting.scenario.job(job.job_id) == stopped
    assert [(record.subject, record.action) for record in migration_decisions(renting)] == [(job.job_id, "REQUEUE")]
    assert replay(migration_decisions(renting)[0], POLICY).differs_from(migration_decisions(renting)[0]) == ""


def test_drained_job_resumes_on_nodes_that_stay() -> None:
    renting = RentalScenario(policy=POLICY)
    job = a_job_at_work(renting)
    run_cycle_at(renting, SAVES_AT)

    renting.scenario.stop(job.job_id, 1)
    renting.scenario.settle(job.job_id, 1)
    for step in (
        renting.scenario.run_scheduling_cycle,
        renting.advance_executions,
        renting.launch_nodes,
        renting.advance_executions,
        renting.scenario.run_scheduling_cycle,
    ):
        step()

    assert renting.scenario.job(job.job_id).state is JobState.STARTING
    assert renting.scenario.attempt(job.job_id, 2).pool == SPOT
    assert renting.scenario.job(job.job_id).application_failures == 0


def test_job_does_not_migrate_to_expiring_nodes() -> None:
    renting = RentalScenario(policy=POLICY)
    first, second = renting.run_second_job_on_rented_nodes()
    run_cycle_at(renting, LAST_START + 1)
    renting.world.cluster.finish_pods(first.job_id, 1)
    renting.scenario.settle(first.job_id, 1)

    renting.scenario.run_scheduling_cycle()

    assert renting.scenario.job(second.job_id).stop_request is None
    assert migration_decisions(renting) == []


@pytest.mark.parametrize(
    ("seconds", "change", "state"),
    [
        (LAST_START, {}, JobState.STARTING),
        (LAST_START + 1, {}, JobState.PENDING),
        (0, {"checkpoint_uri": ""}, JobState.PENDING),
    ],
    ids=["it can save there once", "it cannot any more", "it keeps nothing, and would not be done"],
)
def test_job_is_not_admitted_to_nodes_that_expire_first(
    seconds: float, change: dict[str, Any], state: JobState
) -> None:
    renting = RentalScenario(policy=POLICY.replace(burst=Policy().burst))
    renting.world.clock.advance(seconds)
    job = renting.scenario.submit("late", **change)

    renting.scenario.run_scheduling_cycle()

    pending = renting.scenario.job(job.job_id)
    assert pending.state is state
    assert state is JobState.STARTING or "2 usable only until" in pending.reason


@pytest.mark.parametrize("has_teams", [False, True])
def test_job_too_long_for_a_reservation_blocks_no_shorter_job(*, has_teams: bool) -> None:
    scenario = JobScenario(size=2, policy=POLICY.replace(burst=Policy().burst))
    team = {"team": "red"} if has_teams else {}
    if has_teams:
        set_up_teams(scenario, a_team("red", 32, members=MEMBERS))
    long = scenario.submit("keeps nothing", checkpoint_uri="", **team)
    short = scenario.submit("saves", **team)

    scenario.run_scheduling_cycle()

    assert scenario.job(long.job_id).state is JobState.PENDING
    assert scenario.job(short.job_id).state is JobState.STARTING


def test_job_that_reservation_would_cut_off_gets_rental() -> None:
    renting = RentalScenario(policy=POLICY)
    renting.world.clock.advance(LAST_START + 1)

    renting.scenario.submit("late")
    renting.scenario.run_scheduling_cycle()

    [record] = renting.decision_records("PLACEMENT")
    assert record.action == "RENT"
    assert any(
        alternative.option == "p5-workers" and "before the job's first checkpoint" in alternative.why_not
        for alternative in record.alternatives
    )


@pytest.mark.parametrize(("seconds", "grows"), [(0, True), (LAST_START + 1, False)])
def test_elastic_job_does_not_grow_onto_expiring_nodes(seconds: float, *, grows: bool) -> None:
    renting = RentalScenario(policy=POLICY.replace(burst=Policy().burst))
    job = a_job_at_work(renting, nodes=1, elastic={"min_nodes": 1, "max_nodes": 2})
    renting.scenario.submit("keeps nothing, and so waits for no machine of these", nodes=1, checkpoint_uri="")

    for later in (1, 60):
        run_cycle_at(renting, seconds + later)

    assert (renting.scenario.job(job.job_id).resize is not None) == grows


def test_observe_mode_drains_no_job() -> None:
    renting = RentalScenario(policy=POLICY)
    job = a_job_at_work(renting)
    renting.scenario.mode = Mode.OBSERVE

    run_cycle_at(renting, SAVES_AT)

    assert renting.scenario.job(job.job_id).stop_request is None


def test_concurrent_cycles_drain_each_job_once() -> None:
    scenario = JobScenario(size=40, policy=POLICY)
    jobs = [scenario.submit(f"small-{number}", nodes=1) for number in range(40)]
    for _ in range(2):
        scenario.run_scheduling_cycle()
    for job in jobs:
        scenario.run_attempt(job.job_id, 1)
    raced: list[bool] = []
    commit = scenario.world.ledger.commit

    def race(*writes: Any, client_token: str = "") -> None:
        if not raced and any("leaving-1" in str(write) for write in writes):
            raced.append(True)
            scenario.run_scheduling_cycle()
        commit(*writes, client_token=client_token)

    scenario.world.clock.advance(SAVES_AT)
    scenario.world.ledger.commit = race  # type: ignore[method-assign]
    scenario.run_scheduling_cycle()

    stays = [row for row in scenario.world.ledger.rows.values() if row.doc.get("kind") == "MIGRATION"]
    assert raced
    assert all(scenario.job(job.job_id).stop_request is not None for job in jobs)
    assert len(stays) == len(jobs)


def test_pool_has_one_reservation() -> None:
    with pytest.raises(ValueError, match="two reservations of the same pool"):
        SchedulingPolicy(reservations=(a_plan(), a_plan()))


# ---------------------------------------------------------------- ends that SageMaker states

PLAN_ARN = "arn:aws:sagemaker:us-west-2:000000000000:training-plan/p5-autumn"
UNSTATED = POLICY.replace(scheduling=SchedulingPolicy(elastic=TERMS))
"""The same policy without reservations."""


def fleet_with_a_plan(policy: Policy = UNSTATED, **changes: Any) -> RentalScenario:
    """Return a fleet whose policy states no reservation, but whose nodes come from a training plan."""
    renting = RentalScenario(policy=policy)
    stated = a_plan(**changes)
    provider = renting.world.provider
    provider.settings = provider.settings.replace(plan_by_group={stated.pool: PLAN_ARN})
    provider.plans[PLAN_ARN] = TrainingPlan(name="p5-autumn", periods=(stated.reservation,))
    return renting


def test_job_leaves_in_time_if_only_sagemaker_states_the_end() -> None:
    renting = fleet_with_a_plan()
    job = a_job_at_work(renting)
    renting.scenario.sweep()

    run_cycle_at(renting, SAVES_AT - 1)
    before = renting.scenario.job(job.job_id)
    run_cycle_at(renting, SAVES_AT)

    assert before.stop_request is None
    assert renting.scenario.job(job.job_id).stop_request is not None
    (record,) = migration_decisions(renting)
    assert record.policy_hash == UNSTATED.hash
    assert replay(record, UNSTATED).differs_from(record) == ""


def test_job_is_not_admitted_to_nodes_of_an_ending_plan() -> None:
    renting = fleet_with_a_plan(UNSTATED.replace(burst=Policy().burst))
    renting.scenario.sweep()
    renting.world.clock.advance(LAST_START + 1)
    job = renting.scenario.submit("late")

    renting.scenario.run_scheduling_cycle()

    pending = renting.scenario.job(job.job_id)
    assert pending.state is JobState.PENDING
    assert "usable only until" in pending.reason


def test_unreadable_plan_is_reported_and_keeps_its_end() -> None:
    renting = fleet_with_a_plan()
    renting.scenario.sweep()
    row = renting.world.ledger.get(fleet_rows.plan_ends_key())
    renting.world.provider.plans.clear()
    renting.world.clock.advance(900)

    result = renting.scenario.sweep()

    assert any(failure.startswith(f"plans: {PLAN_ARN}: Unreachable") for failure in result.failed)
    assert renting.world.ledger.get(fleet_rows.plan_ends_key()) == row


NOT_READABLE = {"cluster": CLUSTER, "group": "p5-other", "plan": "p5-spring", "reservation": "a newer form"}


def add_unreadable_end(renting: RentalScenario) -> Row:
    """Add an end that this release cannot read to the stored ends; return the row."""
    ledger = renting.world.ledger
    row = ledger.get(fleet_rows.plan_ends_key())
    assert row is not None
    doc = {**row.doc, "groups": [NOT_READABLE, *row.doc["groups"]]}
    ledger.commit(Put(Row(row.key, doc, row.version)))
    return Row(row.key, doc, row.version + 1)


def test_unreadable_plan_end_hides_no_other_end() -> None:
    renting = fleet_with_a_plan()
    job = a_job_at_work(renting)
    renting.scenario.sweep()
    add_unreadable_end(renting)

    run_cycle_at(renting, SAVES_AT - 1)
    before = renting.scenario.job(job.job_id)
    run_cycle_at(renting, SAVES_AT)

    assert before.stop_request is None
    assert renting.scenario.job(job.job_id).stop_request is not None


def test_sweep_reports_an_unreadable_plan_end_and_replaces_it() -> None:
    renting = fleet_with_a_plan()
    renting.scenario.sweep()
    row = renting.world.ledger.get(fleet_rows.plan_ends_key())
    assert row is not None
    add_unreadable_end(renting)
    renting.world.clock.advance(900)

    result = renting.scenario.sweep()

    after = renting.world.ledger.get(fleet_rows.plan_ends_key())
    assert after is not None
    assert any("plans: groups.0 of" in failure for failure in result.failed)
    assert [end["group"] for end in after.doc["groups"]] == [end["group"] for end in row.doc["groups"]]
    renting.world.clock.advance(900)
    assert renting.scenario.sweep().failed == ()


def test_unreadable_plan_end_stays_while_its_plan_cannot_be_read() -> None:
    renting = fleet_with_a_plan()
    renting.scenario.sweep()
    row = add_unreadable_end(renting)
    renting.world.provider.plans.clear()
    renting.world.clock.advance(900)

    renting.scenario.sweep()

    assert renting.world.ledger.get(row.key) == row


def test_idle_cycle_reads_no_cluster_while_a_plan_lasts() -> None:
    renting = fleet_with_a_plan(ends_at=NOW + timedelta(days=5))
    renting.scenario.sweep()
    calls = CountedCalls(renting.world)
    renting.scenario.cluster = calls.ports["cluster"]

    renting.scenario.run_scheduling_cycle()

    assert not [name for name in calls.calls if name.startswith("cluster.")]


def test_idle_cycle_reads_no_cluster_after_a_plan_has_ended() -> None:
    """An expired plan stays with its instance group until a person deletes it."""
    renting = fleet_with_a_plan(ends_at=NOW + timedelta(days=5))
    renting.scenario.sweep()
    renting.world.clock.advance(6 * 86_400)
    calls = CountedCalls(renting.world)
    renting.scenario.cluster = calls.ports["cluster"]

    renting.scenario.run_scheduling_cycle()

    assert not [name for name in calls.calls if name.startswith("cluster.")]


# ---------------------------------------------------------------- ends that EC2 states

BLOCK, OTHER_BLOCK = "cr-0123456789abcdef0", "cr-0123456789abcdef1"


def fleet_with_a_capacity_block(policy: Policy = UNSTATED) -> RentalScenario:
    """Return a fleet whose policy states no reservation, but whose nodes are launched from a Capacity Block."""
    renting = RentalScenario(policy=policy)
    world = renting.world
    for node in world.cluster.nodes(CLUSTER):
        world.cluster.set_node(node.name, labels={**node.labels, RESERVATION_LABELS[0]: BLOCK})
    world.capacity_reservations.reservations[BLOCK] = CapacityReservation(
        reservation_id=BLOCK, period=a_plan().reservation
    )
    return renting


def test_job_leaves_capacity_block_before_the_end_that_ec2_states() -> None:
    renting = fleet_with_a_capacity_block()
    job = a_job_at_work(renting)
    renting.scenario.sweep()

    run_cycle_at(renting, SAVES_AT - 1)
    before = renting.scenario.job(job.job_id)
    run_cycle_at(renting, SAVES_AT)

    assert before.stop_request is None
    assert renting.scenario.job(job.job_id).stop_request is not None
    (record,) = migration_decisions(renting)
    assert replay(record, UNSTATED).differs_from(record) == ""


def test_end_of_a_capacity_block_concerns_only_its_own_nodes() -> None:
    renting = fleet_with_a_capacity_block(UNSTATED.replace(burst=Policy().burst))
    cluster, scenario = renting.world.cluster, renting.scenario
    jobs = [scenario.submit(f"small-{number}", nodes=1) for number in range(2)]
    scenario.run_scheduling_cycle()
    for job in jobs:
        renting.run_attempt(job.job_id, 1)
    on_block, on_demand = jobs
    (node,) = scenario.attempt(on_demand.job_id).node_names
    labels = next(other.labels for other in cluster.nodes(CLUSTER) if other.name == node)
    cluster.set_node(node, labels={name: value for name, value in labels.items() if name != RESERVATION_LABELS[0]})
    scenario.sweep()

    run_cycle_at(renting, SAVES_AT)
    cluster.finish_pods(on_demand.job_id, 1)
    scenario.settle(on_demand.job_id, 1)
    late = scenario.submit("late", nodes=1)
    scenario.run_scheduling_cycle()

    assert scenario.job(on_block.job_id).stop_request is not None
    assert scenario.job(on_demand.job_id).state is JobState.SUCCEEDED
    assert scenario.attempt(late.job_id).node_names == (node,)


def test_jobs_leave_both_capacity_blocks_of_a_pool() -> None:
    renting = fleet_with_a_capacity_block(UNSTATED.replace(burst=Policy().burst))
    cluster, scenario = renting.world.cluster, renting.scenario
    second = cluster.nodes(CLUSTER)[1]
    cluster.set_node(second.name, labels={**second.labels, RESERVATION_LABELS[0]: OTHER_BLOCK})
    later = a_plan(ends_at=a_plan().ends_at + timedelta(seconds=1)).reservation
    renting.world.capacity_reservations.reservations[OTHER_BLOCK] = CapacityReservation(
        reservation_id=OTHER_BLOCK, period=later
    )
    jobs = [scenario.submit(f"small-{number}", nodes=1) for number in range(2)]
    scenario.run_scheduling_cycle()
    for job in jobs:
        renting.run_attempt(job.job_id, 1)
    scenario.sweep()

    stopped = []
    for seconds in (SAVES_AT, SAVES_AT + 1):
        run_cycle_at(renting, seconds)
        stopped.append(sum(scenario.job(job.job_id).stop_request is not None for job in jobs))

    assert stopped == [1, 2]


def test_no_job_starts_on_a_capacity_block_that_ends_first() -> None:
    renting = fleet_with_a_capacity_block(UNSTATED.replace(burst=Policy().burst))
    renting.scenario.sweep()
    renting.world.clock.advance(LAST_START + 1)
    job = renting.scenario.submit("late")

    renting.scenario.run_scheduling_cycle()

    pending = renting.scenario.job(job.job_id)
    assert pending.state is JobState.PENDING
    assert "usable only until" in pending.reason


def test_unreadable_capacity_block_is_reported_and_keeps_its_end() -> None:
    renting = fleet_with_a_capacity_block()
    renting.scenario.sweep()
    row = renting.world.ledger.get(fleet_rows.plan_ends_key())
    renting.world.capacity_reservations.reservations.clear()
    renting.world.clock.advance(900)

    result = renting.scenario.sweep()

    assert row is not None
    assert [end["plan"] for end in row.doc["groups"]] == [BLOCK]
    assert any(failure.startswith(f"plans: {BLOCK}: NotFound") for failure in result.failed)
    assert renting.world.ledger.get(fleet_rows.plan_ends_key()) == row


def test_malformed_answer_of_one_block_does_not_stop_the_sweep() -> None:
    renting = fleet_with_a_capacity_block()
    renting.scenario.sweep()
    row = renting.world.ledger.get(fleet_rows.plan_ends_key())
    answer = {"CapacityReservationId": BLOCK, "ReservationType": "capacity-block"}
    stub = SimpleNamespace(describe_capacity_reservations=lambda **_: {"CapacityReservations": [answer]})
    renting.world.capacity_reservations = Ec2CapacityReservations(stub)  # type: ignore[assignment]  # the real adapter
    renting.world.clock.advance(900)

    result = renting.scenario.sweep()

    assert any(failure.startswith(f"plans: {BLOCK}: Unreadable") for failure in result.failed)
    assert result.outcome is SweepOutcome.SWEPT
    assert renting.world.ledger.get(fleet_rows.plan_ends_key()) == row


def test_plan_that_states_no_times_keeps_its_end() -> None:
    renting = RentalScenario(policy=UNSTATED)
    provider = renting.world.provider
    provider.settings = provider.settings.replace(plan_by_group={"p5-workers": PLAN_ARN})
    provider.plans[PLAN_ARN] = TrainingPlan(name="p5-autumn", periods=(a_plan().reservation,))
    renting.scenario.sweep()
    row = renting.world.ledger.get(fleet_rows.plan_ends_key())
    provider.plans[PLAN_ARN] = TrainingPlan(name="p5-autumn", periods=())
    renting.world.clock.advance(900)

    renting.scenario.sweep()

    assert row is not None
    assert row.doc["groups"]
    assert renting.world.ledger.get(fleet_rows.plan_ends_key()) == row


def test_extension_of_a_capacity_block_is_read() -> None:
    renting = fleet_with_a_capacity_block()
    renting.scenario.sweep()
    extended = a_plan(ends_at=NOW + timedelta(days=9)).reservation
    block = CapacityReservation(reservation_id=BLOCK, period=extended)
    renting.world.capacity_reservations.reservations[BLOCK] = block
    renting.world.clock.advance(900)
    job = a_job_at_work(renting)
    renting.scenario.sweep()

    run_cycle_at(renting, SAVES_AT)

    assert renting.scenario.job(job.job_id).stop_request is None


def test_ends_of_plans_and_blocks_are_stored_together() -> None:
    renting = fleet_with_a_capacity_block()
    provider = renting.world.provider
    provider.settings = provider.settings.replace(plan_by_group={"p5-other": PLAN_ARN})
    provider.plans[PLAN_ARN] = TrainingPlan(name="p5-autumn", periods=(a_plan().reservation,))

    for _ in range(2):
        renting.scenario.sweep()
        row = renting.world.ledger.get(fleet_rows.plan_ends_key())
        assert row is not None
        assert [end["group"] for end in row.doc["groups"]] == ["p5-other", "p5-workers"]
        renting.world.clock.advance(900)


def test_sweep_of_nodes_without_a_reservation_does_not_call_ec2() -> None:
    renting = RentalScenario(policy=UNSTATED)
    calls = CountedCalls(renting.world)
    renting.world.capacity_reservations = calls.ports["capacity_reservations"]

    renting.scenario.sweep()

    assert not [name for name in calls.calls if name.startswith("capacity_reservations.")]
