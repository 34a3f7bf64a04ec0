"""Attempts: who may write which state, how an end is judged, and what it means for the job."""

from collections.abc import Mapping
from datetime import datetime

from evenkeel.domain.external.kueue_status import eviction_of
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedPod, ObservedWorkload, PodPhase
from evenkeel.domain.jobs.job import Job, JobState, StopRequest
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.values import Instant, Value

FENCED_EXIT = 75
"""EX_TEMPFAIL: the training contract's code for "a later attempt has been fenced in"."""
UNPROVED_EXIT = 65
"""EX_DATAERR: the training contract's code for "checkpoints are there, and none can be proved"."""
DAMAGED_EXIT = 66
"""EX_NOINPUT: the training contract's code for "what I resume from is not what its manifest promises"."""
PEER_LOST_EXIT = 76
"""The training contract's code for "another rank went away": a consequence, never the cause."""
DO_NOT_REQUEUE_EXIT = 93
"""A launcher's word that another attempt could not end otherwise. Source: NVIDIA's resiliency extension."""
_KILLED = (137, 143)
"""SIGKILL and SIGTERM: how pods end when somebody ends them."""
_LOST_REASONS = frozenset(
    {
        *("NodeLost", "NodeShutdown", "Evicted", "Terminated", "Shutdown", "Preempting"),
        *("DeletionByTaintManager", "DeletionByPodGC", "EvictionByEvictionAPI"),
        *("PreemptionByScheduler", "TerminationByKubelet"),
    }
)
"""Pod reasons of an end that the application did not bring about: the kubelet's own, and those of `DisruptionTarget`.

Source: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
"""

# ---------------------------------------------------------------- states and their writers

A, J = AttemptState, JobState


# ---------------------------------------------------------------- what is lost


def lost_nodes(
    nodes: Mapping[str, KubernetesNode], names: tuple[str, ...], now: datetime, seconds: int
) -> frozenset[str]:
    """Return those of `names` that no longer exist, or are NotReady for `seconds`: what runs there is out of reach.

    Args:
        nodes: Every node of the cluster, by name.
        names: The nodes to judge.
        now: The time.
        seconds: `JobPolicy.lost_node_seconds`.
    """
    return frozenset(name for name in names if is_lost(nodes.get(name), now, seconds))


def is_lost(node: KubernetesNode | None, now: datetime, seconds: int) -> bool:
    """Whether a node is gone, or NotReady for so long that its pods are fenced out rather than waited for."""
    if node is None:
        return True
    return (
        not node.is_ready
        and node.not_ready_since is not None
        and (now - node.not_ready_since).total_seconds() >= seconds
    )


# ---------------------------------------------------------------- how an attempt ended


class AttemptEnd(Value):
    """How an attempt ended."""

    state: AttemptState
    reason: str
    """One sentence."""
    exit_codes: dict[str, int] = {}
    """By pod name."""
    counts_as_failure: bool = False
    """Whether it uses up one of the application's restarts."""
    is_final: bool = False
    """Whether another attempt could not end otherwise."""
    is_checkpoint_damaged: bool = False
    """Whether the checkpoint it resumed from is at fault."""
    exit_code: int | None = None
    """Of the pod that the application is blamed by; None where nobody is blamed, or it was killed."""
    was_preempted: bool = False
    """Whether it ended for others who needed the room, without a request of ours."""
    asked_at: Instant | None = None
    """When somebody else asked it to end."""


def judge_end(
    seen: ObservedWorkload,
    job: Job,
    attempt: Attempt,
    lost_nodes: frozenset[str],
    faulty_nodes: frozenset[str] = frozenset(),
) -> AttemptEnd | None:
    """Judge whether and how a launched attempt ended; None while any pod may still run.

    The gang ends together, so blame waits for the last pod: a rank that lost its peer fails at once, long before the
    peer's node is known to be lost.

    Args:
        seen: The attempt's Job and pods.
        job: Its job.
        attempt: The attempt.
        lost_nodes: Nodes that are gone or NotReady past the limit: their pods are fenced out, not waited for.
        faulty_nodes: Nodes with an open incident or NotReady: they take the blame for what failed on them.
    """
    codes = {pod.name: pod.exit_code for pod in seen.pods if pod.exit_code is not None}
    # A pod that is told to go may say that it ended well, and of a Job that is suspended that is no success either.
    succeeded = [pod for pod in seen.pods if pod.phase is PodPhase.SUCCEEDED and not pod.is_terminating]
    has_succeeded = seen.has_completed or (len(succeeded) == attempt.ranks and not seen.is_suspended)
    if has_succeeded and not seen.live_pods():
        return AttemptEnd(state=A.SUCCEEDED, reason="All ranks exited with code 0.", exit_codes=codes)
    if seen.live_pods(lost_nodes):
        return None
    evicted = _end_by_eviction(seen, job, attempt, codes)
    if evicted is not None:
        return evicted
    fenced_out = [pod for pod in seen.pods if not pod.has_ended]
    failed = [pod for pod in seen.pods if pod.phase is PodPhase.FAILED]
    is_gone = not seen.uid or seen.is_deleting
    if not (fenced_out or failed or seen.has_failed or is_gone):
        return None  # the Job exists and has not made its pods yet
    request = job.stop_of(attempt.attempt)
    if request:
        return _end_as_requested(request, codes)
    if attempt.state is A.STARTING and is_gone:
        return None  # not launched yet
    if seen.was_disrupted and not fenced_out:
        return AttemptEnd(state=A.LOST, reason="A pod was evicted, or its node was removed.", exit_codes=codes)
    return _blame(failed, fenced_out, attempt, lost_nodes, faulty_nodes, codes)


def end_despite_live_pods(reported: AttemptEnd, seen: ObservedWorkload) -> AttemptEnd | None:
    """Return the end of an attempt that was seen to end by itself and has live pods; None where it has none.

    A success would drop the job while it runs, and a failure would blame it. It is queued again instead: the next
    launch waits for the pods or fences them out.

    Args:
        reported: How the attempt was seen to end before.
        seen: Its Job and pods now.
    """
    alive = seen.live_pods()
    if reported.state not in (A.SUCCEEDED, A.FAILED) or not alive:
        return None
    names = ", ".join(pod.name for pod in alive[:3])
    reason = f"The attempt was reported as {reported.state}, but its pods still run: {names}. The job is queued again."
    return AttemptEnd(state=A.LOST, reason=reason, exit_codes=reported.exit_codes)


def _end_by_eviction(seen: ObservedWorkload, job: Job, attempt: Attempt, codes: dict[str, int]) -> AttemptEnd | None:
    """Return the end of an attempt that Kueue evicted; None where it did not, or the application failed by itself.

    One that never ran in full has nothing to lose, and pauses before it is handed over again: Kueue's own count of its
    tries goes with the Workload.
    """
    evicted = eviction_of(seen.kueue) if seen.kueue and not seen.has_failed else None
    if evicted is None:
        return None
    asked = job.stop_of(attempt.attempt)
    if asked:
        return _end_as_requested(asked, codes)
    has_run = attempt.state is A.RUNNING or evicted.was_preempted
    return AttemptEnd(
        state=A.STOPPED if has_run else A.NEVER_RAN,
        reason=evicted.reason,
        exit_codes=codes,
        was_preempted=evicted.was_preempted,
        asked_at=evicted.at,
    )


def _end_as_requested(request: StopRequest, codes: dict[str, int]) -> AttemptEnd:
    return AttemptEnd(
        state=request.outcome,
        reason=request.reason,
        exit_codes=codes,
        counts_as_failure=request.counts_as_failure,
        is_final=request.is_final,
    )


def _blame(
    failed: list[ObservedPod],
    fenced_out: list[ObservedPod],
    attempt: Attempt,
    lost: frozenset[str],
    faulty: frozenset[str],
    codes: dict[str, int],
) -> AttemptEnd:
    out = sorted({pod.node_name for pod in fenced_out} | (lost & set(attempt.node_names)))
    if out:
        return AttemptEnd(state=A.LOST, reason=f"The attempt lost contact with {_named(out)}.", exit_codes=codes)
    taken = next((pod for pod in failed if pod.reason in _LOST_REASONS), None)
    if taken:
        return AttemptEnd(
            state=A.LOST, reason=f"Pod {taken.name} was removed with its node ({taken.reason}).", exit_codes=codes
        )
    if any(pod.exit_code == FENCED_EXIT for pod in failed):
        return AttemptEnd(state=A.LOST, reason="A later attempt has raised the fence.", exit_codes=codes)
    point = attempt.resume_from
    if point and any(pod.exit_code == DAMAGED_EXIT for pod in failed):
        reason = f"The checkpoint it resumed from (step {point.step} of attempt {point.attempt}) is damaged."
        return AttemptEnd(state=A.LOST, reason=reason, exit_codes=codes, is_checkpoint_damaged=True)
    if any(pod.exit_code == UNPROVED_EXIT for pod in failed):
        reason = "Rank 0 found finished checkpoints but could verify none. Starting over would discard that work."
        return AttemptEnd(state=A.FAILED, reason=reason, exit_codes=codes, counts_as_failure=True)
    if not failed:
        return AttemptEnd(state=A.LOST, reason="Its Kubernetes Job was deleted outside Evenkeel.", exit_codes=codes)
    last_word = next((pod for pod in failed if pod.exit_code == DO_NOT_REQUEUE_EXIT), None)
    if last_word:
        reason = f"Pod {last_word.name} asked not to be restarted (exit code {DO_NOT_REQUEUE_EXIT})."
        return AttemptEnd(state=A.FAILED, reason=reason, exit_codes=codes, counts_as_failure=True, is_final=True)
    refused = next((pod for pod in failed if pod.exit_code is None), None)
    if refused:
        state = A.LOST if attempt.state is A.RUNNING else A.NEVER_RAN
        reason = f"The node did not run pod {refused.name} ({refused.reason or 'no reason given'})."
        return AttemptEnd(state=state, reason=reason, exit_codes=codes)
    cause = min(failed, key=_blame_order)
    why = f", {cause.reason}" if cause.reason not in ("", "Error") else ""
    reason = f"Pod {cause.name} failed (exit code {cause.exit_code}{why})."
    ending = AttemptEnd(
        state=A.FAILED,
        reason=reason,
        exit_codes=codes,
        counts_as_failure=True,
        exit_code=None if cause.exit_code in (*_KILLED, PEER_LOST_EXIT) else cause.exit_code,
    )
    return without_blame(ending, attempt, faulty)


def without_blame(ending: AttemptEnd, attempt: Attempt, faulty_nodes: frozenset[str]) -> AttemptEnd:
    """Return the end without blame for the job where one of its nodes is lost or sick: the whole gang ends with it.

    An attempt that never ran for that reason counts as LOST, so its job keeps its place and does not pause.
    """
    ill = sorted(faulty_nodes & set(attempt.node_names))
    if ending.state not in (A.FAILED, A.NEVER_RAN) or not ill or ending.is_final:
        return ending
    what = "The attempt failed" if ending.state is A.FAILED else "The attempt did not start"
    reason = f"{what} on {_named(ill)}, which is lost or faulty: {ending.reason}"
    return ending.but(state=A.LOST, reason=reason, counts_as_failure=False)


def _blame_order(pod: ObservedPod) -> tuple[int, str]:
    """The likely cause first: a pod that failed by itself, then one that was killed, then one that lost its peer."""
    if pod.exit_code == PEER_LOST_EXIT:
        return (2, pod.name)
    return (1 if pod.exit_code in _KILLED and pod.reason != "OOMKilled" else 0, pod.name)


def _named(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"


def judge_abandoned(seen: ObservedWorkload, job: Job, attempt: Attempt, failure: str) -> AttemptEnd:
    """Judge an attempt that is given up although its pods have not all ended, or were never made.

    Whatever is left of it is deleted, and the next launch waits for it or fences it out, so settling it is safe.

    Args:
        seen: What is left of it.
        job: Its job.
        attempt: The attempt.
        failure: Why the workflow itself failed; empty where a deadline passed or the launch was given up.
    """
    codes = {pod.name: pod.exit_code for pod in seen.pods if pod.exit_code is not None}
    request = job.stop_of(attempt.attempt)
    if request:
        return _end_as_requested(request, codes)
    evicted = _end_by_eviction(seen, job, attempt, codes)
    if evicted is not None and not failure:
        return evicted
    if attempt.is_refused:
        return AttemptEnd(state=A.NEVER_RAN, reason=attempt.reason, is_final=True)
    if failure:
        state = A.LOST if attempt.state is A.RUNNING else A.NEVER_RAN
        return AttemptEnd(state=state, reason=f"The workflow of the attempt failed: {failure}", exit_codes=codes)
    if attempt.state is A.RUNNING:
        return AttemptEnd(state=A.LOST, reason="The attempt ran past its deadline.", exit_codes=codes, is_final=True)
    if attempt.state is A.STARTING:
        return AttemptEnd(state=A.NEVER_RAN, reason=attempt.reason or "The attempt could not be launched in time.")
    waiting = [pod for pod in seen.pods if not pod.node_name]
    if waiting or not seen.pods:
        return AttemptEnd(state=A.NEVER_RAN, reason="Its pods were not scheduled in time.", exit_codes=codes)
    stuck = next((pod for pod in seen.pods if pod.phase is PodPhase.PENDING), seen.pods[0])
    why = f" ({stuck.reason})" if stuck.reason else ""
    reason = f"Pod {stuck.name} did not start in time{why}."
    return AttemptEnd(state=A.NEVER_RAN, reason=reason, exit_codes=codes, counts_as_failure=True)


# ---------------------------------------------------------------- what it means for the job
