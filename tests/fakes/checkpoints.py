"""A checkpoint store in a dictionary."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from evenkeel.ports import Conflict, NotFound, Refused, StoredShard
from tests.fakes.system import A_MOMENT

FENCE = "_fence"
_FOLDER = re.compile(r"attempt=\d+/step=\d{9,}")


class InMemoryCheckpoints:
    """Objects by URI and key; the store knows the checksum of each."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, bytes]] = {}
        self.without_checksum: set[str] = set()
        """Keys of objects of which only the size is known."""

    def folders(self, uri: str) -> tuple[str, ...]:
        keys = self.objects.get(_plain(uri), {})
        return tuple(sorted({key.rpartition("/")[0] for key in keys if _FOLDER.fullmatch(key.rpartition("/")[0])}))

    def contents(self, uri: str, folder: str, *, checksums_of: Collection[str] = ()) -> Mapping[str, StoredShard]:
        return {
            key: StoredShard(
                len(body),
                hashlib.sha256(body).hexdigest() if key in checksums_of and key not in self.without_checksum else None,
                A_MOMENT,
            )
            for key, body in self.objects.get(_plain(uri), {}).items()
            if key.startswith(f"{folder}/")
        }

    def read(self, uri: str, key: str) -> bytes:
        try:
            return self.objects[_plain(uri)][key]
        except KeyError:
            raise NotFound(f"no object {key} under {uri}") from None

    def fence(self, uri: str) -> tuple[dict[str, Any] | None, str]:
        body = self.objects.get(_plain(uri), {}).get(FENCE)
        if body is None:
            return None, ""
        try:
            document = json.loads(body)
        except ValueError as error:
            raise Refused(f"the fence of {uri} is not JSON") from error
        if not isinstance(document, dict):
            raise Refused(f"the fence of {uri} is not a JSON object")
        return document, _tag(body)

    def raise_fence(self, uri: str, document: dict[str, Any], tag: str) -> None:
        body = self.objects.get(_plain(uri), {}).get(FENCE)
        if ("" if body is None else _tag(body)) != tag:
            raise Conflict(f"the fence of {uri} was written by somebody else")
        self.put(uri, FENCE, json.dumps(document).encode())

    # ------------------------------------------------------------ for tests

    def put(self, uri: str, key: str, body: bytes) -> None:
        self.objects.setdefault(_plain(uri), {})[key] = body

    def save(  # noqa: PLR0913 - the fields of a manifest that tests vary
        self,
        uri: str,
        job_id: str,
        attempt: int,
        step: int,
        started_at: str,
        *,
        shards: int = 2,
        metrics: Mapping[str, float] | None = None,
        save_seconds: float = 0,
    ) -> str:
        """Store a complete checkpoint, as training code does. Return the key of its manifest."""
        folder = f"attempt={attempt}/step={step:09d}"
        records = []
        for rank in range(shards):
            key, body = f"{folder}/shard-{rank}-of-{shards}.bin", f"{job_id} {step} {rank}".encode()
            self.put(uri, key, body)
            records.append({"key": key, "sizeBytes": len(body), "sha256": hashlib.sha256(body).hexdigest()})
        manifest = {
            "schemaVersion": 1,
            "jobId": job_id,
            "attempt": attempt,
            "step": step,
            "startedAt": started_at,
            "createdAt": (datetime.fromisoformat(started_at) + timedelta(seconds=save_seconds)).isoformat(),
            "worldSize": shards,
            "shards": records,
            "metrics": {"loss": 0.5, **(metrics or {})},
            "extra": {},
        }
        self.put(uri, f"{folder}/manifest.json", json.dumps(manifest).encode())
        return f"{folder}/manifest.json"


def _plain(uri: str) -> str:
    return uri.rstrip("/")


def _tag(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()
