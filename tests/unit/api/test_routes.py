"""The template, the functions and docs/api.md have the same routes."""

import importlib
import json
import re
from typing import Any

import pytest

from evenkeel.runtime.api import PROBLEMS
from tests.unit.api.gateway import ROOT, template_routes
from tools import openapi

FUNCTIONS = ("api_read", "api_submit", "api_operate", "api_admin")


def routes_of(function: str) -> set[tuple[str, str]]:
    app = importlib.import_module(f"functions.{function}.handler").app
    routes = [*app._static_routes, *app._dynamic_routes]
    return {(route.method, re.sub(r"<\w+>", "{}", route.path)) for route in routes}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_template_routes_match_those_of_each_function(function: str) -> None:
    sent = {
        (route.method, re.sub(r"\{\w+\}", "{}", route.path))
        for route in template_routes()
        if route.function == function
    }

    own = routes_of(function)
    assert sorted(own - sent) == [], f"add the path to Events of the function {function} in template.yaml"
    assert sorted(sent - own) == [], (
        f"add the route to functions/{function}/handler.py, or take its path from template.yaml"
    )


def test_api_page_lists_every_route() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed_routes = {
        (method, re.sub(r"\{\w+\}", "{}", path))
        for method, path in re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/v1/[^`?]*)[^`]*`", text)
    }

    served_routes = set().union(*(routes_of(function) for function in FUNCTIONS))
    assert sorted(served_routes - listed_routes) == [], "add the row of the route to docs/api.md"
    assert sorted(listed_routes - served_routes) == [], "remove the row of the route from docs/api.md"


def test_openapi_description_matches_the_functions() -> None:
    assert openapi.TARGET.read_text(encoding="utf-8") == openapi.text(), "run `make generate`"


def test_openapi_description_has_routes_of_template() -> None:
    described = {
        (method.upper(), path) for path, operations in openapi.document()["paths"].items() for method in operations
    }

    sent = {(route.method, route.path) for route in template_routes()}
    assert described == sent, "template.yaml and the handlers have different routes, or `make generate` has not run"


def test_api_page_lists_every_problem_code() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed_codes = {
        (code, int(status)) for status, code in re.findall(r"^\| (\d{3}) \| `([A-Z_]+)`", text, re.MULTILINE)
    }

    assert listed_codes == {(code, kind.status) for code, kind in PROBLEMS.items()}


@pytest.mark.parametrize("code", PROBLEMS)
def test_every_problem_code_has_a_title_and_a_hint(code: str) -> None:
    kind = PROBLEMS[code]

    assert kind.title
    assert kind.hint.endswith((".", ")"))


def test_openapi_marks_required_query_parameters() -> None:
    parameters = openapi.document()["paths"]["/v1/teams/{team}"]["delete"]["parameters"]

    assert [
        parameter["name"] for parameter in parameters if parameter["in"] == "query" and parameter.get("required")
    ] == ["reason"]


def test_only_idempotent_routes_document_a_key_conflict() -> None:
    described = openapi.document()["paths"]
    remember = {path.removeprefix("/v1/clusters/{cluster}") for path in described if "422" in _answers(described[path])}

    assert remember == {
        "/v1/jobs",
        "/v1/faults",
        "/v1/nodes/{nodeId}/cordon",
        "/v1/nodes/{nodeId}/uncordon",
        "/v1/nodes/{nodeId}/replace",
        "/automation/hold",
        "/automation/release",
        "/policy",
    }
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    section = next(part for part in text.split("\n* ") if part.startswith("**Idempotency-Key**"))
    rows = [line for line in section.splitlines() if line.startswith("  | ")]
    routes_without_keys = next(row for row in rows if "not remembered" in row)
    routes_with_keys = "".join(row for row in rows if row != routes_without_keys)
    verbs = {path.rsplit("/", 1)[-1] for path in described if "Idempotency-Key" in json.dumps(described[path])}
    assert all(path.rsplit("/", 1)[-1] in routes_with_keys for path in remember)
    assert all(f"`{verb}`" in routes_without_keys for verb in verbs - {path.rsplit("/", 1)[-1] for path in remember})


def _answers(path: dict[str, Any]) -> set[str]:
    return {status for operation in path.values() for status in operation["responses"]}
