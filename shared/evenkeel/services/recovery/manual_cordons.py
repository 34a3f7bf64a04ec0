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


def record_first_cordon(ledger: Ledger, cordon: ManualCordon) -> ManualCordon | None:
    """Record a cordon, unless one of its node life is recorded. Return the earlier record; None if there was none.

    Raises:
        Conflict: the row kept changing.
    """
    earlier: ManualCordon | None = None

    def change(manual_cordons: ManualCordons) -> ManualCordons:
        nonlocal earlier
        earlier = manual_cordons.by_life.get(cordon.life_key)
        return manual_cordons if earlier else manual_cordons.with_cordon(cordon)

    _update_cordons(ledger, change)
    return earlier


def delete_record(ledger: Ledger, cordon: ManualCordon) -> None:
    """Delete the record of a cordon, unless a later cordon of the node life has replaced it. Idempotent: yes.

    Raises:
        Conflict: the row kept changing.
    """
    _update_cordons(ledger, lambda manual_cordons: manual_cordons.without(cordon))


def delete_outdated_records(cordoned_life_keys: frozenset[str], context: Context) -> int:
    """Delete the records of cordons that were removed from their nodes outside Evenkeel.

    Raises:
        Conflict: the row kept changing.
    """
    outdated = [
        cordon
        for life, cordon in load_manual_cordons(context.ledger).items()
        if life not in cordoned_life_keys and context.now - cordon.at > _CORDON_DELAY
    ]
    if outdated:
        _update_cordons(context.ledger, lambda manual_cordons: manual_cordons.without(*outdated))
    return len(outdated)


def _update_cordons(ledger: Ledger, change: Callable[[ManualCordons], ManualCordons]) -> None:
    key = fleet_rows.manual_cordons_key()

    def commit_once() -> None:
        row = ledger.get(key)
        manual_cordons = rows.decode(row, ManualCordons) if row else ManualCordons()
        changed_cordons = change(manual_cordons)
        if changed_cordons != manual_cordons:
            ledger.commit(Put(Row(key, changed_cordons.to_json(), row.version if row else 0)))

    until_committed(commit_once, "The record of cordons changed during every try. Try again.")
