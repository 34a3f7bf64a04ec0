"""Section of the policy for scheduling."""

from typing import Self

from pydantic import Field, model_validator

from evenkeel.domain.capacity.policy import ReservedPool
from evenkeel.domain.capacity.pools import Reservation
from evenkeel.domain.elastic.sizes import ElasticTerms
from evenkeel.domain.external.policy import ServingWorkload
from evenkeel.domain.policy_base import Count, Section
from evenkeel.domain.values import Word


class SchedulingPolicy(Section):
    """Admission. First come, first served on free nodes."""

    spare_nodes: dict[Word, Count] = {}
    """Free nodes per pool that only a recovery may take."""
    efa_interfaces: dict[Word, Count] = {}
    """EFA interfaces of each node, by pool, where they differ from the instance type's; 0 = jobs there use none."""
    heads_per_cycle: int = Field(default=50, ge=1, le=1000)
    """Pending jobs that one pass weighs, in queue order."""
    most_open_jobs_per_principal: int = Field(default=500, ge=1, le=100_000)
    """Jobs of one submitter that have not ended. A submission beyond it is refused."""
    most_open_jobs_per_team: int = Field(default=2000, ge=1, le=100_000)
    """The same for one team; where no teams are set up, for all jobs together."""
    elastic: ElasticTerms = ElasticTerms()
    """When elastic jobs grow, and how long they wait for a spare node."""
    serving: tuple[ServingWorkload, ...] = ()
    """Deployments that elastic jobs shrink for."""
    reservations: tuple[ReservedPool, ...] = ()
    """Pools whose machines go at a time that is known: jobs leave them before."""

    def reservation_of(self, cluster: str, pool: str) -> Reservation | None:
        """Return for how long a pool's machines are held; None where nothing says that they go."""
        return next((each.stretch for each in self.reservations if (each.cluster, each.pool) == (cluster, pool)), None)

    @model_validator(mode="after")
    def _pools_end_once(self) -> Self:
        places = [(each.cluster, each.pool) for each in self.reservations]
        if len({*places}) < len(places):
            raise ValueError("two reservations of the same pool")
        return self
