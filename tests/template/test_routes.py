"""The routes of the API, their functions, and the caller policies agree."""

import json
import re
from collections import Counter

import pytest

from tests.template import statements
from tests.template.documents import Json, resources, translated

LEVELS = ("EvenkeelViewer", "EvenkeelSubmitter", "EvenkeelOperator", "EvenkeelAdmin")
FUNCTION_OF_LEVEL = dict(zip(LEVELS, ("ApiRead", "ApiSubmit", "ApiOperate", "ApiAdmin"), strict=True))
Route = tuple[str, str]


def shape(path: str) -> str:
    """Return a path with the same placeholder for every parameter."""
    return re.sub(r"\{[^}]*\}|<[^>]*>|\*", "{}", path.replace("${FleetName}", "{}"))


def routes_of(function: str) -> set[Route]:
    events = resources("AWS::Serverless::Function")[function].get("Events", {}).values()
    routes = [event["Properties"] for event in events if event["Type"] == "Api"]
    assert all(properties["RestApiId"] == {"Ref": "Api"} for properties in routes)
    return {(properties["Method"].upper(), shape(properties["Path"])) for properties in routes}


def grants_of(policy: str) -> set[Route]:
    grants = set()
    for statement in statements.of_callers():
        if statement.owner == policy:
            assert statement.actions == ("execute-api:Invoke",)
            for resource in statement.resources:
                arn = resource["Fn::Sub"]
                prefix = "arn:${AWS::Partition}:execute-api:${AWS::Region}:${AWS::AccountId}:${Api}/api/"
                assert arn.startswith(prefix)
                method, path = arn.removeprefix(prefix).split("/", 1)
                grants.add((method, f"/{path.replace('${FleetName}', '{}')}"))
    return grants


def routes_allowed_by(grants: set[Route]) -> set[Route]:
    """Return the routes that grants open. `*` matches any text with its slashes, as in IAM."""
    return {
        (method, path)
        for function in FUNCTION_OF_LEVEL.values()
        for method, path in routes_of(function)
        for verb, pattern in grants
        if verb == method and re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), path)
    }


def test_each_caller_policy_allows_its_function_and_all_lower_ones() -> None:
    open_so_far: set[Route] = set()
    for level in LEVELS:
        open_so_far |= routes_of(FUNCTION_OF_LEVEL[level])
        assert routes_allowed_by(grants_of(level)) == open_so_far


@pytest.mark.parametrize("level", LEVELS)
def test_every_route_grant_of_a_caller_policy_is_needed(level: str) -> None:
    grants = grants_of(level)
    for grant in grants:
        assert routes_allowed_by(grants - {grant}) < routes_allowed_by(grants), grant


def test_detector_may_only_report() -> None:
    assert routes_allowed_by(grants_of("EvenkeelDetector")) == {("POST", "/v1/faults")}


def test_no_route_has_two_functions() -> None:
    counts = Counter(route for function in FUNCTION_OF_LEVEL.values() for route in routes_of(function))
    assert [route for route, count in counts.items() if count > 1] == []


def test_read_routes_use_get_and_changes_do_not() -> None:
    assert {method for method, _ in routes_of("ApiRead")} == {"GET"}
    for function in ("ApiSubmit", "ApiOperate"):
        assert "GET" not in {method for method, _ in routes_of(function)}


def methods_of_the_gateway() -> list[tuple[str, str, Json]]:
    body = resources("AWS::ApiGateway::RestApi", translated())["Api"]["Body"]
    return [(path, method, spec) for path, methods in body["paths"].items() for method, spec in methods.items()]


def test_gateway_requires_a_signature_on_every_route() -> None:
    methods = methods_of_the_gateway()
    written = {route for function in FUNCTION_OF_LEVEL.values() for route in routes_of(function)}
    assert {(method.upper(), shape(path)) for path, method, _ in methods} == written
    for path, method, spec in methods:
        assert spec["security"] == [{"AWS_IAM": []}], f"{method} {path}"
        # The gateway's permission invokes the function, not the caller's credentials.
        assert "credentials" not in spec["x-amazon-apigateway-integration"], f"{method} {path}"


def test_gateway_refusals_have_the_common_error_format() -> None:
    answers = resources("AWS::Serverless::Api")["Api"]["GatewayResponses"]
    assert {"DEFAULT_4XX", "DEFAULT_5XX", "ACCESS_DENIED", "THROTTLED"} <= set(answers)
    for name, answer in answers.items():
        assert answer["ResponseParameters"]["Headers"]["Content-Type"] == "'application/problem+json'", name
        text = answer["ResponseTemplates"]["application/json"]
        problem = json.loads(text.replace("$context.error.messageString", '"…"').replace("$context.requestId", "r-1"))
        assert set(problem) == {"type", "title", "status", "code", "detail", "hint", "requestId"}, name
        assert problem["status"] == answer.get("StatusCode", problem["status"])
