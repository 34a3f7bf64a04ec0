"""Write docs/policy.md and the JSON schema: every field of the site policy, its default, limits and meaning."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from evenkeel.domain.health.faults import Fault, FaultOverride
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.jobs.types import JobType
from evenkeel.domain.policy import Policy
from tools.field_docs import DescribedSchema, field_doc

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "policy.md"
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
    }


# These sections change or fill another model. A field without a text of its own has that model's.
_MODELS: dict[type[BaseModel], type[BaseModel]] = {JobType: JobSpec, FaultOverride: Fault}


def schema() -> Json:
    """Return the JSON schema of the policy, with a description of each field."""
    described = Policy.model_json_schema(schema_generator=DescribedSchema)
    for section, model in _MODELS.items():
        for name, field in section.model_fields.items():
            shown = described["$defs"][section.__name__]["properties"][field.alias or name]
            if text := shown.get("description") or field_doc(model, name):
                shown["description"] = text
    return described


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
        yield f"| `{name}` | {_type(field, kinds)} | {default} | {field.get('description', '')} |"


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


def _type(field: Json, kinds: Json) -> str:
    if "$ref" in field:
        kind = kinds[field["$ref"].rpartition("/")[2]]
        if "enum" not in kind:
            return "object" if "properties" in kind else _type(kind, kinds)
        return _choice(kind["enum"])
    if "enum" in field:
        return _choice(field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(part, kinds) for part in field["anyOf"]))
    match field.get("type"):
        case "array":
            return f"list of {_type(field.get('items', {}), kinds)}"
        case "object":
            return f"map to {_type(_values(field), kinds)}"
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
