"""The port CheckpointStore: the same tests for the fake, S3 in moto, and S3 on the engine."""

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from evenkeel.adapters.s3_checkpoints import S3Checkpoints
from evenkeel.ports import CheckpointStore, Conflict, NotAllowed, NotFound, Refused, Throttled, TooLarge, Unreachable
from tests.fakes import InMemoryCheckpoints

Put = Callable[[str, bytes], None]
URI = "s3://research-checkpoints/teams/vision/job-1"


class CheckpointFolder:
    """A store, and the writes of training code to it."""

    def __init__(self, store: CheckpointStore, uri: str, put: Put) -> None:
        self.store = store
        self.uri = uri
        self.put = put


def on_s3(client: Any, bucket: str) -> CheckpointFolder:
    client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})

    def put(key: str, body: bytes) -> None:
        checksum = base64.b64encode(hashlib.sha256(body).digest()).decode()
        checksum_headers = {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": checksum}
        client.put_object(Bucket=bucket, Key=f"teams/job-1/{key}", Body=body, **checksum_headers)

    return CheckpointFolder(S3Checkpoints(client), f"s3://{bucket}/teams/job-1", put)


@pytest.fixture(params=["memory", "moto", "engine"])
def folder(request: pytest.FixtureRequest, unique: str) -> Iterator[CheckpointFolder]:
    if request.param == "memory":
        twin = InMemoryCheckpoints()
        yield CheckpointFolder(twin, URI, lambda key, body: twin.put(URI, key, body))
    elif request.param == "moto":
        yield on_s3(request.getfixturevalue("moto_client")("s3"), unique)
    else:
        yield on_s3(request.getfixturevalue("engine_user").client("s3"), unique)


def test_finished_and_unfinished_checkpoint_folders_are_listed(folder: CheckpointFolder) -> None:
    folder.put("attempt=1/step=000000010/shard-0-of-1.bin", b"a")
    folder.put("attempt=1/step=000000010/manifest.json", b"{}")
    folder.put("attempt=2/step=000000020/shard-0-of-1.bin", b"b")
    folder.put("result/attempt=1.json", b"{}")
    folder.put("_fence", b"{}")

    assert folder.store.folders(folder.uri) == ("attempt=1/step=000000010", "attempt=2/step=000000020")
    assert folder.store.folders(f"{folder.uri}/") == folder.store.folders(folder.uri)


def test_checkpoints_of_another_job_are_not_listed(folder: CheckpointFolder) -> None:
    folder.put("attempt=1/step=000000010/manifest.json", b"{}")
    assert folder.store.folders(folder.uri.replace("job-1", "job-10")) == ()
    assert folder.store.folders(folder.uri.rpartition("-")[0]) == ()


def test_many_folders_are_listed_over_all_pages(folder: CheckpointFolder) -> None:
    for step in range(25):
        folder.put(f"attempt=1/step={step:09d}/manifest.json", b"{}")

    assert len(folder.store.folders(folder.uri)) == 25


def test_object_is_read_completely_or_not_found(folder: CheckpointFolder) -> None:
    folder.put("attempt=1/step=000000010/manifest.json", b'{"a": 1}')

    assert folder.store.read(folder.uri, "attempt=1/step=000000010/manifest.json") == b'{"a": 1}'
    with pytest.raises(NotFound):
        folder.store.read(folder.uri, "attempt=1/step=000000020/manifest.json")


def test_sizes_and_checksums_of_files_come_from_the_store(folder: CheckpointFolder) -> None:
    key = "attempt=1/step=000000010/shard-0-of-2.bin"
    folder.put(key, b"weights")

    (stored_shard,) = folder.store.contents(
        folder.uri, "attempt=1/step=000000010", checksums_of=[key, "other"]
    ).values()

    assert (stored_shard.size_bytes, stored_shard.sha256) == (7, hashlib.sha256(b"weights").hexdigest())
    assert stored_shard.modified_at is not None
    assert folder.store.contents(folder.uri, "attempt=1/step=000000020") == {}
    (listed,) = folder.store.contents(folder.uri, "attempt=1/step=000000010").values()
    assert (listed.size_bytes, listed.sha256) == (7, None)
    assert listed.modified_at is not None
    assert abs(listed.modified_at - stored_shard.modified_at) < timedelta(seconds=1)


def test_only_files_of_the_named_checkpoint_folder_are_listed(folder: CheckpointFolder) -> None:
    folder.put("attempt=1/step=000000010/shard-0-of-1.bin", b"weights")
    folder.put("attempt=1/step=000000010/manifest.json", b"{}")
    folder.put("attempt=1/step=0000000100/manifest.json", b"{}")

    contents = folder.store.contents(folder.uri, "attempt=1/step=000000010")

    assert {key: shard.size_bytes for key, shard in contents.items()} == {
        "attempt=1/step=000000010/shard-0-of-1.bin": 7,
        "attempt=1/step=000000010/manifest.json": 2,
    }


def test_fence_is_created_once_then_raised_at_the_read_version(folder: CheckpointFolder) -> None:
    assert folder.store.fence(folder.uri) == (None, "")

    folder.store.raise_fence(folder.uri, {"attempt": 1}, "")
    first, tag = folder.store.fence(folder.uri)
    folder.store.raise_fence(folder.uri, {"attempt": 2}, tag)

    assert first == {"attempt": 1}
    assert folder.store.fence(folder.uri)[0] == {"attempt": 2}


def test_fence_raised_since_the_read_is_not_overwritten(folder: CheckpointFolder) -> None:
    folder.store.raise_fence(folder.uri, {"attempt": 1}, "")
    _, tag = folder.store.fence(folder.uri)
    folder.store.raise_fence(folder.uri, {"attempt": 2}, tag)

    for stale in ("", tag):
        with pytest.raises(Conflict):
            folder.store.raise_fence(folder.uri, {"attempt": 3}, stale)

    assert folder.store.fence(folder.uri)[0] == {"attempt": 2}


# moto checks and writes without a lock: two concurrent writers of a process may both succeed.
@pytest.mark.parametrize("folder", ["memory", "engine"], indirect=True)
def test_one_of_many_concurrent_launches_raises_the_first_fence(folder: CheckpointFolder) -> None:
    won: list[int] = []

    def raise_fence_to(number: int) -> None:
        try:
            folder.store.raise_fence(folder.uri, {"attempt": number}, "")
        except Conflict:
            return
        won.append(number)

    threads = [threading.Thread(target=raise_fence_to, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert [{"attempt": number} for number in won] == [folder.store.fence(folder.uri)[0]]


def test_unreadable_fence_is_an_error(folder: CheckpointFolder) -> None:
    for content in (b"\x00not json", b"[1]", b""):
        folder.put("_fence", content)
        with pytest.raises(Refused):
            folder.store.fence(folder.uri)


# ---------------------------------------------------------------- what only S3 answers


class StubS3Client:
    """A client that answers every call with the same value or error."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def _answer(self, **_: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    get_object = put_object = head_object = _answer

    def get_paginator(self, _name: str) -> "StubS3Client":
        return self

    def paginate(self, Prefix: str, **_: Any) -> list[Any]:  # noqa: N803 - S3's own name
        stored = {"Key": f"{Prefix}shard-0-of-1.bin", "Size": 7, "LastModified": datetime.now(UTC)}
        return [{"Contents": [stored]}]


def refusal(code: str, status: int) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]  # only what is read
        "Put",
    )


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (refusal("PreconditionFailed", 412), Conflict),
        (refusal("ConditionalRequestConflict", 409), Conflict),
        (refusal("NoSuchKey", 404), Conflict),
        (refusal("SlowDown", 503), Throttled),
        (refusal("InternalError", 500), Unreachable),
        (refusal("AccessDenied", 403), NotAllowed),
        (refusal("NoSuchBucket", 404), NotFound),
        (refusal("SomethingNew", 400), ClientError),
    ],
)
def test_each_refused_write_of_a_fence_has_its_own_error(error: Exception, meaning: type[Exception]) -> None:
    with pytest.raises(meaning):
        S3Checkpoints(StubS3Client(error)).raise_fence(URI, {"attempt": 1}, "tag")


def test_refused_read_of_a_fence_is_an_error() -> None:
    for error, meaning in ((refusal("AccessDenied", 403), NotAllowed), (refusal("InternalError", 500), Unreachable)):
        with pytest.raises(meaning):
            S3Checkpoints(StubS3Client(error)).fence(URI)


FOLDER = "attempt=1/step=000000010"


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"ChecksumSHA256": "l7Ha+kXq4wMlSVbzhQp8Jg==-3"},
        {"ChecksumSHA256": "l7Ha+kXq4wMlSVbzhQp8Jg==", "ChecksumType": "COMPOSITE"},
    ],
)
def test_composite_checksum_is_ignored(head: dict[str, Any]) -> None:
    head = {"ContentLength": 7, "LastModified": datetime.now(UTC), **head}

    key = f"{FOLDER}/shard-0-of-1.bin"
    (shard,) = S3Checkpoints(StubS3Client(head)).contents(URI, FOLDER, checksums_of=[key]).values()

    assert (shard.size_bytes, shard.sha256) == (7, None)


def test_file_deleted_during_the_listing_is_left_out() -> None:
    keys = [f"{FOLDER}/shard-0-of-1.bin"]

    assert S3Checkpoints(StubS3Client(refusal("404", 404))).contents(URI, FOLDER, checksums_of=keys) == {}
    with pytest.raises(NotAllowed):
        S3Checkpoints(StubS3Client(refusal("403", 403))).contents(URI, FOLDER, checksums_of=keys)


def test_oversized_manifest_is_refused() -> None:
    with pytest.raises(TooLarge):
        S3Checkpoints(StubS3Client({"ContentLength": 10**9})).read(URI, "k")


@pytest.mark.parametrize("uri", ["", "/tmp/x", "file:///x", "s3://", "s3:///x", "s3://Bad_Bucket/x", "https://b/x"])
def test_checkpoint_store_accepts_only_s3_addresses(uri: str) -> None:
    with pytest.raises(Refused):
        S3Checkpoints(StubS3Client({})).fence(uri)
