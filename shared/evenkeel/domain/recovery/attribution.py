"""Which machine a fault that was seen in a job is laid on."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.values import Instant, Value

LOOK_BACK = timedelta(minutes=10)
"""Source: a job's failure is attributed to what its nodes showed from ten minutes before it."""
LOOK_AHEAD = timedelta(minutes=5)
"""… until five minutes after: some faults show in the job first."""


class AttributionFacts(Value):
    """All that the blame rests on."""

    machines: tuple[str, ...]
    """Of the job's attempt, by rank."""
    faulted_at: dict[str, Instant] = {}
    """The last sick signal of each of them that had any."""
    rank: int | None = None
    """The rank that the detector names."""
    at: Instant
    """When the fault was seen."""


class Attribution(Value):
    """The machine that a job's fault is laid on, and why that one."""

    instance_id: str
    reason: str
    alternatives: tuple[Alternative, ...] = ()


def facts_of(attempt: Attempt, rank: int | None, lately: Mapping[str, Incident], at: datetime) -> AttributionFacts:
    """Return the facts of a fault seen in a job.

    Args:
        attempt: The job's current attempt.
        rank: The rank that the detector names.
        lately: The last incident of each of its machines that had one, by life.
        at: When the fault was seen.
    """
    faulty = {life.instance_id: lately[life.key] for life in attempt.nodes if life.key in lately}
    return AttributionFacts(
        machines=tuple(life.instance_id for life in attempt.nodes),
        faulted_at={
            machine: incident.last_signal_at or incident.first_signal_at for machine, incident in faulty.items()
        },
        rank=rank,
        at=at,
    )


def attribute_fault(facts: AttributionFacts) -> Attribution | None:
    """Return the machine that a fault seen in a job is laid on; None where there is none.

    A hang and a timeout in a collective are consequences as often as not. So a machine that was sick lately takes the
    fault before the rank that reports it; only where none was, it is the named rank's, else rank 0's, and then the
    fault's own ladder begins with the job.
    """
    place = facts.rank if facts.rank is not None else 0
    named = facts.machines[place] if place < len(facts.machines) else ""
    faulty = [
        (at, machine)
        for machine, at in facts.faulted_at.items()
        if machine in facts.machines and facts.at - LOOK_BACK <= at <= facts.at + LOOK_AHEAD
    ]
    if faulty:
        first_at, machine = min(faulty)
        others = (Alternative(option=named, why_not="the fault that its rank reports may be a consequence"),)
        reason = f"Node {machine} showed a fault of its own at {first_at:%H:%M:%SZ}."
        return Attribution(
            instance_id=machine, reason=reason, alternatives=others if named not in ("", machine) else ()
        )
    if not named:
        return None
    whose = f"rank {place}" if facts.rank is not None else "rank 0, which stands for all ranks,"
    return Attribution(instance_id=named, reason=f"No node of the job had a fault, so {whose} is blamed.")
