"""Where checkpoints are kept: a folder (FSx, EFS, a local disk) or a bucket.

Both give the same few promises, on which the contract rests:

    put        all of the bytes or none of them, on the disk or in the bucket when it returns
    put_new    the same, and only if nothing was there
    raise_fence  of several writers of one attempt's fence one wins, and a fence never goes down
"""

import base64
import contextlib
import hashlib
import os
import secrets
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from evenkeel.training.layout import (
    FENCE_KEY,
    Checkpoint,
    Fence,
    UnreadableError,
    checkpoint_of_folder,
    parse_fence,
)

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_s3 import S3Client

_TEMPORARY = ".writing-"
_CONFLICT_TRIES = 5
READ_PAUSES_SECONDS = (1, 4, 15)
"""Between the tries of one object in a bucket whose bytes broke off on the way."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What the store says about one object."""

    size_bytes: int
    sha256: str | None = None
    modified_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StandingFence:
    """A fence as it was read, and the version that a write over it must still find."""

    fence: Fence | None
    version: str = ""


class Storage(Protocol):
    """The few things that the contract asks of a store. Keys are relative to the checkpoint URI."""

    uri: str

    def get(self, key: str) -> bytes | None:
        """Return an object's bytes; None where there is none."""

    def put(self, key: str, content: bytes | memoryview, sha256: str) -> None:
        """Write or replace an object, whole or not at all. `sha256` in hex; S3 refuses bytes that do not match it."""

    def put_new(self, key: str, content: bytes) -> bool:
        """Write an object if there is none; say whether it was written."""

    def checkpoints(self) -> list[Checkpoint]:
        """List every checkpoint folder, finished or not."""

    def examine(self, checkpoint: Checkpoint, *, checksums: bool = True) -> Mapping[str, StoredObject]:
        """List a checkpoint's files with size and checksum: S3's stored ones, or computed by reading every byte.

        Without `checksums` nothing is read, and nothing asked of single files.
        """

    def read_fence(self) -> StandingFence:
        """Read the fence."""

    def raise_fence(self, fence: Fence, over: StandingFence) -> bool:
        """Put the fence over what was read; say whether it was put and stands."""


def open_storage(uri: str) -> Storage:
    """Open the store that a checkpoint URI names: `s3://bucket/prefix`, `file:///folder`, or a folder's plain path.

    Raises:
        ValueError: The scheme is another one, or the bucket is missing.
    """
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme == "s3":
        if not parts.netloc:
            raise ValueError(f"{uri} names no bucket")
        return BucketStorage(uri, parts.netloc, parts.path.strip("/"))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"{uri} names a folder on another machine")
        return FolderStorage(uri, Path(urllib.parse.unquote(parts.path)))
    if "://" in uri or not uri:
        raise ValueError(f"{uri!r} is no checkpoint URI: s3://bucket/prefix, file:///folder or a path is expected")
    return FolderStorage(uri, Path(uri))


class FolderStorage:
    """Checkpoints in a folder that every rank has mounted.

    The fence is one file an attempt, `_fence.d/<n>.json`, made by hard link: the link fails if the name exists and the
    content is whole before the name appears, so two launches of one attempt agree without a lock. The highest stands.
    """

    def __init__(self, uri: str, root: Path) -> None:
        self.uri = uri
        self._root = root

    def get(self, key: str) -> bytes | None:
        try:
            return (self._root / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, key: str, content: bytes | memoryview, sha256: str) -> None:  # noqa: ARG002 - S3 needs the checksum
        with self._written(key, content) as temporary:
            temporary.replace(self._root / key)

    def put_new(self, key: str, content: bytes) -> bool:
        with self._written(key, content) as temporary:
            try:
                (self._root / key).hardlink_to(temporary)
            except FileExistsError:
                return False
        return True

    def checkpoints(self) -> list[Checkpoint]:
        found = []
        for attempt in self._entries(""):
            if not attempt.name.startswith("attempt="):
                continue
            for step in self._entries(attempt.name):
                checkpoint = checkpoint_of_folder(f"{attempt.name}/{step.name}")
                if checkpoint is not None and step.is_dir():
                    found.append(checkpoint)
        return found

    def examine(self, checkpoint: Checkpoint, *, checksums: bool = True) -> Mapping[str, StoredObject]:
        found = {}
        for entry in sorted(self._entries(checkpoint.folder), key=lambda entry: entry.name):
            if entry.name.startswith(_TEMPORARY) or not entry.is_file():
                continue
            digest = _digest(Path(entry.path)) if checksums else None
            status = entry.stat()
            modified_at = datetime.fromtimestamp(status.st_mtime, UTC)
            found[f"{checkpoint.folder}/{entry.name}"] = StoredObject(status.st_size, digest, modified_at)
        return found

    def read_fence(self) -> StandingFence:
        files = [entry.name for entry in self._entries(f"{FENCE_KEY}.d") if entry.name.endswith(".json")]
        names = [name.removesuffix(".json") for name in files]
        highest = max((int(name) for name in names if name.isdecimal()), default=0)
        if not highest:
            return StandingFence(None)
        fence = parse_fence((self._root / f"{FENCE_KEY}.d" / f"{highest}.json").read_bytes())
        if fence.attempt != highest:
            raise UnreadableError(f"{FENCE_KEY}.d/{highest}.json speaks of attempt {fence.attempt}")
        return StandingFence(fence, str(highest))

    def raise_fence(self, fence: Fence, over: StandingFence) -> bool:
        if over.fence is not None and over.fence.attempt >= fence.attempt:
            return False
        if not self.put_new(f"{FENCE_KEY}.d/{fence.attempt}.json", fence.to_bytes()):
            return False
        # A later attempt may have been fenced meanwhile. Then this file says nothing, as only the highest is read, with
        # the history that it carries, and this attempt never runs.
        standing = self.read_fence().fence
        return standing is not None and standing.attempt == fence.attempt

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        """List a folder; what is not there is empty.

        Whatever else goes wrong is raised: to take a broken mount for an empty folder would be to begin again from
        nothing. That is why this is not `Path.glob`, which passes over folders that it may not or cannot read.
        https://docs.python.org/3/library/pathlib.html#pathlib.Path.glob
        """
        try:
            with os.scandir(self._root / folder) as listing:
                return list(listing)
        except (FileNotFoundError, NotADirectoryError):
            return []

    @contextlib.contextmanager
    def _written(self, key: str, content: bytes | memoryview) -> Iterator[Path]:
        """Write a temporary file beside the key, flushed to the disk; take it away afterwards if it is still there."""
        folder = (self._root / key).parent
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            with temporary.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            yield temporary
            _sync_folder(folder)
        finally:
            temporary.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class BucketStorage:
    """Checkpoints under a prefix of an S3 bucket. boto3 is imported on first use."""

    def __init__(
        self, uri: str, bucket: str, prefix: str, read_pauses_seconds: Sequence[float] = READ_PAUSES_SECONDS
    ) -> None:
        self.uri = uri
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._read_pauses_seconds = read_pauses_seconds
        self._opened: S3Client | None = None

    @property
    def _client(self) -> "S3Client":
        if self._opened is None:
            self._opened = _s3_client()
        return self._opened

    def get(self, key: str) -> bytes | None:
        found = self._get(key)
        return None if found is None else found[0]

    def put(self, key: str, content: bytes | memoryview, sha256: str) -> None:
        self._client.put_object(
            Bucket=self._bucket,
            Key=self._prefix + key,
            Body=bytes(content),
            ChecksumAlgorithm="SHA256",
            ChecksumSHA256=_base64_of_hex(sha256),
        )

    def put_new(self, key: str, content: bytes) -> bool:
        return self._put_if(key, content, IfNoneMatch="*")

    def checkpoints(self) -> list[Checkpoint]:
        found = []
        for attempt in self._folders(f"{self._prefix}attempt="):
            for step in self._folders(f"{attempt}step="):
                checkpoint = checkpoint_of_folder(step.removeprefix(self._prefix))
                if checkpoint is not None:
                    found.append(checkpoint)
        return found

    def examine(self, checkpoint: Checkpoint, *, checksums: bool = True) -> Mapping[str, StoredObject]:
        prefix = f"{self._prefix}{checkpoint.folder}/"
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        listed = [entry for page in pages for entry in page.get("Contents", [])]
        keys = [entry["Key"] for entry in listed]
        # A listing carries no checksums, so one HEAD a shard asks for them; the data itself is never read.
        with ThreadPoolExecutor(max_workers=8) as pool:
            known = dict(zip(keys, pool.map(self._checksum, keys), strict=True)) if checksums else {}
        return {
            entry["Key"].removeprefix(self._prefix): StoredObject(
                entry["Size"], known.get(entry["Key"]), entry["LastModified"]
            )
            for entry in listed
        }

    def read_fence(self) -> StandingFence:
        found = self._get(FENCE_KEY)
        return StandingFence(None) if found is None else StandingFence(parse_fence(found[0]), found[1])

    def raise_fence(self, fence: Fence, over: StandingFence) -> bool:
        if over.fence is None:
            return self._put_if(FENCE_KEY, fence.to_bytes(), IfNoneMatch="*")
        return self._put_if(FENCE_KEY, fence.to_bytes(), IfMatch=over.version)

    def _get(self, key: str) -> tuple[bytes, str] | None:
        from botocore.exceptions import (
            ClientError,
            ConnectionClosedError,
            ConnectionError,  # noqa: A004 - botocore's own
            IncompleteReadError,
            ReadTimeoutError,
            ResponseStreamingError,
        )

        for pause_seconds in (*self._read_pauses_seconds, None):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
            except ClientError as error:
                if _code(error) == "NoSuchKey":
                    return None
                raise
            # botocore tries a request again until its answer begins; what breaks while the body is read is ours.
            try:
                return answer["Body"].read(), answer["ETag"]
            except (
                ReadTimeoutError,
                ResponseStreamingError,
                IncompleteReadError,
                ConnectionClosedError,
                ConnectionError,
            ):
                if pause_seconds is None:
                    raise
                time.sleep(pause_seconds)
        raise AssertionError("unreachable: the last try returns or raises")

    def _put_if(self, key: str, content: bytes, **condition: str) -> bool:
        from botocore.exceptions import ClientError

        for _ in range(_CONFLICT_TRIES):
            try:
                self._client.put_object(
                    Bucket=self._bucket,
                    Key=self._prefix + key,
                    Body=content,
                    ChecksumAlgorithm="SHA256",
                    ChecksumSHA256=base64.b64encode(hashlib.sha256(content).digest()).decode(),
                    **condition,  # type: ignore[arg-type]  # one of IfMatch, IfNoneMatch
                )
            except ClientError as error:
                if _code(error) in ("PreconditionFailed", "NoSuchKey"):
                    return False
                # 409: another conditional write was in flight, and neither outcome is known yet; S3 asks to try again.
                # https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
                if _code(error) != "ConditionalRequestConflict":
                    raise
            else:
                return True
        return False

    def _folders(self, prefix: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix, Delimiter="/"
        )
        return [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]

    def _checksum(self, key: str) -> str | None:
        answer = self._client.head_object(Bucket=self._bucket, Key=key, ChecksumMode="ENABLED")
        encoded = answer.get("ChecksumSHA256", "")
        # The checksum of a multipart upload is one over its parts' checksums, `…-<parts>`: it cannot be compared.
        if not encoded or "-" in encoded or answer.get("ChecksumType") == "COMPOSITE":
            return None
        return base64.b64decode(encoded).hex()


def _s3_client() -> "S3Client":
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("checkpoints under s3:// need boto3: pip install boto3") from error
    is_stand_in = bool(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))
    return boto3.client(
        "s3",
        config=Config(
            connect_timeout=5,
            read_timeout=60,
            retries={"mode": "standard", "total_max_attempts": 6},
            # A stand-in for S3 has one name, not one a bucket.
            s3={"addressing_style": "path" if is_stand_in else "auto"},
        ),
    )


def _code(error: "ClientError") -> str:
    return error.response.get("Error", {}).get("Code", "")


def _base64_of_hex(digest: str) -> str:
    return base64.b64encode(bytes.fromhex(digest)).decode()
