"""The training contract on the engine's S3, with an identity that may only read, write and list its bucket."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest
from botocore.exceptions import ClientError

from evenkeel.training.layout import Fence, Pin
from evenkeel.training.storage import open_storage
from evenkeel_local.engine import Engine
from evenkeel_local.identities import Credentials, make_user

BUCKET = "evenkeel-trainer-on-engine"
STEPS = 60
PATIENCE_SECONDS = 90


@pytest.fixture(scope="module")
def trainer(deployer: Credentials, engine: Engine) -> Credentials:
    """Identity of a job's pods: they may list the bucket, and read and write objects in it, and have no other right."""
    deployer.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": engine.region})
    return make_user(
        deployer,
        "trainer-on-engine",
        [
            {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": f"arn:aws:s3:::{BUCKET}"},
            {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": f"arn:aws:s3:::{BUCKET}/*"},
        ],
    )


@pytest.fixture
def as_trainer(trainer: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in trainer.environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("as_trainer")
def test_bucket_refuses_bytes_with_a_wrong_checksum() -> None:
    storage = open_storage(f"s3://{BUCKET}/refused")

    with pytest.raises(ClientError) as refused:
        storage.put("shard-0-of-1.bin", b"flipped on the way", hashlib.sha256(b"as it was").hexdigest())

    assert refused.value.response["Error"]["Code"] in ("BadDigest", "InvalidRequest")
    assert storage.get("shard-0-of-1.bin") is None


@pytest.mark.usefixtures("as_trainer")
def test_one_of_many_launches_raises_the_fence() -> None:
    storage = open_storage(f"s3://{BUCKET}/fences")
    assert storage.raise_fence(Fence(Pin(1, None)), storage.read_fence())
    as_read = storage.read_fence()
    fences = [Fence(Pin(2, None), history=(Pin(1, None),), reason=f"launch {number}") for number in range(16)]

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(lambda fence: storage.raise_fence(fence, as_read), fences))

    assert outcomes.count(True) == 1
    assert storage.read_fence().fence == fences[outcomes.index(True)]


def test_killed_job_with_fewer_ranks_ends_with_same_weights(trainer: Credentials, tmp_path: Path) -> None:
    with _Ranks(trainer, tmp_path, "undisturbed", attempt=1, world_size=1) as alone:
        undisturbed = alone.digests()

    with _Ranks(trainer, tmp_path, "killed", attempt=1, world_size=3, step_seconds="0.1") as first:
        first.until_step(STEPS // 3)
        first.kill()
    with _Ranks(trainer, tmp_path, "killed", attempt=2, world_size=2) as second:
        digests = second.digests()

    assert digests == undisturbed
    assert len(digests) == 1
    (resumed,) = second.events("resumed")
    assert int(str(resumed["step"])) >= STEPS // 3 - 5


class _Ranks:
    """The ranks of one attempt as processes. At the end, running ones are killed."""

    def __init__(
        self,
        trainer: Credentials,
        folder: Path,
        name: str,
        *,
        attempt: int,
        world_size: int,
        step_seconds: str = "0",
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        variables = trainer.environment() | {
            "PATH": os.environ["PATH"],
            "EVENKEEL_JOB_ID": f"job-{name}",
            "EVENKEEL_ATTEMPT": str(attempt),
            "EVENKEEL_CHECKPOINT_URI": f"s3://{BUCKET}/{name}",
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TRAINER_STEPS": str(STEPS),
            "TRAINER_CHECKPOINT_EVERY": "5",
            "TRAINER_STEP_SECONDS": step_seconds,
        }
        self._logs = [folder / f"{name}-{attempt}-{rank}" for rank in range(world_size)]
        self._processes = []
        for rank, log in enumerate(self._logs):
            with log.open("wb") as stream:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "evenkeel_trainer"],
                        env=variables | {"JOB_COMPLETION_INDEX": str(rank)},
                        stdout=stream,
                        stderr=subprocess.STDOUT,
                    )
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(timeout=PATIENCE_SECONDS)

    def events(self, kind: str, rank: int = 0) -> list[dict[str, object]]:
        lines = self._logs[rank].read_text().splitlines(keepends=True)
        all_events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [event for event in all_events if event["event"] == kind]

    def until_step(self, step: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not any(event["step"] == step for event in self.events("step")):
            assert time.monotonic() < deadline, self._logs[0].read_text()
            time.sleep(0.02)

    def digests(self) -> set[object]:
        codes = [process.wait(timeout=PATIENCE_SECONDS) for process in self._processes]
        assert codes == [0] * len(codes), [log.read_text()[-2000:] for log in self._logs]
        return {self.events("done", rank)[0]["digest"] for rank in range(len(codes))}
