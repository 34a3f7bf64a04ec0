"""What teams spend, by period, and what holds a job back although quota and machines may be there.

A settled attempt adds what it held, from its admission to its end, to each period it ran in: `Spent`. What runs still
is reckoned from its charge. Nobody is stopped by a budget: it only keeps the next job from starting.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.policy import EconomyPolicy
from evenkeel.domain.scheduling.jobs import Attempt, Charge
from evenkeel.domain.scheduling.teams import Budget, Period, Team
from evenkeel.domain.values import Value

_MOST_PERIODS = 13
"""Periods of one kind that an attempt is added to: the last ones. A year has so many months at most."""


class Spent(Value):
    """What a team's settled attempts held in one period."""

    accelerator_seconds: int = 0
    usd_micros: int = 0


class Part(NamedTuple):
    """One period's part of what an attempt held."""

    key: str
    """`2026-11-03`, `2026-W45`, `2026-11`."""
    spent: Spent


class Limit(Value):
    """One thing that a job must stay below."""

    what: str
    used: float
    limit: float
    wanted: float = 0
    """How much more the job would use at once; 0 where it is enough that something is left."""

    @property
    def holds_back(self) -> bool:
        """Whether the job has to wait for it."""
        return self.used + self.wanted > self.limit or (not self.wanted and self.used >= self.limit)

    @property
    def said(self) -> str:
        """Say it in a few words."""
        more = f", it asks for {self.wanted:g}" if self.wanted else ""
        return f"{self.used:.10g} of {self.limit:g} {self.what} are used{more}"


def parts_of(attempt: Attempt, ended_at: datetime, economy: EconomyPolicy) -> tuple[Part, ...]:
    """Split what an attempt held into the periods it ran in."""
    price = economy.price_of(attempt.instance_type)
    return tuple(
        Part(key, _spent(attempt.accelerators, begins, ends, price))
        for period in Period
        for key, begins, ends in _pieces(period, attempt.admitted_at, ended_at)[-_MOST_PERIODS:]
    )


def limits_of(
    team: Team,
    owner: str,
    accelerators: int,
    charges: Iterable[Charge],
    spent: Mapping[str, Spent],
    economy: EconomyPolicy,
    now: datetime,
) -> tuple[Limit, ...]:
    """Return what a job of somebody in a team must stay below.

    Args:
        team: Its team.
        owner: The principal that submitted it.
        accelerators: What it asks for, over all nodes.
        charges: What the team's attempts hold.
        spent: By period's name, what the team's settled attempts held.
        economy: Prices.
        now: The time.
    """
    held = tuple(charges)
    found = []
    if team.most_accelerators_per_user is not None and owner:
        own = sum(charge.accelerators for charge in held if charge.owner == owner)
        what = f"accelerators that {owner} may hold in team {team.name}"
        found.append(Limit(what=what, used=own, limit=team.most_accelerators_per_user, wanted=accelerators))
    for budget in team.budgets:
        found += _of_budget(team, budget, held, spent, economy, now)
    return tuple(found)


def _of_budget(
    team: Team,
    budget: Budget,
    charges: tuple[Charge, ...],
    spent: Mapping[str, Spent],
    economy: EconomyPolicy,
    now: datetime,
) -> list[Limit]:
    key = budget.period.key_at(now)
    settled = spent.get(key, Spent())
    running = [
        _spent(charge.accelerators, begins, ends, economy.price_of(charge.instance_type))
        for charge in charges
        if charge.admitted_at is not None
        for of, begins, ends in _pieces(budget.period, charge.admitted_at, now)[-1:]
        if of == key
    ]
    whose = f"of team {team.name} in {key}"
    found = []
    if budget.gpu_hours is not None:
        seconds = settled.accelerator_seconds + sum(each.accelerator_seconds for each in running)
        found.append(Limit(what=f"accelerator-hours {whose}", used=round(seconds / 3600, 2), limit=budget.gpu_hours))
    if budget.usd is not None:
        micros = settled.usd_micros + sum(each.usd_micros for each in running)
        found.append(Limit(what=f"dollars {whose}", used=round(micros / 1e6, 2), limit=budget.usd))
    return found


def _spent(accelerators: int, begins: datetime, ends: datetime, usd_per_hour: float) -> Spent:
    seconds = accelerators * max(0, round((ends - begins).total_seconds()))
    return Spent(accelerator_seconds=seconds, usd_micros=round(seconds * usd_per_hour / 3600 * 1e6))


def _pieces(period: Period, begins: datetime, ends: datetime) -> list[tuple[str, datetime, datetime]]:
    """Cut a stretch of time at the period's ends, the last pieces only."""
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
