"""The causes of status 422, with the API server's wording.

Source: `k8s.io/apimachinery/pkg/util/validation/field`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Cause = tuple[str, str, str]
"""(reason, field, message) as in a Status's `details.causes`."""


def quoted(value: Any) -> str:
    """Return a value as messages quote it: as JSON, None as `"null"`."""
    if value is None:
        return '"null"'
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def required(field: str, detail: str = "") -> Cause:
    """Return the cause for a missing value."""
    return ("FieldValueRequired", field, _with_detail("Required value", detail))


def invalid(field: str, value: Any, detail: str) -> Cause:
    """Return the cause for a value that breaks a rule."""
    return ("FieldValueInvalid", field, _with_detail(f"Invalid value: {quoted(value)}", detail))


def invalid_unquoted(field: str, detail: str) -> Cause:
    """Return the cause for an invalid value; the message omits the value."""
    return ("FieldValueInvalid", field, f"Invalid value: {detail}")


def immutable(field: str, value: Any) -> Cause:
    """Return the cause for a field that must not change."""
    return invalid(field, value, "field is immutable")


def not_supported(field: str, value: Any, choices: Iterable[str]) -> Cause:
    """Return the cause for a value outside the choices."""
    choices_text = ", ".join(json.dumps(choice) for choice in choices)
    return ("FieldValueNotSupported", field, f"Unsupported value: {quoted(value)}: supported values: {choices_text}")


def forbidden(field: str, detail: str) -> Cause:
    """Return the cause for a value that is not allowed here."""
    return ("FieldValueForbidden", field, f"Forbidden: {detail}")


def duplicate(field: str, value: Any, detail: str = "") -> Cause:
    """Return the cause for a value that occurs twice."""
    return ("FieldValueDuplicate", field, _with_detail(f"Duplicate value: {quoted(value)}", detail))


def not_found(field: str, value: Any) -> Cause:
    """Return the cause for a reference to a missing object."""
    return ("FieldValueNotFound", field, f"Not found: {quoted(value)}")


def too_long(field: str, max_length: int) -> Cause:
    """Return the cause for a value of too many bytes."""
    return ("FieldValueTooLong", field, f"Too long: may not be more than {max_length} bytes")


def too_many(field: str, count: int, max_items: int) -> Cause:
    """Return the cause for a list of too many items."""
    return ("FieldValueTooMany", field, f"Too many: {count}: must have at most {max_items} items")


def at_least_zero(field: str, value: Any) -> Iterable[Cause]:
    """Yield the cause for a negative number."""
    if isinstance(value, int) and value < 0:
        yield invalid(field, value, "must be greater than or equal to 0")


def one_of(field: str, value: Any, choices: Iterable[str], *, sort: bool = True) -> Iterable[Cause]:
    """Yield the cause if a value is set and not one of the choices."""
    valid = list(choices)
    if value is not None and value not in valid:
        yield not_supported(field, value, sorted(valid) if sort else valid)


def _with_detail(message: str, detail: str) -> str:
    return f"{message}: {detail}" if detail else message
