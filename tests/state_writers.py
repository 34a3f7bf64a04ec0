"""The services that may change the state of a job or an attempt, from the tables of `domain/jobs/lifecycle.py`."""

from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.jobs.lifecycle import ATTEMPT_WRITERS, JOB_WRITERS


def attempt_writers(from_state: AttemptState | None, to_state: AttemptState) -> tuple[str, ...]:
    """Return the services that may change an attempt from one state to another."""
    return tuple(writer for writer, changes in ATTEMPT_WRITERS.items() if (from_state, to_state) in changes)


def job_writers(from_state: JobState | None, to_state: JobState) -> tuple[str, ...]:
    """Return the services that may change a job from one state to another."""
    return tuple(writer for writer, changes in JOB_WRITERS.items() if (from_state, to_state) in changes)
