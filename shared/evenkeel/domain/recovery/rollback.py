"""Decide whether to roll back a job that already resumed: its checkpoint may be distrusted since.

    attempt 1 saves steps 10, 20 and 30       its node is faulty; that the fault corrupts data is not known yet
    attempt 2 resumes from step 30            the checkpoint is trusted at this time
    a corrupting fault is reported            step 30 began after the fault    , so it is distrusted
    attempt 2 is stopped                      attempt 3 resumes from a checkpoint that began before the fault

Every attempt that descends from a distrusted checkpoint is distrusted. So Evenkeel follows the current attempt back to
the interrupted attempt, from resume point to resume point.
"""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import CheckpointRequirement
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Instant, Value


class Rollback(StrEnum):
    """Action on the current attempt."""

    LEAVE = "LEAVE"
    STOP = "STOP"
    LIMIT = "LIMIT"
    """The attempt should stop, but the job reached its limit of rollbacks: a person must decide."""


class RollbackFacts(Value):
    """Facts for a rollback decision."""

    interrupted_attempt: int
    current_attempt: int
    descent: tuple[Attempt, ...]
    """Attempts after the interrupted attempt, including the current one."""
    distrust_after: Instant | None
    requirement: CheckpointRequirement
    distrust_after_at_launch: Instant | None = Field(alias="distrustedBefore")
    """Since when checkpoints were distrusted at the launch of the next attempt; None if they were trusted then."""
    requirement_at_launch: CheckpointRequirement = Field(alias="requiredBefore")
    """Requirement that checkpoints already had to meet at that launch."""
    rollbacks: int


class RollbackDecision(Value):
    """Whether the current attempt is stopped, with the reason."""

    action: Rollback
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    facts: RollbackFacts


def decide_rollback(facts: RollbackFacts, policy: JobPolicy) -> RollbackDecision:
    """Decide whether an attempt after the interrupted one resumed from a distrusted checkpoint."""

    def decision_of(action: Rollback, reason: str) -> RollbackDecision:
        why_not = "it would continue from a checkpoint that may be corrupt"
        alternatives = (Alternative(option=Rollback.LEAVE, why_not=why_not),) if action is Rollback.STOP else ()
        return RollbackDecision(action=action, reason=reason, alternatives=alternatives, facts=facts)

    if facts.distrust_after is None:
        return decision_of(Rollback.LEAVE, "The fault does not affect checkpoints.")
    resumed_attempt = _find_resumed_attempt(facts)
    if resumed_attempt is None:
        return decision_of(
            Rollback.LEAVE,
            f"Attempt {facts.current_attempt} did not resume from a checkpoint of the interrupted attempt.",
        )
    distrust_reason = _distrust_reason(resumed_attempt, facts, facts.distrust_after)
    if not distrust_reason:
        reason = f"Attempt {facts.current_attempt} descends from a checkpoint that began before the fault."
        return decision_of(Rollback.LEAVE, reason)
    if facts.rollbacks >= policy.max_rollbacks:
        rollbacks = count_of(facts.rollbacks, "time")
        reason = f"{distrust_reason[0].upper()}{distrust_reason[1:]}, but the job was already rolled back {rollbacks}."
        return decision_of(Rollback.LIMIT, reason)
    return decision_of(Rollback.STOP, f"Evenkeel rolls back attempt {facts.current_attempt}: {distrust_reason}.")


def _distrust_reason(resumed_attempt: Attempt, facts: RollbackFacts, distrust_after: datetime) -> str:
    """Return why the checkpoint that an attempt resumed from is distrusted, as a clause; empty if it is not."""
    needs_evidence = (
        facts.requirement is CheckpointRequirement.EVIDENCE
        and facts.requirement_at_launch is not CheckpointRequirement.EVIDENCE
    )
    point, began_at = resumed_attempt.resume_from, resumed_attempt.resumed_work_from
    if point is None:
        was_distrusted = facts.distrust_after_at_launch is not None and facts.distrust_after_at_launch <= distrust_after
        is_safe = was_distrusted and not needs_evidence
        return "" if is_safe else f"only rank 0 knows which checkpoint attempt {resumed_attempt.attempt} resumed from"
    checkpoint_text = f"step {point.step} of attempt {point.attempt}"
    if began_at is None or began_at > distrust_after:
        return f"{checkpoint_text} began after {distrust_after:%H:%M:%SZ}, when the fault may have corrupted it"
    return f"{checkpoint_text} was resumed without evidence, and this fault requires evidence" if needs_evidence else ""


def _find_resumed_attempt(facts: RollbackFacts) -> Attempt | None:
    """Return the attempt that resumed from the interrupted attempt or an earlier one, and led to the current attempt.

    None if the current attempt does not descend from them. If only rank 0 knows the resume point of an attempt, the
    attempt may descend from any checkpoint, so it is returned.
    """
    by_number = {attempt.attempt: attempt for attempt in facts.descent}
    attempt = by_number.get(facts.current_attempt)
    while attempt is not None and attempt.launched_at is not None:
        if attempt.resume_from is None:
            return None if attempt.is_pinned else attempt
        if attempt.resume_from.attempt <= facts.interrupted_attempt:
            return attempt
        attempt = by_number.get(attempt.resume_from.attempt)
    return None
