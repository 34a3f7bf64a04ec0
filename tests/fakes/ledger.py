"""The ledger in a dictionary, with the semantics of DynamoDB that the port promises."""

import base64
import binascii
import json
import marshal
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evenkeel.ports import (
    Add,
    ConditionCheck,
    Conflict,
    Delete,
    Key,
    Page,
    Put,
    Refused,
    Row,
    Table,
    Write,
    document_text,
)


class InMemoryLedger:
    """Rows by key under one lock. Documents are stored as JSON, so that callers share no objects."""

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}
        self.commits: list[tuple[Write, ...]] = []
        """Every commit that had an effect, in order."""
        self._stored: dict[Key, bytes] = {}
        """The stored text of each document; every reader parses it again."""
        self._partitions: dict[tuple[Table, str], dict[Key, None]] = defaultdict(dict)
        self._states: dict[tuple[Table, str], dict[Key, None]] = defaultdict(dict)
        self._tokens: dict[str, tuple[Write, ...]] = {}
        self._lock = threading.RLock()

    def get(self, key: Key) -> Row | None:
        with self._lock:
            return self._copy(key) if key in self.rows else None

    def batch_get(self, *keys: Key) -> tuple[Row | None, ...]:
        if len(keys) > 100:
            raise Refused(f"read {len(keys)} rows: at most 100 are allowed")
        with self._lock:
            return tuple(self._copy(key) if key in self.rows else None for key in keys)

    def partition(self, table: Table, pk: str, prefix: str = "") -> tuple[Row, ...]:
        with self._lock:
            keys = [key for key in self._partitions.get((table, pk), ()) if key.sk.startswith(prefix)]
            return tuple(self._copy(key) for key in sorted(keys, key=lambda key: key.sk.encode()))

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
        with self._lock:
            indexed = self._states.get((table, state))
            if not indexed and cursor is None:
                return Page(())
            matching = [self.rows[key] for key in indexed or ()]
            if prefix:
                matching = [row for row in matching if _sort_key(row)[0].startswith(prefix)]
            if len(matching) > 1:
                matching.sort(key=_sort_key, reverse=newest_first)
            if cursor is not None:
                last = _read_cursor(cursor)
                matching = [
                    row for row in matching if (_sort_key(row) < last if newest_first else _sort_key(row) > last)
                ]
            page = tuple(self._copy(row.key) for row in matching[:limit])
            return Page(page, _cursor(page[-1]) if len(matching) > limit else None)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        if not writes:
            return
        if len(writes) > 100:
            raise Refused(f"commit {len(writes)} writes: at most 100 are allowed")
        keys = [_key(write) for write in writes]
        if len(set(keys)) < len(keys):
            raise Refused("commit: two writes are for the same row")
        with self._lock:
            if client_token and client_token in self._tokens:
                if self._tokens[client_token] != writes:
                    raise Refused(f"token {client_token} was used for other writes")
                return
            failed = tuple(index for index, write in enumerate(writes) if not self._holds(write))
            if failed:
                raise Conflict(f"conditions failed: {[keys[index] for index in failed]}", failed)
            changed = {key: self._after(write) for key, write in zip(keys, writes, strict=True)}
            stored = {key: marshal.dumps(row.doc, _WITHOUT_REFERENCES) for key, row in changed.items() if row}
            _expect_sizes(changed, self.rows, stored)
            for key, row in changed.items():
                self._store(key, row, stored.get(key, b""))
            self.commits.append(writes)
            if client_token:
                self._tokens[client_token] = writes

    def _store(self, key: Key, row: Row | None, stored: bytes) -> None:
        before = self.rows.pop(key, None)
        if before is not None:
            self._partitions[key.table, key.pk].pop(key)
            if before.state:
                self._states[key.table, before.state[0]].pop(key)
        if row is None:
            self._stored.pop(key, None)
            return
        self.rows[key] = row
        self._stored[key] = stored
        self._partitions[key.table, key.pk][key] = None
        if row.state:
            self._states[key.table, row.state[0]][key] = None

    def _copy(self, key: Key) -> Row:
        row = self.rows[key]
        return Row(key, marshal.loads(self._stored[key]), row.version, row.state, row.expires_at)

    def _holds(self, write: Write) -> bool:
        match write:
            case Put(row):
                return self._version(row.key) == row.version
            case Delete(key, version) | ConditionCheck(key, version):
                return self._version(key) == version
            case Add():
                return True

    def _version(self, key: Key) -> int:
        row = self.rows.get(key)
        return 0 if row is None else row.version

    def _after(self, write: Write) -> Row | None:
        match write:
            case Put(row):
                expires = row.expires_at and row.expires_at.replace(microsecond=0)
                return Row(row.key, self._document(row.doc), write.version, row.state, expires)
            case Delete():
                return None
            case ConditionCheck(key):
                return self.rows.get(key)
            case Add(key, amounts):
                row = self.rows.get(key) or Row(key, {})
                doc = {**row.doc, **{name: row.doc.get(name, 0) + amount for name, amount in amounts.items()}}
                return replace(row, doc=doc, version=row.version + 1)

    def _document(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document as the store keeps it.

        Raises:
            Refused: it is not JSON, or too large.
        """
        return _stored(document)

    # ------------------------------------------------------------ for tests

    def contents(self) -> dict[str, dict[str, Any]]:
        """Return every document by `TABLE pk sk`, to compare two final states."""
        with self._lock:
            return {
                f"{key.table} {key.pk} {key.sk}": marshal.loads(self._stored[key])
                for key in sorted(self.rows, key=lambda key: (key.table, key.pk, key.sk))
            }


def _number(text: str) -> float:
    """Read a number that is written as a float; return a whole number as int."""
    number = float(text)
    return int(number) if number.is_integer() else number


_WITHOUT_REFERENCES = 2
"""Version of `marshal` that repeats equal texts, as JSON does."""
_SMALL_BYTES = 4_000_000 // 100 // 8
"""A hundred documents of this size fit into a commit, even if each packed byte becomes eight bytes of text."""

_DECODED = json.JSONDecoder(parse_float=_number).raw_decode


def _key(write: Write) -> Key:
    return write.row.key if isinstance(write, Put) else write.key


def _sort_key(row: Row) -> tuple[str, str, str]:
    return (row.state[1] if row.state else "", row.key.pk, row.key.sk)


def _cursor(row: Row) -> str:
    return base64.urlsafe_b64encode(json.dumps(_sort_key(row)).encode()).decode()


def _read_cursor(cursor: str) -> tuple[str, str, str]:
    try:
        sort, pk, sk = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, binascii.Error) as error:
        raise Refused(f"the cursor is not valid: {cursor!r}") from error
    return (str(sort), str(pk), str(sk))


def _stored(document: Mapping[str, Any]) -> dict[str, Any]:
    text = document_text(document)
    stored: dict[str, Any] = _DECODED(text)[0]
    return stored


def _expect_sizes(changed: Mapping[Key, Row | None], before: Mapping[Key, Row], packed: Mapping[Key, bytes]) -> None:
    """Refuse keys, items and transactions that are too large for DynamoDB, in bytes of UTF-8.

    The stored size of an item that is deleted, checked or added to counts. Small documents are not written as text:
    their packed size shows that they are far below each limit.
    """
    is_small = len(packed) == len(changed) and all(len(parts) < _SMALL_BYTES for parts in packed.values())
    total = 0
    for key, row in changed.items():
        state = (row.state if row else None) or ("-", "-")
        for name, text, longest in zip(
            ("pk", "sk", "stateKey", "stateSort"), (key.pk, key.sk, *state), (2048, 1024, 2048, 1024), strict=True
        ):
            size = len(text.encode("utf-8", "backslashreplace"))
            if not 1 <= size <= longest:
                raise Refused(f"{key.table} {key.pk[:80]}: {name} has {size} bytes, not 1 to {longest}")
        if is_small:
            continue
        stored = row or before.get(key)
        size = 0 if stored is None else _item_bytes(stored)
        if size > 400_000:
            raise Refused(f"{key.table} {key.pk} {key.sk}: the row has {size} bytes, at most 400 KB fit")
        total += size
    if total > 4_000_000:
        raise Refused(f"the commit has {total} bytes, but at most 4 MB are allowed")


def _item_bytes(row: Row) -> int:
    attributes = {"pk": row.key.pk, "sk": row.key.sk, "doc": document_text(row.doc)}
    if row.state:
        attributes |= {"stateKey": row.state[0], "stateSort": row.state[1]}
    texts = sum(len(name) + len(text.encode("utf-8", "backslashreplace")) for name, text in attributes.items())
    return texts + len("version") + len(str(row.version)) // 2 + 2 + (len("ttl") + 7 if row.expires_at else 0)
