"""The port UnmanagedJobs on Kubernetes: jobs of users, by the kinds of `workload_resources.py`."""

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from evenkeel.adapters import kueue_workloads
from evenkeel.adapters.kubernetes import AlreadyExists, KubernetesApi, retry_on_conflict
from evenkeel.adapters.object_fields import (
    CHECK_LABEL,
    JOB_LABEL,
    RENTAL_LABEL,
    Json,
    condition_of,
    has_condition,
    parse_instant,
)
from evenkeel.adapters.operator_restarts import consent_of, recreation_of
from evenkeel.adapters.workload_resources import JOB, OPERATED, RESOURCES, WorkloadResource
from evenkeel.adapters.workloads import COMPLETED, Controllers, controlling_workload, has_failed, is_suspended
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.recovery.unmanaged_restarts import FailedPod, UnmanagedJob, UnmanagedJobState, UnmanagedRestart
from evenkeel.ports import Conflict, KubernetesPermission, NotFound

_KUEUE_GROUP = "kueue.x-k8s.io"
_KUEUE = f"/apis/{_KUEUE_GROUP}"
_CHECKPOINT_VARIABLES = ("EVENKEEL_CHECKPOINT_URI", "CHECKPOINT_URI", "CHECKPOINT_DIR", "CHECKPOINT_PATH", "CKPT_DIR")
_CHECKPOINT_OPTIONS = (
    "checkpoint-dir",
    "checkpoint-path",
    "ckpt-dir",
    "save-dir",
    "save",
    "output-dir",
    "default-root-dir",
    "exp-manager.exp-dir",
)
"""Options of common training scripts: Megatron, NeMo, Lightning, transformers. `_` and `-` mean the same."""
_SERVER_FIELDS = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "finalizers",
)
_JOB_UID_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name")
_RESTART_VERBS = ("patch", "delete", "create")


class KubernetesUnmanagedJobs(ABC):
    """The operations on users' jobs. `KubernetesCluster` includes them."""

    @abstractmethod
    def _api(self, cluster: str) -> KubernetesApi: ...

    @abstractmethod
    def _list_objects(self, cluster: str, path: str, **query: str) -> list[Json]: ...

    @abstractmethod
    def _list_kind(
        self,
        cluster: str,
        kind: WorkloadResource,
        namespace: str = "",
        trim: Callable[[Json], Json] = ...,
        **query: str,
    ) -> list[Json]: ...

    @abstractmethod
    def missing_rights(
        self, cluster: str, rights: Iterable[KubernetesPermission]
    ) -> tuple[KubernetesPermission, ...]: ...

    def unmanaged_jobs(self, cluster: str, node_name: str) -> tuple[UnmanagedJob, ...]:
        pods = self._list_objects(cluster, "/api/v1/pods", fieldSelector=f"spec.nodeName={node_name}")
        controllers = self._controllers(cluster, pods)
        return tuple(_read_jobs(pods, controllers))

    def unmanaged_job(self, cluster: str, namespace: str, kind: WorkloadKind, name: str) -> UnmanagedJob | None:
        item = self._api(cluster).get(RESOURCES[kind].path(namespace, name))
        if item is None:
            return None
        item["kind"] = str(kind)
        pods = self._list_objects(cluster, f"/api/v1/namespaces/{namespace}/pods")
        controllers = self._controllers(cluster, pods, namespace)
        own_pods = [pod for pod in pods if controllers.controller_of(pod).uid == item["metadata"]["uid"]]
        return read_job(item, own_pods, controllers)

    def _controllers(self, cluster: str, pods: Iterable[Json], namespace: str = "") -> Controllers:
        """Return the workloads above some pods. Only the kinds that occur there are listed."""
        kinds = {controlling_workload(pod).kind for pod in pods}
        controllers = self._list_kind(cluster, JOB, namespace) if JOB.kind in kinds else []
        kinds |= {controlling_workload(job).kind for job in controllers}
        for kind in OPERATED:
            if kind.kind in kinds:
                controllers += self._list_kind(cluster, kind, namespace)
        return Controllers(controllers)

    def suspend(self, cluster: str, job: UnmanagedJob, *, is_suspended: bool) -> None:
        retry_on_conflict(lambda: self._try_suspend(cluster, job, is_suspended=is_suspended))

    def _try_suspend(self, cluster: str, job: UnmanagedJob, *, is_suspended: bool) -> None:
        item = self._present(cluster, job)
        if item is None:
            raise Conflict(f"{job.label} was replaced by another object")
        if kueue_workloads.is_queued_in_kueue(item):
            self._set_active(cluster, job, is_active=not is_suspended)
            return
        version = {"metadata": {"resourceVersion": item["metadata"]["resourceVersion"]}}
        in_run_policy = job.kind in (WorkloadKind.PYTORCH_JOB, WorkloadKind.HYPERPOD_PYTORCH_JOB)
        suspension: Json = {"suspend": is_suspended}
        spec = {"runPolicy": suspension} if in_run_policy else suspension
        self._api(cluster).patch(RESOURCES[job.kind].path(job.namespace, job.name), {**version, "spec": spec})

    def _set_active(self, cluster: str, job: UnmanagedJob, *, is_active: bool) -> None:
        """Let Kueue evict or admit a job. If `suspend` of the job itself were set, Kueue would reset it."""
        group = self._api(cluster).get(_KUEUE)
        version = group["preferredVersion"]["version"] if group else ""
        path = f"{_KUEUE}/{version}/namespaces/{job.namespace}/workloads"
        owner = (job.namespace, job.uid)
        pods = self._list_objects(cluster, path) if group else []
        kueue_workload = next(
            (workload for workload in pods if kueue_workloads.controller_of_workload(workload) == owner), None
        )
        if kueue_workload is None:
            raise Conflict(f"{job.label} has no Workload of Kueue")
        self._api(cluster).patch(f"{path}/{kueue_workload['metadata']['name']}", {"spec": {"active": is_active}})

    def manifest_of(self, cluster: str, job: UnmanagedJob) -> str:
        item = self._present(cluster, job)
        if item is None:
            raise NotFound(f"{job.label} is gone")
        return json.dumps(manifest_of(item), separators=(",", ":"))

    def missing_restart_rights(self, cluster: str, job: UnmanagedJob) -> tuple[KubernetesPermission, ...]:
        resource = RESOURCES[job.kind]
        kubernetes_permissions = [
            KubernetesPermission(verb, resource.group, resource.plural, job.namespace) for verb in _RESTART_VERBS
        ]
        if job.is_queued:
            kubernetes_permissions.append(KubernetesPermission("patch", _KUEUE_GROUP, "workloads", job.namespace))
        return self.missing_rights(cluster, kubernetes_permissions)

    def delete_job(self, cluster: str, job: UnmanagedJob) -> bool:
        path = RESOURCES[job.kind].path(job.namespace, job.name)
        try:
            # In the foreground: the name is free again only when no pod of the job is left.
            return self._api(cluster).delete(path, propagationPolicy="Foreground", preconditions={"uid": job.uid})
        except Conflict:
            return False

    def create_job(self, restart: UnmanagedRestart) -> bool:
        try:
            self._api(restart.cluster).create(
                RESOURCES[restart.kind].path(restart.namespace), json.loads(restart.manifest)
            )
        except AlreadyExists:
            return False
        return True

    def _present(self, cluster: str, job: UnmanagedJob) -> Json | None:
        """Return the object of a job; None if it is gone, or another object has its name."""
        item = self._api(cluster).get(RESOURCES[job.kind].path(job.namespace, job.name))
        return item if item is not None and item["metadata"]["uid"] == job.uid else None


def _read_jobs(pods: Iterable[Json], controllers: Controllers) -> Iterator[UnmanagedJob]:
    """Read the jobs above some pods. A pod without a listed workload belongs to none."""
    members: dict[str, list[Json]] = {}
    for pod in pods:
        chain = controllers.controllers_above(pod)
        if chain:
            members.setdefault(chain[-1]["metadata"]["uid"], []).append(pod)
    for member in members.values():
        yield read_job(controllers.controllers_above(member[0])[-1], member, controllers)


def read_job(item: Mapping[str, Any], pods: Iterable[Json], controllers: Controllers) -> UnmanagedJob:
    """Parse a job.

    Args:
        item: The object, with its kind.
        pods: Its known pods.
        controllers: The workloads above these pods.
    """
    metadata, own_pods = item["metadata"], list(pods)
    kind = WorkloadKind(item["kind"])
    chain = controllers.controllers_above(own_pods[0]) if own_pods else (item,)
    return UnmanagedJob(
        namespace=metadata["namespace"],
        kind=kind,
        name=metadata["name"],
        uid=metadata["uid"],
        state=_state(item),
        consent=consent_of(item, *own_pods, *_pod_templates(item)),  # its operator may have deleted its pods
        owner=next(
            (f"{reference['kind']} {reference['name']}" for reference in metadata.get("ownerReferences") or ()), ""
        ),
        recreation=recreation_of(own_pods[0] if own_pods else item, kind, chain),
        is_queued=kueue_workloads.is_queued_in_kueue(item),
        has_managed_labels=any(
            name in (metadata.get("labels") or {}) for name in (JOB_LABEL, RENTAL_LABEL, CHECK_LABEL)
        ),
        live_nodes=tuple(_node_of(pod) for pod in own_pods if not _has_ended(pod)),
        failed_pods=tuple(
            FailedPod(node_name=_node_of(pod), failed_at=_ended_at(pod))
            for pod in own_pods
            if (pod.get("status") or {}).get("phase") == "Failed"
        ),
        failed_at=_failed_at(item),
        checkpoints=checkpoint_location(item),
    )


def _state(item: Mapping[str, Any]) -> UnmanagedJobState:
    if "deletionTimestamp" in item["metadata"]:
        return UnmanagedJobState.DELETING
    if has_condition(item, *COMPLETED):
        return UnmanagedJobState.SUCCEEDED
    if has_failed(item):
        return UnmanagedJobState.FAILED
    return UnmanagedJobState.SUSPENDED if is_suspended(item) else UnmanagedJobState.RUNNING


def _failed_at(item: Mapping[str, Any]) -> datetime | None:
    condition = condition_of(item.get("status") or {}, "Failed", "True")
    return parse_instant((condition or {}).get("lastTransitionTime"))


def _node_of(pod: Mapping[str, Any]) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _has_ended(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _ended_at(pod: Mapping[str, Any]) -> datetime | None:
    """Return when the last container of a pod ended."""
    states = [
        (status.get("state") or {}).get("terminated")
        for status in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    return max(filter(None, (parse_instant((state or {}).get("finishedAt")) for state in states)), default=None)


def manifest_of(item: Mapping[str, Any]) -> Json:
    """Return the object as its user submitted it, without the fields that the API server or Kubernetes set.

    It is not suspended, because Evenkeel may have suspended it. Kueue suspends new jobs of its queues itself.
    """
    manifest: Json = json.loads(json.dumps({name: value for name, value in item.items() if name != "status"}))
    for name in _SERVER_FIELDS:
        manifest["metadata"].pop(name, None)
    manifest["spec"].pop("suspend", None)
    (manifest["spec"].get("runPolicy") or {}).pop("suspend", None)
    if manifest.get("kind") == WorkloadKind.JOB and not manifest["spec"].get("manualSelector"):
        manifest["spec"].pop("selector", None)
        template = manifest["spec"]["template"].get("metadata") or {}
        for labels in (manifest["metadata"].get("labels") or {}, template.get("labels") or {}):
            for name in _JOB_UID_LABELS:
                labels.pop(name, None)
    return manifest


def checkpoint_location(item: Mapping[str, Any]) -> str:
    """Return where a job's manifest says that checkpoints are, and which field says so; empty if none does.

    The training contract has a variable for it. Other scripts use one of a few common variables or options.
    """
    for template in _pod_templates(item):
        for container in (template.get("spec") or {}).get("containers") or ():
            if location := _location_in_variables(container) or _location_in_options(container):
                return location
    return ""


def _pod_templates(item: Mapping[str, Any]) -> Iterator[Json]:
    spec = item.get("spec") or {}
    yield spec.get("template") or {}
    for job in spec.get("replicatedJobs") or ():
        yield ((job.get("template") or {}).get("spec") or {}).get("template") or {}
    for replica_spec in (*(spec.get("pytorchReplicaSpecs") or {}).values(), *(spec.get("replicaSpecs") or ())):
        yield replica_spec.get("template") or {}


def _location_in_variables(container: Mapping[str, Any]) -> str:
    values = {variable.get("name"): variable.get("value") for variable in container.get("env") or ()}
    return next((f"{values[name]} (variable {name})" for name in _CHECKPOINT_VARIABLES if values.get(name)), "")


def _location_in_options(container: Mapping[str, Any]) -> str:
    words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
    words = [fragment for word in words for fragment in word.split()]
    named_values: dict[str, tuple[str, str]] = {}
    for word, next_word in itertools.pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        name = option.lstrip("-").replace("_", "-")
        if name in _CHECKPOINT_OPTIONS and (equals or option.startswith("--")):
            named_values.setdefault(name, (option, value if equals else next_word))
    values = (named_values[name] for name in _CHECKPOINT_OPTIONS if name in named_values)
    return next((f"{value} (option {option})" for option, value in values if value), "")
