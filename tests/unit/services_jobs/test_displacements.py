"""A job that keeps checkpoints moves to rented nodes, so that a job without checkpoints starts on committed nodes."""

from typing import Any

import pytest

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.renting.displacement import DisplacementFacts
from evenkeel.domain.replay import replay
from evenkeel.ports import Ledger
from evenkeel.services.jobs import suspend_job
from evenkeel.services.jobs.check_role import Requester
from tests.unit.services_jobs.test_budgets import market_with_budgets
from tests.unit.services_jobs.test_rentals import NODE_HOUR, ON_DEMAND, SPOT, RentalScenario, a_policy, a_pool

NO_CHECKPOINTS: dict[str, Any] = {"checkpoint_uri": ""}
ANA = Requester(principal="role/ana", identity="111122223333:role/ana", actor="ana")


def movable_and_waiting_jobs(**changes: Any) -> tuple[RentalScenario, Job, Job]:
    """Return a job with checkpoints on both nodes, and a pending job without checkpoints."""
    mode = changes.pop("mode", Mode.ACT)
    renting = RentalScenario(policy=a_policy(**{"max_moves": 3, **changes}))
    first = renting.scenario.submit("first")
    renting.scenario.run_scheduling_cycle()
    renting.run_attempt(first.job_id, 1)
    renting.world.clock.advance(60)
    second = renting.scenario.submit("second", **NO_CHECKPOINTS)
    renting.scenario.mode = mode
    return renting, first, second


def commit_count(ledger: Ledger) -> int:
    return len(ledger.commits)  # type: ignore[attr-defined]


def test_job_with_checkpoints_moves_and_waiting_job_takes_nodes() -> None:
    renting, first, second = movable_and_waiting_jobs()

    renting.scenario.run_scheduling_cycle()
    moving, waits = renting.scenario.job(first.job_id), renting.scenario.job(second.job_id)
    renting.scenario.stop(first.job_id, 1)
    renting.scenario.settle(first.job_id, 1)
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.launch_nodes()
    renting.advance_executions()
    renting.scenario.run_scheduling_cycle()

    assert moving.stop_request is not None
    assert moving.stop_request.by == f"schedule_jobs/displace/{second.job_id}"
    assert waits.reason.startswith("1 job moves to rented nodes, so that the job starts in ")
    assert renting.scenario.attempt(second.job_id, 1).pool == "p5-workers"
    assert renting.scenario.attempt(first.job_id, 2).pool == SPOT
    moved = renting.scenario.job(first.job_id)
    assert (moved.moves, moved.displaced_at) == (1, None)
    assert renting.scenario.job(second.job_id).displacing_since is None


def test_no_nodes_are_rented_for_job_during_a_displacement() -> None:
    renting, first, second = movable_and_waiting_jobs()
    renting.scenario.run_scheduling_cycle()
    before = commit_count(renting.world.ledger)

    renting.scenario.run_scheduling_cycle()

    assert renting.scenario.job(second.job_id).rentals == 0
    assert len(renting.decision_records("DISPLACEMENT")) == 1
    assert renting.scenario.job(first.job_id).moves == 1
    renting.scenario.run_scheduling_cycle()
    assert commit_count(renting.world.ledger) - before <= 2  # at most its reason is new


def test_displacement_decision_replays_and_names_the_rejected_option() -> None:
    renting, _, _ = movable_and_waiting_jobs()
    renting.scenario.run_scheduling_cycle()

    (record,) = renting.decision_records("DISPLACEMENT")

    assert replay(record, renting.policy).differs_from(record) == ""
    assert [option.option for option in record.alternatives] == ["burst-on-demand"]


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.RECOMMEND])
def test_jobs_move_only_in_mode_act(mode: Mode) -> None:
    renting, first, _ = movable_and_waiting_jobs(mode=mode)

    renting.scenario.run_scheduling_cycle()

    assert renting.scenario.job(first.job_id).stop_request is None
    assert renting.decision_records("DISPLACEMENT") == []


def test_shipped_policy_moves_no_job_off_committed_nodes() -> None:
    renting, first, second = movable_and_waiting_jobs(max_moves=0)

    renting.scenario.run_scheduling_cycle()

    assert renting.scenario.job(first.job_id).stop_request is None
    assert renting.scenario.job(second.job_id).rentals == 1


def moved_job_and_free_committed_nodes() -> tuple[RentalScenario, Job]:
    """Return a job that moved to rented nodes, as often as the policy allows; the committed nodes are free again."""
    renting, first, second = movable_and_waiting_jobs(max_moves=1)
    renting.scenario.run_scheduling_cycle()
    renting.scenario.stop(first.job_id, 1)
    renting.scenario.settle(first.job_id, 1)
    renting.scenario.run_scheduling_cycle()
    renting.advance_executions()
    renting.launch_nodes()
    renting.advance_executions()
    renting.scenario.run_scheduling_cycle()
    renting.run_attempt(first.job_id, 2)
    renting.run_attempt(second.job_id, 1)
    renting.world.cluster.finish_pods(second.job_id, 1)
    renting.scenario.settle(second.job_id, 1)
    return renting, first


def test_limit_of_moves_keeps_no_job_on_rented_nodes() -> None:
    renting, first = moved_job_and_free_committed_nodes()
    assert renting.scenario.job(first.job_id).moves == 1

    renting.scenario.run_scheduling_cycle()

    stop = renting.scenario.job(first.job_id).stop_of(2)
    assert stop is not None
    assert stop.reason.startswith("The job migrates back to committed capacity: p5-workers has free nodes")


def test_job_that_moved_as_often_as_allowed_is_not_displaced() -> None:
    renting, first, second = movable_and_waiting_jobs(
        max_moves=1, delay_micros_per_hour={"high": 400_000_000, "low": 399_999_999}
    )
    scenario = renting.scenario
    first_job, second_job = scenario.job(first.job_id), scenario.job(second.job_id)
    scenario.set_job(first_job.replace(moves=1, spec=first_job.spec.replace(priority_class="low")))
    scenario.set_job(second_job.replace(spec=second_job.spec.replace(priority_class="high")))

    scenario.run_scheduling_cycle()

    assert scenario.job(first.job_id).stop_request is None
    assert renting.decision_records("DISPLACEMENT") == []


@pytest.mark.parametrize(("dearer", "is_asked_to_stop"), [(False, False), (True, True)])
def test_moved_job_moves_again_only_for_a_dearer_delay(dearer: bool, is_asked_to_stop: bool) -> None:
    price = 400_000_000
    renting, first, second = movable_and_waiting_jobs(delay_micros_per_hour={"high": price, "low": price - dearer})
    scenario = renting.scenario
    first_job = scenario.job(first.job_id)
    scenario.set_job(first_job.replace(moves=1, spec=first_job.spec.replace(priority_class="low")))
    second_job = scenario.job(second.job_id)
    scenario.set_job(second_job.replace(spec=second_job.spec.replace(priority_class="high")))

    scenario.run_scheduling_cycle()

    assert (scenario.job(first.job_id).stop_request is not None) is is_asked_to_stop


def two_movable_and_two_waiting_jobs(**changes: Any) -> tuple[RentalScenario, list[Job], list[Job]]:
    """Return two jobs with checkpoints on a node each, and two pending jobs without checkpoints."""
    renting = RentalScenario(policy=a_policy(max_moves=3, **changes))
    scenario = renting.scenario
    movable = [scenario.submit(f"movable-{number}", nodes=1) for number in range(2)]
    scenario.run_scheduling_cycle()
    for job in movable:
        renting.run_attempt(job.job_id, 1)
    renting.world.clock.advance(60)
    waiting = [scenario.submit(f"waiting-{number}", nodes=1, **NO_CHECKPOINTS) for number in range(2)]
    return renting, movable, waiting


@pytest.mark.parametrize(("cap_micros", "displaced_count"), [(NODE_HOUR[SPOT], 1), (2 * NODE_HOUR[SPOT], 2)])
def test_future_rent_of_a_displaced_job_counts_against_the_cap(cap_micros: int, displaced_count: int) -> None:
    caps = {"fleet_cap_micros_per_hour": cap_micros, "other_team_cap_micros_per_hour": cap_micros}
    renting, movable, _ = two_movable_and_two_waiting_jobs(**caps)
    scenario = renting.scenario

    for _ in range(3):  # the first displaced job still saves its checkpoint, and has rented nothing
        scenario.run_scheduling_cycle()

    assert sum(scenario.job(job.job_id).stop_request is not None for job in movable) == displaced_count


def test_future_rent_of_a_stopped_job_counts_against_the_cap() -> None:
    caps = dict.fromkeys(("fleet_cap_micros_per_hour", "other_team_cap_micros_per_hour"), NODE_HOUR[SPOT])
    renting, movable, _ = two_movable_and_two_waiting_jobs(**caps)
    scenario = renting.scenario
    scenario.run_scheduling_cycle()
    (stopping,) = [job.job_id for job in movable if scenario.job(job.job_id).stop_request]
    scenario.stop(stopping, 1)
    scenario.settle(stopping, 1)

    for _ in range(3):
        scenario.run_scheduling_cycle()

    assert sum(scenario.job(job.job_id).moves for job in movable) == 1


@pytest.mark.parametrize(("usd", "is_displaced"), [(10, False), (None, True)])
def test_job_whose_team_cannot_pay_its_rent_stays(usd: float | None, is_displaced: bool) -> None:
    renting = market_with_budgets(*([{"period": "month", "usd": usd}] if usd else []), max_moves=3)
    scenario = renting.scenario
    movable = scenario.submit("movable", team="red")
    scenario.run_scheduling_cycle()
    renting.run_attempt(movable.job_id, 1)
    renting.world.clock.advance(60)
    scenario.submit("waiting", team="red", **NO_CHECKPOINTS)

    scenario.run_scheduling_cycle()

    assert (scenario.job(movable.job_id).stop_request is not None) is is_displaced


def test_resumed_job_does_not_go_before_jobs_of_other_users() -> None:
    renting, _, waiting = movable_and_waiting_jobs()
    renting.scenario.run_scheduling_cycle()
    displacing = renting.scenario.job(waiting.job_id)
    request = suspend_job.JobChangeRequest(job_id=waiting.job_id, requester=ANA)

    suspend_job.suspend(request, renting.scenario.context())
    suspend_job.resume(request, renting.scenario.context())

    assert displacing.displacing_since is not None
    assert renting.scenario.job(waiting.job_id).displacing_since is None


def test_run_time_left_counts_earlier_attempts_of_moving_job() -> None:
    renting = RentalScenario(policy=a_policy(max_moves=3))
    scenario = renting.scenario
    renting.run_first_job_again_after_an_hour()
    renting.world.clock.advance(60)
    scenario.submit("second", **NO_CHECKPOINTS)

    scenario.run_scheduling_cycle()

    (record,) = renting.decision_records("DISPLACEMENT")
    (movable,) = DisplacementFacts.model_validate(record.facts).movable
    # The policy expects two hours, and both attempts ran for 61 minutes.
    assert movable.left_seconds == (7200 - 3660,)


def test_no_other_job_takes_the_rent_of_a_displaced_job() -> None:
    caps = dict.fromkeys(("fleet_cap_micros_per_hour", "other_team_cap_micros_per_hour"), NODE_HOUR[SPOT])
    renting, movable, _ = two_movable_and_two_waiting_jobs(**caps)
    scenario = renting.scenario
    scenario.run_scheduling_cycle()
    other_job = scenario.submit("other", nodes=1)

    for _ in range(2):
        scenario.run_scheduling_cycle()
    renting.world.clock.advance(1)
    (displaced,) = [job.job_id for job in movable if scenario.job(job.job_id).displaced_at]
    scenario.stop(displaced, 1)
    scenario.settle(displaced, 1)
    scenario.run_scheduling_cycle()

    assert (scenario.job(displaced).rentals, scenario.job(other_job.job_id).rentals) == (1, 0)


@pytest.mark.parametrize(("max_nodes", "moves"), [(1, 0), (2, 1)])
def test_displaced_jobs_rent_together_within_the_limit_of_a_pool(max_nodes: int, moves: int) -> None:
    pools = (a_pool(SPOT, Market.SPOT, max_nodes=max_nodes), a_pool(ON_DEMAND, Market.ON_DEMAND))
    renting = RentalScenario(policy=a_policy(max_moves=3, pools=pools))
    movable_jobs = [renting.scenario.submit(name, nodes=1) for name in ("first", "second")]
    renting.scenario.run_scheduling_cycle()
    for job in movable_jobs:
        renting.run_attempt(job.job_id, 1)
    renting.world.clock.advance(60)
    renting.scenario.submit("gang", **NO_CHECKPOINTS)

    renting.scenario.run_scheduling_cycle()

    assert [renting.scenario.job(job.job_id).moves for job in movable_jobs] == [moves, moves]


@pytest.mark.parametrize(("usd", "moves"), [(80, 0), (200, 1)])
def test_displaced_jobs_rent_together_within_the_budget(usd: int, moves: int) -> None:
    renting = market_with_budgets({"period": "month", "usd": usd}, max_moves=3)
    movable_jobs = [renting.scenario.submit(name, team="red", nodes=1) for name in ("first", "second")]
    renting.scenario.run_scheduling_cycle()
    for job in movable_jobs:
        renting.run_attempt(job.job_id, 1)
    renting.world.clock.advance(60)
    renting.scenario.submit("gang", team="red", **NO_CHECKPOINTS)

    renting.scenario.run_scheduling_cycle()

    # Each job is expected to rent a node at $20 for two hours and some minutes.
    assert [renting.scenario.job(job.job_id).moves for job in movable_jobs] == [moves, moves]
