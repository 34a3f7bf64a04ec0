"""Machines that go at a time that is known: who is still let on, and who has to leave them in time.

    ...... work runs ......|-- restart, first checkpoint --|-- save --|- margin -|........ machines go ........|
                           └ nobody is let on any more     └ asked to leave      └ usable until                └ ends

A training plan and a capacity block end, whatever runs on them. The site says when (`scheduling.reservations`).
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from evenkeel.domain.admission.request import Request
from evenkeel.domain.capacity.node_capacity import Room
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.demand import Terms


def with_ends(rooms: Iterable[Room], policy: Policy) -> tuple[Room, ...]:
    """Return the machines, those that are held until some time only with the time when work must have left them."""
    ends = {(each.cluster, each.pool): each.usable_until for each in policy.scheduling.reservations}
    if not ends:
        return tuple(rooms)
    return tuple(
        room.model_copy(update={"usable_until": ends[room.cluster, room.pool]})
        if (room.cluster, room.pool) in ends
        else room
        for room in rooms
    )


def request_of(job: Job, policy: Policy, now: datetime) -> Request:
    """Return what a job asks for, whether nodes are kept for it, and how long a machine has to stay to be of use to it.

    The last is estimated as `placement` does.
    """
    asked = Request.of(job)
    if job.lost_at is not None and not job.is_preempted:
        replaced_by = job.lost_at + timedelta(seconds=policy.repair.replace_deadline_seconds)
        asked = asked.model_copy(update={"is_interrupted": now < replaced_by})
    if not policy.scheduling.reservations:
        return asked
    run = policy.burst.run_seconds_of(job.spec.priority_class)
    keeps = bool(job.spec.checkpoint_uri)
    works = min(run, policy.economy.expected_checkpoint_seconds) if keeps else 2 * run
    starts = policy.economy.expected_launch_seconds + policy.jobs.expected_resume_seconds
    seconds = starts + works + job.spec.grace_seconds + Terms().grace_seconds
    return asked.model_copy(update={"stays_until": now + timedelta(seconds=seconds)})
