"""`-o csv` of the lists: stable columns, empty cells for unknown values, and no formulas."""

import csv
import io
import json
from typing import Any

import pytest

from evenkeel_cli.commands.output import write_csv
from evenkeel_cli.render import Printer
from tests.unit.api.seeds import a_fleet_node, a_job, ago, store
from tests.unit.cli.conftest import CliFixture
from tests.unit.cli.recovery_fixture import store_running_recovery

ROUTE_BY_LIST = {
    "jobs ls": "/v1/jobs",
    "nodes ls": "/v1/nodes",
    "incidents ls": "/v1/incidents",
    "teams ls": "/v1/teams",
    "policy history": "",
    "faults ls": "",
    "drill ls": "",
}


def csv_text(items: list[dict[str, Any]], *fields: str) -> str:
    stream = io.StringIO()
    write_csv(Printer(stream, {}), items, fields)
    return stream.getvalue()


def csv_round_trip(value: Any) -> str:
    """Write a value as CSV, and return it as read back."""
    return next(csv.DictReader(io.StringIO(csv_text([{"first": 1, "cell": value}], "first", "cell"), newline="")))[
        "cell"
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        (0, "0"),
        (-1, "-1"),
        (0.5, "0.5"),
        (True, "true"),
        (False, "false"),
        ("", ""),
        ("plain", "plain"),
        ('say "stop", now', 'say "stop", now'),
        ("two\nlines", "two\nlines"),
        ("old mac\rlines", "old mac\nlines"),
        (["a", "b"], "a;b"),
        ([], ""),
        ([{"jobId": "job-1"}], '[{"jobId": "job-1"}]'),
        ({"a": 1}, '{"a": 1}'),
        ("größe, 節点", "größe, 節点"),
        ("reverse\u202eevil", "reverse?evil"),
    ],
)
def test_csv_value_is_read_back_unchanged(value: Any, expected: str) -> None:
    assert csv_round_trip(value) == expected


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\n", "＝", "＋", "－", "＠"])
def test_csv_text_that_looks_like_a_formula_gets_an_apostrophe(start: str) -> None:
    formula = f'{start}HYPERLINK("https://example.com","x")'

    assert csv_round_trip(formula) == f"'{formula}"
    assert csv_round_trip([formula, "b"]) == f"'{formula};b"


def test_formula_after_a_carriage_return_gets_an_apostrophe() -> None:
    assert csv_round_trip("\r=1+1") == "'\n=1+1"


def test_csv_fields_of_a_missing_object_are_empty() -> None:
    items: list[dict[str, Any]] = [
        {"id": 1, "cordon": {"by": "ana"}},
        {"id": 2, "cordon": None},
        {"id": 3},
        {"id": 4, "cordon": "odd"},
    ]

    assert csv_text(items, "id", "cordon.by") == "id,cordon.by\n1,ana\n2,\n3,\n4,\n"


def test_csv_of_an_empty_list_has_only_its_header() -> None:
    assert csv_text([], "id", "cordon.by") == "id,cordon.by\n"


@pytest.mark.parametrize("words", ["jobs ls", "jobs ls --unmanaged", "nodes ls", "incidents ls", "policy history"])
def test_empty_list_as_csv_prints_no_message(cli: CliFixture, words: str) -> None:
    result = cli.run(*words.split(), "-o", "csv")

    assert (result.exit_code, result.err) == (0, "")
    assert len(result.out.splitlines()) == 1
    assert result.out.split(",")[0] in {"jobId", "name", "instanceId", "incidentId", "number"}


@pytest.mark.parametrize("words", ROUTE_BY_LIST)
def test_csv_of_each_list_has_the_items_of_its_json(cli: CliFixture, words: str) -> None:
    store_running_recovery(cli.gateway)

    result = cli.run(*words.split(), "-o", "csv")

    lines = list(csv.DictReader(io.StringIO(result.out)))
    items = json.loads(cli.run(*words.split(), "-o", "json").out)["items"]
    key = result.out.split(",")[0]
    assert result.exit_code == 0
    assert [line[key] for line in lines] == [str(item[key]) for item in items]
    assert all(None not in line and None not in line.values() for line in lines)


@pytest.mark.parametrize(("words", "path"), [(words, path) for words, path in ROUTE_BY_LIST.items() if path])
def test_csv_has_one_column_per_api_field(cli: CliFixture, words: str, path: str) -> None:
    store_running_recovery(cli.gateway)
    header = cli.run(*words.split(), "-o", "csv").out.splitlines()[0].split(",")

    item = cli.gateway.get(path).document["items"][0]

    tops = {name.split(".")[0] for name in header}
    assert tops <= item.keys() | {"isStale"}
    flat = {name for name, value in item.items() if not isinstance(value, dict | list) and value is not None}
    assert flat <= tops


def test_hostile_text_in_a_reason_stays_in_its_csv_cell(cli: CliFixture) -> None:
    reason = "=cmd|' /C calc'!A0,\"x\"\n+2"
    store(cli.gateway.fakes.ledger, a_job(1, reason=reason), a_fleet_node(1, not_ready_since=ago(hours=1)))

    result = cli.run("jobs", "ls", "-o", "csv")

    lines = list(csv.DictReader(io.StringIO(result.out)))
    assert [line["reason"] for line in lines] == [f"'{reason}"]


def test_truncated_csv_list_is_reported_on_standard_error(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, *(a_job(number) for number in (1, 2)))

    result = cli.run("jobs", "ls", "--limit", "1", "-o", "csv")

    assert len(result.out.splitlines()) == 2
    assert "Listed the first 1 items." in result.err


def test_command_that_changes_an_item_refuses_csv(cli: CliFixture) -> None:
    store(cli.gateway.fakes.ledger, a_job(1))
    result = cli.run("jobs", "cancel", "llama-1", "--yes", "-o", "csv")

    assert result.exit_code == 2
    assert "This command prints table, json, yaml, not csv." in result.err
    assert cli.gateway.get("/v1/jobs/job-0000000001").document["state"] == "PENDING"
