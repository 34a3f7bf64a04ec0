"""An incident in the ledger: read, and changed at its version."""

from collections.abc import Callable, Sequence
from datetime import datetime

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.recovery.approval import is_approved
from evenkeel.domain.recovery.leases import RepairLease, RepairRequest
from evenkeel.domain.recovery.modes import current_mode
from evenkeel.domain.recovery.plan import why_not_allowed
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import Key, Ledger, NotFound, Put, Row, Write
from evenkeel.services.context import Context
from evenkeel.services.storage import fleet_rows, incident_rows, rows, subject_rows
from evenkeel.services.storage.retries import until_committed

MAX_TRIES = 6
"""Tries of a commit before the conflict is left to the workflow's own retry."""

Change = Callable[[Incident], tuple[Incident, Sequence[Write]] | None]
"""Maps the present incident to the new one, with further writes; None = no change."""


class RecoveryRun(Value):
    """A run of the recovery of an incident: the input of most of its states."""

    schema_version: int = 1
    incident_id: str
    run: int


def load(ledger: Ledger, incident_id: str) -> tuple[Incident, int]:
    """Return an incident and its version.

    Raises:
        NotFound: there is no such incident.
    """
    return _incident_of(ledger.get(incident_rows.incident_key(incident_id)), incident_id)


def load_with(incident_id: str, context: Context, *keys: Key) -> tuple[Incident, int, tuple[Row | None, ...]]:
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


def update(
    ledger: Ledger, incident_id: str, change: Change, *, read_before: tuple[Incident, int] | None = None
) -> Incident:
    """Change an incident with its further writes in one commit. Decide again if another writer was first.

    `read_before` is an earlier result of `load`. The first try uses it and saves a read. If it is stale, so is its
    version, and the commit fails.

    Idempotent: as far as `change` is, which receives the present incident each time.

    Raises:
        Conflict: other writers were first too often.
    """
    first_try = [read_before] if read_before else []

    def commit_once() -> Incident:
        return _commit_change(ledger, first_try.pop() if first_try else load(ledger, incident_id), change)

    return until_committed(commit_once, f"incident {incident_id} changed on every try", tries=MAX_TRIES)


def update_once(ledger: Ledger, incident_id: str, change: Change) -> Incident:
    """Change an incident in one commit, without a second try.

    Raises:
        Conflict: another writer was first.
    """
    return _commit_change(ledger, load(ledger, incident_id), change)


def _commit_change(ledger: Ledger, stored: tuple[Incident, int], change: Change) -> Incident:
    incident, version = stored
    changed = change(incident)
    if changed is None:
        return incident
    after, writes = changed
    ledger.commit(Put(incident_rows.incident_row(after, version)), *writes)
    return after


def drill_may_act(incident: Incident, context: Context) -> bool:
    """Return whether a drill may act now: the stack allows it, and no real incident is open for the node.

    A real incident ignores drills, so the drill yields.
    """
    return context.site.drills_may_act and (
        not incident.is_drill or context.ledger.get(incident_rows.open_key(incident.life)) is None
    )


def why_may_not_act(incident: Incident, context: Context) -> str:
    """Return why Evenkeel may not act on an incident now; empty if it may.

    Every service asks right before it acts, because the stack's mode, an approval or a real incident may have changed
    since the plan. `RepairNode` also checks which repair steps were approved.
    """
    mode = current_mode(context.mode, incident.mode, is_approved=is_approved(incident))
    may_act = drill_may_act(incident, context)
    return why_not_allowed(mode, is_drill=incident.is_drill, drills_may_act=may_act)


def timeline_put(subject: str, kind: str, text: str, *, at: datetime, writer: str, decision_id: str = "") -> Put:
    """Return the write of a timeline entry."""
    return Put(timeline_row_of(subject, kind, text, at=at, writer=writer, decision_id=decision_id))


def timeline_row_of(subject: str, kind: str, text: str, *, at: datetime, writer: str, decision_id: str = "") -> Row:
    """Return the row of a timeline entry."""
    entry = TimelineEntry(at=at, kind=kind, text=text, decision_id=decision_id, writer=writer)
    return subject_rows.timeline_row(subject, entry, "-".join(part for part in (writer, kind, decision_id) if part))


def last_request(ledger: Ledger, incident: Incident) -> RepairRequest | None:
    """Return the last provider call of an incident for its node."""
    row = ledger.get(fleet_rows.lease_key(incident.slot, is_drill=incident.is_drill))
    if row is None:
        return None
    requests = [
        request for request in rows.decode(row, RepairLease).requests if request.incident_id == incident.incident_id
    ]
    return requests[-1] if requests else None
