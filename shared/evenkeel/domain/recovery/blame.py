"""Which machine a fault that was seen in a job is laid on."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.scheduling.jobs import Attempt
from evenkeel.domain.values import Value

LOOK_BACK = timedelta(minutes=10)
"""Source: a job's failure is attributed to what its nodes showed from ten minutes before it."""
LOOK_AHEAD = timedelta(minutes=5)
"""… until five minutes after: some faults show in the job first."""


class Blamed(Value):
    """The machine that a job's fault is reported of, and why that one."""

    instance_id: str
    reason: str


def blame(attempt: Attempt, rank: int | None, lately: Mapping[str, Incident], at: datetime) -> Blamed | None:
    """Return the machine of an attempt that a fault seen in its job is laid on; None where there is none.

    A hang and a timeout in a collective are consequences as often as not. So a machine that was sick lately takes the
    fault before the rank that reports it; only where none was, it is the named rank's, else rank 0's, and then the
    fault's own ladder begins with the job.

    Args:
        attempt: The job's current attempt.
        rank: The rank that the detector names.
        lately: The last incident of each of its machines that had one, by life.
        at: When the fault was seen.
    """
    sick = [
        (_signal_at(lately[life.key]), life.instance_id)
        for life in attempt.nodes
        if life.key in lately and at - LOOK_BACK <= _signal_at(lately[life.key]) <= at + LOOK_AHEAD
    ]
    if sick:
        first_at, instance_id = min(sick)
        reason = f"{instance_id} showed a fault of its own at {first_at:%H:%M:%SZ}."
        return Blamed(instance_id=instance_id, reason=reason)
    place = rank if rank is not None else 0
    if place >= len(attempt.nodes):
        return None
    whose = f"rank {place}" if rank is not None else "rank 0, in the name of all"
    return Blamed(instance_id=attempt.nodes[place].instance_id, reason=f"No machine of it was sick: {whose}.")


def _signal_at(incident: Incident) -> datetime:
    return incident.last_signal_at or incident.first_signal_at
