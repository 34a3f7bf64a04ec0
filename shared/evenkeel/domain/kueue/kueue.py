"""Kueue's manifests, v1beta1 and v1beta2: ClusterQueue, Cohort, LocalQueue, ResourceFlavor, priority classes, Workload.

The field names are those of https://kueue.sigs.k8s.io/docs/reference/; where the two versions differ, both are read.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, Literal

from pydantic import Field

from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.decayed import Decay
from evenkeel.domain.kueue.documents import Document, Duration, Number, Quantity, When, Whole, duration, seconds
from evenkeel.domain.kueue.objects import (
    PODS,
    Admitted,
    Amounts,
    BorrowWithin,
    Cohort,
    Flavor,
    FlavorQuotas,
    Fungibility,
    Fungible,
    PodSet,
    Preemption,
    PreemptionPolicy,
    Preference,
    Queue,
    QueueingStrategy,
    Quota,
    Requirement,
    ResourceGroup,
    StopPolicy,
    Taint,
    Toleration,
    Workload,
)

API_VERSION = "kueue.x-k8s.io/v1beta2"
DEFAULT_NAMESPACE = "default"
REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
"""Annotation of a larger slice: namespace/name of the slice that it takes the place of."""


class Metadata(Document):
    """What every manifest has."""

    without_meaning: ClassVar[frozenset[str]] = frozenset(
        {"annotations", "finalizers", "generateName", "generation", "managedFields", "ownerReferences"}
        | {"resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"}
    )
    name: str
    namespace: str = ""
    uid: str = Field("", description="The last tie-break. Where there is none: namespace/name.")
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: When | None = None


class Manifest(Document):
    """A Kubernetes object."""

    without_meaning: ClassVar[frozenset[str]] = frozenset({"status"})
    api_version: str = API_VERSION
    metadata: Metadata


# ---------------------------------------------------------------- quotas


class ResourceQuota(Document):
    name: str
    nominal_quota: Quantity = 0
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None

    def to_quota(self) -> Quota:
        def limit(written: Quantity | None) -> int | None:
            return None if written is None else quantities.amount(self.name, written)

        nominal = quantities.amount(self.name, self.nominal_quota)
        return Quota(nominal, limit(self.borrowing_limit), limit(self.lending_limit))


class FlavorQuota(Document):
    name: str
    resources: tuple[ResourceQuota, ...] = ()


class Group(Document):
    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuota, ...] = ()

    def to_group(self) -> ResourceGroup:
        flavors = (
            FlavorQuotas(each.name, {quota.name: quota.to_quota() for quota in each.resources}) for each in self.flavors
        )
        named = (quota.name for each in self.flavors for quota in each.resources)
        return ResourceGroup(tuple(dict.fromkeys((*self.covered_resources, *named))), tuple(flavors))


class FairSharing(Document):
    weight: Quantity | None = None


def weight_of(sharing: FairSharing | None) -> float:
    """Return a fair-sharing weight; 1 without one."""
    written = None if sharing is None else sharing.weight
    return 1.0 if written is None else float(quantities.parse(written))


class BorrowWithinCohort(Document):
    policy: Literal["Never", "LowerPriority", ""] = "Never"
    max_priority_threshold: Whole | None = None


class QueuePreemption(Document):
    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority", ""] = "Never"
    reclaim_within_cohort: Literal["Never", "LowerPriority", "Any", ""] = "Never"
    borrow_within_cohort: BorrowWithinCohort | None = None

    def to_preemption(self) -> Preemption:
        borrow = self.borrow_within_cohort
        return Preemption(
            PreemptionPolicy(self.within_cluster_queue or "Never"),
            PreemptionPolicy(self.reclaim_within_cohort or "Never"),
            BorrowWithin(borrow.max_priority_threshold) if borrow and borrow.policy == "LowerPriority" else None,
        )


class FlavorFungibility(Document):
    when_can_borrow: Literal["Borrow", "MayStopSearch", "TryNextFlavor", ""] = "MayStopSearch"
    when_can_preempt: Literal["Preempt", "MayStopSearch", "TryNextFlavor", ""] = "TryNextFlavor"
    preference: Literal["BorrowingOverPreemption", "PreemptionOverBorrowing"] | None = None

    def to_fungibility(self) -> Fungibility:
        def policy(written: str, default: Fungible) -> Fungible:
            # `Borrow` and `Preempt` are the older names of MayStopSearch.
            return Fungible.STOP if written in ("Borrow", "Preempt") else Fungible(written) if written else default

        return Fungibility(
            policy(self.when_can_borrow, Fungible.STOP),
            policy(self.when_can_preempt, Fungible.TRY_NEXT),
            Preference(self.preference) if self.preference else Preference.BORROWING_OVER_PREEMPTION,
        )


class Expression(Document):
    """One expression of a label selector, or of a node selector term."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] | None = None

    def to_requirement(self) -> Requirement:
        return Requirement(self.key, self.operator, self.values or ())


class LabelSelector(Document):
    """Matches everything where it is empty."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels are selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            each.to_requirement().holds(labels) for each in self.match_expressions
        )


class AdmissionScope(Document):
    admission_mode: Literal["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing", ""] = ""


class ClusterQueueSpec(Document):
    resource_groups: tuple[Group, ...] = ()
    cohort: str = Field("", description="The cohort's name in v1beta1.")
    cohort_name: str = ""
    queueing_strategy: Literal["BestEffortFIFO", "StrictFIFO", ""] = "BestEffortFIFO"
    namespace_selector: LabelSelector | None = Field(
        None, description="Left out: every namespace, and a warning. null: none, as in Kueue. {}: every one."
    )
    flavor_fungibility: FlavorFungibility | None = None
    preemption: QueuePreemption | None = None
    stop_policy: Literal["None", "Hold", "HoldAndDrain", ""] | None = None
    fair_sharing: FairSharing | None = None
    admission_scope: AdmissionScope = Field(default_factory=AdmissionScope)


class ClusterQueue(Manifest):
    """A queue: what a team holds of each flavor, and how it borrows, lends and preempts."""

    kind: Literal["ClusterQueue"] = "ClusterQueue"
    spec: ClusterQueueSpec = Field(default_factory=ClusterQueueSpec)

    def to_queue(self) -> Queue:
        """Return the queue as it is scheduled."""
        spec = self.spec
        return Queue(
            self.metadata.name,
            spec.cohort_name or spec.cohort,
            tuple(each.to_group() for each in spec.resource_groups),
            weight_of(spec.fair_sharing),
            spec.preemption.to_preemption() if spec.preemption else Preemption(),
            spec.flavor_fungibility.to_fungibility() if spec.flavor_fungibility else Fungibility(),
            QueueingStrategy(spec.queueing_strategy or "BestEffortFIFO"),
            StopPolicy(spec.stop_policy or "None"),
            spec.admission_scope.admission_mode == "UsageBasedAdmissionFairSharing",
        )

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Whether workloads of a namespace with these labels may be admitted."""
        if self.spec.namespace_selector is not None:
            return self.spec.namespace_selector.matches(labels)
        return "namespace_selector" not in self.spec.model_fields_set


class CohortSpec(Document):
    parent: str = Field("", description="The parent's name in v1beta1.")
    parent_name: str = ""
    resource_groups: tuple[Group, ...] = ()
    fair_sharing: FairSharing | None = None


class CohortManifest(Manifest):
    """A node above queues and other cohorts."""

    kind: Literal["Cohort"] = "Cohort"
    spec: CohortSpec = Field(default_factory=CohortSpec)

    def to_cohort(self) -> Cohort:
        """Return the cohort as it is scheduled."""
        return Cohort(
            self.metadata.name,
            self.spec.parent_name or self.spec.parent,
            tuple(each.to_group() for each in self.spec.resource_groups),
            weight_of(self.spec.fair_sharing),
        )


class NodeTaint(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset({"timeAdded"})
    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class PodToleration(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset({"tolerationSeconds"})
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def to_toleration(self) -> Toleration:
        return Toleration(self.key, self.operator or "Equal", self.value, self.effect)


class ResourceFlavorSpec(Document):
    node_labels: dict[str, str] = {}
    node_taints: tuple[NodeTaint, ...] = ()
    tolerations: tuple[PodToleration, ...] = ()


class ResourceFlavor(Manifest):
    """A kind of capacity."""

    kind: Literal["ResourceFlavor"] = "ResourceFlavor"
    spec: ResourceFlavorSpec = Field(default_factory=ResourceFlavorSpec)

    def to_flavor(self) -> Flavor:
        """Return the flavor as it is scheduled."""
        return Flavor(
            self.metadata.name,
            self.spec.node_labels,
            tuple(Taint(each.key, each.value, each.effect) for each in self.spec.node_taints),
            tuple(each.to_toleration() for each in self.spec.tolerations),
        )


class LocalQueueSpec(Document):
    cluster_queue: str
    stop_policy: Literal["None", "Hold", "HoldAndDrain", ""] | None = None
    fair_sharing: FairSharing | None = None


class ConsumedResources(Document):
    consumed_resources: dict[str, Quantity] = {}
    last_update: When | None = None


class LocalQueueFairSharing(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset({"weightedShare"})
    admission_fair_sharing_status: ConsumedResources | None = None


class LocalQueueStatus(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset(
        {"conditions", "pendingWorkloads", "reservingWorkloads", "admittedWorkloads", "flavors"}
        | {"flavorsReservation", "flavorsUsage", "flavorUsage"}
    )
    fair_sharing: LocalQueueFairSharing | None = None


class LocalQueue(Manifest):
    """A namespace's name for a queue."""

    without_meaning: ClassVar[frozenset[str]] = frozenset()
    kind: Literal["LocalQueue"] = "LocalQueue"
    spec: LocalQueueSpec
    status: LocalQueueStatus = Field(default_factory=LocalQueueStatus)

    @property
    def consumed(self) -> tuple[dict[str, float], float | None] | None:
        """What it used of late, by resource, and by when; None where nothing is said."""
        sharing = self.status.fair_sharing
        status = sharing.admission_fair_sharing_status if sharing else None
        if status is None:
            return None
        amounts = {name: float(quantities.parse(each)) for name, each in status.consumed_resources.items()}
        return amounts, None if status.last_update is None else seconds(status.last_update)


class WorkloadPriorityClass(Manifest):
    """A priority by name."""

    without_meaning: ClassVar[frozenset[str]] = frozenset({"description", "globalDefault", "preemptionPolicy"})
    kind: Literal["WorkloadPriorityClass", "PriorityClass"] = "WorkloadPriorityClass"
    value: Whole


class Namespace(Manifest):
    """A namespace, for its labels."""

    without_meaning: ClassVar[frozenset[str]] = frozenset({"spec", "status"})
    kind: Literal["Namespace"] = "Namespace"

    @property
    def labels(self) -> dict[str, str]:
        """Its labels, the one that every namespace has included."""
        return {"kubernetes.io/metadata.name": self.metadata.name} | self.metadata.labels


# ---------------------------------------------------------------- workloads


class Resources(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset({"claims"})
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}

    def asked(self) -> dict[str, Fraction]:
        """Return requests; where one is missing, its limit stands for it."""
        return {name: quantities.parse(each) for name, each in (self.limits | self.requests).items()}

    @property
    def beyond_limits(self) -> list[str]:
        """What is asked for above its own limit."""
        return sorted(
            name
            for name, asked in self.requests.items()
            if name in self.limits and quantities.parse(asked) > quantities.parse(self.limits[name])
        )


_OF_A_CONTAINER = frozenset(
    {"name", "image", "command", "args", "workingDir", "ports", "envFrom", "env", "resizePolicy", "volumeMounts"}
    | {"volumeDevices", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "terminationMessagePath"}
    | {"terminationMessagePolicy", "imagePullPolicy", "securityContext", "stdin", "stdinOnce", "tty"}
)
_OF_A_POD = frozenset(
    {"volumes", "ephemeralContainers", "restartPolicy", "terminationGracePeriodSeconds", "activeDeadlineSeconds"}
    | {"dnsPolicy", "serviceAccountName", "serviceAccount", "automountServiceAccountToken", "nodeName", "hostNetwork"}
    | {"hostPID", "hostIPC", "hostUsers", "shareProcessNamespace", "securityContext", "imagePullSecrets", "hostname"}
    | {"subdomain", "schedulerName", "hostAliases", "priority", "priorityClassName", "dnsConfig", "readinessGates"}
    | {"runtimeClassName", "enableServiceLinks", "preemptionPolicy", "topologySpreadConstraints", "setHostnameAsFQDN"}
    | {"os", "schedulingGates", "resourceClaims"}
)


class Container(Document):
    without_meaning: ClassVar[frozenset[str]] = _OF_A_CONTAINER
    resources: Resources = Field(default_factory=Resources)
    restart_policy: str = ""


class NodeSelectorTerm(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset({"matchFields"})
    match_expressions: tuple[Expression, ...] = ()


class NodeSelector(Document):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset({"preferredDuringSchedulingIgnoredDuringExecution"})
    required: NodeSelector | None = Field(None, alias="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset({"podAffinity", "podAntiAffinity"})
    node_affinity: NodeAffinity | None = None


class PodSpec(Document):
    without_meaning: ClassVar[frozenset[str]] = _OF_A_POD
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, Quantity] = {}
    resources: Resources | None = None
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[PodToleration, ...] = ()

    def asked(self) -> dict[str, Fraction]:
        """Return what one pod asks for.

        The containers together, or the most that starting up takes: init containers run one by one, next to the
        sidecars (init containers that are always restarted) before them. Requests of the whole pod win, overhead is
        added. Source: https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
        """
        running: dict[str, Fraction] = {}
        most: dict[str, Fraction] = {}
        sidecars: dict[str, Fraction] = {}
        for container in self.containers:
            _add(running, container.resources.asked())
        for container in self.init_containers:
            asked = container.resources.asked()
            if container.restart_policy == "Always":
                _add(running, asked)
                _add(sidecars, asked)
                asked = dict(sidecars)
            else:
                _add(asked, sidecars)
            for name, amount in asked.items():
                most[name] = max(most.get(name, Fraction(0)), amount)
        total = {name: max(running.get(name, Fraction(0)), most.get(name, Fraction(0))) for name in {**running, **most}}
        if self.resources is not None:
            total |= self.resources.asked()
        _add(total, {name: quantities.parse(each) for name, each in self.overhead.items()})
        return total

    @property
    def beyond_limits(self) -> list[str]:
        """What a container, or the pod, asks for above its own limit."""
        every = (*(each.resources for each in (*self.init_containers, *self.containers)), self.resources or Resources())
        return sorted({name for each in every for name in each.beyond_limits})

    def terms(self) -> tuple[tuple[Requirement, ...], ...]:
        """Return the terms of the node affinity."""
        node = self.affinity.node_affinity if self.affinity else None
        terms = node.required.node_selector_terms if node and node.required else ()
        return tuple(tuple(each.to_requirement() for each in term.match_expressions) for term in terms)


def _add(to: dict[str, Fraction], amounts: Mapping[str, Fraction]) -> None:
    for name, amount in amounts.items():
        to[name] = to.get(name, Fraction(0)) + amount


class PodTemplate(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset({"metadata"})
    spec: PodSpec = Field(default_factory=PodSpec)


class TopologyRequest(Document):
    pod_set_group_name: str | None = None


class PodSetManifest(Document):
    name: str = "main"
    count: Whole = Field(1, ge=0)
    min_count: Whole | None = Field(None, ge=0)
    template: PodTemplate = Field(default_factory=PodTemplate)
    topology_request: TopologyRequest | None = None


class PriorityClassRef(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset({"group", "kind"})
    name: str = ""


class WorkloadSpec(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset({"maximumExecutionTimeSeconds", "priorityClassSource"})
    pod_sets: tuple[PodSetManifest, ...]
    queue_name: str = ""
    priority: Whole | None = None
    priority_class_name: str = Field("", description="v1beta1.")
    priority_class_ref: PriorityClassRef | None = None
    active: bool = True


class Condition(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset({"message", "observedGeneration"})
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    last_transition_time: When | None = None


class PodSetAssignment(Document):
    name: str = "main"
    flavors: dict[str, str] = {}
    resource_usage: dict[str, Quantity] | None = None
    count: Whole | None = None


class Admission(Document):
    cluster_queue: str
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class ReclaimablePod(Document):
    name: str
    count: Whole


class RequeueState(Document):
    count: Whole | None = None
    requeue_at: When | None = None


class CheckState(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset(
        {"lastTransitionTime", "message", "podSetUpdates", "requeueAfterSeconds", "retryCount"}
    )
    name: str = ""
    state: str = ""


class WorkloadStatus(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset(
        {"resourceRequests", "accumulatedPastExecutionTimeSeconds", "schedulingStats"}
        | {"accumulatedPastExexcutionTimeSeconds", "nominatedClusterNames", "clusterName"}
    )
    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    reclaimable_pods: tuple[ReclaimablePod, ...] = ()
    requeue_state: RequeueState | None = None
    admission_checks: tuple[CheckState, ...] = ()


_LOSES_ITS_PLACE = frozenset({"PodsReadyTimeout", "AdmissionCheck"})
"""Reasons of an eviction after which a workload queues from the eviction on. Preemption is none of them."""


class WorkloadManifest(Manifest):
    """A job as Kueue sees it: waiting, or with its admission in its status."""

    without_meaning: ClassVar[frozenset[str]] = frozenset()
    kind: Literal["Workload"] = "Workload"
    spec: WorkloadSpec
    status: WorkloadStatus = Field(default_factory=WorkloadStatus)

    @property
    def workload_id(self) -> str:
        """namespace/name, or the name alone where there is no namespace."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type if it is true."""
        return next((each for each in self.status.conditions if each.type == kind and each.status == "True"), None)

    @property
    def holds_quota(self) -> bool:
        """Whether it was admitted. An admission counts unless a condition says that it no longer does."""
        if self.status.admission is None or self.condition("Finished"):
            return False
        statuses = [each.status for each in self.status.conditions if each.type == "QuotaReserved"]
        return statuses != ["False"]

    @property
    def is_started(self) -> bool:
        """Whether it was admitted once it held its quota. Where nothing is said of it, it was."""
        statuses = [each.status for each in self.status.conditions if each.type == "Admitted"]
        return (
            statuses[-1] == "True" if statuses else all(each.state == "Ready" for each in self.status.admission_checks)
        )

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """The admission checks that turned it down."""
        return tuple(each.name for each in self.status.admission_checks if each.state in ("Retry", "Rejected"))

    @property
    def missed(self) -> int:
        """How often it missed its ready timeout so far."""
        state = self.status.requeue_state
        return (state.count or 0) if state else 0

    @property
    def class_name(self) -> str:
        """The priority class that it names."""
        ref = self.spec.priority_class_ref
        return self.spec.priority_class_name or (ref.name if ref else "")

    def reclaimed(self, pod_set: str) -> int:
        """Return how many pods of a pod set have given their quota up."""
        return sum(each.count for each in self.status.reclaimable_pods if each.name == pod_set)

    def to_workload(
        self,
        queue: str,
        priority: int,
        asks: "Asks",
        *,
        barred: str = "",
        barred_holds_up: bool = False,
        from_eviction: bool = True,
        sub_weight: float = 1.0,
    ) -> Workload:
        """Return the workload as it waits in a queue.

        Args:
            queue: The queue that it waits in, or is admitted to.
            priority: Its priority, once its class is looked up.
            asks: What resources are asked for in the end, given what its pods ask for.
            barred: Why its queue takes it not at all.
            barred_holds_up: Whether a strict queue waits behind it all the same.
            from_eviction: Whether one that missed its ready timeout queues from its eviction on.
            sub_weight: Its LocalQueue's weight.
        """
        evicted = self.condition("Evicted")
        lost = evicted is not None and evicted.reason in _LOSES_ITS_PLACE
        if lost and evicted and evicted.reason == "PodsReadyTimeout":
            lost = from_eviction
        replaced = self.metadata.annotations.get(REPLACES, "")
        if replaced and "/" not in replaced and self.metadata.namespace:
            replaced = f"{self.metadata.namespace}/{replaced}"
        return Workload(
            self.workload_id,
            queue,
            tuple(self._to_pod_set(each, asks) for each in self.spec.pod_sets),
            priority=priority,
            created_at=seconds(self.metadata.creation_timestamp),
            requeued_at=seconds(evicted.last_transition_time) if lost and evicted else None,
            replaces=replaced,
            uid=self.metadata.uid,
            barred=barred,
            barred_holds_up=barred_holds_up,
            sub_queue=f"{self.metadata.namespace or DEFAULT_NAMESPACE}/{self.spec.queue_name}",
            sub_weight=sub_weight,
        )

    def _to_pod_set(self, pods: PodSetManifest, asks: "Asks") -> PodSet:
        spec = pods.template.spec
        return PodSet(
            pods.name,
            max(0, pods.count - self.reclaimed(pods.name)),  # those that are done ask for nothing, now or later
            asks(spec.asked()),
            pods.min_count,
            spec.node_selector,
            spec.terms(),
            tuple(each.to_toleration() for each in spec.tolerations),
            (pods.topology_request.pod_set_group_name or "") if pods.topology_request else "",
        )

    def to_admitted(self, workload: Workload) -> Admitted:
        """Return the workload as it holds quota: what its admission recorded, less what its pods gave back."""
        admission = self.status.admission
        assert admission is not None
        by_name = {each.name: each for each in admission.pod_set_assignments}
        flavors, counts = [], []
        use: Amounts = {}
        for pod_set, pods in zip(workload.pod_sets, self.spec.pod_sets, strict=True):
            given = by_name.get(pod_set.name, PodSetAssignment(name=pod_set.name))
            admitted = pods.count if given.count is None else given.count
            count = min(admitted, pod_set.count)
            flavors.append(given.flavors)
            counts.append(count)
            for resource, flavor in given.flavors.items():
                key = (flavor, resource)
                use[key] = use.get(key, 0) + _used(given, pod_set, resource, admitted, count)
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
        )


def _used(given: PodSetAssignment, pod_set: PodSet, resource: str, admitted: int, count: int) -> int:
    recorded = given.resource_usage
    if recorded is None or resource not in recorded:
        return count if resource == PODS else pod_set.requests.get(resource, 0) * count
    amount = quantities.amount(resource, recorded[resource])
    return amount if count >= admitted or not admitted else amount // admitted * count


class Asks:
    """What is asked for in the end: some resources do not count, others stand for others (Kueue's configuration)."""

    def __init__(self, excluded: tuple[str, ...] = (), transformations: tuple["Transformation", ...] = ()) -> None:
        self.excluded = excluded
        self.transformations = {each.input: each for each in transformations}

    def __call__(self, asked: Mapping[str, Fraction]) -> dict[str, int]:
        """Return the amounts per pod, in the smallest units."""
        found: dict[str, Fraction] = {}
        made: dict[str, Fraction] = {}
        for name, amount in asked.items():
            if any(name.startswith(prefix) for prefix in self.excluded):
                continue
            rule = self.transformations.get(name)
            if rule is None or rule.strategy != "Replace":
                _add(found, {name: amount})
            if rule is not None:
                factor = asked.get(rule.multiply_by, Fraction(1)) if rule.multiply_by else Fraction(1)
                _add(made, {each: quantities.parse(by) * amount * factor for each, by in rule.outputs.items()})
        # A negative factor is an allowance on what is made of others, never on what is asked for by its own name.
        _add(found, {name: max(Fraction(0), amount) for name, amount in made.items()})
        return {name: max(0, quantities.amount(name, amount)) for name, amount in found.items()}


# ---------------------------------------------------------------- configuration of the whole


class Transformation(Document):
    input: str
    strategy: Literal["Retain", "Replace"] = "Retain"
    multiply_by: str = ""
    outputs: dict[str, Quantity] = {}


class ConfiguredResources(Document):
    quota_check_strategy: Literal["BlockUndeclared", "IgnoreUndeclared"] = "BlockUndeclared"
    exclude_resource_prefixes: tuple[str, ...] = ()
    transformations: tuple[Transformation, ...] = ()


class ConfiguredFairSharing(Document):
    enable: bool = True
    preemption_strategies: tuple[Literal["LessThanOrEqualToFinalShare", "LessThanInitialShare"], ...] = (
        "LessThanOrEqualToFinalShare",
        "LessThanInitialShare",
    )


class AdmissionFairSharing(Document):
    """Order inside a queue by what LocalQueues used of late."""

    usage_half_life_time: Duration = "0s"
    usage_sampling_interval: Duration = "5m"
    resource_weights: dict[str, Number] = {}

    def to_decay(self) -> Decay | None:
        """Return how use fades; None with a half-life of nothing: then nothing is remembered."""
        half_life, sampling = duration(self.usage_half_life_time), duration(self.usage_sampling_interval)
        weights = tuple(sorted(self.resource_weights.items())) or (("", 1.0),)
        return Decay(half_life, sampling, weights) if half_life else None


class RequeuingStrategy(Document):
    timestamp: Literal["Eviction", "Creation"] = "Eviction"
    backoff_base_seconds: Whole = 60
    backoff_max_seconds: Whole = 3600
    backoff_limit_count: Whole | None = None


class WaitForPodsReady(Document):
    without_meaning: ClassVar[frozenset[str]] = frozenset({"timeout", "recoveryTimeout"})
    requeuing_strategy: RequeuingStrategy = Field(default_factory=RequeuingStrategy)
    enable: bool | None = None
    """v1beta1 alone has it; there nothing is waited for without it."""
    block_admission: bool | None = None


class Configuration(Document):
    """Kueue's own configuration, as far as it decides anything here."""

    without_meaning: ClassVar[frozenset[str]] = frozenset(
        {"kind", "metadata", "namespace", "webhook", "leaderElection", "metrics", "health"}
        | {"pprofBindAddress", "controller", "tls", "manageJobsWithoutQueueName", "managedJobsNamespaceSelector"}
        | {"internalCertManagement", "clientConnection", "integrations", "objectRetentionPolicies"}
        | {"visibilityServer", "queueVisibility"}
    )
    api_version: str = ""
    fair_sharing: ConfiguredFairSharing | None = None
    resources: ConfiguredResources = Field(default_factory=ConfiguredResources)
    wait_for_pods_ready: WaitForPodsReady = Field(default_factory=WaitForPodsReady)
    feature_gates: dict[str, bool] = {}
    admission_fair_sharing: AdmissionFairSharing | None = None

    @property
    def blocks_until_ready(self) -> bool:
        """Whether nobody is admitted before the pods of all who are admitted are ready.

        Source: Kueue's `apis/config`, `defaults.go`: v1beta1 blocks where waiting is enabled and nothing else is said;
        v1beta2 where it is said.
        """
        waits = self.wait_for_pods_ready
        if self.api_version.endswith("/v1beta1") and not waits.enable:
            return False
        if waits.enable is False:
            return False
        return bool(waits.enable) if waits.block_admission is None else waits.block_admission


OTHER_KINDS = frozenset(
    {"AdmissionCheck", "MultiKueueCluster", "MultiKueueConfig", "ProvisioningRequestConfig", "Topology"}
)
"""Kueue's kinds that have no part in a plan."""

KINDS: dict[str, type[Manifest]] = {
    "ClusterQueue": ClusterQueue,
    "Cohort": CohortManifest,
    "ResourceFlavor": ResourceFlavor,
    "LocalQueue": LocalQueue,
    "WorkloadPriorityClass": WorkloadPriorityClass,
    "PriorityClass": WorkloadPriorityClass,
    "Namespace": Namespace,
    "Workload": WorkloadManifest,
}


NO_JOBS = (KINDS.keys() | OTHER_KINDS) - {"Workload"}
"""Kinds that may stand in a file next to jobs."""


def is_other_kind(document: Mapping[str, Any]) -> bool:
    """Whether this is an object of Kubernetes, and none of Kueue's: it may stand in a file next to them."""
    version = document.get("apiVersion")
    kind = document.get("kind")
    if not (isinstance(version, str) and version and isinstance(kind, str)) or kind in KINDS:
        return False
    return version.partition("/")[0] != API_VERSION.partition("/")[0]


def expanded(document: Any) -> list[Any]:
    """Return the objects of a List, or the one object."""
    if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
        items = document.get("items") or ()
        return list(items) if isinstance(items, list | tuple) else [items]
    return [document]
