"""State StopAttempt of run_job: end an attempt's pods, with time for a last checkpoint."""

from enum import StrEnum

from evenkeel.domain.jobs.attempt import Attempt, ObservedWorkload
from evenkeel.domain.jobs.attempt_end import judge_abandoned_attempt
from evenkeel.domain.jobs.attempt_waits import is_overdue
from evenkeel.domain.jobs.job import Job, StopRequest
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import Put
from evenkeel.services.attempts import keep_logs
from evenkeel.services.context import Context
from evenkeel.services.storage import attempt_store
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import job_rows, subject_rows

WRITER = "stop_attempt"


class StopOutcome(StrEnum):
    """The outcome of StopAttempt."""

    STOPPING = "STOPPING"
    STILL_RUNS = "STILL_RUNS"
    """The sweep asked, but no deadline has passed on a new reading. The workflow never gets this outcome."""


class StopAttemptResult(Value):
    """The outcome, and its reason as a sentence."""

    outcome: StopOutcome = StopOutcome.STOPPING
    reason: str


def run(
    request: attempt_store.AttemptRequest, context: Context, *, is_without_workflow: bool = False
) -> StopAttemptResult:
    """Delete an attempt's Kubernetes Job and pods with the grace period of the stop request.

    Without a request, a deadline has passed. The passed deadline is first recorded as the request, so that it explains
    the end. A request is carried out in any mode: a person made it, or a recovery while it was allowed to act.

    Idempotent: yes, missing objects are success.

    Args:
        request: The attempt.
        context: The ports and the policy.
        is_without_workflow: Whether the sweep asks. Another sweep may have recorded meanwhile that the attempt runs.
    """
    stored_attempt = attempt_store.load_attempt(context.ledger, request.job_id, request.attempt)
    if stored_attempt.attempt.state.has_ended:
        return StopAttemptResult(reason=stored_attempt.attempt.reason)
    stop_request = stored_attempt.job.stop_of(request.attempt) or _record_deadline(
        request, context, is_without_workflow=is_without_workflow
    )
    if stop_request is None:
        reason = f"{stored_attempt.attempt.workload_name} has not passed its deadline."
        return StopAttemptResult(outcome=StopOutcome.STILL_RUNS, reason=reason)
    within = keep_logs.BEFORE_STOP_SECONDS
    keep_logs.run(stored_attempt.job, stored_attempt.attempt, context, within_seconds=within)
    context.cluster.stop(stored_attempt.attempt, stop_request.grace_seconds, stop_request.nodes_without_grace)
    return StopAttemptResult(reason=stop_request.reason)


def _record_deadline(
    request: attempt_store.AttemptRequest, context: Context, *, is_without_workflow: bool
) -> StopRequest | None:
    """Record on the job why its attempt is stopped, before the evidence is deleted. None if no deadline has passed."""

    def commit_once() -> StopRequest | None:
        stored_attempt = attempt_store.load_attempt(context.ledger, request.job_id, request.attempt)
        job, attempt = stored_attempt.job, stored_attempt.attempt
        stop_request = job.stop_of(request.attempt)
        if stop_request:
            return stop_request
        workload = context.cluster.workload(attempt)
        if is_without_workflow and not is_overdue(attempt, workload, context.policy.jobs, context.now):
            return None
        stop_request = _stop_request(job, attempt, workload, context)
        entry = TimelineEntry(at=context.now, kind="stopped", text=f"Stopped: {stop_request.reason}", writer=WRITER)
        context.ledger.commit(
            Put(job_rows.job_row(job.replace(stop_request=stop_request), stored_attempt.job_version)),
            Put(subject_rows.timeline_row(request.job_id, entry, f"stopped-{request.attempt}")),
        )
        return stop_request

    message = f"{request.job_id} kept changing while attempt {request.attempt} was to be stopped"
    return until_committed(commit_once, message)


def _stop_request(job: Job, attempt: Attempt, workload: ObservedWorkload, context: Context) -> StopRequest:
    attempt_end = judge_abandoned_attempt(workload, job, attempt, failure="")
    return StopRequest(
        attempt=attempt.attempt,
        reason=attempt_end.reason,
        by=f"run_job/{attempt.workload_name}",
        outcome=attempt_end.state,
        grace_seconds=job.spec.grace_seconds,
        requested_at=context.now,
        counts_as_failure=attempt_end.counts_as_failure,
        is_final=attempt_end.is_final,
    )
