"""Nomination: find flavors and victims for the head of one queue."""

from collections.abc import Hashable, Mapping
from functools import partial
from typing import NamedTuple

from evenkeel.domain.kueue import fair_sharing
from evenkeel.domain.kueue.assignment import Assignment, AssignmentMode, FlavorCursor, FlavorMode
from evenkeel.domain.kueue.flavors import FlavorAssigner
from evenkeel.domain.kueue.objects import Amounts, Key, Workload
from evenkeel.domain.kueue.pending_queue import PendingWorkload
from evenkeel.domain.kueue.preemption import CandidateLists, QuotaDemand, Victim, classical_victims, simulate
from evenkeel.domain.kueue.snapshot import Snapshot, without_zeros
from evenkeel.domain.kueue.topology_state import TopologyDemand, TopologyState


class Nomination(NamedTuple):
    """The flavors of a workload, and the victims that it needs."""

    assignment: Assignment
    victims: list[Victim]


class KnownNominations:
    """The nominations of earlier schedulers that decided about the same workloads, by state.

    A head gets the same flavors and victims again if the state that its nomination reads is the same.
    """

    def __init__(self) -> None:
        """Start without nominations."""
        self._by_state: dict[Hashable, dict[str, tuple[PendingWorkload, Nomination]]] = {}

    def in_state(self, state: Hashable) -> dict[str, tuple[PendingWorkload, Nomination]]:
        """Return the nominations of one state: workload → its entry in the queue, and its nomination.

        The caller adds new nominations to this dictionary.
        """
        return self._by_state.setdefault(state, {})


class Nominator:
    """Finds flavors and victims in one snapshot."""

    def __init__(self, snapshot: Snapshot, cycle: int, candidate_lists: CandidateLists) -> None:
        """Prepare.

        Args:
            snapshot: The state that is read. It is unchanged after each call.
            cycle: Number of the Kueue cycle.
            candidate_lists: The candidates in this state.
        """
        self._snapshot = snapshot
        self._cycle = cycle
        self._victims: dict[tuple[object, ...], list[Victim]] = {}
        """(amounts, keys that need preemption, domains) → victims for the present workload. Simulation and nomination
        often ask the same."""
        self._candidate_lists = candidate_lists

    def nominate(
        self, workload: Workload, flavor_cursor: FlavorCursor | None, only: tuple[Mapping[str, str], ...] | None = None
    ) -> Nomination:
        """Find flavors, victims and domains at full size, else at the largest size that can be admitted.

        Args:
            workload: The head of a queue.
            flavor_cursor: The flavor at which an earlier scan stopped.
            only: Flavors to use, by pod set; None allows all. Given only after earlier heads changed the snapshot.
        """
        if only is not None:
            self._candidate_lists = CandidateLists(self._snapshot)
        nomination = self._nominate(workload, flavor_cursor, only)
        assignment = nomination.assignment
        if assignment.demands and assignment.verdict is AssignmentMode.PREEMPT:
            self._place_afterwards(nomination)
        return nomination

    def _place_afterwards(self, nomination: Nomination) -> None:
        """Find the domains that a workload gets after its victims stop; without victims, in empty domains."""
        topology, victims = self._snapshot.topology, nomination.victims
        assert topology is not None
        with self._snapshot.without_use_of(victim.admitted for victim in victims):
            nomination.assignment.place(topology.place(nomination.assignment.demands, ignores_workloads=not victims))

    def _nominate(
        self, workload: Workload, flavor_cursor: FlavorCursor | None, only: tuple[Mapping[str, str], ...] | None
    ) -> Nomination:
        self._victims.clear()
        queue = self._snapshot.queue_of(workload)
        replaced = queue.admitted.get(workload.replaces) if workload.replaces else None
        assigner = FlavorAssigner(
            workload,
            self._snapshot,
            self._simulate,
            flavor_cursor=flavor_cursor,
            cycle=self._cycle,
            only=only,
            replaced=replaced,
        )
        full = assigner.assign(workload.counts)
        victims = self._victims_of(full, workload)
        if victims is not None:
            return Nomination(full, victims)
        if workload.may_shrink and replaced is None and self._snapshot.rules.partial_admission:
            smaller = self._search_smaller(assigner, workload)
            if smaller is not None:
                return smaller
        return Nomination(full, [])

    def _victims_of(self, assignment: Assignment, workload: Workload) -> list[Victim] | None:
        """Return the victims that this size needs, possibly none; None if it cannot be admitted."""
        if assignment.verdict is AssignmentMode.FIT:
            return []
        if assignment.verdict is AssignmentMode.PREEMPT:
            use, keys_needing_preemption = without_zeros(assignment.use), assignment.keys_needing_preemption
            return self._find_victims(workload, use, keys_needing_preemption, assignment.demands) or None
        return None

    def _search_smaller(self, assigner: FlavorAssigner, workload: Workload) -> Nomination | None:
        """Find the largest size between full and minimum that can be admitted, by binary search."""
        reducible_counts = [
            pod_set.count - (pod_set.count if pod_set.min_count is None else pod_set.min_count)
            for pod_set in workload.pod_sets
        ]
        steps = sum(reducible_counts)
        low, high = 0, steps + 1
        largest: tuple[int, Nomination] | None = None
        while low < high:
            middle = (low + high) // 2
            counts = tuple(
                count - reducible * middle // steps
                for count, reducible in zip(workload.counts, reducible_counts, strict=True)
            )
            assignment = assigner.assign(counts)
            victims = self._victims_of(assignment, workload)
            if victims is None:
                low = middle + 1
            else:
                largest, high = (middle, Nomination(assignment, victims)), middle
        if largest is None or largest[0] != low:
            return None
        return largest[1]

    def _find_victims(
        self,
        workload: Workload,
        requested: Amounts,
        keys_needing_preemption: frozenset[Key],
        demands: tuple[TopologyDemand, ...] = (),
    ) -> list[Victim]:
        cache_key: tuple[object, ...] = (frozenset(requested.items()), keys_needing_preemption)
        if demands:
            cache_key = (*cache_key, *((demand.index, demand.count, demand.flavor) for demand in demands))
        if cache_key not in self._victims:
            topology, queue = self._snapshot.topology, self._snapshot.queue_of(workload)
            has_domains = None
            if topology is not None and demands:
                has_domains = partial(_has_domains, topology, demands)
            demand = QuotaDemand(workload, queue, requested, keys_needing_preemption, workload.replaces, has_domains)
            if self._snapshot.rules.fair_sharing:
                victims = fair_sharing.fair_victims(demand, self._snapshot, self._candidate_lists)
            else:
                victims = classical_victims(demand, self._snapshot)
            self._victims[cache_key] = victims
        return [*self._victims[cache_key]]

    def _simulate(self, workload: Workload, key: Key, amount: int) -> tuple[FlavorMode, int]:
        """Return whether preemption frees this amount of one resource of one flavor, and the borrowing level then."""
        keys_needing_preemption = frozenset((key,))
        requested = {key: amount}
        demand = QuotaDemand(
            workload, self._snapshot.queue_of(workload), requested, keys_needing_preemption, workload.replaces
        )
        return simulate(demand, key, self._find_victims(workload, requested, keys_needing_preemption), self._snapshot)


def _has_domains(topology: TopologyState, demands: tuple[TopologyDemand, ...]) -> bool:
    return topology.place(demands).failed is None
