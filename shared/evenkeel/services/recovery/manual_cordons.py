"""The row of manual cordons: read it, record a cordon, and delete records of removed cordons."""

from collections.abc import Callable, Mapping
from datetime import timedelta

from evenkeel.domain.recovery.manual_cordons import ManualCordon, ManualCordons
from evenkeel.ports import Ledger, Put, Row
from evenkeel.services.context import Context
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import fleet_rows, rows

_CORDON_DELAY = timedelta(minutes=2)
"""A cordon is recorded before it is set. A record this young may have no cordon on its node yet."""


def load_manual_cordons(ledger: Ledger) -> Mapping[str, ManualCordon]:
    """Return the cordons by the key of their node life."""
    row = ledger.get(fleet_rows.manual_cordons_key())
    return rows.decode(row, ManualCordons).by_life if row else {}


def record_cordon(ledger: Ledger, cordon: ManualCordon) -> None:
    """Record a cordon. Idempotent: yes, the last record of a node life counts.

    Raises:
        Conflict: the row kept changing.
    """
    _update_cordons(ledger, lambda manual_cordons: manual_cordons.with_cordon(cordon))


def delete_record(ledger: Ledger, life: str) -> None:
    """Delete the record of a node life's cordon. Idempotent: yes.

    Raises:
        Conflict: the row kept changing.
    """
    _update_cordons(ledger, lambda manual_cordons: manual_cordons.without_cordon_of(life))


def delete_outdated_records(cordoned_life_keys: frozenset[str], context: Context) -> int:
    """Delete the records of cordons that were removed from their nodes outside Evenkeel.

    Raises:
        Conflict: the row kept changing.
    """
    removed_life_keys = {
        life
        for life, cordon in load_manual_cordons(context.ledger).items()
        if life not in cordoned_life_keys and context.now - cordon.at > _CORDON_DELAY
    }
    if removed_life_keys:
        _update_cordons(
            context.ledger,
            lambda manual_cordons: ManualCordons(
                cordons=tuple(c for c in manual_cordons.cordons if c.life_key not in removed_life_keys)
            ),
        )
    return len(removed_life_keys)


def _update_cordons(ledger: Ledger, change: Callable[[ManualCordons], ManualCordons]) -> None:
    key = fleet_rows.manual_cordons_key()

    def commit_once() -> None:
        row = ledger.get(key)
        manual_cordons = rows.decode(row, ManualCordons) if row else ManualCordons()
        changed_cordons = change(manual_cordons)
        if changed_cordons != manual_cordons:
            ledger.commit(Put(Row(key, changed_cordons.to_json(), row.version if row else 0)))

    until_committed(commit_once, "The record of cordons changed during every try. Try again.")
