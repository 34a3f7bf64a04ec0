"""What a parser may answer."""

from dataclasses import dataclass
from typing import TypeAlias

from evenkeel.domain.health.groups import GroupFact
from evenkeel.domain.health.incidents import NodeFact

Fact: TypeAlias = NodeFact | GroupFact


@dataclass(frozen=True, slots=True)
class ParsedEvent:
    """The facts that one event tells, each of them to be taken in by itself; at least one."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Ignored:
    """A known event that calls for nothing."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """An event of a kind that no parser knows. Archived and counted, never guessed from its fields."""

    reason: str
    code: str = "EVENT_UNKNOWN_TYPE"


@dataclass(frozen=True, slots=True)
class Malformed:
    """An event of a known kind that cannot be read. Kept whole for a person."""

    code: str
    reason: str


ParseResult: TypeAlias = ParsedEvent | Ignored | Unknown | Malformed


class BadEvent(Exception):
    """Raised inside a parser at the first fault; never leaves `events`."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.malformed = Malformed(code, reason)
