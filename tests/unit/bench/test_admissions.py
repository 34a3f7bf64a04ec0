"""Admission rates of a cycle and of the bare loop, which sends fixed transactions at the current tree version."""

import json
from typing import Any

import pytest

from bench.admissions import AdmissionReport, held_to, on_tables, report_lines
from bench.fixed_admissions import ADMISSIONS, transactions
from evenkeel.adapters.dynamo_ledger import DynamoLedger
from evenkeel.ports import Put, Row, Table
from evenkeel.services.tables import job_rows, quota_rows


def a_report(**seconds: tuple[float, ...]) -> AdmissionReport:
    return AdmissionReport(writers=1, admissions=120, transactions=10, items=640, bytes=2_329_000, seconds=seconds)


def a_transaction(version: int) -> list[dict[str, Any]]:
    """Return the items that the ledger sends for an admission and the quota tree."""

    class Client:
        def transact_write_items(self, **request: Any) -> None:
            sent.extend(request["TransactItems"])

    sent: list[dict[str, Any]] = []
    ledger = DynamoLedger({table: f"round1-{table.lower()}" for table in Table}, Client())
    ledger.commit(
        Put(Row(quota_rows.tree_key(), {"schedulerState": {}}, version)),
        Put(Row(job_rows.job_key("job-1"), {"a": 1}, version)),
    )
    return sent


def test_cycle_twice_as_slow_as_the_baseline_has_ratio_half() -> None:
    figures = a_report(cycle=(2.0, 4.0, 3.0), bare=(1.0, 2.0, 1.5)).figures()

    assert (figures["ratio"], figures["low"], figures["high"]) == (0.5, 0.5, 0.5)
    assert figures["perSecond"] == {"cycle": 40.0, "bare": 80.0}


def test_cycle_as_fast_as_the_baseline_has_ratio_one() -> None:
    assert a_report(cycle=(1.5, 2.5), bare=(1.5, 2.5)).figures()["ratio"] == 1.0


def test_bound_is_the_ratio_of_the_same_rows_without_decisions() -> None:
    figures = a_report(cycle=(4.0, 4.0), bare=(1.0, 1.0), rows=(2.0, 2.0)).figures()

    assert (figures["ratio"], figures["bound"]["ratio"]) == (0.25, 0.5)
    assert report_lines([figures])[-1].endswith("MISSED")


def test_recorded_transactions_are_sent_to_the_tables_of_their_round() -> None:
    recorded = a_transaction(4)

    (sent,) = on_tables([recorded], "round9")

    assert [item["Put"]["TableName"] for item in sent] == ["round9-quotas", "round9-jobs"]
    assert [item["Put"]["Item"] for item in sent] == [item["Put"]["Item"] for item in recorded]


@pytest.mark.parametrize(("seconds", "shown"), [(1.5, "met"), (1.6, "MISSED")])
def test_table_shows_whether_the_target_was_reached(seconds: float, shown: str) -> None:
    report = a_report(cycle=(seconds,), bare=(1.0,))

    assert report_lines([report.figures()])[-1].endswith(shown)


def test_baseline_transaction_has_the_writes_of_a_real_cycle() -> None:
    recorded, wanted = a_transaction(4), a_transaction(9)

    documents = held_to(recorded, 9)

    assert documents[0] == wanted[0]
    assert documents[1:] == recorded[1:]
    assert recorded == a_transaction(4)


def test_baseline_writes_640_items_in_ten_transactions() -> None:
    transactions_sent = transactions([f"job-{number:010d}" for number in range(ADMISSIONS)], "round7")

    puts = [item["Put"] for transaction in transactions_sent for item in transaction if "Put" in item]
    assert (len(transactions_sent), sum(map(len, transactions_sent))) == (10, 640)
    assert len(json.dumps(transactions_sent)) == pytest.approx(2_700_000, rel=0.01)
    assert {put["TableName"] for put in puts} == {"round7-quotas", "round7-jobs", "round7-incidents"}
    assert all(json.loads(put["Item"]["doc"]["S"]) for put in puts)


def test_too_few_jobs_for_the_baseline_are_refused() -> None:
    with pytest.raises(ValueError, match="119 jobs"):
        transactions(["job-1"] * 119, "round7")
