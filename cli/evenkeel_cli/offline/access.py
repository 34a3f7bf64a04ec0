"""List the Kubernetes rights that each function needs, from the manifests that the deployment applies.

`charts/kubernetes-access.yaml` grants rights to groups. `charts/access-entries.json` lists the groups of each
function's role. A wheel contains copies of both files; a clone uses the files in `charts/`.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

Json = dict[str, Any]

JOBS_NAMESPACE = "evenkeel-jobs"
"""Namespace in the manifest. Every namespace in which jobs run gets the same rights."""
_PACKAGED = Path(__file__).parents[1] / "charts"
_CLONED = Path(__file__).parents[3] / "charts"


class AccessRule(NamedTuple):
    """A verb on one kind of object; an empty namespace means the whole cluster."""

    verb: str
    group: str
    resource: str
    namespace: str

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}" + (f" in {self.namespace}" if self.namespace else "")


def functions_with_access() -> tuple[str, ...]:
    """Return the functions that call Kubernetes."""
    return tuple(_groups_by_function())


def groups_of(function: str) -> tuple[str, ...]:
    """Return the Kubernetes groups that the access entry of a function's role must name."""
    return tuple(_groups_by_function()[function])


def rights_of(function: str, namespaces: Sequence[str]) -> tuple[AccessRule, ...]:
    """Return every right that a function's groups grant, in each of the namespaces in which jobs run."""
    rules_by_group = _rights_by_group()
    rights = (access_rule for group in groups_of(function) for access_rule in rules_by_group.get(group, ()))
    return tuple(dict.fromkeys(access_rule for right in rights for access_rule in _in_namespaces(right, namespaces)))


def _in_namespaces(access_rule: AccessRule, namespaces: Sequence[str]) -> Iterator[AccessRule]:
    if access_rule.namespace != JOBS_NAMESPACE:
        yield access_rule
        return
    for namespace in namespaces:
        yield access_rule._replace(namespace=namespace)


@cache
def _groups_by_function() -> dict[str, list[str]]:
    entries: dict[str, list[str]] = json.loads(_role_text("access-entries.json"))
    return entries


@cache
def _rights_by_group() -> dict[str, tuple[AccessRule, ...]]:
    documents = [document for document in yaml.safe_load_all(_role_text("kubernetes-access.yaml")) if document]
    rules = {
        _role_key(document): document["rules"] for document in documents if document["kind"] in ("ClusterRole", "Role")
    }
    rules_by_role: dict[str, tuple[AccessRule, ...]] = {}
    for binding in documents:
        if binding["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        namespace = binding["metadata"].get("namespace", "")
        kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        access_rules = tuple(_access_rules(rules[kind, namespace if kind == "Role" else "", name], namespace))
        for subject in binding["subjects"]:
            rules_by_role[subject["name"]] = (*rules_by_role.get(subject["name"], ()), *access_rules)
    return rules_by_role


def _role_key(role: Json) -> tuple[str, str, str]:
    return role["kind"], role["metadata"].get("namespace", ""), role["metadata"]["name"]


def _access_rules(rules: Iterable[Json], namespace: str) -> Iterator[AccessRule]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield AccessRule(verb, group, resource, namespace)


def _role_text(name: str) -> str:
    folder = _PACKAGED if _PACKAGED.is_dir() else _CLONED
    return (folder / name).read_text(encoding="utf-8")
