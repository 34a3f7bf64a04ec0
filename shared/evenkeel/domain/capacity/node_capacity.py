"""Free accelerators, CPU and memory of each node: its offer, less the requests of pods and the charges of attempts.

    taken = max(used by live pods + charged to attempts whose pod is not there yet, charged to all attempts)
    free  = allocatable - taken

The second part of `taken` counts because a pod may end between the two reads.
"""

from collections.abc import Collection, Iterable, Mapping

from evenkeel.domain.nodes import FleetNode, KubernetesNode, Node, NodeLife
from evenkeel.domain.resources import NONE, Resources, why_too_small
from evenkeel.domain.values import Instant, Value

TAINTED = "tainted"
"""Why a node accepts only pods that tolerate its taints."""
UNHEALTHY = "unhealthy"
"""Why a node accepts no pods: it needs a repair, and none is under way. Holds for uncordoned nodes, too."""

NodeKey = tuple[str, str]
"""Cluster and node name."""


class NodeCapacity(Value):
    """The capacity of a node, for admission."""

    life: NodeLife
    node_name: str
    cluster: str
    pool: str
    instance_type: str
    allocatable: Resources
    """Allocatable when the node is in service; 0 if no node object states it yet."""
    free: Resources
    """Amounts that no pod uses and no attempt is charged for."""
    unschedulable_reason: str = ""
    """Why no pod may start on it now; empty if pods may."""
    labels: dict[str, str] = {}
    """Labels of its node object. Flavors select nodes by them."""
    taints: tuple[str, ...] = ()
    """`key=value:Effect` of the taints that block pods without a toleration."""
    zone: str = ""
    """Availability zone; empty if unknown."""
    network_layers: tuple[str, ...] = ()
    """Ids of the network nodes above it, from layer 1 down; empty if unknown."""
    ultra_server: str = ""
    """Id of its UltraServer; empty if it is in none."""
    efa: int | None = None
    """EFA interfaces that its node object offers; None if no node object states it yet."""
    reserved_for: str = ""
    """Job this node is reserved for; empty if unreserved."""
    usable_until: Instant | None = None
    """When jobs must have left the node; None if no end is known."""

    @property
    def accelerators(self) -> int:
        """Allocatable accelerators; 0 if no node object states them yet."""
        return self.allocatable.accelerators

    @property
    def node_key(self) -> NodeKey:
        return (self.cluster, self.node_name)

    def why_too_small(self, requested_resources: Resources) -> str:
        """Return in a few words the resource that a pod lacks now; empty if the pod fits."""
        return why_too_small(requested_resources, self.free, self.allocatable)

    def is_large_enough(self, requested_resources: Resources) -> bool:
        """Whether a pod would fit if the node were unused."""
        return not why_too_small(requested_resources, self.allocatable, self.allocatable)

    def with_free(self, free: Resources) -> "NodeCapacity":
        return self.replace_unchecked(free=free)

    @property
    def is_open(self) -> bool:
        """Whether a pod may start on it now."""
        return not self.unschedulable_reason

    @property
    def is_unused(self) -> bool:
        """Whether no workload uses its accelerators."""
        return self.is_open and self.free.accelerators == self.allocatable.accelerators


def node_capacity(
    nodes: Iterable[Node], resources_used: Mapping[NodeKey, Resources], unhealthy: Collection[NodeKey] = ()
) -> tuple[NodeCapacity, ...]:
    """Return the capacity of the nodes as the control planes show them, ordered by node life.

    Args:
        nodes: All nodes of the fleet.
        resources_used: Amounts that are not free, by node.
        unhealthy: Nodes that need a repair and get none.
    """
    return tuple(
        _capacity_of(node, resources_used, unhealthy) for node in sorted(nodes, key=lambda node: node.life.key)
    )


def stored_capacity(
    nodes: Iterable[FleetNode], resources_charged: Mapping[NodeKey, Resources], unhealthy: Collection[NodeKey] = ()
) -> tuple[NodeCapacity, ...]:
    """Return the capacity of the nodes as the last sweep stored them, ordered by node life.

    Args:
        nodes: All nodes of the fleet.
        resources_charged: Amounts that attempts are charged for, by node.
        unhealthy: Nodes that need a repair and get none.
    """
    sorted_nodes = sorted(nodes, key=lambda node: node.life.key)
    resources_used = resources_not_free({_node_key(node): node.in_use for node in sorted_nodes}, resources_charged)
    return tuple(_stored_capacity_of(node, resources_used, unhealthy) for node in sorted_nodes)


def idle_capacity(node: FleetNode, allocatable: Resources) -> NodeCapacity:
    """Return the capacity of a stored node as if it were in service and unused."""
    return NodeCapacity(
        life=node.life,
        node_name=node.node_name or node.life.instance_id,
        cluster=node.life.cluster,
        pool=node.pool,
        instance_type=node.instance_type,
        allocatable=allocatable,
        free=allocatable,
        labels=node.labels,
        zone=node.zone,
        network_layers=node.network_layers,
        ultra_server=node.ultra_server,
    )


def resources_not_free(
    in_use: Mapping[NodeKey, Resources],
    resources_charged: Mapping[NodeKey, Resources],
    not_started: Mapping[NodeKey, Resources] | None = None,
) -> dict[NodeKey, Resources]:
    """Return the amounts of each node that are not free.

    Args:
        in_use: Requests of live pods, unmanaged pods included.
        resources_charged: Charges of all attempts.
        not_started: The part of `resources_charged` whose pods do not exist yet.
    """
    starting_requests = not_started or {}
    return {
        node_key: (in_use.get(node_key, NONE) + starting_requests.get(node_key, NONE)).at_least(
            resources_charged.get(node_key, NONE)
        )
        for node_key in {*in_use, *resources_charged, *starting_requests}
    }


def with_freed(
    capacities: Iterable[NodeCapacity], freed_resources: Mapping[NodeKey, Resources]
) -> tuple[NodeCapacity, ...]:
    """Return the capacities once these amounts are free."""
    return tuple(
        capacity.with_free((capacity.free + amount).at_most(capacity.allocatable))
        if (amount := freed_resources.get(capacity.node_key))
        else capacity
        for capacity in capacities
    )


def with_assigned(
    capacities: Iterable[NodeCapacity], assigned_resources: Mapping[str, Resources]
) -> tuple[NodeCapacity, ...]:
    """Return the capacities once these amounts are taken, by the key of the node life."""
    return tuple(
        capacity.with_free(capacity.free.minus(amount))
        if (amount := assigned_resources.get(capacity.life.key))
        else capacity
        for capacity in capacities
    )


def _capacity_of(
    node: Node, resources_used: Mapping[NodeKey, Resources], unhealthy: Collection[NodeKey]
) -> NodeCapacity:
    kubernetes = node.kubernetes
    name = kubernetes.name if kubernetes else ""
    node_key = (node.life.cluster, name)
    allocatable = kubernetes.allocatable if kubernetes else NONE
    return NodeCapacity(
        life=node.life,
        node_name=name,
        cluster=node.life.cluster,
        pool=node.pool,
        instance_type=node.provider.instance_type
        if node.provider
        else (kubernetes.instance_type if kubernetes else ""),
        allocatable=allocatable,
        free=allocatable.minus(resources_used.get(node_key, NONE)),
        efa=kubernetes.efa if kubernetes else None,
        unschedulable_reason=_why_unschedulable(
            kubernetes, kubernetes.blocking_taints if kubernetes else (), node_key in unhealthy
        ),
        labels=kubernetes.labels if kubernetes else {},
        zone=kubernetes.zone if kubernetes else "",
        taints=kubernetes.blocking_taints if kubernetes else (),
        network_layers=kubernetes.network_layers if kubernetes else (),
        ultra_server=node.ultra_server,
    )


def _stored_capacity_of(
    node: FleetNode, resources_used: Mapping[NodeKey, Resources], unhealthy: Collection[NodeKey]
) -> NodeCapacity:
    node_key = _node_key(node)
    reason = _why_unschedulable(node if node.node_name else None, node.taints, node_key in unhealthy)
    return idle_capacity(node, node.allocatable).replace_unchecked(
        node_name=node.node_name,
        free=node.allocatable.minus(resources_used.get(node_key, NONE)),
        unschedulable_reason=reason,
        taints=node.taints,
    )


def _node_key(node: FleetNode) -> NodeKey:
    return (node.life.cluster, node.node_name)


def _why_unschedulable(node: KubernetesNode | FleetNode | None, taints: Collection[str], is_unhealthy: bool) -> str:
    if node is None:
        return "not joined yet"
    if not node.is_ready:
        return "not ready"
    if node.is_cordoned:
        return "cordoned"
    if node.is_awaiting_validation:
        return "awaiting validation"
    if is_unhealthy:
        return UNHEALTHY
    return TAINTED if taints else ""
