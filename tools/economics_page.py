"""The article's tables in docs/economics.md, each cell as printed and as correct: `make generate` writes them."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

from evenkeel.domain.economics import published_tables
from evenkeel.domain.economics.published_tables import Cell

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "economics.md"
SEED = 1
_PART = re.compile(r"(?<=<!-- table: article -->\n).*?(?=<!-- end -->)", re.DOTALL)
_TITLES = {
    "1": "Table 1: hours between two failures of a job",
    "2": "Table 2: P90 of a recovery, seconds",
    "3": "Table 3: minutes of a recovery",
    "4": "Table 4: percent of training time saved",
    "5": "Table 5: a run of 10 million GPU-hours",
    "6": "Table 6: dollars saved",
}


def files() -> dict[Path, str]:
    """Return the page with fresh tables."""
    cells = published_tables.check_cells(lambda cell: random.Random(f"{SEED}/{cell}").random)
    lines = [line for table in _TITLES for line in _table(table, [cell for cell in cells if cell.table == table])]
    remarks = [
        "",
        "### Outside the cells",
        "",
        "| where | printed | correct |",
        "|---|---|---|",
        *(f"| {remark.where} | {remark.printed} | {remark.correct} |" for remark in published_tables.list_remarks()),
        "",
    ]
    text = "\n".join([*lines, *remarks]) + "\n"
    return {PAGE: _PART.sub(lambda _: text, PAGE.read_text(encoding="utf-8"))}


def _table(table: str, cells: list[Cell]) -> Iterator[str]:
    yield from ("", f"### {_TITLES[table]}", "")
    columns = list(dict.fromkeys(cell.column for cell in cells))
    if len(columns) > 1:
        yield "| | " + " | ".join(columns) + " |"
        yield "|---" * (len(columns) + 1) + "|"
        for row in dict.fromkeys(cell.row for cell in cells):
            yield f"| {row} | " + " | ".join(_side_by_side(cell) for cell in cells if cell.row == row) + " |"
        return
    yield "| | printed | correct | unrounded | second derivation | the printed figure is |"
    yield "|---|---|---|---|---|---|"
    for cell in cells:
        printed = "–" if cell.printed is None else f"{cell.printed:,.10g}"
        note = f"{cell.verdict}. {cell.note}" if cell.note else cell.verdict
        figures = f"{printed} | {cell.correct:,.10g} | {cell.exact:,.2f} | {_second(cell)}"
        yield f"| {cell.row}, {cell.unit} | {figures} | {note} |"


def _side_by_side(cell: Cell) -> str:
    shown = f"{cell.printed:g} → **{cell.correct:g}**" if cell.is_misprint else f"{cell.printed:g}"
    return f"{shown} ({cell.exact:.2f}; {_second(cell)})"


def _second(cell: Cell) -> str:
    error = f" ± {cell.standard_error:,.2f}" if cell.standard_error else ""
    return f"{cell.second_derivation:,.2f}{error}"
