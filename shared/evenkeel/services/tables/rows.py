"""Reading of rows, their usual lifetimes, and the partitions of drills.

The modules beside it know the keys and index entries: one for each table, and `subject_rows`.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import ValidationError

from evenkeel.domain.values import Value
from evenkeel.ports import Key, Ledger, NotFound, Row, Unreadable

T = TypeVar("T", bound=Value)

KEPT = timedelta(days=400)
"""How long jobs, incidents and decisions are kept."""
FACT_KEPT = timedelta(days=30)
"""How long a fact is kept, so that late copies of it are recognised."""
IDEMPOTENCY_KEPT = timedelta(hours=24)


def load(ledger: Ledger, key: Key, kind: type[T], noun: str) -> T:
    """Read the value that must exist under a key.

    Raises:
        NotFound: there is none; the message names `noun`.
    """
    row = ledger.get(key)
    if row is None:
        raise NotFound(f"There is no {noun}.")
    return decode(row, kind)


def decode(row: Row, kind: type[T]) -> T:
    """Read a row's document as a domain value. It keeps the fields of a newer release (docs/release.md).

    Raises:
        Unreadable: a field has a value that this release does not know.
    """
    return parse(row.key, kind, row.doc)


def parse(key: Key, kind: type[T], document: Any) -> T:
    """Read a document, or a part of one, as `decode` does. A document in a text may be given as the text."""
    try:
        if isinstance(document, str):
            return kind.model_validate_json(document, extra="allow")
        return kind.model_validate(document, extra="allow")
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, fault["loc"]))
        shown = f"{fault['input']!r:.60}"
        raise Unreadable(
            f"{key.table} {key.pk} {key.sk}: this release cannot read {field}={shown}. "
            "A newer release may have written it. The row stays as it is."
        ) from error


def readable_rows(
    stored_rows: Iterable[Row], kind: type[T], report: Callable[[Unreadable], None] | None = None
) -> Iterator[tuple[Row, T]]:
    """Yield each row with its value, without rows that this release cannot read.

    Only for lists whose other rows do not depend on the missing rows. A sum of quota must fail instead, and guardrails
    count a failure that they cannot read.

    Args:
        stored_rows: The rows.
        kind: Class of their values.
        report: Called for each missing row. The sweep reports every row, so other readers need not.
    """
    for row in stored_rows:
        try:
            value = decode(row, kind)
        except Unreadable as error:
            if report is not None:
                report(error)
            continue
        yield row, value


def readable_values(stored_rows: Iterable[Row], kind: type[T], unreadable_keys: set[Key]) -> Iterator[T]:
    """Yield the value of each row that this release can read, and add the keys of the other rows to a set.

    For sums that are shown with the number of missing rows.
    """
    for row in stored_rows:
        for _, value in readable_rows([row], kind, lambda _: unreadable_keys.add(row.key)):  # noqa: B023 - called at once
            yield value


_DRILL = "DRILL-"


def partition_key(pk: str, *, is_drill: bool) -> str:
    """Return a partition key. A drill has rows of its own: it cannot reach the rows of a real recovery."""
    return f"{_DRILL}{pk}" if is_drill else pk


LARGEST_LIST = 300_000
"""Bytes of a list that is stored in one row."""


def fit_into_row(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first documents of a list, as many as fit into one row."""
    size, fitting_documents = 0, []
    for document in documents:
        size += len(json.dumps(document))
        if size > LARGEST_LIST:
            break
        fitting_documents.append(document)
    return fitting_documents
