"""Describe the wrong fields of a document in plain words, without names of Python classes and validators."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from evenkeel.domain.name_suggestions import similar_names
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import alternatives

_MAX_SHOWN = 40
"""Maximum characters of a wrong value in a message."""

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "set": "a list",
    "dict": "an object",
    "mapping": "an object",
    "model": "an object",
}
"""Expected type of a field, by the first word of pydantic's error type."""
_LIMITS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_SIZES = {
    "too_short": ("at least", "min_length", "item"),
    "too_long": ("at most", "max_length", "item"),
    "string_too_short": ("at least", "min_length", "character"),
    "string_too_long": ("at most", "max_length", "character"),
}


class WrongField(NamedTuple):
    """A field that is not valid."""

    field: str
    """Path in the document, such as `spec.podSets[0].count`; empty for the document itself."""
    message: str
    """The problem, as the rest of a sentence that begins with the field's name."""


def wrong_fields(error: ValidationError, document: Any) -> tuple[WrongField, ...]:
    """Return every wrong field once, in the order of the model's declaration.

    Args:
        error: The error of the validation.
        document: The document that was validated. Parts of a location that are not in the document are names of
            validators, and are left out.
    """
    messages: dict[str, list[str]] = {}
    for fault in error.errors(include_url=False):
        field = field_path(fault["loc"], document, is_missing=fault["type"] in ("missing", "union_tag_not_found"))
        if fault["type"].startswith("union_tag"):
            tag = str(fault["ctx"]["discriminator"]).strip("'")
            field = f"{field}.{tag}" if field else tag
        messages.setdefault(field, []).append(_message(fault))
    return tuple(WrongField(field, _together(texts)) for field, texts in messages.items())


def first_problem(error: BaseException | None) -> str:
    """Return the first problem of a validation, as the rest of a sentence; empty for any other error."""
    return wrong_fields(error, None)[0].message if isinstance(error, ValidationError) else ""


def field_path(location: Sequence[int | str], document: Any, *, is_missing: bool = False) -> str:
    """Return the path of a location in a document: `groups[0].failures`."""
    path, value = "", document
    for position, part in enumerate(location):
        if isinstance(part, int) and isinstance(value, list | tuple) and part < len(value):
            path, value = f"{path}[{part}]", value[part]
        elif isinstance(value, Mapping) and part in value:
            path, value = f"{path}.{part}" if path else str(part), value[part]
        elif is_missing and position == len(location) - 1:
            path = f"{path}.{part}" if path else str(part)
    return path


_ENUM_MEMBER = re.compile(r"<\w+\.\w+: ('[^']*')>")
"""How pydantic writes a member of an enum. A message shows only the value of the member."""


def requirement(fault: Any, model: type[BaseModel] | None = None) -> str:
    """Return what a fault of pydantic demands of its field, as the rest of a sentence, without the wrong value.

    Args:
        fault: An error of a `ValidationError`, with its context.
        model: The model of the whole document. With it, the text for an unknown field names similar fields.
    """
    kind, context = fault["type"], fault.get("ctx", {})
    match kind:
        case "missing" | "union_tag_not_found":
            return "is required"
        case "extra_forbidden":
            *path, name = fault["loc"]
            nearest_names = similar_names(str(name), _field_names(model, path)) if model else ""
            return f"is not a known field; did you mean {nearest_names}?" if nearest_names else "is not a known field"
        case "value_error" | "assertion_error":
            return str(context.get("error", fault["msg"]))
        case "literal_error" | "enum":
            expected_values = _ENUM_MEMBER.sub(r"\1", context["expected"])
            return f"must be {expected_values}"
        case "union_tag_invalid":
            return f"must be one of {context['expected_tags']}"
        case "string_pattern_mismatch":
            return f"must match the pattern {context['pattern']}"
        case "finite_number":
            return "must be a finite number"
        case _ if kind in _LIMITS:
            words, name = _LIMITS[kind]
            limit = context[name]
            text = f"{limit:.15g}" if isinstance(limit, float) else limit
            return f"must be {words} {text}"
    if kind in _SIZES:
        words, name, unit = _SIZES[kind]
        return f"must have {words} {count_of(context[name], unit)}"
    expected_kind = _EXPECTED.get(kind.partition("_")[0])
    if expected_kind and kind.rpartition("_")[2] in ("type", "parsing", "float", "size"):
        return f"must be {expected_kind}"
    return str(fault["msg"])


def _field_names(model: type[BaseModel], path: Iterable[int | str]) -> tuple[str, ...]:
    """Return the field names of the model at a path in a document."""
    for part in path:
        # An index of a list or a key of a map is not a field. All objects inside have the same type.
        field = next((field for name, field in model.model_fields.items() if part in (name, field.alias)), None)
        model = next(_models_in(field.annotation), model) if field else model
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    for part in alternatives(kind):
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield part
        for inner in get_args(part):
            yield from _models_in(inner)


def _message(fault: Any) -> str:
    """Return the requirement with the wrong value, unless the value is an own message's, or too long to show."""
    text = requirement(fault)
    if fault["type"] in ("value_error", "assertion_error") or not text.startswith("must be "):
        return text
    wrong_value = fault["ctx"]["tag"] if fault["type"] == "union_tag_invalid" else fault["input"]
    return f"{text}, not {_shown(wrong_value)}"


def _together(messages: Sequence[str]) -> str:
    """Join the messages of a union type into one: `must be a whole number, a number or text, not a list`."""
    distinct = list(dict.fromkeys(messages))
    given_values = {message.rpartition(", not ")[2] for message in distinct}
    if len(distinct) == 1 or len(given_values) > 1 or not all(text.startswith("must be ") for text in distinct):
        # A message of Evenkeel's own validator is the most precise one.
        return next((text for text in distinct if not text.startswith("must be ")), distinct[0])
    expected_texts = [text.rpartition(", not ")[0].removeprefix("must be ") for text in distinct]
    expected_texts = [
        text for text in expected_texts if not (text == "a whole number" and "a number" in expected_texts)
    ]
    choices_text = (
        f"{', '.join(expected_texts[:-1])} or {expected_texts[-1]}" if len(expected_texts) > 1 else expected_texts[0]
    )
    return f"must be {choices_text}, not {given_values.pop()}"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            text = repr(value) if isinstance(value, str) else str(value)
            return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
