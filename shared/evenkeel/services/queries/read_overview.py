"""The overview for the API: one small document from a constant number of reads, whatever the fleet's size.

The sweep counts nodes and jobs once a minute and stores the counts in one row. A request reads that row and the small
current lists: open incidents, holds and heartbeats.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from evenkeel.domain.economics import money
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.quotas.spending import Spending, budget_used
from evenkeel.domain.recovery.approval import pending_approval
from evenkeel.domain.renting.book import RentalBook
from evenkeel.domain.sources import SourceAge
from evenkeel.domain.values import rfc3339
from evenkeel.services.context import Context
from evenkeel.services.queries import read_events, read_fleet, read_incidents, read_sources
from evenkeel.services.queries.read_fleet import Health, IncidentsByNeed
from evenkeel.services.recovery import hold_automation
from evenkeel.services.rentals import rentals
from evenkeel.services.storage import fleet_counts, read_charges, team_setup

Json = dict[str, Any]

MAX_SHOWN = 50
"""Open incidents of one state that are read and shown. Beyond it, the counts are marked as lower bounds."""
_MAX_POOLS = 200
_MAX_CLASSES = 100
_MAX_BUDGETS = 300
_COUNTED = ("nodes", "gpus", "cpu", "memoryGib", "jobs", "teams", "unhealthy", "cordons")
"""Parts of the status that the row keeps."""
STALE_AFTER_SECONDS = 600
"""The sweep writes the counts each minute. Older counts are marked as stale."""


def count(sources: Sequence[SourceAge], context: Context) -> Json:
    """Return the document that the sweep stores: the counts of the status, rent, and the use of each budget."""
    status = read_fleet.status(sources, context)
    counts = {name: status[name] for name in _COUNTED}
    pools, classes = counts["nodes"]["pools"], counts["jobs"]["classes"]
    book = rentals.load(context.ledger)
    return counts | {
        "at": rfc3339(context.now),
        "nodes": counts["nodes"] | {"pools": pools[:_MAX_POOLS], "isCut": len(pools) > _MAX_POOLS},
        "jobs": counts["jobs"] | {"classes": classes[:_MAX_CLASSES], "isCut": len(classes) > _MAX_CLASSES},
        "budgets": _budgets(book, context)[:_MAX_BUDGETS],
        "rent": {
            "nodes": sum(allocation.nodes for allocation in book.allocations),
            "usdPerHour": round(
                sum(allocation.micros_per_hour for allocation in book.allocations) / money.MICROS_PER_USD, 2
            ),
            "capUsdPerHour": round(context.policy.burst.fleet_cap_micros_per_hour / money.MICROS_PER_USD, 2),
        },
        "leftForPerson": [
            {
                "incidentId": incident["incidentId"],
                "state": incident["state"],
                "fault": incident["fault"],
                "instanceId": incident["node"]["instanceId"],
                "outcome": incident["outcome"],
            }
            for incident in status["incidents"]["items"]
            if incident["needsYou"] and not incident["pendingApproval"]
        ][:MAX_SHOWN],
    }


def show(sources: Sequence[SourceAge], context: Context) -> Json:
    """Return the overview. Counts that no sweep has stored yet are null, and old counts are marked as stale."""
    counts = fleet_counts.load(context.ledger)
    listed, is_cut = read_fleet.open_incidents(context.ledger, at_most=MAX_SHOWN)
    asking = [incident for incident in listed if pending_approval(incident)]
    working = [incident for incident in listed if not pending_approval(incident)]
    left_for_person = counts["leftForPerson"] if counts else []
    automation = hold_automation.show(context)
    beats = read_fleet.load_heartbeats(context)
    states = (fleet_counts.of_nodes(context.ledger) or {"byState": {}})["byState"]
    needing: list[Any] = [*asking, *left_for_person]
    health, reasons = read_fleet.judge(
        IncidentsByNeed(needing, working, asking, is_cut), automation, beats, states, sources
    )
    if counts is None and health is Health.OK:
        health = Health.DEGRADED
    age = (context.now - datetime.fromisoformat(counts["at"])).total_seconds() if counts else None
    return {
        "asOf": rfc3339(context.now),
        "fleet": context.site.fleet,
        "health": health,
        "reasons": [*reasons, *([] if counts else ["no sweep has counted the fleet yet"])],
        "stale": read_sources.warnings(sources),
        "sources": Counter(source.state for source in sources),
        "automation": automation,
        "silent": [beat["function"] for beat in beats if beat["isSilent"]],
        "outages": read_fleet.outages(working),
        "changedAt": read_events.newest(context),
        "incidents": {
            "open": len(listed),
            "working": len(working),
            "needYou": len(needing),
            "isLowerBound": is_cut,
            "leftForPerson": left_for_person,
            "items": [_brief(incident, context) for incident in (*asking, *working)][:MAX_SHOWN],
        },
        "counts": _public(counts) | {"isStale": age is None or age > STALE_AFTER_SECONDS} if counts else None,
    }


def _public(counts: Json) -> Json:
    return {name: value for name, value in counts.items() if name != "leftForPerson"}


def _brief(incident: Incident, context: Context) -> Json:
    lane = read_incidents.node_progress(incident, context.policy.repair)
    return {
        "incidentId": incident.incident_id,
        "state": incident.state,
        "severity": incident.severity,
        "fault": read_incidents.shown_fault(incident),
        "instanceId": incident.life.instance_id,
        "nodeName": incident.node_name or None,
        "pool": incident.pool,
        "phase": lane["phase"],
        "since": lane["since"],
        "next": lane["next"],
        "latestAt": lane["latestAt"],
        "needsYou": pending_approval(incident),
        "ifUnanswered": read_incidents.if_unanswered(incident, context.now),
        "acknowledgedBy": incident.acknowledgement.by if incident.acknowledgement else None,
        "affectedJobs": len(incident.affected_jobs),
        "openedAt": rfc3339(incident.opened_at),
        "isDrill": incident.is_drill,
    }


def _budgets(book: RentalBook, context: Context) -> list[Json]:
    """Return the use of each budget in its present period, by team."""
    setup = team_setup.load(context.ledger).setup
    if not any(team.budgets for team in setup.teams):
        return []
    spent = rentals.spent_by_period(setup, context, book.rentals)
    held = read_charges.held(context.ledger)
    budgets = []
    for team in setup.teams:
        charges = [charge for charge in held if charge.team == team.name]
        of_team = {period: amount for (name, period), amount in spent.items() if name == team.name}
        for budget in team.budgets:
            used = budget_used(budget, charges, of_team, context.policy.economy, context.now)
            budgets += [
                {
                    "team": team.name,
                    "period": budget.period.key_at(context.now),
                    "quantity": quantity,
                    "used": amount,
                    "limit": limit,
                }
                for quantity, amount, limit in _amounts(used, budget.gpu_hours, budget.usd)
            ]
    return budgets


def _amounts(used: Spending, gpu_hours: float | None, usd: float | None) -> list[tuple[str, float, float]]:
    both = (("gpuHours", used.accelerator_seconds / 3600, gpu_hours), ("usd", used.usd_micros / 1_000_000, usd))
    return [(name, round(amount, 2), limit) for name, amount, limit in both if limit is not None]
