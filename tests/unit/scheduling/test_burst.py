"""Jobs migrate back to committed capacity if that saves money, and temporary capacity is returned."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.capacity.start_estimates import (
    RunningUse,
    WaitingUse,
    expected_starts,
    expected_wait,
    remaining_seconds,
)
from evenkeel.domain.economics.money import COST_PARTS_PER_USD, MICROS_PER_USD
from evenkeel.domain.renting.migration import (
    MigrationAction,
    MigrationCandidate,
    MigrationFacts,
    MigrationTarget,
    TemporaryCapacity,
    TemporaryCapacityFacts,
    TemporaryCapacityState,
    decide_migration,
    decide_temporary_capacity,
)
from tests.unit.scheduling.pool_builders import HOUR, NOW, a_pool, a_reservation, at

HOME = MigrationTarget(pool="committed", launch_seconds=60)


def a_migration_candidate(**changes: Any) -> MigrationCandidate:
    facts: dict[str, Any] = {
        "job_id": "job-1",
        "team": "vision",
        "nodes": 1,
        "accelerators_per_node": 8,
        "micros_per_hour_of_delay": 20 * MICROS_PER_USD,
        "left_seconds": 3 * HOUR,
        "since_checkpoint_seconds": 0,
        "checkpoint_seconds": 900,
        "restart_seconds": 300,
    }
    return MigrationCandidate.model_validate({**facts, **changes})


def migration_facts(market: Market = Market.ON_DEMAND, **changes: Any) -> MigrationFacts:
    facts: dict[str, Any] = {"candidate": a_migration_candidate(), "pool": a_pool(market), "target": HOME, "now": NOW}
    return MigrationFacts.model_validate({**facts, **changes})


def test_migrates_back_when_saved_rent_covers_the_move() -> None:
    decision = decide_migration(migration_facts())

    assert decision.action is MigrationAction.MIGRATE
    assert decision.saving_parts == 3 * 32 * COST_PARTS_PER_USD
    # 60 s of rent, and 60 + 60 + 300 s of delay at $20 an hour.
    assert decision.migration_cost_parts == 60 * 32 * MICROS_PER_USD + 420 * 20 * MICROS_PER_USD
    assert "$96.00" in decision.reason


def test_migration_must_save_the_cost_of_one_further_restart() -> None:
    # $2.87 for the move, and $1.67 for one more restart.
    just_not, just = (
        decide_migration(migration_facts(candidate=a_migration_candidate(left_seconds=seconds)))
        for seconds in (510, 512)
    )

    assert (just_not.action, just.action) == (MigrationAction.KEEP, MigrationAction.MIGRATE)
    assert "the migration and one restart cost $4.53" in just_not.alternatives[0].why_not


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": None}, "No committed pool has enough free nodes"),
        ({"candidate": a_migration_candidate(checkpoint_seconds=None)}, "from step 0"),
        ({"target": HOME.replace(differences=("data is another volume.",))}, "another volume"),
        ({"target": HOME.replace(usable_until=at(1200))}, "ends before the job could save"),
        ({"candidate": a_migration_candidate(deadline_at=at(3 * HOUR + 300))}, "its deadline"),
        ({"target": HOME.replace(opportunity_micros_per_accelerator_hour=4 * MICROS_PER_USD)}, "would save $0.00"),
    ],
)
def test_migration_is_refused_with_a_reason(change: dict[str, Any], message: str) -> None:
    decision = decide_migration(migration_facts(**change))

    assert decision.action is MigrationAction.KEEP
    assert message in decision.alternatives[0].why_not


def test_job_is_requeued_before_its_reservation_ends() -> None:
    pool = a_pool(Market.RESERVED, reservation=a_reservation(2 * HOUR))

    before, due = (
        decide_migration(migration_facts(Market.RESERVED, pool=pool, target=None, now=at(seconds)))
        for seconds in (1.5 * HOUR - 121, 1.5 * HOUR - 120)
    )

    assert (before.action, due.action) == (MigrationAction.KEEP, MigrationAction.REQUEUE)
    assert before.by == due.by == at(1.5 * HOUR - 120)
    done_first = decide_migration(
        migration_facts(Market.RESERVED, pool=pool, target=None, candidate=a_migration_candidate(left_seconds=600))
    )
    assert done_first.by is None


@given(st.integers(0, 10**4), st.integers(1, 500), st.integers(0, 600))
def test_job_stops_in_time_to_save_before_its_budget_ends(dollars: int, rate: int, save: int) -> None:
    left, micros_per_hour = dollars * COST_PARTS_PER_USD, rate * MICROS_PER_USD
    facts = migration_facts(
        candidate=a_migration_candidate(left_seconds=10**9, save_seconds=save),
        target=None,
        budget_left_parts=left,
        team_micros_per_hour=micros_per_hour,
    )

    decision = decide_migration(facts)

    assert decision.by is not None
    begun_after = (decision.by - NOW).total_seconds()
    spent = micros_per_hour * (begun_after + math.ceil(save))
    assert decision.action is MigrationAction.REQUEUE or spent <= left
    assert (decision.action is MigrationAction.REQUEUE) == (begun_after <= 0)


@settings(max_examples=200)
@given(
    st.sampled_from([Market.SPOT, Market.ON_DEMAND]),
    st.integers(1, 16),
    st.integers(0, 100 * HOUR),
    st.integers(0, 60),
    st.integers(0, 5 * MICROS_PER_USD),
    st.integers(0, 3600),
)
def test_job_migrates_exactly_if_saved_rent_exceeds_migration_cost(
    market: Market, nodes: int, left: int, value: int, opportunity: int, restart: int
) -> None:
    candidate = a_migration_candidate(
        nodes=nodes, left_seconds=left, micros_per_hour_of_delay=value * MICROS_PER_USD, restart_seconds=restart
    )
    target = HOME.replace(opportunity_micros_per_accelerator_hour=opportunity)

    decision = decide_migration(migration_facts(market, candidate=candidate, target=target))

    rate = a_pool(market).micros_per_node_hour * nodes - opportunity * nodes * 8
    cost = a_pool(market).micros_per_node_hour * nodes * 60 + value * MICROS_PER_USD * (60 + 60 + 2 * restart)
    assert (decision.action is MigrationAction.MIGRATE) == (rate * left > cost)
    assert decide_migration(MigrationFacts.model_validate(decision.to_json()["facts"])) == decision


# ---------------------------------------------------------------- temporary capacity


def a_temporary_rental(**changes: Any) -> TemporaryCapacity:
    facts: dict[str, Any] = {
        "temporary_capacity_id": "loan-1",
        "job_id": "job-1",
        "team": "vision",
        "incident_id": "inc-1",
        "pool": "on-demand",
        "nodes": 2,
        "micros_per_node_hour": 32 * MICROS_PER_USD,
        "begun_at": NOW,
        "due_at": at(4 * HOUR),
    }
    return TemporaryCapacity.model_validate({**facts, **changes})


@pytest.mark.parametrize(
    ("seconds", "is_back", "runs", "state"),
    [
        (60, False, True, TemporaryCapacityState.KEEP),
        (60, True, True, TemporaryCapacityState.RETURN),
        (60, False, False, TemporaryCapacityState.RETURN),
        (4 * HOUR - 60, False, True, TemporaryCapacityState.END),
        (5 * HOUR, True, False, TemporaryCapacityState.END),
    ],
)
def test_temporary_capacity_is_returned_if_recovered_or_expired(
    seconds: float, is_back: bool, runs: bool, state: TemporaryCapacityState
) -> None:
    facts = TemporaryCapacityFacts(
        temporary=a_temporary_rental(), has_baseline_recovered=is_back, is_job_running=runs, now=at(seconds)
    )

    assert decide_temporary_capacity(facts).state is state


def test_job_without_checkpoints_is_not_moved_early() -> None:
    facts = TemporaryCapacityFacts(
        temporary=a_temporary_rental(),
        has_baseline_recovered=True,
        is_job_running=True,
        keeps_checkpoints=False,
        now=at(60),
    )

    assert decide_temporary_capacity(facts).state is TemporaryCapacityState.KEEP
    assert decide_temporary_capacity(facts.replace(now=at(4 * HOUR))).state is TemporaryCapacityState.END


def test_returned_temporary_capacity_stays_returned() -> None:
    temporary = a_temporary_rental(returned_at=at(HOUR))

    assert decide_temporary_capacity(
        TemporaryCapacityFacts(temporary=temporary, has_baseline_recovered=True, is_job_running=False, now=at(9 * HOUR))
    ).state is (TemporaryCapacityState.RETURNED)


# ---------------------------------------------------------------- the forecast


def test_expected_starts_follow_the_queue_order() -> None:
    starts = expected_starts(
        2, [RunningUse(8, 100), RunningUse(4, 50)], [WaitingUse(4, 30), WaitingUse(8, 10), WaitingUse(1, 5)]
    )

    # 2 are free. At 50 there are 4 more: 4 used, 2 left. At 80 those 4 return: 6 left. At 100 there are 8 more: the
    # second job starts.
    assert starts == (50, 100, 100)


def test_job_larger_than_the_pool_never_starts_and_blocks_nothing() -> None:
    assert expected_starts(4, [], [WaitingUse(5, 1), WaitingUse(4, 1)]) == (math.inf, 0)


def test_missed_forecast_raises_the_expected_wait() -> None:
    assert expected_wait(600, 60) == 600
    assert expected_wait(600, 3600) == 3600


def test_overdue_run_is_expected_to_continue() -> None:
    assert remaining_seconds(100, 40) == 60
    assert remaining_seconds(100, 7200) == 3600
    assert remaining_seconds(0, 0) == 60


@given(
    st.integers(0, 32),
    st.lists(st.tuples(st.integers(1, 16), st.floats(0, 1e5)), max_size=8),
    st.lists(st.tuples(st.integers(1, 16), st.floats(1, 1e5)), max_size=12),
)
def test_expected_starts_are_ordered_and_within_capacity(free, held, queue) -> None:  # type: ignore[no-untyped-def]
    holders, demands = [RunningUse(*row) for row in held], [WaitingUse(*row) for row in queue]

    starts = expected_starts(free, holders, demands)

    possible = [at for at in starts if at < math.inf]
    assert possible == sorted(possible)
    everything = free + sum(holder.accelerators for holder in holders)
    for moment in possible:
        running = sum(
            demand.accelerators
            for demand, start in zip(demands, starts, strict=True)
            if start <= moment < start + demand.seconds
        )
        assert running + sum(holder.accelerators for holder in holders if holder.seconds_left > moment) <= everything
