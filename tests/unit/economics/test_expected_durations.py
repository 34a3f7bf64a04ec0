"""Expected durations are measured if there are enough cases; otherwise they come from the policy."""

import math
import random
from datetime import timedelta
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.economics.expected_durations import (
    ExpectedDuration,
    MeasuredDurations,
    expected_duration,
    launch_durations,
    median_interval,
    newest_of_each_job,
    repair_durations,
)
from evenkeel.domain.health.incidents import Incident, StageTimes
from tests.unit.api.seeds import a_job, ago, an_attempt, an_incident


def a_past_repair(seconds: float | None, **changes: object) -> Incident:
    asked_at = ago(hours=1)
    back_at = None if seconds is None else asked_at + timedelta(seconds=seconds)
    stages = StageTimes(repair_requested_at=asked_at, node_back_at=back_at)
    return an_incident(1, **{"stages": stages, "repairs": ("reboot",), "pool": "p5", **changes})


def test_median_of_enough_past_durations_replaces_the_policy_figure() -> None:
    measured = ExpectedDuration(seconds=20, samples=3, origin="pool p5")

    assert ExpectedDuration(seconds=960) == expect(10, 20)
    assert measured == expect(20, 86_400, 10)
    assert ExpectedDuration(seconds=960) == expected_duration([], 960, min_samples=0)
    assert measured.text == "20 s (3 cases of pool p5, too few for an interval)"


def expect(*seconds: float) -> ExpectedDuration:
    return expected_duration(seconds, 960, min_samples=3, origin="pool p5")


def test_cases_of_the_job_come_before_cases_of_its_pool() -> None:
    pool = MeasuredDurations("pool p5", range(100, 120))

    few, enough = (expected_duration([5, 6], 960, min_samples=least, otherwise=pool) for least in (3, 2))

    assert (enough.seconds, enough.origin) == (5.5, "this job")
    assert (few.seconds, few.samples, few.low_seconds, few.high_seconds) == (109.5, 20, 105, 114)
    assert few.text == "109.5 s (20 cases of pool p5, 95 % interval 105 to 114 s)"


def test_text_of_measured_seconds_is_rounded_to_tenths() -> None:
    assert expect(1.46439, 2.45213, 4.04012).text == "2.5 s (3 cases of pool p5, too few for an interval)"
    assert expect(*[1.46439] * 8).text == "1.5 s (8 cases of pool p5, 95 % interval 1.5 to 1.5 s)"


@pytest.mark.parametrize(
    # Ranks of the exact interval of 95 % for a median, as tables of nonparametric statistics print them.
    ("cases", "ranks"),
    [(5, None), (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)), (20, (6, 15)), (30, (10, 21)), (100, (40, 61))],
)
def test_interval_of_a_median_has_the_ranks_of_the_tables(cases: int, ranks: tuple[int, int] | None) -> None:
    assert median_interval(range(1, cases + 1)) == ranks


@pytest.mark.parametrize("sigma", [0.1, 2.0])
def test_interval_contains_the_true_median_in_95_percent_of_samples(sigma: float) -> None:
    source = random.Random(11)
    intervals = [median_interval([source.lognormvariate(5, sigma) for _ in range(12)]) for _ in range(3000)]

    hits = sum(low <= math.exp(5) <= high for low, high in filter(None, intervals))

    assert hits / len(intervals) == pytest.approx(0.9614, abs=0.01)  # 1 - 2 P(Bin(12, 1/2) < 3)


@given(st.lists(st.floats(0, 1e6), min_size=6, max_size=60))
def test_median_lies_within_its_interval(cases: list[float]) -> None:
    interval = median_interval(cases)

    assert interval
    assert min(cases) <= interval[0] <= median(cases) <= interval[1] <= max(cases)


def test_repair_forecast_uses_only_repairs_of_equal_rung_and_pool() -> None:
    past = [
        a_past_repair(300),
        a_past_repair(None),
        a_past_repair(301, pool="other"),
        a_past_repair(302, repairs=("reboot", "replace")),
        a_past_repair(303, repairs=("replace",)),
    ]

    assert repair_durations(past, "p5", "reboot") == (300,)


def test_attempt_that_never_ran_does_not_count_as_launch_time() -> None:
    job = a_job(1)
    ran = an_attempt(job, 1, admitted_at=ago(minutes=10), running_at=ago(minutes=8))

    assert launch_durations([ran, an_attempt(job, 2, running_at=None)]) == (120,)


def test_job_that_restarts_often_gives_a_few_cases() -> None:
    often, once = a_job(1), a_job(2)
    newest_first = [*(an_attempt(often, number) for number in range(9, 0, -1)), an_attempt(once, 1)]

    kept = [(attempt.job_id, attempt.attempt) for attempt in newest_of_each_job(newest_first, 2)]

    assert kept == [(often.job_id, 9), (often.job_id, 8), (once.job_id, 1)]
