"""HyperPod cluster events: kept for ListClusterEvents, and sent to EventBridge where that is wanted."""

from __future__ import annotations

import time
import uuid
from collections import deque
from typing import Protocol

from evenkeel_local.gpu_cluster.aws_model import AwsError, Json, paged
from evenkeel_local.gpu_cluster.config import ClusterConfig
from evenkeel_local.gpu_cluster.machines import Machine

KEPT = 500
"""How many events the list keeps; an AWS skill reports about this many."""
EVENT_TYPE = "SageMaker HyperPod Cluster Event"


class EventPublisher(Protocol):
    """Where events go."""

    def send(self, detail_type: str, detail: Json, resources: list[str]) -> None:
        """Send an event, soon, as often as the configuration says."""


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
        """Record the warning that comes with each change of the node count; its message misleads, as in life."""
        told = f"{nodes} node(s) lost orchestration-ready status"
        misleading = "Request to service failed. If failure persists after retry, contact customer support."
        self.record("Cluster", told, "Warn", {"Cluster": {"FailureMessage": misleading}})

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
        """Record an event; send it too when the configuration says so."""
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
        if group:
            event["InstanceGroupName"] = group
        if instance_id:
            event["InstanceId"] = instance_id
        if operation_id:
            event["OperationId"] = operation_id
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
            if wanted := body.get(field):
                key = "InstanceId" if field == "NodeId" else field
                events = [event for event in events if event.get(key) == wanted]
        if (after := body.get("EventTimeAfter")) is not None:
            events = [event for event in events if event["EventTime"] > after]
        if (before := body.get("EventTimeBefore")) is not None:
            events = [event for event in events if event["EventTime"] < before]
        if body.get("SortOrder", "Descending") == "Descending":
            events.reverse()
        page, token = paged(events, body, "ListClusterEvents")
        summaries = [{key: value for key, value in event.items() if key != "EventDetails"} for event in page]
        return {"Events": summaries, **({"NextToken": token} if token else {})}

    def describe(self, body: Json) -> Json:
        """Answer DescribeClusterEvent."""
        for event in self._events:
            if event["EventId"] == body["EventId"]:
                return {"EventDetails": event}
        raise AwsError("ResourceNotFound", f"Could not find event {body['EventId']}.")
