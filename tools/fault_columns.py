"""Write the table of docs/operate/faults.md: each column of faults.csv with its meaning, its values and its limits."""

import csv
from collections.abc import Iterator
from pathlib import Path

from evenkeel.domain.health import faults
from evenkeel.domain.health.faults import Fault, FaultOverride, FaultReferences
from tools.field_docs import field_doc
from tools.generated_tables import with_tables
from tools.policy_page import Json, type_text

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operate" / "faults.md"
CATALOGUE = Path(faults.__file__).with_name("faults.csv")


def rows() -> Iterator[str]:
    """Yield a row for each column of the catalogue, in the order of its header."""
    yield "| column | meaning | values | policy field |"
    yield "|---|---|---|---|"
    with CATALOGUE.open(encoding="utf-8", newline="") as text:
        columns = next(csv.reader(text))
    for column in columns:
        if column == faults.DRAIN_CLASS_COLUMN:
            meaning = "`p_drain_s` as a word for people. Both columns must agree."
            values = ", ".join(f"`{name}` ({seconds:,})" for name, seconds in faults.DRAIN_CLASSES.items())
            yield f"| `{column}` | {meaning} | {values} | – |"
            continue
        model, field = _field_of(column)
        policy_field = FaultOverride.model_fields.get(field) if model is Fault else None
        name = f"`{policy_field.alias}`" if policy_field else "–"
        yield f"| `{column}` | {_in_cell(field_doc(model, field))} | {_values(column)} | {name} |"


def _field_of(column: str) -> tuple[type[Fault | FaultReferences], str]:
    """Return the model and the field that hold a column."""
    if column in faults.REFERENCE_COLUMNS:
        return FaultReferences, faults.REFERENCE_COLUMNS[column]
    return Fault, faults.FAULT_COLUMNS[column]


def _values(column: str) -> str:
    """Return the values that a column may have."""
    if column == "p_drain_s":
        return ", ".join(f"{seconds:,}" for seconds in faults.DRAIN_CLASSES.values())
    model, field = _field_of(column)
    schema = model.model_json_schema(by_alias=False)
    shown, kinds = schema["properties"][field], schema.get("$defs", {})
    separator = faults.SEPARATORS.get(column)
    if separator:
        return f"{_type_in_csv(shown['items'], kinds)}; several are joined by `{_in_cell(separator)}`"
    return _type_in_csv(shown, kinds)


def _type_in_csv(shown: Json, kinds: Json) -> str:
    return {"boolean": "one of `yes, no`", "string": "text"}.get(shown.get("type", ""), type_text(shown, kinds))


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def files() -> dict[Path, str]:
    """Return the page with its table."""
    return {PAGE: with_tables(PAGE, {"columns": rows})}
