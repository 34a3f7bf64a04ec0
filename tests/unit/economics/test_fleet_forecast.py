"""The forecast of a fleet: known cases, a simulated month, and unknown figures that stay unknown."""

import math
import random
from typing import Any

import pytest

from evenkeel.domain.economics.failure_rates import failure_rate
from evenkeel.domain.economics.figure_checks import WrongFigure
from evenkeel.domain.economics.fleet_forecast import FleetForecast, GroupForecast, forecast_fleet
from evenkeel.domain.economics.fleet_request import FleetRequest

Json = dict[str, Any]
RATE = {"failuresPerNodeHour": 0.0005, "lowFailuresPerNodeHour": 0.0002, "highFailuresPerNodeHour": 0.0007}
SAVES = {"intervalSeconds": 1800, "writeSeconds": 60}


def a_group(**changes: Any) -> Json:
    return {"name": "p5", "nodes": 256, "gpusPerNode": 8, "usdPerGpuHour": 5, **RATE, **changes}


def forecast(*groups: Json, **changes: Any) -> FleetForecast:
    return forecast_fleet(FleetRequest.read({"groups": list(groups), **changes}))


def row_of(forecast: FleetForecast, strategy: str, end: str = "estimate", group: str = "p5") -> GroupForecast:
    return next(
        group_forecast
        for group_forecast in forecast.groups
        if (group_forecast.strategy, group_forecast.end, group_forecast.group) == (strategy, end, group)
    )


# Without lost work: 256 nodes at 0.05 %, and 2,048 nodes at 0.0158 %.
@pytest.mark.parametrize(
    ("nodes", "rate", "manual", "hyperpod"), [(256, 0.0005, 62.6, 92.2), (2048, 419 / (2048 * 54 * 24), 39.9, 82.3)]
)
def test_published_fleets_have_their_published_training_share(
    nodes: int, rate: float, manual: float, hyperpod: float
) -> None:
    group = {"name": "p5", "nodes": nodes, "gpusPerNode": 8, "failuresPerNodeHour": rate, "replaceSeconds": None}
    stages = {"detectSeconds": 89, "replaceSeconds": 903, "resumeSeconds": 1398}
    fleet_forecast = forecast(group, configured=stages)

    shares = [100 * (row_of(fleet_forecast, strategy).ettr or 0) for strategy in ("manual", "evenkeel-configured")]
    assert shares == pytest.approx([manual, hyperpod], abs=0.06)


def test_hyperpod_unchanged_uses_the_nearest_published_size() -> None:
    fleet_forecast = forecast(a_group(nodes=200), a_group(name="small", nodes=4))

    assert row_of(fleet_forecast, "hyperpod-unchanged").downtime_seconds_per_failure == 2390
    assert row_of(fleet_forecast, "hyperpod-unchanged", group="small").downtime_seconds_per_failure == 2207


def test_monthly_forecast_agrees_with_the_simulation() -> None:
    """A job that saves, fails, waits for a spare or a node, and repeats its work."""
    stages = {"detectSeconds": 89, "replaceSeconds": 903, "resumeSeconds": 1398, "leadSeconds": 9000}
    group_forecast = row_of(forecast(a_group(spares=1), checkpoint=SAVES, configured=stages), "evenkeel-configured")
    uniform, rate, lead = random.Random(11), 256 * 0.0005 / 3600, 9000.0

    def seconds_to_next_failure() -> float:
        return -math.log(1 - uniform.random()) / rate

    # The share of failures without a free spare. Failures arrive at random times, as the formula for spares assumes.
    now, orders, missed, count = 0.0, list[float](), 0, 40_000
    for _ in range(count):
        now += seconds_to_next_failure()
        orders = [order for order in orders if order > now]
        missed += len(orders) >= 1
        orders.append(now + lead)
    trained_time = elapsed = 0.0
    for _ in range(count):
        while (up := seconds_to_next_failure()) < 1860:
            elapsed += up + 89 + 1398 + (903 if uniform.random() < missed / count else 0)
        elapsed += 1860
        trained_time += 1800

    assert group_forecast.ettr == pytest.approx(trained_time / elapsed, abs=0.005)
    assert group_forecast.lost_gpu_hours_per_month == pytest.approx(2048 * 730 * (1 - trained_time / elapsed), rel=0.04)
    assert group_forecast.usd_per_month == pytest.approx(
        5 * (2048 * 730 * (1 - trained_time / elapsed) + 8 * 730), rel=0.04
    )


def test_lost_hours_are_downtime_and_rework() -> None:
    group_forecast = row_of(forecast(a_group(), checkpoint=SAVES), "hyperpod-unchanged")

    assert group_forecast.downtime_hours_per_month is not None
    assert group_forecast.lost_work_hours_per_month is not None
    assert group_forecast.lost_gpu_hours_per_month == pytest.approx(
        2048 * (group_forecast.downtime_hours_per_month + group_forecast.lost_work_hours_per_month)
    )


def test_upper_bound_of_the_failure_rate_costs_more() -> None:
    (total,) = (total for total in forecast(a_group()).totals if total.strategy == "manual")

    low, estimate, high = total.low_usd_per_month, total.usd_per_month, total.high_usd_per_month
    assert low is not None
    assert estimate is not None
    assert high is not None
    assert low < estimate < high


def test_failure_counts_give_the_interval_of_the_failure_rate() -> None:
    group = {"name": "p5", "nodes": 4, "gpusPerNode": 8, "failures": 4, "nodeHours": 12540}
    failures_per_node_hours = [
        row_of(forecast(group), "manual", end).failures_per_node_hour for end in ("low", "estimate", "high")
    ]

    assert tuple(failures_per_node_hours) == failure_rate(4, 12540).interval


@pytest.mark.parametrize("model", ["renewal", "parallel", "restart", "serial"])
def test_possible_recovery_never_costs_more_than_configured_recovery(model: str) -> None:
    fleet_forecast = forecast(a_group(spares=5), a_group(name="b", jobNodes=8), checkpoint=SAVES, downtimeModel=model)
    usd = {total.strategy: total.usd_per_month for total in fleet_forecast.totals}

    assert usd["evenkeel-possible"] is not None
    assert usd["evenkeel-configured"] is not None
    assert usd["evenkeel-possible"] <= usd["evenkeel-configured"]


def test_savings_of_a_forecast_are_differences_of_its_totals() -> None:
    fleet_forecast = forecast(a_group(), checkpoint=SAVES)
    usd = {total.strategy: total.usd_per_month for total in fleet_forecast.totals}
    saved = {change.change: change.saved_usd_per_month for change in fleet_forecast.changes}

    assert saved["evenkeel-configured instead of hyperpod-unchanged"] == 0
    configured, possible = usd["evenkeel-configured"], usd["evenkeel-possible"]
    assert configured is not None
    assert possible is not None
    assert saved["all of evenkeel-possible"] == pytest.approx(configured - possible)
    with_spare = row_of(forecast(a_group(spares=1), checkpoint=SAVES), "evenkeel-configured").usd_per_month
    assert with_spare is not None
    assert saved["one more spare node in each committed group"] == pytest.approx(configured - with_spare)


def test_forecast_of_on_demand_nodes_includes_failures_but_no_spares() -> None:
    group_forecast = row_of(forecast(a_group(market="on-demand", replaceSeconds=400)), "evenkeel-possible")

    assert group_forecast.spare_gpu_hours_per_month == 0
    assert group_forecast.failures_per_month is not None
    assert group_forecast.failures_per_month > 50


def test_missing_price_leaves_dollars_unknown() -> None:
    fleet_forecast = forecast(a_group(), a_group(name="b", usdPerGpuHour=None))

    assert {total.usd_per_month for total in fleet_forecast.totals} == {None}
    assert all(total.lost_gpu_hours_per_month for total in fleet_forecast.totals)
    assert any("usdPerGpuHour is missing" in assumption for assumption in fleet_forecast.assumptions)


def test_group_without_data_leaves_totals_unknown() -> None:
    fleet_forecast = forecast(a_group(), {"name": "new", "nodes": 4, "gpusPerNode": 8})

    assert {(total.failures_per_month, total.usd_per_month) for total in fleet_forecast.totals} == {(None, None)}
    assert row_of(fleet_forecast, "manual").failures_per_month
    assert any(
        assumption.startswith("Group new: no failures and node-hours are known")
        for assumption in fleet_forecast.assumptions
    )


def test_forecast_without_failure_rate_bounds_has_no_cost_bounds() -> None:
    fleet_forecast = forecast(a_group(lowFailuresPerNodeHour=None, highFailuresPerNodeHour=None))

    assert [total.low_usd_per_month for total in fleet_forecast.totals] == [None] * 4
    assert all(total.usd_per_month for total in fleet_forecast.totals)


def test_fleet_whose_serial_recovery_never_ends_loses_all_time() -> None:
    group_forecast = row_of(forecast(a_group(nodes=512), downtimeModel="serial"), "manual")

    assert (group_forecast.ends, group_forecast.ettr, group_forecast.lost_gpu_hours_per_month) == (
        False,
        0,
        512 * 8 * 730,
    )


def test_fleet_without_failures_only_pays_for_saves() -> None:
    group = a_group(failuresPerNodeHour=0, lowFailuresPerNodeHour=0, highFailuresPerNodeHour=0)
    group_forecast = row_of(forecast(group, checkpoint=SAVES), "evenkeel-configured")

    assert group_forecast.downtime_hours_per_month == 0
    assert group_forecast.ettr == pytest.approx(1800 / 1860)
    assert row_of(forecast(group), "manual").ettr == 1


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"nodes": 0}, "groups[0].nodes", "must be at least 1, not 0"),
        ({"failuresPerNodeHour": -1}, "groups[0].failuresPerNodeHour", "must be at least 0, not -1"),
        ({"usdPerGpuHour": "five"}, "groups[0].usdPerGpuHour", "must be a number, not 'five'"),
        ({"nodes": True}, "groups[0].nodes", "must be a number, not a boolean"),
        ({"failures": 3}, "groups[0]", "needs failures and nodeHours together"),
        ({"failures": 3, "nodeHours": 0}, "groups[0].nodeHours", "must be at least 1, not 0"),
        ({"failures": 3, "nodeHours": 9}, "groups[0]", "has failures and failuresPerNodeHour; give only one of them"),
        ({"jobNodes": 300}, "groups[0]", "has jobNodes 300, but only 256 nodes"),
        ({"highFailuresPerNodeHour": 0.0001}, "groups[0]", "needs lowFailuresPerNodeHour <="),
        ({"market": "on-demand", "spares": 1}, "groups[0]", "has spares, but a group of rented nodes keeps none"),
        ({"market": "spot"}, "groups[0].market", "must be 'committed' or 'on-demand', not 'spot'"),
        ({"price": 1}, "groups[0].price", "is not a known field"),
    ],
)
def test_wrong_group_names_its_field(changes: Json, field: str, problem: str) -> None:
    with pytest.raises(WrongFigure) as error_info:
        forecast(a_group(**changes))

    assert error_info.value.field == field
    assert error_info.value.problem.startswith(problem)


def test_two_groups_of_one_name_are_refused() -> None:
    with pytest.raises(WrongFigure, match="groups must have different names, but has p5 twice"):
        forecast(a_group(), a_group())


def test_file_without_groups_is_refused_in_plain_words() -> None:
    with pytest.raises(WrongFigure, match=r"^groups must have at least 1 item$"):
        FleetRequest.read({"groups": []})


def test_no_observed_failure_leaves_only_the_high_end_as_estimate() -> None:
    counted = {"failures": 0, "nodeHours": 184_320, "failuresPerNodeHour": None}
    ends = dict.fromkeys(("lowFailuresPerNodeHour", "highFailuresPerNodeHour"))

    fleet_forecast = forecast(a_group(**counted, **ends))

    assert any("only the high end is an estimate" in text for text in fleet_forecast.assumptions)
    assert [total.failures_per_month for total in fleet_forecast.totals] == [0, 0, 0, 0]
    assert all((total.high_failures_per_month or 0) > 3 for total in fleet_forecast.totals)


def test_impossible_failure_rate_is_refused_before_a_long_computation() -> None:
    with pytest.raises(WrongFigure, match="nodes on order at any time"):
        forecast(a_group(nodes=1_000_000, failuresPerNodeHour=1, highFailuresPerNodeHour=1))
