"""Queues, the topic that pages, the archive of raw events, and the call that has a wait answered."""

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from evenkeel.adapters import aws
from evenkeel.ports import EvenkeelError, NotFound, Refused

_ERRORS_BY_CODE: Mapping[str, type[EvenkeelError]] = {
    "AWS.SimpleQueueService.NonExistentQueue": NotFound,
    "QueueDoesNotExist": NotFound,
    "AWS.SimpleQueueService.MessageNotInflight": Refused,
    "MessageNotInflight": Refused,
    "ReceiptHandleIsInvalid": Refused,
    "InvalidMessageContents": Refused,
    "InvalidParameter": Refused,
    "InvalidParameterException": Refused,
    "RequestTooLargeException": Refused,
}
_GROUP_OF_PASSES = "passes"
_DEDUPLICATION_SECONDS = 4.0
"""How long after a request for the same wait another one is worth sending."""
_LONGEST_REASON = 200
_LONGEST_SUBJECT = 100
_LARGEST_PAGE = 200_000
"""Bytes: SNS takes 256 KiB, attributes included."""
_MAX_MESSAGE_BYTES = 260_000
"""Bytes: SQS takes 256 KiB, attributes included."""

_INVALID_CHARACTERS = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""SQS takes the characters of XML 1.0 and refuses the message for any other."""


def escape_invalid_characters(text: str) -> str:
    r"""Return text that SQS and SNS take; another character becomes its escape, which in JSON means the same."""
    return _INVALID_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _truncate_bytes(text: str, most: int) -> str:
    """Return the beginning of a text that takes at most so many bytes."""
    return text if len(text) * 4 <= most else text.encode()[:most].decode(errors="ignore")


class SqsCycleRequests:
    """Asks for scheduling passes through a FIFO queue of one group: passes run one after the other."""

    def __init__(self, queue_url: str, client: Any = None) -> None:
        self._queue_url = queue_url
        self._client = client or aws.client("sqs")

    def request(self, reason: str) -> None:
        # An own id each time: SQS would drop a request like one of the last five minutes, though the world has changed.
        with aws.translate_errors("request a scheduling cycle", _ERRORS_BY_CODE):
            self._client.send_message(
                QueueUrl=self._queue_url,
                MessageBody=json.dumps({"reason": reason}),
                MessageGroupId=_GROUP_OF_PASSES,
                MessageDeduplicationId=uuid.uuid4().hex,
            )


class SqsInbox:
    """The queue of events, as the rules of the bus fill it."""

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
        with aws.translate_errors("have an event delivered again", _ERRORS_BY_CODE):
            self._client.change_message_visibility(
                QueueUrl=self._queue_url, ReceiptHandle=receipt, VisibilityTimeout=seconds
            )


class SqsDeadLetters:
    """Keeps malformed events whole, so that they can be replayed after a fix."""

    def __init__(self, queue_url: str, client: Any = None) -> None:
        self._queue_url = queue_url
        self._client = client or aws.client("sqs")

    def put(self, body: str, code: str, reason: str) -> None:
        attributes = {"code": code, "reason": escape_invalid_characters(reason)[:_LONGEST_REASON] or code}
        # The archive has the event whole.
        letter = _truncate_bytes(escape_invalid_characters(body), _MAX_MESSAGE_BYTES) or "{}"
        with aws.translate_errors(f"dead-letter an event ({code})", _ERRORS_BY_CODE):
            self._client.send_message(
                QueueUrl=self._queue_url,
                MessageBody=letter,
                MessageAttributes={
                    name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
                },
            )


class SnsPager:
    """Tells people through the topic that pages."""

    def __init__(self, topic_arn: str, client: Any = None) -> None:
        self._topic_arn = topic_arn
        self._client = client or aws.client("sns")

    def page(self, subject: str, message: str, *, key: str) -> None:
        """Idempotent: no, a repeat is a second message; both carry `key`, by which receivers fold them."""
        with aws.translate_errors(f"page about {key}", _ERRORS_BY_CODE):
            self._client.publish(
                TopicArn=self._topic_arn,
                Subject=_sns_subject(subject),
                Message=_truncate_bytes(escape_invalid_characters(message), _LARGEST_PAGE),
                MessageAttributes={
                    "key": {"DataType": "String", "StringValue": escape_invalid_characters(key) or "none"}
                },
            )


class S3RawEvents:
    """The archive: one object an envelope, `events/<envelope id>.json`."""

    def __init__(self, bucket: str, client: Any = None) -> None:
        self._bucket = bucket
        self._client = client or aws.client("s3")

    def keep(self, envelope_id: str, body: bytes) -> None:
        with aws.translate_errors(f"archive event {envelope_id}"):
            self._client.put_object(
                Bucket=self._bucket, Key=f"events/{envelope_id}.json", Body=body, ContentType="application/json"
            )


class LambdaWaitAnswers:
    """Has `resolve_wait` run, without waiting for it.

    Whoever evaluates waits asks again at every look until the answer is in. One request every few seconds is enough
    for that; without a pace, a slow start of `resolve_wait` is answered with ever more starts of it.
    """

    def __init__(self, function: str, client: Any = None, *, seconds: Callable[[], float] = time.monotonic) -> None:
        self._function = function
        self._client = client or aws.client("lambda")
        self._seconds = seconds
        self._asked: dict[tuple[str, str, int], float] = {}

    def request(self, subject: str, name: str, generation: int, answer: Mapping[str, Any]) -> None:
        now = self._seconds()
        self._asked = {wait: at for wait, at in self._asked.items() if now - at < _DEDUPLICATION_SECONDS}
        if (subject, name, generation) in self._asked:
            return
        payload = {"subject": subject, "name": name, "generation": generation, "answer": dict(answer)}
        with aws.translate_errors(f"have the wait {name} of {subject} answered", _ERRORS_BY_CODE):
            self._client.invoke(
                FunctionName=self._function, InvocationType="Event", Payload=json.dumps(payload).encode()
            )
        self._asked[subject, name, generation] = now


def _sns_subject(text: str) -> str:
    """SNS takes up to 100 printable ASCII characters that begin with a letter, digit or punctuation mark."""
    plain = "".join(char if 32 <= ord(char) < 127 else "?" for char in " ".join(text.split())).strip()
    return plain[:_LONGEST_SUBJECT] or "Evenkeel"
