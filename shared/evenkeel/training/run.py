"""The interface of a training script: one rank of one attempt resumes, saves and stops."""

import hashlib
import itertools
import json
import math
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from evenkeel.training.layout import (
    CONVENTION_NAME,
    Checkpoint,
    JsonObject,
    Manifest,
    ResumePoint,
    Shard,
    UnreadableError,
    checkpoint_of_key,
    is_file_name,
    job_of_manifest,
    parse_manifest,
    rank_and_world,
    read_instant,
    write_instant,
)
from evenkeel.training.resume import (
    COMPLETE_BY_CONVENTION,
    CONVENTION,
    NONE,
    PROVED,
    REQUIREMENTS,
    Distrust,
    Fenced,
    ResumeChoice,
    next_fence,
    pin,
    rank_without_shard,
    report,
)
from evenkeel.training.storage import Storage, open_storage

EXIT_UNPROVEN = 65
"""Exit code after `Unproven` (EX_DATAERR): checkpoints exist and none is valid, so the attempt started nothing."""
EXIT_DAMAGED = 66
"""Exit code after a `DamagedError` (EX_NOINPUT): the next attempt resumes from an older checkpoint."""
EXIT_FENCED = 75
"""Exit code after `Fenced` (EX_TEMPFAIL): the attempt ended because of Evenkeel, not because of the application."""
EXIT_STOPPED = 143
"""Exit code of a rank that stopped on request: 128 + SIGTERM. It never counts as success."""

PART_BYTES = 256 * 1024 * 1024
"""A larger shard is written in parts. S3 accepts at most 5 GiB per PUT, and has no comparable checksum for more."""

_PART = re.compile(r"(.+)\.p[0-9]{5}")
"""A part of a file that `save_files` wrote. Parts of a shard end with `.bin`."""

LARGEST_MANIFEST_BYTES = 16 * 1024 * 1024
"""Evenkeel's functions do not read a larger manifest."""
DEFAULT_TIMEOUT_SECONDS = 600
"""How long ranks wait for each other in the store by default."""

Gather = Callable[[JsonObject], Sequence[JsonObject] | None]
"""The caller's own gather. It takes this rank's record and returns the records of all ranks in rank order.

Ranks other than 0 may get None."""


class NotInAnAttemptError(Exception):
    """The environment does not describe an attempt, or a variable is not valid."""


class DamagedError(Exception):
    """The bytes of a shard are missing or differ from its manifest."""


class NotInCheckpointError(LookupError):
    """The checkpoint is valid, but does not have the requested part, for example a shard of this rank.

    Do not exit with `EXIT_DAMAGED`: the message names the step or folder to read from instead.
    """


@dataclass(frozen=True, slots=True)
class Saved:
    """Result of one call of `save`."""

    step: int
    manifest: str
    """Key of the manifest, relative to the checkpoint URI."""
    is_complete: bool
    """Whether this rank knows that the manifest is written: rank 0 wrote it, or this rank found it in the store."""


@dataclass(frozen=True, slots=True)
class _Description:
    """Metrics and other data that a script gives with a checkpoint."""

    metrics: Mapping[str, float]
    is_finite: bool | None
    extra: Mapping[str, Any]


class Resume:
    """A checkpoint to resume from. Each read compares the bytes with the manifest."""

    def __init__(self, storage: Storage, point: ResumePoint, grade: str, manifest: Manifest | None) -> None:
        self._storage = storage
        self._manifest = manifest
        self.attempt = point.attempt
        self.step = point.step
        self.key = point.manifest
        self.grade = grade

    @property
    def uri(self) -> str:
        """URI of the checkpoint's folder, for a library that loads from a folder (DCP's `checkpoint_id`)."""
        return f"{self._storage.uri.rstrip('/')}/{self.key.rpartition('/')[0]}"

    @property
    def world_size(self) -> int:
        """Number of ranks that wrote the checkpoint. It may differ from the number of ranks that read it.

        This and all members below raise `NotInCheckpointError` if there is no manifest. The grade is then not `PROVED`.
        """
        return self._read().world_size

    @property
    def metrics(self) -> Mapping[str, float | str]:
        return self._read().metrics

    @property
    def extra(self) -> Mapping[str, Any]:
        return self._read().extra

    def shard(self, rank: int) -> bytes:
        """Return the bytes that one rank wrote.

        `rank` is a rank of the attempt that wrote the checkpoint. A job that resumes with another number of ranks may
        read any of them.

        Raises:
            NotInCheckpointError: The writer had fewer ranks, there is no manifest, or no file name contains a rank.
            DamagedError: The bytes are missing or differ from the manifest.
        """
        manifest = self._read()
        if not 0 <= rank < manifest.world_size:
            raise NotInCheckpointError(
                f"{self.key} was written by {manifest.world_size} ranks, so it has no shard of rank {rank}. Read the "
                f"shards of ranks 0 to {manifest.world_size - 1}, or all with shards(), and distribute the data again"
            )
        parts = manifest.shards_of(rank)
        if not parts and rank_without_shard(manifest) is None:
            raise NotInCheckpointError(f"{self.key} lists no files by rank: read them from {self.uri} by their names")
        if not parts:
            raise DamagedError(f"{self.key} lists no shard of rank {rank}")
        return b"".join(self._part(part) for part in parts)

    def shards(self) -> Iterator[bytes]:
        """Yield the bytes that each rank wrote, in rank order."""
        return (self.shard(rank) for rank in range(self.world_size))

    def download(self, folder: str | os.PathLike[str]) -> None:
        """Copy the files that `save_files` saved on all ranks to a folder, under the names that they had.

        A library such as DCP then loads them from there. Call it once for each folder: ranks of one pod can share it.
        Idempotent: yes, files of an earlier call are replaced.

        Raises:
            NotInCheckpointError: There is no manifest.
            DamagedError: The bytes are missing or differ from the manifest.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[str, list[Shard]] = {}
        for shard in sorted(self._read().shards, key=lambda entry: entry.key):
            name = shard.key.rpartition("/")[2]
            part = _PART.fullmatch(name)
            files.setdefault(part[1] if part else name, []).append(shard)
        for name, parts in files.items():
            with (folder / name).open("wb") as stream:
                stream.writelines(self._part(part) for part in parts)

    def _part(self, part: Shard) -> bytes:
        content = self._storage.get(part.key)
        if content is None:
            raise DamagedError(f"{part.key} is not in the store")
        if hashlib.sha256(content).hexdigest() != part.sha256:
            raise DamagedError(f"{part.key} has {len(content)} bytes, and their checksum differs from the manifest")
        return content

    def _read(self) -> Manifest:
        if self._manifest is None:
            raise NotInCheckpointError(
                f"{self.key} is complete by the DCP convention and has no manifest, shards, metrics or extra. "
                f"Load it with DCP: pass {self.uri} as checkpoint_id"
            )
        return self._manifest


class Run:
    """A rank of one attempt. Call `attach` to create it."""

    def __init__(  # noqa: PLR0913 - keyword-only: one argument for each variable that `attach` reads
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
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
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
        self._timeout_seconds = timeout_seconds
        self._part_bytes = part_bytes
        self._last_step = -1
        self._saved: Saved | None = None
        """The last save of this process; None before the first save."""
        self._unwritten: Manifest | None = None
        """On rank 0, the manifest of the last save until it is written to the store; then None."""
        self._convention: bytes | None = None
        """On rank 0, DCP's `.metadata` of the last save; None if that save has none."""
        self._stop_requested = False

    @property
    def checkpoint_uri(self) -> str:
        return self._storage.uri

    def resume(self) -> Resume | None:
        """Return the checkpoint to resume from; None = start at step 0.

        Evenkeel sets it in `EVENKEEL_RESUME_FROM` (empty = step 0). If the variable is absent, rank 0 proves the
        checkpoints itself, raises the fence and pins the resume point. The other ranks wait for it.

        Raises:
            Fenced: A later attempt has taken over.
            Unproven: Rank 0 found finished checkpoints, and none is valid. Nothing was pinned.
            DamagedError: The checkpoint to resume from is not in the store.
            TimeoutError: Rank 0 pinned no resume point in time.
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
        has_manifest = point.manifest == checkpoint.manifest_key
        return Resume(self._storage, point, choice.grade, parse_manifest(checkpoint, content) if has_manifest else None)

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
        """Save this rank's part of the state after `step`. Every rank calls it. Rank 0 writes the manifest last.

        Without `gather`, each rank writes a small receipt to the store, and rank 0 waits for all of them.
        Idempotent: yes, by the manifest: a step with a manifest is not written again.

        Args:
            step: Number of steps done so far. Save steps in rising order.
            shard: The bytes of this rank.
            metrics: Numbers to store with the checkpoint, for example the loss. No attempt resumes from a checkpoint
                with a metric that is not finite.
            is_finite: Whether the script found all weights finite; None if it did not check. After a fault that may
                have corrupted data, a checkpoint needs a finite loss or this.
            extra: Other JSON data that the script needs to resume.
            gather: The caller's own all-gather of small JSON values, if it has one.

        Raises:
            Fenced: A later attempt has taken over. The checkpoint is not complete; end the process.
            TimeoutError: The receipt of a rank did not arrive in time.
            ValueError: The records of the ranks do not form one checkpoint, the manifest would be too large, or another
                job has saved this step here. The checkpoint is not complete.
        """
        description = _Description(metrics or {}, is_finite, extra or {})
        return self._save(step, description, lambda checkpoint: self._shard_parts(checkpoint, shard), gather)

    def save_files(
        self,
        step: int,
        files: Iterable[str | os.PathLike[str]],
        *,
        metrics: Mapping[str, float] | None = None,
        is_finite: bool | None = None,
        extra: Mapping[str, Any] | None = None,
        gather: Gather | None = None,
    ) -> Saved:
        """Save the files that a library such as PyTorch's DCP wrote on this rank for the state after `step`.

        The files keep their names. The manifest lists the files of all ranks, so the checkpoint can be proved. The
        library can also load it directly from `Resume.uri`, unless a file has more than 256 MiB: it is stored in parts.
        The files may be deleted when the call returns. Idempotent: yes, by the manifest, as `save`.

        Args:
            step: Number of steps done so far. Save steps in rising order.
            files: Files of this rank; none if the library wrote none on it. No two files of all ranks may have the same
                name. Only rank 0 may have DCP's `.metadata`.
            metrics: See `save`.
            is_finite: See `save`.
            extra: See `save`.
            gather: See `save`.

        Raises:
            Fenced: A later attempt has taken over. The checkpoint is not complete; end the process.
            TimeoutError: The receipt of a rank did not arrive in time.
            ValueError: See `save`; or a file has a name that cannot be saved, or no rank has a file.
        """
        paths = sorted(map(Path, files))
        for path in paths:
            self._require_savable(path.name)
        description = _Description(metrics or {}, is_finite, extra or {})
        return self._save(step, description, lambda checkpoint: self._file_parts(checkpoint, paths), gather)

    def _save(
        self,
        step: int,
        description: "_Description",
        parts: Callable[[Checkpoint], Iterator[tuple[str, bytes | memoryview]]],
        gather: Gather | None,
    ) -> Saved:
        if step < self._last_step:
            raise ValueError(f"step {step} cannot be saved after step {self._last_step}")
        checkpoint = Checkpoint(step=step, attempt=self.attempt)
        if self._saved is not None and self._saved.step == step:
            # A second call for the same step must not read the store: the answer could differ from rank to rank. Then
            # some ranks would return here, and the other ranks would wait for them in `gather`.
            return self._completed(checkpoint) if self._unwritten is not None else self._saved
        self._convention = None
        started_at = datetime.now(UTC)
        manifest = Manifest(
            job_id=self.job_id,
            checkpoint=checkpoint,
            started_at=started_at,
            created_at=started_at,
            world_size=self.world_size,
            shards=(),
            metrics={n: value if math.isfinite(value) else str(value) for n, value in description.metrics.items()},
            is_finite=description.is_finite,
            extra=description.extra,
        )
        _require_readable_size(manifest)
        self.check_fence()
        stored = self._storage.get(checkpoint.manifest_key)
        if stored is not None:
            self._require_own(checkpoint, stored)
            return self._remember(checkpoint, is_complete=True)
        record: JsonObject = {
            "startedAt": write_instant(started_at),
            "shards": self._put(checkpoint, parts(checkpoint)),
        }
        records = self._send_or_collect_receipts(checkpoint, record) if gather is None else gather(record)
        saved = self._remember(checkpoint, is_complete=False)
        if self.rank != 0:
            return saved
        self._unwritten = self._with_shards(manifest, list(records or ()))
        return self._completed(checkpoint)

    def _with_shards(self, manifest: Manifest, records: Sequence[JsonObject]) -> Manifest:
        """Return the manifest with the shards of all ranks.

        Raises:
            ValueError: The records do not form one checkpoint, or the manifest would be too large.
        """
        if len(records) != self.world_size:
            raise ValueError(f"rank 0 got the records of {len(records)} of {self.world_size} ranks")
        complete = replace(
            manifest,
            started_at=min(read_instant(record["startedAt"]) for record in records),
            created_at=datetime.now(UTC),
            shards=tuple(Shard.from_json(entry) for record in records for entry in record["shards"]),
        )
        _require_all_shards(complete)
        _require_readable_size(complete)
        return complete

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result of the attempt to `result/attempt=<n>.json`. Only rank 0 writes; the first result stays.

        Idempotent: yes, by a conditional write.

        Raises:
            Fenced: A later attempt has taken over, so this result does not count.
        """
        self.check_fence()
        if self.rank == 0:
            content = json.dumps(dict(result), indent=1).encode()
            self._storage.put_new(f"result/attempt={self.attempt}.json", content)

    def check_fence(self) -> None:
        """Check that no later attempt has taken over.

        Raises:
            Fenced: A later attempt has taken over.
        """
        fence = self._storage.read_fence().fence
        if fence is not None and fence.attempt > self.attempt:
            raise Fenced(self.attempt, fence.attempt)

    def should_stop(self) -> bool:
        """Whether this process received SIGTERM. Then finish the step, save, and exit with `EXIT_STOPPED`."""
        return self._stop_requested

    def ask_to_stop(self) -> None:
        """Make `should_stop` return true, as SIGTERM does."""
        self._stop_requested = True

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
        choice = self._configured_choice(self._resume_from)
        stored = self._storage.read_fence()
        if stored.fence is not None and stored.fence.attempt > self.attempt:
            raise Fenced(self.attempt, stored.fence.attempt)
        if self.rank == 0 and (stored.fence is None or stored.fence.attempt < self.attempt):
            # The caller set the variable without raising the fence, because it cannot mount the folder. Rank 0 raises
            # the fence with that resume point.
            self._storage.raise_fence(next_fence(stored.fence, self.attempt, choice), stored)
            self.check_fence()
        return choice

    def _configured_choice(self, key: str) -> ResumeChoice:
        if not key:
            return ResumeChoice(None, NONE, "EVENKEEL_RESUME_FROM is empty, so training starts at step 0.")
        checkpoint = checkpoint_of_key(key)
        if checkpoint is None:
            raise NotInAnAttemptError(f"EVENKEEL_RESUME_FROM={key!r} names no checkpoint")
        point = ResumePoint(checkpoint.attempt, checkpoint.step, key)
        grade = PROVED if key == checkpoint.manifest_key else COMPLETE_BY_CONVENTION
        return ResumeChoice(point, grade, f"EVENKEEL_RESUME_FROM names step {point.step} of attempt {point.attempt}.")

    def _await_pin(self) -> ResumeChoice:
        for _ in self._poll_until_timeout(f"rank 0 to pin the resume point of attempt {self.attempt}"):
            fence = self._storage.read_fence().fence
            if fence is not None and fence.attempt > self.attempt:
                raise Fenced(self.attempt, fence.attempt)
            if fence is not None and fence.attempt == self.attempt:
                return ResumeChoice(fence.pin.resume_from, fence.grade, fence.reason, fence.rejected)
        raise AssertionError("unreachable: polling ends in TimeoutError")

    def _shard_parts(
        self, checkpoint: Checkpoint, shard: bytes | bytearray | memoryview
    ) -> Iterator[tuple[str, memoryview]]:
        view = memoryview(shard).cast("B")
        size = self._part_bytes
        if len(view) <= size:
            yield checkpoint.shard_key(self.rank, self.world_size), view
            return
        for number, start in enumerate(range(0, len(view), size)):
            yield checkpoint.shard_key(self.rank, self.world_size, f"p{number:05d}.bin"), view[start : start + size]

    def _file_parts(self, checkpoint: Checkpoint, paths: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
        for path in paths:
            key = f"{checkpoint.folder}/{path.name}"
            is_whole = path.stat().st_size <= self._part_bytes
            with path.open("rb") as stream:
                for number in itertools.count():
                    content = stream.read(self._part_bytes)
                    if number and not content:
                        break
                    yield (key if is_whole else f"{key}.p{number:05d}"), content

    def _require_savable(self, name: str) -> None:
        if not is_file_name(name) or rank_and_world(name) or _PART.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot be saved: use letters, digits, '.', '_' and '-', and no name that this library gives "
                "itself (manifest.json, shard-0-of-2.bin, NAME.p00000)"
            )
        if name == CONVENTION_NAME and self.rank != 0:
            raise ValueError(f"rank {self.rank} has {name}, but only rank 0 may have it: make rank 0 the coordinator")

    def _put(self, checkpoint: Checkpoint, parts: Iterator[tuple[str, bytes | memoryview]]) -> list[JsonObject]:
        """Write the parts of this rank, and return their entries of the manifest."""
        written = []
        for key, content in parts:
            sha256 = hashlib.sha256(content).hexdigest()
            if key == checkpoint.convention_key:
                # This file makes a checkpoint complete by convention, so the files of all ranks come first.
                self._convention = bytes(content)
            else:
                self._storage.put(key, content, sha256)
            written.append(Shard(key, len(content), sha256).to_json())
        return written

    def _send_or_collect_receipts(self, checkpoint: Checkpoint, record: JsonObject) -> Sequence[JsonObject] | None:
        if self.rank != 0:
            content = json.dumps(record).encode()
            key = checkpoint.receipt_key(self.rank, self.world_size)
            self._storage.put(key, content, hashlib.sha256(content).hexdigest())
            return None
        records = [record]
        for rank in range(1, self.world_size):
            key = checkpoint.receipt_key(rank, self.world_size)
            for _ in self._poll_until_timeout(f"rank {rank} to save step {checkpoint.step}"):
                receipt = self._storage.get(key)
                if receipt is not None:
                    records.append(json.loads(receipt))
                    break
        return records

    def _poll_until_timeout(self, what: str) -> Iterator[None]:
        """Yield before each poll of the store, until the timeout.

        Raises:
            TimeoutError: the timeout is over. Its message ends with `what`: `rank 3 to save step 120`.
        """
        deadline = time.monotonic() + self._timeout_seconds
        pause_seconds = 0.05
        while True:
            yield
            if time.monotonic() >= deadline:
                raise TimeoutError(f"waited {self._timeout_seconds:.0f} s for {what}")
            time.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, 2.0)

    def _require_own(self, checkpoint: Checkpoint, content: bytes) -> None:
        owner = job_of_manifest(content)
        if self.job_id and owner and owner != self.job_id:
            raise ValueError(
                f"{checkpoint.manifest_key} under {self._storage.uri} belongs to job {owner}, "
                f"not to job {self.job_id}: "
                "use a separate checkpoint URI for each job"
            )

    def _completed(self, checkpoint: Checkpoint) -> Saved:
        """Write the manifest, once rank 0 has the records of all ranks."""
        assert self._unwritten is not None
        # Check the fence directly before the write. If it is raised in between, the manifest is too late and does not
        # count.
        self.check_fence()
        if self._convention is not None:
            sha256 = hashlib.sha256(self._convention).hexdigest()
            self._storage.put(checkpoint.convention_key, self._convention, sha256)
        self._storage.put_new(checkpoint.manifest_key, self._unwritten.to_bytes())
        return self._remember(checkpoint, is_complete=True)

    def _remember(self, checkpoint: Checkpoint, *, is_complete: bool) -> Saved:
        self._last_step = checkpoint.step
        self._unwritten = None
        self._saved = Saved(checkpoint.step, checkpoint.manifest_key, is_complete)
        return self._saved


def _require_all_shards(manifest: Manifest) -> None:
    """Check that the records belong to one step, with a shard of each rank and no shard twice."""
    step, size = manifest.checkpoint.step, manifest.world_size
    advice = "check RANK and WORLD_SIZE of each process"
    if not manifest.shards:
        raise ValueError(f"no rank has a file to save for step {step}")
    counts = Counter(shard.key for shard in manifest.shards)
    for key, count in counts.items():
        if not key.startswith(f"{manifest.checkpoint.folder}/"):
            raise ValueError(f"rank 0 saves step {step}, but a rank reported {key}: all ranks must save the same step")
        parsed = rank_and_world(key.rpartition("/")[2])
        if parsed is not None and parsed[1] != size:
            raise ValueError(f"rank 0 expects {size} ranks, but a rank reported {key}: {advice}")
        if count > 1:
            raise ValueError(f"{count} ranks reported {key}: {advice}")
    missing = rank_without_shard(manifest)
    if missing is not None:
        raise ValueError(f"no rank reported a shard of rank {missing} of {size} for step {step}: {advice}")


def _require_readable_size(manifest: Manifest) -> None:
    size = len(manifest.to_bytes())
    if size > LARGEST_MANIFEST_BYTES:
        raise ValueError(
            f"the manifest of step {manifest.checkpoint.step} would have {size} bytes; the limit is "
            f"{LARGEST_MANIFEST_BYTES}: keep `extra` small, and put large data into the shards"
        )


def attach(environ: Mapping[str, str] | None = None, *, timeout_seconds: float | None = None) -> Run:
    """Join the attempt that the environment describes. In the main thread, also handle SIGTERM.

    | variable | |
    |---|---|
    | `EVENKEEL_CHECKPOINT_URI` | `s3://bucket/prefix`, `file:///folder` or a path |
    | `EVENKEEL_ATTEMPT` | 1, 2, … |
    | `EVENKEEL_JOB_ID` | optional |
    | `EVENKEEL_RESUME_FROM` | key of the manifest to resume from; empty = step 0; absent = rank 0 chooses |
    | `EVENKEEL_DISTRUST_AFTER` | optional, RFC 3339: if rank 0 chooses, checkpoints that began later do not count |
    | `EVENKEEL_DISTRUST_REQUIREMENT` | optional, `PROOF` or `EVIDENCE`: requirement for all other checkpoints |
    | `EVENKEEL_DISTRUST_THROUGH` | optional: last attempt that the distrust concerns; absent = all attempts |
    | `EVENKEEL_ACCEPT_CONVENTION` | `1`: if rank 0 chooses, it accepts a checkpoint by DCP's convention |
    | `EVENKEEL_DAMAGED_CHECKPOINTS` | optional, `attempt/step,…`: checkpoints that an earlier attempt could not read |
    | `EVENKEEL_START_OVER` | `1`: if rank 0 chooses and no checkpoint is valid, training starts at step 0 |
    | `EVENKEEL_TIMEOUT_SECONDS` | optional: how long ranks wait for each other; 600 if absent |
    | `RANK`, `WORLD_SIZE` | used if a launcher set them: torchrun also sets `LOCAL_RANK` or `TORCHELASTIC_RUN_ID` |
    | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | used otherwise, if mpirun set both |
    | `JOB_COMPLETION_INDEX` (or `RANK`), `WORLD_SIZE` | used otherwise: values of the pod; 0 and 1 if absent |

    Args:
        environ: The environment variables; None = the variables of this process.
        timeout_seconds: How long ranks wait for each other in the store: for the resume point, and for all ranks to
            save. None stands for the value in the environment.

    Raises:
        NotInAnAttemptError: A variable is missing or not valid.
    """
    environment = os.environ if environ is None else environ
    uri = environment.get("EVENKEEL_CHECKPOINT_URI", "")
    if not uri:
        raise NotInAnAttemptError("EVENKEEL_CHECKPOINT_URI is not set; set it to the checkpoint location")
    rank, world_size = _rank_and_world_size(environment)
    default_timeout = _whole(environment, "EVENKEEL_TIMEOUT_SECONDS", 1, default=str(DEFAULT_TIMEOUT_SECONDS))
    try:
        storage = open_storage(uri)
        distrust, damaged = _distrust(environment), _damaged(environment)
    except (ValueError, UnreadableError) as error:
        raise NotInAnAttemptError(str(error)) from error
    run = Run(
        storage,
        job_id=environment.get("EVENKEEL_JOB_ID", ""),
        attempt=_whole(environment, "EVENKEEL_ATTEMPT", 1),
        rank=rank,
        world_size=world_size,
        resume_from=environment.get("EVENKEEL_RESUME_FROM"),
        distrust=distrust,
        accepts_convention=environment.get("EVENKEEL_ACCEPT_CONVENTION", "") == "1",
        may_start_over=environment.get("EVENKEEL_START_OVER", "") == "1",
        damaged=damaged,
        timeout_seconds=default_timeout if timeout_seconds is None else timeout_seconds,
    )
    if threading.current_thread() is threading.main_thread():
        _stop_on_signal(run)
    return run


def _damaged(environment: Mapping[str, str]) -> frozenset[Checkpoint]:
    """Return the checkpoints that earlier attempts could not read. The variable has the form `attempt/step,…`."""
    try:
        pairs = [
            checkpoint.split("/")
            for checkpoint in filter(None, environment.get("EVENKEEL_DAMAGED_CHECKPOINTS", "").split(","))
        ]
        return frozenset(Checkpoint(attempt=int(attempt), step=int(step)) for attempt, step in pairs)
    except ValueError as error:
        raise NotInAnAttemptError(
            f"EVENKEEL_DAMAGED_CHECKPOINTS={environment['EVENKEEL_DAMAGED_CHECKPOINTS']!r} cannot be read"
        ) from error


def _rank_and_world_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the rank of this process, and the number of ranks.

    All processes of a pod inherit the same JOB_COMPLETION_INDEX. So if a launcher starts several processes in a pod,
    the launcher's variables count. Without a launcher, RANK may come from another tool, so the index of the pod counts.
    """
    rank_name, size_name = _variable_names(environment)
    rank, world_size = _whole(environment, rank_name, 0, default="0"), _whole(environment, size_name, 1, default="1")
    if rank >= world_size:
        raise NotInAnAttemptError(f"{rank_name}={rank} must be less than {size_name}={world_size}")
    return rank, world_size


def _variable_names(environment: Mapping[str, str]) -> tuple[str, str]:
    # https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    launcher_signs = [
        f"{name}={environment[name]}" for name in ("LOCAL_RANK", "TORCHELASTIC_RUN_ID") if environment.get(name)
    ]
    if launcher_signs and environment.get("RANK"):
        return "RANK", "WORLD_SIZE"
    if launcher_signs and launcher_signs != [
        "LOCAL_RANK=0"
    ]:  # a job may set LOCAL_RANK=0 itself, for the only process of its pod
        raise NotInAnAttemptError(
            f"{launcher_signs[0]} shows that a launcher started this process, but RANK is not set"
        )
    # https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    if environment.get("OMPI_COMM_WORLD_RANK") and environment.get("OMPI_COMM_WORLD_SIZE"):
        return "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
    return ("JOB_COMPLETION_INDEX" if environment.get("JOB_COMPLETION_INDEX") else "RANK"), "WORLD_SIZE"


def _distrust(environment: Mapping[str, str]) -> Distrust | None:
    after, requirement = (
        environment.get("EVENKEEL_DISTRUST_AFTER", ""),
        environment.get("EVENKEEL_DISTRUST_REQUIREMENT") or CONVENTION,
    )
    if requirement not in REQUIREMENTS:
        raise NotInAnAttemptError(
            f"EVENKEEL_DISTRUST_REQUIREMENT={requirement!r} must be one of {', '.join(REQUIREMENTS)}"
        )
    if not after and requirement == CONVENTION:
        return None
    through = (
        _whole(environment, "EVENKEEL_DISTRUST_THROUGH", 1) if environment.get("EVENKEEL_DISTRUST_THROUGH") else None
    )
    return Distrust(read_instant(after) if after else None, through, requirement)


def _stop_on_signal(run: Run) -> None:
    main_pid = os.getpid()

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        if os.getpid() == main_pid:
            run.ask_to_stop()
        else:  # a forked child that received SIGTERM before it removed the inherited handler
            remove_handler()
            os.kill(os.getpid(), signal.SIGTERM)

    def remove_handler() -> None:
        if signal.getsignal(signal.SIGTERM) is on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, on_signal)
    # Forked children, such as workers of a data loader, do not train. SIGTERM must end them at once.
    os.register_at_fork(after_in_child=remove_handler)


def _whole(environment: Mapping[str, str], name: str, least: int, default: str = "") -> int:
    text = environment.get(name) or default
    if not text:
        raise NotInAnAttemptError(f"{name} is not set")
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise NotInAnAttemptError(f"{name}={text!r} is not a whole number of at least {least}")
    return int(text)
