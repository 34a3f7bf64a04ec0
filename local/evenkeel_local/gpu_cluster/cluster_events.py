"""HyperPod cluster events: stored for ListClusterEvents, and sent to EventBridge if the configuration says so."""

from __future__ import annotations

import time
import uuid
from collections import deque
from typing import Protocol

from evenkeel_local.gpu_cluster.aws_model import AwsError, Json, items_between, paged_answer
from evenkeel_local.gpu_cluster.config import ClusterConfig
from evenkeel_local.gpu_cluster.machines import Machine

KEPT = 500
"""Number of events that the list keeps, about as many as on AWS."""
EVENT_TYPE = "SageMaker HyperPod Cluster Event"


class EventPublisher(Protocol):
    """Sends events."""

    def send(self, detail_type: str, detail: Json, resources: list[str]) -> None:
        """Send an event soon, as often as the configuration says."""


class ClusterEvents:
    """The cluster's event list, newest last."""

    def __init__(self, config: ClusterConfig, bus: EventPublisher) -> None:
        self._config = config
        self._bus = bus
        self._events: deque[Json] = deque(maxlen=KEPT)

    def instance_event(
        self, machine: Machine, description: str, level: str = "Info", metadata: Json | None = None
    ) -> None:
        """Record one event about an instance."""
        self.record(
            "Instance",
            description,
            level,
            {"Instance": {"NodeLogicalId": machine.logical_id, **(metadata or {})}},
            group=machine.group,
            instance_id=machine.instance_id,
        )

    def lost_readiness(self, nodes: int) -> None:
        """Record the warning that AWS sends for each change of the node count. Its message is misleading, as on AWS."""
        message = f"{nodes} node(s) lost orchestration-ready status"
        misleading = "Request to service failed. If failure persists after retry, contact customer support."
        self.record("Cluster", message, "Warn", {"Cluster": {"FailureMessage": misleading}})

    def record(
        self,
        resource_type: str,
        description: str,
        level: str = "Info",
        metadata: Json | None = None,
        group: str | None = None,
        instance_id: str | None = None,
        operation_id: str | None = None,
    ) -> Json:
        """Record an event; also send it if the configuration says so."""
        now = time.time()
        event: Json = {
            "EventId": str(uuid.uuid4()),
            "ClusterArn": self._config.cluster_arn,
            "ClusterName": self._config.cluster_name,
            "ResourceType": resource_type,
            "EventTime": now,
            "Description": description,
            "EventLevel": level,
        }
        optional = {"InstanceGroupName": group, "InstanceId": instance_id, "OperationId": operation_id}
        event |= {name: value for name, value in optional.items() if value}
        if metadata:
            event["EventDetails"] = {"EventMetadata": metadata}
        self._events.append(event)
        if self._config.cluster_events and self._config.node_provisioning_mode == "Continuous":
            # The bus carries milliseconds where the API gives seconds.
            detail = {"EventDetails": {**event, "EventTime": int(now * 1000)}}
            self._bus.send(EVENT_TYPE, detail, [self._config.cluster_arn])
        return event

    def announce(self, detail_type: str, detail: Json) -> None:
        """Send an event of another type about the cluster."""
        self._bus.send(detail_type, detail, [self._config.cluster_arn])

    def list(self, body: Json) -> Json:
        """Answer ListClusterEvents."""
        events = list(self._events)
        for field in ("InstanceGroupName", "NodeId", "ResourceType", "OperationId"):
            if value := body.get(field):
                key = "InstanceId" if field == "NodeId" else field
                events = [event for event in events if event.get(key) == value]
        events = items_between(events, body, "EventTime", lambda event: event["EventTime"])
        if body.get("SortOrder", "Descending") == "Descending":
            events.reverse()
        return paged_answer("Events", events, body, "ListClusterEvents", _summary)

    def describe(self, body: Json) -> Json:
        """Answer DescribeClusterEvent."""
        for event in self._events:
            if event["EventId"] == body["EventId"]:
                return {"EventDetails": event}
        raise AwsError("ResourceNotFound", f"Could not find event {body['EventId']}.")


def _summary(event: Json) -> Json:
    return {key: value for key, value in event.items() if key != "EventDetails"}
