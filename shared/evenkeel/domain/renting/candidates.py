"""Pools that a job could run on, with their conditions."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from evenkeel.domain.capacity.compatibility import Place
from evenkeel.domain.capacity.node_capacity import Room
from evenkeel.domain.capacity.pool_choices import Toleration, all_tolerated
from evenkeel.domain.capacity.pools import LaunchDelay, Market, Pool
from evenkeel.domain.capacity.shortages import Shortages
from evenkeel.domain.capacity.start_estimates import Asked, Held, expected_starts, expected_wait, left_of
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.demand import Chance, PlacementFacts, Spending, Terms, Waiting, shadow_price
from evenkeel.domain.renting.moving import why_not_there
from evenkeel.domain.renting.policy import BurstPolicy, RentedPool
from evenkeel.domain.renting.rental import NOBODYS, Rental, RentalHold, RentalState
from evenkeel.domain.values import Instant, Value

_LONGEST_WAIT = 30 * 86_400.0
"""Seconds. A forecast beyond a month says no more than that."""


def kept_rooms(rooms: Iterable[Room], rentals: Iterable[Rental], pools: Iterable[Pool]) -> tuple[Room, ...]:
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
        room.but(kept_for=owner, free=room.accelerators if owner != NOBODYS else room.free)
        if (room.cluster, room.pool) in rented and (owner := owners.get((room.cluster, room.node_name), NOBODYS))
        else room
        for room in rooms
    )


def committed_pools(rooms: Iterable[Room], policy: Policy) -> tuple[Pool, ...]:
    """Return what is paid for in any case, as pools: the machines that a pass sees and that nobody rents."""
    kinds: dict[tuple[str, str, str], list[Room]] = {}
    for room in rooms:
        if not room.kept_for:
            kinds.setdefault((room.cluster, room.pool, room.instance_type), []).append(room)
    seconds = policy.economy.expected_launch_seconds
    return tuple(
        Pool(
            name=pool,
            cluster=cluster,
            market=Market.COMMITTED,
            instance_type=instance_type,
            accelerators_per_node=max(room.accelerators for room in found),
            most_nodes=len(found),
            launch=LaunchDelay(p50_seconds=seconds, p90_seconds=seconds),
            reservation=policy.scheduling.reservation_of(cluster, pool),
            place=Place(),
        )
        for (cluster, pool, instance_type), found in sorted(kinds.items())
    )


class Conditions(Value):
    """All that the placements of one pass have in common."""

    rooms: tuple[Room, ...]
    charges: tuple[Charge, ...]
    classes: dict[str, str]
    """Priority class of each job that holds a charge."""
    queue: tuple[Job, ...]
    """Jobs that wait and have no rental, in the order of their turn."""
    holds: tuple[RentalHold, ...]
    shortages: Shortages = Shortages()
    budgets_left: dict[str, int] = {}
    """By team that has a budget in dollars: what is left of it, in parts of `economics.money`."""
    now: Instant


def placement_facts(job: Job, seen: Conditions, policy: Policy, done_seconds: float = 0) -> PlacementFacts:
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
    run = left_of(estimate, done) if done else float(estimate)
    waiting = Waiting(
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
        is_catching_up=job.is_catching_up,
        rent_worth_parts=plan.rent_worth_parts if (plan := job.live_plan()) else None,
    )
    committed = (_committed(job, pool, seen, policy) for pool in committed_pools(seen.rooms, policy))
    rented = (_rented(job, pool, seen, policy) for pool in policy.pools_for_jobs)
    return PlacementFacts(
        job=waiting,
        chances=(*committed, *rented),
        spending=spending_of(spec.team, seen.holds, burst, seen.budgets_left.get(spec.team)),
        terms=Terms(spot_checkpoint_share=burst.spot_checkpoint_share),
        now=seen.now,
    )


def spending_of(
    team: str, holds: Iterable[RentalHold], burst: BurstPolicy, budget_left_parts: int | None = None
) -> Spending:
    """Return what is rented now, and what may be."""
    listed = tuple(holds)
    return Spending(
        team_micros_per_hour=sum(hold.micros_per_hour for hold in listed if hold.team == team),
        fleet_micros_per_hour=sum(hold.micros_per_hour for hold in listed),
        team_cap_micros_per_hour=burst.team_cap_of(team),
        fleet_cap_micros_per_hour=burst.fleet_cap_micros_per_hour,
        team_budget_left_parts=budget_left_parts,
    )


def _rented(job: Job, pool: RentedPool, seen: Conditions, policy: Policy) -> Chance:
    return rented_chance(
        pool, seen, (*why_not_tolerated(pool, job.spec.tolerations), *why_not_there(job, pool, policy.storage))
    )


def why_not_tolerated(pool: RentedPool, tolerations: Iterable[Toleration]) -> tuple[str, ...]:
    """Say which taint of a pool keeps pods off; nothing where none does."""
    borne = tuple(tolerations)
    return tuple(f"Its pods do not tolerate {taint}." for taint in pool.taints if not all_tolerated([taint], borne))[:1]


def rented_chance(pool: Pool, seen: Conditions, differences: tuple[str, ...]) -> Chance:
    """Return a pool to rent from, as far as its limit and what was refused lately leave it."""
    held = sum(hold.nodes for hold in seen.holds if (hold.cluster, hold.pool) == (pool.cluster, pool.name))
    return Chance(
        pool=pool,
        accelerators_left=max(0, pool.most_nodes - held) * pool.accelerators_per_node,
        barred_until=seen.shortages.barred_until(pool.instance_type, pool.zone, pool.market, seen.now),
        differences=differences,
    )


def _committed(job: Job, pool: Pool, seen: Conditions, policy: Policy) -> Chance:
    """Return a pool that is paid for. The pass could not start the job there, so nothing of it is free for it now."""
    ours, held = machines_of(pool, seen, policy)
    ahead = [each for each in seen.queue if not why_not_there(each, pool, policy.storage)]
    asked = [
        Asked(each.spec.nodes * each.spec.accelerators_per_node, policy.burst.run_seconds_of(each.spec.priority_class))
        for each in ahead
    ]
    starts = expected_starts(sum(room.free for room in ours if room.is_open), held, asked)
    forecast = next((at for each, at in zip(ahead, starts, strict=True) if each.job_id == job.job_id), _LONGEST_WAIT)
    waited = (seen.now - (job.queued_at or job.submitted_at)).total_seconds()
    others = sum(policy.burst.delay_of(each.spec.priority_class) for each in ahead if each.job_id != job.job_id)
    return Chance(
        pool=pool,
        accelerators_left=0,
        wait_seconds=min(_LONGEST_WAIT, expected_wait(forecast, waited)),
        shadow_micros_per_accelerator_hour=shadow_of(pool, others, policy.burst),
        barred_until=None,
        differences=why_not_there(job, pool, policy.storage),
    )


def machines_of(pool: Pool, seen: Conditions, policy: Policy) -> tuple[list[Room], list[Held]]:
    """Return the machines of a pool that is paid for, and what is expected to come free of them, and when."""
    ours = [room for room in seen.rooms if _is_of(room, pool)]
    held = [
        Held(
            charge.accelerators,
            left_of(
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
        Held(room.accelerators or pool.accelerators_per_node, policy.jobs.expected_replace_seconds)
        for room in ours
        if not room.is_open and short_until is None
    ]
    return ours, held


def shadow_of(pool: Pool, delay_micros_per_hour: int, burst: BurstPolicy) -> int:
    """Return what an accelerator-hour of a committed pool is worth to those who wait for it: nothing if nobody does.

    The fleet keeps no record of past demand by the hour yet; while somebody waits, every hour is taken to be wanted.
    """
    prices = [each.micros_per_node_hour // max(1, each.accelerators_per_node) for each in burst.pools]
    accelerators = pool.most_nodes * pool.accelerators_per_node
    return shadow_price(min(prices, default=0), 1.0, delay_micros_per_hour, accelerators)


def _is_of(room: Room, pool: Pool) -> bool:
    return (room.cluster, room.pool, room.instance_type, room.kept_for) == (
        pool.cluster,
        pool.name,
        pool.instance_type,
        "",
    )


def pool_of(rental: Rental, pools: Sequence[Pool]) -> Pool | None:
    """Return the pool of the offer in force; None where the policy has none such any more."""
    offer = rental.offer
    return next((pool for pool in pools if (pool.cluster, pool.name) == (offer.cluster, offer.pool)), None)


def asked_again(
    facts: PlacementFacts,
    rental: Rental,
    holds: Iterable[RentalHold],
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
        chance.but(wait_seconds=max(0.0, chance.wait_seconds - waited))
        for chance in facts.chances
        if not chance.pool.market.is_rented
    )
    before = {chance.pool.name: chance for chance in facts.chances}
    rented = tuple(
        Chance(
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
    spending = spending_of(facts.job.team, others, burst, budget_left_parts)
    return facts.but(chances=(*committed, *rented), spending=spending, now=now)
