"""Prices of accelerator time: list prices, dated prices of the site, and types without a price."""

from datetime import UTC, date, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.capacity.instance_types import shipped_instance_types
from evenkeel.domain.capacity.list_prices import DatedPrice, ListPrices, PriceSource, price_in_force, shipped_prices
from evenkeel.domain.capacity.pools import LaunchDelay, Market, Pool
from evenkeel.domain.economics.economy_policy import EconomyPolicy, SitePrice
from evenkeel.domain.economics.price_checks import price_warnings, type_warnings
from evenkeel.domain.policy import Policy, PolicyError, changed

NOW = datetime(2026, 11, 3, 10, tzinfo=UTC)
P5, G6 = "ml.p5.48xlarge", "g6.12xlarge"


def a_price(**changes: Any) -> dict[str, Any]:
    return {"instanceType": P5, "basis": "commitment", "from": "2026-09-01", "usdPerNodeHour": 32} | changes


def usd_per_gpu_hour(
    instance_type: str, *prices: dict[str, Any], at: datetime = NOW, pool: str = "", **policy: Any
) -> float | None:
    economy = EconomyPolicy.model_validate({"prices": prices} | policy)
    accelerator_price = economy.price_of(instance_type, at, pool)
    return accelerator_price.usd if accelerator_price else None


def test_default_price_is_the_list_price_with_its_origin() -> None:
    accelerator_price = EconomyPolicy().price_of(G6, NOW)

    assert accelerator_price == (1.1504, "EC2 list price of g6.12xlarge in us-east-1 from 2026-07-20")
    assert usd_per_gpu_hour("p6-b200.48xlarge") == 14.2416


def test_hyperpod_type_has_its_own_dated_list_price() -> None:
    accelerator_price = EconomyPolicy().price_of(P5, NOW)

    assert accelerator_price == (8.256, "HyperPod list price of p5.48xlarge in us-east-1 from 2026-09-01")
    assert usd_per_gpu_hour("p5.48xlarge") == 6.88


def test_hyperpod_type_without_own_price_has_ec2_price() -> None:
    accelerator_price = EconomyPolicy().price_of("ml.p6-b200.48xlarge", NOW)

    assert accelerator_price == (14.2416, "EC2 list price of p6-b200.48xlarge in us-east-1 from 2026-07-20")


def test_first_hyperpod_price_leaves_earlier_days_unchanged() -> None:
    assert usd_per_gpu_hour(P5, at=datetime(2026, 8, 31, 23, 59, tzinfo=UTC)) == 6.88
    assert usd_per_gpu_hour(P5, at=datetime(2026, 9, 1, tzinfo=UTC)) == 8.256


@pytest.mark.parametrize("name", sorted(shipped_prices().hyperpod))
def test_hyperpod_list_price_is_up_to_half_above_ec2(name: str) -> None:
    hyperpod, ec2 = (shipped_prices().price_of(f"{prefix}{name}", NOW) for prefix in ("ml.", ""))

    assert hyperpod is not None
    assert ec2 is not None
    assert 1.1 <= hyperpod.usd_per_node_hour / ec2.usd_per_node_hour <= 1.5


def test_hyperpod_price_is_a_separate_column() -> None:
    row = (DatedPrice.model_validate({"from": "2026-01-01", "microsPerNodeHour": 2, "source": "s"}),)
    hyperpod_prices = (row[0].replace(micros_per_node_hour=3),)
    source = PriceSource(link="https://example.com", read_at=date(2026, 1, 1), description="d")
    prices = ListPrices(
        region="r", sources={"s": source}, ec2={"p5.48xlarge": row}, hyperpod={"p5.48xlarge": hyperpod_prices}
    )

    list_prices = [prices.price_of(name, NOW) for name in ("p5.48xlarge", "ml.p5.48xlarge")]

    assert [list_price and list_price.micros_per_node_hour for list_price in list_prices] == [2, 3]
    assert list_prices[1] is not None
    assert list_prices[1].origin == "HyperPod list price of p5.48xlarge in r from 2026-01-01"


@pytest.mark.parametrize("name", ["p5e.48xlarge", "ml.trn2.48xlarge", "x9.large", ""])
def test_type_without_a_list_price_has_no_price(name: str) -> None:
    assert usd_per_gpu_hour(name) is None
    assert usd_per_gpu_hour(name, otherUsdPerAcceleratorHour=5.0) == 5.0


def test_site_price_applies_from_its_date() -> None:
    prices = [a_price(), a_price(**{"from": "2026-11-01", "usdPerNodeHour": 24})]

    assert usd_per_gpu_hour(P5, *prices, at=datetime(2026, 10, 31, 23, 59, tzinfo=UTC)) == 4
    assert usd_per_gpu_hour(P5, *prices, at=datetime(2026, 11, 1, tzinfo=UTC)) == 3
    assert usd_per_gpu_hour(P5, *prices, at=datetime(2026, 8, 31, tzinfo=UTC)) == 6.88


def test_price_of_a_pool_precedes_a_later_price() -> None:
    prices = [a_price(pool="block", until="2026-11-14"), a_price(**{"from": "2026-11-01", "usdPerNodeHour": 24})]

    assert usd_per_gpu_hour(P5, *prices, pool="block") == 4
    assert usd_per_gpu_hour(P5, *prices, pool="other") == 3
    assert usd_per_gpu_hour(P5, *prices, pool="block", at=datetime(2026, 11, 15, tzinfo=UTC)) == 3


def test_dated_price_precedes_undated_prices() -> None:
    undated_prices: dict[str, Any] = {"usdPerAcceleratorHour": {P5: 1.5}}

    assert usd_per_gpu_hour(P5, a_price(), **undated_prices) == 4
    assert usd_per_gpu_hour(P5, **undated_prices) == 1.5


def test_discount_is_taken_off_the_list_price() -> None:
    discount = a_price(instanceType=G6, basis="savings-plan", usdPerNodeHour=None, percentOffList=25)

    accelerator_price = EconomyPolicy.model_validate({"prices": [discount]}).price_of(G6, NOW)

    assert accelerator_price is not None
    assert accelerator_price.usd == pytest.approx(0.8628)
    assert accelerator_price.origin == (
        "savings-plan of the site from 2026-09-01, 25 % below the "
        "EC2 list price of g6.12xlarge in us-east-1 from 2026-07-20"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"percentOffList": 10}, "state either usdPerNodeHour or percentOffList"),
        ({"usdPerNodeHour": None}, "state either usdPerNodeHour or percentOffList"),
        ({"until": "2026-08-31"}, "until must not be before from"),
        ({"instanceType": "p5e.48xlarge", "usdPerNodeHour": None, "percentOffList": 10}, "has no list price"),
        ({"usdPerNodeHour": -1}, "greater than or equal to 0"),
    ],
)
def test_invalid_site_price_is_refused_with_the_reason(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SitePrice.model_validate(a_price(**changes))


def test_new_list_price_leaves_the_price_of_earlier_days_unchanged() -> None:
    first = DatedPrice.model_validate({"from": "2026-07-20", "microsPerNodeHour": 2, "source": "s"})
    lower_price = DatedPrice.model_validate({"from": "2026-12-01", "microsPerNodeHour": 1, "source": "s"})

    days = [date(2026, 7, 1), date(2026, 11, 30), date(2026, 12, 1)]

    assert [price_in_force((lower_price, first), day) for day in days] == [first, first, lower_price]


def test_unknown_type_of_accelerator_price_is_error_with_suggestion() -> None:
    message = r"usdPerAcceleratorHour\.ml\.p5\.48xlage: There is no instance type .* Did you mean ml\.p5\.48xlarge"

    with pytest.raises(PolicyError, match=message):
        changed(Policy(), {"economy": {"usdPerAcceleratorHour": {"ml.p5.48xlage": 2}}})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ml.p5.48xlrage", r"no instance type with accelerators ml\.p5\.48xlrage.*ml\.p5\.48xlarge.*instanceTypes"),
        ("ml.c5.large", r"prices\[0\].instanceType: There is no instance type with accelerators ml.c5.large"),
    ],
)
def test_unknown_type_of_dated_price_is_error_with_suggestion(name: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        changed(Policy(), {"economy": {"prices": [a_price(instanceType=name)]}})


# ---------------------------------------------------------------- instance types that the site adds

NEW: dict[str, Any] = {
    "vcpu": 256,
    "memoryGib": 4096,
    "gpus": 16,
    "efa": 32,
    "model": "r300",
    "acceleratorMemoryMib": 400_000,
}


def with_new_type(**economy: Any) -> Policy:
    return changed(Policy(), {"instanceTypes": {"ml.p9.96xlarge": NEW}, "economy": economy})


def test_added_instance_type_uses_the_prices_of_the_site() -> None:
    policy = with_new_type(prices=[a_price(instanceType="ml.p9.96xlarge", usdPerNodeHour=160)])

    for equivalent_policy in (policy, policy.replace(name="other"), Policy.model_validate(policy.to_json())):
        price = equivalent_policy.economy.price_of("ml.p9.96xlarge", NOW)
        assert price is not None
        assert price.usd == 10
    assert policy.hash != Policy().hash


def test_added_instance_type_is_found_with_and_without_ml_prefix() -> None:
    hardware = with_new_type().hardware

    assert hardware.find("p9.96xlarge")
    assert hardware.find("p9.96xlarge") == hardware.find("ml.p9.96xlarge")
    assert hardware.find("ml.p5.48xlarge") == shipped_instance_types().find("ml.p5.48xlarge")
    assert shipped_instance_types().find("p9.96xlarge") is None


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"p9": NEW}, "instanceTypes.p9"),
        ({"p9.96xlarge": {**NEW, "gpus": -1}}, "instanceTypes.p9.96xlarge.gpus: .*must be at least 0"),
        ({"p9.96xlarge": {**NEW, "neuron": 2}}, "state either gpus or neuron"),
        ({"p9.96xlarge": {**NEW, "gpus": 0}}, "describe accelerators: state gpus or neuron"),
        ({"p9.96xlarge": {**NEW, "architecture": "x86"}}, "architecture must be amd64 or arm64"),
        ({"p9.96xlarge": {**NEW, "gpu": 8}}, "is not a known field"),
        ({"p9.96xlarge": {"gpus": 8}}, "vcpu"),
    ],
)
def test_invalid_added_instance_type_names_the_field(types: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        changed(Policy(), {"instanceTypes": types})


def test_check_warns_of_unpriced_and_catalogued_types() -> None:
    catalogued_type = shipped_instance_types().find("p5.48xlarge")
    assert catalogued_type is not None
    same_type = {name: catalogued_type.to_json()[name] for name in NEW}
    policy = changed(
        Policy(),
        {"instanceTypes": {"p9.96xlarge": NEW, "ml.p5.48xlarge": {**same_type, "gpus": 4}}},
    )

    messages = {
        warning.field: warning.message for warning in type_warnings(policy.instance_types, policy.economy, (), NOW)
    }

    no_price = "has no list price, so its time has no price; state one in economy.prices"
    assert messages["instanceTypes.p9.96xlarge"] == no_price
    assert "which differs in " in messages["instanceTypes.ml.p5.48xlarge"]


# ---------------------------------------------------------------- warnings


def warnings(*pools: Pool, **economy: Any) -> dict[str, str]:
    found_warnings = price_warnings(EconomyPolicy.model_validate(economy), pools, NOW)
    return {price_warning.field: price_warning.message for price_warning in found_warnings}


def a_pool(**changes: Any) -> Pool:
    document: dict[str, Any] = {"instance_type": G6, "accelerators_per_node": 4, "micros_per_node_hour": 4_601_600}
    delay = LaunchDelay(p50_seconds=100, p90_seconds=200)
    return Pool(
        **document | {"market": Market.ON_DEMAND} | changes,
        name="a",
        cluster="c",
        max_nodes=4,
        launch=delay,
        environment=PoolEnvironment(),
    )


def test_price_within_half_of_the_list_price_has_no_warning() -> None:
    assert warnings(a_pool(), usdPerAcceleratorHour={P5: 8.256 * 0.51}, prices=[a_price(usdPerNodeHour=36)]) == {}


@pytest.mark.parametrize(("usd_per_hour", "message"), [(12.5, r"51 % above"), (4.05, "51 % below")])
def test_price_beyond_half_of_the_list_price_has_a_warning(usd_per_hour: float, message: str) -> None:
    (warning,) = warnings(usdPerAcceleratorHour={P5: usd_per_hour}).items()

    assert warning[0] == f"economy.usdPerAcceleratorHour.{P5}"
    assert message in warning[1]
    assert "HyperPod list price of p5.48xlarge in us-east-1 from 2026-09-01" in warning[1]


def test_accelerator_price_in_place_of_node_price_has_warning() -> None:
    assert list(warnings(prices=[a_price(usdPerNodeHour=6.88)])) == ["economy.prices[0].usdPerNodeHour"]


def test_node_and_accelerator_prices_that_disagree_have_a_warning() -> None:
    messages = warnings(a_pool(), usdPerAcceleratorHour={G6: 1.0})

    assert messages == {
        "burst.pools[0].microsPerNodeHour": (
            "$4.60 for a node is $1.15 for an accelerator, but the price in the site's policy is $1.00"
        )
    }


def test_pool_accelerators_that_differ_from_type_have_warning() -> None:
    messages = warnings(a_pool(accelerators_per_node=8))

    assert messages["burst.pools[0].acceleratorsPerNode"] == "g6.12xlarge has 4 accelerators, not 8"


def test_spot_price_above_list_price_has_warning() -> None:
    assert warnings(a_pool(market=Market.SPOT, micros_per_node_hour=900_000)) == {}
    assert list(warnings(a_pool(market=Market.SPOT, micros_per_node_hour=5_000_000))) == [
        "burst.pools[0].microsPerNodeHour"
    ]


def test_type_without_a_list_price_has_no_warning() -> None:
    assert warnings(usdPerAcceleratorHour={"p5e.48xlarge": 1.0}) == {}
