"""Showback: the use of each team, user and project in a window, and its cost.

GPU time counts while an attempt holds it, at the price of its admission. On rented nodes an attempt adds GPU-hours
only, and the bill of the rental adds the dollars. So the rows sum to the use and to the cost of the window.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.costs.receipt import MICROSECONDS_PER_HOUR
from evenkeel.domain.quotas.spending import Spending, begin_of, end_of
from evenkeel.domain.quotas.teams import Budget
from evenkeel.domain.values import Instant, Value


class ShowbackKind(StrEnum):
    """Kind of a showback row."""

    USE = "USE"
    """GPU time that attempts held. It costs nothing here on rented nodes."""
    RENT = "RENT"
    """Bills of rentals. Their GPU time is in the rows of USE."""


class ShowbackKey(NamedTuple):
    """The group of a showback row."""

    team: str
    user: str | None
    """Null: withheld."""
    project: str | None
    """Empty: the job has no such label. Null: withheld."""
    pool: str
    instance_type: str
    kind: ShowbackKind


class ChargedTime(NamedTuple):
    """The GPU time of one attempt, or the bill of one rental, in the window."""

    key: ShowbackKey
    job_id: str
    gpu_microseconds: int
    """GPUs times microseconds."""
    usd_micros: int | None
    """Null: it has no price, or the price is withheld."""


class ShowbackRow(Value):
    """The use and cost of one group."""

    kind: ShowbackKind
    team: str
    user: str | None
    project: str | None
    pool: str
    instance_type: str
    jobs: int
    gpu_hours: float
    usd_micros: int | None
    """Cost of the priced part; null if no part has a price, or if it is withheld."""
    unpriced_gpu_hours: float
    """GPU-hours without a known price. The dollars exclude them."""

    @property
    def sort_key(self) -> tuple[str, ...]:
        """Position of the row in the list; unique for each row."""
        return (self.team, self.user or "", self.project or "", self.pool, self.instance_type, self.kind)


class ShowbackTotal(Value):
    """The sum of all rows. Null: unknown, because nothing is recorded in the window."""

    jobs: int | None = None
    gpu_hours: float | None = None
    usd_micros: int | None = None
    unpriced_gpu_hours: float | None = None


class BudgetForecast(Value):
    """The use of a budget in its present period, and its forecast at the end if the use continues."""

    team: str
    period: str
    """`day`, `week` or `month`."""
    key: str
    """`2026-11`."""
    quantity: str
    """`usd` or `gpuHours`."""
    limit: float
    used: float
    """A lower bound if a part has no price."""
    is_lower_bound: bool
    expected_at_end: float | None
    """Null: too little of the period has passed."""
    reached_at: Instant | None
    """When the limit is reached at this pace; null if it is not reached in this period, or not known."""
    ends_at: Instant


_MIN_SHARE = 0.02
"""Share of a period that must have passed before its use so far predicts the rest."""
_MIN_WARNING_SHARE = 0.1
"""Share of a period that must have passed before its use so far pages a person. One large job of the first hour says
nothing about the rest."""


def showback_rows(charged_times: Iterable[ChargedTime]) -> tuple[tuple[ShowbackRow, ...], ShowbackTotal]:
    """Return a row for each group, by team, and the sum. The rows add up to it."""
    groups: dict[ShowbackKey, list[ChargedTime]] = defaultdict(list)
    all_times = []
    for item in charged_times:
        groups[item.key].append(item)
        all_times.append(item)
    rows = [
        ShowbackRow(
            kind=key.kind,
            team=key.team,
            user=key.user,
            project=key.project,
            pool=key.pool,
            instance_type=key.instance_type,
            **_summed_fields(items),
        )
        for key, items in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: row.sort_key)), ShowbackTotal(**_summed_fields(all_times))


def _summed_fields(items: Iterable[ChargedTime]) -> dict[str, int | float | None]:
    times = list(items)
    known_costs = [item.usd_micros for item in times if item.usd_micros is not None]
    return {
        "jobs": len({item.job_id for item in times}),
        "gpu_hours": sum(item.gpu_microseconds for item in times) / MICROSECONDS_PER_HOUR,
        "usd_micros": sum(known_costs) if known_costs or not times else None,
        "unpriced_gpu_hours": sum(item.gpu_microseconds for item in times if item.usd_micros is None)
        / MICROSECONDS_PER_HOUR,
    }


def budget_forecasts(team: str, budget: Budget, spending: Spending, now: datetime) -> tuple[BudgetForecast, ...]:
    """Return the forecast of each limit of a budget.

    Args:
        team: The team.
        budget: Its budget.
        spending: The use that counts against it in the present period.
        now: The time.
    """
    start = begin_of(budget.period, now)
    end = end_of(budget.period, now)
    limits = (
        ("gpuHours", budget.gpu_hours, spending.accelerator_seconds / 3600, False),
        ("usd", budget.usd, spending.usd_micros / 1e6, spending.unpriced_seconds > 0),
    )
    return tuple(
        _limit_forecast(team, budget, quantity, limit, amount, (start, end, now), is_lower_bound=is_lower_bound)
        for quantity, limit, amount, is_lower_bound in limits
        if limit is not None
    )


def _limit_forecast(
    team: str,
    budget: Budget,
    quantity: str,
    limit: float,
    used_amount: float,
    times: tuple[datetime, datetime, datetime],
    *,
    is_lower_bound: bool,
) -> BudgetForecast:
    start, end, now = times
    share_passed = (now - start) / (end - start)
    expected_amount = used_amount / share_passed if share_passed >= _MIN_SHARE else None
    reached_at = now if used_amount >= limit else None
    if reached_at is None and expected_amount is not None and expected_amount > limit:
        reached_at = start + (now - start) * (limit / used_amount)
    return BudgetForecast(
        team=team,
        period=budget.period,
        key=budget.period.key_at(now),
        quantity=quantity,
        limit=limit,
        used=used_amount,
        is_lower_bound=is_lower_bound,
        expected_at_end=expected_amount,
        reached_at=reached_at,
        ends_at=end,
    )


def runs_out_early(forecast: BudgetForecast, period_start: datetime, now: datetime) -> bool:
    """Whether a person must know that a budget is expected to end before its period does.

    A budget that is already spent has its own event.
    """
    share_passed = (now - period_start) / (forecast.ends_at - period_start)
    return forecast.used < forecast.limit and forecast.reached_at is not None and share_passed >= _MIN_WARNING_SHARE
