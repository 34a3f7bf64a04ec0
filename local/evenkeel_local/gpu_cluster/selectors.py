"""Label selectors and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from evenkeel_local.gpu_cluster import errors
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.objects import labels_of

Predicate = Callable[[Obj], bool]

_REQUIREMENT = re.compile(
    r"""\s*(?:
        (?P<absent>!)\s*(?P<absent_key>[\w./-]+)
      | (?P<key>[\w./-]+)\s*(?:
            (?P<op>==|=|!=|>|<)\s*(?P<value>[\w.-]*)
          | \s(?P<setop>in|notin)\s*\((?P<values>[^)]*)\)
        )?
    )\s*(?:,|$)""",
    re.VERBOSE,
)
FIELDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): (
        *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork"),
        *("status.phase", "status.podIP", "status.nominatedNodeName"),
    ),
    ("", "nodes"): ("spec.unschedulable",),
    ("", "namespaces"): ("status.phase",),
    ("", "secrets"): ("type",),
    ("", "events"): (
        *(f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion")),
        *("involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent"),
        *("source", "type"),
    ),
    ("", "services"): ("spec.clusterIP", "spec.type"),
    ("batch", "jobs"): ("status.successful",),
}
"""Fields that a selector may name besides `metadata.name` and `metadata.namespace`.

Source: the `AddFieldLabelConversionFunc` calls of each API group of kube-apiserver.
"""


def label_selector(text: str) -> Predicate:
    """Compile a `labelSelector` parameter.

    Raises:
        ApiError: 400 for a text that cannot be read.
    """
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    at = 0
    while at < len(text):
        match = _REQUIREMENT.match(text, at)
        if match is None or match.end() == at:
            raise errors.bad_request(f"unable to parse requirement: found '{text[at:]}', expected: identifier")
        tests.append(_requirement(match))
        at = match.end()

    def matches(obj: Obj) -> bool:
        labels = labels_of(obj)
        return all(test(labels) for test in tests)

    return matches


def _requirement(match: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    if match.group("absent"):
        absent = match.group("absent_key")
        return lambda labels: absent not in labels
    key = match.group("key")
    if operator := match.group("setop"):
        values = {value.strip() for value in match.group("values").split(",")}
        if operator == "in":
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: key not in labels or labels[key] not in values
    operator, value = match.group("op"), match.group("value")
    if operator is None:
        return lambda labels: key in labels
    if operator == "!=":
        return lambda labels: labels.get(key) != value
    if operator in (">", "<"):
        return lambda labels: _compares(labels.get(key), operator, value)
    return lambda labels: labels.get(key) == value


def _compares(actual: str | None, operator: str, wanted_text: str) -> bool:
    try:
        number, wanted_number = int(actual or ""), int(wanted_text)
    except ValueError:
        return False
    return number > wanted_number if operator == ">" else number < wanted_number


def matches_selector(selector: Obj | None, labels: Mapping[str, str]) -> bool:
    """Whether labels match a `LabelSelector`; a missing selector matches nothing."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(matches_expression(term, labels) for term in selector.get("matchExpressions") or ())


def matches_expression(term: Obj, labels: Mapping[str, str]) -> bool:
    """Whether labels match one expression of a selector or a node affinity term."""
    key, operator = term["key"], term["operator"]
    values: list[str] = term.get("values") or []
    if operator == "In":
        return key in labels and labels[key] in values
    if operator == "NotIn":
        return key not in labels or labels[key] not in values
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    if operator == "Gt":
        return _compares(labels.get(key), ">", values[0])
    return operator == "Lt" and _compares(labels.get(key), "<", values[0])


def field_selector(text: str, key: tuple[str, str]) -> Predicate:
    """Compile a `fieldSelector` parameter.

    Raises:
        ApiError: 400 for a field that this type does not index.
    """
    fields = ("metadata.name", "metadata.namespace", *FIELDS.get(key, ()))
    tests: list[tuple[str, bool, str]] = []
    for requirement in filter(None, (clause.strip() for clause in text.split(","))):
        match = re.match(r"^([\w.]+)\s*(!=|==|=)\s*(.*)$", requirement)
        if match is None:
            raise errors.bad_request(f"invalid selector: '{requirement}'; can't understand '{requirement}'")
        field, operator, value = match.groups()
        if field not in fields:
            raise errors.bad_request(f"field label not supported: {field}")
        tests.append((field, operator == "!=", value))
    return lambda obj: all((_field_text(obj, field) == value) != is_negated for field, is_negated, value in tests)


def _field_text(obj: Obj, path: str) -> str:
    value: Any = obj
    if path == "source":
        return str((obj.get("source") or {}).get("component") or obj.get("reportingComponent") or "")
    if path == "status.successful":
        return str((obj.get("status") or {}).get("succeeded") or 0)
    for segment in path.split("."):
        value = value.get(segment) if isinstance(value, dict) else None
    if value is None:
        return "false" if path in ("spec.unschedulable", "spec.hostNetwork") else ""
    return str(value).lower() if isinstance(value, bool) else str(value)
