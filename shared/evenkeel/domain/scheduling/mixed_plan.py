"""Jobs whose committed nodes are joined by rented nodes in a scheduling cycle.

    a job runs on its base  ──▶ would rented nodes gain more than they cost? ──▶ rent them; the job keeps running
    the nodes are ready     ──▶ the job saves and stops                      ──▶ its next attempt has both parts
    the base is admitted    ──▶ are all rented nodes usable?                 ──▶ they join it; otherwise it starts alone
    a job has both parts    ──▶ do the caps hold, and does its rent pay?     ──▶ otherwise it continues on its base

The rules of the queue decide about the base alone, so it never waits for a rented node.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision, with_rented_part
from evenkeel.domain.admission.pool_fits import is_schedulable_for, missing_efa
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.elastic.grow_shrink import SizeChange, backoff_until
from evenkeel.domain.jobs.attempt import RentedPart, run_seconds
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.policy import Policy
from evenkeel.domain.quotas.budgets import expected_remaining_cost
from evenkeel.domain.quotas.spending import usage_limits
from evenkeel.domain.renting.candidates import PlacementContext, job_demand, rented_candidate, risk_limits
from evenkeel.domain.renting.cost import CandidatePool, SpendLimits
from evenkeel.domain.renting.mixed_capacity import (
    Base,
    MixedAction,
    MixedFacts,
    RentedPartFacts,
    decide_mixed,
    decide_rented_part,
    why_not_joinable,
)
from evenkeel.domain.renting.rental import Rental, RentalState
from evenkeel.domain.renting.rental_book import RentalBook, spend_limits
from evenkeel.domain.scheduling.cycle_plan import MixedStep
from evenkeel.domain.scheduling.cycle_snapshot import CycleSnapshot
from evenkeel.domain.scheduling.rent_plan import capacities_after_admissions, placement_context
from evenkeel.domain.scheduling.resize_facts import JoinFacts, PlannedResize, ResizeFacts

_MAX_EXAMINED = 8
"""Maximum jobs for which one cycle compares mixed options."""
_MAX_SIZES = 16
"""Maximum sizes that one decision compares for each pool."""
_WAITS_FOR_NODES = (AdmissionAction.WAIT, AdmissionAction.BLOCKED, AdmissionAction.PREEMPT)


# ---------------------------------------------------------------- rent


def jobs_to_examine(snapshot: CycleSnapshot, policy: Policy, now: datetime) -> tuple[Job, ...]:
    """Return the running jobs that may get a rented part now, by id: one page of them, and another each minute.

    Without the pages, the first jobs that stay on their base would keep all later jobs from rented nodes.
    """
    if not policy.burst.pools:
        return ()
    charges = {charge.job_id: charge for charge in snapshot.live_charges}
    jobs_by_id = (job for _, job in sorted(snapshot.elastic.items()))
    jobs = tuple(job for job in jobs_by_id if _may_get_rented_part(job, charges, snapshot, policy, now))
    pages = max(1, -(-len(jobs) // _MAX_EXAMINED))
    start = int(now.timestamp()) // 60 % pages * _MAX_EXAMINED
    return jobs[start : start + _MAX_EXAMINED]


def _may_get_rented_part(
    job: Job, charges: Mapping[str, Charge], snapshot: CycleSnapshot, policy: Policy, now: datetime
) -> bool:
    charge, elastic = charges.get(job.job_id), policy.scheduling.elastic
    if job.spec.elastic is None or not job.spec.elastic.mixed_pools or charge is None:
        return False
    if job.job_id in snapshot.rental_book.rental_by_holder or charge.cluster in snapshot.unreadable_clusters:
        return False
    if not _runs_on_base_alone(job, charge):
        return False
    if job.resized_at and now < job.resized_at + timedelta(seconds=elastic.snooze_seconds):
        return False
    return job.growth_failed_at is None or now >= backoff_until(job.growth_failed_at, job.failed_growths, elastic)


def _runs_on_base_alone(job: Job, charge: Charge) -> bool:
    return (
        job.state is JobState.RUNNING
        and job.is_stoppable
        and charge.attempt == job.current_attempt
        and bool(charge.node_names)
        and not charge.is_rented
        and charge.rented_part is None
    )


def plan_mixed(
    snapshot: CycleSnapshot,
    admission_input: AdmissionInput,
    decisions: Sequence[AdmissionDecision],
    changing_job_ids: Iterable[str],
    rental_book: RentalBook,
    policy: Policy,
    now: datetime,
) -> tuple[MixedStep, ...]:
    """Decide whether nodes are rented to join the base of running jobs. At most one rental begins in a cycle.

    Args:
        snapshot: The snapshot of the cycle.
        admission_input: The input of the decisions.
        decisions: Decisions about the pending jobs.
        changing_job_ids: Jobs that this cycle asks to stop.
        rental_book: All open rentals, and the rentals that this cycle plans for other holders.
        policy: The whole policy.
        now: The time.
    """
    changing_ids = frozenset(changing_job_ids)
    jobs = [job for job in jobs_to_examine(snapshot, policy, now) if job.job_id not in changing_ids]
    if not jobs:
        return ()
    capacities = capacities_after_admissions(admission_input.capacities, decisions)
    context = placement_context(snapshot, admission_input, policy, now, decisions)._replace(
        capacities=capacities, rented=rental_book
    )
    ran = run_seconds(snapshot.attempts, now)
    is_contended = any(decision.action in _WAITS_FOR_NODES for decision in decisions)
    steps: list[MixedStep] = []
    begun = len(rental_book.allocations) - len(snapshot.rental_book.allocations)
    max_rentals = min(begun + 1, policy.burst.rentals_per_cycle)
    for job in jobs:
        charge = next(charge for charge in snapshot.live_charges if charge.job_id == job.job_id)
        base = base_of(charge, capacities)
        free_nodes = 0 if is_contended else _free_nodes(base, capacities, policy)
        facts = mixed_facts(job, base, context, policy, ran.get(job.job_id, 0.0), free_committed_nodes=free_nodes)
        facts = _with_limit(facts, job, snapshot, admission_input, policy, now)
        decision = decide_mixed(facts)
        if decision.action is MixedAction.RENT:
            begun += 1
            if begun > max_rentals:
                continue  # the next cycle decides with the caps and limits that the first rental leaves
        steps.append(MixedStep(job.job_id, decision))
    return tuple(steps)


def base_of(charge: Charge, capacities: Iterable[NodeCapacity]) -> Base:
    """Return the committed nodes of a charge."""
    names = set(charge.base_node_names)
    nodes = [capacity for capacity in capacities if capacity.cluster == charge.cluster and capacity.node_name in names]
    return base_on(charge.cluster, charge.pool, charge.instance_type, len(charge.base_node_names), nodes)


def base_on(cluster: str, pool: str, instance_type: str, count: int, nodes: Sequence[NodeCapacity]) -> Base:
    """Return a base of some nodes of a pool. `nodes` are these nodes, or the nodes from which they will be taken."""
    return Base(
        cluster=cluster,
        pool=pool,
        instance_type=instance_type,
        nodes=count,
        zones=tuple(sorted({capacity.zone for capacity in nodes})),
        ultra_servers=tuple(sorted({capacity.ultra_server for capacity in nodes} - {""})),
    )


def mixed_facts(
    job: Job,
    base: Base,
    context: PlacementContext,
    policy: Policy,
    ran_seconds: float,
    *,
    free_committed_nodes: int = 0,
) -> MixedFacts:
    """Return the facts that the rented part of one job is decided from.

    Args:
        job: The job, as it runs on its base.
        base: Its committed nodes.
        context: The shared facts of the cycle.
        policy: Prices, caps and estimates.
        ran_seconds: Run time of all its attempts.
        free_committed_nodes: Free nodes of the base's pool that no job waits for.
    """
    elastic, sizes = job.spec.elastic, job.spec.sizes
    assert elastic is not None  # the caller checks this
    assert sizes is not None
    mixed_pools = set(elastic.mixed_pools)
    candidates = tuple(
        rented_candidate(pool, context, why_not_joinable(job, base, pool, policy.storage, policy.hardware))
        for pool in policy.pools_for_jobs
        if pool.name in mixed_pools
    )
    return MixedFacts(
        job=job_demand(job, context, policy, ran_seconds).replace(nodes=base.nodes),
        base=base,
        sizes=_sizes_to_compare([size for size in sizes.legal if size > base.nodes], base, candidates),
        throughput=job.throughput,
        resize_seconds=policy.scheduling.elastic.resize_seconds,
        candidates=candidates,
        free_committed_nodes=free_committed_nodes,
        spending=spend_limits(
            job.spec.team, context.rented.allocations, policy.burst, context.rented.budgets_left.get(job.spec.team)
        ),
        risk_limits=risk_limits(policy),
        now=context.now,
    )


def _sizes_to_compare(larger: Sequence[int], base: Base, candidates: Iterable[CandidatePool]) -> tuple[int, ...]:
    """Return the larger sizes that a pool may supply, evenly spread if they are many; at least the smallest size."""
    max_size = base.nodes + max((candidate.pool.max_nodes for candidate in candidates), default=0)
    sizes = [size for size in larger if size <= max_size] or list(larger[:1])
    last_index = len(sizes) - 1
    if last_index < _MAX_SIZES:
        return tuple(sizes)
    return tuple(sizes[index * last_index // (_MAX_SIZES - 1)] for index in range(_MAX_SIZES))


def _free_nodes(base: Base, capacities: Iterable[NodeCapacity], policy: Policy) -> int:
    kind = (base.cluster, base.pool, base.instance_type)
    unused_accelerators = sum(
        capacity.is_unused and bool(capacity.accelerators) and not capacity.reserved_for
        for capacity in capacities
        if (capacity.cluster, capacity.pool, capacity.instance_type) == kind
    )
    return max(0, unused_accelerators - policy.scheduling.spare_nodes.get(base.pool, 0))


def _with_limit(
    facts: MixedFacts,
    job: Job,
    snapshot: CycleSnapshot,
    admission_input: AdmissionInput,
    policy: Policy,
    now: datetime,
) -> MixedFacts:
    """Return the facts with the tightest limit of the job's team. A rented node counts in it as in a pure rental.

    Nodes that are rented for other jobs of the submitter, and have not joined them yet, count too.
    """
    team = admission_input.setup.by_name.get(job.spec.team)
    if team is None:
        return facts
    charges = [charge for charge in admission_input.charges if charge.team == team.name]
    spent = {period: amount for (name, period), amount in admission_input.spent.items() if name == team.name}
    per_node = job.spec.accelerators_per_node
    joining_accelerators = _joining_accelerators(job, snapshot)
    for limit in usage_limits(team, job.submitter, per_node, charges, spent, policy.economy, now):
        if limit.requested:
            limit = limit.replace(used=limit.used + joining_accelerators)  # noqa: PLW2901 - the same limit, with open rentals
        max_nodes = int((limit.limit - limit.used) // per_node) if limit.requested and per_node else None
        if max_nodes is None:
            max_nodes = 0 if limit.is_reached else None
        if max_nodes is not None and (facts.max_rented_nodes is None or max_nodes < facts.max_rented_nodes):
            facts = facts.replace(max_rented_nodes=max(0, max_nodes), limit_text=limit.text)
    return facts


def _joining_accelerators(job: Job, snapshot: CycleSnapshot) -> int:
    """Return the accelerators of open rentals that will join other jobs of a submitter and are in no charge yet."""
    rental_number_by_job = {
        charge.job_id: charge.rented_part.rental for charge in snapshot.live_charges if charge.rented_part
    }
    return sum(
        rental.nodes * other_job.spec.accelerators_per_node
        for rental in snapshot.rental_book.rentals
        if rental.joins_base
        and rental.state.hosts_holder
        and rental.job_id != job.job_id
        and rental_number_by_job.get(rental.job_id) != rental.number
        and (other_job := snapshot.known_job(rental.job_id)) is not None
        and (other_job.spec.team, other_job.submitter) == (job.spec.team, job.submitter)
    )


# ---------------------------------------------------------------- join


def plan_part_join(snapshot: CycleSnapshot, policy: Policy) -> PlannedResize | None:
    """Return the size change of a job whose rented nodes are ready; None if there is none. One job in each cycle."""
    charges = {charge.job_id: charge for charge in snapshot.live_charges}
    for rental in sorted(_joining_rentals(snapshot), key=lambda rental: rental.name):
        job, charge = snapshot.elastic.get(rental.job_id), charges.get(rental.job_id)
        if job is None or charge is None or not _runs_on_base_alone(job, charge) or job.rentals != rental.number:
            continue
        if not rental.joins_attempt_of(charge.admitted_at):
            continue  # the job released these nodes
        request = AdmissionRequest.of(job).with_nodes(len(charge.node_names)).with_per_node(charge.per_node)
        if _part_for(request, job, rental, snapshot, policy) is None:
            continue
        base_nodes, size = len(charge.node_names), len(charge.node_names) + rental.nodes
        seconds = policy.scheduling.elastic.resize_seconds
        facts = JoinFacts(
            job_id=job.job_id,
            base_nodes=base_nodes,
            rented_nodes=rental.nodes,
            pool=rental.offer.pool,
            rental=rental.number,
            accelerators_per_node=job.spec.accelerators_per_node,
            resize_seconds=seconds,
        )
        change = SizeChange(
            job_id=job.job_id,
            from_nodes=base_nodes,
            to_nodes=size,
            reason=facts.reason,
            lost_gpu_seconds=facts.lost_gpu_seconds,
        )
        return PlannedResize(facts=ResizeFacts(job_id=job.job_id, join=facts), resize=change, attempt=charge.attempt)
    return None


def with_rented_parts(
    decisions: Iterable[AdmissionDecision],
    snapshot: CycleSnapshot,
    admission_input: AdmissionInput,
    policy: Policy,
    now: datetime,
) -> tuple[AdmissionDecision, ...]:
    """Return the decisions; each admitted base is joined by its rented nodes if all of them are ready and usable.

    The limit of a submitter holds with all rented parts of the cycle: each part that joins counts for the next one.
    """
    rentals, all_decisions = {rental.job_id: rental for rental in _joining_rentals(snapshot)}, list(decisions)
    if not rentals:
        return tuple(all_decisions)
    for index, decision in enumerate(all_decisions):
        rental = rentals.get(decision.job_id)
        if rental is None or decision.action is not AdmissionAction.ADMIT or not decision.nodes:
            continue
        if not _is_within_user_limit(decision, rental, all_decisions, admission_input, policy, now):
            continue
        rented_part = _part_of_decision(decision, rental, snapshot, policy)
        if rented_part is not None:
            all_decisions[index] = with_rented_part(decision, rented_part)
    return tuple(all_decisions)


def _is_within_user_limit(
    decision: AdmissionDecision,
    rental: Rental,
    decisions: Iterable[AdmissionDecision],
    admission_input: AdmissionInput,
    policy: Policy,
    now: datetime,
) -> bool:
    """Whether the submitter of an admitted base may hold its rented nodes, beside all admissions of this cycle."""
    request = decision.facts.request
    team = admission_input.setup.by_name.get(request.team)
    if team is None:
        return True
    started_decisions = [other for other in decisions if other.action is AdmissionAction.ADMIT and other.nodes]
    charges = [*admission_input.charges, *(other.to_charge() for other in started_decisions)]
    team_charges = [charge for charge in charges if charge.team == team.name]
    added_accelerators = rental.nodes * request.accelerators_per_node
    limits = usage_limits(team, request.submitter, added_accelerators, team_charges, {}, policy.economy, now)
    return not any(limit.is_reached for limit in limits if limit.requested)


def _part_of_decision(
    decision: AdmissionDecision, rental: Rental, snapshot: CycleSnapshot, policy: Policy
) -> RentedPart | None:
    job = snapshot.pending[decision.job_id]
    if job.rentals != rental.number or job.is_preempted or job.is_migrating_back:
        return None
    return _part_for(decision.facts.request, job, rental, snapshot, policy)


def _joining_rentals(snapshot: CycleSnapshot) -> Iterable[Rental]:
    return (
        rental
        for rental in snapshot.rental_book.rentals
        if rental.joins_base
        and rental.state is RentalState.READY
        and rental.offer.cluster not in snapshot.unreadable_clusters
    )


def _part_for(
    request: AdmissionRequest, job: Job, rental: Rental, snapshot: CycleSnapshot, policy: Policy
) -> RentedPart | None:
    """Return the rented nodes of a job as a part of its next attempt; None if they cannot join its base.

    All nodes of the rental join, or none: a rental with a lost node is released.
    """
    size = request.nodes + rental.nodes
    if job.spec.sizes is None or size not in job.spec.sizes.legal or rental.offer.cluster != request.cluster:
        return None
    names = set(rental.node_names)
    full_request = request.with_nodes(size)
    usable = [
        capacity
        for capacity in snapshot.capacities
        if capacity.cluster == rental.offer.cluster
        and capacity.node_name in names
        and is_schedulable_for(full_request, capacity)
        and capacity.life.key not in full_request.avoid
        and not capacity.why_too_small(full_request.per_node)
        and not missing_efa(full_request, capacity, policy.scheduling)
    ]
    if len(usable) < rental.nodes:
        return None
    return RentedPart(
        rental=rental.number,
        pool=rental.offer.pool,
        instance_type=rental.offer.instance_type,
        nodes=tuple(capacity.life for capacity in usable),
        node_names=tuple(capacity.node_name for capacity in usable),
    )


# ---------------------------------------------------------------- release


def jobs_with_rented_part(snapshot: CycleSnapshot, now: datetime) -> tuple[Job, ...]:
    """Return the running jobs that may release their rented part now: one page of them, another each minute."""
    charges = {charge.job_id: charge for charge in snapshot.live_charges if charge.rented_part}
    jobs = tuple(
        job
        for job_id, job in sorted(snapshot.elastic.items())
        if (charge := charges.get(job_id)) is not None
        and _joined_rental(job, charge, snapshot) is not None
        and charge.cluster not in snapshot.unreadable_clusters
        and job.state is JobState.RUNNING
        and job.is_stoppable
    )
    pages = max(1, -(-len(jobs) // _MAX_EXAMINED))
    start = int(now.timestamp()) // 60 % pages * _MAX_EXAMINED
    return jobs[start : start + _MAX_EXAMINED]


def _joined_rental(job: Job, charge: Charge, snapshot: CycleSnapshot) -> Rental | None:
    rental = snapshot.rental_book.rental_by_holder.get(job.job_id)
    if rental is None or charge.rented_part is None or charge.attempt != job.current_attempt:
        return None
    return rental if rental.number == charge.rented_part.rental else None


def plan_part_release(
    snapshot: CycleSnapshot, admission_input: AdmissionInput, policy: Policy, now: datetime
) -> PlannedResize | None:
    """Return the size change of the first job that releases its rented part; None if every job keeps it.

    The most expensive rental comes first. One job releases its part in each cycle: rents that end do not count, so
    the next cycle sees whether the caps hold.

    Args:
        snapshot: The snapshot of the cycle.
        admission_input: The input of the decisions.
        policy: Prices, caps and estimates.
        now: The time.
    """
    jobs = jobs_with_rented_part(snapshot, now)
    if not jobs:
        return None
    context = placement_context(snapshot, admission_input, policy, now)
    charges = {charge.job_id: charge for charge in snapshot.live_charges}
    ran = run_seconds(snapshot.attempts, now)
    rentals = {job.job_id: snapshot.rental_book.rental_by_holder[job.job_id] for job in jobs}

    def by_price(job: Job) -> tuple[int, str]:
        rental = rentals[job.job_id]
        return -rental.offer.micros_per_node_hour * rental.nodes, job.job_id

    elastic = policy.scheduling.elastic
    for job in sorted(jobs, key=by_price):
        rental, charge = rentals[job.job_id], charges[job.job_id]
        base_nodes = len(charge.base_node_names)
        part = RentedPartFacts(
            job=job_demand(job, context, policy, ran.get(job.job_id, 0.0)).replace(nodes=base_nodes),
            base_nodes=base_nodes,
            rented_nodes=rental.nodes,
            pool=rental.offer.pool,
            rental=rental.number,
            micros_per_node_hour=rental.offer.micros_per_node_hour,
            throughput=job.throughput,
            resize_seconds=elastic.resize_seconds,
            closed_nodes=_closed_nodes(rental, snapshot),
            may_stop_to_save=not (job.resized_at and now < job.resized_at + timedelta(seconds=elastic.snooze_seconds)),
            spending=spending_without_leaving(job, snapshot, policy, now),
        )
        decision = decide_rented_part(part)
        if decision.is_released:
            change = SizeChange(
                job_id=job.job_id,
                from_nodes=base_nodes + rental.nodes,
                to_nodes=base_nodes,
                reason=decision.reason,
                lost_gpu_seconds=part.lost_gpu_seconds,
            )
            return PlannedResize(
                facts=ResizeFacts(job_id=job.job_id, rented_part=part), resize=change, attempt=charge.attempt
            )
    return None


def _closed_nodes(rental: Rental, snapshot: CycleSnapshot) -> tuple[str, ...]:
    """Return the nodes of a rental that AWS may reclaim and on which no pod may start."""
    if not rental.offer.market.can_be_reclaimed:
        return ()
    names = set(rental.node_names)
    return tuple(
        sorted(
            capacity.node_name
            for capacity in snapshot.capacities
            if capacity.cluster == rental.offer.cluster and capacity.node_name in names and not capacity.is_open
        )
    )


def spending_without_leaving(job: Job, snapshot: CycleSnapshot, policy: Policy, now: datetime) -> SpendLimits:
    """Return the caps and the budget of a job's team, with the rents of the rentals that no job releases yet."""
    leaving_rentals = {rental.name: rental for rental in snapshot.rental_book.rentals if _is_leaving(rental, snapshot)}
    staying_names = {
        rental.name for rental in snapshot.rental_book.rentals if rental.state.hosts_holder
    } - leaving_rentals.keys()
    allocations = [
        allocation
        for allocation in snapshot.rental_book.allocations
        if f"{allocation.job_id}-b{allocation.number}" in staying_names
    ]
    team = job.spec.team
    budget_left = snapshot.rental_book.budgets_left.get(team)
    if budget_left is not None:
        budget_left += sum(
            expected_remaining_cost(rental, now) for rental in leaving_rentals.values() if rental.team == team
        )
    return spend_limits(team, allocations, policy.burst, budget_left)


def _is_leaving(rental: Rental, snapshot: CycleSnapshot) -> bool:
    """Whether the job of a rental releases it: it is asked to stop for that, or its next attempt runs without it."""
    job = snapshot.known_job(rental.job_id)
    if job is not None and job.is_migrating_back:
        return True
    if not rental.joins_base:
        return False
    charge = next((charge for charge in snapshot.live_charges if charge.job_id == rental.job_id), None)
    return charge is not None and charge.rented_part is None and not rental.joins_attempt_of(charge.admitted_at)
