"""Changes by operators to plans and nodes: their author, their single effect, and their record."""

import json
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.health.incidents import Block
from evenkeel.domain.recovery.leases import MAX_MANUAL_CORDONS, ManualCordon, ManualCordons
from evenkeel.ports import Put, Row
from evenkeel.services.recovery import manual_cordons
from evenkeel.services.storage import fleet_rows
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.api.gateway import ACCOUNT, Gateway
from tests.unit.api.seeds import ASKS, a_fleet_node, a_life, ago, an_incident, stored

NODE = instance_id(1)
BO = f"arn:aws:sts::{ACCOUNT}:assumed-role/Operator/bo"
YES = {"decisionId": ASKS.decision_id, "reason": "go on"}


@pytest.fixture
def asking(gateway: Gateway) -> Gateway:
    stored(gateway.fakes.ledger, an_incident(1, plan=ASKS, mode="recommend"), a_fleet_node(1))
    return gateway


def send_answer(gateway: Gateway, verb: str, body: dict[str, Any], **options: Any) -> Any:
    return gateway.post(f"/v1/incidents/inc-0000000001/{verb}", body, **options)


def test_pending_approval_is_shown_and_approved_by_decision_id(asking: Gateway) -> None:
    before = asking.get("/v1/incidents/inc-0000000001").document
    answer = send_answer(asking, "approve", YES)

    assert before["pendingApproval"] == {
        "decisionId": ASKS.decision_id,
        "reason": ASKS.reason,
        "answerBy": "2026-11-03T14:05:00.000000Z",
        "ifUnanswered": "No answer by 14:05Z: nothing is done; the node stays unhealthy and new pods may land on "
        "hyperpod-i-00000000000000001. It can be approved later: evenkeel incidents approve inc-0000000001.",
    }
    assert before["nodeLane"]["phase"] == "waits for approval"
    assert (answer.status, answer.document["pendingApproval"]) == (202, None)
    assert answer.document["approval"] | {"at": ""} == {
        "decisionId": ASKS.decision_id,
        "approves": True,
        "by": "role/Researcher (ana)",
        "reason": "go on",
        "at": "",
    }


def test_second_approver_gets_a_conflict_with_the_author(asking: Gateway) -> None:
    send_answer(asking, "approve", YES)
    second = send_answer(asking, "decline", YES, caller=BO, key="k2")

    assert (second.status, second.document["code"]) == (409, "ALREADY_ANSWERED")
    assert second.document["detail"] == "Approved by role/Researcher (ana): go on. That answer is final."


@pytest.mark.parametrize("body", [{"decisionId": "dec-0000000009"}, {"decisionId": "dec-0000000001"}])
def test_approval_is_refused_while_no_plan_awaits_one(gateway: Gateway, body: dict[str, Any]) -> None:
    plan = ASKS.replace(outcome="ACT") if body["decisionId"] == ASKS.decision_id else ASKS
    stored(gateway.fakes.ledger, an_incident(1, plan=plan))

    answer = send_answer(gateway, "approve", body)

    assert (answer.status, answer.document["code"]) == (409, "PLAN_SUPERSEDED")


@pytest.mark.parametrize("body", [{}, {"decisionId": "inc-1"}, {"decisionId": "dec-1", "reason": "a\nb"}])
def test_approval_that_names_no_plan_is_refused(asking: Gateway, body: dict[str, Any]) -> None:
    assert send_answer(asking, "approve", body).document["code"] == "VALIDATION_FAILED"


def test_why_explains_a_pending_approval(asking: Gateway) -> None:
    document = asking.get("/v1/incidents/inc-0000000001/why").document

    assert "Waits for approval. Plan: replace" in document["sentence"]
    assert document["next"] == "evenkeel incidents approve inc-0000000001"


def test_blocking_guardrail_is_shown_with_node_and_incident(gateway: Gateway) -> None:
    block = Block(guardrail="POOL_REPAIRS", reason="2 of 8 are in repair.", since=ago(minutes=5), action="reboot")
    stored(gateway.fakes.ledger, an_incident(1, state="BLOCKED", block=block), a_fleet_node(1), a_fleet_node(2))

    nodes = {node["instanceId"]: node for node in gateway.get("/v1/nodes").document["items"]}
    document = gateway.get(f"/v1/nodes/{NODE}").document
    incident = gateway.get("/v1/incidents/inc-0000000001").document

    assert nodes[instance_id(2)]["block"] is None
    for shown in (nodes[NODE], document):
        assert (shown["state"], shown["block"]["guardrail"]) == ("BLOCKED", "POOL_REPAIRS")
    assert incident["nodeLane"] | {"since": ""} == {
        "phase": "waits: pool repairs",
        "status": "warn",
        "since": "",
        "rung": "reboot",
        "next": "reboot, as soon as the guardrail allows it",
        "latestAt": None,
    }
    why = gateway.get("/v1/incidents/inc-0000000001/why").document["sentence"]
    assert why.endswith("The reboot waits: 2 of 8 are in repair.")


# ---------------------------------------------------------------- nodes


def test_repeated_uncordon_gets_the_same_answer(gateway: Gateway) -> None:
    name = f"hyperpod-{NODE}"
    stored(gateway.fakes.ledger, an_incident(1), a_fleet_node(1, node_name=name))
    gateway.fakes.cluster.cordon(CLUSTER, name, "inc-0000000001")

    answers = [gateway.post(f"/v1/nodes/{NODE}/uncordon", {"reason": "it is well"}) for _ in range(2)]

    assert [(answer.status, answer.document["outcome"]) for answer in answers] == [
        (200, "RELEASED"),
        (200, "ALREADY_FREE"),
    ]
    assert answers[0].document["incidentId"] == "inc-0000000001"
    scenario = gateway.fakes.ledger.partition(fleet_rows.hold_key().table, fleet_rows.hold_key().pk, "EVENT#")
    assert [row.doc["text"] for row in scenario] == [f"role/Researcher (ana) uncordoned {name}: it is well"]


def test_cordon_from_outside_evenkeel_is_kept(gateway: Gateway) -> None:
    stored(gateway.fakes.ledger, a_fleet_node(1))
    gateway.fakes.cluster.cordon(CLUSTER, f"hyperpod-{NODE}", None)
    cordoned = gateway.post(f"/v1/nodes/{NODE}/cordon", {})
    refused = gateway.post(f"/v1/nodes/{NODE}/uncordon", {}, key="k2")

    assert (cordoned.status, cordoned.document["outcome"]) == (200, "CORDONED")
    assert (refused.status, refused.document["code"]) == (409, "CORDONED_BY_PERSON")
    assert gateway.get(f"/v1/nodes/{NODE}").document["cordon"] is None


def test_uncordon_removes_the_cordon_of_an_operator(gateway: Gateway) -> None:
    stored(gateway.fakes.ledger, a_fleet_node(1))
    gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "fan noise"})
    by_another = gateway.post(f"/v1/nodes/{NODE}/uncordon", {}, key="k2", caller=BO)
    again = gateway.post(f"/v1/nodes/{NODE}/uncordon", {}, key="k3")

    assert [response.document["outcome"] for response in (by_another, again)] == ["RELEASED", "ALREADY_FREE"]
    node = gateway.fakes.cluster.node(CLUSTER, f"hyperpod-{NODE}")
    assert node
    assert not node.is_cordoned
    assert gateway.get(f"/v1/nodes/{NODE}").document["cordon"] is None


def test_cordon_shows_its_author_and_reason_everywhere(gateway: Gateway) -> None:
    stored(gateway.fakes.ledger, a_fleet_node(1), a_fleet_node(2))
    gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "fan noise"})
    gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "me too"}, key="k2", caller=BO)

    shown = gateway.get(f"/v1/nodes/{NODE}").document["cordon"]
    listed = {node["instanceId"]: node["cordon"] for node in gateway.get("/v1/nodes").document["items"]}
    (cordon,) = gateway.get("/v1/status").document["cordons"]

    assert (shown["by"], shown["reason"]) == ("role/Researcher (ana)", "fan noise")
    assert listed == {NODE: shown, instance_id(2): None}
    assert (cordon["instanceId"], cordon["by"], cordon["reason"]) == (NODE, shown["by"], shown["reason"])


def test_cordon_removed_elsewhere_is_dropped(gateway: Gateway) -> None:
    fakes = gateway.fakes
    stored(fakes.ledger, a_fleet_node(1), a_fleet_node(2))
    gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "fan noise"})
    gateway.post(f"/v1/nodes/{instance_id(2)}/cordon", {}, key="k2")
    still = frozenset({a_life(2).key})

    early = manual_cordons.prune(still, fakes.context())
    late = manual_cordons.prune(still, fakes.context(now=fakes.clock.now() + timedelta(minutes=3)))

    assert (early, late, list(manual_cordons.load(fakes.ledger))) == (0, 1, [a_life(2).key])


def test_number_of_recorded_cordons_is_limited(gateway: Gateway) -> None:
    known = ManualCordons()
    for number in range(MAX_MANUAL_CORDONS + 5):
        known = known.with_cordon(ManualCordon(life=f"l{number}", by="b" * 200, reason="\U0001f600" * 300, at=ago()))

    assert len(known.cordons) == MAX_MANUAL_CORDONS
    assert known.cordons[-1].life == f"l{MAX_MANUAL_CORDONS + 4}"
    assert len(json.dumps(known.to_json(), ensure_ascii=False).encode()) < 400_000


def test_recovery_cordon_never_becomes_an_operator_cordon(gateway: Gateway) -> None:
    stored(gateway.fakes.ledger, an_incident(1), a_fleet_node(1))
    gateway.fakes.cluster.cordon(CLUSTER, f"hyperpod-{NODE}", "inc-0000000001")

    refused = gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "mine"})
    gateway.post(f"/v1/nodes/{NODE}/uncordon", {"reason": "mine"}, key="k2")
    cordoned = gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "mine"}, key="k3")

    assert (refused.status, refused.document["code"]) == (409, "CORDONED_BY_RECOVERY")
    assert "inc-0000000001" in refused.document["detail"]
    assert f"evenkeel nodes uncordon {NODE}" in refused.document["detail"]
    assert (cordoned.status, cordoned.document["outcome"]) == (200, "CORDONED")
    node = gateway.fakes.cluster.node(CLUSTER, f"hyperpod-{NODE}")
    assert node
    assert (node.is_cordoned, node.incident_id) == (True, None)


@pytest.mark.parametrize("verb", ["cordon", "uncordon"])
def test_unknown_node_is_not_found(gateway: Gateway, verb: str) -> None:
    assert gateway.post(f"/v1/nodes/{NODE}/{verb}", {}).status == 404


# ---------------------------------------------------------------- holds of a part of the fleet


def test_holds_of_a_pool_and_a_node_coexist(gateway: Gateway) -> None:
    stored(gateway.fakes.ledger, a_fleet_node(1))
    hold = "/v1/clusters/laptop/automation/hold"
    for number, scope in enumerate(({}, {"pool": "p5-workers"}, {"instanceId": NODE})):
        gateway.post(hold, {"reason": "x", "forSeconds": 600, **scope}, key=f"k{number}")
    gateway.post("/v1/clusters/laptop/automation/release", {"pool": "p5-workers"}, key="r")

    shown = gateway.get("/v1/clusters/laptop/automation").document

    assert [(hold["pool"], hold["instanceId"]) for hold in shown["holds"]] == [("", ""), ("", NODE)]


@pytest.mark.parametrize("scope", [{"pool": "a b"}, {"instanceId": "node-1"}])
def test_invalid_scope_is_refused(gateway: Gateway, scope: dict[str, str]) -> None:
    body = {"reason": "x", "forSeconds": 600, **scope}
    assert gateway.post("/v1/clusters/laptop/automation/hold", body).document["code"] == "VALIDATION_FAILED"


def test_ended_shared_cause_shows_the_operator_who_ended_it(gateway: Gateway) -> None:
    ledger = gateway.fakes.ledger
    ledger.commit(Put(Row(fleet_rows.cause_key("zone/usw2-az2"), {})))
    body = {"cause": "zone/usw2-az2", "reason": "power is back"}
    answers = [gateway.post("/v1/clusters/laptop/automation/release", body, key="e").document for _ in range(2)]

    end = ledger.rows[fleet_rows.ended_causes_key()].doc["causes"]["zone/usw2-az2"]
    assert answers[0] == answers[1] == {"cause": "zone/usw2-az2", "endedAt": end["at"]}
    assert end["by"].startswith("role/")
    assert end["reason"] == "power is back"


@pytest.mark.parametrize("body", [{"cause": "zone/nowhere", "reason": "x"}, {"cause": "rack/a", "reason": "x"}])
def test_end_of_an_inactive_cause_is_refused(gateway: Gateway, body: dict[str, str]) -> None:
    answer = gateway.post("/v1/clusters/laptop/automation/release", body)

    assert (answer.status, answer.document["code"]) == (400, "VALIDATION_FAILED")
