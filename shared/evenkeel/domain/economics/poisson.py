"""The Poisson distribution, with exact intervals for a count.

The tail of a Poisson distribution is a regularised incomplete gamma function: P(count >= k) = P(k, mean). A power
series gives it below `shape + 1`, and a continued fraction above (https://dlmf.nist.gov/8.11, https://dlmf.nist.gov/8.9).
"""

import math
from collections.abc import Callable

from evenkeel.domain.economics.figure_checks import more_than_0, share_between_0_and_1, whole_number

_PRECISION = 1e-16
_MAX_TERMS = 100_000
_TINY = 1e-300


def gamma_p(shape: float, x: float) -> float:
    """Return the regularised lower incomplete gamma function P(shape, x)."""
    return _lower_series(shape, x) if x < shape + 1 else 1 - _upper_fraction(shape, x)


def gamma_q(shape: float, x: float) -> float:
    """Return the regularised upper incomplete gamma function Q(shape, x) = 1 - P(shape, x)."""
    return 1 - _lower_series(shape, x) if x < shape + 1 else _upper_fraction(shape, x)


def _common_factor(shape: float, x: float) -> float:
    """Return x^shape e^-x / Gamma(shape)."""
    return math.exp(shape * math.log(x) - x - math.lgamma(shape))


def _lower_series(shape: float, x: float) -> float:
    if x <= 0:
        return 0.0
    term = total = 1 / shape
    for n in range(1, _MAX_TERMS):
        term *= x / (shape + n)
        total += term
        if term < total * _PRECISION:
            break
    return min(1.0, total * _common_factor(shape, x))


def _upper_fraction(shape: float, x: float) -> float:
    """Evaluate the fraction from its top: Lentz's method, https://dlmf.nist.gov/3.10.iii."""
    b = x + 1 - shape
    c = 1 / _TINY
    d = fraction = 1 / b
    for n in range(1, _MAX_TERMS):
        a, b = n * (shape - n), b + 2
        d = 1 / (a * d + b or _TINY)
        c = b + a / c or _TINY
        fraction *= c * d
        if abs(c * d - 1) < 4 * _PRECISION:
            break
    return min(1.0, fraction * _common_factor(shape, x))


def at_least_probability(count: int, mean: float) -> float:
    """Return P(at least `count`) for a mean."""
    return 1.0 if count <= 0 else gamma_p(count, mean)


def chi_square_quantile(probability: float, degrees: float) -> float:
    """Return the value that a chi-square variable does not exceed with this probability."""
    share_between_0_and_1("probability", probability)
    more_than_0("degrees", degrees)
    shape = degrees / 2
    # The smaller tail is compared, because 1 - p loses its last digits.
    if probability <= 0.5:
        return 2 * _bisect(lambda x: gamma_p(shape, x) < probability, shape)
    return 2 * _bisect(lambda x: gamma_q(shape, x) > 1 - probability, shape)


def _bisect(is_below: Callable[[float], bool], start: float) -> float:
    """Return where a monotone condition changes, by bisection to the last digit."""
    low, high = 0.0, max(1.0, start)
    while is_below(high):
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def count_interval(count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact two-sided interval for the mean behind a count.

    Source: F. Garwood, Fiducial limits for the Poisson distribution, Biometrika 28 (1936), in the chi-square form
    (https://www.itl.nist.gov/div898/handbook/apr/section4/apr412.htm).
    """
    whole_number("failures", count)
    tail = (1 - share_between_0_and_1("confidence", confidence)) / 2
    low = chi_square_quantile(tail, 2 * count) / 2 if count else 0.0
    return low, chi_square_quantile(1 - tail, 2 * count + 2) / 2
