"""Expected durations: the median of past measurements, with its interval, or the policy's figure."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.values import Value

_CONFIDENCE = 0.95


class ExpectedDuration(Value):
    """An expected duration, and the number of measurements behind it."""

    seconds: float
    samples: int = 0
    """Number of measured cases in the median; 0 = the policy's figure."""
    low_seconds: float | None = None
    """Low end of the exact interval of 95 % of the median; None with fewer than six cases."""
    high_seconds: float | None = None
    origin: str = ""
    """Source of the cases: `this job` or `pool <name>`; empty without enough cases, and in earlier records."""

    @property
    def text(self) -> str:
        """`320 s (12 cases in pool p5, 95 % interval 280 to 400 s)`."""
        if not self.samples:
            return f"{self.seconds:g} s (policy)"
        interval = (
            "too few for an interval"
            if self.low_seconds is None or self.high_seconds is None
            else f"95 % interval {round(self.low_seconds, 1):g} to {round(self.high_seconds, 1):g} s"
        )
        return f"{round(self.seconds, 1):g} s ({self.samples} cases of {self.origin}, {interval})"


class MeasuredDurations(NamedTuple):
    """Measured durations of one origin."""

    origin: str
    seconds: Iterable[float]


def expected_duration(
    measured_seconds: Iterable[float],
    policy_seconds: float,
    *,
    min_samples: int,
    origin: str = "this job",
    otherwise: MeasuredDurations | None = None,
) -> ExpectedDuration:
    """Return the median of the measured seconds, or the policy's figure if there are fewer than `min_samples`.

    A median is used, because one repair that took a day does not predict the next one.

    Args:
        measured_seconds: Measured seconds.
        policy_seconds: The policy's figure.
        min_samples: Cases that a median needs.
        origin: Source of the measured seconds.
        otherwise: Measurements of a wider origin, used if there are too few of the first.
    """
    for candidate in filter(None, (MeasuredDurations(origin, measured_seconds), otherwise)):
        cases = sorted(candidate.seconds)
        if len(cases) >= max(1, min_samples):
            low, high = median_interval(cases) or (None, None)
            return ExpectedDuration(
                seconds=round(median(cases), 3),
                samples=len(cases),
                low_seconds=low,
                high_seconds=high,
                origin=candidate.origin,
            )
    return ExpectedDuration(seconds=policy_seconds)


def median_interval(cases: Sequence[float], confidence: float = _CONFIDENCE) -> tuple[float, float] | None:
    """Return an interval that contains the median with at least this probability, for any distribution.

    The number of cases below the median is binomial with probability 1/2. So the k-th smallest and the k-th largest
    case enclose the median with the probability 1 - 2 P(Bin(n, 1/2) < k). The largest such k is used. None if even the
    smallest and the largest case do not suffice.

    Source: https://en.wikipedia.org/wiki/Order_statistic#Confidence_intervals_for_quantiles
    """
    sorted_cases, count = sorted(cases), len(cases)
    rank, below = 0, 0
    for number in range(count // 2 + 1):
        below += math.comb(count, number)
        if 2 * below > (1 - confidence) * 2**count:
            break
        rank = number + 1
    return (sorted_cases[rank - 1], sorted_cases[count - rank]) if rank else None


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


def newest_of_each_job(newest_first: Iterable[Attempt], limit: int) -> Iterator[Attempt]:
    """Yield at most this many attempts of each job, so one job that restarts often does not decide alone."""
    attempts_by_job: Counter[str] = Counter()
    for attempt in newest_first:
        attempts_by_job[attempt.job_id] += 1
        if attempts_by_job[attempt.job_id] <= limit:
            yield attempt


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
