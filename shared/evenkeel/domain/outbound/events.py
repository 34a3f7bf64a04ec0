"""Events that Evenkeel publishes. Each follows from a change of one stored row, so it exists once that is stored.

A function receives the row before and after the change. It returns an event only for a transition on which a person or
a program acts. The same change always gives the same events, with the same ids.
"""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.incidents import Incident, StageTimes
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.nodes import FleetNode, NodeLife
from evenkeel.domain.policy import PolicyChange
from evenkeel.domain.recovery.approval import awaits_approval
from evenkeel.domain.recovery.manual_cordons import ManualCordons
from evenkeel.domain.recovery.settling import ALERTING_STATES
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Instant, Sentence, Value

SOURCE = "evenkeel"
"""EventBridge's `source` of every event."""
SCHEMA_VERSION = "1.1"
"""Version of every event's data. A new field raises the minor version; a breaking change is a new kind."""
_MAX_JOBS = 100
"""Jobs that an event about an incident names. EventBridge accepts 256 KB for an event."""


class OutboundKind(StrEnum):
    """The kinds of events, as EventBridge's `detail-type`."""

    INCIDENT_OPENED = "Incident Opened"
    INCIDENT_NEEDS_PERSON = "Incident Needs Person"
    """A plan awaits approval, or the incident ended and Evenkeel cannot do the rest."""
    INCIDENT_SETTLED = "Incident Settled"
    JOB_SUBMITTED = "Job Submitted"
    JOB_STARTED = "Job Started"
    """It runs for the first time."""
    JOB_INTERRUPTED = "Job Interrupted"
    """Its attempt ended, and it waits to run again."""
    JOB_MOVED = "Job Moved"
    """It runs again, in a later attempt."""
    JOB_SUSPENDED = "Job Suspended"
    JOB_ENDED = "Job Ended"
    BUDGET_NEAR_END = "Budget Near End"
    """A team used 80 % of a budget, or all of it."""
    BUDGET_RUNS_OUT = "Budget Runs Out"
    """At the present rate, a budget ends before its period does."""
    AUTOMATION_CHANGED = "Automation Changed"
    """A person held or released automation, or ended a shared cause."""
    NODE_JOINED = "Node Joined"
    NODE_LEFT = "Node Left"
    NODE_CORDONED = "Node Cordoned"
    """A person cordoned it through Evenkeel."""
    POLICY_CHANGED = "Policy Changed"
    QUOTA_CHANGED = "Quota Changed"


class EventMetadata(Value):
    """The part of `detail` that is the same for all kinds. It maps one to one to CloudEvents 1.0."""

    id: str
    """Identity of the fact. A repeated delivery has the same id: drop ids that you have already processed."""
    schema_version: str
    occurred_at: Instant
    """When the ledger stored the change, in whole seconds. Order of delivery is not promised; this is the order."""
    producer: str
    """The function that published it."""
    correlation_id: str
    """Id of the incident, job or node; name of the team or fleet."""
    cluster: str
    """Name of the fleet."""
    is_drill: bool
    """Whether it follows from a drill."""


class CommonData(Value):
    """The first fields of `data`, the same for all kinds."""

    text: Sentence
    """The event as one or two sentences for a person."""
    team: str | None
    """Team of the job or budget."""
    by: str | None
    """The person who acted; null if Evenkeel did."""


class IncidentData(Value):
    """Data of `Incident Opened`, `Incident Needs Person` and `Incident Settled`."""

    incident_id: str
    state: str
    severity: str
    fault: str
    """Key of the fault in the catalogue."""
    fault_name: str
    cluster: str
    instance_id: str
    node_name: str | None
    pool: str
    instance_type: str
    job_ids: tuple[str, ...]
    """Jobs that it interrupted, at most 100."""
    mode: str | None
    execution: str
    """Name of the execution of `recover_node`."""
    repairs: tuple[str, ...]
    """Repair steps so far: `reboot`, `replace`."""
    replacement_instance_id: str | None
    decision_id: str | None
    answer_by: Instant | None
    """Deadline of the approval that it awaits."""
    outcome: str | None
    stages: StageTimes


class JobData(Value):
    """Data of the kinds about jobs. It has public fields only."""

    job_id: str
    name: str | None
    priority_class: str | None
    state: str
    attempt: int
    nodes: int
    cluster: str | None
    is_preempted: bool
    submitted_at: Instant
    started_at: Instant | None
    ended_at: Instant | None


class BudgetData(Value):
    """Data of `Budget Near End`."""

    period: str
    """The day, week or month of the budget, as `evenkeel teams show` writes it."""
    quantity: str
    """`gpuHours` or `usd`."""
    used: float
    limit: float
    threshold_percent: int
    """80 or 100."""


class BudgetForecastData(Value):
    """Data of `Budget Runs Out`."""

    period: str
    """The day, week or month of the budget, as `evenkeel teams show` writes it."""
    quantity: str
    """`gpuHours` or `usd`."""
    used: float
    limit: float
    expected_at_end: float
    """Use at the end of the period, if the present rate continues."""
    expected_gone_at: Instant
    """When the limit is reached at this rate."""


class NodeData(Value):
    """Data of the kinds about nodes."""

    instance_id: str
    node_name: str | None = None
    cluster: str | None = None
    pool: str | None = None
    instance_type: str | None = None
    gpus: int | None = None


class ChangeData(Value):
    """Data of `Automation Changed`, `Policy Changed` and `Quota Changed`."""

    change: str
    """`held`, `released`, `cause-ended`, `policy`, `setup` or `removed`."""
    number: int | None = None
    """Number of the policy change."""


_DATA: Mapping[str, type[Value]] = {
    "Incident": IncidentData,
    "Job": JobData,
    "Budget": BudgetData,
    "Node": NodeData,
    **dict.fromkeys(("Automation", "Policy", "Quota"), ChangeData),
}
"""The data of the kinds that begin with a word."""
DATA_OF: Mapping[OutboundKind, type[Value]] = {
    **{kind: _DATA[kind.split()[0]] for kind in OutboundKind},
    OutboundKind.BUDGET_RUNS_OUT: BudgetForecastData,
}
"""The data of each kind."""


class OutboundEvent(Value):
    """An event: a change of an incident, job, node, team or fleet."""

    event_id: str
    """Identity of the fact. A repeated delivery has the same id."""
    kind: OutboundKind
    occurred_at: Instant
    """When the ledger stored the change, in whole seconds by the ledger's clock."""
    subject: str
    """Id of the incident, job or node; name of the team or fleet."""
    team: str = ""
    by: str = ""
    """The person who acted; empty if Evenkeel did."""
    text: Sentence
    is_drill: bool = False
    data: dict[str, Any] = {}
    """The JSON form of the type in `DATA_OF`."""

    def detail(self, fleet: str) -> dict[str, Any]:
        """Return EventBridge's `detail`: metadata that is the same for all kinds, and the data of this kind."""
        metadata = EventMetadata(
            id=self.event_id,
            schema_version=SCHEMA_VERSION,
            occurred_at=self.occurred_at,
            producer="publish_events",
            correlation_id=self.subject,
            cluster=fleet,
            is_drill=self.is_drill,
        )
        common = CommonData(text=self.text, team=self.team or None, by=self.by or None)
        return {"metadata": metadata.to_json(), "data": {**common.to_json(), **self.data}}


class RowTransition(NamedTuple):
    """A stored change of one row."""

    row: str
    """Identity of the row: table, partition and sort key."""
    version: int
    at: datetime
    """When the ledger stored it."""

    def event(self, kind: OutboundKind, subject: str, text: str, data: Value, **more_fields: Any) -> OutboundEvent:
        """Return the event of this kind that follows from the change."""
        digest = hashlib.sha256(f"{self.row}|{self.version}|{kind}|{subject}".encode()).hexdigest()
        return OutboundEvent(
            event_id=f"evt-{digest[:24]}",
            kind=kind,
            occurred_at=self.at,
            subject=subject,
            text=text,
            data=data.to_json(),
            **more_fields,
        )


def events_of_incident(
    change: RowTransition, incident_before: Incident | None, incident_after: Incident
) -> tuple[OutboundEvent, ...]:
    """Return the events of a change of an incident: opened, needs a person, settled."""
    kinds = []
    if incident_before is None:
        kinds.append(OutboundKind.INCIDENT_OPENED)
    if open_question_of(incident_after) and (
        incident_before is None or open_question_of(incident_before) != open_question_of(incident_after)
    ):
        kinds.append(OutboundKind.INCIDENT_NEEDS_PERSON)
    if incident_after.state.is_settled and (incident_before is None or not incident_before.state.is_settled):
        kinds.append(OutboundKind.INCIDENT_SETTLED)
    return tuple(_incident_event(change, kind, incident_after) for kind in kinds)


def open_question_of(incident: Incident) -> str:
    """Return a text that identifies the question to a person; another question has another text; empty if none."""
    if awaits_approval(incident) and incident.plan:
        return incident.plan.decision_id
    return incident.state if incident.state in ALERTING_STATES else ""


def _incident_event(change: RowTransition, kind: OutboundKind, incident: Incident) -> OutboundEvent:
    fault = default_catalogue().look_up(incident.fault_key)
    node_text = incident.node_name or incident.life.instance_id
    plan = incident.plan
    pending_plan = plan if plan and awaits_approval(incident) else None
    text = f"{node_text}: {fault.name}."
    if kind is OutboundKind.INCIDENT_NEEDS_PERSON and pending_plan:
        text = f"{text} The plan awaits approval: {pending_plan.reason}"
    elif kind is not OutboundKind.INCIDENT_OPENED:
        text = f"{text} {incident.outcome}".rstrip()
    data = IncidentData(
        incident_id=incident.incident_id,
        state=incident.state,
        severity=incident.severity,
        fault=incident.fault_key,
        fault_name=fault.name,
        cluster=incident.life.cluster,
        instance_id=incident.life.instance_id,
        node_name=incident.node_name or None,
        pool=incident.pool,
        instance_type=incident.instance_type,
        job_ids=tuple(affected_job.job_id for affected_job in incident.affected_jobs[:_MAX_JOBS]),
        mode=incident.mode or None,
        execution=incident.execution_name,
        repairs=incident.repairs,
        replacement_instance_id=incident.replacement_instance_id or None,
        decision_id=plan.decision_id if plan else None,
        answer_by=pending_plan.answer_by if pending_plan else None,
        outcome=incident.outcome or None,
        stages=incident.stages,
    )
    return change.event(kind, incident.incident_id, text, data, is_drill=incident.is_drill)


def events_of_job(change: RowTransition, job_before: Job | None, job_after: Job) -> tuple[OutboundEvent, ...]:
    """Return the event of a change of a job's state. Both values must hold public fields only."""
    kind = _job_kind(job_before, job_after)
    if kind is None:
        return ()
    name = job_after.spec.name or job_after.job_id
    texts = {
        OutboundKind.JOB_SUBMITTED: f"{name} was submitted.",
        OutboundKind.JOB_STARTED: f"{name} runs: attempt {job_after.current_attempt}.",
        OutboundKind.JOB_MOVED: f"{name} runs again: attempt {job_after.current_attempt}.",
        OutboundKind.JOB_INTERRUPTED: f"{name} was {'preempted' if job_after.is_preempted else 'interrupted'}. "
        f"{job_after.reason}".rstrip(),
        OutboundKind.JOB_SUSPENDED: f"{name} is suspended.",
        OutboundKind.JOB_ENDED: f"{name} has ended: {job_after.state.lower()}.",
    }
    data = JobData(
        job_id=job_after.job_id,
        name=job_after.spec.name or None,
        priority_class=job_after.spec.priority_class or None,
        state=job_after.state,
        attempt=job_after.current_attempt,
        nodes=job_after.size or job_after.spec.nodes,
        cluster=job_after.cluster or None,
        is_preempted=job_after.is_preempted,
        submitted_at=job_after.submitted_at,
        started_at=job_after.started_at,
        ended_at=job_after.ended_at,
    )
    by = job_after.submitted_by if kind is OutboundKind.JOB_SUBMITTED else ""
    return (change.event(kind, job_after.job_id, texts[kind], data, team=job_after.spec.team, by=by),)


def _job_kind(job_before: Job | None, job_after: Job) -> OutboundKind | None:
    if job_before is None:
        return OutboundKind.JOB_SUBMITTED
    if job_before.state is job_after.state:
        return None
    if job_after.state.has_ended:
        return OutboundKind.JOB_ENDED
    if job_after.state is JobState.SUSPENDED:
        return OutboundKind.JOB_SUSPENDED
    if job_after.state is JobState.RUNNING:
        return OutboundKind.JOB_STARTED if job_after.current_attempt <= 1 else OutboundKind.JOB_MOVED
    if job_after.state is JobState.PENDING and job_before.state.has_live_attempt:
        return OutboundKind.JOB_INTERRUPTED
    return None


def events_of_node(
    change: RowTransition, node_before: FleetNode | None, node_after: FleetNode
) -> tuple[OutboundEvent, ...]:
    """Return the event of a node that joined or left the fleet."""
    if node_before is None and not node_after.is_gone:
        kind, verb = OutboundKind.NODE_JOINED, "joined"
    elif node_after.is_gone and node_before is not None and not node_before.is_gone:
        kind, verb = OutboundKind.NODE_LEFT, "left"
    else:
        return ()
    node_text = node_after.node_name or node_after.life.instance_id
    data = NodeData(
        instance_id=node_after.life.instance_id,
        node_name=node_after.node_name or None,
        cluster=node_after.life.cluster,
        pool=node_after.pool or None,
        instance_type=node_after.instance_type or None,
        gpus=node_after.accelerators,
    )
    return (
        change.event(
            kind, node_after.life.instance_id, f"{node_text} {verb} the pool {node_after.pool or 'unknown'}.", data
        ),
    )


def events_of_cordons(
    change: RowTransition, cordons_before: ManualCordons, cordons_after: ManualCordons
) -> tuple[OutboundEvent, ...]:
    """Return an event for each cordon that a person added. Removals are not recorded with a person."""
    events = []
    for life, cordon in cordons_after.by_life.items():
        if cordons_before.by_life.get(life) == cordon:
            continue
        node = NodeLife.from_key(life)
        text = f"Cordoned by {cordon.by}{': ' if cordon.reason else '.'}{cordon.reason}"
        data = NodeData(instance_id=node.instance_id, cluster=node.cluster)
        events.append(change.event(OutboundKind.NODE_CORDONED, node.instance_id, text, data, by=cordon.by))
    return tuple(events)


def event_of_entry(
    change: RowTransition, kind: OutboundKind, subject: str, entry: TimelineEntry, by: str
) -> OutboundEvent:
    """Return the event of a person's recorded change: a hold, a release, or a change of quotas."""
    return change.event(kind, subject, entry.text, ChangeData(change=entry.kind), by=by)


def events_of_budgets(
    change: RowTransition, budgets_before: Iterable[Mapping[str, Any]], budgets_after: Iterable[Mapping[str, Any]]
) -> tuple[OutboundEvent, ...]:
    """Return an event for each budget that reached a threshold, 80 % or 100 % of its limit, or is expected to run out.

    The id of the event follows from the team, the period and the threshold. So if a count falls and rises again, the
    event is repeated with the same id.

    Args:
        change: The change of the counts.
        budgets_before: The use of the budgets before, as the sweep counts it.
        budgets_after: The use after the change.
    """
    earlier_budgets = list(budgets_before)
    percent_by_budget = {_budget_key(budget): _percent(budget) for budget in earlier_budgets}
    warned_budgets = {(_budget_key(budget), budget["limit"]) for budget in earlier_budgets if budget.get("warnedAt")}
    events = []
    for budget in budgets_after:
        if budget.get("warnedAt") and (_budget_key(budget), budget["limit"]) not in warned_budgets:
            events.append(_budget_warning(change, budget))
        percent, earlier = _percent(budget), percent_by_budget.get(_budget_key(budget), 0.0)
        threshold = max(
            (percentage for percentage in BUDGET_THRESHOLDS if earlier < percentage <= percent), default=None
        )
        if threshold is None:
            continue
        data = BudgetData(
            period=budget["period"],
            quantity=budget["quantity"],
            used=budget["used"],
            limit=budget["limit"],
            threshold_percent=threshold,
        )
        unit = "GPU-hours" if budget["quantity"] == "gpuHours" else "US dollars"
        consequence = (
            "No further job of the team starts." if threshold == 100 else "At 100 %, no further job of the team starts."
        )
        text = (
            f"Team {budget['team']} has used {percent:.0f} % of its budget of {budget['limit']:.10g} {unit} "
            f"in {budget['period']}. {consequence}"
        )
        threshold_change = RowTransition(f"{'|'.join(_budget_key(budget))}|{threshold}", 0, change.at)
        events.append(
            threshold_change.event(OutboundKind.BUDGET_NEAR_END, budget["team"], text, data, team=budget["team"])
        )
    return tuple(events)


def _budget_warning(change: RowTransition, budget: Mapping[str, Any]) -> OutboundEvent:
    data = BudgetForecastData(
        period=budget["period"],
        quantity=budget["quantity"],
        used=budget["used"],
        limit=budget["limit"],
        expected_at_end=budget["expectedAtEnd"],
        expected_gone_at=budget["expectedGoneAt"],
    )
    unit = "GPU-hours" if budget["quantity"] == "gpuHours" else "US dollars"
    text = (
        f"Team {budget['team']} is expected to spend its budget of {budget['limit']:.10g} {unit} in {budget['period']} "
        f"by {data.expected_gone_at:%Y-%m-%d %H:%M}Z. It has used {budget['used']:.10g}; at this rate it uses "
        f"{budget['expectedAtEnd']:.10g} by the end. A team without budget starts no further job."
    )
    warning = RowTransition(f"{'|'.join(_budget_key(budget))}|forecast|{budget['limit']:g}", 0, change.at)
    return warning.event(OutboundKind.BUDGET_RUNS_OUT, budget["team"], text, data, team=budget["team"])


BUDGET_THRESHOLDS = (80, 100)
"""Percentages of a budget at which an event is published."""


def _budget_key(budget: Mapping[str, Any]) -> tuple[str, str, str]:
    return budget["team"], budget["period"], budget["quantity"]


def _percent(budget: Mapping[str, Any]) -> float:
    """Return the used share in percent. A budget of zero is spent."""
    return 100 * budget["used"] / budget["limit"] if budget["limit"] else 100.0


def event_of_policy(change: RowTransition, fleet: str, policy_change: PolicyChange) -> OutboundEvent:
    """Return the event of a change of the site policy. Only administrators read its reason and its values."""
    data = ChangeData(change="policy", number=policy_change.number)
    text = f"Policy change {policy_change.number} by {policy_change.by}."
    return change.event(OutboundKind.POLICY_CHANGED, fleet, text, data, by=policy_change.by)
