"""Messages to people, the event queue, and the stores of raw and malformed events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class OnCall(Protocol):
    """The people on call, who receive alerts."""

    def alert(self, subject: str, message: str, *, key: str) -> None:
        """Send one alert. Alerts with the same `key` are the same alert."""
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


class BusEvent(NamedTuple):
    """An event for the bus."""

    source: str
    detail_type: str
    detail: Mapping[str, Any]


class EventBus(Protocol):
    """The event bus on which Evenkeel publishes."""

    def publish(self, events: Sequence[BusEvent]) -> None:
        """Publish events. Idempotent: no, because a repeat is a second event; guarded by the id in each event.

        Raises:
            TransientError: The bus did not accept all events. It may have published some of them.
        """
        ...


class Chat(Protocol):
    """The topic for chat channels and ticket tools."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message. Idempotent: no, because a repeat is a second message; guarded by the id in it."""
        ...
