"""Nodes that an incident left unhealthy: what counts as one, what ends it, and when Evenkeel resumes work on it."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from evenkeel.domain.health.assessment import add_cleared_fault, cleared_at, signals_of
from evenkeel.domain.health.faults import NODE_RUNGS
from evenkeel.domain.health.incidents import Approval, ClearedFault, Incident, IncidentState, StageTimes
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.recovery.approval import ASK, is_approved
from evenkeel.domain.recovery.node_slot import ObservedNode
from evenkeel.domain.recovery.plan import Owner, PlanOutcome, RecoveryPlan
from evenkeel.domain.recovery.validation import judge_node
from evenkeel.domain.values import Instant, Sentence, Value

_FIRST_PAUSE = timedelta(minutes=5)
_LONGEST_PAUSE = timedelta(hours=1)
_SHOWN_ON_NODE = ("kubernetes.node", "hyperpod.node-labels", "eks.node-conditions")
"""Sources whose faults a node object shows for as long as they last."""


class UnhealthyNode(Value):
    """A node that needs a repair and gets none. It ends with a cure, a repair, a replacement or a person's word."""

    life: NodeLife
    incident_id: str
    """The settled incident that left it so."""
    since: Instant
    reason: Sentence
    """Why nothing is done."""
    cleared_faults: tuple[ClearedFault, ...] = ()
    """What was said to be gone since."""
    trusted_by: str = ""
    """Person who reported the node as healthy; empty if no person did."""
    trusted_at: Instant | None = None
    """When that person said so."""


def is_unhealthy(marks: Iterable[str], left: UnhealthyNode | None) -> bool:
    """Whether a Ready node may take no work. A person's word outweighs the marks until the next incident opens.

    Args:
        marks: What marks the node as broken now.
        left: What the last incident of the node, or a person, left behind.
    """
    return not left.trusted_by if left else any(marks)


def unhealthy_after(incident: Incident, ladder: Iterable[str]) -> UnhealthyNode | None:
    """Return what a settled incident leaves behind; None where its node needs no repair, or got one.

    Args:
        incident: The incident, settled.
        ladder: The rungs of its fault that touch the node.
    """
    plan = incident.plan
    has_recovered = incident.recovered_at is not None and incident.recovered_at > (
        incident.last_signal_at or incident.first_signal_at
    )
    if incident.is_drill or plan is None or plan.outcome == PlanOutcome.NOTHING or has_recovered:
        return None
    if incident.state not in _NOTHING_DONE or incident.replacement_instance_id or not any(ladder):
        return None
    # A plan that stands down names no repair: its rungs tell whether the fault is the node's or the application's.
    is_nodes = plan.repairs_node or (
        plan.outcome in _STANDS_DOWN and any(rung in NODE_RUNGS for rung in plan.rungs[:1])
    )
    if not is_nodes:
        return None
    settled_at = incident.stages.settled_at or incident.opened_at
    return UnhealthyNode(
        life=incident.life, incident_id=incident.incident_id, since=settled_at, reason=incident.outcome
    )


_STANDS_DOWN = (PlanOutcome.STAND_DOWN, PlanOutcome.LATER)
_NOTHING_DONE = (IncidentState.OBSERVED, IncidentState.STOOD_DOWN)


def with_cleared_fault(node: UnhealthyNode, incident: Incident, cure: ClearedFault) -> UnhealthyNode | None:
    """Return an unhealthy node with one more cure; None once every fault of its incident is gone."""
    cures = add_cleared_fault((*node.cleared_faults, *incident.cleared_faults), cure)
    return None if cleared_at(signals_of(incident), cures) else node.but(cleared_faults=cures)


def why_healthy(incident: Incident, machine: ObservedNode, *, expected: int) -> str:
    """Say why a node is unhealthy no more, in one sentence; empty where it is.

    A fault that the node object shows is gone once it shows no more. Of another fault only a reboot is a sign: the node
    may look well and be broken.

    Args:
        incident: The incident that left it so.
        machine: Both control planes' views of the node now.
        expected: How many accelerators it should offer.
    """
    node = machine.node
    if node is None:
        return ""
    if incident.cordon_marked_at is not None and not node.is_cordoned:
        return "A person removed its cordon."
    if node.is_cordoned or not judge_node(machine, expected=expected).is_valid:
        return ""
    if incident.boot_id and node.boot_id and node.boot_id != incident.boot_id:
        return "The node rebooted and shows no fault."
    if all(signal.source in _SHOWN_ON_NODE for signal in signals_of(incident)):
        return "The node no longer shows the fault."
    return ""


def why_resume(incident: Incident, plan: RecoveryPlan, *, now: datetime) -> str:
    """Say why work on an unhealthy node is resumed, in one sentence; empty where nothing has changed.

    Args:
        incident: The incident that left it so.
        plan: What would be planned now.
        now: The time.
    """
    before, approval = incident.plan, incident.approval
    if before is None or plan.owner is Owner.PERSON or plan.outcome not in (PlanOutcome.ACT, PlanOutcome.ASK):
        return ""
    settled_at = incident.stages.settled_at or incident.opened_at
    if before.outcome == ASK and is_approved(incident) and approval and approval.at >= settled_at:
        return f"{approval.by} approved the plan."
    if incident.state is IncidentState.STOOD_DOWN and (before.outcome == PlanOutcome.ACT or is_approved(incident)):
        # It stood down midway, for a reason that a new plan may not see: each further try waits longer.
        pause = min(_FIRST_PAUSE * 2**incident.resumed, _LONGEST_PAUSE)
        return "Another repair is allowed." if now - settled_at >= pause else ""
    if plan.outcome is PlanOutcome.ACT:
        return f"A repair is now allowed: {plan.reason}"
    if before.outcome != ASK:
        return f"A person can now approve the repair: {plan.reason}"
    return ""


def resumed_incident(incident: Incident, node: UnhealthyNode, *, incident_id: str, now: datetime) -> Incident:
    """Return the incident that resumes work on an unhealthy node: the same evidence, a new recovery.

    An approval that came after the end is taken along with its plan.
    """
    approval: Approval | None = incident.approval if is_approved(incident) else None
    return incident.but(
        incident_id=incident_id,
        state=IncidentState.OPEN,
        run=1,
        opened_at=now,
        resumes=incident.incident_id,
        resumed=incident.resumed + 1,
        cleared_faults=tuple(
            {(each.fault_key, each.source): each for each in (*incident.cleared_faults, *node.cleared_faults)}.values()
        ),
        plan=incident.plan.but(run=0) if approval and incident.plan else None,
        approval=approval,
        mode="",
        block=None,
        affected_jobs=(),
        unmanaged_workloads=(),
        repairs=(),
        progress=(),
        check=None,
        invalid_at=None,
        cordon_marked_at=None,
        failed_at=None,
        node_branch="",
        paged_at=None,
        outcome="",
        stages=StageTimes(detected_at=now),
    )
