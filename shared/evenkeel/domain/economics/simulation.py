"""Simulated runs, the second derivation of `effective_training_time.py`. The caller passes the random numbers."""

import math
from collections.abc import Callable
from typing import NamedTuple

from evenkeel.domain.economics.effective_training_time import DowntimeModel

Uniform = Callable[[], float]
"""Returns a random number in [0, 1): the method of a seeded generator."""
_BATCHES = 50


class Estimate(NamedTuple):
    """A simulated figure with its standard error."""

    value: float
    standard_error: float


def time_factors(
    failures_per_hour: float, downtime_hours: tuple[float, ...], model: DowntimeModel, failures: int, uniform: Uniform
) -> tuple[list[tuple[float, ...]], tuple[float, ...]]:
    """Simulate T/T0 for several downtimes on the same failures.

    Returns:
        T/T0 of each batch of failures, by downtime, and T/T0 of all failures.
    """
    batches = []
    size = max(1, failures // _BATCHES)
    worked_hours_of, elapsed_hours = [0.0] * len(downtime_hours), [0.0] * len(downtime_hours)
    for _ in range(_BATCHES):
        gaps = [-math.log(1 - uniform()) / failures_per_hour for _ in range(size)]
        pairs = [_simulate_batch(gaps, downtime_hour, model) for downtime_hour in downtime_hours]
        batches.append(tuple(all_hours / worked_hours for worked_hours, all_hours in pairs))
        for index, (worked_hours, all_hours) in enumerate(pairs):
            worked_hours_of[index] += worked_hours
            elapsed_hours[index] += all_hours
    return batches, tuple(
        all_hours / worked_hours for worked_hours, all_hours in zip(worked_hours_of, elapsed_hours, strict=True)
    )


def _simulate_batch(gaps: list[float], downtime: float, model: DowntimeModel) -> tuple[float, float]:
    """Return the working hours and all hours of a run in which failures follow each other after these gaps."""
    now = down_until = worked_hours = 0.0
    for gap in gaps:
        if model is DowntimeModel.RENEWAL:
            now = max(now, down_until)  # a job that does not run cannot fail
        now += gap
        worked_hours += max(0.0, now - max(now - gap, down_until))
        # Repairs side by side: the newest ends last. A restarted recovery ends at the same time.
        down_until = (max(down_until, now) if model is DowntimeModel.SERIAL else now) + downtime
    return worked_hours, max(now, down_until)


def standard_error(batches: list[float]) -> float:
    """Return the standard error of the mean of independent batches."""
    mean = math.fsum(batches) / len(batches)
    return math.sqrt(math.fsum((batch - mean) ** 2 for batch in batches) / (len(batches) - 1) / len(batches))
