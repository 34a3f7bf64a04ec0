"""Reading untrusted fields: nothing is coerced, the first fault is named by its path, text is looked at before use."""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from evenkeel.domain.nodes import INSTANCE_ID
from evenkeel.events.outcomes import BadEvent

DETAIL_LIMIT = 500
"""Characters of a source's own words that are kept with a fact."""

_ENVELOPE_ID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z", re.ASCII)
_EARLIEST = datetime(2020, 1, 1, tzinfo=UTC)
_LATEST = datetime(2100, 1, 1, tzinfo=UTC)
_TEXT_LIMIT = 8192

_NAMES = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True)
class Envelope:
    """One event as its parser gets it: an object with a `detail` that is an object, and nothing else is checked yet."""

    document: Mapping[str, Any]
    detail: Mapping[str, Any]
    is_drill: bool

    def identity(self) -> tuple[str, datetime]:
        """Return the envelope's id and time.

        Raises:
            BadEvent: one of them cannot be read.
        """
        envelope_id, time = text_of(self.document, "id", "id"), text_of(self.document, "time", "time")
        check_envelope_id(envelope_id)
        return envelope_id, time_of(time, "time")


def _json_type(value: Any) -> str:
    return "null" if value is None else _NAMES[type(value)]


def text_of(parent: Mapping[str, Any], key: str, path: str, *, required: bool = True) -> str:
    """Return a string field; empty where it is optional and absent.

    Raises:
        BadEvent: EVENT_BAD_TYPE.
    """
    if key not in parent:
        if required:
            raise BadEvent("EVENT_BAD_TYPE", f"{path}: expected string, got nothing")
        return ""
    value = parent[key]
    if type(value) is not str:
        raise BadEvent("EVENT_BAD_TYPE", f"{path}: expected string, got {_json_type(value)}")
    return value


def plain_text_of(parent: Mapping[str, Any], key: str, path: str, *, required: bool = True) -> str:
    """Return a string field that was looked at by `check_text`.

    Raises:
        BadEvent: as `text_of` and `check_text` do.
    """
    text = text_of(parent, key, path, required=required)
    check_text(text, path)
    return text


def list_of(parent: Mapping[str, Any], key: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a list field, each with its path; none where the field is absent.

    Raises:
        BadEvent: EVENT_BAD_TYPE.
    """
    value = parent.get(key, [])
    if type(value) is not list:
        raise BadEvent("EVENT_BAD_TYPE", f"{path}: expected array, got {_json_type(value)}")
    for index, item in enumerate(value):
        place = f"{path}[{index}]"
        if type(item) is not dict:
            raise BadEvent("EVENT_BAD_TYPE", f"{place}: expected object, got {_json_type(item)}")
        yield place, item


def object_of(parent: Mapping[str, Any], key: str, path: str) -> dict[str, Any]:
    """Return an object field.

    Raises:
        BadEvent: EVENT_BAD_TYPE.
    """
    if key not in parent:
        raise BadEvent("EVENT_BAD_TYPE", f"{path}: expected object, got nothing")
    value = parent[key]
    if type(value) is not dict:
        raise BadEvent("EVENT_BAD_TYPE", f"{path}: expected object, got {_json_type(value)}")
    return value


def number_of(parent: Mapping[str, Any], key: str, path: str) -> float:
    """Return a number field; a boolean is none.

    Raises:
        BadEvent: EVENT_BAD_TYPE.
    """
    value = parent.get(key)
    if type(value) not in (int, float):
        got = _json_type(value) if key in parent else "nothing"
        raise BadEvent("EVENT_BAD_TYPE", f"{path}: expected number, got {got}")
    try:
        return float(value)  # type: ignore[arg-type]  # the exact type was just checked
    except OverflowError:
        raise BadEvent("EVENT_BAD_TYPE", f"{path}: the number has too many digits") from None


def check_text(value: str, path: str) -> None:
    """Refuse text that could mislead a person, a terminal or a log: surrogates, controls, bidi, zero-width.

    Raises:
        BadEvent: EVENT_BAD_TEXT or EVENT_TOO_LARGE.
    """
    if len(value) > _TEXT_LIMIT:
        raise BadEvent("EVENT_TOO_LARGE", f"{path}: {len(value)} characters, at most {_TEXT_LIMIT} are read")
    for place, character in enumerate(value):
        if unicodedata.category(character)[0] == "C" and character not in "\t\n\r":
            raise BadEvent("EVENT_BAD_TEXT", f"{path}: U+{ord(character):04X} at {place} is not printable text")


def check_instance_id(value: str, path: str) -> None:
    """Raise EVENT_BAD_ID unless this is an instance id that an API would take."""
    if not INSTANCE_ID.fullmatch(value):
        raise BadEvent("EVENT_BAD_ID", f"{path}: {value[:40]!r} is not an instance id")


def check_envelope_id(value: str, path: str = "id") -> None:
    """Raise EVENT_BAD_ID unless this may name the raw copy."""
    if not _ENVELOPE_ID.fullmatch(value):
        raise BadEvent("EVENT_BAD_ID", f"{path}: not an event id")


def time_of(value: str, path: str) -> datetime:
    """Read an ISO 8601 time in UTC.

    Raises:
        BadEvent: EVENT_BAD_TIME.
    """
    if not _TIME.fullmatch(value):
        raise BadEvent("EVENT_BAD_TIME", f"{path}: {value[:40]!r} is not a UTC time")
    try:
        return plausible(datetime.fromisoformat(value), path)
    except ValueError:
        raise BadEvent("EVENT_BAD_TIME", f"{path}: {value[:40]!r} is not a date") from None


def epoch_milliseconds(value: float, path: str) -> datetime:
    """Read epoch milliseconds. The unit is never guessed: seconds would be January 1970 and are refused.

    Raises:
        BadEvent: EVENT_BAD_TIME.
    """
    try:
        return plausible(datetime.fromtimestamp(value / 1000, UTC), path)
    except (ValueError, OverflowError, OSError):
        raise BadEvent("EVENT_BAD_TIME", f"{path}: {value!r} is no time") from None


def plausible(instant: datetime, path: str) -> datetime:
    """Return the instant if it lies in this century's first eight decades after 2020.

    Raises:
        BadEvent: EVENT_BAD_TIME.
    """
    if not _EARLIEST <= instant < _LATEST:
        raise BadEvent("EVENT_BAD_TIME", f"{path}: {instant.isoformat()} is not plausible")
    return instant


def quoted(text: str) -> str:
    """Return a source's words on one line, cut to what a fact may carry."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= DETAIL_LIMIT else f"{line[: DETAIL_LIMIT - 1]}…"
