"""Budgets in dollars: rent counts in the period in which it was billed, and expected rent is reserved."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.economics import money
from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.quotas.budgets import add_rent, expected_remaining_cost, remaining_by_team, rent_by_period
from evenkeel.domain.quotas.spending import Spending
from evenkeel.domain.quotas.teams import Period, Team, TeamSetup
from evenkeel.domain.renting.rental import Rental, RentalOffer, RentalState, end_rental
from tests.unit.scheduling.test_renting import POOL, a_ready_rental

MIDNIGHT = datetime(2026, 12, 1, tzinfo=UTC)
"""The start of a month and of a day, in the middle of a week."""
HOUR = timedelta(hours=1)
ECONOMY = EconomyPolicy(other_usd_per_accelerator_hour=2.0)
PRICE = POOL.micros_per_node_hour


def a_setup(*budgets: dict[str, Any]) -> TeamSetup:
    return TeamSetup(
        teams=(Team.model_validate({"name": "blue"}), Team.model_validate({"name": "red", "budgets": budgets}))
    )


def a_rental(since: datetime, **changes: Any) -> Rental:
    offer = RentalOffer.of(POOL, since).replace(joined_node_names=("ip-1", "ip-2"))
    return a_ready_rental(team="red", begun_at=since, offers=(offer,), **changes)


def remaining_budget(*rentals: Rental, budget: dict[str, Any], now: datetime, **facts: Any) -> dict[str, int]:
    setup = a_setup(budget)
    spent = add_rent(facts.get("spent", {}), setup, rentals, now)
    return remaining_by_team(setup, spent, facts.get("charges", ()), rentals, ECONOMY, now)


@given(
    st.integers(0, 40 * 86_400_000_000),
    st.integers(0, 90 * 86_400_000_000),
    st.integers(0, 3 * 3_600_000_000),
    st.integers(1, 99_999_999),
)
def test_rent_of_each_period_adds_up_to_the_bill(begins: int, length: int, first: int, price: int) -> None:
    since = MIDNIGHT - timedelta(days=35) + timedelta(microseconds=begins)
    second_offer_at = since + timedelta(microseconds=first)
    pool = POOL.replace(micros_per_node_hour=price)
    offers = (
        RentalOffer.of(pool, since).replace(
            joined_node_names=("ip-1",), closed_at=second_offer_at, refused="no capacity"
        ),
        RentalOffer.of(pool, second_offer_at).replace(joined_node_names=("ip-2", "ip-3")),
    )
    rental = a_ready_rental(team="red", offers=offers)
    now = second_offer_at + timedelta(microseconds=length)

    parts = rent_by_period(rental, now)

    bill = end_rental(rental.replace(state=RentalState.ENDING), now).rental.cost_parts / (
        money.COST_PARTS_PER_USD / money.MICROS_PER_USD
    )
    for kind in (10, 8, 7):  # `2026-11-03`, `2026-W45`, `2026-11`
        parts_of_kind = [part.spent.usd_micros for part in parts if len(part.key) == kind]
        if length < 12 * 86_400_000_000:
            assert sum(parts_of_kind) == pytest.approx(bill, abs=len(parts_of_kind))
    assert all(part.spent.accelerator_seconds == 0 for part in parts)
    assert len({part.key for part in parts}) == len(parts)  # each part is a row of one commit


def test_rental_over_midnight_counts_on_both_days() -> None:
    parts = rent_by_period(a_rental(MIDNIGHT - HOUR), MIDNIGHT + 2 * HOUR)

    spent = {part.key: part.spent.usd_micros for part in parts}
    hour = 2 * PRICE
    assert spent == {
        "2026-11-30": hour,
        "2026-12-01": 2 * hour,
        "2026-W49": 3 * hour,
        "2026-11": hour,
        "2026-12": 2 * hour,
    }


def test_nodes_that_never_launched_cost_nothing() -> None:
    assert rent_by_period(a_ready_rental(team="red"), MIDNIGHT) == ()


def test_remaining_budget_excludes_settled_running_and_expected_costs() -> None:
    charge = Charge(
        job_id="job-b", attempt=1, team="red", cluster="c", node_names=("n",), accelerators=8, admitted_at=MIDNIGHT
    )
    on_rented = charge.replace(is_rented=True, accelerators=16)
    rental = a_rental(MIDNIGHT, expected_parts=10 * 2 * PRICE * 3600)

    remaining = remaining_budget(
        rental,
        budget={"period": Period.MONTH, "usd": 5000},
        now=MIDNIGHT + 3 * HOUR,
        spent={("red", "2026-12"): Spending(usd_micros=700 * money.MICROS_PER_USD)},
        charges=(charge, on_rented),
    )

    # 700 settled, 8 accelerators for 3 hours at $2, and ten hours of two nodes, three of which have passed.
    assert remaining == {"red": (5000 - 700 - 48) * money.COST_PARTS_PER_USD - 10 * 2 * PRICE * 3600}


def test_tightest_dollar_budget_applies() -> None:
    setup = a_setup({"period": Period.MONTH, "usd": 500}, {"period": Period.DAY, "usd": 30, "gpuHours": 1})

    assert remaining_by_team(setup, {}, (), (), ECONOMY, MIDNIGHT) == {"red": 30 * money.COST_PARTS_PER_USD}
    assert remaining_budget(budget={"period": Period.DAY, "gpuHours": 1}, now=MIDNIGHT) == {}


@pytest.mark.parametrize(
    ("state", "hours", "expected"),
    [
        (RentalState.READY, 1, 3 * 2 * PRICE * 3600),
        (RentalState.READY, 6, 3 * 2 * PRICE * 3600),
        (RentalState.ENDING, 1, 0),
    ],
)
def test_overdue_rental_is_expected_to_continue(state: RentalState, hours: int, expected: int) -> None:
    rental = a_rental(MIDNIGHT, state=state, expected_parts=4 * 2 * PRICE * 3600)

    assert expected_remaining_cost(rental, MIDNIGHT + hours * HOUR) == expected


def test_ended_rental_is_not_counted_twice() -> None:
    over = a_rental(MIDNIGHT, state=RentalState.ENDED)

    assert remaining_budget(over, budget={"period": Period.MONTH, "usd": 9}, now=MIDNIGHT + HOUR) == {
        "red": 9 * money.COST_PARTS_PER_USD
    }
