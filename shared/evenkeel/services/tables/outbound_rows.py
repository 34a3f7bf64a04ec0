"""Keys, index entries and lifetimes of published events. The events are rows of the incidents table."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from evenkeel.domain.outbound.events import OutboundEvent
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Key, Row, Table

EVENTS_KEPT = timedelta(days=90)
"""How long the list of events goes back."""


def event_key(event_id: str) -> Key:
    """Return the key `EVT#id / META`: a repeated delivery finds the row."""
    return Key(Table.INCIDENTS, f"EVT#{event_id}", "META")


def event_row(event: OutboundEvent, recorded_at: datetime) -> Row:
    """Return the row; `byState` lists it under `EVT#<month>` by the time of its record, not of its change.

    A month bounds the size of a partition. Writers of one partition of the index share 1,000 rows a second.
    """
    index_entry = (month_of(recorded_at), f"{rfc3339(recorded_at)}#{event.event_id}")
    doc = {"recordedAt": rfc3339(recorded_at), "event": event.to_json()}
    return Row(event_key(event.event_id), doc, 0, index_entry, recorded_at + EVENTS_KEPT)


def month_of(instant: datetime) -> str:
    """Return the index partition of a time."""
    return f"EVT#{instant:%Y-%m}"


def months_between(oldest: datetime, newest: datetime) -> Iterator[str]:
    """Yield the index partitions from a time to another, the oldest first."""
    year, month = oldest.year, oldest.month
    while (year, month) <= (newest.year, newest.month):
        yield f"EVT#{year:04d}-{month:02d}"
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
