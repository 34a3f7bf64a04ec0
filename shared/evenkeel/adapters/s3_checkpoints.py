"""The port CheckpointStore on S3. It reads sizes and the checksums that S3 stores, never the data."""

import base64
import json
import re
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.config import Config
from botocore.exceptions import ClientError

from evenkeel.adapters import aws
from evenkeel.ports import Conflict, EvenkeelError, NotFound, Refused, StoredShard, TooLarge

_URI = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", re.ASCII | re.DOTALL)
_FENCE = "_fence"
_AT_ONCE = 16
_LARGEST_READ = 16 * 1024 * 1024

# 412: the tag has changed. 409: two conditional writes at the same time. 404 on a write: the object is gone.
_PRECONDITION_CODES: Mapping[str, type[EvenkeelError]] = {
    "PreconditionFailed": Conflict,
    "ConditionalRequestConflict": Conflict,
    "NoSuchKey": Conflict,
    "412": Conflict,
    "409": Conflict,
}
_CLIENT = aws.READS_AND_IDEMPOTENT_WRITES.merge(Config(max_pool_connections=_AT_ONCE))
_GONE = ("NoSuchKey", "404", "NotFound")


class S3Checkpoints:
    """Objects under `s3://bucket/prefix`."""

    def __init__(self, client: Any = None) -> None:
        self._client = client or aws.client("s3", _CLIENT)

    def folders(self, uri: str) -> tuple[str, ...]:
        bucket, prefix = _bucket_and_prefix(uri)
        with aws.translate_errors(f"list checkpoints under {uri}"):
            attempts = list(self._list_folders(bucket, f"{prefix}attempt="))
            folders = [folder for attempt in attempts for folder in self._list_folders(bucket, f"{attempt}step=")]
        return tuple(sorted(folder.removeprefix(prefix).rstrip("/") for folder in folders))

    def contents(self, uri: str, folder: str, *, checksums_of: Collection[str] = ()) -> Mapping[str, StoredShard]:
        bucket, prefix = _bucket_and_prefix(uri)
        with aws.translate_errors(f"list {folder} under {uri}"):
            shards = {
                entry["Key"].removeprefix(prefix): StoredShard(entry["Size"], None, entry["LastModified"])
                for entry in self._list(bucket, f"{prefix}{folder}/")
            }

        def read_checksum(key: str) -> StoredShard | None:
            with aws.translate_errors(f"describe {key} in {bucket}"):
                try:
                    head = self._client.head_object(Bucket=bucket, Key=prefix + key, ChecksumMode="ENABLED")
                except ClientError as error:
                    if aws.code_of(error) in _GONE:
                        return None
                    raise
            return StoredShard(head["ContentLength"], _sha256(head), head["LastModified"])

        # An S3 listing has no checksums, so each file needs one HEAD request. Many run in parallel.
        keys = [key for key in shards if key in checksums_of]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = dict(zip(keys, pool.map(read_checksum, keys), strict=True))
        return {
            key: shard for key, listed_shard in shards.items() if (shard := answers.get(key, listed_shard)) is not None
        }

    def read(self, uri: str, key: str) -> bytes:
        bucket, prefix = _bucket_and_prefix(uri)
        with aws.translate_errors(f"read {key} under {uri}", dict.fromkeys(_GONE, NotFound)):
            answer = self._client.get_object(Bucket=bucket, Key=prefix + key)
            return _read_body(answer, f"{key} under {uri}")

    def fence(self, uri: str) -> tuple[dict[str, Any] | None, str]:
        bucket, prefix = _bucket_and_prefix(uri)
        with aws.translate_errors(f"read the fence of {uri}"):
            try:
                answer = self._client.get_object(Bucket=bucket, Key=prefix + _FENCE)
            except ClientError as error:
                if aws.code_of(error) in _GONE:
                    return None, ""
                raise
            content = _read_body(answer, f"the fence of {uri}")
        try:
            document = json.loads(content)
        except ValueError as error:
            raise Refused(f"the fence of {uri} is not JSON") from error
        if not isinstance(document, dict):
            raise Refused(f"the fence of {uri} is not a JSON object")
        return document, answer["ETag"]

    def raise_fence(self, uri: str, document: dict[str, Any], tag: str) -> None:
        """Write the fence if the stored one still has this tag; without a tag, if there is none.

        Idempotent: no. A retry after a lost reply conflicts with its own write; the caller then reads the fence again.
        """
        bucket, prefix = _bucket_and_prefix(uri)
        condition = {"IfMatch": tag} if tag else {"IfNoneMatch": "*"}
        body = json.dumps(document).encode()
        with aws.translate_errors(f"raise the fence of {uri}", _PRECONDITION_CODES):
            self._client.put_object(
                Bucket=bucket, Key=prefix + _FENCE, Body=body, ContentType="application/json", **condition
            )

    def _list(self, bucket: str, prefix: str) -> Iterator[Mapping[str, Any]]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            yield from page.get("Contents", ())

    def _list_folders(self, bucket: str, prefix: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, Delimiter="/")
        for page in pages:
            yield from (entry["Prefix"] for entry in page.get("CommonPrefixes", ()))


def _bucket_and_prefix(uri: str) -> tuple[str, str]:
    match = _URI.fullmatch(uri)
    if match is None:
        raise Refused(f"{uri!r} is not an S3 location: use s3://bucket/prefix")
    prefix = (match[2] or "").strip("/")
    return match[1], f"{prefix}/" if prefix else ""


def _read_body(answer: Mapping[str, Any], name: str) -> bytes:
    if answer["ContentLength"] > _LARGEST_READ:
        raise TooLarge(f"{name} has {answer['ContentLength']} bytes: larger than the limit for this kind of object")
    content: bytes = answer["Body"].read()
    return content


def _sha256(head: Mapping[str, Any]) -> str | None:
    """Return the checksum of the whole object in hex; None if S3 has none, or only a composite checksum of parts."""
    checksum = head.get("ChecksumSHA256")
    if not checksum or "-" in checksum or head.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    return base64.b64decode(checksum).hex()
