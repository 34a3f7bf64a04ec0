"""Jobs that leave rented or reserved nodes in a scheduling cycle.

A job leaves its rented nodes only if the admission rules would start it on committed nodes. So the rules are applied to
the committed nodes, with the job as a waiting job.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision
from evenkeel.domain.admission.start_size import decide_with_sizes
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pools import Pool, Reservation
from evenkeel.domain.capacity.run_times import run_times_of
from evenkeel.domain.jobs.attempt import Attempt, run_seconds
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.spec import MAX_GRACE_SECONDS
from evenkeel.domain.policy import Policy
from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.domain.renting.candidates import (
    committed_pools,
    runs_so_far,
)
from evenkeel.domain.renting.migration import (
    MigrationAction,
    MigrationDecision,
    decide_departure,
    decide_migration,
    migration_facts,
)
from evenkeel.domain.renting.rental import Rental, RentalState
from evenkeel.domain.scheduling.cycle_plan import Departure
from evenkeel.domain.scheduling.cycle_snapshot import CycleSnapshot
from evenkeel.domain.scheduling.rent_plan import capacities_after_admissions, requests_of

_WAITING_FOR_NODES = (AdmissionAction.WAIT, AdmissionAction.BLOCKED, AdmissionAction.PREEMPT)
"""Decisions about jobs that would use free committed nodes. Jobs that wait for quota cannot use them."""
_LOOKAHEAD = timedelta(seconds=MAX_GRACE_SECONDS + 600)
"""Jobs on a reservation are examined from this long before its end. No job needs longer to save."""


# ---------------------------------------------------------------- rented nodes


def jobs_that_may_leave(
    snapshot: CycleSnapshot, admission_input: AdmissionInput, decisions: Sequence[AdmissionDecision]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the jobs that may leave their rented nodes now, and which of these jobs need a run-time estimate."""
    if not snapshot.rental_book.rentals:
        return (), ()
    is_free = _has_free_node(_free_committed_nodes(admission_input.capacities, decisions))
    jobs = tuple(rental.job_id for rental in _departure_candidates(snapshot, is_free=is_free))
    return jobs, jobs if is_free else ()


def next_departure(
    snapshot: CycleSnapshot,
    admission_input: AdmissionInput,
    decisions: Sequence[AdmissionDecision],
    asked_to_stop: Collection[str],
    policy: Policy,
    now: datetime,
) -> Departure | None:
    """Return the first job that leaves its rented nodes; None if every job stays. Each cycle moves one job.

    Jobs that wait for committed nodes come before. A job migrates back if the rules would start it on committed nodes
    and the saving pays for its move. Temporary capacity is returned as soon as its job could start on committed nodes,
    and at its due time in any case.

    Args:
        snapshot: The snapshot of the cycle.
        admission_input: The input of the decisions.
        decisions: Decisions about the pending jobs.
        asked_to_stop: Jobs that this cycle asks to stop for another reason.
        policy: The whole policy.
        now: The time.
    """
    if not snapshot.rental_book.rentals:
        return None
    node_capacities = _free_committed_nodes(admission_input.capacities, decisions)
    is_free = _has_free_node(node_capacities)
    ran = run_seconds(snapshot.attempts, now)
    running_jobs = {
        charge.job_id: job for charge in admission_input.charges if (job := snapshot.known_job(charge.job_id))
    }
    past = (*snapshot.past_jobs, *runs_so_far(admission_input.charges, running_jobs, now))
    run_times = run_times_of(past, policy.economy.min_samples)
    for rental in _departure_candidates(snapshot, is_free=is_free):
        job = snapshot.known_job(rental.job_id)
        if job is None or job.job_id in asked_to_stop or not _may_leave(job, rental, admission_input.charges):
            continue
        target = (
            _committed_target(job, rental, node_capacities, snapshot, admission_input, policy, now) if is_free else None
        )
        decision = decide_departure(
            job, rental, target, policy, now, ran_seconds=ran.get(job.job_id, 0.0), run_times=run_times
        )
        if decision is not None:
            return Departure(job.job_id, decision)
    return None


def next_departure_where_kueue_admits(
    snapshot: CycleSnapshot, attempts: Iterable[Attempt], policy: Policy, now: datetime
) -> Departure | None:
    """Return the first job that leaves its rented nodes where Kueue admits jobs; None if every job stays.

    Kueue decides about quota after the stop, so quotas do not count here. While a job of Evenkeel waits in Kueue's
    queue, only temporary capacity that is due is returned.

    Args:
        snapshot: The snapshot of the cycle, with the nodes, rentals and charges.
        attempts: The current attempts of the jobs that hold a charge.
        policy: The whole policy.
        now: The time.
    """
    alone = snapshot._replace(setup=TeamSetup(), kueue_namespaces={}, pending={})
    admission_input = alone.admission_input(policy, now)
    if any(not attempt.state.has_ended and not attempt.node_names for attempt in attempts):
        admission_input = admission_input._replace(capacities=())
    return next_departure(alone, admission_input, (), (), policy, now)


def _departure_candidates(snapshot: CycleSnapshot, *, is_free: bool) -> list[Rental]:
    """Return the rentals whose jobs may leave now: all if a committed node is free, else due rentals."""
    candidates = (
        rental
        for rental in snapshot.rental_book.rentals
        if rental.state is RentalState.READY
        and rental.offer.cluster not in snapshot.unreadable_clusters
        and (is_free or rental.due_at is not None)
    )
    # The most expensive rental comes first: its end saves most.
    return sorted(candidates, key=lambda rental: (-rental.offer.micros_per_node_hour * rental.nodes, rental.job_id))


def _free_committed_nodes(
    capacities: Iterable[NodeCapacity], decisions: Sequence[AdmissionDecision]
) -> tuple[NodeCapacity, ...]:
    """Return the committed nodes that jobs on rented nodes may migrate to; none while pending jobs wait for nodes."""
    if any(decision.action in _WAITING_FOR_NODES for decision in decisions):
        return ()
    return tuple(
        capacity for capacity in capacities_after_admissions(capacities, decisions) if not capacity.reserved_for
    )


def _has_free_node(capacities: Iterable[NodeCapacity]) -> bool:
    return any(capacity.is_open and capacity.free.accelerators for capacity in capacities)


def _may_leave(job: Job, rental: Rental, charges: Iterable[Charge]) -> bool:
    """Whether a job runs on its rental and was not asked to stop."""
    if job.state is not JobState.RUNNING or not job.is_stoppable:
        return False
    return any(
        (charge.job_id, charge.attempt) == (job.job_id, job.current_attempt)
        and charge.node_names
        and set(charge.node_names) <= set(rental.node_names)
        for charge in charges
    )


def _committed_target(
    job: Job,
    rental: Rental,
    capacities: tuple[NodeCapacity, ...],
    snapshot: CycleSnapshot,
    admission_input: AdmissionInput,
    policy: Policy,
    now: datetime,
) -> Pool | None:
    """Return the committed pool in which a job of a rental would start if it waited alone; None if it would not."""
    queue_of_job = admission_input._replace(
        capacities=capacities,
        pending=requests_of({job.job_id: job.replace(state=JobState.PENDING)}, snapshot, policy, now),
        charges=tuple(charge for charge in admission_input.charges if charge.job_id != job.job_id),
        last_reasons={job.job_id: job.queue_reason},
    )
    decision = next(iter(decide_with_sizes(queue_of_job, policy, now)), None)
    if decision is None or decision.action is not AdmissionAction.ADMIT or len(decision.nodes) != rental.nodes:
        return None
    kind = (decision.pool, decision.instance_type)
    return next(pool for pool in committed_pools(capacities, policy) if (pool.name, pool.instance_type) == kind)


# ---------------------------------------------------------------- reservations


def ending_reservations(policy: Policy, now: datetime) -> frozenset[tuple[str, str]]:
    """Return cluster and pool of each reservation that ends so soon that its jobs may have to leave."""
    return frozenset(
        (reservation.cluster, reservation.pool)
        for reservation in policy.scheduling.reservations
        if reservation.usable_until - _LOOKAHEAD <= now
    )


def charges_on_ending_reservations(admission_input: AdmissionInput, policy: Policy, now: datetime) -> dict[str, Charge]:
    """Return the charges on nodes of reservations that end soon, by job."""
    ending_pools = ending_reservations(policy, now)
    reservation_by_node = {
        capacity.node_key: policy.scheduling.reservation_of_node(capacity.cluster, capacity.pool, capacity.labels)
        for capacity in admission_input.capacities
        if (capacity.cluster, capacity.pool) in ending_pools
    }
    ending_nodes = {
        node_key
        for node_key, reservation in reservation_by_node.items()
        if reservation and reservation.usable_until - _LOOKAHEAD <= now
    }
    charges_by_job = {
        charge.job_id: charge
        for charge in admission_input.charges
        if any((charge.cluster, name) in ending_nodes for name in charge.node_names)
    }
    return dict(sorted(charges_by_job.items()))


def reservation_stops(
    snapshot: CycleSnapshot,
    admission_input: AdmissionInput,
    asked_to_stop: Collection[str],
    policy: Policy,
    now: datetime,
) -> tuple[MigrationDecision, ...]:
    """Return the decision about each job that must leave a reservation now.

    Args:
        snapshot: The snapshot of the cycle.
        admission_input: The input of the decisions.
        asked_to_stop: Jobs that this cycle asks to stop for another reason.
        policy: Names the reservations.
        now: The time.
    """
    charges_by_job = charges_on_ending_reservations(admission_input, policy, now)
    if not charges_by_job:
        return ()
    pools = {
        (pool.cluster, pool.name, pool.instance_type): pool
        for pool in committed_pools(admission_input.capacities, policy)
    }
    decisions = []
    for job_id, charge in charges_by_job.items():
        job = snapshot.known_job(job_id)
        pool = pools.get((charge.cluster, charge.pool, charge.instance_type))
        if job is None or pool is None or job_id in asked_to_stop:
            continue
        if job.current_attempt != charge.attempt or not job.is_stoppable:
            continue
        ran = (now - charge.admitted_at).total_seconds() if charge.admitted_at else 0.0
        nodes = len(charge.node_names)
        pool = pool.replace_unchecked(reservation=_first_end(charge, admission_input, policy))
        decision = decide_migration(migration_facts(job, nodes, pool, None, policy, now, ran_seconds=ran))
        if decision.action is MigrationAction.REQUEUE:
            decisions.append(decision)
    return tuple(decisions)


def _first_end(charge: Charge, admission_input: AdmissionInput, policy: Policy) -> Reservation | None:
    """Return the reservation of the node of a charge that ends first; None if no node ends."""
    names = frozenset(charge.node_names)
    reserved_pools = (
        policy.scheduling.reservation_of_node(capacity.cluster, capacity.pool, capacity.labels)
        for capacity in admission_input.capacities
        if capacity.cluster == charge.cluster and capacity.node_name in names
    )
    reservations = [reserved_pool.reservation for reserved_pool in reserved_pools if reserved_pool]
    return min(reservations, key=lambda reservation: reservation.usable_until, default=None)
