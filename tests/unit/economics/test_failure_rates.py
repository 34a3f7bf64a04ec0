"""Failure rates by group, and their effect on a job."""

import math

import pytest

from evenkeel.domain.economics import failure_rates
from evenkeel.domain.economics.failure_rates import (
    GroupedBy,
    Observations,
    ObservedFailures,
    ObservedNodeHours,
    failure_rate,
    mtbf_hours,
    rates_by,
    smallest_endless_nodes,
)
from evenkeel.domain.economics.figure_checks import WrongFigure


def interval_in_percent(rate: failure_rates.FailureRate) -> tuple[float | None, float, float | None]:
    low, value, high = (end and round(100 * end, 4) for end in rate.interval)
    assert value is not None
    return low, value, high


def test_rate_of_four_failures_has_a_wide_interval() -> None:
    assert interval_in_percent(failure_rate(4, 55 * 9.5 * 24)) == (0.0087, 0.0319, 0.0817)


@pytest.mark.parametrize(
    ("failures", "node_hours", "expected"),
    [(105, 124 * 60 * 24, 0.0588), (419, 2048 * 54 * 24, 0.0158), (417, 2000 * 54 * 24, 0.0161)],
)
def test_failure_counts_of_published_papers_give_published_rates(
    failures: int, node_hours: float, expected: float
) -> None:
    assert interval_in_percent(failure_rate(failures, node_hours))[1] == expected


def test_failure_rate_is_equal_in_all_its_units() -> None:
    rate = failure_rate(105, 124 * 60 * 24)

    assert rate.failures_per_thousand_node_days == pytest.approx(14.1, abs=0.02)
    assert rate.percent_per_node_hour == pytest.approx(100 * rate.failures_per_node_hour)


def test_no_failures_give_only_the_upper_bound_of_the_rate() -> None:
    rate = failure_rate(0, 1000)

    assert rate.high_failures_per_node_hour == pytest.approx(3.6889e-3, rel=1e-4)
    assert "only the high end" in rate.note


@pytest.mark.parametrize("node_hours", [0, -1, math.nan, math.inf])
def test_window_without_node_hours_is_refused(node_hours: float) -> None:
    with pytest.raises(WrongFigure, match="node_hours must be more than 0"):
        failure_rate(1, node_hours)


OBSERVATIONS = Observations(
    failures=(
        ObservedFailures(fault_class="gpu", pool="a", job_nodes=4, failures=3),
        ObservedFailures(fault_class="link", pool="b", job_nodes=40, failures=1),
        ObservedFailures(fault_class="gpu", pool="c"),
    ),
    node_hours=(
        ObservedNodeHours(pool="a", job_nodes=5, node_hours=1000),
        ObservedNodeHours(pool="b", job_nodes=63, node_hours=3000),
    ),
)


def test_pool_without_node_hours_has_an_unknown_rate() -> None:
    rates = {group_rate.group: group_rate for group_rate in rates_by(OBSERVATIONS, GroupedBy.POOL)}

    assert rates["a"].rate == failure_rate(3, 1000)
    assert rates["b"].rate == failure_rate(1, 3000)
    assert (rates["c"].rate, rates["c"].failures) == (None, 1)
    assert rates["c"].note.startswith("Unknown")


def test_rate_of_each_fault_class_uses_all_node_hours() -> None:
    rates = {group_rate.group: group_rate.rate for group_rate in rates_by(OBSERVATIONS, GroupedBy.FAULT_CLASS)}

    assert rates == {"gpu": failure_rate(4, 4000), "link": failure_rate(1, 4000)}


def test_job_sizes_are_powers_of_two() -> None:
    rates = {group_rate.group: group_rate.rate for group_rate in rates_by(OBSERVATIONS, GroupedBy.JOB_SIZE)}

    assert list(rates) == ["unknown", "4-7", "32-63"]
    assert rates["4-7"] == failure_rate(3, 1000)
    assert [failure_rates.size_class(n) for n in (1, 2, 3, 512)] == ["1", "2-3", "2-3", "512-1023"]


def test_mtbf_falls_as_a_job_uses_more_nodes() -> None:
    assert mtbf_hours(256, 0.0005) == pytest.approx(7.8125)
    assert mtbf_hours(1, 0.0) is None


@pytest.mark.parametrize(("rate", "hours"), [(0.0005, 280 / 60), (0.0005, 40 / 60), (0.01, 0.5), (0.25, 4.0)])
def test_smallest_job_that_never_finishes_is_exact(rate: float, hours: float) -> None:
    nodes = smallest_endless_nodes(rate, hours)

    assert nodes is not None
    assert nodes * rate * hours >= 1 - 1e-9
    assert (nodes - 1) * rate * hours < 1
    assert smallest_endless_nodes(rate, 0) is None


def test_rate_that_never_causes_a_failure_has_no_mtbf() -> None:
    assert mtbf_hours(1, 5e-324) is None
    assert smallest_endless_nodes(5e-324, 5) is None


def test_implausible_node_hours_are_refused() -> None:
    with pytest.raises(WrongFigure, match=r"nodeHours\[0\].nodeHours must be at most 1000000000000"):
        Observations.read({"failures": [], "nodeHours": [{"nodeHours": 1e308}, {"nodeHours": 1e308}]})
