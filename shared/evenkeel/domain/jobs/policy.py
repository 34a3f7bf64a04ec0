"""Section of the policy for jobs."""

from typing import Annotated

from pydantic import Field

from evenkeel.domain.policy_base import Deadline, PriorityClass, Seconds, Section, Tries
from evenkeel.domain.values import Word

RESTART = "restart"
"""In the place of a fault class: the job runs again, and no fault of a node was the reason."""


class JobPolicy(Section):
    """Limits and deadlines of attempts."""

    priority_classes: Annotated[tuple[PriorityClass, ...], Field(max_length=100)] = ()
    """Kubernetes PriorityClasses that pods may have where no teams are set up; none of Kubernetes' own."""
    launch_deadline_seconds: Deadline = 900
    """How long the previous attempt's remains may delay a launch."""
    running_deadline_seconds: Deadline = 900
    """From launch until every pod runs (image pulls included)."""
    run_deadline_seconds: int = Field(default=30_000_000, ge=1, le=31_500_000)
    """Longest a run may take, just under the year that a workflow execution may last."""
    stop_deadline_seconds: Deadline = 1200
    """From a stop request until every pod is gone or fenced out."""
    lost_node_seconds: Seconds = 60
    """A node NotReady this long is taken as lost: its pods are fenced out, not waited for."""
    resume_deadline_seconds: Deadline = 3600
    """From the incident until the job runs again or is handed to the queue; past it a person is paged."""
    application_restarts: Tries = 3
    """Restarts after the application's own faults. Infrastructure faults do not count."""
    same_failures: Tries = 2
    """So many failures alike (same exit code, soon, from the same point) end a job: it would fail again; 0 = no."""
    same_failure_seconds: Seconds = 600
    """Only failures within this time of the pods' start are held to be alike."""
    restart_backoff_seconds: Seconds = 30
    """First pause after an application fault; doubles each time."""
    restart_backoff_max_seconds: Seconds = 3600
    launch_retry_seconds: Deadline = 5
    """Pause before a launch that waits for the previous attempt's remains looks again."""
    attribution_delay_seconds: Seconds = 20
    """A failed attempt waits this long before the application is blamed, so that a faulty node can show itself."""
    keep_workload_seconds: Seconds = 86_400
    """Ended pods of settled attempts are kept this long, so that their logs can be read; they hold no accelerator."""
    distrust_guard_seconds: Seconds = 300
    """Checkpoints whose write began after the first signal minus this are distrusted where the fault can corrupt."""
    convention_accepted_after: tuple[Word, ...] = (
        *("application", "capacity", "hardware", "info", "mixed", "network", "software"),
        RESTART,
    )
    """Fault classes of the catalogue after which a checkpoint that is complete by its writer's convention will do,
    though no checksum vouches for it; `restart` stands for none of them. After a fault that time does not bound, none
    ever does."""
    start_over_when_unproved: bool = False
    """Whether a job whose finished checkpoints all fail the proof begins again from nothing. If not, its launch is put
    off, with growing pauses, until one holds."""
    others_save_seconds: Seconds = 30
    """Where the faulty node is left at once: how long the other ranks of its jobs get to save."""
    rest_before_deadline_seconds: Seconds = 30
    """A save must be done, and its manifest in the store, this long before the machine goes."""
    finish_seconds: Seconds = 86_400
    """How long a job that asks for it may run on beside the cordon of a machine that can wait."""
    max_rollbacks: Tries = 3
    """How often a job may be stopped and taken back because what it had resumed from turned out to be in doubt."""
    expected_resume_seconds: Seconds = 1400
    """Restore and warm-up on free capacity; published p90 at 256 nodes is 1,398 s."""
    expected_replace_seconds: Seconds = 960

    def accepts_convention(self, fault_class: str) -> bool:
        """Whether completeness by convention is enough after a fault of this class, or after `RESTART`."""
        return fault_class in self.convention_accepted_after
