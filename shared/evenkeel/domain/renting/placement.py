"""Choose the pool of a pending job: the cheapest pool that meets its deadline, by the cost model in `cost.py`.

Free committed nodes come first. Otherwise nodes are rented for a job exactly where

    price of delay x (wait for committed - start of the rented) > rent - opportunity cost of the committed hours

or where a rented pool meets the deadline and no committed pool does. Renting may also cost more, within the limit for
the job's delay so far. Nothing is rented for a job that has neither a price of delay nor a deadline that renting meets.
A recovery compares options by the cost of its job's standstill. If it chose to rent, nodes are rented up to the rent at
which that option still lost least.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.economics import money
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.renting.cost import (
    CandidatePool,
    JobDemand,
    PoolCost,
    RiskLimits,
    SpendLimits,
    cheapest_committed,
    cheapest_rented,
    cost_of_pool,
    duration_text,
    why_not_spot,
)
from evenkeel.domain.values import Instant, Value


class PlacementFacts(Value):
    """All facts of a placement decision. The recorded decision replays from these facts alone."""

    job: JobDemand
    candidates: tuple[CandidatePool, ...]
    spending: SpendLimits
    risk_limits: RiskLimits = RiskLimits()
    now: Instant


class PlacementAction(StrEnum):
    """Action for a pending job."""

    START = "START"
    """Start on nodes that are free."""
    RENT = "RENT"
    """Rent nodes for the job."""
    WAIT = "WAIT"
    """Wait for committed nodes."""
    NO_POOL = "NO_POOL"
    """No pool can run the job now."""


class NotPlaced(NamedTuple):
    """No nodes are rented for a job now."""

    reason: str
    """The reason as a sentence."""


class PlacementDecision(Value):
    """The chosen pool of a job, and the reason."""

    job_id: str
    action: PlacementAction
    pool: str = ""
    """Chosen pool. On WAIT, the pool that the job waits for."""
    reason: str
    row: PoolCost | None = None
    """Cost of the chosen pool."""
    table: tuple[PoolCost, ...]
    """Every pool, best first; pools that cannot run the job come last."""
    alternatives: tuple[Alternative, ...]
    rent_threshold_seconds: float | None = None
    """On WAIT: expected wait from which renting would be chosen; None if nothing can be rented."""
    late_seconds: float | None = None
    """By how much the job is expected to miss its deadline; None without a deadline, or if a pool meets it."""
    facts: PlacementFacts

    @property
    def is_rent(self) -> bool:
        """Whether nodes are rented."""
        return self.action is PlacementAction.RENT

    @property
    def note_key(self) -> str:
        """Key that two decisions about a job share if they differ only in their figures."""
        why_nots = {row.pool: row.why_not for row in self.table}
        excluded_pools = ",".join(sorted(name for name, why_not in why_nots.items() if why_not))
        return f"{self.action}/{self.pool}/{excluded_pools}{'' if self.late_seconds is None else '/late'}"

    def recorded_reason(self, mode: Mode) -> str:
        """Return the reason as it is recorded. In any mode but `act` it says that nothing is rented."""
        if mode is not Mode.ACT and self.action is PlacementAction.RENT:
            return f"Mode is {mode}: Evenkeel would rent nodes, but takes no action. {self.reason}"
        return self.reason


# ---------------------------------------------------------------- choice


def choose_pool(facts: PlacementFacts) -> PlacementDecision:
    """Choose the cheapest pool that meets the deadline: free committed nodes first, then by cost, then by order.

    If no pool meets the deadline, the choice is the same as without a deadline, and the reason says how late the job
    will be.
    """
    order = {candidate.pool.name: index for index, candidate in enumerate(facts.candidates)}
    rows = sorted(
        _pool_costs(facts),
        key=lambda row: (bool(row.why_not), not row.is_available_now, row.cost_parts, order[row.pool]),
    )
    possible = [row for row in rows if not row.why_not]
    if not possible:
        reasons = " ".join(f"{row.pool}: {row.why_not}" for row in rows) or "No pools are configured."
        return _build_decision(facts, rows, PlacementAction.NO_POOL, f"No pool can run the job now. {reasons}", ())
    in_time = _meeting_deadline(facts, possible)
    best_cost = in_time[0]
    if best_cost.is_available_now:
        reason = f"{best_cost.pool} is already paid for and has free nodes."
        return _build_decision(
            facts, rows, PlacementAction.START, reason + _deadline_text(facts, possible, best_cost), in_time
        )
    best_rented = cheapest_rented(in_time)
    worth = facts.job.max_rent_parts
    if not best_cost.market.is_rented and best_rented and worth is not None and best_rented.rent_parts <= worth:
        price, limit_text = money.format_usd(best_rented.rent_parts), money.format_usd(worth)
        reason = f"The job's recovery chose to rent: {best_rented.pool} costs {price}, below the limit of {limit_text}."
        return _build_decision(
            facts, rows, PlacementAction.RENT, reason + _deadline_text(facts, possible, best_rented), (best_rented,)
        )
    if not best_cost.market.is_rented and best_rented and (reason := _long_delay_reason(facts, best_rented, best_cost)):
        return _build_decision(
            facts, rows, PlacementAction.RENT, reason + _deadline_text(facts, possible, best_rented), (best_rented,)
        )
    is_rent = best_cost.market.is_rented
    reason = _rent_reason(possible, best_cost) if is_rent else _wait_reason(rows, best_cost)
    action = PlacementAction.RENT if is_rent else PlacementAction.WAIT
    return _build_decision(facts, rows, action, reason + _deadline_text(facts, possible, best_cost), in_time)


def _long_delay_reason(facts: PlacementFacts, rented_cost: PoolCost, committed_cost: PoolCost) -> str:
    """Say why nodes are rented for a job although that costs more than its wait; empty if they are not.

    The extra cost may be at most the cost of the job's delay so far, times the ratio of the delay to
    `max_wait_seconds`:

        price of delay x delay so far x (delay so far / max_wait_seconds)

    A short delay allows little, because most short waits end by themselves. After `max_wait_seconds` the limit exceeds
    the cost of the delay. So nodes are rented for every job at some time, and later for a job whose delay is cheap.
    Interruptions and moves count as delay, saved work and time in which a person had suspended the job do not.
    """
    job, max_wait = facts.job, facts.risk_limits.max_wait_seconds
    if not max_wait:
        return ""
    spared_seconds = job.done_seconds + job.suspended_seconds
    delay_seconds = max(0.0, (facts.now - job.submitted_at).total_seconds() - spared_seconds)
    limit_parts = round(job.micros_per_hour_of_delay * delay_seconds * delay_seconds / max_wait)
    extra_parts = rented_cost.cost_parts - committed_cost.cost_parts
    if extra_parts > limit_parts:
        return ""
    extra_usd, limit_usd = money.format_usd(extra_parts), money.format_usd(limit_parts)
    return (
        f"{rented_cost.pool} costs {extra_usd} more than the wait for {committed_cost.pool}. "
        f"The policy allows up to {limit_usd}, because the job's delay is {duration_text(delay_seconds)} so far."
    )


def cheapest_rental_in_time(placement: PlacementDecision) -> PoolCost | None:
    """Return the cheapest rented pool that meets the deadline, or the cheapest of all if no pool meets it."""
    return cheapest_rented(_meeting_deadline(placement.facts, [row for row in placement.table if not row.why_not]))


def place_in_queue_order(queue: Sequence[PlacementFacts]) -> tuple[PlacementDecision, ...]:
    """Place jobs one after another, each with the capacity, caps and budgets that the jobs before it leave.

    Args:
        queue: In queue order, each with pools and spending as they were before the cycle.
    """
    accelerators_taken: dict[str, int] = {}
    fleet_micros_per_hour = 0
    team_micros_per_hour: dict[str, int] = {}
    team_budget_parts_used: dict[str, int] = {}
    decisions = []
    for facts in queue:
        job, spending = facts.job, facts.spending
        if fleet_micros_per_hour:
            budget_left = spending.team_budget_left_parts
            spending = spending.replace(
                team_micros_per_hour=spending.team_micros_per_hour + team_micros_per_hour.get(job.team, 0),
                fleet_micros_per_hour=spending.fleet_micros_per_hour + fleet_micros_per_hour,
                team_budget_left_parts=None
                if budget_left is None
                else budget_left - team_budget_parts_used.get(job.team, 0),
            )
        candidates = tuple(
            candidate.replace(accelerators_left=candidate.accelerators_left - accelerators_taken[candidate.pool.name])
            if candidate.pool.name in accelerators_taken
            else candidate
            for candidate in facts.candidates
        )
        decision = choose_pool(facts.replace(candidates=candidates, spending=spending))
        decisions.append(decision)
        if decision.row and decision.action in (PlacementAction.START, PlacementAction.RENT):
            pool = next(candidate.pool for candidate in candidates if candidate.pool.name == decision.pool)
            accelerators_taken[pool.name] = accelerators_taken.get(pool.name, 0) + job.accelerators_in(pool)
            rate = pool.micros_per_node_hour * job.nodes
            fleet_micros_per_hour += rate
            team_micros_per_hour[job.team] = team_micros_per_hour.get(job.team, 0) + rate
            team_budget_parts_used[job.team] = team_budget_parts_used.get(job.team, 0) + decision.row.rent_parts
    return tuple(decisions)


def must_avoid_spot(facts: PlacementFacts) -> bool:
    """Whether the job's deadline keeps it off spot nodes. The job remembers this until it has caught up."""
    return bool(why_not_spot(facts.job, _changeover_seconds(facts), facts.now))


def _changeover_seconds(facts: PlacementFacts) -> float:
    """Return the seconds that a restart on on-demand nodes takes."""
    job = facts.job
    on_demand = [
        candidate.pool.launch.gang_seconds(job.nodes)
        for candidate in facts.candidates
        if candidate.pool.market.is_rented_firmly
    ]
    return min(on_demand, default=0.0) + job.restart_seconds


def _pool_costs(facts: PlacementFacts) -> Iterator[PoolCost]:
    job, changeover = facts.job, _changeover_seconds(facts)
    target = migration_target(facts.candidates)
    for candidate in facts.candidates:
        yield cost_of_pool(job, candidate, facts.spending, facts.risk_limits, facts.now, changeover, target)


def migration_target(candidates: Iterable[CandidatePool]) -> CandidatePool | None:
    """Return the committed pool with the shortest wait, to which a job on rented nodes would move."""
    committed_candidates = (
        candidate for candidate in candidates if not candidate.pool.market.is_rented and not candidate.differences
    )
    return min(committed_candidates, key=lambda candidate: candidate.wait_seconds, default=None)


def _meeting_deadline(facts: PlacementFacts, possible: Sequence[PoolCost]) -> Sequence[PoolCost]:
    """Return the pools that meet the deadline; all of them without a deadline, or if no pool meets it."""
    return [row for row in possible if _late_seconds(facts, row) is None] or possible


def _late_seconds(facts: PlacementFacts, row: PoolCost) -> float | None:
    if facts.job.deadline_at is None:
        return None
    late_seconds = row.ends_after_seconds - (facts.job.deadline_at - facts.now).total_seconds()
    return round(late_seconds, 3) if late_seconds > 0 else None


# ---------------------------------------------------------------- reasons


def _deadline_text(facts: PlacementFacts, possible: Sequence[PoolCost], chosen_cost: PoolCost) -> str:
    late_seconds = _late_seconds(facts, chosen_cost)
    if late_seconds is not None:
        return (
            f" No usable pool meets the job's deadline. On this pool it would end {duration_text(late_seconds)} late."
        )
    if _late_seconds(facts, possible[0]) is not None:
        return f" {possible[0].pool} would be cheaper but would miss the job's deadline."
    return ""


def _rent_reason(possible: Iterable[PoolCost], chosen_cost: PoolCost) -> str:
    committed_cost = cheapest_committed(possible)
    if committed_cost is None:
        price = money.format_usd(chosen_cost.rent_parts)
        return f"No pool that is already paid for can run the job. {chosen_cost.pool} costs {price}."
    sooner = duration_text(committed_cost.starts_after_seconds - chosen_cost.starts_after_seconds)
    gain, premium = committed_cost.delay_parts - chosen_cost.delay_parts, chosen_cost.premium_over(committed_cost)
    return (
        f"{chosen_cost.pool} starts the workload {sooner} sooner than {committed_cost.pool}. "
        f"The shorter delay is worth {money.format_usd(gain)}, and renting costs {money.format_usd(premium)} more."
    )


def _wait_reason(rows: Sequence[PoolCost], chosen_cost: PoolCost) -> str:
    rented_cost = cheapest_rented(rows)
    waits = f"The job waits about {duration_text(chosen_cost.starts_after_seconds)} for {chosen_cost.pool}"
    if rented_cost is None:
        why_nots = "".join(f" {row.pool}: {row.why_not}" for row in rows if row.market.is_rented)
        return f"{waits}. No pool can be rented for it.{why_nots}"
    gain, premium = chosen_cost.delay_parts - rented_cost.delay_parts, rented_cost.premium_over(chosen_cost)
    saving = f"save {money.format_usd(gain)} of delay and cost {money.format_usd(premium)} more"
    return f"{waits}: {rented_cost.pool} would {saving}."


def _build_decision(
    facts: PlacementFacts, rows: Sequence[PoolCost], action: PlacementAction, reason: str, in_time: Sequence[PoolCost]
) -> PlacementDecision:
    """Return the decision for the first of the pools that meet the deadline, or for none if no pool can run the job."""
    chosen_cost = in_time[0] if in_time else None
    return PlacementDecision(
        job_id=facts.job.job_id,
        action=action,
        pool=chosen_cost.pool if chosen_cost else "",
        reason=reason,
        row=chosen_cost,
        table=tuple(rows),
        alternatives=tuple(_rejected_pool(row, chosen_cost) for row in rows if row is not chosen_cost),
        rent_threshold_seconds=_rent_threshold(facts, in_time) if action is PlacementAction.WAIT else None,
        late_seconds=_late_seconds(facts, chosen_cost) if chosen_cost else None,
        facts=facts,
    )


def _rent_threshold(facts: PlacementFacts, in_time: Sequence[PoolCost]) -> float | None:
    """Return the wait from which delay costs more than renting, or from which only renting meets the deadline."""
    job, chosen_cost = facts.job, in_time[0]
    rented_cost = cheapest_rented(in_time)
    if rented_cost is None:
        return None
    wait = next(candidate.wait_seconds for candidate in facts.candidates if candidate.pool.name == chosen_cost.pool)
    thresholds = []
    if job.micros_per_hour_of_delay:
        thresholds.append(wait + (rented_cost.cost_parts - chosen_cost.cost_parts) / job.micros_per_hour_of_delay)
    if job.deadline_at and _late_seconds(facts, chosen_cost) is None:
        thresholds.append(wait + (job.deadline_at - facts.now).total_seconds() - chosen_cost.ends_after_seconds)
    return round(min(thresholds), 3) if thresholds else None


def _rejected_pool(row: PoolCost, chosen_cost: PoolCost | None) -> Alternative:
    usd = round(row.cost_parts / money.COST_PARTS_PER_USD, 2)
    why_not = row.why_not
    if not why_not and chosen_cost is not None:
        extra_parts = row.cost_parts - chosen_cost.cost_parts
        why_not = (
            f"It costs {money.format_usd(extra_parts)} more."
            if extra_parts > 0
            else "The job would end later, or Evenkeel would rent while paid capacity is free."
        )
    return Alternative(option=row.pool, why_not=why_not, expected_seconds=row.ends_after_seconds, usd=usd)
