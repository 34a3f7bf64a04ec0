"""CloudTrail records of calls that change nodes: `Records` of a trail, or `detail` of `AWS API Call via CloudTrail`.

Source: the CloudTrail guide, "CloudTrail record contents" and "CloudTrail userIdentity element". The fields of
requests and answers have the names of each API, with a small first letter. The record of TerminateInstances is
documented; the records of HyperPod and Auto Scaling are read by that rule. A call with an `errorCode` had no effect.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from evenkeel.domain.nodes import INSTANCE_ID
from evenkeel.domain.shadow.records import NodeAction
from evenkeel.domain.shadow.shadow_cases import Actor, NodeEvent, NodeEventKind
from evenkeel.events import fields
from evenkeel.events.fields import EventModel, PlainText, UtcTime
from evenkeel.events.outcomes import Ignored, Malformed, Unknown

DETAIL_TYPE = "AWS API Call via CloudTrail"
Json = dict[str, Any]


def _empty_if_none(value: object) -> object:
    return {} if value is None else value


class _Issuer(EventModel):
    """`userIdentity.sessionContext.sessionIssuer`."""

    model_config = ConfigDict(alias_generator=to_camel)

    user_name: PlainText = ""


class _Session(EventModel):
    """`userIdentity.sessionContext`."""

    model_config = ConfigDict(alias_generator=to_camel)

    session_issuer: Annotated[_Issuer, BeforeValidator(_empty_if_none)] = Field(default_factory=_Issuer)


class _Identity(EventModel):
    """`userIdentity`: the caller."""

    model_config = ConfigDict(alias_generator=to_camel)

    type: PlainText = ""
    arn: PlainText = ""
    invoked_by: PlainText = ""
    session_context: Annotated[_Session, BeforeValidator(_empty_if_none)] = Field(default_factory=_Session)

    @property
    def actor(self) -> Actor:
        """The kind of caller."""
        role = self.session_context.session_issuer.user_name
        if self.invoked_by in _SERVICES:
            return _SERVICES[self.invoked_by]
        if "karpenter" in role.lower():
            return Actor.KARPENTER
        if self.type in ("IAMUser", "Root", "IdentityCenterUser") or role.startswith("AWSReservedSSO_"):
            return Actor.PERSON
        return Actor.ROLE if self.type == "AssumedRole" else Actor.UNKNOWN

    @property
    def name(self) -> str:
        """The name of the caller for people: its ARN, else its service, else its type."""
        return self.arn or self.invoked_by or self.type


_SERVICES = {
    "autoscaling.amazonaws.com": Actor.AUTO_SCALING,
    "sagemaker.amazonaws.com": Actor.HYPERPOD,
    "ec2.amazonaws.com": Actor.EC2,
    "spot.amazonaws.com": Actor.EC2,
}


class _CloudTrailRecord(EventModel):
    """One record."""

    model_config = ConfigDict(alias_generator=to_camel)

    event_id: PlainText = Field(alias="eventID")
    event_time: UtcTime
    event_source: PlainText
    event_name: PlainText
    user_identity: Annotated[_Identity, BeforeValidator(_empty_if_none)] = Field(default_factory=_Identity)
    error_code: PlainText | None = None
    request_parameters: dict[str, Any] | None = None
    response_elements: dict[str, Any] | None = None


def _texts_in(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _hyperpod_targets(api_call: _CloudTrailRecord) -> Iterable[tuple[str, str]]:
    """Return the instance ids and logical ids that HyperPod accepted; the requested ids if no answer is recorded."""
    request, answer = api_call.request_parameters or {}, api_call.response_elements or {}
    source, names = (
        (answer, _ACCEPTED_ID_FIELDS)
        if any(name in answer for name in _ACCEPTED_ID_FIELDS)
        else (request, _REQUESTED_ID_FIELDS)
    )
    instance_ids, logical_ids = (_texts_in(source.get(name)) for name in names)
    return [*((instance_id, "") for instance_id in instance_ids), *(("", logical_id) for logical_id in logical_ids)]


_ACCEPTED_ID_FIELDS = ("successful", "successfulNodeLogicalIds")
_REQUESTED_ID_FIELDS = ("nodeIds", "nodeLogicalIds")


def _ec2_targets(api_call: _CloudTrailRecord) -> Iterable[tuple[str, str]]:
    instances = (api_call.request_parameters or {}).get("instancesSet")
    entries = instances.get("items") if isinstance(instances, dict) else None
    ids = [entry.get("instanceId") for entry in entries or () if isinstance(entry, dict)]
    return [(instance_id, "") for instance_id in ids if isinstance(instance_id, str)]


def _group_targets(api_call: _CloudTrailRecord) -> Iterable[tuple[str, str]]:
    return [(text, "") for text in _texts_in([(api_call.request_parameters or {}).get("instanceId")])]


_Targets = Callable[[_CloudTrailRecord], Iterable[tuple[str, str]]]
_CALLS: dict[tuple[str, str], tuple[NodeEventKind, _Targets]] = {
    ("sagemaker.amazonaws.com", "BatchReplaceClusterNodes"): (NodeEventKind.REPLACED, _hyperpod_targets),
    ("sagemaker.amazonaws.com", "BatchRebootClusterNodes"): (NodeEventKind.REBOOTED, _hyperpod_targets),
    ("sagemaker.amazonaws.com", "BatchDeleteClusterNodes"): (NodeEventKind.REMOVED, _hyperpod_targets),
    ("ec2.amazonaws.com", "TerminateInstances"): (NodeEventKind.REMOVED, _ec2_targets),
    ("ec2.amazonaws.com", "StopInstances"): (NodeEventKind.REMOVED, _ec2_targets),
    ("ec2.amazonaws.com", "RebootInstances"): (NodeEventKind.REBOOTED, _ec2_targets),
    ("autoscaling.amazonaws.com", "TerminateInstanceInAutoScalingGroup"): (NodeEventKind.REMOVED, _group_targets),
}
_WHOLE_GROUP_CALLS = {("sagemaker.amazonaws.com", "UpdateClusterSoftware")}
"""Calls about whole groups. HyperPod's own events show their effect on each node."""


def is_cloudtrail_record(document: Json) -> bool:
    """Whether a document is a CloudTrail record."""
    return "eventSource" in document and "eventName" in document


def parse(document: Json) -> tuple[NodeAction, ...] | Ignored | Unknown | Malformed:
    """Read one record."""
    call = (document.get("eventSource"), document.get("eventName"))
    if call in _WHOLE_GROUP_CALLS:
        return Ignored(f"{call[1]} names no node")
    if call not in _CALLS:
        return Unknown(f"no rule for the call {fields.one_line(str(call[1]))[:80]}")
    try:
        api_call = _CloudTrailRecord.model_validate(document)
    except ValidationError as error:
        return fields.malformed_event(error)
    if api_call.error_code:
        return Ignored("the call failed")
    kind, read_targets = _CALLS[api_call.event_source, api_call.event_name]
    distinct_targets = dict.fromkeys(read_targets(api_call))
    event = NodeEvent(
        at=api_call.event_time,
        kind=kind,
        actor=api_call.user_identity.actor,
        evidence=fields.one_line(
            f"CloudTrail {api_call.event_id}: {api_call.event_name} by {api_call.user_identity.name}"
        ),
    )
    actions = tuple(
        NodeAction(event=event, instance_id=instance_id, logical_id=logical_id)
        for instance_id, logical_id in distinct_targets
        if logical_id or INSTANCE_ID.fullmatch(instance_id)
    )
    return actions or Malformed("EVENT_BAD_TYPE", "requestParameters: names no node")
