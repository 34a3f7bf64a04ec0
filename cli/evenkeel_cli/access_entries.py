"""EKS access entries of the functions' roles: find the missing entries of each cluster, and add them.

Each entry that this module creates has the tag `evenkeel:stack` with the name of its stack. Only entries with this tag
lose groups or are removed. Any other entry of the same role only gains groups.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

Json = dict[str, Any]

STACK_TAG = "evenkeel:stack"
_ROLE_PREFIX = 20
"""CloudFormation keeps at least this many characters of the stack's name in the name of a role."""


class EntryAction(StrEnum):
    """Action on the access entry of one principal."""

    CREATE = "create"
    UPDATE = "update"
    REMOVE = "remove"
    KEEP = "keep"


class WantedEntry(NamedTuple):
    """The groups that the role of a function needs."""

    function: str
    role: str
    groups: frozenset[str]


class PresentEntry(NamedTuple):
    """An access entry of a cluster."""

    groups: frozenset[str]
    stack: str
    """Value of the tag; empty if another tool or a person created the entry."""
    type: str = "STANDARD"


@dataclass(frozen=True)
class EntryChange:
    """The change of one entry."""

    function: str
    """Empty for the entry of a role that the stack no longer has."""
    role: str
    action: EntryAction
    groups: frozenset[str] = frozenset()
    """The groups after the change."""
    groups_before: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def added_groups(self) -> list[str]:
        return sorted(self.groups - self.groups_before)

    @property
    def removed_groups(self) -> list[str]:
        return sorted(self.groups_before - self.groups)


@dataclass(frozen=True)
class ClusterChanges:
    """The changes of one cluster, or why they are unknown."""

    cluster: str
    entries: tuple[EntryChange, ...] = ()
    problem: str = ""

    @property
    def pending_entries(self) -> tuple[EntryChange, ...]:
        return tuple(entry for entry in self.entries if entry.action is not EntryAction.KEEP)

    @property
    def has_failed(self) -> bool:
        return bool(self.problem) or any(entry.problem for entry in self.entries)

    def to_json(self) -> Json:
        entries = [
            {
                "function": entry.function,
                "role": entry.role,
                "action": entry.action.value,
                "groups": sorted(entry.groups),
                "addedGroups": entry.added_groups,
                "removedGroups": entry.removed_groups,
                "problem": entry.problem,
            }
            for entry in self.entries
        ]
        return {"cluster": self.cluster, "problem": self.problem, "entries": entries}


def plan_entries(
    wanted_entries: Sequence[WantedEntry], present: Mapping[str, PresentEntry], stack: str
) -> Iterator[EntryChange]:
    """Yield the change of each entry: first for the stack's roles, then for roles that the stack no longer has."""
    for function, role, groups in wanted_entries:
        entry = present.get(role)
        if entry is None:
            yield EntryChange(function, role, EntryAction.CREATE, groups)
            continue
        groups_after = groups if entry.stack == stack else groups | entry.groups
        action = EntryAction.KEEP if groups_after == entry.groups else EntryAction.UPDATE
        if entry.type != "STANDARD":
            problem = f"The entry has the type {entry.type}, which has no groups. Delete it, and run the command again."
            yield EntryChange(function, role, EntryAction.KEEP, entry.groups, entry.groups, problem)
        else:
            yield EntryChange(function, role, action, groups_after, entry.groups)
    roles = {wanted_entry.role for wanted_entry in wanted_entries}
    for role, entry in sorted(present.items()):
        if role not in roles and entry.stack == stack:
            yield EntryChange("", role, EntryAction.REMOVE, frozenset(), entry.groups)


@dataclass(frozen=True)
class EksAccess:
    """Access entries of clusters in one account and region."""

    eks: Any
    """A botocore client."""
    stack: str
    wanted_entries: tuple[WantedEntry, ...]

    def plan(self, cluster: str) -> ClusterChanges:
        """Return the missing entries of one cluster.

        This changes nothing. A failure is part of the result, so that the caller can continue with other clusters.
        """
        present: dict[str, PresentEntry] = {}
        problem = _failure_text(lambda: present.update(self._present_entries(cluster)), cluster)
        entries = () if problem else plan_entries(self.wanted_entries, present, self.stack)
        return ClusterChanges(cluster, tuple(entries), problem)

    def apply(self, changes: ClusterChanges) -> ClusterChanges:
        """Make the changes of one cluster. A failed entry does not stop the next entry.

        Idempotent: yes, by a new plan. If an entry appeared meanwhile, the result says so.
        """
        cluster = changes.cluster
        done = []
        for entry in changes.entries:
            problem = _failure_text(partial(self._apply_change, cluster, entry), cluster)
            done.append(replace(entry, problem=problem or entry.problem))
        return replace(changes, entries=tuple(done))

    def commands(self, cluster: str) -> Iterator[list[str]]:
        """Yield the command of the AWS CLI that creates each entry."""
        region = self.eks.meta.region_name
        for wanted_entry in self.wanted_entries:
            entry_options = ["--cluster-name", cluster, "--principal-arn", wanted_entry.role, "--region", region]
            tag = ["--tags", f"{STACK_TAG}={self.stack}"]
            yield [
                "aws",
                "eks",
                "create-access-entry",
                *entry_options,
                "--kubernetes-groups",
                *sorted(wanted_entry.groups),
                *tag,
            ]

    def _present_entries(self, cluster: str) -> Iterator[tuple[str, PresentEntry]]:
        roles = {wanted_entry.role for wanted_entry in self.wanted_entries}
        for principal in self._principal_arns(cluster):
            name = principal.rpartition("/")[2]
            if principal not in roles and not name.startswith(self.stack[:_ROLE_PREFIX]):
                continue  # not a role of this stack; saves a call, because only the tag is decisive
            entry = self.eks.describe_access_entry(clusterName=cluster, principalArn=principal)["accessEntry"]
            groups = frozenset(entry.get("kubernetesGroups") or ())
            stack = (entry.get("tags") or {}).get(STACK_TAG, "")
            yield principal, PresentEntry(groups, stack, entry.get("type", "STANDARD"))

    def _principal_arns(self, cluster: str) -> Iterator[str]:
        next_token_field: dict[str, str] = {}
        while True:
            page = self.eks.list_access_entries(clusterName=cluster, maxResults=100, **next_token_field)
            yield from page["accessEntries"]
            if not page.get("nextToken"):
                return
            next_token_field = {"nextToken": page["nextToken"]}

    def _apply_change(self, cluster: str, entry: EntryChange) -> None:
        entry_names = {"clusterName": cluster, "principalArn": entry.role}
        groups = sorted(entry.groups)
        match entry.action:
            case EntryAction.CREATE:
                self.eks.create_access_entry(**entry_names, kubernetesGroups=groups, tags={STACK_TAG: self.stack})
            case EntryAction.UPDATE:
                self.eks.update_access_entry(**entry_names, kubernetesGroups=groups)
            case EntryAction.REMOVE:
                self.eks.delete_access_entry(**entry_names)
            case EntryAction.KEEP:
                pass


_FIXES: Mapping[str, str] = {
    "AccessDeniedException": "Use an identity that may list, describe, create, update and delete its access entries.",
    "ResourceNotFoundException": "Check the stack's parameter KubernetesClusters, and the region.",
    "InvalidRequestException": "Perhaps the cluster accepts no access entries yet: aws eks update-cluster-config "
    "--name {cluster} --access-config authenticationMode=API_AND_CONFIG_MAP",
    "InvalidParameterException": "Perhaps IAM does not show a new role yet. Run the command again in a minute.",
    "ResourceInUseException": "The entry was created meanwhile. Run the command again.",
    "ResourceLimitExceededException": "Remove unused access entries from the cluster.",
}


def _failure_text(act: Callable[[], object], cluster: str) -> str:
    """Return the failed EKS calls and the next step for each, by the error's code; empty after success."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        act()
    except ClientError as error:
        details = error.response.get("Error", {})
        code, text = details.get("Code", ""), details.get("Message", "")
        fix = _FIXES.get(code, "Run the command again.").format(cluster=cluster)
        return f"{error.operation_name}: {code}: {text.rstrip('.')}. {fix}"
    except BotoCoreError as error:
        return f"{str(error).rstrip('.')}. Check the credentials, the network and the region."
    return ""
