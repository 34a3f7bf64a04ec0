"""Failure rates from counts, with exact intervals, and what they mean for a job.

failures per node-hour  r = failures / node-hours          interval: `poisson.count_interval`
failures of a job       x = nodes r                         any node stops a synchronous job
MTBF of a job           M = 1 / x
"""

import math
from collections import defaultdict
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from evenkeel.domain.economics import poisson
from evenkeel.domain.economics.figure_checks import (
    FigureDocument,
    Name,
    WrongFigure,
    at_least,
    more_than_0,
    whole_number,
)
from evenkeel.domain.values import Value

MAX_NODE_HOURS = 1e12
"""The hours of a million nodes in a century: more is an error of a unit."""


class RateInterval(NamedTuple):
    """A failure rate per node-hour and its bounds."""

    low: float | None
    """None: unknown."""
    estimate: float
    high: float | None
    """None: unknown."""


class FailureRate(Value):
    """A failure rate per node-hour. The interval holds the true rate with the given confidence."""

    failures: int | None
    """Observed failures; null if the rate was not observed but stated."""
    node_hours: float | None
    failures_per_node_hour: float
    low_failures_per_node_hour: float | None
    """Null: unknown."""
    high_failures_per_node_hour: float | None
    confidence: float | None
    percent_per_node_hour: float
    low_percent_per_node_hour: float | None
    high_percent_per_node_hour: float | None
    failures_per_thousand_node_days: float
    low_failures_per_thousand_node_days: float | None
    high_failures_per_thousand_node_days: float | None
    note: str = ""

    @property
    def interval(self) -> RateInterval:
        """The rate in failures per node-hour, with its bounds."""
        return RateInterval(
            self.low_failures_per_node_hour, self.failures_per_node_hour, self.high_failures_per_node_hour
        )


def failure_rate(failures: int, node_hours: float, confidence: float = 0.95) -> FailureRate:
    """Return the failure rate for a count, with its exact Poisson interval.

    Args:
        failures: Observed failures.
        node_hours: Nodes times hours in which they were observed.
        confidence: Probability that the interval contains the true rate.

    Raises:
        WrongFigure: a figure cannot be used; without node-hours the rate is unknown.
    """
    more_than_0("node_hours", node_hours)
    low, high = poisson.count_interval(failures, confidence)
    note = "" if failures else "No failure was observed, so only the high end is an estimate."
    return _rate_in_all_units(
        failures, node_hours, RateInterval(low / node_hours, failures / node_hours, high / node_hours), confidence, note
    )


def stated_rate(rate: float, low: float | None = None, high: float | None = None) -> FailureRate:
    """Return a rate that was not observed here but stated, with the bounds that are known."""
    at_least("rate", rate)
    if low is not None and not 0 <= low <= rate:
        raise WrongFigure("low", f"must be from 0 to {rate:g}, not {low:g}")
    if high is not None:
        at_least("high", high, rate)
    note = "The rate is stated, not observed." + (" Its interval is unknown." if low is None or high is None else "")
    return _rate_in_all_units(None, None, RateInterval(low, rate, high), None, note)


def _rate_in_all_units(
    failures: int | None,
    node_hours: float | None,
    interval: RateInterval,
    confidence: float | None,
    note: str,
) -> FailureRate:
    low, rate, high = interval
    return FailureRate(
        failures=failures,
        node_hours=node_hours,
        failures_per_node_hour=rate,
        low_failures_per_node_hour=low,
        high_failures_per_node_hour=high,
        confidence=confidence,
        percent_per_node_hour=100 * rate,
        low_percent_per_node_hour=_multiply_known(low, 100),
        high_percent_per_node_hour=_multiply_known(high, 100),
        failures_per_thousand_node_days=24_000 * rate,
        low_failures_per_thousand_node_days=_multiply_known(low, 24_000),
        high_failures_per_thousand_node_days=_multiply_known(high, 24_000),
        note=note,
    )


def _multiply_known(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


# ---------------------------------------------------------------- groups


class GroupedBy(StrEnum):
    """How failures and node-hours are grouped."""

    FAULT_CLASS = "fault-class"
    POOL = "pool"
    INSTANCE_TYPE = "instance-type"
    JOB_SIZE = "job-size"


class ObservedFailures(FigureDocument):
    """Failures of one fault class in one pool."""

    fault_class: Name = ""
    """Empty: unknown."""
    pool: Name = ""
    instance_type: Name = ""
    job_nodes: int = Field(default=0, ge=0)
    """Nodes of the job that the failure stopped; 0 if unknown or none."""
    failures: int = Field(default=1, ge=0)


class ObservedNodeHours(FigureDocument):
    """Node-hours under observation, of one pool and instance type."""

    pool: Name = ""
    instance_type: Name = ""
    job_nodes: int = Field(default=0, ge=0)
    """Nodes of the job that ran there; 0 if unknown or none."""
    node_hours: float = Field(ge=0, le=MAX_NODE_HOURS)


class Observations(FigureDocument):
    """Failures and node-hours of one window."""

    failures: tuple[ObservedFailures, ...]
    node_hours: tuple[ObservedNodeHours, ...]


class GroupRate(Value):
    """The rate of one group; null if the group has no node-hours."""

    group: str
    failures: int
    node_hours: float
    rate: FailureRate | None
    note: str = ""


def rates_by(observations: Observations, by: GroupedBy, confidence: float = 0.95) -> tuple[GroupRate, ...]:
    """Return the rate of each group. Every node can have every fault class, so each class counts all node-hours."""
    failures: dict[str, int] = defaultdict(int)
    hours: dict[str, float] = defaultdict(float)
    for failure in observations.failures:
        failures[_group_name(failure, by)] += failure.failures
    total = math.fsum(observed_node_hours.node_hours for observed_node_hours in observations.node_hours)
    if by is GroupedBy.FAULT_CLASS:
        hours.update(dict.fromkeys(failures, total))
    else:
        for observed_hours in observations.node_hours:
            hours[_group_name(observed_hours, by)] += observed_hours.node_hours
    return tuple(
        GroupRate(
            group=group,
            failures=failures.get(group, 0),
            node_hours=hours.get(group, 0.0),
            rate=failure_rate(failures.get(group, 0), hours[group], confidence) if hours.get(group) else None,
            note="" if hours.get(group) else "Unknown: no node-hours were observed in this group.",
        )
        for group in sorted(failures.keys() | hours.keys(), key=_group_order)
    )


def _group_name(observation: ObservedFailures | ObservedNodeHours, by: GroupedBy) -> str:
    match by:
        case GroupedBy.FAULT_CLASS:
            return (observation.fault_class if isinstance(observation, ObservedFailures) else "") or "unknown"
        case GroupedBy.POOL:
            return observation.pool or "unknown"
        case GroupedBy.INSTANCE_TYPE:
            return observation.instance_type or "unknown"
        case GroupedBy.JOB_SIZE:
            return size_class(observation.job_nodes)


def size_class(nodes: int) -> str:
    """Return the class of a job size: powers of two, such as `4-7`."""
    smallest_nodes = smallest_nodes_of_class(nodes)
    if smallest_nodes < 2:
        return str(smallest_nodes) if smallest_nodes else "unknown"
    return f"{smallest_nodes}-{2 * smallest_nodes - 1}"


def smallest_nodes_of_class(nodes: int) -> int:
    """Return the smallest job size of the class of a size; 0 if the size is unknown."""
    return 1 << (nodes.bit_length() - 1) if nodes > 0 else 0


def _group_order(group: str) -> tuple[int, str]:
    first_word = group.partition("-")[0]
    return (int(first_word), group) if first_word.isdigit() else (0, group)


# ---------------------------------------------------------------- jobs

_NEVER_PER_HOUR = 1e-18
"""A lower rate never causes a failure: it is one in a hundred million million years."""


def job_failures_per_hour(nodes: int, failures_per_node_hour: float) -> float:
    """Return the failures of a job per hour. Any node stops a synchronous job."""
    return whole_number("nodes", nodes, 1) * at_least("failures_per_node_hour", failures_per_node_hour)


def mtbf_hours(nodes: int, failures_per_node_hour: float) -> float | None:
    """Return the mean time between failures of a job, in hours; None if nothing fails."""
    per_hour = job_failures_per_hour(nodes, failures_per_node_hour)
    return 1 / per_hour if per_hour >= _NEVER_PER_HOUR else None


def smallest_endless_nodes(failures_per_node_hour: float, downtime_hours: float) -> int | None:
    """Return the smallest size at which a job never ends if one recovery runs at a time; None if every size ends.

    Failures then arrive at least as fast as recoveries end: nodes x rate x downtime >= 1.
    """
    per_node = at_least("failures_per_node_hour", failures_per_node_hour) * at_least("downtime_hours", downtime_hours)
    if per_node < _NEVER_PER_HOUR:
        return None
    nodes = math.ceil(1 / per_node - 1e-9)
    return max(1, nodes)
