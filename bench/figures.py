"""Figures from samples: quantiles, ratios of lanes with intervals, and the comparison with a baseline. Pure."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_RESAMPLES = 2000


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least `share` of all samples do not exceed (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True)
class Ratio:
    """Seconds of one lane divided by the seconds of another lane, from the same run on the same engine."""

    p50: float
    p50_low: float
    """Lower end of the 95 % interval of the ratio at the median."""
    p50_high: float
    p99: float


def ratio(lane: Sequence[float], yardstick: Sequence[float], *, seed: int = 1) -> Ratio:
    """Return the ratio of two lanes, measured alternately.

    The interval is a bootstrap over whole rounds, because a disturbance of a round affects both lanes.

    Args:
        lane: Seconds, a sample per round.
        yardstick: Seconds of the same rounds.
        seed: Seed of the bootstrap: the same samples give the same figures.
    """
    if len(lane) != len(yardstick):
        raise ValueError(f"{len(lane)} samples against {len(yardstick)}: both lanes need a sample for every round")
    dice = random.Random(seed)
    rounds = list(zip(lane, yardstick, strict=True))
    drawn = [dice.choices(rounds, k=len(rounds)) for _ in range(_RESAMPLES)]
    medians = [
        statistics.median(pair[0] for pair in draw) / statistics.median(pair[1] for pair in draw) for draw in drawn
    ]
    return Ratio(
        p50=statistics.median(lane) / statistics.median(yardstick),
        p50_low=quantile(medians, 0.025),
        p50_high=quantile(medians, 0.975),
        p99=quantile(lane, 0.99) / quantile(yardstick, 0.99),
    )


@dataclass(frozen=True)
class RegressionLimit:
    """Tolerance of a ratio: a ratio above it is a regression."""

    baseline: float
    tolerance: float
    """Share of the baseline: 0.25 allows a ratio 25 % above it."""

    @property
    def highest(self) -> float:
        return self.baseline * (1 + self.tolerance)


def regressions(figures: Mapping[str, float], limits: Mapping[str, RegressionLimit]) -> list[str]:
    """Return a sentence for each regression; a ratio without a baseline is never a regression."""
    return [
        f"{name} is {figures[name]:.2f}, more than {limit.tolerance:.0%} above the baseline of {limit.baseline:.2f}"
        for name, limit in limits.items()
        if name in figures and figures[name] > limit.highest
    ]
