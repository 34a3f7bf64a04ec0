"""Amounts of money are whole numbers until they are displayed."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.economics import money
from evenkeel.domain.economics.money import BillableRental, bill, cents, format_usd

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


def test_started_second_is_billed_as_a_whole_second() -> None:
    assert format_usd(a_rental(3600).cost_parts(NOW)) == "$16.29"
    assert a_rental(90.001).cost_parts(NOW) == 91 * 16_288_000


def test_short_rental_is_billed_for_the_minimum_time() -> None:
    assert a_rental(5).cost_parts(NOW) == a_rental(60).cost_parts(NOW)


def test_running_rental_is_billed_until_now() -> None:
    running = a_rental(0).replace(ended_at=None)

    assert running.cost_parts(NOW + timedelta(hours=2)) == 2 * 3600 * 16_288_000


@given(st.lists(st.tuples(st.integers(60, 10**7), st.integers(1, 2 * 10**8), st.integers(1, 64)), max_size=30))
def test_rent_is_exact_and_the_teams_sum_to_it(rows: list[tuple[int, int, int]]) -> None:
    rentals = [
        a_rental(seconds, price=price, nodes=nodes, team=f"team-{index % 3}")
        for index, (seconds, price, nodes) in enumerate(rows)
    ]

    total = bill(rentals, NOW)

    exact_usd = sum(
        (Fraction(price, 10**6) * nodes * Fraction(seconds, 3600) for seconds, price, nodes in rows), Fraction()
    )
    assert Fraction(total.cost_parts, money.COST_PARTS_PER_USD) == exact_usd
    assert abs(Fraction(cents(total.cost_parts), 100) - exact_usd) <= Fraction(1, 200)
    assert sum(total.by_team.values()) == total.cost_parts


def test_half_a_cent_is_rounded_away_from_zero() -> None:
    half_a_cent = money.COST_PARTS_PER_USD // 200

    assert (cents(half_a_cent), cents(half_a_cent - 1), cents(-half_a_cent)) == (1, 0, -1)
