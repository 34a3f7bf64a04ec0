"""Serving workloads as demand: the replicas of a registered Deployment that found no node.

Its controller makes a pod for each replica that is wanted, so what is wanted is read from the pods themselves. Those
without a node are placed by Kubernetes' own scheduler the moment one is free: nodes that they need are kept for them.
What nodes for them may be rented, and when they go back, says `replicas.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from evenkeel.domain.admission.offers import is_schedulable_for, pool_fits, subtract_assigned
from evenkeel.domain.admission.policy import SchedulingPolicy
from evenkeel.domain.admission.request import AdmissionRequest
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pool_choices import PoolChoice
from evenkeel.domain.external.serving import ReplicaShortfall, holder_id


def replica_requests(
    short: Iterable[ReplicaShortfall],
    capacities: Sequence[NodeCapacity],
    priorities: Mapping[str, int],
    now: datetime,
    satisfied_replicas: Mapping[str, int] | None = None,
) -> tuple[AdmissionRequest, ...]:
    """Return what the replicas without a node ask for, most urgent first.

    Args:
        short: Whose replicas wait.
        capacities: The machines, which say how many replicas share one.
        priorities: Of the priority classes.
        now: The time.
        satisfied_replicas: By the Deployment's id, for how many of them nodes are rented already.
    """
    found = []
    for registered, _, waiting in short:
        left = waiting[(satisfied_replicas or {}).get(holder_id(registered), 0) :]
        if not left:
            continue
        per_replica = max(pod.accelerators for pod in left)
        largest = max(
            (capacity.accelerators for capacity in capacities if capacity.cluster == registered.cluster), default=0
        )
        shared = max(1, min(len(left), largest // per_replica))
        selector = left[0].selector
        found.append(
            AdmissionRequest(
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


def reserve_for_replicas(
    demands: Iterable[AdmissionRequest], capacities: tuple[NodeCapacity, ...], policy: SchedulingPolicy
) -> tuple[NodeCapacity, ...]:
    """Return the rooms without those that waiting replicas take as soon as they can."""
    for demand in demands:
        offers = pool_fits(demand, capacities, policy)
        best = max(offers, key=lambda offer: (offer.fitting, offer.pool), default=None)
        if best is None:
            continue
        fits = [
            capacity.life
            for capacity in capacities
            if (capacity.cluster, capacity.pool, capacity.instance_type)
            == (demand.cluster, best.pool, best.instance_type)
            and is_schedulable_for(demand, capacity)
            and capacity.free >= demand.accelerators_per_node
        ]
        capacities = subtract_assigned(capacities, demand, fits[: demand.nodes])
    return capacities
