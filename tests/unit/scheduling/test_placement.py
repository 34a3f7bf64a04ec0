"""Placement of pending jobs: on committed capacity first, on rented nodes if that pays, never beyond a limit."""

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.economics.money import COST_PARTS_PER_USD, MICROS_PER_USD
from evenkeel.domain.renting.cost import CandidatePool, SpendLimits, opportunity_cost, why_not_spot
from evenkeel.domain.renting.placement import (
    PlacementAction,
    PlacementDecision,
    PlacementFacts,
    choose_pool,
    must_avoid_spot,
    place_in_queue_order,
)
from tests.examples import examples
from tests.unit.scheduling.pool_builders import (
    HOUR,
    NOW,
    RICH,
    a_candidate_pool,
    a_delay,
    a_reservation,
    a_waiting,
    at,
    facts_of,
)

C, R, S, O = Market.COMMITTED, Market.RESERVED, Market.SPOT, Market.ON_DEMAND  # noqa: E741 - a table of markets reads best in letters


def why_not(facts: PlacementFacts, pool: str) -> str:
    return next(row.why_not for row in choose_pool(facts).table if row.pool == pool)


# ---------------------------------------------------------------- the price of delay against the premium


def sample_placement(wait_hours: float, *, value: int = 40) -> PlacementFacts:
    """Return the placement of a job with 8 GPUs for 3 h.

    Rented GPUs cost $4 an hour; committed ones are worth $1.50.
    """
    job = a_waiting(micros_per_hour_of_delay=value * MICROS_PER_USD)
    committed = a_candidate_pool(C, wait_seconds=wait_hours * HOUR, opportunity_micros_per_accelerator_hour=1_500_000)
    rented = a_candidate_pool(O, pool={"launch": a_delay(0.25 * HOUR)})
    # The wait counts from the start of the rented nodes.
    return facts_of(committed.replace(wait_seconds=(wait_hours + 0.25) * HOUR), rented, job=job)


def test_premium_is_price_less_opportunity_cost() -> None:
    decision = choose_pool(sample_placement(2))

    rented, committed = decision.table[0], decision.table[1]
    assert (rented.rent_parts - committed.opportunity_parts) / COST_PARTS_PER_USD == 68
    assert (committed.delay_parts - rented.delay_parts) / COST_PARTS_PER_USD == 80
    assert decision.action is PlacementAction.RENT
    assert "worth $80.00" in decision.reason
    assert "$68.00 more" in decision.reason


def test_short_wait_is_preferred_and_threshold_for_renting_stated() -> None:
    decision = choose_pool(sample_placement(1.5))

    assert decision.action is PlacementAction.WAIT
    assert "save $60.00" in decision.reason
    assert "$68.00 more" in decision.reason
    flip = decision.rent_threshold_seconds
    assert flip is not None
    assert flip == pytest.approx((1.7 + 0.25) * HOUR)
    assert choose_pool(sample_placement(flip / HOUR - 0.25 + 1 / HOUR)).action is PlacementAction.RENT
    assert choose_pool(sample_placement(flip / HOUR - 0.25 - 1 / HOUR)).action is PlacementAction.WAIT


def test_job_of_class_without_delay_price_waits() -> None:
    assert choose_pool(sample_placement(2, value=1)).action is PlacementAction.WAIT


def test_recovery_rents_up_to_the_planned_value() -> None:
    facts = sample_placement(1.5)
    rent = choose_pool(sample_placement(2)).table[0].rent_parts

    def placement_at_max_rent(parts: int) -> PlacementDecision:
        return choose_pool(facts.replace(job=facts.job.replace(max_rent_parts=parts)))

    assert (placement_at_max_rent(rent).action, placement_at_max_rent(rent).pool) == (PlacementAction.RENT, "on-demand")
    assert placement_at_max_rent(rent).reason.startswith("The job's recovery chose to rent: on-demand costs $")
    assert placement_at_max_rent(rent - 1).action is PlacementAction.WAIT
    dear = facts.replace(job=facts.job.replace(max_rent_parts=10**18), spending=SpendLimits())
    assert choose_pool(dear).action is PlacementAction.WAIT


# ---------------------------------------------------------------- long delays


def delayed_placement(delay_hours: float, *, max_wait_hours: float = 0.25, **job: Any) -> PlacementFacts:
    """Return a placement in which renting costs $8 more than the wait, at $40 an hour of delay."""
    facts = sample_placement(1.5)
    demand = facts.job.replace(submitted_at=at(-delay_hours * HOUR), **job)
    limits = facts.risk_limits.replace(max_wait_seconds=round(max_wait_hours * HOUR))
    return facts.replace(job=demand, risk_limits=limits)


def test_long_delay_pays_for_extra_cost_up_to_a_limit() -> None:
    # $40 an hour x 0.25 h x (0.25 h / 0.25 h) = $10
    decision = choose_pool(delayed_placement(0.25))

    assert (decision.action, decision.pool) == (PlacementAction.RENT, "on-demand")
    assert decision.reason == (
        "on-demand costs $8.00 more than the wait for committed. The policy allows up to $10.00, "
        "because the job's delay is 15 min so far."
    )
    assert choose_pool(delayed_placement(0.19)).action is PlacementAction.WAIT
    # A shorter `maxWaitSeconds` raises the limit: $40 an hour x 0.19 h x 1.9 = $14.44. Saved work is no delay.
    assert choose_pool(delayed_placement(0.19, max_wait_hours=0.1)).action is PlacementAction.RENT
    rested = delayed_placement(0.19, max_wait_hours=0.1, suspended_seconds=0.09 * HOUR)
    assert choose_pool(rested).action is PlacementAction.WAIT
    saved = delayed_placement(0.19, max_wait_hours=0.1, done_seconds=0.09 * HOUR)
    assert choose_pool(saved).action is PlacementAction.WAIT
    assert choose_pool(delayed_placement(9, max_wait_hours=0)).action is PlacementAction.WAIT


@given(st.floats(0.1, 48), st.floats(0.1, 4), st.integers(1, 400))
def test_extra_cost_of_renting_is_bounded_by_the_delay(delay: float, limit: float, value: int) -> None:
    """Whatever the prices: the extra cost is at most the cost of the delay so far, times delay / limit."""
    job = {"micros_per_hour_of_delay": value * MICROS_PER_USD}

    decision = choose_pool(delayed_placement(delay, max_wait_hours=limit, **job))

    committed = next(row for row in decision.table if row.market is C)
    if decision.action is PlacementAction.RENT and decision.row is not None:
        extra = decision.row.cost_parts - committed.cost_parts
        bound = value * delay * delay / (round(limit * HOUR) / HOUR) * COST_PARTS_PER_USD
        assert extra <= max(0, bound * (1 + 1e-6))


@pytest.mark.parametrize("value", [1, 40, 400])
def test_nodes_are_rented_for_every_job_at_some_time(value: int) -> None:
    job = {"micros_per_hour_of_delay": value * MICROS_PER_USD}

    decision = choose_pool(delayed_placement(100, **job))

    assert decision.action is PlacementAction.RENT


@pytest.mark.parametrize(
    ("changes", "moves"),
    [
        ({"micros_per_hour_of_delay": 1 * MICROS_PER_USD}, True),
        ({"micros_per_hour_of_delay": 400 * MICROS_PER_USD}, False),  # a restart costs more than the rent that it saves
        ({"micros_per_hour_of_delay": 400 * MICROS_PER_USD, "returns_when_free": True}, True),
        ({"micros_per_hour_of_delay": 1 * MICROS_PER_USD, "checkpoint_seconds": None}, False),
        ({"micros_per_hour_of_delay": 1 * MICROS_PER_USD, "deadline_at": at(3.3 * HOUR)}, False),
        ({"micros_per_hour_of_delay": 1 * MICROS_PER_USD, "deadline_at": at(4 * HOUR)}, True),
        (
            {"micros_per_hour_of_delay": 1 * MICROS_PER_USD, "left_seconds": (0.5 * HOUR,), "run_seconds": 0.5 * HOUR},
            False,
        ),
    ],
)
def test_cost_of_renting_ends_when_the_job_would_migrate(changes: dict[str, Any], moves: bool) -> None:
    """Committed nodes become free after an hour. A restart takes half an hour."""
    job = a_waiting(**{"left_seconds": (3 * HOUR,), "restart_seconds": 0.25 * HOUR, **changes})
    committed = a_candidate_pool(C, wait_seconds=HOUR, pool={"launch": a_delay(0.25 * HOUR)})

    table = choose_pool(facts_of(committed, a_candidate_pool(O), job=job)).table

    row = next(row for row in table if row.market is O)
    rate = a_candidate_pool(O).pool.micros_per_node_hour
    held = HOUR + job.save_seconds if moves else row.starts_after_seconds + job.run_seconds
    assert row.rent_parts == pytest.approx(rate * held, abs=rate)
    standstill = job.save_seconds + 0.25 * HOUR + job.restart_seconds if moves else 0
    assert row.ends_after_seconds == pytest.approx(row.starts_after_seconds + job.run_seconds + standstill)


def test_free_committed_nodes_are_used_first() -> None:
    committed = a_candidate_pool(C, accelerators_left=8, opportunity_micros_per_accelerator_hour=9 * MICROS_PER_USD)

    decision = choose_pool(facts_of(a_candidate_pool(O), a_candidate_pool(S), committed))

    assert (decision.action, decision.pool) == (PlacementAction.START, "committed")


@pytest.mark.parametrize(
    ("rented", "share", "waiting", "expected"),
    [
        (4 * MICROS_PER_USD, 0.0, 100 * MICROS_PER_USD, 0),
        (4 * MICROS_PER_USD, 1.0, 10**12, 4 * MICROS_PER_USD),
        (4 * MICROS_PER_USD, 0.5, 10**12, 2 * MICROS_PER_USD),
        (4 * MICROS_PER_USD, 1.0, 64 * MICROS_PER_USD, MICROS_PER_USD),
        (4 * MICROS_PER_USD, 1.0, 0, 0),
    ],
)
def test_committed_node_hour_is_valued_by_demand_of_other_jobs(
    rented: int, share: float, waiting: int, expected: int
) -> None:
    assert opportunity_cost(rented, share, waiting, 64) == expected


# ---------------------------------------------------------------- deadlines


def test_deadline_justifies_renting_beyond_delay_price() -> None:
    job = a_waiting(micros_per_hour_of_delay=0, deadline_at=at(4 * HOUR))
    committed = a_candidate_pool(C, wait_seconds=2 * HOUR)

    decision = choose_pool(facts_of(committed, a_candidate_pool(O), job=job))

    assert (decision.action, decision.pool) == (PlacementAction.RENT, "on-demand")
    assert "committed would be cheaper but would miss the job's deadline" in decision.reason


def test_deadline_met_by_committed_nodes_rents_nothing() -> None:
    job = a_waiting(micros_per_hour_of_delay=0, deadline_at=at(6 * HOUR))

    decision = choose_pool(facts_of(a_candidate_pool(C, wait_seconds=2 * HOUR), a_candidate_pool(O), job=job))

    assert (decision.action, decision.pool, decision.late_seconds) == (PlacementAction.WAIT, "committed", None)
    # The job would end after five hours. From one more hour of waiting on, only renting meets the deadline.
    assert decision.rent_threshold_seconds == 3 * HOUR
    later = choose_pool(facts_of(a_candidate_pool(C, wait_seconds=3 * HOUR + 1), a_candidate_pool(O), job=job))
    assert (later.action, later.pool) == (PlacementAction.RENT, "on-demand")


def test_deadline_renting_respects_the_caps() -> None:
    job = a_waiting(micros_per_hour_of_delay=0, deadline_at=at(4 * HOUR))
    candidates = a_candidate_pool(C, wait_seconds=2 * HOUR), a_candidate_pool(O)

    capped = choose_pool(facts_of(*candidates, job=job, spending=SpendLimits()))
    dry = choose_pool(
        facts_of(*candidates, job=job, spending=RICH.replace(team_budget_left_parts=95 * COST_PARTS_PER_USD))
    )

    for decision, message in ((capped, "an hour, which exceeds the limit"), (dry, "but the budget of team")):
        assert (decision.action, decision.pool) == (PlacementAction.WAIT, "committed")
        assert message in decision.reason
        assert "No usable pool meets the job's deadline" in decision.reason


@pytest.mark.parametrize("value", [0, 1])
def test_unreachable_deadline_rents_nothing_and_is_reported(value: int) -> None:
    job = a_waiting(micros_per_hour_of_delay=value * MICROS_PER_USD, deadline_at=at(HOUR))
    candidates = a_candidate_pool(C, wait_seconds=2 * HOUR), a_candidate_pool(O)

    decision = choose_pool(facts_of(*candidates, job=job))

    assert (decision.action, decision.pool) == (PlacementAction.WAIT, "committed")
    assert "No usable pool meets the job's deadline. On this pool it would end 4.0 h late." in decision.reason
    assert decision.late_seconds == 4 * HOUR
    unpriced = "The job would end 120 min after its deadline, and the policy sets no price on the delay of its class."
    assert why_not(facts_of(*candidates, job=job), "on-demand") == (
        "" if value else unpriced.replace("120 min", "2.0 h")
    )


def test_delay_price_alone_decides_once_deadline_is_missed() -> None:
    candidates = (
        a_candidate_pool(C, wait_seconds=6 * HOUR),
        a_candidate_pool(O),
        a_candidate_pool(S, pool={"launch": a_delay(600)}),
    )
    lost = a_waiting(submitted_at=at(-9 * HOUR), deadline_at=at(-HOUR))

    without, with_it = (choose_pool(facts_of(*candidates, job=job)) for job in (lost.replace(deadline_at=None), lost))

    assert (with_it.action, with_it.pool) == (without.action, without.pool) == (PlacementAction.RENT, "spot")


def test_job_without_delay_price_or_deadline_is_not_rented_for() -> None:
    decision = choose_pool(facts_of(a_candidate_pool(O), job=a_waiting(micros_per_hour_of_delay=0)))

    assert decision.action is PlacementAction.NO_POOL
    assert "no price on the delay of the job's class" in decision.reason


def test_recovery_rents_up_to_its_value_with_any_deadline() -> None:
    facts = sample_placement(1.5)
    job = facts.job.replace(max_rent_parts=10**18)

    met, lost = (choose_pool(facts.replace(job=job.replace(deadline_at=at(hours * HOUR)))) for hours in (5, 2))

    for decision in (met, lost):
        assert (decision.action, decision.pool) == (PlacementAction.RENT, "on-demand")
        assert decision.reason.startswith("The job's recovery chose to rent")
    assert (met.late_seconds, lost.late_seconds) == (None, 1.25 * HOUR)


def test_job_behind_its_deadline_avoids_spot_until_ahead() -> None:
    job = a_waiting(submitted_at=at(-10 * HOUR), deadline_at=at(10 * HOUR))

    assert must_avoid_spot(facts_of(a_candidate_pool(O), job=job))
    assert not must_avoid_spot(facts_of(a_candidate_pool(O), job=job.replace(done_seconds=9 * HOUR)))
    assert not must_avoid_spot(facts_of(a_candidate_pool(O), job=job.replace(deadline_at=None)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, ""),
        ({"deadline_at": at(3.05 * HOUR)}, "no time for an interruption"),
        ({"deadline_at": at(2.9 * HOUR)}, ""),
        ({"submitted_at": at(-10 * HOUR), "deadline_at": at(-HOUR)}, ""),
        ({"submitted_at": at(-10 * HOUR), "deadline_at": at(10 * HOUR)}, "behind the progress"),
        ({"submitted_at": at(-10 * HOUR), "deadline_at": at(10 * HOUR), "done_seconds": 3 * HOUR}, ""),
        (
            {
                "submitted_at": at(-10 * HOUR),
                "deadline_at": at(10 * HOUR),
                "done_seconds": 3 * HOUR,
                "avoids_spot": True,
            },
            "behind the progress",
        ),
        (
            {
                "submitted_at": at(-10 * HOUR),
                "deadline_at": at(10 * HOUR),
                "done_seconds": 4 * HOUR,
                "avoids_spot": True,
            },
            "",
        ),
    ],
)
def test_spot_is_refused_to_a_job_near_its_deadline(change: dict[str, object], message: str) -> None:
    reason = why_not_spot(a_waiting(**change), 600, NOW)

    assert (message in reason) if message else not reason


# ---------------------------------------------------------------- unusable pools


def test_spot_needs_frequent_checkpoints() -> None:
    for job, message in (
        (a_waiting(checkpoint_seconds=None), "keeps no checkpoints"),
        (a_waiting(checkpoint_seconds=20_000), "too infrequent"),
        (a_waiting(nodes=16, checkpoint_seconds=900), "too infrequent"),
        (a_waiting(), ""),
    ):
        reason = why_not(facts_of(a_candidate_pool(S), a_candidate_pool(C, wait_seconds=HOUR), job=job), "spot")
        assert (message in reason) if message else not reason


def test_spot_interruptions_increase_expected_time_and_price() -> None:
    calm, rough = (
        choose_pool(
            facts_of(
                a_candidate_pool(S, pool={"interruptions_per_node_hour": rate}), job=a_waiting(restart_seconds=600)
            )
        )
        for rate in (0.0, 0.3)
    )

    assert calm.row is not None
    assert rough.row is not None
    assert rough.row.interruptions == pytest.approx(0.9)
    assert rough.row.ends_after_seconds == pytest.approx(calm.row.ends_after_seconds + 0.9 * 600)
    assert rough.row.rent_parts > calm.row.rent_parts


@pytest.mark.parametrize("market", [C, O, S])
def test_node_faults_lengthen_a_run_in_every_market(market: Market) -> None:
    pool = a_candidate_pool(market, pool={"interruptions_per_node_hour": 0}, accelerators_left=8 * 64)
    calm, faulty = (
        choose_pool(
            facts_of(
                pool,
                job=a_waiting(nodes=64, run_seconds=10 * HOUR, restart_seconds=600, failures_per_node_hour=rate),
            )
        ).table[0]
        for rate in (0.0, 0.0005)
    )

    # 64 nodes x 10 h x 0.0005 = 0.32 faults; each costs the restart and half of the time between checkpoints.
    assert faulty.interruptions == pytest.approx(0.32)
    assert faulty.ends_after_seconds - calm.ends_after_seconds == pytest.approx(0.32 * (600 + 450), abs=0.01)
    assert (faulty.rent_parts > calm.rent_parts) is market.is_rented


def test_expected_time_lost_to_faults_agrees_with_a_simulation() -> None:
    uniform, hours, saved_every, again = random.Random(4), 10, 900, 600
    per_second = 64 * 0.0005 / HOUR
    elapsed = 0.0
    for _ in range(2000):
        left = hours * HOUR // saved_every
        while left:
            up = -math.log(1 - uniform.random()) / per_second
            done = min(left, int(up // saved_every))
            left -= done
            elapsed += done * saved_every if not left else up + again
    job = a_waiting(nodes=64, run_seconds=hours * HOUR, restart_seconds=again, failures_per_node_hour=0.0005)
    row = choose_pool(facts_of(a_candidate_pool(O, accelerators_left=512), job=job)).table[0]

    assert row.ends_after_seconds - again == pytest.approx(elapsed / 2000, rel=0.003)


@pytest.mark.parametrize(
    ("ends_in", "change", "message"),
    [
        (7 * HOUR, {"checkpoint_seconds": None}, ""),
        (6.5 * HOUR, {"checkpoint_seconds": None}, "keeps no checkpoints"),
        (3 * HOUR, {}, ""),
        (0.75 * HOUR, {}, "before the job's first checkpoint"),
        (0.75 * HOUR, {"run_seconds": 600}, ""),
    ],
)
def test_job_that_outlasts_a_reservation_does_not_start(
    ends_in: float, change: dict[str, object], message: str
) -> None:
    plan = a_candidate_pool(C, accelerators_left=8, pool={"reservation": a_reservation(ends_in)})

    reason = why_not(facts_of(plan, job=a_waiting(**change)), "committed")

    assert (message in reason) if message else not reason


def test_job_waits_for_a_reservation_that_starts_soon() -> None:
    later = {"starts_at": at(HOUR), "ends_at": at(24 * HOUR)}
    decision = choose_pool(facts_of(a_candidate_pool(R, accelerators_left=64, pool={"reservation": later})))

    assert decision.action is PlacementAction.WAIT
    assert decision.row is not None
    assert decision.row.starts_after_seconds == HOUR


@pytest.mark.parametrize(
    ("spending", "message"),
    [
        (SpendLimits(), "the fleet|team vision"),
        (
            RICH.replace(team_cap_micros_per_hour=40 * MICROS_PER_USD, team_micros_per_hour=10 * MICROS_PER_USD),
            "team vision spends",
        ),
        (
            RICH.replace(fleet_cap_micros_per_hour=40 * MICROS_PER_USD, fleet_micros_per_hour=10 * MICROS_PER_USD),
            "the fleet spends",
        ),
        (RICH.replace(team_budget_left_parts=90 * COST_PARTS_PER_USD), "but the budget of team"),
    ],
)
def test_no_cap_or_budget_is_exceeded(spending: SpendLimits, message: str) -> None:
    decision = choose_pool(facts_of(a_candidate_pool(O), spending=spending))

    assert decision.action is PlacementAction.NO_POOL
    assert any(sentence in decision.reason for sentence in message.split("|"))


@pytest.mark.parametrize(
    "limit",
    [
        {"team_budget_left_parts": 150 * COST_PARTS_PER_USD},
        {"team_cap_micros_per_hour": 40 * MICROS_PER_USD},
        {"fleet_cap_micros_per_hour": 40 * MICROS_PER_USD},
    ],
)
def test_second_job_gets_only_capacity_left_by_the_first(limit: dict[str, int]) -> None:
    # Each would rent at $32 an hour, for $96.
    requests = [
        facts_of(a_candidate_pool(O), job=a_waiting(job_id=f"job-{n}"), spending=RICH.replace(**limit)) for n in (1, 2)
    ]

    assert [placement_decision.action for placement_decision in place_in_queue_order(requests)] == [
        PlacementAction.RENT,
        PlacementAction.NO_POOL,
    ]


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (a_candidate_pool(O, unavailable_until=at(60)), "not ask again before 10:16:00"),
        (a_candidate_pool(O, differences=("data is another volume.",)), "another volume"),
        (a_candidate_pool(O, accelerators_left=7), "leaves capacity for 0 nodes"),
        (a_candidate_pool(O, pool={"accelerators_per_node": 4}), "has 4 accelerators, the job asks for 8"),
        (a_candidate_pool(C, pool={"max_nodes": 0}), "at most 0 nodes"),
    ],
)
def test_unusable_pool_states_its_reason(candidate: CandidatePool, message: str) -> None:
    decision = choose_pool(facts_of(candidate))

    assert decision.action is PlacementAction.NO_POOL
    assert message in decision.reason


def test_decision_without_pools_is_valid() -> None:
    assert choose_pool(facts_of()).action is PlacementAction.NO_POOL


# ---------------------------------------------------------------- properties

candidates = st.builds(
    lambda market, left, wait, opportunity, rate, price, barred: a_candidate_pool(
        market,
        pool={
            "name": f"{market.value}-{price}",
            "interruptions_per_node_hour": rate if market is S else 0,
            "micros_per_node_hour": price * MICROS_PER_USD if market.is_rented else 0,
        },
        accelerators_left=left,
        wait_seconds=wait,
        opportunity_micros_per_accelerator_hour=0 if market.is_rented else opportunity,
        unavailable_until=at(60) if barred and market.is_rented else None,
    ),
    st.sampled_from([C, R, S, O]),
    st.integers(0, 128),
    st.integers(0, 48 * HOUR),
    st.integers(0, 5 * MICROS_PER_USD),
    st.floats(0, 0.2),
    st.integers(1, 60),
    st.booleans(),
)
jobs = st.builds(
    lambda number, team, nodes, per_node, value, run, saves, deadline, placement_at_max_rent: a_waiting(
        job_id=f"job-{number}",
        team=team,
        nodes=nodes,
        accelerators_per_node=per_node,
        micros_per_hour_of_delay=value * MICROS_PER_USD,
        run_seconds=run,
        p90_run_seconds=2 * run,
        checkpoint_seconds=saves,
        deadline_at=at(deadline) if deadline else None,
        max_rent_parts=placement_at_max_rent,
    ),
    st.integers(0, 99),
    st.sampled_from(["vision", "speech"]),
    st.integers(1, 4),
    st.sampled_from([1, 4, 8]),
    st.integers(0, 60),
    st.integers(60, 100 * HOUR),
    st.sampled_from([None, 300, 900, 7200]),
    st.sampled_from([None, 2 * HOUR, 50 * HOUR]),
    st.sampled_from([None, 0, 200 * COST_PARTS_PER_USD, 10**6 * COST_PARTS_PER_USD]),
)
pools = st.lists(candidates, max_size=5, unique_by=lambda candidate: candidate.pool.name)
spendings = st.builds(
    lambda team, fleet, cap, most, budget: SpendLimits(
        team_micros_per_hour=min(team, cap) * MICROS_PER_USD,
        fleet_micros_per_hour=min(fleet, most) * MICROS_PER_USD,
        team_cap_micros_per_hour=cap * MICROS_PER_USD,
        fleet_cap_micros_per_hour=most * MICROS_PER_USD,
        team_budget_left_parts=None if budget is None else budget * COST_PARTS_PER_USD,
    ),
    st.integers(0, 100),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(0, 400),
    st.sampled_from([None, 0, 100, 2000]),
)


def rate_of(decision: PlacementDecision) -> int:
    if decision.action is not PlacementAction.RENT:
        return 0
    pool = next(candidate.pool for candidate in decision.facts.candidates if candidate.pool.name == decision.pool)
    return pool.micros_per_node_hour * decision.facts.job.nodes


@settings(max_examples=examples(300), deadline=None)
@given(pools, spendings, spendings, st.lists(jobs, min_size=1, max_size=8))
def test_cycle_never_exceeds_caps_budgets_or_capacity(pools, spending, speech_spending, waiting) -> None:  # type: ignore[no-untyped-def]
    """Each team has its own caps and budget, and all share those of the fleet; includes deadlines and recoveries."""
    fleet = {name: getattr(spending, name) for name in ("fleet_micros_per_hour", "fleet_cap_micros_per_hour")}
    spends = {"vision": spending, "speech": speech_spending.replace(**fleet)}

    decisions = place_in_queue_order([facts_of(*pools, job=job, spending=spends[job.team]) for job in waiting])

    rates = {
        team: sum(rate_of(decision) for decision in decisions if decision.facts.job.team == team)
        for team in ("vision", "speech")
    }
    for team, rate in rates.items():
        spending = spends[team]
        assert not rate or spending.team_micros_per_hour + rate <= spending.team_cap_micros_per_hour
        if spending.team_budget_left_parts is not None:
            rents = [
                decision.row.rent_parts
                for decision in decisions
                if decision.row and rate_of(decision) and decision.facts.job.team == team
            ]
            assert sum(rents) <= spending.team_budget_left_parts
    if sum(rates.values()):
        assert spending.fleet_micros_per_hour + sum(rates.values()) <= spending.fleet_cap_micros_per_hour
    for candidate in pools:
        held = sum(
            decision.facts.job.nodes
            * (8 if candidate.pool.market.is_rented else decision.facts.job.accelerators_per_node)
            for decision in decisions
            if decision.pool == candidate.pool.name and decision.action in (PlacementAction.START, PlacementAction.RENT)
        )
        assert held <= max(0, candidate.accelerators_left)


@settings(max_examples=examples(150), deadline=None)
@given(pools, spendings, jobs)
def test_nothing_is_rented_while_committed_nodes_fit(pools, spending, job) -> None:  # type: ignore[no-untyped-def]
    decision = choose_pool(facts_of(*pools, job=job, spending=spending))

    available = [row for row in decision.table if row.is_available_now and not row.why_not]
    if job.deadline_at is None:
        assert bool(available) == (decision.action is PlacementAction.START)
    elif available and decision.action is PlacementAction.RENT:
        left = (job.deadline_at - NOW).total_seconds()
        assert all(row.ends_after_seconds > left for row in available)
        assert decision.row
        assert decision.row.ends_after_seconds <= left


@settings(max_examples=examples(150), deadline=None)
@given(pools, spendings, jobs)
def test_deadline_is_met_by_the_cheapest_suitable_pool(pools, spending, job) -> None:  # type: ignore[no-untyped-def]
    job = job.replace(deadline_at=job.deadline_at or at(30 * HOUR), max_rent_parts=None)

    decision = choose_pool(facts_of(*pools, job=job, spending=spending))

    left = (job.deadline_at - NOW).total_seconds()
    in_time = [row for row in decision.table if not row.why_not and row.ends_after_seconds <= left]
    assert (decision.late_seconds is None) == (bool(in_time) or decision.row is None)
    if in_time:
        assert decision.row in in_time
        available = [row for row in in_time if row.is_available_now] or in_time
        assert decision.row.cost_parts == min(row.cost_parts for row in available)


@settings(max_examples=examples(150), deadline=None)
@given(pools, spendings, jobs)
def test_job_without_delay_price_rents_only_for_its_deadline(  # type: ignore[no-untyped-def]
    pools, spending, job
) -> None:
    decision = choose_pool(
        facts_of(*pools, job=job.replace(micros_per_hour_of_delay=0, max_rent_parts=None), spending=spending)
    )

    if decision.action is PlacementAction.RENT:
        assert job.deadline_at
        left = (job.deadline_at - NOW).total_seconds()
        paid_for = [row for row in decision.table if not row.market.is_rented and not row.why_not]
        assert decision.row
        assert decision.row.ends_after_seconds <= left
        assert all(row.ends_after_seconds > left or row.cost_parts > decision.row.cost_parts for row in paid_for)


@settings(max_examples=examples(100), deadline=None)
@given(pools, spendings, jobs)
def test_decision_replays_from_its_json_facts(pools, spending, job) -> None:  # type: ignore[no-untyped-def]
    decision = choose_pool(facts_of(*pools, job=job, spending=spending))

    replayed = choose_pool(PlacementFacts.model_validate(decision.to_json()["facts"]))

    assert replayed == decision
    assert len(decision.alternatives) == len(pools) - (decision.row is not None)
    assert all(alternative.why_not for alternative in decision.alternatives)


@settings(max_examples=examples(100), deadline=None)
@given(pools, jobs, st.integers(0, 60))
def test_higher_delay_price_never_delays_a_job(pools, job, more) -> None:  # type: ignore[no-untyped-def]
    # A class without a delay price rents nothing at all: the property compares rising prices only.
    value = max(MICROS_PER_USD, job.micros_per_hour_of_delay)
    patient, hurried = (
        choose_pool(facts_of(*pools, job=job.replace(deadline_at=None, micros_per_hour_of_delay=price)))
        for price in (value, value + more * MICROS_PER_USD)
    )

    assert (patient.row is None) == (hurried.row is None)
    if patient.row and hurried.row and not hurried.row.is_available_now:
        assert hurried.row.ends_after_seconds <= patient.row.ends_after_seconds + 0.01
