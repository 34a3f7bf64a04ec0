"""`GET /v1/events`: changes with filters, in pages that stay complete while events arrive."""

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from evenkeel.ports import Row, RowChange
from evenkeel.services.publishing import publish_events
from evenkeel.services.tables import incident_rows, job_rows
from tests.fakes.system import A_MOMENT
from tests.fakes.world import a_context
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import a_job, an_incident


def publish_change(
    gateway: Gateway, row: Row, before: Row | None = None, *, at: datetime, recorded_at: datetime
) -> None:
    """Publish a change that was stored at one time and recorded by the publisher at another."""
    gateway.fakes.clock.set(recorded_at)
    publish_events.run(RowChange(before, row, at), a_context(gateway.fakes))
    gateway.fakes.clock.set(A_MOMENT)


def publish_submission(
    gateway: Gateway, number: int, *, recorded_at: datetime, at: datetime | None = None, team: str = ""
) -> None:
    job = a_job(number)
    row = job_rows.job_row(job.replace(spec=job.spec.replace(team=team)), 1)
    publish_change(gateway, row, at=at or recorded_at, recorded_at=recorded_at)


def listed_event_ids(gateway: Gateway, query: str = "") -> list[str]:
    subjects: list[str] = []
    token = ""
    while True:
        page = gateway.get(f"/v1/events?pageSize=2{query}{token}").document
        subjects += [event["subject"] for event in page["items"]]
        if not page["nextPageToken"]:
            return subjects
        token = f"&nextPageToken={page['nextPageToken']}"


def test_events_come_newest_first_over_months(gateway: Gateway) -> None:
    for number, days in enumerate((80, 40, 20, 3, 0), 1):
        publish_submission(gateway, number, recorded_at=A_MOMENT - timedelta(days=days))

    assert listed_event_ids(gateway) == [f"job-{number:010d}" for number in (5, 4, 3, 2, 1)]
    assert gateway.get("/v1/events").document["keptDays"] == 90


def test_events_are_ordered_by_when_they_were_recorded(gateway: Gateway) -> None:
    publish_submission(gateway, 1, recorded_at=A_MOMENT - timedelta(minutes=5))
    publish_submission(gateway, 2, at=A_MOMENT - timedelta(hours=2), recorded_at=A_MOMENT - timedelta(minutes=1))

    newest, older = gateway.get("/v1/events").document["items"]

    assert (newest["subject"], older["subject"]) == ("job-0000000002", "job-0000000001")
    assert newest["occurredAt"] < older["occurredAt"]
    since = f"{A_MOMENT - timedelta(minutes=2):%Y-%m-%dT%H:%M:%SZ}"
    assert listed_event_ids(gateway, f"&since={since}") == ["job-0000000002"], "a caller who asks again misses nothing"


def test_page_token_survives_new_events(gateway: Gateway) -> None:
    for number in range(1, 6):
        publish_submission(gateway, number, recorded_at=A_MOMENT - timedelta(minutes=10 - number))
    first = gateway.get("/v1/events?pageSize=2").document
    publish_submission(gateway, 9, recorded_at=A_MOMENT)
    document = gateway.get(f"/v1/events?pageSize=9&nextPageToken={first['nextPageToken']}").document

    listed_jobs = [event["subject"] for event in (*first["items"], *document["items"])]
    assert listed_jobs == [f"job-{number:010d}" for number in (5, 4, 3, 2, 1)]


def test_page_token_survives_the_end_of_a_month(gateway: Gateway) -> None:
    for number in range(1, 4):
        publish_submission(gateway, number, recorded_at=A_MOMENT - timedelta(minutes=10 - number))
    first = gateway.get("/v1/events?pageSize=1").document
    gateway.fakes.clock.advance(timedelta(days=28).total_seconds())

    answer = gateway.get(f"/v1/events?nextPageToken={first['nextPageToken']}")

    assert answer.status == 200, answer.text
    assert [event["subject"] for event in answer.document["items"]] == ["job-0000000002", "job-0000000001"]


FILTERS = [
    ("&team=nlp", ["job-0000000002"]),
    ("&subject=job-0000000001", ["job-0000000001"]),
    (f"&kind={quote('Incident Opened,Job Ended')}", ["inc-0000000001"]),
    (f"&kind={quote('Job Submitted')}&team=vision", []),
]


@pytest.mark.parametrize(("query", "expected"), FILTERS)
def test_event_list_returns_only_events_that_match_the_filters(
    gateway: Gateway, query: str, expected: list[str]
) -> None:
    publish_submission(gateway, 1, recorded_at=A_MOMENT - timedelta(minutes=5))
    publish_submission(gateway, 2, recorded_at=A_MOMENT - timedelta(minutes=4), team="nlp")
    row = incident_rows.incident_row(an_incident(1), 1)
    publish_change(gateway, row, at=A_MOMENT, recorded_at=A_MOMENT - timedelta(minutes=3))

    assert listed_event_ids(gateway, query) == expected


@pytest.mark.parametrize("query", ["kind=Nonsense", "since=yesterday", "pageSize=0", "nextPageToken=abc", "job=1"])
def test_invalid_query_of_the_event_list_is_refused(gateway: Gateway, query: str) -> None:
    assert gateway.get(f"/v1/events?{query}").status == 400


def test_unchanged_list_is_answered_without_a_body(gateway: Gateway) -> None:
    publish_submission(gateway, 1, recorded_at=A_MOMENT - timedelta(minutes=5))
    tag = gateway.get("/v1/events").headers["ETag"]

    second_answer: Any = gateway.call("GET", "/v1/events", headers={"If-None-Match": tag})
    publish_submission(gateway, 2, recorded_at=A_MOMENT)
    changed: Any = gateway.call("GET", "/v1/events", headers={"If-None-Match": tag})

    assert (second_answer.status, changed.status) == (304, 200)
