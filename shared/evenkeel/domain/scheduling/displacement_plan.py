"""Jobs that move to rented nodes in a scheduling cycle, so that another job gets their committed nodes."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.burst_policy import RentedPool
from evenkeel.domain.renting.candidates import (
    PlacementContext,
    QueueForecasts,
    job_demand,
    risk_limits,
    why_not_tolerated,
)
from evenkeel.domain.renting.cost import CandidatePool, JobDemand, PoolCost, SpendLimits, cost_of_pool
from evenkeel.domain.renting.displacement import (
    CommittedNode,
    DisplacementAction,
    DisplacementDecision,
    DisplacementFacts,
    MovableJob,
    decide_displacement,
)
from evenkeel.domain.renting.placement import (
    PlacementAction,
    PlacementDecision,
    migration_target,
)
from evenkeel.domain.renting.rental_book import spend_limits, unrented_accelerators
from evenkeel.domain.scheduling.cycle_plan import Placement
from evenkeel.domain.scheduling.cycle_snapshot import CycleSnapshot
from evenkeel.domain.scheduling.rent_plan import capacities_after_admissions, placement_context

_WAITING_FOR_NODES_OF_OTHERS = (AdmissionAction.WAIT, AdmissionAction.BLOCKED)


def plan_displacement(
    snapshot: CycleSnapshot,
    admission_input: AdmissionInput,
    decisions: Sequence[AdmissionDecision],
    placements: Mapping[str, Placement],
    policy: Policy,
    now: datetime,
) -> DisplacementDecision | None:
    """Return which jobs move to rented nodes for a job that waits for committed nodes; None if no displacement pays.

    Args:
        snapshot: The snapshot of the cycle, with the rentals that the cycle plans.
        admission_input: The input of the decisions.
        decisions: Decisions about the pending jobs.
        placements: Where else the waiting jobs could run.
        policy: The whole policy.
        now: The time.
    """
    if not policy.burst.max_moves:
        return None
    snapshot = with_rents_of_displaced_jobs(snapshot, snapshot.pending, admission_input, policy, now)
    node_capacities = capacities_after_admissions(admission_input.capacities, decisions)
    movable: dict[str, tuple[MovableJob, ...]] = {}
    displacements = []
    for decision in decisions:
        placement = placements.get(decision.job_id)
        if decision.action not in _WAITING_FOR_NODES_OF_OTHERS or not isinstance(placement, PlacementDecision):
            continue
        facts = _displacement_facts(
            decision, placement, snapshot, admission_input, node_capacities, movable, policy, now
        )
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
    admission_input: AdmissionInput,
    capacities: Iterable[NodeCapacity],
    movable_by_pool_and_team: dict[str, tuple[MovableJob, ...]],
    policy: Policy,
    now: datetime,
) -> DisplacementFacts | None:
    """Return the facts for displacing jobs; None if no committed pool could run the job, or if it needs none."""
    request, job = decision.facts.request, snapshot.pending[decision.job_id]
    if placement.row is None or placement.action not in (PlacementAction.RENT, PlacementAction.WAIT):
        return None
    target = migration_target(placement.facts.candidates)
    if target is None or _costs_more_even_without_moves(placement.row, placement.facts.job, target):
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
    if key not in movable_by_pool_and_team:
        context = placement_context(snapshot, admission_input, policy, now)
        movable_by_pool_and_team[key] = tuple(_movable_jobs(snapshot, admission_input, nodes, team, context, policy))
    movable = tuple(
        other for other in movable_by_pool_and_team[key] if _may_move_for(other, snapshot, placement.facts.job)
    )
    # The job starts on the freed nodes and does not rent.
    allocations = [other for other in snapshot.rental_book.allocations if other.job_id != job.job_id]
    limits = {team: spend_limits(team, allocations, policy.burst) for team in {job.team for job in movable}}
    fleet = spend_limits("", allocations, policy.burst)
    rented_pools = {job.pool for job in movable}
    budgets_left = snapshot.rental_book.budgets_left
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
        committed=tuple(
            CommittedNode(name=name, free=free_accelerators) for name, free_accelerators in sorted(nodes.items())
        ),
        movable=movable,
        team_left_micros={
            team: limit.team_cap_micros_per_hour - limit.team_micros_per_hour for team, limit in limits.items()
        },
        fleet_left_micros=fleet.fleet_cap_micros_per_hour - fleet.fleet_micros_per_hour,
        pool_nodes_left={
            pool.name: unrented_accelerators(pool, allocations) // pool.accelerators_per_node
            for pool in policy.pools_for_jobs
            if pool.name in rented_pools
        },
        team_budget_left_parts={team: budgets_left[team] for team in limits if team in budgets_left},
        now=now,
    )


def _costs_more_even_without_moves(row: PoolCost, job: JobDemand, target: CandidatePool) -> bool:
    """Whether the job's own start on freed nodes already costs as much as its other option."""
    start_seconds = target.pool.launch.p50_seconds + job.restart_seconds
    return job.micros_per_hour_of_delay * start_seconds >= row.rent_parts + row.delay_parts


def _may_move_for(movable: MovableJob, snapshot: CycleSnapshot, demand: JobDemand) -> bool:
    """Whether a job may move for another job. After its first move, it moves only for a job whose delay costs more.

    Otherwise jobs of the same price of delay keep displacing each other. Each move restarts a job and saves nothing.
    """
    job = snapshot.known_job(movable.job_id)
    return job is None or not job.moves or movable.micros_per_hour_of_delay < demand.micros_per_hour_of_delay


def _movable_jobs(
    snapshot: CycleSnapshot,
    admission_input: AdmissionInput,
    nodes: Collection[str],
    team: str,
    context: PlacementContext,
    policy: Policy,
) -> Iterator[MovableJob]:
    """Yield the jobs on some committed nodes that may continue on rented nodes.

    These are running jobs that keep checkpoints and have no deadline. A team's queue moves only its own jobs, since
    the rent is paid by the team of the moved job.
    """
    cheapest_pools = _CheapestPools(context, policy)
    for charge in admission_input.charges:
        job = snapshot.known_job(charge.job_id)
        if job is None or not charge.node_names or not set(charge.node_names) <= set(nodes):
            continue
        spec, delay = job.spec, policy.burst.delay_of(job.spec.priority_class)
        if job.state is not JobState.RUNNING or not job.is_stoppable or job.current_attempt != charge.attempt:
            continue
        is_bound = not spec.checkpoint_uri or spec.deadline_at or spec.elastic or job.moves >= policy.burst.max_moves
        if is_bound or not delay or team not in ("", spec.team):
            continue
        ran = (context.now - charge.admitted_at).total_seconds() if charge.admitted_at else 0.0
        demand = job_demand(job, context, policy, context.done_seconds.get(job.job_id, 0.0) + ran)
        rented = cheapest_pools.find(job, demand)
        if rented is not None:
            pool = rented.pool
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
                rented_nodes=spec.nodes,
                rent_parts=rented.rent_parts,
            )


def with_rents_of_displaced_jobs(
    snapshot: CycleSnapshot, job_ids: Iterable[str], admission_input: AdmissionInput, policy: Policy, now: datetime
) -> CycleSnapshot:
    """Return the snapshot with the rentals that displaced jobs are expected to begin.

    A displaced job rents only after it has stopped. Until then other jobs must leave its rent within caps and budgets.

    Args:
        snapshot: The snapshot of the cycle.
        job_ids: The jobs that may have been displaced.
        admission_input: The input of the decisions.
        policy: The whole policy.
        now: The time.
    """
    rental_book = snapshot.rental_book
    holders = {allocation.job_id for allocation in rental_book.allocations}
    known_jobs = (snapshot.known_job(job_id) for job_id in sorted({*job_ids} - holders))
    displaced_jobs = [job for job in known_jobs if job and job.displaced_at]
    if not displaced_jobs:
        return snapshot
    context = placement_context(snapshot, admission_input, policy, now)
    cheapest_pools = _CheapestPools(context, policy)
    for job in displaced_jobs:
        demand = job_demand(job, context, policy)
        rented = cheapest_pools.find(job, demand)
        if rented is not None:
            rental_book = rental_book.with_expected(demand, rented.pool, rented.rent_parts)
    return snapshot._replace(rental_book=rental_book)


class _CheapestPool(NamedTuple):
    """The cheapest pool that can be rented for a job now, and the expected cost of the rental."""

    pool: RentedPool
    rent_parts: int


class _CheapestPools:
    """Finds the cheapest pools for jobs of one cycle."""

    def __init__(self, context: PlacementContext, policy: Policy) -> None:
        self._budgets_left, self._now = context.rented.budgets_left, context.now
        self._forecasts, self._limits = QueueForecasts(context, policy), risk_limits(policy)
        self._pools = sorted(policy.pools_for_jobs, key=lambda pool: pool.micros_per_node_hour)

    def find(self, job: Job, demand: JobDemand) -> _CheapestPool | None:
        """Return the cheapest pool for a job within the budget of its team; None if no pool can be rented for it."""
        budget = _NO_LIMITS.replace(team_budget_left_parts=self._budgets_left.get(demand.team))
        for pool in self._pools:
            differences = self._forecasts.why_not_portable(job, pool)
            why_nots = (*why_not_tolerated(pool, job.spec.tolerations), *differences)
            candidate = self._forecasts.rented_candidate(pool, why_nots)
            cost = cost_of_pool(demand, candidate, budget, self._limits, self._now)
            if not cost.why_not:
                return _CheapestPool(pool, cost.rent_parts)
        return None


_NO_LIMITS = SpendLimits(team_cap_micros_per_hour=10**15, fleet_cap_micros_per_hour=10**15)
"""All limits are checked again for the moved jobs together."""
