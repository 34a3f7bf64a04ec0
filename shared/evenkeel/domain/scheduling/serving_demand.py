"""Demand of serving workloads: the replicas of a registered Deployment that have no node.

The Deployment's controller creates a pod for each replica, so the pods show the demand. Kubernetes' own scheduler
places a pod as soon as a node is free, so nodes for these pods are reserved here. Nodes are rented for replicas that
fit on no committed node.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.pool_fits import is_schedulable_for, pool_fits, subtract_assigned
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pool_choices import PoolChoice
from evenkeel.domain.external.adoption_policy import ServingWorkload
from evenkeel.domain.external.serving import ReplicaShortfall, holder_id, replicas_of
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.candidates import PlacementContext
from evenkeel.domain.renting.placement import PlacementAction, PlacementDecision
from evenkeel.domain.renting.rental import UNASSIGNED, Rental, RentalState
from evenkeel.domain.renting.rental_book import RentalBook
from evenkeel.domain.renting.serving_rentals import (
    ServingState,
    decide_serving_rentals,
    free_replica_slots,
    replicas_on,
)
from evenkeel.domain.renting.serving_return import (
    CommittedSlots,
    ServingReturnAction,
    ServingReturnDecision,
    ServingReturnFacts,
    decide_serving_return,
)

# ---------------------------------------------------------------- committed nodes


def replica_requests(
    shortfalls: Iterable[ReplicaShortfall],
    capacities: Sequence[NodeCapacity],
    priorities: Mapping[str, int],
    now: datetime,
    satisfied_replicas: Mapping[str, int] | None = None,
) -> tuple[AdmissionRequest, ...]:
    """Return the requests of the replicas that have no node, most urgent first.

    Args:
        shortfalls: The Deployments with waiting replicas.
        capacities: The nodes. Their size decides how many replicas share a node.
        priorities: Priority class → priority.
        now: The time.
        satisfied_replicas: Id of the Deployment → number of its replicas for which nodes are already rented.
    """
    requests = []
    for serving_workload, _, waiting_pods in shortfalls:
        pods = waiting_pods[(satisfied_replicas or {}).get(holder_id(serving_workload), 0) :]
        if not pods:
            continue
        per_replica = max(pod.accelerators for pod in pods)
        largest_node = max(
            (capacity.accelerators for capacity in capacities if capacity.cluster == serving_workload.cluster),
            default=0,
        )
        replicas_per_node = max(1, min(len(pods), largest_node // per_replica))
        selector = pods[0].selector
        requests.append(
            AdmissionRequest(
                job_id=serving_workload.label,
                submitted_at=now,
                cluster=serving_workload.cluster,
                nodes=-(-len(pods) // replicas_per_node),
                accelerators_per_node=per_replica * replicas_per_node,
                is_serving=True,
                priority=priorities.get(serving_workload.priority_class, serving_workload.priority),
                tolerations=pods[0].tolerations,
                pools=(PoolChoice(name="", labels=selector),) if selector else (),
            )
        )
    return tuple(sorted(requests, key=lambda request: (-request.priority, request.job_id)))


def reserve_for_replicas(
    demands: Iterable[AdmissionRequest], capacities: tuple[NodeCapacity, ...], policy: SchedulingPolicy
) -> tuple[NodeCapacity, ...]:
    """Return the node capacities without the nodes that waiting replicas will take."""
    for demand in demands:
        fits = pool_fits(demand, capacities, policy)
        largest_fit = max(fits, key=lambda fit: (fit.fitting, fit.pool), default=None)
        if largest_fit is None:
            continue
        usable = [
            capacity.life
            for capacity in capacities
            if (capacity.cluster, capacity.pool, capacity.instance_type)
            == (demand.cluster, largest_fit.pool, largest_fit.instance_type)
            and is_schedulable_for(demand, capacity)
            and not capacity.why_too_small(demand.per_node)
        ]
        capacities = subtract_assigned(capacities, demand, usable[: demand.nodes])
    return capacities


# ---------------------------------------------------------------- rented nodes


def satisfied_replicas(
    serving_workloads: Iterable[ServingWorkload],
    rental_book: RentalBook,
    pods: Mapping[str, Sequence[UnmanagedPod]],
    capacities: Iterable[NodeCapacity],
) -> dict[str, int]:
    """Return how many waiting replicas the rented or starting nodes will take, by the id of the Deployment."""
    pool_of_unassigned_node = {
        (capacity.cluster, capacity.node_name): capacity.pool
        for capacity in capacities
        if capacity.reserved_for == UNASSIGNED
    }
    satisfied_by_holder = {}
    for workload in serving_workloads:
        if workload.rents_from:
            holder, cluster_pods = holder_id(workload), pods.get(workload.cluster, ())
            free_slots = free_replica_slots(
                [rental for rental in rental_book.rentals if rental.job_id == holder], cluster_pods
            )
            # A replica on a node that is not assigned yet needs no other node.
            replicas_on_unassigned_nodes = sum(
                pool_of_unassigned_node.get((workload.cluster, pod.node_name)) in workload.rents_from
                for pod in replicas_of(workload.namespace, workload.name, cluster_pods)
            )
            satisfied_by_holder[holder] = max(0, free_slots - replicas_on_unassigned_nodes)
    return satisfied_by_holder


class ServingDemand(NamedTuple):
    """The replicas that wait for nodes in one scheduling cycle."""

    shortfalls: tuple[ReplicaShortfall, ...] = ()
    """Deployments with waiting replicas."""
    satisfied_replicas: Mapping[str, int] = {}
    """Id of a Deployment → how many of its waiting replicas rented nodes will run."""
    replica_requests: tuple[AdmissionRequest, ...] = ()
    """Requests of the other replicas, most urgent first."""
    satisfied_demands: Mapping[str, int] = {}
    """Committed nodes that each demand gets, by `cluster/demand`."""


class ServingRentalPlan(NamedTuple):
    """The decisions of one cycle about one Deployment."""

    registered: ServingWorkload
    state: ServingState
    version: int = 0
    """Version of the state's row; 0 if there is no row."""
    per_replica: int = 0
    decisions: tuple[PlacementDecision, ...] = ()
    """A decision for each node to rent, or a single decision with the reason why Evenkeel rents no node."""
    fits_committed: bool = False
    """Whether committed nodes can run its replicas. If they can, Evenkeel rents no node."""

    @property
    def to_rent(self) -> tuple[PlacementDecision, ...]:
        """The decisions to rent."""
        return tuple(decision for decision in self.decisions if decision.action is PlacementAction.RENT)


class ServingReturn(NamedTuple):
    """A rented node whose replicas move to committed nodes."""

    rental: Rental
    decision: ServingReturnDecision


def next_serving_return(
    rentals: Sequence[Rental],
    pods: Mapping[str, Sequence[UnmanagedPod]],
    capacities: Sequence[NodeCapacity],
    policy: Policy,
    now: datetime,
) -> ServingReturn | None:
    """Return the most expensive rented node whose replicas committed nodes can run; None if there is none.

    Each Deployment returns one node at a time: not while another of its nodes starts or ends.

    Args:
        rentals: All open rentals.
        pods: By readable cluster, all pods.
        capacities: The nodes, less the amounts that waiting replicas and this cycle's admissions take.
        policy: Registered Deployments, spares and the quiet period.
        now: The time.
    """
    serving_by_holder = {holder_id(workload): workload for workload in policy.scheduling.serving}
    changing_holders = {
        rental.job_id for rental in rentals if rental.state is not RentalState.READY or rental.is_returning
    }
    candidates = [
        rental
        for rental in rentals
        if rental.serving_target is not None
        and rental.state is RentalState.READY
        and rental.job_id in serving_by_holder
        and rental.job_id not in changing_holders
        and rental.offer.cluster in pods
    ]
    for rental in sorted(candidates, key=lambda rental: (-rental.offer.micros_per_node_hour, rental.name)):
        replicas = replicas_on(rental, pods[rental.offer.cluster])
        if not replicas:
            continue
        facts = ServingReturnFacts(
            rental=rental.name,
            pool=rental.offer.pool,
            micros_per_node_hour=rental.offer.micros_per_node_hour,
            replicas=len(replicas),
            replicas_elsewhere=_replicas_elsewhere(
                rental, serving_by_holder[rental.job_id], pods[rental.offer.cluster]
            ),
            slots_promised=_slots_promised(rental, replicas, rentals, pods[rental.offer.cluster]),
            slots=_committed_slots(serving_by_holder[rental.job_id], replicas, capacities, policy.scheduling, now),
            ready_since=rental.handed_over_at or rental.begun_at,
            min_seconds=policy.burst.quiet_seconds,
            now=now,
        )
        decision = decide_serving_return(facts)
        if decision.action is ServingReturnAction.RETURN:
            return ServingReturn(rental, decision)
    return None


def _slots_promised(
    rental: Rental, replicas: Sequence[UnmanagedPod], rentals: Iterable[Rental], pods: Sequence[UnmanagedPod]
) -> int:
    """Return the number of slots for the replicas that still leave other rented nodes of the cluster.

    The slots count replicas of this rental's size, so a larger replica needs several of them.
    """
    per_replica = max(1, *(pod.accelerators for pod in replicas))
    return sum(
        max(1, -(-pod.accelerators // per_replica))
        for other_rental in rentals
        if other_rental.is_returning and other_rental.offer.cluster == rental.offer.cluster
        for pod in replicas_on(other_rental, pods)
    )


def _replicas_elsewhere(rental: Rental, serving_workload: ServingWorkload, pods: Sequence[UnmanagedPod]) -> int:
    """Return how many ready replicas of a Deployment run on nodes outside a rental."""
    replicas = replicas_of(serving_workload.namespace, serving_workload.name, pods)
    return sum(
        bool(pod.node_name) and not pod.is_unready and pod.node_name not in rental.node_names for pod in replicas
    )


def _committed_slots(
    serving_workload: ServingWorkload,
    replicas: Sequence[UnmanagedPod],
    capacities: Sequence[NodeCapacity],
    policy: SchedulingPolicy,
    now: datetime,
) -> tuple[CommittedSlots, ...]:
    """Return the committed nodes that can run a replica. Spares stay free."""
    per_replica = max(1, *(pod.accelerators for pod in replicas))
    request = AdmissionRequest(
        job_id=serving_workload.label,
        submitted_at=now,
        cluster=serving_workload.cluster,
        nodes=1,
        accelerators_per_node=per_replica,
        is_serving=True,
        tolerations=replicas[0].tolerations,
    )
    usable = [
        capacity
        for capacity in capacities
        if not capacity.reserved_for
        and capacity.cluster == serving_workload.cluster
        and is_schedulable_for(request, capacity)
        and not capacity.why_too_small(request.per_node)
        and replicas[0].selector.items() <= capacity.labels.items()
    ]
    spares: set[str] = set()
    for pool, count in policy.spare_nodes.items():
        idle_node_names = sorted(
            capacity.node_name for capacity in usable if capacity.pool == pool and capacity.is_unused
        )
        spares |= {*idle_node_names[:count]}
    return tuple(
        CommittedSlots(
            node_name=capacity.node_name, pool=capacity.pool, replicas=capacity.free.accelerators // per_replica
        )
        for capacity in usable
        if capacity.node_name not in spares
    )


def plan_serving_rentals(
    demand: ServingDemand, states: Mapping[str, tuple[ServingState, int]], context: PlacementContext, policy: Policy
) -> tuple[ServingRentalPlan, ...]:
    """Decide which nodes are rented for replicas that fit on no committed node, the most urgent Deployment first.

    Args:
        demand: The replicas that wait.
        states: The stored state of each Deployment, by id, with its row's version.
        context: The snapshot of the cycle. Its queue does not count: replicas take free nodes before any job.
        policy: Prices and caps.
    """
    serving_by_holder = {holder_id(workload): workload for workload in policy.scheduling.serving if workload.rents_from}
    shortfalls = {holder_id(shortfall.registered): shortfall for shortfall in demand.shortfalls}
    demand_indexes = {
        f"{request.cluster}/{request.job_id}": index for index, request in enumerate(demand.replica_requests)
    }
    labels = {name: f"{workload.cluster}/{workload.label}" for name, workload in serving_by_holder.items()}
    context, rentals_left, plans = context._replace(queue=()), policy.burst.rentals_per_cycle, []
    for name in sorted(
        serving_by_holder,
        key=lambda registered_name: (demand_indexes.get(labels[registered_name], len(demand_indexes)), registered_name),
    ):
        plan = ServingRentalPlan(
            serving_by_holder[name], *states.get(name, (ServingState.of(serving_by_holder[name]), 0))
        )
        waiting_replicas = (
            len(shortfalls[name].waiting) - demand.satisfied_replicas.get(name, 0) if name in shortfalls else 0
        )
        if waiting_replicas > 0:
            per_node = demand.replica_requests[demand_indexes[labels[name]]].accelerators_per_node
            waiting_replicas -= max(1, per_node // shortfalls[name].per_replica) * demand.satisfied_demands.get(
                labels[name], 0
            )
        if waiting_replicas > 0:
            decisions = decide_serving_rentals(
                shortfalls[name], waiting_replicas, context, plan.state, policy, max_rentals=rentals_left
            )
            plan = plan._replace(decisions=decisions, per_replica=shortfalls[name].per_replica)
            rentals_left -= len(plan.to_rent)
            context = context._replace(rented=context.rented.with_planned(plan.to_rent, policy.burst.pools))
        elif name in shortfalls and not demand.satisfied_replicas.get(name):
            plan = plan._replace(fits_committed=True)
        if plan.decisions or plan.fits_committed or (plan.state.last_note and name not in shortfalls):
            plans.append(plan)
    return tuple(plans)
