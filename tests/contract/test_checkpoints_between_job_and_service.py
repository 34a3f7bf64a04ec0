"""Checkpoints and fences between the training script and the functions: each side reads the other side's writes."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import boto3
import pytest
from moto import mock_aws

from evenkeel.adapters.s3_checkpoints import S3Checkpoints
from evenkeel.domain import checkpoints as service_side
from evenkeel.domain.jobs.attempt import Attempt, AttemptState
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.services.attempts import pin_resume_point
from evenkeel.training import Fenced
from evenkeel.training.layout import ResumePoint
from evenkeel.training.resume import pin
from evenkeel.training.run import Run
from evenkeel.training.storage import open_storage
from tests.fakes.system import A_MOMENT

URI = "s3://checkpoints/research/job-rings"


@pytest.fixture
def calls() -> list[str]:
    """The names of the service's calls to the store."""
    return []


@pytest.fixture
def store(calls: list[str]) -> Iterator[S3Checkpoints]:
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="checkpoints")
        client.meta.events.register("before-call.s3.*", lambda model, **_: calls.append(model.name))
        yield S3Checkpoints(client)


def a_job() -> Job:
    spec = JobSpec(name="rings", image="trainer:1", command=("train",), checkpoint_uri=URI)
    return Job(
        job_id="job-rings", spec=spec, state=JobState.STARTING, submitted_at=A_MOMENT, cluster="eks", namespace="jobs"
    )


def an_attempt(number: int) -> Attempt:
    return Attempt(
        job_id="job-rings",
        attempt=number,
        state=AttemptState.STARTING,
        cluster="eks",
        namespace="jobs",
        pool="p5",
        nodes=(),
        node_names=(),
        accelerators=8,
        admitted_at=A_MOMENT,
    )


def pinned_by_service(store: S3Checkpoints, attempt: int) -> service_side.ResumeChoice:
    """Choose and pin the resume point, as a launch does."""
    answer = pin_resume_point.run(a_job(), an_attempt(attempt), store, policy=JobPolicy())
    assert answer.kind is pin_resume_point.PinOutcome.PINNED
    return answer.resume_choice


def test_service_proves_a_checkpoint_that_a_training_script_saved(store: S3Checkpoints) -> None:
    run = Run(open_storage(URI), job_id="job-rings", attempt=1)
    run.save(10, b"older", metrics={"loss": 0.5})
    run.save(20, b"newer", metrics={"loss": float("inf")})

    choice = pinned_by_service(store, 2)

    assert choice.grade == service_side.Grade.PROVED
    assert choice.resume_from == service_side.CheckpointRef(attempt=1, step=10).to_resume_point()
    assert [(rejection.step, rejection.code) for rejection in choice.rejected] == [(20, "METRIC_NOT_FINITE")]


def test_launch_makes_a_bounded_number_of_store_calls(store: S3Checkpoints, calls: list[str]) -> None:
    run = Run(open_storage(URI), job_id="job-rings", attempt=1)
    for step in range(10, 110, 10):
        run.save(step, b"state")
    open_storage(URI).put("attempt=1/step=000000100/shard-0-of-1.bin", b"torn", hashlib.sha256(b"torn").hexdigest())
    calls.clear()

    answer = pin_resume_point.run(a_job(), an_attempt(2), store, policy=JobPolicy())

    point = answer.resume_choice.resume_from
    assert point
    assert point.step == 90
    assert Counter(calls) == {
        "GetObject": 1 + 2,  # the fence; the manifests of two attempts
        "ListObjectsV2": 2 + 2,  # the attempts, the steps of an attempt; the files of two checkpoints
        "HeadObject": 2,  # the shards of two checkpoints
        "PutObject": 1,  # the fence
    }


def test_rejection_by_manifest_needs_one_call_per_checkpoint(store: S3Checkpoints, calls: list[str]) -> None:
    run = Run(open_storage(URI), job_id="job-rings", attempt=1)
    for step in range(10, 60, 10):
        run.save(step, b"state")
    calls.clear()
    doubted = a_job().replace(distrust_after=datetime(2020, 1, 1, tzinfo=UTC), distrust_through_attempt=1)

    answer = pin_resume_point.run(doubted, an_attempt(2), store, policy=JobPolicy())

    assert {rejection.code for rejection in answer.resume_choice.rejected} == {"DISTRUSTED"}
    assert Counter(calls) == {"GetObject": 1 + 5, "ListObjectsV2": 2, "PutObject": 1}


def test_service_names_an_incomplete_checkpoint(store: S3Checkpoints) -> None:
    half = Run(open_storage(URI), job_id="job-rings", attempt=1, rank=0, world_size=2, timeout_seconds=0)
    with pytest.raises(TimeoutError):
        half.save(10, b"half")

    choice = pinned_by_service(store, 2)

    assert [(rejection.step, rejection.code) for rejection in choice.rejected] == [(10, "MANIFEST_MISSING")]


def test_fence_of_the_service_ends_the_older_attempt(store: S3Checkpoints) -> None:
    older = Run(open_storage(URI), job_id="job-rings", attempt=1)
    older.resume()
    older.save(10, b"state")

    pinned_by_service(store, 2)

    with pytest.raises(Fenced):
        older.save(20, b"late")
    newer = Run(open_storage(URI), job_id="job-rings", attempt=2).resume()
    assert newer is not None
    assert (newer.step, newer.shard(0)) == (10, b"state")


def test_service_reads_the_pin_that_a_training_script_wrote(store: S3Checkpoints) -> None:
    Run(open_storage(URI), job_id="job-rings", attempt=1).save(10, b"state")

    choice = pin(open_storage(URI), 2)
    fence = service_side.parse_fence(store.fence(URI)[0])

    assert choice.resume_from == ResumePoint(1, 10, "attempt=1/step=000000010/manifest.json")
    assert service_side.fence_status(fence, 2) == service_side.FenceStatus.PINNED
    assert service_side.fence_status(fence, 1) == service_side.FenceStatus.STALE
    assert (fence.choice().resume_from, fence.choice().grade) == (
        service_side.CheckpointRef(attempt=1, step=10).to_resume_point(),
        service_side.Grade.PROVED,
    )
