"""Locks: one watch and one sweep at a time. The owner renews its lock, and the lock expires by itself after a crash."""

import contextlib
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from evenkeel.domain.values import rfc3339
from evenkeel.ports import Conflict, Ledger, Put, Row
from evenkeel.services.storage import fleet_rows


class Lock(NamedTuple):
    """A held lock. `notes` is the value that its last owner stored for the next owner."""

    row: Row
    seconds: float

    @property
    def notes(self) -> dict[str, Any]:
        """Notes of the last owner."""
        return dict(self.row.doc.get("notes", {}))

    @property
    def expires_at(self) -> datetime:
        """When the lock expires unless it is renewed."""
        return datetime.fromisoformat(self.row.doc["expiresAt"])


def take(ledger: Ledger, name: str, owner: str, *, seconds: float, now: datetime) -> Lock | None:
    """Take a lock for a time. Return None if it is held.

    Idempotent: no, because each owner is another; guarded by the row's version.
    """
    row = ledger.get(fleet_rows.lock_key(name)) or Row(fleet_rows.lock_key(name), {})
    if row.doc and datetime.fromisoformat(row.doc["expiresAt"]) > now:
        return None
    return _write(ledger, row, owner, seconds, now, row.doc.get("notes", {}))


def is_held(ledger: Ledger, name: str, *, now: datetime) -> bool:
    """Whether a lock is held now."""
    row = ledger.get(fleet_rows.lock_key(name))
    return row is not None and datetime.fromisoformat(row.doc["expiresAt"]) > now


def renew(ledger: Ledger, lock: Lock, *, now: datetime) -> Lock | None:
    """Renew a lock once half of its time is over. Return None if it expired and has another owner."""
    if (lock.expires_at - now).total_seconds() > lock.seconds / 2:
        return lock
    return _write(ledger, lock.row, str(lock.row.doc["owner"]), lock.seconds, now, lock.notes)


def release(ledger: Ledger, lock: Lock, *, now: datetime, notes: dict[str, Any] | None = None) -> None:
    """Release a lock, if it still has this owner."""
    document = {**lock.row.doc, "expiresAt": rfc3339(now), "notes": lock.notes if notes is None else notes}
    with contextlib.suppress(Conflict):  # it expired and has another owner
        ledger.commit(Put(Row(lock.row.key, document, lock.row.version)))


def _write(ledger: Ledger, row: Row, owner: str, seconds: float, now: datetime, notes: dict[str, Any]) -> Lock | None:
    expires_at = rfc3339(now + timedelta(seconds=seconds))
    document = {**row.doc, "owner": owner, "expiresAt": expires_at, "notes": notes}
    try:
        ledger.commit(Put(Row(row.key, document, row.version)))
    except Conflict:
        return None
    return Lock(Row(row.key, document, row.version + 1), seconds)
