"""aws.ec2: notices that a machine, or the reservation under it, is about to go.

Source: the EC2 guides on Spot interruptions, rebalance recommendations, instance state changes, interruptible capacity
reservations and Capacity Blocks. `resources` is not read: it holds bare ids, ARNs, and ARNs with a zone for a region.
HyperPod's machines live in another account: nothing here is ever about them.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta

from evenkeel.domain.health.groups import GroupFact, GroupFactKind
from evenkeel.domain.health.incidents import FactKind, NodeFact
from evenkeel.events import fields
from evenkeel.events.outcomes import BadEvent, Ignored, ParsedEvent

SOURCE = "ec2.notice"

SPOT_NOTICE = timedelta(minutes=2)
"""A Spot instance goes this long after its warning; hibernation begins at once."""
CAPACITY_BLOCK_ENDS_EARLY = timedelta(minutes=30)
"""Instances of a Capacity Block begin to go this long before its end; its warning comes ten minutes before that."""
_TERMINATING_STATES = ("stopping", "stopped", "shutting-down", "terminated")
_RUNNING_STATES = ("pending", "running")
_RESERVATION_ID = re.compile(r"cr-[0-9a-f]{8,17}", re.ASCII)


def _spot(envelope: fields.Envelope) -> ParsedEvent:
    instance_id, action = _instance(envelope), _action(envelope)
    _, at = envelope.identity()
    goes_at = at if action == "hibernate" else at + SPOT_NOTICE
    return _node_fact_event(envelope, instance_id, "ec2:spot_interruption", action, goes_at)


def _rebalance(envelope: fields.Envelope) -> ParsedEvent:
    return _node_fact_event(envelope, _instance(envelope), "ec2:rebalance_recommendation", "rebalance", None)


def _state(envelope: fields.Envelope) -> ParsedEvent | Ignored:
    instance_id, state = _instance(envelope), fields.text_of(envelope.detail, "state", "detail.state")
    if state in _RUNNING_STATES:
        return Ignored(f"the instance is {state}")
    if state not in _TERMINATING_STATES:
        raise BadEvent("EVENT_UNKNOWN_STATUS", f"detail.state: {state[:40]!r} is not a state of an instance")
    _, at = envelope.identity()
    # An instance ends once: the two states of its end are one fact, however far apart they are told.
    occurrence = "ended" if state in ("shutting-down", "terminated") else ""
    return _node_fact_event(envelope, instance_id, "ec2:state_stopping", state, at, occurrence=occurrence)


def _reservation(envelope: fields.Envelope) -> ParsedEvent:
    instance_id, action = _instance(envelope), _action(envelope)
    path = "detail.instance-termination-time"
    goes_at = fields.time_of(fields.text_of(envelope.detail, "instance-termination-time", path), path)
    return _node_fact_event(envelope, instance_id, "ec2:capacity_reservation_interruption", action, goes_at)


def _block(envelope: fields.Envelope) -> ParsedEvent:
    """The end of a whole reservation. Which machines hold it, their nodes' labels tell."""
    reservation = fields.text_of(envelope.detail, "capacity-reservation-id", "detail.capacity-reservation-id")
    if not _RESERVATION_ID.fullmatch(reservation):
        raise BadEvent("EVENT_BAD_ID", f"detail.capacity-reservation-id: {reservation[:40]!r} is not a reservation")
    end = fields.time_of(fields.text_of(envelope.detail, "end-date", "detail.end-date"), "detail.end-date")
    envelope_id, at = envelope.identity()
    return ParsedEvent(
        (
            GroupFact(
                kind=GroupFactKind.RESERVATION_EXPIRING,
                source=SOURCE,
                fault_key="ec2:capacity_block_expiring",
                code=reservation,
                deadline_at=max(at, end - CAPACITY_BLOCK_ENDS_EARLY),
                observed_at=at,
                detail=f"{reservation} ends at {end.isoformat()}.",
                envelope_id=envelope_id,
                is_drill=envelope.is_drill,
            ),
        )
    )


PARSERS = {
    "EC2 Spot Instance Interruption Warning": _spot,
    "EC2 Instance Rebalance Recommendation": _rebalance,
    "EC2 Instance State-change Notification": _state,
    "EC2 Capacity Reservation Instance Interruption Warning": _reservation,
    # AWS prints both.
    "Capacity Block Expiration Warning": _block,
    "Capacity Block Reservation Expiration Warning": _block,
}


def _instance(envelope: fields.Envelope) -> str:
    instance_id = fields.text_of(envelope.detail, "instance-id", "detail.instance-id")
    fields.check_instance_id(instance_id, "detail.instance-id")
    return instance_id


def _action(envelope: fields.Envelope) -> str:
    action = fields.text_of(envelope.detail, "instance-action", "detail.instance-action")
    if action not in ("terminate", "stop", "hibernate"):
        known = "terminate, stop or hibernate"
        raise BadEvent("EVENT_UNKNOWN_STATUS", f"detail.instance-action: {action[:40]!r} is not {known}")
    return action


def _node_fact_event(
    envelope: fields.Envelope,
    instance_id: str,
    fault_key: str,
    code: str,
    goes_at: datetime | None,
    *,
    occurrence: str = "",
) -> ParsedEvent:
    envelope_id, at = envelope.identity()
    fact = NodeFact(
        kind=FactKind.SICKENED,
        source=SOURCE,
        instance_id=instance_id,
        fault_key=fault_key,
        code=code,
        deadline_at=goes_at,
        observed_at=at,
        envelope_id=envelope_id,
        detail=_MESSAGES[fault_key],
        is_drill=envelope.is_drill,
        occurrence=occurrence,
    )
    return ParsedEvent((fact,))


_MESSAGES: Mapping[str, str] = {
    "ec2:spot_interruption": "EC2 takes this Spot instance back.",
    "ec2:rebalance_recommendation": "EC2 sees a raised risk that it takes this Spot instance back.",
    "ec2:state_stopping": "EC2 stops or ends this instance.",
    "ec2:capacity_reservation_interruption": "EC2 takes this instance back with its capacity reservation.",
}
