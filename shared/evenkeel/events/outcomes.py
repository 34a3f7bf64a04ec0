"""Results of a parser."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, TypeAlias

from evenkeel.domain.health.group_facts import GroupFact
from evenkeel.domain.health.incidents import NodeFact

Fact: TypeAlias = NodeFact | GroupFact


SHORT_DEADLINE = timedelta(minutes=15)
"""EC2 reclaims a Spot instance two minutes after its notice. Planned work is hours or days away."""


class Urgency(IntEnum):
    """The order in which the events of a batch are handled."""

    SHORT_DEADLINE = 0
    """AWS ends the node soon."""
    NORMAL = 1
    LARGE = 2
    """The event names too many machines for one part, and is split."""


@dataclass(frozen=True, slots=True)
class ParsedEvent:
    """The facts of one event, at least one. Each fact is ingested by itself."""

    facts: tuple[Fact, ...]
    smaller_events: tuple[Mapping[str, Any], ...] = ()
    """Smaller events in place of this event, if it names more machines than one invocation should ingest."""

    @property
    def urgency(self) -> Urgency:
        """How soon the event must be handled."""
        if self.smaller_events:
            return Urgency.LARGE
        deadlines = ((fact.deadline_at, fact.observed_at) for fact in self.facts)
        is_short = any(until is not None and until - at <= SHORT_DEADLINE for until, at in deadlines)
        return Urgency.SHORT_DEADLINE if is_short else Urgency.NORMAL


@dataclass(frozen=True, slots=True)
class Ignored:
    """A known event that needs no action."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """An event of a kind without a parser. It is archived and counted; its fields are not interpreted."""

    reason: str
    code: str = "EVENT_UNKNOWN_TYPE"


@dataclass(frozen=True, slots=True)
class Malformed:
    """An event of a known kind that is not valid. The dead-letter queue keeps the whole event."""

    code: str
    reason: str


ParseResult: TypeAlias = ParsedEvent | Ignored | Unknown | Malformed
