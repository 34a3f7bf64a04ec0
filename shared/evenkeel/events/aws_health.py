"""aws.health / AWS Health Event: planned work on machines, and trouble under them. One event names many machines.

Source: the AWS Health guide, "Reference: AWS Health events Amazon EventBridge schema". Delivery is best effort, a
backup region may send a second copy, and each page comes as an event of its own and is acted on at once.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from evenkeel.domain.health.groups import GroupFact, GroupFactKind
from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.domain.nodes import INSTANCE_ID
from evenkeel.events import fields
from evenkeel.events.outcomes import BadEvent, Fact, Ignored, ParsedEvent, Unknown

DETAIL_TYPE = "AWS Health Event"
SOURCE = "health.event"

_FAULTS = {
    "INSTANCE_RETIREMENT": "health:instance_retirement",
    "INSTANCE_REBOOT_MAINTENANCE": "health:instance_reboot",
    "SYSTEM_REBOOT_MAINTENANCE": "health:instance_reboot",
    "NETWORK_MAINTENANCE": "health:network_or_power",
    "POWER_MAINTENANCE": "health:network_or_power",
    "INSTANCE_STORE_DRIVE": "health:drive_degraded",
    "ULTRASERVER": "health:ultraserver_maintenance",
}
"""By a part of the event type code."""
_STATUSES = ("open", "closed", "upcoming")
_UNAFFECTED_STATUSES = ("RESOLVED", "UNIMPAIRED")
"""What an entity is that the event no longer concerns. Any other status, a new one too, is taken as concerned."""

_ENTITY = re.compile(r"(?:arn:[^:]{1,20}:ec2:[^:]{0,30}:[0-9]{0,12}:instance/)?(?P<id>i-[0-9a-f]{8,17})", re.ASCII)
_TIME = re.compile(
    r"[A-Za-z]{3}, (?P<day>\d{1,2}) (?P<month>[A-Z][a-z]{2}) (?P<year>\d{4}) (?P<clock>\d\d:\d\d:\d\d) GMT", re.ASCII
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class _HealthEvent(NamedTuple):
    arn: str
    account: str
    type_code: str
    fault_key: str
    is_over: bool
    """The plan was withdrawn, or the trouble is past."""
    starts_at: datetime | None
    updated_at: datetime
    envelope_id: str
    is_drill: bool


def parse(envelope: fields.Envelope) -> ParsedEvent | Ignored | Unknown:
    """Read one page of an event.

    Raises:
        BadEvent: at the first fault.
    """
    detail = envelope.detail
    type_code = fields.plain_text_of(detail, "eventTypeCode", "detail.eventTypeCode")
    scope = fields.plain_text_of(detail, "eventScopeCode", "detail.eventScopeCode", required=False)
    if scope == "PUBLIC":
        return Ignored("a public event that names no instance")
    event = _event(envelope, type_code)
    entities = [(value, _is_affected(status, event)) for value, status in _entities(detail)]
    machines = {value: is_concerned for value, is_concerned in entities if INSTANCE_ID.fullmatch(value)}
    if not event.fault_key:
        reason = f"no rule for {type_code[:80]}"
        return Unknown(reason) if machines else Ignored(f"{reason}, and it names no machine")
    facts: list[Fact] = [_node_fact(event, value) for value, is_concerned in machines.items() if is_concerned]
    if event.fault_key == "health:ultraserver_maintenance":
        facts += [
            _group_fact(event, value) for value, is_concerned in entities if is_concerned and value not in machines
        ]
    return ParsedEvent(tuple(facts)) if facts else Ignored(f"{type_code[:80]} concerns no machine")


def _event(envelope: fields.Envelope, type_code: str) -> _HealthEvent:
    detail = envelope.detail
    arn = fields.plain_text_of(detail, "eventArn", "detail.eventArn")
    status = fields.plain_text_of(detail, "statusCode", "detail.statusCode")
    category = fields.plain_text_of(detail, "eventTypeCategory", "detail.eventTypeCategory")
    account = fields.plain_text_of(detail, "affectedAccount", "detail.affectedAccount", required=False)
    if status not in _STATUSES:
        raise BadEvent("EVENT_UNKNOWN_STATUS", f"detail.statusCode: {status[:40]!r} is not {' or '.join(_STATUSES)}")
    envelope_id, at = envelope.identity()
    return _HealthEvent(
        arn=arn,
        account=account,
        type_code=type_code,
        fault_key=next((key for part, key in _FAULTS.items() if part in type_code), ""),
        is_over=status == "closed" or type_code.endswith("_COMPLETED"),
        # The start of trouble lies behind; only planned work has a time at which the machine goes.
        starts_at=_time(detail, "startTime") if category == "scheduledChange" else None,
        updated_at=_time(detail, "lastUpdatedTime") or at,
        envelope_id=envelope_id,
        is_drill=envelope.is_drill,
    )


def _entities(detail: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield each affected entity's id and status, an instance's ARN read as its id."""
    for path, entity in fields.list_of(detail, "affectedEntities", "detail.affectedEntities"):
        value = fields.plain_text_of(entity, "entityValue", f"{path}.entityValue")
        match = _ENTITY.fullmatch(value)
        yield match["id"] if match else value, fields.text_of(entity, "status", f"{path}.status", required=False)


def _is_affected(status: str, event: _HealthEvent) -> bool:
    # The end of the whole is told of every machine, whatever its own status says.
    return event.is_over or status not in _UNAFFECTED_STATUSES


def _node_fact(event: _HealthEvent, instance_id: str) -> NodeFact:
    return NodeFact(
        kind=FactKind.RECOVERED if event.is_over else FactKind.SICKENED,
        source=SOURCE,
        instance_id=instance_id,
        # A withdrawal is of this one plan: it does not speak for other faults of the machine.
        fault_key=event.fault_key,
        code=fields.quoted(event.type_code)[:80],
        deadline_at=None if event.is_over else event.starts_at,
        observed_at=event.updated_at,
        envelope_id=event.envelope_id,
        detail=_words(event),
        is_drill=event.is_drill,
        occurrence=_occurrence(event),
    )


def _group_fact(event: _HealthEvent, entity: str) -> GroupFact:
    return GroupFact(
        kind=GroupFactKind.RACK_MAINTENANCE,
        source=SOURCE,
        fault_key="" if event.is_over else event.fault_key,
        code=fields.quoted(entity)[:80],
        deadline_at=None if event.is_over else event.starts_at,
        observed_at=event.updated_at,
        detail=_words(event),
        envelope_id=event.envelope_id,
        is_drill=event.is_drill,
    )


def _occurrence(event: _HealthEvent) -> str:
    """Tell one plan from another. Pages, updates and copies of one plan are one; a new date is a new one.

    The ARN alone will not do: it is not unique over accounts.
    """
    starts = event.starts_at.isoformat() if event.starts_at else ""
    return hashlib.sha256("\n".join((event.arn, event.account, starts)).encode()).hexdigest()[:16]


def _words(event: _HealthEvent) -> str:
    when = f" at {event.starts_at.isoformat()}" if event.starts_at and not event.is_over else ""
    return fields.quoted(f"{event.type_code[:120]}{when}{', withdrawn or over' if event.is_over else ''}.")


def _time(detail: Mapping[str, object], key: str) -> datetime | None:
    """Read `Tue, 3 Nov 2026 08:00:02 GMT`; the weekday is not looked at: AWS's own samples have wrong ones."""
    text = fields.text_of(detail, key, f"detail.{key}", required=False)
    if not text:
        return None
    match = _TIME.fullmatch(text)
    if match is None or match["month"] not in _MONTHS:
        raise BadEvent("EVENT_BAD_TIME", f"detail.{key}: {text[:40]!r} is not a time")
    month = _MONTHS.index(match["month"]) + 1
    try:
        day = datetime(int(match["year"]), month, int(match["day"]), tzinfo=UTC)
        hours, minutes, seconds = (int(part) for part in match["clock"].split(":"))
        return fields.plausible(day.replace(hour=hours, minute=minutes, second=seconds), f"detail.{key}")
    except ValueError:
        raise BadEvent("EVENT_BAD_TIME", f"detail.{key}: {text[:40]!r} is not a date") from None
