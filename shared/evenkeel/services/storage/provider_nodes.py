"""HyperPod's records of nodes, from the rows of the last sweep.

A node never changes its launch time, its group or its slot. Its status may be as old as the last sweep, so readers take
the health of a node from its node object.
"""

from collections.abc import Iterable

from evenkeel.domain.nodes import FleetNode, KubernetesNode, ProviderNode
from evenkeel.services.context import Context
from evenkeel.services.tables import fleet_rows, rows


def load_provider_nodes(
    nodes: Iterable[KubernetesNode], fleet_nodes: Iterable[FleetNode], context: Context
) -> tuple[ProviderNode, ...]:
    """Return the records of all nodes. HyperPod lists its nodes only if one of `nodes` has no row yet.

    Args:
        nodes: The node objects of HyperPod's cluster.
        fleet_nodes: The nodes of the last sweep.
        context: The ports.
    """
    if not context.site.has_hyperpod:
        return ()
    provider_nodes = tuple(provider_node for node in fleet_nodes if (provider_node := node.provider_node) is not None)
    instance_ids = {provider_node.instance_id for provider_node in provider_nodes}
    is_complete = all(node.instance_id in instance_ids for node in nodes if node.hyperpod_cluster_id)
    return provider_nodes if is_complete else context.provider.nodes()


def load_provider_node(node: KubernetesNode, context: Context) -> ProviderNode | None:
    """Return the record of one node; None if HyperPod does not know the node."""
    if not node.hyperpod_cluster_id or not node.instance_id:
        return None
    row = context.ledger.get(fleet_rows.node_key(node.cluster, node.instance_id))
    provider_node = rows.decode(row, FleetNode).provider_node if row else None
    return provider_node or context.provider.node(node.instance_id)
