"""Files derived from the fields of a job: its JSON schema, the options of the CLI, and a table in docs/api.md."""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.jobs.volumes import ScratchFolder, Volume
from evenkeel.domain.submitted import SubmittedField, submitted_fields
from evenkeel.domain.values import alternatives
from evenkeel.runtime.request_bodies import JobBody
from tools.field_docs import DescribedSchema, field_doc

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = ROOT / "docs" / "schemas" / "submission.schema.json"
OPTIONS = ROOT / "cli" / "evenkeel_cli" / "commands" / "job_options.json"
PAGE = ROOT / "docs" / "api.md"
_TABLE = re.compile(r"(?<=<!-- table: job fields -->\n).*?(?=<!-- end -->)", re.DOTALL)

Json = dict[str, Any]


class JobField(NamedTuple):
    """A field of a submission, with the fields inside its objects as fields of their own."""

    path: tuple[str, ...]
    declared: SubmittedField
    text: str


def files() -> dict[Path, str]:
    """Return the content of each file."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **JobBody.model_json_schema(schema_generator=DescribedSchema),
        "title": "evenkeel jobs submit: a job file",
    }
    page = PAGE.read_text(encoding="utf-8")
    return {
        SCHEMA: json.dumps(schema, indent=1) + "\n",
        OPTIONS: "[\n" + ",\n".join(f" {json.dumps(option)}" for option in options()) + "\n]\n",
        PAGE: _TABLE.sub(lambda _: "".join(f"{line}\n" for line in table()), page),
    }


def fields(kind: type[BaseModel] = JobSpec, outer: tuple[str, ...] = ()) -> Iterator[JobField]:
    """Yield the fields of a submission, in the order of their declaration."""
    for field in submitted_fields(kind):
        path = (*outer, *field.path)
        if field.model:
            yield from fields(field.model, path)
        else:
            yield JobField(path, field, field_doc(kind, field.name))


def options() -> Iterator[Json]:
    """Yield the options of `evenkeel jobs submit`."""
    for field in fields():
        if field.declared.rules.option:
            kind, first = _kind(field.declared), field.text.partition(". ")[0].rstrip(".")
            help_text = f"{first}; may be repeated." if kind in _REPEATED else f"{first}."
            yield {"option": field.declared.rules.option, "path": field.path, "kind": kind, "help": help_text}


_REPEATED = ("assignments", "texts", "volumes", "folders")
_LISTS = {str: "texts", Volume: "volumes", ScratchFolder: "folders"}
"""Kind of an option for a list, by the type of its items."""


def _kind(field: SubmittedField) -> str:
    kind = alternatives(field.field.annotation)[0]
    if get_origin(kind) is tuple:
        return _LISTS[get_args(kind)[0]]
    return {int: "integer", datetime: "instant"}.get(kind, "assignments" if get_origin(kind) is dict else "text")


def table() -> Iterator[str]:
    """Yield the lines of the table of fields."""
    yield "| field | value | default | option | meaning |"
    yield "|---|---|---|---|---|"
    for path, declared, text in fields():
        option = f"`{declared.rules.option}`" if declared.rules.option else ""
        yield f"| `{'.'.join(path)}` | {_value(declared)} | {_default(declared)} | {option} | {text} |"


def _value(field: SubmittedField) -> str:
    rules, kind = field.rules, alternatives(field.field.annotation)[0]
    items = f"at most {rules.max_items} {rules.unit}"
    if get_origin(kind) is tuple:
        return f"list of {items}{_nested_fields_text(get_args(kind)[0], ' with ')}"
    if get_origin(kind) is dict:
        return f"map from names to {_nested_fields_text(get_args(kind)[1]) or 'text'}; {items}"
    if kind is datetime:
        return "instant in RFC 3339"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f"`{member.value}`" for member in kind)
    if rules.choices:
        return " or ".join(f"`{choice}`" for choice in rules.choices if choice)
    if rules.limits:
        return f"{rules.limits[0]:,} to {rules.limits[1]:,} {rules.unit}"
    return f"text of at most {rules.max_length} characters"


def _nested_fields_text(kind: type, before: str = "") -> str:
    """Return the fields of an object in a list or a map; empty for other types."""
    if not issubclass(kind, BaseModel):
        return ""
    return before + ", ".join(f"`{'.'.join(field.path)}`" for field in submitted_fields(kind))


def _default(field: SubmittedField) -> str:
    if field.field.is_required() or field.rules.is_required:
        return "required"
    default = field.field.default if field.rules.default is None else field.rules.default
    match default:
        case "" | () | {}:
            return "empty"
        case None:
            return "null"
        case Enum():
            return f"`{default.value}`"
    return f"`{default}`"
