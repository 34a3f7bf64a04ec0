"""Decide whether the replicas on a rented node move to committed nodes.

Evenkeel ends the rental. Karpenter then drains the node within the disruption budgets of its pods, and the Deployment
creates each replica again on a committed node.
"""

from datetime import timedelta
from enum import StrEnum

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.economics import money
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Instant, Value


class CommittedSlots(Value):
    """The replicas that still fit on a committed node."""

    node_name: str
    pool: str
    replicas: int


class ServingReturnFacts(Value):
    """All facts of the decision about one rental. The recorded decision replays from these facts alone."""

    rental: str
    pool: str
    """Pool of the rented node."""
    micros_per_node_hour: int
    replicas: int
    """Replicas on the rented node."""
    replicas_elsewhere: int
    """Ready replicas of the Deployment on other nodes. They serve while these replicas move."""
    slots: tuple[CommittedSlots, ...]
    """Committed nodes that can run a replica now."""
    slots_promised: int = 0
    """Slots for the replicas that still leave other rented nodes."""
    ready_since: Instant
    min_seconds: int
    """The node stays at least this long, so that a short gap in the use of committed nodes moves no replica."""
    now: Instant


class ServingReturnAction(StrEnum):
    """Action for a rented node that runs replicas."""

    RETURN = "RETURN"
    """The replicas move to committed nodes, and the node is released."""
    KEEP = "KEEP"


class ServingReturnDecision(Value):
    """Whether the replicas move, and why. Replays from `facts`."""

    action: ServingReturnAction
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    facts: ServingReturnFacts


def decide_serving_return(facts: ServingReturnFacts) -> ServingReturnDecision:
    """Move the replicas if committed nodes can run all of them now, other replicas serve, and the node is not new."""
    free_slots = max(0, sum(slots.replicas for slots in facts.slots) - facts.slots_promised)
    shown = count_of(facts.replicas, "replica")
    if not facts.replicas_elsewhere:
        reason = "No replica is ready on another node, so a move would interrupt the service."
        return ServingReturnDecision(action=ServingReturnAction.KEEP, reason=reason, facts=facts)
    if free_slots < facts.replicas:
        reason = f"Committed nodes can run {free_slots} of the {shown} on the rented node."
        return ServingReturnDecision(action=ServingReturnAction.KEEP, reason=reason, facts=facts)
    until = facts.ready_since + timedelta(seconds=facts.min_seconds)
    if facts.now < until:
        reason = f"The rented node stays until {until:%d %b %H:%M:%S} UTC, so that replicas do not move too often."
        return ServingReturnDecision(action=ServingReturnAction.KEEP, reason=reason, facts=facts)
    pools = ", ".join(sorted({slots.pool for slots in facts.slots}))
    rate = money.format_usd(facts.micros_per_node_hour * 3600)
    stay_alternative = Alternative(
        option="stay on the rented node",
        why_not=f"The node costs {rate} an hour, and committed nodes are free.",
        usd=round(facts.micros_per_node_hour / money.MICROS_PER_USD, 2),
    )
    return ServingReturnDecision(
        action=ServingReturnAction.RETURN,
        reason=f"{pools} has room for the {shown} on the rented node, which costs {rate} an hour.",
        alternatives=(stay_alternative,),
        facts=facts,
    )
