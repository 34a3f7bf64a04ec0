"""One incident in the ledger: read, and changed under its version."""

from collections.abc import Callable, Sequence
from datetime import datetime

from evenkeel.domain.health.incidents import Incident, TimelineEntry
from evenkeel.domain.recovery.leases import RepairLease, RepairRequest
from evenkeel.domain.values import Value
from evenkeel.ports import Ledger, NotFound, Put, Row, Write
from evenkeel.services.context import Context
from evenkeel.services.storage import rows
from evenkeel.services.storage.retries import until_committed

MAX_TRIES = 6
"""How often a commit is decided anew before the conflict is left to the workflow's own retry."""

Change = Callable[[Incident], tuple[Incident, Sequence[Write]] | None]
"""From an incident as it stands to what it shall be and what else is written with it; None = nothing to do."""


class Request(Value):
    """One run of the recovery of one incident: the input of most of its states."""

    schema_version: int = 1
    incident_id: str
    run: int


def load(ledger: Ledger, incident_id: str) -> tuple[Incident, int]:
    """Return an incident and its version.

    Raises:
        NotFound: there is no such incident.
    """
    row = ledger.get(rows.incident_key(incident_id))
    if row is None:
        raise NotFound(f"there is no incident {incident_id}")
    return rows.read(row, Incident), row.version


def update(ledger: Ledger, incident_id: str, change: Change, *, known: tuple[Incident, int] | None = None) -> Incident:
    """Change an incident and what belongs with it in one commit; decide anew where somebody else was first.

    `known` is what `load` returned before: the first try goes from there and saves a read. If it is stale, its version
    is too, and the commit says so.

    Idempotent: as far as `change` is, which sees the incident as it stands each time.

    Raises:
        Conflict: somebody else was first too often.
    """
    first_try = [known] if known else []

    def attempt() -> Incident:
        return _commit_change(ledger, first_try.pop() if first_try else load(ledger, incident_id), change)

    return until_committed(attempt, f"incident {incident_id} changed on every try", tries=MAX_TRIES)


def update_once(ledger: Ledger, incident_id: str, change: Change) -> Incident:
    """Change an incident in one commit, without deciding anew: a conflict is the caller's news.

    Raises:
        Conflict: somebody else was first.
    """
    return _commit_change(ledger, load(ledger, incident_id), change)


def _commit_change(ledger: Ledger, known: tuple[Incident, int], change: Change) -> Incident:
    incident, version = known
    changed = change(incident)
    if changed is None:
        return incident
    after, writes = changed
    ledger.commit(Put(rows.incident_row(after, version)), *writes)
    return after


def drill_may_act(incident: Incident, context: Context) -> bool:
    """Return whether a drill may act now: where the stack allows it, and no real incident is open for the machine.

    A real incident takes no notice of a drill, so the drill gives way. Only drills are asked for.
    """
    return context.site.drills_may_act and (
        not incident.is_drill or context.ledger.get(rows.open_key(incident.life)) is None
    )


def timeline_put(subject: str, kind: str, text: str, *, at: datetime, writer: str, decision_id: str = "") -> Put:
    """Return the write of one line of a story."""
    return Put(timeline_row_of(subject, kind, text, at=at, writer=writer, decision_id=decision_id))


def timeline_row_of(subject: str, kind: str, text: str, *, at: datetime, writer: str, decision_id: str = "") -> Row:
    """Return the row of one line of a story."""
    entry = TimelineEntry(at=at, kind=kind, text=text, decision_id=decision_id, writer=writer)
    return rows.timeline_row(subject, entry, "-".join(part for part in (writer, kind, decision_id) if part))


def last_ask(ledger: Ledger, incident: Incident) -> RepairRequest | None:
    """Return the last call that an incident made for its machine."""
    row = ledger.get(rows.lease_key(incident.slot, is_drill=incident.is_drill))
    if row is None:
        return None
    asks = [ask for ask in rows.read(row, RepairLease).requests if ask.incident_id == incident.incident_id]
    return asks[-1] if asks else None
