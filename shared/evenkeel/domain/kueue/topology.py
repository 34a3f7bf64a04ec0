"""The tree of a flavor's nodes, and the choice of the domains in which a pod set runs.

    count   how many pods, and how many slices of pods, fit in each domain: from the nodes to the widest level
    level   at the requested level, or for a preferred request above it: the domain that holds all slices, else several
    descend at each lower level, the fewest domains that hold what the level above got

Best fit: of the domains that hold all pods that are not placed yet, the smallest is chosen. Least free capacity:
unconstrained pods go to small domains first, so that large domains stay free.

Source: Kueue's TopologyAwareScheduling (KEP-2724) and `pkg/cache/scheduler/tas_flavor_snapshot.go` of version 0.20.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evenkeel.domain.kueue.objects import (
    NodeTopology,
    PodSet,
    SliceConstraint,
    TopologyAssignment,
    TopologyDomain,
    TopologyNode,
    TopologyRequest,
)

HOSTNAME = "kubernetes.io/hostname"
"""The label of the lowest level if its domains are nodes."""

FreeAmounts = Mapping[str, int]


class Domain:
    """A domain: the nodes that share the values of the levels from the widest to its own."""

    __slots__ = ("allocatable", "children", "node", "values")

    def __init__(self, values: tuple[str, ...]) -> None:
        self.values = values
        self.children: list[Domain] = []
        self.allocatable: Counter[str] = Counter()
        """At the lowest level, the amounts that its nodes offer to pods of workloads with a topology assignment."""
        self.node: TopologyNode | None = None
        """The node, if the lowest level is a node."""


class NoPlacementError(Exception):
    """A pod set does not fit in a topology. The message is the reason, in Kueue's words."""


class TopologyTree:
    """The domains of one flavor. Its nodes have the flavor's labels and a label of every level."""

    def __init__(self, flavor: str, topology: NodeTopology, tolerations: tuple[object, ...] = ()) -> None:
        self.flavor = flavor
        self.name = topology.name
        self.levels = topology.levels
        self.tolerations = tolerations
        self.ends_at_nodes = bool(topology.levels) and topology.levels[-1] == HOSTNAME
        by_level: list[dict[tuple[str, ...], Domain]] = [{} for _ in topology.levels]
        for node in sorted(topology.nodes, key=lambda node: node.name):
            leaf = _leaf_of(node, topology.levels, by_level)
            leaf.node = leaf.node or (node if self.ends_at_nodes else None)
            leaf.allocatable.update(node.allocatable)
            leaf.allocatable.subtract(node.used)
        self.domains = [[level[values] for values in sorted(level)] for level in by_level]
        self.leaves = {self.key(leaf.values): leaf for leaf in (self.domains[-1] if self.domains else ())}
        self._matching: dict[tuple[object, ...], tuple[list[Domain], Counter[str]]] = {}

    def key(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return the key of a domain of the lowest level. Flavors that share a node have the same key for it."""
        return ("", values[-1]) if self.ends_at_nodes else (self.flavor, *values)

    def matching(self, pod_set: PodSet) -> tuple[list[Domain], Counter[str]]:
        """Return the lowest domains on which the pods may run, and how many others are excluded, by reason.

        Taints, node selectors and affinity count only if these domains are nodes.
        """
        needs = (tuple(sorted(pod_set.selector.items())), pod_set.affinity, pod_set.tolerations)
        if needs not in self._matching:
            excluded: Counter[str] = Counter()
            leaves = []
            for leaf in self.leaves.values():
                reason = _why_excluded(leaf.node, pod_set, self.tolerations) if leaf.node else ""
                if reason:
                    excluded[reason] += 1
                else:
                    leaves.append(leaf)
            self._matching[needs] = (leaves, excluded)
        return self._matching[needs]


def _leaf_of(node: TopologyNode, levels: tuple[str, ...], by_level: list[dict[tuple[str, ...], Domain]]) -> Domain:
    """Return the lowest domain of a node. Missing domains on the path to it are added."""
    parent: Domain | None = None
    for depth, domains in enumerate(by_level, 1):
        values = tuple(node.labels[level] for level in levels[:depth])
        domain = domains.get(values)
        if domain is None:
            domain = domains[values] = Domain(values)
            if parent is not None:
                parent.children.append(domain)
        parent = domain
    assert parent is not None
    return parent


def _why_excluded(node: TopologyNode, pod_set: PodSet, tolerations: tuple[object, ...]) -> str:
    """Return why pods may not run on a node; empty if they may."""
    tolerated = (*pod_set.tolerations, *tolerations)
    for taint in node.taints:
        is_hard = taint.effect in ("NoSchedule", "NoExecute")
        if is_hard and not any(toleration.tolerates(taint) for toleration in tolerated):  # type: ignore[attr-defined]
            value = f"={taint.value}" if taint.value else ""
            return f'taint "{taint.key}{value}:{taint.effect}"'
    if any(node.labels.get(key) != value for key, value in pod_set.selector.items()):
        return "nodeSelector"
    terms = pod_set.affinity
    if terms and not any(term and all(need.is_satisfied_by(node.labels) for need in term) for term in terms):
        return "affinity"
    return ""


# ---------------------------------------------------------------- the request


@dataclass(frozen=True, slots=True)
class _ResolvedRequest:
    """A request, resolved against the levels of one topology."""

    pod_set: PodSet
    count: int
    needs: Mapping[str, int]
    leader_needs: Mapping[str, int] | None
    level: int
    slice_level: int
    slice_size: int
    inner_sizes: Mapping[int, int]
    """By level below the slices: the size of the slices within them."""
    constraints: tuple[SliceConstraint, ...]
    is_required: bool
    is_unconstrained: bool
    smallest_first: bool

    @property
    def leaders(self) -> int:
        return 0 if self.leader_needs is None else 1

    @property
    def slices(self) -> int:
        return self.count // self.slice_size


def requested_level(request: TopologyRequest | None, levels: tuple[str, ...]) -> str:
    """Return the level that a request names; without a request the lowest. Empty if the request names none."""
    if request is None or not levels:
        return levels[-1] if levels else ""
    if request.required or request.preferred:
        return request.required or request.preferred
    if request.slices:
        return levels[0]
    return levels[-1] if request.unconstrained else ""


def missing_level(request: TopologyRequest, levels: tuple[str, ...]) -> str:
    """Return a level that a request names and a topology does not have; empty if it has all of them."""
    named = (requested_level(request, levels), *(constraint.level for constraint in request.slices))
    return next((level or "(none)" for level in named if level not in levels), "")


def _resolve(
    tree: TopologyTree, pod_set: PodSet, count: int, leader: PodSet | None, *, least_free_capacity: bool
) -> _ResolvedRequest:
    request, levels = pod_set.topology, tree.levels
    level = requested_level(request, levels)
    if not level:
        raise NoPlacementError("topology level not specified")
    if level not in levels:
        raise NoPlacementError(f"no requested topology level: {level}")
    constraints = request.slices if request else ()
    slice_level = constraints[0].level if constraints else levels[-1]
    if slice_level not in levels:
        raise NoPlacementError(f"no requested topology level for slices: {slice_level}")
    if levels.index(level) > levels.index(slice_level):
        raise NoPlacementError(f"podset slice topology {slice_level} is above the podset topology {level}")
    if constraints and count % constraints[0].size:
        raise NoPlacementError(f"the count {count} is not a multiple of the slice size {constraints[0].size}")
    names_domain = request is not None and bool(request.required or request.preferred)
    is_unconstrained = request is None or bool(request.unconstrained) or (bool(constraints) and not names_domain)
    return _ResolvedRequest(
        pod_set,
        count,
        pod_set.needs_of_node,
        leader.needs_of_node if leader else None,
        levels.index(level),
        levels.index(slice_level),
        constraints[0].size if constraints else 1,
        _inner_sizes(levels, constraints),
        constraints if len(constraints) > 1 else (),
        bool(request and request.required),
        is_unconstrained,
        is_unconstrained and least_free_capacity,
    )


def _inner_sizes(levels: tuple[str, ...], constraints: tuple[SliceConstraint, ...]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for outer, inner in itertools.pairwise(constraints):
        if inner.level not in levels:
            raise NoPlacementError(f"no requested topology level for additional slice layer: {inner.level}")
        above, below = levels.index(outer.level), levels.index(inner.level)
        if below <= above:
            raise NoPlacementError(
                f"additional slice layer topology {inner.level} must be at a lower level than {outer.level}"
            )
        if outer.size % inner.size:
            raise NoPlacementError(
                f"additional slice layer size {inner.size} must evenly divide parent layer size {outer.size}"
            )
        sizes |= dict.fromkeys(range(above + 1, below + 1), inner.size)
    return sizes


# ---------------------------------------------------------------- the choice


@dataclass(slots=True)
class _PodCounts:
    """Numbers of pods and slices in one domain.

    The search first stores how many fit, then how many are assigned.
    """

    pods: int = 0
    slices: int = 0
    pods_with_leader: int = 0
    """How many pods fit if the leader runs in the domain, too."""
    slices_with_leader: int = 0
    leaders: int = 0


class _Unit(NamedTuple):
    """The unit of a distribution: whole slices, or single pods."""

    amount: str
    with_leader: str
    size: int


def choose_domains(
    tree: TopologyTree,
    free: Callable[[Domain, FreeAmounts], dict[str, int]],
    pod_set: PodSet,
    count: int,
    leader: PodSet | None = None,
    *,
    least_free_capacity: bool = True,
) -> tuple[TopologyAssignment, TopologyAssignment | None]:
    """Return the domains of a pod set, and the domains of its leader.

    Args:
        tree: The domains of the flavor.
        free: Returns how much of these resources is free in a domain of the lowest level.
        pod_set: The pods.
        count: How many of them.
        leader: A pod set of one pod that must be close to them.
        least_free_capacity: Whether small domains come first for a request that is unconstrained.

    Raises:
        NoPlacementError: Not all pods fit.
    """
    want = _resolve(tree, pod_set, count, leader, least_free_capacity=least_free_capacity)
    return _Choice(tree, want).run(free)


@dataclass(slots=True)
class _Choice:
    tree: TopologyTree
    request: _ResolvedRequest
    capacities: dict[Domain, _PodCounts] = field(default_factory=dict)
    excluded: Counter[str] = field(default_factory=Counter)

    def run(
        self, free: Callable[[Domain, FreeAmounts], dict[str, int]]
    ) -> tuple[TopologyAssignment, TopologyAssignment | None]:
        self._count(free)
        level, domains = self._find_level(self.request.level)
        chosen = self._descend(level, domains)
        leader = None
        if self.request.leaders:
            leader = self._assignment(
                TopologyDomain(domain.values, self.capacities[domain].leaders)
                for domain in chosen
                if self.capacities[domain].leaders
            )
        pods = (TopologyDomain(domain.values, self.capacities[domain].pods) for domain in chosen)
        return self._assignment(domain for domain in pods if domain.count), leader

    def _assignment(self, domains: Iterator[TopologyDomain]) -> TopologyAssignment:
        first = len(self.tree.levels) - 1 if self.tree.ends_at_nodes else 0
        ordered = sorted(domains, key=lambda domain: domain.values)
        return TopologyAssignment(
            (self.tree.flavor,),
            self.tree.levels[first:],
            tuple(TopologyDomain(domain.values[first:], domain.count) for domain in ordered),
        )

    # ------------------------------------------------------------ count

    def _count(self, free: Callable[[Domain, FreeAmounts], dict[str, int]]) -> None:
        want = self.request
        leaves, excluded = self.tree.matching(want.pod_set)
        self.excluded = Counter(excluded)
        self.capacities = {domain: _PodCounts() for level in self.tree.domains for domain in level}
        resources = {**want.needs, **(want.leader_needs or {})}
        for leaf in leaves:
            amounts, capacity = free(leaf, resources), self.capacities[leaf]
            capacity.pods, limit = times_in(want.needs, amounts)
            if not capacity.pods:
                self.excluded[f'resource "{limit}"'] += 1
            if want.leader_needs is not None and times_in(want.leader_needs, amounts)[0]:
                capacity.leaders = 1
                amounts = {name: amount - want.leader_needs.get(name, 0) for name, amount in amounts.items()}
            capacity.pods_with_leader = times_in(want.needs, amounts)[0]
        for root in self.tree.domains[0]:
            self._add_up(root, 0)

    def _add_up(self, domain: Domain, level: int) -> None:
        want, capacity = self.request, self.capacities[domain]
        if domain.children:
            size = want.inner_sizes.get(level + 1, 1)
            less_pods, less_slices = [], []
            for child in domain.children:
                self._add_up(child, level + 1)
                below = self.capacities[child]
                pods = below.pods // size * size
                capacity.pods += pods
                capacity.slices += below.slices
                if below.leaders or not want.leaders:
                    less_pods.append(pods - below.pods_with_leader // size * size)
                    less_slices.append(below.slices - below.slices_with_leader)
                capacity.leaders = max(capacity.leaders, below.leaders)
            if less_pods:
                # The leader goes where it takes the least capacity.
                capacity.pods_with_leader = capacity.pods - min(less_pods)
                capacity.slices_with_leader = capacity.slices - min(less_slices)
        if level == want.slice_level:
            capacity.slices = capacity.pods // want.slice_size
            capacity.slices_with_leader = capacity.pods_with_leader // want.slice_size

    # ------------------------------------------------------------ order

    def _capacity_order(self, domain: Domain) -> tuple[int, int, tuple[str, ...]]:
        capacity = self.capacities[domain]
        return (capacity.slices if self.request.smallest_first else -capacity.slices, capacity.pods, domain.values)

    def _by_capacity_with_leader(self, domain: Domain) -> tuple[int, int, int, tuple[str, ...]]:
        capacity = self.capacities[domain]
        slices = capacity.slices_with_leader if self.request.smallest_first else -capacity.slices_with_leader
        return (-capacity.leaders, slices, capacity.pods_with_leader, domain.values)

    def _best_fit(self, domains: list[Domain], needed: int, leaders: int, unit: _Unit) -> Domain:
        """Return the smallest domain that is large enough, the first of equal ones; else the first domain."""
        amount = unit.with_leader if leaders else unit.amount
        enough = [
            domain
            for domain in domains
            if self.capacities[domain].leaders >= leaders and getattr(self.capacities[domain], amount) >= needed
        ]
        return min(enough, key=lambda domain: int(getattr(self.capacities[domain], amount)), default=domains[0])

    def _with_leader_first(self, domains: list[Domain], needed: int, leaders: int, unit: _Unit) -> list[Domain]:
        """Move the first domain to the front in which the leader leaves enough capacity for all pods."""
        if not leaders or len(domains) < 2:
            return domains
        total = sum(getattr(self.capacities[domain], unit.amount) for domain in domains)
        for domain in domains:
            capacity = self.capacities[domain]
            leader_pods = getattr(capacity, unit.amount) - getattr(capacity, unit.with_leader)
            if capacity.leaders >= leaders and total - leader_pods >= needed:
                return [domain, *(other for other in domains if other is not domain)]
        return domains

    # ------------------------------------------------------------ level

    def _find_level(self, level: int) -> tuple[int, list[Domain]]:
        """Return the level at which all slices fit, and the domains there that hold them."""
        want, unit = self.request, _slices(self.request.slice_size)
        if not self.tree.domains[level]:
            raise NoPlacementError(f"no topology domains at level: {self.tree.levels[level]}")
        domains = sorted(self.tree.domains[level], key=self._by_capacity_with_leader)
        if want.smallest_first:
            single = next((domain for domain in domains if self._holds_all(domain)), None)
        else:
            single = self._best_fit(domains, want.slices, want.leaders, unit) if self._holds_all(domains[0]) else None
        if single is not None:
            return level, [single]
        if want.is_required:
            raise NoPlacementError(self._why_not(level, self.capacities[domains[0]].slices))
        if level and not want.is_unconstrained:
            return self._find_level(level - 1)
        return level, self._find_several(level, domains, unit)

    def _holds_all(self, domain: Domain) -> bool:
        capacity = self.capacities[domain]
        return capacity.leaders >= self.request.leaders and capacity.slices_with_leader >= self.request.slices

    def _find_several(self, level: int, domains: list[Domain], unit: _Unit) -> list[Domain]:
        """Return the domains that together hold the leader and all slices."""
        want, chosen = self.request, list[Domain]()
        slices, leaders = want.slices, want.leaders
        domains = self._with_leader_first(domains, slices, leaders, unit)
        while leaders > 0 and domains and self.capacities[domains[0]].leaders:
            domain = domains[0]
            if not want.smallest_first and self.capacities[domain].slices_with_leader >= slices:
                domain = self._best_fit(domains, slices, leaders, unit)
            chosen.append(domain)
            domains = [other for other in domains if other is not domain]
            leaders -= self.capacities[domain].leaders
            slices -= self.capacities[domain].slices_with_leader
        if leaders > 0:
            raise NoPlacementError(self._why_not(level, want.leaders - leaders))
        domains = sorted(domains, key=self._capacity_order)
        for position, first in enumerate(domains):
            if slices <= 0:
                break
            domain = first
            if not want.smallest_first and self.capacities[first].slices >= slices:
                domain = self._best_fit(domains[position:], slices, 0, unit)
            chosen.append(domain)
            slices -= self.capacities[domain].slices
        if slices > 0:
            raise NoPlacementError(self._why_not(level, want.slices - slices))
        return chosen

    # ------------------------------------------------------------ descend

    def _descend(self, level: int, domains: list[Domain]) -> list[Domain]:
        """Return the domains of the lowest level, each with the pods and leaders that it gets."""
        want, last = self.request, len(self.tree.levels) - 1
        slice_unit = _slices(want.slice_size)
        chosen = self._spread(domains, want.count, want.leaders, slice_unit)
        for depth in range(level, last):
            if depth < want.slice_level:
                below = sorted((child for domain in chosen for child in domain.children), key=self._capacity_order)
                chosen = self._spread(below, want.count, want.leaders, slice_unit)
                continue
            size = want.inner_sizes.get(depth + 1, 1)
            lower: list[Domain] = []
            for domain in chosen:
                below = sorted(domain.children, key=self._capacity_order)
                if size > 1:
                    self._cut_slices(below, size)
                capacity = self.capacities[domain]
                lower += self._spread(below, capacity.pods, capacity.leaders, _slices(size) if size > 1 else _PODS)
            chosen = lower
        return chosen

    def _cut_slices(self, domains: list[Domain], size: int) -> None:
        for domain in domains:
            capacity = self.capacities[domain]
            capacity.slices, capacity.slices_with_leader = capacity.pods // size, capacity.pods_with_leader // size

    def _spread(self, domains: list[Domain], count: int, leaders: int, unit: _Unit) -> list[Domain]:
        """Assign pods and leaders to domains, in their order, until all are placed; return these domains."""
        remaining, chosen = count // unit.size, list[Domain]()
        domains = self._with_leader_first(domains, remaining, leaders, unit)
        for position, first in enumerate(domains):
            domain, amount = first, unit.with_leader if leaders else unit.amount
            capacity = self.capacities[domain]
            if (
                not self.request.smallest_first
                and getattr(capacity, amount) >= remaining
                and capacity.leaders >= leaders
            ):
                domain = self._best_fit(domains[position:], remaining, leaders, unit)
                capacity = self.capacities[domain]
            chosen.append(domain)
            is_last = getattr(capacity, amount) >= remaining and capacity.leaders >= leaders
            amount_taken = min(remaining, getattr(capacity, amount))
            capacity.leaders = min(capacity.leaders, leaders)
            capacity.pods = amount_taken * unit.size
            setattr(capacity, unit.amount, amount_taken)
            if is_last:
                return chosen
            remaining, leaders = remaining - amount_taken, leaders - capacity.leaders
        raise NoPlacementError(self._why_not(self.request.level, count // unit.size - remaining))

    # ------------------------------------------------------------ reasons

    def _why_not(self, level: int, fitting: int) -> str:
        want, name = self.request, self.tree.name
        if want.constraints:
            text = f'topology "{name}" doesn\'t allow to fit{self._why_no_layers(level)}'
        else:
            unit = "pod" if want.slice_size == 1 else "slice"
            text = f'topology "{name}" allows to fit only {fitting} out of {want.slices} {unit}(s)'
            if fitting == 0:
                text = f'topology "{name}" doesn\'t allow to fit any of {want.slices} {unit}(s)'
        if not self.excluded:
            return text
        reasons = ", ".join(sorted(f"{reason}: {number}" for reason, number in self.excluded.items()))
        return f"{text}. Total nodes: {len(self.tree.leaves)}; excluded: {reasons}"

    def _why_no_layers(self, level: int) -> str:
        best = min(self.tree.domains[level], key=lambda domain: (-self.capacities[domain].slices, domain.values))
        return "".join(
            f"; {self._slices_below(best, level, self.tree.levels.index(layer.level), layer.size)}"
            f"/{self.request.count // layer.size} slice(s) fit on level {layer.level}"
            for layer in self.request.constraints
        )

    def _slices_below(self, domain: Domain, level: int, target: int, size: int) -> int:
        if level == target:
            return self.capacities[domain].pods // size
        return sum(self._slices_below(child, level + 1, target, size) for child in domain.children)


_PODS = _Unit("pods", "pods_with_leader", 1)


def _slices(size: int) -> _Unit:
    return _Unit("slices", "slices_with_leader", size)


def times_in(needs: FreeAmounts, free: FreeAmounts) -> tuple[int, str]:
    """Return how many pods with these needs fit, and the resource that sets the limit: the first of equal ones."""
    counts = ((max(0, free.get(name, 0)) // amount, name) for name, amount in sorted(needs.items()) if amount)
    return min(counts)
