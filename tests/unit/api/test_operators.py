"""Changes by operators to plans and nodes: their author, their single effect, and their record."""

import json
from datetime import timedelta
from typing import Any

import pytest

from evenkeel.domain.health.incidents import Block
from evenkeel.domain.recovery.manual_cordons import MAX_MANUAL_CORDONS, ManualCordon, ManualCordons
from evenkeel.ports import Put, Row
from evenkeel.services.recovery import manual_cordons
from evenkeel.services.tables import fleet_rows
from tests.fakes.cluster import CLUSTER, instance_id
from tests.unit.api.gateway import ACCOUNT, Gateway
from tests.unit.api.seeds import PLAN_AWAITING_APPROVAL, a_fleet_node, a_life, ago, an_incident, store

NODE = instance_id(1)
SECOND_OPERATOR = f"arn:aws:sts::{ACCOUNT}:assumed-role/Operator/bo"
APPROVAL_BODY = {"decisionId": PLAN_AWAITING_APPROVAL.decision_id, "reason": "go on"}


@pytest.fixture
def gateway_with_pending_approval(gateway: Gateway) -> Gateway:
    store(gateway.fakes.ledger, an_incident(1, plan=PLAN_AWAITING_APPROVAL, mode="recommend"), a_fleet_node(1))
    return gateway


def send_answer(gateway: Gateway, verb: str, body: dict[str, Any], **options: Any) -> Any:
    return gateway.post(f"/v1/incidents/inc-0000000001/{verb}", body, **options)


def test_pending_approval_is_shown_and_approved_by_decision_id(gateway_with_pending_approval: Gateway) -> None:
    before = gateway_with_pending_approval.get("/v1/incidents/inc-0000000001").document
    answer = send_answer(gateway_with_pending_approval, "approve", APPROVAL_BODY)

    assert before["pendingApproval"] == {
        "decisionId": PLAN_AWAITING_APPROVAL.decision_id,
        "reason": PLAN_AWAITING_APPROVAL.reason,
        "answerBy": "2026-11-03T14:05:00.000000Z",
        "ifUnanswered": "No answer by 14:05Z: nothing is done; the node stays unhealthy and new pods may land on "
        "hyperpod-i-00000000000000001. The plan can be approved later: evenkeel incidents approve inc-0000000001.",
    }
    assert before["nodeLane"]["phase"] == "waits for approval"
    assert (answer.status, answer.document["pendingApproval"]) == (202, None)
    assert answer.document["approval"] | {"at": ""} == {
        "decisionId": PLAN_AWAITING_APPROVAL.decision_id,
        "approves": True,
        "by": "role/Researcher (ana)",
        "reason": "go on",
        "at": "",
    }


def test_second_approver_gets_a_conflict_with_the_author(gateway_with_pending_approval: Gateway) -> None:
    send_answer(gateway_with_pending_approval, "approve", APPROVAL_BODY)
    second = send_answer(gateway_with_pending_approval, "decline", APPROVAL_BODY, caller=SECOND_OPERATOR, key="k2")

    assert (second.status, second.document["code"]) == (409, "ALREADY_ANSWERED")
    assert second.document["detail"] == "Approved by role/Researcher (ana): go on. That answer is final."


@pytest.mark.parametrize("body", [{"decisionId": "dec-0000000009"}, {"decisionId": "dec-0000000001"}])
def test_approval_is_refused_while_no_plan_awaits_one(gateway: Gateway, body: dict[str, Any]) -> None:
    plan = (
        PLAN_AWAITING_APPROVAL.replace(outcome="ACT")
        if body["decisionId"] == PLAN_AWAITING_APPROVAL.decision_id
        else PLAN_AWAITING_APPROVAL
    )
    store(gateway.fakes.ledger, an_incident(1, plan=plan))

    answer = send_answer(gateway, "approve", body)

    assert (answer.status, answer.document["code"]) == (409, "PLAN_SUPERSEDED")


@pytest.mark.parametrize("body", [{}, {"decisionId": "inc-1"}, {"decisionId": "dec-1", "reason": "a\nb"}])
def test_approval_without_a_plan_decision_id_is_refused(
    gateway_with_pending_approval: Gateway, body: dict[str, Any]
) -> None:
    assert send_answer(gateway_with_pending_approval, "approve", body).document["code"] == "VALIDATION_FAILED"


def test_why_explains_a_pending_approval(gateway_with_pending_approval: Gateway) -> None:
    document = gateway_with_pending_approval.get("/v1/incidents/inc-0000000001/why").document

    assert "Waits for approval. Plan: Evenkeel moves the jobs, then: replace." in document["sentence"]
    assert document["next"] == "evenkeel incidents approve inc-0000000001"


def test_blocking_guardrail_is_shown_with_node_and_incident(gateway: Gateway) -> None:
    block = Block(guardrail="POOL_REPAIRS", reason="2 of 8 are in repair.", since=ago(minutes=5), action="reboot")
    store(gateway.fakes.ledger, an_incident(1, state="BLOCKED", block=block), a_fleet_node(1), a_fleet_node(2))

    nodes = {node["instanceId"]: node for node in gateway.get("/v1/nodes").document["items"]}
    document = gateway.get(f"/v1/nodes/{NODE}").document
    incident = gateway.get("/v1/incidents/inc-0000000001").document

    assert nodes[instance_id(2)]["block"] is None
    for shown_document in (nodes[NODE], document):
        assert (shown_document["state"], shown_document["block"]["guardrail"]) == ("BLOCKED", "POOL_REPAIRS")
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
    store(gateway.fakes.ledger, an_incident(1), a_fleet_node(1, node_name=name))
    gateway.fakes.cluster.cordon(CLUSTER, name, "inc-0000000001")

    answers = [gateway.post(f"/v1/nodes/{NODE}/uncordon", {"reason": "it is well"}) for _ in range(2)]

    assert [(answer.status, answer.document["outcome"]) for answer in answers] == [
        (200, "RELEASED"),
        (200, "ALREADY_FREE"),
    ]
    assert answers[0].document["incidentId"] == "inc-0000000001"
    scenario = gateway.fakes.ledger.partition(fleet_rows.hold_key().table, fleet_rows.hold_key().pk, "EVENT#")
    assert [row.doc["text"] for row in scenario] == [f"role/Researcher (ana) uncordoned {name}: it is well"]


def test_uncordon_is_refused_for_a_cordon_from_outside_evenkeel(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1))
    gateway.fakes.cluster.cordon(CLUSTER, f"hyperpod-{NODE}", None)
    cordoned = gateway.post(f"/v1/nodes/{NODE}/cordon", {})
    refusal = gateway.post(f"/v1/nodes/{NODE}/uncordon", {}, key="k2")

    assert (cordoned.status, cordoned.document["outcome"]) == (200, "CORDONED")
    assert (refusal.status, refusal.document["code"]) == (409, "CORDONED_BY_PERSON")
    assert gateway.get(f"/v1/nodes/{NODE}").document["cordon"] is None


def test_uncordon_removes_the_cordon_of_an_operator(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1))
    gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "fan noise"})
    by_another = gateway.post(f"/v1/nodes/{NODE}/uncordon", {}, key="k2", caller=SECOND_OPERATOR)
    repeated_answer = gateway.post(f"/v1/nodes/{NODE}/uncordon", {}, key="k3")

    assert [response.document["outcome"] for response in (by_another, repeated_answer)] == ["RELEASED", "ALREADY_FREE"]
    node = gateway.fakes.cluster.node(CLUSTER, f"hyperpod-{NODE}")
    assert node
    assert not node.is_cordoned
    assert gateway.get(f"/v1/nodes/{NODE}").document["cordon"] is None


def test_cordon_shows_its_author_and_reason_everywhere(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1), a_fleet_node(2))
    gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "fan noise"})
    gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "me too"}, key="k2", caller=SECOND_OPERATOR)

    document = gateway.get(f"/v1/nodes/{NODE}").document["cordon"]
    listed_cordons = {node["instanceId"]: node["cordon"] for node in gateway.get("/v1/nodes").document["items"]}
    (cordon,) = gateway.get("/v1/status").document["cordons"]

    assert (document["by"], document["reason"]) == ("role/Researcher (ana)", "fan noise")
    assert listed_cordons == {NODE: document, instance_id(2): None}
    assert (cordon["instanceId"], cordon["by"], cordon["reason"]) == (NODE, document["by"], document["reason"])


def test_recorded_cordon_is_dropped_once_kubernetes_shows_none(gateway: Gateway) -> None:
    fakes = gateway.fakes
    store(fakes.ledger, a_fleet_node(1), a_fleet_node(2))
    gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "fan noise"})
    gateway.post(f"/v1/nodes/{instance_id(2)}/cordon", {}, key="k2")
    still = frozenset({a_life(2).key})

    dropped_early = manual_cordons.delete_outdated_records(still, fakes.context())
    dropped_late = manual_cordons.delete_outdated_records(
        still, fakes.context(now=fakes.clock.now() + timedelta(minutes=3))
    )

    assert (dropped_early, dropped_late, list(manual_cordons.load_manual_cordons(fakes.ledger))) == (
        0,
        1,
        [a_life(2).key],
    )


def test_oldest_manual_cordons_are_dropped_beyond_the_limit(gateway: Gateway) -> None:
    cordons = ManualCordons()
    for number in range(MAX_MANUAL_CORDONS + 5):
        cordons = cordons.with_cordon(
            ManualCordon(life_key=f"l{number}", by="b" * 200, reason="\U0001f600" * 300, at=ago())
        )

    assert len(cordons.cordons) == MAX_MANUAL_CORDONS
    assert cordons.cordons[-1].life_key == f"l{MAX_MANUAL_CORDONS + 4}"
    assert len(json.dumps(cordons.to_json(), ensure_ascii=False).encode()) < 400_000


def test_recovery_cordon_never_becomes_an_operator_cordon(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, an_incident(1), a_fleet_node(1))
    gateway.fakes.cluster.cordon(CLUSTER, f"hyperpod-{NODE}", "inc-0000000001")

    refusal = gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "mine"})
    gateway.post(f"/v1/nodes/{NODE}/uncordon", {"reason": "mine"}, key="k2")
    cordoned = gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "mine"}, key="k3")

    assert (refusal.status, refusal.document["code"]) == (409, "CORDONED_BY_RECOVERY")
    assert "inc-0000000001" in refusal.document["detail"]
    assert f"evenkeel nodes uncordon {NODE}" in refusal.document["detail"]
    assert (cordoned.status, cordoned.document["outcome"]) == (200, "CORDONED")
    node = gateway.fakes.cluster.node(CLUSTER, f"hyperpod-{NODE}")
    assert node
    assert (node.is_cordoned, node.incident_id) == (True, None)


@pytest.mark.parametrize("verb", ["cordon", "uncordon"])
def test_cordon_or_uncordon_of_an_unknown_node_is_not_found(gateway: Gateway, verb: str) -> None:
    assert gateway.post(f"/v1/nodes/{NODE}/{verb}", {}).status == 404


# ---------------------------------------------------------------- plans


def plan_of(gateway: Gateway, path: str, **body: Any) -> Any:
    """Return the answer to a dry run, after a check that it changed nothing."""
    rows, nodes = dict(gateway.fakes.ledger.rows), gateway.fakes.cluster.nodes(CLUSTER)
    answer = gateway.post(f"/v1/{path}", {"dryRun": True, **body}, key="plan")
    assert gateway.fakes.ledger.rows == rows
    assert gateway.fakes.cluster.nodes(CLUSTER) == nodes
    return answer


def test_cordon_plan_names_the_work_that_stays(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1, accelerators_in_use=8, job_ids=("job-0000000001",)))

    document = plan_of(gateway, f"nodes/{NODE}/cordon", reason="fans").document

    assert (document["instanceId"], document["dryRun"], document["change"]) == (NODE, True, "cordon")
    assert document["effects"] == [
        "The node gets no new pods.",
        "Running pods stay: 8 of 8 GPUs are in use: job-0000000001.",
        "No recovery removes this cordon.",
    ]


def test_uncordon_plan_names_the_author_of_the_cordon(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1))
    free = plan_of(gateway, f"nodes/{NODE}/uncordon").document["effects"]
    gateway.post(f"/v1/nodes/{NODE}/cordon", {"reason": "loud fans"}, key="k1")

    cordoned = plan_of(gateway, f"nodes/{NODE}/uncordon").document["effects"]
    again = plan_of(gateway, f"nodes/{NODE}/cordon").document["effects"]

    assert free == ["Nothing changes: the node is not cordoned."]
    assert cordoned[1] == "role/Researcher (ana) cordoned it: loud fans"
    assert again == ["Nothing changes: a person has cordoned the node already."]


def test_uncordon_plan_says_that_the_recovery_ends(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, an_incident(1), a_fleet_node(1, marks=("xid:79",)))
    gateway.fakes.cluster.cordon(CLUSTER, f"hyperpod-{NODE}", "inc-0000000001")

    effects = plan_of(gateway, f"nodes/{NODE}/uncordon").document["effects"]
    refusal = plan_of(gateway, f"nodes/{NODE}/cordon")

    assert effects[1:] == [
        "The recovery inc-0000000001 of this node ends.",
        "Evenkeel records that you report the node as healthy. Its marks: xid:79.",
    ]
    assert (refusal.status, refusal.document["code"]) == (409, "CORDONED_BY_RECOVERY")


def test_uncordon_plan_is_refused_for_a_cordon_from_outside_evenkeel(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1))
    gateway.fakes.cluster.cordon(CLUSTER, f"hyperpod-{NODE}", None)

    answer = plan_of(gateway, f"nodes/{NODE}/uncordon")

    assert (answer.status, answer.document["code"]) == (409, "CORDONED_BY_PERSON")


def test_hold_plan_warns_that_scheduling_starts_again(gateway: Gateway) -> None:
    hold, body = "clusters/laptop/automation/hold", {"reason": "x", "forSeconds": 1800}
    gateway.post(f"/v1/{hold}", {**body, "stopsScheduling": True}, key="k1")

    narrower = plan_of(gateway, hold, **body).document
    same = plan_of(gateway, hold, **body, stopsScheduling=True).document
    pool = plan_of(gateway, hold, **body, pool="p5-workers", allowUnknown=True).document

    warning = "Scheduling starts again, because this hold replaces a hold on scheduling."
    assert warning in narrower["effects"]
    assert warning not in same["effects"]
    assert not any("Scheduling" in effect for effect in pool["effects"])


def test_hold_plan_names_its_end_and_the_replaced_hold(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1))
    hold, body = "clusters/laptop/automation/hold", {"reason": "x", "forSeconds": 1800}
    gateway.post(f"/v1/{hold}", body, key="k1")

    fleet = plan_of(gateway, hold, **body).document
    pool = plan_of(gateway, hold, **body, pool="p5-workers").document
    everything = plan_of(gateway, hold, **body, stopsScheduling=True).document
    unknown = plan_of(gateway, hold, **body, pool="p5-worker")

    assert fleet["effects"][0] == "No recovery repairs a node or stops a job until 2026-11-03 10:45Z."
    assert fleet["effects"][-1].startswith("It replaces the hold of role/Researcher (ana) until 2026-11-03 10:45Z")
    assert pool["effects"][0] == "No recovery repairs a node or stops a job on p5-workers until 2026-11-03 10:45Z."
    assert len(pool["effects"]) == 3
    assert "rental starts" in everything["effects"][0]
    continues = "Scheduling continues, and may preempt or resize jobs. To hold it too: evenkeel automation stop."
    assert [continues in plan["effects"] for plan in (fleet, pool, everything)] == [True, True, False]
    assert (unknown.status, unknown.document["code"]) == (400, "VALIDATION_FAILED")


# ---------------------------------------------------------------- holds of a pool or a node


def test_pool_and_node_can_be_held_together(gateway: Gateway) -> None:
    store(gateway.fakes.ledger, a_fleet_node(1))
    hold = "/v1/clusters/laptop/automation/hold"
    for number, scope in enumerate(({}, {"pool": "p5-workers"}, {"instanceId": NODE})):
        gateway.post(hold, {"reason": "x", "forSeconds": 600, **scope}, key=f"k{number}")
    gateway.post("/v1/clusters/laptop/automation/release", {"pool": "p5-workers"}, key="r")

    document = gateway.get("/v1/clusters/laptop/automation").document

    assert [(hold["pool"], hold["instanceId"]) for hold in document["holds"]] == [("", ""), ("", NODE)]


@pytest.mark.parametrize("scope", [{"pool": "a b"}, {"instanceId": "node-1"}])
def test_hold_with_an_invalid_scope_is_refused(gateway: Gateway, scope: dict[str, str]) -> None:
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
