"""What a node costs an hour on demand: a table whose every figure says where it was read, and when.

Spot prices and those of capacity blocks are not in it: they change by the hour or the purchase, so a pool carries what
its account pays.
"""

import functools
import importlib.resources
from collections.abc import Mapping
from datetime import date
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from evenkeel.domain.capacity.instance_types import shipped as shipped_types
from evenkeel.domain.values import Value


class _PriceRecord(Value):
    model_config = ConfigDict(extra="forbid")


class PriceSource(_PriceRecord):
    """Where figures were read."""

    link: str = Field(pattern=r"^https://\S+$")
    read_at: date
    """The day for which the source gives them."""
    description: str
    """What the source is, and for what its figures hold."""


class Price(_PriceRecord):
    """One figure."""

    micros_per_node_hour: int = Field(gt=0)
    source: str


class PriceTable(_PriceRecord):
    """On-demand prices by instance type, without `ml.`."""

    region: str
    sources: dict[str, PriceSource]
    on_demand: dict[str, Price]

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        known = shipped_types()
        for name, price in self.on_demand.items():
            if price.source not in self.sources:
                raise ValueError(f"{name}: there is no source {price.source!r}")
            if known.of(name) is None:
                raise ValueError(f"{name}: no such instance type is known")
        unused = self.sources.keys() - {price.source for price in self.on_demand.values()}
        if unused:
            raise ValueError(f"no figure is from {', '.join(sorted(unused))}")
        return self

    def of(self, instance_type: str) -> int | None:
        """Return micro-dollars a node-hour, by the type's name with or without `ml.`; None where no figure is known."""
        found = self.on_demand.get(instance_type.removeprefix("ml."))
        return found.micros_per_node_hour if found else None

    def sources_older_than(self, days: int, today: date) -> Mapping[str, date]:
        """Return the sources that should be read again."""
        return {name: source.read_at for name, source in self.sources.items() if (today - source.read_at).days > days}


@functools.cache
def shipped() -> PriceTable:
    """Return the table that comes with Evenkeel."""
    text = importlib.resources.files(__package__).joinpath("prices.json").read_text(encoding="utf-8")
    return PriceTable.model_validate_json(text)
