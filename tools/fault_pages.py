"""Write docs/operate/fault-list.md: every fault of the catalogue by family, from its data."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from evenkeel.domain.health.faults import Fault, default_catalogue
from tools.generated_tables import with_tables

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operate" / "fault-list.md"


def lines() -> Iterator[str]:
    """Yield a table for each family of faults."""
    faults = default_catalogue().values()
    for family, members in groupby(sorted(faults, key=_family), key=_family):
        yield ""
        yield f"## {family}"
        yield ""
        yield "| code | fault | severity | class | repair steps, in order | acts alone |"
        yield "|---|---|---|---|---|---|"
        yield from map(_row, members)
    yield ""


def _family(fault: Fault) -> str:
    return fault.family or fault.key.partition(":")[0]


def _row(fault: Fault) -> str:
    name = fault.name + (f" (another name for `{fault.alias_of}`)" if fault.alias_of else "")
    steps = ", ".join(str(rung).replace("_", " ") for rung in fault.ladder) or "none"
    alone = "yes" if fault.acts_alone else "no"
    return f"| `{fault.key}` | {_in_cell(name)} | {fault.severity} | {fault.fault_class} | {steps} | {alone} |"


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def files() -> dict[Path, str]:
    """Return the page with its tables."""
    return {PAGE: with_tables(PAGE, {"faults": lines})}
