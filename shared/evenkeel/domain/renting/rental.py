"""Renting nodes for one job: whose they are, what they cost, when they are there, and when they go back.

    wished ── OPENING ── nodes come ── READY ── the job runs on them ── ENDING ── all gone ── ENDED
                 │ refused, late                                           ▲
                 └─ the next offer, or none ───────────────────────────────┘

A rental is written in the commit that orders all admissions, so that caps hold under concurrent passes. Its NodePools
are Evenkeel's alone: their limit is what is rented from them, and their machines are a rental's or nobody's.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from pydantic import Field

from evenkeel.domain.admission.decide import Room
from evenkeel.domain.capacity.compatibility import Place
from evenkeel.domain.capacity.pool_choices import Toleration, all_tolerated
from evenkeel.domain.capacity.pools import LaunchDelay, Market, Pool
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.capacity.start_estimates import Asked, Held, expected_starts, expected_wait, left_of
from evenkeel.domain.economics import money
from evenkeel.domain.jobs.job import Attempt, Charge, Job, JobState
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.policy import BurstPolicy, Policy, RentedPool
from evenkeel.domain.renting.migration import Guest, Home, Loan, StayFacts
from evenkeel.domain.renting.moving import why_not_there
from evenkeel.domain.renting.placement import Chance, PlacementFacts, Spending, Terms, Waiting, shadow_price
from evenkeel.domain.values import Instant, Sentence, Value
from evenkeel.domain.waiting import Answer

NOBODYS = "-"
"""In the place of a job: a machine of a rented pool that no job may have."""
_LONGEST_WAIT = 30 * 86_400.0
"""Seconds. A forecast beyond a month says no more than that."""

NODES_READY, REFUSED, NOT_WANTED, OVER = "NODES_READY", "REFUSED", "NOT_WANTED", "OVER"


class RentalState(StrEnum):
    """Where a rental stands."""

    OPENING = "OPENING"
    """Its nodes are asked for, and not all there."""
    READY = "READY"
    """Its nodes are there, and its job's alone."""
    ENDING = "ENDING"
    """No pod is started on it any more; its nodes are given back."""
    ENDED = "ENDED"
    """Nothing of it is left, and its bill is written."""

    @property
    def serves(self) -> bool:
        """Whether the job may yet run on it."""
        return self in (RentalState.OPENING, RentalState.READY)


class Offer(Value):
    """One pool that was asked for a rental's nodes."""

    pool: str
    cluster: str
    market: Market
    instance_type: str
    zone: str
    accelerators_per_node: int
    micros_per_node_hour: int
    least_billed_seconds: int
    taints: tuple[str, ...] = ()
    """That all its nodes bear: they keep nobody off for whom the pool was chosen."""
    opened_at: Instant
    """When its limit was about to be raised: nothing is billed before."""
    came: tuple[str, ...] = ()
    """Names of all nodes that were seen of it."""
    closed_at: Instant | None = None
    """When the last of them was seen to be gone."""
    refused: str = ""
    """Why it was given up; empty where it was not."""

    @classmethod
    def of(cls, pool: RentedPool, now: datetime) -> "Offer":
        """Return a pool as it is asked now."""
        return cls(
            pool=pool.name,
            cluster=pool.cluster,
            market=pool.market,
            instance_type=pool.instance_type,
            zone=pool.zone,
            accelerators_per_node=pool.accelerators_per_node,
            micros_per_node_hour=pool.micros_per_node_hour,
            least_billed_seconds=pool.least_billed_seconds,
            taints=pool.taints,
            opened_at=now,
        )


class Served(Value):
    """The Deployment that a node is rented for: nobody of ours renders it, and its pods find the node themselves."""

    namespace: str
    name: str
    accelerators_per_replica: int = Field(ge=1)

    @property
    def label(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class Rental(Value):
    """Nodes that are rented for one job; or one node, for replicas of a Deployment."""

    job_id: str
    """Whose it is: a job's id, or `srv-…` of a Deployment."""
    number: int
    """Counts the job's rentals; the first is 1."""
    serves: Served | None = None
    """None where it is a job's."""
    team: str
    namespace: str
    """Of its capacity pods: the job's own."""
    state: RentalState
    reason: Sentence
    """One sentence."""
    nodes: int
    offers: tuple[Offer, ...]
    """The last is the one in force."""
    node_names: tuple[str, ...] = ()
    """Once they are handed over."""
    begun_at: Instant
    ready_by: Instant
    """When the offer in force is given up."""
    handed_over_at: Instant | None = None
    ended_at: Instant | None = None
    run: int = 1
    """Executions of its workflow."""
    decision_id: str
    incident_id: str = ""
    """Of a loan: the recovery whose machines it stands in for."""
    due_at: Instant | None = None
    """When it goes back, whatever stands there: of a loan, or where a Deployment's node has a time box."""
    not_its: tuple[str, ...] = ()
    """Nodes of its pool that are other rentals', as far as its own steps saw: no sign that its own came."""
    was_used: bool = False
    """Of a Deployment's: whether a replica ever stood there."""
    idle_since: Instant | None = None
    """Of a Deployment's: since when no replica has stood there."""
    expected_parts: int = 0
    """What its placement expected it to cost, in parts of `economics.money`: so much of a budget is kept for it."""
    cost_parts: int = 0
    """On its end: what it cost, in parts of `economics.money`."""
    shown_cost: str = ""

    @property
    def name(self) -> str:
        """`<jobId>-b<n>`: of its capacity pods, and of its workflow's first execution."""
        return f"{self.job_id}-b{self.number}"

    @property
    def execution_name(self) -> str:
        """Of the workflow's execution in force."""
        return self.name if self.run == 1 else f"{self.name}-r{self.run}"

    @property
    def pods_name(self) -> str:
        """Of the capacity pods of the offer in force: those of the one before may not be gone yet."""
        return self.name if len(self.offers) == 1 else f"{self.name}-{len(self.offers)}"

    @property
    def offer(self) -> Offer:
        """The one in force."""
        return self.offers[-1]

    def with_offer(self, **changes: object) -> "Rental":
        """Return it with the offer in force changed."""
        return self.but(offers=(*self.offers[:-1], self.offer.but(**changes)))

    def with_came(self, names: Iterable[str]) -> "Rental":
        """Return it with nodes that were seen of the offer in force."""
        came = tuple(sorted({*self.offer.came, *names}))
        return self if came == self.offer.came else self.with_offer(came=came)

    def bills(self) -> tuple[money.Rental, ...]:
        """Return what is to be paid: for each offer its nodes, from before they were asked for until they were gone."""
        return tuple(
            money.Rental(
                pool=offer.pool,
                job_id=self.job_id,
                team=self.team,
                micros_per_node_hour=offer.micros_per_node_hour,
                nodes=len(offer.came),
                least_billed_seconds=offer.least_billed_seconds,
                started_at=offer.opened_at,
                ended_at=offer.closed_at,
            )
            for offer in self.offers
            if offer.came
        )

    def ended(self, reason: str, now: datetime) -> "Rental":
        """Return it as it is once nothing of it is left: its bill is final."""
        closed = self.with_offer(closed_at=now)
        parts = money.bill(closed.bills(), now).parts
        return closed.but(
            state=RentalState.ENDED, reason=reason, ended_at=now, cost_parts=parts, shown_cost=money.said(parts)
        )


class RentalHold(Value):
    """What a rental takes of caps and limits until it has ended: beside the charges, in the tree's partition."""

    job_id: str
    number: int
    team: str
    cluster: str
    pool: str
    nodes: int
    accelerators_per_node: int
    micros_per_hour: int

    @classmethod
    def of(cls, rental: Rental) -> "RentalHold":
        """Return what a rental takes."""
        offer = rental.offer
        return cls(
            job_id=rental.job_id,
            number=rental.number,
            team=rental.team,
            cluster=offer.cluster,
            pool=offer.pool,
            nodes=rental.nodes,
            accelerators_per_node=offer.accelerators_per_node,
            micros_per_hour=offer.micros_per_node_hour * rental.nodes,
        )


# ---------------------------------------------------------------- rooms


def kept_rooms(rooms: Iterable[Room], rentals: Iterable[Rental], pools: Iterable[Pool]) -> tuple[Room, ...]:
    """Return the machines with those of rented pools kept: for the job they were handed over to, or for nobody.

    Capacity pods stand on a handed-over node until its job's own pods exist, so what they use counts as free for it.
    """
    known = tuple(rentals)
    rented = {(pool.cluster, pool.name) for pool in pools if pool.market.is_rented}
    rented |= {(offer.cluster, offer.pool) for rental in known for offer in rental.offers}
    owners = {
        (rental.offer.cluster, name): rental.job_id
        for rental in known
        if rental.state is RentalState.READY
        for name in rental.node_names
    }
    return tuple(
        room.but(kept_for=owner, free=room.accelerators if owner != NOBODYS else room.free)
        if (room.cluster, room.pool) in rented and (owner := owners.get((room.cluster, room.node_name), NOBODYS))
        else room
        for room in rooms
    )


def committed_pools(rooms: Iterable[Room], policy: Policy) -> tuple[Pool, ...]:
    """Return what is paid for in any case, as pools: the machines that a pass sees and that nobody rents."""
    kinds: dict[tuple[str, str, str], list[Room]] = {}
    for room in rooms:
        if not room.kept_for:
            kinds.setdefault((room.cluster, room.pool, room.instance_type), []).append(room)
    seconds = policy.economy.expected_launch_seconds
    return tuple(
        Pool(
            name=pool,
            cluster=cluster,
            market=Market.COMMITTED,
            instance_type=instance_type,
            accelerators_per_node=max(room.accelerators for room in found),
            most_nodes=len(found),
            launch=LaunchDelay(p50_seconds=seconds, p90_seconds=seconds),
            reservation=policy.scheduling.reservation_of(cluster, pool),
            place=Place(),
        )
        for (cluster, pool, instance_type), found in sorted(kinds.items())
    )


# ---------------------------------------------------------------- facts


class Conditions(Value):
    """All that the placements of one pass have in common."""

    rooms: tuple[Room, ...]
    charges: tuple[Charge, ...]
    classes: dict[str, str]
    """Priority class of each job that holds a charge."""
    queue: tuple[Job, ...]
    """Jobs that wait and have no rental, in the order of their turn."""
    holds: tuple[RentalHold, ...]
    shortages: Shortages = Shortages()
    budgets_left: dict[str, int] = {}
    """By team that has a budget in dollars: what is left of it, in parts of `economics.money`."""
    now: Instant


def placement_facts(job: Job, seen: Conditions, policy: Policy, done_seconds: float = 0) -> PlacementFacts:
    """Return what the place of one waiting job rests on.

    Args:
        job: It waits, and the pass cannot start it on anything that is there.
        seen: What the pass saw.
        policy: Prices, caps, estimates.
        done_seconds: How long its earlier attempts ran, as far as their work is kept.
    """
    burst, spec = policy.burst, job.spec
    keeps = bool(spec.checkpoint_uri)
    estimate = burst.run_seconds_of(spec.priority_class)
    done = done_seconds if keeps else 0.0
    run = left_of(estimate, done) if done else float(estimate)
    waiting = Waiting(
        job_id=job.job_id,
        team=spec.team,
        job_class=spec.priority_class,
        nodes=spec.nodes,
        accelerators_per_node=spec.accelerators_per_node,
        micros_per_hour_of_delay=burst.delay_of(spec.priority_class),
        run_seconds=run,
        p90_run_seconds=2 * run,
        checkpoint_seconds=policy.economy.expected_checkpoint_seconds if keeps else None,
        save_seconds=spec.grace_seconds,
        restart_seconds=policy.jobs.expected_resume_seconds,
        submitted_at=job.submitted_at,
        deadline_at=spec.deadline_at,
        done_seconds=done,
        is_catching_up=job.is_catching_up,
        rent_worth_parts=plan.rent_worth_parts if (plan := job.live_plan()) else None,
    )
    committed = (_committed(job, pool, seen, policy) for pool in committed_pools(seen.rooms, policy))
    rented = (_rented(job, pool, seen, policy) for pool in policy.pools_for_jobs)
    return PlacementFacts(
        job=waiting,
        chances=(*committed, *rented),
        spending=spending_of(spec.team, seen.holds, burst, seen.budgets_left.get(spec.team)),
        terms=Terms(spot_checkpoint_share=burst.spot_checkpoint_share),
        now=seen.now,
    )


def spending_of(
    team: str, holds: Iterable[RentalHold], burst: BurstPolicy, budget_left_parts: int | None = None
) -> Spending:
    """Return what is rented now, and what may be."""
    listed = tuple(holds)
    return Spending(
        team_micros_per_hour=sum(hold.micros_per_hour for hold in listed if hold.team == team),
        fleet_micros_per_hour=sum(hold.micros_per_hour for hold in listed),
        team_cap_micros_per_hour=burst.team_cap_of(team),
        fleet_cap_micros_per_hour=burst.fleet_cap_micros_per_hour,
        team_budget_left_parts=budget_left_parts,
    )


def _rented(job: Job, pool: RentedPool, seen: Conditions, policy: Policy) -> Chance:
    return rented_chance(
        pool, seen, (*why_not_tolerated(pool, job.spec.tolerations), *why_not_there(job, pool, policy.storage))
    )


def why_not_tolerated(pool: RentedPool, tolerations: Iterable[Toleration]) -> tuple[str, ...]:
    """Say which taint of a pool keeps pods off; nothing where none does."""
    borne = tuple(tolerations)
    return tuple(f"Its pods do not tolerate {taint}." for taint in pool.taints if not all_tolerated([taint], borne))[:1]


def rented_chance(pool: Pool, seen: Conditions, differences: tuple[str, ...]) -> Chance:
    """Return a pool to rent from, as far as its limit and what was refused lately leave it."""
    held = sum(hold.nodes for hold in seen.holds if (hold.cluster, hold.pool) == (pool.cluster, pool.name))
    return Chance(
        pool=pool,
        accelerators_left=max(0, pool.most_nodes - held) * pool.accelerators_per_node,
        barred_until=seen.shortages.barred_until(pool.instance_type, pool.zone, pool.market, seen.now),
        differences=differences,
    )


def _committed(job: Job, pool: Pool, seen: Conditions, policy: Policy) -> Chance:
    """Return a pool that is paid for. The pass could not start the job there, so nothing of it is free for it now."""
    ours, held = machines_of(pool, seen, policy)
    ahead = [each for each in seen.queue if not why_not_there(each, pool, policy.storage)]
    asked = [
        Asked(each.spec.nodes * each.spec.accelerators_per_node, policy.burst.run_seconds_of(each.spec.priority_class))
        for each in ahead
    ]
    starts = expected_starts(sum(room.free for room in ours if room.is_open), held, asked)
    forecast = next((at for each, at in zip(ahead, starts, strict=True) if each.job_id == job.job_id), _LONGEST_WAIT)
    waited = (seen.now - (job.queued_at or job.submitted_at)).total_seconds()
    others = sum(policy.burst.delay_of(each.spec.priority_class) for each in ahead if each.job_id != job.job_id)
    return Chance(
        pool=pool,
        accelerators_left=0,
        wait_seconds=min(_LONGEST_WAIT, expected_wait(forecast, waited)),
        shadow_micros_per_accelerator_hour=shadow_of(pool, others, policy.burst),
        barred_until=None,
        differences=why_not_there(job, pool, policy.storage),
    )


def machines_of(pool: Pool, seen: Conditions, policy: Policy) -> tuple[list[Room], list[Held]]:
    """Return the machines of a pool that is paid for, and what is expected to come free of them, and when."""
    ours = [room for room in seen.rooms if _is_of(room, pool)]
    held = [
        Held(
            charge.accelerators,
            left_of(
                policy.burst.run_seconds_of(seen.classes.get(charge.job_id, "")),
                (seen.now - charge.admitted_at).total_seconds() if charge.admitted_at else 0.0,
            ),
        )
        for charge in seen.charges
        if (charge.cluster, charge.pool, charge.instance_type) == (pool.cluster, pool.name, pool.instance_type)
    ]
    # What is out of service comes back, as a rule: a job is not rented for because a machine boots. Not where HyperPod
    # has just said that it finds no machine for the group.
    short_until = seen.shortages.barred_until(pool.name, "", Market.COMMITTED, seen.now)
    held += [
        Held(room.accelerators or pool.accelerators_per_node, policy.jobs.expected_replace_seconds)
        for room in ours
        if not room.is_open and short_until is None
    ]
    return ours, held


def shadow_of(pool: Pool, delay_micros_per_hour: int, burst: BurstPolicy) -> int:
    """Return what an accelerator-hour of a committed pool is worth to those who wait for it: nothing if nobody does.

    The fleet keeps no record of past demand by the hour yet; while somebody waits, every hour is taken to be wanted.
    """
    prices = [each.micros_per_node_hour // max(1, each.accelerators_per_node) for each in burst.pools]
    accelerators = pool.most_nodes * pool.accelerators_per_node
    return shadow_price(min(prices, default=0), 1.0, delay_micros_per_hour, accelerators)


def _is_of(room: Room, pool: Pool) -> bool:
    return (room.cluster, room.pool, room.instance_type, room.kept_for) == (
        pool.cluster,
        pool.name,
        pool.instance_type,
        "",
    )


def note_key(action: str, pool: str, why_nots: Mapping[str, str], *, is_late: bool = False) -> str:
    """Return by what two answers about a job's place are the same, though their figures differ."""
    barred = ",".join(sorted(name for name, why in why_nots.items() if why))
    return f"{action}/{pool}/{barred}{'/late' if is_late else ''}"


# ---------------------------------------------------------------- what its workflow waits for


def nodes_that_came(
    rental: Rental, nodes: Iterable[KubernetesNode], taken: Iterable[str] = ()
) -> tuple[KubernetesNode, ...]:
    """Return the nodes of the offer in force that no other rental has, by name."""
    offer, others = rental.offer, frozenset(taken)
    return tuple(
        node
        for node in sorted(nodes, key=lambda each: each.name)
        if (node.cluster, node.pool) == (offer.cluster, offer.pool) and node.name not in others
    )


def counted(nodes: int, pool: str) -> str:
    """Return how a sentence about nodes of a pool begins: `2 nodes of burst-spot are`."""
    return f"1 node of {pool} is" if nodes == 1 else f"{nodes} nodes of {pool} are"


def is_usable(node: KubernetesNode, offer: Offer) -> bool:
    """Whether the pods that a node was rented for may start on it: taints of its pool are none that keep them off."""
    return node.is_ready and not node.is_cordoned and set(node.blocking_taints) <= set(offer.taints)


def nodes_answer(
    rental: Rental, job: Job, nodes: Iterable[KubernetesNode], refusal: str, taken: Iterable[str] = ()
) -> Answer | None:
    """Answer the wait for a rental's nodes; None while they may yet come.

    Args:
        rental: It is OPENING.
        job: Its job.
        nodes: Of the cluster.
        refusal: What the pool was told by those who rent machines out, since it was opened; empty for nothing.
        taken: Nodes of other rentals.
    """
    return came_answer(rental, why_unwanted(rental, job), nodes, refusal, taken)


def came_answer(
    rental: Rental, unwanted: str, nodes: Iterable[KubernetesNode], refusal: str, taken: Iterable[str] = ()
) -> Answer | None:
    """Answer the wait for a rental's nodes, whoever it is for; `unwanted` says why nobody waits for them any more."""
    if unwanted:
        return Answer(outcome=NOT_WANTED, reason=unwanted)
    usable = [node for node in nodes_that_came(rental, nodes, taken) if is_usable(node, rental.offer)]
    if len(usable) >= rental.nodes:
        return Answer(outcome=NODES_READY, reason=f"{counted(rental.nodes, rental.offer.pool)} ready.")
    if refusal:
        return Answer(outcome=REFUSED, reason=f"{rental.offer.pool} has no capacity: {refusal}")
    return None


def why_unwanted(rental: Rental, job: Job) -> str:
    """Say why nobody waits for a rental any more; empty where its job does."""
    if job.state is JobState.PENDING and job.rentals == rental.number:
        return ""
    if job.rentals != rental.number:
        return f"{job.job_id} has another rental by now."
    return f"{job.job_id} does not wait any more: it is {job.state}."


def end_answer(
    rental: Rental,
    job: Job,
    attempt: Attempt | None,
    nodes: Iterable[KubernetesNode],
    quiet_seconds: int,
    now: datetime,
) -> Answer | None:
    """Answer the wait for a rental's end; None while its job runs on it, or may soon again.

    A job that ended frees its nodes at once, since nobody else may have them. One that waits again keeps them for the
    quiet period, where all of them are there still: it goes on there at the next pass.

    Args:
        rental: It is READY.
        job: Its job.
        attempt: The job's current one; None where it never had any.
        nodes: Of the cluster.
        quiet_seconds: How long nodes without work are kept for a job that waits.
        now: The time.
    """
    if attempt is not None and is_on(attempt, rental) and not attempt.state.has_ended:
        return None
    if job.state.is_at_rest:
        return Answer(outcome=OVER, reason=f"{job.job_id} is {job.state}.")
    if attempt is not None and not attempt.state.has_ended:
        return Answer(outcome=OVER, reason=f"{job.job_id} runs elsewhere.")
    if job.rentals != rental.number:
        return Answer(outcome=OVER, reason=f"{job.job_id} has another rental by now.")
    offer = rental.offer
    there = {node.name for node in nodes if node.cluster == offer.cluster and is_usable(node, offer)}
    lost = [name for name in rental.node_names if name not in there]
    if lost:
        return Answer(outcome=OVER, reason=f"{lost[0]} is out of service or was taken back.", facts={"lost": lost})
    since = rental.handed_over_at or rental.begun_at
    if attempt is not None and is_on(attempt, rental):
        if job.goes_home:
            return Answer(outcome=OVER, reason=f"{job.job_id} goes home.")
        since = max(since, attempt.ended_at or since)
    idle = (now - since).total_seconds()
    if idle >= quiet_seconds:
        return Answer(outcome=OVER, reason=f"Nobody has used it for {round(idle)} seconds.")
    return None


def is_on(attempt: Attempt, rental: Rental) -> bool:
    """Whether an attempt was admitted to a rental's nodes."""
    return (
        bool(attempt.node_names)
        and attempt.cluster == rental.offer.cluster
        and set(attempt.node_names) <= set(rental.node_names)
    )


# ---------------------------------------------------------------- home, loans


def loan_of(rental: Rental) -> Loan | None:
    """Return a rental as a loan; None where it stands in for nothing."""
    if rental.due_at is None or rental.serves is not None:
        return None
    return Loan(
        loan_id=rental.name,
        job_id=rental.job_id,
        team=rental.team,
        incident_id=rental.incident_id,
        pool=rental.offer.pool,
        nodes=rental.nodes,
        micros_per_node_hour=rental.offer.micros_per_node_hour,
        begun_at=rental.begun_at,
        due_at=rental.due_at,
        returned_at=rental.ended_at,
    )


def stay_facts(
    job: Job,
    nodes: int,
    pool: Pool,
    home: Home | None,
    policy: Policy,
    now: datetime,
    *,
    ran_seconds: float,
) -> StayFacts:
    """Return what it rests on whether a job stays where it is rented or reserved.

    Args:
        job: It runs there.
        nodes: That it holds.
        pool: Where.
        home: Committed room that is free for it.
        policy: Prices and estimates.
        now: The time.
        ran_seconds: How long it has run, over all attempts.
    """
    spec = job.spec
    keeps = bool(spec.checkpoint_uri)
    guest = Guest(
        job_id=job.job_id,
        team=spec.team,
        nodes=nodes,
        accelerators_per_node=spec.accelerators_per_node,
        micros_per_hour_of_delay=policy.burst.delay_of(spec.priority_class),
        left_seconds=left_of(policy.burst.run_seconds_of(spec.priority_class), ran_seconds),
        since_checkpoint_seconds=policy.economy.expected_checkpoint_seconds / 2 if keeps else ran_seconds,
        checkpoint_seconds=policy.economy.expected_checkpoint_seconds if keeps else None,
        save_seconds=spec.grace_seconds,
        restart_seconds=policy.jobs.expected_resume_seconds,
        deadline_at=spec.deadline_at,
    )
    return StayFacts(guest=guest, pool=pool, home=home, now=now)


def pool_of(rental: Rental, pools: Sequence[Pool]) -> Pool | None:
    """Return the pool of the offer in force; None where the policy has none such any more."""
    offer = rental.offer
    return next((pool for pool in pools if (pool.cluster, pool.name) == (offer.cluster, offer.pool)), None)


def asked_again(
    facts: PlacementFacts,
    rental: Rental,
    holds: Iterable[RentalHold],
    shortages: Shortages,
    burst: BurstPolicy,
    now: datetime,
    budget_left_parts: int | None = None,
) -> PlacementFacts:
    """Return what the next offer of a rental rests on: the facts it began with, and what has become known since.

    Args:
        facts: Of the placement that began it.
        rental: It was refused; what it held is free again.
        holds: Those of all rentals; its own does not count.
        shortages: What was refused lately.
        burst: Pools and caps as they are now.
        now: The time.
        budget_left_parts: Of its team's dollars, if this rental were none; None where there is no such budget.
    """
    others = [hold for hold in holds if (hold.job_id, hold.number) != (rental.job_id, rental.number)]
    tried = {offer.pool for offer in rental.offers}
    waited = (now - facts.now).total_seconds()
    committed = tuple(
        chance.but(wait_seconds=max(0.0, chance.wait_seconds - waited))
        for chance in facts.chances
        if not chance.pool.market.is_rented
    )
    before = {chance.pool.name: chance for chance in facts.chances}
    rented = tuple(
        Chance(
            pool=pool,
            accelerators_left=max(
                0,
                pool.most_nodes
                - sum(hold.nodes for hold in others if (hold.cluster, hold.pool) == (pool.cluster, pool.name)),
            )
            * pool.accelerators_per_node,
            barred_until=shortages.barred_until(pool.instance_type, pool.zone, pool.market, now),
            differences=("It was asked already.",)
            if pool.name in tried
            else before[pool.name].differences
            if pool.name in before
            else (),
        )
        for pool in burst.pools
    )
    spending = spending_of(facts.job.team, others, burst, budget_left_parts)
    return facts.but(chances=(*committed, *rented), spending=spending, now=now)
