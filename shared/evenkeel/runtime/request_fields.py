"""Text types of requests, and bodies that derive from the fields of the domain (`domain.submitted`)."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from types import GenericAlias, NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StrictBool, StringConstraints, create_model
from pydantic.annotated_handlers import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue

from evenkeel.domain.submitted import Submitted, SubmittedField, submitted_fields
from evenkeel.domain.values import alternatives
from evenkeel.runtime.api import Body

B = TypeVar("B", bound=Body)


def printable(text: str) -> str:
    """Return a text without NUL characters.

    Raises:
        ValueError: it holds one.
    """
    if "\x00" in text:
        raise ValueError("must not hold a NUL character")
    return text


_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _rfc3339(value: object) -> object:
    """Accept only instants that are written out, with their zone.

    Pydantic also accepts digits alone as seconds since 1970, and a bare day as midnight. No caller means that.
    """
    if not (isinstance(value, str) and _RFC3339.fullmatch(value)):
        raise ValueError("must be an instant such as 2026-11-03T10:15:00Z")
    try:
        return datetime.fromisoformat(value.upper())
    except ValueError as error:
        raise ValueError(f"must be an instant that exists: {error}") from error


def _in_utc(instant: datetime) -> datetime:
    try:
        return instant.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("must be an instant of the years 1 to 9999") from error


Timestamp = Annotated[datetime, BeforeValidator(_rfc3339), AfterValidator(_in_utc)]
"""An instant in RFC 3339, converted to UTC."""


def one_line(text: str) -> str:
    """Check text that timelines and terminals show: no line breaks, escapes or marks that reverse text."""
    if any(unicodedata.category(character).startswith("C") for character in text):
        raise ValueError("must be one line of plain text")
    return text


Reason = Annotated[
    str, StringConstraints(min_length=1, max_length=300, strip_whitespace=True), AfterValidator(one_line)
]
PoolName = Annotated[str, StringConstraints(max_length=63, pattern=r"^[A-Za-z0-9._-]*$")]
"""An instance group or a NodePool; empty for all."""


@dataclass(frozen=True, eq=False)  # typing hashes annotations: by identity
class _Described:
    """Adds to the JSON schema what `domain.jobs.validation` checks, with its own messages, and pydantic does not."""

    keywords: Mapping[str, Any]

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), **self.keywords}


def create_body_class(
    name: str, declared_in: type[BaseModel], base: type[B], groups: Mapping[str, str] | None = None
) -> type[B]:
    """Create the class of a request body, with the fields of a type that callers may submit.

    Args:
        name: Name of the model in `openapi.json`.
        declared_in: The type that declares the fields.
        base: Class of the result.
        groups: Objects of the request that hold several fields, with their descriptions.
    """
    fields: dict[str, Any] = {}
    members: dict[str, list[SubmittedField]] = {}
    for field in submitted_fields(declared_in):
        *group, own_name = field.path
        fields[group[0] if group else own_name] = None if group else _field(field)
        if group:
            members.setdefault(group[0], []).append(field)
    for group_name, inner in members.items():
        model = _created(
            f"{group_name[:1].upper()}{group_name[1:]}Body", Body, (groups or {})[group_name], map(_named_field, inner)
        )
        model.sources = {field.path[-1]: (declared_in, field.name) for field in inner}
        is_optional = any(field.rules.is_required for field in inner)
        fields[group_name] = (model | None, None) if is_optional else (model, model())
    body_class = _created(name, base, (declared_in if base is Body else base).__doc__, fields.items())
    body_class.sources = {
        field.path[0]: (declared_in, field.name) for field in submitted_fields(declared_in) if len(field.path) == 1
    }
    return body_class


def _created(name: str, base: type[B], text: str | None, fields: Iterable[tuple[str, Any]]) -> type[B]:
    return create_model(name, __base__=base, __doc__=text, __module__=__name__, **dict(fields))


def _named_field(field: SubmittedField) -> tuple[str, tuple[Any, Any]]:
    return field.path[-1], _field(field)


def _field(field: SubmittedField) -> tuple[Any, Any]:
    default = field.field.default if field.rules.default is None else field.rules.default
    kind = _request_type(field.field.annotation, field.rules, may_be_empty=default == "")
    if field.field.is_required() or field.rules.is_required:
        return (kind, ...)
    return (kind, kind() if isinstance(default, BaseModel) else default)


def _request_type(kind: Any, rules: Submitted, *, may_be_empty: bool = False) -> Any:
    """Return the type of a field in a request: the domain's type, with the limits of a request."""
    kinds = alternatives(kind)
    if len(kinds) > 1:
        first_kind, *further_types = (_request_type(part, rules) for part in kinds if part is not NoneType)
        assert not further_types, f"a request cannot express {kind}"
        return first_kind | None
    kind = kinds[0]
    origin, arguments = get_origin(kind), get_args(kind)
    assert rules.max_items or origin is None, f"a submitted {kind} needs max_items"
    assert rules.max_length or kind is not str, "a submitted text needs max_length"
    if origin is tuple:
        items = GenericAlias(tuple, (_request_type(arguments[0], rules), ...))
        return Annotated[items, Field(max_length=rules.max_items)]
    if origin is dict:
        items = GenericAlias(dict, (str, _request_type(arguments[1], rules)))
        return Annotated[items, Field(max_length=rules.max_items)]
    if issubclass(kind, BaseModel):
        return create_body_class(f"{kind.__name__.removesuffix('Spec')}Body", kind, Body)
    if issubclass(kind, Enum):
        return kind
    if kind is str:
        constraints = StringConstraints(max_length=rules.max_length, to_lower=rules.is_lowered or None)
        keywords = _Described(_text_keywords(rules, may_be_empty=may_be_empty))
        return Annotated[str, constraints, AfterValidator(printable), keywords]
    if kind is datetime:
        return Timestamp
    if kind is bool:
        return StrictBool
    minimum, maximum = rules.limits or (None, None)
    if kind is float:
        return Annotated[float, Field(ge=minimum, le=maximum, allow_inf_nan=False)]
    return Annotated[int, _Described({"minimum": minimum, "maximum": maximum} if rules.limits else {})]


def _text_keywords(rules: Submitted, *, may_be_empty: bool) -> Mapping[str, Any]:
    if rules.choices:
        return {"enum": list(rules.choices)}
    if not rules.pattern or rules.is_lowered:
        return {}
    return {"pattern": f"^({rules.pattern}){'?' if may_be_empty else ''}$"}
