"""The shapes that requests have. Names and bounds are checked here, before any service is asked."""

import re
from datetime import datetime
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, field_validator, model_validator

from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.scheduling.jobs import DEFAULT_TEAM, JobSpec, JobState
from evenkeel.runtime.api import Body

LARGEST_PAGE = 200
LONGEST_LOG_TAIL = 5000

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_LABEL_KEY = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_INSTANCE_TYPE = re.compile(r"(ml\.)?[a-z][a-z0-9-]{0,30}\.[a-z0-9-]{1,30}", re.ASCII)
_S3_URI = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()=-]+)+", re.ASCII)

_SET_BY_EVENKEEL = frozenset({"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "JOB_COMPLETION_INDEX", "POD_IP"})


def _dns_label(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError("must be 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit")
    return text


def _printable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not hold a NUL character")
    return text


DnsLabel = Annotated[str, AfterValidator(_dns_label)]
Text = Annotated[str, StringConstraints(max_length=4096), AfterValidator(_printable)]
Reason = Annotated[
    str, StringConstraints(min_length=1, max_length=300, strip_whitespace=True), AfterValidator(_printable)
]


class CheckpointBody(Body):
    """Where a job keeps its checkpoints."""

    uri: Annotated[str, StringConstraints(max_length=512)]

    @field_validator("uri")
    @classmethod
    def _is_s3(cls, uri: str) -> str:
        uri = uri.rstrip("/")
        if not _S3_URI.fullmatch(uri) or "/../" in f"{uri}/" or "/./" in f"{uri}/":
            raise ValueError("must be s3://bucket/prefix, with a prefix of this job's own")
        return uri


class RecoveryBody(Body):
    """How often a job may fail by itself."""

    max_restarts: Annotated[int, Field(ge=0, le=100)] | None = None


class JobBody(Body):
    """`POST /v1/jobs`."""

    name: DnsLabel
    team: DnsLabel = DEFAULT_TEAM
    priority_class: Annotated[str, StringConstraints(max_length=63)] = ""
    image: Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^\S+$")]
    command: Annotated[tuple[Text, ...], Field(min_length=1, max_length=64)]
    args: Annotated[tuple[Text, ...], Field(max_length=256)] = ()
    env: Annotated[dict[str, Text], Field(max_length=100)] = {}
    nodes: Annotated[int, Field(ge=1, le=2048)] = 1
    gpus_per_node: Annotated[int, Field(ge=1, le=16)] = 8
    instance_types: Annotated[tuple[str, ...], Field(max_length=20)] = ()
    checkpoint: CheckpointBody | None = None
    recovery: RecoveryBody = RecoveryBody()
    grace_seconds: Annotated[int, Field(ge=0, le=600)] = 30
    labels: Annotated[dict[str, str], Field(max_length=32)] = {}

    @field_validator("priority_class")
    @classmethod
    def _class_is_a_name(cls, text: str) -> str:
        return _dns_label(text) if text else text

    @field_validator("env")
    @classmethod
    def _env_names(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if not _ENV_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not an environment variable's name")
            if name in _SET_BY_EVENKEEL or name.startswith("EVENKEEL_"):
                raise ValueError(f"{name} is set by Evenkeel")
        return env

    @field_validator("instance_types")
    @classmethod
    def _types(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _INSTANCE_TYPE.fullmatch(name):
                raise ValueError(f"{name!r} is not an instance type")
        return names

    @field_validator("labels")
    @classmethod
    def _labels(cls, labels: dict[str, str]) -> dict[str, str]:
        for key, value in labels.items():
            if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
                raise ValueError(f"{key!r}: {value!r} is not a Kubernetes label")
            if key.partition("/")[0].endswith(("evenkeel.io", "kubernetes.io", "k8s.io")):
                raise ValueError(f"{key!r} has a prefix that belongs to others")
        return labels

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
            grace_seconds=self.grace_seconds,
            max_restarts=self.recovery.max_restarts,
            labels=self.labels,
        )


class CancelBody(Body):
    """`POST /v1/jobs/{id}/cancel`."""

    reason: Annotated[str, StringConstraints(max_length=300), AfterValidator(_printable)] = ""


class HoldBody(Body):
    """`POST /v1/clusters/{cluster}/automation/hold`."""

    reason: Reason
    until: datetime | None = None
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

    reason: Annotated[str, StringConstraints(max_length=300), AfterValidator(_printable)] = ""


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
