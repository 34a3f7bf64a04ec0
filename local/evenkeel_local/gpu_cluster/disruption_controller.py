"""The disruption controller: keeps the status of each PodDisruptionBudget, which limits evictions."""

from __future__ import annotations

import asyncio
import math

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.objects import has_ended, is_deleting, is_true, labels_of
from evenkeel_local.gpu_cluster.registry import Registry, set_condition
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.store import Store, StoreChange, namespace_of

DEBOUNCE_SECONDS = 0.01


class DisruptionController:
    """Counts the healthy pods of each PodDisruptionBudget, and writes its status."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store: Store = registry.store
        self._dirty = asyncio.Event()
        self._store.listen(self._on_change)

    def _on_change(self, change: StoreChange) -> None:
        if change.key == catalogue.BUDGETS.key or (
            change.key == catalogue.PODS.key and self._store.count(catalogue.BUDGETS.key)
        ):
            self._dirty.set()

    async def run(self) -> None:
        """Update the budgets until cancelled."""
        while True:
            await self._dirty.wait()
            await asyncio.sleep(DEBOUNCE_SECONDS)
            self._dirty.clear()
            for budget in self._store.all(catalogue.BUDGETS.key):
                self._count(budget)

    def _count(self, budget: Obj) -> None:
        spec = budget.get("spec") or {}
        pods = [
            pod
            for pod in self._store.all(catalogue.PODS.key, namespace_of(budget))
            if matches_selector(spec.get("selector"), labels_of(pod)) and not has_ended(pod)
        ]
        healthy = sum(1 for pod in pods if is_true(pod, "Ready") and not is_deleting(pod))
        expected_pods = len(pods)
        if (maximum := spec.get("maxUnavailable")) is not None:
            desired_healthy = max(expected_pods - scaled_value(maximum, expected_pods), 0)
        elif (minimum := spec.get("minAvailable")) is not None:
            desired_healthy = scaled_value(minimum, expected_pods)
        else:
            expected_pods = desired_healthy = 0
        disruptions_allowed = max(healthy - desired_healthy, 0) if expected_pods else 0

        def write(obj: Obj) -> None:
            status = obj.setdefault("status", {})
            status.update(
                currentHealthy=healthy,
                desiredHealthy=desired_healthy,
                disruptionsAllowed=disruptions_allowed,
                expectedPods=expected_pods,
                observedGeneration=obj["metadata"].get("generation", 1),
            )
            enough = ("True", "SufficientPods") if disruptions_allowed > 0 else ("False", "InsufficientPods")
            set_condition(status, "DisruptionAllowed", *enough)

        self._registry.change(budget, write)


def scaled_value(value: int | str, total: int) -> int:
    """Return a number or a percentage of a total, rounded up."""
    if isinstance(value, str) and value.endswith("%"):
        return math.ceil(int(value[:-1]) * total / 100)
    return int(value)
