"""Output for people: aligned columns, a glyph with a word, relative times on a terminal, RFC 3339 in a pipe.

All output passes `Printer`, and all text in it `escape_control_characters`: text of jobs, detectors and providers
cannot move the cursor, set a colour or turn text around.
"""

import json
import os
import re
import secrets
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, TextIO

from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]

_GLYPHS = {"ok": "●", "working": "◐", "warn": "▲", "failed": "✖", "next": "○", "idle": "·"}
_ASCII = {"ok": "*", "working": "~", "warn": "!", "failed": "x", "next": "o", "idle": "."}
_COLOURS = {"ok": "32", "working": "36", "warn": "33", "failed": "31", "next": "2", "idle": "2"}
_PLAIN = str.maketrans({"…": "~", "–": "-", "→": ">", "✔": "y", "✖": "x", "·": ".", "●": "*", "◐": "~", "▲": "!"})
_STYLE_MARK = secrets.token_hex(8)
"""Marks the styles that this module sets: text from elsewhere cannot know it."""
_STYLED = re.compile(rf"\x1b{_STYLE_MARK}\[([0-9;]*)m")
_RESET = f"\x1b{_STYLE_MARK}[0m"
_CONTROL_CHARACTERS = re.compile(
    # Controls but tab and line feed; soft hyphen; what turns or joins text; line and paragraph ends; what is invisible.
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ufeff\\ufff9-\\ufffb\\ud800-\\udfff\\U000e0000-\\U000e007f]"
)
"""Characters that a terminal acts on, or that make a text look like another."""


class OutputFormat(StrEnum):
    """Forms of output."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    NAME = "name"


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    is_right: bool = False
    gives_way: bool = False
    """Whether this column is cut where the line is too long."""


@dataclass
class Printer:
    """Where a command writes, and what that place can show."""

    stream: TextIO
    environment: Mapping[str, str]
    columns: int | None = None

    @cached_property
    def is_terminal(self) -> bool:
        return self.stream.isatty()

    @cached_property
    def has_colour(self) -> bool:
        plain = "NO_COLOR" in self.environment or self.environment.get("TERM") == "dumb"
        return self.is_terminal and not plain

    @cached_property
    def has_unicode(self) -> bool:
        return "utf" in (getattr(self.stream, "encoding", "") or "").lower()

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None in a pipe, where nothing is cut."""
        if self.columns is not None:
            return self.columns
        return shutil.get_terminal_size((80, 24)).columns if self.is_terminal else None

    # ------------------------------------------------------------ words

    def style(self, text: str, codes: str) -> str:
        return f"\x1b{_STYLE_MARK}[{codes}m{text}{_RESET}" if self.has_colour and text else text

    def bold(self, text: str) -> str:
        return self.style(text, "1")

    def dim(self, text: str) -> str:
        return self.style(text, "2")

    def glyph(self, status: str) -> str:
        """Return the sign of a status; never alone, a word stands beside it."""
        return self.style((_GLYPHS if self.has_unicode else _ASCII)[status], _COLOURS[status])

    def with_glyph(self, status: str, text: str) -> str:
        """Return a text with its sign before it."""
        return f"{self.glyph(status)} {text}"

    def when(self, instant: str | None, *, ago: bool = True) -> str:
        """Say an instant: `3m ago` on a terminal, RFC 3339 in a pipe."""
        if not instant:
            return "–"
        if not self.is_terminal:
            return instant
        seconds = self.seconds_since(instant)
        text = age(abs(seconds))
        return f"in {text}" if seconds < -1 else f"{text} ago" if ago else text

    def last_seen(self, item: Mapping[str, Any]) -> str:
        """Say since when nothing was seen of a node or job whose cluster does not answer; nothing where it does."""
        if not item.get("isStale"):
            return ""
        return f", last seen {self.when(item['lastSeenAt'])}" if item.get("lastSeenAt") else ", never seen"

    def age_title(self, instant: str) -> str:
        """Return the title of a column of `when`: in a pipe it holds instants, not ages."""
        return "AGE" if self.is_terminal else instant

    def clocks(self, instants: Iterable[str]) -> list[str]:
        """Say the times of lines that follow one another: RFC 3339 in a pipe.

        On a terminal they are times of day in UTC, aligned, with the date where it is not that of the line before; the
        first line is compared with today.
        """
        if not self.is_terminal:
            return list(instants)
        texts, day = [], f"{self.now().astimezone(UTC):%Y-%m-%d}"
        for instant in instants:
            own = instant[:10]
            texts.append(f"{instant[11:19]}Z" if own == day else f"{own} {instant[11:19]}Z")
            day = own
        widest = max(map(len, texts), default=0)
        return [text.rjust(widest) for text in texts]

    def now(self) -> datetime:
        """Return the present; `EVENKEEL_NOW` sets it, so that a picture in a document can be made again."""
        fixed = self.environment.get("EVENKEEL_NOW")
        return datetime.fromisoformat(fixed) if fixed else datetime.now(UTC)

    def seconds_since(self, instant: str) -> float:
        return (self.now() - datetime.fromisoformat(instant)).total_seconds()

    # ------------------------------------------------------------ lines

    def line(self, text: str = "") -> None:
        """Write one line."""
        clean = "".join(_ansi_code(part) or escape_control_characters(part) for part in _split(text))
        self._write(clean if self.has_unicode else clean.translate(_PLAIN))
        self._write("\n")

    def text(self, text: str) -> None:
        """Write text of several lines that came from elsewhere, such as a log, at once."""
        # A progress bar returns to the begin of its line to write over it: here each state has a line of its own.
        self._write(escape_control_characters(re.sub(r"\r+\n?", "\n", text)))
        self.stream.flush()

    def raw(self, text: str) -> None:
        """Write text exactly as it is: only where a person asks for it."""
        buffer = getattr(self.stream, "buffer", None)
        if buffer is None:
            self.stream.write(text)
        else:
            self.stream.flush()
            buffer.write(text.encode("utf-8", "surrogateescape"))
        self.stream.flush()

    def clear(self) -> None:
        """Begin a terminal's screen anew."""
        if self.is_terminal:
            self.stream.write("\x1b[H\x1b[J")

    def _write(self, text: str) -> None:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        self.stream.write(text.encode(encoding, "replace").decode(encoding))

    def table(
        self, columns: Sequence[Column], rows: Iterable[Sequence[str]], *, indent: str = "", is_whole: bool = False
    ) -> None:
        """Write aligned columns under their titles. Unless `is_whole`, cut them to the width of the terminal."""
        body = [[cell.replace("\n", " ") for cell in row] for row in rows]
        widths = [
            max([visible(column.title), *(visible(row[index]) for row in body)]) for index, column in enumerate(columns)
        ]
        if not is_whole:
            self._fit(columns, widths, len(indent))
        self.line(indent + self.bold(_row([column.title for column in columns], columns, widths)))
        for row in body:
            self.line(indent + _row(row, columns, widths))

    def pairs(self, items: Iterable[tuple[str, str]], *, indent: str = "") -> None:
        """Write names and what they stand for, aligned, long texts wrapped."""
        shown = [(name, text) for name, text in items if text]
        widest = max((len(name) for name, _ in shown), default=0)
        for name, text in shown:
            lines = self.wrapped(text, len(indent) + widest + 2)
            for index, part in enumerate(lines):
                head = self.dim(f"{name:<{widest}}") if index == 0 else " " * widest
                self.line(f"{indent}{head}  {part}")

    def wrapped(self, text: str, indent: int) -> list[str]:
        """Break a text at spaces so that it fits beside an indent; a pipe gets it whole.

        Line breaks become spaces: a reason cannot begin a line that looks like one of ours.
        """
        text = text.replace("\n", " ")
        width = self.width
        if width is None:
            return [text]
        limit, lines, line = max(20, width - indent), [], ""
        for word in text.split(" "):
            if line and visible(line) + 1 + visible(word) > limit:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}" if line else word
        return [*lines, line]

    def paragraph(self, text: str, *, indent: str = "") -> None:
        for line in self.wrapped(text, len(indent)):
            self.line(indent + line)

    def json(self, document: Any, *, one_line: bool = False) -> None:
        """Write the API's own object, unchanged; what a terminal would act on is spelled as JSON's escapes."""
        text = json.dumps(document, ensure_ascii=not self.has_unicode, indent=None if one_line else 2)
        self._write(_CONTROL_CHARACTERS.sub(_escaped, text))
        self._write("\n")
        if one_line:
            self.stream.flush()

    def cut(self, text: str, limit: int) -> str:
        return _truncate(text, max(1, limit))

    def _fit(self, columns: Sequence[Column], widths: list[int], indent: int) -> None:
        if self.width is None:
            return
        # Cut the last column first: it holds explanations.
        for index in reversed([index for index, column in enumerate(columns) if column.gives_way]):
            over = indent + sum(widths) + 2 * (len(widths) - 1) - self.width
            if over > 0:
                widths[index] = max(len(columns[index].title), 12, widths[index] - over)


def page() -> Printer:
    """Return standard output as a page."""
    return Printer(sys.stdout, os.environ)


def note(text: str) -> None:
    """Print a note to standard error."""
    page = Printer(sys.stderr, os.environ)
    page.line(page.dim(text))


def warn(text: str) -> None:
    """Print a warning to standard error."""
    page = Printer(sys.stderr, os.environ)
    page.line(page.with_glyph("warn", text))


def duration(seconds: float) -> str:
    """Write a duration in its two largest units: `2m51s`, `3h04m`, `9d02h`; short ones with a tenth."""
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds >= 0.05 else "0s"
    left = round(seconds)
    if left < 60:
        return f"{left}s"
    if left < 3600:
        return f"{left // 60}m{left % 60:02d}s"
    if left < 86_400:
        return f"{left // 3600}h{left % 3600 // 60:02d}m"
    return f"{left // 86_400}d{left % 86_400 // 3600:02d}h"


def age(seconds: float) -> str:
    """Write how long ago something was, as coarse as people say it: `40s`, `3m20s`, `29m`, `3h04m`, `12h`, `3d`."""
    left = round(seconds)
    for size, below, unit, lower in ((86_400, 3_600, "d", "h"), (3_600, 60, "h", "m"), (60, 1, "m", "s")):
        count, rest = divmod(left, size)
        if count:
            return f"{count}{unit}" + (f"{rest // below:02d}{lower}" if count < 10 and rest // below else "")
    return f"{left}s"


def escape_control_characters(text: str) -> str:
    """Return a text with `?` in the place of each character that a terminal would act on."""
    return _CONTROL_CHARACTERS.sub("?", text)


def _escaped(found: re.Match[str]) -> str:
    """Return a character of a JSON string as JSON's escape."""
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _ansi_code(part: str) -> str:
    """Return one of our own styles as terminals know it; empty for anything else."""
    found = _STYLED.fullmatch(part)
    return f"\x1b[{found[1]}m" if found else ""


def visible(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    plain = _STYLED.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(_columns(character) for character in plain)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _split(text: str) -> list[str]:
    return [part for part in re.split(rf"(\x1b{_STYLE_MARK}\[[0-9;]*m)", text) if part]


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        text = _truncate(cell, width)
        space = " " * (width - visible(text))
        parts.append(space + text if column.is_right else text + space)
    return "  ".join(parts).rstrip()


def _truncate(text: str, limit: int) -> str:
    if visible(text) <= limit:
        return text
    kept, used, styled = "", 0, False
    for part in _split(text):
        if _STYLED.fullmatch(part):
            kept, styled = kept + part, True
            continue
        for character in part:
            if used + _columns(character) > limit - 1:
                return kept + "…" + (_RESET if styled else "")
            kept, used = kept + character, used + _columns(character)
    return kept


def only(output: OutputFormat, allowed: Iterable[OutputFormat]) -> OutputFormat:
    """Return the form asked for.

    Raises:
        CommandFailed: this command does not have it.
    """
    if output not in allowed:
        raise CommandFailed(
            Exit.USAGE, f"-o {output} works only for lists. This command shows one item.", code="BAD_OUTPUT"
        )
    return output
