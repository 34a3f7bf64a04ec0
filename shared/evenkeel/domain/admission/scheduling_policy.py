"""Section of the policy for scheduling."""

from collections.abc import Iterable, Mapping
from typing import Self

from pydantic import Field, model_validator

from evenkeel.domain.capacity.capacity_policy import CapacityBlock, ReservedPool
from evenkeel.domain.capacity.pools import Reservation
from evenkeel.domain.elastic.sizes import ElasticPolicy
from evenkeel.domain.external.adoption_policy import ServingWorkload
from evenkeel.domain.policy_section import Count, Seconds, Section
from evenkeel.domain.values import Word


class SchedulingPolicy(Section):
    """How pending jobs are examined and admitted: spares, page sizes, limits, serving and reservations."""

    spare_nodes: dict[Word, Count] = {}
    """Pool → free nodes that only a recovery may take."""
    efa_interfaces: dict[Word, Count] = {}
    """Pool → EFA interfaces of each node, if they differ from the instance type's; 0 = jobs there use none."""
    jobs_per_page: int = Field(default=50, ge=1, le=1000)
    """Pending jobs in one page of a queue. The head of a queue, which every cycle examines, is its first page."""
    max_jobs_per_cycle: int = Field(default=500, ge=1, le=100_000)
    """Maximum pending jobs that one scheduling cycle examines in all queues together. Half of them are at the heads, at
    least one in each queue. The rest come from later pages of long queues."""
    backfill_seconds: Seconds = 0
    """Without teams: how long later jobs may start before a job that waits for nodes. Until then jobs wait in order of
    the price of delay of their class. After that the job goes before all younger jobs and blocks them. 0 = first come,
    first served."""
    max_open_jobs_per_principal: int = Field(default=500, ge=1, le=100_000)
    """Maximum number of jobs of one submitter that have not ended. Further submissions are refused."""
    max_open_jobs_per_team: int = Field(default=2000, ge=1, le=100_000)
    """The same limit for one team; without teams, for all jobs together."""
    elastic: ElasticPolicy = ElasticPolicy()
    """When elastic jobs grow, and how long they wait for a spare node."""
    serving: tuple[ServingWorkload, ...] = ()
    """Deployments for which elastic jobs shrink."""
    reservations: tuple[ReservedPool, ...] = ()
    """Pools whose nodes AWS takes back at a known time. Jobs leave these nodes before that time."""

    def jobs_per_first_page(self, queues: int) -> int:
        """Return the length of the first page of each queue: a page of jobs, or less if there are many queues."""
        return max(1, min(self.jobs_per_page, self.examined_jobs_limit // 2 // max(1, queues)))

    @property
    def long_queues_per_cycle(self) -> int:
        """Number of long queues from which a cycle reads one more page after the first page."""
        return self.examined_jobs_limit // 2 // self.jobs_per_page

    @property
    def examined_jobs_limit(self) -> int:
        """Maximum pending jobs that a cycle examines: the policy's maximum, but at least six pages."""
        return max(self.max_jobs_per_cycle, 6 * self.jobs_per_page)

    def reservation_of_node(self, cluster: str, pool: str, labels: Mapping[str, str]) -> ReservedPool | None:
        """Return the reservation with which a node ends: its Capacity Block, or else that of its pool."""
        reservations = [
            reservation
            for reservation in self.reservations
            if (reservation.cluster, reservation.pool) == (cluster, pool) and reservation.has_node(labels)
        ]
        return max(reservations, key=lambda reservation: isinstance(reservation, CapacityBlock), default=None)

    def reservation_of_pool(
        self, cluster: str, pool: str, labels_of_nodes: Iterable[Mapping[str, str]]
    ) -> Reservation | None:
        """Return the reservation with which the last nodes of a pool end; None if some nodes end with none."""
        if all((reservation.cluster, reservation.pool) != (cluster, pool) for reservation in self.reservations):
            return None
        last: ReservedPool | None = None
        for labels in labels_of_nodes:
            reservation = self.reservation_of_node(cluster, pool, labels)
            if reservation is None:
                return None
            last = reservation if last is None or reservation.usable_until > last.usable_until else last
        return last.reservation if last else None

    @model_validator(mode="after")
    def _lists_each_pool_once(self) -> Self:
        keys = [reservation.key for reservation in self.reservations]
        if len({*keys}) < len(keys):
            raise ValueError("two reservations of the same pool")
        return self
