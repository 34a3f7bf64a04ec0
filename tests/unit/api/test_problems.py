"""Invalid requests get a problem document that names the error, and change nothing."""

from typing import Any

import pytest

from evenkeel.ports import Conflict, Ledger, NotAllowed, Row, Table, Throttled, Unreachable
from evenkeel.runtime import wiring
from tests.unit.api.gateway import Gateway

A_JOB: dict[str, Any] = {"name": "llama", "image": "registry/trainer:1", "command": ["python", "train.py"]}


def test_unknown_job_is_404_problem(gateway: Gateway) -> None:
    answer = gateway.get("/v1/jobs/job-0000000404")

    assert answer.status == 404
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.document == {
        "type": "urn:evenkeel:problem:not-found",
        "title": "Not found",
        "status": 404,
        "code": "NOT_FOUND",
        "detail": "There is no job job-0000000404.",
        "hint": "Check the id. Ended jobs and incidents are kept for 400 days.",
        "requestId": "request-1",
    }


@pytest.mark.parametrize(
    "target",
    [
        *(f"/v1/jobs/job-0000000404/{part}" for part in ("timeline", "why", "logs")),
        "/v1/incidents/inc-0000000404",
        *(f"/v1/incidents/inc-0000000404/{part}" for part in ("timeline", "why")),
        "/v1/decisions/dec-0000000404",
        "/v1/nodes/i-00000000000000404",
        "/v1/clusters/another-fleet/automation",
        "/v1/clusters/another-fleet/policy",
    ],
)
def test_every_read_of_an_unknown_id_is_a_404(gateway: Gateway, target: str) -> None:
    answer = gateway.get(target)

    assert (answer.status, answer.document["code"]) == (404, "NOT_FOUND")


def test_unknown_route_is_404_problem(gateway: Gateway) -> None:
    answer = gateway.get("/v1/nonsense")

    assert (answer.status, answer.document["code"]) == (404, "NO_SUCH_ROUTE")


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ("/v1/jobs?state=SLEEPING", "state[0]"),
        ("/v1/jobs?pageSize=0", "pageSize"),
        ("/v1/jobs?pageSize=201", "pageSize"),
        ("/v1/jobs?colour=blue", "colour"),
        ("/v1/incidents?state=", None),
        ("/v1/incidents?state=RUNNING", "state[0]"),
        ("/v1/nodes?pageSize=many", "pageSize"),
        ("/v1/status?verbose=1", "verbose"),
        ("/v1/jobs?state=PENDING&state=RUNNING", "state"),
        ("/v1/incidents?pageSize=1&pageSize=1", "pageSize"),
        ("/v1/jobs?unmanaged=true&state=PENDING", "unmanaged"),
        ("/v1/jobs?unmanaged=true&team=nlp", "unmanaged"),
        ("/v1/jobs?unmanaged=true&class=", "unmanaged"),
        ("/v1/jobs?unmanaged=true&pageSize=10", None),
        ("/v1/jobs/job-1/logs?tail=0", "tail"),
        ("/v1/jobs/job-1/logs?rank=-1", "rank"),
    ],
)
def test_invalid_query_parameter_is_named(gateway: Gateway, target: str, field: str | None) -> None:
    answer = gateway.get(target)

    if field is None:
        assert answer.status == 200
        return
    assert (answer.status, answer.document["code"]) == (400, "VALIDATION_FAILED")
    assert [error["field"] for error in answer.document["errors"]] == [field]


@pytest.mark.parametrize("token", ["nonsense", "e30", "bnVsbA", "WzFd", "%00", "eyJ2IjoxfQ", "W1tb" * 1500])
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/incidents", "/v1/nodes"])
def test_forged_page_token_is_refused(gateway: Gateway, path: str, token: str) -> None:
    answer = gateway.get(f"{path}?nextPageToken={token}")

    assert (answer.status, answer.document["code"]) == (400, "BAD_PAGE_TOKEN")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "Not A Label"}, "name"),
        ({"name": 7}, "name"),
        ({"image": ""}, "image"),
        ({"command": []}, "command"),
        ({"command": "python train.py"}, "command"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": "many"}, "nodes"),
        ({"gpusPerNode": -1}, "gpusPerNode"),
        ({"acceleratorsPerNode": 8}, "acceleratorsPerNode"),
        ({"env": {"1BAD": "x"}}, "env"),
        ({"env": {"WORLD_SIZE": "9"}}, "env"),
        ({"checkpoint": {"uri": "file:///etc"}}, "checkpoint.uri"),
        ({"checkpoint": {}}, "checkpoint.uri"),
        ({"checkpoint": {"uri": "s3://b/p", "every": 5}}, "checkpoint.every"),
        ({"recovery": {"maxRestarts": -1}}, "recovery.maxRestarts"),
        ({"labels": {"evenkeel.io/job": "x"}}, "labels"),
        ({"priorityClass": "Sehr Hoch"}, "priorityClass"),
        ({"serviceAccount": "admin"}, "serviceAccount"),
        ({"command": ["a\u0000b"]}, "command[0]"),
    ],
)
def test_malformed_job_is_refused_and_field_named(gateway: Gateway, change: dict[str, Any], field: str) -> None:
    answer = gateway.post("/v1/jobs", {**A_JOB, **change})

    assert (answer.status, answer.document["code"]) == (400, "VALIDATION_FAILED")
    assert answer.document["errors"][0]["field"].startswith(field)
    assert gateway.fakes.ledger.commits == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"gpuPerNode": 8},
            "is not a known field; did you mean gpusPerNode, cpuPerNode, hugePagesMibPerNode or memoryGibPerNode?",
        ),
        ({"checkpoint": {"url": "s3://b/p", "uri": "s3://b/p"}}, "is not a known field; did you mean uri?"),
        ({"secretEnv": {"A": {"secret": "a", "key": "k", "keys": "k"}}}, "is not a known field; did you mean key?"),
        ({"zzz": 1}, "is not a known field"),
    ],
)
def test_unknown_field_names_similar_fields(gateway: Gateway, change: dict[str, Any], message: str) -> None:
    answer = gateway.post("/v1/jobs", {**A_JOB, **change})

    assert [error["message"] for error in answer.document["errors"]] == [message]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": "python train.py"}, "must be a list"),
        ({"env": ["A=1"]}, "must be an object"),
        ({"elastic": [1]}, "must be an object"),
        ({"image": 7}, "must be text"),
        ({"nodes": "two"}, "must be a whole number"),
        ({"nodes": 1.5}, "must be a whole number"),
    ],
)
def test_value_of_wrong_type_names_json_type(gateway: Gateway, change: dict[str, Any], message: str) -> None:
    answer = gateway.post("/v1/jobs", {**A_JOB, **change})

    assert [error["message"] for error in answer.document["errors"]] == [message]


@pytest.mark.parametrize("body", ["{", "[]", '"text"', "nul", "x" * 70_000])
def test_body_that_is_no_json_object_is_refused(gateway: Gateway, body: str) -> None:
    answer = gateway.post("/v1/jobs", body)

    assert (answer.status, answer.document["code"]) == (400, "NOT_JSON")


@pytest.mark.parametrize("key", [None, "", "two words", "x" * 129, "ключ"])
@pytest.mark.parametrize(
    "target",
    [
        "/v1/jobs",
        "/v1/jobs/job-1/cancel",
        "/v1/clusters/laptop/automation/hold",
        "/v1/clusters/laptop/automation/release",
    ],
)
def test_change_without_idempotency_key_is_refused(gateway: Gateway, target: str, key: str | None) -> None:
    body = {"/v1/jobs": A_JOB, "/v1/clusters/laptop/automation/hold": {"reason": "x", "forSeconds": 60}}
    answer = gateway.post(target, body.get(target, {}), key=key)

    assert (answer.status, answer.document["code"]) == (400, "IDEMPOTENCY_KEY_MISSING")
    assert gateway.fakes.ledger.commits == []


def test_request_without_identity_changes_nothing(gateway: Gateway) -> None:
    answer = gateway.post("/v1/jobs", A_JOB, caller="")

    assert (answer.status, answer.document["code"]) == (403, "NOT_ALLOWED")
    assert gateway.fakes.ledger.commits == []


class FailingLedger:
    """A ledger of which every read fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get(self, _key: object) -> Row | None:
        raise self._error

    def partition(self, _table: Table, _pk: str, _prefix: str = "") -> tuple[Row, ...]:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Throttled("slow down"), 429, "THROTTLED"),
        (Unreachable("10.0.0.1 timed out"), 503, "UNAVAILABLE"),
        (Conflict("row JOB#1 at 7"), 409, "CONFLICT"),
        (NotAllowed("AccessDenied on arn:secret"), 503, "UNAVAILABLE"),
        (RuntimeError("stack, trace and secrets"), 500, "INTERNAL"),
    ],
)
def test_text_of_an_internal_error_is_not_returned(gateway: Gateway, error: Exception, status: int, code: str) -> None:
    ledger: Ledger = FailingLedger(error)  # type: ignore[assignment]  # reads only, and they all fail
    fakes = gateway.fakes
    gateway.world = wiring.Ports(gateway.settings, ledger=ledger, clock=fakes.clock, telemetry=fakes.telemetry)

    answer = gateway.get("/v1/jobs/job-0000000001")

    assert (answer.status, answer.document["code"]) == (status, code)
    assert str(error) not in answer.text
    assert ("Retry-After" in answer.headers) is (status in (429, 503))
