"""Effective training time: each closed form agrees with a simulation."""

import math
import random

import pytest

from evenkeel.domain.economics.effective_training_time import (
    DowntimeModel,
    ettr,
    run_time,
    shrink_downtime_seconds,
    time_factor,
)
from evenkeel.domain.economics.figure_checks import WrongFigure
from evenkeel.domain.economics.simulation import standard_error, time_factors

MANUAL, HYPERPOD = 280 * 60, 40 * 60
RUN_HOURS = 10_000_000 / 2048


@pytest.mark.parametrize("seconds", [MANUAL, HYPERPOD])
@pytest.mark.parametrize("model", DowntimeModel)
def test_ettr_formula_agrees_with_the_simulation(model: DowntimeModel, seconds: float) -> None:
    random_numbers = random.Random(f"{model}/{seconds}").random
    batches, (simulated,) = time_factors(0.128, (seconds / 3600,), model, 100_000, random_numbers)
    error = standard_error([batch[0] for batch in batches])

    assert error < 0.02
    assert abs(simulated - time_factor(0.128, seconds / 3600, model)) < 4 * error


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", DowntimeModel)
@pytest.mark.parametrize("load", [0.05, 0.3, 0.6, 0.8])
def test_ettr_formula_agrees_with_the_simulation_for_many_loads(model: DowntimeModel, load: float) -> None:
    _, (simulated,) = time_factors(1.0, (load,), model, 400_000, random.Random(f"{model}/{load}").random)

    assert abs(simulated / time_factor(1.0, load, model) - 1) < 0.02


@pytest.mark.parametrize(
    ("model", "manual", "hyperpod"),
    [
        (DowntimeModel.RENEWAL, 324.98, 220.81),
        (DowntimeModel.PARALLEL, 369.72, 221.57),
        (DowntimeModel.RESTART, 369.72, 221.57),
        (DowntimeModel.SERIAL, 505.26, 222.43),
    ],
)
def test_downtime_models_give_different_run_times(model: DowntimeModel, manual: float, hyperpod: float) -> None:
    days = [run_time(256, 0.0005, seconds, RUN_HOURS, model).days for seconds in (MANUAL, HYPERPOD)]

    assert days == pytest.approx([manual, hyperpod], abs=0.005)


def test_run_that_never_ends_has_no_figures() -> None:
    outcome = run_time(429, 0.0005, MANUAL, 100, DowntimeModel.SERIAL)

    assert (outcome.ends, outcome.days, outcome.ettr) == (False, None, 0)
    assert run_time(428, 0.0005, MANUAL, 100, DowntimeModel.SERIAL).ends


@pytest.mark.parametrize("model", DowntimeModel)
def test_without_failures_no_time_is_lost(model: DowntimeModel) -> None:
    assert ettr(0.0, 5.0, model) == 1
    assert ettr(0.128, 0.0, model) == 1


@pytest.mark.parametrize("load", [0.01, 0.3, 0.9])
def test_serial_downtime_model_loses_most_and_renewal_model_least(load: float) -> None:
    renewal, parallel, restart, serial = (time_factor(1, load, model) for model in DowntimeModel)

    assert renewal < parallel == restart < serial


# Seconds of downtime per failure → percent of time that trains. 256 nodes with 0.05 % failures per hour each: 0.128
# failures per hour.
@pytest.mark.parametrize(
    ("seconds", "percent"), [(16_800, 62.6), (2390, 92.2), (1487, 95.0), (1410, 95.2), (211, 99.3), (59, 99.8)]
)
def test_shorter_downtime_gives_a_higher_training_share(seconds: float, percent: float) -> None:
    assert 100 * ettr(0.128, seconds / 3600, DowntimeModel.RENEWAL) == pytest.approx(percent, abs=0.05)


def test_shrinking_costs_the_share_of_the_missing_nodes() -> None:
    assert shrink_downtime_seconds(89, 60, 940, 256) == pytest.approx(152.671875)


@pytest.mark.parametrize(("rate", "hours"), [(-0.1, 1), (0.1, -1), (math.nan, 1), (0.1, math.inf)])
def test_invalid_downtime_figures_are_refused(rate: float, hours: float) -> None:
    with pytest.raises(WrongFigure):
        time_factor(rate, hours, DowntimeModel.RENEWAL)
