"""The nodes that are free during the scheduling cycle of a fleet with teams."""

import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.admission.pool_fits import (
    PoolFit,
    SharedFits,
    missing_efa,
    pool_fits,
    stays_long_enough,
)
from evenkeel.domain.admission.scheduling_policy import SchedulingPolicy
from evenkeel.domain.capacity import network_topology
from evenkeel.domain.capacity.node_capacity import NodeCapacity, NodeKey, with_freed
from evenkeel.domain.jobs.charge import Charge, charged_resources
from evenkeel.domain.kueue.assignment import Assignment
from evenkeel.domain.kueue.objects import Flavor
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.quotas import flavor_matching
from evenkeel.domain.resources import Resources


class FreeNodes:
    """The nodes that no job of this cycle has taken yet, and how requests fit on them."""

    def __init__(
        self, admission_input: AdmissionInput, policy: SchedulingPolicy, flavors: Mapping[str, Flavor]
    ) -> None:
        self.capacities = admission_input.capacities
        self.reserved: dict[str, tuple[NodeLife, ...]] = {}
        """Job that has quota but no nodes → nodes that are reserved for it. They are not free for other jobs."""
        self._admission_input = admission_input
        self._policy = policy
        self._flavors = flavors
        self._shared_fits = SharedFits(self.capacities, policy)
        self._tests: dict[frozenset[str], Callable[[NodeCapacity], bool] | None] = {}
        """Flavors → the test whether a node belongs to all of them; None if every node does."""

    def __copy__(self) -> "FreeNodes":
        """Return the same free nodes. Assignments in the copy do not change the original; found fits are shared."""
        nodes = FreeNodes.__new__(FreeNodes)
        vars(nodes).update(vars(self), reserved={**self.reserved}, _shared_fits=copy.copy(self._shared_fits))
        return nodes

    def fits(self, request: AdmissionRequest) -> tuple[PoolFit, ...]:
        """Return the fits of a request on all free nodes."""
        return self._shared_fits.fits_of(request, self.capacities)

    def counts(self, request: AdmissionRequest) -> tuple[PoolFit, ...]:
        """Return the fits of a request on all free nodes, without the nodes that it would take."""
        return self._shared_fits.counts_of(request, self.capacities)

    def fits_in_flavors(
        self, request: AdmissionRequest, assignment: Assignment, capacities: Sequence[NodeCapacity] | None = None
    ) -> tuple[PoolFit, ...]:
        """Return the fits of a request on the nodes of its assigned flavors. By default, these are the free nodes."""
        test = self._flavor_test(_flavors_of(assignment))
        if capacities is None and test is None:
            return self.fits(request)
        return pool_fits(request, self.capacities if capacities is None else capacities, self._policy, test)

    def fits_without(
        self, request: AdmissionRequest, assignment: Assignment, stopped_job_ids: Collection[str]
    ) -> tuple[PoolFit, ...]:
        """Return the fits of a request on the nodes of its assigned flavors after some jobs have stopped."""
        test = self._flavor_test(_flavors_of(assignment))
        if test is None:
            return self._shared_fits.fits_with_freed(request, self.capacities, self._freed_by(stopped_job_ids))
        return pool_fits(request, self.capacities_without(stopped_job_ids), self._policy, test)

    def capacities_without(self, stopped_job_ids: Collection[str]) -> tuple[NodeCapacity, ...]:
        """Return the node capacities after some jobs have stopped."""
        return with_freed(self.capacities, self._freed_by(stopped_job_ids))

    def _freed_by(self, stopped_job_ids: Collection[str]) -> dict[NodeKey, Resources]:
        return charged_resources(
            charge for job_id in stopped_job_ids for charge in self._charges_by_job.get(job_id, ())
        )

    @functools.cached_property
    def _charges_by_job(self) -> dict[str, list[Charge]]:
        charges: dict[str, list[Charge]] = defaultdict(list)
        for charge in self._admission_input.charges:
            charges[charge.job_id].append(charge)
        return charges

    def assign(self, request: AdmissionRequest, lives: Sequence[NodeLife]) -> None:
        """Take nodes for a job that starts."""
        self.capacities = self._shared_fits.subtract(self.capacities, request, lives)

    def reserve(self, request: AdmissionRequest, fit: PoolFit) -> None:
        """Reserve the free nodes of a pool for a job that waits for more of them."""
        pool_nodes = [
            capacity
            for capacity in self.capacities
            if (capacity.pool, capacity.instance_type) == (fit.pool, fit.instance_type)
            and capacity.cluster == request.cluster
        ]
        nodes_that_fit = [
            capacity
            for capacity in pool_nodes
            if capacity.is_open
            and stays_long_enough(request, capacity)
            and not capacity.why_too_small(request.per_node)
            and capacity.life.key not in request.avoid
            and not missing_efa(request, capacity, self._policy)
        ]
        reserved_nodes = network_topology.nodes_to_reserve(
            nodes_that_fit, pool_nodes, request.nodes, request.network_needs
        )
        self.reserved[request.job_id] = tuple(capacity.life for capacity in reserved_nodes)
        self.assign(request, self.reserved[request.job_id])

    def _flavor_test(self, names: frozenset[str]) -> Callable[[NodeCapacity], bool] | None:
        if names not in self._tests:
            node_keys = frozenset(
                (capacity.cluster, capacity.node_name)
                for capacity in self._admission_input.capacities
                if all(
                    flavor_matching.matches_node(
                        self._flavors[name], capacity.instance_type, capacity.pool, capacity.labels
                    )
                    for name in names
                )
            )
            is_all = len(node_keys) == len(self._admission_input.capacities)
            self._tests[names] = (
                None if is_all else lambda capacity: (capacity.cluster, capacity.node_name) in node_keys
            )
        return self._tests[names]


def _flavors_of(assignment: Assignment) -> frozenset[str]:
    return frozenset(name for flavors in assignment.flavors for name in flavors.values())
