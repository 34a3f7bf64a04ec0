"""Incidents: one open per node life; every further signal joins it as evidence."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

from evenkeel.domain.health.faults import Rung, Severity
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.values import Instant, Sentence, Value

DRILL_PREFIX = "drill/"
"""Begins the key of every fact of a drill. No source has this name."""


FactWord = Annotated[str, StringConstraints(max_length=128, pattern=r"^[ -~]*$")]
"""A part of a fact's key: with all other parts it fits the key of a row."""
JobName = Annotated[str, StringConstraints(max_length=80, pattern=r"^[ -~]*$")]
SourceName = Annotated[str, StringConstraints(max_length=256, pattern=r"^[ -~]*$")]
"""Who says a fact."""
DeliveryId = Annotated[str, StringConstraints(max_length=512, pattern=r"^[ -~]*$")]
FactArn = Annotated[str, StringConstraints(max_length=2048)]
FactText = Annotated[str, StringConstraints(max_length=128)]
FactDetail = Annotated[str, StringConstraints(max_length=500)]
"""The source's own words."""


class FactKind(StrEnum):
    """What a signal says about a node."""

    SICKENED = "SICKENED"
    RECOVERED = "RECOVERED"
    PROGRESS = "PROGRESS"
    """The provider says what it does about the machine. Evidence of an open incident; it opens none."""


class NodeFact(Value):
    """One signal about one node, as a parser understood it. The life is resolved later."""

    kind: FactKind
    source: SourceName
    """`hyperpod.node-health`, `kubernetes.node`, …"""
    instance_id: FactWord
    logical_id: FactWord = ""
    """HyperPod's NodeLogicalId, where the source tells: news of a replacement names either machine of the seat."""
    cluster_arn: FactArn = ""
    fault_key: FactWord = ""
    """Key in the fault catalogue; empty for RECOVERED."""
    code: FactText = ""
    """The code as the source spelled it; of PROGRESS what is done: `reboot_in_progress`, `replacement_started`,
    `replacement_completed`, `replacement_failed`, `insufficient_capacity`, `provisioned`, `terminating`, …"""
    gpu: FactWord = ""
    """UUID or PCI address of the device, where the source tells."""
    link: FactWord = ""
    """The link, where the source tells."""
    job_id: JobName = ""
    """The job it was seen in, where the source tells."""
    deadline_at: Instant | None = None
    """When the machine goes, whatever anybody does: spot, reservation, retirement."""
    observed_at: Instant
    """When the source says it happened, not when it arrived."""
    envelope_id: DeliveryId
    """Identity of the delivery, and the name of the raw copy."""
    detail: FactDetail = ""
    """The source's own words, at most 500 characters, printable."""
    is_drill: bool = False
    occurrence: FactWord = ""
    """Tells one occurrence from the next where the source knows better than the minute: an exact time, a boot id."""

    @property
    def fact_key(self) -> str:
        """Identity of the fact, however often and under however many envelopes it is sent.

        Source: SageMaker may send several events for one state change, so the envelope id is not enough; the minute in
        which it happened is part of the key, so that the same fault on another day is another fact. So are the device
        and the link: what repeats on one of them is counted. A drill never has the key of a real fact: anybody who may
        put events could otherwise make the real one look like a copy.
        """
        when = self.occurrence or self.observed_at.strftime("%Y%m%dT%H%M")
        what = self.fault_key or (self.code if self.kind is FactKind.PROGRESS else "")
        where = "".join(f"@{part}" for part in (self.gpu, self.link) if part)
        drill = DRILL_PREFIX if self.is_drill else ""
        return f"{drill}{self.source}/{self.instance_id}/{self.kind}/{what}{where}/{when}"


class IncidentState(StrEnum):
    """Where an incident stands. OPEN, RECOVERING and BLOCKED are open; the other states are settled."""

    OPEN = "OPEN"
    """Recorded; its workflow has not begun."""
    RECOVERING = "RECOVERING"
    """`recover_node` works on it."""
    BLOCKED = "BLOCKED"
    """A guardrail bars the next act; its workflow waits until it may."""
    RECOVERED = "RECOVERED"
    """The node is back in service and every interrupted job runs, has ended, or waits its turn in the queue."""
    OBSERVED = "OBSERVED"
    """Decided and recorded only: mode `observe`, a drill that may not act, or a fault that calls for nothing."""
    STOOD_DOWN = "STOOD_DOWN"
    """Another owner repairs this node (NodeRecovery=Automatic, a person)."""
    WAITING_FOR_PERSON = "WAITING_FOR_PERSON"
    """Every rung was used or refused. A page went out."""
    JOB_NOT_RESUMED = "JOB_NOT_RESUMED"
    """The node branch ended well, but an interrupted job does not run again in time. A page went out."""
    FAILED = "FAILED"
    """Evenkeel itself failed. A page went out."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing works on the incident any more."""
        return self not in OPEN_STATES


OPEN_STATES = (IncidentState.OPEN, IncidentState.RECOVERING, IncidentState.BLOCKED)


class AffectedJob(Value):
    """A job with pods on the node when the incident was planned."""

    job_id: str
    attempt: int
    is_failure_excused: bool = False
    """Whether a failure of that attempt that was laid on the application has been taken back."""
    suspect_attempt: int = 0
    """The later attempt that runs on from what is in doubt, since its job was taken back so often; 0 = none does."""


class RepairProgress(Value):
    """One thing that the provider said it does about the machine, or did."""

    code: str
    """As in `NodeFact.code`."""
    at: Instant
    instance_id: str
    """The machine it was said of: after a replacement, its successor."""
    message: Sentence = ""


class Block(Value):
    """The guardrail that bars the next act."""

    rule: str
    reason: Sentence
    """One sentence an operator could read aloud."""
    since: Instant
    act: str = ""
    """What it bars: an `GuardedAction`."""
    clears_at: Instant | None = None
    """When it clears by time alone; None where something else must happen first."""
    cause: str = ""
    """Key of the shared cause: `zone/usw2-az2`; empty for every other rule."""


class Approval(Value):
    """What a person said to a plan that asked."""

    decision_id: str
    """The very plan: no other is approved by it."""
    approves: bool
    by: str
    reason: str
    at: Instant


class StageTimes(Value):
    """When each stage of a recovery was reached; None where it was not."""

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
    """What a recovery does with the jobs on its node."""

    MOVE = "MOVE"
    """Stop them, to run on elsewhere: the node is to blame."""
    RESTART = "RESTART"
    """Stop them, to run again: the application is to blame."""
    ROLLBACK = "ROLLBACK"
    """Stop them, to run again from a checkpoint older than the fault."""
    STOP = "STOP"
    """Stop them for good: another attempt could not end otherwise."""
    LEAVE = "LEAVE"
    """Let them run to their end, or as long as the plan says."""


class NodeCheck(Value):
    """What validates a machine, beyond what both control planes show of it."""

    kind: str
    """A `CheckKind`."""
    instance_id: str
    boot_id: str = ""
    started_at: Instant
    namespace: str = ""
    name: str = ""
    """Of its test job."""
    answer: str = ""
    """The provider's answer; empty while the reply is out (a crash leaves it so)."""


class StoredRecoveryPlan(Value):
    """The plan of one run, as its workflow was told it."""

    run: int
    outcome: str
    repairs_node: bool
    owner: str = ""
    settle_seconds: int
    max_repairs: int
    jobs: JobAction = JobAction.MOVE
    work_may_run_until: Instant | None = None
    """Until when the work on the machine may come to its own end; None where it is stopped at once, or not at all."""
    decision_id: str
    reason: Sentence
    answer_by: Instant | None = None
    """Until when a plan that asks waits for an answer; None where it asks nobody."""
    fault_key: str = ""
    """The fault that it was made for: a worse one makes it obsolete while it waits for approval."""
    boot_id: str = ""
    """The episode that it was made for."""
    rungs: tuple[str, ...] = ()
    """What was asked for then, in order. Empty in records of older releases."""
    independent_source_count: int = 0
    had_recovered: bool = False
    """Whether every fault was gone then."""

    @property
    def is_carried_out(self) -> bool:
        """Whether something is done: at once, or when a person has approved it."""
        return self.outcome in ("ACT", "ASK")


class Signal(Value):
    """One fault as one source saw it at one place, in one burst: however often it was said."""

    fault_key: str
    source: str
    gpu: str = ""
    link: str = ""
    first_at: Instant
    last_at: Instant


class ClearedFault(Value):
    """What a source says is gone, and since when: the last time it said so."""

    fault_key: str = ""
    """Empty where the source calls the machine healthy altogether."""
    source: str
    at: Instant


class Recurrence(Value):
    """A fault that came so often that its first rung is passed over."""

    fault_key: str
    count: int
    rung: Rung
    reason: str


class Incident(Value):
    """One sickness of one node life, from its first signal until it is settled."""

    incident_id: str
    life: NodeLife
    slot: str
    node_name: str
    pool: str
    instance_type: str
    boot_id: str = ""
    """The episode: boot id when the incident opened; empty where Kubernetes could not say."""
    state: IncidentState
    severity: Severity
    fault_key: str
    """The worst fault of the evidence so far."""
    first_signal_at: Instant
    """Earliest `observedAt` of the evidence: what checkpoint trust is measured from."""
    opened_at: Instant
    run: int = 1
    """Number of the `recover_node` execution: `<incidentId>-r<run>`."""
    is_drill: bool = False
    """Whether every fact of it is a drill's. Real facts and drills never share an incident, so this never changes."""
    mode: str = ""
    resumes: str = ""
    """The settled incident whose unhealthy node this one goes on with; empty for a new sickness."""
    resumed: int = 0
    """How often work on this sickness was resumed."""
    evidence_count: int = 1
    sources: tuple[str, ...] = ()
    """Sources that reported the fault, each once. Some faults need two independent sources."""
    last_signal_at: Instant | None = None
    """Latest `observedAt` of a sick signal: what a validation must not be older than."""
    signals: tuple[Signal, ...] = ()
    """What it rests on, by which fault, severity, rung and witnesses are judged. Empty in records of older releases."""
    cleared_faults: tuple[ClearedFault, ...] = ()
    recurrences: tuple[Recurrence, ...] = ()
    independent_sources: tuple[str, ...] = ()
    """Independent sources of the fault. A fault that may not act alone needs two."""
    min_rung: str = ""
    """The gentlest rung that will do, where another signal or a repetition asks for more than the fault's own first;
    else empty. `page_human` where only a person is left."""
    min_rung_reason: Sentence = ""
    """Why, in one sentence."""
    deadline_at: Instant | None = None
    """The earliest of the times at which the machine goes, by its evidence."""
    progress: tuple[RepairProgress, ...] = ()
    """What the provider said it does, the last ten, in order of time."""
    block: Block | None = None
    """What bars the next act; None where nothing does."""
    approval: Approval | None = None
    """What was said to the plan, where it asked."""
    recovered_at: Instant | None = None
    """When the last of its faults was said to be gone; None while one is not."""
    affected_jobs: tuple[AffectedJob, ...] = ()
    unmanaged_workloads: tuple[str, ...] = ()
    """Work on the node that Evenkeel did not start, as it was seen first."""
    failed_evictions: dict[str, str] = {}
    """Pods whose eviction did not happen when it was last asked for, as `namespace/name`, and what the server said."""
    repairs: tuple[str, ...] = ()
    """Rungs asked for so far, in order: `reboot`, `replace`."""
    replacement_instance_id: str = ""
    check: NodeCheck | None = None
    """The latest that was begun."""
    invalid_at: Instant | None = None
    """When a machine in this seat last failed its validation."""
    cordon_marked_at: Instant | None = None
    """When its cordon first carried our mark: from then on a node without a cordon was un-cordoned by a person."""
    plan: StoredRecoveryPlan | None = None
    failed_at: Instant | None = None
    """When this run failed through a fault of our own; the sweeper starts the next one after a while."""
    node_branch: str = ""
    """How the node branch ended, once it has: `RETURNED`, `WAITING_FOR_PERSON`, `STOOD_DOWN`, …"""
    paged_at: Instant | None = None
    outcome: Sentence = ""
    """One sentence for the operator once settled, or why it waits."""
    stages: StageTimes = StageTimes()

    @property
    def execution_name(self) -> str:
        """Name of the workflow execution of this run."""
        return f"{self.incident_id}-r{self.run}"

    def without_block(self) -> "Incident":
        """Return this incident after its guardrail let it go on."""
        if self.block is None:
            return self
        state = IncidentState.RECOVERING if self.state is IncidentState.BLOCKED else self.state
        return self.but(state=state, block=None)

    def at_stage(self, name: str, at: datetime) -> "Incident":
        """Return this incident with a stage reached; the first time counts."""
        if getattr(self.stages, name) is not None:
            return self
        return self.but(stages=self.stages.but(**{name: at}))


class Evidence(Value):
    """One signal that joined an incident."""

    incident_id: str
    fact: NodeFact
    joined_at: Instant
    opened: bool
    """Whether this signal opened the incident."""


class TimelineEntry(Value):
    """One line of an incident's or a job's story."""

    at: Instant
    kind: str
    """Past participle, lower case: `sickened`, `decided`, `cordoned`, `job`, `repair`, `returned`, …"""
    text: Sentence
    decision_id: str = ""
    writer: str = ""
    """The service that wrote it."""


class AffectedNode(Value):
    """The machine that a fact is about, and the seat it holds."""

    life: NodeLife
    slot: str
    node_name: str = ""
    pool: str = ""
    instance_type: str = ""
    boot_id: str = ""
    job_ids: tuple[str, ...] = ()
    """The jobs on it when it was last looked at."""
