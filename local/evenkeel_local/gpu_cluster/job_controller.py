"""The Job controller: creates a Job's pods, counts how they end, and ends the Job.

Source: `pkg/controller/job` of Kubernetes 1.33, for Indexed and NonIndexed Jobs, suspension, backoff, deadlines, pod
failure policies with `FailJob`, `Ignore` and `Count`, and `podReplacementPolicy`. Per-index backoff and success
policies are missing.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.admission import TRACKING, random_suffix
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.objects import (
    annotations_of,
    condition_of,
    controller_of,
    has_ended,
    is_deleting,
    is_true,
    owner_reference,
    put,
    remove_finalizer,
)
from evenkeel_local.gpu_cluster.registry import Registry, set_condition, timestamp
from evenkeel_local.gpu_cluster.store import StoreChange, clone, name_of, namespace_of
from evenkeel_local.gpu_cluster.work_queue import Controller

INDEX = "batch.kubernetes.io/job-completion-index"
SOURCE = "job-controller"
BATCH = 100
"""Maximum number of pods that one step creates. Their creation triggers the next step."""


def read_indexes(text: str) -> set[int]:
    """Read a list such as `0-2,5`."""
    indexes: set[int] = set()
    for span in filter(None, text.split(",")):
        first_text, _, last_text = span.partition("-")
        indexes.update(range(int(first_text), int(last_text or first_text) + 1))
    return indexes


def write_indexes(indexes: set[int]) -> str:
    """Write indexes as `0-2,5`. Two consecutive indexes are a range too, as in the real controller."""
    spans: list[str] = []
    sorted_indexes = sorted(indexes)
    start = 0
    for at in range(len(sorted_indexes)):
        if at + 1 == len(sorted_indexes) or sorted_indexes[at + 1] != sorted_indexes[at] + 1:
            first_index, last_index = sorted_indexes[start], sorted_indexes[at]
            spans.append(str(first_index) if first_index == last_index else f"{first_index}-{last_index}")
            start = at + 1
    return ",".join(spans)


def is_finished(job: Obj) -> bool:
    """Whether a Job is complete or has failed."""
    return is_true(job, "Complete") or is_true(job, "Failed")


class JobController(Controller):
    """Brings each Job one step closer to its spec."""

    kind = catalogue.JOBS
    debounce_seconds = 0.02  # 1 s in the real controller

    def __init__(self, registry: Registry, backoff_seconds: float) -> None:
        super().__init__(registry)
        self._backoff_seconds = backoff_seconds
        self._not_before: dict[str, float] = {}

    def _on_other_change(self, change: StoreChange) -> None:
        if change.key != catalogue.PODS.key:
            return
        owner = controller_of(change.new)
        if owner is None and change.kind != "DELETED":
            self._remove_tracking_finalizer(change.new)
        elif owner is not None and owner["kind"] == "Job":
            self._queue.add(namespace_of(change.new), owner["name"])
            if TRACKING in (change.new["metadata"].get("finalizers") or ()):
                self._release_orphan(change.new, owner)

    def _release_orphan(self, pod: Obj, owner: Obj) -> None:
        job = self._store.find(catalogue.JOBS.key, namespace_of(pod), owner["name"])
        if job is None or job["metadata"]["uid"] != owner["uid"]:
            self._remove_tracking_finalizer(pod)

    # One step

    def sync(self, namespace: str, name: str) -> None:
        """Compare one Job with its pods, and act on the difference."""
        job = self._store.find(catalogue.JOBS.key, namespace, name)
        if job is None:
            for pod in self._store.all(catalogue.PODS.key, namespace):
                owner = controller_of(pod)
                if owner is not None and owner["kind"] == "Job" and owner["name"] == name:
                    self._release_orphan(pod, owner)
            return
        pods = self._pods_of(job)
        if is_deleting(job) or is_finished(job):
            for pod in pods:
                self._remove_tracking_finalizer(pod)
            self._delete_after_ttl(job)
            return
        status = clone(job.get("status") or {})
        if not job["spec"].get("suspend") and "startTime" not in status:
            status["startTime"] = timestamp()
        failure = self._count_finished_pods(job, status, pods)
        self._finish_job(job, status, self._pods_of(job), failure)
        self._save(job, status)

    def _pods_of(self, job: Obj) -> list[Obj]:
        return [obj for key, obj in self._store.owned_by(job["metadata"]["uid"]) if key == catalogue.PODS.key]

    def _save(self, job: Obj, status: Obj) -> None:
        if status != job.get("status"):
            self._registry.change(job, lambda obj: obj.update(status=status))

    def _delete_after_ttl(self, job: Obj) -> None:
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        if ttl is None or is_deleting(job):
            return
        end_condition = condition_of(job, "Complete") or condition_of(job, "Failed") or {}
        at = datetime.fromisoformat(end_condition["lastTransitionTime"])
        seconds_left = ttl - (datetime.now(UTC) - at).total_seconds()
        if seconds_left > 0:
            self._queue.add_later(job, seconds_left + 0.05)
        else:
            options = {"propagationPolicy": "Foreground", "preconditions": {"uid": job["metadata"]["uid"]}}
            self._registry.remove(job, options)

    def _remove_tracking_finalizer(self, pod: Obj) -> None:
        if TRACKING in (pod["metadata"].get("finalizers") or ()):
            self._registry.change(pod, lambda obj: remove_finalizer(obj, TRACKING))

    # Counting

    def _counts_as_failed(self, job: Obj, pod: Obj) -> bool:
        if pod["status"].get("phase") == "Failed":
            return True
        if job["spec"]["podReplacementPolicy"] == "Failed":
            return False
        return is_deleting(pod) and pod["status"].get("phase") != "Succeeded"

    def _count_finished_pods(self, job: Obj, status: Obj, pods: list[Obj]) -> tuple[str, str] | None:
        """Count ended pods, and remove their finalizers. Return the failure that a pod failure policy decides."""
        is_indexed = job["spec"]["completionMode"] == "Indexed"
        done = read_indexes(status.get("completedIndexes") or "")
        end_reason: tuple[str, str] | None = None
        for pod in pods:
            if TRACKING not in (pod["metadata"].get("finalizers") or ()):
                continue
            if pod["status"].get("phase") == "Succeeded":
                if is_indexed:
                    done.add(_completion_index(pod))
                else:
                    status["succeeded"] = int(status.get("succeeded") or 0) + 1
            elif self._counts_as_failed(job, pod):
                action, why = self._matching_failure_rule(job, pod)
                if action == "FailJob":
                    end_reason = end_reason or ("PodFailurePolicy", why)
                if action != "Ignore":
                    status["failed"] = int(status.get("failed") or 0) + 1
                    self._schedule_backoff(job, int(status["failed"]))
            else:
                continue
            self._remove_tracking_finalizer(pod)
        if is_indexed:
            limit = job["spec"]["completions"]
            done = {index for index in done if index < limit}
            if done or "completedIndexes" in status:
                status["completedIndexes"] = write_indexes(done)
            if done:
                status["succeeded"] = len(done)
        return end_reason

    def _schedule_backoff(self, job: Obj, failures: int) -> None:
        seconds = min(self._backoff_seconds * 2 ** min(failures - 1, 10), self._backoff_seconds * 60)
        self._not_before[job["metadata"]["uid"]] = asyncio.get_running_loop().time() + seconds

    def _matching_failure_rule(self, job: Obj, pod: Obj) -> tuple[str, str]:
        for number, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or ()):
            if _rule_matches(rule, pod):
                message = (
                    f"Container {_failed_container(pod)} for pod {namespace_of(pod)}/{name_of(pod)} failed "
                    f"matching {rule['action']} rule at index {number}"
                )
                return str(rule["action"]), message
        return "Count", ""

    # Deciding

    def _finish_job(self, job: Obj, status: Obj, pods: list[Obj], end_reason: tuple[str, str] | None) -> None:
        spec = job["spec"]
        live = [pod for pod in pods if not has_ended(pod)]
        active = [pod for pod in live if not is_deleting(pod)]
        terminating_pods = [pod for pod in live if is_deleting(pod)]
        failure = self._failure_reason(job, status, end_reason, active)
        if failure is not None:
            set_condition(status, "FailureTarget", "True", *failure)
            active, terminating_pods = self._delete_active_pods(job, active, terminating_pods)
            if not active and not terminating_pods:
                set_condition(status, "Failed", "True", *failure)
                self._registry.record(job, failure[0], failure[1], "Warning", SOURCE)
        elif self._is_complete(job, status, active):
            completions_reached = ("CompletionsReached", "Reached expected number of succeeded pods")
            set_condition(status, "SuccessCriteriaMet", "True", *completions_reached)
            active, terminating_pods = self._delete_active_pods(job, active, terminating_pods)
            if not active and not terminating_pods:
                set_condition(status, "Complete", "True", *completions_reached)
                status["completionTime"] = timestamp()
                self._registry.record(job, "Completed", "Job completed", source=SOURCE)
        elif spec.get("suspend"):
            active, terminating_pods = self._suspend(job, status, active, terminating_pods)
        else:
            was_suspended = condition_of({"status": status}, "Suspended") is not None
            if was_suspended and set_condition(status, "Suspended", "False", "JobResumed", "Job resumed"):
                status["startTime"] = timestamp()
            active = self._create_missing_pods(job, status, active, terminating_pods)
        self._count_pods(status, active, terminating_pods)

    def _count_pods(self, status: Obj, active: list[Obj], terminating_pods: list[Obj]) -> None:
        put(status, "active", len(active))
        status["ready"], status["terminating"] = sum(is_true(pod, "Ready") for pod in active), len(terminating_pods)
        status["uncountedTerminatedPods"] = {}

    def _failure_reason(
        self, job: Obj, status: Obj, end_reason: tuple[str, str] | None, active: list[Obj]
    ) -> tuple[str, str] | None:
        present = condition_of({"status": status}, "FailureTarget")
        if present is not None:
            return str(present["reason"]), str(present["message"])
        if end_reason is not None:
            return end_reason
        if int(status.get("failed") or 0) > int(job["spec"]["backoffLimit"]) or _restarted_too_often(job, active):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        deadline = job["spec"].get("activeDeadlineSeconds")
        if deadline is not None and "startTime" in status and not job["spec"].get("suspend"):
            seconds_left = deadline - (datetime.now(UTC) - datetime.fromisoformat(status["startTime"])).total_seconds()
            if seconds_left <= 0:
                return "DeadlineExceeded", "Job was active longer than specified deadline"
            self._queue.add_later(job, seconds_left + 0.05)
        return None

    def _is_complete(self, job: Obj, status: Obj, active: list[Obj]) -> bool:
        succeeded_pods = int(status.get("succeeded") or 0)
        completions = job["spec"].get("completions")
        if completions is None:
            return succeeded_pods > 0 and not active
        return succeeded_pods >= int(completions)

    def _delete_active_pods(
        self, job: Obj, active: list[Obj], terminating_pods: list[Obj], *, counted: bool = True
    ) -> tuple[list[Obj], list[Obj]]:
        """Delete the active pods; return the pods that are then active, and the terminating pods.

        Args:
            job: Their Job.
            active: The pods to delete.
            terminating_pods: Pods that already terminate.
            counted: Whether the Job counts these pods as failed. A smaller or suspended Job does not count these pods.
        """
        remaining_pods = list(terminating_pods)
        for pod in active:
            if not counted:
                self._remove_tracking_finalizer(pod)
            last_object, done = self._registry.remove(pod)
            self._registry.record(job, "SuccessfulDelete", f"Deleted pod: {name_of(pod)}", source=SOURCE)
            if not done and last_object["metadata"].get("deletionGracePeriodSeconds"):
                remaining_pods.append(last_object)
            elif not done:
                self._remove_tracking_finalizer(last_object)
        return [], remaining_pods

    def _suspend(
        self, job: Obj, status: Obj, active: list[Obj], terminating_pods: list[Obj]
    ) -> tuple[list[Obj], list[Obj]]:
        if set_condition(status, "Suspended", "True", "JobSuspended", "Job suspended"):
            self._registry.record(job, "Suspended", "Job suspended", source=SOURCE)
        return self._delete_active_pods(job, active, terminating_pods, counted=False)

    # Creating pods

    def _create_missing_pods(self, job: Obj, status: Obj, active: list[Obj], terminating_pods: list[Obj]) -> list[Obj]:
        spec = job["spec"]
        pods_with_index = active + (terminating_pods if spec["podReplacementPolicy"] == "Failed" else [])
        completions = spec.get("completions")
        pods_wanted = int(spec["parallelism"])
        if completions is not None:
            pods_wanted = min(pods_wanted, int(completions) - int(status.get("succeeded") or 0))
        elif int(status.get("succeeded") or 0) > 0:
            pods_wanted = len(active)
        excess = len(active) - pods_wanted
        if excess > 0:
            by_index = sorted(active, key=_completion_index, reverse=True)
            self._delete_active_pods(job, by_index[:excess], [], counted=False)
            return by_index[excess:]
        missing_pods = min(pods_wanted - len(pods_with_index), BATCH)
        if missing_pods <= 0 or not self._may_create(job):
            return active
        if spec["completionMode"] == "Indexed":
            indexes_used = {_completion_index(pod) for pod in pods_with_index} | read_indexes(
                status.get("completedIndexes") or ""
            )
            free_indexes = (index for index in range(int(completions or 0)) if index not in indexes_used)
            indexes: list[int | None] = [index for index, _ in zip(free_indexes, range(missing_pods), strict=False)]
        else:
            indexes = [None] * missing_pods
        return active + [pod for index in indexes if (pod := self._create(job, index)) is not None]

    def _may_create(self, job: Obj) -> bool:
        at = self._not_before.get(job["metadata"]["uid"])
        if at is None:
            return True
        seconds_left = at - asyncio.get_running_loop().time()
        if seconds_left <= 0:
            del self._not_before[job["metadata"]["uid"]]
            return True
        self._queue.add_later(job, seconds_left + 0.01)
        return False

    def _create(self, job: Obj, index: int | None) -> Obj | None:
        pod = new_pod(job, index)
        try:
            created_pod = self._registry.create(catalogue.PODS, namespace_of(job), pod)
        except ApiError as refusal:
            self._registry.record(job, "FailedCreate", f"Error creating: {refusal.message}", "Warning", SOURCE)
            self._queue.add_later(job, 1.0)
            return None
        self._registry.record(job, "SuccessfulCreate", f"Created pod: {name_of(created_pod)}", source=SOURCE)
        return created_pod


def new_pod(job: Obj, index: int | None) -> Obj:
    """Return a pod from a Job's template, for one completion index or None."""
    template: dict[str, Any] = clone(job["spec"]["template"])
    metadata = template.setdefault("metadata", {})
    name = name_of(job)
    stem = name if index is None else f"{name}-{index}"
    pod: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{stem[:57]}-{random_suffix()}",
            "generateName": f"{stem}-",
            "namespace": namespace_of(job),
            "labels": metadata.get("labels") or {},
            "annotations": metadata.get("annotations") or {},
            "finalizers": [TRACKING],
            "ownerReferences": [owner_reference(job)],
        },
        "spec": template["spec"],
    }
    if index is not None:
        pod["metadata"]["labels"][INDEX] = str(index)
        pod["metadata"]["annotations"][INDEX] = str(index)
        pod["spec"].setdefault("hostname", f"{name}-{index}")
        source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
        for container in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]:
            env = container.setdefault("env", [])
            if not any(entry.get("name") == "JOB_COMPLETION_INDEX" for entry in env):
                env.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
    if not pod["metadata"]["annotations"]:
        del pod["metadata"]["annotations"]
    return pod


def _completion_index(pod: Obj) -> int:
    return int(annotations_of(pod).get(INDEX) or -1)


def _failed_container(pod: Obj) -> str:
    for status in pod["status"].get("containerStatuses") or ():
        terminated_state = (status.get("state") or {}).get("terminated")
        if terminated_state and terminated_state.get("exitCode"):
            return str(status["name"])
    return str(pod["spec"]["containers"][0]["name"])


def _rule_matches(rule: Obj, pod: Obj) -> bool:
    codes = rule.get("onExitCodes")
    if codes:
        for status in pod["status"].get("containerStatuses") or ():
            terminated_state = (status.get("state") or {}).get("terminated") or {}
            if codes.get("containerName") not in (None, status["name"]) or not terminated_state.get("exitCode"):
                continue
            if (terminated_state["exitCode"] in codes["values"]) == (codes["operator"] == "In"):
                return True
        return False
    for pattern in rule.get("onPodConditions") or ():
        for condition in pod["status"].get("conditions") or ():
            if condition["type"] == pattern["type"] and condition["status"] == pattern.get("status", "True"):
                return True
    return False


def _restarted_too_often(job: Obj, active: list[Obj]) -> bool:
    """Whether containers restarted too often inside their pods. The Job's active pods are then deleted.

    Source: `pkg/controller/job/job_controller.go`, `pastBackoffLimitOnFailure`.
    """
    if job["spec"]["template"]["spec"].get("restartPolicy") != "OnFailure":
        return False
    statuses = (status for pod in active for status in (pod.get("status") or {}).get("containerStatuses") or ())
    restarts, limit = sum(int(status.get("restartCount") or 0) for status in statuses), int(job["spec"]["backoffLimit"])
    return restarts > 0 if limit == 0 else restarts >= limit
