"""Jobs that get rented nodes in a scheduling cycle.

A rental helps a job only if the admission rules would start the job on the rented nodes. So the rules are applied to
the fleet with those nodes in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision
from evenkeel.domain.admission.start_size import decide_with_sizes
from evenkeel.domain.capacity.node_capacity import NodeCapacity, with_assigned
from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.capacity.run_times import run_times_of
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.jobs.attempt import Attempt, run_seconds
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.burst_policy import RentedPool
from evenkeel.domain.renting.candidates import (
    PlacementContext,
    QueueForecasts,
    jobs_to_place,
    nodes_to_rent,
    placement_facts,
    runs_so_far,
)
from evenkeel.domain.renting.placement import (
    NotPlaced,
    PlacementAction,
    place_in_queue_order,
)
from evenkeel.domain.renting.rental_book import RentalBook
from evenkeel.domain.scheduling.cycle_plan import Placement
from evenkeel.domain.scheduling.cycle_snapshot import CycleSnapshot

_RENTABLE_ACTIONS = (AdmissionAction.WAIT, AdmissionAction.BLOCKED, AdmissionAction.NEVER_FITS)
"""Decisions about jobs that wait for nodes. A job that waits for quota would wait on rented nodes, too."""


def jobs_without_nodes(snapshot: CycleSnapshot, decisions: Iterable[AdmissionDecision]) -> tuple[Job, ...]:
    """Return the pending jobs that wait for nodes and have no rental, in queue order."""
    rental_by_holder = snapshot.rental_book.rental_by_holder
    return tuple(
        snapshot.pending[decision.job_id]
        for decision in decisions
        if decision.action in _RENTABLE_ACTIONS and decision.job_id not in rental_by_holder
    )


def placement_context(
    snapshot: CycleSnapshot,
    admission_input: AdmissionInput,
    policy: Policy,
    now: datetime,
    decisions: Iterable[AdmissionDecision] = (),
) -> PlacementContext:
    """Return the facts that all placements of one cycle share, with an empty queue.

    Args:
        snapshot: The snapshot of the cycle.
        admission_input: The input of the decisions.
        policy: The whole policy.
        now: The time.
        decisions: The jobs that these decisions admit count as running. Their nodes are still free in the result.
    """
    new_charges = (decision.to_charge() for decision in decisions if decision.action is AdmissionAction.ADMIT)
    charges = (*admission_input.charges, *new_charges)
    known = {charge.job_id: snapshot.known_job(charge.job_id) for charge in charges}
    jobs = {job_id: job for job_id, job in known.items() if job}
    past = (*snapshot.past_jobs, *runs_so_far(admission_input.charges, jobs, now))
    return PlacementContext(
        now=now,
        capacities=snapshot.capacities,
        charges=tuple(charge.without_rented_part() for charge in charges),
        classes={job_id: job.spec.priority_class for job_id, job in jobs.items()},
        rented=snapshot.rental_book,
        shortages=snapshot.shortages or Shortages(),
        run_times=run_times_of(past, policy.economy.min_samples),
        jobs_with_charge=jobs,
        done_seconds=run_seconds(snapshot.attempts),
    )


def plan_placements(
    snapshot: CycleSnapshot,
    admission_input: AdmissionInput,
    decisions: Sequence[AdmissionDecision],
    rental_book: RentalBook,
    policy: Policy,
    now: datetime,
) -> dict[str, Placement]:
    """Return where jobs that cannot start now should run.

    Args:
        snapshot: The snapshot of the cycle.
        admission_input: The input of the decisions.
        decisions: Decisions about the pending jobs.
        rental_book: All open rentals, and the rentals that this cycle plans for serving replicas.
        policy: The whole policy.
        now: The time.
    """
    waiting_jobs = jobs_without_nodes(snapshot, decisions)
    jobs = [job for job in jobs_to_place(waiting_jobs, policy, now) if not snapshot.jobs_being_displaced(job.job_id)]
    if not jobs:
        return {}
    node_capacities = capacities_after_admissions(admission_input.capacities, decisions)
    context = placement_context(snapshot, admission_input, policy, now, decisions)._replace(
        capacities=node_capacities, queue=waiting_jobs, rented=rental_book
    )
    ran = run_seconds(snapshot.attempts)
    last_ends = _last_ends(snapshot.attempts)
    forecasts = QueueForecasts(context, policy)
    placement_decisions = place_in_queue_order(
        [
            placement_facts(job, context, policy, ran.get(job.job_id, 0.0), forecasts, last_ends.get(job.job_id))
            for job in jobs
        ]
    )
    placements: dict[str, Placement] = {}
    begun = len(rental_book.allocations) - len(snapshot.rental_book.allocations)
    for job, placement in zip(jobs, placement_decisions, strict=True):
        placements[job.job_id] = placement
        if placement.action is not PlacementAction.RENT:
            continue
        pool = next(rented_pool for rented_pool in policy.burst.pools if rented_pool.name == placement.pool)
        why_not = why_rental_would_not_help(
            job.job_id, pool, _decisions_on_rental(job, pool, snapshot, admission_input, policy, now)
        )
        if why_not:
            placements[job.job_id] = NotPlaced(why_not)
        elif begun >= policy.burst.rentals_per_cycle:
            placements[job.job_id] = NotPlaced("Evenkeel rents nodes for the job in one of the next scheduling cycles.")
        else:
            begun += 1
    return placements


def _last_ends(attempts: Iterable[Attempt]) -> dict[str, datetime]:
    """Return when the last attempt of each job ended."""
    ended_at_by_job: dict[str, datetime] = {}
    for attempt in attempts:
        if attempt.ended_at:
            ended_at_by_job[attempt.job_id] = max(
                attempt.ended_at, ended_at_by_job.get(attempt.job_id, attempt.ended_at)
            )
    return ended_at_by_job


def _decisions_on_rental(
    job: Job, pool: RentedPool, snapshot: CycleSnapshot, admission_input: AdmissionInput, policy: Policy, now: datetime
) -> tuple[AdmissionDecision, ...]:
    """Return the decisions about the pending jobs if nodes of a pool were rented for one of them."""
    pending_jobs = {**snapshot.pending, job.job_id: job.replace(cluster=pool.cluster)}
    with_rented = admission_input._replace(
        capacities=(*admission_input.capacities, *nodes_to_rent(job, pool, now)),
        pending=requests_of(pending_jobs, snapshot, policy, now),
    )
    return decide_with_sizes(with_rented, policy, now)


def requests_of(
    pending_jobs: Mapping[str, Job], snapshot: CycleSnapshot, policy: Policy, now: datetime
) -> tuple[AdmissionRequest, ...]:
    """Return the requests of other pending jobs, each in its own cluster, even if nodes elsewhere are rented for it."""
    return snapshot._replace(pending=pending_jobs, rental_book=RentalBook()).requests(policy, now)


def capacities_after_admissions(
    capacities: Iterable[NodeCapacity], decisions: Iterable[AdmissionDecision]
) -> tuple[NodeCapacity, ...]:
    """Return the capacities without the amounts that the admitted jobs take."""
    resources_by_node = {
        life.key: decision.facts.request.per_node
        for decision in decisions
        if decision.action is AdmissionAction.ADMIT
        for life in decision.nodes
    }
    return with_assigned(capacities, resources_by_node)


def why_rental_would_not_help(job_id: str, pool: Pool, decisions: Iterable[AdmissionDecision]) -> str:
    """Say why a job would not start on rented nodes of a pool; empty if it would.

    Args:
        job_id: The job.
        pool: The pool to rent from.
        decisions: The decisions about the fleet with these nodes.
    """
    decision = next((decision for decision in decisions if decision.job_id == job_id), None)
    if decision is not None and decision.action is AdmissionAction.ADMIT and decision.pool == pool.name:
        return ""
    reason = decision.reason if decision else "The job is not at the head of its queue."
    return f"Rented nodes would not help the job: {reason}"
