"""Decide whether Evenkeel may terminate a node of an EC2 Auto Scaling group. Pure.

    member of this cluster's group? ──▶ request under way? ──▶ EKS repairs? ──▶ group able to replace? ──▶ TERMINATE
      no: REFUSE                          yes: AWAIT            yes: WATCH       no: REFUSE, LATER

Every fact comes from the APIs of EC2 Auto Scaling and EKS. A label of the node proves nothing: many users can write it.
"""

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum

from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.recovery.repair_requests import (
    ACCEPTED_ANSWERS,
    REPLACE,
    WAIT_FOR_NODE_GROUP,
    RepairAnswer,
    RepairRequest,
)
from evenkeel.domain.values import Instant, Value

IN_SERVICE = "InService"
_ENDING = ("Terminating", "Terminating:Wait", "Terminating:Proceed", "Terminated")
_STARTING = (
    "Pending",
    "Pending:Wait",
    "Pending:Proceed",
    "ReplacingRootVolume",
    "ReplacingRootVolume:Wait",
    "ReplacingRootVolume:Proceed",
    "RootVolumeReplaced",
)
"""Lifecycle states that an instance leaves by itself. All other states, such as Standby, need a person."""
_REFUSED = (RepairAnswer.NOT_NOW, RepairAnswer.FAILED)
_NEEDED_PROCESSES = ("Launch", "Terminate")
"""Processes of the group that a replacement needs. A person who suspends one of them stops replacements."""


class NodeGroup(Value):
    """An EC2 Auto Scaling group that launches nodes."""

    name: str
    cluster: str
    """EKS cluster that the group's tags name; empty if they name none."""
    nodegroup: str = ""
    """Managed node group that owns the group; empty if a user manages the group."""
    desired: int
    """Number of instances that the group keeps."""
    in_service: int
    """Number of instances that are InService now."""
    suspended: tuple[str, ...] = ()
    """Suspended processes, such as `Launch`."""
    has_auto_repair: bool = False
    """Whether EKS node auto-repair is on for the managed node group."""


class GroupMember(Value):
    """Membership of one instance in its group."""

    instance_id: str
    group: NodeGroup
    lifecycle: str
    """Lifecycle state, as EC2 Auto Scaling spells it."""
    is_protected: bool = False
    """Whether the instance is protected from scale-in."""


class GroupRepairFacts(Value):
    """Facts for the decision whether an Auto Scaling group replaces its node."""

    instance_id: str
    """Instance of the faulty node, from its provider ID."""
    cluster: str
    member: GroupMember | None
    """Membership of the instance now; None if it is in no group."""
    group: NodeGroup | None = None
    """The recorded group of the instance, read again; None before the first request or watch."""
    requested_at: Instant | None = None
    """Time at which Evenkeel requested the termination, or first saw that it had started."""
    watched_at: Instant | None = None
    """Time since which Evenkeel waits for EKS node auto-repair."""
    now: Instant


def group_repair_facts(
    instance_id: str,
    cluster: str,
    member: GroupMember | None,
    group: NodeGroup | None,
    requests: Sequence[RepairRequest],
    *,
    now: Instant,
) -> GroupRepairFacts:
    """Return the facts, with the times of the recorded requests.

    A request without a reply counts once the instance has left `InService`.

    Args:
        instance_id: Instance of the faulty node.
        cluster: Cluster of the incident.
        member: Membership of the instance now; None if it is in no group.
        group: The recorded group of the instance, read again.
        requests: Requests and wait entries for this node life, oldest first.
        now: The current time.
    """
    is_serving = member is not None and member.lifecycle == IN_SERVICE
    request_times = [
        request.requested_at
        for request in requests
        if (
            request.rung == REPLACE
            and (request.answer in ACCEPTED_ANSWERS or not (is_serving or request.answer in _REFUSED))
        )
        or (request.rung == WAIT_FOR_NODE_GROUP and request.status_before in _ENDING)
    ]
    watched_times = [
        request.requested_at
        for request in requests
        if request.rung == WAIT_FOR_NODE_GROUP and request.status_before not in _ENDING
    ]
    return GroupRepairFacts(
        instance_id=instance_id,
        cluster=cluster,
        member=member,
        group=group,
        requested_at=request_times[0] if request_times else None,
        watched_at=watched_times[0] if watched_times else None,
        now=now,
    )


class GroupAction(StrEnum):
    """Next step for a faulty node of a group."""

    TERMINATE = "TERMINATE"
    """Terminate this instance. The group keeps its desired capacity and launches another instance."""
    AWAIT = "AWAIT"
    """The instance ends or has ended: wait for the group's new node."""
    WATCH = "WATCH"
    """EKS repairs the node: drain its jobs, then wait."""
    LATER = "LATER"
    """The instance is changing: decide again soon."""
    REPLACED = "REPLACED"
    """The instance is gone, and the group is complete again."""
    ASK_PERSON = "ASK_PERSON"
    """The deadline passed. Evenkeel terminates no second instance."""
    REFUSE = "REFUSE"
    """Evenkeel must not terminate this instance: a person must act."""


class GroupDecision(Value):
    """Next step for a faulty node of a group, with its reason."""

    action: GroupAction
    reason: str


def choose_group_repair(facts: GroupRepairFacts, policy: RepairPolicy) -> GroupDecision:
    """Choose the next step for a faulty node of an Auto Scaling group.

    At most one instance is terminated: a recorded request is awaited and never repeated for another instance.
    """
    group = facts.member.group if facts.member else facts.group
    if group is None:
        return _decision_of(GroupAction.REFUSE, f"{facts.instance_id} is in no Auto Scaling group.")
    if facts.member is not None and facts.member.instance_id != facts.instance_id:
        reason = f"EC2 Auto Scaling describes {facts.member.instance_id}, not {facts.instance_id}."
        return _decision_of(GroupAction.REFUSE, reason)
    if group.cluster != facts.cluster:
        belongs = f"belongs to cluster {group.cluster}" if group.cluster else "has no tag of a cluster"
        reason = f"Auto Scaling group {group.name} {belongs}; the node is in cluster {facts.cluster}."
        return _decision_of(GroupAction.REFUSE, reason)
    if facts.requested_at is not None:
        return _decide_after_request(facts, group, facts.requested_at, policy)
    if facts.watched_at is not None or group.has_auto_repair:
        return _decide_while_eks_repairs(facts, group, facts.watched_at or facts.now, policy)
    if facts.member is None:
        reason = f"{facts.instance_id} left Auto Scaling group {group.name} without a request from Evenkeel."
        return _decision_of(GroupAction.REFUSE, reason)
    return _decide_before_request(facts.member, group)


def _decide_before_request(member: GroupMember, group: NodeGroup) -> GroupDecision:
    """Decide what to do while the instance is in its group and nothing is requested."""
    name = member.instance_id
    if member.lifecycle in _ENDING:
        return _decision_of(
            GroupAction.AWAIT, f"{name} is already {member.lifecycle} in Auto Scaling group {group.name}."
        )
    if member.lifecycle in _STARTING:
        return _decision_of(GroupAction.LATER, f"{name} is {member.lifecycle} in Auto Scaling group {group.name}.")
    if member.lifecycle != IN_SERVICE:
        reason = f"{name} is {member.lifecycle} in Auto Scaling group {group.name}, so a person must act."
        return _decision_of(GroupAction.REFUSE, reason)
    if member.is_protected:
        reason = f"{name} is protected from scale-in. Remove the protection to let Evenkeel terminate the node."
        return _decision_of(GroupAction.REFUSE, reason)
    suspended_processes = [process for process in _NEEDED_PROCESSES if process in group.suspended]
    if suspended_processes:
        names = " and ".join(suspended_processes)
        reason = (
            f"Auto Scaling group {group.name} has suspended {names}. Resume {names} to let Evenkeel replace {name}."
        )
        return _decision_of(GroupAction.REFUSE, reason)
    if group.in_service > group.desired:
        reason = f"Auto Scaling group {group.name} is above its desired capacity and would not replace {name}."
        return _decision_of(GroupAction.LATER, reason)
    return _decision_of(
        GroupAction.TERMINATE, f"Auto Scaling group {group.name} replaces {name} after its termination."
    )


def _decide_after_request(
    facts: GroupRepairFacts, group: NodeGroup, since: Instant, policy: RepairPolicy
) -> GroupDecision:
    """Decide after Evenkeel requested the termination, with or without a reply."""
    if _is_replaced(facts, group):
        return _decision_of(GroupAction.REPLACED, f"Auto Scaling group {group.name} is complete again.")
    if facts.now < since + timedelta(seconds=policy.replace_deadline_seconds):
        return _decision_of(GroupAction.AWAIT, f"Auto Scaling group {group.name} replaces {facts.instance_id}.")
    minutes = policy.replace_deadline_seconds // 60
    if facts.member is not None:
        reason = f"{facts.instance_id} is still {facts.member.lifecycle} {minutes} min after the request to terminate."
        return _decision_of(GroupAction.ASK_PERSON, reason)
    reason = (
        f"Auto Scaling group {group.name} has {group.in_service} of {count_of(group.desired, 'instance')} "
        f"{minutes} min after the termination. Check its scaling activities for missing capacity."
    )
    return _decision_of(GroupAction.ASK_PERSON, reason)


def _decide_while_eks_repairs(
    facts: GroupRepairFacts, group: NodeGroup, since: Instant, policy: RepairPolicy
) -> GroupDecision:
    """Decide while EKS repairs the node. Evenkeel never takes over, as EKS may start its repair at any time."""
    if _is_replaced(facts, group):
        return _decision_of(GroupAction.REPLACED, f"EKS replaced {facts.instance_id} in node group {group.nodegroup}.")
    if facts.now < since + timedelta(seconds=policy.owner_deadline_seconds):
        reason = f"EKS node auto-repair is on for node group {group.nodegroup}: Evenkeel waits."
        return _decision_of(GroupAction.WATCH, reason)
    minutes = policy.owner_deadline_seconds // 60
    reason = (
        f"EKS node auto-repair of node group {group.nodegroup} did not replace {facts.instance_id} in {minutes} min."
    )
    return _decision_of(GroupAction.ASK_PERSON, reason)


def _is_replaced(facts: GroupRepairFacts, group: NodeGroup) -> bool:
    return facts.member is None and group.in_service >= group.desired


def _decision_of(action: GroupAction, reason: str) -> GroupDecision:
    return GroupDecision(action=action, reason=reason)
