"""AWS's list prices: one type of hardware, one column for EC2 and one for HyperPod. Each price holds from a date."""

import functools
import importlib.resources
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import NamedTuple

from pydantic import Field

from evenkeel.domain.capacity.instance_types import HYPERPOD_PREFIX
from evenkeel.domain.values import Value


class PriceSource(Value):
    """The document that a price was read from."""

    link: str
    read_at: date
    description: str


class DatedPrice(Value):
    """An on-demand price that holds until the next date."""

    starts_on: date = Field(alias="from")
    """First day (UTC) of the price. The first price also holds on earlier days."""
    micros_per_node_hour: int = Field(gt=0)
    source: str


class ListPrice(NamedTuple):
    """A list price with its origin."""

    micros_per_node_hour: int
    origin: str
    """`EC2 list price of p5.48xlarge in us-east-1 from 2026-07-20`."""

    @property
    def usd_per_node_hour(self) -> float:
        return self.micros_per_node_hour / 1_000_000


class ListPrices(Value):
    """The shipped list prices of one region."""

    region: str
    sources: Mapping[str, PriceSource]
    ec2: Mapping[str, tuple[DatedPrice, ...]]
    """By EC2's name, without `ml.`."""
    hyperpod: Mapping[str, tuple[DatedPrice, ...]]
    """SageMaker's prices of HyperPod nodes by the same names, without `ml.`."""

    def price_of(self, instance_type: str, at: datetime) -> ListPrice | None:
        """Return the list price of an instance type; None if there is none.

        A HyperPod node (`ml.`) without a HyperPod price has EC2's price of the same hardware, also on days before the
        first HyperPod price. The origin says so.
        """
        ec2_name = instance_type.removeprefix(HYPERPOD_PREFIX)
        ec2_price = price_in_force(self.ec2.get(ec2_name, ()), at.date())
        if instance_type != ec2_name:
            hyperpod_price = price_in_force(self.hyperpod.get(ec2_name, ()), at.date())
            if hyperpod_price and (ec2_price is None or hyperpod_price.starts_on <= at.date()):
                return self._with_origin("HyperPod", ec2_name, hyperpod_price)
        return self._with_origin("EC2", ec2_name, ec2_price) if ec2_price else None

    @property
    def days(self) -> set[date]:
        """The first day of each price."""
        columns = (*self.ec2.values(), *self.hyperpod.values())
        return {price.starts_on for prices in columns for price in prices}

    def has_price_of(self, instance_type: str) -> bool:
        """Whether an instance type has a list price on any day."""
        ec2_name = instance_type.removeprefix(HYPERPOD_PREFIX)
        return ec2_name in self.ec2 or (instance_type != ec2_name and ec2_name in self.hyperpod)

    def _with_origin(self, column: str, ec2_name: str, price: DatedPrice) -> ListPrice:
        origin = f"{column} list price of {ec2_name} in {self.region} from {price.starts_on}"
        return ListPrice(price.micros_per_node_hour, origin)


def price_in_force(prices: Iterable[DatedPrice], day: date) -> DatedPrice | None:
    """Return the price of a day: the latest that had started, else the earliest."""
    prices_by_date = sorted(prices, key=lambda price: price.starts_on)
    return next(
        (price for price in reversed(prices_by_date) if price.starts_on <= day),
        prices_by_date[0] if prices_by_date else None,
    )


@functools.cache
def shipped_prices() -> ListPrices:
    """Return the list prices that Evenkeel ships."""
    text = importlib.resources.files(__package__).joinpath("list_prices.json").read_text(encoding="utf-8")
    return ListPrices.model_validate_json(text)
