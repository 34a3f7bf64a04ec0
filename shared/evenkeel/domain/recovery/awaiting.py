"""What a recovery waits for: whether the machine is back, whether it is valid, whether the jobs are back."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from evenkeel.domain.health.incidents import HurtJob, Incident
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery.leases import Hold
from evenkeel.domain.recovery.repair import REPLACE
from evenkeel.domain.recovery.seats import Holder, SeatNow
from evenkeel.domain.recovery.validation import Validity
from evenkeel.domain.scheduling.jobs import Attempt, Job, JobState
from evenkeel.domain.values import Value
from evenkeel.domain.waiting import Answer

NODE_BACK, VALID, INVALID, JOBS_BACK, QUEUED, RELEASED = (
    "NODE_BACK",
    "VALID",
    "INVALID",
    "JOBS_BACK",
    "QUEUED",
    "RELEASED",
)

STUCK_ENDS = ("WAITING_FOR_PERSON", "STOOD_DOWN")
"""Ends of the node branch after which no machine will come of it."""


def node_back(seat: SeatNow, *, rung: str, boot_id_before: str) -> Answer | None:
    """Answer when the seat holds a Ready machine: another one, or the same after a new boot. None while it does not.

    After a replacement the same machine is never the answer: it is the one that is to go.
    """
    if seat.successor and seat.successor.is_ready:
        return _back(seat.successor, "A new machine holds the seat and is Ready.")
    patient = seat.patient
    if rung == REPLACE or not patient.is_ready or patient.node is None:
        return None
    if boot_id_before and patient.node.boot_id == boot_id_before:
        return None
    return _back(patient, "The machine has booted again and is Ready.")


def _back(machine: Holder, reason: str) -> Answer:
    assert machine.node
    facts = {"instanceId": machine.instance_id, "nodeName": machine.node.name, "bootId": machine.node.boot_id}
    return Answer(outcome=NODE_BACK, reason=reason, facts=facts)


def node_valid(
    machine: Holder,
    validity: Validity,
    *,
    opened_at: datetime,
    last_signal_at: datetime | None,
    margin: int,
    now: datetime,
) -> Answer | None:
    """Answer when the machine has been valid for the margin, or has faulted again. None while neither.

    Args:
        machine: Who holds the seat.
        validity: Its judgement now.
        opened_at: When the validation began.
        last_signal_at: Latest sick signal of the incident.
        margin: Seconds of being well that are asked for.
        now: The time.
    """
    if last_signal_at is not None and last_signal_at > opened_at:
        return Answer(outcome=INVALID, reason="It faulted again while it was validated.")
    if not validity.is_valid or now - opened_at < timedelta(seconds=margin):
        return None
    name = machine.node.name if machine.node else ""
    return Answer(outcome=VALID, reason=validity.reason, facts={"instanceId": machine.instance_id, "nodeName": name})


class HurtNow(Value):
    """A hurt job as it stands."""

    hurt: HurtJob
    job: Job | None
    hurt_attempt: Attempt | None


def jobs_back(hurt: Iterable[HurtNow], incident: Incident, policy: Policy, *, now: datetime) -> Answer | None:
    """Answer when each hurt job runs again, has ended, or can only wait its turn. None while one is on its way.

    A job only waits its turn when it has been pending for a while and no machine will come of the node branch: until
    then its own capacity is still on its way.
    """
    waiting: list[str] = []
    for each in hurt:
        if each.job is None or _is_back(each.job, each.hurt):
            continue
        if not _only_waits(each, incident, policy, now):
            return None
        waiting.append(each.hurt.job_id)
    if waiting:
        names = ", ".join(waiting)
        return Answer(outcome=QUEUED, reason=f"{names} waits in the queue for capacity.", facts={"jobs": waiting})
    return Answer(outcome=JOBS_BACK, reason="Every hurt job runs again or has ended.")


def _is_back(job: Job, hurt: HurtJob) -> bool:
    return job.state.has_ended or (job.current_attempt > hurt.attempt and job.state is JobState.RUNNING)


def late_from(
    hurt: Iterable[HurtNow], incident: Incident, policy: Policy, *, deadline_at: datetime, now: datetime
) -> datetime:
    """Return from when on hurt jobs that are not back are late: `deadline_at`, or later where one was stopped later.

    A hold lets a job run on where it is. As long as the node branch has yet to stop it, nothing of it is late.
    """
    began = [_stopped_at(each, incident, now) for each in hurt if each.job and not _is_back(each.job, each.hurt)]
    allowed = timedelta(seconds=policy.jobs.resume_deadline_seconds)
    return max([deadline_at, *(at + allowed for at in began if at is not None)])


def _stopped_at(each: HurtNow, incident: Incident, now: datetime) -> datetime | None:
    """Return when a hurt attempt ended or was asked to; `now` while that is still to come, None where nobody will."""
    job, attempt = each.job, each.hurt_attempt
    if attempt is None or attempt.ended_at:
        return attempt.ended_at if attempt else None
    request = job.stop_of(attempt.attempt) if job else None
    if request:
        return request.requested_at
    return None if incident.node_branch else now


def _only_waits(each: HurtNow, incident: Incident, policy: Policy, now: datetime) -> bool:
    job, attempt = each.job, each.hurt_attempt
    if job is None or job.state is not JobState.PENDING or incident.node_branch not in STUCK_ENDS:
        return False
    since = attempt.ended_at if attempt and attempt.ended_at else incident.opened_at
    return now - since >= timedelta(seconds=policy.watch.execution_grace_seconds)


def released(hold: Hold | None) -> Answer | None:
    """Answer when nobody holds automation. None while somebody does."""
    if hold is not None:
        return None
    return Answer(outcome=RELEASED, reason="Nobody holds automation any more.")
