"""Build the admission request of a job from the facts of the fleet: default amounts, reserved nodes, reservation ends.

A reservation is capacity that AWS takes back at a known time. A job starts there only if it can save before that time:

    ...... work runs ......|-- restart, first checkpoint --|-- save --|- margin -|... AWS takes the nodes ......|
                           └ no job starts any more        └ jobs must save      └ usable until                └ end

A training plan and a capacity block end, whatever runs on them. The policy names the time (`scheduling.reservations`).
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.capacity import compatibility
from evenkeel.domain.capacity.compatibility import Requirements
from evenkeel.domain.capacity.instance_types import HYPERPOD_PREFIX
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pod_shares import NodeShares
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.cost import RiskLimits


def with_reservation_ends(capacities: Iterable[NodeCapacity], policy: Policy) -> tuple[NodeCapacity, ...]:
    """Return the node capacities, each node of a reservation with the time by which jobs must have left it."""
    reserved_pools = {(reservation.cluster, reservation.pool) for reservation in policy.scheduling.reservations}

    def with_end(capacity: NodeCapacity) -> NodeCapacity:
        if (capacity.cluster, capacity.pool) not in reserved_pools:
            return capacity
        reservation = policy.scheduling.reservation_of_node(capacity.cluster, capacity.pool, capacity.labels)
        return capacity.replace_unchecked(usable_until=reservation.usable_until) if reservation else capacity

    return tuple(map(with_end, capacities))


def with_default_amounts(request: AdmissionRequest, shares: NodeShares) -> AdmissionRequest:
    """Return the request with the CPU and the memory that its job does not state."""
    return request.with_per_node(shares.request_of(request.per_node, request.cluster, request.instance_types))


def _with_backfill(request: AdmissionRequest, job: Job, policy: Policy, now: datetime) -> AdmissionRequest:
    """Return the request with its order among jobs that later jobs may overtake, as `backfillSeconds` sets it.

    A job that was displaced goes behind other jobs only for that time, too. So no job waits behind younger jobs for
    ever.
    """
    limit = policy.scheduling.backfill_seconds
    if not limit or request.has_prior_grant or request.has_displaced:
        return request
    if now - (job.queued_at or job.submitted_at) >= timedelta(seconds=limit):
        return request.replace_unchecked(is_displaced=False)
    price = policy.burst.delay_of(job.spec.priority_class)
    return request.replace_unchecked(may_be_overtaken=True, delay_micros_per_hour=price)


def build_request(
    job: Job, shares: NodeShares, policy: Policy, now: datetime, *, may_backfill: bool = False
) -> AdmissionRequest:
    """Return the request of a job, with the facts that depend on the fleet and on the time.

    These are the CPU and memory that the job leaves open, and whether nodes are reserved for the job. If reservations
    end, they include how long a node must stay to be of use. The estimate comes from `renting/placement.py`.

    Args:
        job: The job.
        shares: The CPU and memory of the nodes for each accelerator.
        policy: The whole policy.
        now: The time.
        may_backfill: Whether `backfillSeconds` counts: there are no teams.
    """
    request = with_default_amounts(AdmissionRequest.of(job), shares)
    if job.lost_at is not None and not job.is_preempted:
        replaced_by = job.lost_at + timedelta(seconds=policy.repair.replace_deadline_seconds)
        request = request.replace_unchecked(is_interrupted=now < replaced_by)
    if may_backfill:
        request = _with_backfill(request, job, policy, now)
    if near_level := job.near_level(now):
        request = request.replace_unchecked(network_needs=request.network_needs.narrowed_to(near_level))
    if policy.instance_types and job.spec.requires != Requirements():
        needs = compatibility.needs_of(job.spec.requires, "", "", {})
        request = request.replace_unchecked(
            meets_on=tuple(
                name.removeprefix(HYPERPOD_PREFIX)
                for name in sorted(policy.instance_types)
                if not compatibility.differences(needs, compatibility.environment_on(name, policy.hardware))
            )
        )
    if not policy.scheduling.reservations:
        return request
    run_seconds = policy.burst.run_seconds_of(job.spec.priority_class)
    keeps = bool(job.spec.checkpoint_uri)
    works = min(run_seconds, policy.economy.expected_checkpoint_seconds) if keeps else 2 * run_seconds
    starts = policy.economy.expected_launch_seconds + policy.jobs.expected_resume_seconds
    seconds = starts + works + job.spec.grace_seconds + RiskLimits().grace_seconds
    return request.replace_unchecked(needs_node_until=now + timedelta(seconds=seconds))
