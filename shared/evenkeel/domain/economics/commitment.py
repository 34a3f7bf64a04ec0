"""How much capacity to commit, from hourly demand.

The k-th committed node is paid every hour and used in the hours with a demand of at least k. It pays if and only if

    P(demand >= k) > price of a usable committed hour / price of a usable on-demand hour

A node that is broken for a share of the time costs more per usable hour: price / availability.
"""

import math
from collections.abc import Iterable, Sequence

from pydantic import Field

from evenkeel.domain.economics.figure_checks import FigureDocument, WrongFigure, at_least, more_than_0, whole_number
from evenkeel.domain.values import Instant, Value

_MAX_HOURS = 200_000
_MAX_UNITS = 100_000


class CommitmentPrices(FigureDocument):
    """Prices of a unit, and the share of time in which a unit works."""

    reserved_usd_per_hour: float
    """Price of a committed unit, paid every hour."""
    on_demand_usd_per_hour: float
    """Price of a unit that is rented only while it is in demand."""
    reserved_availability: float = 1.0
    """Share of time in which a committed unit works. 1 ignores its failures."""
    on_demand_availability: float = 1.0
    """Share of paid time in which a rented unit works."""

    @property
    def break_even_share(self) -> float:
        """A committed unit costs less than a rented one if it is in demand for more than this share of the hours."""
        more_than_0("on_demand_usd_per_hour", self.on_demand_usd_per_hour)
        at_least("reserved_usd_per_hour", self.reserved_usd_per_hour)
        for field in ("reserved_availability", "on_demand_availability"):
            if not 0 < getattr(self, field) <= 1:
                raise WrongFigure(field, f"must be above 0 and at most 1, not {getattr(self, field):g}")
            more_than_0(field, getattr(self, field))
        reserved_usd = self.reserved_usd_per_hour / self.reserved_availability
        return reserved_usd / (self.on_demand_usd_per_hour / self.on_demand_availability)


class DemandHour(FigureDocument):
    """Demand in one hour."""

    at: Instant
    units: float = Field(ge=0)


class HourlyDemand(Value):
    """Hourly demand. Hours without a figure are unknown and are left out."""

    hours: tuple[float, ...]
    unknown_hours: int = 0
    """Hours without a figure, between the first and the last hour."""
    note: str = ""


def hourly_demand(rows: Iterable[DemandHour]) -> HourlyDemand:
    """Return the demand of dated hours. A repeated hour counts once.

    Raises:
        WrongFigure: two figures of one hour differ, or there is no hour.
    """
    units_by_hour: dict[int, float] = {}
    for row in rows:
        hour = math.floor(row.at.timestamp() / 3600)
        if units_by_hour.setdefault(hour, row.units) != row.units:
            raise WrongFigure("demand", f"has two figures for the hour of {row.at.isoformat()}")
    if not units_by_hour:
        raise WrongFigure("demand", "has no hour")
    unknown_hours = max(units_by_hour) - min(units_by_hour) + 1 - len(units_by_hour)
    note = (
        f"Hours without a figure: {unknown_hours}. They are left out, and do not count as 0." if unknown_hours else ""
    )
    return HourlyDemand(
        hours=tuple(units_by_hour[hour] for hour in sorted(units_by_hour)), unknown_hours=unknown_hours, note=note
    )


class UnitAdvice(Value):
    """The costs and savings of one more committed unit over the hours of the demand."""

    unit: int
    demand_share: float
    """Share of the hours in which at least this many units are in demand."""
    used_hours: int
    idle_hours: int
    on_demand_cost_usd: float
    """Cost of the same work if this unit were rented on demand."""
    saved_usd: float
    """Negative if it costs more than renting."""
    idle_usd: float
    """Cost of the hours without work."""
    reserve: bool


class CommitmentCost(Value):
    """Cost of the whole demand with a number of committed units."""

    units: int
    total_usd: float
    reserved_usd: float
    on_demand_usd: float
    idle_reserved_usd: float
    idle_reserved_hours: int
    """Unit-hours without work."""
    saved_usd: float
    """Compared with renting all units. Negative if it costs more."""


class CommitmentAdvice(Value):
    """How many units to commit, and why."""

    break_even_share: float
    hours: int
    unknown_hours: int
    peak_units: int
    mean_units: float
    best: CommitmentCost
    """Cost if all units with a demand share above the break-even share are committed."""
    nothing_committed: CommitmentCost
    peak_committed: CommitmentCost
    present: CommitmentCost | None
    """Cost with the units that are committed now; null if unknown."""
    units: tuple[UnitAdvice, ...]
    notes: tuple[str, ...]


def advise_commitment(
    demand: HourlyDemand, prices: CommitmentPrices, committed_units: int | None = None, accelerators_per_unit: int = 1
) -> CommitmentAdvice:
    """Return how many units to commit.

    Args:
        demand: Hourly demand.
        prices: Prices of a unit.
        committed_units: Units that are committed now; None if unknown.
        accelerators_per_unit: If the demand is in accelerators, the accelerators of a node. Part of a node counts as
            one.

    Raises:
        WrongFigure: a figure cannot be used, or there is no hour of demand.
    """
    if not demand.hours:
        raise WrongFigure("demand", "has no hour")
    whole_number("hours", len(demand.hours), 1, _MAX_HOURS)
    per_unit = whole_number("accelerators_per_unit", accelerators_per_unit, 1)
    demand_units = [math.ceil(at_least("demand", hour) / per_unit - 1e-9) for hour in demand.hours]
    peak = whole_number("peak demand", max(demand_units), 0, _MAX_UNITS)
    threshold = prices.break_even_share
    used_hours = _used_hours(demand_units, peak)
    units = tuple(_unit_advice(k, used_hours[k - 1], len(demand_units), prices) for k in range(1, peak + 1))
    best_units = sum(unit.reserve for unit in units)
    present_units = None if committed_units is None else whole_number("committed_units", committed_units, 0, _MAX_UNITS)
    return CommitmentAdvice(
        break_even_share=threshold,
        hours=len(demand_units),
        unknown_hours=demand.unknown_hours,
        peak_units=peak,
        mean_units=math.fsum(demand_units) / len(demand_units),
        best=commitment_cost(demand_units, prices, best_units),
        nothing_committed=commitment_cost(demand_units, prices, 0),
        peak_committed=commitment_cost(demand_units, prices, peak),
        present=None if present_units is None else commitment_cost(demand_units, prices, present_units),
        units=units,
        notes=tuple(
            filter(
                None,
                (
                    demand.note,
                    "Future demand is assumed to equal past demand.",
                    "A committed unit is paid every hour, and a rented unit only in hours with demand.",
                    "Broken units are priced by their availability."
                    if prices.reserved_availability < 1 or prices.on_demand_availability < 1
                    else "Failures of committed and rented units are not counted: both availabilities are 1.",
                ),
            )
        ),
    )


def _used_hours(demand_units: Sequence[int], peak: int) -> list[int]:
    """Return in how many hours the k-th unit is in demand, for k from 1 to the peak."""
    count = [0] * (peak + 2)
    for units_wanted in demand_units:
        count[units_wanted] += 1
    for k in range(peak, -1, -1):
        count[k] += count[k + 1]
    return count[1 : peak + 1]


def _unit_advice(number: int, hours_used: int, hours: int, prices: CommitmentPrices) -> UnitAdvice:
    work_hours = hours_used * prices.reserved_availability
    rented_usd = work_hours / prices.on_demand_availability * prices.on_demand_usd_per_hour
    return UnitAdvice(
        unit=number,
        demand_share=hours_used / hours,
        used_hours=hours_used,
        idle_hours=hours - hours_used,
        on_demand_cost_usd=rented_usd,
        saved_usd=rented_usd - hours * prices.reserved_usd_per_hour,
        idle_usd=(hours - hours_used) * prices.reserved_usd_per_hour,
        reserve=hours_used / hours > prices.break_even_share,
    )


def commitment_cost(demand_units: Sequence[int], prices: CommitmentPrices, units: int) -> CommitmentCost:
    """Return the cost of the whole demand, hour by hour, with a number of committed units."""
    rented_price = prices.on_demand_usd_per_hour / prices.on_demand_availability
    committed_hours = [min(hour_units, units) for hour_units in demand_units]
    demand_hours = math.fsum(demand_units)
    rented_hours = demand_hours - prices.reserved_availability * math.fsum(committed_hours)
    idle_hours = sum(units - committed_hour for committed_hour in committed_hours)
    reserved_usd = units * len(demand_units) * prices.reserved_usd_per_hour
    return CommitmentCost(
        units=units,
        total_usd=reserved_usd + rented_hours * rented_price,
        reserved_usd=reserved_usd,
        on_demand_usd=rented_hours * rented_price,
        idle_reserved_usd=idle_hours * prices.reserved_usd_per_hour,
        idle_reserved_hours=idle_hours,
        saved_usd=demand_hours * rented_price - reserved_usd - rented_hours * rented_price,
    )
