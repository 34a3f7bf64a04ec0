"""The fleet for the API: the overview of one screen, and its nodes."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from operator import itemgetter
from typing import Any, NamedTuple, TypedDict

from evenkeel.domain.health.incidents import LIST_ORDER, Incident
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.nodes import FleetNode, NodeLife, NodeState
from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery.approval import awaits_approval
from evenkeel.domain.recovery.manual_cordons import ManualCordon
from evenkeel.domain.recovery.unhealthy_nodes import UnhealthyNode, is_unhealthy
from evenkeel.domain.resources import NONE, Resources
from evenkeel.domain.sources import FACTS, Source, SourceAge, SourceKind, SourceState, complaints
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Ledger, Row, Table
from evenkeel.services.context import Context
from evenkeel.services.incidents import unhealthy_nodes
from evenkeel.services.queries import (
    read_incidents,
    read_jobs,
    read_queue,
    read_serving,
    read_sources,
    read_teams,
    sorted_list,
)
from evenkeel.services.recovery import hold_automation, manual_cordons
from evenkeel.services.storage import (
    fleet_counts,
    fleet_rows,
    incident_rows,
    job_rows,
    known_names,
    pagination,
    rows,
    team_setup,
)

Json = dict[str, Any]

HEARTBEATS = ("schedule_jobs", "sweep_fleet", "watch_cluster")
SILENT_AFTER = timedelta(minutes=10)
"""A scheduled function without a run for this long is an alarm."""
_MAX_NODES = 5000
_MAX_JOBS = 2000
"""Jobs of one state that the overview counts. Beyond it, the count is marked as a lower bound."""
_MAX_OPEN = 1000
"""Open incidents of one state that the overview counts. Beyond it, the counts are marked as lower bounds."""
_MAX_UNRESOLVED = 100
"""Newest incidents of one failed outcome that are examined. Older ones are found by their cordons and resume plans."""
_MAX_LEFT = 50
"""Older incidents that are looked up by the nodes and jobs that they left."""
_MAX_INTERRUPTED = 200
"""Interrupted jobs that are looked up one by one, if not all live jobs could be listed."""
_MAX_SHOWN = 50
"""Active incidents that are shown and not only counted, and as many that need a person."""
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


class _JobCounts(TypedDict):
    """Jobs of one state, and whether more exist than were read."""

    rows: Sequence[Row]
    is_lower_bound: bool


def _acts_on_its_node(incident: Incident) -> bool:
    """Whether an open incident acts on its node. A drill does only if it may act."""
    acts = bool(incident.repairs) or (incident.plan is not None and incident.plan.intends_action)
    return acts or not incident.is_drill


def _by_node(incidents: Iterable[Incident]) -> dict[str, Incident]:
    """Node → its open incident that acts. Real incidents come last, so that a drill hides none."""
    working = sorted(filter(_acts_on_its_node, incidents), key=lambda incident: not incident.is_drill)
    return {incident.life.key: incident for incident in working}


class IncidentsByNeed(NamedTuple):
    """Open incidents, separated by whether they need a person."""

    needing: Sequence[Incident]
    """Incidents that need a person: first incidents that await approval, then failed incidents."""
    working: Sequence[Incident]
    """Open incidents that continue by themselves."""
    asking: Sequence[Incident]
    """Open incidents that await approval."""
    is_lower_bound: bool

    @property
    def in_work(self) -> dict[str, Incident]:
        """Node → its open incident."""
        return _by_node((*self.working, *self.asking))

    def count_text(self, incidents: Sequence[Incident], verbs: tuple[str, str]) -> str:
        """Write a count: `1 incident works`, or `50+ incidents work` if it is a lower bound."""
        number = f"{len(incidents)}+" if self.is_lower_bound else str(len(incidents))
        return f"{number} incident {verbs[0]}" if number == "1" else f"{number} incidents {verbs[1]}"


def show_status(sources: Sequence[SourceAge], context: Context) -> Json:
    """Return the overview: problems with their handling, and the state of the fleet and the jobs."""
    nodes, has_more_nodes = present_nodes(context.ledger)
    work = _count_jobs_by_state(context.ledger)
    incidents = _group_by_need(nodes, work, context)
    automation = hold_automation.show_automation(context)
    beats = load_heartbeats(context)
    recorded_unhealthy = unhealthy_nodes.load_unhealthy_nodes(context.ledger)
    unhealthy = _left_unhealthy(recorded_unhealthy)
    states = _node_states(nodes, incidents.in_work, recorded_unhealthy)
    health, reasons = judge_health(incidents, automation, beats, Counter(states.values()), sources)
    blocked = shared_cause_documents(incidents.working)
    waits = _waits_by_team(work, context.now)
    reasons = [*(outage["headline"] for outage in blocked), *reasons]
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
            "items": _incident_documents(incidents, context),
        },
        "outages": blocked,
        "next": next_command(incidents, [node.incident_id for node in unhealthy.values()]),
        "nodes": _pool_documents(nodes, states, sources, context.policy.burst.rented_pools)
        | {"isLowerBound": has_more_nodes},
        "unhealthy": [
            {"instanceId": node.life.instance_id, "name": node.node_name or None, "pool": node.pool}
            | {"marks": list(node.marks), **_why_unhealthy(unhealthy.get(node.life.key))}
            for node in nodes
            if states[node.life.key] is NodeState.UNHEALTHY
        ][:_MAX_SHOWN],
        "gpus": _gpu_document(nodes, states, sources),
        "cpu": _stated_amounts(nodes, states, lambda amounts: amounts.cpu),
        "memoryGib": _stated_amounts(nodes, states, lambda amounts: amounts.memory_gib),
        "cordons": _cordon_documents(context.ledger, nodes),
        "jobs": _job_counts_document(work, context) | _staleness_of_all(sources),
        "teams": [
            {name: value for name, value in team.items() if name != "resources"}
            | {"p90WaitSeconds": waits.get(team["team"])}
            for team in read_teams.list_teams(context)["items"][:_MAX_TEAMS]
        ],
        "serving": read_serving.list_serving(context.ledger),
        "heartbeats": beats,
        "isRunning": not is_off(sources),
        "sources": [{"name": age.source.name, **age.to_json()} for age in sources],
    }


class NodeFilter(NamedTuple):
    """The filter of a list of nodes."""

    pool: str = ""
    states: Sequence[NodeState] = ()
    """None = all but `GONE`."""
    with_gone: bool = False


_PROBLEMS_FIRST = (
    NodeState.QUARANTINED,
    NodeState.UNHEALTHY,
    NodeState.BLOCKED,
    NodeState.WAITING,
    NodeState.NOT_READY,
    NodeState.REPAIRING,
    NodeState.CORDONED,
    NodeState.STARTING,
    NodeState.IN_SERVICE,
    NodeState.GONE,
)
_SORT_VALUES: dict[str, sorted_list.SortValue] = {
    "state": lambda node: _PROBLEMS_FIRST.index(node["state"]),
    **{
        name: itemgetter(name)
        for name in ("instanceId", "pool", "instanceType", "gpusInUse", "launchedAt", "changedAt")
    },
}


def list_nodes(
    ledger: Ledger, page: pagination.PageRequest, node_filter: NodeFilter, *, sort: sorted_list.Sort | None = None
) -> Json:
    """Return one page of nodes, by pool. Nodes that are gone are kept for a while and listed only on request.

    `counts` has the number of nodes by state as the last sweep counted them; None if it is unknown. Sorted by state,
    nodes with problems come first.

    Raises:
        BadPageToken: this list did not issue the token.
        TooManyToSort: more nodes match than a list can sort.
    """
    listed_incidents, is_cut = open_incidents(ledger)
    incidents = _by_node(listed_incidents)
    recorded_unhealthy = unhealthy_nodes.load_unhealthy_nodes(ledger)
    shows_gone = node_filter.with_gone or NodeState.GONE in node_filter.states

    def incident_of(node: FleetNode) -> Incident | None:
        return incidents.get(node.life.key) or (_incident_of(ledger, node) if is_cut else None)

    def state_of(row: Row) -> NodeState:
        node = rows.decode(row, FleetNode)
        return node_state(
            node, incident_of(node), is_unhealthy=unhealthy_nodes.is_unhealthy_node(node, recorded_unhealthy)
        )

    def keep(row: Row) -> bool:
        return (
            (shows_gone or read_queue.is_present(row))
            and node_filter.pool in ("", row.doc.get("pool"))
            and (not node_filter.states or state_of(row) in node_filter.states)
        )

    filters = keep if not shows_gone or node_filter.pool or node_filter.states else None
    unhealthy = _left_unhealthy(recorded_unhealthy)
    cordons = manual_cordons.load_manual_cordons(ledger)

    def shown(stored_rows: Sequence[Row]) -> list[Json]:
        return [
            _node_document(
                node,
                incident_of(node),
                cordons.get(node.life.key),
                unhealthy.get(node.life.key),
                is_unhealthy=unhealthy_nodes.is_unhealthy_node(node, recorded_unhealthy),
            )
            for _, node in rows.readable_rows(stored_rows, FleetNode)
        ]

    if sort is not None:
        nodes = shown(sorted_list.matching_rows(ledger, Table.FLEET, ["NODE"], filters))
        items, token = sorted_list.sorted_page(nodes, sort, _SORT_VALUES, page, item_id="instanceId")
    else:
        answer = pagination.page_newest_first(ledger, Table.FLEET, ["NODE"], page, filters)
        items, token = shown(answer.rows), answer.next_token
    return {"items": items, "nextPageToken": token or None, "counts": fleet_counts.node_counts(ledger)}


def show_node(instance_id: str, context: Context) -> Json:
    """Return a node by its instance id.

    Raises:
        NotFound: the fleet does not know it.
    """
    for cluster in context.site.clusters:
        row = context.ledger.get(fleet_rows.node_key(cluster, instance_id))
        if row is not None:
            node = rows.decode(row, FleetNode)
            row = context.ledger.get(incident_rows.unhealthy_key(node.life))
            unhealthy_node = rows.decode(row, UnhealthyNode) if row else None
            why = unhealthy_node if unhealthy_node and not unhealthy_node.trusted_by else None
            person = manual_cordons.load_manual_cordons(context.ledger).get(node.life.key)
            faulty = is_unhealthy(node.marks, unhealthy_node)
            return _node_document(node, _incident_of(context.ledger, node), person, why, is_unhealthy=faulty)
    raise known_names.unknown_node_error(instance_id, context.ledger)


def node_state(node: FleetNode, open_incident: Incident | None, *, is_unhealthy: bool = False) -> NodeState:
    """Derive the state of a node from its last sweep and its open incident."""
    if node.is_gone:
        return NodeState.GONE
    if open_incident is not None:
        if open_incident.block is not None:
            return NodeState.BLOCKED
        return NodeState.WAITING if read_incidents.is_waiting(open_incident) else NodeState.REPAIRING
    if node.is_cordoned:
        return NodeState.QUARANTINED if node.incident_id else NodeState.CORDONED
    if node.is_ready and is_unhealthy:
        return NodeState.UNHEALTHY
    if node.is_ready:
        return NodeState.STARTING if node.is_awaiting_validation else NodeState.IN_SERVICE
    return NodeState.NOT_READY if node.node_name and node.not_ready_since else NodeState.STARTING


def _node_document(
    node: FleetNode,
    incident: Incident | None,
    cordon: ManualCordon | None,
    unhealthy: UnhealthyNode | None,
    *,
    is_unhealthy: bool,
) -> Json:
    is_open = incident is not None and not incident.state.is_settled
    block = incident.block if incident and is_open else None
    state = node_state(node, incident if is_open else None, is_unhealthy=is_unhealthy)
    last = unhealthy.incident_id if unhealthy and state is NodeState.UNHEALTHY else node.incident_id
    return {
        "instanceId": node.life.instance_id,
        "name": node.node_name or None,
        "cluster": node.life.cluster,
        "pool": node.pool,
        "instanceType": node.instance_type,
        "zone": node.zone,
        "slot": node.slot,
        "state": state,
        "incidentId": incident.incident_id if incident and is_open else last,
        "marks": list(node.marks),
        "repairedBy": node.repaired_by or None,
        "unhealthy": _why_unhealthy(unhealthy) if state is NodeState.UNHEALTHY else None,
        "block": block.to_json() if block else None,
        "providerStatus": node.provider_status or None,
        "isReady": node.is_ready,
        "isCordoned": node.is_cordoned,
        "cordon": cordon_document(cordon) if cordon else None,
        "isLemon": node.is_lemon,
        "isAwaitingValidation": node.is_awaiting_validation,
        "gpus": node.accelerators,
        "gpusInUse": node.accelerators_in_use,
        "cpu": node.allocatable.cpu,
        "cpuInUse": node.in_use.cpu or 0 if node.cpu_millis else None,
        "memoryGib": node.allocatable.memory_gib,
        "memoryGibInUse": node.in_use.memory_gib or 0 if node.memory_mib else None,
        "unmanagedWorkloads": list(node.unmanaged_workloads),
        "launchedAt": rfc3339(node.life.launched_at),
        "notReadySince": rfc3339(node.not_ready_since) if node.not_ready_since else None,
        "changedAt": rfc3339(node.changed_at),
    }


def cordon_document(cordon: ManualCordon) -> Json:
    """Return who cordoned a node, why and when."""
    return {"by": cordon.by, "reason": cordon.reason, "at": rfc3339(cordon.at)}


def newest_cordons(ledger: Ledger) -> list[tuple[str, ManualCordon]]:
    """Return the instance ids and cordons of nodes that people cordoned through Evenkeel, the newest first."""
    cordons = sorted(manual_cordons.load_manual_cordons(ledger).values(), key=lambda cordon: cordon.at, reverse=True)
    return [(NodeLife.from_key(cordon.life_key).instance_id, cordon) for cordon in cordons]


def _cordon_documents(ledger: Ledger, nodes: Iterable[FleetNode]) -> list[Json]:
    """Return the cordons of nodes that are still there."""
    present = {node.life.key: node for node in nodes}
    cordoned = [
        (present[cordon.life_key], cordon) for _, cordon in newest_cordons(ledger) if cordon.life_key in present
    ]
    return [
        {"instanceId": node.life.instance_id, "name": node.node_name, "pool": node.pool, **cordon_document(cordon)}
        for node, cordon in cordoned[:_MAX_SHOWN]
    ]


def present_nodes(ledger: Ledger) -> tuple[tuple[FleetNode, ...], bool]:
    """Return the nodes that are not gone, and whether nodes were left out at `_MAX_NODES`."""
    nodes, is_cut = pagination.read_partition(
        ledger, Table.FLEET, "NODE", at_most=_MAX_NODES, keep=read_queue.is_present
    )
    return tuple(node for _, node in rows.readable_rows(nodes, FleetNode)), is_cut


def states_of(ledger: Ledger, nodes: Iterable[FleetNode]) -> tuple[dict[str, NodeState], bool]:
    """Return the state of each node by `NodeLife.key`, and whether open incidents were left out."""
    incidents, is_cut = open_incidents(ledger)
    return _node_states(nodes, _by_node(incidents), unhealthy_nodes.load_unhealthy_nodes(ledger)), is_cut


def _node_states(
    nodes: Iterable[FleetNode], incidents: Mapping[str, Incident], recorded_unhealthy: unhealthy_nodes.UnhealthyNodes
) -> dict[str, NodeState]:
    return {
        node.life.key: node_state(
            node, incidents.get(node.life.key), is_unhealthy=unhealthy_nodes.is_unhealthy_node(node, recorded_unhealthy)
        )
        for node in nodes
    }


def open_incidents(ledger: Ledger, *, at_most: int = _MAX_OPEN) -> tuple[list[Incident], bool]:
    """Return the open incidents, the newest of each state, and whether there are more.

    Args:
        ledger: Has them.
        at_most: Number of incidents of one state. This limits the number of reads.
    """
    incidents: dict[str, Incident] = {}
    is_lower_bound = False
    for state in LIST_ORDER:
        if state.is_settled:
            break
        opened, more = pagination.read_partition(
            ledger, Table.INCIDENTS, f"INC#{state}", at_most=at_most, newest_first=True
        )
        incidents |= {incident.incident_id: incident for _, incident in rows.readable_rows(opened, Incident)}
        is_lower_bound |= more
    return list(incidents.values()), is_lower_bound


def _left_unhealthy(recorded_unhealthy: unhealthy_nodes.UnhealthyNodes) -> dict[str, UnhealthyNode]:
    """Return the nodes that incidents left unhealthy, by node life."""
    return {node.life.key: node for node in recorded_unhealthy.values() if not node.trusted_by}


def _why_unhealthy(node: UnhealthyNode | None) -> Json:
    if node is None:
        return {
            "incidentId": None,
            "since": None,
            "reason": "The node is marked as unhealthy and has no incident yet. The next sweep opens one.",
        }
    return {"incidentId": node.incident_id, "since": rfc3339(node.since), "reason": node.reason}


def _incident_of(ledger: Ledger, node: FleetNode) -> Incident | None:
    opened = ledger.get(incident_rows.open_key(node.life))
    incident = ledger.get(incident_rows.incident_key(str(opened.doc["incidentId"]))) if opened else None
    return rows.decode(incident, Incident) if incident else None


def _group_by_need(
    nodes: Iterable[FleetNode], work: Mapping[JobState, _JobCounts], context: Context
) -> IncidentsByNeed:
    incidents, is_cut = open_incidents(context.ledger)
    asking = [incident for incident in incidents if awaits_approval(incident)]
    working = [incident for incident in incidents if not awaits_approval(incident)]
    ended, may_be_more = _find_failed_incidents(nodes, work, incidents, context)
    alive = _JobCache(context.ledger, work)
    holders = {node.slot: node for node in nodes}
    needing = [
        incident
        for incident in ended
        if read_incidents.needs_person(
            incident, alive.jobs_of_incident(incident), holders.get(incident.slot), context.now
        )
    ]
    return IncidentsByNeed([*asking, *needing], working, asking, is_cut or may_be_more or alive.is_cut)


class _JobCache:
    """The live jobs, read once. An interrupted job that is not live needs nothing more."""

    def __init__(self, ledger: Ledger, work: Mapping[JobState, _JobCounts]) -> None:
        self._ledger = ledger
        self._known: dict[str, Row | None] = {
            row.doc["jobId"]: row for lookup in work.values() for row in lookup["rows"]
        }
        self._lookups = _MAX_INTERRUPTED if any(lookup["is_lower_bound"] for lookup in work.values()) else 0
        self._is_whole = not self._lookups
        self.is_cut = False

    def jobs_of_incident(self, incident: Incident) -> list[Job]:
        """Return the jobs that an incident interrupted."""
        jobs = (self._job_row(affected.job_id) for affected in incident.affected_jobs)
        return [job for _, job in rows.readable_rows((row for row in jobs if row is not None), Job)]

    def _job_row(self, job_id: str) -> Row | None:
        if job_id not in self._known and not self._is_whole:
            if not self._lookups:
                self.is_cut = True
                return None
            self._lookups -= 1
            self._known[job_id] = self._ledger.get(job_rows.job_key(job_id))
        return self._known.get(job_id)


def _find_failed_incidents(
    nodes: Iterable[FleetNode],
    work: Mapping[JobState, _JobCounts],
    other_incidents: Iterable[Incident],
    context: Context,
) -> tuple[list[Incident], bool]:
    """Return the settled incidents that may need a person, and whether there may be more.

    The newest are listed. An older incident needs a person only if a node has its cordon or a job its resume plan.
    Evenkeel finds such incidents by these nodes and jobs.
    """
    incidents: list[Incident] = []
    has_older = is_lower_bound = False
    for state in read_incidents.NEEDS_PERSON_STATES:
        partition = f"INC#{state}"
        listed, more = pagination.read_partition(
            context.ledger, Table.INCIDENTS, partition, at_most=_MAX_UNRESOLVED, newest_first=True
        )
        newest = [incident for _, incident in rows.readable_rows(listed, Incident)]
        incidents += newest
        has_older |= more
        # The newest are a sample of a day, so some of the rest may still need a person.
        is_lower_bound |= more and bool(newest) and context.now - newest[-1].opened_at < read_incidents.FRESH_FOR
    if not has_older:
        return incidents, is_lower_bound
    docs = (row.doc for lookup in work.values() for row in lookup["rows"])
    named = {node.incident_id for node in nodes} | {(doc.get("resumePlan") or {}).get("incidentId") for doc in docs}
    incident_ids = {incident.incident_id for incident in (*incidents, *other_incidents)}
    older = sorted({name for name in named if name} - incident_ids, reverse=True)
    older_rows = map(context.ledger.get, map(incident_rows.incident_key, older[:_MAX_LEFT]))
    incidents += [
        incident for _, incident in rows.readable_rows((row for row in older_rows if row is not None), Incident)
    ]
    return incidents, is_lower_bound or len(older) > _MAX_LEFT


def next_command(incidents: IncidentsByNeed, unhealthy: Sequence[str | None]) -> str | None:
    """Return the command that helps most now. `unhealthy`: the incidents that left nodes unhealthy."""
    if incidents.asking:
        return f"evenkeel incidents approve {incidents.asking[0].incident_id}"
    shown = [incident.incident_id for incident in (*incidents.needing, *incidents.working)]
    shown += filter(None, unhealthy)
    return f"evenkeel incidents show {shown[0]}" if shown else None


def shared_cause_documents(working: Iterable[Incident]) -> list[Json]:
    """Return the shared causes that block repairs, the largest first. The console shows each cause as one headline."""
    blocked_by_cause: dict[str, list[Incident]] = defaultdict(list)
    for incident in sorted(
        working, key=lambda listed_incident: (listed_incident.opened_at, listed_incident.incident_id)
    ):
        if incident.block and incident.block.cause and not incident.is_drill:
            blocked_by_cause[incident.block.cause].append(incident)
    return [
        _shared_cause_document(cause, blocked_by_cause[cause])
        for cause in sorted(blocked_by_cause, key=lambda cause: (-len(blocked_by_cause[cause]), cause))
    ]


def _shared_cause_document(cause: str, members: Sequence[Incident]) -> Json:
    kind, _, name = cause.partition("/")
    since = min(incident.first_signal_at for incident in members)
    clears = [incident.block.clears_at for incident in members if incident.block and incident.block.clears_at]
    until = f"until {max(clears):%H:%M}Z at the earliest" if clears else "until it is over"
    nodes = count_of(len(members), f"node of {kind} {name} is", f"nodes of {kind} {name} are")
    return {
        "cause": cause,
        "headline": f"{nodes} unhealthy since {since:%H:%M}Z; repairs wait (SHARED_CAUSE) {until}; look at the {kind}",
        "since": rfc3339(since),
        "guardrail": "SHARED_CAUSE",
        "incidentIds": [incident.incident_id for incident in members],
        "instanceIds": [incident.life.instance_id for incident in members],
    }


def _incident_documents(incidents: IncidentsByNeed, context: Context) -> list[Json]:
    needing = read_incidents.with_jobs(context.ledger, incidents.needing[:_MAX_SHOWN])
    working = read_incidents.with_jobs(context.ledger, incidents.working[:_MAX_SHOWN])
    jobs = read_incidents.load_affected_jobs(context.ledger, *needing, *working)
    return [
        read_incidents.incident_summary(incident, context.now)
        | {
            "needsYou": position < len(needing),
            "nodeLane": read_incidents.node_progress(incident, context.policy.repair),
            "jobLanes": read_incidents.job_lanes(incident, jobs),
        }
        for position, incident in enumerate([*needing, *working])
    ]


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
    """Whether any list of nodes was ever read. Before that the number of nodes is unknown, and not 0."""
    return any(age.seen_at for age in sources if age.source.kind in FACTS)


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
    stated = [node for node in nodes if amount(node.allocatable) is not None]
    unknown = {"unknownNodes": len(nodes) - len(stated)}
    if not stated:
        return {"total": None, "inUse": None, "free": None, **unknown}
    serving = [node for node in stated if states[node.life.key] is NodeState.IN_SERVICE]
    return {
        "total": amount(sum((node.allocatable for node in stated), NONE)),
        "inUse": amount(sum((node.in_use for node in stated), NONE)) or 0,
        "free": amount(sum((node.allocatable.minus(node.in_use) for node in serving), NONE)) or 0,
        **unknown,
    }


def _count_jobs_by_state(ledger: Ledger) -> dict[JobState, _JobCounts]:
    counts: dict[JobState, _JobCounts] = {}
    for state in (state for state in JobState if not state.has_ended):
        listed, more = pagination.read_partition(ledger, Table.JOBS, f"JOB#{state}", at_most=_MAX_JOBS)
        counts[state] = _JobCounts(rows=listed, is_lower_bound=more)
    return counts


def _job_counts_document(counts: Mapping[JobState, _JobCounts], context: Context) -> Json:
    classes: dict[str, dict[JobState, list[Json]]] = defaultdict(lambda: defaultdict(list))
    for state, work in counts.items():
        for row in work["rows"]:
            # Read without parsing: thousands of rows are counted, and only three fields of each matter.
            classes[row.doc["spec"].get("priorityClass") or ""][state].append(row.doc)
    values = team_setup.load_setup(context.ledger).setup.fleet.priority_classes

    def rank(name: str) -> tuple[bool, int, str]:
        """Highest priority first; classes without a value by name; jobs without a class last."""
        return name == "", -values.get(name, 0), name

    return {
        "counts": {state: len(work["rows"]) for state, work in counts.items()},
        "isLowerBound": any(work["is_lower_bound"] for work in counts.values()),
        "classes": [_class_counts(name, classes[name], context.now) for name in sorted(classes, key=rank)],
        "unmanaged": _unmanaged_summary(context),
    }


def _unmanaged_summary(context: Context) -> Json:
    """Count the workloads with accelerators that Evenkeel did not start, as the last sweep saw them."""
    workloads = read_jobs.list_unmanaged(context)["items"]
    return {
        "workloads": len(workloads),
        "pods": sum(workload["pods"] for workload in workloads),
        "gpus": sum(workload["accelerators"] for workload in workloads),
    }


def _class_counts(name: str, states: Mapping[JobState, list[Json]], now: datetime) -> Json:
    """Return the counts of a priority class. A preempted job counts only as preempted until it starts again."""
    preempted = [doc for docs in states.values() for doc in docs if doc.get("isPreempted")]
    continuing = {state: [doc for doc in docs if not doc.get("isPreempted")] for state, docs in states.items()}
    running = [*continuing.get(JobState.RUNNING, ()), *continuing.get(JobState.STOPPING, ())]
    waiting = [*continuing.get(JobState.PENDING, ()), *continuing.get(JobState.STARTING, ())]
    run = [_age_seconds(doc.get("startedAt") or doc["submittedAt"], now) for doc in running]
    wait = [_age_seconds(doc["submittedAt"], now) for doc in waiting if not doc.get("startedAt")]
    return {
        "priorityClass": name or None,
        "running": len(running),
        "pending": len(waiting),
        "preempted": len(preempted),
        "suspended": len(continuing.get(JobState.SUSPENDED, ())),
        "averageRunSeconds": _mean_or_none(run),
        "longestRunSeconds": max(run, default=None),
        "averageWaitSeconds": _mean_or_none(wait),
        "longestWaitSeconds": max(wait, default=None),
    }


def _waits_by_team(counts: Mapping[JobState, _JobCounts], now: datetime) -> dict[str, int]:
    """Return the 90th percentile of the waits of each team's open jobs, by nearest rank.

    The wait of a job is the time from its submission to its first start; of a job that never started, until now.
    """
    waits: dict[str, list[int]] = defaultdict(list)
    for state, work in counts.items():
        for row in work["rows"]:
            started = row.doc.get("startedAt")
            if started or state in (JobState.PENDING, JobState.STARTING):
                until = datetime.fromisoformat(started) if started else now
                waits[row.doc["spec"]["team"]].append(_age_seconds(row.doc["submittedAt"], until))
    return {team: sorted(seconds)[math.ceil(0.9 * len(seconds)) - 1] for team, seconds in waits.items()}


def _age_seconds(instant: str, now: datetime) -> int:
    return max(0, round((now - datetime.fromisoformat(instant)).total_seconds()))


def _mean_or_none(values: Sequence[int]) -> int | None:
    return round(sum(values) / len(values)) if values else None


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
) -> tuple[Health, list[str]]:
    """Return the health of the fleet, and the reasons, the worst first.

    Args:
        incidents: The incidents that are open or need a person.
        automation: The holds.
        beats: The heartbeats.
        states: Number of nodes by state. A missing state has none.
        sources: The age of every source of facts.
    """
    schedules_are_off = is_off(sources)
    stale, unknown = complaints(sources)
    silent = [] if schedules_are_off else [beat["function"] for beat in beats if beat["isSilent"]]
    critical = []
    if incidents.needing:
        critical.append(incidents.count_text(incidents.needing, ("needs a person", "need a person")))
    if silent:
        critical.append(f"no heartbeat from {', '.join(silent)} for 10 minutes")
    critical += stale
    never_ran = [] if schedules_are_off else [beat["function"] for beat in beats if beat["at"] is None]
    degraded = list(unknown)
    if never_ran:
        degraded.append(f"no heartbeat yet from {', '.join(never_ran)}")
    if incidents.working:
        degraded.append(incidents.count_text(incidents.working, ("working", "working")))
    if states.get(NodeState.NOT_READY):
        degraded.append(f"{states.get(NodeState.NOT_READY)} not ready without an incident")
    if states.get(NodeState.UNHEALTHY):
        degraded.append(f"{states.get(NodeState.UNHEALTHY)} unhealthy, without a running recovery")
    if automation["isHeld"]:
        degraded.append("automation is held")
    if schedules_are_off:
        return Health.NOT_RUNNING, [read_sources.NOT_RUNNING, *critical, *degraded]
    health = Health.CRITICAL if critical else Health.DEGRADED if degraded else Health.OK
    return health, critical + degraded
