"""Layout and format of the files under a job's checkpoint URI.

    <checkpointUri>/
      _fence                                   highest attempt that may write, and its resume point
      attempt=2/step=000000120/
        shard-0-of-2.bin  shard-1-of-2.bin     one file per rank, or several parts per rank
        manifest.json                          written last; without it there is no checkpoint
      result/attempt=2.json

`evenkeel.domain.checkpoints` has its own code for this layout, because this package may import only the standard
library. Shared test cases check that both read every checkpoint alike.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

SCHEMA_VERSION = 1
FENCE_KEY = "_fence"
MANIFEST_NAME = "manifest.json"
CONVENTION_NAME = ".metadata"
"""PyTorch Distributed Checkpoint writes this file last."""
CONVENTION_SUFFIX = ".distcp"

_FOLDER = re.compile(r"attempt=([1-9][0-9]*)/step=([0-9]{9,})")
_FILE_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SHARD = re.compile(r"shard-([0-9]+)-of-([0-9]+)\.[A-Za-z0-9._-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")

JsonObject = dict[str, Any]


class UnreadableError(ValueError):
    """The bytes are not a valid manifest or fence. The message names the problem."""


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A checkpoint of a job. Checkpoints sort by step, then by attempt, which is the order of examination."""

    step: int
    attempt: int

    @property
    def folder(self) -> str:
        return f"attempt={self.attempt}/step={self.step:09d}"

    @property
    def manifest_key(self) -> str:
        return f"{self.folder}/{MANIFEST_NAME}"

    @property
    def convention_key(self) -> str:
        return f"{self.folder}/{CONVENTION_NAME}"

    def shard_key(self, rank: int, world_size: int, extension: str = "bin") -> str:
        return f"{self.folder}/shard-{rank}-of-{world_size}.{extension}"

    def receipt_key(self, rank: int, world_size: int) -> str:
        return self.shard_key(rank, world_size, "receipt")


def checkpoint_of_folder(folder: str) -> Checkpoint | None:
    """Parse `attempt=<n>/step=<9 digits>`, with or without a trailing slash; None for any other name."""
    folder = folder.removesuffix("/")
    match = _FOLDER.fullmatch(folder)
    if match is None:
        return None
    checkpoint = Checkpoint(step=int(match[2]), attempt=int(match[1]))
    return checkpoint if checkpoint.folder == folder else None


def checkpoint_of_key(key: str) -> Checkpoint | None:
    """Return the checkpoint whose folder holds a key; None if no checkpoint does."""
    return checkpoint_of_folder(key.rpartition("/")[0])


def is_file_name(name: str) -> bool:
    """Whether a shard file may have this name: no folder, plain characters, and not the name of the manifest."""
    return _FILE_NAME.fullmatch(name) is not None and name not in (".", "..", MANIFEST_NAME)


def rank_and_world(name: str) -> tuple[int, int] | None:
    """Parse rank and world size from `shard-<i>-of-<w>.<ext>`; None for any other name."""
    match = _SHARD.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def write_instant(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read_instant(text: object) -> datetime:
    """Parse an RFC 3339 time.

    Raises:
        UnreadableError: The text is not a time, or has no time zone.
    """
    if not isinstance(text, str):
        raise UnreadableError(f"{text!r} is not an RFC 3339 time")
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise UnreadableError(f"{text!r} is not an RFC 3339 time") from error
    if instant.tzinfo is None:
        raise UnreadableError(f"timestamp timestamp {text!r} has no time zone")
    return instant.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of a checkpoint, with the size and checksum that its rank wrote."""

    key: str
    size_bytes: int
    sha256: str

    def to_json(self) -> JsonObject:
        return {"key": self.key, "sizeBytes": self.size_bytes, "sha256": self.sha256}

    @classmethod
    def from_json(cls, document: object) -> "Shard":
        entry = _object(document)
        sha256 = _text(entry, "sha256")
        if _SHA256.fullmatch(sha256) is None:
            raise UnreadableError(f"{sha256!r} is not a SHA-256 in hex")
        return cls(key=_text(entry, "key"), size_bytes=_whole(entry, "sizeBytes", 0), sha256=sha256)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of a checkpoint's files, with their sizes and checksums."""

    job_id: str
    checkpoint: Checkpoint
    started_at: datetime
    created_at: datetime
    world_size: int
    shards: tuple[Shard, ...]
    metrics: Mapping[str, float | str] = field(default_factory=dict)
    is_finite: bool | None = None
    """Whether the training script found all weights finite; None if it did not check."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        document = {
            "schemaVersion": SCHEMA_VERSION,
            "jobId": self.job_id,
            "attempt": self.checkpoint.attempt,
            "step": self.checkpoint.step,
            "startedAt": write_instant(self.started_at),
            "createdAt": write_instant(self.created_at),
            "worldSize": self.world_size,
            "shards": [shard.to_json() for shard in self.shards],
            "metrics": dict(self.metrics),
            **({} if self.is_finite is None else {"isFinite": self.is_finite}),
            "extra": dict(self.extra),
        }
        return json.dumps(document, indent=1, allow_nan=False).encode()

    def shards_of(self, rank: int) -> tuple[Shard, ...]:
        """Return the files that one rank wrote, in order."""
        named = [(rank_and_world(shard.key.rpartition("/")[2]), shard) for shard in self.shards]
        return tuple(
            sorted(
                (shard for rank_and_size, shard in named if rank_and_size and rank_and_size[0] == rank),
                key=lambda shard: shard.key,
            )
        )


def parse_manifest(checkpoint: Checkpoint, content: bytes) -> Manifest:
    """Parse the manifest of one checkpoint.

    Raises:
        UnreadableError: The bytes are not JSON, have another schema, or describe another checkpoint.
    """
    document = _document(content)
    described = Checkpoint(step=_whole(document, "step", 0), attempt=_whole(document, "attempt", 1))
    if described != checkpoint:
        raise UnreadableError(f"it describes attempt {described.attempt} step {described.step}")
    shards = document.get("shards")
    if not isinstance(shards, list) or not shards:
        raise UnreadableError("it lists no shards")
    manifest = Manifest(
        job_id=_text(document, "jobId"),
        checkpoint=checkpoint,
        started_at=read_instant(document.get("startedAt")),
        created_at=read_instant(document.get("createdAt")),
        world_size=_whole(document, "worldSize", 1),
        shards=tuple(Shard.from_json(entry) for entry in shards),
        metrics=_object(document.get("metrics", {})),
        is_finite=_optional_boolean(document, "isFinite"),
        extra=_object(document.get("extra", {})),
    )
    for name, value in manifest.metrics.items():
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise UnreadableError(f"metric {name!r} is neither a number nor a text")
    _require_consistent(manifest)
    return manifest


def job_of_manifest(content: bytes) -> str:
    """Return the job id in a manifest; empty if the manifest cannot be read."""
    try:
        return _text(_document(content), "jobId")
    except UnreadableError:
        return ""


def _require_consistent(manifest: Manifest) -> None:
    if len({shard.key for shard in manifest.shards}) != len(manifest.shards):
        raise UnreadableError("it lists a shard twice")
    for shard in manifest.shards:
        folder, _, name = shard.key.rpartition("/")
        if folder != manifest.checkpoint.folder or not is_file_name(name):
            raise UnreadableError(f"{shard.key!r} is not a file of the checkpoint's folder")
        parsed = rank_and_world(name)
        if parsed is not None and (parsed[1] != manifest.world_size or parsed[0] >= manifest.world_size):
            raise UnreadableError(f"{name} does not match the world size {manifest.world_size}")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A checkpoint to resume from."""

    attempt: int
    step: int
    manifest: str
    """Key of the file to resume from, relative to the checkpoint URI: the manifest, or DCP's `.metadata`."""

    def to_json(self) -> JsonObject:
        return {"attempt": self.attempt, "step": self.step, "manifest": self.manifest}


@dataclass(frozen=True, slots=True)
class Pin:
    """The resume point of one attempt; None if the attempt starts at step 0."""

    attempt: int
    resume_from: ResumePoint | None

    def admits(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint of an earlier attempt still counts after this pin."""
        point = self.resume_from
        return point is not None and point.attempt >= checkpoint.attempt and point.step >= checkpoint.step

    def to_json(self) -> JsonObject:
        return {"attempt": self.attempt, "resumeFrom": self.resume_from and self.resume_from.to_json()}

    @classmethod
    def from_json(cls, document: object) -> "Pin":
        entry = _object(document)
        attempt = _whole(entry, "attempt", 1)
        if entry.get("resumeFrom") is None:
            return cls(attempt, None)
        point_document = _object(entry["resumeFrom"])
        point = ResumePoint(
            _whole(point_document, "attempt", 1), _whole(point_document, "step", 0), _text(point_document, "manifest")
        )
        if point.attempt >= attempt or checkpoint_of_key(point.manifest) != Checkpoint(point.step, point.attempt):
            raise UnreadableError(f"attempt {attempt} cannot be pinned to {point.manifest!r}")
        return cls(attempt, point)


@dataclass(frozen=True, slots=True)
class Fence:
    """The highest attempt that may write, its pin with the reason, and the pins of all earlier attempts."""

    pin: Pin
    history: tuple[Pin, ...] = ()
    grade: str = "NONE"
    reason: str = ""
    rejected: tuple[JsonObject, ...] = ()
    began_at: datetime | None = None
    """Start of the write of the checkpoint to resume from; None if unknown."""

    @property
    def attempt(self) -> int:
        return self.pin.attempt

    @property
    def pins(self) -> tuple[Pin, ...]:
        return (*self.history, self.pin)

    def to_bytes(self) -> bytes:
        document = {
            "schemaVersion": SCHEMA_VERSION,
            **self.pin.to_json(),
            "grade": self.grade,
            "beganAt": None if self.began_at is None else write_instant(self.began_at),
            "reason": self.reason,
            "rejected": list(self.rejected),
            "history": [pin.to_json() for pin in self.history],
        }
        return json.dumps(document, indent=1).encode()


def parse_fence(content: bytes) -> Fence:
    """Parse a fence.

    Raises:
        UnreadableError: The bytes are not a fence of a known schema. A caller must never treat this as "no fence".
    """
    document = _document(content)
    pin = Pin.from_json(document)
    history = document.get("history", [])
    rejected = document.get("rejected", [])
    if not isinstance(history, list) or not isinstance(rejected, list):
        raise UnreadableError("the fence's history and rejections must be lists")
    pins = tuple(Pin.from_json(entry) for entry in history)
    attempts = [pin.attempt for pin in pins]
    if attempts != sorted(set(attempts)) or (attempts and attempts[-1] >= pin.attempt):
        raise UnreadableError("the history must list earlier attempts, each once, in order")
    return Fence(
        pin=pin,
        history=pins,
        grade=str(document.get("grade", "NONE")),
        reason=str(document.get("reason", "")),
        rejected=tuple(_object(entry) for entry in rejected),
        began_at=None if document.get("beganAt") is None else read_instant(document["beganAt"]),
    )


def _document(content: bytes) -> JsonObject:
    try:
        document = json.loads(content.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"it is not JSON: {error}") from error
    entry = _object(document)
    if type(entry.get("schemaVersion")) is not int or entry["schemaVersion"] != SCHEMA_VERSION:
        raise UnreadableError(f"schemaVersion {entry.get('schemaVersion')!r} is not supported")
    return entry


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _object(document: object) -> JsonObject:
    if not isinstance(document, dict):
        raise UnreadableError("a JSON object is expected")
    return document


def _whole(document: Mapping[str, object], name: str, least: int) -> int:
    value = document.get(name)
    if type(value) is not int or value < least:
        raise UnreadableError(f"{name} must be a whole number of at least {least}")
    return value


def _optional_boolean(document: Mapping[str, object], name: str) -> bool | None:
    value = document.get(name)
    if value is not None and not isinstance(value, bool):
        raise UnreadableError(f"{name} must be true or false")
    return value


def _text(document: Mapping[str, object], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise UnreadableError(f"{name} must be a text")
    return value
