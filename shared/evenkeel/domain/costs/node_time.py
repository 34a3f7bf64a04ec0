"""Where the GPU time of the nodes went. Every GPU-second of a node is in exactly one use.

The time of a node is cut at every border of an attempt, a repair or a price. In each piece, attempts take the GPUs that
they hold. The rest of the node is in repair, or free. Free GPUs of a pool count as waiting, up to the number of GPUs
for which jobs waited at that time.
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


class GpuUse(StrEnum):
    """Use of a GPU of a node."""

    PRODUCTIVE = "PRODUCTIVE"
    """A job ran, and its work was kept."""
    CHECKPOINTING = "CHECKPOINTING"
    """A job saved checkpoints, by the saves of its first two checkpoints."""
    RESTORING = "RESTORING"
    """All pods ran, and the job restored its checkpoint."""
    LOST = "LOST"
    """A job ran, and a failure made it lose this work; or it drained or started after a failure."""
    INTERRUPTED = "INTERRUPTED"
    """A job lost this work after a request: preempted, resized, moved, drained or suspended."""
    STARTING = "STARTING"
    """An attempt was admitted and its pods did not all run yet."""
    UNKNOWN = "UNKNOWN"
    """The begin of an attempt that resumed, if no record says whether it still restored or already trained."""
    IN_REPAIR = "IN_REPAIR"
    """Evenkeel had cordoned the node for an incident."""
    WAITING = "WAITING"
    """No job held it while a job waited for GPUs of this pool: too few free nodes together, quota, or a limit."""
    NO_JOB = "NO_JOB"
    """No job of Evenkeel held it or waited for it. Use by other workloads is not recorded, so it is idle at most."""


class NodeUse(StrEnum):
    """Use in a stored row. The previous release reads these values only, so `PoolUse` stores the other uses apart."""

    PRODUCTIVE = "PRODUCTIVE"
    LOST = "LOST"
    INTERRUPTED = "INTERRUPTED"
    STARTING = "STARTING"
    IN_REPAIR = "IN_REPAIR"
    NO_JOB = "NO_JOB"


_STORED_IN = {
    GpuUse.CHECKPOINTING: NodeUse.PRODUCTIVE,
    GpuUse.UNKNOWN: NodeUse.PRODUCTIVE,
    GpuUse.RESTORING: NodeUse.LOST,
    GpuUse.WAITING: NodeUse.NO_JOB,
}
"""The stored use that includes a use without a value of its own."""


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
    use: GpuUse
    gpus: int
    span: Span
    saving_share: float | None = 0.0
    """Share of its productive time in which the attempt saved checkpoints; None if no save was measured."""


class WaitingGpus(NamedTuple):
    """GPUs of a pool that a job waited for in a time span."""

    gpus: int
    span: Span


class _FreeGpus(NamedTuple):
    """GPUs of one node that no attempt held for a time."""

    gpus: int
    span: Span
    price: GpuPrice | None


PriceAt = Callable[[str, datetime, str], GpuPrice | None]
"""Returns the price of a GPU-hour of an instance type at a time in a pool; None if it has none."""


class UseTime(Value):
    """The GPU time of one use."""

    use: GpuUse
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
    unmeasured_saves_gpu_hours: float | None
    """Productive GPU-hours of attempts whose saves were not measured, so this time includes their saves. Null: a stored
    day of an earlier release measured no saves."""
    uses: tuple[UseTime, ...]

    def time_of(self, gpu_use: GpuUse) -> UseTime:
        """Return the time of one use."""
        return next(time for time in self.uses if time.use is gpu_use)


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
    """GPUs times microseconds, by stored use."""
    usd_micros: dict[NodeUse, int | None]
    """Null: part of it has no price."""
    included_gpu_microseconds: dict[str, int] | None = None
    """The part of the stored uses that belongs to another `GpuUse`; null in rows of earlier releases."""
    included_usd_micros: dict[str, int | None] = {}
    unmeasured_saves_gpu_microseconds: int | None = None
    """Productive time of attempts whose saves were not measured; null in rows of earlier releases."""

    def use_times(self) -> dict[GpuUse, tuple[int, int | None]]:
        """Return the GPU time and the cost of each use."""
        included_times = self.included_gpu_microseconds or {}
        times: dict[GpuUse, tuple[int, int | None]] = {}
        for gpu_use in GpuUse:
            if gpu_use in _STORED_IN:
                times[gpu_use] = (included_times.get(gpu_use, 0), self.included_usd_micros.get(gpu_use, 0))
        for node_use in NodeUse:
            amount, cost = self.gpu_microseconds[node_use], self.usd_micros[node_use]
            for gpu_use in (gpu_use for gpu_use, within in _STORED_IN.items() if within is node_use):
                included_cost = times[gpu_use][1]
                amount -= times[gpu_use][0]
                cost = None if cost is None or included_cost is None else cost - included_cost
            times[GpuUse(node_use)] = (amount, cost if amount else 0)
        return times


class _UseTotals:
    """GPU time and cost of a group of nodes, by use."""

    def __init__(self) -> None:
        self.gpu: dict[GpuUse, int] = dict.fromkeys(GpuUse, 0)
        self.usd: dict[GpuUse, int | None] = dict.fromkeys(GpuUse, 0)
        self.node_microseconds: Counter[str] = Counter()
        self.nodes_before = self.nodes_new = 0
        self.unmeasured_saves: int | None = 0
        self.free: list[_FreeGpus] = []

    def add_node(self, node: NodeSpan) -> None:
        self.node_microseconds[node.instance_type] += microseconds(node.span.end - node.span.start)
        self.nodes_new += node.is_new
        self.nodes_before += not node.is_new

    def add(self, gpu_use: GpuUse, gpu_microseconds: int, price: GpuPrice | None) -> None:
        if not gpu_microseconds:
            return
        self.gpu[gpu_use] += gpu_microseconds
        self.usd[gpu_use] = _sum_known(self.usd[gpu_use], cost_usd_micros(gpu_microseconds, price))

    def add_day(self, day: PoolUse) -> None:
        self.node_microseconds.update(day.node_microseconds)
        self.nodes_before = max(self.nodes_before + self.nodes_new, day.nodes_before)
        self.nodes_new = day.nodes_new
        for gpu_use, (amount, cost) in day.use_times().items():
            self.gpu[gpu_use] += amount
            self.usd[gpu_use] = _sum_known(self.usd[gpu_use], cost)
        self.unmeasured_saves = _sum_known(self.unmeasured_saves, day.unmeasured_saves_gpu_microseconds)

    def add_held(self, held_gpus: HeldGpus, gpus: int, span_microseconds: int, price: GpuPrice | None) -> None:
        gpu_microseconds = gpus * span_microseconds
        if held_gpus.use is not GpuUse.PRODUCTIVE:
            self.add(held_gpus.use, gpu_microseconds, price)
            return
        saving = int(gpu_microseconds * (held_gpus.saving_share or 0.0))
        self.add(GpuUse.CHECKPOINTING, saving, price)
        self.add(GpuUse.PRODUCTIVE, gpu_microseconds - saving, price)
        if held_gpus.saving_share is None:
            self.unmeasured_saves = _sum_known(self.unmeasured_saves, gpu_microseconds)

    def add_free(self, waiting_gpus: Iterable[WaitingGpus]) -> None:
        for (gpu_use, price), amount in _free_uses(self.free, waiting_gpus).items():
            self.add(gpu_use, amount, price)

    def add_pool(self, pool: "_UseTotals") -> None:
        self.node_microseconds.update(pool.node_microseconds)
        self.nodes_before += pool.nodes_before
        self.nodes_new += pool.nodes_new
        for gpu_use, amount in pool.gpu.items():
            self.gpu[gpu_use] += amount
            self.usd[gpu_use] = _sum_known(self.usd[gpu_use], pool.usd[gpu_use])
        self.unmeasured_saves = _sum_known(self.unmeasured_saves, pool.unmeasured_saves)

    def pool_use(self, pool: str, *, is_rented: bool) -> PoolUse:
        gpu: dict[NodeUse, int] = dict.fromkeys(NodeUse, 0)
        usd: dict[NodeUse, int | None] = dict.fromkeys(NodeUse, 0)
        for gpu_use, amount in self.gpu.items():
            node_use = _STORED_IN.get(gpu_use) or NodeUse(gpu_use)
            gpu[node_use] += amount
            usd[node_use] = _sum_known(usd[node_use], self.usd[gpu_use])
        included_uses = [gpu_use for gpu_use in _STORED_IN if self.gpu[gpu_use]]
        return PoolUse(
            pool=pool,
            is_rented=is_rented,
            nodes_before=self.nodes_before,
            nodes_new=self.nodes_new,
            node_microseconds=dict(sorted(self.node_microseconds.items())),
            gpu_microseconds=gpu,
            usd_micros=usd,
            included_gpu_microseconds={gpu_use.value: self.gpu[gpu_use] for gpu_use in included_uses},
            included_usd_micros={gpu_use.value: self.usd[gpu_use] for gpu_use in included_uses},
            unmeasured_saves_gpu_microseconds=self.unmeasured_saves,
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
            unmeasured_saves_gpu_hours=None
            if self.unmeasured_saves is None
            else self.unmeasured_saves / MICROSECONDS_PER_HOUR,
            uses=tuple(
                UseTime(
                    use=gpu_use,
                    gpu_hours=amount / MICROSECONDS_PER_HOUR,
                    share=amount / total if total else None,
                    usd_micros=self.usd[gpu_use],
                )
                for gpu_use, amount in self.gpu.items()
            ),
        )


def _sum_known(earlier_sum: int | None, added_amount: int | None) -> int | None:
    return None if earlier_sum is None or added_amount is None else earlier_sum + added_amount


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
    waiting: Mapping[tuple[str, bool], Sequence[WaitingGpus]] | None = None,
) -> tuple[PoolUse, ...]:
    """Return the GPU time of each pool in a day, or in a part of it.

    Args:
        nodes: Nodes with the part of the window in which they existed. Parts of one node must not overlap.
        held: By node, GPUs that attempts held. Times outside the node's part do not count.
        repairs: By node, times in which it was out of service.
        price_at: Prices of GPUs that are not rented.
        price_changes: Times at which a price may change.
        waiting: By pool and whether it is rented, GPUs that jobs waited for before they started there.
    """
    pools: dict[tuple[str, bool], _UseTotals] = defaultdict(_UseTotals)
    for node in nodes:
        totals = pools[node.pool, node.is_rented]
        totals.add_node(node)
        _add_node_time(totals, node, held.get(node.node, ()), repairs.get(node.node, ()), price_at, price_changes)
    for key, totals in pools.items():
        totals.add_free((waiting or {}).get(key, ()))
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
    for span in (*(held_gpus.span for held_gpus in held), *repairs):
        borders |= {span.start, span.end}
    cuts = sorted(border for border in borders if start <= border <= end)
    overlapping_holds = (held_gpus for held_gpus in held if held_gpus.span.end > start and held_gpus.span.start < end)
    waiting_holds = deque(
        sorted(overlapping_holds, key=lambda held_gpus: (held_gpus.span.start, held_gpus.use, held_gpus.gpus))
    )
    present: list[HeldGpus] = []
    for begin, until in pairwise(cuts):
        while waiting_holds and waiting_holds[0].span.start <= begin:
            present.append(waiting_holds.popleft())
        present = [held_gpus for held_gpus in present if held_gpus.span.end > begin]
        span_microseconds = microseconds(until - begin)
        price = None if node.is_rented else price_at(node.instance_type, begin, node.pool)
        free_gpus = node.gpus
        for held_gpus in present:
            used_gpus = min(free_gpus, held_gpus.gpus)
            totals.add_held(held_gpus, used_gpus, span_microseconds, price)
            free_gpus -= used_gpus
        if any(span.start <= begin < span.end for span in repairs):
            totals.add(GpuUse.IN_REPAIR, free_gpus * span_microseconds, price)
        elif free_gpus:
            totals.free.append(_FreeGpus(free_gpus, Span(begin, until), price))


def _free_uses(
    free: Iterable[_FreeGpus], waiting: Iterable[WaitingGpus]
) -> Mapping[tuple[GpuUse, GpuPrice | None], int]:
    """Return the GPU time of free GPUs by use and price. At each time, as many GPUs wait as jobs waited for.

    If the free GPUs have several prices, the cheapest GPUs wait first.
    """
    changes: dict[datetime, list[tuple[GpuPrice | None, int]]] = defaultdict(list)
    wait_changes: Counter[datetime] = Counter()
    for piece in free:
        changes[piece.span.start].append((piece.price, piece.gpus))
        changes[piece.span.end].append((piece.price, -piece.gpus))
    for demand in waiting:
        if demand.span.start < demand.span.end:
            wait_changes[demand.span.start] += demand.gpus
            wait_changes[demand.span.end] -= demand.gpus
    present: Counter[GpuPrice | None] = Counter()
    uses: Counter[tuple[GpuUse, GpuPrice | None]] = Counter()
    waiting_gpus = 0
    times = sorted({*changes, *wait_changes})
    for begin, until in pairwise([*times, times[-1]] if times else []):
        for price, gpus in changes.get(begin, ()):
            present[price] += gpus
        waiting_gpus += wait_changes[begin]
        unmet, span_microseconds = waiting_gpus, microseconds(until - begin)
        for price in sorted(present, key=_price_order):
            met = min(present[price], unmet)
            unmet -= met
            uses[GpuUse.WAITING, price] += met * span_microseconds
            uses[GpuUse.NO_JOB, price] += (present[price] - met) * span_microseconds
    return uses


def _price_order(price: GpuPrice | None) -> tuple[bool, int, str]:
    return (price is None, price.usd_micros_per_gpu_hour if price else 0, price.origin if price else "")
