"""What one fault leads to, told beforehand: the very functions that decide, on a machine that nothing helps.

fault, policy ─▶ an incident of one signal ─▶ the plan ─▶ rung, its deadline passes, next rung … ─▶ a person
"""

from datetime import UTC, datetime

from evenkeel.domain.health.faults import Fault, RecurKey, shipped
from evenkeel.domain.health.incidents import FactKind, Incident, NodeFact, SickSeat
from evenkeel.domain.health.intake import Intake, doubt_of, join_or_open, joined, ladder_of, rungs_of
from evenkeel.domain.health.recurrence import History, remembered
from evenkeel.domain.jobs.job import Demand
from evenkeel.domain.nodes import KubernetesNode, NodeLife, ProviderNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_base import Mode
from evenkeel.domain.recovery.leases import RepairAsk
from evenkeel.domain.recovery.plan import FaultTerms, PlanFacts, RecoveryPlan, plan_recovery
from evenkeel.domain.recovery.repair import ACCEPTED, Repair, RepairFacts, choose_repair, deadline_of
from evenkeel.domain.recovery.resume import demand_after, distrust_after
from evenkeel.domain.recovery.seats import Holder, SeatNow
from evenkeel.domain.recovery.validation import Validity
from evenkeel.domain.values import Value

_AT = datetime(2026, 1, 1, tzinfo=UTC)
"""Any time will do: only differences are told."""
_LIFE = NodeLife(cluster="eks", instance_id="i-00000000000000000", launched_at=_AT)
_SEAT = SickSeat(life=_LIFE, slot="eks/seat", node_name="node", pool="pool", job_ids=("job",))
_MOST_STEPS = 8


class Step(Value):
    """One rung that is climbed to where none before it helped."""

    rung: str
    """`reboot`, `replace`, …; `page_human` at the end."""
    after_seconds: int
    """Since the first rung, if every one before takes its whole time in vain."""
    deadline_seconds: int
    """How long the machine is awaited after it; 0 for a person."""
    reason: str


class Repeated(Value):
    """Where a fault begins when it has come before."""

    count: int
    window_hours: int
    key: RecurKey
    rung: str


class Preview(Value):
    """What one fault leads to under one policy, on one of HyperPod's machines in mode `act`, HyperPod not repairing."""

    fault: Fault
    is_changed: bool
    """Whether the site has it otherwise than it is shipped."""
    policy_hash: str
    catalogue_hash: str
    opens_incident: bool
    plan: RecoveryPlan | None
    """On one signal alone; None where none opens."""
    with_witness: RecoveryPlan | None
    """Where the first needs a second witness: what both lead to."""
    steps: tuple[Step, ...]
    repeated: Repeated | None
    demand: Demand
    """What a checkpoint must have to be resumed from."""
    distrusted_from_seconds: int | None
    """How long before the first signal a checkpoint's write must have begun to be used; None = all are."""


def preview(fault: Fault, policy: Policy) -> Preview:
    """Tell what a fault leads to."""
    incident = _incident(fault, policy, History())
    alone = _plan(incident, policy) if incident else None
    both = None
    if incident and not fault.acts_alone:
        second = _signal(fault).but(source="another.witness", envelope_id="another")
        incident = joined(incident, second, seat=_SEAT, catalogue=policy.catalogue)
        both = _plan(incident, policy)
    planned = both or alone
    trust, since = doubt_of(incident, policy.catalogue) if incident else (fault.checkpoint_trust, _AT)
    distrusted = distrust_after(trust, since, policy.jobs)
    return Preview(
        fault=fault,
        is_changed=fault != shipped().get(fault.key),
        policy_hash=policy.hash,
        catalogue_hash=policy.catalogue.hash,
        opens_incident=incident is not None,
        plan=alone,
        with_witness=both,
        steps=_steps(incident, policy) if incident and planned and planned.repairs_node else (),
        repeated=_repeated(fault, policy),
        demand=demand_after(trust, fault.fault_class, policy.jobs),
        distrusted_from_seconds=None if distrusted is None else round((_AT - distrusted).total_seconds()),
    )


def _signal(fault: Fault) -> NodeFact:
    return NodeFact(
        kind=FactKind.SICKENED,
        source="one.witness",
        instance_id=_LIFE.instance_id,
        fault_key=fault.key,
        observed_at=_AT,
        envelope_id="one",
    )


def _incident(fault: Fault, policy: Policy, history: History) -> Incident | None:
    decided = join_or_open(
        _signal(fault),
        _SEAT,
        known_as="",
        last=None,
        current=None,
        new_id="inc-preview",
        now=_AT,
        histories={"seat/eks/seat": history},
        catalogue=policy.catalogue,
    )
    return decided.incident if decided.action is Intake.OPEN else None


def _plan(incident: Incident, policy: Policy) -> RecoveryPlan:
    facts = PlanFacts(
        fault_key=incident.fault_key,
        fault=FaultTerms.of(policy.catalogue.look_up(incident.fault_key)),
        ladder=ladder_of(incident, policy.catalogue),
        rungs=rungs_of(incident, policy.catalogue),
        asked_because=incident.asked_because,
        sources=incident.witnesses or incident.sources,
        has_recovered=False,
        mode=Mode.ACT,
        is_drill=False,
        drills_may_act=False,
        life_is_over=False,
        is_hyperpod=True,
        hyperpod_repairs=False,
        is_persons_cordon=False,
    )
    return plan_recovery(facts, policy.repair)


def _steps(incident: Incident, policy: Policy) -> tuple[Step, ...]:
    record = ProviderNode(
        instance_id=_LIFE.instance_id, instance_group="pool", instance_type="", launched_at=_AT, status="Running"
    )
    node = KubernetesNode(cluster="eks", name="node", instance_id=_LIFE.instance_id, is_ready=True)
    asks: tuple[RepairAsk, ...] = ()
    steps: list[Step] = []
    now = _AT
    while len(steps) < _MOST_STEPS:
        facts = RepairFacts(
            incident_id=incident.incident_id,
            life=_LIFE,
            fault_key=incident.fault_key,
            fault=FaultTerms.of(policy.catalogue.look_up(incident.fault_key)),
            ladder=ladder_of(incident, policy.catalogue),
            opened_at=_AT,
            boot_id_at_opening="",
            owner="EVENKEEL",
            has_recovered=False,
            not_allowed="",
            is_persons_cordon=False,
            lease_holder="",
            asks=asks,
            seat=SeatNow(patient=Holder(record=record, node=node)),
            validity=Validity(is_valid=False, reason="It is as sick as before."),
            hold=None,
            now=now,
        )
        decided = choose_repair(facts, policy.repair)
        after = round((now - _AT).total_seconds())
        rung = decided.action.lower()
        if rung not in facts.ladder:
            if decided.action is Repair.ASK_PERSON:
                steps.append(Step(rung="page_human", after_seconds=after, deadline_seconds=0, reason=decided.reason))
            break
        ask = RepairAsk(
            rung=rung, life=_LIFE, boot_id="", asked_at=now, incident_id=incident.incident_id, answer=ACCEPTED
        )
        asks, now = (*asks, ask), deadline_of(ask, policy.repair)
        waited = round((now - ask.asked_at).total_seconds())
        steps.append(Step(rung=rung, after_seconds=after, deadline_seconds=waited, reason=decided.reason))
    return tuple(steps)


def _repeated(fault: Fault, policy: Policy) -> Repeated | None:
    """Tell where the fault begins the N-th time, by letting it come that often."""
    if fault.recur_count == 0:
        return None
    history = History()
    for number in range(1, fault.recur_count):
        spread = fault.recur_window_hours * 3600 * number / fault.recur_count
        before = _signal(fault).but(observed_at=datetime.fromtimestamp(_AT.timestamp() - spread, UTC))
        seat = _SEAT.but(job_ids=(f"job-{number}",)) if fault.recur_key is RecurKey.GPU_ACROSS_JOBS else _SEAT
        history = remembered(history, before, seat, f"inc-{number}")
    incident = _incident(fault, policy, history)
    found = incident.repetitions if incident else ()
    if not found:
        return None
    return Repeated(
        count=found[0].count, window_hours=fault.recur_window_hours, key=fault.recur_key, rung=found[0].rung
    )
