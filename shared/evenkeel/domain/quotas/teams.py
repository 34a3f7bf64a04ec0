"""Who shares the fleet: teams with their quota and their people, and what holds for all of them.

    Team         one team's queue, who may do what in its name, where its pods run, what it may spend
    FleetQuotas  cohorts, flavors, priority classes and switches: what no single team owns
    SetUp        both together, as one pass weighs them

Nothing set up means one queue for everybody and no limit but the machines. The queues themselves are written in the
short form of `queues/own.py`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, NamedTuple, Self

from pydantic import Field, WithJsonSchema, model_validator

from evenkeel.domain.decisions import packed_size
from evenkeel.domain.jobs.validation import is_bucket_alias
from evenkeel.domain.kueue.documents import Document, unknown_fields
from evenkeel.domain.kueue.objects import Cohort, Flavor, Queue
from evenkeel.domain.kueue.own import OwnCohort, OwnFlavor, OwnQueue, OwnQuotas
from evenkeel.domain.kueue.setup import RULES, Declared, Profile
from evenkeel.domain.kueue.snapshot import Rules
from evenkeel.domain.kueue.webhook_rules import refusals
from evenkeel.domain.names import unknown_name
from evenkeel.domain.values import Value

MOST_TEAMS = 500
MOST_MEMBERS = 100
MOST_IMAGES = 50
MOST_COHORTS = 500
MOST_CLASSES = 100
MOST_CHECKPOINTS = 50
MOST_FLAVORS = 500
MOST_GPU_HOURS = 1_000_000_000
"""Of a budget. More than any fleet has; beyond such bounds a sum in micro-dollars is no number any more."""
MOST_USD = 1_000_000_000_000
MOST_ACCELERATORS = 10_000_000
MOST_SECONDS = 366 * 86_400
"""For which a switch protects a job."""
LARGEST_PART = 65_536
"""Bytes of one team, or of the fleet's part, as JSON in UTF-8."""
LARGEST_QUOTAS = 1_000_000
"""Bytes of the queues of all teams and the fleet's part together, as JSON."""
LARGEST_PACKED_QUOTAS = 120_000
"""Characters that the same takes where it is packed: each record of an admission holds it."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_ACCOUNT_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)
_IMAGES = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:/@-]{0,511}", re.ASCII)
_BEGINNING_OF_IMAGES = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.:-]{0,252}/([a-z0-9][a-z0-9._/-]{0,255})?\*", re.ASCII)
"""A registry, a slash, and perhaps the beginning of a repository: `registry*` would match `registry.evil.example`."""
_CHECKPOINTS = re.compile(
    r"(s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()=-]{1,256})*|file://(/[A-Za-z0-9!_.*'()=-]{1,255})+)/?",
    re.ASCII,
)
_PRINCIPAL = re.compile(r"arn:aws[a-z-]*:iam::(\d{12}):(role|user)/(?:[\x21-\x7e]*/)?([\w+=,.@-]{1,64})", re.ASCII)
_SESSION = re.compile(r"arn:aws[a-z-]*:sts::(\d{12}):assumed-role/([\w+=,.@-]{1,64})/.+", re.ASCII)
_HYPERPOD_QUEUE = re.compile(r"(hyperpod-ns-(.+))-clusterqueue")
_SYSTEM_NAMESPACES = (
    *("kube-", "amazon-", "aws-", "eks-", "hyperpod", "sagemaker", "kueue", "karpenter", "evenkeel", "cert-manager"),
    *("gatekeeper-", "gpu-operator", "istio-", "kubeflow", "nvidia-", "training-operator", "velero"),
)
"""Beginnings of namespaces that no team may have; `default` is another. HyperPod makes `hyperpod-ns-X` for team X."""
_SYSTEM_SUFFIX = "-system"
"""How controllers commonly end the names of their namespaces: `flux-system`, `kserve-system`."""
_HYPERPOD_NAMESPACE = "hyperpod-ns-"


SYSTEM_CLASSES = "system-"
"""How Kubernetes' own priority classes begin."""


class SetupError(NamedTuple):
    """One thing that cannot be set up."""

    field: str
    """In camelCase, as it was written: `queue.groups`, `members.0.principal`."""
    message: str


class _SetupPart(Value, Document):
    """A part of the set-up. What it does not know it keeps, to be told: a misspelt limit would be no limit."""


class Role(StrEnum):
    """What somebody may do in a team's name; each includes the last."""

    VIEWER = "viewer"
    """Belongs to it, and changes nothing."""
    SUBMITTER = "submitter"
    """Submits jobs, and changes those of its own."""
    LEAD = "lead"
    """Changes any job of the team."""

    def covers(self, needed: "Role") -> bool:
        """Whether who has this role may do what needs that one."""
        roles = list(Role)
        return roles.index(self) >= roles.index(needed)


def identity_of(arn: str) -> str:
    """Return who an ARN stands for, `account:role/name` or `account:user/name`; empty where it is neither's.

    A role is the same in every session, and whatever path it lies under: sessions do not show the path, and a name is
    given once in an account.
    """
    if found := _SESSION.fullmatch(arn):
        return f"{found[1]}:role/{found[2]}"
    found = _PRINCIPAL.fullmatch(arn)
    return f"{found[1]}:{found[2]}/{found[3]}" if found else ""


class Member(_SetupPart):
    """Somebody and its role."""

    principal: str
    """ARN of an IAM role, or of a user where there are users."""
    role: Role = Role.SUBMITTER

    @property
    def identity(self) -> str:
        """Who it is, in the form in which callers are known."""
        return identity_of(self.principal)


class Period(StrEnum):
    """The time over which a budget is spent, in UTC."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    def key_at(self, instant: datetime) -> str:
        """Name the period that an instant lies in: `2026-11-03`, `2026-W45`, `2026-11`."""
        match self:
            case Period.DAY:
                return f"{instant:%Y-%m-%d}"
            case Period.WEEK:
                year, week, _ = instant.isocalendar()
                return f"{year}-W{week:02d}"
            case Period.MONTH:
                return f"{instant:%Y-%m}"


class Budget(_SetupPart):
    """What a team may spend in a period: no job of it starts once that is spent."""

    period: Period = Period.MONTH
    gpu_hours: float | None = Field(None, ge=0, le=MOST_GPU_HOURS, allow_inf_nan=False)
    usd: float | None = Field(None, ge=0, le=MOST_USD, allow_inf_nan=False)


def _plan_schema(what: str) -> WithJsonSchema:
    """Describe a part that has a schema of its own: what `evenkeel plan` reads."""
    message = f"A {what} in the short form: docs/schemas/quota.evenkeel.schema.json."
    return WithJsonSchema({"type": "object", "description": message})


class TeamQueue(OwnQueue):
    """A team's queue. It bears the team's name."""

    name: str = ""


class Team(_SetupPart):
    """A team: its quota, its people, where its pods run and what from, and what it may spend."""

    name: str
    queue: Annotated[TeamQueue, _plan_schema("queue")] = TeamQueue()
    members: tuple[Member, ...] = ()
    namespace: str = ""
    """Where its pods run; empty = the stack's own."""
    service_account: str = ""
    """As whom they run; empty = the stack's own."""
    local_queue: str = ""
    """Kueue's LocalQueue in that namespace, where Kueue admits; empty = the team's name."""
    images: tuple[str, ...] = ()
    """Images its jobs may run. One that ends in `*`, behind a registry and a slash, allows all that begin so; none at
    all = any image."""
    checkpoints: tuple[str, ...] = ()
    """Folders under which its jobs may keep checkpoints; none at all = anywhere but in another team's."""
    priority_classes: tuple[str, ...] = ()
    """Priority classes of the fleet that its jobs may have; none at all = all of them."""
    most_accelerators_per_user: int | None = Field(None, ge=0, le=MOST_ACCELERATORS)
    budgets: tuple[Budget, ...] = ()

    def to_queue(self) -> Queue:
        """Return its queue as the engine has it."""
        return replace(self.queue.to_queue(), name=self.name)

    def allows_image(self, image: str) -> bool:
        """Whether its jobs may run this image. One with `.`, `..` or an empty part in its path matches no beginning."""
        is_plain = not {"", ".", ".."} & set(image.split("/"))
        return not self.images or any(
            is_plain and image.startswith(each[:-1]) if each.endswith("*") else image == each for each in self.images
        )

    def has_checkpoints(self, uri: str) -> bool:
        """Whether a place lies under one of its folders."""
        return any(is_under(uri, each) for each in self.checkpoints)


def is_under(uri: str, folder: str) -> bool:
    """Whether a checkpoint place is a folder, or lies in it: `s3://b/team-a/x` is not in `s3://b/team`."""
    return f"{uri.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


class Switches(_SetupPart):
    """What goes beyond Kueue's rules, and can be turned off."""

    flap_guard_seconds: float = Field(
        RULES[Profile.EVENKEEL].flap_guard_seconds, ge=0, le=MOST_SECONDS, allow_inf_nan=False
    )
    min_run_seconds: float = Field(RULES[Profile.EVENKEEL].min_run_seconds, ge=0, le=MOST_SECONDS, allow_inf_nan=False)
    never_overcommits: bool = RULES[Profile.EVENKEEL].never_overcommits
    spares_work: bool = RULES[Profile.EVENKEEL].spares_work


class FleetQuotas(_SetupPart):
    """What no single team owns."""

    cohorts: tuple[Annotated[OwnCohort, _plan_schema("cohort")], ...] = ()
    flavors: tuple[Annotated[OwnFlavor, _plan_schema("flavor")], ...] = ()
    """Kinds of capacity. One that is not described here is the instance type of its name."""
    priority_classes: dict[str, int] = {}
    fair_sharing: bool = True
    switches: Switches = Switches()
    members: tuple[Member, ...] = ()
    """Who has this role in every team."""

    @property
    def rules(self) -> Rules:
        """The rules of all cycles."""
        return RULES[Profile.EVENKEEL]._replace(
            fair_sharing=self.fair_sharing, **{name: getattr(self.switches, name) for name in Switches.model_fields}
        )


class Queues(NamedTuple):
    """What the engine's scheduler is built from."""

    queues: tuple[Queue, ...]
    cohorts: tuple[Cohort, ...]
    flavors: tuple[Flavor, ...]
    rules: Rules


class TeamSetup(Value):
    """All that is set up, at one instant."""

    fleet: FleetQuotas = FleetQuotas()
    teams: tuple[Team, ...] = ()
    """By name."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        names = [team.name for team in self.teams]
        if names != sorted(set(names)):
            raise ValueError("teams come by name, each once")
        return self

    @property
    def has_teams(self) -> bool:
        """Whether the fleet is shared by teams; if not, there is one queue for everybody and no limit."""
        return bool(self.teams)

    @cached_property
    def by_name(self) -> Mapping[str, Team]:
        """The teams by their names."""
        return {team.name: team for team in self.teams}

    @cached_property
    def namespaces(self) -> Mapping[str, str]:
        """Namespaces that are a team's own, each with its team."""
        return {team.namespace: team.name for team in self.teams if team.namespace}

    def with_team(self, team: Team) -> "TeamSetup":
        """Return this set-up with a team in the place of the one of its name."""
        others = (each for each in self.teams if each.name != team.name)
        return self.but(teams=tuple(sorted((*others, team), key=lambda each: each.name)))

    @cached_property
    def queues(self) -> Queues:
        """What the engine's scheduler is built from; no queue at all where no team is set up."""
        declared = Declared(Profile.EVENKEEL, self.fleet.rules)
        declared.queues = {team.name: team.to_queue() for team in self.teams}
        declared.cohorts = {each.name: each.to_cohort() for each in self.fleet.cohorts}
        declared.flavors = {each.name: each.to_flavor() for each in self.fleet.flavors}
        queues, cohorts, flavors = declared.everything()
        return Queues(tuple(queues), tuple(cohorts), tuple(flavors), declared.rules)

    def priority_of(self, priority_class: str) -> int:
        """Return a class's priority; a job without class, or of one that is gone, has the lowest of all, or 0."""
        classes = self.fleet.priority_classes
        return classes.get(priority_class, min(0, *classes.values()) if classes else 0)

    def role_in(self, team: str, identity: str) -> Role | None:
        """Return the role that somebody has in a team, the higher one of the team's own and the fleet's."""
        found = self.by_name.get(team)
        members = (*self.fleet.members, *(found.members if found else ()))
        roles = [each.role for each in members if identity and each.identity == identity]
        return max(roles, key=list(Role).index, default=None)

    def local_queue_of(self, team: str) -> str:
        """Return the LocalQueue that a team's jobs go to where Kueue admits."""
        found = self.by_name.get(team)
        return (found.local_queue if found else "") or team

    def teams_of(self, identity: str) -> tuple[str, ...]:
        """Return the teams that name somebody as a member, by name."""
        return tuple(
            team.name for team in self.teams if any(identity and each.identity == identity for each in team.members)
        )


# ---------------------------------------------------------------- what cannot be set up


def check_team(team: Team) -> tuple[SetupError, ...]:
    """Return everything that is wrong with a team by itself."""
    return tuple(_team_faults(team))


def check_fleet(fleet: FleetQuotas) -> tuple[SetupError, ...]:
    """Return everything that is wrong with the fleet's part by itself."""
    return tuple(_fleet_faults(fleet))


def check_setup(setup: TeamSetup) -> tuple[SetupError, ...]:
    """Return what is wrong between the parts: each is right by itself."""
    return tuple(_faults_between(setup))


def check_change(before: TeamSetup, after: TeamSetup, team: str = "") -> tuple[SetupError, ...]:
    """Return what a change makes wrong between the parts, and what stays wrong with the team that is changed.

    What an older release let in is mended team by team: the others' faults do not stand in the way of that.
    """
    known = set(check_setup(before))
    mine = f"Team {team} "
    return tuple(fault for fault in check_setup(after) if fault not in known or (team and mine in fault.message))


def _team_faults(team: Team) -> Iterator[SetupError]:
    for path in unknown_fields(team):
        yield SetupError(path, "is not a known field")
    if not _NAME.fullmatch(team.name):
        yield SetupError("name", "Use 1 to 63 lower-case letters, digits and dashes, without a dash at either end.")
    if team.queue.name not in ("", team.name):
        yield SetupError("queue.name", f"Use the team's name, {team.name}, as the queue name, or leave it empty.")
    for refusal in refusals(team.to_queue()):
        yield SetupError("queue.groups" if "/" in refusal else "queue", f"{refusal}.")
    if team.queue.cohort and not _NAME.fullmatch(team.queue.cohort):
        yield SetupError(
            "queue.cohort", "Use 1 to 63 lower-case letters, digits and dashes, without a dash at either end."
        )
    yield from _member_faults(team.members)
    if team.namespace and (not _NAME.fullmatch(team.namespace) or _is_of_the_system(team.namespace)):
        yield SetupError(
            "namespace", "Name a namespace of the team's own, in lower case, that is not a system namespace."
        )
    if team.service_account and not _ACCOUNT_NAME.fullmatch(team.service_account):
        yield SetupError("serviceAccount", "Name a service account of the team's namespace.")
    if team.local_queue and not _NAME.fullmatch(team.local_queue):
        yield SetupError("localQueue", "Name a LocalQueue: 1 to 63 lower-case letters, digits and dashes.")
    yield from _image_faults(team.images)
    yield from _checkpoint_faults(team.checkpoints)
    if len(team.priority_classes) > MOST_CLASSES:
        yield SetupError("priorityClasses", f"Name at most {MOST_CLASSES} classes.")
    for index, name in enumerate(team.priority_classes):
        if not _NAME.fullmatch(name):
            yield SetupError(f"priorityClasses.{index}", "Use 1 to 63 lower-case letters, digits and dashes.")
    yield from _size_faults(team)
    for period, times in Counter(each.period for each in team.budgets).items():
        if times > 1:
            yield SetupError(
                "budgets",
                f"Set one budget per {period}, not {times}. One budget can name hours and dollars.",
            )
    for index, budget in enumerate(team.budgets):
        if budget.gpu_hours is None and budget.usd is None:
            yield SetupError(f"budgets.{index}", "Name gpuHours, usd or both.")


def _is_of_the_system(namespace: str) -> bool:
    is_hyperpods_team = namespace.startswith(_HYPERPOD_NAMESPACE) and namespace != _HYPERPOD_NAMESPACE
    is_system = namespace.startswith(_SYSTEM_NAMESPACES) or namespace.endswith(_SYSTEM_SUFFIX)
    return namespace == "default" or (is_system and not is_hyperpods_team)


def _image_faults(images: tuple[str, ...]) -> Iterator[SetupError]:
    if len(images) > MOST_IMAGES:
        yield SetupError("images", f"Name at most {MOST_IMAGES} images.")
    for index, pattern in enumerate(images):
        parts = set(pattern.removesuffix("*").removesuffix("/").split("/"))
        is_known = _BEGINNING_OF_IMAGES if pattern.endswith("*") else _IMAGES
        if not is_known.fullmatch(pattern) or {"", ".", ".."} & parts:
            text = "Name an image. A `*` is allowed only at the end, after a registry and a slash: my.registry/nlp/*."
            yield SetupError(f"images.{index}", text)


def _checkpoint_faults(folders: tuple[str, ...]) -> Iterator[SetupError]:
    if len(folders) > MOST_CHECKPOINTS:
        yield SetupError("checkpoints", f"Name at most {MOST_CHECKPOINTS} folders.")
    for index, folder in enumerate(folders):
        parts = folder.partition("://")[2].split("/")
        if len(folder) > 1024 or not _CHECKPOINTS.fullmatch(folder) or {".", ".."} & set(parts):
            yield SetupError(f"checkpoints.{index}", "Name a folder: s3://bucket/prefix or file:///folder/path.")
        elif is_bucket_alias(folder):
            yield SetupError(f"checkpoints.{index}", "Name the bucket itself, not an access point alias.")


def _size_faults(part: "Team | FleetQuotas") -> Iterator[SetupError]:
    if (size := len(_text(part.to_json()).encode())) > LARGEST_PART:
        yield SetupError("", f"It takes {size} bytes as JSON; the limit is {LARGEST_PART}.")


def _text(document: object) -> str:
    # As rows keep it: every character that is not ASCII is an escape.
    return json.dumps(document, separators=(",", ":"))


def _member_faults(members: tuple[Member, ...]) -> Iterator[SetupError]:
    if len(members) > MOST_MEMBERS:
        yield SetupError("members", f"Name at most {MOST_MEMBERS} members: roles, which many people can assume.")
    for index, member in enumerate(members):
        if not _PRINCIPAL.fullmatch(member.principal):
            text = "Name the ARN of an IAM role, for example arn:aws:iam::111122223333:role/Research; not of a session."
            yield SetupError(f"members.{index}.principal", text)
    for identity in _duplicates(member.identity for member in members if member.identity):
        yield SetupError("members", f"{identity} is listed twice.")


def _fleet_faults(fleet: FleetQuotas) -> Iterator[SetupError]:
    for path in unknown_fields(fleet):
        yield SetupError(path, "is not a known field")
    if len(fleet.cohorts) > MOST_COHORTS:
        yield SetupError("cohorts", f"Name at most {MOST_COHORTS} cohorts.")
    for index, cohort in enumerate(fleet.cohorts):
        for what, name in (("name", cohort.name), ("parent", cohort.parent)):
            if not _NAME.fullmatch(name) and (name or what == "name"):
                yield SetupError(f"cohorts.{index}.{what}", "Use 1 to 63 lower-case letters, digits and dashes.")
        for refusal in refusals(cohort.to_cohort()):
            yield SetupError(f"cohorts.{index}", f"{refusal}.")
    for name in _duplicates(each.name for each in fleet.cohorts):
        yield SetupError("cohorts", f"{name} is listed twice.")
    for name in _duplicates(each.name for each in fleet.flavors):
        yield SetupError("flavors", f"{name} is listed twice.")
    if len(fleet.flavors) > MOST_FLAVORS:
        yield SetupError("flavors", f"Name at most {MOST_FLAVORS} flavors.")
    yield from _class_faults(fleet.priority_classes)
    parents = {each.name: each.parent for each in fleet.cohorts}
    for name in sorted(parents):
        if name in _ancestors(name, parents):
            yield SetupError("cohorts", f"{name} is its own ancestor, so no queue below it could admit jobs.")
    yield from _member_faults(fleet.members)
    yield from _size_faults(fleet)


def _class_faults(classes: Mapping[str, int]) -> Iterator[SetupError]:
    if len(classes) > MOST_CLASSES:
        yield SetupError("priorityClasses", f"Name at most {MOST_CLASSES} priority classes.")
    for name, value in classes.items():
        if not _NAME.fullmatch(name):
            shown = name[:80].encode("unicode_escape").decode()
            yield SetupError(f"priorityClasses.{shown}", "Use 1 to 63 lower-case letters, digits and dashes.")
        elif name.startswith(SYSTEM_CLASSES):
            yield SetupError(f"priorityClasses.{name}", "Classes that begin with system- are Kubernetes' own.")
        if abs(value) >= 2**31:
            yield SetupError(f"priorityClasses.{name[:80]}", "Use a 32-bit integer.")


def _faults_between(setup: TeamSetup) -> Iterator[SetupError]:
    if len(setup.teams) > MOST_TEAMS:
        yield SetupError("name", f"The fleet already has {MOST_TEAMS} teams, which is the limit.")
    # Whoever shares a namespace can reach the other's secrets.
    for namespace in _duplicates(team.namespace for team in setup.teams if team.namespace):
        owners = ", ".join(team.name for team in setup.teams if team.namespace == namespace)
        yield SetupError(
            "namespace", f"Teams {owners} would share namespace {namespace}. Give each team its own namespace."
        )
    for team in setup.teams if len(setup.teams) > 1 else ():
        if not team.namespace:
            yield SetupError("namespace", f"Team {team.name} has no namespace. With two or more teams, each needs one.")
    classes = setup.fleet.priority_classes
    for team in setup.teams:
        for name in team.priority_classes:
            if name not in classes:
                yield SetupError(
                    "priorityClasses",
                    f"Team {team.name} names an unknown class. {unknown_name('priority class', name, classes)}",
                )
    folders = sorted((f"{each.rstrip('/')}/", team.name) for team in setup.teams for each in team.checkpoints)
    around: list[tuple[str, str]] = []
    for folder, name in folders:
        while around and not folder.startswith(around[-1][0]):
            around.pop()
        # A folder on a claim lies in its team's own namespace, whatever its path.
        for outer, owner in around if folder.startswith("s3://") else ():
            if owner != name:
                yield SetupError("checkpoints", f"{folder} of team {name} is inside {outer} of team {owner}.")
        around.append((folder, name))
    queues = [*(team.queue.model_dump(mode="json", by_alias=True) for team in setup.teams), setup.fleet.to_json()]
    if (size := len(_text(queues).encode())) > LARGEST_QUOTAS:
        yield SetupError("queue", f"All queues together take {size} bytes as JSON; the limit is {LARGEST_QUOTAS}.")
    elif size > LARGEST_PACKED_QUOTAS and (size := packed_size(queues)) > LARGEST_PACKED_QUOTAS:
        text = f"All queues together take {size} characters packed; the limit is {LARGEST_PACKED_QUOTAS}."
        yield SetupError("queue", text)


def _ancestors(name: str, parents: Mapping[str, str]) -> set[str]:
    found: set[str] = set()
    while (name := parents.get(name, "")) and name not in found:
        found.add(name)
    return found


def _duplicates(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)


def setup_of_quotas(quotas: OwnQuotas) -> TeamSetup:
    """Return the set-up that a quota file stands for: every queue is a team in a namespace of its name, without people.

    A queue of HyperPod's, `hyperpod-ns-X-clusterqueue`, is team X in namespace `hyperpod-ns-X`, with the
    LocalQueue that HyperPod makes there.
    """
    fleet = FleetQuotas(
        cohorts=quotas.cohorts,
        flavors=quotas.flavors,
        priority_classes=quotas.priority_classes,
        fair_sharing=True if quotas.fair_sharing is None else quotas.fair_sharing,
    )
    teams = []
    for each in quotas.queues:
        found = _HYPERPOD_QUEUE.fullmatch(each.name)
        queue = TeamQueue.model_validate({**each.model_dump(), "name": ""})
        names = {"name": each.name, "namespace": each.name}
        if found:
            names = {"name": found[2], "namespace": found[1], "local_queue": f"{found[1]}-localqueue"}
        teams.append(Team(queue=queue, **names))
    return TeamSetup(fleet=fleet, teams=tuple(sorted(teams, key=lambda team: team.name)))
