"""Checks of a Job and of its changes.

Source: `pkg/apis/batch/validation` and `pkg/registry/batch/job/strategy.go` of Kubernetes 1.33.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.store import clone, name_of
from evenkeel_local.gpu_cluster.validation import names
from evenkeel_local.gpu_cluster.validation.causes import (
    Cause,
    at_least_zero,
    duplicate,
    immutable,
    invalid,
    invalid_unquoted,
    not_supported,
    one_of,
    required,
    too_long,
    too_many,
)
from evenkeel_local.gpu_cluster.validation.pods import check_pod_template

COUNTS = (
    *("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"),
    *("backoffLimitPerIndex", "maxFailedIndexes"),
)
FIXED = ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy")
DIRECTIVES = ("nodeSelector", "tolerations", "schedulingGates")
"""Fields of a template's spec that a Job may change while it is suspended and has never started."""
MAX_INDEXED, MANY_COMPLETIONS, MAX_WITH_MANY = 100_000, 100_000, 10_000
MAX_RULES, MAX_VALUES, MAX_PATTERNS, MAX_SUCCESS_RULES = 20, 255, 20, 20
ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
INDEXES = re.compile(r"^(\d+(-\d+)?(,\d+(-\d+)?)*)?\Z")
PREFIXED = re.compile(r"^[^/]+/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+\Z")
GENERATED = ("batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name")


def check_job(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a Job."""
    spec = obj["spec"]
    yield from _check_generated(obj)
    yield from _check_job_spec(spec)
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    selector = spec.get("selector")
    if selector is None:
        yield required("spec.selector")
    else:
        yield from names.check_selector(selector, "spec.selector")
        if not matches_selector(selector, labels):
            yield invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
    completions = spec.get("completions")
    if spec.get("completionMode") == "Indexed" and isinstance(completions, int) and completions > 0:
        hostname = f"{name_of(obj)}-{completions - 1}"
        if names.label_errors(hostname):
            message = f"will not able to create pod with invalid DNS label: {hostname}"
            yield invalid("metadata.name", name_of(obj), message)


def _check_generated(obj: Obj) -> Iterator[Cause]:
    """Yield the generated labels that the template lacks or changes."""
    spec, metadata = obj["spec"], obj["metadata"]
    if spec.get("manualSelector") or spec.get("selector") is None:
        return
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    expected_labels = {key: metadata["uid"] if key.endswith("uid") else metadata["name"] for key in GENERATED}
    for key, value in expected_labels.items():
        if key not in labels:
            yield required(f"spec.template.metadata.labels[{key}]", f"must be '{value}'")
        elif labels[key] != value:
            yield invalid(f"spec.template.metadata.labels[{key}]", labels, f"must be '{value}'")
    if not matches_selector(spec["selector"], expected_labels):
        yield invalid("spec.selector", spec["selector"], "`selector` not auto-generated")


def _check_job_spec(spec: Obj) -> Iterator[Cause]:
    for field in COUNTS:
        yield from at_least_zero(f"spec.{field}", spec.get(field))
    per_index, failed_indexes = spec.get("backoffLimitPerIndex"), spec.get("maxFailedIndexes")
    if failed_indexes is not None and per_index is None:
        yield required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified")
    yield from _check_managed_by(spec)
    yield from _check_completion_mode(spec)
    if spec.get("podFailurePolicy") is not None:
        yield from _check_failure_policy(spec)
    if spec.get("successPolicy") is not None:
        yield from _check_success_policy(spec)
    replacement = ("Failed",) if spec.get("podFailurePolicy") is not None else ("Failed", "TerminatingOrFailed")
    yield from one_of("spec.podReplacementPolicy", spec.get("podReplacementPolicy"), replacement)
    yield from check_pod_template(spec["template"], "spec.template")
    yield from _check_restart_policy(spec)


def _check_managed_by(spec: Obj) -> Iterator[Cause]:
    manager = spec.get("managedBy")
    if manager is None:
        return
    if not PREFIXED.match(manager):
        yield invalid("spec.managedBy", manager, 'must be a domain-prefixed path (such as "acme.io/foo")')
    if len(manager) > 63:
        yield too_long("spec.managedBy", 63)


def _check_completion_mode(spec: Obj) -> Iterator[Cause]:
    mode = _completion_mode(spec)
    yield from one_of("spec.completionMode", mode, ("NonIndexed", "Indexed"), sort=False)
    if mode == "Indexed":
        yield from _check_indexed(spec)
    elif mode == "NonIndexed":
        for field in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if spec.get(field) is not None:
                yield invalid(f"spec.{field}", spec[field], "requires indexed completion mode")


def _completion_mode(spec: Obj) -> str:
    return spec.get("completionMode") or "NonIndexed"


def _check_indexed(spec: Obj) -> Iterator[Cause]:
    completions, parallelism = spec.get("completions"), spec.get("parallelism") or 0
    failed_indexes = spec.get("maxFailedIndexes")
    if completions is None:
        yield required("spec.completions", "when completion mode is Indexed")
    if parallelism > MAX_INDEXED:
        message = f"must be less than or equal to {MAX_INDEXED} when completion mode is Indexed"
        yield invalid("spec.parallelism", parallelism, message)
    if failed_indexes is not None:
        if completions is not None and failed_indexes > completions:
            yield invalid("spec.maxFailedIndexes", failed_indexes, "must be less than or equal to completions")
        if failed_indexes > MAX_INDEXED:
            yield invalid("spec.maxFailedIndexes", failed_indexes, f"must be less than or equal to {MAX_INDEXED}")
    if (completions or 0) > MANY_COMPLETIONS and spec.get("backoffLimitPerIndex") is not None:
        text = f"must be less than or equal to {MAX_WITH_MANY} when completions are above {MANY_COMPLETIONS} and used"
        if failed_indexes is None:
            yield required("spec.maxFailedIndexes", f"must be specified when completions is above {MANY_COMPLETIONS}")
        if parallelism > MAX_WITH_MANY:
            yield invalid("spec.parallelism", parallelism, f"{text} with backoff limit per index")
        if failed_indexes is not None and failed_indexes > MAX_WITH_MANY:
            yield invalid("spec.maxFailedIndexes", failed_indexes, f"{text} with backoff limit per index")


def _check_restart_policy(spec: Obj) -> Iterator[Cause]:
    field = "spec.template.spec.restartPolicy"
    policy = (spec["template"].get("spec") or {}).get("restartPolicy") or ""
    if policy in ("Always", ""):
        yield required(field, 'valid values: "OnFailure", "Never"')
    elif policy not in ("OnFailure", "Never"):
        yield not_supported(field, policy, ("OnFailure", "Never"))
    elif spec.get("podFailurePolicy") is not None and policy != "Never":
        yield invalid(field, policy, 'only "Never" is supported when podFailurePolicy is specified')


# Failure and success policies


def _check_failure_policy(spec: Obj) -> Iterator[Cause]:
    rules, path = spec["podFailurePolicy"].get("rules") or [], "spec.podFailurePolicy.rules"
    if len(rules) > MAX_RULES:
        yield too_many(path, len(rules), MAX_RULES)
    pod = spec["template"].get("spec") or {}
    names_known = {item.get("name") for field in ("containers", "initContainers") for item in pod.get(field) or ()}
    for number, rule in enumerate(rules):
        at, action = f"{path}[{number}]", rule.get("action") or ""
        if not action:
            yield required(f"{at}.action", f"valid values: {_joined_choices(ACTIONS)}")
        elif action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            yield invalid(f"{at}.action", action, "requires the backoffLimitPerIndex to be set")
        else:
            yield from one_of(f"{at}.action", action, ACTIONS)
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions") or []
        if codes is not None:
            yield from _check_exit_codes(codes, names_known, f"{at}.onExitCodes")
        yield from _check_patterns(conditions, f"{at}.onPodConditions")
        if codes is not None and conditions:
            yield invalid_unquoted(at, "specifying both OnExitCodes and OnPodConditions is not supported")
        if codes is None and not conditions:
            yield invalid_unquoted(at, "specifying one of OnExitCodes and OnPodConditions is required")


def _check_exit_codes(codes: Obj, known_containers: set[str], at: str) -> Iterator[Cause]:
    operator, values = codes.get("operator") or "", codes.get("values") or []
    if not operator:
        yield required(f"{at}.operator", f"valid values: {_joined_choices(('In', 'NotIn'))}")
    else:
        yield from one_of(f"{at}.operator", operator, ("In", "NotIn"))
    if codes.get("containerName") is not None and codes["containerName"] not in known_containers:
        message = "must be one of the container or initContainer names in the pod template"
        yield invalid(f"{at}.containerName", codes["containerName"], message)
    if not values:
        yield invalid(f"{at}.values", values, "at least one value is required")
    elif len(values) > MAX_VALUES:
        yield too_many(f"{at}.values", len(values), MAX_VALUES)
    for number, value in enumerate(values):
        if operator == "In" and value == 0:
            yield invalid(f"{at}.values[{number}]", value, "must not be 0 for the In operator")
        if value in values[:number]:
            yield duplicate(f"{at}.values[{number}]", value)
    if values != sorted(values):
        yield invalid(f"{at}.values", values, "must be ordered")


def _check_patterns(patterns: list[Obj], path: str) -> Iterator[Cause]:
    if len(patterns) > MAX_PATTERNS:
        yield too_many(path, len(patterns), MAX_PATTERNS)
    for number, pattern in enumerate(patterns):
        at, kind = f"{path}[{number}]", pattern.get("type") or ""
        yield from names.causes(f"{at}.type", kind, names.qualified_name_errors(kind))
        yield from one_of(f"{at}.status", pattern.get("status") or "True", ("False", "True", "Unknown"))


def _check_success_policy(spec: Obj) -> Iterator[Cause]:
    if _completion_mode(spec) != "Indexed":
        yield invalid("spec.successPolicy", spec["successPolicy"], "requires indexed completion mode")
        return
    rules, path = spec["successPolicy"].get("rules") or [], "spec.successPolicy.rules"
    if not rules:
        yield required(path, "at least one rules must be specified when the successPolicy is specified")
    if len(rules) > MAX_SUCCESS_RULES:
        yield too_many(path, len(rules), MAX_SUCCESS_RULES)
    completions = spec.get("completions") or 0
    for number, rule in enumerate(rules):
        at, count = f"{path}[{number}]", rule.get("succeededCount")
        if count is None and rule.get("succeededIndexes") is None:
            yield required(at, "at least one of succeededCount or succeededIndexes must be specified")
        if count is not None:
            yield from at_least_zero(f"{at}.succeededCount", count)
            if count > completions:
                message = f"must be less than or equal to {completions} (the number of specified completions)"
                yield invalid(f"{at}.succeededCount", count, message)


def _joined_choices(choices: tuple[str, ...]) -> str:
    return "[" + " ".join(f'"{choice}"' for choice in choices) + "]"


# Changes


def check_job_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    """Yield the problems of a change of a Job."""
    new_spec, old_spec = obj["spec"], old["spec"]
    yield from _check_completions(new_spec, old_spec)
    for field in FIXED:
        if new_spec.get(field) != old_spec.get(field):
            yield immutable(f"spec.{field}", new_spec.get(field))
    waits = old_spec.get("suspend") and not (old.get("status") or {}).get("startTime")
    new_template, old_template = new_spec["template"], old_spec["template"]
    if waits:
        new_template, old_template = _without_directives(new_template), _without_directives(old_template)
    if new_template != old_template:
        yield immutable("spec.template", new_spec["template"])


def check_job_status(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of the status of a Job."""
    indexes = (obj.get("status") or {}).get("completedIndexes") or ""
    if not INDEXES.match(indexes):
        yield invalid("status.completedIndexes", indexes, "must be a list of indexes and ranges, such as 0-2,5")


def _check_completions(new: Obj, old: Obj) -> Iterator[Cause]:
    completions = new.get("completions")
    if completions == old.get("completions"):
        return
    if new.get("completionMode") != "Indexed":
        yield immutable("spec.completions", completions)
    elif completions is not None and completions != new.get("parallelism"):
        yield invalid("spec.completions", completions, "can only be modified in tandem with spec.parallelism")


def _without_directives(template: Obj) -> Obj:
    document: Obj = clone(template)
    for field in ("labels", "annotations"):
        document.get("metadata", {}).pop(field, None)
    if not document.get("metadata"):
        document.pop("metadata", None)
    spec = document.get("spec") or {}
    for field in DIRECTIVES:
        spec.pop(field, None)
    (spec.get("affinity") or {}).pop("nodeAffinity", None)
    if not spec.get("affinity"):
        spec.pop("affinity", None)
    return document
