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

Runs that have not ended count as well. After a burst of submissions only the short runs have ended, so a mean of the
ended runs alone is far too low. The shares come from the Kaplan-Meier estimate: the share of a run that has not ended
is spread over the runs that last longer. If the longest run has not ended, it is expected to take half as long again.
"""

import functools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
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
    """The run time of a job, and who submitted the job."""

    team: str
    submitter: str
    job_type: str
    seconds: float
    is_running: bool = False
    """Whether the job still runs. Then its whole run takes at least `seconds`."""


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


def seconds_within(remaining_seconds: Iterable[float], horizon_seconds: float) -> float:
    """Return the mean of equally likely values that are cut at a horizon."""
    values = [min(value, horizon_seconds) for value in remaining_seconds]
    return math.fsum(values) / len(values)


def share_beyond(remaining_seconds: Iterable[float], horizon_seconds: float) -> float:
    """Return the probability that a run with these equally likely times lasts longer than a horizon."""
    is_longer = [seconds > horizon_seconds for seconds in remaining_seconds]
    return sum(is_longer) / len(is_longer)


class RunTimes:
    """Estimates of run times from the past runs of a fleet."""

    def __init__(self, past: Iterable[PastJob] = (), min_samples: int = 5) -> None:
        """Group the past runs.

        Args:
            past: The latest runs that ended by themselves, and runs that have not ended.
            min_samples: Ended runs of a group from which they are used.
        """
        groups: dict[tuple[str, ...], list[PastJob]] = defaultdict(list)
        for past_job in past:
            for group in _run_groups(past_job.team, past_job.submitter, past_job.job_type):
                groups[group].append(past_job)
        self._min_samples = min_samples
        self._run_groups: Mapping[tuple[str, ...], _RunTimeShares] = {
            group: _RunTimeShares.of(runs)
            for group, runs in groups.items()
            if sum(not past_job.is_running for past_job in runs) >= min_samples
        }

    def remaining(self, job_run: RunOrigin, ran_seconds: float) -> RemainingTime:
        """Return how much longer a run is expected to take.

        Args:
            job_run: The run.
            ran_seconds: How long it has run.
        """
        if job_run.stated_seconds:
            stated_shares = _RunTimeShares.equal(_lognormal_quantiles(job_run.stated_seconds, _STATED_SIGMA))
            return stated_shares.remaining_after(ran_seconds, job_run.stated_seconds, 1)
        for group in _run_groups(job_run.team, job_run.submitter, job_run.job_type):
            if past := self._run_groups.get(group):
                return past.remaining_after(ran_seconds, job_run.policy_seconds, self._min_samples)
        return RemainingTime((remaining_seconds(job_run.policy_seconds, ran_seconds),))


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


class _RunTimeShares(NamedTuple):
    """Run times and the share of the runs that each stands for."""

    seconds: list[float]
    """Ascending."""
    shares: list[float]
    """Cumulative: before the first, after the first, and so on."""
    products: list[float]
    """Cumulative: share x seconds."""
    ended: int
    """Number of runs that ended. Only the last of `seconds` may be of a run that has not."""

    @classmethod
    def of(cls, runs: Iterable[PastJob]) -> "_RunTimeShares":
        """Return the Kaplan-Meier estimate from ended and running jobs."""
        sorted_runs = sorted((past_job.seconds, past_job.is_running) for past_job in runs)
        seconds, shares, share_left = list[float](), list[float](), 1.0
        for position, (value, is_running) in enumerate(sorted_runs):
            if not is_running:
                seconds.append(value)
                shares.append(share_left / (len(sorted_runs) - position))
                share_left -= shares[-1]
        ended_count, (longest_seconds, is_running) = len(seconds), sorted_runs[-1]
        if is_running:
            seconds.append(longest_seconds + remaining_seconds(longest_seconds, longest_seconds))
            shares.append(share_left)
        return cls._with_shares(seconds, shares, ended_count)

    @classmethod
    def equal(cls, seconds: list[float]) -> "_RunTimeShares":
        """Return equally likely run times."""
        return cls._with_shares(seconds, [1 / len(seconds)] * len(seconds), len(seconds))

    @classmethod
    def _with_shares(cls, seconds: list[float], shares: list[float], ended_count: int) -> "_RunTimeShares":
        products = [share * value for share, value in zip(shares, seconds, strict=True)]
        return cls(seconds, list(accumulate(shares, initial=0.0)), list(accumulate(products, initial=0.0)), ended_count)

    def remaining_after(self, ran_seconds: float, usual_seconds: float, min_samples: int) -> RemainingTime:
        """Return the remaining time of runs that lasted longer than a time."""
        first_index = bisect_right(self.seconds, ran_seconds)
        longer = self.ended - first_index
        if longer < min_samples:
            return RemainingTime((remaining_seconds(min(usual_seconds, ran_seconds), ran_seconds),))
        count = min(longer, _VALUES)
        low, high = self.shares[first_index], self.shares[-1]
        cuts = [low + number * (high - low) / count for number in range(count + 1)]
        # Each part is replaced by its mean, so the mean of all runs stays the same.
        products = [self._product_until(cut, first_index) for cut in cuts]
        width, longest_seconds = (high - low) / count, self.seconds[-1]
        values = [
            round(min((end - start) / width, longest_seconds) - ran_seconds, 1) for start, end in pairwise(products)
        ]
        return RemainingTime(tuple(accumulate((max(0.0, value) for value in values), max)))

    def _product_until(self, share: float, first_index: int) -> float:
        """Return the sum of share x seconds over the runs up to a cumulative share."""
        position = min(max(bisect_left(self.shares, share) - 1, first_index), len(self.seconds) - 1)
        return self.products[position] + (share - self.shares[position]) * self.seconds[position]
