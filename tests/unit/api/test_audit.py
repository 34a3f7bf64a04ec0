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
from tests.unit.api.seeds import ASKS, a_fleet_node, a_job, an_incident, stored

NODE = instance_id(1)
JOB = "/v1/jobs/job-0000000009"
PLAN = {"decisionId": ASKS.decision_id}
NEW, AS_READ = {"If-None-Match": "*"}, {"If-Match": '"1"'}
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


def post(target: str, body: dict[str, Any]) -> Change:
    return lambda gateway, caller: gateway.post(target, body, caller=caller)


def call(method: str, target: str, body: dict[str, Any] | None, headers: Mapping[str, str]) -> Change:
    return lambda gateway, caller: gateway.call(method, target, body, caller=caller, headers=headers)


def prepared_by(first: Change, then: Change) -> Change:
    def both(gateway: Gateway, caller: str) -> ApiResponse:
        assert first(gateway, f"arn:aws:iam::{ACCOUNT}:user/another-person").status < 300
        return then(gateway, caller)

    return both


def prepared_by_a_cordon(gateway: Gateway, caller: str) -> ApiResponse:
    gateway.fakes.cluster.cordon(CLUSTER, f"hyperpod-{NODE}", "inc-0000000001")
    return gateway.post(f"/v1/nodes/{NODE}/uncordon", {}, caller=caller)


CHANGES: Mapping[tuple[str, str], Change | None] = {
    ("POST", "/v1/jobs"): post("/v1/jobs", {"name": "a", "image": "r/a:1", "command": ["a"]}),
    ("POST", "/v1/jobs/plan"): None,  # decides only
    ("POST", "/v1/jobs/{jobId}/cancel"): post(f"{JOB}/cancel", {}),
    ("POST", "/v1/jobs/{jobId}/suspend"): post(f"{JOB}/suspend", {}),
    ("POST", "/v1/jobs/{jobId}/resume"): prepared_by(
        post(f"{JOB}/suspend", {}), lambda gateway, caller: gateway.post(f"{JOB}/resume", {}, caller=caller, key="k2")
    ),
    ("PATCH", "/v1/jobs/{jobId}"): call("PATCH", JOB, {"priorityClass": "high"}, AS_READ),
    ("POST", "/v1/clusters/{cluster}/automation/hold"): post(f"/v1/clusters/{FLEET}/automation/hold", HOLD),
    ("POST", "/v1/clusters/{cluster}/automation/release"): post(f"/v1/clusters/{FLEET}/automation/release", {}),
    ("POST", "/v1/incidents/{incidentId}/approve"): post("/v1/incidents/inc-0000000001/approve", PLAN),
    ("POST", "/v1/incidents/{incidentId}/acknowledge"): post("/v1/incidents/inc-0000000001/acknowledge", {}),
    ("POST", "/v1/incidents/{incidentId}/decline"): post("/v1/incidents/inc-0000000001/decline", PLAN),
    ("POST", "/v1/nodes/{nodeId}/cordon"): post(f"/v1/nodes/{NODE}/cordon", {}),
    ("POST", "/v1/nodes/{nodeId}/uncordon"): prepared_by_a_cordon,
    ("POST", "/v1/nodes/{nodeId}/replace"): post(f"/v1/nodes/{NODE}/replace", {"reason": "x"}),
    ("POST", "/v1/faults"): None,  # all sessions of a detector are one source
    ("POST", "/v1/clusters/{cluster}/policy"): post(f"/v1/clusters/{FLEET}/policy", {"changes": {}, "reason": "x"}),
    ("POST", "/v1/clusters/{cluster}/policy/test"): None,  # decides only
    ("PUT", "/v1/teams/{team}/quota"): call("PUT", "/v1/teams/nlp/quota", TEAM, NEW),
    ("DELETE", "/v1/teams/{team}"): prepared_by(
        call("PUT", "/v1/teams/nlp/quota", TEAM, NEW), call("DELETE", "/v1/teams/nlp?reason=x", None, AS_READ)
    ),
    ("PUT", "/v1/clusters/{cluster}/quotas"): call(
        "PUT", f"/v1/clusters/{FLEET}/quotas", {"quotas": {}, "reason": "x"}, NEW
    ),
}
"""Each changing route with a request that makes a change; None if no person makes this change."""


@pytest.fixture
def site() -> Gateway:
    return a_site()


def a_site() -> Gateway:
    gateway = Gateway(FakeWorld(policy=Policy(jobs=JobPolicy(priority_classes=("high",)))))
    ledger = gateway.fakes.ledger
    stored(ledger, an_incident(1, plan=ASKS, mode="recommend"), a_fleet_node(1, node_name=f"hyperpod-{NODE}"))
    stored(ledger, a_job(9, state=JobState.PENDING))
    return gateway


def test_every_changing_route_has_an_audit_case() -> None:
    assert {(route.method, route.path) for route in template_routes() if route.method != "GET"} == set(CHANGES)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("route", [route for route, change in CHANGES.items() if change], ids=" ".join)
def test_change_records_role_and_session(site: Gateway, route: tuple[str, str], caller: str) -> None:
    change = CHANGES[route]
    assert change

    answer = change(site, caller)

    assert answer.status in (200, 202), answer.text
    records = [row.doc for row in site.fakes.ledger.rows.values()] + site.fakes.inbox.queued
    assert any(CALLERS[caller] in written for written in texts_in(records))


ON_THE_FLEET = [
    route
    for route, change in CHANGES.items()
    if change and not route[1].startswith("/v1/jobs") and route != ("POST", "/v1/nodes/{nodeId}/replace")
]
"""Routes that change the fleet. Changes of a job are in its timeline; the replacement of a node opens an incident."""


@pytest.mark.parametrize("route", [route for route in ON_THE_FLEET if "release" not in route[1]], ids=" ".join)
def test_every_change_of_the_fleet_is_in_the_audit(site: Gateway, route: tuple[str, str]) -> None:
    change = CHANGES[route]
    assert change
    change(site, f"arn:aws:iam::{ACCOUNT}:user/division/ana")

    items = site.get("/v1/audit?by=user/ana").document["items"]

    assert [item["by"] for item in items] == ["user/ana"]
    assert "user/ana" in items[0]["text"]


def test_audit_is_newest_first_in_pages_over_months(site: Gateway) -> None:
    for number in range(1, 6):
        site.post(f"/v1/clusters/{FLEET}/automation/hold", HOLD | {"reason": f"r{number}"}, key=f"k{number}")
        site.call("PUT", "/v1/teams/nlp/quota", TEAM, headers=NEW if number == 1 else {"If-Match": f'"{number - 1}"'})
        site.fakes.clock.advance(20 * 86_400)
    listed: list[dict[str, Any]] = []
    token = ""

    while True:
        page = site.get(f"/v1/audit?since=2026-01-01T00:00:00Z&pageSize=3&nextPageToken={token}").document
        listed += page["items"]
        token = page["nextPageToken"]
        if not token:
            break

    assert [item["at"] for item in listed] == sorted((item["at"] for item in listed), reverse=True)
    assert [item["kind"] for item in listed] == ["setup", "held"] * 5
    recent = site.get("/v1/audit").document["items"]
    assert [item["kind"] for item in recent] == ["setup", "held"]


def test_audit_refuses_the_page_token_of_another_list(site: Gateway) -> None:
    answer = site.get("/v1/audit?nextPageToken=bm90aGluZw")

    assert (answer.status, answer.document["code"]) == (400, "BAD_PAGE_TOKEN")


def test_acknowledged_incident_shows_who_works_on_it(site: Gateway) -> None:
    path = "/v1/incidents/inc-0000000001/acknowledge"
    first = site.post(path, {"reason": "on it"}, caller=f"arn:aws:iam::{ACCOUNT}:user/ana").document
    again = site.post(path, {}, caller=f"arn:aws:iam::{ACCOUNT}:user/ana", key="k2").document
    after = site.post(path, {}, caller=f"arn:aws:iam::{ACCOUNT}:user/bo", key="k3").document

    assert first["acknowledgement"] == {"by": "user/ana", "reason": "on it", "at": "2026-11-03T10:15:02.000000Z"}
    assert again["acknowledgement"] == first["acknowledgement"]
    assert after["acknowledgement"]["by"] == "user/bo"
    timeline = site.get("/v1/incidents/inc-0000000001/timeline").document["entries"]
    assert [entry["text"] for entry in timeline if entry["kind"] == "acknowledged"] == [
        "user/ana acknowledged inc-0000000001: on it",
        "user/bo acknowledged inc-0000000001, taken over from user/ana.",
    ]
    assert site.post("/v1/incidents/inc-0000000404/acknowledge", {}).status == 404


def texts_in(value: Any) -> list[str]:
    match value:
        case dict():
            return [text for item in value.values() for text in texts_in(item)]
        case list() | tuple():
            return [text for item in value for text in texts_in(item)]
    return [str(value)]
