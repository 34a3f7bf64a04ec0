"""Field types of event models, the envelope that all events share, and the answer for a refused event.

The models are strict: no value is coerced. Every text is checked, because it may come from a person who sends events by
hand. A field that no model names is not read, so AWS may add fields.
"""

import re
import unicodedata
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from evenkeel.domain.health.incidents import FactArn
from evenkeel.domain.nodes import INSTANCE_ID
from evenkeel.domain.plurals import count_of
from evenkeel.events.outcomes import Malformed

DRILL_SOURCE = "evenkeel.drill"
DETAIL_LIMIT = 500
"""Maximum characters of a source's text in a fact."""

_EVENT_ID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z", re.ASCII)
_EARLIEST = datetime(2020, 1, 1, tzinfo=UTC)
_LATEST = datetime(2100, 1, 1, tzinfo=UTC)
_TEXT_LIMIT = 8192

_JSON_TYPES = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"}
_EXPECTED_TYPES = {
    "string_type": "string",
    "literal_error": "string",
    "model_type": "object",
    "dict_type": "object",
    "list_type": "array",
}
"""JSON type that a field needs, by the type of pydantic's error."""


class EventModel(BaseModel):
    """Base of every model of event data. Built at its first use, so importing all sources costs little."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", defer_build=True)


class BadField(ValueError):
    """Raised by a field check. The code names the kind of fault for operators."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code = code


def malformed_event(error: ValidationError) -> Malformed:
    """Return the result for an event that its model refuses: the path of the first bad field, and its problem."""
    fault = error.errors(include_url=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).lstrip(".")
    kind, value, cause = fault["type"], fault["input"], fault.get("ctx", {}).get("error")
    if isinstance(cause, BadField):
        return Malformed(cause.code, f"{path}: {cause}")
    if fault["loc"] == ("detail",) and kind in ("missing", "model_type"):
        return Malformed("EVENT_NO_DETAIL", f"{path}: {'missing' if kind == 'missing' else 'not an object'}")
    if kind == "missing":
        return Malformed("EVENT_BAD_TYPE", f"{path}: missing")
    if kind == "literal_error" and isinstance(value, str):
        return Malformed("EVENT_UNKNOWN_STATUS", f"{path}: {value[:40]!r} is not {fault['ctx']['expected']}")
    if kind in _EXPECTED_TYPES:
        return Malformed("EVENT_BAD_TYPE", f"{path}: expected {_EXPECTED_TYPES[kind]}, got {_json_type(value)}")
    return Malformed("EVENT_TOO_LARGE" if kind == "string_too_long" else "EVENT_BAD_TEXT", f"{path}: {fault['msg']}")


def _json_type(value: object) -> str:
    return "null" if value is None else _JSON_TYPES[type(value)]


def require_text(value: object) -> str:
    """Return the value if it is a string. For checks that run before pydantic's own.

    Raises:
        BadField: EVENT_BAD_TYPE.
    """
    if not isinstance(value, str):
        raise BadField("EVENT_BAD_TYPE", f"expected string, got {_json_type(value)}")
    return value


def check_id(pattern: re.Pattern[str], meaning: str) -> AfterValidator:
    """Return a field check that refuses an id of another form."""

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise BadField("EVENT_BAD_ID", f"{text[:40]!r} is not {meaning}")
        return text

    return AfterValidator(check)


def _check_text(text: str) -> str:
    """Refuse text that could mislead a person, a terminal or a log: surrogates, controls, bidi, zero-width."""
    if len(text) > _TEXT_LIMIT:
        raise BadField("EVENT_TOO_LARGE", f"{count_of(len(text), 'character')}, at most {_TEXT_LIMIT} are read")
    for position, character in enumerate(text):
        if unicodedata.category(character)[0] == "C" and character not in "\t\n\r":
            raise BadField("EVENT_BAD_TEXT", f"U+{ord(character):04X} at {position} is not printable text")
    return text


def check_time(instant: datetime) -> datetime:
    """Return the instant if it lies between the years 2020 and 2100.

    Raises:
        BadField: EVENT_BAD_TIME.
    """
    if not _EARLIEST <= instant < _LATEST:
        raise BadField("EVENT_BAD_TIME", f"{instant.isoformat()} is not plausible")
    return instant


def _utc_time(value: object) -> datetime:
    text = require_text(value)
    if not _TIME.fullmatch(text):
        raise BadField("EVENT_BAD_TIME", f"{text[:40]!r} is not a UTC time")
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise BadField("EVENT_BAD_TIME", f"{text[:40]!r} is not a date") from None
    return check_time(instant)


def epoch_milliseconds(value: object) -> datetime:
    """Read epoch milliseconds. The unit is never guessed: seconds give January 1970, which is refused.

    Raises:
        BadField: EVENT_BAD_TYPE or EVENT_BAD_TIME.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadField("EVENT_BAD_TYPE", f"expected number, got {_json_type(value)}")
    try:
        seconds = float(value) / 1000
    except OverflowError:
        raise BadField("EVENT_BAD_TYPE", "the number has too many digits") from None
    try:
        instant = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise BadField("EVENT_BAD_TIME", f"{value!r} is not a time") from None
    return check_time(instant)


def _none_if_unreadable(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        return None


PRINTABLE = AfterValidator(_check_text)
PlainText = Annotated[str, PRINTABLE]
"""Printable text of at most 8,192 characters."""
InstanceId = Annotated[str, check_id(INSTANCE_ID, "an instance id")]
ClusterArn = Annotated[FactArn, PRINTABLE]
EventId = Annotated[str, check_id(_EVENT_ID, "an event id")]
"""An event id that is safe as the name of the archived copy."""
UtcTime = Annotated[datetime, BeforeValidator(_utc_time)]
"""An ISO 8601 time in UTC."""
EpochMilliseconds = Annotated[datetime, BeforeValidator(epoch_milliseconds)]
NONE_IF_UNREADABLE = WrapValidator(_none_if_unreadable)
"""Reads a field as None if it has another type or form. For sources without a published schema."""

Detail = TypeVar("Detail", bound=EventModel)


class EventEnvelope(EventModel, Generic[Detail]):
    """Envelope of an event with the `detail` of its source.

    Source: the EventBridge guide, "Event structure". Powertools' `EventBridgeModel` is not used: it needs `resources`
    and `version`, which AWS fills in several ways, or not at all.
    """

    detail: Detail
    id: EventId
    time: UtcTime
    source: str

    @property
    def is_drill(self) -> bool:
        """Whether a drill sent this event."""
        return self.source == DRILL_SOURCE


def one_line(text: str) -> str:
    """Return a source's text on one line, cut to the limit of a fact."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= DETAIL_LIMIT else f"{line[: DETAIL_LIMIT - 1]}…"
