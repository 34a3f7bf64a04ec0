"""`GET /v1/decisions`: the decisions about the fleet, or about one job or incident, in pages."""

from datetime import timedelta
from typing import Any

import pytest

from evenkeel.ports import RowChange, row_bytes
from evenkeel.services.publishing import publish_events
from evenkeel.services.tables import subject_rows
from tests.fakes.system import A_MOMENT
from tests.fakes.world import a_context
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import a_decision, a_job, an_incident, list_decision, store

JOB = "job-0000000001"
LIST = f"/v1/decisions?subject={JOB}"


def store_decisions(gateway: Gateway, count: int, subject: str = JOB, **changes: Any) -> None:
    for number in range(1, count + 1):
        decided_at = A_MOMENT - timedelta(days=2) + timedelta(seconds=number)
        store(gateway.fakes.ledger, a_decision(number, subject, decided_at=decided_at, **changes))


def every_page(gateway: Gateway, path: str) -> tuple[list[str], int]:
    """Read a list to its end. Return the ids, and the size of the largest page."""
    ids: list[str] = []
    token, largest_answer = "", 0
    while True:
        answer = gateway.get(path + (f"&nextPageToken={token}" if token else ""))
        ids += [item["decisionId"] for item in answer.document["items"]]
        largest_answer = max(largest_answer, len(answer.text))
        token = answer.document["nextPageToken"]
        if not token:
            return ids, largest_answer


def test_ten_thousand_decisions_are_read_page_by_page(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_job(1))
    store_decisions(gateway, 10_000, kind="ADMISSION")

    ids, largest_answer = every_page(gateway, f"{LIST}&pageSize=200")

    assert ids == [f"dec-{number:010d}" for number in range(10_000, 0, -1)]
    assert largest_answer < 100_000


def test_ten_thousand_decisions_of_the_fleet_page_over_months(gateway: Gateway) -> None:
    for number in range(1, 10_001):
        subject = f"job-{number % 7:010d}" if number % 3 else f"inc-{number:010d}"
        decided_at = A_MOMENT - timedelta(minutes=12 * (10_000 - number))
        list_decision(gateway.fakes.ledger, a_decision(number, subject, kind="DRAIN", decided_at=decided_at))

    ids, largest_answer = every_page(gateway, "/v1/decisions?pageSize=200")

    assert ids == [f"dec-{number:010d}" for number in range(10_000, 0, -1)]
    assert largest_answer < 100_000


def test_page_token_of_fleet_survives_the_end_of_a_month(gateway: Gateway) -> None:
    ledger, clock = gateway.fakes.ledger, gateway.fakes.clock
    for number in range(1, 4):
        list_decision(ledger, a_decision(number, JOB, decided_at=A_MOMENT - timedelta(days=10 * (4 - number))))
    first = gateway.get("/v1/decisions?pageSize=1").document
    clock.advance(timedelta(days=28).total_seconds())
    list_decision(ledger, a_decision(4, JOB, decided_at=clock.now()))

    answer = gateway.get(f"/v1/decisions?pageSize=9&nextPageToken={first['nextPageToken']}")

    assert answer.status == 200, answer.text
    assert [item["decisionId"] for item in answer.document["items"]] == ["dec-0000000002", "dec-0000000001"]


def test_fleet_list_shows_each_recorded_decision_once(gateway: Gateway) -> None:
    about_job = a_decision(1, JOB, kind="ADMISSION", facts={"request": "x" * 100_000})
    about_incident = a_decision(2, "inc-0000000001", kind="REPAIR", action="REPLACE")
    for decision in (about_job, about_incident, about_job):
        change = RowChange(None, subject_rows.decision_row(decision), A_MOMENT)
        publish_events.run(change, a_context(gateway.fakes))

    document = gateway.get("/v1/decisions").document
    repairs = gateway.get("/v1/decisions?kind=REPAIR").document

    assert [(item["decisionId"], item["subject"]) for item in document["items"]] == [
        ("dec-0000000002", "inc-0000000001"),
        ("dec-0000000001", JOB),
    ]
    assert (document["subject"], document["keptDays"], document["isRedacted"]) == (None, 90, False)
    assert [item["action"] for item in repairs["items"]] == ["REPLACE"]
    assert gateway.fakes.event_bus.events == [], "a decision is no event"


def test_listed_row_of_a_decision_is_small(gateway: Gateway) -> None:
    decision = a_decision(1, JOB, facts={"request": "x" * 100_000}, alternatives=({"option": "WAIT", "whyNot": "No."},))

    list_decision(gateway.fakes.ledger, decision)

    (row,) = gateway.fakes.ledger.rows.values()
    assert row_bytes(row) < 1_000


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


@pytest.mark.parametrize("query", ["?subject=job", "?subject=i-00000000000000001", f"?subject={JOB}&kind=repair"])
def test_wrong_query_of_decisions_names_the_field(gateway: Gateway, query: str) -> None:
    answer = gateway.get(f"/v1/decisions{query}")

    assert answer.status == 400
    assert {error["field"] for error in answer.document["errors"]} <= {"subject", "kind", "kind[0]"}
