"""An incident in the ledger: read, and changed at its version."""

from collections.abc import Callable, Sequence
from datetime import datetime

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.recovery.repair_lease import RepairLease
from evenkeel.domain.recovery.repair_requests import RepairRequest
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import Key, Ledger, NotFound, Put, Row, Write
from evenkeel.services.context import Context
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import fleet_rows, incident_rows, rows, subject_rows

MAX_TRIES = 6
"""Tries of a commit before the conflict is left to the workflow's own retry."""

Change = Callable[[Incident], tuple[Incident, Sequence[Write]] | None]
"""Maps the present incident to the new one, with further writes; None = no change."""


def load_incident(ledger: Ledger, incident_id: str) -> tuple[Incident, int]:
    """Return an incident and its version.

    Raises:
        NotFound: there is no such incident.
    """
    return _incident_of(ledger.get(incident_rows.incident_key(incident_id)), incident_id)


def load_incident_with(incident_id: str, context: Context, *keys: Key) -> tuple[Incident, int, tuple[Row | None, ...]]:
    """Return an incident, its version, and the rows of further keys, all read in one round trip.

    Raises:
        NotFound: there is no such incident.
    """
    row, *other_rows = context.read_rows(incident_rows.incident_key(incident_id), *keys)
    return *_incident_of(row, incident_id), tuple(other_rows)


def _incident_of(row: Row | None, incident_id: str) -> tuple[Incident, int]:
    if row is None:
        raise NotFound(f"There is no incident {incident_id}.")
    return rows.decode(row, Incident), row.version


def update_incident(
    ledger: Ledger, incident_id: str, change: Change, *, read_incident: tuple[Incident, int] | None = None
) -> Incident:
    """Change an incident with its further writes in one commit. Decide again if another writer was first.

    `read_incident` is an earlier result of `load_incident`. The first try uses this row, which saves a read. If it is
    stale, so is its version, and the commit fails.

    Idempotent: yes, if `change` is, which receives the present incident each time.

    Raises:
        Conflict: other writers were first too often.
    """
    first_try = [read_incident] if read_incident else []

    def commit_once() -> Incident:
        return _commit_change(ledger, first_try.pop() if first_try else load_incident(ledger, incident_id), change)

    return until_committed(commit_once, f"incident {incident_id} changed on every try", tries=MAX_TRIES)


def update_incident_once(ledger: Ledger, incident_id: str, change: Change) -> Incident:
    """Change an incident in one commit, without a second try.

    Raises:
        Conflict: another writer was first.
    """
    return _commit_change(ledger, load_incident(ledger, incident_id), change)


def _commit_change(ledger: Ledger, incident_and_version: tuple[Incident, int], change: Change) -> Incident:
    incident, version = incident_and_version
    changed_incident = change(incident)
    if changed_incident is None:
        return incident
    incident_after, writes = changed_incident
    ledger.commit(Put(incident_rows.incident_row(incident_after, version)), *writes)
    return incident_after


def timeline_put(subject: str, kind: str, text: str, *, at: datetime, writer: str, decision_id: str = "") -> Put:
    """Return the write of a timeline entry."""
    return Put(timeline_row_of(subject, kind, text, at=at, writer=writer, decision_id=decision_id))


def decision_puts(decision_record: Decision, kind: str, *, at: datetime, writer: str) -> list[Write]:
    """Return the writes of a decision and of its timeline entry, whose text is the reason."""
    subject, decision_id = decision_record.subject, decision_record.decision_id
    return [
        Put(subject_rows.decision_row(decision_record)),
        timeline_put(subject, kind, decision_record.reason, at=at, writer=writer, decision_id=decision_id),
    ]


def timeline_row_of(subject: str, kind: str, text: str, *, at: datetime, writer: str, decision_id: str = "") -> Row:
    """Return the row of a timeline entry."""
    entry = TimelineEntry(at=at, kind=kind, text=text, decision_id=decision_id, writer=writer)
    return subject_rows.timeline_row(subject, entry, "-".join(part for part in (writer, kind, decision_id) if part))


def last_repair_request(ledger: Ledger, incident: Incident) -> RepairRequest | None:
    """Return the last repair request of an incident; None if there is none."""
    requests = repair_requests(ledger, incident)
    return requests[-1] if requests else None


def repair_requests(ledger: Ledger, incident: Incident) -> tuple[RepairRequest, ...]:
    """Return the repair requests of an incident that the lease of its slot keeps, oldest first."""
    row = ledger.get(fleet_rows.lease_key(incident.slot, is_drill=incident.is_drill))
    if row is None:
        return ()
    return tuple(
        request for request in rows.decode(row, RepairLease).requests if request.incident_id == incident.incident_id
    )
