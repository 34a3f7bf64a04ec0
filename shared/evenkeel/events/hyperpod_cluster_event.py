"""aws.sagemaker / SageMaker HyperPod Cluster Event, and … / SageMaker HyperPod Cluster State Change.

Infrastructure progress: checked, so that a broken one is seen, and archived. Nothing is decided from it yet.
"""

from collections.abc import Mapping
from typing import Any

from evenkeel.events import fields
from evenkeel.events.outcomes import Ignored

EVENT_DETAIL_TYPE = "SageMaker HyperPod Cluster Event"
STATE_DETAIL_TYPE = "SageMaker HyperPod Cluster State Change"


def parse_event(detail: Mapping[str, Any]) -> Ignored:
    """Check a cluster event. `EventTime` is in epoch milliseconds here, unlike in the API.

    Raises:
        BadEvent: at the first fault.
    """
    record = fields.object_of(detail, "EventDetails", "detail.EventDetails")
    texts = {
        name: fields.text_of(record, name, f"detail.EventDetails.{name}", required=name not in _OPTIONAL)
        for name in ("EventId", "ClusterArn", "ClusterName", "ResourceType", *_OPTIONAL)
    }
    for name, text in texts.items():
        fields.check_text(text, f"detail.EventDetails.{name}")
    time = fields.number_of(record, "EventTime", "detail.EventDetails.EventTime")
    fields.epoch_milliseconds(time, "detail.EventDetails.EventTime")
    if texts["InstanceId"]:
        fields.check_instance_id(texts["InstanceId"], "detail.EventDetails.InstanceId")
    return Ignored(f"cluster event, archived: {fields.quoted(texts['Description'])[:160]}")


_OPTIONAL = ("InstanceId", "EventLevel", "Description", "InstanceGroupName")


def parse_state(detail: Mapping[str, Any]) -> Ignored:
    """Check a cluster state change.

    Raises:
        BadEvent: at the first fault.
    """
    texts = {
        name: fields.text_of(detail, name, f"detail.{name}") for name in ("ClusterArn", "ClusterName", "ClusterStatus")
    }
    for name, text in texts.items():
        fields.check_text(text, f"detail.{name}")
    return Ignored(f"cluster is {texts['ClusterStatus'][:40]}, archived")
