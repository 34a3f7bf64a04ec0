"""An unknown name in any request is an error that suggests similar names."""

from typing import Any

import pytest

from tests.fakes.cluster import instance_id
from tests.unit.api.gateway import FLEET, Gateway
from tests.unit.api.seeds import POOL, a_fleet_node, a_job, store

HOLD = f"/v1/clusters/{FLEET}/automation/hold"
RELEASE = f"/v1/clusters/{FLEET}/automation/release"
NODE = instance_id(1)
SIMILAR_NODE = NODE[:-1] + "f"
IF_NEW = {"If-None-Match": "*"}


def request_hold(gateway: Gateway, key: str = "key-1", **scope: Any) -> Any:
    return gateway.post(HOLD, {"reason": "x", "forSeconds": 60, **scope}, key=key)


@pytest.fixture
def gateway_with_nodes(gateway: Gateway) -> Gateway:
    store(gateway.fakes.ledger, a_fleet_node(1), a_fleet_node(2, is_gone=True, pool="old-workers"))
    return gateway


@pytest.mark.parametrize("pool", ["nosuch", "p5-worker", "P5-WORKERS", "old-workers"])
def test_hold_of_an_unknown_pool_is_refused(gateway_with_nodes: Gateway, pool: str) -> None:
    answer = request_hold(gateway_with_nodes, pool=pool)

    assert (answer.status, [error["field"] for error in answer.document["errors"]]) == (400, ["pool"])
    assert f"There is no pool {pool}." in answer.document["detail"]
    assert POOL in answer.document["detail"]
    assert not gateway_with_nodes.get(f"/v1/clusters/{FLEET}/automation").document["isHeld"]


def test_hold_of_an_unknown_pool_suggests_a_similar_name(gateway_with_nodes: Gateway) -> None:
    assert "Did you mean p5-workers?" in request_hold(gateway_with_nodes, pool="p5-worker").document["detail"]


def test_hold_of_an_unknown_node_is_refused(gateway_with_nodes: Gateway) -> None:
    answer = request_hold(gateway_with_nodes, instanceId=SIMILAR_NODE)

    assert (answer.status, answer.document["errors"][0]["field"]) == (400, "instanceId")
    assert f"Did you mean {NODE}?" in answer.document["detail"]


@pytest.mark.parametrize("scope", [{"pool": POOL}, {"instanceId": NODE}, {}])
def test_hold_of_an_existing_pool_or_node_is_accepted(gateway_with_nodes: Gateway, scope: dict[str, str]) -> None:
    assert request_hold(gateway_with_nodes, **scope).status == 200


@pytest.mark.parametrize("scope", [{"pool": "p6-workers"}, {"instanceId": SIMILAR_NODE}])
def test_hold_of_an_unknown_name_is_accepted_if_allowed(gateway_with_nodes: Gateway, scope: dict[str, str]) -> None:
    held = request_hold(gateway_with_nodes, allowUnknown=True, **scope)
    released = gateway_with_nodes.post(RELEASE, scope, key="k2")

    assert (held.status, released.document["wasHeld"]) == (200, True)


def test_pool_hold_before_the_first_sweep_is_refused(gateway: Gateway) -> None:
    answer = request_hold(gateway, pool=POOL)

    assert answer.status == 400
    assert "no sweep has listed the fleet yet" in answer.document["detail"]
    assert request_hold(gateway, "k2", pool=POOL, allowUnknown=True).status == 200
    assert request_hold(gateway, "k3").status == 200


def test_repeated_hold_request_is_answered_after_its_pool_is_gone(gateway_with_nodes: Gateway) -> None:
    first = request_hold(gateway_with_nodes, pool=POOL)
    gateway_with_nodes.fakes.ledger.rows = {
        key: row for key, row in gateway_with_nodes.fakes.ledger.rows.items() if not key.sk.startswith("NODE")
    }

    assert request_hold(gateway_with_nodes, pool=POOL).document == first.document


@pytest.mark.parametrize(
    ("scope", "field"), [({"pool": "nosuch"}, "pool"), ({"instanceId": SIMILAR_NODE}, "instanceId")]
)
def test_release_of_an_unknown_name_is_refused(gateway_with_nodes: Gateway, scope: dict[str, str], field: str) -> None:
    answer = gateway_with_nodes.post(RELEASE, scope)

    assert (answer.status, answer.document["errors"][0]["field"]) == (400, field)


def test_release_of_a_pool_without_a_hold_succeeds(gateway_with_nodes: Gateway) -> None:
    assert gateway_with_nodes.post(RELEASE, {"pool": POOL}).document["wasHeld"] is False


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/nodes/{}", None),
        ("POST", "/v1/nodes/{}/cordon", {}),
        ("POST", "/v1/nodes/{}/uncordon", {}),
        ("POST", "/v1/nodes/{}/replace", {"reason": "x"}),
        ("POST", "/v1/nodes/{}/replace", {"reason": "x", "dryRun": True}),
    ],
)
def test_unknown_node_in_a_route_is_not_found(gateway_with_nodes: Gateway, method: str, path: str, body: Any) -> None:
    answer = gateway_with_nodes.call(method, path.format(SIMILAR_NODE), body)

    assert (answer.status, answer.document["code"]) == (404, "NOT_FOUND")
    assert f"Did you mean {NODE}?" in answer.document["detail"]


@pytest.fixture
def gateway_with_team(gateway: Gateway) -> Gateway:
    """A fleet of one team and one priority class."""
    quotas = {"quotas": {"priorityClasses": {"high": 100}}, "reason": "x"}
    assert gateway.call("PUT", f"/v1/clusters/{FLEET}/quotas", quotas, headers=IF_NEW).status == 200
    team = {"team": {"name": "vision", "namespace": "vision"}, "reason": "x"}
    assert gateway.call("PUT", "/v1/teams/vision/quota", team, headers=IF_NEW).status == 200
    return gateway


@pytest.mark.parametrize(
    ("query", "field", "near"),
    [("team=visoin", "team", "vision"), ("class=hihg", "class", "high"), ("state=PENDING&team=x", "team", "vision")],
)
def test_misspelt_filter_is_refused_instead_of_an_empty_list(
    gateway_with_team: Gateway, query: str, field: str, near: str
) -> None:
    answer = gateway_with_team.get(f"/v1/jobs?{query}")

    assert (answer.status, answer.document["errors"][0]["field"]) == (400, field)
    assert near in answer.document["detail"]


def test_jobs_of_a_team_that_was_removed_are_still_listed(gateway_with_team: Gateway) -> None:
    job = a_job(1)
    store(gateway_with_team.fakes.ledger, job.replace(spec=job.spec.replace(team="speech")))

    assert len(gateway_with_team.get("/v1/jobs?team=speech").document["items"]) == 1
    assert gateway_with_team.get("/v1/jobs?team=vision").document["items"] == []


def test_unknown_team_in_a_filter_suggests_a_similar_name(gateway_with_team: Gateway) -> None:
    quota_answer = gateway_with_team.get("/v1/teams/visoin/quota")
    submitted = gateway_with_team.post("/v1/jobs", {"name": "a", "image": "r/a:1", "command": ["a"], "team": "visoin"})

    assert (quota_answer.status, "Did you mean vision?" in quota_answer.document["detail"]) == (404, True)
    assert submitted.status in (400, 403)


@pytest.mark.parametrize("query", ["class=hihg", "class=hihg&state=RUNNING"])
def test_misspelt_class_is_refused_without_teams(gateway: Gateway, query: str) -> None:
    answer = gateway.get(f"/v1/jobs?{query}")

    assert (answer.status, answer.document["errors"][0]["field"]) == (400, "class")


@pytest.mark.parametrize(("code", "near"), [("xidd:79", "xid:79"), ("NvidiaErorReboot", "hp:NvidiaErrorReboot")])
def test_similar_fault_codes_are_suggested(gateway_with_nodes: Gateway, code: str, near: str) -> None:
    fault = {"instanceId": NODE, "code": code, "observedAt": "2026-11-03T10:15:00Z"}
    reported = gateway_with_nodes.post("/v1/faults", {"faults": [fault]})
    replaced = gateway_with_nodes.post(f"/v1/nodes/{NODE}/replace", {"code": code, "reason": "x"})

    assert (reported.status, replaced.status) == (400, 400)
    assert all(near in answer.document["errors"][0]["message"] for answer in (reported, replaced))
