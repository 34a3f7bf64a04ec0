"""Unhealthy nodes: one rule for the node's state, for scheduling and for the estimates of the queue."""

from collections.abc import Iterable

from evenkeel.domain.nodes import FleetNode, KubernetesNode, NodeLife
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode, is_unhealthy
from evenkeel.events import kubernetes_node
from evenkeel.ports import Ledger, Row, Table, Unreadable, every, get_all
from evenkeel.services.context import Context
from evenkeel.services.tables import rows

UnhealthyNodes = dict[tuple[str, str], UnhealthyNode]
"""Records of incidents and people about nodes, by cluster and instance id."""


def load_unhealthy_nodes(ledger: Ledger) -> UnhealthyNodes:
    """Return the nodes that incidents left unhealthy, and the nodes that a person declared healthy.

    The index names them, and each row is then read as it is now. So a node that a person released is usable at once. A
    node that became unhealthy a moment ago may be missed once. A node whose row this release cannot read takes no work.
    """
    index_entries = every(lambda cursor: ledger.by_state(Table.INCIDENTS, "UNHEALTHY", limit=1000, cursor=cursor))
    stored_rows = get_all(ledger, (row.key for row in index_entries)).values()
    nodes = (_unhealthy_node(row) for row in stored_rows)
    return {(node.life.cluster, node.life.instance_id): node for node in nodes}


def _unhealthy_node(row: Row) -> UnhealthyNode:
    try:
        return rows.decode(row, UnhealthyNode)
    except Unreadable as error:
        life = NodeLife.from_key(row.key.pk.removeprefix("UNHEALTHY#"))
        incident_id = str(row.doc.get("incidentId", ""))
        return UnhealthyNode(life=life, incident_id=incident_id, since=life.launched_at, reason=str(error))


def unhealthy_among(nodes: Iterable[KubernetesNode], context: Context) -> frozenset[tuple[str, str]]:
    """Return the unhealthy nodes among these, by cluster and node name."""
    unhealthy_by_node = load_unhealthy_nodes(context.ledger)
    return frozenset(
        (node.cluster, node.name)
        for node in nodes
        if is_unhealthy(
            kubernetes_node.fault_evidence(node, context.policy.watch, context.policy.catalogue, context.now),
            unhealthy_by_node.get((node.cluster, node.instance_id or "")),
        )
    )


def is_unhealthy_node(node: FleetNode, unhealthy_by_node: UnhealthyNodes) -> bool:
    """Whether a stored node is unhealthy."""
    return is_unhealthy(node.marks, unhealthy_by_node.get((node.life.cluster, node.life.instance_id)))
