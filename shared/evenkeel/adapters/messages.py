"""Messages over AWS: queues, the topic for alerts, the archive of raw events, and calls of `resolve_wait`."""

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evenkeel.adapters import aws
from evenkeel.domain.plurals import count_of
from evenkeel.ports import BusEvent, EvenkeelError, NotFound, Refused, Throttled, Unreachable

_ERRORS_BY_CODE: Mapping[str, type[EvenkeelError]] = {
    "AWS.SimpleQueueService.NonExistentQueue": NotFound,
    "QueueDoesNotExist": NotFound,
    "AWS.SimpleQueueService.MessageNotInflight": Refused,
    "MessageNotInflight": Refused,
    "ReceiptHandleIsInvalid": Refused,
    "InvalidMessageContents": Refused,
    "InvalidParameter": Refused,
    "InvalidParameterException": Refused,
    "ParameterValueInvalid": Refused,
    "InvalidAddress": Refused,
    "InvalidAttributeName": Refused,
    "UnsupportedOperation": Refused,
    "ResourceConflictException": Throttled,
    "ServiceQuotaExceededException": Throttled,
    "SnapStartException": Unreachable,
    "SnapStartNotReadyException": Throttled,
    "SnapStartRegenerationFailureException": Unreachable,
    "SnapStartTimeoutException": Unreachable,
    "RequestTooLargeException": Refused,
    "SerializedRequestEntityTooLargeException": Refused,
    "InvalidRequestContentException": Refused,
    "RecursiveInvocationException": Refused,
}
_MESSAGE_GROUP = "cycles"
"""Message group of all cycle requests, so that the queue delivers them one after the other."""
_DEDUPLICATION_SECONDS = 4.0
"""A second request for the same wait is sent only after this time."""
_LONGEST_REASON = 200
_LONGEST_SUBJECT = 100
_MAX_ALERT_BYTES = 200_000
"""Maximum bytes of an alert. SNS accepts 256 KiB with attributes."""
_MAX_MESSAGE_BYTES = 260_000
"""Maximum bytes of a message. SQS accepts 256 KiB with attributes."""

_MAX_BUS_ENTRIES = 10
"""Maximum events of one PutEvents request."""
_ENTRY_ERRORS: Mapping[str, type[EvenkeelError]] = {
    "ThrottlingException": Throttled,
    "MalformedDetail": Refused,
    "InvalidArgument": Refused,
    "NotAuthorizedForSourceException": Refused,
}

_INVALID_CHARACTERS = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""SQS accepts only the characters of XML 1.0, and rejects a message with any other character."""


def escape_invalid_characters(text: str) -> str:
    r"""Return a text that SQS and SNS accept. Any other character becomes its `\u` escape, which JSON reads back."""
    return _INVALID_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _truncate_bytes(text: str, max_bytes: int) -> str:
    """Return the longest prefix of a text with at most `max_bytes` bytes."""
    return text if len(text) * 4 <= max_bytes else text.encode()[:max_bytes].decode(errors="ignore")


class SqsCycleRequests:
    """Requests scheduling cycles through a FIFO queue with one message group, so cycles run one after the other."""

    def __init__(self, queue_url: str, client: Any = None) -> None:
        self._queue_url = queue_url
        self._client = client or aws.client("sqs")

    def request(self, reason: str) -> None:
        # Each request has a new id. SQS drops a message whose id it saw in the last five minutes, but the state may
        # have changed since.
        with aws.translate_errors("request a scheduling cycle", _ERRORS_BY_CODE):
            self._client.send_message(
                QueueUrl=self._queue_url,
                MessageBody=json.dumps({"reason": reason}),
                MessageGroupId=_MESSAGE_GROUP,
                MessageDeduplicationId=uuid.uuid4().hex,
            )


class SqsInbox:
    """The event queue, which the EventBridge rules fill."""

    def __init__(self, queue_url: str, client: Any = None) -> None:
        self._queue_url = queue_url
        self._client = client or aws.client("sqs")

    def put(self, document: Mapping[str, Any]) -> None:
        body = json.dumps(document, ensure_ascii=False)
        with aws.translate_errors(f"queue event {document.get('id')}", _ERRORS_BY_CODE):
            self._client.send_message(QueueUrl=self._queue_url, MessageBody=escape_invalid_characters(body))

    def waiting(self) -> int:
        name = "ApproximateNumberOfMessages"
        with aws.translate_errors("count the events that wait", _ERRORS_BY_CODE):
            answer = self._client.get_queue_attributes(QueueUrl=self._queue_url, AttributeNames=[name])
        return int(answer["Attributes"][name])

    def delay_redelivery(self, receipt: str, seconds: int) -> None:
        with aws.translate_errors("delay the redelivery of an event", _ERRORS_BY_CODE):
            self._client.change_message_visibility(
                QueueUrl=self._queue_url, ReceiptHandle=receipt, VisibilityTimeout=seconds
            )


class SqsDeadLetters:
    """Stores malformed events, so that an operator can send them again after a fix."""

    def __init__(self, queue_url: str, client: Any = None) -> None:
        self._queue_url = queue_url
        self._client = client or aws.client("sqs")

    def put(self, body: str, code: str, reason: str) -> None:
        attributes = {"code": code, "reason": escape_invalid_characters(reason)[:_LONGEST_REASON] or code}
        # The event may be cut here. The archive has the complete event.
        content = _truncate_bytes(escape_invalid_characters(body), _MAX_MESSAGE_BYTES) or "{}"
        with aws.translate_errors(f"dead-letter an event ({code})", _ERRORS_BY_CODE):
            self._client.send_message(
                QueueUrl=self._queue_url,
                MessageBody=content,
                MessageAttributes={
                    name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
                },
            )


class SnsOnCall:
    """Alerts the people on call through an SNS topic."""

    def __init__(self, topic_arn: str, fleet: str, client: Any = None) -> None:
        self._topic_arn = topic_arn
        self._fleet = fleet
        self._client = client or aws.client("sns")

    def alert(self, subject: str, message: str, *, key: str) -> None:
        """Idempotent: no, because a repeat is a second message; receivers can merge messages with the same `key`."""
        with aws.translate_errors(f"alert about {key}", _ERRORS_BY_CODE):
            self._client.publish(
                TopicArn=self._topic_arn,
                Subject=_sns_subject(f"{self._fleet}: {subject}"),
                Message=_truncate_bytes(escape_invalid_characters(message), _MAX_ALERT_BYTES),
                MessageAttributes={
                    "key": {"DataType": "String", "StringValue": escape_invalid_characters(key) or "none"}
                },
            )


class SnsChat:
    """Sends messages to an SNS topic to which Amazon Q Developer or another chat tool subscribes."""

    def __init__(self, topic_arn: str, client: Any = None) -> None:
        self._topic_arn = topic_arn
        self._client = client or aws.client("sns")

    def send(self, message: Mapping[str, Any]) -> None:
        with aws.translate_errors(f"send message {message.get('id')}", _ERRORS_BY_CODE):
            self._client.publish(TopicArn=self._topic_arn, Message=json.dumps(message))


class EventBridgeBus:
    """Publishes on an event bus, in requests of at most ten events."""

    def __init__(self, bus_name: str, client: Any = None) -> None:
        self._bus_name = bus_name
        self._client = client or aws.client("events")

    def publish(self, events: Sequence[BusEvent]) -> None:
        for start in range(0, len(events), _MAX_BUS_ENTRIES):
            self._put(events[start : start + _MAX_BUS_ENTRIES])

    def _put(self, events: Sequence[BusEvent]) -> None:
        entries = [
            {
                "EventBusName": self._bus_name,
                "Source": event.source,
                "DetailType": event.detail_type,
                "Detail": json.dumps(event.detail),
            }
            for event in events
        ]
        attempt = f"publish {count_of(len(events), 'event')}"
        with aws.translate_errors(attempt, _ERRORS_BY_CODE):
            answer = self._client.put_events(Entries=entries)
        if answer.get("FailedEntryCount"):
            # The request itself succeeded. Each refused event has its own code.
            codes = sorted({entry["ErrorCode"] for entry in answer["Entries"] if entry.get("ErrorCode")})
            kind = next((_ENTRY_ERRORS[code] for code in codes if code in _ENTRY_ERRORS), Unreachable)
            raise kind(f"{attempt}: {answer['FailedEntryCount']} refused: {', '.join(codes)}")


class S3RawEvents:
    """The archive of raw events, with one object per event: `events/<envelope id>.json`."""

    def __init__(self, bucket: str, client: Any = None) -> None:
        self._bucket = bucket
        self._client = client or aws.client("s3")

    def keep(self, envelope_id: str, body: bytes) -> None:
        with aws.translate_errors(f"archive event {envelope_id}"):
            self._client.put_object(
                Bucket=self._bucket, Key=f"events/{envelope_id}.json", Body=body, ContentType="application/json"
            )


class LambdaWaitAnswerRequests:
    """Invokes `resolve_wait` asynchronously.

    A function that evaluates waits repeats its request until the answer is stored. So requests for one wait are limited
    to one every few seconds. Otherwise a slow start of `resolve_wait` would cause many more starts of it.
    """

    def __init__(self, function: str, client: Any = None, *, seconds: Callable[[], float] = time.monotonic) -> None:
        self._function = function
        self._client = client or aws.client("lambda")
        self._seconds = seconds
        self._requested: dict[tuple[str, str, int], float] = {}

    def request(self, subject: str, name: str, generation: int, answer: Mapping[str, Any]) -> None:
        now = self._seconds()
        self._requested = {wait: at for wait, at in self._requested.items() if now - at < _DEDUPLICATION_SECONDS}
        if (subject, name, generation) in self._requested:
            return
        payload = {"subject": subject, "name": name, "generation": generation, "answer": dict(answer)}
        with aws.translate_errors(f"request the answer to wait {name} of {subject}", _ERRORS_BY_CODE):
            self._client.invoke(
                FunctionName=self._function, InvocationType="Event", Payload=json.dumps(payload).encode()
            )
        self._requested[subject, name, generation] = now


def _sns_subject(text: str) -> str:
    """Return a subject that SNS accepts: at most 100 printable ASCII characters that do not begin with a space."""
    ascii_text = "".join(char if 32 <= ord(char) < 127 else "?" for char in " ".join(text.split())).strip()
    return ascii_text[:_LONGEST_SUBJECT] or "Evenkeel"
