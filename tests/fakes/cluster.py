"""Kubernetes in a dictionary. A test sets the health of nodes; pods start and end with their nodes."""

import itertools
import re
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from evenkeel.domain.external.kueue_status import KueueCondition, KueueStatus
from evenkeel.domain.external.unmanaged_workloads import LabelledOwner, ManagedKind, UnmanagedPod
from evenkeel.domain.jobs.attempt import Attempt, ObservedPod, ObservedWorkload, PodPhase
from evenkeel.domain.nodes import AWAITING_VALIDATION_TAINT, KARPENTER_LABEL, KubernetesNode
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.domain.recovery.validation import CheckResult
from evenkeel.domain.resources import Resources, sum_by_node
from evenkeel.ports import (
    CheckSpec,
    ClusterCordonResult,
    EvictionAnswer,
    EvictionStatus,
    KubernetesPermission,
    LaunchResult,
    LaunchSpec,
    LivePods,
    LogTail,
    NotFound,
    PodGroup,
    PodsInUse,
    Refused,
    UncordonResult,
    Unreachable,
)
from tests.fakes.admission_checks import FakeAdmissionChecks
from tests.fakes.capacity import FakeCapacity
from tests.fakes.system import FixedClock
from tests.fakes.unmanaged_jobs import FakeUnmanagedJobs

LOG_TIME = "2026-11-03T10:00:00.000000000Z"
"""The time of each line of a log."""
CLUSTER = "research-eks"
GPUS = 8
TAINT_TEXT = f"{AWAITING_VALIDATION_TAINT}=true:NoSchedule"
_ALIVE = (PodPhase.PENDING, PodPhase.RUNNING, PodPhase.UNKNOWN)


def instance_id(number: int) -> str:
    """Return a valid instance id that ends in this number."""
    return f"i-{number:017x}"


def a_node(number: int = 1, **changes: Any) -> KubernetesNode:
    """Return a healthy HyperPod node with eight GPUs."""
    machine = instance_id(number)
    facts: dict[str, Any] = {
        "cluster": CLUSTER,
        "name": f"hyperpod-{machine}",
        "instance_id": machine,
        "hyperpod_cluster_id": "abcdefghijkl",
        "pool": "p5-workers",
        "instance_type": "ml.p5.48xlarge",
        "zone": "us-west-2a",
        "boot_id": f"boot-{machine}-1",
        "resource_version": "1",
        "is_ready": True,
        "accelerators": GPUS,
        "accelerator_resource": "nvidia.com/gpu",
        "efa": 32,
        "huge_pages_mib": 10_256,
        "labels": {"kubernetes.io/hostname": f"hyperpod-{machine}"},
    }
    return KubernetesNode.model_validate({**facts, **changes})


@dataclass
class FakeWorkload:
    """The Job and pods of an attempt."""

    spec: LaunchSpec
    uid: str
    pods: list[ObservedPod] = field(default_factory=list)
    is_there: bool = True
    """Whether the Job object exists; pods may outlive it."""
    is_suspended: bool = False
    kueue: KueueStatus | None = None
    """Status of the attempt in Kueue, set by a test."""
    parallelism: int = 0
    """Pods of the Job. Kueue lowers it."""
    published_size: int = 0
    """Number that the pods were told; 0 if they wait for it, or need none."""


Name = tuple[str, str, int]
"""Namespace, job id, attempt."""


class FakeCluster(FakeAdmissionChecks, FakeCapacity, FakeUnmanagedJobs):
    """All Kubernetes clusters of a fleet. Pods start Pending; a test runs and ends them, or sets `runs_at_once`."""

    def __init__(self, clock: FixedClock, *nodes: KubernetesNode, runs_at_once: bool = False) -> None:
        FakeAdmissionChecks.__init__(self)
        FakeCapacity.__init__(self)
        FakeUnmanagedJobs.__init__(self)
        self.clock = clock
        self.runs_at_once = runs_at_once
        self.by_name: dict[tuple[str, str], KubernetesNode] = {(node.cluster, node.name): node for node in nodes}
        self.jobs: dict[str, dict[Name, FakeWorkload]] = {}
        self.text: dict[str, str] = {}
        """Log of each pod by name."""
        self.foreign_accelerators: dict[str, int] = {}
        self.bound_requests: dict[str, Resources] = {}
        """Node name → requests of the pods of DaemonSets."""
        """Accelerators in use by pods that are not ours, by node name."""
        self.unmanaged: list[UnmanagedPod] = []
        """Pods that are not ours."""
        self.forged: list[ObservedWorkload] = []
        """Jobs and pods of other people with the labels of an attempt."""
        self.budgeted: set[str] = set()
        """Names of pods whose disruption budget allows no eviction."""
        self.evictions: dict[str, EvictionAnswer] = {}
        """How the server answers the eviction of a pod, by its name."""
        self.ended_at_once: set[str] = set()
        """Names of our pods that were stopped without any grace."""
        self.kueue_managed: dict[str, str] = {}
        """Namespaces managed by Kueue, with the reason. Kueue suspends every Job there."""
        self.refused_rights: set[KubernetesPermission] = set()
        """Permissions that the caller's role lacks."""
        self.checks: dict[str, CheckSpec] = {}
        """Test jobs, by name."""
        self.check_results: dict[str, CheckResult] = {}
        self.every_check = CheckResult.PASSED
        """Result of validation jobs without a result of their own."""
        self.calls: list[tuple[Any, ...]] = []
        """Effects that changed something: (method, name, …)."""
        self.changes: deque[str] = deque()
        """Events of the next watch."""
        self.watch_errors: dict[str, str] = {}
        """By kind of object: why its watch is broken."""
        self.unreadable_lists: dict[str, set[str]] = {}
        """By cluster: the lists that get no answer (`nodes`, `workloads`, …); `*` for all."""
        self.idle_seconds = 1.0
        """How far a watch with nothing to report moves the clock."""
        self._versions = itertools.count(2)
        self._uids = itertools.count(1)

    # ------------------------------------------------------------ the port

    def server_version(self, cluster: str) -> str:
        return "v1.33.0"

    def missing_rights(self, cluster: str, rights: Iterable[KubernetesPermission]) -> tuple[KubernetesPermission, ...]:
        return tuple(right for right in rights if right in self.refused_rights)

    def _answer(self, cluster: str, what: str) -> None:
        """Raise if a test made this cluster, or this list, unreachable."""
        lists = self.unreadable_lists.get(cluster, set())
        if what in lists or "*" in lists:
            raise Unreachable(f"{what} of {cluster}: no answer")

    def nodes(self, cluster: str) -> tuple[KubernetesNode, ...]:
        self._answer(cluster, "nodes")
        return tuple(node for (where, _), node in sorted(self.by_name.items()) if where == cluster)

    def node(self, cluster: str, name: str) -> KubernetesNode | None:
        return self.by_name.get((cluster, name))

    def cordon(
        self, cluster: str, name: str, incident_id: str | None, uncordoned_resource_version: str = ""
    ) -> ClusterCordonResult:
        node = self.node(cluster, name)
        if node is None:
            return ClusterCordonResult.GONE
        if node.is_cordoned:
            if node.incident_id is None:
                return ClusterCordonResult.BY_PERSON
            return (
                ClusterCordonResult.ALREADY_CORDONED
                if node.incident_id == incident_id
                else ClusterCordonResult.BY_OTHER_INCIDENT
            )
        self.set_node(name, cluster, is_cordoned=True, incident_id=incident_id)
        self.calls.append(("cordon", name, incident_id))
        return ClusterCordonResult.CORDONED

    def return_to_service(self, cluster: str, name: str, incident_id: str | None) -> UncordonResult:
        node = self.node(cluster, name)
        if node is None:
            return UncordonResult.GONE
        if node.is_cordoned and (incident_id is None or node.incident_id != incident_id):
            return UncordonResult.CORDONED_BY_OTHER
        if not node.is_cordoned and not node.is_awaiting_validation:
            return UncordonResult.ALREADY_FREE
        taints = tuple(taint for taint in node.taints if not taint.startswith(f"{AWAITING_VALIDATION_TAINT}="))
        self.set_node(name, cluster, is_cordoned=False, incident_id=None, is_awaiting_validation=False, taints=taints)
        self.calls.append(("return_to_service", name, incident_id))
        return UncordonResult.RELEASED

    def remove_manual_cordon(self, cluster: str, name: str) -> UncordonResult:
        node = self.node(cluster, name)
        if node is None:
            return UncordonResult.GONE
        if not node.is_cordoned:
            return UncordonResult.ALREADY_FREE
        if node.incident_id is not None:
            return UncordonResult.CORDONED_BY_OTHER
        self.set_node(name, cluster, is_cordoned=False)
        self.calls.append(("remove_manual_cordon", name))
        return UncordonResult.RELEASED

    def delete_node(self, cluster: str, name: str, instance_id: str) -> RepairAnswer:
        node = self.node(cluster, name)
        if node is None or node.instance_id != instance_id:
            return RepairAnswer.NO_SUCH_NODE
        if KARPENTER_LABEL not in node.labels:
            raise Refused(
                f"node {name} of {cluster} does not belong to Karpenter: no controller would terminate its instance"
            )
        self.calls.append(("delete_node", name))
        self.remove_node(name, cluster)
        return RepairAnswer.ACCEPTED

    def start_check(self, spec: CheckSpec) -> None:
        if spec.name not in self.checks:
            self.checks[spec.name] = spec
            self.calls.append(("start_check", spec.node_name))

    def check_result(self, cluster: str, namespace: str, name: str) -> CheckResult:
        return self.check_results.get(name, self.every_check) if name in self.checks else CheckResult.PENDING

    def launch(self, spec: LaunchSpec) -> tuple[LaunchResult, str]:
        attempt = spec.attempt
        cluster_jobs = self.jobs.setdefault(attempt.cluster, {})
        name = (attempt.namespace, attempt.job_id, attempt.attempt)
        if name in cluster_jobs and cluster_jobs[name].is_there:
            if cluster_jobs[name].spec.attempt.decision_id != attempt.decision_id:
                raise Refused(f"{attempt.workload_name} was not created by this launch")
            return LaunchResult.ALREADY_THERE, cluster_jobs[name].uid
        if attempt.namespace in self.kueue_managed and not attempt.local_queue:
            raise Refused(f"{attempt.workload_name} was suspended at its creation")
        workload = FakeWorkload(spec, f"uid-{next(self._uids)}")
        workload.is_suspended = bool(attempt.local_queue)
        workload.parallelism = attempt.ranks
        for rank, node_name in enumerate(attempt.node_names):
            node = self.node(attempt.cluster, node_name)
            fits = node is not None and node.is_schedulable
            runs = self.runs_at_once and fits
            workload.pods.append(
                ObservedPod(
                    name=f"{attempt.workload_name}-{rank}",
                    node_name=node_name if fits else "",
                    phase=PodPhase.RUNNING if runs else PodPhase.PENDING,
                    reason="" if fits else "Unschedulable",
                )
            )
        cluster_jobs[name] = workload
        self.calls.append(("launch", attempt.workload_name))
        self._changed("job", "pod")
        return LaunchResult.CREATED, workload.uid

    def publish_size(self, attempt: Attempt) -> None:
        self._answer(attempt.cluster, "publish_size")
        workload = self._own(attempt)
        if workload is None or not workload.is_there:
            raise Refused(f"{attempt.workload_name} is gone")
        if workload.published_size not in (0, attempt.ranks):
            raise Refused(f"the ConfigMap {attempt.workload_name} has another number of pods than {attempt.ranks}")
        if not workload.published_size:
            workload.published_size = attempt.ranks
            self.calls.append(("publish_size", attempt.workload_name, attempt.ranks))
            workload.pods = [
                pod.replace(phase=PodPhase.RUNNING, reason="") if pod.phase is PodPhase.PENDING else pod
                for pod in workload.pods
            ]
            self._changed("pod")

    def workload(self, attempt: Attempt) -> ObservedWorkload:
        self._answer(attempt.cluster, "workload")
        fake_workload = self.jobs.get(attempt.cluster, {}).get((attempt.namespace, attempt.job_id, attempt.attempt))
        return attempt.own_workload((*self.forged, *([_seen(fake_workload)] if fake_workload else ())))

    def workloads(self, cluster: str) -> tuple[ObservedWorkload, ...]:
        self._answer(cluster, "workloads")
        return self._listed(cluster)

    def _listed(self, cluster: str) -> tuple[ObservedWorkload, ...]:
        workloads = (_seen(workload) for _, workload in sorted(self.jobs.get(cluster, {}).items()))
        return (*self.forged, *workloads)

    def pods_in_use(self, cluster: str) -> PodsInUse:
        return PodsInUse(self.workloads(cluster), self.resources_in_use(cluster, PodGroup.MOVABLE))

    def live_pods(self, cluster: str) -> LivePods:
        movable, bound = (self.resources_in_use(cluster, group) for group in (PodGroup.MOVABLE, PodGroup.BOUND))
        return LivePods(movable, bound, self.pods(cluster))

    def resources_in_use(self, cluster: str, pods: PodGroup = PodGroup.ALL) -> Mapping[str, Resources]:
        self._answer(cluster, "resources_in_use")
        bound = self.bound_requests if pods is not PodGroup.MOVABLE else {}
        movable = self.requested(cluster) if pods is not PodGroup.BOUND else {}
        return sum_by_node(itertools.chain(bound.items(), movable.items()))

    def requested(self, cluster: str) -> dict[str, Resources]:
        """Return the requests of live pods, by node name."""
        unmanaged = ((pod.node_name, Resources(accelerators=pod.accelerators)) for pod in self.unmanaged_pods(cluster))
        own = (
            (pod.node_name, workload.spec.attempt.per_node)
            for workload in self.jobs.get(cluster, {}).values()
            for pod in workload.pods
            if pod.node_name and pod.phase in _ALIVE
        )
        foreign = ((name, Resources(accelerators=count)) for name, count in self.foreign_accelerators.items())
        return sum_by_node(itertools.chain(foreign, unmanaged, own))

    def accelerators_in_use(self, cluster: str) -> dict[str, int]:
        """Return the accelerators that live pods request, by node name."""
        return {name: amounts.accelerators for name, amounts in self.requested(cluster).items()}

    def pods(self, cluster: str, on: str | None = None) -> tuple[UnmanagedPod, ...]:
        self._answer(cluster, "pods")
        managed = (pod for workload in self.jobs.get(cluster, {}).values() for pod in _as_listed(workload))
        return (*self.unmanaged_pods(cluster, on), *(pod for pod in managed if on is None or pod.node_name == on))

    def unmanaged_pods(self, cluster: str, on: str | None = None) -> tuple[UnmanagedPod, ...]:
        """Return the unmanaged pods that a test created."""
        pods = (pod for pod in self.unmanaged if (cluster, pod.node_name) in self.by_name or not pod.node_name)
        return tuple(pod for pod in pods if on is None or pod.node_name == on)

    def kueue_namespaces(self, cluster: str) -> Mapping[str, str]:
        self._answer(cluster, "kueue_namespaces")
        return dict(self.kueue_managed)

    def evict(self, cluster: str, pod: UnmanagedPod) -> EvictionAnswer:
        unmanaged_pod = next(
            (unmanaged_pod for unmanaged_pod in self.unmanaged_pods(cluster) if unmanaged_pod.uid == pod.uid), None
        )
        if unmanaged_pod is None:
            return EvictionAnswer(EvictionStatus.GONE)
        if unmanaged_pod.name in self.evictions:
            self.calls.append(("ask to evict", unmanaged_pod.name))
            return self.evictions[unmanaged_pod.name]
        if unmanaged_pod.name in self.budgeted:
            return EvictionAnswer(EvictionStatus.NOT_NOW, "429 TooManyRequests: its budget allows no eviction")
        self.calls.append(("evict", unmanaged_pod.name))
        self.unmanaged.remove(unmanaged_pod)
        self._changed("pod")
        return EvictionAnswer(EvictionStatus.EVICTED)

    def stop(self, attempt: Attempt, grace_seconds: int, nodes_without_grace: Container[str] = ()) -> None:
        workload = self._own(attempt)
        if workload is None:
            return
        self.calls.append(("stop", attempt.workload_name, grace_seconds))
        self.ended_at_once |= {pod.name for pod in workload.pods if pod.node_name in nodes_without_grace}
        workload.is_there = False
        workload.pods = [
            pod.replace(is_terminating=True) for pod in workload.pods if self._is_unreachable(attempt.cluster, pod)
        ]
        self._forget_empty(attempt.cluster)
        self._changed("job", "pod")

    def force_delete_pods(self, attempt: Attempt, node_names: Iterable[str]) -> None:
        workload = self._own(attempt)
        names = set(node_names)
        if workload is None or not any(pod.node_name in names for pod in workload.pods):
            return
        workload.pods = [pod for pod in workload.pods if pod.node_name not in names]
        self.calls.append(("force_delete_pods", attempt.workload_name, tuple(sorted(names))))
        self._forget_empty(attempt.cluster)
        self._changed("pod")

    def logs(self, attempt: Attempt, rank: int, tail_lines: int | None, *, timestamps: bool = False) -> str:
        workload = self._own(attempt)
        name = f"{attempt.workload_name}-{rank}"
        if workload is None or name not in {pod.name for pod in workload.pods}:
            raise NotFound(f"no pod {name} in {attempt.namespace}")
        text = self.text.get(name, "")
        if timestamps:
            text = "\n".join(f"{LOG_TIME} {line}" for line in text.splitlines())
        return text[:65_536] if tail_lines is None else "\n".join(text.splitlines()[-tail_lines:])

    def log_tails(self, attempt: Attempt, lines: int, max_pods: int, within_seconds: float) -> Mapping[int, LogTail]:
        workload = self._own(attempt)
        tails = {}
        for rank, pod in enumerate(workload.pods if workload else ()):
            is_read = rank < max_pods and not self._is_out_of_reach(attempt.cluster, pod)
            last_lines = re.findall(r"[^\n]*\n|[^\n]+", self.text.get(pod.name, ""))[-lines:]
            text = "".join(f"{LOG_TIME} {line}" for line in last_lines)
            why = "" if is_read else "no answer: its node is out of reach"
            tails[rank] = LogTail(pod_name=pod.name, node_name=pod.node_name, text=text if is_read else "", why=why)
        return tails

    def _is_out_of_reach(self, cluster: str, pod: ObservedPod) -> bool:
        node = self.node(cluster, pod.node_name)
        return node is None or not node.is_ready

    def _own(self, attempt: Attempt) -> FakeWorkload | None:
        workload = self.jobs.get(attempt.cluster, {}).get((attempt.namespace, attempt.job_id, attempt.attempt))
        return workload if workload and attempt.owns(_seen(workload)) else None

    def watch(
        self,
        cluster: str,
        on_change: Callable[[str], None],
        *,
        until: Callable[[], bool],
        on_state: Callable[[str, str], None] | None = None,
    ) -> None:
        if on_state is not None:
            for kind in ("node", "pod", "job"):
                on_state(kind, self.watch_errors.get(kind, ""))
        while not until():
            if self.changes:
                on_change(self.changes.popleft())
            else:
                self.clock.advance(self.idle_seconds)

    # ------------------------------------------------------------ for tests

    def kueue_says(self, job_id: str, attempt: int, *conditions: KueueCondition, **facts: Any) -> None:
        """Set the Kueue status of an attempt."""
        workload = self.launched(job_id, attempt)
        known = {"name": f"job-{job_id}-a{attempt}", "queue": workload.spec.attempt.local_queue}
        workload.kueue = KueueStatus.model_validate(known | {"conditions": conditions} | facts)
        self._changed("job")

    def kueue_admits(self, job_id: str, attempt: int, *node_names: str, **facts: Any) -> None:
        """Admit an attempt, as Kueue does: its pods run on these nodes, once they know their world size."""
        now = self.clock.now()
        conditions = tuple(
            KueueCondition(type=kind, is_true=True, changed_at=now) for kind in ("QuotaReserved", "Admitted")
        )
        self.kueue_says(job_id, attempt, *conditions, cluster_queue="research", flavors=("h100",), **facts)
        workload = self.launched(job_id, attempt)
        workload.is_suspended, workload.parallelism = False, len(node_names)
        is_waiting = bool(workload.spec.attempt.requested_size) and not workload.published_size
        workload.pods = [
            ObservedPod(
                name=f"{job_id}-a{attempt}-{rank}",
                node_name=name,
                phase=PodPhase.PENDING if is_waiting else PodPhase.RUNNING,
                reason="CreateContainerConfigError" if is_waiting else "",
            )
            for rank, name in enumerate(node_names)
        ]
        self._changed("pod")

    def kueue_evicts(self, job_id: str, attempt: int, reason: str = "Preempted", message: str = "for another") -> None:
        """Evict an attempt, as Kueue does."""
        now = self.clock.now()
        workload = self.launched(job_id, attempt)
        workload.pods, workload.is_suspended = [], True
        workload.parallelism = workload.spec.attempt.ranks
        conditions = (
            KueueCondition(type="QuotaReserved", is_true=False, reason="PendingEvaluation", changed_at=now),
            KueueCondition(type="Admitted", is_true=False, reason="NoReservation", changed_at=now),
            KueueCondition(type="Evicted", is_true=True, reason=reason, message=message, changed_at=now),
        )
        self.kueue_says(job_id, attempt, *conditions, was_admitted=True)

    def add_node(self, node: KubernetesNode) -> None:
        self.by_name[node.cluster, node.name] = node
        self._changed("node")

    def set_node(self, name: str, cluster: str = CLUSTER, **changes: Any) -> KubernetesNode:
        """Change a node as its controllers or a person would."""
        node = self.by_name[cluster, name].replace(**changes, resource_version=str(next(self._versions)))
        self.by_name[cluster, name] = node
        self._changed("node")
        return node

    def lose_node(self, name: str, cluster: str = CLUSTER) -> None:
        """Disconnect a node: it is NotReady from now, and its pods continue to run."""
        self.set_node(name, cluster, is_ready=False, not_ready_since=self.clock.now(), ready_since=None)

    def kill_node(self, name: str, cluster: str = CLUSTER) -> None:
        """Stop a machine: it is NotReady from now, and its pods have failed."""
        self.lose_node(name, cluster)
        self._end_pods_on(cluster, name)

    def ready_node(self, name: str, cluster: str = CLUSTER, **changes: Any) -> None:
        """Bring a node back to Ready."""
        self.set_node(name, cluster, is_ready=True, not_ready_since=None, ready_since=self.clock.now(), **changes)

    def remove_node(self, name: str, cluster: str = CLUSTER) -> None:
        """Remove a machine from the cluster, with its pods."""
        self.by_name.pop((cluster, name), None)
        for workload in self.jobs.get(cluster, {}).values():
            workload.pods = [pod for pod in workload.pods if pod.node_name != name]
        self._forget_empty(cluster)
        self._changed("node", "pod")

    def set_pods(self, job_id: str, attempt: int, phase: PodPhase, *ranks: int, **changes: Any) -> None:
        """Set phase (and exit code, reason, …) of some ranks, or of all."""
        workload = self.launched(job_id, attempt)
        workload.pods = [
            pod.replace(phase=phase, **changes) if not ranks or rank in ranks else pod
            for rank, pod in enumerate(workload.pods)
        ]
        self._changed("pod", "job")

    def run_pods(self, job_id: str, attempt: int) -> None:
        self.set_pods(job_id, attempt, PodPhase.RUNNING)

    def finish_pods(self, job_id: str, attempt: int) -> None:
        """End every pod with exit code 0."""
        self.set_pods(job_id, attempt, PodPhase.SUCCEEDED, exit_code=0)

    def fail_pods(self, job_id: str, attempt: int, *ranks: int, exit_code: int = 1, reason: str = "Error") -> None:
        """End some pods, or all, with this exit code."""
        self.set_pods(job_id, attempt, PodPhase.FAILED, *ranks, exit_code=exit_code, reason=reason)

    def launched(self, job_id: str, attempt: int) -> FakeWorkload:
        """Return the workload of an attempt in any cluster and namespace."""
        for cluster_jobs in self.jobs.values():
            for (_, job, number), workload in cluster_jobs.items():
                if (job, number) == (job_id, attempt):
                    return workload
        raise KeyError(f"{job_id}-a{attempt}")

    def _is_unreachable(self, cluster: str, pod: ObservedPod) -> bool:
        node = self.node(cluster, pod.node_name)
        return node is not None and not node.is_ready

    def _end_pods_on(self, cluster: str, name: str) -> None:
        for workload in self.jobs.get(cluster, {}).values():
            workload.pods = [
                pod.replace(phase=PodPhase.FAILED, exit_code=137, reason="Error")
                if pod.node_name == name and pod.phase in _ALIVE
                else pod
                for pod in workload.pods
            ]

    def _forget_empty(self, cluster: str) -> None:
        cluster_jobs = self.jobs.get(cluster, {})
        for name in [name for name, workload in cluster_jobs.items() if not workload.pods and not workload.is_there]:
            del cluster_jobs[name]

    def _changed(self, *kinds: str) -> None:
        self.changes.extend(kinds)


def _seen(workload: FakeWorkload) -> ObservedWorkload:
    pods = workload.pods
    has_pods = len(pods) == len(workload.spec.attempt.node_names) or bool(workload.spec.attempt.local_queue)
    return ObservedWorkload(
        job_id=workload.spec.attempt.job_id,
        attempt=workload.spec.attempt.attempt,
        namespace=workload.spec.attempt.namespace,
        job_uid=workload.uid,
        decision_id=workload.spec.attempt.decision_id,
        uid=workload.uid if workload.is_there else "",
        is_suspended=workload.is_there and workload.is_suspended,
        parallelism=workload.parallelism if workload.is_there else 0,
        kueue=workload.kueue if workload.is_there else None,
        has_completed=workload.is_there
        and bool(pods)
        and has_pods
        and all(pod.phase is PodPhase.SUCCEEDED for pod in pods),
        # A pod whose node was deleted counts as failed: Kubernetes creates no new pod.
        has_failed=workload.is_there and (not has_pods or any(pod.phase is PodPhase.FAILED for pod in pods)),
        pods=tuple(pods),
    )


def _as_listed(workload: FakeWorkload) -> Iterator[UnmanagedPod]:
    """Return an attempt's live pods, as in a list of all pods."""
    attempt = workload.spec.attempt
    claim = LabelledOwner(
        kind=ManagedKind.ATTEMPT,
        name=attempt.workload_name,
        job_id=attempt.job_id,
        attempt=attempt.attempt,
        controller=attempt.workload_name,
        controller_uid=workload.uid,
        decision_id=attempt.decision_id,
    )
    for pod in workload.pods:
        if pod.phase in _ALIVE:
            yield UnmanagedPod(
                namespace=attempt.namespace,
                name=pod.name,
                uid=f"{workload.uid}-{pod.name}",
                node_name=pod.node_name,
                accelerators=workload.spec.job_spec.accelerators_per_node,
                kind="Job",
                workload=attempt.workload_name,
                claim=claim,
            )
