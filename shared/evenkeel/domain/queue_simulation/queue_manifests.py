"""Kueue's manifests of queues and capacity, from ClusterQueue to Namespace.

Field names: https://kueue.sigs.k8s.io/docs/reference/, versions v1beta1 and v1beta2. If the versions differ, both
spellings are read.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.objects import (
    BorrowWithin,
    Cohort,
    Flavor,
    FlavorQuotas,
    Fungibility,
    Fungible,
    PreemptionPolicy,
    PreemptionRules,
    Preference,
    Queue,
    QueueCheck,
    QueueingStrategy,
    Quota,
    ResourceGroup,
    StopPolicy,
    Taint,
)
from evenkeel.domain.queue_simulation.documents import Document, Instant, Quantity, WholeNumber, seconds
from evenkeel.domain.queue_simulation.node_terms import Expression, NodeTaint, PodToleration

API_VERSION = "kueue.x-k8s.io/v1beta2"
DEFAULT_NAMESPACE = "default"


class ObjectMetadata(Document):
    """Metadata of a Kubernetes object."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset(
        {"annotations", "finalizers", "generateName", "generation", "managedFields", "ownerReferences"}
        | {"resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"}
    )
    name: str
    namespace: str = ""
    uid: str = ""
    """Breaks ties between jobs. Default: namespace/name."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: Instant | None = None


class KubernetesManifest(Document):
    """A Kubernetes object."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"status"})
    api_version: str = API_VERSION
    metadata: ObjectMetadata


class ResourceQuota(Document):
    """`ClusterQueue.spec.resourceGroups[].flavors[].resources[]`."""

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
    """`ClusterQueue.spec.resourceGroups[].flavors[]`."""

    name: str
    resources: tuple[ResourceQuota, ...] = ()


class Group(Document):
    """`ClusterQueue.spec.resourceGroups[]`."""

    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuota, ...] = ()

    def to_group(self) -> ResourceGroup:
        flavors = (
            FlavorQuotas(flavor.name, {quota.name: quota.to_quota() for quota in flavor.resources})
            for flavor in self.flavors
        )
        named = (quota.name for flavor in self.flavors for quota in flavor.resources)
        return ResourceGroup(tuple(dict.fromkeys((*self.covered_resources, *named))), tuple(flavors))


class FairSharing(Document):
    """`ClusterQueue.spec.fairSharing`."""

    weight: Quantity | None = None


def weight_of(sharing: FairSharing | None) -> float:
    """Return a fair-sharing weight; default 1."""
    written = None if sharing is None else sharing.weight
    return 1.0 if written is None else float(quantities.parse(written))


class BorrowWithinCohort(Document):
    """`ClusterQueue.spec.preemption.borrowWithinCohort`."""

    policy: Literal["Never", "LowerPriority", ""] = "Never"
    max_priority_threshold: WholeNumber | None = None


class QueuePreemption(Document):
    """`ClusterQueue.spec.preemption`."""

    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority", ""] = "Never"
    reclaim_within_cohort: Literal["Never", "LowerPriority", "Any", ""] = "Never"
    borrow_within_cohort: BorrowWithinCohort | None = None

    def to_preemption(self) -> PreemptionRules:
        borrow = self.borrow_within_cohort
        return PreemptionRules(
            PreemptionPolicy(self.within_cluster_queue or "Never"),
            PreemptionPolicy(self.reclaim_within_cohort or "Never"),
            BorrowWithin(borrow.max_priority_threshold) if borrow and borrow.policy == "LowerPriority" else None,
        )


class FlavorFungibility(Document):
    """`ClusterQueue.spec.flavorFungibility`."""

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


class LabelSelector(Document):
    """A label selector. An empty one matches all labels."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the selector matches these labels."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.to_requirement().is_satisfied_by(labels) for expression in self.match_expressions
        )


class AdmissionScope(Document):
    """`ClusterQueue.spec.admissionScope`."""

    admission_mode: Literal["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing", ""] = ""


class CheckRule(Document):
    """`ClusterQueue.spec.admissionChecksStrategy.admissionChecks[]`."""

    name: str
    on_flavors: tuple[str, ...] = ()
    """The flavors that need the check. Empty: every flavor."""


class ChecksStrategy(Document):
    """`ClusterQueue.spec.admissionChecksStrategy`."""

    admission_checks: tuple[CheckRule, ...] = ()


class AdmissionCheckSpec(Document):
    """`AdmissionCheck.spec`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"parameters", "retryDelayMinutes"})
    controller_name: str = ""


class CheckCondition(Document):
    """`AdmissionCheck.status.conditions[]`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset(
        {"lastTransitionTime", "message", "observedGeneration", "reason"}
    )
    type: str
    status: str


class AdmissionCheckStatus(Document):
    """`AdmissionCheck.status`."""

    conditions: tuple[CheckCondition, ...] = ()


class AdmissionCheckManifest(KubernetesManifest):
    """An AdmissionCheck. Its controller answers it for each job with quota."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset()
    kind: Literal["AdmissionCheck"] = "AdmissionCheck"
    spec: AdmissionCheckSpec = Field(default_factory=AdmissionCheckSpec)
    status: AdmissionCheckStatus | None = None

    @property
    def is_inactive(self) -> bool:
        """Whether its status says that its controller does not serve it. A file without a status says nothing."""
        if self.status is None:
            return False
        return not any(item.type == "Active" and item.status == "True" for item in self.status.conditions)


class ClusterQueueSpec(Document):
    """`ClusterQueue.spec`."""

    resource_groups: tuple[Group, ...] = ()
    cohort: str = ""
    """Name of the cohort in v1beta1."""
    cohort_name: str = ""
    queueing_strategy: Literal["BestEffortFIFO", "StrictFIFO", ""] = "BestEffortFIFO"
    namespace_selector: LabelSelector | None = None
    """If omitted, the queue accepts every namespace, with a warning. null accepts none, as in Kueue. {} accepts every
    namespace."""
    flavor_fungibility: FlavorFungibility | None = None
    preemption: QueuePreemption | None = None
    stop_policy: Literal["None", "Hold", "HoldAndDrain", ""] | None = None
    fair_sharing: FairSharing | None = None
    admission_scope: AdmissionScope = Field(default_factory=AdmissionScope)
    admission_checks: tuple[str, ...] = ()
    """Names of checks for every flavor, in v1beta1."""
    admission_checks_strategy: ChecksStrategy | None = None

    def to_checks(self) -> tuple[QueueCheck, ...]:
        """Return the admission checks by name: `NewAdmissionChecks` in `pkg/util/admissioncheck/admissioncheck.go`."""
        rules = self.admission_checks_strategy.admission_checks if self.admission_checks_strategy else ()
        by_name = {rule.name: QueueCheck(rule.name, frozenset(rule.on_flavors)) for rule in rules}
        by_name |= {name: QueueCheck(name) for name in self.admission_checks}
        return tuple(by_name[name] for name in sorted(by_name))


class ClusterQueue(KubernetesManifest):
    """A ClusterQueue: a team's quota of each flavor, and how it borrows, lends and preempts."""

    kind: Literal["ClusterQueue"] = "ClusterQueue"
    spec: ClusterQueueSpec = Field(default_factory=ClusterQueueSpec)

    def to_queue(self) -> Queue:
        """Return the queue for the scheduler."""
        spec = self.spec
        return Queue(
            self.metadata.name,
            spec.cohort_name or spec.cohort,
            tuple(group.to_group() for group in spec.resource_groups),
            weight_of(spec.fair_sharing),
            spec.preemption.to_preemption() if spec.preemption else PreemptionRules(),
            spec.flavor_fungibility.to_fungibility() if spec.flavor_fungibility else Fungibility(),
            QueueingStrategy(spec.queueing_strategy or "BestEffortFIFO"),
            StopPolicy(spec.stop_policy or "None"),
            spec.admission_scope.admission_mode == "UsageBasedAdmissionFairSharing",
            checks=spec.to_checks(),
        )

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Whether the queue accepts workloads of a namespace with these labels."""
        if self.spec.namespace_selector is not None:
            return self.spec.namespace_selector.matches(labels)
        return "namespace_selector" not in self.spec.model_fields_set


class CohortSpec(Document):
    """`Cohort.spec`."""

    parent: str = ""
    """Name of the parent in v1beta1."""
    parent_name: str = ""
    resource_groups: tuple[Group, ...] = ()
    fair_sharing: FairSharing | None = None


class CohortManifest(KubernetesManifest):
    """A Cohort: a node of the quota tree above queues and other cohorts."""

    kind: Literal["Cohort"] = "Cohort"
    spec: CohortSpec = Field(default_factory=CohortSpec)

    def to_cohort(self) -> Cohort:
        """Return the cohort for the scheduler."""
        return Cohort(
            self.metadata.name,
            self.spec.parent_name or self.spec.parent,
            tuple(group.to_group() for group in self.spec.resource_groups),
            weight_of(self.spec.fair_sharing),
        )


class ResourceFlavorSpec(Document):
    """`ResourceFlavor.spec`."""

    node_labels: dict[str, str] = {}
    node_taints: tuple[NodeTaint, ...] = ()
    tolerations: tuple[PodToleration, ...] = ()
    topology_name: str = ""


class ResourceFlavor(KubernetesManifest):
    """A ResourceFlavor: a kind of capacity."""

    kind: Literal["ResourceFlavor"] = "ResourceFlavor"
    spec: ResourceFlavorSpec = Field(default_factory=ResourceFlavorSpec)

    def to_flavor(self) -> Flavor:
        """Return the flavor for the scheduler."""
        return Flavor(
            self.metadata.name,
            self.spec.node_labels,
            tuple(Taint(taint.key, taint.value, taint.effect) for taint in self.spec.node_taints),
            tuple(toleration.to_toleration() for toleration in self.spec.tolerations),
        )


class LocalQueueSpec(Document):
    """`LocalQueue.spec`."""

    cluster_queue: str
    stop_policy: Literal["None", "Hold", "HoldAndDrain", ""] | None = None
    fair_sharing: FairSharing | None = None


class ConsumedResources(Document):
    """`LocalQueue.status.fairSharing.admissionFairSharingStatus`."""

    consumed_resources: dict[str, Quantity] = {}
    last_update: Instant | None = None


class LocalQueueFairSharing(Document):
    """`LocalQueue.status.fairSharing`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"weightedShare"})
    admission_fair_sharing_status: ConsumedResources | None = None


class LocalQueueStatus(Document):
    """`LocalQueue.status`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset(
        {"conditions", "pendingWorkloads", "reservingWorkloads", "admittedWorkloads", "flavors"}
        | {"flavorsReservation", "flavorsUsage", "flavorUsage"}
    )
    fair_sharing: LocalQueueFairSharing | None = None


class LocalQueue(KubernetesManifest):
    """A LocalQueue: the name of a ClusterQueue in a namespace."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset()
    kind: Literal["LocalQueue"] = "LocalQueue"
    spec: LocalQueueSpec
    status: LocalQueueStatus = Field(default_factory=LocalQueueStatus)

    @property
    def consumed(self) -> tuple[dict[str, float], float | None] | None:
        """The recent use by resource, and the time at which it was measured; None if the status has none."""
        sharing = self.status.fair_sharing
        status = sharing.admission_fair_sharing_status if sharing else None
        if status is None:
            return None
        amounts = {name: float(quantities.parse(quantity)) for name, quantity in status.consumed_resources.items()}
        return amounts, None if status.last_update is None else seconds(status.last_update)


class WorkloadPriorityClass(KubernetesManifest):
    """A priority class."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"description", "globalDefault", "preemptionPolicy"})
    kind: Literal["WorkloadPriorityClass", "PriorityClass"] = "WorkloadPriorityClass"
    value: WholeNumber


class Namespace(KubernetesManifest):
    """A namespace. Only its labels matter."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"spec", "status"})
    kind: Literal["Namespace"] = "Namespace"

    @property
    def labels(self) -> dict[str, str]:
        """The labels, with the name label that Kubernetes adds to every namespace."""
        return {"kubernetes.io/metadata.name": self.metadata.name} | self.metadata.labels
