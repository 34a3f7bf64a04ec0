"""The port Ledger on DynamoDB.

An item has the attributes `pk`, `sk`, `version` and `doc`, and optionally `stateKey`, `stateSort` (index `byState`) and
`ttl`. The document is one JSON text: no expression needs its fields, and the SDK is ten times slower with a typed map.

Every commit is one TransactWriteItems, even of a single write. Its client token makes retries of the SDK safe: after a
lost reply, a retry does not fail on its own write.

`Add` stores its sums next to the document, in attributes `sum:<field>`, because DynamoDB adds atomically only at the
top level of an item. A read adds both, and the next `Put` stores the result in the document:

    Put  {doc: {used: 8}}   ->   doc.used 8
    Add  used +4            ->   doc.used 8, sum:used 4     reads as {used: 12}
    Put  {doc: {used: 12}}  ->   doc.used 12
"""

import base64
import hashlib
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from botocore.config import Config
from botocore.exceptions import ClientError

from evenkeel.adapters import aws
from evenkeel.domain.plurals import count_of
from evenkeel.ports import (
    LARGEST_COMMIT,
    LARGEST_ROW,
    LONGEST_PK,
    LONGEST_SK,
    MAX_WRITES,
    Add,
    ConditionCheck,
    Conflict,
    Delete,
    EvenkeelError,
    Key,
    Page,
    Put,
    Refused,
    Row,
    RowChange,
    Table,
    Throttled,
    Unreachable,
    Write,
    document_text,
    utf8_bytes,
)

CLIENT: Final = aws.READS_AND_IDEMPOTENT_WRITES.merge(Config(parameter_validation=False))
"""The SDK does not validate requests: that takes most of the processor time of a large commit, and DynamoDB does it."""
INDEX = "byState"
_SUM_PREFIX = "sum:"
_MAX_BATCH_READS = 100
_CONFLICT_TRIES = 4
_MAX_TOKEN_LENGTH = 36

_ERRORS_BY_CODE: Mapping[str, type[EvenkeelError]] = {
    "TransactionInProgressException": Throttled,
    "IdempotentParameterMismatchException": Refused,
    "ItemCollectionSizeLimitExceededException": Refused,
}
_ERRORS_BY_CANCELLATION_REASON: Mapping[str, type[EvenkeelError]] = {
    "TransactionConflict": Throttled,
    "ThrottlingError": Throttled,
    "ProvisionedThroughputExceeded": Throttled,
    "ValidationError": Refused,
    "ItemCollectionSizeLimitExceeded": Refused,
}


class DynamoLedger:
    """The rows of the four tables."""

    def __init__(
        self,
        tables: Mapping[Table, str],
        client: Any = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._tables = tables
        self._client = client or aws.client("dynamodb", CLIENT)
        self._pause = pause

    def get(self, key: Key) -> Row | None:
        with aws.translate_errors(f"read {key.table} {key.pk} {key.sk}", _ERRORS_BY_CODE):
            answer = self._client.get_item(
                TableName=self._table_name(key.table), Key=_key_attributes(key), ConsistentRead=True
            )
        return _read_row(key.table, answer["Item"]) if "Item" in answer else None

    def batch_get(self, *keys: Key) -> tuple[Row | None, ...]:
        if len(keys) > _MAX_BATCH_READS:
            raise Refused(f"read {count_of(len(keys), 'row')}: at most {_MAX_BATCH_READS} are allowed")
        remaining_requests: dict[str, Any] = {}
        for key in dict.fromkeys(keys):
            table = remaining_requests.setdefault(self._table_name(key.table), {"Keys": [], "ConsistentRead": True})
            table["Keys"].append(_key_attributes(key))
        tables = {self._table_name(key.table): key.table for key in keys}
        rows: dict[tuple[Table, str, str], Row] = {}
        with aws.translate_errors(
            f"read {', '.join(f'{key.table} {key.pk} {key.sk}' for key in keys)}", _ERRORS_BY_CODE
        ):
            for tries_left in reversed(range(_CONFLICT_TRIES)):
                if not remaining_requests:
                    break
                answer = self._client.batch_get_item(RequestItems=remaining_requests)
                for name, items in answer["Responses"].items():
                    for item in items:
                        rows[tables[name], item["pk"]["S"], item["sk"]["S"]] = _read_row(tables[name], item)
                # A busy table returns the keys that it did not read. Repeat the request for them.
                remaining_requests = answer.get("UnprocessedKeys") or {}
                if remaining_requests and not tries_left:
                    raise Throttled(
                        f"read {count_of(len(keys), 'row')}: {', '.join(remaining_requests)} did not return all of them"
                    )
                if remaining_requests:
                    self._pause(random.uniform(0.02, 0.1) * (_CONFLICT_TRIES - tries_left))  # noqa: S311 - jitter
        return tuple(
            rows.get((key.table, aws.escape_surrogates(key.pk), aws.escape_surrogates(key.sk))) for key in keys
        )

    def partition(self, table: Table, pk: str, prefix: str = "") -> tuple[Row, ...]:
        values = {":pk": _string_value(pk), **({":prefix": _string_value(prefix)} if prefix else {})}
        query = {
            "TableName": self._table_name(table),
            "KeyConditionExpression": "pk = :pk AND begins_with(sk, :prefix)" if prefix else "pk = :pk",
            "ExpressionAttributeValues": values,
            "ConsistentRead": True,
        }
        with aws.translate_errors(f"list {table} {pk} {prefix}", _ERRORS_BY_CODE):
            return tuple(_read_row(table, item) for item in self._query_items(query))

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
        begins = " AND begins_with(stateSort, :prefix)" if prefix else ""
        query: dict[str, Any] = {
            "TableName": self._table_name(table),
            "IndexName": INDEX,
            "KeyConditionExpression": f"stateKey = :state{begins}",
            "ExpressionAttributeValues": {
                ":state": _string_value(state),
                **({":prefix": _string_value(prefix)} if prefix else {}),
            },
            "ScanIndexForward": not newest_first,
        }
        start = None if cursor is None else _read_cursor(cursor)
        rows: list[Row] = []
        with aws.translate_errors(f"list {table} in state {state}", _ERRORS_BY_CODE):
            while True:
                page = {"Limit": limit - len(rows), **({"ExclusiveStartKey": start} if start else {})}
                answer = self._client.query(**query, **page)
                rows.extend(_read_row(table, item) for item in answer["Items"])
                start = answer.get("LastEvaluatedKey")
                if start is None or len(rows) >= limit:
                    return Page(tuple(rows), _write_cursor(start) if start else None)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        if not writes:
            return
        if len(writes) > MAX_WRITES:
            raise Refused(f"commit {len(writes)} writes: at most {MAX_WRITES} are allowed")
        keys = [write.row.key if isinstance(write, Put) else write.key for write in writes]
        if len(set(keys)) < len(keys):
            raise Refused("commit: two writes are for the same row")
        items = [self._transact_item(write) for write in writes]
        _check_sizes(items, keys)
        request = {"TransactItems": items, "ClientRequestToken": _request_token(client_token)}
        for tries_left in reversed(range(_CONFLICT_TRIES)):
            try:
                self._send(request, keys)
            except _TransactionConflict as conflict:
                # Another transaction writes one of the items at this moment. AWS asks to repeat the same request.
                if not tries_left:
                    raise Throttled(str(conflict)) from conflict
                self._pause(random.uniform(0.02, 0.1) * (_CONFLICT_TRIES - tries_left))  # noqa: S311 - jitter
            else:
                return

    def _send(self, request: Mapping[str, Any], keys: list[Key]) -> None:
        keys_text = ", ".join(f"{key.table} {key.pk} {key.sk}" for key in keys)
        with aws.translate_errors(f"write {keys_text}", _ERRORS_BY_CODE):
            try:
                self._client.transact_write_items(**request)
            except ClientError as error:
                if aws.code_of(error) == "TransactionCanceledException":
                    raise _cancellation_error(error, keys_text) from error
                raise

    def _query_items(self, query: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        start: Mapping[str, Any] | None = None
        while True:
            answer = self._client.query(**query, **({"ExclusiveStartKey": start} if start else {}))
            yield from answer["Items"]
            start = answer.get("LastEvaluatedKey")
            if not start:
                return

    def _transact_item(self, write: Write) -> dict[str, Any]:
        """Convert one write into a member of TransactItems."""
        match write:
            case Put(row):
                item = _put_item(row, write.version)
                return {
                    "Put": {
                        "TableName": self._table_name(row.key.table),
                        "Item": item,
                        **_version_condition(row.version),
                    }
                }
            case Delete(key, version):
                return {
                    "Delete": {
                        "TableName": self._table_name(key.table),
                        "Key": _key_attributes(key),
                        **_version_condition(version),
                    }
                }
            case ConditionCheck(key, version):
                return {
                    "ConditionCheck": {
                        "TableName": self._table_name(key.table),
                        "Key": _key_attributes(key),
                        **_version_condition(version),
                    }
                }
            case Add(key, amounts):
                names = {f"#n{index}": f"{_SUM_PREFIX}{name}" for index, name in enumerate(amounts)}
                values = {f":n{index}": {"N": str(amount)} for index, amount in enumerate(amounts.values())}
                sums = "".join(f", #n{index} :n{index}" for index in range(len(amounts)))
                return {
                    "Update": {
                        "TableName": self._table_name(key.table),
                        "Key": _key_attributes(key),
                        "UpdateExpression": f"ADD #version :one{sums}",
                        "ExpressionAttributeNames": {"#version": "version", **names},
                        "ExpressionAttributeValues": {":one": {"N": "1"}, **values},
                    }
                }

    def _table_name(self, table: Table) -> str:
        try:
            return self._tables[table]
        except KeyError:
            raise Refused(f"this function has no name of the table {table}") from None


class _TransactionConflict(Throttled):
    """The commit failed only because other transactions write the same items at this moment."""


def _cancellation_error(error: ClientError, keys_text: str) -> EvenkeelError:
    codes = [str(reason.get("Code", "None")) for reason in error.response.get("CancellationReasons", ())]
    failed_indexes = tuple(index for index, code in enumerate(codes) if code == "ConditionalCheckFailed")
    if failed_indexes:
        return Conflict(f"write {keys_text}: the conditions of {list(failed_indexes)} do not hold", failed_indexes)
    other_codes = {code for code in codes if code != "None"}
    message = f"write {keys_text}: cancelled: {', '.join(sorted(other_codes)) or 'no reason given'}"
    if other_codes == {"TransactionConflict"}:
        return _TransactionConflict(message)
    kinds = {_ERRORS_BY_CANCELLATION_REASON.get(code, Unreachable) for code in other_codes} or {Unreachable}
    return next(kind for kind in (Refused, Throttled, Unreachable) if kind in kinds)(message)


def _check_sizes(items: list[dict[str, Any]], keys: list[Key]) -> None:
    """Check the sizes that DynamoDB limits. Its own error does not name the row; this one does.

    Raises:
        Refused: A key, a row or the whole commit is too large.
    """
    total = 0
    for item, key in zip(items, keys, strict=True):
        ((action, request),) = item.items()
        sized_item = request["Item"] if action == "Put" else request["Key"]
        for name, max_bytes in _LONGEST_KEYS.items():
            size = utf8_bytes(sized_item[name]["S"]) if name in sized_item else 1
            if not 1 <= size <= max_bytes:
                raise Refused(
                    f"write {key.table} {key.pk[:80]} {key.sk[:80]}: {name} has {size} bytes, not 1 to {max_bytes}"
                )
        size = sum(len(name) + _value_bytes(value) for name, value in sized_item.items())
        if size > LARGEST_ROW:
            raise Refused(f"write {key.table} {key.pk} {key.sk}: the row has {size} bytes, at most {LARGEST_ROW} fit")
        total += size
    if total > LARGEST_COMMIT:
        raise Refused(f"the commit has {total} bytes, but at most {LARGEST_COMMIT} are allowed")


_LONGEST_KEYS = {"pk": LONGEST_PK, "sk": LONGEST_SK, "stateKey": LONGEST_PK, "stateSort": LONGEST_SK}


def _value_bytes(value: Mapping[str, str]) -> int:
    """Return the number of bytes that DynamoDB counts for a value; an upper bound for a number."""
    return utf8_bytes(value["S"]) if "S" in value else len(value["N"]) // 2 + 2


def _request_token(token: str) -> str:
    """Return a client token of at most 36 characters: the token, its digest if it is longer, or a random one."""
    if len(token) > _MAX_TOKEN_LENGTH:
        return hashlib.sha256(token.encode()).hexdigest()[:_MAX_TOKEN_LENGTH]
    return token or uuid.uuid4().hex


def _version_condition(version: int) -> dict[str, Any]:
    if version == 0:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    return {
        "ConditionExpression": "#version = :version",
        "ExpressionAttributeNames": {"#version": "version"},
        "ExpressionAttributeValues": {":version": {"N": str(version)}},
    }


def _key_attributes(key: Key) -> dict[str, Any]:
    return {"pk": _string_value(key.pk), "sk": _string_value(key.sk)}


def _string_value(text: str) -> dict[str, str]:
    return {"S": aws.escape_surrogates(text)}


def _put_item(row: Row, version: int) -> dict[str, Any]:
    item = {**_key_attributes(row.key), "version": {"N": str(version)}, "doc": {"S": document_text(row.doc)}}
    if row.state:
        item |= {"stateKey": _string_value(row.state[0]), "stateSort": _string_value(row.state[1])}
    if row.expires_at:
        item["ttl"] = {"N": str(int(row.expires_at.timestamp()))}
    return item


def _read_row(table: Table, item: Mapping[str, Any]) -> Row:
    return Row(
        key=Key(table, item["pk"]["S"], item["sk"]["S"]),
        doc=document_of(item),
        version=int(item["version"]["N"]),
        state=(item["stateKey"]["S"], item["stateSort"]["S"]) if "stateKey" in item else None,
        expires_at=datetime.fromtimestamp(int(item["ttl"]["N"]), UTC) if "ttl" in item else None,
    )


def stream_change(stream_record: Mapping[str, Any], tables: Mapping[str, Table]) -> RowChange | None:
    """Return the change that a record of a table's stream reports; None if the row was deleted.

    Source: https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_streams_Record.html

    Args:
        stream_record: The record, as Lambda delivers it.
        tables: The tables by name.
    """
    change = stream_record["dynamodb"]
    if stream_record["eventName"] == "REMOVE":
        return None
    table = tables[stream_record["eventSourceARN"].split(":table/")[1].split("/")[0]]
    old_image = change.get("OldImage")
    return RowChange(
        before=_read_row(table, old_image) if old_image else None,
        after=_read_row(table, change["NewImage"]),
        at=datetime.fromtimestamp(int(change["ApproximateCreationDateTime"]), UTC),
    )


def document_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of an item, including the sums that were added since its last `Put`."""
    doc: dict[str, Any] = _DECODE(item["doc"]["S"]) if "doc" in item else {}
    for name, attribute in item.items():
        if name.startswith(_SUM_PREFIX):
            field = name.removeprefix(_SUM_PREFIX)
            doc[field] = doc.get(field, 0) + _DECODE(attribute["N"])
    return doc


def _parse_number(text: str) -> float:
    """Parse a JSON float. A whole number becomes an int, so that sums stay integers."""
    number = float(text)
    return int(number) if number.is_integer() else number


_DECODE = json.JSONDecoder(parse_float=_parse_number).decode


def _write_cursor(start: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(start, sort_keys=True).encode()).decode()


def _read_cursor(cursor: str) -> Any:
    try:
        start = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, RecursionError) as error:
        raise Refused(f"the cursor is not valid: {cursor!r}") from error
    if not isinstance(start, dict) or set(start) != {"pk", "sk", "stateKey", "stateSort"}:
        raise Refused(f"the cursor is not valid: {cursor!r}")
    return start
