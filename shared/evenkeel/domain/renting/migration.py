"""Jobs that leave rented or reserved nodes: to save rent, before a reservation ends, or to return temporary capacity.

A job migrates at a checkpoint, and the migration costs a restart. The saved rent must pay for the migration and for one
more restart. So a slightly wrong estimate does not move a job back and forth.
"""

import math
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.capacity.run_times import NO_PAST_RUNS, RunTimes
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.economics import money
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.candidates import offered_pool, opportunity_cost_of, origin_of
from evenkeel.domain.renting.cost import RiskLimits, cost_of_move, saved_rent_parts
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.values import Instant, Value


class MigrationTarget(Value):
    """Free committed nodes for a job that runs elsewhere."""

    pool: str
    opportunity_micros_per_accelerator_hour: int = 0
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
    """Expected run time that is left."""
    since_checkpoint_seconds: float
    """Work since the last checkpoint: it is lost if the job stops without saving."""
    checkpoint_seconds: float | None = None
    """Seconds between two checkpoints; None if the job keeps none, so that it does not migrate."""
    save_seconds: float = 60
    restart_seconds: float = 0
    deadline_at: Instant | None = None


class MigrationFacts(Value):
    """All facts of a migration decision. The recorded decision replays from these facts alone."""

    candidate: MigrationCandidate
    pool: Pool
    target: MigrationTarget | None = None
    """Best committed pool with enough free nodes; None if there is none."""
    budget_left_parts: int | None = None
    """Rest of the team's budget; None without a budget."""
    team_micros_per_hour: int = 0
    """Hourly rents of the team, including this rental."""
    risk_limits: RiskLimits = RiskLimits()
    now: Instant

    @property
    def standstill_seconds(self) -> float:
        """Seconds of the migration without training: last checkpoint, launch and restart."""
        launch = self.target.launch_seconds if self.target else 0.0
        return self.candidate.save_seconds + launch + self.candidate.restart_seconds

    @property
    def saving_parts(self) -> int:
        """Rent that the migration saves."""
        candidate = self.candidate
        accelerators = candidate.nodes * candidate.accelerators_per_node
        opportunity = self.target.opportunity_micros_per_accelerator_hour if self.target else 0
        return saved_rent_parts(self.pool, candidate.nodes, accelerators, opportunity, candidate.left_seconds)

    @property
    def cost_parts(self) -> int:
        """Cost of the migration."""
        candidate, delay = self.candidate, self.candidate.micros_per_hour_of_delay
        return cost_of_move(self.pool, candidate.nodes, delay, candidate.save_seconds, self.standstill_seconds)


class MigrationAction(StrEnum):
    """Action for a migration candidate."""

    KEEP = "KEEP"
    MIGRATE = "MIGRATE"
    """Migrate at the next checkpoint."""
    REQUEUE = "REQUEUE"
    """Save a checkpoint and return to the queue: the reservation or the budget ends."""


class MigrationDecision(Value):
    """Action for a migration candidate, with its reason."""

    action: MigrationAction
    reason: str
    by: Instant | None = None
    """When the last checkpoint must begin, if the pool or the budget ends before the job."""
    saving_parts: int = 0
    migration_cost_parts: int = 0
    alternatives: tuple[Alternative, ...] = ()
    facts: MigrationFacts


def decide_migration(facts: MigrationFacts) -> MigrationDecision:
    """Decide whether a job stays on its rented or reserved nodes.

    The amounts that it compares:

        saving = rent of the time left - opportunity cost of the same time on committed nodes
        cost   = rent during the last checkpoint + price of delay x (save + launch + restart)

    The job migrates if the saving exceeds the cost plus the price of delay x restart.
    """
    candidate, pool = facts.candidate, facts.pool
    saving, cost = facts.saving_parts, facts.cost_parts
    ends = _must_leave_at(facts)
    if ends is not None and ends[0] <= facts.now:
        return MigrationDecision(action=MigrationAction.REQUEUE, reason=ends[1], by=ends[0], facts=facts)
    why_not = _why_not_migrate(facts, saving, cost)
    if not why_not:
        assert facts.target is not None  # otherwise `why_not` would name a reason
        return MigrationDecision(
            action=MigrationAction.MIGRATE,
            reason=f"{facts.target.pool} has free nodes. The migration saves {money.format_usd(saving)} of rent "
            f"and costs {money.format_usd(cost)}.",
            saving_parts=saving,
            migration_cost_parts=cost,
            alternatives=(
                Alternative(option=MigrationAction.KEEP, why_not=f"{money.format_usd(saving - cost)} more."),
            ),
            facts=facts,
        )
    until = f", and must begin its checkpoint at {ends[0]:%d %b %H:%M} UTC" if ends else ""
    return MigrationDecision(
        action=MigrationAction.KEEP,
        reason=f"{candidate.job_id} stays on {pool.name}{until}.",
        by=ends[0] if ends else None,
        saving_parts=saving,
        migration_cost_parts=cost,
        alternatives=(Alternative(option=MigrationAction.MIGRATE, why_not=why_not),),
        facts=facts,
    )


def _must_leave_at(facts: MigrationFacts) -> tuple[datetime, str] | None:
    """Return when the last checkpoint must begin, and why; None if the job can finish on its nodes."""
    candidate, pool = facts.candidate, facts.pool
    done_at = facts.now + timedelta(seconds=candidate.left_seconds)
    ends = []
    if pool.reservation:
        until = facts.risk_limits.last_save_at(pool.reservation, candidate.save_seconds)
        ends.append(
            (until, f"The reservation of {pool.name} is usable until {pool.reservation.usable_until:%H:%M} UTC.")
        )
    if facts.budget_left_parts is not None and facts.team_micros_per_hour:
        # The rent continues during the checkpoint.
        seconds = facts.budget_left_parts // facts.team_micros_per_hour - math.ceil(candidate.save_seconds)
        until = facts.now + timedelta(seconds=max(0, seconds))
        ends.append((until, f"The budget of team {candidate.team} is used up except for a last checkpoint."))
    soonest_end = min(ends, default=None)
    return soonest_end if soonest_end and soonest_end[0] < done_at else None


def _why_not_migrate(facts: MigrationFacts, saving: int, cost: int) -> str:
    candidate, target = facts.candidate, facts.target
    if target is None:
        return "No committed pool has enough free nodes."
    if not facts.pool.market.is_rented:
        return f"{facts.pool.name} is also already paid for."
    if candidate.checkpoint_seconds is None:
        return _NO_CHECKPOINTS
    if target.differences:
        return target.differences[0]
    done_at = facts.now + timedelta(seconds=candidate.left_seconds)
    first_save = timedelta(seconds=facts.standstill_seconds + candidate.checkpoint_seconds)
    if target.usable_until and facts.now + first_save > target.usable_until:
        return f"The reservation of {target.pool} ends before the job could save a checkpoint there."
    delayed_end_at = done_at + timedelta(seconds=facts.standstill_seconds)
    if candidate.deadline_at and done_at <= candidate.deadline_at < delayed_end_at:
        return "The migration would make the job miss its deadline."
    min_saving = cost + round(candidate.micros_per_hour_of_delay * candidate.restart_seconds)
    if saving <= min_saving:
        gain, loss = money.format_usd(saving), money.format_usd(min_saving)
        return f"The migration would save {gain}, but the migration and one restart cost {loss}."
    return ""


_NO_CHECKPOINTS = "The job keeps no checkpoints, so a migration would restart it from step 0."


def migration_facts(  # noqa: PLR0913 - facts, the last ones given by name
    job: Job,
    nodes: int,
    pool: Pool,
    target: MigrationTarget | None,
    policy: Policy,
    now: datetime,
    *,
    ran_seconds: float,
    run_times: RunTimes = NO_PAST_RUNS,
) -> MigrationFacts:
    """Return the facts that the migration of one job is decided from.

    Args:
        job: A job that runs on rented or reserved nodes.
        nodes: Number of its nodes.
        pool: The pool of its nodes.
        target: A committed pool with enough free nodes; None if there is none.
        policy: Prices and estimates.
        now: The time.
        ran_seconds: Run time of all its attempts.
        run_times: Past runs.
    """
    spec = job.spec
    keeps = bool(spec.checkpoint_uri)
    candidate = MigrationCandidate(
        job_id=job.job_id,
        team=spec.team,
        nodes=nodes,
        accelerators_per_node=spec.accelerators_per_node,
        micros_per_hour_of_delay=policy.burst.delay_of(spec.priority_class),
        left_seconds=round(run_times.remaining(origin_of(job, policy), ran_seconds).mean, 1),
        since_checkpoint_seconds=policy.economy.expected_checkpoint_seconds / 2 if keeps else ran_seconds,
        checkpoint_seconds=policy.economy.expected_checkpoint_seconds if keeps else None,
        save_seconds=spec.grace_seconds,
        restart_seconds=policy.jobs.expected_resume_seconds,
        deadline_at=spec.deadline_at,
    )
    return MigrationFacts(candidate=candidate, pool=pool, target=target, now=now)


# ---------------------------------------------------------------- temporary capacity


class TemporaryCapacity(Value):
    """Rented nodes that replace failed committed nodes.

    The team of the job that runs on them pays the rent. Their accelerators are in its quota by the attempt's charge.
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
    """Time at which the nodes are returned at the latest."""
    returned_at: Instant | None = None


class TemporaryCapacityState(StrEnum):
    """Action for temporary capacity."""

    KEEP = "KEEP"
    RETURN = "RETURN"
    """Return it at the job's next checkpoint: the committed nodes are back, or no job uses it."""
    END = "END"
    """Return it now: its time limit has passed."""
    RETURNED = "RETURNED"
    """It was returned."""


class TemporaryCapacityFacts(Value):
    """Facts for a decision about temporary capacity."""

    temporary: TemporaryCapacity
    has_baseline_recovered: bool
    """Whether the failed committed nodes accept work again."""
    is_job_running: bool
    """Whether the job still runs on the temporary capacity."""
    keeps_checkpoints: bool = True
    """Whether the job keeps checkpoints. Otherwise it would restart from step 0, so it stays until the due time."""
    save_seconds: float = 60
    now: Instant


class TemporaryCapacityDecision(Value):
    """Action for temporary capacity, with its reason."""

    state: TemporaryCapacityState
    reason: str
    facts: TemporaryCapacityFacts


def decide_temporary_capacity(facts: TemporaryCapacityFacts) -> TemporaryCapacityDecision:
    """Decide when to release temporary capacity: at its due time at the latest, with time for a last checkpoint."""
    temporary = facts.temporary
    if temporary.returned_at is not None:
        state, reason = TemporaryCapacityState.RETURNED, "The temporary capacity was returned."
    elif facts.now + timedelta(seconds=facts.save_seconds) >= temporary.due_at:
        state = TemporaryCapacityState.END
        reason = f"The time limit is {temporary.due_at:%d %b %H:%M} UTC. The job saves and returns to the queue."
    elif not facts.is_job_running:
        state, reason = TemporaryCapacityState.RETURN, f"{temporary.job_id} no longer runs on these nodes."
    elif facts.has_baseline_recovered and not facts.keeps_checkpoints:
        state, reason = TemporaryCapacityState.KEEP, _NO_CHECKPOINTS
    elif facts.has_baseline_recovered:
        state = TemporaryCapacityState.RETURN
        reason = "The lost capacity is back. The job migrates at its next checkpoint."
    else:
        state, reason = TemporaryCapacityState.KEEP, "The lost capacity is not back yet."
    return TemporaryCapacityDecision(state=state, reason=reason, facts=facts)


def temporary_capacity_of(rental: Rental) -> TemporaryCapacity | None:
    """Return a rental as temporary capacity; None if it replaces no failed nodes."""
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


# ---------------------------------------------------------------- one job of a scheduling cycle


class DepartureDecision(NamedTuple):
    """Why a job leaves its rented nodes, as it is recorded."""

    kind: str
    """Kind of the decision record: `TEMPORARY_CAPACITY` or `MIGRATION`."""
    action: str
    reason: str
    alternatives: tuple[Alternative, ...]
    facts: Value
    message: str
    """Text for the job's timeline."""


def decide_departure(
    job: Job,
    rental: Rental,
    target: Pool | None,
    policy: Policy,
    now: datetime,
    *,
    ran_seconds: float,
    run_times: RunTimes = NO_PAST_RUNS,
) -> DepartureDecision | None:
    """Decide whether a running job leaves its rented nodes: they are temporary capacity, or a migration saves rent.

    Args:
        job: The job that runs on the rental.
        rental: Its nodes.
        target: The committed pool in which the scheduling cycle would start the job; None if there is none.
        policy: Prices and estimates.
        now: The time.
        ran_seconds: Run time of all the job's attempts.
        run_times: Past runs.

    Returns:
        Why the job leaves; None if it stays.
    """
    return _return_temporary_capacity(job, rental, target, now) or _migrate_back(
        job, rental, target, policy, now, ran_seconds=ran_seconds, run_times=run_times
    )


def _return_temporary_capacity(
    job: Job, rental: Rental, target: Pool | None, now: datetime
) -> DepartureDecision | None:
    temporary = temporary_capacity_of(rental)
    if temporary is None:
        return None
    facts = TemporaryCapacityFacts(
        temporary=temporary,
        has_baseline_recovered=target is not None,
        is_job_running=True,
        keeps_checkpoints=bool(job.spec.checkpoint_uri),
        save_seconds=job.spec.grace_seconds,
        now=now,
    )
    decision = decide_temporary_capacity(facts)
    if decision.state is TemporaryCapacityState.KEEP:
        return None
    message = f"The job's nodes were temporary capacity. {decision.reason}"
    return DepartureDecision("TEMPORARY_CAPACITY", decision.state, decision.reason, (), facts, message)


def _migrate_back(
    job: Job,
    rental: Rental,
    target: Pool | None,
    policy: Policy,
    now: datetime,
    *,
    ran_seconds: float,
    run_times: RunTimes,
) -> DepartureDecision | None:
    pool = offered_pool(rental, policy.burst.pools)
    if target is None or pool is None:
        return None
    committed_target = MigrationTarget(
        pool=target.name,
        opportunity_micros_per_accelerator_hour=opportunity_cost_of(target, 0, policy.burst),
        launch_seconds=target.launch.p50_seconds,
        usable_until=target.reservation.usable_until if target.reservation else None,
    )
    decision = decide_migration(
        migration_facts(
            job, rental.nodes, pool, committed_target, policy, now, ran_seconds=ran_seconds, run_times=run_times
        )
    )
    if decision.action is not MigrationAction.MIGRATE:
        return None
    message = f"The job migrates back to committed capacity: {decision.reason}"
    return DepartureDecision(
        "MIGRATION", decision.action, decision.reason, decision.alternatives, decision.facts, message
    )
