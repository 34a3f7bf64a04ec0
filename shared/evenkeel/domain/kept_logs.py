"""The last lines of a rank's log, as they are kept with its attempt: bounded, without secrets, harmless to a terminal.

pod's log ── last lines ── secrets masked ── controls escaped ── cut to KEPT_BYTES ── a row of its own
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping

from evenkeel.domain.values import Instant, Value

KEPT_LINES = 200
KEPT_BYTES = 16_384
"""Of one rank, as UTF-8. Each rank has a row of its own, and a row holds 400 KB."""
KEPT_RANKS = 64
"""Ranks of one attempt: those that failed first, then by number. So one commit holds all rows."""

_MASK = "[redacted]"
_LOOKED_AT = 65_536
"""Characters of a log's end in which secrets are looked for. A log line may have megabytes."""
_LONGEST_SECRET = 4_096
# Every repetition is bounded: these patterns meet whatever a trainer prints, and must not take longer than the text.
_TELLING_NAME = r"(?:passw(?:or)?d|secret|token|api[_-]?key|access[_-]?key|credential|signature|authorization)"
_PATTERNS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\b(?:hf|ghp|gho|ghs|glpat|xox[abp]|sk|nvapi|github_pat)[-_][A-Za-z0-9_-]{16,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,1000}\.[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]*"),
)
_BETWEEN = r"[\w.-]{0,40}[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?"
_AFTER_NAME = re.compile(rf"(?i)({_TELLING_NAME}{_BETWEEN})(?:(?:bearer|basic)[ \t]{{1,4}})?[^\s\"'&,;]+")
_BEARER = re.compile(r"(?i)\b((?:bearer|basic)[ \t]{1,4})[A-Za-z0-9._~+/=-]{8,}")
_USER_INFO = re.compile(r"(://)[^\s/@:]{0,200}:[^\s/@]{1,400}@")
_SECRET_VARIABLE = re.compile(_TELLING_NAME, re.IGNORECASE)
_LEAST_SECRET = 6
"""Characters; a shorter value would mask words that are none."""


class KeptLog(Value):
    """The end of one rank's log, or why there is none."""

    job_id: str
    attempt: int
    rank: int
    pod_name: str = ""
    node_name: str = ""
    text: str = ""
    is_cut: bool = False
    """Whether the log has more lines before these."""
    why: str = ""
    """Why the log could not be read; empty where it was."""
    kept_at: Instant


def secrets_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of those variables of a job whose names say that they are secret."""
    found = (value for name, value in env.items() if _SECRET_VARIABLE.search(name))
    return tuple(value for value in found if len(value) >= _LEAST_SECRET)


def shortened(text: str, secrets: Iterable[str]) -> tuple[str, bool]:
    """Return the last lines of a log as they may be kept, and whether lines before them are left out.

    Secrets are masked before anything is cut: half a secret matches no pattern.
    """
    end = text[-_LOOKED_AT:]
    masked = redacted(end, secrets)
    if len(end) < len(text):
        # What the cut has halved stands at the beginning.
        head, newline, rest = masked.partition("\n")
        masked = rest if newline and len(head) < _LONGEST_SECRET else masked[_LONGEST_SECRET:]
    lines = escaped(masked).splitlines(keepends=True)
    last = "".join(lines[-KEPT_LINES:])
    raw = last.encode()
    if len(raw) > KEPT_BYTES:
        cut = raw[-KEPT_BYTES:].decode(errors="ignore")
        _, newline, rest = cut.partition("\n")
        last = rest if newline and rest else cut
        return last, True
    return last, len(end) < len(text) or len(lines) >= KEPT_LINES


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text with what looks like a secret masked, and these very values."""
    for value in sorted(set(secrets), key=len, reverse=True):
        text = text.replace(value, _MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(_MASK, text)
    text = _USER_INFO.sub(rf"\1{_MASK}@", text)
    text = _AFTER_NAME.sub(rf"\1{_MASK}", text)
    return _BEARER.sub(rf"\1{_MASK}", text)


def escaped(text: str) -> str:
    """Return a text whose control, bidi and invisible characters are written as escapes; tab and line ends stay.

    A carriage return begins a line: progress bars write nothing else for hours.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(_escape(each) for each in text)


def _escape(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")
