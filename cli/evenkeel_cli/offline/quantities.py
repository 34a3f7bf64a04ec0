"""Durations, rates and numbers as people type them."""

import math
import re

from evenkeel.domain.wrong_fields import first_problem
from evenkeel_client.errors import CommandFailed, Exit

_UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PLUS = re.compile(r"(?<![eE])\+")
_DURATION = re.compile(r"([0-9.,_eE+-]+?)\s*(s|min|m|h|d)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
"""A comma may only separate thousands. `0,05` is refused, because it may mean 0.05."""


def parse_number(option: str, typed_value: str) -> float:
    """Return a finite number; `1,000,000` and `1e6` are numbers, too.

    Raises:
        CommandFailed: the text is no number; names the option.
    """
    text = typed_value.strip()
    if "," in text and not _THOUSANDS.fullmatch(text):
        raise usage_error(option, f"must be a number such as 0.5 or 1,000, not {text!r}")
    try:
        value = float(text.replace(",", "").replace("_", ""))
    except ValueError as error:
        raise usage_error(option, f"must be a number, not {typed_value!r}") from error
    if not math.isfinite(value):
        raise usage_error(option, f"must be a finite number, not {typed_value}")
    return value


def parse_positive(option: str, typed_value: str) -> float:
    """Return a number above 0.

    Raises:
        CommandFailed: the text is no such number; names the option.
    """
    value = parse_number(option, typed_value)
    if value <= 0:
        raise usage_error(option, f"must be more than 0, not {value:g}")
    return value


def parse_not_negative(option: str, typed_value: str) -> float:
    """Return a number that is 0 or more.

    Raises:
        CommandFailed: the text is no such number; names the option.
    """
    value = parse_number(option, typed_value)
    if value < 0:
        raise usage_error(option, f"must be at least 0, not {value:g}")
    return value


def parse_seconds(option: str, typed_value: str) -> float:
    """Return a duration in seconds: `90`, `90s`, `40min`, `4.5h`, `12d`, or a sum such as `89+903+1398`.

    Raises:
        CommandFailed: the text is no duration, or is negative; names the option.
    """
    duration_texts = _PLUS.split(typed_value)
    if len(duration_texts) > 1:
        return sum(parse_seconds(option, term) for term in duration_texts)
    match = _DURATION.fullmatch(typed_value.strip())
    if match is None:
        raise usage_error(option, f"must be a duration such as 90s, 40min or 4.5h, not {typed_value!r}")
    value = parse_number(option, match[1]) * _UNITS[match[2] or "s"]
    if value < 0:
        raise usage_error(option, f"must not be negative, not {typed_value}")
    return value


def parse_share(option: str, typed_value: str) -> float:
    """Return a share: `0.0005` or `0.05%`.

    Raises:
        CommandFailed: the text is no share, or is negative; names the option.
    """
    text = typed_value.strip()
    value = parse_number(option, text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if value < 0:
        raise usage_error(option, f"must not be negative, not {typed_value}")
    return value


def problem_of(cause: BaseException | None) -> str:
    """Return why a typed value is not valid, as the end of a sentence; empty for another kind of error."""
    return first_problem(cause)


def usage_error(option: str, problem: str) -> CommandFailed:
    """Return the error of a command with a wrong option or field."""
    return CommandFailed(Exit.USAGE, f"{option} {problem}.", code="WRONG_FIGURE")
