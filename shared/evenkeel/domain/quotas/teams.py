"""Teams that share the fleet: their quotas, their members, and the settings for all of them.

    Team         a team's queue, members, namespace and budgets
    FleetQuotas  cohorts, flavors, priority classes and switches: settings that belong to no single team
    TeamSetup    both together

Without a set-up there is one queue for all jobs, and only the nodes limit it. Queues are written in the short form of
`domain/queue_simulation/short_form.py`. `setup_checks.py` checks a set-up.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, NamedTuple, Self

from pydantic import Field, WithJsonSchema, model_validator

from evenkeel.domain.jobs.pod_rules import NOTHING_ALLOWED, PodRules
from evenkeel.domain.kueue.objects import Cohort, Flavor, Queue, with_used_flavors
from evenkeel.domain.kueue.snapshot import SchedulerRules
from evenkeel.domain.queue_simulation.documents import Document
from evenkeel.domain.queue_simulation.profiles import RULES, Profile
from evenkeel.domain.queue_simulation.short_form import ShortCohort, ShortFlavor, ShortQueue, ShortQuotas
from evenkeel.domain.values import Value

MAX_GPU_HOURS = 1_000_000_000
"""Limit of a budget, larger than any fleet needs; a larger sum in micro-dollars would lose precision."""
MAX_USD = 1_000_000_000_000
MAX_ACCELERATORS = 10_000_000
MAX_SECONDS = 366 * 86_400
"""Longest time that a switch may protect a job."""
PRINCIPAL = re.compile(r"arn:aws[a-z-]*:iam::(\d{12}):(role|user)/(?:[\x21-\x7e]*/)?([\w+=,.@-]{1,64})", re.ASCII)
_SESSION = re.compile(r"arn:aws[a-z-]*:sts::(\d{12}):assumed-role/([\w+=,.@-]{1,64})/.+", re.ASCII)
_HYPERPOD_QUEUE = re.compile(r"(hyperpod-ns-(.+))-clusterqueue")


class _SetupPart(Value, Document):
    """A part of the set-up. It keeps unknown fields, so that a misspelt limit is reported."""


class Role(StrEnum):
    """The role of a member in a team. Each role includes the previous one."""

    VIEWER = "viewer"
    """Reads the team's jobs, and changes nothing."""
    SUBMITTER = "submitter"
    """Submits jobs, and changes its own jobs."""
    LEAD = "lead"
    """Changes any job of the team."""

    def includes(self, required_role: "Role") -> bool:
        """Whether this role includes all rights of the needed role."""
        roles = list(Role)
        return roles.index(self) >= roles.index(required_role)


def identity_of(arn: str) -> str:
    """Return the IAM identity of an ARN: `account:role/name` or `account:user/name`; empty for another ARN.

    All sessions of a role have the same identity. The path of a role is ignored: sessions do not show it, and a name is
    unique in an account.
    """
    if match := _SESSION.fullmatch(arn):
        return f"{match[1]}:role/{match[2]}"
    match = PRINCIPAL.fullmatch(arn)
    return f"{match[1]}:{match[2]}/{match[3]}" if match else ""


class Member(_SetupPart):
    """A member of a team, and its role."""

    principal: str
    """ARN of an IAM role or user."""
    role: Role = Role.SUBMITTER

    @property
    def identity(self) -> str:
        """The IAM identity of the member, as for callers."""
        return identity_of(self.principal)


class Period(StrEnum):
    """The period of a budget, in UTC."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    def key_at(self, instant: datetime) -> str:
        """Return the name of the period of an instant: `2026-11-03`, `2026-W45`, `2026-11`."""
        match self:
            case Period.DAY:
                return f"{instant:%Y-%m-%d}"
            case Period.WEEK:
                year, week, _ = instant.isocalendar()
                return f"{year}-W{week:02d}"
            case Period.MONTH:
                return f"{instant:%Y-%m}"


class Budget(_SetupPart):
    """A team's budget for a period. When it is spent, no job of the team starts."""

    period: Period = Period.MONTH
    gpu_hours: float | None = Field(None, ge=0, le=MAX_GPU_HOURS, allow_inf_nan=False)
    usd: float | None = Field(None, ge=0, le=MAX_USD, allow_inf_nan=False)


def _plan_schema(part: str) -> WithJsonSchema:
    """Refer to the schema of a part that `evenkeel plan` reads too."""
    message = f"A {part} in the short form: docs/schemas/quota.evenkeel.schema.json."
    return WithJsonSchema({"type": "object", "description": message})


class TeamQueue(ShortQueue):
    """A team's queue. It has the team's name."""

    name: str = ""


class Team(_SetupPart):
    """A team: its quota, its members, the namespace of its pods, and its limits and budgets."""

    name: str
    queue: Annotated[TeamQueue, _plan_schema("queue")] = TeamQueue()
    members: tuple[Member, ...] = ()
    namespace: str = ""
    """Namespace of its pods; empty for the stack's own namespace."""
    service_account: str = ""
    """Service account of its pods; empty for the stack's own account."""
    local_queue: str = ""
    """Kueue's LocalQueue in that namespace, if Kueue admits jobs; empty if it has the team's name."""
    images: tuple[str, ...] = ()
    """Images that its jobs may run; empty allows any image.

    A pattern that ends in `*`, after a registry and a slash, allows all images with that prefix.
    """
    checkpoints: tuple[str, ...] = ()
    """Folders in which its jobs may keep checkpoints; empty allows any folder that belongs to no other team."""
    priority_classes: tuple[str, ...] = ()
    """Priority classes of the fleet that its jobs may have; empty allows all."""
    allowed: PodRules = NOTHING_ALLOWED
    """Claims, Secrets, user ids, scratch folders and huge pages that its jobs may use."""
    max_accelerators_per_user: int | None = Field(None, ge=0, le=MAX_ACCELERATORS)
    budgets: tuple[Budget, ...] = ()

    def to_queue(self) -> Queue:
        """Return the team's queue for the scheduler."""
        return replace(self.queue.to_queue(), name=self.name)

    def allows_image(self, image: str) -> bool:
        """Whether its jobs may run this image.

        A path with `.`, `..` or an empty part matches no prefix.
        """
        is_plain = not {"", ".", ".."} & set(image.split("/"))
        return not self.images or any(
            is_plain and image.startswith(pattern[:-1]) if pattern.endswith("*") else image == pattern
            for pattern in self.images
        )

    def has_checkpoints(self, uri: str) -> bool:
        """Whether a checkpoint URI is in one of its folders."""
        return any(is_under(uri, checkpoint) for checkpoint in self.checkpoints)


def is_under(uri: str, folder: str) -> bool:
    """Whether a checkpoint URI is a folder or inside it: `s3://b/team-a/x` is not in `s3://b/team`."""
    return f"{uri.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


class Switches(_SetupPart):
    """Switches for the rules that Kueue does not have."""

    flap_guard_seconds: float = Field(
        RULES[Profile.EVENKEEL].flap_guard_seconds, ge=0, le=MAX_SECONDS, allow_inf_nan=False
    )
    min_run_seconds: float = Field(RULES[Profile.EVENKEEL].min_run_seconds, ge=0, le=MAX_SECONDS, allow_inf_nan=False)
    preempt_after_seconds: float = Field(
        RULES[Profile.EVENKEEL].preempt_after_seconds, ge=0, le=MAX_SECONDS, allow_inf_nan=False
    )
    never_overcommits: bool = RULES[Profile.EVENKEEL].never_overcommits
    spares_work: bool = RULES[Profile.EVENKEEL].spares_work


class FleetQuotas(_SetupPart):
    """The settings of the fleet: they belong to no single team."""

    cohorts: tuple[Annotated[ShortCohort, _plan_schema("cohort")], ...] = ()
    flavors: tuple[Annotated[ShortFlavor, _plan_schema("flavor")], ...] = ()
    """Kinds of capacity. An undescribed flavor is the instance type of its name."""
    priority_classes: dict[str, int] = {}
    fair_sharing: bool = True
    switches: Switches = Switches()
    members: tuple[Member, ...] = ()
    """Members with the same role in every team."""

    @property
    def rules(self) -> SchedulerRules:
        """The rules of every scheduling cycle."""
        return RULES[Profile.EVENKEEL]._replace(
            fair_sharing=self.fair_sharing, **{name: getattr(self.switches, name) for name in Switches.model_fields}
        )


class SchedulerDeclarations(NamedTuple):
    """The declarations from which a scheduler is built."""

    queues: tuple[Queue, ...]
    cohorts: tuple[Cohort, ...]
    flavors: tuple[Flavor, ...]
    rules: SchedulerRules


class TeamSetup(Value):
    """The whole set-up at one instant."""

    fleet: FleetQuotas = FleetQuotas()
    teams: tuple[Team, ...] = ()
    """Sorted by name."""

    @model_validator(mode="after")
    def _has_sorted_teams(self) -> Self:
        names = [team.name for team in self.teams]
        if names != sorted(set(names)):
            raise ValueError("teams must be sorted by name, each name once")
        return self

    @property
    def has_teams(self) -> bool:
        """Whether teams share the fleet. If not, there is one queue for all jobs and no limit."""
        return bool(self.teams)

    @cached_property
    def by_name(self) -> Mapping[str, Team]:
        """The teams by their names."""
        return {team.name: team for team in self.teams}

    @cached_property
    def namespaces(self) -> Mapping[str, str]:
        """The team of each namespace that a team owns."""
        return {team.namespace: team.name for team in self.teams if team.namespace}

    def with_team(self, team: Team) -> "TeamSetup":
        """Return this set-up with a team added, or replaced if its name is known."""
        other_teams = (other_team for other_team in self.teams if other_team.name != team.name)
        return self.replace(teams=tuple(sorted((*other_teams, team), key=lambda other_team: other_team.name)))

    @cached_property
    def scheduler_declarations(self) -> SchedulerDeclarations:
        """The declarations from which a scheduler is built; no queue without a team."""
        queues = {team.name: team.to_queue() for team in self.teams}
        cohorts = {cohort.name: cohort.to_cohort() for cohort in self.fleet.cohorts}
        flavors = {flavor.name: flavor.to_flavor() for flavor in self.fleet.flavors}
        used_flavors = with_used_flavors(flavors, queues.values())
        return SchedulerDeclarations(
            tuple(queues.values()), tuple(cohorts.values()), tuple(used_flavors.values()), self.fleet.rules
        )

    def priority_of(self, priority_class: str) -> int:
        """Return the priority of a class.

        A job without a class, or of a class that was removed, has the lowest priority of all classes, or 0.
        """
        classes = self.fleet.priority_classes
        return classes.get(priority_class, min(0, *classes.values()) if classes else 0)

    def role_in(self, team: str, identity: str) -> Role | None:
        """Return the higher of the roles that an identity has in a team and in the fleet; None without a role."""
        named_team = self.by_name.get(team)
        members = (*self.fleet.members, *(named_team.members if named_team else ()))
        roles = [member.role for member in members if identity and member.identity == identity]
        return max(roles, key=list(Role).index, default=None)

    def local_queue_of(self, team: str) -> str:
        """Return the LocalQueue for a team's jobs, if Kueue admits jobs."""
        named_team = self.by_name.get(team)
        return (named_team.local_queue if named_team else "") or team

    def teams_of(self, identity: str) -> tuple[str, ...]:
        """Return the names of the teams that an identity belongs to."""
        return tuple(
            team.name for team in self.teams if any(identity and member.identity == identity for member in team.members)
        )


def setup_of_quotas(quotas: ShortQuotas) -> TeamSetup:
    """Return the set-up of a quota file: each queue becomes a team without members, in a namespace of its name.

    The queue `hyperpod-ns-X-clusterqueue` of HyperPod becomes team X in namespace `hyperpod-ns-X`, with HyperPod's
    LocalQueue there.
    """
    fleet = FleetQuotas(
        cohorts=quotas.cohorts,
        flavors=quotas.flavors,
        priority_classes=quotas.priority_classes,
        fair_sharing=True if quotas.fair_sharing is None else quotas.fair_sharing,
    )
    teams = []
    for short_queue in quotas.queues:
        match = _HYPERPOD_QUEUE.fullmatch(short_queue.name)
        queue = TeamQueue.model_validate({**short_queue.model_dump(), "name": ""})
        names = {"name": short_queue.name, "namespace": short_queue.name}
        if match:
            names = {"name": match[2], "namespace": match[1], "local_queue": f"{match[1]}-localqueue"}
        teams.append(Team(queue=queue, **names))
    return TeamSetup(fleet=fleet, teams=tuple(sorted(teams, key=lambda team: team.name)))
