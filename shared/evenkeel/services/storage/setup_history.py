"""Read the setup of a past time, from the present setup and the recorded changes."""

from collections.abc import Sequence
from datetime import datetime

from evenkeel.domain.quotas.setup_history import SetupChange, SetupPeriod, setup_periods
from evenkeel.ports import Ledger, Table
from evenkeel.services.storage import team_setup
from evenkeel.services.tables import quota_rows, rows


def read_periods(ledger: Ledger, since: datetime, now: datetime) -> Sequence[SetupPeriod]:
    """Return the setups since a time, oldest first. In time without a period, the quotas are unknown.

    The setup is read before its changes. So a change between the two reads is newer than the setup, and ignored.
    """
    stored_setup = team_setup.load_setup(ledger)
    months = [f"{year}-{month:02d}" for year in range(since.year, now.year + 1) for month in range(1, 13)]
    changes = {}
    for month in months:
        if f"{since:%Y-%m}" <= month <= f"{now:%Y-%m}":
            for row in ledger.partition(Table.QUOTAS, quota_rows.SETUP_EVENTS, f"EVENT#{month}"):
                change = rows.decode(row, SetupChange)
                if change.at >= since:
                    changes[quota_rows.setup_version_of(row.key)] = change
    return setup_periods(stored_setup.setup, stored_setup.version, changes, since, now)
