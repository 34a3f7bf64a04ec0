"""The ReplicaSet controller.

Source: `pkg/controller/replicaset` and `ActivePodsWithRanks` of `pkg/controller` of Kubernetes 1.33. It ignores a pod's
deletion cost.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.admission import random_suffix
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.objects import (
    add_owner,
    condition_of,
    controller_of,
    has_ended,
    is_deleting,
    labels_of,
    owner_reference,
    remove_owner,
)
from evenkeel_local.gpu_cluster.registry import set_condition
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.store import StoreChange, clone, name_of, namespace_of
from evenkeel_local.gpu_cluster.work_queue import Controller

SOURCE = "replicaset-controller"
BURST = 500
"""Maximum number of pods that one `sync` creates or deletes."""
RETRY_SECONDS = 1.0


def is_active(pod: Obj) -> bool:
    """Whether a pod counts as one of the replicas."""
    return not has_ended(pod) and not is_deleting(pod)


def ready_since(pod: Obj) -> datetime | None:
    """Return the time since which a pod is ready; None if it is not."""
    ready = condition_of(pod, "Ready")
    if ready is None or ready["status"] != "True":
        return None
    return datetime.fromisoformat(ready["lastTransitionTime"])


class ReplicaSetController(Controller):
    """Gives each ReplicaSet as many pods as it asks for."""

    kind = catalogue.REPLICA_SETS

    def _on_other_change(self, change: StoreChange) -> None:
        if change.key == catalogue.PODS.key and self._store.count(catalogue.REPLICA_SETS.key):
            for pod in filter(None, (change.new, change.old)):
                owner = controller_of(pod)
                if owner is None:
                    self._enqueue_owner(pod)
                elif owner["kind"] == "ReplicaSet":
                    self._queue.add(namespace_of(pod), owner["name"])

    def _enqueue_owner(self, pod: Obj) -> None:
        for replica_set in self._store.all(catalogue.REPLICA_SETS.key, namespace_of(pod)):
            if matches_selector(replica_set["spec"]["selector"], labels_of(pod)):
                self.notice(replica_set)

    def sync(self, namespace: str, name: str) -> None:
        """Compare one ReplicaSet with its pods, and act on the difference."""
        replica_set = self._store.find(catalogue.REPLICA_SETS.key, namespace, name)
        if replica_set is None:
            return
        pods = [pod for pod in self._claim(replica_set) if is_active(pod)]
        failure: ApiError | None = None
        if not is_deleting(replica_set):
            pods, failure = self._balance(replica_set, pods)
        self._write_status(replica_set, pods, failure)

    def _claim(self, replica_set: Obj) -> list[Obj]:
        """Adopt matching pods without a controller, and release pods that no longer match."""
        selector, uid = replica_set["spec"]["selector"], replica_set["metadata"]["uid"]
        reference = owner_reference(replica_set)
        claimed_pods: list[Obj] = []
        for pod in self._store.all(catalogue.PODS.key, namespace_of(replica_set)):
            owner, matches = controller_of(pod), matches_selector(selector, labels_of(pod))
            if owner is not None and owner["uid"] == uid:
                if matches or is_deleting(replica_set):
                    claimed_pods.append(pod)
                else:
                    self._registry.change(pod, lambda obj: remove_owner(obj, uid))
            elif owner is None and matches and is_active(pod) and not is_deleting(replica_set):
                adopted_pod = self._registry.change(pod, lambda obj: add_owner(obj, reference))
                claimed_pods += [adopted_pod] if adopted_pod is not None else []
        return claimed_pods

    def _balance(self, replica_set: Obj, pods: list[Obj]) -> tuple[list[Obj], ApiError | None]:
        missing_pods = int(replica_set["spec"]["replicas"]) - len(pods)
        for _ in range(min(missing_pods, BURST)):
            try:
                created_pod = self._registry.create(catalogue.PODS, namespace_of(replica_set), new_pod(replica_set))
            except ApiError as refusal:
                message = f"Error creating: {refusal.message}"
                self._registry.record(replica_set, "FailedCreate", message, "Warning", SOURCE)
                self._queue.add_later(replica_set, RETRY_SECONDS)
                return pods, refusal
            self._registry.record(
                replica_set, "SuccessfulCreate", f"Created pod: {name_of(created_pod)}", source=SOURCE
            )
            pods = [*pods, created_pod]
        if missing_pods < 0:
            crowd = Counter(str(pod["spec"].get("nodeName") or "") for pod in pods)
            sorted_pods = sorted(pods, key=lambda pod: _deletion_rank(pod, crowd))
            for pod in sorted_pods[: min(-missing_pods, BURST)]:
                self._registry.remove(pod)
                self._registry.record(replica_set, "SuccessfulDelete", f"Deleted pod: {name_of(pod)}", source=SOURCE)
            pods = sorted_pods[min(-missing_pods, BURST) :]
        return pods, None

    def _write_status(self, replica_set: Obj, pods: list[Obj], failure: ApiError | None) -> None:
        spec = replica_set["spec"]
        labels = (spec["template"].get("metadata") or {}).get("labels") or {}
        minimum = int(spec.get("minReadySeconds") or 0)
        now = datetime.now(UTC)
        ages = [(now - since).total_seconds() for pod in pods if (since := ready_since(pod)) is not None]
        counts = {
            "fullyLabeledReplicas": sum(1 for pod in pods if labels.items() <= pod["metadata"]["labels"].items()),
            "readyReplicas": len(ages),
            "availableReplicas": sum(1 for age in ages if age >= minimum),
        }
        if seconds_until_ready := [minimum - age for age in ages if age < minimum]:
            self._queue.add_later(replica_set, min(seconds_until_ready) + 0.05)
        status: Obj = {
            "replicas": len(pods),
            **{name: count for name, count in counts.items() if count},
            "observedGeneration": replica_set["metadata"]["generation"],
        }
        if failure is not None:
            status["conditions"] = clone((replica_set.get("status") or {}).get("conditions") or [])
            set_condition(status, "ReplicaFailure", "True", "FailedCreate", failure.message)
        self._registry.change(replica_set, lambda obj: obj.update(status=status))


def _deletion_rank(pod: Obj, crowd: Counter[str]) -> tuple[Any, ...]:
    """Return the sort key of deletion: the pods whose loss costs least come first."""
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


def new_pod(replica_set: Obj) -> Obj:
    """Return a pod from a ReplicaSet's template."""
    template: Obj = clone(replica_set["spec"]["template"])
    metadata: Obj = template.get("metadata") or {}
    stem = f"{name_of(replica_set)[:57]}-"
    copied_metadata = {key: metadata[key] for key in ("labels", "annotations", "finalizers") if metadata.get(key)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **copied_metadata,
            "name": stem + random_suffix(),
            "generateName": stem,
            "namespace": namespace_of(replica_set),
            "ownerReferences": [owner_reference(replica_set)],
        },
        "spec": template["spec"],
    }
