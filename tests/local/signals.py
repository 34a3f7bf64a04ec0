"""Sends signals about nodes, and reads their effects: archive, dead letters, log and incidents."""

import json
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from evenkeel.adapters.dynamo_ledger import document_of
from evenkeel_client.errors import ApiRequestFailed, Exit
from evenkeel_local.data_centre import DataCentre
from evenkeel_local.drills import SETTLED
from tests.waiting import until

Json = dict[str, Any]

HEALTH_EVENT = "SageMaker HyperPod Cluster Node Health Event"
TRACED = ("INC#", "OPEN#", "LAST#", "FACT#", "UNRESOLVED#", "DRILL-OPEN#", "DRILL-LAST#")
"""Prefix of the partitions of incidents; other partitions hold decisions."""
SETTLED_SECONDS = 90.0
HANDLED_SECONDS = 60.0
"""A first event may wait for the function's cold start on a busy machine."""


def health_event(
    instance_id: str,
    *,
    status: str = "Unhealthy",
    fault: str = "NvidiaErrorReboot",
    at: datetime | None = None,
    event_id: str = "",
    source: str = "aws.sagemaker",
) -> Json:
    """Return a node health event in its envelope, as EventBridge delivers it."""
    arn = "arn:aws:sagemaker:us-west-2:000000000000:cluster/k3v9x2m7q1ab"
    reason = f"HyperPod Health Monitoring Agent (HMA) has detected fault type {fault} on this node and is unhealthy."
    return {
        "version": "0",
        "id": event_id or f"sent-by-test-{secrets.token_hex(8)}",
        "detail-type": HEALTH_EVENT,
        "source": source,
        "account": "000000000000",
        "time": f"{at or datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "region": "us-west-2",
        "resources": [arn],
        "detail": {
            "ClusterName": "research-train",
            "ClusterArn": arn,
            "InstanceId": instance_id,
            "Tags": {},
            "HealthSummary": {
                "HealthStatus": status,
                "HealthStatusReason": reason if status == "Unhealthy" else "",
                "RepairAction": "None",
                "Recommendation": "",
            },
        },
    }


def queue(centre: DataCentre, event: Json | str) -> None:
    """Put an envelope unchanged on the queue behind the rules."""
    body = event if isinstance(event, str) else json.dumps(event)
    centre.deployer.client("sqs").send_message(QueueUrl=centre.outputs["EventsQueueUrl"], MessageBody=body)


def put_on_bus(centre: DataCentre, detail_type: str, detail: Json) -> str:
    """Send a drill through the bus and its rule; return the id that the bus gave it."""
    entry = {"Source": "evenkeel.drill", "DetailType": detail_type, "Detail": json.dumps(detail)}
    answer = centre.deployer.client("events").put_events(Entries=[entry])
    assert answer["FailedEntryCount"] == 0, answer["Entries"]
    return str(answer["Entries"][0]["EventId"])


def await_handled(centre: DataCentre, *envelope_ids: str) -> None:
    """Wait until receive_event has handled every copy of these envelopes. It checks archive and queue, because a busy
    engine may lose log lines.
    """
    sqs, names = centre.deployer.client("sqs"), ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

    def look() -> bool:
        answer = sqs.get_queue_attributes(QueueUrl=centre.outputs["EventsQueueUrl"], AttributeNames=names)
        is_empty = not any(int(count) for count in answer["Attributes"].values())
        return is_empty and all(raw_copy(centre, envelope_id) is not None for envelope_id in envelope_ids)

    until(look, f"the queue to be empty of {', '.join(envelope_ids)}", HANDLED_SECONDS)


def log_lines(centre: DataCentre, word: str, since: datetime | None = None) -> list[Json]:
    """Return the lines of receive_event's log that contain a word, oldest first."""
    filter_log_event = centre.deployer.client("logs").filter_log_events(
        logGroupName=f"/aws/lambda/{centre.outputs['ReceiveEventFunction']}",
        filterPattern=f'"{word}"',
        startTime=int(since.timestamp() * 1000) if since else 0,
    )["events"]
    return [
        json.loads(event["message"])
        for event in sorted(filter_log_event, key=lambda event: event["timestamp"])
        if event["message"].startswith("{")
    ]


def raw_copy(centre: DataCentre, envelope_id: str) -> bytes | None:
    """Return the archived content of an envelope."""
    try:
        answer = centre.deployer.client("s3").get_object(
            Bucket=centre.outputs["RawEventsBucketName"], Key=f"events/{envelope_id}.json"
        )
    except ClientError as error:
        if error.response["Error"]["Code"] == "NoSuchKey":
            return None
        raise
    return bytes(answer["Body"].read())


def take_dead_letters(centre: DataCentre) -> list[Json]:
    """Empty the dead-letter queue of events; return its messages' bodies and attributes."""
    return list(_taken(centre))


def _taken(centre: DataCentre) -> Iterator[Json]:
    sqs, url = centre.deployer.client("sqs"), centre.outputs["DeadLetterQueueUrl"]
    while messages := sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], VisibilityTimeout=60
    ).get("Messages", []):
        for message in messages:
            attributes = message.get("MessageAttributes", {})
            yield {"body": message["Body"], **{name: value["StringValue"] for name, value in attributes.items()}}
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def incident_rows(centre: DataCentre) -> dict[tuple[str, str], Json]:
    """Return every row that events may change, by its key."""
    pages = (
        centre.deployer.client("dynamodb")
        .get_paginator("scan")
        .paginate(TableName=centre.outputs["IncidentsTableName"], ConsistentRead=True)
    )
    rows = (row for page in pages for row in page["Items"])
    return {(row["pk"]["S"], row["sk"]["S"]): row for row in rows if row["pk"]["S"].startswith(TRACED)}


def incidents_about(centre: DataCentre, instance_id: str) -> list[Json]:
    """Return the incidents of a node, newest first."""
    listed = centre.client().get("/incidents", pageSize=50)["items"]
    return [dict(incident) for incident in listed if incident["node"]["instanceId"] == instance_id]


def executions_of(centre: DataCentre, incident_id: str) -> list[str]:
    """Return the names of an incident's executions."""
    pages = (
        centre.deployer.client("stepfunctions")
        .get_paginator("list_executions")
        .paginate(stateMachineArn=centre.outputs["RecoverNodeArn"])
    )
    names = (str(execution["name"]) for page in pages for execution in page["executions"])
    return sorted(name for name in names if name.startswith(f"{incident_id}-"))


def accepted_calls(centre: DataCentre, instance_id: str) -> dict[str, int]:
    """Return the number of accepted repairs of a node, by rung."""
    accepted = centre.cluster.control("GET", "counters")["accepted"]
    return {action: counts[instance_id] for action, counts in accepted.items() if instance_id in counts}


def untouched_machine(centre: DataCentre) -> str:
    """Return a joined node without any repair or incident; if there is none, replace a node."""
    touched = {document_of(row)["life"]["instanceId"] for row in _incidents(centre)}
    machines = [str(node["instanceId"]) for node in centre.cluster.nodes()]
    untouched = [machine for machine in machines if machine not in touched and not accepted_calls(centre, machine)]
    if not untouched:
        event = health_event(machines[0], fault="NvidiaErrorTerminate")
        queue(centre, event)
        await_handled(centre, event["id"])
        settled_incident(centre, machines[0])
        return untouched_machine(centre)
    until(lambda: _has_joined(centre, untouched[0]), f"a sweep to see {untouched[0]} in its cluster", SETTLED_SECONDS)
    return untouched[0]


def _has_joined(centre: DataCentre, instance_id: str) -> bool:
    try:
        return bool(centre.client().get(f"/nodes/{instance_id}")["name"])  # a node that has not joined has none
    except ApiRequestFailed as failed:
        if failed.exit_code is not Exit.NOT_FOUND:
            raise
        return False


def settled_incident(centre: DataCentre, instance_id: str) -> Json:
    """Wait until the newest incident of a node is settled, and return it."""

    def look() -> Json:
        newest = next(iter(incidents_about(centre, instance_id)), {"state": ""})
        return newest if newest["state"] in SETTLED else {}

    return until(look, f"the incident of {instance_id} to settle", SETTLED_SECONDS)


def _incidents(centre: DataCentre) -> list[Json]:
    return [row for (pk, sk), row in incident_rows(centre).items() if pk.startswith("INC#") and sk == "META"]
