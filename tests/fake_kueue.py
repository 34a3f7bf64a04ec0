"""A stand-in for Kueue on a local API server: it shows what Kueue's Job integration shows, without Kueue's scheduling.

It is not Kueue. It keeps a Workload for each Job with a queue's label. It admits Jobs in order while their LocalQueue
has free accelerators, and evicts the Jobs that a test names. With a burst flavor, a Job that has no room in the first
flavor gets quota of the burst flavor. It is admitted once Evenkeel's admission check is Ready. A Job with
`job-min-parallelism` is admitted with fewer pods if its full number fits into no flavor. Objects, labels, conditions
and the order of writes follow Kueue's source (`pkg/controller/jobframework/reconciler.go`,
`pkg/controller/core/workload_controller.go`, `pkg/workload/evict`, `pkg/controller/jobs/job`, `apis/kueue/v1beta2`). So
Evenkeel reads the same objects as from Kueue; Kueue's decisions are not tested.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from evenkeel.adapters.kubernetes import AlreadyExists, KubernetesApi
from evenkeel.ports import Conflict, NotFound, Refused, TransientError

Json = dict[str, Any]

GROUP = "kueue.x-k8s.io"
API = f"/apis/{GROUP}/v1beta2"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FLAVOR = "ml.p5.48xlarge"
BURST_FLAVOR = "burst-p5"
BURST_CHECK = "evenkeel-burst"
_TYPES = {FLAVOR: FLAVOR, BURST_FLAVOR: "p5.48xlarge"}
"""Instance type of each flavor's nodes."""
GPU = "nvidia.com/gpu"
_MIN, _SYNC = f"{GROUP}/job-min-parallelism", f"{GROUP}/job-completions-equal-parallelism"
_QUEUE, _PRIORITY, _UID = f"{GROUP}/queue-name", f"{GROUP}/priority-class", f"{GROUP}/job-uid"
_TYPE_LABEL = "node.kubernetes.io/instance-type"
_LOOK_SECONDS = 0.1
_WAITING = (Conflict, NotFound, TransientError)


def definition(plural: str, kind: str, scope: str = "Namespaced") -> Json:
    """Return the definition of one of Kueue's kinds, with an open schema and a status of its own."""
    kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": kept, "status": kept}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [
                {
                    "name": "v1beta2",
                    "served": True,
                    "storage": True,
                    "schema": schema,
                    "subresources": {"status": {}},
                }
            ],
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


def admission_objects() -> tuple[Json, ...]:
    """Return the definitions of an AdmissionCheck and of the objects that name it."""
    return tuple(
        definition(plural, kind, "Cluster")
        for plural, kind in (
            ("admissionchecks", "AdmissionCheck"),
            ("clusterqueues", "ClusterQueue"),
            ("resourceflavors", "ResourceFlavor"),
        )
    )


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
            "podSets": [
                {
                    "name": "main",
                    "count": spec["parallelism"],
                    "template": spec["template"],
                    **({"minCount": int(smallest)} if (smallest := annotations_of(job).get(_MIN)) else {}),
                }
            ],
        },
        "status": {},
    }


def annotations_of(job: Json) -> Json:
    """Return the annotations of a Job."""
    return dict(job["metadata"].get("annotations") or {})


def asked_per_pod(job: Json) -> int:
    """Return the accelerators that each pod of a Job asks for."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return int(container.get("resources", {}).get("limits", {}).get(GPU, 0))


def counts_to_try(workload: Json) -> list[int]:
    """Return the numbers of pods that Kueue may admit, the largest first."""
    (pod_set,) = workload["spec"]["podSets"]
    return list(range(pod_set["count"], pod_set.get("minCount", pod_set["count"]) - 1, -1))


def count_of(workload: Json) -> int:
    """Return the number of pods that a Workload has quota for."""
    (assignment,) = workload["status"]["admission"]["podSetAssignments"]
    return int(assignment["count"])


class FakeKueue:
    """It runs in a thread of its own, as the server's administrator, until the `with` block ends."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        room: int,
        priorities: dict[str, int] | None = None,
        burst_room: int = 0,
    ) -> None:
        """Start with `room` accelerators in all LocalQueues of a namespace together, and more in the burst flavor."""
        self.room, self.burst_room = room, burst_room
        self.priorities = priorities or {}
        self.faults: list[str] = []
        """Errors that a busy server does not explain."""
        self._api, self._namespace = api, namespace
        self._doomed: dict[str, tuple[str, str]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kueue-stand-in", daemon=True)

    def __enter__(self) -> Self:
        burst = admission_objects() if self.burst_room else ()
        for document in (local_queues(), workloads(), *burst):
            with suppress(AlreadyExists):
                self._api.create(DEFINITIONS, document)
        if self.burst_room:
            self._create_queue()
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

    def _create_queue(self) -> None:
        """Create the AdmissionCheck, and the ClusterQueue that names it for the burst flavor alone."""
        flavors = [
            ("resourceflavors", "ResourceFlavor", name, {"nodeLabels": {_TYPE_LABEL: _TYPES[name]}}) for name in _TYPES
        ]
        rule = {"name": BURST_CHECK, "onFlavors": [BURST_FLAVOR]}
        queue = {"admissionChecksStrategy": {"admissionChecks": [rule]}}
        for plural, kind, name, spec in (
            ("admissionchecks", "AdmissionCheck", BURST_CHECK, {"controllerName": "evenkeel.io/burst"}),
            *flavors,
            ("clusterqueues", "ClusterQueue", "default-queue", queue),
        ):
            item = {"apiVersion": f"{GROUP}/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}
            with suppress(AlreadyExists):
                self._api.create(f"{API}/{plural}", item)

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
        used = dict.fromkeys(_TYPES, 0)
        for uid, workload in kept.items():
            if holds(workload, "QuotaReserved") and not ended(workload):
                used[flavor_of(workload)] += count_of(workload) * asked_per_pod(jobs[uid])
        offers_burst = self.burst_room and self._is_check_active()
        waiting = [
            uid
            for uid, workload in kept.items()
            if is_active(workload) and not holds(workload, "QuotaReserved") and not ended(workload)
        ]
        for uid in sorted(waiting, key=lambda uid: in_order(kept[uid])):
            if "evicted-now" in kept[uid] or waits_to_requeue(kept[uid]):
                continue
            per_pod = asked_per_pod(jobs[uid])
            rooms = {FLAVOR: self.room, **({BURST_FLAVOR: self.burst_room} if offers_burst else {})}
            fitting = (
                (count, flavor)
                for count in counts_to_try(kept[uid])
                for flavor, room in rooms.items()
                if used[flavor] + count * per_pod <= room
            )
            count, flavor = next(fitting, (0, FLAVOR))
            used[flavor] += count * per_pod
            if count:
                self._reserve(jobs[uid], kept[uid], flavor, count)
            else:
                self._set_reason(kept[uid], used[FLAVOR] + int(jobs[uid]["spec"]["parallelism"]) * per_pod - self.room)

    def _is_check_active(self) -> bool:
        """Whether the controller of the check has marked it. Otherwise the ClusterQueue is inactive."""
        return holds(self._api.get(f"{API}/admissionchecks/{BURST_CHECK}") or {}, "Active")

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
            self._evict(workload, "Deactivated", "The workload is deactivated")
        elif name in self._doomed and holds(workload, "Admitted"):
            reason, message = self._doomed.pop(name)
            more = [("Preempted", True, "InClusterQueue", message)] if reason == "Preempted" else []
            self._evict(workload, reason, message, *more)
        elif holds(workload, "Admitted") and job["spec"].get("suspend"):
            self._start(job, workload)
        elif holds(workload, "QuotaReserved") and not holds(workload, "Admitted"):
            self._follow_checks(workload)

    def _reserve(self, job: Json, workload: Json, flavor: str, count: int) -> None:
        """Reserve quota. Without checks, the Workload is admitted at once."""
        queue = f"{workload['spec']['queueName']}-queue"
        given = {"name": "main", "flavors": {GPU: flavor}, "resourceUsage": {GPU: str(count * asked_per_pod(job))}}
        admission = {"clusterQueue": queue, "podSetAssignments": [{**given, "count": count}]}
        again = [("Evicted", False, "QuotaReserved", "Previously: evicted")] if condition(workload, "Evicted") else []
        known = checks_of(workload) or [{"name": BURST_CHECK, "state": "Pending", "message": "", **_transition()}]
        checks = known if flavor == BURST_FLAVOR else []
        admitted = [] if checks else [("Admitted", True, "Admitted", "The workload is admitted")]
        self._set_conditions(
            workload,
            {"admission": admission, "admissionChecks": checks},
            ("QuotaReserved", True, "QuotaReserved", f"Quota reserved in ClusterQueue {queue}"),
            *admitted,
            *again,
        )

    def _follow_checks(self, workload: Json) -> None:
        """Admit, evict or deactivate a Workload by the state of its checks."""
        checks = checks_of(workload)
        states = {check["state"] for check in checks}
        if "Rejected" in states:
            self._api.patch(self._path(workload), {"spec": {"active": False}})
            self._evict(workload, "DeactivatedDueToAdmissionCheck", "AdmissionCheck in Rejected state")
        elif "Retry" in states:
            check = next(check for check in checks if check["state"] == "Retry")
            at = datetime.now(UTC) + timedelta(seconds=check.get("requeueAfterSeconds") or 0)
            workload["status"]["requeueState"] = {"requeueAt": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
            self._evict(workload, "AdmissionCheck", f"AdmissionCheck in Retry state: {check['message']}")
        elif states == {"Ready"}:
            self._set_conditions(workload, {}, ("Admitted", True, "Admitted", "The workload is admitted"))

    def _evict(self, workload: Json, reason: str, message: str, *more: tuple[str, bool, str, str]) -> None:
        """Evict a Workload. Every answered check is pending again; its updates of pods stay, as another writer's."""
        status = {name: workload["status"][name] for name in ("requeueState",) if name in workload["status"]}
        checks = [reset_check(check) for check in checks_of(workload)]
        self._set_conditions(
            workload,
            {**status, **({"admissionChecks": checks} if checks else {})},
            ("Evicted", True, reason, message),
            *more,
        )

    def _start(self, job: Json, workload: Json) -> None:
        """Start the pods of a Job on the nodes of its flavor that its checks name. Kueue refuses a conflict."""
        selector = {_TYPE_LABEL: _TYPES[flavor_of(workload)]}
        for check in checks_of(workload):
            for update in check.get("podSetUpdates") or ():
                for key, value in (update.get("nodeSelector") or {}).items():
                    if selector.setdefault(key, value) != value:
                        self.faults.append(f"check {check['name']} sets {key}={value}, the flavor {selector[key]}")
        pods = {"spec": {"nodeSelector": selector}}
        counts = self._counts(job, count_of(workload))
        self._api.patch(self._job_path(job), {"spec": {"suspend": False, "template": pods, **counts}})

    def _counts(self, job: Json, count: int) -> Json:
        """Return the fields of a Job with its number of pods, if Kueue may lower it."""
        notes = annotations_of(job)
        if _MIN not in notes:
            return {}
        return {"parallelism": count, **({"completions": count} if notes.get(_SYNC) == "true" else {})}

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
        counts = self._counts(job, workload["spec"]["podSets"][0]["count"])
        self._api.patch(self._job_path(job), {"spec": {"template": {"spec": {"nodeSelector": None}}, **counts}})
        if status.get("active"):
            return
        document = condition(workload, "Evicted")
        reason, message = document["reason"], document["message"]
        past = {"accumulatedPastExecutionTimeSeconds": 1} if holds(workload, "Admitted") else {}
        self._set_conditions(
            workload,
            {"admission": None, **past},
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
            status_patch = {"status": {**status, "conditions": list(document.values())}}
            written = self._api.patch(f"{self._path(workload)}/status", status_patch)
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


def checks_of(workload: Json) -> list[Json]:
    """Return the admission checks in a Workload's status."""
    return list((workload.get("status") or {}).get("admissionChecks") or ())


def reset_check(check: Json) -> Json:
    """Return a check after an eviction. Kueue counts an answer `Retry`."""
    if check["state"] == "Pending":
        return check
    kept = {name: value for name, value in check.items() if name in ("name", "requeueAfterSeconds", "podSetUpdates")}
    counted = {"retryCount": int(check.get("retryCount") or 0) + 1} if check["state"] == "Retry" else {}
    message = f"Reset to Pending after eviction. Previously: {check['state']}"
    return {**kept, **counted, "state": "Pending", "message": message, **_transition()}


def flavor_of(workload: Json) -> str:
    """Return the flavor of a Workload's quota."""
    (assignment,) = workload["status"]["admission"]["podSetAssignments"]
    return str(assignment["flavors"][GPU])


def waits_to_requeue(workload: Json) -> bool:
    """Whether an answer `Retry` keeps a Workload out of the queue now."""
    at = ((workload.get("status") or {}).get("requeueState") or {}).get("requeueAt") or ""
    return bool(at) and datetime.fromisoformat(at) > datetime.now(UTC)


def _transition() -> Json:
    return {"lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


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
