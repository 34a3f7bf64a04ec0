"""Implementations for the tests of Cluster and Provider: the fakes, and the adapters on the local GPU cluster."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

import boto3

from evenkeel.adapters import kueue_workloads, manifests, object_fields
from evenkeel.adapters.cluster import KubernetesCluster
from evenkeel.adapters.hyperpod import HyperPodProvider
from evenkeel.adapters.kubernetes import KubernetesApi
from evenkeel.adapters.workload_resources import JOB, OPERATED
from evenkeel.domain.capacity.pools import Reservation
from evenkeel.domain.capacity.training_plans import TrainingPlan
from evenkeel.domain.external.unmanaged_workloads import (
    Consent,
    LabelledOwner,
    ManagedKind,
    PodRecreation,
    UnmanagedPod,
)
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedPod, ObservedWorkload, PodPhase
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.nodes import AWAITING_VALIDATION_TAINT, KubernetesNode, ProviderNode
from evenkeel.domain.recovery.validation import CheckResult
from evenkeel.ports import Cluster, EvenkeelError, EvictionAnswer, EvictionStatus, LaunchSpec, Provider
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.fake_kueue import API, DEFINITIONS, local_queues, workload_of
from tests.fake_kueue import workloads as kueues_workloads
from tests.fakes import FakeCluster, FakeProvider, FixedClock, a_node, a_provider_node
from tests.fakes.cluster import TAINT_TEXT
from tests.fakes.system import A_MOMENT
from tests.waiting import until

CLUSTER = "research-eks"
NAMESPACE = "evenkeel-jobs"
FLEET = "research"
TAINT = {"key": AWAITING_VALIDATION_TAINT, "value": "true", "effect": "NoSchedule"}

PLAN_NAME = "p5-autumn"
PLAN_DAYS = 30
CONFIG: dict[str, Any] = {
    "trainingPlans": [{"name": PLAN_NAME, "totalInstanceCount": 4, "durationHours": PLAN_DAYS * 24}],
    "eksClusterName": CLUSTER,
    "trainingOperators": True,
    "instanceGroups": [
        {"name": "p5-workers", "instanceType": "ml.p5.48xlarge", "count": 4, "taints": [], "trainingPlan": PLAN_NAME},
        {"name": "p5-tainted", "instanceType": "ml.p5.48xlarge", "count": 2, "taints": [TAINT]},
    ],
    "delays": {"boot": 0.0, "reboot": 0.3, "replace": 0.5, "terminate": 0.1, "heartbeat": 0.3, "nodeMonitorGrace": 1.0},
}

_QUEUES = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/localqueues"


class ClusterUnderTest(Protocol):
    """The cluster of a contract test. Its own methods change it directly, not through the ports."""

    @property
    def cluster(self) -> Cluster: ...

    @property
    def provider(self) -> Provider: ...

    def new_job(self) -> str:
        """Return a job id that nothing has used."""
        ...

    def cordon_as_a_person(self, name: str) -> None: ...

    def taint_node(self, name: str) -> None:
        """Give a node the awaiting-validation taint beside another controller's taint."""
        ...

    def end_pods(self, spec: LaunchSpec, exit_code: int) -> None:
        """End the processes of an attempt. Real processes end by themselves."""
        ...

    def create_unmanaged_pod(
        self, name: str, node_name: str, *, owner: str = "", allows_eviction: bool = True, **notes: str
    ) -> None:
        """Create an unmanaged pod that uses two GPUs of a node. `notes` are labels in snake case."""
        ...

    def is_running(self, pod: UnmanagedPod) -> bool:
        """Return whether an unmanaged pod runs. A disruption budget protects only running pods."""
        ...

    def create_disruption_budgets(self, name: str, count: int) -> None:
        """Create this many disruption budgets for an unmanaged pod; each allows one eviction."""
        ...

    def delete_namespace_of_pod(self, name: str) -> None:
        """Delete the namespace of an unmanaged pod, with the pod still in it."""
        ...

    def forge_job(self, spec: LaunchSpec, namespace: str) -> None:
        """Create a Job with an attempt's name, labels and annotations, as a person could. Its pod succeeds at once."""
        ...

    def forge_pod(self, spec: LaunchSpec, node_name: str) -> None:
        """Create a bare pod with an attempt's labels and annotations in its namespace, as a person could."""
        ...

    def delete_job(self, spec: LaunchSpec) -> None:
        """Delete an attempt's Job with its pods, as a person could."""
        ...

    def create_kueue_workload(self, spec: LaunchSpec, status: dict[str, Any], **more: Any) -> None:
        """Create Kueue's Workload of a launched Job with this status."""
        ...

    def install_kueue(self, *, queue: str = "", labels: bool = False) -> None:
        """Install Kueue. It manages the jobs' namespace by a LocalQueue of this name, or by a label."""
        ...

    def suspend_on_creation(self, spec: LaunchSpec) -> None:
        """Suspend the attempt's Job when it is created, as a webhook does."""
        ...

    def disconnect_node(self, name: str) -> None:
        """Disconnect a node from the network."""
        ...

    def complete_repair(self, instance_id: str) -> None:
        """Complete the running repair. The local cluster completes it by itself."""
        ...

    def pass_deep_health_check(self, instance_id: str) -> None:
        """Let the running deep health check pass. The local cluster completes it by itself."""
        ...

    def end_validation_job(self, name: str, *, passes: bool) -> None:
        """End the validation job of a node. A real process ends by itself."""
        ...

    def eventually(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a condition."""
        ...


class FakeClusterUnderTest:
    """The fakes as a fleet for the contract tests."""

    def __init__(self) -> None:
        clock = FixedClock()
        tainted = {"pool": "p5-tainted", "taints": (TAINT_TEXT,), "is_awaiting_validation": True}
        nodes = [*map(a_node, range(1, 5)), a_node(5, **tainted), a_node(6, **tainted)]
        machines = [*map(a_provider_node, range(1, 5))]
        machines += [a_provider_node(number, instance_group="p5-tainted") for number in (5, 6)]
        self.cluster = FakeCluster(clock, *nodes, runs_at_once=True)
        self.provider = FakeProvider(clock, *machines, kubernetes=self.cluster)
        arn = f"arn:aws:sagemaker:us-west-2:000000000000:training-plan/{PLAN_NAME}"
        period = Reservation(starts_at=A_MOMENT, ends_at=A_MOMENT + timedelta(days=PLAN_DAYS))
        self.provider.settings = self.provider.settings.replace(plan_by_group={"p5-workers": arn})
        self.provider.plans[arn] = TrainingPlan(name=PLAN_NAME, periods=(period,))
        self._numbers = itertools.count(1)

    def new_job(self) -> str:
        return f"job-{next(self._numbers):010d}"

    def cordon_as_a_person(self, name: str) -> None:
        self.cluster.set_node(name, is_cordoned=True)

    def taint_node(self, name: str) -> None:
        self.cluster.set_node(name, is_awaiting_validation=True, taints=("own=x:NoSchedule", TAINT_TEXT))

    def end_pods(self, spec: LaunchSpec, exit_code: int) -> None:
        if exit_code:
            self.cluster.fail_pods(spec.attempt.job_id, spec.attempt.attempt, exit_code=exit_code)
        else:
            self.cluster.finish_pods(spec.attempt.job_id, spec.attempt.attempt)
        for rank in range(spec.attempt.ranks):
            self.cluster.text[f"{spec.attempt.workload_name}-{rank}"] = f"one\ntwo\nrank {rank}\n"

    def create_unmanaged_pod(
        self, name: str, node_name: str, *, owner: str = "", allows_eviction: bool = True, **notes: str
    ) -> None:
        self.cluster.unmanaged.append(
            UnmanagedPod(
                namespace="default",
                name=name,
                uid=f"uid-{name}",
                node_name=node_name,
                accelerators=2,
                kind=owner,
                workload="llama" if owner else name,
                recreation={"": PodRecreation.NEVER, "HyperPodPyTorchJob": PodRecreation.BY_HYPERPOD}.get(
                    owner, PodRecreation.BY_OWNER
                ),
                consent=Consent.ALLOWED if notes.get("resume") == "allowed" else Consent.UNSET,
            )
        )
        if not allows_eviction:
            self.cluster.budgeted.add(name)

    def is_running(self, pod: UnmanagedPod) -> bool:
        return pod in self.cluster.unmanaged

    def create_disruption_budgets(self, name: str, count: int) -> None:
        if count > 1:
            self.cluster.evictions[name] = EvictionAnswer(
                EvictionStatus.NOT_NOW, "500 : more than one PodDisruptionBudget"
            )

    def delete_namespace_of_pod(self, name: str) -> None:
        self.cluster.evictions[name] = EvictionAnswer(EvictionStatus.NOT_NOW, "403 Forbidden: being terminated")

    def forge_job(self, spec: LaunchSpec, namespace: str) -> None:
        attempt = spec.attempt
        pod = ObservedPod(name="forged-0", node_name=a_node(4).name, phase=PodPhase.SUCCEEDED, exit_code=0)
        workload = ObservedWorkload(
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            namespace=namespace,
            job_uid="uid-forged",
            uid="uid-forged",
            decision_id=attempt.decision_id,
            has_completed=True,
            pods=(pod,),
        )
        self.cluster.forged.append(workload)

    def forge_pod(self, spec: LaunchSpec, node_name: str) -> None:
        attempt = spec.attempt
        claim = LabelledOwner(
            kind=ManagedKind.ATTEMPT,
            name=attempt.workload_name,
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            decision_id=attempt.decision_id,
        )
        self.create_unmanaged_pod(f"{attempt.workload_name}-0", node_name)
        forged = self.cluster.unmanaged.pop()
        self.cluster.unmanaged.append(forged.replace(namespace=attempt.namespace, claim=claim))

    def delete_job(self, spec: LaunchSpec) -> None:
        attempt = spec.attempt
        del self.cluster.jobs[CLUSTER][attempt.namespace, attempt.job_id, attempt.attempt]

    def create_kueue_workload(self, spec: LaunchSpec, status: dict[str, Any], **more: Any) -> None:
        workload = self.cluster.launched(spec.attempt.job_id, spec.attempt.attempt)
        name = f"job-{spec.attempt.workload_name}-12345"
        document = {
            "metadata": {"name": name},
            "spec": {"queueName": spec.attempt.local_queue, **more},
            "status": status,
        }
        workload.kueue = kueue_workloads.read_kueue(document)

    def install_kueue(self, *, queue: str = "", labels: bool = False) -> None:
        if labels:
            self.cluster.kueue_managed[NAMESPACE] = "its label kueue.x-k8s.io/managed-namespace=true"
        if queue:
            self.cluster.kueue_managed[NAMESPACE] = f"its LocalQueue {queue}"

    def suspend_on_creation(self, spec: LaunchSpec) -> None:
        self.cluster.kueue_managed[spec.attempt.namespace] = ""

    def disconnect_node(self, name: str) -> None:
        self.cluster.lose_node(name)

    def complete_repair(self, instance_id: str) -> None:
        self.provider.finish(instance_id)

    def pass_deep_health_check(self, instance_id: str) -> None:
        self.provider.finish_check(instance_id)

    def end_validation_job(self, name: str, *, passes: bool) -> None:
        self.cluster.check_results[name] = CheckResult.PASSED if passes else CheckResult.FAILED

    def eventually(self, condition: Callable[[], Any], what: str) -> Any:
        answer = condition()
        assert answer, what
        return answer


class LocalClusterUnderTest:
    """The adapters, on a local GPU cluster without authentication."""

    _numbers = itertools.count(1)

    def __init__(self, handle: ClusterHandle) -> None:
        self.handle = handle
        self._faults: list[str] = []
        session = boto3.session.Session(region_name="us-west-2")
        sagemaker = session.client("sagemaker", endpoint_url=handle.sagemaker_url)
        self.admin = KubernetesApi(CLUSTER, handle.kubernetes_url, handle.ca_pem, lambda _: handle.admin_token)
        self.cluster = KubernetesCluster(self, fleet=FLEET)
        self.provider = HyperPodProvider(handle.cluster_arn, sagemaker, sagemaker)

    def api(self, cluster: str) -> KubernetesApi:
        """Return the API server with the admin's credentials. `test_eks` tests Evenkeel's own access."""
        assert cluster == CLUSTER
        return self.admin

    def new_job(self) -> str:
        return f"job-{next(self._numbers):010d}"

    def cordon_as_a_person(self, name: str) -> None:
        self.admin.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})

    def taint_node(self, name: str) -> None:
        own = {"key": "own", "value": "x", "effect": "NoSchedule"}
        self.admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [own, TAINT]}})

    def end_pods(self, spec: LaunchSpec, exit_code: int) -> None:
        pass

    def create_unmanaged_pod(
        self, name: str, node_name: str, *, owner: str = "", allows_eviction: bool = True, **notes: str
    ) -> None:
        # The garbage collector deletes a pod whose owner is of a known kind and does not exist.
        reference = {"apiVersion": "example.org/v1", "kind": owner, "name": "llama", "uid": "u", "controller": True}
        labels = {"name": name, **{f"evenkeel.io/{key}": value for key, value in notes.items()}}
        container = {
            "name": "main",
            "image": "any",
            "command": ["sh", "-c", "exec sleep 60"],
            "resources": {"limits": {"nvidia.com/gpu": "2"}},
        }
        if not allows_eviction:
            budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"name": name}}}
            self.admin.create(
                "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
                {
                    "apiVersion": "policy/v1",
                    "kind": "PodDisruptionBudget",
                    "metadata": {"name": name},
                    "spec": budget,
                },
            )
        self.admin.create(
            "/api/v1/namespaces/default/pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels, **({"ownerReferences": [reference]} if owner else {})},
                "spec": {"nodeName": node_name, "terminationGracePeriodSeconds": 1, "containers": [container]},
            },
        )
        # A pending pod may always be evicted, whatever its budget.
        path = f"/api/v1/namespaces/default/pods/{name}"
        self.eventually(lambda: (self.admin.get(path) or {})["status"]["phase"] == "Running", "the pod to run")

    def is_running(self, pod: UnmanagedPod) -> bool:
        document = self.admin.get(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}") or {"status": {}}
        return bool(document["status"].get("phase") == "Running")

    def create_disruption_budgets(self, name: str, count: int) -> None:
        for number in range(count):
            budget = {"maxUnavailable": 1, "selector": {"matchLabels": {"name": name}}}
            metadata = {"name": f"{name}-{number}"}
            self.admin.create(
                "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
                {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": budget},
            )

    def delete_namespace_of_pod(self, name: str) -> None:
        space = f"ending-{next(self._numbers)}"
        self.admin.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
        pod = self.admin.get(f"/api/v1/namespaces/default/pods/{name}")
        assert pod
        self.admin.delete(f"/api/v1/namespaces/default/pods/{name}", gracePeriodSeconds=0)
        # A terminating pod keeps its terminating namespace, which refuses new objects.
        script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
        container = {"name": "main", "image": "any", "command": ["sh", "-c", script]}
        node_name = pod["spec"]["nodeName"]
        spec = {"nodeName": node_name, "terminationGracePeriodSeconds": 60, "containers": [container]}
        path = f"/api/v1/namespaces/{space}/pods"
        self.admin.create(path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        until(lambda: "ready" in _log(self.admin, f"{path}/{name}/log"), "the pod to run")
        self.admin.delete(f"/api/v1/namespaces/{space}")

    def forge_job(self, spec: LaunchSpec, namespace: str) -> None:
        job = manifests.job(
            replace(spec, attempt=spec.attempt.replace(namespace=namespace)), FLEET, object_fields.NVIDIA
        )
        pod = job["spec"]["template"]["spec"]
        pod["serviceAccountName"] = "default"
        pod["containers"][0] |= {"command": ["sh", "-c", "exit 0"], "resources": {}}
        self.admin.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job)

    def forge_pod(self, spec: LaunchSpec, node_name: str) -> None:
        metadata = {
            "name": f"{spec.attempt.workload_name}-0",
            "labels": {**manifests.labels(spec, FLEET), object_fields.INDEX_LABEL: "0"},
            "annotations": {object_fields.DECISION_NOTE: spec.attempt.decision_id},
        }
        container = {
            "name": "trainer",
            "image": "any",
            "command": ["sh", "-c", "exec sleep 60"],
            "resources": {"limits": {"nvidia.com/gpu": "2"}},
        }
        pod = {"nodeName": node_name, "terminationGracePeriodSeconds": 1, "containers": [container]}
        self.admin.create(
            f"/api/v1/namespaces/{NAMESPACE}/pods",
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod},
        )

    def delete_job(self, spec: LaunchSpec) -> None:
        path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{spec.attempt.workload_name}"
        self.admin.delete(path, propagationPolicy="Background", gracePeriodSeconds=0)

    def create_kueue_workload(self, spec: LaunchSpec, status: dict[str, Any], **more: Any) -> None:
        job = self.admin.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{spec.attempt.workload_name}")
        assert job
        workload = workload_of(job, {})
        workload["metadata"]["name"] = f"job-{spec.attempt.workload_name}-12345"
        workload["spec"] |= more
        path = f"{API}/namespaces/{NAMESPACE}/workloads"
        self.admin.create(path, workload)
        self.admin.patch(f"{path}/{workload['metadata']['name']}/status", {"status": status})

    def install_kueue(self, *, queue: str = "", labels: bool = False) -> None:
        self.admin.create(DEFINITIONS, local_queues())
        self.admin.create(DEFINITIONS, kueues_workloads())
        if labels:
            mark = {"labels": {"kueue.x-k8s.io/managed-namespace": "true"}}
            self.admin.patch(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": mark})
        if queue:
            kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue"}
            self.admin.create(_QUEUES, {**kind, "metadata": {"name": queue}, "spec": {"clusterQueue": "research"}})

    def suspend_on_creation(self, spec: LaunchSpec) -> None:
        job = manifests.job(spec, FLEET, object_fields.NVIDIA)
        job["spec"]["suspend"] = True
        self.admin.create(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", job)

    def disconnect_node(self, name: str) -> None:
        self._faults.append(self.handle.inject("node-lost", node=name)["faultId"])

    def complete_repair(self, instance_id: str) -> None:
        pass

    def pass_deep_health_check(self, instance_id: str) -> None:
        pass

    def end_validation_job(self, name: str, *, passes: bool) -> None:
        pass

    def eventually(self, condition: Callable[[], Any], what: str) -> Any:
        return until(condition, what)

    def restore(self) -> None:
        """Free every node and end every job for the next test."""
        for fault in self._faults:
            self.handle.clear(fault)
        self._remove_kueue()
        for kind in (JOB, *OPERATED):
            for item in self.admin.items(kind.path()):
                metadata = item["metadata"]
                self.admin.delete(kind.path(metadata["namespace"], metadata["name"]), propagationPolicy="Background")
        for budget in self.admin.items("/apis/policy/v1/poddisruptionbudgets"):
            metadata = budget["metadata"]
            self.admin.delete(
                f"/apis/policy/v1/namespaces/{metadata['namespace']}/poddisruptionbudgets/{metadata['name']}"
            )
        for pod in self.admin.items("/api/v1/pods"):
            metadata = pod["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            self.admin.delete(path, gracePeriodSeconds=0)
        for node in self.admin.items("/api/v1/nodes"):
            name = node["metadata"]["name"]
            is_tainted = node["metadata"]["labels"]["sagemaker.amazonaws.com/instance-group-name"] == "p5-tainted"
            spec = {"unschedulable": None, "taints": [TAINT] if is_tainted else None}
            mark = {"annotations": {"evenkeel.io/incident": None}}
            self.admin.patch(f"/api/v1/nodes/{name}", {"metadata": mark, "spec": spec})

    def _remove_kueue(self) -> None:
        if self.admin.get(f"{DEFINITIONS}/{local_queues()['metadata']['name']}") is None:
            return
        for kind in ("localqueues", "workloads"):
            path = f"{API}/namespaces/{NAMESPACE}/{kind}"
            for document in self.admin.items(path):
                self.admin.delete(f"{path}/{document['metadata']['name']}")
            self.admin.delete(f"{DEFINITIONS}/{kind}.kueue.x-k8s.io")
        mark = {"labels": {"kueue.x-k8s.io/managed-namespace": None}}
        self.admin.patch(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": mark})


def free_nodes(bench: ClusterUnderTest, count: int = 1) -> list[KubernetesNode]:
    """Wait for schedulable nodes of the plain group and return some."""

    def enough() -> list[KubernetesNode]:
        kubernetes_nodes = [
            node for node in bench.cluster.nodes(CLUSTER) if node.pool == "p5-workers" and node.is_schedulable
        ]
        return kubernetes_nodes[:count] if len(kubernetes_nodes) >= count else []

    nodes: list[KubernetesNode] = bench.eventually(enough, f"{count} free nodes")
    return nodes


def tainted_machine(bench: ClusterUnderTest) -> ProviderNode:
    """Return a running node of the group whose nodes start with the taint."""

    def running() -> ProviderNode | None:
        group_nodes = [node for node in bench.provider.nodes() if node.instance_group == "p5-tainted"]
        return next((node for node in group_nodes if node.status == "Running"), None)

    machine: ProviderNode = bench.eventually(running, "a running machine")
    return machine


def a_launch(
    bench: ClusterUnderTest,
    nodes: list[KubernetesNode],
    script: str = "exec sleep 60",
    local_queue: str = "",
    **spec: Any,
) -> LaunchSpec:
    """Return the launch spec of attempt 1 of a new job on these nodes."""
    job = JobSpec.model_validate(
        {
            "name": "contract",
            "image": "any",
            "command": ("sh", "-c", script),
            "nodes": len(nodes),
            "accelerators_per_node": 8,
            "grace_seconds": 1,
            **spec,
        }
    )
    attempt = Attempt(
        job_id=bench.new_job(),
        attempt=1,
        kind=job.kind,
        state=AttemptState.STARTING,
        cluster=CLUSTER,
        namespace=NAMESPACE,
        pool="p5-workers",
        nodes=(),
        local_queue=local_queue,
        node_names=() if local_queue else tuple(node.name for node in nodes),
        size=job.nodes,
        accelerators=job.nodes * job.accelerators_per_node,
        cpu_millis=job.nodes * job.per_node.cpu_millis,
        memory_mib=job.nodes * job.per_node.memory_mib,
        admitted_at=A_MOMENT,
        decision_id="dec-contract",
    )
    return LaunchSpec(job, attempt, "", "trainer")


def seen(bench: ClusterUnderTest, spec: LaunchSpec) -> ObservedWorkload:
    """Read the workload of a launch."""
    return bench.cluster.workload(spec.attempt)


def restored_fleet(local: ClusterHandle, kind: str) -> Iterator[ClusterUnderTest]:
    """Yield the fleet of this kind, and restore it afterwards."""
    if kind == "twin":
        yield FakeClusterUnderTest()
        return
    bench = LocalClusterUnderTest(local)
    yield bench
    bench.restore()


def _log(api: KubernetesApi, path: str) -> str:
    """Return a pod's log; empty before the pod started."""
    with contextlib.suppress(EvenkeelError):
        return api.text(path)
    return ""
