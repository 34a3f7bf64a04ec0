"""The decisions of a Kueue cycle about the heads of the queues."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.domain.kueue.assignment import Assignment, FlavorCursor, Pending, new_tuple
from evenkeel.domain.kueue.objects import Amounts, Key, Workload
from evenkeel.domain.kueue.preemption import Victim


class Result(StrEnum):
    """The outcome of a Kueue cycle for a head."""

    ADMITTED = "Admitted"
    PREEMPTING = "Preempting"
    """Its victims were asked to stop. The head waits for them."""
    DEFERRED = "Deferred"
    """It fits once the evictions of this cycle have ended."""
    NO_FIT = "NoFit"
    NO_CANDIDATES = "NoCandidates"
    """It fits only after preemption, and no workload may be preempted."""
    INADMISSIBLE = "Inadmissible"
    """Its queue does not accept it."""
    SKIPPED = "Skipped"
    """An earlier head of this cycle took the quota or the victims."""
    BLOCKED = "Blocked"
    """It fits, but waits until the pods of all admitted workloads are ready."""
    NO_NODES = "NoNodes"
    """It has quota, but too few nodes are free. Occurs only if the scheduler checks nodes (`NodeFit`)."""


NodeFit = Callable[[Workload, Assignment, tuple[Victim, ...]], str]
"""Returns why no nodes fit a workload on its flavors after these victims stop; empty if nodes fit.

The scheduler calls it last. If it returns empty and there are no victims, the workload is admitted, so the callee may
assign the nodes at once.
"""


class EarlierHeads(NamedTuple):
    """Quota and victims that earlier heads took in the same cycle.

    With them, a Kueue cycle can be repeated for one head alone.
    """

    usage: tuple[tuple[str, Mapping[Key, int], bool], ...] = ()
    """(queue, amounts, whether the head fits at once). If it does not, the amounts are only reserved for it."""
    victims: tuple[str, ...] = ()
    """Workloads that earlier heads of the same tree preempt."""


NO_EARLIER_HEADS = EarlierHeads()


class CycleDecision(NamedTuple):
    """The decision of a Kueue cycle about one head, with all facts behind it."""

    workload: Workload
    result: Result
    reason: str
    assignment: Assignment
    victims: tuple[Victim, ...] = ()
    pending: Pending = Pending.NONE
    reserved: Mapping[Key, int] = MappingProxyType({})
    """Capacity that is reserved for the head until the cycle ends, although it was not admitted."""
    was_recomputed: bool = False
    """Whether it was assigned again because earlier heads of this cycle already preempt its victims."""
    parked: bool = False
    earlier: EarlierHeads = NO_EARLIER_HEADS
    """Set only if the scheduler checks nodes."""
    scan_start: FlavorCursor | None = None
    """The flavor at which its scan started."""
    below_nominal: Mapping[str, Amounts] = MappingProxyType({})
    """Queue → how far it falls below its nominal quota after the victims have stopped.

    The last victim may be larger than what its queue had borrowed.
    """

    def as_parked(self) -> "CycleDecision":
        """Return the same decision, with the mark that the shape of the workload was parked."""
        return new_tuple(CycleDecision, (*self[:_PARKED], True, *self[_PARKED + 1 :]))


_PARKED = CycleDecision._fields.index("parked")
