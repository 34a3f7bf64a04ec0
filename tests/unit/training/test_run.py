"""A training script saves checkpoints and resumes from them."""

import contextlib
import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from evenkeel import training
from evenkeel.training.layout import Checkpoint
from evenkeel.training.resume import Distrust, choose, pin
from evenkeel.training.run import LARGEST_MANIFEST_BYTES, Run
from evenkeel.training.storage import Storage, StoredObject, open_storage


def a_run(uri: str, attempt: int = 1, **changes: Any) -> Run:
    document: dict[str, Any] = {"job_id": "job-rings", "attempt": attempt, "timeout_seconds": 20, **changes}
    return Run(open_storage(uri), **document)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def chosen_step(uri: str, attempt: int) -> int | None:
    storage = open_storage(uri)
    point = choose(storage, attempt, storage.read_fence().fence).resume_from
    return None if point is None else point.step


def run_in_threads(runs: Sequence[Run], action: Callable[[Run], Any]) -> list[Any]:
    """Call `action` for every rank in a separate thread, and return the results."""
    with ThreadPoolExecutor(len(runs)) as pool:
        return [futures.result(timeout=30) for futures in [pool.submit(action, run) for run in runs]]


class _RecordingStorage:
    """A store that records for which checkpoints checksums were read, and for which only names and sizes."""

    def __init__(self, uri: str) -> None:
        self._real = open_storage(uri)
        self.hashed: list[int] = []
        self.listed: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def examine(self, checkpoint: Checkpoint, *, checksums: bool = True) -> Mapping[str, StoredObject]:
        (self.hashed if checksums else self.listed).append(checkpoint.step)
        return self._real.examine(checkpoint, checksums=checksums)


def test_proof_lists_and_hashes_as_few_checkpoints_as_possible(uri: str) -> None:
    run = a_run(uri)
    run.save(10, b"before the fault")
    after = datetime.now(UTC)
    run.save(20, b"after the fault")
    storage = open_storage(uri)
    for name in ("attempt=1/step=000000030/manifest.json", "attempt=1/step=000000040/shard-0-of-1.bin"):
        storage.put(name, b"{", _sha256(b"{"))  # a truncated manifest, and a checkpoint without a manifest
    for name in (".metadata", "__0_0.distcp"):
        storage.put(f"attempt=1/step=000000050/{name}", b"", _sha256(b""))
    reads = _RecordingStorage(uri)
    store: Storage = reads

    choice = choose(store, 2, None, Distrust(after))

    assert [(document["step"], document["code"]) for document in choice.rejected] == [
        (50, "SHARD_SIZE"),
        (40, "MANIFEST_MISSING"),
        (30, "MANIFEST_UNREADABLE"),
        (20, "DISTRUSTED"),
    ]
    assert choice.resume_from is not None
    assert (choice.resume_from.step, choice.grade) == (10, "PROVED")
    assert (reads.listed, reads.hashed) == ([50, 40], [10])


def test_checkpoint_of_another_job_is_rejected(uri: str) -> None:
    a_run(uri, job_id="job-rings").save(10, b"state")
    a_run(uri, 2, job_id="job-moons").save(20, b"another's")

    with pytest.raises(training.Unproven, match=r"step 20 of attempt 2 \(MANIFEST_UNREADABLE\), step 10 of attempt 1"):
        a_run(uri, 3, job_id="job-stars").resume()
    resume = a_run(uri, 3, job_id="job-rings").resume()

    assert resume is not None
    assert resume.step == 10
    fence = open_storage(uri).read_fence().fence
    assert fence is not None
    (ignored_types,) = [document["detail"] for document in fence.rejected]
    assert ignored_types == "The manifest cannot be used: it belongs to job job-moons, not to job job-rings."


def test_checkpoint_is_accepted_if_either_job_is_unknown(uri: str) -> None:
    a_run(uri, job_id="").save(10, b"state")

    with_job_id = a_run(uri, 2, job_id="job-rings").resume()
    without_job_id = a_run(uri, 3, job_id="").resume()

    assert [point and point.step for point in (with_job_id, without_job_id)] == [10, 10]


def test_step_of_another_job_does_not_count_as_saved(uri: str) -> None:
    a_run(uri, job_id="job-moons").save(10, b"another's")

    with pytest.raises(
        ValueError, match="belongs to job job-moons, not to job job-rings: use a separate checkpoint URI"
    ):
        a_run(uri, job_id="job-rings").save(10, b"state")


def test_first_attempt_starts_from_the_beginning(uri: str) -> None:
    assert a_run(uri).resume() is None


def test_next_attempt_resumes_from_the_saved_step(uri: str) -> None:
    first = a_run(uri)
    first.resume()
    first.save(10, b"older")
    saved = first.save(20, b"newer", metrics={"loss": 0.25}, extra={"seed": 7})

    resume = a_run(uri, 2).resume()

    assert saved == training.Saved(20, "attempt=1/step=000000020/manifest.json", is_complete=True)
    assert resume is not None
    assert (resume.step, resume.attempt, resume.world_size, resume.grade) == (20, 1, 1, "PROVED")
    assert (resume.shard(0), resume.metrics, resume.extra) == (b"newer", {"loss": 0.25}, {"seed": 7})
    assert resume.uri == f"{uri}/attempt=1/step=000000020"


def test_repeated_resume_returns_the_same_point(uri: str) -> None:
    a_run(uri).save(10, b"state")
    first = a_run(uri, 2).resume()
    a_run(uri, 2).save(20, b"further")

    repeated = a_run(uri, 2).resume()

    assert first is not None
    assert repeated is not None
    assert (first.step, repeated.step) == (10, 10)


def test_step_saved_twice_is_unchanged(uri: str) -> None:
    run = a_run(uri)
    first = run.save(10, b"state")
    manifest = open_storage(uri).get(first.manifest)

    second = run.save(10, b"not the same bytes")

    assert second == first
    assert open_storage(uri).get(first.manifest) == manifest
    resume = a_run(uri, 2).resume()
    assert resume is not None
    assert resume.shard(0) == b"state"


def test_steps_are_saved_in_rising_order(uri: str) -> None:
    run = a_run(uri)
    run.save(20, b"state")

    with pytest.raises(ValueError, match="step 10 cannot be saved after step 20"):
        run.save(10, b"state")


def test_rank_0_waits_for_the_receipt_of_every_rank(uri: str) -> None:
    ranks = [a_run(uri, rank=rank, world_size=3) for rank in range(3)]

    outcomes = run_in_threads(ranks, lambda run: run.save(10, f"rank {run.rank}".encode()))

    assert [saved.is_complete for saved in outcomes] == [True, False, False]
    resume = a_run(uri, 2).resume()
    assert resume is not None
    assert list(resume.shards()) == [b"rank 0", b"rank 1", b"rank 2"]


def test_ranks_can_exchange_their_shard_records_by_a_collective(uri: str) -> None:
    barrier = threading.Barrier(2)
    records_by_rank: dict[int, Any] = {}

    def gather_for(rank: int) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
        def gather(record: dict[str, Any]) -> list[dict[str, Any]]:
            records_by_rank[rank] = json.loads(json.dumps(record))
            barrier.wait(timeout=20)
            return [records_by_rank[0], records_by_rank[1]]

        return gather

    ranks = [a_run(uri, rank=rank, world_size=2) for rank in range(2)]
    run_in_threads(ranks, lambda run: run.save(10, f"rank {run.rank}".encode(), gather=gather_for(run.rank)))

    resume = a_run(uri, 2).resume()
    assert resume is not None
    assert list(resume.shards()) == [b"rank 0", b"rank 1"]
    assert not any("receipt" in key for key in open_storage(uri).examine(open_storage(uri).checkpoints()[0]))


def test_checkpoint_without_a_shard_of_a_rank_is_incomplete(uri: str) -> None:
    a_run(uri).save(10, b"whole")
    run_without_peer = a_run(uri, rank=0, world_size=2, timeout_seconds=0)

    with pytest.raises(TimeoutError, match="rank 1 to save step 20"):
        run_without_peer.save(20, b"half")

    assert chosen_step(uri, 2) == 10


def test_collective_without_a_rank_completes_no_checkpoint(uri: str) -> None:
    with pytest.raises(ValueError, match="1 of 2 ranks"):
        a_run(uri, rank=0, world_size=2).save(10, b"half", gather=lambda record: [record])

    assert chosen_step(uri, 2) is None


def a_record(step: int, rank: int, world_size: int) -> dict[str, Any]:
    """Return the record that a rank sends to rank 0."""
    key = Checkpoint(step=step, attempt=1).shard_key(rank, world_size)
    shard = {"key": key, "sizeBytes": 5, "sha256": _sha256(b"state")}
    return {"startedAt": "2026-11-03T10:00:00.000000Z", "shards": [shard]}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (a_record(10, 0, 3), "2 ranks reported .*shard-0-of-3.bin: check RANK and WORLD_SIZE"),
        (a_record(10, 2, 3) | {"shards": []}, "no rank reported a shard of rank 1 of 3 for step 10"),
        (
            a_record(11, 1, 3),
            "rank 0 saves step 10, but a rank reported .*step=000000011/shard-1-of-3.bin: all ranks must save the same",
        ),
        (a_record(10, 1, 8), "rank 0 expects 3 ranks, but a rank reported .*shard-1-of-8.bin"),
    ],
)
def test_inconsistent_records_complete_no_checkpoint(uri: str, other: dict[str, Any], message: str) -> None:
    run = a_run(uri, rank=0, world_size=3)

    with pytest.raises(ValueError, match=message):
        run.save(10, b"state", gather=lambda record: [record, other, a_record(10, 2, 3)])

    assert open_storage(uri).get("attempt=1/step=000000010/manifest.json") is None


def test_oversized_extra_metadata_is_refused_before_any_write(uri: str) -> None:
    run = a_run(uri)

    with pytest.raises(ValueError, match=r"manifest of step 10 would have \d+ bytes; the limit is 16777216"):
        run.save(10, b"state", extra={"order": "x" * LARGEST_MANIFEST_BYTES})

    assert open_storage(uri).checkpoints() == []


def test_oversized_manifest_completes_no_checkpoint(tmp_path: Path) -> None:
    run = a_run(str(tmp_path))
    entry = a_record(10, 0, 1)["shards"][0]
    names = (f"attempt=1/step=000000010/shard-0-of-1.p{number:05d}.bin" for number in range(100_000))
    record = a_record(10, 0, 1) | {"shards": [entry | {"key": name} for name in names]}

    with pytest.raises(ValueError, match="the limit is"):
        run.save(10, b"state", gather=lambda _: [record])

    assert open_storage(str(tmp_path)).get("attempt=1/step=000000010/manifest.json") is None


class _Collective:
    """An all-gather of two ranks, as in a process group: each caller waits for the other."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2)
        self._records: dict[int, dict[str, Any]] = {}

    def of(self, rank: int) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
        def gather(record: dict[str, Any]) -> list[dict[str, Any]]:
            self._records[rank] = record
            self._barrier.wait(timeout=5)
            return [self._records[0], self._records[1]]

        return gather


class _StoreWithLateManifest:
    """A store that writes rank 0's manifest only after the other rank has looked for it."""

    def __init__(self, uri: str) -> None:
        self._real = open_storage(uri)
        self.failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def put_new(self, key: str, content: bytes) -> bool:
        if self.failures:
            self.failures -= 1
            raise OSError("the store is away for a moment")
        return self._real.put_new(key, content)

    def get(self, key: str) -> bytes | None:
        return None if key.endswith("manifest.json") else self._real.get(key)


def test_step_saved_twice_with_a_collective_hangs_no_rank(uri: str) -> None:
    collective = _Collective()
    late_store: Storage = _StoreWithLateManifest(uri)
    rank_0 = a_run(uri, rank=0, world_size=2)
    rank_1 = Run(late_store, job_id="job-rings", attempt=1, rank=1, world_size=2)

    def save(run: Run) -> training.Saved:
        return run.save(10, f"rank {run.rank}".encode(), gather=collective.of(run.rank))

    first = run_in_threads([rank_0, rank_1], save)
    second = run_in_threads([rank_0, rank_1], save)

    assert second == first
    assert chosen_step(uri, 2) == 10


def test_repeated_save_writes_the_manifest_that_failed_before(uri: str) -> None:
    collective = _Collective()
    failing = _StoreWithLateManifest(uri)
    failing.failures = 1
    store: Storage = failing
    rank_0 = Run(store, job_id="job-rings", attempt=1, rank=0, world_size=2)
    rank_1 = a_run(uri, rank=1, world_size=2)

    def save(run: Run) -> training.Saved | None:
        with contextlib.suppress(OSError):
            return run.save(10, f"rank {run.rank}".encode(), gather=collective.of(run.rank))
        return None

    first = run_in_threads([rank_0, rank_1], save)
    assert first[0] is None
    assert chosen_step(uri, 2) is None
    second = run_in_threads([rank_0, rank_1], save)

    assert [second[0].is_complete, second[1]] == [True, first[1]]
    assert chosen_step(uri, 2) == 10


def test_manifest_that_failed_is_not_written_for_another_step(uri: str) -> None:
    failing = _StoreWithLateManifest(uri)
    failing.failures = 1
    store: Storage = failing
    run = Run(store, job_id="job-rings", attempt=1)
    with pytest.raises(OSError, match="away"):
        run.save(10, b"state")
    with pytest.raises(ValueError, match="0 of 1 ranks"):
        run.save(20, b"state", gather=lambda _: [])

    run.save(20, b"state")

    assert open_storage(uri).get("attempt=1/step=000000020/manifest.json") is None


def test_resumed_step_does_not_count_as_saved(uri: str) -> None:
    a_run(uri, 1).save(10, b"state")
    second = a_run(uri, 2)
    second.resume()

    saved = second.save(10, b"state again")

    assert saved.manifest == "attempt=2/step=000000010/manifest.json"
    assert open_storage(uri).get(saved.manifest) is not None


def test_older_attempt_ends_at_its_next_save(uri: str) -> None:
    older_run = a_run(uri)
    older_run.resume()
    older_run.save(10, b"old")
    new = a_run(uri, 2)
    new.resume()

    with pytest.raises(training.Fenced, match="attempt 1 is fenced: attempt 2"):
        older_run.save(20, b"late")

    new.save(15, b"new")
    assert chosen_step(uri, 3) == 15


def test_save_writes_no_manifest_if_fenced_meanwhile(uri: str) -> None:
    older_run = a_run(uri)

    def fence_during_gather(record: dict[str, Any]) -> list[dict[str, Any]]:
        pin(open_storage(uri), 2)
        return [record]

    with pytest.raises(training.Fenced):
        older_run.save(10, b"late", gather=fence_during_gather)

    assert open_storage(uri).get("attempt=1/step=000000010/manifest.json") is None


class _StoreFencedBeforeTheManifest:
    """A store where a later attempt raises the fence after its last check and before the manifest is written."""

    def __init__(self, uri: str) -> None:
        self._real = open_storage(uri)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def put_new(self, key: str, content: bytes) -> bool:
        pin(self._real, 2)
        return self._real.put_new(key, content)


def test_manifest_written_after_the_fence_never_counts(uri: str) -> None:
    late_store: Storage = _StoreFencedBeforeTheManifest(uri)
    Run(late_store, job_id="job-rings", attempt=1).save(10, b"late")

    assert open_storage(uri).get("attempt=1/step=000000010/manifest.json") is not None
    assert chosen_step(uri, 3) is None


def test_fenced_attempt_does_not_start(uri: str) -> None:
    pin(open_storage(uri), 2)

    with pytest.raises(training.Fenced):
        a_run(uri, 1).resume()
    with pytest.raises(training.Fenced):
        a_run(uri, 1, resume_from="").resume()
    with pytest.raises(training.Fenced):
        a_run(uri, 1, rank=1, world_size=2).resume()


def test_attempt_resumes_from_the_resume_point_in_its_environment(uri: str) -> None:
    first = a_run(uri)
    first.save(10, b"older")
    first.save(20, b"newer")

    resume = a_run(uri, 2, resume_from="attempt=1/step=000000010/manifest.json").resume()

    assert resume is not None
    assert (resume.step, resume.shard(0)) == (10, b"older")


def test_attempt_with_an_empty_resume_point_starts_from_the_beginning(uri: str) -> None:
    a_run(uri).save(10, b"state")

    assert a_run(uri, 2, resume_from="").resume() is None


def test_attempt_with_a_given_resume_point_fences_older_attempts(uri: str) -> None:
    older_run = a_run(uri)
    older_run.save(10, b"state")

    a_run(uri, 2, resume_from="attempt=1/step=000000010/manifest.json").resume()

    with pytest.raises(training.Fenced):
        older_run.save(20, b"late")


@pytest.mark.parametrize("key", ["somewhere", "../attempt=1/step=000000010/manifest.json", "attempt=1/step=10/x"])
def test_invalid_checkpoint_key_is_refused(uri: str, key: str) -> None:
    with pytest.raises(training.NotInAnAttemptError, match="names no checkpoint"):
        a_run(uri, 2, resume_from=key).resume()


def test_missing_checkpoint_is_reported_as_missing(uri: str) -> None:
    with pytest.raises(training.DamagedError, match="not in the store"):
        a_run(uri, 2, resume_from="attempt=1/step=000000010/manifest.json").resume()


def test_every_rank_resumes_from_the_pin_of_rank_0(uri: str) -> None:
    a_run(uri).save(10, b"state")
    ranks = [a_run(uri, 2, rank=rank, world_size=3) for rank in range(3)]

    resumes = run_in_threads(ranks, lambda run: run.resume())

    assert [resume.step for resume in resumes] == [10, 10, 10]


def test_rank_times_out_if_rank_0_pins_nothing(uri: str) -> None:
    with pytest.raises(TimeoutError, match="rank 0 to pin"):
        a_run(uri, rank=1, world_size=2, timeout_seconds=0).resume()


def test_large_shard_is_written_in_parts_and_read_as_one(uri: str) -> None:
    content = bytes(range(256)) * 4
    a_run(uri, part_bytes=100).save(10, content)

    resume = a_run(uri, 2).resume()

    assert resume is not None
    assert resume.shard(0) == content
    names = [key.rpartition("/")[2] for key in open_storage(uri).examine(open_storage(uri).checkpoints()[0])]
    assert sorted(names)[1:3] == ["shard-0-of-1.p00000.bin", "shard-0-of-1.p00001.bin"]
    assert len(names) == 12


def written_by_dcp(folder: Path, rank: int, content: bytes) -> list[Path]:
    """Return the files that PyTorch's DCP writes on a rank."""
    files = {f"__{rank}_0.distcp": content} | ({".metadata": b"index"} if rank == 0 else {})
    paths = [folder / str(rank) / name for name in files]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[path.name])
    return paths


def test_dcp_files_of_all_ranks_form_one_proven_checkpoint(uri: str, tmp_path: Path) -> None:
    contents = [b"", bytes(range(256))]
    ranks = [a_run(uri, rank=rank, world_size=2, part_bytes=100) for rank in range(2)]
    run_in_threads(ranks, lambda run: run.save_files(10, written_by_dcp(tmp_path, run.rank, contents[run.rank])))

    resume = a_run(uri, 2).resume()
    assert resume is not None
    resume.download(tmp_path / "resumed")
    resume.download(tmp_path / "resumed")

    assert (resume.grade, resume.world_size) == ("PROVED", 2)
    assert {path.name: path.read_bytes() for path in (tmp_path / "resumed").iterdir()} == {
        "__0_0.distcp": contents[0],
        "__1_0.distcp": contents[1],
        ".metadata": b"index",
    }
    assert "__1_0.distcp.p00002" in {path.rpartition("/")[2] for path in open_storage(uri).examine(Checkpoint(10, 1))}


def test_checkpoint_files_are_incomplete_until_every_rank_has_saved(uri: str, tmp_path: Path) -> None:
    run = a_run(uri, world_size=2, timeout_seconds=0)

    with pytest.raises(TimeoutError, match="rank 1 to save step 10"):
        run.save_files(10, written_by_dcp(tmp_path, 0, b"weights"))

    assert a_run(uri, 2, accepts_convention=True).resume() is None
    other_run = a_run(uri, 3, rank=0, world_size=1)
    other_run.save(20, b"a step without files of DCP")
    assert "attempt=3/step=000000020/.metadata" not in open_storage(uri).examine(Checkpoint(20, 3))


def test_metadata_of_failed_save_is_not_in_next_save(uri: str, tmp_path: Path) -> None:
    run = a_run(uri)

    def fail_to_gather(_: dict[str, Any]) -> list[dict[str, Any]]:
        raise ConnectionError("a peer is gone")

    with pytest.raises(ConnectionError):
        run.save_files(10, written_by_dcp(tmp_path, 0, b"weights"), gather=fail_to_gather)
    run.save(20, b"weights")

    assert [key.rpartition("/")[2] for key in open_storage(uri).examine(Checkpoint(20, 1))] == [
        "manifest.json",
        "shard-0-of-1.bin",
    ]


def test_downloaded_bytes_are_compared_with_the_manifest(uri: str, tmp_path: Path) -> None:
    a_run(uri).save_files(10, written_by_dcp(tmp_path, 0, b"weights"))
    resume = a_run(uri, 2).resume()
    assert resume is not None
    open_storage(uri).put("attempt=1/step=000000010/__0_0.distcp", b"weighty", _sha256(b"weighty"))

    with pytest.raises(training.DamagedError, match=r"__0_0.distcp has 7 bytes, and their checksum differs"):
        resume.download(tmp_path / "resumed")


@pytest.mark.parametrize(
    ("rank", "name", "message"),
    [
        (0, "manifest.json", "'manifest.json' cannot be saved"),
        (0, "shard-0-of-2.bin", "'shard-0-of-2.bin' cannot be saved"),
        (0, "weights.p00001", "'weights.p00001' cannot be saved"),
        (0, "a b", "'a b' cannot be saved"),
        (1, ".metadata", "rank 1 has .metadata, but only rank 0 may have it"),
    ],
)
def test_file_with_an_unsuitable_name_is_refused(rank: int, name: str, message: str, uri: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"weights")

    with pytest.raises(ValueError, match=message):
        a_run(uri, rank=rank, world_size=2).save_files(10, [tmp_path / name])

    assert open_storage(uri).checkpoints() == []


def test_checkpoint_without_files_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="no rank has a file to save for step 10"):
        a_run(uri).save_files(10, [])


@pytest.mark.parametrize("content", [b"", bytearray(b"state"), memoryview(b"state")])
def test_shard_may_contain_any_bytes(uri: str, content: bytes) -> None:
    a_run(uri).save(10, content)

    resume = a_run(uri, 2).resume()

    assert resume is not None
    assert resume.shard(0) == bytes(content)


def test_reading_detects_a_shard_damaged_after_its_proof(uri: str) -> None:
    a_run(uri).save(10, b"state")
    resume = a_run(uri, 2).resume()
    assert resume is not None
    storage = open_storage(uri)
    storage.put("attempt=1/step=000000010/shard-0-of-1.bin", b"rotte", _sha256(b"rotte"))

    with pytest.raises(training.DamagedError, match="5 bytes, and their checksum differs"):
        resume.shard(0)


def test_reading_a_rank_that_saved_nothing_is_no_damage(uri: str) -> None:
    ranks = [a_run(uri, rank=rank, world_size=2) for rank in range(2)]
    run_in_threads(ranks, lambda run: run.save(10, f"rank {run.rank}".encode()))
    resume = a_run(uri, 2, rank=0, world_size=4).resume()
    assert resume is not None

    for rank in (2, -1):
        with pytest.raises(
            training.NotInCheckpointError, match=rf"written by 2 ranks, .* rank {rank}. Read the shards of ranks 0"
        ):
            resume.shard(rank)

    assert not issubclass(training.NotInCheckpointError, training.DamagedError)
    assert list(resume.shards()) == [b"rank 0", b"rank 1"]


def test_shard_without_a_rank_is_not_reported_as_damage(uri: str) -> None:
    record = a_record(10, 0, 1)
    record["shards"][0]["key"] = "attempt=1/step=000000010/weights.safetensors"
    open_storage(uri).put(record["shards"][0]["key"], b"state", _sha256(b"state"))
    a_run(uri).save(10, b"", gather=lambda _: [record])

    resume = a_run(uri, 2).resume()

    assert resume is not None
    with pytest.raises(training.NotInCheckpointError, match="lists no files by rank: read them from"):
        resume.shard(0)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_diverged_checkpoint_is_saved_but_never_resumed(uri: str, loss: float) -> None:
    run = a_run(uri)
    run.save(10, b"good", metrics={"loss": 1.0})
    run.save(20, b"diverged", metrics={"loss": loss})

    assert chosen_step(uri, 2) == 10


def test_only_rank_0_writes_the_result_and_only_once(uri: str) -> None:
    a_run(uri, rank=1, world_size=2).finish({"digest": "of rank 1"})
    a_run(uri, rank=0, world_size=2).finish({"digest": "first"})
    a_run(uri, rank=0, world_size=2).finish({"digest": "second"})

    assert json.loads(open_storage(uri).get("result/attempt=1.json") or b"") == {"digest": "first"}


def test_fenced_attempt_publishes_no_result(uri: str) -> None:
    pin(open_storage(uri), 2)

    with pytest.raises(training.Fenced):
        a_run(uri).finish({"digest": "late"})

    assert open_storage(uri).get("result/attempt=1.json") is None


def test_rank_0_logs_its_pin(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(uri, 1).save(10, b"state", metrics={"loss": 0.5})

    for attempt, manifest_name in ((2, None), (3, "attempt=1/step=000000010/manifest.json")):
        a_run(uri, attempt, resume_from=manifest_name).resume()

    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("evenkeel resume-point ")]
    document = json.loads(line.removeprefix("evenkeel resume-point "))
    assert (document["attempt"], document["resumeFrom"]["step"], document["grade"]) == (2, 10, "PROVED")
    assert document["beganAt"]


@pytest.mark.usefixtures("sigterm")
def test_rank_0_skips_checkpoints_known_as_damaged(tmp_path: Path) -> None:
    for step in (10, 20):
        a_run(str(tmp_path), 1).save(step, b"state")
    variables = {"EVENKEEL_JOB_ID": "job-rings", "EVENKEEL_CHECKPOINT_URI": str(tmp_path)}

    second = training.attach({**variables, "EVENKEEL_ATTEMPT": "2", "EVENKEEL_DAMAGED_CHECKPOINTS": "1/20"}).resume()

    assert second is not None
    assert second.step == 10
    with pytest.raises(training.Unproven, match="DAMAGED"):
        training.attach({**variables, "EVENKEEL_ATTEMPT": "3", "EVENKEEL_DAMAGED_CHECKPOINTS": "1/20,1/10"}).resume()
    with pytest.raises(training.NotInAnAttemptError, match="EVENKEEL_DAMAGED_CHECKPOINTS='1'"):
        training.attach({**variables, "EVENKEEL_ATTEMPT": "2", "EVENKEEL_DAMAGED_CHECKPOINTS": "1"})


def test_checkpoint_by_convention_is_returned_as_a_folder(uri: str) -> None:
    storage = open_storage(uri)
    for name in (".metadata", "__0_0.distcp"):
        storage.put(f"attempt=1/step=000000010/{name}", b"dcp", _sha256(b"dcp"))

    resume = a_run(uri, 2, accepts_convention=True).resume()

    assert resume is not None
    assert (resume.step, resume.grade) == (10, "COMPLETE_BY_CONVENTION")
    assert resume.uri == f"{uri}/attempt=1/step=000000010"
    for name in ("world_size", "metrics", "extra"):
        with pytest.raises(
            training.NotInCheckpointError,
            match=r"no manifest, .* Load it with DCP: pass .*step=000000010 as checkpoint_id",
        ):
            getattr(resume, name)
    with pytest.raises(training.NotInCheckpointError, match="no manifest"):
        resume.shard(0)
    with pytest.raises(training.NotInCheckpointError, match="no manifest"):
        resume.shards()


@pytest.fixture
def sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigterm")
def test_sigterm_requests_a_stop(tmp_path: Path) -> None:
    run = training.attach({"EVENKEEL_CHECKPOINT_URI": str(tmp_path), "EVENKEEL_ATTEMPT": "1"})
    assert not run.should_stop()

    signal.raise_signal(signal.SIGTERM)

    assert run.should_stop()


FORKING_SCRIPT = """
import multiprocessing, os, signal, sys, time
from evenkeel import training

run = training.attach({"EVENKEEL_CHECKPOINT_URI": sys.argv[1], "EVENKEEL_ATTEMPT": "1"})
inherited = signal.getsignal(signal.SIGTERM)

def work(kind, ready):
    if kind == "loader":
        print("default", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
    if kind == "early":
        signal.signal(signal.SIGTERM, inherited)
    if kind == "own":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    ready.set()
    time.sleep(30)

fork = multiprocessing.get_context("fork")
for kind in ("loader", "early", "own"):
    ready = fork.Event()
    worker = fork.Process(target=work, args=(kind, ready), daemon=True)
    worker.start()
    ready.wait(20)
    worker.terminate()
    worker.join(5)
    print(kind, worker.exitcode, flush=True)
    worker.kill()
print("asked", run.should_stop())
signal.raise_signal(signal.SIGTERM)
print("asked", run.should_stop())
"""


def test_sigterm_ends_forked_children_and_requests_a_stop(tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", FORKING_SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )

    assert completed.stdout.splitlines() == [
        "default True",
        "loader -15",
        "early -15",
        "own 7",
        "asked False",
        "asked True",
    ], completed.stderr


@pytest.mark.usefixtures("sigterm")
def test_environment_variables_configure_a_training_run(tmp_path: Path) -> None:
    run = training.attach(
        {
            "EVENKEEL_JOB_ID": "job-rings",
            "EVENKEEL_ATTEMPT": "3",
            "EVENKEEL_CHECKPOINT_URI": f"file://{tmp_path}",
            "EVENKEEL_RESUME_FROM": "",
            "WORLD_SIZE": "4",
            "JOB_COMPLETION_INDEX": "2",
        }
    )

    assert (run.job_id, run.attempt, run.world_size, run.rank) == ("job-rings", 3, 4, 2)
    assert run.checkpoint_uri == f"file://{tmp_path}"
    assert run.resume() is None


POD = {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2"}
"""Variables of the second of two pods, before a launcher starts a process in it."""
ELASTIC = {"LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("environ", "rank_and_world"),
    [
        pytest.param({}, (0, 1), id="a laptop"),
        pytest.param(POD, (1, 2), id="a pod"),
        pytest.param({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2), id="a pod of another operator"),
        pytest.param(POD | {"RANK": "0"}, (1, 2), id="a rank that no launcher vouches for"),
        pytest.param(
            POD | ELASTIC | {"RANK": "6", "LOCAL_RANK": "2", "WORLD_SIZE": "8"}, (6, 8), id="a worker of torchrun"
        ),
        pytest.param(
            POD | ELASTIC | {"RANK": "7", "LOCAL_RANK": "0", "WORLD_SIZE": "8"}, (7, 8), id="with --virtual-local-rank"
        ),
        pytest.param(POD | {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, (3, 4), id="another launcher"),
        pytest.param(POD | {"LOCAL_RANK": "0"}, (1, 2), id="the only process of its pod"),
        pytest.param(POD | {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}, (5, 8), id="mpirun"),
        pytest.param(
            POD | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
            | {"RANK": "6", "LOCAL_RANK": "2", "WORLD_SIZE": "8"},
            (6, 8),
            id="torchrun, itself started by mpirun",
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("sigterm")
def test_rank_is_read_from_the_launcher_or_the_pod(
    environ: dict[str, str], rank_and_world: tuple[int, int], tmp_path: Path
) -> None:
    run = training.attach({"EVENKEEL_CHECKPOINT_URI": str(tmp_path), "EVENKEEL_ATTEMPT": "1"} | environ)

    assert (run.rank, run.world_size) == rank_and_world


@pytest.mark.usefixtures("sigterm")
def test_workers_of_two_pods_write_one_checkpoint(tmp_path: Path) -> None:
    variables = {"EVENKEEL_CHECKPOINT_URI": str(tmp_path), "EVENKEEL_ATTEMPT": "1", "EVENKEEL_TIMEOUT_SECONDS": "5"}
    workers = [
        training.attach(
            variables
            | {"TORCHELASTIC_RUN_ID": "none"}
            | {"JOB_COMPLETION_INDEX": str(rank // 2), "LOCAL_RANK": str(rank % 2)}
            | {"RANK": str(rank), "WORLD_SIZE": "4"}
        )
        for rank in range(4)
    ]

    assert run_in_threads(workers, lambda run: run.resume()) == [None] * 4
    saved = run_in_threads(workers, lambda run: run.save(10, f"rank {run.rank}".encode()))

    assert [saved_rank.is_complete for saved_rank in saved] == [True, False, False, False]
    resume = a_run(str(tmp_path), 2).resume()
    assert resume is not None
    assert list(resume.shards()) == [b"rank 0", b"rank 1", b"rank 2", b"rank 3"]


@pytest.mark.usefixtures("sigterm")
def test_attach_works_outside_the_main_thread(tmp_path: Path) -> None:
    variables = {"EVENKEEL_CHECKPOINT_URI": str(tmp_path), "EVENKEEL_ATTEMPT": "1"}
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(training.attach, variables).result(timeout=10)

    assert not run.should_stop()


@pytest.mark.parametrize(("timeout", "environ", "waited"), [(None, "1", "1 s"), (0.5, "600", "0 s"), (0, None, "0 s")])
@pytest.mark.usefixtures("sigterm")
def test_timeout_argument_overrides_the_environment(
    timeout: float | None, environ: str | None, waited: str, tmp_path: Path
) -> None:
    variables = {"EVENKEEL_CHECKPOINT_URI": str(tmp_path), "EVENKEEL_ATTEMPT": "1"} | POD
    timeout_variable = {} if environ is None else {"EVENKEEL_TIMEOUT_SECONDS": environ}
    run = training.attach(variables | timeout_variable, timeout_seconds=timeout)

    with pytest.raises(TimeoutError, match=f"waited {waited} for rank 0 to pin"):
        run.resume()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"EVENKEEL_TIMEOUT_SECONDS": "0"}, "EVENKEEL_TIMEOUT_SECONDS='0' is not a whole number of at least 1"),
        ({"EVENKEEL_TIMEOUT_SECONDS": "long"}, "EVENKEEL_TIMEOUT_SECONDS='long'"),
        ({"EVENKEEL_CHECKPOINT_URI": ""}, "EVENKEEL_CHECKPOINT_URI is not set"),
        ({"EVENKEEL_CHECKPOINT_URI": "gs://x/y"}, "is not a checkpoint URI"),
        ({"EVENKEEL_ATTEMPT": ""}, "EVENKEEL_ATTEMPT is not set"),
        ({"EVENKEEL_ATTEMPT": "0"}, "at least 1"),
        ({"EVENKEEL_ATTEMPT": "two"}, "EVENKEEL_ATTEMPT='two'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 must be less than WORLD_SIZE=4"),
        ({"JOB_COMPLETION_INDEX": "4", "WORLD_SIZE": "4"}, "JOB_COMPLETION_INDEX=4 must be less than WORLD_SIZE=4"),
        ({"JOB_COMPLETION_INDEX": "0", "LOCAL_RANK": "1"}, "LOCAL_RANK=1 shows that a launcher .* RANK is not set"),
        ({"JOB_COMPLETION_INDEX": "0", "TORCHELASTIC_RUN_ID": "none"}, "TORCHELASTIC_RUN_ID=none .* RANK is not set"),
        ({"EVENKEEL_DISTRUST_AFTER": "yesterday"}, "'yesterday' is not an RFC 3339 time"),
    ],
)
def test_invalid_environment_is_refused(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    variables = {"EVENKEEL_CHECKPOINT_URI": str(tmp_path), "EVENKEEL_ATTEMPT": "1"}

    with pytest.raises(training.NotInAnAttemptError, match=message):
        training.attach(variables | changes)
