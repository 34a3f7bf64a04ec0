"""The node lifecycle controller: missed heartbeats, taints for conditions, eviction after the tolerated time.

Source: `pkg/controller/nodelifecycle` and `tainteviction` of Kubernetes 1.33.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.kubelet import LEASE_NAMESPACE
from evenkeel_local.gpu_cluster.objects import condition_of, has_ended, is_deleting, put
from evenkeel_local.gpu_cluster.registry import Registry, mark_disrupted, set_condition, timestamp
from evenkeel_local.gpu_cluster.scheduler import tolerates
from evenkeel_local.gpu_cluster.store import Store, name_of, namespace_of

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
SOURCE = "node-controller"
LOST_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")


def ready_value(node: Obj) -> str:
    """Return the node's Ready condition: True, False or Unknown."""
    return str((condition_of(node, "Ready") or {}).get("status", "Unknown"))


class NodeController:
    """Marks, taints and drains nodes whose heartbeats stopped."""

    def __init__(self, registry: Registry, grace_seconds: float, toleration_override: float | None) -> None:
        self._registry = registry
        self._store: Store = registry.store
        self._grace = timedelta(seconds=grace_seconds)
        self._period = min(max(grace_seconds / 10, 0.05), 5.0)
        self._override = toleration_override

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(self._period)
            self.check_all()

    def check_all(self) -> None:
        """Check every node once: conditions, taints, evictions."""
        now = datetime.now(UTC)
        for node in self._store.all(catalogue.NODES.key):
            self._check_heartbeat(node, now)
            current = self._store.find(catalogue.NODES.key, "", name_of(node))
            if current is not None:
                self._taint(current)
        for node in self._store.all(catalogue.NODES.key):
            self._evict(node, now)

    def _check_heartbeat(self, node: Obj, now: datetime) -> None:
        lease = self._store.find(catalogue.LEASES.key, LEASE_NAMESPACE, name_of(node))
        renewed_at = (lease or {}).get("spec", {}).get("renewTime") or node["metadata"]["creationTimestamp"]
        if now - datetime.fromisoformat(renewed_at) <= self._grace or ready_value(node) == "Unknown":
            return

        def lose(obj: Obj) -> None:
            status, message = obj.setdefault("status", {}), "Kubelet stopped posting node status."
            for kind in LOST_CONDITIONS:
                set_condition(status, kind, "Unknown", "NodeStatusUnknown", message)

        changed_node = self._registry.change(node, lose)
        if changed_node is not None:
            message = f"Node {name_of(node)} status is now: NodeNotReady"
            self._registry.record(changed_node, "NodeNotReady", message, source=SOURCE)
            for pod in self._store.pods_on(name_of(node)):
                self._mark_unready(pod)

    def _mark_unready(self, pod: Obj) -> None:
        if pod["status"].get("phase") == "Running":
            self._registry.change(pod, _lose_readiness)

    def _taint(self, node: Obj) -> None:
        """Set the taints for the Ready condition and for cordoning."""
        ready = ready_value(node)
        taints: set[tuple[str, str]] = set()
        if ready == "False":
            taints = {(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")}
        elif ready == "Unknown":
            taints = {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")}
        if node["spec"].get("unschedulable"):
            taints.add((UNSCHEDULABLE, "NoSchedule"))
        own_taints = (NOT_READY, UNREACHABLE, UNSCHEDULABLE)
        present = {
            (taint["key"], taint["effect"]) for taint in node["spec"].get("taints") or () if taint["key"] in own_taints
        }
        if present == taints:
            return

        def write(obj: Obj) -> None:
            taints_kept = [
                taint
                for taint in obj["spec"].get("taints") or ()
                if taint["key"] not in own_taints or (taint["key"], taint["effect"]) in taints
            ]
            have = {(taint["key"], taint["effect"]) for taint in taints_kept}
            for key, effect in sorted(taints - have):
                taints_kept.append({"key": key, "effect": effect, "timeAdded": timestamp()})
            put(obj["spec"], "taints", taints_kept)

        self._registry.change(node, write)

    # Eviction

    def _evict(self, node: Obj, now: datetime) -> None:
        taints = [taint for taint in node["spec"].get("taints") or () if taint["effect"] == "NoExecute"]
        if not taints:
            return
        for pod in self._store.pods_on(name_of(node)):
            if is_deleting(pod) or has_ended(pod):
                continue
            if self._is_due(pod, taints, now):
                self._evict_one(pod, taints)

    def _is_due(self, pod: Obj, taints: list[Obj], now: datetime) -> bool:
        tolerations = pod["spec"].get("tolerations") or []
        for taint in taints:
            covering_tolerations = [toleration for toleration in tolerations if tolerates([toleration], taint)]
            if not covering_tolerations:
                return True
            limits = [t["tolerationSeconds"] for t in covering_tolerations if t.get("tolerationSeconds") is not None]
            if not limits:
                continue
            seconds = float(min(limits))
            if self._override is not None and taint["key"] in (NOT_READY, UNREACHABLE) and seconds == 300:
                seconds = self._override
            since = datetime.fromisoformat(taint.get("timeAdded") or timestamp(now))
            if now - since >= timedelta(seconds=max(seconds, 0)):
                return True
        return False

    def _evict_one(self, pod: Obj, taints: list[Obj]) -> None:
        message = ", ".join(f"{taint['key']}:{taint['effect']}" for taint in taints)
        why = f"Taint manager: deleting due to NoExecute taint {message}"
        self._registry.change(pod, lambda obj: mark_disrupted(obj, "DeletionByTaintManager", why))
        marked = f"Marking for deletion Pod {namespace_of(pod)}/{name_of(pod)}"
        self._registry.record(pod, "TaintManagerEviction", marked, source=SOURCE)
        try:
            self._registry.remove(pod)
        except ApiError as refusal:
            if refusal.code != 404:
                raise


def _lose_readiness(pod: Obj) -> None:
    set_condition(pod["status"], "Ready", "False", "NodeNotReady", "")
