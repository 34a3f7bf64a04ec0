"""Pools that a job could run on, with their conditions."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pool_choices import Toleration, all_tolerated
from evenkeel.domain.capacity.pools import LaunchDelay, Market, Pool
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.capacity.start_estimates import (
    RunningUse,
    WaitingUse,
    expected_starts,
    expected_wait,
    remaining_seconds,
)
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.demand import (
    CandidatePool,
    JobDemand,
    PlacementFacts,
    RiskLimits,
    SpendLimits,
    shadow_price,
)
from evenkeel.domain.renting.moving import why_not_portable
from evenkeel.domain.renting.policy import BurstPolicy, RentedPool
from evenkeel.domain.renting.rental import UNASSIGNED, Rental, RentalAllocation, RentalState
from evenkeel.domain.values import Instant, Value

_LONGEST_WAIT = 30 * 86_400.0
"""Seconds. A forecast beyond a month says no more than that."""


def reserve_rented_nodes(
    capacities: Iterable[NodeCapacity], rentals: Iterable[Rental], pools: Iterable[Pool]
) -> tuple[NodeCapacity, ...]:
    """Return the machines with those of rented pools kept: for the job they were handed over to, or for nobody.

    Capacity pods stand on a handed-over node until its job's own pods exist, so what they use counts as free for it.
    """
    known = tuple(rentals)
    rented = {(pool.cluster, pool.name) for pool in pools if pool.market.is_rented}
    rented |= {(offer.cluster, offer.pool) for rental in known for offer in rental.offers}
    owners = {
        (rental.offer.cluster, name): rental.job_id
        for rental in known
        if rental.state is RentalState.READY
        for name in rental.node_names
    }
    return tuple(
        capacity.but(reserved_for=owner, free=capacity.accelerators if owner != UNASSIGNED else capacity.free)
        if (capacity.cluster, capacity.pool) in rented
        and (owner := owners.get((capacity.cluster, capacity.node_name), UNASSIGNED))
        else capacity
        for capacity in capacities
    )


def committed_pools(capacities: Iterable[NodeCapacity], policy: Policy) -> tuple[Pool, ...]:
    """Return what is paid for in any case, as pools: the machines that a pass sees and that nobody rents."""
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
            accelerators_per_node=max(capacity.accelerators for capacity in found),
            most_nodes=len(found),
            launch=LaunchDelay(p50_seconds=seconds, p90_seconds=seconds),
            reservation=policy.scheduling.reservation_of(cluster, pool),
            place=PoolEnvironment(),
        )
        for (cluster, pool, instance_type), found in sorted(kinds.items())
    )


class PlacementContext(Value):
    """All that the placements of one pass have in common."""

    capacities: tuple[NodeCapacity, ...]
    charges: tuple[Charge, ...]
    classes: dict[str, str]
    """Priority class of each job that holds a charge."""
    queue: tuple[Job, ...]
    """Jobs that wait and have no rental, in the order of their turn."""
    holds: tuple[RentalAllocation, ...]
    shortages: Shortages = Shortages()
    budgets_left: dict[str, int] = {}
    """By team that has a budget in dollars: what is left of it, in parts of `economics.money`."""
    now: Instant


def placement_facts(job: Job, seen: PlacementContext, policy: Policy, done_seconds: float = 0) -> PlacementFacts:
    """Return what the place of one waiting job rests on.

    Args:
        job: It waits, and the pass cannot start it on anything that is there.
        seen: What the pass saw.
        policy: Prices, caps, estimates.
        done_seconds: How long its earlier attempts ran, as far as their work is kept.
    """
    burst, spec = policy.burst, job.spec
    keeps = bool(spec.checkpoint_uri)
    estimate = burst.run_seconds_of(spec.priority_class)
    done = done_seconds if keeps else 0.0
    run = remaining_seconds(estimate, done) if done else float(estimate)
    waiting = JobDemand(
        job_id=job.job_id,
        team=spec.team,
        job_class=spec.priority_class,
        nodes=spec.nodes,
        accelerators_per_node=spec.accelerators_per_node,
        micros_per_hour_of_delay=burst.delay_of(spec.priority_class),
        run_seconds=run,
        p90_run_seconds=2 * run,
        checkpoint_seconds=policy.economy.expected_checkpoint_seconds if keeps else None,
        save_seconds=spec.grace_seconds,
        restart_seconds=policy.jobs.expected_resume_seconds,
        submitted_at=job.submitted_at,
        deadline_at=spec.deadline_at,
        done_seconds=done,
        avoids_spot=job.avoids_spot,
        max_rent_parts=plan.max_rent_parts if (plan := job.live_plan()) else None,
    )
    committed = (_committed_candidate(job, pool, seen, policy) for pool in committed_pools(seen.capacities, policy))
    rented = (_rented_candidate(job, pool, seen, policy) for pool in policy.pools_for_jobs)
    return PlacementFacts(
        job=waiting,
        candidates=(*committed, *rented),
        spending=spend_limits(spec.team, seen.holds, burst, seen.budgets_left.get(spec.team)),
        terms=RiskLimits(spot_checkpoint_share=burst.spot_checkpoint_share),
        now=seen.now,
    )


def spend_limits(
    team: str, holds: Iterable[RentalAllocation], burst: BurstPolicy, budget_left_parts: int | None = None
) -> SpendLimits:
    """Return what is rented now, and what may be."""
    listed = tuple(holds)
    return SpendLimits(
        team_micros_per_hour=sum(hold.micros_per_hour for hold in listed if hold.team == team),
        fleet_micros_per_hour=sum(hold.micros_per_hour for hold in listed),
        team_cap_micros_per_hour=burst.team_cap_of(team),
        fleet_cap_micros_per_hour=burst.fleet_cap_micros_per_hour,
        team_budget_left_parts=budget_left_parts,
    )


def _rented_candidate(job: Job, pool: RentedPool, seen: PlacementContext, policy: Policy) -> CandidatePool:
    return rented_candidate(
        pool, seen, (*why_not_tolerated(pool, job.spec.tolerations), *why_not_portable(job, pool, policy.storage))
    )


def why_not_tolerated(pool: RentedPool, tolerations: Iterable[Toleration]) -> tuple[str, ...]:
    """Say which taint of a pool keeps pods off; nothing where none does."""
    borne = tuple(tolerations)
    return tuple(f"Its pods do not tolerate {taint}." for taint in pool.taints if not all_tolerated([taint], borne))[:1]


def rented_candidate(pool: Pool, seen: PlacementContext, differences: tuple[str, ...]) -> CandidatePool:
    """Return a pool to rent from, as far as its limit and what was refused lately leave it."""
    held = sum(hold.nodes for hold in seen.holds if (hold.cluster, hold.pool) == (pool.cluster, pool.name))
    return CandidatePool(
        pool=pool,
        accelerators_left=max(0, pool.most_nodes - held) * pool.accelerators_per_node,
        barred_until=seen.shortages.barred_until(pool.instance_type, pool.zone, pool.market, seen.now),
        differences=differences,
    )


def _committed_candidate(job: Job, pool: Pool, seen: PlacementContext, policy: Policy) -> CandidatePool:
    """Return a pool that is paid for. The pass could not start the job there, so nothing of it is free for it now."""
    ours, held = expected_releases(pool, seen, policy)
    ahead = [each for each in seen.queue if not why_not_portable(each, pool, policy.storage)]
    asked = [
        WaitingUse(
            each.spec.nodes * each.spec.accelerators_per_node, policy.burst.run_seconds_of(each.spec.priority_class)
        )
        for each in ahead
    ]
    starts = expected_starts(sum(capacity.free for capacity in ours if capacity.is_open), held, asked)
    forecast = next((at for each, at in zip(ahead, starts, strict=True) if each.job_id == job.job_id), _LONGEST_WAIT)
    waited = (seen.now - (job.queued_at or job.submitted_at)).total_seconds()
    others = sum(policy.burst.delay_of(each.spec.priority_class) for each in ahead if each.job_id != job.job_id)
    return CandidatePool(
        pool=pool,
        accelerators_left=0,
        wait_seconds=min(_LONGEST_WAIT, expected_wait(forecast, waited)),
        shadow_micros_per_accelerator_hour=shadow_price_of(pool, others, policy.burst),
        barred_until=None,
        differences=why_not_portable(job, pool, policy.storage),
    )


def expected_releases(
    pool: Pool, seen: PlacementContext, policy: Policy
) -> tuple[list[NodeCapacity], list[RunningUse]]:
    """Return the machines of a pool that is paid for, and what is expected to come free of them, and when."""
    ours = [capacity for capacity in seen.capacities if _is_in_pool(capacity, pool)]
    held = [
        RunningUse(
            charge.accelerators,
            remaining_seconds(
                policy.burst.run_seconds_of(seen.classes.get(charge.job_id, "")),
                (seen.now - charge.admitted_at).total_seconds() if charge.admitted_at else 0.0,
            ),
        )
        for charge in seen.charges
        if (charge.cluster, charge.pool, charge.instance_type) == (pool.cluster, pool.name, pool.instance_type)
    ]
    # What is out of service comes back, as a rule: a job is not rented for because a machine boots. Not where HyperPod
    # has just said that it finds no machine for the group.
    short_until = seen.shortages.barred_until(pool.name, "", Market.COMMITTED, seen.now)
    held += [
        RunningUse(capacity.accelerators or pool.accelerators_per_node, policy.jobs.expected_replace_seconds)
        for capacity in ours
        if not capacity.is_open and short_until is None
    ]
    return ours, held


def shadow_price_of(pool: Pool, delay_micros_per_hour: int, burst: BurstPolicy) -> int:
    """Return what an accelerator-hour of a committed pool is worth to those who wait for it: nothing if nobody does.

    The fleet keeps no record of past demand by the hour yet; while somebody waits, every hour is taken to be wanted.
    """
    prices = [each.micros_per_node_hour // max(1, each.accelerators_per_node) for each in burst.pools]
    accelerators = pool.most_nodes * pool.accelerators_per_node
    return shadow_price(min(prices, default=0), 1.0, delay_micros_per_hour, accelerators)


def _is_in_pool(capacity: NodeCapacity, pool: Pool) -> bool:
    return (capacity.cluster, capacity.pool, capacity.instance_type, capacity.reserved_for) == (
        pool.cluster,
        pool.name,
        pool.instance_type,
        "",
    )


def offered_pool(rental: Rental, pools: Sequence[Pool]) -> Pool | None:
    """Return the pool of the offer in force; None where the policy has none such any more."""
    offer = rental.offer
    return next((pool for pool in pools if (pool.cluster, pool.name) == (offer.cluster, offer.pool)), None)


def facts_for_next_offer(
    facts: PlacementFacts,
    rental: Rental,
    holds: Iterable[RentalAllocation],
    shortages: Shortages,
    burst: BurstPolicy,
    now: datetime,
    budget_left_parts: int | None = None,
) -> PlacementFacts:
    """Return what the next offer of a rental rests on: the facts it began with, and what has become known since.

    Args:
        facts: Of the placement that began it.
        rental: It was refused; what it held is free again.
        holds: Those of all rentals; its own does not count.
        shortages: What was refused lately.
        burst: Pools and caps as they are now.
        now: The time.
        budget_left_parts: Of its team's dollars, if this rental were none; None where there is no such budget.
    """
    others = [hold for hold in holds if (hold.job_id, hold.number) != (rental.job_id, rental.number)]
    tried = {offer.pool for offer in rental.offers}
    waited = (now - facts.now).total_seconds()
    committed = tuple(
        candidate.but(wait_seconds=max(0.0, candidate.wait_seconds - waited))
        for candidate in facts.candidates
        if not candidate.pool.market.is_rented
    )
    before = {candidate.pool.name: candidate for candidate in facts.candidates}
    rented = tuple(
        CandidatePool(
            pool=pool,
            accelerators_left=max(
                0,
                pool.most_nodes
                - sum(hold.nodes for hold in others if (hold.cluster, hold.pool) == (pool.cluster, pool.name)),
            )
            * pool.accelerators_per_node,
            barred_until=shortages.barred_until(pool.instance_type, pool.zone, pool.market, now),
            differences=("It was asked already.",)
            if pool.name in tried
            else before[pool.name].differences
            if pool.name in before
            else (),
        )
        for pool in burst.pools
    )
    spending = spend_limits(facts.job.team, others, burst, budget_left_parts)
    return facts.but(candidates=(*committed, *rented), spending=spending, now=now)
