"""The cost model: seconds and dollars of running one job in one pool. Every decision about renting uses this cost.

    start  = wait + launch + restart
    finish = start + run x stretch

The wait ends when a committed pool is expected to have free nodes. The stretch is the part that interruptions add:
reclaimed spot nodes, and faults of nodes of every market.

    stretch = 1 + reclaims x (launch + restart + lost) + faults x (launch + restart + lost without notice)

    delay = price of delay x (finish - run)
    cost  = rent + delay + opportunity cost

A job that keeps checkpoints can leave its rented nodes once committed nodes are free for it. Then its rent ends
earlier, and the move costs a restart. `_rental_cost` chooses the cheaper of the two, as `migration.py` does later.
Temporary capacity is always returned then.

A committed pool is paid for in any case, so its invoice does not count. It costs its opportunity cost: the price that
the jobs that wait would pay for the same accelerators. A rented pool costs its rent. Amounts are in parts of
`economics.money`.
"""

import math
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.capacity.pools import Market, Pool, Reservation
from evenkeel.domain.capacity.run_times import seconds_within, share_beyond
from evenkeel.domain.economics import money
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Instant, Value

SPOT_NOTICE_SECONDS = 120
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""


# ---------------------------------------------------------------- what is compared


class JobDemand(Value):
    """A pending job, reduced to the facts that decide its cost."""

    job_id: str
    team: str
    job_class: str = ""
    nodes: int
    """Pods of the gang. Each pod takes one node."""
    accelerators_per_node: int
    micros_per_hour_of_delay: int
    """Price of one hour's delay of a job of this class."""
    run_seconds: float
    """Expected run time that is left."""
    p90_run_seconds: float
    left_seconds: tuple[float, ...] = ()
    """Equally likely values of the run time that is left; empty in older records. `run_seconds` is their mean."""
    waiting_since: Instant | None = None
    """Since when it waits for nodes; None in older records."""
    checkpoint_seconds: float | None = None
    """Seconds between two checkpoints; None if the job keeps none and restarts from step 0."""
    save_seconds: float = 60
    restart_seconds: float = 0
    """Time from Ready nodes until the job trains."""
    failures_per_node_hour: float = 0
    """Faults of a node of any market. Unlike a reclaimed spot node, it gives no notice."""
    submitted_at: Instant
    deadline_at: Instant | None = None
    done_seconds: float = 0
    """Run time whose work is saved."""
    suspended_seconds: float = 0
    """How long a person had suspended it. This time is no delay."""
    returns_when_free: bool = False
    """Whether rented nodes would be temporary capacity. The job leaves them once committed nodes are free for it."""
    avoids_spot: bool = False
    """Whether the job fell behind its deadline on spot nodes and has not caught up yet."""
    max_rent_parts: int | None = None
    """Highest rent at which the job's recovery prefers renting; None if no recovery chose to rent."""

    @property
    def accelerators(self) -> int:
        """Accelerators of the whole gang."""
        return self.nodes * self.accelerators_per_node

    def accelerators_in(self, pool: Pool) -> int:
        """Return the accelerators that the gang takes of a pool: whole nodes if they are rented for it."""
        return self.nodes * (pool.accelerators_per_node if pool.market.is_rented else self.accelerators_per_node)


class CandidatePool(Value):
    """A pool with its conditions for one job."""

    pool: Pool
    accelerators_left: int
    """Free now in a committed pool; left below the limit of a rented pool."""
    wait_seconds: float = 0
    """Expected time until a committed pool has free nodes for the job."""
    opportunity_micros_per_accelerator_hour: int = 0
    """Price that waiting jobs would pay for an accelerator-hour of a committed pool."""
    unavailable_until: Instant | None = None
    """End of a shortage: Evenkeel does not request this offering again before. None without a shortage."""
    differences: tuple[str, ...] = ()
    """Why the job would not run the same in this pool."""


class SpendLimits(Value):
    """Current rents, with the caps on them."""

    team_micros_per_hour: int = 0
    """Current rents of the job's team."""
    fleet_micros_per_hour: int = 0
    team_cap_micros_per_hour: int = 0
    """0 by default, so nothing is rented unless the policy sets a cap."""
    fleet_cap_micros_per_hour: int = 0
    team_budget_left_parts: int | None = None
    """The team's budget less the expected cost of its open rentals; None without a budget."""

    def exceeded_caps(self, team: str, micros_per_hour: int = 0) -> Iterator[tuple[str, int, int]]:
        """Yield each cap that the current rents and one more rate exceed: the team or fleet, its rents, its cap."""
        for scope, rate, cap in (
            (f"team {team}", self.team_micros_per_hour, self.team_cap_micros_per_hour),
            ("the fleet", self.fleet_micros_per_hour, self.fleet_cap_micros_per_hour),
        ):
            if rate + micros_per_hour > cap:
                yield scope, rate, cap


class RiskLimits(Value):
    """Limits on the risks of rented nodes: spot interruptions, long waits for nodes, and reservations that end."""

    spot_checkpoint_share: float = 0.1
    """On spot nodes, the longest time between checkpoints as a share of the mean time between interruptions."""
    max_wait_seconds: int = 0
    """Delay at which the extra cost of renting may equal the cost of that delay; 0 = no extra cost."""
    grace_seconds: float = 60
    """Margin before the end of a reservation, besides the time for the last checkpoint."""

    def last_save_at(self, reservation: Reservation, save_seconds: float) -> datetime:
        """Return when a job must begin its last checkpoint in a reservation."""
        return reservation.usable_until - timedelta(seconds=save_seconds + self.grace_seconds)


class PoolCost(Value):
    """The cost of one pool for one job. The unit of parts is defined in `economics.money`."""

    pool: str
    market: Market
    why_not: str
    """Why the job cannot run there; empty if it can."""
    starts_after_seconds: float
    """Time until the job trains."""
    ends_after_seconds: float
    rent_parts: int
    delay_parts: int
    opportunity_parts: int
    interruptions: float
    """Expected number of interruptions until the job ends."""
    is_available_now: bool
    """Whether the pool is committed, has free nodes now and can run the job."""

    @property
    def cost_parts(self) -> int:
        """Total cost."""
        return self.rent_parts + self.delay_parts + self.opportunity_parts

    def premium_over(self, committed_cost: "PoolCost | None") -> int:
        """Return the rent, less the value of the committed hours that other jobs then get."""
        return self.rent_parts + self.opportunity_parts - (committed_cost.opportunity_parts if committed_cost else 0)


def cheapest_rented(rows: Iterable[PoolCost]) -> PoolCost | None:
    """Return the cheapest rented pool that can run the job; None if there is none."""
    return _cheapest_row(row for row in rows if row.market.is_rented)


def cheapest_committed(rows: Iterable[PoolCost]) -> PoolCost | None:
    """Return the cheapest committed pool that can run the job; None if there is none."""
    return _cheapest_row(row for row in rows if not row.market.is_rented)


def _cheapest_row(rows: Iterable[PoolCost]) -> PoolCost | None:
    return min((row for row in rows if not row.why_not), key=lambda row: row.cost_parts, default=None)


# ---------------------------------------------------------------- cost of one pool


def cost_of_pool(
    job: JobDemand,
    candidate: CandidatePool,
    spending: SpendLimits,
    risk_limits: RiskLimits,
    now: datetime,
    changeover_seconds: float = 0,
    target: CandidatePool | None = None,
) -> PoolCost:
    """Return the cost of one pool for one job, and why the job cannot run there.

    Args:
        job: The job.
        candidate: The pool with its conditions.
        spending: Current rents and caps.
        risk_limits: Limits on risk.
        now: Time of the comparison.
        changeover_seconds: Seconds to restart on on-demand nodes; spot nodes must leave that much before a deadline.
        target: The committed pool that the job would move to from rented nodes; None if there is none.
    """
    pool = candidate.pool
    is_available_now = not pool.market.is_rented and job.accelerators <= candidate.accelerators_left
    wait = 0.0 if is_available_now or pool.market.is_rented else max(0.0, candidate.wait_seconds)
    if pool.reservation and pool.reservation.starts_at > now:
        is_available_now, wait = False, max(wait, (pool.reservation.starts_at - now).total_seconds())
    launch = pool.launch.gang_seconds(job.nodes) if pool.market.is_rented else pool.launch.p50_seconds
    start = wait + launch + job.restart_seconds
    reclaims, faults = (
        rate * job.nodes / 3600 for rate in (pool.interruptions_per_node_hour, job.failures_per_node_hour)
    )
    restart_seconds = launch + job.restart_seconds
    lost_share = reclaims * (restart_seconds + _loss_per_reclaim(job)) + faults * (
        restart_seconds + _loss_per_fault(job)
    )
    run_seconds = job.run_seconds * (1 + lost_share)
    if pool.market.is_rented:
        time = _rental_cost(job, pool, target, start, 1 + lost_share, now)
        rent, moved_seconds, opportunity = time.rent_parts, time.moved_seconds, time.opportunity_parts
    else:
        rent, moved_seconds = 0, 0.0
        opportunity = round(candidate.opportunity_micros_per_accelerator_hour * job.accelerators * run_seconds)
    end = round(start + run_seconds + moved_seconds, 3)
    evaluation = _PoolEvaluation(job, candidate, spending, risk_limits, now, start, end, rent, changeover_seconds)
    why_not = next(_rejections(evaluation), "")
    return PoolCost(
        pool=pool.name,
        market=pool.market,
        why_not=why_not,
        starts_after_seconds=round(start, 3),
        ends_after_seconds=end,
        rent_parts=rent,
        delay_parts=round(job.micros_per_hour_of_delay * (start + run_seconds + moved_seconds - job.run_seconds)),
        opportunity_parts=opportunity,
        interruptions=round((reclaims + faults) * job.run_seconds, 4),
        is_available_now=is_available_now and not why_not,
    )


class _RentalCost(NamedTuple):
    """The cost of a job from its rental until its end."""

    rent_parts: int
    moved_seconds: float
    """Expected time without training, because the job moves to committed nodes."""
    opportunity_parts: int
    """Opportunity cost of the committed nodes after the move."""


def _rental_cost(
    job: JobDemand, pool: Pool, target: CandidatePool | None, start: float, stretch: float, now: datetime
) -> _RentalCost:
    """Return the cost of a rental: until the job ends, or until it moves to committed nodes if that is cheaper.

    Args:
        job: The job.
        pool: The rented pool.
        target: The committed pool that the job could move to; None if there is none.
        start: Seconds until the job trains on the rented nodes.
        stretch: Run time with interruptions, as a multiple of the run time without.
        now: The time.
    """
    run_seconds = stretch * job.run_seconds

    def rent(seconds: float) -> int:
        return pool.micros_per_node_hour * job.nodes * max(pool.min_billed_seconds, math.ceil(start + seconds))

    cost_of_staying = _RentalCost(rent(run_seconds), 0.0, 0)
    if target is None or not job.left_seconds or job.checkpoint_seconds is None:
        return cost_of_staying
    trains_until_free = max(0.0, target.wait_seconds - start)
    moves = share_beyond([stretch * value for value in job.left_seconds], trains_until_free)
    rented_run = seconds_within([stretch * value for value in job.left_seconds], trains_until_free)
    standstill = job.save_seconds + target.pool.launch.p50_seconds + job.restart_seconds
    committed_run = max(0.0, run_seconds - rented_run) * job.accelerators
    move = _RentalCost(
        rent(rented_run + moves * job.save_seconds),
        moves * standstill,
        round(target.opportunity_micros_per_accelerator_hour * committed_run),
    )
    if job.returns_when_free:
        return move
    ends_at = now + timedelta(seconds=start + run_seconds)
    if job.deadline_at and ends_at <= job.deadline_at < ends_at + timedelta(seconds=move.moved_seconds):
        return cost_of_staying

    def cost(time: _RentalCost) -> float:
        return time.rent_parts + time.opportunity_parts + job.micros_per_hour_of_delay * time.moved_seconds

    return min(cost_of_staying, move, key=cost)


def _loss_per_reclaim(job: JobDemand) -> float:
    """Return the seconds of work that a reclaimed node is expected to lose: none if the notice is enough to save."""
    if job.checkpoint_seconds is not None and job.save_seconds <= SPOT_NOTICE_SECONDS:
        return 0.0
    return _loss_per_fault(job)


def _loss_per_fault(job: JobDemand) -> float:
    """Return the expected loss of work by a fault without notice, in seconds: half of the work at risk."""
    return (job.run_seconds if job.checkpoint_seconds is None else job.checkpoint_seconds) / 2


class _PoolEvaluation(NamedTuple):
    """A pool for one job, with the figures from which the reasons against it are derived."""

    job: JobDemand
    candidate: CandidatePool
    spending: SpendLimits
    risk_limits: RiskLimits
    now: datetime
    start_seconds: float
    end_seconds: float
    rent_parts: int
    changeover_seconds: float


def _rejections(evaluation: _PoolEvaluation) -> Iterator[str]:
    job, candidate = evaluation.job, evaluation.candidate
    pool = candidate.pool
    if job.accelerators_per_node > pool.accelerators_per_node:
        accelerators = count_of(pool.accelerators_per_node, "accelerator")
        yield f"Each node has {accelerators}, the job asks for {job.accelerators_per_node}."
    most_accelerators = pool.max_nodes * pool.accelerators_per_node
    if job.nodes > pool.max_nodes:
        yield f"The pool has at most {count_of(pool.max_nodes, 'node')}, the job asks for {job.nodes}."
    elif job.accelerators_in(pool) > most_accelerators:
        yield f"The pool has at most {count_of(most_accelerators, 'accelerator')}, the job asks for more."
    if candidate.differences:
        yield candidate.differences[0]
    yield from _rejections_by_reservation(evaluation)
    if not pool.market.is_rented:
        return
    yield from _rejections_without_delay_price(evaluation)
    if job.accelerators_in(pool) > candidate.accelerators_left:
        rentable = count_of(candidate.accelerators_left // pool.accelerators_per_node, "node")
        yield f"The pool's limit leaves capacity for {rentable}."
    if candidate.unavailable_until and candidate.unavailable_until > evaluation.now:
        until = f"{candidate.unavailable_until:%H:%M:%S} UTC"
        yield f"The provider refused capacity there. Evenkeel does not ask again before {until}."
    if pool.market.can_be_reclaimed:
        yield from _rejections_by_risk(evaluation)
    yield from _rejections_by_limits(evaluation)


def _rejections_without_delay_price(evaluation: _PoolEvaluation) -> Iterator[str]:
    job = evaluation.job
    if job.micros_per_hour_of_delay:
        return
    if job.deadline_at is None:
        yield "The policy sets no price on the delay of the job's class, so Evenkeel rents nothing for it."
        return
    late_seconds = evaluation.end_seconds - (job.deadline_at - evaluation.now).total_seconds()
    if late_seconds > 0:
        delay = duration_text(late_seconds)
        yield f"The job would end {delay} after its deadline, and the policy sets no price on the delay of its class."


def _rejections_by_limits(evaluation: _PoolEvaluation) -> Iterator[str]:
    spending = evaluation.spending
    rate = evaluation.candidate.pool.micros_per_node_hour * evaluation.job.nodes
    for scope, spent, cap in spending.exceeded_caps(evaluation.job.team, rate):
        hour, now_spent, cap_text = (money.format_usd(amount * 3600) for amount in (rate, spent, cap))
        spend_text = f"{scope} spends {now_spent} of {cap_text} an hour"
        yield f"Renting costs {hour} an hour, which exceeds the limit: {spend_text}."
    budget_parts = spending.team_budget_left_parts
    if budget_parts is not None and evaluation.rent_parts > budget_parts:
        price, budget = money.format_usd(evaluation.rent_parts), money.format_usd(budget_parts)
        yield f"Renting costs {price}, but the budget of team {evaluation.job.team} has {budget} left."


def _rejections_by_reservation(evaluation: _PoolEvaluation) -> Iterator[str]:
    job, reservation = evaluation.job, evaluation.candidate.pool.reservation
    if reservation is None:
        return
    until = evaluation.risk_limits.last_save_at(reservation, job.save_seconds)
    seconds_left = (until - evaluation.now).total_seconds() - evaluation.start_seconds
    end_text = f"{reservation.usable_until:%d %b %H:%M} UTC"
    if job.checkpoint_seconds is None and job.p90_run_seconds > seconds_left:
        yield f"The reservation is usable until {end_text}. The job keeps no checkpoints and might not finish by then."
    elif job.checkpoint_seconds is not None and min(job.checkpoint_seconds, job.run_seconds) > seconds_left:
        yield f"The reservation is usable until {end_text}, before the job's first checkpoint."


def _rejections_by_risk(evaluation: _PoolEvaluation) -> Iterator[str]:
    job = evaluation.job
    if job.checkpoint_seconds is None:
        yield "The provider may reclaim its nodes, and the job keeps no checkpoints."
        return
    per_hour = evaluation.candidate.pool.interruptions_per_node_hour * job.nodes
    if per_hour and job.checkpoint_seconds > evaluation.risk_limits.spot_checkpoint_share * 3600 / per_hour:
        yield (
            f"The job would be interrupted every {3600 / per_hour / 60:.0f} min on this many nodes. A checkpoint every "
            f"{job.checkpoint_seconds / 60:.0f} min is too infrequent."
        )
    reason = why_not_spot(job, evaluation.changeover_seconds, evaluation.now)
    if reason:
        yield reason


def why_not_spot(job: JobDemand, changeover_seconds: float, now: datetime) -> str:
    """Say why a job with a deadline must not run on spot nodes now; empty if it may.

    The job's progress must stay on the straight line from 0 at submission to 100 % at the deadline. A job below the
    line runs on demand until it is ahead by two change-overs. It also stays on demand if the time left is only enough
    for one change-over. A deadline that even an immediate run would miss is not guarded.
    """
    if job.deadline_at is None:
        return ""
    seconds_left = (job.deadline_at - now).total_seconds()
    if job.run_seconds > seconds_left:
        return ""
    if job.run_seconds + changeover_seconds >= seconds_left:
        return "The job's deadline leaves no time for an interruption."
    total_seconds = (job.deadline_at - job.submitted_at).total_seconds()
    line = (
        (now - job.submitted_at).total_seconds() * (job.done_seconds + job.run_seconds) / total_seconds
        if total_seconds > 0
        else 0.0
    )
    margin = 2 * changeover_seconds if job.avoids_spot else -changeover_seconds
    if job.done_seconds < line + margin:
        return "The job is behind the progress it needs to meet its deadline."
    return ""


# ---------------------------------------------------------------- price of committed hours, cost of a move


def opportunity_cost(
    rented_micros_per_accelerator_hour: int, share_full: float, delay_micros_per_hour: int, accelerators: int
) -> int:
    """Return the price that waiting jobs would pay for an accelerator-hour of committed capacity, in micro-dollars.

    sigma = P(it is wanted) x min(price of renting it, price of delay of all jobs that wait / accelerators)

    An hour that would have idled is worth nothing. An hour that is wanted moves the whole queue up by 1/accelerators of
    an hour. It is never worth more than the same hour rented.

    Args:
        rented_micros_per_accelerator_hour: Price in the cheapest pool to rent.
        share_full: How often demand is at least the committed capacity.
        delay_micros_per_hour: Price of delay of all jobs that wait for the pool, together.
        accelerators: Accelerators of the committed pool.
    """
    queue = delay_micros_per_hour / accelerators if accelerators else 0.0
    return round(min(1.0, max(0.0, share_full)) * min(rented_micros_per_accelerator_hour, queue))


def saved_rent_parts(
    pool: Pool, nodes: int, accelerators: int, opportunity_micros_per_accelerator_hour: int, left_seconds: float
) -> int:
    """Return the rent of the time left, less the opportunity cost of the same time in a committed pool."""
    opportunity = opportunity_micros_per_accelerator_hour * accelerators
    return round((pool.micros_per_node_hour * nodes - opportunity) * left_seconds)


def cost_of_move(
    pool: Pool, nodes: int, micros_per_hour_of_delay: int, save_seconds: float, standstill_seconds: float
) -> int:
    """Return the rent of the old nodes during the last checkpoint, plus the price of the time without training."""
    rent = pool.micros_per_node_hour * nodes * save_seconds
    return round(rent + micros_per_hour_of_delay * standstill_seconds)


def duration_text(seconds: float) -> str:
    """Write a duration in minutes or hours."""
    minutes = round(abs(seconds) / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
