"""Which nodes of the flavors with a topology are free, and the pod sets of a workload that need domains there."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evenkeel.domain.kueue.objects import Flavor, PodSet, Queue, TopologyAssignment
from evenkeel.domain.kueue.topology import (
    Domain,
    FreeAmounts,
    NoPlacementError,
    TopologyTree,
    choose_domains,
    missing_level,
    times_in,
)

Used = dict[tuple[str, ...], Counter[str]]
"""The amounts in use in each domain of a lowest level, by its key."""


class DomainUse(NamedTuple):
    """The pods of one pod set in one domain of the lowest level."""

    flavors: tuple[str, ...]
    values: tuple[str, ...]
    needs: Mapping[str, int]
    """Of one pod."""
    pods: int


@dataclass(frozen=True, slots=True)
class TopologyDemand:
    """A pod set that needs domains of a flavor."""

    index: int
    """Its index among the pod sets of its workload."""
    count: int
    flavor: str
    pod_set: PodSet


class PlacementResult(NamedTuple):
    """The domains by pod set, or the first pod set that does not fit."""

    assignments: Mapping[int, TopologyAssignment]
    failed: TopologyDemand | None = None
    reason: str = ""


def domain_use(pod_sets: Sequence[PodSet], assignments: Sequence[TopologyAssignment | None]) -> tuple[DomainUse, ...]:
    """Return the amounts that a workload uses of each domain."""
    return tuple(
        DomainUse(assignment.flavors, domain.values, pod_set.needs_of_node, domain.count)
        for pod_set, assignment in zip(pod_sets, assignments, strict=False)
        if assignment is not None
        for domain in assignment.domains
    )


class TopologyState:
    """The nodes of all flavors with a topology, and the amounts that workloads use of them.

    Flavors whose lowest level is a node share these nodes: the amounts that one flavor uses are not free for the other
    (Kueue's gate `TASHandleOverlappingFlavors`).
    """

    def __init__(self, flavors: Mapping[str, Flavor], *, least_free_capacity: bool = True) -> None:
        self._trees = {
            name: TopologyTree(name, flavor.topology, flavor.tolerations)
            for name, flavor in flavors.items()
            if flavor.topology is not None
        }
        self._least_free_capacity = least_free_capacity
        self._used: Used = {}
        self._is_topology_only: dict[str, bool] = {}

    @staticmethod
    def of(flavors: Mapping[str, Flavor], *, least_free_capacity: bool) -> "TopologyState | None":
        """Return the state without use; None if no flavor has a topology."""
        if all(flavor.topology is None for flavor in flavors.values()):
            return None
        return TopologyState(flavors, least_free_capacity=least_free_capacity)

    # ------------------------------------------------------------ use

    def add(self, uses: Iterable[DomainUse]) -> None:
        """Add the use of pods. A domain without a node is ignored."""
        self._add_use(uses, 1)

    def remove(self, uses: Iterable[DomainUse]) -> None:
        """Remove the use of pods: the reverse of `add`."""
        self._add_use(uses, -1)

    def _add_use(self, uses: Iterable[DomainUse], sign: int) -> None:
        for use in uses:
            for key in self._keys(use):
                used = self._used.setdefault(key, Counter())
                for resource, amount in use.needs.items():
                    used[resource] += sign * amount * use.pods

    def _keys(self, use: DomainUse) -> set[tuple[str, ...]]:
        trees = (self._trees[flavor] for flavor in use.flavors if flavor in self._trees)
        return {tree.key(use.values) for tree in trees}

    def fits(self, uses: Iterable[DomainUse]) -> bool:
        """Whether the domains exist and all of these pods together fit in them now."""
        assumed: Used = {}
        for use in uses:
            for flavor in use.flavors:
                tree = self._trees.get(flavor)
                if tree is None:
                    continue
                key = tree.key(use.values)
                leaf = tree.leaves.get(key)
                if leaf is None or times_in(use.needs, self._free(tree, leaf, use.needs, assumed))[0] < use.pods:
                    return False
                assumed_use = assumed.setdefault(key, Counter())
                assumed_use.update({name: amount * use.pods for name, amount in use.needs.items()})
        return True

    def _free(
        self,
        tree: TopologyTree,
        leaf: Domain,
        resources: FreeAmounts,
        assumed: Used,
        *,
        ignores_workloads: bool = False,
    ) -> dict[str, int]:
        key, nothing = tree.key(leaf.values), Counter[str]()
        used, assumed_use = nothing if ignores_workloads else self._used.get(key, nothing), assumed.get(key, nothing)
        return {name: leaf.allocatable[name] - used[name] - assumed_use[name] for name in resources}

    # ------------------------------------------------------------ demands

    def why_unfit(self, queue: Queue, flavor: str, pod_sets: Iterable[PodSet]) -> str:
        """Return why these pods cannot get a flavor because of its topology; empty if they can."""
        tree = self._trees.get(flavor)
        for pod_set in pod_sets:
            if pod_set.topology is None:
                if tree is not None and not self.is_topology_only(queue):
                    return f"{flavor} takes only pods with a topology request"
            elif tree is None:
                if _shares_resources(queue, flavor, pod_set):
                    return f"{flavor} has no topology"
            elif level := missing_level(pod_set.topology, tree.levels):
                return f"{flavor} has no topology level {level}"
        return ""

    def is_topology_only(self, queue: Queue) -> bool:
        """Whether each flavor of a queue has a topology, so that pods without a request get one: unconstrained."""
        if queue.name not in self._is_topology_only:
            flavors = [flavor.flavor for group in queue.groups for flavor in group.flavors]
            self._is_topology_only[queue.name] = all(flavor in self._trees for flavor in flavors)
        return self._is_topology_only[queue.name]

    def demands(
        self, queue: Queue, pod_sets: Sequence[PodSet], counts: Sequence[int], flavors: Sequence[Mapping[str, str]]
    ) -> list[TopologyDemand]:
        """Return the pod sets that need domains.

        Raises:
            NoPlacementError: A pod set has no flavor with a topology, or several.
        """
        is_implied = self.is_topology_only(queue)
        demands = []
        for index, (pod_set, count) in enumerate(zip(pod_sets, counts, strict=True)):
            if not count or not (pod_set.topology or is_implied):
                continue
            given = list(flavors[index].values())
            if not given and pod_set.group:  # a leader without requests runs where its group runs
                groups = (other.group for other in pod_sets)
                given = [
                    name
                    for group, own in zip(groups, flavors, strict=True)
                    if group == pod_set.group
                    for name in own.values()
                ]
            names = sorted({name for name in given if name in self._trees})
            if len(names) != 1:
                several = f"has flavors with different topologies: {', '.join(names)}"
                why = several if names else "has no flavor with a topology"
                raise NoPlacementError(f"pod set {pod_set.name} {why}")
            demands.append(TopologyDemand(index, count, names[0], pod_set))
        return demands

    def place(self, demands: Sequence[TopologyDemand], *, ignores_workloads: bool = False) -> PlacementResult:
        """Choose domains for these pod sets, one after the other: all of them or none.

        Args:
            demands: The pod sets of one workload.
            ignores_workloads: Whether to choose domains as if no workload used a node.
        """
        assignments: dict[int, TopologyAssignment] = {}
        assumed: Used = {}
        for group in _groups(demands):
            tree = self._trees[group[0].flavor]

            def free(leaf: Domain, resources: FreeAmounts, tree: TopologyTree = tree) -> dict[str, int]:
                return self._free(tree, leaf, resources, assumed, ignores_workloads=ignores_workloads)

            try:
                pods, leader = _pods_and_leader(group)
                chosen = choose_domains(
                    tree,
                    free,
                    pods.pod_set,
                    pods.count,
                    leader.pod_set if leader else None,
                    least_free_capacity=self._least_free_capacity,
                )
            except NoPlacementError as error:
                return PlacementResult({}, group[0], str(error))
            for demand, assignment in zip((pods, leader), chosen, strict=True):
                if demand is not None and assignment is not None:
                    assignments[demand.index] = assignment
                    for use in domain_use((demand.pod_set,), (assignment,)):
                        assumed_use = assumed.setdefault(tree.key(use.values), Counter())
                        assumed_use.update({name: amount * use.pods for name, amount in use.needs.items()})
        return PlacementResult(assignments)


def _shares_resources(queue: Queue, flavor: str, pod_set: PodSet) -> bool:
    groups = [group for group in queue.groups if any(quotas.flavor == flavor for quotas in group.flavors)]
    return any(resource in pod_set.needs_of_node for group in groups for resource in group.resources)


def _groups(demands: Iterable[TopologyDemand]) -> list[list[TopologyDemand]]:
    """Return the demands by flavor, and pod sets of one group together."""
    groups: dict[tuple[str, str], list[TopologyDemand]] = {}
    for demand in sorted(demands, key=lambda demand: (demand.flavor, demand.index)):
        groups.setdefault((demand.flavor, demand.pod_set.group or f"#{demand.index}"), []).append(demand)
    return list(groups.values())


def _pods_and_leader(group: Sequence[TopologyDemand]) -> tuple[TopologyDemand, TopologyDemand | None]:
    """Return the pod set of a group, and its leader: the smaller of two pod sets, of equal ones the second.

    Raises:
        NoPlacementError: The group is not of a kind that Kueue accepts.
    """
    if len(group) == 1:
        return group[0], None
    name = group[0].pod_set.group
    if len(group) > 2:
        raise NoPlacementError(f"pod set group {name} has {len(group)} pod sets; with a topology, 2 are possible")
    first, second = group
    pods, leader = (second, first) if second.count > first.count else (first, second)
    if leader.count != 1:
        raise NoPlacementError(f"pod set group {name} needs a pod set of one pod, its leader")
    return pods, leader
