"""Renting nodes for one job: whose they are, what they cost, when they are there, and when they go back.

    wished ── OPENING ── nodes come ── READY ── the job runs on them ── ENDING ── all gone ── ENDED
                 │ refused, late                                           ▲
                 └─ the next offer, or none ───────────────────────────────┘

A rental is written in the commit that orders all admissions, so that caps hold under concurrent passes. Its NodePools
are Evenkeel's alone: their limit is what is rented from them, and their machines are a rental's or nobody's.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum

from pydantic import Field

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.economics import money
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.renting.policy import RentedPool
from evenkeel.domain.values import Instant, Sentence, Value
from evenkeel.domain.waiting import WaitAnswer

UNASSIGNED = "-"
"""In the place of a job: a machine of a rented pool that no job may have."""

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


class RentalOffer(Value):
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
    joined_node_names: tuple[str, ...] = ()
    """Names of all nodes that were seen of it."""
    closed_at: Instant | None = None
    """When the last of them was seen to be gone."""
    refused: str = ""
    """Why it was given up; empty where it was not."""

    @classmethod
    def of(cls, pool: RentedPool, now: datetime) -> "RentalOffer":
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


class ServingTarget(Value):
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
    serving_target: ServingTarget | None = None
    """None where it is a job's."""
    team: str
    namespace: str
    """Of its capacity pods: the job's own."""
    state: RentalState
    reason: Sentence
    """One sentence."""
    nodes: int
    offers: tuple[RentalOffer, ...]
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
    other_rentals_nodes: tuple[str, ...] = ()
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
    def offer(self) -> RentalOffer:
        """The one in force."""
        return self.offers[-1]

    def with_offer(self, **changes: object) -> "Rental":
        """Return it with the offer in force changed."""
        return self.but(offers=(*self.offers[:-1], self.offer.but(**changes)))

    def with_joined_nodes(self, names: Iterable[str]) -> "Rental":
        """Return it with nodes that were seen of the offer in force."""
        came = tuple(sorted({*self.offer.joined_node_names, *names}))
        return self if came == self.offer.joined_node_names else self.with_offer(joined_node_names=came)

    def bills(self) -> tuple[money.BillableRental, ...]:
        """Return what is to be paid: for each offer its nodes, from before they were asked for until they were gone."""
        return tuple(
            money.BillableRental(
                pool=offer.pool,
                job_id=self.job_id,
                team=self.team,
                micros_per_node_hour=offer.micros_per_node_hour,
                nodes=len(offer.joined_node_names),
                least_billed_seconds=offer.least_billed_seconds,
                started_at=offer.opened_at,
                ended_at=offer.closed_at,
            )
            for offer in self.offers
            if offer.joined_node_names
        )

    def ended(self, reason: str, now: datetime) -> "Rental":
        """Return it as it is once nothing of it is left: its bill is final."""
        closed = self.with_offer(closed_at=now)
        parts = money.bill(closed.bills(), now).parts
        return closed.but(
            state=RentalState.ENDED, reason=reason, ended_at=now, cost_parts=parts, shown_cost=money.format_usd(parts)
        )


class RentalAllocation(Value):
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
    def of(cls, rental: Rental) -> "RentalAllocation":
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


# ---------------------------------------------------------------- facts


def note_key(action: str, pool: str, why_nots: Mapping[str, str], *, is_late: bool = False) -> str:
    """Return by what two answers about a job's place are the same, though their figures differ."""
    barred = ",".join(sorted(name for name, why in why_nots.items() if why))
    return f"{action}/{pool}/{barred}{'/late' if is_late else ''}"


# ---------------------------------------------------------------- what its workflow waits for


def joined_nodes(
    rental: Rental, nodes: Iterable[KubernetesNode], taken: Iterable[str] = ()
) -> tuple[KubernetesNode, ...]:
    """Return the nodes of the offer in force that no other rental has, by name."""
    offer, others = rental.offer, frozenset(taken)
    return tuple(
        node
        for node in sorted(nodes, key=lambda each: each.name)
        if (node.cluster, node.pool) == (offer.cluster, offer.pool) and node.name not in others
    )


def nodes_subject(nodes: int, pool: str) -> str:
    """Return how a sentence about nodes of a pool begins: `2 nodes of burst-spot are`."""
    return f"1 node of {pool} is" if nodes == 1 else f"{nodes} nodes of {pool} are"


def is_usable(node: KubernetesNode, offer: RentalOffer) -> bool:
    """Whether the pods that a node was rented for may start on it: taints of its pool are none that keep them off."""
    return node.is_ready and not node.is_cordoned and set(node.blocking_taints) <= set(offer.taints)


def evaluate_rental_ready(
    rental: Rental, job: Job, nodes: Iterable[KubernetesNode], refusal: str, taken: Iterable[str] = ()
) -> WaitAnswer | None:
    """Answer the wait for a rental's nodes; None while they may yet come.

    Args:
        rental: It is OPENING.
        job: Its job.
        nodes: Of the cluster.
        refusal: What the pool was told by those who rent machines out, since it was opened; empty for nothing.
        taken: Nodes of other rentals.
    """
    return evaluate_nodes_joined(rental, why_not_needed(rental, job), nodes, refusal, taken)


def evaluate_nodes_joined(
    rental: Rental, unwanted: str, nodes: Iterable[KubernetesNode], refusal: str, taken: Iterable[str] = ()
) -> WaitAnswer | None:
    """Answer the wait for a rental's nodes, whoever it is for; `unwanted` says why nobody waits for them any more."""
    if unwanted:
        return WaitAnswer(outcome=NOT_WANTED, reason=unwanted)
    usable = [node for node in joined_nodes(rental, nodes, taken) if is_usable(node, rental.offer)]
    if len(usable) >= rental.nodes:
        return WaitAnswer(outcome=NODES_READY, reason=f"{nodes_subject(rental.nodes, rental.offer.pool)} ready.")
    if refusal:
        return WaitAnswer(outcome=REFUSED, reason=f"{rental.offer.pool} has no capacity: {refusal}")
    return None


def why_not_needed(rental: Rental, job: Job) -> str:
    """Say why nobody waits for a rental any more; empty where its job does."""
    if job.state is JobState.PENDING and job.rentals == rental.number:
        return ""
    if job.rentals != rental.number:
        return f"{job.job_id} already has another rental."
    return f"{job.job_id} no longer waits: it is {job.state}."


def evaluate_rental_over(
    rental: Rental,
    job: Job,
    attempt: Attempt | None,
    nodes: Iterable[KubernetesNode],
    quiet_seconds: int,
    now: datetime,
) -> WaitAnswer | None:
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
    if attempt is not None and runs_on_rental(attempt, rental) and not attempt.state.has_ended:
        return None
    if job.state.is_at_rest:
        return WaitAnswer(outcome=OVER, reason=f"{job.job_id} is {job.state}.")
    if attempt is not None and not attempt.state.has_ended:
        return WaitAnswer(outcome=OVER, reason=f"{job.job_id} runs on other nodes.")
    if job.rentals != rental.number:
        return WaitAnswer(outcome=OVER, reason=f"{job.job_id} already has another rental.")
    offer = rental.offer
    there = {node.name for node in nodes if node.cluster == offer.cluster and is_usable(node, offer)}
    lost = [name for name in rental.node_names if name not in there]
    if lost:
        return WaitAnswer(outcome=OVER, reason=f"{lost[0]} is out of service or was reclaimed.", facts={"lost": lost})
    since = rental.handed_over_at or rental.begun_at
    if attempt is not None and runs_on_rental(attempt, rental):
        if job.is_migrating_back:
            return WaitAnswer(outcome=OVER, reason=f"{job.job_id} migrates back to committed capacity.")
        since = max(since, attempt.ended_at or since)
    idle = (now - since).total_seconds()
    if idle >= quiet_seconds:
        return WaitAnswer(outcome=OVER, reason=f"No pod has used these nodes for {round(idle)} seconds.")
    return None


def runs_on_rental(attempt: Attempt, rental: Rental) -> bool:
    """Whether an attempt was admitted to a rental's nodes."""
    return (
        bool(attempt.node_names)
        and attempt.cluster == rental.offer.cluster
        and set(attempt.node_names) <= set(rental.node_names)
    )


# ---------------------------------------------------------------- home, loans
