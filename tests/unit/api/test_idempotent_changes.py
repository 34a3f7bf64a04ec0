"""Submit, cancel, hold and release: the author, one effect, and the same answer to a repeat."""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.runtime.api import read_caller
from tests.fakes.system import A_MOMENT
from tests.unit.api.gateway import ACCOUNT, Gateway
from tests.unit.api.seeds import a_job, store

A_JOB: dict[str, Any] = {
    "name": "llama",
    "image": "registry/trainer:1",
    "command": ["python", "-m", "train"],
    "args": ["--steps", "10"],
    "nodes": 2,
    "gpusPerNode": 8,
    "checkpoint": {"uri": "s3://checkpoints/llama"},
    "env": {"SEED": "7"},
}
HOLD = "/v1/clusters/laptop/automation/hold"
RELEASE = "/v1/clusters/laptop/automation/release"


def test_submitted_job_is_accepted_with_its_location(gateway: Gateway) -> None:
    answer = gateway.post("/v1/jobs", A_JOB)

    job = answer.document
    assert (answer.status, answer.headers["Location"]) == (202, f"/v1/jobs/{job['jobId']}")
    assert (job["state"], job["submittedBy"]) == ("PENDING", "role/Researcher (ana)")
    assert gateway.get(answer.headers["Location"]).document["checkpoint"] == {
        "uri": "s3://checkpoints/llama",
        "claim": None,
    }


def test_repeated_submission_creates_one_job(gateway: Gateway) -> None:
    first = gateway.post("/v1/jobs", A_JOB)
    second = gateway.post("/v1/jobs", A_JOB, caller=f"arn:aws:sts::{ACCOUNT}:assumed-role/Researcher/another-session")

    assert second.document["jobId"] == first.document["jobId"]
    assert len(gateway.get("/v1/jobs").document["items"]) == 1


def test_same_idempotency_key_for_another_job_is_refused(gateway: Gateway) -> None:
    gateway.post("/v1/jobs", A_JOB)
    answer = gateway.post("/v1/jobs", {**A_JOB, "nodes": 3})

    assert (answer.status, answer.document["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")


def test_two_principals_may_use_the_same_idempotency_key(gateway: Gateway) -> None:
    first = gateway.post("/v1/jobs", A_JOB)
    another = {**A_JOB, "checkpoint": {"uri": "s3://checkpoints/bo"}}
    second = gateway.post("/v1/jobs", another, caller=f"arn:aws:iam::{ACCOUNT}:user/bo")

    assert second.document["jobId"] != first.document["jobId"]


def test_job_shows_no_values_of_its_environment_variables(gateway: Gateway) -> None:
    job_id = gateway.post("/v1/jobs", {**A_JOB, "env": {"TOKEN": "s3cret"}}).document["jobId"]

    answer = gateway.get(f"/v1/jobs/{job_id}")

    assert answer.document["envNames"] == ["TOKEN"]
    assert "s3cret" not in answer.text


def test_repeated_cancel_of_a_pending_job_gets_the_same_answer(gateway: Gateway) -> None:
    job_id = gateway.post("/v1/jobs", A_JOB).document["jobId"]

    answers = [gateway.post(f"/v1/jobs/{job_id}/cancel", {"reason": "not needed"}) for _ in range(2)]

    assert [(answer.status, answer.document["state"]) for answer in answers] == [(202, "CANCELLED")] * 2
    assert "not needed" in answers[0].document["reason"]


def test_job_that_has_ended_cannot_be_cancelled(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_job(1, state="SUCCEEDED", reason="Done."))

    answer = gateway.post("/v1/jobs/job-0000000001/cancel")

    assert (answer.status, answer.document["code"]) == (409, "JOB_ENDED")


def test_cancelling_an_unknown_job_is_a_404(gateway: Gateway) -> None:
    assert gateway.post("/v1/jobs/job-0000000404/cancel").status == 404


def test_hold_of_automation_is_shown_until_it_ends(gateway: Gateway) -> None:
    answer = gateway.post(HOLD, {"reason": "network work", "forSeconds": 600})
    during_hold = gateway.get("/v1/clusters/laptop/automation").document
    gateway.fakes.clock.advance(600)
    after_hold = gateway.get("/v1/clusters/laptop/automation").document

    assert answer.status == 200
    assert (during_hold["isHeld"], during_hold["hold"]["by"], during_hold["hold"]["reason"]) == (
        True,
        "role/Researcher (ana)",
        "network work",
    )
    assert (after_hold["isHeld"], after_hold["hold"]) == (False, None)


def test_repeated_hold_keeps_its_first_end(gateway: Gateway) -> None:
    first = gateway.post(HOLD, {"reason": "x", "forSeconds": 600})
    gateway.fakes.clock.advance(60)
    second = gateway.post(HOLD, {"reason": "x", "forSeconds": 600})

    assert second.document == first.document
    assert len(gateway.fakes.ledger.commits) == 1


def test_idempotency_key_of_a_hold_cannot_be_reused(gateway: Gateway) -> None:
    gateway.post(HOLD, {"reason": "x", "forSeconds": 600})
    answers = [gateway.post(HOLD, {"reason": "y", "forSeconds": 600}), gateway.post(RELEASE)]

    assert [(answer.status, answer.document["code"]) for answer in answers] == [(422, "IDEMPOTENCY_KEY_REUSED")] * 2


def test_idempotency_key_expires_after_a_day(gateway: Gateway) -> None:
    gateway.post(HOLD, {"reason": "x", "forSeconds": 600})
    gateway.fakes.clock.set(A_MOMENT + timedelta(days=2))
    answer = gateway.post(HOLD, {"reason": "y", "forSeconds": 600})

    assert (answer.status, answer.document["reason"]) == (200, "y")


def test_repeated_release_gets_the_same_answer(gateway: Gateway) -> None:
    gateway.post(HOLD, {"reason": "x", "forSeconds": 600}, key="hold")
    answers = [gateway.post(RELEASE, {"reason": "done"}, key="release") for _ in range(2)]

    assert [answer.document["wasHeld"] for answer in answers] == [True, True]
    assert gateway.get("/v1/clusters/laptop/automation").document["isHeld"] is False


def test_release_of_automation_without_a_hold_succeeds(gateway: Gateway) -> None:
    answer = gateway.post(RELEASE)

    assert (answer.status, answer.document["wasHeld"]) == (200, False)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"reason": "x"},
        {"reason": "", "forSeconds": 60},
        {"reason": "x", "forSeconds": 0},
        {"reason": "x", "forSeconds": 60, "until": "2026-11-03T12:00:00Z"},
        {"reason": "x", "until": "2026-11-03T12:00:00"},
    ],
)
def test_hold_of_automation_needs_a_reason_and_one_end(gateway: Gateway, body: dict[str, Any]) -> None:
    answer = gateway.post(HOLD, body)

    assert (answer.status, answer.document["code"]) == (400, "VALIDATION_FAILED")


def test_hold_for_another_fleet_is_refused(gateway: Gateway) -> None:
    assert gateway.post("/v1/clusters/other/automation/hold", {"reason": "x", "forSeconds": 60}).status == 404


@pytest.mark.parametrize(
    ("arn", "principal", "session"),
    [
        (f"arn:aws:sts::{ACCOUNT}:assumed-role/Researcher/ana", "role/Researcher", "ana"),
        (f"arn:aws:iam::{ACCOUNT}:user/teams/nlp/bo", "user/bo", ""),
        (f"arn:aws:iam::{ACCOUNT}:root", "root", ""),
        ("arn:aws:sts::111111111111:assumed-role/Ops/x", "111111111111:role/Ops", "x"),
        ("nonsense", ":nonsense", ""),
    ],
)
def test_caller_is_recorded_by_role_or_user_name(arn: str, principal: str, session: str) -> None:
    caller = read_caller(arn, own_account=ACCOUNT)

    assert (caller.principal, caller.session) == (principal, session)
