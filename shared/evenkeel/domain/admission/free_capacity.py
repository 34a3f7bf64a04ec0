"""Derive the free capacity of a fleet from its nodes, charges and pods."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from evenkeel.domain.capacity.node_capacity import TAINTED, UNHEALTHY, NodeCapacity
from evenkeel.domain.jobs.attempt import ObservedWorkload
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.nodes import Node


def node_capacity(
    nodes: Iterable[Node],
    in_use: Mapping[tuple[str, str], int],
    charges: Iterable[Charge],
    workloads: Iterable[tuple[str, ObservedWorkload]],
    unhealthy: Collection[tuple[str, str]] = (),
) -> tuple[NodeCapacity, ...]:
    """Return the free capacity of each node.

    free = allocatable - max(used by live pods + charged to attempts without a pod there, charged to all attempts)

    The second term covers a pod that ends between two of these reads.

    Args:
        nodes: The joined fleet.
        in_use: Accelerators that live pods request, by (cluster, node name), unmanaged pods included.
        charges: The charges of attempts that are not settled.
        workloads: The pods of attempts, with the name of their cluster.
        unhealthy: (cluster, node name) of nodes that need a repair and get none.
    """
    running = {
        (cluster, pod.node_name, seen.job_id, seen.attempt)
        for cluster, seen in workloads
        for pod in seen.pods
        if pod.node_name and not pod.has_ended
    }
    charged: dict[tuple[str, str], int] = defaultdict(int)
    reserved: dict[tuple[str, str], int] = defaultdict(int)
    for charge in charges:
        for name in charge.node_names:
            each = charge.accelerators // max(len(charge.node_names), 1)
            charged[charge.cluster, name] += each
            if (charge.cluster, name, charge.job_id, charge.attempt) not in running:
                reserved[charge.cluster, name] += each
    taken = {
        place: max(in_use.get(place, 0) + reserved[place], charged[place]) for place in {*in_use, *charged, *reserved}
    }
    return tuple(_capacity_of(node, taken, unhealthy) for node in sorted(nodes, key=lambda node: node.life.key))


def _capacity_of(
    node: Node, taken: Mapping[tuple[str, str], int], unhealthy: Collection[tuple[str, str]]
) -> NodeCapacity:
    seen = node.kubernetes
    name = seen.name if seen else ""
    place = (node.life.cluster, name)
    accelerators = seen.accelerators if seen else 0
    return NodeCapacity(
        life=node.life,
        node_name=name,
        cluster=node.life.cluster,
        pool=node.pool,
        instance_type=node.provider.instance_type if node.provider else (seen.instance_type if seen else ""),
        accelerators=accelerators,
        free=max(0, accelerators - taken.get(place, 0)),
        efa=seen.efa if seen else None,
        unschedulable_reason=_closed_because(node, is_unhealthy=place in unhealthy),
        labels=seen.labels if seen else {},
        taints=seen.blocking_taints if seen else (),
    )


def _closed_because(node: Node, *, is_unhealthy: bool) -> str:
    seen = node.kubernetes
    if seen is None:
        return "not joined yet"
    if not seen.is_ready:
        return "not ready"
    if seen.is_cordoned:
        return "cordoned"
    if seen.is_awaiting_validation:
        return "awaiting validation"
    if is_unhealthy:
        return UNHEALTHY
    return "" if seen.is_schedulable else TAINTED
