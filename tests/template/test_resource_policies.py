"""Every queue and topic accepts messages only from its senders in the template."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.template import statements
from tests.template.documents import Json, as_list, resources

SEND = {"AWS::SQS::Queue": "sqs:SendMessage", "AWS::SNS::Topic": "sns:Publish"}
POLICIES = {
    "AWS::SQS::Queue": ("AWS::SQS::QueuePolicy", "Queues"),
    "AWS::SNS::Topic": ("AWS::SNS::TopicPolicy", "Topics"),
}
RECEIVERS = sorted((name, kind) for kind in SEND for name in resources(kind))
SERVICES = {
    "EventsQueue": "events.amazonaws.com",
    "UndeliveredEventsQueue": "events.amazonaws.com",
    "UndeliveredPagesQueue": "sns.amazonaws.com",
    "PageTopic": "cloudwatch.amazonaws.com",
}
"""AWS services that may send, apart from the roles of the stack."""
FOR_OPERATORS = {"EventsQueue", "PageTopic"}
"""Queues to which operators send messages, as in the runbooks."""


def document_of(name: str, kind: str) -> list[Json]:
    """Return the statements of the one policy of a queue or topic."""
    policy_kind, field = POLICIES[kind]
    documents = [resource for resource in resources(policy_kind).values() if resource[field] == [{"Ref": name}]]
    assert len(documents) == 1, f"{name} has {len(documents)} policies"
    document: list[Json] = documents[0]["PolicyDocument"]["Statement"]
    return document


def denials(name: str, kind: str) -> Iterator[Json]:
    for statement in document_of(name, kind):
        written = statement.get("Fn::If", [None, statement])[1]
        if written["Effect"] == "Deny":
            yield statement


def names_itself(statement: Json, name: str) -> bool:
    return statement["Resource"] in ({"Fn::GetAtt": [name, "Arn"]}, {"Ref": name})


def senders(name: str, kind: str) -> set[str]:
    """Return the roles that the template lets send."""
    return {
        statement.owner
        for statement in statements.of_roles()
        if SEND[kind] in statement.actions
        and any(resource in ({"Fn::GetAtt": [name, "Arn"]}, {"Ref": name}) for resource in statement.resources)
    }


def arns(condition: Json, operator: str) -> list[Any]:
    return as_list(condition.get(operator, {}).get("aws:PrincipalArn", []))


@pytest.mark.parametrize(("name", "kind"), RECEIVERS)
def test_only_declared_senders_may_send_to_a_queue_or_topic(name: str, kind: str) -> None:
    (statement,) = [denial for denial in denials(name, kind) if denial.get("Sid") == "DenyOtherSenders"]

    assert (statement["Principal"], statement["Action"], names_itself(statement, name)) == ("*", SEND[kind], True)
    condition = dict(statement["Condition"])
    assert condition.pop("Bool") == {"aws:PrincipalIsAWSService": "false"}
    assert {arn["Fn::GetAtt"][0] for arn in arns(condition, "ArnNotEquals")} == senders(name, kind)
    condition.pop("ArnNotEquals", None)
    operators = {"aws:PrincipalArn": {"Fn::Split": [",", {"Ref": "OperatorPrincipals"}]}}
    expected = {"ArnNotLike": {"Fn::If": ["HasOperators", operators, {"Ref": "AWS::NoValue"}]}}
    assert condition == (expected if name in FOR_OPERATORS else {})


@pytest.mark.parametrize(("name", "kind"), RECEIVERS)
def test_sending_without_tls_is_denied(name: str, kind: str) -> None:
    (conditional,) = [denial["Fn::If"] for denial in denials(name, kind) if "Fn::If" in denial]

    condition, statement, otherwise = conditional
    assert (condition, otherwise) == ("UsesTls", {"Ref": "AWS::NoValue"})
    assert (statement["Principal"], names_itself(statement, name)) == ("*", True)
    assert statement["Action"] in ("sqs:*", SEND[kind])
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


@pytest.mark.parametrize(("name", "kind"), RECEIVERS)
def test_aws_service_may_send_only_from_a_named_source(name: str, kind: str) -> None:
    allowed = [document for document in document_of(name, kind) if document.get("Effect") == "Allow"]

    assert [document["Principal"] for document in allowed] == (
        [{"Service": SERVICES[name]}] if name in SERVICES else []
    )
    for statement in allowed:
        assert names_itself(statement, name)
        text = json.dumps(statement["Condition"])
        assert "aws:SourceArn" in text or "aws:SourceAccount" in text


def test_events_come_from_the_rules_of_this_stack() -> None:
    rules = {json.dumps({"Fn::GetAtt": [rule, "Arn"]}) for rule in resources("AWS::Events::Rule")}
    for name in ("EventsQueue", "UndeliveredEventsQueue"):
        allow = document_of(name, "AWS::SQS::Queue")[0]

        assert {json.dumps(source) for source in allow["Condition"]["ArnEquals"]["aws:SourceArn"]} == rules
