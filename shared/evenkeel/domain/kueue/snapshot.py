"""The state that one cycle weighs: the trees, the flavors, and who holds quota."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from evenkeel.domain.kueue.capacity import Node, Tree
from evenkeel.domain.kueue.decayed import Decay
from evenkeel.domain.kueue.objects import Admitted, Amounts, Flavor, Key, Queue, ResourceGroup, Workload


class Rules(NamedTuple):
    """The cluster-wide switches."""

    fair_sharing: bool = False
    fair_strategies: tuple[str, ...] = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")
    """In this order; the second only as `LessThanInitialShare`."""
    partial_admission: bool = True
    ignores_undeclared: bool = False
    """Whether resources that a queue does not cover count for nothing, instead of blocking."""
    blocks_until_ready: bool = False
    """Whether nobody is admitted before the pods of all who are admitted, in whatever queue, are ready. Kueue's
    `waitForPodsReady.blockAdmission`, off by default."""
    flap_guard_seconds: float = 0.0
    """Ours: of two workloads, one may have the other evicted once in so long. 0: as often as the rules say."""
    min_run_seconds: float = 0.0
    """Ours: nobody has to go before it ran so long. 0: at any time."""
    never_overcommits: bool = False
    """Ours: nobody is admitted into room that victims of the same cycle still hold. Kueue counts them as gone, so two
    workloads that each fit beside them may together use more than there is until they have stopped."""
    spares_work: bool = False
    """Ours: of equal priorities, who loses least work goes first, instead of who was admitted last."""
    decay: Decay | None = None
    """How use fades, in queues that go by it. Kueue: only with a configuration of admission fair sharing."""
    evicts_by_use: bool = False
    """Whether in queues that go by use, of two workloads of one queue, that of the sub-queue which used more of late
    has to go first, whatever their priorities. Kueue's, with admission fair sharing."""


@dataclass(slots=True)
class Team:
    """A queue as a cycle sees it: its declaration, its node in the tree, and who holds its quota."""

    queue: Queue
    node: Node
    admitted: dict[str, Admitted] = field(default_factory=dict)
    generation: int = 0
    """Raised when somebody who held quota changes or leaves, and when quota changes in the tree."""
    group_of: dict[str, ResourceGroup] = field(init=False)
    """By resource."""

    def __post_init__(self) -> None:
        # A resource belongs to one group; where it is declared twice, the first counts.
        self.group_of = {resource: group for group in reversed(self.queue.groups) for resource in group.resources}


class Snapshot:
    """Everything that a cycle weighs. What is only tried is undone."""

    def __init__(self, tree: Tree, queues: Iterable[Queue], flavors: Mapping[str, Flavor], rules: Rules) -> None:
        self.tree = tree
        self.flavors = flavors
        self.rules = rules
        self.teams = {queue.name: Team(queue, tree.queues[queue.name]) for queue in queues}
        self.now: float = 0.0
        """What a missing time of admission counts as."""
        self.evicted_at: dict[frozenset[str], float] = {}
        """When one of two workloads last had the other evicted."""
        self.use_of: dict[str, Callable[[str, float], float]] = {}
        """Of the queues that go by use: what a sub-queue of some weight used of late."""
        self._eligible: dict[tuple[str, tuple[object, ...]], Any] = {}

    def team_of(self, workload: Workload) -> Team:
        """Return the queue that a workload waits in, or is admitted to."""
        return self.teams[workload.queue]

    def admit(self, admitted: Admitted) -> None:
        """Let a workload hold its quota."""
        team = self.team_of(admitted.workload)
        team.admitted[admitted.workload.workload_id] = admitted
        team.node.add_all(admitted.use)

    def release(self, admitted: Admitted) -> None:
        """Take a workload's quota back."""
        team = self.team_of(admitted.workload)
        del team.admitted[admitted.workload.workload_id]
        team.node.remove_all(admitted.use)

    @contextmanager
    def without(self, workloads: Sequence[Admitted]) -> Any:
        """Look at the world without these: neither their use nor they themselves."""
        for each in workloads:
            self.release(each)
        try:
            yield
        finally:
            for each in workloads:
                self.admit(each)

    @contextmanager
    def without_use_of(self, workloads: Iterable[Admitted]) -> Any:
        """Look at the world without what these use."""
        gone = tuple(workloads)
        for each in gone:
            self.team_of(each.workload).node.remove_all(each.use)
        try:
            yield
        finally:
            for each in gone:
                self.team_of(each.workload).node.add_all(each.use)

    def spares(self, workload: Workload, admitted: Admitted) -> bool:
        """Whether our own switches keep a workload from being evicted for another; never without them."""
        rules = self.rules
        if admitted.is_evicted:
            return False
        began_at = self.now if admitted.reserved_at is None else admitted.reserved_at
        if rules.min_run_seconds and self.now - began_at < rules.min_run_seconds:
            return True
        if not rules.flap_guard_seconds:
            return False
        last = self.evicted_at.get(frozenset((workload.workload_id, admitted.workload.workload_id)))
        return last is not None and self.now - last < rules.flap_guard_seconds

    def eligible(self, workload: Workload, found: Callable[[], Any]) -> Any:
        """Return what is worked out once for each queue and what pods need, since flavors do not change meanwhile."""
        name = (workload.queue, workload.needs)
        known = self._eligible.get(name)
        if known is None:
            known = self._eligible[name] = found()
        return known


@contextmanager
def using(node: Node, amounts: Mapping[Key, int]) -> Any:
    """Look at the world as if a queue used so much more."""
    node.add_all(amounts)
    try:
        yield
    finally:
        node.remove_all(amounts)


@contextmanager
def not_using(node: Node, amounts: Mapping[Key, int]) -> Any:
    """Look at the world as if a queue used so much less."""
    node.remove_all(amounts)
    try:
        yield
    finally:
        node.add_all(amounts)


def positive(amounts: Amounts) -> Amounts:
    """Return the amounts that are asked for at all."""
    return {key: amount for key, amount in amounts.items() if amount}
