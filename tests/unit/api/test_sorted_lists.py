"""Lists are sorted by any of their fields, over all pages."""

from collections.abc import Iterator
from typing import Any

import pytest

from evenkeel.services.queries import sorted_list
from evenkeel.services.storage import pagination
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import a_fleet_node, a_job, ago, an_incident, store, store_heartbeats


def read_pages(gateway: Gateway, path: str, size: int) -> Iterator[list[Any]]:
    token = ""
    while True:
        answer = gateway.get(f"{path}&pageSize={size}{token and f'&nextPageToken={token}'}")
        assert answer.status == 200, answer.document
        yield answer.document["items"]
        if not (token := answer.document["nextPageToken"]):
            return


def listed_ids(gateway: Gateway, path: str, field: str, size: int = 2) -> list[int]:
    return [int(item[field][-2:], 16) for page in read_pages(gateway, path, size) for item in page]


def store_jobs(gateway: Gateway) -> None:
    store_heartbeats(gateway.fakes.ledger)
    spec = a_job().spec
    states = {1: "RUNNING", 2: "PENDING", 3: "SUCCEEDED", 4: "PENDING", 5: "FAILED"}
    for number, state in states.items():
        store(
            gateway.fakes.ledger,
            a_job(
                number,
                state=state,
                spec=spec.replace(name=f"name-{9 - number}", nodes=number % 3 + 1, team=""),
                submitted_at=ago(minutes=number),
                started_at=None if state == "PENDING" else ago(minutes=number % 2),
                priority=number % 2 * 100,
                ended_at=ago() if state in ("SUCCEEDED", "FAILED") else None,
            ),
        )


@pytest.mark.parametrize("size", [1, 2, 200])
@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("state", [2, 4, 1, 3, 5]),
        ("-state", [5, 3, 1, 4, 2]),
        ("name", [5, 4, 3, 2, 1]),
        ("priority", [2, 4, 1, 3, 5]),
        ("-priority", [5, 3, 1, 4, 2]),
        ("nodes", [3, 1, 4, 2, 5]),
        ("submittedAt", [5, 4, 3, 2, 1]),
        ("-submittedAt", [1, 2, 3, 4, 5]),
        ("startedAt", [1, 3, 5, 2, 4]),
        ("-startedAt", [5, 3, 1, 2, 4]),
    ],
)
def test_jobs_are_sorted_over_all_pages(gateway: Gateway, sort: str, expected: list[int], size: int) -> None:
    store_jobs(gateway)

    assert listed_ids(gateway, f"/v1/jobs?sort={sort}", "jobId", size) == expected


def test_sorted_jobs_keep_their_filter(gateway: Gateway) -> None:
    store_jobs(gateway)

    assert listed_ids(gateway, "/v1/jobs?sort=-name&state=RUNNING,PENDING", "jobId") == [1, 2, 4]


def test_job_added_between_pages_hides_no_listed_job(gateway: Gateway) -> None:
    store_jobs(gateway)
    listing = read_pages(gateway, "/v1/jobs?sort=name", 2)
    first = next(listing)
    store(gateway.fakes.ledger, a_job(9, spec=a_job().spec.replace(name="name-0")))

    later_items = [item for page in listing for item in page]

    assert [item["name"] for item in (*first, *later_items)] == [f"name-{number}" for number in range(4, 9)]


def test_nodes_with_problems_come_first(gateway: Gateway) -> None:
    store_heartbeats(gateway.fakes.ledger)
    store(
        gateway.fakes.ledger,
        a_fleet_node(1),
        a_fleet_node(2, is_cordoned=True),
        a_fleet_node(3),
        an_incident(3, state="RECOVERING"),
        a_fleet_node(4, is_ready=False, not_ready_since=ago(minutes=1)),
    )

    assert listed_ids(gateway, "/v1/nodes?sort=state", "instanceId", 1) == [4, 3, 2, 1]
    assert listed_ids(gateway, "/v1/nodes?sort=-instanceId", "instanceId") == [4, 3, 2, 1]


def test_page_token_of_another_sort_order_is_refused(gateway: Gateway) -> None:
    store_jobs(gateway)
    token = gateway.get("/v1/jobs?sort=name&pageSize=1").document["nextPageToken"]

    answers = [
        gateway.get(f"/v1/{path}nextPageToken={token}")
        for path in ("jobs?", "jobs?sort=-name&", "nodes?sort=instanceId&")
    ]

    assert [(answer.status, answer.document["code"]) for answer in answers] == [(400, "BAD_PAGE_TOKEN")] * 3


def test_forged_list_cursor_is_refused(gateway: Gateway) -> None:
    store_jobs(gateway)
    token = pagination.write_cursor((7, "job-0000000001"), "jobId:name:False")

    answer = gateway.get(f"/v1/jobs?sort=name&nextPageToken={token}")

    assert (answer.status, answer.document["code"]) == (400, "BAD_PAGE_TOKEN")


def test_unknown_sort_field_is_refused_with_the_known_fields(gateway: Gateway) -> None:
    answer = gateway.get("/v1/jobs?sort=colour")

    assert answer.status == 400
    assert answer.document["errors"][0]["field"] == "sort"
    assert "'submittedAt'" in answer.document["errors"][0]["message"]


def test_sorting_a_list_that_is_too_long_is_refused(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    store_jobs(gateway)
    monkeypatch.setattr(sorted_list, "MAX_SORTED", 4)

    unfiltered, filtered = gateway.get("/v1/jobs?sort=name"), gateway.get("/v1/jobs?sort=name&state=PENDING")

    assert (unfiltered.status, unfiltered.document["code"]) == (400, "TOO_MANY_TO_SORT")
    assert unfiltered.document["detail"].startswith("More than 4 rows match.")
    assert len(filtered.document["items"]) == 2
