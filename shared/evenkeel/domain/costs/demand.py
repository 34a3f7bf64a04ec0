"""Demand for GPUs in each hour: the GPUs that attempts held, and the GPUs that their jobs waited for.

An hour is known if all of it has records. Any other hour is unknown, and in no figure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.receipt import microseconds
from evenkeel.domain.values import Instant, Value

HOURS = 24
_HOUR = timedelta(hours=1)
_MAX_POOLS = 100
"""Pools with figures of their own in one day, so that its row stays small."""
OTHER_POOLS = "(other pools)"
"""Stands for the pools with the least demand, if a day has more than `_MAX_POOLS`."""


class PoolDemand(Value):
    """The demand for the nodes of a pool, in each hour of a UTC day."""

    pool: str
    instance_type: str
    is_rented: bool
    held_gpu_seconds: tuple[int, ...]
    """GPUs that attempts held, times seconds, for each of 24 hours."""
    waiting_gpu_seconds: tuple[int, ...]
    """GPUs that jobs waited for before these attempts, times seconds, for each of 24 hours."""


class DayDemand(Value):
    """The recorded demand of a day, or of a part of it."""

    since: Instant
    """From here on there are records. Earlier hours of the day are unknown."""
    pools: tuple[PoolDemand, ...]
    """Pools with demand. Any other pool had none."""
    unknown_waits: int
    """Attempts of which it is unknown how long their jobs waited. Their waiting time is left out."""


class HourOfUse(Value):
    """The mean number of GPUs that jobs held, and waited for, in one hour. Null: unknown."""

    at: Instant
    committed_gpus: float | None
    rented_gpus: float | None
    waiting_gpus: float | None
    """GPUs of attempts that started later. Jobs that have never started are not in it."""


class DemandSpan(NamedTuple):
    """GPUs that an attempt held, or that its job waited for, in a time span."""

    pool: str
    instance_type: str
    is_rented: bool
    gpus: int
    span: Span
    is_waiting: bool


def hourly_demand(spans: Iterable[DemandSpan], day: Span) -> tuple[PoolDemand, ...]:
    """Return the demand for each pool in a UTC day, or in a part of it. Equal spans give equal figures, in any order.

    Args:
        spans: Demand. Its parts outside the day do not count.
        day: The day or its part.
    """
    first_hour = _begin_of_day(day.start)
    totals: dict[tuple[str, str, bool], tuple[list[int], list[int]]] = {}
    for demand in spans:
        if not demand.gpus or demand.span.start >= day.end or demand.span.end <= day.start:
            continue
        key = (demand.pool, demand.instance_type, demand.is_rented)
        hours = totals.setdefault(key, ([0] * HOURS, [0] * HOURS))[demand.is_waiting]
        start, end = max(demand.span.start, day.start), min(demand.span.end, day.end)
        while start < end:
            hour = (start - first_hour) // _HOUR
            until = min(first_hour + (hour + 1) * _HOUR, end)
            hours[hour] += demand.gpus * microseconds(until - start)
            start = until
    pools = [
        PoolDemand(
            pool=pool,
            instance_type=instance_type,
            is_rented=is_rented,
            held_gpu_seconds=tuple(round(amount / 1e6) for amount in held_by_hour),
            waiting_gpu_seconds=tuple(round(amount / 1e6) for amount in waiting_by_hour),
        )
        for (pool, instance_type, is_rented), (held_by_hour, waiting_by_hour) in sorted(totals.items())
    ]
    return tuple(_largest_pools(pools))


def _largest_pools(pools: Sequence[PoolDemand]) -> Iterator[PoolDemand]:
    """Yield the pools with the most demand. The other pools of one instance type are added up."""
    ranked_pools = sorted(
        pools, key=lambda pool: (-sum(pool.held_gpu_seconds) - sum(pool.waiting_gpu_seconds), pool.pool)
    )
    chosen_ids = {id(pool) for pool in ranked_pools[:_MAX_POOLS]}
    yield from (pool for pool in pools if id(pool) in chosen_ids)
    small_pools: dict[tuple[str, bool], list[PoolDemand]] = defaultdict(list)
    for pool in ranked_pools[_MAX_POOLS:]:
        small_pools[pool.instance_type, pool.is_rented].append(pool)
    for (instance_type, is_rented), members in sorted(small_pools.items()):
        yield PoolDemand(
            pool=OTHER_POOLS,
            instance_type=instance_type,
            is_rented=is_rented,
            held_gpu_seconds=_sum_by_hour(member.held_gpu_seconds for member in members),
            waiting_gpu_seconds=_sum_by_hour(member.waiting_gpu_seconds for member in members),
        )


def _sum_by_hour(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))


def known_hours(days: Iterable[tuple[Span, DayDemand | None]]) -> dict[datetime, tuple[PoolDemand, ...]]:
    """Return the pools with demand of the day of each whole hour that has records.

    Args:
        days: Days or parts of days with their demand; None: unknown.
    """
    demand_by_hour: dict[datetime, tuple[PoolDemand, ...]] = {}
    for span, demand in days:
        if demand is not None:
            recorded_span = Span(max(demand.since, span.start), span.end)
            demand_by_hour |= dict.fromkeys(whole_hours(recorded_span), demand.pools)
    return demand_by_hour


def use_by_hour(days: Iterable[tuple[Span, DayDemand | None]], window: Span, max_hours: int) -> tuple[HourOfUse, ...]:
    """Return the use of the last whole hours of a window, oldest first. An hour without records has unknown figures.

    Args:
        days: Days or parts of days with their demand; None: unknown.
        window: The window.
        max_hours: The number of hours, at most.
    """
    demand_by_hour = known_hours(days)
    return tuple(_hour_of_use(at, demand_by_hour.get(at)) for at in whole_hours(window)[-max_hours:])


def _hour_of_use(at: datetime, pools: Sequence[PoolDemand] | None) -> HourOfUse:
    if pools is None:
        return HourOfUse(at=at, committed_gpus=None, rented_gpus=None, waiting_gpus=None)

    def mean_gpus(gpu_seconds: Iterable[int]) -> float:
        return round(sum(gpu_seconds) / _HOUR.total_seconds(), 2)

    return HourOfUse(
        at=at,
        committed_gpus=mean_gpus(pool.held_gpu_seconds[at.hour] for pool in pools if not pool.is_rented),
        rented_gpus=mean_gpus(pool.held_gpu_seconds[at.hour] for pool in pools if pool.is_rented),
        waiting_gpus=mean_gpus(pool.waiting_gpu_seconds[at.hour] for pool in pools),
    )


def whole_hours(span: Span) -> list[datetime]:
    """Return the beginnings of the hours that a span covers completely."""
    hour = span.start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if hour < span.start:
        hour += _HOUR
    return [hour + number * _HOUR for number in range(max(0, (span.end - hour) // _HOUR))]


def _begin_of_day(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
