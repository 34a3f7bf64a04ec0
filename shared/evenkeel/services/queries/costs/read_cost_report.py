"""The cost report of the fleet for the API: stored figures of past days, and the records of the latest days.

    first day with a row                     recent_from            now
        │ stored days; without a row: unknown     │ from the records │

The records of a day change for a while: a job resumes, or an attempt ends and loses work of the day before. So a
report reads the records from the first recent day on that has no settled row.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from evenkeel.domain.costs.commitment_report import NodeHourPrice, NodeType, ec2_type
from evenkeel.domain.costs.day_figures import DayFigures, DayRow, day_of, day_spans
from evenkeel.domain.costs.fleet_report import FleetReport, ReportFacts, fleet_report
from evenkeel.domain.costs.interruptions import Span
from evenkeel.domain.costs.receipt import MICROSECONDS_PER_HOUR, microseconds
from evenkeel.domain.economics.economy_policy import list_accelerator_price
from evenkeel.domain.economics.money import MICROS_PER_USD
from evenkeel.domain.plurals import count_of
from evenkeel.domain.renting.burst_policy import RentedPool
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Invalid, get_all
from evenkeel.services.context import Context
from evenkeel.services.queries.costs import read_cost_records, read_recent_days
from evenkeel.services.queries.costs.read_recent_days import NodeLifetime
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.tables import day_rows, rows

Json = dict[str, Any]

REFOLDED = timedelta(days=30)
"""How long the ledger keeps all records of a time: the record of a node that is gone goes first."""
_EXACT_BORDERS_UNTIL = timedelta(days=2)
"""A shorter window keeps its exact borders while the records of its time exist."""


class ReportWindow(NamedTuple):
    """The window of a report; None: until now, and 30 days long."""

    since: datetime | None = None
    until: datetime | None = None


def show_cost_report(report_window: ReportWindow, reader: Reader, context: Context) -> Json:
    """Return the cost report of a window. It extends to whole UTC days where their figures are stored.

    Args:
        report_window: The window.
        reader: The caller. A caller sees the sums over all teams, but not the spending of another team.
        context: The context.

    Raises:
        Invalid: the window is empty, begins before the oldest figures, or contains no record.
    """
    requested_window = read_cost_records.window_of(
        report_window.since, report_window.until, context.now, day_rows.DAY_KEPT
    )
    stored_days = _stored_days(requested_window, context)
    recent_from = _recent_from(stored_days, requested_window, context.now)
    recent = (
        read_recent_days.read_days(Span(recent_from, requested_window.end), context)
        if recent_from < requested_window.end
        else None
    )
    if recent and recent.span.start > recent_from:
        recent_from = recent.span.start
        if row := stored_days.get(day_of(recent_from)):  # the whole stored day, instead of its last part
            recent_from = row.figures.until
    recorded_days = [
        stored_days[day].figures for day in sorted(stored_days) if stored_days[day].figures.until <= recent_from
    ]
    days = [*recorded_days, *(day for day in (recent.days if recent else ()) if day.since >= recent_from)]
    if not days:
        why = f"nothing is recorded from {requested_window.start:%d %b %Y} to {requested_window.end:%d %b %Y}"
        field = "since" if report_window.since or report_window.until is None else "until"
        raise Invalid("The window has no data.", ((field, why),))
    window = Span(days[0].since, max(requested_window.end, days[-1].until))
    unknown_days = _days_without_figures(days)
    nodes = recent.nodes if recent else read_recent_days.nodes_of(context, set())[0]
    is_late = window.start > requested_window.start
    facts = ReportFacts(
        window=window,
        days=days,
        node_hours=_node_hours(nodes, days, context.now),
        node_types=_node_types(nodes, days, context),
        unknown_days=unknown_days,
        cap_micros_per_hour=context.policy.burst.fleet_cap_micros_per_hour,
        notes=(*(recent.notes if recent else ()), *_report_notes(unknown_days, recorded_days, window, is_late=is_late)),
    )
    report = _without_hidden_spending(fleet_report(facts), reader)
    has_all_days = not unknown_days and not is_late
    return report.to_json() | {
        "isComplete": has_all_days and (recent is None or recent.is_complete),
        "isNodeTimeComplete": has_all_days and (recent is None or recent.is_node_time_complete),
    }


def _without_hidden_spending(report: FleetReport, reader: Reader) -> FleetReport:
    """Return a report as the caller may see it."""
    teams = (
        team if reader.may_see_spend_of(team.team) else team.replace(usd_micros=None, rent_usd_micros=None)
        for team in report.teams
    )
    rents = (rent for rent in report.rent.teams if reader.may_see_spend_of(rent.name))
    return report.replace(teams=tuple(teams), rent=report.rent.replace(teams=tuple(rents)))


def _node_types(nodes: Iterable[NodeLifetime], days: Iterable[DayFigures], context: Context) -> dict[str, NodeType]:
    """Return the instance types of nodes and of demand, with their prices now."""
    present_nodes = [lifetime.node for lifetime in nodes if not lifetime.is_rented and lifetime.ended_at is None]
    committed_counts = Counter(ec2_type(node.instance_type) for node in present_nodes)
    pools = {(node.instance_type, node.pool) for node in present_nodes}
    demands = [pool for day in days if day.demand for pool in day.demand.pools]
    pools |= {(pool.instance_type, pool.pool) for pool in demands if not pool.is_rented}
    economy, rented_pools = context.policy.economy, context.policy.burst.pools
    types = {}
    for name in {*committed_counts, *(ec2_type(pool.instance_type) for pool in demands)}:
        known_type = economy.types.find(name)
        gpus = known_type.accelerators if known_type else 0
        pools_of_type = sorted(pool for pool in pools if ec2_type(pool[0]) == name)
        types[name] = NodeType(
            gpus_per_node=gpus,
            committed_nodes=committed_counts[name],
            reserved=_site_price(pools_of_type, gpus, context),
            on_demand=_on_demand_price(name, rented_pools, gpus, context.now),
        )
    return types


def _site_price(pools: Iterable[tuple[str, str]], gpus: int, context: Context) -> NodeHourPrice | None:
    """Return what the site pays for a committed node: the highest price of the pools. A list price is no commitment."""
    prices = []
    for instance_type, pool in pools:
        price = context.policy.economy.price_of(instance_type, context.now, pool)
        if price and price != list_accelerator_price(instance_type, context.now):
            prices.append(NodeHourPrice(usd_per_hour=price.usd * gpus, origin=price.origin))
    return max(prices, key=lambda price: price.usd_per_hour, default=None)


def _on_demand_price(name: str, pools: Iterable[RentedPool], gpus: int, now: datetime) -> NodeHourPrice | None:
    """Return the lowest price at which the policy rents this type on demand; without such a pool, the list price."""
    pool_prices = [
        NodeHourPrice(usd_per_hour=pool.micros_per_node_hour / MICROS_PER_USD, origin=f"rent of {pool.name}")
        for pool in pools
        if ec2_type(pool.instance_type) == name and pool.market.is_rented_firmly
    ]
    list_price = list_accelerator_price(name, now)
    if not pool_prices and list_price and gpus:
        return NodeHourPrice(usd_per_hour=list_price.usd * gpus, origin=list_price.origin)
    return min(pool_prices, key=lambda price: price.usd_per_hour, default=None)


def _stored_days(span: Span, context: Context) -> dict[date, DayRow]:
    days = [day_of(day.start) for day in day_spans(span)]
    stored_rows = get_all(context.ledger, map(day_rows.day_key, days))
    return {day_of(row.figures.since): row for _, row in rows.readable_rows(stored_rows.values(), DayRow)}


def _recent_from(stored_days: Mapping[date, DayRow], requested_window: Span, now: datetime) -> datetime:
    """Return when the recent days begin: with the first day without a settled row."""
    oldest_refolded = now - REFOLDED
    if (
        requested_window.start >= oldest_refolded
        and requested_window.end - requested_window.start < _EXACT_BORDERS_UNTIL
    ):
        return requested_window.start
    for day in day_spans(requested_window):
        row = stored_days.get(day_of(day.start))
        if day.start >= oldest_refolded and not (row and row.is_settled):
            return day.start
    return requested_window.end


def _days_without_figures(days: Sequence[DayFigures]) -> list[date]:
    """Return the days without figures between the first and the last one."""
    return [
        day_of(missing_span.start)
        for earlier_day, later_day in pairwise(days)
        if earlier_day.until < later_day.since
        for missing_span in day_spans(Span(earlier_day.until, later_day.since))
    ]


def _report_notes(
    unknown_days: Sequence[date], recorded_days: Sequence[DayFigures], window: Span, *, is_late: bool
) -> Iterator[str]:
    if recorded_days:
        last_day = day_of(recorded_days[-1].since)
        yield f"Days until {last_day} are whole UTC days, with their stored figures."
    if is_late:
        yield f"Records before {rfc3339(window.start)} are incomplete, so the window begins later than requested."
    if unknown_days:
        days = f"{unknown_days[0]} to {unknown_days[-1]}" if len(unknown_days) > 1 else str(unknown_days[0])
        count_text = count_of(len(unknown_days), "day of the window has", "days of the window have")
        yield f"{count_text} no record ({days}), so no figure includes this time."


def _node_hours(nodes: Iterable[NodeLifetime], days: Sequence[DayFigures], now: datetime) -> dict[str, float]:
    """Return by instance id the hours in days with figures, for nodes that still have a record."""
    spans = _join_days(days)
    hours = {}
    for lifetime in nodes:
        counted_spans = [lifetime.part_within(span, now) for span in spans]
        total = sum(max(0, microseconds(counted_span.end - counted_span.start)) for counted_span in counted_spans)
        hours[lifetime.node.life.instance_id] = total / MICROSECONDS_PER_HOUR
    return hours


def _join_days(days: Iterable[DayFigures]) -> list[Span]:
    """Return the time that days cover, as few spans."""
    spans: list[Span] = []
    for day in days:
        if spans and spans[-1].end == day.since:
            spans[-1] = Span(spans[-1].start, day.until)
        else:
            spans.append(Span(day.since, day.until))
    return spans
