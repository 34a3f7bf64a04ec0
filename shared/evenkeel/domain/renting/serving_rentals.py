"""Rented nodes for replicas of a Deployment that find no free node.

    replicas wait ── no free committed node, no job shrinks for them ── worth the rent? ── one rental for each node

The Kubernetes scheduler places these pods, not Evenkeel. So each rented pool belongs to one Deployment, by a taint that
only its pods tolerate. A node goes back when no replica has run on it for a while, or when its time limit is over.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from evenkeel.domain.capacity import instance_types
from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.capacity.pools import LaunchDelay, Market, Pool
from evenkeel.domain.capacity.start_estimates import WaitingUse, expected_wait
from evenkeel.domain.external.adoption_policy import ServingWorkload
from evenkeel.domain.external.serving import ReplicaShortfall, holder_id, replicas_of
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.job import PlacementNote
from evenkeel.domain.nodes import KARPENTER_LABEL
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.burst_policy import RentedPool
from evenkeel.domain.renting.candidates import (
    PlacementContext,
    committed_pools,
    environment_in,
    forecast_starts,
    rented_candidate,
    why_not_tolerated,
)
from evenkeel.domain.renting.cost import CandidatePool, JobDemand
from evenkeel.domain.renting.placement import PlacementAction, PlacementDecision, PlacementFacts, choose_pool
from evenkeel.domain.renting.rental import Rental, RentalHolder, ServingTarget
from evenkeel.domain.renting.rental_book import spend_limits
from evenkeel.domain.values import Instant, Value

NO_EXTRA_NODE = "the end of the spike"
"""Row of the placement table for renting nothing: the replica waits until the spike is over, at no rent."""
_MAX_UNUSED_SECONDS = 86_400
_UNUSED_SECONDS = 900
"""Pause before the next rental after a node that no replica used. It doubles each time."""


class ServingState(Value):
    """Stored state of a Deployment that nodes are rented for."""

    holder_id: str
    cluster: str
    namespace: str
    name: str
    rentals: int = 0
    """Number of its rentals so far."""
    last_note: PlacementNote | None = None
    """The last decision about its replicas."""
    unused_rentals: int = 0
    """Number of consecutive nodes that no replica used."""
    not_before: Instant | None = None
    """No node is rented before this time, because no replica used the last one."""

    @classmethod
    def of(cls, serving_workload: ServingWorkload) -> "ServingState":
        """Return the state of a Deployment without any rental."""
        return cls(
            holder_id=holder_id(serving_workload),
            cluster=serving_workload.cluster,
            namespace=serving_workload.namespace,
            name=serving_workload.name,
        )

    def after_return(self, *, was_used: bool, now: datetime) -> "ServingState":
        """Return the state after one of its nodes was returned."""
        if was_used:
            return self.replace(unused_rentals=0, not_before=None)
        seconds = min(_MAX_UNUSED_SECONDS, _UNUSED_SECONDS * 2**self.unused_rentals)
        return self.replace(unused_rentals=self.unused_rentals + 1, not_before=now + timedelta(seconds=seconds))

    def next_holder(
        self, serving_workload: ServingWorkload, per_replica: int, capacity_pod_namespace: str, now: datetime
    ) -> RentalHolder:
        """Return the Deployment as the holder of its next rental."""
        return RentalHolder(
            self.holder_id,
            self.rentals + 1,
            serving_workload.team,
            capacity_pod_namespace,
            ServingTarget(
                namespace=serving_workload.namespace, name=serving_workload.name, accelerators_per_replica=per_replica
            ),
            now + timedelta(seconds=serving_workload.rented_seconds) if serving_workload.rented_seconds else None,
        )


# ---------------------------------------------------------------- replicas on rented nodes


def registration_of(rental: Rental, serving_workloads: Iterable[ServingWorkload]) -> ServingWorkload | None:
    """Return the Deployment of a rental as the policy has it now; None if the policy no longer has it."""
    return next((workload for workload in serving_workloads if holder_id(workload) == rental.job_id), None)


def replicas_on(rental: Rental, pods: Iterable[UnmanagedPod]) -> tuple[UnmanagedPod, ...]:
    """Return the replicas on a rental's nodes."""
    if rental.serving_target is None:
        return ()
    replicas = replicas_of(rental.serving_target.namespace, rental.serving_target.name, pods)
    return tuple(pod for pod in replicas if pod.node_name and pod.node_name in rental.node_names)


def free_replica_slots(rentals: Iterable[Rental], pods: Sequence[UnmanagedPod]) -> int:
    """Return how many more replicas fit on the nodes that are rented or starting."""
    return sum(
        max(
            0,
            rental.nodes
            * _replicas_per_node(rental.offer.accelerators_per_node, rental.serving_target.accelerators_per_replica)
            - len(replicas_on(rental, pods)),
        )
        for rental in rentals
        if rental.serving_target is not None and rental.state.hosts_holder
    )


def _replicas_per_node(accelerators: int, per_replica: int) -> int:
    return max(1, accelerators // max(1, per_replica))


def why_not_schedulable(pod: UnmanagedPod, pool: RentedPool) -> str:
    """Say why a replica could not start on a node of a pool; empty if it could, as far as the policy describes it."""
    for taint_reason in why_not_tolerated(pool, pod.tolerations):
        return taint_reason
    node_labels = {
        KARPENTER_LABEL: pool.name,
        "karpenter.sh/capacity-type": str(pool.market),
        "node.kubernetes.io/instance-type": pool.instance_type,
        "kubernetes.io/arch": environment_in(pool, {}, instance_types.shipped_instance_types()).architecture,
        "kubernetes.io/os": "linux",
        **pool.labels,
    }
    unmet_terms = [f"{key}={value}" for key, value in sorted(pod.selector.items()) if node_labels.get(key) != value]
    if unmet_terms:
        return f"Its pods select {unmet_terms[0]}, and the policy does not give nodes of {pool.name} that label."
    return ""


# ---------------------------------------------------------------- which nodes are rented


def decide_serving_rentals(
    shortfall: ReplicaShortfall,
    waiting_replicas: int,
    context: PlacementContext,
    state: ServingState,
    policy: Policy,
    *,
    max_rentals: int,
) -> tuple[PlacementDecision, ...]:
    """Decide which nodes are rented for waiting replicas: one at a time, until all fit or renting does not pay.

    Args:
        shortfall: The Deployment with its waiting replicas.
        waiting_replicas: Number of replicas that fit on neither committed nor rented nodes.
        context: The snapshot of the cycle, without its queue.
        state: The stored state of the Deployment.
        policy: Prices and caps.
        max_rentals: Number of nodes that may be rented now.

    Returns:
        A decision for each node to rent, or a single one with the reason why none is rented.
    """
    patience = timedelta(seconds=shortfall.registered.patience_seconds)
    waiting_pods = [
        pod for pod in shortfall.waiting if pod.created_at is None or context.now - pod.created_at >= patience
    ]
    still_waiting = min(waiting_replicas, len(waiting_pods))
    pools = {pool.name: pool for pool in policy.burst.pools}
    decisions: list[PlacementDecision] = []
    while still_waiting > 0 and len(decisions) < max_rentals:
        answer = choose_pool(_placement_facts(shortfall, waiting_pods, still_waiting, context, state, policy))
        if answer.action is not PlacementAction.RENT:
            return tuple(decisions) or (answer,)
        decisions.append(answer)
        still_waiting -= _replicas_per_node(pools[answer.pool].accelerators_per_node, shortfall.per_replica)
        context = context._replace(rented=context.rented.with_planned((answer,), policy.burst.pools))
    return tuple(decisions)


def _placement_facts(
    shortfall: ReplicaShortfall,
    waiting_pods: Sequence[UnmanagedPod],
    waiting_replicas: int,
    context: PlacementContext,
    state: ServingState,
    policy: Policy,
) -> PlacementFacts:
    """Return the facts for one more node, which several replicas may share.

    A replica whose node is reclaimed loses only the time until the next node, like a job that saves continuously.
    """
    serving_workload, per_replica = shortfall.registered, shortfall.per_replica
    pools = policy.pools_for(serving_workload)
    fewest_replicas_per_node = min(
        (_replicas_per_node(pool.accelerators_per_node, per_replica) for pool in pools), default=1
    )
    together = min(waiting_replicas, fewest_replicas_per_node)
    since = min((pod.created_at for pod in waiting_pods if pod.created_at), default=context.now)
    demand = JobDemand(
        job_id=holder_id(serving_workload),
        team=serving_workload.team,
        job_class=serving_workload.priority_class,
        nodes=1,
        accelerators_per_node=per_replica,
        micros_per_hour_of_delay=together * policy.burst.delay_of(serving_workload.priority_class),
        run_seconds=serving_workload.spike_seconds,
        p90_run_seconds=2 * serving_workload.spike_seconds,
        checkpoint_seconds=0,
        save_seconds=0,
        submitted_at=since,
    )
    waited_seconds = (context.now - since).total_seconds()
    committed_candidates = (
        _committed_candidate(shortfall, pool, together, waited_seconds, context, policy)
        for pool in committed_pools(context.capacities, policy)
        if pool.cluster == serving_workload.cluster
    )
    rented_candidates = (
        rented_candidate(pool, context, _differences_of(waiting_pods, pool, state, context.now)) for pool in pools
    )
    book = context.rented
    return PlacementFacts(
        job=demand,
        candidates=(*committed_candidates, _no_extra_node(shortfall), *rented_candidates),
        spending=spend_limits(
            serving_workload.team, book.allocations, policy.burst, book.budgets_left.get(serving_workload.team)
        ),
        now=context.now,
    )


def _differences_of(
    waiting_pods: Iterable[UnmanagedPod], pool: RentedPool, state: ServingState, now: datetime
) -> tuple[str, ...]:
    whys = [why_not_schedulable(pod, pool) for pod in waiting_pods]
    if whys and all(whys):
        return (whys[0],)
    if state.not_before and now < state.not_before:
        not_before = f"{state.not_before:%d %b %H:%M:%S} UTC"
        return (f"The node that was rented last stayed unused. No node is rented before {not_before}.",)
    return ()


def _committed_candidate(
    shortfall: ReplicaShortfall,
    pool: Pool,
    together: int,
    waited_seconds: float,
    context: PlacementContext,
    policy: Policy,
) -> CandidatePool:
    """Return a committed pool. None of its nodes is free for a waiting replica, and no job is ahead of the replica."""
    spike, per_replica = shortfall.registered.spike_seconds, shortfall.per_replica
    queue = [WaitingUse(per_replica, spike)] * together
    starts = forecast_starts(pool, queue, context, policy, min_free=per_replica)
    return CandidatePool(
        pool=pool, accelerators_left=0, wait_seconds=min(float(spike), expected_wait(starts[-1], waited_seconds))
    )


def _no_extra_node(shortfall: ReplicaShortfall) -> CandidatePool:
    pool = Pool(
        name=NO_EXTRA_NODE,
        cluster=shortfall.registered.cluster,
        market=Market.COMMITTED,
        instance_type="",
        accelerators_per_node=shortfall.per_replica,
        max_nodes=1,
        launch=LaunchDelay(p50_seconds=0, p90_seconds=0),
        environment=PoolEnvironment(),
    )
    return CandidatePool(pool=pool, accelerators_left=0, wait_seconds=shortfall.registered.spike_seconds)
