"""Warnings about a site's prices and instance types: far from AWS's list, contradictory, or unknown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from evenkeel.domain.capacity.capacity_policy import SiteInstanceType
from evenkeel.domain.capacity.instance_types import InstanceType, shipped_instance_types
from evenkeel.domain.capacity.list_prices import shipped_prices
from evenkeel.domain.capacity.pools import Market, Pool
from evenkeel.domain.economics import money
from evenkeel.domain.economics.economy_policy import NEW_TYPE, EconomyPolicy, SitePrice, list_price_of
from evenkeel.domain.names import unknown_name
from evenkeel.domain.values import Value
from evenkeel.domain.words import count_of

_FAR = 0.5
"""A price differs from the list price by more than this share: a discount is rarely so large."""
_DISAGREE = 0.05
"""Two prices of one node differ by more than this share."""


class PolicyWarning(Value):
    """A value that is valid and probably a mistake."""

    field: str
    """Path in the policy, such as `burst.pools[0].microsPerNodeHour`."""
    message: str


def price_warnings(economy: EconomyPolicy, pools: Sequence[Pool], at: datetime) -> tuple[PolicyWarning, ...]:
    """Return the prices that differ from the list price by more than 50 %, and prices of one node that disagree.

    Args:
        economy: The site's prices.
        pools: The pools to rent from, with their own prices of a node.
        at: Undated prices are compared with the list price of this time.
    """
    problems = [*_site_prices(economy, at), *_pool_prices(economy, pools, at)]
    return tuple(PolicyWarning(field=field, message=message) for field, message in problems)


def type_warnings(
    types: Mapping[str, SiteInstanceType], economy: EconomyPolicy, pools: Sequence[Pool], at: datetime
) -> tuple[PolicyWarning, ...]:
    """Return the instance types that are stated twice, that have no price, or that no part of the policy describes.

    Args:
        types: The section `instanceTypes`.
        economy: The site's prices.
        pools: The pools to rent from.
        at: The time of the prices.
    """
    problems = []
    for name, stated in types.items():
        field, listed = f"instanceTypes.{name}", shipped_instance_types().find(name)
        if listed == stated.to_instance_type:
            problems.append((field, "the shipped catalogue has this type now; remove it"))
        elif listed is not None:
            differs = _fields(stated.to_instance_type, listed)
            problems.append((field, f"replaces the type of the shipped catalogue, which differs in {differs}"))
        if stated.to_instance_type.accelerators and economy.price_of(name, at) is None:
            problems.append((field, "has no list price, so its time has no price; state one in economy.prices"))
    for index, pool in enumerate(pools):
        if economy.types.find(pool.instance_type) is None:
            message = unknown_name("instance type", pool.instance_type, economy.types.types)
            problems.append((f"burst.pools[{index}].instanceType", f"{message} {NEW_TYPE}"))
    return tuple(PolicyWarning(field=field, message=message) for field, message in problems)


def _fields(first: InstanceType, other: InstanceType) -> str:
    here, later_fields = first.to_json(), other.to_json()
    return ", ".join(
        sorted(name for name in here.keys() | later_fields.keys() if here.get(name) != later_fields.get(name))
    )


def _site_prices(economy: EconomyPolicy, at: datetime) -> Iterator[tuple[str, str]]:
    for index, price in enumerate(economy.prices):
        field = f"economy.prices[{index}]"
        if price.percent_off_list is not None and price.percent_off_list > 100 * _FAR:
            yield (
                f"{field}.percentOffList",
                f"{price.percent_off_list:g} % off the list price is more than {100 * _FAR:g} %",
            )
        elif price.usd_per_node_hour is not None:
            yield from _far(f"{field}.usdPerNodeHour", price.usd_per_node_hour, price.instance_type, _start(price))
    for name, usd in economy.usd_per_accelerator_hour.items():
        yield from _far_each(f"economy.usdPerAcceleratorHour.{name}", usd, name, at)


def _pool_prices(economy: EconomyPolicy, pools: Iterable[Pool], at: datetime) -> Iterator[tuple[str, str]]:
    for index, pool in enumerate(pools):
        field, name = f"burst.pools[{index}]", pool.instance_type
        usd, kind = pool.micros_per_node_hour / money.MICROS_PER_USD, economy.types.find(name)
        if kind and kind.accelerators != pool.accelerators_per_node:
            text = f"{name} has {count_of(kind.accelerators, 'accelerator')}, not {pool.accelerators_per_node}"
            yield f"{field}.acceleratorsPerNode", text
        if pool.market is Market.SPOT:
            listed = shipped_prices().price_of(name, at)
            if listed and usd > listed.usd_per_node_hour:
                text = f"${usd:,.2f} on Spot is above the {listed.origin}, ${listed.usd_per_node_hour:,.2f}"
                yield f"{field}.microsPerNodeHour", text
            continue
        yield from _far(f"{field}.microsPerNodeHour", usd, name, at)
        price = economy.price_of(name, at, pool.name)
        unit_price = usd / pool.accelerators_per_node if pool.accelerators_per_node else 0
        # A price that comes from the list itself was compared above.
        if (
            price
            and price != list_price_of(name, at)
            and abs(unit_price / price.usd - 1 if price.usd else 1) > _DISAGREE
        ):
            text = f"${usd:,.2f} for a node is ${unit_price:,.2f} for an accelerator"
            yield f"{field}.microsPerNodeHour", f"{text}, but the {price.origin} is ${price.usd:,.2f}"


def _far(field: str, usd_per_node: float, instance_type: str, at: datetime) -> Iterator[tuple[str, str]]:
    listed = shipped_prices().price_of(instance_type, at)
    if listed:
        yield from _compared(field, usd_per_node, listed.usd_per_node_hour, listed.origin)


def _far_each(field: str, usd: float, instance_type: str, at: datetime) -> Iterator[tuple[str, str]]:
    listed = list_price_of(instance_type, at)
    if listed:
        yield from _compared(field, usd, listed.usd, f"{listed.origin} for each accelerator")


def _compared(field: str, usd: float, listed: float, origin: str) -> Iterator[tuple[str, str]]:
    change = usd / listed - 1
    if abs(change) > _FAR:
        side = "above" if change > 0 else "below"
        yield field, f"${usd:,.2f} is {100 * abs(change):.0f} % {side} the {origin}, ${listed:,.2f}"


def _start(price: SitePrice) -> datetime:
    return datetime(price.starts_on.year, price.starts_on.month, price.starts_on.day, tzinfo=UTC)
