"""The ReplicaSet controller: keeps as many pods of a template as are asked for.

Source: `pkg/controller/replicaset` and `ActivePodsWithRanks` of `pkg/controller` of Kubernetes 1.33. A pod's deletion
cost is not weighed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.admission import random_suffix
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.registry import (
    Registry,
    condition_of,
    controller_of,
    owner_reference,
    set_condition,
)
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.store import Store, StoreChange, clone, name_of, namespace_of
from evenkeel_local.gpu_cluster.work_queue import WorkQueue

SOURCE = "replicaset-controller"
DEBOUNCE_SECONDS = 0.01
BURST = 500
"""The most pods that one look creates or deletes."""
RETRY_SECONDS = 1.0


def is_active(pod: Obj) -> bool:
    """Whether a pod counts as one of the replicas."""
    return pod["status"].get("phase") not in ("Succeeded", "Failed") and not pod["metadata"].get("deletionTimestamp")


def ready_since(pod: Obj) -> datetime | None:
    """Return since when a pod is ready, nothing when it is not."""
    ready = condition_of(pod, "Ready")
    if ready is None or ready["status"] != "True":
        return None
    return datetime.fromisoformat(ready["lastTransitionTime"])


class ReplicaSetController:
    """Brings every ReplicaSet that something happened to to the number of pods that it asks for."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store: Store = registry.store
        self._queue = WorkQueue(self.sync, DEBOUNCE_SECONDS)
        self.run = self._queue.run
        self._store.listen(self._on_change)

    def _on_change(self, change: StoreChange) -> None:
        if change.key == catalogue.REPLICA_SETS.key:
            self._queue.add(namespace_of(change.new), name_of(change.new))
        elif change.key == catalogue.PODS.key and self._store.count(catalogue.REPLICA_SETS.key):
            for pod in filter(None, (change.new, change.old)):
                owner = controller_of(pod)
                if owner is None:
                    self._enqueue_owner(pod)
                elif owner["kind"] == "ReplicaSet":
                    self._queue.add(namespace_of(pod), owner["name"])

    def _enqueue_owner(self, pod: Obj) -> None:
        for replica_set in self._store.all(catalogue.REPLICA_SETS.key, namespace_of(pod)):
            if matches_selector(replica_set["spec"]["selector"], pod["metadata"].get("labels") or {}):
                self._queue.add(namespace_of(replica_set), name_of(replica_set))

    def notice_all(self) -> None:
        """Look at every ReplicaSet that is there already."""
        for replica_set in self._store.each(catalogue.REPLICA_SETS.key):
            self._queue.add(namespace_of(replica_set), name_of(replica_set))

    def sync(self, namespace: str, name: str) -> None:
        """Compare one ReplicaSet with its pods and act on the difference."""
        replica_set = self._store.find(catalogue.REPLICA_SETS.key, namespace, name)
        if replica_set is None:
            return
        pods = [pod for pod in self._claim(replica_set) if is_active(pod)]
        failure: ApiError | None = None
        if not replica_set["metadata"].get("deletionTimestamp"):
            pods, failure = self._balance(replica_set, pods)
        self._report(replica_set, pods, failure)

    def _claim(self, replica_set: Obj) -> list[Obj]:
        """Take the pods that the selector means and nobody controls, let go of those it no longer means."""
        selector, uid = replica_set["spec"]["selector"], replica_set["metadata"]["uid"]
        reference = owner_reference(replica_set)
        claimed: list[Obj] = []
        for pod in self._store.all(catalogue.PODS.key, namespace_of(replica_set)):
            owner, meant = controller_of(pod), matches_selector(selector, pod["metadata"].get("labels") or {})
            if owner is not None and owner["uid"] == uid:
                if meant or replica_set["metadata"].get("deletionTimestamp"):
                    claimed.append(pod)
                else:
                    self._registry.mutate(
                        catalogue.PODS, namespace_of(pod), name_of(pod), lambda obj: _release_pod(obj, uid)
                    )
            elif owner is None and meant and is_active(pod) and not replica_set["metadata"].get("deletionTimestamp"):
                taken = self._registry.mutate(
                    catalogue.PODS,
                    namespace_of(pod),
                    name_of(pod),
                    lambda obj: obj["metadata"].setdefault("ownerReferences", []).append(reference),
                )
                claimed += [taken] if taken is not None else []
        return claimed

    def _balance(self, replica_set: Obj, pods: list[Obj]) -> tuple[list[Obj], ApiError | None]:
        missing = int(replica_set["spec"]["replicas"]) - len(pods)
        for _ in range(min(missing, BURST)):
            try:
                created = self._registry.create(catalogue.PODS, namespace_of(replica_set), pod_of(replica_set))
            except ApiError as refused:
                told = f"Error creating: {refused.message}"
                self._registry.record(replica_set, "FailedCreate", told, "Warning", SOURCE)
                self._queue.add_later(replica_set, RETRY_SECONDS)
                return pods, refused
            self._registry.record(replica_set, "SuccessfulCreate", f"Created pod: {name_of(created)}", source=SOURCE)
            pods = [*pods, created]
        if missing < 0:
            crowd: dict[str, int] = {}
            for pod in pods:
                node = str(pod["spec"].get("nodeName") or "")
                crowd[node] = crowd.get(node, 0) + 1
            ordered = sorted(pods, key=lambda pod: _deletion_rank(pod, crowd))
            for pod in ordered[: min(-missing, BURST)]:
                self._registry.delete(catalogue.PODS, namespace_of(pod), name_of(pod))
                self._registry.record(replica_set, "SuccessfulDelete", f"Deleted pod: {name_of(pod)}", source=SOURCE)
            pods = ordered[min(-missing, BURST) :]
        return pods, None

    def _report(self, replica_set: Obj, pods: list[Obj], failure: ApiError | None) -> None:
        spec = replica_set["spec"]
        labels = (spec["template"].get("metadata") or {}).get("labels") or {}
        least = int(spec.get("minReadySeconds") or 0)
        now = datetime.now(UTC)
        ages = [(now - since).total_seconds() for pod in pods if (since := ready_since(pod)) is not None]
        counts = {
            "fullyLabeledReplicas": sum(1 for pod in pods if labels.items() <= pod["metadata"]["labels"].items()),
            "readyReplicas": len(ages),
            "availableReplicas": sum(1 for age in ages if age >= least),
        }
        if waiting := [least - age for age in ages if age < least]:
            self._queue.add_later(replica_set, min(waiting) + 0.05)
        status: Obj = {
            "replicas": len(pods),
            **{name: count for name, count in counts.items() if count},
            "observedGeneration": replica_set["metadata"]["generation"],
        }
        if failure is not None:
            status["conditions"] = clone((replica_set.get("status") or {}).get("conditions") or [])
            set_condition(status, "ReplicaFailure", "True", "FailedCreate", failure.message)
        self._registry.mutate(
            catalogue.REPLICA_SETS,
            namespace_of(replica_set),
            name_of(replica_set),
            lambda obj: obj.__setitem__("status", status),
        )


def _release_pod(pod: Obj, uid: str) -> None:
    kept = [reference for reference in pod["metadata"]["ownerReferences"] if reference["uid"] != uid]
    if kept:
        pod["metadata"]["ownerReferences"] = kept
    else:
        del pod["metadata"]["ownerReferences"]


def _deletion_rank(pod: Obj, crowd: dict[str, int]) -> tuple[Any, ...]:
    """Return what orders pods by how little is lost with them: the first goes first."""
    node, since = str(pod["spec"].get("nodeName") or ""), ready_since(pod)
    statuses = pod["status"].get("containerStatuses") or ()
    return (
        bool(node),
        ("Pending", "Unknown", "Running").index(pod["status"].get("phase") or "Pending"),
        since is not None,
        -crowd[node],
        -since.timestamp() if since is not None else 0.0,
        -max((int(status.get("restartCount") or 0) for status in statuses), default=0),
        -datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp(),
    )


def pod_of(replica_set: Obj) -> Obj:
    """Return the pod that a ReplicaSet's template makes."""
    template: Obj = clone(replica_set["spec"]["template"])
    metadata: Obj = template.get("metadata") or {}
    stem = f"{name_of(replica_set)[:57]}-"
    copied = {key: metadata[key] for key in ("labels", "annotations", "finalizers") if metadata.get(key)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **copied,
            "name": stem + random_suffix(),
            "generateName": stem,
            "namespace": namespace_of(replica_set),
            "ownerReferences": [owner_reference(replica_set)],
        },
        "spec": template["spec"],
    }
