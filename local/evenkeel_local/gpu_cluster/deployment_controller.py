"""The Deployment controller: moves pods from one template to the next by way of ReplicaSets.

Source: `pkg/controller/deployment` of Kubernetes 1.33: revisions and their history, rolling updates within `maxSurge`
and `maxUnavailable`, `Recreate`, proportional scaling in mid-rollout, pausing, and the conditions. The hash of a
template is stable here and is not the real server's: that one rests on how Go prints its types.

One look takes at most one step of a rollout; the change it makes brings on the next.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.admission import SUFFIX_ALPHABET
from evenkeel_local.gpu_cluster.disruption_controller import scaled
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.registry import (
    Registry,
    condition_of,
    controller_of,
    owner_reference,
    set_condition,
    timestamp,
)
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.store import Store, StoreChange, clone, name_of, namespace_of
from evenkeel_local.gpu_cluster.work_queue import WorkQueue

SOURCE = "deployment-controller"
DEBOUNCE_SECONDS = 0.01
RETRY_SECONDS = 1.0
HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS_ANNOTATION = "deployment.kubernetes.io/max-replicas"
TIMED_OUT = "ProgressDeadlineExceeded"
NOT_COPIED = frozenset({"kubectl.kubernetes.io/last-applied-configuration", REVISION, DESIRED, MAX_REPLICAS_ANNOTATION})


@dataclass
class _Rollout:
    """A Deployment at one look: its own ReplicaSet if it has one yet, the older ones, and the status so far."""

    deployment: Obj
    new: Obj | None
    old: list[Obj]
    status: Obj

    @property
    def all(self) -> list[Obj]:
        return [*self.old, self.new] if self.new is not None else list(self.old)

    @property
    def wanted(self) -> int:
        return int(self.deployment["spec"]["replicas"])

    @property
    def is_rolling(self) -> bool:
        return bool(self.deployment["spec"]["strategy"]["type"] == "RollingUpdate")

    @property
    def surge(self) -> int:
        """How many pods there may be beyond those wanted: a share is rounded up."""
        return scaled(self._bounds["maxSurge"], self.wanted) if self.is_rolling else 0

    @property
    def unavailable(self) -> int:
        """How many of the wanted pods may be missing: a share is rounded down, and without any surge one may."""
        if not self.is_rolling or self.wanted == 0:
            return 0
        value = self._bounds["maxUnavailable"]
        if isinstance(value, str) and value.endswith("%"):
            value = int(value[:-1]) * self.wanted // 100
        least = int(value) if int(value) or self.surge else 1
        return min(least, self.wanted)

    @property
    def _bounds(self) -> Obj:
        return dict(self.deployment["spec"]["strategy"]["rollingUpdate"])


def _asked(replica_sets: list[Obj]) -> int:
    return sum(int(replica_set["spec"]["replicas"]) for replica_set in replica_sets)


def _counted(replica_sets: list[Obj], field: str) -> int:
    return sum(int((replica_set.get("status") or {}).get(field) or 0) for replica_set in replica_sets)


def _age(replica_set: Obj) -> tuple[str, int]:
    return replica_set["metadata"]["creationTimestamp"], _revision(replica_set)


def _revision(obj: Obj) -> int:
    text = (obj["metadata"].get("annotations") or {}).get(REVISION) or "0"
    return int(text) if text.isdigit() else 0


class DeploymentController:
    """Brings every Deployment that something happened to one step further."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store: Store = registry.store
        self._queue = WorkQueue(self.sync, DEBOUNCE_SECONDS)
        self.run = self._queue.run
        self._store.listen(self._on_change)

    def _on_change(self, change: StoreChange) -> None:
        if change.key == catalogue.DEPLOYMENTS.key:
            self._queue.add(namespace_of(change.new), name_of(change.new))
        elif change.key == catalogue.REPLICA_SETS.key:
            self._on_replica_set_change(change.new)
        elif change.key == catalogue.PODS.key and change.kind == "DELETED":
            # `Recreate` waits for the last of the old pods, whose ReplicaSet has counted it out long before.
            owner = controller_of(change.new) or {}
            if owner.get("kind") == "ReplicaSet":
                replica_set = self._store.find(catalogue.REPLICA_SETS.key, namespace_of(change.new), owner["name"])
                if replica_set is not None:
                    self._on_replica_set_change(replica_set)

    def _on_replica_set_change(self, replica_set: Obj) -> None:
        owner = controller_of(replica_set)
        if owner is not None and owner["kind"] == "Deployment":
            self._queue.add(namespace_of(replica_set), owner["name"])
        elif owner is None:
            for deployment in self._store.all(catalogue.DEPLOYMENTS.key, namespace_of(replica_set)):
                self._queue.add(namespace_of(deployment), name_of(deployment))

    def notice_all(self) -> None:
        """Look at every Deployment that is there already."""
        for deployment in self._store.each(catalogue.DEPLOYMENTS.key):
            self._queue.add(namespace_of(deployment), name_of(deployment))

    def sync(self, namespace: str, name: str) -> None:
        """Take one Deployment a step further."""
        deployment = self._store.find(catalogue.DEPLOYMENTS.key, namespace, name)
        if deployment is None:
            return
        replica_sets = self._claim(deployment)
        new = next((each for each in sorted(replica_sets, key=_age) if _same_template(each, deployment)), None)
        old = [each for each in replica_sets if each is not new]
        rollout = _Rollout(deployment, new, sorted(old, key=_age), clone(deployment.get("status") or {}))
        if not deployment["metadata"].get("deletionTimestamp"):
            try:
                self._step(rollout)
            except ApiError as refused:
                told = f'Failed to create new replica set "{_name(rollout)}": {refused.message}'
                _set(rollout.status, "Progressing", "False", "ReplicaSetCreateError", told)
                self._registry.record(deployment, "ReplicaSetCreateError", told, "Warning", SOURCE)
                self._queue.add_later(deployment, RETRY_SECONDS)
        self._report(rollout)

    def _claim(self, deployment: Obj) -> list[Obj]:
        """Return the Deployment's ReplicaSets, with those that its selector means and nobody controls."""
        uid, selector = deployment["metadata"]["uid"], deployment["spec"]["selector"]
        reference = owner_reference(deployment)
        claimed: list[Obj] = []
        for replica_set in self._store.all(catalogue.REPLICA_SETS.key, namespace_of(deployment)):
            owner = controller_of(replica_set)
            meant = matches_selector(selector, replica_set["metadata"].get("labels") or {})
            going = deployment["metadata"].get("deletionTimestamp") or replica_set["metadata"].get("deletionTimestamp")
            if owner is not None and owner["uid"] == uid:
                claimed.append(replica_set)
            elif owner is None and meant and not going:
                taken = self._change(
                    replica_set, lambda obj: obj["metadata"].setdefault("ownerReferences", []).append(reference)
                )
                claimed += [taken] if taken is not None else []
        return claimed

    def _change(self, replica_set: Obj, change: Callable[[Obj], None]) -> Obj | None:
        return self._registry.mutate(catalogue.REPLICA_SETS, namespace_of(replica_set), name_of(replica_set), change)

    # One step

    def _step(self, rollout: _Rollout) -> None:
        spec = rollout.deployment["spec"]
        self._pause(rollout)
        if rollout.new is not None:
            self._keep_revision(rollout, rollout.new)
        if spec.get("paused") or self._was_scaled(rollout):
            self._scale(rollout)
        elif rollout.is_rolling:
            self._roll(rollout)
        else:
            self._recreate(rollout)
        if not spec.get("paused"):
            self._delete_old_replica_sets(rollout)

    def _pause(self, rollout: _Rollout) -> None:
        progressing = condition_of({"status": rollout.status}, "Progressing") or {}
        if "progressDeadlineSeconds" not in rollout.deployment["spec"] or progressing.get("reason") == TIMED_OUT:
            return
        paused, was_paused = rollout.deployment["spec"].get("paused"), progressing.get("reason") == "DeploymentPaused"
        if paused and not was_paused:
            _set(rollout.status, "Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")
        elif was_paused and not paused:
            _set(rollout.status, "Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed")

    def _was_scaled(self, rollout: _Rollout) -> bool:
        for replica_set in rollout.all:
            noted = (replica_set["metadata"].get("annotations") or {}).get(DESIRED)
            if int(replica_set["spec"]["replicas"]) and noted is not None and noted != str(rollout.wanted):
                return True
        return False

    def _roll(self, rollout: _Rollout) -> None:
        if rollout.new is None:
            self._create(rollout)
            return
        if self._resize(rollout, rollout.new, self._new_replica_set_size(rollout, rollout.new)):
            return
        older = [each for each in rollout.old if int(each["spec"]["replicas"])]
        least = rollout.wanted - rollout.unavailable
        not_up_yet = int(rollout.new["spec"]["replicas"]) - _counted([rollout.new], "availableReplicas")
        spare = _asked(rollout.all) - least - not_up_yet
        for replica_set in older:  # those that do not serve go first: nothing is lost with them
            idle = int(replica_set["spec"]["replicas"]) - _counted([replica_set], "availableReplicas")
            going = min(spare, idle)
            if going > 0:
                self._resize(rollout, replica_set, int(replica_set["spec"]["replicas"]) - going)
                spare -= going
        spare = min(spare, _counted(rollout.all, "availableReplicas") - least)
        for replica_set in rollout.old:
            going = min(spare, int(replica_set["spec"]["replicas"]))
            if going > 0:
                self._resize(rollout, replica_set, int(replica_set["spec"]["replicas"]) - going)
                spare -= going

    def _new_replica_set_size(self, rollout: _Rollout, new: Obj | None) -> int:
        """Return how large the new ReplicaSet may be now."""
        if not rollout.is_rolling:
            return rollout.wanted
        present = int(new["spec"]["replicas"]) if new is not None else 0
        if present >= rollout.wanted:
            return rollout.wanted
        capacity = rollout.wanted + rollout.surge - _asked(rollout.all)
        return present + max(min(capacity, rollout.wanted - present), 0)

    def _recreate(self, rollout: _Rollout) -> None:
        resized = [self._resize(rollout, replica_set, 0) for replica_set in rollout.old]
        uids = {replica_set["metadata"]["uid"] for replica_set in rollout.old}
        if any(resized) or any(
            pod["status"].get("phase") not in ("Succeeded", "Failed")
            for uid in uids
            for key, pod in self._store.owned_by(uid)
            if key == catalogue.PODS.key
        ):
            return
        if rollout.new is None:
            self._create(rollout)
        else:
            self._resize(rollout, rollout.new, rollout.wanted)

    def _scale(self, rollout: _Rollout) -> None:
        """Bring a Deployment whose number changed to it, each ReplicaSet by its share when a rollout is under way."""
        active = [each for each in rollout.all if int(each["spec"]["replicas"])]
        if len(active) <= 1:
            latest = active[0] if active else rollout.new or max(rollout.old, key=_revision, default=None)
            if latest is not None:
                self._resize(rollout, latest, rollout.wanted)
            return
        new = rollout.new
        if new is not None and (
            int(new["spec"]["replicas"]) == _counted([new], "availableReplicas") == rollout.wanted
            and (new["metadata"].get("annotations") or {}).get(DESIRED) == str(rollout.wanted)
        ):
            for replica_set in rollout.old:
                self._resize(rollout, replica_set, 0)
            return
        if rollout.is_rolling:
            allowed = rollout.wanted + rollout.surge if rollout.wanted else 0
            for replica_set, size in _proportional_shares(active, allowed, rollout).values():
                self._resize(rollout, replica_set, size)

    def _resize(self, rollout: _Rollout, replica_set: Obj, size: int) -> bool:
        """Ask a ReplicaSet for another number of pods; return whether it is another."""
        before = int(replica_set["spec"]["replicas"])
        notes = {DESIRED: str(rollout.wanted), MAX_REPLICAS_ANNOTATION: str(rollout.wanted + rollout.surge)}

        def change(obj: Obj) -> None:
            obj["spec"]["replicas"] = size
            obj["metadata"].setdefault("annotations", {}).update(notes)

        stored = self._change(replica_set, change)
        if stored is None:
            return False
        if rollout.new is replica_set:
            rollout.new = stored
        else:
            rollout.old = [stored if each is replica_set else each for each in rollout.old]
        if before == size:
            return False
        way = "up" if size > before else "down"
        told = f"Scaled {way} replica set {name_of(replica_set)} from {before} to {size}"
        self._registry.record(rollout.deployment, "ScalingReplicaSet", told, source=SOURCE)
        return True

    # Revisions

    def _create(self, rollout: _Rollout) -> None:
        """Make the ReplicaSet of the template as it is now."""
        deployment, size = rollout.deployment, self._new_replica_set_size(rollout, None)
        hashed = template_hash(deployment)
        template: Obj = clone(deployment["spec"]["template"])
        template.setdefault("metadata", {}).setdefault("labels", {})[HASH] = hashed
        selector: Obj = clone(deployment["spec"]["selector"])
        selector.setdefault("matchLabels", {})[HASH] = hashed
        revision = max((_revision(each) for each in rollout.old), default=0) + 1
        annotations = deployment["metadata"].get("annotations") or {}
        spec = {"replicas": size, "selector": selector, "template": template}
        if least := deployment["spec"].get("minReadySeconds"):
            spec["minReadySeconds"] = least
        body: Obj = {
            "metadata": {
                "name": _name(rollout),
                "labels": clone(template["metadata"]["labels"]),
                "annotations": {
                    **{key: value for key, value in annotations.items() if key not in NOT_COPIED},
                    REVISION: str(revision),
                    DESIRED: str(rollout.wanted),
                    MAX_REPLICAS_ANNOTATION: str(rollout.wanted + rollout.surge),
                },
                "ownerReferences": [owner_reference(deployment)],
            },
            "spec": spec,
        }
        try:
            rollout.new = self._registry.create(catalogue.REPLICA_SETS, namespace_of(deployment), body)
        except ApiError as refused:
            if refused.code != 409:
                raise
            # Two templates of one hash, or somebody else's ReplicaSet: the next look tries with another name.
            rollout.status["collisionCount"] = int(rollout.status.get("collisionCount") or 0) + 1
            return
        self._note_revision(deployment, revision)
        if size:
            told = f"Scaled up replica set {name_of(rollout.new)} from 0 to {size}"
            self._registry.record(deployment, "ScalingReplicaSet", told, source=SOURCE)
        if "progressDeadlineSeconds" in deployment["spec"]:
            told = f'Created new replica set "{name_of(rollout.new)}"'
            _set(rollout.status, "Progressing", "True", "NewReplicaSetCreated", told)

    def _keep_revision(self, rollout: _Rollout, new: Obj) -> None:
        """Number the current ReplicaSet above all others: one that is returned to becomes the latest again."""
        revision = max([_revision(new), *(_revision(each) + 1 for each in rollout.old)])
        least = rollout.deployment["spec"].get("minReadySeconds")

        def change(obj: Obj) -> None:
            obj["metadata"].setdefault("annotations", {})[REVISION] = str(revision)
            if obj["spec"].get("minReadySeconds") != least:
                obj["spec"]["minReadySeconds"] = least or 0

        rollout.new = self._change(new, change)
        self._note_revision(rollout.deployment, revision)
        if "progressDeadlineSeconds" in rollout.deployment["spec"] and (
            condition_of({"status": rollout.status}, "Progressing") is None
        ):
            told = f'Found new replica set "{name_of(new)}"'
            _set(rollout.status, "Progressing", "True", "FoundNewReplicaSet", told)

    def _note_revision(self, deployment: Obj, revision: int) -> None:
        self._registry.mutate(
            catalogue.DEPLOYMENTS,
            namespace_of(deployment),
            name_of(deployment),
            lambda obj: obj["metadata"].setdefault("annotations", {}).update({REVISION: str(revision)}),
        )

    def _delete_old_replica_sets(self, rollout: _Rollout) -> None:
        limit = rollout.deployment["spec"].get("revisionHistoryLimit")
        if limit is None or not _is_complete(rollout, rollout.status):
            return
        idle = [each for each in rollout.old if not int(each["spec"]["replicas"]) and not _counted([each], "replicas")]
        for replica_set in sorted(idle, key=_revision)[: max(len(rollout.old) - int(limit), 0)]:
            if not replica_set["metadata"].get("deletionTimestamp"):
                self._registry.delete(catalogue.REPLICA_SETS, namespace_of(replica_set), name_of(replica_set))

    # Status

    def _report(self, rollout: _Rollout) -> None:
        deployment, before = rollout.deployment, rollout.deployment.get("status") or {}
        available = _counted(rollout.all, "availableReplicas")
        status: Obj = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": _counted(rollout.all, "replicas"),
            "updatedReplicas": _counted([rollout.new] if rollout.new is not None else [], "replicas"),
            "readyReplicas": _counted(rollout.all, "readyReplicas"),
            "availableReplicas": available,
            "unavailableReplicas": max(_asked(rollout.all) - available, 0),
            "collisionCount": rollout.status.get("collisionCount"),
            "conditions": rollout.status.get("conditions") or [],
        }
        status = {name: value for name, value in status.items() if value not in (0, None)}
        if available >= rollout.wanted - rollout.unavailable:
            _set(status, "Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        else:
            told = "Deployment does not have minimum availability."
            _set(status, "Available", "False", "MinimumReplicasUnavailable", told)
        self._judge_progress(rollout, status, before)
        failure = next((found for each in rollout.all if (found := condition_of(each, "ReplicaFailure"))), None)
        status["conditions"] = [each for each in status["conditions"] if each["type"] != "ReplicaFailure"]
        if failure is not None:
            _set(status, "ReplicaFailure", failure["status"], failure["reason"], failure["message"])
        if status != before:
            self._registry.mutate(
                catalogue.DEPLOYMENTS,
                namespace_of(deployment),
                name_of(deployment),
                lambda obj: obj.__setitem__("status", status),
            )

    def _judge_progress(self, rollout: _Rollout, status: Obj, before: Obj) -> None:
        deadline = rollout.deployment["spec"].get("progressDeadlineSeconds")
        condition = condition_of({"status": status}, "Progressing")
        if deadline is None or rollout.deployment["metadata"].get("deletionTimestamp"):
            return
        if condition is not None and condition["reason"] == "NewReplicaSetAvailable":
            if status.get("replicas", 0) == status.get("updatedReplicas", 0):
                return  # the rollout is over: a pod lost later is no lack of progress
        elif condition is not None and condition["reason"] == "DeploymentPaused":
            return
        subject = f'ReplicaSet "{name_of(rollout.new)}"' if rollout.new is not None else "Deployment"
        if _is_complete(rollout, status):
            told = f"{subject} has successfully progressed."
            _set(status, "Progressing", "True", "NewReplicaSetAvailable", told)
        elif _has_progressed(status, before):
            _set(status, "Progressing", "True", "ReplicaSetUpdated", f"{subject} is progressing.", touch=True)
            self._queue.add_later(rollout.deployment, deadline + 1)
        elif condition is not None and condition["reason"] != TIMED_OUT:
            since = datetime.fromisoformat(condition["lastUpdateTime"])
            left = deadline - (datetime.now(UTC) - since).total_seconds()
            if left < 0:
                _set(status, "Progressing", "False", TIMED_OUT, f"{subject} has timed out progressing.")
            else:
                self._queue.add_later(rollout.deployment, left + 1)


def _set(status: Obj, kind: str, value: str, reason: str, message: str, *, touch: bool = False) -> None:
    """Put a condition in a Deployment's status, with the time of its last update that these have besides."""
    changed = set_condition(status, kind, value, reason, message)
    for condition in status["conditions"]:
        if condition["type"] == kind and (changed or touch or "lastUpdateTime" not in condition):
            condition["lastUpdateTime"] = timestamp()


def _is_complete(rollout: _Rollout, status: Obj) -> bool:
    counts = {status.get(field, 0) for field in ("replicas", "updatedReplicas", "availableReplicas")}
    observed = status.get("observedGeneration")
    return counts == {rollout.wanted} and bool(observed == rollout.deployment["metadata"]["generation"])


def _has_progressed(status: Obj, before: Obj) -> bool:
    def grew(field: str) -> bool:
        return bool(status.get(field, 0) > before.get(field, 0))

    def old(counts: Obj) -> int:
        return int(counts.get("replicas", 0)) - int(counts.get("updatedReplicas", 0))

    return any(map(grew, ("updatedReplicas", "readyReplicas", "availableReplicas"))) or old(status) < old(before)


def _proportional_shares(active: list[Obj], allowed: int, rollout: _Rollout) -> dict[str, tuple[Obj, int]]:
    """Return what each ReplicaSet gets of the pods to add or remove, by its share of those that were wanted before."""
    total = allowed - _asked(active)
    newer = sorted(active, key=_age, reverse=total > 0)
    ordered = sorted(newer, key=lambda each: int(each["spec"]["replicas"]), reverse=True)
    sizes: dict[str, tuple[Obj, int]] = {}
    left = total
    for replica_set in ordered:
        size = int(replica_set["spec"]["replicas"])
        most = int((replica_set["metadata"].get("annotations") or {}).get(MAX_REPLICAS_ANNOTATION) or allowed) or 1
        share = round(size * allowed / most) - size
        share = max(min(share, left), 0) if total > 0 else min(max(share, left), 0)
        left -= share
        sizes[name_of(replica_set)] = (replica_set, max(size + share, 0))
    if ordered and left:
        first, size = sizes[name_of(ordered[0])]
        sizes[name_of(first)] = (first, max(size + left, 0))
    return sizes


def _same_template(replica_set: Obj, deployment: Obj) -> bool:
    return _template_without_hash(replica_set["spec"]["template"]) == _template_without_hash(
        deployment["spec"]["template"]
    )


def _template_without_hash(template: Obj) -> Obj:
    """Return a template without the label that its ReplicaSet added."""
    bare: Obj = clone(template)
    labels = (bare.get("metadata") or {}).get("labels") or {}
    labels.pop(HASH, None)
    return bare


def _name(rollout: _Rollout) -> str:
    return f"{name_of(rollout.deployment)}-{template_hash(rollout.deployment)}"


def template_hash(deployment: Obj) -> str:
    """Return what tells this template's pods from others': FNV-1a over its JSON, in letters that spell no words."""
    count = (deployment.get("status") or {}).get("collisionCount")
    text = json.dumps([_template_without_hash(deployment["spec"]["template"]), count], sort_keys=True)
    number = 0x811C9DC5
    for byte in text.encode():
        number = ((number ^ byte) * 0x01000193) & 0xFFFFFFFF
    return "".join(SUFFIX_ALPHABET[ord(char) % len(SUFFIX_ALPHABET)] for char in str(number))
