"""Items of DynamoDB are parsed as the SDK parses them, and faster if all their values are texts and numbers."""

import json
from io import BytesIO
from typing import Any

import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.parsers import JSONParser

from evenkeel.adapters import aws

PLAIN = {"pk": {"S": "JOB#1"}, "version": {"N": "3"}}
MIXED = {
    **PLAIN,
    "blob": {"B": "aGk="},
    "flag": {"BOOL": True},
    "list": {"L": [{"S": "a"}, {"M": {"b": {"B": "aGk="}}}]},
    "none": {"NULL": True},
    "blobs": {"BS": ["aGk="]},
}
ANSWERS: dict[str, list[dict[str, Any]]] = {
    "get_item": [{"Item": PLAIN}, {"Item": MIXED}, {}, {"Item": {}}],
    "query": [{"Items": [PLAIN, MIXED], "Count": 2, "LastEvaluatedKey": PLAIN}],
    "batch_get_item": [{"Responses": {"t": [PLAIN, MIXED]}, "UnprocessedKeys": {"t": {"Keys": [PLAIN]}}}],
}
REQUESTS: dict[str, dict[str, Any]] = {
    "get_item": {"TableName": "t", "Key": {"pk": {"S": "a"}}},
    "query": {"TableName": "t"},
    "batch_get_item": {"RequestItems": {"t": {"Keys": [{"pk": {"S": "a"}}]}}},
}


def call(session: Any, operation: str, answer: dict[str, Any]) -> Any:
    """Return the SDK's result for this answer of the service."""
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = session.create_client("dynamodb", "us-west-2", endpoint_url="http://127.0.0.1:9", **keys)
    body: Any = BytesIO(json.dumps(answer).encode())
    body.stream = lambda **_: [body.getvalue()]
    headers: Any = {}
    response = AWSResponse("http://127.0.0.1:9", 200, headers, body)
    client.meta.events.register("before-send.dynamodb", lambda **_: response)
    return getattr(client, operation)(**REQUESTS[operation])


@pytest.mark.parametrize(
    ("operation", "answer"), [(operation, answer) for operation, answers in ANSWERS.items() for answer in answers]
)
def test_items_are_parsed_like_the_sdk_parses_them(operation: str, answer: dict[str, Any]) -> None:
    assert call(aws.session(), operation, answer) == call(botocore.session.get_session(), operation, answer)


def test_items_of_texts_and_numbers_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parser: Any = JSONParser
    parse = parser._handle_structure

    def record(self: Any, shape: Any, value: Any) -> Any:
        parsed.append(shape.name)
        return parse(self, shape, value)

    monkeypatch.setattr(JSONParser, "_handle_structure", record)

    call(aws.session(), "query", {"Items": [PLAIN] * 3})

    assert "AttributeValue" not in parsed


@pytest.mark.parametrize("service", ["sqs", "stepfunctions", "sagemaker", "s3", "sts"])
def test_other_services_keep_the_parser_of_their_protocol(service: str) -> None:
    sessions: list[Any] = [aws.session(), botocore.session.get_session()]

    own_parser, sdk_parser = (session.create_client(service, "us-west-2")._response_parser for session in sessions)

    assert isinstance(own_parser, type(sdk_parser))
