"""The flavors assigned to a workload: modes, verdicts, and the figures behind them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from evenkeel.domain.kueue.objects import Amounts, Key, TopologyAssignment, Workload
from evenkeel.domain.kueue.snapshot import ClusterQueueSnapshot
from evenkeel.domain.kueue.topology_state import PlacementResult, TopologyDemand

new_tuple = tuple.__new__
"""Builds a named tuple from all its fields, faster than its constructor. Only for the loops of a Kueue cycle."""


class FlavorMode(IntEnum):
    """How a workload could get a flavor, the best mode last."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    """It fits only after preemption, and no workload may be preempted."""
    PREEMPT = 2
    """Workloads of the same queue would be preempted, possibly with workloads of other queues."""
    RECLAIM = 3
    """Only workloads of other queues would be preempted."""
    FIT = 4


class AssignmentMode(IntEnum):
    """The mode of a whole workload, the best last."""

    NO_FIT = 0
    PREEMPT = 1
    DEFERRED = 2
    """It fits once the present evictions have ended."""
    FIT = 3


class Pending(StrEnum):
    """Why a workload gets no quota, the least severe reason first."""

    NONE = ""
    WAITING_FOR_PODS_READY = "WaitingForPodsReady"
    """Its quota is free, but pods of admitted workloads are not ready. The flavor search never returns this reason."""
    TOPOLOGY_PLACEMENT_FAILED = "TopologyPlacementFailed"
    """Quota is enough, but its pods fit in no domain of the topology, even without other workloads."""
    WAITING_FOR_QUOTA = "WaitingForQuota"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"

    @property
    def severity(self) -> int:
        """Rank by which reasons are compared; 0 for none."""
        return _SEVERITY[self]


_SEVERITY = {pending: rank for rank, pending in enumerate(Pending)}


class Choice(NamedTuple):
    """The flavor chosen for one resource of a pod set."""

    flavor: str
    mode: FlavorMode
    level: int
    """Height of the tree at which it borrows; 0 without borrowing."""
    tried: int
    """Index of the last flavor examined; -1 if it was the last of its list."""


class Inequality(NamedTuple):
    """The figures that decided whether one key of a flavor is enough."""

    resource: str
    wanted: int
    """Includes the requests of earlier pod sets of the same workload."""
    available: int
    potential: int
    nominal: int
    used: int
    mode: FlavorMode
    level: int


class FlavorAttempt(NamedTuple):
    """A flavor that was examined."""

    flavor: str
    mode: FlavorMode
    level: int = 0
    pending: Pending = Pending.NONE
    why: str = ""
    compared: tuple[Inequality, ...] = ()


class FlavorCursor(NamedTuple):
    """The flavor at which a scan stopped, so that the next cycle continues there."""

    tried: tuple[Mapping[str, int], ...]
    """By pod set: resource → index of the last flavor examined."""
    generation: int
    cycle: int
    shape: str

    @property
    def has_more(self) -> bool:
        """Whether any list has flavors that were not examined."""
        for indexes in self.tried:
            for index in indexes.values():
                if index != -1:
                    return True
        return False

    def next_index(self, pod_set: int, resource: str) -> int:
        """Return the index of the flavor to start with."""
        if pod_set >= len(self.tried):
            return 0
        return self.tried[pod_set].get(resource, -1) + 1

    def is_outdated(self, workload: Workload, queue: ClusterQueueSnapshot, cycle: int) -> bool:
        """Whether the workload or its queue has changed since. The scan then starts from the first flavor."""
        if self.shape != workload.shape:
            return True
        return cycle - self.cycle > 1 and queue.generation > self.generation


@dataclass(slots=True)
class Assignment:
    """The flavors of a workload at one size, with the resulting use and mode."""

    counts: tuple[int, ...]
    choices: list[Mapping[str, Choice]] = field(default_factory=list)
    """By pod set, up to the first that got no flavor: resource → choice."""
    use: Amounts = field(default_factory=dict)
    """Quota that it would use; for a larger slice, the additional quota."""
    verdict: AssignmentMode = AssignmentMode.FIT
    level: int = 0
    pending: Pending = Pending.NONE
    attempts: list[tuple[FlavorAttempt, ...]] = field(default_factory=list)
    """By pod set."""
    flavor_cursor: FlavorCursor | None = None
    demands: tuple[TopologyDemand, ...] = ()
    """The pod sets that need domains of a topology."""
    topology: tuple[TopologyAssignment | None, ...] = ()
    """By pod set, the domains; if the workload must preempt, those that it gets afterwards."""

    @property
    def keys_needing_preemption(self) -> frozenset[Key]:
        """The (flavor, resource) pairs that need preemption."""
        return frozenset(
            (choice.flavor, resource)
            for choices in self.choices
            for resource, choice in choices.items()
            if FlavorMode.NO_FIT < choice.mode < FlavorMode.FIT
        )

    def place(self, result: PlacementResult) -> None:
        """Record the domains that the pod sets got."""
        self.topology = tuple(result.assignments.get(index) for index in range(len(self.counts)))

    @property
    def flavors(self) -> tuple[dict[str, str], ...]:
        """By pod set: resource → flavor."""
        return tuple({resource: choice.flavor for resource, choice in choices.items()} for choices in self.choices)
