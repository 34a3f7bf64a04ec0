"""The in-memory fake and DynamoDB give the same answers and hold the same rows after any sequence of writes."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenkeel.adapters.dynamo_ledger import DynamoLedger
from evenkeel.ports import Add, ConditionCheck, Conflict, Delete, Key, Ledger, Put, Refused, Row, Table, Write
from tests.contract.test_ledger import make_tables
from tests.examples import examples
from tests.fakes import InMemoryLedger

NAMES = ("A", "B", "C")
STATES = (None, ("S", "1"), ("S", "2"), ("T", "1"))
_examples = itertools.count()


def a_key(name: str) -> Key:
    return Key(Table.JOBS, name, "META")


versions = st.integers(0, 3)
docs = st.fixed_dictionaries({"n": st.integers(-5, 5)}, optional={"text": st.sampled_from(["", "x", "\ud800"])})
names = st.sampled_from(NAMES)
writes: st.SearchStrategy[Write] = st.one_of(
    st.builds(
        lambda name, doc, version, state: Put(Row(a_key(name), doc, version, state)),
        names,
        docs,
        versions,
        st.sampled_from(STATES),
    ),
    st.builds(lambda name, version: Delete(a_key(name), version), names, versions),
    st.builds(lambda name, version: ConditionCheck(a_key(name), version), names, versions),
    st.builds(lambda name, amount: Add(a_key(name), {"n": amount}), names, st.integers(-3, 3)),
)
commits = st.lists(st.lists(writes, min_size=1, max_size=3), max_size=10)


def with_prefix(write: Write, prefix: str) -> Write:
    """Move a write into the partitions of one example."""
    if isinstance(write, Put):
        key, state = write.row.key, write.row.state
        moved = key._replace(pk=prefix + key.pk)
        return Put(replace(write.row, key=moved, state=state and (prefix + state[0], state[1])))
    return replace(write, key=write.key._replace(pk=prefix + write.key.pk))


def answer_of(ledger: Ledger, commit: list[Write]) -> Any:
    try:
        ledger.commit(*commit)
    except Conflict as conflict:
        return conflict.failed
    except Refused:
        return "refused"
    return "done"


def stored_rows(ledger: Ledger, prefix: str) -> Any:
    rows = [ledger.get(a_key(prefix + name)) for name in NAMES]
    pages = [ledger.by_state(Table.JOBS, prefix + state).rows for state in ("S", "T")]
    return rows, [sorted((row.key.pk, row.state) for row in page) for page in pages]


@pytest.fixture(scope="module")
def dynamo() -> Iterator[DynamoLedger]:
    import boto3
    from moto import mock_aws

    with mock_aws():
        yield make_tables(boto3.session.Session(region_name="us-west-2").client("dynamodb"), "twins")


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(commits=commits)
def test_fake_ledger_and_dynamodb_agree_after_any_sequence_of_commits(
    dynamo: DynamoLedger, commits: list[list[Write]]
) -> None:
    twin, prefix = InMemoryLedger(), f"{next(_examples)}/"

    for commit in commits:
        moved = [with_prefix(write, prefix) for write in commit]
        assert answer_of(twin, moved) == answer_of(dynamo, moved)

    assert stored_rows(twin, prefix) == stored_rows(dynamo, prefix)
