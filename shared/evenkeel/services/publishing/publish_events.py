"""Publish the events that follow from a stored change: to the API's list, to the event bus, and to the chat.

The change is stored first, and the table's stream delivers it until this service succeeds:

    a commit ─▶ stream ─▶ record the event ─▶ bus ─▶ chat
                   ▲                              │
                   └── delivered again after a failure or a crash

So no event is lost while the stream keeps the change (a day), and each may be published more than once, with one id.

A new decision is no event. It is added to the list of the fleet's decisions
(docs/decisions/0048-the-stream-lists-the-fleets-decisions.md).
"""

import contextlib

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.outbound import events, notices
from evenkeel.domain.outbound.events import OutboundEvent, OutboundKind, RowTransition
from evenkeel.domain.policy import PolicyChange
from evenkeel.domain.recovery.manual_cordons import ManualCordons
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import BusEvent, Conflict, Put, RowChange, Table
from evenkeel.services.context import Context
from evenkeel.services.queries import disclosure
from evenkeel.services.tables import outbound_rows, rows, subject_rows


class PublishEventsResult(Value):
    """The number of published events."""

    events: int


def run(change: RowChange, context: Context) -> PublishEventsResult:
    """Publish the events of one change.

    Idempotent: no, because the bus and the chat cannot recognise a repeat; guarded by the id in each event. Every
    repeat has the same id, and the list for the API has each event once.

    Raises:
        TransientError: an event was not recorded or not published. The whole change may be repeated.
    """
    if (decision := _new_decision(change)) is not None:
        with contextlib.suppress(Conflict):  # listed by an earlier delivery
            context.ledger.commit(Put(subject_rows.listed_decision_row(decision)))
        return PublishEventsResult(events=0)
    outbound_events = derive(change, context.site.fleet)
    for event in outbound_events:
        with contextlib.suppress(Conflict):  # recorded by an earlier delivery, which may have failed after that
            context.ledger.commit(Put(outbound_rows.event_row(event, context.clock.now())))
    context.event_bus.publish(
        [BusEvent(events.SOURCE, event.kind, event.detail(context.site.fleet)) for event in outbound_events]
    )
    if outbound_events:
        context.telemetry.count("EventsPublished", len(outbound_events))
    for event in outbound_events:
        if event.kind in notices.CHAT_KINDS:
            notice = None
            if event.kind is OutboundKind.INCIDENT_NEEDS_PERSON:
                notice = notices.incident_notice(rows.decode(change.after, Incident))
            context.chat.send(notices.chat_message(event, context.site.fleet, notice))
    return PublishEventsResult(events=len(outbound_events))


def _new_decision(change: RowChange) -> Decision | None:
    """Return the decision that a change recorded, without its facts; None if it recorded none."""
    key = change.after.key
    if change.before is not None or key.table is not Table.INCIDENTS or not key.pk.startswith("DEC#"):
        return None
    return rows.parse(key, Decision, {**change.after.doc, "facts": {}, "alternatives": (), "chosen": None})


def derive(change: RowChange, fleet: str) -> tuple[OutboundEvent, ...]:
    """Return the events that follow from a change. They have public fields only, because every reader gets the same."""
    key, row_before, row_after = change.after.key, change.before, change.after
    source = RowTransition("|".join(key), row_after.version, change.at)
    match key.table, key.pk.split("#")[0], key.sk.split("#")[0]:
        case Table.JOBS, "JOB", "META":
            job_before = disclosure.public_job(rows.decode(row_before, Job)) if row_before else None
            return events.events_of_job(source, job_before, disclosure.public_job(rows.decode(row_after, Job)))
        case Table.INCIDENTS, "INC", "META":
            return events.events_of_incident(
                source, rows.decode(row_before, Incident) if row_before else None, rows.decode(row_after, Incident)
            )
        case Table.INCIDENTS, "POLICY", "REQUEST" if row_before is None:
            return (events.event_of_policy(source, fleet, rows.parse(key, PolicyChange, row_after.doc["change"])),)
        case Table.FLEET, "NODE", "META":
            return events.events_of_node(
                source, rows.decode(row_before, FleetNode) if row_before else None, rows.decode(row_after, FleetNode)
            )
        case Table.FLEET, "HOLD", "CORDONS":
            manual_cordons = rows.decode(row_before, ManualCordons) if row_before else ManualCordons()
            return events.events_of_cordons(source, manual_cordons, rows.decode(row_after, ManualCordons))
        case Table.FLEET, "HOLD", "EVENT" if row_before is None and row_after.doc["kind"] not in _INCIDENT_ACTS:
            entry = rows.decode(row_after, TimelineEntry)
            return (events.event_of_entry(source, OutboundKind.AUTOMATION_CHANGED, fleet, entry, entry.writer),)
        case Table.FLEET, "OVERVIEW", "META":
            return events.events_of_budgets(
                source, row_before.doc["budgets"] if row_before else (), row_after.doc["budgets"]
            )
        case Table.QUOTAS, "SETUP-EVENTS", "EVENT" if row_before is None:
            entry = rows.decode(row_after, TimelineEntry)
            return (events.event_of_entry(source, OutboundKind.QUOTA_CHANGED, fleet, entry, entry.writer),)
    return ()


_INCIDENT_ACTS = frozenset({"acknowledged", "approved", "declined"})
"""Kinds of acts on an incident. An act of these kinds does not change the automation."""
