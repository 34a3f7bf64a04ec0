"""The state that one Kueue cycle reads: the cohort trees, the flavors, and the workloads that hold quota."""

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from evenkeel.domain.kueue.capacity import QuotaNode, Tree
from evenkeel.domain.kueue.objects import Admitted, Amounts, Flavor, Key, Queue, ResourceGroup, Workload
from evenkeel.domain.kueue.recent_use import Decay, DecayedUse
from evenkeel.domain.kueue.topology_state import TopologyState, domain_use


class SchedulerRules(NamedTuple):
    """The rules of a Kueue cycle that a cluster can switch on and off."""

    fair_sharing: bool = False
    fair_strategies: tuple[str, ...] = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")
    """In this order. The second strategy can only be `LessThanInitialShare`."""
    partial_admission: bool = True
    ignores_undeclared: bool = False
    """Whether resources that a queue does not cover are ignored, instead of making a workload inadmissible."""
    blocks_until_ready: bool = False
    """Whether a workload is admitted only when the pods of all admitted workloads, in every queue, are ready.

    Kueue's `waitForPodsReady.blockAdmission`, off by default.
    """
    flap_guard_seconds: float = 0.0
    """Evenkeel's own: a workload may preempt the same other workload once in this time. 0 is no limit."""
    min_run_seconds: float = 0.0
    """Evenkeel's own: a workload is not preempted before it ran this long. 0 is no limit."""
    preempt_after_seconds: float = 0.0
    """Evenkeel's own: a workload preempts others only after it waited this long. 0 is no wait.

    Workloads that end by themselves in this time lose no work.
    """
    never_overcommits: bool = False
    """Evenkeel's own: no workload is admitted to quota that victims of the same cycle still hold.

    Kueue counts these victims as gone. Two workloads that each fit next to them may then together use more quota than
    exists until the victims have stopped.
    """
    spares_work: bool = False
    """Evenkeel's own: among equal priorities, the workload with the least work at risk is preempted first.

    Otherwise the workload that was admitted last is preempted first.
    """
    decay: Decay | None = None
    """How use decays, in queues that order by recent use. Kueue: only with admission fair sharing."""
    evicts_by_use: bool = False
    """Whether the workload of the sub-queue with more recent use is preempted first, whatever its priority.

    It concerns two workloads of one queue that orders by recent use. Kueue's rule, with admission fair sharing.
    """
    follows_topology: bool = True
    """Whether flavors have topologies. Kueue's gate `TopologyAwareScheduling`."""
    least_free_capacity: bool = True
    """Whether pods without topology constraints go to small domains first. Kueue's gate `TASProfileMixed`."""
    recomputes_domains: bool = True
    """Whether a head gets other domains if an earlier head of the cycle took its own.

    Otherwise it is skipped. Kueue's gate `TASRecomputeAssignmentWithinSchedulingCycle`.
    """


class FlavorSearch(NamedTuple):
    """A search for the flavor of one or more resources that a queue declares in one group."""

    first: str
    """The first resource by name."""
    resources: tuple[str, ...]
    """All requested resources of the group, by name; empty if the queue has no quota of the first resource."""
    flavors: tuple[tuple[str, tuple[tuple[str, Key], ...]], ...]
    """Each flavor in the order of the search, with its key for each resource."""


@dataclass(slots=True)
class ClusterQueueSnapshot:
    """A queue in a snapshot: its declaration, its node in the quota tree, and the workloads that hold its quota."""

    spec: Queue
    quota_node: QuotaNode
    admitted: dict[str, Admitted] = field(default_factory=dict)
    generation: int = 0
    """Increased when an admitted workload changes or leaves, and when quota of the tree changes."""
    group_by_resource: dict[str, ResourceGroup] = field(init=False)
    _searches: dict[tuple[str, ...], tuple[FlavorSearch, ...]] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )
    _order: dict[str, int] = field(init=False, default_factory=dict, repr=False, compare=False)
    """Id of an admitted workload → its place in the order of admission."""
    _places: Iterator[int] = field(init=False, default_factory=itertools.count, repr=False, compare=False)
    _is_disordered: bool = field(init=False, default=False, repr=False, compare=False)
    """Whether a search removed workloads and added them again, so that `admitted` has another order."""
    _holders: tuple[tuple[Admitted, bool], ...] | None = field(init=False, default=None, repr=False, compare=False)
    _held: frozenset[Hashable] | None = field(init=False, default=None, repr=False, compare=False)

    @property
    def holders(self) -> tuple[tuple[Admitted, bool], ...]:
        """The workloads that hold quota, in the order of admission, each with whether it was asked to stop.

        Records list them, so their order must not depend on earlier searches for victims.
        """
        if self._holders is None:
            in_order: Iterable[Admitted] = self.admitted.values()
            if self._is_disordered:
                in_order = sorted(in_order, key=lambda admitted: self._order[admitted.workload.workload_id])
            self._holders = tuple((admitted, admitted.is_evicted) for admitted in in_order)
        return self._holders

    @property
    def held(self) -> frozenset[Hashable]:
        """The ids of the holders, each with its use and whether it was asked to stop, in no order."""
        if self._held is None:
            self._held = frozenset(
                (admitted.workload.workload_id, is_evicted, tuple(admitted.use.items()))
                for admitted, is_evicted in self.holders
            )
        return self._held

    def add(self, admitted: Admitted) -> None:
        """Add a workload: in its former place after `take_out`, else as the last one."""
        workload_id = admitted.workload.workload_id
        self.admitted[workload_id] = admitted
        self._order.setdefault(workload_id, next(self._places))
        self.forget_holders()

    def take_out(self, admitted: Admitted) -> None:
        """Remove a workload, but keep its place in the order."""
        del self.admitted[admitted.workload.workload_id]
        self._is_disordered = True
        self.forget_holders()

    def forget_place(self, workload: Workload) -> None:
        """Note that a workload left for good: if it is admitted again, it is the last one."""
        del self._order[workload.workload_id]

    def forget_holders(self) -> None:
        """Note that a holder changed."""
        self._holders = self._held = None

    def searches(self, requested: Iterable[str]) -> tuple[FlavorSearch, ...]:
        """Return the searches that find flavors for these resources, in order. They depend only on the declaration."""
        names = tuple(requested)
        searches = self._searches.get(names)
        if searches is None:
            searches = self._searches[names] = tuple(self._plan_searches(sorted(names)))
        return searches

    def _plan_searches(self, names: list[str]) -> Iterator[FlavorSearch]:
        covered: set[str] = set()
        for name in names:
            if name in covered:
                continue  # found together with another resource of its group
            group = self.group_by_resource.get(name)
            if group is None:
                yield FlavorSearch(name, (), ())
                continue
            resources = tuple(resource for resource in names if resource in group.resources)
            covered.update(resources)
            flavors = tuple(
                (quotas.flavor, tuple((resource, (quotas.flavor, resource)) for resource in resources))
                for quotas in group.flavors
            )
            yield FlavorSearch(name, resources, flavors)

    def __post_init__(self) -> None:
        # A resource belongs to one group; if two groups declare it, the first counts.
        self.group_by_resource = {
            resource: group for group in reversed(self.spec.groups) for resource in group.resources
        }


class Snapshot:
    """Everything that a Kueue cycle reads. Simulated changes are undone."""

    def __init__(
        self, tree: Tree, specs: Iterable[Queue], flavors: Mapping[str, Flavor], rules: SchedulerRules
    ) -> None:
        self.tree = tree
        self.flavors = flavors
        self.rules = rules
        self.queues = {spec.name: ClusterQueueSnapshot(spec, tree.queues[spec.name]) for spec in specs}
        self.now: float = 0.0
        """The present time. It also counts as the time of admission if that is unknown."""
        self.evicted_at: dict[frozenset[str], float] = {}
        """Pair of workloads → when one of them last preempted the other."""
        self.recent_use: dict[str, DecayedUse] = {}
        """The use of the sub-queues of each queue that orders by recent use."""
        self.topology = TopologyState.of(flavors, least_free_capacity=rules.least_free_capacity)
        """None if no flavor has a topology."""
        self._cached: dict[tuple[str, tuple[object, ...]], Any] = {}

    def queue_of(self, workload: Workload) -> ClusterQueueSnapshot:
        """Return the queue in which a workload is pending or admitted."""
        return self.queues[workload.queue]

    def admit(self, admitted: Admitted) -> None:
        """Add a workload and its use to its queue."""
        queue = self.queue_of(admitted.workload)
        queue.add(admitted)
        queue.quota_node.add_all(admitted.use)
        if self.topology is not None:
            self.topology.add(domain_use(admitted.workload.pod_sets, admitted.topology))

    def remove(self, admitted: Admitted) -> None:
        """Remove a workload and its use from its queue for good."""
        self.release(admitted)
        self.queue_of(admitted.workload).forget_place(admitted.workload)

    def release(self, admitted: Admitted) -> None:
        """Remove a workload and its use from its queue. Admitted again, it keeps its place."""
        queue = self.queue_of(admitted.workload)
        queue.take_out(admitted)
        queue.quota_node.remove_all(admitted.use)
        if self.topology is not None:
            self.topology.remove(domain_use(admitted.workload.pod_sets, admitted.topology))

    @contextmanager
    def without(self, workloads: Sequence[Admitted]) -> Any:
        """Remove these workloads and their use until the context closes."""
        for workload in workloads:
            self.release(workload)
        try:
            yield
        finally:
            for workload in workloads:
                self.admit(workload)

    @contextmanager
    def without_use_of(self, workloads: Iterable[Admitted]) -> Any:
        """Remove the use of these workloads until the context closes. The workloads stay."""
        gone = tuple(workloads)
        for workload in gone:
            self.queue_of(workload.workload).quota_node.remove_all(workload.use)
            if self.topology is not None:
                self.topology.remove(domain_use(workload.workload.pod_sets, workload.topology))
        try:
            yield
        finally:
            for workload in gone:
                self.queue_of(workload.workload).quota_node.add_all(workload.use)
                if self.topology is not None:
                    self.topology.add(domain_use(workload.workload.pod_sets, workload.topology))

    def protects(self, workload: Workload, admitted: Admitted) -> bool:
        """Whether Evenkeel's own switches protect an admitted workload from preemption by a pending one."""
        rules = self.rules
        if admitted.is_evicted:
            return False
        began_at = self.now if admitted.reserved_at is None else admitted.reserved_at
        if rules.min_run_seconds and self.now - began_at < rules.min_run_seconds:
            return True
        if rules.preempt_after_seconds and self.now - workload.queued_at < rules.preempt_after_seconds:
            return True
        if not rules.flap_guard_seconds:
            return False
        last = self.evicted_at.get(frozenset((workload.workload_id, admitted.workload.workload_id)))
        return last is not None and self.now - last < rules.flap_guard_seconds

    def may_protect_from(self, workload: Workload) -> bool:
        """Whether Evenkeel's own switches may protect an admitted workload from preemption by a pending one."""
        rules, name = self.rules, workload.workload_id
        return bool(
            rules.min_run_seconds
            or (rules.preempt_after_seconds and self.now - workload.queued_at < rules.preempt_after_seconds)
            or (rules.flap_guard_seconds and any(name in pair for pair in self.evicted_at))
        )

    def cached_groups(self, workload: Workload, compute: Callable[[], Any]) -> Any:
        """Return what `compute` returns, computed once for each queue and set of flavor needs."""
        name = (workload.queue, workload.flavor_needs)
        groups = self._cached.get(name)
        if groups is None:
            groups = self._cached[name] = compute()
        return groups


@contextmanager
def using(quota_node: QuotaNode, amounts: Mapping[Key, int]) -> Any:
    """Add use to a queue until the context closes."""
    quota_node.add_all(amounts)
    try:
        yield
    finally:
        quota_node.remove_all(amounts)


def without_zeros(amounts: Amounts) -> Amounts:
    """Return the amounts without zeros."""
    return {key: amount for key, amount in amounts.items() if amount}
