"""Open rentals in the ledger: read, started and committed. Scheduling cycles and the workflow use this module.

A rental, its reason and its decision record are one commit, which raises the version of the quota tree as admissions
do. So the caps hold, whatever other cycle runs. A crash after the commit leaves a rental without its workflow, which
the sweep starts.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.decisions import Decision
from evenkeel.domain.external.adoption_policy import ServingWorkload
from evenkeel.domain.external.serving import holder_id
from evenkeel.domain.jobs.attempt import Attempt, run_seconds
from evenkeel.domain.jobs.job import Job, PlacementNote
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.quotas.budgets import add_rent, remaining_by_team, rent_by_period
from evenkeel.domain.quotas.spending import Spending
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.migration import DepartureDecision
from evenkeel.domain.renting.mixed_capacity import MixedAction, MixedDecision
from evenkeel.domain.renting.placement import NotPlaced, PlacementDecision, must_avoid_spot
from evenkeel.domain.renting.rental import (
    CapacityAnswer,
    Rental,
    RentalChange,
    RentalHolder,
    RentalState,
    RentalTerms,
    open_rental,
    return_replicas,
)
from evenkeel.domain.renting.rental_book import RentalAllocation, RentalBook
from evenkeel.domain.renting.serving_rentals import ServingState
from evenkeel.domain.scheduling.serving_demand import ServingRentalPlan, ServingReturn
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import Add, Delete, Key, Ledger, Put, Refused, TransientError, WorkflowName, Write, get_all
from evenkeel.services.context import Context
from evenkeel.services.storage import batches, charge_rows, team_setup
from evenkeel.services.storage.decision_record import decision_of
from evenkeel.services.storage.quota_tree import QuotaTree
from evenkeel.services.tables import fleet_rows, job_rows, quota_rows, rows, subject_rows

WRITER, SERVING_WRITER = "schedule_jobs", "rent_for_serving"
_LAST_ATTEMPTS = 20
_FITS_COMMITTED = PlacementNote(
    key="FITS_COMMITTED", text="Committed nodes can run its replicas now, or after other jobs have stopped or shrunk."
)

# ---------------------------------------------------------------- read


def load(ledger: Ledger) -> RentalBook:
    """Read the open rentals: two round trips, or one if there are none."""
    allocations = load_allocations(ledger)
    keys = [job_rows.rental_key(allocation.job_id, allocation.number) for allocation in allocations]
    return RentalBook(tuple(rows.decode(row, Rental) for row in get_all(ledger, keys).values()), allocations)


def load_readable(ledger: Ledger, unreadable_keys: set[Key]) -> RentalBook:
    """Read the open rentals to show them, as `load`. Unreadable rows are left out; their keys are added to the set."""
    key = quota_rows.rental_allocation_key("", 0)
    stored_allocations = ledger.partition(key.table, key.pk, "RENTAL#")
    allocations = tuple(rows.readable_values(stored_allocations, RentalAllocation, unreadable_keys))
    keys = [job_rows.rental_key(allocation.job_id, allocation.number) for allocation in allocations]
    stored_rentals = get_all(ledger, keys).values()
    return RentalBook(tuple(rows.readable_values(stored_rentals, Rental, unreadable_keys)), allocations)


def count_unreadable(ledger: Ledger) -> int:
    """Count the rows of open rentals that this release cannot read."""
    unreadable_keys: set[Key] = set()
    load_readable(ledger, unreadable_keys)
    return len(unreadable_keys)


def load_allocations(ledger: Ledger) -> tuple[RentalAllocation, ...]:
    """Read the shares of the open rentals in caps and limits, in one round trip."""
    key = quota_rows.rental_allocation_key("", 0)
    return tuple(rows.decode(row, RentalAllocation) for row in ledger.partition(key.table, key.pk, "RENTAL#"))


def read_shortages(ledger: Ledger) -> tuple[Shortages, int]:
    """Return the recent refusals of capacity, with the version of their row."""
    row = ledger.get(fleet_rows.shortages_key())
    return (rows.decode(row, Shortages), row.version) if row else (Shortages(), 0)


def read_attempts(ledger: Ledger, jobs: Iterable[Job]) -> tuple[Attempt, ...]:
    """Return the last attempts of these jobs, for estimates. Unreadable ones are left out; the sweep reports them."""
    keys = [
        job_rows.attempt_key(job.job_id, number)
        for job in jobs
        for number in range(max(1, job.current_attempt - _LAST_ATTEMPTS + 1), job.current_attempt + 1)
    ]
    return tuple(attempt for _, attempt in rows.readable_rows(get_all(ledger, keys).values(), Attempt))


def read_done_seconds(ledger: Ledger, running_jobs: Iterable[Job]) -> dict[str, float]:
    """Return the run time of the ended attempts of running jobs, by job. Jobs in their first attempt are left out."""
    return run_seconds(read_attempts(ledger, (job for job in running_jobs if job.current_attempt > 1)))


def serving_states(serving_workloads: Iterable[ServingWorkload], ledger: Ledger) -> dict[str, tuple[ServingState, int]]:
    """Return the stored state of each Deployment that nodes may be rented for, by its id, with its row's version."""
    names = [holder_id(workload) for workload in serving_workloads if workload.rents_from]
    stored_states = (
        (rows.decode(row, ServingState), row.version)
        for row in get_all(ledger, map(job_rows.serving_key, names)).values()
    )
    return {state.holder_id: (state, version) for state, version in stored_states}


# ---------------------------------------------------------------- budgets


def spent_by_period(setup: TeamSetup, context: Context, rentals: Iterable[Rental]) -> dict[tuple[str, str], Spending]:
    """Return by team and period the usage of settled attempts and rentals, plus the rents of open rentals.

    Args:
        setup: The teams. Rows are read only for teams with budgets.
        rentals: Open rentals, read before this call. A rental that ends meanwhile may count twice, never not at all.
    """
    periods = [(team.name, budget.period.key_at(context.now)) for team in setup.teams for budget in team.budgets]
    spent = [context.ledger.get(quota_rows.spent_key(team, period)) for team, period in periods]
    settled_spending = {
        team_and_period: rows.decode(row, Spending) for team_and_period, row in zip(periods, spent, strict=True) if row
    }
    return add_rent(settled_spending, setup, rentals, context.now)


def budget_left_beside(rental: Rental, context: Context) -> int | None:
    """Return the dollars that the team has left without this rental, in parts; None without a budget in dollars."""
    setup = team_setup.load_setup(context.ledger).setup
    team = setup.by_name.get(rental.team)
    if team is None or all(budget.usd is None for budget in team.budgets):
        return None
    own_setup = setup.replace(teams=(team,))
    all_rentals = load(context.ledger).rentals
    charges = charge_rows.live_charges(context.ledger)
    rentals = [other for other in all_rentals if other.name != rental.name]
    return remaining_by_team(
        own_setup,
        spent_by_period(own_setup, context, all_rentals),
        charges,
        rentals,
        context.policy.economy,
        context.now,
    )[team.name]


# ---------------------------------------------------------------- commit


def record_of(placement: PlacementDecision, context: Context) -> Decision:
    """Return the decision record of a placement."""
    recorded_placement = placement.replace_unchecked(reason=placement.recorded_reason(context.mode))
    return decision_of("PLACEMENT", placement.job_id, placement.action, recorded_placement, placement.facts, context)


def writes_of(
    change: RentalChange, version: int, context: Context, *, writer: str, decision_record: Decision | None = None
) -> tuple[Write, ...]:
    """Return all writes of one transition. One commit must hold all of them.

    Args:
        change: The transition.
        version: Version of the rental's row before it; 0 for a new rental.
        context: The ledger is read for the allocation and the refusals.
        writer: The service, for the timeline.
        decision_record: The decision behind the transition.
    """
    rental = change.rental
    return (
        Put(job_rows.rental_row(rental, version)),
        *_allocation_writes(change, version, context.ledger),
        *_timeline_writes(change, context.now, writer, decision_record),
        *([Put(subject_rows.decision_row(decision_record))] if decision_record else ()),
        *(_shortage_writes(change.capacity_answer, rental, context) if change.capacity_answer else ()),
        # The final state is written once, so its cost is added to the team's budgets once.
        *(
            Add(quota_rows.spent_key(rental.team, period_rent.key), period_rent.spent.to_json())
            for period_rent in (rent_by_period(rental, context.now) if rental.state is RentalState.ENDED else ())
        ),
    )


def _allocation_writes(change: RentalChange, version: int, ledger: Ledger) -> tuple[Write, ...]:
    """Return the write of a rental's share in caps and limits: put with each offer, deleted at the end."""
    rental = change.rental
    has_ended = rental.state is RentalState.ENDED
    if not change.has_new_offer and not has_ended:
        return ()
    stored_row = ledger.get(quota_rows.rental_allocation_key(rental.job_id, rental.number)) if version else None
    if has_ended:
        return (Delete(stored_row.key, stored_row.version),) if stored_row else ()
    return (Put(quota_rows.rental_allocation_row(rental, stored_row.version if stored_row else 0)),)


def _timeline_writes(
    change: RentalChange, now: datetime, writer: str, decision_record: Decision | None
) -> tuple[Write, ...]:
    if not change.kind:
        return ()
    decision_id = decision_record.decision_id if decision_record else ""
    entry = TimelineEntry(at=now, kind=change.kind, text=change.text, decision_id=decision_id, writer=writer)
    return (Put(subject_rows.timeline_row(change.rental.job_id, entry, change.event)),)


def _shortage_writes(answer: CapacityAnswer, rental: Rental, context: Context) -> tuple[Write, ...]:
    shortages, version = read_shortages(context.ledger)
    offer = rental.offer
    offering = (offer.instance_type, offer.zone, offer.market)
    new_shortages = (
        shortages.with_refusal(*offering, context.now)
        if answer is CapacityAnswer.REFUSED
        else shortages.with_success(*offering)
    )
    return () if new_shortages == shortages else (Put(fleet_rows.shortages_row(new_shortages, version)),)


# ---------------------------------------------------------------- its workflow


def start(rental: Rental, context: Context) -> bool:
    """Start the workflow of a rental; False if that failed. Then the sweep starts it.

    Idempotent: yes, by the execution's name; an execution that exists is success.
    """
    document = {"schemaVersion": 1, "jobId": rental.job_id, "rental": rental.number}
    try:
        context.workflows.start(WorkflowName.BURST_CAPACITY, rental.execution_name, document)
    except TransientError as error:
        context.telemetry.warning("RentalWorkflowNotStarted", job_id=rental.job_id, error=str(error))
        return False
    return True


def delete_capacity_pods_of(job: Job, attempt: Attempt, context: Context) -> None:
    """Delete the capacity pods on an attempt's rented nodes, so that the attempt's own pods can be scheduled there.

    Idempotent: yes, a pod that is already gone is no error.
    """
    row = context.ledger.get(job_rows.rental_key(job.job_id, job.rentals)) if job.rentals else None
    rental = rows.decode(row, Rental) if row else None
    if rental is not None and rental.hosts(attempt):
        context.cluster.delete_capacity_pods(rental.offer.cluster, rental.namespace, rental.pods_name)


# ---------------------------------------------------------------- begin


class JobRentalOpening(NamedTuple):
    """A rental that is about to begin for a job."""

    change: RentalChange
    decision_record: Decision
    job: Job
    """The job with the rental."""


def open_for_job(job: Job, placement: PlacementDecision, context: Context) -> JobRentalOpening:
    """Return the next rental of a job that waits. Nothing is written."""
    plan = job.live_plan()
    is_temporary = plan is not None and plan.is_faulty_node_committed
    holder = RentalHolder(
        job.job_id,
        job.rentals + 1,
        job.spec.team,
        job.namespace,
        due_at=context.now + timedelta(seconds=context.policy.burst.temporary_seconds) if is_temporary else None,
        incident_id=plan.incident_id if plan and is_temporary else "",
    )
    decision_record = record_of(placement, context)
    change = open_rental(
        holder, RentalTerms.of(placement), decision_record.decision_id, context.policy.burst, context.now
    )
    opened_job = job.replace(
        reason=change.text,
        rentals=holder.number,
        placement=None,
        avoids_spot=must_avoid_spot(placement.facts),
        is_migrating_back=False,
    )
    return JobRentalOpening(change, decision_record, opened_job)


def begin_for_job(job: Job, version: int, placement: PlacementDecision, tree: QuotaTree, context: Context) -> None:
    """Begin a rental for a pending job, and start its workflow.

    Idempotent: yes, the commit is conditional on the versions of the tree and of the job's row.

    Raises:
        Conflict: The tree or the job has changed.
        Refused: The ledger refuses the rental.
    """
    opening = open_for_job(job, placement, context)
    commit_opening(opening, Put(job_rows.job_row(opening.job, version)), tree, context)


def commit_opening(opening: JobRentalOpening, job_write: Write, tree: QuotaTree, context: Context) -> None:
    """Commit a rental together with the row of its job, and start its workflow. As `begin_for_job`."""
    change = opening.change
    _commit_rental_begin(change, opening.decision_record, job_write, tree, context)
    context.telemetry.info(
        "NodesRented", job_id=opening.job.job_id, rental=change.rental.name, pool=change.rental.offer.pool
    )


def begin_for_bases(decisions: Iterable[tuple[MixedDecision, Job, int]], tree: QuotaTree, context: Context) -> None:
    """Begin rentals that join running jobs, and record once why the other jobs get none.

    Idempotent: yes, each commit is conditional on the versions of the tree and of the job's row.

    Args:
        decisions: The decision about each job, with the job and the version of its row.
        tree: The quota tree as this cycle last wrote it.
        context: Ports, policy, mode and time.
    """
    for decision, job, version in decisions:
        try:
            if decision.action is MixedAction.RENT and context.mode is Mode.ACT:
                _begin_for_base(job, version, decision, tree, context)
            else:
                _record_mixed_note(job, version, decision, context)
        except Refused as refusal:
            batches.note_refusal(context.telemetry, job.job_id, refusal)


def _begin_for_base(job: Job, version: int, decision: MixedDecision, tree: QuotaTree, context: Context) -> None:
    """Begin a rental whose nodes join the committed nodes of a running job, and start its workflow.

    Idempotent: yes, the commit is conditional on the versions of the tree and of the job's row.

    Raises:
        Conflict: The tree or the job has changed.
        Refused: The ledger refuses the rental.
    """
    chosen_option = decision.chosen
    assert chosen_option is not None  # a decision that rents has an option
    holder = RentalHolder(job.job_id, job.rentals + 1, job.spec.team, job.namespace, joins_base=True)
    decision_record = _mixed_record(decision, context)
    terms = RentalTerms(chosen_option.pool, chosen_option.rented_nodes, decision.reason, chosen_option.rent_parts)
    change = open_rental(holder, terms, decision_record.decision_id, context.policy.burst, context.now)
    note = PlacementNote(key=decision.note_key, text=decision.reason, decision_id=decision_record.decision_id)
    job_with_rental = job.replace(rentals=holder.number, mixed_note=note)
    _commit_rental_begin(change, decision_record, Put(job_rows.job_row(job_with_rental, version)), tree, context)
    context.telemetry.info("NodesRented", job_id=job.job_id, rental=change.rental.name, pool=chosen_option.pool)


def _record_mixed_note(job: Job, version: int, decision: MixedDecision, context: Context) -> None:
    """Record why no rented nodes join a running job, once for as long as the answer stays the same.

    Idempotent: yes, the commit is conditional on the version of the job's row.
    """
    key = decision.note_key if context.mode is Mode.ACT else f"{decision.note_key}/{context.mode}"
    if job.mixed_note is not None and job.mixed_note.key == key:
        return
    decision_record = _mixed_record(decision, context)
    note = PlacementNote(key=key, text=decision_record.reason, decision_id=decision_record.decision_id)
    context.ledger.commit(
        Put(job_rows.job_row(job.replace(mixed_note=note), version)), Put(subject_rows.decision_row(decision_record))
    )


def _mixed_record(decision: MixedDecision, context: Context) -> Decision:
    recorded_decision = decision.replace_unchecked(reason=decision.recorded_reason(context.mode))
    return decision_of("MIXED_GROWTH", decision.job_id, decision.action, recorded_decision, decision.facts, context)


def begin_for_deployments(plans: Sequence[ServingRentalPlan], tree: QuotaTree, context: Context) -> None:
    """Begin the rentals for serving workloads, and record once why the other workloads get none.

    Only the mode `act` rents nodes.

    Idempotent: yes, each commit is conditional on the versions of the tree and of the Deployment's row.
    """
    for plan in plans:
        try:
            if not plan.to_rent or context.mode is not Mode.ACT:
                _record_note(plan, context)
                continue
            begun = plan
            for placement in plan.to_rent:
                begun = _begin_for_deployment(begun, placement, tree, context)
        except Refused as refusal:
            batches.note_refusal(context.telemetry, plan.state.holder_id, refusal)


def _begin_for_deployment(
    plan: ServingRentalPlan, placement: PlacementDecision, tree: QuotaTree, context: Context
) -> ServingRentalPlan:
    """Begin one rental; return the plan with the Deployment's state after it."""
    burst, state = context.policy.burst, plan.state
    holder = state.next_holder(plan.registered, plan.per_replica, burst.capacity_pod_namespace, context.now)
    decision_record = record_of(placement, context)
    change = open_rental(holder, RentalTerms.of(placement), decision_record.decision_id, burst, context.now)
    note = PlacementNote(key=placement.note_key, text=change.text, decision_id=decision_record.decision_id)
    new_state = state.replace(rentals=holder.number, last_note=note)
    _commit_rental_begin(change, decision_record, Put(job_rows.serving_row(new_state, plan.version)), tree, context)
    context.telemetry.info(
        "DeploymentNodeRented", job_id=plan.registered.label, rental=change.rental.name, pool=placement.pool
    )
    return plan._replace(state=new_state, version=plan.version + 1)


def return_replicas_to_committed(serving_return: ServingReturn, tree: QuotaTree, context: Context) -> None:
    """End a Deployment's rental, so that its replicas move to committed nodes. Its workflow drains and releases it.

    Idempotent: yes, the commit is conditional on the versions of the tree and of the rental's row.

    Raises:
        Conflict: The tree or the rental has changed.
    """
    row = context.ledger.get(job_rows.rental_key(serving_return.rental.job_id, serving_return.rental.number))
    rental = rows.decode(row, Rental) if row else None
    if row is None or rental is None or rental.state is not RentalState.READY or rental.is_returning:
        return
    decision = serving_return.decision
    decision_record = decision_of("SERVING_RETURN", rental.job_id, decision.action, decision, decision.facts, context)
    change = return_replicas(rental, decision.reason, context.now)
    writes = writes_of(change, row.version, context, writer=SERVING_WRITER, decision_record=decision_record)
    context.ledger.commit(tree.state_put(tree.scheduler_state), *writes, client_token=decision_record.decision_id)
    tree.record_commit(tree.scheduler_state)
    context.telemetry.info("ReplicasReturned", rental=rental.name, reason=decision.reason)


def _commit_rental_begin(
    change: RentalChange, decision_record: Decision, holder_write: Write, tree: QuotaTree, context: Context
) -> None:
    writer = SERVING_WRITER if change.rental.serving_target else WRITER
    writes = writes_of(change, 0, context, writer=writer, decision_record=decision_record)
    context.ledger.commit(
        tree.state_put(tree.scheduler_state), *writes, holder_write, client_token=decision_record.decision_id
    )
    tree.record_commit(tree.scheduler_state)
    context.telemetry.count("RentalsStarted")
    start(change.rental, context)


# ---------------------------------------------------------------- why nothing is rented


def placement_note(
    job: Job, placement: PlacementDecision | NotPlaced | None, context: Context
) -> tuple[PlacementNote | None, tuple[Write, ...]]:
    """Return the reason of a pending job about its placement, with the decision record if the reason is new."""
    if placement is None:
        return None, ()
    if isinstance(placement, NotPlaced):
        key = f"NOT_PLACED/{placement.reason.partition(':')[0]}/"
        return (
            job.placement
            if job.placement and job.placement.key == key
            else PlacementNote(key=key, text=placement.reason)
        ), ()
    return _note_of(placement, placement.note_key, job.placement, context)


def _record_note(plan: ServingRentalPlan, context: Context) -> None:
    """Record the decision about a Deployment if it is new, or that its replicas no longer wait."""
    note = _FITS_COMMITTED if plan.fits_committed else None
    writes: tuple[Write, ...] = ()
    if plan.decisions:
        suffix = "" if context.mode is Mode.ACT else f"/{context.mode}"
        decision = plan.decisions[0]
        note, writes = _note_of(decision, f"{decision.note_key}{suffix}", plan.state.last_note, context)
    if note != plan.state.last_note:
        context.ledger.commit(Put(job_rows.serving_row(plan.state.replace(last_note=note), plan.version)), *writes)


def _note_of(
    placement: PlacementDecision, key: str, last_note: PlacementNote | None, context: Context
) -> tuple[PlacementNote, tuple[Write, ...]]:
    if last_note and last_note.key == key:
        return last_note, ()
    decision_record = record_of(placement, context)
    note = PlacementNote(key=key, text=decision_record.reason, decision_id=decision_record.decision_id)
    return note, (Put(subject_rows.decision_row(decision_record)),)


# ---------------------------------------------------------------- leaving rented nodes


def departure_writes(
    job: Job, version: int, departure: DepartureDecision, context: Context
) -> tuple[tuple[Write, ...], str]:
    """Return the writes that ask a job to leave its rented nodes, and the token of their commit."""
    decision_record = decision_of(departure.kind, job.job_id, departure.action, departure, departure.facts, context)
    entry = TimelineEntry(
        at=context.now,
        kind="migrating back",
        text=departure.message,
        decision_id=decision_record.decision_id,
        writer=WRITER,
    )
    stop = job.stop_request_now(departure.message, f"{WRITER}/home", context.now)
    leaving_job = job.replace(stop_request=stop, reason=departure.message, is_migrating_back=True, moves=job.moves + 1)
    writes = (
        Put(job_rows.job_row(leaving_job, version)),
        Put(subject_rows.decision_row(decision_record)),
        Put(subject_rows.timeline_row(job.job_id, entry, f"home-{job.current_attempt}")),
    )
    return writes, decision_record.decision_id


def note_write(job: Job, version: int) -> Write:
    """Return the write of a job's changed note about a rental. The state of the job stays."""
    return Put(job_rows.job_row(job, version))
