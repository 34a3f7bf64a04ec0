"""Write docs/policy.md, its JSON schema and the sections in docs/extend.md: each field, its default and its meaning."""

import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from evenkeel.domain.health.faults import Fault, FaultOverride
from evenkeel.domain.jobs.job_types import JobType
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.policy import Policy
from tools.field_docs import DescribedSchema, field_doc
from tools.generated_tables import with_tables

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "policy.md"
EXTEND = DOCS / "extend.md"
SCHEMA = DOCS / "schemas" / "policy.schema.json"

Json = dict[str, Any]

_INTRODUCTION = """\
# The site policy

The site policy is one JSON document. It holds every number and switch that a decision may depend on. A file names
only the fields that differ from the defaults below. `evenkeel policy check FILE` validates a file and shows what
differs. `evenkeel policy test FILE` decides recorded decisions again with it. `evenkeel policy apply FILE` puts it
in force. A field that no section knows is an error.

[schemas/policy.schema.json](schemas/policy.schema.json) is the JSON schema of the document, for completion in an
editor. `make generate` writes this page and the schema from the code.
"""


def files() -> dict[Path, str]:
    """Return the content of the page and of the schema."""
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema(), "title": "evenkeel policy"}
    return {
        PAGE: "\n".join((_INTRODUCTION.rstrip(), *_lines())) + "\n",
        SCHEMA: json.dumps(document, indent=1) + "\n",
        EXTEND: with_tables(EXTEND, {"policy-sections": section_rows}),
    }


def section_rows() -> Iterator[str]:
    """Yield a row for each section of the policy: its name, its class and the module that declares the class."""
    yield "| section | class | module |"
    yield "|---|---|---|"
    for name, field in Policy.model_fields.items():
        for model in _models_in(field.annotation):
            module = f"shared/{model.__module__.replace('.', '/')}.py"
            yield f"| `{field.alias or name}` | `{model.__name__}` | `{module}` |"


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models_in(part)


# These sections change or fill another model. A field without a text of its own has that model's.
_MODELS: dict[type[BaseModel], type[BaseModel]] = {JobType: JobSpec, FaultOverride: Fault}


def schema() -> Json:
    """Return the JSON schema of the policy, with a description of each field."""
    policy_schema = Policy.model_json_schema(schema_generator=DescribedSchema)
    for section, model in _MODELS.items():
        for name, field in section.model_fields.items():
            field_schema = policy_schema["$defs"][section.__name__]["properties"][field.alias or name]
            if text := field_schema.get("description") or field_doc(model, name):
                field_schema["description"] = text
    return policy_schema


def _lines() -> Iterator[str]:
    document = schema()
    kinds: Json = document["$defs"]
    yield from _table("Top level", "", document, kinds)
    pending = [(name, field) for name, field in document["properties"].items()]
    shown: set[str] = set()
    while pending:
        path, field = pending.pop(0)
        inner = _object(field, kinds)
        if inner is None:
            continue
        name, suffix = inner
        where = f"{path}{suffix}"
        kind = kinds[name]
        if name in shown or not kind.get("properties"):
            continue
        shown.add(name)
        yield from _table(f"`{where}`", kind.get("description", ""), kind, kinds)
        pending = [(f"{where}.{field_name}", field) for field_name, field in kind["properties"].items()] + pending


def _table(title: str, text: str, kind: Json, kinds: Json) -> Iterator[str]:
    yield f"\n## {title}\n"
    if text:
        yield f"{' '.join(text.partition(chr(10) * 2)[0].split())}\n"
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in kind["properties"].items():
        default = _default(name, field, kind, kinds)
        yield f"| `{name}` | {type_text(field, kinds)} | {default} | {field.get('description', '')} |"


def _object(field: Json, kinds: Json) -> tuple[str, str] | None:
    """Return the section that a field contains, and the continuation of its path: `[]` in a list, `.NAME` in a map."""
    for suffix, part in (("", field), ("[]", field.get("items", {})), (".NAME", _values(field))):
        for candidate in (part, *part.get("anyOf", ())):
            name = candidate.get("$ref", "").rpartition("/")[2]
            if name and "properties" in kinds[name]:
                return name, suffix
    return None


def _values(field: Json) -> Json:
    patterns: list[Json] = list(field.get("patternProperties", {}).values())
    extra = field.get("additionalProperties")
    return patterns[0] if patterns else extra if isinstance(extra, dict) else {}


def type_text(field: Json, kinds: Json) -> str:
    """Return the type and the limits of a field of a JSON schema, in words; `kinds` are the schema's definitions."""
    if "$ref" in field:
        kind = kinds[field["$ref"].rpartition("/")[2]]
        if "enum" not in kind:
            return "object" if "properties" in kind else type_text(kind, kinds)
        return _choice(kind["enum"])
    if "enum" in field:
        return _choice(field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(type_text(part, kinds) for part in field["anyOf"]))
    match field.get("type"):
        case "array":
            return f"list of {type_text(field.get('items', {}), kinds)}"
        case "object":
            return f"map to {type_text(_values(field), kinds)}"
        case "integer" | "number":
            return f"{field['type']}{_limits(field)}"
        case None:
            return "any"
        case kind:
            return str(kind)


def _choice(values: list[str]) -> str:
    words = ", ".join(value for value in values if value)
    return f"one of `{words}`" if all(values) else f"empty or one of `{words}`"


def _limits(field: Json) -> str:
    least = field.get("minimum", field.get("exclusiveMinimum"))
    most = field.get("maximum", field.get("exclusiveMaximum"))
    above = "more than " if "exclusiveMinimum" in field else ""
    if least is None and most is None:
        return ""
    if most is None:
        return f", {above or 'at least '}{least:,}"
    if least is None:
        return f", at most {most:,}"
    return f", {above}{least:,} to {most:,}"


def _default(name: str, field: Json, kind: Json, kinds: Json) -> str:
    if name in kind.get("required", ()):
        return "required"
    default = field.get("default")
    if default is None:
        return "none"
    inner = _object(field, kinds)
    if isinstance(default, dict) and inner is not None and inner[1] == "" and default:
        return "see below"
    return f"`{json.dumps(default)}`"
