"""The exact interval of an error rate."""

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.shadow.rates import Rate, clopper_pearson
from tests.examples import examples

TRIALS = st.integers(1, 60).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of)))


def at_least_probability(count: int, trials: int, share: Fraction) -> Fraction:
    return sum(
        (
            comb(trials, number) * share**number * (1 - share) ** (trials - number)
            for number in range(count, trials + 1)
        ),
        Fraction(0),
    )


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [
        # Intervals as printed by `binom.test` of R.
        (0, 10, 0.0, 0.3084971),
        (1, 10, 0.002528579, 0.445016117),
        (5, 10, 0.187086, 0.812914),
        (10, 10, 0.6915029, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_confidence_interval_equals_binom_test_of_r(count: int, of: int, low: float, high: float) -> None:
    assert clopper_pearson(count, of) == pytest.approx((low, high), abs=1e-6)


@given(TRIALS)
def test_each_confidence_limit_excludes_a_tail_of_its_probability(trial: tuple[int, int]) -> None:
    count, trials = trial

    low, high = clopper_pearson(count, trials)

    if count > 0:
        assert float(at_least_probability(count, trials, Fraction(low))) == pytest.approx(0.025, rel=1e-6)
    if count < trials:
        assert float(1 - at_least_probability(count + 1, trials, Fraction(high))) == pytest.approx(0.025, rel=1e-6)


@given(TRIALS)
def test_confidence_interval_contains_the_share_and_is_symmetric(trial: tuple[int, int]) -> None:
    count, trials = trial

    low, high = clopper_pearson(count, trials)

    assert 0 <= low <= count / trials <= high <= 1
    assert clopper_pearson(trials - count, trials) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@pytest.mark.parametrize("of", range(1, examples(20)))
def test_interval_covers_the_true_share_often_enough(of: int) -> None:
    intervals = [clopper_pearson(count, of) for count in range(of + 1)]

    for share in (0.01, 0.1, 0.3, 0.5, 0.9):
        covering_intervals = sum(
            comb(of, count) * share**count * (1 - share) ** (of - count)
            for count, (low, high) in enumerate(intervals)
            if low <= share <= high
        )
        assert covering_intervals >= 0.95


def test_thousands_of_trials_give_a_narrow_interval() -> None:
    low, high = clopper_pearson(3, 10_000)

    assert 0 < low < 0.0003 < high < 0.001


def test_rate_without_a_verdict_is_unknown_not_zero() -> None:
    rate = Rate.of_counts(0, 0, unknown_count=4)

    assert (rate.share, rate.low, rate.high, rate.unknown) == (None, 0.0, 1.0, 4)


def test_success_count_above_the_trials_is_refused() -> None:
    with pytest.raises(ValueError, match="from 0 to 3"):
        clopper_pearson(4, 3)
