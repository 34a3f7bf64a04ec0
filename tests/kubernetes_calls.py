"""The Kubernetes calls of the adapters: recorded, and checked against the schemas that Kubernetes publishes.

    python -m tests.kubernetes_calls        write tests/golden/kubernetes.json again, after a change of a request

Each case is one operation of a port, on a real `KubernetesApi` whose requests never reach the network. The schemas
come from the OpenAPI document of each Kubernetes release, which the package kubernetes-validate contains:
https://github.com/kubernetes/kubernetes/blob/v1.33.0/api/openapi-spec/swagger.json. The lock pins that package.
"""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import urllib3

from evenkeel.adapters.cluster import KubernetesCluster
from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel.adapters.object_fields import QUEUE_LABEL
from evenkeel.adapters.workload_resources import RESOURCES
from evenkeel.domain.external.burst_check_protocol import (
    CONTROLLER,
    RENTAL_NODE_LABEL,
    BurstCheckAnswer,
    BurstCheckState,
    CheckedWorkload,
)
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.nodes import AWAITING_VALIDATION_TAINT, INCIDENT_ANNOTATION, KARPENTER_LABEL, NodeLife
from evenkeel.domain.recovery.unmanaged_restarts import UnmanagedJob, UnmanagedJobState, UnmanagedRestart
from evenkeel.ports import CapacitySpec, CheckSpec, KubernetesPermission, LaunchSpec
from tests.fakes.system import A_MOMENT

GOLDEN: Final = Path(__file__).resolve().parent / "golden" / "kubernetes.json"
UPDATE: Final = "python -m tests.kubernetes_calls"
RELEASES: Final = ("1.31", "1.33", "1.35")
"""Releases of Kubernetes whose schemas each request must fit. EKS offers them:
https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html."""
Json = dict[str, Any]

CLUSTER: Final = "research-eks"
NAMESPACE: Final = "evenkeel-jobs"
FLEET: Final = "research"
NODE: Final = "hyperpod-i-0123456789abcdef0"
INSTANCE: Final = "i-0123456789abcdef0"
NOW: Final = "2026-11-03T10:15:02Z"
KUEUE: Final = {"kind": "APIGroup", "name": "kueue.x-k8s.io", "preferredVersion": {"version": "v1beta2"}}


class KubernetesRequest(NamedTuple):
    """One call of an API server."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any

    def golden(self) -> Json:
        """Return the call as the golden file has it, without members that are empty."""
        return {name: value for name, value in self._asdict().items() if value}


@dataclass
class RecordingServer:
    """Stores the objects that it is sent, answers with them, and records each call."""

    objects: dict[str, Json] = field(default_factory=dict)
    requests: list[KubernetesRequest] = field(default_factory=list)

    def add(self, path: str, item: Json) -> None:
        """Store an object under its own path."""
        self.objects[path] = item

    def answer(self, request: KubernetesRequest) -> tuple[int, Any]:
        """Record a call. Return the status and the document of its answer."""
        if request not in self.requests:
            self.requests.append(request)
        if request.method == "POST":
            return 201, self._created(request)
        if request.method == "DELETE":
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        path = request.path.removesuffix("/status") if request.method == "PATCH" else request.path
        if path in self.objects:
            return 200, self.objects[path]
        if request.path.endswith("/log"):
            return 200, {}
        if "limit" in request.query or "watch" in request.query:
            return 200, {"metadata": {"resourceVersion": "7"}, "items": list(self._listed(request.path))}
        return 404, {"kind": "Status", "reason": "NotFound", "message": "not found", "code": 404}

    def _created(self, request: KubernetesRequest) -> Json:
        name = request.body["metadata"].get("name", "") if "metadata" in request.body else ""
        uid = {"uid": f"uid-{name}", "resourceVersion": "7", "creationTimestamp": NOW}
        namespace = re.search(r"/namespaces/([^/]+)/", request.path)
        within = {"namespace": namespace[1]} if namespace else {}
        item = {**request.body, "metadata": {**request.body.get("metadata", {}), **uid, **within}}
        if name and not request.path.endswith("/eviction"):
            self.add(f"{request.path}/{name}", item)
        return item

    def _listed(self, path: str) -> Iterator[Json]:
        plural = path.rpartition("/")[2]
        within = re.search(r"/namespaces/([^/]+)/", path)
        for stored, item in self.objects.items():
            if stored.split("/")[-2:-1] != [plural] or "metadata" not in item:
                continue
            if within is None or item["metadata"].get("namespace") == within[1]:
                yield item


class RecordingApi(KubernetesApi):
    """A `KubernetesApi` whose requests go to a `RecordingServer`."""

    def __init__(self, server: RecordingServer) -> None:
        super().__init__(CLUSTER, "https://127.0.0.1", "", lambda _: "token")
        self._recording_server = server

    def _send(self, server: Any, call: Any) -> urllib3.BaseHTTPResponse:
        parts = urlsplit(call.target)
        document = None if call.body is None else json.loads(call.body)
        request = KubernetesRequest(
            call.method, parts.path, dict(parse_qsl(parts.query)), call.headers.get("Content-Type", ""), document
        )
        status, answer = self._recording_server.answer(request)
        content = b"" if "watch" in request.query else json.dumps(answer).encode()
        return urllib3.HTTPResponse(io.BytesIO(content), status=status, preload_content=False)


class _Connections(NamedTuple):
    server: RecordingServer

    def api(self, _cluster: str) -> KubernetesApi:
        return RecordingApi(self.server)


@dataclass(frozen=True)
class KubernetesCase:
    """An operation of a port, in a cluster with the objects that it needs."""

    name: str
    act: Callable[[KubernetesCluster], object]
    prepare: Callable[[RecordingServer], object] = lambda _server: None

    def __str__(self) -> str:
        return self.name

    def record(self) -> list[KubernetesRequest]:
        """Return the different calls of the operation, in order; calls of parallel readers by path."""
        server = RecordingServer(dict(_OBJECTS))
        self.prepare(server)
        self.act(KubernetesCluster(_Connections(server), fleet=FLEET))
        ordered = sorted(server.requests, key=str) if self.name == "watch" else server.requests
        return list(ordered)


# ---------------------------------------------------------------- the objects of the cluster


def _node(name: str = NODE, instance_id: str = INSTANCE, **changes: Any) -> Json:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "7", "creationTimestamp": NOW}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {**metadata, **changes.get("metadata", {})},
        "spec": {"providerID": f"aws:///us-west-2a/{instance_id}", **changes.get("spec", {})},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": NOW}],
            "allocatable": {"nvidia.com/gpu": "8"},
        },
    }


CORDONED: Final = _node(
    metadata={"annotations": {INCIDENT_ANNOTATION: "inc-1"}},
    spec={
        "unschedulable": True,
        "taints": [{"key": AWAITING_VALIDATION_TAINT, "value": "true", "effect": "NoSchedule"}],
    },
)
RENTED: Final = _node("ip-10-0-0-1", "i-0fedcba9876543210", metadata={"labels": {KARPENTER_LABEL: "burst"}})
POOL: Final = {"metadata": {"name": "burst", "resourceVersion": "7"}, "spec": {"limits": {"nodes": "1"}}}


def _pod(name: str, owner: Json, **spec: Any) -> Json:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
            "ownerReferences": [reference],
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "any"}], **spec},
        "status": {"phase": "Running"},
    }


_OBJECTS: Final[dict[str, Json]] = {
    f"/api/v1/nodes/{NODE}": _node(),
    "/api/v1/nodes/ip-10-0-0-1": RENTED,
    "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
    "/apis": {"kind": "APIGroupList", "groups": [{"name": resource.group} for resource in RESOURCES.values()]},
    **{
        f"/apis/{resource.api_version}": {"kind": "APIResourceList", "resources": [{"name": resource.plural}]}
        for resource in RESOURCES.values()
    },
    "/apis/karpenter.sh/v1/nodepools/burst": POOL,
}

LIFE: Final = NodeLife(cluster=CLUSTER, instance_id=INSTANCE, launched_at=A_MOMENT)


def _attempt(kind: WorkloadKind, queue: str = "") -> Attempt:
    return Attempt(
        job_id="job-1",
        attempt=1,
        kind=kind,
        state=AttemptState.RUNNING,
        cluster=CLUSTER,
        namespace=NAMESPACE,
        pool="p5-workers",
        nodes=(LIFE,),
        node_names=(NODE,),
        accelerators=8,
        admitted_at=A_MOMENT,
        decision_id="dec-1",
        local_queue=queue,
    )


def _launch(kind: WorkloadKind, queue: str = "") -> LaunchSpec:
    spec = JobSpec(
        name="first",
        kind=kind,
        image="registry/trainer:1",
        command=("python", "train.py"),
        nodes=1,
        checkpoint_uri="s3://checkpoints/first",
    )
    return LaunchSpec(job_spec=spec, attempt=_attempt(kind, queue), resume_from="", service_account="trainer")


def _launched(kind: WorkloadKind) -> Callable[[RecordingServer], None]:
    """Return the step that launches an attempt and starts its pod."""

    def launched(server: RecordingServer) -> None:
        KubernetesCluster(_Connections(server), fleet=FLEET).launch(_launch(kind))
        workload = next(item for path, item in server.objects.items() if f"/{RESOURCES[kind].plural}/" in path)
        if kind is WorkloadKind.JOB_SET:
            workload = _job_of(workload, server)
        server.add(f"/api/v1/namespaces/{NAMESPACE}/pods/rank-0", _pod("rank-0", workload))
        server.requests.clear()

    return launched


def _job_of(job_set: Json, server: RecordingServer) -> Json:
    metadata = job_set["metadata"]
    reference = {
        "apiVersion": job_set["apiVersion"],
        "kind": "JobSet",
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, "uid": "uid-inner", "ownerReferences": [{**reference, "controller": True}]},
    }
    server.add(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{metadata['name']}", job)
    return job


def _users_job(kind: WorkloadKind, *, is_queued: bool = False) -> UnmanagedJob:
    state = UnmanagedJobState.RUNNING
    return UnmanagedJob(
        namespace="research", kind=kind, name="users", uid="uid-users", state=state, is_queued=is_queued
    )


def _has_users_job(kind: WorkloadKind, *, is_queued: bool = False) -> Callable[[RecordingServer], None]:
    def create(server: RecordingServer) -> None:
        labels = {QUEUE_LABEL: "research"} if is_queued else {}
        metadata = {"name": "users", "namespace": "research", "uid": "uid-users", "resourceVersion": "7"}
        item = {
            "apiVersion": RESOURCES[kind].api_version,
            "kind": str(kind),
            "metadata": {**metadata, "labels": labels},
            "spec": {},
        }
        server.add(RESOURCES[kind].path("research", "users"), item)
        if is_queued:
            _has_kueue(server)

    return create


def _has_kueue(server: RecordingServer) -> None:
    server.add("/apis/kueue.x-k8s.io", dict(KUEUE))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "users", "uid": "uid-users", "controller": True}
    metadata = {"name": "job-users", "namespace": "research", "ownerReferences": [owner]}
    server.add("/apis/kueue.x-k8s.io/v1beta2/namespaces/research/workloads/job-users", {"metadata": metadata})


def _has_burst_check(server: RecordingServer) -> None:
    server.add("/apis/kueue.x-k8s.io", dict(KUEUE))
    base = "/apis/kueue.x-k8s.io/v1beta2"
    check = {"metadata": {"name": "burst", "resourceVersion": "7"}, "spec": {"controllerName": CONTROLLER}}
    server.add(f"{base}/admissionchecks/burst", check)
    status = {"admissionChecks": [{"name": "burst", "state": "Pending", "message": "", "lastTransitionTime": NOW}]}
    metadata = {"name": CHECKED.name, "namespace": CHECKED.namespace, "resourceVersion": "7"}
    path = f"{base}/namespaces/{CHECKED.namespace}/workloads/{CHECKED.name}"
    server.add(path, {"metadata": metadata, "spec": {"podSets": [{"name": "main", "count": 2}]}, "status": status})


CHECKED: Final = CheckedWorkload(
    cluster=CLUSTER,
    namespace=NAMESPACE,
    name="job-users",
    resource_version="7",
    check="burst",
    state=BurstCheckState.PENDING,
    pod_sets=("main",),
)
READY: Final = BurstCheckAnswer(
    state=BurstCheckState.READY, message="Ready.", node_selector={RENTAL_NODE_LABEL: "job-1-b1"}
)


def _cordoned(server: RecordingServer) -> None:
    server.add(f"/api/v1/nodes/{NODE}", CORDONED)


def _cordoned_by_a_person(server: RecordingServer) -> None:
    server.add(f"/api/v1/nodes/{NODE}", _node(spec={"unschedulable": True}))


CAPACITY: Final = CapacitySpec(
    cluster=CLUSTER,
    namespace=NAMESPACE,
    name="job-1-rental-1",
    pool="burst",
    nodes=2,
    accelerators=8,
    accelerator_resource="nvidia.com/gpu",
    image="registry/pause:3",
)
CHECK: Final = CheckSpec(
    cluster=CLUSTER,
    namespace=NAMESPACE,
    name="check-1",
    node_name=NODE,
    image="registry/check:1",
    command=("check",),
    accelerators=8,
    accelerator_resource="nvidia.com/gpu",
    deadline_seconds=60,
)


def _has_capacity_pods(server: RecordingServer) -> None:
    KubernetesCluster(_Connections(server), fleet=FLEET).create_capacity_pods(CAPACITY)
    job = server.objects[f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{CAPACITY.name}"]
    server.add(f"/api/v1/namespaces/{NAMESPACE}/pods/capacity-0", _pod("capacity-0", job))
    server.requests.clear()


def _watch(cluster: KubernetesCluster) -> None:
    connections = cluster._connections
    assert isinstance(connections, _Connections)

    def has_watched_all() -> bool:
        requests = list(connections.server.requests)
        return sum("watch" in request.query for request in requests) == 2 + len(RESOURCES)

    cluster.watch(CLUSTER, lambda _kind: None, until=has_watched_all)


RIGHT: Final = KubernetesPermission("patch", "batch", "jobs", NAMESPACE)
UNMANAGED: Final = UnmanagedPod(namespace="research", name="users-0", uid="uid-0", node_name=NODE, accelerators=8)
_MANIFEST: Final[Json] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "users"},
    "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "any"}]}}},
}
CASES: Final = (
    KubernetesCase("server_version", lambda port: port.server_version(CLUSTER)),
    KubernetesCase("missing_rights", lambda port: port.missing_rights(CLUSTER, [RIGHT])),
    KubernetesCase("nodes", lambda port: port.nodes(CLUSTER)),
    KubernetesCase("node", lambda port: port.node(CLUSTER, NODE)),
    KubernetesCase("cordon", lambda port: port.cordon(CLUSTER, NODE, "inc-1")),
    KubernetesCase("cordon_seen_version", lambda port: port.cordon(CLUSTER, NODE, "inc-1", "7")),
    KubernetesCase("cordon_by_a_person", lambda port: port.cordon(CLUSTER, NODE, None)),
    KubernetesCase("return_to_service", lambda port: port.return_to_service(CLUSTER, NODE, "inc-1"), _cordoned),
    KubernetesCase(
        "remove_manual_cordon", lambda port: port.remove_manual_cordon(CLUSTER, NODE), _cordoned_by_a_person
    ),
    KubernetesCase("resources_in_use", lambda port: port.resources_in_use(CLUSTER)),
    KubernetesCase("delete_node", lambda port: port.delete_node(CLUSTER, "ip-10-0-0-1", "i-0fedcba9876543210")),
    KubernetesCase("start_check", lambda port: port.start_check(CHECK)),
    KubernetesCase("check_result", lambda port: port.check_result(CLUSTER, NAMESPACE, "check-1")),
    *(
        KubernetesCase(f"launch_{kind}", lambda port, kind=kind: port.launch(_launch(kind)))  # type: ignore[misc]  # bound now
        for kind in WorkloadKind
    ),
    *(
        KubernetesCase(f"{name}_{kind}", act, _launched(kind))
        for kind in WorkloadKind
        for name, act in (
            ("workload", lambda port, kind=kind: port.workload(_attempt(kind))),
            ("stop", lambda port, kind=kind: port.stop(_attempt(kind), 30)),
            ("force_delete_pods", lambda port, kind=kind: port.force_delete_pods(_attempt(kind), [NODE])),
        )
    ),
    KubernetesCase("publish_size", lambda port: port.publish_size(_attempt(WorkloadKind.JOB, "research"))),
    KubernetesCase("workloads", lambda port: port.workloads(CLUSTER), _launched(WorkloadKind.JOB)),
    KubernetesCase("pods", lambda port: port.pods(CLUSTER), _launched(WorkloadKind.JOB_SET)),
    KubernetesCase("pods_in_use", lambda port: port.pods_in_use(CLUSTER), _launched(WorkloadKind.JOB)),
    KubernetesCase("live_pods", lambda port: port.live_pods(CLUSTER), _launched(WorkloadKind.JOB)),
    KubernetesCase("pods_on_a_node", lambda port: port.pods(CLUSTER, NODE), _launched(WorkloadKind.JOB)),
    KubernetesCase("kueue_namespaces", lambda port: port.kueue_namespaces(CLUSTER), _has_kueue),
    KubernetesCase("burst_checks", lambda port: port.burst_checks(CLUSTER), _has_burst_check),
    KubernetesCase(
        "mark_check_active", lambda port: port.mark_check_active(CLUSTER, "burst", A_MOMENT), _has_burst_check
    ),
    KubernetesCase("answer_check", lambda port: port.answer_check(CHECKED, READY, A_MOMENT), _has_burst_check),
    KubernetesCase("evict", lambda port: port.evict(CLUSTER, UNMANAGED)),
    KubernetesCase("logs", lambda port: port.logs(_attempt(WorkloadKind.JOB), 0, 200), _launched(WorkloadKind.JOB)),
    KubernetesCase(
        "logs_head", lambda port: port.logs(_attempt(WorkloadKind.JOB), 0, None), _launched(WorkloadKind.JOB)
    ),
    KubernetesCase(
        "log_tails", lambda port: port.log_tails(_attempt(WorkloadKind.JOB), 200, 4, 5.0), _launched(WorkloadKind.JOB)
    ),
    KubernetesCase("watch", _watch),
    KubernetesCase("create_capacity_pods", lambda port: port.create_capacity_pods(CAPACITY)),
    KubernetesCase(
        "delete_capacity_pods",
        lambda port: port.delete_capacity_pods(CLUSTER, NAMESPACE, CAPACITY.name),
        _has_capacity_pods,
    ),
    KubernetesCase("set_pool_limit", lambda port: port.set_pool_limit(CLUSTER, "burst", lambda: (2, 16))),
    KubernetesCase("label_rented_nodes", lambda port: port.label_rented_nodes(CLUSTER, [NODE], "job-1-b1")),
    KubernetesCase("node_claims", lambda port: port.node_claims(CLUSTER, "burst")),
    KubernetesCase("delete_node_claim", lambda port: port.delete_node_claim(CLUSTER, "burst-1")),
    KubernetesCase("latest_capacity_refusal", lambda port: port.latest_capacity_refusal(CLUSTER, "burst", A_MOMENT)),
    KubernetesCase(
        "unmanaged_jobs", lambda port: port.unmanaged_jobs(CLUSTER, NODE), _launched(WorkloadKind.PYTORCH_JOB)
    ),
    *(
        KubernetesCase(f"{name}_{kind}", act, _has_users_job(kind))
        for kind in WorkloadKind
        for name, act in (
            ("unmanaged_job", lambda port, kind=kind: port.unmanaged_job(CLUSTER, "research", kind, "users")),
            ("suspend", lambda port, kind=kind: port.suspend(CLUSTER, _users_job(kind), is_suspended=True)),
            ("delete_job", lambda port, kind=kind: port.delete_job(CLUSTER, _users_job(kind))),
            ("restart_rights", lambda port, kind=kind: port.missing_restart_rights(CLUSTER, _users_job(kind))),
        )
    ),
    KubernetesCase(
        "suspend_a_queued_job",
        lambda port: port.suspend(CLUSTER, _users_job(WorkloadKind.JOB, is_queued=True), is_suspended=False),
        _has_users_job(WorkloadKind.JOB, is_queued=True),
    ),
    KubernetesCase(
        "create_job",
        lambda port: port.create_job(
            UnmanagedRestart(
                cluster=CLUSTER,
                namespace="research",
                kind=WorkloadKind.JOB,
                name="users",
                uid="uid-users",
                incident_id="inc-1",
                node_name=NODE,
                begun_at=A_MOMENT,
                manifest=json.dumps(_MANIFEST),
            )
        ),
    ),
)


def recorded() -> dict[str, list[Json]]:
    """Return the calls of each case, by its name."""
    return {case.name: [request.golden() for request in case.record()] for case in CASES}


# ---------------------------------------------------------------- the published schemas


class Resource(NamedTuple):
    """The resource that a path names."""

    group: str
    version: str
    plural: str
    subresource: str
    is_object: bool
    """Whether the path names one object, and not a list."""


_PATH: Final = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[0-9a-z]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>[a-z]+))?)?"
)
KINDS: Final = {
    ("", "nodes"): "Node",
    ("", "pods"): "Pod",
    ("", "services"): "Service",
    ("", "events"): "Event",
    ("", "namespaces"): "Namespace",
    ("", "configmaps"): "ConfigMap",
    ("batch", "jobs"): "Job",
    ("authorization.k8s.io", "selfsubjectaccessreviews"): "SelfSubjectAccessReview",
}
"""Kinds of Kubernetes itself, by group and plural."""
DISCOVERY: Final = re.compile(r"/version|/apis|/apis/[a-z0-9.-]+(/v[0-9a-z]+)?")
"""Paths of the discovery API, which name no resource."""


def resource_of(path: str) -> Resource | None:
    """Return the resource that a path names; None for discovery."""
    if DISCOVERY.fullmatch(path):
        return None
    match = _PATH.fullmatch(path)
    assert match, path
    return Resource(
        match["group"] or "", match["version"], match["plural"], match["subresource"] or "", match["name"] is not None
    )


@cache
def schema(kind: str, group: str, version: str, release: str) -> Json:
    """Return the strict schema of a kind in a release of Kubernetes. Its definitions are resolved by `definition`.

    Raises:
        FileNotFoundError: The release has no such kind.
    """
    family = group.removesuffix(".k8s.io")
    name = "-".join(filter(None, (kind.lower(), family, version)))
    document: Json = json.loads(_schemas(release).joinpath(f"{name}.json").read_text(encoding="utf-8"))
    return document


@cache
def definition(reference: str, release: str) -> Json:
    """Return the schema that a `$ref` names."""
    name = reference.rpartition("/")[2]
    definitions = json.loads(_schemas(release).joinpath("_definitions.json").read_text(encoding="utf-8"))
    document: Json = definitions["$defs"][name]
    return document


def _schemas(release: str) -> Any:
    return files("kubernetes_validate").joinpath("kubernetes-json-schema", f"v{release}.0-local-strict")


def unknown_fields(part: Any, shape: Json, release: str, path: str = "") -> list[str]:
    """Return the fields of a part of an object that its schema does not have. Null removes a field.

    For merge patches: they lack required fields, so the schema cannot judge them as a whole.
    """
    if "$ref" in shape:
        shape = definition(shape["$ref"], release)
    if isinstance(part, dict) and "properties" in shape:
        return [
            problem
            for name, value in part.items()
            for problem in (
                unknown_fields(value, shape["properties"][name], release, f"{path}.{name}")
                if name in shape["properties"]
                else [f"{path}.{name}"]
            )
        ]
    if isinstance(part, list):
        return [inner for item in part for inner in unknown_fields(item, shape.get("items", {}), release, f"{path}[]")]
    wanted = shape.get("type")
    allowed = [wanted] if isinstance(wanted, str) else wanted or []
    types = {bool: "boolean", int: "integer", str: "string", dict: "object", type(None): "null"}
    is_right = part is None or not allowed or types[type(part)] in allowed
    return [] if is_right else [f"{path}: {part!r} is no {wanted}"]


def unknown_pointer(pointer: str, shape: Json, release: str) -> str:
    """Return the part of a JSON pointer that names no field of a schema; empty if all of it exists."""
    walked = ""
    for part in pointer.removeprefix("/").split("/"):
        if "$ref" in shape:
            shape = definition(shape["$ref"], release)
        walked += f"/{part}"
        if part.isdigit() and "items" in shape:
            shape = shape["items"]
        elif part in shape.get("properties", {}):
            shape = shape["properties"][part]
        elif isinstance(shape.get("additionalProperties"), dict):
            shape = shape["additionalProperties"]
        else:
            return walked
    return ""


def main() -> int:
    """Write the golden file."""
    GOLDEN.write_text(json.dumps(recorded(), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
