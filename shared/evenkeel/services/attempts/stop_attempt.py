"""State StopAttempt of run_job: end an attempt's pods, with time for a last checkpoint."""

from enum import StrEnum

from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.attempt_end import judge_abandoned_attempt
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


class StopAttemptResult(Value):
    """The outcome, and its reason as a sentence."""

    outcome: StopOutcome = StopOutcome.STOPPING
    reason: str


def run(request: attempt_store.AttemptRequest, context: Context) -> StopAttemptResult:
    """Delete an attempt's Kubernetes Job and pods with the grace period of the stop request.

    Without a request, a deadline has passed. The passed deadline is first recorded as the request, so that it explains
    the end. A request is carried out in any mode: a person made it, or a recovery while it was allowed to act.

    Idempotent: yes, missing objects are success.
    """
    stored_attempt = attempt_store.load_attempt(context.ledger, request.job_id, request.attempt)
    if stored_attempt.attempt.state.has_ended:
        return StopAttemptResult(reason=stored_attempt.attempt.reason)
    stop_request = stored_attempt.job.stop_of(request.attempt) or _record_deadline(request, context)
    within = keep_logs.BEFORE_STOP_SECONDS
    keep_logs.run(stored_attempt.job, stored_attempt.attempt, context, within_seconds=within)
    context.cluster.stop(stored_attempt.attempt, stop_request.grace_seconds, stop_request.nodes_without_grace)
    return StopAttemptResult(reason=stop_request.reason)


def _record_deadline(request: attempt_store.AttemptRequest, context: Context) -> StopRequest:
    """Record on the job why its attempt is stopped, before the evidence is deleted."""

    def commit_once() -> StopRequest:
        stored_attempt = attempt_store.load_attempt(context.ledger, request.job_id, request.attempt)
        stop_request = stored_attempt.job.stop_of(request.attempt)
        if stop_request:
            return stop_request
        stop_request = _stop_request(stored_attempt.job, stored_attempt.attempt, context)
        entry = TimelineEntry(at=context.now, kind="stopped", text=f"Stopped: {stop_request.reason}", writer=WRITER)
        context.ledger.commit(
            Put(job_rows.job_row(stored_attempt.job.replace(stop_request=stop_request), stored_attempt.job_version)),
            Put(subject_rows.timeline_row(request.job_id, entry, f"stopped-{request.attempt}")),
        )
        return stop_request

    message = f"{request.job_id} kept changing while attempt {request.attempt} was to be stopped"
    return until_committed(commit_once, message)


def _stop_request(job: Job, attempt: Attempt, context: Context) -> StopRequest:
    attempt_end = judge_abandoned_attempt(context.cluster.workload(attempt), job, attempt, failure="")
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
