"""On-demand prices of nodes: a table in which every figure names its source and date.

The table has no Spot prices and no prices of capacity blocks, because they change per hour or per purchase. The policy
of a pool states the price that its account pays.
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
    """A source of price figures."""

    link: str = Field(pattern=r"^https://\S+$")
    read_at: date
    """Date of the figures."""
    description: str
    """The source in words, and the scope of its figures."""


class Price(_PriceRecord):
    """One price figure."""

    micros_per_node_hour: int = Field(gt=0)
    source: str


class PriceTable(_PriceRecord):
    """On-demand prices by instance type, without the prefix `ml.`."""

    region: str
    sources: dict[str, PriceSource]
    on_demand: dict[str, Price]

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        known = shipped_types()
        for name, price in self.on_demand.items():
            if price.source not in self.sources:
                raise ValueError(f"{name}: there is no source {price.source!r}")
            if known.of(name) is None:
                raise ValueError(f"{name}: unknown instance type")
        unused = self.sources.keys() - {price.source for price in self.on_demand.values()}
        if unused:
            raise ValueError(f"no figure uses the source {', '.join(sorted(unused))}")
        return self

    def of(self, instance_type: str) -> int | None:
        """Return micro-dollars per node-hour; None if unknown. The name may have the prefix `ml.`."""
        found = self.on_demand.get(instance_type.removeprefix("ml."))
        return found.micros_per_node_hour if found else None

    def sources_older_than(self, days: int, today: date) -> Mapping[str, date]:
        """Return the sources older than `days`, with their dates. Their figures should be updated."""
        return {name: source.read_at for name, source in self.sources.items() if (today - source.read_at).days > days}


@functools.cache
def shipped() -> PriceTable:
    """Return the price table that is part of this release."""
    text = importlib.resources.files(__package__).joinpath("prices.json").read_text(encoding="utf-8")
    return PriceTable.model_validate_json(text)
