"""State MarkRunning of run_job: record that every pod of the attempt runs."""

from enum import StrEnum

from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.plurals import count_of
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import Put
from evenkeel.services.attempts import measured_throughput
from evenkeel.services.context import Context
from evenkeel.services.storage import attempt_store
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import job_rows, subject_rows

WRITER = "mark_running"


class RunningOutcome(StrEnum):
    """The outcome of MarkRunning."""

    RUNNING = "RUNNING"
    STALE = "STALE"
    """The attempt has ended already, or was never launched."""


class MarkRunningResult(Value):
    """The outcome, and its reason as a sentence."""

    outcome: RunningOutcome


def run(request: attempt_store.AttemptRequest, context: Context) -> MarkRunningResult:
    """Mark an attempt and its job as running.

    Idempotent: yes, by the attempt's state.
    """
    message = f"{request.job_id} kept changing while attempt {request.attempt} was to be marked running"
    return until_committed(lambda: _try_to_mark(request, context), message)


def _try_to_mark(request: attempt_store.AttemptRequest, context: Context) -> MarkRunningResult:
    stored_attempt = attempt_store.load_attempt(context.ledger, request.job_id, request.attempt)
    job, attempt = stored_attempt.job, stored_attempt.attempt
    if attempt.state is AttemptState.RUNNING:
        return MarkRunningResult(outcome=RunningOutcome.RUNNING)
    if attempt.state is not AttemptState.LAUNCHED or job.current_attempt != attempt.attempt:
        return MarkRunningResult(outcome=RunningOutcome.STALE)
    job_with_throughput = measured_throughput.with_reported_throughput(job, attempt, context.ledger)
    # A job that was preempted before its pods started still counts as preempted: it is about to stop.
    is_preempted = job.is_preempted and job.stop_of(attempt.attempt) is not None
    running_job = job_with_throughput.replace(
        launch_failures=0, started_at=job.started_at or context.now, is_preempted=is_preempted
    )
    if job.is_growth_attempt(attempt.attempt):
        running_job = running_job.replace(failed_growths=0, growth_failed_at=None)
    if job.state is JobState.STARTING:
        reason = job.reason if is_preempted else _running_text(attempt)
        running_job = running_job.replace(state=JobState.RUNNING, reason=reason)
    entry = TimelineEntry(at=context.now, kind="running", text=_timeline_text(attempt), writer=WRITER)
    running_attempt = attempt.replace(state=AttemptState.RUNNING, running_at=context.now)
    context.ledger.commit(
        Put(job_rows.attempt_row(running_attempt, stored_attempt.attempt_version)),
        Put(job_rows.job_row(running_job, stored_attempt.job_version)),
        Put(subject_rows.timeline_row(job.job_id, entry, f"running-{attempt.attempt}")),
    )
    context.telemetry.count("AttemptsRunning")
    context.telemetry.seconds("AdmittedToRunning", (context.now - attempt.admitted_at).total_seconds())
    return MarkRunningResult(outcome=RunningOutcome.RUNNING)


def _timeline_text(attempt: Attempt) -> str:
    """Return the timeline entry."""
    text = f"Attempt {attempt.attempt} is running on all {attempt.ranks} nodes."
    if _is_below_requested(attempt):
        nodes = count_of(attempt.ranks, "node")
        text = f"Attempt {attempt.attempt} is running on {nodes} of {attempt.requested_size} requested."
    elif attempt.ranks == 1:
        text = f"Attempt {attempt.attempt} is running."
    if attempt.resume_from:
        text = f"{text[:-1]}, resumed from step {attempt.resume_from.step}."
    return text


def _running_text(attempt: Attempt) -> str:
    nodes = f"{attempt.ranks} of {attempt.requested_size} requested nodes" if _is_below_requested(attempt) else "nodes"
    where = (
        f"on {nodes} that Kueue chose (LocalQueue {attempt.local_queue})"
        if attempt.local_queue
        else f"on {attempt.pool}"
    )
    return f"Attempt {attempt.attempt} runs {where}."


def _is_below_requested(attempt: Attempt) -> bool:
    return attempt.ranks < attempt.requested_size
