from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import JobState
from evenkeel.ports import Delete, Invalid, KeyReused, Ledger, NotFound, Table, Write
from evenkeel.services.jobs.cancel_job import CancelOutcome
from evenkeel.services.tables import job_rows
from tests.unit.services_jobs.job_scenario import JobScenario

MOUNTED = {"checkpoint_uri": "file:///fsx/llama", "checkpoint_claim": "fsx"}


def test_submitted_job_is_queued_and_requests_a_cycle() -> None:
    scenario = JobScenario()

    job = scenario.submit()

    assert (scenario.job(job.job_id).state, scenario.world.cycle_requests.reasons) == (
        JobState.PENDING,
        [f"{job.job_id} submitted"],
    )
    assert scenario.timeline(job.job_id) == ["submitted"]


def test_same_idempotency_key_returns_the_same_job() -> None:
    scenario = JobScenario()
    first = scenario.submission()

    again = scenario.submission()

    assert (again.job.job_id, again.is_repeat, first.is_repeat) == (first.job.job_id, True, False)


def test_same_idempotency_key_for_another_job_is_refused() -> None:
    scenario = JobScenario()
    scenario.submit()

    with pytest.raises(KeyReused):
        scenario.submit(nodes=4)


def test_two_principals_may_use_the_same_idempotency_key() -> None:
    scenario = JobScenario()

    assert scenario.submission().job.job_id != scenario.submission(principal="role/bob").job.job_id


def test_idempotency_key_can_be_reused_after_a_day() -> None:
    scenario = JobScenario()
    first = scenario.submit()
    scenario.world.clock.advance(timedelta(hours=25).total_seconds())

    assert scenario.submit(nodes=4, checkpoint_uri="s3://checkpoints/another").job_id != first.job_id


def test_invalid_job_leaves_no_rows() -> None:
    scenario = JobScenario()

    with pytest.raises(Invalid) as refused:
        scenario.submit(nodes=0, image="")

    assert [field for field, _ in refused.value.faults] == ["image", "nodes"]
    assert not scenario.world.ledger.rows


def test_pending_job_is_cancelled_at_once() -> None:
    scenario = JobScenario()
    job = scenario.submit()

    result = scenario.cancel(job.job_id)

    assert result.outcome is CancelOutcome.CANCELLED
    assert scenario.job(job.job_id).state is JobState.CANCELLED
    assert scenario.job(job.job_id).ended_at


def test_live_job_gets_a_stop_request() -> None:
    scenario = JobScenario()
    job = scenario.running(grace_seconds=77)

    result = scenario.cancel(job.job_id)

    request = scenario.job(job.job_id).stop_of(1)
    assert request
    assert (result.outcome, scenario.job(job.job_id).state) == (CancelOutcome.STOPPING, JobState.STOPPING)
    assert (request.outcome, request.grace_seconds, request.by) == (AttemptState.STOPPED, 77, "cancel/ana")


@pytest.mark.parametrize("exit_code", [143, 1])
def test_cancelled_job_keeps_its_author_and_reason(exit_code: int) -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.cancel(job.job_id, "wrong data")

    scenario.world.cluster.fail_pods(job.job_id, 1, exit_code=exit_code)
    scenario.settle(job.job_id)

    ended = scenario.job(job.job_id)
    assert (ended.state, ended.reason) == (JobState.CANCELLED, "Cancelled by ana: wrong data.")


def test_second_cancel_changes_nothing() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.cancel(job.job_id)
    before = scenario.world.ledger.contents()

    assert scenario.cancel(job.job_id).outcome is CancelOutcome.STOPPING
    assert scenario.world.ledger.contents() == before


def test_job_that_ended_cannot_be_cancelled() -> None:
    scenario = JobScenario()
    job = scenario.running()
    scenario.world.cluster.finish_pods(job.job_id, 1)
    scenario.settle(job.job_id)

    assert scenario.cancel(job.job_id).outcome is CancelOutcome.ALREADY_ENDED


def test_unknown_job_cannot_be_cancelled() -> None:
    with pytest.raises(NotFound):
        JobScenario().cancel("job-0")


def test_idempotency_key_is_stored_in_the_commit_of_the_job() -> None:
    scenario = JobScenario()
    job = scenario.submit()

    (commit,) = scenario.world.ledger.commits
    assert len(commit) == 6
    row = scenario.world.ledger.get(job_rows.idempotency_key("role/ana", "key-1"))
    assert row
    assert row.doc["jobId"] == job.job_id


@pytest.mark.parametrize(
    ("first", "second", "is_taken"),
    [
        ({"checkpoint_uri": "s3://bucket/llama"}, {"checkpoint_uri": "s3://bucket/llama/"}, True),
        ({"checkpoint_uri": "s3://bucket/llama"}, {"checkpoint_uri": "s3://bucket/llama/2"}, True),
        ({"checkpoint_uri": "s3://bucket/llama/2"}, {"checkpoint_uri": "s3://bucket/llama"}, True),
        ({"checkpoint_uri": "s3://bucket/a/llama/2"}, {"checkpoint_uri": "s3://bucket/a"}, True),
        ({"checkpoint_uri": "s3://bucket/llama"}, {"checkpoint_uri": "s3://bucket/llama-2"}, False),
        ({"checkpoint_uri": "s3://bucket/llama"}, {"checkpoint_uri": "s3://bucket/Llama"}, False),
        ({"checkpoint_uri": ""}, {"checkpoint_uri": ""}, False),
        (MOUNTED, MOUNTED, True),
        (MOUNTED, {**MOUNTED, "checkpoint_claim": "other"}, False),
        (MOUNTED, {**MOUNTED, "checkpoint_uri": "file:///data/llama"}, True),
        (MOUNTED, {**MOUNTED, "checkpoint_uri": "file:///data/llama/2"}, True),
        ({**MOUNTED, "checkpoint_uri": "file:///fsx/a/b"}, {**MOUNTED, "checkpoint_uri": "file:///b/a"}, True),
        (MOUNTED, {**MOUNTED, "checkpoint_uri": "file:///data/llama-2"}, False),
    ],
)
def test_checkpoint_path_belongs_to_one_job(first: dict[str, Any], second: dict[str, Any], is_taken: bool) -> None:
    scenario = JobScenario()
    owner = scenario.submit("key-1", **first)

    if not is_taken:
        assert scenario.submit("key-2", **second).job_id != owner.job_id
        return
    with pytest.raises(Invalid) as refused:
        scenario.submit("key-2", **second)

    ((field, fault),) = refused.value.faults
    assert field == "checkpoint.uri"
    assert owner.job_id in fault
    assert scenario.submit("key-1", **first).job_id == owner.job_id


class QueuePositionRaceLedger:
    """A ledger in which another submission commits just before the first commit that takes a queue position."""

    def __init__(self, inner: Ledger, meanwhile: Callable[[], object]) -> None:
        self.inner, self.meanwhile = inner, [meanwhile]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        if self.meanwhile:
            self.meanwhile.pop()()
        self.inner.commit(*writes, client_token=client_token)


def test_second_job_of_a_checkpoint_path_is_refused() -> None:
    scenario, other = JobScenario(), JobScenario()
    other.ledger = scenario.ledger
    other.world.ids = scenario.world.ids
    checkpoint = {"checkpoint_uri": "s3://bucket/llama"}
    meeting = QueuePositionRaceLedger(scenario.ledger, lambda: other.submit("key-2", **checkpoint))
    scenario.ledger = meeting  # type: ignore[assignment]

    with pytest.raises(Invalid) as refused:
        scenario.submit("key-1", **checkpoint)

    assert [field for field, _ in refused.value.faults] == ["checkpoint.uri"]
    assert len(scenario.world.ledger.by_state(Table.JOBS, "JOB#PENDING").rows) == 1


def test_checkpoint_path_is_free_if_its_job_never_ran() -> None:
    scenario = JobScenario()
    checkpoint = {"checkpoint_uri": "s3://bucket/llama"}
    scenario.cancel(scenario.submit("key-1", **checkpoint).job_id)

    second = scenario.submit("key-2", **checkpoint)
    with pytest.raises(Invalid):
        scenario.submit("key-3", **checkpoint)

    assert scenario.job(second.job_id).spec.checkpoint_uri == "s3://bucket/llama"


def test_checkpoint_path_is_free_once_its_job_expired() -> None:
    scenario = JobScenario()
    checkpoint = {"checkpoint_uri": "s3://bucket/llama"}
    row = scenario.world.ledger.get(job_rows.job_key(scenario.submit("key-1", **checkpoint).job_id))
    assert row
    scenario.world.ledger.commit(Delete(row.key, row.version))

    assert scenario.submit("key-2", **checkpoint).state is JobState.PENDING


def test_checkpoint_path_stays_reserved_once_its_job_ran() -> None:
    scenario = JobScenario()
    checkpoint = {"checkpoint_uri": "s3://bucket/llama"}
    job = scenario.running(**checkpoint)
    scenario.world.cluster.finish_pods(job.job_id, 1)
    scenario.settle(job.job_id)
    assert scenario.job(job.job_id).state is JobState.SUCCEEDED

    with pytest.raises(Invalid):
        scenario.submit("another", **checkpoint)


@pytest.mark.parametrize("part", ["attempt=1", "step=000000001", "_fence", "manifest.json"])
def test_checkpoint_path_uses_no_reserved_name(part: str) -> None:
    with pytest.raises(Invalid):
        JobScenario().submit(checkpoint_uri=f"s3://bucket/llama/{part}/x")


@pytest.mark.parametrize("bucket", ["team-a-ap-x7k2-s3alias", "team-a-x7k2--ol-s3", "mfzwi23gnjvgw.mrap"])
def test_access_point_alias_is_no_checkpoint_path(bucket: str) -> None:
    with pytest.raises(Invalid) as refused:
        JobScenario().submit(checkpoint_uri=f"s3://{bucket}/llama")

    assert [field for field, _ in refused.value.faults] == ["checkpoint.uri"]


def test_bucket_name_similar_to_an_alias_is_accepted() -> None:
    assert JobScenario().submit(checkpoint_uri="s3://s3alias-data/llama-s3alias").job_id
