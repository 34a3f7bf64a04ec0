"""Rented nodes for replicas of a Deployment that find none: what one is worth, who may stand there, when it goes back.

    replicas wait ── no committed room, nobody shrinks ── worth its rent? ── one node a rental ── replicas come
                                                                                   │ none has stood there for a while
                                                                                   └── it goes back, by itself

Evenkeel does not render these pods: Kubernetes' own scheduler puts them on the node. So a pool is one Deployment's
alone, by a taint that its pods alone tolerate; and a node is given back only when no replica stands on it, or when its
time box is over.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from evenkeel.domain.capacity import instance_types
from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.capacity.pools import LaunchDelay, Market, Pool
from evenkeel.domain.capacity.start_estimates import WaitingUse, expected_starts, expected_wait
from evenkeel.domain.external.policy import ServingWorkload
from evenkeel.domain.external.serving import ReplicaShortfall, holder_id, replica_shortfalls, replicas_of
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.job import PlacementNote
from evenkeel.domain.nodes import KARPENTER_LABEL, KubernetesNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.candidates import (
    PlacementContext,
    committed_pools,
    expected_releases,
    rented_candidate,
    spend_limits,
    why_not_tolerated,
)
from evenkeel.domain.renting.demand import CandidatePool, JobDemand, PlacementAction, PlacementDecision, PlacementFacts
from evenkeel.domain.renting.moving import environment_in
from evenkeel.domain.renting.placement import choose_pool
from evenkeel.domain.renting.policy import RentedPool
from evenkeel.domain.renting.rental import OVER, Rental, RentalAllocation, RentalState, is_usable, joined_nodes
from evenkeel.domain.values import Instant, Value
from evenkeel.domain.waiting import WaitAnswer

NO_EXTRA_NODE = "the end of the spike"
"""What a replica waits for if nothing is done: a row of every table, at no rent."""
_MOST_UNUSED_SECONDS = 86_400
_UNUSED_SECONDS = 900
"""Nothing is rented for so long after a node that no replica came to; twice as long each time."""


class ServingState(Value):
    """What is remembered of a Deployment that nodes are rented for."""

    holder_id: str
    cluster: str
    namespace: str
    name: str
    rentals: int = 0
    """So far."""
    last_note: PlacementNote | None = None
    """What was last decided for its replicas."""
    unused_rentals: int = 0
    """Nodes in a row that no replica came to."""
    not_before: Instant | None = None
    """Nothing is rented before: nodes did not help it."""

    @classmethod
    def of(cls, registered: ServingWorkload) -> "ServingState":
        """Return the memory of one that nothing was rented for yet."""
        return cls(
            holder_id=holder_id(registered),
            cluster=registered.cluster,
            namespace=registered.namespace,
            name=registered.name,
        )

    def after_end(self, *, was_used: bool, now: datetime) -> "ServingState":
        """Return what is remembered once nodes of it go back."""
        if was_used:
            return self.but(unused_rentals=0, not_before=None)
        seconds = min(_MOST_UNUSED_SECONDS, _UNUSED_SECONDS * 2**self.unused_rentals)
        return self.but(unused_rentals=self.unused_rentals + 1, not_before=now + timedelta(seconds=seconds))


# ---------------------------------------------------------------- who stands where


def registration_of(rental: Rental, registered: Iterable[ServingWorkload]) -> ServingWorkload | None:
    """Return the Deployment that a rental is for, as the policy has it now; None where it has none such any more."""
    return next((each for each in registered if holder_id(each) == rental.job_id), None)


def replicas_on(rental: Rental, pods: Iterable[UnmanagedPod]) -> tuple[UnmanagedPod, ...]:
    """Return the replicas on a rental's nodes."""
    if rental.serving_target is None:
        return ()
    mine = replicas_of(rental.serving_target.namespace, rental.serving_target.name, pods)
    return tuple(pod for pod in mine if pod.node_name and pod.node_name in rental.node_names)


def free_replica_slots(rentals: Iterable[Rental], pods: Sequence[UnmanagedPod]) -> int:
    """Return how many more replicas the nodes will take that are rented, or on their way."""
    return sum(
        max(
            0,
            rental.nodes
            * _replicas_per_node(rental.offer.accelerators_per_node, rental.serving_target.accelerators_per_replica)
            - len(replicas_on(rental, pods)),
        )
        for rental in rentals
        if rental.serving_target is not None and rental.state.serves
    )


def _replicas_per_node(accelerators: int, per_replica: int) -> int:
    return max(1, accelerators // max(1, per_replica))


def why_not_schedulable(pod: UnmanagedPod, pool: RentedPool) -> str:
    """Say why a replica would not be put on a node of a pool; empty where it would, as far as the policy knows it."""
    for why in why_not_tolerated(pool, pod.tolerations):
        return why
    known = {
        KARPENTER_LABEL: pool.name,
        "karpenter.sh/capacity-type": str(pool.market),
        "node.kubernetes.io/instance-type": pool.instance_type,
        "kubernetes.io/arch": environment_in(pool, {}, instance_types.shipped()).architecture,
        "kubernetes.io/os": "linux",
        **pool.labels,
    }
    unknown = [f"{key}={value}" for key, value in sorted(pod.selector.items()) if known.get(key) != value]
    if unknown:
        return f"Its pods select {unknown[0]}, and the policy does not give nodes of {pool.name} that label."
    return ""


# ---------------------------------------------------------------- what is rented


def decide_serving_rentals(
    short: ReplicaShortfall, waiting: int, seen: PlacementContext, memory: ServingState, policy: Policy, *, most: int
) -> tuple[PlacementDecision, ...]:
    """Decide what is rented for replicas that find no node: a node each, until all have one or it is not worth it.

    Args:
        short: Whose replicas they are.
        waiting: How many of them neither committed nor rented nodes will take.
        seen: What the pass saw, its queue left out: replicas take what is free before any job could.
        memory: What is remembered of it.
        policy: Prices and caps.
        most: Nodes that may be rented now.

    Returns:
        For each node that is to be rented why; or one answer that says why none is.
    """
    patience = timedelta(seconds=short.registered.patience_seconds)
    waiting_pods = [pod for pod in short.waiting if pod.created_at is None or seen.now - pod.created_at >= patience]
    left = min(waiting, len(waiting_pods))
    decided: list[PlacementDecision] = []
    while left > 0 and len(decided) < most:
        answer = choose_pool(_placement_facts(short, waiting_pods, left, seen, memory, policy))
        if answer.action is not PlacementAction.RENT:
            return tuple(decided) or (answer,)
        decided.append(answer)
        left -= _replicas_per_node(pool_by_name(answer.pool, policy).accelerators_per_node, short.per_replica)
        seen = seen.but(
            holds=(*seen.holds, allocation_of(answer, policy)),
            budgets_left=budgets_after_rentals(seen.budgets_left, (answer,)),
        )
    return tuple(decided)


def budgets_after_rentals(left: Mapping[str, int], rented: Iterable[PlacementDecision]) -> dict[str, int]:
    """Return what is left of teams' budgets once these nodes are rented."""
    found = dict(left)
    for each in rented:
        team = each.facts.job.team
        if team in found and each.row:
            found[team] -= each.row.rent_parts
    return found


def allocation_of(decided: PlacementDecision, policy: Policy) -> RentalAllocation:
    """Return what a node that is to be rented will take of caps and limits."""
    pool = pool_by_name(decided.pool, policy)
    return RentalAllocation(
        job_id=decided.job_id,
        number=0,
        team=decided.facts.job.team,
        cluster=pool.cluster,
        pool=pool.name,
        nodes=1,
        accelerators_per_node=pool.accelerators_per_node,
        micros_per_hour=pool.micros_per_node_hour,
    )


def pool_by_name(name: str, policy: Policy) -> RentedPool:
    """Return the pool of a name that a decision was made of."""
    return next(pool for pool in policy.burst.pools if pool.name == name)


def _placement_facts(
    short: ReplicaShortfall,
    waiting_pods: Sequence[UnmanagedPod],
    left: int,
    seen: PlacementContext,
    memory: ServingState,
    policy: Policy,
) -> PlacementFacts:
    """Return what the choice for one node rests on, and for the replicas that would share it.

    They lose nothing when their node is taken back but the time until the next: as work that saves all the time.
    """
    registered, per_replica = short.registered, short.per_replica
    pools = policy.pools_for(registered)
    fewest = min((_replicas_per_node(pool.accelerators_per_node, per_replica) for pool in pools), default=1)
    together = min(left, fewest)
    since = min((pod.created_at for pod in waiting_pods if pod.created_at), default=seen.now)
    waiting = JobDemand(
        job_id=holder_id(registered),
        team=registered.team,
        job_class=registered.priority_class,
        nodes=1,
        accelerators_per_node=per_replica,
        micros_per_hour_of_delay=together * policy.burst.delay_of(registered.priority_class),
        run_seconds=registered.spike_seconds,
        p90_run_seconds=2 * registered.spike_seconds,
        checkpoint_seconds=0,
        save_seconds=0,
        submitted_at=since,
    )
    committed = (
        _committed_candidate(short, pool, together, (seen.now - since).total_seconds(), seen, policy)
        for pool in committed_pools(seen.capacities, policy)
        if pool.cluster == registered.cluster
    )
    rented = (rented_candidate(pool, seen, _differences(waiting_pods, pool, memory, seen.now)) for pool in pools)
    return PlacementFacts(
        job=waiting,
        candidates=(*committed, _no_extra_node(short), *rented),
        spending=spend_limits(registered.team, seen.holds, policy.burst, seen.budgets_left.get(registered.team)),
        now=seen.now,
    )


def _differences(
    waiting_pods: Iterable[UnmanagedPod], pool: RentedPool, memory: ServingState, now: datetime
) -> tuple[str, ...]:
    whys = [why_not_schedulable(pod, pool) for pod in waiting_pods]
    if whys and all(whys):
        return (whys[0],)
    if memory.not_before and now < memory.not_before:
        return (
            f"No replica used the node rented last. No node is rented before {memory.not_before:%d %b %H:%M:%S} UTC.",
        )
    return ()


def _committed_candidate(
    short: ReplicaShortfall, pool: Pool, together: int, waited_seconds: float, seen: PlacementContext, policy: Policy
) -> CandidatePool:
    """Return a pool that is paid for. Nothing of it is free for a replica that waits; nobody is ahead of it."""
    capacities, held = expected_releases(pool, seen, policy)
    free = sum(capacity.free for capacity in capacities if capacity.is_open and capacity.free >= short.per_replica)
    spike = short.registered.spike_seconds
    starts = expected_starts(free, held, [WaitingUse(short.per_replica, spike)] * together)
    return CandidatePool(
        pool=pool, accelerators_left=0, wait_seconds=min(float(spike), expected_wait(starts[-1], waited_seconds))
    )


def _no_extra_node(short: ReplicaShortfall) -> CandidatePool:
    pool = Pool(
        name=NO_EXTRA_NODE,
        cluster=short.registered.cluster,
        market=Market.COMMITTED,
        instance_type="",
        accelerators_per_node=short.per_replica,
        most_nodes=1,
        launch=LaunchDelay(p50_seconds=0, p90_seconds=0),
        place=PoolEnvironment(),
    )
    return CandidatePool(pool=pool, accelerators_left=0, wait_seconds=short.registered.spike_seconds)


# ---------------------------------------------------------------- while it is rented


def why_node_not_needed(
    rental: Rental,
    others: Iterable[Rental],
    registered: Iterable[ServingWorkload],
    pods: Sequence[UnmanagedPod],
    nodes: Iterable[KubernetesNode],
) -> str:
    """Say why nobody waits for a node any more that is on its way; empty where replicas do, or stand on it already.

    Karpenter launches a node for whichever pod it sees first: a replica may stand on it before it is handed over.

    Args:
        rental: It is OPENING.
        others: Rentals for the same Deployment. Whoever knows of none says so later than it could.
        registered: The Deployments in the policy.
        pods: Those without a node, and those on the nodes of the rental's pool.
        nodes: Of the cluster.
    """
    assert rental.serving_target is not None  # or it would be a job's
    mine = registration_of(rental, registered)
    beside = [each for each in others if each.name != rental.name]
    before = [each for each in beside if each.state is RentalState.READY or each.number < rental.number]
    landed = len(replicas_landed(rental, beside, pods, nodes))
    alike = [each for each in before if not each.node_names and each.offer.pool == rental.offer.pool]
    if landed > free_replica_slots(alike, pods):
        return ""  # nobody before it could be handed the node on which they stand
    if mine is None or rental.offer.pool not in mine.rents_from:
        return f"The policy no longer rents from {rental.offer.pool} for {rental.serving_target.label}."
    waiting = sum(len(each.waiting) for each in current_shortfall(mine, pods))
    if waiting + landed <= free_replica_slots(before, pods):
        return f"The replicas of {rental.serving_target.label} have nodes, or are no longer needed."
    return ""


def replicas_landed(
    rental: Rental, others: Iterable[Rental], pods: Iterable[UnmanagedPod], nodes: Iterable[KubernetesNode]
) -> tuple[UnmanagedPod, ...]:
    """Return the replicas on nodes of a rental's pool that no rental has yet: one that is OPENING will have them."""
    assert rental.serving_target is not None  # or it would be a job's
    taken = {*rental.other_rentals_nodes, *(name for each in others for name in each.node_names)}
    came = {node.name for node in joined_nodes(rental, nodes, taken)}
    mine = replicas_of(rental.serving_target.namespace, rental.serving_target.name, pods)
    return tuple(pod for pod in mine if pod.node_name in came)


def current_shortfall(registered: ServingWorkload, pods: Sequence[UnmanagedPod]) -> tuple[ReplicaShortfall, ...]:
    """Return one Deployment if replicas of it wait; nothing if none do."""
    return replica_shortfalls((registered,), {registered.cluster: pods})


def with_observed_replicas(rental: Rental, pods: Iterable[UnmanagedPod], now: datetime) -> Rental:
    """Return a node's rental with what is seen of replicas on it."""
    if replicas_on(rental, pods):
        return rental if rental.was_used and rental.idle_since is None else rental.but(was_used=True, idle_since=None)
    return rental if rental.idle_since else rental.but(idle_since=now)


def evaluate_serving_rental_over(
    rental: Rental, pods: Iterable[UnmanagedPod], nodes: Iterable[KubernetesNode], quiet_seconds: int, now: datetime
) -> WaitAnswer | None:
    """Answer the wait for the end of a node's rental; None while a replica stands there, or one may soon.

    Args:
        rental: It is READY, and as it is seen now.
        pods: All of the cluster.
        nodes: Of the cluster.
        quiet_seconds: How long a node is kept on which none stands.
        now: The time.
    """
    assert rental.serving_target is not None  # or it would be a job's
    label = rental.serving_target.label
    if rental.due_at is not None and now >= rental.due_at:
        return WaitAnswer(outcome=OVER, reason=f"The rental's time limit is {rental.due_at:%d %b %H:%M} UTC.")
    there = {node.name: node for node in nodes if node.cluster == rental.offer.cluster}
    gone = [name for name in rental.node_names if name not in there]
    if gone:
        return WaitAnswer(outcome=OVER, reason=f"{gone[0]} was reclaimed.", facts={"lost": gone})
    if replicas_on(rental, pods):
        return None
    lost = [name for name in rental.node_names if not is_usable(there[name], rental.offer)]
    if lost:
        return WaitAnswer(outcome=OVER, reason=f"{lost[0]} is out of service.", facts={"lost": lost})
    idle = (now - (rental.idle_since or now)).total_seconds()
    if idle < quiet_seconds:
        return None
    none = (
        f"No replica of {label} has run on the node for"
        if rental.was_used
        else f"No replica of {label} used the node within"
    )
    return WaitAnswer(outcome=OVER, reason=f"{none} {round(idle)} seconds.")
