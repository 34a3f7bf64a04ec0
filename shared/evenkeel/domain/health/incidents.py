"""Incidents, and the facts about nodes that open them. A node life has at most one open incident of its kind.

A further signal about the node joins the open incident as evidence. Drills and real facts never share an incident.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from evenkeel.domain.health.faults import Rung, Severity
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.values import Instant, Sentence, Value

DRILL_PREFIX = "drill/"
"""Prefix of the key of every fact of a drill. No source has this name."""


FactWord = Annotated[str, StringConstraints(max_length=128, pattern=r"^[ -~]*$")]
"""One part of a fact's key. The limit keeps the whole key shorter than the maximum length of a row key."""
JobName = Annotated[str, StringConstraints(max_length=80, pattern=r"^[ -~]*$")]
SourceName = Annotated[str, StringConstraints(max_length=256, pattern=r"^[ -~]*$")]
"""Name of the source that reports a fact."""
DeliveryId = Annotated[str, StringConstraints(max_length=512, pattern=r"^[ -~]*$")]
FactArn = Annotated[str, StringConstraints(max_length=2048)]
FactText = Annotated[str, StringConstraints(max_length=128)]
FactDetail = Annotated[str, StringConstraints(max_length=500)]
"""The text of the source, unchanged."""


class FactKind(StrEnum):
    """Meaning of a fact about a node."""

    FAULT = "FAULT"
    RECOVERED = "RECOVERED"
    PROGRESS = "PROGRESS"
    """The provider reports a step of its repair. Such a fact joins an open incident and never opens one."""


class NodeFact(Value):
    """A parsed statement about a node, from one source. A later step finds the node life."""

    kind: FactKind
    source: SourceName
    """`hyperpod.node-health`, `kubernetes.node`, …"""
    instance_id: FactWord
    logical_id: FactWord = ""
    """HyperPod's NodeLogicalId, if known. Progress of a replacement may name the old or the new node of the slot."""
    cluster_arn: FactArn = ""
    fault_key: FactWord = ""
    """Key in the fault catalogue; empty for RECOVERED."""
    code: FactText = ""
    """The code as the source spelled it. For PROGRESS, the step: `reboot_in_progress`, `replacement_started`,
    `replacement_completed`, `replacement_failed`, `insufficient_capacity`, `provisioned`, `terminating`, …"""
    gpu: FactWord = ""
    """UUID or PCI address of the device, if known."""
    link: FactWord = ""
    """The link, if known."""
    job_id: JobName = ""
    """Job that showed the fault, if known."""
    deadline_at: Instant | None = None
    """Time at which AWS ends the node: a Spot notice, the end of a reservation, or a retirement."""
    observed_at: Instant
    """Time of the event at its source, not of its arrival."""
    envelope_id: DeliveryId
    """Id of the delivered event, and the name of its archived copy."""
    detail: FactDetail = ""
    """The text of the source, unchanged: at most 500 characters, printable."""
    is_drill: bool = False
    occurrence: FactWord = ""
    """Distinguishes two occurrences within one minute if the source can: an exact time or a boot id."""

    @property
    def fact_key(self) -> str:
        """Identity of the fact, however often the source delivers it.

        Source: SageMaker may send several events for one state change, so the event id alone does not identify it. The
        key includes the minute, so the same fault on another day is a new fact. It includes the device and the link,
        because repetitions are counted per device or link.

        The key of a drill's fact never equals the key of a real fact. Otherwise a caller who may send events could make
        the real fact look like a duplicate.
        """
        time_text = self.occurrence or self.observed_at.strftime("%Y%m%dT%H%M")
        content = self.fault_key or (self.code if self.kind is FactKind.PROGRESS else "")
        where = "".join(f"@{part}" for part in (self.gpu, self.link) if part)
        drill = DRILL_PREFIX if self.is_drill else ""
        return f"{drill}{self.source}/{self.instance_id}/{self.kind}/{content}{where}/{time_text}"


class PlanOutcome(StrEnum):
    """The branch that the workflow takes after the plan."""

    ACT = "ACT"
    OBSERVE = "OBSERVE"
    """Evenkeel would act but is not allowed to."""
    ASK = "ASK"
    """Evenkeel acts after a person approves."""
    LATER = "LATER"
    """HyperPod changes the cluster. Evenkeel plans again after it has finished."""
    STAND_DOWN = "STAND_DOWN"
    NOTHING = "NOTHING"
    """The fault needs no action, or is over."""


class NodeBranchResult(StrEnum):
    """How the branch of a recovery that repairs the node ended. Any other outcome of the branch is a failure."""

    RETURNED = "RETURNED"
    """The node is back in service."""
    STAYS_CORDONED = "STAYS_CORDONED"
    """The node is healthy. It stays cordoned for the person or the real incident that cordoned it."""
    GONE = "GONE"
    """The node no longer exists."""
    NOT_NEEDED = "NOT_NEEDED"
    """The node needed no repair."""
    WAITING_FOR_PERSON = "WAITING_FOR_PERSON"
    STOOD_DOWN = "STOOD_DOWN"


class IncidentState(StrEnum):
    """State of an incident. OPEN, RECOVERING and BLOCKED are open; the other states are settled."""

    OPEN = "OPEN"
    """Recorded; its workflow has not started."""
    RECOVERING = "RECOVERING"
    """`recover_node` works on it."""
    BLOCKED = "BLOCKED"
    """A guardrail blocks the next action; the workflow waits until it is allowed."""
    RECOVERED = "RECOVERED"
    """The node is back in service. Every interrupted job runs, has ended, or is queued."""
    OBSERVED = "OBSERVED"
    """Evenkeel only recorded the decision: mode `observe`, a drill that may not act, or no action needed."""
    STOOD_DOWN = "STOOD_DOWN"
    """Evenkeel left the node alone: another owner, an opt-out or the mode forbids a repair, or the fault is gone."""
    WAITING_FOR_PERSON = "WAITING_FOR_PERSON"
    """Every rung was used or refused. Evenkeel paged a person."""
    JOB_NOT_RESUMED = "JOB_NOT_RESUMED"
    """The node branch succeeded, but an interrupted job did not resume in time. Evenkeel paged a person."""
    FAILED = "FAILED"
    """Evenkeel itself failed, and paged a person."""

    @property
    def is_settled(self) -> bool:
        """Whether the incident has ended."""
        return self not in OPEN_STATES


OPEN_STATES = (IncidentState.OPEN, IncidentState.RECOVERING, IncidentState.BLOCKED)
OPEN_LIST_ORDER = (*OPEN_STATES, IncidentState.RECOVERING, IncidentState.OPEN)
"""The order in which a list reads the open states, one after another.

It misses no incident that changes its state meanwhile, because each state comes after its earlier states. BLOCKED and
RECOVERING lead to each other, and a new plan opens the incident again. So RECOVERING and OPEN are read twice.
"""
LIST_ORDER = (*OPEN_LIST_ORDER, *(state for state in IncidentState if state.is_settled))
"""The order in which a list reads all states."""


class AffectedJob(Value):
    """A job with pods on the node when the incident was planned."""

    job_id: str
    attempt: int
    is_failure_excused: bool = False
    """Whether Evenkeel corrected a failure of that attempt that was first blamed on the application."""
    distrusted_attempt: int = Field(default=0, alias="suspectAttempt")
    """Later attempt that keeps running from a distrusted checkpoint, because rollbacks are used up; 0 = none."""


class RepairProgress(Value):
    """A step of a repair that the provider reported."""

    code: str
    """Fault code, as in `NodeFact.code`."""
    at: Instant
    instance_id: str
    """The reported node: after a replacement, its successor."""
    message: Sentence = ""


class Block(Value):
    """The guardrail that blocks the next action."""

    guardrail: str
    reason: Sentence
    """A sentence for an operator."""
    since: Instant
    action: str = ""
    """The blocked action: a `GuardrailAction`."""
    clears_at: Instant | None = None
    """Time at which the block ends by itself; None if something else must happen first."""
    cause: str = ""
    """Key of the shared cause: `zone/usw2-az2`; empty for every other guardrail."""


class Approval(Value):
    """A person's answer to a plan that needs approval."""

    decision_id: str
    """The approved or declined plan. The answer holds for no other plan."""
    approves: bool
    by: str
    reason: str
    at: Instant


class Acknowledgement(Value):
    """A person has stated that they work on the incident."""

    by: str
    reason: str
    at: Instant


class StageTimes(Value):
    """Time at which the recovery reached each stage; None if not reached."""

    detected_at: Instant | None = None
    planned_at: Instant | None = None
    cordoned_at: Instant | None = None
    jobs_stopped_at: Instant | None = None
    repair_requested_at: Instant | None = None
    node_back_at: Instant | None = None
    validated_at: Instant | None = None
    returned_at: Instant | None = None
    jobs_resumed_at: Instant | None = None
    settled_at: Instant | None = None


class JobAction(StrEnum):
    """Action on the jobs of a node that Evenkeel recovers."""

    MOVE = "MOVE"
    """Stop them and resume on other nodes: the node is at fault."""
    RESTART = "RESTART"
    """Stop and restart them: the application is at fault."""
    ROLLBACK = "ROLLBACK"
    """Stop them and resume from a checkpoint older than the fault."""
    STOP = "STOP"
    """Stop them permanently: another attempt would fail too."""
    LEAVE = "LEAVE"
    """Let them finish, or run until the plan's limit."""


class NodeCheck(Value):
    """The check of a node in addition to its status in both control planes."""

    kind: str
    """A `CheckKind`."""
    instance_id: str
    boot_id: str = ""
    started_at: Instant
    namespace: str = ""
    name: str = ""
    """Name of the test job."""
    answer: str = ""
    """The provider's answer; empty until it arrives, and after a crash between call and answer."""


class StoredRecoveryPlan(Value):
    """The plan of one run, as its workflow received it."""

    run: int
    outcome: str
    """A `PlanOutcome`, stored as text: an older release can read the outcome of a newer one."""
    repairs_node: bool
    owner: str = ""
    evidence_wait_seconds: int = Field(alias="settleSeconds")
    max_repairs: int
    jobs: JobAction = JobAction.MOVE
    work_may_run_until: Instant | None = None
    """Time until which jobs on the node may finish; None if they stop at once or not at all."""
    decision_id: str
    reason: Sentence
    answer_by: Instant | None = None
    """Deadline of the approval; None if the plan needs no approval."""
    fault_key: str = ""
    """Fault that the plan is for. A worse fault makes a plan that waits for approval obsolete."""
    boot_id: str = ""
    """Boot id of the node when the plan was made."""
    uncordoned_resource_version: str = Field(default="", alias="nodeVersion")
    """Version of the node object when the plan was made, if the node was not cordoned. The cordon then needs no read
    of its own. Empty in records of older releases."""
    rungs: tuple[str, ...] = ()
    """Rungs of the plan, in order. Empty in records of older releases."""
    independent_source_count: int = 0
    had_recovered: bool = False
    """Whether every fault was gone when the plan was made."""

    @property
    def intends_action(self) -> bool:
        """Whether the plan would act: at once (ACT), or after approval (ASK)."""
        return self.outcome in (PlanOutcome.ACT, PlanOutcome.ASK)


class Signal(Value):
    """A series of reports in which one source reports one fault of one device, link or node."""

    fault_key: str
    source: str
    gpu: str = ""
    link: str = ""
    first_at: Instant
    last_at: Instant


class ClearedFault(Value):
    """A fault that a source reports as gone, and the last time of that report."""

    fault_key: str = ""
    """Empty if the source reports the whole node as healthy."""
    source: str
    at: Instant


class Recurrence(Value):
    """A fault that recurred so often that its first rung is skipped."""

    fault_key: str
    count: int
    rung: Rung
    reason: str


class Incident(Value):
    """A fault of one node life, from its first signal until it is settled."""

    incident_id: str
    life: NodeLife
    slot: str
    node_name: str
    pool: str
    instance_type: str
    boot_id: str = ""
    """Boot id when the incident opened; empty if unknown."""
    state: IncidentState
    severity: Severity
    fault_key: str
    """The worst fault of the evidence so far."""
    first_signal_at: Instant
    """Earliest `observedAt` of the evidence. Checkpoint trust is measured from this time."""
    opened_at: Instant
    run: int = 1
    """Number of the `recover_node` execution: `<incidentId>-r<run>`."""
    is_drill: bool = False
    """Whether the incident is a drill. Real facts and drills never share an incident, so this never changes."""
    mode: str = ""
    resumes: str = ""
    """Settled incident that this incident resumes; empty for a new fault."""
    resumed: int = 0
    """Number of times that the recovery of this fault was resumed."""
    next_incident_id: str = ""
    """Id of the next incident, under which the faults after the node's return count; empty before such a fault."""
    evidence_count: int = 1
    sources: tuple[str, ...] = ()
    """Sources that reported the fault, each once. Some faults need two independent sources."""
    last_signal_at: Instant | None = None
    """Latest `observedAt` of a fault signal. A validation counts only if it is newer."""
    signals: tuple[Signal, ...] = ()
    """Evidence for the fault, severity, rung and sources. Empty in records of older releases."""
    cleared_faults: tuple[ClearedFault, ...] = ()
    recurrences: tuple[Recurrence, ...] = ()
    independent_sources: tuple[str, ...] = ()
    """Independent sources of the fault. A fault that may not act alone needs two."""
    min_rung: str = ""
    """Gentlest allowed rung if another signal or a recurrence requires more than the fault's first rung;
    else empty. `ask_person` if only a person can act."""
    min_rung_reason: Sentence = ""
    """Reason for `min_rung`, as one sentence."""
    deadline_at: Instant | None = None
    """Earliest time at which AWS ends the node, by the evidence; None if unknown."""
    progress: tuple[RepairProgress, ...] = ()
    """The last ten repair steps that the provider reported, oldest first."""
    block: Block | None = None
    """Guardrail that blocks the next action; None if none does."""
    approval: Approval | None = None
    """Answer to the plan, if it needed approval."""
    acknowledgement: Acknowledgement | None = None
    """Person who works on it, as the last acknowledgement says; None without one."""
    recovered_at: Instant | None = None
    """Time at which the last of its faults was reported as gone; None before that."""
    affected_jobs: tuple[AffectedJob, ...] = ()
    unmanaged_workloads: tuple[str, ...] = ()
    """Workloads on the node that Evenkeel did not start, as first seen."""
    unmanaged_jobs: dict[str, str] = {}
    """Unmanaged jobs on the node that Evenkeel may recover, by label, with the action on each: `RESTART`, `MOVE`, …"""
    failed_evictions: dict[str, str] = {}
    """Pods whose last eviction request failed, as `namespace/name`, with the server's answer."""
    repairs: tuple[str, ...] = ()
    """Rungs requested so far, in order: `reboot`, `replace`."""
    replacement_instance_id: str = ""
    check: NodeCheck | None = None
    """The latest check that started."""
    invalid_at: Instant | None = None
    """Time at which a node in this slot last failed validation."""
    cordon_marked_at: Instant | None = None
    """Time at which Evenkeel's cordon was first seen. If the cordon is missing later, a person removed it."""
    plan: StoredRecoveryPlan | None = None
    failed_at: Instant | None = None
    """Time at which this run failed by a fault of Evenkeel. The sweep starts the next run later."""
    node_branch: str = ""
    """A `NodeBranchResult`; empty before the end of the branch."""
    paged_at: Instant | None = None
    outcome: Sentence = ""
    """Sentence for the operator: the result of a settled incident, or why it waits."""
    stages: StageTimes = StageTimes()

    @property
    def last_fault_at(self) -> datetime:
        """Time of the latest fault signal."""
        return self.last_signal_at or self.first_signal_at

    @property
    def has_recovered(self) -> bool:
        """Whether the node was reported healthy after its latest fault signal."""
        return self.recovered_at is not None and self.recovered_at > self.last_fault_at

    @property
    def execution_name(self) -> str:
        """Name of the workflow execution of this run."""
        return f"{self.incident_id}-r{self.run}"

    def without_block(self) -> "Incident":
        """Return this incident without its block."""
        if self.block is None:
            return self
        state = IncidentState.RECOVERING if self.state is IncidentState.BLOCKED else self.state
        return self.replace(state=state, block=None)

    def with_stage_time(self, name: str, at: datetime) -> "Incident":
        """Return this incident with the time of a stage. A stage keeps its first time."""
        if getattr(self.stages, name) is not None:
            return self
        return self.replace(stages=self.stages.replace(**{name: at}))


class Evidence(Value):
    """A signal that joined an incident."""

    incident_id: str
    fact: NodeFact
    joined_at: Instant
    opened: bool
    """Whether this signal opened the incident."""


class AffectedNode(Value):
    """The node that a fact is about, and its slot."""

    life: NodeLife
    slot: str
    node_name: str = ""
    pool: str = ""
    instance_type: str = ""
    boot_id: str = ""
    job_ids: tuple[str, ...] = ()
    """Jobs on the node at the last observation."""
