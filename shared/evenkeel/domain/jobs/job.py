"""Jobs and their attempts: states, and who may write each."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from evenkeel.domain.capacity.compatibility import Requirements
from evenkeel.domain.capacity.pool_choices import PoolChoice, Toleration
from evenkeel.domain.elastic.grow_shrink import Sizes
from evenkeel.domain.external.kueue_status import KueueSeen
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.values import Instant, Sentence, Sentences, Value

DEFAULT_TEAM = "default"


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


class AttemptState(StrEnum):
    """Where an attempt stands. STARTING is written by `schedule_jobs`, the rest by `run_job` of the attempt."""

    STARTING = "STARTING"
    """Admitted and charged; nothing launched yet."""
    LAUNCHED = "LAUNCHED"
    """Fence raised, resume point pinned, Kubernetes Job created."""
    RUNNING = "RUNNING"
    """Every pod runs."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """The application failed."""
    STOPPED = "STOPPED"
    """Stopped on request: cancel, or a recovery that moved the job."""
    LOST = "LOST"
    """Its node failed, or its pods ended for an infrastructure reason."""
    NEVER_RAN = "NEVER_RAN"
    """Could not be launched or placed before its deadline."""

    @property
    def has_ended(self) -> bool:
        """Whether the attempt is settled and its charge released."""
        return self not in (AttemptState.STARTING, AttemptState.LAUNCHED, AttemptState.RUNNING)


class OnNodeFault(StrEnum):
    """What a job wants when a node of its sickens, where the fault leaves the choice."""

    MOVE = "move"
    """Stop it, with its grace to save, and run it on elsewhere."""
    FINISH = "finish"
    """Cordon only: let it run to its end."""


class SecretKey(Value):
    """One value of a Kubernetes Secret in the job's namespace: what it is, only the cluster knows."""

    secret: str
    key: str


class ElasticSpec(Value):
    """At how many nodes a job can run, beside the number that it asks for."""

    min_nodes: int
    max_nodes: int
    step: int | None = None
    """From `min_nodes` on; 1 where neither this nor `sizes` is given."""
    sizes: tuple[int, ...] = ()
    """The only numbers of nodes, in place of a step."""


class JobSpec(Value):
    """What a researcher asked for. Validated at the API; stored as given."""

    name: str
    team: str = DEFAULT_TEAM
    priority_class: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    secret_env: dict[str, SecretKey] = {}
    """Variables whose values are secrets, by reference alone."""
    nodes: int = 1
    """Pods of the gang, one a node; of an elastic job those that it asks for, and each attempt has its own."""
    elastic: ElasticSpec | None = None
    """None where it runs at one size only."""
    accelerators_per_node: int = 8
    instance_types: tuple[str, ...] = ()
    """Empty = any."""
    checkpoint_uri: str = ""
    """`s3://bucket/prefix`, or `file:///folder/…` on `checkpoint_claim`; empty = it starts again from nothing."""
    checkpoint_claim: str = ""
    """PersistentVolumeClaim that holds a `file:///` URI. It is mounted at the first folder of the URI's path."""
    grace_seconds: int = 30
    """terminationGracePeriodSeconds of its pods: time for a last checkpoint."""
    max_restarts: int | None = None
    """Application restarts; None = the policy's."""
    deadline_at: Instant | None = None
    """When it is to be done. It is no place in the queue: it may have nodes rented, and keeps it off spot."""
    on_node_fault: OnNodeFault = OnNodeFault.MOVE
    labels: dict[str, str] = {}
    job_type: str = ""
    """Whose template filled what was left out; empty = none did."""
    pools: tuple[PoolChoice, ...] = ()
    """Where it may run, in this order, as its type has it; empty = anywhere."""
    tolerations: tuple[Toleration, ...] = ()
    """As its type has them."""
    requires: Requirements = Requirements()
    """What its machines must have, wherever they are."""

    @property
    def keeps_checkpoints_in_cluster(self) -> bool:
        """Whether its checkpoints lie on mounted storage, where only its own pods can look."""
        return self.checkpoint_uri.startswith("file://")

    @property
    def sizes(self) -> Sizes | None:
        """The sizes that an elastic job can have; None where it runs at one only."""
        found = self.elastic
        if found is None:
            return None
        return Sizes(least=found.min_nodes, most=found.max_nodes, step=found.step, discrete=found.sizes)


class ResumeOption(StrEnum):
    """Ways to bring a hurt job back."""

    SPARE = "SPARE"
    FREE_NODE = "FREE_NODE"
    WAIT_FOR_REPAIR = "WAIT_FOR_REPAIR"
    SHRINK = "SHRINK"
    """Go on with fewer nodes."""
    BURST = "BURST"
    """Run on rented nodes."""
    PREEMPT = "PREEMPT"
    """Take the nodes of a job of lower priority."""


class Demand(StrEnum):
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
        return list(Demand).index(self)


class ResumePlan(Value):
    """What `recover_node` wants for a hurt job. Recorded on the job; only `schedule_jobs` acts on it."""

    incident_id: str
    after_attempt: int
    """The attempt that was hurt. The plan is dead once a later one exists."""
    option: ResumeOption
    avoid: tuple[str, ...] = ()
    """Life keys not to be used again."""
    distrust_after: Instant | None = None
    """Checkpoints whose write began after this are not to be resumed from; None = all are trusted."""
    demand: Demand = Demand.CONVENTION
    """What checkpoints of the hurt attempt and those before it must have."""
    shrinks_at: Instant | None = None
    """From when on an elastic job goes on with fewer nodes rather than wait for all; None where it is not elastic."""
    rent_worth_parts: int | None = None
    """Rent up to which it is brought back on rented nodes, in parts of `economics.money`; None where it is to wait."""
    lost_committed: bool = False
    """Whether the sick machine is paid for in any case: what is rented meanwhile stands in for it, on loan."""
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
    at_once_on: tuple[str, ...] = ()
    """Nodes whose pods cannot save and get no grace."""


class ResizeWish(Value):
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


class ResumePoint(Value):
    """A proven checkpoint."""

    attempt: int
    step: int
    manifest: str
    """Key relative to the job's checkpoint URI."""


class LikeFailure(Value):
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
    last_failure: LikeFailure | None = None
    launch_failures: int = 0
    """Attempts in a row that never ran."""
    lost_at: Instant | None = None
    """When its last attempt was lost to its machines; None once it has started again."""
    resume_plan: ResumePlan | None = None
    stop_request: StopRequest | None = None
    size: int = 0
    """Nodes of the current attempt; 0 before the first."""
    resize: ResizeWish | None = None
    resized_at: Instant | None = None
    """When an attempt was last admitted at another size than the one before it."""
    failed_growths: int = 0
    """In a row: it could not be had at the size that it was stopped for, or did not come to run at it."""
    growth_failed_at: Instant | None = None
    distrust_after: Instant | None = None
    """The strictest distrust any incident laid on this job's checkpoints; `distrust_through` says whose."""
    distrust_through: int = 0
    """The last attempt that `distrust_after` and `demand` are about. Later ones ran elsewhere: no suspicion there."""
    demand: Demand = Demand.CONVENTION
    """The strictest demand any incident laid on this job's checkpoints."""
    rollbacks: int = 0
    """How often an attempt was stopped because what it had resumed from turned out to be in doubt."""
    damaged_checkpoints: tuple[ResumePoint, ...] = ()
    """Those that an attempt was pinned to and could not read back: no later attempt is sent there."""
    rentals: int = 0
    """Rentals so far; the last is the one that counts."""
    placement: PlacementNote | None = None
    """While it waits: where it might run, and why it is not rented for. Its text ends the reason."""
    is_catching_up: bool = False
    """When it was last rented for it was kept off spot for its deadline's sake: so it stays until it is well ahead."""
    goes_home: bool = False
    """It was stopped on rented nodes to go on where room is paid for, and has not started again since."""
    counted_in: tuple[str, ...] = ()
    """The counters of open jobs that count it until it ends; none if it is older than the limits."""
    started_at: Instant | None = None
    ended_at: Instant | None = None
    result: dict[str, Any] = {}

    def stop_of(self, attempt: int) -> StopRequest | None:
        """Return the request to stop this very attempt; None where there is none."""
        request = self.stop_request
        return request if request and request.attempt == attempt else None

    def stop_wished(self, reason: str, by: str, now: datetime) -> StopRequest:
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
    def reason_of_queue(self) -> str:
        """Why it waits, without what it was told of where else it might run."""
        return self.reason.removesuffix(f" {self.placement.text}") if self.placement else self.reason

    def live_plan(self) -> ResumePlan | None:
        """Return the resume plan while it is due: until an attempt later than the hurt one exists."""
        plan = self.resume_plan
        return plan if plan and plan.after_attempt >= self.current_attempt else None

    @property
    def nodes_wanted(self) -> int:
        """How many nodes it is to have next: what it asked for, and after a fault what it had grown to."""
        had = self.size if self.spec.elastic and self.live_plan() else 0
        return max(self.spec.nodes, had)

    def live_resize(self) -> ResizeWish | None:
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

    def has_grown_in(self, attempt: int) -> bool:
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
            plan: What to do after the hurt attempt.
            is_doubted: Whether no attempt was pinned after those that the earlier distrust is about.
        """
        after, demand = plan.distrust_after, plan.demand
        if is_doubted:
            after = min((at for at in (self.distrust_after, after) if at), default=None)
            demand = max(self.demand, demand, key=lambda each: each.rank)
        through = plan.after_attempt if after or demand is not Demand.CONVENTION else 0
        return self.but(resume_plan=plan, distrust_after=after, distrust_through=through, demand=demand)


class Attempt(Value):
    """One run of a job on one set of nodes."""

    job_id: str
    attempt: int
    state: AttemptState
    cluster: str
    namespace: str
    pool: str
    local_queue: str = ""
    """Kueue's LocalQueue that it was handed to; empty where Evenkeel admitted it itself."""
    nodes: tuple[NodeLife, ...]
    """Where it was admitted; its pods may run nowhere else. Where Kueue admits, none before its pods run."""
    node_names: tuple[str, ...]
    size: int = 0
    """Pods of its gang, one a node; 0 in an attempt that is older than elastic jobs: `ranks` knows."""
    accelerators: int
    """Charge: accelerators over all nodes."""
    instance_type: str = ""
    """Of its nodes, which are all of one type."""
    is_rented: bool = False
    """Whether they are rented for it: their dollars are the rental's."""
    team: str = DEFAULT_TEAM
    charge_held: bool = True
    admitted_at: Instant
    decision_id: str = ""
    resume_from: ResumePoint | None = None
    is_pinned: bool = False
    """Whether `resume_from` was decided (None may be the decision)."""
    resumed_work_from: Instant | None = None
    """When the write of what it resumes from began: work after that was lost."""
    workload_uid: str = ""
    """UID of the Kubernetes Job; empty until the launch is recorded."""
    is_refused: bool = False
    """The cluster would not take its Kubernetes Job as it stands: trying again cannot help."""
    stop_asked_at: Instant | None = None
    """When it was asked to end, where it was: what it saved after that, it saved in its drain."""
    launched_at: Instant | None = None
    running_at: Instant | None = None
    ended_at: Instant | None = None
    reason: Sentence = ""
    exit_codes: dict[str, int] = {}
    rejected_checkpoints: tuple[dict[str, Any], ...] = ()

    @property
    def holds_since(self) -> datetime | None:
        """Since when it holds what it is charged for; None where Kueue has given it nothing that was seen to run."""
        return self.running_at if self.local_queue else self.admitted_at

    def seats_in(self, seen: "WorkloadSeen") -> tuple[str, ...]:
        """Return the nodes that it is on: where it was admitted to, else where its pods are seen."""
        return self.node_names or tuple(dict.fromkeys(pod.node_name for pod in seen.pods if pod.node_name))

    def owns(self, seen: "WorkloadSeen") -> bool:
        """Whether a Job with its pods is this attempt's. Labels prove nothing: anybody may write them anywhere.

        The namespace and the recorded UID prove it. Until the launch is recorded, the decision that admitted the
        attempt does: the Job carries its id, which nobody knows before the admission.
        """
        if (seen.namespace, seen.job_id, seen.attempt) != (self.namespace, self.job_id, self.attempt):
            return False
        if self.workload_uid:
            return seen.job_uid == self.workload_uid
        return bool(self.decision_id) and seen.decision_id == self.decision_id

    def own(self, listed: Iterable["WorkloadSeen"]) -> "WorkloadSeen":
        """Return this attempt's Job and pods among those of its cluster; an empty one where there is none."""
        nothing = WorkloadSeen(job_id=self.job_id, attempt=self.attempt, namespace=self.namespace)
        return next(filter(self.owns, listed), nothing)

    @property
    def workload_name(self) -> str:
        """Name of the Kubernetes Job and of the `run_job` execution: `<jobId>-a<n>`."""
        return f"{self.job_id}-a{self.attempt}"

    @property
    def ranks(self) -> int:
        """Pods of its gang, one a node: another attempt of the same job may have another number."""
        return self.size or len(self.node_names)


class Charge(Value):
    """What one admitted attempt holds until it is settled. A released charge says which waiting job had the quota."""

    job_id: str
    attempt: int
    team: str
    cluster: str
    node_names: tuple[str, ...]
    accelerators: int
    """Over all nodes."""
    instance_type: str = ""
    pool: str = ""
    admitted_at: Instant | None = None
    owner: str = ""
    """The principal that submitted the job."""
    queue: str = ""
    """Whose quota it takes; empty where no teams were set up."""
    priority: int = 0
    queued_at: Instant | None = None
    """By what it stood in its queue."""
    use: dict[str, dict[str, int]] = {}
    """The quota that it takes: flavor → resource → amount."""
    is_rented: bool = False
    """Whether its nodes are rented for it: their dollars are the rental's."""
    is_elastic: bool = False
    """Whether its job can have another size."""
    released_at: Instant | None = None
    """When its attempt was settled and its job went back to the queue; None while the attempt is live."""

    @property
    def is_held(self) -> bool:
        """Whether its attempt is live: a released charge takes no quota and no node, and only names its owner."""
        return self.released_at is None

    @classmethod
    def of(
        cls, attempt: Attempt, job: Job | None = None, use: Mapping[str, Mapping[str, int]] | None = None
    ) -> "Charge":
        """Return the charge of an attempt, with what quotas need to know of its job."""
        return cls(
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            team=attempt.team,
            cluster=attempt.cluster,
            node_names=attempt.node_names,
            accelerators=attempt.accelerators,
            instance_type=attempt.instance_type,
            pool=attempt.pool,
            admitted_at=attempt.admitted_at,
            owner=job.owner if job else "",
            queue=attempt.team if use else "",
            priority=job.priority if job else 0,
            queued_at=(job.queued_at or job.submitted_at) if job else None,
            use={flavor: dict(amounts) for flavor, amounts in (use or {}).items()},
            is_rented=attempt.is_rented,
            is_elastic=bool(job and job.spec.elastic),
        )


class PodPhase(StrEnum):
    """Kubernetes pod phases."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class PodSeen(Value):
    """One pod of an attempt as the API server shows it."""

    name: str
    node_name: str = ""
    phase: PodPhase
    is_terminating: bool = False
    exit_code: int | None = None
    reason: str = ""
    """`Unschedulable`, `Error`, `Evicted`, …"""

    @property
    def has_ended(self) -> bool:
        """Whether its processes are over, as far as the API server knows."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


class WorkloadSeen(Value):
    """A Kubernetes Job and its pods whose labels name an attempt. `uid` empty = no such Job.

    Whether it is that attempt's, `Attempt.owns` says.
    """

    job_id: str
    attempt: int
    namespace: str = ""
    job_uid: str = ""
    """UID of the Job that controls the pods, whether or not the Job still exists."""
    decision_id: str = ""
    """Decision that admitted the attempt, as the Job says; as the pods say where the Job is gone."""
    uid: str = ""
    is_deleting: bool = False
    is_suspended: bool = False
    """Whether its Job has, for now, no pods."""
    has_completed: bool = False
    has_failed: bool = False
    was_disrupted: bool = False
    """Whether it failed since a pod of it was evicted, or went with its node."""
    pods: tuple[PodSeen, ...] = ()
    kueue: KueueSeen | None = None
    """What Kueue says of it, where it was handed to Kueue and is known there."""

    @property
    def is_let_run(self) -> bool:
        """Whether something of it runs, or may yet be started, that nobody has asked to end."""
        is_at_work = bool(self.uid) and not (self.is_deleting or self.has_completed or self.has_failed)
        return is_at_work or any(not pod.is_terminating for pod in self.pods_alive())

    def pods_alive(self, lost_nodes: frozenset[str] = frozenset()) -> tuple[PodSeen, ...]:
        """Return the pods that run or may yet run, without those on `lost_nodes`."""
        return tuple(pod for pod in self.pods if not pod.has_ended and pod.node_name not in lost_nodes)
