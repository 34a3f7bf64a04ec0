"""State ReturnNode of recover_node: let the node in the slot take new pods again."""

from evenkeel.domain.health.incidents import Incident, NodeBranchResult
from evenkeel.domain.values import Value
from evenkeel.ports import Ledger, UncordonResult, Write
from evenkeel.services.context import Context
from evenkeel.services.incidents import recovery_step
from evenkeel.services.recovery.slot_reader import SlotReader
from evenkeel.services.storage import guardrail_registers, incident_store
from evenkeel.services.storage.guardrail_registers import RegisterName
from evenkeel.services.tables import incident_rows, rows

WRITER = "return_node"


class ReturnNodeResult(Value):
    """The outcome for the node."""

    outcome: NodeBranchResult
    reason: str


_OUTCOME_TEXT = {
    UncordonResult.RELEASED: (NodeBranchResult.RETURNED, "{name} is back in service."),
    UncordonResult.ALREADY_FREE: (NodeBranchResult.RETURNED, "{name} is back in service."),
    UncordonResult.CORDONED_BY_OTHER: (
        NodeBranchResult.STAYS_CORDONED,
        "{name} is healthy but stays cordoned, because {owner} cordoned it.",
    ),
    UncordonResult.GONE: (NodeBranchResult.GONE, "{name} is gone from its cluster."),
}


def run(request: recovery_step.RecoveryStepRequest, context: Context) -> ReturnNodeResult:
    """Remove Evenkeel's cordon and the validation taint from the node in the slot, and request a scheduling cycle.

    No mode and no hold blocks this: it only undoes this recovery's cordon.

    Idempotent: yes, a recorded outcome stands, and a node without a cordon is success.
    """
    incident, _ = incident_store.load_incident(context.ledger, request.incident_id)
    if _is_over(request, incident):
        return _earlier_answer(incident, context)
    last_repair_request = incident_store.last_repair_request(context.ledger, incident)
    slot_state = SlotReader(incident, context).read_state(
        last_repair_request.requested_at if last_repair_request else incident.opened_at
    )
    observed_node = slot_state.replacement or slot_state.original
    node = observed_node.node
    if node is None:
        return _record_return(
            incident, ReturnNodeResult(outcome=NodeBranchResult.GONE, reason="The node slot is empty."), "", context
        )
    if incident.is_drill and context.ledger.get(incident_rows.open_key(incident.life)) is not None:
        reason = f"{node.name} stays cordoned, because a real incident is open for it."
        return _record_return(
            incident,
            ReturnNodeResult(outcome=NodeBranchResult.STAYS_CORDONED, reason=reason),
            observed_node.instance_id,
            context,
        )
    cordon_incident_id = _removable_cordon(node.incident_id, incident, context.ledger)
    # The reads above take time. Meanwhile another call of this step may have ended the recovery.
    present_incident, _ = incident_store.load_incident(context.ledger, request.incident_id)
    if _is_over(request, present_incident):
        return _earlier_answer(present_incident, context)
    result = context.cluster.return_to_service(incident.life.cluster, node.name, cordon_incident_id)
    outcome, text = _OUTCOME_TEXT[result]
    is_cordon_of_incident = node.incident_id and node.incident_id != cordon_incident_id
    owner = node.incident_id if is_cordon_of_incident else "a person"
    answer = _record_return(
        incident,
        ReturnNodeResult(outcome=outcome, reason=text.format(name=node.name, owner=owner)),
        observed_node.instance_id,
        context,
    )
    context.cycle_requests.request(f"{node.name} returned")
    if result is UncordonResult.RELEASED:
        context.telemetry.seconds("DetectedToReturned", (context.now - incident.opened_at).total_seconds())
    return answer


def _is_over(request: recovery_step.RecoveryStepRequest, incident: Incident) -> bool:
    return recovery_step.is_over(request.run, incident) or recovery_step.has_left_node(incident)


_EARLIER_TEXT = {
    NodeBranchResult.RETURNED: "{name} is back in service.",
    NodeBranchResult.STAYS_CORDONED: "{name} is healthy but stays cordoned.",
    NodeBranchResult.GONE: "{name} is gone from its cluster.",
}


def _earlier_answer(incident: Incident, context: Context) -> ReturnNodeResult:
    """Return the recorded outcome. The node may be in another recovery by now, so it stays as it is."""
    outcome = NodeBranchResult(incident.node_branch or NodeBranchResult.STOOD_DOWN)
    name = incident.replacement_instance_id or incident.node_name
    if outcome is NodeBranchResult.RETURNED:  # an earlier call may have crashed before this request
        context.cycle_requests.request(f"{name} returned")
    text = _EARLIER_TEXT.get(outcome, "The recovery of {name} has ended, or a later run took over.")
    return ReturnNodeResult(outcome=outcome, reason=text.format(name=name))


def _removable_cordon(cordon_incident_id: str | None, incident: Incident, ledger: Ledger) -> str:
    """Return the incident whose cordon may be removed: this one, or a settled earlier incident of the same node.

    After a restore of the tables, nodes may have annotations of incidents that the ledger does not know. A real
    incident that has repaired and validated its node removes such an annotation, too.
    """
    if cordon_incident_id and cordon_incident_id != incident.incident_id:
        row = ledger.get(incident_rows.incident_key(cordon_incident_id))
        if row is None and not incident.is_drill:
            return cordon_incident_id
        earlier = rows.decode(row, Incident) if row else None
        # A drill yields to a real incident, so the real one removes the drill's cordon before the drill is settled. A
        # drill never removes the cordon of a real incident, which may have left the node to a person.
        is_over = earlier is not None and (
            earlier.state.is_settled and earlier.is_drill
            if incident.is_drill
            else earlier.state.is_settled or earlier.is_drill
        )
        if earlier and is_over and earlier.life == incident.life:
            return cordon_incident_id
    return incident.incident_id


def _record_return(
    incident: Incident, answer: ReturnNodeResult, instance_id: str, context: Context
) -> ReturnNodeResult:
    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        if current.node_branch == answer.outcome or current.state.is_settled:
            return None
        returned_incident = current.replace(node_branch=answer.outcome)
        if instance_id and instance_id != current.life.instance_id:
            returned_incident = returned_incident.replace(replacement_instance_id=instance_id)
        if answer.outcome == NodeBranchResult.RETURNED:
            returned_incident = returned_incident.with_stage_time("returned_at", context.now)
        life = current.life.key
        leaves = [
            *guardrail_registers.removal_writes(RegisterName.REPAIRS, context, life, is_drill=current.is_drill),
            *guardrail_registers.removal_writes(RegisterName.CORDONS, context, life, is_drill=current.is_drill),
        ]
        returned_incident = returned_incident.without_block()
        kind = "returned" if answer.outcome == NodeBranchResult.RETURNED else "node"
        line = incident_store.timeline_put(current.incident_id, kind, answer.reason, at=context.now, writer=WRITER)
        return returned_incident, [*leaves, line]

    incident_store.update_incident(context.ledger, incident.incident_id, change)
    return answer
