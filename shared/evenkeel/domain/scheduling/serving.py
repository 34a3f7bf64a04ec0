"""Serving workloads as demand: the replicas of a registered Deployment that found no node.

Its controller makes a pod for each replica that is wanted, so what is wanted is read from the pods themselves. Those
without a node are placed by Kubernetes' own scheduler the moment one is free: nodes that they need are kept for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from evenkeel.domain.policy import SchedulingPolicy, ServingWorkload
from evenkeel.domain.scheduling.admission import Request, Room, offers_for, without_seats
from evenkeel.domain.scheduling.foreign import ForeignPod


def demands_of(
    registered: Iterable[ServingWorkload],
    pods: Mapping[str, Sequence[ForeignPod]],
    rooms: Sequence[Room],
    priorities: Mapping[str, int],
    now: datetime,
) -> tuple[Request, ...]:
    """Return what the replicas without a node ask for, most urgent first.

    Args:
        registered: The Deployments.
        pods: By cluster, all that are not ours.
        rooms: The machines, which say how many replicas share one.
        priorities: Of the priority classes.
        now: The time.
    """
    found = []
    for each in registered:
        mine = [pod for pod in pods.get(each.cluster, ()) if _is_of(pod, each)]
        placed = sum(bool(pod.node_name) for pod in mine)
        # More than it may have is not asked for: its owner scaled it beyond what was agreed.
        waiting = [pod for pod in mine if not pod.node_name and pod.accelerators][: max(0, each.most_replicas - placed)]
        if not waiting:
            continue
        per_replica = max(pod.accelerators for pod in waiting)
        largest = max((room.accelerators for room in rooms if room.cluster == each.cluster), default=0)
        shared = max(1, min(len(waiting), largest // per_replica))
        found.append(
            Request(
                job_id=f"{each.namespace}/{each.name}",
                submitted_at=now,
                cluster=each.cluster,
                nodes=-(-len(waiting) // shared),
                accelerators_per_node=per_replica * shared,
                priority=priorities.get(each.priority_class, each.priority),
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.priority, one.job_id)))


def _is_of(pod: ForeignPod, registered: ServingWorkload) -> bool:
    """Whether a pod is a replica: a Deployment's ReplicaSets are named after it, with a hash of their template."""
    is_there = (pod.namespace, pod.kind) == (registered.namespace, "ReplicaSet")
    return is_there and pod.workload.rpartition("-")[0] == registered.name


def kept_for(demands: Iterable[Request], rooms: tuple[Room, ...], policy: SchedulingPolicy) -> tuple[Room, ...]:
    """Return the rooms without those that waiting replicas take as soon as they can."""
    for demand in demands:
        offers = offers_for(demand, rooms, policy)
        best = max(offers, key=lambda offer: (offer.fitting, offer.pool), default=None)
        if best is None:
            continue
        fits = [
            room.life
            for room in rooms
            if (room.cluster, room.pool, room.instance_type) == (demand.cluster, best.pool, best.instance_type)
            and room.is_open
            and room.free >= demand.accelerators_per_node
        ]
        rooms = without_seats(rooms, demand, fits[: demand.nodes])
    return rooms
