"""Whether a job that runs again must be taken back: what it resumed from has turned out to be in doubt.

    attempt 1 saves 10 ... 20 ... 30          its node is sick, and nobody knows that the fault corrupts
    attempt 2 is pinned to step 30            trusted as far as was known
    a corrupting fault becomes known          step 30 was begun in its poisoned window
    attempt 2 is stopped                      attempt 3 resumes from what was begun before the window

Whatever descends from a checkpoint in doubt is in doubt with it, so the descent of the attempt that runs is followed
back to the hurt one.
"""

from datetime import datetime
from enum import StrEnum

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import CheckpointRequirement
from evenkeel.domain.jobs.policy import JobPolicy
from evenkeel.domain.values import Instant, Value


class Rollback(StrEnum):
    """What becomes of the attempt that runs."""

    LEAVE = "LEAVE"
    STOP = "STOP"
    LIMIT = "LIMIT"
    """It should be stopped, and that was done too often already: a person must look."""


class RollbackFacts(Value):
    """All that the answer rests on."""

    interrupted_attempt: int
    current_attempt: int
    descent: tuple[Attempt, ...]
    """Attempts after the interrupted attempt, including the current one."""
    distrust_after: Instant | None
    demand: CheckpointRequirement
    distrusted_before: Instant | None
    """The window that the next attempt honoured already when it was launched."""
    demanded_before: CheckpointRequirement
    """What the checkpoints of the interrupted attempt had to have already then."""
    rollbacks: int


class RollbackDecision(Value):
    """Whether the attempt that runs is stopped, and why."""

    action: Rollback
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    facts: RollbackFacts


def roll_back(facts: RollbackFacts, policy: JobPolicy) -> RollbackDecision:
    """Decide whether an attempt after the interrupted one resumed from a suspect checkpoint."""

    def decided(action: Rollback, reason: str) -> RollbackDecision:
        why_not = "it would continue from a checkpoint that may be corrupt"
        others = (Alternative(option=Rollback.LEAVE, why_not=why_not),) if action is Rollback.STOP else ()
        return RollbackDecision(action=action, reason=reason, alternatives=others, facts=facts)

    if facts.distrust_after is None:
        return decided(Rollback.LEAVE, "The fault does not affect checkpoints.")
    root = _root(facts)
    if root is None:
        return decided(
            Rollback.LEAVE,
            f"Attempt {facts.current_attempt} did not resume from a checkpoint of the interrupted attempt.",
        )
    doubt = _suspect_reason(root, facts, facts.distrust_after)
    if not doubt:
        reason = f"Attempt {facts.current_attempt} descends from a checkpoint begun before the poisoned window."
        return decided(Rollback.LEAVE, reason)
    if facts.rollbacks >= policy.max_rollbacks:
        reason = f"{doubt[0].upper()}{doubt[1:]}, but the job was already rolled back {facts.rollbacks} times."
        return decided(Rollback.LIMIT, reason)
    return decided(Rollback.STOP, f"Evenkeel rolls back attempt {facts.current_attempt}: {doubt}.")


def _suspect_reason(root: Attempt, facts: RollbackFacts, distrust_after: datetime) -> str:
    """Say what is wrong with what an attempt resumed from; empty where nothing is."""
    is_asked = (
        facts.demand is CheckpointRequirement.EVIDENCE and facts.demanded_before is not CheckpointRequirement.EVIDENCE
    )
    point, began = root.resume_from, root.resumed_work_from
    if point is None:
        is_honoured = facts.distrusted_before is not None and facts.distrusted_before <= distrust_after
        return "" if is_honoured and not is_asked else f"only rank 0 knows what attempt {root.attempt} resumed from"
    where = f"step {point.step} of attempt {point.attempt}"
    if began is None or began > distrust_after:
        return f"{where} was begun in the poisoned window, after {distrust_after:%H:%M:%SZ}"
    return f"{where} was resumed without evidence, and this fault requires evidence" if is_asked else ""


def _root(facts: RollbackFacts) -> Attempt | None:
    """Return the attempt through which the current one descends from the hurt one or one before; None: it does not.

    Where only its rank 0 knows what an attempt resumed from, it may descend from anything.
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
