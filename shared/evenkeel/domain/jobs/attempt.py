"""An attempt of a job, and its pods as the cluster shows them."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any

from evenkeel.domain.external.kueue_status import KueueStatus
from evenkeel.domain.jobs.spec import DEFAULT_TEAM
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.resources import Resources
from evenkeel.domain.values import Instant, Sentence, Value


class AttemptState(StrEnum):
    """The state of an attempt. `schedule_jobs` writes STARTING; the attempt's `run_job` writes all other states."""

    STARTING = "STARTING"
    """Admitted and charged; not launched yet."""
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
    """It could not be launched or scheduled before its deadline."""

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


class RentedPart(Value):
    """The rented nodes of an attempt whose other nodes, its base, are committed."""

    rental: int
    """Number of the job's rental that these nodes belong to. Its bill has their cost."""
    pool: str
    instance_type: str
    nodes: tuple[NodeLife, ...]
    node_names: tuple[str, ...]


class Attempt(Value):
    """A run of a job on one set of nodes."""

    job_id: str
    attempt: int
    kind: WorkloadKind = WorkloadKind.JOB
    """Kind of the object that creates its pods."""
    state: AttemptState
    cluster: str
    namespace: str
    pool: str
    local_queue: str = ""
    """Kueue's LocalQueue that received the attempt; empty if Evenkeel admitted it."""
    nodes: tuple[NodeLife, ...]
    """Nodes of the attempt. Its pods may run only on these nodes. Empty until the pods run if Kueue admits."""
    node_names: tuple[str, ...]
    size: int = 0
    """Pods of its gang, one for each node; 0 in an attempt older than elastic jobs (see `ranks`)."""
    requested_size: int = 0
    """Pods that Kueue was asked for, if it may admit fewer; 0 if it admits all or none, or if Evenkeel admits. `size`
    equals it until Kueue has admitted the attempt."""
    accelerators: int
    """Accelerators charged over all nodes."""
    cpu_millis: int = 0
    """CPU that its pods request over all nodes, in thousandths of a vCPU."""
    memory_mib: int = 0
    """Memory that its pods request over all nodes."""
    instance_type: str = ""
    """Instance type of all its nodes."""
    is_rented: bool = False
    """Whether all its nodes are rented. Their cost is then counted in the rental."""
    rented_part: RentedPart | None = None
    """The rented nodes of a mixed attempt. They are the last of `nodes`; pool, type and price describe the base."""
    usd_per_accelerator_hour: float | None = None
    """Price at its admission, which it keeps; None if its nodes had no price, or are rented."""
    team: str = DEFAULT_TEAM
    quota_use: dict[str, dict[str, int]] | None = None
    """The quota that it takes: flavor → resource → amount. Empty: its admission took none. None: not recorded."""
    charge_held: bool = True
    admitted_at: Instant
    decision_id: str = ""
    resume_from: ResumePoint | None = None
    is_pinned: bool = False
    """Whether `resume_from` was decided (None may be the decision)."""
    resumed_work_from: Instant | None = None
    """When the write of its resume point started. Work after that was lost."""
    resumed_throughput: float | None = None
    """Throughput that its resume point reports; None without a report."""
    workload_uid: str = ""
    """UID of its workload in Kubernetes; empty until the launch is recorded."""
    is_refused: bool = False
    """Whether the cluster rejected its workload, so a retry cannot help."""
    stop_asked_at: Instant | None = None
    """When it was asked to stop, if it was. Checkpoints after that were saved during its drain."""
    launched_at: Instant | None = None
    running_at: Instant | None = None
    trained_at: Instant | None = None
    """When it trained again past its resume point, by its checkpoints; None if that was not measured."""
    save_seconds: float | None = None
    """Time of one save, by its first two checkpoints; None if that was not measured."""
    save_interval_seconds: float | None = None
    """Time from the start of its first save to the start of its second."""
    ended_at: Instant | None = None
    reason: Sentence = ""
    exit_codes: dict[str, int] = {}
    rejected_checkpoints: tuple[dict[str, Any], ...] = ()

    @property
    def charged_since(self) -> datetime | None:
        """Start of its charged use; None if Kueue admits and its pods were not seen running."""
        return self.running_at if self.local_queue else self.admitted_at

    @property
    def saving_share(self) -> float | None:
        """Share of its productive time in which it saved checkpoints; None if that was not measured."""
        if self.save_seconds is None or not self.save_interval_seconds:
            return None
        return min(1.0, max(0.0, self.save_seconds / self.save_interval_seconds))

    def at_size(self, ranks: int) -> "Attempt":
        """Return this attempt with another number of pods, each with the same amounts."""
        per_node = self.per_node
        return self.replace(
            size=ranks,
            accelerators=ranks * per_node.accelerators,
            cpu_millis=ranks * per_node.cpu_millis,
            memory_mib=ranks * per_node.memory_mib,
        )

    def nodes_in(self, workload: "ObservedWorkload") -> tuple[str, ...]:
        """Return its nodes: from its admission, else from its pods."""
        return self.node_names or tuple(dict.fromkeys(pod.node_name for pod in workload.pods if pod.node_name))

    def owns(self, workload: "ObservedWorkload") -> bool:
        """Whether a Kubernetes Job with its pods belongs to this attempt.

        Labels prove nothing, because any user may write them. The namespace and the recorded UID prove it. Until the
        launch is recorded, the id of the admission decision proves it: the Job carries it, and it is unknown before the
        admission.
        """
        if (workload.namespace, workload.job_id, workload.attempt) != (self.namespace, self.job_id, self.attempt):
            return False
        if self.workload_uid:
            return workload.job_uid == self.workload_uid
        return bool(self.decision_id) and workload.decision_id == self.decision_id

    def own_workload(self, workloads: Iterable["ObservedWorkload"]) -> "ObservedWorkload":
        """Return the Kubernetes Job and pods of this attempt; an empty workload if there are none."""
        missing_workload = ObservedWorkload(job_id=self.job_id, attempt=self.attempt, namespace=self.namespace)
        return next(filter(self.owns, workloads), missing_workload)

    @property
    def requested(self) -> Resources:
        """The amounts that all its pods request."""
        return Resources(accelerators=self.accelerators, cpu_millis=self.cpu_millis, memory_mib=self.memory_mib)

    @property
    def per_node(self) -> Resources:
        """The amounts that each of its pods requests."""
        ranks = max(1, self.ranks)
        return Resources(
            accelerators=self.accelerators // ranks,
            cpu_millis=self.cpu_millis // ranks,
            memory_mib=self.memory_mib // ranks,
        )

    @property
    def rented_ranks(self) -> int:
        """Pods of its gang on the rented nodes of a mixed attempt."""
        return len(self.rented_part.node_names) if self.rented_part else 0

    @property
    def priced_accelerators(self) -> int:
        """The accelerators whose cost its price counts; in a mixed attempt, only the accelerators of the base."""
        return self.accelerators - self.rented_ranks * self.per_node.accelerators

    @property
    def workload_name(self) -> str:
        """Name of its workload in Kubernetes and of the `run_job` execution: `<jobId>-a<n>`."""
        return f"{self.job_id}-a{self.attempt}"

    @property
    def ranks(self) -> int:
        """Pods of its gang, one for each node. Other attempts of the same job may have another number."""
        return self.size or len(self.node_names)


def run_seconds(attempts: Iterable[Attempt], until: datetime | None = None) -> dict[str, float]:
    """Return for how many seconds the attempts of each job ran, by job.

    Args:
        attempts: Attempts of any jobs.
        until: Count attempts that still run up to this time; None = leave them out.
    """
    seconds: dict[str, float] = {}
    for attempt in attempts:
        ended_at = attempt.ended_at or until
        if attempt.running_at and ended_at:
            ran = (ended_at - attempt.running_at).total_seconds()
            seconds[attempt.job_id] = seconds.get(attempt.job_id, 0.0) + max(0.0, ran)
    return seconds


class PodPhase(StrEnum):
    """Kubernetes pod phases."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class ObservedPod(Value):
    """A pod of an attempt as the API server shows it."""

    name: str
    node_name: str = ""
    phase: PodPhase
    is_terminating: bool = False
    exit_code: int | None = None
    reason: str = ""
    """`Unschedulable`, `Error`, `Evicted`, …"""

    @property
    def has_ended(self) -> bool:
        """Whether its processes have ended, as far as the API server knows."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


class ObservedWorkload(Value):
    """A workload of any `WorkloadKind` whose labels name an attempt, and its pods. Without a workload, `uid` is empty.

    `Attempt.owns` decides whether it belongs to that attempt.
    """

    job_id: str
    attempt: int
    namespace: str = ""
    job_uid: str = ""
    """UID of the workload that controls the pods, whether or not it still exists."""
    decision_id: str = ""
    """Id of the admission decision, from the workload, or from the pods if the workload is gone."""
    uid: str = ""
    is_deleting: bool = False
    is_suspended: bool = False
    """Whether it is suspended and has no pods."""
    parallelism: int = 0
    """Pods that a Job runs at the same time. Kueue sets it when it admits fewer pods. 0 for other kinds."""
    has_completed: bool = False
    has_failed: bool = False
    was_disrupted: bool = False
    """Whether it failed because a pod was evicted or removed with its node."""
    pods: tuple[ObservedPod, ...] = ()
    kueue: KueueStatus | None = None
    """Kueue's status of the attempt, if Kueue knows it."""

    @property
    def has_runnable_pods(self) -> bool:
        """Whether any pod runs, or may still start, and was not asked to stop."""
        is_at_work = bool(self.uid) and not (self.is_deleting or self.has_completed or self.has_failed)
        return is_at_work or any(not pod.is_terminating for pod in self.live_pods())

    def live_pods(self, lost_nodes: frozenset[str] = frozenset()) -> tuple[ObservedPod, ...]:
        """Return the pods that run or may still run, without pods on `lost_nodes`."""
        return tuple(pod for pod in self.pods if not pod.has_ended and pod.node_name not in lost_nodes)
