"""The figures of one day that are metrics. An unknown figure is None, because a zero would look like a measurement."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from evenkeel.domain.costs.day_figures import DayFigures
from evenkeel.domain.costs.fleet_report import effective_time
from evenkeel.domain.costs.node_time import GpuUse, PoolUse, pool_times


class DaySummary(NamedTuple):
    """Figures of a day; None or missing: unknown."""

    training_time_ratio: float | None
    """The effective training time ratio (ETTR)."""
    recovery_seconds: float | None
    """Mean time that an incident that is over stopped a job (MTTR)."""
    seconds_between_failures: float | None
    """Node time per failure (MTBF of a node); None without a failure."""
    node_seconds: Mapping[GpuUse, float]
    """Empty without a node."""
    lost_usd: float | None
    """By failures; None without a node, or if a part has no price or no known length."""


def summarise_day(day: DayFigures) -> DaySummary:
    """Return the figures of a day."""
    failure_losses = [group for group in day.losses if group.is_failure]
    _, all_nodes = pool_times([day.pools])
    recoveries, failures = day.recovery_seconds, len(day.failures)
    is_unknown = not day.pools or any(group.unpriced_gpu_hours or group.usd_micros is None for group in failure_losses)
    return DaySummary(
        training_time_ratio=effective_time(all_nodes, math.fsum(group.gpu_hours for group in failure_losses)).ratio,
        recovery_seconds=math.fsum(recoveries) / len(recoveries) if recoveries else None,
        seconds_between_failures=3600 * all_nodes.node_hours / failures if failures and day.pools else None,
        node_seconds={gpu_use: math.fsum(_node_seconds(pool, gpu_use) for pool in day.pools) for gpu_use in GpuUse}
        if day.pools
        else {},
        lost_usd=None if is_unknown else sum(group.usd_micros or 0 for group in failure_losses) / 1e6,
    )


class PoolSummary(NamedTuple):
    """Figures of a pool in a day; None: unknown."""

    pool: str
    training_time_ratio: float | None
    recovery_seconds: float | None
    seconds_between_failures: float | None


MAX_POOLS = 20
"""Pools with metrics of their own: those with the most node time. Each metric of a pool has its price."""


def summarise_pools(day: DayFigures) -> tuple[PoolSummary, ...]:
    """Return the figures of the largest pools of a day, by name. Committed and rented nodes of a name are one pool."""
    nodes: dict[str, int] = {}
    for pool in day.pools:
        nodes[pool.pool] = nodes.get(pool.pool, 0) + sum(pool.node_microseconds.values())
    largest_pools = sorted(nodes, key=lambda name: (-nodes[name], name))[:MAX_POOLS]
    return tuple(_summarise_pool(name, day) for name in sorted(largest_pools))


def _summarise_pool(name: str, day: DayFigures) -> PoolSummary:
    _, all_nodes = pool_times([[pool for pool in day.pools if pool.pool == name]])
    lost_gpu_hours = math.fsum(group.gpu_hours for group in day.losses if group.is_failure and group.pool == name)
    recoveries = [seconds for group in day.recoveries or () if group.pool == name for seconds in group.seconds]
    failures = sum(failure.pool == name for failure in day.failures)
    return PoolSummary(
        pool=name,
        training_time_ratio=effective_time(all_nodes, lost_gpu_hours).ratio,
        recovery_seconds=math.fsum(recoveries) / len(recoveries) if recoveries else None,
        seconds_between_failures=3600 * all_nodes.node_hours / failures if failures else None,
    )


def _node_seconds(pool: PoolUse, gpu_use: GpuUse) -> float:
    """Return the node time of a use: a node of which half of the GPUs are in this use counts half."""
    times = pool.use_times()
    total = sum(amount for amount, _ in times.values())
    nodes = sum(pool.node_microseconds.values())
    return nodes / 1e6 * times[gpu_use][0] / total if total else 0.0
