"""Jobs and their attempts: states, and who may write each."""

from enum import StrEnum
from typing import Any

from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.values import Instant, Value

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
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def has_ended(self) -> bool:
        """Whether the job will never run again."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


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


class JobSpec(Value):
    """What a researcher asked for. Validated at the API; stored as given."""

    name: str
    team: str = DEFAULT_TEAM
    priority_class: str = ""
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    nodes: int = 1
    """Pods of the gang, one a node."""
    accelerators_per_node: int = 8
    instance_types: tuple[str, ...] = ()
    """Empty = any."""
    checkpoint_uri: str = ""
    """`s3://bucket/prefix`; empty = the job cannot resume and starts again from nothing."""
    grace_seconds: int = 30
    """terminationGracePeriodSeconds of its pods: time for a last checkpoint."""
    max_restarts: int | None = None
    """Application restarts; None = the policy's."""
    labels: dict[str, str] = {}


class ResumeOption(StrEnum):
    """Ways to bring a hurt job back."""

    SPARE = "SPARE"
    FREE_NODE = "FREE_NODE"
    WAIT_FOR_REPAIR = "WAIT_FOR_REPAIR"


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
    decision_id: str = ""
    planned_at: Instant


class StopRequest(Value):
    """Somebody wants an attempt to end."""

    attempt: int
    reason: str
    """One sentence."""
    by: str
    """`recover_node/inc-…`, `cancel/<principal>`."""
    outcome: AttemptState = AttemptState.STOPPED
    """How the attempt is to be settled: STOPPED, or LOST for an infrastructure fault."""
    grace_seconds: int
    requested_at: Instant


class Job(Value):
    """One training job, over all its attempts."""

    job_id: str
    spec: JobSpec
    state: JobState
    reason: str = ""
    """Why it is in this state, one sentence."""
    submitted_at: Instant
    submitted_by: str = ""
    cluster: str
    namespace: str
    current_attempt: int = 0
    not_before: Instant | None = None
    """Earliest next admission (back-off)."""
    application_failures: int = 0
    resume_plan: ResumePlan | None = None
    stop_request: StopRequest | None = None
    distrust_after: Instant | None = None
    """The strictest distrust any incident laid on this job's checkpoints written by attempts so far."""
    started_at: Instant | None = None
    ended_at: Instant | None = None
    result: dict[str, Any] = {}


class ResumePoint(Value):
    """A proven checkpoint."""

    attempt: int
    step: int
    manifest: str
    """Key relative to the job's checkpoint URI."""


class Attempt(Value):
    """One run of a job on one set of nodes."""

    job_id: str
    attempt: int
    state: AttemptState
    cluster: str
    namespace: str
    pool: str
    nodes: tuple[NodeLife, ...]
    """Where it was admitted; its pods may run nowhere else."""
    node_names: tuple[str, ...]
    accelerators: int
    """Charge: accelerators over all nodes."""
    team: str = DEFAULT_TEAM
    charge_held: bool = True
    admitted_at: Instant
    decision_id: str = ""
    resume_from: ResumePoint | None = None
    is_pinned: bool = False
    """Whether `resume_from` was decided (None may be the decision)."""
    workload_uid: str = ""
    """UID of the Kubernetes Job."""
    launched_at: Instant | None = None
    running_at: Instant | None = None
    ended_at: Instant | None = None
    reason: str = ""
    exit_codes: dict[str, int] = {}
    rejected_checkpoints: tuple[dict[str, Any], ...] = ()

    @property
    def workload_name(self) -> str:
        """Name of the Kubernetes Job and of the `run_job` execution: `<jobId>-a<n>`."""
        return f"{self.job_id}-a{self.attempt}"


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


class WorkloadSeen(Value):
    """An attempt's Kubernetes Job and pods. `uid` empty = no such Job."""

    job_id: str
    attempt: int
    uid: str = ""
    is_deleting: bool = False
    has_completed: bool = False
    has_failed: bool = False
    pods: tuple[PodSeen, ...] = ()
