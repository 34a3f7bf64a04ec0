"""Error rates with exact binomial intervals.

The interval contains the true rate in at least the stated share of all samples, also for small samples and for a count
of zero. Source: Clopper and Pearson, Biometrika 26 (1934), https://doi.org/10.1093/biomet/26.4.404.
"""

import math

from evenkeel.domain.values import Value

CONFIDENCE = 0.95
_HALVINGS = 60
"""Each halves the error of a limit, so the limits have the precision of a float."""


class Rate(Value):
    """A share of independent cases, with its exact interval."""

    count: int
    """Cases with a wrong decision."""
    of: int
    """Cases with a known verdict."""
    unknown: int
    """Cases without a verdict. Neither number includes them."""
    share: float | None
    """`count / of`; None if no case has a verdict."""
    low: float
    high: float
    confidence: float = CONFIDENCE

    @classmethod
    def of_counts(cls, count: int, of: int, unknown_count: int) -> "Rate":
        """Return the rate of `count` wrong decisions in `of` judged ones."""
        low, high = clopper_pearson(count, of)
        return cls(count=count, of=of, unknown=unknown_count, share=count / of if of else None, low=low, high=high)


def clopper_pearson(count: int, of: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact two-sided interval of a binomial share: (0, 1) without any trial.

    Args:
        count: Number of successes, from 0 to `of`.
        of: Number of independent trials.
        confidence: Smallest probability that the interval contains the true share.
    """
    if not 0 <= count <= of:
        raise ValueError(f"count must be from 0 to {of}, not {count}")
    tail_probability = (1 - confidence) / 2
    return _lower_limit(count, of, tail_probability), 1 - _lower_limit(of - count, of, tail_probability)


def _lower_limit(count: int, of: int, tail_probability: float) -> float:
    """Return the share at which `count` or more successes have the probability `tail_probability`."""
    if count == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _at_least_probability(count, of, middle) < tail_probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_least_probability(count: int, of: int, share: float) -> float:
    """Return the probability of `count` or more successes. Sums the shorter tail."""
    if count > of / 2:
        return _sum_probabilities(range(count, of + 1), of, share)
    return 1 - _sum_probabilities(range(count), of, share)


def _sum_probabilities(counts: range, of: int, share: float) -> float:
    log_success, log_failure = math.log(share), math.log1p(-share)
    log_of = math.lgamma(of + 1)
    return math.fsum(
        math.exp(
            log_of
            - math.lgamma(count + 1)
            - math.lgamma(of - count + 1)
            + count * log_success
            + (of - count) * log_failure
        )
        for count in counts
    )
