"""Decide how long pods may save before their node is repaired or terminated, and which other pods are evicted.

fault ── SIGTERM, grace ──▶ saved ── time to store the manifest ──▶ deadline: AWS ends the node
"""

import math
from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.external.unmanaged_workloads import PodRecreation, UnmanagedPod
from evenkeel.domain.health.assessment import checkpoint_trust_of
from evenkeel.domain.health.faults import CanSave, CheckpointTrust, Fault
from evenkeel.domain.health.incidents import Incident, JobAction
from evenkeel.domain.jobs.spec import OnNodeFault
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery.plan import CAN_WAIT_SECONDS
from evenkeel.domain.recovery.resume_options import distrust_after
from evenkeel.domain.values import Instant, Value


class DrainMode(StrEnum):
    """Whether stopping pods get time to save."""

    SAVE = "SAVE"
    AT_ONCE = "AT_ONCE"


class DrainFacts(Value):
    """Facts for the time to save."""

    can_save: CanSave
    """Whether the pods can still save after this fault."""
    drain_seconds: int
    """Time that the fault allows for a drain; -1 = no drain."""
    action: JobAction
    """Action on the job."""
    wanted_seconds: int
    """Grace that the job requests."""
    deadline_at: Instant | None = None
    """Time at which AWS ends the node; None if unknown."""
    now: Instant


class Drain(Value):
    """The time that the pods of one job get to save, with the reason."""

    action: DrainMode
    grace_seconds: int
    grants_grace_on_faulty_node: bool
    """Whether pods on the faulty node get the same time. If not, they stop at once, because they cannot save."""
    explanation: str
    """The time and its reason, as the end of a sentence."""
    alternatives: tuple[Alternative, ...] = ()
    facts: DrainFacts

    @property
    def reason(self) -> str:
        """The explanation as a whole sentence."""
        return f"Its pods get {self.explanation}."


def plan_drain(facts: DrainFacts, policy: Policy) -> Drain:
    """Return the time that a job's pods get to save: the requested grace, within the limits of fault and deadline.

    If it is unknown whether the node can save (`try`), the pods get the same time as if it can. A failed save costs no
    more than that time, and no job resumes from an unproven checkpoint.
    """

    def drain_of(grace: int, explanation: str, *, on_faulty_node: bool = True) -> Drain:
        alternative = Alternative(option=f"{facts.wanted_seconds} s, as the job requests", why_not=explanation)
        return Drain(
            action=DrainMode.SAVE if grace else DrainMode.AT_ONCE,
            grace_seconds=grace,
            grants_grace_on_faulty_node=on_faulty_node,
            explanation=explanation,
            alternatives=(alternative,) if grace < facts.wanted_seconds else (),
            facts=facts,
        )

    if facts.action in (JobAction.ROLLBACK, JobAction.STOP):
        return drain_of(0, "no time to save, because no job would use the checkpoint")
    grace, why = facts.wanted_seconds, "as the job requests"
    allowed_seconds = math.ceil(facts.drain_seconds * policy.repair.drain_scale)
    cannot_save = facts.can_save is CanSave.NO
    if cannot_save and facts.drain_seconds == 0:
        # Pods on the faulty node stop at once. The job's pods on other nodes may still be able to save.
        allowed_seconds = math.ceil(policy.jobs.others_save_seconds * policy.repair.drain_scale)
    if facts.drain_seconds >= 0 and allowed_seconds < grace:
        grace, why = allowed_seconds, "the most that this fault allows"
    if facts.deadline_at is not None:
        remaining_seconds = (
            math.floor((facts.deadline_at - facts.now).total_seconds()) - policy.jobs.rest_before_deadline_seconds
        )
        if remaining_seconds < grace:
            grace, why = (
                max(0, remaining_seconds),
                f"so that the save ends before the node terminates at {facts.deadline_at:%H:%M:%SZ}",
            )
    if cannot_save:
        why = f"{why}; the faulty node cannot save, so its pods stop at once"
    return drain_of(grace, f"{grace} s to save, {why}", on_faulty_node=not cannot_save)


def affected_since(incident: Incident, policy: Policy) -> datetime:
    """Return since when attempts that ended on the node count as affected by its fault.

    The fault began before its first signal. If it can corrupt data, the window of distrusted checkpoints counts too:
    an attempt that ended in it also saved in it.
    """
    blamed_since = incident.first_signal_at - timedelta(seconds=policy.jobs.attribution_delay_seconds)
    return min(blamed_since, _distrusted_since(incident, policy) or blamed_since)


def may_damage_checkpoints(incident: Incident, policy: Policy) -> bool:
    """Whether the fault may have damaged checkpoints that were saved while it lasted."""
    return _distrusted_since(incident, policy) is not None


def _distrusted_since(incident: Incident, policy: Policy) -> datetime | None:
    return distrust_after(*checkpoint_trust_of(incident, policy.catalogue), policy.jobs)


def finish_deadline(
    on_node_fault: OnNodeFault, fault: Fault, *, opened_at: datetime, deadline_at: datetime | None, policy: Policy
) -> datetime | None:
    """Return the time until which a job may keep running on a cordoned node; None if it may not.

    The job must request it, and the node must still be trusted. After a fault that requires the job to leave at once,
    or that makes checkpoints distrusted, no job may finish on the node.
    """
    if on_node_fault is not OnNodeFault.FINISH or not _may_finish(fault):
        return None
    until = opened_at + timedelta(seconds=policy.jobs.finish_seconds)
    if deadline_at is not None:
        until = min(until, deadline_at - timedelta(seconds=policy.repair.leave_seconds))
    return until if until > opened_at else None


def _may_finish(fault: Fault) -> bool:
    return fault.drain_seconds != 0 and fault.checkpoint_trust is CheckpointTrust.TRUSTED


def finish_deadline_now(incident: Incident, fault: Fault, policy: Policy) -> datetime | None:
    """Return until when the jobs that the plan lets finish on the node may run now; None if it lets none finish.

    A later signal can shorten the time in the plan. A worse fault ends it, and AWS may end the node earlier.

    Args:
        incident: The incident with its plan.
        fault: The fault of the incident now.
        policy: The time before AWS ends the node.
    """
    plan = incident.plan
    if plan is None or plan.work_may_run_until is None:
        return None
    can_wait = not 0 <= fault.drain_seconds < CAN_WAIT_SECONDS
    if not (can_wait if plan.jobs is JobAction.LEAVE else _may_finish(fault)):
        return min(plan.work_may_run_until, incident.last_fault_at)
    if incident.deadline_at is None:
        return plan.work_may_run_until
    return min(plan.work_may_run_until, incident.deadline_at - timedelta(seconds=policy.repair.leave_seconds))


class UnmanagedPodAction(StrEnum):
    """Action on a pod outside Evenkeel before its node is repaired."""

    EVICT = "EVICT"
    """Evict the pod within its disruption budget, and retry until the drain deadline."""
    LEAVE = "LEAVE"
    """Let the pod run until its node ends."""
    ASK = "ASK"
    """Ask a person."""


class UnmanagedPodDecision(Value):
    """Action on one pod outside Evenkeel, with the reason."""

    action: UnmanagedPodAction
    reason: str


def drain_deadline(fault: Fault, *, opened_at: datetime, deadline_at: datetime | None, policy: Policy) -> datetime:
    """Return until when a repair waits for pods outside Evenkeel: disruption budgets and graces delay their end."""
    seconds = fault.drain_seconds if fault.drain_seconds >= 0 else policy.repair.unmanaged_drain_seconds
    until = opened_at + timedelta(seconds=math.ceil(seconds * policy.repair.drain_scale))
    return until if deadline_at is None else min(until, deadline_at)


def decide_unmanaged_pod(
    pod: UnmanagedPod, fault: Fault, *, until: datetime, has_deadline: bool, policy: Policy, now: datetime
) -> UnmanagedPodDecision:
    """Decide whether to evict an unmanaged pod on a node before the node's repair.

    Args:
        pod: The pod.
        fault: The fault of the node.
        until: The `drain_deadline`.
        has_deadline: Whether AWS ends the node anyway.
        policy: Says whether pods that remain after the drain deadline end with the node.
        now: The current time.
    """
    if now < until:
        if pod.recreation is PodRecreation.BY_OWNER:
            return UnmanagedPodDecision(
                action=UnmanagedPodAction.EVICT,
                reason=f"{pod.label} is evicted; its controller starts it on another node.",
            )
        why = (
            "HyperPod restarts it" if pod.recreation is PodRecreation.BY_HYPERPOD else "no controller would restart it"
        )
        return UnmanagedPodDecision(
            action=UnmanagedPodAction.LEAVE, reason=f"{pod.label} keeps running until the repair: {why}."
        )
    if has_deadline or fault.drain_seconds in _URGENT_DRAIN_SECONDS or policy.repair.ends_unmanaged_pods:
        return UnmanagedPodDecision(action=UnmanagedPodAction.LEAVE, reason=f"{pod.label} ends with the node.")
    if pod.recreation is PodRecreation.BY_HYPERPOD:
        return UnmanagedPodDecision(
            action=UnmanagedPodAction.LEAVE, reason=f"{pod.label} ends with the node; HyperPod restarts it."
        )
    return UnmanagedPodDecision(
        action=UnmanagedPodAction.ASK, reason=f"{pod.label} still runs, and the fault can wait for a person."
    )


_URGENT_DRAIN_SECONDS = (0, 120)
"""The drain classes `now` and `notice`."""
