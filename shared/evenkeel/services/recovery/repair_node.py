"""State RepairNode of recover_node: choose the next rung, record the intent, call the provider once.

The order of the writes, and the effect of a crash:

    decide ─▶ lease: request without answer ─▶ provider call ─▶ lease: the answer
                │ crash here: no call             │ crash here: the call may have taken effect
                └──────────── the next try waits for evidence before it calls again ┘
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.classification import IncidentFault
from evenkeel.domain.health.incidents import Incident, JobAction, NodeBranchResult
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.nodes import INSTANCE_ID
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.approval import is_approved, why_beyond_approval
from evenkeel.domain.recovery.draining import finish_deadline_now
from evenkeel.domain.recovery.guardrails import GuardrailAction, GuardrailFacts, check_guardrails
from evenkeel.domain.recovery.modes import current_mode
from evenkeel.domain.recovery.node_groups import GroupRepairFacts, group_repair_facts
from evenkeel.domain.recovery.other_controllers import controller_mark, is_manual_cordon
from evenkeel.domain.recovery.plan import FaultTraits, NodeOwner, present_owner, provider_busy_reason, why_not_allowed
from evenkeel.domain.recovery.repair import choose_repair
from evenkeel.domain.recovery.repair_facts import Repair, RepairDecision, RepairFacts
from evenkeel.domain.recovery.repair_lease import RepairLease
from evenkeel.domain.recovery.repair_requests import (
    REPLACE,
    WAIT_RUNGS,
    RepairAnswer,
    RepairRequest,
    evidence_of_effect,
    may_have_effect,
)
from evenkeel.domain.recovery.validation import CheckKind, judge_node
from evenkeel.domain.values import Value
from evenkeel.ports import (
    Conflict,
    Ledger,
    PermanentError,
    Put,
    Row,
    Throttled,
    Unreachable,
    Write,
)
from evenkeel.services.context import Context
from evenkeel.services.incidents import recovery_step
from evenkeel.services.recovery import (
    cordon_node,
    drain_node,
    guardrail_inputs,
    plan_recovery,
    record_block,
    slot_reader,
)
from evenkeel.services.recovery.guardrail_inputs import GuardrailState
from evenkeel.services.recovery.slot_reader import SlotReader
from evenkeel.services.storage import attempt_store, guardrail_registers, incident_store
from evenkeel.services.storage.decision_record import decision_of
from evenkeel.services.storage.guardrail_registers import RegisterName
from evenkeel.services.storage.retries import until_committed
from evenkeel.services.tables import fleet_rows, incident_rows, job_rows, rows

WRITER = "repair_node"
_MAX_REQUESTS = 20


class RepairOutcome(StrEnum):
    """The outcomes of RepairNode. Each decides the next state of the node branch."""

    REQUESTED = "REQUESTED"
    """The provider repairs the node: check it later."""
    HEALTHY = "HEALTHY"
    """The node slot has a Ready node: validate it."""
    DIAGNOSE = "DIAGNOSE"
    """The node must pass a validation."""
    RETRY = "RETRY"
    LATER = "LATER"
    """Jobs may finish first, or the provider changes the cluster."""
    HELD = "HELD"
    """A hold covers the node."""
    BLOCKED = "BLOCKED"
    """A guardrail blocks the repair."""
    NOT_NEEDED = "NOT_NEEDED"
    ASK_PERSON = "ASK_PERSON"
    STAND_DOWN = "STAND_DOWN"


class RepairNodeResult(Value):
    """The outcome that decides the next state of the node branch."""

    outcome: RepairOutcome
    rung: str = ""
    wait_seconds: int = 0
    reason: str


_OUTCOMES = {
    Repair.AWAIT: RepairOutcome.REQUESTED,
    Repair.DIAGNOSE: RepairOutcome.DIAGNOSE,
    Repair.PAUSE: RepairOutcome.RETRY,
    Repair.LATER: RepairOutcome.LATER,
    Repair.HOLD: RepairOutcome.HELD,
    Repair.BLOCKED: RepairOutcome.BLOCKED,
    Repair.NOT_NEEDED: RepairOutcome.NOT_NEEDED,
    Repair.HEALTHY: RepairOutcome.HEALTHY,
    Repair.ASK_PERSON: RepairOutcome.ASK_PERSON,
    Repair.STAND_DOWN: RepairOutcome.STAND_DOWN,
}
_TIMELINE_KINDS = {Repair.DIAGNOSE: "examined", Repair.LATER: "waits", Repair.NOT_NEEDED: "node"}
_BRANCH_ENDS = {
    Repair.ASK_PERSON: NodeBranchResult.WAITING_FOR_PERSON,
    Repair.STAND_DOWN: NodeBranchResult.STOOD_DOWN,
}


def run(request: recovery_step.RecoveryStepRequest, context: Context) -> RepairNodeResult:
    """Do the next step for the node: at most one provider call.

    Idempotent: yes, guarded by the lease. Reboot and replace have no client token, so the intent is recorded first.
    A call without a known answer is awaited and never simply repeated.
    """
    incident, _ = incident_store.load_incident(context.ledger, request.incident_id)
    if recovery_step.is_over(request.run, incident) or recovery_step.has_left_node(incident):
        return _OVER
    lease_row = context.ledger.get(fleet_rows.lease_key(incident.slot, is_drill=incident.is_drill))
    lease = rows.decode(lease_row, RepairLease) if lease_row else None
    facts, decision, guardrail_state = _decide_step(incident, lease, context)
    if _needs_cordon(incident, facts, decision):
        cordon_result = cordon_node.cordon(incident, context)
        if cordon_result.outcome is cordon_node.CordonOutcome.BLOCKED:
            return RepairNodeResult(outcome=RepairOutcome.BLOCKED, reason=cordon_result.reason)
        if cordon_result.outcome is cordon_node.CordonOutcome.NOT_ALLOWED:
            return _OVER
        incident, _ = incident_store.load_incident(context.ledger, request.incident_id)
        if incident.plan is None or incident.plan.jobs is not JobAction.LEAVE:
            drain_node.drain(incident, context)
    if decision.drains:
        unreadable_attempts, waits = _drain_first(incident, facts, decision, context)
        if waits:
            return waits
        if guardrail_state is not None:
            # The drain takes time. Meanwhile a person may have taken the node or held automation.
            incident, _ = incident_store.load_incident(context.ledger, request.incident_id)
            if recovery_step.is_over(request.run, incident):
                return _OVER
            facts = _read_facts(incident, lease, context).replace(guard=guardrail_state.facts)
        facts = facts.replace(unreadable_attempts=unreadable_attempts)
        decision = choose_repair(facts, context.policy.repair)
    decision_record = decision_of("REPAIR", facts.incident_id, decision.action, decision, facts, context)
    step = _Step(incident, lease, lease_row, facts, decision, decision_record, guardrail_state)
    return _call_provider(step, context) if decision.rung else _record_without_call(step, context)


_OVER = RepairNodeResult(outcome=RepairOutcome.STAND_DOWN, reason="The incident is settled, or a later run took over.")


class _Step(NamedTuple):
    """The facts, the decision and the records of one try of RepairNode."""

    incident: Incident
    lease: RepairLease | None
    lease_row: Row | None
    facts: RepairFacts
    decision: RepairDecision
    decision_record: Decision
    guardrail_state: GuardrailState | None
    """The facts of the guardrails; None if no provider call is decided."""


def _decide_step(
    incident: Incident, lease: RepairLease | None, context: Context
) -> tuple[RepairFacts, RepairDecision, GuardrailState | None]:
    """Decide the next step. If it is a provider call, read the guardrails and decide again with them."""
    facts = _read_facts(incident, lease, context)
    decision = choose_repair(facts, context.policy.repair)
    if not decision.rung:
        return facts, decision, None
    inputs = guardrail_inputs.GuardrailInputs(context)
    if inputs.has_unreadable_row(incident):
        facts = facts.replace(has_unreadable_row=True)
        return facts, choose_repair(facts, context.policy.repair), None
    guardrail_state = inputs.read_facts(GuardrailAction(decision.rung), incident, looks_healthy=facts.validity.is_valid)
    facts = facts.replace(guard=guardrail_state.facts)
    return facts, choose_repair(facts, context.policy.repair), guardrail_state


def _drain_first(
    incident: Incident, facts: RepairFacts, decision: RepairDecision, context: Context
) -> tuple[tuple[str, ...], RepairNodeResult | None]:
    """Stop the work on the node.

    Returns:
        The attempts that may use the node and cannot be read, and the outcome of a repair that waits until the pods
        have saved; None if it need not wait. A repair by another owner does not wait for them.
    """
    unreadable_attempts, wait = _drain_remaining_work(incident, context, facts)
    if decision.rung:
        pod_drain = drain_node.drain_unmanaged_pods(
            incident, context, has_unreadable_attempts=bool(unreadable_attempts)
        )
        if pod_drain.question:
            return unreadable_attempts, RepairNodeResult(outcome=RepairOutcome.ASK_PERSON, reason=pod_drain.question)
        wait = max(wait, pod_drain.wait_seconds)
    if wait and decision.action not in _BRANCH_ENDS and not decision.awaited_owner:
        reason = f"{decision.reason} Its pods first get {wait} s to save."
        return unreadable_attempts, RepairNodeResult(outcome=RepairOutcome.RETRY, wait_seconds=wait, reason=reason)
    return unreadable_attempts, None


def _record_without_call(step: _Step, context: Context) -> RepairNodeResult:
    """Record a decision that calls no provider."""
    incident, decision = step.incident, step.decision
    if decision.awaited_owner:
        _record_request(step, _wait_entry(step.facts, decision), (), context.ledger)
    if decision.action is Repair.AWAIT:
        _confirm_unanswered_call(incident, step.facts, context)
    if decision.action in _TIMELINE_KINDS:
        _record_reason(incident, decision, step.decision_record, context)
    if decision.action in (Repair.HOLD, Repair.BLOCKED):
        _record_block(incident, step.facts, step.decision_record, context)
    else:
        record_block.clear_block(incident, context.ledger)
    if decision.action in _BRANCH_ENDS:
        _record_end(incident, step.facts, decision, step.decision_record, context)
    return RepairNodeResult(
        outcome=_OUTCOMES[decision.action],
        rung=_last_rung(step.lease, incident),
        wait_seconds=decision.wait_seconds,
        reason=decision.reason,
    )


# ---------------------------------------------------------------- load


def _read_facts(incident: Incident, lease: RepairLease | None, context: Context) -> RepairFacts:
    requests = tuple(request for request in (lease.requests if lease else ()) if request.life.key == incident.life.key)
    own_requests = [request for request in requests if request.incident_id == incident.incident_id]
    since = own_requests[0].requested_at if own_requests else incident.opened_at
    slot_of_incident = SlotReader(incident, context)
    slot_state = slot_of_incident.read_state(since)
    observed_node = slot_state.replacement or slot_state.original
    own_node = slot_state.original.node
    hyperpod_settings = plan_recovery.read_hyperpod_settings(context.provider)
    status = slot_state.original.provider_node.status if slot_state.original.provider_node else ""
    fault = IncidentFault.of(incident, context.policy.catalogue)
    until = finish_deadline_now(incident, fault.fault, context.policy)
    has_work = bool(until and own_node and slot_reader.has_accelerator_pods(own_node, context))
    window = timedelta(hours=context.policy.repair.flap_window_hours)
    returns = lease.returns_of(incident.life, context.now - window) if lease else ()
    owner = present_owner(
        NodeOwner(incident.plan.owner) if incident.plan and incident.plan.owner else NodeOwner.EVENKEEL,
        incident.fault_key,
        fault.rungs,
        hyperpod_repairs=hyperpod_settings is not None
        and hyperpod_settings.repairs_by_itself
        and slot_reader.is_hyperpod_node(incident, slot_state),
    )
    not_allowed = _why_not_allowed(
        incident, fault, context.mode, drills_may_act=recovery_step.drill_may_act(incident, context)
    )
    return RepairFacts(
        incident_id=incident.incident_id,
        life=incident.life,
        fault_key=incident.fault_key,
        fault=FaultTraits.of(fault.fault),
        ladder=fault.node_rungs,
        owner=owner,
        opened_at=incident.opened_at,
        last_fault_at=incident.last_fault_at,
        boot_id_at_opening=incident.boot_id,
        has_recovered=incident.has_recovered,
        not_allowed=not_allowed,
        is_manual_cordon=is_manual_cordon(own_node),
        controller=controller_mark(own_node),
        has_karpenter=hyperpod_settings.has_karpenter if hyperpod_settings else False,
        lease_holder=_other_holder(lease, incident, context.ledger),
        requests=requests,
        slot_state=slot_state,
        group=_load_group(incident, requests, context) if owner is NodeOwner.NODE_GROUP and not not_allowed else None,
        validity=judge_node(
            observed_node, expected_count=slot_of_incident.expected_accelerators(observed_node, incident.instance_type)
        ),
        invalid_at=incident.invalid_at,
        deep_check_failed_at=_deep_check_failed_at(incident),
        opt_out_reason=slot_of_incident.opt_out_reason,
        provider_busy=provider_busy_reason(hyperpod_settings.status if hyperpod_settings else "", status),
        has_work=has_work,
        work_may_run_until=until,
        leaves_work=incident.plan is not None and incident.plan.jobs is JobAction.LEAVE and until is None,
        progress=incident.progress,
        calls_today=_calls_today(lease, context.now),
        returns=len(returns),
        returned_at=returns[-1].at if returns else None,
        hold=guardrail_inputs.GuardrailInputs(context).hold_on(incident),
        now=context.now,
    )


def _load_group(incident: Incident, requests: tuple[RepairRequest, ...], context: Context) -> GroupRepairFacts:
    instance_id = incident.life.instance_id
    is_instance = INSTANCE_ID.fullmatch(instance_id) is not None
    member = context.node_groups.member(instance_id) if is_instance else None
    recorded_group = next((request.group for request in reversed(requests) if request.group), "")
    group = context.node_groups.group(recorded_group) if recorded_group and member is None else None
    return group_repair_facts(instance_id, incident.life.cluster, member, group, requests, now=context.now)


def _why_not_allowed(incident: Incident, fault: IncidentFault, mode: Mode, *, drills_may_act: bool) -> str:
    """Return why no action is allowed; empty if one is. An approval covers only the plan that it names."""
    beyond_reason = why_beyond_approval(incident, fault.node_rungs)
    allowed_mode = current_mode(mode, incident.mode, is_approved=is_approved(incident) and not beyond_reason)
    reason_not_allowed = why_not_allowed(allowed_mode, is_drill=incident.is_drill, drills_may_act=drills_may_act)
    return beyond_reason if beyond_reason and allowed_mode is Mode.RECOMMEND else reason_not_allowed


def _deep_check_failed_at(incident: Incident) -> datetime | None:
    check, failed_at = incident.check, incident.invalid_at
    is_this_check = check is not None and (check.kind, check.instance_id) == (CheckKind.DEEP, incident.life.instance_id)
    return failed_at if is_this_check and check and failed_at and failed_at >= check.started_at else None


def _calls_today(lease: RepairLease | None, now: datetime) -> int:
    calls = [
        request
        for request in (lease.requests if lease else ())
        if request.rung not in WAIT_RUNGS and request.answer != RepairAnswer.NOT_NOW
    ]
    return len([call for call in calls if now - call.requested_at < timedelta(days=1)])


def _other_holder(lease: RepairLease | None, incident: Incident, ledger: Ledger) -> str:
    """Return the other incident that repairs this slot. A lease that a settled incident left behind blocks nothing."""
    if lease is None or lease.incident_id in ("", incident.incident_id):
        return ""
    row = ledger.get(incident_rows.incident_key(lease.incident_id))
    return "" if row is None or rows.decode(row, Incident).state.is_settled else lease.incident_id


def _own_requests(lease: RepairLease | None, incident: Incident) -> tuple[RepairRequest, ...]:
    return tuple(
        request for request in (lease.requests if lease else ()) if request.incident_id == incident.incident_id
    )


def _last_rung(lease: RepairLease | None, incident: Incident) -> str:
    own_requests = _own_requests(lease, incident)
    return own_requests[-1].rung if own_requests else ""


def _needs_cordon(incident: Incident, facts: RepairFacts, decision: RepairDecision) -> bool:
    """Whether a guardrail blocked the cordon of this node, so that the cordon must come first now."""
    if incident.block is None or incident.block.action != GuardrailAction.CORDON or facts.is_manual_cordon:
        return False
    is_untouched = facts.not_allowed or facts.lease_holder or facts.opt_out_reason
    return not is_untouched and decision.action not in (Repair.HEALTHY, Repair.NOT_NEEDED)


# ---------------------------------------------------------------- act


def _drain_remaining_work(incident: Incident, context: Context, facts: RepairFacts) -> tuple[tuple[str, ...], int]:
    """Stop the remaining work on the node.

    Returns:
        The attempts that may use the node and cannot be read, and a time in seconds. The pods of the other attempts may
        still take that time, if they can be reached.
    """
    unreadable_attempts = drain_node.drain(incident, context).unreadable_attempts
    node = facts.slot_state.original.node
    if node is None or not node.is_ready:
        return unreadable_attempts, 0
    until = context.now
    cluster = incident.life.cluster
    seen_here = [
        workload
        for workload in context.cluster.workloads(cluster)
        if any(pod.node_name == node.name for pod in workload.live_pods())
    ]
    for attempt, _ in attempt_store.owned_workloads(context.ledger, ((cluster, workload) for workload in seen_here)):
        row = context.ledger.get(job_rows.job_key(attempt.job_id))
        for _, job in rows.readable_rows([row] if row else [], Job):
            stop_request = job.stop_of(attempt.attempt)
            if stop_request is not None:
                until = max(until, stop_request.requested_at + timedelta(seconds=stop_request.grace_seconds))
    return unreadable_attempts, max(0, round((until - context.now).total_seconds()))


def _call_provider(step: _Step, context: Context) -> RepairNodeResult:
    """Record the intent, call the provider, and record its answer."""
    incident, facts, decision, guardrail_state = step.incident, step.facts, step.decision, step.guardrail_state
    assert guardrail_state
    request = _repair_request(facts, decision.rung, "")
    entry = guardrail_state.entry(incident, facts.now)
    enters = guardrail_registers.addition_put(
        RegisterName.REPAIRS,
        guardrail_state.register,
        guardrail_state.version,
        entry,
        is_request=True,
        is_drill=incident.is_drill,
    )
    inputs = guardrail_inputs.GuardrailInputs(context)
    if inputs.hold_on(incident) is not None:
        raise Conflict(f"A person holds automation of {incident.life.instance_id} since this moment.")
    _record_request(step, request, (enters, inputs.holds_check()), context.ledger)
    instance_id = incident.life.instance_id
    try:
        if facts.owner is NodeOwner.NODE_GROUP:
            answer = str(context.node_groups.terminate(instance_id))
        elif facts.owner is NodeOwner.KARPENTER:
            answer = str(context.cluster.delete_node(incident.life.cluster, incident.node_name, instance_id))
        else:
            answer = str(
                context.provider.replace(instance_id)
                if request.rung == REPLACE
                else context.provider.reboot(instance_id)
            )
    except Throttled:
        answer = RepairAnswer.NOT_NOW
    except Unreachable:
        answer = RepairAnswer.UNKNOWN
    except PermanentError:
        _record_answer(incident, request, RepairAnswer.FAILED, context)
        raise
    _record_answer(incident, request, answer, context)
    context.telemetry.count("RepairsRequested", rung=request.rung, answer=answer)
    context.telemetry.info(
        "RepairRequested", rung=request.rung, answer=answer, decisionId=step.decision_record.decision_id
    )
    if answer in (RepairAnswer.NOT_NOW, RepairAnswer.FAILED):
        reason = f"{decision.reason} The provider answered {answer}."
        return RepairNodeResult(
            outcome=RepairOutcome.RETRY,
            rung=request.rung,
            wait_seconds=context.policy.repair.retry_seconds,
            reason=reason,
        )
    return RepairNodeResult(outcome=RepairOutcome.REQUESTED, rung=request.rung, reason=decision.reason)


def _repair_request(facts: RepairFacts, rung: str, answer: str) -> RepairRequest:
    original = facts.slot_state.original
    member = facts.group.member if facts.group else None
    status = original.provider_node.status if original.provider_node else ""
    return RepairRequest(
        rung=rung,
        life=facts.life,
        boot_id=original.node.boot_id if original.node else facts.boot_id_at_opening,
        status_before=member.lifecycle if member else status,
        requested_at=facts.now,
        incident_id=facts.incident_id,
        group=member.group.name if member else "",
        answer=answer,
    )


def _wait_entry(facts: RepairFacts, decision: RepairDecision) -> RepairRequest:
    """Return the entry that records since when Evenkeel waits for another node owner.

    The owner may have started earlier, so the returning node must have another boot id than the faulty one had. If
    Evenkeel has rebooted the node, or the node has failed a validation, it must have another boot id than now.
    """
    entry = _repair_request(facts, decision.awaited_owner, RepairAnswer.ACCEPTED)
    has_repaired = any(
        request.incident_id == facts.incident_id and may_have_effect(request) for request in facts.requests
    )
    is_changed = has_repaired or facts.has_failed_validation_since(facts.opened_at)
    is_of_opening = bool(facts.boot_id_at_opening) and not is_changed
    return entry.replace(boot_id=facts.boot_id_at_opening) if is_of_opening else entry


# ---------------------------------------------------------------- record


def _record_request(step: _Step, request: RepairRequest, guardrail_writes: tuple[Write, ...], ledger: Ledger) -> None:
    """Record the intent on the lease before the call, with the decision, the timeline and the guardrail register.

    Raises:
        Conflict: another service repairs this node slot, entered the register, or settled the incident at this
            moment, or a person set a hold. The next visit decides again.
    """
    incident, lease, lease_row = step.incident, step.lease, step.lease_row
    earlier_lease = lease or RepairLease(slot=incident.slot, incident_id="", taken_at=request.requested_at)
    taken_at = earlier_lease.taken_at if earlier_lease.incident_id == incident.incident_id else request.requested_at
    requests = (*earlier_lease.requests, request)[-_MAX_REQUESTS:]
    changed_lease = earlier_lease.replace(incident_id=incident.incident_id, taken_at=taken_at, requests=requests)
    version = lease_row.version if lease_row else 0

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        if current.state.is_settled or current.run != incident.run or recovery_step.has_left_node(current):
            raise Conflict(f"{incident.incident_id} was settled or left its node, or a later run took over.")
        repairs = current.repairs if request.rung in WAIT_RUNGS else (*current.repairs, request.rung)
        requested_incident = (
            current.without_block()
            .replace(repairs=repairs)
            .with_stage_time("repair_requested_at", request.requested_at)
        )
        verb = "watched" if request.rung in WAIT_RUNGS else request.rung
        decision_puts = incident_store.decision_puts(step.decision_record, verb, at=request.requested_at, writer=WRITER)
        lease_write = Put(fleet_rows.lease_row(changed_lease, version, is_drill=incident.is_drill))
        return requested_incident, [lease_write, *guardrail_writes, *decision_puts]

    incident_store.update_incident_once(ledger, incident.incident_id, change)


def _record_answer(incident: Incident, answered_request: RepairRequest, answer: str, context: Context) -> None:
    """Record the provider's answer. If a crash loses it, the next visit treats the call as one without a reply.

    A request that the provider refused for now does not count for the fleet's rate of repairs. Otherwise the repeated
    requests of a few nodes would block all other repairs.
    """
    ledger = context.ledger

    def commit_once() -> None:
        row = ledger.get(fleet_rows.lease_key(incident.slot, is_drill=incident.is_drill))
        if row is None:
            return
        lease = rows.decode(row, RepairLease)
        requests = tuple(
            request.replace(answer=answer)
            if (request.requested_at, request.rung) == (answered_request.requested_at, answered_request.rung)
            else request
            for request in lease.requests
        )
        writes: list[Write] = [
            Put(fleet_rows.lease_row(lease.replace(requests=requests), row.version, is_drill=incident.is_drill))
        ]
        if answer == RepairAnswer.NOT_NOW:
            requested_at = answered_request.requested_at
            writes += guardrail_registers.refusal_writes(requested_at, context, is_drill=incident.is_drill)
        ledger.commit(*writes)

    message = f"the repair lease of {incident.slot} changed on every try"
    until_committed(commit_once, message, tries=incident_store.MAX_TRIES)


def _confirm_unanswered_call(incident: Incident, facts: RepairFacts, context: Context) -> None:
    """Treat a call without a reply as accepted, once evidence shows that it took effect."""
    last_request = facts.requests[-1] if facts.requests else None
    is_unanswered = (
        last_request
        and last_request.incident_id == incident.incident_id
        and last_request.answer in ("", RepairAnswer.UNKNOWN)
    )
    if last_request and is_unanswered and evidence_of_effect(last_request, facts.slot_state, facts.progress):
        _record_answer(incident, last_request, RepairAnswer.ACCEPTED, context)


def _record_reason(incident: Incident, decision: RepairDecision, decision_record: Decision, context: Context) -> None:
    """Write why the repair waits, or its next step, once for each reason."""

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        if current.outcome == decision.reason or current.state.is_settled:
            return None
        kind = _TIMELINE_KINDS[decision.action]
        return current.replace(outcome=decision.reason), incident_store.decision_puts(
            decision_record, kind, at=context.now, writer=WRITER
        )

    incident_store.update_incident(context.ledger, incident.incident_id, change)


def _record_block(incident: Incident, facts: RepairFacts, decision_record: Decision, context: Context) -> None:
    """Record on the incident which guardrail blocks the repair. If many nodes share the cause, page once."""
    rung = choose_repair(facts.replace(hold=None, guard=None), context.policy.repair).rung
    act = GuardrailAction(rung) if rung else GuardrailAction.STOP
    guard = facts.guard or GuardrailFacts(life_key=facts.life.key, pool=incident.pool, hold=facts.hold, now=facts.now)
    verdict = check_guardrails(act, guard, context.policy.repair.guardrails)
    record_block.set_block(
        incident, act, verdict, context.replace(now=facts.now), writer=WRITER, decision_record=decision_record
    )
    if verdict.cause:
        window = timedelta(seconds=context.policy.repair.guardrails.shared_cause_window_seconds)
        record_block.alert_about_shared_cause(verdict, context.replace(now=facts.now), incident=incident, window=window)


def _record_end(
    incident: Incident, facts: RepairFacts, decision: RepairDecision, decision_record: Decision, context: Context
) -> None:
    branch = _BRANCH_ENDS[decision.action]
    kind = "asked" if branch == NodeBranchResult.WAITING_FOR_PERSON else "stood-down"

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        if current.node_branch == branch or current.state.is_settled:
            return None
        successor = (
            facts.slot_state.replacement.instance_id
            if facts.slot_state.replacement
            else current.replacement_instance_id
        )
        ended_incident = current.replace(node_branch=branch, replacement_instance_id=successor)
        return ended_incident, incident_store.decision_puts(decision_record, kind, at=context.now, writer=WRITER)

    incident_store.update_incident(context.ledger, incident.incident_id, change)
