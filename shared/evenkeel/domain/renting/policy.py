"""Sections of the policy for burst capacity."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.economics import money
from evenkeel.domain.policy_base import Deadline, Micros, PriorityClass, Seconds, Section, Tries
from evenkeel.domain.values import Image, Word

_TAINT = r"^[!-9;<>-~]+=[!-9;<>-~]*:(NoSchedule|NoExecute)$"


class RentedPool(Pool):
    """A Karpenter NodePool that Evenkeel may rent nodes from. It is Evenkeel's alone: its limit is what is rented."""

    model_config = ConfigDict(extra="forbid")

    name: Word
    taints: tuple[Annotated[str, Field(max_length=400, pattern=_TAINT)], ...] = ()
    """`key=value:Effect` of all its nodes: who does not tolerate them is not sent there."""
    labels: dict[Word, Word] = {}
    """Labels of all its nodes, besides those that Karpenter and Kubernetes set: what a `nodeSelector` may ask for."""

    @model_validator(mode="after")
    def _is_rented_and_bounded(self) -> Self:
        if not self.market.is_rented:
            raise ValueError(f"{self.name}: its market is spot or on-demand")
        if not self.most_nodes or not self.accelerators_per_node:
            raise ValueError(f"{self.name}: a pool without a limit is never opened, nor one without accelerators")
        # The slowest of many launches is told from both: from stranger ones there would come no time at all.
        if self.launch.p90_seconds > min(86_400, 100 * self.launch.p50_seconds or 86_400):
            raise ValueError(f"{self.name}: nine of ten launches take a day at most, and 100 times what five of ten do")
        return self


class BurstPolicy(Section):
    """What may be rented, for whom, and how much. As shipped, nothing is."""

    pools: tuple[RentedPool, ...] = ()
    """In the order in which equals are tried."""
    fleet_cap_micros_per_hour: Micros = 0
    """Millionths of a dollar an hour that all rentals together may cost."""
    team_caps_micros_per_hour: dict[Word, Micros] = {}
    """The same by team."""
    other_team_cap_micros_per_hour: Micros = 0
    """For every team not listed."""
    delay_micros_per_hour: dict[PriorityClass, Micros] = {}
    """What an hour's delay is worth, in millionths of a dollar, by priority class."""
    other_delay_micros_per_hour: Micros = 0
    """For every class not listed; at 0 nothing is rented for the job."""
    expected_run_seconds: dict[PriorityClass, Deadline] = {}
    """How long a job runs, by priority class."""
    other_expected_run_seconds: Deadline = 14_400
    ready_seconds: Deadline = 900
    """How long one pool may take to bring all nodes; then the next is asked."""
    quiet_seconds: Seconds = 300
    """How long nodes without work are kept for a job of theirs that waits again."""
    temporary_seconds: Deadline = 86_400
    """How long nodes that stand in for failed ones may be kept, if those are not back before."""
    most_offers: int = Field(default=4, ge=1, le=100)
    """Pools that are asked for one rental."""
    rentals_per_cycle: Tries = 4
    """New rentals that one pass may begin."""
    spot_checkpoint_share: float = Field(default=0.1, gt=0, le=100)
    """Spot only where a checkpoint comes at least this often, as a share of the mean time between interruptions."""
    capacity_pod_image: Image = "registry.k8s.io/pause:3.10"
    """Of the pods that make Karpenter launch nodes, and hold them until the job's own are there."""
    capacity_pod_namespace: Word = "evenkeel-jobs"
    """Where those pods run for a Deployment: Evenkeel may create none in its own namespace. A job's run beside it."""

    def delay_of(self, priority_class: str) -> int:
        """Return what an hour's delay of a class is worth, in micro-dollars."""
        return self.delay_micros_per_hour.get(priority_class, self.other_delay_micros_per_hour)

    def usd_of_delay(self, priority_class: str) -> float:
        """Return what an hour's delay of a class is worth, in dollars."""
        return self.delay_of(priority_class) / money.MICROS

    def run_seconds_of(self, priority_class: str) -> int:
        """Return how long a job of a class is expected to run."""
        return self.expected_run_seconds.get(priority_class, self.other_expected_run_seconds)

    def team_cap_of(self, team: str) -> int:
        """Return what a team's rentals may cost, in micro-dollars an hour."""
        return self.team_caps_micros_per_hour.get(team, self.other_team_cap_micros_per_hour)

    @model_validator(mode="after")
    def _pools_have_one_name_each(self) -> Self:
        names = [pool.name for pool in self.pools]
        if len({*names}) < len(names):
            raise ValueError("two pools to rent from have the same name")
        return self
