"""Names that requests use: whether the fleet has them, and what the caller may have meant where it has not."""

from evenkeel.domain.names import unknown_name
from evenkeel.domain.nodes import FleetNode
from evenkeel.ports import Invalid, Ledger, NotFound, Row, Table
from evenkeel.services.context import Context
from evenkeel.services.storage import pagination, rows

_MOST_NODES = 5000


def check_pool(pool: str, context: Context) -> None:
    """Refuse a pool that no machine of the fleet is in and the policy does not name.

    Raises:
        Invalid: there is no such pool, or no machine is known yet, so nobody can tell.
    """
    found = {str(row.doc.get("pool") or "") for row in _nodes(context.ledger)}
    known = {*found, *(each.name for each in context.policy.burst.pools)} - {""}
    if pool in known:
        return
    if not found:
        message = f"Evenkeel cannot check pool {pool}: no sweep has listed the fleet yet."
    else:
        message = unknown_name("pool", pool, known)
    raise Invalid(message, (("pool", f"{message} To name a pool that does not exist yet, set allowUnknown."),))


def check_machine(instance_id: str, context: Context) -> None:
    """Refuse a machine that the fleet does not have, or not any more.

    Raises:
        Invalid: there is no such machine, or none is known yet, so nobody can tell.
    """
    for cluster in context.site.clusters:
        row = context.ledger.get(rows.node_key(cluster, instance_id))
        if row is not None and not row.doc.get("isGone"):
            return
    nodes = [rows.read(row, FleetNode) for row in _nodes(context.ledger)]
    if not nodes:
        message = f"Evenkeel cannot check node {instance_id}: no sweep has listed the fleet yet."
    else:
        message = unknown_name("node", instance_id, (node.life.instance_id for node in nodes))
    raise Invalid(message, (("instanceId", f"{message} To name a node that does not exist yet, set allowUnknown."),))


def no_node(instance_id: str, ledger: Ledger) -> NotFound:
    """Return the failure for a node that the fleet does not know, with those that are near."""
    nodes = (rows.read(row, FleetNode) for row in _nodes(ledger))
    return NotFound(unknown_name("node", instance_id, (node.life.instance_id for node in nodes)))


def _nodes(ledger: Ledger) -> list[Row]:
    found, _ = pagination.everything(ledger, Table.FLEET, "NODE", at_most=_MOST_NODES, keep=_is_there)
    return list(found)


def _is_there(row: Row) -> bool:
    return not row.doc.get("isGone")
