"""Queues, topics and archives that record what they get."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenkeel.ports import BusEvent


@dataclass(frozen=True)
class WaitAnswerRequest:
    """A request to answer a wait."""

    subject: str
    name: str
    generation: int
    answer: dict[str, Any]


@dataclass
class RecordingWaitAnswerRequests:
    requests: list[WaitAnswerRequest] = field(default_factory=list)

    def request(self, subject: str, name: str, generation: int, answer: Mapping[str, Any]) -> None:
        self.requests.append(WaitAnswerRequest(subject, name, generation, dict(answer)))


@dataclass
class RecordingCycleRequests:
    reasons: list[str] = field(default_factory=list)

    def request(self, reason: str) -> None:
        self.reasons.append(reason)


@dataclass(frozen=True)
class SentAlert:
    """An alert to the on-call."""

    subject: str
    message: str
    key: str


@dataclass
class RecordingOnCall:
    alerts: list[SentAlert] = field(default_factory=list)

    def alert(self, subject: str, message: str, *, key: str) -> None:
        self.alerts.append(SentAlert(subject, message, key))


@dataclass
class RecordingBus:
    events: list[BusEvent] = field(default_factory=list)

    def publish(self, events: Sequence[BusEvent]) -> None:
        self.events += events


@dataclass
class RecordingChat:
    messages: list[dict[str, Any]] = field(default_factory=list)

    def send(self, message: Mapping[str, Any]) -> None:
        self.messages.append(dict(message))


@dataclass
class InMemoryRawEvents:
    kept: dict[str, bytes] = field(default_factory=dict)

    def keep(self, envelope_id: str, body: bytes) -> None:
        self.kept[envelope_id] = body


@dataclass
class InMemoryInbox:
    queued: list[dict[str, Any]] = field(default_factory=list)
    again: list[tuple[str, int]] = field(default_factory=list)
    backlog: int = 0
    """Envelopes in the queue."""

    def waiting(self) -> int:
        return self.backlog

    def put(self, document: Mapping[str, Any]) -> None:
        self.queued.append(dict(document))

    def delay_redelivery(self, receipt: str, seconds: int) -> None:
        self.again.append((receipt, seconds))


@dataclass(frozen=True)
class DeadLetter:
    """An unusable event."""

    body: str
    code: str
    reason: str


@dataclass
class InMemoryDeadLetters:
    letters: list[DeadLetter] = field(default_factory=list)

    def put(self, body: str, code: str, reason: str) -> None:
        self.letters.append(DeadLetter(body, code, reason))
