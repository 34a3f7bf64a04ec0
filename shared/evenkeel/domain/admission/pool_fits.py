"""Pools on which a job could start, and the nodes that preemption would free."""

import bisect
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pydantic import Field

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity import compatibility, efa, instance_types, network_topology
from evenkeel.domain.capacity.compatibility import Requirements, differences
from evenkeel.domain.capacity.network_topology import NetworkLevel
from evenkeel.domain.capacity.node_capacity import TAINTED, NodeCapacity, NodeKey, with_freed
from evenkeel.domain.capacity.pool_choices import all_tolerated, preference_rank
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.plurals import count_of
from evenkeel.domain.resources import Resources
from evenkeel.domain.values import Value


class PoolFit(Value):
    """How a gang fits on one instance type of one pool."""

    pool: str
    instance_type: str
    total_nodes: int
    """Nodes of this type that can run a pod of the gang when idle, in any state."""
    leaving: int = 0
    """Number of these nodes that AWS takes back before the gang could save a checkpoint. The gang does not wait for
    them."""
    fitting: int
    """Nodes that can run one pod of the gang now."""
    best: tuple[NodeLife, ...] = ()
    """Nodes that the gang would take; empty if too few fit."""
    names: tuple[str, ...] = ()
    """Their node names, in the same order."""
    empty: int = 0
    """Nodes that are completely free."""
    empty_nodes_used: int = 0
    """Number of completely free nodes that the gang would take."""
    reserved_spares: int = 0
    """Completely free nodes that must stay free: the spares, unless the job is a recovery."""
    closed: dict[str, int] = {}
    """Reason → number of nodes that the gang cannot use for this reason."""
    level: NetworkLevel | None = None
    """The narrowest network level at which one domain holds all nodes of the gang; None if unknown."""
    domain: str = ""
    """Id of that domain."""
    largest_domain: int | None = None
    """Usable nodes of the largest domain of the level that the gang requires; None if it requires none."""
    preference_rank: int = Field(default=0, alias="choice")
    """Rank of the pool in the job's order of preference. The first pool that fits is taken."""

    @property
    def fits_now(self) -> bool:
        """Whether the gang fits now."""
        return bool(self.best) and not self.uses_reserved_spares

    @property
    def most_nodes(self) -> int:
        """Maximum usable nodes that the gang could take; in one domain if the job requires a network level."""
        return self.fitting if self.largest_domain is None else self.largest_domain

    @property
    def uses_reserved_spares(self) -> bool:
        """Whether the gang would leave fewer completely free nodes than are reserved as spares."""
        return self.empty_nodes_used > 0 and self.empty - self.empty_nodes_used < self.reserved_spares

    def why_not(self, request: AdmissionRequest) -> str:
        """Say why the gang does not fit now, in a few words."""
        if self.total_nodes < request.nodes:
            return f"{self.pool} has {count_of(self.total_nodes, 'large enough node')} of {self.instance_type}"
        if self.best:
            return f"{self.pool} keeps {count_of(self.reserved_spares, 'free node')} for recoveries"
        closed_nodes = ", ".join(f"{count} {reason}" for reason, count in sorted(self.closed.items()))
        text = f"{self.pool} has {self.fitting} of them"
        if self.largest_domain is not None:
            text = f"{text}, at most {self.largest_domain} in one {request.network_needs.required} domain"
        return f"{text} ({closed_nodes})" if closed_nodes else text


class JobToPreempt(Value):
    """A job that must stop for another job."""

    job_id: str
    reason: str
    """Kueue's reason: `InClusterQueue`, `InCohortReclamation`, …"""


class PreemptionPlan(Value):
    """Smallest set of preemptable jobs that frees enough nodes for a job that has quota."""

    victims: tuple[JobToPreempt, ...]
    fits: tuple[PoolFit, ...] = Field(alias="offers")
    """The fits after the victims have stopped."""


def pool_instance_types(fits: Iterable[PoolFit]) -> frozenset[tuple[str, str]]:
    return frozenset((fit.pool, fit.instance_type) for fit in fits if fit.leaving < fit.total_nodes)


def subtract_assigned(
    capacities: Iterable[NodeCapacity], request: AdmissionRequest, lives: Iterable[NodeLife]
) -> tuple[NodeCapacity, ...]:
    """Return the node capacities after a job has taken its nodes."""
    return subtract_all_assigned(capacities, ((request, lives),))


def subtract_all_assigned(
    capacities: Iterable[NodeCapacity], assignments: Iterable[tuple[AdmissionRequest, Iterable[NodeLife]]]
) -> tuple[NodeCapacity, ...]:
    """Return the node capacities after several jobs, each with its request, have taken their nodes."""
    assigned_by_instance: dict[str, list[tuple[NodeLife, Resources]]] = defaultdict(list)
    for request, lives in assignments:
        resources = request.per_node
        for instance_id, life in {life.instance_id: life for life in lives}.items():
            assigned_by_instance[instance_id].append((life, resources))
    remaining_capacities = []
    for capacity in capacities:
        for life, amount in assigned_by_instance.get(capacity.life.instance_id, ()):
            if life == capacity.life:
                capacity = capacity.with_free(capacity.free.minus(amount))  # noqa: PLW2901 - one job after the other
        remaining_capacities.append(capacity)
    return tuple(remaining_capacities)


def why_no_fit(request: AdmissionRequest, fits: Iterable[PoolFit]) -> str:
    """Say why a gang fits in no pool now; empty if it fits."""
    all_fits = tuple(fits)
    if any(fit.fits_now for fit in all_fits):
        return ""
    reasons = "; ".join(fit.why_not(request) for fit in all_fits)
    return f"The job waits for {describe_request(request)}: {reasons or 'no node in the fleet matches'}."


def best_fit(fits: Iterable[PoolFit]) -> PoolFit:
    """Return the fit that a gang takes: the most preferred pool, then the pool with the fewest fitting nodes.

    So large free pools stay large.
    """
    fits_now = (fit for fit in fits if fit.fits_now)
    return min(fits_now, key=lambda fit: (fit.preference_rank, fit.fitting, fit.pool, fit.instance_type))


def pool_fits(
    request: AdmissionRequest,
    capacities: Iterable[NodeCapacity],
    policy: SchedulingPolicy,
    counts_node: Callable[[NodeCapacity], bool] | None = None,
) -> tuple[PoolFit, ...]:
    """Return how a gang fits on each instance type of each pool.

    Args:
        request: The request of the gang.
        capacities: The nodes of the fleet.
        policy: Names the spares of each pool.
        counts_node: Test whether a node counts; None if every node does.
    """
    return tuple(nodes.fit(request) for nodes in _pool_nodes(request, capacities, policy, counts_node))


class _PoolNodes(NamedTuple):
    """The nodes of one instance type of one pool that can run a pod of a gang, whatever the size of the gang."""

    counts: PoolFit
    """The fit without nodes."""
    usable: tuple[NodeCapacity, ...]
    """In the order in which a gang takes them."""
    has_positions: bool
    """Whether the network position of a node of the pool is known."""

    def with_changes(
        self,
        request: AdmissionRequest,
        changes: Iterable[tuple[NodeCapacity, NodeCapacity]],
        policy: SchedulingPolicy,
    ) -> "_PoolNodes":
        """Update the nodes after the free amounts of some nodes changed. The result equals a new search.

        Args:
            request: The request of the gang.
            changes: Nodes before and after.
            policy: Names the spares of each pool.
        """
        closed_counts, empty_count = Counter(self.counts.closed), self.counts.empty
        usable, resources = list(self.usable), request.per_node
        for before, now in changes:
            if _rank_if_idle(request, resources, before, policy) is None:
                continue
            reason = _why_unusable(request, resources, before, policy)
            if reason:
                closed_counts[reason] -= 1
            else:
                del usable[bisect.bisect_left(usable, _packing_order(before), key=_packing_order)]
            reason = _why_unusable(request, resources, now, policy)
            if reason:
                closed_counts[reason] += 1
            else:
                bisect.insort(usable, now, key=_packing_order)
            empty_count += now.is_unused - before.is_unused
        counts = self.counts.replace_unchecked(fitting=len(usable), empty=empty_count, closed=dict(+closed_counts))
        return self._replace(counts=counts, usable=tuple(usable))

    def fit(self, request: AdmissionRequest) -> PoolFit:
        """Return the fit of a gang of these pods."""
        required_level = request.network_needs.required if request.nodes > 1 else None
        counts = self.counts
        if required_level:
            largest_domain = network_topology.largest_domain(self.usable, required_level)
            counts = counts.replace_unchecked(largest_domain=largest_domain)
        if len(self.usable) < request.nodes:
            return counts
        closest_nodes, level, domain = (
            network_topology.closest_nodes(self.usable, request.nodes, request.network_needs)
            if required_level or self.has_positions
            else network_topology.ClosestNodes(self.usable[: request.nodes])
        )
        return counts.replace_unchecked(
            level=level,
            domain=domain,
            best=tuple(capacity.life for capacity in closest_nodes),
            names=tuple(capacity.node_name for capacity in closest_nodes),
            empty_nodes_used=sum(capacity.is_unused for capacity in closest_nodes),
        )


def _pool_nodes(
    request: AdmissionRequest,
    capacities: Iterable[NodeCapacity],
    policy: SchedulingPolicy,
    counts_node: Callable[[NodeCapacity], bool] | None = None,
) -> tuple[_PoolNodes, ...]:
    """Return the usable nodes of each pool. Gangs of two or more nodes that differ only in their size share them."""
    nodes_by_type: dict[tuple[str, str], list[NodeCapacity]] = defaultdict(list)
    ranks: dict[tuple[str, str], int] = {}
    resources = request.per_node
    for capacity in _reserved_or_shared(request, capacities):
        if counts_node is not None and not counts_node(capacity):
            continue
        rank = _rank_if_idle(request, resources, capacity, policy)
        if rank is not None:
            pool_and_type = (capacity.pool, capacity.instance_type)
            nodes_by_type[pool_and_type].append(capacity)
            ranks[pool_and_type] = min(rank, ranks.get(pool_and_type, rank))
    return tuple(
        _free_nodes_for(
            request, pool, instance_type, nodes_by_type[pool, instance_type], policy, ranks[pool, instance_type]
        )
        for pool, instance_type in sorted(nodes_by_type)
    )


def _rank_if_idle(
    request: AdmissionRequest, requested: Resources, capacity: NodeCapacity, policy: SchedulingPolicy
) -> int | None:
    """Return the rank of a node in the job's order of preference; None if even the idle node could not run the job.

    The rank does not depend on free amounts.
    """
    if capacity.cluster != request.cluster:
        return None
    if request.instance_types and capacity.instance_type not in request.instance_types:
        return None
    has_preferences = bool(request.pools) or request.requires != _NO_REQUIREMENTS
    rank = _preference_rank(request, capacity) if has_preferences else 0
    if rank is None or (request.requires.fabric and policy.efa_interfaces.get(capacity.pool) == 0):
        return None
    is_unknown = not capacity.accelerators and not capacity.is_open
    return rank if is_unknown or capacity.is_large_enough(requested) else None


_PodKey = tuple[str, bool]
"""The needs of the pods of a request as JSON, and whether there are several pods. A dict is not hashable."""


class SharedFits:
    """The fits of requests on the remaining nodes. Requests of equal pods share the search for usable nodes.

    After an admission only the nodes that it took are examined again. So a cycle does not examine every node for each
    of its admissions.
    """

    def __init__(self, capacities: Iterable[NodeCapacity], policy: SchedulingPolicy) -> None:
        """Index the nodes before the first admission. The indexed nodes name each job that has reserved nodes."""
        self._capacities = tuple(capacities)
        self._reservation_holders = frozenset(capacity.reserved_for for capacity in self._capacities)
        self._policy = policy
        self._positions: dict[str, list[int]] = defaultdict(list)
        """Instance id → indexes of its nodes. An admission changes no position."""
        for index, capacity in enumerate(self._capacities):
            self._positions[capacity.life.instance_id].append(index)
        self._searches: dict[_PodKey, tuple[AdmissionRequest, tuple[_PoolNodes, ...]]] = {}
        self._pod_keys: dict[str, tuple[AdmissionRequest, _PodKey]] = {}
        """Job → its last request, with the key of its pods."""

    def fits_of(self, request: AdmissionRequest, capacities: tuple[NodeCapacity, ...]) -> tuple[PoolFit, ...]:
        """Return the fits of a request. Nodes that `subtract` did not return start a new search."""
        return tuple(nodes.fit(request) for nodes in self._search(request, capacities)[1])

    def counts_of(self, request: AdmissionRequest, capacities: tuple[NodeCapacity, ...]) -> tuple[PoolFit, ...]:
        """Return the fits of a request without the nodes that it would take."""
        return tuple(nodes.counts for nodes in self._search(request, capacities)[1])

    def fits_with_freed(
        self,
        request: AdmissionRequest,
        capacities: tuple[NodeCapacity, ...],
        freed_resources: Mapping[NodeKey, Resources],
    ) -> tuple[PoolFit, ...]:
        """Return the fits of a request once these amounts are free. Only the nodes with these amounts are examined."""
        if not self._reservation_holders <= {""}:  # whether a job takes its reserved nodes depends on all of them
            return pool_fits(request, with_freed(capacities, freed_resources), self._policy)
        first_request, pool_nodes = self._search(request, capacities)
        nodes = [
            capacities[index] for node_key in freed_resources for index in self._positions_by_node.get(node_key, ())
        ]
        changes = zip(nodes, with_freed(nodes, freed_resources), strict=True)
        return tuple(
            changed_pool.fit(request)
            for changed_pool in self._pool_nodes_with_changes(first_request, pool_nodes, changes)
        )

    @functools.cached_property
    def _positions_by_node(self) -> dict[NodeKey, list[int]]:
        positions: dict[NodeKey, list[int]] = defaultdict(list)
        for index, capacity in enumerate(self._capacities):
            positions[capacity.node_key].append(index)
        return positions

    def _search(
        self, request: AdmissionRequest, capacities: tuple[NodeCapacity, ...]
    ) -> tuple[AdmissionRequest, tuple[_PoolNodes, ...]]:
        """Return the usable nodes for the pods of a request, and the first request with such pods."""
        if self._capacities is not capacities:
            self._capacities, self._searches = capacities, {}
        pod_key = self._pod_key(request)
        if pod_key not in self._searches:
            self._searches[pod_key] = (request, _pool_nodes(request, capacities, self._policy))
        return self._searches[pod_key]

    def _pod_key(self, request: AdmissionRequest) -> _PodKey:
        known_request, pod_key = self._pod_keys.get(request.job_id, (None, ("", False)))
        if known_request is not request:
            excluded = None if request.job_id in self._reservation_holders else _NEUTRAL_FIELDS
            pod_key = (request.model_dump_json(exclude=excluded), request.nodes > 1)
            self._pod_keys[request.job_id] = (request, pod_key)
        return pod_key

    def subtract(
        self, capacities: tuple[NodeCapacity, ...], request: AdmissionRequest, lives: Iterable[NodeLife]
    ) -> tuple[NodeCapacity, ...]:
        """Return the node capacities after a job has taken its nodes, as `subtract_assigned` does.

        Args:
            capacities: The nodes, in the order of their first occurrence.
            request: The request of the job.
            lives: Its nodes.
        """
        capacities_left = list(capacities)
        changes: list[tuple[NodeCapacity, NodeCapacity]] = []
        resources = request.per_node
        for life in {life.instance_id: life for life in lives}.values():
            for index in self._positions[life.instance_id]:
                before = capacities[index]
                if before.life == life:
                    capacities_left[index] = before.with_free(before.free.minus(resources))
                    changes.append((before, capacities_left[index]))
        remaining_capacities = tuple(capacities_left)
        # Whether a job takes its reserved nodes depends on all of them.
        if self._capacities is capacities and self._reservation_holders <= {""}:
            self._searches = {
                pod_key: (first_request, self._pool_nodes_with_changes(first_request, pool_nodes, changes))
                for pod_key, (first_request, pool_nodes) in self._searches.items()
            }
            self._capacities = remaining_capacities
        return remaining_capacities

    def _pool_nodes_with_changes(
        self,
        request: AdmissionRequest,
        pool_nodes: tuple[_PoolNodes, ...],
        changes: Iterable[tuple[NodeCapacity, NodeCapacity]],
    ) -> tuple[_PoolNodes, ...]:
        by_type = defaultdict(list)
        for before, after in changes:
            by_type[after.pool, after.instance_type].append((before, after))
        return tuple(
            nodes.with_changes(request, by_type[nodes.counts.pool, nodes.counts.instance_type], self._policy)
            for nodes in pool_nodes
        )


def _reserved_or_shared(request: AdmissionRequest, capacities: Iterable[NodeCapacity]) -> Iterable[NodeCapacity]:
    """Return the nodes that a job may take: its rented nodes, if they are enough; else the unreserved nodes."""
    all_nodes = tuple(capacities)
    reserved_nodes = [capacity for capacity in all_nodes if capacity.reserved_for]
    if not reserved_nodes:
        return all_nodes
    reserved_for_job = [capacity for capacity in reserved_nodes if capacity.reserved_for == request.job_id]
    fitting_nodes = [
        capacity
        for capacity in reserved_for_job
        if is_schedulable_for(request, capacity)
        and not capacity.why_too_small(request.per_node)
        and capacity.life.key not in request.avoid
    ]
    if reserved_for_job and len(fitting_nodes) >= request.nodes:
        return reserved_for_job
    return [capacity for capacity in all_nodes if not capacity.reserved_for]


_NO_REQUIREMENTS = Requirements()
_NEUTRAL_FIELDS = {
    *("job_id", "submitter", "team", "submitted_at", "queued_at", "priority", "attempts"),
    *("nodes", "requested_nodes", "sizes", "may_be_overtaken", "delay_micros_per_hour", "is_displaced"),
}
"""Fields in which two requests may differ while their pods fit on the same nodes."""


def _preference_rank(request: AdmissionRequest, capacity: NodeCapacity) -> int | None:
    """Return the rank of a node in the job's order of preference; None if the job may not run there.

    A node that was rented for the job was checked before: it needs no label and no entry in the catalogue.
    """
    if capacity.reserved_for and capacity.reserved_for == request.job_id:
        return 0
    return (
        preference_rank(request.pools, capacity.pool, capacity.labels)
        if capacity.instance_type.removeprefix(instance_types.HYPERPOD_PREFIX) in request.meets_on
        or _meets_requirements(request.requires, capacity.instance_type)
        else None
    )


@functools.lru_cache(maxsize=1024)
def _meets_requirements(requires: Requirements, instance_type: str) -> bool:
    """Whether an instance type meets the requirements of a job."""
    return not differences(
        compatibility.needs_of(requires, "", "", {}),
        compatibility.environment_on(instance_type, instance_types.shipped_instance_types()),
    )


def stays_long_enough(request: AdmissionRequest, capacity: NodeCapacity) -> bool:
    """Whether a node stays long enough for the job to save a checkpoint there."""
    return not (capacity.usable_until and request.needs_node_until and request.needs_node_until > capacity.usable_until)


def is_schedulable_for(request: AdmissionRequest, capacity: NodeCapacity) -> bool:
    """Whether a pod of a job may start on a node now. Taints that the pod tolerates do not count."""
    if capacity.unschedulable_reason == TAINTED and request.tolerations:
        return all_tolerated(capacity.taints, request.tolerations)
    return capacity.is_open


def missing_efa(request: AdmissionRequest, capacity: NodeCapacity, policy: SchedulingPolicy) -> str:
    """Return how many EFA interfaces a node has, if a pod of a job needs more; empty if it has enough."""
    if capacity.efa is None or request.nodes < 2 or request.is_serving:
        return ""
    node = efa.EfaNode(capacity.pool, capacity.instance_type, capacity.accelerators, capacity.efa)
    required_interfaces = efa.interfaces_per_pod(
        node, request.nodes, request.accelerators_per_node, policy.efa_interfaces
    )
    return (
        f"offering {capacity.efa} of {required_interfaces} EFA interfaces" if capacity.efa < required_interfaces else ""
    )


def _free_nodes_for(
    request: AdmissionRequest,
    pool: str,
    instance_type: str,
    capacities: list[NodeCapacity],
    policy: SchedulingPolicy,
    rank: int,
) -> _PoolNodes:
    closed_counts: Counter[str] = Counter()
    usable: list[NodeCapacity] = []
    resources = request.per_node
    for capacity in capacities:
        if reason := _why_unusable(request, resources, capacity, policy):
            closed_counts[reason] += 1
        else:
            usable.append(capacity)
    usable.sort(key=_packing_order)
    counts = PoolFit(
        pool=pool,
        instance_type=instance_type,
        total_nodes=len(capacities),
        leaving=sum(not _is_usable_long_enough(request, capacity) for capacity in capacities),
        fitting=len(usable),
        empty=sum(capacity.is_unused for capacity in capacities),
        reserved_spares=0 if request.is_recovery else policy.spare_nodes.get(pool, 0),
        closed=dict(closed_counts),
        preference_rank=rank,
    )
    return _PoolNodes(counts, tuple(usable), any(map(network_topology.has_position, capacities)))


def _packing_order(capacity: NodeCapacity) -> tuple[int, int, str]:
    """Return the order in which gangs take nodes.

    The fullest node that still fits comes first, so that completely free nodes stay free for gangs that need them.
    """
    return capacity.free.accelerators, capacity.free.cpu_millis, capacity.node_name


def _is_usable_long_enough(request: AdmissionRequest, capacity: NodeCapacity) -> bool:
    return stays_long_enough(request, capacity) if capacity.usable_until else True


def _why_unusable(
    request: AdmissionRequest, requested_resources: Resources, capacity: NodeCapacity, policy: SchedulingPolicy
) -> str:
    """Return in a few words why a pod of a job cannot use a node now; empty if it can."""
    if capacity.unschedulable_reason and not is_schedulable_for(request, capacity):
        return capacity.unschedulable_reason
    if not _is_usable_long_enough(request, capacity):
        return f"usable only until {capacity.usable_until:%d %b %H:%M} UTC"
    if request.avoid and capacity.life.key in request.avoid:
        return "excluded by the resume plan"
    return capacity.why_too_small(requested_resources) or missing_efa(request, capacity, policy)


def describe_request(request: AdmissionRequest) -> str:
    """Return in words the nodes that a job waits for, and the amounts that must be free on each node."""
    nodes, requirements = count_of(request.nodes, "node"), []
    if request.accelerators_per_node:
        requirements.append(count_of(request.accelerators_per_node, "free accelerator"))
    if request.names_cpu_or_memory:
        requirements.append(f"{request.cpu_millis_per_node / 1000:g} vCPU")
        requirements.append(f"{request.memory_mib_per_node / 1024:g} GiB")
    if not requirements:
        return nodes
    *front, last_requirement = requirements
    return (
        f"{nodes} with {', '.join(front)} and {last_requirement} each"
        if front
        else f"{nodes} with {last_requirement} each"
    )
