"""Attribute a fault that showed in a job to one of the job's nodes."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.values import Instant, Value

LOOK_BACK = timedelta(minutes=10)
"""A node fault may be the cause of a job's fault that shows up to this much later."""
LOOK_AHEAD = timedelta(minutes=5)
"""A node fault may be the cause of a job's fault that shows up to this much earlier: some show in the job first."""


class AttributionFacts(Value):
    """Facts for an attribution."""

    instance_ids: tuple[str, ...]
    """Instance ids of the attempt's nodes, in the order of ranks."""
    faulted_at: dict[str, Instant] = {}
    """Last fault signal of each node that had one, by instance id."""
    rank: int | None = None
    """Rank that the detector names; None if it names none."""
    at: Instant
    """Time at which the job's fault showed."""


class Attribution(Value):
    """The node that a job's fault is attributed to, with the reason."""

    instance_id: str
    reason: str
    alternatives: tuple[Alternative, ...] = ()


def attribution_facts(
    attempt: Attempt, rank: int | None, last_incidents: Mapping[str, Incident], at: datetime
) -> AttributionFacts:
    """Return the facts of a fault that showed in a job.

    Args:
        attempt: The job's current attempt.
        rank: Rank that the detector names; None if it names none.
        last_incidents: The last incident of each of its nodes that had one, by the key of the node life.
        at: Time at which the fault showed.
    """
    faulty = {life.instance_id: last_incidents[life.key] for life in attempt.nodes if life.key in last_incidents}
    return AttributionFacts(
        instance_ids=tuple(life.instance_id for life in attempt.nodes),
        faulted_at={instance_id: incident.last_fault_at for instance_id, incident in faulty.items()},
        rank=rank,
        at=at,
    )


def attribute_fault(facts: AttributionFacts) -> Attribution | None:
    """Return the node that a job's fault is attributed to; None if the attempt has no such node.

    A hang or a timeout in a collective is often a consequence of a fault on another node. So a node with a recent fault
    of its own is preferred to the reporting rank. If no node has one, the fault belongs to the named rank, or to rank 0
    if no rank is named. The fault's own ladder then starts with the job.
    """
    rank = facts.rank if facts.rank is not None else 0
    reported_instance_id = facts.instance_ids[rank] if rank < len(facts.instance_ids) else ""
    recent_faults = [
        (at, instance_id)
        for instance_id, at in facts.faulted_at.items()
        if instance_id in facts.instance_ids and facts.at - LOOK_BACK <= at <= facts.at + LOOK_AHEAD
    ]
    if recent_faults:
        first_at, instance_id = min(recent_faults)
        alternatives = (
            Alternative(option=reported_instance_id, why_not="the fault that its rank reports may be a consequence"),
        )
        reason = f"Node {instance_id} showed a fault of its own at {first_at:%H:%M:%SZ}."
        return Attribution(
            instance_id=instance_id,
            reason=reason,
            alternatives=alternatives if reported_instance_id not in ("", instance_id) else (),
        )
    if not reported_instance_id:
        return None
    blamed_rank = f"rank {rank}" if facts.rank is not None else "rank 0, because the report names no rank"
    return Attribution(
        instance_id=reported_instance_id,
        reason=f"No node of the job had a fault, so the fault is attributed to {blamed_rank}.",
    )
