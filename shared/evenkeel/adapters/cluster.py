"""The port Cluster on Kubernetes API servers: nodes, Jobs, pods, logs, evictions and watches."""

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Protocol, TypeVar

from evenkeel.adapters import (
    kueue_workloads,
    manifests,
    node_objects,
    object_fields,
    operator_manifests,
    unmanaged_pods,
    workloads,
)
from evenkeel.adapters.admission_checks import KubernetesAdmissionChecks
from evenkeel.adapters.kubernetes import (
    JSON_PATCH,
    AlreadyExists,
    Expired,
    KubernetesApi,
    NamespaceTerminating,
    ServerFailed,
    Watch,
    retry_on_conflict,
)
from evenkeel.adapters.object_fields import ATTEMPT_LABEL, FLEET_LABEL, INDEX_LABEL, JOB_LABEL, Json
from evenkeel.adapters.rented_capacity import KubernetesCapacity
from evenkeel.adapters.unmanaged_jobs import KubernetesUnmanagedJobs
from evenkeel.adapters.workload_resources import JOB, OPERATED, RESOURCES, WorkloadResource, rank_of
from evenkeel.domain.external.kueue_status import KueueStatus
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.attempt import Attempt, ObservedWorkload
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.nodes import AWAITING_VALIDATION_TAINT, INCIDENT_ANNOTATION, KARPENTER_LABEL, KubernetesNode
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.domain.recovery.validation import CheckResult
from evenkeel.domain.resources import Resources, sum_by_node
from evenkeel.ports import (
    CheckSpec,
    ClusterCordonResult,
    Conflict,
    EvenkeelError,
    EvictionAnswer,
    EvictionStatus,
    KubernetesPermission,
    LaunchResult,
    LaunchSpec,
    LivePods,
    LogTail,
    NotFound,
    PermanentError,
    PodGroup,
    PodsInUse,
    Refused,
    Throttled,
    TransientError,
    UncordonResult,
)

T = TypeVar("T")
_WATCH_SECONDS = 25
"""Length of one watch call. A short call detects a server that accepts it and then sends nothing. The next call
continues from the last version."""
_POLL_SECONDS = 0.1
"""How often a watch calls `until`."""
_PAUSE_SECONDS = 0.5
_LOG_HEAD_BYTES = 65_536
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_TAIL_BYTES = 4_000_000
"""Maximum bytes of one pod's last lines. A container runtime splits lines at 16 KB, so 200 lines are shorter."""
_LOG_READERS = 8
_MAX_ERROR_LENGTH = 300
"""Maximum characters of an error message of the server."""
_NODES = "/api/v1/nodes"
_PODS = "/api/v1/pods"
_LIVE_PODS_SELECTOR = "status.phase!=Succeeded,status.phase!=Failed"
_GROUPS = "/apis"
_NAMESPACES = "/api/v1/namespaces"
_KUEUE = "/apis/kueue.x-k8s.io"
_KUEUE_NAMESPACE_SELECTOR = "kueue.x-k8s.io/managed-namespace=true"
"""Usual label of Kueue's namespaces. The real `managedJobsNamespaceSelector` is only in Kueue's configuration."""


class KubernetesConnections(Protocol):
    """The API servers of the clusters."""

    def api(self, cluster: str) -> KubernetesApi:
        """Return the API server of a cluster, by the cluster's name."""
        ...


class KubernetesCluster(KubernetesAdmissionChecks, KubernetesCapacity, KubernetesUnmanagedJobs):
    """The Kubernetes clusters of a fleet."""

    def __init__(self, connections: KubernetesConnections, *, fleet: str) -> None:
        self._connections = connections
        self._fleet = fleet
        self._known_kinds: dict[str, frozenset[WorkloadKind]] = {}
        """Kinds of operators that each cluster served before."""

    # ------------------------------------------------------------ the API server itself

    def server_version(self, cluster: str) -> str:
        return str((self._api(cluster).get("/version") or {}).get("gitVersion", ""))

    def missing_rights(self, cluster: str, rights: Iterable[KubernetesPermission]) -> tuple[KubernetesPermission, ...]:
        return tuple(permission for permission in rights if not self._has_right(cluster, permission))

    def _has_right(self, cluster: str, permission: KubernetesPermission) -> bool:
        answer = self._api(cluster).create(_ACCESS_REVIEWS, manifests.access_review(permission))
        return (answer.get("status") or {}).get("allowed") is True

    # ------------------------------------------------------------ nodes

    def nodes(self, cluster: str) -> tuple[KubernetesNode, ...]:
        nodes = self._read_list(cluster, _NODES, lambda node: node_objects.read_node(cluster, node), {})
        return tuple(sorted(nodes, key=lambda node: node.name))

    def node(self, cluster: str, name: str) -> KubernetesNode | None:
        item = self._api(cluster).get(f"{_NODES}/{name}")
        return None if item is None else node_objects.read_node(cluster, item)

    def cordon(
        self, cluster: str, name: str, incident_id: str | None, uncordoned_resource_version: str = ""
    ) -> ClusterCordonResult:
        def patch(version: str) -> ClusterCordonResult:
            # The patch requires the version that was read. If a person cordons the node in between, it fails with 409.
            metadata: Json = {"resourceVersion": version}
            if incident_id is not None:
                metadata["annotations"] = {INCIDENT_ANNOTATION: incident_id}
            try:
                self._api(cluster).patch(f"{_NODES}/{name}", {"metadata": metadata, "spec": {"unschedulable": True}})
            except NotFound:
                return ClusterCordonResult.GONE
            return ClusterCordonResult.CORDONED

        def cordon_present_version() -> ClusterCordonResult:
            node = self.node(cluster, name)
            if node is None:
                return ClusterCordonResult.GONE
            if node.is_cordoned:
                if node.incident_id is None:
                    return ClusterCordonResult.BY_PERSON
                is_own = node.incident_id == incident_id
                return ClusterCordonResult.ALREADY_CORDONED if is_own else ClusterCordonResult.BY_OTHER_INCIDENT
            return patch(node.resource_version)

        if uncordoned_resource_version:
            with contextlib.suppress(Conflict):  # the node has changed since
                return patch(uncordoned_resource_version)
        return retry_on_conflict(cordon_present_version)

    def return_to_service(self, cluster: str, name: str, incident_id: str | None) -> UncordonResult:
        def release_present_version() -> UncordonResult:
            item = self._api(cluster).get(f"{_NODES}/{name}")
            if item is None:
                return UncordonResult.GONE
            node = node_objects.read_node(cluster, item)
            if node.is_cordoned and (incident_id is None or node.incident_id != incident_id):
                return UncordonResult.CORDONED_BY_OTHER
            changes = list(_release_patch(item, is_cordoned=node.is_cordoned))
            if not changes:
                return UncordonResult.ALREADY_FREE
            # The patch uses indexes of taints, which are valid only for the version that was read.
            test = {"op": "test", "path": "/metadata/resourceVersion", "value": node.resource_version}
            try:
                self._api(cluster).patch(f"{_NODES}/{name}", [test, *changes], JSON_PATCH)
            except NotFound:
                return UncordonResult.GONE
            return UncordonResult.RELEASED

        return retry_on_conflict(release_present_version)

    def remove_manual_cordon(self, cluster: str, name: str) -> UncordonResult:
        def uncordon_present_version() -> UncordonResult:
            node = self.node(cluster, name)
            if node is None:
                return UncordonResult.GONE
            if not node.is_cordoned:
                return UncordonResult.ALREADY_FREE
            if node.incident_id is not None:
                return UncordonResult.CORDONED_BY_OTHER
            changes = {"metadata": {"resourceVersion": node.resource_version}, "spec": {"unschedulable": None}}
            try:
                self._api(cluster).patch(f"{_NODES}/{name}", changes)
            except NotFound:
                return UncordonResult.GONE
            return UncordonResult.RELEASED

        return retry_on_conflict(uncordon_present_version)

    def resources_in_use(self, cluster: str, pods: PodGroup = PodGroup.ALL) -> Mapping[str, Resources]:
        query = {"fieldSelector": _LIVE_PODS_SELECTOR, **({"labelSelector": str(pods)} if pods else {})}
        placed_pods = filter(None, self._read_list(cluster, _PODS, unmanaged_pods.read_placed_pod, query))
        return sum_by_node(placed_pods)

    def delete_node(self, cluster: str, name: str, instance_id: str) -> RepairAnswer:
        api = self._api(cluster)
        item = api.get(f"{_NODES}/{name}")
        if item is None or node_objects.read_node(cluster, item).instance_id != instance_id:
            return RepairAnswer.NO_SUCH_NODE
        if KARPENTER_LABEL not in item["metadata"].get("labels", {}):
            raise Refused(
                f"node {name} of {cluster} does not belong to Karpenter: no controller would terminate its instance"
            )
        # Karpenter's finalizer keeps the object until its pods are drained and the instance is terminated.
        api.delete(f"{_NODES}/{name}", preconditions={"uid": item["metadata"]["uid"]})
        return RepairAnswer.ACCEPTED

    def start_check(self, spec: CheckSpec) -> None:
        path = f"/apis/batch/v1/namespaces/{spec.namespace}/jobs"
        with contextlib.suppress(AlreadyExists):
            self._api(spec.cluster).create(path, manifests.check_job(spec, self._fleet))

    def check_result(self, cluster: str, namespace: str, name: str) -> CheckResult:
        job = self._api(cluster).get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}") or {}
        if object_fields.has_condition(job, "Complete"):
            return CheckResult.PASSED
        return CheckResult.FAILED if workloads.has_failed(job) else CheckResult.PENDING

    # ------------------------------------------------------------ workloads

    def launch(self, spec: LaunchSpec) -> tuple[LaunchResult, str]:
        attempt = spec.attempt
        api = self._api(attempt.cluster)
        resource = spec.accelerator_resource or object_fields.NVIDIA
        try:
            api.create(f"/api/v1/namespaces/{attempt.namespace}/services", manifests.service(spec, self._fleet))
        except AlreadyExists:
            self._require_own_object(
                attempt, f"/api/v1/namespaces/{attempt.namespace}/services/{attempt.workload_name}"
            )
        kind = RESOURCES[attempt.kind]
        result = LaunchResult.CREATED
        try:
            item = api.create(kind.path(attempt.namespace), operator_manifests.workload(spec, self._fleet, resource))
        except AlreadyExists:
            result = LaunchResult.ALREADY_THERE
            item = self._require_own_object(attempt, kind.path(attempt.namespace, attempt.workload_name))
        except PermanentError as error:
            self._delete_objects(api, attempt, item=None)  # without the workload, the Service is useless
            if isinstance(error, NotFound) and kind.operator and not self._is_served(attempt.cluster, kind):
                raise Refused(
                    f"cluster {attempt.cluster} has no {kind.kind}: install {kind.operator}, or submit another kind"
                ) from error
            raise
        # Kueue's webhook suspends a Job at its creation. That must not happen to a Job that Kueue should not admit.
        if workloads.is_suspended(item) and not attempt.local_queue:
            raise Refused(
                f"{attempt.workload_name} was suspended at its creation: Kueue or another controller "
                f"admits jobs in namespace {attempt.namespace} of {attempt.cluster}"
            )
        return result, item["metadata"]["uid"]

    def publish_size(self, attempt: Attempt) -> None:
        document = manifests.size_config_map(attempt, self._fleet)
        path = f"/api/v1/namespaces/{attempt.namespace}/configmaps"
        try:
            self._api(attempt.cluster).create(path, document)
        except AlreadyExists:
            item = self._require_own_object(attempt, f"{path}/{attempt.workload_name}")
            if item.get("data") != document["data"]:
                raise Refused(
                    f"the ConfigMap {attempt.workload_name} has another number of pods than {attempt.ranks}"
                ) from None

    def workload(self, attempt: Attempt) -> ObservedWorkload:
        objects = self._list_attempt_objects(attempt)
        kueue: Mapping[tuple[str, str], KueueStatus] = {}
        if objects.item is not None and kueue_workloads.is_queued_in_kueue(objects.item):
            uid = objects.item["metadata"]["uid"]
            # For the queue position of a waiting Job, all Workloads of the namespace are needed.
            selector = "" if workloads.is_suspended(objects.item) else f"{object_fields.KUEUE_JOB_LABEL}={uid}"
            kueue = self._kueue_workloads(attempt.cluster, attempt.namespace, selector)
        return attempt.own_workload(workloads.read_workloads(objects.listed, objects.pods, kueue))

    def workloads(self, cluster: str) -> tuple[ObservedWorkload, ...]:
        selector = {"labelSelector": self._attempt_selector}
        controllers = [
            item
            for kind in (JOB, *self._list_operated_kinds(cluster))
            for item in self._list_kind(cluster, kind, trim=workloads.trim_object, **selector)
        ]
        pods = self._list_trimmed(cluster, _PODS, workloads.trim_object, selector)
        kueue = self._kueue_workloads(cluster) if any(map(kueue_workloads.is_queued_in_kueue, controllers)) else {}
        return workloads.read_workloads(controllers, pods, kueue)

    def pods_in_use(self, cluster: str) -> PodsInUse:
        # The owner reference of a pod names its workload. Only a JobSet has Jobs between itself and its pods.
        has_operators = bool(self._list_operated_kinds(cluster))
        selector = {"labelSelector": self._attempt_selector}
        jobs = self._list_kind(cluster, JOB, trim=workloads.trim_object, **selector) if has_operators else []
        own_query, others_query = (
            {"fieldSelector": _LIVE_PODS_SELECTOR, "labelSelector": f"{PodGroup.MOVABLE},{FLEET_LABEL}{labels}"}
            for labels in (f"={self._fleet}", f"!={self._fleet}")
        )
        own_pods = self._read_list(cluster, _PODS, unmanaged_pods.read_own_pod, own_query)
        placed_pods = self._read_list(cluster, _PODS, unmanaged_pods.read_placed_pod, others_query)
        pods = sorted((pod for pod, _ in own_pods if pod is not None), key=_namespaced_name)
        in_use = sum_by_node(filter(None, itertools.chain((placed_pod for _, placed_pod in own_pods), placed_pods)))
        return PodsInUse(workloads.read_workloads(jobs, pods, {}), in_use)

    @property
    def _attempt_selector(self) -> str:
        return f"{JOB_LABEL},{FLEET_LABEL}={self._fleet}"

    def _list_operated_kinds(self, cluster: str) -> list[WorkloadResource]:
        """Return the kinds whose operators a cluster has. An operator can be installed at any time."""
        kinds = self._known_kinds.get(cluster, frozenset())
        if len(kinds) < len(OPERATED):
            served_groups = {group["name"] for group in (self._api(cluster).get(_GROUPS) or {}).get("groups") or ()}
            missing_kinds = (
                resource for resource in OPERATED if resource.kind not in kinds and resource.group in served_groups
            )
            kinds |= {resource.kind for resource in missing_kinds if self._is_served(cluster, resource)}
            self._known_kinds[cluster] = kinds
        return [resource for resource in OPERATED if resource.kind in kinds]

    def _is_served(self, cluster: str, kind: WorkloadResource) -> bool:
        """Whether a cluster has a kind. Its API group can exist without it."""
        resource_list = self._api(cluster).get(f"/apis/{kind.api_version}") or {}
        return any(resource["name"] == kind.plural for resource in resource_list.get("resources") or ())

    def _list_kind(
        self,
        cluster: str,
        kind: WorkloadResource,
        namespace: str = "",
        trim: Callable[[Json], Json] = lambda item: item,
        **query: str,
    ) -> list[Json]:
        """Return the workloads of a kind, each with its kind; none if its operator was removed."""
        try:
            items = self._list_trimmed(cluster, kind.path(namespace), trim, query)
            return [{**item, "kind": str(kind.kind)} for item in items]
        except NotFound:
            if not kind.operator or self._is_served(cluster, kind):
                raise  # whether there are workloads is unknown
            return []

    def _kueue_workloads(
        self, cluster: str, namespace: str = "", labels: str = ""
    ) -> dict[tuple[str, str], KueueStatus]:
        """Return the status of Kueue's Workloads, by namespace and UID of their Jobs; empty without Kueue."""
        group = self._api(cluster).get(_KUEUE)
        if group is None:
            return {}
        within = f"/namespaces/{namespace}" if namespace else ""
        path = f"{_KUEUE}/{group['preferredVersion']['version']}{within}/workloads"
        with contextlib.suppress(NotFound):  # this definition of Kueue may not be installed yet
            query = {"labelSelector": labels} if labels else {}
            return kueue_workloads.read_queue(self._list_objects(cluster, path, **query))
        return {}

    def pods(self, cluster: str, on: str | None = None) -> tuple[UnmanagedPod, ...]:
        where = "" if on is None else f",spec.nodeName={on}"
        pods = self._list_trimmed(
            cluster, _PODS, unmanaged_pods.trim_unmanaged_pod, {"fieldSelector": f"{_LIVE_PODS_SELECTOR}{where}"}
        )
        controllers = self._controllers(cluster, pods)
        return tuple(unmanaged_pods.read_unmanaged_pod(pod, controllers, self._fleet) for pod in pods)

    def live_pods(self, cluster: str) -> LivePods:
        pods_read = self._read_list(
            cluster, _PODS, unmanaged_pods.read_live_pod, {"fieldSelector": _LIVE_PODS_SELECTOR}
        )
        pods = sorted((pod.unmanaged for pod in pods_read if pod.unmanaged is not None), key=_namespaced_name)
        controllers = self._controllers(cluster, pods)
        return LivePods(
            movable=sum_by_node(pod.node_requests for pod in pods_read if pod.node_requests and not pod.is_bound),
            bound=sum_by_node(pod.node_requests for pod in pods_read if pod.node_requests and pod.is_bound),
            pods=tuple(unmanaged_pods.read_unmanaged_pod(pod, controllers, self._fleet) for pod in pods),
        )

    def kueue_namespaces(self, cluster: str) -> Mapping[str, str]:
        """Return the namespaces with Kueue's label or with a LocalQueue, each with the reason.

        In a namespace with a LocalQueue `default`, Kueue admits every Job. In the other namespaces, it may.
        """
        group = self._api(cluster).get(_KUEUE)
        if group is None:
            return {}
        path = f"{_KUEUE}/{group['preferredVersion']['version']}/localqueues"
        labelled_namespaces = self._list_objects(cluster, _NAMESPACES, labelSelector=_KUEUE_NAMESPACE_SELECTOR)
        namespaces = {
            namespace["metadata"]["name"]: f"its label {_KUEUE_NAMESPACE_SELECTOR}" for namespace in labelled_namespaces
        }
        with contextlib.suppress(NotFound):  # this definition of Kueue may not be installed yet
            queues = map(_namespaced_name, self._list_objects(cluster, path))
            namespaces |= {namespace: f"its LocalQueue {name}" for namespace, name in queues}
        return namespaces

    def evict(self, cluster: str, pod: UnmanagedPod) -> EvictionAnswer:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            response = self._api(cluster).create(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction", body)
        except (NotFound, Conflict):
            return EvictionAnswer(EvictionStatus.GONE)  # no pod has this name, or another pod has it by now
        except (Throttled, NamespaceTerminating, ServerFailed) as error:
            # If a pod has two disruption budgets, the server answers 500 without a reason.
            return EvictionAnswer(EvictionStatus.NOT_NOW, _error_text(error))
        except TransientError as error:
            return EvictionAnswer(EvictionStatus.NO_ANSWER, _error_text(error))
        except PermanentError as error:
            return EvictionAnswer(EvictionStatus.REFUSED, _error_text(error))
        if response.get("status") == "Failure":  # some servers answer 201, with a failure in the body
            return EvictionAnswer(EvictionStatus.NOT_NOW, str(response.get("message") or "")[:_MAX_ERROR_LENGTH])
        return EvictionAnswer(EvictionStatus.EVICTED)

    def stop(self, attempt: Attempt, grace_seconds: int, nodes_without_grace: Container[str] = ()) -> None:
        """Delete the pods first, with the requested grace period. Deleting the workload would give them their own.

        The minimum grace is one second: with 0, Kubernetes would remove the pod without waiting for its process.
        """
        api = self._api(attempt.cluster)
        objects = self._list_attempt_objects(attempt)
        for pod in objects.pods:
            has_no_grace = (pod.get("spec") or {}).get("nodeName") in nodes_without_grace
            _delete_pod(api, pod, gracePeriodSeconds=1 if has_no_grace else max(1, grace_seconds))
        self._delete_objects(api, attempt, objects.item)

    def force_delete_pods(self, attempt: Attempt, node_names: Iterable[str]) -> None:
        names = set(node_names)
        api = self._api(attempt.cluster)
        objects = self._list_attempt_objects(attempt)
        lost_pods = [pod for pod in objects.pods if (pod.get("spec") or {}).get("nodeName") in names]
        if not lost_pods:
            return
        # Delete the workload first: while a Job exists, the Job controller's finalizer keeps its pods.
        self._delete_objects(api, attempt, objects.item)
        for pod in lost_pods:
            _delete_pod(api, pod, gracePeriodSeconds=0)

    def logs(self, attempt: Attempt, rank: int, tail_lines: int | None, *, timestamps: bool = False) -> str:
        is_indexed = attempt.kind in (WorkloadKind.JOB, WorkloadKind.JOB_SET)
        objects = self._list_attempt_objects(attempt, f",{INDEX_LABEL}={rank}" if is_indexed else "")
        pods = [pod for pod in objects.pods if rank_of(pod) == rank]
        if not pods:
            raise NotFound(f"no pod of rank {rank} of {attempt.workload_name} in {attempt.namespace}")
        path = f"/api/v1/namespaces/{attempt.namespace}/pods/{pods[-1]['metadata']['name']}/log"
        options = {"limitBytes": str(_LOG_HEAD_BYTES)} if tail_lines is None else {"tailLines": str(tail_lines)}
        options |= {"timestamps": "true"} if timestamps else {}
        return self._api(attempt.cluster).text(path, container=operator_manifests.container_of(attempt.kind), **options)

    def log_tails(self, attempt: Attempt, lines: int, max_pods: int, within_seconds: float) -> Mapping[int, LogTail]:
        pods = self._list_attempt_objects(attempt).pods
        by_rank = {rank: pod for pod in pods if (rank := rank_of(pod)) < attempt.ranks}
        ranks = sorted(by_rank, key=lambda rank: ((by_rank[rank].get("status") or {}).get("phase") != "Failed", rank))
        # Read in parallel with a time limit, because an unreachable kubelet does not answer.
        pool = ThreadPoolExecutor(_LOG_READERS, thread_name_prefix="tails")
        reads = {rank: pool.submit(self._read_log_tail, attempt, by_rank[rank], lines) for rank in ranks[:max_pods]}
        wait(reads.values(), within_seconds)
        late_text = f"The log was not read within {within_seconds:g} s."
        tails = {
            rank: log_read.result() if log_read.done() else workloads.log_tail(by_rank[rank], why=late_text)
            for rank, log_read in reads.items()
        }
        pool.shutdown(wait=False, cancel_futures=True)
        left_out = f"Evenkeel keeps at most {max_pods} logs of an attempt."
        return tails | {rank: workloads.log_tail(by_rank[rank], why=left_out) for rank in ranks[max_pods:]}

    def _read_log_tail(self, attempt: Attempt, pod: Json, lines: int) -> LogTail:
        path = f"/api/v1/namespaces/{attempt.namespace}/pods/{pod['metadata']['name']}/log"
        container = operator_manifests.container_of(attempt.kind)
        limits = {"tailLines": str(lines), "limitBytes": str(_TAIL_BYTES)}
        query = {"container": container, "timestamps": "true", **limits}
        try:
            return workloads.log_tail(pod, text=self._api(attempt.cluster).text(path, **query))
        except EvenkeelError as error:
            return workloads.log_tail(pod, why=_error_text(error))

    def _list_attempt_objects(self, attempt: Attempt, more: str = "") -> "_AttemptObjects":
        """Return an attempt's own objects. Labels only narrow the lists; UID or decision prove the owner."""
        space = f"namespaces/{attempt.namespace}"
        item = self._api(attempt.cluster).get(RESOURCES[attempt.kind].path(attempt.namespace, attempt.workload_name))
        selector = f"{JOB_LABEL}={attempt.job_id},{ATTEMPT_LABEL}={attempt.attempt},{FLEET_LABEL}={self._fleet}"
        jobs: list[Json] = []
        if attempt.kind is WorkloadKind.JOB_SET:
            jobs = self._list_objects(attempt.cluster, JOB.path(attempt.namespace), labelSelector=selector)
        pods = self._list_objects(attempt.cluster, f"/api/v1/{space}/pods", labelSelector=f"{selector}{more}")
        workload = attempt.own_workload(workloads.read_workloads([*([item] if item else []), *jobs], pods, {}))
        controllers = workloads.Controllers(jobs)
        return _AttemptObjects(
            item=item if item is not None and item["metadata"]["uid"] == workload.uid else None,
            jobs=jobs,
            pods=[pod for pod in pods if workload.job_uid and controllers.controller_of(pod).uid == workload.job_uid],
        )

    def _delete_objects(self, api: KubernetesApi, attempt: Attempt, item: Json | None) -> None:
        """Delete an attempt's workload and Service.

        A workload of an operator stays until its pods have ended. Otherwise, the Jobs between a JobSet and its pods
        could disappear first, and nothing would prove whose the pods are.
        """
        space, name = f"namespaces/{attempt.namespace}", attempt.workload_name
        if item is not None:
            kind = RESOURCES[attempt.kind]
            policy = "Foreground" if kind.operator else "Background"
            preconditions = {"uid": item["metadata"]["uid"]}
            api.delete(kind.path(attempt.namespace, name), propagationPolicy=policy, preconditions=preconditions)
        service = api.get(f"/api/v1/{space}/services/{name}")
        if service is not None and workloads.is_launched_by(service, attempt, self._fleet):
            api.delete(f"/api/v1/{space}/services/{name}", preconditions={"uid": service["metadata"]["uid"]})

    def _require_own_object(self, attempt: Attempt, path: str) -> Json:
        item = self._api(attempt.cluster).get(path)
        if item is None:
            raise Conflict(f"{path} of {attempt.cluster} existed and is now gone")
        if not workloads.is_launched_by(item, attempt, self._fleet):
            raise Refused(f"{path} of {attempt.cluster} was not created by the launch of {attempt.workload_name}")
        return item

    # ------------------------------------------------------------ changes

    def watch(
        self,
        cluster: str,
        on_change: Callable[[str], None],
        *,
        until: Callable[[], bool],
        on_state: Callable[[str, str], None] | None = None,
    ) -> None:
        """Call `on_change` for each change, and once per kind after each list, to cover unseen changes.

        `on_change` runs in the caller's thread.
        """
        selector = f"{JOB_LABEL},{FLEET_LABEL}={self._fleet}"
        changes: queue.SimpleQueue[str | _WatchState | PermanentError] = queue.SimpleQueue()
        watchers = [
            _Watcher(self._api(cluster), "node", _NODES, {}, changes),
            _Watcher(self._api(cluster), "pod", _PODS, {"labelSelector": selector}, changes),
            *(
                _Watcher(self._api(cluster), "job", kind.path(), {"labelSelector": selector}, changes)
                for kind in (JOB, *self._list_operated_kinds(cluster))
            ),
        ]
        for watcher in watchers:
            watcher.start()
        try:
            while not until():
                try:
                    change = changes.get(timeout=_POLL_SECONDS)
                except queue.Empty:
                    continue
                if isinstance(change, PermanentError):
                    raise change
                if isinstance(change, _WatchState):
                    if on_state is not None:
                        on_state(change.kind, change.error)
                else:
                    on_change(change)
        finally:
            for watcher in watchers:
                watcher.stop()
            for watcher in watchers:
                watcher.join(timeout=5)

    def _api(self, cluster: str) -> KubernetesApi:
        return self._connections.api(cluster)

    def _list_objects(self, cluster: str, path: str, **query: str) -> list[Json]:
        """Return all objects of a list, complete."""
        return self._list_trimmed(cluster, path, lambda item: item, query)

    def _list_trimmed(
        self, cluster: str, path: str, trim: Callable[[Json], Json | None], query: Mapping[str, str]
    ) -> list[Json]:
        """Return all objects of a list, each reduced or dropped by `trim` when its page is read."""
        return sorted(filter(None, self._read_list(cluster, path, trim, query)), key=_namespaced_name)

    def _read_list(self, cluster: str, path: str, read: Callable[[Json], T], query: Mapping[str, str]) -> list[T]:
        """Return the result of `read` for each object of a list. If the list expires meanwhile, list it again once.

        A function does not have enough memory for complete objects of all nodes or pods.
        """

        def listed() -> list[T]:
            return [read(item) for item in self._api(cluster).items(path, **query)]

        try:
            return listed()
        except Expired:
            return listed()


class _AttemptObjects(NamedTuple):
    """The objects of one attempt."""

    item: Json | None
    """Its workload; None if it is gone."""
    jobs: list[Json]
    """The Jobs of its JobSet."""
    pods: list[Json]

    @property
    def listed(self) -> list[Json]:
        return [*([self.item] if self.item else []), *self.jobs]


class _WatchState(NamedTuple):
    """State of the watch on one kind of object."""

    kind: str
    error: str
    """Empty if the server answers."""


class _Watcher(threading.Thread):
    """Watches one kind of object until `end` is called. Each change puts the name of the kind into the queue."""

    def __init__(
        self,
        api: KubernetesApi,
        kind: str,
        path: str,
        query: Mapping[str, str],
        changes: "queue.SimpleQueue[str | _WatchState | PermanentError]",
    ) -> None:
        super().__init__(name=f"watch-{api.name}-{kind}", daemon=True)
        self._server = api
        self._kind = kind
        self._path = path
        self._query = query
        self._changes = changes
        self._ended = threading.Event()
        self._open: Watch | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        version, address = "", self._server.address
        while not self._ended.is_set():
            try:
                if not version or self._server.address != address:
                    address = self._server.address
                    version = self._server.version(self._path, **self._query)
                    self._changes.put(self._kind)
                    self._changes.put(_WatchState(self._kind, ""))
                version = self._read_changes(version)
                # The server ended the watch in time, so it answers.
                self._changes.put(_WatchState(self._kind, ""))
            except Expired:
                version = ""
            except TransientError as error:
                # Continue from the last version. If it is too old by now, the server answers with Expired.
                self._changes.put(_WatchState(self._kind, f"{type(error).__name__}: {error}"))
                self._ended.wait(_PAUSE_SECONDS)
            except PermanentError as error:
                self._changes.put(error)
                return

    def stop(self) -> None:
        self._ended.set()
        with self._lock:
            if self._open is not None:
                self._open.shut()

    def _read_changes(self, version: str) -> str:
        with self._server.watch(self._path, version, _WATCH_SECONDS, **self._query) as watch:
            with self._lock:
                if self._ended.is_set():
                    return version
                self._open = watch
            try:
                for event in watch.events():
                    version = str(event.item["metadata"]["resourceVersion"])
                    if event.kind != "BOOKMARK":
                        self._changes.put(self._kind)
                    if self._ended.is_set():
                        break
            finally:
                with self._lock:
                    self._open = None
        return version


def _release_patch(item: Mapping[str, Any], *, is_cordoned: bool) -> Iterator[Json]:
    """Yield the JSON patch that removes cordon, mark and taint from a node. Taints with a higher index come first."""
    if is_cordoned:
        yield {"op": "remove", "path": "/spec/unschedulable"}
    if INCIDENT_ANNOTATION in (item["metadata"].get("annotations") or {}):
        yield {"op": "remove", "path": f"/metadata/annotations/{INCIDENT_ANNOTATION.replace('/', '~1')}"}
    taints = (item.get("spec") or {}).get("taints") or ()
    for index in reversed(range(len(taints))):
        if taints[index]["key"] == AWAITING_VALIDATION_TAINT:
            yield {"op": "test", "path": f"/spec/taints/{index}/key", "value": AWAITING_VALIDATION_TAINT}
            yield {"op": "remove", "path": f"/spec/taints/{index}"}


def _error_text(error: EvenkeelError) -> str:
    """Return the message of a server's answer, without the path of the call."""
    return str(error).partition(": ")[2][:_MAX_ERROR_LENGTH]


def _delete_pod(api: KubernetesApi, pod: Json, **options: Any) -> None:
    """Delete a pod by its UID. A later pod of the same name stays."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    with contextlib.suppress(Conflict):  # another pod has the name by now
        api.delete(path, preconditions={"uid": metadata["uid"]}, **options)


def _namespaced_name(item: Mapping[str, Any]) -> tuple[str, str]:
    return (item["metadata"].get("namespace", ""), item["metadata"]["name"])
