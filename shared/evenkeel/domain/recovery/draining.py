"""How long pods may take to save before their node is repaired, taken away or left, and who gives way to whom.

notice ── SIGTERM, grace ──▶ saved ── rest: the manifest is in the store ──▶ deadline: the machine goes
"""

import math
from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.external.unmanaged_workloads import PodRecreation, UnmanagedPod
from evenkeel.domain.health.faults import CanSave, CheckpointTrust, Fault
from evenkeel.domain.health.incidents import JobAction
from evenkeel.domain.jobs.spec import OnNodeFault
from evenkeel.domain.policy import Policy
from evenkeel.domain.values import Instant, Value


class DrainMode(StrEnum):
    """What a stop leaves time for."""

    SAVE = "SAVE"
    AT_ONCE = "AT_ONCE"


class DrainFacts(Value):
    """All that the time to save rests on."""

    can_save: CanSave
    """The fault's, as its drain seconds."""
    drain_seconds: int
    act: JobAction
    """What is done with the job."""
    wanted_seconds: int
    """The job's own grace."""
    deadline_at: Instant | None = None
    """Time at which AWS ends the node; None if unknown."""
    now: Instant


class Drain(Value):
    """What the pods of one job get, and why."""

    action: DrainMode
    grace_seconds: int
    grants_grace_on_faulty_node: bool
    """Whether pods on the faulty node get the same; otherwise they are ended at once, since they cannot save."""
    explanation: str
    """How that came to be, as a sentence goes on."""
    alternatives: tuple[Alternative, ...] = ()
    facts: DrainFacts

    @property
    def reason(self) -> str:
        """The same as a sentence of its own."""
        return f"Its pods get {self.explanation}."


def plan_drain(facts: DrainFacts, policy: Policy) -> Drain:
    """Return the time a job's pods get: what it asks for, as far as fault, act and deadline allow.

    Where nobody knows whether a node can save (`try`), it gets the same time as one that can: a save that fails costs
    no more than that, and none is resumed from before it is proved.
    """

    def decided(grace: int, how: str, *, spares: bool = True) -> Drain:
        wanted = Alternative(option=f"{facts.wanted_seconds} s, as it asks", why_not=how)
        return Drain(
            action=DrainMode.SAVE if grace else DrainMode.AT_ONCE,
            grace_seconds=grace,
            grants_grace_on_faulty_node=spares,
            explanation=how,
            alternatives=(wanted,) if grace < facts.wanted_seconds else (),
            facts=facts,
        )

    if facts.act in (JobAction.ROLLBACK, JobAction.STOP):
        return decided(0, "no time, because a checkpoint saved now would not be used")
    grace, why = facts.wanted_seconds, "as it asks"
    allowed = math.ceil(facts.drain_seconds * policy.repair.drain_scale)
    cannot = facts.can_save is CanSave.NO
    if cannot and facts.drain_seconds == 0:
        # The faulty machine is to be left at once. What runs beside it may still have something to save.
        allowed = math.ceil(policy.jobs.others_save_seconds * policy.repair.drain_scale)
    if facts.drain_seconds >= 0 and allowed < grace:
        grace, why = allowed, "the most that this fault allows"
    if facts.deadline_at is not None:
        left = math.floor((facts.deadline_at - facts.now).total_seconds()) - policy.jobs.rest_before_deadline_seconds
        if left < grace:
            grace, why = (
                max(0, left),
                f"so that the save ends before the node terminates at {facts.deadline_at:%H:%M:%SZ}",
            )
    if cannot:
        why = f"{why}; pods on the faulty node cannot save and stop at once"
    return decided(grace, f"{grace} s to save, {why}", spares=not cannot)


def finish_deadline(
    requested: OnNodeFault, fault: Fault, *, opened_at: datetime, deadline_at: datetime | None, policy: Policy
) -> datetime | None:
    """Return until when a job that asks for it may run on beside a faulty machine's cordon; None where it may not.

    Only where the machine can still be trusted with it: a fault that has the node left at once, or casts doubt on what
    is computed there, is no time to finish anything.
    """
    is_trusted = fault.drain_seconds != 0 and fault.checkpoint_trust is CheckpointTrust.TRUSTED
    if requested is not OnNodeFault.FINISH or not is_trusted:
        return None
    until = opened_at + timedelta(seconds=policy.jobs.finish_seconds)
    if deadline_at is not None:
        until = min(until, deadline_at - timedelta(seconds=policy.repair.leave_seconds))
    return until if until > opened_at else None


class UnmanagedPodAction(StrEnum):
    """What is done about a pod that is not ours before its node is repaired."""

    EVICT = "EVICT"
    """Within its disruption budget, again and again until the deadline."""
    LEAVE = "LEAVE"
    """It goes on until the machine goes."""
    ASK = "ASK"
    """A person decides."""


class UnmanagedPodDecision(Value):
    """What is done about one such pod, and why."""

    act: UnmanagedPodAction
    reason: str


def drain_deadline(fault: Fault, *, opened_at: datetime, deadline_at: datetime | None, policy: Policy) -> datetime:
    """Return until when disruption budgets and graces of others are respected before a repair."""
    seconds = fault.drain_seconds if fault.drain_seconds >= 0 else policy.repair.unmanaged_drain_seconds
    until = opened_at + timedelta(seconds=math.ceil(seconds * policy.repair.drain_scale))
    return until if deadline_at is None else min(until, deadline_at)


def decide_unmanaged_pod(
    pod: UnmanagedPod, fault: Fault, *, until: datetime, has_deadline: bool, policy: Policy, now: datetime
) -> UnmanagedPodDecision:
    """Decide what to do with a pod outside Evenkeel on a node before its repair.

    Args:
        pod: The pod.
        fault: What is wrong with the node.
        until: `drain_deadline`.
        has_deadline: Whether the machine goes by itself.
        policy: Whether what is still there after that ends with the node.
        now: The time.
    """
    if now < until:
        if pod.recreation is PodRecreation.BY_OWNER:
            return UnmanagedPodDecision(
                act=UnmanagedPodAction.EVICT, reason=f"{pod.label} is evicted; its owner starts it on another node."
            )
        whose = (
            "HyperPod restarts it" if pod.recreation is PodRecreation.BY_HYPERPOD else "no controller would restart it"
        )
        return UnmanagedPodDecision(
            act=UnmanagedPodAction.LEAVE, reason=f"{pod.label} keeps running until the repair: {whose}."
        )
    if has_deadline or fault.drain_seconds in _AT_ONCE or policy.repair.ends_unmanaged_pods:
        return UnmanagedPodDecision(act=UnmanagedPodAction.LEAVE, reason=f"{pod.label} ends with the node.")
    if pod.recreation is PodRecreation.BY_HYPERPOD:
        return UnmanagedPodDecision(
            act=UnmanagedPodAction.LEAVE, reason=f"{pod.label} ends with the node; HyperPod restarts it."
        )
    return UnmanagedPodDecision(
        act=UnmanagedPodAction.ASK, reason=f"{pod.label} still runs, and the fault can wait for a person."
    )


_AT_ONCE = (0, 120)
"""The drain classes `now` and `notice`."""
