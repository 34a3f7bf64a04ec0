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
from evenkeel.domain.capacity.compatibility import Place
from evenkeel.domain.capacity.pools import LaunchDelay, Market, Pool
from evenkeel.domain.capacity.start_estimates import Asked, expected_starts, expected_wait
from evenkeel.domain.external.policy import ServingWorkload
from evenkeel.domain.external.serving import Short, holder_id, replicas_of, short_of
from evenkeel.domain.external.workloads import ForeignPod
from evenkeel.domain.jobs.job import PlacementNote
from evenkeel.domain.nodes import KARPENTER_LABEL, KubernetesNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.candidates import (
    Conditions,
    committed_pools,
    machines_of,
    rented_chance,
    spending_of,
    why_not_tolerated,
)
from evenkeel.domain.renting.demand import Chance, Placement, PlacementDecision, PlacementFacts, Waiting
from evenkeel.domain.renting.moving import place_in
from evenkeel.domain.renting.placement import place
from evenkeel.domain.renting.policy import RentedPool
from evenkeel.domain.renting.rental import OVER, Rental, RentalHold, RentalState, is_usable, nodes_that_came
from evenkeel.domain.values import Instant, Value
from evenkeel.domain.waiting import Answer

DOING_WITHOUT = "the end of the spike"
"""What a replica waits for if nothing is done: a row of every table, at no rent."""
_MOST_UNUSED_SECONDS = 86_400
_UNUSED_SECONDS = 900
"""Nothing is rented for so long after a node that no replica came to; twice as long each time."""


class ServingMemory(Value):
    """What is remembered of a Deployment that nodes are rented for."""

    holder_id: str
    cluster: str
    namespace: str
    name: str
    rentals: int = 0
    """So far."""
    said: PlacementNote | None = None
    """What was last decided for its replicas."""
    unused: int = 0
    """Nodes in a row that no replica came to."""
    not_before: Instant | None = None
    """Nothing is rented before: nodes did not help it."""

    @classmethod
    def of(cls, registered: ServingWorkload) -> "ServingMemory":
        """Return the memory of one that nothing was rented for yet."""
        return cls(
            holder_id=holder_id(registered),
            cluster=registered.cluster,
            namespace=registered.namespace,
            name=registered.name,
        )

    def after_end(self, *, was_used: bool, now: datetime) -> "ServingMemory":
        """Return what is remembered once nodes of it go back."""
        if was_used:
            return self.but(unused=0, not_before=None)
        seconds = min(_MOST_UNUSED_SECONDS, _UNUSED_SECONDS * 2**self.unused)
        return self.but(unused=self.unused + 1, not_before=now + timedelta(seconds=seconds))


# ---------------------------------------------------------------- who stands where


def registered_as(rental: Rental, registered: Iterable[ServingWorkload]) -> ServingWorkload | None:
    """Return the Deployment that a rental is for, as the policy has it now; None where it has none such any more."""
    return next((each for each in registered if holder_id(each) == rental.job_id), None)


def standing_on(rental: Rental, pods: Iterable[ForeignPod]) -> tuple[ForeignPod, ...]:
    """Return the replicas on a rental's nodes."""
    if rental.serves is None:
        return ()
    mine = replicas_of(rental.serves.namespace, rental.serves.name, pods)
    return tuple(pod for pod in mine if pod.node_name and pod.node_name in rental.node_names)


def room_left(rentals: Iterable[Rental], pods: Sequence[ForeignPod]) -> int:
    """Return how many more replicas the nodes will take that are rented, or on their way."""
    return sum(
        max(
            0,
            rental.nodes * _share(rental.offer.accelerators_per_node, rental.serves.accelerators_per_replica)
            - len(standing_on(rental, pods)),
        )
        for rental in rentals
        if rental.serves is not None and rental.state.serves
    )


def _share(accelerators: int, per_replica: int) -> int:
    return max(1, accelerators // max(1, per_replica))


def why_not_on(pod: ForeignPod, pool: RentedPool) -> str:
    """Say why a replica would not be put on a node of a pool; empty where it would, as far as the policy knows it."""
    for why in why_not_tolerated(pool, pod.tolerations):
        return why
    known = {
        KARPENTER_LABEL: pool.name,
        "karpenter.sh/capacity-type": str(pool.market),
        "node.kubernetes.io/instance-type": pool.instance_type,
        "kubernetes.io/arch": place_in(pool, {}, instance_types.shipped()).architecture,
        "kubernetes.io/os": "linux",
        **pool.labels,
    }
    unknown = [f"{key}={value}" for key, value in sorted(pod.selector.items()) if known.get(key) != value]
    if unknown:
        return f"Its pods select {unknown[0]}, and the policy does not say that nodes of {pool.name} bear it."
    return ""


# ---------------------------------------------------------------- what is rented


def nodes_for(
    short: Short, waiting: int, seen: Conditions, memory: ServingMemory, policy: Policy, *, most: int
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
    patient = [pod for pod in short.waiting if pod.created_at is None or seen.now - pod.created_at >= patience]
    left = min(waiting, len(patient))
    decided: list[PlacementDecision] = []
    while left > 0 and len(decided) < most:
        answer = place(_facts(short, patient, left, seen, memory, policy))
        if answer.action is not Placement.RENT:
            return tuple(decided) or (answer,)
        decided.append(answer)
        left -= _share(pool_named(answer.pool, policy).accelerators_per_node, short.per_replica)
        seen = seen.but(
            holds=(*seen.holds, hold_of(answer, policy)), budgets_left=budgets_after(seen.budgets_left, (answer,))
        )
    return tuple(decided)


def budgets_after(left: Mapping[str, int], rented: Iterable[PlacementDecision]) -> dict[str, int]:
    """Return what is left of teams' budgets once these nodes are rented."""
    found = dict(left)
    for each in rented:
        team = each.facts.job.team
        if team in found and each.row:
            found[team] -= each.row.rent_parts
    return found


def hold_of(decided: PlacementDecision, policy: Policy) -> RentalHold:
    """Return what a node that is to be rented will take of caps and limits."""
    pool = pool_named(decided.pool, policy)
    return RentalHold(
        job_id=decided.job_id,
        number=0,
        team=decided.facts.job.team,
        cluster=pool.cluster,
        pool=pool.name,
        nodes=1,
        accelerators_per_node=pool.accelerators_per_node,
        micros_per_hour=pool.micros_per_node_hour,
    )


def pool_named(name: str, policy: Policy) -> RentedPool:
    """Return the pool of a name that a decision was made of."""
    return next(pool for pool in policy.burst.pools if pool.name == name)


def _facts(
    short: Short,
    patient: Sequence[ForeignPod],
    left: int,
    seen: Conditions,
    memory: ServingMemory,
    policy: Policy,
) -> PlacementFacts:
    """Return what the choice for one node rests on, and for the replicas that would share it.

    They lose nothing when their node is taken back but the time until the next: as work that saves all the time.
    """
    registered, per_replica = short.registered, short.per_replica
    pools = policy.pools_for(registered)
    fewest = min((_share(pool.accelerators_per_node, per_replica) for pool in pools), default=1)
    together = min(left, fewest)
    since = min((pod.created_at for pod in patient if pod.created_at), default=seen.now)
    waiting = Waiting(
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
        _committed(short, pool, together, (seen.now - since).total_seconds(), seen, policy)
        for pool in committed_pools(seen.rooms, policy)
        if pool.cluster == registered.cluster
    )
    rented = (rented_chance(pool, seen, _differences(patient, pool, memory, seen.now)) for pool in pools)
    return PlacementFacts(
        job=waiting,
        chances=(*committed, _doing_without(short), *rented),
        spending=spending_of(registered.team, seen.holds, policy.burst, seen.budgets_left.get(registered.team)),
        now=seen.now,
    )


def _differences(
    patient: Iterable[ForeignPod], pool: RentedPool, memory: ServingMemory, now: datetime
) -> tuple[str, ...]:
    whys = [why_not_on(pod, pool) for pod in patient]
    if whys and all(whys):
        return (whys[0],)
    if memory.not_before and now < memory.not_before:
        return (
            f"No replica came to the node that was rented last; none is before {memory.not_before:%d %b %H:%M:%S} UTC.",
        )
    return ()


def _committed(
    short: Short, pool: Pool, together: int, waited_seconds: float, seen: Conditions, policy: Policy
) -> Chance:
    """Return a pool that is paid for. Nothing of it is free for a replica that waits; nobody is ahead of it."""
    rooms, held = machines_of(pool, seen, policy)
    free = sum(room.free for room in rooms if room.is_open and room.free >= short.per_replica)
    spike = short.registered.spike_seconds
    starts = expected_starts(free, held, [Asked(short.per_replica, spike)] * together)
    return Chance(
        pool=pool, accelerators_left=0, wait_seconds=min(float(spike), expected_wait(starts[-1], waited_seconds))
    )


def _doing_without(short: Short) -> Chance:
    pool = Pool(
        name=DOING_WITHOUT,
        cluster=short.registered.cluster,
        market=Market.COMMITTED,
        instance_type="",
        accelerators_per_node=short.per_replica,
        most_nodes=1,
        launch=LaunchDelay(p50_seconds=0, p90_seconds=0),
        place=Place(),
    )
    return Chance(pool=pool, accelerators_left=0, wait_seconds=short.registered.spike_seconds)


# ---------------------------------------------------------------- while it is rented


def why_unwanted_for(
    rental: Rental,
    others: Iterable[Rental],
    registered: Iterable[ServingWorkload],
    pods: Sequence[ForeignPod],
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
    assert rental.serves is not None  # or it would be a job's
    mine = registered_as(rental, registered)
    beside = [each for each in others if each.name != rental.name]
    before = [each for each in beside if each.state is RentalState.READY or each.number < rental.number]
    landed = len(landed_on(rental, beside, pods, nodes))
    alike = [each for each in before if not each.node_names and each.offer.pool == rental.offer.pool]
    if landed > room_left(alike, pods):
        return ""  # nobody before it could be handed the node on which they stand
    if mine is None or rental.offer.pool not in mine.rents_from:
        return f"The policy rents nothing from {rental.offer.pool} for {rental.serves.label} any more."
    waiting = sum(len(each.waiting) for each in short_now(mine, pods))
    if waiting + landed <= room_left(before, pods):
        return f"The replicas of {rental.serves.label} have found nodes, or are not wanted any more."
    return ""


def landed_on(
    rental: Rental, others: Iterable[Rental], pods: Iterable[ForeignPod], nodes: Iterable[KubernetesNode]
) -> tuple[ForeignPod, ...]:
    """Return the replicas on nodes of a rental's pool that no rental has yet: one that is OPENING will have them."""
    assert rental.serves is not None  # or it would be a job's
    taken = {*rental.not_its, *(name for each in others for name in each.node_names)}
    came = {node.name for node in nodes_that_came(rental, nodes, taken)}
    mine = replicas_of(rental.serves.namespace, rental.serves.name, pods)
    return tuple(pod for pod in mine if pod.node_name in came)


def short_now(registered: ServingWorkload, pods: Sequence[ForeignPod]) -> tuple[Short, ...]:
    """Return one Deployment if replicas of it wait; nothing if none do."""
    return short_of((registered,), {registered.cluster: pods})


def as_seen(rental: Rental, pods: Iterable[ForeignPod], now: datetime) -> Rental:
    """Return a node's rental with what is seen of replicas on it."""
    if standing_on(rental, pods):
        return rental if rental.was_used and rental.idle_since is None else rental.but(was_used=True, idle_since=None)
    return rental if rental.idle_since else rental.but(idle_since=now)


def empty_answer(
    rental: Rental, pods: Iterable[ForeignPod], nodes: Iterable[KubernetesNode], quiet_seconds: int, now: datetime
) -> Answer | None:
    """Answer the wait for the end of a node's rental; None while a replica stands there, or one may soon.

    Args:
        rental: It is READY, and as it is seen now.
        pods: All of the cluster.
        nodes: Of the cluster.
        quiet_seconds: How long a node is kept on which none stands.
        now: The time.
    """
    assert rental.serves is not None  # or it would be a job's
    label = rental.serves.label
    if rental.due_at is not None and now >= rental.due_at:
        return Answer(outcome=OVER, reason=f"Its time is over at {rental.due_at:%d %b %H:%M} UTC.")
    there = {node.name: node for node in nodes if node.cluster == rental.offer.cluster}
    gone = [name for name in rental.node_names if name not in there]
    if gone:
        return Answer(outcome=OVER, reason=f"{gone[0]} was taken back.", facts={"lost": gone})
    if standing_on(rental, pods):
        return None
    lost = [name for name in rental.node_names if not is_usable(there[name], rental.offer)]
    if lost:
        return Answer(outcome=OVER, reason=f"{lost[0]} is out of service.", facts={"lost": lost})
    idle = (now - (rental.idle_since or now)).total_seconds()
    if idle < quiet_seconds:
        return None
    none = f"No replica of {label} has stood there for" if rental.was_used else f"No replica of {label} came there in"
    return Answer(outcome=OVER, reason=f"{none} {round(idle)} seconds.")
