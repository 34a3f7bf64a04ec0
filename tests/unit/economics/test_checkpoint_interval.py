"""Checkpoint intervals: the exact formula agrees with a simulation, and no interval is better than the optimum."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.domain.economics import checkpoint_interval as ci
from evenkeel.domain.economics.figure_checks import WrongFigure

W, R, M = 60.0, 2390.0, 28_125.0


def simulated_ettr(interval: float, write: float, restart: float, mtbf: float, *, can_fail: bool, cycles: int) -> float:
    """Simulate a job from failure to failure, and return its effective training time ratio."""
    uniform = random.Random(f"{interval}/{can_fail}")
    elapsed = 0.0

    def until_failure() -> float:
        return -mtbf * math.log(1 - uniform.random())

    for _ in range(cycles):
        while (up := until_failure()) < interval + write:
            elapsed += up
            while can_fail and (failure_after := until_failure()) < restart:
                elapsed += failure_after
            elapsed += restart
        elapsed += interval + write
    return cycles * interval / elapsed


@pytest.mark.parametrize("can_fail", [False, True])
@pytest.mark.parametrize("interval", [600.0, 1800.0, 9000.0])
def test_exact_ettr_agrees_with_the_simulation(interval: float, *, can_fail: bool) -> None:
    simulated = simulated_ettr(interval, W, R, M, can_fail=can_fail, cycles=200_000)

    assert simulated == pytest.approx(ci.exact_ettr(interval, W, R, M, restart_can_fail=can_fail), abs=0.005)


def test_intervals_of_a_published_case_are_reproduced() -> None:
    advice = ci.advise_interval(W, R, M)
    choices = {choice.method: choice for choice in advice.choices}

    assert choices["young"].interval_seconds == pytest.approx(1837, abs=0.5)
    assert choices["daly"].interval_seconds == pytest.approx(1797, abs=0.5)
    assert choices["exact"].interval_seconds == pytest.approx(1797, abs=0.5)
    assert 100 * choices["exact"].ettr == pytest.approx(86.278, abs=5e-4)
    assert 100 * choices["young"].ettr == pytest.approx(86.276, abs=5e-4)
    assert "Each method is good enough." in advice.note


@given(st.floats(0.1, 5000), st.floats(100, 1e6), st.floats(0, 5000))
def test_no_interval_is_better_than_the_computed_best(write: float, mtbf: float, restart: float) -> None:
    best = ci.best_seconds(write, mtbf)
    top = ci.exact_ettr(best, write, restart, mtbf)

    other_ratios = [ci.exact_ettr(best * factor, write, restart, mtbf) for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2)]
    assert all(ratio <= top + 1e-12 for ratio in other_ratios)


def test_formulas_for_the_best_interval_differ_if_saves_are_long() -> None:
    advice = ci.advise_interval(9000, R, M)
    lost_points = {choice.method: choice.lost_ettr_points for choice in advice.choices}

    assert lost_points["daly"] < 0.01
    assert lost_points["young"] > 0.9
    assert "Use the exact optimum" in advice.note
    parts = advice.young_parts_at_write_seconds
    assert parts is not None
    for write, is_more in ((parts * 0.99, False), (parts * 1.01, True)):
        young = next(choice for choice in ci.advise_interval(write, R, M).choices if choice.method == "young")
        assert (young.lost_ettr_points > 0.1) is is_more


def test_save_longer_than_the_mtbf_makes_no_progress() -> None:
    advice = ci.advise_interval(1e6, 0, 10)

    assert advice.best_ettr == 0
    assert "no progress at any interval" in advice.note


def test_first_order_ettr_is_unknown_if_recovery_exceeds_the_mtbf() -> None:
    assert ci.first_order_ettr(100, 1, 2000, 1000) is None
    assert ci.first_order_ettr(1797, W, R, M) == pytest.approx((1 - (R + 1797 / 2) / M) / (1 + W / 1797))


def test_lost_work_is_the_mean_of_the_simulation() -> None:
    uniform = random.Random(3)
    cycle, mtbf = 3000.0, 2000.0
    times = [-mtbf * math.log(1 - uniform.random()) for _ in range(200_000)]
    within = [time for time in times if time < cycle]

    assert math.fsum(within) / len(within) == pytest.approx(ci.lost_work_seconds(2900, 100, mtbf), rel=0.01)
    assert ci.lost_work_seconds(1799, 1, 1e9) == pytest.approx(900, rel=1e-5)
    # Both branches of the formula give the same value here.
    assert ci.lost_work_seconds(0.99e-4, 0, 1) == pytest.approx(ci.lost_work_seconds(1.01e-4, 0, 1) * 0.99 / 1.01)


def test_exact_ettr_is_the_product_of_rework_and_downtime() -> None:
    without_restarts = ci.exact_ettr(1797, W, 0.0, M)

    assert without_restarts / (1 + R / M) == pytest.approx(ci.exact_ettr(1797, W, R, M), rel=1e-12)


@pytest.mark.parametrize(("write", "mtbf"), [(0, 100), (10, 0), (-1, 100), (10, math.inf)])
def test_invalid_save_time_or_mtbf_is_refused(write: float, mtbf: float) -> None:
    with pytest.raises(WrongFigure, match="must be more than 0"):
        ci.advise_interval(write, 0, mtbf)


@pytest.mark.parametrize("ratio", [1e-18, 1e-12, 0.99e-8, 1.01e-8, 1e-6])
def test_best_interval_of_a_short_save_keeps_its_digits(ratio: float) -> None:
    young = math.sqrt(2 * ratio)
    series = young - young**2 / 3 + young**3 / 36 + young**4 / 270

    assert ci.best_seconds(ratio, 1.0) == pytest.approx(series, rel=1e-8)
