"""The outermost wrappers of every function. They name failures and write one log line for each call.

* `task`: a state of a workflow. It takes and returns JSON.
* `event`: an SQS batch of EventBridge envelopes.
* `scheduled`: a run by the clock, or a request for a scheduling cycle.
* `stream`: a batch of changes from the streams of the tables.
* `api`: a request through API Gateway.

This is the only module that catches `Exception`.
"""

import functools
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias

from evenkeel.ports import (
    EvenkeelError,
    NoPolicyInForce,
    PageNotSent,
    PermanentError,
    Refused,
    RowChange,
    TransientError,
    Unreadable,
)
from evenkeel.runtime import snap_start, wiring

snap_start.register_hooks(os.environ)

Json: TypeAlias = dict[str, Any]
StoredChange: TypeAlias = RowChange

ARCHIVE_NAME = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_SHOWN_BYTES = 200
"""Bytes of a malformed event in a log line. The archive and the dead-letter queue have the whole event."""
_COPIES_AT_ONCE = 4
_FIRST_PAUSE, _LAST_PAUSE = 10, 360
"""Seconds until a failed event is delivered again: three times as long each time, up to the last value. The queue
delivers an event eight times, so an outage of twenty minutes loses no event."""
_MIN_MILLISECONDS_LEFT = 15_000
"""Time that one event of at most ten nodes may need while a table is throttled."""
_BOUND_KEYS = ("incidentId", "jobId", "attempt", "run", "nodeLife", "cluster", "executionArn", "decisionId", "kind")
_IGNORED_METRICS = {"Ignored": "EventsIgnored", "Unknown": "EventsUnknown"}
"""Type of an event that needs no action → the metric that counts it."""
_RESULT_KEYS = ("outcome", "reason", "decisionId", "rung", "waitSeconds")


class LambdaContext(Protocol):
    """The part of the Lambda context that Evenkeel uses."""

    @property
    def function_name(self) -> str: ...

    @property
    def aws_request_id(self) -> str: ...

    def get_remaining_time_in_millis(self) -> int: ...


Handler: TypeAlias = Callable[[Json, Any], Json]

_SELF_TEST = "selfTest"


def _with_self_test(handler: Handler) -> Handler:
    """Answer an event that contains only a self-test. Any other event goes to the handler.

    Only `evenkeel doctor` invokes a function with such an event.
    """

    @functools.wraps(handler)
    def wrapped(event: Json, context: Any) -> Json:
        if event.keys() == {_SELF_TEST}:
            from evenkeel.runtime import self_test

            return self_test.run(event[_SELF_TEST], wiring.ports())
        return handler(event, context)

    return wrapped


def task(handler: Handler) -> Handler:
    """Wrap the function behind one state of a workflow.

    Step Functions compares error names exactly and knows no inheritance. So an error leaves as `TransientError` or
    `PermanentError`, and its message begins with the name of its class. A bug leaves under its own name.
    `NoPolicyInForce` and `PageNotSent` leave under their own names, too: workflows repeat the task for a day. A person
    applies a policy meanwhile, or SNS accepts the page.

    If the event has a task token, the failure is also sent to Step Functions. Not every engine ends a task when an
    error is raised under `.waitForTaskToken`, and the workflow must not wait for an answer that never comes.
    """

    @functools.wraps(handler)
    def wrapped(event: Json, context: Any) -> Json:
        with (
            _report_failure(event.get("token")),
            _log_call("TaskDone", context, _select_keys(event, _BOUND_KEYS)) as line,
        ):
            answer = handler(event, context)
            line.update(_select_keys(answer, _RESULT_KEYS))
            return answer

    return _with_self_test(wrapped)


class MalformedEvent(Protocol):
    """Answer of a parser for an event of a known kind that it cannot read."""

    @property
    def code(self) -> str: ...

    @property
    def reason(self) -> str: ...


class _QueueMessage:
    """A message of a batch from the queue."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = record
        # Characters that UTF-8 cannot encode stay readable as their escapes.
        self.body = str(record["body"]).encode("utf-8", "backslashreplace")
        self.envelope_id = _envelope_id_of(self.body)
        self.is_archived = False

    @property
    def keys(self) -> Json:
        return {
            "envelopeId": self.envelope_id,
            "messageId": self.record["messageId"],
            "sizeBytes": len(self.body),
        }


def event(
    *,
    parse: Callable[[bytes], Any],
    malformed: type[MalformedEvent],
    ignored_types: tuple[type[Any], ...],
    urgency: Callable[[Any], int] = lambda _: 0,
) -> Callable[[Callable[[Any, Any], Json]], Handler]:
    """Wrap the function behind a queue of events. The handler gets one parsed event at a time, urgent events first.

    Each message is archived unchanged after its event was ingested, and counts as done only after both. The copy does
    not delay the recovery, and the next event of the batch does not wait for it. A malformed event goes to the
    dead-letter queue with its code and counts as done, so it costs one invocation. A message goes back to the queue, by
    itself, if it may succeed later or if a bug stopped it. So does a message for which the invocation has too little
    time left.

    Args:
        parse: Reads the envelope; pure.
        malformed: The type that `parse` returns for a malformed event of a known kind.
        ignored_types: The types that `parse` returns for events that need no action. `_IGNORED_METRICS` names their
            metrics.
        urgency: Rank of a parsed event: events with a lower rank come first.

    `runtime` may not import `events`, so the handler's module passes the parser and the types of its answers.
    """

    def decorate(handler: Callable[[Any, Any], Json]) -> Handler:
        consumer = _EventConsumer(handler, parse, malformed, ignored_types, urgency)

        @functools.wraps(handler)
        def wrapped(batch: Json, context: Any) -> Json:
            return consumer.run(batch, context)

        return wrapped

    return decorate


@dataclass(frozen=True, slots=True)
class _EventConsumer:
    """The consumer of a queue of events. `event` describes the fields."""

    handler: Callable[[Any, Any], Json]
    parse: Callable[[bytes], Any]
    malformed: type[MalformedEvent]
    ignored_types: tuple[type[Any], ...]
    urgency: Callable[[Any], int]

    def run(self, batch: Json, context: Any) -> Json:
        """Ingest each message of a batch by itself. Return the failed messages, which the queue delivers again."""
        failed_ids: set[str] = set()
        copies: list[tuple[_QueueMessage, Future[None]]] = []
        # Powertools' BatchProcessor keeps the same promises, but faster redelivery would still need a subclass.
        # It loads 150 more modules, which adds 15% to the import time of a function on the way to a cordon.
        with ThreadPoolExecutor(max_workers=_COPIES_AT_ONCE) as archiver:
            for message in sorted(map(_QueueMessage, batch.get("Records", ())), key=self._urgency_of):
                try:
                    with _log_call("EventDone", context, message.keys) as line:
                        _require_time(context)
                        try:
                            result = self._ingest_message(message, context)
                        finally:  # also an event that fails is archived
                            copies.append((message, archiver.submit(_archive, message)))
                        line.update(_select_keys(result, (*_BOUND_KEYS, *_RESULT_KEYS, "code", "bodyStart")))
                except Exception:  # noqa: BLE001 - logged by _log_call; the other messages of the batch continue
                    failed_ids.add(message.record["messageId"])
                    _redeliver_soon(message.record)
            for message, copy in copies:
                if not _is_archived(copy, message) and message.record["messageId"] not in failed_ids:
                    failed_ids.add(message.record["messageId"])
                    _redeliver_soon(message.record)
        return {"batchItemFailures": [{"itemIdentifier": name} for name in sorted(failed_ids)]}

    def _urgency_of(self, message: _QueueMessage) -> float:
        try:
            parsed_event = self.parse(message.body)
        except Exception:  # noqa: BLE001 - a bug of the parser; the message fails when its turn comes
            return math.inf
        return math.inf if self._needs_no_handler(parsed_event) else self.urgency(parsed_event)

    def _needs_no_handler(self, parsed_event: object) -> bool:
        return isinstance(parsed_event, (self.malformed, *self.ignored_types))

    def _ingest_message(self, message: _QueueMessage, context: Any) -> Json:
        """Ingest the event of a message. Return the outcome for the log."""
        ports = wiring.ports()
        parsed_event = self.parse(message.body)
        if self._needs_no_handler(parsed_event):
            _archive(message)  # first, because nothing else keeps such an event
        if isinstance(parsed_event, self.malformed):
            return _send_to_dead_letters(message.body, parsed_event, ports)
        if isinstance(parsed_event, self.ignored_types):
            return _count_ignored(parsed_event, ports)
        ports.telemetry.count("EventsReceived")
        return self.handler(parsed_event, context)


def _archive(message: _QueueMessage) -> None:
    """Archive a message unchanged, unless it is archived already."""
    if not message.is_archived:
        wiring.ports().raw_events.keep(message.envelope_id, message.body)
        message.is_archived = True


def _is_archived(copy: Future[None], message: _QueueMessage) -> bool:
    """Wait for the copy of a message. Return whether it is stored."""
    try:
        copy.result()
    except Exception as error:  # noqa: BLE001 - the queue delivers the message again
        wiring.ports().telemetry.warning(
            "EventNotArchived", error=type(error).__name__, detail=str(error), **message.keys
        )
        return False
    return True


def _require_time(context: LambdaContext | None) -> None:
    """Raise a transient error if too little time is left: an invocation that times out returns its whole batch late."""
    if context is not None and context.get_remaining_time_in_millis() < _MIN_MILLISECONDS_LEFT:
        raise TransientError("The invocation has too little time left for this event.")


def _send_to_dead_letters(body: bytes, parsed_event: MalformedEvent, ports: wiring.Ports) -> Json:
    """Put a malformed event on the dead-letter queue, and return its outcome."""
    ports.dead_letters.put(body.decode(), parsed_event.code, parsed_event.reason)
    ports.telemetry.count("EventsFailed", code=parsed_event.code)
    first_bytes = body[:_SHOWN_BYTES].decode("utf-8", "replace")
    return {
        "outcome": "DEAD_LETTERED",
        "code": parsed_event.code,
        "reason": parsed_event.reason,
        "bodyStart": first_bytes,
    }


def _count_ignored(parsed_event: object, ports: wiring.Ports) -> Json:
    """Count an event that needs no action, and return its outcome."""
    kind = type(parsed_event).__name__
    ports.telemetry.count(_IGNORED_METRICS[kind])
    return {
        "outcome": kind.upper(),
        "code": getattr(parsed_event, "code", ""),
        "reason": getattr(parsed_event, "reason", ""),
    }


def _redeliver_soon(record: Mapping[str, Any]) -> None:
    """Ask the queue to deliver a failed message again in seconds, and later in minutes.

    Otherwise the queue waits six times the function's timeout, and EC2 takes a spot instance after two minutes.
    """
    receipt, attributes = record.get("receiptHandle"), record.get("attributes") or {}
    if not receipt:
        return
    tries = int(attributes.get("ApproximateReceiveCount") or 1)
    ports = wiring.ports()
    try:
        ports.inbox.delay_redelivery(receipt, min(_LAST_PAUSE, _FIRST_PAUSE * 3 ** (tries - 1)))
    except Exception as error:  # noqa: BLE001 - then the queue delivers it after its own timeout
        ports.telemetry.warning("EventDeliveredLate", error=type(error).__name__, detail=str(error))


def scheduled(handler: Handler) -> Handler:
    """Wrap a function that runs by the clock, or for requests of a scheduling cycle.

    A request holds no data: the next cycle finds the same work. So only a transient failure returns a batch to the
    queue. A cycle with a permanent failure must not block the queue's only message group.

    A run by the clock that fails for a known reason ends as `DEFERRED`: the next minute's run does the same work. Its
    heartbeat names the source that failed, and an alarm watches the age of the last success. A bug is raised.
    """

    @functools.wraps(handler)
    def wrapped(event: Json, context: Any) -> Json:
        records = event.get("Records", ())
        try:
            with _log_call("RunDone", context, {"requests": len(records)}) as line:
                answer = handler(event, context)
                line.update({name: value for name, value in answer.items() if isinstance(value, str | int | float)})
                return answer
        except EvenkeelError as error:
            if not records:
                wiring.ports().telemetry.count("ScheduledRunsDeferred")
                return {"outcome": "DEFERRED", "reason": f"{type(error).__name__}: {error}"}
            if not isinstance(error, TransientError):
                return {"batchItemFailures": []}
            return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in records]}
        except Exception:
            if not records:
                raise
            return {"batchItemFailures": []}

    return _with_self_test(wrapped)


def stream(handler: Callable[[StoredChange], Json]) -> Handler:
    """Wrap the function behind the streams of the tables. The handler gets one change at a time, in order.

    An error of AWS or Kubernetes, including a denied call, is raised: Lambda delivers the batch again from its start,
    for as long as the stream keeps it (a day). A change that cannot be read or is refused is logged and counted, and
    the next change follows. Otherwise it would block all later records of its shard.
    """

    @functools.wraps(handler)
    def wrapped(batch: Json, context: Any) -> Json:
        from evenkeel.adapters.dynamo_ledger import stream_change

        records = batch.get("Records", ())
        ports = wiring.ports()
        handled_count = 0
        with _log_call("ChangesDone", context, {"changes": len(records)}) as line:
            for record in records:
                try:
                    change = stream_change(record, ports.table_names)
                    if change is not None:
                        handled_count += handler(change).get("events", 0)
                except Exception as error:
                    if isinstance(error, EvenkeelError) and not isinstance(error, (Refused, Unreadable)):
                        raise
                    keys = (record.get("dynamodb") or {}).get("Keys")
                    ports.telemetry.exception("ChangeNotPublished", error, row=keys, runbook="events-unpublished")
                    ports.telemetry.count("ChangesNotPublished")
            line["events"] = handled_count
        return {}

    return _with_self_test(wrapped)


def newest_sent_at(event: Json) -> datetime | None:
    """Return when the newest message of a batch was sent; None if there is none, or if a time is unknown."""
    stamps = [(record.get("attributes") or {}).get("SentTimestamp", "") for record in event.get("Records", ())]
    if not stamps or not all(str(stamp).isdecimal() for stamp in stamps):
        return None
    return datetime.fromtimestamp(max(map(int, stamps)) / 1000, UTC)


def api(handler: Handler) -> Handler:
    """Wrap a function behind API Gateway. An exception becomes problem+json without a stack trace."""

    @functools.wraps(handler)
    def wrapped(event: Json, context: Any) -> Json:
        request = event.get("requestContext") or {}
        keys = {
            "method": event.get("httpMethod"),
            "route": event.get("resource"),
            "requestId": request.get("requestId"),
            "principal": (request.get("identity") or {}).get("userArn"),
        }
        try:
            with _log_call("RequestDone", context, keys) as line:
                answer = handler(event, context)
                line["status"] = answer.get("statusCode")
                return answer
        except Exception as error:  # noqa: BLE001 - logged by _log_call; the caller gets a problem
            from evenkeel.runtime.api import error_reply

            return error_reply(error, str(request.get("requestId") or ""))

    return _with_self_test(wrapped)


@contextmanager
def _report_failure(token: str | None) -> Iterator[None]:
    """Give errors the names that workflows know, and answer the task token, if any, with the failure."""
    try:
        yield
    except Exception as error:
        port_error = _as_port_error(error)
        if token:
            _fail_token(token, port_error)
        if port_error is error:
            raise
        raise port_error from error


def _fail_token(token: str, failure: Exception) -> None:
    try:
        wiring.ports().task_tokens.fail(token, type(failure).__name__, str(failure))
    except Exception as error:  # noqa: BLE001 - must not hide the failure, which is raised next
        wiring.ports().telemetry.warning("WorkflowNotNotified", error=type(error).__name__, detail=str(error))


def _as_port_error(error: Exception) -> Exception:
    if isinstance(error, (NoPolicyInForce, PageNotSent)):
        return error
    for kind in (TransientError, PermanentError):
        if isinstance(error, kind) and type(error) is not kind:
            return kind(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _log_call(message: str, context: Any, keys: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Bind the keys to every log line, and write one line at the end of the call, after success or failure."""
    started_at = time.perf_counter()
    telemetry = wiring.ports().telemetry
    bound = {name: value for name, value in keys.items() if value not in (None, "")}
    if context is not None:
        bound |= {"function": context.function_name, "functionRequestId": context.aws_request_id}
    telemetry.bind(bound)
    line: dict[str, Any] = {}

    def elapsed_milliseconds() -> int:
        return round((time.perf_counter() - started_at) * 1000)

    try:
        yield line
    except TransientError as error:
        telemetry.warning(
            "CallWillBeRetried", error=type(error).__name__, detail=str(error), milliseconds=elapsed_milliseconds()
        )
        raise
    except PermanentError as error:
        telemetry.error(
            "CallRefused",
            error=type(error).__name__,
            detail=str(error),
            milliseconds=elapsed_milliseconds(),
            runbook="function-errors",
        )
        raise
    except Exception as error:
        telemetry.exception("CallFailed", error, milliseconds=elapsed_milliseconds(), runbook="function-errors")
        raise
    else:
        telemetry.info(message, **line, milliseconds=elapsed_milliseconds())


def _select_keys(document: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: document[name] for name in names if name in document} if isinstance(document, Mapping) else {}


def _envelope_id_of(body: bytes) -> str:
    """Return the envelope's id, or the digest of the body if the id cannot name an object."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    envelope_id = document.get("id") if isinstance(document, dict) else None
    if isinstance(envelope_id, str) and ARCHIVE_NAME.fullmatch(envelope_id):
        return envelope_id
    return f"sha256-{hashlib.sha256(body).hexdigest()}"
