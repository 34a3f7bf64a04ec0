"""Where a waiting job should run: every pool it could have, in dollars, with its expected start, end and risk.

    start = wait + launch + restart            finish = start + run x stretch
    cost  = rent + price of delay x (finish - run) + shadow price x accelerators x run

What is committed is paid for in any case, so its invoice is no reason; an hour of it costs what others would give for
it (`shadow_price`). A rented pool costs its rent. So a job is rented for exactly where

    price of delay x (wait for committed - start of the rented) > rent - shadow price of the committed hours

or where a rented pool meets its deadline and no committed one does. Who has neither a price of delay nor a deadline
that renting meets is not rented for. What stands free and committed is taken first. A job that a recovery brings back
was weighed by that recovery, with what its standstill costs: it is rented for up to what the recovery found it worth.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from evenkeel.domain.capacity.pools import Market, Pool
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.economics import money
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.renting.demand import (
    SPOT_NOTICE_SECONDS,
    CandidatePool,
    JobDemand,
    PlacementAction,
    PlacementDecision,
    PlacementFacts,
    PoolCost,
    RiskLimits,
    SpendLimits,
)


def choose_pool(facts: PlacementFacts) -> PlacementDecision:
    """Choose the cheapest pool that is soon enough: what is there and committed first, then by cost, then by order.

    A deadline narrows the choice to the pools that meet it. Where none does, no money buys it: what delay costs
    decides, as without a deadline, and the reason says how late it will be.
    """
    order = {candidate.pool.name: place for place, candidate in enumerate(facts.candidates)}
    rows = sorted(
        _pool_costs(facts), key=lambda row: (bool(row.why_not), not row.is_available_now, row.parts, order[row.pool])
    )
    possible = [row for row in rows if not row.why_not]
    if not possible:
        seen = " ".join(f"{row.pool}: {row.why_not}" for row in rows) or "No pools are configured."
        return _decided(facts, rows, PlacementAction.NO_POOL, f"No pool can run the job now. {seen}", ())
    soon = _meeting_deadline(facts, possible)
    chosen = soon[0]
    if chosen.is_available_now:
        why = f"{chosen.pool} is already paid for and has free nodes."
        return _decided(facts, rows, PlacementAction.START, why + _deadline_text(facts, possible, chosen), soon)
    wished = cheapest_rented(soon)
    worth = facts.job.max_rent_parts
    if not chosen.market.is_rented and wished and worth is not None and wished.rent_parts <= worth:
        price, most = money.format_usd(wished.rent_parts), money.format_usd(worth)
        cost = f"{wished.pool} costs {price}, below the limit of {most}"
        why = f"The job's recovery chose to rent: {cost}."
        return _decided(facts, rows, PlacementAction.RENT, why + _deadline_text(facts, possible, wished), (wished,))
    is_rent = chosen.market.is_rented
    why = _rent_reason(possible, chosen) if is_rent else _wait_reason(rows, chosen)
    action = PlacementAction.RENT if is_rent else PlacementAction.WAIT
    return _decided(facts, rows, action, why + _deadline_text(facts, possible, chosen), soon)


def cheapest_rented(rows: Iterable[PoolCost]) -> PoolCost | None:
    """Return the cheapest row to rent of those that the job could have; None where there is none."""
    to_rent = (row for row in rows if row.market.is_rented and not row.why_not)
    return min(to_rent, key=lambda row: row.parts, default=None)


def cheapest_rental_in_time(placed: PlacementDecision) -> PoolCost | None:
    """Return what would be rented if anything were: the cheapest that meets the deadline, where some pool does."""
    return cheapest_rented(_meeting_deadline(placed.facts, [row for row in placed.table if not row.why_not]))


def recorded_placement_reason(placed: PlacementDecision, mode: Mode) -> str:
    """Return the reason as it is recorded: in any mode but `act` nothing is rented, and that is said."""
    if mode is not Mode.ACT and placed.action is PlacementAction.RENT:
        return f"Mode is {mode}: Evenkeel would rent nodes, but takes no action. {placed.reason}"
    return placed.reason


def place_in_queue_order(asks: Sequence[PlacementFacts]) -> tuple[PlacementDecision, ...]:
    """Place jobs one after the other, each with what those before it have left of room, of caps and of budgets.

    Args:
        asks: In queue order, each with pools and spending as they stand before the pass.
    """
    taken: dict[str, int] = {}
    fleet = 0
    teams: dict[str, int] = {}
    budgets: dict[str, int] = {}
    decisions = []
    for ask in asks:
        job, before = ask.job, ask.spending
        spending = before
        if fleet:
            left = before.team_budget_left_parts
            spending = before.but(
                team_micros_per_hour=before.team_micros_per_hour + teams.get(job.team, 0),
                fleet_micros_per_hour=before.fleet_micros_per_hour + fleet,
                team_budget_left_parts=None if left is None else left - budgets.get(job.team, 0),
            )
        candidates = tuple(
            candidate.but(accelerators_left=candidate.accelerators_left - taken[candidate.pool.name])
            if candidate.pool.name in taken
            else candidate
            for candidate in ask.candidates
        )
        decision = choose_pool(ask.but(candidates=candidates, spending=spending))
        decisions.append(decision)
        if decision.row and decision.action in (PlacementAction.START, PlacementAction.RENT):
            pool = next(candidate.pool for candidate in candidates if candidate.pool.name == decision.pool)
            taken[pool.name] = taken.get(pool.name, 0) + _accelerators_taken(job, pool)
            rate = pool.micros_per_node_hour * job.nodes
            fleet += rate
            teams[job.team] = teams.get(job.team, 0) + rate
            budgets[job.team] = budgets.get(job.team, 0) + decision.row.rent_parts
    return tuple(decisions)


def cost_of_pool(
    job: JobDemand,
    candidate: CandidatePool,
    spending: SpendLimits,
    terms: RiskLimits,
    now: datetime,
    changeover_seconds: float = 0,
) -> PoolCost:
    """Weigh one pool for one job.

    Args:
        job: The job.
        candidate: The pool as it stands.
        spending: What is spent and may be.
        terms: Limits on risk.
        now: The moment.
        changeover_seconds: How long it takes to begin again on demand: the guard of a deadline on spot.
    """
    pool = candidate.pool
    is_available_now = not pool.market.is_rented and job.accelerators <= candidate.accelerators_left
    wait = 0.0 if is_available_now or pool.market.is_rented else max(0.0, candidate.wait_seconds)
    if pool.reservation and pool.reservation.starts_at > now:
        is_available_now, wait = False, max(wait, (pool.reservation.starts_at - now).total_seconds())
    launch = pool.launch.gang_seconds(job.nodes) if pool.market.is_rented else pool.launch.p50_seconds
    start = wait + launch + job.restart_seconds
    per_second = pool.interruptions_per_node_hour * job.nodes / 3600
    again = launch + job.restart_seconds + _loss_per_interruption(job)
    run = job.run_seconds * (1 + per_second * again)
    end = round(start + run, 3)
    rent = 0
    if pool.market.is_rented:
        held = max(pool.least_billed_seconds, math.ceil(launch + job.restart_seconds + run))
        rent = pool.micros_per_node_hour * job.nodes * held
    asked = _PoolQuestion(job, candidate, spending, terms, now, start, end, rent, changeover_seconds)
    why_not = next(_rejections(asked), "")
    return PoolCost(
        pool=pool.name,
        market=pool.market,
        why_not=why_not,
        starts_after_seconds=round(start, 3),
        ends_after_seconds=end,
        rent_parts=rent,
        delay_parts=round(job.micros_per_hour_of_delay * (start + run - job.run_seconds)),
        shadow_parts=round(candidate.shadow_micros_per_accelerator_hour * job.accelerators * run),
        interruptions=round(per_second * job.run_seconds, 4),
        is_available_now=is_available_now and not why_not,
    )


def why_not_spot(job: JobDemand, changeover_seconds: float, now: datetime) -> str:
    """Say why a job with a deadline must not be on spot now; empty where it may.

    Its progress has to stay on the straight line from nothing at submission to all at the deadline. Once below it, the
    job is kept on demand until it is ahead by two change-overs; and from where only a change-over is left, to its end.
    What could not be met even by running from now on is not guarded.
    """
    if job.deadline_at is None:
        return ""
    left = (job.deadline_at - now).total_seconds()
    if job.run_seconds > left:
        return ""
    if job.run_seconds + changeover_seconds >= left:
        return "The job's deadline leaves no time for an interruption."
    whole = (job.deadline_at - job.submitted_at).total_seconds()
    line = (now - job.submitted_at).total_seconds() * (job.done_seconds + job.run_seconds) / whole if whole > 0 else 0.0
    margin = 2 * changeover_seconds if job.avoids_spot else -changeover_seconds
    if job.done_seconds < line + margin:
        return "The job is behind the progress it needs to meet its deadline."
    return ""


def must_avoid_spot(facts: PlacementFacts) -> bool:
    """Whether a job is kept off spot for the sake of its deadline: remembered until it has caught up."""
    return bool(why_not_spot(facts.job, _changeover_seconds(facts), facts.now))


def _changeover_seconds(facts: PlacementFacts) -> float:
    """Return how long it takes to begin again on demand."""
    job = facts.job
    on_demand = [
        candidate.pool.launch.gang_seconds(job.nodes)
        for candidate in facts.candidates
        if candidate.pool.market is Market.ON_DEMAND
    ]
    return min(on_demand, default=0.0) + job.restart_seconds


def _pool_costs(facts: PlacementFacts) -> Iterator[PoolCost]:
    job, changeover = facts.job, _changeover_seconds(facts)
    for candidate in facts.candidates:
        yield cost_of_pool(job, candidate, facts.spending, facts.terms, facts.now, changeover)


def _loss_per_interruption(job: JobDemand) -> float:
    """Return the work that one interruption is expected to cost."""
    if job.checkpoint_seconds is None:
        return job.run_seconds / 2
    return 0.0 if job.save_seconds <= SPOT_NOTICE_SECONDS else job.checkpoint_seconds / 2


def _accelerators_taken(job: JobDemand, pool: Pool) -> int:
    """Return what a gang takes of a pool: whole nodes where they are rented for it."""
    return job.nodes * (pool.accelerators_per_node if pool.market.is_rented else job.accelerators_per_node)


@dataclass(frozen=True, slots=True)
class _PoolQuestion:
    """One pool for one job, and what of it is reckoned already."""

    job: JobDemand
    candidate: CandidatePool
    spending: SpendLimits
    terms: RiskLimits
    now: datetime
    start_seconds: float
    end_seconds: float
    rent_parts: int
    changeover_seconds: float


def _rejections(asked: _PoolQuestion) -> Iterator[str]:
    job, candidate = asked.job, asked.candidate
    pool = candidate.pool
    if job.accelerators_per_node > pool.accelerators_per_node:
        yield f"Each node has {pool.accelerators_per_node} accelerators, the job asks for {job.accelerators_per_node}."
    if _accelerators_taken(job, pool) > pool.most_nodes * pool.accelerators_per_node or job.nodes > pool.most_nodes:
        yield f"The pool has at most {_count(pool.most_nodes, 'node')}."
    if candidate.differences:
        yield candidate.differences[0]
    yield from _past_reservation(asked)
    if not pool.market.is_rented:
        return
    yield from _above_rent_limit(asked)
    if _accelerators_taken(job, pool) > candidate.accelerators_left:
        left = _count(candidate.accelerators_left // pool.accelerators_per_node, "node")
        yield f"The pool's limit leaves capacity for {left}."
    if candidate.barred_until and candidate.barred_until > asked.now:
        until = f"{candidate.barred_until:%H:%M:%S} UTC"
        yield f"The provider refused capacity there. Evenkeel does not ask again before {until}."
    if pool.market is Market.SPOT:
        yield from _too_risky(asked)
    yield from _over_caps(asked)


def _above_rent_limit(asked: _PoolQuestion) -> Iterator[str]:
    job = asked.job
    if job.micros_per_hour_of_delay:
        return
    if job.deadline_at is None:
        yield "The policy sets no price on the delay of the job's class, so Evenkeel rents nothing for it."
        return
    late = asked.end_seconds - (job.deadline_at - asked.now).total_seconds()
    if late > 0:
        after = _duration_text(late)
        yield f"The job would end {after} after its deadline, and the policy sets no price on the delay of its class."


def _over_caps(asked: _PoolQuestion) -> Iterator[str]:
    team, spending = asked.job.team, asked.spending
    rate = asked.candidate.pool.micros_per_node_hour * asked.job.nodes
    for whose, spent, cap in (
        (f"team {team}", spending.team_micros_per_hour, spending.team_cap_micros_per_hour),
        ("the fleet", spending.fleet_micros_per_hour, spending.fleet_cap_micros_per_hour),
    ):
        if spent + rate > cap:
            hour, now_spent, most = (money.format_usd(each * 3600) for each in (rate, spent, cap))
            over = f"{whose} spends {now_spent} of {most} an hour"
            yield f"Renting costs {hour} an hour, which exceeds the limit: {over}."
    left = spending.team_budget_left_parts
    if left is not None and asked.rent_parts > left:
        price = money.format_usd(asked.rent_parts)
        yield f"Renting costs {price}, but the budget of team {team} has {money.format_usd(left)} left."


def _past_reservation(asked: _PoolQuestion) -> Iterator[str]:
    job, reservation = asked.job, asked.candidate.pool.reservation
    if reservation is None:
        return
    until = reservation.usable_until - timedelta(seconds=job.save_seconds + asked.terms.grace_seconds)
    left = (until - asked.now).total_seconds() - asked.start_seconds
    when = f"{reservation.usable_until:%d %b %H:%M} UTC"
    if job.checkpoint_seconds is None and job.p90_run_seconds > left:
        yield f"The reservation is usable until {when}. The job keeps no checkpoints and may not finish by then."
    elif job.checkpoint_seconds is not None and min(job.checkpoint_seconds, job.run_seconds) > left:
        yield f"The reservation is usable until {when}, before the job's first checkpoint."


def _too_risky(asked: _PoolQuestion) -> Iterator[str]:
    job = asked.job
    if job.checkpoint_seconds is None:
        yield "The provider may reclaim its nodes, and the job keeps no checkpoints."
        return
    per_hour = asked.candidate.pool.interruptions_per_node_hour * job.nodes
    if per_hour and job.checkpoint_seconds > asked.terms.spot_checkpoint_share * 3600 / per_hour:
        yield (
            f"The job would be interrupted every {3600 / per_hour / 60:.0f} min on this many nodes. A checkpoint every "
            f"{job.checkpoint_seconds / 60:.0f} min is too infrequent."
        )
    why = why_not_spot(job, asked.changeover_seconds, asked.now)
    if why:
        yield why


def _meeting_deadline(facts: PlacementFacts, possible: Sequence[PoolCost]) -> Sequence[PoolCost]:
    """Return the rows that meet the deadline; all of them where there is none, or none meets it."""
    return [row for row in possible if _late_seconds(facts, row) is None] or possible


def _late_seconds(facts: PlacementFacts, row: PoolCost) -> float | None:
    if facts.job.deadline_at is None:
        return None
    late = row.ends_after_seconds - (facts.job.deadline_at - facts.now).total_seconds()
    return round(late, 3) if late > 0 else None


def _deadline_text(facts: PlacementFacts, possible: Sequence[PoolCost], chosen: PoolCost) -> str:
    late = _late_seconds(facts, chosen)
    if late is not None:
        return f" No usable pool meets the job's deadline. On this pool it would end {_duration_text(late)} late."
    if _late_seconds(facts, possible[0]) is not None:
        return f" {possible[0].pool} would be cheaper but would miss the job's deadline."
    return ""


def _rent_reason(possible: Iterable[PoolCost], chosen: PoolCost) -> str:
    waiting = min((row for row in possible if not row.market.is_rented), key=lambda row: row.parts, default=None)
    if waiting is None:
        price = money.format_usd(chosen.rent_parts)
        return f"No pool that is already paid for can run the job. {chosen.pool} costs {price}."
    sooner = _duration_text(waiting.starts_after_seconds - chosen.starts_after_seconds)
    gain = waiting.delay_parts - chosen.delay_parts
    premium = chosen.rent_parts - waiting.shadow_parts
    return (
        f"{chosen.pool} starts the workload {sooner} sooner than {waiting.pool}. "
        f"That is worth {money.format_usd(gain)}, and renting costs {money.format_usd(premium)} more."
    )


def _wait_reason(rows: Sequence[PoolCost], chosen: PoolCost) -> str:
    to_rent = [row for row in rows if row.market.is_rented]
    rented = cheapest_rented(to_rent)
    waits = f"The job waits about {_duration_text(chosen.starts_after_seconds)} for {chosen.pool}"
    if rented is None:
        why = "".join(f" {row.pool}: {row.why_not}" for row in to_rent)
        return f"{waits}. No pool can be rented for it.{why}"
    gain, premium = chosen.delay_parts - rented.delay_parts, rented.rent_parts - chosen.shadow_parts
    saving = f"save {money.format_usd(gain)} of delay and cost {money.format_usd(premium)} more"
    return f"{waits}: {rented.pool} would {saving}."


def _decided(
    facts: PlacementFacts, rows: Sequence[PoolCost], action: PlacementAction, reason: str, soon: Sequence[PoolCost]
) -> PlacementDecision:
    """Return the decision for the first of the rows that are soon enough; for none where no pool can have it."""
    chosen = soon[0] if soon else None
    return PlacementDecision(
        job_id=facts.job.job_id,
        action=action,
        pool=chosen.pool if chosen else "",
        reason=reason,
        row=chosen,
        table=tuple(rows),
        alternatives=tuple(_rejected_pool(row, chosen) for row in rows if row is not chosen),
        rent_threshold_seconds=_rent_threshold(facts, soon) if action is PlacementAction.WAIT else None,
        late_seconds=_late_seconds(facts, chosen) if chosen else None,
        facts=facts,
    )


def _rent_threshold(facts: PlacementFacts, soon: Sequence[PoolCost]) -> float | None:
    """Return the wait from which delay costs more than renting, or from which only renting meets the deadline."""
    job, chosen = facts.job, soon[0]
    rented = cheapest_rented(soon)
    if rented is None:
        return None
    wait = next(candidate.wait_seconds for candidate in facts.candidates if candidate.pool.name == chosen.pool)
    flips = []
    if job.micros_per_hour_of_delay:
        flips.append(wait + (rented.parts - chosen.parts) / job.micros_per_hour_of_delay)
    if job.deadline_at and _late_seconds(facts, chosen) is None:
        flips.append(wait + (job.deadline_at - facts.now).total_seconds() - chosen.ends_after_seconds)
    return round(min(flips), 3) if flips else None


def _rejected_pool(row: PoolCost, chosen: PoolCost | None) -> Alternative:
    usd = round(row.parts / money.PARTS, 2)
    why_not = row.why_not
    if not why_not and chosen is not None:
        more = row.parts - chosen.parts
        why_not = (
            f"It costs {money.format_usd(more)} more."
            if more > 0
            else "The job would end later, or Evenkeel would rent while paid capacity is free."
        )
    return Alternative(option=row.pool, why_not=why_not, expected_seconds=row.ends_after_seconds, usd=usd)


def _duration_text(seconds: float) -> str:
    minutes = round(abs(seconds) / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
