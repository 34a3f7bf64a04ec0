"""The hold of a person on scheduling: admissions, preemptions, resizes, migrations and rentals."""

from evenkeel.domain.recovery.holds import Holds
from evenkeel.services.context import Context
from evenkeel.services.tables import fleet_rows, rows


def wait_reason(context: Context) -> str:
    """Return why scheduling waits for the end of a hold, as a sentence; empty without such a hold."""
    row = context.ledger.get(fleet_rows.hold_key())
    hold = rows.decode(row, Holds).scheduling_hold(context.now) if row else None
    return hold.wait_reason if hold else ""
