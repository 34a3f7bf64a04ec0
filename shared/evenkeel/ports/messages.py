"""Messages to people, the event queue, and the stores of raw and malformed events."""

from collections.abc import Mapping
from typing import Any, Protocol


class Pager(Protocol):
    """Pages people."""

    def page(self, subject: str, message: str, *, key: str) -> None:
        """Send one page. Pages with the same `key` are the same page."""
        ...


class RawEvents(Protocol):
    """The archive of inbound events in their original form."""

    def keep(self, envelope_id: str, body: bytes) -> None:
        """Store a raw event under its id. Idempotent: yes, by name."""
        ...


class Inbox(Protocol):
    """The event queue of `receive_event`. Evenkeel itself also sends events to it."""

    def put(self, document: Mapping[str, Any]) -> None:
        """Queue one event. Idempotent: no, because a repeat is a second copy; guarded by the key of its fact."""
        ...

    def waiting(self) -> int:
        """Return the approximate number of events in the queue."""
        ...

    def delay_redelivery(self, receipt: str, seconds: int) -> None:
        """Delay the next delivery of an event that was not handled. Idempotent: yes, the last delay counts."""
        ...


class DeadLetters(Protocol):
    """The store of malformed events of a known kind."""

    def put(self, body: str, code: str, reason: str) -> None:
        """Store the whole event with its error code. Raises on failure, so that the event is delivered again."""
        ...
