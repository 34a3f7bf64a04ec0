"""Names in requests: whether the fleet knows them, and similar names if it does not."""

from evenkeel.domain.name_suggestions import unknown_name
from evenkeel.domain.nodes import FleetNode
from evenkeel.ports import Invalid, Ledger, NotFound, Row, Table
from evenkeel.services.context import Context
from evenkeel.services.storage import pagination
from evenkeel.services.tables import fleet_rows, rows

_MAX_NODES = 5000


def check_pool(pool: str, context: Context) -> None:
    """Refuse a pool that has no node and that the policy does not name.

    Raises:
        Invalid: there is no such pool, or the fleet table is empty, so it is unknown.
    """
    pools = {str(row.doc.get("pool") or "") for row in _node_rows(context.ledger)}
    known_pools = {*pools, *(rented_pool.name for rented_pool in context.policy.burst.pools)} - {""}
    if pool in known_pools:
        return
    if not pools:
        message = f"Evenkeel cannot check pool {pool}: no sweep has listed the fleet yet."
    else:
        message = unknown_name("pool", pool, known_pools)
    raise Invalid(message, (("pool", f"{message} To name a pool that does not exist yet, set allowUnknown."),))


def check_instance(instance_id: str, context: Context) -> None:
    """Refuse a node that the fleet does not have, or no longer has.

    Raises:
        Invalid: there is no such node, or the fleet table is empty, so it is unknown.
    """
    for cluster in context.site.clusters:
        row = context.ledger.get(fleet_rows.node_key(cluster, instance_id))
        if row is not None and not row.doc.get("isGone"):
            return
    nodes = [node for _, node in rows.readable_rows(_node_rows(context.ledger), FleetNode)]
    if not nodes:
        message = f"Evenkeel cannot check node {instance_id}: no sweep has listed the fleet yet."
    else:
        message = unknown_name("node", instance_id, (node.life.instance_id for node in nodes))
    raise Invalid(message, (("instanceId", f"{message} To name a node that does not exist yet, set allowUnknown."),))


def unknown_node_error(instance_id: str, ledger: Ledger) -> NotFound:
    """Return the error for an unknown node, with similar names."""
    nodes = rows.readable_rows(_node_rows(ledger), FleetNode)
    return NotFound(unknown_name("node", instance_id, (node.life.instance_id for _, node in nodes)))


def _node_rows(ledger: Ledger) -> list[Row]:
    nodes, _ = pagination.read_partition(ledger, Table.FLEET, "NODE", at_most=_MAX_NODES, keep=_is_there)
    return list(nodes)


def _is_there(row: Row) -> bool:
    return not row.doc.get("isGone")
