"""Find the node life that a fact names."""

from evenkeel.domain.health.incidents import (
    AffectedNode,
    Incident,
    NodeFact,
)
from evenkeel.domain.nodes import Node, NodeLife
from evenkeel.services.context import Context
from evenkeel.services.tables import fleet_rows, incident_rows, rows


def find_affected_node(instance_id: str, context: Context, *, asks_provider: bool) -> AffectedNode | None:
    """Find the node life of an instance id in the fleet table; None if it is unknown.

    If `asks_provider`, HyperPod is asked about an instance that the table does not list. Only these fields of a row are
    read, so a newer value in another field loses no fact. A row whose own fields are unreadable counts as unlisted.
    """
    keys = [fleet_rows.node_key(cluster, instance_id) for cluster in context.site.clusters]
    stored_rows = (row for row in (context.read_rows(*keys) if keys else ()) if row is not None)
    for _, node in rows.readable_rows(stored_rows, AffectedNode):
        return AffectedNode(
            life=node.life,
            slot=node.slot,
            node_name=node.node_name,
            pool=node.pool,
            instance_type=node.instance_type,
            boot_id=node.boot_id,
            job_ids=node.job_ids,
        )
    provider_node = context.provider.node(instance_id) if asks_provider and context.site.clusters else None
    if provider_node is None:
        return None
    life = NodeLife(cluster=context.site.clusters[0], instance_id=instance_id, launched_at=provider_node.launched_at)
    listed_node = Node(life=life, provider=provider_node)
    return AffectedNode(
        life=life, slot=listed_node.slot, pool=listed_node.pool, instance_type=provider_node.instance_type
    )


def has_row(instance_id: str, context: Context) -> bool:
    """Whether the fleet table has a row of an instance, although this release may not be able to read it."""
    keys = [fleet_rows.node_key(cluster, instance_id) for cluster in context.site.clusters]
    return any(context.read_rows(*keys)) if keys else False


def find_node_in_repair(fact: NodeFact, context: Context) -> AffectedNode | None:
    """Find the node that a repair fact is about; None if that node has no open incident. HyperPod is not called.

    A fact about a replacement may name the old node, the new node, or a node that never ran. So an instance without an
    open incident stands for the node of its slot's last incident.
    """
    node = find_affected_node(fact.instance_id, context, asks_provider=False)
    if node is not None and context.ledger.get(incident_rows.open_key(node.life, is_drill=fact.is_drill)) is not None:
        return node
    slot_id = f"{context.site.clusters[0]}/{fact.logical_id}" if context.site.clusters and fact.logical_id else ""
    pointer = context.ledger.get(incident_rows.slot_key(slot_id, is_drill=fact.is_drill)) if slot_id else None
    row = context.ledger.get(incident_rows.incident_key(pointer.doc["incidentId"])) if pointer else None
    incident = rows.decode(row, Incident) if row else None
    if incident is None or incident.state.is_settled:
        return None
    return AffectedNode(
        life=incident.life,
        slot=incident.slot,
        node_name=incident.node_name,
        pool=incident.pool,
        instance_type=incident.instance_type,
        boot_id=incident.boot_id,
    )
