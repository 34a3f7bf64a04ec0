"""A stand-in for Kueue on a local API server: it shows what Kueue's Job integration shows, without Kueue's scheduling.

It is not Kueue. It keeps a Workload for each Job with a queue's label. It admits Jobs in order while their LocalQueue
has free accelerators, and evicts the Jobs that a test names. Objects, labels, conditions and the order of writes follow
Kueue's source (`pkg/controller/jobframework/reconciler.go`, `pkg/controller/jobs/job`, `apis/kueue/v1beta2`). So
Evenkeel reads the same objects as from Kueue; Kueue's decisions are not tested.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from evenkeel.adapters.kubernetes import AlreadyExists, KubernetesApi
from evenkeel.ports import Conflict, NotFound, Refused, TransientError

Json = dict[str, Any]

GROUP = "kueue.x-k8s.io"
API = f"/apis/{GROUP}/v1beta2"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FLAVOR = "ml.p5.48xlarge"
GPU = "nvidia.com/gpu"
_QUEUE, _PRIORITY, _UID = f"{GROUP}/queue-name", f"{GROUP}/priority-class", f"{GROUP}/job-uid"
_LOOK_SECONDS = 0.1
_WAITING = (Conflict, NotFound, TransientError)


def definition(plural: str, kind: str) -> Json:
    """Return the definition of one of Kueue's kinds, with an open schema."""
    kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": kept, "status": kept}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [{"name": "v1beta2", "served": True, "storage": True, "schema": schema}],
        },
    }


def local_queues() -> Json:
    """Return Kueue's definition of its LocalQueues."""
    return definition("localqueues", "LocalQueue")


def workloads() -> Json:
    """Return Kueue's definition of its Workloads."""
    return definition("workloads", "Workload")


def local_queue(namespace: str, name: str) -> Json:
    """Return a LocalQueue."""
    return {
        "apiVersion": f"{GROUP}/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterQueue": f"{name}-queue"},
    }


def workload_of(job: Json, priorities: dict[str, int]) -> Json:
    """Return the Workload that Kueue makes for a Job."""
    metadata, spec = job["metadata"], job["spec"]
    labels = metadata["labels"]
    digest = hashlib.sha1(f"Job\nbatch\n{metadata['name']}\n{metadata['uid']}".encode(), usedforsecurity=False)
    priority = labels.get(_PRIORITY, "")
    reference = {"group": f"{GROUP}", "kind": "WorkloadPriorityClass", "name": priority}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": f"{GROUP}/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": f"job-{metadata['name']}-{digest.hexdigest()[:5]}",
            "namespace": metadata["namespace"],
            "labels": {_UID: metadata["uid"]},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {
            "active": True,
            "queueName": labels[_QUEUE],
            "priority": priorities.get(priority, 0),
            **({"priorityClassRef": reference} if priority else {}),
            "podSets": [{"name": "main", "count": spec["parallelism"], "template": spec["template"]}],
        },
        "status": {},
    }


def asked(job: Json) -> int:
    """Return the accelerators that a Job's pods ask for."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return int(job["spec"]["parallelism"]) * int(container.get("resources", {}).get("limits", {}).get(GPU, 0))


class FakeKueue:
    """It runs in a thread of its own, as the server's administrator, until the `with` block ends."""

    def __init__(self, api: KubernetesApi, namespace: str, room: int, priorities: dict[str, int] | None = None) -> None:
        """Start with `room` accelerators in all LocalQueues of a namespace together."""
        self.room = room
        self.priorities = priorities or {}
        self.faults: list[str] = []
        """Errors that a busy server does not explain."""
        self._api, self._namespace = api, namespace
        self._doomed: dict[str, tuple[str, str]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kueue-stand-in", daemon=True)

    def __enter__(self) -> Self:
        for document in (local_queues(), workloads()):
            with suppress(AlreadyExists):
                self._api.create(DEFINITIONS, document)
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=10)

    def evict(self, job_name: str, reason: str, message: str, room: int | None = None) -> None:
        """Evict a Job, and set the number of free accelerators from then on."""
        if room is not None:
            self.room = room
        self._doomed[job_name] = (reason, message)

    def workload(self, job_name: str) -> Json:
        """Return the Workload of a Job."""
        return next(
            (
                workload
                for workload in self._workloads()
                if workload["metadata"]["ownerReferences"][0]["name"] == job_name
            ),
            {},
        )

    # ------------------------------------------------------------ one look after the other

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            try:
                self._reconcile()
            except _WAITING:
                continue
            except Refused as error:
                self.faults.append(str(error))

    def _jobs(self) -> Iterator[Json]:
        return self._api.items(f"/apis/batch/v1/namespaces/{self._namespace}/jobs", labelSelector=_QUEUE)

    def _workloads(self) -> Iterator[Json]:
        return self._api.items(f"{API}/namespaces/{self._namespace}/workloads")

    def _reconcile(self) -> None:
        jobs = {job["metadata"]["uid"]: job for job in self._jobs() if "deletionTimestamp" not in job["metadata"]}
        kept = {workload["metadata"]["labels"][_UID]: workload for workload in self._workloads()}
        for uid in kept.keys() - jobs.keys():  # the owner was deleted
            self._api.delete(self._path(kept.pop(uid)))
        for uid in jobs.keys() - kept.keys():
            workload = workload_of(jobs[uid], self.priorities)
            kept[uid] = self._api.create(f"{API}/namespaces/{self._namespace}/workloads", workload)
        for uid, job_workload in kept.items():
            self._reconcile_workload(jobs[uid], job_workload)
        used = sum(
            asked(jobs[uid])
            for uid, workload in kept.items()
            if holds(workload, "QuotaReserved") and not ended(workload)
        )
        waiting = [
            uid
            for uid, workload in kept.items()
            if is_active(workload) and not holds(workload, "QuotaReserved") and not ended(workload)
        ]
        for uid in sorted(waiting, key=lambda uid: in_order(kept[uid])):
            if "evicted-now" in kept[uid]:
                continue
            wanted = asked(jobs[uid])
            if used + wanted <= self.room:
                used += wanted
                self._admit(jobs[uid], kept[uid])
            else:
                self._set_reason(kept[uid], used + wanted - self.room)

    def _reconcile_workload(self, job: Json, workload: Json) -> None:
        name, status = job["metadata"]["name"], job.get("status") or {}
        over = next(
            (condition for condition in status.get("conditions") or () if condition["type"] in ("Complete", "Failed")),
            None,
        )
        if over is not None and over["status"] == "True":
            reason = "Succeeded" if over["type"] == "Complete" else "Failed"
            self._set_conditions(workload, {}, ("Finished", True, reason, over.get("message") or "Job finished"))
        elif holds(workload, "Evicted"):
            self._take_back(job, workload)
        elif not is_active(workload) and holds(workload, "Admitted"):
            self._set_conditions(workload, {}, ("Evicted", True, "Deactivated", "The workload is deactivated"))
        elif name in self._doomed and holds(workload, "Admitted"):
            reason, message = self._doomed.pop(name)
            more = [("Preempted", True, "InClusterQueue", message)] if reason == "Preempted" else []
            self._set_conditions(workload, {}, ("Evicted", True, reason, message), *more)
        elif holds(workload, "Admitted") and job["spec"].get("suspend"):
            self._start(job)

    def _admit(self, job: Json, workload: Json) -> None:
        queue = f"{workload['spec']['queueName']}-queue"
        given = {"name": "main", "flavors": {GPU: FLAVOR}, "resourceUsage": {GPU: str(asked(job))}}
        admission = {"clusterQueue": queue, "podSetAssignments": [{**given, "count": job["spec"]["parallelism"]}]}
        again = [("Evicted", False, "QuotaReserved", "Previously: evicted")] if condition(workload, "Evicted") else []
        self._set_conditions(
            workload,
            {"admission": admission},
            ("QuotaReserved", True, "QuotaReserved", f"Quota reserved in ClusterQueue {queue}"),
            ("Admitted", True, "Admitted", "The workload is admitted"),
            *again,
        )

    def _start(self, job: Json) -> None:
        """Start the pods of a Job on the nodes of its flavor."""
        selector = {"node.kubernetes.io/instance-type": FLAVOR}
        pods = {"spec": {"nodeSelector": selector}}
        self._api.patch(self._job_path(job), {"spec": {"suspend": False, "template": pods}})

    def _take_back(self, job: Json, workload: Json) -> None:
        """Stop an evicted Job. Release its quota once it has no active pods."""
        status = job.get("status") or {}
        if not job["spec"].get("suspend"):
            self._api.patch(self._job_path(job), {"spec": {"suspend": True}})
            return
        if not holds(workload, "QuotaReserved"):
            return
        if status.get("startTime"):
            self._api.patch(f"{self._job_path(job)}/status", {"status": {"startTime": None}})
        self._api.patch(self._job_path(job), {"spec": {"template": {"spec": {"nodeSelector": None}}}})
        if status.get("active"):
            return
        document = condition(workload, "Evicted")
        reason, message = document["reason"], document["message"]
        self._set_conditions(
            workload,
            {"admission": None, "accumulatedPastExecutionTimeSeconds": 1},
            ("Requeued", reason == "Preempted", reason, message),
            ("QuotaReserved", False, "PendingEvaluation", message),
            ("Admitted", False, "NoReservation", "The workload has no reservation"),
        )
        workload["evicted-now"] = True

    def _set_reason(self, workload: Json, missing: int) -> None:
        message = (
            f"couldn't assign flavors to pod set main: insufficient unused quota for {GPU} in flavor {FLAVOR}, "
            f"{missing} more needed"
        )
        self._set_conditions(workload, {}, ("QuotaReserved", False, "WaitingForQuota", message))

    # ------------------------------------------------------------ writing

    def _set_conditions(self, workload: Json, status: Json, *changes: tuple[str, bool, str, str]) -> None:
        document = {
            condition["type"]: condition for condition in (workload.get("status") or {}).get("conditions") or ()
        }
        before = dict(document)
        for kind, is_true, reason, message in changes:
            known, state = document.get(kind, {}), "True" if is_true else "False"
            since = known.get("lastTransitionTime") if known.get("status") == state else None
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            document[kind] = {
                "type": kind,
                "status": state,
                "reason": reason,
                "message": message,
                "lastTransitionTime": since or now,
            }
        if document != before or status:
            written = self._api.patch(
                self._path(workload), {"status": {**status, "conditions": list(document.values())}}
            )
            workload["status"] = written["status"]

    def _path(self, workload: Json) -> str:
        return f"{API}/namespaces/{workload['metadata']['namespace']}/workloads/{workload['metadata']['name']}"

    def _job_path(self, job: Json) -> str:
        return f"/apis/batch/v1/namespaces/{job['metadata']['namespace']}/jobs/{job['metadata']['name']}"


def condition(workload: Json, kind: str) -> Json:
    """Return a condition of a Workload; empty if it was never set."""
    return next(
        (
            dict(condition)
            for condition in (workload.get("status") or {}).get("conditions") or ()
            if condition["type"] == kind
        ),
        {},
    )


def holds(workload: Json, kind: str) -> bool:
    """Whether a condition of a Workload is true."""
    return condition(workload, kind).get("status") == "True"


def is_active(workload: Json) -> bool:
    """Whether a Workload may be admitted: `spec.active`, which is true by default."""
    return workload["spec"].get("active", True) is not False


def ended(workload: Json) -> bool:
    """Whether a Workload has finished."""
    return holds(workload, "Finished")


def in_order(workload: Json) -> tuple[int, str, str]:
    """Sort key of a Workload: higher priority first, then age."""
    metadata = workload["metadata"]
    return (-int(workload["spec"].get("priority") or 0), metadata["creationTimestamp"], metadata["name"])
