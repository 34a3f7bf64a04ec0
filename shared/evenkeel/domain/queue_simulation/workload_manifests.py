"""Kueue's Workload manifest, v1beta1 and v1beta2: a job that is pending, or that holds quota by its status."""

from typing import ClassVar, Literal

from pydantic import Field

from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.objects import PODS, Admitted, Amounts, PodSet, TopologyAssignment, Workload
from evenkeel.domain.queue_simulation.configuration import ResourceRules
from evenkeel.domain.queue_simulation.documents import Document, Instant, Quantity, WholeNumber, seconds
from evenkeel.domain.queue_simulation.pod_manifests import PodTemplate
from evenkeel.domain.queue_simulation.queue_manifests import DEFAULT_NAMESPACE, KubernetesManifest
from evenkeel.domain.queue_simulation.topology_manifests import TopologyAssignmentManifest, TopologyRequestManifest

REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
"""Annotation of a larger slice: namespace/name of the slice that it replaces."""


class PodSetManifest(Document):
    """`Workload.spec.podSets[]`."""

    name: str = "main"
    count: WholeNumber = Field(1, ge=0)
    min_count: WholeNumber | None = Field(None, ge=0)
    template: PodTemplate = Field(default_factory=PodTemplate)
    topology_request: TopologyRequestManifest | None = None

    @property
    def requested_topology(self) -> TopologyRequestManifest | None:
        """The topology request. Without one, the annotations of the template make it, as in Kueue's job controllers."""
        return self.topology_request or self.template.metadata.topology_request()


class PriorityClassRef(Document):
    """`Workload.spec.priorityClassRef`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"group", "kind"})
    name: str = ""


class WorkloadSpec(Document):
    """`Workload.spec`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"maximumExecutionTimeSeconds", "priorityClassSource"})
    pod_sets: tuple[PodSetManifest, ...]
    queue_name: str = ""
    priority: WholeNumber | None = None
    priority_class_name: str = ""
    """v1beta1."""
    priority_class_ref: PriorityClassRef | None = None
    active: bool = True


class Condition(Document):
    """`Workload.status.conditions[]`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"message", "observedGeneration"})
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    last_transition_time: Instant | None = None


class PodSetAssignment(Document):
    """`Workload.status.admission.podSetAssignments[]`."""

    name: str = "main"
    flavors: dict[str, str] = {}
    resource_usage: dict[str, Quantity] | None = None
    count: WholeNumber | None = None
    topology_assignment: TopologyAssignmentManifest | None = None


class Admission(Document):
    """`Workload.status.admission`."""

    cluster_queue: str
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class ReclaimablePod(Document):
    """`Workload.status.reclaimablePods[]`."""

    name: str
    count: WholeNumber


class RequeueState(Document):
    """`Workload.status.requeueState`."""

    count: WholeNumber | None = None
    requeue_at: Instant | None = None


class CheckState(Document):
    """`Workload.status.admissionChecks[]`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset(
        {"lastTransitionTime", "message", "podSetUpdates", "requeueAfterSeconds", "retryCount"}
    )
    name: str = ""
    state: str = ""


class WorkloadStatus(Document):
    """`Workload.status`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset(
        {"resourceRequests", "accumulatedPastExecutionTimeSeconds", "schedulingStats"}
        | {"accumulatedPastExexcutionTimeSeconds", "nominatedClusterNames", "clusterName"}
    )
    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    reclaimable_pods: tuple[ReclaimablePod, ...] = ()
    requeue_state: RequeueState | None = None
    admission_checks: tuple[CheckState, ...] = ()


_LOSES_QUEUE_POSITION = frozenset({"PodsReadyTimeout", "AdmissionCheck"})
"""Reasons of an eviction after which a workload loses its queue position. A preemption does not."""


class WorkloadManifest(KubernetesManifest):
    """Kueue's Workload: pending, or with its admission in its status."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset()
    kind: Literal["Workload"] = "Workload"
    spec: WorkloadSpec
    status: WorkloadStatus = Field(default_factory=WorkloadStatus)

    @property
    def workload_id(self) -> str:
        """namespace/name, or only the name without a namespace."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type if it is true."""
        return next(
            (
                condition
                for condition in self.status.conditions
                if condition.type == kind and condition.status == "True"
            ),
            None,
        )

    @property
    def holds_quota(self) -> bool:
        """Whether it holds quota: it has an admission, and no condition says that it lost its quota."""
        if self.status.admission is None or self.condition("Finished"):
            return False
        statuses = [condition.status for condition in self.status.conditions if condition.type == "QuotaReserved"]
        return statuses != ["False"]

    @property
    def is_started(self) -> bool:
        """Whether it started after it got its quota. Without a condition, its admission checks decide."""
        statuses = [condition.status for condition in self.status.conditions if condition.type == "Admitted"]
        return (
            statuses[-1] == "True"
            if statuses
            else all(check.state == "Ready" for check in self.status.admission_checks)
        )

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """The admission checks that rejected it."""
        return tuple(check.name for check in self.status.admission_checks if check.state in ("Retry", "Rejected"))

    @property
    def missed(self) -> int:
        """How often its pods missed their ready timeout so far."""
        state = self.status.requeue_state
        return (state.count or 0) if state else 0

    @property
    def class_name(self) -> str:
        """The name of its priority class."""
        ref = self.spec.priority_class_ref
        return self.spec.priority_class_name or (ref.name if ref else "")

    def reclaimed(self, pod_set: str) -> int:
        """Return how many pods of a pod set have returned their quota."""
        return sum(pod.count for pod in self.status.reclaimable_pods if pod.name == pod_set)

    def to_workload(
        self,
        queue: str,
        priority: int,
        rules: ResourceRules,
        *,
        inadmissible_reason: str = "",
        blocks_when_inadmissible: bool = False,
        from_eviction: bool = True,
        sub_weight: float = 1.0,
    ) -> Workload:
        """Return the workload for the scheduler.

        Args:
            queue: The queue in which it is pending or admitted.
            priority: Its priority, after the lookup of its class.
            rules: The requests that count against quota.
            inadmissible_reason: Why its queue never admits it; empty if it may.
            blocks_when_inadmissible: Whether a strict queue waits behind it although it is inadmissible.
            from_eviction: Whether a missed ready timeout makes the eviction its queueing time.
            sub_weight: Fair-sharing weight of its LocalQueue.
        """
        evicted = self.condition("Evicted")
        lost = evicted is not None and evicted.reason in _LOSES_QUEUE_POSITION
        if lost and evicted and evicted.reason == "PodsReadyTimeout":
            lost = from_eviction
        replaced = self.metadata.annotations.get(REPLACES, "")
        if replaced and "/" not in replaced and self.metadata.namespace:
            replaced = f"{self.metadata.namespace}/{replaced}"
        return Workload(
            self.workload_id,
            queue,
            tuple(self._to_pod_set(pod_set, rules) for pod_set in self.spec.pod_sets),
            priority=priority,
            created_at=seconds(self.metadata.creation_timestamp),
            requeued_at=seconds(evicted.last_transition_time) if lost and evicted else None,
            replaces=replaced,
            uid=self.metadata.uid,
            inadmissible_reason=inadmissible_reason,
            blocks_when_inadmissible=blocks_when_inadmissible,
            sub_queue=f"{self.metadata.namespace or DEFAULT_NAMESPACE}/{self.spec.queue_name}",
            sub_weight=sub_weight,
        )

    def _to_pod_set(self, pods: PodSetManifest, rules: ResourceRules) -> PodSet:
        spec, requested = pods.template.spec, pods.requested_topology
        requests = spec.requests()
        return PodSet(
            pods.name,
            max(0, pods.count - self.reclaimed(pods.name)),  # finished pods need no quota, now or later
            rules.counted(requests),
            pods.min_count,
            spec.node_selector,
            spec.terms(),
            tuple(toleration.to_toleration() for toleration in spec.tolerations),
            (requested.pod_set_group_name or "") if requested else "",
            requested.to_request() if requested else None,
            ResourceRules().counted(requests) if rules.excluded or rules.transformations else None,
        )

    def to_admitted(self, workload: Workload) -> Admitted:
        """Return the workload with the quota of its admission, less the quota that its pods returned."""
        admission = self.status.admission
        assert admission is not None
        by_name = {assignment.name: assignment for assignment in admission.pod_set_assignments}
        flavors, counts = [], []
        topology: list[TopologyAssignment | None] = []
        use: Amounts = {}
        for pod_set, pods in zip(workload.pod_sets, self.spec.pod_sets, strict=True):
            pod_set_assignment = by_name.get(pod_set.name, PodSetAssignment(name=pod_set.name))
            admitted = pods.count if pod_set_assignment.count is None else pod_set_assignment.count
            count = min(admitted, pod_set.count)
            flavors.append(pod_set_assignment.flavors)
            counts.append(count)
            recorded = pod_set_assignment.topology_assignment
            topology.append(
                recorded.to_assignment(tuple(sorted(set(pod_set_assignment.flavors.values())))) if recorded else None
            )
            for resource, flavor in pod_set_assignment.flavors.items():
                key = (flavor, resource)
                use[key] = use.get(key, 0) + _used_amount(pod_set_assignment, pod_set, resource, admitted, count)
        reserved = self.condition("QuotaReserved")
        at = reserved.last_transition_time if reserved else None
        return Admitted(
            workload,
            tuple(flavors),
            tuple(counts),
            None if at is None else seconds(at),
            self.condition("Evicted") is not None or not self.spec.active,
            use,
            is_started=self.is_started,
            is_ready=self.condition("PodsReady") is not None,
            topology=tuple(topology) if any(topology) else (),
        )


def _used_amount(assignment: PodSetAssignment, pod_set: PodSet, resource: str, admitted: int, count: int) -> int:
    recorded = assignment.resource_usage
    if recorded is None or resource not in recorded:
        return count if resource == PODS else pod_set.requests.get(resource, 0) * count
    amount = quantities.amount(resource, recorded[resource])
    return amount if count >= admitted or not admitted else amount // admitted * count
