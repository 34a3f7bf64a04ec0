"""Nodes that an incident left unhealthy: record them, notice that they are healthy again, resume their recovery."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from evenkeel.domain.health.assessment import add_cleared_fault, cleared_at, signals_of, signals_to_clear
from evenkeel.domain.health.faults import NODE_RUNGS, FaultCatalogue
from evenkeel.domain.health.incident_updates import continued_incident
from evenkeel.domain.health.incidents import Approval, ClearedFault, Incident, IncidentState, PlanOutcome
from evenkeel.domain.health.signal_sources import signal_source
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.recovery.approval import is_approved
from evenkeel.domain.recovery.node_slot import ObservedNode
from evenkeel.domain.recovery.plan import NodeOwner, RecoveryPlan
from evenkeel.domain.recovery.validation import judge_node
from evenkeel.domain.values import Instant, Sentence, Value

_FIRST_PAUSE_BEFORE_REPAIR = timedelta(minutes=5)
_LONGEST_PAUSE_BEFORE_REPAIR = timedelta(hours=1)


class UnhealthyNode(Value):
    """A node that needs a repair and gets none.

    It stays in this state until its faults clear, it is repaired or replaced, or a person reports it as healthy.
    """

    life: NodeLife
    incident_id: str
    """The settled incident that left the node unhealthy."""
    since: Instant
    reason: Sentence
    """Why the node gets no repair."""
    cleared_faults: tuple[ClearedFault, ...] = ()
    """Faults that were reported as gone since."""
    trusted_by: str = ""
    """Person who reported the node as healthy; empty if no person did."""
    trusted_at: Instant | None = None
    """Time of that person's report."""


def is_unhealthy(marks: Iterable[str], unhealthy_node: UnhealthyNode | None) -> bool:
    """Whether a Ready node must not take work. A person's report overrides the marks until the next incident opens.

    Args:
        marks: Labels, taints and conditions that mark the node as faulty now.
        unhealthy_node: The record of the node if its last incident left it unhealthy; None if there is none.
    """
    return not unhealthy_node.trusted_by if unhealthy_node else any(marks)


def unhealthy_after(incident: Incident, ladder: Iterable[str]) -> UnhealthyNode | None:
    """Return the unhealthy node that a settled incident leaves; None if the node needs no repair, or got one.

    Args:
        incident: The settled incident.
        ladder: The rungs of its fault that act on the node.
    """
    plan = incident.plan
    if incident.is_drill or plan is None or plan.outcome == PlanOutcome.NOTHING or incident.has_recovered:
        return None
    if incident.state not in _NOTHING_DONE or incident.replacement_instance_id or not any(ladder):
        return None
    # A plan that stands down names no repair. Its first rung shows whether the node or the application is at fault.
    is_node_fault = plan.repairs_node or (
        plan.outcome in _STANDS_DOWN and any(rung in NODE_RUNGS for rung in plan.rungs[:1])
    )
    if not is_node_fault:
        return None
    settled_at = incident.stages.settled_at or incident.opened_at
    return UnhealthyNode(
        life=incident.life, incident_id=incident.incident_id, since=settled_at, reason=incident.outcome
    )


_STANDS_DOWN = (PlanOutcome.STAND_DOWN, PlanOutcome.LATER)
_NOTHING_DONE = (IncidentState.OBSERVED, IncidentState.STOOD_DOWN)


def with_cleared_fault(
    node: UnhealthyNode, incident: Incident, new_fault: ClearedFault, catalogue: FaultCatalogue
) -> UnhealthyNode | None:
    """Return an unhealthy node with one more cleared fault; None once every fault that needs a repair is gone."""
    cleared_faults = add_cleared_fault((*node.cleared_faults, *incident.cleared_faults), new_fault)
    signals = signals_to_clear(signals_of(incident), catalogue)
    return None if cleared_at(signals, cleared_faults) else node.replace(cleared_faults=cleared_faults)


def why_healthy(
    incident: Incident, observed_node: ObservedNode, catalogue: FaultCatalogue, *, expected_accelerators: int
) -> str:
    """Return why a node is healthy again, as one sentence; empty if it is still unhealthy.

    A fault that the node object shows is over once the object no longer shows it. After any other fault the node may
    look healthy and still be faulty, so only a reboot counts.

    Args:
        incident: The incident that left the node unhealthy.
        observed_node: The node as both control planes show it now.
        catalogue: The faults.
        expected_accelerators: Number of accelerators that the node should offer.
    """
    node = observed_node.node
    if node is None:
        return ""
    if incident.cordon_marked_at is not None and not node.is_cordoned:
        return "A person removed its cordon."
    if node.is_cordoned or not judge_node(observed_node, expected_count=expected_accelerators).is_valid:
        return ""
    if incident.boot_id and node.boot_id and node.boot_id != incident.boot_id:
        return "The node rebooted and shows no fault."
    if all(signal_source(signal.source).is_on_node for signal in signals_to_clear(signals_of(incident), catalogue)):
        return "The node no longer shows the fault."
    return ""


def why_resume(incident: Incident, plan: RecoveryPlan, *, now: datetime) -> str:
    """Return why Evenkeel resumes the recovery of an unhealthy node, as one sentence; empty if nothing has changed.

    Args:
        incident: The incident that left the node unhealthy.
        plan: The plan that Evenkeel would make now.
        now: The current time.
    """
    earlier_plan, approval = incident.plan, incident.approval
    if earlier_plan is None or plan.owner is NodeOwner.PERSON or plan.outcome not in (PlanOutcome.ACT, PlanOutcome.ASK):
        return ""
    settled_at = incident.stages.settled_at or incident.opened_at
    if earlier_plan.outcome == PlanOutcome.ASK and is_approved(incident) and approval and approval.at >= settled_at:
        return f"{approval.by} approved the plan."
    if incident.state is IncidentState.STOOD_DOWN and (
        earlier_plan.outcome == PlanOutcome.ACT or is_approved(incident)
    ):
        # The recovery stood down midway, for a reason that a new plan may not show. So each retry waits longer.
        pause = min(_FIRST_PAUSE_BEFORE_REPAIR * 2**incident.resumed, _LONGEST_PAUSE_BEFORE_REPAIR)
        return "Another repair is allowed." if now - settled_at >= pause else ""
    if plan.outcome is PlanOutcome.ACT:
        return f"A repair is now allowed: {plan.reason}"
    if earlier_plan.outcome != PlanOutcome.ASK:
        return f"A person can now approve the repair: {plan.reason}"
    return ""


def resumed_incident(incident: Incident, node: UnhealthyNode, *, incident_id: str, now: datetime) -> Incident:
    """Return the incident that resumes the recovery of an unhealthy node, with the same evidence.

    If a person approved the plan after the first incident had ended, the new incident keeps the plan and the approval.
    """
    approval: Approval | None = incident.approval if is_approved(incident) else None
    return continued_incident(incident, incident_id=incident_id, now=now).replace(
        resumed=incident.resumed + 1,
        cleared_faults=tuple(
            {
                (fault.fault_key, fault.source): fault for fault in (*incident.cleared_faults, *node.cleared_faults)
            }.values()
        ),
        plan=incident.plan.replace(run=0) if approval and incident.plan else None,
        approval=approval,
    )
