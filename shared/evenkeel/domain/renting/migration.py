"""Work that runs where it may not stay: home again, out of a reservation that ends, a loan given back.

A move is made at a checkpoint and costs a restart; what it saves is what the time left would cost where it is. It is
made if that pays for the move and for one more restart besides, so that a guess that was a little wrong does not send
a job to and fro.
"""

import math
from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.capacity.start_estimates import remaining_seconds
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.economics import money
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.demand import RiskLimits
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.values import Instant, Value


class MigrationTarget(Value):
    """Committed room that a job elsewhere could have."""

    pool: str
    shadow_micros_per_accelerator_hour: int = 0
    launch_seconds: float = 0
    usable_until: Instant | None = None
    differences: tuple[str, ...] = ()


class MigrationCandidate(Value):
    """A job that runs on rented or reserved nodes."""

    job_id: str
    team: str
    nodes: int
    accelerators_per_node: int
    micros_per_hour_of_delay: int
    left_seconds: float
    """Expected, of its work."""
    since_checkpoint_seconds: float
    """Work that stopping it now would lose; what a checkpoint now would save."""
    checkpoint_seconds: float | None = None
    """Between two checkpoints; None where it keeps none: then it is not moved."""
    save_seconds: float = 60
    restart_seconds: float = 0
    deadline_at: Instant | None = None


class MigrationFacts(Value):
    """All that the answer rests on. It replays from this alone."""

    candidate: MigrationCandidate
    pool: Pool
    target: MigrationTarget | None = None
    """The best committed room that is free for it now; None where there is none."""
    budget_left_parts: int | None = None
    """What is left of its team's budget, after what has been spent by now; None where there is none."""
    team_micros_per_hour: int = 0
    """What the team's rentals cost an hour, this one included."""
    terms: RiskLimits = RiskLimits()
    now: Instant


class MigrationAction(StrEnum):
    """What to do with a migration candidate."""

    STAY = "STAY"
    MIGRATE = "MIGRATE"
    """At its next checkpoint."""
    REQUEUE = "REQUEUE"
    """Save and go back to the queue: the place or the money ends."""


class MigrationDecision(Value):
    """What to do with a migration candidate, and why."""

    action: MigrationAction
    reason: str
    by: Instant | None = None
    """On REQUEUE: when the save must begin."""
    saving_parts: int = 0
    migration_cost_parts: int = 0
    alternatives: tuple[Alternative, ...] = ()
    facts: MigrationFacts


def decide_migration(facts: MigrationFacts) -> MigrationDecision:
    """Decide whether a job stays where it is rented or reserved.

    saving = what the time left costs here - what it costs at home
    move   = (rent of the nodes while it saves + price of delay x (save + launch + restart + work since a checkpoint))
    migrate iff saving > move + one restart's price of delay
    """
    candidate, pool = facts.candidate, facts.pool
    ends = _must_leave_at(facts)
    saving, move = _migration_saving(facts), _migration_cost(facts)
    if ends is not None and ends[0] <= facts.now:
        return MigrationDecision(action=MigrationAction.REQUEUE, reason=ends[1], by=ends[0], facts=facts)
    why_not = _why_not_migrate(facts, saving, move)
    if not why_not:
        assert facts.target is not None  # or there would be a reason
        return MigrationDecision(
            action=MigrationAction.MIGRATE,
            reason=f"{facts.target.pool} has free nodes. The migration saves {money.format_usd(saving)} of rent "
            f"and costs {money.format_usd(move)}.",
            saving_parts=saving,
            migration_cost_parts=move,
            alternatives=(
                Alternative(option=MigrationAction.STAY, why_not=f"{money.format_usd(saving - move)} more."),
            ),
            facts=facts,
        )
    until = f", and must begin its checkpoint at {ends[0]:%d %b %H:%M} UTC" if ends else ""
    return MigrationDecision(
        action=MigrationAction.STAY,
        reason=f"{candidate.job_id} stays on {pool.name}{until}.",
        by=ends[0] if ends else None,
        saving_parts=saving,
        migration_cost_parts=move,
        alternatives=(Alternative(option=MigrationAction.MIGRATE, why_not=why_not),),
        facts=facts,
    )


def _must_leave_at(facts: MigrationFacts) -> tuple[datetime, str] | None:
    """Return when the job must begin to save, and why; None if it can finish where it runs."""
    candidate, pool = facts.candidate, facts.pool
    done_at = facts.now + timedelta(seconds=candidate.left_seconds)
    ends = []
    if pool.reservation:
        until = pool.reservation.usable_until - timedelta(seconds=candidate.save_seconds + facts.terms.grace_seconds)
        ends.append(
            (until, f"The reservation of {pool.name} is usable until {pool.reservation.usable_until:%H:%M} UTC.")
        )
    if facts.budget_left_parts is not None and facts.team_micros_per_hour:
        # The rent runs on while it saves.
        seconds = facts.budget_left_parts // facts.team_micros_per_hour - math.ceil(candidate.save_seconds)
        until = facts.now + timedelta(seconds=max(0, seconds))
        ends.append((until, f"The budget of team {candidate.team} is used up except for a last checkpoint."))
    soonest = min(ends, default=None)
    return soonest if soonest and soonest[0] < done_at else None


def _migration_saving(facts: MigrationFacts) -> int:
    candidate, target = facts.candidate, facts.target
    shadow = (
        target.shadow_micros_per_accelerator_hour * candidate.nodes * candidate.accelerators_per_node if target else 0
    )
    return round((facts.pool.micros_per_node_hour * candidate.nodes - shadow) * candidate.left_seconds)


def _migration_cost(facts: MigrationFacts) -> int:
    candidate = facts.candidate
    launch = facts.target.launch_seconds if facts.target else 0.0
    rent = facts.pool.micros_per_node_hour * candidate.nodes * candidate.save_seconds
    delay = candidate.save_seconds + launch + candidate.restart_seconds
    return round(rent + candidate.micros_per_hour_of_delay * delay)


def _why_not_migrate(facts: MigrationFacts, saving: int, move: int) -> str:
    candidate, target = facts.candidate, facts.target
    if target is None:
        return "No committed pool has enough free nodes."
    if not facts.pool.market.is_rented:
        return f"{facts.pool.name} is also already paid for."
    if candidate.checkpoint_seconds is None:
        return "The job keeps no checkpoints, so a migration would restart it from step 0."
    if target.differences:
        return target.differences[0]
    done_at = facts.now + timedelta(seconds=candidate.left_seconds)
    gone = candidate.save_seconds + target.launch_seconds + candidate.restart_seconds
    if target.usable_until and facts.now + timedelta(seconds=gone + candidate.checkpoint_seconds) > target.usable_until:
        return f"The reservation of {target.pool} ends before the job could save a checkpoint there."
    if candidate.deadline_at and done_at <= candidate.deadline_at < done_at + timedelta(seconds=gone):
        return "The migration would make the job miss its deadline."
    hysteresis = move + round(candidate.micros_per_hour_of_delay * candidate.restart_seconds)
    if saving <= hysteresis:
        cost = money.format_usd(hysteresis)
        return f"The migration would save {money.format_usd(saving)}, but the migration and one restart cost {cost}."
    return ""


class TemporaryCapacity(Value):
    """Rented nodes that stand in for baseline nodes that failed.

    Their dollars are billed to the team whose job runs on them; their accelerators are in its quota by the attempt's
    own charge, as on any other node.
    """

    temporary_capacity_id: str
    job_id: str
    team: str
    incident_id: str
    pool: str
    nodes: int
    micros_per_node_hour: int
    begun_at: Instant
    due_at: Instant
    """The end of its time box, whatever has become of the baseline nodes."""
    returned_at: Instant | None = None

    @property
    def rental(self) -> money.BillableRental:
        """What it is billed as."""
        return money.BillableRental(
            pool=self.pool,
            job_id=self.job_id,
            team=self.team,
            micros_per_node_hour=self.micros_per_node_hour,
            nodes=self.nodes,
            started_at=self.begun_at,
            ended_at=self.returned_at,
        )


class TemporaryCapacityState(StrEnum):
    """What to do with temporary capacity."""

    KEEP = "KEEP"
    RETURN = "RETURN"
    """At the job's next checkpoint: what it stood in for is there again, or nobody uses it."""
    END = "END"
    """Now: its time is over."""
    RETURNED = "RETURNED"
    """The temporary capacity was returned."""


class TemporaryCapacityFacts(Value):
    """Facts for a decision about temporary capacity."""

    temporary: TemporaryCapacity
    has_baseline_recovered: bool
    """The nodes it stands in for take work again."""
    is_job_running: bool
    """The job still runs on it."""
    keeps_checkpoints: bool = True
    """Where it keeps none, it is not moved before its time is over: it would begin from nothing."""
    save_seconds: float = 60
    now: Instant


class TemporaryCapacityDecision(Value):
    """What to do with temporary capacity, and why."""

    state: TemporaryCapacityState
    reason: str
    facts: TemporaryCapacityFacts


def decide_temporary_capacity(facts: TemporaryCapacityFacts) -> TemporaryCapacityDecision:
    """Decide what to do with temporary capacity: always return it by its due time, with time for a last save."""
    temporary = facts.temporary
    if temporary.returned_at is not None:
        return TemporaryCapacityDecision(
            state=TemporaryCapacityState.RETURNED, reason="The temporary capacity was returned.", facts=facts
        )
    if facts.now + timedelta(seconds=facts.save_seconds) >= temporary.due_at:
        reason = f"The time limit is {temporary.due_at:%d %b %H:%M} UTC. The job saves and returns to the queue."
        return TemporaryCapacityDecision(state=TemporaryCapacityState.END, reason=reason, facts=facts)
    if not facts.is_job_running:
        return TemporaryCapacityDecision(
            state=TemporaryCapacityState.RETURN,
            reason=f"{temporary.job_id} no longer runs on these nodes.",
            facts=facts,
        )
    if facts.has_baseline_recovered and not facts.keeps_checkpoints:
        reason = "The job keeps no checkpoints, so a migration would restart it from step 0."
        return TemporaryCapacityDecision(state=TemporaryCapacityState.KEEP, reason=reason, facts=facts)
    if facts.has_baseline_recovered:
        reason = "The lost capacity is back. The job migrates at its next checkpoint."
        return TemporaryCapacityDecision(state=TemporaryCapacityState.RETURN, reason=reason, facts=facts)
    return TemporaryCapacityDecision(
        state=TemporaryCapacityState.KEEP, reason="The lost capacity is not back yet.", facts=facts
    )


def temporary_capacity_of(rental: Rental) -> TemporaryCapacity | None:
    """Return a rental as a loan; None where it stands in for nothing."""
    if rental.due_at is None or rental.serving_target is not None:
        return None
    return TemporaryCapacity(
        temporary_capacity_id=rental.name,
        job_id=rental.job_id,
        team=rental.team,
        incident_id=rental.incident_id,
        pool=rental.offer.pool,
        nodes=rental.nodes,
        micros_per_node_hour=rental.offer.micros_per_node_hour,
        begun_at=rental.begun_at,
        due_at=rental.due_at,
        returned_at=rental.ended_at,
    )


def migration_facts(
    job: Job,
    nodes: int,
    pool: Pool,
    target: MigrationTarget | None,
    policy: Policy,
    now: datetime,
    *,
    ran_seconds: float,
) -> MigrationFacts:
    """Return what it rests on whether a job stays where it is rented or reserved.

    Args:
        job: It runs there.
        nodes: That it holds.
        pool: Where.
        target: Committed room that is free for it.
        policy: Prices and estimates.
        now: The time.
        ran_seconds: How long it has run, over all attempts.
    """
    spec = job.spec
    keeps = bool(spec.checkpoint_uri)
    candidate = MigrationCandidate(
        job_id=job.job_id,
        team=spec.team,
        nodes=nodes,
        accelerators_per_node=spec.accelerators_per_node,
        micros_per_hour_of_delay=policy.burst.delay_of(spec.priority_class),
        left_seconds=remaining_seconds(policy.burst.run_seconds_of(spec.priority_class), ran_seconds),
        since_checkpoint_seconds=policy.economy.expected_checkpoint_seconds / 2 if keeps else ran_seconds,
        checkpoint_seconds=policy.economy.expected_checkpoint_seconds if keeps else None,
        save_seconds=spec.grace_seconds,
        restart_seconds=policy.jobs.expected_resume_seconds,
        deadline_at=spec.deadline_at,
    )
    return MigrationFacts(candidate=candidate, pool=pool, target=target, now=now)
