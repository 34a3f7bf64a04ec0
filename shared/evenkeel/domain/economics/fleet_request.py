"""The file of `evenkeel economics forecast`: node groups, their failures and prices, and how the fleet recovers."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.economics.effective_training_time import DowntimeModel
from evenkeel.domain.economics.failure_rates import MAX_NODE_HOURS, FailureRate, failure_rate, stated_rate
from evenkeel.domain.economics.figure_checks import FigureDocument, Name
from evenkeel.domain.plurals import count_of

MIN_NODE_HOURS = 1.0
"""A shorter observation gives no useful rate."""
_MIN_RATE = 1e-12
"""One failure of a million nodes in a century: a lower rate above 0 is an error of a unit."""


def _is_plausible(rate: float) -> float:
    if 0 < rate < _MIN_RATE:
        raise ValueError(f"must be 0 or at least {_MIN_RATE:g}, not {rate:g}")
    return rate


StatedRate = Annotated[float, Field(ge=0, le=1), AfterValidator(_is_plausible)] | None


class ForecastGroup(FigureDocument):
    """Nodes of one type that run jobs of one size."""

    name: Name
    market: Literal[Market.COMMITTED, Market.ON_DEMAND] = Market.COMMITTED
    instance_type: Name = ""
    nodes: int = Field(ge=1, le=1_000_000)
    """Nodes that run jobs, without spares."""
    gpus_per_node: int = Field(ge=1, le=1024)
    usd_per_gpu_hour: float | None = Field(default=None, ge=0, le=1_000_000)
    """Null: unknown, and so are all dollars."""
    job_nodes: int | None = Field(default=None, ge=1)
    """Nodes of a job; null for one job on all nodes."""
    failures: int | None = Field(default=None, ge=0, le=10_000_000)
    """Failures that stopped a job, in the window."""
    node_hours: float | None = Field(default=None, ge=MIN_NODE_HOURS, le=MAX_NODE_HOURS)
    """Node-hours of the window."""
    failures_per_node_hour: StatedRate = None
    """A rate from elsewhere, instead of a count."""
    low_failures_per_node_hour: StatedRate = None
    high_failures_per_node_hour: StatedRate = None
    spares: int = Field(default=0, ge=0, le=10_000)
    """Idle nodes kept for failures, paid like all other nodes. Only committed groups keep spares."""
    replace_seconds: float | None = Field(default=None, ge=0, le=31_536_000)
    """Time until a replacement is Ready, if this group differs; for example the launch of an on-demand node."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.job_nodes is not None and self.job_nodes > self.nodes:
            raise ValueError(f"has jobNodes {self.job_nodes}, but only {count_of(self.nodes, 'node')}")
        if (self.failures is None) is not (self.node_hours is None):
            raise ValueError("needs failures and nodeHours together")
        if self.failures is not None and self.node_hours is not None and self.failures > self.node_hours:
            raise ValueError(f"has failures {self.failures}, more than its nodeHours {self.node_hours:g}")
        if self.failures is not None and self.failures_per_node_hour is not None:
            raise ValueError("has failures and failuresPerNodeHour; give only one of them")
        if self.spares and not self.market.keeps_spares:
            raise ValueError("has spares, but a group of rented nodes keeps none")
        low, rate, high = self._stated_rate
        if rate is None and not low == high is None:
            raise ValueError("has an end of a rate, but no failuresPerNodeHour")
        if rate is not None and not (low or 0) <= rate <= (1 if high is None else high):
            raise ValueError("needs lowFailuresPerNodeHour <= failuresPerNodeHour <= highFailuresPerNodeHour")
        return self

    @property
    def _stated_rate(self) -> tuple[float | None, float | None, float | None]:
        return self.low_failures_per_node_hour, self.failures_per_node_hour, self.high_failures_per_node_hour

    @property
    def job_size(self) -> int:
        """Nodes of a job."""
        return self.job_nodes or self.nodes

    def rate(self, confidence: float) -> FailureRate | None:
        """Return the failure rate of a node; None if unknown."""
        if self.failures is not None and self.node_hours is not None:
            return failure_rate(self.failures, self.node_hours, confidence)
        low, rate, high = self._stated_rate
        return None if rate is None else stated_rate(rate, low, high)


class RecoveryTimes(FigureDocument):
    """Stages of a recovery, in seconds. Null: as HyperPod unchanged."""

    detect_seconds: float | None = Field(default=None, ge=0, le=31_536_000)
    replace_seconds: float | None = Field(default=None, ge=0, le=31_536_000)
    """Time until a replacement node is Ready, if there is no spare."""
    resume_seconds: float | None = Field(default=None, ge=0, le=31_536_000)
    """Time from a Ready node until the job trains."""
    lead_seconds: float | None = Field(default=None, ge=0, le=31_536_000)
    """Time from the order of a node until it is a spare. Null: the same as a replacement."""


class CheckpointTimes(FigureDocument):
    """How the jobs save checkpoints."""

    interval_seconds: float = Field(ge=0.001, le=31_536_000)
    """Training time between two saves."""
    write_seconds: float = Field(ge=0.001, le=31_536_000)
    """Time that a save blocks training."""


class FleetRequest(FigureDocument):
    """The fleet to forecast."""

    name: Name = "fleet"
    hours_per_month: float = Field(default=730.0, gt=0, le=744)
    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Confidence of the intervals of counted rates."""
    downtime_model: DowntimeModel = DowntimeModel.RENEWAL
    groups: tuple[ForecastGroup, ...] = Field(min_length=1)
    checkpoint: CheckpointTimes | None = None
    """Null: unknown, so repeated steps and saves are not counted."""
    configured: RecoveryTimes = RecoveryTimes()
    """Evenkeel as it is configured now."""
    possible: RecoveryTimes = RecoveryTimes()
    """Evenkeel as it could be. Null: as configured; detection in 10 seconds."""

    @field_validator("groups")
    @classmethod
    def _has_distinct_names(cls, groups: tuple[ForecastGroup, ...]) -> tuple[ForecastGroup, ...]:
        names = [group.name for group in groups]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"must have different names, but has {', '.join(twice)} twice")
        return groups
