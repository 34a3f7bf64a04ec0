"""The port Ledger: the same tests for the in-memory fake, DynamoDB in moto, and DynamoDB on the engine."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.adapters.dynamo_ledger import DynamoLedger, _put_item, document_of
from evenkeel.ports import (
    Add,
    ConditionCheck,
    Conflict,
    Delete,
    Key,
    Ledger,
    NotFound,
    Put,
    Refused,
    Row,
    Table,
    Throttled,
    Unreachable,
    every,
    row_bytes,
)
from tests.fakes import InMemoryLedger

JOB = Key(Table.JOBS, "JOB#job-1", "META")
OTHER = Key(Table.INCIDENTS, "INC#inc-1", "META")
USAGE = Key(Table.QUOTAS, "TEAM#default", "USAGE")

# moto writes without a lock, and may lose one of two concurrent transactions. DynamoDB does not.
where_writers_race = pytest.mark.parametrize("ledger", ["memory", "engine"], indirect=True)


def make_tables(client: Any, prefix: str) -> DynamoLedger:
    names = {table: f"{prefix}-{table.lower()}" for table in Table}
    for name in names.values():
        client.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            AttributeDefinitions=[
                {"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk", "stateKey", "stateSort")
            ],
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "byState",
                    "KeySchema": [
                        {"AttributeName": "stateKey", "KeyType": "HASH"},
                        {"AttributeName": "stateSort", "KeyType": "RANGE"},
                    ],
                    "Projection": {"ProjectionType": "ALL"},
                }
            ],
        )
    return DynamoLedger(names, client)


@pytest.fixture(params=["memory", "moto", "engine"])
def ledger(request: pytest.FixtureRequest, unique: str) -> Iterator[Ledger]:
    if request.param == "memory":
        yield InMemoryLedger()
    elif request.param == "moto":
        yield make_tables(request.getfixturevalue("moto_client")("dynamodb"), unique)
    else:
        yield make_tables(request.getfixturevalue("engine_user").client("dynamodb"), unique)


def test_recreated_row_never_reuses_versions(ledger: Ledger) -> None:
    ledger.commit(Put(Row(JOB, {"life": 1}), first_version=1_000))
    before = stored_row(ledger, JOB)
    ledger.commit(Delete(JOB, before.version))
    ledger.commit(anew := Put(Row(JOB, {"life": 2}), first_version=2_000))

    with pytest.raises(Conflict):
        ledger.commit(Put(Row(JOB, {"life": 1}, before.version)))
    with pytest.raises(Conflict):
        ledger.commit(Delete(JOB, before.version))

    now = stored_row(ledger, JOB)
    assert (now.version, now.doc) == (anew.version, {"life": 2}) == (2_001, {"life": 2})
    ledger.commit(raised := Put(Row(JOB, {"life": 3}, now.version), first_version=3_000))
    assert stored_row(ledger, JOB).version == raised.version == 2_002


def stored_row(ledger: Ledger, key: Key) -> Row:
    row = ledger.get(key)
    assert row is not None
    return row


def test_written_row_is_read_at_the_next_version(ledger: Ledger) -> None:
    expires = datetime(2027, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    doc: dict[str, Any] = {
        "text": "",
        "none": None,
        "yes": True,
        "n": 3,
        "f": 0.25,
        "list": [1, "a", {}],
        "map": {"a": {"b": []}},
    }

    ledger.commit(Put(Row(JOB, doc, 0, ("JOB#PENDING", "2026#job-1"), expires)))

    assert stored_row(ledger, JOB) == Row(JOB, doc, 1, ("JOB#PENDING", "2026#job-1"), expires.replace(microsecond=0))


def test_numbers_are_read_unchanged_and_integers_as_int(ledger: Ledger) -> None:
    doc = {"whole": 2.0, "big": 10**15, "tiny": 1e-07, "negative": -1.5, "zero": 0.0}

    ledger.commit(Put(Row(JOB, doc)))

    read = stored_row(ledger, JOB).doc
    assert read == {"whole": 2, "big": 10**15, "tiny": 1e-07, "negative": -1.5, "zero": 0}
    assert isinstance(read["whole"], int)


def test_invalid_utf8_text_is_stored_as_its_escape(ledger: Ledger) -> None:
    ledger.commit(Put(Row(JOB, {"detail": "a\ud800b \u202e \x00 ok", "\udfff": 1})))

    assert stored_row(ledger, JOB).doc == {"detail": "a\\ud800b \u202e \x00 ok", "\\udfff": 1}


def test_missing_row_is_none(ledger: Ledger) -> None:
    assert ledger.get(JOB) is None


def test_batch_read_keeps_the_order_of_the_keys(ledger: Ledger) -> None:
    ledger.commit(Put(Row(OTHER, {"n": 2})), Put(Row(JOB, {"n": 1})))
    missing = Key(Table.JOBS, "JOB#job-2", "META")

    read = ledger.batch_get(JOB, missing, OTHER, JOB)

    assert read == (Row(JOB, {"n": 1}, 1), None, Row(OTHER, {"n": 2}, 1), Row(JOB, {"n": 1}, 1))


def test_empty_batch_read_returns_no_rows(ledger: Ledger) -> None:
    assert ledger.batch_get() == ()


def test_batch_read_accepts_keys_with_invalid_utf8(ledger: Ledger) -> None:
    key = Key(Table.JOBS, "JOB#a\ud800b", "META")
    ledger.commit(Put(Row(key, {"n": 1})))

    (read,) = ledger.batch_get(key)

    assert read is not None
    assert read.doc == {"n": 1}


def test_oversized_batch_read_is_refused(ledger: Ledger) -> None:
    with pytest.raises(Refused, match="at most 100"):
        ledger.batch_get(*(Key(Table.JOBS, f"JOB#job-{number}", "META") for number in range(101)))


def test_first_put_conflicts_with_an_existing_row(ledger: Ledger) -> None:
    ledger.commit(Put(Row(JOB, {"by": "first"})))

    with pytest.raises(Conflict) as caught:
        ledger.commit(Put(Row(JOB, {"by": "second"})))

    assert caught.value.failed == (0,)
    assert stored_row(ledger, JOB).doc == {"by": "first"}


def test_put_needs_version_that_it_read(ledger: Ledger) -> None:
    ledger.commit(Put(Row(JOB, {"n": 1})))
    read = stored_row(ledger, JOB)
    ledger.commit(Put(replace(read, doc={"n": 2})))

    with pytest.raises(Conflict):
        ledger.commit(Put(replace(read, doc={"n": 3})))

    assert stored_row(ledger, JOB).doc == {"n": 2}
    assert stored_row(ledger, JOB).version == 2


def test_put_at_a_version_conflicts_with_a_deleted_row(ledger: Ledger) -> None:
    with pytest.raises(Conflict):
        ledger.commit(Put(Row(JOB, {}, 3)))


def test_delete_needs_version_that_it_read(ledger: Ledger) -> None:
    ledger.commit(Put(Row(JOB, {})))

    with pytest.raises(Conflict):
        ledger.commit(Delete(JOB, 7))
    ledger.commit(Delete(JOB, 1))

    assert ledger.get(JOB) is None


def test_failed_condition_cancels_the_commit_and_is_named(ledger: Ledger) -> None:
    ledger.commit(Put(Row(OTHER, {"n": 1})))

    with pytest.raises(Conflict) as caught:
        ledger.commit(Put(Row(JOB, {})), ConditionCheck(OTHER, 9), Add(USAGE, {"gpus": 8}))

    assert caught.value.failed == (1,)
    assert ledger.get(JOB) is None
    assert ledger.get(USAGE) is None


def test_condition_check_guards_the_commit_without_writing(ledger: Ledger) -> None:
    ledger.commit(Put(Row(OTHER, {"n": 1})))

    ledger.commit(Put(Row(JOB, {})), ConditionCheck(OTHER, 1), ConditionCheck(USAGE, 0))

    assert stored_row(ledger, OTHER).version == 1
    assert ledger.get(USAGE) is None


def test_add_creates_a_missing_row_and_increases_an_existing_one(ledger: Ledger) -> None:
    ledger.commit(Add(USAGE, {"gpus": 8, "jobs": 1}))
    ledger.commit(Add(USAGE, {"gpus": -3}))

    row = stored_row(ledger, USAGE)
    assert (row.doc, row.version) == ({"gpus": 5, "jobs": 1}, 2)


def test_add_increases_a_put_value_and_later_put_replaces_it(ledger: Ledger) -> None:
    ledger.commit(Put(Row(USAGE, {"gpus": 10, "name": "default"})))
    ledger.commit(Add(USAGE, {"gpus": 6}))
    read = stored_row(ledger, USAGE)
    assert read.doc == {"gpus": 16, "name": "default"}

    ledger.commit(Put(replace(read, doc={**read.doc, "gpus": read.doc["gpus"] + 1})))

    row = stored_row(ledger, USAGE)
    assert (row.doc, row.version) == ({"gpus": 17, "name": "default"}, 3)


@where_writers_race
def test_concurrent_adds_are_never_lost(ledger: Ledger) -> None:
    def add() -> None:
        for _ in range(5):
            ledger.commit(Add(USAGE, {"gpus": 1}))

    run_together(*[add] * 4)

    assert stored_row(ledger, USAGE).doc == {"gpus": 20}


@where_writers_race
def test_exactly_one_of_many_concurrent_first_puts_succeeds(ledger: Ledger) -> None:
    won: list[int] = []

    def add_row_concurrently(number: int) -> None:
        try:
            ledger.commit(Put(Row(OTHER, {"by": number})), Put(Row(Key(Table.INCIDENTS, "OPEN#life", "META"), {})))
        except Conflict:
            return
        won.append(number)

    run_together(*[lambda number=number: add_row_concurrently(number) for number in range(8)])

    assert [stored_row(ledger, OTHER).doc["by"]] == won


def test_two_writes_to_one_row_are_refused(ledger: Ledger) -> None:
    with pytest.raises(Refused):
        ledger.commit(ConditionCheck(JOB, 0), Put(Row(JOB, {})))


def test_more_than_a_hundred_writes_are_refused(ledger: Ledger) -> None:
    with pytest.raises(Refused):
        ledger.commit(*(Put(Row(Key(Table.JOBS, "JOB#job-1", f"EVENT#{n}"), {})) for n in range(101)))


def test_hundred_writes_over_all_tables_are_one_commit(ledger: Ledger) -> None:
    tables = list(Table)

    ledger.commit(*(Put(Row(Key(tables[n % 4], f"P#{n % 4}", f"EVENT#{n:03d}"), {"n": n})) for n in range(100)))

    assert [len(ledger.partition(table, f"P#{n}")) for n, table in enumerate(tables)] == [25] * 4


def row_of_size(sk: str, size: int, text: str = "x") -> Put:
    """Return a row of exactly this many bytes in DynamoDB: names and values, in UTF-8."""
    key = Key(Table.JOBS, "JOB#job-1", sk)
    names_and_keys = len("pk" + key.pk + "sk" + sk + "version" + "doc") + len('{"text":""}') + 2
    count, rest = divmod(size - names_and_keys, len(text.encode()))
    return Put(Row(key, {"text": text * count + "x" * rest}))


@pytest.mark.parametrize("text", ["x", "\u20ac", "\U0001f600"])
def test_row_may_contain_at_most_400_kilobytes_of_utf8(ledger: Ledger, text: str) -> None:
    ledger.commit(row_of_size("FITS", 400_000, text))

    with pytest.raises(Refused):
        ledger.commit(row_of_size("LARGE", 400_001, text))

    assert [row.key.sk for row in ledger.partition(Table.JOBS, "JOB#job-1")] == ["FITS"]


def test_commit_may_contain_at_most_four_megabytes(ledger: Ledger) -> None:
    size = 4_000_000 // 16
    ledger.commit(*(row_of_size(f"FITS#{n:02d}", size) for n in range(16)))

    with pytest.raises(Refused):
        ledger.commit(*(row_of_size(f"LARGE#{n:02d}", size + (n == 0)) for n in range(16)))

    assert len(ledger.partition(Table.JOBS, "JOB#job-1")) == 16


@pytest.mark.parametrize(
    ("pk", "sk", "state"),
    [
        ("x" * 2049, "META", None),
        ("\u20ac" * 683, "META", None),
        ("JOB#1", "x" * 1025, None),
        ("JOB#1", "META", ("x" * 2049, "1")),
        ("JOB#1", "META", ("S", "x" * 1025)),
        ("", "META", None),
    ],
)
def test_key_beyond_its_length_is_refused(ledger: Ledger, pk: str, sk: str, state: tuple[str, str] | None) -> None:
    with pytest.raises(Refused):
        ledger.commit(Put(Row(Key(Table.JOBS, pk, sk), {}, 0, state)))


def test_keys_of_the_full_length_are_kept(ledger: Ledger) -> None:
    key = Key(Table.JOBS, "p" * 2048, "s" * 1024)
    ledger.commit(Put(Row(key, {"n": 1}, 0, ("x" * 2048, "y" * 1024))))

    assert stored_row(ledger, key).doc == {"n": 1}


@given(
    doc=st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=5),
    sk=st.text(min_size=1, max_size=40),
    state=st.none() | st.tuples(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20)),
)
def test_row_size_is_never_underestimated(doc: dict[str, str], sk: str, state: tuple[str, str] | None) -> None:
    row = Row(Key(Table.JOBS, "JOB#job-1", sk), doc, 123, state, datetime(2027, 1, 2, tzinfo=UTC))
    item = _put_item(row, 124)
    size = sum(len(name) + len(next(iter(value.values())).encode()) for name, value in item.items())

    assert size <= row_bytes(row) <= size + 64


def test_empty_commit_writes_nothing(ledger: Ledger) -> None:
    ledger.commit()


def test_document_that_is_not_json_is_refused(ledger: Ledger) -> None:
    for doc in ({"at": datetime.now(UTC)}, {"n": float("nan")}, {"n": float("inf")}):
        with pytest.raises(Refused):
            ledger.commit(Put(Row(JOB, doc)))


def test_partition_is_read_completely_in_order_and_by_prefix(ledger: Ledger) -> None:
    for sk in ("META", "EVENT#2", "EVENT#10", "WAIT#node-back"):
        ledger.commit(Put(Row(Key(Table.JOBS, "JOB#job-1", sk), {"sk": sk})))
    ledger.commit(Put(Row(Key(Table.JOBS, "JOB#job-10", "META"), {})))

    rows = ledger.partition(Table.JOBS, "JOB#job-1")
    events = ledger.partition(Table.JOBS, "JOB#job-1", "EVENT#")

    assert [row.key.sk for row in rows] == ["EVENT#10", "EVENT#2", "META", "WAIT#node-back"]
    assert [row.doc["sk"] for row in events] == ["EVENT#10", "EVENT#2"]


def test_partition_above_one_megabyte_is_read_completely(ledger: Ledger) -> None:
    for n in range(12):
        ledger.commit(Put(Row(Key(Table.JOBS, "JOB#job-1", f"EVENT#{n:02d}"), {"text": "x" * 100_000})))

    rows = ledger.partition(Table.JOBS, "JOB#job-1")

    assert [row.key.sk for row in rows] == [f"EVENT#{n:02d}" for n in range(12)]


def test_row_moves_between_states_and_leaves_the_state_index(ledger: Ledger) -> None:
    ledger.commit(Put(Row(JOB, {}, 0, ("JOB#PENDING", "1"))))
    ledger.commit(Put(Row(JOB, {}, 1, ("JOB#RUNNING", "1"))))
    assert ledger.by_state(Table.JOBS, "JOB#PENDING").rows == ()
    assert [row.key for row in ledger.by_state(Table.JOBS, "JOB#RUNNING").rows] == [JOB]

    ledger.commit(Put(Row(JOB, {}, 2)))

    assert ledger.by_state(Table.JOBS, "JOB#RUNNING").rows == ()


def test_adding_to_a_field_leaves_row_in_its_state(ledger: Ledger) -> None:
    ledger.commit(Put(Row(USAGE, {"gpus": 1}, 0, ("TEAM", "default"))))

    ledger.commit(Add(USAGE, {"gpus": 1}))

    assert [row.doc for row in ledger.by_state(Table.QUOTAS, "TEAM").rows] == [{"gpus": 2}]


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_of_a_state_return_each_row_once_in_order(ledger: Ledger, newest_first: bool) -> None:
    keys = [Key(Table.JOBS, f"JOB#job-{n}", "META") for n in range(7)]
    for n, key in enumerate(keys):
        ledger.commit(Put(Row(key, {}, 0, ("JOB#PENDING", f"{n % 6}"))))

    def page(cursor: str | None) -> Any:
        return ledger.by_state(Table.JOBS, "JOB#PENDING", limit=3, cursor=cursor, newest_first=newest_first)

    rows = list(every(page))
    sorts = [row.state[1] for row in rows if row.state]
    assert sorts == sorted(sorts, reverse=newest_first)
    assert {row.key for row in rows} == set(keys)
    assert len(rows) == 7


@pytest.mark.parametrize("newest_first", [False, True])
def test_prefix_filters_state_over_all_pages(ledger: Ledger, newest_first: bool) -> None:
    for n, sort in enumerate(("ab#1", "a#1", "a#2", "a#3", "a#4", "b#1", "a", "A#1")):
        ledger.commit(Put(Row(Key(Table.JOBS, f"JOB#job-{n}", "META"), {}, 0, ("JOB#PENDING", sort))))

    def page(cursor: str | None) -> Any:
        return ledger.by_state(
            Table.JOBS, "JOB#PENDING", prefix="a#", limit=3, cursor=cursor, newest_first=newest_first
        )

    sorts = [row.state[1] for row in every(page) if row.state]
    assert sorts == sorted(("a#1", "a#2", "a#3", "a#4"), reverse=newest_first)


def test_at_most_one_empty_page_follows_the_last_full_page(ledger: Ledger) -> None:
    for n in range(4):
        ledger.commit(Put(Row(Key(Table.JOBS, f"JOB#{n}", "META"), {}, 0, ("S", f"{n}"))))

    first = ledger.by_state(Table.JOBS, "S", limit=4)

    assert len(first.rows) == 4
    assert first.cursor is None or ledger.by_state(Table.JOBS, "S", limit=4, cursor=first.cursor).rows == ()


def test_invalid_cursor_is_refused(ledger: Ledger) -> None:
    for cursor in ("nonsense", "e30=", "###", "é"):
        with pytest.raises(Refused):
            ledger.by_state(Table.JOBS, "S", cursor=cursor)


# moto does not remember client tokens.
@pytest.mark.parametrize("ledger", ["memory", "engine"], indirect=True)
@pytest.mark.parametrize("length", [20, 60])
def test_commit_repeated_under_its_token_has_no_second_effect(ledger: Ledger, unique: str, length: int) -> None:
    token = unique.ljust(length, "/")
    writes = (Put(Row(JOB, {"n": 1})), Add(USAGE, {"gpus": 8}))
    ledger.commit(*writes, client_token=token)

    ledger.commit(*writes, client_token=token)

    assert stored_row(ledger, USAGE).doc == {"gpus": 8}
    assert stored_row(ledger, JOB).version == 1


@pytest.mark.parametrize("ledger", ["memory", "engine"], indirect=True)
def test_token_used_for_other_writes_is_refused(ledger: Ledger, unique: str) -> None:
    ledger.commit(Put(Row(JOB, {"n": 1})), client_token=unique)

    with pytest.raises(Refused):
        ledger.commit(Put(Row(OTHER, {"n": 1})), client_token=unique)


# ---------------------------------------------------------------- what only AWS answers


class StubDynamoClient:
    """Answers TransactWriteItems with the given answers, in order."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    def transact_write_items(self, **request: Any) -> None:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer


def refusal(code: str, *reasons: str, status: int = 400) -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    if reasons:
        answer["CancellationReasons"] = [{"Code": reason} for reason in reasons]
    return ClientError(answer, "TransactWriteItems")


def stubbed(client: StubDynamoClient, pauses: list[float]) -> DynamoLedger:
    return DynamoLedger({table: table.lower() for table in Table}, client, pauses.append)


def test_conflicting_transaction_is_retried_under_the_same_token() -> None:
    conflict = refusal("TransactionCanceledException", "None", "TransactionConflict")
    client, pauses = StubDynamoClient(conflict, conflict, None), list[float]()

    stubbed(client, pauses).commit(Put(Row(JOB, {})), Put(Row(OTHER, {})))

    assert [request["ClientRequestToken"] for request in client.requests] == [
        client.requests[0]["ClientRequestToken"]
    ] * 3
    assert len(pauses) == 2


class SlowTables:
    """Serves one key per request and returns the rest as unprocessed, as a busy table may."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def batch_get_item(self, RequestItems: Any) -> Any:  # noqa: N803 - boto3's own spelling
        self.requests.append(RequestItems)
        ((name, request),) = RequestItems.items()
        first, *rest = request["Keys"]
        item = {**first, "version": {"N": "1"}, "doc": {"S": "{}"}}
        left = {name: {**request, "Keys": rest}} if rest else {}
        return {"Responses": {name: [item]}, "UnprocessedKeys": left}


def test_unprocessed_keys_are_read_again() -> None:
    keys = [Key(Table.JOBS, f"JOB#job-{number}", "META") for number in range(3)]
    client, pauses = SlowTables(), list[float]()

    read = DynamoLedger({Table.JOBS: "jobs"}, client, pauses.append).batch_get(*keys)

    assert [row.key for row in read if row] == keys
    assert [request["jobs"]["ConsistentRead"] for request in client.requests] == [True] * 3
    assert len(pauses) == 2


def test_table_that_stays_busy_throttles_read() -> None:
    keys = [Key(Table.JOBS, f"JOB#job-{number}", "META") for number in range(5)]

    with pytest.raises(Throttled, match="did not return all"):
        DynamoLedger({Table.JOBS: "jobs"}, SlowTables(), lambda _seconds: None).batch_get(*keys)


def test_persistent_transaction_conflict_is_throttled() -> None:
    client = StubDynamoClient(*[refusal("TransactionCanceledException", "TransactionConflict")] * 4)

    with pytest.raises(Throttled):
        stubbed(client, []).commit(Put(Row(JOB, {})))


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (refusal("TransactionCanceledException", "None", "ConditionalCheckFailed"), Conflict),
        (refusal("TransactionCanceledException", "TransactionConflict", "ConditionalCheckFailed"), Conflict),
        (refusal("TransactionCanceledException", "ThrottlingError", "TransactionConflict"), Throttled),
        (refusal("TransactionCanceledException", "ProvisionedThroughputExceeded"), Throttled),
        (refusal("TransactionCanceledException", "ValidationError"), Refused),
        (refusal("TransactionCanceledException", "SomethingNew"), Unreachable),
        (refusal("TransactionInProgressException"), Throttled),
        (refusal("IdempotentParameterMismatchException"), Refused),
        (refusal("ProvisionedThroughputExceededException"), Throttled),
        (refusal("ResourceNotFoundException"), NotFound),
        (refusal("InternalServerError", status=500), Unreachable),
        (refusal("SomethingNew", status=503), Unreachable),
        (ReadTimeoutError(endpoint_url="x"), Unreachable),
        (refusal("SomethingNew"), ClientError),
    ],
)
def test_each_dynamodb_error_has_its_own_error(error: Exception, meaning: type[Exception]) -> None:
    with pytest.raises(meaning) as caught:
        stubbed(StubDynamoClient(error), []).commit(Put(Row(JOB, {})), Put(Row(OTHER, {})))

    assert type(caught.value) is meaning


def test_unconfigured_table_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="QUOTAS"):
        DynamoLedger({}, StubDynamoClient()).commit(Add(USAGE, {"gpus": 1}))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_every_json_value_survives_being_stored(value: Any) -> None:
    assert document_of(_put_item(Row(USAGE, {"value": value}), 1)) == {"value": value}


def run_together(*bodies: Any) -> None:
    faults: list[BaseException] = []

    def guarded(body: Any) -> None:
        try:
            body()
        except BaseException as fault:  # noqa: BLE001 - told by the test's own thread
            faults.append(fault)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not faults
