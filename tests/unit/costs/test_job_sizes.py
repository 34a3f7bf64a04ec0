"""Failures of jobs by size: classes add up to the whole, and the figures follow from the counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.costs.job_sizes import (
    JobRun,
    JobSizeReliability,
    JobSizeUse,
    SizedFailure,
    endless_size,
    job_size_uses,
    reliability_by_job_size,
)

HOUR = 3_600_000_000
RUNS = st.lists(st.builds(JobRun, st.integers(0, 300), st.integers(0, 2400), st.integers(-5, 10**12)), max_size=12)
FAILURES = st.lists(st.builds(SizedFailure, st.integers(0, 300), st.booleans()), max_size=12)


def a_use(smallest_nodes: int, failures: int, job_hours: int, nodes: int, **changes: int) -> JobSizeUse:
    facts = {
        "smallest_nodes": smallest_nodes,
        "job_microseconds": job_hours * HOUR,
        "node_microseconds": nodes * job_hours * HOUR,
        "gpu_microseconds": 8 * nodes * job_hours * HOUR,
        "failures": failures,
        "other_failures": 0,
    }
    return JobSizeUse(**(facts | changes))


def by_group(*uses: JobSizeUse) -> dict[str, JobSizeReliability]:
    return {row.group: row for row in reliability_by_job_size([uses])}


def test_uses_sum_runs_and_failures_by_size_class() -> None:
    runs = (JobRun(5, 40, 2 * HOUR), JobRun(7, 56, HOUR), JobRun(1, 1, HOUR), JobRun(2, 16, 0), JobRun(0, 8, HOUR))
    failures = (SizedFailure(4, True), SizedFailure(6, True), SizedFailure(5, False), SizedFailure(0, True))

    assert job_size_uses(runs, failures) == (
        a_use(0, 1, 1, 0, gpu_microseconds=8 * HOUR),
        a_use(1, 0, 1, 1, gpu_microseconds=HOUR),
        a_use(4, 2, 3, 0, node_microseconds=17 * HOUR, gpu_microseconds=136 * HOUR, other_failures=1),
    )


@given(RUNS, FAILURES)
def test_order_and_division_into_days_change_no_sum(runs: list[JobRun], failures: list[SizedFailure]) -> None:
    uses = job_size_uses(runs, failures)
    middle = len(runs) // 2
    days = [job_size_uses(runs[middle:], ()), job_size_uses(runs[:middle], failures)]

    assert job_size_uses(reversed(runs), reversed(failures)) == uses
    assert reliability_by_job_size(days) == reliability_by_job_size([uses])
    assert sum(use.failures + use.other_failures for use in uses) == len(failures)


def test_mtbf_of_size_has_exact_interval_of_count() -> None:
    rows = by_group(a_use(4, 3, 120, 5), a_use(8, 0, 10, 8))

    five = rows["4-7"]
    assert (five.job_hours, five.node_hours, five.mean_nodes, five.mtbf_hours) == (120, 600, 5, 40)
    # The exact interval of three failures is 0.618672 to 8.767273 (chi-square with 6 and 8 degrees of freedom).
    assert five.low_mtbf_hours == pytest.approx(120 / 8.767273, rel=1e-6)
    assert five.high_mtbf_hours == pytest.approx(120 / 0.618672, rel=1e-6)
    assert five.rate
    assert five.rate.failures_per_node_hour == 3 / 600
    without_failure = rows["8-15"]
    assert (without_failure.mtbf_hours, without_failure.high_mtbf_hours) == (None, None)
    assert without_failure.low_mtbf_hours == pytest.approx(10 / 3.688879, rel=1e-6)
    assert (rows["all"].failures, rows["all"].node_hours) == (3, 680)


def test_failures_of_unknown_size_count_in_no_rate_per_node() -> None:
    rows = by_group(a_use(0, 5, 100, 0), a_use(2, 1, 50, 2))

    assert (rows["unknown"].rate, rows["unknown"].mean_nodes, rows["unknown"].mtbf_hours) == (None, None, 20)
    assert rows["all"].failures == 6
    assert rows["all"].rate
    assert rows["all"].rate.failures == 1
    assert rows["all"].mean_nodes == 2


def test_size_that_only_failed_has_no_mtbf_and_no_rate() -> None:
    row = by_group(a_use(16, 2, 0, 0))["16-31"]

    assert (row.failures, row.rate, row.mtbf_hours, row.low_mtbf_hours) == (2, None, None, None)


def test_without_a_run_there_is_no_row() -> None:
    assert reliability_by_job_size([(), ()]) == ()


def test_endless_size_follows_from_rate_and_loss() -> None:
    rows = by_group(a_use(4, 4, 1000, 4))  # 0.001 failures per node-hour

    size = endless_size(rows["all"], 1800, 1800)

    assert size
    assert (size.lost_seconds, size.nodes, size.is_repeated_work_known) == (3600, 1000, True)
    # 4 failures: 1.089865 to 10.241589.
    assert (size.low_nodes, size.high_nodes) == (391, 3671)


def test_endless_size_without_a_failure_has_only_a_lower_bound() -> None:
    size = endless_size(by_group(a_use(4, 0, 1000, 4))["all"], 3600, None)

    assert size
    assert (size.nodes, size.high_nodes, size.low_nodes, size.is_repeated_work_known) == (None, None, 1085, False)


@pytest.mark.parametrize("standstill", [None, 0.0])
def test_endless_size_without_a_known_standstill_is_unknown(standstill: float | None) -> None:
    assert endless_size(by_group(a_use(4, 4, 1000, 4))["all"], standstill, 60) is None
    assert endless_size(None, 60, 60) is None
