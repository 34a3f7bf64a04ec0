"""Timelines for the API: the recorded entries, and entries that follow from other records at each read."""

from datetime import datetime
from typing import Any

from evenkeel.domain.costs.receipt_sentence import incident_sentence, interruption_sentence
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.shadow.shadow_cases import Aftermath
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import Ledger
from evenkeel.services.context import Context
from evenkeel.services.queries import disclosure
from evenkeel.services.queries.costs import read_receipts
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.queries.jobs import read_jobs
from evenkeel.services.tables import incident_rows, rows

Json = dict[str, Any]


def show_job(job_id: str, reader: Reader, context: Context) -> Json:
    """Return the timeline of a job with a line for the loss of each interruption that is over, oldest first.

    Raises:
        NotFound: there is no such job.
    """
    job = read_jobs.load_job(context.ledger, job_id)
    entries = read_jobs.job_timeline(context.ledger, job_id)
    if not reader.may_see_job(job):
        entries = disclosure.job_timeline(entries)
    receipt = read_receipts.visible_job_receipt(job, reader, context)
    ends = [
        _timeline_entry(ended_at, interruption_sentence(interruption))
        for interruption in receipt.interruptions
        if interruption.is_over and (ended_at := interruption.ended_at)
    ]
    return {"subject": job_id, "entries": _by_time([*entries, *ends])}


def show_incident(incident_id: str, reader: Reader, context: Context) -> Json:
    """Return the timeline of an incident, oldest first, with a line for its receipt once it is settled.

    Raises:
        NotFound: there is no such incident.
    """
    incident = read_incidents.load_incident(context.ledger, incident_id)
    entries = read_jobs.stored_timeline(context.ledger, incident_id)
    may_see_all = reader.may_see_all_of(incident, context.ledger)
    if not may_see_all:
        entries = disclosure.incident_timeline(entries)
    if incident.mode == Mode.OBSERVE:
        entries = [*entries, *_aftermath_entries(context.ledger, incident_id)]
    if incident.stages.settled_at and incident.affected_jobs:
        text = incident_sentence(
            read_receipts.visible_incident_receipt(incident, reader, context, may_see_all=may_see_all)
        )
        entries = [*entries, _timeline_entry(incident.stages.settled_at, text)]
    return {"subject": incident_id, "entries": _by_time(entries)}


def _timeline_entry(at: datetime, text: str) -> Json:
    return TimelineEntry(at=at, kind="receipt", text=text, writer="read_receipts").to_json()


def _by_time(entries: list[Json]) -> list[Json]:
    return sorted(entries, key=lambda entry: str(entry["at"]))


def _aftermath_entries(ledger: Ledger, incident_id: str) -> list[Json]:
    """Return the events of the node after the end of an incident of the mode `observe`, as timeline entries."""
    row = ledger.get(incident_rows.aftermath_key(incident_id))
    events = rows.decode(row, Aftermath).events if row else ()
    entries = (
        TimelineEntry(
            at=event.at, kind=event.kind.lower(), text=f"{event.clause}. {event.evidence}", writer="record_aftermath"
        )
        for event in events
    )
    return [entry.to_json() for entry in entries]
