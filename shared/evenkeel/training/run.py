"""One rank of one attempt, as its training script sees it."""

import hashlib
import json
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from evenkeel.training.layout import (
    Checkpoint,
    JsonObject,
    Manifest,
    ResumePoint,
    Shard,
    UnreadableError,
    checkpoint_of_key,
    job_of_manifest,
    parse_manifest,
    rank_and_world,
    read_instant,
    write_instant,
)
from evenkeel.training.resume import (
    COMPLETE_BY_CONVENTION,
    CONVENTION,
    DEMANDS,
    NONE,
    PROVED,
    Distrust,
    Fenced,
    ResumeChoice,
    pin,
    raised,
    rank_without_shard,
    report,
)
from evenkeel.training.storage import Storage, open_storage

EXIT_UNPROVED = 65
"""Exit code of an attempt that found checkpoints and could prove none (EX_DATAERR): nothing was begun or disowned."""
EXIT_DAMAGED = 66
"""Exit code of an attempt that met a `DamagedError` (EX_NOINPUT): the next one resumes from an older checkpoint."""
EXIT_FENCED = 75
"""Exit code of an attempt that found itself fenced (EX_TEMPFAIL: not the application's fault)."""
EXIT_STOPPED = 143
"""Exit code of a rank that was asked to stop, and did: 128 + SIGTERM, so that it never passes for success."""

PART_BYTES = 256 * 1024 * 1024
"""A shard above this is written in parts: S3 takes 5 GiB in one PUT, and keeps a comparable checksum only of those."""

LARGEST_MANIFEST_BYTES = 16 * 1024 * 1024
"""Evenkeel's functions read no larger one."""
PATIENCE_SECONDS = 600
"""How long ranks wait in the store for each other where nobody says."""

Gather = Callable[[JsonObject], Sequence[JsonObject] | None]
"""The caller's own gather: takes this rank's record, returns every rank's, in rank order, at least on rank 0."""


class NotInAnAttemptError(Exception):
    """The environment does not say which attempt this is, or says it wrongly."""


class DamagedError(Exception):
    """A shard's bytes are not those that its manifest promises."""


class NotInCheckpointError(LookupError):
    """What was asked for is not part of the checkpoint, which is none the worse for it.

    No reason for `EXIT_DAMAGED`: the message says where what is needed can be read instead.
    """


@dataclass(frozen=True, slots=True)
class Saved:
    """What one call of `save` did."""

    step: int
    manifest: str
    """Key of the manifest, relative to the checkpoint URI."""
    is_complete: bool
    """Whether this rank knows the manifest to be written. Only rank 0 does, and any rank that finds it in the store."""


class Resume:
    """A checkpoint to resume from. Its bytes are checked as they are read."""

    def __init__(self, storage: Storage, point: ResumePoint, grade: str, manifest: Manifest | None) -> None:
        self._storage = storage
        self._manifest = manifest
        self.attempt = point.attempt
        self.step = point.step
        self.key = point.manifest
        self.grade = grade

    @property
    def uri(self) -> str:
        """Address of the checkpoint's folder, for a reader that takes one (DCP's `checkpoint_id`)."""
        return f"{self._storage.uri.rstrip('/')}/{self.key.rpartition('/')[0]}"

    @property
    def world_size(self) -> int:
        """How many ranks wrote it. It may differ from how many read it.

        This and the rest raise `NotInCheckpointError` where there is no manifest (its grade is then not `PROVED`).
        """
        return self._read().world_size

    @property
    def metrics(self) -> Mapping[str, float | str]:
        return self._read().metrics

    @property
    def extra(self) -> Mapping[str, Any]:
        return self._read().extra

    def shard(self, rank: int) -> bytes:
        """Read what one rank wrote.

        A job that comes back on another number of ranks may read any of them, by the numbers of those that wrote.

        Raises:
            NotInCheckpointError: It was written by fewer ranks, or has no manifest, or names no shards by rank.
            DamagedError: The bytes are not those that the manifest promises.
        """
        manifest = self._read()
        if not 0 <= rank < manifest.world_size:
            raise NotInCheckpointError(
                f"{self.key} was written by {manifest.world_size} ranks, so it has no shard of rank {rank}: read those "
                f"of 0 to {manifest.world_size - 1}, or all with shards(), and share them out anew"
            )
        parts = manifest.shards_of(rank)
        if not parts and rank_without_shard(manifest) is None:
            raise NotInCheckpointError(f"{self.key} names no files by rank: read them from {self.uri} by their names")
        if not parts:
            raise DamagedError(f"{self.key} names no shard of rank {rank}")
        return b"".join(self._part(part) for part in parts)

    def shards(self) -> Iterator[bytes]:
        """Read what each rank wrote, in rank order."""
        return (self.shard(rank) for rank in range(self.world_size))

    def _part(self, part: Shard) -> bytes:
        content = self._storage.get(part.key)
        if content is None:
            raise DamagedError(f"{part.key} is gone")
        if hashlib.sha256(content).hexdigest() != part.sha256:
            raise DamagedError(f"{part.key} has {len(content)} bytes that are not those its manifest promises")
        return content

    def _read(self) -> Manifest:
        if self._manifest is None:
            raise NotInCheckpointError(
                f"{self.key} is complete by its own convention and has no manifest, so there are no shards, metrics or "
                f"extra to read here: load it from {self.uri}, as DCP does from its checkpoint_id"
            )
        return self._manifest


class Run:
    """One rank of one attempt. Made by `attach`."""

    def __init__(
        self,
        storage: Storage,
        *,
        job_id: str,
        attempt: int,
        rank: int = 0,
        world_size: int = 1,
        resume_from: str | None = None,
        distrust: Distrust | None = None,
        accepts_convention: bool = False,
        may_start_over: bool = False,
        damaged: Collection[Checkpoint] = (),
        patience_seconds: float = PATIENCE_SECONDS,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self.rank = rank
        self.world_size = world_size
        self._storage = storage
        self._resume_from = resume_from
        self._distrust = distrust
        self._accepts_convention = accepts_convention
        self._may_start_over = may_start_over
        self._damaged = frozenset(damaged)
        self._patience_seconds = patience_seconds
        self._part_bytes = part_bytes
        self._last_step = -1
        self._saved: Saved | None = None
        """What this process saved last. What it resumed from is not among it."""
        self._unwritten: Manifest | None = None
        """On rank 0, the manifest of that step, until it is in the store."""
        self._has_been_asked_to_stop = False

    @property
    def checkpoint_uri(self) -> str:
        return self._storage.uri

    def resume(self) -> Resume | None:
        """Find where to resume; None = start from the beginning.

        Evenkeel says so in `EVENKEEL_RESUME_FROM` (empty = from the beginning). Where the variable is absent, rank 0
        proves the checkpoints itself, raises the fence and pins the answer; the other ranks wait for it.

        Raises:
            Fenced: A later attempt has taken over.
            Unproved: Rank 0 found finished checkpoints and could prove none of them. Nothing was pinned.
            DamagedError: The checkpoint to resume from is not there.
            TimeoutError: Rank 0 pinned nothing in time.
        """
        choice = self._choice()
        point = choice.resume_from
        if point is None:
            return None
        self._last_step = point.step
        checkpoint = Checkpoint(step=point.step, attempt=point.attempt)
        content = self._storage.get(point.manifest)
        if content is None:
            raise DamagedError(f"{point.manifest} is not in the store")
        is_ours = point.manifest == checkpoint.manifest_key
        return Resume(self._storage, point, choice.grade, parse_manifest(checkpoint, content) if is_ours else None)

    def save(
        self,
        step: int,
        shard: bytes | bytearray | memoryview,
        *,
        metrics: Mapping[str, float] | None = None,
        is_finite: bool | None = None,
        extra: Mapping[str, Any] | None = None,
        gather: Gather | None = None,
    ) -> Saved:
        """Save this rank's part of the state after `step`; every rank calls it. Rank 0 writes the manifest last.

        Without `gather`, each rank leaves a small receipt in the store, and rank 0 waits for all of them.
        Idempotent: yes, by the manifest: a step that is complete is left as it is.

        Args:
            step: Steps done so far. Steps are saved in rising order.
            shard: This rank's bytes.
            metrics: Numbers to keep with it, the loss for one. Where one is not finite, it is never resumed from.
            is_finite: What a look at the weights found, where the script takes one. After a fault that may have
                corrupted anything, only a checkpoint with a finite loss or with this is resumed from.
            extra: Whatever else resuming needs and JSON can say.
            gather: The caller's own all-gather of small JSON values, where it has one.

        Raises:
            Fenced: A later attempt has taken over. Nothing was made complete; end the process.
            TimeoutError: Some rank's receipt did not come in time.
            ValueError: The ranks' records do not make one checkpoint, or its manifest would be too large to be read, or
                another job has saved this step here. Nothing was made complete.
        """
        if step < self._last_step:
            raise ValueError(f"step {step} cannot be saved after step {self._last_step}")
        checkpoint = Checkpoint(step=step, attempt=self.attempt)
        if self._saved is not None and self._saved.step == step:
            # Every rank that gave its record has come this far, whatever it would see in the store by now: that could
            # differ from rank to rank, and those that went on would wait for the others in `gather`.
            return self._completed(checkpoint) if self._unwritten is not None else self._saved
        started_at = datetime.now(UTC)
        manifest = Manifest(
            job_id=self.job_id,
            checkpoint=checkpoint,
            started_at=started_at,
            created_at=started_at,
            world_size=self.world_size,
            shards=(),
            metrics={name: value if math.isfinite(value) else str(value) for name, value in (metrics or {}).items()},
            is_finite=is_finite,
            extra=extra or {},
        )
        _require_readable_size(manifest)
        self.check_fence()
        found = self._storage.get(checkpoint.manifest_key)
        if found is not None:
            self._require_own(checkpoint, found)
            return self._remember(checkpoint, is_complete=True)
        record: JsonObject = {"startedAt": write_instant(started_at), "shards": self._put_parts(checkpoint, shard)}
        records = self._receipts(checkpoint, record) if gather is None else gather(record)
        saved = self._remember(checkpoint, is_complete=False)
        if self.rank != 0:
            return saved
        everyone = list(records or ())
        if len(everyone) != self.world_size:
            raise ValueError(f"{len(everyone)} of {self.world_size} ranks gave their records to rank 0")
        manifest = replace(
            manifest,
            started_at=min(read_instant(mine["startedAt"]) for mine in everyone),
            created_at=datetime.now(UTC),
            shards=tuple(Shard.from_json(entry) for mine in everyone for entry in mine["shards"]),
        )
        _require_whole(manifest)
        _require_readable_size(manifest)
        self._unwritten = manifest
        return self._completed(checkpoint)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Publish what the attempt achieved, under `result/attempt=<n>.json`. Only rank 0 writes; the first one stands.

        Idempotent: yes, by a conditional write.

        Raises:
            Fenced: A later attempt has taken over, so this result counts for nothing.
        """
        self.check_fence()
        if self.rank == 0:
            content = json.dumps(dict(result), indent=1).encode()
            self._storage.put_new(f"result/attempt={self.attempt}.json", content)

    def check_fence(self) -> None:
        """Make sure that no later attempt has taken over.

        Raises:
            Fenced: One has.
        """
        fence = self._storage.read_fence().fence
        if fence is not None and fence.attempt > self.attempt:
            raise Fenced(self.attempt, fence.attempt)

    def should_stop(self) -> bool:
        """Whether SIGTERM has come: finish the step, save, and exit with `EXIT_STOPPED`."""
        return self._has_been_asked_to_stop

    def ask_to_stop(self) -> None:
        """Make `should_stop` true, as SIGTERM does."""
        self._has_been_asked_to_stop = True

    def _choice(self) -> ResumeChoice:
        if self._resume_from is None:
            if self.rank == 0:
                choice = pin(
                    self._storage,
                    self.attempt,
                    self._distrust,
                    accepts_convention=self._accepts_convention,
                    may_start_over=self._may_start_over,
                    job_id=self.job_id,
                    damaged=self._damaged,
                )
                print(report(self.attempt, choice), flush=True)
                return choice
            return self._await_pin()
        given = self._given_resume_point(self._resume_from)
        standing = self._storage.read_fence()
        if standing.fence is not None and standing.fence.attempt > self.attempt:
            raise Fenced(self.attempt, standing.fence.attempt)
        if self.rank == 0 and (standing.fence is None or standing.fence.attempt < self.attempt):
            # Whoever told us did not raise the fence (a folder it cannot mount): rank 0 does, with the pin it was told.
            self._storage.raise_fence(raised(standing.fence, self.attempt, given), standing)
            self.check_fence()
        return given

    def _given_resume_point(self, key: str) -> ResumeChoice:
        if not key:
            return ResumeChoice(None, NONE, "Told to start from the beginning.")
        checkpoint = checkpoint_of_key(key)
        if checkpoint is None:
            raise NotInAnAttemptError(f"EVENKEEL_RESUME_FROM={key!r} names no checkpoint")
        point = ResumePoint(checkpoint.attempt, checkpoint.step, key)
        grade = PROVED if key == checkpoint.manifest_key else COMPLETE_BY_CONVENTION
        return ResumeChoice(point, grade, f"Told to resume from step {point.step} of attempt {point.attempt}.")

    def _await_pin(self) -> ResumeChoice:
        for _ in self._polls(f"rank 0 to pin the resume point of attempt {self.attempt}"):
            fence = self._storage.read_fence().fence
            if fence is not None and fence.attempt > self.attempt:
                raise Fenced(self.attempt, fence.attempt)
            if fence is not None and fence.attempt == self.attempt:
                return ResumeChoice(fence.pin.resume_from, fence.grade, fence.reason, fence.rejected)
        raise AssertionError("unreachable: polling ends in TimeoutError")

    def _put_parts(self, checkpoint: Checkpoint, shard: bytes | bytearray | memoryview) -> list[JsonObject]:
        view = memoryview(shard).cast("B")
        size = self._part_bytes
        parts = [view[start : start + size] for start in range(0, len(view), size)] or [view]
        written = []
        for number, part in enumerate(parts):
            extension = "bin" if len(parts) == 1 else f"p{number:05d}.bin"
            key = checkpoint.shard_key(self.rank, self.world_size, extension)
            sha256 = hashlib.sha256(part).hexdigest()
            self._storage.put(key, part, sha256)
            written.append(Shard(key, len(part), sha256).to_json())
        return written

    def _receipts(self, checkpoint: Checkpoint, record: JsonObject) -> Sequence[JsonObject] | None:
        if self.rank != 0:
            content = json.dumps(record).encode()
            key = checkpoint.receipt_key(self.rank, self.world_size)
            self._storage.put(key, content, hashlib.sha256(content).hexdigest())
            return None
        records = [record]
        for rank in range(1, self.world_size):
            key = checkpoint.receipt_key(rank, self.world_size)
            for _ in self._polls(f"rank {rank} to save step {checkpoint.step}"):
                found = self._storage.get(key)
                if found is not None:
                    records.append(json.loads(found))
                    break
        return records

    def _polls(self, what: str) -> Iterator[None]:
        deadline = time.monotonic() + self._patience_seconds
        pause_seconds = 0.05
        while True:
            yield
            if time.monotonic() >= deadline:
                raise TimeoutError(f"waited {self._patience_seconds:.0f} s for {what}")
            time.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, 2.0)

    def _require_own(self, checkpoint: Checkpoint, content: bytes) -> None:
        theirs = job_of_manifest(content)
        if self.job_id and theirs and theirs != self.job_id:
            raise ValueError(
                f"{checkpoint.manifest_key} under {self._storage.uri} belongs to job {theirs}, "
                f"not to job {self.job_id}: "
                "use a separate checkpoint URI for each job"
            )

    def _completed(self, checkpoint: Checkpoint) -> Saved:
        """Write the manifest that every rank has given its record for."""
        assert self._unwritten is not None
        # Last look, last write. A fence raised between the two makes the manifest late, and late ones never count.
        self.check_fence()
        self._storage.put_new(checkpoint.manifest_key, self._unwritten.to_bytes())
        return self._remember(checkpoint, is_complete=True)

    def _remember(self, checkpoint: Checkpoint, *, is_complete: bool) -> Saved:
        self._last_step = checkpoint.step
        self._unwritten = None
        self._saved = Saved(checkpoint.step, checkpoint.manifest_key, is_complete)
        return self._saved


def _require_whole(manifest: Manifest) -> None:
    """Make sure that the records of all ranks are of one step, a shard for each rank and none twice."""
    step, size = manifest.checkpoint.step, manifest.world_size
    which = "check RANK and WORLD_SIZE of each process"
    times = Counter(shard.key for shard in manifest.shards)
    for key, count in times.items():
        if not key.startswith(f"{manifest.checkpoint.folder}/"):
            raise ValueError(f"{key} came to rank 0 for step {step}: all ranks must save the same step")
        place = rank_and_world(key.rpartition("/")[2])
        if place is not None and place[1] != size:
            raise ValueError(f"{key} came to rank 0, which counts {size} ranks: {which}")
        if count > 1:
            raise ValueError(f"{count} ranks say that they wrote {key}: {which}")
    missing = rank_without_shard(manifest)
    if missing is not None:
        raise ValueError(f"no shard of rank {missing} of {size} came to rank 0 for step {step}: {which}")


def _require_readable_size(manifest: Manifest) -> None:
    size = len(manifest.to_bytes())
    if size > LARGEST_MANIFEST_BYTES:
        raise ValueError(
            f"the manifest of step {manifest.checkpoint.step} would have {size} bytes, and one of more than "
            f"{LARGEST_MANIFEST_BYTES} is never read: keep `extra` small, and put what is large into the shards"
        )


def attach(environ: Mapping[str, str] | None = None, *, patience_seconds: float | None = None) -> Run:
    """Join the attempt that the environment describes, and listen for SIGTERM (where this is the main thread).

    `patience_seconds` is how long ranks wait in the store for each other: for rank 0's word where to resume, and rank 0
    for what each has saved. None = what the environment says.

    | variable | |
    |---|---|
    | `EVENKEEL_CHECKPOINT_URI` | `s3://bucket/prefix`, `file:///folder` or a path |
    | `EVENKEEL_ATTEMPT` | 1, 2, … |
    | `EVENKEEL_JOB_ID` | optional |
    | `EVENKEEL_RESUME_FROM` | key of the manifest to resume from; empty = begin; absent = rank 0 finds out |
    | `EVENKEEL_DISTRUST_AFTER` | optional, RFC 3339: where rank 0 finds out, writes begun later do not count |
    | `EVENKEEL_DISTRUST_DEMAND` | optional, `PROOF` or `EVIDENCE`: what the others must have |
    | `EVENKEEL_DISTRUST_THROUGH` | optional: the last attempt that these are about; absent = all |
    | `EVENKEEL_ACCEPT_CONVENTION` | `1`: where rank 0 finds out, DCP's convention is enough |
    | `EVENKEEL_DAMAGED_CHECKPOINTS` | optional, `attempt/step,…`: checkpoints that rank 0 could not read back |
    | `EVENKEEL_START_OVER` | `1`: where rank 0 finds out that no checkpoint holds, it begins at the beginning |
    | `EVENKEEL_TIMEOUT_SECONDS` | optional: how long ranks wait for each other; 600 where absent |
    | `RANK`, `WORLD_SIZE` | where torchrun or one like it set them (`LOCAL_RANK` or `TORCHELASTIC_RUN_ID` says so) |
    | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | otherwise, where mpirun set both |
    | `JOB_COMPLETION_INDEX` (or `RANK`), `WORLD_SIZE` | otherwise: those of the pod; 0 and 1 where absent |

    Raises:
        NotInAnAttemptError: A variable is missing or cannot be read.
    """
    given = os.environ if environ is None else environ
    uri = given.get("EVENKEEL_CHECKPOINT_URI", "")
    if not uri:
        raise NotInAnAttemptError("EVENKEEL_CHECKPOINT_URI is not set; set it to the checkpoint location")
    rank, world_size = _place(given)
    patience_in_environment = _whole(given, "EVENKEEL_TIMEOUT_SECONDS", 1, default=str(PATIENCE_SECONDS))
    try:
        storage = open_storage(uri)
        distrust, damaged = _distrust(given), _damaged(given)
    except (ValueError, UnreadableError) as error:
        raise NotInAnAttemptError(str(error)) from error
    run = Run(
        storage,
        job_id=given.get("EVENKEEL_JOB_ID", ""),
        attempt=_whole(given, "EVENKEEL_ATTEMPT", 1),
        rank=rank,
        world_size=world_size,
        resume_from=given.get("EVENKEEL_RESUME_FROM"),
        distrust=distrust,
        accepts_convention=given.get("EVENKEEL_ACCEPT_CONVENTION", "") == "1",
        may_start_over=given.get("EVENKEEL_START_OVER", "") == "1",
        damaged=damaged,
        patience_seconds=patience_in_environment if patience_seconds is None else patience_seconds,
    )
    if threading.current_thread() is threading.main_thread():
        _stop_on_signal(run)
    return run


def _damaged(given: Mapping[str, str]) -> frozenset[Checkpoint]:
    """Return the checkpoints that earlier attempts could not read back: `1/20,1/30`, attempt and step of each."""
    try:
        pairs = [each.split("/") for each in filter(None, given.get("EVENKEEL_DAMAGED_CHECKPOINTS", "").split(","))]
        return frozenset(Checkpoint(attempt=int(attempt), step=int(step)) for attempt, step in pairs)
    except ValueError as error:
        raise NotInAnAttemptError(
            f"EVENKEEL_DAMAGED_CHECKPOINTS={given['EVENKEEL_DAMAGED_CHECKPOINTS']!r} cannot be read"
        ) from error


def _place(given: Mapping[str, str]) -> tuple[int, int]:
    """Return this process's rank, and of how many.

    A pod has one JOB_COMPLETION_INDEX, which every process in it inherits: where a launcher starts several, only what
    it tells each of them counts. Without a launcher's sign, RANK may be anybody's, and the pod's own number counts.
    """
    rank_name, size_name = _place_names(given)
    rank, world_size = _whole(given, rank_name, 0, default="0"), _whole(given, size_name, 1, default="1")
    if rank >= world_size:
        raise NotInAnAttemptError(f"{rank_name}={rank} does not fit {size_name}={world_size}")
    return rank, world_size


def _place_names(given: Mapping[str, str]) -> tuple[str, str]:
    # https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    signs = [f"{name}={given[name]}" for name in ("LOCAL_RANK", "TORCHELASTIC_RUN_ID") if given.get(name)]
    if signs and given.get("RANK"):
        return "RANK", "WORLD_SIZE"
    if signs and signs != ["LOCAL_RANK=0"]:  # that alone may be a job's own setting: the one process of its pod
        raise NotInAnAttemptError(f"{signs[0]} shows that a launcher started this process, but RANK is not set")
    # https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    if given.get("OMPI_COMM_WORLD_RANK") and given.get("OMPI_COMM_WORLD_SIZE"):
        return "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
    return ("JOB_COMPLETION_INDEX" if given.get("JOB_COMPLETION_INDEX") else "RANK"), "WORLD_SIZE"


def _distrust(given: Mapping[str, str]) -> Distrust | None:
    after, demand = given.get("EVENKEEL_DISTRUST_AFTER", ""), given.get("EVENKEEL_DISTRUST_DEMAND") or CONVENTION
    if demand not in DEMANDS:
        raise NotInAnAttemptError(f"EVENKEEL_DISTRUST_DEMAND={demand!r} is none of {', '.join(DEMANDS)}")
    if not after and demand == CONVENTION:
        return None
    through = _whole(given, "EVENKEEL_DISTRUST_THROUGH", 1) if given.get("EVENKEEL_DISTRUST_THROUGH") else None
    return Distrust(read_instant(after) if after else None, through, demand)


def _stop_on_signal(run: Run) -> None:
    listener = os.getpid()

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        if os.getpid() == listener:
            run.ask_to_stop()
        else:  # a fork that was told to end before it had forgotten what it inherited
            forget()
            os.kill(os.getpid(), signal.SIGTERM)

    def forget() -> None:
        if signal.getsignal(signal.SIGTERM) is on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, on_signal)
    # Forked children (data loaders' workers) train nothing: what would make this process finish its step ends them.
    os.register_at_fork(after_in_child=forget)


def _whole(given: Mapping[str, str], name: str, least: int, default: str = "") -> int:
    text = given.get(name) or default
    if not text:
        raise NotInAnAttemptError(f"{name} is not set")
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise NotInAnAttemptError(f"{name}={text!r} is not a whole number of at least {least}")
    return int(text)
