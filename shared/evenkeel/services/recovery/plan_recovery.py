"""State PlanRecovery of recover_node: decide the recovery of a node, and whether it is allowed."""

from collections.abc import Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import Field

from evenkeel.domain.health.classification import IncidentFault
from evenkeel.domain.health.incidents import Incident, IncidentState, NodeBranchResult, PlanOutcome, StoredRecoveryPlan
from evenkeel.domain.nodes import KARPENTER_LABEL, KubernetesNode, ProviderCluster, StoredProviderCluster
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.approval import is_approved, why_beyond_approval, why_superseded
from evenkeel.domain.recovery.modes import most_cautious_mode
from evenkeel.domain.recovery.node_slot import SlotState
from evenkeel.domain.recovery.opt_out import opt_out_reason, opted_out_pools
from evenkeel.domain.recovery.other_controllers import controller_mark, is_manual_cordon
from evenkeel.domain.recovery.plan import (
    CAN_WAIT_SECONDS,
    FaultTraits,
    PlanFacts,
    RecoveryPlan,
    plan_recovery,
    provider_busy_reason,
)
from evenkeel.domain.values import Value
from evenkeel.ports import NotFound, Provider, Put, Write
from evenkeel.services.context import Context
from evenkeel.services.incidents import recovery_step
from evenkeel.services.recovery import slot_reader
from evenkeel.services.recovery.slot_reader import SlotReader
from evenkeel.services.storage import incident_store
from evenkeel.services.storage.decision_record import decision_of
from evenkeel.services.tables import fleet_rows, rows, subject_rows

WRITER = "plan_recovery"


class PlanRecoveryResult(Value):
    """The plan, as the workflow needs it."""

    outcome: PlanOutcome
    repairs_node: bool
    evidence_wait_seconds: int = Field(alias="settleSeconds")
    max_repairs: int
    decision_id: str
    reason: str

    @classmethod
    def of(cls, plan: StoredRecoveryPlan) -> "PlanRecoveryResult":
        """Return the fields of a stored plan that the workflow needs."""
        return cls.model_validate({name: getattr(plan, name) for name in cls.model_fields})


def run(request: recovery_step.RecoveryStepRequest, context: Context) -> PlanRecoveryResult:
    """Decide the recovery of an incident, and record the decision when the incident becomes RECOVERING.

    Idempotent: yes. The plan of a run is stored with its incident, and returned again.
    """
    incident, version, (settings_row,) = incident_store.load_incident_with(
        request.incident_id, context, fleet_rows.hyperpod_key()
    )
    stored_plan = _plan_to_repeat(incident, request)
    if stored_plan and stored_plan.outcome is not PlanOutcome.ASK:
        return stored_plan
    # If this release cannot read the row, HyperPod is asked.
    stored_settings = rows.readable_rows((settings_row,) if settings_row else (), StoredProviderCluster)
    settings = next((settings for _, settings in stored_settings), None)
    node_reads = _read_control_planes(incident, settings, context)
    decision_id = context.ids.new("dec")

    def change(current: Incident) -> tuple[Incident, list[Write]] | None:
        if _plan_to_repeat(current, request, node_reads.slot_state):
            return None
        decision = _decide_plan(
            current, node_reads, context, drills_may_act=recovery_step.drill_may_act(current, context)
        )
        if _is_delayed_by_same_obstacle(current, decision.plan, request):
            return None
        approved_id = _approved_decision_id(current, decision.facts, decision.plan, request)
        node = node_reads.slot_state.original.node
        planned_incident = _with_plan(current, decision, node, request.run, approved_id or decision_id, context)
        return planned_incident, _record_decision_writes(current, decision, request, decision_id, approved_id, context)

    updated_incident = incident_store.update_incident(
        context.ledger, request.incident_id, change, read_incident=(incident, version)
    )
    result = _plan_of_run(updated_incident, request)
    assert result
    context.telemetry.count("RecoveriesPlanned", outcome=result.outcome)
    context.telemetry.info(
        "RecoveryPlanned", decisionId=result.decision_id, outcome=result.outcome, reason=result.reason
    )
    return result


class _NodeReads(NamedTuple):
    """The state of the node and its cluster, as read from the control planes."""

    slot_state: SlotState
    opted_out_pools: Container[str]
    hyperpod_settings: ProviderCluster | None
    settings_read_at: datetime | None = None
    """When a sweep read the settings; None if they were read for this plan."""
    node_read_at: datetime | None = None
    """When a sweep read the status of the node; None if it was read for this plan."""


class _PlanDecision(NamedTuple):
    """A plan with its facts and the mode in which it was made."""

    facts: PlanFacts
    plan: RecoveryPlan
    mode: Mode


def _read_control_planes(
    incident: Incident, stored_cluster: StoredProviderCluster | None, context: Context
) -> _NodeReads:
    """Read the node, and HyperPod's settings unless the last sweep has just read them.

    The settings decide who repairs the node. RepairNode reads them from HyperPod before each repair. If the stored
    status says that HyperPod changes the cluster, it is read again, because that change may be over.
    """
    slot_reader = SlotReader(incident, context, stored_cluster)
    settings = stored_cluster.settings if stored_cluster and stored_cluster.has_recent_settings(context.now) else None
    if stored_cluster is None or settings is None or provider_busy_reason(settings.status, ""):
        # Read in parallel: until the cordon, new pods can start on the faulty node.
        with ThreadPoolExecutor(max_workers=2) as readers:
            slot_state = readers.submit(slot_reader.read_state_of_original, incident.opened_at)
            read_settings = readers.submit(read_hyperpod_settings, context.provider)
        return _NodeReads(
            slot_state.result(),
            slot_reader.opted_out_pools,
            read_settings.result(),
            node_read_at=slot_reader.node_read_at,
        )
    state = slot_reader.read_state_of_original(incident.opened_at)
    return _NodeReads(
        state, slot_reader.opted_out_pools, settings, stored_cluster.settings_read_at, slot_reader.node_read_at
    )


def _decide_plan(
    incident: Incident, node_reads: _NodeReads, context: Context, *, drills_may_act: bool
) -> _PlanDecision:
    fault = IncidentFault.of(incident, context.policy.catalogue)
    mode = _mode_of_recovery(incident, fault, node_reads.slot_state, context)
    facts = _read_plan_facts(incident, fault, node_reads, mode, context, drills_may_act=drills_may_act)
    return _PlanDecision(facts, plan_recovery(facts, context.policy.repair), mode)


def _record_decision_writes(
    incident: Incident,
    decision: _PlanDecision,
    request: recovery_step.RecoveryStepRequest,
    decision_id: str,
    approved_id: str,
    context: Context,
) -> list[Write]:
    """Return the writes of the decision and its timeline entry. An approved plan needs no new decision."""
    if approved_id:
        text = f"Run {request.run} continues with the approved plan."
        return [_timeline_put(incident, text, approved_id, context)]
    decision_record = decision_of(
        "RECOVERY",
        incident.incident_id,
        decision.plan.intent,
        decision.plan,
        decision.facts,
        context,
        decision_id=decision_id,
    ).replace(mode=decision.mode, is_dry_run=decision.plan.outcome is PlanOutcome.OBSERVE)
    return [
        Put(subject_rows.decision_row(decision_record)),
        _timeline_put(incident, decision.plan.reason, decision_id, context),
    ]


def _timeline_put(incident: Incident, text: str, decision_id: str, context: Context) -> Put:
    return incident_store.timeline_put(
        incident.incident_id, "decided", text, at=context.now, writer=WRITER, decision_id=decision_id
    )


def preview_plan(
    incident: Incident,
    slot_state: SlotState,
    nodes: Iterable[KubernetesNode],
    hyperpod_settings: ProviderCluster | None,
    context: Context,
) -> RecoveryPlan:
    """Return the plan that would be made now for a real incident. Records nothing."""
    pools = opted_out_pools((node.pool, node.labels) for node in nodes)
    return _decide_plan(incident, _NodeReads(slot_state, pools, hyperpod_settings), context, drills_may_act=False).plan


def _mode_of_recovery(incident: Incident, fault: IncidentFault, slot_state: SlotState, context: Context) -> Mode:
    pool = _pool_of(incident, slot_state.original.node)
    return most_cautious_mode(context.mode, context.policy.modes, fault.fault.fault_class, pool)


def _plan_to_repeat(
    incident: Incident, request: recovery_step.RecoveryStepRequest, slot_state: SlotState | None = None
) -> PlanRecoveryResult | None:
    """Return the plan that this run must follow; None if it must plan again: later, or because the facts changed."""
    stored_plan = _plan_of_run(incident, request)
    if stored_plan is None or stored_plan.outcome is PlanOutcome.LATER:
        return None
    if stored_plan.outcome is PlanOutcome.ASK and slot_state and why_superseded(incident, slot_state.original.node):
        return None
    return stored_plan


def _pool_of(incident: Incident, node: KubernetesNode | None) -> str:
    return incident.pool or (node.pool if node else "")


def _is_delayed_by_same_obstacle(
    incident: Incident, plan: RecoveryPlan, request: recovery_step.RecoveryStepRequest
) -> bool:
    """Whether the same obstacle still delays the plan, so that no new decision is recorded."""
    stored_plan = _plan_of_run(incident, request)
    return plan.outcome is PlanOutcome.LATER and stored_plan is not None and stored_plan.reason == plan.reason


def _approved_decision_id(
    incident: Incident, facts: PlanFacts, plan: RecoveryPlan, request: recovery_step.RecoveryStepRequest
) -> str:
    """Return the decision that a person approved for an earlier run, if this run plans the same; else an empty string.

    Without it, an approved recovery that Evenkeel interrupted would stay half done until a person approved again.
    """
    earlier_plan = incident.plan
    if earlier_plan is None or plan.outcome is not PlanOutcome.ASK or not is_approved(incident):
        return ""
    scope = (earlier_plan.fault_key, earlier_plan.jobs)
    is_same = earlier_plan.run < request.run and scope == (incident.fault_key, plan.jobs)
    return earlier_plan.decision_id if is_same and not why_beyond_approval(incident, facts.ladder) else ""


def _plan_of_run(incident: Incident, request: recovery_step.RecoveryStepRequest) -> PlanRecoveryResult | None:
    """Return the earlier plan of this run; the outcome NOTHING if the incident is over or belongs to another run."""
    stored_plan = incident.plan
    if stored_plan is not None and stored_plan.run == request.run and not incident.state.is_settled:
        return PlanRecoveryResult.of(stored_plan)
    if not incident.state.is_settled and request.run >= incident.run:
        return None
    why = "the incident is settled" if incident.state.is_settled else f"run {incident.run} took over"
    return PlanRecoveryResult(
        outcome=PlanOutcome.NOTHING,
        repairs_node=False,
        evidence_wait_seconds=0,
        max_repairs=0,
        decision_id="",
        reason=f"No action is left: {why}.",
    )


def read_hyperpod_settings(provider: Provider) -> ProviderCluster | None:
    """Return HyperPod's settings; None if the fleet has no HyperPod cluster."""
    try:
        return provider.cluster()
    except NotFound:
        return None


def _read_plan_facts(
    incident: Incident,
    fault: IncidentFault,
    node_reads: _NodeReads,
    mode: Mode,
    context: Context,
    *,
    drills_may_act: bool,
) -> PlanFacts:
    slot_state, hyperpod_settings = node_reads.slot_state, node_reads.hyperpod_settings
    node = slot_state.original.node
    # Read the pods only for a fault that can wait for the work on its node.
    is_busy = (
        node is not None
        and fault.fault.drain_seconds >= CAN_WAIT_SECONDS
        and slot_reader.has_accelerator_pods(node, context)
    )
    return PlanFacts(
        fault_key=incident.fault_key,
        fault=FaultTraits.of(fault.fault),
        ladder=fault.node_rungs,
        rungs=fault.rungs,
        min_rung_reason=incident.min_rung_reason,
        sources=incident.independent_sources or incident.sources,
        has_recovered=incident.has_recovered,
        mode=mode,
        is_drill=incident.is_drill,
        drills_may_act=drills_may_act,
        # If an earlier run had the node replaced, the replacement node must still be returned to service.
        is_node_gone=not incident.repairs and _is_node_gone(slot_state),
        is_hyperpod=slot_reader.is_hyperpod_node(incident, slot_state),
        # HyperPod's own Karpenter labels its nodes too, and HyperPod repairs them.
        is_karpenter=node is not None and KARPENTER_LABEL in node.labels and slot_state.original.provider_node is None,
        hyperpod_repairs=hyperpod_settings.repairs_by_itself if hyperpod_settings else False,
        cluster_status=hyperpod_settings.status if hyperpod_settings else "",
        cluster_read_at=node_reads.settings_read_at,
        node_status=slot_state.original.provider_node.status if slot_state.original.provider_node else "",
        node_read_at=node_reads.node_read_at,
        is_manual_cordon=is_manual_cordon(node),
        controller=controller_mark(node),
        opt_out_reason=opt_out_reason(incident, node, pools=node_reads.opted_out_pools),
        is_busy=is_busy,
        opened_at=incident.opened_at,
        deadline_at=incident.deadline_at,
    )


def _is_node_gone(slot_state: SlotState) -> bool:
    return not slot_state.original.is_listed or (
        slot_state.replacement is not None and slot_state.original.provider_node is None
    )


def _with_plan(
    incident: Incident,
    decision: _PlanDecision,
    node: KubernetesNode | None,
    run_number: int,
    decision_id: str,
    context: Context,
) -> Incident:
    facts, plan, mode = decision
    approval_wait = timedelta(seconds=context.policy.repair.approval_deadline_seconds)
    stored_plan = StoredRecoveryPlan(
        run=run_number,
        outcome=plan.outcome,
        repairs_node=plan.repairs_node,
        owner=plan.owner,
        evidence_wait_seconds=plan.evidence_wait_seconds,
        max_repairs=plan.max_repairs,
        jobs=plan.jobs,
        work_may_run_until=plan.work_may_run_until,
        decision_id=decision_id,
        reason=plan.reason,
        fault_key=incident.fault_key,
        boot_id=node.boot_id if node else "",
        uncordoned_resource_version=node.resource_version if node and not node.is_cordoned else "",
        rungs=facts.rungs,
        independent_source_count=len(facts.sources),
        had_recovered=facts.has_recovered,
        answer_by=context.now + approval_wait if plan.outcome is PlanOutcome.ASK else None,
    )
    return incident.replace(
        state=IncidentState.RECOVERING,
        run=run_number,
        mode=mode,
        plan=stored_plan,
        block=None,
        # An earlier run may have removed its own cordon, so its annotation proves nothing for this run.
        cordon_marked_at=None,
        node_branch=NodeBranchResult.NOT_NEEDED if stored_plan.intends_action and not plan.repairs_node else "",
        # The node object completes the fields that the event did not name.
        node_name=incident.node_name or (node.name if node else ""),
        boot_id=incident.boot_id or (node.boot_id if node else ""),
        pool=_pool_of(incident, node),
        instance_type=incident.instance_type or (node.instance_type if node else ""),
    ).with_stage_time("planned_at", context.now)
