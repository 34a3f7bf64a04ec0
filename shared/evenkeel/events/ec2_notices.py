"""aws.ec2: notices that EC2 will soon reclaim an instance or a capacity reservation.

Source: the EC2 guides on Spot interruptions, rebalance recommendations, instance state changes, interruptible capacity
reservations and Capacity Blocks. `resources` is not read: it holds bare ids, ARNs, and ARNs with a zone for a region.
HyperPod's instances live in another account: no EC2 event concerns them.
"""

import re
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict

from evenkeel.domain.health.group_facts import GroupFact, GroupFactKind
from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.events.fields import EventEnvelope, EventModel, InstanceId, UtcTime, check_id
from evenkeel.events.outcomes import Ignored, ParsedEvent

SOURCE = "ec2.notice"

SPOT_NOTICE = timedelta(minutes=2)
"""EC2 ends a Spot instance this long after its warning. Hibernation begins at once."""
CAPACITY_BLOCK_ENDS_EARLY = timedelta(minutes=30)
"""EC2 starts to end instances of a Capacity Block this long before its end. The warning comes 10 minutes earlier."""
_RESERVATION_ID = re.compile(r"cr-[0-9a-f]{8,17}", re.ASCII)
_Action: TypeAlias = Literal["terminate", "stop", "hibernate"]


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class _InstanceDetail(EventModel):
    """`detail` of aws.ec2 / EC2 Instance Rebalance Recommendation, and the field that all instance events have."""

    model_config = ConfigDict(alias_generator=_kebab)

    instance_id: InstanceId


class _SpotDetail(_InstanceDetail):
    """`detail` of aws.ec2 / EC2 Spot Instance Interruption Warning."""

    instance_action: _Action


class _StateDetail(_InstanceDetail):
    """`detail` of aws.ec2 / EC2 Instance State-change Notification."""

    state: Literal["pending", "running", "stopping", "stopped", "shutting-down", "terminated"]


class _ReservationDetail(_InstanceDetail):
    """`detail` of aws.ec2 / EC2 Capacity Reservation Instance Interruption Warning."""

    instance_action: _Action
    instance_termination_time: UtcTime


class _BlockDetail(EventModel):
    """`detail` of aws.ec2 / Capacity Block Expiration Warning."""

    model_config = ConfigDict(alias_generator=_kebab)

    capacity_reservation_id: Annotated[str, check_id(_RESERVATION_ID, "a capacity reservation")]
    end_date: UtcTime


def _parse_spot(document: dict[str, Any]) -> ParsedEvent:
    event = EventEnvelope[_SpotDetail].model_validate(document)
    action = event.detail.instance_action
    terminates_at = event.time if action == "hibernate" else event.time + SPOT_NOTICE
    return _event_with_node_fact(event, "ec2:spot_interruption", action, terminates_at)


def _parse_rebalance(document: dict[str, Any]) -> ParsedEvent:
    event = EventEnvelope[_InstanceDetail].model_validate(document)
    return _event_with_node_fact(event, "ec2:rebalance_recommendation", "rebalance", None)


def _parse_state_change(document: dict[str, Any]) -> ParsedEvent | Ignored:
    event = EventEnvelope[_StateDetail].model_validate(document)
    state = event.detail.state
    if state in ("pending", "running"):
        return Ignored(f"the instance is {state}")
    # An instance ends once: the two states of its end are one fact, even if minutes apart.
    occurrence = "ended" if state in ("shutting-down", "terminated") else ""
    return _event_with_node_fact(event, "ec2:state_stopping", state, event.time, occurrence=occurrence)


def _parse_reservation(document: dict[str, Any]) -> ParsedEvent:
    event = EventEnvelope[_ReservationDetail].model_validate(document)
    detail = event.detail
    terminates_at = detail.instance_termination_time
    return _event_with_node_fact(event, "ec2:capacity_reservation_interruption", detail.instance_action, terminates_at)


def _parse_capacity_block(document: dict[str, Any]) -> ParsedEvent:
    """Return the fact that a whole reservation ends. The labels of the nodes show which nodes belong to it."""
    event = EventEnvelope[_BlockDetail].model_validate(document)
    reservation, end = event.detail.capacity_reservation_id, event.detail.end_date
    return ParsedEvent(
        (
            GroupFact(
                kind=GroupFactKind.RESERVATION_EXPIRING,
                source=SOURCE,
                fault_key="ec2:capacity_block_expiring",
                code=reservation,
                deadline_at=max(event.time, end - CAPACITY_BLOCK_ENDS_EARLY),
                observed_at=event.time,
                detail=f"{reservation} ends at {end.isoformat()}.",
                envelope_id=event.id,
                is_drill=event.is_drill,
            ),
        )
    )


PARSERS = {
    "EC2 Spot Instance Interruption Warning": _parse_spot,
    "EC2 Instance Rebalance Recommendation": _parse_rebalance,
    "EC2 Instance State-change Notification": _parse_state_change,
    # The documentation of AWS prints two names for each of the next two.
    "EC2 Capacity Reservation Instance Interruption Warning": _parse_reservation,
    "EC2 Interruptible Capacity Reservation Instance Interruption Warning": _parse_reservation,
    "Capacity Block Expiration Warning": _parse_capacity_block,
    "Capacity Block Reservation Expiration Warning": _parse_capacity_block,
}


def _event_with_node_fact(
    event: EventEnvelope[Any], fault_key: str, code: str, terminates_at: datetime | None, *, occurrence: str = ""
) -> ParsedEvent:
    fact = NodeFact(
        kind=FactKind.FAULT,
        source=SOURCE,
        instance_id=event.detail.instance_id,
        fault_key=fault_key,
        code=code,
        deadline_at=terminates_at,
        observed_at=event.time,
        envelope_id=event.id,
        detail=_MESSAGES[fault_key],
        is_drill=event.is_drill,
        occurrence=occurrence,
    )
    return ParsedEvent((fact,))


_MESSAGES = {
    "ec2:spot_interruption": "EC2 reclaims this Spot instance.",
    "ec2:rebalance_recommendation": "EC2 reports a higher risk that it will reclaim this Spot instance.",
    "ec2:state_stopping": "EC2 stops or ends this instance.",
    "ec2:capacity_reservation_interruption": "EC2 reclaims this instance together with its capacity reservation.",
}
