"""Rentals in a scheduling cycle: jobs that get rented nodes, and jobs that leave rented or reserved nodes.

A rental helps a job only if the admission rules would start the job on the rented nodes. So the rules are applied to
the fleet with those nodes in it. In the same way a job leaves its rented nodes only if the rules would start it on
committed nodes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.cycle_plan import Departure, Placement
from evenkeel.domain.admission.cycle_snapshot import CycleSnapshot
from evenkeel.domain.admission.decide_job import Action, AdmissionDecision
from evenkeel.domain.admission.request import AdmissionRequest
from evenkeel.domain.admission.start_size import decide_with_sizes
from evenkeel.domain.capacity.node_capacity import NodeCapacity, with_assigned
from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.capacity.run_times import run_times_of
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.jobs.attempt import Attempt, run_seconds
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.spec import MAX_GRACE_SECONDS
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.book import RentalBook, spend_limits
from evenkeel.domain.renting.burst_policy import RentedPool
from evenkeel.domain.renting.candidates import (
    PlacementContext,
    QueueForecasts,
    committed_pools,
    job_demand,
    jobs_to_place,
    nodes_to_rent,
    placement_facts,
    rented_candidate,
    risk_limits,
    why_not_tolerated,
)
from evenkeel.domain.renting.cost import SpendLimits, cost_of_pool
from evenkeel.domain.renting.displacement import (
    CommittedNode,
    DisplacementAction,
    DisplacementDecision,
    DisplacementFacts,
    MovableJob,
    decide_displacement,
)
from evenkeel.domain.renting.migration import (
    MigrationAction,
    MigrationDecision,
    decide_departure,
    decide_migration,
    has_moved_often,
    migration_facts,
)
from evenkeel.domain.renting.placement import (
    NotPlaced,
    PlacementAction,
    PlacementDecision,
    migration_target,
    place_in_queue_order,
)
from evenkeel.domain.renting.rental import Rental, RentalState

_RENTABLE_ACTIONS = (Action.WAIT, Action.BLOCKED, Action.NEVER_FITS)
"""Decisions about jobs that wait for nodes. A job that waits for quota would wait on rented nodes, too."""
_WAITING_FOR_NODES = (Action.WAIT, Action.BLOCKED, Action.PREEMPT)
"""Decisions about jobs that would use free committed nodes. Jobs that wait for quota cannot use them."""
DISPLACER = "schedule_jobs/displace"
"""Prefix of the requester of a stop that displaces a job."""
_WAITING_FOR_NODES_OF_OTHERS = (Action.WAIT, Action.BLOCKED)
_LOOKAHEAD = timedelta(seconds=MAX_GRACE_SECONDS + 600)
"""Jobs on a reservation are examined from this long before its end. No job needs longer to save."""


# ---------------------------------------------------------------- jobs that wait


def jobs_without_nodes(snapshot: CycleSnapshot, decisions: Iterable[AdmissionDecision]) -> tuple[Job, ...]:
    """Return the pending jobs that wait for nodes and have no rental, in queue order."""
    serving = snapshot.rented.rental_by_holder
    return tuple(
        snapshot.pending[decision.job_id]
        for decision in decisions
        if decision.action in _RENTABLE_ACTIONS and decision.job_id not in serving
    )


def placement_context(
    snapshot: CycleSnapshot, queue: AdmissionInput, policy: Policy, now: datetime
) -> PlacementContext:
    """Return the facts that all placements of one cycle share, before its admissions. Its queue is empty."""
    jobs = {charge.job_id: snapshot.known_job(charge.job_id) for charge in queue.charges}
    return PlacementContext(
        now=now,
        capacities=snapshot.capacities,
        charges=queue.charges,
        classes={name: job.spec.priority_class for name, job in jobs.items() if job},
        rented=snapshot.rented,
        shortages=snapshot.shortages or Shortages(),
        run_times=run_times_of(snapshot.past_runs, policy.economy.min_samples),
        holders={name: job for name, job in jobs.items() if job},
    )


def plan_placements(
    snapshot: CycleSnapshot,
    queue: AdmissionInput,
    decisions: Sequence[AdmissionDecision],
    rented: RentalBook,
    policy: Policy,
    now: datetime,
) -> dict[str, Placement]:
    """Return where jobs that cannot start now should run.

    Args:
        snapshot: The snapshot of the cycle.
        queue: The queue that was decided.
        decisions: Decisions about the pending jobs.
        rented: All open rentals, and the rentals that this cycle plans for serving replicas.
        policy: The whole policy.
        now: The time.
    """
    waiting = jobs_without_nodes(snapshot, decisions)
    jobs = [job for job in jobs_to_place(waiting, policy, now) if not _jobs_being_displaced(job.job_id, snapshot)]
    if not jobs:
        return {}
    node_capacities = capacities_after_admissions(queue.capacities, decisions)
    context = placement_context(snapshot, queue, policy, now)._replace(
        capacities=node_capacities, queue=waiting, rented=rented
    )
    ran = run_seconds(snapshot.attempts)
    ended = _last_ends(snapshot.attempts)
    forecasts = QueueForecasts(context, policy)
    placement_decisions = place_in_queue_order(
        [
            placement_facts(job, context, policy, ran.get(job.job_id, 0.0), forecasts, ended.get(job.job_id))
            for job in jobs
        ]
    )
    placements: dict[str, Placement] = {}
    begun = len(rented.allocations) - len(snapshot.rented.allocations)
    for job, placement in zip(jobs, placement_decisions, strict=True):
        placements[job.job_id] = placement
        if placement.action is not PlacementAction.RENT:
            continue
        pool = next(rented_pool for rented_pool in policy.burst.pools if rented_pool.name == placement.pool)
        why_not = why_rental_would_not_help(
            job.job_id, pool, _decisions_on_rental(job, pool, snapshot, queue, policy, now)
        )
        if why_not:
            placements[job.job_id] = NotPlaced(why_not)
        elif begun >= policy.burst.rentals_per_cycle:
            placements[job.job_id] = NotPlaced("Evenkeel rents nodes for the job in one of the next scheduling cycles.")
        else:
            begun += 1
    return placements


# ---------------------------------------------------------------- displaced jobs


def displacement_requester(job_id: str) -> str:
    """Return the requester of a stop that frees nodes for a job."""
    return f"{DISPLACER}/{job_id}"


def _jobs_being_displaced(job_id: str, snapshot: CycleSnapshot) -> list[str]:
    """Return the jobs that received a request to free their nodes for a job, and still hold them."""
    requester = displacement_requester(job_id)
    holders = (snapshot.known_job(charge.job_id) for charge in snapshot.live_charges)
    return [
        job.job_id for job in holders if job and (stop := job.stop_of(job.current_attempt)) and stop.by == requester
    ]


def plan_displacement(
    snapshot: CycleSnapshot,
    queue: AdmissionInput,
    decisions: Sequence[AdmissionDecision],
    placements: Mapping[str, Placement],
    policy: Policy,
    now: datetime,
) -> DisplacementDecision | None:
    """Return which jobs move to rented nodes for a job that waits for committed nodes; None if no displacement pays.

    Args:
        snapshot: The snapshot of the cycle.
        queue: The queue that was decided.
        decisions: Decisions about the pending jobs.
        placements: Where else the waiting jobs could run.
        policy: The whole policy.
        now: The time.
    """
    if not policy.burst.max_moves:
        return None
    node_capacities = capacities_after_admissions(queue.capacities, decisions)
    movable: dict[str, tuple[MovableJob, ...]] = {}
    displacements = []
    for decision in decisions:
        placement = placements.get(decision.job_id)
        if decision.action not in _WAITING_FOR_NODES_OF_OTHERS or not isinstance(placement, PlacementDecision):
            continue
        facts = _displacement_facts(decision, placement, snapshot, queue, node_capacities, movable, policy, now)
        if facts is not None:
            displacements.append(decide_displacement(facts))
    displacement_decisions = [decision for decision in displacements if decision.action is DisplacementAction.DISPLACE]
    # Only the displacement that saves most. The others are decided again in the next cycle.
    return max(displacement_decisions, key=_saving_key, default=None)


def _saving_key(decision: DisplacementDecision) -> tuple[int, str]:
    return (decision.facts.other_parts - decision.parts, decision.job_id)


def _displacement_facts(  # noqa: PLR0913, PLR0917 - the parts of a snapshot
    decision: AdmissionDecision,
    placement: PlacementDecision,
    snapshot: CycleSnapshot,
    queue: AdmissionInput,
    capacities: Iterable[NodeCapacity],
    movable_by_team: dict[str, tuple[MovableJob, ...]],
    policy: Policy,
    now: datetime,
) -> DisplacementFacts | None:
    """Return the facts for displacing jobs; None if no committed pool could run the job, or if it needs none."""
    request, job = decision.facts.request, snapshot.pending[decision.job_id]
    if placement.row is None or placement.action not in (PlacementAction.RENT, PlacementAction.WAIT):
        return None
    target = migration_target(placement.facts.candidates)
    if target is None:
        return None
    kind = (target.pool.cluster, target.pool.name, target.pool.instance_type)
    nodes = {
        capacity.node_name: capacity.free.accelerators
        for capacity in capacities
        if capacity.is_open
        and not capacity.reserved_for
        and (capacity.cluster, capacity.pool, capacity.instance_type) == kind
    }
    team = job.spec.team if snapshot.setup.has_teams else ""
    key = "/".join((*kind, team))
    if key not in movable_by_team:
        context = placement_context(snapshot, queue, policy, now)
        movable_by_team[key] = tuple(_movable_jobs(snapshot, queue, nodes, team, context, policy))
    movable = movable_by_team[key]
    allocations = snapshot.rented.allocations
    limits = {job.team: spend_limits(job.team, allocations, policy.burst) for job in movable}
    fleet = spend_limits("", allocations, policy.burst)
    save_seconds = max((job.save_seconds for job in movable), default=0)
    row, demand = placement.row, placement.facts.job
    return DisplacementFacts(
        job_id=job.job_id,
        nodes=request.nodes,
        accelerators_per_node=request.accelerators_per_node,
        micros_per_hour_of_delay=demand.micros_per_hour_of_delay,
        start_seconds=save_seconds + target.pool.launch.p50_seconds + demand.restart_seconds,
        wait_seconds=target.wait_seconds,
        other_option=row.pool,
        other_parts=row.rent_parts + row.delay_parts,
        committed=tuple(CommittedNode(name=name, free=free) for name, free in sorted(nodes.items())),
        movable=movable,
        team_left_micros={
            team: limit.team_cap_micros_per_hour - limit.team_micros_per_hour for team, limit in limits.items()
        },
        fleet_left_micros=fleet.fleet_cap_micros_per_hour - fleet.fleet_micros_per_hour,
        now=now,
    )


def _movable_jobs(
    snapshot: CycleSnapshot,
    queue: AdmissionInput,
    nodes: Collection[str],
    team: str,
    context: PlacementContext,
    policy: Policy,
) -> Iterator[MovableJob]:
    """Yield the jobs on some committed nodes that may continue on rented nodes.

    These are running jobs that keep checkpoints and have no deadline. A team's queue moves only its own jobs, since
    the rent is paid by the team of the moved job.
    """
    pools = sorted(policy.pools_for_jobs, key=lambda pool: pool.micros_per_node_hour)
    forecasts = QueueForecasts(context, policy)
    for charge in queue.charges:
        job = snapshot.known_job(charge.job_id)
        if job is None or not charge.node_names or not set(charge.node_names) <= set(nodes):
            continue
        spec, delay = job.spec, policy.burst.delay_of(job.spec.priority_class)
        if job.state is not JobState.RUNNING or not job.is_stoppable or job.current_attempt != charge.attempt:
            continue
        is_bound = not spec.checkpoint_uri or spec.deadline_at or spec.elastic or has_moved_often(job, policy)
        if is_bound or not delay or team not in ("", spec.team):
            continue
        ran = (context.now - charge.admitted_at).total_seconds() if charge.admitted_at else 0.0
        demand = job_demand(job, context, policy, ran)
        for pool in pools:
            why_nots = (*why_not_tolerated(pool, spec.tolerations), *forecasts.why_not_portable(job, pool))
            candidate = rented_candidate(pool, context, why_nots)
            cost = cost_of_pool(demand, candidate, _NO_LIMITS, risk_limits(policy), context.now)
            if not cost.why_not:
                yield MovableJob(
                    job_id=job.job_id,
                    team=spec.team,
                    nodes=dict.fromkeys(charge.node_names, charge.per_node.accelerators),
                    micros_per_hour_of_delay=delay,
                    left_seconds=demand.left_seconds,
                    save_seconds=spec.grace_seconds,
                    standstill_seconds=round(
                        spec.grace_seconds + pool.launch.gang_seconds(spec.nodes) + demand.restart_seconds, 1
                    ),
                    pool=pool.name,
                    rent_micros_per_hour=pool.micros_per_node_hour * spec.nodes,
                )
                break


_NO_LIMITS = SpendLimits(team_cap_micros_per_hour=10**15, fleet_cap_micros_per_hour=10**15)
"""The caps are checked for all moved jobs together."""


def _last_ends(attempts: Iterable[Attempt]) -> dict[str, datetime]:
    """Return when the last attempt of each job ended."""
    ended: dict[str, datetime] = {}
    for attempt in attempts:
        if attempt.ended_at:
            ended[attempt.job_id] = max(attempt.ended_at, ended.get(attempt.job_id, attempt.ended_at))
    return ended


def _decisions_on_rental(
    job: Job, pool: RentedPool, snapshot: CycleSnapshot, queue: AdmissionInput, policy: Policy, now: datetime
) -> tuple[AdmissionDecision, ...]:
    """Return the decisions about the pending jobs if nodes of a pool were rented for one of them."""
    moved = {**snapshot.pending, job.job_id: job.replace(cluster=pool.cluster)}
    with_rented = queue._replace(
        capacities=(*queue.capacities, *nodes_to_rent(job, pool, now)),
        pending=_requests_of(moved, snapshot, policy, now),
    )
    return decide_with_sizes(with_rented, policy, now)


def _requests_of(
    pending: Mapping[str, Job], snapshot: CycleSnapshot, policy: Policy, now: datetime
) -> tuple[AdmissionRequest, ...]:
    """Return the requests of other pending jobs, each in its own cluster, even if nodes elsewhere are rented for it."""
    return snapshot._replace(pending=pending, rented=RentalBook()).requests(policy, now)


def capacities_after_admissions(
    capacities: Iterable[NodeCapacity], decisions: Iterable[AdmissionDecision]
) -> tuple[NodeCapacity, ...]:
    """Return the capacities without the amounts that the admitted jobs take."""
    assigned = {
        life.key: decision.facts.request.per_node
        for decision in decisions
        if decision.action is Action.ADMIT
        for life in decision.nodes
    }
    return with_assigned(capacities, assigned)


def why_rental_would_not_help(job_id: str, pool: Pool, decisions: Iterable[AdmissionDecision]) -> str:
    """Say why a job would not start on rented nodes of a pool; empty if it would.

    Args:
        job_id: The job.
        pool: The pool to rent from.
        decisions: The decisions about the fleet with these nodes.
    """
    decision = next((decision for decision in decisions if decision.job_id == job_id), None)
    if decision is not None and decision.action is Action.ADMIT and decision.pool == pool.name:
        return ""
    reason = decision.reason if decision else "The job is not at the head of its queue."
    return f"Rented nodes would not help the job: {reason}"


# ---------------------------------------------------------------- jobs that leave rented nodes


def jobs_that_may_leave(
    snapshot: CycleSnapshot, queue: AdmissionInput, decisions: Sequence[AdmissionDecision]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the jobs that may leave their rented nodes now, and which of these jobs need a run-time estimate."""
    is_free = _has_free_node(_free_committed_nodes(queue.capacities, decisions))
    jobs = tuple(rental.job_id for rental in _departure_candidates(snapshot, is_free=is_free))
    return jobs, jobs if is_free else ()


def next_departure(
    snapshot: CycleSnapshot,
    queue: AdmissionInput,
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
        queue: The queue that was decided.
        decisions: Decisions about the pending jobs.
        asked_to_stop: Jobs that this cycle asks to stop for another reason.
        policy: The whole policy.
        now: The time.
    """
    node_capacities = _free_committed_nodes(queue.capacities, decisions)
    is_free = _has_free_node(node_capacities)
    ran = run_seconds(snapshot.attempts, now)
    run_times = run_times_of(snapshot.past_runs, policy.economy.min_samples)
    for rental in _departure_candidates(snapshot, is_free=is_free):
        job = snapshot.known_job(rental.job_id)
        if job is None or job.job_id in asked_to_stop or not _may_leave(job, rental, queue.charges):
            continue
        target = _committed_target(job, rental, node_capacities, snapshot, queue, policy, now) if is_free else None
        decision = decide_departure(
            job, rental, target, policy, now, ran_seconds=ran.get(job.job_id, 0.0), run_times=run_times
        )
        if decision is not None:
            return Departure(job.job_id, decision)
    return None


def _departure_candidates(snapshot: CycleSnapshot, *, is_free: bool) -> list[Rental]:
    """Return the rentals whose jobs may leave now: all if a committed node is free, else due rentals."""
    candidates = (
        rental
        for rental in snapshot.rented.rentals
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
        and set(charge.node_names) <= set(rental.node_names)
        for charge in charges
    )


def _committed_target(
    job: Job,
    rental: Rental,
    capacities: tuple[NodeCapacity, ...],
    snapshot: CycleSnapshot,
    queue: AdmissionInput,
    policy: Policy,
    now: datetime,
) -> Pool | None:
    """Return the committed pool in which a job of a rental would start if it waited alone; None if it would not."""
    queue_of_job = queue._replace(
        capacities=capacities,
        pending=_requests_of({job.job_id: job.replace(state=JobState.PENDING)}, snapshot, policy, now),
        charges=tuple(charge for charge in queue.charges if charge.job_id != job.job_id),
        last_reasons={job.job_id: job.queue_reason},
    )
    decision = next(iter(decide_with_sizes(queue_of_job, policy, now)), None)
    if decision is None or decision.action is not Action.ADMIT or len(decision.nodes) != rental.nodes:
        return None
    kind = (decision.pool, decision.instance_type)
    return next(pool for pool in committed_pools(capacities, policy) if (pool.name, pool.instance_type) == kind)


# ---------------------------------------------------------------- jobs that leave reservations


def charges_on_ending_reservations(queue: AdmissionInput, policy: Policy, now: datetime) -> dict[str, Charge]:
    """Return the charges on reservations that end soon, by job."""
    ending = {
        (reservation.cluster, reservation.pool)
        for reservation in policy.scheduling.reservations
        if reservation.usable_until - _LOOKAHEAD <= now
    }
    ending_pools = {(capacity.cluster, capacity.pool) for capacity in queue.capacities} & ending
    charges_by_job = {
        charge.job_id: charge
        for charge in queue.charges
        if charge.node_names and (charge.cluster, charge.pool) in ending_pools
    }
    return dict(sorted(charges_by_job.items()))


def reservation_stops(
    snapshot: CycleSnapshot, queue: AdmissionInput, asked_to_stop: Collection[str], policy: Policy, now: datetime
) -> tuple[MigrationDecision, ...]:
    """Return the decision about each job that must leave a reservation now.

    Args:
        snapshot: The snapshot of the cycle.
        queue: The queue that was decided.
        asked_to_stop: Jobs that this cycle asks to stop for another reason.
        policy: Names the reservations.
        now: The time.
    """
    charges_by_job = charges_on_ending_reservations(queue, policy, now)
    if not charges_by_job:
        return ()
    pools = {(pool.cluster, pool.name, pool.instance_type): pool for pool in committed_pools(queue.capacities, policy)}
    decisions = []
    for name, charge in charges_by_job.items():
        job = snapshot.known_job(name)
        pool = pools.get((charge.cluster, charge.pool, charge.instance_type))
        if job is None or pool is None or name in asked_to_stop:
            continue
        if job.current_attempt != charge.attempt or not job.is_stoppable:
            continue
        ran = (now - charge.admitted_at).total_seconds() if charge.admitted_at else 0.0
        nodes = len(charge.node_names)
        decision = decide_migration(migration_facts(job, nodes, pool, None, policy, now, ran_seconds=ran))
        if decision.action is MigrationAction.REQUEUE:
            decisions.append(decision)
    return tuple(decisions)
