"""The schema of every row in a short form, and the changes that a release must not make (docs/release.md).

`python -m tests.row_schemas` writes the present schemas to `tests/fixtures/row_schemas.json`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from tests.stored_rows import TYPES, classes_in

FILE = Path(__file__).parent / "fixtures" / "row_schemas.json"
Json = dict[str, Any]


def schemas() -> Json:
    """Return each type of row with its class, each class with its fields, and each enumeration with its values."""
    classes = sorted({kind for row in TYPES for kind in classes_in(row.kind)}, key=lambda kind: kind.__name__)
    return {
        "rows": {f"{row.table} {row.pk} / {row.sk}": row.kind.__name__ for row in TYPES},
        "values": {kind.__name__: _fields(kind) for kind in classes if issubclass(kind, BaseModel)},
        "enumerations": {
            kind.__name__: [str(enum.value) for enum in kind] for kind in classes if issubclass(kind, Enum)
        },
    }


def _fields(kind: type[BaseModel]) -> Json:
    return {
        field.alias or name: _type_of(field.annotation) + ("" if _has_default(field) else " (required)")
        for name, field in kind.model_fields.items()
    }


def _has_default(field: Any) -> bool:
    return field.default is not PydanticUndefined or field.default_factory is not None


def _type_of(annotation: Any) -> str:
    """Return a type without its limits: they are checked where a value comes in, and a stored value may be older."""
    if get_origin(annotation) is Annotated:
        return _type_of(get_args(annotation)[0])
    if annotation is Ellipsis:
        return "..."
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(_type_of, get_args(annotation)))
    if get_origin(annotation) is Literal:
        return f"Literal{list(get_args(annotation))}"
    arguments = ", ".join(map(_type_of, get_args(annotation)))
    name = "None" if annotation is NoneType else getattr(annotation, "__name__", str(annotation))
    return f"{name}[{arguments}]" if arguments else name


Schemas = Mapping[str, Any]


def problems(before: Schemas, after: Schemas, written: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Yield each change that breaks a neighbouring release, with what to do instead.

    Args:
        before: The committed schemas of the last release.
        after: The present schemas.
        written: Enumeration → its new values that this release reads and does not write.
    """
    for row, kind in before["rows"].items():
        if after["rows"].get(row) != kind:
            yield f"The row {row} was a {kind}. Keep it, and add another row."
    for name, fields in before["values"].items():
        if name in after["values"]:
            yield from _problems_of_fields(name, fields, after["values"][name])
        else:
            yield f"{name} is gone. Rows of the last release contain it: keep its name and its fields."
    for name, values in before["enumerations"].items():
        yield from _problems_of_values(
            name, values, after["enumerations"].get(name, ()), written.get(name, frozenset())
        )


def _problems_of_fields(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for field, kind in before.items():
        if field not in after:
            yield f"{name}.{field} is gone. Keep the field; stop using it."
        elif after[field] not in (kind, kind.removesuffix(" (required)")):
            yield f"{name}.{field} was {kind} and is {after[field]}. Keep the type, and add another field."
    for field in sorted(after.keys() - before.keys()):
        if after[field].endswith(" (required)"):
            yield f"{name}.{field} is new and required. Give it a default: rows of the last release lack it."


def _problems_of_values(
    name: str, before: Iterable[str], after: Iterable[str], written: frozenset[str]
) -> Iterator[str]:
    for value in sorted(set(before) - set(after)):
        yield f"{name} has no value {value} any more. Keep it: rows of the last release contain it."
    for value in sorted(set(after) - set(before) - written):
        yield (
            f"{name}.{value} is new. The last release cannot read it. Read it in this release, write it in the next. "
            "List it in READ_BUT_NOT_WRITTEN of tests/unit/test_row_schemas.py until then."
        )


if __name__ == "__main__":
    FILE.write_text(json.dumps(schemas(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
