"""Money is whole numbers until somebody reads it."""

from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from evenkeel.domain.economics import money, prices
from evenkeel.domain.economics.money import BillableRental, bill, cents, format_usd, micros

NOW = datetime(2026, 11, 3, 10, 15, tzinfo=UTC)


def a_rental(seconds: float, *, price: int = 16_288_000, nodes: int = 1, team: str = "vision") -> BillableRental:
    return BillableRental(
        pool="burst",
        job_id="job-1",
        team=team,
        micros_per_node_hour=price,
        nodes=nodes,
        started_at=NOW,
        ended_at=NOW + timedelta(seconds=seconds),
    )


@pytest.mark.parametrize(("usd", "expected"), [("16.288", 16_288_000), ("0.000001", 1), ("21.957642", 21_957_642)])
def test_dollars_become_whole_micro_dollars(usd: str, expected: int) -> None:
    assert micros(usd) == expected


def test_a_price_finer_than_a_micro_dollar_is_refused() -> None:
    with pytest.raises(ValueError, match="not a whole number of micro-dollars"):
        micros("0.0000001")


def test_an_hour_costs_the_price_and_a_begun_second_a_whole_one() -> None:
    assert format_usd(a_rental(3600).parts(NOW)) == "$16.29"
    assert a_rental(90.001).parts(NOW) == 91 * 16_288_000


def test_nobody_pays_for_less_than_the_least_time() -> None:
    assert a_rental(5).parts(NOW) == a_rental(60).parts(NOW)


def test_a_rental_that_lasts_is_billed_until_now() -> None:
    running = a_rental(0).but(ended_at=None)

    assert running.parts(NOW + timedelta(hours=2)) == 2 * 3600 * 16_288_000


@given(st.lists(st.tuples(st.integers(60, 10**7), st.integers(1, 2 * 10**8), st.integers(1, 64)), max_size=30))
def test_a_bill_is_exact_to_the_cent_and_its_teams_add_up(rows: list[tuple[int, int, int]]) -> None:
    rentals = [
        a_rental(seconds, price=price, nodes=nodes, team=f"team-{index % 3}")
        for index, (seconds, price, nodes) in enumerate(rows)
    ]

    found = bill(rentals, NOW)

    exact = sum(
        (Fraction(price, 10**6) * nodes * Fraction(seconds, 3600) for seconds, price, nodes in rows), Fraction()
    )
    assert Fraction(found.parts, money.PARTS) == exact
    assert abs(Fraction(cents(found.parts), 100) - exact) <= Fraction(1, 200)
    assert sum(found.by_team.values()) == found.parts


def test_half_a_cent_is_rounded_away_from_nought() -> None:
    half = money.PARTS // 200

    assert (cents(half), cents(half - 1), cents(-half)) == (1, 0, -1)


def test_every_shipped_price_says_where_and_when_it_was_read() -> None:
    table = prices.shipped()

    assert table.of("ml.p5.48xlarge") == table.of("p5.48xlarge") == 55_040_000
    assert table.of("ml.unknown.large") is None
    assert all(table.sources[price.source].link.startswith("https://") for price in table.on_demand.values())
    assert table.sources_older_than(30, date(2026, 8, 1)) == {}
    assert table.sources_older_than(30, date(2026, 9, 1)) == {"karpenter": date(2026, 7, 20)}


@pytest.mark.parametrize(
    ("change", "said_of_it"),
    [
        ({"onDemand": {"g5.xlarge": {"microsPerNodeHour": 1, "source": "rumour"}}}, "no source 'rumour'"),
        ({"onDemand": {"g9.xlarge": {"microsPerNodeHour": 1, "source": "karpenter"}}}, "unknown instance type"),
        ({"onDemand": {"g5.xlarge": {"microsPerNodeHour": 0, "source": "karpenter"}}}, "greater than 0"),
        ({"onDemand": {}}, "no figure uses the source karpenter"),
    ],
)
def test_a_price_that_nobody_vouches_for_is_refused(change: dict[str, object], said_of_it: str) -> None:
    with pytest.raises(ValidationError, match=said_of_it):
        prices.PriceTable.model_validate({**prices.shipped().to_json(), **change})
