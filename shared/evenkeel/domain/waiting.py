"""Waits: the conditions that a workflow pauses for, and the answers that end the pause.

A wait is a row `{name, subject, generation, token, deadlineAt, condition}`. The function of the workflow state stores
the row and then evaluates the condition once, because the condition may already hold. After later changes, other
functions evaluate the open rows again. A row is answered once: OPEN -> ANSWERED is a conditional write.
"""

from enum import StrEnum
from typing import Any

from evenkeel.domain.values import Instant, Sentence, Value


class ConditionKind(StrEnum):
    """Condition of a wait."""

    ATTEMPT_ADMITTED = "ATTEMPT_ADMITTED"
    """Kueue admitted the Job of the attempt. Also answered if the attempt ends first, or a stop is requested."""
    ATTEMPT_RUNNING = "ATTEMPT_RUNNING"
    """Every pod of the attempt runs. Also answered if the attempt ends first, or a stop is requested."""
    ATTEMPT_ENDED = "ATTEMPT_ENDED"
    """All pods of the attempt have ended. Also answered if a stop is requested."""
    ATTEMPT_STOPPED = "ATTEMPT_STOPPED"
    """After a stop request: every pod has ended or is gone, or its node is lost and the attempt is fenced."""
    NODE_BACK = "NODE_BACK"
    """The node slot has a Ready node: after REBOOT the same node with a new boot id, after REPLACE a new node."""
    JOBS_RESUMED = "JOBS_RESUMED"
    """Each interrupted job runs as a later attempt, has ended, or waits in the queue."""
    NODE_VALID = "NODE_VALID"
    """The returned node passes validation."""
    REPAIR_POSSIBLE = "REPAIR_POSSIBLE"
    """Neither jobs that may finish nor HyperPod's own change of the cluster delay the repair any more."""
    RELEASED = "RELEASED"
    """No hold is in force, and the guardrails allow the action now."""
    RENTAL_READY = "RENTAL_READY"
    """All nodes of a rental are ready. Also answered if the provider refuses them, or no job needs them any more."""
    RENTAL_ENDED = "RENTAL_ENDED"
    """No job uses the nodes of a rental, and none will."""
    APPROVED = "APPROVED"
    """A person approved or declined the plan, or it is obsolete."""


class WaitState(StrEnum):
    """OPEN until the wait is answered, ANSWERED until Step Functions has the answer. Then the row is deleted."""

    OPEN = "OPEN"
    ANSWERED = "ANSWERED"


class WaitCondition(Value):
    """The condition of a wait: its kind, and the facts for its evaluation (ids, attempt numbers, earlier boot id)."""

    kind: ConditionKind
    facts: dict[str, Any] = {}


class WaitOutcome(StrEnum):
    """How a wait ended. The Choice state behind it names these values."""

    DEADLINE_PASSED = "DEADLINE_PASSED"
    """The condition did not come true in time."""
    # An attempt
    ADMITTED = "ADMITTED"
    RUNNING = "RUNNING"
    ENDED = "ENDED"
    STOP_REQUESTED = "STOP_REQUESTED"
    STOPPED = "STOPPED"
    # A node
    NODE_BACK = "NODE_BACK"
    GONE = "GONE"
    """The node left the cluster, and no replacement comes."""
    REPAIR_FAILED = "REPAIR_FAILED"
    """The provider, or the controller that repairs the node, gave up."""
    OPTED_OUT = "OPTED_OUT"
    """A person excluded the node from automation."""
    VALID = "VALID"
    INVALID = "INVALID"
    REPAIR_POSSIBLE = "REPAIR_POSSIBLE"
    RELEASED = "RELEASED"
    # The jobs of a recovery
    JOBS_RESUMED = "JOBS_RESUMED"
    QUEUED = "QUEUED"
    """A job waits in the queue; the recovery does not wait for it."""
    # A plan that needs approval
    APPROVED = "APPROVED"
    DECLINED = "DECLINED"
    SUPERSEDED = "SUPERSEDED"
    """The plan is obsolete."""
    # A rental
    NODES_READY = "NODES_READY"
    REFUSED = "REFUSED"
    """The provider has no capacity."""
    NOT_WANTED = "NOT_WANTED"
    """The holder no longer waits for the nodes."""
    OVER = "OVER"
    """No job or replica needs the nodes any more."""


class WaitAnswer(Value):
    """The answer to a wait: the output of the waiting workflow state."""

    outcome: str
    """A `WaitOutcome`, stored as text: an older release can read the outcome of a newer one."""
    reason: Sentence
    facts: dict[str, Any] = {}


class Wait(Value):
    """A pause of one workflow."""

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
    """Last known reason why Kueue has not admitted the job; empty if Kueue does not decide."""
    kueue_step: str = ""
    """Kueue's own word for the step."""
    kueue_position: int | None = None
    """Position in Kueue's queue."""
    seen_since: Instant | None = None
    """Time of the first uncertain answer; None without one. The wait is answered only if the answer stays the same for
    a while."""


WAIT_NAMES = {
    ConditionKind.NODE_BACK: "node-back",
    ConditionKind.NODE_VALID: "node-valid",
    ConditionKind.JOBS_RESUMED: "jobs-back",
    ConditionKind.REPAIR_POSSIBLE: "repair-possible",
    ConditionKind.RELEASED: "released",
    ConditionKind.APPROVED: "approved",
}


def wait_name(kind: ConditionKind, attempt: int = 0) -> str:
    """Return the name of a wait within its subject. `attempt` is the number of the attempt or rental."""
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
