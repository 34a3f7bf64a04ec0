"""The sums of money that scenarios check: a wrong amount fails the check."""

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from evenkeel_local.scenarios import CostMeter, expected_cost_usd, has_expected_cost

Json = dict[str, Any]


def an_offer(seconds: str, **changes: Any) -> Json:
    facts = {
        "pool": "burst-spot",
        "joinedNodes": 1,
        "openedAt": "2026-11-03T10:00:00.000000Z",
        "closedAt": f"2026-11-03T10:{seconds}Z",
    }
    return facts | changes


def a_rental(*offers: Json, cost: str | None = None) -> Json:
    return {"offers": list(offers), "costUsd": cost}


@pytest.mark.parametrize(
    ("offers", "usd"),
    [
        ([an_offer("01:21.000000")], "0.495000"),
        ([an_offer("01:20.000001")], "0.495000"),
        ([an_offer("00:10.000000")], "0.366667"),
        ([an_offer("01:21.000000", joinedNodes=2)], "0.990000"),
        ([an_offer("05:00.000000", joinedNodes=0), an_offer("01:30.000000", pool="burst-on-demand")], "1.376000"),
        ([], "0.000000"),
    ],
    ids=["whole seconds", "a begun second", "a minute at least", "each node", "what never came is free", "nothing"],
)
def test_expected_rent_is_price_times_started_seconds_times_nodes(offers: list[Json], usd: str) -> None:
    assert has_expected_cost(a_rental(*offers, cost=usd))
    assert f"{expected_cost_usd(a_rental(*offers)):.6f}" == usd


@pytest.mark.parametrize("cost", ["0.495001", "0.494999", "0.00", None])
def test_rent_that_differs_by_a_micro_dollar_is_reported(cost: str | None) -> None:
    assert not has_expected_cost(a_rental(an_offer("01:21.000000"), cost=cost))


def a_data_centre(*claims: Json) -> Any:
    return SimpleNamespace(cluster=SimpleNamespace(get=lambda _path: {"items": list(claims)}))


def a_node_claim(name: str, pool: str, *, is_launched: bool = True) -> Json:
    labels = {"karpenter.sh/nodepool": pool}
    status = {"providerID": f"aws:///us-west-2a/{name}"} if is_launched else {}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def test_cost_meter_keeps_the_highest_hourly_rate_of_launched_nodes() -> None:
    meter = CostMeter()
    spot, on_demand = a_node_claim("one", "burst-spot"), a_node_claim("two", "burst-on-demand")

    for claims in (
        [spot],
        [spot, on_demand, a_node_claim("three", "burst-on-demand", is_launched=False)],
        [on_demand],
        [],
    ):
        meter.read(a_data_centre(*claims))

    assert meter.max_micros_per_hour == 22_000_000 + 55_040_000
    assert meter.min_usd() == Decimal(0)  # less than a second has passed
