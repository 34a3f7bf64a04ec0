"""Which free nodes of a pool are closest to each other in AWS's network.

EKS labels each node with the network nodes above it, from the top of the hierarchy down:

    layer-1 ─┬─ layer-2 ─┬─ layer-3 ─┬─ node        a domain = the nodes below one network node of a level
             │           │           └─ node        narrower level = fewer hops between its nodes
             │           └─ layer-3 ─── node
             └─ layer-2 ─── …

`domain/kueue/topology.py` is Kueue's own algorithm, for `evenkeel plan`. It counts pods, and leaves out nodes without a
label of each level. Here each pod has a node of its own, and nodes without labels may be used.

Some instance types have a fourth layer. The nodes of an UltraServer share NVLink, so it is the narrowest level.
Source: https://docs.aws.amazon.com/eks/latest/userguide/ml-workload-topology.html
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.nodes import NETWORK_LAYER_LABEL, ULTRA_SERVER_LABEL
from evenkeel.domain.values import Value


class NetworkLevel(StrEnum):
    """A level of the network, from the widest to the narrowest."""

    LAYER_1 = "layer-1"
    LAYER_2 = "layer-2"
    LAYER_3 = "layer-3"
    LAYER_4 = "layer-4"
    ULTRA_SERVER = "ultra-server"

    @property
    def node_label(self) -> str:
        """Label of a node with the id of its domain."""
        if self is NetworkLevel.ULTRA_SERVER:
            return ULTRA_SERVER_LABEL
        return f"{NETWORK_LAYER_LABEL}{self.removeprefix('layer-')}"


LEVELS = tuple(NetworkLevel)
"""From the widest to the narrowest."""


class NetworkNeeds(Value):
    """How close the nodes of a gang must be to each other. At most one of the two is set."""

    required: NetworkLevel | None = None
    """All nodes are in one domain of this level, or the gang waits."""
    preferred: NetworkLevel | None = None
    """One domain of this level is tried first, then wider levels. None: the narrowest level is tried first."""

    def narrowed_to(self, level: NetworkLevel) -> "NetworkNeeds":
        """Return the needs of a gang that also requires this level."""
        return NetworkNeeds(required=max(level, self.required or level, key=LEVELS.index))


class HasPosition(Protocol):
    """A node with its position in the network."""

    @property
    def network_layers(self) -> tuple[str, ...]:
        """Ids of the network nodes above it, from layer 1 down; empty if unknown."""

    @property
    def ultra_server(self) -> str:
        """Id of its UltraServer; empty if it is in none, or if unknown."""


PositionedNode = TypeVar("PositionedNode", bound=HasPosition)


class NetworkSpread(Value):
    """How far apart nodes are."""

    level: NetworkLevel | None
    """The narrowest level at which one domain holds all of them; None if none does."""
    levels_apart: int
    """Number of levels at which they are in several domains. Levels without labels do not count."""


class ClosestNodes(NamedTuple, Generic[PositionedNode]):
    """The nodes that a gang takes."""

    nodes: tuple[PositionedNode, ...] = ()
    """Empty if no domain of the required level has enough of them."""
    level: NetworkLevel | None = None
    """The narrowest level at which one domain holds all of them; None if unknown."""
    domain: str = ""
    """Id of that domain: a network node or an UltraServer."""


def has_position(capacity: HasPosition) -> bool:
    """Whether the position of a node in the network is known."""
    return bool(capacity.network_layers or capacity.ultra_server)


def spread_of(nodes: Sequence[HasPosition]) -> NetworkSpread | None:
    """Return how far apart nodes are; None if no node has labels, or some nodes lack a label that other nodes have."""
    labelled_levels: dict[NetworkLevel, bool] = {}
    for level in LEVELS:
        ids = set(_domain_ids(nodes, level))
        if ids <= {""}:
            continue
        if "" in ids:
            return None
        labelled_levels[level] = len(ids) == 1
    if not labelled_levels:
        return None
    shared_levels = [level for level, is_shared in labelled_levels.items() if is_shared]
    return NetworkSpread(
        level=shared_levels[-1] if shared_levels else None, levels_apart=len(labelled_levels) - len(shared_levels)
    )


def closest_nodes(usable: Sequence[PositionedNode], count: int, needs: NetworkNeeds) -> ClosestNodes[PositionedNode]:
    """Return the nodes that a gang takes.

    Narrow levels are tried first. If several domains of a level have enough nodes, the gang takes the smallest one.
    Then large domains stay free for large gangs. A gang of one node takes the first node.

    Args:
        usable: Nodes that can run a pod of the gang, in the order in which gangs take them. There are at least `count`.
        count: Nodes of the gang.
        needs: The levels that the gang requires or prefers.
    """
    if count == 1 or (needs.required is None and not any(map(has_position, usable))):
        return ClosestNodes(tuple(usable[:count]))
    for level in _levels_to_try(needs):
        ids = _domain_ids(usable, level)
        sizes = [(size, domain) for domain, size in Counter(ids).items() if domain and size >= count]
        if sizes:
            _, domain = min(sizes)
            nodes = [capacity for capacity, own_domain in zip(usable, ids, strict=True) if own_domain == domain]
            return ClosestNodes(_nodes_from_few_domains(nodes, count, _narrower_than(level)), level, domain)
    return ClosestNodes() if needs.required else ClosestNodes(_nodes_from_few_domains(usable, count, LEVELS))


def nodes_to_reserve(
    usable: Sequence[NodeCapacity], pool_nodes: Iterable[NodeCapacity], count: int, needs: NetworkNeeds
) -> tuple[NodeCapacity, ...]:
    """Return the free nodes to reserve for a gang that waits for more nodes.

    For a required level, the nodes are in one domain: the domain with the most free nodes that is large enough.

    Args:
        usable: Nodes that can run a pod of the gang now.
        pool_nodes: All nodes of the pool, whether in use or not.
        count: Nodes of the gang.
        needs: The levels that the gang requires or prefers.
    """
    closest = closest_nodes(usable, count, needs).nodes if len(usable) >= count else ()
    if closest or needs.required is None or count == 1:
        return closest or tuple(usable[:count])
    sizes = Counter(_domain_ids(pool_nodes, needs.required))
    domains = [nodes for name, nodes in _nodes_by_domain(usable, needs.required) if name and sizes[name] >= count]
    largest_group: list[NodeCapacity] = max(domains, key=len, default=[])
    return tuple(largest_group)


def largest_domain(capacities: Iterable[HasPosition], level: NetworkLevel) -> int:
    """Return the number of nodes of the largest domain of a level; 0 if no domain is known."""
    return max(Counter(filter(None, _domain_ids(capacities, level))).values(), default=0)


def known_domains(capacities: Sequence[NodeCapacity], level: NetworkLevel) -> tuple[tuple[NodeCapacity, ...], ...]:
    """Return the nodes of each known domain of a level. Nodes without a label of the level are left out."""
    return tuple(tuple(nodes) for name, nodes in _nodes_by_domain(capacities, level) if name)


def _nodes_from_few_domains(
    nodes: Sequence[PositionedNode], count: int, levels: Sequence[NetworkLevel]
) -> tuple[PositionedNode, ...]:
    """Return nodes from as few domains of the next level as possible.

    Large domains are taken whole. The last one is the smallest domain that has enough nodes.
    """
    if not levels or not count:
        return tuple(nodes[:count])
    level, *narrower = levels
    domains = [(name, members) for name, members in _nodes_by_domain(nodes, level) if name]
    chosen_nodes: list[PositionedNode] = []
    domains.sort(key=lambda domain: (-len(domain[1]), domain[0]))
    while domains and len(chosen_nodes) < count:
        missing_count = count - len(chosen_nodes)
        enough = [domain for domain in domains if len(domain[1]) >= missing_count]
        domain = enough[-1] if enough else domains[0]
        domains.remove(domain)
        chosen_nodes.extend(_nodes_from_few_domains(domain[1], missing_count, narrower))
    without_position = [node for node, domain in zip(nodes, _domain_ids(nodes, level), strict=True) if not domain]
    return (*chosen_nodes, *_nodes_from_few_domains(without_position, count - len(chosen_nodes), narrower))


def _domain_ids(capacities: Iterable[HasPosition], level: NetworkLevel) -> list[str]:
    """Return the id of the domain of each node; empty if it is unknown."""
    if level is NetworkLevel.ULTRA_SERVER:
        return [capacity.ultra_server for capacity in capacities]
    index = LEVELS.index(level)
    return [layers[index] if index < len(layers := capacity.network_layers) else "" for capacity in capacities]


def _nodes_by_domain(
    capacities: Sequence[PositionedNode], level: NetworkLevel
) -> Iterable[tuple[str, list[PositionedNode]]]:
    domains: dict[str, list[PositionedNode]] = defaultdict(list)
    for capacity, domain in zip(capacities, _domain_ids(capacities, level), strict=True):
        domains[domain].append(capacity)
    return domains.items()


def _levels_to_try(needs: NetworkNeeds) -> tuple[NetworkLevel, ...]:
    """Return the levels at which one domain may hold the gang, in the order of preference."""
    if needs.required:
        return LEVELS[LEVELS.index(needs.required) :][::-1]
    return LEVELS[: LEVELS.index(needs.preferred) + 1][::-1] if needs.preferred else LEVELS[::-1]


def _narrower_than(level: NetworkLevel) -> tuple[NetworkLevel, ...]:
    return LEVELS[LEVELS.index(level) + 1 :]
