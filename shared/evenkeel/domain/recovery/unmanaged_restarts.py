"""Restart jobs that Evenkeel did not create, where their operator does not.

A job that runs:        suspend ──▶ all pods have ended ──▶ resume.

A job that has failed:  record its manifest ──▶ delete ──▶ all pods have ended ──▶ create.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, assert_never

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.external.unmanaged_workloads import (
    RESUME_ALLOWED,
    RESUME_LABEL,
    Consent,
    PodRecreation,
    UnmanagedWorkload,
    is_allowed,
)
from evenkeel.domain.jobs.workload_kind import WorkloadKind
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Instant, Value

COUNTED_FOR = timedelta(hours=24)
"""How long a restart counts towards `maxRestarts`."""
MAX_MANIFEST_BYTES = 200_000
"""Evenkeel restarts no job with a longer manifest: one row of the ledger keeps it while the object is deleted."""


class UnmanagedJobState(StrEnum):
    """State of an unmanaged job, by its conditions."""

    RUNNING = "RUNNING"
    """It has not ended. Perhaps its pods wait for nodes."""
    SUSPENDED = "SUSPENDED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    DELETING = "DELETING"


class FailedPod(Value):
    """A pod of an unmanaged job that has failed."""

    node_name: str
    failed_at: Instant | None = None
    """When its last container ended; None if its status does not show it."""


class UnmanagedJob(Value):
    """A Job, JobSet, PyTorchJob or HyperPodPyTorchJob that Evenkeel did not create."""

    namespace: str
    kind: WorkloadKind
    name: str
    uid: str
    state: UnmanagedJobState
    consent: Consent = Consent.UNSET
    owner: str = ""
    """The object that owns it, such as `TrainJob llama`; empty if none does."""
    recreation: PodRecreation = PodRecreation.NEVER
    """Whether its operator recreates its pods after an eviction."""
    is_queued: bool = False
    """Whether Kueue admits it."""
    has_managed_labels: bool = False
    """Whether it carries the labels of Evenkeel's own jobs."""
    live_nodes: tuple[str, ...] = ()
    """Nodes of its pods that have not ended; empty string for a pod without a node."""
    failed_pods: tuple[FailedPod, ...] = ()
    failed_at: Instant | None = None
    """When its operator declared it failed; None if it has not failed."""
    checkpoints: str = ""
    """Checkpoint folder that its manifest names, and the field that names it; empty if no field does."""

    @property
    def label(self) -> str:
        """`PyTorchJob research/llama`."""
        return f"{self.kind} {self.namespace}/{self.name}"


def parse_label(label: str) -> tuple[str, str, str]:
    """Return kind, namespace and name from a label."""
    kind, _, full_name = label.partition(" ")
    namespace, _, name = full_name.partition("/")
    return kind, namespace, name


class RestartAction(StrEnum):
    """Action on an unmanaged job on a faulty node."""

    RESTART = "RESTART"
    """Evenkeel restarts the whole job."""
    MOVE = "MOVE"
    """Evenkeel evicts its pods, and its operator starts them elsewhere."""
    LEAVE = "LEAVE"


class RestartFacts(Value):
    """Facts for one unmanaged job on a faulty node."""

    job: UnmanagedJob
    node_name: str
    allowed_by_policy: bool
    """Whether the policy's `adoption.namespaces` include its namespace."""
    affected_since: Instant
    """A pod that failed on the node from this time on failed because of the fault."""
    was_listed_on_node: bool = False
    """Whether the last sweeps listed a pod of it on the node."""
    left_node_at: Instant | None = None
    """When the sweep first found no pod of it on the node; None if the last sweep still listed one."""
    distrusted_since: Instant | None = None
    """From when the fault may have damaged checkpoints; None if it damages none."""
    recent_restarts: int = 0
    """Restarts by Evenkeel within `COUNTED_FOR`."""
    max_restarts: int
    why_impossible: str = ""
    """Why Evenkeel could not stop the job and start it again: `Evenkeel has no right to …`; empty if it could."""


class RestartDecision(Value):
    """Action on one unmanaged job, with the reason."""

    action: RestartAction
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    facts: RestartFacts


def decide_restart(facts: RestartFacts) -> RestartDecision:
    """Decide whether Evenkeel restarts an unmanaged job, moves its pods, or leaves it alone."""
    job = facts.job

    def decision_of(action: RestartAction, why: str, **alternatives: str) -> RestartDecision:
        return RestartDecision(
            action=action,
            reason=f"{job.label} {why}",
            alternatives=tuple(Alternative(option=option, why_not=text) for option, text in alternatives.items()),
            facts=facts,
        )

    if leave_reason := _why_left_alone(facts):
        return decision_of(RestartAction.LEAVE, f"is left alone: {leave_reason}", RESTART=_capitalise(leave_reason))
    if job.state is UnmanagedJobState.RUNNING and job.recreation is PodRecreation.BY_OWNER:
        why_no_restart = "Its operator starts evicted pods on other nodes."
        move_text = "is moved: its operator starts evicted pods on other nodes."
        return decision_of(RestartAction.MOVE, move_text, RESTART=why_no_restart)
    if refusal := _why_not_restarted(facts):
        return decision_of(RestartAction.LEAVE, f"is not restarted: {refusal}", RESTART=_capitalise(refusal))
    why_no_move = "Its operator would not start evicted pods again."
    restart_point = _describe_restart_point(job)
    if job.state is UnmanagedJobState.FAILED:
        why = f"failed when a pod ended on {facts.node_name}, and its operator does not restart it. {restart_point}"
        return decision_of(RestartAction.RESTART, why, MOVE=why_no_move, LEAVE="It would stay failed.")
    why = f"runs on {facts.node_name}, and its operator would not restart it. {restart_point}"
    return decision_of(RestartAction.RESTART, why, MOVE=why_no_move, LEAVE="It would fail when the node is repaired.")


def why_not_concerned(job: UnmanagedJob, node_name: str, *, by_policy: bool) -> str:
    """Return why Evenkeel has nothing to decide about a job after a node's fault; empty if it must decide.

    Args:
        job: The job.
        node_name: The node.
        by_policy: Whether the policy lets Evenkeel recover the jobs of its namespace.
    """
    if job.has_managed_labels:
        return "it has the labels of an Evenkeel job but is not an Evenkeel job."
    if not is_allowed(job.consent, by_policy=by_policy):
        return f"only the label {RESUME_LABEL}={RESUME_ALLOWED} or the policy lets Evenkeel restart it."
    if job.state is UnmanagedJobState.RUNNING and node_name not in job.live_nodes:
        return f"no pod of it runs on {node_name}."
    return ""


def _why_left_alone(facts: RestartFacts) -> str:
    job = facts.job
    if reason := why_not_concerned(job, facts.node_name, by_policy=facts.allowed_by_policy):
        return reason
    if job.state in (UnmanagedJobState.SUCCEEDED, UnmanagedJobState.DELETING, UnmanagedJobState.SUSPENDED):
        return f"it is {job.state.lower()}."
    if job.recreation is PodRecreation.BY_HYPERPOD and job.state is not UnmanagedJobState.FAILED:
        return "HyperPod restarts it."
    if job.recreation is PodRecreation.BY_HYPERPOD and job.kind is not WorkloadKind.HYPERPOD_PYTORCH_JOB:
        return "HyperPod restarts it after it has replaced the node."
    return ""


def _why_not_restarted(facts: RestartFacts) -> str:
    job = facts.job
    if job.owner:
        return f"it belongs to {job.owner}, which may restart it."
    if job.state is UnmanagedJobState.FAILED and not _failed_on_node(facts):
        return f"no pod of it is known to have failed on {facts.node_name} since the fault began."
    if facts.distrusted_since is not None:
        since = f"{facts.distrusted_since:%Y-%m-%dT%H:%M:%SZ}"
        return (
            f"the fault may have damaged checkpoints that began after {since}, and its script chooses its own. "
            "Restart it by hand from an earlier one."
        )
    if facts.recent_restarts >= facts.max_restarts:
        return f"Evenkeel restarted it {count_of(facts.recent_restarts, 'time')} within 24 hours."
    return facts.why_impossible


def _failed_on_node(facts: RestartFacts) -> bool:
    """Whether the job failed on the node, by its failed pods.

    If Kubernetes deleted them, the sweeps that last listed the job there decide.
    """
    job = facts.job
    if not job.failed_pods and facts.was_listed_on_node and job.failed_at is not None:
        left_at = facts.left_node_at
        return job.failed_at >= facts.affected_since and (left_at is None or job.failed_at <= left_at)
    return any(
        pod.node_name == facts.node_name and (pod.failed_at is None or pod.failed_at >= facts.affected_since)
        for pod in job.failed_pods
    )


def _capitalise(clause: str) -> str:
    return clause[:1].upper() + clause[1:]


def _describe_restart_point(job: UnmanagedJob) -> str:
    """Return a sentence that says from which checkpoint the restarted job begins."""
    if job.checkpoints:
        return f"Its script resumes from {job.checkpoints}, if it saved a checkpoint there."
    return "Its manifest names no checkpoint folder, so it may start from the beginning."


def describe_fault_consequence(workload: UnmanagedWorkload, *, by_policy: bool) -> str:
    """Describe the effect of a faulty node on a workload, and whether the workload has Evenkeel's labels.

    Args:
        workload: The workload.
        by_policy: Whether the policy lets Evenkeel recover the jobs of its namespace.
    """
    if workload.claims:
        message = _describe_fault_effect(workload, is_restarted=False)
        return f"{message} It carries the labels of {workload.claims} but does not belong to that job."
    is_restarted = workload.kind in set(WorkloadKind) and is_allowed(workload.consent, by_policy=by_policy)
    return _describe_fault_effect(workload, is_restarted=is_restarted)


def _describe_fault_effect(workload: UnmanagedWorkload, *, is_restarted: bool) -> str:
    match workload.recreation:
        case PodRecreation.BY_HYPERPOD:
            return "HyperPod restarts it, so Evenkeel does not move it."
        case PodRecreation.NEVER if is_restarted:
            return "No controller would restart it, so Evenkeel does."
        case PodRecreation.NEVER:
            return "No controller would restart it, so it runs until its node is removed."
        case PodRecreation.BY_OWNER if is_restarted or workload.consent is Consent.ALLOWED:
            return "Evenkeel moves it as soon as its node is faulty."
        case PodRecreation.BY_OWNER:
            label = f"{RESUME_LABEL}={RESUME_ALLOWED}"
            return f"Evenkeel evicts it right before a repair. With the label {label}, Evenkeel moves it at once."
        case _:
            assert_never(workload.recreation)


class RestartStage(StrEnum):
    """The stage that a restart has reached."""

    REQUESTED = "REQUESTED"
    SUSPENDED = "SUSPENDED"
    """Evenkeel suspends the job, or has suspended it."""
    DELETED = "DELETED"
    """Evenkeel deletes the object, or has deleted it. The ledger has its manifest."""
    ENDED = "ENDED"


class UnmanagedRestart(Value):
    """The restart of one unmanaged job. The ledger keeps the latest restart of each job name, one row for each."""

    cluster: str
    namespace: str
    kind: WorkloadKind
    name: str
    uid: str
    """UID of the object that is restarted."""
    incident_id: str
    node_name: str
    """The faulty node."""
    begun_at: Instant
    stage: RestartStage = RestartStage.REQUESTED
    manifest: str = ""
    """JSON of the object to create; only in the stage DELETED."""
    ended_at: Instant | None = None
    result: str = ""
    """How it ended, or why it waits; empty at the beginning."""
    was_restarted: bool = False
    earlier: tuple[Instant, ...] = ()
    """When the job's earlier restarts within `COUNTED_FOR` began."""

    @property
    def label(self) -> str:
        """`PyTorchJob research/llama`."""
        return f"{self.kind} {self.namespace}/{self.name}"

    def recent_starts(self, now: datetime) -> tuple[datetime, ...]:
        """Return when the restarts within `COUNTED_FOR` began."""
        begun = (*self.earlier, self.begun_at) if self.was_restarted or self.ended_at is None else self.earlier
        return tuple(at for at in begun if at > now - COUNTED_FOR)


class RestartStep(StrEnum):
    """The next step of a restart. Each step can be repeated."""

    SUSPEND = "SUSPEND"
    RESUME = "RESUME"
    DELETE = "DELETE"
    """Record the manifest, then delete the object."""
    CREATE = "CREATE"
    WAIT = "WAIT"
    END = "END"
    """The job needs no further step."""


class NextStep(NamedTuple):
    """The next step of a restart, with the reason as a sentence."""

    step: RestartStep
    reason: str
    was_restarted: bool = False


_STOPPING_STEPS = frozenset({RestartStep.SUSPEND, RestartStep.DELETE})


def is_stopping_step(step: RestartStep) -> bool:
    """Whether a step stops the job. A hold forbids these steps. It never forbids the steps that start the job again."""
    return step in _STOPPING_STEPS


def choose_next_step(
    restart: UnmanagedRestart, job: UnmanagedJob | None, *, incident_is_over: bool = False, by_policy: bool = True
) -> NextStep:
    """Return the next step of a restart.

    Args:
        restart: The restart.
        job: The object of that name now; None if there is none.
        incident_is_over: Whether the incident of the node is settled. If it is settled, Evenkeel suspends no job for
            it.
        by_policy: Whether the policy still lets Evenkeel recover the jobs of its namespace. If neither the policy nor
            the job's label does, Evenkeel no longer stops the job.
    """
    next_step = _next_step(restart, job, incident_is_over=incident_is_over)
    if job is None or not is_stopping_step(next_step.step) or is_allowed(job.consent, by_policy=by_policy):
        return next_step
    return NextStep(RestartStep.END, f"{restart.label} is not restarted: its label or the policy no longer allows it.")


def _next_step(restart: UnmanagedRestart, job: UnmanagedJob | None, *, incident_is_over: bool) -> NextStep:
    if restart.stage is RestartStage.DELETED:
        return _next_step_after_delete(restart, job)
    if job is None:
        return NextStep(RestartStep.END, f"{restart.label} was deleted by its owner.")
    if job.uid != restart.uid:
        return NextStep(RestartStep.END, f"{restart.label} was submitted again by its owner.")
    match job.state:
        case UnmanagedJobState.DELETING:
            return NextStep(RestartStep.END, f"{restart.label} is deleted by its owner.")
        case UnmanagedJobState.SUCCEEDED:
            return NextStep(RestartStep.END, f"{restart.label} succeeded.")
        case UnmanagedJobState.FAILED:
            return NextStep(RestartStep.DELETE, f"{restart.label} failed. Evenkeel creates it again.")
        case UnmanagedJobState.RUNNING:
            return _next_step_while_running(restart, job, incident_is_over=incident_is_over)
        case UnmanagedJobState.SUSPENDED:
            return _next_step_while_suspended(restart, job)
        case _:
            assert_never(job.state)


def _next_step_while_running(restart: UnmanagedRestart, job: UnmanagedJob, *, incident_is_over: bool) -> NextStep:
    if restart.node_name in job.live_nodes and incident_is_over:
        was_restarted = restart.stage is RestartStage.SUSPENDED
        return NextStep(RestartStep.END, f"{restart.label} keeps running: the incident is over.", was_restarted)
    if restart.node_name in job.live_nodes:
        return NextStep(RestartStep.SUSPEND, f"{restart.label} is suspended, so that its pods end.")
    if restart.stage is RestartStage.SUSPENDED:
        reason = f"{restart.label} no longer runs on {restart.node_name}."
        return NextStep(RestartStep.END, reason, was_restarted=True)
    return NextStep(RestartStep.END, f"{restart.label} has left {restart.node_name} by itself.")


def _next_step_while_suspended(restart: UnmanagedRestart, job: UnmanagedJob) -> NextStep:
    if restart.stage is RestartStage.REQUESTED:
        return NextStep(RestartStep.END, f"{restart.label} was suspended by its owner.")
    if job.live_nodes:
        pods = count_of(len(job.live_nodes), "of its pods is still terminating", "of its pods are still terminating")
        return NextStep(RestartStep.WAIT, f"{restart.label} is suspended; {pods}.")
    return NextStep(RestartStep.RESUME, f"{restart.label} is resumed.", was_restarted=True)


def _next_step_after_delete(restart: UnmanagedRestart, job: UnmanagedJob | None) -> NextStep:
    if job is None:
        return NextStep(RestartStep.CREATE, f"{restart.label} is created again.", was_restarted=True)
    if job.uid != restart.uid:
        return NextStep(RestartStep.END, f"{restart.label} was created again.", was_restarted=True)
    if job.state is UnmanagedJobState.DELETING:
        return NextStep(RestartStep.WAIT, f"{restart.label} is deleted; its pods are still terminating.")
    return NextStep(RestartStep.DELETE, f"{restart.label} failed. Evenkeel creates it again.")
