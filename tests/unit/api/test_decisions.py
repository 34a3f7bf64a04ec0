"""`GET /v1/decisions`: the decisions about one job or incident, in pages."""

from datetime import timedelta
from typing import Any

import pytest

from tests.fakes.system import A_MOMENT
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import a_decision, a_job, an_incident, store

JOB = "job-0000000001"
LIST = f"/v1/decisions?subject={JOB}"


def store_decisions(gateway: Gateway, count: int, subject: str = JOB, **changes: Any) -> None:
    for number in range(1, count + 1):
        decided_at = A_MOMENT - timedelta(days=2) + timedelta(seconds=number)
        store(gateway.fakes.ledger, a_decision(number, subject, decided_at=decided_at, **changes))


def test_ten_thousand_decisions_are_read_page_by_page(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_job(1))
    store_decisions(gateway, 10_000, kind="ADMISSION")
    ids: list[str] = []
    token, largest_answer = "", 0
    while True:
        answer = gateway.get(f"{LIST}&pageSize=200" + (f"&nextPageToken={token}" if token else ""))
        ids += [item["decisionId"] for item in answer.document["items"]]
        largest_answer = max(largest_answer, len(answer.text))
        token = answer.document["nextPageToken"]
        if not token:
            break

    assert ids == [f"dec-{number:010d}" for number in range(10_000, 0, -1)]
    assert largest_answer < 100_000


def test_kind_selects_decisions_of_an_incident(gateway: Gateway) -> None:
    incident = an_incident(1)
    store(gateway.fakes.ledger, incident)
    store(gateway.fakes.ledger, a_decision(1, incident.incident_id, kind="RECOVERY"))
    store(gateway.fakes.ledger, a_decision(2, incident.incident_id, kind="REPAIR"))

    repairs = gateway.get(f"/v1/decisions?subject={incident.incident_id}&kind=REPAIR").document

    assert [item["decisionId"] for item in repairs["items"]] == ["dec-0000000002"]
    assert repairs["isRedacted"] is False


@pytest.mark.parametrize("subject", ["job-0000000404", "inc-0000000404"])
def test_decisions_of_an_unknown_subject_are_not_found(gateway: Gateway, subject: str) -> None:
    answer = gateway.get(f"/v1/decisions?subject={subject}")

    assert (answer.status, answer.document["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("query", ["", "?subject=", "?subject=i-00000000000000001", f"?subject={JOB}&kind=repair"])
def test_wrong_query_of_decisions_names_the_field(gateway: Gateway, query: str) -> None:
    answer = gateway.get(f"/v1/decisions{query}")

    assert answer.status == 400
    assert {error["field"] for error in answer.document["errors"]} <= {"subject", "kind", "kind[0]"}
