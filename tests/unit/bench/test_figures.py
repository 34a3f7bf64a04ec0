"""Ratios compare two measurements round by round. Only a rise beyond the tolerance is a regression."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import RegressionLimit, quantile, ratio, regressions

SECONDS = st.floats(min_value=1e-3, max_value=1e3)
ROUNDS = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=40)


def test_quantile_is_one_of_the_measured_samples() -> None:
    samples = [float(number) for number in range(1, 41)]

    assert quantile(samples, 0.5) == 20.0
    assert quantile(samples, 0.99) == 40.0
    assert quantile(samples, 0.01) == 1.0


@given(samples=st.lists(SECONDS, min_size=1), share=st.floats(min_value=0.01, max_value=1.0))
def test_quantile_covers_at_least_its_share_of_the_samples(samples: list[float], share: float) -> None:
    limit = quantile(samples, share)

    assert limit in samples
    assert sum(1 for sample in samples if sample <= limit) >= share * len(samples) - 1e-6


def test_ratio_of_a_measurement_to_itself_is_one() -> None:
    figures = ratio([0.2, 0.3, 0.25], [0.2, 0.3, 0.25])

    assert (figures.p50, figures.p50_low, figures.p50_high, figures.p99) == (1.0, 1.0, 1.0, 1.0)


def test_slow_round_does_not_change_the_ratio_of_two_measurements() -> None:
    baseline_seconds = [0.1, 0.8, 0.2, 0.4, 0.1, 0.3]
    lane = [2 * seconds for seconds in baseline_seconds]

    figures = ratio(lane, baseline_seconds)

    assert figures.p50_low == pytest.approx(2.0)
    assert figures.p50_high == pytest.approx(2.0)


@given(rounds=ROUNDS)
def test_same_samples_give_the_same_figures(rounds: list[tuple[float, float]]) -> None:
    lane, baseline_seconds = [pair[0] for pair in rounds], [pair[1] for pair in rounds]

    assert ratio(lane, baseline_seconds) == ratio(lane, baseline_seconds)


def test_measurements_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="every round"):
        ratio([0.1, 0.2], [0.1])


def test_ratio_that_rises_within_its_tolerance_is_no_regression() -> None:
    assert regressions({"a": 1.4}, {"a": RegressionLimit(baseline=1.2, tolerance=0.2)}) == []


def test_ratio_that_rises_beyond_its_tolerance_is_reported() -> None:
    messages = regressions({"a": 1.5, "b": 9.0}, {"a": RegressionLimit(baseline=1.2, tolerance=0.2)})

    assert messages == ["a is 1.50, more than 20% above the baseline of 1.20"]


def test_unmeasured_ratio_is_no_regression() -> None:
    assert regressions({}, {"a": RegressionLimit(baseline=1.2, tolerance=0.2)}) == []
