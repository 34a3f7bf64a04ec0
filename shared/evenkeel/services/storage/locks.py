"""Locks: one watch and one sweep at a time. The invocation that took a lock renews it. After a crash it expires."""

import contextlib
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from evenkeel.domain.values import rfc3339
from evenkeel.ports import Conflict, Ledger, Put, Row
from evenkeel.services.storage.retries import commit_if_unchanged
from evenkeel.services.tables import fleet_rows


class Lock(NamedTuple):
    """A lock that an invocation has taken. `notes` is what the previous invocation stored for the next one."""

    row: Row
    seconds: float

    @property
    def notes(self) -> dict[str, Any]:
        """Notes of the previous invocation."""
        return dict(self.row.doc.get("notes", {}))

    @property
    def expires_at(self) -> datetime:
        """When the lock expires unless it is renewed."""
        return datetime.fromisoformat(self.row.doc["expiresAt"])


def take_lock(ledger: Ledger, name: str, taken_by: str, *, seconds: float, now: datetime) -> Lock | None:
    """Take a lock for a time. Return None if it is held.

    Idempotent: no, because each invocation has its own id; guarded by the row's version.
    """
    row = ledger.get(fleet_rows.lock_key(name)) or Row(fleet_rows.lock_key(name), {})
    if row.doc and datetime.fromisoformat(row.doc["expiresAt"]) > now:
        return None
    return _write_lock(ledger, row, taken_by, seconds, now, row.doc.get("notes", {}))


def is_taken(ledger: Ledger, name: str, *, now: datetime) -> bool:
    """Whether a lock is held now."""
    row = ledger.get(fleet_rows.lock_key(name))
    return row is not None and datetime.fromisoformat(row.doc["expiresAt"]) > now


def renew_lock(ledger: Ledger, lock: Lock, *, now: datetime) -> Lock | None:
    """Renew a lock once half of its time is over. Return None if another invocation took it after it expired."""
    if (lock.expires_at - now).total_seconds() > lock.seconds / 2:
        return lock
    return _write_lock(ledger, lock.row, str(lock.row.doc["owner"]), lock.seconds, now, lock.notes)


def unlock(ledger: Ledger, lock: Lock, *, now: datetime, notes: dict[str, Any] | None = None) -> None:
    """Unlock, unless another invocation has taken the lock since."""
    document = {**lock.row.doc, "expiresAt": rfc3339(now), "notes": lock.notes if notes is None else notes}
    with contextlib.suppress(Conflict):  # it expired, and another invocation took it
        ledger.commit(Put(Row(lock.row.key, document, lock.row.version)))


def _write_lock(
    ledger: Ledger, row: Row, taken_by: str, seconds: float, now: datetime, notes: dict[str, Any]
) -> Lock | None:
    expires_at = rfc3339(now + timedelta(seconds=seconds))
    document = {**row.doc, "owner": taken_by, "expiresAt": expires_at, "notes": notes}
    is_taken = commit_if_unchanged(ledger, Put(Row(row.key, document, row.version)))
    return Lock(Row(row.key, document, row.version + 1), seconds) if is_taken else None
