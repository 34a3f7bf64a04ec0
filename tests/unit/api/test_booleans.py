"""A boolean in place of a number is refused in every input."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from evenkeel.domain.policy import Policy, PolicyError, changed
from evenkeel.domain.quotas.teams import Team
from evenkeel.domain.values import NOT_A_NUMBER, alternatives, booleans_for_numbers
from evenkeel.runtime import request_bodies
from evenkeel.runtime.api import Body
from tests.unit.api.gateway import Gateway
from tests.unit.api.test_faults import report_faults
from tests.unit.api.test_idempotent_changes import A_JOB, HOLD


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"nodes": True}, "nodes"),
        ({"gpusPerNode": False}, "gpusPerNode"),
        ({"recovery": {"maxRestarts": True}}, "recovery.maxRestarts"),
        ({"elastic": {"minNodes": 1, "maxNodes": True}}, "elastic.maxNodes"),
        ({"elastic": {"minNodes": 1, "maxNodes": 2, "sizes": [1, True]}}, "elastic.sizes[1]"),
        ({"requires": {"gpuMemoryGib": True}}, "requires.gpuMemoryGib"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/plan"])
def test_boolean_given_for_a_number_of_a_job_is_refused(
    gateway: Gateway, path: str, changes: dict[str, Any], field: str
) -> None:
    answer = gateway.post(path, {**A_JOB, **changes})

    assert (answer.status, answer.document["code"]) == (400, "VALIDATION_FAILED")
    assert answer.document["errors"] == [{"field": field, "message": NOT_A_NUMBER}]


def test_boolean_given_for_a_number_of_any_request_is_refused(gateway: Gateway) -> None:
    hold = gateway.post(HOLD, {"reason": "A look.", "forSeconds": True})
    fault = report_faults(gateway, {"jobId": "job-1", "rank": True, "code": "79", "observedAt": "2026-11-03T10:15:00Z"})
    page = gateway.get("/v1/jobs?pageSize=true")

    assert [answer.status for answer in (hold, fault, page)] == [400, 400, 400]
    assert hold.document["errors"] == [{"field": "forSeconds", "message": NOT_A_NUMBER}]
    assert fault.document["errors"] == [{"field": "faults[0].rank", "message": NOT_A_NUMBER}]


def test_boolean_given_for_a_number_of_a_team_is_reported() -> None:
    team = {"name": "red", "maxAcceleratorsPerUser": True, "budgets": [{"period": "day", "gpuHours": True}]}

    assert list(booleans_for_numbers(Team, team)) == [("maxAcceleratorsPerUser",), ("budgets", 0, "gpuHours")]


def test_boolean_given_for_a_number_of_a_policy_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"scheduling\.jobsPerPage: must be a number"):
        changed(Policy(), {"scheduling": {"jobsPerPage": True, "spareNodes": {"p5": True}}})


def paths_of_numbers(model: type[BaseModel], document: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the path of each number in a document that a model has written."""
    if isinstance(document, dict):
        return [number for name, value in document.items() for number in paths_of_numbers(model, value, (*path, name))]
    return [path] if isinstance(document, int | float) and not isinstance(document, bool) else []


def test_boolean_given_for_any_policy_number_is_reported() -> None:
    paths = paths_of_numbers(Policy, Policy().to_json())
    assert len(paths) > 80

    for path in paths:
        changes: Any = True
        for name in reversed(path):
            changes = {name: changes}
        assert list(booleans_for_numbers(Policy, changes)) == [path]


def models_in(kind: type[Body] = Body) -> Iterator[type[Body]]:
    """Yield every model of a body or query of the API, and the models inside it."""
    for subclass in kind.__subclasses__():
        yield subclass
        yield from models_in(subclass)


def test_boolean_given_for_any_number_of_a_body_is_reported() -> None:
    fields = set()
    for body in models_in():
        for name, field in body.model_fields.items():
            kinds = set(alternatives(field.annotation))
            if kinds & {int, float} and bool not in kinds:
                fields.add((body.__name__, name))
                assert list(booleans_for_numbers(body, {field.alias or name: True})) == [(field.alias or name,)]
    assert {("JobBody", "gpusPerNode"), ("ElasticBody", "step"), ("RecoveryBody", "maxRestarts")} <= fields
    assert len(fields) > 10
    assert request_bodies.JobBody in models_in()
