"""The nodes as the last sweep stored them, and the requests of each node's DaemonSet pods.

Pods of DaemonSets are most pods of a large fleet, and they change only with a DaemonSet or with their node. So the
sweep stores their requests, and a scheduling cycle lists only the other pods. A changed DaemonSet is seen after the
next sweep.
"""

from collections.abc import Iterable, Mapping

from evenkeel.domain.nodes import FleetNode, KubernetesNode
from evenkeel.domain.resources import NONE, Resources
from evenkeel.ports import PodGroup, Table, every
from evenkeel.services.context import Context
from evenkeel.services.tables import rows


def load_stored_nodes(context: Context) -> tuple[FleetNode, ...]:
    """Return the nodes that the last sweep saw. A node without a readable row is read from its control planes."""
    node_rows = every(lambda cursor: context.ledger.by_state(Table.FLEET, "NODE", limit=1000, cursor=cursor))
    return tuple(node for _, node in rows.readable_rows(node_rows, FleetNode) if not node.is_gone)


def requests_by_node(
    cluster: str,
    movable: Mapping[str, Resources],
    nodes: Iterable[KubernetesNode],
    fleet_nodes: Iterable[FleetNode],
    context: Context,
) -> dict[str, Resources]:
    """Return the requests of all live pods, by node name.

    The pods of DaemonSets are listed only if a node has no row with their requests yet.

    Args:
        cluster: Kubernetes cluster.
        movable: Requests of the pods that belong to no DaemonSet.
        nodes: The node objects of the cluster.
        fleet_nodes: The nodes of the last sweep.
        context: The ports.
    """
    by_instance = {node.life.instance_id: node.bound_in_use for node in fleet_nodes if node.life.cluster == cluster}
    bound = {node.name: by_instance.get(node.instance_id or "") for node in nodes}
    if None in bound.values():
        listed_requests = context.cluster.resources_in_use(cluster, PodGroup.BOUND)
        bound = {
            **bound,
            **{name: listed_requests.get(name, NONE) for name, resources in bound.items() if resources is None},
        }
    names = {*movable, *bound}
    return {name: movable.get(name, NONE) + (bound.get(name) or NONE) for name in names}
