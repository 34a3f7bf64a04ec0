"""A person requests the replacement of a node. The request is a fault; a dry run only records the decision."""

import json
from typing import Any

import pytest

from evenkeel.domain.decisions import Decision
from evenkeel.domain.replay import replay
from evenkeel.events import envelope
from evenkeel.events.outcomes import ParsedEvent
from evenkeel.services.incidents import receive_event
from evenkeel.services.storage import incident_rows, rows, subject_rows
from tests.fakes.cluster import instance_id
from tests.unit.api.gateway import ApiResponse, Gateway
from tests.unit.api.seeds import a_fleet_node, an_incident, stored

NODE = instance_id(1)


@pytest.fixture
def fleet(gateway: Gateway) -> Gateway:
    """The API of a fleet with two recorded nodes; a job runs on the first."""
    stored(gateway.fakes.ledger, a_fleet_node(1, job_ids=("job-0000000001",)), a_fleet_node(2))
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


def test_dry_run_records_the_decision_and_changes_nothing(fleet: Gateway) -> None:
    fakes = fleet.fakes
    before, calls = dict(fakes.ledger.rows), list(fakes.cluster.calls)

    answer = request_replacement(fleet, dryRun=True)

    planned = answer.document
    assert (planned["outcome"], planned["jobs"]) == ("ACT", ["job-0000000001"])
    assert planned["reason"] == "A person asks for it to be replaced: replace, and move the jobs."
    assert answer.headers["Location"] == f"/v1/decisions/{planned['decisionId']}"
    record = recorded_decision(fleet, planned["decisionId"])
    assert (record.kind, record.action, record.is_dry_run) == ("RECOVERY", "ACT", True)
    assert record.subject == a_fleet_node(1).life.key
    assert replay(record, fakes.policy).differs_from(record) == ""
    added = {key: row for key, row in fakes.ledger.rows.items() if before.get(key) != row}
    assert set(added) == {subject_rows.decision_key(record.decision_id)}
    assert (fakes.workflows.executions, fakes.inbox.queued, fakes.provider.asked) == ({}, [], [])
    assert fakes.cluster.calls == calls
    assert not [metric for metric in fakes.telemetry.metrics if metric.name.startswith(("Incidents", "Recoveries"))]


def test_replacement_request_follows_the_fault_path(fleet: Gateway) -> None:
    planned = dry_run_replacement(fleet, key="dry", code="79")
    answer = request_replacement(fleet, code="79")
    (queued,) = fleet.fakes.inbox.queued
    heard = envelope.parse(json.dumps(queued).encode())
    assert isinstance(heard, ParsedEvent)
    fakes = fleet.fakes

    results = receive_event.ingest_facts(
        heard.facts,
        fakes.context(),
    )

    assert (answer.status, answer.document["envelopeId"]) == (202, queued["id"])
    assert [result.outcome for result in results] == ["OPEN", "JOIN"]
    assert recorded_decision(fleet, planned["decisionId"]).facts["faultKey"] == "xid:79"
    incident = fakes.ledger.get(incident_rows.incident_key(results[0].incident_id))
    assert incident
    assert (incident.doc["faultKey"], incident.doc["sources"]) == ("xid:79", ["person:role/Researcher (ana)"])


def test_repeated_replacement_request_queues_nothing(fleet: Gateway) -> None:
    first, again = request_replacement(fleet), request_replacement(fleet)
    other = request_replacement(fleet, code="79")

    assert first.document == again.document
    assert len(fleet.fakes.inbox.queued) == 1
    assert other.document["code"] == "IDEMPOTENCY_KEY_REUSED"


def test_replacement_request_never_plans_a_weaker_repair(fleet: Gateway) -> None:
    alone = dry_run_replacement(fleet, code="NvidiaErrorReboot")

    assert "replace, and move the jobs" in alone["reason"]
    assert recorded_decision(fleet, alone["decisionId"]).facts["ladder"] == ["replace"]


def test_dry_run_names_the_blocking_guardrail(fleet: Gateway) -> None:
    fleet.fakes.provider.settings = fleet.fakes.provider.settings.replace(status="SystemUpdating")
    busy = dry_run_replacement(fleet)

    assert (busy["outcome"], "leaves the node alone" in busy["reason"]) == ("LATER", True)


def test_dry_run_in_observe_mode_says_so() -> None:
    gateway = Gateway(environment={"EVENKEEL_MODE": "observe"})
    stored(gateway.fakes.ledger, a_fleet_node(1))

    planned = dry_run_replacement(gateway)

    assert planned["outcome"] == "OBSERVE"
    assert recorded_decision(gateway, planned["decisionId"]).action == "ACT"


def test_replacement_request_joins_an_open_incident(fleet: Gateway) -> None:
    incident = an_incident(1, fault_key="hp:NvidiaErrorReboot")
    stored(fleet.fakes.ledger, incident)

    planned = dry_run_replacement(fleet)

    assert recorded_decision(fleet, planned["decisionId"]).facts["ladder"] == ["replace"]
    row = fleet.fakes.ledger.get(incident_rows.incident_key(incident.incident_id))
    assert row
    assert row.doc == incident.to_json()


@pytest.mark.parametrize("is_dry", [True, False])
def test_unknown_node_or_code_is_refused(fleet: Gateway, is_dry: bool) -> None:
    unknown = request_replacement(fleet, instance_id(9), dryRun=is_dry)
    wrong = request_replacement(fleet, code="no-such-fault", dryRun=is_dry, key="k2")
    without = fleet.post(f"/v1/nodes/{NODE}/replace", {"dryRun": is_dry}, key="k3")

    assert (unknown.status, wrong.status, without.status) == (404, 400, 400)
    assert [error["field"] for error in wrong.document["errors"]] == ["code"]
    assert fleet.fakes.inbox.queued == []
