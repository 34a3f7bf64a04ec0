"""How much longer a run is expected to take: learned from past runs, stated by the submission, or from the policy.

Run times have heavy tails, so one figure says little. An estimate is a list of equally likely values: quantiles. The
first of these sources that exists is used:

    1. `expectedSeconds` of the submission
    2. past runs of the same submitter and job type
    3. past runs of the same team
    4. past runs of the fleet
    5. the policy's expected run time, as one value

Only past runs count that lasted longer than this run so far. If too few did, the run is expected to take
half as long again.
"""

import functools
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from statistics import NormalDist, fmean
from typing import NamedTuple

from evenkeel.domain.capacity.start_estimates import remaining_seconds

_VALUES = 12
"""Equally likely values of an estimate."""
_MIDS = tuple((number + 0.5) / _VALUES for number in range(_VALUES))
_DEVIATES = tuple(NormalDist().inv_cdf(share) for share in _MIDS)
_STATED_SIGMA = 0.8
"""Spread of run times around their stated run times: within a factor of 2.2 in two of three cases."""


class PastJob(NamedTuple):
    """The run time of a job that ended, and who submitted the job."""

    team: str
    submitter: str
    job_type: str
    seconds: float


class RunOrigin(NamedTuple):
    """The facts about a run that are known before its end."""

    team: str
    submitter: str
    job_type: str
    stated_seconds: int | None
    """`expectedSeconds` of the submission."""
    policy_seconds: int
    """The policy's expected run time of its class."""


class RemainingTime(NamedTuple):
    """How much longer a run takes: equally likely values in seconds, ascending."""

    seconds: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.seconds)

    @property
    def p90(self) -> float:
        """The time that nine in ten runs do not exceed; of one value, twice that value."""
        if len(self.seconds) == 1:
            return 2 * self.seconds[0]
        return self.seconds[int(0.9 * len(self.seconds))]

    def within(self, horizon_seconds: float) -> float:
        """Return the expected time until the run ends or the horizon is reached."""
        return seconds_within(self.seconds, horizon_seconds)


def seconds_within(remaining: Iterable[float], horizon_seconds: float) -> float:
    """Return the mean of equally likely values that are cut at a horizon."""
    values = [min(value, horizon_seconds) for value in remaining]
    return math.fsum(values) / len(values)


def share_beyond(remaining: Iterable[float], horizon_seconds: float) -> float:
    """Return the probability that a run with these equally likely times lasts longer than a horizon."""
    values = [value > horizon_seconds for value in remaining]
    return sum(values) / len(values)


class RunTimes:
    """Estimates of run times from the past runs of a fleet."""

    def __init__(self, past: Iterable[PastJob] = (), min_samples: int = 5) -> None:
        """Group the past runs.

        Args:
            past: The latest runs that ended by themselves.
            min_samples: Runs of a group from which they are used.
        """
        groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for run in past:
            for group in _run_groups(run.team, run.submitter, run.job_type):
                groups[group].append(run.seconds)
        self._min_samples = min_samples
        self._run_groups: Mapping[tuple[str, ...], list[float]] = {
            group: sorted(runs) for group, runs in groups.items() if len(runs) >= min_samples
        }

    def remaining(self, run: RunOrigin, ran_seconds: float) -> RemainingTime:
        """Return how much longer a run is expected to take.

        Args:
            run: The run.
            ran_seconds: How long it has run.
        """
        if run.stated_seconds:
            return _remaining_after(
                _lognormal_quantiles(run.stated_seconds, _STATED_SIGMA), ran_seconds, run.stated_seconds, 1
            )
        for group in _run_groups(run.team, run.submitter, run.job_type):
            if past := self._run_groups.get(group):
                return _remaining_after(past, ran_seconds, run.policy_seconds, self._min_samples)
        return RemainingTime((remaining_seconds(run.policy_seconds, ran_seconds),))


NO_PAST_RUNS = RunTimes()


@functools.lru_cache(maxsize=8)
def run_times_of(past: tuple[PastJob, ...], min_samples: int) -> RunTimes:
    """Return the estimates from past runs. A cycle needs them several times."""
    return RunTimes(past, min_samples)


def _run_groups(team: str, submitter: str, job_type: str) -> tuple[tuple[str, ...], ...]:
    """Return the groups of a run, the most specific first."""
    return (team, submitter, job_type), (team,), ()


def _lognormal_quantiles(median: float, sigma: float) -> list[float]:
    return [median * math.exp(sigma * deviate) for deviate in _DEVIATES]


def _remaining_after(ordered: list[float], ran_seconds: float, usual_seconds: float, min_samples: int) -> RemainingTime:
    """Return the remaining time of runs that lasted longer than a time."""
    first = bisect_right(ordered, ran_seconds)
    longer = len(ordered) - first
    if longer < min_samples:
        return RemainingTime((remaining_seconds(min(usual_seconds, ran_seconds), ran_seconds),))
    count = min(longer, _VALUES)
    cuts = [first + number * longer // count for number in range(count + 1)]
    # Each part is replaced by its mean, so the mean of all runs stays the same.
    parts = (fmean(ordered[start:end]) for start, end in pairwise(cuts))
    return RemainingTime(tuple(round(value - ran_seconds, 1) for value in parts))
