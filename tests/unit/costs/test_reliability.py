"""MTBF and MTTR of a report: groups add up to the fleet, and intervals contain the rate of a simulated fleet."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.costs.day_figures import CountedFailure, DayFigures, FailureDurations
from evenkeel.domain.costs.fleet_report import GroupReliability, ReportFacts, fleet_report
from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.job_sizes import JobSizeUse
from evenkeel.domain.costs.node_time import NodeSpan, node_time
from evenkeel.domain.costs.rent_report import rent_report

BEGIN = datetime(2026, 11, 3, tzinfo=UTC)
DAY = timedelta(days=1)
Failure = tuple[str, str, float | None]
"""Pool, fault class, and seconds of the repair."""
FAILURES = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(("hardware", "network")), st.none() | st.floats(0, 1e5)),
    max_size=12,
)


def a_day(number: int, nodes: dict[str, int], failures: Sequence[Failure]) -> DayFigures:
    span = Span(BEGIN + number * DAY, BEGIN + (number + 1) * DAY)
    spans = [
        NodeSpan(f"{pool}{index}", pool, "t", 8, False, span) for pool, count in nodes.items() for index in range(count)
    ]
    groups = sorted({(pool, name) for pool, name, _ in failures})
    repairs = [(pool, name, [entry[2] for entry in failures if entry[:2] == (pool, name)]) for pool, name in groups]
    return DayFigures(
        since=span.start,
        until=span.end,
        failures=tuple(
            CountedFailure(fault_class=name, pool=pool, instance_type="t", node="i") for pool, name, _ in failures
        ),
        losses=(),
        stages=(),
        recovery_seconds=(),
        unknown_recoveries=0,
        recoveries=(),
        repairs=tuple(
            FailureDurations(
                fault_class=name,
                pool=pool,
                seconds=tuple(sorted(value for value in values if value is not None)),
                unknown=values.count(None),
            )
            for pool, name, values in repairs
        ),
        saved=(),
        pools=node_time(spans, {}, {}, lambda *_: None),
        rent=rent_report((), span, 0),
        teams=(),
    )


def reliability_of(days: Sequence[DayFigures]) -> dict[tuple[str | None, str | None], GroupReliability]:
    window = Span(days[0].since, days[-1].until)
    report = fleet_report(ReportFacts(window, days, {}, {}, (), 0))
    return {(row.pool, row.fault_class): row for row in report.reliability}


@given(st.lists(FAILURES, min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 3))
def test_rates_and_repairs_of_groups_add_up_to_the_fleet(days: list[list[Failure]], in_a: int, in_b: int) -> None:
    rows = reliability_of([a_day(number, {"a": in_a, "b": in_b}, failures) for number, failures in enumerate(days)])

    everything = [failure for failures in days for failure in failures]
    hours = 24 * len(days)
    fleet = rows[None, None]
    assert (fleet.failures, fleet.node_hours) == (len(everything), hours * (in_a + in_b))
    for pool, nodes in (("a", in_a), ("b", in_b)):
        classes = [row for (of, name), row in rows.items() if of == pool and name]
        assert rows[pool, None].failures == sum(row.failures for row in classes)
        assert {row.node_hours for row in classes} <= {hours * nodes}
        # The rates of independent classes add up, so the inverse MTBFs do.
        rate = 1 / (rows[pool, None].mtbf_hours or float("inf"))
        assert rate == pytest.approx(sum(1 / row.mtbf_hours for row in classes if row.mtbf_hours))
    known = [seconds for _, _, seconds in everything if seconds is not None]
    assert (fleet.node_repair.count, fleet.node_repair.unknown) == (len(known), len(everything) - len(known))
    if known:
        assert fleet.node_repair.mean_seconds == pytest.approx(sum(known) / len(known))
        groups = [row.node_repair for (pool, name), row in rows.items() if pool and name and row.node_repair.count]
        weighted = sum((group.mean_seconds or 0) * group.count for group in groups)
        assert fleet.node_repair.mean_seconds == pytest.approx(weighted / sum(group.count for group in groups))


def test_interval_contains_the_mtbf_of_a_simulated_fleet() -> None:
    # 50 nodes for 10 days, each with a mean of 1,000 hours between failures, drawn failure by failure.
    draw, mtbf_hours, hits, runs = random.Random(5), 1000.0, 0, 200
    for _ in range(runs):
        count = 0
        for _node in range(50):
            at = draw.expovariate(1 / mtbf_hours)
            while at < 240:
                count += 1
                at += draw.expovariate(1 / mtbf_hours)
        row = reliability_of([a_day(0, {"a": 500}, [("a", "hardware", None)] * count)])["a", "hardware"]
        assert row.node_hours == 50 * 240
        hits += (row.low_mtbf_hours or 0) <= mtbf_hours <= (row.high_mtbf_hours or float("inf"))

    assert hits / runs >= 0.93


def test_days_without_job_sizes_are_counted_not_guessed() -> None:
    first, second = (a_day(number, {"a": 1}, ()) for number in range(2))
    use = JobSizeUse(
        smallest_nodes=2, job_microseconds=1, node_microseconds=2, gpu_microseconds=16, failures=0, other_failures=0
    )
    window = Span(first.since, second.until)

    report = fleet_report(ReportFacts(window, [first, second.replace(job_sizes=(use,))], {}, {}, (), 0))

    assert [size.group for size in report.job_sizes] == ["all", "2-3"]
    assert any(note.startswith("1 stored day is of a release without job sizes.") for note in report.notes)
