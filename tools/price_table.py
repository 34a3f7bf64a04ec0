"""Write the table of docs/operate/prices.md: the list prices that Evenkeel ships."""

from collections.abc import Iterator
from pathlib import Path

from evenkeel.domain.capacity.instance_types import shipped_instance_types
from evenkeel.domain.capacity.list_prices import DatedPrice, shipped_prices
from evenkeel.domain.economics import money
from tools.generated_tables import with_tables

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operate" / "prices.md"


def rows() -> Iterator[str]:
    """Yield a row for each instance type with accelerators."""
    prices = shipped_prices()
    yield "| hardware | accelerators | EC2, a node-hour | EC2, an accelerator-hour | HyperPod, a node-hour |"
    yield "|---|---|---|---|---|"
    for name, kind in shipped_instance_types().types.items():
        if kind.accelerators:
            plain = name.removeprefix("ml.")
            ec2, hyperpod = prices.ec2.get(plain, ()), prices.hyperpod.get(plain, ())
            row = [_price_text(price, kind.accelerators) for price in ec2] or ["no list price"]
            cells = (f"`{plain}`", f"{kind.accelerators} {kind.model}", _price_texts(ec2), ", ".join(row))
            yield f"| {' | '.join(cells)} | {_price_texts(hyperpod)} |"


def sources() -> Iterator[str]:
    """Yield a line for each source."""
    for source in shipped_prices().sources.values():
        yield f"* {source.description}: [source]({source.link}), read on {source.read_at}."


def _price_texts(prices: tuple[DatedPrice, ...]) -> str:
    return ", ".join(f"{_price_text(price, 1)} from {price.starts_on}" for price in prices) or "no list price"


def _price_text(price: DatedPrice, accelerators: int) -> str:
    return f"${price.micros_per_node_hour / money.MICROS_PER_USD / accelerators:,.4f}"


def files() -> dict[Path, str]:
    """Return the page with its table."""
    region = f"All prices are for {shipped_prices().region}, Linux, on demand."
    return {PAGE: with_tables(PAGE, {"prices": lambda: (region, "", *rows(), "", *sources())})}
