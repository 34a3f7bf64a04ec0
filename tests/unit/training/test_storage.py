"""Guarantees of checkpoint storage that the training contract needs, in a folder and in a bucket."""

import errno
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import boto3
import pytest
from botocore.exceptions import BotoCoreError
from moto import mock_aws

from evenkeel.training.layout import Checkpoint, Fence, Pin, ResumePoint, UnreadableError
from evenkeel.training.storage import BucketStorage, Storage, StoredObject, VersionedFence, open_storage

SAVED = Checkpoint(step=10, attempt=1)


def _put(storage: Storage, key: str, content: bytes) -> None:
    storage.put(key, content, hashlib.sha256(content).hexdigest())


def test_stored_bytes_are_read_back(uri: str) -> None:
    storage = open_storage(uri)

    _put(storage, "attempt=1/step=000000010/shard-0-of-1.bin", b"first")
    _put(storage, "attempt=1/step=000000010/shard-0-of-1.bin", b"second")

    assert storage.get("attempt=1/step=000000010/shard-0-of-1.bin") == b"second"
    assert storage.get("attempt=1/step=000000010/manifest.json") is None
    assert storage.get("attempt=1/step=000000010/shard-0-of-1.bin/under-a-file") is None


def test_object_written_with_create_only_is_never_overwritten(uri: str) -> None:
    storage = open_storage(uri)

    first, second = storage.put_new("manifest.json", b"first"), storage.put_new("manifest.json", b"second")

    assert (first, second) == (True, False)
    assert storage.get("manifest.json") == b"first"


def test_exactly_one_of_many_concurrent_creates_succeeds(uri: str) -> None:
    storage = open_storage(uri)
    storage.get("warm")  # one client for all threads
    contents = [f"writer {number}".encode() for number in range(8)]

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda content: storage.put_new("manifest.json", content), contents))

    assert outcomes.count(True) == 1
    assert storage.get("manifest.json") == contents[outcomes.index(True)]


def test_only_checkpoint_folders_are_listed(uri: str) -> None:
    storage = open_storage(uri)
    for key in (
        "attempt=1/step=000000010/shard-0-of-1.bin",
        "attempt=1/step=000000020/manifest.json",
        "attempt=12/step=000000030/manifest.json",
        "attempt=1/step=7/manifest.json",
        "attempt=x/step=000000010/manifest.json",
        "result/attempt=1.json",
        "_fence",
    ):
        _put(storage, key, b"{}")

    checkpoints = sorted(storage.checkpoints())

    assert checkpoints == [SAVED, Checkpoint(step=20, attempt=1), Checkpoint(step=30, attempt=12)]


def test_empty_store_has_no_checkpoints_and_no_fence(uri: str) -> None:
    storage = open_storage(uri)

    assert storage.checkpoints() == []
    assert dict(storage.examine(SAVED)) == {}
    assert storage.read_fence() == VersionedFence(None)


def test_store_returns_size_and_checksum(uri: str) -> None:
    storage = open_storage(uri)
    _put(storage, f"{SAVED.folder}/shard-0-of-1.bin", b"weights")
    _put(storage, "attempt=1/step=000000100/shard-0-of-1.bin", b"another checkpoint")

    objects = storage.examine(SAVED)

    checksums = {key: (stored.size_bytes, stored.sha256) for key, stored in objects.items()}
    assert checksums == {f"{SAVED.folder}/shard-0-of-1.bin": (7, hashlib.sha256(b"weights").hexdigest())}
    assert all(stored.modified_at is not None and stored.modified_at.tzinfo is not None for stored in objects.values())


def test_names_and_sizes_are_listed_without_reading(uri: str) -> None:
    storage = open_storage(uri)
    _put(storage, f"{SAVED.folder}/shard-0-of-1.bin", b"weights")

    (stored_object,) = storage.examine(SAVED, checksums=False).values()

    assert stored_object == StoredObject(7, None, stored_object.modified_at)
    assert stored_object.modified_at is not None


def test_fence_rises_from_the_read_version_with_its_history(uri: str) -> None:
    storage = open_storage(uri)
    first = Fence(Pin(1, None))
    pinned = Fence(Pin(2, ResumePoint(1, 10, SAVED.manifest_key)), history=(first.pin,), reason="It holds.")

    assert storage.raise_fence(first, storage.read_fence())
    assert storage.raise_fence(pinned, storage.read_fence())

    assert storage.read_fence().fence == pinned


def test_changed_fence_is_not_raised(uri: str) -> None:
    storage = open_storage(uri)
    as_read = storage.read_fence()
    assert storage.raise_fence(Fence(Pin(2, None)), as_read)

    assert not storage.raise_fence(Fence(Pin(2, None), reason="again"), as_read)
    assert not storage.raise_fence(Fence(Pin(1, None)), as_read)

    assert storage.read_fence().fence == Fence(Pin(2, None))


def test_one_of_many_launches_of_an_attempt_raises_the_fence(uri: str) -> None:
    storage = open_storage(uri)
    as_read = storage.read_fence()
    fences = [Fence(Pin(1, None), reason=f"launch {number}") for number in range(8)]

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda fence: storage.raise_fence(fence, as_read), fences))

    assert outcomes.count(True) == 1
    assert storage.read_fence().fence == fences[outcomes.index(True)]


def test_folder_keeps_and_lists_no_temporary_files(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    _put(storage, f"{SAVED.folder}/shard-0-of-1.bin", b"weights")
    storage.put_new(SAVED.manifest_key, b"{}")
    storage.put_new(SAVED.manifest_key, b"{}")
    (tmp_path / SAVED.folder / ".writing-0123").write_bytes(b"cut off by a power failure")

    names = sorted(storage.examine(SAVED))

    assert names == [f"{SAVED.folder}/manifest.json", f"{SAVED.folder}/shard-0-of-1.bin"]
    assert len(list((tmp_path / SAVED.folder).iterdir())) == 3


def test_higher_of_two_concurrent_fences_of_a_folder_remains(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    as_read = storage.read_fence()

    outcomes = [storage.raise_fence(Fence(Pin(attempt, None)), as_read) for attempt in (3, 2)]

    assert outcomes == [True, False]
    assert storage.read_fence().fence == Fence(Pin(3, None))


def test_folder_fence_under_a_wrong_name_is_refused(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.put_new("_fence.d/3.json", Fence(Pin(2, None)).to_bytes())

    with pytest.raises(UnreadableError, match="describes attempt 2"):
        storage.read_fence()


@pytest.mark.parametrize("unlistable_folder", ["", "attempt=1", SAVED.folder])
def test_unlistable_folder_is_an_error(tmp_path: Path, unlistable_folder: str) -> None:
    folder = tmp_path / "checkpoints" / unlistable_folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(folder)  # like a broken mount, it can be neither listed nor read, even by root
    storage = open_storage(str(tmp_path / "checkpoints"))

    with pytest.raises(OSError, match="symbolic links"):
        storage.checkpoints()


def test_files_without_readable_metadata_are_an_error(tmp_path: Path) -> None:
    folder = tmp_path / SAVED.folder
    folder.parent.mkdir(parents=True)
    folder.symlink_to(folder)
    storage = open_storage(str(tmp_path))

    with pytest.raises(OSError, match="symbolic links"):
        storage.examine(SAVED)

    folder.unlink()
    folder.mkdir()
    shard = folder / "shard-0-of-1.bin"
    shard.symlink_to(shard)
    with pytest.raises(OSError, match="symbolic links"):
        storage.examine(SAVED)


def test_unlistable_fence_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "_fence.d").symlink_to(tmp_path / "_fence.d")

    with pytest.raises(OSError, match="symbolic links"):
        open_storage(str(tmp_path)).read_fence()


@contextmanager
def unreadable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make a folder unreadable. Root may read every folder, so its listing is replaced by an error."""

    def scandir(path: Path) -> Any:
        if os.geteuid() == 0 and Path(path).is_relative_to(folder):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_scandir(path)

    real_scandir = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    folder.chmod(0)
    try:
        yield
    finally:
        folder.chmod(0o700)
        monkeypatch.undo()


@pytest.mark.parametrize("forbidden", ["", "attempt=1", SAVED.folder, "_fence.d"])
def test_unreadable_folder_is_an_error(tmp_path: Path, forbidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(str(tmp_path / "checkpoints"))
    _put(storage, SAVED.manifest_key, b"{}")
    storage.raise_fence(Fence(Pin(1, None)), storage.read_fence())

    with unreadable(tmp_path / "checkpoints" / forbidden, monkeypatch), pytest.raises(PermissionError):
        (storage.read_fence(), storage.checkpoints(), storage.examine(SAVED))


def test_path_that_is_no_folder_has_no_checkpoints(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    (tmp_path / "attempt=1").mkdir()
    (tmp_path / "attempt=1" / "step=000000010").write_bytes(b"a file")
    (tmp_path / "attempt=2").write_bytes(b"a file")
    (tmp_path / "_fence.d").write_bytes(b"a file")

    assert storage.checkpoints() == []
    assert dict(storage.examine(SAVED)) == {}
    assert storage.read_fence() == VersionedFence(None)


@mock_aws
def test_object_without_a_stored_checksum_is_listed_without_it() -> None:
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="checkpoints")
    client.put_object(Bucket="checkpoints", Key=f"{SAVED.folder}/shard-0-of-1.bin", Body=b"by another tool")

    (stored_object,) = open_storage("s3://checkpoints").examine(SAVED).values()

    assert stored_object == StoredObject(15, None, stored_object.modified_at)


class _TruncatingServer(BaseHTTPRequestHandler):
    """A bucket that closes the connection in the middle of an object, a given number of times."""

    breaks: ClassVar[list[str]] = []
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        is_broken = bool(self.breaks) and self.breaks.pop() == "off"
        self.send_response(200)
        self.send_header("Content-Length", "14")
        self.send_header("ETag", '"tag"')
        self.end_headers()
        self.wfile.write(b"half a " if is_broken else b"half a loaf...")
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Say nothing."""


@pytest.fixture
def truncating_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_TruncatingServer]]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    _TruncatingServer.breaks.clear()
    _TruncatingServer.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _TruncatingServer) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield _TruncatingServer
        server.shutdown()
        serving.join()


def test_truncated_read_of_an_object_is_repeated(truncating_server: type[_TruncatingServer]) -> None:
    truncating_server.breaks.extend(["off", "off"])
    storage = BucketStorage("s3://checkpoints/job", "checkpoints", "job", read_pauses_seconds=(0, 0))

    assert storage.get("shard") == b"half a loaf..."
    assert truncating_server.asked == ["/checkpoints/job/shard"] * 3


def test_repeatedly_truncated_read_of_an_object_is_an_error(truncating_server: type[_TruncatingServer]) -> None:
    truncating_server.breaks.extend(["off"] * 9)
    storage = BucketStorage("s3://checkpoints/job", "checkpoints", "job", read_pauses_seconds=(0, 0))

    with pytest.raises(BotoCoreError):
        storage.get("shard")
    assert len(truncating_server.asked) == 3


@mock_aws
def test_listing_of_many_checkpoints_is_read_completely() -> None:
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="checkpoints")
    storage = open_storage("s3://checkpoints/many")
    for step in range(1005):
        _put(storage, f"attempt=1/step={step:09d}/manifest.json", b"{}")

    assert len(storage.checkpoints()) == 1005


@pytest.mark.parametrize("uri", ["", "s3://", "gs://bucket/prefix", "file://elsewhere/folder"])
def test_invalid_checkpoint_uri_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"not a checkpoint URI|no bucket|must not contain a host"):
        open_storage(uri)
