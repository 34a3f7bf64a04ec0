"""What a drill concludes from a fence; each drill has its page."""

from typing import Any

import pytest

from evenkeel_local import PROJECT
from evenkeel_local.drills import DRILLS, resumed_past_a_fence

Point = tuple[int, int] | None


def a_fence(*pins: tuple[int, Point]) -> dict[str, Any]:
    """Return a fence as it is stored: the last attempt's pin at the top, those before in its history."""
    told = [
        {"attempt": attempt, "resumeFrom": point and {"attempt": point[0], "step": point[1]}} for attempt, point in pins
    ]
    return {**told[-1], "history": told[:-1]}


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
def test_what_stood_when_a_fence_was_raised_may_be_resumed_from(pins: list[tuple[int, Point]]) -> None:
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
def test_what_was_written_behind_a_fence_is_found_in_the_last_pin_too(
    pins: list[tuple[int, Point]], attempt: int
) -> None:
    [found] = resumed_past_a_fence(a_fence(*pins))

    assert found.startswith(f"attempt {attempt} resumed from")


def test_every_drill_has_a_page_and_every_page_a_drill() -> None:
    pages = {page.stem: page.read_text("utf-8") for page in (PROJECT / "docs" / "runbooks" / "drills").glob("*.md")}

    assert set(pages) == set(DRILLS)
    assert [name for name, text in pages.items() if f"evenkeel drill run {name}\n" not in text] == []
