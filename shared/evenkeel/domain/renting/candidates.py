"""The pools that a job could run in, with their conditions: expected wait, price, limit, refusals, portability."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.capacity import compatibility, network_topology
from evenkeel.domain.capacity.compatibility import PoolEnvironment, Storage, differences, needs_of
from evenkeel.domain.capacity.instance_types import InstanceTypes
from evenkeel.domain.capacity.node_capacity import TAINTED, NodeCapacity
from evenkeel.domain.capacity.pod_shares import expected_offer
from evenkeel.domain.capacity.pool_choices import Toleration, all_tolerated
from evenkeel.domain.capacity.pools import LaunchDelay, Market, Pool
from evenkeel.domain.capacity.run_times import NO_PAST_RUNS, PastJob, RemainingTime, RunOrigin, RunTimes
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.capacity.start_estimates import (
    RunningUse,
    WaitingUse,
    after_domains,
    after_whole_nodes,
    expected_starts,
    expected_wait,
)
from evenkeel.domain.jobs.charge import Charge, charged_resources
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.nodes import KARPENTER_LABEL, NodeLife
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.burst_policy import BurstPolicy, RentedPool
from evenkeel.domain.renting.cost import CandidatePool, JobDemand, RiskLimits, opportunity_cost
from evenkeel.domain.renting.placement import PlacementFacts
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.renting.rental_book import RentalAllocation, RentalBook, spend_limits, unrented_accelerators
from evenkeel.domain.resources import NONE

_MAX_PLACED = 20
"""Maximum pending jobs that one cycle places: half are first in the queue, half are on a later page."""
_STRIDE = 7
"""Step between the values of an estimate. The step and the number of values have no common divisor."""
_MIN_RUNS_TO_SPREAD = 12
"""Minimum number of runs whose ends are spread over the values of an estimate."""
_LONGEST_WAIT = 30 * 86_400.0
"""Maximum forecast in seconds. Longer forecasts are not meaningful."""


class PlacementContext(NamedTuple):
    """The part of a scheduling cycle's snapshot that placements depend on."""

    now: datetime
    capacities: tuple[NodeCapacity, ...] = ()
    charges: tuple[Charge, ...] = ()
    classes: Mapping[str, str] = {}
    """Priority class of each job that holds a charge."""
    queue: tuple[Job, ...] = ()
    """Pending jobs without a rental, in queue order."""
    rented: RentalBook = RentalBook()
    shortages: Shortages = Shortages()
    run_times: RunTimes = NO_PAST_RUNS
    """Past runs."""
    jobs_with_charge: Mapping[str, Job] = {}
    """Jobs that hold a charge. If one is missing, only its class is known."""
    done_seconds: Mapping[str, float] = {}
    """Run time of the ended attempts of these jobs. It counts only for a job that keeps checkpoints."""


class PoolQueue(NamedTuple):
    """The jobs that wait for a committed pool."""

    starts: Mapping[str, float]
    """Job id → seconds until its expected start."""
    delay_micros: int
    """The price of delay of all of them, in micro-dollars an hour."""


class QueueForecasts:
    """Expected start times, and why a job is not portable. They are computed once for all placements of a cycle."""

    def __init__(self, context: PlacementContext, policy: Policy) -> None:
        self._context, self._policy = context, policy
        self._differences: dict[object, tuple[str, ...]] = {}
        self._rented: dict[tuple[object, ...], CandidatePool] = {}
        self._queues: dict[tuple[str, str, str], PoolQueue] = {}

    def why_not_portable(self, job: Job, pool: Pool) -> tuple[str, ...]:
        """Return why a job would not run the same in a pool."""
        spec = job.spec
        pools = job.job_id if spec.pools else ""
        network = spec.required_network_level if spec.nodes > 1 else None
        key = (spec.instance_types, pools, spec.requires, network, spec.checkpoint_claim, job.cluster, *_kind(pool))
        if key not in self._differences:
            self._differences[key] = why_not_portable(job, pool, self._policy.storage, self._policy.hardware)
        return self._differences[key]

    def rented_candidate(self, pool: Pool, differences: tuple[str, ...]) -> CandidatePool:
        """Return a pool to rent from. All jobs with the same differences share it."""
        key = (*_kind(pool), differences)
        if key not in self._rented:
            self._rented[key] = rented_candidate(pool, self._context, differences)
        return self._rented[key]

    def queue_of(self, pool: Pool) -> PoolQueue:
        """Return the jobs that wait for a committed pool, with their expected starts and the price of their delay."""
        kind = _kind(pool)
        if kind not in self._queues:
            burst = self._policy.burst
            ahead = [job for job in self._context.queue if not self.why_not_portable(job, pool)]
            waiting_uses = [self._use_of(job, pool, position, len(ahead)) for position, job in enumerate(ahead)]
            starts = forecast_starts(pool, waiting_uses, self._context, self._policy)
            self._queues[kind] = PoolQueue(
                starts={job.job_id: start for job, start in zip(ahead, starts, strict=True)},
                delay_micros=sum(burst.delay_of(job.spec.priority_class) for job in ahead),
            )
        return self._queues[kind]

    def _use_of(self, job: Job, pool: Pool, position: int, count: int) -> WaitingUse:
        spec = job.spec
        remaining_time = self._context.run_times.remaining(origin_of(job, self._policy), 0.0)
        is_whole = spec.nodes > 1 or spec.accelerators_per_node >= pool.accelerators_per_node
        return WaitingUse(
            spec.nodes * spec.accelerators_per_node,
            _expected_seconds(remaining_time, position, count),
            spec.nodes * is_whole,
            spec.required_network_level if spec.nodes > 1 else None,
        )


def _kind(pool: Pool) -> tuple[str, str, str]:
    return (pool.cluster, pool.name, pool.instance_type)


def runs_so_far(charges: Iterable[Charge], jobs: Mapping[str, Job], now: datetime) -> tuple[PastJob, ...]:
    """Return how long the running jobs have run, for the estimates of run times.

    Args:
        charges: Charges of all attempts that are not settled.
        jobs: The jobs that hold a charge. A job that is missing is left out, because its type is not known.
        now: The time.
    """
    return tuple(
        PastJob(charge.team, charge.submitter, jobs[charge.job_id].spec.job_type, seconds, is_running=True)
        for charge in charges
        if charge.job_id in jobs and charge.admitted_at and (seconds := (now - charge.admitted_at).total_seconds()) > 0
    )


def origin_of(job: Job, policy: Policy) -> RunOrigin:
    """Return the known facts about a job's run time before its end."""
    spec = job.spec
    seconds = policy.burst.run_seconds_of(spec.priority_class)
    return RunOrigin(spec.team, job.submitter, spec.job_type, spec.expected_seconds, seconds)


def _expected_seconds(remaining_time: RemainingTime, position: int, count: int) -> float:
    """Return the expected time of one of several runs; of many runs, one of the equally likely times.

    So the runs of a forecast end at different times, as they will.
    """
    return (
        remaining_time.seconds[position * _STRIDE % len(remaining_time.seconds)]
        if count >= _MIN_RUNS_TO_SPREAD
        else remaining_time.mean
    )


def placement_facts(
    job: Job,
    context: PlacementContext,
    policy: Policy,
    done_seconds: float = 0,
    forecasts: QueueForecasts | None = None,
    waiting_since: datetime | None = None,
) -> PlacementFacts:
    """Return the facts that the placement of one pending job is decided from.

    Args:
        job: A pending job that cannot start on free nodes now.
        context: The snapshot of the cycle.
        policy: Prices, caps and estimates.
        done_seconds: Run time of the job's earlier attempts. It counts only if the job keeps checkpoints.
        forecasts: The forecasts of the cycle; None to compute them for this job alone.
        waiting_since: When its last attempt ended; None for its submission.
    """
    forecasts = forecasts or QueueForecasts(context, policy)
    spec = job.spec
    # An interrupted job does not wait while it runs.
    waiting_since = waiting_since or job.queued_at or job.submitted_at
    committed_candidates = (
        _committed_candidate(job, pool, waiting_since, context, forecasts, policy)
        for pool in committed_pools(context.capacities, policy)
    )
    rented_candidates = (
        forecasts.rented_candidate(
            pool, (*why_not_tolerated(pool, spec.tolerations), *forecasts.why_not_portable(job, pool))
        )
        for pool in policy.pools_for_jobs
    )
    return PlacementFacts(
        job=job_demand(job, context, policy, done_seconds, waiting_since),
        candidates=(*committed_candidates, *rented_candidates),
        spending=spend_limits(
            spec.team, context.rented.allocations, policy.burst, context.rented.budgets_left.get(spec.team)
        ),
        risk_limits=risk_limits(policy),
        now=context.now,
    )


def job_demand(
    job: Job,
    context: PlacementContext,
    policy: Policy,
    done_seconds: float = 0,
    waiting_since: datetime | None = None,
) -> JobDemand:
    """Return the facts that decide the cost of a job in any pool."""
    burst, spec = policy.burst, job.spec
    keeps = bool(spec.checkpoint_uri)
    done_seconds = done_seconds if keeps else 0.0
    remaining_time, plan = context.run_times.remaining(origin_of(job, policy), done_seconds), job.live_plan()
    return JobDemand(
        job_id=job.job_id,
        team=spec.team,
        job_class=spec.priority_class,
        nodes=spec.nodes,
        accelerators_per_node=spec.accelerators_per_node,
        micros_per_hour_of_delay=burst.delay_of(spec.priority_class),
        run_seconds=round(remaining_time.mean, 1),
        p90_run_seconds=remaining_time.p90,
        left_seconds=remaining_time.seconds,
        waiting_since=waiting_since or job.queued_at or job.submitted_at,
        checkpoint_seconds=policy.economy.expected_checkpoint_seconds if keeps else None,
        save_seconds=spec.grace_seconds,
        restart_seconds=policy.jobs.expected_resume_seconds,
        failures_per_node_hour=policy.economy.failures_per_node_hour,
        submitted_at=job.submitted_at,
        deadline_at=spec.deadline_at,
        done_seconds=done_seconds,
        suspended_seconds=job.suspended_seconds,
        returns_when_free=bool(plan and plan.is_faulty_node_committed),
        avoids_spot=job.avoids_spot,
        max_rent_parts=plan.max_rent_parts if plan else None,
    )


def risk_limits(policy: Policy) -> RiskLimits:
    """Return the limits on risk of a policy."""
    burst = policy.burst
    return RiskLimits(spot_checkpoint_share=burst.spot_checkpoint_share, max_wait_seconds=burst.max_wait_seconds)


def jobs_to_place(pending_jobs: Iterable[Job], policy: Policy, now: datetime) -> list[Job]:
    """Return the jobs that one cycle places: the first jobs of the queue, and one later page that changes each minute.

    Without the pages, first jobs that no pool can run would keep all later jobs from rented nodes. A job with a
    deadline is always placed, so that its user learns whether any pool meets its deadline.

    Args:
        pending_jobs: Jobs that cannot start now and have no rental, in queue order.
        policy: Pools to rent from, and prices of delay.
        now: The time.
    """
    burst = policy.burst
    jobs = [
        job
        for job in pending_jobs
        if (job.spec.deadline_at or (burst.pools and burst.delay_of(job.spec.priority_class)))
        and not job.near_level(now)  # it waits although nodes are free
    ]
    size = _MAX_PLACED // 2
    first_jobs, later_jobs = jobs[:size], jobs[size:]
    pages = max(1, -(-len(later_jobs) // size))
    start = int(now.timestamp()) // 60 % pages * size
    return first_jobs + later_jobs[start : start + size]


# ---------------------------------------------------------------- rented pools


def nodes_to_rent(job: Job, pool: RentedPool, now: datetime) -> tuple[NodeCapacity, ...]:
    """Return the nodes that a rental from a pool would add for a job."""
    node_resources = expected_offer(pool.instance_type, pool.accelerators_per_node)
    return tuple(
        NodeCapacity(
            life=NodeLife(cluster=pool.cluster, instance_id=f"to-be-rented-{number}", launched_at=now),
            node_name=f"to-be-rented-{number}",
            cluster=pool.cluster,
            pool=pool.name,
            instance_type=pool.instance_type,
            allocatable=node_resources,
            free=node_resources,
            labels={KARPENTER_LABEL: pool.name, "karpenter.sh/capacity-type": str(pool.market)},
            unschedulable_reason=TAINTED if pool.taints else "",
            taints=pool.taints,
            reserved_for=job.job_id,
        )
        for number in range(job.spec.nodes)
    )


def rented_candidate(pool: Pool, context: PlacementContext, differences: tuple[str, ...]) -> CandidatePool:
    """Return a pool to rent from, with its remaining limit and recent refusals."""
    return _candidate_to_rent(pool, context.rented.allocations, context.shortages, differences, context.now)


def _candidate_to_rent(
    pool: Pool,
    allocations: Iterable[RentalAllocation],
    shortages: Shortages,
    differences: tuple[str, ...],
    now: datetime,
) -> CandidatePool:
    return CandidatePool(
        pool=pool,
        accelerators_left=unrented_accelerators(pool, allocations),
        unavailable_until=shortages.unavailable_until(pool.instance_type, pool.zone, pool.market, now),
        differences=differences,
    )


def offered_pool(rental: Rental, pools: Sequence[Pool]) -> Pool | None:
    """Return the pool of the current offer; None if the policy no longer has it."""
    offer = rental.offer
    return next((pool for pool in pools if (pool.cluster, pool.name) == (offer.cluster, offer.pool)), None)


def facts_for_next_offer(
    facts: PlacementFacts,
    rental: Rental,
    allocations: Iterable[RentalAllocation],
    shortages: Shortages,
    burst: BurstPolicy,
    now: datetime,
    budget_left_parts: int | None = None,
) -> PlacementFacts:
    """Return the facts for the next offer of a rental: the facts of its placement, brought up to date.

    Args:
        facts: Facts of the placement that began the rental.
        rental: Its current offer was refused.
        allocations: Allocations of all rentals. The rental's own allocation does not count.
        shortages: Recent refusals.
        burst: Pools and caps as they are now.
        now: The time.
        budget_left_parts: The team's budget that is left without this rental; None without a budget.
    """
    rental_allocations = [
        allocation
        for allocation in allocations
        if (allocation.job_id, allocation.number) != (rental.job_id, rental.number)
    ]
    tried_pools = {offer.pool for offer in rental.offers}
    waited_seconds = (now - facts.now).total_seconds()
    committed_candidates = tuple(
        candidate.replace(wait_seconds=max(0.0, candidate.wait_seconds - waited_seconds))
        for candidate in facts.candidates
        if not candidate.pool.market.is_rented
    )
    differences_by_pool = {candidate.pool.name: candidate.differences for candidate in facts.candidates}
    rented_candidates = tuple(
        _candidate_to_rent(
            pool,
            rental_allocations,
            shortages,
            ("Evenkeel already asked this pool.",)
            if pool.name in tried_pools
            else differences_by_pool.get(pool.name, ()),
            now,
        )
        for pool in burst.pools
    )
    spending = spend_limits(facts.job.team, rental_allocations, burst, budget_left_parts)
    return facts.replace(candidates=(*committed_candidates, *rented_candidates), spending=spending, now=now)


# ---------------------------------------------------------------- committed pools


def committed_pools(capacities: Iterable[NodeCapacity], policy: Policy) -> tuple[Pool, ...]:
    """Return the committed nodes of the fleet as pools: all nodes that are not reserved for a rental."""
    kinds: dict[tuple[str, str, str], list[NodeCapacity]] = {}
    for capacity in capacities:
        if not capacity.reserved_for:
            kinds.setdefault((capacity.cluster, capacity.pool, capacity.instance_type), []).append(capacity)
    seconds = policy.economy.expected_launch_seconds
    return tuple(
        Pool(
            name=pool,
            cluster=cluster,
            market=Market.COMMITTED,
            instance_type=instance_type,
            accelerators_per_node=max(capacity.accelerators for capacity in capacities),
            max_nodes=len(capacities),
            launch=LaunchDelay(p50_seconds=seconds, p90_seconds=seconds),
            reservation=policy.scheduling.reservation_of_pool(cluster, pool, [node.labels for node in capacities]),
            environment=PoolEnvironment(),
        )
        for (cluster, pool, instance_type), capacities in sorted(kinds.items())
    )


def _committed_candidate(
    job: Job,
    pool: Pool,
    waiting_since: datetime,
    context: PlacementContext,
    forecasts: QueueForecasts,
    policy: Policy,
) -> CandidatePool:
    """Return a committed pool. No node there counts as free for the job, because the cycle could not start it there."""
    starts, delay_micros = forecasts.queue_of(pool)
    waited_seconds = (context.now - waiting_since).total_seconds()
    own_delay = policy.burst.delay_of(job.spec.priority_class) if job.job_id in starts else 0
    wait = expected_wait(starts.get(job.job_id, _LONGEST_WAIT), waited_seconds)
    plan = job.live_plan()
    if plan and plan.capacity_at and plan.capacity_at > context.now and job.job_id in starts:
        wait = (plan.capacity_at - context.now).total_seconds()  # the forecast on which the recovery decided
    return CandidatePool(
        pool=pool,
        accelerators_left=0,
        wait_seconds=min(_LONGEST_WAIT, wait),
        opportunity_micros_per_accelerator_hour=opportunity_cost_of(pool, delay_micros - own_delay, policy.burst),
        unavailable_until=None,
        differences=forecasts.why_not_portable(job, pool),
    )


def forecast_starts(
    pool: Pool, queue: Sequence[WaitingUse], context: PlacementContext, policy: Policy, *, min_free: int = 0
) -> tuple[float, ...]:
    """Return after how many seconds each request of a queue is expected to get accelerators of a committed pool.

    Args:
        pool: The committed pool.
        queue: The requests, in order.
        context: The snapshot of the cycle.
        policy: Expected run times and repair times.
        min_free: Count only nodes with at least this number of free accelerators.
    """
    pool_key = (pool.cluster, pool.name, pool.instance_type)
    node_capacities = [
        capacity
        for capacity in context.capacities
        if (capacity.cluster, capacity.pool, capacity.instance_type) == pool_key and not capacity.reserved_for
    ]
    running_uses, busy_until = [], dict[str, float]()
    charges = [charge for charge in context.charges if (charge.cluster, charge.pool, charge.instance_type) == pool_key]
    for position, charge in enumerate(sorted(charges, key=lambda charge: charge.job_id)):
        job = context.jobs_with_charge.get(charge.job_id)
        usual = policy.burst.run_seconds_of(context.classes.get(charge.job_id, ""))
        origin = origin_of(job, policy) if job else RunOrigin(charge.team, charge.submitter, "", None, usual)
        ran = (context.now - charge.admitted_at).total_seconds() if charge.admitted_at else 0.0
        if job and job.spec.checkpoint_uri:
            ran += context.done_seconds.get(charge.job_id, 0.0)
        seconds_left = _expected_seconds(context.run_times.remaining(origin, ran), position, len(charges))
        running_uses.append(RunningUse(charge.accelerators, seconds_left))
        busy_until |= {name: max(seconds_left, busy_until.get(name, 0.0)) for name in charge.node_names}
    # A node that is out of service usually comes back, so a booting node is no reason to rent. It is one if HyperPod
    # has just reported that it has no capacity for the group.
    replaces_nodes = context.shortages.unavailable_until(pool.name, "", Market.COMMITTED, context.now) is None
    if replaces_nodes:
        running_uses += [
            RunningUse(capacity.accelerators or pool.accelerators_per_node, policy.jobs.expected_replace_seconds)
            for capacity in node_capacities
            if not capacity.is_open
        ]
    free_accelerators = sum(
        capacity.free.accelerators
        for capacity in node_capacities
        if capacity.is_open and capacity.free.accelerators >= min_free
    )
    busy_until |= dict.fromkeys(_nodes_in_other_use(node_capacities, context), float("inf"))
    starts = after_whole_nodes(
        expected_starts(free_accelerators, running_uses, queue),
        queue,
        [busy_until.get(capacity.node_name, 0.0) for capacity in node_capacities if capacity.is_open],
    )
    seconds_until_replaced = policy.jobs.expected_replace_seconds if replaces_nodes else _LONGEST_WAIT
    # A replacement is assumed to join the domain of the node that it replaces.
    empty_after = {
        level: [
            [
                busy_until.get(capacity.node_name, 0.0) if capacity.is_open else seconds_until_replaced
                for capacity in domain
            ]
            for domain in network_topology.known_domains(node_capacities, level)
        ]
        for level in {demand.level for demand in queue if demand.level}
    }
    return after_domains(starts, queue, empty_after)


def _nodes_in_other_use(node_capacities: Iterable[NodeCapacity], context: PlacementContext) -> tuple[str, ...]:
    """Return the nodes whose accelerators pods use that belong to no attempt. The end of these pods is unknown.

    Where Kueue chose the nodes of an attempt, and they are not known yet, its pods cannot be told apart: none then.
    """
    if not all(charge.node_names for charge in context.charges):
        return ()
    charged = charged_resources(context.charges)
    return tuple(
        capacity.node_name
        for capacity in node_capacities
        if capacity.accelerators - capacity.free.accelerators > charged.get(capacity.node_key, NONE).accelerators
    )


def opportunity_cost_of(pool: Pool, delay_micros_per_hour: int, burst: BurstPolicy) -> int:
    """Return the value of an accelerator-hour of a committed pool for the waiting jobs; 0 if no job waits.

    Past hourly demand is not recorded yet. While a job waits, its nodes count as needed in every hour.
    """
    prices = [
        rented_pool.micros_per_node_hour // max(1, rented_pool.accelerators_per_node) for rented_pool in burst.pools
    ]
    accelerators = pool.max_nodes * pool.accelerators_per_node
    return opportunity_cost(min(prices, default=0), 1.0, delay_micros_per_hour, accelerators)


# ---------------------------------------------------------------- portability


def why_not_tolerated(pool: RentedPool, tolerations: Iterable[Toleration]) -> tuple[str, ...]:
    """Return why pods cannot start in a pool: its first taint that they do not tolerate; empty if they can."""
    borne = tuple(tolerations)
    return tuple(f"Its pods do not tolerate {taint}." for taint in pool.taints if not all_tolerated([taint], borne))[:1]


def why_not_portable(job: Job, pool: Pool, storage: Storage, hardware: InstanceTypes) -> tuple[str, ...]:
    """Return why a job would not run the same in a pool, one sentence each; empty if it would.

    Args:
        job: A pending job, or a job in another pool.
        pool: It may have no nodes yet.
        storage: The volume behind each claim, by cluster, as the policy describes it.
        hardware: The catalogue of instance types.
    """
    return tuple(_differences_of(job, pool, storage, hardware))


def environment_in(pool: Pool, storage: Storage, catalogue: InstanceTypes) -> PoolEnvironment:
    """Return the properties of a pool's nodes: its instance type's properties, with the overrides in `position`."""
    environment = compatibility.environment_on(pool.instance_type, catalogue)
    overrides = {
        name: value for name in pool.environment.model_fields_set if (value := getattr(pool.environment, name))
    }
    return environment.replace(
        **{**overrides, "storage": {**storage.get(pool.cluster, {}), **pool.environment.storage}}
    )


def _differences_of(job: Job, pool: Pool, storage: Storage, hardware: InstanceTypes) -> Iterator[str]:
    spec = job.spec
    if spec.instance_types and pool.instance_type not in spec.instance_types:
        yield f"The job asks for {' or '.join(spec.instance_types)}."
    if spec.pools and not any(choice.matches_pool(pool) for choice in spec.pools):
        yield f"The job's type runs on {', then '.join(choice.name for choice in spec.pools)}."
    if pool.market is Market.COMMITTED and pool.cluster != job.cluster:
        yield f"The job belongs to cluster {job.cluster}."
    if spec.required_network_level and spec.nodes > 1 and pool.market.is_rented:
        yield f"The job requires one {spec.required_network_level} domain, which AWS does not promise for rented nodes."
    claim = spec.checkpoint_claim if pool.cluster != job.cluster else ""
    if claim and claim not in storage.get(job.cluster, {}):
        yield f"The job's checkpoints are on a volume that only {job.cluster} has."
        claim = ""
    needs = needs_of(spec.requires, claim, job.cluster, storage)
    yield from differences(needs, environment_in(pool, storage, hardware))
