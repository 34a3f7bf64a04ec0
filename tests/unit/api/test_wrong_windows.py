"""Wrong windows, teams and filters of cost report and showback: an error names the field, or figures are unknown."""

import pytest

from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import a_fleet_node, store
from tests.unit.api.test_showback import read_showback, store_teams, store_two_jobs

WRONG_WINDOWS = [
    ("since=2027-01-01T00:00:00Z", "since", "must be before now"),
    ("since=2026-11-02T00:00:00Z&until=2026-11-01T00:00:00Z", "since", "must be before until"),
    ("since=2026-11-03T10:15:02Z&until=2030-01-01T00:00:00Z", "since", "must be before now"),
    ("since=0001-01-01T00:00:00Z", "since", "days ago, because older figures are not kept"),
    ("until=0001-01-01T00:00:00Z", "until", "days ago, because older figures are not kept"),
    ("until=1970-01-01T00:00:00Z", "until", "days ago, because older figures are not kept"),
    ("until=0001-01-01T00:00:00%2B14:00", "until", "must be an instant of the years 1 to 9999"),
    ("since=2026-02-30T00:00:00Z", "since", "must be an instant that exists: day is out of range for month"),
    ("until=2026-11-03T10:15:00%2B99:00", "until", "must be an instant that exists"),
    *(
        (f"{name}={value}", name, "must be an instant such as 2026-11-03T10:15:00Z")
        for name in ("since", "until")
        for value in ("", "0", "-1", "nan", "1e9", "yesterday", "2026-01-01", "2026-11-03T10:15:00", "%00")
    ),
    ("sinse=2026-11-01T00:00:00Z", "sinse", "is not a known field"),
]


@pytest.mark.parametrize("route", ["cost-report", "showback"])
@pytest.mark.parametrize(("query", "field", "problem"), WRONG_WINDOWS)
def test_wrong_window_names_its_field(query: str, field: str, problem: str, route: str, gateway: Gateway) -> None:
    answer = gateway.get(f"/v1/{route}?{query}")

    assert answer.status == 400
    (error,) = answer.document["errors"]
    assert error["field"] == field
    assert problem in error["message"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("until=2025-01-01T00:00:00Z", "until"),
        ("since=2025-10-01T00:00:00Z&until=2025-11-01T00:00:00Z", "since"),
    ],
)
def test_window_without_data_names_the_field_that_moves_it(query: str, field: str, gateway: Gateway) -> None:
    (error,) = gateway.get(f"/v1/cost-report?{query}").document["errors"]

    assert error["field"] == field
    assert error["message"].startswith("nothing is recorded from ")


def test_report_without_nodes_has_no_idle_time(gateway: Gateway) -> None:
    document = gateway.get("/v1/cost-report").document

    assert (document["idleCommittedGpuHours"], document["idleCommittedUsdMicros"]) == (None, None)
    assert (document["idleRentedGpuHours"], document["idleRentedUsdMicros"], document["lemons"]) == (None, None, None)
    (all_nodes,) = document["reliability"]
    assert (all_nodes["mtbfHours"], all_nodes["lowMtbfHours"], all_nodes["highMtbfHours"]) == (None, None, None)
    assert all_nodes["nodeRepair"]["meanSeconds"] is all_nodes["jobRecovery"]["meanSeconds"] is None
    assert "No node is recorded in this window, so its losses and its idle time are unknown." in document["notes"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("label=%00", "label"),
        ("team=%00", "team"),
        ("team=", "team"),
        (f"team={64 * 'x'}", "team"),
        ("team=nlp&team=vision", "team"),
        *((f"pageSize={value}", "pageSize") for value in ("", "0", "-1", "nan", "1e9", 20 * "9")),
    ],
)
def test_wrong_filter_names_its_field(query: str, field: str, gateway: Gateway) -> None:
    answer = gateway.get(f"/v1/showback?{query}")

    assert (answer.status, [error["field"] for error in answer.document["errors"]]) == (400, [field])


@pytest.mark.parametrize("token", ["x", "e30=", "W10="])
def test_page_token_of_another_list_is_refused(token: str, gateway: Gateway) -> None:
    answer = gateway.get(f"/v1/showback?nextPageToken={token}")

    assert (answer.status, answer.document["code"]) == (400, "BAD_PAGE_TOKEN")


@pytest.mark.parametrize("with_teams", [False, True])
def test_spend_of_an_unknown_team_is_refused(with_teams: bool, gateway: Gateway) -> None:
    if with_teams:
        store_teams(gateway)
    store_two_jobs(gateway)

    answer = gateway.get("/v1/showback?team=visoin")

    assert (answer.status, answer.document["errors"][0]["field"]) == (400, "team")
    assert "Did you mean vision?" in answer.document["detail"]


def test_spend_without_any_record_is_unknown_and_not_zero(gateway: Gateway) -> None:
    nothing = read_showback(gateway)
    store(gateway.fakes.ledger, a_fleet_node(1))
    idle = read_showback(gateway)
    before = read_showback(gateway, "?until=2026-10-01T00:00:00Z")

    for document in (nothing, before):
        assert set(document["total"].values()) == {None}
        assert "Nothing is recorded in this window, so its use is unknown." in document["notes"]
    assert (idle["total"]["jobs"], idle["total"]["gpuHours"], idle["total"]["usdMicros"]) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["job", "incident"])
@pytest.mark.parametrize("name", ["nosuch", "-1", "nan", "%00", "..%2f..", "x" * 400])
def test_receipt_of_an_unknown_id_is_not_found(kind: str, name: str, gateway: Gateway) -> None:
    answer = gateway.get(f"/v1/{kind}s/{name}/receipt")

    assert (answer.status, answer.document["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("path", ["jobs/job-1", "incidents/inc-1"])
def test_unknown_option_of_a_receipt_is_named(path: str, gateway: Gateway) -> None:
    answer = gateway.get(f"/v1/{path}/receipt?since=2026-11-01T00:00:00Z")

    assert (answer.status, [error["field"] for error in answer.document["errors"]]) == (400, ["since"])
