"""Warnings about a site's prices and instance types: far from AWS's list, contradictory, or unknown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from evenkeel.domain.capacity.capacity_policy import SiteInstanceType
from evenkeel.domain.capacity.instance_types import InstanceType, shipped_instance_types
from evenkeel.domain.capacity.list_prices import shipped_prices
from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.economics import money
from evenkeel.domain.economics.economy_policy import NEW_TYPE, EconomyPolicy, SitePrice, list_accelerator_price
from evenkeel.domain.name_suggestions import unknown_name
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Value

_MAX_LIST_DIFFERENCE = 0.5
"""Largest plausible difference from the list price, as a share: a discount is rarely larger."""
_MAX_NODE_DIFFERENCE = 0.05
"""Largest plausible difference between two prices of one node, as a share."""


class PolicyWarning(Value):
    """A value that is valid and probably a mistake."""

    field: str
    """Path in the policy, such as `burst.pools[0].microsPerNodeHour`."""
    message: str


def price_warnings(economy: EconomyPolicy, pools: Sequence[Pool], at: datetime) -> tuple[PolicyWarning, ...]:
    """Return warnings about prices that are more than 50 % off the list price, or contradict each other.

    Args:
        economy: The site's prices.
        pools: The pools to rent from, with their own prices of a node.
        at: Undated prices are compared with the list price of this time.
    """
    problems = [*_check_site_prices(economy, at), *_check_pool_prices(economy, pools, at)]
    return tuple(PolicyWarning(field=field, message=message) for field, message in problems)


def type_warnings(
    types: Mapping[str, SiteInstanceType], economy: EconomyPolicy, pools: Sequence[Pool], at: datetime
) -> tuple[PolicyWarning, ...]:
    """Return warnings about instance types: in the shipped catalogue too, without a price, or not described at all.

    Args:
        types: The section `instanceTypes`.
        economy: The site's prices.
        pools: The pools to rent from.
        at: The time of the prices.
    """
    problems = []
    for name, site_type in types.items():
        field, shipped_type = f"instanceTypes.{name}", shipped_instance_types().find(name)
        if shipped_type == site_type.to_instance_type:
            problems.append((field, "the shipped catalogue has this type now; remove it"))
        elif shipped_type is not None:
            differs = _differing_fields(site_type.to_instance_type, shipped_type)
            problems.append((field, f"replaces the type of the shipped catalogue, which differs in {differs}"))
        if site_type.to_instance_type.accelerators and economy.price_of(name, at) is None:
            problems.append((field, "has no list price, so its time has no price; state one in economy.prices"))
    for index, pool in enumerate(pools):
        if economy.types.find(pool.instance_type) is None:
            message = unknown_name("instance type", pool.instance_type, economy.types.types)
            problems.append((f"burst.pools[{index}].instanceType", f"{message} {NEW_TYPE}"))
    return tuple(PolicyWarning(field=field, message=message) for field, message in problems)


def _differing_fields(one_type: InstanceType, other_type: InstanceType) -> str:
    first_fields, other_fields = one_type.to_json(), other_type.to_json()
    return ", ".join(
        sorted(
            name
            for name in first_fields.keys() | other_fields.keys()
            if first_fields.get(name) != other_fields.get(name)
        )
    )


def _check_site_prices(economy: EconomyPolicy, at: datetime) -> Iterator[tuple[str, str]]:
    for index, price in enumerate(economy.prices):
        field = f"economy.prices[{index}]"
        if price.percent_off_list is not None and price.percent_off_list > 100 * _MAX_LIST_DIFFERENCE:
            yield (
                f"{field}.percentOffList",
                f"{price.percent_off_list:g} % off the list price is more than {100 * _MAX_LIST_DIFFERENCE:g} %",
            )
        elif price.usd_per_node_hour is not None:
            yield from _check_node_price(
                f"{field}.usdPerNodeHour", price.usd_per_node_hour, price.instance_type, _first_instant(price)
            )
    for name, usd in economy.usd_per_accelerator_hour.items():
        yield from _check_accelerator_price(f"economy.usdPerAcceleratorHour.{name}", usd, name, at)


def _check_pool_prices(economy: EconomyPolicy, pools: Iterable[Pool], at: datetime) -> Iterator[tuple[str, str]]:
    for index, pool in enumerate(pools):
        field, name = f"burst.pools[{index}]", pool.instance_type
        usd, instance_type = pool.micros_per_node_hour / money.MICROS_PER_USD, economy.types.find(name)
        if instance_type and instance_type.accelerators != pool.accelerators_per_node:
            text = f"{name} has {count_of(instance_type.accelerators, 'accelerator')}, not {pool.accelerators_per_node}"
            yield f"{field}.acceleratorsPerNode", text
        if pool.market.is_discounted:
            list_price = shipped_prices().price_of(name, at)
            if list_price and usd > list_price.usd_per_node_hour:
                list_usd = list_price.usd_per_node_hour
                text = f"${usd:,.2f} for {pool.market} is above the {list_price.origin}, ${list_usd:,.2f}"
                yield f"{field}.microsPerNodeHour", text
            continue
        yield from _check_node_price(f"{field}.microsPerNodeHour", usd, name, at)
        price = economy.price_of(name, at, pool.name)
        unit_price = usd / pool.accelerators_per_node if pool.accelerators_per_node else 0
        # A price that comes from the list itself was compared above.
        if (
            price
            and price != list_accelerator_price(name, at)
            and abs(unit_price / price.usd - 1 if price.usd else 1) > _MAX_NODE_DIFFERENCE
        ):
            text = f"${usd:,.2f} for a node is ${unit_price:,.2f} for an accelerator"
            yield f"{field}.microsPerNodeHour", f"{text}, but the {price.origin} is ${price.usd:,.2f}"


def _check_node_price(field: str, usd_per_node: float, instance_type: str, at: datetime) -> Iterator[tuple[str, str]]:
    list_price = shipped_prices().price_of(instance_type, at)
    if list_price:
        yield from _compare_with_list(field, usd_per_node, list_price.usd_per_node_hour, list_price.origin)


def _check_accelerator_price(field: str, usd: float, instance_type: str, at: datetime) -> Iterator[tuple[str, str]]:
    list_price = list_accelerator_price(instance_type, at)
    if list_price:
        yield from _compare_with_list(field, usd, list_price.usd, f"{list_price.origin} for each accelerator")


def _compare_with_list(field: str, usd: float, list_usd: float, origin: str) -> Iterator[tuple[str, str]]:
    difference = usd / list_usd - 1
    if abs(difference) > _MAX_LIST_DIFFERENCE:
        side = "above" if difference > 0 else "below"
        yield field, f"${usd:,.2f} is {100 * abs(difference):.0f} % {side} the {origin}, ${list_usd:,.2f}"


def _first_instant(price: SitePrice) -> datetime:
    return datetime(price.starts_on.year, price.starts_on.month, price.starts_on.day, tzinfo=UTC)
