"""Print figures as a page, JSON, YAML, CSV or Markdown, from one document. The names of its fields contain the units.

The document has figures, lists of objects with figures, and texts. Only JSON, YAML and CSV show every digit.
"""

import csv
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from io import StringIO
from typing import Annotated, Any, NamedTuple

import typer

from evenkeel_cli.render import Column, OutputFormat, Printer, csv_cell, stdout_printer, visible_width

Json = dict[str, Any]
UNKNOWN = "unknown"
_MAX_DIGITS = 24
"""A longer whole number is rounded for people."""
_PIPE_WIDTH = 80
"""Columns of a page that is not a terminal."""
_GAP = 2
"""Columns between two cells."""
_NARROWEST = 24
_MAX_SHOWN = 6
"""Maximum number of list items that a cell shows."""


class FigureFormat(StrEnum):
    """Forms of output of figures."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
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
        output: The chosen format.
        main: The list that CSV prints; if empty, CSV prints everything.
    """
    printer = stdout_printer()
    match output:
        case FigureFormat.JSON:
            printer.json(document)
        case FigureFormat.YAML:
            printer.document(document, OutputFormat.YAML)
        case FigureFormat.CSV:
            printer.text(_csv(list(_tables_of({main: document[main]} if main else document))))
        case FigureFormat.MD:
            printer.text(markdown(document))
        case FigureFormat.TABLE:
            _draw(printer if printer.width else replace(printer, columns=_PIPE_WIDTH), document)


def markdown(document: Json) -> str:
    """Return a document as Markdown tables."""
    lines: list[str] = []
    for table in _tables_of(document):
        if table.name:
            lines += ["", f"**{name_in_words(table.name)}**", ""]
        lines.append("| " + " | ".join(map(name_in_words, table.columns)) + " |")
        lines.append("|" + "---|" * len(table.columns))
        lines += [
            "| " + " | ".join(figure_text(cell).replace("|", "\\|") for cell in row) + " |"
            for row in _rows_in_words(table)
        ]
    return "\n".join([*lines, *(f"\n{text}" for text in _texts(document))]).strip("\n") + "\n"


def _csv(parts: list[_Part]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for index, table in enumerate(parts):
        if index:
            writer.writerow([])
        writer.writerow(table.columns)
        writer.writerows([[csv_cell(cell) for cell in row] for row in table.rows])
    return text.getvalue()


def _draw(out: Printer, document: Json) -> None:
    for index, table in enumerate(_tables_of(document)):
        if index:
            out.line()
        if table.name:
            out.line(out.bold(name_in_words(table.name)))
        _draw_folded(out, table)
    for text in _texts(document):
        out.line()
        out.paragraph(text)


def _draw_folded(out: Printer, part: _Part) -> None:
    """Draw a table within the width of the page: titles and texts on several lines, and wide tables in blocks.

    Each block begins with the columns that tell its rows apart.
    """
    width, rows = out.width or _PIPE_WIDTH, [[figure_text(cell) for cell in row] for row in _rows_in_words(part)]
    columns = [_column(part, index) for index in range(len(part.columns))]
    natural = [
        max(map(visible_width, cells)) for cells in zip([column.title for column in columns], *rows, strict=True)
    ]
    if not part.name or sum(natural) + _GAP * (len(natural) - 1) <= width:
        out.table(columns, _rows_in_words(part))
        return
    keys = _key_columns(rows)
    free_width = width - sum(min(natural[key], width // 3) + _GAP for key in keys)
    widths = []
    for index, (column, cells) in enumerate(zip(columns, zip(*rows, strict=True), strict=True)):
        # A key column gets at most a third of the width, and a text column the rest.
        max_width = width if not column.wraps else width // 3 if index in keys else max(free_width, _NARROWEST)
        widths.append(max(*map(visible_width, column.title.split()), 1, min(max(map(visible_width, cells)), max_width)))
    for index, block in enumerate(_column_blocks(widths, keys, width)):
        if index:
            out.line()
        lines = _row_lines([_wrapped(columns[index].title, widths[index]) for index in block], at_bottom=True)
        lines = [list(map(out.bold, line)) for line in lines]
        for row in rows:
            lines += _row_lines([_wrapped(row[index], widths[index]) for index in block])
        out.table([Column("", at, is_right=columns[index].is_right) for at, index in enumerate(block)], lines)


def _row_lines(cells: list[list[str]], *, at_bottom: bool = False) -> list[list[str]]:
    """Return the lines of a row of wrapped cells."""
    count = max(map(len, cells))
    padded_cells = [
        [""] * (count - len(cell)) + cell if at_bottom else cell + [""] * (count - len(cell)) for cell in cells
    ]
    return [list(line) for line in zip(*padded_cells, strict=True)]


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text at spaces. A word that is too long stays whole, so that a person can copy it."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _column_blocks(widths: list[int], keys: list[int], max_width: int) -> Iterator[list[int]]:
    """Yield the columns of each block: the keys, and as many others as fit; at least one."""
    block, used_width = list(keys), sum(widths[key] + _GAP for key in keys)
    for index in range(len(widths)):
        if index in keys:
            continue
        if len(block) > len(keys) and used_width + widths[index] > max_width:
            yield sorted(block)
            block, used_width = list(keys), sum(widths[key] + _GAP for key in keys)
        block.append(index)
        used_width += widths[index] + _GAP
    yield sorted(block)


def _key_columns(rows: list[list[str]]) -> list[int]:
    """Return the fewest of the first columns that distinguish the rows."""
    columns: list[int] = []
    while len({tuple(row[index] for index in columns) for row in rows}) < len(rows) and len(columns) < len(rows[0]):
        columns.append(len(columns))
    for index in reversed(columns[:-1]):
        others_left = [columns_left for columns_left in columns if columns_left != index]
        if len({tuple(row[column] for column in others_left) for row in rows}) == len(rows):
            columns = others_left
    return columns or [0]


def _rows_in_words(part: _Part) -> list[list[Any]]:
    """Return the rows for people: the names of single figures in words."""
    return part.rows if part.name else [[name_in_words(name), value] for name, value in part.rows]


def _column(part: _Part, index: int) -> Column:
    is_right = any(isinstance(row[index], int | float) for row in part.rows)
    title = name_in_words(part.columns[index]).upper()
    return Column(title, lambda row: figure_text(row[index]), is_right=is_right, wraps=not is_right)


def _tables_of(document: Json) -> Iterator[_Part]:
    single_rows = [
        [name, value]
        for name, value in _single_figures(document)
        if not _is_table(value) and not isinstance(value, str)
    ]
    single_rows += [
        [name, value] for name, value in _single_figures(document) if isinstance(value, str) and _is_word(value)
    ]
    if single_rows:
        yield _Part("", ["figure", "value"], single_rows)
    for name, value in document.items():
        if _is_table(value):
            columns = list(dict.fromkeys(column for row in value for column in row))
            yield _Part(name, columns, [[row.get(column) for column in columns] for row in value])


def _single_figures(document: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the figures of a document. The name of an inner object is the prefix of its figures."""
    for name, value in document.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _single_figures(value, f"{path}.")
        elif not (isinstance(value, list) and value and isinstance(value[0], str)) and value != []:
            yield path, value


def _texts(document: Json) -> Iterator[str]:
    for value in document.values():
        if isinstance(value, str) and value and not _is_word(value):
            yield value
        elif isinstance(value, list):
            yield from (text for text in value if isinstance(text, str))


def _is_word(text: str) -> bool:
    return bool(text) and " " not in text and "://" not in text


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def name_in_words(name: str) -> str:
    """Return a name of JSON in words: `mtbfHours` is `mtbf hours`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name).lower()


def figure_text(value: Any) -> str:
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
            return ", ".join(map(figure_text, value[:_MAX_SHOWN])) + (", …" if len(value) > _MAX_SHOWN else "")
    return str(value)
