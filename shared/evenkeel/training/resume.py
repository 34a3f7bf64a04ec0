"""Where to resume: the newest checkpoint that counts and holds, pinned once for the attempt.

The rule is the one by which Evenkeel itself chooses for checkpoints in S3. It runs here where Evenkeel cannot look: in
the cluster, on a mounted folder, and there it reads every byte of what a manifest promises.

    attempt 1 writes 10, 20, 30 ...          (its node is lost; it runs on)
    attempt 2 proves step 20, then puts fence {attempt 2, resumeFrom (1, 20)}
    attempt 1 writes 40                      late: above what attempt 2 pinned, so it is never a candidate again
    attempt 1 saves once more                sees fence 2 > 1 and ends
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
CONVENTION, PROOF, EVIDENCE = DEMANDS = ("CONVENTION", "PROOF", "EVIDENCE")
"""What a checkpoint must have to be resumed from, weakest first: the last asks for signs that its numbers are sound."""
_SETTLED_BY_MANIFEST = ("DISTRUSTED", "MANIFEST_UNREADABLE")
UNPROVED = frozenset(
    {
        *("MANIFEST_UNREADABLE", "SHARD_MISSING", "SHARD_SIZE", "SHARD_CHECKSUM", "METRIC_NOT_FINITE"),
        *("NO_EVIDENCE", "NO_CLEAN_RUN", "BELOW_GRADE", "DAMAGED"),
    }
)
"""Rejections of work that was finished once and may be worth saving."""


class Fenced(Exception):
    """A later attempt of this job has taken over. Nothing this one writes will be used: end the process."""

    def __init__(self, attempt: int, standing: int) -> None:
        super().__init__(f"attempt {attempt} is fenced: attempt {standing} of this job has taken over")
        self.attempt = attempt
        self.standing = standing


class Unproved(Exception):
    """Finished checkpoints are there and none of them holds. Starting over would disown them: a person must look."""

    def __init__(self, attempt: int, reason: str) -> None:
        super().__init__(f"attempt {attempt} has nothing to resume from that holds. {reason}")
        self.attempt = attempt


@dataclass(frozen=True, slots=True)
class Distrust:
    """A suspicion that a fault casts on checkpoints."""

    after: datetime | None
    """Those whose write began after this are not to be resumed from; None = time casts no doubt."""
    through_attempt: int | None = None
    """Later attempts ran elsewhere and are not touched by the suspicion; None = all attempts are."""
    demand: str = CONVENTION
    """What the others must have."""

    def covers(self, attempt: int, began_at: datetime | None) -> bool:
        """Whether a write is under suspicion. One whose beginning is unknown is."""
        return self.after is not None and self.is_about(attempt) and (began_at is None or began_at > self.after)

    def is_about(self, attempt: int) -> bool:
        """Whether it is about the checkpoints of an attempt at all."""
        return self.through_attempt is None or attempt <= self.through_attempt


@dataclass(frozen=True, slots=True)
class Rejection:
    """One checkpoint that was passed over, and why."""

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
    """A checkpoint that holds."""

    checkpoint: Checkpoint
    grade: str
    key: str
    files: int
    size_bytes: int
    began_at: datetime | None


@dataclass(frozen=True, slots=True)
class ResumeChoice:
    """What an attempt resumes from, and what was passed over on the way there, newest first."""

    resume_from: ResumePoint | None
    grade: str
    reason: str
    rejected: tuple[JsonObject, ...] = field(default=())
    began_at: datetime | None = None
    """When the write of what it resumes from began, where that is known."""

    def to_json(self) -> JsonObject:
        return {
            "resumeFrom": self.resume_from and self.resume_from.to_json(),
            "grade": self.grade,
            "reason": self.reason,
            "beganAt": None if self.began_at is None else write_instant(self.began_at),
            "rejected": list(self.rejected),
        }

    @property
    def would_disown_work(self) -> bool:
        """Whether it begins at the beginning although finished checkpoints are there: none of them could be proved."""
        return self.resume_from is None and any(out["code"] in UNPROVED for out in self.rejected)


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
    """Walk back from the newest step until one checkpoint counts for `attempt`, is trusted and holds."""
    rejected: list[Rejection] = []
    looked_at: dict[Checkpoint, Manifest | None] = {}
    for checkpoint in sorted(storage.checkpoints(), reverse=True):
        verdict = refusal(fence, attempt, checkpoint)
        if verdict is None and checkpoint in damaged:
            detail = "An earlier attempt could not resume from it: its bytes are not those its manifest promises."
            verdict = Rejection(checkpoint, "DAMAGED", detail)
        if verdict is None:
            content = storage.get(checkpoint.manifest_key)
            looked_at[checkpoint] = _readable(checkpoint, content, job_id)
            outcome = _settled(checkpoint, content, distrust, job_id) or verify(
                # Checksums stand in a manifest or nowhere.
                checkpoint,
                content,
                storage.examine(checkpoint, checksums=content is not None),
                distrust,
                job_id=job_id,
            )
            if isinstance(outcome, Proof):
                lacks = _missing_evidence(_demanded(checkpoint, distrust, accepts_convention), outcome, looked_at)
                if lacks is None:
                    return _chosen(outcome, rejected)
                outcome = lacks
            verdict = outcome
        rejected.append(verdict)
    return _nothing(rejected)


def _settled(checkpoint: Checkpoint, content: bytes | None, distrust: Distrust | None, job_id: str) -> Rejection | None:
    """Judge a checkpoint where its manifest alone settles it: in a folder, to look further is to read every byte."""
    if content is None:
        return None
    alone = verify(checkpoint, content, {}, distrust, job_id=job_id)
    return alone if isinstance(alone, Rejection) and alone.code in _SETTLED_BY_MANIFEST else None


def _demanded(checkpoint: Checkpoint, distrust: Distrust | None, accepts_convention: bool) -> str:
    base = CONVENTION if accepts_convention else PROOF
    return max(base, distrust.demand, key=DEMANDS.index) if distrust and distrust.is_about(checkpoint.attempt) else base


def _missing_evidence(demand: str, proof: Proof, looked_at: Mapping[Checkpoint, Manifest | None]) -> Rejection | None:
    """Say what a checkpoint that holds lacks of what is demanded of it; None where it lacks nothing."""
    checkpoint = proof.checkpoint
    if demand != CONVENTION and proof.grade != PROVED:
        detail = "Its files are complete, but no checksum vouches for them, and here proof is asked for."
        return Rejection(checkpoint, "BELOW_GRADE", detail)
    if demand != EVIDENCE:
        return None
    own = looked_at[checkpoint]
    if own is None or not _claims_healthy(own):
        detail = "The fault may have corrupted anything, and its manifest has neither a finite loss nor isFinite."
        return Rejection(checkpoint, "NO_EVIDENCE", detail)
    # The one that the same attempt saved next. It may itself be in doubt: that its numbers are sound still says that
    # training went on soundly from here.
    later = sorted(other for other in looked_at if other.attempt == checkpoint.attempt and other > checkpoint)
    after = next((manifest for other in later if (manifest := looked_at[other]) is not None), None)
    if after is None or not _claims_healthy(after):
        then = (
            "nothing readable was saved after it"
            if after is None
            else f"step {after.checkpoint.step} after it is not sound"
        )
        return Rejection(checkpoint, "NO_CLEAN_RUN", f"The fault may have corrupted anything, and {then}.")
    return None


def _claims_healthy(manifest: Manifest) -> bool:
    if manifest.is_finite is False or not all(_is_finite(value) for value in manifest.metrics.values()):
        return False
    return manifest.is_finite is True or "loss" in manifest.metrics


def _readable(checkpoint: Checkpoint, content: bytes | None, job_id: str) -> Manifest | None:
    try:
        return None if content is None else own_manifest(checkpoint, content, job_id)
    except UnreadableError:
        return None


def own_manifest(checkpoint: Checkpoint, content: bytes, job_id: str) -> Manifest:
    """Read the manifest of one checkpoint of a job; an empty `job_id` is any.

    Raises:
        UnreadableError: It is no manifest of this checkpoint, or another job's.
    """
    manifest = parse_manifest(checkpoint, content)
    if job_id and manifest.job_id and manifest.job_id != job_id:
        raise UnreadableError(f"it is of job {manifest.job_id}, and this is {job_id}")
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
    """Raise the fence to `attempt` and pin what it resumes from, in one conditional write.

    Idempotent: yes, by the fence: once it stands at `attempt`, its pin is the answer.

    Raises:
        Fenced: A later attempt stands.
        Unproved: Finished checkpoints are there, none of them holds, and `may_start_over` is not given.
    """
    while True:
        standing = storage.read_fence()
        fence = standing.fence
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
        if choice.would_disown_work and not may_start_over:
            raise Unproved(attempt, choice.reason)
        # Each turn that is lost to another writer finds the fence higher than before, so the loop ends.
        storage.raise_fence(raised(fence, attempt, choice), standing)


REPORT = "evenkeel resume-point "
"""How the line begins in which rank 0 tells, on its standard output, what it pinned."""


def report(attempt: int, choice: ResumeChoice) -> str:
    """Return the line that Evenkeel reads back from rank 0's log: no function can look where it looked."""
    document = {**choice.to_json(), "attempt": attempt, "rejected": list(choice.rejected[:MAX_REJECTIONS_KEPT])}
    return f"{REPORT}{json.dumps(document)}"


def raised(fence: Fence | None, attempt: int, choice: ResumeChoice) -> Fence:
    """Return the fence of `attempt`, pinned to what it resumes from."""
    return Fence(
        pin=Pin(attempt, choice.resume_from),
        history=() if fence is None else fence.pins,
        grade=choice.grade,
        reason=choice.reason,
        rejected=choice.rejected[:MAX_REJECTIONS_KEPT],
        began_at=choice.began_at,
    )


def refusal(fence: Fence | None, attempt: int, checkpoint: Checkpoint) -> Rejection | None:
    """Say why a checkpoint cannot be in the past of `attempt`; None where it can."""
    if checkpoint.attempt >= attempt:
        detail = f"It belongs to attempt {checkpoint.attempt}, which is not before attempt {attempt}."
        return Rejection(checkpoint, "LATER_ATTEMPT", detail)
    for past in () if fence is None else fence.pins:
        if checkpoint.attempt < past.attempt < attempt and not past.admits(checkpoint):
            at = "the beginning" if past.resume_from is None else f"step {past.resume_from.step}"
            detail = (
                f"Attempt {past.attempt} was pinned to {at}; nothing after that counts from attempt "
                f"{checkpoint.attempt}."
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
    """Judge one checkpoint by its manifest, or by DCP's convention where it has none."""
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
    """Compare a manifest with what the store says, shard by shard in the manifest's order."""
    checkpoint = manifest.checkpoint
    rank = rank_without_shard(manifest)
    if rank is not None:
        detail = f"The manifest names no shard of rank {rank} of {manifest.world_size}."
        return Rejection(checkpoint, "SHARD_MISSING", detail)
    for shard in manifest.shards:
        stored = listing.get(shard.key)
        name = shard.key.rpartition("/")[2]
        if stored is None:
            return Rejection(checkpoint, "SHARD_MISSING", f"{name} is not in the store.")
        if stored.size_bytes != shard.size_bytes:
            detail = f"{name} has {stored.size_bytes} bytes; the manifest says {shard.size_bytes}."
            return Rejection(checkpoint, "SHARD_SIZE", detail)
        if stored.sha256 is not None and stored.sha256 != shard.sha256:
            detail = f"{name} has checksum {stored.sha256[:12]}…; the manifest says {shard.sha256[:12]}…."
            return Rejection(checkpoint, "SHARD_CHECKSUM", detail)
    if manifest.is_finite is False:
        detail = "Its writer looked at its numbers and found some that are not finite."
        return Rejection(checkpoint, "METRIC_NOT_FINITE", detail)
    for metric, value in manifest.metrics.items():
        if not _is_finite(value):
            return Rejection(checkpoint, "METRIC_NOT_FINITE", f"Its {metric} is {value}, which is no finite number.")
    every_checksum = all(listing[shard.key].sha256 is not None for shard in manifest.shards)
    return Proof(
        checkpoint=checkpoint,
        grade=PROVED if every_checksum else COMPLETE_BY_CONVENTION,
        key=checkpoint.manifest_key,
        files=len(manifest.shards),
        size_bytes=sum(shard.size_bytes for shard in manifest.shards),
        began_at=manifest.started_at,
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def rank_without_shard(manifest: Manifest) -> int | None:
    """Return the first rank that a manifest names no shard of; None where every rank has one, or none claims a rank."""
    places = [rank_and_world(shard.key.rpartition("/")[2]) for shard in manifest.shards]
    ranks = {place[0] for place in places if place is not None}
    if not ranks:
        return None  # files named by another convention claim no rank
    return next((rank for rank in range(manifest.world_size) if rank not in ranks), None)


def _prove_by_convention(checkpoint: Checkpoint, listing: Mapping[str, StoredObject]) -> Proof | Rejection:
    shards = [key for key in listing if key.endswith(CONVENTION_SUFFIX)]
    if checkpoint.convention_key not in listing:
        return Rejection(checkpoint, "MANIFEST_MISSING", "It was never finished: there is no manifest.")
    if not shards:
        detail = f"{CONVENTION_NAME} is there, but no *{CONVENTION_SUFFIX}."
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
    began = "at an unknown time" if began_at is None else f"at {began_at:%H:%M:%S}"
    detail = f"Its write began {began}, after the first suspicious signal at {distrust.after:%H:%M:%S} UTC."
    return Rejection(checkpoint, "DISTRUSTED", detail)


def _chosen(proof: Proof, rejected: list[Rejection]) -> ResumeChoice:
    checkpoint = proof.checkpoint
    files = "1 file" if proof.files == 1 else f"{proof.files} files"
    how = "every size and checksum agrees" if proof.grade == PROVED else "complete, without checksums"
    reason = f"Step {checkpoint.step} of attempt {checkpoint.attempt} holds: {files}, {proof.size_bytes} bytes, {how}."
    return ResumeChoice(
        resume_from=ResumePoint(checkpoint.attempt, checkpoint.step, proof.key),
        grade=proof.grade,
        reason=f"{reason} Passed over: {_summary(rejected)}." if rejected else reason,
        rejected=tuple(out.to_json() for out in rejected),
        began_at=proof.began_at,
    )


def _nothing(rejected: list[Rejection]) -> ResumeChoice:
    if not rejected:
        return ResumeChoice(None, NONE, "There is no checkpoint yet: training starts from the beginning.")
    reason = f"No checkpoint holds. Passed over: {_summary(rejected)}."
    return ResumeChoice(None, NONE, reason, tuple(out.to_json() for out in rejected))


def _summary(rejected: list[Rejection]) -> str:
    named = [f"step {out.checkpoint.step} of attempt {out.checkpoint.attempt} ({out.code})" for out in rejected[:3]]
    more = len(rejected) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
