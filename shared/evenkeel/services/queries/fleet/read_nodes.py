"""Read nodes: the list, one node, and the state of each node with its reason."""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.nodes import FleetNode, NodeLife, NodeState
from evenkeel.domain.recovery.manual_cordons import ManualCordon
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode, is_unhealthy
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Ledger, Row, Table
from evenkeel.services.context import Context
from evenkeel.services.incidents import unhealthy_nodes
from evenkeel.services.queries import sorted_list
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.queries.incidents.incidents_by_need import MAX_SHOWN, by_node, open_incidents
from evenkeel.services.queries.jobs import read_queue
from evenkeel.services.recovery import manual_cordons
from evenkeel.services.storage import fleet_counts, known_names, pagination
from evenkeel.services.tables import fleet_rows, incident_rows, rows

Json = dict[str, Any]
_MAX_NODES = 5000


class NodeFilter(NamedTuple):
    """The filter of a list of nodes."""

    pool: str = ""
    states: Sequence[NodeState] = ()
    """None = all but `GONE`."""
    with_gone: bool = False


_PROBLEMS_FIRST = (
    NodeState.QUARANTINED,
    NodeState.UNHEALTHY,
    NodeState.BLOCKED,
    NodeState.WAITING,
    NodeState.NOT_READY,
    NodeState.REPAIRING,
    NodeState.CORDONED,
    NodeState.STARTING,
    NodeState.IN_SERVICE,
    NodeState.GONE,
)
_SORT_VALUES: dict[str, sorted_list.SortValue] = {
    "state": lambda node: _PROBLEMS_FIRST.index(node["state"]),
    **{
        name: itemgetter(name)
        for name in ("instanceId", "pool", "instanceType", "gpusInUse", "launchedAt", "changedAt")
    },
}


def list_nodes(
    ledger: Ledger, page: pagination.PageRequest, node_filter: NodeFilter, *, sort: sorted_list.Sort | None = None
) -> Json:
    """Return one page of nodes, by pool. Nodes that are gone are kept for a while and listed only on request.

    `counts` has the number of nodes by state as the last sweep counted them; None if it is unknown. Sorted by state,
    nodes with problems come first.

    Raises:
        BadPageToken: this list did not issue the token.
        TooManyToSort: more nodes match than a list can sort.
    """
    listed_incidents, is_cut = open_incidents(ledger)
    incidents = by_node(listed_incidents)
    recorded_unhealthy = unhealthy_nodes.load_unhealthy_nodes(ledger)
    shows_gone = node_filter.with_gone or NodeState.GONE in node_filter.states

    def incident_of(node: FleetNode) -> Incident | None:
        return incidents.get(node.life.key) or (_incident_of(ledger, node) if is_cut else None)

    def state_of(row: Row) -> NodeState:
        node = rows.decode(row, FleetNode)
        return node_state(
            node, incident_of(node), is_unhealthy=unhealthy_nodes.is_unhealthy_node(node, recorded_unhealthy)
        )

    def keep(row: Row) -> bool:
        return (
            (shows_gone or read_queue.is_present(row))
            and node_filter.pool in ("", row.doc.get("pool"))
            and (not node_filter.states or state_of(row) in node_filter.states)
        )

    filters = keep if not shows_gone or node_filter.pool or node_filter.states else None
    unhealthy = left_unhealthy(recorded_unhealthy)
    cordons = manual_cordons.load_manual_cordons(ledger)

    def shown(stored_rows: Sequence[Row]) -> list[Json]:
        return [
            _node_document(
                node,
                incident_of(node),
                cordons.get(node.life.key),
                unhealthy.get(node.life.key),
                is_unhealthy=unhealthy_nodes.is_unhealthy_node(node, recorded_unhealthy),
            )
            for _, node in rows.readable_rows(stored_rows, FleetNode)
        ]

    if sort is not None:
        nodes = shown(sorted_list.matching_rows(ledger, Table.FLEET, ["NODE"], filters))
        items, token = sorted_list.sorted_page(nodes, sort, _SORT_VALUES, page, item_id="instanceId")
    else:
        answer = pagination.page_newest_first(ledger, Table.FLEET, ["NODE"], page, filters)
        items, token = shown(answer.rows), answer.next_token
    return {"items": items, "nextPageToken": token or None, "counts": fleet_counts.node_counts(ledger)}


def show_node(instance_id: str, context: Context) -> Json:
    """Return a node by its instance id.

    Raises:
        NotFound: the fleet does not know it.
    """
    for cluster in context.site.clusters:
        row = context.ledger.get(fleet_rows.node_key(cluster, instance_id))
        if row is not None:
            node = rows.decode(row, FleetNode)
            row = context.ledger.get(incident_rows.unhealthy_key(node.life))
            unhealthy_node = rows.decode(row, UnhealthyNode) if row else None
            why = unhealthy_node if unhealthy_node and not unhealthy_node.trusted_by else None
            person = manual_cordons.load_manual_cordons(context.ledger).get(node.life.key)
            faulty = is_unhealthy(node.marks, unhealthy_node)
            return _node_document(node, _incident_of(context.ledger, node), person, why, is_unhealthy=faulty)
    raise known_names.unknown_node_error(instance_id, context.ledger)


def node_state(node: FleetNode, open_incident: Incident | None, *, is_unhealthy: bool = False) -> NodeState:
    """Derive the state of a node from its last sweep and its open incident."""
    if node.is_gone:
        return NodeState.GONE
    if open_incident is not None:
        if open_incident.block is not None:
            return NodeState.BLOCKED
        return NodeState.WAITING if read_incidents.is_waiting(open_incident) else NodeState.REPAIRING
    if node.is_cordoned:
        return NodeState.QUARANTINED if node.incident_id else NodeState.CORDONED
    if node.is_ready and is_unhealthy:
        return NodeState.UNHEALTHY
    if node.is_ready:
        return NodeState.STARTING if node.is_awaiting_validation else NodeState.IN_SERVICE
    return NodeState.NOT_READY if node.node_name and node.not_ready_since else NodeState.STARTING


def _node_document(
    node: FleetNode,
    incident: Incident | None,
    cordon: ManualCordon | None,
    unhealthy: UnhealthyNode | None,
    *,
    is_unhealthy: bool,
) -> Json:
    is_open = incident is not None and not incident.state.is_settled
    block = incident.block if incident and is_open else None
    state = node_state(node, incident if is_open else None, is_unhealthy=is_unhealthy)
    incident_id = unhealthy.incident_id if unhealthy and state is NodeState.UNHEALTHY else node.incident_id
    return {
        "instanceId": node.life.instance_id,
        "name": node.node_name or None,
        "cluster": node.life.cluster,
        "pool": node.pool,
        "instanceType": node.instance_type,
        "zone": node.zone,
        "slot": node.slot,
        "state": state,
        "incidentId": incident.incident_id if incident and is_open else incident_id,
        "marks": list(node.marks),
        "repairedBy": node.repaired_by or None,
        "unhealthy": why_unhealthy(unhealthy) if state is NodeState.UNHEALTHY else None,
        "block": block.to_json() if block else None,
        "providerStatus": node.provider_status or None,
        "isReady": node.is_ready,
        "isCordoned": node.is_cordoned,
        "cordon": cordon_document(cordon) if cordon else None,
        "isLemon": node.is_lemon,
        "isAwaitingValidation": node.is_awaiting_validation,
        "gpus": node.accelerators,
        "gpusInUse": node.accelerators_in_use,
        "cpu": node.allocatable.cpu,
        "cpuInUse": node.in_use.cpu or 0 if node.cpu_millis else None,
        "memoryGib": node.allocatable.memory_gib,
        "memoryGibInUse": node.in_use.memory_gib or 0 if node.memory_mib else None,
        "unmanagedWorkloads": list(node.unmanaged_workloads),
        "launchedAt": rfc3339(node.life.launched_at),
        "notReadySince": rfc3339(node.not_ready_since) if node.not_ready_since else None,
        "changedAt": rfc3339(node.changed_at),
    }


def cordon_document(cordon: ManualCordon) -> Json:
    """Return who cordoned a node, why and when."""
    return {"by": cordon.by, "reason": cordon.reason, "at": rfc3339(cordon.at)}


def newest_cordons(ledger: Ledger) -> list[tuple[str, ManualCordon]]:
    """Return the instance ids and cordons of nodes that people cordoned through Evenkeel, the newest first."""
    cordons = sorted(manual_cordons.load_manual_cordons(ledger).values(), key=lambda cordon: cordon.at, reverse=True)
    return [(NodeLife.from_key(cordon.life_key).instance_id, cordon) for cordon in cordons]


def cordon_documents(ledger: Ledger, nodes: Iterable[FleetNode]) -> list[Json]:
    """Return the cordons of nodes that are still there."""
    present = {node.life.key: node for node in nodes}
    cordoned_nodes = [
        (present[cordon.life_key], cordon) for _, cordon in newest_cordons(ledger) if cordon.life_key in present
    ]
    return [
        {"instanceId": node.life.instance_id, "name": node.node_name, "pool": node.pool, **cordon_document(cordon)}
        for node, cordon in cordoned_nodes[:MAX_SHOWN]
    ]


def present_nodes(ledger: Ledger) -> tuple[tuple[FleetNode, ...], bool]:
    """Return the nodes that are not gone, and whether nodes were left out at `_MAX_NODES`."""
    nodes, is_cut = pagination.read_partition(
        ledger, Table.FLEET, "NODE", at_most=_MAX_NODES, keep=read_queue.is_present
    )
    return tuple(node for _, node in rows.readable_rows(nodes, FleetNode)), is_cut


def states_of(ledger: Ledger, nodes: Iterable[FleetNode]) -> tuple[dict[str, NodeState], bool]:
    """Return the state of each node by `NodeLife.key`, and whether open incidents were left out."""
    incidents, is_cut = open_incidents(ledger)
    return node_states(nodes, by_node(incidents), unhealthy_nodes.load_unhealthy_nodes(ledger)), is_cut


def node_states(
    nodes: Iterable[FleetNode], incidents: Mapping[str, Incident], recorded_unhealthy: unhealthy_nodes.UnhealthyNodes
) -> dict[str, NodeState]:
    return {
        node.life.key: node_state(
            node, incidents.get(node.life.key), is_unhealthy=unhealthy_nodes.is_unhealthy_node(node, recorded_unhealthy)
        )
        for node in nodes
    }


def left_unhealthy(recorded_unhealthy: unhealthy_nodes.UnhealthyNodes) -> dict[str, UnhealthyNode]:
    """Return the nodes that incidents left unhealthy, by node life."""
    return {node.life.key: node for node in recorded_unhealthy.values() if not node.trusted_by}


def why_unhealthy(node: UnhealthyNode | None) -> Json:
    if node is None:
        return {
            "incidentId": None,
            "since": None,
            "reason": "The node is marked as unhealthy and has no incident yet. The next sweep opens one.",
        }
    return {"incidentId": node.incident_id, "since": rfc3339(node.since), "reason": node.reason}


def _incident_of(ledger: Ledger, node: FleetNode) -> Incident | None:
    pointer = ledger.get(incident_rows.open_key(node.life))
    incident = ledger.get(incident_rows.incident_key(str(pointer.doc["incidentId"]))) if pointer else None
    return rows.decode(incident, Incident) if incident else None
