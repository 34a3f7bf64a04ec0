"""Every external text has a length limit: in requests, in parsed events, and in the policy."""

import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, StringConstraints

from evenkeel.domain.health.group_facts import GroupFact
from evenkeel.domain.health.incidents import NodeFact
from evenkeel.domain.jobs.validation import MAX_SPEC
from evenkeel.domain.policy import Policy
from evenkeel.domain.quotas.setup_checks import LARGEST_PART
from evenkeel.domain.quotas.teams import FleetQuotas, Team
from evenkeel.runtime import api_queries, request_bodies
from evenkeel.runtime.api import LARGEST_BODY, Body

LIMITED_AS_A_WHOLE: dict[str, str] = {
    "TeamBody.team": "check_team limits names and the bytes of the team",
    "QuotasBody.quotas": "check_fleet limits names and the bytes of the whole",
    "JobBody.env keys": "check_spec limits names and the bytes of the job",
    "JobBody.secretEnv keys": "check_spec limits names and the bytes of the job",
    "JobBody.labels keys": "check_spec limits names and the bytes of the job",
    "PolicyBody.changes keys": "the policy model refuses unknown fields",
    "PolicyTestBody.changes keys": "the policy model refuses unknown fields",
}
"""Texts without their own limit, by path, each with the rule that limits them."""
REQUESTS = [
    model
    for module in (api_queries, request_bodies)
    for _, model in inspect.getmembers(module, inspect.isclass)
    if issubclass(model, Body) and model is not Body
]
_WITHOUT_END = re.compile(r"(?<!\\)[*+]|\{\d+,\}")


def unlimited_texts(model: type[BaseModel]) -> list[str]:
    """Return the paths of a model whose texts have no length limit."""
    schema = model.model_json_schema()
    texts = text_paths(schema, model.__name__, schema.get("$defs", {}), frozenset())
    return sorted({path for path in texts if not any(path.startswith(known) for known in LIMITED_AS_A_WHOLE)})


def text_paths(schema: Any, path: str, models: dict[str, Any], above: frozenset[str]) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in above:
            yield from text_paths(models[name], path, models, above | {name})
        return
    for choice in (part for word in ("anyOf", "oneOf", "allOf") for part in schema.get(word, ())):
        yield from text_paths(choice, path, models, above)
    if schema.get("type") == "string" and not _is_limited(schema):
        yield path
    for item_schema in (*schema.get("prefixItems", ()), schema.get("items")):
        yield from text_paths(item_schema, f"{path}[]", models, above)
    for name, property_schema in schema.get("properties", {}).items():
        yield from text_paths(property_schema, f"{path}.{name}", models, above)
    if schema.get("type") == "object" and "properties" not in schema:
        values = [schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()]
        if not _is_limited(schema.get("propertyNames", {})) and schema.get("additionalProperties") is not False:
            yield f"{path} keys"
        for inner in values:
            yield from text_paths(inner, f"{path}{{}}", models, above)


def _is_limited(schema: dict[str, Any]) -> bool:
    if schema.keys() & {"enum", "const", "maxLength", "format", "$ref"}:
        return True
    return "pattern" in schema and not _WITHOUT_END.search(schema["pattern"])


@pytest.mark.parametrize("model", [*REQUESTS, Policy, NodeFact, GroupFact], ids=lambda model: model.__name__)
def test_every_external_text_has_a_limit(model: type[BaseModel]) -> None:
    assert unlimited_texts(model) == []


def test_text_field_without_a_limit_is_reported() -> None:
    class Inner(BaseModel):
        note: str = ""

    class Example(BaseModel):
        free: str
        deep: dict[Annotated[str, Field(max_length=5)], tuple[Inner, ...]] = {}
        keys: dict[str, int] = {}
        endless: Annotated[str, StringConstraints(pattern="^a+$")] = ""
        short: Annotated[str, StringConstraints(max_length=5)] = ""
        bounded: Annotated[str, StringConstraints(pattern="^a{1,5}$")] = ""

    assert unlimited_texts(Example) == ["Example.deep{}[].note", "Example.endless", "Example.free", "Example.keys keys"]


def test_every_exception_to_text_limits_is_needed() -> None:
    needed = {
        path for path in LIMITED_AS_A_WHOLE if any(path.startswith(request_type.__name__) for request_type in REQUESTS)
    }
    assert needed == set(LIMITED_AS_A_WHOLE)
    assert {Team, FleetQuotas} <= {
        field.annotation for request_type in REQUESTS for field in request_type.model_fields.values()
    }
    assert max(LARGEST_BODY, LARGEST_PART, MAX_SPEC) < 70_000
