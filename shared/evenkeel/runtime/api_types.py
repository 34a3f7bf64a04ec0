"""The shapes that requests have. Names and bounds are checked here, before any service is asked."""

import unicodedata
from datetime import datetime
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.scheduling.jobs import DEFAULT_TEAM, JobSpec, JobState
from evenkeel.runtime.api import Body

LARGEST_PAGE = 200
LONGEST_LOG_TAIL = 5000


def _printable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not hold a NUL character")
    return text


def _one_line(text: str) -> str:
    """What people read in a story or a terminal: no line breaks, no escapes, nothing that turns the text around."""
    if any(unicodedata.category(character).startswith("C") for character in text):
        raise ValueError("must be one line of plain text")
    return text


def _written(value: object) -> object:
    """A number could be seconds or milliseconds: an instant is written out."""
    if value is not None and not isinstance(value, str):
        raise ValueError("must be a text such as 2026-11-03T10:15:00Z")
    return value


Text = Annotated[str, StringConstraints(max_length=32_768), AfterValidator(_printable)]
Reason = Annotated[
    str, StringConstraints(min_length=1, max_length=300, strip_whitespace=True), AfterValidator(_one_line)
]


class CheckpointBody(Body):
    """Where a job keeps its checkpoints."""

    uri: Text
    claim: Text = ""


class RecoveryBody(Body):
    """How often a job may fail by itself."""

    max_restarts: int | None = None


class JobBody(Body):
    """`POST /v1/jobs`. Only the shape is checked here: what a job may ask for, `domain.scheduling.submission` says."""

    name: Text
    team: Text = DEFAULT_TEAM
    priority_class: Text = ""
    image: Text
    command: Annotated[tuple[Text, ...], Field(max_length=256)]
    args: Annotated[tuple[Text, ...], Field(max_length=256)] = ()
    env: dict[str, Text] = {}
    nodes: int = 1
    gpus_per_node: int = 8
    instance_types: Annotated[tuple[Text, ...], Field(max_length=20)] = ()
    checkpoint: CheckpointBody | None = None
    recovery: RecoveryBody = RecoveryBody()
    grace_seconds: int = 30
    labels: dict[str, Text] = {}

    def spec(self) -> JobSpec:
        """Return the job in the domain's words."""
        return JobSpec(
            name=self.name,
            team=self.team,
            priority_class=self.priority_class,
            image=self.image,
            command=self.command,
            args=self.args,
            env=self.env,
            nodes=self.nodes,
            accelerators_per_node=self.gpus_per_node,
            instance_types=self.instance_types,
            checkpoint_uri=self.checkpoint.uri if self.checkpoint else "",
            checkpoint_claim=self.checkpoint.claim if self.checkpoint else "",
            grace_seconds=self.grace_seconds,
            max_restarts=self.recovery.max_restarts,
            labels=self.labels,
        )


class CancelBody(Body):
    """`POST /v1/jobs/{id}/cancel`."""

    reason: Annotated[str, StringConstraints(max_length=300), AfterValidator(_one_line)] = ""


class HoldBody(Body):
    """`POST /v1/clusters/{cluster}/automation/hold`."""

    reason: Reason
    until: Annotated[datetime | None, BeforeValidator(_written)] = None
    for_seconds: Annotated[int, Field(ge=1, le=7 * 86_400)] | None = None

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if (self.until is None) == (self.for_seconds is None):
            raise ValueError("give either until or forSeconds: a hold has an end")
        if self.until is not None and self.until.tzinfo is None:
            raise ValueError("until needs a time zone, for example 2026-11-03T10:15:00Z")
        return self


class ReleaseBody(Body):
    """`POST /v1/clusters/{cluster}/automation/release`."""

    reason: Annotated[str, StringConstraints(max_length=300), AfterValidator(_one_line)] = ""


def _split(value: object) -> object:
    return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value


class NoQuery(Body):
    """A route that takes no parameters."""


class PageQuery(Body):
    """Which page of a list."""

    page_size: Annotated[int, Field(ge=1, le=LARGEST_PAGE)] = 50
    next_page_token: Annotated[str, StringConstraints(max_length=8192)] = ""


class JobsQuery(PageQuery):
    """`GET /v1/jobs`."""

    state: Annotated[tuple[JobState, ...], BeforeValidator(_split)] = ()


class IncidentsQuery(PageQuery):
    """`GET /v1/incidents`."""

    state: Annotated[tuple[IncidentState, ...], BeforeValidator(_split)] = ()


class LogsQuery(Body):
    """`GET /v1/jobs/{id}/logs`."""

    attempt: Annotated[int, Field(ge=1)] | None = None
    rank: Annotated[int, Field(ge=0, le=4096)] = 0
    tail: Annotated[int, Field(ge=1, le=LONGEST_LOG_TAIL)] = 200
