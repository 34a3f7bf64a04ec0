"""A person approves or declines the plan of a recovery. The workflow receives the answer through its wait."""

from evenkeel.domain.health.incidents import Approval, Incident, PlanOutcome
from evenkeel.domain.nodes import FleetNode, KubernetesNode
from evenkeel.domain.recovery.approval import describe_approval, why_superseded
from evenkeel.domain.timeline import TimelineEntry
from evenkeel.domain.values import Value
from evenkeel.ports import Ledger, Put, Refused, Write
from evenkeel.services.context import Context
from evenkeel.services.storage import incident_store
from evenkeel.services.tables import fleet_rows, incident_rows, rows


class ApproveRecoveryRequest(Value):
    """The answer of a person to one plan."""

    incident_id: str
    decision_id: str
    approves: bool
    by: str
    reason: str


class AlreadyAnswered(Refused):
    """Another person answered first."""

    code = "ALREADY_ANSWERED"


class PlanSuperseded(Refused):
    """The answered plan no longer awaits approval."""

    code = "PLAN_SUPERSEDED"


def run(request: ApproveRecoveryRequest, context: Context) -> Incident:
    """Record the answer, unless another answer exists or the plan no longer awaits approval.

    A plan that was declined, or not answered in time, may be approved while its node is unhealthy. The sweep then
    resumes the recovery. Otherwise the first answer stands.

    Idempotent: yes, the same answer by the same person is success.

    Raises:
        NotFound: there is no such incident.
        AlreadyAnswered: another person answered first; the message names the person.
        PlanSuperseded: the incident has another plan now, for another state of the node, or is over.
    """

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        approval = current.approval
        open_plan = current.plan.decision_id if current.plan else ""
        if approval is not None and approval.decision_id == request.decision_id == open_plan:
            if (approval.by, approval.approves) == (request.by, request.approves):
                return None
            # A declined plan may be approved later, while its node is still unhealthy.
            if not (request.approves and not approval.approves and current.state.is_settled):
                raise AlreadyAnswered(f"{describe_approval(approval).rstrip('.')}. That answer is final.")
        why = _why_not_answerable(current, request, context.ledger)
        if why:
            raise PlanSuperseded(why)
        answer = Approval(
            decision_id=request.decision_id,
            approves=request.approves,
            by=request.by,
            reason=request.reason,
            at=context.now,
        )
        line = incident_store.timeline_put(
            current.incident_id,
            "approved" if request.approves else "declined",
            describe_approval(answer),
            at=context.now,
            writer=request.by,
            decision_id=request.decision_id,
        )
        entry = TimelineEntry(
            at=context.now,
            kind="approved" if request.approves else "declined",
            text=f"{current.incident_id}: {describe_approval(answer)}",
            decision_id=request.decision_id,
            writer=request.by,
        )
        audit_put = Put(fleet_rows.automation_event_row(entry, f"{request.by}#{request.decision_id}"))
        return current.replace(approval=answer), [line, audit_put]

    approved_incident = incident_store.update_incident(context.ledger, request.incident_id, change)
    context.telemetry.count("PlansAnswered", answer="approved" if request.approves else "declined")
    return approved_incident


def _why_not_answerable(incident: Incident, request: ApproveRecoveryRequest, ledger: Ledger) -> str:
    plan = incident.plan
    if incident.state.is_settled and not (request.approves and _is_left_unhealthy(incident, ledger)):
        return f"{incident.incident_id} is settled: {incident.outcome}"
    if plan is None or plan.outcome != PlanOutcome.ASK:
        return f"{incident.incident_id} has no plan that needs approval."
    if plan.decision_id != request.decision_id:
        return f"Plan {request.decision_id} is out of date: answer {plan.decision_id}."
    return why_superseded(incident, _stored_node(incident, ledger))


def _is_left_unhealthy(incident: Incident, ledger: Ledger) -> bool:
    """Whether the node still waits for a repair and no later incident works on it. The sweep acts on an approval."""
    row = ledger.get(incident_rows.unhealthy_key(incident.life))
    is_of_incident = row is not None and row.doc["incidentId"] == incident.incident_id and not row.doc["trustedBy"]
    return is_of_incident and ledger.get(incident_rows.open_key(incident.life)) is None


def _stored_node(incident: Incident, ledger: Ledger) -> KubernetesNode | None:
    """Return the node as the sweep last stored it. That is enough to see that it has booted again."""
    row = ledger.get(fleet_rows.node_key(incident.life.cluster, incident.life.instance_id))
    node = rows.decode(row, FleetNode) if row else None
    if node is None or node.is_gone:
        return None
    return KubernetesNode(cluster=node.life.cluster, name=node.node_name, boot_id=node.boot_id)
