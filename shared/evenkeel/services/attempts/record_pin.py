"""Read rank 0's resume point from its log. No function can read checkpoints on mounted storage."""

import json

from pydantic import ValidationError

from evenkeel.domain.checkpoints import ResumeChoice
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.ports import NotFound, Put, Refused, TransientError
from evenkeel.services.context import Context
from evenkeel.services.storage import attempt_store
from evenkeel.services.storage.retries import commit_if_unchanged
from evenkeel.services.tables import job_rows, subject_rows

WRITER = "record_pin"
_LINE_PREFIX = "evenkeel resume-point "
"""The beginning of rank 0's line (docs/training-contract.md)."""


def run(stored_attempt: attempt_store.StoredAttempt, context: Context) -> bool:
    """Record the resume point that rank 0 logged. Return False if it logged none yet, or if none is expected.

    Idempotent: yes, a recorded point stays. Any training code can write to the log, so only its first line counts.
    """
    job, attempt = stored_attempt.job, stored_attempt.attempt
    job_id, number = job.job_id, attempt.attempt
    if attempt.is_pinned or attempt.launched_at is None or not job.spec.keeps_checkpoints_in_cluster:
        return False
    try:
        text = context.cluster.logs(attempt, 0, None)
    except (NotFound, Refused, TransientError):
        return False  # the pod does not exist, has not started, or is unreachable: no step may wait for a log
    choice = _reported_pin(text, attempt)
    if choice is None:
        return False
    pinned_attempt = attempt.replace(
        is_pinned=True,
        resume_from=choice.resume_from,
        resumed_work_from=choice.began_at,
        resumed_throughput=choice.throughput,
        rejected_checkpoints=tuple(rejection.to_json() for rejection in choice.rejected),
    )
    entry = TimelineEntry(at=context.now, kind="pinned", text=f"Rank 0 says: {choice.reason}"[:1000], writer=WRITER)
    # If the row changed meanwhile, the next evaluation reads it again.
    return commit_if_unchanged(
        context.ledger,
        Put(job_rows.attempt_row(pinned_attempt, stored_attempt.attempt_version)),
        Put(subject_rows.timeline_row(job_id, entry, f"pinned-{number}")),
    )


def _reported_pin(text: str, attempt: Attempt) -> ResumeChoice | None:
    """Parse the first line in which rank 0 logs its pin; None if there is no valid one."""
    for line in text.splitlines():
        if not line.startswith(_LINE_PREFIX):
            continue
        try:
            document = json.loads(line.removeprefix(_LINE_PREFIX))
            choice = ResumeChoice.model_validate(document)
        except (ValueError, ValidationError, RecursionError):
            continue
        point = choice.resume_from
        if document.get("attempt") == attempt.attempt and (point is None or point.attempt < attempt.attempt):
            return choice
    return None
