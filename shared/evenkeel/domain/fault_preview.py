"""Preview the recovery of one fault: run the real decisions on a node that no repair helps.

fault, policy ─▶ an incident with one signal ─▶ the plan ─▶ rung, its deadline passes, next rung … ─▶ a person
"""

from datetime import UTC, datetime

from evenkeel.domain.health.assessment import checkpoint_trust_of
from evenkeel.domain.health.classification import ClassifiedFact, IncidentFault
from evenkeel.domain.health.faults import Fault, RecurKey, default_catalogue
from evenkeel.domain.health.incident_updates import with_fact
from evenkeel.domain.health.incidents import AffectedNode, FactKind, Incident, NodeFact
from evenkeel.domain.health.ingestion import IngestAction, NodeHistory, decide_ingestion
from evenkeel.domain.health.recurrence import FaultHistory, with_occurrence
from evenkeel.domain.jobs.job import CheckpointRequirement
from evenkeel.domain.nodes import KubernetesNode, NodeLife, ProviderNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.node_slot import ObservedNode, SlotState
from evenkeel.domain.recovery.plan import FaultTraits, PlanFacts, RecoveryPlan, plan_recovery
from evenkeel.domain.recovery.repair import choose_repair
from evenkeel.domain.recovery.repair_facts import Repair, RepairFacts
from evenkeel.domain.recovery.repair_requests import RepairAnswer, RepairRequest, request_deadline
from evenkeel.domain.recovery.resume_options import distrust_after, requirement_after
from evenkeel.domain.recovery.validation import Validity
from evenkeel.domain.values import Value

_EXAMPLE_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""Any time serves: the preview reports only differences of time."""
_EXAMPLE_LIFE = NodeLife(cluster="eks", instance_id="i-00000000000000000", launched_at=_EXAMPLE_TIME)
_EXAMPLE_NODE = AffectedNode(life=_EXAMPLE_LIFE, slot="eks/slot", node_name="node", pool="pool", job_ids=("job",))
_MAX_STEPS = 8


class RungPreview(Value):
    """A rung of the ladder, reached because no earlier rung helped."""

    rung: str
    """`reboot`, `replace`, …; `ask_person` at the end."""
    after_seconds: int
    """Time since the first rung, if every earlier rung reaches its deadline."""
    deadline_seconds: int
    """How long Evenkeel waits for the node after this rung; 0 for a person."""
    reason: str


class RecurrencePreview(Value):
    """The rung on which a recurring fault begins."""

    count: int
    window_hours: int
    key: RecurKey
    rung: str


class FaultPreview(Value):
    """The recovery of one fault under one policy.

    Assumes mode `act` and a HyperPod node with NodeRecovery=None.
    """

    fault: Fault
    is_changed: bool
    """Whether the site's catalogue differs from the shipped one in this fault."""
    policy_hash: str
    catalogue_hash: str
    opens_incident: bool
    plan: RecoveryPlan | None
    """The plan after one signal; None if no incident opens."""
    with_second_source: RecoveryPlan | None
    """The plan after signals from two sources, if one source alone may not act."""
    steps: tuple[RungPreview, ...]
    repeated: RecurrencePreview | None
    requirement: CheckpointRequirement
    """The requirement for a checkpoint to resume from."""
    distrusted_from_seconds: int | None
    """A checkpoint is used only if its write began at least this long before the first signal; None = all are used."""


def preview(fault: Fault, policy: Policy) -> FaultPreview:
    """Return the recovery of a fault under a policy."""
    incident = _incident_of_fault(fault, policy, FaultHistory())
    alone = _plan_of_incident(incident, policy) if incident else None
    with_two_sources = None
    if incident and not fault.acts_alone:
        second = _signal_of_fault(fault).replace(source="another.witness", envelope_id="another")
        incident = with_fact(incident, ClassifiedFact(second, _EXAMPLE_NODE, fault), {}, policy.catalogue)
        with_two_sources = _plan_of_incident(incident, policy)
    plan = with_two_sources or alone
    trust, since = (
        checkpoint_trust_of(incident, policy.catalogue) if incident else (fault.checkpoint_trust, _EXAMPLE_TIME)
    )
    distrust_at = distrust_after(trust, since, policy.jobs)
    return FaultPreview(
        fault=fault,
        is_changed=fault != default_catalogue().get(fault.key),
        policy_hash=policy.hash,
        catalogue_hash=policy.catalogue.hash,
        opens_incident=incident is not None,
        plan=alone,
        with_second_source=with_two_sources,
        steps=_rung_previews(incident, policy) if incident and plan and plan.repairs_node else (),
        repeated=_recurrence_preview(fault, policy),
        requirement=requirement_after(trust, fault.fault_class, policy.jobs),
        distrusted_from_seconds=None if distrust_at is None else round((_EXAMPLE_TIME - distrust_at).total_seconds()),
    )


def _signal_of_fault(fault: Fault) -> NodeFact:
    return NodeFact(
        kind=FactKind.FAULT,
        source="one.witness",
        instance_id=_EXAMPLE_LIFE.instance_id,
        fault_key=fault.key,
        observed_at=_EXAMPLE_TIME,
        envelope_id="one",
    )


def _incident_of_fault(fault: Fault, policy: Policy, history: FaultHistory) -> Incident | None:
    ingest_decision = decide_ingestion(
        ClassifiedFact(_signal_of_fault(fault), _EXAMPLE_NODE, fault),
        NodeHistory(histories={"slot/eks/slot": history}),
        policy.catalogue,
        new_id="inc-preview",
        now=_EXAMPLE_TIME,
    )
    return ingest_decision.incident if ingest_decision.action is IngestAction.OPEN else None


def _plan_of_incident(incident: Incident, policy: Policy) -> RecoveryPlan:
    incident_fault = IncidentFault.of(incident, policy.catalogue)
    facts = PlanFacts(
        fault_key=incident.fault_key,
        fault=FaultTraits.of(incident_fault.fault),
        ladder=incident_fault.node_rungs,
        rungs=incident_fault.rungs,
        min_rung_reason=incident.min_rung_reason,
        sources=incident.independent_sources or incident.sources,
        has_recovered=False,
        mode=Mode.ACT,
        is_drill=False,
        drills_may_act=False,
        is_node_gone=False,
        is_hyperpod=True,
        hyperpod_repairs=False,
        is_manual_cordon=False,
    )
    return plan_recovery(facts, policy.repair)


def _rung_previews(incident: Incident, policy: Policy) -> tuple[RungPreview, ...]:
    provider_node = ProviderNode(
        instance_id=_EXAMPLE_LIFE.instance_id,
        instance_group="pool",
        instance_type="",
        launched_at=_EXAMPLE_TIME,
        status="Running",
    )
    node = KubernetesNode(cluster="eks", name="node", instance_id=_EXAMPLE_LIFE.instance_id, is_ready=True)
    incident_fault = IncidentFault.of(incident, policy.catalogue)
    requests: tuple[RepairRequest, ...] = ()
    steps: list[RungPreview] = []
    now = _EXAMPLE_TIME
    while len(steps) < _MAX_STEPS:
        facts = RepairFacts(
            incident_id=incident.incident_id,
            life=_EXAMPLE_LIFE,
            fault_key=incident.fault_key,
            fault=FaultTraits.of(incident_fault.fault),
            ladder=incident_fault.node_rungs,
            opened_at=_EXAMPLE_TIME,
            boot_id_at_opening="",
            owner="EVENKEEL",
            has_recovered=False,
            not_allowed="",
            is_manual_cordon=False,
            lease_holder="",
            requests=requests,
            slot_state=SlotState(original=ObservedNode(provider_node=provider_node, node=node)),
            validity=Validity(is_valid=False, reason="The fault is still there."),
            hold=None,
            now=now,
        )
        repair_decision = choose_repair(facts, policy.repair)
        after_seconds = round((now - _EXAMPLE_TIME).total_seconds())
        rung = repair_decision.action.lower()
        if rung not in facts.ladder:
            if repair_decision.action is Repair.ASK_PERSON:
                steps.append(
                    RungPreview(
                        rung="ask_person",
                        after_seconds=after_seconds,
                        deadline_seconds=0,
                        reason=repair_decision.reason,
                    )
                )
            break
        request = RepairRequest(
            rung=rung,
            life=_EXAMPLE_LIFE,
            boot_id="",
            requested_at=now,
            incident_id=incident.incident_id,
            answer=RepairAnswer.ACCEPTED,
        )
        requests, now = (*requests, request), request_deadline(request, policy.repair)
        waited_seconds = round((now - request.requested_at).total_seconds())
        steps.append(
            RungPreview(
                rung=rung, after_seconds=after_seconds, deadline_seconds=waited_seconds, reason=repair_decision.reason
            )
        )
    return tuple(steps)


def _recurrence_preview(fault: Fault, policy: Policy) -> RecurrencePreview | None:
    """Return the rung on which the fault begins the N-th time, by recording the fault that often."""
    if fault.recur_count == 0:
        return None
    history = FaultHistory()
    for number in range(1, fault.recur_count):
        spread = fault.recur_window_hours * 3600 * number / fault.recur_count
        earlier = _signal_of_fault(fault).replace(
            observed_at=datetime.fromtimestamp(_EXAMPLE_TIME.timestamp() - spread, UTC)
        )
        affected_node = (
            _EXAMPLE_NODE.replace(job_ids=(f"job-{number}",))
            if fault.recur_key is RecurKey.GPU_ACROSS_JOBS
            else _EXAMPLE_NODE
        )
        history = with_occurrence(history, earlier, affected_node, f"inc-{number}")
    incident = _incident_of_fault(fault, policy, history)
    recurrences = incident.recurrences if incident else ()
    if not recurrences:
        return None
    return RecurrencePreview(
        count=recurrences[0].count, window_hours=fault.recur_window_hours, key=fault.recur_key, rung=recurrences[0].rung
    )
