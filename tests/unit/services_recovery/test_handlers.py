"""The handlers as Lambda calls them: camelCase in, camelCase out, and the names that the workflow branches on."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenkeel.ports import PermanentError, TransientError, Unreachable, WorkflowName
from evenkeel.runtime import wiring
from tests.fakes import FakeWorld
from tests.fakes.cluster import instance_id
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_recovery.recovery_scenario import QUICK

PROJECT = Path(__file__).resolve().parents[3]
EVENTS = PROJECT / "tests" / "fixtures" / "events"
CONTEXT = SimpleNamespace(function_name="test", aws_request_id="request-1", get_remaining_time_in_millis=lambda: 60_000)


def handler(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"functions.{name}", PROJECT / "functions" / name / "handler.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.handler


def call_handler(name: str, **document: Any) -> dict[str, Any]:
    answer: dict[str, Any] = handler(name)({"schemaVersion": 1, "executionArn": "arn:x", **document}, CONTEXT)
    json.dumps(answer)
    return answer


@pytest.fixture
def fake() -> Iterator[FakeWorld]:
    scenario = JobScenario(size=3, policy=QUICK)
    scenario.running(nodes=2, checkpoint_uri="")
    scenario.world.workflows.executions.clear()
    with wiring.use_ports(scenario.world.as_ports({"EVENKEEL_DRILLS_MAY_ACT": "true"})):
        yield scenario.world


def an_event(name: str, number: int = 1) -> str:
    event = json.loads((EVENTS / name).read_text())
    if "InstanceId" in event.get("detail", {}) and event["detail"]["InstanceId"] == "i-0a1c4f7b92d36e581":
        event["detail"]["InstanceId"] = instance_id(number)
    return json.dumps(event)


def deliver_events(*bodies: str) -> dict[str, Any]:
    records = [{"messageId": f"m-{number}", "body": body} for number, body in enumerate(bodies)]
    answer: dict[str, Any] = handler("receive_event")({"Records": records}, CONTEXT)
    return answer


def test_handlers_complete_a_recovery(fake: FakeWorld) -> None:
    assert deliver_events(an_event("hyperpod-node-unhealthy.json")) == {"batchItemFailures": []}
    [execution] = fake.workflows.names(WorkflowName.RECOVER_NODE)
    subject = {"incidentId": execution.removesuffix("-r1"), "run": 1}

    plan = call_handler("plan_recovery", **subject)
    assert (plan["outcome"], plan["repairsNode"], plan["maxRepairs"]) == ("ACT", True, 3)
    assert plan["settleSeconds"] == 0
    assert call_handler("cordon_node", **subject)["outcome"] == "CORDONED"
    assert call_handler("drain_node", **subject)["outcome"] == "JOBS_AFFECTED"
    assert [job["option"] for job in call_handler("plan_resume", **subject)["jobs"]] == ["FREE_NODE"]
    assert call_handler("repair_node", **subject) | {"reason": ""} == {
        "outcome": "REQUESTED",
        "rung": "replace",
        "waitSeconds": 0,
        "reason": "",
    }
    call_handler("open_wait", kind="NODE_BACK", token="token-1", **subject)
    assert fake.wait_answers.requests == []
    fake.provider.finish_all()
    call_handler("open_wait", kind="NODE_BACK", token="token-2", **subject)
    [wait_request] = fake.wait_answers.requests
    request = {
        "subject": wait_request.subject,
        "name": wait_request.name,
        "generation": wait_request.generation,
        "answer": wait_request.answer,
    }
    assert handler("resolve_wait")(request, CONTEXT)["outcome"] == "ANSWERED"
    assert fake.task_tokens.answers["token-2"]["outcome"] == "NODE_BACK"
    assert call_handler("check_node", **subject)["outcome"] == "BASIC"
    assert call_handler("return_node", **subject)["outcome"] == "RETURNED"
    settled = call_handler(
        "settle_incident",
        **subject,
        plan={"outcome": "ACT", "reason": ""},
        node={"outcome": "RETURNED", "reason": "Back."},
        jobs={"outcome": "JOBS_RESUMED", "reason": "Runs."},
        failure=None,
    )
    assert settled == {"outcome": "RECOVERED", "reason": "Back. Runs."}


def test_hostile_events_are_dead_lettered_and_the_next_is_handled(fake: FakeWorld) -> None:
    hostile = [path.read_text() for path in sorted((EVENTS / "bad").glob("*.json"))]

    assert deliver_events(*hostile, an_event("hyperpod-node-unhealthy.json")) == {"batchItemFailures": []}

    assert len(fake.raw_events.kept) == len(hostile) + 1
    assert sorted(letter.code for letter in fake.dead_letters.letters) == [
        "EVENT_BAD_ID",
        "EVENT_BAD_TEXT",
        "EVENT_BAD_TIME",
        "EVENT_BAD_TYPE",
        "EVENT_NO_DETAIL",
        "EVENT_TOO_LARGE",
        "EVENT_UNKNOWN_STATUS",
    ]
    assert fake.telemetry.totals["EventsUnknown"] == 1
    assert len(fake.workflows.names(WorkflowName.RECOVER_NODE)) == 1


def test_only_retryable_events_return_to_the_queue(fake: FakeWorld) -> None:
    def raise_unreachable(instance_id: str) -> Any:
        raise Unreachable("no provider")

    fake.provider.node = raise_unreachable  # type: ignore[method-assign]  # the provider does not answer

    answer = deliver_events((EVENTS / "bad" / "wrong-types.json").read_text(), an_event("hyperpod-node-unhealthy.json"))

    assert answer == {"batchItemFailures": [{"itemIdentifier": "m-1"}]}


@pytest.mark.parametrize(
    "name",
    [
        "plan_recovery",
        "cordon_node",
        "drain_node",
        "repair_node",
        "check_node",
        "return_node",
        "plan_resume",
        "settle_incident",
    ],
)
def test_unknown_incident_is_a_permanent_error(fake: FakeWorld, name: str) -> None:
    with pytest.raises(PermanentError, match="NotFound") as raised:
        call_handler(name, incidentId="inc-nobody", run=1)

    assert type(raised.value) is PermanentError


def test_wait_that_cannot_be_opened_fails_its_task(fake: FakeWorld) -> None:
    with pytest.raises(PermanentError):
        call_handler("open_wait", kind="NODE_BACK", token="token-1", incidentId="inc-nobody", run=1)

    assert "token-1" in fake.task_tokens.failures


def test_conflict_is_raised_as_a_transient_error(fake: FakeWorld) -> None:
    from evenkeel.ports import Conflict

    deliver_events(an_event("hyperpod-node-unhealthy.json"))
    [execution] = fake.workflows.names(WorkflowName.RECOVER_NODE)

    def conflict(*_: Any, **__: Any) -> None:
        raise Conflict("another writer was first")

    fake.ledger.commit = conflict  # type: ignore[method-assign]  # another writer always commits first

    with pytest.raises(TransientError, match="Conflict") as raised:
        call_handler("plan_recovery", incidentId=execution.removesuffix("-r1"), run=1)
    assert type(raised.value) is TransientError
