"""Serving workloads as demand: the replicas of a registered Deployment that found no node.

Its controller makes a pod for each replica that is wanted, so what is wanted is read from the pods themselves. Those
without a node are placed by Kubernetes' own scheduler the moment one is free: nodes that they need are kept for them.
What nodes for them may be rented, and when they go back, says `replicas.py`.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from evenkeel.domain.admission.decide import Request, Room, is_open_to, offers_for, without_seats
from evenkeel.domain.capacity.pool_choices import PoolChoice
from evenkeel.domain.external.workloads import ForeignPod
from evenkeel.domain.policy import SchedulingPolicy, ServingWorkload

_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_SLUG_LENGTH = 32
"""The names of its capacity pods and executions begin with its id, and have 63 characters."""


class Short(NamedTuple):
    """A registered Deployment of whose replicas some have no node."""

    registered: ServingWorkload
    replicas: tuple[ForeignPod, ...]
    """All that there are."""
    waiting: tuple[ForeignPod, ...]
    """Those without a node, as far as was agreed, those that wait longest first."""

    @property
    def per_replica(self) -> int:
        """Accelerators of one, where they differ of the largest."""
        return max(pod.accelerators for pod in self.waiting)


def holder_id(registered: ServingWorkload) -> str:
    """Return the id under which nodes are rented for a Deployment: `srv-chat-0123abcd`."""
    place = f"{registered.cluster}/{registered.namespace}/{registered.name}"
    slug = re.sub("[^a-z0-9]+", "-", registered.name.lower())[:_SLUG_LENGTH].strip("-")
    return f"srv-{slug}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def replicas_of(namespace: str, name: str, pods: Iterable[ForeignPod]) -> tuple[ForeignPod, ...]:
    """Return the pods of a Deployment: its ReplicaSets are named after it, with a hash of their template."""
    return tuple(
        pod
        for pod in pods
        if (pod.namespace, pod.kind) == (namespace, "ReplicaSet") and pod.workload.rpartition("-")[0] == name
    )


def short_of(registered: Iterable[ServingWorkload], pods: Mapping[str, Sequence[ForeignPod]]) -> tuple[Short, ...]:
    """Return the Deployments of whose replicas some wait for a node.

    Args:
        registered: All of them.
        pods: By cluster, all of them.
    """
    found = []
    for each in registered:
        mine = replicas_of(each.namespace, each.name, pods.get(each.cluster, ()))
        placed = sum(bool(pod.node_name) for pod in mine)
        waits = (pod for pod in mine if not pod.node_name and pod.accelerators)
        # More than it may have is not asked for: its owner scaled it beyond what was agreed.
        waiting = sorted(waits, key=lambda pod: pod.created_at or _LONG_AGO)[: max(0, each.most_replicas - placed)]
        if waiting:
            found.append(Short(each, mine, tuple(waiting)))
    return tuple(found)


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
