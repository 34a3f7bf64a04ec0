"""Capacity Blocks on EKS: EC2 takes their instances back at a fixed time.

Karpenter and EKS Auto Mode label each node with its reservation. So the sweep describes only reservations of its nodes,
not all reservations of the account.

An On-Demand Capacity Reservation is no Capacity Block. When it ends, its instances keep running at the on-demand price
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-reservations-using.html), so no job has to leave them.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from evenkeel.domain.capacity.pools import Reservation
from evenkeel.domain.capacity.training_plans import RESERVATION_ID, PlanEnd, PlanEnds
from evenkeel.domain.nodes import RESERVATION_LABELS, KubernetesNode, Node
from evenkeel.domain.values import Value

_ULTRA_SERVER_CLOSING_SECONDS = 3600


class CapacityReservation(Value):
    """A capacity reservation, as EC2 describes it."""

    reservation_id: str
    period: Reservation | None = None
    """EC2 takes the instances back at its end. None if they keep running."""


def reservation_id_of(node: KubernetesNode) -> str:
    """Return the id of a node's reservation; empty if its labels name none."""
    ids = (node.labels.get(label, "") for label in RESERVATION_LABELS)
    return next((reservation_id for reservation_id in ids if RESERVATION_ID.fullmatch(reservation_id)), "")


def reservations_in_use(nodes: Iterable[Node]) -> frozenset[str]:
    """Return the ids of the reservations that the labels of nodes name."""
    return frozenset(reservation_id for _, _, reservation_id in _nodes_by_reservation(nodes))


def current_block_ends(
    nodes: Iterable[Node],
    reservations: Mapping[str, CapacityReservation],
    earlier: PlanEnds,
    unread_clusters: Collection[str],
    now: datetime,
) -> PlanEnds:
    """Return when each Capacity Block of each pool ends. Only the nodes of the block end with it.

    Args:
        nodes: All listed nodes.
        reservations: Id → the reservation, for each reservation that EC2 described now.
        earlier: The stored ends. They count for a reservation or a cluster that Evenkeel could not read now.
        unread_clusters: Clusters without a complete list of nodes.
        now: The time of these answers.
    """
    earlier_ends = {(end.cluster, end.group, end.plan): end for end in earlier.groups if end.is_capacity_block}
    ends = [end for end in earlier_ends.values() if end.cluster in unread_clusters]
    for (cluster, pool, reservation_id), members in sorted(_nodes_by_reservation(nodes).items()):
        if cluster in unread_clusters:
            continue
        stored_end = earlier_ends.get((cluster, pool, reservation_id))
        if reservation_id not in reservations:
            ends.extend([stored_end] if stored_end else [])
            continue
        period = reservations[reservation_id].period
        if period is None:
            continue
        if any(node.ultra_server for node in members):
            period = period.replace(closing_seconds=_ULTRA_SERVER_CLOSING_SECONDS)
        end = PlanEnd(cluster=cluster, group=pool, plan=reservation_id, reservation=period, read_at=now)
        ends.append(end.keeping_unknown(stored_end) if stored_end else end)
    ends.sort(key=lambda end: (end.cluster, end.group, end.reservation.usable_until, end.plan))
    return PlanEnds(groups=tuple(ends))


def _nodes_by_reservation(nodes: Iterable[Node]) -> dict[tuple[str, str, str], list[Node]]:
    """Group the nodes by cluster, pool and reservation. This leaves out nodes without a reservation."""
    grouped: dict[tuple[str, str, str], list[Node]] = {}
    for node in nodes:
        reservation_id = reservation_id_of(node.kubernetes) if node.kubernetes else ""
        if reservation_id and node.pool:
            grouped.setdefault((node.life.cluster, node.pool, reservation_id), []).append(node)
    return grouped
