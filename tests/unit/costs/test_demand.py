"""Hourly demand adds up to the GPU time, and an hour without records is unknown."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.costs.commitment_report import NodeHourPrice, NodeType, TypeCommitment, type_commitments
from evenkeel.domain.costs.demand import OTHER_POOLS, DayDemand, DemandSpan, hourly_demand, use_by_hour, whole_hours
from evenkeel.domain.costs.interruptions import Span
from evenkeel.ports.ledger import document_text

BEGIN = datetime(2026, 11, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)
P5 = NodeType(8, 2, NodeHourPrice(usd_per_hour=30, origin="x"), NodeHourPrice(usd_per_hour=50, origin="y"))


def hours_between(start: float, end: float) -> Span:
    return Span(BEGIN + start * HOUR, BEGIN + end * HOUR)


def a_demand_span(
    start: float, end: float, gpus: int = 8, pool: str = "p5", kind: str = "ml.p5.48xlarge"
) -> DemandSpan:
    return DemandSpan(pool, kind, False, gpus, hours_between(start, end), False)


def a_day(*spans: DemandSpan, start: float = 0, end: float = 24) -> tuple[Span, DayDemand]:
    day = hours_between(start, end)
    return day, DayDemand(since=day.start, pools=hourly_demand(spans, day), unknown_waits=0)


def commitment_advice(*days: tuple[Span, DayDemand | None], window: Span, kind: NodeType = P5) -> TypeCommitment:
    (commitment,) = type_commitments(days, window, {"p5.48xlarge": kind})
    return commitment


SPANS = st.tuples(st.integers(-40, 2200), st.integers(0, 3000), st.integers(0, 64), st.booleans()).map(
    lambda row: DemandSpan("p5", "t", False, row[2], hours_between(row[0] / 60, (row[0] + row[1]) / 60), row[3])
)


@given(st.lists(SPANS, max_size=8))
def test_hourly_demand_sums_to_the_gpu_time(spans: list[DemandSpan]) -> None:
    pools = hourly_demand(spans, hours_between(0, 24))

    for is_waiting in (False, True):
        expected = sum(
            span.gpus * max(0.0, (min(span.span.end, BEGIN + 24 * HOUR) - max(span.span.start, BEGIN)).total_seconds())
            for span in spans
            if span.is_waiting is is_waiting
        )
        figures = [pool.waiting_gpu_seconds if is_waiting else pool.held_gpu_seconds for pool in pools]
        assert sum(map(sum, figures)) == expected


@given(
    st.permutations([a_demand_span(0, 3), a_demand_span(2, 9.5, 16, "b"), a_demand_span(1, 2, 4, kind="p5.48xlarge")])
)
def test_demand_does_not_depend_on_the_order_of_records(spans: list[DemandSpan]) -> None:
    assert hourly_demand(spans, hours_between(0, 24)) == hourly_demand(sorted(spans), hours_between(0, 24))


def test_stored_demand_of_a_thousand_pools_stays_small() -> None:
    spans = [a_demand_span(0, 24, 80_000, f"pool-{number:04d}" * 4) for number in range(1000)]

    pools = hourly_demand(spans, hours_between(0, 24))

    day = DayDemand(since=BEGIN, pools=pools, unknown_waits=0)
    assert len(document_text(day.to_json())) < 100_000
    assert sum(sum(pool.held_gpu_seconds) for pool in pools) == 1000 * 24 * 3600 * 80_000
    assert [pool.pool for pool in pools].count(OTHER_POOLS) == 1


def test_only_fully_covered_hours_are_known() -> None:
    assert whole_hours(hours_between(0.25, 2.75)) == [BEGIN + HOUR]
    assert whole_hours(hours_between(0.25, 0.75)) == []
    assert whole_hours(hours_between(1, 1)) == []


def test_hours_without_records_are_unknown() -> None:
    first, third = a_day(a_demand_span(0, 24)), a_day(a_demand_span(48, 72), start=48, end=72)

    commitment = commitment_advice(first, (hours_between(24, 48), None), third, window=hours_between(0, 96))

    assert (commitment.hours, commitment.unknown_hours) == (48, 48)
    assert [(level.nodes, level.hours) for level in commitment.demand] == [(1, 48)]


def test_hours_before_the_first_record_are_unknown() -> None:
    day, demand = a_day(a_demand_span(10.5, 24))

    commitment = commitment_advice((day, demand.replace(since=BEGIN + 10.5 * HOUR)), window=day)

    assert (commitment.hours, commitment.unknown_hours) == (13, 11)


def test_hyperpod_and_ec2_names_are_one_type() -> None:
    day = a_day(a_demand_span(0, 24), a_demand_span(0, 12, pool="burst", kind="p5.48xlarge"))

    commitment = commitment_advice(day, window=day[0])

    assert [(level.nodes, level.hours) for level in commitment.demand] == [(1, 12), (2, 12)]
    # The second node is used half of the time, and breaks even at 60 %.
    assert commitment.best
    assert commitment.present
    assert (commitment.best.units, commitment.present.units) == (1, 2)
    assert commitment.present.idle_reserved_usd == 12 * 30
    assert commitment.present.total_usd - commitment.best.total_usd == pytest.approx(24 * 30 - 12 * 50)


def test_waiting_jobs_raise_only_the_advice_that_includes_them() -> None:
    waits = DemandSpan("p5", "ml.p5.48xlarge", False, 32, hours_between(0, 20), True)
    day = a_day(a_demand_span(0, 24), waits)

    commitment = commitment_advice(day, window=day[0])

    assert commitment.best
    assert commitment.best_with_waiting
    assert (commitment.best.units, commitment.best_with_waiting.units) == (1, 5)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (P5._replace(reserved=None), "The policy states no price"),
        (P5._replace(on_demand=None), "There is no on-demand price"),
        (P5._replace(gpus_per_node=0), "The number of GPUs of a node is unknown."),
    ],
)
def test_commitment_advice_without_a_price_or_size_is_unknown(kind: NodeType, why: str) -> None:
    day = a_day(a_demand_span(0, 24))

    commitment = commitment_advice(day, window=day[0], kind=kind)

    assert commitment.why_unknown.startswith(why)
    assert (commitment.best, commitment.present, commitment.break_even_share) == (None, None, None)
    assert (commitment.peak_nodes is None) == (not kind.gpus_per_node)


def test_committed_type_without_known_hours_has_no_peak() -> None:
    commitment = commitment_advice(window=hours_between(0, 48))

    assert (commitment.hours, commitment.unknown_hours, commitment.peak_nodes, commitment.demand) == (0, 48, None, ())
    assert commitment.why_unknown == "No whole hour of the window has a known demand."


def test_idle_type_is_known_to_be_idle() -> None:
    day = a_day()

    commitment = commitment_advice(day, window=day[0])

    assert commitment.present
    assert commitment.best
    assert (commitment.peak_nodes, commitment.best.units, commitment.present.idle_reserved_hours) == (0, 0, 48)


def test_use_by_hour_separates_rented_waiting_and_unknown_hours() -> None:
    rented = DemandSpan("burst", "p5.48xlarge", True, 16, hours_between(10, 11), False)
    waiting = DemandSpan("p5", "ml.p5.48xlarge", False, 24, hours_between(9.5, 10), True)
    day = a_day(a_demand_span(9, 11.5), rented, waiting, start=9, end=12)

    hours = use_by_hour([day, (hours_between(12, 13), None)], hours_between(8.5, 13.2), max_hours=4)

    assert [(hour.committed_gpus, hour.rented_gpus, hour.waiting_gpus) for hour in hours] == [
        (8.0, 0.0, 12.0),
        (8.0, 16.0, 0.0),
        (4.0, 0.0, 0.0),
        (None, None, None),
    ]
    assert [hour.at for hour in hours] == [BEGIN + number * HOUR for number in (9, 10, 11, 12)]
