"""Reading of rows, their usual lifetimes, and the partitions of drills.

The modules beside it know the keys and index entries: one for each table, and `subject_rows`.
"""

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, TypeVar

from evenkeel.domain.values import Value
from evenkeel.ports import Key, Ledger, NotFound, Row

T = TypeVar("T", bound=Value)

KEPT = timedelta(days=400)
"""How long jobs, incidents and decisions are kept."""
FACT_KEPT = timedelta(days=30)
"""How long a fact is kept, so that late copies of it are recognised."""
IDEMPOTENCY_KEPT = timedelta(hours=24)


def load(ledger: Ledger, key: Key, kind: type[T], what: str) -> T:
    """Read the value that must exist under a key.

    Raises:
        NotFound: there is none; the message names `what`.
    """
    row = ledger.get(key)
    if row is None:
        raise NotFound(f"There is no {what}.")
    return read(row, kind)


def read(row: Row, kind: type[T]) -> T:
    """Read a row's document as a domain value."""
    return kind.model_validate(row.doc)


_DRILL = "DRILL-"


def partition(pk: str, *, is_drill: bool) -> str:
    """Return a partition key. A drill has rows of its own: it cannot reach the rows of a real recovery."""
    return f"{_DRILL}{pk}" if is_drill else pk


LARGEST_LIST = 300_000
"""Bytes of a list that is stored in one row."""


def fit_into_row(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first documents of a list, as many as fit into one row."""
    size, kept = 0, []
    for document in documents:
        size += len(json.dumps(document))
        if size > LARGEST_LIST:
            break
        kept.append(document)
    return kept
