"""The figures in the text of docs/economics.md follow from the formulas. Its tables are generated."""

from pathlib import Path

import pytest

from evenkeel.domain.economics.checkpoint_interval import advise_interval
from evenkeel.domain.economics.failure_rates import failure_rate

TEXT = " ".join((Path(__file__).resolve().parents[3] / "docs" / "economics.md").read_text("utf-8").split())


def test_example_of_an_interval_of_a_rate_is_right() -> None:
    rate = failure_rate(4, 12_540)

    low, high = rate.low_percent_per_node_hour, rate.high_percent_per_node_hour
    assert "With 4 failures in 12,540 node-hours" in TEXT
    assert (
        f"the rate is {rate.percent_per_node_hour:.3f} % per hour, and the interval is {low:.3f} to {high:.3f} %"
        in TEXT
    )


def test_example_of_checkpoint_intervals_is_right() -> None:
    advice = advise_interval(60, 2390, 28_125, None)

    young = next(choice for choice in advice.choices if choice.method == "young")
    assert "At M = 28,125 s, w = 60 s and R = 2,390 s, the three differ by only 0.001 points of ETTR" in TEXT
    assert young.lost_ettr_points == pytest.approx(0.001, abs=0.0005)
