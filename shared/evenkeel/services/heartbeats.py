"""The sign of life of each scheduled function: silence is an alarm, and `status` tells how old each one is."""

from datetime import datetime, timedelta

from evenkeel.domain.values import rfc3339
from evenkeel.ports import Conflict, Ledger, Put, Row, Telemetry
from evenkeel.services import rows

PACE = timedelta(seconds=10)
"""A function that runs more often than this says so no more often."""


def beat(ledger: Ledger, telemetry: Telemetry, function: str, now: datetime) -> None:
    """Record that a function finished a round.

    Idempotent: yes, the latest of several beats stays.
    """
    key = rows.heartbeat_key(function)
    row = ledger.get(key)
    last = row and datetime.fromisoformat(str(row.doc["at"]))
    if last and now - last < PACE:
        return
    try:
        ledger.commit(Put(Row(key, {"at": rfc3339(now)}, row.version if row else 0)))
    except Conflict:
        return  # another round of the same function was quicker: it lives
    telemetry.count("Heartbeat", function=function)
