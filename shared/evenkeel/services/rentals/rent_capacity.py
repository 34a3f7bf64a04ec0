"""The tasks of burst_capacity: ask a pool for a rental's nodes, assign them, ask the next pool, release everything.

    CHECK ── OPEN ── (nodes join) ── HAND_OVER ── (the job runs) ── RELEASE until nothing is left ── SETTLE
               ▲          │ refused, late                              ▲
               └── NEXT ──┴── no other pool ───────────────────────────┘

Each step reads the present state, does the missing work and reports its progress. A rental takes its part of the caps
until its last node is gone. Only then its bill is written and the rental ends.
"""

from enum import StrEnum
from typing import Any, NamedTuple

from evenkeel.domain.decisions import Decision
from evenkeel.domain.economics import money
from evenkeel.domain.external.kueue_status import KueueStatus
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job, JobState, PlacementNote
from evenkeel.domain.plurals import count_of
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.renting.burst_policy import RentedPool
from evenkeel.domain.renting.candidates import facts_for_next_offer, offered_pool
from evenkeel.domain.renting.placement import PlacementAction, PlacementFacts, choose_pool
from evenkeel.domain.renting.rental import (
    Rental,
    RentalChange,
    RentalState,
    assign_nodes,
    end_rental,
    next_offer,
    nodes_subject,
    refuse_offer,
    release_rental,
    with_joined_nodes,
    with_other_rentals_nodes,
)
from evenkeel.domain.renting.rental_book import spend_limits
from evenkeel.domain.renting.rental_waits import (
    is_base,
    is_queued,
    is_usable,
    joined_nodes,
    may_use_nodes,
    why_job_does_not_wait,
    why_no_replica_waits,
)
from evenkeel.domain.renting.serving_rentals import ServingState, registration_of, replicas_on
from evenkeel.domain.values import Value
from evenkeel.ports import LimitResult, NotFound, Put, Row, Write
from evenkeel.services.context import Context
from evenkeel.services.rentals import pool_nodes, rental_store
from evenkeel.services.storage import scheduling_hold
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import job_rows, quota_rows, rows, subject_rows

WRITER = "rent_capacity"


class RentalStep(StrEnum):
    """A task of the workflow."""

    CHECK = "CHECK"
    OPEN = "OPEN"
    HAND_OVER = "HAND_OVER"
    NEXT = "NEXT"
    RELEASE = "RELEASE"
    SETTLE = "SETTLE"


class RentCapacityRequest(Value):
    """A step of one rental."""

    schema_version: int = 1
    step: RentalStep
    job_id: str
    rental: int
    reason: str = ""
    """Why the current offer is given up (NEXT), or the rental (RELEASE)."""
    offer: int = 0
    """Number of the offer that is given up (NEXT); 0 if the workflow does not know it."""
    failure: dict[str, Any] | None = None
    """`{Error, Cause}` if the workflow itself failed."""

    @property
    def why(self) -> str:
        """The reason as a sentence."""
        return f"The workflow of the rental failed: {self.failure.get('Error')}." if self.failure else self.reason


class RentOutcome(StrEnum):
    """Outcome of one step of burst_capacity. A prefix such as `CHECK:` names the step that returns it."""

    WANTED = "WANTED"
    """CHECK: the holder waits for its nodes, and the caps allow them."""
    READY = "READY"
    """CHECK: its nodes are assigned."""
    ENDING = "ENDING"
    """CHECK: return its nodes."""
    STALE = "STALE"
    """The rental has ended."""
    OPENED = "OPENED"
    """OPEN: the pool may launch its nodes. NEXT: the next pool may."""
    REFUSED = "REFUSED"
    """OPEN: the pool cannot be rented from."""
    NOT_WANTED = "NOT_WANTED"
    """The holder no longer waits for the rental, or a person or the mode forbids rentals now."""
    HANDED_OVER = "HANDED_OVER"
    NOT_YET = "NOT_YET"
    """Ask again after `waitSeconds`."""
    NO_OTHER_POOL = "NO_OTHER_POOL"
    """NEXT: no other pool can run the job now."""
    IN_USE = "IN_USE"
    """RELEASE: the job runs on its nodes."""
    RELEASED = "RELEASED"
    """RELEASE: all of its nodes are gone."""
    SETTLED = "SETTLED"


class RentCapacityResult(Value):
    """Answer of a step, with its reason."""

    outcome: RentOutcome
    reason: str
    wait_seconds: int = 0
    offer: int = 0
    """Number of the rental's current offer (OPEN)."""


class _StepInput(NamedTuple):
    """A call with its request and everything that was read for it."""

    request: RentCapacityRequest
    context: Context
    rental: Rental
    version: int
    job: Job | None
    """The holder; None if the holder is a Deployment."""
    job_version: int
    tree: Row

    @property
    def cluster_name(self) -> str:
        """Cluster of the current offer."""
        return self.rental.offer.cluster

    def commit(self, change: RentalChange, *other_writes: Write, decision_record: Decision | None = None) -> Rental:
        """Commit one transition. If capacity changes, the commit fails after any admission since the tree was read.

        A node is on one bill: the same commit takes it off the bills of other rentals that saw it.
        """
        capacity_writes: list[Write] = []
        if change.changes_capacity:
            capacity_writes = [Put(Row(self.tree.key, self.tree.doc, self.tree.version))]
            capacity_writes += pool_nodes.bill_transfer_writes(change.rental, self.context)
        writes = rental_store.writes_of(
            change, self.version, self.context, writer=WRITER, decision_record=decision_record
        )
        token = decision_record.decision_id if decision_record else ""
        self.context.ledger.commit(*capacity_writes, *writes, *other_writes, client_token=token)
        return change.rental

    def store(self, rental: Rental) -> None:
        """Store new observations of the rental."""
        if rental != self.rental:
            self.context.ledger.commit(Put(job_rows.rental_row(rental, self.version)))


def run(request: RentCapacityRequest, context: Context) -> RentCapacityResult:
    """Do one step of a rental.

    Idempotent: yes, by the rental's state; a repeated step finds the finished work and does the rest.

    Raises:
        NotFound: There is no such rental.
    """

    def commit_once() -> RentCapacityResult:
        step_input = _load_step_input(request, context)
        if step_input.rental.state is RentalState.ENDED:
            return RentCapacityResult(outcome=RentOutcome.STALE, reason=step_input.rental.reason)
        result = _STEPS[request.step](step_input)
        is_opened = request.step is RentalStep.OPEN
        return result.replace(offer=len(step_input.rental.offers)) if is_opened else result

    return until_committed(commit_once, f"rental {request.rental} of {request.job_id} kept changing")


def _load_step_input(request: RentCapacityRequest, context: Context) -> _StepInput:
    # Read the quota tree first. Each commit of this step is conditional on its version, so it fails if a job was
    # admitted after this read.
    ledger = context.ledger
    tree = ledger.get(quota_rows.tree_key()) or Row(quota_rows.tree_key(), {})
    row = ledger.get(job_rows.rental_key(request.job_id, request.rental))
    job = ledger.get(job_rows.job_key(request.job_id))
    rental = rows.decode(row, Rental) if row else None
    if row is None or rental is None or (job is None and rental.serving_target is None):
        raise NotFound(f"There is no rental {request.rental} of {request.job_id}.")
    holder, holder_version = (rows.decode(job, Job), job.version) if job else (None, 0)
    return _StepInput(request, context, rental, row.version, holder, holder_version, tree)


# ---------------------------------------------------------------- the steps


def _check_rental(step_input: _StepInput) -> RentCapacityResult:
    """Check that the rental is still needed and allowed (state CheckRental).

    If the workflow was restarted, return the outcome that leads to the state where it stopped.
    """
    rental = step_input.rental
    if rental.state is RentalState.READY:
        _delete_capacity_pods(step_input)
        return RentCapacityResult(outcome=RentOutcome.READY, reason="The job received its nodes.")
    if rental.state is RentalState.ENDING:
        return RentCapacityResult(outcome=RentOutcome.ENDING, reason=rental.reason)
    why_not = _why_rental_ends(step_input)
    if why_not:
        return RentCapacityResult(outcome=RentOutcome.ENDING, reason=why_not)
    return RentCapacityResult(outcome=RentOutcome.WANTED, reason=rental.reason)


def _why_rental_ends(step_input: _StepInput) -> str:
    """Say why nothing is rented after all; empty if it is. The caps may be lower than at the decision."""
    rental, policy = step_input.rental, step_input.context.policy
    why_not_waiting = _why_holder_does_not_wait(step_input)
    if why_not_waiting:
        return why_not_waiting
    if why_not_now := _why_not_rent_now(step_input):
        return why_not_now
    limits = spend_limits(rental.team, rental_store.load(step_input.context.ledger).allocations, policy.burst)
    for scope, spent, cap in limits.exceeded_caps(rental.team):
        limit, rate = (money.format_usd(rate_micros * 3600) for rate_micros in (cap, spent))
        return (
            f"{scope[0].upper()}{scope[1:]} may rent for at most {limit} an hour; this rental would bring it to {rate}."
        )
    if offered_pool(rental, policy.burst.pools) is None:
        return f"The policy no longer names pool {rental.offer.pool}."
    return ""


def _why_not_rent_now(step_input: _StepInput) -> str:
    """Say why neither the mode nor a person allows rentals now; empty if both do.

    For a job, the mode decides by the same rule as for its launch.
    """
    job, mode = step_input.job, step_input.context.mode
    if (job.launch_mode(mode, job.current_attempt + 1) if job else mode) is not Mode.ACT:
        return f"Mode is {mode}: Evenkeel rents nothing."
    return scheduling_hold.wait_reason(step_input.context)


def _why_holder_does_not_wait(step_input: _StepInput) -> str:
    """Say why the holder no longer waits for the rental; empty if it does."""
    rental, context = step_input.rental, step_input.context
    if step_input.job is not None:
        return why_job_does_not_wait(rental, step_input.job, _kueue_status(step_input))
    # Read pods first: a pod bound between the two reads then appears unbound, or bound to a listed node.
    pods, nodes = context.cluster.pods(step_input.cluster_name), context.cluster.nodes(step_input.cluster_name)
    own_rentals = [other for other in rental_store.load(context.ledger).rentals if other.job_id == rental.job_id]
    return why_no_replica_waits(rental, own_rentals, context.policy.scheduling.serving, pods, nodes)


def _delete_capacity_pods(step_input: _StepInput) -> None:
    """Delete the capacity pods on nodes that the Kubernetes scheduler assigns to replicas or a job of Kueue.

    Other jobs' capacity pods are deleted when the job's own pods exist. Idempotent: yes, a pod that is gone is success.
    """
    job = step_input.job
    if step_input.rental.serving_target is not None or (job is not None and job.local_queue):
        step_input.context.cluster.delete_capacity_pods(
            step_input.cluster_name, step_input.rental.namespace, step_input.rental.pods_name
        )


def _open_pool(step_input: _StepInput) -> RentCapacityResult:
    """Raise the pool's limit by the rented nodes, and request all nodes at once (state OpenPool)."""
    rental, context = step_input.rental, step_input.context
    if rental.state is not RentalState.OPENING:
        return RentCapacityResult(outcome=RentOutcome.NOT_WANTED, reason=rental.reason)
    why_not = _why_holder_does_not_wait(step_input) or _why_not_rent_now(step_input)
    if why_not:
        return RentCapacityResult(outcome=RentOutcome.NOT_WANTED, reason=why_not)
    offer = rental.offer
    if offer.refused:  # an earlier execution died while it released this offer
        return RentCapacityResult(outcome=RentOutcome.REFUSED, reason=offer.refused)
    step_input.store(with_other_rentals_nodes(rental, pool_nodes.others_in_pool(rental, context)))
    limit_result = pool_nodes.set_limit(rental, context)
    if limit_result is LimitResult.UNBOUNDED:
        reason = f"NodePool {offer.pool} has no limit, and Evenkeel never opens such a pool."
        return RentCapacityResult(outcome=RentOutcome.REFUSED, reason=reason)
    if limit_result is LimitResult.GONE:
        return RentCapacityResult(
            outcome=RentOutcome.REFUSED, reason=f"NodePool {offer.pool} does not exist in {offer.cluster}."
        )
    context.cluster.create_capacity_pods(pool_nodes.capacity_pods(rental, context.policy))
    reason = f"{nodes_subject(rental.nodes, offer.pool)} requested."
    context.telemetry.info("PoolOpened", job_id=rental.job_id, rental=rental.name, pool=offer.pool)
    return RentCapacityResult(outcome=RentOutcome.OPENED, reason=reason)


def _hand_over(step_input: _StepInput) -> RentCapacityResult:
    """Assign all nodes in one commit, which raises the tree's version (state HandOver). The next cycle uses them."""
    rental, context = step_input.rental, step_input.context
    if rental.state is not RentalState.OPENING:
        outcome = RentOutcome.NOT_WANTED
        if rental.state is RentalState.READY:
            outcome = RentOutcome.HANDED_OVER
            _delete_capacity_pods(step_input)
        return RentCapacityResult(outcome=outcome, reason=rental.reason)
    why_not_waiting = _why_holder_does_not_wait(step_input)
    if why_not_waiting:
        return RentCapacityResult(outcome=RentOutcome.NOT_WANTED, reason=why_not_waiting)
    other_rentals = pool_nodes.others_in_pool(rental, context)
    other_nodes = {name for other in other_rentals for name in other.kept_from_others}
    nodes = joined_nodes(rental, context.cluster.nodes(step_input.cluster_name), other_nodes)
    if rental.serving_target is None:
        in_use = pool_nodes.nodes_in_use(step_input.cluster_name, [node.name for node in nodes], context)
        nodes = tuple(node for node in nodes if node.name not in in_use)
    usable_names = [node.name for node in nodes if is_usable(node, rental.offer)]
    if len(usable_names) < rental.nodes:
        # A node that is not ready yet may become the node of any rental of the same Deployment.
        own_nodes = () if rental.serving_target else nodes[: rental.nodes]
        step_input.store(
            with_other_rentals_nodes(with_joined_nodes(rental, [node.name for node in own_nodes]), other_rentals)
        )
        return _not_yet(
            step_input,
            f"{len(usable_names)} of {count_of(rental.nodes, 'node')} "
            f"{'is' if len(usable_names) == 1 else 'are'} ready.",
        )
    if step_input.job is not None and step_input.job.local_queue:
        # Kueue sends the job's pods to these nodes by the label. Other rentals' capacity pods avoid it.
        context.cluster.label_rented_nodes(step_input.cluster_name, usable_names[: rental.nodes], rental.name)
    change = assign_nodes(with_other_rentals_nodes(rental, other_rentals), usable_names[: rental.nodes], context.now)
    step_input = step_input._replace(rental=step_input.commit(change))
    _delete_capacity_pods(step_input)
    pool_nodes.delete_unassigned_claims(step_input.rental, context)
    context.cycle_requests.request(f"{rental.name} handed over")
    context.telemetry.count("RentalsReady")
    context.telemetry.seconds("RentalReadySeconds", (context.now - rental.begun_at).total_seconds())
    return RentCapacityResult(outcome=RentOutcome.HANDED_OVER, reason=change.text)


def _next_offer(step_input: _StepInput) -> RentCapacityResult:
    """Release the refused offer completely, record the refusal, and place the job again (state NextOffer)."""
    context = step_input.context
    if step_input.rental.state is not RentalState.OPENING:
        return RentCapacityResult(outcome=RentOutcome.NO_OTHER_POOL, reason=step_input.rental.reason)
    if step_input.request.offer and len(step_input.rental.offers) > step_input.request.offer:
        return _next_offer_is_open(step_input)
    if not step_input.rental.offer.refused:
        step_input.commit(refuse_offer(step_input.rental, step_input.request.why))
        context.telemetry.count("CapacityUnavailable", market=step_input.rental.offer.market)
        step_input = _load_step_input(step_input.request, context)
    nodes_left = pool_nodes.release_offer(step_input.rental, context)
    if nodes_left:
        return _not_yet(step_input, nodes_left)
    released_offers = step_input.rental.offers
    step_input = _load_step_input(step_input.request, context)
    rental, burst = step_input.rental, context.policy.burst
    if len(rental.offers) > len(released_offers):
        return _next_offer_is_open(step_input)
    # A later cycle compares the pools again for a job that runs on its base meanwhile.
    why_not = rental.reason if rental.joins_base else _why_holder_does_not_wait(step_input)
    if why_not := why_not or _why_not_rent_now(step_input):
        return RentCapacityResult(outcome=RentOutcome.NO_OTHER_POOL, reason=why_not)
    if len(rental.offers) >= burst.max_offers:
        return RentCapacityResult(
            outcome=RentOutcome.NO_OTHER_POOL,
            reason=f"Evenkeel asked {count_of(len(rental.offers), 'pool')}. {rental.reason}",
        )
    began = context.ledger.get(subject_rows.decision_key(rental.decision_id))
    if began is None:
        return RentCapacityResult(outcome=RentOutcome.NO_OTHER_POOL, reason=rental.reason)
    facts = facts_for_next_offer(
        PlacementFacts.model_validate(rows.decode(began, Decision).facts, extra="allow"),
        rental,
        rental_store.load(context.ledger).allocations,
        rental_store.read_shortages(context.ledger)[0],
        burst.replace(pools=_pools_for(step_input)),
        context.now,
        rental_store.budget_left_beside(rental, context),
    )
    placement = choose_pool(facts)
    if placement.action is not PlacementAction.RENT:
        return RentCapacityResult(outcome=RentOutcome.NO_OTHER_POOL, reason=placement.reason)
    decision_record = rental_store.record_of(placement, context)
    change = next_offer(rental, placement, decision_record.reason, decision_record.decision_id, burst, context.now)
    step_input.commit(change, decision_record=decision_record)
    return RentCapacityResult(outcome=RentOutcome.OPENED, reason=change.text)


def _next_offer_is_open(step_input: _StepInput) -> RentCapacityResult:
    """Return the answer for a repeated step: an earlier call has opened the next offer, which was not refused."""
    return RentCapacityResult(outcome=RentOutcome.OPENED, reason=step_input.rental.reason)


def _pools_for(step_input: _StepInput) -> tuple[RentedPool, ...]:
    """Return the pools that the next offer may come from."""
    policy = step_input.context.policy
    if step_input.rental.serving_target is None:
        return policy.pools_for_jobs
    serving_workload = registration_of(step_input.rental, policy.scheduling.serving)
    return policy.pools_for(serving_workload) if serving_workload else ()


def _release_pool(step_input: _StepInput) -> RentCapacityResult:
    """Stop new pods on the pool's nodes, and release all nodes (state ReleasePool)."""
    rental, context = step_input.rental, step_input.context
    if rental.state is not RentalState.ENDING:
        if rental.state is RentalState.READY and _is_in_use(step_input):
            users = (
                f"Replicas of {rental.serving_target.label} run" if rental.serving_target else f"{rental.job_id} runs"
            )
            return RentCapacityResult(outcome=RentOutcome.IN_USE, reason=f"{users} on these nodes.")
        nodes = context.cluster.nodes(step_input.cluster_name)
        usable = [node.name for node in nodes if is_usable(node, rental.offer)]
        change = release_rental(rental, step_input.request.why, usable)
        writes = (*_serving_state_writes(step_input), *_base_writes(step_input, change.rental.reason))
        ending_rental = step_input.commit(change, *writes)
        context.cycle_requests.request(f"{rental.name} is released")
        step_input = step_input._replace(rental=ending_rental)
    nodes_left = pool_nodes.release_offer(step_input.rental, context)
    if nodes_left:
        return _not_yet(step_input, nodes_left)
    return RentCapacityResult(outcome=RentOutcome.RELEASED, reason="All of its nodes are gone.")


def _settle_rental(step_input: _StepInput) -> RentCapacityResult:
    """Write the bill and free the caps, once nothing of the rental is left (state SettleRental)."""
    rental, context = step_input.rental, step_input.context
    if rental.state is not RentalState.ENDING:
        return RentCapacityResult(
            outcome=RentOutcome.NOT_YET, reason=f"The rental is {rental.state}. Another run of its workflow continues."
        )
    nodes_left = pool_nodes.release_offer(step_input.rental, context)
    if nodes_left:
        return RentCapacityResult(outcome=RentOutcome.NOT_YET, reason=nodes_left)
    step_input = _load_step_input(step_input.request, context)
    change = end_rental(step_input.rental, context.now)
    ended_rental = step_input.commit(change)
    context.cycle_requests.request(f"{rental.name} ended")
    context.telemetry.count("RentalsEnded")
    context.telemetry.count("RentalCostUsd", ended_rental.cost_parts / money.COST_PARTS_PER_USD)
    context.telemetry.info("RentalEnded", job_id=rental.job_id, rental=rental.name, cost=ended_rental.shown_cost)
    return RentCapacityResult(outcome=RentOutcome.SETTLED, reason=change.text)


def _base_writes(step_input: _StepInput, reason: str) -> tuple[Write, ...]:
    """Return the write that tells a job why rented nodes no longer join its base.

    If its base runs and never got these nodes, its growth has failed: the job may grow again after a pause. Otherwise
    nodes that cannot join would be rented again and again.
    """
    rental, job = step_input.rental, step_input.job
    if not rental.joins_base or job is None or job.state.is_at_rest or job.rentals != rental.number:
        return ()
    note = PlacementNote(key=f"RELEASED/{rental.name}", text=f"Rental {rental.number} was released: {reason}")
    changed_job = job.replace(mixed_note=note)
    if rental.state is RentalState.READY and job.state is JobState.RUNNING and job.live_resize() is None:
        row = step_input.context.ledger.get(job_rows.attempt_key(job.job_id, job.current_attempt))
        if row is not None and is_base(rental, rows.decode(row, Attempt)):
            changed_job = changed_job.replace(
                failed_growths=job.failed_growths + 1, growth_failed_at=step_input.context.now
            )
    return (rental_store.note_write(changed_job, step_input.job_version),)


def _serving_state_writes(step_input: _StepInput) -> tuple[Write, ...]:
    """Return the write of whether replicas used the node of a Deployment, if that is new."""
    rental, context = step_input.rental, step_input.context
    if rental.serving_target is None or rental.state is not RentalState.READY:
        return ()
    row = context.ledger.get(job_rows.serving_key(rental.job_id))
    if row is None:
        return ()
    idle_seconds = (context.now - (rental.idle_since or context.now)).total_seconds()
    if not rental.was_used and idle_seconds < context.policy.burst.quiet_seconds:
        return ()  # the node was lost before any replica could start
    state = rows.decode(row, ServingState)
    new_state = state.after_return(was_used=rental.was_used, now=context.now)
    return () if new_state == state else (Put(job_rows.serving_row(new_state, row.version)),)


_STEPS = {
    RentalStep.CHECK: _check_rental,
    RentalStep.OPEN: _open_pool,
    RentalStep.HAND_OVER: _hand_over,
    RentalStep.NEXT: _next_offer,
    RentalStep.RELEASE: _release_pool,
    RentalStep.SETTLE: _settle_rental,
}


# ---------------------------------------------------------------- what the steps ask


def _not_yet(step_input: _StepInput, reason: str) -> RentCapacityResult:
    """Return the answer for a step that waits for nodes. Nodes need minutes to join or to leave a cluster."""
    seconds = 2 * step_input.context.policy.jobs.launch_retry_seconds
    return RentCapacityResult(outcome=RentOutcome.NOT_YET, reason=reason, wait_seconds=seconds)


def _is_in_use(step_input: _StepInput) -> bool:
    rental, context = step_input.rental, step_input.context
    if step_input.job is None:
        is_due = rental.due_at is not None and context.now >= rental.due_at
        pods = [pod for name in rental.node_names for pod in context.cluster.pods(step_input.cluster_name, name)]
        names = {node.name for node in context.cluster.nodes(step_input.cluster_name)}
        return not is_due and any(pod.node_name in names for pod in replicas_on(rental, pods))
    row = context.ledger.get(job_rows.attempt_key(step_input.job.job_id, step_input.job.current_attempt))
    attempt = rows.decode(row, Attempt) if row else None
    if attempt is None or attempt.state.has_ended:
        return False
    return rental.hosts(attempt) or (
        is_queued(attempt) and may_use_nodes(rental, attempt, context.cluster.workload(attempt).kueue)
    )


def _kueue_status(step_input: _StepInput) -> KueueStatus | None:
    """Return Kueue's status of a job in its queue; None if Kueue does not admit it."""
    job, context = step_input.job, step_input.context
    if job is None or not job.local_queue or job.state is not JobState.STARTING:
        return None
    row = context.ledger.get(job_rows.attempt_key(job.job_id, job.current_attempt))
    return context.cluster.workload(rows.decode(row, Attempt)).kueue if row else None
