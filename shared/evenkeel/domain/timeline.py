"""The timeline of an incident or a job."""

from evenkeel.domain.values import Instant, Sentence, Value


class TimelineEntry(Value):
    """An entry in the timeline of an incident or a job."""

    at: Instant
    kind: str
    """A past participle or a noun, lower case: `fault`, `decided`, `cordoned`, `job`, `repair`, `returned`, …"""
    text: Sentence
    decision_id: str = ""
    writer: str = ""
    """The service that wrote it."""
