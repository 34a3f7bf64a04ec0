"""The fleet as people and programs see it: the one-screen overview, and its nodes."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import Any, TypedDict

from evenkeel.domain.health.incidents import OPEN_STATES, Incident
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.scheduling.jobs import JobState
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Ledger, NotFound, Row, Table
from evenkeel.services import hold_automation, paging, read_incidents, read_jobs, read_serving, read_teams, rows

Json = dict[str, Any]

HEARTBEATS = ("schedule_jobs", "sweep_fleet", "watch_cluster")
DEAF_AFTER = timedelta(minutes=10)
"""A scheduled function silent this long is an alarm."""
_MOST_NODES = 5000
_MOST_JOBS = 2000
"""Jobs of one state that the overview counts; past it the count is a lower bound and says so."""
_MOST_INCIDENTS = 50
_MOST_TEAMS = 100


class Health(StrEnum):
    """The fleet in one word."""

    OK = "OK"
    DEGRADED = "DEGRADED"
    """Something is being worked on, or automation is held."""
    CRITICAL = "CRITICAL"
    """A person is needed."""


class NodeState(StrEnum):
    """One machine in one word."""

    IN_SERVICE = "IN_SERVICE"
    STARTING = "STARTING"
    """Not Ready yet, or waits for its first validation."""
    REPAIRING = "REPAIRING"
    """An open incident works on it."""
    BLOCKED = "BLOCKED"
    """An open incident waits: a guardrail bars its next step."""
    QUARANTINED = "QUARANTINED"
    """Cordoned by an incident that is over: it waits for a person."""
    CORDONED = "CORDONED"
    """Cordoned by a person."""
    NOT_READY = "NOT_READY"
    GONE = "GONE"


class _Work(TypedDict):
    rows: Sequence[Row]
    is_lower_bound: bool


def status(
    ledger: Ledger, *, fleet: str, clusters: Iterable[str], mode: str, drills_may_act: bool, now: datetime
) -> Json:
    """Return the overview: what burns, whether it is handled, and what the fleet and the jobs do."""
    nodes = _nodes(ledger)
    working, needing = _incidents(ledger, nodes, now)
    automation = hold_automation.show(ledger, mode=mode, drills_may_act=drills_may_act, now=now)
    beats = _heartbeats(ledger, now)
    health, reasons = _judge(len(working), len(needing), automation, beats, nodes, working)
    return {
        "asOf": rfc3339(now),
        "fleet": fleet,
        "health": health,
        "reasons": reasons,
        "automation": automation,
        "incidents": {
            "working": len(working),
            "needYou": len(needing),
            "items": [_incident(ledger, incident, needs_you=True) for incident in needing]
            + [_incident(ledger, incident, needs_you=False) for incident in working],
        },
        "nodes": _pools(nodes, {incident.life.key for incident in working}),
        "gpus": _gpus(nodes, {incident.life.key for incident in working}),
        "jobs": _jobs(ledger, clusters, now),
        "teams": [
            {name: value for name, value in team.items() if name != "resources"}
            for team in read_teams.list_teams(ledger, now=now)["items"][:_MOST_TEAMS]
        ],
        "serving": read_serving.list_serving(ledger),
        "heartbeats": beats,
    }


def list_nodes(ledger: Ledger, page: paging.Request) -> Json:
    """Return one page of nodes, by pool."""
    answer = paging.newest_first(ledger, Table.FLEET, ["NODE"], page)
    incidents = {incident.life.key: incident for incident in _open_incidents(ledger)}
    nodes = (rows.read(row, FleetNode) for row in answer.rows)
    items = [_node(node, incidents.get(node.life.key)) for node in nodes]
    return {"items": items, "nextPageToken": answer.next_token or None}


def show_node(ledger: Ledger, clusters: Iterable[str], instance_id: str) -> Json:
    """Return one node by its instance id.

    Raises:
        NotFound: the fleet does not know it.
    """
    for cluster in clusters:
        row = ledger.get(rows.node_key(cluster, instance_id))
        if row is not None:
            node = rows.read(row, FleetNode)
            opened = ledger.get(rows.open_key(node.life))
            found = ledger.get(rows.incident_key(str(opened.doc["incidentId"]))) if opened else None
            return _node(node, rows.read(found, Incident) if found else None)
    raise NotFound(f"There is no node {instance_id}.")


def node_state(node: FleetNode, *, is_in_repair: bool) -> NodeState:
    """Judge one machine by what was last seen of it."""
    if node.is_gone:
        return NodeState.GONE
    if is_in_repair:
        return NodeState.REPAIRING
    if node.is_cordoned:
        return NodeState.QUARANTINED if node.incident_id else NodeState.CORDONED
    if node.is_ready:
        return NodeState.STARTING if node.is_awaiting_validation else NodeState.IN_SERVICE
    return NodeState.NOT_READY if node.node_name and node.not_ready_since else NodeState.STARTING


def _node(node: FleetNode, incident: Incident | None) -> Json:
    is_open = incident is not None and not incident.state.is_settled
    block = incident.block if incident and is_open else None
    state = NodeState.BLOCKED if block else node_state(node, is_in_repair=is_open)
    return {
        "instanceId": node.life.instance_id,
        "name": node.node_name or None,
        "cluster": node.life.cluster,
        "pool": node.pool,
        "instanceType": node.instance_type,
        "zone": node.zone,
        "slot": node.slot,
        "state": state,
        "incidentId": incident.incident_id if incident and is_open else node.incident_id,
        "block": block.to_json() if block else None,
        "providerStatus": node.provider_status or None,
        "isReady": node.is_ready,
        "isCordoned": node.is_cordoned,
        "isLemon": node.is_lemon,
        "isAwaitingValidation": node.is_awaiting_validation,
        "gpus": node.accelerators,
        "gpusInUse": node.accelerators_in_use,
        "others": list(node.others),
        "launchedAt": rfc3339(node.life.launched_at),
        "notReadySince": rfc3339(node.not_ready_since) if node.not_ready_since else None,
        "changedAt": rfc3339(node.changed_at),
    }


def _nodes(ledger: Ledger) -> tuple[FleetNode, ...]:
    found, _ = paging.everything(ledger, Table.FLEET, "NODE", at_most=_MOST_NODES)
    nodes = (rows.read(row, FleetNode) for row in found)
    return tuple(node for node in nodes if not node.is_gone)


def _open_incidents(ledger: Ledger) -> list[Incident]:
    pages = (
        ledger.by_state(Table.INCIDENTS, f"INC#{state}", limit=_MOST_INCIDENTS, newest_first=True)
        for state in OPEN_STATES
    )
    return [rows.read(row, Incident) for row in chain.from_iterable(page.rows for page in pages)]


def _incidents(ledger: Ledger, nodes: Iterable[FleetNode], now: datetime) -> tuple[list[Incident], list[Incident]]:
    holders = {node.slot: node for node in nodes}
    needing: list[Incident] = []
    for state in read_incidents.ASKS_FOR_PERSON:
        page = ledger.by_state(Table.INCIDENTS, f"INC#{state}", limit=_MOST_INCIDENTS, newest_first=True)
        for incident in (rows.read(row, Incident) for row in page.rows):
            jobs = read_incidents.load_hurt(ledger, incident).values()
            if read_incidents.needs_person(incident, jobs, holders.get(incident.slot), now):
                needing.append(incident)
    return _open_incidents(ledger), needing


def _incident(ledger: Ledger, incident: Incident, *, needs_you: bool) -> Json:
    return read_incidents.summary(incident) | {
        "needsYou": needs_you,
        "nodeLane": read_incidents.node_lane(incident),
        "jobLanes": read_incidents.job_lanes(incident, read_incidents.load_hurt(ledger, incident)),
    }


def _pools(nodes: Sequence[FleetNode], in_repair: set[str]) -> Json:
    pools: dict[tuple[str, str], list[FleetNode]] = defaultdict(list)
    for node in nodes:
        pools[node.life.cluster, node.pool].append(node)
    items = []
    for (cluster, pool), members in sorted(pools.items()):
        counts = Counter(node_state(node, is_in_repair=node.life.key in in_repair) for node in members)
        items.append(
            {
                "cluster": cluster,
                "pool": pool,
                "kind": "committed" if any(node.provider_status for node in members) else "burst",
                "total": len(members),
                "states": {state: counts[state] for state in NodeState if counts[state]},
            }
        )
    return {"total": len(nodes), "pools": items}


def _gpus(nodes: Sequence[FleetNode], in_repair: set[str]) -> Json:
    serving = [
        node for node in nodes if node_state(node, is_in_repair=node.life.key in in_repair) is NodeState.IN_SERVICE
    ]
    return {
        "total": sum(node.accelerators for node in nodes),
        "inService": sum(node.accelerators for node in serving),
        "inUse": sum(node.accelerators_in_use for node in nodes),
        "free": sum(max(0, node.accelerators - node.accelerators_in_use) for node in serving),
    }


def _jobs(ledger: Ledger, clusters: Iterable[str], now: datetime) -> Json:
    live = [state for state in JobState if not state.has_ended]
    found: dict[JobState, _Work] = {}
    for state in live:
        seen, more = paging.everything(ledger, Table.JOBS, f"JOB#{state}", at_most=_MOST_JOBS)
        found[state] = _Work(rows=seen, is_lower_bound=more)
    classes: dict[str, dict[JobState, list[Json]]] = defaultdict(lambda: defaultdict(list))
    for state, work in found.items():
        for row in work["rows"]:
            # Read as it lies: thousands of rows are counted here, and only three fields of each matter.
            classes[row.doc["spec"].get("priorityClass") or ""][state].append(row.doc)
    return {
        "counts": {state: len(work["rows"]) for state, work in found.items()},
        "isLowerBound": any(work["is_lower_bound"] for work in found.values()),
        "classes": [_class(name, states, now) for name, states in sorted(classes.items())],
        "foreign": _foreign(ledger, clusters),
    }


def _foreign(ledger: Ledger, clusters: Iterable[str]) -> Json:
    """Count the work with accelerators that Evenkeel did not start, as the last sweep saw it."""
    found = read_jobs.list_foreign(ledger, clusters)["items"]
    return {
        "workloads": len(found),
        "pods": sum(each["pods"] for each in found),
        "gpus": sum(each["accelerators"] for each in found),
    }


def _class(name: str, states: Mapping[JobState, list[Json]], now: datetime) -> Json:
    """Return a class's line; who had to give way counts as preempted, and as nothing else, until it starts again."""
    preempted = [doc for docs in states.values() for doc in docs if doc.get("isPreempted")]
    going = {state: [doc for doc in docs if not doc.get("isPreempted")] for state, docs in states.items()}
    running = [*going.get(JobState.RUNNING, ()), *going.get(JobState.STOPPING, ())]
    waiting = [*going.get(JobState.PENDING, ()), *going.get(JobState.STARTING, ())]
    run = [_age(doc.get("startedAt") or doc["submittedAt"], now) for doc in running]
    wait = [_age(doc["submittedAt"], now) for doc in waiting if not doc.get("startedAt")]
    return {
        "priorityClass": name or None,
        "running": len(running),
        "pending": len(waiting),
        "preempted": len(preempted),
        "suspended": len(going.get(JobState.SUSPENDED, ())),
        "averageRunSeconds": _mean(run),
        "longestRunSeconds": max(run, default=None),
        "averageWaitSeconds": _mean(wait),
        "longestWaitSeconds": max(wait, default=None),
    }


def _age(instant: str, now: datetime) -> int:
    return max(0, round((now - datetime.fromisoformat(instant)).total_seconds()))


def _mean(values: Sequence[int]) -> int | None:
    return round(sum(values) / len(values)) if values else None


def _heartbeats(ledger: Ledger, now: datetime) -> list[Json]:
    beats: list[Json] = []
    for function in HEARTBEATS:
        row = ledger.get(rows.heartbeat_key(function))
        at = row.doc.get("at") if row else None
        silent = at is not None and now - datetime.fromisoformat(at) > DEAF_AFTER
        beats.append({"function": function, "at": at, "isSilent": silent})
    return beats


def _judge(
    working: int,
    needing: int,
    automation: Json,
    beats: Sequence[Json],
    nodes: Sequence[FleetNode],
    open_incidents: Sequence[Incident],
) -> tuple[Health, list[str]]:
    silent = [beat["function"] for beat in beats if beat["isSilent"]]
    in_repair = {incident.life.key for incident in open_incidents}
    states = Counter(node_state(node, is_in_repair=node.life.key in in_repair) for node in nodes)
    critical = []
    if needing:
        critical.append(f"{needing} {'incident needs' if needing == 1 else 'incidents need'} a person")
    if silent:
        critical.append(f"no heartbeat from {', '.join(silent)} for 10 minutes")
    unheard = [beat["function"] for beat in beats if beat["at"] is None]
    degraded = []
    if unheard:
        degraded.append(f"no heartbeat yet from {', '.join(unheard)}")
    if working:
        degraded.append(f"{working} {'incident' if working == 1 else 'incidents'} working")
    if states[NodeState.NOT_READY]:
        degraded.append(f"{states[NodeState.NOT_READY]} not ready without an incident")
    if automation["isHeld"]:
        degraded.append("automation is held")
    health = Health.CRITICAL if critical else Health.DEGRADED if degraded else Health.OK
    return health, critical + degraded
