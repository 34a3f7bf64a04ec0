"""Jobs: their states, requests to stop or resize them, and plans to resume them."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from pydantic import Field

from evenkeel.domain.capacity.network_topology import NetworkLevel
from evenkeel.domain.elastic.throughput import MAX_POINTS, SizeThroughput, Throughput, known_throughput
from evenkeel.domain.jobs.attempt import AttemptState, ResumePoint
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.values import Instant, Sentence, Sentences, Value


class JobState(StrEnum):
    """The state of a job."""

    PENDING = "PENDING"
    """It waits for capacity, for the first time or again after an attempt ended."""
    STARTING = "STARTING"
    """Admitted: attempt `currentAttempt` is being launched."""
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    """It was cancelled, and its pods are ending."""
    SUSPENDED = "SUSPENDED"
    """A person suspended it. It uses and waits for nothing until a person resumes it."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def has_ended(self) -> bool:
        """Whether the job will never run again."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

    @property
    def has_live_attempt(self) -> bool:
        """Whether its current attempt is not settled yet."""
        return self in (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)

    @property
    def is_at_rest(self) -> bool:
        """Whether no service needs to act on the job: it has ended, or is suspended."""
        return self.has_ended or self is JobState.SUSPENDED


LIST_ORDER = (
    *(state for state in JobState if not state.has_ended),
    JobState.PENDING,
    *(state for state in JobState if state.has_ended),
)
"""The order in which a list reads the states, one after another.

It misses no job that changes its state meanwhile, because each state comes after its earlier states. Every open state
leads to PENDING, and PENDING leads to every other open state, so PENDING is read twice.
"""


class ResumeOption(StrEnum):
    """The ways to resume an interrupted job."""

    SPARE = "SPARE"
    FREE_NODE = "FREE_NODE"
    WAIT_FOR_REPAIR = "WAIT_FOR_REPAIR"
    SHRINK = "SHRINK"
    """Continue with fewer nodes."""
    RENT = "RENT"
    """Run on rented nodes."""
    PREEMPT = "PREEMPT"
    """Preempt other jobs, as the policies of the queue allow."""


class CheckpointRequirement(StrEnum):
    """The requirement on a checkpoint before a job resumes from it, the weakest first."""

    CONVENTION = "CONVENTION"
    """It is complete by the convention of the library that wrote it."""
    PROOF = "PROOF"
    """Every size and checksum matches."""
    EVIDENCE = "EVIDENCE"
    """Proved, and both it and the next checkpoint state healthy numbers."""

    @property
    def strictness(self) -> int:
        """The strength of the requirement; 0 is the weakest."""
        return list(CheckpointRequirement).index(self)


class ResumePlan(Value):
    """The plan of `recover_node` for an interrupted job. It is recorded on the job; only `schedule_jobs` acts on it."""

    incident_id: str
    after_attempt: int
    """The interrupted attempt. The plan is void once a later attempt exists."""
    option: ResumeOption
    avoid: tuple[str, ...] = ()
    """Keys of node lives that the job must avoid."""
    distrust_after: Instant | None = None
    """Checkpoints whose write began after this time are distrusted; None trusts all."""
    requirement: CheckpointRequirement = CheckpointRequirement.CONVENTION
    """The requirement on checkpoints of the interrupted attempt and earlier attempts."""
    shrinks_at: Instant | None = None
    """When an elastic job continues with fewer nodes instead of waiting for all; None if it is not elastic."""
    max_rent_parts: int | None = None
    """Maximum rent for which it is resumed on rented nodes, in parts of `economics.money`; None if it waits."""
    capacity_at: Instant | None = None
    """When its recovery expects committed nodes for the job. Until then, scheduling cycles expect the same."""
    near_level: NetworkLevel | None = None
    """Network level of which one domain must hold the job's nodes until `far_nodes_at`; None if any nodes will do."""
    far_nodes_at: Instant | None = None
    """When the job also takes nodes that are farther apart. Until then, waiting loses less than their slowdown."""
    is_faulty_node_committed: bool = Field(default=False, alias="lostCommitted")
    """Whether the faulty node is committed. Then nodes rented for the job are temporary: it leaves them when committed
    nodes are free for it.
    """
    decision_id: str = ""
    planned_at: Instant


class StopRequest(Value):
    """A request to stop an attempt."""

    attempt: int
    reason: Sentence
    """The reason as a sentence."""
    by: str
    """`recover_node/inc-…`, `cancel/<principal>`."""
    outcome: AttemptState = AttemptState.STOPPED
    """The state of the settled attempt: STOPPED, or LOST after an infrastructure fault."""
    grace_seconds: int
    requested_at: Instant
    counts_as_failure: bool = False
    """Whether the end uses up a restart of the application."""
    is_final: bool = False
    """Whether another attempt would end in the same way."""
    nodes_without_grace: tuple[str, ...] = ()
    """Nodes whose pods cannot save and get no grace."""

    def without_grace_on(self, node_names: Iterable[str], grace_seconds: int) -> Self:
        """Return the request after nodes can no longer save; unchanged if it gives these nodes no grace already.

        Args:
            node_names: The nodes.
            grace_seconds: The longest grace for the pods on other nodes.
        """
        new_names = tuple(name for name in node_names if name not in self.nodes_without_grace)
        if not new_names:
            return self
        return self.replace(
            grace_seconds=min(self.grace_seconds, grace_seconds),
            nodes_without_grace=(*self.nodes_without_grace, *new_names),
        )


class ResizeRequest(Value):
    """A request to stop an attempt so that the next one runs on another number of nodes."""

    after_attempt: int
    """The attempt that stops. The request is void once a later attempt exists."""
    from_nodes: int
    nodes: int
    rented_nodes: int = 0
    """How many of the new nodes are rented nodes that are ready. The job does not wait for them."""
    reason: Sentence
    for_job: str = ""
    """The job that gets the nodes; empty if the job grows, or if unmanaged pods get them."""
    decision_id: str = ""
    asked_at: Instant


class RepeatedFailure(Value):
    """The last failure of the application, and how often it repeated in a row."""

    exit_code: int
    resume_from: ResumePoint | None = None
    times: int = 1


class PlacementNote(Value):
    """The last note on where a pending job could run. A new note is written only when the answer changes."""

    key: str
    """Equal for answers that differ only in their figures."""
    text: Sentence
    decision_id: str = ""


class Job(Value):
    """A training job over all its attempts."""

    job_id: str
    spec: JobSpec
    state: JobState
    reason: Sentences = ""
    """Why it is in this state: a sentence."""
    submitted_at: Instant
    submitted_by: str = ""
    submitter: str = Field(default="", alias="owner")
    """The principal that submitted it, without its session."""
    cluster: str
    namespace: str
    service_account: str = ""
    """Service account of its pods, from its team; empty for the stack's own account."""
    is_preempted: bool = False
    """Whether it was preempted and has not started again since."""
    is_suspended: bool = False
    """Whether a person suspended it. After the end of its attempt it does not wait for capacity."""
    suspended_at: Instant | None = None
    """Since when it is suspended; None if it is not, or if an earlier release suspended it."""
    suspended_seconds: float = 0
    """How long it was suspended before. This time is no delay of the job."""
    queue: str = ""
    """The queue of its team; empty without teams: there is one queue for all jobs."""
    priority: int = 0
    """Priority of its class, from its submission or the last change of its class."""
    queued_at: Instant | None = None
    """When it lost its position in the queue; None if its submission decides its position."""
    current_attempt: int = 0
    local_queue: str = ""
    """Kueue's LocalQueue of its current attempt; empty if Evenkeel admitted it."""
    not_before: Instant | None = None
    """Earliest next admission (back-off)."""
    application_failures: int = 0
    last_failure: RepeatedFailure | None = None
    launch_failures: int = 0
    """Attempts in a row that never ran."""
    lost_at: Instant | None = None
    """When infrastructure ended its last attempt; None once it has started again."""
    resume_plan: ResumePlan | None = None
    resumed_after: int = 0
    """The last attempt before a person resumed it. A resume plan after this attempt gives it no earlier position."""
    stop_request: StopRequest | None = None
    size: int = 0
    """Nodes of the current attempt; 0 before the first."""
    rented_nodes: int = 0
    """How many nodes of the current attempt are its rented part. 0 if all are committed, or all are rented."""
    resize: ResizeRequest | None = None
    resized_at: Instant | None = None
    """When an attempt was last admitted at another size than the attempt before."""
    failed_growths: int = 0
    """Growths in a row that failed: the larger size was not available, or the attempt did not run."""
    growth_failed_at: Instant | None = None
    measured_throughput: tuple[SizeThroughput, ...] = ()
    """The last throughput that its checkpoints reported at each size."""
    distrust_after: Instant | None = None
    """The strictest distrust of its checkpoints by any incident, up to attempt `distrust_through_attempt`."""
    distrust_through_attempt: int = 0
    """The last attempt that `distrust_after` and `requirement` concern. Later attempts ran on other nodes."""
    requirement: CheckpointRequirement = CheckpointRequirement.CONVENTION
    """The strictest requirement on its checkpoints by any incident."""
    rollbacks: int = 0
    """How often an attempt was stopped because its resume point was distrusted later."""
    damaged_checkpoints: tuple[ResumePoint, ...] = ()
    """Checkpoints that an attempt was pinned to and could not read. Later attempts avoid them."""
    rentals: int = 0
    """Number of rentals so far. The last one counts."""
    mixed_note: PlacementNote | None = None
    """The last message about rented nodes that could join its committed nodes."""
    placement: PlacementNote | None = None
    """While it is pending: where it could run, and why nothing is rented for it. Its text ends the reason."""
    avoids_spot: bool = False
    """Whether its last rental avoided spot because of its deadline. This holds until the job is well ahead of its
    schedule."""
    is_migrating_back: bool = False
    """Whether it was stopped on rented nodes to continue on committed nodes, and has not started again since."""
    displaced_at: Instant | None = None
    """When it was stopped on committed nodes to free them for another job; None once it has started again. Until then
    it is behind the jobs that waited at that time; with teams, behind those of equal priority in its queue. With
    `backfillSeconds`, it is behind all other jobs for that time."""
    displacing_since: Instant | None = None
    """When other jobs were asked to free nodes for it; None once it has started. Until then it is ahead of the jobs of
    its queue that had no nodes before, because the nodes become free for it."""
    moves: int = 0
    """How often it was moved between committed and rented nodes to save money."""
    open_job_counters: tuple[str, ...] = ()
    """The counters of open jobs that count it until it ends; none if it is older than the limits."""
    started_at: Instant | None = None
    ended_at: Instant | None = None
    result: dict[str, Any] = {}

    def stop_of(self, attempt: int) -> StopRequest | None:
        """Return the request to stop this attempt; None if there is none."""
        request = self.stop_request
        return request if request and request.attempt == attempt else None

    def stop_request_now(self, reason: str, by: str, now: datetime) -> StopRequest:
        """Return the request that the current attempt stops, with its grace period.

        A recovery may have requested a stop before. Its grace and outcome then stay; only the next state differs.
        """
        return self.stop_of(self.current_attempt) or StopRequest(
            attempt=self.current_attempt,
            reason=reason,
            by=by,
            outcome=AttemptState.STOPPED,
            grace_seconds=self.spec.grace_seconds,
            requested_at=now,
        )

    @property
    def is_stoppable(self) -> bool:
        """Whether its current attempt starts or runs and was not asked to stop."""
        is_at_work = self.state in (JobState.STARTING, JobState.RUNNING)
        return is_at_work and self.stop_of(self.current_attempt) is None

    def launch_mode(self, stack_mode: Mode, attempt: int) -> Mode:
        """Return the mode for the launch of an attempt.

        In `recommend`, a launch that a recovery planned is allowed: a person approved that recovery, and it must
        restart the jobs that it stopped.
        """
        return Mode.ACT if stack_mode is Mode.RECOMMEND and self.is_planned(attempt) else stack_mode

    @property
    def queue_reason(self) -> str:
        """Why it is pending, without the message about where it could run."""
        return self.reason.removesuffix(f" {self.placement.text}") if self.placement else self.reason

    def live_plan(self) -> ResumePlan | None:
        """Return the resume plan while it is valid: until an attempt later than the interrupted one exists."""
        plan = self.resume_plan
        return plan if plan and plan.after_attempt >= self.current_attempt else None

    def near_level(self, now: datetime) -> NetworkLevel | None:
        """Return the network level that its resume plan requires now; None if any nodes will do."""
        plan = self.live_plan()
        if plan is None or self.is_preempted or plan.far_nodes_at is None or now >= plan.far_nodes_at:
            return None
        return plan.near_level

    @property
    def committed_size(self) -> int:
        """Nodes of the current attempt without its rented part."""
        return self.size - self.rented_nodes

    @property
    def next_node_count(self) -> int:
        """The number of nodes for its next attempt: as requested, or its grown size after a fault."""
        last_size = self.committed_size if self.spec.elastic and self.live_plan() else 0
        return max(self.spec.nodes, last_size)

    def live_resize(self) -> ResizeRequest | None:
        """Return the resize request while it is valid: until the job ends, or a later attempt than the stopped one."""
        resize = None if self.state.has_ended else self.resize
        return resize if resize and resize.after_attempt >= self.current_attempt else None

    def at_size(self, nodes: int, now: datetime, rented_nodes: int = 0) -> "Job":
        """Return this job with its next attempt admitted to this many nodes, of which some are its rented part."""
        resize = self.live_resize()
        has_failed = resize is not None and resize.from_nodes < resize.nodes > nodes
        return self.replace(
            size=nodes,
            rented_nodes=rented_nodes,
            resized_at=now if resize or self.size not in (0, nodes) else self.resized_at,
            failed_growths=self.failed_growths + has_failed,
            growth_failed_at=now if has_failed else self.growth_failed_at,
        )

    @property
    def throughput(self) -> Throughput | None:
        """Its throughput by size, measured or declared; None if unknown."""
        declared_sizes = self.spec.elastic.throughput if self.spec.elastic else ()
        return known_throughput(declared_sizes, self.measured_throughput)

    def with_throughput(self, nodes: int, per_second: float) -> "Job":
        """Return this job with the throughput that it reported at a size. The last `MAX_POINTS` sizes are kept."""
        size_throughputs = [point for point in self.measured_throughput if point.nodes != nodes]
        return self.replace(
            measured_throughput=(*size_throughputs, SizeThroughput(nodes=nodes, per_second=per_second))[-MAX_POINTS:]
        )

    def is_growth_attempt(self, attempt: int) -> bool:
        """Whether a smaller attempt was stopped to start this attempt."""
        resize = self.resize
        return (
            resize is not None and resize.after_attempt == attempt - 1 and resize.from_nodes < resize.nodes == self.size
        )

    def is_planned(self, attempt: int) -> bool:
        """Whether this attempt follows the plan of a recovery."""
        return self.resume_plan is not None and self.resume_plan.after_attempt == attempt - 1

    def with_plan(self, plan: ResumePlan, *, is_still_distrusted: bool) -> "Job":
        """Return this job with a resume plan, and with the limits on checkpoints that the plan sets.

        An earlier distrust still counts if no attempt was pinned since. The pin of a later attempt already respected
        it, and the fence excludes the checkpoints that this attempt skipped. An attempt that was admitted but not
        pinned yet respected nothing.

        Args:
            plan: The plan after the interrupted attempt.
            is_still_distrusted: Whether no attempt was pinned after the attempts of the earlier distrust.
        """
        distrust_after, requirement = plan.distrust_after, plan.requirement
        if is_still_distrusted:
            distrust_after = min((at for at in (self.distrust_after, distrust_after) if at), default=None)
            requirement = max(
                self.requirement, requirement, key=lambda checkpoint_requirement: checkpoint_requirement.strictness
            )
        through = plan.after_attempt if distrust_after or requirement is not CheckpointRequirement.CONVENTION else 0
        return self.replace(
            resume_plan=plan, distrust_after=distrust_after, distrust_through_attempt=through, requirement=requirement
        )
