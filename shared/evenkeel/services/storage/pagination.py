"""Lists in pages: one or more index partitions by their sort value, continued by an opaque token."""

import base64
import heapq
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evenkeel.ports import Key, Ledger, Refused, Row, Table

_MAX_EXAMINED = 2000
"""Rows that one page reads. If a filter drops most of them, the page is short and the next one continues."""


_MAX_PASSED_OVER = 4
"""If a filter is used on a whole partition, this many times as many rows are read."""


class BadPageToken(Refused):
    """A page token that this list did not issue."""

    code = "BAD_PAGE_TOKEN"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The requested page."""

    size: int = 50
    page_token: str = ""


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """A page, and the token of the next one; empty at the end."""

    rows: tuple[Row, ...]
    next_token: str = ""


@dataclass(slots=True)
class _Stream:
    """A partition that is read page by page."""

    ledger: Ledger
    table: Table
    partition: str
    size: int
    page_start: str | None
    is_newest_first: bool
    prefix: str

    def iterate_rows(self) -> Iterator[tuple[tuple[str, str], Row]]:
        while True:
            page = self.ledger.by_state(
                self.table,
                self.partition,
                prefix=self.prefix,
                limit=self.size,
                cursor=self.page_start,
                newest_first=self.is_newest_first,
            )
            for row in page.rows:
                yield _cursor_of(row), row
            if page.cursor is None:
                return
            self.page_start = page.cursor


def page_newest_first(
    ledger: Ledger,
    table: Table,
    partitions: Sequence[str],
    request: PageRequest,
    keep: Callable[[Row], bool] | None = None,
    *,
    list_name: str = "",
) -> PageAnswer:
    """Merge the partitions by their sort value, newest first.

    The partitions are read in the given order. A partition may occur twice: its second read finds the rows that moved
    to it meanwhile. The result holds each row once.

    The token holds the cursor of the last row. So a row that was added, or that moved to another partition between two
    pages, is not returned twice and hides no other row.

    Args:
        ledger: The ledger.
        table: The table of the partitions.
        partitions: The partitions.
        request: The requested page.
        keep: Selects rows; None = all.
        list_name: Name of a list whose partitions change with the time. A token is then valid with other partitions.

    Raises:
        BadPageToken: this list did not issue the token.
    """
    name = list_name or _name_of(partitions)
    return _merge_partitions(ledger, table, partitions, request, keep, is_newest_first=True, list_name=name)


def page_in_order(
    ledger: Ledger,
    table: Table,
    partition: str,
    request: PageRequest,
    keep: Callable[[Row], bool] | None = None,
    *,
    prefix: str = "",
) -> PageAnswer:
    """Return one partition by its sort value, the lowest first; with `prefix` only that part of it.

    Raises:
        BadPageToken: this list did not issue the token.
    """
    name = _name_of([partition]) + (prefix and f":{prefix}")
    return _merge_partitions(
        ledger, table, [partition], request, keep, is_newest_first=False, list_name=name, prefix=prefix
    )


def _name_of(partitions: Sequence[str]) -> str:
    return ",".join(sorted(set(partitions)))


def _merge_partitions(  # noqa: PLR0913 - what to read, in which order, and under which name
    ledger: Ledger,
    table: Table,
    partitions: Sequence[str],
    request: PageRequest,
    keep: Callable[[Row], bool] | None,
    *,
    is_newest_first: bool,
    list_name: str,
    prefix: str = "",
) -> PageAnswer:
    token_name = f"{table}:{list_name}"
    start_key, starts = _read_token(request.page_token, token_name)
    # A filter drops many rows, so small pages would need many calls.
    size = request.size + 1 if keep is None else max(200, request.size + 1)
    streams = [_Stream(ledger, table, name, size, starts.get(name), is_newest_first, prefix) for name in partitions]
    merged_rows = heapq.merge(
        *(stream.iterate_rows() for stream in streams), key=lambda pair: pair[0], reverse=is_newest_first
    )
    rows: list[Row] = []
    keys: set[Key] = set()
    examined_count, last_key = 0, start_key or ("", "")
    for cursor, row in merged_rows:
        is_on_earlier_page = start_key is not None and (cursor >= start_key if is_newest_first else cursor <= start_key)
        if is_on_earlier_page or row.key in keys:
            continue
        keys.add(row.key)
        if len(rows) == request.size or examined_count == _MAX_EXAMINED:
            return PageAnswer(
                tuple(rows), _write_token(token_name, last_key, {s.partition: s.page_start for s in streams})
            )
        examined_count, last_key = examined_count + 1, cursor
        if keep is None or keep(row):
            rows.append(row)
    return PageAnswer(tuple(rows))


def read_partition(
    ledger: Ledger,
    table: Table,
    partition: str,
    *,
    at_most: int,
    keep: Callable[[Row], bool] | None = None,
    newest_first: bool = False,
) -> tuple[tuple[Row, ...], bool]:
    """Return up to `at_most` rows of one partition, oldest first, and whether there are more.

    Rows that `keep` drops do not count, up to many times as many rows.
    """
    rows: list[Row] = []
    examined_count, cursor = 0, None
    max_examined = at_most if keep is None else _MAX_PASSED_OVER * at_most
    while True:
        size = min(1000, max_examined - examined_count)
        page = ledger.by_state(table, partition, limit=size, cursor=cursor, newest_first=newest_first)
        examined_count += len(page.rows)
        rows.extend(row for row in page.rows if keep is None or keep(row))
        cursor = page.cursor
        if len(rows) > at_most:
            return tuple(rows[:at_most]), True
        if cursor is None:
            return tuple(rows), False
        if len(rows) == at_most or examined_count >= max_examined:
            return tuple(rows), True


def _cursor_of(row: Row) -> tuple[str, str]:
    return (row.state[1] if row.state else "", row.key.pk)


def _write_token(list_name: str, last_key: tuple[str, str], starts: dict[str, str | None]) -> str:
    return _encode({"v": 1, "list": list_name, "after": last_key, "starts": {k: v for k, v in starts.items() if v}})


def _read_token(token: str, list_name: str) -> tuple[tuple[str, str] | None, dict[str, str]]:
    if not token:
        return None, {}
    match _decode(token):
        case {"v": 1, "list": str(name), "after": [str(sort), str(pk)], "starts": dict(starts)} if name == list_name:
            return (sort, pk), {str(k): str(v) for k, v in starts.items()}
    raise BadPageToken(_OTHER_LIST_MESSAGE)


def write_cursor(last_value: tuple[Any, str], list_name: str) -> str:
    """Return the token of a list that is sorted in memory: the value and the id of the last item."""
    return _encode({"v": 1, "list": list_name, "after": last_value})


def read_cursor(token: str, list_name: str) -> tuple[Any, str] | None:
    """Return the cursor in a token; None for the first page.

    Raises:
        BadPageToken: this list did not issue the token.
    """
    if not token:
        return None
    match _decode(token):
        case {"v": 1, "list": str(name), "after": [value, str(item_id)]} if name == list_name:
            return value, item_id
    raise BadPageToken(_OTHER_LIST_MESSAGE)


_OTHER_LIST_MESSAGE = "The page token belongs to another list, or to a filter that has changed since."


def _encode(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document, separators=(",", ":")).encode()).decode().rstrip("=")


def _decode(token: str) -> Any:
    try:
        return json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (ValueError, RecursionError) as error:
        raise BadPageToken("The page token cannot be read.") from error
