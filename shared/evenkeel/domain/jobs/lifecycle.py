"""The services that may change each state of a job or an attempt."""

from collections.abc import Mapping

from evenkeel.domain.jobs.attempt import AttemptState
from evenkeel.domain.jobs.attempt_end import A, J
from evenkeel.domain.jobs.job import JobState

_ENDS = tuple(state for state in A if state.has_ended)


_LIVE = (A.STARTING, A.LAUNCHED, A.RUNNING)


ATTEMPT_WRITERS: Mapping[str, frozenset[tuple[AttemptState | None, AttemptState]]] = {
    "schedule_jobs": frozenset({(None, A.STARTING)}),
    "launch_job": frozenset({(A.STARTING, A.STARTING), (A.STARTING, A.LAUNCHED)}),
    "mark_running": frozenset({(A.LAUNCHED, A.RUNNING)}),
    "record_pin": frozenset({(A.LAUNCHED, A.LAUNCHED), (A.RUNNING, A.RUNNING)}),
    "record_size": frozenset({(A.LAUNCHED, A.LAUNCHED)}),
    "record_nodes": frozenset({(A.RUNNING, A.RUNNING)}),
    "settle_attempt": frozenset((before, after) for before in _LIVE for after in _ENDS),
}
"""The allowed changes of an attempt's state, by service. The state None means that the attempt does not exist yet."""


JOB_WRITERS: Mapping[str, frozenset[tuple[JobState | None, JobState]]] = {
    "submit_job": frozenset({(None, J.PENDING)}),
    "cancel_job": frozenset(
        {(J.PENDING, J.CANCELLED), (J.SUSPENDED, J.CANCELLED), (J.STARTING, J.STOPPING), (J.RUNNING, J.STOPPING)}
    ),
    # A running job is asked to stop. It is suspended when its attempt is settled.
    "suspend_job": frozenset(
        {(J.PENDING, J.SUSPENDED), (J.SUSPENDED, J.PENDING), (J.STARTING, J.STARTING), (J.RUNNING, J.RUNNING)}
    ),
    "set_priority": frozenset((state, state) for state in (J.PENDING, J.STARTING, J.RUNNING, J.SUSPENDED)),
    # A preempted job is only asked to stop.
    "schedule_jobs": frozenset(
        {(J.PENDING, J.PENDING), (J.PENDING, J.STARTING), (J.STARTING, J.STARTING), (J.RUNNING, J.RUNNING)}
    ),
    # A waiting job gets a rental; a job on rented nodes migrates back to committed capacity.
    "rental_store": frozenset({(J.PENDING, J.PENDING), (J.RUNNING, J.RUNNING)}),
    # A job that changes size, or leaves expiring nodes, is only asked to stop.
    "resize_jobs": frozenset({(J.STARTING, J.STARTING), (J.RUNNING, J.RUNNING)}),
    "drain_reservations": frozenset({(J.STARTING, J.STARTING), (J.RUNNING, J.RUNNING)}),
    # A job that Kueue admitted with fewer pods has another size, or is asked to stop.
    "record_size": frozenset({(J.STARTING, J.STARTING)}),
    # A job cancelled while it started stays STOPPING when its pods run.
    "mark_running": frozenset({(J.STARTING, J.RUNNING), (J.STOPPING, J.STOPPING)}),
    "stop_attempt": frozenset((state, state) for state in (J.STARTING, J.RUNNING, J.STOPPING)),
    "settle_attempt": frozenset(
        (before, after)
        for before in (J.STARTING, J.RUNNING, J.STOPPING)
        for after in (J.PENDING, J.SUSPENDED, J.SUCCEEDED, J.FAILED, J.CANCELLED)
    ),
    # Recoveries write requests and plans on a job, never its state.
    "drain_node": frozenset((state, state) for state in J),
    "plan_resume": frozenset((state, state) for state in J),
}
"""The allowed changes of a job's state, by service. The state None means that the job does not exist yet."""
