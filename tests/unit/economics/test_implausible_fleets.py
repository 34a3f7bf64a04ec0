"""Implausible figures of a forecast: an error names the field, and no figure is infinite."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.domain.economics.figure_checks import WrongFigure
from evenkeel.domain.economics.fleet_forecast import forecast_fleet
from evenkeel.domain.economics.fleet_request import FleetRequest
from evenkeel.domain.values import Value
from tests.unit.economics.test_fleet_forecast import a_group

Json = dict[str, Any]
EXTREMES = st.sampled_from([0, 1e-323, 1e-300, 1e-12, 1e-6, 0.001, 0.5, 0.999999, 1, 7, 1024, 1e6, 31_536_000, 1e300])
FIGURES = st.sampled_from(
    [
        *("nodes", "gpusPerNode", "usdPerGpuHour", "jobNodes", "failures", "nodeHours", "spares", "replaceSeconds"),
        *("failuresPerNodeHour", "lowFailuresPerNodeHour", "highFailuresPerNodeHour"),
    ]
)


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"usdPerGpuHour": 1e308}, "groups[0].usdPerGpuHour", "must be at most 1000000, not"),
        ({"failuresPerNodeHour": 1e-300}, "groups[0].failuresPerNodeHour", "must be 0 or at least 1e-12, not 1e-300"),
        ({"failures": 10**400, "nodeHours": 9}, "groups[0].failures", "must be at most 10000000, not"),
        ({"failures": 4, "nodeHours": 2, "failuresPerNodeHour": None}, "groups[0]", "has failures 4, more than its"),
        ({"nodes": math.nan}, "groups[0].nodes", "must be a finite number, not nan"),
        ({"usdPerGpuHour": math.inf}, "groups[0].usdPerGpuHour", "must be a finite number, not inf"),
    ],
)
def test_implausible_figure_names_its_field(changes: Json, field: str, problem: str) -> None:
    with pytest.raises(WrongFigure) as refused:
        FleetRequest.read({"groups": [a_group(**changes)]})

    assert refused.value.field == field
    assert refused.value.problem.startswith(problem)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(FIGURES, EXTREMES, max_size=6),
    st.sampled_from(["renewal", "parallel", "restart", "serial"]),
    st.none() | st.tuples(EXTREMES, EXTREMES),
)
def test_extreme_figures_give_finite_figures_or_an_error(
    changes: Json, model: str, checkpoint: tuple[float, float] | None
) -> None:
    document: Json = {"groups": [a_group(**changes)], "downtimeModel": model}
    if checkpoint:
        document["checkpoint"] = dict(zip(("intervalSeconds", "writeSeconds"), checkpoint, strict=True))
    rows: list[Value] = []
    field = "groups"
    try:
        fleet_forecast = forecast_fleet(FleetRequest.read(document))
        rows = [*fleet_forecast.totals, *fleet_forecast.changes, *fleet_forecast.groups]
    except WrongFigure as error:
        field = error.field

    assert field.startswith(("groups", "checkpoint", "group p5"))
    assert all(math.isfinite(value) for row in rows for value in dict(row).values() if isinstance(value, float))
