"""Commitments: the marginal rule finds the number of units with the lowest cost."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.economics.commitment import (
    CommitmentPrices,
    DemandHour,
    HourlyDemand,
    advise_commitment,
    commitment_cost,
    hourly_demand,
)
from evenkeel.domain.economics.figure_checks import WrongFigure

START = datetime(2026, 11, 2, tzinfo=UTC)
TERMS = CommitmentPrices(reserved_usd_per_hour=3, on_demand_usd_per_hour=5)


def demand_hours(*units: float) -> HourlyDemand:
    return HourlyDemand(hours=units)


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=60),
    st.floats(0, 6),
    st.floats(0.5, 6),
    st.floats(0.5, 1),
)
def test_no_other_number_of_committed_units_costs_less(
    demand: list[int], reserved: float, on_demand: float, availability: float
) -> None:
    terms = CommitmentPrices(
        reserved_usd_per_hour=reserved, on_demand_usd_per_hour=on_demand, reserved_availability=availability
    )
    best = advise_commitment(demand_hours(*demand), terms).best

    costs = [commitment_cost(demand, terms, units).total_usd for units in range(14)]
    assert best.total_usd == pytest.approx(min(costs), rel=1e-9, abs=1e-9)


def test_unit_is_committed_if_its_use_exceeds_the_break_even() -> None:
    # 6 of 10 hours need a second unit: exactly the share of 3/5, which does not pay.
    advice = advise_commitment(demand_hours(*[2] * 6, *[1] * 4), TERMS)

    assert advice.break_even_share == 0.6
    assert [(unit.demand_share, unit.reserve, unit.saved_usd) for unit in advice.units] == [
        (1.0, True, 20.0),
        (0.6, False, 0.0),
    ]


def test_idle_hours_of_a_commitment_cost_the_reserved_price() -> None:
    advice = advise_commitment(demand_hours(4, 4, 1, 0), TERMS, committed_units=3)

    assert advice.present is not None
    assert (advice.present.idle_reserved_hours, advice.present.idle_reserved_usd) == (5, 15)
    assert (advice.present.total_usd, advice.present.saved_usd) == (3 * 4 * 3 + 2 * 5, 45 - 46)


def test_savings_of_single_units_sum_to_the_total_savings() -> None:
    advice = advise_commitment(demand_hours(5, 3, 3, 2, 5, 1), TERMS)

    assert sum(unit.saved_usd for unit in advice.units) == pytest.approx(advice.peak_committed.saved_usd)
    assert sum(unit.saved_usd for unit in advice.units if unit.reserve) == pytest.approx(advice.best.saved_usd)
    assert sum(unit.idle_usd for unit in advice.units) == pytest.approx(advice.peak_committed.idle_reserved_usd)


def test_started_node_counts_as_a_whole_node() -> None:
    advice = advise_commitment(demand_hours(9, 8, 0.5, 0), TERMS, accelerators_per_unit=8)

    assert (advice.peak_units, [unit.used_hours for unit in advice.units]) == (2, [3, 1])


def test_broken_committed_units_cost_more_per_usable_hour() -> None:
    terms = TERMS.replace(reserved_availability=0.5)

    assert terms.break_even_share == 1.2
    assert advise_commitment(demand_hours(3, 3), terms).best.units == 0


def test_hours_without_demand_data_are_unknown() -> None:
    rows = [DemandHour(at=START + timedelta(hours=hour), units=hour) for hour in (3, 1, 1, 0)]
    demand = hourly_demand(rows)

    assert (demand.hours, demand.unknown_hours) == ((0, 1, 3), 1)
    assert "They are left out" in demand.note


def test_two_demand_figures_for_one_hour_are_refused() -> None:
    rows = [DemandHour(at=START + timedelta(minutes=minute), units=minute) for minute in (0, 30)]

    with pytest.raises(WrongFigure, match="two figures for the hour"):
        hourly_demand(rows)


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        (TERMS.replace(reserved_usd_per_hour=-1), "reserved_usd_per_hour"),
        (TERMS.replace(on_demand_usd_per_hour=0), "on_demand_usd_per_hour"),
        (TERMS.replace(on_demand_availability=0), "on_demand_availability"),
    ],
)
def test_invalid_price_is_refused_by_name(terms: CommitmentPrices, field: str) -> None:
    with pytest.raises(WrongFigure) as error_info:
        advise_commitment(demand_hours(1), terms)

    assert error_info.value.field == field


def test_demand_without_hours_is_refused() -> None:
    with pytest.raises(WrongFigure, match="has no hour"):
        advise_commitment(demand_hours(), TERMS)
