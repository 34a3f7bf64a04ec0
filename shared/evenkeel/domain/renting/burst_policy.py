"""Sections of the policy for burst capacity."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.economics import money
from evenkeel.domain.policy_section import Deadline, Micros, PriorityClass, Seconds, Section, Tries
from evenkeel.domain.values import Image, Word

_TAINT = r"^[!-9;<>-~]+=[!-9;<>-~]*:(NoSchedule|NoExecute)$"


class RentedPool(Pool):
    """A Karpenter NodePool that Evenkeel rents nodes from.

    Only Evenkeel changes its limit, and sets it to the number of rented nodes.
    """

    model_config = ConfigDict(extra="forbid")

    name: Word
    """Name of the NodePool."""
    taints: tuple[Annotated[str, Field(max_length=400, pattern=_TAINT)], ...] = ()
    """`key=value:Effect` of all its nodes. A job that does not tolerate them gets no node of the pool."""
    labels: dict[Word, Word] = {}
    """Labels of all its nodes, without the labels of Karpenter and Kubernetes. A `nodeSelector` may ask for them."""

    @model_validator(mode="after")
    def _is_rented_and_bounded(self) -> Self:
        if not self.market.is_rented:
            raise ValueError(f"{self.name}: market must be spot or on-demand")
        if not self.max_nodes or not self.accelerators_per_node:
            raise ValueError(f"{self.name}: maxNodes and acceleratorsPerNode must be above 0")
        # The time of the slowest of many launches is computed from both. Extreme values would overflow it.
        if self.launch.p90_seconds > min(86_400, 100 * self.launch.p50_seconds or 86_400):
            raise ValueError(f"{self.name}: p90Seconds may be at most a day, and at most 100 times p50Seconds")
        return self


class BurstPolicy(Section):
    """The nodes that Evenkeel may rent, for which jobs, and at which cost. The shipped policy rents nothing."""

    pools: tuple[RentedPool, ...] = ()
    """Pools to rent from. The first of equally cheap pools is chosen."""
    fleet_cap_micros_per_hour: Micros = 0
    """Cap on the cost of all rentals, in millionths of a dollar an hour."""
    team_caps_micros_per_hour: dict[Word, Micros] = {}
    """Cap on the cost of one team's rentals, in millionths of a dollar an hour, for each listed team."""
    other_team_cap_micros_per_hour: Micros = 0
    """The cap for every other team."""
    delay_micros_per_hour: dict[PriorityClass, Micros] = {}
    """Price of one hour's delay by priority class, in millionths of a dollar."""
    other_delay_micros_per_hour: Micros = 0
    """The price for every other class. At 0 nothing is rented for a job without a deadline."""
    expected_run_seconds: dict[PriorityClass, Deadline] = {}
    """Expected run time of a job by priority class."""
    other_expected_run_seconds: Deadline = 14_400
    """The run time for every other class."""
    max_wait_seconds: Seconds = 0
    """If set, renting for a job may cost more than its wait. The limit on the extra cost rises with the
    square of the job's delay so far. After this delay it equals the cost of the delay. 0 = no extra cost."""
    max_moves: Tries = 0
    """Number of moves after which a job is no longer moved off committed nodes for another job. At 0 no job is.
    Moves back to committed nodes count as well, but they have no limit: each of them ends a rent."""
    ready_seconds: Deadline = 900
    """Time for one pool to supply all nodes. After that, Evenkeel requests nodes from the next pool."""
    quiet_seconds: Seconds = 300
    """How long idle nodes are kept for their job while it is pending again."""
    temporary_seconds: Deadline = 86_400
    """How long temporary capacity may replace failed nodes that do not come back."""
    max_offers: int = Field(default=4, ge=1, le=100)
    """Maximum number of pools that are asked for one rental."""
    rentals_per_cycle: Tries = 4
    """Maximum number of rentals that one scheduling cycle may begin."""
    spot_checkpoint_share: float = Field(default=0.1, gt=0, le=100)
    """On spot nodes, the longest time between checkpoints as a share of the mean time between interruptions."""
    capacity_pod_image: Image = "registry.k8s.io/pause:3.10"
    """Image of the capacity pods: they make Karpenter launch nodes and hold them until the job's own pods exist."""
    capacity_pod_namespace: Word = "evenkeel-jobs"
    """Namespace of the capacity pods for a Deployment: Evenkeel may create none in the Deployment's own namespace."""

    @property
    def rented_pools(self) -> frozenset[tuple[str, str]]:
        """Cluster and name of each pool to rent from. All other pools are committed."""
        return frozenset((pool.cluster, pool.name) for pool in self.pools)

    def delay_of(self, priority_class: str) -> int:
        """Return the price of one hour's delay of a class, in micro-dollars."""
        return self.delay_micros_per_hour.get(priority_class, self.other_delay_micros_per_hour)

    def usd_of_delay(self, priority_class: str) -> float:
        """Return the price of one hour's delay of a class, in dollars."""
        return self.delay_of(priority_class) / money.MICROS_PER_USD

    def run_seconds_of(self, priority_class: str) -> int:
        """Return the expected run time of a job of a class, in seconds."""
        return self.expected_run_seconds.get(priority_class, self.other_expected_run_seconds)

    def team_cap_of(self, team: str) -> int:
        """Return the cap on a team's rentals, in micro-dollars an hour."""
        return self.team_caps_micros_per_hour.get(team, self.other_team_cap_micros_per_hour)

    @model_validator(mode="after")
    def _check_pool_names(self) -> Self:
        names = [pool.name for pool in self.pools]
        if len({*names}) < len(names):
            raise ValueError("two rented pools have the same name")
        return self
