"""State CheckNode of recover_node: start the check that a node must pass before it takes work again.

The order of the writes, and the effect of a crash:

    choose ─▶ record the check with the incident ─▶ test job, or HyperPod's deep health check ─▶ outcome
                │ crash here: the next try starts it    │ crash here: the test job has its name. A deep check shows on
                └───────────────────────────────────────┘ the node, and is requested again only if it does not
"""

from evenkeel.domain.health.incidents import Incident, NodeCheck
from evenkeel.domain.recovery.node_slot import DEEP_CHECK_RUNNING, ObservedNode
from evenkeel.domain.recovery.recovery_waits import why_reboot_is_too_weak
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.domain.recovery.validation import CheckDecision, CheckFacts, CheckKind, choose_check
from evenkeel.domain.values import Value
from evenkeel.ports import CheckSpec, Ledger, Put, Write
from evenkeel.services.context import Context
from evenkeel.services.incidents import recovery_step
from evenkeel.services.recovery.slot_reader import SlotReader
from evenkeel.services.storage import incident_store
from evenkeel.services.storage.decision_record import decision_of
from evenkeel.services.tables import subject_rows

WRITER = "check_node"


class CheckNodeResult(Value):
    """The check of the node."""

    outcome: CheckKind
    reason: str


def run(request: recovery_step.RecoveryStepRequest, context: Context) -> CheckNodeResult:
    """Start the check that the policy chooses for the node in the slot.

    If the check cannot start, it becomes `BASIC`: only the state that both control planes show validates the node.


    Idempotent: yes. The incident records one check for each node life, boot and failed validation.
    """
    incident, _ = incident_store.load_incident(context.ledger, request.incident_id)
    last_repair_request = incident_store.last_repair_request(context.ledger, incident)
    slot_state = SlotReader(incident, context).read_state(
        last_repair_request.requested_at if last_repair_request else incident.opened_at
    )
    observed_node = slot_state.replacement or slot_state.original
    fault = context.policy.catalogue.look_up(incident.fault_key)
    facts = CheckFacts(
        fault_class=fault.fault_class, asks_for=fault.validate_with, is_hyperpod=observed_node.provider_node is not None
    )
    decision = choose_check(facts, context.policy.repair)
    too_weak_reason = why_reboot_is_too_weak(incident, context.policy, context.now)
    if too_weak_reason and slot_state.replacement is None:
        return CheckNodeResult(outcome=CheckKind.BASIC, reason=too_weak_reason)
    if decision.kind is CheckKind.BASIC or observed_node.node is None or incident.state.is_settled:
        return CheckNodeResult(outcome=CheckKind.BASIC, reason=decision.reason)
    check = _record_check(incident, observed_node, facts, decision, context)
    if check.answer:
        return CheckNodeResult(outcome=check.kind, reason="The check already started.")
    answer = _start_check(incident, observed_node, check, context)
    kind = check.kind if answer in (RepairAnswer.ACCEPTED, RepairAnswer.UNKNOWN) else CheckKind.BASIC
    _record_answer(incident, check.replace(kind=kind, answer=answer), context.ledger)
    context.telemetry.count("ChecksStarted", kind=kind, answer=answer)
    reason = decision.reason if kind == check.kind else f"{check.kind} could not start: {answer}."
    return CheckNodeResult(outcome=kind, reason=reason)


def _is_check_of(check: NodeCheck | None, observed_node: ObservedNode, incident: Incident) -> bool:
    """Whether a check was started for this node in this boot, after its last failed validation."""
    if check is None or observed_node.node is None:
        return False
    is_spent = incident.invalid_at is not None and incident.invalid_at >= check.started_at
    return (check.instance_id, check.boot_id) == (
        observed_node.instance_id,
        observed_node.node.boot_id,
    ) and not is_spent


def _record_check(
    incident: Incident, observed_node: ObservedNode, facts: CheckFacts, decision: CheckDecision, context: Context
) -> NodeCheck:
    decision_id = context.ids.new("dec")

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        if _is_check_of(current.check, observed_node, current):
            return None
        assert observed_node.node
        check = NodeCheck(
            kind=decision.kind,
            instance_id=observed_node.instance_id,
            boot_id=observed_node.node.boot_id,
            started_at=context.now,
            namespace=context.site.job_namespace,
            name=f"{current.incident_id}-check-{int(context.now.timestamp())}",
        )
        decision_record = decision_of(
            "CHECK", current.incident_id, decision.kind, decision, facts, context, decision_id=decision_id
        ).replace(mode="")
        line = incident_store.timeline_put(
            current.incident_id, "checked", decision.reason, at=context.now, writer=WRITER, decision_id=decision_id
        )
        return current.replace(check=check), [Put(subject_rows.decision_row(decision_record)), line]

    checked_incident = incident_store.update_incident(context.ledger, incident.incident_id, change)
    assert checked_incident.check
    return checked_incident.check


def _start_check(incident: Incident, observed_node: ObservedNode, check: NodeCheck, context: Context) -> RepairAnswer:
    assert observed_node.node
    if check.kind == CheckKind.DEEP:
        assert observed_node.provider_node
        if observed_node.provider_node.status == DEEP_CHECK_RUNNING:
            return RepairAnswer.ACCEPTED  # started by a call that died before it answered
        return context.provider.check_health(observed_node.provider_node.instance_group, observed_node.instance_id)
    context.cluster.start_check(
        CheckSpec(
            cluster=incident.life.cluster,
            namespace=check.namespace,
            name=check.name,
            node_name=observed_node.node.name,
            image=context.policy.repair.test_job_image,
            command=context.policy.repair.test_job_command,
            accelerators=observed_node.node.accelerators,
            accelerator_resource=observed_node.node.accelerator_resource,
            deadline_seconds=context.policy.repair.test_job_deadline_seconds,
        )
    )
    return RepairAnswer.ACCEPTED


def _record_answer(incident: Incident, check: NodeCheck, ledger: Ledger) -> None:
    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        is_same_check = current.check is not None and current.check.started_at == check.started_at
        return (current.replace(check=check), []) if is_same_check and current.check != check else None

    incident_store.update_incident(ledger, incident.incident_id, change)
