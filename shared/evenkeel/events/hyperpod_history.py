"""Events of `ListClusterEvents` and `DescribeClusterEvent`: the same records as EventBridge delivers, in another form.

Source: the SageMaker API reference, `ClusterEventSummary` and `ClusterEventDetail`. `EventTime` is in seconds or in ISO
8601 here, and in epoch milliseconds in EventBridge. A summary has no metadata, so it does not name the node slot.
"""

from datetime import UTC, datetime
from typing import Any

from evenkeel.domain.values import milliseconds, rfc3339
from evenkeel.events import hyperpod_cluster_event
from evenkeel.events.outcomes import Malformed

Json = dict[str, Any]


def is_hyperpod_event(document: Json) -> bool:
    """Whether a document is an event of the HyperPod API."""
    return {"EventId", "ClusterArn", "EventTime"} <= document.keys()


def to_envelope(record: Json) -> Json | Malformed:
    """Return the event as EventBridge would deliver it."""
    at = _parse_time(record["EventTime"])
    if at is None:
        return Malformed("EVENT_BAD_TIME", f"EventTime: {str(record['EventTime'])[:40]!r} is not a time")
    return {
        "id": record["EventId"],
        "source": "aws.sagemaker",
        "detail-type": hyperpod_cluster_event.DETAIL_TYPE,
        "time": rfc3339(at),
        "detail": {"EventDetails": {**record, "EventTime": milliseconds(at)}},
    }


def _parse_time(value: object) -> datetime | None:
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value)
            return at if at.tzinfo else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None
