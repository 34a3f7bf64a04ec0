"""How long things are expected to take: the median of what was measured here, else the policy's figure."""

from collections.abc import Iterable
from statistics import median

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.values import Value


class Forecast(Value):
    """An expected duration, and what it rests on."""

    seconds: float
    samples: int = 0
    """Measured cases that it is the median of; 0 = it is the policy's figure."""


def forecast(measured: Iterable[float], policy_seconds: float, *, least_samples: int) -> Forecast:
    """Return the median of what was measured; the policy's figure where that is too little to go by.

    The median, since one machine that took a day says nothing about the next.
    """
    seen = sorted(measured)
    if len(seen) < max(1, least_samples):
        return Forecast(seconds=policy_seconds)
    return Forecast(seconds=round(median(seen), 3), samples=len(seen))


def repair_durations(past: Iterable[Incident], pool: str, rung: str) -> tuple[float, ...]:
    """Return how long machines of a pool took to come back after this rung, where it was the only one asked for."""
    return tuple(
        (one.stages.node_back_at - one.stages.repair_requested_at).total_seconds()
        for one in past
        if one.pool == pool and one.repairs == (rung,) and one.stages.repair_requested_at and one.stages.node_back_at
    )


def launch_durations(past: Iterable[Attempt]) -> tuple[float, ...]:
    """Return how long attempts took from their admission until every pod ran."""
    return tuple((one.running_at - one.admitted_at).total_seconds() for one in past if one.running_at)
