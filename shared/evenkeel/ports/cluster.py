"""The Kubernetes clusters of the fleet: nodes, cordons, Jobs, pods, logs and watches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from evenkeel.domain.capacity import efa
from evenkeel.ports.admission_checks import AdmissionChecks
from evenkeel.ports.rented_capacity import RentedCapacity
from evenkeel.ports.unmanaged_jobs import UnmanagedJobs

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from evenkeel.domain.capacity.efa import EfaRequest
    from evenkeel.domain.checkpoints import Distrust
    from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
    from evenkeel.domain.jobs.attempt import Attempt, ObservedWorkload, ResumePoint
    from evenkeel.domain.jobs.spec import JobSpec
    from evenkeel.domain.nodes import KubernetesNode
    from evenkeel.domain.recovery.repair_requests import RepairAnswer
    from evenkeel.domain.recovery.validation import CheckResult
    from evenkeel.domain.resources import Resources
    from evenkeel.ports.permissions import KubernetesPermission


class PodGroup(StrEnum):
    """The live pods that count.

    The groups `BOUND` and `MOVABLE` have no pod in common, and every pod is in one of them.

    Source of the label: the DaemonSet controller, `CreatePodTemplate` in pkg/controller/daemon/util of Kubernetes.
    """

    ALL = ""
    BOUND = "pod-template-generation"
    """Pods with the label of DaemonSets' pods: most pods of a large cluster. They change only with a DaemonSet."""
    MOVABLE = "!pod-template-generation"


class PodsInUse(NamedTuple):
    """The live pods of attempts, and the requests of movable pods."""

    attempts: tuple[ObservedWorkload, ...]
    """The pods, grouped by the workload that controls them. The workloads themselves are not read."""
    movable: Mapping[str, Resources]
    """Requests of live pods of the group `MOVABLE`, by node name. Pods outside Evenkeel count too."""


class LivePods(NamedTuple):
    """All live pods of a cluster, from one list."""

    movable: Mapping[str, Resources]
    """Requests of the group `MOVABLE`, by node name."""
    bound: Mapping[str, Resources]
    """Requests of the group `BOUND`, by node name."""
    pods: tuple[UnmanagedPod, ...]
    """As `Cluster.pods` returns them."""


class ClusterCordonResult(StrEnum):
    """Result of a cordon."""

    CORDONED = "CORDONED"
    ALREADY_CORDONED = "ALREADY_CORDONED"
    """The node has this incident's cordon annotation: unchanged."""
    BY_PERSON = "BY_PERSON"
    """A person cordoned the node: unchanged."""
    BY_OTHER_INCIDENT = "BY_OTHER_INCIDENT"
    GONE = "GONE"


class UncordonResult(StrEnum):
    """Result of removing a cordon."""

    RELEASED = "RELEASED"
    ALREADY_FREE = "ALREADY_FREE"
    CORDONED_BY_OTHER = "CORDONED_BY_OTHER"
    """A person or another incident cordoned the node: unchanged."""
    GONE = "GONE"


@dataclass(frozen=True, slots=True)
class ProofRules:
    """Rules by which rank 0 proves checkpoints on storage that no function can read."""

    distrust: Distrust | None
    accepts_convention: bool
    may_start_over: bool
    damaged: tuple[ResumePoint, ...] = ()
    """Checkpoints that an earlier attempt could not read."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Everything that the Kubernetes Job of an attempt is made from."""

    job_spec: JobSpec
    attempt: Attempt
    resume_from: str
    """Manifest key relative to the checkpoint URI; empty = start at step 0."""
    service_account: str
    proof_rules: ProofRules | None = None
    """If given, rank 0 chooses the resume point by these rules, and `resume_from` is not used."""
    avoid: tuple[str, ...] = ()
    """Nodes that the pods must not use, if the attempt names no nodes."""
    accelerator_resource: str = ""
    """Resource name of the accelerators; empty = `nvidia.com/gpu`."""
    network: EfaRequest = efa.NO_EFA
    """EFA resources that each pod requests."""


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """Everything that a node's test job is made from."""

    cluster: str
    namespace: str
    name: str
    node_name: str
    image: str
    command: tuple[str, ...]
    accelerators: int
    accelerator_resource: str
    deadline_seconds: int


class LaunchResult(StrEnum):
    """Result of a launch."""

    CREATED = "CREATED"
    ALREADY_THERE = "ALREADY_THERE"


class EvictionStatus(StrEnum):
    """Result of an eviction."""

    EVICTED = "EVICTED"
    """The pod stops within its own grace period. Its controller may create another pod of the same name."""
    GONE = "GONE"
    NOT_NOW = "NOT_NOW"
    """A disruption budget allows no eviction now, the server is busy, or the pod's namespace is being deleted."""
    REFUSED = "REFUSED"
    """Access control or an admission webhook refuses it. A retry fails until that changes."""
    NO_ANSWER = "NO_ANSWER"
    """Whether the eviction took effect is unknown. A repeat is harmless."""


@dataclass(frozen=True, slots=True)
class EvictionAnswer:
    """The answer to one eviction. A failure is an answer, not an error, so that a drain continues with other pods."""

    result: EvictionStatus
    why: str = ""
    """The server's message; empty for EVICTED and GONE."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The last log lines of a pod, or the reason why they could not be read."""

    pod_name: str
    node_name: str
    text: str = ""
    why: str = ""
    """Why the log could not be read; empty if it was read."""


class Cluster(AdmissionChecks, RentedCapacity, UnmanagedJobs, Protocol):
    """The Kubernetes clusters of the fleet, by name, with the operations that Evenkeel needs."""

    def server_version(self, cluster: str) -> str:
        """Return the API server's version in its own spelling: `v1.33.1-eks-595af52`."""
        ...

    def missing_rights(self, cluster: str, rights: Iterable[KubernetesPermission]) -> tuple[KubernetesPermission, ...]:
        """Return the rights that the caller's own identity lacks, in the given order. Changes nothing."""
        ...

    def nodes(self, cluster: str) -> tuple[KubernetesNode, ...]:
        """Return all nodes."""
        ...

    def node(self, cluster: str, name: str) -> KubernetesNode | None:
        """Return one node; None if it does not exist."""
        ...

    def cordon(
        self, cluster: str, name: str, incident_id: str | None, uncordoned_resource_version: str = ""
    ) -> ClusterCordonResult:
        """Make a node unschedulable. With an incident, also set Evenkeel's cordon annotation; with None, do not.

        Idempotent: yes, because it patches the version of the node that it read, or that the caller saw.

        Args:
            cluster: Kubernetes cluster.
            name: Name of the node.
            incident_id: The incident; None for a person's cordon.
            uncordoned_resource_version: Version of the node object in which the caller read it without a cordon. If the
                node has changed since, it is read again. Empty = read it first.
        """
        ...

    def return_to_service(self, cluster: str, name: str, incident_id: str | None) -> UncordonResult:
        """Remove the cordon of `incident_id` and the awaiting-validation taint.

        With None, only remove the taint, and only if the node is not cordoned. Idempotent: yes, a node without them is
        ALREADY_FREE.
        """
        ...

    def remove_manual_cordon(self, cluster: str, name: str) -> UncordonResult:
        """Remove a person's cordon: one without Evenkeel's cordon annotation. Change nothing else.

        CORDONED_BY_OTHER if the node has an incident's annotation.

        Idempotent: yes, because it reads the node first and patches that version.
        """
        ...

    def delete_node(self, cluster: str, name: str, instance_id: str) -> RepairAnswer:
        """Delete the node object of a Karpenter node. Karpenter then drains and terminates the node.

        ACCEPTED, or NO_SUCH_NODE if the node is gone or another node has the name by now. Idempotent: yes.

        Raises:
            Refused: The node does not belong to Karpenter, so nothing would terminate it.
        """
        ...

    def start_check(self, spec: CheckSpec) -> None:
        """Start a test job on one node, which may be cordoned and tainted. Idempotent: yes, by name."""
        ...

    def check_result(self, cluster: str, namespace: str, name: str) -> CheckResult:
        """Return the result of a test job; PENDING while it runs, and if it does not exist."""
        ...

    def launch(self, spec: LaunchSpec) -> tuple[LaunchResult, str]:
        """Create the headless Service and the Indexed Job of an attempt. Return the result and the Job's UID.

        Idempotent: yes, by name; an existing Job with the attempt's decision is ALREADY_THERE.

        Raises:
            Refused: A Job of that name does not belong to the attempt, or the API server rejects the manifest. Another
                system suspends a Job that Evenkeel did not hand over to Kueue.
        """
        ...

    def publish_size(self, attempt: Attempt) -> None:
        """Tell the pods of a launched attempt their world size. They start only then, if Kueue could admit fewer pods.

        Idempotent: yes, the number is stored once and never changes.

        Raises:
            Refused: The number is published already and differs, or another user created the object.
        """
        ...

    def workload(self, attempt: Attempt) -> ObservedWorkload:
        """Return an attempt's own Job and pods, in its namespace and with its UID (`Attempt.owns`)."""
        ...

    def workloads(self, cluster: str) -> tuple[ObservedWorkload, ...]:
        """Return every Job with Evenkeel's labels, with its pods, in all namespaces (two list calls).

        Labels prove nothing: `Attempt.own` selects the Job of an attempt.
        """
        ...

    def resources_in_use(self, cluster: str, pods: PodGroup = PodGroup.ALL) -> Mapping[str, Resources]:
        """Return the requests of live pods, by node name. Pods outside Evenkeel count too."""
        ...

    def pods_in_use(self, cluster: str) -> PodsInUse:
        """Return the live pods of attempts, and the requests of movable pods. Each pod is listed once.

        As with `workloads`, labels prove nothing.
        """
        ...

    def live_pods(self, cluster: str) -> LivePods:
        """Return the requests of all live pods, and the pods as `pods` does."""
        ...

    def pods(self, cluster: str, on: str | None = None) -> tuple[UnmanagedPod, ...]:
        """Return the live pods of all namespaces, without static pods and pods of a DaemonSet.

        `services/recovery/unmanaged_pods.py` then removes Evenkeel's own pods.

        Args:
            cluster: Kubernetes cluster.
            on: Name of a node: only its pods. Empty: only pods without a node. None: all pods.
        """
        ...

    def kueue_namespaces(self, cluster: str) -> Mapping[str, str]:
        """Return the namespaces in which Kueue admits jobs, each with the reason; empty without Kueue."""
        ...

    def evict(self, cluster: str, pod: UnmanagedPod) -> EvictionAnswer:
        """Request the eviction of a pod within its disruption budget.

        A rejection, or no answer, is a result and not an error. Idempotent: yes, by the pod's UID.
        """
        ...

    def stop(self, attempt: Attempt, grace_seconds: int, nodes_without_grace: Container[str] = ()) -> None:
        """Delete an attempt's own Job and pods, with this grace; pods on `nodes_without_grace` get none.

        Idempotent: yes, an object that is already gone is no error.
        """
        ...

    def force_delete_pods(self, attempt: Attempt, node_names: Iterable[str]) -> None:
        """Force-delete the attempt's own pods on lost nodes, only once the fence is raised or the node is gone.

        Idempotent: yes, an object that is already gone is no error.
        """
        ...

    def logs(self, attempt: Attempt, rank: int, tail_lines: int | None, *, timestamps: bool = False) -> str:
        """Return the last lines of the log of an attempt's own pod; with None its first 64 KiB.

        With `timestamps`, each line begins with the time at which the node read it, in RFC 3339, and a space.

        Raises:
            NotFound: The pod does not exist.
        """
        ...

    def log_tails(self, attempt: Attempt, lines: int, max_pods: int, within_seconds: float) -> Mapping[int, LogTail]:
        """Return the last log lines of at most `max_pods` of the attempt's own pods, by rank. Failed pods come first.

        Each line begins with the time at which the node read it, in RFC 3339, and a space. A log that could not be read
        within the time has a reason instead. Ranks without a pod are missing.
        """
        ...

    def watch(
        self,
        cluster: str,
        on_change: Callable[[str], None],
        *,
        until: Callable[[], bool],
        on_state: Callable[[str, str], None] | None = None,
    ) -> None:
        """Call `on_change(kind)` for each change of a `node`, `pod` or `job`, until `until()` is true.

        After a 410 the objects are listed again. `on_state(kind, error)` reports that the watch of a kind answered
        (empty error) or broke; a broken watch is opened again. All functions run in the caller's thread. `until` runs
        several times a second even without changes, so the caller can do its own work in it.
        """
        ...
