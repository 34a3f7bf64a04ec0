"""The tables of the AWS article on training costs: each cell as printed and as correct, with a second derivation.

Source of every printed figure: "Reduce ML training costs with Amazon SageMaker HyperPod",
https://aws.amazon.com/blogs/machine-learning/reduce-ml-training-costs-with-amazon-sagemaker-hyperpod/.

Second derivations: Table 1 integrates the survival of N nodes. Tables 2 and 3 add the columns first. Tables 4 to 6
simulate runs, and state the standard error.
"""

import math
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from evenkeel.domain.economics import simulation
from evenkeel.domain.economics.effective_training_time import DowntimeModel, time_factor
from evenkeel.domain.economics.simulation import Uniform
from evenkeel.domain.values import Value

SOURCE = "https://aws.amazon.com/blogs/machine-learning/reduce-ml-training-costs-with-amazon-sagemaker-hyperpod/"
NODES = (4, 8, 16, 32, 64, 128, 256, 512)
TABLE_1 = {
    0.01: (2500, 1250, 625, 313, 157, 79, 40, 20),
    0.02: (1250, 625, 313, 157, 79, 40, 20, 10),
    0.04: (625, 313, 157, 79, 40, 20, 10, 5),
    0.08: (313, 157, 79, 40, 20, 10, 5, 3),
}
"""MTBF in hours, by percent of failures per node-hour."""
TABLE_2 = {
    16: (83, 912, 1212, 2207),
    64: (90, 963, 1320, 2373),
    256: (89, 903, 1398, 2390),
    1024: (80, 981, 1440, 2501),
}
"""P90 seconds to detect, replace and resume, and their total, by nodes."""
TABLE_3 = {"without HyperPod": (10.0, 240.0, 30.0, 280.0), "with HyperPod": (1.5, 15.0, 23.5, 40.0)}
"""Minutes for the root cause, the replacement and the resume, and their total."""
TABLE_4 = {
    0.01: (0, 0, 1, 1, 2, 5, 9, 17),
    0.02: (0, 1, 1, 2, 5, 9, 17, 28),
    0.05: (1, 2, 3, 6, 11, 20, 32, 48),
    0.07: (1, 2, 4, 8, 15, 25, 40, 55),
}
"""Percent of training time saved, by percent of failures per node-hour."""
GPU_HOURS, RUN_NODES, GPUS_PER_NODE, RUN_PERCENT, USD_PER_GPU_HOUR = 10_000_000, 256, 8, 0.05, 5
WITH_HOURS, WITHOUT_HOURS = 40 / 60, 280 / 60
DEFAULT_FAILURES = 20_000
"""Simulated failures for each cell."""
_STEPS = 2_000


class CellCheck(StrEnum):
    """How a printed cell relates to the correct figure."""

    ROUNDED = "rounded"
    ROUNDED_UP = "rounded up"
    ROUNDED_DOWN = "rounded down"
    EXACT = "exact"
    FROM_ROUNDED = "from rounded figures"
    MISPRINT = "misprint"
    NOT_PRINTED = "not printed"


class Cell(Value):
    """A cell of a table: the printed value, the correct value, and the value of a second derivation."""

    table: str
    row: str
    column: str
    unit: str
    printed: float | None
    correct: float
    """The printed value if it is right, rounded in the same way; otherwise the corrected value."""
    exact: float
    """Unrounded, by the closed form."""
    second_derivation: float
    standard_error: float
    """Standard error of the second derivation; 0 if it uses no random numbers."""
    agrees: bool
    """Whether both derivations agree, within four standard errors where random numbers are used."""
    verdict: CellCheck
    is_misprint: bool
    note: str = ""


class Remark(Value):
    """A statement of the article outside its cells that is wrong or needs care."""

    where: str
    printed: str
    correct: str


class _RoundingRule(NamedTuple):
    """How the article rounds the cells of a table."""

    verdict: CellCheck
    rounds: Callable[[float], float]


def _round_half_up(value: float, digits: int = 0) -> float:
    scale = 10.0**digits
    return math.floor(value * scale + 0.5) / scale


_UP = _RoundingRule(CellCheck.ROUNDED_UP, lambda value: float(math.ceil(value - 1e-9)))
_DOWN = _RoundingRule(CellCheck.ROUNDED_DOWN, lambda value: float(math.floor(value + 1e-9)))
_HALF_UP = _RoundingRule(CellCheck.ROUNDED, _round_half_up)
_TENTHS = _RoundingRule(CellCheck.ROUNDED, partial(_round_half_up, digits=1))
_EXACT = _RoundingRule(CellCheck.EXACT, float)


class _CellLocation(NamedTuple):
    """A cell of a published table."""

    table: str
    row: str
    column: str
    unit: str


def _check_cell(
    location: _CellLocation,
    printed: float | None,
    exact: float,
    second: simulation.Estimate,
    rule: _RoundingRule = _EXACT,
    note: str = "",
) -> Cell:
    rounded = rule.rounds(exact)
    is_misprint = printed is not None and not math.isclose(printed, rounded, rel_tol=1e-9)
    verdict = CellCheck.NOT_PRINTED if printed is None else CellCheck.MISPRINT if is_misprint else rule.verdict
    if is_misprint and not note:
        note = f"Printed {printed:g}, should say {rounded:g} ({exact:.2f})."
    allowed = 4 * second.standard_error + 1e-6 * max(1.0, abs(exact))
    return Cell(
        **location._asdict(),
        printed=printed,
        correct=rounded if printed is not None else exact,
        exact=exact,
        second_derivation=second.value,
        standard_error=second.standard_error,
        agrees=abs(second.value - exact) <= allowed,
        verdict=verdict,
        is_misprint=is_misprint,
        note=note,
    )


def check_cells(random_for: Callable[[str], Uniform], failures: int = DEFAULT_FAILURES) -> tuple[Cell, ...]:
    """Return every cell of Tables 1 to 6.

    Args:
        random_for: Returns random numbers for a cell by its name, so that cells do not depend on each other.
        failures: Simulated failures for each cell of Tables 4 to 6.
    """
    return (*table_1(), *table_2(), *table_3(), *table_4(random_for, failures), *tables_5_and_6(random_for, failures))


def misprints(table_cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """Return the misprinted cells."""
    return tuple(cell for cell in table_cells if cell.is_misprint)


# ---------------------------------------------------------------- Tables 1 to 3


def table_1() -> Iterator[Cell]:
    """Yield the MTBF in hours. The article rounds each cell up."""
    for percent, row in TABLE_1.items():
        for nodes, printed in zip(NODES, row, strict=True):
            rate = percent / 100
            place = _CellLocation("1", f"{percent:.2f} % per hour", f"{nodes} instances", "hours")
            second = simulation.Estimate(integrated_mtbf(nodes, rate), 0.0)
            yield _check_cell(place, printed, 1 / (nodes * rate), second, _UP)


def integrated_mtbf(nodes: int, rate: float) -> float:
    """Integrate the probability that none of N nodes has failed yet, by Simpson's rule."""
    end = 40 / (nodes * rate)
    width = end / _STEPS

    def survival(hours: float) -> float:
        return math.exp(-rate * hours) ** nodes

    inner = math.fsum((4 if step % 2 else 2) * survival(step * width) for step in range(1, _STEPS))
    return width / 3 * (survival(0) + inner + survival(end))


def table_2() -> Iterator[Cell]:
    """Yield the totals of the P90 stages, in seconds."""
    all_stages = [math.fsum(row[stage] for row in TABLE_2.values()) for stage in range(3)]
    for nodes, (detect, replace, resume, printed) in TABLE_2.items():
        other_stages = math.fsum(sum(row[:3]) for size, row in TABLE_2.items() if size != nodes)
        second = simulation.Estimate(math.fsum(all_stages) - other_stages, 0.0)
        yield _check_cell(
            _CellLocation("2", f"{nodes} instances", "total", "seconds"), printed, detect + replace + resume, second
        )


def table_3() -> Iterator[Cell]:
    """Yield the totals of the stages, in minutes."""
    all_stages = [math.fsum(row[stage] for row in TABLE_3.values()) for stage in range(3)]
    for name, (cause, replace, resume, printed) in TABLE_3.items():
        other_stages = math.fsum(sum(row[:3]) for other, row in TABLE_3.items() if other != name)
        second = simulation.Estimate(math.fsum(all_stages) - other_stages, 0.0)
        yield _check_cell(_CellLocation("3", name, "total", "minutes"), printed, cause + replace + resume, second)


# ---------------------------------------------------------------- Table 4


def saved_share(failures_per_hour: float, with_hours: float, without_hours: float) -> float:
    """Return the share of the training time that a shorter downtime saves, in the renewal form."""
    slow = time_factor(failures_per_hour, without_hours, DowntimeModel.RENEWAL)
    return 1 - time_factor(failures_per_hour, with_hours, DowntimeModel.RENEWAL) / slow


class _SimulatedRuns:
    """Runs with and without HyperPod on the same simulated failures."""

    def __init__(self, failures_per_hour: float, failures: int, uniform: Uniform) -> None:
        self._batches, (self._fast, self._slow) = simulation.time_factors(
            failures_per_hour, (WITH_HOURS, WITHOUT_HOURS), DowntimeModel.RENEWAL, failures, uniform
        )

    def estimate(self, figure: Callable[[float, float], float]) -> simulation.Estimate:
        """Return a figure that depends on T/T0 with and without HyperPod."""
        error = simulation.standard_error([figure(batch[0], batch[1]) for batch in self._batches])
        return simulation.Estimate(figure(self._fast, self._slow), error)


def table_4(random_for: Callable[[str], Uniform], failures: int) -> Iterator[Cell]:
    """Yield the percent of training time saved. The article rounds half up."""
    for percent, row in TABLE_4.items():
        for nodes, printed in zip(NODES, row, strict=True):
            per_hour = nodes * percent / 100
            location = _CellLocation("4", f"{percent:.2f} % per hour", f"{nodes} instances", "percent")
            runs = _SimulatedRuns(per_hour, failures, random_for(f"4/{percent}/{nodes}"))
            second = runs.estimate(lambda fast, slow: 100 * (1 - fast / slow))
            yield _check_cell(
                location, printed, 100 * saved_share(per_hour, WITH_HOURS, WITHOUT_HOURS), second, _HALF_UP
            )


# ---------------------------------------------------------------- Tables 5 and 6


def failure_free_days() -> float:
    """Return the days of the article's run without failures."""
    return GPU_HOURS / (RUN_NODES * GPUS_PER_NODE) / 24


class _RunFigure(NamedTuple):
    """A figure of the run as a function of T/T0 with and without HyperPod."""

    row: str
    unit: str
    printed: float | None
    rule: _RoundingRule
    figure: Callable[[float, float], float]
    note: str = ""


def _run_figures() -> Iterator[_RunFigure]:
    days = failure_free_days()
    yield _RunFigure("days lost with HyperPod", "days", 17, _DOWN, lambda fast, _: days * (fast - 1))
    yield _RunFigure(
        *("days lost without HyperPod", "days", 121, _DOWN),
        lambda _, slow: days * (slow - 1),
        "Rounded to the nearest day it would be 122.",
    )
    yield _RunFigure("time to train with HyperPod", "days", 221, _HALF_UP, lambda fast, _: days * fast)
    yield _RunFigure("time to train without HyperPod", "days", 325, _HALF_UP, lambda _, slow: days * slow)
    yield _RunFigure("days saved", "days", 104, _HALF_UP, lambda fast, slow: days * (slow - fast))
    yield _RunFigure("time saved", "percent", 32, _HALF_UP, lambda fast, slow: 100 * (1 - fast / slow))
    yield _RunFigure("months saved, of 30 days", "months", 3.5, _TENTHS, lambda fast, slow: days * (slow - fast) / 30)


def tables_5_and_6(random_for: Callable[[str], Uniform], failures: int) -> Iterator[Cell]:
    """Yield the article's run of 10 million GPU-hours: times in Table 5, dollars in Table 6."""
    per_hour = RUN_NODES * RUN_PERCENT / 100
    closed = tuple(time_factor(per_hour, hours, DowntimeModel.RENEWAL) for hours in (WITH_HOURS, WITHOUT_HOURS))
    days, run = failure_free_days(), f"{RUN_NODES} instances"
    yield _check_cell(
        _CellLocation("5", "time without failures", run, "days"), None, days, simulation.Estimate(days, 0.0)
    )
    expected = per_hour * days * 24
    counted = simulation.Estimate(expected, 0.0)
    yield _check_cell(_CellLocation("5", "failures in that time", run, "failures"), None, expected, counted)
    runs = _SimulatedRuns(per_hour, failures, random_for("5"))
    for row, unit, printed, rule, figure, note in _run_figures():
        location = _CellLocation("5", row, run, unit)
        yield _check_cell(location, printed, figure(*closed), runs.estimate(figure), rule, note)

    def usd(fast: float, slow: float) -> float:
        return days * (slow - fast) * 24 * RUN_NODES * GPUS_PER_NODE * USD_PER_GPU_HOUR

    printed = 104 * 24 * RUN_NODES * GPUS_PER_NODE * USD_PER_GPU_HOUR
    rule = _RoundingRule(CellCheck.FROM_ROUNDED, lambda _: float(printed))
    note = f"104 days times 24 h; unrounded ${usd(*closed):,.0f}."
    yield _check_cell(
        _CellLocation("6", "cost saved", run, "USD"), printed, usd(*closed), runs.estimate(usd), rule, note
    )


# ---------------------------------------------------------------- outside the cells


_FIXED_REMARKS = (
    Remark(
        where="Table 1, caption",
        printed="rows and columns",
        correct="The caption swaps them: the rows are failure rates, the columns numbers of instances.",
    ),
    Remark(
        where="Table 1, cells",
        printed="MTBF in whole hours",
        correct="Every cell is rounded up; at 0.08 % and 512 instances the MTBF is 2.44 h, printed as 3.",
    ),
    Remark(
        where="Table 2, text",
        printed="P90 is a value met or exceeded 90 % of the time",
        correct="That would be the P10. 90 % of the times are at or below the P90.",
    ),
    Remark(
        where="Table 2, text",
        printed="about 940 s to replace an instance of 256",
        correct="903 s. 939.75 s is the mean of the column over all sizes.",
    ),
    Remark(
        where="Table 2, totals",
        printed="the P90 of the total",
        correct=(
            "A sum of P90s is above the P90 of a sum, unless all stages are slow together. For 256 instances it is"
            " about 2,180 s, not 2,390 s, if the stages are independent and lognormal with a sigma of 0.3."
        ),
    ),
    Remark(
        where="Table 3, resume",
        printed="23.5 minutes",
        correct="The remainder of the 40 minutes. The row for 256 instances of Table 2 gives 1,398 s = 23.3 minutes.",
    ),
    Remark(
        where="Table 5, scope",
        printed="days lost",
        correct="Lost work since the last checkpoint and the cost of checkpoints are not counted.",
    ),
    Remark(
        where="Text, failure rates",
        printed="Llama 3.1: 417 failures on 2,000 instances in 54 days, 0.0161 % per hour",
        correct="The paper has 419 interruptions, and 16,384 GPUs are 2,048 instances: 0.0158 % per hour.",
    ),
    Remark(
        where="Text, failure rates",
        printed="OPT-175B: 0.0588 % per hour",
        correct="A lower bound: 105 restarts in 178,560 instance-hours, but the paper says 35+ and 70+ restarts.",
    ),
    Remark(
        where="Text, failure rates",
        printed="MPT-7B: 0.0319 % per hour",
        correct="From 4 failures: the 95 % interval is 0.009 to 0.082 %.",
    ),
    Remark(
        where="Text, range of rates",
        printed="0.02 to 0.06 % in one place, 0.02 to 0.07 % in another",
        correct="Table 1 uses 0.01, 0.02, 0.04 and 0.08 %; Table 4 uses 0.01, 0.02, 0.05 and 0.07 %.",
    ),
)


def list_remarks() -> tuple[Remark, ...]:
    """Return the statements outside the cells that are wrong or need care, in the order of the article."""
    return tuple(
        sorted(
            (*_FIXED_REMARKS, _remark_on_circular_days(), _remark_on_saved_dollars()), key=lambda remark: remark.where
        )
    )


def _remark_on_circular_days() -> Remark:
    days = RUN_NODES * RUN_PERCENT / 100 * 24 * 325 * WITHOUT_HOURS / 24
    return Remark(
        where="Table 5, formula",
        printed="lost days = N r x 24 x total training days x d",
        correct=f"Failure-free days. With the printed total of 325 days it gives {days:.0f} days, not 121.",
    )


def _remark_on_saved_dollars() -> Remark:
    low = 0.0158 / 100 * RUN_NODES
    saved = failure_free_days() * low * (WITHOUT_HOURS - WITH_HOURS)
    percent = 100 * saved_share(low, WITH_HOURS, WITHOUT_HOURS)
    usd = saved * 24 * RUN_NODES * GPUS_PER_NODE * USD_PER_GPU_HOUR
    return Remark(
        where="Table 6, scope",
        printed="$25,559,040 saved",
        correct=(
            f"It holds for 0.05 % per hour. At the rate of Llama 3.1, 0.0158 %, the same run saves"
            f" {saved:.1f} days, {percent:.1f} %, ${usd / 1e6:.1f} million."
        ),
    )
