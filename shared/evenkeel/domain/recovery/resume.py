"""How a hurt job comes back: the option with the least expected loss."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.economics.forecasts import Forecast
from evenkeel.domain.health.faults import CheckpointTrust
from evenkeel.domain.policy import JobPolicy
from evenkeel.domain.scheduling.jobs import Demand, ResumeOption
from evenkeel.domain.values import Instant, Value

ORDER = (
    ResumeOption.FREE_NODE,
    ResumeOption.SPARE,
    ResumeOption.SHRINK,
    ResumeOption.WAIT_FOR_REPAIR,
    ResumeOption.PREEMPT,
    ResumeOption.BURST,
)
"""Which of two equal losses is taken: what takes least from others comes first."""


class PoolRoom(Value):
    """What one pool could give this job now."""

    pool: str
    usable: int
    """Nodes free now, or when the hurt attempt has ended: schedulable, of a wanted type, not the sick one."""
    spares: int
    """How many of them only a recovery may take."""


class Offer(Value):
    """What somebody else could give: fewer nodes, rented ones, another job's."""

    option: ResumeOption
    why_not: str = ""
    """Why it is not to be had here; empty where it is."""
    pool: str = ""
    wait_seconds: float = 0
    """Until its nodes are there."""
    gpu_hours_taken: float = 0
    """What the option costs somebody else's job."""
    usd: float = 0
    """What it costs beyond the accelerators' own time."""


class Delays(Value):
    """How long each part of a way back is expected to take."""

    repair: Forecast
    """Of the sick machine, by its first rung."""
    capacity: Forecast
    """Until the queue finds room by itself."""
    launch: Forecast
    """From admission until every pod runs."""
    restore: Forecast
    """From there until it trains again."""


class ResumeFacts(Value):
    """All that the choice rests on."""

    job_id: str
    attempt: int
    nodes: int
    accelerators_per_node: int
    rooms: tuple[PoolRoom, ...]
    offers: tuple[Offer, ...]
    delays: Delays
    lost_work_seconds: float
    """Work done since the last checkpoint that will count, as `lost_work` estimates it."""
    usd_per_accelerator_hour: float
    fault_key: str
    fault_class: str
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
    demand: Demand = Demand.CONVENTION
    expected_seconds: float
    gpu_hours_lost: float
    usd: float
    alternatives: tuple[Alternative, ...] = ()


class _Way(Value):
    """One option as it was weighed."""

    option: ResumeOption
    why_not: str = ""
    """Why it cannot be taken; empty where it can."""
    why: str = ""
    pool: str = ""
    seconds: float = 0
    gpu_hours: float = 0
    usd: float = 0


def plan_resume(facts: ResumeFacts, policy: JobPolicy) -> ResumeDecision:
    """Choose the way back for one hurt job: the least expected loss, in dollars; at equal loss the first in `ORDER`.

    seconds = wait for nodes + launch + restore + lost work
    loss    = (seconds x accelerators / 3600 + what others lose) x price + what the option itself costs
    """
    ways = sorted(_ways(facts), key=lambda way: ORDER.index(way.option))
    # Waiting is always to be had, so there is always an answer.
    best = min((way for way in ways if not way.why_not), key=lambda way: (way.usd, ORDER.index(way.option)))
    distrust = distrust_after(facts.trust, facts.first_signal_at, policy)
    return ResumeDecision(
        option=best.option,
        reason=f"{best.why} {_trust_said(facts.trust, distrust)}".strip(),
        pool=best.pool,
        # A life that is rebooted comes back healthy and may be the only room there is: only a replaced one is avoided.
        avoid=(facts.sick_life,) if facts.will_be_replaced else (),
        distrust_after=distrust,
        demand=demand_after(facts.trust, facts.fault_class, policy),
        expected_seconds=best.seconds,
        gpu_hours_lost=best.gpu_hours,
        usd=best.usd,
        alternatives=tuple(_passed_over(way, best) for way in ways if way is not best),
    )


def _ways(facts: ResumeFacts) -> Iterator[_Way]:
    most = max((room.usable for room in facts.rooms), default=0)
    need = "1 node is" if facts.nodes == 1 else f"{facts.nodes} nodes are"
    short = f"{need} needed and {most} {'is' if most == 1 else 'are'} free"
    free = next((room for room in facts.rooms if room.usable - room.spares >= facts.nodes), None)
    spare = next((room for room in facts.rooms if room.usable >= facts.nodes and room.spares), None)
    if free is None:
        why_not = f"{short} without the spares" if spare else short
        yield _Way(option=ResumeOption.FREE_NODE, why_not=why_not)
    else:
        yield _weighed(facts, ResumeOption.FREE_NODE, f"Free nodes of {free.pool} take it at once.", pool=free.pool)
    if spare is None:
        why_not = "no spare is kept" if most >= facts.nodes else short
        yield _Way(option=ResumeOption.SPARE, why_not=why_not)
    else:
        why = f"A spare of {spare.pool} takes it at once; no other node is free."
        yield _weighed(facts, ResumeOption.SPARE, why, pool=spare.pool)
    yield _waiting(facts, short, most)
    for offer in facts.offers:
        if offer.why_not:
            yield _Way(option=offer.option, why_not=offer.why_not)
        else:
            yield _weighed(facts, offer.option, _OFFERED[offer.option], wait=offer.wait_seconds, offer=offer)


_OFFERED = {
    ResumeOption.SHRINK: "It goes on with fewer nodes.",
    ResumeOption.BURST: "Rented nodes take it.",
    ResumeOption.PREEMPT: "A job of lower priority makes room for it.",
}


def _waiting(facts: ResumeFacts, short: str, most: int) -> _Way:
    repair, capacity = facts.delays.repair.seconds, facts.delays.capacity.seconds
    short = short[0].upper() + short[1:]
    if not facts.is_repaired:
        return _weighed(facts, ResumeOption.WAIT_FOR_REPAIR, f"{short}, so it waits for capacity.", wait=capacity)
    if facts.nodes - most > 1:
        why, wait = f"{short}: the repaired one alone is not enough, so it waits for capacity.", max(repair, capacity)
        return _weighed(facts, ResumeOption.WAIT_FOR_REPAIR, why, wait=wait)
    return _weighed(facts, ResumeOption.WAIT_FOR_REPAIR, f"{short}, so it waits for the repaired one.", wait=repair)


def _weighed(
    facts: ResumeFacts, option: ResumeOption, why: str, *, wait: float = 0, pool: str = "", offer: Offer | None = None
) -> _Way:
    seconds = wait + facts.delays.launch.seconds + facts.delays.restore.seconds + facts.lost_work_seconds
    gpu_hours = seconds * facts.nodes * facts.accelerators_per_node / 3600 + (offer.gpu_hours_taken if offer else 0)
    usd = gpu_hours * facts.usd_per_accelerator_hour + (offer.usd if offer else 0)
    return _Way(
        option=option,
        why=why,
        pool=pool or (offer.pool if offer else ""),
        seconds=round(seconds, 3),
        gpu_hours=round(gpu_hours, 3),
        usd=round(usd, 2),
    )


def _passed_over(way: _Way, best: _Way) -> Alternative:
    if way.why_not:
        return Alternative(option=way.option, why_not=way.why_not)
    more = way.usd - best.usd
    why_not = f"${more:,.2f} more is lost" if more > 0 else f"as quick; {best.option} takes less from others"
    if more <= 0 and best.option is ResumeOption.FREE_NODE and way.option is ResumeOption.SPARE:
        why_not = "a free node is as quick and keeps the spare"
    return Alternative(
        option=way.option,
        why_not=why_not,
        expected_seconds=way.seconds,
        gpu_hours_lost=way.gpu_hours,
        usd=way.usd,
    )


def lost_work(
    *,
    ran_seconds: float,
    keeps_checkpoints: bool,
    distrusted_seconds: float,
    expected_checkpoint_seconds: float,
) -> float:
    """Estimate the work since the last checkpoint that will count.

    On average half of what lies between two checkpoints is lost (docs/operate/resume.md), and all that was saved in
    the poisoned window as well; never more than the attempt has run, all of which goes where nothing is saved.

    Args:
        ran_seconds: How long the hurt attempt has trained.
        keeps_checkpoints: Whether the job has a checkpoint URI.
        distrusted_seconds: From the beginning of the poisoned window to the attempt's end; 0 where all is trusted.
        expected_checkpoint_seconds: Usual time between two checkpoints.
    """
    if not keeps_checkpoints:
        return max(0.0, ran_seconds)
    return max(0.0, min(ran_seconds, distrusted_seconds + expected_checkpoint_seconds / 2))


def distrust_after(trust: CheckpointTrust, first_signal_at: datetime, policy: JobPolicy) -> datetime | None:
    """Return the time after which checkpoints of the hurt attempt are distrusted; None where all are trusted.

    Where time does not bound the damage the same line is drawn, and what lies before it must show by its own evidence
    that it is good.
    """
    if trust is CheckpointTrust.TRUSTED:
        return None
    return first_signal_at - timedelta(seconds=policy.distrust_guard_seconds)


def demand_after(trust: CheckpointTrust, fault_class: str, policy: JobPolicy) -> Demand:
    """Return what checkpoints must have after a fault."""
    if trust is CheckpointTrust.NONE:
        return Demand.EVIDENCE
    return Demand.CONVENTION if policy.accepts_convention(fault_class) else Demand.PROOF


def _trust_said(trust: CheckpointTrust, distrust: datetime | None) -> str:
    if distrust is None:
        return ""
    when = distrust.strftime("%H:%M:%SZ")
    if trust is CheckpointTrust.NONE:
        return (
            f"Checkpoints begun after {when} are not used, and of those before it only what shows by its own evidence "
            "that it is good."
        )
    return f"Checkpoints begun after {when} are not used."
