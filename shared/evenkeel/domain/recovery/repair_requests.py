"""Repair requests to the provider, and their results: the deadline, the effects and the failure of a request."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.health.incidents import RepairProgress
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.recovery.node_slot import DEEP_CHECK_RUNNING, RUNNING_STATUS, SlotState
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.values import Instant, Value

DIAGNOSE, REBOOT, REPLACE = "diagnose", "reboot", "replace"
WAIT_FOR_HYPERPOD, WAIT_FOR_KARPENTER, WAIT_FOR_NODE_GROUP, WAIT_FOR_CONTROLLER = (
    "owner",
    "karpenter",
    "node_group",
    "controller",
)
"""Rungs without a request by Evenkeel: HyperPod (`owner`), Karpenter, EKS for a node group, or another controller
repairs. The recorded request only records the time from which Evenkeel waits."""
WAIT_RUNGS = (WAIT_FOR_HYPERPOD, WAIT_FOR_KARPENTER, WAIT_FOR_NODE_GROUP, WAIT_FOR_CONTROLLER)


class RepairAnswer(StrEnum):
    """The provider's answer to a reboot or replace request for one node."""

    ACCEPTED = "ACCEPTED"
    IN_USE = "IN_USE"
    """InstanceIdInUse: an operation on the node already runs. After a lost reply this means success."""
    NOT_NOW = "NOT_NOW"
    """InvalidInstanceStatus: request it again later."""
    NO_SUCH_NODE = "NO_SUCH_NODE"
    """InstanceIdNotFound: the node no longer exists, so the request is obsolete."""
    FAILED = "FAILED"
    """InternalServerError for this node. The request may be repeated once."""
    UNKNOWN = "UNKNOWN"
    """No reply, or the reply does not list the node: look for effects, do not repeat the request."""


class RepairRequest(Value):
    """A repair request to the provider. It is recorded before the call; its answer is added after the call."""

    rung: str
    """`reboot` or `replace`."""
    life: NodeLife
    boot_id: str
    """Boot id of the node before the call. Another boot id later shows that the request took effect."""
    status_before: str = ""
    """Status of the node before the call, as HyperPod or its Auto Scaling group reports it."""
    requested_at: Instant
    incident_id: str = ""
    group: str = ""
    """Auto Scaling group of the node; empty for other nodes."""
    answer: str = ""
    """A `RepairAnswer`. Empty until the reply arrives, and after a crash: look for effects before a repetition."""


ACCEPTED_ANSWERS = (RepairAnswer.ACCEPTED, RepairAnswer.IN_USE, RepairAnswer.NO_SUCH_NODE)
_ANSWERS_WITHOUT_EFFECT = (RepairAnswer.NOT_NOW, RepairAnswer.FAILED)

NO_CAPACITY = "insufficient_capacity"
FAILURES = ("reboot_failed", "replacement_failed", NO_CAPACITY)
_PROGRESS_CODES = ("reboot_in_progress", "replacement_started", "terminating", "provisioned")
"""Codes of reported failures, and codes of reported progress."""
_IDLE_STATUSES = (RUNNING_STATUS, DEEP_CHECK_RUNNING, "Failure", "")
"""Provider statuses in which HyperPod does not repair a node."""


def request_deadline(
    request: RepairRequest,
    policy: RepairPolicy,
    slot_state: SlotState | None = None,
    progress: tuple[RepairProgress, ...] = (),
) -> datetime:
    """Return until when Evenkeel waits for the node after a repair request.

    After a request without a reply, the wait is shorter. If another owner repairs, the wait is short while that owner
    does nothing, and long once it has acted.

    Args:
        request: The request, or the entry that records since when Evenkeel waits for another node owner.
        policy: The deadlines.
        slot_state: The node slot now. Only the repair by another owner reads it.
        progress: Repair steps that the provider reported, oldest first. For another owner, those of `reports_of_owner`.
    """
    if request.rung == WAIT_FOR_KARPENTER:
        return request.requested_at + timedelta(seconds=policy.karpenter_deadline_seconds)
    if request.rung == WAIT_FOR_NODE_GROUP:
        return request.requested_at + timedelta(seconds=policy.owner_deadline_seconds)
    if request.rung == WAIT_FOR_CONTROLLER:
        return request.requested_at + timedelta(seconds=policy.controller_deadline_seconds)
    if request.rung == WAIT_FOR_HYPERPOD:
        if slot_state is None or not has_owner_acted(request, slot_state, progress):
            return request.requested_at + timedelta(seconds=policy.takeover_seconds)
        since = max([request.requested_at, *(repair_progress.at for repair_progress in progress[-1:])])
        return since + timedelta(seconds=policy.owner_deadline_seconds)
    if request.answer in ("", RepairAnswer.UNKNOWN):
        return request.requested_at + timedelta(seconds=policy.reconcile_after_seconds)
    seconds = policy.replace_deadline_seconds if request.rung == REPLACE else policy.reboot_deadline_seconds
    return request.requested_at + timedelta(seconds=seconds)


def may_have_effect(request: RepairRequest) -> bool:
    """Whether a request of Evenkeel may have started a repair. An entry that records a wait never does."""
    return request.rung not in WAIT_RUNGS and request.answer not in _ANSWERS_WITHOUT_EFFECT


def reports_of_owner(
    requests: Sequence[RepairRequest], progress: tuple[RepairProgress, ...]
) -> tuple[RepairProgress, ...]:
    """Return the reports that can be about the repair of the awaited owner.

    If Evenkeel requested a repair before that wait, earlier reports are about the repair that Evenkeel requested.

    Args:
        requests: The requests for the node. The last one is the entry that records the wait.
        progress: The reports since the incident opened, oldest first.
    """
    wait = requests[-1]
    if not any(request.incident_id == wait.incident_id and may_have_effect(request) for request in requests):
        return progress
    return tuple(repair_progress for repair_progress in progress if repair_progress.at >= wait.requested_at)


def evidence_of_effect(request: RepairRequest, slot_state: SlotState, progress: tuple[RepairProgress, ...] = ()) -> str:
    """Return the evidence that a request took effect, as a clause; empty if there is none."""
    if slot_state.replacement is not None:
        return "another node holds the slot"
    node, provider_node = slot_state.original.node, slot_state.original.provider_node
    if node and request.boot_id and node.boot_id and node.boot_id != request.boot_id:
        return "the node rebooted since"
    if provider_node and provider_node.status not in (RUNNING_STATUS, request.status_before):
        return f"HyperPod reports {provider_node.status}"
    if not slot_state.original.is_listed:
        return "no control plane lists the node any more"
    evidence = next(
        (
            repair_progress
            for repair_progress in progress
            if repair_progress.at >= request.requested_at and repair_progress.code in (*_PROGRESS_CODES, *FAILURES)
        ),
        None,
    )
    return f"HyperPod reported {evidence.code}" if evidence else ""


def find_failure_since(progress: tuple[RepairProgress, ...], since: datetime) -> RepairProgress | None:
    """Return the failure that the provider reported since a time; None if it reported none, or later progress."""
    later = [
        repair_progress
        for repair_progress in progress
        if repair_progress.at >= since and repair_progress.code in (*FAILURES, *_PROGRESS_CODES)
    ]
    return later[-1] if later and later[-1].code in FAILURES else None


def has_owner_acted(request: RepairRequest, slot_state: SlotState, progress: tuple[RepairProgress, ...]) -> bool:
    """Whether anything shows that the other node owner has started a repair."""
    return bool(progress) or is_repair_under_way(slot_state, progress) or bool(evidence_of_effect(request, slot_state))


def is_repair_under_way(slot_state: SlotState, progress: tuple[RepairProgress, ...]) -> bool:
    """Whether HyperPod repairs the node now, as its status or its latest report shows."""
    provider_node = slot_state.original.provider_node
    is_changing = provider_node is not None and provider_node.status not in _IDLE_STATUSES
    return is_changing or (bool(progress) and progress[-1].code in _PROGRESS_CODES)
