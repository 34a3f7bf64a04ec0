"""Record how many pods of an attempt Kueue admitted, and tell the pods.

Kueue may admit an elastic job with fewer pods than requested (partial admission). It then lowers the Job's
`parallelism`, but a pod cannot read this number. So the pods wait for a ConfigMap with the number.

    Kueue starts the Job ─ read its parallelism ─ record the size, with its charge ─ publish it ─ the pods start
                                    │
                                    └── no size of the job: stop, and ask Kueue for the next smaller size

An attempt has one size. If Kueue evicts it and admits the same Job again, nothing more is published: the attempt is
over, and the next attempt asks again.
"""

from evenkeel.domain.jobs.admitted_size import (
    AdmittedSize,
    AdmittedSizeAction,
    ask_for_size,
    judge_admitted_size,
    stopped_for_a_size,
)
from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.plurals import count_of
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import Add, NotAllowed, Put, Refused
from evenkeel.services.context import Context
from evenkeel.services.storage import attempt_store
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import job_rows, quota_rows, subject_rows

WRITER = "record_size"


def run(job_id: str, number: int, context: Context) -> AdmittedSize:
    """Record and publish the size of a launched attempt, if Kueue has admitted it with one. Return the answer.

    Idempotent: yes. The size is recorded once, by the attempt's row, and the published number never changes. A crash
    between the two leaves pods that wait; the next call publishes the recorded size.
    """
    message = f"{job_id} kept changing while the size of attempt {number} was to be recorded"
    return until_committed(lambda: _try_to_record(job_id, number, context), message)


def _try_to_record(job_id: str, number: int, context: Context) -> AdmittedSize:
    stored_attempt = attempt_store.load_attempt(context.ledger, job_id, number)
    job, attempt = stored_attempt.job, stored_attempt.attempt
    if not attempt.requested_size or attempt.state is not AttemptState.LAUNCHED or job.current_attempt != number:
        return AdmittedSize(action=AdmittedSizeAction.WAIT)
    answer = judge_admitted_size(job, attempt, context.cluster.workload(attempt))
    if answer.action is AdmittedSizeAction.START:
        _commit_size(stored_attempt, answer.size, context)
        try:
            context.cluster.publish_size(attempt.at_size(answer.size))
        except (NotAllowed, Refused) as error:
            answer = ask_for_size(answer.size, None, f"The pods cannot get their world size: {error}."[:1000])
            stored_attempt = attempt_store.load_attempt(context.ledger, job_id, number)
    if answer.action is AdmittedSizeAction.ASK_AGAIN:
        _commit_stop(stored_attempt, answer, context)
    return answer


def _commit_size(stored_attempt: attempt_store.StoredAttempt, size: int, context: Context) -> None:
    """Record the size, and reduce the usage of the team. The charge itself keeps the requested amounts."""
    job, attempt = stored_attempt.job, stored_attempt.attempt
    if attempt.size == size:
        return
    sized_attempt = attempt.at_size(size)
    text = f"Kueue admitted attempt {attempt.attempt} with {size} of {count_of(attempt.requested_size, 'node')}."
    entry = TimelineEntry(at=context.now, kind="resized", text=text, writer=WRITER)
    context.ledger.commit(
        Put(job_rows.attempt_row(sized_attempt, stored_attempt.attempt_version)),
        Put(job_rows.job_row(job.replace(size=size), stored_attempt.job_version)),
        Add(quota_rows.usage_key(attempt.team), {"accelerators": sized_attempt.accelerators - attempt.accelerators}),
        Put(subject_rows.timeline_row(job.job_id, entry, f"sized-{attempt.attempt}")),
    )


def _commit_stop(stored_attempt: attempt_store.StoredAttempt, answer: AdmittedSize, context: Context) -> None:
    job, attempt = stored_attempt.job, stored_attempt.attempt
    entry = TimelineEntry(at=context.now, kind="resized", text=answer.reason, writer=WRITER)
    context.ledger.commit(
        Put(job_rows.job_row(stopped_for_a_size(job, answer, WRITER, context.now), stored_attempt.job_version)),
        Put(subject_rows.timeline_row(job.job_id, entry, f"asks-again-{attempt.attempt}")),
    )
    log = context.telemetry.info if answer.next_size else context.telemetry.warning
    log("AdmittedSizeRefused", job_id=job.job_id, attempt=attempt.attempt, size=answer.size, reason=answer.reason)
