"""Events about node objects: `v1` Event and `events.k8s.io/v1` Event, as `kubectl get events -o json` lists them.

Source: the kubelet and the node controllers of Kubernetes (`pkg/kubelet/events`, `pkg/controller/nodelifecycle`), and
Karpenter's event of a voluntary disruption. Kubernetes keeps events for an hour by default.
"""

import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from evenkeel.domain.shadow.records import NodeAction, ReadinessChange
from evenkeel.domain.shadow.shadow_cases import Actor, NodeEvent, NodeEventKind
from evenkeel.events import fields
from evenkeel.events.fields import EventModel, PlainText
from evenkeel.events.outcomes import Ignored, Malformed, Unknown

Json = dict[str, Any]

_PLANNED = re.compile(r"Disrupting Node(?:Claim)?: (?:Drift|Drifted|Empty|Emptiness|Underutilized|Expired)", re.ASCII)
_READINESS = {"NodeReady": True, "NodeNotReady": False}
_ACTIONS = {
    "NodeNotSchedulable": NodeEventKind.CORDONED,
    "NodeSchedulable": NodeEventKind.UNCORDONED,
    "Rebooted": NodeEventKind.REBOOTED,
    "RemovingNode": NodeEventKind.REMOVED,
    "DeletingNode": NodeEventKind.REMOVED,
}
_DISRUPTED = "DisruptionTerminating"


def _parse_time(value: object) -> datetime | None:
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(fields.require_text(value))
    except fields.BadField:
        raise
    except ValueError:
        raise fields.BadField("EVENT_BAD_TIME", f"{str(value)[:40]!r} is not a time") from None
    if at.tzinfo is None:
        raise fields.BadField("EVENT_BAD_TIME", f"{str(value)[:40]!r} has no time zone")
    return fields.check_time(at)


_Time = Annotated[datetime | None, BeforeValidator(_parse_time)]


class _Subject(EventModel):
    """`involvedObject` or `regarding`."""

    kind: PlainText = ""
    name: PlainText = ""


class _Metadata(EventModel):
    """`metadata`."""

    model_config = ConfigDict(alias_generator=to_camel)

    name: PlainText = ""
    uid: PlainText = ""
    creation_timestamp: _Time = None


class _Event(EventModel):
    """The event, in either version."""

    model_config = ConfigDict(alias_generator=to_camel)

    metadata: _Metadata
    subject: _Subject = Field(validation_alias=AliasChoices("involvedObject", "regarding"))
    reason: PlainText = ""
    message: PlainText = Field("", validation_alias=AliasChoices("message", "note"))
    first: _Time = Field(None, validation_alias=AliasChoices("firstTimestamp", "deprecatedFirstTimestamp"))
    last: _Time = Field(None, validation_alias=AliasChoices("lastTimestamp", "deprecatedLastTimestamp"))
    event_time: _Time = None

    @property
    def times(self) -> tuple[datetime, ...]:
        """The first and the last time of a repeated event. Kubernetes does not keep the times between them."""
        stamps = (self.first or self.event_time, self.last)
        known_times = tuple(dict.fromkeys(at for at in stamps if at))
        return known_times or tuple(at for at in (self.metadata.creation_timestamp,) if at)


def is_event(document: Json) -> bool:
    """Whether a document is a Kubernetes event."""
    return document.get("kind") == "Event" and ("involvedObject" in document or "regarding" in document)


def parse(document: Json) -> tuple[tuple[datetime, NodeAction | ReadinessChange], ...] | Ignored | Unknown | Malformed:
    """Parse one event. Return each of its times with the change of the node at that time."""
    try:
        event = _Event.model_validate(document)
    except ValidationError as error:
        return fields.malformed_event(error)
    if event.subject.kind != "Node":
        return Ignored("an event about another object than a node")
    if event.reason not in (*_READINESS, *_ACTIONS, _DISRUPTED):
        return Unknown(f"no rule for the reason {fields.one_line(event.reason)[:80]}")
    if not event.times:
        return Malformed("EVENT_BAD_TIME", "lastTimestamp: missing")
    return tuple((at, _node_change(event, at)) for at in event.times)


def _node_change(event: _Event, at: datetime) -> NodeAction | ReadinessChange:
    name, evidence = event.subject.name, fields.one_line(f"Kubernetes event {event.reason}: {event.message}")
    if event.reason in _READINESS:
        return ReadinessChange(node_name=name, is_ready=_READINESS[event.reason], evidence=evidence)
    kind = _ACTIONS.get(event.reason, NodeEventKind.REMOVED)
    actor = Actor.KARPENTER if event.reason == _DISRUPTED else Actor.UNKNOWN
    is_planned = event.reason == _DISRUPTED and _PLANNED.match(event.message) is not None
    node_event = NodeEvent(at=at, kind=kind, actor=actor, evidence=evidence)
    return NodeAction(event=node_event, node_name=name, is_planned=is_planned)
