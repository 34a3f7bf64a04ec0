"""Waits: what a workflow pauses for, and how the pause ends.

A wait is a row `{name, subject, generation, token, deadlineAt, condition}`. The state's function puts the row and
then evaluates the condition once, since what is waited for may have come first. Whoever later sees the world change
evaluates the open rows again. A row is answered once: OPEN -> ANSWERED is a conditional write.
"""

from enum import StrEnum
from typing import Any

from evenkeel.domain.values import Instant, Sentence, Value


class ConditionKind(StrEnum):
    """What can be waited for."""

    ATTEMPT_ADMITTED = "ATTEMPT_ADMITTED"
    """Kueue has let the attempt's Job have pods. Also answered when the attempt ends or is asked to stop first."""
    ATTEMPT_RUNNING = "ATTEMPT_RUNNING"
    """Every pod of the attempt runs. Also answered when the attempt ends or is asked to stop first."""
    ATTEMPT_ENDED = "ATTEMPT_ENDED"
    """The attempt's pods have all ended. Also answered when the attempt is asked to stop."""
    ATTEMPT_STOPPED = "ATTEMPT_STOPPED"
    """After a stop request: every pod is gone or ended, or is behind a lost node and so fenced out."""
    NODE_BACK = "NODE_BACK"
    """The repaired seat holds a Ready machine: same id and a new boot after REBOOT, a new id after REPLACE."""
    JOBS_RESUMED = "JOBS_RESUMED"
    """Each interrupted job runs on a later attempt, has ended, or was handed to the queue."""
    NODE_VALID = "NODE_VALID"
    """The returned machine passes validation."""
    NODE_FREE = "NODE_FREE"
    """What kept hands off a machine is over: the work on it, or HyperPod's own work on the cluster."""
    RELEASED = "RELEASED"
    """No hold is in force, and the guardrails would let this one act now."""
    RENTAL_READY = "RENTAL_READY"
    """All nodes of a rental are there. Also answered when they are refused, or nobody wants them any more."""
    RENTAL_ENDED = "RENTAL_ENDED"
    """Nobody runs on a rental's nodes, and nobody will."""
    APPROVED = "APPROVED"
    """A person approved or declined the plan, or it is obsolete."""


class WaitState(StrEnum):
    """OPEN until somebody answers, ANSWERED until Step Functions has taken the answer; then the row is deleted."""

    OPEN = "OPEN"
    ANSWERED = "ANSWERED"


class WaitCondition(Value):
    """What is waited for, as data: `kind` and the facts its evaluation needs (ids, attempt numbers, boot id before)."""

    kind: ConditionKind
    facts: dict[str, Any] = {}


class WaitAnswer(Value):
    """How a wait ended: the output of the waiting state."""

    outcome: str
    reason: Sentence
    facts: dict[str, Any] = {}


DEADLINE_PASSED = "DEADLINE_PASSED"


class Wait(Value):
    """One pause of one workflow."""

    subject: str
    """Id of the job or incident whose partition holds the row."""
    name: str
    """Unique within the subject, for example `attempt-3-running`."""
    generation: int
    token: str
    """The task token. Never logged."""
    opened_at: Instant
    deadline_at: Instant
    condition: WaitCondition
    state: WaitState = WaitState.OPEN
    answer: WaitAnswer | None = None
    kueue_status: str = ""
    """Why it still waits, where somebody else decides: as it was seen last."""
    kueue_step: str = ""
    """In that one's own word."""
    kueue_position: int | None = None
    """Among those who wait there."""
    seen_since: Instant | None = None
    """When a first, doubtful answer was seen: given only if it still stands after a while."""


WAIT_NAMES = {
    ConditionKind.NODE_BACK: "node-back",
    ConditionKind.NODE_VALID: "node-valid",
    ConditionKind.JOBS_RESUMED: "jobs-back",
    ConditionKind.NODE_FREE: "way-clear",
    ConditionKind.RELEASED: "released",
    ConditionKind.APPROVED: "approved",
}


def wait_name(kind: ConditionKind, attempt: int = 0) -> str:
    """Return the name of a wait within its subject, by the attempt, or the rental, that it is about."""
    match kind:
        case ConditionKind.ATTEMPT_ADMITTED:
            return f"attempt-{attempt}-admitted"
        case ConditionKind.ATTEMPT_RUNNING:
            return f"attempt-{attempt}-running"
        case ConditionKind.ATTEMPT_ENDED:
            return f"attempt-{attempt}-ended"
        case ConditionKind.ATTEMPT_STOPPED:
            return f"attempt-{attempt}-stopped"
        case ConditionKind.RENTAL_READY:
            return f"rental-{attempt}-ready"
        case ConditionKind.RENTAL_ENDED:
            return f"rental-{attempt}-over"
        case _:
            return WAIT_NAMES[kind]
