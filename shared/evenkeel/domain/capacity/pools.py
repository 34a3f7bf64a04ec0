"""Where work can run: pools of nodes as data, what a node of them costs, and until when they are there."""

import math
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import NormalDist
from typing import Self

from pydantic import Field, model_validator

from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.values import Instant, Line, Value, Word


class Market(StrEnum):
    """How a pool's nodes are had."""

    COMMITTED = "committed"
    """A HyperPod instance group on a training plan or a fixed count: paid whether used or not."""
    RESERVED = "reserved"
    """A capacity block or a capacity reservation on EKS: paid whether used or not."""
    SPOT = "spot"
    """Rented by the second, and taken back at two minutes' notice."""
    ON_DEMAND = "on-demand"
    """Rented by the second."""

    @property
    def is_rented(self) -> bool:
        """Whether a node costs money only while it is held."""
        return self in (Market.SPOT, Market.ON_DEMAND)


class LaunchDelay(Value):
    """How long a pool takes from the request to a Ready node: lognormal, by two quantiles."""

    p50_seconds: float = Field(ge=0)
    p90_seconds: float = Field(ge=0)

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.p90_seconds < self.p50_seconds:
            raise ValueError("nine of ten launches take no less than five of ten")
        return self

    @property
    def mean_seconds(self) -> float:
        """The expected delay of one node."""
        if not self.p50_seconds:
            return self.p90_seconds
        return self.p50_seconds * math.exp(self._sigma**2 / 2)

    def gang_seconds(self, nodes: int) -> float:
        """Return about how long it takes until the last of so many nodes is Ready: the median of the slowest."""
        if not self.p50_seconds:
            return self.p90_seconds
        deviation = NormalDist().inv_cdf(0.5 ** (1 / max(1, nodes)))
        return self.p50_seconds * math.exp(self._sigma * deviation)

    @property
    def _sigma(self) -> float:
        return math.log(self.p90_seconds / self.p50_seconds) / NormalDist().inv_cdf(0.9)


class Reservation(Value):
    """A stretch of time for which capacity is held."""

    starts_at: Instant
    ends_at: Instant
    closing_seconds: int = 1800
    """So long before the end its machines begin to be taken away: 30 minutes for training plans and capacity blocks, 60
    for UltraServers (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html)."""

    @property
    def usable_until(self) -> datetime:
        """When work must have left."""
        return self.ends_at - timedelta(seconds=self.closing_seconds)


class Pool(Value):
    """One instance group or NodePool of one instance type, in one zone, had in one way."""

    name: Line
    cluster: Word
    market: Market
    instance_type: Word
    zone: Word = ""
    accelerators_per_node: int = Field(ge=0)
    most_nodes: int = Field(ge=0)
    """A committed pool's size; of a rented one the limit, without which none may be opened."""
    micros_per_node_hour: int = Field(default=0, ge=0)
    """What one more node-hour costs: nothing where the price is sunk."""
    invoice_micros_per_node_hour: int = Field(default=0, ge=0)
    """What is paid for a node-hour in any case. Reported, and never a reason."""
    least_billed_seconds: int = 60
    launch: LaunchDelay
    interruptions_per_node_hour: float = Field(default=0.0, ge=0)
    reservation: Reservation | None = None
    place: PoolEnvironment
    """What a job finds there."""

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        if self.market.is_rented and not self.micros_per_node_hour:
            raise ValueError(f"{self.name}: a rented pool has a price")
        if not self.market.is_rented and self.micros_per_node_hour:
            raise ValueError(f"{self.name}: what is paid in any case is `invoiceMicrosPerNodeHour`")
        if self.market is Market.RESERVED and self.reservation is None:
            raise ValueError(f"{self.name}: a reservation has a beginning and an end")
        return self
