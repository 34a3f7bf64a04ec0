"""Keys, index entries and lifetimes of the jobs table."""

from datetime import datetime
from typing import Any

from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.kept_logs import KeptLog
from evenkeel.domain.renting.rental import Rental, RentalState
from evenkeel.domain.renting.serving_rentals import ServingState
from evenkeel.domain.values import rfc3339
from evenkeel.ports import Key, Row, Table
from evenkeel.services.tables import rows


def job_key(job_id: str) -> Key:
    """Return the key `JOB#id / META`."""
    return Key(Table.JOBS, f"JOB#{job_id}", "META")


def job_row(job: Job, version: int) -> Row:
    """Return the row; `byState` lists it under `JOB#<state>`, in queue order while the job waits."""
    expires = (job.ended_at or job.submitted_at) + rows.KEPT if job.state.has_ended else None
    waits = job.state is JobState.PENDING
    sort_key = queue_order(job) if waits else f"{rfc3339(job.submitted_at)}#{job.job_id}"
    return Row(job_key(job.job_id), job.to_compact_json(), version, (f"JOB#{job.state}", sort_key), expires)


def queue_prefix(queue: str) -> str:
    """Return the common prefix of the sort keys in a team's queue."""
    return f"{queue}#"


def queue_order(job: Job) -> str:
    """Return the sort key of a pending job: `<team>#<inverted priority>#<queued at>#<id>`.

    So one query reads one queue.

    Without teams, first come, first served: `<submitted at>#<id>`. The id makes the order total.
    """
    if not job.queue:
        return f"{rfc3339(job.submitted_at)}#{job.job_id}"
    inverted_priority = 2**31 - 1 - max(-(2**31), min(2**31 - 1, job.priority))
    queued_at = rfc3339(job.queued_at or job.submitted_at)
    return f"{queue_prefix(job.queue)}{inverted_priority:010d}#{queued_at}#{job.job_id}"


def attempt_key(job_id: str, attempt: int) -> Key:
    """Return the key `JOB#id / ATTEMPT#0000n`."""
    return Key(Table.JOBS, f"JOB#{job_id}", f"ATTEMPT#{attempt:05d}")


def attempt_row(attempt: Attempt, version: int) -> Row:
    """Return the row; `byState` lists it under `ATTEMPT#LIVE` by admission, then under `ATTEMPT#ENDED`."""
    entry = ("ATTEMPT#LIVE", f"{rfc3339(attempt.admitted_at)}#{attempt.workload_name}")
    if attempt.state.has_ended and attempt.ended_at:
        entry = ("ATTEMPT#ENDED", f"{rfc3339(attempt.ended_at)}#{attempt.workload_name}")
    return Row(
        attempt_key(attempt.job_id, attempt.attempt),
        attempt.to_compact_json(),
        version,
        entry,
        attempt.admitted_at + rows.KEPT if attempt.state.has_ended else None,
    )


def idempotency_key(principal: str, key: str) -> Key:
    """Return the key `IDEM#principal#key`, written in the job's own transaction."""
    return Key(Table.JOBS, f"IDEM#{principal}#{key}", "META")


def idempotency_row(principal: str, key: str, answer: dict[str, Any], now: datetime, *, version: int = 0) -> Row:
    """Return the row with the first answer, which every repeat within a day gets again."""
    return Row(idempotency_key(principal, key), answer, version, None, now + rows.IDEMPOTENCY_KEPT)


def open_jobs_key(name: str) -> Key:
    """Return the key `JOBS-OPEN#name / META`: the number of open jobs of a principal or a queue."""
    return Key(Table.JOBS, f"JOBS-OPEN#{name}", "META")


def checkpoint_folder(job: Job) -> str:
    """Return the identity of a job's checkpoint folder: its S3 URI, or its path on the claim that holds it.

    The first folder of a file URI is only the mount point: `file:///fsx/llama` and `file:///data/llama` are one folder
    of a claim.
    """
    folder = job.spec.checkpoint_uri.rstrip("/")
    if not job.spec.keeps_checkpoints_in_cluster:
        return folder
    _, _, path = folder.removeprefix("file:///").partition("/")
    return f"{job.cluster}/{job.namespace}/{job.spec.checkpoint_claim}#file:///{path}"


def checkpoints_key(folder: str) -> Key:
    """Return the key `CHECKPOINTS#folder / META`: the job that writes to a folder. Written with the job, never deleted.

    Attempt numbers begin at one in each job. Two jobs with one folder would use the fences and checkpoints of the other
    job.
    """
    return Key(Table.JOBS, f"CHECKPOINTS#{folder}", "META")


def checkpoints_row(job: Job, version: int = 0) -> Row:
    """Record the owner of a checkpoint folder.

    The index `byState` lists it under `CHECKPOINTS` by path, so that the folders inside another folder can be found.
    """
    folder = checkpoint_folder(job)
    return Row(checkpoints_key(folder), {"jobId": job.job_id}, version, checkpoints_entry(folder))


def checkpoints_entry(folder: str) -> tuple[str, str]:
    """Return the index entry of a folder. The entries of folders inside it begin with it."""
    return ("CHECKPOINTS", f"{folder}/")


def kept_log_key(job_id: str, attempt: int, rank: int) -> Key:
    """Return the key `JOB#id / LOG#n#rank`: the end of a rank's log, kept when its pod was deleted."""
    return Key(Table.JOBS, f"JOB#{job_id}", f"LOG#{attempt:06d}#{rank:06d}")


def kept_log_row(log: KeptLog, version: int, expires_at: datetime) -> Row:
    """Return the row. It is in no index, because a log is read by its job, attempt and rank."""
    key = kept_log_key(log.job_id, log.attempt, log.rank)
    return Row(key, log.to_json(), version, None, expires_at)


def rental_key(job_id: str, number: int) -> Key:
    """Return the key `JOB#id / RENTAL#n`: present or past rented nodes of a job."""
    return Key(Table.JOBS, f"JOB#{job_id}", f"RENTAL#{number:06d}")


def rental_row(rental: Rental, version: int) -> Row:
    """Return the row; `byState` lists it under `RENTAL#OPEN` by its beginning, then under `RENTAL#ENDED` by its end."""
    entry, expires_at = ("RENTAL#OPEN", f"{rfc3339(rental.begun_at)}#{rental.name}"), None
    if rental.state is RentalState.ENDED:
        entry = ("RENTAL#ENDED", f"{rfc3339(rental.ended_at or rental.begun_at)}#{rental.name}")
        expires_at = rental.begun_at + rows.KEPT
    return Row(rental_key(rental.job_id, rental.number), rental.to_json(), version, entry, expires_at)


def serving_key(holder_id: str) -> Key:
    """Return the key `JOB#srv-… / SERVING`: a Deployment with rented nodes.

    The partition also holds its rentals, waits and timeline.
    """
    return Key(Table.JOBS, f"JOB#{holder_id}", "SERVING")


def serving_row(memory: ServingState, version: int) -> Row:
    """Return the row; `byState` lists it under `SERVING` by its id."""
    return Row(serving_key(memory.holder_id), memory.to_json(), version, ("SERVING", memory.holder_id))
