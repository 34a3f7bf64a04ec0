"""Output for people: aligned columns, a glyph with a word, relative times on a terminal, RFC 3339 in a pipe.

All output goes through `Printer`, and all text in it through `escape_control_characters`. So text of jobs, detectors
and providers cannot move the cursor, set a colour or reverse text.
"""

import json
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from evenkeel_client.errors import CommandFailed, Exit

if TYPE_CHECKING:
    from rich.text import Text

Json = dict[str, Any]

_GLYPHS = {"ok": "●", "working": "◐", "warn": "▲", "failed": "✖", "next": "○", "idle": "·"}
_ASCII = {"ok": "*", "working": "~", "warn": "!", "failed": "x", "next": "o", "idle": "."}
_COLOURS = {"ok": "32", "working": "36", "warn": "33", "failed": "31", "next": "2", "idle": "2"}
_PLAIN = str.maketrans({"…": "~", "–": "-", "→": ">", "✔": "y", "✖": "x", "·": ".", "●": "*", "◐": "~", "▲": "!"})
_STYLE_MARK = secrets.token_hex(8)
"""Marks the styles that this module sets. It is random, so text from outside cannot contain it."""
_STYLED = re.compile(rf"\x1b{_STYLE_MARK}\[([0-9;]*)m")
_SHOWN_STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""An escape sequence of a terminal that sets a style."""
_CONTROL_CHARACTERS = re.compile(
    # Controls except tab and line feed; soft hyphen; bidi controls and joiners; line and paragraph ends; invisible
    # characters.
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ufeff\\ufff9-\\ufffb\\ud800-\\udfff\\U000e0000-\\U000e007f]"
)
"""Characters that control a terminal, or that make a text look like a different text."""
_COMMAND = re.compile(r"evenkeel(?<![\w/.-]evenkeel)(?= [a-z])")
"""A command of Evenkeel in a text. The name comes first, so that the search skips the rest of a long text at once."""
_UNLIMITED = 100_000
"""Width of output that must not be cut: longer than any line."""


class OutputFormat(StrEnum):
    """Forms of output."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    CSV = "csv"

    @property
    def is_document(self) -> bool:
        """Whether the form is the API's own object."""
        return self in (OutputFormat.JSON, OutputFormat.YAML)


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, and how to get each cell from an item."""

    title: str
    value: str | int | Callable[[Any], Any]
    """A key of the item, or a function of the item."""
    is_right: bool = False
    may_shrink: bool = False
    """Whether cells are cut if the line is too long."""
    wraps: bool = False
    """Whether cells continue on the next line if the line is too long."""
    is_wide: bool = False
    """Whether only the wide form shows the column."""
    goes_below: bool = False
    """Only for the last column: whether a cell that does not fit is written below its row."""

    def cell(self, item: Any) -> str:
        """Return the cell of an item as one line, so that a text cannot forge a row of the table."""
        value = self.value(item) if callable(self.value) else item[self.value]
        return re.sub(r"[\n\t]", " ", str(value))


@dataclass
class Printer:
    """The output of a command, with the width, colour and encoding of its terminal."""

    stream: TextIO
    environment: Mapping[str, str]
    columns: int | None = None

    @cached_property
    def is_terminal(self) -> bool:
        return self.stream.isatty()

    @cached_property
    def has_colour(self) -> bool:
        is_plain = "NO_COLOR" in self.environment or self.environment.get("TERM") == "dumb"
        return self.is_terminal and not is_plain

    @cached_property
    def has_unicode(self) -> bool:
        return "utf" in (getattr(self.stream, "encoding", "") or "").lower()

    @property
    def width(self) -> int | None:
        """Number of columns of the terminal; None in a pipe, where nothing is cut."""
        if self.columns is not None:
            return self.columns
        return shutil.get_terminal_size((80, 24)).columns if self.is_terminal else None

    # ------------------------------------------------------------ words

    def style(self, text: str, codes: str) -> str:
        return f"\x1b{_STYLE_MARK}[{codes}m{text}\x1b{_STYLE_MARK}[0m" if self.has_colour and text else text

    def bold(self, text: str) -> str:
        return self.style(text, "1")

    def dim(self, text: str) -> str:
        return self.style(text, "2")

    def glyph(self, status: str) -> str:
        """Return the sign of a status. Callers print a word beside it."""
        return self.style((_GLYPHS if self.has_unicode else _ASCII)[status], _COLOURS[status])

    def with_glyph(self, status: str, text: str) -> str:
        """Return a text with its sign before it."""
        return f"{self.glyph(status)} {text}"

    def time_text(self, instant: str | None, *, ago: bool = True) -> str:
        """Format an instant: `3m ago` on a terminal, RFC 3339 in a pipe."""
        if not instant:
            return "–"
        if not self.is_terminal:
            return whole_seconds(instant)
        seconds = self.seconds_since(instant)
        text = age_text(abs(seconds))
        return f"in {text}" if seconds < -1 else f"{text} ago" if ago else text

    def last_seen_text(self, item: Mapping[str, Any]) -> str:
        """Format when a node or job was last seen, if its cluster does not answer; else an empty text."""
        if not item.get("isStale"):
            return ""
        return f", last seen {self.time_text(item['lastSeenAt'])}" if item.get("lastSeenAt") else ", never seen"

    def age_title(self, instant: str) -> str:
        """Return the title of a column of `when`: in a pipe it holds instants, not ages."""
        return "AGE" if self.is_terminal else instant

    def clock_texts(self, instants: Iterable[str]) -> list[str]:
        """Format the times of consecutive lines: RFC 3339 in a pipe.

        On a terminal they are aligned times of day in UTC. A line shows its date if the line before has another date;
        the first line is compared with today.
        """
        if not self.is_terminal:
            return [whole_seconds(instant) for instant in instants]
        texts, day = [], f"{self.now().astimezone(UTC):%Y-%m-%d}"
        for instant in instants:
            own_day = instant[:10]
            texts.append(f"{instant[11:19]}Z" if own_day == day else f"{own_day} {instant[11:19]}Z")
            day = own_day
        text_width = max(map(len, texts), default=0)
        return [text.rjust(text_width) for text in texts]

    def now(self) -> datetime:
        """Return the current time. `EVENKEEL_NOW` overrides it, so that pictures in documents are reproducible."""
        fixed_time = self.environment.get("EVENKEEL_NOW")
        return datetime.fromisoformat(fixed_time) if fixed_time else datetime.now(UTC)

    def seconds_since(self, instant: str) -> float:
        return (self.now() - datetime.fromisoformat(instant)).total_seconds()

    # ------------------------------------------------------------ lines

    @cached_property
    def command(self) -> str:
        """The command as a person types it here: `evenkeel` if it is on the PATH, else the path of its file."""
        script = Path(sys.executable).with_name("evenkeel")
        if shutil.which("evenkeel", path=self.environment.get("PATH")) or not script.is_file():
            return "evenkeel"
        path = Path.cwd()
        return shlex.quote(str(script.relative_to(path) if script.is_relative_to(path) else script))

    def as_typed(self, text: str) -> str:
        """Return a text whose commands can be pasted into the shell of this person."""
        return text if self.command == "evenkeel" else _COMMAND.sub(lambda _: self.command, text)

    def line(self, text: str = "") -> None:
        """Write one line."""
        self._write_lines(_with_styles(self.as_typed(text)))

    def next_command(self, command: str) -> None:
        """Write the suggested next command."""
        self.line(f"{self.dim('next')}  {command}")

    def text(self, text: str) -> None:
        """Write text of several lines that came from elsewhere, such as a log, at once."""
        # A progress bar overwrites its line with carriage returns. Here, each state gets a line of its own.
        self._write(escape_control_characters(re.sub(r"\r+\n?", "\n", text)))
        self.stream.flush()

    def raw(self, text: str) -> None:
        """Write text exactly as it is. Use it only if a person asks for it."""
        buffer = getattr(self.stream, "buffer", None)
        if buffer is None:
            self.stream.write(text)
        else:
            self.stream.flush()
            buffer.write(text.encode("utf-8", "surrogateescape"))
        self.stream.flush()

    def clear(self) -> None:
        """Clear the terminal's screen."""
        if self.is_terminal:
            self.stream.write("\x1b[H\x1b[J")

    def _write_lines(self, *lines: str) -> None:
        for line in lines:
            self._write(line if self.has_unicode else line.translate(_PLAIN))
            self._write("\n")

    def _write(self, text: str) -> None:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        self.stream.write(text.encode(encoding, "replace").decode(encoding))

    def table(
        self, columns: Sequence[Column], items: Iterable[Any], *, indent: str = "", is_wide: bool = False
    ) -> None:
        """Write a row for each item under the titles, cut or wrapped to the terminal; the wide form is never cut."""
        shown = [column for column in columns if is_wide or not column.is_wide]
        titles = [[self.bold(column.title) for column in shown]] if any(column.title for column in shown) else []
        rows = titles + [[self.as_typed(column.cell(item)) for column in shown] for item in items]
        self._write_rows(shown, rows, indent, is_wide)

    def pairs(self, items: Iterable[tuple[str, str]], *, indent: str = "") -> None:
        """Write names and their values, aligned, with long texts wrapped."""
        shown = [(self.dim(name), text) for name, text in items if text]
        self.table([Column("", 0), Column("", 1, wraps=True)], shown, indent=indent)

    def paragraph(self, text: str, *, indent: str = "") -> None:
        self.table([Column("", 0, wraps=True)], [[text]], indent=indent)

    def _write_rows(self, columns: Sequence[Column], rows: list[list[str]], indent: str, is_whole: bool) -> None:
        self._write_lines(*self._lines_of(columns, rows, indent, is_whole))

    def _lines_of(self, columns: Sequence[Column], rows: list[list[str]], indent: str, is_whole: bool) -> list[str]:
        """Return the lines of a table, with styles as terminals know them."""
        widths = [max(map(visible_width, cells)) for cells in zip(*rows, strict=True)]
        is_short = self.width is None or len(indent) + sum(widths) + 2 * (len(widths) - 1) <= self.width
        if not (is_whole or is_short):
            if columns[-1].goes_below and len(columns) > 1:
                return self._lines_with_cells_below(columns, rows, indent)
            return self._fitted_lines(columns, rows, widths, indent)
        return [
            _with_styles(
                (
                    indent
                    + "  ".join(
                        " " * (width - visible_width(cell)) + cell
                        if column.is_right
                        else cell + " " * (width - visible_width(cell))
                        for cell, column, width in zip(row, columns, widths, strict=True)
                    )
                ).rstrip()
            )
            for row in rows
        ]

    def _lines_with_cells_below(self, columns: Sequence[Column], rows: list[list[str]], indent: str) -> list[str]:
        """Return rows that are too long for the terminal: a last cell that does not fit follows below its row."""
        beside = self._lines_of(columns[:-1], [row[:-1] for row in rows], indent, is_whole=False)
        lengths = [visible_width(_SHOWN_STYLE.sub("", line)) for line in beside]
        start = max(lengths) + 2
        lines = []
        for line, length, cell in zip(beside, lengths, (row[-1] for row in rows), strict=True):
            is_short = start + visible_width(cell) <= (self.width or _UNLIMITED)
            lines.append((line + " " * (start - length) + _with_styles(cell)).rstrip() if is_short else line)
            if not is_short:
                wrapping_columns = [Column("", 0, wraps=True)]
                lines += self._lines_of(wrapping_columns, [[self.dim(cell)]], f"{indent}    ", is_whole=False)
        return lines

    def _fitted_lines(
        self, columns: Sequence[Column], rows: list[list[str]], widths: Sequence[int], indent: str
    ) -> list[str]:
        """Return rows that are too long for the terminal: cut or wrap the columns that allow it."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        width = (self.width or _UNLIMITED) - len(indent)
        free_width = width - sum(widths) - 2 * (len(widths) - 1)
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        cells = []
        for column, wanted_width, texts in zip(columns, widths, zip(*rows, strict=True), strict=True):
            wrapped_texts = [Text.from_ansi(_with_styles(text), overflow="ellipsis", no_wrap=True) for text in texts]
            minimum = wanted_width
            if column.may_shrink:
                minimum = min(wanted_width, max(len(column.title), 12))
            elif column.wraps:
                wrapped_texts = [_wrapped(text, max(20, wanted_width + free_width)) for text in wrapped_texts]
                minimum = 0
            cells.append(wrapped_texts)
            justify: Literal["left", "right"] = "right" if column.is_right else "left"
            table.add_column(justify=justify, min_width=minimum, no_wrap=not column.may_shrink)
        for row in zip(*cells, strict=True):
            table.add_row(*row)
        output = StringIO()
        colours: Literal["standard"] | None = "standard" if self.has_colour else None
        console = Console(file=output, width=_UNLIMITED, color_system=colours, force_terminal=True, highlight=False)
        console.print(table, width=width if any(column.may_shrink for column in columns) else _UNLIMITED)
        return [f"{indent}{line}".rstrip() for line in output.getvalue().splitlines()]

    def document(self, document: Any, form: OutputFormat, *, is_part: bool = False) -> None:
        """Write the API's own object as JSON or YAML. `is_part`: one of a stream, each JSON object on its own line."""
        if form is not OutputFormat.YAML:
            self.json(document, one_line=is_part)
            return
        import yaml

        text = json.dumps(document, ensure_ascii=False)
        is_plain = self.has_unicode and not _CONTROL_CHARACTERS.search(text)
        self._write(yaml.safe_dump(document, sort_keys=False, allow_unicode=is_plain, width=_UNLIMITED))
        if is_part:
            self._write("---\n")
            self.stream.flush()

    def json(self, document: Any, *, one_line: bool = False) -> None:
        """Write the API's own object unchanged, with control characters as JSON escapes."""
        text = json.dumps(document, ensure_ascii=not self.has_unicode, indent=None if one_line else 2)
        self._write(_CONTROL_CHARACTERS.sub(_escaped, text))
        self._write("\n")
        if one_line:
            self.stream.flush()


def stdout_printer() -> Printer:
    """Return a printer for standard output."""
    return Printer(sys.stdout, os.environ)


def stderr_printer() -> Printer:
    """Return a printer for standard error."""
    return Printer(sys.stderr, os.environ)


def note(text: str) -> None:
    """Print a note to standard error."""
    printer = stderr_printer()
    printer.paragraph(printer.dim(text))


def warn(text: str) -> None:
    """Print a warning to standard error."""
    printer = stderr_printer()
    printer.paragraph(printer.with_glyph("warn", text))


def whole_seconds(instant: str) -> str:
    """Return an instant in RFC 3339 without fractions of a second: `2026-10-02T10:15:00Z`."""
    return re.sub(r"\.[0-9]+", "", instant)


def duration(seconds: float) -> str:
    """Write a duration in its two largest units: `2m51s`, `3h04m`, `9d02h`; short durations with a tenth."""
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds >= 0.05 else "0s"
    seconds_left = round(seconds)
    if seconds_left < 60:
        return f"{seconds_left}s"
    if seconds_left < 3600:
        return f"{seconds_left // 60}m{seconds_left % 60:02d}s"
    if seconds_left < 86_400:
        return f"{seconds_left // 3600}h{seconds_left % 3600 // 60:02d}m"
    return f"{seconds_left // 86_400}d{seconds_left % 86_400 // 3600:02d}h"


def age_text(seconds: float) -> str:
    """Write how long ago something was, as coarse as people say it: `40s`, `3m20s`, `29m`, `3h04m`, `12h`, `3d`."""
    seconds_left = round(seconds)
    for size, below, unit, lower in ((86_400, 3_600, "d", "h"), (3_600, 60, "h", "m"), (60, 1, "m", "s")):
        count, remainder = divmod(seconds_left, size)
        if count:
            return f"{count}{unit}" + (f"{remainder // below:02d}{lower}" if count < 10 and remainder // below else "")
    return f"{seconds_left}s"


def csv_cell(value: Any) -> str:
    """Return a value as a cell of CSV: empty if null, and no text that a spreadsheet would run."""
    match value:
        case None:
            return ""
        case str():
            text = re.sub(r"\r\n?", "\n", value)  # `csv` quotes a line end only if it is `lineterminator`
            # A spreadsheet would run this text as a formula: https://owasp.org/www-community/attacks/CSV_Injection
            return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
        case list() if all(isinstance(item, str) for item in value):
            return csv_cell(";".join(value))
        case _:
            return json.dumps(value, ensure_ascii=False)


_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\n", "＝", "＋", "－", "＠")


def escape_control_characters(text: str) -> str:
    """Return a text with `?` for each character that a terminal would act on."""
    return _CONTROL_CHARACTERS.sub("?", text)


def _escaped(match: re.Match[str]) -> str:
    """Return a character of a JSON string as JSON's escape."""
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _with_styles(text: str) -> str:
    """Return a text with our styles as escape sequences, and all other control characters replaced."""
    parts = _STYLED.split(text)
    return "".join(
        f"\x1b[{text}m" if index % 2 else escape_control_characters(text) for index, text in enumerate(parts)
    )


def _wrapped(text: "Text", width: int) -> "Text":
    """Break a text at spaces. A word that is too long, such as an ARN, stays whole, so that a person can copy it."""
    breaks, used_width = [], 0
    for word in re.finditer(r"\S+\s*", text.plain):
        if used_width and used_width + visible_width(word[0].rstrip()) > width:
            breaks.append(word.start())
            used_width = 0
        used_width += visible_width(word[0])
    lines = text.divide(breaks)
    for line in lines:
        line.rstrip()
    return text.blank_copy("\n").join(lines)


def visible_width(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    plain_text = _STYLED.sub("", text)
    if plain_text.isascii():
        return len(plain_text)
    from rich.cells import cell_len

    return cell_len(plain_text)


def require_format(output: OutputFormat, formats: Iterable[OutputFormat]) -> OutputFormat:
    """Return the chosen format if this command supports it.

    Raises:
        CommandFailed: this command does not support it.
    """
    accepted_formats = dict.fromkeys(formats)
    if OutputFormat.JSON in accepted_formats:
        accepted_formats[OutputFormat.YAML] = None
    if output not in accepted_formats:
        text = f"This command prints {', '.join(accepted_formats)}, not {output}."
        raise CommandFailed(Exit.USAGE, text, code="BAD_OUTPUT")
    return output
