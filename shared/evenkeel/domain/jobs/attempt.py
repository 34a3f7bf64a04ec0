"""One attempt of a job, and its pods as the cluster shows them."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

from evenkeel.domain.external.kueue_status import KueueStatus
from evenkeel.domain.jobs.spec import DEFAULT_TEAM
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.values import Instant, Sentence, Value


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


class ResumePoint(Value):
    """A verified checkpoint."""

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
    local_queue: str = ""
    """Kueue's LocalQueue that received the attempt; empty if Evenkeel admitted it."""
    nodes: tuple[NodeLife, ...]
    """Nodes of the attempt; its pods may run on no others. Empty until the pods run if Kueue admits."""
    node_names: tuple[str, ...]
    size: int = 0
    """Pods of its gang, one a node; 0 in an attempt that is older than elastic jobs: `ranks` knows."""
    accelerators: int
    """Accelerators charged over all nodes."""
    instance_type: str = ""
    """Instance type of all its nodes."""
    is_rented: bool = False
    """Whether its nodes are rented. Their cost is then counted in the rental."""
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
    """Whether the cluster rejected its Kubernetes Job, so a retry cannot help."""
    stop_asked_at: Instant | None = None
    """When it was asked to end, where it was: what it saved after that, it saved in its drain."""
    launched_at: Instant | None = None
    running_at: Instant | None = None
    ended_at: Instant | None = None
    reason: Sentence = ""
    exit_codes: dict[str, int] = {}
    rejected_checkpoints: tuple[dict[str, Any], ...] = ()

    @property
    def charged_since(self) -> datetime | None:
        """Since when it holds what it is charged for; None where Kueue has given it nothing that was seen to run."""
        return self.running_at if self.local_queue else self.admitted_at

    def nodes_in(self, seen: "ObservedWorkload") -> tuple[str, ...]:
        """Return the nodes that it is on: where it was admitted to, else where its pods are seen."""
        return self.node_names or tuple(dict.fromkeys(pod.node_name for pod in seen.pods if pod.node_name))

    def owns(self, seen: "ObservedWorkload") -> bool:
        """Whether a Job with its pods is this attempt's. Labels prove nothing: anybody may write them anywhere.

        The namespace and the recorded UID prove it. Until the launch is recorded, the decision that admitted the
        attempt does: the Job carries its id, which nobody knows before the admission.
        """
        if (seen.namespace, seen.job_id, seen.attempt) != (self.namespace, self.job_id, self.attempt):
            return False
        if self.workload_uid:
            return seen.job_uid == self.workload_uid
        return bool(self.decision_id) and seen.decision_id == self.decision_id

    def own(self, listed: Iterable["ObservedWorkload"]) -> "ObservedWorkload":
        """Return this attempt's Job and pods among those of its cluster; an empty one where there is none."""
        nothing = ObservedWorkload(job_id=self.job_id, attempt=self.attempt, namespace=self.namespace)
        return next(filter(self.owns, listed), nothing)

    @property
    def workload_name(self) -> str:
        """Name of the Kubernetes Job and of the `run_job` execution: `<jobId>-a<n>`."""
        return f"{self.job_id}-a{self.attempt}"

    @property
    def ranks(self) -> int:
        """Pods of its gang, one a node: another attempt of the same job may have another number."""
        return self.size or len(self.node_names)


def run_seconds(attempts: Iterable[Attempt], until: datetime | None = None) -> dict[str, float]:
    """Return for how many seconds the attempts of each job ran, by job.

    Args:
        attempts: Attempts of any jobs.
        until: Count attempts that still run up to this time; None = leave them out.
    """
    found: dict[str, float] = {}
    for attempt in attempts:
        ended_at = attempt.ended_at or until
        if attempt.running_at and ended_at:
            ran = (ended_at - attempt.running_at).total_seconds()
            found[attempt.job_id] = found.get(attempt.job_id, 0.0) + max(0.0, ran)
    return found


class PodPhase(StrEnum):
    """Kubernetes pod phases."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class ObservedPod(Value):
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


class ObservedWorkload(Value):
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
    """Whether its Job has no pods at the moment."""
    has_completed: bool = False
    has_failed: bool = False
    was_disrupted: bool = False
    """Whether it failed because a pod was evicted or removed with its node."""
    pods: tuple[ObservedPod, ...] = ()
    kueue: KueueStatus | None = None
    """Kueue's status of the attempt, if Kueue knows it."""

    @property
    def has_runnable_pods(self) -> bool:
        """Whether any pod runs or may still start without having been asked to end."""
        is_at_work = bool(self.uid) and not (self.is_deleting or self.has_completed or self.has_failed)
        return is_at_work or any(not pod.is_terminating for pod in self.live_pods())

    def live_pods(self, lost_nodes: frozenset[str] = frozenset()) -> tuple[ObservedPod, ...]:
        """Return the pods that run or may yet run, without those on `lost_nodes`."""
        return tuple(pod for pod in self.pods if not pod.has_ended and pod.node_name not in lost_nodes)
