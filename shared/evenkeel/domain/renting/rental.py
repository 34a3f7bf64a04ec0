"""A rental: nodes rented for one job, or one node for replicas of a Deployment.

This module has the states of a rental and their transitions.

    opened ──▶ OPENING ──────── assigned ────────▶ READY
               │  ▲  │                               │
      refused, │  │  └────────── released ────────┐  │ released
      offered  └──┘                               ▼  ▼
                                                 ENDING ── ended ──▶ ENDED

`refused` gives up the current pool, and `offered` asks the next one. In every state except ENDED a rental also records
its observations: `nodes_joined`, `other_nodes_seen`, `replicas_seen`, `restarted`.

A rental is opened in a commit that raises the quota tree's version, as admissions are. So caps hold if two cycles run
at once. Evenkeel alone sets the limit of a rented NodePool, to the number of nodes that are rented from it.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import Field

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.economics import money
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.plurals import count_of
from evenkeel.domain.renting.burst_policy import BurstPolicy, RentedPool
from evenkeel.domain.renting.placement import PlacementDecision
from evenkeel.domain.values import Instant, Sentence, Value

UNASSIGNED = "-"
"""Used instead of a job's id: no job may start on this node of a rented pool."""


class RentalState(StrEnum):
    """State of a rental."""

    OPENING = "OPENING"
    """Its nodes are requested. Not all of them are ready."""
    READY = "READY"
    """Its nodes are ready, and reserved for its job."""
    ENDING = "ENDING"
    """New pods no longer start on its nodes. Evenkeel releases them."""
    ENDED = "ENDED"
    """All of its nodes are gone, and its bill is final."""

    @property
    def hosts_holder(self) -> bool:
        """Whether its holder has the nodes, or will get them."""
        return self in (RentalState.OPENING, RentalState.READY)


TRANSITIONS: Mapping[RentalState, frozenset[RentalState]] = {
    RentalState.OPENING: frozenset({RentalState.OPENING, RentalState.READY, RentalState.ENDING}),
    RentalState.READY: frozenset({RentalState.READY, RentalState.ENDING}),
    RentalState.ENDING: frozenset({RentalState.ENDING, RentalState.ENDED}),
    RentalState.ENDED: frozenset(),
}
"""From each state: the states that a rental may have after one transition."""


class IllegalTransitionError(ValueError):
    """A rental cannot go from its state to another state. The message names both."""


class RentalOffer(Value):
    """A request to one pool for a rental's nodes."""

    pool: str
    cluster: str
    market: Market
    instance_type: str
    zone: str
    accelerators_per_node: int
    micros_per_node_hour: int
    min_billed_seconds: int
    taints: tuple[str, ...] = ()
    """Taints of all nodes of the pool. The job's pods tolerate them."""
    opened_at: Instant
    """Just before the pool's limit was raised. Nothing is billed before this time."""
    joined_node_names: tuple[str, ...] = ()
    """All nodes of this offer that were seen, without the nodes that another rental was assigned. They are billed."""
    closed_at: Instant | None = None
    """When the last of its nodes was seen to be gone."""
    refused: str = ""
    """Why the offer was given up; empty if it was not."""

    @classmethod
    def of(cls, pool: RentedPool, now: datetime) -> "RentalOffer":
        """Return a request to a pool, made now."""
        return cls(
            pool=pool.name,
            cluster=pool.cluster,
            market=pool.market,
            instance_type=pool.instance_type,
            zone=pool.zone,
            accelerators_per_node=pool.accelerators_per_node,
            micros_per_node_hour=pool.micros_per_node_hour,
            min_billed_seconds=pool.min_billed_seconds,
            taints=pool.taints,
            opened_at=now,
        )


class ServingTarget(Value):
    """The Deployment that a node is rented for. The Kubernetes scheduler places its pods on the node."""

    namespace: str
    name: str
    accelerators_per_replica: int = Field(ge=1)

    @property
    def label(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class Rental(Value):
    """Nodes that are rented for one job, or one node that is rented for replicas of a Deployment."""

    job_id: str
    """Holder of the rental: a job's id, or `srv-…` of a Deployment."""
    number: int
    """Counts the holder's rentals; the first is 1."""
    serving_target: ServingTarget | None = None
    """The Deployment; None if the holder is a job."""
    joins_base: bool = False
    """Whether its nodes become the rented part of a job that runs on committed nodes."""
    team: str
    namespace: str
    """Namespace of its capacity pods. A job's capacity pods run beside the job."""
    state: RentalState
    reason: Sentence
    nodes: int
    offers: tuple[RentalOffer, ...]
    """The last offer is current."""
    node_names: tuple[str, ...] = ()
    """Its nodes; empty before they are assigned."""
    begun_at: Instant
    ready_by: Instant
    """When the current offer is given up if not all nodes are ready."""
    handed_over_at: Instant | None = None
    ended_at: Instant | None = None
    run: int = 1
    """Number of executions of its workflow."""
    decision_id: str
    incident_id: str = ""
    """The recovery whose failed nodes this temporary capacity replaces; empty for other rentals."""
    due_at: Instant | None = None
    """Latest return of its nodes, for temporary capacity or a Deployment with a time limit; None without a limit."""
    other_rentals_nodes: tuple[str, ...] = ()
    """Nodes of the same pool that this rental cannot get, as last seen: other rentals have them or give them up."""
    is_returning: bool = False
    """Whether the replicas of the Deployment move to committed nodes. `due_at` is then the time of the decision."""
    was_used: bool = False
    """Whether a replica of the Deployment ever ran on the node."""
    idle_since: Instant | None = None
    """Since when no replica of the Deployment has run on the node."""
    expected_parts: int = 0
    """Expected cost in parts of `economics.money`. Evenkeel reserves this amount of the team's budget."""
    cost_parts: int = 0
    """Final cost in parts of `economics.money`; 0 before the rental has ended."""
    shown_cost: str = ""

    @property
    def name(self) -> str:
        """`<jobId>-b<n>`: name of its capacity pods, and of its workflow's first execution."""
        return f"{self.job_id}-b{self.number}"

    @property
    def execution_name(self) -> str:
        """Name of its workflow's current execution."""
        return self.name if self.run == 1 else f"{self.name}-r{self.run}"

    @property
    def pods_name(self) -> str:
        """Name of the current offer's capacity pods. Pods of the previous offer may still exist."""
        return self.name if len(self.offers) == 1 else f"{self.name}-{len(self.offers)}"

    @property
    def offer(self) -> RentalOffer:
        """The current offer."""
        return self.offers[-1]

    def hosts(self, attempt: Attempt) -> bool:
        """Whether an attempt was admitted to the nodes of this rental, or has them as its rented part."""
        node_names = attempt.rented_part.node_names if attempt.rented_part else attempt.node_names
        return bool(node_names) and attempt.cluster == self.offer.cluster and set(node_names) <= set(self.node_names)

    def joins_attempt_of(self, admitted_at: datetime | None) -> bool:
        """Whether an attempt was admitted to its base before the nodes that join it were ready.

        A later attempt on the base alone has released them.
        """
        return self.joins_base and (admitted_at is None or admitted_at <= (self.handed_over_at or self.begun_at))

    @property
    def kept_from_others(self) -> frozenset[str]:
        """The nodes of its holder, and the nodes that Evenkeel is about to delete. No other rental may get these."""
        is_given_up = self.state is RentalState.ENDING or bool(self.offer.refused)
        return frozenset((*self.node_names, *(self.offer.joined_node_names if is_given_up else ())))

    def with_offer(self, **changes: object) -> "Rental":
        """Return the rental with its current offer changed."""
        return self.replace(offers=(*self.offers[:-1], self.offer.replace(**changes)))

    def bills(self) -> tuple[money.BillableRental, ...]:
        """Return the billed use: the nodes of each offer, from the request until its last node is gone."""
        return tuple(
            money.BillableRental(
                pool=offer.pool,
                job_id=self.job_id,
                team=self.team,
                micros_per_node_hour=offer.micros_per_node_hour,
                nodes=len(offer.joined_node_names),
                min_billed_seconds=offer.min_billed_seconds,
                started_at=offer.opened_at,
                ended_at=offer.closed_at,
            )
            for offer in self.offers
            if offer.joined_node_names
        )


# ---------------------------------------------------------------- transitions


class CapacityAnswer(StrEnum):
    """Whether the nodes of the current offer could be had."""

    REFUSED = "REFUSED"
    """Nodes were refused, or spot nodes were taken back."""
    SUPPLIED = "SUPPLIED"
    """All nodes were supplied."""


class RentalChange(NamedTuple):
    """A rental after one transition, with everything that must be recorded in the same commit."""

    rental: Rental
    kind: str = ""
    """Kind of the timeline entry; empty if there is none."""
    text: str = ""
    event: str = ""
    """Name of the timeline entry: a retried commit writes the same row."""
    has_new_offer: bool = False
    """Whether its allocation must be written."""
    changes_capacity: bool = False
    """Whether the change affects nodes or caps. Admissions depend on them, so the commit raises the tree's version."""
    capacity_answer: CapacityAnswer | None = None
    """Recorded as a shortage, or as the end of one; None changes no shortage."""


def _in_state(rental: Rental, state: RentalState, **changes: Any) -> Rental:
    """Return a rental in another state, or with changes in its own state.

    Raises:
        IllegalTransitionError: There is no such transition.
    """
    if state not in TRANSITIONS[rental.state]:
        raise IllegalTransitionError(f"{rental.name} cannot go from {rental.state} to {state}.")
    return rental.replace(state=state, **changes)


class RentalHolder(NamedTuple):
    """The job or Deployment that nodes are rented for."""

    holder_id: str
    number: int
    """Number of the rental."""
    team: str
    namespace: str
    serving_target: ServingTarget | None = None
    due_at: datetime | None = None
    incident_id: str = ""
    joins_base: bool = False


class RentalTerms(NamedTuple):
    """The nodes that a decision rents."""

    pool: str
    nodes: int
    reason: str
    expected_parts: int

    @classmethod
    def of(cls, placement: PlacementDecision) -> "RentalTerms":
        """Return the terms of a placement that says RENT."""
        rent_parts = placement.row.rent_parts if placement.row else 0
        return cls(placement.pool, placement.facts.job.nodes, placement.reason, rent_parts)


def open_rental(
    holder: RentalHolder, terms: RentalTerms, decision_id: str, burst: BurstPolicy, now: datetime
) -> RentalChange:
    """Open a rental by a decision to rent.

    Args:
        holder: The job or Deployment.
        terms: The nodes, and why they are rented.
        decision_id: Id of the decision's record.
        burst: Pools and time limits.
        now: The time.
    """
    pool = next(pool for pool in burst.pools if pool.name == terms.pool)
    rental = Rental(
        job_id=holder.holder_id,
        number=holder.number,
        serving_target=holder.serving_target,
        joins_base=holder.joins_base,
        team=holder.team,
        namespace=holder.namespace,
        state=RentalState.OPENING,
        reason=terms.reason,
        nodes=terms.nodes,
        offers=(RentalOffer.of(pool, now),),
        begun_at=now,
        ready_by=now + timedelta(seconds=burst.ready_seconds),
        decision_id=decision_id,
        incident_id=holder.incident_id,
        due_at=holder.due_at,
        expected_parts=terms.expected_parts,
    )
    holder_noun = "Deployment" if holder.serving_target else "job"
    text = f"{nodes_subject(rental.nodes, pool.name)} rented for the {holder_noun}. {terms.reason}"
    if holder.due_at and not holder.serving_target:
        until = f"until {holder.due_at:%d %b %H:%M} UTC at the latest"
        text = f"{text} The nodes are temporary capacity for {holder.incident_id}, {until}."
    return RentalChange(rental, "rented", text, f"rented-{rental.number}", has_new_offer=True, changes_capacity=True)


def with_joined_nodes(rental: Rental, names: Iterable[str]) -> Rental:
    """Return a rental with nodes of its current offer that were seen."""
    joined_names = tuple(sorted({*rental.offer.joined_node_names, *names}))
    if joined_names == rental.offer.joined_node_names:
        return rental
    return _in_state(rental, rental.state).with_offer(joined_node_names=joined_names)


def without_nodes_of(rental: Rental, other: Rental) -> Rental:
    """Return a rental that is not billed for the nodes that another rental was assigned or gives up.

    If several rentals saw a node, the first rental that is assigned it, or that deletes it, pays for it.

    Args:
        rental: Another open rental of the same pool.
        other: The rental that keeps the nodes.
    """
    kept_by_other = other.kept_from_others - {*rental.node_names}
    joined_names = tuple(name for name in rental.offer.joined_node_names if name not in kept_by_other)
    if joined_names == rental.offer.joined_node_names:
        return rental
    return _in_state(rental, rental.state).with_offer(joined_node_names=joined_names)


def with_other_rentals_nodes(rental: Rental, rentals: Iterable[Rental]) -> Rental:
    """Record in a rental which nodes of its pool it cannot get because of other rentals.

    The wait for its own nodes reads the row of this rental alone. A node that this rental saw, and that another rental
    was assigned, is on the bill of the other rental alone.
    """
    other_rentals = tuple(rentals)
    names = tuple(sorted({name for other_rental in other_rentals for name in other_rental.kept_from_others}))
    assigned_nodes = {name for other_rental in other_rentals for name in other_rental.node_names}
    joined_names = tuple(name for name in rental.offer.joined_node_names if name not in assigned_nodes)
    rental_after = _in_state(rental, rental.state, other_rentals_nodes=names)
    return rental_after.with_offer(joined_node_names=joined_names)


def with_replicas_observed(rental: Rental, *, has_replicas: bool, now: datetime) -> Rental:
    """Record in a Deployment's rental whether replicas run on its node."""
    idle_since = None if has_replicas else rental.idle_since or now
    was_used = has_replicas or rental.was_used
    if (idle_since, was_used) == (rental.idle_since, rental.was_used):
        return rental
    return _in_state(rental, rental.state, idle_since=idle_since, was_used=was_used)


def assign_nodes(rental: Rental, names: Collection[str], now: datetime) -> RentalChange:
    """Assign all nodes to the holder. The next scheduling cycle starts the job on them."""
    node_names = tuple(names)
    shown = f"{', '.join(node_names[:4])}{' and more' if node_names[4:] else ''}"
    text = f"{nodes_subject(len(node_names), rental.offer.pool)} ready for the job: {shown}."
    ready_rental = _in_state(
        rental,
        RentalState.READY,
        node_names=node_names,
        handed_over_at=now,
        idle_since=now if rental.serving_target else None,
        reason=text,
    )
    return RentalChange(
        with_joined_nodes(ready_rental, node_names),
        "handed over",
        text,
        f"handed-over-{rental.number}",
        changes_capacity=True,
        capacity_answer=CapacityAnswer.SUPPLIED,
    )


def refuse_offer(rental: Rental, reason: str) -> RentalChange:
    """Give up the current offer.

    Evenkeel deletes its nodes next. Another rental that would be assigned one of them at this moment must read again.
    """
    reason = reason or f"{rental.offer.pool} did not provide {count_of(rental.nodes, 'node')} in time."
    reopened_rental = _in_state(rental, RentalState.OPENING, reason=reason).with_offer(refused=reason)
    event = f"offer-refused-{rental.number}-{len(rental.offers)}"
    return RentalChange(
        reopened_rental, "refused", reason, event, changes_capacity=True, capacity_answer=CapacityAnswer.REFUSED
    )


def next_offer(
    rental: Rental, placement: PlacementDecision, reason: str, decision_id: str, burst: BurstPolicy, now: datetime
) -> RentalChange:
    """Request the nodes from the next pool, once no node or pod of the refused offer is left.

    Args:
        rental: Its current offer was refused.
        placement: The decision. It says RENT.
        reason: The reason as it is recorded.
        decision_id: Id of the record.
        burst: Pools and time limits.
        now: The time.
    """
    pool = _chosen_pool(placement, burst)
    closed_rental = rental.with_offer(closed_at=now)
    opening_rental = _in_state(
        rental,
        RentalState.OPENING,
        reason=reason,
        offers=(*closed_rental.offers, RentalOffer.of(pool, now)),
        ready_by=now + timedelta(seconds=burst.ready_seconds),
        decision_id=decision_id,
        expected_parts=placement.row.rent_parts if placement.row else 0,
    )
    event = f"offer-{rental.number}-{len(opening_rental.offers)}"
    text = f"Evenkeel asks {pool.name} next. {reason}"
    return RentalChange(opening_rental, "rented", text, event, has_new_offer=True, changes_capacity=True)


def return_replicas(rental: Rental, reason: str, now: datetime) -> RentalChange:
    """End a Deployment's rental now, although replicas run on its node: they move to committed nodes."""
    text = f"The replicas move to committed nodes. {reason}"
    returning_rental = _in_state(rental, rental.state, is_returning=True, due_at=now, reason=text)
    return RentalChange(returning_rental, "migrates back", text, f"returning-{rental.number}", changes_capacity=True)


def release_rental(rental: Rental, reason: str, usable: Collection[str]) -> RentalChange:
    """Release the nodes from their holder. From then on, no scheduling cycle starts the job there.

    Args:
        rental: An open rental.
        reason: The reason; empty to keep the recorded one.
        usable: Nodes of its cluster that are in service. A spot market that took nodes back will do so again.
    """
    ending_rental = _in_state(rental, RentalState.ENDING, reason=(reason or rental.reason)[:1000])
    is_reclaimed = rental.offer.market.can_be_reclaimed and not set(rental.node_names) <= set(usable)
    return RentalChange(
        ending_rental, changes_capacity=True, capacity_answer=CapacityAnswer.REFUSED if is_reclaimed else None
    )


def end_rental(rental: Rental, now: datetime) -> RentalChange:
    """End a rental whose nodes are all gone, and compute its final bill."""
    closed_rental = rental.with_offer(closed_at=now)
    cost_parts = money.bill(closed_rental.bills(), now).cost_parts
    ended_rental = _in_state(
        closed_rental, RentalState.ENDED, ended_at=now, cost_parts=cost_parts, shown_cost=money.format_usd(cost_parts)
    )
    cost = f"{ended_rental.shown_cost} ({cost_parts / money.COST_PARTS_PER_USD:.6f} dollars)"
    text = f"Rental {rental.number} has ended and all of its nodes are gone. It cost {cost}."
    return RentalChange(ended_rental, "rental ended", text, f"rental-ended-{rental.number}")


def with_next_execution(rental: Rental) -> Rental:
    """Return a rental whose workflow needs another execution, under the next name."""
    return _in_state(rental, rental.state, run=rental.run + 1)


def _chosen_pool(placement: PlacementDecision, burst: BurstPolicy) -> RentedPool:
    return next(pool for pool in burst.pools if pool.name == placement.pool)


def nodes_subject(nodes: int, pool: str) -> str:
    """Return the subject of a sentence about nodes of a pool, with its verb: `2 nodes of burst-spot are`."""
    return count_of(nodes, f"node of {pool} is", f"nodes of {pool} are")
