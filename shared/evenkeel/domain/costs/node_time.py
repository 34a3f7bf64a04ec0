"""Where the GPU time of the nodes went. Every GPU-second of a node is in exactly one use.

The time of a node is cut at every border of an attempt, a repair or a price. In each piece, attempts take the GPUs that
they hold. The rest of the node is in repair, or has no job of Evenkeel.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.receipt import MICROSECONDS_PER_HOUR, GpuPrice, cost_usd_micros, microseconds
from evenkeel.domain.values import Value


class NodeUse(StrEnum):
    """Use of a GPU of a node."""

    PRODUCTIVE = "PRODUCTIVE"
    """A job ran, and its work was kept."""
    LOST = "LOST"
    """A job ran, and a failure made it lose this work; or it drained or started after a failure."""
    INTERRUPTED = "INTERRUPTED"
    """A job lost this work after a request: preempted, resized, moved, drained or suspended."""
    STARTING = "STARTING"
    """An attempt was admitted and its pods did not all run yet."""
    IN_REPAIR = "IN_REPAIR"
    """Evenkeel had cordoned the node for an incident."""
    NO_JOB = "NO_JOB"
    """No job of Evenkeel held it. Use by other workloads is not recorded, so it is idle at most."""


class NodeSpan(NamedTuple):
    """A node, and the part of the window in which it existed."""

    node: str
    """`NodeLife.key`."""
    pool: str
    instance_type: str
    gpus: int
    is_rented: bool
    span: Span
    is_new: bool = False
    """Whether it was launched in the window."""


class HeldGpus(NamedTuple):
    """GPUs of one node that an attempt held for a time."""

    node: str
    use: NodeUse
    gpus: int
    span: Span


PriceAt = Callable[[str, datetime, str], GpuPrice | None]
"""Returns the price of a GPU-hour of an instance type at a time in a pool; None if it has none."""


class UseTime(Value):
    """The GPU time of one use."""

    use: NodeUse
    gpu_hours: float
    share: float | None
    """Share of all GPU time; null if there is no GPU time."""
    usd_micros: int | None
    """Null: part of it has no price. Null for rented nodes, whose cost is in the rental."""


class PoolTime(Value):
    """The GPU time of the nodes of a pool, or of all. The uses sum to it."""

    pool: str
    instance_types: tuple[str, ...]
    is_rented: bool
    nodes: int
    """Nodes that existed in the window, with replaced nodes."""
    node_hours: float
    gpu_hours: float
    uses: tuple[UseTime, ...]

    def time_of(self, use: NodeUse) -> UseTime:
        """Return the time of one use."""
        return next(time for time in self.uses if time.use is use)


class PoolUse(Value):
    """The GPU time of the nodes of a pool in a day, or in a part of it, in whole microseconds."""

    pool: str
    is_rented: bool
    nodes_before: int
    """Nodes that existed when it began."""
    nodes_new: int
    """Nodes that were launched in it."""
    node_microseconds: dict[str, int]
    """By instance type."""
    gpu_microseconds: dict[NodeUse, int]
    """GPUs times microseconds, by use."""
    usd_micros: dict[NodeUse, int | None]
    """Null: part of it has no price."""


class _UseTotals:
    """GPU time and cost of a group of nodes, by use."""

    def __init__(self) -> None:
        self.gpu: dict[NodeUse, int] = dict.fromkeys(NodeUse, 0)
        self.usd: dict[NodeUse, int | None] = dict.fromkeys(NodeUse, 0)
        self.node_microseconds: Counter[str] = Counter()
        self.nodes_before = self.nodes_new = 0

    def add_node(self, node: NodeSpan) -> None:
        self.node_microseconds[node.instance_type] += microseconds(node.span.end - node.span.start)
        self.nodes_new += node.is_new
        self.nodes_before += not node.is_new

    def add(self, use: NodeUse, gpu_microseconds: int, price: GpuPrice | None) -> None:
        if not gpu_microseconds:
            return
        self.gpu[use] += gpu_microseconds
        self.usd[use] = _sum_usd(self.usd[use], cost_usd_micros(gpu_microseconds, price))

    def add_day(self, day: PoolUse) -> None:
        self.node_microseconds.update(day.node_microseconds)
        self.nodes_before = max(self.nodes_before + self.nodes_new, day.nodes_before)
        self.nodes_new = day.nodes_new
        for use, amount in day.gpu_microseconds.items():
            self.gpu[use] += amount
            self.usd[use] = _sum_usd(self.usd[use], day.usd_micros[use])

    def add_pool(self, pool: "_UseTotals") -> None:
        self.node_microseconds.update(pool.node_microseconds)
        self.nodes_before += pool.nodes_before
        self.nodes_new += pool.nodes_new
        for use, amount in pool.gpu.items():
            self.gpu[use] += amount
            self.usd[use] = _sum_usd(self.usd[use], pool.usd[use])

    def pool_use(self, pool: str, *, is_rented: bool) -> PoolUse:
        return PoolUse(
            pool=pool,
            is_rented=is_rented,
            nodes_before=self.nodes_before,
            nodes_new=self.nodes_new,
            node_microseconds=dict(sorted(self.node_microseconds.items())),
            gpu_microseconds=self.gpu,
            usd_micros=self.usd,
        )

    def pool_time(self, pool: str, *, is_rented: bool) -> PoolTime:
        total = sum(self.gpu.values())
        return PoolTime(
            pool=pool,
            instance_types=tuple(sorted(self.node_microseconds)),
            is_rented=is_rented,
            nodes=self.nodes_before + self.nodes_new,
            node_hours=self.node_microseconds.total() / MICROSECONDS_PER_HOUR,
            gpu_hours=total / MICROSECONDS_PER_HOUR,
            uses=tuple(
                UseTime(
                    use=use,
                    gpu_hours=amount / MICROSECONDS_PER_HOUR,
                    share=amount / total if total else None,
                    usd_micros=self.usd[use],
                )
                for use, amount in self.gpu.items()
            ),
        )


def _sum_usd(before: int | None, added: int | None) -> int | None:
    return None if before is None or added is None else before + added


def pool_times(days: Iterable[Iterable[PoolUse]]) -> tuple[tuple[PoolTime, ...], PoolTime]:
    """Return the GPU time of each pool and of all nodes over some days, in the order of time.

    A node that exists on several days in a row counts once. After a missing day, the number of nodes is a lower bound.
    """
    pools: dict[tuple[str, bool], _UseTotals] = defaultdict(_UseTotals)
    for day in days:
        for pool_use in day:
            pools[pool_use.pool, pool_use.is_rented].add_day(pool_use)
    total = _UseTotals()
    for pool in pools.values():
        total.add_pool(pool)
    by_pool = tuple(pools[key].pool_time(key[0], is_rented=key[1]) for key in sorted(pools))
    return by_pool, total.pool_time("", is_rented=False)


def node_time(
    nodes: Iterable[NodeSpan],
    held: Mapping[str, Sequence[HeldGpus]],
    repairs: Mapping[str, Sequence[Span]],
    price_at: PriceAt,
    price_changes: Sequence[datetime] = (),
) -> tuple[PoolUse, ...]:
    """Return the GPU time of each pool in a day, or in a part of it.

    Args:
        nodes: Nodes with the part of the window in which they existed. Parts of one node must not overlap.
        held: By node, GPUs that attempts held. Times outside the node's part do not count.
        repairs: By node, times in which it was out of service.
        price_at: Prices of GPUs that are not rented.
        price_changes: Times at which a price may change.
    """
    pools: dict[tuple[str, bool], _UseTotals] = defaultdict(_UseTotals)
    for node in nodes:
        totals = pools[node.pool, node.is_rented]
        totals.add_node(node)
        _add_node_time(totals, node, held.get(node.node, ()), repairs.get(node.node, ()), price_at, price_changes)
    return tuple(pools[key].pool_use(key[0], is_rented=key[1]) for key in sorted(pools))


def _add_node_time(
    totals: _UseTotals,
    node: NodeSpan,
    held: Sequence[HeldGpus],
    repairs: Sequence[Span],
    price_at: PriceAt,
    price_changes: Iterable[datetime],
) -> None:
    start, end = node.span
    borders = {start, end, *price_changes}
    for span in (*(holding.span for holding in held), *repairs):
        borders |= {span.start, span.end}
    cuts = sorted(border for border in borders if start <= border <= end)
    overlapping = (holding for holding in held if holding.span.end > start and holding.span.start < end)
    waiting = deque(sorted(overlapping, key=lambda holding: (holding.span.start, holding.use, holding.gpus)))
    present: list[HeldGpus] = []
    for begin, until in pairwise(cuts):
        while waiting and waiting[0].span.start <= begin:
            present.append(waiting.popleft())
        present = [holding for holding in present if holding.span.end > begin]
        span_microseconds = microseconds(until - begin)
        price = None if node.is_rented else price_at(node.instance_type, begin, node.pool)
        is_out = any(span.start <= begin < span.end for span in repairs)
        for use, gpus in _gpus_by_use(node.gpus, present, is_out=is_out).items():
            totals.add(use, gpus * span_microseconds, price)


def _gpus_by_use(gpus: int, present: Iterable[HeldGpus], *, is_out: bool) -> Mapping[NodeUse, int]:
    """Return the use of each GPU of a node. No more GPUs are in use than the node has."""
    free_gpus, uses = gpus, dict.fromkeys(NodeUse, 0)
    for holding in present:
        used_gpus = min(free_gpus, holding.gpus)
        uses[holding.use] += used_gpus
        free_gpus -= used_gpus
    uses[NodeUse.IN_REPAIR if is_out else NodeUse.NO_JOB] += free_gpus
    return uses
