"""How a hurt job comes back: the option with the least expected loss."""

from datetime import datetime, timedelta

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.health.faults import CheckpointTrust
from evenkeel.domain.policy import JobPolicy
from evenkeel.domain.scheduling.jobs import ResumeOption
from evenkeel.domain.values import Instant, Value


class PoolRoom(Value):
    """What one pool could give this job now."""

    pool: str
    usable: int
    """Nodes free now, or when the hurt attempt has ended: schedulable, of a wanted type, not the sick one."""
    spares: int
    """How many of them only a recovery may take."""


class ResumeFacts(Value):
    """All that the choice rests on."""

    job_id: str
    attempt: int
    nodes: int
    accelerators_per_node: int
    rooms: tuple[PoolRoom, ...]
    fault_key: str
    trust: CheckpointTrust
    first_signal_at: Instant
    sick_life: str
    will_be_replaced: bool
    """The first rung replaces the machine, so this life is not to be seen again."""
    is_repaired: bool
    """Whether anybody repairs the node at all."""


class ResumeDecision(Value):
    """How one job is to come back, and why."""

    option: ResumeOption
    reason: str
    pool: str = ""
    avoid: tuple[str, ...] = ()
    distrust_after: Instant | None = None
    expected_seconds: float
    gpu_hours_lost: float
    alternatives: tuple[Alternative, ...] = ()


def plan_resume(facts: ResumeFacts, policy: JobPolicy) -> ResumeDecision:
    """Choose the way back for one hurt job.

    The loss is the time until it runs again times its accelerators; at equal loss spares are kept.
    """
    gpus = facts.nodes * facts.accelerators_per_node
    soon, late = policy.expected_resume_seconds, policy.expected_resume_seconds + policy.expected_replace_seconds
    free = next((room for room in facts.rooms if room.usable - room.spares >= facts.nodes), None)
    spare = next((room for room in facts.rooms if room.usable >= facts.nodes), None)
    most = max((room.usable for room in facts.rooms), default=0)
    short = f"{facts.nodes} nodes are needed and {most} are free"

    def lost(seconds: float) -> float:
        return round(seconds * gpus / 3600, 3)

    def other(option: ResumeOption, why_not: str, seconds: float | None = None) -> Alternative:
        return Alternative(
            option=option,
            why_not=why_not,
            expected_seconds=seconds,
            gpu_hours_lost=None if seconds is None else lost(seconds),
        )

    waits = other(ResumeOption.WAIT_FOR_REPAIR, f"about {policy.expected_replace_seconds} s longer", late)
    if free is not None:
        option, pool, seconds = ResumeOption.FREE_NODE, free.pool, soon
        reason = f"Free nodes of {free.pool} take it at once."
        why_not = "a free node is as quick and keeps the spare" if free.spares else "no spare is kept"
        others = (other(ResumeOption.SPARE, why_not, soon if free.spares else None), waits)
    elif spare is not None:
        option, pool, seconds = ResumeOption.SPARE, spare.pool, soon
        reason = f"A spare of {spare.pool} takes it at once; no other node is free."
        others = (other(ResumeOption.FREE_NODE, short), waits)
    else:
        option, pool, seconds = ResumeOption.WAIT_FOR_REPAIR, "", late
        hope = "so it waits for the repaired one" if facts.is_repaired else "so it waits for capacity"
        reason = f"{short[0].upper()}{short[1:]}, {hope}."
        others = (other(ResumeOption.FREE_NODE, short), other(ResumeOption.SPARE, short))
    distrust = distrust_after(facts.trust, facts.first_signal_at, policy)
    return ResumeDecision(
        option=option,
        reason=f"{reason} {_trust_said(facts.trust, distrust)}".strip(),
        pool=pool,
        # A life that is rebooted comes back healthy and may be the only room there is: only a replaced one is avoided.
        avoid=(facts.sick_life,) if facts.will_be_replaced else (),
        distrust_after=distrust,
        expected_seconds=seconds,
        gpu_hours_lost=lost(seconds),
        alternatives=others,
    )


def distrust_after(trust: CheckpointTrust, first_signal_at: datetime, policy: JobPolicy) -> datetime | None:
    """Return the time after which checkpoints of the hurt attempt are distrusted; None where all are trusted.

    Where time does not bound the damage the same line is drawn: it is as far as the evidence goes.
    """
    if trust is CheckpointTrust.TRUSTED:
        return None
    return first_signal_at - timedelta(seconds=policy.distrust_guard_seconds)


def _trust_said(trust: CheckpointTrust, distrust: datetime | None) -> str:
    if distrust is None:
        return ""
    when = distrust.strftime("%H:%M:%SZ")
    if trust is CheckpointTrust.NONE:
        return f"This fault may have corrupted more than time can tell; checkpoints begun after {when} are not used."
    return f"Checkpoints begun after {when} are not used."
