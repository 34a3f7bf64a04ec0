"""The outermost wrappers of every function: what comes in, what a failure is called, and one log line each.

`task`       a state of a workflow: JSON in, JSON out
`event`      an SQS batch of EventBridge envelopes
`scheduled`  a clock, or the queue that asks for scheduling passes
`api`        a request through API Gateway

The only place that catches `Exception`.
"""

import functools
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from evenkeel.ports import EvenkeelError, PermanentError, TransientError
from evenkeel.runtime import wiring

Json: TypeAlias = dict[str, Any]

ARCHIVE_NAME = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_SHOWN_BYTES = 200
_FIRST_PAUSE, _LAST_PAUSE = 10, 360
"""Seconds until an event that could not be handled is delivered again: three times as long each time, up to the last.
With the queue's eight deliveries an outage of twenty minutes loses none."""
"""How much of an unusable event a log line shows. The whole of it is in the archive and in the dead-letter queue."""
_BOUND_KEYS = ("incidentId", "jobId", "attempt", "run", "nodeLife", "cluster", "executionArn", "decisionId", "kind")
_RESULT_KEYS = ("outcome", "reason", "decisionId", "rung", "waitSeconds")


class LambdaContext(Protocol):
    """What is used of the Lambda context."""

    @property
    def function_name(self) -> str: ...

    @property
    def aws_request_id(self) -> str: ...


Handler: TypeAlias = Callable[[Json, Any], Json]

_SELF_TEST = "selfTest"


def _with_self_test(handler: Handler) -> Handler:
    """Answer an event that holds nothing but a self-test; every other one goes to the handler.

    No workflow, queue, clock or gateway sends such an event: `evenkeel doctor` invokes the function with it.
    """

    @functools.wraps(handler)
    def wrapped(event: Json, context: Any) -> Json:
        if event.keys() == {_SELF_TEST}:
            from evenkeel.runtime import self_test

            return self_test.run(event[_SELF_TEST], wiring.world())
        return handler(event, context)

    return wrapped


def task(handler: Handler) -> Handler:
    """Wrap the function behind one state of a workflow.

    Step Functions compares error names exactly and knows no inheritance, so an error leaves as `TransientError` or
    `PermanentError`, the leaf's name first in the message. A bug leaves under its own name.

    With a task token in the event the failure is also sent to Step Functions: an error raised under
    `.waitForTaskToken` does not end the task on every engine, and a wait that nobody will answer must not stay.
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
    """What a parser returns for an event of a known kind that it cannot read."""

    @property
    def code(self) -> str: ...

    @property
    def reason(self) -> str: ...


def event(
    *, parse: Callable[[bytes], Any], malformed: type[MalformedEvent], passed_over: tuple[type[Any], ...]
) -> Callable[[Callable[[Any, Any], Json]], Handler]:
    """Wrap the function behind a queue of events. The handler gets one parsed fact at a time.

    Each record is archived as it came before anybody reads it. A malformed one goes to the dead-letter queue with its
    code, and counts as done: a poison event costs one invocation. Only what may succeed later, or failed for a fault
    of ours, is given back to the queue, item by item.

    Args:
        parse: Reads the envelope; pure.
        malformed: The type it returns for an unusable event of a known kind.
        passed_over: The types it returns for events that call for nothing; counted as `Events<type>`.
    """

    def decorate(handler: Callable[[Any, Any], Json]) -> Handler:
        def one(body: bytes, envelope_id: str, context: Any) -> Json:
            world = wiring.world()
            world.raw_events.keep(envelope_id, body)
            parsed = parse(body)
            if isinstance(parsed, malformed):
                world.dead_letters.put(body.decode(), parsed.code, parsed.reason)
                world.telemetry.count("EventsFailed", code=parsed.code)
                beginning = body[:_SHOWN_BYTES].decode("utf-8", "replace")
                return {
                    "outcome": "DEAD_LETTERED",
                    "code": parsed.code,
                    "reason": parsed.reason,
                    "beginning": beginning,
                }
            if isinstance(parsed, passed_over):
                kind = type(parsed).__name__
                world.telemetry.count(f"Events{kind}")
                return {
                    "outcome": kind.upper(),
                    "code": getattr(parsed, "code", ""),
                    "reason": getattr(parsed, "reason", ""),
                }
            world.telemetry.count("EventsReceived")
            return handler(parsed, context)

        @functools.wraps(handler)
        def wrapped(batch: Json, context: Any) -> Json:
            failures = []
            # Powertools' BatchProcessor gives the same promises, but it loads 150 more modules: 15% of the import time
            # of a function on the way to a cordon. Redelivery would still need a subclass.
            for record in batch.get("Records", ()):
                # Bytes that UTF-8 cannot carry stay readable as their escapes.
                body = str(record["body"]).encode("utf-8", "backslashreplace")
                envelope_id = _envelope_id_of(body)
                keys = {"envelopeId": envelope_id, "messageId": record["messageId"], "sizeBytes": len(body)}
                try:
                    with _log_call("EventDone", context, keys) as line:
                        answer = one(body, envelope_id, context)
                        line.update(_select_keys(answer, (*_BOUND_KEYS, *_RESULT_KEYS, "code", "beginning")))
                except Exception:  # noqa: BLE001 - logged by _log_call; the others of the batch go on
                    failures.append({"itemIdentifier": record["messageId"]})
                    _redeliver_soon(record)
            return {"batchItemFailures": failures}

        return wrapped

    return decorate


def _redeliver_soon(record: Mapping[str, Any]) -> None:
    """Have a record that could not be handled delivered again in seconds, then in minutes.

    The queue itself holds it back for six times the function's timeout, and a spot machine is gone after two minutes.
    """
    receipt, attributes = record.get("receiptHandle"), record.get("attributes") or {}
    if not receipt:
        return
    tries = int(attributes.get("ApproximateReceiveCount") or 1)
    world = wiring.world()
    try:
        world.inbox.delay_redelivery(receipt, min(_LAST_PAUSE, _FIRST_PAUSE * 3 ** (tries - 1)))
    except Exception as error:  # noqa: BLE001 - then it comes when the queue lets it
        world.telemetry.warning("EventDeliveredLate", error=type(error).__name__, detail=str(error))


def scheduled(handler: Handler) -> Handler:
    """Wrap a function that a clock runs, or the queue of pass requests.

    A pass request carries nothing that the next pass does not find by itself. So of a batch only a transient failure
    is given back: a pass that fails for good must not block the queue's one group.

    A clock's run that fails for a known reason ends as `PUT_OFF`: the next minute's run does the same work. Its
    heartbeat names the source that failed, and the age of the last success is the alarm. A bug is raised.
    """

    @functools.wraps(handler)
    def wrapped(event: Json, context: Any) -> Json:
        records = event.get("Records", ())
        try:
            with _log_call("RoundDone", context, {"requests": len(records)}) as line:
                answer = handler(event, context)
                line.update({name: value for name, value in answer.items() if isinstance(value, str | int | float)})
                return answer
        except EvenkeelError as error:
            if not records:
                wiring.world().telemetry.count("ScheduledRunsDeferred")
                return {"outcome": "PUT_OFF", "reason": f"{type(error).__name__}: {error}"}
            if not isinstance(error, TransientError):
                return {"batchItemFailures": []}
            return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in records]}
        except Exception:
            if not records:
                raise
            return {"batchItemFailures": []}

    return _with_self_test(wrapped)


def api(handler: Handler) -> Handler:
    """Wrap a function behind API Gateway: whatever it lets through becomes problem+json without a stack trace."""

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
            from evenkeel.runtime.api import failure

            return failure(error, str(request.get("requestId") or ""))

    return _with_self_test(wrapped)


@contextmanager
def _report_failure(token: str | None) -> Iterator[None]:
    """Give errors the two names that workflows know, and answer the task token, if there is one, with the failure."""
    try:
        yield
    except Exception as error:
        named = _as_port_error(error)
        if token:
            _fail_token(token, named)
        if named is error:
            raise
        raise named from error


def _fail_token(token: str, failure: Exception) -> None:
    try:
        wiring.world().tokens.fail(token, type(failure).__name__, str(failure))
    except Exception as error:  # noqa: BLE001 - the failure itself is raised next, and must not be hidden by this one
        wiring.world().telemetry.warning("WorkflowNotNotified", error=type(error).__name__, detail=str(error))


def _as_port_error(error: Exception) -> Exception:
    for kind in (TransientError, PermanentError):
        if isinstance(error, kind) and type(error) is not kind:
            return kind(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _log_call(message: str, context: Any, keys: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Bind the keys to every log line, and write one line when the work is over, whatever its end."""
    began = time.perf_counter()
    telemetry = wiring.world().telemetry
    bound = {name: value for name, value in keys.items() if value not in (None, "")}
    if context is not None:
        bound |= {"function": context.function_name, "functionRequestId": context.aws_request_id}
    telemetry.bind(bound)
    line: dict[str, Any] = {}

    def spent() -> int:
        return round((time.perf_counter() - began) * 1000)

    try:
        yield line
    except TransientError as error:
        telemetry.warning("RunWillBeRetried", error=type(error).__name__, detail=str(error), milliseconds=spent())
        raise
    except PermanentError as error:
        telemetry.error(
            "Refused", error=type(error).__name__, detail=str(error), milliseconds=spent(), runbook="function-errors"
        )
        raise
    except Exception as error:
        telemetry.exception("Failed", error, milliseconds=spent(), runbook="function-errors")
        raise
    else:
        telemetry.info(message, **line, milliseconds=spent())


def _select_keys(document: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: document[name] for name in names if name in document} if isinstance(document, Mapping) else {}


def _envelope_id_of(body: bytes) -> str:
    """Return the envelope's own id, or the digest of a body that has none fit for a name."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    named = document.get("id") if isinstance(document, dict) else None
    if isinstance(named, str) and ARCHIVE_NAME.fullmatch(named):
        return named
    return f"sha256-{hashlib.sha256(body).hexdigest()}"
