"""The API answers any request without a 5xx. A refusal names the problem and the next step."""

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.values import rfc3339
from tests.examples import examples
from tests.unit.api.gateway import FLEET, Gateway, template_routes

A_JOB: dict[str, Any] = {
    "name": "llama",
    "image": "registry/trainer:1",
    "command": ["python", "train.py"],
    "args": ["--steps", "9"],
    "env": {"A": "b"},
    "nodes": 2,
    "gpusPerNode": 8,
    "instanceTypes": ["ml.p5.48xlarge"],
    "checkpoint": {"uri": "s3://bucket/prefix"},
    "recovery": {"maxRestarts": 1},
    "labels": {"a": "b"},
}
GATEWAY = Gateway()
SUBMITTED_JOB_ID = GATEWAY.post("/v1/jobs", A_JOB).document["jobId"]

HOSTILE_TEXTS = [
    "",
    " ",
    "..",
    "../../etc/passwd",
    "%2e%2e%2f",
    "\u202e",
    "\x00",
    "\ud800",
    "💥",
    "x" * 5000,
    "-1",
    "INC#1",
    "META",
]
TEXT = st.text(max_size=20) | st.sampled_from(HOSTILE_TEXTS)
NUMBER = st.integers() | st.floats() | st.sampled_from([2**63, 10**400])
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
PARAMETERS = st.sampled_from(["state", "pageSize", "nextPageToken", "rank", "tail", "attempt", "colour"])
VALID_BODIES = st.sampled_from(
    [A_JOB, {"reason": "x", "forSeconds": 60}, {"reason": "x", "until": "2026-11-03T10:15:02Z"}, {}]
)


@st.composite
def draw_body(draw: st.DrawFn) -> str:
    """Draw a valid body of some route with one field replaced by any value, or any text."""
    if draw(st.booleans()):
        return draw(
            TEXT | st.sampled_from(["[" * 50_000, "1" * 5000, '{"a":' * 9000, "\ufeff{}", '{"nodes":Infinity}'])
        )
    body = dict(draw(VALID_BODIES))
    body[draw(st.sampled_from([*A_JOB, "until", "forSeconds", "reason"]))] = draw(ANYTHING)
    return json.dumps(body)


@st.composite
def draw_request(draw: st.DrawFn) -> tuple[str, str, str | None]:
    """Draw method, target and body of a request."""
    route = draw(st.sampled_from(template_routes()))
    names = draw(st.sampled_from([SUBMITTED_JOB_ID, FLEET]) | TEXT)
    path = re.sub(r"\{\w+\}", quote(names, safe="", errors="replace").replace("\\", ""), route.path)
    parameters = draw(st.lists(st.tuples(PARAMETERS, TEXT | st.integers().map(str)), max_size=2))
    query = "&".join(f"{name}={quote(value, errors='replace')}" for name, value in parameters)
    method = draw(st.sampled_from([*[route.method] * 3, "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]))
    return (
        method,
        f"{path}?{query}" if query else path,
        draw(draw_body()) if method in ("POST", "PUT", "PATCH") else None,
    )


@settings(max_examples=examples(400), deadline=None)
@given(draw_request(), st.none() | TEXT | st.uuids().map(str), st.sampled_from(["application/json", "text/plain", ""]))
def test_any_request_gets_a_documented_response(
    request: tuple[str, str, str | None], key: str | None, content_type: str
) -> None:
    method, target, body = request

    answer = GATEWAY.call(method, target, body, key=key, headers={"Content-Type": content_type})

    assert answer.status < 500, answer.text
    if answer.status >= 400:
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.document["status"] == answer.status
        assert answer.document["code"]
        assert answer.document["hint"]
    answer.text.encode("utf-8")


@pytest.mark.parametrize("body", ["[" * 50_000, '{"a":' * 9000])
def test_deeply_nested_body_is_refused(gateway: Gateway, body: str) -> None:
    answer = gateway.post("/v1/jobs", body)

    assert (answer.status, answer.document["code"]) == (400, "NOT_JSON")


@pytest.mark.parametrize(
    "until",
    [
        "1969-12-31T23:59:59Z",
        "2020-01-01T00:00:00Z",
        "2099-01-01T00:00:00Z",
        "9999-12-31T23:59:59-12:00",
        "1793700840",
        1793700840,
        0,
    ],
)
def test_duration_of_a_hold_is_limited(gateway: Gateway, until: Any) -> None:
    answer = gateway.post(f"/v1/clusters/{FLEET}/automation/hold", {"reason": "x", "until": until})

    assert (answer.status, answer.document["errors"][0]["field"]) == (400, "until")
    assert gateway.fakes.ledger.commits == []


def test_repeated_hold_request_gets_its_first_answer_after_the_end(gateway: Gateway) -> None:
    body = {"reason": "x", "until": rfc3339(gateway.fakes.clock.now())}
    gateway.fakes.clock.advance(-60)
    first = gateway.post(f"/v1/clusters/{FLEET}/automation/hold", body)
    gateway.fakes.clock.advance(120)

    repeated_answer = gateway.post(f"/v1/clusters/{FLEET}/automation/hold", body)

    assert (first.status, repeated_answer.document) == (200, first.document)


@pytest.mark.parametrize("reason", ["two\nlines", "\x1b[31mred", "a\u202eb", "a\u200bb"])
@pytest.mark.parametrize("target", [f"/v1/clusters/{FLEET}/automation/release", f"/v1/jobs/{SUBMITTED_JOB_ID}/cancel"])
def test_reason_with_terminal_control_characters_is_refused(gateway: Gateway, target: str, reason: str) -> None:
    answer = gateway.post(target, {"reason": reason})

    assert (answer.status, answer.document["errors"][0]["field"]) == (400, "reason")


@pytest.mark.parametrize("value", ['"\\ud800"', '{"a\\udfff": 1}', "Infinity", "-Infinity", "NaN", "1e999", "-1e999"])
@pytest.mark.parametrize("field", ["changes", "reason", "colour"])
def test_number_that_json_cannot_represent_is_refused(gateway: Gateway, field: str, value: str) -> None:
    answer = gateway.post(f"/v1/clusters/{FLEET}/policy", f'{{"changes": {{}}, "reason": "x", "{field}": {value}}}')

    assert (answer.status, answer.document["code"]) == (400, "NOT_JSON")
    assert gateway.fakes.ledger.commits == []
