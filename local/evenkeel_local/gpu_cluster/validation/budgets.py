"""Checks of a PodDisruptionBudget.

Source: `pkg/apis/policy/validation` of Kubernetes 1.33.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.validation import names
from evenkeel_local.gpu_cluster.validation.causes import Cause, at_least_zero, invalid, one_of


def check_budget(obj: Obj) -> Iterator[Cause]:
    """Yield the problems of a budget."""
    spec = obj.get("spec") or {}
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        yield invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    for field in ("minAvailable", "maxUnavailable"):
        if spec.get(field) is not None:
            yield from check_share(spec[field], f"spec.{field}")
    field, choices = "unhealthyPodEvictionPolicy", ("AlwaysAllow", "IfHealthyBudget")
    yield from one_of(f"spec.{field}", spec.get(field), choices)
    yield from names.check_selector(spec.get("selector"), "spec.selector")


def check_share(value: Any, field: str, *, above_all: bool = False) -> Iterator[Cause]:
    """Yield the problems of a number of pods or a percentage of them; `above_all` allows more than 100 %."""
    if not isinstance(value, str):
        yield from at_least_zero(field, value)
        return
    reasons = names.percent_errors(value)
    yield from names.causes(field, value, reasons)
    if not reasons and not above_all and int(value[:-1]) > 100:
        yield invalid(field, value, "must not be greater than 100%")
