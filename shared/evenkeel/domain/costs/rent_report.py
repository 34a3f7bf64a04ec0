"""Rented nodes in a window: their cost, and their hourly cost against the cap of the policy."""

import math
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.receipt import MICROSECONDS_PER_HOUR, microseconds
from evenkeel.domain.economics import money
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.values import Instant, Value

_COST_PARTS_PER_MICRO = money.COST_PARTS_PER_USD // money.MICROS_PER_USD
_NEAR_CAP_SHARE = 0.8
"""An hour is near the cap if its cost is at least this share of the cap."""


class RentedSum(Value):
    """The rent of one pool or one team."""

    name: str
    rentals: int
    begun: int = 0
    """Rentals that began in the window."""
    node_hours: float
    usd_micros: int


class RentReport(Value):
    """The rent in a window."""

    usd_micros: int
    node_hours: float
    pools: tuple[RentedSum, ...]
    teams: tuple[RentedSum, ...]
    cap_usd_micros_per_hour: int
    """Present cap of the fleet; 0: nothing may be rented."""
    peak_usd_micros_per_hour: int
    peak_at: Instant | None = None
    """Start of the most expensive period; null if nothing was rented."""
    hours_near_cap: float | None = None
    """Hours at 80 % of the cap or more; null without a cap."""


class RentedTime(NamedTuple):
    """The nodes of one offer of a rental, in a window."""

    rental: Rental
    pool: str
    instance_type: str
    span: Span
    nodes: int
    micros_per_hour: int
    usd_micros: int


def rent_report(rentals: Iterable[Rental], window: Span, cap_micros_per_hour: int) -> RentReport:
    """Return the rent of a window. A bill that crosses a border is split there, and its parts add up to the bill."""
    all_rented_times = [rented_time for rental in rentals for rented_time in rented_times(rental, window)]
    peak, peak_at, hours_near_cap = _peak_and_time_near_cap(all_rented_times, cap_micros_per_hour)
    return RentReport(
        usd_micros=sum(rented_time.usd_micros for rented_time in all_rented_times),
        node_hours=_node_hours(all_rented_times),
        pools=_sums_by_group(all_rented_times, "pool", window.start),
        teams=_sums_by_group(all_rented_times, "team", window.start),
        cap_usd_micros_per_hour=cap_micros_per_hour,
        peak_usd_micros_per_hour=peak,
        peak_at=peak_at,
        hours_near_cap=hours_near_cap / MICROSECONDS_PER_HOUR if cap_micros_per_hour else None,
    )


def sum_rents(days: Iterable[RentReport], cap_micros_per_hour: int) -> RentReport:
    """Return the rent of days in the order of time. A rental that lasts over midnight counts once."""
    reports = list(days)
    peak_day = max(reports, key=lambda day: day.peak_usd_micros_per_hour, default=None)
    hours_near_cap = [day.hours_near_cap for day in reports if day.hours_near_cap is not None]
    return RentReport(
        usd_micros=sum(day.usd_micros for day in reports),
        node_hours=math.fsum(day.node_hours for day in reports),
        pools=_merge_sums(day.pools for day in reports),
        teams=_merge_sums(day.teams for day in reports),
        cap_usd_micros_per_hour=cap_micros_per_hour,
        peak_usd_micros_per_hour=peak_day.peak_usd_micros_per_hour if peak_day else 0,
        peak_at=peak_day.peak_at if peak_day else None,
        hours_near_cap=math.fsum(hours_near_cap) if hours_near_cap else None,
    )


def _merge_sums(days: Iterable[Iterable[RentedSum]]) -> tuple[RentedSum, ...]:
    sums: dict[str, RentedSum] = {}
    for day in days:
        for added_sum in day:
            earlier_sum = sums.get(added_sum.name)
            sums[added_sum.name] = (
                added_sum
                if earlier_sum is None
                else RentedSum(
                    name=added_sum.name,
                    rentals=max(earlier_sum.rentals, added_sum.rentals - added_sum.begun) + added_sum.begun,
                    begun=earlier_sum.begun + added_sum.begun,
                    node_hours=earlier_sum.node_hours + added_sum.node_hours,
                    usd_micros=earlier_sum.usd_micros + added_sum.usd_micros,
                )
            )
    return tuple(sums[name] for name in sorted(sums))


def rented_times(rental: Rental, window: Span) -> Iterator[RentedTime]:
    """Yield the nodes of each offer of a rental in a window, with their part of the bill."""
    types = {offer.pool: offer.instance_type for offer in rental.offers}
    for bill in rental.bills():
        start, end = bill.started_at, bill.ended_at or window.end
        span = Span(max(start, window.start), min(end, window.end))
        if span.start >= span.end:
            continue
        # A started second is billed. A second across the border belongs to the earlier window.
        total = bill.cost_parts(window.end)
        billed_until = total if end <= window.end else min(total, _parts_until(bill, span.end))
        billed_before = min(billed_until, _parts_until(bill, span.start)) if start < window.start else 0
        yield RentedTime(
            rental=rental,
            pool=bill.pool,
            instance_type=types[bill.pool],
            span=span,
            nodes=bill.nodes,
            micros_per_hour=bill.micros_per_hour,
            usd_micros=round(billed_until / _COST_PARTS_PER_MICRO) - round(billed_before / _COST_PARTS_PER_MICRO),
        )


def _parts_until(bill: money.BillableRental, at: datetime) -> int:
    return bill.replace(ended_at=at, min_billed_seconds=0).cost_parts(at)


def _sums_by_group(rented_times: Iterable[RentedTime], by: str, since: datetime) -> tuple[RentedSum, ...]:
    groups: dict[str, list[RentedTime]] = {}
    for rented_time in rented_times:
        groups.setdefault(rented_time.pool if by == "pool" else rented_time.rental.team, []).append(rented_time)
    return tuple(
        RentedSum(
            name=name,
            rentals=len({rented_time.rental.name for rented_time in rented_times_of_group}),
            begun=len(
                {
                    rented_time.rental.name
                    for rented_time in rented_times_of_group
                    if _first_billed_at(rented_time, by) >= since
                }
            ),
            node_hours=_node_hours(rented_times_of_group),
            usd_micros=sum(rented_time.usd_micros for rented_time in rented_times_of_group),
        )
        for name, rented_times_of_group in sorted(groups.items())
    )


def _first_billed_at(rented_time: RentedTime, by: str) -> datetime:
    """Return when the first bill of a rental began; by pool, its first bill in that pool."""
    return min(bill.started_at for bill in rented_time.rental.bills() if by != "pool" or bill.pool == rented_time.pool)


def _node_hours(rented_times: Iterable[RentedTime]) -> float:
    return (
        sum(
            rented_time.nodes * microseconds(rented_time.span.end - rented_time.span.start)
            for rented_time in rented_times
        )
        / MICROSECONDS_PER_HOUR
    )


def _peak_and_time_near_cap(rented_times: list[RentedTime], cap: int) -> tuple[int, datetime | None, int]:
    """Return the highest hourly cost, when it began, and the microseconds near the cap."""
    changes: dict[datetime, int] = {}
    for rented_time in rented_times:
        changes[rented_time.span.start] = changes.get(rented_time.span.start, 0) + rented_time.micros_per_hour
        changes[rented_time.span.end] = changes.get(rented_time.span.end, 0) - rented_time.micros_per_hour
    times = sorted(changes)
    rate, peak, peak_at, near_microseconds = 0, 0, None, 0
    for index, at in enumerate(times):
        rate += changes[at]
        if rate > peak:
            peak, peak_at = rate, at
        if cap and rate >= _NEAR_CAP_SHARE * cap and index + 1 < len(times):
            near_microseconds += microseconds(times[index + 1] - at)
    return peak, peak_at, near_microseconds
