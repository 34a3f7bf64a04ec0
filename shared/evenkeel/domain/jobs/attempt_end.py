"""The end of an attempt: whether and how it ended, and what caused it."""

from collections.abc import Collection, Mapping
from datetime import datetime

from evenkeel.domain.external.kueue_status import KueueEviction, eviction_of
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedPod, ObservedWorkload, PodPhase
from evenkeel.domain.jobs.exit_codes import meaning_of
from evenkeel.domain.jobs.job import Job, JobState, StopRequest
from evenkeel.domain.nodes import KubernetesNode, is_lost
from evenkeel.domain.values import Instant, Value

FENCED_EXIT = 75
"""EX_TEMPFAIL: the training contract's code for "a later attempt has raised the fence"."""
UNPROVEN_EXIT = 65
"""EX_DATAERR: the training contract's code for "checkpoints exist, but none can be proved"."""
DAMAGED_EXIT = 66
"""EX_NOINPUT: the training contract's code for "the resume point differs from its manifest"."""
PEER_LOST_EXIT = 76
"""The training contract's code for "another rank is gone": a consequence, never the cause."""
DO_NOT_REQUEUE_EXIT = 93
"""A launcher's exit code for "another attempt would end in the same way". Source: NVIDIA's resiliency extension."""
_KILLED_EXITS = (137, 143)
"""Exit codes after SIGKILL and SIGTERM: another process ended the pod."""
_LOST_REASONS = frozenset(
    {
        *("NodeLost", "NodeShutdown", "Evicted", "Terminated", "Shutdown", "Preempting"),
        *("DeletionByTaintManager", "DeletionByPodGC", "EvictionByEvictionAPI"),
        *("PreemptionByScheduler", "TerminationByKubelet"),
    }
)
"""Reasons of pods that ended without the application's fault: the kubelet's reasons, and the reasons in
`DisruptionTarget`.

Source: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
"""


A, J = AttemptState, JobState


# ---------------------------------------------------------------- lost nodes


def lost_nodes(
    nodes: Mapping[str, KubernetesNode], names: tuple[str, ...], now: datetime, seconds: int
) -> frozenset[str]:
    """Return the nodes that no longer exist, or are NotReady for `seconds`: their pods cannot be reached.

    Args:
        nodes: All nodes of the cluster, by name.
        names: The nodes to test.
        now: The time.
        seconds: `JobPolicy.lost_node_seconds`.
    """
    return frozenset(name for name in names if is_lost(nodes.get(name), now, seconds))


# ---------------------------------------------------------------- how an attempt ended


class AttemptEnd(Value):
    """How an attempt ended."""

    state: AttemptState
    reason: str
    """The reason as a sentence."""
    exit_codes: dict[str, int] = {}
    """Exit codes by pod name."""
    counts_as_failure: bool = False
    """Whether the end uses up a restart of the application."""
    is_final: bool = False
    """Whether another attempt would end in the same way."""
    is_checkpoint_damaged: bool = False
    """Whether the checkpoint of its resume point caused the end."""
    exit_code: int | None = None
    """Exit code of the pod that blames the application; None without blame, or if the pod was killed."""
    was_preempted: bool = False
    """Whether Kueue preempted it, without a stop request of Evenkeel."""
    asked_at: Instant | None = None
    """When Kueue asked it to stop."""


def judge_end(
    workload: ObservedWorkload,
    job: Job,
    attempt: Attempt,
    lost_nodes: frozenset[str],
    faulty_nodes: frozenset[str] = frozenset(),
) -> AttemptEnd | None:
    """Decide whether and how a launched attempt ended; None while any pod may still run.

    The gang ends together, so the cause is judged after the last pod ended. A rank that lost its peer fails at once,
    long before the peer's node is known to be lost.

    Args:
        workload: The Kubernetes Job and the pods of the attempt.
        job: The job of the attempt.
        attempt: The attempt.
        lost_nodes: Nodes that are gone or NotReady past the limit: their pods are fenced out, not waited for.
        faulty_nodes: Nodes with an open incident, or NotReady: they take the blame for pods that failed on them.
    """
    codes = {pod.name: pod.exit_code for pod in workload.pods if pod.exit_code is not None}
    # A terminating pod may report success, and so may a pod of a suspended Job. Neither is a success of the attempt.
    succeeded_pods = [pod for pod in workload.pods if pod.phase is PodPhase.SUCCEEDED and not pod.is_terminating]
    has_succeeded = workload.has_completed or (len(succeeded_pods) == attempt.ranks and not workload.is_suspended)
    if has_succeeded and not workload.live_pods():
        return AttemptEnd(state=A.SUCCEEDED, reason="All ranks exited with code 0.", exit_codes=codes)
    if workload.live_pods(lost_nodes):
        return None
    eviction_end = _end_by_eviction(workload, job, attempt, codes)
    if eviction_end is not None:
        return eviction_end
    fenced_out = [pod for pod in workload.pods if not pod.has_ended]
    failed_pods = [pod for pod in workload.pods if pod.phase is PodPhase.FAILED]
    is_gone = not workload.uid or workload.is_deleting
    if not (fenced_out or failed_pods or workload.has_failed or is_gone):
        return None  # the Kubernetes Job exists, but has created no pods yet
    request = job.stop_of(attempt.attempt)
    if request:
        return _end_as_requested(request, codes)
    if attempt.state is A.STARTING and is_gone:
        return None  # not launched yet
    if workload.was_disrupted and not fenced_out:
        return AttemptEnd(state=A.LOST, reason="A pod was evicted, or its node was removed.", exit_codes=codes)
    node_names = frozenset(attempt.nodes_in(workload))
    return _end_by_cause(failed_pods, fenced_out, attempt, lost_nodes & node_names, faulty_nodes & node_names, codes)


def end_despite_live_pods(reported_end: AttemptEnd, workload: ObservedWorkload) -> AttemptEnd | None:
    """Return the end of an attempt that was reported to have ended, but has live pods; None if it has none.

    A success would end the job while it runs, and a failure would blame it. The job is queued again instead: the next
    launch waits for the pods or fences them out.

    Args:
        reported_end: The end of the attempt, as reported before.
        workload: The Kubernetes Job and pods now.
    """
    alive = workload.live_pods()
    if reported_end.state not in (A.SUCCEEDED, A.FAILED) or not alive:
        return None
    names = ", ".join(pod.name for pod in alive[:3])
    reason = (
        f"The attempt was reported as {reported_end.state}, but its pods still run: {names}. The job is queued again."
    )
    return AttemptEnd(state=A.LOST, reason=reason, exit_codes=reported_end.exit_codes)


def readmission_of(workload: ObservedWorkload) -> KueueEviction | None:
    """Return the eviction after which Kueue admitted the same Kubernetes Job again; None if it did not.

    The pods start with the arguments of the old attempt, so the attempt must stop.
    """
    eviction = eviction_of(workload.kueue) if workload.kueue else None
    return eviction if eviction and not workload.is_suspended else None


def _end_by_eviction(
    workload: ObservedWorkload, job: Job, attempt: Attempt, codes: dict[str, int]
) -> AttemptEnd | None:
    """Return the end of an attempt that Kueue evicted; None if it was not evicted, or the application failed first.

    An attempt that never ran completely loses no work. Its job pauses before it is handed to Kueue again, because
    Kueue's own count of tries is deleted with the Workload.
    """
    eviction = eviction_of(workload.kueue) if workload.kueue and not workload.has_failed else None
    if eviction is None:
        return None
    request = job.stop_of(attempt.attempt)
    if request:
        return _end_as_requested(request, codes)
    has_run = attempt.state is A.RUNNING or eviction.was_preempted
    return AttemptEnd(
        state=A.STOPPED if has_run else A.NEVER_RAN,
        reason=eviction.reason,
        exit_codes=codes,
        was_preempted=eviction.was_preempted,
        asked_at=eviction.at,
    )


def _end_as_requested(request: StopRequest, codes: dict[str, int]) -> AttemptEnd:
    return AttemptEnd(
        state=request.outcome,
        reason=request.reason,
        exit_codes=codes,
        counts_as_failure=request.counts_as_failure,
        is_final=request.is_final,
    )


def _end_by_cause(
    failed_pods: list[ObservedPod],
    fenced_out: list[ObservedPod],
    attempt: Attempt,
    lost_node_names: frozenset[str],
    faulty: frozenset[str],
    codes: dict[str, int],
) -> AttemptEnd:
    lost_contact = sorted({pod.node_name for pod in fenced_out} | lost_node_names)
    if lost_contact:
        return AttemptEnd(
            state=A.LOST, reason=f"The attempt lost contact with {_names_text(lost_contact)}.", exit_codes=codes
        )
    removed_pod = next((pod for pod in failed_pods if pod.reason in _LOST_REASONS), None)
    if removed_pod:
        return AttemptEnd(
            state=A.LOST,
            reason=f"Pod {removed_pod.name} was removed with its node ({removed_pod.reason}).",
            exit_codes=codes,
        )
    if any(pod.exit_code == FENCED_EXIT for pod in failed_pods):
        return AttemptEnd(state=A.LOST, reason="A later attempt has raised the fence.", exit_codes=codes)
    point = attempt.resume_from
    if point and any(pod.exit_code == DAMAGED_EXIT for pod in failed_pods):
        reason = f"The checkpoint it resumed from (step {point.step} of attempt {point.attempt}) is damaged."
        return AttemptEnd(state=A.LOST, reason=reason, exit_codes=codes, is_checkpoint_damaged=True)
    if any(pod.exit_code == UNPROVEN_EXIT for pod in failed_pods):
        reason = "Rank 0 found finished checkpoints but could verify none. Starting over would discard that work."
        return AttemptEnd(state=A.FAILED, reason=reason, exit_codes=codes, counts_as_failure=True)
    if not failed_pods:
        return AttemptEnd(state=A.LOST, reason="Its Kubernetes Job was deleted outside Evenkeel.", exit_codes=codes)
    do_not_requeue = next((pod for pod in failed_pods if pod.exit_code == DO_NOT_REQUEUE_EXIT), None)
    if do_not_requeue:
        reason = f"Pod {do_not_requeue.name} asked not to be restarted (exit code {DO_NOT_REQUEUE_EXIT})."
        return AttemptEnd(state=A.FAILED, reason=reason, exit_codes=codes, counts_as_failure=True, is_final=True)
    refused_pod = next((pod for pod in failed_pods if pod.exit_code is None), None)
    if refused_pod:
        state = A.LOST if attempt.state is A.RUNNING else A.NEVER_RAN
        reason = f"The node did not run pod {refused_pod.name} ({refused_pod.reason or 'no reason given'})."
        return AttemptEnd(state=state, reason=reason, exit_codes=codes)
    cause = min(failed_pods, key=_blame_order)
    reason = f"Pod {cause.name} failed ({_exit_text(cause)})."
    attempt_end = AttemptEnd(
        state=A.FAILED,
        reason=reason,
        exit_codes=codes,
        counts_as_failure=True,
        exit_code=None if cause.exit_code in (*_KILLED_EXITS, PEER_LOST_EXIT) else cause.exit_code,
    )
    return attributed_to_faulty_nodes(attempt_end, faulty)


def _exit_text(pod: ObservedPod) -> str:
    """Return the exit code of a pod with the reason that Kubernetes states, or else with the code's meaning."""
    meaning = meaning_of(pod.exit_code or 0)
    if pod.reason not in ("", "Error"):
        return f"exit code {pod.exit_code}, {pod.reason}"
    return f"exit code {pod.exit_code}: {meaning}" if meaning else f"exit code {pod.exit_code}"


def attributed_to_faulty_nodes(attempt_end: AttemptEnd, faulty_nodes: Collection[str]) -> AttemptEnd:
    """Return the end as a loss of nodes, and no failure of the job, if any of its nodes is lost or faulty.

    The whole gang ends with one node. An attempt that never ran for this reason counts as LOST, so its job keeps its
    position in the queue and does not pause.

    Args:
        attempt_end: The end as the pods show it.
        faulty_nodes: The nodes of the attempt that are lost or faulty.
    """
    faulty_used = sorted(faulty_nodes)
    if attempt_end.state not in (A.FAILED, A.NEVER_RAN) or not faulty_used or attempt_end.is_final:
        return attempt_end
    failure_text = "The attempt failed" if attempt_end.state is A.FAILED else "The attempt did not start"
    reason = f"{failure_text} on {_names_text(faulty_used)}, which is lost or faulty: {attempt_end.reason}"
    return attempt_end.replace(state=A.LOST, reason=reason, counts_as_failure=False)


def _blame_order(pod: ObservedPod) -> tuple[int, str]:
    """Sort by likelihood of being the cause: a pod that failed itself, a killed pod, a pod that lost its peer."""
    if pod.exit_code == PEER_LOST_EXIT:
        return (2, pod.name)
    return (1 if pod.exit_code in _KILLED_EXITS and pod.reason != "OOMKilled" else 0, pod.name)


def _names_text(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"


def all_pods_run(workload: ObservedWorkload, attempt: Attempt) -> bool:
    """Whether every pod of an attempt runs, and none was asked to stop."""
    running_pods = [pod for pod in workload.pods if pod.phase is PodPhase.RUNNING and not pod.is_terminating]
    return len(running_pods) >= attempt.ranks > 0


def still_runs(workload: ObservedWorkload, job: Job, attempt: Attempt) -> bool:
    """Whether an attempt runs without a request to stop. Then a failure of Evenkeel is no reason to end it.

    Args:
        workload: Its Kubernetes Job and pods now.
        job: The job of the attempt.
        attempt: The attempt. `judge_end` says that it has not ended.
    """
    if job.stop_of(attempt.attempt) is not None:
        return False
    if attempt.state is A.RUNNING:
        return bool(workload.live_pods())
    return attempt.state is A.LAUNCHED and all_pods_run(workload, attempt)


def is_left_running(
    workload: ObservedWorkload,
    job: Job,
    attempt: Attempt,
    *,
    has_workflow_failed: bool,
    is_without_workflow: bool,
    is_past_deadline: bool,
) -> bool:
    """Whether to leave an attempt that has not ended. Neither a failure of Evenkeel nor an older reading ends it.

    Args:
        workload: Its Kubernetes Job and pods now.
        job: The job of the attempt.
        attempt: The attempt. `judge_end` says that it has not ended.
        has_workflow_failed: Whether a failure of the workflow led here.
        is_without_workflow: Whether the sweep asks. It may have seen a lost node that is Ready again.
        is_past_deadline: Whether the workflow reports a passed deadline.
    """
    if job.stop_of(attempt.attempt) is not None:
        return False
    if has_workflow_failed:
        return still_runs(workload, job, attempt)
    if readmission_of(workload) is not None:
        return False
    if is_without_workflow:
        return attempt.state is not A.STARTING
    return attempt.state is A.RUNNING and not is_past_deadline and still_runs(workload, job, attempt)


def judge_abandoned_attempt(workload: ObservedWorkload, job: Job, attempt: Attempt, failure: str) -> AttemptEnd:
    """Decide the end of an attempt that Evenkeel abandons before all its pods have ended, or before they were created.

    The service deletes the remaining pods of the attempt. The next launch waits for them or fences them out, so the
    settlement is safe.

    Args:
        workload: Its remaining workload and pods.
        job: The job of the attempt.
        attempt: The attempt.
        failure: Why the workflow itself failed; empty if a deadline passed or the launch was abandoned.
    """
    codes = {pod.name: pod.exit_code for pod in workload.pods if pod.exit_code is not None}
    request = job.stop_of(attempt.attempt)
    if request:
        return _end_as_requested(request, codes)
    eviction_end = _end_by_eviction(workload, job, attempt, codes)
    if eviction_end is not None and not failure:
        return eviction_end
    if attempt.is_refused:
        return AttemptEnd(state=A.NEVER_RAN, reason=attempt.reason, is_final=True)
    if failure:
        state = A.LOST if attempt.state is A.RUNNING else A.NEVER_RAN
        return AttemptEnd(state=state, reason=f"The workflow of the attempt failed: {failure}", exit_codes=codes)
    if attempt.state is A.RUNNING:
        return AttemptEnd(state=A.LOST, reason="The attempt ran past its deadline.", exit_codes=codes, is_final=True)
    if attempt.state is A.STARTING:
        return AttemptEnd(state=A.NEVER_RAN, reason=attempt.reason or "The attempt could not be launched in time.")
    pods_without_node = [pod for pod in workload.pods if not pod.node_name]
    if pods_without_node or not workload.pods:
        return AttemptEnd(state=A.NEVER_RAN, reason="Its pods were not scheduled in time.", exit_codes=codes)
    pending_pod = next((pod for pod in workload.pods if pod.phase is PodPhase.PENDING), workload.pods[0])
    pod_reason = f" ({pending_pod.reason})" if pending_pod.reason else ""
    reason = f"Pod {pending_pod.name} did not start in time{pod_reason}."
    return AttemptEnd(state=A.NEVER_RAN, reason=reason, exit_codes=codes, counts_as_failure=True)
