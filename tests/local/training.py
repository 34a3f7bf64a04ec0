"""Submits and follows a job of the example trainer on the running data centre."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel_local.data_centre import CHECKPOINTS_BUCKET, DataCentre
from evenkeel_local.drills import ENDED, TrainingWork, await_all_nodes_ready, last_step, node_of_rank, read_object
from evenkeel_local.reference_run import reference_digest
from tests.waiting import until

Json = dict[str, Any]

JOB_SECONDS = 120.0


@dataclass(frozen=True)
class TrainingJob:
    """One submitted job."""

    centre: DataCentre
    job_id: str
    uri: str
    work: TrainingWork

    @classmethod
    def submit(cls, centre: DataCentre, name: str, work: TrainingWork, **changes: Any) -> "TrainingJob":
        """Submit a job with its own checkpoint URI; `changes` are added to the request."""
        uri = f"s3://{CHECKPOINTS_BUCKET}/tests/{name}-{time.time_ns()}"
        job = centre.client().post("/jobs", work.submission(name, uri) | changes)
        return cls(centre, job["jobId"], uri, work)

    # ------------------------------------------------------------ what is seen of it

    def show(self) -> Json:
        return self.centre.client().get(f"/jobs/{self.job_id}")

    def why(self) -> Json:
        return self.centre.client().get(f"/jobs/{self.job_id}/why")

    def timeline(self) -> list[str]:
        """Return the lines of its timeline."""
        entries = self.centre.client().get(f"/jobs/{self.job_id}/timeline")["entries"]
        return [str(entry["text"]) for entry in entries]

    def attempt(self, number: int) -> Json:
        return next(attempt for attempt in self.show()["attempts"] if attempt["attempt"] == number)

    def node(self, rank: int = 0) -> str:
        """Return the name of the node that a rank of the current attempt runs on."""
        return node_of_rank(self.centre, self.show(), rank)

    def processes(self, attempt: int) -> list[Json]:
        """Return every process that an attempt ever had."""
        documents = self.centre.cluster.control("GET", f"processes?job={self.job_id}-a{attempt}")["processes"]
        return [dict(process) for process in documents]

    def digest(self) -> str:
        """Return the digest of the weights that its last attempt ended with."""
        document = read_object(self.centre, self.uri, f"result/attempt={self.show()['currentAttempt']}.json")
        return str(json.loads(document)["digest"]) if document else "no result"

    def last_step(self) -> int:
        """Return the newest step in the log of its current attempt."""
        return last_step(self.centre.client(), self.job_id)

    def saved_steps(self, attempt: int) -> list[int]:
        """Return the steps of an attempt's finished checkpoints, in order."""
        prefix = f"{self._prefix}/attempt={attempt}/"
        pages = (
            self.centre.deployer.client("s3")
            .get_paginator("list_objects_v2")
            .paginate(Bucket=CHECKPOINTS_BUCKET, Prefix=prefix)
        )
        keys = (str(entry["Key"]) for page in pages for entry in page.get("Contents", ()))
        return sorted(int(key.split("/step=")[1].split("/")[0]) for key in keys if key.endswith("/manifest.json"))

    def delete_shard(self, attempt: int, step: int, rank: int) -> None:
        """Delete one rank's shard of a checkpoint."""
        self._s3.delete_object(**self._shard(attempt, step, rank))

    def corrupt_shard(self, attempt: int, step: int, rank: int, *, has_checksum: bool = True) -> None:
        """Flip one bit of a shard. The store has the SHA-256 of the new bytes, or no checksum."""
        shard_object = self._shard(attempt, step, rank)
        content = bytearray(self._s3.get_object(**shard_object)["Body"].read())
        content[len(content) // 2] ^= 1
        vouched = {"ChecksumAlgorithm": "SHA256"} if has_checksum else {}
        self._s3.put_object(**shard_object, Body=bytes(content), **vouched)

    def _shard(self, attempt: int, step: int, rank: int) -> dict[str, str]:
        name = f"shard-{rank}-of-{self.work.nodes}.bin"
        return {"Bucket": CHECKPOINTS_BUCKET, "Key": f"{self._prefix}/attempt={attempt}/step={step:09d}/{name}"}

    @property
    def _s3(self) -> Any:
        return self.centre.deployer.client("s3")

    @property
    def _prefix(self) -> str:
        return self.uri.removeprefix(f"s3://{CHECKPOINTS_BUCKET}/")

    @property
    def expected_digest(self) -> str:
        """Return the digest of the same job without faults."""
        return reference_digest(self.work.nodes, self.work.steps, self.work.seed)

    # ------------------------------------------------------------ wait for progress

    def reach(self, step: int) -> "TrainingJob":
        """Wait until its current attempt's log shows a step."""
        client = self.centre.client()
        until(lambda: last_step(client, self.job_id) >= step, f"step {step} of {self.job_id}", JOB_SECONDS)
        return self

    def reach_state(self, *states: str) -> Json:
        """Wait until the job is in one of the states, and return it."""
        return self._await_state(states, JOB_SECONDS)

    def end(self, seconds: float = JOB_SECONDS) -> Json:
        """Wait until the job has ended, and return it; `seconds` must exceed the time that its steps take."""
        return self._await_state(ENDED, seconds)

    def _await_state(self, states: Sequence[str], seconds: float) -> Json:
        def look() -> Json:
            job = self.show()
            return job if job["state"] in states else {}

        return until(look, f"{self.job_id} to be {' or '.join(states)}", seconds)


def with_all_nodes_in_service(centre: DataCentre) -> Iterator[None]:
    """Start with every node in service. At the end, cancel running jobs and restore every node."""
    client = centre.client()
    await_all_nodes_ready(client, centre)
    yield
    for state in ("PENDING", "STARTING", "RUNNING"):
        for job in client.get("/jobs", state=state)["items"]:
            client.post(f"/jobs/{job['jobId']}/cancel", {"reason": "its test is over"})
    await_all_nodes_ready(client, centre)
