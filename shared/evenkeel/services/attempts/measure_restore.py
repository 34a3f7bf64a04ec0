"""Record when the attempt before a launch trained again after its own restore. Receipts and forecasts use it.

Calls to the store: one list of the folders, and one GET for each of two manifests. They follow the launch, so no job
waits for them.
"""

from evenkeel.domain.checkpoints.layout import ref_of_folder
from evenkeel.domain.checkpoints.manifest import Manifest, ManifestUnreadableError, parse_manifest
from evenkeel.domain.checkpoints.restore import trained_at
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.ports import Conflict, NotFound, PermanentError, Put, TooLarge, TransientError
from evenkeel.services.context import Context
from evenkeel.services.storage import job_rows, rows

_MANIFESTS_NEEDED = 2
_MAX_FOLDERS_READ = 4
"""Folders that are read. A folder without a manifest was never finished."""


def run(job: Job, number: int, context: Context) -> None:
    """Measure one earlier attempt and record it, if its checkpoints tell.

    Repeats are safe: the same checkpoints give the same time. A store or a row that does not answer changes nothing.
    """
    row = context.ledger.get(job_rows.attempt_key(job.job_id, number))
    attempt = rows.decode(row, Attempt) if row else None
    if row is None or attempt is None or attempt.trained_at or not _can_be_measured(job, attempt):
        return
    assert attempt.resume_from is not None
    assert attempt.running_at is not None
    try:
        saved = _first_own_manifests(job.spec.checkpoint_uri, attempt, attempt.resume_from.step, context)
    except (PermanentError, TransientError) as error:
        context.telemetry.info("RestoreNotMeasured", job_id=job.job_id, attempt=number, reason=str(error))
        return
    at = trained_at(saved, attempt.resume_from.step, attempt.running_at)
    if at is None:
        return
    try:
        context.ledger.commit(Put(job_rows.attempt_row(attempt.replace(trained_at=at), row.version)))
    except Conflict:
        context.telemetry.info("RestoreNotMeasured", job_id=job.job_id, attempt=number, reason="the attempt changed")


def _can_be_measured(job: Job, attempt: Attempt) -> bool:
    """Whether an attempt ran from a checkpoint that a function can read."""
    has_resumed = attempt.is_pinned and attempt.resume_from is not None and attempt.running_at is not None
    return has_resumed and bool(job.spec.checkpoint_uri) and not job.spec.keeps_checkpoints_in_cluster


def _first_own_manifests(uri: str, attempt: Attempt, resumed_step: int, context: Context) -> list[Manifest]:
    refs = (ref for folder in context.checkpoints.folders(uri) if (ref := ref_of_folder(folder)))
    own_refs = [ref for ref in refs if ref.attempt == attempt.attempt and ref.step > resumed_step]
    saved: list[Manifest] = []
    for ref in sorted(own_refs, key=lambda ref: ref.step)[:_MAX_FOLDERS_READ]:
        try:
            saved.append(parse_manifest(ref, context.checkpoints.read(uri, ref.manifest_key)))
        except (NotFound, TooLarge, ManifestUnreadableError):
            continue
        if len(saved) == _MANIFESTS_NEEDED:
            break
    return saved
