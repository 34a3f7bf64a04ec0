"""Training plans: capacity that SageMaker reserves for a HyperPod instance group until a fixed time.

A plan has one or more reserved capacities, one after another, possibly with a gap. AWS takes the nodes back at the end
of each (https://docs.aws.amazon.com/sagemaker/latest/dg/training-plan-utilization-for-training-jobs.html).
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime

from evenkeel.domain.capacity.capacity_policy import CapacityBlock, ReservedPool
from evenkeel.domain.capacity.pools import Reservation
from evenkeel.domain.values import Instant, Value

RESERVATION_ID = re.compile(r"cr-[0-9a-f]{8,17}", re.ASCII)
"""Ids of EC2's capacity reservations."""


class TrainingPlan(Value):
    """A training plan, as SageMaker describes it."""

    name: str
    periods: tuple[Reservation, ...]
    """The periods of its reserved capacities, without those that failed."""

    def period_at(self, now: datetime) -> Reservation | None:
        """Return the period that runs now, else the next, else the last; None if the plan has none."""
        periods = sorted(self.periods, key=lambda period: (period.ends_at, period.starts_at))
        return next((period for period in periods if period.ends_at > now), periods[-1] if periods else None)


class PlanEnd(Value):
    """When the nodes of an instance group or NodePool end, by its training plan or Capacity Block."""

    cluster: str
    """Kubernetes cluster."""
    group: str
    """Instance group, or NodePool."""
    plan: str
    """Name of the training plan, or id of the Capacity Block's reservation."""
    reservation: Reservation
    """The period of the plan that runs now, or the next one; the period of the Capacity Block."""
    read_at: Instant
    """When AWS said so."""

    @property
    def is_capacity_block(self) -> bool:
        """Whether this is the end of a Capacity Block."""
        return RESERVATION_ID.fullmatch(self.plan) is not None

    @property
    def reserved_pool(self) -> ReservedPool:
        """The nodes that end, with their reservation: all nodes of the pool, or only those of the Capacity Block."""
        period = self.reservation
        facts = {
            "cluster": self.cluster,
            "pool": self.group,
            "starts_at": period.starts_at,
            "ends_at": period.ends_at,
            "closing_seconds": period.closing_seconds,
        }
        if self.is_capacity_block:
            return CapacityBlock.model_validate({**facts, "reservation_id": self.plan})
        return ReservedPool.model_validate(facts)


class PlanEnds(Value):
    """The ends of all training plans and Capacity Blocks of the fleet, as they were last read."""

    groups: tuple[PlanEnd, ...] = ()

    @property
    def pools(self) -> tuple[ReservedPool, ...]:
        """The instance groups and NodePools with their reservations."""
        return tuple(end.reserved_pool for end in self.groups)


def current_plan_ends(
    cluster: str,
    plan_by_group: Mapping[str, str],
    plans: Mapping[str, TrainingPlan],
    earlier: PlanEnds,
    now: datetime,
) -> PlanEnds:
    """Return when the nodes of each instance group with a training plan end.

    Args:
        cluster: HyperPod's own Kubernetes cluster.
        plan_by_group: Instance group → ARN of its training plan.
        plans: ARN → the plan, for plans that could be read now.
        earlier: The ends that were read before. They count for a plan that could not be read now, or states no times.
        now: When the plans were read.
    """
    ends = {(end.cluster, end.group, end.plan): end for end in earlier.groups}
    current = []
    for group, arn in sorted(plan_by_group.items()):
        plan = arn.rpartition("/")[2]
        period = plans[arn].period_at(now) if arn in plans else None
        stored_end = ends.get((cluster, group, plan))
        if period is not None:
            end = PlanEnd(cluster=cluster, group=group, plan=plan, reservation=period, read_at=now)
            current.append(end.keeping_unknown(stored_end) if stored_end else end)
        elif stored_end is not None:
            current.append(stored_end)
    return PlanEnds(groups=tuple(current))


def with_training_plan_ends(reservations: Iterable[ReservedPool], ends: PlanEnds) -> tuple[ReservedPool, ...]:
    """Return the reservations of the policy together with the ends of training plans.

    Where AWS tells the end of a pool, its time replaces the time in the policy. Where it tells the end of a Capacity
    Block, the time in the policy holds for the other nodes of the pool.
    """
    reserved_pools = {pool.key: pool for pool in (*reservations, *ends.pools)}
    return tuple(reserved_pools.values())
