"""Expected durations: the median of past measurements, or the policy's figure if there are too few."""

from collections.abc import Iterable
from statistics import median

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.values import Value


class ExpectedDuration(Value):
    """An expected duration, and the number of measurements behind it."""

    seconds: float
    samples: int = 0
    """Number of measured cases in the median; 0 = the policy's figure."""


def expected_duration(measured: Iterable[float], policy_seconds: float, *, min_samples: int) -> ExpectedDuration:
    """Return the median of the measured seconds, or the policy's figure if there are fewer than `min_samples`.

    A median is used, because one repair that took a day does not predict the next one.
    """
    cases = sorted(measured)
    if len(cases) < max(1, min_samples):
        return ExpectedDuration(seconds=policy_seconds)
    return ExpectedDuration(seconds=round(median(cases), 3), samples=len(cases))


def repair_durations(past: Iterable[Incident], pool: str, rung: str) -> tuple[float, ...]:
    """Return how many seconds each repair in a pool took, for incidents in which this rung was the only request."""
    return tuple(
        (incident.stages.node_back_at - incident.stages.repair_requested_at).total_seconds()
        for incident in past
        if incident.pool == pool
        and incident.repairs == (rung,)
        and incident.stages.repair_requested_at
        and incident.stages.node_back_at
    )


def restore_durations(past: Iterable[Attempt]) -> tuple[float, ...]:
    """Return how many seconds each attempt took from running pods until it trained again, where that was measured."""
    return tuple(
        (attempt.trained_at - attempt.running_at).total_seconds()
        for attempt in past
        if attempt.trained_at and attempt.running_at
    )


def launch_durations(past: Iterable[Attempt]) -> tuple[float, ...]:
    """Return how many seconds each attempt took from its admission until every pod ran."""
    return tuple((attempt.running_at - attempt.admitted_at).total_seconds() for attempt in past if attempt.running_at)
