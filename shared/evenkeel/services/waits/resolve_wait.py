"""The only service that ends a wait: OPEN -> ANSWERED, then the task token, then the row is deleted.

written by open_wait ─▶ OPEN ─▶ ANSWERED ─▶ SendTaskSuccess ─▶ deleted
                          │ one writer wins   │ crash here: the sweep requests the recorded answer again
"""

import contextlib
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.values import Value
from evenkeel.domain.waiting import ConditionKind, Wait, WaitAnswer, WaitOutcome, WaitState
from evenkeel.ports import Conflict, Delete, Put, Row, Write
from evenkeel.services.context import Context
from evenkeel.services.storage import incident_store
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import incident_rows, rows, subject_rows

WRITER = "resolve_wait"


class ResolveWaitRequest(Value):
    """An answer to a wait. It counts only if the wait was not opened again since (`generation`)."""

    subject: str
    name: str
    generation: int
    answer: WaitAnswer


class ResolveOutcome(StrEnum):
    """Whether the answer was sent."""

    ANSWERED = "ANSWERED"
    STALE = "STALE"
    """The wait was already answered, or opened again since."""
    OVER = "OVER"
    """The task had already ended."""


class ResolveWaitResult(Value):
    """The outcome for the answer."""

    outcome: ResolveOutcome
    reason: str


def run(request: ResolveWaitRequest, context: Context) -> ResolveWaitResult:
    """Answer a wait once. The first recorded answer is sent, however many were requested.

    Idempotent: yes, by OPEN -> ANSWERED. A token that was used or has expired counts as answered.
    """

    def answer_once() -> ResolveWaitResult:
        row = context.ledger.get(subject_rows.wait_key(request.subject, request.name))
        wait = rows.decode(row, Wait) if row else None
        if row is None or wait is None or wait.generation != request.generation:
            return ResolveWaitResult(outcome=ResolveOutcome.STALE, reason="That wait was already answered or reopened.")
        if wait.state is WaitState.OPEN:
            wait = wait.replace(state=WaitState.ANSWERED, answer=request.answer)
            context.ledger.commit(
                Put(subject_rows.wait_row(wait, row.version)), *_incident_writes(wait, request.answer, context)
            )
            row = subject_rows.wait_row(wait, row.version + 1)
            context.telemetry.seconds(
                "WaitSeconds", (context.now - wait.opened_at).total_seconds(), kind=wait.condition.kind
            )
        return _send_answer(wait, row, context)

    message = f"wait {request.name} of {request.subject} changed on every try"
    return until_committed(answer_once, message, tries=incident_store.MAX_TRIES)


def _send_answer(wait: Wait, row: Row, context: Context) -> ResolveWaitResult:
    assert wait.answer
    is_accepted = context.task_tokens.succeed(wait.token, wait.answer.to_json())
    with contextlib.suppress(Conflict):  # opened again, or deleted by another answer
        context.ledger.commit(Delete(row.key, row.version))
    if is_accepted:
        return ResolveWaitResult(outcome=ResolveOutcome.ANSWERED, reason=f"{wait.answer.outcome}: {wait.answer.reason}")
    return ResolveWaitResult(outcome=ResolveOutcome.OVER, reason="The task had already ended.")


def _incident_writes(wait: Wait, answer: WaitAnswer, context: Context) -> Sequence[Write]:
    """Return the changes of the incident that follow from an answer, for the same commit."""
    stage = _STAGES.get((wait.condition.kind, answer.outcome))
    is_failed_validation = wait.condition.kind is ConditionKind.NODE_VALID and answer.outcome not in (
        WaitOutcome.VALID,
        WaitOutcome.OPTED_OUT,
    )
    if not wait.subject.startswith("inc-") or (stage is None and not is_failed_validation):
        return ()
    incident, version = incident_store.load_incident(context.ledger, wait.subject)
    text = f"{_CONDITION_TEXT[wait.condition.kind]}: {answer.reason}"
    if is_failed_validation:
        changed_incident, kind = incident.replace(invalid_at=context.now), "invalid"
    else:
        assert stage
        changed_incident, kind = _with_stage_time(incident, stage[0], answer, context.now), stage[1]
    return (
        Put(incident_rows.incident_row(changed_incident, version)),
        incident_store.timeline_put(wait.subject, kind, text, at=context.now, writer=WRITER),
    )


_STAGES: dict[tuple[ConditionKind, str], tuple[str, str]] = {
    (ConditionKind.NODE_BACK, WaitOutcome.NODE_BACK): ("node_back_at", "back"),
    (ConditionKind.NODE_VALID, WaitOutcome.VALID): ("validated_at", "validated"),
    (ConditionKind.JOBS_RESUMED, WaitOutcome.JOBS_RESUMED): ("jobs_resumed_at", "resumed"),
}

_CONDITION_TEXT = {
    ConditionKind.NODE_BACK: "Node back",
    ConditionKind.NODE_VALID: "Validation",
    ConditionKind.JOBS_RESUMED: "Jobs back",
}


def _with_stage_time(incident: Incident, stage: str, answer: WaitAnswer, now: datetime) -> Incident:
    """Return the incident at the reached stage. The last time counts: a later rung brings the node back later."""
    changed_incident = incident.replace(stages=incident.stages.replace(**{stage: now}))
    instance_id = answer.facts.get("instanceId", "")
    if instance_id and instance_id != incident.life.instance_id:
        return changed_incident.replace(replacement_instance_id=instance_id)
    return changed_incident
