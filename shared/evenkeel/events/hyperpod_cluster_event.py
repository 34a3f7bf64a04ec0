"""aws.sagemaker / SageMaker HyperPod Cluster Event: each step of HyperPod's work on an instance, and its result.

Source: the SageMaker guide, "HyperPod cluster events reference". Only clusters with continuous provisioning send it.
`detail.EventDetails` describes the event, and it has a second `EventDetails` inside. Xid and ECC never appear here.

A step on an instance is progress of its repair (`FactKind.PROGRESS`) and opens no incident. A cause that will also stop
the next instance of the group (no capacity, a failing lifecycle script) is a fact about the group too.
"""

import re
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_pascal

from evenkeel.domain.health.faults import UNKNOWN_FAULT
from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.domain.nodes import INSTANCE_ID
from evenkeel.events import fields
from evenkeel.events.fields import (
    ClusterArn,
    EpochMilliseconds,
    EventEnvelope,
    EventId,
    EventModel,
    PlainText,
    check_id,
)
from evenkeel.events.outcomes import Fact, Ignored, ParsedEvent

DETAIL_TYPE = "SageMaker HyperPod Cluster Event"
SOURCE = "hyperpod.cluster-event"

_LOGICAL_ID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_INSTANCE_ID_OR_EMPTY = re.compile(f"(?:{INSTANCE_ID.pattern})?", re.ASCII)


class _EventMeaning(NamedTuple):
    """The facts that an event gives."""

    code: str = ""
    """Code of the progress of an instance; empty for none."""
    group: tuple[GroupFactKind, str] | None = None
    """Kind of the fact about the group, and its fault key."""


def _description_pattern(pattern: str) -> re.Pattern[str]:
    # AWS writes "EC2 Instance <id>" and "EC2InstanceId <id>" for the same; names vary and are bounded.
    expression = pattern.replace("<ec2>", r"(?:EC2 Instance |EC2InstanceId )\S{1,40}").replace("<id>", r"\S{1,40}")
    return re.compile(expression, re.ASCII)


_NO_CAPACITY = _EventMeaning("insufficient_capacity", (GroupFactKind.NO_CAPACITY, "hp:insufficient_capacity"))
_EFA = _EventMeaning("replacement_failed", (GroupFactKind.EFA_BOOT_FAILED, "hp:efa_boot_check_failed"))
_FAILED_CREATION = _EventMeaning("creation_failed", (GroupFactKind.CREATION_FAILED, "hp:replacement_failed"))
_FAILED_SCRIPT = _EventMeaning(
    "lifecycle_script_failed", (GroupFactKind.LIFECYCLE_SCRIPT_FAILED, "hp:lifecycle_script_failed")
)
_BY_MESSAGE = {
    "We currently do not have sufficient capacity": _NO_CAPACITY,
    "EFA health checks did not run successfully": _EFA,
}
"""Meanings by the beginning of FailureMessage. All failures have the same description."""
_BY_DESCRIPTION = (
    (
        _description_pattern("<ec2> successfully provisioned in "),
        _EventMeaning("provisioned", (GroupFactKind.PROVISIONED, "")),
    ),
    (_description_pattern("Reboot of <ec2> is currently in progress"), _EventMeaning("reboot_in_progress")),
    (_description_pattern("Failed to submit reboot request for <ec2>"), _EventMeaning("reboot_failed")),
    (
        _description_pattern("Instance <id> is starting as part of instance replacement"),
        _EventMeaning("replacement_started"),
    ),
    (
        _description_pattern("Instance <id> failed to start as part of instance replacement"),
        _EventMeaning("replacement_failed"),
    ),
    (
        _description_pattern(r"Instance <id> \w{1,20} completed successfully as part of instance replacement"),
        _EventMeaning("replacement_completed"),
    ),
    (
        _description_pattern(r"Instance <id> \w{1,20} failed as part of instance replacement"),
        _EventMeaning("replacement_failed"),
    ),
    (_description_pattern("Failed to provision EC2 Instance in Cluster"), _FAILED_CREATION),
    (_description_pattern(r"Instance creation in Cluster .{1,200}? failed"), _FAILED_CREATION),
    (_description_pattern("Instance lifecycle script execution for <ec2> has (?i:fail)"), _FAILED_SCRIPT),
    (
        _description_pattern("Instance lifecycle script execution for <ec2> has "),
        _EventMeaning("lifecycle_script_ran"),
    ),
    (_description_pattern("Termination of <ec2> is currently in progress"), _EventMeaning("terminating")),
    (_description_pattern("Found CapacityReservation ID "), _EventMeaning("reservation_found")),
    (_description_pattern("No CapacityReservation found "), _EventMeaning("reservation_missing")),
    # Patching is planned work: no fault, and no incident.
    (
        _description_pattern(r"Instance <id> in IG .{1,200}? cordoned and pods evicted"),
        _EventMeaning("patching_started"),
    ),
    (
        _description_pattern(r"Instance <id> in IG .{1,200}? restored to schedulable state"),
        _EventMeaning("patching_ended"),
    ),
    (
        _description_pattern(r".{0,240}? skipped due to PodDisruptionBudget constraint"),
        _EventMeaning("patching_skipped"),
    ),
)
_NODE_COUNT_CHANGE = _description_pattern(r"[0-9]{1,6} node\(s\) lost orchestration-ready status")
"""HyperPod sends this with each change of the node count. Its FailureMessage is misleading."""


def _only_objects(value: object) -> dict[str, object]:
    """Keep the entries that are objects. The other kinds of metadata may be null or absent."""
    entries = value if isinstance(value, dict) else {}
    return {kind: entry for kind, entry in entries.items() if isinstance(entry, dict)}


def _empty_unless_logical_id(text: str) -> str:
    return text if _LOGICAL_ID.fullmatch(text) else ""


class _Metadata(EventModel):
    """Metadata of an instance, a group or the cluster: an entry of `EventMetadata`."""

    model_config = ConfigDict(alias_generator=to_pascal)

    failure_message: PlainText = ""
    node_logical_id: Annotated[str, AfterValidator(_empty_unless_logical_id)] = ""


class _InnerDetails(EventModel):
    """`detail.EventDetails.EventDetails`."""

    model_config = ConfigDict(alias_generator=to_pascal)

    event_metadata: Annotated[dict[PlainText, _Metadata], BeforeValidator(_only_objects)] = {}


class _EventDetails(EventModel):
    """`detail.EventDetails`. `EventTime` is in epoch milliseconds here, unlike in the API."""

    model_config = ConfigDict(alias_generator=to_pascal)

    event_id: EventId
    cluster_arn: ClusterArn
    cluster_name: PlainText
    resource_type: PlainText
    instance_id: Annotated[str, check_id(_INSTANCE_ID_OR_EMPTY, "an instance id")] = ""
    event_level: PlainText = ""
    description: PlainText = ""
    instance_group_name: PlainText = ""
    event_time: EpochMilliseconds
    event_details: Annotated[_InnerDetails, BeforeValidator(_only_objects)] = Field(default_factory=_InnerDetails)

    @property
    def metadata(self) -> _Metadata:
        """The one object of the metadata, whichever kind it is."""
        return next(iter(self.event_details.event_metadata.values()), _Metadata())


class _Detail(EventModel):
    """`detail` of aws.sagemaker / SageMaker HyperPod Cluster Event."""

    model_config = ConfigDict(alias_generator=to_pascal)

    event_details: _EventDetails


def parse(document: dict[str, Any]) -> ParsedEvent | Ignored:
    """Read the event.

    Raises:
        ValidationError: the event does not fit its model.
    """
    event = EventEnvelope[_Detail].model_validate(document)
    details = event.detail.event_details
    meaning = _find_meaning(details)
    facts: list[Fact] = []
    if meaning and meaning.code and details.instance_id:
        facts.append(_progress_fact(event, meaning.code))
    if meaning and meaning.group:
        facts.append(_group_fact(event, *meaning.group))
    if meaning is None and details.event_level == "Error":
        facts.append(_unnamed_fact(event))
    if not facts:
        return Ignored(f"cluster event, archived: {fields.one_line(details.description)[:160]}")
    return ParsedEvent(tuple(facts))


def _find_meaning(details: _EventDetails) -> _EventMeaning | None:
    """Return the meaning of an event, or None if no rule names it."""
    if details.event_level == "Error":
        for beginning, meaning in _BY_MESSAGE.items():
            if details.metadata.failure_message.startswith(beginning):
                return meaning
    if _NODE_COUNT_CHANGE.match(details.description):
        return _EventMeaning()
    return next((meaning for pattern, meaning in _BY_DESCRIPTION if pattern.match(details.description)), None)


def _progress_fact(event: EventEnvelope[_Detail], code: str) -> NodeFact:
    details = event.detail.event_details
    return NodeFact(
        kind=FactKind.PROGRESS,
        source=SOURCE,
        instance_id=details.instance_id,
        logical_id=details.metadata.node_logical_id,
        cluster_arn=details.cluster_arn,
        code=code,
        observed_at=details.event_time,
        envelope_id=event.id,
        detail=_detail_text(details),
        is_drill=event.is_drill,
        # The API's own id of the event, the same in every envelope.
        occurrence=details.event_id,
    )


def _group_fact(event: EventEnvelope[_Detail], kind: GroupFactKind, fault_key: str) -> GroupFact:
    details = event.detail.event_details
    return GroupFact(
        kind=kind,
        source=SOURCE,
        cluster_arn=details.cluster_arn,
        instance_group=fields.one_line(details.instance_group_name),
        fault_key=fault_key,
        instance_id=details.instance_id,
        observed_at=details.event_time,
        detail=_detail_text(details),
        envelope_id=event.id,
        is_drill=event.is_drill,
    )


def _unnamed_fact(event: EventEnvelope[_Detail]) -> Fact:
    """Return an error that no rule names: a minor fault of its instance, or a note on its group."""
    if not event.detail.event_details.instance_id:
        return _group_fact(event, GroupFactKind.OTHER_ERROR, "")
    return _progress_fact(event, "").replace(kind=FactKind.FAULT, fault_key=UNKNOWN_FAULT, code="other")


def _detail_text(details: _EventDetails) -> str:
    return fields.one_line(" ".join(text for text in (details.description, details.metadata.failure_message) if text))
