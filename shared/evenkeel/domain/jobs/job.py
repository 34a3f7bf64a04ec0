"""Jobs and their attempts: states, and who may write each."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from evenkeel.domain.jobs.attempt import AttemptState, ResumePoint
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.values import Instant, Sentence, Sentences, Value


class JobState(StrEnum):
    """Where a job stands."""

    PENDING = "PENDING"
    """Waits for capacity (first time, or again after a recovery)."""
    STARTING = "STARTING"
    """Admitted: attempt `currentAttempt` is being launched."""
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    """Cancelled by somebody; its pods are ending."""
    SUSPENDED = "SUSPENDED"
    """Held back by somebody, until somebody resumes it. It takes and waits for nothing."""
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
        """Whether nothing is to be done for the job: it has ended, or somebody holds it back."""
        return self.has_ended or self is JobState.SUSPENDED


class ResumeOption(StrEnum):
    """Ways to bring an interrupted job back."""

    SPARE = "SPARE"
    FREE_NODE = "FREE_NODE"
    WAIT_FOR_REPAIR = "WAIT_FOR_REPAIR"
    SHRINK = "SHRINK"
    """Go on with fewer nodes."""
    BURST = "BURST"
    """Run on rented nodes."""
    PREEMPT = "PREEMPT"
    """Take the nodes of a job of lower priority."""


class CheckpointRequirement(StrEnum):
    """What a checkpoint must have to be resumed from, weakest first."""

    CONVENTION = "CONVENTION"
    """Complete by its writer's convention, or better."""
    PROOF = "PROOF"
    """Every size and checksum agrees."""
    EVIDENCE = "EVIDENCE"
    """Proof, and signs of its own that its numbers are sound: it says so, and so does the next one after it."""

    @property
    def rank(self) -> int:
        """0 for the weakest."""
        return list(CheckpointRequirement).index(self)


class ResumePlan(Value):
    """What `recover_node` wants for an interrupted job. Recorded on the job; only `schedule_jobs` acts on it."""

    incident_id: str
    after_attempt: int
    """The attempt that was hurt. The plan is dead once a later one exists."""
    option: ResumeOption
    avoid: tuple[str, ...] = ()
    """Life keys not to be used again."""
    distrust_after: Instant | None = None
    """Checkpoints whose write began after this are not to be resumed from; None = all are trusted."""
    demand: CheckpointRequirement = CheckpointRequirement.CONVENTION
    """What checkpoints of the interrupted attempt and those before it must have."""
    shrinks_at: Instant | None = None
    """From when on an elastic job goes on with fewer nodes rather than wait for all; None where it is not elastic."""
    max_rent_parts: int | None = None
    """Rent up to which it is brought back on rented nodes, in parts of `economics.money`; None where it is to wait."""
    lost_committed: bool = False
    """Whether the faulty machine is paid for in any case: what is rented meanwhile stands in for it, on loan."""
    decision_id: str = ""
    planned_at: Instant


class StopRequest(Value):
    """Somebody wants an attempt to end."""

    attempt: int
    reason: Sentence
    """One sentence."""
    by: str
    """`recover_node/inc-…`, `cancel/<principal>`."""
    outcome: AttemptState = AttemptState.STOPPED
    """How the attempt is to be settled: STOPPED, or LOST for an infrastructure fault."""
    grace_seconds: int
    requested_at: Instant
    counts_as_failure: bool = False
    """Whether the end uses up one of the application's restarts."""
    is_final: bool = False
    """Whether another attempt could not end otherwise."""
    nodes_without_grace: tuple[str, ...] = ()
    """Nodes whose pods cannot save and get no grace."""


class ResizeRequest(Value):
    """An attempt is asked to stop so that the next one runs on another number of nodes."""

    after_attempt: int
    """The one that stops. The wish is dead once a later one exists."""
    from_nodes: int
    nodes: int
    reason: Sentence
    for_job: str = ""
    """Whom it makes room for; empty where it grows, or for pods that are not ours."""
    decision_id: str = ""
    asked_at: Instant


class RepeatedFailure(Value):
    """How the application last failed by itself, and how often in a row it did so in just this way."""

    exit_code: int
    resume_from: ResumePoint | None = None
    times: int = 1


class PlacementNote(Value):
    """What a waiting job was last told of where it might run: said anew only when the answer is another."""

    key: str
    """By what two answers are the same, though their figures differ."""
    text: Sentence
    decision_id: str = ""


class Job(Value):
    """One training job, over all its attempts."""

    job_id: str
    spec: JobSpec
    state: JobState
    reason: Sentences = ""
    """Why it is in this state, one sentence."""
    submitted_at: Instant
    submitted_by: str = ""
    owner: str = ""
    """The principal that submitted it, without its session."""
    cluster: str
    namespace: str
    service_account: str = ""
    """As whom its pods run, as its team had it; empty = the stack's own."""
    is_preempted: bool = False
    """It has to give way to another, and has not started again since."""
    is_suspended: bool = False
    """Somebody holds it back: once its attempt has ended it does not wait for capacity."""
    queue: str = ""
    """The team's queue that it waits in; empty where no teams are set up: the one queue of everybody."""
    priority: int = 0
    """Of its priority class, as that stood when it was submitted or given another one."""
    queued_at: Instant | None = None
    """When it lost its place, where it did; else it stands by its submission."""
    current_attempt: int = 0
    local_queue: str = ""
    """Kueue's LocalQueue that its current attempt was handed to; empty where Evenkeel admitted it itself."""
    not_before: Instant | None = None
    """Earliest next admission (back-off)."""
    application_failures: int = 0
    last_failure: RepeatedFailure | None = None
    launch_failures: int = 0
    """Attempts in a row that never ran."""
    lost_at: Instant | None = None
    """When its last attempt was lost to its machines; None once it has started again."""
    resume_plan: ResumePlan | None = None
    stop_request: StopRequest | None = None
    size: int = 0
    """Nodes of the current attempt; 0 before the first."""
    resize: ResizeRequest | None = None
    resized_at: Instant | None = None
    """When an attempt was last admitted at another size than the one before it."""
    failed_growths: int = 0
    """In a row: it could not be had at the size that it was stopped for, or did not come to run at it."""
    growth_failed_at: Instant | None = None
    distrust_after: Instant | None = None
    """The strictest distrust any incident laid on this job's checkpoints; `distrust_through_attempt` says whose."""
    distrust_through_attempt: int = 0
    """The last attempt that `distrust_after` and `demand` are about. Later ones ran elsewhere: no suspicion there."""
    demand: CheckpointRequirement = CheckpointRequirement.CONVENTION
    """The strictest demand any incident laid on this job's checkpoints."""
    rollbacks: int = 0
    """How often an attempt was stopped because what it had resumed from turned out to be in doubt."""
    damaged_checkpoints: tuple[ResumePoint, ...] = ()
    """Those that an attempt was pinned to and could not read back: no later attempt is sent there."""
    rentals: int = 0
    """Rentals so far; the last is the one that counts."""
    placement: PlacementNote | None = None
    """While it waits: where it might run, and why it is not rented for. Its text ends the reason."""
    avoids_spot: bool = False
    """When it was last rented for it was kept off spot for its deadline's sake: so it stays until it is well ahead."""
    is_migrating_back: bool = False
    """It was stopped on rented nodes to go on where room is paid for, and has not started again since."""
    open_job_counters: tuple[str, ...] = ()
    """The counters of open jobs that count it until it ends; none if it is older than the limits."""
    started_at: Instant | None = None
    ended_at: Instant | None = None
    result: dict[str, Any] = {}

    def stop_of(self, attempt: int) -> StopRequest | None:
        """Return the request to stop this very attempt; None where there is none."""
        request = self.stop_request
        return request if request and request.attempt == attempt else None

    def with_stop_request(self, reason: str, by: str, now: datetime) -> StopRequest:
        """Return the request by which a person's wish stops the current attempt, with its grace to save.

        A recovery may have asked before: its grace and its outcome stay, only what follows is another.
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
        """Why it waits, without what it was told of where else it might run."""
        return self.reason.removesuffix(f" {self.placement.text}") if self.placement else self.reason

    def live_plan(self) -> ResumePlan | None:
        """Return the resume plan while it is due: until an attempt later than the hurt one exists."""
        plan = self.resume_plan
        return plan if plan and plan.after_attempt >= self.current_attempt else None

    @property
    def next_node_count(self) -> int:
        """How many nodes it is to have next: what it asked for, and after a fault what it had grown to."""
        had = self.size if self.spec.elastic and self.live_plan() else 0
        return max(self.spec.nodes, had)

    def live_resize(self) -> ResizeRequest | None:
        """Return the wish for another size while it is due: until an attempt later than the stopped one exists."""
        wish = self.resize
        return wish if wish and wish.after_attempt >= self.current_attempt else None

    def at_size(self, nodes: int, now: datetime) -> "Job":
        """Return this job as its next attempt is admitted to so many nodes."""
        wish = self.live_resize()
        has_failed = wish is not None and wish.from_nodes < wish.nodes > nodes
        return self.but(
            size=nodes,
            resized_at=now if wish or self.size not in (0, nodes) else self.resized_at,
            failed_growths=self.failed_growths + has_failed,
            growth_failed_at=now if has_failed else self.growth_failed_at,
        )

    def is_growth_attempt(self, attempt: int) -> bool:
        """Whether this attempt is the one for which a smaller one was stopped."""
        wish = self.resize
        return wish is not None and wish.after_attempt == attempt - 1 and wish.from_nodes < wish.nodes == self.size

    def is_planned(self, attempt: int) -> bool:
        """Whether this attempt carries out a recovery's plan."""
        return self.resume_plan is not None and self.resume_plan.after_attempt == attempt - 1

    def with_plan(self, plan: ResumePlan, *, is_doubted: bool) -> "Job":
        """Return this job with a plan and the distrust that it brings.

        An earlier distrust still counts if no attempt was pinned since: the pin of a later attempt already honoured it,
        and the fence keeps what that attempt passed over from coming back. An attempt that was admitted and not pinned
        yet honours nothing.

        Args:
            plan: What to do after the interrupted attempt.
            is_doubted: Whether no attempt was pinned after those that the earlier distrust is about.
        """
        after, demand = plan.distrust_after, plan.demand
        if is_doubted:
            after = min((at for at in (self.distrust_after, after) if at), default=None)
            demand = max(self.demand, demand, key=lambda each: each.rank)
        through = plan.after_attempt if after or demand is not CheckpointRequirement.CONVENTION else 0
        return self.but(resume_plan=plan, distrust_after=after, distrust_through_attempt=through, demand=demand)
