"""A person requests the replacement of a node. The request is a fault; a dry run only records the decision."""

import json
from typing import Any

import pytest

from evenkeel.domain.decisions import Decision
from evenkeel.domain.replay import replay
from evenkeel.events import envelope
from evenkeel.events.outcomes import ParsedEvent
from evenkeel.services.incidents import ingest_event
from evenkeel.services.tables import incident_rows, rows, subject_rows
from tests.fakes.cluster import instance_id
from tests.unit.api.gateway import ApiResponse, Gateway
from tests.unit.api.seeds import a_fleet_node, an_incident, store
from tests.unit.api.test_faults import crash, remove_node

NODE = instance_id(1)


@pytest.fixture
def gateway_with_nodes(gateway: Gateway) -> Gateway:
    """The API of a fleet with two recorded nodes; a job runs on the first."""
    store(gateway.fakes.ledger, a_fleet_node(1, job_ids=("job-0000000001",)), a_fleet_node(2))
    return gateway


def request_replacement(gateway: Gateway, node: str = NODE, *, key: str = "k1", **changes: Any) -> ApiResponse:
    return gateway.post(f"/v1/nodes/{node}/replace", {"reason": "it smells of smoke", **changes}, key=key)


def dry_run_replacement(gateway: Gateway, **changes: Any) -> dict[str, Any]:
    answer = request_replacement(gateway, dryRun=True, **changes)
    assert answer.status == 202, answer.text
    return answer.document


def recorded_decision(gateway: Gateway, decision_id: str) -> Decision:
    row = gateway.fakes.ledger.get(subject_rows.decision_key(decision_id))
    assert row
    return rows.decode(row, Decision)


def test_replacement_dry_run_records_its_decision_and_changes_nothing(gateway_with_nodes: Gateway) -> None:
    fakes = gateway_with_nodes.fakes
    before, calls = dict(fakes.ledger.rows), list(fakes.cluster.calls)

    answer = request_replacement(gateway_with_nodes, dryRun=True)

    plan_document = answer.document
    assert (plan_document["outcome"], plan_document["jobs"]) == ("ACT", ["job-0000000001"])
    assert plan_document["reason"] == "A person asks for it to be replaced: Evenkeel moves the jobs, then: replace."
    assert answer.headers["Location"] == f"/v1/decisions/{plan_document['decisionId']}"
    record = recorded_decision(gateway_with_nodes, plan_document["decisionId"])
    assert (record.kind, record.action, record.is_dry_run) == ("RECOVERY", "ACT", True)
    assert record.subject == a_fleet_node(1).life.key
    assert replay(record, fakes.policy).differs_from(record) == ""
    added = {key: row for key, row in fakes.ledger.rows.items() if before.get(key) != row}
    assert set(added) == {subject_rows.decision_key(record.decision_id)}
    assert (fakes.workflows.executions, fakes.inbox.queued, fakes.provider.asked) == ({}, [], [])
    assert fakes.cluster.calls == calls
    assert not [metric for metric in fakes.telemetry.metrics if metric.name.startswith(("Incidents", "Recoveries"))]


def test_repeated_replacement_dry_run_records_its_decision_once(gateway_with_nodes: Gateway) -> None:
    fakes = gateway_with_nodes.fakes
    before = dict(fakes.ledger.rows)
    first_document = dry_run_replacement(gateway_with_nodes)
    fakes.clock.advance(90)

    repeated_document = dry_run_replacement(gateway_with_nodes)

    assert repeated_document == first_document
    assert fakes.ledger.rows.keys() - before.keys() == {subject_rows.decision_key(first_document["decisionId"])}
    assert dry_run_replacement(gateway_with_nodes, key="k2")["decisionId"] != first_document["decisionId"]


def test_requested_replacement_opens_an_incident_like_a_fault(gateway_with_nodes: Gateway) -> None:
    plan_document = dry_run_replacement(gateway_with_nodes, key="dry", code="79")
    answer = request_replacement(gateway_with_nodes, code="79")
    (queued,) = gateway_with_nodes.fakes.inbox.queued
    parsed_event = envelope.parse(json.dumps(queued).encode())
    assert isinstance(parsed_event, ParsedEvent)
    fakes = gateway_with_nodes.fakes

    results = ingest_event.ingest_facts(
        parsed_event.facts,
        fakes.context(),
    )

    assert (answer.status, answer.document["envelopeId"]) == (202, queued["id"])
    assert [result.outcome for result in results] == ["OPEN", "JOIN"]
    assert recorded_decision(gateway_with_nodes, plan_document["decisionId"]).facts["faultKey"] == "xid:79"
    incident = fakes.ledger.get(incident_rows.incident_key(results[0].incident_id))
    assert incident
    assert (incident.doc["faultKey"], incident.doc["sources"]) == ("xid:79", ["person:role/Researcher (ana)"])


def test_repeated_replacement_request_queues_nothing(gateway_with_nodes: Gateway) -> None:
    first, repeated_answer = request_replacement(gateway_with_nodes), request_replacement(gateway_with_nodes)
    other_answer = request_replacement(gateway_with_nodes, code="79")

    assert first.document == repeated_answer.document
    assert len(gateway_with_nodes.fakes.inbox.queued) == 1
    assert other_answer.document["code"] == "IDEMPOTENCY_KEY_REUSED"


def test_repeated_replacement_request_is_answered_after_the_node_is_gone(
    gateway_with_nodes: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash(gateway_with_nodes, monkeypatch, "after the envelope", lambda: request_replacement(gateway_with_nodes))
    remove_node(gateway_with_nodes, 1)

    repeated_answer = request_replacement(gateway_with_nodes)

    first, second = gateway_with_nodes.fakes.inbox.queued
    assert first == second
    assert (repeated_answer.status, repeated_answer.document["envelopeId"]) == (202, first["id"])


def test_requested_replacement_never_plans_a_reboot(gateway_with_nodes: Gateway) -> None:
    plan_document = dry_run_replacement(gateway_with_nodes, code="NvidiaErrorReboot")

    assert "Evenkeel moves the jobs, then: replace." in plan_document["reason"]
    assert recorded_decision(gateway_with_nodes, plan_document["decisionId"]).facts["ladder"] == ["replace"]


def test_replacement_dry_run_names_the_blocking_guardrail(gateway_with_nodes: Gateway) -> None:
    gateway_with_nodes.fakes.provider.settings = gateway_with_nodes.fakes.provider.settings.replace(
        status="SystemUpdating"
    )
    busy = dry_run_replacement(gateway_with_nodes)

    assert (busy["outcome"], "leaves the node alone" in busy["reason"]) == ("LATER", True)


def test_dry_run_states_that_the_mode_is_observe() -> None:
    gateway = Gateway(environment={"EVENKEEL_MODE": "observe"})
    store(gateway.fakes.ledger, a_fleet_node(1))

    plan_document = dry_run_replacement(gateway)

    assert plan_document["outcome"] == "OBSERVE"
    assert recorded_decision(gateway, plan_document["decisionId"]).action == "ACT"


def test_replacement_request_joins_an_open_incident(gateway_with_nodes: Gateway) -> None:
    incident = an_incident(1, fault_key="hp:NvidiaErrorReboot")
    store(gateway_with_nodes.fakes.ledger, incident)

    plan_document = dry_run_replacement(gateway_with_nodes)

    assert recorded_decision(gateway_with_nodes, plan_document["decisionId"]).facts["ladder"] == ["replace"]
    row = gateway_with_nodes.fakes.ledger.get(incident_rows.incident_key(incident.incident_id))
    assert row
    assert row.doc == incident.to_json()


@pytest.mark.parametrize("is_dry", [True, False])
def test_unknown_node_or_code_is_refused(gateway_with_nodes: Gateway, is_dry: bool) -> None:
    unknown = request_replacement(gateway_with_nodes, instance_id(9), dryRun=is_dry)
    unknown_code_answer = request_replacement(gateway_with_nodes, code="no-such-fault", dryRun=is_dry, key="k2")
    unknown_node_answer = gateway_with_nodes.post(f"/v1/nodes/{NODE}/replace", {"dryRun": is_dry}, key="k3")

    assert (unknown.status, unknown_code_answer.status, unknown_node_answer.status) == (404, 400, 400)
    assert [error["field"] for error in unknown_code_answer.document["errors"]] == ["code"]
    assert gateway_with_nodes.fakes.inbox.queued == []
