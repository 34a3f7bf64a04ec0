"""The parameters of the queries that requests may have. They need none of the models of request bodies."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationInfo

from evenkeel.domain.capacity.utilization import GroupBy
from evenkeel.domain.health.incidents import IncidentState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.nodes import NodeState
from evenkeel.domain.outbound.events import OutboundKind
from evenkeel.runtime.api import Body
from evenkeel.runtime.request_fields import PoolName, Reason, Timestamp, printable

LARGEST_PAGE = 200
LONGEST_LOG_TAIL = 5000


def _split(value: object) -> object:
    return tuple(dict.fromkeys(part for part in value.split(",") if part)) if isinstance(value, str) else value


def _check_unmanaged_filter(value: str, fields: ValidationInfo) -> str:
    has_filters = any(map(fields.data.get, ("state", "team", "sort", "next_page_token")))
    if value and (has_filters or fields.data.get("priority_class") is not None):
        raise ValueError("cannot be combined with state, team, class, sort or nextPageToken")
    return value


class NoQuery(Body):
    """A route that takes no parameters."""


class RemovalQuery(Body):
    """`DELETE /v1/teams/{team}`."""

    reason: Reason


DecisionKind = Annotated[str, StringConstraints(max_length=40, pattern=r"^[A-Z_]+$")]
"""Kind of a decision: `RECOVERY`, `REPAIR`, `DRAIN`, `RESUME`, `ADMISSION`, …"""


class PageQuery(Body):
    """The page of a list."""

    page_size: Annotated[int, Field(ge=1, le=LARGEST_PAGE)] = 50
    next_page_token: Annotated[str, StringConstraints(max_length=8192)] = ""


NodeSort = Literal[
    "state",
    "-state",
    "instanceId",
    "-instanceId",
    "pool",
    "-pool",
    "instanceType",
    "-instanceType",
    "gpusInUse",
    "-gpusInUse",
    "launchedAt",
    "-launchedAt",
    "changedAt",
    "-changedAt",
]
JobSort = Literal[
    "state",
    "-state",
    "name",
    "-name",
    "team",
    "-team",
    "priority",
    "-priority",
    "nodes",
    "-nodes",
    "submittedAt",
    "-submittedAt",
    "startedAt",
    "-startedAt",
    "endedAt",
    "-endedAt",
]


class NodesQuery(PageQuery):
    """`GET /v1/nodes`."""

    pool: Annotated[str, StringConstraints(max_length=63)] = ""
    """Only nodes of this pool: a HyperPod instance group or a NodePool."""
    state: Annotated[tuple[NodeState, ...], BeforeValidator(_split)] = ()
    gone: Literal["", "true"] = ""
    """`true`: with nodes that are gone, which are remembered for 30 days."""
    sort: NodeSort | None = None
    """Field to sort by; with `-`, in descending order. `state` lists nodes with problems first."""


class UtilizationQuery(Body):
    """`GET /v1/utilization`."""

    by: GroupBy = GroupBy.POOL
    """`pool`: an item for each pool. `node`: one for each node."""
    cluster: Annotated[str, StringConstraints(max_length=100)] = ""
    """Only nodes of this Kubernetes cluster."""
    pool: Annotated[str, StringConstraints(max_length=63)] = ""
    """Only nodes of this pool: a HyperPod instance group or a NodePool."""


class JobsQuery(PageQuery):
    """`GET /v1/jobs`."""

    state: Annotated[tuple[JobState, ...], BeforeValidator(_split)] = ()
    team: Annotated[str, StringConstraints(max_length=63)] = ""
    priority_class: Annotated[str | None, StringConstraints(max_length=63), Field(alias="class")] = None
    """Empty: jobs without a class."""
    sort: JobSort | None = None
    """Field to sort by; with `-`, in descending order. Jobs without a value come last."""
    unmanaged: Annotated[Literal["", "true"], AfterValidator(_check_unmanaged_filter)] = ""
    """`true`: the work that Evenkeel did not start, instead."""


class IncidentsQuery(PageQuery):
    """`GET /v1/incidents`."""

    state: Annotated[tuple[IncidentState, ...], BeforeValidator(_split)] = ()


class DecisionsQuery(PageQuery):
    """`GET /v1/decisions`."""

    subject: Annotated[str, StringConstraints(max_length=80, pattern=r"^((job|inc)-[A-Za-z0-9-]+)?$")] = ""
    """Id of the job or incident that the decisions are about; empty: the whole fleet."""
    kind: Annotated[tuple[DecisionKind, ...], BeforeValidator(_split)] = ()


class EventsQuery(PageQuery):
    """`GET /v1/events`."""

    kind: Annotated[tuple[OutboundKind, ...], BeforeValidator(_split)] = ()
    subject: Annotated[str, StringConstraints(max_length=253), AfterValidator(printable)] = ""
    """Id of an incident, job or node, or the name of a team or of the fleet."""
    team: Annotated[str, StringConstraints(max_length=63)] = ""
    since: Timestamp | None = None
    """Events that were recorded since; without it, the last 90 days."""


class ShadowReportQuery(PageQuery):
    """`GET /v1/shadow-report`."""

    since: Timestamp | None = None
    """Incidents that were opened since; without it, the last 30 days."""
    pool: PoolName = ""
    window_hours: Annotated[int, Field(ge=1, le=168)] = 24
    """The observation window: how long an action of an owner counts, and how long a healthy node must work."""


class CostReportQuery(Body):
    """`GET /v1/cost-report`."""

    since: Timestamp | None = None
    """Begin of the window; without it, 30 days before its end."""
    until: Timestamp | None = None
    """End of the window; without it, now."""


class ShowbackQuery(PageQuery):
    """`GET /v1/showback`."""

    since: Timestamp | None = None
    """Begin of the window; without it, 30 days before its end."""
    until: Timestamp | None = None
    """End of the window; without it, now."""
    team: Annotated[str, StringConstraints(min_length=1, max_length=63), AfterValidator(printable)] | None = None
    """Only jobs of this team."""
    label: Annotated[str, StringConstraints(max_length=63), AfterValidator(printable)] = "project"
    """The label of jobs whose value is their project."""


class AuditQuery(PageQuery):
    """`GET /v1/audit`."""

    since: Timestamp | None = None
    """Acts since; without it, of the last 30 days."""
    by: Annotated[str, StringConstraints(max_length=200)] = ""
    """Only acts of persons whose name contains this text."""


class LogsQuery(Body):
    """`GET /v1/jobs/{id}/logs`."""

    attempt: Annotated[int, Field(ge=1)] | None = None
    rank: Annotated[int, Field(ge=0, le=4096)] | None = None
    """Omitted: rank 0, or the lowest rank that left a log."""
    tail: Annotated[int, Field(ge=1, le=LONGEST_LOG_TAIL)] = 200
    timestamps: Literal["", "true"] = ""
    """`true`: each line begins with its time, in RFC 3339 UTC."""
