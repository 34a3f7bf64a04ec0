"""Losses of past failures: sums, unknown times, and attempts that several incidents name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.economics.figure_checks import WrongFigure
from evenkeel.domain.economics.losses import Interruption, losses_by


def an_interruption(job: str = "job-1", attempt: int = 1, **changes: Any) -> Interruption:
    facts: dict[str, Any] = {
        "incident_id": "inc-1",
        "fault_class": "hardware",
        "pool": "p5",
        "job_id": job,
        "attempt": attempt,
        "gpus": 16,
        "standstill_seconds": 900,
        "lost_work_seconds": 450,
    }
    return Interruption.model_validate({**facts, **changes})


def test_losses_are_gpu_hours_and_dollars() -> None:
    (row,), total = losses_by([an_interruption()], "fault_class", 5.0)

    assert (row.standstill_gpu_hours, row.lost_work_gpu_hours, row.lost_gpu_hours) == (4, 2, 6)
    assert (row.lost_usd, row.mean_standstill_seconds, row.mean_lost_work_seconds) == (30, 900, 450)
    assert row.but(group="total") == total


def test_attempt_named_by_several_incidents_counts_once() -> None:
    twice = [an_interruption(), an_interruption(incident_id="inc-2", fault_class="network")]
    rows, total = losses_by(twice, "fault_class")

    assert [(each.group, each.interruptions) for each in rows] == [("hardware", 1)]
    assert total.lost_gpu_hours == 6


def test_unknown_times_are_counted_apart() -> None:
    found = [
        an_interruption("a", lost_work_seconds=None, is_over=False),
        an_interruption("b", gpus=0, standstill_seconds=None, lost_work_seconds=None),
    ]
    _, total = losses_by(found, "pool")

    assert (total.interruptions, total.unknown_standstills, total.unknown_lost_work) == (2, 1, 2)
    assert (total.lost_gpu_hours, total.still_interrupted, total.lost_usd) == (4, 1, None)
    assert (total.mean_standstill_seconds, total.mean_lost_work_seconds) == (900, None)


def test_window_without_interruptions_has_no_groups() -> None:
    rows, total = losses_by([], "pool", 5)

    assert (rows, total.interruptions, total.mean_standstill_seconds) == ((), 0, None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(1, 9),
            st.sampled_from(["hardware", "network", ""]),
            st.none() | st.floats(0, 1e6),
        )
    )
)
def test_groups_add_up_to_the_total(cases: list[tuple[str, int, str, float | None]]) -> None:
    found = [
        an_interruption(job, number, fault_class=kind, standstill_seconds=seconds)
        for job, number, kind, seconds in cases
    ]
    rows, total = losses_by(found, "fault_class", 3)

    assert sum(each.interruptions for each in rows) == total.interruptions == len({case[:2] for case in cases})
    assert sum(each.lost_usd or 0 for each in rows) == pytest.approx(total.lost_usd)


def test_negative_price_is_refused() -> None:
    with pytest.raises(WrongFigure, match="usd_per_gpu_hour must be at least 0"):
        losses_by([], "pool", -1)
