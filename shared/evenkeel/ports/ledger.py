"""The ledger: durable rows under conditional writes that succeed or fail as a whole."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from evenkeel.ports.errors import Refused


class Table(StrEnum):
    """The four tables."""

    JOBS = "JOBS"
    INCIDENTS = "INCIDENTS"
    FLEET = "FLEET"
    QUOTAS = "QUOTAS"


class Key(NamedTuple):
    """Key of a row: table, partition key and sort key."""

    table: Table
    pk: str
    sk: str


def site_policy_key(table: Table) -> Key:
    """Return the key of the site's policy, `POLICY#site / META`: its changes to the shipped policy.

    The tables INCIDENTS and JOBS hold equal copies of the row. So no function needs another permission to read it.
    The key is defined here because the wiring reads the row and a service writes it.
    """
    return Key(table, "POLICY#site", "META")


@dataclass(frozen=True, slots=True)
class Row:
    """A row: a document under a key. Every write increases its version by one.

    `state` puts the row into the sparse index `byState` as (partition, sort); None leaves it out.
    """

    key: Key
    doc: dict[str, Any]
    version: int = 0
    """Version as read; 0 = never stored. A write stores this version + 1, or starts at `Put.first_version`."""
    state: tuple[str, str] | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RowChange:
    """A stored change of one row, as the table's stream reports it: at least once, in order for each row."""

    before: Row | None
    """The row before; None if the change created it."""
    after: Row
    at: datetime
    """When the ledger stored the change, in whole seconds by its own clock."""


@dataclass(frozen=True, slots=True)
class Put:
    """Store a row if it still has the version `row.version` (0: if it does not exist).

    A row that is deleted and created again would reuse its old version numbers. A writer that read the old row could
    then overwrite the new one. So a row that is created repeatedly sets `first_version`, and its versions start there.
    """

    row: Row
    first_version: int = 0
    """Number before the first version; it must be new each time, for example a time in milliseconds."""

    @property
    def version(self) -> int:
        """The version of the row after this write."""
        return (self.row.version or self.first_version) + 1


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a row if it still has this version."""

    key: Key
    version: int


@dataclass(frozen=True, slots=True)
class ConditionCheck:
    """Require that a row has this version (0: does not exist), without writing the row."""

    key: Key
    version: int


@dataclass(frozen=True, slots=True)
class Add:
    """Add numbers to top-level fields of a row's document. The row and the fields are created if they do not exist.

    It has no condition, because additions give the same result in any order. It increases the version too.
    """

    key: Key
    amounts: Mapping[str, int]


Write = Put | Delete | ConditionCheck | Add

LARGEST_ROW = 400_000
"""Maximum bytes of one stored row with its names and keys. DynamoDB's limit of 400 KB is slightly higher."""
LARGEST_COMMIT = 4_000_000
"""Maximum bytes of all rows of one commit. DynamoDB's limit of 4 MB is slightly higher."""
MAX_WRITES = 100
"""Maximum writes of one commit: the limit of DynamoDB."""
LONGEST_PK = 2048
"""Maximum bytes of a partition key, also of the index."""
LONGEST_SK = 1024
"""Maximum bytes of a sort key, also of the index."""
_ROW_OVERHEAD = 64
"""Bytes of a row's attribute names, version and expiry, rounded up."""
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_SURROGATE = re.compile("[\ud800-\udfff]")


def document_text(doc: Mapping[str, Any]) -> str:
    """Return a row's document as the JSON text that is stored. A lone surrogate becomes its escape, as in keys.

    Raises:
        Refused: The document cannot be written as JSON.
    """
    try:
        text = _ENCODE(doc)
    except (TypeError, ValueError) as error:
        raise Refused(f"the document is not JSON: {error}") from error
    return text if text.isascii() else _SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text)


def row_bytes(row: Row, text: str | None = None) -> int:
    """Return the number of bytes that a row takes in the ledger.

    Args:
        row: The row.
        text: Its `document_text`, if the caller has it already.
    """
    parts = (document_text(row.doc) if text is None else text, row.key.pk, row.key.sk, *(row.state or ()))
    return _ROW_OVERHEAD + sum(utf8_bytes(part) for part in parts)


def utf8_bytes(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "backslashreplace"))


@dataclass(frozen=True, slots=True)
class Page:
    """A page of rows. `cursor` is opaque; it is None on the last page."""

    rows: tuple[Row, ...]
    cursor: str | None = None


class Ledger(Protocol):
    """The durable store: rows under conditional writes that succeed or fail as a whole.

    All reads are strongly consistent, except `by_state`.
    """

    def get(self, key: Key) -> Row | None:
        """Return the row; None if it does not exist."""
        ...

    def batch_get(self, *keys: Key) -> tuple[Row | None, ...]:
        """Return the rows of at most 100 keys, with None for a row that does not exist.

        This is one round trip, but not a snapshot: the rows may be from slightly different times.
        """
        ...

    def partition(self, table: Table, pk: str, prefix: str = "") -> tuple[Row, ...]:
        """Return every row of a partition whose sort key starts with `prefix`, by sort key. Reads all pages."""
        ...

    def by_state(
        self,
        table: Table,
        state: str,
        *,
        prefix: str = "",
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> Page:
        """Return rows of one partition of `byState` in the order of their sort value. Eventually consistent on AWS.

        With `prefix`, only rows whose sort value starts with it.
        """
        ...

    def commit(self, *writes: Write, client_token: str = "") -> None:
        """Do all writes or none: at most `MAX_WRITES` of them and `LARGEST_COMMIT` bytes, each row `LARGEST_ROW`.

        Idempotent: yes, by `client_token`: the same token and writes within 10 minutes succeed without effect. Without
        a token no, because a repeat writes again; guarded by the conditions of the writes.

        Raises:
            Conflict: A condition failed; `failed` has the indexes of the writes.
            Refused: A row, a key or the commit is too large for the ledger, or a document is not JSON.
            Throttled: The ledger asks for fewer calls; whether the commit took effect is unknown.
            Unreachable: There was no answer; whether the commit took effect is unknown.
        """
        ...


def every(pages: Callable[[str | None], Page]) -> Iterator[Row]:
    """Yield the rows of all pages of a `by_state` read. `pages` reads one page from its cursor."""
    cursor: str | None = None
    while True:
        page = pages(cursor)
        yield from page.rows
        if page.cursor is None:
            return
        cursor = page.cursor


_READ_AT_ONCE = 100
_READERS = 8


def get_all(ledger: Ledger, keys: Iterable[Key]) -> dict[Key, Row]:
    """Return the existing rows of any number of keys, by hundreds in parallel. This is not a snapshot."""
    distinct = tuple(dict.fromkeys(keys))
    batches = [distinct[start : start + _READ_AT_ONCE] for start in range(0, len(distinct), _READ_AT_ONCE)]
    if len(batches) == 1:
        answers = [ledger.batch_get(*batches[0])]
    else:
        with ThreadPoolExecutor(max_workers=_READERS) as readers:
            reads = [readers.submit(ledger.batch_get, *batch) for batch in batches]
        answers = [read.result() for read in reads]
    pairs = (pair for batch, rows in zip(batches, answers, strict=True) for pair in zip(batch, rows, strict=True))
    return {key: row for key, row in pairs if row is not None}
