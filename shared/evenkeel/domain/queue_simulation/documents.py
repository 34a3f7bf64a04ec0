"""Common parts of the documents about queues: field names, amounts and instants as written, and unknown fields.

A document keeps quantities and instants as they were written, so that it can be written again unchanged.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic.alias_generators import to_camel

from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.objects import Amounts
from evenkeel.domain.wrong_fields import wrong_fields

Json = dict[str, Any]
Kind = TypeVar("Kind", bound="Document")


class DocumentError(ValueError):
    """A document cannot be used. The message names the object and the path of the field."""

    def __init__(self, where: str, path: str, message: str) -> None:
        super().__init__(f"{where}: {path}: {message}" if path else f"{where}: {message}")


def _no_boolean(written: Any) -> Any:
    """Refuse a boolean where a number is expected: Python treats `true` as 1."""
    if isinstance(written, bool):
        raise ValueError(f"must be a number, not {str(written).lower()}")  # noqa: TRY004 - pydantic reports ValueError
    return written


def _check_quantity(written: str | float) -> str | float:
    quantities.parse(written)
    return written


def _check_instant(written: str | float) -> str | float:
    if isinstance(written, str):
        try:
            seconds(written)
        except ValueError as error:
            raise ValueError(f"{written!r} is not an RFC 3339 time with a time zone") from error
    elif not math.isfinite(written):
        raise ValueError(f"{written} is not a time")
    return written


def _check_duration(written: str) -> str:
    duration(written)
    return written


Quantity = Annotated[
    int | float | str,
    BeforeValidator(_no_boolean),
    AfterValidator(_check_quantity),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number"}, {"type": "string"}],
            "description": "A Kubernetes quantity: 8, 1500m, 64Gi. An amount that 64 bits cannot hold is unlimited.",
        }
    ),
]
WholeNumber = Annotated[int, BeforeValidator(_no_boolean)]
Number = Annotated[float, BeforeValidator(_no_boolean), Field(allow_inf_nan=False)]
Duration = Annotated[str, AfterValidator(_check_duration)]
Instant = Annotated[
    int | float | str,
    BeforeValidator(_no_boolean),
    AfterValidator(_check_instant),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number"}, {"type": "string", "format": "date-time"}],
            "description": "Seconds since any instant that you choose, or RFC 3339. All files must use the same form.",
        }
    ),
]


class Document(BaseModel):
    """A document, or a part of one. It keeps unknown fields, so that they can be reported."""

    model_config = ConfigDict(
        extra="allow",
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        coerce_numbers_to_str=True,
        defer_build=True,
    )
    ignored_fields: ClassVar[frozenset[str]] = frozenset()
    """Known fields that do not affect a decision. They are not reported as unknown."""


class Output(BaseModel):
    """A part of a command's answer."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, ser_json_inf_nan="null", defer_build=True
    )


class FlavorAmount(Output):
    """An amount of one flavor and resource."""

    flavor: str
    resource: str
    amount: str
    """A Kubernetes quantity, or `unlimited`."""


def amounts_of(amounts: Amounts) -> tuple[FlavorAmount, ...]:
    """Return amounts as a part of an answer, sorted by key."""
    return tuple(
        FlavorAmount(flavor=flavor, resource=resource, amount=quantities.text(resource, amount))
        for (flavor, resource), amount in sorted(amounts.items())
    )


def read(kind: type[Kind], raw: Any, where: str) -> Kind:
    """Read a document.

    Raises:
        DocumentError: A field is missing or has an invalid value.
    """
    document = _without_nulls(raw)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = wrong_fields(error, document)[0]
        raise DocumentError(where, first.field, first.message) from error


def _without_nulls(raw: Any) -> Any:
    """Remove null fields, as the API server does. A null `namespaceSelector` stays, because it selects nothing."""
    if isinstance(raw, dict):
        return {
            name: _without_nulls(value)
            for name, value in raw.items()
            if value is not None or name == "namespaceSelector"
        }
    return [_without_nulls(item) for item in raw] if isinstance(raw, list) else raw


def unknown_fields(document: Document, path: str = "") -> Iterator[str]:
    """Yield the paths of the unknown fields of a document."""
    for name in document.model_extra or {}:
        if name not in type(document).ignored_fields:
            yield f"{path}{name}"
    for name, info in type(document).model_fields.items():
        yield from _unknown_below(getattr(document, name), f"{path}{info.alias or name}")


def _unknown_below(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Document):
        yield from unknown_fields(value, f"{path}.")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _unknown_below(item, f"{path}[{index}]")


@dataclass(slots=True)
class ReadWarnings:
    """Warnings about the files: no field is dropped silently."""

    warnings: list[str] = field(default_factory=list)

    def warn(self, where: str, message: str) -> None:
        """Add a warning, unless it was added before."""
        text = f"{where}: {message}"
        if text not in self.warnings:
            self.warnings.append(text)

    def read(self, kind: type[Kind], raw: Any, where: str) -> Kind:
        """Read a document, and warn about its unknown fields.

        Raises:
            DocumentError: The document cannot be read.
        """
        document = read(kind, raw, where)
        for path in unknown_fields(document):
            self.warn(where, f"{path} is not known and is ignored")
        return document


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:h|ms|m|s))+")


def duration(written: str) -> float:
    """Return a duration like `168h` or `1h30m` in seconds.

    Raises:
        ValueError: The text is not a duration.
    """
    if not _DURATION.fullmatch(written):
        raise ValueError(f"{written!r} is not a duration")
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)(h|ms|m|s)", written))


def seconds(written: str | float | None) -> float:
    """Return an instant as seconds; 0 for None."""
    if written is None:
        return 0.0
    if not isinstance(written, str):
        return float(written)
    instant = datetime.fromisoformat(written)
    if instant.tzinfo is None:
        raise ValueError(f"{written!r} has no time zone")
    return instant.timestamp()
