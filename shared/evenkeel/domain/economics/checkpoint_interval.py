"""How often to save a checkpoint, and what a failure loses.

All durations are in seconds:

    tau   training time between two saves
    w     time that a save blocks training
    R     restart, from the failure until training continues
    M     mean time between two failures of the job; x = 1/M

The effective training time ratio (ETTR):

    exact        ETTR = tau / [(1/x + R) (e^(x (tau + w)) - 1)]
    exact, and failures during the restart       ... with e^(x R)/x for (1/x + R)
    first order  ETTR = (1 - x (R + tau/2)) / (1 + w/tau)

The best interval of the exact form solves (1 - x tau) e^(x tau) = e^(-x w). R does not enter.

    Young          tau = sqrt(2 w M)                                  https://doi.org/10.1145/361147.361115
    Daly           tau = sqrt(2 w M) [1 + sqrt(w/(2M))/3 + w/(18M)] - w, and M from w >= 2M
                                                                      https://doi.org/10.1016/j.future.2004.11.016
    availability   tau + w = w + sqrt(2 (M + R) w + w^2)              the cycle with its save
"""

import math
from collections.abc import Callable, Sequence

from evenkeel.domain.economics.figure_checks import at_least, more_than_0
from evenkeel.domain.values import Value

_SHORT_WRITE = 1e-8
"""Below this write time, as a share of the MTBF, a series gives the best interval."""


def young_seconds(write_seconds: float, mtbf_seconds: float) -> float:
    """Return Young's interval."""
    return math.sqrt(2 * more_than_0("write_seconds", write_seconds) * more_than_0("mtbf_seconds", mtbf_seconds))


def daly_seconds(write_seconds: float, mtbf_seconds: float) -> float:
    """Return Daly's interval of higher order."""
    young = young_seconds(write_seconds, mtbf_seconds)
    if write_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    half = write_seconds / (2 * mtbf_seconds)
    return young * (1 + math.sqrt(half) / 3 + half / 9) - write_seconds


def availability_cycle_seconds(write_seconds: float, restart_seconds: float, mtbf_seconds: float) -> float:
    """Return the cycle of interval and save that maximises the first-order availability."""
    more_than_0("write_seconds", write_seconds)
    up_seconds = more_than_0("mtbf_seconds", mtbf_seconds) + at_least("restart_seconds", restart_seconds)
    return write_seconds + math.sqrt(2 * up_seconds * write_seconds + write_seconds**2)


def best_seconds(write_seconds: float, mtbf_seconds: float) -> float:
    """Return the interval that maximises the exact ETTR."""
    target = -more_than_0("write_seconds", write_seconds) / more_than_0("mtbf_seconds", mtbf_seconds)
    if target > -_SHORT_WRITE:
        young = math.sqrt(-2 * target)  # the sum below would lose its digits; the next term is young^4 / 270
        return (young - young**2 / 3 + young**3 / 36) * mtbf_seconds
    low, high = 0.0, 1.0  # log(1 - u) + u falls from 0 to minus infinity
    while low < (middle := (low + high) / 2) < high:
        if math.log1p(-middle) + middle > target:
            low = middle
        else:
            high = middle
    return low * mtbf_seconds


def exact_ettr(
    interval_seconds: float,
    write_seconds: float,
    restart_seconds: float,
    mtbf_seconds: float,
    *,
    restart_can_fail: bool = False,
) -> float:
    """Return the exact ETTR of a job that saves after each interval.

    Args:
        interval_seconds: Training time between two saves.
        write_seconds: Time that a save blocks training.
        restart_seconds: From a failure until training continues, without the repeated steps.
        mtbf_seconds: Mean time between failures of the job.
        restart_can_fail: Whether failures also hit the restart.
    """
    interval = more_than_0("interval_seconds", interval_seconds)
    mtbf = more_than_0("mtbf_seconds", mtbf_seconds)
    restart = at_least("restart_seconds", restart_seconds)
    exponent = (interval + at_least("write_seconds", write_seconds)) / mtbf
    if exponent > 700 or (restart_can_fail and restart / mtbf > 700):
        return 0.0
    per_failure = mtbf * math.exp(restart / mtbf) if restart_can_fail else mtbf + restart
    return interval / (per_failure * math.expm1(exponent))


def first_order_ettr(
    interval_seconds: float, write_seconds: float, restart_seconds: float, mtbf_seconds: float
) -> float | None:
    """Return the first-order ETTR; None if a failure costs more than the MTBF, because the approximation then fails."""
    lost_seconds = at_least("restart_seconds", restart_seconds) + more_than_0("interval_seconds", interval_seconds) / 2
    share = 1 - lost_seconds / more_than_0("mtbf_seconds", mtbf_seconds)
    return share / (1 + at_least("write_seconds", write_seconds) / interval_seconds) if share > 0 else None


def lost_work_seconds(interval_seconds: float, write_seconds: float, mtbf_seconds: float) -> float:
    """Return the expected running time that a failure loses: about half of an interval and its save.

    A failure comes within the cycle s = tau + w; its mean time in it is M - s / (e^(s/M) - 1).
    """
    cycle = more_than_0("interval_seconds", interval_seconds) + at_least("write_seconds", write_seconds)
    ratio = cycle / more_than_0("mtbf_seconds", mtbf_seconds)
    if ratio < 1e-4:
        return cycle * (0.5 - ratio / 12)  # the difference below would lose its digits
    return mtbf_seconds - (cycle / math.expm1(ratio) if ratio < 700 else 0.0)


_NO_PROGRESS = "The job fails before a save ends, so it makes no progress at any interval."


class IntervalChoice(Value):
    """An interval of one method, with the exact ETTR that it gives."""

    method: str
    interval_seconds: float
    """Training time between two saves."""
    ettr: float
    ettr_if_restart_can_fail: float
    first_order_ettr: float | None
    lost_ettr_points: float
    """Percentage points below the exact optimum."""


class IntervalAdvice(Value):
    """The best checkpoint interval by each method."""

    write_seconds: float
    restart_seconds: float
    mtbf_seconds: float
    choices: tuple[IntervalChoice, ...]
    """One choice for each method; the exact optimum is the first."""
    best_interval_seconds: float
    best_ettr: float
    lost_work_seconds_per_failure: float
    lost_work_seconds_first_order: float
    """Half of the best interval."""
    overhead_first_order: float
    """sqrt(2 w / M), the share of time that saves and repeated steps cost at the optimum."""
    young_parts_at_write_seconds: float | None
    """From this write time, Young's interval costs more than 0.1 points of ETTR at this MTBF. Null: never."""
    note: str


def advise_interval(
    write_seconds: float, restart_seconds: float, mtbf_seconds: float, interval_seconds: float | None = None
) -> IntervalAdvice:
    """Compare the best checkpoint intervals.

    Args:
        write_seconds: Time that a save blocks training.
        restart_seconds: From a failure until training continues, without the repeated steps.
        mtbf_seconds: Mean time between failures of the job.
        interval_seconds: The present interval, to compare; None if unknown.
    """
    best_interval = best_seconds(write_seconds, mtbf_seconds)
    cycle = availability_cycle_seconds(write_seconds, restart_seconds, mtbf_seconds)
    intervals = {
        "exact": best_interval,
        "young": young_seconds(write_seconds, mtbf_seconds),
        "daly": daly_seconds(write_seconds, mtbf_seconds),
        "availability": cycle - write_seconds,
    }
    if interval_seconds is not None:
        intervals["present"] = more_than_0("interval_seconds", interval_seconds)
    best_ettr = exact_ettr(best_interval, write_seconds, restart_seconds, mtbf_seconds)
    choices = []
    for method, interval in intervals.items():
        terms = (interval, write_seconds, restart_seconds, mtbf_seconds)
        exact = exact_ettr(*terms)
        choices.append(
            IntervalChoice(
                method=method,
                interval_seconds=interval,
                ettr=exact,
                ettr_if_restart_can_fail=exact_ettr(*terms, restart_can_fail=True),
                first_order_ettr=first_order_ettr(*terms),
                lost_ettr_points=max(0.0, 100 * (best_ettr - exact)),
            )
        )
    young, daly = (
        _costly_write_seconds(method, restart_seconds, mtbf_seconds) for method in (young_seconds, daly_seconds)
    )
    return IntervalAdvice(
        write_seconds=write_seconds,
        restart_seconds=restart_seconds,
        mtbf_seconds=mtbf_seconds,
        choices=tuple(choices),
        best_interval_seconds=best_interval,
        best_ettr=best_ettr,
        lost_work_seconds_per_failure=lost_work_seconds(best_interval, write_seconds, mtbf_seconds),
        lost_work_seconds_first_order=best_interval / 2,
        overhead_first_order=math.sqrt(2 * write_seconds / mtbf_seconds),
        young_parts_at_write_seconds=young,
        note=_NO_PROGRESS if best_ettr < 1e-6 else _compare_methods(choices[:3], young, daly),
    )


def _compare_methods(choices: Sequence[IntervalChoice], young: float | None, daly: float | None) -> str:
    """Return sentences that say how much the methods differ, and from which write times that matters."""
    worst_loss = max(choice.lost_ettr_points for choice in choices)
    is_small = worst_loss < 0.1 and worst_loss < choices[0].ettr  # 1 % of the ETTR, which is a share
    advice = "Each method is good enough." if is_small else "Use the exact optimum."
    losses_text = ", ".join(
        f"{name} from a write time of {at:.4g} s" if at else f"{name} never"
        for name, at in (("Young", young), ("Daly", daly))
    )
    return (
        f"Young, Daly and the exact optimum differ by {worst_loss:.2g} points of ETTR. {advice}"
        f" At this MTBF they cost more than 0.1 points: {losses_text}."
    )


def _costly_write_seconds(
    method: Callable[[float, float], float], restart_seconds: float, mtbf_seconds: float, points: float = 0.1
) -> float | None:
    """Return the write time from which a method loses some percentage points of ETTR against the optimum."""

    def loses(write: float) -> bool:
        terms = (write, restart_seconds, mtbf_seconds)
        lost_ettr = exact_ettr(best_seconds(write, mtbf_seconds), *terms) - exact_ettr(
            method(write, mtbf_seconds), *terms
        )
        return lost_ettr * 100 > points

    low, high = 0.0, mtbf_seconds * 1e-6
    while not loses(high):
        low, high = high, high * 2
        if high > 1e3 * mtbf_seconds:
            return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if loses(middle) else (middle, high)
    return high
