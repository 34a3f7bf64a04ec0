"""Stores for checkpoints: a folder (FSx, EFS, a local disk) or an S3 bucket.

Both give the same guarantees:

    put          writes all bytes or none; when it returns, they are on the disk or in the bucket
    put_new      the same, and only if the object did not exist
    raise_fence  if several processes write the fence of one attempt, one of them wins; the fence never goes down
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
"""Pauses between the retries of a read from a bucket that broke off."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Size, checksum and time of one object, from the store itself."""

    size_bytes: int
    sha256: str | None = None
    modified_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class VersionedFence:
    """The fence as it was read, and its version. A write succeeds only if the store still has that version."""

    fence: Fence | None
    version: str = ""


class Storage(Protocol):
    """The operations of a store. Keys are relative to the checkpoint URI."""

    uri: str

    def get(self, key: str) -> bytes | None:
        """Return the bytes of an object; None if it does not exist."""

    def put(self, key: str, content: bytes | memoryview, sha256: str) -> None:
        """Write or replace an object as a whole. `sha256` is in hex; S3 rejects bytes that do not match it."""

    def put_new(self, key: str, content: bytes) -> bool:
        """Write an object if it does not exist. Return whether it was written."""

    def checkpoints(self) -> list[Checkpoint]:
        """Return every checkpoint folder, finished or not."""

    def examine(self, checkpoint: Checkpoint, *, checksums: bool = True) -> Mapping[str, StoredObject]:
        """Return the files of a checkpoint with size and checksum, by key.

        A bucket returns the checksums that S3 stores. A folder computes them from every byte. Without `checksums`, the
        store only lists the files.
        """

    def read_fence(self) -> VersionedFence:
        """Read the fence."""

    def raise_fence(self, fence: Fence, over: VersionedFence) -> bool:
        """Replace the fence `over`, if the store still has the version that was read.

        Return whether the new fence is now the highest.
        """


def open_storage(uri: str) -> Storage:
    """Open the store of a checkpoint URI: `s3://bucket/prefix`, `file:///folder`, or the path of a folder.

    Raises:
        ValueError: The URI has another scheme, or no bucket.
    """
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme == "s3":
        if not parts.netloc:
            raise ValueError(f"{uri} names no bucket")
        return BucketStorage(uri, parts.netloc, parts.path.strip("/"))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"{uri} must not contain a host: use file:///folder")
        return FolderStorage(uri, Path(urllib.parse.unquote(parts.path)))
    if "://" in uri or not uri:
        raise ValueError(f"{uri!r} is not a checkpoint URI: use s3://bucket/prefix, file:///folder or a path")
    return FolderStorage(uri, Path(uri))


class FolderStorage:
    """Checkpoints in a folder that every rank has mounted.

    The fence is one file per attempt, `_fence.d/<n>.json`; the highest number counts. Each file is created with a hard
    link to a finished temporary file, which fails if the name exists. So two launches of one attempt need no lock.
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
        checkpoints = []
        for attempt in self._entries(""):
            if not attempt.name.startswith("attempt="):
                continue
            for step in self._entries(attempt.name):
                checkpoint = checkpoint_of_folder(f"{attempt.name}/{step.name}")
                if checkpoint is not None and step.is_dir():
                    checkpoints.append(checkpoint)
        return checkpoints

    def examine(self, checkpoint: Checkpoint, *, checksums: bool = True) -> Mapping[str, StoredObject]:
        objects = {}
        for entry in sorted(self._entries(checkpoint.folder), key=lambda entry: entry.name):
            if entry.name.startswith(_TEMPORARY) or not entry.is_file():
                continue
            digest = _digest(Path(entry.path)) if checksums else None
            status = entry.stat()
            modified_at = datetime.fromtimestamp(status.st_mtime, UTC)
            objects[f"{checkpoint.folder}/{entry.name}"] = StoredObject(status.st_size, digest, modified_at)
        return objects

    def read_fence(self) -> VersionedFence:
        files = [entry.name for entry in self._entries(f"{FENCE_KEY}.d") if entry.name.endswith(".json")]
        names = [name.removesuffix(".json") for name in files]
        highest = max((int(name) for name in names if name.isdecimal()), default=0)
        if not highest:
            return VersionedFence(None)
        fence = parse_fence((self._root / f"{FENCE_KEY}.d" / f"{highest}.json").read_bytes())
        if fence.attempt != highest:
            raise UnreadableError(f"{FENCE_KEY}.d/{highest}.json describes attempt {fence.attempt}")
        return VersionedFence(fence, str(highest))

    def raise_fence(self, fence: Fence, over: VersionedFence) -> bool:
        if over.fence is not None and over.fence.attempt >= fence.attempt:
            return False
        if not self.put_new(f"{FENCE_KEY}.d/{fence.attempt}.json", fence.to_bytes()):
            return False
        # A later attempt may have raised the fence meanwhile. Then only the highest file counts, with its own history,
        # and this attempt must not run.
        highest = self.read_fence().fence
        return highest is not None and highest.attempt == fence.attempt

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        """Return the entries of a folder; empty if it does not exist.

        All other errors are raised. If a broken mount looked like an empty folder, training would start at step 0.
        `Path.glob` is not used, because it skips folders that it cannot read:
        https://docs.python.org/3/library/pathlib.html#pathlib.Path.glob
        """
        try:
            with os.scandir(self._root / folder) as listing:
                return list(listing)
        except (FileNotFoundError, NotADirectoryError):
            return []

    @contextlib.contextmanager
    def _written(self, key: str, content: bytes | memoryview) -> Iterator[Path]:
        """Write a temporary file next to the key and flush it to the disk. Remove it afterwards if it still exists."""
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
        answer = self._get(key)
        return None if answer is None else answer[0]

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
        checkpoints = []
        for attempt in self._folders(f"{self._prefix}attempt="):
            for step in self._folders(f"{attempt}step="):
                checkpoint = checkpoint_of_folder(step.removeprefix(self._prefix))
                if checkpoint is not None:
                    checkpoints.append(checkpoint)
        return checkpoints

    def examine(self, checkpoint: Checkpoint, *, checksums: bool = True) -> Mapping[str, StoredObject]:
        prefix = f"{self._prefix}{checkpoint.folder}/"
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        listed = [entry for page in pages for entry in page.get("Contents", [])]
        keys = [entry["Key"] for entry in listed]
        # A listing has no checksums, so each shard needs one HEAD request. The data itself is not read.
        with ThreadPoolExecutor(max_workers=8) as pool:
            known = dict(zip(keys, pool.map(self._checksum, keys), strict=True)) if checksums else {}
        return {
            entry["Key"].removeprefix(self._prefix): StoredObject(
                entry["Size"], known.get(entry["Key"]), entry["LastModified"]
            )
            for entry in listed
        }

    def read_fence(self) -> VersionedFence:
        answer = self._get(FENCE_KEY)
        return VersionedFence(None) if answer is None else VersionedFence(parse_fence(answer[0]), answer[1])

    def raise_fence(self, fence: Fence, over: VersionedFence) -> bool:
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
            # botocore retries a request only until the response begins. Errors while reading the body are retried here.
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
                # 409: S3 handles another conditional write of this key at the same time, and asks for a retry.
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
        # A multipart upload has a composite checksum of its parts, `…-<parts>`, which cannot be compared.
        if not encoded or "-" in encoded or answer.get("ChecksumType") == "COMPOSITE":
            return None
        return base64.b64decode(encoded).hex()


def _s3_client() -> "S3Client":
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("checkpoints under s3:// need boto3: pip install boto3") from error
    is_emulator = bool(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))
    return boto3.client(
        "s3",
        config=Config(
            connect_timeout=5,
            read_timeout=60,
            retries={"mode": "standard", "total_max_attempts": 6},
            # An S3 emulator has one host name for all buckets.
            s3={"addressing_style": "path" if is_emulator else "auto"},
        ),
    )


def _code(error: "ClientError") -> str:
    return error.response.get("Error", {}).get("Code", "")


def _base64_of_hex(digest: str) -> str:
    return base64.b64encode(bytes.fromhex(digest)).decode()
