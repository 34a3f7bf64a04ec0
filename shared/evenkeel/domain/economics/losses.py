"""The cost of past failures: the GPU-hours in which interrupted jobs stood still, and their lost work.

An interruption loses two times on all GPUs of the job:

    standstill   from the end of the interrupted attempt until the next attempt runs
    lost work    from the checkpoint that the next attempt resumes from until that end

Unknown times are counted apart, so the sums are lower bounds. They never count as 0.
"""

import math
from collections.abc import Iterable, Sequence

from evenkeel.domain.economics.figure_checks import at_least
from evenkeel.domain.values import Value


class Interruption(Value):
    """An attempt that a failure ended."""

    incident_id: str
    fault_class: str
    pool: str
    job_id: str
    attempt: int
    gpus: int
    standstill_seconds: float | None
    """None: unknown."""
    lost_work_seconds: float | None
    """None: unknown."""
    is_over: bool = True
    """False: no later attempt runs yet, so the standstill grows."""


class Losses(Value):
    """The known losses of some interruptions."""

    group: str
    interruptions: int
    standstill_gpu_hours: float
    lost_work_gpu_hours: float
    lost_gpu_hours: float
    mean_standstill_seconds: float | None
    """Of the known ones; null if there is none."""
    mean_lost_work_seconds: float | None
    unknown_standstills: int
    unknown_lost_work: int
    still_interrupted: int
    lost_usd: float | None
    """Null without a price."""


def losses_by(
    interruptions: Iterable[Interruption], by: str, usd_per_gpu_hour: float | None = None
) -> tuple[tuple[Losses, ...], Losses]:
    """Return the losses of each group and in total. The groups add up to the total.

    Args:
        interruptions: Interruptions. If several incidents name an attempt, the first one counts.
        by: The field to group by: `fault_class` or `pool`.
        usd_per_gpu_hour: Price; None if unknown.
    """
    price = None if usd_per_gpu_hour is None else at_least("usd_per_gpu_hour", usd_per_gpu_hour)
    first: dict[tuple[str, int], Interruption] = {}
    for interruption in interruptions:
        first.setdefault((interruption.job_id, interruption.attempt), interruption)
    groups: dict[str, list[Interruption]] = {}
    for interruption in first.values():
        groups.setdefault(getattr(interruption, by) or "unknown", []).append(interruption)
    rows = tuple(_losses_of(groups[name], name, price) for name in sorted(groups))
    return rows, _losses_of(list(first.values()), "total", price)


def _losses_of(counted: Sequence[Interruption], group: str, price: float | None) -> Losses:
    still = [
        (interruption.gpus, interruption.standstill_seconds)
        for interruption in counted
        if interruption.standstill_seconds is not None
    ]
    work = [
        (interruption.gpus, interruption.lost_work_seconds)
        for interruption in counted
        if interruption.lost_work_seconds is not None
    ]
    lost = _gpu_hours(still) + _gpu_hours(work)
    return Losses(
        group=group,
        interruptions=len(counted),
        standstill_gpu_hours=_gpu_hours(still),
        lost_work_gpu_hours=_gpu_hours(work),
        lost_gpu_hours=lost,
        mean_standstill_seconds=_mean(still),
        mean_lost_work_seconds=_mean(work),
        unknown_standstills=len(counted) - len(still),
        unknown_lost_work=len(counted) - len(work),
        still_interrupted=sum(not interruption.is_over for interruption in counted),
        lost_usd=None if price is None else price * lost,
    )


def _gpu_hours(times: Iterable[tuple[int, float]]) -> float:
    return math.fsum(gpus * seconds for gpus, seconds in times) / 3600


def _mean(times: Sequence[tuple[int, float]]) -> float | None:
    return math.fsum(seconds for _, seconds in times) / len(times) if times else None
