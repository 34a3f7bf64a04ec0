"""The acts of people on the fleet, newest first: holds, cordons, answers to plans, and changes of policy and quotas.

Acts on a job are in the timeline of that job, which belongs to its team.
"""

import base64
import heapq
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Ledger, Table
from evenkeel.services.context import Context
from evenkeel.services.queries.read_policy import readable_changes
from evenkeel.services.storage import pagination
from evenkeel.services.tables import fleet_rows, incident_rows, quota_rows, rows

Json = dict[str, Any]

_DEFAULT_PERIOD = timedelta(days=30)
"""Without a start time, acts of this period are listed."""


class AuditFilter(NamedTuple):
    """The requested part of the audit."""

    since: datetime | None = None
    by: str = ""
    """Only acts whose person has this text in its name; empty for all."""


class _Act(NamedTuple):
    """A recorded act of a person."""

    at: str
    kind: str
    by: str
    text: str


def list_acts(audit_filter: AuditFilter, page: pagination.PageRequest, context: Context) -> Json:
    """Return one page of the acts of people, newest first.

    It reads month by month, so that a page reads few rows however long the fleet exists.

    Raises:
        BadPageToken: this list did not issue the token.
    """
    since = max(audit_filter.since or context.now - _DEFAULT_PERIOD, context.now - rows.KEPT)
    act_of_token = _read_token(page.page_token)
    items: list[Json] = []
    last_act: _Act | None = None
    for act in _acts_of_all_sources(context.ledger, since, context.now):
        if act.at < rfc3339(since):
            break
        if (act_of_token is not None and act >= act_of_token) or audit_filter.by not in act.by:
            continue
        if len(items) == page.size and last_act is not None:
            return {"since": rfc3339(since), "items": items, "nextPageToken": _write_token(last_act)}
        items.append(act._asdict())
        last_act = act
    return {"since": rfc3339(since), "items": items, "nextPageToken": None}


def _acts_of_all_sources(ledger: Ledger, since: datetime, until: datetime) -> Iterator[_Act]:
    """Yield the acts of all sources, newest first."""
    holds = _acts_by_month(ledger, Table.FLEET, fleet_rows.hold_key().pk, since, until)
    setups = _acts_by_month(ledger, Table.QUOTAS, quota_rows.SETUP_EVENTS, since, until)
    return heapq.merge(holds, setups, _policy_changes(ledger), reverse=True)


def _acts_by_month(ledger: Ledger, table: Table, partition: str, since: datetime, until: datetime) -> Iterator[_Act]:
    """Yield the acts of a partition, newest first. Each month is one read."""
    month = f"{until:%Y-%m}"
    while month >= f"{since:%Y-%m}":
        stored_rows = ledger.partition(table, partition, f"EVENT#{month}")
        yield from sorted((_act_of_entry(rows.decode(row, TimelineEntry)) for row in stored_rows), reverse=True)
        first_day = datetime.fromisoformat(f"{month}-01")
        month = f"{first_day - timedelta(days=1):%Y-%m}"


def _act_of_entry(entry: TimelineEntry) -> _Act:
    return _Act(at=rfc3339(entry.at), kind=entry.kind, by=entry.writer, text=entry.text)


def _policy_changes(ledger: Ledger) -> Iterator[_Act]:
    cursor = None
    while True:
        page = ledger.by_state(
            Table.INCIDENTS, incident_rows.POLICY_CHANGES, limit=50, cursor=cursor, newest_first=True
        )
        for change in readable_changes(page.rows):
            text = f"Policy change {change.number} by {change.by}: {change.reason}"
            yield _Act(at=rfc3339(change.at), kind="policy", by=change.by, text=text)
        cursor = page.cursor
        if cursor is None:
            return


def _write_token(act: _Act) -> str:
    return base64.urlsafe_b64encode("\n".join(act).encode()).decode().rstrip("=")


def _read_token(token: str) -> _Act | None:
    if not token:
        return None
    try:
        fields = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode().split("\n", 3)
        return _Act(*fields)
    except (ValueError, TypeError) as error:
        raise pagination.BadPageToken("The page token cannot be read.") from error
