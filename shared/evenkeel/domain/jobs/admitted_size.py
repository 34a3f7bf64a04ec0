"""Judge the number of pods with which Kueue admitted an attempt of an elastic job.

Kueue searches downward from the requested number to the smallest size, in steps of one pod. It may find a number
between two sizes of the job. The job then asks again, for the next smaller size.

    sizes 2 and 4: Kueue admits 4 ── the pods start as 4
                   Kueue admits 3 ── the attempt stops before its pods start; the next one asks for 2
                   Kueue admits 2 ── the pods start as 2
"""

from enum import StrEnum

from evenkeel.domain.elastic.sizes import Sizes
from evenkeel.domain.external.kueue_status import eviction_of
from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedWorkload
from evenkeel.domain.jobs.job import Job, ResizeRequest
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Instant, Sentence, Value


class AdmittedSizeAction(StrEnum):
    """Action for an attempt that Kueue may admit with fewer pods than requested."""

    WAIT = "WAIT"
    """Kueue has not admitted it, or nothing is left to do."""
    START = "START"
    """Its pods may start with this number."""
    ASK_AGAIN = "ASK_AGAIN"
    """No size of the job. It stops, and its next attempt asks for a size."""


class AdmittedSize(Value):
    """The answer to the number of pods that Kueue admitted."""

    action: AdmittedSizeAction
    size: int = 0
    """Pods of the attempt."""
    next_size: int | None = None
    """Pods that the next attempt asks for, after `ASK_AGAIN`; None for the requested size."""
    reason: Sentence = ""


_MAX_NAMED = 12
_WAIT = AdmittedSize(action=AdmittedSizeAction.WAIT)


def judge_admitted_size(job: Job, attempt: Attempt, workload: ObservedWorkload) -> AdmittedSize:
    """Judge the number of pods with which Kueue started the Job of an attempt.

    Kueue sets the number and starts the Job in one write, so a Job that is not suspended has its final number.
    """
    sizes, size = job.spec.sizes, workload.parallelism
    if not attempt.requested_size or sizes is None or job.stop_of(attempt.attempt) is not None:
        return _WAIT
    if not workload.uid or workload.is_deleting or workload.is_suspended or not size:
        return _WAIT
    if workload.kueue is not None and eviction_of(workload.kueue) is not None:
        return _WAIT  # the attempt is over, even if Kueue admitted the same Job again
    if attempt.size not in (attempt.requested_size, size):
        reason = (
            f"Kueue started attempt {attempt.attempt} again with {count_of(size, 'pod')}, "
            f"but its size was {attempt.size} before."
        )
        return ask_for_size(size, None, reason)
    if size in sizes.legal and size <= attempt.requested_size:
        reason = f"Its pods got world size {size}."
        return AdmittedSize(action=AdmittedSizeAction.START, size=size, reason=reason)
    return _no_size(sizes, size)


def _no_size(sizes: Sizes, size: int) -> AdmittedSize:
    """Return the answer to a number of pods that is no size of the job."""
    next_size = sizes.largest_up_to(size)
    names = ", ".join(map(str, sizes.legal[:_MAX_NAMED])) + (", …" if len(sizes.legal) > _MAX_NAMED else "")
    reason = f"Kueue admits the job with {count_of(size, 'node')}, which is none of its sizes ({names})."
    if next_size:
        reason += f" Its next attempt asks Kueue for {count_of(next_size, 'node')}."
    return ask_for_size(size, next_size, reason)


def ask_for_size(size: int, next_size: int | None, reason: str) -> AdmittedSize:
    """Return the answer that the next attempt asks for another number of pods."""
    return AdmittedSize(action=AdmittedSizeAction.ASK_AGAIN, size=size, next_size=next_size, reason=reason)


def stopped_for_a_size(job: Job, answer: AdmittedSize, by: str, now: Instant) -> Job:
    """Return a job whose current attempt stops, so that its next attempt asks Kueue for one of its sizes.

    Without a next size, the cause is no number that Kueue found. The job then pauses, like after any attempt that never
    ran.
    """
    number = job.current_attempt
    request = job.stop_request_now(answer.reason, by, now)
    resize = ResizeRequest(
        after_attempt=number,
        from_nodes=job.size,
        nodes=answer.next_size or job.spec.nodes,
        reason=answer.reason,
        asked_at=now,
    )
    return job.replace(
        stop_request=request if answer.next_size else request.replace(outcome=AttemptState.NEVER_RAN),
        reason=answer.reason,
        resize=resize if answer.next_size else job.resize,
    )
