"""Demand of serving workloads: the replicas of a registered Deployment that have no node.

The Deployment's controller creates a pod for each replica, so the pods show the demand. Kubernetes' own scheduler
places a pod as soon as a node is free, so nodes for these pods are reserved here. `renting/serving.py` decides about
rented nodes for them.
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
    """Return the requests of the replicas that have no node, most urgent first.

    Args:
        short: The Deployments with waiting replicas.
        capacities: The nodes. Their size decides how many replicas share a node.
        priorities: Priority class → priority.
        now: The time.
        satisfied_replicas: Id of the Deployment → its replicas for which nodes are rented already.
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
    """Return the node capacities without those that waiting replicas will take."""
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
