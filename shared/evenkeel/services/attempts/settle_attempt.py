"""State SettleAttempt of run_job: record an attempt's end, release its charge, and decide the job's next state.

The sweep calls the same service under the same conditions, so leftovers of a crash end in the same way.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedWorkload
from evenkeel.domain.jobs.attempt_end import (
    AttemptEnd,
    attributed_to_faulty_nodes,
    end_despite_live_pods,
    is_left_running,
    judge_abandoned_attempt,
    judge_end,
    lost_nodes,
)
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.jobs.settlement import (
    PAUSE_AFTER_FAILURE_SECONDS,
    Settlement,
    SettleOutcome,
    settle,
    settled_outcome,
)
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.quotas.spending import usage_by_period, usage_by_week
from evenkeel.domain.recovery.settling import error_message
from evenkeel.domain.recovery.validation import shows_fault
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.domain.waiting import WaitOutcome
from evenkeel.ports import Add, Cluster, Delete, Ledger, Put, Write
from evenkeel.services.attempts import keep_logs, measure_restore, measured_throughput, record_pin
from evenkeel.services.context import Context
from evenkeel.services.storage import attempt_store, open_jobs
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import incident_rows, job_rows, quota_rows, subject_rows

WRITER = "settle_attempt"
_MOST_READ_SINGLY = 20
"""Nodes that are read one by one. A list of a fleet of 10,000 nodes takes as many calls."""


class SettleAttemptRequest(attempt_store.AttemptRequest):
    """An attempt, and the facts of its workflow about its end."""

    ended: dict[str, Any] | None = None
    """The answer of the last wait, with `{state, reason, exitCodes}` if it saw the end. Objects that still exist are
    judged again, because more may be known now.
    """
    failure: dict[str, Any] | None = None
    """`{Error, Cause}` if the workflow itself failed."""
    is_without_workflow: bool = False
    """Whether the sweep settles it. Its workflow has ended, so no wait reported an end or a passed deadline."""


class SettleAttemptResult(Value):
    """The outcome for the job."""

    outcome: SettleOutcome
    reason: str
    wait_seconds: int = 0
    """Pause before the workflow waits again for the end of an attempt that still runs."""


def run(request: SettleAttemptRequest, context: Context) -> SettleAttemptResult:
    """Settle an attempt, and measure its restore and its saves from its checkpoints.

    The measurement comes last, so nothing waits for the store. If the attempt runs and no deadline of it has passed,
    nothing is settled.

    Idempotent: yes, by the attempt's state. A repeated call measures only the missing times.
    """
    result, job = _settle_until_committed(request, context)
    if result.outcome is SettleOutcome.STILL_RUNS:
        return result
    measure_restore.run(job, request.attempt, context)
    return result


def settle_without_checkpoints(request: SettleAttemptRequest, context: Context) -> SettleAttemptResult:
    """Settle an attempt, for callers that may not read checkpoints.

    Idempotent: yes, as `run`.
    """
    return _settle_until_committed(request, context)[0]


def _settle_until_committed(request: SettleAttemptRequest, context: Context) -> tuple[SettleAttemptResult, Job]:
    """Settle an attempt: its state, its charge and the job's next state in one commit. Return also its job.

    Safe even if pods of it remain: the next launch waits for them or fences them out.
    """
    message = f"{request.job_id} kept changing while attempt {request.attempt} was to be settled"
    return until_committed(lambda: _try_to_settle(request, context), message)


def _try_to_settle(request: SettleAttemptRequest, context: Context) -> tuple[SettleAttemptResult, Job]:
    stored_attempt = attempt_store.load_attempt(context.ledger, request.job_id, request.attempt)
    if record_pin.run(stored_attempt, context):
        stored_attempt = attempt_store.load_attempt(context.ledger, request.job_id, request.attempt)
    job, attempt = stored_attempt.job, stored_attempt.attempt
    workload = context.cluster.workload(attempt)
    if attempt.state.has_ended:
        _keep_logs(job, attempt, workload, context)
        _delete_live_objects(job, attempt, workload, context.cluster)
        context.cycle_requests.request(f"{attempt.workload_name} settled")
        reason = f"{attempt.workload_name} was settled before: {settled_outcome(job)}."
        return SettleAttemptResult(outcome=SettleOutcome.ALREADY_SETTLED, reason=reason), job
    attempt_end = _judge_end(request, job, attempt, workload, context)
    if attempt_end is None:
        return _leave_running(attempt, _failure_text(request.failure), context), job
    job_with_throughput = measured_throughput.with_reported_throughput(job, attempt, context.ledger)
    settlement = settle(job_with_throughput, attempt, attempt_end, context.policy.jobs, context.now)
    _commit_settlement(stored_attempt, settlement, context)
    context.cycle_requests.request(f"{attempt.workload_name} settled")
    _keep_logs(job, settlement.attempt, workload, context)
    _delete_live_objects(job, settlement.attempt, workload, context.cluster)
    context.telemetry.count("AttemptsSettled", state=settlement.attempt.state)
    context.telemetry.info("AttemptSettled", job_id=job.job_id, attempt=attempt.attempt, outcome=settlement.outcome)
    return SettleAttemptResult(outcome=settlement.outcome, reason=settlement.job.reason), job


def _leave_running(attempt: Attempt, failure: str, context: Context) -> SettleAttemptResult:
    """Return the result for an attempt that has not ended. Its workflow, or else the sweep, waits for its end again."""
    context.telemetry.warning("AttemptLeftRunning", job_id=attempt.job_id, attempt=attempt.attempt, reason=failure)
    reason = f"{attempt.workload_name} has not ended, so it is not settled."
    if failure:
        reason = f"{attempt.workload_name} runs, so it is not settled, although its workflow failed: {failure}"
    return SettleAttemptResult(
        outcome=SettleOutcome.STILL_RUNS, reason=reason, wait_seconds=PAUSE_AFTER_FAILURE_SECONDS
    )


def _judge_end(
    request: SettleAttemptRequest, job: Job, attempt: Attempt, workload: ObservedWorkload, context: Context
) -> AttemptEnd | None:
    """Judge the end by the existing objects, else by the last wait; without either, the attempt is given up.

    None if the attempt is left running.
    """
    nodes = _nodes_of(attempt, workload, context.cluster)
    lost_node_names = lost_nodes(nodes, attempt.nodes_in(workload), context.now, context.policy.jobs.lost_node_seconds)
    attempt_end = judge_end(workload, job, attempt, lost_node_names)
    reported_end = _reported_end(request.ended)
    if reported_end and (attempt_end is None or not workload.pods):
        attempt_end = end_despite_live_pods(reported_end, workload) or reported_end
    if attempt_end is None and is_left_running(
        workload,
        job,
        attempt,
        has_workflow_failed=bool(request.failure),
        is_without_workflow=request.is_without_workflow,
        is_past_deadline=(request.ended or {}).get("outcome") == WaitOutcome.DEADLINE_PASSED,
    ):
        return None
    if attempt_end is None:
        attempt_end = judge_abandoned_attempt(workload, job, attempt, _failure_text(request.failure))
    if job.stop_of(attempt.attempt) is None:
        marked = {name for name in attempt.nodes_in(workload) if name in nodes and shows_fault(nodes[name])}
        faulty = _faulty_nodes(attempt, context.ledger) | marked
        return attributed_to_faulty_nodes(attempt_end, lost_node_names | faulty)
    return attempt_end


def _nodes_of(attempt: Attempt, workload: ObservedWorkload, cluster: Cluster) -> dict[str, KubernetesNode]:
    """Return the existing nodes of an attempt. Many jobs may end at once, so only a large one lists the cluster."""
    names = sorted({*attempt.node_names, *attempt.nodes_in(workload)})
    if len(names) > _MOST_READ_SINGLY:
        return {node.name: node for node in cluster.nodes(attempt.cluster)}
    nodes = (cluster.node(attempt.cluster, name) for name in names if name)
    return {node.name: node for node in nodes if node is not None}


def _reported_end(workflow_end: Mapping[str, Any] | None) -> AttemptEnd | None:
    """Return the end that the last wait saw; None if it ended for another reason."""
    facts = (workflow_end or {}).get("facts")
    if not isinstance(facts, Mapping) or "state" not in facts:
        return None
    attempt_end = AttemptEnd.model_validate(facts)
    if not attempt_end.state.has_ended:
        return None
    return attempt_end.replace(
        counts_as_failure=attempt_end.counts_as_failure or attempt_end.state is AttemptState.FAILED
    )


def _failure_text(failure: Mapping[str, Any] | None) -> str:
    if not failure:
        return ""
    return f"{failure.get('Error', 'unknown')}: {error_message(str(failure.get('Cause', '')))}"[:500]


def _faulty_nodes(attempt: Attempt, ledger: Ledger) -> set[str]:
    """Return the attempt's nodes with an open incident."""
    slots = zip(attempt.nodes, attempt.node_names, strict=True)
    return {name for life, name in slots if ledger.get(incident_rows.open_key(life))}


def _commit_settlement(stored_attempt: attempt_store.StoredAttempt, settlement: Settlement, context: Context) -> None:
    attempt = settlement.attempt
    text = f"Attempt {attempt.attempt} {_STATE_TEXT[attempt.state]}: {attempt.reason}"
    entry = TimelineEntry(at=context.now, kind="settled", text=text, writer=WRITER)
    context.ledger.commit(
        Put(job_rows.attempt_row(attempt, stored_attempt.attempt_version)),
        Put(job_rows.job_row(settlement.job, stored_attempt.job_version)),
        *(open_jobs.decrement_writes(settlement.job) if settlement.job.state.has_ended else ()),
        _release_write(settlement, context.now),
        Add(quota_rows.usage_key(attempt.team), {"accelerators": -attempt.accelerators}),
        # The team's spending is added with the state that is written once, so it is added once.
        *(
            Add(quota_rows.spent_key(attempt.team, period_use.key), period_use.spent.to_json())
            for period_use in usage_by_period(attempt, context.now, context.policy.economy)
        ),
        *(
            Add(quota_rows.used_key(attempt.team, week, settlement.job.submitter), {settlement.job.submitter: amount})
            for week, amount in usage_by_week(attempt, context.now).items()
            if settlement.job.submitter
        ),
        Put(subject_rows.timeline_row(attempt.job_id, entry, f"settled-{attempt.attempt}")),
    )


def _release_write(settlement: Settlement, now: datetime) -> Write:
    """Release the charge. A job that waits again stays recorded in it until it runs again.

    Only this write changes a charge, so version 1 means that it is still held.
    """
    if settlement.job.state is JobState.PENDING:
        return Put(quota_rows.released_charge_row(settlement.attempt, 1, now))
    return Delete(quota_rows.charge_key(settlement.attempt), 1)


_STATE_TEXT = {
    AttemptState.SUCCEEDED: "succeeded",
    AttemptState.FAILED: "failed",
    AttemptState.STOPPED: "stopped",
    AttemptState.LOST: "was lost",
    AttemptState.NEVER_RAN: "never ran",
}


def _keep_logs(job: Job, attempt: Attempt, workload: ObservedWorkload, context: Context) -> None:
    if workload.pods:
        within = keep_logs.AT_END_SECONDS
        keep_logs.run(job, attempt, context, within_seconds=within)


def _delete_live_objects(job: Job, attempt: Attempt, workload: ObservedWorkload, cluster: Cluster) -> None:
    """Delete objects that could still run. A Job that ended by itself stays for a while, for its logs."""
    if workload.has_runnable_pods:
        cluster.stop(attempt, job.spec.grace_seconds)
