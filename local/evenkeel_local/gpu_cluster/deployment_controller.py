"""The Deployment controller: replaces the pods of an old template by pods of the new one, through ReplicaSets.

Source: `pkg/controller/deployment` of Kubernetes 1.33: revisions and their history, rolling updates within `maxSurge`
and `maxUnavailable`, `Recreate`, proportional scaling during a rollout, pausing, and the conditions. The hash of a
template is stable but differs from the real server's, which depends on how Go prints its types.

Each `sync` takes at most one step of a rollout. Its change triggers the next step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.admission import SUFFIX_ALPHABET
from evenkeel_local.gpu_cluster.disruption_controller import scaled_value
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.objects import (
    add_owner,
    annotations_of,
    condition_of,
    controller_of,
    has_ended,
    is_deleting,
    labels_of,
    owner_reference,
)
from evenkeel_local.gpu_cluster.registry import set_condition, timestamp
from evenkeel_local.gpu_cluster.selectors import matches_selector
from evenkeel_local.gpu_cluster.store import StoreChange, clone, name_of, namespace_of
from evenkeel_local.gpu_cluster.work_queue import Controller

SOURCE = "deployment-controller"
RETRY_SECONDS = 1.0
HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS_ANNOTATION = "deployment.kubernetes.io/max-replicas"
TIMED_OUT = "ProgressDeadlineExceeded"
NOT_COPIED = frozenset({"kubectl.kubernetes.io/last-applied-configuration", REVISION, DESIRED, MAX_REPLICAS_ANNOTATION})


@dataclass
class _Rollout:
    """A Deployment, its current ReplicaSet if it exists, the older ReplicaSets, and the status so far."""

    deployment: Obj
    new: Obj | None
    old: list[Obj]
    status: Obj

    @property
    def all_replica_sets(self) -> list[Obj]:
        return [*self.old, self.new] if self.new is not None else list(self.old)

    @property
    def desired_replicas(self) -> int:
        return int(self.deployment["spec"]["replicas"])

    @property
    def is_rolling(self) -> bool:
        return bool(self.deployment["spec"]["strategy"]["type"] == "RollingUpdate")

    @property
    def max_surge(self) -> int:
        """Maximum number of pods above the desired number. A percentage is rounded up."""
        return scaled_value(self._bounds["maxSurge"], self.desired_replicas) if self.is_rolling else 0

    @property
    def max_unavailable(self) -> int:
        """Maximum number of missing pods. A percentage is rounded down; without surge it is at least 1."""
        if not self.is_rolling or self.desired_replicas == 0:
            return 0
        value = self._bounds["maxUnavailable"]
        if isinstance(value, str) and value.endswith("%"):
            value = int(value[:-1]) * self.desired_replicas // 100
        minimum = int(value) if int(value) or self.max_surge else 1
        return min(minimum, self.desired_replicas)

    @property
    def _bounds(self) -> Obj:
        return dict(self.deployment["spec"]["strategy"]["rollingUpdate"])


def _total_replicas(replica_sets: list[Obj]) -> int:
    return sum(map(_replica_count, replica_sets))


def _replica_count(replica_set: Obj) -> int:
    return int(replica_set["spec"]["replicas"])


def _sum_status_field(replica_sets: list[Obj], field: str) -> int:
    return sum(int((replica_set.get("status") or {}).get(field) or 0) for replica_set in replica_sets)


def _age_key(replica_set: Obj) -> tuple[str, int]:
    return replica_set["metadata"]["creationTimestamp"], _revision(replica_set)


def _revision(obj: Obj) -> int:
    text = annotations_of(obj).get(REVISION) or "0"
    return int(text) if text.isdigit() else 0


class DeploymentController(Controller):
    """Brings each Deployment one step closer to its spec."""

    kind = catalogue.DEPLOYMENTS

    def _on_other_change(self, change: StoreChange) -> None:
        if change.key == catalogue.REPLICA_SETS.key:
            self._on_replica_set_change(change.new)
        elif change.key == catalogue.PODS.key and change.kind == "DELETED":
            # `Recreate` waits for the end of the last old pod, which the ReplicaSet no longer counts.
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
                self.notice(deployment)

    def sync(self, namespace: str, name: str) -> None:
        """Bring one Deployment one step closer to its spec."""
        deployment = self._store.find(catalogue.DEPLOYMENTS.key, namespace, name)
        if deployment is None:
            return
        replica_sets = self._claim(deployment)
        new_replica_set = next(
            (
                replica_set
                for replica_set in sorted(replica_sets, key=_age_key)
                if _same_template(replica_set, deployment)
            ),
            None,
        )
        old_replica_sets = [replica_set for replica_set in replica_sets if replica_set is not new_replica_set]
        rollout = _Rollout(
            deployment, new_replica_set, sorted(old_replica_sets, key=_age_key), clone(deployment.get("status") or {})
        )
        if not is_deleting(deployment):
            try:
                self._step(rollout)
            except ApiError as refusal:
                message = f'Failed to create new replica set "{_new_replica_set_name(rollout)}": {refusal.message}'
                _set_condition_now(rollout.status, "Progressing", "False", "ReplicaSetCreateError", message)
                self._registry.record(deployment, "ReplicaSetCreateError", message, "Warning", SOURCE)
                self._queue.add_later(deployment, RETRY_SECONDS)
        self._write_status(rollout)

    def _claim(self, deployment: Obj) -> list[Obj]:
        """Return the Deployment's ReplicaSets; adopt matching ReplicaSets without a controller."""
        uid, selector = deployment["metadata"]["uid"], deployment["spec"]["selector"]
        reference = owner_reference(deployment)
        claimed_sets: list[Obj] = []
        for replica_set in self._store.all(catalogue.REPLICA_SETS.key, namespace_of(deployment)):
            owner = controller_of(replica_set)
            matches = matches_selector(selector, labels_of(replica_set))
            is_ending = is_deleting(deployment) or is_deleting(replica_set)
            if owner is not None and owner["uid"] == uid:
                claimed_sets.append(replica_set)
            elif owner is None and matches and not is_ending:
                change = self._registry.change(replica_set, lambda obj: add_owner(obj, reference))
                claimed_sets += [change] if change is not None else []
        return claimed_sets

    # One step

    def _step(self, rollout: _Rollout) -> None:
        spec = rollout.deployment["spec"]
        self._pause(rollout)
        if rollout.new is not None:
            self._keep_revision(rollout, rollout.new)
        if spec.get("paused") or self._was_scaled(rollout):
            self._scale(rollout)
        elif rollout.is_rolling:
            self._roll_update(rollout)
        else:
            self._recreate(rollout)
        if not spec.get("paused"):
            self._delete_old_replica_sets(rollout)

    def _pause(self, rollout: _Rollout) -> None:
        progressing_condition = condition_of({"status": rollout.status}, "Progressing") or {}
        if (
            "progressDeadlineSeconds" not in rollout.deployment["spec"]
            or progressing_condition.get("reason") == TIMED_OUT
        ):
            return
        is_paused, was_paused = (
            rollout.deployment["spec"].get("paused"),
            progressing_condition.get("reason") == "DeploymentPaused",
        )
        if is_paused and not was_paused:
            _set_condition_now(rollout.status, "Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")
        elif was_paused and not is_paused:
            _set_condition_now(rollout.status, "Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed")

    def _was_scaled(self, rollout: _Rollout) -> bool:
        for replica_set in rollout.all_replica_sets:
            recorded_replicas = annotations_of(replica_set).get(DESIRED)
            if (
                _replica_count(replica_set)
                and recorded_replicas is not None
                and recorded_replicas != str(rollout.desired_replicas)
            ):
                return True
        return False

    def _roll_update(self, rollout: _Rollout) -> None:
        if rollout.new is None:
            self._create(rollout)
            return
        if self._resize(rollout, rollout.new, self._new_replica_set_size(rollout, rollout.new)):
            return
        older = [document for document in rollout.old if _replica_count(document)]
        minimum = rollout.desired_replicas - rollout.max_unavailable
        not_up_yet = _replica_count(rollout.new) - _sum_status_field([rollout.new], "availableReplicas")
        spare_replicas = _total_replicas(rollout.all_replica_sets) - minimum - not_up_yet
        for replica_set in older:  # first the pods that are not available
            idle_replicas = _replica_count(replica_set) - _sum_status_field([replica_set], "availableReplicas")
            replicas_to_remove = min(spare_replicas, idle_replicas)
            if replicas_to_remove > 0:
                self._resize(rollout, replica_set, _replica_count(replica_set) - replicas_to_remove)
                spare_replicas -= replicas_to_remove
        spare_replicas = min(spare_replicas, _sum_status_field(rollout.all_replica_sets, "availableReplicas") - minimum)
        for replica_set in rollout.old:
            replicas_to_remove = min(spare_replicas, _replica_count(replica_set))
            if replicas_to_remove > 0:
                self._resize(rollout, replica_set, _replica_count(replica_set) - replicas_to_remove)
                spare_replicas -= replicas_to_remove

    def _new_replica_set_size(self, rollout: _Rollout, new: Obj | None) -> int:
        """Return the number of replicas that the new ReplicaSet may have now."""
        if not rollout.is_rolling:
            return rollout.desired_replicas
        present = _replica_count(new) if new is not None else 0
        if present >= rollout.desired_replicas:
            return rollout.desired_replicas
        capacity = rollout.desired_replicas + rollout.max_surge - _total_replicas(rollout.all_replica_sets)
        return present + max(min(capacity, rollout.desired_replicas - present), 0)

    def _recreate(self, rollout: _Rollout) -> None:
        were_resized = [self._resize(rollout, replica_set, 0) for replica_set in rollout.old]
        uids = {replica_set["metadata"]["uid"] for replica_set in rollout.old}
        if any(were_resized) or any(
            not has_ended(pod) for uid in uids for key, pod in self._store.owned_by(uid) if key == catalogue.PODS.key
        ):
            return
        if rollout.new is None:
            self._create(rollout)
        else:
            self._resize(rollout, rollout.new, rollout.desired_replicas)

    def _scale(self, rollout: _Rollout) -> None:
        """Scale a Deployment; during a rollout each ReplicaSet gets its share."""
        active = [document for document in rollout.all_replica_sets if _replica_count(document)]
        if len(active) <= 1:
            latest_replica_set = active[0] if active else rollout.new or max(rollout.old, key=_revision, default=None)
            if latest_replica_set is not None:
                self._resize(rollout, latest_replica_set, rollout.desired_replicas)
            return
        new_replica_set = rollout.new
        if new_replica_set is not None and (
            _replica_count(new_replica_set)
            == _sum_status_field([new_replica_set], "availableReplicas")
            == rollout.desired_replicas
            and annotations_of(new_replica_set).get(DESIRED) == str(rollout.desired_replicas)
        ):
            for replica_set in rollout.old:
                self._resize(rollout, replica_set, 0)
            return
        if rollout.is_rolling:
            allowed_replicas = rollout.desired_replicas + rollout.max_surge if rollout.desired_replicas else 0
            for replica_set, size in _proportional_shares(active, allowed_replicas, rollout).values():
                self._resize(rollout, replica_set, size)

    def _resize(self, rollout: _Rollout, replica_set: Obj, size: int) -> bool:
        """Set the size of a ReplicaSet; return whether it changed."""
        replicas_before = _replica_count(replica_set)
        notes = {
            DESIRED: str(rollout.desired_replicas),
            MAX_REPLICAS_ANNOTATION: str(rollout.desired_replicas + rollout.max_surge),
        }

        def change(obj: Obj) -> None:
            obj["spec"]["replicas"] = size
            obj["metadata"].setdefault("annotations", {}).update(notes)

        stored_set = self._registry.change(replica_set, change)
        if stored_set is None:
            return False
        if rollout.new is replica_set:
            rollout.new = stored_set
        else:
            rollout.old = [stored_set if document is replica_set else document for document in rollout.old]
        if replicas_before == size:
            return False
        direction = "up" if size > replicas_before else "down"
        message = f"Scaled {direction} replica set {name_of(replica_set)} from {replicas_before} to {size}"
        self._registry.record(rollout.deployment, "ScalingReplicaSet", message, source=SOURCE)
        return True

    # Revisions

    def _create(self, rollout: _Rollout) -> None:
        """Create the ReplicaSet of the current template."""
        deployment, size = rollout.deployment, self._new_replica_set_size(rollout, None)
        hash_text = template_hash(deployment)
        template: Obj = clone(deployment["spec"]["template"])
        template.setdefault("metadata", {}).setdefault("labels", {})[HASH] = hash_text
        selector: Obj = clone(deployment["spec"]["selector"])
        selector.setdefault("matchLabels", {})[HASH] = hash_text
        revision = max((_revision(document) for document in rollout.old), default=0) + 1
        annotations = annotations_of(deployment)
        spec = {"replicas": size, "selector": selector, "template": template}
        if minimum := deployment["spec"].get("minReadySeconds"):
            spec["minReadySeconds"] = minimum
        body: Obj = {
            "metadata": {
                "name": _new_replica_set_name(rollout),
                "labels": clone(template["metadata"]["labels"]),
                "annotations": {
                    **{key: value for key, value in annotations.items() if key not in NOT_COPIED},
                    REVISION: str(revision),
                    DESIRED: str(rollout.desired_replicas),
                    MAX_REPLICAS_ANNOTATION: str(rollout.desired_replicas + rollout.max_surge),
                },
                "ownerReferences": [owner_reference(deployment)],
            },
            "spec": spec,
        }
        try:
            rollout.new = self._registry.create(catalogue.REPLICA_SETS, namespace_of(deployment), body)
        except ApiError as refusal:
            if refusal.code != 409:
                raise
            # Two templates have one hash, or the name is taken: the next `sync` tries another name.
            rollout.status["collisionCount"] = int(rollout.status.get("collisionCount") or 0) + 1
            return
        self._note_revision(deployment, revision)
        if size:
            message = f"Scaled up replica set {name_of(rollout.new)} from 0 to {size}"
            self._registry.record(deployment, "ScalingReplicaSet", message, source=SOURCE)
        if "progressDeadlineSeconds" in deployment["spec"]:
            message = f'Created new replica set "{name_of(rollout.new)}"'
            _set_condition_now(rollout.status, "Progressing", "True", "NewReplicaSetCreated", message)

    def _keep_revision(self, rollout: _Rollout, new: Obj) -> None:
        """Give the current ReplicaSet the highest revision; after a rollback an older one is the latest again."""
        revision = max([_revision(new), *(_revision(document) + 1 for document in rollout.old)])
        minimum = rollout.deployment["spec"].get("minReadySeconds")

        def change(obj: Obj) -> None:
            obj["metadata"].setdefault("annotations", {})[REVISION] = str(revision)
            if obj["spec"].get("minReadySeconds") != minimum:
                obj["spec"]["minReadySeconds"] = minimum or 0

        rollout.new = self._registry.change(new, change)
        self._note_revision(rollout.deployment, revision)
        if "progressDeadlineSeconds" in rollout.deployment["spec"] and (
            condition_of({"status": rollout.status}, "Progressing") is None
        ):
            message = f'Found new replica set "{name_of(new)}"'
            _set_condition_now(rollout.status, "Progressing", "True", "FoundNewReplicaSet", message)

    def _note_revision(self, deployment: Obj, revision: int) -> None:
        note = {REVISION: str(revision)}
        self._registry.change(deployment, lambda obj: obj["metadata"].setdefault("annotations", {}).update(note))

    def _delete_old_replica_sets(self, rollout: _Rollout) -> None:
        limit = rollout.deployment["spec"].get("revisionHistoryLimit")
        if limit is None or not _is_complete(rollout, rollout.status):
            return
        idle_sets = [
            document
            for document in rollout.old
            if not _replica_count(document) and not _sum_status_field([document], "replicas")
        ]
        for replica_set in sorted(idle_sets, key=_revision)[: max(len(rollout.old) - int(limit), 0)]:
            if not is_deleting(replica_set):
                self._registry.remove(replica_set)

    # Status

    def _write_status(self, rollout: _Rollout) -> None:
        deployment, status_before = rollout.deployment, rollout.deployment.get("status") or {}
        available = _sum_status_field(rollout.all_replica_sets, "availableReplicas")
        status: Obj = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": _sum_status_field(rollout.all_replica_sets, "replicas"),
            "updatedReplicas": _sum_status_field([rollout.new] if rollout.new is not None else [], "replicas"),
            "readyReplicas": _sum_status_field(rollout.all_replica_sets, "readyReplicas"),
            "availableReplicas": available,
            "unavailableReplicas": max(_total_replicas(rollout.all_replica_sets) - available, 0),
            "collisionCount": rollout.status.get("collisionCount"),
            "conditions": rollout.status.get("conditions") or [],
        }
        status = {name: value for name, value in status.items() if value not in (0, None)}
        if available >= rollout.desired_replicas - rollout.max_unavailable:
            _set_condition_now(
                status, "Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability."
            )
        else:
            message = "Deployment does not have minimum availability."
            _set_condition_now(status, "Available", "False", "MinimumReplicasUnavailable", message)
        self._judge_progress(rollout, status, status_before)
        failure = next(
            (
                condition
                for document in rollout.all_replica_sets
                if (condition := condition_of(document, "ReplicaFailure"))
            ),
            None,
        )
        status["conditions"] = [
            condition for condition in status["conditions"] if condition["type"] != "ReplicaFailure"
        ]
        if failure is not None:
            _set_condition_now(status, "ReplicaFailure", failure["status"], failure["reason"], failure["message"])
        if status != status_before:
            self._registry.change(deployment, lambda obj: obj.update(status=status))

    def _judge_progress(self, rollout: _Rollout, status: Obj, status_before: Obj) -> None:
        deadline = rollout.deployment["spec"].get("progressDeadlineSeconds")
        condition = condition_of({"status": status}, "Progressing")
        if deadline is None or is_deleting(rollout.deployment):
            return
        if condition is not None and condition["reason"] == "NewReplicaSetAvailable":
            if status.get("replicas", 0) == status.get("updatedReplicas", 0):
                return  # the rollout is complete: a pod lost later does not count
        elif condition is not None and condition["reason"] == "DeploymentPaused":
            return
        subject = f'ReplicaSet "{name_of(rollout.new)}"' if rollout.new is not None else "Deployment"
        if _is_complete(rollout, status):
            message = f"{subject} has successfully progressed."
            _set_condition_now(status, "Progressing", "True", "NewReplicaSetAvailable", message)
        elif _has_progressed(status, status_before):
            _set_condition_now(
                status, "Progressing", "True", "ReplicaSetUpdated", f"{subject} is progressing.", touch=True
            )
            self._queue.add_later(rollout.deployment, deadline + 1)
        elif condition is not None and condition["reason"] != TIMED_OUT:
            since = datetime.fromisoformat(condition["lastUpdateTime"])
            seconds_left = deadline - (datetime.now(UTC) - since).total_seconds()
            if seconds_left < 0:
                _set_condition_now(status, "Progressing", "False", TIMED_OUT, f"{subject} has timed out progressing.")
            else:
                self._queue.add_later(rollout.deployment, seconds_left + 1)


def _set_condition_now(status: Obj, kind: str, value: str, reason: str, message: str, *, touch: bool = False) -> None:
    """Set a condition of a Deployment's status, with its `lastUpdateTime`."""
    has_changed = set_condition(status, kind, value, reason, message)
    for condition in status["conditions"]:
        if condition["type"] == kind and (has_changed or touch or "lastUpdateTime" not in condition):
            condition["lastUpdateTime"] = timestamp()


def _is_complete(rollout: _Rollout, status: Obj) -> bool:
    counts = {status.get(field, 0) for field in ("replicas", "updatedReplicas", "availableReplicas")}
    observed_generation = status.get("observedGeneration")
    return counts == {rollout.desired_replicas} and bool(
        observed_generation == rollout.deployment["metadata"]["generation"]
    )


def _has_progressed(status: Obj, status_before: Obj) -> bool:
    def grew(field: str) -> bool:
        return bool(status.get(field, 0) > status_before.get(field, 0))

    def old(counts: Obj) -> int:
        return int(counts.get("replicas", 0)) - int(counts.get("updatedReplicas", 0))

    return any(map(grew, ("updatedReplicas", "readyReplicas", "availableReplicas"))) or old(status) < old(status_before)


def _proportional_shares(active: list[Obj], allowed_replicas: int, rollout: _Rollout) -> dict[str, tuple[Obj, int]]:
    """Return the size of each ReplicaSet: pods are added or removed in proportion to the sizes before."""
    total = allowed_replicas - _total_replicas(active)
    newer = sorted(active, key=_age_key, reverse=total > 0)
    sorted_sets = sorted(newer, key=_replica_count, reverse=True)
    sizes: dict[str, tuple[Obj, int]] = {}
    replicas_left = total
    for replica_set in sorted_sets:
        size = _replica_count(replica_set)
        maximum = int(annotations_of(replica_set).get(MAX_REPLICAS_ANNOTATION) or allowed_replicas) or 1
        share = round(size * allowed_replicas / maximum) - size
        share = max(min(share, replicas_left), 0) if total > 0 else min(max(share, replicas_left), 0)
        replicas_left -= share
        sizes[name_of(replica_set)] = (replica_set, max(size + share, 0))
    if sorted_sets and replicas_left:
        first, size = sizes[name_of(sorted_sets[0])]
        sizes[name_of(first)] = (first, max(size + replicas_left, 0))
    return sizes


def _same_template(replica_set: Obj, deployment: Obj) -> bool:
    return _template_without_hash(replica_set["spec"]["template"]) == _template_without_hash(
        deployment["spec"]["template"]
    )


def _template_without_hash(template: Obj) -> Obj:
    """Return a template without the hash label of its ReplicaSet."""
    bare_template: Obj = clone(template)
    labels = (bare_template.get("metadata") or {}).get("labels") or {}
    labels.pop(HASH, None)
    return bare_template


def _new_replica_set_name(rollout: _Rollout) -> str:
    return f"{name_of(rollout.deployment)}-{template_hash(rollout.deployment)}"


def template_hash(deployment: Obj) -> str:
    """Return the hash of the pod template: FNV-1a over its JSON, in characters that cannot form words."""
    count = (deployment.get("status") or {}).get("collisionCount")
    text = json.dumps([_template_without_hash(deployment["spec"]["template"]), count], sort_keys=True)
    number = 0x811C9DC5
    for byte in text.encode():
        number = ((number ^ byte) * 0x01000193) & 0xFFFFFFFF
    return "".join(SUFFIX_ALPHABET[ord(char) % len(SUFFIX_ALPHABET)] for char in str(number))
