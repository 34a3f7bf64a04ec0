"""Settlement of an ended attempt: the job is retried, queued again, or ends."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.attempt_end import A, AttemptEnd, J
from evenkeel.domain.jobs.job import Job, RepeatedFailure
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Value


class SettleOutcome(StrEnum):
    """The outcome for the job when an attempt is settled."""

    JOB_SUCCEEDED = "JOB_SUCCEEDED"
    JOB_REQUEUED = "JOB_REQUEUED"
    JOB_CANCELLED = "JOB_CANCELLED"
    JOB_FAILED = "JOB_FAILED"
    ALREADY_SETTLED = "ALREADY_SETTLED"
    STILL_RUNS = "STILL_RUNS"
    """Evenkeel failed, but the attempt runs. It is not settled."""


PAUSE_AFTER_FAILURE_SECONDS = 300
"""Pause before the workflow of a running attempt waits for its end again, after a failure of Evenkeel."""


class Settlement(Value):
    """The settled attempt and the next state of its job, committed together."""

    outcome: SettleOutcome
    attempt: Attempt
    job: Job


def settle(job: Job, attempt: Attempt, attempt_end: AttemptEnd, policy: JobPolicy, now: datetime) -> Settlement:
    """Decide the next state of a job after the end of an attempt.

    Only failures of the application use up restarts. An attempt that infrastructure ended is always repeated.
    """
    request = job.stop_of(attempt.attempt)
    ended_attempt = attempt.replace(
        state=attempt_end.state,
        reason=attempt_end.reason,
        exit_codes=attempt_end.exit_codes,
        stop_asked_at=request.requested_at if request else attempt_end.asked_at,
        ended_at=now,
        charge_held=False,
    )
    damaged_points = {attempt.resume_from} if attempt_end.is_checkpoint_damaged and attempt.resume_from else set()
    if damaged_points & {*job.damaged_checkpoints}:
        # An older training library ignores the list of damaged checkpoints. Without this count it would retry for ever.
        reason = (
            f"{attempt_end.reason} Evenkeel knew of the damage, but the attempt resumed from this checkpoint again."
        )
        attempt_end = attempt_end.replace(state=A.FAILED, counts_as_failure=True, reason=reason)
        ended_attempt = ended_attempt.replace(state=attempt_end.state, reason=reason)
    job = job.replace(
        stop_request=None if request else job.stop_request,
        damaged_checkpoints=tuple(dict.fromkeys((*job.damaged_checkpoints, *damaged_points))),
        is_preempted=job.is_preempted or attempt_end.was_preempted,
    )
    if attempt_end.state is A.SUCCEEDED:
        return _settled_job(SettleOutcome.JOB_SUCCEEDED, job, ended_attempt, attempt_end.reason, now)
    if job.state is J.STOPPING:
        return _settled_job(SettleOutcome.JOB_CANCELLED, job, ended_attempt, attempt_end.reason, now)
    if attempt_end.is_final:
        return _settled_job(SettleOutcome.JOB_FAILED, job, ended_attempt, attempt_end.reason, now)
    if not attempt_end.counts_as_failure:
        return _after_infrastructure(job, ended_attempt, attempt_end, policy, now)
    return _after_application_failure(job, ended_attempt, attempt_end, policy, now)


def _after_infrastructure(
    job: Job, ended_attempt: Attempt, attempt_end: AttemptEnd, policy: JobPolicy, now: datetime
) -> Settlement:
    """Repeat an attempt that infrastructure ended. If it never ran, the job pauses, longer each time."""
    never_ran = job.launch_failures + 1 if attempt_end.state is A.NEVER_RAN else 0
    not_before = now + _pause_after_failures(never_ran, policy) if never_ran else None
    if never_ran and job.is_growth_attempt(ended_attempt.attempt):
        job = job.replace(failed_growths=job.failed_growths + 1, growth_failed_at=now)
    requeued_job = job.replace(
        reason=f"{attempt_end.reason} The job waits to run again.",
        not_before=not_before,
        launch_failures=never_ran,
        lost_at=now if attempt_end.state is A.LOST else job.lost_at,
        # A job that was not ready in time moves behind the pending jobs of its priority. No other end moves it.
        queued_at=now if never_ran and job.queue else job.queued_at,
    )
    return _return_to_queue(requeued_job, ended_attempt, attempt_end)


def _after_application_failure(
    job: Job, ended_attempt: Attempt, attempt_end: AttemptEnd, policy: JobPolicy, now: datetime
) -> Settlement:
    """Restart the application, unless its restarts are used up or it fails in the same way each time."""
    repeated_failure = _repeated_failure(job, ended_attempt, attempt_end, policy, now)
    job = job.replace(last_failure=repeated_failure)
    if repeated_failure is not None and policy.same_failures and repeated_failure.times >= policy.same_failures:
        count_text = f"It failed {count_of(repeated_failure.times, 'time')} in the same way from the same checkpoint"
        message = f" {count_text}, so Evenkeel does not retry."
        return _settled_job(SettleOutcome.JOB_FAILED, job, ended_attempt, attempt_end.reason + message, now)
    failures = job.application_failures + 1
    max_restarts = policy.application_restarts if job.spec.max_restarts is None else job.spec.max_restarts
    job = job.replace(application_failures=failures)
    if failures > max_restarts:
        limit_text = (
            f" The job has used its {count_of(max_restarts, 'restart')}."
            if max_restarts
            else " The job allows no restarts."
        )
        return _settled_job(SettleOutcome.JOB_FAILED, job, ended_attempt, attempt_end.reason + limit_text, now)
    reason = f"{attempt_end.reason} Restart {failures} of {max_restarts} follows."
    return _return_to_queue(
        job.replace(reason=reason, not_before=now + _pause_after_failures(failures, policy)), ended_attempt, attempt_end
    )


def _return_to_queue(job: Job, ended_attempt: Attempt, attempt_end: AttemptEnd) -> Settlement:
    """Return the job to the queue, or suspend it if a person suspended it."""
    if job.is_suspended:
        suspended_job = job.replace(state=J.SUSPENDED, reason=attempt_end.reason, not_before=None, resize=None)
    else:
        suspended_job = job.replace(state=J.PENDING)
    return Settlement(outcome=SettleOutcome.JOB_REQUEUED, attempt=ended_attempt, job=suspended_job)


def _repeated_failure(
    job: Job, attempt: Attempt, attempt_end: AttemptEnd, policy: JobPolicy, now: datetime
) -> RepeatedFailure | None:
    """Count equal failures: same exit code, soon after the start, and from the same checkpoint.

    None if a failure cannot be compared: much can happen in a long run, and a killed process gives no reason.
    """
    ran = (now - (attempt.running_at or attempt.admitted_at)).total_seconds()
    if attempt_end.exit_code is None or ran > policy.same_failure_seconds:
        return None
    point, last_failure = attempt.resume_from, job.last_failure
    is_same = last_failure is not None and (last_failure.exit_code, last_failure.resume_from) == (
        attempt_end.exit_code,
        point,
    )
    return RepeatedFailure(
        exit_code=attempt_end.exit_code,
        resume_from=point,
        times=last_failure.times + 1 if last_failure and is_same else 1,
    )


def _pause_after_failures(failures: int, policy: JobPolicy) -> timedelta:
    """Return the pause: it doubles with each failure, up to a limit."""
    pause_seconds = policy.restart_backoff_seconds * (1 << min(failures - 1, 30))
    return timedelta(seconds=min(pause_seconds, policy.restart_backoff_max_seconds))


def settled_outcome(job: Job) -> SettleOutcome:
    """Return the outcome of a settled attempt from the state of its job."""
    match job.state:
        case J.SUCCEEDED:
            return SettleOutcome.JOB_SUCCEEDED
        case J.FAILED:
            return SettleOutcome.JOB_FAILED
        case J.CANCELLED:
            return SettleOutcome.JOB_CANCELLED
        case J.PENDING | J.STARTING | J.RUNNING | J.STOPPING | J.SUSPENDED:
            return SettleOutcome.JOB_REQUEUED
        case _:
            assert_never(job.state)


def _settled_job(outcome: SettleOutcome, job: Job, ended_attempt: Attempt, reason: str, now: datetime) -> Settlement:
    states = {
        SettleOutcome.JOB_SUCCEEDED: J.SUCCEEDED,
        SettleOutcome.JOB_CANCELLED: J.CANCELLED,
        SettleOutcome.JOB_FAILED: J.FAILED,
    }
    # A cancelled job keeps the reason of its cancellation, however its last attempt ended.
    text = job.reason if outcome is SettleOutcome.JOB_CANCELLED else reason
    return Settlement(
        outcome=outcome,
        attempt=ended_attempt,
        job=job.replace(state=states[outcome], reason=text, ended_at=now, not_before=None),
    )
