"""Attempts without a running workflow, and Jobs that settled attempts left behind."""

from datetime import timedelta

from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedWorkload
from evenkeel.domain.jobs.attempt_end import all_pods_run, judge_end, lost_nodes, readmission_of
from evenkeel.domain.jobs.attempt_waits import is_past_deadline, is_past_stop_deadline
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.jobs.settlement import SettleOutcome
from evenkeel.ports import ExecutionState, Table, WorkflowName, get_all
from evenkeel.services.attempts import (
    keep_logs,
    mark_running,
    record_nodes,
    record_pin,
    record_size,
    settle_attempt,
    stop_attempt,
)
from evenkeel.services.scheduling import start_attempt
from evenkeel.services.storage import attempt_store
from evenkeel.services.sweep.sweep_run import SweepRun
from evenkeel.services.tables import job_rows, rows


def resume_attempts(sweep: SweepRun) -> int:
    """Start, stop or settle attempts whose workflow does not run."""
    live_rows = sweep.read_present_rows(sweep.list_rows(Table.JOBS, "ATTEMPT#LIVE"))
    live = [attempt for _, attempt in sweep.readable_rows(live_rows, Attempt) if not attempt.state.has_ended]
    for attempt in live:
        if sweep.has_listed_cluster(attempt.cluster):
            with sweep.isolate_item(attempt.workload_name):
                _record_cluster_facts(sweep, attempt)
    attempts_due = [attempt for attempt in live if not sweep.is_fresh(attempt.admitted_at)]
    jobs = get_all(sweep.context.ledger, (job_rows.job_key(attempt.job_id) for attempt in attempts_due))
    holders = [jobs.get(job_rows.job_key(attempt.job_id)) for attempt in attempts_due]
    resumed_count = 0
    for attempt, job in zip(attempts_due, holders, strict=True):
        if job is not None:
            with sweep.isolate_item(attempt.workload_name):
                resumed_count += _resume_attempt(sweep, attempt, rows.decode(job, Job))
    return resumed_count


def _record_cluster_facts(sweep: SweepRun, attempt: Attempt) -> None:
    context = sweep.context
    if attempt.state is AttemptState.RUNNING and not attempt.is_pinned:
        stored_attempt = attempt_store.load_attempt(context.ledger, attempt.job_id, attempt.attempt)
        record_pin.run(stored_attempt, context)
    if attempt.requested_size and attempt.state is AttemptState.LAUNCHED:
        record_size.run(attempt.job_id, attempt.attempt, context)
    if attempt.local_queue and not attempt.nodes:
        record_nodes.run(attempt.job_id, attempt.attempt, context)


def _resume_attempt(sweep: SweepRun, attempt: Attempt, job: Job) -> bool:
    state = sweep.execution_state(WorkflowName.RUN_JOB, attempt.workload_name)
    if state is ExecutionState.NONE and attempt.state is AttemptState.STARTING:
        return start_attempt.run(attempt, sweep.context)
    if attempt.cluster in sweep.context.site.clusters and not sweep.has_listed_cluster(attempt.cluster):
        return False  # the cluster could not be read, so nothing is stopped or settled
    workload = sweep.workload_of(attempt)
    request = job.stop_of(attempt.attempt)
    is_stopped_again = False
    if request and not sweep.is_fresh(request.requested_at) and workload.has_runnable_pods:
        # A stop was requested, but the Job was not deleted.
        sweep.context.cluster.stop(attempt, request.grace_seconds, request.nodes_without_grace)
        is_stopped_again = True
    if state is ExecutionState.RUNNING:
        return is_stopped_again
    return _continue_without_workflow(sweep, job, attempt, workload) or is_stopped_again


def _continue_without_workflow(sweep: SweepRun, job: Job, attempt: Attempt, workload: ObservedWorkload) -> bool:
    """Continue an attempt whose workflow has ended."""
    policy, now = sweep.context.policy.jobs, sweep.context.now
    names = attempt.nodes_in(workload)
    nodes = sweep.nodes_by_name.get(attempt.cluster, {})
    if not attempt.node_names:
        # Pods show the names. A node may have joined between the list of nodes and the list of pods.
        joined_nodes = (sweep.context.cluster.node(attempt.cluster, name) for name in names if name not in nodes)
        nodes = {**nodes, **{node.name: node for node in joined_nodes if node is not None}}
    lost_node_names = lost_nodes(nodes, names, now, policy.lost_node_seconds)
    has_ended = judge_end(workload, job, attempt, lost_node_names) is not None or readmission_of(workload) is not None
    # Only its workflow moves an attempt beyond STARTING. So its launch is undone, and the job is queued again.
    is_stop_overdue = is_past_stop_deadline(job, attempt, workload, policy, now)
    if has_ended or attempt.state is AttemptState.STARTING or is_stop_overdue:
        return _settle_attempt(sweep, attempt)
    request = attempt_store.AttemptRequest(job_id=attempt.job_id, attempt=attempt.attempt)
    if attempt.state is AttemptState.LAUNCHED and all_pods_run(workload, attempt):
        mark_running.run(request, sweep.context)
        return True
    if job.stop_of(attempt.attempt) is None and is_past_deadline(attempt, workload, policy, now):
        outcome = stop_attempt.run(request, sweep.context, is_without_workflow=True).outcome
        return outcome is stop_attempt.StopOutcome.STOPPING
    return False


def _settle_attempt(sweep: SweepRun, attempt: Attempt) -> bool:
    """Settle an attempt. Return False if it has not ended on a newer reading."""
    request = settle_attempt.SettleAttemptRequest(
        job_id=attempt.job_id, attempt=attempt.attempt, is_without_workflow=True
    )
    return settle_attempt.settle_without_checkpoints(request, sweep.context).outcome is not SettleOutcome.STILL_RUNS


def clear_workloads(sweep: SweepRun) -> int:
    """Stop Jobs that settled attempts left running, and delete those whose logs were kept long enough."""
    context = sweep.context
    cleared_count = 0
    checks_kept_pods = sweep.is_due("kept")
    for attempt, workload in sweep.workloads:
        if attempt.ended_at is None or sweep.is_fresh(attempt.ended_at):
            continue
        with sweep.isolate_item(attempt.workload_name):
            if workload.has_runnable_pods:
                job = attempt_store.load_attempt(context.ledger, attempt.job_id, attempt.attempt).job
                keep_logs.run(job, attempt, context, within_seconds=keep_logs.BEFORE_STOP_SECONDS)
                context.cluster.stop(attempt, job.spec.grace_seconds)
                cleared_count += 1
            elif checks_kept_pods and _is_kept_no_longer(sweep, attempt) and not workload.is_deleting:
                context.cluster.stop(attempt, 0)
    return cleared_count


def _is_kept_no_longer(sweep: SweepRun, attempt: Attempt) -> bool:
    assert attempt.ended_at
    return sweep.context.now - attempt.ended_at > timedelta(seconds=sweep.context.policy.jobs.keep_workload_seconds)
