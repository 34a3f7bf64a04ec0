"""Requests and answers of the AWS JSON protocol, held to the service model that botocore ships.

botocore checks types, required fields and minimum lengths before it sends; the service also checks patterns, maxima and
enums. This module does both, from the model's own metadata, for what comes in and for what goes out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import botocore.session
from botocore.model import OperationModel, ServiceModel, Shape, StructureShape

Json = dict[str, Any]


class AwsError(Exception):
    """An error as the service answers it."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


@lru_cache(maxsize=4)
def service_model(name: str) -> ServiceModel:
    """Return botocore's model of a service."""
    return botocore.session.get_session().get_service_model(name)


def operation(model: ServiceModel, name: str) -> OperationModel:
    """Return an operation's model.

    Raises:
        AwsError: the service has no such operation.
    """
    if name not in model.operation_names:
        raise AwsError("UnknownOperationException", "")
    return model.operation_model(name)


def check_input(op: OperationModel, body: Json) -> None:
    """Refuse a request that the model does not allow.

    Raises:
        AwsError: ValidationException, worded as AWS words it.
    """
    problems = list(_problems(op.input_shape, body, ""))
    if problems:
        count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''} detected"
        raise AwsError("ValidationException", f"{count}: {'; '.join(problems)}")


def output_problems(op: OperationModel, body: Json) -> list[str]:
    """Return where an answer breaks the model; a test and every answer are held to an empty list."""
    return list(_problems(op.output_shape, body, "", answer=True))


def _lower(name: str) -> str:
    return name[:1].lower() + name[1:]


def _problems(shape: Shape | None, value: Any, path: str, answer: bool = False) -> Iterator[str]:
    if shape is None:
        return
    if isinstance(shape, StructureShape):
        if not isinstance(value, dict):
            yield f"Value at '{path}' failed to satisfy constraint: Member must be a structure"
            return
        for name in shape.required_members:
            if value.get(name) is None:
                at = f"{path}.{_lower(name)}" if path else _lower(name)
                yield f"Value null at '{at}' failed to satisfy constraint: Member must not be null"
        for name, item in value.items():
            at = f"{path}.{_lower(name)}" if path else _lower(name)
            if name not in shape.members:
                if answer:
                    yield f"'{at}' is not in the model"
            elif item is not None:
                yield from _problems(shape.members[name], item, at, answer)
        return
    kind = shape.type_name
    if kind == "list":
        yield from _list_problems(shape, value, path, answer)
    elif kind == "map":
        if not isinstance(value, dict):
            yield f"Value at '{path}' failed to satisfy constraint: Member must be a map"
            return
        for key, item in value.items():
            yield from _problems(getattr(shape, "key"), key, f"{path}.key", answer)  # noqa: B009 (a dynamic attribute)
            yield from _problems(getattr(shape, "value"), item, f"{path}.{key}.member", answer)  # noqa: B009
    elif kind == "string":
        yield from _string_problems(shape, value, path)
    elif kind in ("integer", "long", "float", "double"):
        yield from _number_problems(shape, value, path)
    elif kind == "boolean" and not isinstance(value, bool):
        yield f"Value '{value}' at '{path}' failed to satisfy constraint: Member must be a boolean"
    elif kind == "timestamp" and (isinstance(value, bool) or not isinstance(value, int | float)):
        yield f"Value '{value}' at '{path}' failed to satisfy constraint: Member must be a timestamp"


def _list_problems(shape: Shape, value: Any, path: str, answer: bool) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"Value at '{path}' failed to satisfy constraint: Member must be a list"
        return
    yield from _length_problems(shape, len(value), value, path)
    member: Shape = getattr(shape, "member")  # noqa: B009 (a dynamic attribute)
    for number, item in enumerate(value, start=1):
        yield from _problems(member, item, f"{path}.{number}.member", answer)


def _length_problems(shape: Shape, length: int, value: Any, path: str) -> Iterator[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if least is not None and length < least:
        yield (
            f"Value '{value}' at '{path}' failed to satisfy constraint: Member must have length greater than or equal "
            f"to {least}"
        )
    if most is not None and length > most:
        yield (
            f"Value '{value}' at '{path}' failed to satisfy constraint: Member must have length less than or equal to "
            f"{most}"
        )


def _string_problems(shape: Shape, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"Value '{value}' at '{path}' failed to satisfy constraint: Member must be a string"
        return
    yield from _length_problems(shape, len(value), value, path)
    choices: list[str] = list(getattr(shape, "enum", None) or ())
    if choices and value not in choices:
        listed = ", ".join(choices)
        yield f"Value '{value}' at '{path}' failed to satisfy constraint: Member must satisfy enum value set: [{listed}]"
    pattern = shape.metadata.get("pattern")
    if pattern and not _compiled(pattern).fullmatch(value):
        yield (
            f"Value '{value}' at '{path}' failed to satisfy constraint: Member must satisfy regular expression pattern: "
            f"{pattern}"
        )


def _number_problems(shape: Shape, value: Any, path: str) -> Iterator[str]:
    wanted: tuple[type, ...] = (int,) if shape.type_name in ("integer", "long") else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        yield f"Value '{value}' at '{path}' failed to satisfy constraint: Member must be a number"
        return
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if least is not None and value < least:
        yield f"Value '{value}' at '{path}' failed to satisfy constraint: Member must have value greater than or equal to {least}"
    if most is not None and value > most:
        yield f"Value '{value}' at '{path}' failed to satisfy constraint: Member must have value less than or equal to {most}"


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    # The model's patterns are Java's; these classes are the ones it uses that Python writes otherwise.
    text = pattern.replace(r"\p{Alnum}", "A-Za-z0-9").replace(r"\p{L}", r"\w").replace(r"\p{Z}", r"\s")
    text = text.replace(r"\p{N}", r"\d").replace(r"\p{M}", "").replace(r"\p{S}", "").replace(r"\p{P}", r"!-/:-@\[-`{-~")
    try:
        return re.compile(text)
    except re.error:
        return re.compile(r"[\s\S]*")


def paged(items: list[Any], body: Json) -> tuple[list[Any], str | None]:
    """Return one page of items and the token of the next.

    Raises:
        AwsError: the token is none that was given out.
    """
    size = int(body.get("MaxResults") or 100)
    token = body.get("NextToken") or "0"
    if not token.isdigit() or int(token) > len(items):
        raise AwsError("ValidationException", "The provided NextToken is invalid.")
    start = int(token)
    page = items[start : start + size]
    return page, str(start + size) if start + size < len(items) else None
