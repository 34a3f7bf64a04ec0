"""Machines that go at a time that is known: who is still let on, and who has to leave them in time.

    ...... work runs ......|-- restart, first checkpoint --|-- save --|- margin -|........ machines go ........|
                           └ nobody is let on any more     └ asked to leave      └ usable until                └ ends

A training plan and a capacity block end, whatever runs on them. The site says when (`scheduling.reservations`).
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from evenkeel.domain.admission.request import AdmissionRequest
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.demand import RiskLimits


def with_reservation_ends(capacities: Iterable[NodeCapacity], policy: Policy) -> tuple[NodeCapacity, ...]:
    """Return the machines, those that are held until some time only with the time when work must have left them."""
    ends = {(each.cluster, each.pool): each.usable_until for each in policy.scheduling.reservations}
    if not ends:
        return tuple(capacities)
    return tuple(
        capacity.model_copy(update={"usable_until": ends[capacity.cluster, capacity.pool]})
        if (capacity.cluster, capacity.pool) in ends
        else capacity
        for capacity in capacities
    )


def admission_request(job: Job, policy: Policy, now: datetime) -> AdmissionRequest:
    """Return what a job asks for, whether nodes are kept for it, and how long a machine has to stay to be of use to it.

    The last is estimated as `placement` does.
    """
    asked = AdmissionRequest.of(job)
    if job.lost_at is not None and not job.is_preempted:
        replaced_by = job.lost_at + timedelta(seconds=policy.repair.replace_deadline_seconds)
        asked = asked.model_copy(update={"is_interrupted": now < replaced_by})
    if not policy.scheduling.reservations:
        return asked
    run = policy.burst.run_seconds_of(job.spec.priority_class)
    keeps = bool(job.spec.checkpoint_uri)
    works = min(run, policy.economy.expected_checkpoint_seconds) if keeps else 2 * run
    starts = policy.economy.expected_launch_seconds + policy.jobs.expected_resume_seconds
    seconds = starts + works + job.spec.grace_seconds + RiskLimits().grace_seconds
    return asked.model_copy(update={"needs_node_until": now + timedelta(seconds=seconds)})
