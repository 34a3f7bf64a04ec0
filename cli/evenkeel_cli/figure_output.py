"""Output of figures: a page, JSON, CSV or Markdown from one document whose names carry the units.

The document has figures, lists of objects with figures, and texts. Only JSON and CSV show every digit.
"""

import csv
import json
import re
from collections.abc import Iterator
from enum import StrEnum
from io import StringIO
from typing import Annotated, Any, NamedTuple

import typer

from evenkeel_cli.render import Column, Printer, page

Json = dict[str, Any]
UNKNOWN = "unknown"
_MAX_DIGITS = 24
"""Digits of a whole number for people."""
_MAX_SHOWN = 6
"""Figures of a list in a cell for people."""


class FigureFormat(StrEnum):
    """Forms of output of figures."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"


FigureOption = Annotated[FigureFormat, typer.Option("-o", "--output", help="Output format.")]


class _Part(NamedTuple):
    """A table of the document: its name, empty for the single figures, its columns and its rows."""

    name: str
    columns: list[str]
    rows: list[list[Any]]


def print_figures(document: Json, output: FigureFormat, *, main: str = "") -> None:
    """Print a document.

    Args:
        document: Figures by names with units, such as `mtbfHours`; null is unknown.
        output: The form asked for.
        main: The list that CSV prints; if empty, CSV prints everything.
    """
    out = page()
    match output:
        case FigureFormat.JSON:
            out.json(document)
        case FigureFormat.CSV:
            out.text(_csv(list(_parts({main: document[main]} if main else document))))
        case FigureFormat.MD:
            out.text(markdown(document))
        case FigureFormat.TABLE:
            _draw(out, document)


def markdown(document: Json) -> str:
    """Return a document as Markdown tables."""
    lines: list[str] = []
    for part in _parts(document):
        if part.name:
            lines += ["", f"**{words(part.name)}**", ""]
        lines.append("| " + " | ".join(map(words, part.columns)) + " |")
        lines.append("|" + "---|" * len(part.columns))
        lines += ["| " + " | ".join(shown(cell).replace("|", "\\|") for cell in row) + " |" for row in _named(part)]
    return "\n".join([*lines, *(f"\n{text}" for text in _texts(document))]).strip("\n") + "\n"


def _csv(parts: list[_Part]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for place, part in enumerate(parts):
        if place:
            writer.writerow([])
        writer.writerow(part.columns)
        writer.writerows([[_plain(cell) for cell in row] for row in part.rows])
    return text.getvalue()


def _plain(cell: Any) -> Any:
    return json.dumps(cell) if isinstance(cell, bool | dict | list) else "" if cell is None else cell


def _draw(out: Printer, document: Json) -> None:
    for place, part in enumerate(_parts(document)):
        if place:
            out.line()
        if part.name:
            out.line(out.bold(words(part.name)))
        columns = [_column(part, index) for index in range(len(part.columns))]
        out.table(columns, _named(part))
    for text in _texts(document):
        out.line()
        out.paragraph(text)


def _named(part: _Part) -> list[list[Any]]:
    """Return the rows for people: the names of single figures in words."""
    return part.rows if part.name else [[words(name), value] for name, value in part.rows]


def _column(part: _Part, index: int) -> Column:
    is_right = any(isinstance(row[index], int | float) for row in part.rows)
    title = words(part.columns[index]).upper()
    return Column(title, lambda row: shown(row[index]), is_right=is_right, wraps=not is_right)


def _parts(document: Json) -> Iterator[_Part]:
    single = [[name, value] for name, value in _single(document) if not _is_table(value) and not isinstance(value, str)]
    single += [[name, value] for name, value in _single(document) if isinstance(value, str) and _is_word(value)]
    if single:
        yield _Part("", ["figure", "value"], single)
    for name, value in document.items():
        if _is_table(value):
            columns = list(dict.fromkeys(column for row in value for column in row))
            yield _Part(name, columns, [[row.get(column) for column in columns] for row in value])


def _single(document: Json, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the figures of a document; an object's figures have its name before theirs."""
    for name, value in document.items():
        path = f"{before}{name}"
        if isinstance(value, dict):
            yield from _single(value, f"{path}.")
        elif not (isinstance(value, list) and value and isinstance(value[0], str)) and value != []:
            yield path, value


def _texts(document: Json) -> Iterator[str]:
    for value in document.values():
        if isinstance(value, str) and value and not _is_word(value):
            yield value
        elif isinstance(value, list):
            yield from (each for each in value if isinstance(each, str))


def _is_word(text: str) -> bool:
    return bool(text) and " " not in text


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def words(name: str) -> str:
    """Return a name of JSON in words: `mtbfHours` is `mtbf hours`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name).lower()


def shown(value: Any) -> str:
    """Return a figure for people: six significant digits, `unknown` for null."""
    match value:
        case None:
            return UNKNOWN
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"
        case str() if value.isdigit() and len(value) > _MAX_DIGITS:
            return f"{value[0]}.{value[1:5]}e{len(value) - 1}"
        case list():
            return ", ".join(map(shown, value[:_MAX_SHOWN])) + (", …" if len(value) > _MAX_SHOWN else "")
    return str(value)
