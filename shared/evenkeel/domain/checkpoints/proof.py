"""Proof: check that the store holds exactly the files that a manifest lists, without reading their data."""

from collections.abc import Mapping
from datetime import datetime

from pydantic import Field

from evenkeel.domain.checkpoints.fence import Grade, Rejection, RejectionCode, reject
from evenkeel.domain.checkpoints.layout import CONVENTION_NAME, CONVENTION_SUFFIX, CheckpointRef
from evenkeel.domain.checkpoints.manifest import (
    Manifest,
    ManifestUnreadableError,
    parse_manifest,
    rank_without_shard,
)
from evenkeel.domain.jobs.job import CheckpointRequirement
from evenkeel.domain.values import Instant, Value


class StoredObject(Value):
    """Size, checksum and time of one object, from the store itself."""

    size_bytes: int = Field(ge=0)
    sha256: str | None = None
    """Checksum of the whole object, in hex; None if the store has none, or only a composite checksum of parts."""
    modified_at: Instant | None = None


class CheckpointContents(Value):
    """The manifest of one checkpoint as bytes, and the objects in its folder."""

    manifest: bytes | None
    """None if there is no manifest."""
    objects: dict[str, StoredObject]
    """The objects, by their key relative to the checkpoint URI."""


class Distrust(Value):
    """Checkpoints that a fault may have corrupted."""

    after: Instant | None
    """Checkpoints whose write began after this time are distrusted; None if time does not matter."""
    through_attempt: int
    """Last attempt that the fault concerns. Later attempts ran on other nodes."""
    requirement: CheckpointRequirement = CheckpointRequirement.CONVENTION
    """Requirement for all other checkpoints of these attempts."""

    def covers(self, attempt: int, began_at: datetime | None) -> bool:
        """Whether a checkpoint is distrusted. A checkpoint whose start is unknown is distrusted."""
        if self.after is None or attempt > self.through_attempt:
            return False
        return began_at is None or began_at > self.after


class Proof(Value):
    """Proof that a checkpoint is valid."""

    grade: Grade
    key: str
    """File that the training script resumes from: the manifest, or DCP's `.metadata`."""
    began_at: Instant | None
    files: int
    size_bytes: int
    throughput: float | None = None
    """Throughput of the attempt that wrote it, as its manifest reports it."""


def prove(manifest: Manifest, listing: Mapping[str, StoredObject]) -> Proof | Rejection:
    """Compare a manifest with the objects in the store, shard by shard.

    Size and checksum of each shard must be equal. If the store has no checksum of a shard, the grade is
    `COMPLETE_BY_CONVENTION`: all bytes are there, but nothing shows that they are correct.
    """
    ref = CheckpointRef(attempt=manifest.attempt, step=manifest.step)
    rank = rank_without_shard(manifest)
    if rank is not None:
        detail = f"The manifest lists no shard of rank {rank} of {manifest.world_size}."
        return reject(ref, RejectionCode.SHARD_MISSING, detail)
    for shard in manifest.shards:
        stored_object = listing.get(shard.key)
        name = shard.key.rpartition("/")[2]
        if stored_object is None:
            return reject(ref, RejectionCode.SHARD_MISSING, f"{name} is not in the store.")
        if stored_object.size_bytes != shard.size_bytes:
            detail = f"{name} has {stored_object.size_bytes} bytes; the manifest says {shard.size_bytes}."
            return reject(ref, RejectionCode.SHARD_SIZE, detail)
        if stored_object.sha256 is not None and stored_object.sha256 != shard.sha256:
            detail = f"{name} has checksum {stored_object.sha256[:12]}…; the manifest says {shard.sha256[:12]}…."
            return reject(ref, RejectionCode.SHARD_CHECKSUM, detail)
    if manifest.is_finite is False:
        detail = "The training script found numbers in it that are not finite."
        return reject(ref, RejectionCode.METRIC_NOT_FINITE, detail)
    metric = manifest.metric_not_finite()
    if metric is not None:
        detail = f"Its {metric} is {manifest.metrics[metric]}, which is not a finite number."
        return reject(ref, RejectionCode.METRIC_NOT_FINITE, detail)
    every_checksum = all(listing[shard.key].sha256 is not None for shard in manifest.shards)
    return Proof(
        grade=Grade.PROVED if every_checksum else Grade.COMPLETE_BY_CONVENTION,
        key=ref.manifest_key,
        began_at=manifest.started_at,
        files=len(manifest.shards),
        size_bytes=manifest.size_bytes,
        throughput=manifest.throughput,
    )


def readable_manifest(ref: CheckpointRef, evidence: CheckpointContents) -> Manifest | None:
    """Return the manifest of a checkpoint; None if it has none or cannot be parsed."""
    if evidence.manifest is None:
        return None
    try:
        return parse_manifest(ref, evidence.manifest)
    except ManifestUnreadableError:
        return None


def verify(ref: CheckpointRef, evidence: CheckpointContents, distrust: tuple[Distrust, ...] = ()) -> Proof | Rejection:
    """Check one checkpoint: by its manifest, or by DCP's convention if it has no manifest."""
    if evidence.manifest is None:
        proof = _prove_by_convention(ref, evidence)
    else:
        try:
            manifest = parse_manifest(ref, evidence.manifest)
        except ManifestUnreadableError as error:
            return reject(ref, RejectionCode.MANIFEST_UNREADABLE, f"The manifest cannot be used: {error}.")
        distrust_rejection = _distrust_reason(ref, manifest.started_at, distrust)
        if distrust_rejection is not None:
            return distrust_rejection
        return prove(manifest, evidence.objects)
    if isinstance(proof, Rejection):
        return proof
    return _distrust_reason(ref, proof.began_at, distrust) or proof


def _prove_by_convention(ref: CheckpointRef, evidence: CheckpointContents) -> Proof | Rejection:
    files = {key: stored_object for key, stored_object in evidence.objects.items() if key.startswith(f"{ref.folder}/")}
    shards = [key for key in files if key.endswith(CONVENTION_SUFFIX)]
    if ref.convention_key not in files:
        return reject(ref, RejectionCode.MANIFEST_MISSING, "The checkpoint was never finished: it has no manifest.")
    if not shards:
        detail = f"It has {CONVENTION_NAME}, but no *{CONVENTION_SUFFIX} file."
        return reject(ref, RejectionCode.SHARD_MISSING, detail)
    empty_keys = sorted(key for key in (ref.convention_key, *shards) if files[key].size_bytes == 0)
    if empty_keys:
        return reject(ref, RejectionCode.SHARD_SIZE, f"{empty_keys[0].rpartition('/')[2]} is empty.")
    # The write began before its first file was in the store. `began_at` may be too late but not too early. So if unsure
    # the checkpoint is distrusted.
    times = [files[key].modified_at for key in shards]
    known_times = [time for time in times if time is not None]
    return Proof(
        grade=Grade.COMPLETE_BY_CONVENTION,
        key=ref.convention_key,
        began_at=min(known_times) if len(known_times) == len(times) else None,
        files=len(shards),
        size_bytes=sum(files[key].size_bytes for key in shards),
    )


def _distrust_reason(ref: CheckpointRef, began_at: datetime | None, distrust: tuple[Distrust, ...]) -> Rejection | None:
    for rule in distrust:
        if rule.after and rule.covers(ref.attempt, began_at):
            began = "at an unknown time" if began_at is None else f"at {began_at:%H:%M:%S} UTC"
            detail = f"Its save began {began}; checkpoints after {rule.after:%H:%M:%S} UTC are distrusted."
            return reject(ref, RejectionCode.DISTRUSTED, detail)
    return None
