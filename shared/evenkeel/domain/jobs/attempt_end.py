"""Attempts: who may write which state, how an end is judged, and what it means for the job."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from evenkeel.domain.external.kueue_status import eviction_of
from evenkeel.domain.jobs.job import (
    Attempt,
    AttemptState,
    Job,
    JobState,
    LikeFailure,
    PodPhase,
    PodSeen,
    StopRequest,
    WorkloadSeen,
)
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.policy import JobPolicy
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
_ENDS = tuple(state for state in A if state.has_ended)
_LIVE = (A.STARTING, A.LAUNCHED, A.RUNNING)

ATTEMPT_WRITERS: Mapping[str, frozenset[tuple[AttemptState | None, AttemptState]]] = {
    "schedule_jobs": frozenset({(None, A.STARTING)}),
    "launch_job": frozenset({(A.STARTING, A.STARTING), (A.STARTING, A.LAUNCHED)}),
    "mark_running": frozenset({(A.LAUNCHED, A.RUNNING)}),
    "record_pin": frozenset({(A.LAUNCHED, A.LAUNCHED), (A.RUNNING, A.RUNNING)}),
    "record_seats": frozenset({(A.RUNNING, A.RUNNING)}),
    "settle_attempt": frozenset((before, after) for before in _LIVE for after in _ENDS),
}
"""Every change of an attempt's state, by the service that may make it. None = there was no attempt."""

JOB_WRITERS: Mapping[str, frozenset[tuple[JobState | None, JobState]]] = {
    "submit_job": frozenset({(None, J.PENDING)}),
    "cancel_job": frozenset(
        {(J.PENDING, J.CANCELLED), (J.SUSPENDED, J.CANCELLED), (J.STARTING, J.STOPPING), (J.RUNNING, J.STOPPING)}
    ),
    # What runs is asked to stop, and is suspended when it is settled.
    "suspend_job": frozenset(
        {(J.PENDING, J.SUSPENDED), (J.SUSPENDED, J.PENDING), (J.STARTING, J.STARTING), (J.RUNNING, J.RUNNING)}
    ),
    "rank_job": frozenset((state, state) for state in (J.PENDING, J.STARTING, J.RUNNING, J.SUSPENDED)),
    # Who has to stop for another job is asked to, and nothing else.
    "schedule_jobs": frozenset(
        {(J.PENDING, J.PENDING), (J.PENDING, J.STARTING), (J.STARTING, J.STARTING), (J.RUNNING, J.RUNNING)}
    ),
    # Where a waiting job is rented for, and that one on rented nodes goes home.
    "rentals": frozenset({(J.PENDING, J.PENDING), (J.RUNNING, J.RUNNING)}),
    # Who changes size, or has to leave machines that go, is asked to stop, and nothing else.
    "resize_jobs": frozenset({(J.STARTING, J.STARTING), (J.RUNNING, J.RUNNING)}),
    "leave_pools": frozenset({(J.STARTING, J.STARTING), (J.RUNNING, J.RUNNING)}),
    # A job cancelled while it started stays STOPPING when its pods run.
    "mark_running": frozenset({(J.STARTING, J.RUNNING), (J.STOPPING, J.STOPPING)}),
    "stop_attempt": frozenset((state, state) for state in (J.STARTING, J.RUNNING, J.STOPPING)),
    "settle_attempt": frozenset(
        (before, after)
        for before in (J.STARTING, J.RUNNING, J.STOPPING)
        for after in (J.PENDING, J.SUSPENDED, J.SUCCEEDED, J.FAILED, J.CANCELLED)
    ),
    # Recoveries write their requests and plans on a job, and never its state.
    "protect_jobs": frozenset((state, state) for state in J),
    "plan_resume": frozenset((state, state) for state in J),
}
"""Every change of a job's state, by the service that may make it. None = there was no job."""


def attempt_writers(before: AttemptState | None, after: AttemptState) -> tuple[str, ...]:
    """Return the services that may take an attempt from one state to another."""
    return tuple(writer for writer, changes in ATTEMPT_WRITERS.items() if (before, after) in changes)


def job_writers(before: JobState | None, after: JobState) -> tuple[str, ...]:
    """Return the services that may take a job from one state to another."""
    return tuple(writer for writer, changes in JOB_WRITERS.items() if (before, after) in changes)


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


class Ending(Value):
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
    is_damage: bool = False
    """Whether the checkpoint it resumed from is at fault."""
    exit_code: int | None = None
    """Of the pod that the application is blamed by; None where nobody is blamed, or it was killed."""
    gave_way: bool = False
    """Whether it ended for others who needed the room, without a request of ours."""
    asked_at: Instant | None = None
    """When somebody else asked it to end."""


def judge_end(
    seen: WorkloadSeen,
    job: Job,
    attempt: Attempt,
    lost_nodes: frozenset[str],
    sick_nodes: frozenset[str] = frozenset(),
) -> Ending | None:
    """Judge whether and how a launched attempt ended; None while any pod may still run.

    The gang ends together, so blame waits for the last pod: a rank that lost its peer fails at once, long before the
    peer's node is known to be lost.

    Args:
        seen: The attempt's Job and pods.
        job: Its job.
        attempt: The attempt.
        lost_nodes: Nodes that are gone or NotReady past the limit: their pods are fenced out, not waited for.
        sick_nodes: Nodes with an open incident or NotReady: they take the blame for what failed on them.
    """
    codes = {pod.name: pod.exit_code for pod in seen.pods if pod.exit_code is not None}
    # A pod that is told to go may say that it ended well, and of a Job that is suspended that is no success either.
    succeeded = [pod for pod in seen.pods if pod.phase is PodPhase.SUCCEEDED and not pod.is_terminating]
    has_succeeded = seen.has_completed or (len(succeeded) == attempt.ranks and not seen.is_suspended)
    if has_succeeded and not seen.pods_alive():
        return Ending(state=A.SUCCEEDED, reason="Every rank ended with success.", exit_codes=codes)
    if seen.pods_alive(lost_nodes):
        return None
    evicted = _evicted(seen, job, attempt, codes)
    if evicted is not None:
        return evicted
    fenced_out = [pod for pod in seen.pods if not pod.has_ended]
    failed = [pod for pod in seen.pods if pod.phase is PodPhase.FAILED]
    is_gone = not seen.uid or seen.is_deleting
    if not (fenced_out or failed or seen.has_failed or is_gone):
        return None  # the Job exists and has not made its pods yet
    request = job.stop_of(attempt.attempt)
    if request:
        return _as_requested(request, codes)
    if attempt.state is A.STARTING and is_gone:
        return None  # not launched yet
    if seen.was_disrupted and not fenced_out:
        return Ending(state=A.LOST, reason="A pod of it was evicted, or went with its node.", exit_codes=codes)
    return _blame(failed, fenced_out, attempt, lost_nodes, sick_nodes, codes)


def contradicted(told: Ending, seen: WorkloadSeen) -> Ending | None:
    """Return the end of an attempt that was seen to end by itself and has live pods; None where it has none.

    A success would drop the job while it runs, and a failure would blame it. It is queued again instead: the next
    launch waits for the pods or fences them out.

    Args:
        told: How the attempt was seen to end before.
        seen: Its Job and pods now.
    """
    alive = seen.pods_alive()
    if told.state not in (A.SUCCEEDED, A.FAILED) or not alive:
        return None
    names = ", ".join(pod.name for pod in alive[:3])
    reason = f"It was seen as {told.state}, but pods of it are alive: {names}. It is queued again."
    return Ending(state=A.LOST, reason=reason, exit_codes=told.exit_codes)


def _evicted(seen: WorkloadSeen, job: Job, attempt: Attempt, codes: dict[str, int]) -> Ending | None:
    """Return the end of an attempt that Kueue evicted; None where it did not, or the application failed by itself.

    One that never ran in full has nothing to lose, and pauses before it is handed over again: Kueue's own count of its
    tries goes with the Workload.
    """
    evicted = eviction_of(seen.kueue) if seen.kueue and not seen.has_failed else None
    if evicted is None:
        return None
    asked = job.stop_of(attempt.attempt)
    if asked:
        return _as_requested(asked, codes)
    has_run = attempt.state is A.RUNNING or evicted.gave_way
    return Ending(
        state=A.STOPPED if has_run else A.NEVER_RAN,
        reason=evicted.reason,
        exit_codes=codes,
        gave_way=evicted.gave_way,
        asked_at=evicted.at,
    )


def _as_requested(request: StopRequest, codes: dict[str, int]) -> Ending:
    return Ending(
        state=request.outcome,
        reason=request.reason,
        exit_codes=codes,
        counts_as_failure=request.counts_as_failure,
        is_final=request.is_final,
    )


def _blame(
    failed: list[PodSeen],
    fenced_out: list[PodSeen],
    attempt: Attempt,
    lost: frozenset[str],
    sick: frozenset[str],
    codes: dict[str, int],
) -> Ending:
    out = sorted({pod.node_name for pod in fenced_out} | (lost & set(attempt.node_names)))
    if out:
        return Ending(state=A.LOST, reason=f"{_named(out)} went out of reach.", exit_codes=codes)
    taken = next((pod for pod in failed if pod.reason in _LOST_REASONS), None)
    if taken:
        return Ending(state=A.LOST, reason=f"{taken.name} was taken by its node ({taken.reason}).", exit_codes=codes)
    if any(pod.exit_code == FENCED_EXIT for pod in failed):
        return Ending(state=A.LOST, reason="A later attempt has been fenced in.", exit_codes=codes)
    point = attempt.resume_from
    if point and any(pod.exit_code == DAMAGED_EXIT for pod in failed):
        reason = f"What it resumed from, step {point.step} of attempt {point.attempt}, is damaged."
        return Ending(state=A.LOST, reason=reason, exit_codes=codes, is_damage=True)
    if any(pod.exit_code == UNPROVED_EXIT for pod in failed):
        reason = "Rank 0 found finished checkpoints and could prove none; to start over would disown them."
        return Ending(state=A.FAILED, reason=reason, exit_codes=codes, counts_as_failure=True)
    if not failed:
        return Ending(state=A.LOST, reason="Its Kubernetes Job was deleted by somebody else.", exit_codes=codes)
    last_word = next((pod for pod in failed if pod.exit_code == DO_NOT_REQUEUE_EXIT), None)
    if last_word:
        reason = f"{last_word.name} said that it is not to be started again (exit code {DO_NOT_REQUEUE_EXIT})."
        return Ending(state=A.FAILED, reason=reason, exit_codes=codes, counts_as_failure=True, is_final=True)
    refused = next((pod for pod in failed if pod.exit_code is None), None)
    if refused:
        state = A.LOST if attempt.state is A.RUNNING else A.NEVER_RAN
        reason = f"{refused.name} was not run by its node ({refused.reason or 'it does not say why'})."
        return Ending(state=state, reason=reason, exit_codes=codes)
    cause = min(failed, key=_by_guilt)
    why = f", {cause.reason}" if cause.reason not in ("", "Error") else ""
    reason = f"{cause.name} failed (exit code {cause.exit_code}{why})."
    ending = Ending(
        state=A.FAILED,
        reason=reason,
        exit_codes=codes,
        counts_as_failure=True,
        exit_code=None if cause.exit_code in (*_KILLED, PEER_LOST_EXIT) else cause.exit_code,
    )
    return excused(ending, attempt, sick)


def excused(ending: Ending, attempt: Attempt, sick_nodes: frozenset[str]) -> Ending:
    """Return the end without blame for the job where one of its nodes is lost or sick: the whole gang ends with it.

    An attempt that never ran for that reason counts as LOST, so its job keeps its place and does not pause.
    """
    ill = sorted(sick_nodes & set(attempt.node_names))
    if ending.state not in (A.FAILED, A.NEVER_RAN) or not ill or ending.is_final:
        return ending
    said = "It failed" if ending.state is A.FAILED else "It did not start"
    reason = f"{said} on {_named(ill)}, which is lost or sick: {ending.reason}"
    return ending.but(state=A.LOST, reason=reason, counts_as_failure=False)


def _by_guilt(pod: PodSeen) -> tuple[int, str]:
    """The likely cause first: a pod that failed by itself, then one that was killed, then one that lost its peer."""
    if pod.exit_code == PEER_LOST_EXIT:
        return (2, pod.name)
    return (1 if pod.exit_code in _KILLED and pod.reason != "OOMKilled" else 0, pod.name)


def _named(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"


def judge_abandoned(seen: WorkloadSeen, job: Job, attempt: Attempt, failure: str) -> Ending:
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
        return _as_requested(request, codes)
    evicted = _evicted(seen, job, attempt, codes)
    if evicted is not None and not failure:
        return evicted
    if attempt.is_refused:
        return Ending(state=A.NEVER_RAN, reason=attempt.reason, is_final=True)
    if failure:
        state = A.LOST if attempt.state is A.RUNNING else A.NEVER_RAN
        return Ending(state=state, reason=f"Its workflow failed: {failure}", exit_codes=codes)
    if attempt.state is A.RUNNING:
        return Ending(state=A.LOST, reason="It ran past its deadline.", exit_codes=codes, is_final=True)
    if attempt.state is A.STARTING:
        return Ending(state=A.NEVER_RAN, reason=attempt.reason or "It could not be launched in time.")
    waiting = [pod for pod in seen.pods if not pod.node_name]
    if waiting or not seen.pods:
        return Ending(state=A.NEVER_RAN, reason="Its pods found no place in time.", exit_codes=codes)
    stuck = next((pod for pod in seen.pods if pod.phase is PodPhase.PENDING), seen.pods[0])
    why = f" ({stuck.reason})" if stuck.reason else ""
    reason = f"{stuck.name} did not start in time{why}."
    return Ending(state=A.NEVER_RAN, reason=reason, exit_codes=codes, counts_as_failure=True)


# ---------------------------------------------------------------- what it means for the job


class SettleOutcome(StrEnum):
    """What became of the job when an attempt was settled."""

    JOB_SUCCEEDED = "JOB_SUCCEEDED"
    JOB_REQUEUED = "JOB_REQUEUED"
    JOB_CANCELLED = "JOB_CANCELLED"
    JOB_FAILED = "JOB_FAILED"
    ALREADY_SETTLED = "ALREADY_SETTLED"


class Settlement(Value):
    """An attempt's end and the job's next state: committed together."""

    outcome: SettleOutcome
    attempt: Attempt
    job: Job


def settle(job: Job, attempt: Attempt, ending: Ending, policy: JobPolicy, now: datetime) -> Settlement:
    """Decide what an attempt's end means for its job.

    Only the application's own failures use up restarts; what infrastructure took is given back without limit.
    """
    asked = job.stop_of(attempt.attempt)
    ended = attempt.but(
        state=ending.state,
        reason=ending.reason,
        exit_codes=ending.exit_codes,
        stop_asked_at=asked.requested_at if asked else ending.asked_at,
        ended_at=now,
        charge_held=False,
    )
    damaged = {attempt.resume_from} if ending.is_damage and attempt.resume_from else set()
    if damaged & {*job.damaged_checkpoints}:
        # Rank 0 chose it, and an old library does not hear what is damaged: without a count that goes on for ever.
        reason = f"{ending.reason} That was known, and it was resumed from again."
        ending = ending.but(state=A.FAILED, counts_as_failure=True, reason=reason)
        ended = ended.but(state=ending.state, reason=reason)
    job = job.but(
        stop_request=None if asked else job.stop_request,
        damaged_checkpoints=tuple(dict.fromkeys((*job.damaged_checkpoints, *damaged))),
        is_preempted=job.is_preempted or ending.gave_way,
    )
    if ending.state is A.SUCCEEDED:
        return _final(SettleOutcome.JOB_SUCCEEDED, job, ended, ending.reason, now)
    if job.state is J.STOPPING:
        return _final(SettleOutcome.JOB_CANCELLED, job, ended, ending.reason, now)
    if ending.is_final:
        return _final(SettleOutcome.JOB_FAILED, job, ended, ending.reason, now)
    if not ending.counts_as_failure:
        never_ran = job.launch_failures + 1 if ending.state is A.NEVER_RAN else 0
        not_before = now + _pause(never_ran, policy) if never_ran else None
        if never_ran and job.has_grown_in(attempt.attempt):
            job = job.but(failed_growths=job.failed_growths + 1, growth_failed_at=now)
        again = job.but(
            reason=f"{ending.reason} Waits to run again.",
            not_before=not_before,
            launch_failures=never_ran,
            lost_at=now if ending.state is A.LOST else job.lost_at,
            # Who was not ready in time goes behind those of its priority that wait; nobody else loses its place.
            queued_at=now if never_ran and job.queue else job.queued_at,
        )
        return _requeued(again, ended, ending)
    alike = _alike(job, ended, ending, policy, now)
    job = job.but(last_failure=alike)
    if alike is not None and policy.same_failures and alike.times >= policy.same_failures:
        said = f" The same way and from the same point {alike.times} times: another attempt would not end otherwise."
        return _final(SettleOutcome.JOB_FAILED, job, ended, ending.reason + said, now)
    failures = job.application_failures + 1
    allowed = policy.application_restarts if job.spec.max_restarts is None else job.spec.max_restarts
    job = job.but(application_failures=failures)
    if failures > allowed:
        used = f" Its {allowed} restarts are used up." if allowed else " It allows no restart."
        return _final(SettleOutcome.JOB_FAILED, job, ended, ending.reason + used, now)
    reason = f"{ending.reason} Restart {failures} of {allowed} follows."
    return _requeued(job.but(reason=reason, not_before=now + _pause(failures, policy)), ended, ending)


def _requeued(job: Job, ended: Attempt, ending: Ending) -> Settlement:
    """It waits for capacity, or for somebody to resume it where somebody holds it back."""
    if job.is_suspended:
        again = job.but(state=J.SUSPENDED, reason=ending.reason, not_before=None, resize=None)
    else:
        again = job.but(state=J.PENDING)
    return Settlement(outcome=SettleOutcome.JOB_REQUEUED, attempt=ended, job=again)


def _alike(job: Job, attempt: Attempt, ending: Ending, policy: JobPolicy, now: datetime) -> LikeFailure | None:
    """Count failures that are alike: the same exit code, soon, and from the same point, so nothing was gained between.

    None where a failure is like no other: after a long run much may have happened, and a killed process says nothing.
    """
    ran = (now - (attempt.running_at or attempt.admitted_at)).total_seconds()
    if ending.exit_code is None or ran > policy.same_failure_seconds:
        return None
    point, before = attempt.resume_from, job.last_failure
    is_same = before is not None and (before.exit_code, before.resume_from) == (ending.exit_code, point)
    return LikeFailure(
        exit_code=ending.exit_code, resume_from=point, times=before.times + 1 if before and is_same else 1
    )


def _pause(failures: int, policy: JobPolicy) -> timedelta:
    """Doubles with each failure, up to a limit."""
    doubled = policy.restart_backoff_seconds * (1 << min(failures - 1, 30))
    return timedelta(seconds=min(doubled, policy.restart_backoff_max_seconds))


def outcome_of(job: Job) -> SettleOutcome:
    """Return the outcome that a job's state tells of its settled last attempt."""
    match job.state:
        case J.SUCCEEDED:
            return SettleOutcome.JOB_SUCCEEDED
        case J.FAILED:
            return SettleOutcome.JOB_FAILED
        case J.CANCELLED:
            return SettleOutcome.JOB_CANCELLED
        case J.PENDING | J.STARTING | J.RUNNING | J.STOPPING | J.SUSPENDED:
            return SettleOutcome.JOB_REQUEUED
        case _:
            assert_never(job.state)


def _final(outcome: SettleOutcome, job: Job, ended: Attempt, reason: str, now: datetime) -> Settlement:
    states = {
        SettleOutcome.JOB_SUCCEEDED: J.SUCCEEDED,
        SettleOutcome.JOB_CANCELLED: J.CANCELLED,
        SettleOutcome.JOB_FAILED: J.FAILED,
    }
    # A cancelled job says who cancelled it and why, however its last attempt ended.
    text = job.reason if outcome is SettleOutcome.JOB_CANCELLED else reason
    return Settlement(
        outcome=outcome, attempt=ended, job=job.but(state=states[outcome], reason=text, ended_at=now, not_before=None)
    )
