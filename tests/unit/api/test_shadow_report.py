"""`GET /v1/shadow-report`: observed decisions, compared with what happened."""

from typing import Any

import pytest

from evenkeel.domain.health.incidents import StageTimes
from evenkeel.domain.shadow.shadow_cases import NodeEventKind
from evenkeel.domain.values import rfc3339
from evenkeel.services.queries.incidents import read_incidents
from evenkeel.services.tables import incident_rows
from tests.unit.api.gateway import Gateway
from tests.unit.api.seeds import a_fleet_node, ago, an_incident, make_unreadable, store, store_heartbeats
from tests.unit.api.shadow_seeds import an_observed, store_node_event


def read_report(gateway: Gateway, query: str = "") -> Any:
    answer = gateway.get(f"/v1/shadow-report{query}")
    assert answer.status == 200, answer.text
    return answer.document


def test_shadow_report_compares_each_decision_with_the_node(gateway: Gateway) -> None:
    replaced, healthy, unknown = an_observed(1), an_observed(2), an_observed(3, hours=1)
    store(gateway.fakes.ledger, replaced, healthy, unknown, a_fleet_node(2))
    store_heartbeats(gateway.fakes.ledger)
    store_node_event(gateway, replaced, NodeEventKind.REPLACED, hours=29)

    document = read_report(gateway)

    assert [(case["decision"]["incidentId"], case["repair"]["verdict"]) for case in document["items"]] == [
        ("inc-0000000003", "UNKNOWN"),
        ("inc-0000000002", "WOULD_HAVE_BEEN_WRONG"),
        ("inc-0000000001", "EARLIER"),
    ]
    assert document["items"][2]["repair"]["seconds"] == 3600
    rate = document["summary"]["falseReplacements"]
    assert (rate["count"], rate["of"], rate["unknown"], rate["share"]) == (1, 2, 1, 0.5)
    assert 0 < rate["low"] < 0.5 < rate["high"] < 1
    assert document["isComplete"]


def test_shadow_report_pages_contain_each_case_once(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, *(an_observed(number, hours=30 + number % 3) for number in range(1, 8)))
    incident_ids: list[str] = []
    query = "?pageSize=3"
    for _ in range(3):
        answer = read_report(gateway, query)
        assert answer["summary"]["cases"] == 7
        incident_ids += [case["decision"]["incidentId"] for case in answer["items"]]
        query = f"?pageSize=3&nextPageToken={answer['nextPageToken']}"

    assert answer["nextPageToken"] is None
    assert len(incident_ids) == len(set(incident_ids)) == 7


def test_shadow_report_omits_drills_and_incidents_where_evenkeel_acted(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, an_observed(1, is_drill=True), an_incident(2), an_observed(3, mode="recommend"))

    assert read_report(gateway)["summary"]["cases"] == 0


def test_shadow_case_is_unknown_after_evenkeel_acted_on_the_node(gateway: Gateway) -> None:
    later_incident = an_incident(
        9, life=an_observed(1).life, opened_at=ago(hours=29), stages=StageTimes(cordoned_at=ago(hours=29))
    )
    store(gateway.fakes.ledger, an_observed(1), later_incident, a_fleet_node(1))
    store_heartbeats(gateway.fakes.ledger)

    (case,) = read_report(gateway)["items"]

    assert (case["cordon"]["verdict"], case["cordon"]["cause"]) == ("UNKNOWN", "NOTHING_KNOWN")
    assert case["cordon"]["reason"] == "Evenkeel itself has acted on the node since inc-0000000009."


def test_cordoned_or_marked_node_is_not_in_service(gateway: Gateway) -> None:
    store(
        gateway.fakes.ledger,
        *(an_observed(number) for number in (1, 2, 3)),
        a_fleet_node(1, is_cordoned=True),
        a_fleet_node(2, marks=("sagemaker.amazonaws.com/fault-types=NvidiaErrorReboot",)),
        a_fleet_node(3, is_ready=False),
    )
    store_heartbeats(gateway.fakes.ledger)

    assert {case["cordon"]["cause"] for case in read_report(gateway)["items"]} == {"NOTHING_KNOWN"}


def test_timeline_shows_what_happened_after_the_decision(gateway: Gateway) -> None:
    incident = an_observed(1)
    store(gateway.fakes.ledger, incident)
    store_node_event(gateway, incident, NodeEventKind.REPLACED, hours=29)

    (entry,) = gateway.get(f"/v1/incidents/{incident.incident_id}/timeline").document["entries"]

    assert (entry["kind"], entry["text"]) == ("replaced", "HyperPod replaced the node. a record")


def test_comparison_window_can_be_chosen(gateway: Gateway) -> None:
    incident = an_observed(1)
    store(gateway.fakes.ledger, incident)
    store_node_event(gateway, incident, NodeEventKind.REPLACED, hours=20)

    assert read_report(gateway)["items"][0]["cordon"]["verdict"] == "EARLIER"
    assert read_report(gateway, "?windowHours=4")["items"][0]["cordon"]["verdict"] == "UNKNOWN"


def test_shadow_report_states_that_it_left_out_incidents(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_incidents, "_PAGE", 2)
    monkeypatch.setattr(read_incidents, "MAX_READ", 4)
    store(gateway.fakes.ledger, *(an_observed(number, hours=number) for number in range(1, 8)))

    document = read_report(gateway)

    assert (document["isComplete"], document["summary"]["cases"]) == (False, 4)
    assert document["since"] == rfc3339(ago(hours=4))


def test_shadow_report_counts_unreadable_incidents(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, *(an_observed(number, hours=number) for number in range(1, 4)))
    for number in (1, 3):
        make_unreadable(gateway.fakes.ledger, incident_rows.incident_key(f"inc-{number:010d}"), "severity")

    document = read_report(gateway, f"?since={rfc3339(ago(hours=2, minutes=30))}")

    assert (document["summary"]["cases"], document["unreadableIncidents"], document["isComplete"]) == (1, 1, True)


def test_case_with_unreadable_record_is_left_out_and_counted(gateway: Gateway) -> None:
    incidents = [an_observed(number, hours=number) for number in range(1, 4)]
    store(gateway.fakes.ledger, *incidents)
    store_node_event(gateway, incidents[0], NodeEventKind.REPLACED, hours=1)
    make_unreadable(gateway.fakes.ledger, incident_rows.aftermath_key(incidents[0].incident_id), "events")

    document = read_report(gateway)

    assert (document["summary"]["cases"], document["unreadableIncidents"]) == (2, 1)


@pytest.mark.parametrize("query", ["since=2026-11-01T00:00:00Z", "since=2026-11-03T00:00:00Z&pool=p5-workers"])
def test_shadow_cases_are_filtered_by_time_and_pool(query: str, gateway: Gateway) -> None:
    store(gateway.fakes.ledger, an_observed(1, hours=2), an_observed(2, hours=2, pool="g6"), an_observed(3, hours=900))

    assert read_report(gateway, f"?{query}")["summary"]["cases"] == (1 if "pool" in query else 2)


@pytest.mark.parametrize(
    "query", ["windowHours=0", "windowHours=many", "since=yesterday", "pageSize=0", "nextPageToken=x", "by=node"]
)
def test_invalid_query_of_the_shadow_report_is_refused(query: str, gateway: Gateway) -> None:
    assert gateway.get(f"/v1/shadow-report?{query}").status == 400
