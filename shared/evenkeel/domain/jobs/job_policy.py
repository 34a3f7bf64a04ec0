"""Section of the policy for jobs."""

from typing import Annotated

from pydantic import Field

from evenkeel.domain.jobs.pod_rules import NOTHING_ALLOWED, PodRules
from evenkeel.domain.policy_section import Deadline, PriorityClass, Seconds, Section, Tries
from evenkeel.domain.values import Word

RESTART = "restart"
"""Used instead of a fault class: the job restarts, but not because of a node fault."""


class JobPolicy(Section):
    """Limits and deadlines of attempts."""

    priority_classes: Annotated[tuple[PriorityClass, ...], Field(max_length=100)] = ()
    """Kubernetes PriorityClasses that pods may have if there are no teams, without Kubernetes' own."""
    allowed: PodRules = NOTHING_ALLOWED
    """Claims, Secrets, user ids, scratch folders and huge pages that jobs may use if there are no teams."""
    launch_deadline_seconds: Deadline = 900
    """Longest delay of a launch by the remains of the previous attempt."""
    running_deadline_seconds: Deadline = 900
    """Time from launch until every pod runs (image pulls included)."""
    run_deadline_seconds: int = Field(default=30_000_000, ge=1, le=31_500_000)
    """Longest run time of an attempt, just below the year that a workflow execution may last."""
    stop_deadline_seconds: Deadline = 1200
    """Time from a stop request until every pod is gone or fenced out."""
    lost_node_seconds: Seconds = 60
    """A node that is NotReady for this long counts as lost: its pods are fenced out, not waited for."""
    resume_deadline_seconds: Deadline = 3600
    """Time from the incident until the job runs again or is queued. Afterwards a person is paged."""
    application_restarts: Tries = 3
    """Restarts after failures of the application. Infrastructure faults do not count."""
    same_failures: Tries = 2
    """Number of equal failures (same exit code, soon, from the same checkpoint) that end a job; 0 is no limit."""
    same_failure_seconds: Seconds = 600
    """Only failures within this time after the start of the pods count as equal."""
    restart_backoff_seconds: Seconds = 30
    """First pause after a failure of the application; it doubles each time."""
    restart_backoff_max_seconds: Seconds = 3600
    """The longest such pause."""
    launch_retry_seconds: Deadline = 5
    """Pause between tries of a launch that waits for the remains of the previous attempt."""
    attribution_delay_seconds: Seconds = 20
    """A failed attempt waits for this long before the application is blamed, so that a node fault can be found."""
    keep_workload_seconds: Seconds = 86_400
    """Time for which ended pods stay, so that their logs can be read. They hold no accelerators."""
    distrust_guard_seconds: Seconds = 300
    """Time before the first signal from which checkpoints are distrusted, if the fault can corrupt data."""
    convention_accepted_after: tuple[Word, ...] = (
        *("application", "capacity", "hardware", "info", "mixed", "network", "software"),
        RESTART,
    )
    """Fault classes after which a checkpoint without checksums is accepted if it is complete by convention.

    `restart` stands for a restart without a node fault. After a fault without a known start, no such checkpoint is
    accepted.
    """
    start_over_when_unproven: bool = False
    """Whether a job starts over if none of its finished checkpoints can be proved.

    If not, its launch is postponed, with growing pauses, until a proof succeeds.
    """
    others_save_seconds: Seconds = 30
    """If the faulty node is left at once: time for the other ranks of its jobs to save."""
    rest_before_deadline_seconds: Seconds = 30
    """A save must be complete, with its manifest in the store, this long before the node ends."""
    finish_seconds: Seconds = 86_400
    """Longest time that a job with `finish` may continue on a cordoned node whose repair can wait."""
    max_rollbacks: Tries = 3
    """How often a job may be stopped and rolled back because its resume point was distrusted later."""
    expected_resume_seconds: Seconds = 1400
    """Restore and warm-up on free capacity; the published p90 at 256 nodes is 1,398 s."""
    expected_replace_seconds: Seconds = 960
    """From the request until the replacement is Ready; the published p90 is about 16 minutes."""

    def accepts_convention(self, fault_class: str) -> bool:
        """Whether completeness by convention is enough after a fault of this class, or after `RESTART`."""
        return fault_class in self.convention_accepted_after
