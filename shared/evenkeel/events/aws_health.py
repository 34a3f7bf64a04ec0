"""aws.health / AWS Health Event: planned work on instances, and faults under them.

Source: the AWS Health guide, "Reference: AWS Health events Amazon EventBridge schema". Delivery is best effort, a
backup region may send a second copy, and each page comes as an event of its own. An event names many instances.
"""

import hashlib
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel

from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.domain.nodes import INSTANCE_ID
from evenkeel.events import fields
from evenkeel.events.fields import BadField, EventEnvelope, EventModel, PlainText
from evenkeel.events.outcomes import Fact, Ignored, ParsedEvent, Unknown

DETAIL_TYPE = "AWS Health Event"
MAX_ENTITIES = 10
"""Machines of one event that one invocation ingests. An event with more is split."""
SOURCE = "health.event"

_LONGEST_ID = 58
"""Characters of an event's id that the ids of its smaller events keep. An id has at most 64."""
_FAULTS = {
    "INSTANCE_RETIREMENT": "health:instance_retirement",
    "INSTANCE_REBOOT_MAINTENANCE": "health:instance_reboot",
    "SYSTEM_REBOOT_MAINTENANCE": "health:instance_reboot",
    "NETWORK_MAINTENANCE": "health:network_or_power",
    "POWER_MAINTENANCE": "health:network_or_power",
    "INSTANCE_STORE_DRIVE": "health:drive_degraded",
    "ULTRASERVER": "health:ultraserver_maintenance",
}
"""Fault keys, by a part of the event type code."""
_UNAFFECTED_STATUSES = ("RESOLVED", "UNIMPAIRED")
"""Status of an entity that the event no longer affects. Any other status, a new one too, means affected."""

_INSTANCE_ARN = re.compile(r"arn:[^:]{1,20}:ec2:[^:]{0,30}:[0-9]{0,12}:instance/(?P<id>i-[0-9a-f]{8,17})", re.ASCII)
_TIME = re.compile(
    r"[A-Za-z]{3}, (?P<day>\d{1,2}) (?P<month>[A-Z][a-z]{2}) (?P<year>\d{4}) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) GMT",
    re.ASCII,
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def _instance_of_arn(entity: str) -> str:
    match = _INSTANCE_ARN.fullmatch(entity)
    return match["id"] if match else entity


def _http_date(value: object) -> datetime | None:
    """Read `Tue, 3 Nov 2026 08:00:02 GMT`. The weekday is not read: AWS's own samples have wrong values."""
    text = fields.require_text(value)
    if not text:
        return None
    match = _TIME.fullmatch(text)
    if match is None or match["month"] not in _MONTHS:
        raise BadField("EVENT_BAD_TIME", f"{text[:40]!r} is not a time")
    month = _MONTHS.index(match["month"]) + 1
    day, year, hour, minute, second = (int(match[part]) for part in ("day", "year", "hour", "minute", "second"))
    try:
        instant = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        raise BadField("EVENT_BAD_TIME", f"{text[:40]!r} is not a date") from None
    return fields.check_time(instant)


_HttpDate = Annotated[datetime | None, BeforeValidator(_http_date)]


class _Entity(EventModel):
    """An entry of `detail.affectedEntities`."""

    model_config = ConfigDict(alias_generator=to_camel)

    entity_value: Annotated[PlainText, AfterValidator(_instance_of_arn)]
    """The ARN of an instance becomes its id."""
    status: str = ""


class _Detail(EventModel):
    """`detail` of aws.health / AWS Health Event."""

    model_config = ConfigDict(alias_generator=to_camel)

    event_type_code: PlainText
    event_scope_code: PlainText = ""
    event_arn: PlainText
    status_code: Literal["open", "closed", "upcoming"]
    event_type_category: PlainText
    affected_account: PlainText = ""
    start_time: _HttpDate = None
    last_updated_time: _HttpDate = None
    affected_entities: list[_Entity] = []

    @property
    def fault_key(self) -> str:
        """Key in the fault catalogue; empty for a type code without a rule."""
        return next((key for part, key in _FAULTS.items() if part in self.event_type_code), "")

    @property
    def is_over(self) -> bool:
        """Whether the plan was withdrawn, or the fault has ended."""
        return self.status_code == "closed" or self.event_type_code.endswith("_COMPLETED")

    @property
    def starts_at(self) -> datetime | None:
        """Start of planned work. A fault has none: it has started already."""
        return self.start_time if self.event_type_category == "scheduledChange" else None

    @property
    def occurrence(self) -> str:
        """Identity of one scheduled event. Its pages, updates and copies have the same one; a new date is a new event.

        The ARN alone is not unique over accounts.
        """
        starts = self.starts_at.isoformat() if self.starts_at else ""
        return hashlib.sha256("\n".join((self.event_arn, self.affected_account, starts)).encode()).hexdigest()[:16]


def parse(document: dict[str, Any]) -> ParsedEvent | Ignored | Unknown:
    """Read one page of an event.

    Raises:
        ValidationError: the event does not fit its model.
    """
    event = EventEnvelope[_Detail].model_validate(document)
    detail = event.detail
    if detail.event_scope_code == "PUBLIC":
        return Ignored("a public event that names no instance")
    is_affected = {entity.entity_value: _is_affected(entity, detail) for entity in detail.affected_entities}
    instances = [value for value in is_affected if INSTANCE_ID.fullmatch(value)]
    type_code, fault_key = detail.event_type_code[:80], detail.fault_key
    if not fault_key:
        reason = f"no rule for {type_code}"
        return Unknown(reason) if instances else Ignored(f"{reason}, and it names no instance")
    facts: list[Fact] = [_node_fact(event, value) for value in instances if is_affected[value]]
    if fault_key == "health:ultraserver_maintenance":
        racks = (entity.entity_value for entity in detail.affected_entities if _is_affected(entity, detail))
        facts += [_group_fact(event, value) for value in racks if value not in instances]
    return ParsedEvent(tuple(facts), _split_event(document)) if facts else Ignored(f"{type_code} affects no instance")


def _split_event(document: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Split an event with many machines into events with fewer machines; empty if it names few.

    AWS splits long events in the same way: each page is an event of its own.
    """
    entities = document["detail"].get("affectedEntities", [])
    if len(entities) <= MAX_ENTITIES:
        return ()
    return tuple(
        {
            **document,
            "id": f"{document['id'][:_LONGEST_ID]}-{start // MAX_ENTITIES + 1}",
            "resources": [],
            "detail": {**document["detail"], "affectedEntities": entities[start : start + MAX_ENTITIES]},
        }
        for start in range(0, len(entities), MAX_ENTITIES)
    )


def _is_affected(entity: _Entity, detail: _Detail) -> bool:
    # The end of the whole event concerns every instance, whatever its own status is.
    return detail.is_over or entity.status not in _UNAFFECTED_STATUSES


def _node_fact(event: EventEnvelope[_Detail], instance_id: str) -> NodeFact:
    detail = event.detail
    return NodeFact(
        kind=FactKind.RECOVERED if detail.is_over else FactKind.FAULT,
        source=SOURCE,
        instance_id=instance_id,
        # A withdrawal ends this one plan. It says nothing about other faults of the instance.
        fault_key=detail.fault_key,
        code=fields.one_line(detail.event_type_code)[:80],
        deadline_at=None if detail.is_over else detail.starts_at,
        observed_at=detail.last_updated_time or event.time,
        envelope_id=event.id,
        detail=_detail_text(detail),
        is_drill=event.is_drill,
        occurrence=detail.occurrence,
    )


def _group_fact(event: EventEnvelope[_Detail], entity: str) -> GroupFact:
    detail = event.detail
    return GroupFact(
        kind=GroupFactKind.RACK_MAINTENANCE,
        source=SOURCE,
        fault_key="" if detail.is_over else detail.fault_key,
        code=fields.one_line(entity)[:80],
        deadline_at=None if detail.is_over else detail.starts_at,
        observed_at=detail.last_updated_time or event.time,
        detail=_detail_text(detail),
        envelope_id=event.id,
        is_drill=event.is_drill,
    )


def _detail_text(detail: _Detail) -> str:
    when = f" at {detail.starts_at.isoformat()}" if detail.starts_at and not detail.is_over else ""
    return fields.one_line(f"{detail.event_type_code[:120]}{when}{', withdrawn or over' if detail.is_over else ''}.")
