"""Everything that one scheduling cycle decides."""

from collections.abc import Mapping
from typing import NamedTuple

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.decide_job import AdmissionAction, AdmissionDecision
from evenkeel.domain.admission.scheduler_state import SchedulerState
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.renting.displacement import DisplacementDecision
from evenkeel.domain.renting.migration import DepartureDecision, MigrationDecision
from evenkeel.domain.renting.mixed_capacity import MixedDecision
from evenkeel.domain.renting.placement import NotPlaced, PlacementDecision
from evenkeel.domain.scheduling.queue_cursors import QueueCursors
from evenkeel.domain.scheduling.resize_facts import ResizePlan
from evenkeel.domain.scheduling.serving_demand import ServingDemand, ServingRentalPlan, ServingReturn

Placement = PlacementDecision | NotPlaced
"""The pool where a job should run, or why no nodes are rented for it now."""


class AdmissionStep(NamedTuple):
    """A job that starts now, on its nodes or through Kueue."""

    decision: AdmissionDecision


class PreemptionStep(NamedTuple):
    """A job for which other jobs are asked to stop now."""

    decision: AdmissionDecision
    victims: Mapping[str, str]
    """Job whose stop the cycle requests → Kueue's reason. Jobs that were asked earlier are not listed."""


class RentStep(NamedTuple):
    """A job for which nodes are rented now."""

    decision: AdmissionDecision
    placement: PlacementDecision


class DisplacementStep(NamedTuple):
    """A job for which other jobs move to rented nodes now."""

    decision: AdmissionDecision
    displacement: DisplacementDecision


class PendingStep(NamedTuple):
    """A job that waits, with the reason to record. In any mode but `act` the decision may be to start or to preempt."""

    decision: AdmissionDecision
    mode: Mode
    placement: Placement | None = None
    """Where else the job could run; None if that was not examined."""


JobStep = AdmissionStep | PreemptionStep | RentStep | DisplacementStep | PendingStep


class MixedStep(NamedTuple):
    """The decision about rented nodes for one running job."""

    job_id: str
    decision: MixedDecision


class Departure(NamedTuple):
    """A job that leaves its rented nodes."""

    job_id: str
    decision: DepartureDecision


class MissingFacts(NamedTuple):
    """Facts that the decisions need and the snapshot does not hold. The cycle reads them and decides again."""

    queues: tuple[str, ...] = ()
    """Teams whose next page is needed: no job of the first page of their queue can start or blocks the queue."""
    jobs: tuple[str, ...] = ()
    """Jobs to read by id."""
    attempts_of: tuple[str, ...] = ()
    """Jobs whose attempts to read."""
    needs_shortages: bool = False
    """Whether to read the recent refusals of capacity."""
    needs_past_jobs: bool = False
    """Whether to read the run times of jobs that ended."""


class QueuePlan(NamedTuple):
    """Decisions about the pending jobs and about the sizes of running jobs."""

    admission_input: AdmissionInput = AdmissionInput()
    """The input of the decisions. It lacks the nodes that serving replicas take."""
    pending: Mapping[str, Job] = {}
    """The pending jobs that were decided, by id."""
    decisions: tuple[AdmissionDecision, ...] = ()
    """Decisions about all pending jobs, in the order of commits."""
    resizes: ResizePlan = ResizePlan()
    demand: ServingDemand = ServingDemand()
    """Serving replicas that wait, and the nodes that they will take."""
    cursors_of_next_cycle: QueueCursors | None = None
    """The cursors from which the next cycle continues in long queues."""


class CyclePlan(NamedTuple):
    """Everything that one scheduling cycle decides. Each decision carries its reason, alternatives and facts."""

    queue_plan: QueuePlan = QueuePlan()
    missing: MissingFacts = MissingFacts()
    """Facts to read before the plan is complete. Until then, the plan holds at most the decisions of the queue."""
    scheduler_state: SchedulerState = SchedulerState()
    """The state of earlier cycles that still matters. Each commit adds to it."""
    steps: tuple[JobStep, ...] = ()
    """A step for each pending job, in the order of commits. A job whose rented nodes are starting has none."""
    serving_rentals: tuple[ServingRentalPlan, ...] = ()
    """Nodes to rent for serving replicas, and the reasons why none are rented."""
    serving_return: ServingReturn | None = None
    """A rented node whose replicas move to committed nodes: at most one in each cycle."""
    departure: Departure | None = None
    """A job that leaves its rented nodes: at most one in each cycle."""
    reservation_stops: tuple[MigrationDecision, ...] = ()
    """Jobs that must leave nodes whose reservation ends."""
    mixed_steps: tuple[MixedStep, ...] = ()
    """Running jobs for which rented nodes were compared, to join their committed nodes."""
    queue_stops: tuple[str, ...] = ()
    """Jobs that must stop because the queue of their team is drained."""

    @property
    def is_incomplete(self) -> bool:
        """Whether facts are missing."""
        return self.missing != MissingFacts()

    @property
    def decisions(self) -> tuple[AdmissionDecision, ...]:
        """The decisions about the pending jobs."""
        return self.queue_plan.decisions

    @property
    def resizes(self) -> ResizePlan:
        """The size changes of running jobs."""
        return self.queue_plan.resizes

    @property
    def admissions(self) -> tuple[AdmissionStep, ...]:
        """The jobs that start now."""
        return tuple(step for step in self.steps if isinstance(step, AdmissionStep))

    @property
    def pending_count(self) -> int:
        """Number of pending jobs that do not start."""
        return sum(decision.action is not AdmissionAction.ADMIT for decision in self.decisions)
