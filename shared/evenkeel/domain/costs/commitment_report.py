"""How many nodes of each instance type to commit, from the recorded hourly demand.

HyperPod's `ml.p5.48xlarge` and EC2's `p5.48xlarge` are the same hardware. So their demand is added up.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from evenkeel.domain.capacity.instance_types import HYPERPOD_PREFIX
from evenkeel.domain.costs.demand import DayDemand, PoolDemand, known_hours, whole_hours
from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.economics.commitment import (
    CommitmentAdvice,
    CommitmentCost,
    CommitmentPrices,
    HourlyDemand,
    advise_commitment,
)
from evenkeel.domain.values import Value

_SECONDS_PER_HOUR = 3600


class NodeHourPrice(Value):
    """The price of a node-hour, with its origin."""

    usd_per_hour: float
    origin: str


class NodeType(NamedTuple):
    """The known facts about the nodes of an instance type."""

    gpus_per_node: int
    """0: unknown."""
    committed_nodes: int
    """Committed nodes that exist now."""
    reserved: NodeHourPrice | None
    """The price of a committed node for the site."""
    on_demand: NodeHourPrice | None
    """The price of the same node, rented."""


class HoursAtDemand(Value):
    """The number of hours with one demand."""

    nodes: int
    hours: int


class TypeCommitment(Value):
    """The demand for the nodes of one instance type, and how many of them to commit."""

    instance_type: str
    """EC2's name, without `ml.`; empty if it is unknown."""
    gpus_per_node: int | None
    """Null: unknown, as every figure in nodes."""
    hours: int
    """Whole hours of the window with a known demand."""
    unknown_hours: int
    """Whole hours of the window without a record. No figure includes these hours."""
    committed_nodes: int
    """Committed nodes that exist now."""
    peak_nodes: int | None
    demand: tuple[HoursAtDemand, ...]
    """Hours by the nodes that attempts held in them. Part of a node counts as a node."""
    demand_with_waiting: tuple[HoursAtDemand, ...]
    """Hours by the nodes that attempts held and that their jobs waited for."""
    reserved: NodeHourPrice | None
    on_demand: NodeHourPrice | None
    break_even_share: float | None
    """Share of hours from which a committed node pays."""
    best: CommitmentCost | None
    """The number of committed nodes with the lowest cost."""
    best_with_waiting: CommitmentCost | None
    """The same, if the waiting jobs had run in the hours in which they waited. It is an upper bound."""
    present: CommitmentCost | None
    """Cost with the present committed nodes, with the price of their idle hours."""
    nothing_committed: CommitmentCost | None
    peak_committed: CommitmentCost | None
    why_unknown: str
    """Why there is no advice; empty if there is."""


def type_commitments(
    days: Iterable[tuple[Span, DayDemand | None]], window: Span, types: Mapping[str, NodeType]
) -> tuple[TypeCommitment, ...]:
    """Return the demand and the advice for each instance type with demand or committed nodes.

    Args:
        days: Days or parts of days with their demand; None: unknown.
        window: The window; its hours that are in no day are unknown.
        types: By EC2's name.
    """
    hours = {at: _by_type(pools, at.hour) for at, pools in known_hours(days).items()}
    unknown_hours = len(whole_hours(window)) - len(hours)
    type_names = {name for demand_by_type in hours.values() for name in demand_by_type}
    committed_types = {name for name, node_type in types.items() if node_type.committed_nodes}
    return tuple(
        _type_commitment(name, types.get(name, NodeType(0, 0, None, None)), hours.values(), unknown_hours)
        for name in sorted(type_names | committed_types)
    )


def ec2_type(instance_type: str) -> str:
    """Return EC2's name of an instance type."""
    return instance_type.removeprefix(HYPERPOD_PREFIX)


def _by_type(pools: Iterable[PoolDemand], hour: int) -> dict[str, tuple[int, int]]:
    """Return the GPU-seconds held and waited for in one hour, by instance type, without types that have neither."""
    demand_by_type: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for pool in pools:
        held_gpu_seconds, waiting_gpu_seconds = demand_by_type[ec2_type(pool.instance_type)]
        demand_by_type[ec2_type(pool.instance_type)] = (
            held_gpu_seconds + pool.held_gpu_seconds[hour],
            waiting_gpu_seconds + pool.waiting_gpu_seconds[hour],
        )
    return demand_by_type


def _type_commitment(
    name: str, node_type: NodeType, hours: Iterable[Mapping[str, tuple[int, int]]], unknown_hours: int
) -> TypeCommitment:
    demand_by_hour = [by_type.get(name, (0, 0)) for by_type in hours]
    held_nodes = [_demand_in_nodes(gpu_seconds, node_type.gpus_per_node) for gpu_seconds, _ in demand_by_hour]
    demanded_nodes = [
        _demand_in_nodes(sum(held_and_waiting), node_type.gpus_per_node) for held_and_waiting in demand_by_hour
    ]
    why = _why_unknown(name, node_type, len(demand_by_hour))
    advice = advice_with_waiting = None
    if not why and node_type.reserved and node_type.on_demand:
        prices = CommitmentPrices(
            reserved_usd_per_hour=node_type.reserved.usd_per_hour,
            on_demand_usd_per_hour=node_type.on_demand.usd_per_hour,
        )
        advice = _advise_type(held_nodes, prices, node_type.committed_nodes)
        advice_with_waiting = _advise_type(demanded_nodes, prices, node_type.committed_nodes)
    is_counted = bool(node_type.gpus_per_node and demand_by_hour)
    return TypeCommitment(
        instance_type=name,
        gpus_per_node=node_type.gpus_per_node or None,
        hours=len(demand_by_hour),
        unknown_hours=unknown_hours,
        committed_nodes=node_type.committed_nodes,
        peak_nodes=max(held_nodes) if is_counted else None,
        demand=_hours_at_demand(held_nodes) if is_counted else (),
        demand_with_waiting=_hours_at_demand(demanded_nodes) if is_counted else (),
        reserved=node_type.reserved,
        on_demand=node_type.on_demand,
        break_even_share=advice.break_even_share if advice else None,
        best=advice.best if advice else None,
        best_with_waiting=advice_with_waiting.best if advice_with_waiting else None,
        present=advice.present if advice else None,
        nothing_committed=advice.nothing_committed if advice else None,
        peak_committed=advice.peak_committed if advice else None,
        why_unknown=why,
    )


def _advise_type(nodes: Sequence[int], prices: CommitmentPrices, committed_nodes: int) -> CommitmentAdvice:
    return advise_commitment(HourlyDemand(hours=tuple(nodes)), prices, committed_nodes)


def _why_unknown(name: str, node_type: NodeType, known_hours: int) -> str:
    if not known_hours:
        return "No whole hour of the window has a known demand."
    if not node_type.gpus_per_node:
        return "The number of GPUs of a node is unknown." if name else "The instance type of these attempts is unknown."
    if node_type.reserved is None:
        return "The policy states no price for committed nodes (economy.prices)."
    if node_type.on_demand is None:
        return "There is no on-demand price: no pool rents this type, and it has no list price."
    return ""


def _demand_in_nodes(gpu_seconds: int, gpus_per_node: int) -> int:
    """Return the mean demand of an hour in nodes; part of a node counts as a node."""
    return math.ceil(gpu_seconds / _SECONDS_PER_HOUR / gpus_per_node - 1e-6) if gpus_per_node else 0


def _hours_at_demand(nodes: Iterable[int]) -> tuple[HoursAtDemand, ...]:
    return tuple(HoursAtDemand(nodes=count, hours=hours) for count, hours in sorted(Counter(nodes).items()))
