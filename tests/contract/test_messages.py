"""Queues, alerts, the archive and the call of resolve_wait on the engine, with the worst texts."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from evenkeel.adapters.messages import (
    LambdaWaitAnswerRequests,
    S3RawEvents,
    SnsOnCall,
    SqsCycleRequests,
    SqsDeadLetters,
    SqsInbox,
    escape_invalid_characters,
)
from evenkeel.ports import NotAllowed, NotFound, Refused, Throttled, Unreachable
from evenkeel_local.identities import Credentials
from tests.waiting import until

HOSTILE = (
    'lone \ud800 surrogate, nul \x00, bidi \u202e, zero\u200bwidth, esc \x1b[31m, \ufffe, emoji \U0001f600, "quote"'
)


def receive_all_messages(sqs: Any, queue_url: str, count: int) -> list[Any]:
    messages: list[Any] = []

    def enough() -> bool:
        answer = sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
        messages.extend(answer.get("Messages", []))
        for message in answer.get("Messages", []):
            sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])
        return len(messages) >= count

    until(enough, f"{count} messages")
    return messages


def test_cycle_requests_are_delivered_in_one_group(engine_user: Credentials, unique: str) -> None:
    sqs = engine_user.client("sqs")
    url = sqs.create_queue(QueueName=f"{unique}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    passes = SqsCycleRequests(url, sqs)

    for _ in range(3):
        passes.request("job-1 ended")

    bodies = [json.loads(message["Body"]) for message in receive_all_messages(sqs, url, 3)]
    assert bodies == [{"reason": "job-1 ended"}] * 3


def test_sent_envelope_is_received_unchanged(engine_user: Credentials, unique: str) -> None:
    sqs = engine_user.client("sqs")
    url = sqs.create_queue(QueueName=unique)["QueueUrl"]
    document = {"id": "report-1", "detail": {"text": HOSTILE}}

    SqsInbox(url, sqs).put(document)

    (message,) = receive_all_messages(sqs, url, 1)
    assert json.loads(message["Body"]) == document


def test_dead_letter_contains_the_whole_event_and_its_error_code(engine_user: Credentials, unique: str) -> None:
    sqs = engine_user.client("sqs")
    url = sqs.create_queue(QueueName=unique)["QueueUrl"]
    event = json.dumps({"id": "e-1", "detail": {"text": HOSTILE}}, ensure_ascii=False)

    SqsDeadLetters(url, sqs).put(event, "EVENT_BAD_TEXT", HOSTILE)

    (message,) = receive_all_messages(sqs, url, 1)
    assert message["MessageAttributes"]["code"]["StringValue"] == "EVENT_BAD_TEXT"
    assert message["MessageAttributes"]["reason"]["StringValue"].startswith("lone \\ud800 surrogate, nul \\u0000")
    assert json.loads(message["Body"])["detail"]["text"] == HOSTILE


def test_dead_letter_of_200_kilobytes_is_sent_whole(engine_user: Credentials, unique: str) -> None:
    sqs = engine_user.client("sqs")
    url = sqs.create_queue(QueueName=unique)["QueueUrl"]

    SqsDeadLetters(url, sqs).put("x" * 200_000, "EVENT_TOO_LARGE", "")

    (message,) = receive_all_messages(sqs, url, 1)
    assert len(message["Body"]) == 200_000


def test_failed_event_is_redelivered_after_its_delay(engine_user: Credentials, unique: str) -> None:
    sqs = engine_user.client("sqs")
    url = sqs.create_queue(QueueName=unique, Attributes={"VisibilityTimeout": "360"})["QueueUrl"]
    inbox = SqsInbox(url, sqs)
    inbox.put({"id": "e-1"})
    (first,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]

    inbox.delay_redelivery(first["ReceiptHandle"], 0)

    (again,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert again["Body"] == first["Body"]
    with pytest.raises(Refused):
        inbox.delay_redelivery("none", 10)


def test_waiting_events_are_counted(engine_user: Credentials, unique: str) -> None:
    sqs = engine_user.client("sqs")
    inbox = SqsInbox(sqs.create_queue(QueueName=unique)["QueueUrl"], sqs)
    before = inbox.waiting()
    inbox.put({"id": "e-1"})
    inbox.put({"id": "e-2"})

    assert (before, inbox.waiting()) == (0, 2)


def test_escaping_invalid_characters_keeps_the_json_value() -> None:
    text = json.dumps(HOSTILE, ensure_ascii=False)

    assert json.loads(escape_invalid_characters(text)) == HOSTILE
    assert escape_invalid_characters("plain \t\r\n text") == "plain \t\r\n text"


def test_alert_reaches_the_topic_with_its_key(engine_user: Credentials, unique: str) -> None:
    sqs, sns = engine_user.client("sqs"), engine_user.client("sns")
    url = sqs.create_queue(QueueName=unique)["QueueUrl"]
    queue_arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    topic = sns.create_topic(Name=unique)["TopicArn"]
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue_arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": topic}},
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue_arn)

    SnsOnCall(topic, "main", sns).alert("A recovery\nneeds — you " + "x" * 200, HOSTILE, key="inc-1")

    (message,) = receive_all_messages(sqs, url, 1)
    page = json.loads(message["Body"])
    assert page["Subject"].startswith("main: A recovery needs ? you xxx")
    assert len(page["Subject"]) == 100
    assert page["Message"] == escape_invalid_characters(HOSTILE)
    assert page["MessageAttributes"]["key"]["Value"] == "inc-1"


def test_raw_event_is_archived_unchanged_under_its_id(engine_user: Credentials, unique: str) -> None:
    s3 = engine_user.client("s3")
    s3.create_bucket(Bucket=unique, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    events = S3RawEvents(unique, s3)

    for _ in range(2):
        events.keep("e-1", b'{"id": "e-1", "x": "\xff"}')

    (entry,) = s3.list_objects_v2(Bucket=unique)["Contents"]
    assert entry["Key"] == "events/e-1.json"
    assert s3.get_object(Bucket=unique, Key=entry["Key"])["Body"].read() == b'{"id": "e-1", "x": "\xff"}'


class StubMessagingClient:
    """A client that records calls, or fails them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.requests: list[dict[str, Any]] = []

    def _answer(self, **request: Any) -> dict[str, Any]:
        self.requests.append(request)
        if self.error:
            raise self.error
        return {}

    invoke = send_message = publish = _answer


def test_wait_is_answered_by_an_asynchronous_invocation() -> None:
    client = StubMessagingClient()

    LambdaWaitAnswerRequests("resolve-wait", client).request("inc-1", "node-back", 2, {"outcome": "NODE_BACK"})

    (request,) = client.requests
    assert (request["FunctionName"], request["InvocationType"]) == ("resolve-wait", "Event")
    assert json.loads(request["Payload"]) == {
        "subject": "inc-1",
        "name": "node-back",
        "generation": 2,
        "answer": {"outcome": "NODE_BACK"},
    }


def test_repeated_answer_requests_invoke_every_few_seconds() -> None:
    client = StubMessagingClient()
    moments = iter(range(100))
    answers = LambdaWaitAnswerRequests("resolve-wait", client, seconds=lambda: float(next(moments)))

    for _ in range(10):
        answers.request("inc-1", "node-back", 2, {"outcome": "NODE_BACK"})
    answers.request("inc-1", "node-back", 3, {"outcome": "NODE_BACK"})

    generations = [json.loads(request["Payload"])["generation"] for request in client.requests]
    assert generations == [2, 2, 2, 3]


def test_wait_answer_is_sent_again_at_once_after_error() -> None:
    client = StubMessagingClient(ClientError({"Error": {"Code": "TooManyRequestsException", "Message": ""}}, "Invoke"))
    answers = LambdaWaitAnswerRequests("resolve-wait", client)
    with pytest.raises(Throttled):
        answers.request("inc-1", "node-back", 2, {})
    client.error = None

    answers.request("inc-1", "node-back", 2, {})

    assert len(client.requests) == 2


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        ("AWS.SimpleQueueService.NonExistentQueue", NotFound),
        ("InvalidMessageContents", Refused),
        ("TooManyRequestsException", Throttled),
        ("AccessDenied", NotAllowed),
        ("ServiceException", Unreachable),
    ],
)
def test_each_aws_error_has_its_own_error(error: str, meaning: type[Exception]) -> None:
    client = StubMessagingClient(ClientError({"Error": {"Code": error, "Message": ""}}, "Send"))

    with pytest.raises(meaning):
        SqsCycleRequests("u", client).request("r")
    with pytest.raises(meaning):
        SqsDeadLetters("u", client).put("b", "c", "r")
    with pytest.raises(meaning):
        SnsOnCall("t", "main", client).alert("s", "m", key="k")
    with pytest.raises(meaning):
        LambdaWaitAnswerRequests("f", client).request("s", "n", 1, {})


def test_aws_service_that_does_not_answer_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        SqsCycleRequests("u", StubMessagingClient(EndpointConnectionError(endpoint_url="x"))).request("r")


class RecordingClient:
    """Records the requests of a client."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def publish(self, **request: Any) -> None:
        self.sent.append(request)

    def send_message(self, **request: Any) -> None:
        self.sent.append(request)


def bytes_of(request: dict[str, Any], body: str) -> int:
    """Return the size that SNS and SQS count: the message, and names, types and values of its attributes."""
    attributes = request["MessageAttributes"]
    texts = [(name, attribute["DataType"], attribute["StringValue"]) for name, attribute in attributes.items()]
    return len(request[body].encode()) + sum(len(text.encode()) for part in texts for text in part)


@pytest.mark.parametrize("character", ["x", "\u20ac", "\U0001f600", "\x00"])
def test_alert_of_any_length_fits_the_topic(character: str) -> None:
    client = RecordingClient()

    SnsOnCall("arn", "main", client).alert("subject", character * 300_000, key="\u20ac" * 200)

    assert 190_000 < bytes_of(client.sent[0], "Message") <= 262_144


@pytest.mark.parametrize("character", ["x", "\u20ac", "\U0001f600", "\x00"])
def test_dead_letter_of_any_length_fits_queue(character: str) -> None:
    client = RecordingClient()

    SqsDeadLetters("url", client).put(character * 300_000, "EVENT_TOO_LARGE", "\U0001f600" * 1_000)

    assert 250_000 < bytes_of(client.sent[0], "MessageBody") <= 262_144
