"""Effective training time, for four meanings of downtime.

x failures of the job per hour, d hours of downtime for each, T0 hours without failures, T hours with them. The
effective training time ratio (ETTR) is T0 / T.

    renewal    T/T0 = 1 + x d        failures only while the job runs
    parallel   T/T0 = e^(x d)        failures at any time, each repaired on its own; the job needs every node
    restart    T/T0 = e^(x d)        a failure during a recovery starts the recovery again
    serial     T/T0 = 1/(1 - x d)    failures at any time, one recovery at a time; without end from x d >= 1

The article https://aws.amazon.com/blogs/machine-learning/reduce-ml-training-costs-with-amazon-sagemaker-hyperpod/ uses
the first form. `simulation.py` derives each form a second time, and a test compares them.
"""

import math
from enum import StrEnum
from typing import assert_never

from evenkeel.domain.economics.figure_checks import at_least, more_than_0, whole_number
from evenkeel.domain.values import Value

_MAX_EXPONENT = 300
"""A run that takes e^300 times as long never ends. Its days are still a finite number."""


class DowntimeModel(StrEnum):
    """The meaning of downtime: how failures during a recovery count."""

    RENEWAL = "renewal"
    """A job that does not run cannot fail."""
    PARALLEL = "parallel"
    """Each failure is repaired on its own."""
    RESTART = "restart"
    """A failure during a recovery starts the recovery again."""
    SERIAL = "serial"
    """Recoveries run one after another; a further failure waits."""


def time_factor(failures_per_hour: float, downtime_hours: float, model: DowntimeModel) -> float:
    """Return how much longer a job runs because of failures, T/T0; infinite for a job that never ends."""
    load = at_least("failures_per_hour", failures_per_hour) * at_least("downtime_hours", downtime_hours)
    match model:
        case DowntimeModel.RENEWAL:
            return 1 + load
        case DowntimeModel.PARALLEL | DowntimeModel.RESTART:
            return math.exp(load) if load < _MAX_EXPONENT else math.inf
        case DowntimeModel.SERIAL:
            return 1 / (1 - load) if load < 1 else math.inf
        case _:
            assert_never(model)


def ettr(failures_per_hour: float, downtime_hours: float, model: DowntimeModel) -> float:
    """Return the effective training time ratio T0/T; 0 for a job that never ends."""
    return 1 / time_factor(failures_per_hour, downtime_hours, model)


def shrink_downtime_seconds(
    detect_seconds: float, reconfigure_seconds: float, lead_seconds: float, nodes: int
) -> float:
    """Return the downtime of a failure if the job continues with one node fewer until the replacement arrives.

    While one of N nodes is missing, the job loses 1/N of its speed, so a lead time L costs L/N. A job of one node has
    no smaller size.
    """
    at_least("detect_seconds", detect_seconds)
    at_least("reconfigure_seconds", reconfigure_seconds)
    return (
        detect_seconds + reconfigure_seconds + at_least("lead_seconds", lead_seconds) / whole_number("nodes", nodes, 2)
    )


class Saving(Value):
    """The saving of a shorter downtime on one run. Null if one of the runs never ends."""

    model: DowntimeModel
    saved_days: float | None
    saved_share: float | None
    """Share of the time with the longer downtime."""


def saving(longer: "RunTime", shorter: "RunTime") -> Saving:
    """Return the savings of a shorter downtime on the same run."""
    if longer.days is None or shorter.days is None:
        return Saving(model=longer.model, saved_days=None, saved_share=None)
    days = longer.days - shorter.days
    return Saving(model=longer.model, saved_days=days, saved_share=days / longer.days)


class RunTime(Value):
    """How long a run takes with failures, under one meaning of downtime."""

    model: DowntimeModel
    ends: bool
    """False: failures arrive as fast as recoveries end, so the run never ends. The next figures are then null."""
    ettr: float
    time_factor: float | None
    days: float | None
    lost_days: float | None
    expected_failures: float | None


def run_time(
    nodes: int,
    failures_per_node_hour: float,
    downtime_seconds: float,
    failure_free_hours: float,
    model: DowntimeModel,
) -> RunTime:
    """Return the time that a run takes with failures.

    Args:
        nodes: Nodes of the job.
        failures_per_node_hour: Failure rate of a node.
        downtime_seconds: From a failure until the job trains again.
        failure_free_hours: Duration of the run without failures.
        model: Meaning of downtime.
    """
    per_hour = whole_number("nodes", nodes, 1) * at_least("failures_per_node_hour", failures_per_node_hour)
    hours = more_than_0("failure_free_hours", failure_free_hours)
    factor = time_factor(per_hour, at_least("downtime_seconds", downtime_seconds) / 3600, model)
    ends = math.isfinite(factor)
    exposed_hours = hours if model is DowntimeModel.RENEWAL else hours * factor
    return RunTime(
        model=model,
        ends=ends,
        ettr=1 / factor,
        time_factor=factor if ends else None,
        days=hours * factor / 24 if ends else None,
        lost_days=hours * (factor - 1) / 24 if ends else None,
        expected_failures=per_hour * exposed_hours if ends else None,
    )
