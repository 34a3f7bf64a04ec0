"""Checkpoints and fences cross from the training script to the functions and back: each reads what the other wrote."""

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from evenkeel.adapters.s3_checkpoints import S3Checkpoints
from evenkeel.domain import checkpoints as service_side
from evenkeel.ports import NotFound
from evenkeel.training import Fenced
from evenkeel.training.layout import ResumePoint
from evenkeel.training.resume import pin
from evenkeel.training.run import Run
from evenkeel.training.storage import open_storage

URI = "s3://checkpoints/research/job-rings"


@pytest.fixture
def store() -> Iterator[S3Checkpoints]:
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="checkpoints")
        yield S3Checkpoints(client)


def chosen_by_service(store: S3Checkpoints, attempt: int) -> service_side.ResumeChoice:
    """Choose as a launch does: from the folders, looking into one at a time."""
    document, _ = store.fence(URI)
    fence = None if document is None else service_side.fence_of(document)
    found = [ref for folder in store.folders(URI) if (ref := service_side.ref_of_folder(folder))]
    evidence: dict[service_side.CheckpointRef, service_side.Evidence] = {}
    while True:
        answer = service_side.choose_resume_point(attempt, fence, found, evidence)
        if isinstance(answer, service_side.ResumeChoice):
            return answer
        try:
            manifest = store.read(URI, answer.ref.manifest_key)
        except NotFound:
            manifest = None
        evidence[answer.ref] = service_side.Evidence(
            manifest=manifest,
            objects={
                key: service_side.StoredObject(
                    size_bytes=one.size_bytes, sha256=one.sha256, modified_at=one.modified_at
                )
                for key, one in store.contents(URI, answer.ref.folder).items()
            },
        )


def test_checkpoint_that_a_script_saved_is_proved_by_the_service(store: S3Checkpoints) -> None:
    run = Run(open_storage(URI), job_id="job-rings", attempt=1)
    run.save(10, b"older", metrics={"loss": 0.5})
    run.save(20, b"newer", metrics={"loss": float("inf")})

    choice = chosen_by_service(store, 2)

    assert choice.grade == service_side.Grade.PROVED
    assert choice.resume_from == service_side.CheckpointRef(attempt=1, step=10).point()
    assert [(out.step, out.code) for out in choice.rejected] == [(20, "METRIC_NOT_FINITE")]


def test_half_written_checkpoint_is_named_by_the_service(store: S3Checkpoints) -> None:
    half = Run(open_storage(URI), job_id="job-rings", attempt=1, rank=0, world_size=2, patience_seconds=0)
    with pytest.raises(TimeoutError):
        half.save(10, b"half")

    choice = chosen_by_service(store, 2)

    assert [(out.step, out.code) for out in choice.rejected] == [(10, "MANIFEST_MISSING")]


def test_fence_that_the_service_raised_ends_the_older_attempt_and_tells_the_newer(store: S3Checkpoints) -> None:
    older = Run(open_storage(URI), job_id="job-rings", attempt=1)
    older.resume()
    older.save(10, b"state")
    document, tag = store.fence(URI)
    fence = service_side.fence_of(document)

    choice = chosen_by_service(store, 2)
    store.raise_fence(URI, service_side.raised(fence, 2, choice).to_json(), tag)

    with pytest.raises(Fenced):
        older.save(20, b"late")
    newer = Run(open_storage(URI), job_id="job-rings", attempt=2).resume()
    assert newer is not None
    assert (newer.step, newer.shard(0)) == (10, b"state")


def test_fence_that_a_script_raised_is_the_pin_that_the_service_finds(store: S3Checkpoints) -> None:
    Run(open_storage(URI), job_id="job-rings", attempt=1).save(10, b"state")

    told = pin(open_storage(URI), 2)
    fence = service_side.fence_of(store.fence(URI)[0])

    assert told.resume_from == ResumePoint(1, 10, "attempt=1/step=000000010/manifest.json")
    assert service_side.standing(fence, 2) == service_side.Standing.PINNED
    assert service_side.standing(fence, 1) == service_side.Standing.STALE
    assert (fence.choice().resume_from, fence.choice().grade) == (
        service_side.CheckpointRef(attempt=1, step=10).point(),
        service_side.Grade.PROVED,
    )
