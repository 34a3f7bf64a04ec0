"""aws.sagemaker / SageMaker HyperPod Cluster Event: what HyperPod does with machines, and how far it got.

Source: the SageMaker guide, "HyperPod cluster events reference". Only clusters with continuous provisioning send it.
`detail.EventDetails` is the record, and it has a second `EventDetails` inside. Xid and ECC never appear here.

What happens to a machine is news of its repair (`FactKind.PROGRESS`), which opens nothing; what will befall the next
machine of the group as well (no capacity, a failing lifecycle script) is told of the group too.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from evenkeel.domain.health.faults import UNKNOWN_FAULT
from evenkeel.domain.health.groups import GroupFact, GroupFactKind
from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.events import fields
from evenkeel.events.outcomes import Fact, Ignored, ParsedEvent

DETAIL_TYPE = "SageMaker HyperPod Cluster Event"
SOURCE = "hyperpod.cluster-event"

_LOGICAL_ID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)


class _Meaning(NamedTuple):
    """What a record comes out as."""

    code: str = ""
    """Of the news about the machine; empty where it is none."""
    group: tuple[GroupFactKind, str] | None = None
    """What it says of the group, and the fault it is."""


def _described(pattern: str) -> re.Pattern[str]:
    # AWS writes "EC2 Instance <id>" and "EC2InstanceId <id>" for the same; names vary and are bounded.
    written = pattern.replace("<ec2>", r"(?:EC2 Instance |EC2InstanceId )\S{1,40}").replace("<id>", r"\S{1,40}")
    return re.compile(written, re.ASCII)


_NO_CAPACITY = _Meaning("insufficient_capacity", (GroupFactKind.NO_CAPACITY, "hp:insufficient_capacity"))
_EFA = _Meaning("replacement_failed", (GroupFactKind.EFA_BOOT_FAILED, "hp:efa_boot_check_failed"))
_FAILED_CREATION = _Meaning("creation_failed", (GroupFactKind.CREATION_FAILED, "hp:replacement_failed"))
_FAILED_SCRIPT = _Meaning(
    "lifecycle_script_failed", (GroupFactKind.LIFECYCLE_SCRIPT_FAILED, "hp:lifecycle_script_failed")
)
_BY_MESSAGE = {
    "We currently do not have sufficient capacity": _NO_CAPACITY,
    "EFA health checks did not run successfully": _EFA,
}
"""By the beginning of FailureMessage: the description is the same whatever went wrong."""
_BY_DESCRIPTION = (
    (_described("<ec2> successfully provisioned in "), _Meaning("provisioned", (GroupFactKind.PROVISIONED, ""))),
    (_described("Reboot of <ec2> is currently in progress"), _Meaning("reboot_in_progress")),
    (_described("Failed to submit reboot request for <ec2>"), _Meaning("reboot_failed")),
    (_described("Instance <id> is starting as part of instance replacement"), _Meaning("replacement_started")),
    (_described("Instance <id> failed to start as part of instance replacement"), _Meaning("replacement_failed")),
    (
        _described(r"Instance <id> \w{1,20} completed successfully as part of instance replacement"),
        _Meaning("replacement_completed"),
    ),
    (_described(r"Instance <id> \w{1,20} failed as part of instance replacement"), _Meaning("replacement_failed")),
    (_described("Failed to provision EC2 Instance in Cluster"), _FAILED_CREATION),
    (_described(r"Instance creation in Cluster .{1,200}? failed"), _FAILED_CREATION),
    (_described("Instance lifecycle script execution for <ec2> has (?i:fail)"), _FAILED_SCRIPT),
    (_described("Instance lifecycle script execution for <ec2> has "), _Meaning("lifecycle_script_ran")),
    (_described("Termination of <ec2> is currently in progress"), _Meaning("terminating")),
    (_described("Found CapacityReservation ID "), _Meaning("reservation_found")),
    (_described("No CapacityReservation found "), _Meaning("reservation_missing")),
    # Patching is planned work: no fault, and no incident.
    (_described(r"Instance <id> in IG .{1,200}? cordoned and pods evicted"), _Meaning("patching_started")),
    (_described(r"Instance <id> in IG .{1,200}? restored to schedulable state"), _Meaning("patching_ended")),
    (_described(r".{0,240}? skipped due to PodDisruptionBudget constraint"), _Meaning("patching_skipped")),
)
_NOISE = _described(r"[0-9]{1,6} node\(s\) lost orchestration-ready status")
"""Comes with each change of the node count, and its FailureMessage misleads."""


class _Record(NamedTuple):
    texts: Mapping[str, str]
    event_id: str
    at: datetime
    failure: str
    logical_id: str


def parse(envelope: fields.Envelope) -> ParsedEvent | Ignored:
    """Read the event. `EventTime` is in epoch milliseconds here, unlike in the API.

    Raises:
        BadEvent: at the first fault.
    """
    record = _read(envelope.detail)
    envelope_id, _ = envelope.identity()
    meaning = _meaning(record)
    facts: list[Fact] = []
    if meaning and meaning.code and record.texts["InstanceId"]:
        facts.append(_progress_fact(record, meaning.code, envelope_id, is_drill=envelope.is_drill))
    if meaning and meaning.group:
        facts.append(_group_fact(record, *meaning.group, envelope_id, is_drill=envelope.is_drill))
    if meaning is None and record.texts["EventLevel"] == "Error":
        facts.append(_unnamed_fact(record, envelope_id, is_drill=envelope.is_drill))
    if not facts:
        return Ignored(f"cluster event, archived: {fields.quoted(record.texts['Description'])[:160]}")
    return ParsedEvent(tuple(facts))


def _read(detail: Mapping[str, Any]) -> _Record:
    path = "detail.EventDetails"
    record = fields.object_of(detail, "EventDetails", path)
    texts = {
        name: fields.text_of(record, name, f"{path}.{name}", required=name not in _OPTIONAL)
        for name in ("EventId", "ClusterArn", "ClusterName", "ResourceType", *_OPTIONAL)
    }
    for name, text in texts.items():
        fields.check_text(text, f"{path}.{name}")
    at = fields.epoch_milliseconds(fields.number_of(record, "EventTime", f"{path}.EventTime"), f"{path}.EventTime")
    if texts["InstanceId"]:
        fields.check_instance_id(texts["InstanceId"], f"{path}.InstanceId")
    event_id = texts["EventId"]
    fields.check_envelope_id(event_id, f"{path}.EventId")
    failure, logical_id = _metadata(record, path)
    return _Record(texts, event_id, at, failure, logical_id)


_OPTIONAL = ("InstanceId", "EventLevel", "Description", "InstanceGroupName")


def _metadata(record: Mapping[str, Any], path: str) -> tuple[str, str]:
    """Return FailureMessage and NodeLogicalId of the metadata's one object, whichever kind it is; empty without."""
    inner = record.get("EventDetails")
    metadata = inner.get("EventMetadata") if type(inner) is dict else None
    if type(metadata) is not dict:
        return "", ""
    kind, entry = next(((kind, entry) for kind, entry in metadata.items() if type(entry) is dict), ("", {}))
    place = f"{path}.EventDetails.EventMetadata.{kind}"
    fields.check_text(kind, f"{path}.EventDetails.EventMetadata")
    failure = fields.plain_text_of(entry, "FailureMessage", f"{place}.FailureMessage", required=False)
    logical_id = fields.text_of(entry, "NodeLogicalId", f"{place}.NodeLogicalId", required=False)
    return failure, logical_id if _LOGICAL_ID.fullmatch(logical_id) else ""


def _meaning(record: _Record) -> _Meaning | None:
    """Return what a record means; None for one that nobody has a name for."""
    description = record.texts["Description"]
    if record.texts["EventLevel"] == "Error":
        for beginning, meaning in _BY_MESSAGE.items():
            if record.failure.startswith(beginning):
                return meaning
    if _NOISE.match(description):
        return _Meaning()
    return next((meaning for pattern, meaning in _BY_DESCRIPTION if pattern.match(description)), None)


def _progress_fact(record: _Record, code: str, envelope_id: str, *, is_drill: bool) -> NodeFact:
    return NodeFact(
        kind=FactKind.PROGRESS,
        source=SOURCE,
        instance_id=record.texts["InstanceId"],
        logical_id=record.logical_id,
        cluster_arn=record.texts["ClusterArn"],
        code=code,
        observed_at=record.at,
        envelope_id=envelope_id,
        detail=_words(record),
        is_drill=is_drill,
        # The API's own id of the event, whatever envelopes it comes in.
        occurrence=record.event_id,
    )


def _group_fact(record: _Record, kind: GroupFactKind, fault_key: str, envelope_id: str, *, is_drill: bool) -> GroupFact:
    return GroupFact(
        kind=kind,
        source=SOURCE,
        cluster_arn=record.texts["ClusterArn"],
        instance_group=fields.quoted(record.texts["InstanceGroupName"]),
        fault_key=fault_key,
        instance_id=record.texts["InstanceId"],
        observed_at=record.at,
        detail=_words(record),
        envelope_id=envelope_id,
        is_drill=is_drill,
    )


def _unnamed_fact(record: _Record, envelope_id: str, *, is_drill: bool) -> Fact:
    """An error without a name: a low incident of the machine, or a note on the group."""
    if not record.texts["InstanceId"]:
        return _group_fact(record, GroupFactKind.OTHER_ERROR, "", envelope_id, is_drill=is_drill)
    fact = _progress_fact(record, "", envelope_id, is_drill=is_drill)
    return fact.but(kind=FactKind.SICKENED, fault_key=UNKNOWN_FAULT, code="other")


def _words(record: _Record) -> str:
    return fields.quoted(" ".join(text for text in (record.texts["Description"], record.failure) if text))
