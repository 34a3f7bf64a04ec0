"""The checks of a team set-up: fields, sizes, and conflicts between teams."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from evenkeel.domain.decisions import packed_size
from evenkeel.domain.jobs.validation import is_bucket_alias
from evenkeel.domain.name_suggestions import unknown_name
from evenkeel.domain.plurals import count_of
from evenkeel.domain.queue_simulation.documents import unknown_fields
from evenkeel.domain.queue_simulation.webhook_rules import refusals
from evenkeel.domain.quotas.teams import PRINCIPAL, Budget, FleetQuotas, Member, Team, TeamSetup

MAX_TEAMS = 500
MAX_MEMBERS = 100
MAX_IMAGES = 50
MAX_COHORTS = 500
MAX_CLASSES = 100
MAX_CHECKPOINTS = 50
MAX_FLAVORS = 500
LARGEST_PART = 65_536
"""Bytes of one team, or of the fleet's part, as JSON in UTF-8."""
LARGEST_QUOTAS = 1_000_000
"""Bytes of the queues of all teams and the fleet's part together, as JSON."""
LARGEST_PACKED_QUOTAS = 120_000
"""Characters of the same queues when packed. Each record of an admission holds this text."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_ACCOUNT_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)
_IMAGES = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:/@-]{0,511}", re.ASCII)
_IMAGE_PREFIXES = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.:-]{0,252}/([a-z0-9][a-z0-9._/-]{0,255})?\*", re.ASCII)
"""A registry, a slash, and optionally the start of a repository: `registry*` would match `registry.evil.example`."""
_CHECKPOINTS = re.compile(
    r"(s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()=-]{1,256})*|file://(/[A-Za-z0-9!_.*'()=-]{1,255})+)/?",
    re.ASCII,
)
_SYSTEM_NAMESPACES = (
    *("kube-", "amazon-", "aws-", "eks-", "hyperpod", "sagemaker", "kueue", "karpenter", "evenkeel", "cert-manager"),
    *("gatekeeper-", "gpu-operator", "istio-", "kubeflow", "nvidia-", "training-operator", "velero"),
)
"""Prefixes of namespaces that no team may have, besides `default`. HyperPod uses `hyperpod-ns-X` for team X."""
_SYSTEM_SUFFIX = "-system"
"""The usual suffix of controllers' namespaces: `flux-system`, `kserve-system`."""
_HYPERPOD_NAMESPACE = "hyperpod-ns-"


SYSTEM_CLASSES = "system-"
"""The prefix of Kubernetes' own priority classes."""


class SetupError(NamedTuple):
    """An error in a team set-up."""

    field: str
    """The field in camelCase, as written: `queue.groups`, `members.0.principal`."""
    message: str


def check_team(team: Team) -> tuple[SetupError, ...]:
    """Return all errors of a team, apart from conflicts with other teams."""
    return tuple(_team_errors(team))


def check_fleet(fleet: FleetQuotas) -> tuple[SetupError, ...]:
    """Return all errors of the fleet's settings, apart from conflicts with teams."""
    return tuple(_fleet_errors(fleet))


def check_setup(setup: TeamSetup) -> tuple[SetupError, ...]:
    """Return all conflicts between teams, or between a team and the fleet's settings."""
    return tuple(_setup_errors(setup))


def check_change(old_setup: TeamSetup, new_setup: TeamSetup, team: str = "") -> tuple[SetupError, ...]:
    """Return the conflicts that a change adds, and the remaining conflicts of the changed team.

    A set-up of an older release may have conflicts. They can be repaired team by team: the conflicts of other teams do
    not block the change.
    """
    earlier_errors = set(check_setup(old_setup))
    own_prefix = f"Team {team} "
    return tuple(
        error
        for error in check_setup(new_setup)
        if error not in earlier_errors or (team and own_prefix in error.message)
    )


def _team_errors(team: Team) -> Iterator[SetupError]:
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
    yield from _member_errors(team.members)
    yield from _placement_errors(team)
    yield from _image_errors(team.images)
    yield from _checkpoint_errors(team.checkpoints)
    if len(team.priority_classes) > MAX_CLASSES:
        yield SetupError("priorityClasses", f"Name at most {MAX_CLASSES} classes.")
    for index, name in enumerate(team.priority_classes):
        if not _NAME.fullmatch(name):
            yield SetupError(f"priorityClasses.{index}", "Use 1 to 63 lower-case letters, digits and dashes.")
    yield from _size_errors(team)
    yield from _budget_errors(team.budgets)


def _placement_errors(team: Team) -> Iterator[SetupError]:
    if team.namespace and (not _NAME.fullmatch(team.namespace) or _is_system_namespace(team.namespace)):
        yield SetupError(
            "namespace", "Give the team a namespace of its own, in lower case. System namespaces are not allowed."
        )
    if team.service_account and not _ACCOUNT_NAME.fullmatch(team.service_account):
        yield SetupError("serviceAccount", "Name a service account of the team's namespace.")
    if team.local_queue and not _NAME.fullmatch(team.local_queue):
        yield SetupError("localQueue", "Name a LocalQueue: 1 to 63 lower-case letters, digits and dashes.")


def _budget_errors(budgets: tuple[Budget, ...]) -> Iterator[SetupError]:
    for period, times in Counter(budget.period for budget in budgets).items():
        if times > 1:
            yield SetupError(
                "budgets",
                f"Set one budget per {period}, not {times}. A budget can name hours and dollars.",
            )
    for index, budget in enumerate(budgets):
        if budget.gpu_hours is None and budget.usd is None:
            yield SetupError(f"budgets.{index}", "Name gpuHours, usd or both.")


def _is_system_namespace(namespace: str) -> bool:
    is_hyperpod_team = namespace.startswith(_HYPERPOD_NAMESPACE) and namespace != _HYPERPOD_NAMESPACE
    is_system = namespace.startswith(_SYSTEM_NAMESPACES) or namespace.endswith(_SYSTEM_SUFFIX)
    return namespace == "default" or (is_system and not is_hyperpod_team)


def _image_errors(images: tuple[str, ...]) -> Iterator[SetupError]:
    if len(images) > MAX_IMAGES:
        yield SetupError("images", f"Name at most {MAX_IMAGES} images.")
    for index, pattern in enumerate(images):
        segments = set(pattern.removesuffix("*").removesuffix("/").split("/"))
        pattern_rule = _IMAGE_PREFIXES if pattern.endswith("*") else _IMAGES
        if not pattern_rule.fullmatch(pattern) or {"", ".", ".."} & segments:
            text = "Name an image. A `*` is allowed only at the end, after a registry and a slash: my.registry/nlp/*."
            yield SetupError(f"images.{index}", text)


def _checkpoint_errors(folders: tuple[str, ...]) -> Iterator[SetupError]:
    if len(folders) > MAX_CHECKPOINTS:
        yield SetupError("checkpoints", f"Name at most {MAX_CHECKPOINTS} folders.")
    for index, folder in enumerate(folders):
        segments = folder.partition("://")[2].split("/")
        if len(folder) > 1024 or not _CHECKPOINTS.fullmatch(folder) or {".", ".."} & set(segments):
            yield SetupError(f"checkpoints.{index}", "Name a folder: s3://bucket/prefix or file:///folder/path.")
        elif is_bucket_alias(folder):
            yield SetupError(f"checkpoints.{index}", "Name the bucket itself, not an access point alias.")


def _size_errors(document: "Team | FleetQuotas") -> Iterator[SetupError]:
    if (size := len(_text(document.to_json()).encode())) > LARGEST_PART:
        yield SetupError("", f"This part takes {size} bytes as JSON; the limit is {LARGEST_PART}.")


def _text(document: object) -> str:
    # Rows store every character that is not ASCII with an escape.
    return json.dumps(document, separators=(",", ":"))


def _member_errors(members: tuple[Member, ...]) -> Iterator[SetupError]:
    if len(members) > MAX_MEMBERS:
        yield SetupError("members", f"Name at most {MAX_MEMBERS} members: roles, which many people can assume.")
    for index, member in enumerate(members):
        if not PRINCIPAL.fullmatch(member.principal):
            text = "Name the ARN of an IAM role, for example arn:aws:iam::111122223333:role/Research; not of a session."
            yield SetupError(f"members.{index}.principal", text)
    for identity in _duplicates(member.identity for member in members if member.identity):
        yield SetupError("members", f"{identity} is listed twice.")


def _fleet_errors(fleet: FleetQuotas) -> Iterator[SetupError]:
    for path in unknown_fields(fleet):
        yield SetupError(path, "is not a known field")
    if len(fleet.cohorts) > MAX_COHORTS:
        yield SetupError("cohorts", f"Name at most {MAX_COHORTS} cohorts.")
    for index, cohort in enumerate(fleet.cohorts):
        for field, name in (("name", cohort.name), ("parent", cohort.parent)):
            if not _NAME.fullmatch(name) and (name or field == "name"):
                yield SetupError(f"cohorts.{index}.{field}", "Use 1 to 63 lower-case letters, digits and dashes.")
        for refusal in refusals(cohort.to_cohort()):
            yield SetupError(f"cohorts.{index}", f"{refusal}.")
    for name in _duplicates(short_cohort.name for short_cohort in fleet.cohorts):
        yield SetupError("cohorts", f"{name} is listed twice.")
    for name in _duplicates(flavor.name for flavor in fleet.flavors):
        yield SetupError("flavors", f"{name} is listed twice.")
    if len(fleet.flavors) > MAX_FLAVORS:
        yield SetupError("flavors", f"Name at most {MAX_FLAVORS} flavors.")
    yield from _class_errors(fleet.priority_classes)
    parents = {short_cohort.name: short_cohort.parent for short_cohort in fleet.cohorts}
    for name in sorted(parents):
        if name in _ancestor_names(name, parents):
            yield SetupError("cohorts", f"{name} is its own ancestor, so no queue below it could admit jobs.")
    yield from _member_errors(fleet.members)
    yield from _size_errors(fleet)


def _class_errors(classes: Mapping[str, int]) -> Iterator[SetupError]:
    if len(classes) > MAX_CLASSES:
        yield SetupError("priorityClasses", f"Name at most {MAX_CLASSES} priority classes.")
    for name, value in classes.items():
        if not _NAME.fullmatch(name):
            shown = name[:80].encode("unicode_escape").decode()
            yield SetupError(f"priorityClasses.{shown}", "Use 1 to 63 lower-case letters, digits and dashes.")
        elif name.startswith(SYSTEM_CLASSES):
            yield SetupError(f"priorityClasses.{name}", "Classes that begin with system- are Kubernetes' own.")
        if abs(value) >= 2**31:
            yield SetupError(f"priorityClasses.{name[:80]}", "Use a 32-bit integer.")


def _setup_errors(setup: TeamSetup) -> Iterator[SetupError]:
    if len(setup.teams) > MAX_TEAMS:
        yield SetupError("name", f"The fleet already has {MAX_TEAMS} teams, which is the limit.")
    # Every pod of a namespace can read all secrets of the namespace.
    for namespace in _duplicates(team.namespace for team in setup.teams if team.namespace):
        team_names = ", ".join(team.name for team in setup.teams if team.namespace == namespace)
        yield SetupError(
            "namespace", f"Teams {team_names} would share namespace {namespace}. Give each team its own namespace."
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
    yield from _folder_conflicts(setup)
    yield from _total_size_errors(setup)


def _folder_conflicts(setup: TeamSetup) -> Iterator[SetupError]:
    folders = sorted(
        (f"{checkpoint.rstrip('/')}/", team.name) for team in setup.teams for checkpoint in team.checkpoints
    )
    enclosing_folders: list[tuple[str, str]] = []
    for folder, name in folders:
        while enclosing_folders and not folder.startswith(enclosing_folders[-1][0]):
            enclosing_folders.pop()
        # Checkpoints on a claim are in the team's own namespace, whatever their path.
        for outer, outer_team in enclosing_folders if folder.startswith("s3://") else ():
            if outer_team != name:
                yield SetupError("checkpoints", f"{folder} of team {name} is inside {outer} of team {outer_team}.")
        enclosing_folders.append((folder, name))


def _total_size_errors(setup: TeamSetup) -> Iterator[SetupError]:
    queues = [*(team.queue.model_dump(mode="json", by_alias=True) for team in setup.teams), setup.fleet.to_json()]
    if (size := len(_text(queues).encode())) > LARGEST_QUOTAS:
        yield SetupError("queue", f"All queues together take {size} bytes as JSON; the limit is {LARGEST_QUOTAS}.")
    elif size > LARGEST_PACKED_QUOTAS and (size := packed_size(queues)) > LARGEST_PACKED_QUOTAS:
        text = f"All queues together take {count_of(size, 'character')} packed; the limit is {LARGEST_PACKED_QUOTAS}."
        yield SetupError("queue", text)


def _ancestor_names(name: str, parents: Mapping[str, str]) -> set[str]:
    ancestors: set[str] = set()
    while (name := parents.get(name, "")) and name not in ancestors:
        ancestors.add(name)
    return ancestors


def _duplicates(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)
