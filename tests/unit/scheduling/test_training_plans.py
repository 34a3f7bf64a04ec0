"""When the nodes of a training plan end, as the sweep computes it from SageMaker's answers."""

from datetime import timedelta

from evenkeel.domain.capacity.capacity_policy import ReservedPool
from evenkeel.domain.capacity.pools import Reservation
from evenkeel.domain.capacity.training_plans import PlanEnds, TrainingPlan, current_plan_ends
from evenkeel.domain.policy import Policy
from tests.fakes.cluster import CLUSTER
from tests.fakes.system import A_MOMENT as NOW

ARN = "arn:aws:sagemaker:us-west-2:000000000000:training-plan/p5-autumn"
WORKERS = {"p5-workers": ARN}
DAY = timedelta(days=1)


def period(first_day: int, last_day: int) -> Reservation:
    """Return a period that starts and ends so many days from now."""
    return Reservation(starts_at=NOW + first_day * DAY, ends_at=NOW + last_day * DAY)


def plan(*periods: Reservation) -> TrainingPlan:
    return TrainingPlan(name="p5-autumn", periods=periods)


def read_ends(*periods: Reservation, earlier: PlanEnds | None = None) -> PlanEnds:
    return current_plan_ends(CLUSTER, WORKERS, {ARN: plan(*periods)}, earlier or PlanEnds(), NOW)


def test_nodes_end_with_the_period_that_runs_now() -> None:
    """A plan may have two periods with a gap: AWS takes the nodes back in between."""
    assert plan(period(10, 20), period(-1, 5)).period_at(NOW) == period(-1, 5)


def test_nodes_end_with_the_next_period_in_a_gap() -> None:
    assert plan(period(-9, -1), period(2, 5), period(8, 9)).period_at(NOW) == period(2, 5)


def test_expired_plan_keeps_its_last_end() -> None:
    assert plan(period(-9, -7), period(-5, -1)).period_at(NOW) == period(-5, -1)


def test_plan_without_a_period_ends_no_nodes() -> None:
    assert read_ends() == PlanEnds()


def test_instance_group_of_a_plan_is_a_reserved_pool() -> None:
    (pool,) = read_ends(period(-1, 5)).pools

    assert (pool.cluster, pool.pool, pool.ends_at) == (CLUSTER, "p5-workers", NOW + 5 * DAY)
    assert pool.usable_until == NOW + 5 * DAY - timedelta(minutes=30)


def test_unreadable_plan_keeps_the_end_that_was_read_before() -> None:
    earlier = read_ends(period(-1, 5))

    assert current_plan_ends(CLUSTER, WORKERS, {}, earlier, NOW + DAY) == earlier


def test_group_without_a_plan_loses_its_end() -> None:
    assert current_plan_ends(CLUSTER, {}, {}, read_ends(period(-1, 5)), NOW) == PlanEnds()


def test_end_of_another_plan_does_not_count_for_a_group() -> None:
    moved = {"p5-workers": ARN.replace("autumn", "winter")}

    assert current_plan_ends(CLUSTER, moved, {}, read_ends(period(-1, 5)), NOW) == PlanEnds()


def test_time_of_sagemaker_replaces_the_time_in_the_policy() -> None:
    stated = [
        ReservedPool(cluster=CLUSTER, pool=name, starts_at=NOW - DAY, ends_at=NOW + DAY)
        for name in ("p5-workers", "p5-block")
    ]
    policy = Policy()
    policy = policy.replace(scheduling=policy.scheduling.replace(reservations=tuple(stated)))

    extended = policy.with_training_plan_ends(read_ends(period(-1, 5)))

    ends = {pool.pool: pool.ends_at for pool in extended.scheduling.reservations}
    assert ends == {"p5-workers": NOW + 5 * DAY, "p5-block": NOW + DAY}


def test_decisions_with_plan_ends_name_the_policy_that_was_set() -> None:
    policy = Policy()

    assert policy.with_training_plan_ends(read_ends(period(-1, 5))).hash == policy.hash
