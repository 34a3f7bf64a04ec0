"""The overview for the API: one small document from a constant number of reads, whatever the fleet's size.

The sweep counts nodes and jobs once a minute and stores the counts in one row. A request reads that row and the small
current lists: open incidents with their jobs, holds, cordons of people and heartbeats.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from evenkeel.domain.costs.showback import budget_forecasts, runs_out_early
from evenkeel.domain.economics import money
from evenkeel.domain.health.incidents import AffectedJob, Incident
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.quotas.spending import begin_of, budget_used
from evenkeel.domain.recovery.approval import awaits_approval
from evenkeel.domain.renting.rental_book import RentalBook
from evenkeel.domain.sources import SourceAge
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Table, get_all
from evenkeel.services.context import Context
from evenkeel.services.queries import read_events
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.fleet import read_nodes, read_sources, read_status
from evenkeel.services.queries.fleet.read_status import Health, UnreadableRows
from evenkeel.services.queries.incidents import incidents_by_need, read_incidents
from evenkeel.services.queries.incidents.incidents_by_need import IncidentsByNeed
from evenkeel.services.recovery import hold_automation
from evenkeel.services.rentals import rental_store
from evenkeel.services.storage import charge_rows, fleet_counts, team_setup
from evenkeel.services.tables import fleet_rows, incident_rows, job_rows, rows

Json = dict[str, Any]

MAX_SHOWN = 50
"""Open incidents of one state that are read and shown. Beyond it, the counts are marked as lower bounds."""
_MAX_JOBS_SHOWN = 2
"""Interrupted jobs of each incident that are read and shown. `affectedJobs` counts all."""
_MAX_JOBS_COUNTED = 16
"""Jobs on the node of an incident whose recovery has not searched them yet."""
_MAX_JUST_FAILED = 20
"""Newest incidents of each failed outcome that are searched for those that failed after the last sweep."""
_MAX_SERVING = 20
_MAX_POOLS = 200
_MAX_CLASSES = 100
MAX_BUDGETS = 1000
"""Budgets that the row keeps: about 250 bytes each, in an item of at most 400 kB."""
_UNREADABLE_PARTS = ("unreadableCharges", "unreadableRentals")
_STORED_PARTS = ("nodes", "gpus", "cpu", "memoryGib", "jobs", "teams", "unhealthy", *_UNREADABLE_PARTS)
"""Parts of the status that the row keeps."""
UNDATED = ("asOf", "sourceAges", "heartbeats")
"""Fields that change with time alone. `sources` and `silent` change with the states that follow from them."""
STALE_AFTER_SECONDS = 600
"""The sweep writes the counts each minute. Older counts are marked as stale."""


def counts_document(sources: Sequence[SourceAge], context: Context, earlier_counts: Json | None = None) -> Json:
    """Return the document that the sweep stores: the counts of the status, rent, and the use of each budget.

    Args:
        sources: The ages of the sources.
        context: The context.
        earlier_counts: The document that is stored now. A budget keeps the time of its warning until its period ends.
    """
    status = read_status.show_status(sources, context)
    counts = {name: status[name] for name in _STORED_PARTS}
    pools, classes = counts["nodes"]["pools"], counts["jobs"]["classes"]
    book = rental_store.load_readable(context.ledger, set())  # the status counts the unreadable rows
    budgets = _budget_documents(book, context, (earlier_counts or {}).get("budgets", ()))
    items = status["incidents"]["items"]
    return counts | {
        "at": rfc3339(context.now),
        "nodes": counts["nodes"] | {"pools": pools[:_MAX_POOLS], "isCut": len(pools) > _MAX_POOLS},
        "jobs": counts["jobs"] | {"classes": classes[:_MAX_CLASSES], "isCut": len(classes) > _MAX_CLASSES},
        "budgets": most_urgent_budgets(budgets, MAX_BUDGETS),
        "budgetsLeftOut": max(0, len(budgets) - MAX_BUDGETS),
        "rent": {
            "nodes": sum(allocation.nodes for allocation in book.allocations),
            "usdPerHour": round(
                sum(allocation.micros_per_hour for allocation in book.allocations) / money.MICROS_PER_USD, 2
            ),
            "capUsdPerHour": round(context.policy.burst.fleet_cap_micros_per_hour / money.MICROS_PER_USD, 2),
        },
        "serving": [_open_rentals(workload) for workload in status["serving"]][:_MAX_SERVING],
        "leftForPerson": [
            incident["incidentId"] for incident in items if incident["needsYou"] and not incident["pendingApproval"]
        ][:MAX_SHOWN],
        "jobsOnNode": {incident["incidentId"]: incident["affectedJobs"][:_MAX_JOBS_COUNTED] for incident in items},
    }


def _open_rentals(workload: Json) -> Json:
    """Return a Deployment with the rentals that have not ended."""
    return workload | {"rentals": [rental for rental in workload["rentals"] if not rental["endedAt"]]}


def show_overview(sources: Sequence[SourceAge], reader: Reader, context: Context) -> Json:
    """Return the overview. Counts that no sweep has stored yet are null, and old counts are marked as stale.

    The use of budgets is shown to members of their team and to operators.
    """
    ledger = context.ledger
    counts = fleet_counts.load_counts(ledger)
    if counts and "jobsOnNode" not in counts:
        counts = None  # a row of an earlier build: the next sweep replaces it
    open_incidents, is_cut = incidents_by_need.open_incidents(ledger, at_most=MAX_SHOWN)
    left_incidents = _left_for_person(counts, context)
    failed_ids = {
        incident.incident_id for incident in left_incidents
    }  # it may have failed since the open incidents were read
    open_incidents = [incident for incident in open_incidents if incident.incident_id not in failed_ids]
    awaiting_approval = [incident for incident in open_incidents if awaits_approval(incident)]
    not_awaiting = [incident for incident in open_incidents if not awaits_approval(incident)]
    incidents = IncidentsByNeed([*awaiting_approval, *left_incidents], not_awaiting, awaiting_approval, is_cut)
    automation = hold_automation.show_automation(context)
    beats = read_status.load_heartbeats(context)
    health, reasons = read_status.judge_health(
        incidents,
        automation,
        beats,
        fleet_counts.node_states(counts) if counts else {},
        sources,
        context.policy_in_force,
        UnreadableRows(*((counts or {}).get(name, 0) for name in _UNREADABLE_PARTS)),  # earlier builds lack some
    )
    age = (context.now - datetime.fromisoformat(counts["at"])).total_seconds() if counts else None
    is_stale = age is None or age > STALE_AFTER_SECONDS
    if is_stale and health is Health.OK:
        health = Health.DEGRADED
    if counts is None:
        reasons = [*reasons, "no sweep has counted the fleet yet"]
    elif is_stale and not read_status.is_off(sources):
        reasons = [*reasons, f"nodes and jobs were last counted at {counts['at']}"]
    unhealthy = counts["unhealthy"] if counts else []
    nodes_changed = ledger.get(fleet_rows.nodes_changed_key())
    return {
        "asOf": rfc3339(context.now),
        "fleet": context.site.fleet,
        "health": health,
        "reasons": reasons,
        "stale": read_sources.source_warnings(sources),
        "isRunning": not read_status.is_off(sources),
        "sources": Counter(source.state for source in sources),
        "sourceAges": [{"name": age.source.name, **age.to_json()} for age in sources],
        "automation": automation,
        "heartbeats": beats,
        "silent": [beat["function"] for beat in beats if beat["isSilent"]],
        "outages": incidents_by_need.shared_cause_documents(not_awaiting),
        "changedAt": read_events.newest_recorded_at(context),
        "nodesChangedAt": nodes_changed.doc["at"] if nodes_changed else None,
        "next": incidents_by_need.next_command(incidents, [node["incidentId"] for node in unhealthy]),
        "incidents": {
            "open": len(open_incidents),
            "working": len(not_awaiting),
            "needYou": len(incidents.needing),
            "isLowerBound": is_cut,
            "items": _shown_incidents(incidents, counts["jobsOnNode"] if counts else {}, context),
        },
        "cordons": [
            {"instanceId": instance_id, **read_nodes.cordon_document(cordon)}
            for instance_id, cordon in read_nodes.newest_cordons(ledger)[:MAX_SHOWN]
        ],
        "counts": _public_counts(counts, reader) | {"isStale": is_stale} if counts else None,
    }


def _public_counts(counts: Json, reader: Reader) -> Json:
    shown = {name: value for name, value in counts.items() if name not in ("leftForPerson", "jobsOnNode")}
    return shown | {"budgets": [budget for budget in counts["budgets"] if reader.may_see_spend_of(budget["team"])]}


def _left_for_person(counts: Json | None, context: Context) -> list[Incident]:
    """Return the failed incidents that need a person: those that the sweep found, and those that failed since then."""
    since = datetime.fromisoformat(counts["at"]) if counts else context.now - read_incidents.FRESH_FOR
    failed_by_id: dict[str, Incident] = {}
    for state in read_incidents.NEEDS_PERSON_STATES:
        page = context.ledger.by_state(Table.INCIDENTS, f"INC#{state}", limit=_MAX_JUST_FAILED, newest_first=True)
        failed_by_id |= {
            incident.incident_id: incident
            for _, incident in rows.readable_rows(page.rows, Incident)
            if (incident.stages.settled_at or incident.opened_at) >= since
        }
    known_ids = counts["leftForPerson"] if counts else []
    stored_rows = get_all(context.ledger, map(incident_rows.incident_key, known_ids)).values()
    failed_by_id |= {
        incident.incident_id: incident
        for _, incident in rows.readable_rows(stored_rows, Incident)
        if incident.state in read_incidents.NEEDS_PERSON_STATES
    }
    return sorted(failed_by_id.values(), key=lambda incident: incident.incident_id, reverse=True)


def _shown_incidents(incidents: IncidentsByNeed, jobs_on_node: Json, context: Context) -> list[Json]:
    """Return the incidents that are shown, with the progress of their node and of their first jobs."""
    shown_incidents = [*incidents.needing, *incidents.working][:MAX_SHOWN]
    shown_incidents = [
        incident
        if incident.affected_jobs
        else incident.replace(
            affected_jobs=tuple(map(AffectedJob.model_validate, jobs_on_node.get(incident.incident_id, ())))
        )
        for incident in shown_incidents
    ]
    keys = [
        job_rows.job_key(affected_job.job_id)
        for incident in shown_incidents
        for affected_job in incident.affected_jobs[:_MAX_JOBS_SHOWN]
    ]
    jobs = {job.job_id: job for _, job in rows.readable_rows(get_all(context.ledger, keys).values(), Job)}
    ids_needing_person = {incident.incident_id for incident in incidents.needing}
    return [
        _incident_brief(incident, context)
        | {
            "needsYou": incident.incident_id in ids_needing_person,
            "jobLanes": _job_lanes(incident, jobs, is_searched=incident.incident_id in jobs_on_node),
        }
        for incident in shown_incidents
    ]


def _job_lanes(incident: Incident, jobs: dict[str, Job], *, is_searched: bool) -> list[Json] | None:
    """Return the progress of the first interrupted jobs; None if nothing has searched the jobs of the node yet."""
    if not (incident.affected_jobs or is_searched or read_incidents.has_found_jobs(incident)):
        return None
    shown = incident.replace(affected_jobs=incident.affected_jobs[:_MAX_JOBS_SHOWN])
    return read_incidents.job_lanes(shown, jobs)


def _incident_brief(incident: Incident, context: Context) -> Json:
    return {
        "incidentId": incident.incident_id,
        "state": incident.state,
        "severity": incident.severity,
        "fault": read_incidents.shown_fault(incident),
        "instanceId": incident.life.instance_id,
        "nodeName": incident.node_name or None,
        "pool": incident.pool,
        "nodeLane": read_incidents.node_progress(incident, context.policy.repair),
        "affectedJobs": len(incident.affected_jobs),
        "outcome": incident.outcome,
        "ifUnanswered": read_incidents.if_unanswered(incident, context.now),
        "acknowledgement": incident.acknowledgement.to_json() if incident.acknowledgement else None,
        "openedAt": rfc3339(incident.opened_at),
        "isDrill": incident.is_drill,
    }


def budget_key(budget: Json) -> tuple[str, str, str]:
    """Return the identity of a limit of a budget in one period."""
    return budget["team"], budget["period"], budget["quantity"]


def most_urgent_budgets(budgets: Sequence[Json], count: int) -> list[Json]:
    """Return as many budgets as the row keeps, by team: first those with a warning, then those with the highest use.

    The sweep never warns of a budget that the row does not keep, so the row keeps every budget that is nearly gone.
    """
    ranked_indexes = sorted(
        range(len(budgets)),
        key=lambda index: (
            budgets[index]["warnedAt"] is None,
            -budgets[index]["used"] / budgets[index]["limit"] if budgets[index]["limit"] else 0.0,
            index,
        ),
    )
    return [budgets[index] for index in sorted(ranked_indexes[:count])]


def _budget_documents(book: RentalBook, context: Context, earlier_budgets: Iterable[Json]) -> list[Json]:
    """Return the use and the forecast of each budget in its present period, by team."""
    setup = team_setup.load_setup(context.ledger).setup
    if not any(team.budgets for team in setup.teams):
        return []
    now = context.now
    # A changed limit is warned of again.
    warned_at_by_budget = {(budget_key(budget), budget["limit"]): budget.get("warnedAt") for budget in earlier_budgets}
    spent = rental_store.spent_by_period(setup, context, book.rentals)
    live_charges = charge_rows.readable_charges(context.ledger).live
    budgets = []
    for team in setup.teams:
        charges = [charge for charge in live_charges if charge.team == team.name]
        of_team = {period: amount for (name, period), amount in spent.items() if name == team.name}
        for budget in team.budgets:
            spending = budget_used(budget, charges, of_team, context.policy.economy, now)
            for forecast in budget_forecasts(team.name, budget, spending, now):
                document: Json = {
                    "team": team.name,
                    "period": forecast.key,
                    "quantity": forecast.quantity,
                    "used": round(forecast.used, 2),
                    "limit": forecast.limit,
                    "expectedAtEnd": None if forecast.expected_at_end is None else round(forecast.expected_at_end, 2),
                    "expectedGoneAt": rfc3339(forecast.reached_at) if forecast.reached_at else None,
                }
                warned_at = warned_at_by_budget.get((budget_key(document), forecast.limit))
                if warned_at is None and runs_out_early(forecast, begin_of(budget.period, now), now):
                    warned_at = rfc3339(now)
                budgets.append(document | {"warnedAt": warned_at})
    return budgets
