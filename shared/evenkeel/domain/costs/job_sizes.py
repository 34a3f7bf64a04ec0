"""Failures of jobs by their number of nodes, with exact Poisson intervals, and the size at which a job never ends.

An attempt counts with the nodes that it had, from the start of all its pods until its end. So the same node-hours are
in the rate of one size only, and a size that never ran is unknown.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from evenkeel.domain.costs.receipt import MICROSECONDS_PER_HOUR
from evenkeel.domain.economics import poisson
from evenkeel.domain.economics.failure_rates import (
    FailureRate,
    failure_rate,
    size_class,
    smallest_endless_nodes,
    smallest_nodes_of_class,
)
from evenkeel.domain.values import Value

_CONFIDENCE = 0.95


class JobSizeUse(Value):
    """The running time and the interruptions of jobs of one size class, in a day."""

    smallest_nodes: int
    """The smallest size of the class; 0 if the number of nodes is unknown."""
    job_microseconds: int
    node_microseconds: int
    gpu_microseconds: int
    failures: int
    """Interruptions by infrastructure: an incident, or a lost attempt that no incident names."""
    other_failures: int
    """Failures that no node caused: of the application, or by incidents of the classes `application` and `info`."""


class JobRun(NamedTuple):
    """The running time of an attempt in a day."""

    nodes: int
    """0: unknown."""
    gpus: int
    microseconds: int


class SizedFailure(NamedTuple):
    """A failure that interrupted a job."""

    nodes: int
    """0: unknown."""
    is_infrastructure: bool


class JobSizeReliability(Value):
    """Failures of the jobs of one size class."""

    group: str
    """Range of nodes such as `4-7`, `unknown`, or `all`."""
    smallest_nodes: int | None
    """The smallest size of the class; null for `unknown` and `all`."""
    failures: int
    """Interruptions by infrastructure."""
    other_failures: int
    """Failures of the application, and by incidents of the classes `application` and `info`. No rate counts them."""
    job_hours: float
    node_hours: float
    gpu_hours: float
    mean_nodes: float | None
    """Node-hours per job-hour; null without a run."""
    rate: FailureRate | None
    """Failures per node-hour in which such jobs ran; null without node-hours."""
    mtbf_hours: float | None
    """Job-hours per failure; null without a failure or without a run."""
    low_mtbf_hours: float | None
    """Low end of the exact Poisson interval of 95 %; null without a run."""
    high_mtbf_hours: float | None
    """Null without a failure: no failure gives no upper bound."""


class EndlessSize(Value):
    """The smallest number of nodes at which a job never ends: failures arrive as fast as recoveries end."""

    lost_seconds: float
    """Mean loss by a failure: the standstill by incidents, and the repeated work."""
    is_repeated_work_known: bool
    """If false, the loss is a lower bound, and so the sizes are upper bounds."""
    nodes: int | None
    """At the observed rate; null without a failure."""
    low_nodes: int
    """At the high end of the rate."""
    high_nodes: int | None
    """At the low end of the rate; null without a failure."""


def job_size_uses(runs: Iterable[JobRun], failures: Iterable[SizedFailure]) -> tuple[JobSizeUse, ...]:
    """Return the use and the failures of each size class, from the smallest. Order does not matter."""
    totals: dict[int, Counter[str]] = defaultdict(Counter)
    for run in runs:
        if run.microseconds > 0:
            totals[smallest_nodes_of_class(run.nodes)].update(
                job_microseconds=run.microseconds,
                node_microseconds=run.nodes * run.microseconds,
                gpu_microseconds=run.gpus * run.microseconds,
            )
    for failure in failures:
        field = "failures" if failure.is_infrastructure else "other_failures"
        totals[smallest_nodes_of_class(failure.nodes)][field] += 1
    names = [name for name in JobSizeUse.model_fields if name != "smallest_nodes"]
    return tuple(
        JobSizeUse(smallest_nodes=nodes, **{name: totals[nodes][name] for name in names}) for nodes in sorted(totals)
    )


def reliability_by_job_size(days: Iterable[Sequence[JobSizeUse]]) -> tuple[JobSizeReliability, ...]:
    """Return the reliability of all jobs, and of each size class that ran or failed. Empty if no job did."""
    uses = [use for day in days for use in day]
    if not uses:
        return ()
    classes = sorted({use.smallest_nodes for use in uses})
    return (
        _reliability("all", None, uses),
        *(
            _reliability(size_class(nodes), nodes or None, [use for use in uses if use.smallest_nodes == nodes])
            for nodes in classes
        ),
    )


def _reliability(group: str, smallest_nodes: int | None, uses: Sequence[JobSizeUse]) -> JobSizeReliability:
    # A failure of an unknown size has no node-hours, so it counts in no rate per node-hour.
    sized_uses = [use for use in uses if use.smallest_nodes]
    failures, sized_failures = sum(use.failures for use in uses), sum(use.failures for use in sized_uses)
    job_hours, node_hours, gpu_hours = (
        sum(getattr(use, field) for use in uses) / MICROSECONDS_PER_HOUR
        for field in ("job_microseconds", "node_microseconds", "gpu_microseconds")
    )
    sized_job_hours = math.fsum(use.job_microseconds for use in sized_uses) / MICROSECONDS_PER_HOUR
    low, high = poisson.count_interval(failures, _CONFIDENCE)
    return JobSizeReliability(
        group=group,
        smallest_nodes=smallest_nodes,
        failures=failures,
        other_failures=sum(use.other_failures for use in uses),
        job_hours=job_hours,
        node_hours=node_hours,
        gpu_hours=gpu_hours,
        mean_nodes=node_hours / sized_job_hours if sized_job_hours else None,
        rate=failure_rate(sized_failures, node_hours, _CONFIDENCE) if node_hours else None,
        mtbf_hours=job_hours / failures if failures and job_hours else None,
        low_mtbf_hours=job_hours / high if job_hours else None,
        high_mtbf_hours=job_hours / low if low and job_hours else None,
    )


def endless_size(
    all_jobs: JobSizeReliability | None, standstill_seconds: float | None, repeated_seconds: float | None
) -> EndlessSize | None:
    """Return the smallest size at which a job never ends; None if the rate or the loss by a failure is unknown.

    Args:
        all_jobs: The reliability of the jobs of all sizes.
        standstill_seconds: Mean standstill by an incident.
        repeated_seconds: Mean repeated work of a failure.
    """
    rate = all_jobs.rate if all_jobs else None
    if rate is None or not standstill_seconds:
        return None
    lost_seconds = standstill_seconds + (repeated_seconds or 0.0)
    low_rate, observed_rate, high_rate = rate.interval
    low_nodes = smallest_endless_nodes(high_rate or 0.0, lost_seconds / 3600)
    if low_nodes is None:
        return None
    return EndlessSize(
        lost_seconds=lost_seconds,
        is_repeated_work_known=repeated_seconds is not None,
        nodes=smallest_endless_nodes(observed_rate, lost_seconds / 3600),
        low_nodes=low_nodes,
        high_nodes=smallest_endless_nodes(low_rate or 0.0, lost_seconds / 3600),
    )
