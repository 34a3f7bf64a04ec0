"""Work that runs where it may not stay: home again, out of a reservation that ends, a loan given back.

A move is made at a checkpoint and costs a restart; what it saves is what the time left would cost where it is. It is
made if that pays for the move and for one more restart besides, so that a guess that was a little wrong does not send
a job to and fro.
"""

import math
from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.capacity.start_estimates import left_of
from evenkeel.domain.decisions import Alternative
from evenkeel.domain.economics import money
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.demand import Terms
from evenkeel.domain.renting.rental import Rental
from evenkeel.domain.values import Instant, Value


class Home(Value):
    """Committed room that a job elsewhere could have."""

    pool: str
    shadow_micros_per_accelerator_hour: int = 0
    launch_seconds: float = 0
    usable_until: Instant | None = None
    differences: tuple[str, ...] = ()


class Guest(Value):
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


class StayFacts(Value):
    """All that the answer rests on. It replays from this alone."""

    guest: Guest
    pool: Pool
    home: Home | None = None
    """The best committed room that is free for it now; None where there is none."""
    budget_left_parts: int | None = None
    """What is left of its team's budget, after what has been spent by now; None where there is none."""
    team_micros_per_hour: int = 0
    """What the team's rentals cost an hour, this one included."""
    terms: Terms = Terms()
    now: Instant


class Stay(StrEnum):
    """What becomes of a guest."""

    STAY = "STAY"
    GO_HOME = "GO_HOME"
    """At its next checkpoint."""
    LEAVE = "LEAVE"
    """Save and go back to the queue: the place or the money ends."""


class StayDecision(Value):
    """What becomes of a guest, and why."""

    action: Stay
    reason: str
    by: Instant | None = None
    """On LEAVE: when the save must begin."""
    saving_parts: int = 0
    move_parts: int = 0
    alternatives: tuple[Alternative, ...] = ()
    facts: StayFacts


def judge_stay(facts: StayFacts) -> StayDecision:
    """Decide whether a job stays where it is rented or reserved.

    saving = what the time left costs here - what it costs at home
    move   = (rent of the nodes while it saves + price of delay x (save + launch + restart + work since a checkpoint))
    home iff saving > move + one restart's price of delay
    """
    guest, pool = facts.guest, facts.pool
    ends = _end_of_stay(facts)
    saving, move = _saving(facts), _cost_of_move(facts)
    if ends is not None and ends[0] <= facts.now:
        return StayDecision(action=Stay.LEAVE, reason=ends[1], by=ends[0], facts=facts)
    why_not = _why_not_home(facts, saving, move)
    if not why_not:
        assert facts.home is not None  # or there would be a reason
        return StayDecision(
            action=Stay.GO_HOME,
            reason=f"{facts.home.pool} has room: {money.said(saving)} of rent is saved for a move of "
            f"{money.said(move)}.",
            saving_parts=saving,
            move_parts=move,
            alternatives=(Alternative(option=Stay.STAY, why_not=f"{money.said(saving - move)} more."),),
            facts=facts,
        )
    until = f", and must begin to save at {ends[0]:%d %b %H:%M} UTC" if ends else ""
    return StayDecision(
        action=Stay.STAY,
        reason=f"{guest.job_id} stays on {pool.name}{until}.",
        by=ends[0] if ends else None,
        saving_parts=saving,
        move_parts=move,
        alternatives=(Alternative(option=Stay.GO_HOME, why_not=why_not),),
        facts=facts,
    )


def _end_of_stay(facts: StayFacts) -> tuple[datetime, str] | None:
    """Return when the guest must begin to save, and why; None where nothing drives it out before it is done."""
    guest, pool = facts.guest, facts.pool
    done_at = facts.now + timedelta(seconds=guest.left_seconds)
    ends = []
    if pool.reservation:
        until = pool.reservation.usable_until - timedelta(seconds=guest.save_seconds + facts.terms.grace_seconds)
        ends.append(
            (until, f"The reservation of {pool.name} ends for work at {pool.reservation.usable_until:%H:%M} UTC.")
        )
    if facts.budget_left_parts is not None and facts.team_micros_per_hour:
        # The rent runs on while it saves.
        seconds = facts.budget_left_parts // facts.team_micros_per_hour - math.ceil(guest.save_seconds)
        until = facts.now + timedelta(seconds=max(0, seconds))
        ends.append((until, f"The budget of team {guest.team} is used up but for a last save."))
    soonest = min(ends, default=None)
    return soonest if soonest and soonest[0] < done_at else None


def _saving(facts: StayFacts) -> int:
    guest, home = facts.guest, facts.home
    shadow = home.shadow_micros_per_accelerator_hour * guest.nodes * guest.accelerators_per_node if home else 0
    return round((facts.pool.micros_per_node_hour * guest.nodes - shadow) * guest.left_seconds)


def _cost_of_move(facts: StayFacts) -> int:
    guest = facts.guest
    launch = facts.home.launch_seconds if facts.home else 0.0
    rent = facts.pool.micros_per_node_hour * guest.nodes * guest.save_seconds
    delay = guest.save_seconds + launch + guest.restart_seconds
    return round(rent + guest.micros_per_hour_of_delay * delay)


def _why_not_home(facts: StayFacts, saving: int, move: int) -> str:
    guest, home = facts.guest, facts.home
    if home is None:
        return "Nothing that is paid for has room."
    if not facts.pool.market.is_rented:
        return f"{facts.pool.name} is paid for as well."
    if guest.checkpoint_seconds is None:
        return "It keeps no checkpoints: a move would begin from nothing."
    if home.differences:
        return home.differences[0]
    done_at = facts.now + timedelta(seconds=guest.left_seconds)
    gone = guest.save_seconds + home.launch_seconds + guest.restart_seconds
    if home.usable_until and facts.now + timedelta(seconds=gone + guest.checkpoint_seconds) > home.usable_until:
        return f"{home.pool} ends before it could save there."
    if guest.deadline_at and done_at <= guest.deadline_at < done_at + timedelta(seconds=gone):
        return "The move would cost it its deadline."
    hysteresis = move + round(guest.micros_per_hour_of_delay * guest.restart_seconds)
    if saving <= hysteresis:
        return f"It would save {money.said(saving)}; the move and one restart besides cost {money.said(hysteresis)}."
    return ""


class Loan(Value):
    """Rented nodes that stand in for baseline nodes that failed.

    Their dollars are billed to the team whose job runs on them; their accelerators are in its quota by the attempt's
    own charge, as on any other node.
    """

    loan_id: str
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
    def rental(self) -> money.Rental:
        """What it is billed as."""
        return money.Rental(
            pool=self.pool,
            job_id=self.job_id,
            team=self.team,
            micros_per_node_hour=self.micros_per_node_hour,
            nodes=self.nodes,
            started_at=self.begun_at,
            ended_at=self.returned_at,
        )


class LoanState(StrEnum):
    """What becomes of a loan."""

    KEEP = "KEEP"
    GIVE_BACK = "GIVE_BACK"
    """At the job's next checkpoint: what it stood in for is there again, or nobody uses it."""
    END = "END"
    """Now: its time is over."""
    OVER = "OVER"
    """It was given back."""


class LoanFacts(Value):
    """All that the answer about one loan rests on."""

    loan: Loan
    is_baseline_back: bool
    """The nodes it stands in for take work again."""
    does_job_run: bool
    """The job still runs on it."""
    keeps_checkpoints: bool = True
    """Where it keeps none, it is not moved before its time is over: it would begin from nothing."""
    save_seconds: float = 60
    now: Instant


class LoanDecision(Value):
    """What becomes of a loan, and why."""

    state: LoanState
    reason: str
    facts: LoanFacts


def judge_loan(facts: LoanFacts) -> LoanDecision:
    """Decide what becomes of one loan. Its due time is kept whatever else holds; the last save fits before it."""
    loan = facts.loan
    if loan.returned_at is not None:
        return LoanDecision(state=LoanState.OVER, reason="It was given back.", facts=facts)
    if facts.now + timedelta(seconds=facts.save_seconds) >= loan.due_at:
        reason = f"Its time is over at {loan.due_at:%d %b %H:%M} UTC; the job saves and goes back to the queue."
        return LoanDecision(state=LoanState.END, reason=reason, facts=facts)
    if not facts.does_job_run:
        return LoanDecision(state=LoanState.GIVE_BACK, reason=f"{loan.job_id} no longer runs on it.", facts=facts)
    if facts.is_baseline_back and not facts.keeps_checkpoints:
        reason = "It keeps no checkpoints: a move would begin from nothing."
        return LoanDecision(state=LoanState.KEEP, reason=reason, facts=facts)
    if facts.is_baseline_back:
        reason = "What it stands in for is back; the job moves at its next checkpoint."
        return LoanDecision(state=LoanState.GIVE_BACK, reason=reason, facts=facts)
    return LoanDecision(state=LoanState.KEEP, reason="What it stands in for is not back yet.", facts=facts)


def loan_of(rental: Rental) -> Loan | None:
    """Return a rental as a loan; None where it stands in for nothing."""
    if rental.due_at is None or rental.serves is not None:
        return None
    return Loan(
        loan_id=rental.name,
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


def stay_facts(
    job: Job,
    nodes: int,
    pool: Pool,
    home: Home | None,
    policy: Policy,
    now: datetime,
    *,
    ran_seconds: float,
) -> StayFacts:
    """Return what it rests on whether a job stays where it is rented or reserved.

    Args:
        job: It runs there.
        nodes: That it holds.
        pool: Where.
        home: Committed room that is free for it.
        policy: Prices and estimates.
        now: The time.
        ran_seconds: How long it has run, over all attempts.
    """
    spec = job.spec
    keeps = bool(spec.checkpoint_uri)
    guest = Guest(
        job_id=job.job_id,
        team=spec.team,
        nodes=nodes,
        accelerators_per_node=spec.accelerators_per_node,
        micros_per_hour_of_delay=policy.burst.delay_of(spec.priority_class),
        left_seconds=left_of(policy.burst.run_seconds_of(spec.priority_class), ran_seconds),
        since_checkpoint_seconds=policy.economy.expected_checkpoint_seconds / 2 if keeps else ran_seconds,
        checkpoint_seconds=policy.economy.expected_checkpoint_seconds if keeps else None,
        save_seconds=spec.grace_seconds,
        restart_seconds=policy.jobs.expected_resume_seconds,
        deadline_at=spec.deadline_at,
    )
    return StayFacts(guest=guest, pool=pool, home=home, now=now)
