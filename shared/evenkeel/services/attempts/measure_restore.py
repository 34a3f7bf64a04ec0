"""Record when an ended attempt trained again after its own restore, and how long its saves took.

Receipts, the cost report and forecasts use it. `settle_attempt` measures each attempt at its end. `launch_job` measures
the attempt before, if its end could not be measured: a crash came in between, or the sweep settled it.

Calls to the store: one list of the folders, and one GET for each of two manifests. They come last, so no job waits for
them.
"""

from evenkeel.domain.checkpoints.layout import ref_of_folder
from evenkeel.domain.checkpoints.manifest import Manifest, ManifestUnreadableError, parse_manifest
from evenkeel.domain.checkpoints.restore import save_times, trained_at
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.ports import NotFound, PermanentError, Put, TooLarge, TransientError
from evenkeel.services.context import Context
from evenkeel.services.storage.retries import commit_if_unchanged
from evenkeel.services.tables import job_rows, rows

_MANIFESTS_NEEDED = 2
_BEFORE_FIRST_STEP = -1
"""An attempt that began from no checkpoint may save at step 0."""
_MAX_FOLDERS_READ = 4
"""Folders that are read. A folder without a manifest was never finished."""


def run(job: Job, number: int, context: Context) -> None:
    """Measure one attempt and record it, if its checkpoints show the times.

    Repeats are safe: the same checkpoints give the same times. A store or a row that does not answer changes nothing.
    """
    row = context.ledger.get(job_rows.attempt_key(job.job_id, number))
    attempt = rows.decode(row, Attempt) if row else None
    if row is None or attempt is None or attempt.save_seconds is not None or not _can_be_measured(job, attempt):
        return
    resumed_step = attempt.resume_from.step if attempt.resume_from else _BEFORE_FIRST_STEP
    try:
        own_manifests = _first_own_manifests(job.spec.checkpoint_uri, attempt, resumed_step, context)
    except (PermanentError, TransientError) as error:
        context.telemetry.info("RestoreNotMeasured", job_id=job.job_id, attempt=number, reason=str(error))
        return
    measured_attempt = attempt
    if attempt.resume_from and attempt.running_at:
        measured_attempt = measured_attempt.replace(
            trained_at=attempt.trained_at
            or trained_at(own_manifests, resumed_step, attempt.running_at, attempt.ended_at)
        )
    if saves := save_times(own_manifests):
        measured_attempt = measured_attempt.replace(
            save_seconds=saves.save_seconds, save_interval_seconds=saves.interval_seconds
        )
    if measured_attempt == attempt:
        return
    if not commit_if_unchanged(context.ledger, Put(job_rows.attempt_row(measured_attempt, row.version))):
        context.telemetry.info("RestoreNotMeasured", job_id=job.job_id, attempt=number, reason="the attempt changed")


def _can_be_measured(job: Job, attempt: Attempt) -> bool:
    """Whether an attempt ran, and a function can read its checkpoints."""
    has_run = attempt.is_pinned and attempt.running_at is not None
    return has_run and bool(job.spec.checkpoint_uri) and not job.spec.keeps_checkpoints_in_cluster


def _first_own_manifests(uri: str, attempt: Attempt, resumed_step: int, context: Context) -> list[Manifest]:
    refs = (ref for folder in context.checkpoints.folders(uri) if (ref := ref_of_folder(folder)))
    own_refs = [ref for ref in refs if ref.attempt == attempt.attempt and ref.step > resumed_step]
    manifests: list[Manifest] = []
    for ref in sorted(own_refs, key=lambda ref: ref.step)[:_MAX_FOLDERS_READ]:
        try:
            manifests.append(parse_manifest(ref, context.checkpoints.read(uri, ref.manifest_key)))
        except (NotFound, TooLarge, ManifestUnreadableError):
            continue
        if len(manifests) == _MANIFESTS_NEEDED:
            break
    return manifests
