"""Checks of a Deployment or ReplicaSet, and of its changes.

Source: `pkg/apis/apps/validation` of Kubernetes 1.33.
"""

from __future__ import annotations

from collections.abc import Iterator

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.validation import names
from evenkeel_local.gpu_cluster.validation.budgets import check_share
from evenkeel_local.gpu_cluster.validation.causes import (
    Cause,
    at_least_zero,
    forbidden,
    immutable,
    invalid,
    not_supported,
    required,
)
from evenkeel_local.gpu_cluster.validation.pods import check_pod_template

COUNTS = ("replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")


def check_replicas(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a Deployment or ReplicaSet."""
    spec = obj["spec"]
    for field in COUNTS:
        yield from at_least_zero(f"spec.{field}", spec.get(field))
    selector, template = spec.get("selector"), spec["template"]
    labels = (template.get("metadata") or {}).get("labels") or {}
    if selector is None:
        yield required("spec.selector")
    else:
        yield from names.check_selector(selector, "spec.selector")
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            yield invalid("spec.selector", selector, "empty selector is invalid for deployment")
        elif not matches_selector(selector, labels):
            yield invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
    yield from check_pod_template(template, "spec.template")
    policy = (template.get("spec") or {}).get("restartPolicy", "Always")
    if policy != "Always":
        yield not_supported("spec.template.spec.restartPolicy", policy, ("Always",))
    if (template.get("spec") or {}).get("activeDeadlineSeconds") is not None:
        message = "activeDeadlineSeconds in ReplicaSet is not Supported"
        yield forbidden("spec.template.spec.activeDeadlineSeconds", message)


def check_deployment(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a Deployment."""
    yield from check_replicas(obj)
    spec = obj["spec"]
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds") or 0
    if deadline is not None and deadline <= ready:
        yield invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds")
    strategy, at = spec.get("strategy") or {}, "spec.strategy"
    bounds = strategy.get("rollingUpdate")
    if strategy.get("type") == "Recreate":
        if bounds is not None:
            yield forbidden(f"{at}.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'")
    elif strategy.get("type") != "RollingUpdate":
        yield not_supported(f"{at}.type", strategy.get("type"), ("Recreate", "RollingUpdate"))
    else:
        bounds = bounds or {}
        for field in ("maxUnavailable", "maxSurge"):
            if bounds.get(field) is not None:
                yield from check_share(bounds[field], f"{at}.rollingUpdate.{field}", above_all=field == "maxSurge")
        if all(bounds.get(field) in (0, "0%") for field in ("maxSurge", "maxUnavailable")):
            message = "may not be 0 when `maxSurge` is 0"
            yield invalid(f"{at}.rollingUpdate.maxUnavailable", bounds["maxUnavailable"], message)


def check_selector_update(obj: Obj, old: Obj) -> Iterator[Cause]:
    """Yield a cause if the selector changes."""
    if obj["spec"].get("selector") != old["spec"].get("selector"):
        yield immutable("spec.selector", obj["spec"].get("selector"))
