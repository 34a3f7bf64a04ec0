"""The tasks of burst_capacity: open a pool for a rental, hand its nodes over, ask elsewhere, give everything back.

    CHECK ── OPEN ── (nodes come) ── HAND_OVER ── (the job runs) ── RELEASE until nothing is left ── SETTLE
               ▲          │ refused, late                              ▲
               └── NEXT ──┴── no other pool ───────────────────────────┘

Each step reads what is there, does what is missing and says how far it is. What a rental takes of caps stays taken
until its last node was seen to be gone: only then its bill is written, and its row is over.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from evenkeel.domain.capacity import efa
from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.decisions import Decision
from evenkeel.domain.economics import money
from evenkeel.domain.health.incidents import TimelineEntry
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.quotas.budgets import rent_by_period
from evenkeel.domain.recovery.modes import launch_mode
from evenkeel.domain.renting.candidates import facts_for_next_offer, spend_limits
from evenkeel.domain.renting.demand import PlacementAction, PlacementDecision, PlacementFacts
from evenkeel.domain.renting.placement import choose_pool
from evenkeel.domain.renting.policy import RentedPool
from evenkeel.domain.renting.rental import (
    Rental,
    RentalAllocation,
    RentalOffer,
    RentalState,
    is_usable,
    joined_nodes,
    nodes_subject,
    runs_on_rental,
    why_not_needed,
)
from evenkeel.domain.renting.serving import ServingState, registration_of, replicas_on, why_node_not_needed
from evenkeel.domain.values import Value
from evenkeel.ports import (
    Add,
    CapacitySpec,
    Conflict,
    Delete,
    Ledger,
    LimitResult,
    NodeClaim,
    NotFound,
    Put,
    Row,
    Write,
)
from evenkeel.services.context import Context
from evenkeel.services.rentals import read_budgets, rentals
from evenkeel.services.storage import rows

WRITER = "rent_capacity"
_MAX_RETRIES = 5


class RentalStep(StrEnum):
    """What is to be done."""

    CHECK = "CHECK"
    OPEN = "OPEN"
    HAND_OVER = "HAND_OVER"
    NEXT = "NEXT"
    RELEASE = "RELEASE"
    SETTLE = "SETTLE"


class Request(Value):
    """One step of one rental."""

    schema_version: int = 1
    step: RentalStep
    job_id: str
    rental: int
    reason: str = ""
    """Why the offer in force is given up (NEXT), or the rental (RELEASE)."""
    failure: dict[str, Any] | None = None
    """`{Error, Cause}` where the workflow itself failed."""

    @property
    def why(self) -> str:
        """Why something is given up, in words."""
        return f"The workflow of the rental failed: {self.failure.get('Error')}." if self.failure else self.reason


class RentOutcome(StrEnum):
    """What a step answers."""

    GO = "GO"
    """CHECK: its nodes are to be asked for."""
    READY = "READY"
    """CHECK: it was handed over already."""
    ENDING = "ENDING"
    """CHECK: it is to be given back."""
    STALE = "STALE"
    """It is over."""
    OPENED = "OPENED"
    """OPEN: the pool may launch its nodes. NEXT: so it may be, by another pool."""
    REFUSED = "REFUSED"
    """OPEN: the pool cannot be rented from."""
    NOT_WANTED = "NOT_WANTED"
    """Its job does not wait for it any more."""
    HANDED_OVER = "HANDED_OVER"
    NOT_YET = "NOT_YET"
    """Ask again after `waitSeconds`."""
    NONE = "NONE"
    """NEXT: no other pool can have the job now."""
    IN_USE = "IN_USE"
    """RELEASE: its job runs on it."""
    RELEASED = "RELEASED"
    """RELEASE: nothing of it is left."""
    SETTLED = "SETTLED"


class Outcome(Value):
    """The answer, in words as well."""

    outcome: RentOutcome
    reason: str
    wait_seconds: int = 0


class _LoadedRental(NamedTuple):
    rental: Rental
    version: int
    job: Job | None
    """Whose it is; None where it is a Deployment's."""
    tree: Row


def run(request: Request, context: Context) -> Outcome:
    """Do one step of a rental.

    Idempotent: yes, by the rental's state; a repeat finds what was done and does the rest.

    Raises:
        NotFound: there is no such rental.
    """
    step = _StepContext(request, context)
    for _ in range(_MAX_RETRIES):
        found = _load(context.ledger, request)
        if found.rental.state is RentalState.ENDED:
            return Outcome(outcome=RentOutcome.STALE, reason=found.rental.reason)
        try:
            return _STEPS[request.step](step, found)
        except Conflict:
            continue
    raise Conflict(f"rental {request.rental} of {request.job_id} kept changing")


class _StepContext(NamedTuple):
    """One call of a step."""

    request: Request
    context: Context


def _load(ledger: Ledger, request: Request) -> _LoadedRental:
    # The tree first: whatever is admitted after this look makes a commit on it fail.
    tree = ledger.get(rows.tree_key()) or Row(rows.tree_key(), {})
    row = ledger.get(rows.rental_key(request.job_id, request.rental))
    job = ledger.get(rows.job_key(request.job_id))
    rental = rows.read(row, Rental) if row else None
    if row is None or rental is None or (job is None and rental.serving_target is None):
        raise NotFound(f"There is no rental {request.rental} of {request.job_id}.")
    return _LoadedRental(rental, row.version, rows.read(job, Job) if job else None, tree)


# ---------------------------------------------------------------- the steps


def _check(step: _StepContext, found: _LoadedRental) -> Outcome:
    """State CheckBudget: whether it is still wanted and paid for; after a crash, where to go on."""
    rental = found.rental
    if rental.state is RentalState.READY:
        _free_node(step, rental)
        return Outcome(outcome=RentOutcome.READY, reason="The job received its nodes.")
    if rental.state is RentalState.ENDING:
        return Outcome(outcome=RentOutcome.ENDING, reason=rental.reason)
    why_not = _why_not_rented(step, found)
    if why_not:
        return Outcome(outcome=RentOutcome.ENDING, reason=why_not)
    return Outcome(outcome=RentOutcome.GO, reason=rental.reason)


def _why_not_rented(step: _StepContext, found: _LoadedRental) -> str:
    """Say why nothing is to be rented after all; empty where it is. Caps may be lower by now."""
    rental, burst = found.rental, step.context.policy.burst
    unwanted = _why_unwanted(step, found)
    if unwanted:
        return unwanted
    if not _may_rent(step, found.job):
        return f"Mode is {step.context.mode}: Evenkeel rents nothing."
    spends = spend_limits(rental.team, _holds(step.context.ledger), burst)
    if spends.fleet_micros_per_hour > spends.fleet_cap_micros_per_hour:
        most, rate = (
            money.format_usd(each * 3600) for each in (spends.fleet_cap_micros_per_hour, spends.fleet_micros_per_hour)
        )
        return f"The fleet may rent for at most {most} an hour; this rental would bring it to {rate}."
    if spends.team_micros_per_hour > spends.team_cap_micros_per_hour:
        most, rate = (
            money.format_usd(each * 3600) for each in (spends.team_cap_micros_per_hour, spends.team_micros_per_hour)
        )
        return f"Team {rental.team} may rent for at most {most} an hour; this rental would bring it to {rate}."
    if not any((pool.cluster, pool.name) == (rental.offer.cluster, rental.offer.pool) for pool in burst.pools):
        return f"The policy no longer names pool {rental.offer.pool}."
    return ""


def _may_rent(step: _StepContext, job: Job | None) -> bool:
    """Whether the mode lets anything be rented: for a job, as for the launch that it is rented for."""
    is_planned = job is not None and job.is_planned(job.current_attempt + 1)
    return launch_mode(step.context.mode, is_planned=is_planned) is Mode.ACT


def _why_unwanted(step: _StepContext, found: _LoadedRental) -> str:
    """Say why nobody waits for a rental any more; empty where its job does, or replicas for which nothing else is."""
    rental = found.rental
    if found.job is not None:
        return why_not_needed(rental, found.job)
    cluster = rental.offer.cluster
    # The pods first: one that finds a node meanwhile is seen without one, or its node is seen.
    pods, nodes = step.context.cluster.pods(cluster), step.context.cluster.nodes(cluster)
    own = [each for each in rentals.load(step.context.ledger).rentals if each.job_id == rental.job_id]
    return why_node_not_needed(rental, own, step.context.policy.scheduling.serving, pods, nodes)


def _free_node(step: _StepContext, rental: Rental) -> None:
    """End the capacity pods on a node that is a Deployment's: its own pods wait for what those use.

    A job's are ended when its pods are there. Idempotent: yes, gone is success.
    """
    if rental.serving_target is not None:
        step.context.cluster.delete_capacity_pods(rental.offer.cluster, rental.namespace, rental.pods_name)


def _open(step: _StepContext, found: _LoadedRental) -> Outcome:
    """State OpenPool: raise the limit by what is rented, and ask for all nodes at once."""
    rental = found.rental
    if rental.state is not RentalState.OPENING:
        return Outcome(outcome=RentOutcome.NOT_WANTED, reason=rental.reason)
    unwanted = _why_unwanted(step, found)
    if unwanted:
        return Outcome(outcome=RentOutcome.NOT_WANTED, reason=unwanted)
    offer = rental.offer
    if offer.refused:  # a run before this one died while it took that back
        return Outcome(outcome=RentOutcome.REFUSED, reason=offer.refused)
    seen = _with_other_rentals_nodes(rental, _other_rentals(step, rental))
    if seen != rental:
        step.context.ledger.commit(Put(rows.rental_row(seen, found.version)))
    limited = _set_limit(step, offer)
    if limited is LimitResult.UNBOUNDED:
        reason = f"NodePool {offer.pool} has no limit, and Evenkeel never opens such a pool."
        return Outcome(outcome=RentOutcome.REFUSED, reason=reason)
    if limited is LimitResult.GONE:
        return Outcome(outcome=RentOutcome.REFUSED, reason=f"NodePool {offer.pool} does not exist in {offer.cluster}.")
    step.context.cluster.create_capacity_pods(
        CapacitySpec(
            cluster=offer.cluster,
            namespace=rental.namespace,
            name=rental.pods_name,
            pool=offer.pool,
            nodes=rental.nodes,
            accelerators=offer.accelerators_per_node,
            accelerator_resource=_resource(offer),
            image=step.context.policy.burst.capacity_pod_image,
            efa=_efa(step, rental, offer),
        )
    )
    reason = f"{nodes_subject(rental.nodes, offer.pool)} requested."
    step.context.telemetry.info(
        "A pool was opened for a rental", job_id=rental.job_id, rental=rental.name, pool=offer.pool
    )
    return Outcome(outcome=RentOutcome.OPENED, reason=reason)


def _hand_over(step: _StepContext, found: _LoadedRental) -> Outcome:
    """State HandOver: name the nodes, all of them, in a commit that orders admissions; the next pass starts the job."""
    rental = found.rental
    if rental.state is not RentalState.OPENING:
        outcome = RentOutcome.NOT_WANTED
        if rental.state is RentalState.READY:
            outcome = RentOutcome.HANDED_OVER
            _free_node(step, rental)
        return Outcome(outcome=outcome, reason=rental.reason)
    unwanted = _why_unwanted(step, found)
    if unwanted:
        return Outcome(outcome=RentOutcome.NOT_WANTED, reason=unwanted)
    others = _other_rentals(step, rental)
    taken = {name for each in others for name in each.node_names}
    came = joined_nodes(rental, step.context.cluster.nodes(rental.offer.cluster), taken)
    usable = [node.name for node in came if is_usable(node, rental.offer)]
    if len(usable) < rental.nodes:
        # A node that is not ready yet may be meant for any rental of a Deployment: it is nobody's before.
        mine = () if rental.serving_target else came[: rental.nodes]
        seen = _with_other_rentals_nodes(rental.with_joined_nodes(node.name for node in mine), others)
        if seen != rental:
            step.context.ledger.commit(Put(rows.rental_row(seen, found.version)))
        reason = f"{len(usable)} of {rental.nodes} nodes are ready."
        return Outcome(outcome=RentOutcome.NOT_YET, reason=reason, wait_seconds=_recheck_seconds(step))
    names = tuple(usable[: rental.nodes])
    offer = rental.offer
    listed = f"{', '.join(names[:4])}{' and more' if names[4:] else ''}"
    text = f"{nodes_subject(len(names), offer.pool)} ready for the job: {listed}."
    ready = rental.with_joined_nodes(names).but(
        state=RentalState.READY,
        node_names=names,
        handed_over_at=step.context.now,
        idle_since=step.context.now if rental.serving_target else None,
        reason=text,
    )
    entry = TimelineEntry(at=step.context.now, kind="handed over", text=text, writer=WRITER)
    memory = _shortages(step)
    known = rows.read(memory, Shortages) if memory.version else Shortages()
    cleared = known.with_success(offer.instance_type, offer.zone, offer.market)
    more: tuple[Write, ...] = () if cleared == known else (Put(rows.shortages_row(cleared, memory.version)),)
    step.context.ledger.commit(
        _raise_tree_version(found.tree),
        Put(rows.rental_row(ready, found.version)),
        Put(rows.timeline_row(rental.job_id, entry, f"handed-over-{rental.number}")),
        *more,
    )
    _free_node(step, ready)
    _return_unassigned_nodes(step, ready)
    step.context.passes.request(f"{rental.name} handed over")
    step.context.telemetry.count("RentalsReady")
    step.context.telemetry.seconds("RentalReadySeconds", (step.context.now - rental.begun_at).total_seconds())
    return Outcome(outcome=RentOutcome.HANDED_OVER, reason=text)


def _next_offer(step: _StepContext, found: _LoadedRental) -> Outcome:
    """State NextOffer: take the refused offer back whole, remember the refusal for all, and place the job anew."""
    rental = found.rental
    if rental.state is not RentalState.OPENING:
        return Outcome(outcome=RentOutcome.NONE, reason=rental.reason)
    if not rental.offer.refused:
        rental = _refuse(step, found)
        found = _load(step.context.ledger, step.request)
    left = _return_offer(step, rental)
    if left:
        return Outcome(outcome=RentOutcome.NOT_YET, reason=left, wait_seconds=_recheck_seconds(step))
    found = _load(step.context.ledger, step.request)
    rental = found.rental
    unwanted = _why_unwanted(step, found)
    if unwanted:
        return Outcome(outcome=RentOutcome.NONE, reason=unwanted)
    if len(rental.offers) >= step.context.policy.burst.most_offers:
        return Outcome(outcome=RentOutcome.NONE, reason=f"Evenkeel asked {len(rental.offers)} pools. {rental.reason}")
    began = step.context.ledger.get(rows.decision_key(rental.decision_id))
    if began is None:
        return Outcome(outcome=RentOutcome.NONE, reason=rental.reason)
    memory = _shortages(step)
    shortages = rows.read(memory, Shortages) if memory.version else Shortages()
    facts = facts_for_next_offer(
        PlacementFacts.model_validate(rows.read(began, Decision).facts),
        rental,
        _holds(step.context.ledger),
        shortages,
        step.context.policy.burst.but(pools=_pools_for(step.context.policy, rental)),
        step.context.now,
        read_budgets.left_beside(rental, step.context),
    )
    placed = choose_pool(facts)
    if placed.action is not PlacementAction.RENT or not _may_rent(step, found.job):
        return Outcome(outcome=RentOutcome.NONE, reason=placed.reason)
    record = rentals.record_of(placed, step.context.ids.new("dec"), step.context)
    return _commit_offer(step, found, record, placed)


def _pools_for(policy: Policy, rental: Rental) -> tuple[RentedPool, ...]:
    """Return the pools that a rental's next offer may be of."""
    if rental.serving_target is None:
        return policy.pools_for_jobs
    mine = registration_of(rental, policy.scheduling.serving)
    return policy.pools_for(mine) if mine else ()


def _commit_offer(step: _StepContext, found: _LoadedRental, record: Decision, placed: PlacementDecision) -> Outcome:
    rental = found.rental
    pool = next(each for each in step.context.policy.burst.pools if each.name == placed.pool)
    again = rental.with_offer(closed_at=step.context.now).but(
        reason=record.reason, ready_by=step.context.now + timedelta(seconds=step.context.policy.burst.ready_seconds)
    )
    again = again.but(
        offers=(*again.offers, RentalOffer.of(pool, step.context.now)),
        decision_id=record.decision_id,
        expected_parts=placed.row.rent_parts if placed.row else 0,
    )
    held = step.context.ledger.get(rows.rental_allocation_key(rental.job_id, rental.number))
    text = f"Evenkeel asks {pool.name} next. {record.reason}"
    entry = TimelineEntry(at=step.context.now, kind="rented", text=text, decision_id=record.decision_id, writer=WRITER)
    step.context.ledger.commit(
        _raise_tree_version(found.tree),
        Put(rows.rental_allocation_row(again, held.version if held else 0)),
        Put(rows.rental_row(again, found.version)),
        Put(rows.decision_row(record)),
        Put(rows.timeline_row(rental.job_id, entry, f"offer-{rental.number}-{len(again.offers)}")),
        token=record.decision_id,
    )
    return Outcome(outcome=RentOutcome.OPENED, reason=text)


def _refuse(step: _StepContext, found: _LoadedRental) -> Rental:
    """Write down that an offer was refused, on the rental and in the fleet's memory, once."""
    rental, offer = found.rental, found.rental.offer
    why = step.request.why or f"{offer.pool} did not provide {rental.nodes} nodes in time."
    refused = rental.with_offer(refused=why).but(reason=why)
    memory = _shortages(step)
    known = rows.read(memory, Shortages) if memory.version else Shortages()
    after = known.with_refusal(offer.instance_type, offer.zone, offer.market, step.context.now)
    entry = TimelineEntry(at=step.context.now, kind="refused", text=why, writer=WRITER)
    step.context.ledger.commit(
        Put(rows.rental_row(refused, found.version)),
        Put(rows.shortages_row(after, memory.version)),
        Put(rows.timeline_row(rental.job_id, entry, f"offer-refused-{rental.number}-{len(rental.offers)}")),
    )
    step.context.telemetry.count("CapacityUnavailable", market=offer.market)
    return refused


def _release(step: _StepContext, found: _LoadedRental) -> Outcome:
    """State ReleasePool: let nobody on it any more, and take everything back until nothing is left."""
    rental = found.rental
    if rental.state is not RentalState.ENDING:
        if rental.state is RentalState.READY and _is_in_use(step, found):
            whose = (
                f"Replicas of {rental.serving_target.label} run" if rental.serving_target else f"{rental.job_id} runs"
            )
            return Outcome(outcome=RentOutcome.IN_USE, reason=f"{whose} on these nodes.")
        rental = _begin_ending(step, found)
    left = _return_offer(step, rental)
    if left:
        return Outcome(outcome=RentOutcome.NOT_YET, reason=left, wait_seconds=_recheck_seconds(step))
    return Outcome(outcome=RentOutcome.RELEASED, reason="All of its nodes are gone.")


def _settle(step: _StepContext, found: _LoadedRental) -> Outcome:
    """State SettleRental: write the bill, and let go of the caps; not before nothing of it is left."""
    rental = found.rental
    if rental.state is not RentalState.ENDING:
        return Outcome(
            outcome=RentOutcome.NOT_YET, reason=f"The rental is {rental.state}. Another run of its workflow continues."
        )
    left = _return_offer(step, rental)
    if left:
        return Outcome(outcome=RentOutcome.NOT_YET, reason=left)
    found = _load(step.context.ledger, step.request)
    held = step.context.ledger.get(rows.rental_allocation_key(rental.job_id, rental.number))
    over = found.rental.ended(found.rental.reason, step.context.now)
    cost = rentals.exact_cost_text(over.cost_parts)
    text = f"Rental {rental.number} has ended and all of its nodes are gone. It cost {cost}."
    entry = TimelineEntry(at=step.context.now, kind="rental ended", text=text, writer=WRITER)
    step.context.ledger.commit(
        Put(rows.rental_row(over, found.version)),
        Put(rows.timeline_row(rental.job_id, entry, f"rental-ended-{rental.number}")),
        *((Delete(held.key, held.version),) if held else ()),
        # What it cost counts against its team's budgets: added with the state that can be written once, so once.
        *(
            Add(rows.spent_key(over.team, part.key), part.spent.to_json())
            for part in rent_by_period(over, step.context.now)
        ),
    )
    step.context.passes.request(f"{rental.name} ended")
    step.context.telemetry.count("RentalsEnded")
    step.context.telemetry.count("RentalCostUsd", over.cost_parts / money.PARTS)
    step.context.telemetry.info("A rental is over", job_id=rental.job_id, rental=rental.name, cost=over.shown_cost)
    return Outcome(outcome=RentOutcome.SETTLED, reason=text)


def _begin_ending(step: _StepContext, found: _LoadedRental) -> Rental:
    """Take its nodes away from its job, in a commit that orders admissions: no pass starts it there any more."""
    rental = found.rental
    ending = rental.but(state=RentalState.ENDING, reason=(step.request.why or rental.reason)[:1000])
    writes: list[Write] = [_raise_tree_version(found.tree), Put(rows.rental_row(ending, found.version))]
    offer = rental.offer
    there = {node.name for node in step.context.cluster.nodes(offer.cluster) if is_usable(node, offer)}
    if offer.market is Market.SPOT and set(rental.node_names) - there:
        # A market that takes machines back will do so again: leave it at once.
        memory = _shortages(step)
        known = rows.read(memory, Shortages) if memory.version else Shortages()
        after = known.with_refusal(offer.instance_type, offer.zone, offer.market, step.context.now)
        writes.append(Put(rows.shortages_row(after, memory.version)))
    writes += _serving_state_after(step, rental)
    step.context.ledger.commit(*writes)
    step.context.passes.request(f"{rental.name} is given back")
    return ending


def _serving_state_after(step: _StepContext, rental: Rental) -> list[Write]:
    """Return what is remembered of a Deployment whose node goes back: that no replica came, or that one did again."""
    if rental.serving_target is None or rental.state is not RentalState.READY:
        return []
    row = step.context.ledger.get(rows.serving_key(rental.job_id))
    if row is None:
        return []
    idle_seconds = (step.context.now - (rental.idle_since or step.context.now)).total_seconds()
    if not rental.was_used and idle_seconds < step.context.policy.burst.quiet_seconds:
        return []  # it was lost before any replica could come
    memory = rows.read(row, ServingState)
    after = memory.after_end(was_used=rental.was_used, now=step.context.now)
    return [] if after == memory else [Put(rows.serving_row(after, row.version))]


_STEPS = {
    RentalStep.CHECK: _check,
    RentalStep.OPEN: _open,
    RentalStep.HAND_OVER: _hand_over,
    RentalStep.NEXT: _next_offer,
    RentalStep.RELEASE: _release,
    RentalStep.SETTLE: _settle,
}


# ---------------------------------------------------------------- what is there


def _is_in_use(step: _StepContext, found: _LoadedRental) -> bool:
    rental = found.rental
    if found.job is None:
        is_due = rental.due_at is not None and step.context.now >= rental.due_at
        pods = [pod for name in rental.node_names for pod in step.context.cluster.pods(rental.offer.cluster, name)]
        there = {node.name for node in step.context.cluster.nodes(rental.offer.cluster)}
        return not is_due and any(pod.node_name in there for pod in replicas_on(rental, pods))
    row = step.context.ledger.get(rows.attempt_key(found.job.job_id, found.job.current_attempt))
    attempt = rows.read(row, Attempt) if row else None
    return attempt is not None and not attempt.state.has_ended and runs_on_rental(attempt, found.rental)


def _holds(ledger: Ledger) -> tuple[RentalAllocation, ...]:
    return rentals.load(ledger).holds


def _other_rentals(step: _StepContext, rental: Rental) -> tuple[Rental, ...]:
    """Return the other rentals of the pool in force."""
    place = (rental.offer.cluster, rental.offer.pool)
    return tuple(
        each
        for each in rentals.load(step.context.ledger).rentals
        if each.name != rental.name and (each.offer.cluster, each.offer.pool) == place
    )


def _with_other_rentals_nodes(rental: Rental, others: tuple[Rental, ...]) -> Rental:
    """Return a rental with the nodes of its pool that are others': who waits for its own reads its row alone."""
    return rental.but(other_rentals_nodes=tuple(sorted({name for each in others for name in each.node_names})))


def _set_limit(step: _StepContext, offer: RentalOffer) -> LimitResult:
    """Set a pool's limit to what is rented of it, refused offers and ending rentals left out."""

    def rented() -> tuple[int, int]:
        there = [
            each
            for each in rentals.load(step.context.ledger).rentals
            if each.state.serves
            and not each.offer.refused
            and (each.offer.cluster, each.offer.pool) == (offer.cluster, offer.pool)
        ]
        nodes = sum(each.nodes for each in there)
        return nodes, sum(each.nodes * each.offer.accelerators_per_node for each in there)

    return step.context.cluster.set_pool_limit(offer.cluster, offer.pool, rented)


def _return_offer(step: _StepContext, rental: Rental) -> str:
    """Take back all of the offer in force: pods, limit, machines. Say what is still there; empty where nothing is."""
    offer = rental.offer
    are_pods_gone = step.context.cluster.delete_capacity_pods(offer.cluster, rental.namespace, rental.pods_name)
    _set_limit(step, offer)
    claims = _return_unassigned_nodes(step, rental)
    if not are_pods_gone:
        return f"Capacity pods of {rental.name} still exist."
    mine = {claim.node_name for claim in claims} | {*offer.joined_node_names, *rental.node_names}
    nodes = [node.name for node in step.context.cluster.nodes(offer.cluster) if node.name in mine]
    if claims or nodes:
        return f"{len(claims) or len(nodes)} machines of {offer.pool} still exist."
    return ""


def _return_unassigned_nodes(step: _StepContext, rental: Rental) -> tuple[NodeClaim, ...]:
    """Have machines of a rental's pool given back that are no rental's, and its own once it is given up.

    A machine that has not joined yet may be meant for any rental that waits for nodes of this pool: it stays then.

    Returns:
        Those that were there.
    """
    offer, others = rental.offer, _other_rentals(step, rental)
    taken = {name for each in others if each.state is not RentalState.ENDING for name in each.node_names}
    keeps_own = rental.state is RentalState.READY
    own = {*rental.node_names, *(offer.joined_node_names if not keeps_own else ())}
    others_wait = any(each.state is RentalState.OPENING and not each.offer.refused for each in others)
    found = []
    for claim in step.context.cluster.claims(offer.cluster, offer.pool):
        if claim.node_name and claim.node_name in taken:
            continue
        is_own = bool(claim.node_name) and claim.node_name in own
        if (keeps_own and is_own) or (not is_own and others_wait):
            continue
        found.append(claim)
    if not keeps_own and (came := [claim.node_name for claim in found if claim.node_name]):
        _record_joined_nodes(step, rental, came)
    for claim in found:
        step.context.cluster.delete_claim(offer.cluster, claim.name)
    return tuple(found)


def _record_joined_nodes(step: _StepContext, rental: Rental, names: list[str]) -> None:
    """Write down whose bill these machines are on, before they go."""
    row = step.context.ledger.get(rows.rental_key(rental.job_id, rental.number))
    if row is None:
        return
    before = rows.read(row, Rental)
    after = before.with_joined_nodes(names[: before.nodes])
    if after != before:
        step.context.ledger.commit(Put(rows.rental_row(after, row.version)))


def _recheck_seconds(step: _StepContext) -> int:
    """Return the pause between two looks at what is still to go: machines take minutes."""
    return 2 * step.context.policy.jobs.launch_retry_seconds


def _efa(step: _StepContext, rental: Rental, offer: RentalOffer) -> int:
    """Return the EFA interfaces that each rented node must have: all of them where a job with several nodes gets it."""
    if rental.serving_target or rental.nodes < 2:
        return 0
    machine = efa.EfaNode(offer.pool, offer.instance_type)
    return efa.expected_interfaces(machine, step.context.policy.scheduling.efa_interfaces)


def _resource(offer: RentalOffer) -> str:
    family = offer.instance_type.removeprefix("ml.")
    return "aws.amazon.com/neuron" if family.startswith(("trn", "inf")) else "nvidia.com/gpu"


def _shortages(step: _StepContext) -> Row:
    return step.context.ledger.get(rows.shortages_key()) or Row(rows.shortages_key(), {})


def _raise_tree_version(tree: Row) -> Put:
    return Put(Row(tree.key, tree.doc, tree.version))
