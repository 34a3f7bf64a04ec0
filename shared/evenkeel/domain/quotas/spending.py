"""Use and spending of teams by period, and the limits that keep a job waiting although quota and nodes are free.

A settled attempt adds its use, from its admission to its end, to each period in which it ran (`Spent`). The use of a
running attempt is computed from its charge. On rented nodes an attempt adds only hours: the dollars are the rent, which
the rental adds as it is billed (`budgets.py`). A budget never stops a running job; it only keeps the next job waiting.

Queues that order by recent use need the recent use of each submitter. The use of `a`
accelerators from b to e decays. At time t it counts as

    a · (2^(-(t-e)/h) - 2^(-(t-b)/h)) = 2^(-(t-w)/h) · a · (2^((e-w)/h) - 2^((b-w)/h))

h is the half-life. The last factor does not depend on t. So each week that starts at w stores one sum for each
submitter, and an attempt adds to it once, at its end.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.economics.economy_policy import EconomyPolicy
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.kueue.recent_use import Decay
from evenkeel.domain.quotas.teams import Budget, Period, Team
from evenkeel.domain.values import Value

HALF_LIFE_SECONDS = Decay().half_life_seconds
USED_WEEKS = 8
"""Number of stored weeks of use. A week is one half-life, so older use has decayed to less than 1 in 256."""
_MAX_PERIODS = 13
"""Maximum number of periods of one kind to which an attempt is added: the last periods. A year touches at most 13
months."""


class Spending(Value):
    """Use by a team's settled attempts in a period, and the cost of its nodes."""

    accelerator_seconds: int = 0
    usd_micros: int = 0
    unpriced_seconds: int = 0
    """Accelerator-seconds whose type had no price. Their cost is unknown, so it is not in `usd_micros`."""


class PeriodUsage(NamedTuple):
    """The part of an attempt's use that falls into one period."""

    key: str
    """The name of the period: `2026-11-03`, `2026-W45`, `2026-11`."""
    spent: Spending


def usage_by_week(attempt: Attempt, ended_at: datetime) -> dict[str, int]:
    """Return by week the use that an ended attempt adds to its submitter's sum, in millionths of an accelerator."""
    return {
        week: round(
            1e6 * attempt.accelerators * (_growth_factor(week_of(since), until) - _growth_factor(week_of(since), since))
        )
        for week, since, until in split_by_period(Period.WEEK, attempt.admitted_at, ended_at)[-USED_WEEKS:]
    }


def decayed_usage(sums: Mapping[str, int], now: datetime) -> float:
    """Return a submitter's use, decayed to now: the accelerators that, if held all the time, would give the same use.

    Args:
        sums: By week, the sum of the amounts of `usage_by_week`.
        now: The time.
    """
    by_week = {Period.WEEK.key_at(begin): begin for begin in weeks_until(now)}
    return sum(amount / 1e6 / _growth_factor(by_week[week], now) for week, amount in sums.items() if week in by_week)


def weeks_until(now: datetime) -> tuple[datetime, ...]:
    """Return the starts of the weeks that are stored, the present week last."""
    return tuple(week_of(now) - timedelta(weeks=count) for count in reversed(range(USED_WEEKS)))


def week_of(instant: datetime) -> datetime:
    """Return the start of an instant's week, in UTC."""
    return begin_of(Period.WEEK, instant)


def _growth_factor(begin: datetime, instant: datetime) -> float:
    return math.exp2((instant - begin).total_seconds() / HALF_LIFE_SECONDS)


class UsageLimit(Value):
    """A limit that a job must stay below."""

    quantity: str
    used: float
    limit: float
    requested: float = 0
    """The amount that the job adds when it starts; 0 if the job may start while any amount is left."""
    unpriced_instance_type: str = ""
    """The instance type without a price, or "its nodes" if the type is unknown; empty for other limits."""

    @property
    def is_reached(self) -> bool:
        """Whether the limit keeps the job waiting."""
        return self.used + self.requested > self.limit or (not self.requested and self.used >= self.limit)

    @property
    def text(self) -> str:
        """Describe the limit in a few words."""
        if self.unpriced_instance_type:
            return (
                f"{self.used:.10g} {self.quantity} have no price, so its dollar budget cannot be checked: "
                f"set economy.prices for {self.unpriced_instance_type}"
            )
        request_text = f", and the job asks for {self.requested:.10g}" if self.requested else ""
        return f"{self.used:.10g} of {self.limit:.10g} {self.quantity} are used{request_text}"


def usage_by_period(attempt: Attempt, ended_at: datetime, economy: EconomyPolicy) -> tuple[PeriodUsage, ...]:
    """Split the use of an attempt by period."""
    if attempt.charged_since is None:
        return ()
    price = _price_of(attempt, attempt.admitted_at, economy)
    return tuple(
        PeriodUsage(key, _spent_by_attempt(attempt, start, end, price))
        for period in Period
        for key, start, end in split_by_period(period, attempt.charged_since, ended_at)[-_MAX_PERIODS:]
    )


def usage_limits(
    team: Team,
    submitter: str,
    accelerators: int,
    charges: Iterable[Charge],
    spent: Mapping[str, Spending],
    economy: EconomyPolicy,
    now: datetime,
) -> tuple[UsageLimit, ...]:
    """Return the limits that a job must stay below.

    Args:
        team: The job's team.
        submitter: The principal that submitted the job.
        accelerators: The accelerators of the job, over all nodes.
        charges: The charges of the team's running attempts.
        spent: By period name, the use of the team's settled attempts, and its rents.
        economy: Prices.
        now: The time.
    """
    all_charges = tuple(charges)
    limits = []
    if team.max_accelerators_per_user is not None and submitter:
        held_accelerators = sum(charge.accelerators for charge in all_charges if charge.submitter == submitter)
        quantity = f"accelerators that {submitter} may hold in team {team.name}"
        limits.append(
            UsageLimit(
                quantity=quantity, used=held_accelerators, limit=team.max_accelerators_per_user, requested=accelerators
            )
        )
    for budget in team.budgets:
        limits += _budget_limits(team, budget, all_charges, spent, economy, now)
    return tuple(limits)


def budget_used(
    budget: Budget, charges: Iterable[Charge], spent: Mapping[str, Spending], economy: EconomyPolicy, now: datetime
) -> Spending:
    """Return the use that counts against a budget in the present period, by settled and by running attempts.

    Args:
        budget: A budget of the team.
        charges: The charges of the team's running attempts.
        spent: By period name, the settled use, and the rents of present rentals.
        economy: Prices of nodes that are not rented.
        now: The time.
    """
    key = budget.period.key_at(now)
    settled_spending = spent.get(key, Spending())
    running_spending = [
        _spent_by_attempt(charge, start, end, _price_of(charge, charge.admitted_at, economy))
        for charge in charges
        if charge.admitted_at is not None
        for period_key, start, end in split_by_period(budget.period, charge.admitted_at, now)[-1:]
        if period_key == key
    ]
    return Spending(
        accelerator_seconds=settled_spending.accelerator_seconds
        + sum(spending.accelerator_seconds for spending in running_spending),
        usd_micros=settled_spending.usd_micros + sum(spending.usd_micros for spending in running_spending),
        unpriced_seconds=settled_spending.unpriced_seconds
        + sum(spending.unpriced_seconds for spending in running_spending),
    )


def _limits_on_unpriced_use(team: Team, charges: tuple[Charge, ...], economy: EconomyPolicy) -> list[UsageLimit]:
    """Return a limit of 0 for accelerators without a price: a budget in dollars cannot limit use without a price."""
    seconds: dict[str, int] = {}
    for charge in charges:
        if charge.admitted_at and _price_of(charge, charge.admitted_at, economy) is None:
            seconds[charge.instance_type] = seconds.get(charge.instance_type, 0) + charge.accelerators
    return [
        UsageLimit(
            quantity=f"accelerators of team {team.name}",
            used=count,
            limit=0,
            unpriced_instance_type=name or "its nodes",
        )
        for name, count in sorted(seconds.items())
    ]


def _price_of(holder: Attempt | Charge, since: datetime, economy: EconomyPolicy) -> float | None:
    """Return the price that an attempt keeps from its admission; if it had none, the policy's price of that day."""
    if holder.is_rented:
        return 0.0
    if holder.usd_per_accelerator_hour is not None:
        return holder.usd_per_accelerator_hour
    price = economy.price_of(holder.instance_type, since, holder.pool)
    return price.usd if price else None


def _budget_limits(
    team: Team,
    budget: Budget,
    charges: tuple[Charge, ...],
    spent: Mapping[str, Spending],
    economy: EconomyPolicy,
    now: datetime,
) -> list[UsageLimit]:
    spending = budget_used(budget, charges, spent, economy, now)
    suffix = f"of team {team.name} in {budget.period.key_at(now)}"
    limits = []
    if budget.gpu_hours is not None:
        hours = round(spending.accelerator_seconds / 3600, 2)
        limits.append(UsageLimit(quantity=f"accelerator-hours {suffix}", used=hours, limit=budget.gpu_hours))
    if budget.usd is not None:
        limits.append(
            UsageLimit(quantity=f"dollars {suffix}", used=round(spending.usd_micros / 1e6, 2), limit=budget.usd)
        )
        limits += _limits_on_unpriced_use(team, charges, economy)
    return limits


def _spent_by_attempt(holder: Attempt | Charge, start: datetime, end: datetime, usd_per_hour: float | None) -> Spending:
    """Return the use of an attempt. The cost of a rented part is in the bill of its rental."""
    duration = max(0, round((end - start).total_seconds()))
    seconds, priced_seconds = holder.accelerators * duration, holder.priced_accelerators * duration
    if usd_per_hour is None:
        return Spending(accelerator_seconds=seconds, unpriced_seconds=priced_seconds)
    return Spending(accelerator_seconds=seconds, usd_micros=round(priced_seconds * usd_per_hour / 3600 * 1e6))


def split_by_period(period: Period, start: datetime, end: datetime) -> list[tuple[str, datetime, datetime]]:
    """Split a time span at the ends of periods; return the last pieces as (period name, start, end)."""
    pieces: list[tuple[str, datetime, datetime]] = []
    until = max(start, end)
    while len(pieces) < _MAX_PERIODS:
        since = max(start, begin_of(period, until if not pieces else until - timedelta(microseconds=1)))
        pieces.append((period.key_at(since), since, until))
        if since <= start:
            break
        until = since
    return pieces[::-1]


def begin_of(period: Period, instant: datetime) -> datetime:
    """Return the start of the period of an instant, in UTC."""
    day = instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match period:
        case Period.DAY:
            return day
        case Period.WEEK:
            return day - timedelta(days=day.weekday())
        case Period.MONTH:
            return day.replace(day=1)


def end_of(period: Period, instant: datetime) -> datetime:
    """Return the end of the period of an instant, in UTC: the start of the next one."""
    start = begin_of(period, instant)
    match period:
        case Period.DAY:
            return start + timedelta(days=1)
        case Period.WEEK:
            return start + timedelta(days=7)
        case Period.MONTH:
            return begin_of(period, start + timedelta(days=31))
