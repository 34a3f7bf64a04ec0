"""Serving workloads as demand: the replicas of a registered Deployment that found no node.

Its controller makes a pod for each replica that is wanted, so what is wanted is read from the pods themselves. Those
without a node are placed by Kubernetes' own scheduler the moment one is free: nodes that they need are kept for them.
What nodes for them may be rented, and when they go back, says `replicas.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from evenkeel.domain.admission.offers import is_open_to, offers_for, without_seats
from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.admission.request import Request
from evenkeel.domain.capacity.node_capacity import Room
from evenkeel.domain.capacity.pool_choices import PoolChoice
from evenkeel.domain.external.serving import Short, holder_id


def demands_of(
    short: Iterable[Short],
    rooms: Sequence[Room],
    priorities: Mapping[str, int],
    now: datetime,
    covered: Mapping[str, int] | None = None,
) -> tuple[Request, ...]:
    """Return what the replicas without a node ask for, most urgent first.

    Args:
        short: Whose replicas wait.
        rooms: The machines, which say how many replicas share one.
        priorities: Of the priority classes.
        now: The time.
        covered: By the Deployment's id, for how many of them nodes are rented already.
    """
    found = []
    for registered, _, waiting in short:
        left = waiting[(covered or {}).get(holder_id(registered), 0) :]
        if not left:
            continue
        per_replica = max(pod.accelerators for pod in left)
        largest = max((room.accelerators for room in rooms if room.cluster == registered.cluster), default=0)
        shared = max(1, min(len(left), largest // per_replica))
        selector = left[0].selector
        found.append(
            Request(
                job_id=registered.label,
                submitted_at=now,
                cluster=registered.cluster,
                nodes=-(-len(left) // shared),
                accelerators_per_node=per_replica * shared,
                is_serving=True,
                priority=priorities.get(registered.priority_class, registered.priority),
                tolerations=left[0].tolerations,
                pools=(PoolChoice(name="", labels=selector),) if selector else (),
            )
        )
    return tuple(sorted(found, key=lambda one: (-one.priority, one.job_id)))


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
            and is_open_to(demand, room)
            and room.free >= demand.accelerators_per_node
        ]
        rooms = without_seats(rooms, demand, fits[: demand.nodes])
    return rooms
