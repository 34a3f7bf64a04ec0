"""A person approves or declines the plan of a recovery that asked. The workflow hears of it by its wait."""

from evenkeel.domain.health.incidents import Approval, Incident
from evenkeel.domain.nodes import FleetNode, KubernetesNode
from evenkeel.domain.recovery.approval import ASK, describe_approval, why_superseded
from evenkeel.domain.values import Value
from evenkeel.ports import Ledger, Refused, Write
from evenkeel.services.context import Context
from evenkeel.services.storage import incident_record, rows


class Request(Value):
    """Who says what to which plan."""

    incident_id: str
    decision_id: str
    approves: bool
    by: str
    reason: str


class AlreadyAnswered(Refused):
    """Somebody else was first."""

    code = "ALREADY_ANSWERED"


class PlanSuperseded(Refused):
    """The plan that was answered is not the one that asks now, or nothing asks."""

    code = "PLAN_SUPERSEDED"


def run(request: Request, context: Context) -> Incident:
    """Record the answer, unless another one stands or the plan does not ask any more.

    A plan that was declined, or not answered in time, may be approved as long as its node is unhealthy: the sweeper
    then resumes work on it. Otherwise the first answer stands.

    Idempotent: yes, the same answer by the same person is success.

    Raises:
        NotFound: there is no such incident.
        AlreadyAnswered: somebody else answered first; the message names who.
        PlanSuperseded: it is not the plan that asks now: planned anew, for another state of the machine, or over.
    """

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        approval = current.approval
        asks = current.plan.decision_id if current.plan else ""
        if approval is not None and approval.decision_id == request.decision_id == asks:
            if (approval.by, approval.approves) == (request.by, request.approves):
                return None
            # A plan that was declined may be approved later, while its node is unhealthy still.
            if not (request.approves and not approval.approves and current.state.is_settled):
                raise AlreadyAnswered(f"{describe_approval(approval).rstrip('.')}. That answer is final.")
        why = _why_not(current, request, context.ledger)
        if why:
            raise PlanSuperseded(why)
        answer = Approval(
            decision_id=request.decision_id,
            approves=request.approves,
            by=request.by,
            reason=request.reason,
            at=context.now,
        )
        line = incident_record.timeline_put(
            current.incident_id,
            "approved" if request.approves else "declined",
            describe_approval(answer),
            at=context.now,
            writer=request.by,
            decision_id=request.decision_id,
        )
        return current.but(approval=answer), [line]

    after = incident_record.update(context.ledger, request.incident_id, change)
    context.telemetry.count("PlansAnswered", answer="approved" if request.approves else "declined")
    return after


def _why_not(incident: Incident, request: Request, ledger: Ledger) -> str:
    plan = incident.plan
    if incident.state.is_settled and not (request.approves and _is_left_unhealthy(incident, ledger)):
        return f"{incident.incident_id} is settled: {incident.outcome}"
    if plan is None or plan.outcome != ASK:
        return f"{incident.incident_id} has no plan that needs approval."
    if plan.decision_id != request.decision_id:
        return f"Plan {request.decision_id} is out of date: answer {plan.decision_id}."
    return why_superseded(incident, _node(incident, ledger))


def _is_left_unhealthy(incident: Incident, ledger: Ledger) -> bool:
    """Whether the node waits for a repair still, and no later incident works on it: the sweeper acts on an approval."""
    row = ledger.get(rows.unhealthy_key(incident.life))
    is_its = row is not None and row.doc["incidentId"] == incident.incident_id and not row.doc["trustedBy"]
    return is_its and ledger.get(rows.open_key(incident.life)) is None


def _node(incident: Incident, ledger: Ledger) -> KubernetesNode | None:
    """Return the node as the sweeper last saw it: enough to tell that it has booted again."""
    row = ledger.get(rows.node_key(incident.life.cluster, incident.life.instance_id))
    seen = rows.read(row, FleetNode) if row else None
    if seen is None or seen.is_gone:
        return None
    return KubernetesNode(cluster=seen.life.cluster, name=seen.node_name, boot_id=seen.boot_id)
