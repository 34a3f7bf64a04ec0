"""Policy section for prices, costs and expected durations."""

from collections.abc import Iterator
from datetime import date, datetime
from enum import StrEnum
from typing import NamedTuple, Self

from pydantic import Field, PrivateAttr, model_validator

from evenkeel.domain.capacity.instance_types import HYPERPOD_PREFIX, InstanceTypes, shipped_instance_types
from evenkeel.domain.capacity.list_prices import shipped_prices
from evenkeel.domain.name_suggestions import unknown_name
from evenkeel.domain.policy_section import Seconds, Section, Usd
from evenkeel.domain.values import Word


class PriceBasis(StrEnum):
    """Why a site does not pay the list price."""

    DISCOUNT = "discount"
    SAVINGS_PLAN = "savings-plan"
    CAPACITY_BLOCK = "capacity-block"
    COMMITMENT = "commitment"


class SitePrice(Section):
    """A price that the site pays for an instance type from a date."""

    instance_type: Word
    """With `ml.` for HyperPod, without for EC2."""
    pool: Word = ""
    """The price holds in this pool alone; empty for all pools."""
    basis: PriceBasis
    """Why the price differs from the list price."""
    starts_on: date = Field(alias="from")
    """First day (UTC). Attempts that were admitted before keep their price."""
    ends_on: date | None = Field(default=None, alias="until")
    """Last day (UTC); none if the price holds until the next one."""
    usd_per_node_hour: Usd | None = None
    """Dollars an hour for a node. State this or `percentOffList`."""
    percent_off_list: float | None = Field(default=None, ge=0, le=100)
    """Percent below the list price. State this or `usdPerNodeHour`."""

    @model_validator(mode="after")
    def _has_one_known_price(self) -> Self:
        name = self.instance_type
        if (self.usd_per_node_hour is None) == (self.percent_off_list is None):
            raise ValueError(f"{name}: state either usdPerNodeHour or percentOffList")
        if self.ends_on is not None and self.ends_on < self.starts_on:
            raise ValueError(f"{name}: until must not be before from")
        if self.percent_off_list is not None and not shipped_prices().has_price_of(name):
            raise ValueError(f"{name}: has no list price, so state usdPerNodeHour")
        return self

    def applies_to(self, instance_type: str, pool: str, day: date) -> bool:
        """Whether this is a price of an instance type in a pool on a day."""
        is_current = self.starts_on <= day and (self.ends_on is None or day <= self.ends_on)
        return is_current and self.instance_type == instance_type and self.pool in ("", pool)


class AcceleratorPrice(NamedTuple):
    """The price of an accelerator-hour, and its origin."""

    usd: float
    origin: str


class EconomyPolicy(Section):
    """Prices of accelerator time, and durations to expect if there are too few measurements."""

    prices: tuple[SitePrice, ...] = ()
    """The site's dated prices: discounts, Savings Plans, capacity blocks, commitments. If several prices match, the
    price for the pool is used, then the latest."""
    usd_per_accelerator_hour: dict[Word, Usd] = {}
    """The site's price by instance type, with `ml.` for HyperPod, without a date."""
    other_usd_per_accelerator_hour: Usd | None = None
    """The site's price for all other types. If omitted, they have their list price."""
    expected_reboot_seconds: Seconds = 300
    """Time from the request until a rebooted node is Ready."""
    expected_launch_seconds: Seconds = 60
    """Time from admission until every pod runs."""
    expected_capacity_seconds: Seconds = 3600
    """Time until the scheduler finds capacity without a repair."""
    expected_checkpoint_seconds: Seconds = 900
    """Usual time between two checkpoints. On average, half of it is lost."""
    failures_per_node_hour: float = Field(default=0.0002, ge=0, le=1)
    """Faults that stop a job, per node-hour of any market. Published rates are 0.00016 to 0.0006; measure your own with
    `evenkeel economics rate --fleet`."""
    slowdown_per_network_level: float | None = Field(default=None, ge=0, le=10)
    """Slowdown of a job for each network level that its nodes are farther apart: 0.02 = its steps take 2 % longer.
    Only recoveries weigh it. Null: unknown. They then weigh no slowdown, and say so. AWS publishes no figure, so
    measure your own jobs."""
    min_samples: int = Field(default=5, ge=1, le=1000)
    """If at least this many cases were measured, their median replaces the figures here."""

    _types: InstanceTypes | None = PrivateAttr(default=None)

    @property
    def types(self) -> InstanceTypes:
        """The instance types that may have a price."""
        return self._types or shipped_instance_types()

    def with_types(self, types: InstanceTypes) -> Self:
        """Return the same prices for a catalogue with further instance types."""
        copy = self.model_copy()
        copy._types = types  # noqa: SLF001 - of the same class
        return copy

    def unknown_types(self) -> Iterator[str]:
        """Yield each instance type with a price that is not in the catalogue: its field, and why."""
        for index, price in enumerate(self.prices):
            if problem := _why_unknown_type(price.instance_type, self.types):
                yield f"prices[{index}].instanceType: {problem}"
        for name in self.usd_per_accelerator_hour:
            if problem := _why_unknown_type(name, self.types):
                yield f"usdPerAcceleratorHour.{name}: {problem}"

    def price_of(self, instance_type: str, at: datetime, pool: str = "") -> AcceleratorPrice | None:
        """Return the price of an accelerator-hour; None if the type has no price of the site and no list price.

        Args:
            instance_type: With `ml.` for HyperPod, without for EC2.
            at: When the use began. A later price does not change it.
            pool: The pool of the nodes.
        """
        dated_prices = [price for price in self.prices if price.applies_to(instance_type, pool, at.date())]
        if dated_prices:
            site_price = max(dated_prices, key=lambda price: (bool(price.pool), price.starts_on))
            return _site_accelerator_price(instance_type, at, site_price, self.types)
        usd = self.usd_per_accelerator_hour.get(instance_type, self.other_usd_per_accelerator_hour)
        if usd is not None:
            return AcceleratorPrice(usd, "price in the site's policy")
        return list_accelerator_price(instance_type, at)


NEW_TYPE = "Describe a type that is new on AWS in the policy's section instanceTypes."


def _why_unknown_type(name: str, types: InstanceTypes) -> str:
    """Return why a name is no instance type with accelerators, with similar names; empty if it is one."""
    instance_type = types.find(name)
    if instance_type is not None and instance_type.accelerators:
        return ""
    prefix = HYPERPOD_PREFIX if name.startswith(HYPERPOD_PREFIX) else ""
    known_types = (
        prefix + shipped_name.removeprefix(HYPERPOD_PREFIX)
        for shipped_name, instance_type_row in types.types.items()
        if instance_type_row.accelerators
    )
    return f"{unknown_name('instance type with accelerators', name, known_types)} {NEW_TYPE}"


def list_accelerator_price(instance_type: str, at: datetime) -> AcceleratorPrice | None:
    """Return the list price of an accelerator-hour; None if there is none."""
    price, type_row = shipped_prices().price_of(instance_type, at), shipped_instance_types().find(instance_type)
    if price is None or type_row is None or not type_row.accelerators:
        return None
    return AcceleratorPrice(price.usd_per_node_hour / type_row.accelerators, price.origin)


def _site_accelerator_price(
    instance_type: str, at: datetime, price: SitePrice, types: InstanceTypes
) -> AcceleratorPrice | None:
    type_row = types.find(instance_type)
    text = f"{price.basis} of the site from {price.starts_on}"
    if price.usd_per_node_hour is not None:
        return (
            AcceleratorPrice(price.usd_per_node_hour / type_row.accelerators, text)
            if type_row and type_row.accelerators
            else None
        )
    list_price = list_accelerator_price(instance_type, at)
    if list_price is None or price.percent_off_list is None:
        return None
    share = 1 - price.percent_off_list / 100
    return AcceleratorPrice(
        list_price.usd * share, f"{text}, {price.percent_off_list:g} % below the {list_price.origin}"
    )
