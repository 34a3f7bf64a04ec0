"""The published events for the API, newest first."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from evenkeel.domain.outbound.events import OutboundEvent, OutboundKind
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Row, Table
from evenkeel.services.context import Context
from evenkeel.services.queries.disclosure import Reader
from evenkeel.services.storage import pagination
from evenkeel.services.tables import outbound_rows

Json = dict[str, Any]


class EventFilter(NamedTuple):
    """The filter of a list of events."""

    kinds: Sequence[OutboundKind] = ()
    """None = all."""
    subject: str = ""
    """Id of an incident, job or node, or the name of a team or fleet; empty = any."""
    team: str = ""
    since: datetime | None = None
    """Events that were recorded since; None = as long as events are kept."""

    def is_match(self, row: Row) -> bool:
        """Whether an event's row matches, apart from its time."""
        event = row.doc["event"]
        return (
            (not self.kinds or event["kind"] in self.kinds)
            and self.subject in ("", event["subject"])
            and self.team in ("", event["team"])
        )


def list_events(event_filter: EventFilter, page: pagination.PageRequest, reader: Reader, context: Context) -> Json:
    """Return one page of events, by the time of their record, newest first.

    Events about budgets are listed for members of their team and for operators.

    The time of the record only grows, however late a change was published. So a caller that asks for all events since
    the newest event that it has misses none. The token of a page stays valid while new events arrive.

    Raises:
        BadPageToken: this list did not issue the token.
    """
    kept_since = context.now - outbound_rows.EVENTS_KEPT
    oldest_at = max(event_filter.since or kept_since, kept_since)
    oldest_text = rfc3339(oldest_at)
    answer = pagination.page_newest_first(
        context.ledger,
        Table.INCIDENTS,
        tuple(reversed(tuple(outbound_rows.months_between(oldest_at, context.now)))),
        page,
        # An older row passes the filter, so that it ends the list and not the rows after it.
        lambda row: row.doc["recordedAt"] < oldest_text or (event_filter.is_match(row) and _is_visible(row, reader)),
        list_name="EVENT",
    )
    recent_rows = [row for row in answer.rows if row.doc["recordedAt"] >= oldest_text]
    has_ended = len(recent_rows) < len(answer.rows)
    return {
        "asOf": rfc3339(context.now),
        "keptDays": outbound_rows.EVENTS_KEPT.days,
        "items": [_event_document(row) for row in recent_rows],
        "nextPageToken": None if has_ended else answer.next_token or None,
    }


_ABOUT_BUDGETS = (OutboundKind.BUDGET_NEAR_END, OutboundKind.BUDGET_RUNS_OUT)


def _is_visible(row: Row, reader: Reader) -> bool:
    event = row.doc["event"]
    return event["kind"] not in _ABOUT_BUDGETS or reader.may_see_spend_of(event["team"])


def newest_recorded_at(context: Context) -> str | None:
    """Return when the newest event of this month was recorded; None if there is none. One read."""
    month = outbound_rows.month_of(context.now)
    page = context.ledger.by_state(Table.INCIDENTS, month, limit=1, newest_first=True)
    return str(page.rows[0].doc["recordedAt"]) if page.rows else None


def _event_document(row: Row) -> Json:
    event = OutboundEvent.model_validate(row.doc["event"])
    return {
        "id": event.event_id,
        "kind": event.kind,
        "occurredAt": rfc3339(event.occurred_at),
        "recordedAt": row.doc["recordedAt"],
        "subject": event.subject,
        "team": event.team or None,
        "by": event.by or None,
        "text": event.text,
        "isDrill": event.is_drill,
        "data": event.data,
    }
