"""The wrappers around all functions: names of failures, task tokens, dead letters, batches, and log lines."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evenkeel.ports import (
    Conflict,
    NoPolicyInForce,
    NotAllowed,
    NotFound,
    PageNotSent,
    PermanentError,
    Refused,
    Throttled,
    TransientError,
    Unreachable,
)
from evenkeel.runtime import entry, wiring
from tests.fakes import FakeWorld
from tests.fakes.messages import DeadLetter


@dataclass(frozen=True)
class StubLambdaContext:
    function_name: str = "a-function"
    aws_request_id: str = "req-1"

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


CONTEXT = StubLambdaContext()


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    fake = FakeWorld()
    with wiring.use_ports(fake.as_ports()):
        yield fake


def failing_handler(error: Exception) -> entry.Handler:
    def handler(_event: entry.Json, _context: Any) -> entry.Json:
        raise error

    return handler


# ---------------------------------------------------------------- task


def test_task_logs_one_line_with_its_ids(world: FakeWorld) -> None:
    @entry.task
    def handler(_event: entry.Json, _context: Any) -> entry.Json:
        return {"outcome": "CORDONED", "reason": "It was free."}

    answer = handler({"incidentId": "inc-1", "executionArn": "arn:x", "schemaVersion": 1}, CONTEXT)

    assert answer == {"outcome": "CORDONED", "reason": "It was free."}
    (line,) = world.telemetry.lines
    assert (line.level, line.message, line.keys["outcome"]) == ("INFO", "TaskDone", "CORDONED")
    assert line.keys["milliseconds"] >= 0
    assert world.telemetry.bound == {
        "incidentId": "inc-1",
        "executionArn": "arn:x",
        "function": "a-function",
        "functionRequestId": "req-1",
    }


@pytest.mark.parametrize(
    ("error", "name", "message", "level"),
    [
        (Throttled("slow down"), "TransientError", "Throttled: slow down", "WARNING"),
        (Conflict("lost", (1,)), "TransientError", "Conflict: lost", "WARNING"),
        (TransientError("plain"), "TransientError", "plain", "WARNING"),
        (NotFound("inc-1"), "PermanentError", "NotFound: inc-1", "ERROR"),
        (NoPolicyInForce("none"), "NoPolicyInForce", "none", "ERROR"),
        (PageNotSent("refused"), "PageNotSent", "refused", "WARNING"),
        (PermanentError("plain"), "PermanentError", "plain", "ERROR"),
        (ZeroDivisionError("a bug"), "ZeroDivisionError", "a bug", "ERROR"),
    ],
)
def test_task_error_is_raised_under_name_that_workflow_matches(
    world: FakeWorld, error: Exception, name: str, message: str, level: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the exact type is what is tested
        entry.task(failing_handler(error))({"jobId": "job-1"}, CONTEXT)

    assert (type(caught.value).__name__, str(caught.value)) == (name, message)
    (line,) = world.telemetry.lines
    assert line.level == level
    assert world.task_tokens.failures == {}


@pytest.mark.parametrize("page", ["function-errors", "failed-cycles", "unhandled-events"])
@pytest.mark.parametrize("error", [Throttled("slow down"), NotFound("inc-1"), ZeroDivisionError("a bug")])
def test_command_of_the_runbook_finds_every_failed_call(world: FakeWorld, error: Exception, page: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / "runbooks" / f"{page}.md").read_text("utf-8")
    (pattern,) = re.findall(r"--filter-pattern '?([^'\n]+)", text)

    with pytest.raises(Exception):  # noqa: B017, PT011 - only the log line is looked at
        entry.task(failing_handler(error))({"jobId": "job-1"}, CONTEXT)

    (line,) = world.telemetry.lines
    assert {term.strip("?") for term in pattern.split()} & {line.level, line.message}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Throttled("slow down"), ("TransientError", "Throttled: slow down")),
        (Refused("wrong"), ("PermanentError", "Refused: wrong")),
        (KeyError("bug"), ("KeyError", "'bug'")),
    ],
)
def test_failure_of_a_task_with_a_token_reaches_the_workflow(
    world: FakeWorld, error: Exception, expected: tuple[str, str]
) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - only the token is looked at
        entry.task(failing_handler(error))({"token": "t-1", "incidentId": "inc-1"}, CONTEXT)

    assert world.task_tokens.failures == {"t-1": expected}
    assert "t-1" not in str(world.telemetry.lines)
    assert "token" not in world.telemetry.bound


def test_unreachable_workflow_does_not_hide_the_failure(world: FakeWorld) -> None:
    class UnreachableTaskTokens:
        def fail(self, token: str, error: str, cause: str) -> bool:
            raise Throttled("states")

    world.task_tokens = UnreachableTaskTokens()  # type: ignore[assignment]  # the port is all that matters
    with wiring.use_ports(world.as_ports()), pytest.raises(ZeroDivisionError, match="the bug"):
        entry.task(failing_handler(ZeroDivisionError("the bug")))({"token": "t-1"}, CONTEXT)

    assert world.telemetry.lines[-1].message == "WorkflowNotNotified"


def test_success_of_a_task_with_a_token_sends_no_answer(world: FakeWorld) -> None:
    entry.task(lambda _event, _context: {"outcome": "OPEN"})({"token": "t-1"}, CONTEXT)

    assert (world.task_tokens.answers, world.task_tokens.failures) == ({}, {})


# ---------------------------------------------------------------- event


@dataclass(frozen=True)
class Fact:
    code: str
    reason: str = "a fact may have these too"


@dataclass(frozen=True)
class Bad:
    code: str
    reason: str


@dataclass(frozen=True)
class Ignored:
    reason: str


def parse(body: bytes) -> Any:
    kind = json.loads(body).get("kind")
    match kind:
        case "bad":
            return Bad("EVENT_BAD_ID", "detail.InstanceId")
        case "other":
            return Ignored("nothing to do")
        case _:
            return Fact(kind)


def event_handler_with(*outcomes: Any) -> tuple[entry.Handler, list[Fact]]:
    """Return an event handler with these results or errors in order, and the list of facts that it received."""
    facts: list[Fact] = []
    left = list(outcomes)

    @entry.event(parse=parse, malformed=Bad, ignored_types=(Ignored,))
    def handler(fact: Fact, _context: Any) -> entry.Json:
        facts.append(fact)
        outcome = left.pop(0) if left else {"outcome": "OPENED", "incidentId": "inc-1"}
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, dict)
        return outcome

    return handler, facts


def a_batch(*documents: Any) -> entry.Json:
    bodies = [document if isinstance(document, str) else json.dumps(document) for document in documents]
    return {"Records": [{"messageId": f"m-{index}", "body": body} for index, body in enumerate(bodies)]}


def test_each_event_is_archived_then_handled_and_logged_once(world: FakeWorld) -> None:
    handler, facts = event_handler_with()

    answer = handler(a_batch({"id": "e-1", "kind": "xid"}, {"id": "e-2", "kind": "ecc"}), CONTEXT)

    assert answer == {"batchItemFailures": []}
    assert facts == [Fact("xid"), Fact("ecc")]
    assert set(world.raw_events.kept) == {"e-1", "e-2"}
    assert [(line.message, line.keys["incidentId"]) for line in world.telemetry.lines] == [("EventDone", "inc-1")] * 2


def test_copy_of_an_event_does_not_delay_its_ingestion(world: FakeWorld) -> None:
    order: list[str] = []

    class RecordingArchive:
        def keep(self, envelope_id: str, body: bytes) -> None:
            order.append(f"archive {envelope_id}")

    @entry.event(parse=parse, malformed=Bad, ignored_types=(Ignored,))
    def handler(fact: Fact, _context: Any) -> entry.Json:
        order.append(f"ingest {fact.code}")
        return {"outcome": "OPENED"}

    world.raw_events = RecordingArchive()  # type: ignore[assignment]  # the port is all that matters
    with wiring.use_ports(world.as_ports()):
        handler(a_batch({"id": "e-1", "kind": "xid"}, {"id": "e-2", "kind": "other"}), CONTEXT)

    assert order[0] == "ingest xid"
    assert sorted(order[1:]) == ["archive e-1", "archive e-2"]


def test_malformed_event_is_dead_lettered_and_counts_as_done(world: FakeWorld) -> None:
    handler, facts = event_handler_with()
    body = json.dumps({"id": "e-1", "kind": "bad", "detail": "x" * 500})

    answer = handler(a_batch(body, {"id": "e-2", "kind": "xid"}), CONTEXT)

    assert answer == {"batchItemFailures": []}
    assert world.dead_letters.letters == [DeadLetter(body, "EVENT_BAD_ID", "detail.InstanceId")]
    assert facts == [Fact("xid")]
    assert world.telemetry.totals["EventsFailed"] == 1
    assert world.raw_events.kept["e-1"] == body.encode()
    line = world.telemetry.lines[-1]
    assert (line.keys["code"], len(line.keys["bodyStart"])) == ("EVENT_BAD_ID", 200)


def test_ignored_event_is_archived_and_counted(world: FakeWorld) -> None:
    handler, facts = event_handler_with()

    answer = handler(a_batch({"id": "e-1", "kind": "other"}), CONTEXT)

    assert (answer, facts, world.dead_letters.letters) == ({"batchItemFailures": []}, [], [])
    assert set(world.raw_events.kept) == {"e-1"}
    assert world.telemetry.totals["EventsIgnored"] == 1


@pytest.mark.parametrize("error", [Throttled("slow"), NotAllowed("no"), ZeroDivisionError("bug")])
def test_only_the_failed_event_of_a_batch_returns_to_queue(world: FakeWorld, error: Exception) -> None:
    handler, facts = event_handler_with(error, {"outcome": "JOINED"})

    answer = handler(a_batch({"id": "e-1", "kind": "xid"}, {"id": "e-2", "kind": "ecc"}), CONTEXT)

    assert answer == {"batchItemFailures": [{"itemIdentifier": "m-0"}]}
    assert len(facts) == 2
    assert world.dead_letters.letters == []


@pytest.mark.parametrize(("deliveries", "seconds"), [(1, 10), (2, 30), (3, 90), (4, 270), (5, 360), (8, 360)])
def test_failed_event_is_redelivered_with_growing_delays(world: FakeWorld, deliveries: int, seconds: int) -> None:
    handler, _ = event_handler_with(Throttled("slow"))
    batch = a_batch({"id": "e-1", "kind": "xid"}, {"id": "e-2", "kind": "ecc"})
    for index, record in enumerate(batch["Records"]):
        record |= {"receiptHandle": f"r-{index}", "attributes": {"ApproximateReceiveCount": str(deliveries)}}

    handler(batch, CONTEXT)

    assert world.inbox.again == [("r-0", seconds)]


def test_failed_delay_request_does_not_fail_the_batch(world: FakeWorld) -> None:
    class FailingQueue:
        def delay_redelivery(self, receipt: str, seconds: int) -> None:
            raise Throttled("queue")

    world.inbox = FailingQueue()  # type: ignore[assignment]  # the port is all that matters
    handler, facts = event_handler_with(Throttled("slow"))
    batch = a_batch({"id": "e-1", "kind": "xid"}, {"id": "e-2", "kind": "ecc"})
    batch["Records"][0]["receiptHandle"] = "r-0"
    with wiring.use_ports(world.as_ports()):
        answer = handler(batch, CONTEXT)

    assert answer == {"batchItemFailures": [{"itemIdentifier": "m-0"}]}
    assert len(facts) == 2
    assert "EventDeliveredLate" in [line.message for line in world.telemetry.lines]


@pytest.mark.parametrize(("kind", "ingested"), [("bad", 0), ("other", 0), ("xid", 1)])
def test_event_without_archive_copy_is_delivered_again(world: FakeWorld, kind: str, ingested: int) -> None:
    class FailingArchive:
        def keep(self, envelope_id: str, body: bytes) -> None:
            raise Throttled("archive")

    world.raw_events = FailingArchive()  # type: ignore[assignment]  # the port is all that matters
    handler, facts = event_handler_with()
    with wiring.use_ports(world.as_ports()):
        answer = handler(a_batch({"id": "e-1", "kind": kind}), CONTEXT)

    assert answer == {"batchItemFailures": [{"itemIdentifier": "m-0"}]}
    assert (len(facts), world.dead_letters.letters) == (ingested, [])


@pytest.mark.parametrize(
    "body",
    ['{"kind": "xid"}', '{"id": "../../etc", "kind": "xid"}', '{"id": 7, "kind": "xid"}', '{"id": "\\ud800", "a": 1}'],
)
def test_event_without_valid_id_is_archived_under_its_digest(world: FakeWorld, body: str) -> None:
    handler, _ = event_handler_with()

    handler(a_batch(body), CONTEXT)

    (name,) = world.raw_events.kept
    assert name.startswith("sha256-")


def test_invalid_utf8_text_reaches_archive_and_dead_letters(world: FakeWorld) -> None:
    handler, _ = event_handler_with()

    answer = handler(a_batch('{"id": "e-1", "kind": "bad", "text": "\ud800"}'), CONTEXT)

    assert answer == {"batchItemFailures": []}
    assert json.loads(world.dead_letters.letters[0].body)["text"] == "\ud800"
    assert b"\\ud800" in world.raw_events.kept["e-1"]


def test_empty_batch_has_no_failures(world: FakeWorld) -> None:
    handler, _ = event_handler_with()

    assert handler({}, CONTEXT) == {"batchItemFailures": []}


# ---------------------------------------------------------------- scheduled

PASS_REQUEST = {"Records": [{"messageId": "m-0", "body": "{}"}, {"messageId": "m-1", "body": "{}"}]}


def test_scheduled_run_logs_its_result(world: FakeWorld) -> None:
    answer = entry.scheduled(lambda _event, _context: {"admitted": 2, "names": ["a"]})({}, CONTEXT)

    assert answer == {"admitted": 2, "names": ["a"]}
    (line,) = world.telemetry.lines
    assert (line.message, line.keys["admitted"], "names" in line.keys) == ("RunDone", 2, False)


def test_bug_in_a_scheduled_run_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        entry.scheduled(failing_handler(ZeroDivisionError("bug")))({}, CONTEXT)


@pytest.mark.parametrize("error", [NotAllowed("403 Forbidden"), NotFound("gone"), Unreachable("no answer")])
def test_scheduled_run_without_access_is_postponed(world: FakeWorld, error: Exception) -> None:
    answer = entry.scheduled(failing_handler(error))({}, CONTEXT)

    assert answer == {"outcome": "DEFERRED", "reason": f"{type(error).__name__}: {error}"}
    assert world.telemetry.totals["ScheduledRunsDeferred"] == 1


def test_transient_failure_of_a_scheduled_run_alerts_no_person(world: FakeWorld) -> None:
    answer = entry.scheduled(failing_handler(Throttled("slow")))({}, CONTEXT)

    assert answer == {"outcome": "DEFERRED", "reason": "Throttled: slow"}
    assert [line.message for line in world.telemetry.lines] == ["CallWillBeRetried"]
    assert world.telemetry.totals["ScheduledRunsDeferred"] == 1


def test_transient_failure_returns_cycle_requests_to_the_queue(world: FakeWorld) -> None:
    answer = entry.scheduled(failing_handler(Throttled("slow")))(PASS_REQUEST, CONTEXT)

    assert answer == {"batchItemFailures": [{"itemIdentifier": "m-0"}, {"itemIdentifier": "m-1"}]}


@pytest.mark.parametrize("error", [NotFound("gone"), ZeroDivisionError("bug")])
def test_permanent_failure_of_a_cycle_does_not_block_its_queue(world: FakeWorld, error: Exception) -> None:
    answer = entry.scheduled(failing_handler(error))(PASS_REQUEST, CONTEXT)

    assert answer == {"batchItemFailures": []}
    assert [line.level for line in world.telemetry.lines] == ["ERROR"]


# ---------------------------------------------------------------- api

REQUEST = {
    "httpMethod": "GET",
    "resource": "/v1/jobs/{id}",
    "requestContext": {"requestId": "r-1", "identity": {"userArn": "arn:aws:iam::000000000000:user/ada"}},
}


def test_request_logs_caller_route_and_status(world: FakeWorld) -> None:
    answer = entry.api(lambda _event, _context: {"statusCode": 200, "body": "{}"})(REQUEST, CONTEXT)

    assert answer["statusCode"] == 200
    (line,) = world.telemetry.lines
    assert (line.message, line.keys["status"]) == ("RequestDone", 200)
    assert world.telemetry.bound["principal"].endswith("user/ada")
    assert world.telemetry.bound["requestId"] == "r-1"


@pytest.mark.parametrize(
    ("error", "status"), [(NotFound("job-1 does not exist"), 404), (ZeroDivisionError("secret detail"), 500)]
)
def test_uncaught_error_of_a_request_becomes_a_problem(world: FakeWorld, error: Exception, status: int) -> None:
    answer = entry.api(failing_handler(error))(REQUEST, CONTEXT)

    problem = json.loads(answer["body"])
    assert (answer["statusCode"], problem["status"], problem["requestId"]) == (status, status, "r-1")
    assert answer["headers"]["Content-Type"] == "application/problem+json"
    assert (str(error) in answer["body"]) is (status != 500)
