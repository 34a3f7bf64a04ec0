"""The effects of a person's change of a job, in sentences. They are the plan that is shown before the change."""

from enum import StrEnum
from typing import assert_never

from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.plurals import count_of

_MAX_NODES_NAMED = 8


class JobChange(StrEnum):
    """A change of a job by a person."""

    CANCEL = "cancel"
    SUSPEND = "suspend"
    RESUME = "resume"
    PRIORITY = "priority"


def change_effects(change: JobChange, job_before: Job, job_after: Job, attempt: Attempt | None) -> tuple[str, ...]:
    """Return the effects of a change, most important first.

    Args:
        change: The change.
        job_before: The job now.
        job_after: The job directly after the change. It equals `job_before` if the change was made earlier.
        attempt: The latest attempt; None before the first.
    """
    if job_after == job_before:
        return (f"Nothing changes: {_unchanged(change)}.",)
    match change:
        case JobChange.CANCEL:
            return (
                *_stop_effects(job_after, attempt),
                *_plan_effects(job_before),
                "The job ends and never starts again.",
            )
        case JobChange.SUSPEND:
            if job_after.state is JobState.SUSPENDED:
                return ("The job leaves the queue until a person resumes it. Its queue position is kept.",)
            return (*_stop_effects(job_after, attempt), "The job does not start again until a person resumes it.")
        case JobChange.RESUME:
            if job_after.state is JobState.PENDING:
                return ("The job waits in the queue again, at its former position.", _start_point(job_before))
            return ("The stop of its attempt continues. After that, the job waits in the queue again.",)
        case JobChange.PRIORITY:
            return _priority_effects(job_before, job_after)
    assert_never(change)


def _unchanged(change: JobChange) -> str:
    return {
        JobChange.CANCEL: "the job is cancelled already, or is being cancelled",
        JobChange.SUSPEND: "the job is suspended already",
        JobChange.RESUME: "the job is not suspended",
        JobChange.PRIORITY: "the job has this class already",
    }[change]


def _stop_effects(job_after: Job, attempt: Attempt | None) -> tuple[str, ...]:
    if job_after.stop_request is None or attempt is None or attempt.state.has_ended:
        return ()
    freed_text = count_of(attempt.accelerators, "GPU becomes", "GPUs become")
    grace = count_of(job_after.stop_request.grace_seconds, "second")
    save_text = f"Its pods get {grace} to save a checkpoint."
    if not job_after.spec.checkpoint_uri:
        save_text = f"Its pods get {grace} to end. The job has no checkpoints, so its work is lost."
    return (f"Attempt {attempt.attempt} stops: {_nodes_text(attempt)}. {freed_text} free.", save_text)


def _nodes_text(attempt: Attempt) -> str:
    ids = [life.instance_id for life in attempt.nodes]
    if not ids:
        return f"its {count_of(attempt.ranks, 'pod')}, on nodes that Kueue chose"
    more_text = f" and {len(ids) - _MAX_NODES_NAMED} more" if len(ids) > _MAX_NODES_NAMED else ""
    return f"{count_of(len(ids), 'node')}, {', '.join(ids[:_MAX_NODES_NAMED])}{more_text}"


def _plan_effects(job_before: Job) -> tuple[str, ...]:
    plan = job_before.live_plan()
    return (f"The recovery {plan.incident_id} no longer resumes it.",) if plan else ()


def _start_point(job: Job) -> str:
    if not job.current_attempt:
        return "It starts for the first time."
    if job.spec.checkpoint_uri:
        return "It continues from its last proven checkpoint."
    return "It has no checkpoints, so it starts from step 0."


def _priority_effects(job_before: Job, job_after: Job) -> tuple[str, ...]:
    old_priority, new_priority = (
        f"{job.spec.priority_class or '(unset)'} (priority {job.priority})" for job in (job_before, job_after)
    )
    ranks = f"The class {old_priority} becomes {new_priority}."
    if job_before.state is JobState.PENDING:
        return (ranks, "The next scheduling cycle uses it. A higher priority may preempt jobs of lower priority.")
    if job_before.state is JobState.SUSPENDED:
        return (ranks, "The job stays suspended.")
    count_text = "More jobs" if job_after.priority < job_before.priority else "Fewer jobs"
    preemption_text = f"{count_text} than before may preempt it." if job_after.priority != job_before.priority else ""
    return (ranks, f"The job keeps running. {preemption_text}".rstrip())
