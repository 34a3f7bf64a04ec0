"""The objects of the scheduler: queues, cohorts and flavors (configuration), and workloads."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class computed_once(Generic[T]):  # noqa: N801 - used like a property
    """`functools.cached_property` without its lock, which Python removed in version 3.12 because it is slow."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "computed_once[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> "T | computed_once[T]":
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


Key = tuple[str, str]
"""(flavor, resource): the unit in which quota is counted."""
Amounts = dict[Key, int]

PODS = "pods"
"""The resource with which a queue counts pods, if it covers it."""


class QueueingStrategy(StrEnum):
    """Whether the rest of a queue waits when its head cannot be admitted."""

    BEST_EFFORT = "BestEffortFIFO"
    """The head is parked, and the next workload is tried."""
    STRICT = "StrictFIFO"
    """The rest of the queue waits behind the head."""


class StopPolicy(StrEnum):
    """Whether a queue admits workloads, and what happens to its admitted workloads."""

    NONE = "None"
    HOLD = "Hold"
    """No new admissions. Running workloads continue; workloads that hold quota but have not started are evicted."""
    HOLD_AND_DRAIN = "HoldAndDrain"
    """No new admissions, and running workloads are evicted too."""

    def ends(self, admitted: "Admitted") -> bool:
        """Whether a workload that holds quota is evicted."""
        return self is StopPolicy.HOLD_AND_DRAIN or (self is StopPolicy.HOLD and not admitted.is_started)


class PreemptionPolicy(StrEnum):
    """The admitted workloads that a pending workload may preempt."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"
    """Workloads of lower priority, or of equal priority that queued later. Only within the same queue."""
    ANY = "Any"
    """Only in other queues."""


class Fungible(StrEnum):
    """Whether the flavor search stops at a flavor that needs borrowing or preemption."""

    STOP = "MayStopSearch"
    TRY_NEXT = "TryNextFlavor"


class Preference(StrEnum):
    """Whether a workload prefers to borrow or to preempt."""

    BORROWING_OVER_PREEMPTION = "BorrowingOverPreemption"
    PREEMPTION_OVER_BORROWING = "PreemptionOverBorrowing"


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of one node of the cohort tree for one key, in the resource's smallest unit."""

    nominal: int = 0
    borrow: int | None = None
    """Borrowing limit: maximum use beyond nominal; None for no limit."""
    lend: int | None = None
    """Lending limit: maximum that other queues may use; None for all."""


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class FlavorQuotas:
    """A flavor and its quota by resource."""

    flavor: str
    quotas: Mapping[str, Quota]


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Resources that a pod set always gets from the same flavor, with the flavors in the order of the search."""

    resources: tuple[str, ...]
    flavors: tuple[FlavorQuotas, ...]


@dataclass(frozen=True, slots=True)
class BorrowWithin:
    """Preemption in other queues while this queue borrows: only of lower priority, and not above the threshold."""

    max_priority_threshold: int | None = None


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """The workloads that a queue's workloads may preempt: in the queue, in other queues, and while borrowing."""

    within: PreemptionPolicy = PreemptionPolicy.NEVER
    reclaim: PreemptionPolicy = PreemptionPolicy.NEVER
    borrow_within: BorrowWithin | None = None


@dataclass(frozen=True, slots=True)
class Fungibility:
    """When the flavor search continues although a flavor works."""

    when_can_borrow: Fungible = Fungible.STOP
    when_can_preempt: Fungible = Fungible.TRY_NEXT
    preference: Preference = Preference.BORROWING_OVER_PREEMPTION


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """An admission check of a queue: a job with quota starts only after it has passed."""

    name: str
    flavors: frozenset[str] = frozenset()
    """The flavors that need it; empty if every flavor does."""

    def concerns(self, flavors: Iterable[str]) -> bool:
        """Whether a job with quota of these flavors needs the check."""
        return not self.flavors or not self.flavors.isdisjoint(flavors)


@dataclass(frozen=True, slots=True)
class Queue:
    """A team's queue (a Kueue ClusterQueue)."""

    name: str
    cohort: str = ""
    """Its parent. Without a cohort, the queue neither borrows nor lends."""
    groups: tuple[ResourceGroup, ...] = ()
    fair_weight: float = 1.0
    preemption: PreemptionRules = PreemptionRules()
    fungibility: Fungibility = Fungibility()
    strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT
    stop: StopPolicy = StopPolicy.NONE
    by_use: bool = False
    """Whether the sub-queue with the least recent use goes first, before priority."""
    inactive: str = ""
    """Why it admits no workload although its stop policy allows it, for example a missing flavor; empty if it does."""
    checks: tuple[QueueCheck, ...] = ()
    """Its admission checks. They delay the start of a job; they do not change which job gets quota."""

    @property
    def is_active(self) -> bool:
        """Whether it admits workloads, and its workloads may be preempted."""
        return self.stop is StopPolicy.NONE and not self.inactive


@dataclass(frozen=True, slots=True)
class Cohort:
    """A node of the quota tree above queues and other cohorts. It may have quota and limits of its own."""

    name: str
    parent: str = ""
    groups: tuple[ResourceGroup, ...] = ()
    fair_weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a flavor's nodes."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class FlavorToleration:
    """A toleration of a pod. An empty key with `Exists` tolerates everything; an empty effect all effects."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether the pod tolerates this taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


@dataclass(frozen=True, slots=True)
class Requirement:
    """An expression of a node affinity: `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def is_satisfied_by(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy the expression."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
        return False

    def _compares(self, value: str | None) -> bool:
        try:
            actual, bound = int(value or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return actual > bound if self.operator == "Gt" else actual < bound


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """A node that topology-aware placement may choose."""

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    taints: tuple[Taint, ...] = ()
    used: Mapping[str, int] = field(default_factory=dict)
    """Requests of its pods that belong to no workload with a topology assignment."""


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """The topology of a flavor: the node labels of its levels, the widest level first, and the flavor's nodes."""

    name: str
    levels: tuple[str, ...]
    nodes: tuple[TopologyNode, ...]


@dataclass(frozen=True, slots=True)
class SliceConstraint:
    """Each `size` pods of a pod set must be in one domain of a level."""

    level: str
    size: int


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """How close to each other the pods of a pod set must run. Levels are node labels."""

    required: str = ""
    """All pods must be in one domain of this level."""
    preferred: str = ""
    """All pods should be in one domain of this level, else of the lowest level above it that fits them."""
    unconstrained: bool | None = None
    """Whether the pods may run on any nodes."""
    slices: tuple[SliceConstraint, ...] = ()
    """The widest level first; each size divides the one before it."""


@dataclass(frozen=True, slots=True)
class TopologyDomain:
    """A domain by its label values, and the pods that are placed in it."""

    values: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class TopologyAssignment:
    """The domains of a pod set, as Kueue records them: by node name if the lowest level is a node."""

    flavors: tuple[str, ...]
    """The flavors whose nodes it uses; one, unless a document names more."""
    levels: tuple[str, ...]
    domains: tuple[TopologyDomain, ...]


@dataclass(frozen=True, slots=True)
class Flavor:
    """A kind of capacity: the labels and taints of its nodes, and the tolerations that its pods get."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    tolerations: tuple[FlavorToleration, ...] = ()
    topology: NodeTopology | None = None
    """None if quota alone decides."""


def with_used_flavors(flavors: Mapping[str, Flavor], queues: Iterable[Queue]) -> dict[str, Flavor]:
    """Return the flavors by name, with those that queues use and nothing describes: they have no labels or taints."""
    used_flavors = {flavor.flavor for queue in queues for group in queue.groups for flavor in group.flavors}
    return {name: Flavor(name) for name in sorted(used_flavors)} | dict(flavors)


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of a workload that have the same requests and constraints."""

    name: str
    count: int
    requests: Mapping[str, int]
    """Per pod."""
    min_count: int | None = None
    """Smallest count for partial admission; None without partial admission."""
    selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[tuple[Requirement, ...], ...] = ()
    """Node selector terms. At least one must match. A term matches if all its requirements hold."""
    tolerations: tuple[FlavorToleration, ...] = ()
    group: str = ""
    """Pod sets of the same group get the same flavors."""
    topology: TopologyRequest | None = None
    node_requests: Mapping[str, int] | None = None
    """Requests of one pod on its node, without exclusions and transformations of quota; None if they are the same."""

    @property
    def needs_of_node(self) -> Mapping[str, int]:
        """The amounts that one pod uses of its node, including its pod slot."""
        requests = self.requests if self.node_requests is None else self.node_requests
        return {**requests, PODS: 1}

    def requests_of(self, count: int) -> dict[str, int]:
        """Return what this many pods request together."""
        return {resource: amount * count for resource, amount in self.requests.items()}


@dataclass(frozen=True)
class Workload:
    """A workload that is pending or holds quota. Its id is unique over all queues."""

    workload_id: str
    queue: str
    pod_sets: tuple[PodSet, ...]
    priority: int = 0
    created_at: float = 0.0
    """Seconds since the epoch. Only the order matters."""
    requeued_at: float | None = None
    """When it lost its position in the queue: evicted for its ready timeout, or by an admission check.

    None if it did not lose its position. A preempted workload keeps its position.
    """
    replaces: str = ""
    """The admitted workload slice that this larger slice replaces."""
    has_reservation: bool = False
    """Whether it already holds its quota, so that the cycle only checks it again."""
    uid: str = ""
    """Breaks ties; without it, the id does."""
    inadmissible_reason: str = ""
    """Why its queue never admits it: its namespace does not match, its checks failed, or its pods are invalid."""
    blocks_when_inadmissible: bool = False
    """Whether it blocks a strict queue although it is inadmissible. Not if its namespace does not match."""
    sub_queue: str = ""
    """Its submitter or LocalQueue. A queue that orders by recent use measures the use of each sub-queue."""
    sub_weight: float = 1.0
    """Fair-sharing weight of its sub-queue: use is divided by it."""

    @property
    def queued_at(self) -> float:
        """The time that decides its position in the queue."""
        return self.created_at if self.requeued_at is None else self.requeued_at

    @property
    def tie_break(self) -> str:
        """Decides between two workloads of equal rank: the UID, or without it the id. The smaller text is first.

        Each order of workloads contains it: `order` (the jobs of a queue), `_classical_order` in cycle.py (the heads
        of the queues) and `order_key` in preemption.py (the victims). Only a tie between heads under fair sharing goes
        by the names of their queues.
        """
        return self.uid or self.workload_id

    @computed_once
    def order(self) -> tuple[int, float, str, str]:
        """Sorts the workloads of a queue: higher priority first, then earlier, then by `tie_break`."""
        return (-self.priority, self.queued_at, self.tie_break, self.workload_id)

    @computed_once
    def counts(self) -> tuple[int, ...]:
        """The pod counts at full size."""
        return tuple(pod_set.count for pod_set in self.pod_sets)

    @property
    def may_shrink(self) -> bool:
        """Whether it may be admitted with fewer pods (partial admission)."""
        return any(pod_set.min_count is not None and pod_set.min_count < pod_set.count for pod_set in self.pod_sets)

    @computed_once
    def flavor_needs(self) -> tuple[object, ...]:
        """Equal for workloads whose pods can run on the same flavors."""
        return tuple(
            (
                tuple(sorted(pod_set.selector.items())),
                pod_set.affinity,
                pod_set.tolerations,
                pod_set.group,
                pod_set.topology and (pod_set.topology, tuple(sorted(pod_set.needs_of_node))),
            )
            for pod_set in self.pod_sets
        )

    @computed_once
    def shape(self) -> str:
        """Equal for workloads that always get the same decision: same priority, pods, requests and counts.

        Kueue calls it the scheduling equivalence hash.
        """
        pods = [
            (
                pod_set.name,
                pod_set.count,
                pod_set.min_count,
                sorted(pod_set.requests.items()),
                sorted(pod_set.selector.items()),
                [
                    [(requirement.key, requirement.operator, requirement.values) for requirement in term]
                    for term in pod_set.affinity
                ],
                [
                    (toleration.key, toleration.operator, toleration.value, toleration.effect)
                    for toleration in pod_set.tolerations
                ],
                pod_set.group,
            )
            for pod_set in self.pod_sets
        ]
        # A workload that is inadmissible shares its decision with no other workload.
        alone = self.workload_id if self.inadmissible_reason else ""
        text = repr((self.priority, pods, self.replaces, alone))
        if any(pod_set.topology or pod_set.node_requests for pod_set in self.pod_sets):
            text += repr([(pod_set.topology, pod_set.node_requests) for pod_set in self.pod_sets])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(slots=True)
class Admitted:
    """A workload that holds quota."""

    workload: Workload
    flavors: tuple[Mapping[str, str], ...]
    """By pod set: resource → flavor."""
    counts: tuple[int, ...]
    reserved_at: float | None = None
    """When it got its quota; None counts as now."""
    is_evicted: bool = False
    """Whether it was asked to stop. It holds its quota until it has stopped."""
    use: Amounts = field(default_factory=dict)
    """Use by key as recorded at admission; computed from flavors and counts if nothing was recorded."""
    work_at_risk: float | None = None
    """Device-seconds since its last checkpoint, restart included; None if unknown."""
    is_started: bool = True
    """Whether it was admitted, not only given quota: all its admission checks have passed.

    A queue with stop policy Hold evicts the workloads that have not started.
    """
    is_ready: bool = True
    """Whether all its pods are ready. Matters only if the rules block admission until pods are ready."""
    is_pinned: bool = False
    """Whether it can never be preempted."""
    topology: tuple[TopologyAssignment | None, ...] = ()
    """By pod set, the domains of its pods; empty without a topology."""

    def __post_init__(self) -> None:
        if self.use:
            return
        for pod_set, flavors, count in zip(self.workload.pod_sets, self.flavors, self.counts, strict=True):
            for resource, flavor in flavors.items():
                amount = count if resource == PODS else pod_set.requests.get(resource, 0) * count
                key = (flavor, resource)
                self.use[key] = self.use.get(key, 0) + amount
