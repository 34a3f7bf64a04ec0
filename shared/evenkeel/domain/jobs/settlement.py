"""What follows from the end of an attempt: retry, requeue or a final state."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.attempt_end import A, AttemptEnd, J
from evenkeel.domain.jobs.job import Job, RepeatedFailure
from evenkeel.domain.jobs.policy import JobPolicy
from evenkeel.domain.values import Value


class SettleOutcome(StrEnum):
    """What became of the job when an attempt was settled."""

    JOB_SUCCEEDED = "JOB_SUCCEEDED"
    JOB_REQUEUED = "JOB_REQUEUED"
    JOB_CANCELLED = "JOB_CANCELLED"
    JOB_FAILED = "JOB_FAILED"
    ALREADY_SETTLED = "ALREADY_SETTLED"


class Settlement(Value):
    """An attempt's end and the job's next state: committed together."""

    outcome: SettleOutcome
    attempt: Attempt
    job: Job


def settle(job: Job, attempt: Attempt, ending: AttemptEnd, policy: JobPolicy, now: datetime) -> Settlement:
    """Decide what an attempt's end means for its job.

    Only the application's own failures use up restarts; what infrastructure took is given back without limit.
    """
    asked = job.stop_of(attempt.attempt)
    ended = attempt.but(
        state=ending.state,
        reason=ending.reason,
        exit_codes=ending.exit_codes,
        stop_asked_at=asked.requested_at if asked else ending.asked_at,
        ended_at=now,
        charge_held=False,
    )
    damaged = {attempt.resume_from} if ending.is_checkpoint_damaged and attempt.resume_from else set()
    if damaged & {*job.damaged_checkpoints}:
        # Rank 0 chose it, and an old library does not hear what is damaged: without a count that goes on for ever.
        reason = f"{ending.reason} Evenkeel knew of the damage, but the attempt resumed from it again."
        ending = ending.but(state=A.FAILED, counts_as_failure=True, reason=reason)
        ended = ended.but(state=ending.state, reason=reason)
    job = job.but(
        stop_request=None if asked else job.stop_request,
        damaged_checkpoints=tuple(dict.fromkeys((*job.damaged_checkpoints, *damaged))),
        is_preempted=job.is_preempted or ending.was_preempted,
    )
    if ending.state is A.SUCCEEDED:
        return _settled_job(SettleOutcome.JOB_SUCCEEDED, job, ended, ending.reason, now)
    if job.state is J.STOPPING:
        return _settled_job(SettleOutcome.JOB_CANCELLED, job, ended, ending.reason, now)
    if ending.is_final:
        return _settled_job(SettleOutcome.JOB_FAILED, job, ended, ending.reason, now)
    if not ending.counts_as_failure:
        never_ran = job.launch_failures + 1 if ending.state is A.NEVER_RAN else 0
        not_before = now + _backoff(never_ran, policy) if never_ran else None
        if never_ran and job.is_growth_attempt(attempt.attempt):
            job = job.but(failed_growths=job.failed_growths + 1, growth_failed_at=now)
        again = job.but(
            reason=f"{ending.reason} The job waits to run again.",
            not_before=not_before,
            launch_failures=never_ran,
            lost_at=now if ending.state is A.LOST else job.lost_at,
            # Who was not ready in time goes behind those of its priority that wait; nobody else loses its place.
            queued_at=now if never_ran and job.queue else job.queued_at,
        )
        return _requeued(again, ended, ending)
    alike = _repeated_failure(job, ended, ending, policy, now)
    job = job.but(last_failure=alike)
    if alike is not None and policy.same_failures and alike.times >= policy.same_failures:
        message = (
            f" It failed {alike.times} times in the same way from the same checkpoint, so Evenkeel does not retry."
        )
        return _settled_job(SettleOutcome.JOB_FAILED, job, ended, ending.reason + message, now)
    failures = job.application_failures + 1
    allowed = policy.application_restarts if job.spec.max_restarts is None else job.spec.max_restarts
    job = job.but(application_failures=failures)
    if failures > allowed:
        used = f" The job has used all of its {allowed} restarts." if allowed else " The job allows no restarts."
        return _settled_job(SettleOutcome.JOB_FAILED, job, ended, ending.reason + used, now)
    reason = f"{ending.reason} Restart {failures} of {allowed} follows."
    return _requeued(job.but(reason=reason, not_before=now + _backoff(failures, policy)), ended, ending)


def _requeued(job: Job, ended: Attempt, ending: AttemptEnd) -> Settlement:
    """It waits for capacity, or for somebody to resume it where somebody holds it back."""
    if job.is_suspended:
        again = job.but(state=J.SUSPENDED, reason=ending.reason, not_before=None, resize=None)
    else:
        again = job.but(state=J.PENDING)
    return Settlement(outcome=SettleOutcome.JOB_REQUEUED, attempt=ended, job=again)


def _repeated_failure(
    job: Job, attempt: Attempt, ending: AttemptEnd, policy: JobPolicy, now: datetime
) -> RepeatedFailure | None:
    """Count failures that are alike: the same exit code, soon, and from the same point, so nothing was gained between.

    None where a failure is like no other: after a long run much may have happened, and a killed process says nothing.
    """
    ran = (now - (attempt.running_at or attempt.admitted_at)).total_seconds()
    if ending.exit_code is None or ran > policy.same_failure_seconds:
        return None
    point, before = attempt.resume_from, job.last_failure
    is_same = before is not None and (before.exit_code, before.resume_from) == (ending.exit_code, point)
    return RepeatedFailure(
        exit_code=ending.exit_code, resume_from=point, times=before.times + 1 if before and is_same else 1
    )


def _backoff(failures: int, policy: JobPolicy) -> timedelta:
    """Doubles with each failure, up to a limit."""
    doubled = policy.restart_backoff_seconds * (1 << min(failures - 1, 30))
    return timedelta(seconds=min(doubled, policy.restart_backoff_max_seconds))


def settled_outcome(job: Job) -> SettleOutcome:
    """Return the outcome that a job's state tells of its settled last attempt."""
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


def _settled_job(outcome: SettleOutcome, job: Job, ended: Attempt, reason: str, now: datetime) -> Settlement:
    states = {
        SettleOutcome.JOB_SUCCEEDED: J.SUCCEEDED,
        SettleOutcome.JOB_CANCELLED: J.CANCELLED,
        SettleOutcome.JOB_FAILED: J.FAILED,
    }
    # A cancelled job says who cancelled it and why, however its last attempt ended.
    text = job.reason if outcome is SettleOutcome.JOB_CANCELLED else reason
    return Settlement(
        outcome=outcome, attempt=ended, job=job.but(state=states[outcome], reason=text, ended_at=now, not_before=None)
    )
