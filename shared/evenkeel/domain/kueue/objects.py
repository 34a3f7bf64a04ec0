"""What is configured (queues, cohorts, flavors) and what is asked for (workloads)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

UNLIMITED = 2**100
"""An amount without bound: beyond anything that sums and differences of amounts of 64 bits come near."""

Key = tuple[str, str]
"""(flavor, resource): what quota is counted in."""
Amounts = dict[Key, int]

PODS = "pods"
"""A queue that covers this resource counts pods with it."""


class QueueingStrategy(StrEnum):
    """What a head that cannot be admitted does to those behind it."""

    BEST_EFFORT = "BestEffortFIFO"
    """It is parked, and the next one is tried."""
    STRICT = "StrictFIFO"
    """They wait behind it."""


class StopPolicy(StrEnum):
    """Whether a queue admits."""

    NONE = "None"
    HOLD = "Hold"
    """Nothing new is admitted; what runs, runs on, and what has only its quota gives it up."""
    HOLD_AND_DRAIN = "HoldAndDrain"
    """What runs is evicted too."""

    def ends(self, admitted: "Admitted") -> bool:
        """Whether somebody who holds quota has to go."""
        return self is StopPolicy.HOLD_AND_DRAIN or (self is StopPolicy.HOLD and not admitted.is_started)


class PreemptionPolicy(StrEnum):
    """Whose workloads a waiting one may have evicted."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "LowerOrNewerEqualPriority"
    """Those of equal priority that queued later, too. In the own queue only."""
    ANY = "Any"
    """In other queues only."""


class Fungible(StrEnum):
    """What to do at a flavor that would do, at a price."""

    STOP = "MayStopSearch"
    TRY_NEXT = "TryNextFlavor"


class Preference(StrEnum):
    """Which price is the smaller one."""

    BORROWING_OVER_PREEMPTION = "BorrowingOverPreemption"
    PREEMPTION_OVER_BORROWING = "PreemptionOverBorrowing"


@dataclass(frozen=True, slots=True)
class Quota:
    """What a node of the tree holds of one key, in the resource's smallest unit."""

    nominal: int = 0
    borrow: int | None = None
    """Most that may be used beyond nominal; None = no limit."""
    lend: int | None = None
    """Most that others may use of it; None = all."""


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class FlavorQuotas:
    """A flavor and its quota by resource."""

    flavor: str
    quotas: Mapping[str, Quota]


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Resources that are always given from the same flavor, and the flavors in the order in which they are tried."""

    resources: tuple[str, ...]
    flavors: tuple[FlavorQuotas, ...]


@dataclass(frozen=True, slots=True)
class BorrowWithin:
    """Preemption in other queues while this one borrows: of lower priority, at most of the threshold."""

    max_priority_threshold: int | None = None


@dataclass(frozen=True, slots=True)
class Preemption:
    """Whom a queue's workloads may have evicted."""

    within: PreemptionPolicy = PreemptionPolicy.NEVER
    reclaim: PreemptionPolicy = PreemptionPolicy.NEVER
    borrow_within: BorrowWithin | None = None


@dataclass(frozen=True, slots=True)
class Fungibility:
    """When the search for a flavor goes on though one would do."""

    when_can_borrow: Fungible = Fungible.STOP
    when_can_preempt: Fungible = Fungible.TRY_NEXT
    preference: Preference = Preference.BORROWING_OVER_PREEMPTION


@dataclass(frozen=True, slots=True)
class Queue:
    """A team's queue (a Kueue ClusterQueue)."""

    name: str
    cohort: str = ""
    """Its parent; without one it neither borrows nor lends."""
    groups: tuple[ResourceGroup, ...] = ()
    fair_weight: float = 1.0
    preemption: Preemption = Preemption()
    fungibility: Fungibility = Fungibility()
    strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT
    stop: StopPolicy = StopPolicy.NONE
    by_use: bool = False
    """Whether those of its sub-queues that used least of late go first, before priority."""
    inactive: str = ""
    """Why it admits nobody though nobody stopped it: a flavor that does not exist."""

    @property
    def is_active(self) -> bool:
        """Whether it takes part: it admits, and what it runs may have to go for others."""
        return self.stop is StopPolicy.NONE and not self.inactive


@dataclass(frozen=True, slots=True)
class Cohort:
    """A node above queues and other cohorts; may hold quota and limits of its own."""

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
class Toleration:
    """A toleration of a pod. An empty key with `Exists` tolerates everything; an empty effect all effects."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether this taint is tolerated."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a node affinity: `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy it."""
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
            there, wanted = int(value or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return there > wanted if self.operator == "Gt" else there < wanted


@dataclass(frozen=True, slots=True)
class Flavor:
    """A kind of capacity: its nodes' labels and taints, and tolerations that its pods are given."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of one shape."""

    name: str
    count: int
    requests: Mapping[str, int]
    """Per pod."""
    min_count: int | None = None
    """Fewest that will do, where the workload may be admitted in part."""
    selector: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[tuple[Requirement, ...], ...] = ()
    """Terms, of which one must hold; each of them whole."""
    tolerations: tuple[Toleration, ...] = ()
    group: str = ""
    """Pod sets of one group get their flavor together."""

    def total(self, count: int) -> dict[str, int]:
        """Return what so many of these pods ask for."""
        return {resource: amount * count for resource, amount in self.requests.items()}


@dataclass(frozen=True)
class Workload:
    """What waits for quota, or holds it. Its id is unique over all queues, and the last tie-break."""

    workload_id: str
    queue: str
    pod_sets: tuple[PodSet, ...]
    priority: int = 0
    created_at: float = 0.0
    """Seconds since the epoch. Only the order counts."""
    requeued_at: float | None = None
    """When it lost its place: evicted for missing its ready timeout, or by an admission check. Preemption does not."""
    replaces: str = ""
    """The admitted workload of which this is the larger slice."""
    has_reservation: bool = False
    """Whether it holds its quota already and is only looked at once more."""
    uid: str = ""
    """What ties are broken by; its id where it has none."""
    barred: str = ""
    """Why its queue takes it not at all: its namespace does not match, its checks failed, or its pods cannot be."""
    barred_holds_up: bool = False
    """Whether a strict queue waits behind it all the same: behind anybody but one of a wrong namespace."""
    sub_queue: str = ""
    """Who submitted it, or by which LocalQueue it came: by this a queue that goes by use tells them apart."""
    sub_weight: float = 1.0
    """By how much more than others its sub-queue may use."""

    @property
    def queued_at(self) -> float:
        """The time by which it stands in its queue."""
        return self.created_at if self.requeued_at is None else self.requeued_at

    @property
    def tie(self) -> str:
        """The last tie-break but one."""
        return self.uid or self.workload_id

    @cached_property
    def order(self) -> tuple[int, float, str, str]:
        """Sorts a queue: higher priority, then earlier, then by id."""
        return (-self.priority, self.queued_at, self.tie, self.workload_id)

    @property
    def counts(self) -> tuple[int, ...]:
        """The full size."""
        return tuple(pod_set.count for pod_set in self.pod_sets)

    @property
    def may_shrink(self) -> bool:
        """Whether it may be admitted in part."""
        return any(pod_set.min_count is not None and pod_set.min_count < pod_set.count for pod_set in self.pod_sets)

    @cached_property
    def needs(self) -> tuple[object, ...]:
        """The same for workloads whose pods could run on the same flavors."""
        return tuple(
            (tuple(sorted(each.selector.items())), each.affinity, each.tolerations, each.group)
            for each in self.pod_sets
        )

    @cached_property
    def shape(self) -> str:
        """The same for workloads that are bound to get the same answer: priority, pods, requests, counts."""
        pods = [
            (
                pod_set.name,
                pod_set.count,
                pod_set.min_count,
                sorted(pod_set.requests.items()),
                sorted(pod_set.selector.items()),
                [[(need.key, need.operator, need.values) for need in term] for term in pod_set.affinity],
                [(each.key, each.operator, each.value, each.effect) for each in pod_set.tolerations],
                pod_set.group,
            )
            for pod_set in self.pod_sets
        ]
        # What its queue never takes is told of each by itself.
        alone = self.workload_id if self.barred else ""
        text = repr((self.priority, pods, self.replaces, alone))
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
    """It is to stop, and holds its quota until it has."""
    use: Amounts = field(default_factory=dict)
    """As it was recorded when it was admitted; worked out from flavors and counts where nothing was."""
    work_at_risk: float | None = None
    """Device-seconds since its last checkpoint, restart included; None where it never said."""
    is_started: bool = True
    """Whether it was admitted, not only given quota: checks may still be open. A queue that is held lets only those
    run on that are."""
    is_ready: bool = True
    """Whether all its pods are ready. It matters where nobody else is admitted before they are."""
    is_pinned: bool = False
    """Whether it may not be evicted, whoever waits."""

    def __post_init__(self) -> None:
        if self.use:
            return
        for pod_set, flavors, count in zip(self.workload.pod_sets, self.flavors, self.counts, strict=True):
            for resource, flavor in flavors.items():
                amount = count if resource == PODS else pod_set.requests.get(resource, 0) * count
                key = (flavor, resource)
                self.use[key] = self.use.get(key, 0) + amount
