"""Plan the recovery of a node, and check whether it is allowed."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from pydantic import Field

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.health.faults import NODE_RUNGS, Fault, Rung, default_catalogue
from evenkeel.domain.health.incidents import JobAction, PlanOutcome
from evenkeel.domain.policy_section import Mode
from evenkeel.domain.recovery.other_controllers import ControllerMark
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.values import Instant, Value

_BUSY_STATUSES = frozenset({"SystemUpdating", "RollingBack", "Deleting"})
"""Source: In these states HyperPod changes the cluster or this node, so a repair request would conflict."""


class NodeOwner(StrEnum):
    """The program or person that repairs a node."""

    EVENKEEL = "EVENKEEL"
    HYPERPOD = "HYPERPOD"
    KARPENTER = "KARPENTER"
    NODE_GROUP = "NODE_GROUP"
    """EC2 Auto Scaling group. RepairNode checks whether the node is in one."""
    CONTROLLER = "CONTROLLER"
    """Another controller of the Kubernetes cluster, which has marked the node."""
    PERSON = "PERSON"
    NONE = "NONE"


class FaultTraits(Value):
    """Parts of a fault that a decision needs, as the site configured them."""

    name: str
    ladder: tuple[str, ...]
    drain_seconds: int
    evidence_wait_seconds: int = Field(alias="settleSeconds")
    acts_alone: bool
    recur_count: int
    recur_window_hours: int

    @classmethod
    def of(cls, fault: Fault) -> "FaultTraits":
        """Return the traits of a catalogue row."""
        return cls.model_validate({name: getattr(fault, name) for name in cls.model_fields})


class PlanFacts(Value):
    """Facts for a recovery plan."""

    fault_key: str
    fault: FaultTraits | None = None
    """The fault with the site's overrides; None = as shipped."""
    ladder: tuple[str, ...]
    """Rungs that repair the node, in order."""
    rungs: tuple[str, ...] = ()
    """All rungs in force, in order, including those for jobs; empty = the fault's own rungs."""
    min_rung_reason: str = ""
    """Why a gentler rung is not enough; empty if the fault's own first rung applies."""
    sources: tuple[str, ...]
    """Independent sources of the fault."""
    has_recovered: bool
    """Whether a recovery signal is later than every fault signal."""
    mode: Mode
    is_drill: bool
    drills_may_act: bool
    is_node_gone: bool
    """Whether no control plane lists the node, or another node holds its slot."""
    is_hyperpod: bool
    is_karpenter: bool = False
    hyperpod_repairs: bool
    """Whether HyperPod's NodeRecovery is Automatic."""
    cluster_status: str = ""
    cluster_read_at: Instant | None = None
    """When a sweep read HyperPod's settings and the status of the cluster; None if they were read for this plan."""
    node_status: str = ""
    node_read_at: Instant | None = None
    """When a sweep read the status of the node, if HyperPod refused to answer; None if it was read for this plan."""
    is_manual_cordon: bool
    """Whether a person cordoned the node: neither Evenkeel nor another controller did."""
    controller: ControllerMark | None = None
    """The mark of another controller that repairs nodes; None without one."""
    opt_out_reason: str = ""
    """How a person opted this node out of automation; empty if no person did."""
    is_busy: bool = False
    """Whether jobs run on the node. Known only if the fault can wait for them to end."""
    opened_at: Instant | None = None
    deadline_at: Instant | None = None
    """Time at which AWS ends the node; None if unknown."""

    @property
    def fault_traits(self) -> FaultTraits:
        """The traits of the fault."""
        return self.fault or FaultTraits.of(default_catalogue().look_up(self.fault_key))


class RecoveryPlan(Value):
    """Plan for one incident, with its reason."""

    outcome: PlanOutcome
    intent: PlanOutcome
    """Outcome if every action were allowed."""
    repairs_node: bool
    """Whether the plan acts on the node. False for a fault of the application."""
    owner: NodeOwner
    evidence_wait_seconds: int = Field(alias="settleSeconds")
    max_repairs: int
    jobs: JobAction
    work_may_run_until: Instant | None = None
    """Time until which jobs on the node may finish; None if they stop at once or not at all."""
    reason: str
    alternatives: tuple[Alternative, ...] = ()


def why_not_allowed(mode: Mode, *, is_drill: bool, drills_may_act: bool) -> str:
    """Return why no action is allowed, as one sentence; empty if actions are allowed."""
    if mode is not Mode.ACT:
        return f"Mode is {mode}: Evenkeel records the decision and changes nothing."
    if is_drill and not drills_may_act:
        return "This is a drill, and drills may not act on this fleet."
    return ""


def provider_busy_reason(cluster_status: str, node_status: str) -> str:
    """Return why HyperPod's nodes must not be touched now, as one sentence; empty if they may be."""
    status = cluster_status if cluster_status in _BUSY_STATUSES else node_status
    return f"HyperPod reports {status}, so Evenkeel leaves the node alone for now." if status in _BUSY_STATUSES else ""


def plan_recovery(facts: PlanFacts, policy: RepairPolicy) -> RecoveryPlan:
    """Plan the recovery of an incident. The mode is applied last, so that every mode records the same intent."""
    intended_plan = _intended_plan(facts, policy)
    outcome = outcome_in_mode(intended_plan.intent, facts)
    if outcome is PlanOutcome.ASK:
        return intended_plan.replace(outcome=outcome, reason=f"Waits for approval. Plan: {intended_plan.reason}")
    if outcome is PlanOutcome.OBSERVE:
        why_not = why_not_allowed(facts.mode, is_drill=facts.is_drill, drills_may_act=facts.drills_may_act)
        return intended_plan.replace(outcome=outcome, reason=f"{why_not} Plan: {intended_plan.reason}")
    return intended_plan


def outcome_in_mode(intent: PlanOutcome, facts: PlanFacts) -> PlanOutcome:
    """Return the outcome that the mode of the incident allows instead of the intended one."""
    if intent not in (PlanOutcome.ACT, PlanOutcome.LATER):
        return intent
    if facts.mode is Mode.RECOMMEND and (facts.drills_may_act or not facts.is_drill):
        # Waiting changes nothing, so it needs no approval. Evenkeel asks once there is an action to approve.
        return PlanOutcome.ASK if intent is PlanOutcome.ACT else intent
    why_not = why_not_allowed(facts.mode, is_drill=facts.is_drill, drills_may_act=facts.drills_may_act)
    return PlanOutcome.OBSERVE if why_not else intent


class _PlanInput(NamedTuple):
    """The facts and the policy of a plan, with the first available rung."""

    facts: PlanFacts
    policy: RepairPolicy
    first_rung: str
    """The first available rung."""
    skipped: tuple[Alternative, ...]
    """The rungs before it that are not available here."""

    @property
    def fault(self) -> FaultTraits:
        return self.facts.fault_traits

    @property
    def repair(self) -> str:
        """The rungs that repair the node, as text; empty if there are none."""
        return " then ".join(self.facts.ladder)


class _DraftPlan(NamedTuple):
    """The plan that a rule makes."""

    intent: PlanOutcome
    owner: NodeOwner
    reason: str
    rejected: tuple[tuple[str, str], ...] = ()
    """Other options, each with the reason against it."""
    jobs: JobAction = JobAction.MOVE
    work_may_run_until: datetime | None = None
    """Time until which jobs on the node may finish."""
    repairs_node: bool = True


def _intended_plan(facts: PlanFacts, policy: RepairPolicy) -> RecoveryPlan:
    """Return the plan of the first rule in `_PLAN_RULES` that applies, as if every action were allowed."""
    first_rung, skipped_rungs = _first_available_rung(facts.rungs or facts.fault_traits.ladder)
    plan_input = _PlanInput(facts, policy, first_rung, skipped_rungs)
    draft = next(answer for rule in _PLAN_RULES if (answer := rule(plan_input)) is not None)
    acts = draft.intent is PlanOutcome.ACT
    return RecoveryPlan(
        outcome=draft.intent,
        intent=draft.intent,
        repairs_node=acts and draft.repairs_node,
        owner=draft.owner,
        evidence_wait_seconds=math.ceil(plan_input.fault.evidence_wait_seconds * policy.settle_scale) if acts else 0,
        max_repairs=policy.max_attempts,
        jobs=draft.jobs if acts else JobAction.LEAVE,
        work_may_run_until=draft.work_may_run_until,
        reason=draft.reason,
        alternatives=(
            *skipped_rungs,
            *(Alternative(option=option, why_not=why_not) for option, why_not in draft.rejected),
        ),
    )


def _plan_if_opted_out(plan_input: _PlanInput) -> _DraftPlan | None:
    if not plan_input.facts.opt_out_reason:
        return None
    rejections = (("recover", "a person opted this node out of automation"),)
    return _DraftPlan(PlanOutcome.STAND_DOWN, NodeOwner.PERSON, plan_input.facts.opt_out_reason, rejections)


def _plan_if_node_gone(plan_input: _PlanInput) -> _DraftPlan | None:
    if not plan_input.facts.is_node_gone:
        return None
    reason = "The node is already gone. Evenkeel moves its jobs and checks the replacement node."
    return _DraftPlan(PlanOutcome.ACT, NodeOwner.EVENKEEL, reason, (("repair", "the node no longer exists"),))


def _plan_if_recovered(plan_input: _PlanInput) -> _DraftPlan | None:
    if not plan_input.facts.has_recovered:
        return None
    reason = "The node recovered before Evenkeel acted."
    return _DraftPlan(PlanOutcome.NOTHING, NodeOwner.NONE, reason, (("repair", "not needed"),))


def _plan_if_no_action_needed(plan_input: _PlanInput) -> _DraftPlan | None:
    first_rung, facts = plan_input.first_rung, plan_input.facts
    if first_rung not in _NO_ACTION_RUNGS and (first_rung != Rung.STAND_DOWN or facts.hyperpod_repairs):
        return None
    explanation = _NO_ACTION_RUNGS.get(first_rung, "this label needs no action here")
    why_not = f"the first rung is {first_rung}" if plan_input.repair else "this fault needs no repair"
    stronger = f" {facts.min_rung_reason}" if facts.min_rung_reason else ""
    reason = f"{plan_input.fault.name}: {explanation}.{stronger}"
    return _DraftPlan(PlanOutcome.NOTHING, NodeOwner.NONE, reason, ((plan_input.repair or "repair", why_not),))


def _plan_if_single_source(plan_input: _PlanInput) -> _DraftPlan | None:
    if plan_input.fault.acts_alone or len(plan_input.facts.sources) >= _MIN_SOURCES:
        return None
    reason = f"{plan_input.fault.name}: Evenkeel waits for a second, independent source."
    rejections = ((plan_input.repair or plan_input.first_rung, "one source is not enough for this fault"),)
    return _DraftPlan(PlanOutcome.NOTHING, NodeOwner.NONE, reason, rejections)


def _plan_if_provider_busy(plan_input: _PlanInput) -> _DraftPlan | None:
    busy_reason = provider_busy_reason(plan_input.facts.cluster_status, plan_input.facts.node_status)
    if not busy_reason:
        return None
    rejections = ((plan_input.repair or plan_input.first_rung, "two repairs of one node would conflict"),)
    return _DraftPlan(PlanOutcome.LATER, NodeOwner.HYPERPOD, busy_reason, rejections)


def _plan_for_jobs_alone(plan_input: _PlanInput) -> _DraftPlan | None:
    """Plan only for the jobs if the application caused the fault: the node stays in service."""
    if plan_input.first_rung not in _JOB_RUNGS or _also_diagnoses_node(plan_input.facts, plan_input.first_rung):
        return None
    jobs, explanation = _JOB_RUNGS[plan_input.first_rung]
    reason = f"{plan_input.fault.name}: {explanation}."
    rejections = ((plan_input.repair or "repair", "the job action comes first"),)
    return _DraftPlan(PlanOutcome.ACT, NodeOwner.NONE, reason, rejections, jobs=jobs, repairs_node=False)


def _plan_if_controller_repairs(plan_input: _PlanInput) -> _DraftPlan | None:
    mark = plan_input.facts.controller
    if mark is None:
        return None
    rejections = ((plan_input.repair or plan_input.first_rung, "two repairs of one node would conflict"),)
    if mark.has_given_up:
        reason = f"{mark.controller} gave up its repair of this node ({mark.mark}). Evenkeel moves its jobs."
    else:
        reason = f"{mark.controller} repairs this node ({mark.mark}). Evenkeel moves its jobs and waits."
    return _DraftPlan(PlanOutcome.ACT, NodeOwner.CONTROLLER, reason, rejections, jobs=_job_action(plan_input))


def _plan_if_person_cordoned(plan_input: _PlanInput) -> _DraftPlan | None:
    if not plan_input.facts.is_manual_cordon:
        return None
    reason = "A person cordoned this node, so Evenkeel leaves it to that person and moves its jobs."
    rejections = ((plan_input.repair or plan_input.first_rung, "a person has taken over the node"),)
    return _DraftPlan(PlanOutcome.ACT, NodeOwner.PERSON, reason, rejections, jobs=_job_action(plan_input))


def _plan_repair(plan_input: _PlanInput) -> _DraftPlan:
    until = _work_may_run_until(plan_input.facts, plan_input.policy)
    owner, reason = _owner_with_reason(plan_input.facts, plan_input.fault.name, plan_input.first_rung)
    if until is not None:
        reason = f"{reason} The node still works, so the repair waits for its jobs until {until:%Y-%m-%dT%H:%M:%SZ}."
    jobs = JobAction.LEAVE if until is not None or plan_input.first_rung == "cordon" else _job_action(plan_input)
    rejections = (("repair", "only one owner may repair a node"),) if owner is NodeOwner.HYPERPOD else ()
    return _DraftPlan(PlanOutcome.ACT, owner, reason, rejections, jobs=jobs, work_may_run_until=until)


def _job_action(plan_input: _PlanInput) -> JobAction:
    return JobAction.ROLLBACK if plan_input.first_rung == "rollback_job" else JobAction.MOVE


_PLAN_RULES: tuple[Callable[[_PlanInput], _DraftPlan | None], ...] = (
    _plan_if_opted_out,
    _plan_if_node_gone,
    _plan_if_recovered,
    _plan_if_no_action_needed,
    _plan_if_single_source,
    _plan_if_provider_busy,
    _plan_for_jobs_alone,
    _plan_if_controller_repairs,
    _plan_if_person_cordoned,
    _plan_repair,
)
"""Every rule that makes a plan. The first rule that applies decides; the last rule always applies."""


def _owner_with_reason(facts: PlanFacts, name: str, first_rung: str) -> tuple[NodeOwner, str]:
    repair = " then ".join(facts.ladder)
    if first_rung in QUARANTINE_RUNGS:
        return NodeOwner.EVENKEEL, f"{name}: {QUARANTINE_RUNGS[first_rung]}."
    if facts.is_karpenter:
        return NodeOwner.KARPENTER, f"{name}: Evenkeel drains the node, Karpenter terminates it, and the jobs move."
    if not facts.is_hyperpod:
        explanation = "its jobs move, and its Auto Scaling group replaces it, or a person if it is in no group"
        return NodeOwner.NODE_GROUP, f"{name}: {explanation}."
    if facts.hyperpod_repairs and _can_hyperpod_detect(facts.fault_key):
        explanation = "NodeRecovery is Automatic, so HyperPod repairs the node; Evenkeel moves the jobs"
        return NodeOwner.HYPERPOD, f"{name}: {explanation}."
    reason = f" {facts.min_rung_reason}" if facts.min_rung_reason else ""
    return NodeOwner.EVENKEEL, f"{name}: Evenkeel moves the jobs, then: {repair}.{reason}"


def _can_hyperpod_detect(fault_key: str) -> bool:
    """Whether HyperPod's own agent detects this fault, so that HyperPod repairs it if NodeRecovery is Automatic."""
    return fault_key.startswith(("hp:", "xid:"))


def present_owner(
    planned_owner: NodeOwner, fault_key: str, rungs: Sequence[str], *, hyperpod_repairs: bool
) -> NodeOwner:
    """Return who repairs the node now, if NodeRecovery has changed since the plan.

    Evenkeel leaves its own repair to HyperPod. It never takes over a repair because of this setting: HyperPod may have
    begun while the setting was Automatic.

    Args:
        planned_owner: The owner in the plan.
        fault_key: The fault of the incident.
        rungs: The rungs in force, in order, including those for jobs.
        hyperpod_repairs: Whether the node is a HyperPod node and NodeRecovery is Automatic now.
    """
    is_quarantine = _first_available_rung(rungs)[0] in QUARANTINE_RUNGS
    if (
        planned_owner is NodeOwner.EVENKEEL
        and hyperpod_repairs
        and _can_hyperpod_detect(fault_key)
        and not is_quarantine
    ):
        return NodeOwner.HYPERPOD
    return planned_owner


def _first_available_rung(rungs: Sequence[str]) -> tuple[str, tuple[Alternative, ...]]:
    """Return the first available rung, and each skipped rung with its reason."""
    skipped_rungs = [
        Alternative(option=rung, why_not=_UNAVAILABLE_RUNGS[rung]) for rung in takewhile(_is_unavailable, rungs)
    ]
    return next(iter(rungs[len(skipped_rungs) :]), Rung.ASK_PERSON), tuple(skipped_rungs)


def _is_unavailable(rung: str) -> bool:
    return rung in _UNAVAILABLE_RUNGS


def _also_diagnoses_node(facts: PlanFacts, first_rung: str) -> bool:
    """Whether the jobs are rolled back and the node is diagnosed too."""
    return first_rung == "rollback_job" and facts.ladder[:1] == ("diagnose",)


def _work_may_run_until(facts: PlanFacts, policy: RepairPolicy) -> datetime | None:
    """Return the time until which jobs on a node may finish; None if the fault cannot wait or the node is idle.

    If AWS ends the node, the jobs stop `leave_seconds` before that.
    """
    drain = facts.fault_traits.drain_seconds
    if drain < CAN_WAIT_SECONDS or not facts.is_busy or facts.opened_at is None:
        return None
    until = facts.opened_at + timedelta(seconds=math.ceil(drain * policy.drain_scale))
    if facts.deadline_at is not None:
        until = min(until, facts.deadline_at - timedelta(seconds=policy.leave_seconds))
    return until


CAN_WAIT_SECONDS = 86_400
"""Drain seconds of the class `job_end`: with this drain or a longer one, jobs may finish first."""
_MIN_SOURCES = 2
_NO_ACTION_RUNGS: Mapping[str, str] = {
    Rung.WATCH: "Evenkeel counts it and takes no action",
    Rung.FOLLOW_PRIMARY: "it is a consequence of another fault",
    Rung.FOLLOW_XID_154: "the driver reports the action it needs as a separate signal",
    Rung.IGNORE: "no action needed",
    Rung.ASK_PERSON: "only a person can repair this",
}
_JOB_RUNGS: Mapping[str, tuple[JobAction, str]] = {
    Rung.RESTART_JOB: (JobAction.RESTART, "the application caused it, so Evenkeel restarts its jobs"),
    Rung.ROLLBACK_JOB: (JobAction.ROLLBACK, "its jobs resume from a checkpoint before the fault"),
    Rung.STOP_JOB: (JobAction.STOP, "another attempt would fail too, so Evenkeel stops its jobs permanently"),
}
QUARANTINE_RUNGS: Mapping[str, str] = {
    Rung.CORDON: "the node gets no new pods, and running pods continue",
    Rung.CHECKPOINT_DRAIN: "its jobs save and move, and the node is left to its owner",
}
"""Rungs that take the node out of service and do not repair it."""
_UNAVAILABLE_RUNGS: Mapping[str, str] = {
    Rung.RESTART_FABRIC_MANAGER: "it needs an agent on the node",
    Rung.REBIND_DRIVER: "it needs an agent on the node",
}
RUNGS = frozenset(
    {*NODE_RUNGS, *_NO_ACTION_RUNGS, *_JOB_RUNGS, *QUARANTINE_RUNGS, *_UNAVAILABLE_RUNGS, Rung.STAND_DOWN}
)
"""Every rung that a row of the catalogue may name."""


def should_ask_person(rungs: Sequence[str]) -> bool:
    """Whether the first available rung asks a person."""
    return next((rung for rung in rungs if rung not in _UNAVAILABLE_RUNGS), Rung.ASK_PERSON) == Rung.ASK_PERSON
