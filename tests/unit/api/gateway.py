"""A small API Gateway: it calls the real API functions on in-memory ports, by the routes of the template."""

import functools
import importlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml

from evenkeel.runtime import wiring
from evenkeel.runtime.settings import Settings
from tests.fakes import FakeWorld
from tests.fakes.cluster import CLUSTER
from tests.fakes.world import CLUSTER_ARN

ROOT = Path(__file__).resolve().parents[3]
ACCOUNT = "000000000000"
ANA = f"arn:aws:sts::{ACCOUNT}:assumed-role/Researcher/ana"
FLEET = "laptop"

Json = dict[str, Any]

_ONE_EVENT_AT_A_TIME = threading.RLock()


class _Template(yaml.SafeLoader):
    """A YAML loader that reads CloudFormation's short forms, such as `!Ref`, as plain values."""


def _construct_plain_value(loader: yaml.SafeLoader, _tag: str, node: yaml.Node) -> Any:
    match node:
        case yaml.ScalarNode():
            return loader.construct_scalar(node)
        case yaml.SequenceNode():
            return loader.construct_sequence(node, deep=True)
        case yaml.MappingNode():
            return loader.construct_mapping(node, deep=True)
    raise AssertionError(node)


_Template.add_multi_constructor("!", _construct_plain_value)


@dataclass(frozen=True)
class Route:
    """A route of the template, and the folder of its function."""

    method: str
    path: str
    function: str


@functools.cache
def template_routes() -> tuple[Route, ...]:
    """Return every route of the template with the folder of the function behind it."""
    text = (ROOT / "template.yaml").read_text(encoding="utf-8")
    resources = yaml.load(text, _Template)["Resources"]
    routes = []
    for resource in resources.values():
        properties = resource.get("Properties") or {}
        events = properties.get("Events") or {}
        if resource["Type"] != "AWS::Serverless::Function" or not isinstance(events, dict):
            continue
        for event in events.values():
            if event.get("Type") == "Api":
                folder = str(properties["CodeUri"]).strip("/").rsplit("/", 1)[-1]
                routes.append(Route(event["Properties"]["Method"].upper(), event["Properties"]["Path"], folder))
    return tuple(routes)


@dataclass(frozen=True)
class ApiResponse:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def document(self) -> Json:
        document: Json = json.loads(self.text)
        return document


@dataclass
class Gateway:
    """The API of one stack."""

    fakes: FakeWorld = field(default_factory=FakeWorld)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = Settings.from_environment(
            {
                "EVENKEEL_FLEET": FLEET,
                "EVENKEEL_MODE": "act",
                "EVENKEEL_DRILLS_MAY_ACT": "true",
                "KUBERNETES_CLUSTERS": CLUSTER,
                "HYPERPOD_CLUSTER_ARN": CLUSTER_ARN,
                **self.environment,
            }
        )
        self.routes = template_routes()
        self.use_ports()

    def use_ports(self, **changes: Any) -> None:
        """Let the functions use the fakes, except for the given ports."""
        fakes = self.fakes
        ports = {
            "ledger": fakes.ledger,
            "cluster": fakes.cluster,
            "provider": fakes.provider,
            "utilization_metrics": fakes.utilization_metrics,
            "cycle_requests": fakes.cycle_requests,
            "workflows": fakes.workflows,
            "inbox": fakes.inbox,
            "clock": fakes.clock,
            "ids": fakes.ids,
            "telemetry": fakes.telemetry,
            "policy": fakes.policy,
        }
        self.world = wiring.Ports(self.settings, **{**ports, **changes})

    def call(
        self,
        method: str,
        target: str,
        body: Json | str | None = None,
        *,
        key: str | None = "key-1",
        caller: str = ANA,
        headers: Mapping[str, str] | None = None,
    ) -> ApiResponse:
        """Answer one request as the deployed API would."""
        url = urlsplit(target)
        sent = {"Content-Type": "application/json", **(headers or {})}
        if method == "POST" and key is not None:
            sent["Idempotency-Key"] = key
        route, parameters = self._match(method, unquote(url.path))
        query = parse_qsl(url.query, keep_blank_values=True)
        event = {
            "resource": route.path,
            "path": url.path,
            "httpMethod": method,
            "headers": sent,
            "multiValueHeaders": {name: [value] for name, value in sent.items()},
            "queryStringParameters": dict(query) or None,
            "multiValueQueryStringParameters": {
                name: [value for other_name, value in query if other_name == name] for name, _ in query
            }
            or None,
            "pathParameters": parameters or None,
            "stageVariables": None,
            "requestContext": {
                "accountId": ACCOUNT,
                "requestId": "request-1",
                "resourcePath": route.path,
                "httpMethod": method,
                "stage": "api",
                "path": f"/api{url.path}",
                "identity": {"userArn": caller, "sourceIp": "127.0.0.1"},
            },
            "body": body if isinstance(body, str) or body is None else json.dumps(body),
            "isBase64Encoded": False,
        }
        handler = importlib.import_module(f"functions.{route.function}.handler").handler
        context = SimpleNamespace(function_name=route.function, aws_request_id="invocation-1")
        # An execution environment of Lambda gets one event at a time. The resolver of a function keeps the current
        # event, so two threads would exchange their answers.
        with _ONE_EVENT_AT_A_TIME, wiring.use_ports(self.world):
            answer = handler(event, context)
        response_headers = {name: ",".join(values) for name, values in (answer.get("multiValueHeaders") or {}).items()}
        response_headers |= answer.get("headers") or {}
        return ApiResponse(int(answer["statusCode"]), response_headers, answer.get("body") or "")

    def get(self, target: str, **options: Any) -> ApiResponse:
        return self.call("GET", target, **options)

    def post(self, target: str, body: Json | str | None = None, **options: Any) -> ApiResponse:
        return self.call("POST", target, {} if body is None else body, **options)

    def _match(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        for route in self.routes:
            pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.path)
            match = re.fullmatch(pattern, path)
            if match and route.method == method:
                return route, match.groupdict()
        # The gateway itself answers an unknown route. A function that is called anyway must answer 404.
        return Route(method, path, "api_read"), {}
