"""Read the state of the clusters once, and request the answer of every wait that is satisfied or timed out.

`watch_cluster` calls it at each change, and `sweep_fleet` in each run. `open_wait` calls it for the new wait, because
its condition may hold already. Repeated requests are harmless: `resolve_wait` answers a wait once.
"""

import contextlib
from collections.abc import Iterable
from datetime import datetime, timedelta

from evenkeel.domain.external import kueue_status
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.attempt_waits import blames_application
from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery import recovery_waits
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.domain.waiting import ConditionKind, Wait, WaitAnswer, WaitOutcome, WaitState
from evenkeel.ports import (
    Conflict,
    EvenkeelError,
    Ledger,
    Put,
    Row,
    Table,
    WaitAnswerRequests,
    every,
)
from evenkeel.services.context import Context
from evenkeel.services.storage.retries import commit_if_unchanged
from evenkeel.services.tables import job_rows, rows, subject_rows
from evenkeel.services.waits.judge_wait import affected_job_states, judge_wait
from evenkeel.services.waits.read_cache import ReadCache
from evenkeel.services.waits.wait_observation import Observation

WRITER = "evaluate_waits"


class EvaluationResult(Value):
    """The result of one evaluation."""

    open: int = 0
    answered: tuple[str, ...] = ()
    """`<subject>/<name>: <outcome>` of each requested answer."""
    failed: tuple[str, ...] = ()
    """Waits that could not be evaluated, and why."""

    @property
    def failure_text(self) -> str:
        """A sentence about the waits that could not be evaluated; empty if all were."""
        if not self.failed:
            return ""
        return (
            f"{len(self.failed)} of {count_of(self.open, 'wait')} could not be evaluated. The first: {self.failed[0]}"
        )


def run(
    context: Context,
    *,
    subject: str = "",
    repeat_answered: bool = False,
    reads: ReadCache | None = None,
    nodes_of: Iterable[str] = (),
) -> EvaluationResult:
    """Evaluate the open waits, of one subject or of all, against one state of the clusters.

    A wait that cannot be evaluated does not block the rest. With `repeat_answered` (the sweep), answers that were
    recorded but never delivered are requested again. `reads` has the caller's earlier reads. `nodes_of` are clusters
    whose nodes the caller reads next.

    Idempotent: yes, answers are only requested.
    """
    wait_rows = _read_wait_rows(context.ledger, subject, repeat_answered=repeat_answered)
    observation = Observation(context, reads_all=len(wait_rows) > 1, reads=reads)
    answered_waits: list[str] = []
    failed_waits: list[str] = []
    waits = list(rows.readable_rows(wait_rows, Wait, lambda error: failed_waits.append(str(error))))
    waits_to_read = waits if len(waits) > 1 else ()
    observation.read_ahead((wait for _, wait in waits_to_read if wait.state is WaitState.OPEN), nodes_of)
    for row, wait in waits:
        try:
            outcome = _evaluate_wait(wait, row, observation, context.wait_answers)
        except EvenkeelError as error:
            failed_waits.append(f"{wait.subject}/{wait.name}: {type(error).__name__}: {error}")
            context.telemetry.warning("WaitNotEvaluated", subject=wait.subject, wait=wait.name, detail=str(error))
            continue
        if outcome:
            answered_waits.append(f"{wait.subject}/{wait.name}: {outcome}")
    return EvaluationResult(open=len(wait_rows), answered=tuple(answered_waits), failed=tuple(failed_waits))


def evaluate_one(wait: Wait, row: Row, context: Context) -> str:
    """Evaluate a wait that was just opened. Return the requested outcome; None if there is none."""
    observation = Observation(context, reads_all=False)
    return _evaluate_wait(wait, row, observation, context.wait_answers)


def _read_wait_rows(ledger: Ledger, subject: str, *, repeat_answered: bool) -> list[Row]:
    states = [WaitState.OPEN, *([WaitState.ANSWERED] if repeat_answered else [])]
    if subject:
        table, pk = subject_rows.subject_partition(subject)
        wait_rows = ledger.partition(table, pk, "WAIT#")
        return [row for row in wait_rows if row.doc.get("state") in states]
    return [
        row
        for table in (Table.JOBS, Table.INCIDENTS)
        for state in states
        for row in every(lambda cursor, t=table, s=state: ledger.by_state(t, f"WAIT#{s}", limit=1000, cursor=cursor))  # type: ignore[misc]
    ]


def _evaluate_wait(wait: Wait, row: Row, observation: Observation, wait_answers: WaitAnswerRequests) -> str:
    if wait.state is WaitState.ANSWERED and wait.answer:
        wait_answers.request(wait.subject, wait.name, wait.generation, wait.answer.to_json())
        return wait.answer.outcome
    if wait.condition.kind is ConditionKind.ATTEMPT_ADMITTED:
        wait, row = _record_kueue_status(wait, row, observation)
    answer = judge_wait(wait, observation)
    if answer is not None and blames_application(answer) and not _is_debounced(wait, row, observation):
        answer = None
    elif answer is None and wait.seen_since is not None:
        _record_seen_since(None, wait, row, observation)
    if (
        answer is None
        and observation.context.now >= wait.deadline_at
        and observation.context.now >= _overdue_at(wait, observation)
    ):
        answer = WaitAnswer(
            outcome=WaitOutcome.DEADLINE_PASSED, reason=f"{UNMET_TEXT[wait.condition.kind]} The deadline passed."
        )
    if answer is None:
        return ""
    wait_answers.request(wait.subject, wait.name, wait.generation, answer.to_json())
    return answer.outcome


def _overdue_at(wait: Wait, observation: Observation) -> datetime:
    """Return when a wait times out: at its deadline, or later for jobs that kept running for a while."""
    if wait.condition.kind is not ConditionKind.JOBS_RESUMED:
        return wait.deadline_at
    incident = observation.read_incident(wait.subject)
    job_states = affected_job_states(incident, observation)
    return recovery_waits.overdue_at(
        job_states, incident, observation.context.policy, deadline_at=wait.deadline_at, now=observation.context.now
    )


UNMET_TEXT = {
    ConditionKind.ATTEMPT_ADMITTED: "Kueue has not admitted the job.",
    ConditionKind.ATTEMPT_RUNNING: "Not every pod runs.",
    ConditionKind.ATTEMPT_ENDED: "The attempt has not ended.",
    ConditionKind.ATTEMPT_STOPPED: "Not every pod has ended.",
    ConditionKind.NODE_BACK: "The node slot has no Ready node.",
    ConditionKind.NODE_VALID: "The node does not pass validation.",
    ConditionKind.JOBS_RESUMED: "Not every interrupted job runs again.",
    ConditionKind.REPAIR_POSSIBLE: "The node is still in use.",
    ConditionKind.RELEASED: "A hold or a guardrail still blocks the action.",
    ConditionKind.RENTAL_READY: "Not all rented nodes joined.",
    ConditionKind.RENTAL_ENDED: "The rented nodes are still in use.",
    ConditionKind.APPROVED: "No person approved the plan.",
}
"""Return the message for a wait that timed out."""


def _is_debounced(wait: Wait, row: Row, observation: Observation) -> bool:
    """Whether an answer that blames the application was first seen long enough ago. Records when it is seen first."""
    if wait.seen_since is not None:
        return observation.context.now - wait.seen_since >= timedelta(
            seconds=observation.context.policy.jobs.attribution_delay_seconds
        )
    if observation.context.policy.jobs.attribution_delay_seconds <= 0:
        return True
    _record_seen_since(observation.context.now, wait, row, observation)
    return False


def _record_seen_since(seen_since: datetime | None, wait: Wait, row: Row, observation: Observation) -> None:
    with contextlib.suppress(Conflict):  # the wait changed meanwhile; the next evaluation reads it
        observation.context.ledger.commit(Put(subject_rows.wait_row(wait.replace(seen_since=seen_since), row.version)))


def _record_kueue_status(wait: Wait, row: Row, observation: Observation) -> tuple[Wait, Row]:
    """Record the state of a job in Kueue if it changed, so that readers need no access to the cluster.

    The job's timeline has each step. Details that change with every Kueue cycle are only on the wait.
    """
    number = int(wait.condition.facts["attempt"])
    attempt_row = observation.read_row(job_rows.attempt_key(wait.subject, number))
    if attempt_row is None:
        return wait, row
    attempt = rows.decode(attempt_row, Attempt)
    status = observation.workload(attempt).kueue
    changed_wait = wait.replace(
        kueue_status=kueue_status.describe_status(status, attempt.local_queue, observation.context.now),
        kueue_step=kueue_status.status_step(status),
        kueue_position=status.position if status else None,
    )
    if changed_wait == wait:
        return wait, row
    entry = TimelineEntry(at=observation.context.now, kind="kueue", text=changed_wait.kueue_status, writer=WRITER)
    timeline = (
        [Put(subject_rows.timeline_row(wait.subject, entry, f"kueue-{number}-{changed_wait.kueue_step}"))]
        if changed_wait.kueue_step != wait.kueue_step
        else []
    )
    wait_put = Put(subject_rows.wait_row(changed_wait, row.version))
    if not commit_if_unchanged(observation.context.ledger, wait_put, *timeline):
        return wait, row  # the wait changed meanwhile; the next evaluation reads it
    return changed_wait, subject_rows.wait_row(changed_wait, row.version + 1)
