"""The waits of `run_job`: until the pods of an attempt run, end, or stop.

Without a workflow, the sweep compares the attempt with the same deadlines.
"""

from datetime import datetime, timedelta

from evenkeel.domain.external.kueue_status import ADMITTED
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedWorkload
from evenkeel.domain.jobs.attempt_end import AttemptEnd, all_pods_run, judge_end, readmission_of
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.waiting import ConditionKind, WaitAnswer, WaitOutcome


def evaluate_attempt_wait(
    kind: ConditionKind,
    workload: ObservedWorkload,
    job: Job,
    attempt: Attempt,
    lost_node_names: frozenset[str],
    faulty: frozenset[str] = frozenset(),
) -> WaitAnswer | None:
    """Answer a wait of `run_job`; None while the attempt has not reached the awaited state.

    An end takes precedence over a stop request. A successful attempt needs no stop, and a stop would delete the proof.

    Args:
        kind: A kind that starts with `ATTEMPT_`.
        workload: The Kubernetes Job and the pods of the attempt.
        job: The job of the attempt.
        attempt: The attempt.
        lost_node_names: Nodes that are gone or NotReady past the limit.
        faulty: Nodes with a fault: they take the blame for pods that failed on them.
    """
    if attempt.state.has_ended:
        return WaitAnswer(
            outcome=WaitOutcome.ENDED, reason=attempt.reason, facts=_facts(_end_of_settled_attempt(attempt))
        )
    attempt_end = judge_end(workload, job, attempt, lost_node_names, faulty)
    if kind is ConditionKind.ATTEMPT_STOPPED:
        if workload.live_pods(lost_node_names):
            return None
        reason = "Every pod is deleted, has ended, or is on a lost node."
        return WaitAnswer(outcome=WaitOutcome.STOPPED, reason=reason, facts=_facts(attempt_end) if attempt_end else {})
    if attempt_end is not None:
        return WaitAnswer(outcome=WaitOutcome.ENDED, reason=attempt_end.reason, facts=_facts(attempt_end))
    request = job.stop_of(attempt.attempt)
    if request is not None:
        return WaitAnswer(outcome=WaitOutcome.STOP_REQUESTED, reason=request.reason)
    eviction = readmission_of(workload)
    if eviction is not None:
        return WaitAnswer(outcome=WaitOutcome.STOP_REQUESTED, reason=eviction.reason)
    if kind is ConditionKind.ATTEMPT_ADMITTED and workload.uid and not workload.is_suspended:
        return WaitAnswer(outcome=WaitOutcome.ADMITTED, reason="Kueue admitted the job.")
    if kind is ConditionKind.ATTEMPT_RUNNING and all_pods_run(workload, attempt):
        pods = "The pod is" if attempt.ranks == 1 else f"All {attempt.ranks} pods are"
        return WaitAnswer(outcome=WaitOutcome.RUNNING, reason=f"{pods} running.")
    return None


def is_past_deadline(attempt: Attempt, workload: ObservedWorkload, policy: JobPolicy, now: datetime) -> bool:
    """Whether it ran for too long, or its pods did not all start in time. It may wait for Kueue without limit."""
    if attempt.state is AttemptState.RUNNING and attempt.running_at:
        return now - attempt.running_at > timedelta(seconds=policy.run_deadline_seconds)
    if attempt.state is AttemptState.LAUNCHED:
        pods_since = _admitted_by_kueue_at(workload) if attempt.local_queue else attempt.launched_at
        return pods_since is not None and now - pods_since > timedelta(seconds=policy.running_deadline_seconds)
    return False


def _admitted_by_kueue_at(workload: ObservedWorkload) -> datetime | None:
    """Return since when Kueue lets the pods of a workload start; None if it does not, or if that is unknown."""
    if workload.kueue is None or not workload.kueue.is_true(ADMITTED):
        return None
    condition = workload.kueue.condition(ADMITTED)
    return condition.changed_at if condition else None


def is_overdue(attempt: Attempt, workload: ObservedWorkload, policy: JobPolicy, now: datetime) -> bool:
    """Whether an attempt without a workflow must stop: it has not ended, and it or its pods are past a deadline."""
    has_started = attempt.state is AttemptState.LAUNCHED and all_pods_run(workload, attempt)
    return not attempt.state.has_ended and not has_started and is_past_deadline(attempt, workload, policy, now)


def is_past_stop_deadline(
    job: Job, attempt: Attempt, workload: ObservedWorkload, policy: JobPolicy, now: datetime
) -> bool:
    """Whether pods that were told to stop still exist after the deadline. The next launch waits or fences them out."""
    request = job.stop_of(attempt.attempt)
    if request is None or workload.has_runnable_pods:
        return False
    return now - request.requested_at > timedelta(seconds=policy.stop_deadline_seconds)


def blames_application(answer: WaitAnswer) -> bool:
    """Whether an answer blames the application. A faulty node may still be found and take the blame."""
    return answer.outcome == WaitOutcome.ENDED and answer.facts.get("state") == AttemptState.FAILED


def _end_of_settled_attempt(attempt: Attempt) -> AttemptEnd:
    return AttemptEnd(state=attempt.state, reason=attempt.reason, exit_codes=attempt.exit_codes)


def _facts(attempt_end: AttemptEnd) -> dict[str, object]:
    return attempt_end.to_json()
