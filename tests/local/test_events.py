"""Evenkeel's own events on the running data centre: from a stored change to a rule, a chat topic and the API."""

import json
from typing import Any

import pytest

from evenkeel_local.data_centre import DataCentre, subscribe_queue
from evenkeel_local.deployment import STACK_NAME
from tests.waiting import until

Json = dict[str, Any]
SECONDS = 60.0


class Receiver:
    """Two queues: one gets every event of the bus, the other every message of the chat topic."""

    def __init__(self, centre: DataCentre) -> None:
        self._sqs = centre.deployer.client("sqs")
        self._urls = {
            name: self._sqs.create_queue(QueueName=f"received-{name}")["QueueUrl"] for name in ("bus", "chat")
        }
        self.got: dict[str, list[Json]] = {"bus": [], "chat": []}
        events, bus = centre.deployer.client("events"), centre.outputs["EventBusName"]
        events.put_rule(Name="all", EventBusName=bus, EventPattern='{"source": ["evenkeel"]}')
        events.put_targets(Rule="all", EventBusName=bus, Targets=[{"Id": "queue", "Arn": self._arn("bus")}])
        topic = centre.outputs["ChatTopicArn"]
        subscribe_queue(centre.deployer, self._urls["chat"], self._arn("chat"), topic)

    def _arn(self, name: str) -> str:
        answer = self._sqs.get_queue_attributes(QueueUrl=self._urls[name], AttributeNames=["QueueArn"])
        return str(answer["Attributes"]["QueueArn"])

    def read(self, name: str) -> list[Json]:
        """Return everything that a queue has received so far."""
        while True:
            messages = self._sqs.receive_message(QueueUrl=self._urls[name], MaxNumberOfMessages=10).get("Messages", [])
            for message in messages:
                body = json.loads(message["Body"])
                self.got[name].append(json.loads(body["Message"]) if name == "chat" else body)
                self._sqs.delete_message(QueueUrl=self._urls[name], ReceiptHandle=message["ReceiptHandle"])
            if not messages:
                return self.got[name]

    def about(self, name: str, words: str) -> list[Json]:
        """Return the messages that contain some words."""
        return [message for message in self.read(name) if words in json.dumps(message)]


@pytest.fixture(scope="module")
def receiver(data_centre: DataCentre) -> Receiver:
    return Receiver(data_centre)


def hold_automation(centre: DataCentre, reason: str) -> None:
    client = centre.client()
    automation = f"/clusters/{client.fleet}/automation"
    client.post(f"{automation}/hold", {"reason": reason, "forSeconds": 60})
    client.post(f"{automation}/release", {"reason": reason})


def test_hold_is_published_to_event_rule_and_chat(data_centre: DataCentre, receiver: Receiver) -> None:
    hold_automation(data_centre, "a storm in zone a")

    until(lambda: len(receiver.about("bus", "a storm in zone a")) >= 2, "both events", SECONDS)
    until(lambda: len(receiver.about("chat", "a storm in zone a")) >= 2, "both messages", SECONDS)
    held = receiver.about("bus", "a storm in zone a")[0]
    assert (held["source"], held["detail-type"]) == ("evenkeel", "Automation Changed")
    assert held["detail"]["data"]["by"]
    assert receiver.about("chat", "a storm in zone a")[0]["source"] == "custom"
    listed = data_centre.client().get("/events", kind="Automation Changed")["items"]
    assert held["detail"]["metadata"]["id"] in {event["id"] for event in listed}


def test_decision_about_a_job_joins_the_list_of_the_fleet(data_centre: DataCentre) -> None:
    client = data_centre.client()
    body = {"name": "listed", "image": "registry/trainer:1", "command": ["true"], "nodes": 1}
    job_id = client.post("/jobs", body)["jobId"]

    def listed() -> list[Json]:
        return [item for item in client.get("/decisions", kind="ADMISSION")["items"] if item["subject"] == job_id]

    until(listed, "the decision in the list of the fleet", SECONDS)
    about_job = client.get("/decisions", subject=job_id)["items"]
    assert listed()[0] == next(item for item in about_job if item["decisionId"] == listed()[0]["decisionId"])


def test_event_waits_in_the_stream_while_the_bus_refuses_it(data_centre: DataCentre, receiver: Receiver) -> None:
    """The function fails after the write and before the bus as long as its role lacks the permission."""
    iam = data_centre.deployer.client("iam")
    function = f"{STACK_NAME}-publish_events"
    arn = data_centre.deployer.client("lambda").get_function_configuration(FunctionName=function)["Role"]
    role = arn.rpartition("/")[2]
    whole = iam.get_role_policy(RoleName=role, PolicyName="publish_events")["PolicyDocument"]
    statements = [statement for statement in whole["Statement"] if statement["Sid"] != "PublishEvents"]
    iam.put_role_policy(
        RoleName=role, PolicyName="publish_events", PolicyDocument=json.dumps({**whole, "Statement": statements})
    )
    try:
        hold_automation(data_centre, "while the bus is closed")
        until(lambda: refusals(data_centre), "a refused publication", SECONDS)
        assert receiver.about("bus", "while the bus is closed") == []
    finally:
        iam.put_role_policy(RoleName=role, PolicyName="publish_events", PolicyDocument=json.dumps(whole))

    until(lambda: len(receiver.about("bus", "while the bus is closed")) >= 2, "both events", SECONDS)
    ids = [event["detail"]["metadata"]["id"] for event in receiver.about("bus", "while the bus is closed")]
    assert len(set(ids)) == 2


def refusals(centre: DataCentre) -> list[str]:
    """Return the log lines of refused publications."""
    logs, group = centre.deployer.client("logs"), f"/aws/lambda/{STACK_NAME}-publish_events"
    filter_log_event = logs.filter_log_events(logGroupName=group, filterPattern="NotAllowed")["events"]
    return [event["message"] for event in filter_log_event]
