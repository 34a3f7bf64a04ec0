"""Lists in the order of any field: every matching row is read, so the number of rows is limited."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from evenkeel.ports import Key, Ledger, Refused, Row, Table
from evenkeel.services.storage import pagination

Json = dict[str, Any]
SortValue = Callable[[Json], Any]

MAX_SORTED = 5000
"""Maximum number of rows of a sorted list. Each page reads them all again."""


class TooManyToSort(Refused):
    """More rows match than a list can sort."""

    code = "TOO_MANY_TO_SORT"


class Sort(NamedTuple):
    """The order of a list."""

    field: str
    is_descending: bool = False

    @classmethod
    def parse(cls, text: str | None) -> "Sort | None":
        """Read `field` or `-field`; None if there is no text."""
        return cls(text.removeprefix("-"), text.startswith("-")) if text else None


def matching_rows(
    ledger: Ledger, table: Table, partitions: Sequence[str], keep: Callable[[Row], bool] | None
) -> tuple[Row, ...]:
    """Return the rows of the partitions that `keep` accepts, each once.

    Raises:
        TooManyToSort: more than `MAX_SORTED` rows match.
    """
    rows_by_key: dict[Key, Row] = {}
    for partition in partitions:
        matches, more = pagination.read_partition(ledger, table, partition, at_most=MAX_SORTED, keep=keep)
        rows_by_key |= {row.key: row for row in matches}
        if more or len(rows_by_key) > MAX_SORTED:
            raise TooManyToSort(f"More than {MAX_SORTED} rows match. A list can be sorted only up to that number.")
    return tuple(rows_by_key.values())


def sorted_page(
    items: Sequence[Json], sort: Sort, values: Mapping[str, SortValue], request: pagination.PageRequest, *, item_id: str
) -> tuple[list[Json], str]:
    """Return one page of sorted items, and the token of the next page; empty at the end.

    Items with the same value are in the order of their ids. Items without a value come last. The token holds the cursor
    of the last item, so an item that was added between two pages hides no other. An item whose value changed between
    two pages may be missing or returned twice.

    Args:
        items: All items.
        sort: The order.
        values: Field → its sort value in an item.
        request: The page.
        item_id: Field with the id of an item.

    Raises:
        BadPageToken: this list did not issue the token.
    """
    value_of, list_name = values[sort.field], f"{item_id}:{sort.field}:{sort.is_descending}"
    start = pagination.read_cursor(request.page_token, list_name)
    documents: list[Json] = []
    for cursor, item in _sort_items(items, sort, lambda item: (value_of(item), item[item_id])):
        try:
            is_on_earlier_page = start is not None and not _is_beyond(cursor, start, sort)
        except TypeError as error:
            raise pagination.BadPageToken("The page token cannot be read.") from error
        if is_on_earlier_page:
            continue
        if len(documents) == request.size:
            last_document = documents[-1]
            return documents, pagination.write_cursor((value_of(last_document), last_document[item_id]), list_name)
        documents.append(item)
    return documents, ""


def _sort_items(
    items: Sequence[Json], sort: Sort, cursor_of: Callable[[Json], tuple[Any, str]]
) -> Iterator[tuple[tuple[Any, str], Json]]:
    pairs = [(cursor_of(item), item) for item in items]
    known_pairs = [pair for pair in pairs if pair[0][0] is not None]
    pairs_without_value = [pair for pair in pairs if pair[0][0] is None]
    yield from sorted(known_pairs, key=lambda pair: pair[0], reverse=sort.is_descending)
    yield from sorted(pairs_without_value, key=lambda pair: pair[0][1])


def _is_beyond(cursor: tuple[Any, str], start: tuple[Any, str], sort: Sort) -> bool:
    if (cursor[0] is None) != (start[0] is None):
        return cursor[0] is None
    if cursor[0] is None:
        return cursor[1] > start[1]
    return cursor < start if sort.is_descending else cursor > start
