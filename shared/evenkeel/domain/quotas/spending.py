"""What teams spend, by period, and what holds a job back although quota and machines may be there.

A settled attempt adds what it held, from its admission to its end, to each period it ran in: `Spent`. What runs still
is reckoned from its charge. On rented nodes an attempt adds hours alone: their dollars are the rent, which the rental
adds as it is billed (`budgets.py`). Nobody is stopped by a budget: it only keeps the next job from starting.

Queues that go by use need what each submitter used of late. Of `a` accelerators from b to e there are left at time t

    a · (2^(-(t-e)/h) - 2^(-(t-b)/h)) = 2^(-(t-w)/h) · a · (2^((e-w)/h) - 2^((b-w)/h))        h: the half-life

so each week that begins at w keeps one sum for each submitter, to which an attempt's end adds once.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.economics.policy import EconomyPolicy
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.kueue.decayed import Decay
from evenkeel.domain.quotas.teams import Budget, Period, Team
from evenkeel.domain.values import Value

HALF_LIFE_SECONDS = Decay().half_life_seconds
USED_WEEKS = 8
"""Weeks of use that are remembered: as many half-lives."""
_MOST_PERIODS = 13
"""Periods of one kind that an attempt is added to: the last ones. A year has so many months at most."""


class Spent(Value):
    """What a team's settled attempts held in one period, and what its nodes cost."""

    accelerator_seconds: int = 0
    usd_micros: int = 0


class PeriodUsage(NamedTuple):
    """One period's part of what an attempt held."""

    key: str
    """`2026-11-03`, `2026-W45`, `2026-11`."""
    spent: Spent


def usage_by_week(attempt: Attempt, ended_at: datetime) -> dict[str, int]:
    """Return by week what an attempt's end adds to its submitter's sum, in millionths of an accelerator."""
    return {
        week: round(
            1e6 * attempt.accelerators * (_growth_factor(week_of(since), until) - _growth_factor(week_of(since), since))
        )
        for week, since, until in split_by_period(Period.WEEK, attempt.admitted_at, ended_at)[-USED_WEEKS:]
    }


def decayed_usage(sums: Mapping[str, int], now: datetime) -> float:
    """Return what is left by now of what one submitter used: accelerators that, held ever since, would come to it.

    Args:
        sums: By week, its sum of what `usage_by_week` said.
        now: The time.
    """
    by_week = {Period.WEEK.key_at(begin): begin for begin in weeks_until(now)}
    return sum(amount / 1e6 / _growth_factor(by_week[week], now) for week, amount in sums.items() if week in by_week)


def weeks_until(now: datetime) -> tuple[datetime, ...]:
    """Return when the weeks began of which something is left, this one last: of what is older, 1 in 256 is."""
    return tuple(week_of(now) - timedelta(weeks=count) for count in reversed(range(USED_WEEKS)))


def week_of(instant: datetime) -> datetime:
    """Return when an instant's week began, in UTC."""
    return _begin_of(Period.WEEK, instant)


def _growth_factor(begin: datetime, instant: datetime) -> float:
    return math.exp2((instant - begin).total_seconds() / HALF_LIFE_SECONDS)


class UsageLimit(Value):
    """One thing that a job must stay below."""

    what: str
    used: float
    limit: float
    wanted: float = 0
    """How much more the job would use at once; 0 where it is enough that something is left."""

    @property
    def is_reached(self) -> bool:
        """Whether the job has to wait for it."""
        return self.used + self.wanted > self.limit or (not self.wanted and self.used >= self.limit)

    @property
    def text(self) -> str:
        """Say it in a few words."""
        more = f", and the job asks for {self.wanted:g}" if self.wanted else ""
        return f"{self.used:.10g} of {self.limit:g} {self.what} are used{more}"


def usage_by_period(attempt: Attempt, ended_at: datetime, economy: EconomyPolicy) -> tuple[PeriodUsage, ...]:
    """Split what an attempt held into the periods it ran in."""
    if attempt.charged_since is None:
        return ()
    price = 0.0 if attempt.is_rented else economy.price_of(attempt.instance_type)
    return tuple(
        PeriodUsage(key, _spent(attempt.accelerators, begins, ends, price))
        for period in Period
        for key, begins, ends in split_by_period(period, attempt.charged_since, ended_at)[-_MOST_PERIODS:]
    )


def usage_limits(
    team: Team,
    owner: str,
    accelerators: int,
    charges: Iterable[Charge],
    spent: Mapping[str, Spent],
    economy: EconomyPolicy,
    now: datetime,
) -> tuple[UsageLimit, ...]:
    """Return what a job of somebody in a team must stay below.

    Args:
        team: Its team.
        owner: The principal that submitted it.
        accelerators: What it asks for, over all nodes.
        charges: What the team's attempts hold.
        spent: By period's name, what the team's settled attempts held, and its rents.
        economy: Prices.
        now: The time.
    """
    held = tuple(charges)
    found = []
    if team.most_accelerators_per_user is not None and owner:
        own = sum(charge.accelerators for charge in held if charge.owner == owner)
        what = f"accelerators that {owner} may hold in team {team.name}"
        found.append(UsageLimit(what=what, used=own, limit=team.most_accelerators_per_user, wanted=accelerators))
    for budget in team.budgets:
        found += _of_budget(team, budget, held, spent, economy, now)
    return tuple(found)


def budget_used(
    budget: Budget, charges: Iterable[Charge], spent: Mapping[str, Spent], economy: EconomyPolicy, now: datetime
) -> Spent:
    """Return what counts against a budget in the period that is: what has settled, and what runs by now.

    Args:
        budget: Of a team.
        charges: What the team's attempts hold.
        spent: By period's name, what has settled, and the rents of what is rented.
        economy: Prices of what is not rented.
        now: The time.
    """
    key = budget.period.key_at(now)
    settled = spent.get(key, Spent())
    running = [
        _spent(charge.accelerators, begins, ends, 0.0 if charge.is_rented else economy.price_of(charge.instance_type))
        for charge in charges
        if charge.admitted_at is not None
        for of, begins, ends in split_by_period(budget.period, charge.admitted_at, now)[-1:]
        if of == key
    ]
    return Spent(
        accelerator_seconds=settled.accelerator_seconds + sum(each.accelerator_seconds for each in running),
        usd_micros=settled.usd_micros + sum(each.usd_micros for each in running),
    )


def _of_budget(
    team: Team,
    budget: Budget,
    charges: tuple[Charge, ...],
    spent: Mapping[str, Spent],
    economy: EconomyPolicy,
    now: datetime,
) -> list[UsageLimit]:
    used = budget_used(budget, charges, spent, economy, now)
    whose = f"of team {team.name} in {budget.period.key_at(now)}"
    found = []
    if budget.gpu_hours is not None:
        hours = round(used.accelerator_seconds / 3600, 2)
        found.append(UsageLimit(what=f"accelerator-hours {whose}", used=hours, limit=budget.gpu_hours))
    if budget.usd is not None:
        found.append(UsageLimit(what=f"dollars {whose}", used=round(used.usd_micros / 1e6, 2), limit=budget.usd))
    return found


def _spent(accelerators: int, begins: datetime, ends: datetime, usd_per_hour: float) -> Spent:
    seconds = accelerators * max(0, round((ends - begins).total_seconds()))
    return Spent(accelerator_seconds=seconds, usd_micros=round(seconds * usd_per_hour / 3600 * 1e6))


def split_by_period(period: Period, begins: datetime, ends: datetime) -> list[tuple[str, datetime, datetime]]:
    """Cut a stretch of time at the period's ends, the last pieces only: the period's name, from when, until when."""
    pieces: list[tuple[str, datetime, datetime]] = []
    until = max(begins, ends)
    while len(pieces) < _MOST_PERIODS:
        since = max(begins, _begin_of(period, until if not pieces else until - timedelta(microseconds=1)))
        pieces.append((period.key_at(since), since, until))
        if since <= begins:
            break
        until = since
    return pieces[::-1]


def _begin_of(period: Period, instant: datetime) -> datetime:
    day = instant.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match period:
        case Period.DAY:
            return day
        case Period.WEEK:
            return day - timedelta(days=day.weekday())
        case Period.MONTH:
            return day.replace(day=1)
