"""The repair ladder: choose the next repair action for one node.

    facts ─▶ allowed? ────▶ request under way? ──▶ healthy? ──▶ next rung ──▶ blocked? ──▶ DIAGNOSE
             no: STAND_DOWN  yes: AWAIT            HEALTHY      none left:    LATER, HOLD,   REBOOT
                                                                ASK_PERSON    BLOCKED        REPLACE

A rung is used up when its request was accepted and its deadline passed, or when the node came back and is still faulty.

Evenkeel does not simply repeat a request without a reply. It first waits for effects of the request. Any effect counts
as acceptance. A failure that the provider reports, such as missing capacity, ends the wait at once.
"""

from datetime import datetime, timedelta

from evenkeel.domain.health.incidents import RepairProgress
from evenkeel.domain.plurals import count_of
from evenkeel.domain.recovery.guardrails import (
    ALLOWED,
    REPAIRS,
    GuardrailAction,
    GuardrailName,
    check_guardrails,
)
from evenkeel.domain.recovery.holds import Hold
from evenkeel.domain.recovery.node_groups import GroupAction, GroupRepairFacts, choose_group_repair
from evenkeel.domain.recovery.other_controllers import ControllerMark
from evenkeel.domain.recovery.plan import QUARANTINE_RUNGS, NodeOwner
from evenkeel.domain.recovery.repair_facts import Repair, RepairDecision, RepairFacts, decision_of
from evenkeel.domain.recovery.repair_policy import RepairPolicy
from evenkeel.domain.recovery.repair_requests import (
    ACCEPTED_ANSWERS,
    FAILURES,
    NO_CAPACITY,
    REBOOT,
    REPLACE,
    WAIT_FOR_CONTROLLER,
    WAIT_FOR_HYPERPOD,
    WAIT_FOR_KARPENTER,
    WAIT_FOR_NODE_GROUP,
    WAIT_RUNGS,
    RepairAnswer,
    RepairRequest,
    evidence_of_effect,
    find_failure_since,
    has_owner_acted,
    is_repair_under_way,
    may_have_effect,
    reports_of_owner,
    request_deadline,
)
from evenkeel.domain.recovery.repair_rungs import (
    explain_rung,
    find_boot_after_fault,
    find_first_open_rung,
    has_evenkeel_rebooted,
    has_rebooted,
    has_rebooted_since_opening,
    may_repeat_rung,
)

_MAX_REFUSALS = 10


_ENDS_WORK = (Repair.DIAGNOSE, Repair.REBOOT, Repair.REPLACE)


def choose_repair(facts: RepairFacts, policy: RepairPolicy) -> RepairDecision:
    """Choose the next repair action for one node.

    While a hold is in force, an action that would stop jobs is postponed. This also holds if no repair follows, because
    no later step stops these jobs.
    """
    decision = _choose_action(facts, policy)
    if decision.drains and facts.hold is not None:
        return decision_of(Repair.HOLD, f"The node's jobs cannot move yet. {_hold_text(facts.hold)}")
    if decision.action in _ENDS_WORK and facts.unreadable_attempts:
        names = ", ".join(facts.unreadable_attempts)
        reason = f"{names} may use the node, but this release cannot read the rows: deploy the newer release."
        return decision_of(Repair.ASK_PERSON, reason, (decision.action.lower(), "it would end this work unsaved"))
    if decision.rung and facts.has_unreadable_row:
        reason = "This release cannot read the node's row: deploy the newer release."
        return decision_of(Repair.ASK_PERSON, reason, (decision.rung, "a cause that the node shares is unknown"))
    return decision


def _choose_action(facts: RepairFacts, policy: RepairPolicy) -> RepairDecision:
    stand_down = _decide_to_stand_down(facts)
    if stand_down is not None:
        return stand_down
    last_request = facts.requests[-1] if facts.requests and facts.requests[-1].requested_at >= facts.opened_at else None
    if facts.slot_state.replacement is not None:
        return _decide_with_replacement(facts, last_request, policy)
    failed_at = facts.deep_check_failed_at
    if failed_at is not None and (last_request is None or last_request.requested_at < failed_at):
        return _decide_after_deep_check(facts, policy)
    if last_request is not None:
        return _decide_after_request(facts, last_request, policy)
    if not facts.slot_state.original.is_listed:
        return _decide_without_node(facts, facts.opened_at, policy)
    return _decide_before_request(facts, policy)


def _decide_to_stand_down(facts: RepairFacts) -> RepairDecision | None:
    """Return the decision to leave the node alone; None if Evenkeel may repair it."""
    if facts.not_allowed:
        return decision_of(Repair.STAND_DOWN, facts.not_allowed)
    if facts.lease_holder:
        return decision_of(Repair.STAND_DOWN, f"{facts.lease_holder} already repairs this node slot.")
    if facts.opt_out_reason:
        return decision_of(Repair.STAND_DOWN, facts.opt_out_reason)
    if facts.is_manual_cordon:
        return decision_of(Repair.STAND_DOWN, "A person cordoned this node, so Evenkeel leaves it alone.").replace(
            drains=True
        )
    return None


def _decide_before_request(facts: RepairFacts, policy: RepairPolicy) -> RepairDecision:
    """Decide while the node is there and this incident has made no request."""
    pending_request = _find_pending_request(facts, policy)
    if pending_request is not None:
        remaining_seconds = max(1, round((request_deadline(pending_request, policy) - facts.now).total_seconds()))
        requester = pending_request.incident_id or "an earlier incident"
        reason = f"The {pending_request.rung} that {requester} requested may still take effect."
        return RepairDecision(
            action=Repair.PAUSE, reason=reason, wait_seconds=min(remaining_seconds, policy.retry_seconds)
        )
    if facts.controller is not None:
        return _leave_to_controller(facts.controller)
    if facts.owner is NodeOwner.CONTROLLER:
        reason = "Another controller removed its mark from this node: Evenkeel waits until the node passes validation."
        return decision_of(Repair.AWAIT, reason).replace(awaited_owner=WAIT_FOR_CONTROLLER)
    if _has_recovered_by_itself(facts, policy):
        return decision_of(
            Repair.HEALTHY, "The node is Ready again and shows no other fault: it only needs validation."
        )
    owner_decision = _leave_to_owner(facts, policy)
    if owner_decision is not None:
        return owner_decision
    running_until = _jobs_may_run_until(facts)
    if running_until is not None:
        return decision_of(Repair.LATER, _running_jobs_text(running_until))
    booted_at = find_boot_after_fault(facts)
    if booted_at is not None and find_first_open_rung(facts, policy, allows_reboot=True)[0] == REBOOT:
        return _decide_after_reboot(facts, booted_at, policy)
    return _choose_next_rung(facts, policy, why_failed="")


def _leave_to_owner(facts: RepairFacts, policy: RepairPolicy) -> RepairDecision | None:
    """Return the decision if the node's owner repairs it first, or if it has no owner; None if Evenkeel repairs it."""
    if facts.owner is NodeOwner.NONE or (facts.owner is NodeOwner.NODE_GROUP and facts.group is None):
        reason = "Nothing is known to replace this node: it stays out of service until a person acts."
        return decision_of(Repair.ASK_PERSON, reason).replace(drains=True)
    has_failed = facts.has_failed_validation_since(facts.opened_at)
    is_repaired = has_rebooted_since_opening(facts) and facts.validity.is_valid and not has_failed
    if facts.owner is NodeOwner.HYPERPOD and is_repaired:
        return decision_of(Repair.HEALTHY, "HyperPod has already rebooted the node.")
    if facts.owner is NodeOwner.HYPERPOD:
        return _leave_to_hyperpod(facts)
    if facts.owner is NodeOwner.KARPENTER and policy.karpenter_repairs:
        reason = "Karpenter repairs this node itself: Evenkeel waits."
        return decision_of(Repair.AWAIT, reason).replace(awaited_owner=WAIT_FOR_KARPENTER)
    return None


def _leave_to_hyperpod(facts: RepairFacts, why_failed: str = "") -> RepairDecision:
    """Decide to wait for HyperPod's own repair, which stops the work on the node without a warning.

    So Evenkeel stops the jobs first if a hold delayed their stop until a repair by Evenkeel. During a hold they stay.
    """
    until = facts.work_may_run_until
    may_run = facts.leaves_work or (until is not None and facts.now < until)
    reason = "HyperPod repairs this node itself: Evenkeel waits and requests nothing."
    return decision_of(Repair.AWAIT, f"{why_failed}{reason}").replace(
        awaited_owner=WAIT_FOR_HYPERPOD, drains=facts.hold is None and not may_run
    )


def _leave_to_controller(mark: ControllerMark) -> RepairDecision:
    """Decide while another controller has marked the node. Evenkeel never repairs such a node itself."""
    if mark.has_given_up:
        reason = f"{mark.controller} gave up its repair of this node ({mark.mark}): a person must repair it."
        return decision_of(Repair.ASK_PERSON, reason).replace(drains=True)
    reason = f"{mark.controller} repairs this node ({mark.mark}): Evenkeel waits and requests nothing."
    return decision_of(Repair.AWAIT, reason).replace(awaited_owner=WAIT_FOR_CONTROLLER)


def _decide_after_controller(facts: RepairFacts, last_request: RepairRequest, policy: RepairPolicy) -> RepairDecision:
    """Decide while another controller repairs, or has removed its mark."""
    mark = facts.controller
    if mark is not None and mark.has_given_up:
        return _leave_to_controller(mark)
    if not facts.slot_state.original.is_listed:
        return _decide_without_node(facts, last_request.requested_at, policy)
    has_failed = facts.has_failed_validation_since(last_request.requested_at)
    if mark is None and facts.validity.is_valid and not has_failed:
        return decision_of(Repair.HEALTHY, "The other controller released the node: it only needs validation.")
    if facts.now < request_deadline(last_request, policy) and (mark is not None or not has_failed):
        progress = f"{mark.controller} repairs this node ({mark.mark})" if mark else "The node fails its validation"
        return decision_of(Repair.AWAIT, f"{progress}: Evenkeel waits.")
    minutes = round(policy.controller_deadline_seconds / 60)
    if mark is not None:
        reason = f"{mark.controller} has not repaired this node within {minutes} min ({mark.mark})."
    else:
        reason = f"Another controller released this node, but it fails its validation: {facts.validity.reason}"
    return decision_of(Repair.ASK_PERSON, reason, ("replace", "two repairs of one node would conflict"))


def _decide_with_replacement(
    facts: RepairFacts, last_request: RepairRequest | None, policy: RepairPolicy
) -> RepairDecision:
    """Decide when the slot already has a replacement node."""
    assert facts.slot_state.replacement
    name = facts.slot_state.replacement.instance_id
    requested_at = last_request.requested_at if last_request else facts.opened_at
    launched_at = (
        facts.slot_state.replacement.provider_node.launched_at
        if facts.slot_state.replacement.provider_node
        else requested_at
    )
    if facts.has_failed_validation_since(launched_at):
        reason = f"The replacement node {name} failed its validation: {facts.validity.reason}"
        return decision_of(
            Repair.ASK_PERSON, reason, ("replace", "a replacement that also fails points to another cause")
        )
    if facts.validity.is_valid:
        return decision_of(Repair.HEALTHY, f"The replacement node {name} is Ready.")
    deadline = max(requested_at, launched_at) + timedelta(seconds=policy.replace_deadline_seconds)
    if last_request and last_request.rung == WAIT_FOR_HYPERPOD:
        reports = reports_of_owner(facts.requests, facts.progress)
        deadline = max(deadline, request_deadline(last_request, policy, facts.slot_state, reports))
    if facts.now < deadline:
        return decision_of(Repair.AWAIT, f"The replacement node {name} is starting.")
    reason = f"The replacement node {name} does not become Ready: {facts.validity.reason}"
    return decision_of(Repair.ASK_PERSON, reason, ("replace", "a replacement that also fails points to another cause"))


def _decide_after_request(facts: RepairFacts, last_request: RepairRequest, policy: RepairPolicy) -> RepairDecision:
    """Decide after the last request of this incident."""
    if last_request.rung == WAIT_FOR_CONTROLLER:
        return _decide_after_controller(facts, last_request, policy)
    if last_request.rung in WAIT_RUNGS:
        return _decide_after_owner(facts, last_request, policy)
    failure = find_failure_since(facts.progress, last_request.requested_at)
    if failure is not None:
        return _decide_after_failure(facts, failure, policy)
    if not facts.slot_state.original.is_listed and (facts.owner is NodeOwner.KARPENTER or facts.has_karpenter):
        return decision_of(Repair.NOT_NEEDED, "The node is gone; Karpenter launches another if pods need it.")
    if facts.group is not None and facts.group.requested_at is not None:
        return _leave_to_group(facts, facts.group, policy) or decision_of(
            Repair.AWAIT, f"The {last_request.rung} is in progress."
        )
    if last_request.rung == REBOOT and has_rebooted(facts, last_request):
        return _decide_after_reboot(facts, last_request.requested_at, policy)
    if last_request.answer in ("", RepairAnswer.UNKNOWN):
        return _decide_without_reply(facts, last_request, policy)
    if last_request.answer in ACCEPTED_ANSWERS:
        if facts.now < request_deadline(last_request, policy):
            return decision_of(Repair.AWAIT, f"The {last_request.rung} is in progress.")
        return _choose_next_rung(
            facts, policy, why_failed=f"The provider accepted the {last_request.rung}, but the node did not come back."
        )
    if last_request.answer == RepairAnswer.NOT_NOW:
        return _choose_next_rung(
            facts, policy, why_failed="The provider was not ready for the request.", refused_request=last_request
        )
    return _choose_next_rung(
        facts, policy, why_failed="The request failed at the provider.", refused_request=last_request
    )


def _decide_after_reboot(facts: RepairFacts, rebooted_at: datetime, policy: RepairPolicy) -> RepairDecision:
    """Decide after the node rebooted.

    Args:
        facts: The facts of the decision.
        rebooted_at: Time of the reboot request of this incident; after another reboot, the time at which the node
            became Ready or NotReady.
        policy: The deadline of a reboot.
    """
    has_failed = facts.has_failed_validation_since(rebooted_at)
    if facts.validity.is_valid and not has_failed:
        return decision_of(Repair.HEALTHY, "The node rebooted and is Ready.")
    if facts.now < rebooted_at + timedelta(seconds=policy.reboot_deadline_seconds) and not has_failed:
        return decision_of(Repair.AWAIT, "The node rebooted and is starting.")
    if facts.validity.is_valid:
        return _choose_next_rung(facts, policy, why_failed="The node rebooted, but it failed its validation.")
    return _choose_next_rung(facts, policy, why_failed=f"The reboot did not clear the fault: {facts.validity.reason}")


def _decide_without_reply(facts: RepairFacts, last_request: RepairRequest, policy: RepairPolicy) -> RepairDecision:
    """Decide after a request without a reply: wait for its effect, and then as long as for an accepted request."""
    evidence = evidence_of_effect(last_request, facts.slot_state, facts.progress)
    if evidence:
        accepted_request = last_request.replace(answer=RepairAnswer.ACCEPTED)
        if facts.now < request_deadline(accepted_request, policy):
            return decision_of(
                Repair.AWAIT, f"The {last_request.rung} request got no reply but took effect: {evidence}."
            )
        return _choose_next_rung(
            facts, policy, why_failed=f"The {last_request.rung} request got no reply; the node is not back."
        )
    if facts.now < request_deadline(last_request, policy):
        return decision_of(
            Repair.AWAIT, f"The {last_request.rung} request got no reply: Evenkeel waits for evidence first."
        )
    return _choose_next_rung(
        facts, policy, why_failed=f"The {last_request.rung} request got no reply and had no visible effect."
    )


def _find_pending_request(facts: RepairFacts, policy: RepairPolicy) -> RepairRequest | None:
    """Return the request of an earlier incident that may still take effect; None if there is none."""
    requests = [
        request
        for request in facts.requests
        if request.rung not in WAIT_RUNGS and request.answer in (*ACCEPTED_ANSWERS, RepairAnswer.UNKNOWN, "")
    ]
    last_request = requests[-1] if requests else None
    if last_request is None or facts.now >= request_deadline(last_request, policy) or has_rebooted(facts, last_request):
        return None
    return last_request


def _decide_after_deep_check(facts: RepairFacts, policy: RepairPolicy) -> RepairDecision:
    """Decide after the node failed HyperPod's deep health check. HyperPod itself then reboots or replaces the node."""
    waits = [
        request
        for request in facts.requests
        if request.rung == WAIT_FOR_HYPERPOD and request.requested_at >= facts.opened_at
    ]
    if len(waits) >= policy.max_attempts:
        return decision_of(
            Repair.ASK_PERSON, f"The node failed its deep health check again, after {count_of(len(waits), 'repair')}."
        )
    reason = "The node failed its deep health check, and HyperPod repairs such nodes itself."
    return decision_of(Repair.AWAIT, reason, (REPLACE, "two repairs of one node would conflict")).replace(
        awaited_owner=WAIT_FOR_HYPERPOD
    )


def _decide_after_owner(facts: RepairFacts, last_request: RepairRequest, policy: RepairPolicy) -> RepairDecision:
    """Decide while another owner repairs. Evenkeel takes over only after that owner has made no attempt for long.

    Source: docs/ownership.md, "Who repairs a node".
    """
    owner = _AWAITED_OWNERS[last_request.rung]
    if not facts.slot_state.original.is_listed and (facts.owner is NodeOwner.KARPENTER or facts.has_karpenter):
        return decision_of(Repair.NOT_NEEDED, "The node is gone; Karpenter launches another if pods need it.")
    is_rebooted = has_rebooted(facts, last_request)
    has_failed = last_request.rung == WAIT_FOR_HYPERPOD and facts.has_failed_validation_since(last_request.requested_at)
    if facts.validity.is_valid and (is_rebooted or facts.has_recovered) and not has_failed:
        return decision_of(Repair.HEALTHY, f"{owner} repaired the node.")
    if facts.validity.is_valid and has_evenkeel_rebooted(facts):
        return decision_of(Repair.HEALTHY, "The node came back late from Evenkeel's reboot: it only needs validation.")
    if facts.validity.is_valid and is_rebooted:
        # HyperPod's agent finds no fault any more, so HyperPod makes no new attempt.
        return _choose_next_rung(facts, policy, why_failed=f"{owner} rebooted the node, but it failed its validation.")
    by_group = _leave_to_group(facts, facts.group, policy) if facts.group is not None else None
    if by_group is not None:
        return by_group
    progress = reports_of_owner(facts.requests, facts.progress)
    deadline = request_deadline(last_request, policy, facts.slot_state, progress)
    if facts.now < deadline:
        return decision_of(Repair.AWAIT, f"{owner} repairs this node itself: Evenkeel waits.")
    if facts.owner is not NodeOwner.KARPENTER and is_repair_under_way(facts.slot_state, progress):
        reason = "HyperPod's repair of this node takes longer than expected."
        return decision_of(
            Repair.ASK_PERSON, reason, ("replace", "HyperPod is still repairing, and two repairs would conflict")
        )
    failure = progress[-1] if progress and progress[-1].code in FAILURES else None
    if failure is not None and failure.code == NO_CAPACITY:
        return _decide_after_failure(facts, failure, policy)
    minutes = round((deadline - (progress[-1].at if progress else last_request.requested_at)).total_seconds() / 60)
    inaction = "did nothing" if not has_owner_acted(last_request, facts.slot_state, progress) else "made no new attempt"
    return _choose_next_rung(
        facts, policy, why_failed=f"{owner} {inaction} for {minutes} min, so Evenkeel takes over the repair."
    )


def _decide_after_failure(facts: RepairFacts, failure: RepairProgress, policy: RepairPolicy) -> RepairDecision:
    """Decide after the provider reported a failed repair. Another request does not help if capacity is missing."""
    report = f"HyperPod reported {failure.code}{f': {failure.message}' if failure.message else ''}."
    if failure.code == NO_CAPACITY:
        return decision_of(
            Repair.ASK_PERSON,
            f"{report} First check the zone, training plan and reservation of {facts.life.cluster}'s pool.",
            ("replace", "without capacity the next request would fail too"),
        )
    return _choose_next_rung(facts, policy, why_failed=report)


def _decide_without_node(facts: RepairFacts, since: datetime, policy: RepairPolicy) -> RepairDecision:
    """Decide after the node disappeared: wait for its replacement, if one will come."""
    if facts.owner is NodeOwner.NODE_GROUP:
        return decision_of(Repair.NOT_NEEDED, "The node is gone; its Auto Scaling group keeps its number of nodes.")
    if facts.has_karpenter:
        return decision_of(Repair.NOT_NEEDED, "The node is gone; Karpenter launches another if pods need it.")
    if facts.owner is not NodeOwner.KARPENTER and facts.now < since + timedelta(
        seconds=policy.replace_deadline_seconds
    ):
        return decision_of(Repair.AWAIT, "The node is gone; Evenkeel waits for its replacement.")
    return decision_of(Repair.NOT_NEEDED, "The node is gone, and no replacement came.")


def _has_recovered_by_itself(facts: RepairFacts, policy: RepairPolicy) -> bool:
    """Whether the node recovered without a repair.

    A node that was only NotReady has recovered when it is Ready. Other faults need a later recovery signal.
    """
    if not facts.validity.is_valid or facts.invalid_at is not None:
        return False
    if facts.returns >= policy.lemon_returns:
        return False  # the node looks healthy after each return, and then fails again
    return facts.has_recovered or facts.fault_key == "node:not_ready"


def _choose_next_rung(
    facts: RepairFacts, policy: RepairPolicy, *, why_failed: str, refused_request: RepairRequest | None = None
) -> RepairDecision:
    """Choose the next repair request, or the reason why there is none.

    Args:
        facts: The facts of the decision.
        policy: The limits.
        why_failed: Why the last step did not help, as a sentence; empty if there was none.
        refused_request: The last request, if the provider refused it.
    """
    prefix = f"{why_failed} " if why_failed else ""
    if facts.controller is not None:
        by_controller = _leave_to_controller(facts.controller)
        return by_controller.replace(reason=f"{prefix}{by_controller.reason}")
    if facts.owner is NodeOwner.CONTROLLER:
        reason = f"{prefix}Another controller has repaired this node: Evenkeel requests nothing."
        return decision_of(Repair.ASK_PERSON, reason, (REPLACE, "two repairs of one node would conflict"))
    end_of_ladder = _decide_end_of_ladder(facts, policy, prefix)
    if end_of_ladder is not None:
        return end_of_ladder
    by_group = _leave_to_group(facts, facts.group, policy) if facts.group is not None else None
    if by_group is not None:
        return by_group.replace(reason=f"{prefix}{by_group.reason}")
    is_left_to_hyperpod = facts.owner is NodeOwner.HYPERPOD or _does_hyperpod_repair(facts, policy)
    if is_left_to_hyperpod and not _has_waited_for_hyperpod(facts):
        return _leave_to_hyperpod(facts, prefix)
    rung, skipped_rungs = find_first_open_rung(facts, policy, allows_reboot=find_boot_after_fault(facts) is None)
    if not rung:
        return decision_of(
            Repair.ASK_PERSON, f"{prefix}No repair step is left for {facts.fault_traits.name}.", *skipped_rungs
        )
    if refused_request is not None and rung == refused_request.rung:
        ready_at = refused_request.requested_at + timedelta(seconds=policy.retry_seconds)
        if facts.now < ready_at:
            pause_seconds = max(1, round((ready_at - facts.now).total_seconds()))
            return RepairDecision(
                action=Repair.PAUSE,
                reason=f"{prefix}Evenkeel asks again in {pause_seconds} s.",
                wait_seconds=pause_seconds,
            )
    blocked_decision = _decide_blocked_rung(facts, policy, rung, prefix)
    if blocked_decision is not None:
        return blocked_decision
    return decision_of(Repair(rung.upper()), f"{prefix}{explain_rung(facts, rung)}", *skipped_rungs).replace(
        drains=True
    )


def _does_hyperpod_repair(facts: RepairFacts, policy: RepairPolicy) -> bool:
    """Whether HyperPod repairs the node now without a request by Evenkeel, as its status shows.

    NodeRecovery was Automatic when HyperPod began, or a person requested the repair. The status is
    also explained by a request of this incident, or by a recent one of an earlier incident. For example, a reboot can
    hang after the node has booted. A request from before the node returned to service explains nothing: the node was
    Running then.
    """
    since = min(facts.opened_at, facts.now - timedelta(seconds=policy.owner_deadline_seconds))
    if facts.returned_at is not None:
        since = max(since, facts.returned_at)
    is_requested = any(may_have_effect(request) and request.requested_at >= since for request in facts.requests)
    return not is_requested and not facts.provider_busy and is_repair_under_way(facts.slot_state, ())


def _has_waited_for_hyperpod(facts: RepairFacts) -> bool:
    """Whether Evenkeel has given HyperPod time to repair the node. NodeRecovery can change after Evenkeel's request."""
    return any(
        request.rung == WAIT_FOR_HYPERPOD and request.requested_at >= facts.opened_at for request in facts.requests
    )


def _decide_end_of_ladder(facts: RepairFacts, policy: RepairPolicy, prefix: str) -> RepairDecision | None:
    """Return the decision if no further request may be made, whichever rung is next; None if one may be made."""
    own_requests = [
        request
        for request in facts.requests
        if request.requested_at >= facts.opened_at and request.rung not in WAIT_RUNGS
    ]
    sent_requests = [our for our in own_requests if our.answer != RepairAnswer.NOT_NOW]
    if any(
        request.rung == REPLACE and request.answer in (*ACCEPTED_ANSWERS, RepairAnswer.UNKNOWN, "")
        for request in facts.requests
    ) and not may_repeat_rung(facts, REPLACE):
        reason = f"{prefix}Evenkeel already requested its replacement, which it does only once per node."
        return decision_of(Repair.ASK_PERSON, reason, ("replace", "the earlier replacement may still succeed"))
    if not facts.ladder and facts.fault_traits.ladder[0] in QUARANTINE_RUNGS:
        reason = f"{facts.fault_traits.name}: Evenkeel keeps the node out of service and does not repair it."
        return decision_of(Repair.STAND_DOWN, reason).replace(drains=not facts.leaves_work)
    if facts.calls_today >= policy.max_attempts_a_day:
        reason = f"{prefix}{facts.calls_today} repair requests within a day for this node slot, which is the limit."
        return decision_of(Repair.ASK_PERSON, reason)
    if len(sent_requests) >= policy.max_attempts:
        return decision_of(
            Repair.ASK_PERSON, f"{prefix}Evenkeel made {len(sent_requests)} repair requests, which is the limit."
        )
    if len(own_requests) - len(sent_requests) >= _MAX_REFUSALS:
        return decision_of(Repair.ASK_PERSON, f"{prefix}The provider deferred the request {_MAX_REFUSALS} times.")
    return None


def _decide_blocked_rung(facts: RepairFacts, policy: RepairPolicy, rung: str, prefix: str) -> RepairDecision | None:
    """Return the decision if the provider, a job, a hold or a guardrail blocks the rung now; None if nothing does."""
    if facts.provider_busy:
        return decision_of(Repair.LATER, f"{prefix}{facts.provider_busy}")
    running_until = _jobs_may_run_until(facts)
    if running_until is not None:
        return decision_of(Repair.LATER, f"{prefix}{_running_jobs_text(running_until)}")
    if facts.hold is not None:
        return decision_of(Repair.HOLD, f"{prefix}{_hold_text(facts.hold)}")
    verdict = (
        check_guardrails(GuardrailAction(rung), facts.guard, policy.guardrails)
        if facts.guard and rung in REPAIRS
        else ALLOWED
    )
    if verdict.guardrail == GuardrailName.STALE_EVIDENCE:
        return decision_of(Repair.HEALTHY, f"{prefix}{verdict.reason}", (rung, "its evidence is stale"))
    if not verdict.is_allowed:
        return decision_of(Repair.BLOCKED, f"{prefix}{verdict.reason}", (rung, f"guardrail {verdict.guardrail}"))
    return None


def _jobs_may_run_until(facts: RepairFacts) -> datetime | None:
    """Return until when jobs that run on the node may finish; None if none runs, or none may run any longer."""
    until = facts.work_may_run_until
    return until if facts.has_work and until is not None and facts.now < until else None


def _running_jobs_text(until: datetime) -> str:
    return f"Jobs on it may run until {until:%Y-%m-%dT%H:%M:%SZ}."


def _hold_text(hold: Hold) -> str:
    return f"{hold.by} holds automation: {hold.reason}"


def _leave_to_group(facts: RepairFacts, group: GroupRepairFacts, policy: RepairPolicy) -> RepairDecision | None:
    """Return the decision about a node of an Auto Scaling group; None if Evenkeel may terminate its instance."""
    group_decision = choose_group_repair(group, policy)
    if group_decision.action is GroupAction.TERMINATE:
        return None
    if group_decision.action in (GroupAction.REFUSE, GroupAction.ASK_PERSON):
        return decision_of(Repair.ASK_PERSON, group_decision.reason).replace(drains=True)
    if group_decision.action is GroupAction.REPLACED:
        return decision_of(Repair.NOT_NEEDED, group_decision.reason)
    if group_decision.action is GroupAction.LATER or not facts.slot_state.original.is_listed:
        return decision_of(Repair.PAUSE, group_decision.reason).replace(wait_seconds=policy.retry_seconds)
    is_recorded = group.requested_at is not None or group.watched_at is not None
    return decision_of(Repair.AWAIT, group_decision.reason).replace(
        awaited_owner="" if is_recorded else WAIT_FOR_NODE_GROUP
    )


_AWAITED_OWNERS = {WAIT_FOR_HYPERPOD: "HyperPod", WAIT_FOR_KARPENTER: "Karpenter", WAIT_FOR_NODE_GROUP: "EKS"}
"""The name of the owner that repairs the node while Evenkeel waits, by rung."""
