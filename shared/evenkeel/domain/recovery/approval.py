"""Approvals: a person's answer to one recovery plan.

An approval names the decision of one plan and is valid for no other plan.
"""

from collections.abc import Iterable

from evenkeel.domain.health.faults import NODE_RUNGS
from evenkeel.domain.health.incidents import Approval, Incident, PlanOutcome
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.waiting import WaitAnswer, WaitOutcome


def is_approved(incident: Incident) -> bool:
    """Whether a person approved the current plan of the incident."""
    plan, approval = incident.plan, incident.approval
    return bool(plan and approval and approval.approves and approval.decision_id == plan.decision_id)


def awaits_approval(incident: Incident) -> bool:
    """Whether the plan of an open incident awaits a person's approval."""
    plan, approval = incident.plan, incident.approval
    if plan is None or plan.outcome != PlanOutcome.ASK or incident.state.is_settled:
        return False
    return approval is None or approval.decision_id != plan.decision_id


def why_beyond_approval(incident: Incident, rungs: Iterable[str]) -> str:
    """Return which rungs the fault now needs beyond the approved plan, as one sentence; empty if none.

    Args:
        incident: The incident, with all signals up to now.
        rungs: The rungs that the incident needs now, in order.
    """
    plan = incident.plan
    if plan is None or plan.outcome != PlanOutcome.ASK or not plan.rungs:
        return ""
    unapproved_rungs = [rung for rung in rungs if rung in NODE_RUNGS and rung not in plan.rungs]
    approved_text = " then ".join(plan.rungs)
    return (
        f"A person approved {approved_text}, but {incident.fault_key} now needs {' then '.join(unapproved_rungs)}."
        if unapproved_rungs
        else ""
    )


def why_superseded(incident: Incident, node: KubernetesNode | None) -> str:
    """Return why a plan that waits for approval is obsolete, as one sentence; empty if it still applies.

    Args:
        incident: The incident whose plan waits for approval.
        node: Its node now; None if the node is gone or was not read.
    """
    plan = incident.plan
    if plan is None:
        return "There is no plan yet."
    if plan.fault_key and plan.fault_key != incident.fault_key:
        return f"The plan was for {plan.fault_key}, but the fault is now {incident.fault_key}."
    if incident.has_recovered:
        return "The node recovered after the plan was made."
    if plan.boot_id and node and node.boot_id and node.boot_id != plan.boot_id:
        return "The node rebooted after the plan was made."
    return ""


def evaluate_approval(incident: Incident, node: KubernetesNode | None) -> WaitAnswer | None:
    """Return the answer for a recovery that waits for approval; None while there is no answer.

    An obsolete plan is superseded even if a person approved it, because that person approved another situation.
    """
    obsolete = why_superseded(incident, node)
    if obsolete:
        return WaitAnswer(outcome=WaitOutcome.SUPERSEDED, reason=obsolete)
    approval, plan = incident.approval, incident.plan
    if approval is None or plan is None or approval.decision_id != plan.decision_id:
        return None
    return WaitAnswer(
        outcome=WaitOutcome.APPROVED if approval.approves else WaitOutcome.DECLINED, reason=describe_approval(approval)
    )


def describe_approval(approval: Approval) -> str:
    """Return who approved or declined a plan, and the reason given, as one sentence."""
    verb = "Approved" if approval.approves else "Declined"
    return f"{verb} by {approval.by}" + (f": {approval.reason}" if approval.reason else ".")
