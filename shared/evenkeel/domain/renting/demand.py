"""Values that renting decides from: the waiting job, the pools, their cost."""

import math
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from evenkeel.domain.capacity.pools import Market, Pool
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.values import Instant, Value

SPOT_NOTICE_SECONDS = 120
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""


_HOURS_OF_WEEK = 168


class JobDemand(Value):
    """A job that waits, reduced to what its place depends on."""

    job_id: str
    team: str
    job_class: str = ""
    nodes: int
    """Pods of its gang, one a node."""
    accelerators_per_node: int
    micros_per_hour_of_delay: int
    """What an hour's delay of a job of this class is worth to its owner."""
    run_seconds: float
    """Expected, of what is still to do."""
    p90_run_seconds: float
    checkpoint_seconds: float | None = None
    """Between two checkpoints; None where it keeps none and begins again from nothing."""
    save_seconds: float = 60
    restart_seconds: float = 0
    """From Ready nodes until it trains."""
    submitted_at: Instant
    deadline_at: Instant | None = None
    done_seconds: float = 0
    """Work that is behind it and kept."""
    avoids_spot: bool = False
    """It fell behind its line on spot, and has been kept off it since."""
    max_rent_parts: int | None = None
    """Rent, in parts of `economics.money`, up to which its recovery rents rather than wait; None where none does."""

    @property
    def accelerators(self) -> int:
        """Of the whole gang."""
        return self.nodes * self.accelerators_per_node


class CandidatePool(Value):
    """One pool, as it stands for one job."""

    pool: Pool
    accelerators_left: int
    """Free now on a committed pool; what its limit leaves on a rented one."""
    wait_seconds: float = 0
    """Until a committed pool is expected to have room for it where others take what is free now."""
    shadow_micros_per_accelerator_hour: int = 0
    """What an hour of it is worth to others; of committed pools only."""
    barred_until: Instant | None = None
    """Capacity was refused there, or taken back, and it is not to be asked before."""
    differences: tuple[str, ...] = ()
    """Why the job would not run the same there."""


class SpendLimits(Value):
    """What is being spent now, and what may be."""

    team_micros_per_hour: int = 0
    """Rented for this team now."""
    fleet_micros_per_hour: int = 0
    team_cap_micros_per_hour: int = 0
    """Nothing is rented unless somebody allows it."""
    fleet_cap_micros_per_hour: int = 0
    team_budget_left_parts: int | None = None
    """In parts of `economics.money`, after what running rentals are expected to cost; None where there is no budget."""


class RiskLimits(Value):
    """Limits on risk."""

    spot_checkpoint_share: float = 0.1
    """Spot only where a checkpoint comes at least this often, as a share of the mean time between interruptions."""
    grace_seconds: float = 60
    """Left over before a reservation ends, besides the time to save."""


class PlacementFacts(Value):
    """All that the choice rests on. It replays from this alone."""

    job: JobDemand
    candidates: tuple[CandidatePool, ...]
    spending: SpendLimits
    terms: RiskLimits = RiskLimits()
    now: Instant


class PlacementAction(StrEnum):
    """What to do with a waiting job."""

    START = "START"
    """On nodes that are there."""
    RENT = "RENT"
    """On nodes that are to be rented for it."""
    WAIT = "WAIT"
    """For nodes that are paid for in any case."""
    NO_POOL = "NO_POOL"
    """No pool can have it as things stand."""


class PoolCost(Value):
    """One pool, weighed. Parts are those of `economics.money`."""

    pool: str
    market: Market
    why_not: str
    """Empty where the job could have it."""
    starts_after_seconds: float
    """Until it trains."""
    ends_after_seconds: float
    rent_parts: int
    delay_parts: int
    shadow_parts: int
    interruptions: float
    """Expected."""
    is_available_now: bool
    """Whether it is committed, free now, and can have the job."""

    @property
    def parts(self) -> int:
        """All it costs."""
        return self.rent_parts + self.delay_parts + self.shadow_parts


class PlacementDecision(Value):
    """Where a job should run, and why."""

    job_id: str
    action: PlacementAction
    pool: str = ""
    """Chosen; on WAIT the one that it waits for."""
    reason: str
    row: PoolCost | None = None
    """The chosen one."""
    table: tuple[PoolCost, ...]
    """Every pool, the best first, those it cannot have last."""
    alternatives: tuple[Alternative, ...]
    rent_threshold_seconds: float | None = None
    """On WAIT: the expected wait from which it would be rented for; None where nothing could be rented."""
    late_seconds: float | None = None
    """By how much it is expected to miss its deadline; None where it has none, or some pool meets it."""
    facts: PlacementFacts


def shadow_price(
    rented_micros_per_accelerator_hour: int, share_full: float, delay_micros_per_hour: int, accelerators: int
) -> int:
    """Return what an accelerator-hour of committed capacity is worth to those who do not get it, in micro-dollars.

    sigma = P(it is wanted) x min(price of renting it, what all who wait would give for it)

    An hour that would have idled is worth nothing. One that is wanted lets the whole queue move up by 1/accelerators of
    an hour, which is worth that share of its price of delay; and never more than the same hour rented.

    Args:
        rented_micros_per_accelerator_hour: The cheapest that could stand in for it.
        share_full: How often, at this hour, demand is at least what is committed.
        delay_micros_per_hour: The price of delay of all jobs that wait for it, together.
        accelerators: Of the committed pool.
    """
    queue = delay_micros_per_hour / accelerators if accelerators else 0.0
    return round(min(1.0, max(0.0, share_full)) * min(rented_micros_per_accelerator_hour, queue))


def mean_demand_share(by_hour_of_week: Sequence[float], now: datetime, seconds: float) -> float:
    """Return how often committed capacity is expected to be wanted over the time that a job would hold it.

    Args:
        by_hour_of_week: For each of the 168 hours of a week, from Monday 00:00 UTC on, the share of past weeks in which
            demand was at least what is committed.
        now: When it would begin.
        seconds: How long it would last.
    """
    assert len(by_hour_of_week) == _HOURS_OF_WEEK
    begin = now.weekday() * 24 + now.hour + (now.minute * 60 + now.second) / 3600
    end = begin + max(1.0, seconds) / 3600
    whole = math.floor((end - begin) / _HOURS_OF_WEEK)
    total = whole * sum(by_hour_of_week)
    at = begin + whole * _HOURS_OF_WEEK
    while at < end:
        until = min(end, math.floor(at) + 1)
        total += by_hour_of_week[math.floor(at) % _HOURS_OF_WEEK] * (until - at)
        at = until
    return total / (end - begin)
