"""The rungs of the repair ladder: which have been used up, which is next, and whether the node has rebooted."""

from datetime import datetime, timedelta

from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery.plan import NodeOwner
from evenkeel.domain.recovery.repair_facts import RepairFacts
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.recovery.repair_requests import (
    ACCEPTED_ANSWERS,
    DIAGNOSE,
    REBOOT,
    RepairAnswer,
    RepairRequest,
    evidence_of_effect,
    may_have_effect,
)

_OWNERS_OUTSIDE_HYPERPOD = frozenset({NodeOwner.KARPENTER, NodeOwner.NODE_GROUP})


def find_first_open_rung(
    facts: RepairFacts, policy: RepairPolicy, *, allows_reboot: bool
) -> tuple[str, list[tuple[str, str]]]:
    """Return the next rung, empty if none is left, and why each other rung is not chosen."""
    skipped_rungs: list[tuple[str, str]] = []
    for rung in facts.ladder:
        if rung == DIAGNOSE and facts.has_failed_validation_since(facts.opened_at):
            skipped_rungs.append((DIAGNOSE, "the node already failed validation"))
        elif rung == REBOOT and facts.owner in _OWNERS_OUTSIDE_HYPERPOD:
            skipped_rungs.append((REBOOT, "Evenkeel reboots only HyperPod nodes"))
        elif rung == REBOOT and facts.returns >= policy.lemon_returns:
            skipped_rungs.append(
                (REBOOT, f"the node recently returned to service {count_of(facts.returns, 'time')} and failed again")
            )
        elif rung == REBOOT and _are_reboots_used_up(facts):
            skipped_rungs.append((REBOOT, "a reboot was already tried"))
        elif rung == REBOOT and not allows_reboot:
            skipped_rungs.append((REBOOT, "the node has already rebooted since its latest fault signal"))
        elif not _is_rung_used_up(facts, rung):
            later = facts.ladder[facts.ladder.index(rung) + 1 :]
            return rung, [*skipped_rungs, *((later_rung, f"{rung} comes first and is quicker") for later_rung in later)]
        else:
            skipped_rungs.append((rung, "already tried"))
    return "", skipped_rungs


def may_repeat_rung(facts: RepairFacts, rung: str) -> bool:
    """Whether the rung may be requested again: there was one request, without a reply and without any effect."""
    requests = [
        request
        for request in facts.requests
        if request.rung == rung and request.answer not in (RepairAnswer.NOT_NOW, RepairAnswer.FAILED)
    ]
    without_effect = [
        request
        for request in requests
        if request.answer in ("", RepairAnswer.UNKNOWN)
        and not evidence_of_effect(request, facts.slot_state, facts.progress)
    ]
    return len(requests) == len(without_effect) == 1


def explain_rung(facts: RepairFacts, rung: str) -> str:
    """Return why a rung is chosen, as one sentence."""
    name = facts.fault_traits.name
    if rung == DIAGNOSE:
        return f"{name}: Evenkeel validates the node before it treats it as broken."
    if rung == REBOOT:
        return f"{name}: a reboot may clear the fault, is quickest and keeps the node."
    if facts.owner is NodeOwner.KARPENTER:
        return f"{name}: Karpenter drains and terminates the node."
    if facts.group is not None:
        return f"{name}: the Auto Scaling group of the node replaces it."
    if REBOOT in facts.ladder:
        return f"{name}: a reboot did not help or would not last, so Evenkeel replaces the node."
    if REBOOT in facts.fault_traits.ladder:
        return f"{name}: HyperPod asks for a replacement."
    return f"{name}: a reboot does not clear this fault, so Evenkeel replaces the node."


def _is_rung_used_up(facts: RepairFacts, rung: str) -> bool:
    """Whether this incident has used up a rung: one request took effect, or two failed or showed no effect."""
    requests = [
        request for request in facts.requests if request.rung == rung and request.requested_at >= facts.opened_at
    ]
    if any(
        request.answer in ACCEPTED_ANSWERS
        or (
            request.answer in ("", RepairAnswer.UNKNOWN)
            and evidence_of_effect(request, facts.slot_state, facts.progress)
        )
        for request in requests
    ):
        return True
    return (
        len([request for request in requests if request.answer in (RepairAnswer.FAILED, RepairAnswer.UNKNOWN, "")]) > 1
    )


def _are_reboots_used_up(facts: RepairFacts) -> bool:
    """Whether this incident used its reboot, or earlier reboots count as recurrences by the fault's limits."""
    if _is_rung_used_up(facts, REBOOT):
        return True
    fault = facts.fault_traits
    since = facts.now - timedelta(hours=fault.recur_window_hours)
    earlier = [
        request
        for request in facts.requests
        if request.rung == REBOOT and request.answer in ACCEPTED_ANSWERS and request.requested_at >= since
    ]
    return 0 < fault.recur_count <= len(earlier) + 1


def find_boot_after_fault(facts: RepairFacts) -> datetime | None:
    """Return when the node last became Ready or NotReady, if it has booted since its latest fault signal; else None.

    A person can have rebooted it, or Evenkeel before the tables were restored to an earlier time. The boot id alone
    does not show whether the latest signal is from before the boot.
    """
    node = facts.slot_state.original.node
    if node is None or facts.last_fault_at is None or not has_rebooted_since_opening(facts):
        return None
    changed_at = node.ready_since or node.not_ready_since
    return changed_at if changed_at is not None and changed_at > facts.last_fault_at else None


def has_rebooted_since_opening(facts: RepairFacts) -> bool:
    """Whether the node rebooted between the start of the incident and Evenkeel's first decision."""
    node, boot_id_before = facts.slot_state.original.node, facts.boot_id_at_opening
    return node is not None and bool(boot_id_before) and bool(node.boot_id) and node.boot_id != boot_id_before


def has_evenkeel_rebooted(facts: RepairFacts) -> bool:
    """Whether the node rebooted since a request of this incident, and has not failed a validation since."""
    reboots = [request for request in facts.requests if request.rung == REBOOT and may_have_effect(request)]
    if not reboots or reboots[-1].requested_at < facts.opened_at:
        return False
    return has_rebooted(facts, reboots[-1]) and not facts.has_failed_validation_since(reboots[-1].requested_at)


def has_rebooted(facts: RepairFacts, last_request: RepairRequest) -> bool:
    """Whether the boot id of the node differs from its boot id at the request."""
    node = facts.slot_state.original.node
    return (
        node is not None and bool(last_request.boot_id) and bool(node.boot_id) and node.boot_id != last_request.boot_id
    )
