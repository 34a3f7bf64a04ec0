"""Every change is recorded with the role and the session of its caller, in the same format."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.policy import Policy
from tests.fakes import FakeWorld
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.api.gateway import ACCOUNT, FLEET, ApiResponse, Gateway, template_routes
from tests.unit.api.seeds import PLAN_AWAITING_APPROVAL, a_fleet_node, a_job, an_incident, store

NODE = instance_id(1)
JOB = "/v1/jobs/job-0000000009"
PLAN = {"decisionId": PLAN_AWAITING_APPROVAL.decision_id}
IF_NEW, AS_READ = {"If-None-Match": "*"}, {"If-Match": '"1"'}
TEAM = {"team": {"name": "nlp", "namespace": "nlp"}, "reason": "x"}
HOLD = {"reason": "x", "forSeconds": 60}

CALLERS = {
    f"arn:aws:sts::{ACCOUNT}:assumed-role/Operator/ana.smith@example.com": "role/Operator (ana.smith@example.com)",
    f"arn:aws:iam::{ACCOUNT}:user/division/ana": "user/ana",
    f"arn:aws:sts::{ACCOUNT}:federated-user/ana": "federated-user/ana",
    f"arn:aws:iam::{ACCOUNT}:root": "root",
    "arn:aws:sts::999988887777:assumed-role/Operator/ana": "999988887777:role/Operator (ana)",
    "arn:aws-cn:sts::999988887777:assumed-role/Operator/ana": "999988887777:role/Operator (ana)",
}

Change = Callable[[Gateway, str], ApiResponse]


def change_by_post(target: str, body: dict[str, Any]) -> Change:
    return lambda gateway, caller: gateway.post(target, body, caller=caller)


def change_by_call(method: str, target: str, body: dict[str, Any] | None, headers: Mapping[str, str]) -> Change:
    return lambda gateway, caller: gateway.call(method, target, body, caller=caller, headers=headers)


def after_preparation(first: Change, then: Change) -> Change:
    def both(gateway: Gateway, caller: str) -> ApiResponse:
        assert first(gateway, f"arn:aws:iam::{ACCOUNT}:user/another-person").status < 300
        return then(gateway, caller)

    return both


def after_a_cordon(gateway: Gateway, caller: str) -> ApiResponse:
    gateway.fakes.cluster.cordon(CLUSTER, f"hyperpod-{NODE}", "inc-0000000001")
    return gateway.post(f"/v1/nodes/{NODE}/uncordon", {}, caller=caller)


CHANGES: Mapping[tuple[str, str], Change | None] = {
    ("POST", "/v1/jobs"): change_by_post("/v1/jobs", {"name": "a", "image": "r/a:1", "command": ["a"]}),
    ("POST", "/v1/jobs/plan"): None,  # decides only
    ("POST", "/v1/jobs/{jobId}/cancel"): change_by_post(f"{JOB}/cancel", {}),
    ("POST", "/v1/jobs/{jobId}/suspend"): change_by_post(f"{JOB}/suspend", {}),
    ("POST", "/v1/jobs/{jobId}/resume"): after_preparation(
        change_by_post(f"{JOB}/suspend", {}),
        lambda gateway, caller: gateway.post(f"{JOB}/resume", {}, caller=caller, key="k2"),
    ),
    ("PATCH", "/v1/jobs/{jobId}"): change_by_call("PATCH", JOB, {"priorityClass": "high"}, AS_READ),
    ("POST", "/v1/clusters/{cluster}/automation/hold"): change_by_post(f"/v1/clusters/{FLEET}/automation/hold", HOLD),
    ("POST", "/v1/clusters/{cluster}/automation/release"): change_by_post(
        f"/v1/clusters/{FLEET}/automation/release", {}
    ),
    ("POST", "/v1/incidents/{incidentId}/approve"): change_by_post("/v1/incidents/inc-0000000001/approve", PLAN),
    ("POST", "/v1/incidents/{incidentId}/acknowledge"): change_by_post("/v1/incidents/inc-0000000001/acknowledge", {}),
    ("POST", "/v1/incidents/{incidentId}/decline"): change_by_post("/v1/incidents/inc-0000000001/decline", PLAN),
    ("POST", "/v1/nodes/{nodeId}/cordon"): change_by_post(f"/v1/nodes/{NODE}/cordon", {}),
    ("POST", "/v1/nodes/{nodeId}/uncordon"): after_a_cordon,
    ("POST", "/v1/nodes/{nodeId}/replace"): change_by_post(f"/v1/nodes/{NODE}/replace", {"reason": "x"}),
    ("POST", "/v1/faults"): None,  # all sessions of a detector's role are one signal source
    ("POST", "/v1/clusters/{cluster}/policy"): change_by_post(
        f"/v1/clusters/{FLEET}/policy", {"changes": {}, "reason": "x"}
    ),
    ("POST", "/v1/clusters/{cluster}/policy/test"): None,  # decides only
    ("PUT", "/v1/teams/{team}/quota"): change_by_call("PUT", "/v1/teams/nlp/quota", TEAM, IF_NEW),
    ("DELETE", "/v1/teams/{team}"): after_preparation(
        change_by_call("PUT", "/v1/teams/nlp/quota", TEAM, IF_NEW),
        change_by_call("DELETE", "/v1/teams/nlp?reason=x", None, AS_READ),
    ),
    ("PUT", "/v1/clusters/{cluster}/quotas"): change_by_call(
        "PUT", f"/v1/clusters/{FLEET}/quotas", {"quotas": {}, "reason": "x"}, IF_NEW
    ),
}
"""Each changing route with a request that makes a change; None if no person makes this change."""


@pytest.fixture
def audited_gateway() -> Gateway:
    return prepared_gateway()


def prepared_gateway() -> Gateway:
    gateway = Gateway(FakeWorld(policy=Policy(jobs=JobPolicy(priority_classes=("high",)))))
    ledger = gateway.fakes.ledger
    store(
        ledger,
        an_incident(1, plan=PLAN_AWAITING_APPROVAL, mode="recommend"),
        a_fleet_node(1, node_name=f"hyperpod-{NODE}"),
    )
    store(ledger, a_job(9, state=JobState.PENDING))
    return gateway


def test_every_changing_route_has_an_audit_case() -> None:
    assert {(route.method, route.path) for route in template_routes() if route.method != "GET"} == set(CHANGES)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("route", [route for route, change in CHANGES.items() if change], ids=" ".join)
def test_audit_records_role_and_session_of_each_change(
    audited_gateway: Gateway, route: tuple[str, str], caller: str
) -> None:
    change = CHANGES[route]
    assert change

    answer = change(audited_gateway, caller)

    assert answer.status in (200, 202), answer.text
    records = [row.doc for row in audited_gateway.fakes.ledger.rows.values()] + audited_gateway.fakes.inbox.queued
    assert any(CALLERS[caller] in text for text in texts_in(records))


FLEET_ROUTES = [
    route
    for route, change in CHANGES.items()
    if change and not route[1].startswith("/v1/jobs") and route != ("POST", "/v1/nodes/{nodeId}/replace")
]
"""Routes that change the fleet. Changes of a job are in its timeline; the replacement of a node opens an incident."""


@pytest.mark.parametrize("route", [route for route in FLEET_ROUTES if "release" not in route[1]], ids=" ".join)
def test_every_change_of_the_fleet_is_in_the_audit(audited_gateway: Gateway, route: tuple[str, str]) -> None:
    change = CHANGES[route]
    assert change
    change(audited_gateway, f"arn:aws:iam::{ACCOUNT}:user/division/ana")

    items = audited_gateway.get("/v1/audit?by=user/ana").document["items"]

    assert [item["by"] for item in items] == ["user/ana"]
    assert "user/ana" in items[0]["text"]


def test_audit_is_newest_first_in_pages_over_months(audited_gateway: Gateway) -> None:
    for number in range(1, 6):
        audited_gateway.post(f"/v1/clusters/{FLEET}/automation/hold", HOLD | {"reason": f"r{number}"}, key=f"k{number}")
        audited_gateway.call(
            "PUT", "/v1/teams/nlp/quota", TEAM, headers=IF_NEW if number == 1 else {"If-Match": f'"{number - 1}"'}
        )
        audited_gateway.fakes.clock.advance(20 * 86_400)
    listed_items: list[dict[str, Any]] = []
    token = ""

    while True:
        page = audited_gateway.get(f"/v1/audit?since=2026-01-01T00:00:00Z&pageSize=3&nextPageToken={token}").document
        listed_items += page["items"]
        token = page["nextPageToken"]
        if not token:
            break

    assert [item["at"] for item in listed_items] == sorted((item["at"] for item in listed_items), reverse=True)
    assert [item["kind"] for item in listed_items] == ["setup", "held"] * 5
    recent = audited_gateway.get("/v1/audit").document["items"]
    assert [item["kind"] for item in recent] == ["setup", "held"]


def test_audit_refuses_the_page_token_of_another_list(audited_gateway: Gateway) -> None:
    answer = audited_gateway.get("/v1/audit?nextPageToken=bm90aGluZw")

    assert (answer.status, answer.document["code"]) == (400, "BAD_PAGE_TOKEN")


def test_acknowledged_incident_shows_who_works_on_it(audited_gateway: Gateway) -> None:
    path = "/v1/incidents/inc-0000000001/acknowledge"
    first = audited_gateway.post(path, {"reason": "on it"}, caller=f"arn:aws:iam::{ACCOUNT}:user/ana").document
    repeated_answer = audited_gateway.post(path, {}, caller=f"arn:aws:iam::{ACCOUNT}:user/ana", key="k2").document
    after = audited_gateway.post(path, {}, caller=f"arn:aws:iam::{ACCOUNT}:user/bo", key="k3").document

    assert first["acknowledgement"] == {"by": "user/ana", "reason": "on it", "at": "2026-11-03T10:15:02.000000Z"}
    assert repeated_answer["acknowledgement"] == first["acknowledgement"]
    assert after["acknowledgement"]["by"] == "user/bo"
    timeline = audited_gateway.get("/v1/incidents/inc-0000000001/timeline").document["entries"]
    assert [entry["text"] for entry in timeline if entry["kind"] == "acknowledged"] == [
        "user/ana acknowledged inc-0000000001: on it",
        "user/bo acknowledged inc-0000000001, taken over from user/ana.",
    ]
    assert audited_gateway.post("/v1/incidents/inc-0000000404/acknowledge", {}).status == 404


def texts_in(value: Any) -> list[str]:
    match value:
        case dict():
            return [text for item in value.values() for text in texts_in(item)]
        case list() | tuple():
            return [text for item in value for text in texts_in(item)]
    return [str(value)]
