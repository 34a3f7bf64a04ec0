"""Generate openapi.json from the routes of the API functions and their types.

The handlers' own source defines the routes, parameters and bodies, so there is no second list.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from evenkeel.domain.capacity.utilization import Measure
from evenkeel.domain.costs.fleet_report import FleetReport
from evenkeel.domain.costs.incident_receipt import IncidentReceipt
from evenkeel.domain.costs.job_receipt import JobReceipt
from evenkeel.domain.costs.showback import BudgetForecast, ShowbackRow, ShowbackTotal
from evenkeel.domain.outbound.events import OutboundKind
from evenkeel.domain.shadow.shadow_cases import Actor
from evenkeel.domain.shadow.verdicts import Cause, Verdict
from evenkeel.domain.sources import SourceKind, SourceState
from evenkeel.domain.values import Value
from evenkeel.runtime import api_queries, request_bodies
from evenkeel.runtime.api import PROBLEMS, Body
from evenkeel.services.queries.fleet.read_status import Health
from tools.field_docs import DescribedSchema

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "openapi.json"
FUNCTIONS = {"api_read": "Viewer", "api_submit": "Submitter", "api_operate": "Operator", "api_admin": "Admin"}

Json = dict[str, Any]


@dataclass(frozen=True)
class ApiOperation:
    """A route, as declared in its handler."""

    function: str
    name: str
    method: str
    path: str
    query: type[Body] | None
    body: type[Body] | None
    is_accepted: bool
    needs_key: bool
    remembers_key: bool
    needs_version: bool

    @property
    def problems(self) -> Iterator[int]:
        """Yield the statuses of its possible problem responses."""
        yield from (400, 403, 404, 429, 500, 503, 504)
        if self.method != "get":
            yield from (409, 413)
        if self.remembers_key:
            yield 422
        if self.needs_version:
            yield from (412, 428)


def operations() -> Iterator[ApiOperation]:
    """Read every route of every API function."""
    for function in FUNCTIONS:
        source = (ROOT / "functions" / function / "handler.py").read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef):
                route = next(
                    (
                        route_of_decorator
                        for route_of_decorator in map(_route, node.decorator_list)
                        if route_of_decorator
                    ),
                    None,
                )
                if route:
                    yield _operation(function, node, *route)


def _route(decorator: ast.expr) -> tuple[str, str] | None:
    match decorator:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="app"), attr=method), args=[ast.Constant(value=str(path))]):
            return method, re.sub(r"<(\w+)>", lambda match: "{" + _camel_case(match[1]) + "}", path)
    return None


def _operation(function: str, node: ast.FunctionDef, method: str, path: str) -> ApiOperation:
    calls: dict[str, list[ast.expr]] = {}
    named: set[str | None] = set()
    for call in ast.walk(node):
        match call:
            case ast.keyword(arg=name):
                named.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="app"), attr=name), args=arguments):
                calls[name] = arguments
    return ApiOperation(
        function=function,
        name=node.name,
        method=method,
        path=path,
        query=_model(calls.get("parse_query")),
        body=_model(calls.get("parse_body")),
        is_accepted="accepted_reply" in calls,
        needs_key=bool(calls.keys() & {"idempotency_key", "request_id"}),
        # A service that stores the key has a parameter of one of these names.
        remembers_key=bool(named & {"idempotency_key", "fingerprint"}),
        needs_version="expected_version" in calls,
    )


def _model(arguments: list[ast.expr] | None) -> type[Body] | None:
    match arguments:
        case [ast.Attribute(value=ast.Name(id="request_bodies" | "api_queries" as module), attr=name)]:
            model: type[Body] = getattr({"request_bodies": request_bodies, "api_queries": api_queries}[module], name)
            return model
    return None


def document() -> Json:
    """Return the whole OpenAPI document."""
    api_operations = list(operations())
    models: list[type[BaseModel]] = [operation.body for operation in api_operations if operation.body]
    names, definitions = models_json_schema(
        [(model, "validation") for model in models] + [(model, "serialization") for model in _ANSWER_PARTS],
        ref_template="#/components/schemas/{model}",
        schema_generator=DescribedSchema,
    )
    paths: dict[str, Json] = {}
    bodies = {str(model.__name__): schema for (model, _), schema in names.items()}
    answers = _ANSWERS | {
        name: _with_flags(bodies[model.__name__], flags) for name, (model, flags) in _ANSWER_MODELS.items()
    }
    for operation in api_operations:
        paths.setdefault(operation.path, {})[operation.method] = _described_operation(operation, bodies, answers)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Evenkeel",
            "version": version("evenkeel"),
            "description": "Requests are signed with AWS credentials (SigV4, service execute-api). See docs/api.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "https://{api}.execute-api.{region}.amazonaws.com/api", "variables": _SERVER}],
        "security": [{"sigv4": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": {
                "sigv4": {
                    "type": "apiKey",
                    "name": "Authorization",
                    "in": "header",
                    "description": "AWS Signature Version 4",
                    "x-amazon-apigateway-authtype": "awsSigv4",
                }
            },
            "schemas": _without_titles(
                _used_schemas(definitions.get("$defs", {}), bodies)
                | {"Problem": _PROBLEM, "SourceAge": _SOURCE_AGE}
                | {"Utilization": _UTILIZATION, "GroupUtilization": _GROUP_UTILIZATION}
                | {"Judgement": _JUDGEMENT, "ErrorRate": _ERROR_RATE, "ShadowCase": _SHADOW_CASE}
            ),
            "responses": {
                "Problem": {
                    "description": "A problem.",
                    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
        },
    }


def _with_flags(schema: Json, flags: Json) -> Json:
    """Return the schema of a domain value to which the service adds flags."""
    properties = {name: {"type": "boolean", "description": text} for name, text in flags.items()}
    return {"allOf": [schema, {"type": "object", "required": [*flags], "properties": properties}]}


def _described_operation(operation: ApiOperation, bodies: dict[str, Json], answers: dict[str, Json]) -> Json:
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    if operation.query:
        schema = operation.query.model_json_schema(schema_generator=DescribedSchema)
        parameters += [
            # A parameter holds several values, separated by commas.
            {"name": name, "in": "query", "style": "form", "explode": False, "schema": part}
            | ({"required": True} if name in schema.get("required", ()) else {})
            for name, part in _without_titles(
                _inline_references(schema.get("properties", {}), schema.get("$defs", {}))
            ).items()
        ]
    if operation.needs_key:
        key = {"type": "string", "pattern": r"^[\x21-\x7e]{1,128}$"}
        parameters.append({"name": "Idempotency-Key", "in": "header", "required": True, "schema": key})
    if operation.needs_version:
        text = "ETag of the version that the change replaces. To create, send If-None-Match: * instead."
        tag = {"type": "string", "pattern": r'^"[0-9]{1,9}(-[0-9a-f]{16})?"$'}
        parameters.append({"name": "If-Match", "in": "header", "description": text, "schema": tag})
    described: Json = {
        "operationId": _camel_case(operation.name),
        "tags": [FUNCTIONS[operation.function]],
        "parameters": parameters,
        "responses": {
            "202" if operation.is_accepted else "200": {
                "description": "Accepted; Location names it." if operation.is_accepted else "Done.",
                "content": {"application/json": {"schema": answers.get(operation.name, {"type": "object"})}},
            },
            **{str(status): {"$ref": "#/components/responses/Problem"} for status in sorted(operation.problems)},
        },
    }
    if operation.method == "get":
        described["responses"]["304"] = {"description": "Nothing but the time has changed since If-None-Match."}
    if operation.body:
        content = {"application/json": {"schema": bodies[operation.body.__name__]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _used_schemas(schemas: Json, bodies: dict[str, Json]) -> Json:
    """Return the schemas that a body leads to: a part that is described elsewhere leaves its own behind."""
    reached: Json = {}
    waiting = re.findall(_REFERENCE, json.dumps(bodies))
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached[name] = schemas[name]
            waiting += re.findall(_REFERENCE, json.dumps(schemas[name]))
    return dict(sorted(reached.items()))


def _inline_references(schema: Any, definitions: Json) -> Any:
    """Put definitions where they are referred to: a parameter's schema stands alone."""
    match schema:
        case {"$ref": str(name)}:
            return _inline_references(definitions[name.rpartition("/")[2]], definitions)
        case dict():
            return {key: _inline_references(value, definitions) for key, value in schema.items()}
        case list():
            return [_inline_references(value, definitions) for value in schema]
    return schema


def _without_titles(schema: Any) -> Any:
    """Leave the titles out that only repeat a field's name."""
    match schema:
        case dict():
            return {
                key: _without_titles(value)
                for key, value in schema.items()
                if key != "title" or isinstance(value, dict)
            }
        case list():
            return [_without_titles(value) for value in schema]
    return schema


def _camel_case(name: str) -> str:
    first, *further = name.split("_")
    return first + "".join(part.capitalize() for part in further)


_SOURCE_AGE: Json = {
    "type": "object",
    "description": "A source of facts: the time of its last answer, and whether its facts are current.",
    "required": [
        "name",
        "source",
        "state",
        "seenAt",
        "ageSeconds",
        "thresholdSeconds",
        "failingSince",
        "error",
        "reason",
    ],
    "properties": {
        "name": {"type": "string", "examples": ["kubernetes-list/research-eks"]},
        "source": {
            "type": "object",
            "required": ["kind", "target"],
            "properties": {"kind": {"enum": [*map(str, SourceKind)]}, "target": {"type": "string"}},
        },
        "state": {"enum": [*map(str, SourceState)]},
        "seenAt": {"type": ["string", "null"], "format": "date-time"},
        "ageSeconds": {"type": ["integer", "null"]},
        "thresholdSeconds": {"type": "integer"},
        "failingSince": {"type": ["string", "null"], "format": "date-time"},
        "error": {"type": "string"},
        "reason": {"type": "string"},
    },
}
_OF_CLUSTERS = (
    *("list_jobs", "show_job", "why_job", "list_nodes", "show_node"),
    *("list_incidents", "show_incident", "why_incident", "list_teams"),
)
_MAY_BE_STALE: Json = {
    "type": "object",
    "required": ["stale"],
    "properties": {
        "stale": {
            "type": "array",
            "items": {"type": "string"},
            "description": "A sentence for each source that has no current facts.",
        }
    },
}
_PERCENT: Json = {"type": ["number", "null"], "minimum": 0, "maximum": 100, "description": "Percent; null: unknown."}
_AMOUNT: Json = {"type": ["number", "null"], "minimum": 0, "description": "Null: unknown for at least one node."}
_ALLOCATED: Json = {"type": "number", "minimum": 0, "description": "Requests of all pods."}
_NODES: Json = {"type": "integer", "minimum": 0}
_GROUP_UTILIZATION: Json = {
    "type": "object",
    "description": "The figures of a measure over the nodes of a group.",
    "required": ["average", "lowest", "lowestNode", "highest", "measuredNodes", "unknownNodes"],
    "properties": {
        **dict.fromkeys(("average", "lowest", "highest"), _PERCENT),
        "lowestNode": {"type": ["string", "null"]},
        **dict.fromkeys(("measuredNodes", "unknownNodes"), _NODES),
    },
}
_UTILIZATION: Json = {
    "type": "object",
    "description": "Amounts, allocation and utilization of a node, or of a group of nodes.",
    "required": ["gpus", "gpuMemoryGib", "vcpus", "memoryGib", "utilization", "measuredAt"],
    "properties": {
        **dict.fromkeys(("gpus", "gpuMemoryGib", "vcpus", "memoryGib"), _AMOUNT),
        **dict.fromkeys(("gpusAllocated", "vcpusAllocated", "memoryGibAllocated"), _ALLOCATED),
        **dict.fromkeys(("nodes", "running", "starting", "pendingRecovery"), _NODES),
        "utilization": {
            "type": "object",
            "description": "A percentage by measure; for a group, its figures.",
            "required": [*map(str, Measure)],
            "additionalProperties": {"anyOf": [{"$ref": "#/components/schemas/GroupUtilization"}, _PERCENT]},
        },
        "measuredAt": {"type": ["string", "null"], "format": "date-time"},
    },
}
_TIME_OR_NULL: Json = {"type": ["string", "null"], "format": "date-time"}
_SHARE: Json = {"type": "number", "minimum": 0, "maximum": 1}
_JUDGED: Json = {"$ref": "#/components/schemas/Judgement"}
_RATE: Json = {"$ref": "#/components/schemas/ErrorRate"}
_JUDGEMENT: Json = {
    "type": "object",
    "description": "The verdict on a cordon or a repair that Evenkeel would have made.",
    "required": ["verdict", "reason", "cause", "actor", "happenedAt", "seconds", "windowOpenUntil", "evidence"],
    "properties": {
        "verdict": {"enum": [*map(str, Verdict)]},
        "reason": {"type": "string"},
        "cause": {"enum": [*map(str, Cause), None], "description": "Why the verdict is UNKNOWN."},
        "actor": {"enum": [*map(str, Actor), None]},
        "seconds": {"type": ["number", "null"], "description": "Positive if Evenkeel was earlier."},
        **dict.fromkeys(("happenedAt", "windowOpenUntil"), _TIME_OR_NULL),
        "evidence": {"type": "array", "items": {"type": "string"}},
    },
}
_ERROR_RATE: Json = {
    "type": "object",
    "description": "Share of wrong decisions, with its exact binomial interval. Unknown cases are in no rate.",
    "required": ["count", "of", "unknown", "share", "low", "high", "confidence"],
    "properties": {
        **dict.fromkeys(("count", "of", "unknown"), _NODES),
        "share": {"type": ["number", "null"], "description": "Null: no case has a verdict."},
        **dict.fromkeys(("low", "high", "confidence"), _SHARE),
    },
}
_SHADOW_CASE: Json = {
    "type": "object",
    "required": ["decision", "incidentIds", "knownUntil", "cordon", "repair"],
    "properties": {
        "decision": {"type": "object"},
        "incidentIds": {"type": "array", "items": {"type": "string"}},
        **dict.fromkeys(("cordon", "repair"), _JUDGED),
    },
}
_REDACTED = {"isRedacted": "Whether something is withheld, because it is private to a team."}
_ANSWER_MODELS: dict[str, tuple[type[Value], Json]] = {
    "incident_receipt": (IncidentReceipt, _REDACTED),
    "job_receipt": (JobReceipt, _REDACTED),
    "show_cost_report": (
        FleetReport,
        {
            "isComplete": "False: records were left out, and the notes name them.",
            "isNodeTimeComplete": "False: records of some nodes of the window are gone.",
        },
    ),
}
"""Answers that are domain values: their schemas follow from the types."""
_ANSWER_PARTS: list[type[Value]] = [
    *(model for model, _ in _ANSWER_MODELS.values()),
    ShowbackRow,
    ShowbackTotal,
    BudgetForecast,
]
_RATE_NAMES = ("falseCordons", "falseReboots", "falseReplacements")
_ANSWERS: dict[str, Json] = {
    "overview": {
        "type": "object",
        "required": [
            *("asOf", "fleet", "health", "reasons", "stale", "sources", "automation", "silent", "outages"),
            *("isRunning", "sourceAges", "heartbeats", "changedAt", "nodesChangedAt", "next"),
            *("incidents", "cordons", "counts"),
        ],
        "properties": {
            **_MAY_BE_STALE["properties"],
            "health": {"enum": [*map(str, Health)]},
            "reasons": {"type": "array", "items": {"type": "string"}},
            "silent": {"type": "array", "items": {"type": "string"}, "description": "Functions without a heartbeat."},
            "isRunning": {"type": "boolean"},
            "sources": {"type": "object", "description": "Number of sources of facts by state."},
            "sourceAges": {"type": "array", "items": {"$ref": "#/components/schemas/SourceAge"}},
            "next": {"type": ["string", "null"], "description": "The command that helps most now."},
            "changedAt": {
                "type": ["string", "null"],
                "format": "date-time",
                "description": "When the newest event of this month was recorded. Null: there is none.",
            },
            "nodesChangedAt": {
                **_TIME_OR_NULL,
                "description": "When a sweep last changed a node. Null: no sweep has stored one.",
            },
            "incidents": {
                "type": "object",
                "required": ["open", "working", "needYou", "isLowerBound", "items"],
                "properties": {"open": _NODES, "needYou": _NODES, "isLowerBound": {"type": "boolean"}},
            },
            "counts": {
                "description": "Null: no sweep has counted the fleet yet.",
                "anyOf": [
                    {
                        "type": "object",
                        "required": [
                            *("at", "isStale", "nodes", "gpus", "cpu", "memoryGib", "jobs", "teams", "unhealthy"),
                            *("rent", "budgets", "serving"),
                        ],
                        "properties": {
                            "at": {"type": "string", "format": "date-time"},
                            "isStale": {"type": "boolean"},
                            "budgetsLeftOut": {
                                "type": "integer",
                                "description": "Budgets beyond the 1,000 most urgent ones, which are not counted.",
                            },
                        },
                    },
                    {"type": "null"},
                ],
            },
        },
    },
    "list_events": {
        "type": "object",
        "required": ["asOf", "keptDays", "items", "nextPageToken"],
        "properties": {
            "keptDays": {"type": "integer"},
            "items": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["id", "kind", "occurredAt", "recordedAt", "subject", "team", "by", "text", "data"],
                    "properties": {
                        "kind": {"enum": [*map(str, OutboundKind)]},
                        "occurredAt": {"type": "string", "format": "date-time"},
                        "recordedAt": {"type": "string", "format": "date-time"},
                        "data": {"type": "object", "description": "docs/schemas/outbound-events.schema.json"},
                    },
                },
            },
            "nextPageToken": {"type": ["string", "null"]},
        },
    },
    "show_showback": {
        "type": "object",
        "required": [
            *("fleet", "since", "until", "label", "isComplete", "total", "budgets", "items", "notes", "nextPageToken"),
        ],
        "properties": {
            "fleet": {"type": "string", "description": "Name of the fleet."},
            "isComplete": {"type": "boolean", "description": "False: the window begins later than requested."},
            "total": {"$ref": "#/components/schemas/ShowbackTotal"},
            "budgets": {"type": "array", "items": {"$ref": "#/components/schemas/BudgetForecast"}},
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/ShowbackRow"}},
            "nextPageToken": {"type": ["string", "null"]},
        },
    },
    "show_shadow_report": {
        "type": "object",
        "required": ["since", "until", "pool", "isComplete", "summary", "items", "nextPageToken", "stale"],
        "properties": {
            **_MAY_BE_STALE["properties"],
            "isComplete": {"type": "boolean", "description": "False: older incidents were left out."},
            "unreadableIncidents": {
                "type": "integer",
                "minimum": 0,
                "description": "Incidents left out, because they or a record of their node cannot be read.",
            },
            "summary": {
                "type": "object",
                "required": ["times", "cases", "incidents", "cordons", "noCordons", "repairs", *_RATE_NAMES],
                "properties": dict.fromkeys(_RATE_NAMES, _RATE),
            },
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/ShadowCase"}},
            "nextPageToken": {"type": ["string", "null"]},
        },
    },
    "show_utilization": {
        "type": "object",
        "required": ["asOf", "windowMinutes", "items", "totals", "sources", "isLowerBound", "stale"],
        "properties": {
            **_MAY_BE_STALE["properties"],
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/Utilization"}},
            "totals": {"anyOf": [{"$ref": "#/components/schemas/Utilization"}, {"type": "null"}]},
            "sources": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["cluster", "name", "measuredNodes", "unknownNodes", "problem"],
                    "properties": {"problem": {"type": ["string", "null"]}},
                },
            },
            "isLowerBound": {"type": "boolean"},
        },
    },
    "status": {
        "type": "object",
        "required": ["health", "reasons", "isRunning", "sources"],
        "properties": {
            "health": {"enum": [*map(str, Health)]},
            "reasons": {"type": "array", "items": {"type": "string"}},
            "isRunning": {"type": "boolean"},
            "sources": {"type": "array", "items": {"$ref": "#/components/schemas/SourceAge"}},
        },
    },
    **dict.fromkeys(_OF_CLUSTERS, _MAY_BE_STALE),
}
_REFERENCE = r"#/components/schemas/(\w+)"

_SERVER = {
    "api": {"default": "api-id", "description": "Stack output ApiId"},
    "region": {"default": "us-west-2"},
}

_PROBLEM: Json = {
    "type": "object",
    "description": "RFC 9457.",
    "required": ["type", "title", "status", "code", "detail", "hint", "requestId"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "examples": sorted(PROBLEMS)},
        "detail": {"type": "string"},
        "hint": {"type": "string"},
        "requestId": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}


def text() -> str:
    """Return the file's content."""
    return json.dumps(document(), indent=2) + "\n"


def files() -> dict[Path, str]:
    """Return the file with its content."""
    return {TARGET: text()}
