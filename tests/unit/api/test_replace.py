"""A person asks for a node to be replaced: reported as a fault; in a dry run decided, recorded, and nothing else."""

import json
from typing import Any

import pytest

from evenkeel.domain.decisions import Decision
from evenkeel.domain.replay import replay
from evenkeel.events import envelope
from evenkeel.events.outcomes import ParsedEvent
from evenkeel.services.incidents import receive_event
from evenkeel.services.storage import rows
from tests.fakes.cluster import instance_id
from tests.unit.api.gateway import ApiResponse, Gateway
from tests.unit.api.seeds import a_fleet_node, an_incident, stored

NODE = instance_id(1)


@pytest.fixture
def fleet(gateway: Gateway) -> Gateway:
    """A stack that remembers two machines, the first with a job on it."""
    stored(gateway.fakes.ledger, a_fleet_node(1, job_ids=("job-0000000001",)), a_fleet_node(2))
    return gateway


def ask(gateway: Gateway, node: str = NODE, *, key: str = "k1", **changes: Any) -> ApiResponse:
    return gateway.post(f"/v1/nodes/{node}/replace", {"reason": "it smells of smoke", **changes}, key=key)


def rehearse(gateway: Gateway, **changes: Any) -> dict[str, Any]:
    answer = ask(gateway, dryRun=True, **changes)
    assert answer.status == 202, answer.text
    return answer.document


def recorded(gateway: Gateway, decision_id: str) -> Decision:
    row = gateway.fakes.ledger.get(rows.decision_key(decision_id))
    assert row
    return rows.read(row, Decision)


def test_a_dry_run_records_the_decision_and_leaves_everything_as_it_was(fleet: Gateway) -> None:
    fakes = fleet.fakes
    before, calls = dict(fakes.ledger.rows), list(fakes.cluster.calls)

    answer = ask(fleet, dryRun=True)

    planned = answer.document
    assert (planned["outcome"], planned["jobs"]) == ("ACT", ["job-0000000001"])
    assert planned["reason"] == "A person asks for it to be replaced: replace, and move the jobs."
    assert answer.headers["Location"] == f"/v1/decisions/{planned['decisionId']}"
    record = recorded(fleet, planned["decisionId"])
    assert (record.kind, record.action, record.simulated) == ("RECOVERY", "ACT", True)
    assert record.subject == a_fleet_node(1).life.key
    assert replay(record, fakes.policy).differs_from(record) == ""
    added = {key: row for key, row in fakes.ledger.rows.items() if before.get(key) != row}
    assert set(added) == {rows.decision_key(record.decision_id)}
    assert (fakes.workflows.executions, fakes.inbox.queued, fakes.provider.asked) == ({}, [], [])
    assert fakes.cluster.calls == calls
    assert not [metric for metric in fakes.telemetry.metrics if metric.name.startswith(("Incidents", "Recoveries"))]


def test_without_it_the_wish_goes_the_way_of_every_fault_and_comes_to_the_same(fleet: Gateway) -> None:
    planned = rehearse(fleet, key="dry", code="79")
    answer = ask(fleet, code="79")
    (queued,) = fleet.fakes.inbox.queued
    heard = envelope.parse(json.dumps(queued).encode())
    assert isinstance(heard, ParsedEvent)
    fakes = fleet.fakes

    outcomes = receive_event.ingest_event(
        heard.facts,
        fakes.context(),
    )

    assert (answer.status, answer.document["envelopeId"]) == (202, queued["id"])
    assert [outcome.outcome for outcome in outcomes] == ["OPEN", "JOIN"]
    assert recorded(fleet, planned["decisionId"]).facts["faultKey"] == "xid:79"
    incident = fakes.ledger.get(rows.incident_key(outcomes[0].incident_id))
    assert incident
    assert (incident.doc["faultKey"], incident.doc["sources"]) == ("xid:79", ["person:role/Researcher (ana)"])


def test_the_same_request_again_queues_nothing_and_another_under_its_key_is_refused(fleet: Gateway) -> None:
    first, again = ask(fleet), ask(fleet)
    other = ask(fleet, code="79")

    assert first.document == again.document
    assert len(fleet.fakes.inbox.queued) == 1
    assert other.document["code"] == "IDEMPOTENCY_KEY_REUSED"


def test_nothing_gentler_than_a_replacement_is_planned_whatever_else_is_wrong(fleet: Gateway) -> None:
    alone = rehearse(fleet, code="NvidiaErrorReboot")

    assert "replace, and move the jobs" in alone["reason"]
    assert recorded(fleet, alone["decisionId"]).facts["ladder"] == ["replace"]


def test_a_dry_run_says_what_is_in_the_way(fleet: Gateway) -> None:
    fleet.fakes.provider.settings = fleet.fakes.provider.settings.but(status="SystemUpdating")
    busy = rehearse(fleet)

    assert (busy["outcome"], "leaves the node alone" in busy["reason"]) == ("LATER", True)


def test_a_dry_run_in_a_stack_that_only_observes_says_so() -> None:
    gateway = Gateway(environment={"EVENKEEL_MODE": "observe"})
    stored(gateway.fakes.ledger, a_fleet_node(1))

    planned = rehearse(gateway)

    assert planned["outcome"] == "OBSERVE"
    assert recorded(gateway, planned["decisionId"]).action == "ACT"


def test_where_an_incident_is_open_the_wish_would_join_it_and_is_planned_anew(fleet: Gateway) -> None:
    incident = an_incident(1, fault_key="hp:NvidiaErrorReboot")
    stored(fleet.fakes.ledger, incident)

    planned = rehearse(fleet)

    assert recorded(fleet, planned["decisionId"]).facts["ladder"] == ["replace"]
    kept = fleet.fakes.ledger.get(rows.incident_key(incident.incident_id))
    assert kept
    assert kept.doc == incident.to_json()


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_machine_or_a_code_that_nobody_knows_is_refused(fleet: Gateway, is_dry: bool) -> None:
    unknown = ask(fleet, instance_id(9), dryRun=is_dry)
    wrong = ask(fleet, code="no-such-fault", dryRun=is_dry, key="k2")
    without = fleet.post(f"/v1/nodes/{NODE}/replace", {"dryRun": is_dry}, key="k3")

    assert (unknown.status, wrong.status, without.status) == (404, 400, 400)
    assert [error["field"] for error in wrong.document["errors"]] == ["code"]
    assert fleet.fakes.inbox.queued == []
