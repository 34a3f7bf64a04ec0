"""Choose the resume point of an attempt, and pin it once: the newest checkpoint that is not fenced and is valid.

Evenkeel applies the same rule to checkpoints in S3 (`evenkeel.domain.checkpoints`). This module runs in the cluster,
for folders that Evenkeel cannot read. On a folder it reads every byte of the files that a manifest lists.

    attempt 1 writes 10, 20, 30 ...          (its node is lost, but the process still runs)
    attempt 2 proves step 20                 and writes fence {attempt 2, resumeFrom (1, 20)}
    attempt 1 writes 40                      too late: the step is above the pin of attempt 2, so it never counts
    attempt 1 saves again                    reads fence 2 > 1 and ends
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from evenkeel.training.layout import (
    CONVENTION_NAME,
    CONVENTION_SUFFIX,
    Checkpoint,
    Fence,
    JsonObject,
    Manifest,
    Pin,
    ResumePoint,
    UnreadableError,
    parse_manifest,
    rank_and_world,
    write_instant,
)
from evenkeel.training.storage import Storage, StoredObject

PROVED = "PROVED"
COMPLETE_BY_CONVENTION = "COMPLETE_BY_CONVENTION"
NONE = "NONE"
MAX_REJECTIONS_KEPT = 20
_MIN_THROUGHPUT, _MAX_THROUGHPUT = 1e-6, 10**15
CONVENTION, PROOF, EVIDENCE = REQUIREMENTS = ("CONVENTION", "PROOF", "EVIDENCE")
"""Requirements for a checkpoint, weakest first. EVIDENCE also requires that its numbers are known to be healthy."""
_SHOWN_BY_MANIFEST = ("DISTRUSTED", "MANIFEST_UNREADABLE")
"""Rejections that need only the manifest."""
UNPROVEN = frozenset(
    {
        *("MANIFEST_UNREADABLE", "SHARD_MISSING", "SHARD_SIZE", "SHARD_CHECKSUM", "METRIC_NOT_FINITE"),
        *("NO_EVIDENCE", "NO_CLEAN_RUN", "BELOW_GRADE", "DAMAGED"),
    }
)
"""Rejections of finished checkpoints that a person may still restore."""


class Fenced(Exception):
    """A later attempt of this job has taken over. Evenkeel uses nothing that this attempt writes: end the process."""

    def __init__(self, attempt: int, current_attempt: int) -> None:
        super().__init__(f"attempt {attempt} is fenced: attempt {current_attempt} of this job has taken over")
        self.attempt = attempt
        self.current_attempt = current_attempt
        """The attempt that has taken over."""


class Unproven(Exception):
    """Finished checkpoints exist, and none is valid. A start at step 0 would discard them, so a person must decide."""

    def __init__(self, attempt: int, reason: str) -> None:
        super().__init__(f"attempt {attempt} cannot resume from any of its checkpoints. {reason}")
        self.attempt = attempt


@dataclass(frozen=True, slots=True)
class Distrust:
    """Checkpoints that a fault may have corrupted."""

    after: datetime | None
    """Checkpoints whose write began after this time are distrusted; None if time does not matter."""
    through_attempt: int | None = None
    """Last attempt that the fault concerns. Later attempts ran on other nodes. None stands for all attempts."""
    requirement: str = CONVENTION
    """Requirement for all other checkpoints of these attempts."""

    def covers(self, attempt: int, began_at: datetime | None) -> bool:
        """Whether a checkpoint is distrusted. A checkpoint whose start is unknown is."""
        return self.after is not None and self.concerns(attempt) and (began_at is None or began_at > self.after)

    def concerns(self, attempt: int) -> bool:
        """Whether the fault concerns the checkpoints of an attempt."""
        return self.through_attempt is None or attempt <= self.through_attempt


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejected checkpoint, with the reason."""

    checkpoint: Checkpoint
    code: str
    detail: str

    def to_json(self) -> JsonObject:
        return {
            "attempt": self.checkpoint.attempt,
            "step": self.checkpoint.step,
            "manifest": self.checkpoint.manifest_key,
            "code": self.code,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class Proof:
    """A valid checkpoint."""

    checkpoint: Checkpoint
    grade: str
    key: str
    files: int
    size_bytes: int
    began_at: datetime | None
    throughput: float | None = None
    """Throughput of the attempt that wrote it, as its manifest reports it."""


@dataclass(frozen=True, slots=True)
class ResumeChoice:
    """The resume point of an attempt, with the rejected checkpoints."""

    resume_from: ResumePoint | None
    """None if the attempt starts at step 0."""
    grade: str
    reason: str
    rejected: tuple[JsonObject, ...] = field(default=())
    """Newest first."""
    began_at: datetime | None = None
    """Start of the write of the checkpoint to resume from; None if unknown."""
    throughput: float | None = None
    """Throughput that the checkpoint reports. The fence does not keep it."""

    def to_json(self) -> JsonObject:
        return {
            "resumeFrom": self.resume_from and self.resume_from.to_json(),
            "grade": self.grade,
            "reason": self.reason,
            "beganAt": None if self.began_at is None else write_instant(self.began_at),
            "rejected": list(self.rejected),
            "throughput": self.throughput,
        }

    @property
    def would_discard_checkpoints(self) -> bool:
        """Whether a start at step 0 would discard finished checkpoints, because none of them is valid."""
        return self.resume_from is None and any(rejection["code"] in UNPROVEN for rejection in self.rejected)


def choose(
    storage: Storage,
    attempt: int,
    fence: Fence | None,
    distrust: Distrust | None = None,
    *,
    accepts_convention: bool = False,
    job_id: str = "",
    damaged: Collection[Checkpoint] = (),
) -> ResumeChoice:
    """Choose the resume point of `attempt`: the newest valid checkpoint, from the newest step backwards."""
    rejected: list[Rejection] = []
    manifests: dict[Checkpoint, Manifest | None] = {}
    for checkpoint in sorted(storage.checkpoints(), reverse=True):
        verdict = refusal(fence, attempt, checkpoint)
        if verdict is None and checkpoint in damaged:
            detail = "An earlier attempt could not resume from it: its bytes differ from its manifest."
            verdict = Rejection(checkpoint, "DAMAGED", detail)
        if verdict is None:
            content = storage.get(checkpoint.manifest_key)
            manifests[checkpoint] = _manifest_if_readable(checkpoint, content, job_id)
            outcome = _rejected_by_manifest(checkpoint, content, distrust, job_id) or verify(
                checkpoint,
                content,
                # Only a manifest has checksums to compare with.
                storage.examine(checkpoint, checksums=content is not None),
                distrust,
                job_id=job_id,
            )
            if isinstance(outcome, Proof):
                missing = _missing_evidence(
                    _requirement_of(checkpoint, distrust, accepts_convention), outcome, manifests
                )
                if missing is None:
                    return _chosen(outcome, rejected)
                outcome = missing
            verdict = outcome
        rejected.append(verdict)
    return _none_valid(rejected)


def _rejected_by_manifest(
    checkpoint: Checkpoint, content: bytes | None, distrust: Distrust | None, job_id: str
) -> Rejection | None:
    """Return the rejection that the manifest alone shows; None if the files must be read. Listing a folder is slow."""
    if content is None:
        return None
    verdict = verify(checkpoint, content, {}, distrust, job_id=job_id)
    return verdict if isinstance(verdict, Rejection) and verdict.code in _SHOWN_BY_MANIFEST else None


def _requirement_of(checkpoint: Checkpoint, distrust: Distrust | None, accepts_convention: bool) -> str:
    base = CONVENTION if accepts_convention else PROOF
    return (
        max(base, distrust.requirement, key=REQUIREMENTS.index)
        if distrust and distrust.concerns(checkpoint.attempt)
        else base
    )


def _missing_evidence(
    requirement: str, proof: Proof, manifests: Mapping[Checkpoint, Manifest | None]
) -> Rejection | None:
    """Return why a valid checkpoint does not meet the requirement; None if it does."""
    checkpoint = proof.checkpoint
    if requirement != CONVENTION and proof.grade != PROVED:
        detail = "Its files are complete but have no checksums, and proof is required."
        return Rejection(checkpoint, "BELOW_GRADE", detail)
    if requirement != EVIDENCE:
        return None
    own = manifests[checkpoint]
    if own is None or not _claims_healthy(own):
        detail = "The fault may have corrupted this checkpoint: its manifest has neither a finite loss nor isFinite."
        return Rejection(checkpoint, "NO_EVIDENCE", detail)
    # The next checkpoint of the same attempt may itself be distrusted. Its healthy numbers still show that training
    # continued normally.
    later = sorted(other for other in manifests if other.attempt == checkpoint.attempt and other > checkpoint)
    after = next((manifest for other in later if (manifest := manifests[other]) is not None), None)
    if after is None or not _claims_healthy(after):
        why = (
            "its attempt saved no readable checkpoint afterwards"
            if after is None
            else f"the next checkpoint, step {after.checkpoint.step}, does not show healthy numbers"
        )
        return Rejection(checkpoint, "NO_CLEAN_RUN", f"The fault may have corrupted this checkpoint: {why}.")
    return None


def _claims_healthy(manifest: Manifest) -> bool:
    """Whether the manifest shows healthy numbers: the script checked its weights, or the loss is finite."""
    if manifest.is_finite is False or not all(_is_finite(value) for value in manifest.metrics.values()):
        return False
    return manifest.is_finite is True or "loss" in manifest.metrics


def _manifest_if_readable(checkpoint: Checkpoint, content: bytes | None, job_id: str) -> Manifest | None:
    try:
        return None if content is None else own_manifest(checkpoint, content, job_id)
    except UnreadableError:
        return None


def own_manifest(checkpoint: Checkpoint, content: bytes, job_id: str) -> Manifest:
    """Parse the manifest of one checkpoint of a job. An empty `job_id` accepts any job.

    Raises:
        UnreadableError: The bytes are not a manifest of this checkpoint, or belong to another job.
    """
    manifest = parse_manifest(checkpoint, content)
    if job_id and manifest.job_id and manifest.job_id != job_id:
        raise UnreadableError(f"it belongs to job {manifest.job_id}, not to job {job_id}")
    return manifest


def pin(
    storage: Storage,
    attempt: int,
    distrust: Distrust | None = None,
    *,
    accepts_convention: bool = False,
    may_start_over: bool = False,
    job_id: str = "",
    damaged: Collection[Checkpoint] = (),
) -> ResumeChoice:
    """Raise the fence to `attempt` and pin its resume point, in one conditional write.

    Idempotent: yes, by the fence: once it names `attempt`, its pin is the answer.

    Raises:
        Fenced: The fence names a later attempt.
        Unproven: Finished checkpoints exist, none is valid, and `may_start_over` is false.
    """
    while True:
        stored = storage.read_fence()
        fence = stored.fence
        if fence is not None and fence.attempt > attempt:
            raise Fenced(attempt, fence.attempt)
        if fence is not None and fence.attempt == attempt:
            return ResumeChoice(fence.pin.resume_from, fence.grade, fence.reason, fence.rejected, fence.began_at)
        choice = choose(
            storage,
            attempt,
            fence,
            distrust,
            accepts_convention=accepts_convention,
            job_id=job_id,
            damaged=damaged,
        )
        if choice.would_discard_checkpoints and not may_start_over:
            raise Unproven(attempt, choice.reason)
        # If another writer was first, the next read finds a higher fence than before, so the loop ends.
        storage.raise_fence(next_fence(fence, attempt, choice), stored)


REPORT = "evenkeel resume-point "
"""Prefix of the line in which rank 0 reports its resume point on standard output."""


def report(attempt: int, choice: ResumeChoice) -> str:
    """Return the line that reports the pinned resume point. Evenkeel reads it from rank 0's log.

    No function of Evenkeel can read the mounted folder itself.
    """
    document = {**choice.to_json(), "attempt": attempt, "rejected": list(choice.rejected[:MAX_REJECTIONS_KEPT])}
    return f"{REPORT}{json.dumps(document)}"


def next_fence(fence: Fence | None, attempt: int, choice: ResumeChoice) -> Fence:
    """Return the new fence of `attempt`, with its pin."""
    return Fence(
        pin=Pin(attempt, choice.resume_from),
        history=() if fence is None else fence.pins,
        grade=choice.grade,
        reason=choice.reason,
        rejected=choice.rejected[:MAX_REJECTIONS_KEPT],
        began_at=choice.began_at,
    )


def refusal(fence: Fence | None, attempt: int, checkpoint: Checkpoint) -> Rejection | None:
    """Return why `attempt` cannot descend from a checkpoint; None if it can."""
    if checkpoint.attempt >= attempt:
        detail = f"It belongs to attempt {checkpoint.attempt}, which is not before attempt {attempt}."
        return Rejection(checkpoint, "LATER_ATTEMPT", detail)
    for past in () if fence is None else fence.pins:
        if checkpoint.attempt < past.attempt < attempt and not past.admits(checkpoint):
            start = "started at step 0" if past.resume_from is None else f"resumed from step {past.resume_from.step}"
            detail = (
                f"Attempt {past.attempt} {start}, so later checkpoints of attempt {checkpoint.attempt} do not count."
            )
            return Rejection(checkpoint, "FENCED", detail)
    return None


def verify(
    checkpoint: Checkpoint,
    content: bytes | None,
    listing: Mapping[str, StoredObject],
    distrust: Distrust | None = None,
    *,
    job_id: str = "",
) -> Proof | Rejection:
    """Check one checkpoint: by its manifest, or by DCP's convention if it has no manifest."""
    if content is None:
        by_convention = _prove_by_convention(checkpoint, listing)
        if isinstance(by_convention, Rejection):
            return by_convention
        return _distrust_reason(checkpoint, by_convention.began_at, distrust) or by_convention
    try:
        manifest = own_manifest(checkpoint, content, job_id)
    except UnreadableError as error:
        return Rejection(checkpoint, "MANIFEST_UNREADABLE", f"The manifest cannot be used: {error}.")
    return _distrust_reason(checkpoint, manifest.started_at, distrust) or prove(manifest, listing)


def prove(manifest: Manifest, listing: Mapping[str, StoredObject]) -> Proof | Rejection:
    """Compare a manifest with the objects in the store, shard by shard.

    Size and checksum of each shard must be equal. If the store has no checksum of a shard, the grade is
    `COMPLETE_BY_CONVENTION`: all bytes are there, but nothing shows that they are correct.
    """
    checkpoint = manifest.checkpoint
    missing_rank = rank_without_shard(manifest)
    if missing_rank is not None:
        detail = f"The manifest lists no shard of rank {missing_rank} of {manifest.world_size}."
        return Rejection(checkpoint, "SHARD_MISSING", detail)
    for shard in manifest.shards:
        stored = listing.get(shard.key)
        file_name = shard.key.rpartition("/")[2]
        if stored is None:
            return Rejection(checkpoint, "SHARD_MISSING", f"{file_name} is not in the store.")
        if stored.size_bytes != shard.size_bytes:
            detail = f"{file_name} has {stored.size_bytes} bytes; the manifest says {shard.size_bytes}."
            return Rejection(checkpoint, "SHARD_SIZE", detail)
        if stored.sha256 is not None and stored.sha256 != shard.sha256:
            detail = f"{file_name} has checksum {stored.sha256[:12]}…; the manifest says {shard.sha256[:12]}…."
            return Rejection(checkpoint, "SHARD_CHECKSUM", detail)
    if manifest.is_finite is False:
        detail = "The training script found numbers in it that are not finite."
        return Rejection(checkpoint, "METRIC_NOT_FINITE", detail)
    for metric, value in manifest.metrics.items():
        if not _is_finite(value):
            detail = f"Its {metric} is {value}, which is not a finite number."
            return Rejection(checkpoint, "METRIC_NOT_FINITE", detail)
    has_every_checksum = all(listing[shard.key].sha256 is not None for shard in manifest.shards)
    return Proof(
        checkpoint=checkpoint,
        grade=PROVED if has_every_checksum else COMPLETE_BY_CONVENTION,
        key=checkpoint.manifest_key,
        files=len(manifest.shards),
        size_bytes=sum(shard.size_bytes for shard in manifest.shards),
        began_at=manifest.started_at,
        throughput=_throughput(manifest),
    )


def _throughput(manifest: Manifest) -> float | None:
    value = manifest.metrics.get("throughput")
    if isinstance(value, int | float) and _MIN_THROUGHPUT <= value <= _MAX_THROUGHPUT:
        return float(value)
    return None


def _is_finite(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def rank_without_shard(manifest: Manifest) -> int | None:
    """Return the first rank without a shard in the manifest.

    None if every rank has a shard, or if no file name contains a rank.
    """
    parsed_names = [rank_and_world(shard.key.rpartition("/")[2]) for shard in manifest.shards]
    ranks = {parsed[0] for parsed in parsed_names if parsed is not None}
    if not ranks:
        return None
    return next((rank for rank in range(manifest.world_size) if rank not in ranks), None)


def _prove_by_convention(checkpoint: Checkpoint, listing: Mapping[str, StoredObject]) -> Proof | Rejection:
    shards = [key for key in listing if key.endswith(CONVENTION_SUFFIX)]
    if checkpoint.convention_key not in listing:
        detail = "The checkpoint was never finished: it has no manifest."
        return Rejection(checkpoint, "MANIFEST_MISSING", detail)
    if not shards:
        detail = f"It has {CONVENTION_NAME}, but no *{CONVENTION_SUFFIX} file."
        return Rejection(checkpoint, "SHARD_MISSING", detail)
    empty = sorted(key for key in (checkpoint.convention_key, *shards) if listing[key].size_bytes == 0)
    if empty:
        return Rejection(checkpoint, "SHARD_SIZE", f"{empty[0].rpartition('/')[2]} is empty.")
    times = [listing[key].modified_at for key in shards]
    known = [time for time in times if time is not None]
    return Proof(
        checkpoint=checkpoint,
        grade=COMPLETE_BY_CONVENTION,
        key=checkpoint.convention_key,
        files=len(shards),
        size_bytes=sum(listing[key].size_bytes for key in shards),
        began_at=min(known) if len(known) == len(times) else None,
    )


def _distrust_reason(checkpoint: Checkpoint, began_at: datetime | None, distrust: Distrust | None) -> Rejection | None:
    if distrust is None or distrust.after is None or not distrust.covers(checkpoint.attempt, began_at):
        return None
    began = "at an unknown time" if began_at is None else f"at {began_at:%H:%M:%S} UTC"
    detail = f"Its save began {began}; checkpoints after {distrust.after:%H:%M:%S} UTC are distrusted."
    return Rejection(checkpoint, "DISTRUSTED", detail)


def _chosen(proof: Proof, rejected: list[Rejection]) -> ResumeChoice:
    checkpoint = proof.checkpoint
    files = "1 file" if proof.files == 1 else f"{proof.files} files"
    how = "every size and checksum matches" if proof.grade == PROVED else "complete, without checksums"
    text = f"Step {checkpoint.step} of attempt {checkpoint.attempt} is valid: {files}, {proof.size_bytes} bytes, {how}."
    return ResumeChoice(
        resume_from=ResumePoint(checkpoint.attempt, checkpoint.step, proof.key),
        grade=proof.grade,
        reason=f"{text} Rejected: {_summary(rejected)}." if rejected else text,
        rejected=tuple(rejection.to_json() for rejection in rejected),
        began_at=proof.began_at,
        throughput=proof.throughput,
    )


def _none_valid(rejected: list[Rejection]) -> ResumeChoice:
    if not rejected:
        return ResumeChoice(None, NONE, "The job has no checkpoint yet, so training starts at step 0.")
    reason = f"No checkpoint is valid. Rejected: {_summary(rejected)}."
    return ResumeChoice(None, NONE, reason, tuple(rejection.to_json() for rejection in rejected))


def _summary(rejected: list[Rejection]) -> str:
    named = [
        f"step {rejection.checkpoint.step} of attempt {rejection.checkpoint.attempt} ({rejection.code})"
        for rejection in rejected[:3]
    ]
    more = len(rejected) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
