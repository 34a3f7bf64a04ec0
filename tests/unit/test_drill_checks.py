"""Drills check the fence of a checkpoint folder. Each drill has a page, and a mutant that it detects."""

from typing import Any

import pytest

from evenkeel_local import PROJECT
from evenkeel_local.drills import DRILLS, resumed_past_a_fence
from tests.drill_mutants import DrillMutant, drill_mutants
from tests.simulator.mutants import why_not_applicable

Point = tuple[int, int] | None


def a_fence(*pins: tuple[int, Point]) -> dict[str, Any]:
    """Return a fence as it is stored: the pin of the last attempt, and the earlier pins in its history."""
    documents = [
        {"attempt": attempt, "resumeFrom": point and {"attempt": point[0], "step": point[1]}} for attempt, point in pins
    ]
    return {**documents[-1], "history": documents[:-1]}


@pytest.mark.parametrize(
    "pins",
    [
        [(1, None)],
        [(1, None), (2, (1, 20))],
        [(1, None), (2, (1, 20)), (3, (1, 20))],
        [(1, None), (2, (1, 20)), (3, (1, 16))],
        [(1, None), (2, (1, 20)), (3, (2, 40)), (4, (2, 40))],
        [(1, None), (3, (1, 20))],
    ],
)
def test_checkpoint_from_before_the_fence_may_be_resumed(pins: list[tuple[int, Point]]) -> None:
    assert resumed_past_a_fence(a_fence(*pins)) == []


@pytest.mark.parametrize(
    ("pins", "attempt"),
    [
        ([(1, None), (2, (1, 20)), (3, (1, 24))], 3),
        ([(1, None), (2, None), (3, (1, 4))], 3),
        ([(1, None), (2, (1, 20)), (3, (1, 20)), (4, (2, 8))], 4),
        ([(1, None), (2, (1, 20)), (3, (1, 24)), (4, (3, 40))], 3),
    ],
)
def test_resuming_from_a_checkpoint_after_a_fence_is_reported(pins: list[tuple[int, Point]], attempt: int) -> None:
    [text] = resumed_past_a_fence(a_fence(*pins))

    assert text.startswith(f"attempt {attempt} resumed from")


def test_documented_drills_are_the_drills_in_the_code() -> None:
    pages = {page.stem: page.read_text("utf-8") for page in (PROJECT / "docs" / "runbooks" / "drills").glob("*.md")}

    assert set(pages) == set(DRILLS)
    assert [name for name, text in pages.items() if f"evenkeel drill run {name}\n" not in text] == []


def test_every_drill_has_a_mutant_that_it_detects() -> None:
    assert [mutant.drill for mutant in drill_mutants()] == sorted(DRILLS)


@pytest.mark.parametrize("mutant", drill_mutants(), ids=lambda mutant: mutant.drill)
def test_drill_mutant_can_be_applied_and_names_an_existing_check(mutant: DrillMutant) -> None:
    sources = (PROJECT / "local" / "evenkeel_local" / "drills").glob("*.py")

    assert why_not_applicable(mutant.path) == ""
    assert [path.name for path in sources if f'"{mutant.fails}"' in path.read_text("utf-8")] != []
