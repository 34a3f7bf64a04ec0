"""Store the last log lines of each rank with its attempt: limited in size, without secrets, safe for a terminal.

log of the pod ─▶ split off times ─▶ mask secrets ─▶ escape control characters ─▶ last lines ─▶ a row per rank
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from evenkeel.domain.values import Instant, Value

KEPT_LINES = 200
KEPT_BYTES = 16_384
"""Maximum bytes per rank, as UTF-8. Each rank has a row of its own, and a row has at most 400 KB."""
KEPT_RANKS = 64
"""Maximum ranks per attempt: first the ranks that failed first, then by number. So one commit holds all rows."""

_MASK = "[redacted]"
_SEARCHED_CHARACTERS = 65_536
"""Characters at the end of a log that are searched for secrets. A single log line may have megabytes."""
_LONGEST_SECRET = 4_096
# Every repetition has a limit: a training script may print any text, and a match must take linear time.
_SENSITIVE_NAME = r"(?:passw(?:or)?d|secret|token|api[_-]?key|access[_-]?key|credential|signature|authorization)"
_PATTERNS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\b(?:hf|ghp|gho|ghs|glpat|xox[abp]|sk|nvapi|github_pat)[-_][A-Za-z0-9_-]{16,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,1000}\.[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]*"),
)
_NAME_TO_VALUE = r"[\w.-]{0,40}[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?"
_AFTER_NAME = re.compile(rf"(?i)({_SENSITIVE_NAME}{_NAME_TO_VALUE})(?:(?:bearer|basic)[ \t]{{1,4}})?[^\s\"'&,;]+")
_BEARER = re.compile(r"(?i)\b((?:bearer|basic)[ \t]{1,4})[A-Za-z0-9._~+/=-]{8,}")
_USER_INFO = re.compile(r"(://)[^\s/@:]{0,200}:[^\s/@]{1,400}@")
_SECRET_VARIABLE = re.compile(_SENSITIVE_NAME, re.IGNORECASE)
_TIME = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d{1,3})?)\d*Z ", re.ASCII)
"""The time that a kubelet puts before a line, up to milliseconds."""
_MIN_SECRET = 6
"""Minimum characters of a secret. Masking a shorter value would also mask ordinary words."""


class KeptLog(Value):
    """The last log lines of one rank, or the reason why they could not be read."""

    job_id: str
    attempt: int
    rank: int
    pod_name: str = ""
    node_name: str = ""
    text: str = ""
    times: tuple[str, ...] = ()
    """Time at which the node read each line of the text, in RFC 3339; empty if unknown."""
    is_cut: bool = False
    """Whether the log has more lines before the text."""
    why: str = ""
    """Why the log could not be read; empty if it was read."""
    kept_at: Instant

    def last_lines(self, count: int, *, timestamps: bool = False) -> str:
        """Return the last lines; with `timestamps`, each begins with its time, if the times are known."""
        lines = self.text.splitlines(keepends=True)
        if timestamps and self.times:
            lines = [f"{time}Z {line}" for time, line in zip(self.times, lines, strict=True)]
        return "".join(lines[-count:])


class ShortLog(NamedTuple):
    """The last lines of a log, without secrets."""

    text: str
    is_cut: bool
    """Whether earlier lines are left out."""
    times: tuple[str, ...]
    """Time of each line; empty if masking a secret has joined lines."""


def secrets_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of a job's variables whose names suggest a secret, such as `API_KEY`."""
    secrets = (value for name, value in env.items() if _SECRET_VARIABLE.search(name))
    return tuple(value for value in secrets if len(value) >= _MIN_SECRET)


def shortened_with_times(stamped_text: str, secrets: Iterable[str]) -> ShortLog:
    """Shorten a log whose lines begin with their times. A secret may span lines, so it is masked without the times."""
    times: list[str] = []
    contents: list[str] = []
    for line in _with_line_ends(stamped_text.replace("\r\n", "\n")):
        match = _TIME.match(line)
        content = line[match.end() :] if match else line
        # The pieces of a progress bar have the time of their line.
        pieces = content.replace("\r", "\n")
        contents.append(pieces)
        times += [match[1] if match else ""] * len(_with_line_ends(pieces))
    plain_text = "".join(contents)
    text, is_cut = shortened(plain_text, secrets)
    end = plain_text[-_SEARCHED_CHARACTERS:]
    is_joined = redacted(end, secrets).count("\n") != end.count("\n")
    lines = len(text.splitlines())
    return ShortLog(text, is_cut, () if is_joined or not any(times) else tuple(times[len(times) - lines :]))


def _with_line_ends(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=\n)", text) if part]


def shortened(text: str, secrets: Iterable[str]) -> tuple[str, bool]:
    """Return the last lines of a log without secrets, and whether earlier lines are left out.

    Secrets are masked before the text is cut, because half a secret matches no pattern.
    """
    end = text[-_SEARCHED_CHARACTERS:]
    masked_text = redacted(end, secrets)
    if len(end) < len(text):
        # The cut may have halved a secret at the beginning, so the first line is dropped.
        head, newline, text_after_newline = masked_text.partition("\n")
        masked_text = text_after_newline if newline and len(head) < _LONGEST_SECRET else masked_text[_LONGEST_SECRET:]
    lines = escaped(masked_text).splitlines(keepends=True)
    last_lines = "".join(lines[-KEPT_LINES:])
    raw = last_lines.encode()
    if len(raw) > KEPT_BYTES:
        cut_text = raw[-KEPT_BYTES:].decode(errors="ignore")
        _, newline, text_after_newline = cut_text.partition("\n")
        last_lines = text_after_newline if newline and text_after_newline else cut_text
        return last_lines, True
    return last_lines, len(end) < len(text) or len(lines) >= KEPT_LINES


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text with the given values, and everything that looks like a secret, masked."""
    for value in sorted(set(secrets), key=len, reverse=True):
        text = text.replace(value, _MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(_MASK, text)
    text = _USER_INFO.sub(rf"\1{_MASK}@", text)
    text = _AFTER_NAME.sub(rf"\1{_MASK}", text)
    return _BEARER.sub(rf"\1{_MASK}", text)


def escaped(text: str) -> str:
    """Return a text with control, bidirectional and invisible characters escaped. Tabs and line ends stay.

    A carriage return becomes a line end, because a progress bar may write no other line end for hours.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(_escape(character) for character in text)


def _escape(character: str) -> str:
    if character in "\n\t" or character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")
