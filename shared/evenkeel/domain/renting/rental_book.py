"""All open rentals at one moment: their reserved nodes, and the rest of caps, limits and budgets."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.renting.burst_policy import BurstPolicy
from evenkeel.domain.renting.cost import JobDemand, SpendLimits
from evenkeel.domain.renting.placement import PlacementDecision
from evenkeel.domain.renting.rental import UNASSIGNED, Rental, RentalState
from evenkeel.domain.values import Value


class RentalAllocation(Value):
    """The part of caps and limits that a rental uses until it ends. Its row is stored beside the quota tree's row."""

    job_id: str
    number: int
    team: str
    cluster: str
    pool: str
    nodes: int
    accelerators_per_node: int
    micros_per_hour: int

    @classmethod
    def of(cls, rental: Rental) -> "RentalAllocation":
        """Return the allocation of a rental."""
        offer = rental.offer
        return cls(
            job_id=rental.job_id,
            number=rental.number,
            team=rental.team,
            cluster=offer.cluster,
            pool=offer.pool,
            nodes=rental.nodes,
            accelerators_per_node=offer.accelerators_per_node,
            micros_per_hour=offer.micros_per_node_hour * rental.nodes,
        )


class RentalBook(NamedTuple):
    """All open rentals, with their share of caps and limits."""

    rentals: tuple[Rental, ...] = ()
    allocations: tuple[RentalAllocation, ...] = ()
    budgets_left: Mapping[str, int] = {}
    """Team with a budget in dollars → the rest of the budget, in parts of `economics.money`."""

    @property
    def rental_by_holder(self) -> Mapping[str, Rental]:
        """Job or Deployment → the rental whose nodes it has or will get."""
        return {rental.job_id: rental for rental in self.rentals if rental.state.hosts_holder}

    @property
    def sole_rental_by_holder(self) -> Mapping[str, Rental]:
        """The same without rentals that join the committed nodes of a job. No job waits for those."""
        return {holder: rental for holder, rental in self.rental_by_holder.items() if not rental.joins_base}

    def in_rented_cluster(self, job: Job) -> Job:
        """Return a job in the cluster of its rented nodes, if it has received any."""
        if job.is_migrating_back:
            return job
        holds = (rental for rental in reversed(self.rentals) if rental.job_id == job.job_id)
        rental = next((rental for rental in holds if rental.state.hosts_holder), None)
        if rental is None or rental.state is not RentalState.READY:
            return job
        return job if rental.offer.cluster == job.cluster else job.replace(cluster=rental.offer.cluster)

    def reserve_nodes(
        self, capacities: Iterable[NodeCapacity], jobs: Iterable[Job], pools: Iterable[Pool]
    ) -> tuple[NodeCapacity, ...]:
        """Return the capacities with rented nodes reserved for their jobs. Migrating jobs reserve none.

        Args:
            capacities: Node capacities of the fleet.
            jobs: The pending jobs.
            pools: Pools that the policy rents from.
        """
        migrating_job_ids = {job.job_id for job in jobs if job.is_migrating_back}
        return reserve_rented_nodes(capacities, self.rentals, pools, migrating_job_ids)

    def with_planned(self, decisions: Iterable[PlacementDecision], pools: Iterable[Pool]) -> "RentalBook":
        """Return the book with the rentals that are decided but not opened yet."""
        book, by_name = self, {pool.name: pool for pool in pools}
        for decision in decisions:
            rent_parts = decision.row.rent_parts if decision.row else 0
            book = book.with_expected(decision.facts.job, by_name[decision.pool], rent_parts)
        return book

    def with_expected(self, demand: JobDemand, pool: Pool, rent_parts: int) -> "RentalBook":
        """Return the book with a rental that is expected to begin, and its expected cost."""
        allocation = RentalAllocation(
            job_id=demand.job_id,
            number=0,
            team=demand.team,
            cluster=pool.cluster,
            pool=pool.name,
            nodes=demand.nodes,
            accelerators_per_node=pool.accelerators_per_node,
            micros_per_hour=pool.micros_per_node_hour * demand.nodes,
        )
        budget_left = self.budgets_left.get(demand.team)
        budgets_left = {demand.team: budget_left - rent_parts} if budget_left is not None else {}
        return self._replace(
            allocations=(*self.allocations, allocation), budgets_left={**self.budgets_left, **budgets_left}
        )


def reserve_rented_nodes(
    capacities: Iterable[NodeCapacity],
    rentals: Iterable[Rental],
    pools: Iterable[Pool],
    migrating_job_ids: Iterable[str] = (),
) -> tuple[NodeCapacity, ...]:
    """Return the capacities with each node of a rented pool reserved: for the job that received it, or for no job.

    Capacity pods stay on such a node until its job's own pods exist, so their requests count as free for the job.

    Args:
        capacities: Node capacities of the fleet.
        rentals: The open rentals.
        pools: Pools that the policy rents from.
        migrating_job_ids: Jobs that move to committed nodes: rented nodes are not reserved for them.
    """
    all_rentals, leaving_job_ids = tuple(rentals), frozenset(migrating_job_ids)
    rented_pools = {(pool.cluster, pool.name) for pool in pools if pool.market.is_rented}
    rented_pools |= {(offer.cluster, offer.pool) for rental in all_rentals for offer in rental.offers}
    if not rented_pools:
        return tuple(capacities)
    job_id_by_node = {
        # The base of a mixed attempt is committed, so its job alone must not be placed on the rented nodes.
        (rental.offer.cluster, name): rental.name if rental.joins_base else rental.job_id
        for rental in all_rentals
        if rental.state is RentalState.READY and rental.job_id not in leaving_job_ids
        for name in rental.node_names
    }

    def reserved(capacity: NodeCapacity) -> NodeCapacity:
        if (capacity.cluster, capacity.pool) not in rented_pools:
            return capacity
        job_id = job_id_by_node.get((capacity.cluster, capacity.node_name), UNASSIGNED)
        free = capacity.free if job_id == UNASSIGNED else capacity.allocatable
        return capacity.replace(reserved_for=job_id, free=free)

    return tuple(map(reserved, capacities))


def spend_limits(
    team: str, allocations: Iterable[RentalAllocation], burst: BurstPolicy, budget_left_parts: int | None = None
) -> SpendLimits:
    """Return the current rents of a team and of the fleet, with their caps."""
    all_allocations = tuple(allocations)
    return SpendLimits(
        team_micros_per_hour=sum(
            allocation.micros_per_hour for allocation in all_allocations if allocation.team == team
        ),
        fleet_micros_per_hour=sum(allocation.micros_per_hour for allocation in all_allocations),
        team_cap_micros_per_hour=burst.team_cap_of(team),
        fleet_cap_micros_per_hour=burst.fleet_cap_micros_per_hour,
        team_budget_left_parts=budget_left_parts,
    )


def unrented_accelerators(pool: Pool, allocations: Iterable[RentalAllocation]) -> int:
    """Return the accelerators that the limit of a pool leaves for new rentals."""
    rented_accelerators = sum(
        allocation.nodes
        for allocation in allocations
        if (allocation.cluster, allocation.pool) == (pool.cluster, pool.name)
    )
    return max(0, pool.max_nodes - rented_accelerators) * pool.accelerators_per_node
