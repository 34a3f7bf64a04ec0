"""Results of a parser."""

from dataclasses import dataclass
from typing import TypeAlias

from evenkeel.domain.health.groups import GroupFact
from evenkeel.domain.health.incidents import NodeFact

Fact: TypeAlias = NodeFact | GroupFact


@dataclass(frozen=True, slots=True)
class ParsedEvent:
    """The facts of one event, at least one. Each is ingested by itself."""

    facts: tuple[Fact, ...]


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
