"""Metadata of the fields that a caller submits. Requests, checks, options and documents are derived from it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from evenkeel.domain.values import Value, alternatives


@dataclass(frozen=True)
class Submitted:
    """Marks a field that a caller may submit: `nodes: Annotated[int, Submitted(...)] = 1`.

    Stored values are read without these limits, so that a stricter limit does not make old rows unreadable.
    """

    path: str = ""
    """Name in a request: `gpusPerNode`, or `checkpoint.uri` inside an object. Empty = the field's name in camelCase."""
    option: str = ""
    """Option of `evenkeel jobs submit`. Empty = only a job file can set the field."""
    limits: tuple[int, int] | None = None
    """Smallest and largest value."""
    unit: str = ""
    """Unit of the value, or name of the items, in messages: `seconds`."""
    max_length: int = 0
    """Maximum number of characters of the text, or of each text."""
    max_items: int = 0
    """Maximum number of items."""
    pattern: str = ""
    """Regular expression for the whole text, or for each text. An omitted text is not compared with it."""
    choices: tuple[str, ...] = ()
    """The allowed texts."""
    advice: str = ""
    """Message for a text that does not match `pattern` or `choices`."""
    is_lowered: bool = False
    """Whether a request may use upper case; it is stored in lower case."""
    is_required: bool = False
    """Whether its request object must contain it, although the field has a default."""
    is_public: bool = False
    """Whether callers outside the job's team see the field."""
    is_withheld: bool = False
    """Whether no caller sees the value again."""
    default: Any = None
    """Value of an omitted field in a request; None = the field's default."""

    def allows(self, text: str) -> bool:
        """Whether a text matches `pattern` and `choices`."""
        is_chosen = not self.choices or text in self.choices
        return is_chosen and (not self.pattern or re.fullmatch(self.pattern, text, re.ASCII) is not None)


class SubmittedField(NamedTuple):
    """A field that a caller may submit."""

    name: str
    """Name in Python."""
    field: FieldInfo
    rules: Submitted

    @property
    def path(self) -> tuple[str, ...]:
        """Names in a request, from the outermost object to the field."""
        return tuple((self.rules.path or to_camel(self.name)).split("."))

    @property
    def model(self) -> type[BaseModel] | None:
        """The type of a field that is itself an object with fields; else None."""
        kinds = alternatives(self.field.annotation)
        return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


@cache
def submitted_fields(kind: type[BaseModel]) -> tuple[SubmittedField, ...]:
    """Return the fields of a type that a caller may submit, in the order of their declaration."""
    return tuple(
        SubmittedField(name, field, constraint)
        for name, field in kind.model_fields.items()
        for constraint in field.metadata
        if isinstance(constraint, Submitted)
    )


def from_request(kind: type[BaseModel], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a request sets, under their names in Python.

    Args:
        kind: The type that declares the fields.
        document: The request, with only the fields that the caller set.
    """
    values: dict[str, Any] = {}
    for field in submitted_fields(kind):
        *groups, own_name = field.path
        group_document: Mapping[str, Any] = document
        for group in groups:
            group_document = group_document.get(group) or {}
        if own_name in group_document:
            value, model = group_document[own_name], field.model
            values[field.name] = value if model is None or value is None else from_request(model, value)
    return values


def shown_fields(value: Value, *, only_public: bool = False) -> dict[str, Any]:
    """Return the submitted fields of a value as JSON, under their names in a request, without withheld fields.

    Args:
        value: The stored value.
        only_public: Whether to leave out the fields that only the job's team sees.
    """
    shown: dict[str, Any] = {}
    document = value.to_json()
    for field in submitted_fields(type(value)):
        if field.rules.is_withheld or (only_public and not field.rules.is_public):
            continue
        *groups, own_name = field.path
        shown_group = shown
        for group in groups:
            shown_group = shown_group.setdefault(group, {})
        inner = getattr(value, field.name)
        shown_group[own_name] = shown_fields(inner) if isinstance(inner, Value) else document[to_camel(field.name)]
    return shown
