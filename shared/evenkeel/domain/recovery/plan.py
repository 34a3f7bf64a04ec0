"""What a recovery is to do about a node, and whether it may."""

import math
from enum import StrEnum

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.health.faults import NODE_RUNGS, look_up
from evenkeel.domain.policy import Mode, RepairPolicy
from evenkeel.domain.values import Value

_HANDS_OFF_CLUSTER = frozenset({"SystemUpdating", "RollingBack", "Deleting"})
"""Source: HyperPod works on all machines in these states; any call of ours would cross it."""
_A_DAY = 86_400


class PlanOutcome(StrEnum):
    """Where the workflow goes."""

    ACT = "ACT"
    OBSERVE = "OBSERVE"
    """Would act, and may not."""
    STAND_DOWN = "STAND_DOWN"
    NOTHING = "NOTHING"
    """The fault calls for nothing, or is over."""


class Owner(StrEnum):
    """Who repairs the machine."""

    EVENKEEL = "EVENKEEL"
    HYPERPOD = "HYPERPOD"
    PERSON = "PERSON"
    NOBODY = "NOBODY"


class PlanFacts(Value):
    """All that a plan rests on."""

    fault_key: str
    ladder: tuple[str, ...]
    """Node rungs, in order."""
    sources: tuple[str, ...]
    has_recovered: bool
    """A healthy-again signal is later than every sick one."""
    mode: Mode
    is_drill: bool
    drills_may_act: bool
    life_is_over: bool
    """No control plane shows the machine, or another one holds its seat."""
    is_hyperpod: bool
    hyperpod_repairs: bool
    """NodeRecovery is Automatic."""
    cluster_status: str = ""
    node_status: str = ""
    is_persons_cordon: bool
    """Cordoned without a mark of ours."""
    is_busy: bool = False
    """Work runs on it. Known only where the fault can wait for the work to end."""


class RecoveryPlan(Value):
    """What to do about one incident, and why."""

    outcome: PlanOutcome
    intent: PlanOutcome
    """What would be done if everything were allowed."""
    repairs_node: bool
    owner: Owner
    settle_seconds: int
    max_repairs: int
    reason: str
    alternatives: tuple[Alternative, ...] = ()


def not_allowed(mode: Mode, *, is_drill: bool, drills_may_act: bool) -> str:
    """Say why nothing may be done, in one sentence; empty where it may."""
    if mode is not Mode.ACT:
        return f"Mode is {mode}: decided and recorded, nothing is touched."
    if is_drill and not drills_may_act:
        return "This is a drill, and drills may not act here."
    return ""


def plan_recovery(facts: PlanFacts, policy: RepairPolicy) -> RecoveryPlan:
    """Decide what to do about an incident. The mode is weighed last, so that every mode records the same intent."""
    wanted = _wanted(facts, policy)
    if wanted.intent is not PlanOutcome.ACT:
        return wanted
    barred = not_allowed(facts.mode, is_drill=facts.is_drill, drills_may_act=facts.drills_may_act)
    if barred:
        return wanted.but(outcome=PlanOutcome.OBSERVE, reason=f"{barred} Would: {wanted.reason}")
    return wanted


def _wanted(facts: PlanFacts, policy: RepairPolicy) -> RecoveryPlan:
    fault = look_up(facts.fault_key)
    first = fault.ladder[0]

    def plan(intent: PlanOutcome, owner: Owner, reason: str, *other: tuple[str, str]) -> RecoveryPlan:
        acts = intent is PlanOutcome.ACT
        return RecoveryPlan(
            outcome=intent,
            intent=intent,
            repairs_node=acts and owner in (Owner.EVENKEEL, Owner.HYPERPOD),
            owner=owner,
            settle_seconds=math.ceil(fault.settle_seconds * policy.settle_scale) if acts else 0,
            max_repairs=policy.max_attempts,
            reason=reason,
            alternatives=tuple(Alternative(option=option, why_not=why_not) for option, why_not in other),
        )

    nothing, repair = PlanOutcome.NOTHING, " then ".join(facts.ladder)
    if facts.life_is_over:
        return plan(nothing, Owner.NOBODY, "The machine is gone already; its seat belongs to another life.")
    if facts.has_recovered:
        return plan(nothing, Owner.NOBODY, "It was healthy again before anything was done.", ("repair", "not needed"))
    if not facts.ladder:
        return plan(nothing, Owner.NOBODY, *_no_rung(fault.name, first))
    if first == "stand_down" and not facts.hyperpod_repairs:
        why_not = "nobody but HyperPod acts on it"
        return plan(nothing, Owner.NOBODY, f"{fault.name}: a mark that does nothing here.", (repair, why_not))
    if first not in (*NODE_RUNGS, "stand_down"):
        why_not = f"the first rung is {first}"
        return plan(nothing, Owner.NOBODY, f"{fault.name}: {_GENTLE.get(first, first)}.", (repair, why_not))
    if not fault.acts_alone and len(facts.sources) < 2:
        why_not = "one witness is not enough for this fault"
        return plan(nothing, Owner.NOBODY, f"{fault.name}: waits for a second, independent signal.", (repair, why_not))
    if fault.drain_seconds >= _A_DAY and facts.is_busy:
        why_not = "its work would be lost for nothing"
        reason = f"{fault.name}: the machine works for now, so its repair waits for the work to end."
        return plan(nothing, Owner.NOBODY, reason, (repair, why_not))
    if facts.cluster_status in _HANDS_OFF_CLUSTER or facts.node_status == "SystemUpdating":
        status = facts.cluster_status if facts.cluster_status in _HANDS_OFF_CLUSTER else facts.node_status
        why_not = "two repairs would cross"
        return plan(PlanOutcome.STAND_DOWN, Owner.HYPERPOD, f"HyperPod is {status}: hands off.", (repair, why_not))
    if facts.is_persons_cordon:
        reason = "A person cordoned this node: it is left to them, and its jobs are moved."
        return plan(PlanOutcome.ACT, Owner.PERSON, reason, (repair, "the node is in a person's hands"))
    if not facts.is_hyperpod:
        reason = "This machine is Karpenter's, which replaces what is broken; its jobs are moved."
        return plan(PlanOutcome.ACT, Owner.NOBODY, reason, (repair, "HyperPod does not know it"))
    if facts.hyperpod_repairs and facts.fault_key.startswith(("hp:", "xid:")):
        reason = (
            f"{fault.name}: NodeRecovery is Automatic, so HyperPod repairs it; Evenkeel watches and moves the jobs."
        )
        return plan(PlanOutcome.ACT, Owner.HYPERPOD, reason, (repair, "one owner per repair"))
    return plan(PlanOutcome.ACT, Owner.EVENKEEL, f"{fault.name}: {repair}, and move the jobs.")


_GENTLE = {
    "watch": "watched and counted, nothing more",
    "restart_job": "the application's own fault, its restart budget covers it",
    "follow_primary": "a consequence of another fault",
    "checkpoint_drain": "no repair",
    "ignore": "nothing to do",
}


def _no_rung(name: str, first: str) -> tuple[str, tuple[str, str]]:
    if first == "page_human":
        return f"{name}: only a person can mend this.", ("repair", "no rung of ours clears it")
    return f"{name}: {_GENTLE.get(first, first)}.", ("repair", "this fault calls for none")


def calls_for_person(fault_key: str) -> bool:
    """Whether the first answer to this fault is a person."""
    return look_up(fault_key).ladder[0] == "page_human"
