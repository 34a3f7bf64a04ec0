"""The cost of failures of a fleet in a month, and the worth of each change.

For a job of N nodes: x = N r failures per hour, d the downtime of one failure, tau and w as in `checkpoint_interval`.

    ETTR = 1 / (lost-work factor x downtime factor)
    d    = detect + resume + P(no spare) replace
    cost = price x (GPU-hours without progress + GPU-hours of spares)

Failures stop committed and on-demand nodes alike. Each figure comes for both ends of the interval of the rate. A
missing price or rate gives null, never 0.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from evenkeel.domain.economics import checkpoint_interval, spares
from evenkeel.domain.economics.effective_training_time import DowntimeModel, time_factor
from evenkeel.domain.economics.failure_rates import FailureRate
from evenkeel.domain.economics.figure_checks import WrongFigure
from evenkeel.domain.economics.fleet_request import FleetRequest, ForecastGroup, RecoveryTimes
from evenkeel.domain.economics.published_tables import TABLE_2, TABLE_3
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Value

ENDS = ("low", "estimate", "high")
POSSIBLE_DETECT_SECONDS = 10.0
_MAX_OPEN_ORDERS = 2_000


class RecoveryStrategy(NamedTuple):
    """How one group recovers from failures, in seconds and spares."""

    name: str
    detect_seconds: float
    replace_seconds: float
    resume_seconds: float
    lead_seconds: float
    spares: int
    interval_seconds: float | None


class GroupForecast(Value):
    """A month of one group with one strategy, at one end of the failure rate or at its estimate. Null: unknown."""

    strategy: str
    group: str
    end: str
    failures_per_node_hour: float | None
    failures_per_month: float | None
    """Failures that stop a job."""
    downtime_seconds_per_failure: float | None
    ends: bool | None
    """False: jobs of this size never end."""
    ettr: float | None
    downtime_hours_per_month: float | None
    """Hours of each job from failures until training resumes."""
    lost_work_hours_per_month: float | None
    """Hours of each job for repeated steps and saves. Null without a checkpoint interval."""
    lost_gpu_hours_per_month: float | None
    spare_gpu_hours_per_month: float
    usd_per_month: float | None


class FleetTotal(Value):
    """A month of all groups with one recovery strategy. Null: a group's figure is unknown."""

    strategy: str
    low_failures_per_month: float | None
    failures_per_month: float | None
    high_failures_per_month: float | None
    low_lost_gpu_hours_per_month: float | None
    lost_gpu_hours_per_month: float | None
    high_lost_gpu_hours_per_month: float | None
    low_usd_per_month: float | None
    usd_per_month: float | None
    high_usd_per_month: float | None


class ChangeValue(Value):
    """The saving of one change of the configured strategy in a month. Negative: it costs more. Null: unknown."""

    change: str
    low_saved_usd_per_month: float | None
    saved_usd_per_month: float | None
    high_saved_usd_per_month: float | None
    saved_gpu_hours_per_month: float | None
    """GPU-hours with progress that the change adds, at the estimate."""


class FleetForecast(Value):
    """The cost of failures of a fleet in a month."""

    name: str
    hours_per_month: float
    totals: tuple[FleetTotal, ...]
    changes: tuple[ChangeValue, ...]
    groups: tuple[GroupForecast, ...]
    assumptions: tuple[str, ...]


def forecast_fleet(request: FleetRequest) -> FleetForecast:
    """Return the monthly cost of failures for each recovery strategy, and the value of each change."""
    strategies = {name: _strategy_months(request, strategy_of) for name, strategy_of in _STRATEGIES.items()}
    return FleetForecast(
        name=request.name,
        hours_per_month=request.hours_per_month,
        totals=tuple(_fleet_total(name, rows) for name, rows in strategies.items()),
        changes=tuple(_values_of_changes(request, strategies)),
        groups=tuple(row for rows in strategies.values() for row in rows),
        assumptions=tuple(_list_assumptions(request)),
    )


# ---------------------------------------------------------------- recovery strategies

StrategyOf = Callable[[FleetRequest, ForecastGroup, float], RecoveryStrategy]
"""Returns the recovery strategy of a group, from the estimate of its failure rate."""


def published_stages(nodes: int) -> tuple[float, float, float]:
    """Return HyperPod's published P90 seconds to detect, replace and resume, of the nearest size."""
    size = min(TABLE_2, key=lambda table_size: abs(math.log(table_size / nodes)))
    detect, replace, resume, _ = TABLE_2[size]
    return float(detect), float(replace), float(resume)


def _manual_strategy(request: FleetRequest, _group: ForecastGroup, _rate: float) -> RecoveryStrategy:
    cause, replace, resume, _ = (60 * minutes for minutes in TABLE_3["without HyperPod"])
    return RecoveryStrategy("manual", cause, replace, resume, replace, 0, _present_interval(request))


def _hyperpod_strategy(request: FleetRequest, group: ForecastGroup, _rate: float) -> RecoveryStrategy:
    detect, replace, resume = published_stages(group.job_size)
    replace = replace if group.replace_seconds is None else group.replace_seconds
    return RecoveryStrategy("hyperpod-unchanged", detect, replace, resume, replace, 0, _present_interval(request))


def _configured_strategy(request: FleetRequest, group: ForecastGroup, rate: float) -> RecoveryStrategy:
    strategy = _with_stated_times(_hyperpod_strategy(request, group, rate), request.configured, group)
    return strategy._replace(name="evenkeel-configured", spares=group.spares)


def _possible_strategy(request: FleetRequest, group: ForecastGroup, rate: float) -> RecoveryStrategy:
    """Return the strategy with faster stages, the best interval and the cheapest number of spares."""
    strategy = _with_stated_times(_with_faster_detection(request, group, rate), request.possible, group)
    strategy = _with_best_interval(request, group, rate, strategy)._replace(name="evenkeel-possible")
    return _with_best_spares(request, group, rate, strategy)


def _present_interval(request: FleetRequest) -> float | None:
    return request.checkpoint.interval_seconds if request.checkpoint else None


def _with_stated_times(strategy: RecoveryStrategy, times: RecoveryTimes, group: ForecastGroup) -> RecoveryStrategy:
    """Return a strategy with the stated stages. The replacement time of the group itself takes precedence."""
    stated_times = {
        name: value
        for name in ("detect_seconds", "replace_seconds", "resume_seconds", "lead_seconds")
        if (value := getattr(times, name)) is not None
    }
    if group.replace_seconds is not None:
        stated_times["replace_seconds"] = group.replace_seconds
    if "replace_seconds" in stated_times:
        stated_times.setdefault("lead_seconds", stated_times["replace_seconds"])
    return strategy._replace(**stated_times)


def _with_faster_detection(request: FleetRequest, group: ForecastGroup, rate: float) -> RecoveryStrategy:
    strategy, stated_seconds = _configured_strategy(request, group, rate), request.possible.detect_seconds
    fastest_seconds = (
        min(strategy.detect_seconds, POSSIBLE_DETECT_SECONDS) if stated_seconds is None else stated_seconds
    )
    return strategy._replace(detect_seconds=fastest_seconds)


def _with_best_interval(
    request: FleetRequest, group: ForecastGroup, rate: float, strategy: RecoveryStrategy
) -> RecoveryStrategy:
    if request.checkpoint is None or not rate:
        return strategy
    mtbf = 3600 / (group.job_size * rate)
    return strategy._replace(interval_seconds=checkpoint_interval.best_seconds(request.checkpoint.write_seconds, mtbf))


def _with_best_spares(
    request: FleetRequest, group: ForecastGroup, rate: float, strategy: RecoveryStrategy
) -> RecoveryStrategy:
    """Return a strategy with the number of spares that costs the fewest GPU-hours, lost and spare together."""
    if not group.market.keeps_spares:
        return strategy._replace(spares=0)

    def cost(count: int) -> float:
        row = forecast_month(request, group, strategy._replace(spares=count), "estimate", rate)
        return (row.lost_gpu_hours_per_month or 0.0) + row.spare_gpu_hours_per_month

    # Past the mean number of open orders, each further spare helps less than the one before.
    count = math.ceil(group.nodes * rate * strategy.lead_seconds / 3600)
    if count > _MAX_OPEN_ORDERS:
        raise WrongFigure(
            f"group {group.name}", f"would have {count_of(count, 'node')} on order at any time; check its rate"
        )
    while cost(count + 1) < cost(count):
        count += 1
    return strategy._replace(spares=min(range(count + 1), key=cost))


_STRATEGIES: dict[str, StrategyOf] = {
    "manual": _manual_strategy,
    "hyperpod-unchanged": _hyperpod_strategy,
    "evenkeel-configured": _configured_strategy,
    "evenkeel-possible": _possible_strategy,
}


# ---------------------------------------------------------------- a month


def _strategy_months(request: FleetRequest, strategy_of: StrategyOf) -> list[GroupForecast]:
    rows = []
    for group in request.groups:
        rate = group.rate(request.confidence)
        # The estimate decides the strategy for all ends, because a fleet chooses before it knows the true rate.
        strategy = strategy_of(request, group, rate.failures_per_node_hour if rate else 0.0)
        for end, value in zip(ENDS, rate.interval if rate else (None, None, None), strict=True):
            rows.append(forecast_month(request, group, strategy, end, value))
    return rows


def forecast_month(
    request: FleetRequest, group: ForecastGroup, strategy: RecoveryStrategy, end: str, rate: float | None
) -> GroupForecast:
    """Forecast one month of one group at one failure rate.

    Args:
        request: The fleet.
        group: The group.
        strategy: The recovery strategy.
        end: Name of the end of the rate.
        rate: Failures per node-hour; None if unknown.
    """
    hours, gpus = request.hours_per_month, group.nodes * group.gpus_per_node
    spare_hours = float(strategy.spares * group.gpus_per_node * hours)
    if rate is None:
        return _forecast_without_rate(strategy, group, end, spare_hours)
    per_hour = group.job_size * rate
    no_spare_share = spares.no_spare_probability(strategy.spares, group.nodes * rate, strategy.lead_seconds / 3600)
    downtime_seconds = strategy.detect_seconds + strategy.resume_seconds + no_spare_share * strategy.replace_seconds
    slowdown = time_factor(per_hour, downtime_seconds / 3600, request.downtime_model)
    lost_work = _lost_work_factor(request, strategy, per_hour)
    running_share = 1 / slowdown
    ettr = running_share / (lost_work or 1.0)
    lost_gpu_hours = gpus * hours * (1 - ettr)
    exposed_share = running_share if request.downtime_model is DowntimeModel.RENEWAL else 1.0
    return GroupForecast(
        strategy=strategy.name,
        group=group.name,
        end=end,
        failures_per_node_hour=rate,
        failures_per_month=group.nodes * rate * hours * exposed_share,
        downtime_seconds_per_failure=downtime_seconds,
        ends=ettr > 0,
        ettr=ettr,
        downtime_hours_per_month=hours * (1 - running_share),
        lost_work_hours_per_month=None if lost_work is None else hours * running_share * (1 - 1 / lost_work),
        lost_gpu_hours_per_month=lost_gpu_hours,
        spare_gpu_hours_per_month=spare_hours,
        usd_per_month=None
        if group.usd_per_gpu_hour is None
        else group.usd_per_gpu_hour * (lost_gpu_hours + spare_hours),
    )


def _lost_work_factor(request: FleetRequest, strategy: RecoveryStrategy, per_hour: float) -> float | None:
    """Return the running time over the productive time; None without a checkpoint interval."""
    if request.checkpoint is None or strategy.interval_seconds is None:
        return None
    if not per_hour:
        return 1 + request.checkpoint.write_seconds / strategy.interval_seconds
    ettr = checkpoint_interval.exact_ettr(
        strategy.interval_seconds, request.checkpoint.write_seconds, 0.0, 3600 / per_hour
    )
    return 1 / ettr if ettr else math.inf


def _forecast_without_rate(
    strategy: RecoveryStrategy, group: ForecastGroup, end: str, spare_hours: float
) -> GroupForecast:
    return GroupForecast(
        strategy=strategy.name,
        group=group.name,
        end=end,
        failures_per_node_hour=None,
        failures_per_month=None,
        downtime_seconds_per_failure=None,
        ends=None,
        ettr=None,
        downtime_hours_per_month=None,
        lost_work_hours_per_month=None,
        lost_gpu_hours_per_month=None,
        spare_gpu_hours_per_month=spare_hours,
        usd_per_month=None,
    )


def _sum_over_groups(rows: Iterable[GroupForecast], end: str, field: str) -> float | None:
    """Return the sum over the groups at one end; None if one value is unknown."""
    values = [getattr(row, field) for row in rows if row.end == end]
    return None if None in values else math.fsum(values)


def _fleet_total(name: str, rows: list[GroupForecast]) -> FleetTotal:
    fields = ("failures_per_month", "lost_gpu_hours_per_month", "usd_per_month")
    sums = {
        f"{'' if end == 'estimate' else f'{end}_'}{field}": _sum_over_groups(rows, end, field)
        for end in ENDS
        for field in fields
    }
    return FleetTotal(strategy=name, **sums)


# ---------------------------------------------------------------- changes


def _values_of_changes(request: FleetRequest, strategies: dict[str, list[GroupForecast]]) -> Iterator[ChangeValue]:
    """Yield each change of the configured strategy alone, then all together."""
    configured_forecasts, hyperpod = strategies["evenkeel-configured"], strategies["hyperpod-unchanged"]
    for text, strategy_of in _CHANGES.items():
        yield _value_of_change(text, configured_forecasts, _strategy_months(request, strategy_of))
    yield _value_of_change("all of evenkeel-possible", configured_forecasts, strategies["evenkeel-possible"])
    yield _value_of_change("evenkeel-configured instead of hyperpod-unchanged", hyperpod, configured_forecasts)


def _value_of_change(
    text: str, forecasts_before: list[GroupForecast], forecasts_after: list[GroupForecast]
) -> ChangeValue:
    usd = [_saved_amount(forecasts_before, forecasts_after, end, "usd_per_month") for end in ENDS]
    return ChangeValue(
        change=text,
        low_saved_usd_per_month=usd[0],
        saved_usd_per_month=usd[1],
        high_saved_usd_per_month=usd[2],
        saved_gpu_hours_per_month=_saved_amount(
            forecasts_before, forecasts_after, "estimate", "lost_gpu_hours_per_month"
        ),
    )


def _saved_amount(
    forecasts_before: list[GroupForecast], forecasts_after: list[GroupForecast], end: str, field: str
) -> float | None:
    sum_before, sum_after = (
        _sum_over_groups(forecasts_before, end, field),
        _sum_over_groups(forecasts_after, end, field),
    )
    return None if sum_before is None or sum_after is None else sum_before - sum_after


def _with_one_more_spare(request: FleetRequest, group: ForecastGroup, rate: float) -> RecoveryStrategy:
    strategy = _configured_strategy(request, group, rate)
    return strategy._replace(spares=strategy.spares + group.market.keeps_spares)


def _with_cheapest_spares(request: FleetRequest, group: ForecastGroup, rate: float) -> RecoveryStrategy:
    return _with_best_spares(request, group, rate, _configured_strategy(request, group, rate))


def _with_cheapest_interval(request: FleetRequest, group: ForecastGroup, rate: float) -> RecoveryStrategy:
    return _with_best_interval(request, group, rate, _configured_strategy(request, group, rate))


def _with_half_interval(request: FleetRequest, group: ForecastGroup, rate: float) -> RecoveryStrategy:
    strategy = _configured_strategy(request, group, rate)
    return strategy._replace(interval_seconds=strategy.interval_seconds and strategy.interval_seconds / 2)


_CHANGES: dict[str, StrategyOf] = {
    "one more spare node in each committed group": _with_one_more_spare,
    "the cheapest number of spare nodes": _with_cheapest_spares,
    "half the checkpoint interval": _with_half_interval,
    "the best checkpoint interval": _with_cheapest_interval,
    "faster detection, as in evenkeel-possible": _with_faster_detection,
}


# ---------------------------------------------------------------- assumptions


def _list_assumptions(request: FleetRequest) -> Iterator[str]:
    """Yield the assumptions behind the figures, as sentences."""
    yield f"A month has {request.hours_per_month:g} h, and every node of a group runs a job all the time."
    yield "Failures are independent, and their rate is constant. Any node stops its whole job."
    yield f"Downtime counts in the form {request.downtime_model}."
    yield "Failures stop committed and on-demand nodes alike. A GPU-hour without progress costs its price in both."
    yield "manual: 600 s to find the cause, 14,400 s to replace, 1,800 s to resume (AWS article); no spares."
    yield "hyperpod-unchanged: the sum of the article's P90 stages of the nearest size; no spares. P90s are not means."
    yield "evenkeel-configured: the spares of each group and the stages that the file states, otherwise HyperPod's."
    stated_seconds = request.possible.detect_seconds
    detection = f"{POSSIBLE_DETECT_SECONDS:g} s at most" if stated_seconds is None else f"{stated_seconds:g} s"
    yield (
        f"evenkeel-possible: detection in {detection}, the best checkpoint interval and the cheapest number of spares."
        " The resume stays as configured unless the file states another."
    )
    if request.checkpoint is None:
        yield "The checkpoint interval is unknown, so repeated steps and saves are not counted. The costs are too low."
    else:
        yield "A job repeats its work since the last checkpoint. It saves at a constant interval, and a save blocks it."
    for group in request.groups:
        yield from _list_group_assumptions(group, group.rate(request.confidence), request.confidence)


def _list_group_assumptions(group: ForecastGroup, rate: FailureRate | None, confidence: float) -> Iterator[str]:
    jobs = group.nodes / group.job_size
    yield f"Group {group.name}: jobs of {count_of(group.job_size, 'node')} ({jobs:g} in all), {group.market}."
    if rate is None:
        yield f"Group {group.name}: no failures and node-hours are known, so its figures and all totals are unknown."
    elif rate.failures is None:
        yield f"Group {group.name}: its failure rate is stated, not observed."
        if None in rate.interval:
            yield f"Group {group.name}: an end of its rate is unknown, and so are the figures at that end."
    else:
        failures = count_of(rate.failures, "failure")
        only_high = "" if rate.failures else " Without a failure, only the high end is an estimate."
        yield f"Group {group.name}: {failures}, with the exact interval of {100 * confidence:g} %.{only_high}"
    if group.usd_per_gpu_hour is None:
        yield f"Group {group.name}: usdPerGpuHour is missing, so its dollars and all totals in dollars are unknown."
