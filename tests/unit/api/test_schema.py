"""Valid and invalid requests drawn from openapi.json, against the API of a fleet with a history.

No request gets a 5xx, and every answer is in the description. The suite uses one seed;
`API_SEED=7 API_EXAMPLES=500 pytest tests/unit/api/test_schema.py` uses another seed and more requests.
"""

import json
import os
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.unit.api.gateway import FLEET, Gateway, template_routes
from tests.unit.api.seeds import a_decision, a_fleet_node, a_job, an_incident, store
from tests.unit.api.test_teams import IF_NEW, QUOTAS, TEAM, a_team, role_arn, session_arn
from tools import openapi

SEED = int(os.environ.get("API_SEED", "1"))
EXAMPLES = int(os.environ.get("API_EXAMPLES", "6"))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
CALLERS = [session_arn("Nlp"), session_arn("NlpLead"), session_arn("Guest"), session_arn("Other"), role_arn("Nlp")]


def gateway_with_history() -> Gateway:
    """Return the API of a fleet with a history. In an empty fleet most requests would find no data."""
    site = Gateway()
    site.call("PUT", QUOTAS, {"quotas": {"priorityClasses": {"high": 100}}, "reason": "First."}, headers=IF_NEW)
    site.call("PUT", TEAM, a_team(), headers=IF_NEW)
    store(
        site.fakes.ledger,
        *(a_job(number, state=state) for number, state in enumerate(("PENDING", "RUNNING", "FAILED"), 1)),
        an_incident(),
        a_fleet_node(1),
        a_decision(1, "job-0000000001"),
    )
    return site


SITE = gateway_with_history()
KNOWN_IDS = {
    "jobId": ["job-0000000001", "job-0000000002", "job-0000000003"],
    "incidentId": ["inc-0000000001"],
    "decisionId": ["dec-0000000001"],
    "nodeId": [a_fleet_node(1).life.instance_id],
    "cluster": [FLEET],
    "team": ["nlp"],
}


def wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Pass a request to the API, as its gateway does."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(length).decode("utf-8", "replace") if length else None
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").title(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    target = quote(environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace"), safe="/")
    if environ.get("QUERY_STRING"):
        target += f"?{environ['QUERY_STRING']}"
    answer = SITE.call(
        environ["REQUEST_METHOD"],
        target,
        body,
        key=headers.pop("Idempotency-Key", None),
        caller=headers.pop("X-Caller", CALLERS[0]),
        headers=headers,
    )
    start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", list(answer.headers.items()))
    return [answer.text.encode()]


def described_responses() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(openapi.text())
    return document | {"servers": [{"url": "/"}]}


SCHEMA = schemathesis.openapi.from_dict(described_responses())
SCHEMA.app = wsgi
OPERATIONS = [operation.ok() for operation in SCHEMA.get_all_operations() if isinstance(operation, Ok)]


def test_requests_are_generated_for_every_route() -> None:
    assert len(OPERATIONS) == len(template_routes())


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda generation_mode: generation_mode.value)
def test_every_answer_matches_the_openapi_description(operation: Any, mode: schemathesis.GenerationMode) -> None:
    @seed(SEED)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=False
    )
    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def holds(case: Any, data: st.DataObject) -> None:
        for name in case.path_parameters or {}:
            if data.draw(st.booleans(), label=f"a known {name}"):
                case.path_parameters[name] = data.draw(st.sampled_from(KNOWN_IDS[name]), label=name)
        caller = data.draw(st.sampled_from(CALLERS), label="caller")
        case.call_and_validate(headers={"X-Caller": caller}, checks=CHECKS)

    holds()
