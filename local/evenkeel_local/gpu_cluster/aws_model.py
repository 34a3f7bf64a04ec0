"""Check requests and answers of the AWS JSON protocol against botocore's service model.

botocore checks types, required fields and minimum lengths before it sends. The service also checks patterns, maxima and
enums. This module checks all of these, for requests and for answers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

import botocore.session
from botocore.model import OperationModel, ServiceModel, Shape, StructureShape

Json = dict[str, Any]
T = TypeVar("T")


class AwsError(Exception):
    """An error response of an AWS service."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


@lru_cache(maxsize=4)
def service_model(name: str) -> ServiceModel:
    """Return botocore's model of a service."""
    return botocore.session.get_session().get_service_model(name)


def operation_model(model: ServiceModel, name: str) -> OperationModel:
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
        AwsError: ValidationException, with the message of AWS.
    """
    problems = list(_problems(op.input_shape, body, ""))
    if problems:
        count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''} detected"
        raise AwsError("ValidationException", f"{count}: {'; '.join(problems)}")


def output_problems(op: OperationModel, body: Json) -> list[str]:
    """Return the problems of an answer that does not fit the model. Every answer is checked."""
    return list(_problems(op.output_shape, body, "", answer=True))


def _constraint_message(value: Any, path: str, rule: str) -> str:
    shown = "" if isinstance(value, dict | list) and len(str(value)) > 200 else f" '{value}'"
    return f"Value{shown} at '{path}' failed to satisfy constraint: Member must {rule}"


def _member_path(path: str, name: str) -> str:
    member = name[:1].lower() + name[1:]
    return f"{path}.{member}" if path else member


def _problems(shape: Shape | None, value: Any, path: str, answer: bool = False) -> Iterator[str]:
    if shape is None:
        return
    kind = shape.type_name
    if isinstance(shape, StructureShape):
        yield from _structure_problems(shape, value, path, answer)
    elif kind == "list":
        yield from _list_problems(shape, value, path, answer)
    elif kind == "map":
        yield from _map_problems(shape, value, path, answer)
    elif kind == "string":
        yield from _string_problems(shape, value, path)
    elif kind in ("integer", "long", "float", "double"):
        yield from _number_problems(shape, value, path)
    elif kind == "boolean" and not isinstance(value, bool):
        yield _constraint_message(value, path, "be a boolean")
    elif kind == "timestamp" and (isinstance(value, bool) or not isinstance(value, int | float)):
        yield _constraint_message(value, path, "be a timestamp")


def _structure_problems(shape: StructureShape, value: Any, path: str, answer: bool) -> Iterator[str]:
    if not isinstance(value, dict):
        yield _constraint_message(value, path, "be a structure")
        return
    for name in shape.required_members:
        if value.get(name) is None:
            yield f"Value null at '{_member_path(path, name)}' failed to satisfy constraint: Member must not be null"
    for name, item in value.items():
        if name not in shape.members:
            if answer:
                yield f"'{_member_path(path, name)}' is not in the model"
        elif item is not None:
            yield from _problems(shape.members[name], item, _member_path(path, name), answer)


def _map_problems(shape: Shape, value: Any, path: str, answer: bool) -> Iterator[str]:
    if not isinstance(value, dict):
        yield _constraint_message(value, path, "be a map")
        return
    keys, values = getattr(shape, "key"), getattr(shape, "value")  # noqa: B009 (a shape's parts are dynamic)
    for key, item in value.items():
        yield from _problems(keys, key, f"{path}.key", answer)
        yield from _problems(values, item, f"{path}.{key}.member", answer)


def _list_problems(shape: Shape, value: Any, path: str, answer: bool) -> Iterator[str]:
    if not isinstance(value, list):
        yield _constraint_message(value, path, "be a list")
        return
    yield from _length_problems(shape, len(value), value, path)
    member: Shape = getattr(shape, "member")  # noqa: B009 (a shape's parts are dynamic)
    for number, item in enumerate(value, start=1):
        yield from _problems(member, item, f"{path}.{number}.member", answer)


def _length_problems(shape: Shape, length: int, value: Any, path: str) -> Iterator[str]:
    minimum, maximum = shape.metadata.get("min"), shape.metadata.get("max")
    if minimum is not None and length < minimum:
        yield _constraint_message(value, path, f"have length greater than or equal to {minimum}")
    if maximum is not None and length > maximum:
        yield _constraint_message(value, path, f"have length less than or equal to {maximum}")


def _string_problems(shape: Shape, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield _constraint_message(value, path, "be a string")
        return
    yield from _length_problems(shape, len(value), value, path)
    choices: list[str] = list(getattr(shape, "enum", None) or ())
    if choices and value not in choices:
        yield _constraint_message(value, path, f"satisfy enum value set: [{', '.join(choices)}]")
    pattern = shape.metadata.get("pattern")
    if pattern and not _compile_pattern(pattern).fullmatch(value):
        yield _constraint_message(value, path, f"satisfy regular expression pattern: {pattern}")


def _number_problems(shape: Shape, value: Any, path: str) -> Iterator[str]:
    types: tuple[type, ...] = (int,) if shape.type_name in ("integer", "long") else (int, float)
    if isinstance(value, bool) or not isinstance(value, types):
        yield _constraint_message(value, path, "be a number")
        return
    minimum, maximum = shape.metadata.get("min"), shape.metadata.get("max")
    if minimum is not None and value < minimum:
        yield _constraint_message(value, path, f"have value greater than or equal to {minimum}")
    if maximum is not None and value > maximum:
        yield _constraint_message(value, path, f"have value less than or equal to {maximum}")


@lru_cache(maxsize=512)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    # The model has Java's regular expressions. Python writes these character classes differently.
    text = pattern.replace(r"\p{Alnum}", "A-Za-z0-9").replace(r"\p{L}", r"\w").replace(r"\p{Z}", r"\s")
    text = text.replace(r"\p{N}", r"\d").replace(r"\p{M}", "").replace(r"\p{S}", "").replace(r"\p{P}", r"!-/:-@\[-`{-~")
    try:
        return re.compile(text)
    except re.error:
        return re.compile(r"[\s\S]*")


def items_between(items: Iterable[T], body: Json, field: str, time_of: Callable[[T], float]) -> list[T]:
    """Return the items between `<field>After` and `<field>Before` of a request."""
    after_time, before_time = body.get(f"{field}After"), body.get(f"{field}Before")
    return [
        item
        for item in items
        if (after_time is None or time_of(item) > after_time) and (before_time is None or time_of(item) < before_time)
    ]


def paged_answer(key: str, items: list[T], body: Json, operation_name: str, show: Callable[[T], Json]) -> Json:
    """Return one page of a list as the answer of an operation.

    Raises:
        AwsError: the page token does not belong to this request.
    """
    page, token = page_and_token(items, body, operation_name)
    return {key: [show(item) for item in page]} | ({"NextToken": token} if token else {})


def page_and_token(items: list[T], body: Json, operation_name: str) -> tuple[list[T], str | None]:
    """Return one page of items and the token of the next page. A token is valid for the same request only.

    Raises:
        AwsError: the token does not belong to this request.
    """
    size = int(body.get("MaxResults") or 100)
    question = {key: value for key, value in body.items() if key not in ("MaxResults", "NextToken")}
    digest = hashlib.sha256(json.dumps([operation_name, question], sort_keys=True).encode()).hexdigest()[:32]
    start = 0
    if token := body.get("NextToken"):
        position, _, stated_digest = token.partition(".")
        if not position.isdecimal() or stated_digest != digest:
            raise AwsError("ValidationException", "The provided NextToken is invalid.")
        start = int(position)
    page = items[start : start + size]
    return page, f"{start + size}.{digest}" if start + size < len(items) else None
