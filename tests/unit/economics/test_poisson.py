"""Exact intervals of counts, against published tables and a plain sum."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.economics import poisson
from evenkeel.domain.economics.figure_checks import WrongFigure


def probability_of_at_most(count: int, mean: float) -> float:
    """Return the probability of at most `count` events by summing the terms of the definition."""
    return math.fsum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count + 1))


# https://www.itl.nist.gov/div898/handbook/eda/section3/eda3674.htm
@pytest.mark.parametrize(
    ("probability", "degrees", "value"),
    [
        *((0.95, 1, 3.841), (0.95, 10, 18.307), (0.975, 10, 20.483), (0.99, 100, 135.807), (0.999, 5, 20.515)),
        *((0.10, 1, 0.016), (0.05, 10, 3.940), (0.025, 10, 3.247), (0.01, 100, 70.065), (0.001, 5, 0.210)),
    ],
)
def test_chi_square_quantile_matches_the_published_table(probability: float, degrees: int, value: float) -> None:
    assert round(poisson.chi_square_quantile(probability, degrees), 3) == value


# The 95 % limits that Garwood's method gives, as printed in tables of exact Poisson limits.
@pytest.mark.parametrize(
    ("count", "low", "high"),
    [
        *((0, 0, 3.689), (1, 0.025, 5.572), (2, 0.242, 7.225), (4, 1.090, 10.242), (5, 1.623, 11.668)),
        *((10, 4.795, 18.390), (20, 12.217, 30.888), (50, 37.111, 65.919), (100, 81.364, 121.627)),
    ],
)
def test_poisson_interval_matches_the_published_limits(count: int, low: float, high: float) -> None:
    assert poisson.count_interval(count) == pytest.approx((low, high), abs=6e-4)


@given(st.integers(0, 120), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_poisson_interval_bounds_leave_the_stated_tails(count: int, confidence: float) -> None:
    low, high = poisson.count_interval(count, confidence)
    tail = (1 - confidence) / 2

    assert probability_of_at_most(count, high) == pytest.approx(tail, rel=1e-9)
    if count:
        assert 1 - probability_of_at_most(count - 1, low) == pytest.approx(tail, rel=1e-9)


@given(st.integers(0, 100), st.floats(1e-6, 150))
def test_poisson_tails_match_the_exact_sum(count: int, mean: float) -> None:
    below = probability_of_at_most(count, mean)

    assert poisson.at_least_probability(count + 1, mean) == pytest.approx(1 - below, rel=1e-8, abs=1e-13)


def test_tiny_poisson_tail_loses_no_precision() -> None:
    # P(X >= 5) of a mean of 0.001, where 1 - P(X <= 4) loses every digit to rounding.
    assert poisson.at_least_probability(5, 0.001) == pytest.approx(1e-15 / 120 * (1 - 0.001 * 5 / 6), rel=1e-6)


@pytest.mark.parametrize(("count", "confidence"), [(-1, 0.95), (3, 0), (3, 1), (3, math.nan)])
def test_wrong_count_or_confidence_is_refused(count: int, confidence: float) -> None:
    with pytest.raises(WrongFigure):
        poisson.count_interval(count, confidence)
