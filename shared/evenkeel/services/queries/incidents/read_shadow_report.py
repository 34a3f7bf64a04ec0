"""The shadow report: the decisions of the mode `observe`, compared with what happened to their nodes.

incidents since a time ─▶ decisions ─▶ cases ─▶ aftermath, fleet rows, later incidents ─▶ verdicts, rates
"""

import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from evenkeel.domain.health.assessment import signals_of
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.plan import NodeOwner
from evenkeel.domain.shadow.report import summarise_cases
from evenkeel.domain.shadow.shadow_cases import (
    NODE_ENDS,
    Actor,
    Aftermath,
    NodeEvent,
    NodeEventKind,
    ShadowCase,
    ShadowDecision,
    group_into_cases,
    shadow_decision,
)
from evenkeel.domain.shadow.verdicts import JudgedCase, ShadowTimes, judge_case
from evenkeel.domain.sources import Source, SourceKind
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Key, Row, get_all
from evenkeel.services.context import Context
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.storage import heartbeats, pagination
from evenkeel.services.tables import fleet_rows, incident_rows, rows

Json = dict[str, Any]

DEFAULT_SINCE = timedelta(days=30)


class ShadowFilter(NamedTuple):
    """The decisions to report."""

    since: datetime | None = None
    """Incidents opened since; None = the last 30 days."""
    pool: str = ""
    window_hours: int = ShadowTimes().window_hours

    @property
    def shadow_times(self) -> ShadowTimes:
        """The times that the verdicts depend on."""
        return ShadowTimes(window_hours=self.window_hours)


def show_shadow_report(filters: ShadowFilter, page: pagination.PageRequest, context: Context) -> Json:
    """Return the sum of all cases, and one page of the cases, newest first.

    Raises:
        BadPageToken: this report did not issue the token.
    """
    since = filters.since or context.now - DEFAULT_SINCE
    incidents, has_all, unreadable_count = read_incidents.incidents_since(context.ledger, since)
    judged_cases, left_out_count = _judge_cases(incidents, filters, context)
    items, token = _page_of(judged_cases, page)
    oldest_at = min((incident.opened_at for incident in incidents), default=None)
    return {
        "since": rfc3339(since if has_all or oldest_at is None else oldest_at),
        "until": rfc3339(context.now),
        "pool": filters.pool or None,
        "isComplete": has_all,
        "unreadableIncidents": unreadable_count + left_out_count,
        "summary": summarise_cases(judged_cases, filters.shadow_times).to_json(),
        "items": [item.to_json() for item in items],
        "nextPageToken": token or None,
    }


def _judge_cases(
    incidents: Sequence[Incident], filters: ShadowFilter, context: Context
) -> tuple[list[JudgedCase], int]:
    """Return the judged cases, and how many incidents were left out because a record of their node is unreadable."""
    decisions = [
        decision for listed_incident in incidents if (decision := shadow_decision(listed_incident)) is not None
    ]
    shadow_decisions = [decision for decision in decisions if filters.pool in ("", decision.pool)]
    cases = group_into_cases(shadow_decisions, filters.shadow_times.window)
    by_node: dict[str, list[Incident]] = defaultdict(list)
    for incident in incidents:
        if not incident.is_drill:
            by_node[incident.life.key].append(incident)
    nodes = _load_nodes(cases, by_node, context)
    judged_cases = [
        judge_case(_shadow_case(decision, group, nodes[decision.node]), filters.shadow_times)
        for decision, group in cases
        if decision.node in nodes
    ]
    return judged_cases, sum(len(group) for decision, group in cases if decision.node not in nodes)


class _NodeRecords(NamedTuple):
    """Everything that the ledger holds about one node life."""

    incidents: Sequence[Incident]
    """Real incidents of the node, oldest first."""
    aftermaths: Sequence[Aftermath]
    fleet: FleetNode | None
    """Its row; None if it was deleted, 30 days after the node was gone."""
    listed_at: datetime | None
    """Last time at which its cluster was listed completely."""
    now: datetime


def _load_nodes(
    cases: Iterable[tuple[ShadowDecision, Sequence[ShadowDecision]]],
    by_node: Mapping[str, Sequence[Incident]],
    context: Context,
) -> dict[str, _NodeRecords]:
    """Read the records of the nodes of all cases, a hundred rows at a time, without nodes with an unreadable record."""
    records_by_node = {decision.node: by_node[decision.node] for decision, _ in cases}
    keys = {
        incident_rows.aftermath_key(incident.incident_id): name
        for name, incidents in records_by_node.items()
        for incident in incidents
        if shadow_decision(incident) is not None
    }
    fleet = {
        name: fleet_rows.node_key(incidents[0].life.cluster, incidents[0].life.instance_id)
        for name, incidents in records_by_node.items()
    }
    stored_rows: dict[Key, Row] = get_all(context.ledger, [*keys, *fleet.values()])
    unreadable_keys: set[Key] = set()
    aftermaths: dict[str, list[Aftermath]] = defaultdict(list)
    for key, name in keys.items():
        aftermaths[name] += rows.readable_values(
            [stored_rows[key]] if key in stored_rows else [], Aftermath, unreadable_keys
        )
    reports = heartbeats.load_source_reports(context.ledger)
    answer = {}
    for name, incidents in records_by_node.items():
        source = Source(kind=SourceKind.KUBERNETES_LIST, target=incidents[0].life.cluster)
        report, row = reports.get(source.name), stored_rows.get(fleet[name])
        node = next(rows.readable_values([row] if row else [], FleetNode, unreadable_keys), None)
        listed_at = report.seen_at if report else None
        answer[name] = _NodeRecords(incidents, aftermaths[name], node, listed_at, context.now)
    unreadable_nodes = {name for name, key in fleet.items() if key in unreadable_keys}
    unreadable_nodes |= {name for key, name in keys.items() if key in unreadable_keys}
    return {name: records for name, records in answer.items() if name not in unreadable_nodes}


def _shadow_case(decision: ShadowDecision, decisions: Sequence[ShadowDecision], node: _NodeRecords) -> ShadowCase:
    acting_incident = next(
        (incident for incident in node.incidents if _has_acted(incident) and incident.opened_at >= decision.decided_at),
        None,
    )
    end_reason = (
        f"Evenkeel itself has acted on the node since {acting_incident.incident_id}." if acting_incident else ""
    )
    return ShadowCase(
        decision=decision,
        incident_ids=tuple(decision.incident_id for decision in decisions),
        events=_node_events(decision, node),
        known_until=acting_incident.opened_at if acting_incident else node.now,
        end_reason=end_reason,
    )


def _has_acted(incident: Incident) -> bool:
    return incident.mode in (Mode.RECOMMEND, Mode.ACT) and incident.stages.cordoned_at is not None


def _node_events(decision: ShadowDecision, node: _NodeRecords) -> tuple[NodeEvent, ...]:
    events = [event for aftermath in node.aftermaths for event in aftermath.events]
    for incident in node.incidents:
        events += _events_of_incident(incident)
    return (*events, *_events_of_row(decision, node, events))


def _events_of_incident(incident: Incident) -> list[NodeEvent]:
    text = f"{incident.incident_id}: {incident.fault_key}"
    faults = [
        NodeEvent(
            at=at,
            kind=NodeEventKind.REMOVED if signal.fault_key == NODE_ENDS else NodeEventKind.FAULT,
            evidence=text,
        )
        for signal in signals_of(incident)
        for at in dict.fromkeys((signal.first_at, signal.last_at))
    ]
    if incident.recovered_at is None:
        return faults
    return [*faults, NodeEvent(at=incident.recovered_at, kind=NodeEventKind.RECOVERED, evidence=text)]


def _events_of_row(decision: ShadowDecision, node: _NodeRecords, known_events: Iterable[NodeEvent]) -> list[NodeEvent]:
    """Return the state in the node's row: its end, or its service at the last complete list."""
    fleet = node.fleet
    if fleet is None:
        return []
    kinds = {event.kind for event in known_events}
    boots = {incident.boot_id for incident in node.incidents if incident.boot_id}
    # Without a known reboot, another boot id hides a repair at an unknown time.
    is_same_boot = NodeEventKind.REBOOTED in kinds or not fleet.boot_id or boots <= {fleet.boot_id}
    takes_work = not (fleet.is_cordoned or fleet.marks or fleet.repaired_by) and is_same_boot
    if fleet.is_gone:
        actor = Actor.KARPENTER if decision.owner == NodeOwner.KARPENTER else Actor.UNKNOWN
        text = "The sweep no longer found the node."
        end = NodeEvent(at=fleet.changed_at, kind=NodeEventKind.REMOVED, actor=actor, evidence=text)
        last_event = NodeEvent(
            at=fleet.changed_at, kind=NodeEventKind.IN_SERVICE, evidence="The sweep listed it until then."
        )
        return [end, last_event] if takes_work else [end]
    if node.listed_at is None or not takes_work or not fleet.is_ready or fleet.provider_status not in ("", "Running"):
        return []
    text = "The sweep lists it Ready, schedulable and without a fault mark."
    return [NodeEvent(at=min(node.listed_at, node.now), kind=NodeEventKind.IN_SERVICE, evidence=text)]


# ---------------------------------------------------------------- pages of cases


def _page_of(judged_cases: Iterable[JudgedCase], page: pagination.PageRequest) -> tuple[list[JudgedCase], str]:
    newest_cases = sorted(judged_cases, key=_cursor_of, reverse=True)
    cursor = _read_token(page.page_token)
    cases = [case for case in newest_cases if cursor is None or _cursor_of(case) < cursor]
    shown = cases[: page.size]
    return shown, _write_token(_cursor_of(shown[-1])) if len(cases) > len(shown) else ""


def _cursor_of(case: JudgedCase) -> tuple[str, str]:
    return rfc3339(case.decision.decided_at), case.decision.incident_id


def _write_token(cursor: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(cursor).encode()).decode()


def _read_token(token: str) -> tuple[str, str] | None:
    if not token:
        return None
    try:
        match json.loads(base64.urlsafe_b64decode(token)):
            case [str(at), str(incident_id)]:
                return at, incident_id
    except (ValueError, RecursionError) as error:
        raise pagination.BadPageToken("The page token cannot be read.") from error
    raise pagination.BadPageToken("The page token belongs to another list.")
