"""The status for the API: health with its reasons, pools, GPUs, jobs and teams, counted from all nodes and jobs."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from evenkeel.domain.nodes import FleetNode, NodeState
from evenkeel.domain.plurals import count_of
from evenkeel.domain.policy import PolicyInForce
from evenkeel.domain.resources import NONE, Resources
from evenkeel.domain.sources import Source, SourceAge, SourceKind, SourceState, source_problems
from evenkeel.domain.values import rfc3339
from evenkeel.services.context import Context
from evenkeel.services.incidents import unhealthy_nodes
from evenkeel.services.queries.fleet import read_sources
from evenkeel.services.queries.fleet.read_nodes import (
    cordon_documents,
    left_unhealthy,
    node_states,
    present_nodes,
    why_unhealthy,
)
from evenkeel.services.queries.incidents.incidents_by_need import (
    MAX_SHOWN,
    IncidentsByNeed,
    group_by_need,
    incident_documents,
    next_command,
    shared_cause_documents,
)
from evenkeel.services.queries.jobs import read_serving, read_teams
from evenkeel.services.queries.jobs.job_counts import count_jobs_by_state, job_counts_document, waits_by_team
from evenkeel.services.recovery import hold_automation
from evenkeel.services.rentals import rental_store
from evenkeel.services.tables import fleet_rows

Json = dict[str, Any]

HEARTBEATS = ("schedule_jobs", "sweep_fleet", "watch_cluster")
SILENT_AFTER = timedelta(minutes=10)
"""A scheduled function without a run for this long is an alarm."""
_MAX_TEAMS = 100


class Health(StrEnum):
    """The state of the fleet."""

    OK = "OK"
    DEGRADED = "DEGRADED"
    """Incidents are open, or automation is on hold."""
    CRITICAL = "CRITICAL"
    """A person must act, or the facts are stale."""
    NOT_RUNNING = "NOT_RUNNING"
    """The schedules are off. Events still open recoveries, and submissions still start scheduling cycles."""


class UnreadableRows(NamedTuple):
    """Rows that this release cannot read, and without which no scheduling cycle decides."""

    charges: int
    rentals: int
    """Open rentals."""


def show_status(sources: Sequence[SourceAge], context: Context) -> Json:
    """Return the overview: problems with their handling, and the state of the fleet and the jobs."""
    nodes, has_more_nodes = present_nodes(context.ledger)
    job_counts = count_jobs_by_state(context.ledger)
    incidents = group_by_need(nodes, job_counts, context)
    automation = hold_automation.show_automation(context)
    beats = load_heartbeats(context)
    recorded_unhealthy = unhealthy_nodes.load_unhealthy_nodes(context.ledger)
    unhealthy = left_unhealthy(recorded_unhealthy)
    states = node_states(nodes, incidents.in_work, recorded_unhealthy)
    teams = read_teams.list_teams(context)
    unreadable_rentals = rental_store.count_unreadable(context.ledger)
    health, reasons = judge_health(
        incidents,
        automation,
        beats,
        Counter(states.values()),
        sources,
        context.policy_in_force,
        UnreadableRows(charges=teams["unreadableCharges"], rentals=unreadable_rentals),
    )
    shared_causes = shared_cause_documents(incidents.working)
    waits = waits_by_team(job_counts, context.now)
    reasons = [*(outage["headline"] for outage in shared_causes), *reasons]
    return {
        "asOf": rfc3339(context.now),
        "fleet": context.site.fleet,
        "health": health,
        "reasons": reasons,
        "automation": automation,
        "incidents": {
            "working": len(incidents.working),
            "needYou": len(incidents.needing),
            "isLowerBound": incidents.is_lower_bound,
            "items": incident_documents(incidents, context),
        },
        "outages": shared_causes,
        "next": next_command(incidents, [node.incident_id for node in unhealthy.values()]),
        "nodes": _pool_documents(nodes, states, sources, context.policy.burst.rented_pools)
        | {"isLowerBound": has_more_nodes},
        "unhealthy": [
            {"instanceId": node.life.instance_id, "name": node.node_name or None, "pool": node.pool}
            | {"marks": list(node.marks), **why_unhealthy(unhealthy.get(node.life.key))}
            for node in nodes
            if states[node.life.key] is NodeState.UNHEALTHY
        ][:MAX_SHOWN],
        "gpus": _gpu_document(nodes, states, sources),
        "cpu": _stated_amounts(nodes, states, lambda resources: resources.cpu),
        "memoryGib": _stated_amounts(nodes, states, lambda resources: resources.memory_gib),
        "cordons": cordon_documents(context.ledger, nodes),
        "jobs": job_counts_document(job_counts, context) | _staleness_of_all(sources),
        "teams": [
            {name: value for name, value in team.items() if name != "resources"}
            | {"p90WaitSeconds": waits.get(team["team"])}
            for team in teams["items"][:_MAX_TEAMS]
        ],
        "unreadableCharges": teams["unreadableCharges"],
        "unreadableRentals": unreadable_rentals,
        "serving": read_serving.list_serving(context.ledger),
        "heartbeats": beats,
        "isRunning": not is_off(sources),
        "sources": [{"name": age.source.name, **age.to_json()} for age in sources],
    }


def _pool_documents(
    nodes: Sequence[FleetNode],
    states: Mapping[str, NodeState],
    sources: Iterable[SourceAge],
    rented_pools: Collection[tuple[str, str]],
) -> Json:
    pools: dict[tuple[str, str], list[FleetNode]] = defaultdict(list)
    for node in nodes:
        pools[node.life.cluster, node.pool].append(node)
    items = []
    for (cluster, pool), members in sorted(pools.items()):
        counts = Counter(states[node.life.key] for node in members)
        items.append(
            {
                "cluster": cluster,
                "pool": pool,
                "kind": "burst" if (cluster, pool) in rented_pools else "committed",
                "total": len(members),
                "states": {state: counts[state] for state in NodeState if counts[state]},
                **_staleness_of_cluster(cluster, sources),
            }
        )
    return {"total": len(nodes) if nodes or _has_seen_nodes(sources) else None, "pools": items}


def _staleness_of_cluster(cluster: str, sources: Iterable[SourceAge]) -> Json:
    """Return whether the facts about a cluster are stale, and since when."""
    ages = [age for age in sources if age.source == Source(kind=SourceKind.KUBERNETES_LIST, target=cluster)]
    is_stale = not all(age.is_trusted for age in ages)
    seen_at = min((age.seen_at for age in ages if age.seen_at), default=None) if is_stale else None
    return {"isStale": is_stale, "lastSeenAt": rfc3339(seen_at) if seen_at else None}


def _staleness_of_all(sources: Iterable[SourceAge]) -> Json:
    """Return whether the facts about any cluster are stale, and the oldest answer of those."""
    ages = [age for age in sources if age.source.kind is SourceKind.KUBERNETES_LIST and not age.is_trusted]
    answers = [age.seen_at for age in ages if age.seen_at]
    seen_at = min(answers) if answers and len(answers) == len(ages) else None
    return {"isStale": bool(ages), "lastSeenAt": rfc3339(seen_at) if seen_at else None}


def _has_seen_nodes(sources: Iterable[SourceAge]) -> bool:
    """Whether every cluster was listed once. Before that, the number of nodes is unknown, and not 0."""
    list_times = [age.seen_at for age in sources if age.source.kind is SourceKind.KUBERNETES_LIST]
    return bool(list_times) and all(list_times)


def _gpu_document(nodes: Sequence[FleetNode], states: Mapping[str, NodeState], sources: Iterable[SourceAge]) -> Json:
    if not nodes and not _has_seen_nodes(sources):
        return {"total": None, "inService": None, "inUse": None, "free": None, **_staleness_of_all(sources)}
    serving = [node for node in nodes if states[node.life.key] is NodeState.IN_SERVICE]
    return {
        "total": sum(node.accelerators for node in nodes),
        "inService": sum(node.accelerators for node in serving),
        "inUse": sum(node.accelerators_in_use for node in nodes),
        "free": sum(max(0, node.accelerators - node.accelerators_in_use) for node in serving),
        **_staleness_of_all(sources),
    }


def _stated_amounts(
    nodes: Sequence[FleetNode], states: Mapping[str, NodeState], amount: Callable[[Resources], float | None]
) -> Json:
    """Return the sums of an amount over the nodes that state it; None if no node does.

    `unknownNodes` counts the nodes that do not state it, for example nodes that have not joined their cluster.
    """
    nodes_with_amount = [node for node in nodes if amount(node.allocatable) is not None]
    unknown_field = {"unknownNodes": len(nodes) - len(nodes_with_amount)}
    if not nodes_with_amount:
        return {"total": None, "inUse": None, "free": None, **unknown_field}
    serving = [node for node in nodes_with_amount if states[node.life.key] is NodeState.IN_SERVICE]
    return {
        "total": amount(sum((node.allocatable for node in nodes_with_amount), NONE)),
        "inUse": amount(sum((node.in_use for node in nodes_with_amount), NONE)) or 0,
        "free": amount(sum((node.allocatable.minus(node.in_use) for node in serving), NONE)) or 0,
        **unknown_field,
    }


def load_heartbeats(context: Context) -> list[Json]:
    """Return the last run of each scheduled function."""
    beats: list[Json] = []
    for function in HEARTBEATS:
        row = context.ledger.get(fleet_rows.heartbeat_key(function))
        at = row.doc.get("at") if row else None
        silent = at is not None and context.now - datetime.fromisoformat(at) > SILENT_AFTER
        beats.append({"function": function, "at": at, "isSilent": silent})
    return beats


def is_off(sources: Iterable[SourceAge]) -> bool:
    """Whether the stack's schedules are off."""
    return any(age.state is SourceState.OFF for age in sources)


def judge_health(
    incidents: IncidentsByNeed,
    automation: Json,
    beats: Sequence[Json],
    states: Mapping[str, int],
    sources: Sequence[SourceAge],
    policy_in_force: PolicyInForce,
    unreadable_rows: UnreadableRows,
) -> tuple[Health, list[str]]:
    """Return the health of the fleet, and the reasons, the worst first.

    Args:
        incidents: The incidents that are open or need a person.
        automation: The holds.
        beats: The heartbeats.
        states: Number of nodes by state. A missing state has none.
        sources: The age of every source of facts.
        policy_in_force: The policy in force, if any, and why the site's last change is not in force.
        unreadable_rows: Rows that stop scheduling cycles.
    """
    schedules_are_off = is_off(sources)
    stale_sources, other_source_problems = source_problems(sources)
    silent = [] if schedules_are_off else [beat["function"] for beat in beats if beat["isSilent"]]
    critical = [*_policy_problems(policy_in_force)]
    if incidents.needing:
        critical.append(incidents.count_text(incidents.needing, ("needs a person", "need a person")))
    if silent:
        critical.append(f"no heartbeat from {', '.join(silent)} for 10 minutes")
    if unreadable_rows.charges:
        charges = count_of(unreadable_rows.charges, "charge")
        critical.append(f"{charges} cannot be read: no job starts, and the use of teams is a lower bound")
    if unreadable_rows.rentals:
        rentals = count_of(unreadable_rows.rentals, "open rental")
        critical.append(f"{rentals} cannot be read: scheduling cycles fail, and rent is a lower bound")
    critical += stale_sources
    never_ran = [] if schedules_are_off else [beat["function"] for beat in beats if beat["at"] is None]
    problems = list(other_source_problems)
    if never_ran:
        problems.append(f"no heartbeat yet from {', '.join(never_ran)}")
    if incidents.working:
        problems.append(incidents.count_text(incidents.working, ("working", "working")))
    if states.get(NodeState.NOT_READY):
        problems.append(f"{count_of(states[NodeState.NOT_READY], 'node')} not ready, without an incident")
    if states.get(NodeState.UNHEALTHY):
        problems.append(f"{count_of(states[NodeState.UNHEALTHY], 'node')} unhealthy, without a running recovery")
    if automation["isHeld"]:
        problems.append("automation is held")
    if schedules_are_off:
        return Health.NOT_RUNNING, [read_sources.NOT_RUNNING, *critical, *problems]
    health = Health.CRITICAL if critical else Health.DEGRADED if problems else Health.OK
    return health, critical + problems


def _policy_problems(policy_in_force: PolicyInForce) -> Iterator[str]:
    """Yield why the last policy change is not in force, if it is not."""
    if policy_in_force.number is None:
        yield f"no policy is in force, so Evenkeel decides nothing: {policy_in_force.refused}"
    elif policy_in_force.refused:
        instead = f"change {policy_in_force.number}" if policy_in_force.number else "the shipped policy"
        yield f"{instead} of the policy is in force, not the last change: {policy_in_force.refused}"
