"""The tables of the article: every printed cell, its two derivations, and the three misprints."""

import importlib
import math
import random
import re
from collections import Counter
from pathlib import Path
from statistics import NormalDist

import pytest

from evenkeel.domain.economics import published_tables
from evenkeel.domain.economics.published_tables import Cell, CellCheck


def compute_cells(seed: int = 1, failures: int = published_tables.DEFAULT_FAILURES) -> tuple[Cell, ...]:
    return published_tables.check_cells(lambda cell: random.Random(f"{seed}/{cell}").random, failures)


@pytest.fixture(scope="module")
def published() -> tuple[Cell, ...]:
    return compute_cells()


def test_every_published_table_cell_agrees_with_its_second_derivation(published: tuple[Cell, ...]) -> None:
    assert [cell for cell in published if not cell.agrees] == []
    assert Counter(cell.table for cell in published) == {"1": 32, "2": 4, "3": 2, "4": 32, "5": 9, "6": 1}


def test_table_4_has_exactly_three_misprints(published: tuple[Cell, ...]) -> None:
    misprinted_cells = [
        (cell.table, cell.row, cell.column, cell.printed, cell.correct) for cell in published if cell.is_misprint
    ]

    assert misprinted_cells == [
        ("4", "0.05 % per hour", "512 instances", 48, 47),
        ("4", "0.07 % per hour", "256 instances", 40, 39),
        ("4", "0.07 % per hour", "512 instances", 55, 54),
    ]


def test_every_cell_of_table_1_is_rounded_up(published: tuple[Cell, ...]) -> None:
    table = [cell for cell in published if cell.table == "1"]

    assert {cell.verdict for cell in table} == {CellCheck.ROUNDED_UP}
    assert sum(math.floor(cell.exact + 0.5) == cell.printed for cell in table) == 19


def test_published_run_of_ten_million_gpu_hours_is_reproduced(published: tuple[Cell, ...]) -> None:
    exact = {cell.row: round(cell.exact, 2) for cell in published if cell.table in "56"}

    assert exact == {
        "time without failures": 203.45,
        "failures in that time": 625,
        "days lost with HyperPod": 17.36,
        "days lost without HyperPod": 121.53,
        "time to train with HyperPod": 220.81,
        "time to train without HyperPod": 324.98,
        "days saved": 104.17,
        "time saved": 32.05,
        "months saved, of 30 days": 3.47,
        "cost saved": 25_600_000,
    }
    assert next(cell.printed for cell in published if cell.table == "6") == 25_559_040


def test_sum_of_p90s_exceeds_the_p90_of_the_sum() -> None:
    """The remark on Table 2: independent lognormal stages with a sigma of 0.3 and the P90s of 256 instances."""
    uniform, sigma = random.Random(8), 0.3
    stages = [math.log(value) - sigma * NormalDist().inv_cdf(0.9) for value in published_tables.TABLE_2[256][:3]]
    totals = sorted(sum(uniform.lognormvariate(stage, sigma) for stage in stages) for _ in range(100_000))

    assert totals[90_000] == pytest.approx(2181, abs=10)
    assert any("about 2,180 s, not 2,390 s" in remark.correct for remark in published_tables.list_remarks())


def test_changed_table_cell_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(published_tables.TABLE_2, 64, (90, 963, 1320, 2374))

    assert [(cell.column, cell.correct) for cell in published_tables.table_2() if cell.is_misprint] == [("total", 2373)]


@pytest.mark.exhaustive
def test_simulation_alone_reveals_the_misprints() -> None:
    names = {"0.05 % per hour", "0.07 % per hour"}
    checked_cells = [cell for cell in compute_cells(failures=1_000_000) if cell.table == "4" and cell.row in names]

    misprinted_cells = [cell for cell in checked_cells if math.floor(cell.second_derivation + 0.5) != cell.printed]
    assert misprinted_cells == [cell for cell in checked_cells if cell.is_misprint]


def test_page_names_functions_that_exist() -> None:
    page = (Path(__file__).parents[3] / "docs" / "economics.md").read_text("utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `evenkeel economics")]
    names = {name for row in rows for name in re.findall(r"`(\w+)\.(\w+)`", row[3])}

    assert len(names) >= 14
    for module, function in names:
        assert callable(getattr(importlib.import_module(f"evenkeel.domain.economics.{module}"), function))
