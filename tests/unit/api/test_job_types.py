"""Job types over HTTP: they complete a short submission, and the answer shows all fields."""

from typing import Any

import pytest

from evenkeel.ports import Table
from evenkeel.runtime.site_policy import SitePolicy
from tests.unit.api.gateway import FLEET, ApiResponse, Gateway

TYPES = {
    "default": "research",
    "types": {
        "production": {"image": "registry/train:1", "command": ["python"], "nodes": 2, "pools": ["plan"]},
        "research": {"image": "registry/train:1", "command": ["python"], "acceleratorsPerNode": 2},
    },
}


@pytest.fixture
def gateway_with_job_types(gateway: Gateway) -> Gateway:
    world = gateway.world
    world.__dict__["policies"] = SitePolicy(gateway.fakes.policy, Table.INCIDENTS, world)
    path = f"/v1/clusters/{FLEET}/policy"
    assert gateway.post(path, {"changes": {"jobTypes": TYPES}, "reason": "Ours."}, key="types").status == 200
    gateway.fakes.clock.advance(31)
    return gateway


def submit_job(api: Gateway, idempotency_key: str = "k1", **fields: Any) -> ApiResponse:
    return api.post("/v1/jobs", {"name": "a", **fields}, key=idempotency_key)


def shown_job(gateway_with_job_types: Gateway, answer: ApiResponse) -> dict[str, Any]:
    document: dict[str, Any] = gateway_with_job_types.get(f"/v1/jobs/{answer.document['jobId']}").document
    return document


def test_job_type_alone_is_a_valid_submission(gateway_with_job_types: Gateway) -> None:
    job = shown_job(gateway_with_job_types, submit_job(gateway_with_job_types))

    assert (job["jobType"], job["image"], job["command"], job["nodes"], job["gpusPerNode"]) == (
        "research",
        "registry/train:1",
        ["python"],
        1,
        2,
    )


def test_body_overrides_the_job_type(gateway_with_job_types: Gateway) -> None:
    job = shown_job(
        gateway_with_job_types,
        submit_job(
            gateway_with_job_types,
            jobType="production",
            gpusPerNode=4,
            requires={"gpuMemoryGib": 80, "gpuModels": ["H100"]},
        ),
    )

    assert (job["jobType"], job["nodes"], job["gpusPerNode"]) == ("production", 2, 4)
    assert job["pools"] == [{"name": "plan", "labels": {}, "market": None}]
    assert (job["requires"]["gpuMemoryGib"], job["requires"]["gpuModels"]) == (80, ["h100"])


def test_unknown_job_type_is_refused_by_field(gateway_with_job_types: Gateway) -> None:
    answer = submit_job(gateway_with_job_types, jobType="prodution")

    assert (answer.status, answer.document["code"]) == (400, "VALIDATION_FAILED")
    assert answer.document["errors"][0]["field"] == "jobType"


def test_repeated_submission_ignores_a_changed_job_type(gateway_with_job_types: Gateway) -> None:
    first = submit_job(gateway_with_job_types)
    path = f"/v1/clusters/{FLEET}/policy"
    gateway_with_job_types.post(path, {"changes": {}, "reason": "Without."}, key="none")
    gateway_with_job_types.fakes.clock.advance(31)

    repeated_answer = submit_job(gateway_with_job_types)

    assert (repeated_answer.status, repeated_answer.document["jobId"]) == (202, first.document["jobId"])
    assert shown_job(gateway_with_job_types, repeated_answer)["jobType"] == "research"


def test_image_and_command_are_required_without_job_types(gateway: Gateway) -> None:
    answer = gateway.post("/v1/jobs", {"name": "a"}, key="k1")

    assert (answer.status, {error["field"] for error in answer.document["errors"]}) == (400, {"image", "command"})
