"""Pools of nodes: their market, the cost of a node, and when a reservation ends."""

import functools
import math
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import NormalDist
from typing import Self

from pydantic import Field, model_validator

from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.values import Instant, Line, Value, Word


class Market(StrEnum):
    """How the nodes of a pool are acquired."""

    COMMITTED = "committed"
    """A HyperPod instance group with a training plan or a fixed count: paid whether used or not."""
    RESERVED = "reserved"
    """A capacity block or a capacity reservation on EKS: paid whether used or not."""
    SPOT = "spot"
    """Rented by the second, and interrupted at two minutes' notice."""
    ON_DEMAND = "on-demand"
    """Rented by the second."""

    @property
    def is_rented(self) -> bool:
        """Whether a node costs money only while it is rented."""
        return self in (Market.SPOT, Market.ON_DEMAND)

    @property
    def can_be_reclaimed(self) -> bool:
        """Whether AWS may take a node back while it is rented."""
        return self is Market.SPOT

    @property
    def is_rented_firmly(self) -> bool:
        """Whether a node is rented and stays until Evenkeel releases it. Jobs change over to such nodes from spot."""
        return self.is_rented and not self.can_be_reclaimed

    @property
    def is_discounted(self) -> bool:
        """Whether its price varies, and the list price is only the upper limit."""
        return self is Market.SPOT

    @property
    def keeps_spares(self) -> bool:
        """Whether idle nodes are kept for failures. They are paid anyway, so a spare costs nothing more."""
        return not self.is_rented


class LaunchDelay(Value):
    """The time from the request to a Ready node of a pool: a lognormal distribution given by two quantiles."""

    p50_seconds: float = Field(ge=0)
    """Median time from a request until its node is Ready."""
    p90_seconds: float = Field(ge=0)
    """Time within which nine of ten nodes are Ready."""

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.p90_seconds < self.p50_seconds:
            raise ValueError("p90Seconds must not be less than p50Seconds")
        return self

    def gang_seconds(self, nodes: int) -> float:
        """Return the expected time until the last of several nodes is Ready: the median of the slowest."""
        return _gang_seconds(self.p50_seconds, self.p90_seconds, nodes)


@functools.lru_cache(maxsize=1024)
def _gang_seconds(p50_seconds: float, p90_seconds: float, nodes: int) -> float:
    if not p50_seconds:
        return p90_seconds
    sigma = math.log(p90_seconds / p50_seconds) / NormalDist().inv_cdf(0.9)
    deviation = NormalDist().inv_cdf(0.5 ** (1 / max(1, nodes)))
    return p50_seconds * math.exp(sigma * deviation)


class Reservation(Value):
    """The time for which capacity is reserved."""

    starts_at: Instant
    """When the capacity is available."""
    ends_at: Instant
    """When the reservation ends."""
    closing_seconds: int = 1800
    """Time before the end at which AWS starts to terminate the instances.

    30 minutes for training plans and capacity blocks, 60 for UltraServers
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html).
    """

    @property
    def usable_until(self) -> datetime:
        """When jobs must have left the nodes."""
        return self.ends_at - timedelta(seconds=self.closing_seconds)


class Pool(Value):
    """An instance group or NodePool of one instance type, in one zone, and of one market."""

    name: Line
    cluster: Word
    """Kubernetes cluster."""
    market: Market
    """How the nodes are paid: `committed`, `reserved`, `spot`, `on-demand`."""
    instance_type: Word
    """EC2 instance type; with `ml.` on HyperPod."""
    zone: Word = ""
    """Availability zone; empty if unknown."""
    accelerators_per_node: int = Field(ge=0)
    """Accelerators of one node."""
    max_nodes: int = Field(ge=0)
    """Size of a committed pool; limit of a rented pool. A rented pool needs a limit."""
    micros_per_node_hour: int = Field(default=0, ge=0)
    """Cost of one more node-hour; 0 if the capacity is already paid for."""
    min_billed_seconds: int = 60
    """The shortest time that AWS bills."""
    launch: LaunchDelay
    """How long a node takes to launch."""
    interruptions_per_node_hour: float = Field(default=0.0, ge=0)
    """Spot interruptions per node-hour."""
    reservation: Reservation | None = None
    """The time for which the capacity is reserved, if it is."""
    environment: PoolEnvironment = Field(alias="place")
    """Processor, accelerator, network and storage of its nodes."""

    @model_validator(mode="after")
    def _has_consistent_prices(self) -> Self:
        if self.market.is_rented and not self.micros_per_node_hour:
            raise ValueError(f"{self.name}: a rented pool needs microsPerNodeHour")
        if not self.market.is_rented and self.micros_per_node_hour:
            raise ValueError(f"{self.name}: only a rented pool has microsPerNodeHour")
        if self.market is Market.RESERVED and self.reservation is None:
            raise ValueError(f"{self.name}: a reserved pool needs a reservation with a start and an end")
        return self
