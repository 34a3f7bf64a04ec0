"""The repair ladder: the next thing to do about one machine.

    facts ─▶ over? ours? ─▶ a call under way or unanswered? ─▶ well again? ─▶ next rung ─▶ in the way? ─▶ DIAGNOSE
              STAND_DOWN       AWAIT, until its deadline         HEALTHY       none left:   LATER, HOLD    REBOOT
                                                                               ASK_PERSON                  REPLACE

A rung is used up when its call was accepted and its deadline passed, or when the machine came back and is still sick.
A call without a reply is never simply repeated: it is awaited like an accepted one, for a while, and counts as
accepted as soon as anything shows that it took effect. What the provider itself says of a call (it failed, there is no
capacity) ends the wait for it at once.
"""

from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.health.faults import default_catalogue
from evenkeel.domain.health.incidents import RepairProgress
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.recovery.guardrails import ALLOWED, REPAIRS, GuardedAction, GuardFacts, Rule, check_guardrails
from evenkeel.domain.recovery.leases import Hold, RepairRequest
from evenkeel.domain.recovery.node_slot import DEEP_CHECK_RUNNING, RUNNING_STATUS, SlotState
from evenkeel.domain.recovery.plan import QUARANTINE_RUNGS, FaultTerms, Owner
from evenkeel.domain.recovery.policy import RepairPolicy
from evenkeel.domain.recovery.validation import Validity
from evenkeel.domain.values import Instant, Value

DIAGNOSE, REBOOT, REPLACE = "diagnose", "reboot", "replace"
OWNER, KARPENTER = "owner", "karpenter"
"""Not calls of ours: HyperPod or Karpenter repairs, and this ask marks since when it is awaited."""
OWNERS = (OWNER, KARPENTER)

ACCEPTED, IN_USE, NOT_NOW, NO_SUCH_NODE, FAILED, UNKNOWN = (
    "ACCEPTED",
    "IN_USE",
    "NOT_NOW",
    "NO_SUCH_NODE",
    "FAILED",
    "UNKNOWN",
)
"""The provider's answers, as `ports.RepairAnswer` spells them."""
_ACCEPTED_ANSWERS = (ACCEPTED, IN_USE, NO_SUCH_NODE)
_MAX_REFUSALS = 10

NO_CAPACITY = "insufficient_capacity"
_FAILURES = ("reboot_failed", "replacement_failed", NO_CAPACITY)
_PROGRESS_CODES = ("reboot_in_progress", "replacement_started", "terminating", "provisioned")
"""What the provider says of a repair: that it failed, and that it is at it."""
_IDLE_STATUSES = (RUNNING_STATUS, DEEP_CHECK_RUNNING, "Failure", "")
"""Statuses in which HyperPod does nothing about a machine."""


class Repair(StrEnum):
    """Next repair action."""

    DIAGNOSE = "DIAGNOSE"
    """Drain the node, then validate it, with a deep health check if available."""
    REBOOT = "REBOOT"
    REPLACE = "REPLACE"
    AWAIT = "AWAIT"
    """A repair is in progress: wait for the node, request nothing."""
    PAUSE = "PAUSE"
    LATER = "LATER"
    """Wait for jobs that may finish, or for HyperPod's own change of the cluster."""
    HOLD = "HOLD"
    BLOCKED = "BLOCKED"
    """A guardrail blocks the next rung."""
    NOT_NEEDED = "NOT_NEEDED"
    """The node is gone and gets no replacement."""
    HEALTHY = "HEALTHY"
    """The node slot has a Ready node: validate it."""
    ASK_PERSON = "ASK_PERSON"
    STAND_DOWN = "STAND_DOWN"


class RepairFacts(Value):
    """Facts for the decision."""

    incident_id: str
    life: NodeLife
    fault_key: str
    fault: FaultTerms | None = None
    """None = as shipped."""
    ladder: tuple[str, ...]
    owner: Owner
    opened_at: Instant
    boot_id_at_opening: str
    has_recovered: bool
    not_allowed: str
    """Why no action is allowed; empty if actions are allowed."""
    is_person_cordon: bool
    lease_holder: str
    """Another open incident that repairs this node slot; empty if there is none."""
    requests: tuple[RepairRequest, ...]
    """Every repair request for this node life, oldest first, including earlier incidents."""
    slot_state: SlotState
    validity: Validity
    """Validity of the node in the slot."""
    invalid_at: Instant | None = None
    """Time at which a node in this slot last failed validation."""
    deep_check_failed_at: Instant | None = None
    """Time at which this node failed HyperPod's deep health check."""
    hold: Hold | None
    opt_out_reason: str = ""
    """How a person opted this node out of automation; empty if no person did."""
    provider_busy: str = ""
    """Why HyperPod's own change of the cluster blocks a repair; empty if it does not."""
    has_work: bool = False
    """Jobs run on the node."""
    work_may_run_until: Instant | None = None
    leaves_work: bool = False
    """The jobs on the node keep running in any case."""
    progress: tuple[RepairProgress, ...] = ()
    """Repair steps that the provider reported, oldest first."""
    calls_today: int = 0
    """Repair requests for this slot within a day, including earlier incidents and nodes."""
    returns: int = 0
    """Number of returns of this node to service within the flapping window."""
    guard: GuardFacts | None = None
    """Facts for the guardrails. Read only when a rung is due; no rung runs without them."""
    now: Instant

    @property
    def terms(self) -> FaultTerms:
        """The terms of the fault."""
        return self.fault or FaultTerms.of(default_catalogue().look_up(self.fault_key))


class RepairDecision(Value):
    """Next repair action for one node, with its reason."""

    action: Repair
    reason: str
    wait_seconds: int = 0
    drains: bool = False
    """Whether the jobs on the node stop first."""
    awaited_owner: str = ""
    """Owner that Evenkeel waits for from now on, one of `OWNERS`; empty if none."""
    alternatives: tuple[Alternative, ...] = ()

    @property
    def rung(self) -> str:
        """The provider request to make; empty if none."""
        return self.action.lower() if self.action in (Repair.REBOOT, Repair.REPLACE) else ""


def choose_repair(facts: RepairFacts, policy: RepairPolicy) -> RepairDecision:
    """Choose the next repair action for one node.

    An action that stops jobs waits for a hold to end, even if no repair follows: no later step would stop
    these jobs.
    """
    decided = _choose(facts, policy)
    if decided.drains and facts.hold is not None:
        return _decided(Repair.HOLD, f"Evenkeel cannot move its jobs yet. {_hold_text(facts.hold)}")
    return decided


def _choose(facts: RepairFacts, policy: RepairPolicy) -> RepairDecision:
    if facts.not_allowed:
        return _decided(Repair.STAND_DOWN, facts.not_allowed)
    if facts.lease_holder:
        return _decided(Repair.STAND_DOWN, f"{facts.lease_holder} already repairs this node slot.")
    if facts.opt_out_reason:
        return _decided(Repair.STAND_DOWN, facts.opt_out_reason)
    if facts.is_person_cordon:
        return _decided(Repair.STAND_DOWN, "A person cordoned this node, so Evenkeel leaves it alone.").but(drains=True)
    last = facts.requests[-1] if facts.requests and facts.requests[-1].requested_at >= facts.opened_at else None
    if facts.slot_state.replacement is not None:
        return _with_successor(facts, last, policy)
    failed_at = facts.deep_check_failed_at
    if failed_at is not None and (last is None or last.requested_at < failed_at):
        return _after_deep_check(facts, policy)
    if last is not None:
        return _after(facts, last, policy)
    if not facts.slot_state.original.is_there:
        return _without_machine(facts, facts.opened_at, policy)
    out = _pending_request(facts, policy)
    if out is not None:
        left = max(1, round((deadline_of(out, policy) - facts.now).total_seconds()))
        reason = f"The {out.rung} that {out.incident_id or 'an earlier incident'} requested may still take effect."
        return RepairDecision(action=Repair.PAUSE, reason=reason, wait_seconds=min(left, policy.retry_seconds))
    if _is_well_by_itself(facts, policy):
        return _decided(Repair.HEALTHY, "The node is Ready again and shows no other fault: it only needs validation.")
    if facts.owner is Owner.NOBODY:
        reason = "Neither HyperPod nor Karpenter manages this node: it stays out of service until a person acts."
        return _decided(Repair.ASK_PERSON, reason).but(drains=True)
    if facts.owner is Owner.HYPERPOD and _has_rebooted_since_opening(facts) and facts.validity.is_valid:
        return _decided(Repair.HEALTHY, "HyperPod has already rebooted the node.")
    if facts.owner is Owner.HYPERPOD:
        reason = "HyperPod repairs this node itself: Evenkeel waits and requests nothing."
        return _decided(Repair.AWAIT, reason).but(awaited_owner=OWNER)
    if facts.owner is Owner.KARPENTER and policy.karpenter_repairs:
        reason = "Karpenter repairs this node itself: Evenkeel waits."
        return _decided(Repair.AWAIT, reason).but(awaited_owner=KARPENTER)
    if facts.has_work and facts.work_may_run_until is not None and facts.now < facts.work_may_run_until:
        return _decided(Repair.LATER, f"Its jobs may run until {facts.work_may_run_until:%Y-%m-%dT%H:%M:%SZ}.")
    return _next_rung(facts, policy, failed="")


def deadline_of(
    ask: RepairRequest,
    policy: RepairPolicy,
    slot_state: SlotState | None = None,
    progress: tuple[RepairProgress, ...] = (),
) -> datetime:
    """Return until when the machine is awaited after this call. One without a reply is awaited for less.

    An owner that does nothing is waited for briefly; one that tried, or is at it, for long.

    Args:
        ask: The call, or the mark since when an owner is awaited.
        policy: The deadlines.
        slot_state: The node slot now; used only for an owner.
        progress: What the provider said it does.
    """
    if ask.rung == KARPENTER:
        return ask.requested_at + timedelta(seconds=policy.karpenter_deadline_seconds)
    if ask.rung == OWNER:
        if slot_state is None or not _owner_acted(ask, slot_state, progress):
            return ask.requested_at + timedelta(seconds=policy.takeover_seconds)
        since = max([ask.requested_at, *(each.at for each in progress[-1:])])
        return since + timedelta(seconds=policy.owner_deadline_seconds)
    if ask.answer in ("", UNKNOWN):
        return ask.requested_at + timedelta(seconds=policy.reconcile_after_seconds)
    seconds = policy.replace_deadline_seconds if ask.rung == REPLACE else policy.reboot_deadline_seconds
    return ask.requested_at + timedelta(seconds=seconds)


def took_effect(ask: RepairRequest, slot_state: SlotState, progress: tuple[RepairProgress, ...] = ()) -> str:
    """Say what shows that a call took effect; empty where nothing does."""
    if slot_state.replacement is not None:
        return "another node holds the slot"
    node, record = slot_state.original.node, slot_state.original.record
    if node and ask.boot_id and node.boot_id and node.boot_id != ask.boot_id:
        return "the node rebooted since"
    if record and record.status not in (RUNNING_STATUS, ask.status_before):
        return f"HyperPod reports {record.status}"
    if not slot_state.original.is_there:
        return "no control plane lists the node any more"
    evidence = next(
        (each for each in progress if each.at >= ask.requested_at and each.code in (*_PROGRESS_CODES, *_FAILURES)), None
    )
    return f"HyperPod reported {evidence.code}" if evidence else ""


def failure_since(progress: tuple[RepairProgress, ...], since: datetime) -> RepairProgress | None:
    """Return the provider's word that what was asked for failed; None where it did not say so, or began anew."""
    later = [each for each in progress if each.at >= since and each.code in (*_FAILURES, *_PROGRESS_CODES)]
    return later[-1] if later and later[-1].code in _FAILURES else None


def _owner_acted(ask: RepairRequest, slot_state: SlotState, progress: tuple[RepairProgress, ...]) -> bool:
    """Whether anything shows that the owner of a repair is at it, or has been."""
    return bool(progress) or _is_under_way(slot_state, progress) or bool(took_effect(ask, slot_state))


def _is_under_way(slot_state: SlotState, progress: tuple[RepairProgress, ...]) -> bool:
    record = slot_state.original.record
    is_changing = record is not None and record.status not in _IDLE_STATUSES
    return is_changing or (bool(progress) and progress[-1].code in _PROGRESS_CODES)


def _with_successor(facts: RepairFacts, last: RepairRequest | None, policy: RepairPolicy) -> RepairDecision:
    """Decide when the slot already has a replacement node."""
    assert facts.slot_state.replacement
    name = facts.slot_state.replacement.instance_id
    asked_at = last.requested_at if last else facts.opened_at
    born_at = facts.slot_state.replacement.record.launched_at if facts.slot_state.replacement.record else asked_at
    if facts.invalid_at and facts.invalid_at >= born_at:
        reason = f"The replacement node {name} failed its validation: {facts.validity.reason}"
        return _decided(Repair.ASK_PERSON, reason, ("replace", "a replacement that also fails points to another cause"))
    if facts.validity.is_valid:
        return _decided(Repair.HEALTHY, f"The replacement node {name} is Ready.")
    deadline = max(asked_at, born_at) + timedelta(seconds=policy.replace_deadline_seconds)
    if last and last.rung == OWNER:
        deadline = max(deadline, deadline_of(last, policy, facts.slot_state, facts.progress))
    if facts.now < deadline:
        return _decided(Repair.AWAIT, f"The replacement node {name} is starting.")
    reason = f"The replacement node {name} does not become Ready: {facts.validity.reason}"
    return _decided(Repair.ASK_PERSON, reason, ("replace", "a replacement that also fails points to another cause"))


def _after(facts: RepairFacts, last: RepairRequest, policy: RepairPolicy) -> RepairDecision:
    """Decide after a call of this incident."""
    if last.rung in OWNERS:
        return _after_owner(facts, last, policy)
    failure = failure_since(facts.progress, last.requested_at)
    if failure is not None:
        return _after_failure(facts, failure, policy)
    if facts.owner is Owner.KARPENTER and not facts.slot_state.original.is_there:
        return _decided(Repair.NOT_NEEDED, "The node is gone; Karpenter launches another if pods need it.")
    if last.rung == REBOOT and _has_rebooted(facts, last):
        has_failed = facts.invalid_at is not None and facts.invalid_at >= last.requested_at
        if facts.validity.is_valid and not has_failed:
            return _decided(Repair.HEALTHY, "The node rebooted and is Ready.")
        if facts.now < deadline_of(last.but(answer=ACCEPTED), policy) and not has_failed:
            return _decided(Repair.AWAIT, "The node rebooted and is starting.")
        return _next_rung(facts, policy, failed=f"The reboot did not clear the fault: {facts.validity.reason}")
    if last.answer in ("", UNKNOWN):
        shown = took_effect(last, facts.slot_state, facts.progress)
        if shown:
            accepted = last.but(answer=ACCEPTED)
            if facts.now < deadline_of(accepted, policy):
                return _decided(Repair.AWAIT, f"The {last.rung} request got no reply but took effect: {shown}.")
            return _next_rung(facts, policy, failed=f"The {last.rung} request got no reply; the node is not back.")
        if facts.now < deadline_of(last, policy):
            return _decided(Repair.AWAIT, f"The {last.rung} request got no reply: Evenkeel waits for evidence first.")
        return _next_rung(facts, policy, failed=f"The {last.rung} request got no reply and had no visible effect.")
    if last.answer in _ACCEPTED_ANSWERS:
        if facts.now < deadline_of(last, policy):
            return _decided(Repair.AWAIT, f"The {last.rung} is in progress.")
        return _next_rung(
            facts, policy, failed=f"The provider accepted the {last.rung}, but the node did not come back."
        )
    if last.answer == NOT_NOW:
        return _next_rung(facts, policy, failed="The provider was not ready for the request.", after=last)
    return _next_rung(facts, policy, failed="The request failed at the provider.", after=last)


def _pending_request(facts: RepairFacts, policy: RepairPolicy) -> RepairRequest | None:
    """Return the call of an earlier incident of this life that may be at work still; None where none is."""
    calls = [
        ask for ask in facts.requests if ask.rung not in OWNERS and ask.answer in (*_ACCEPTED_ANSWERS, UNKNOWN, "")
    ]
    last = calls[-1] if calls else None
    if last is None or facts.now >= deadline_of(last, policy) or _has_rebooted(facts, last):
        return None
    return last


def _has_rebooted(facts: RepairFacts, last: RepairRequest) -> bool:
    node = facts.slot_state.original.node
    return node is not None and bool(last.boot_id) and bool(node.boot_id) and node.boot_id != last.boot_id


def _has_rebooted_since_opening(facts: RepairFacts) -> bool:
    """Whether an owner was quicker than our first look."""
    node, before = facts.slot_state.original.node, facts.boot_id_at_opening
    return node is not None and bool(before) and bool(node.boot_id) and node.boot_id != before


def _after_deep_check(facts: RepairFacts, policy: RepairPolicy) -> RepairDecision:
    """Decide after the machine failed HyperPod's deep health check: HyperPod itself reboots or replaces it then."""
    marks = [ask for ask in facts.requests if ask.rung == OWNER and ask.requested_at >= facts.opened_at]
    if len(marks) >= policy.max_attempts:
        return _decided(Repair.ASK_PERSON, f"The node failed its deep health check again, after {len(marks)} repairs.")
    reason = "The node failed its deep health check, and HyperPod repairs such nodes itself."
    return _decided(Repair.AWAIT, reason, (REPLACE, "two repairs of one node would conflict")).but(awaited_owner=OWNER)


def _after_owner(facts: RepairFacts, last: RepairRequest, policy: RepairPolicy) -> RepairDecision:
    """Decide while another owner repairs: never against an attempt of theirs, and only when they have given up.

    Source: docs/ownership.md, "Who repairs a machine".
    """
    owner = "Karpenter" if facts.owner is Owner.KARPENTER else "HyperPod"
    if facts.owner is Owner.KARPENTER and not facts.slot_state.original.is_there:
        return _decided(Repair.NOT_NEEDED, "The node is gone; Karpenter launches another if pods need it.")
    if facts.validity.is_valid and (_has_rebooted(facts, last) or facts.has_recovered):
        return _decided(Repair.HEALTHY, f"{owner} repaired the node.")
    due = deadline_of(last, policy, facts.slot_state, facts.progress)
    if facts.now < due:
        return _decided(Repair.AWAIT, f"{owner} repairs this node itself: Evenkeel waits.")
    if facts.owner is not Owner.KARPENTER and _is_under_way(facts.slot_state, facts.progress):
        reason = "HyperPod's repair of this node takes longer than expected."
        return _decided(
            Repair.ASK_PERSON, reason, ("replace", "HyperPod is still repairing, and two repairs would conflict")
        )
    failure = facts.progress[-1] if facts.progress and facts.progress[-1].code in _FAILURES else None
    if failure is not None and failure.code == NO_CAPACITY:
        return _after_failure(facts, failure, policy)
    minutes = round((due - (facts.progress[-1].at if facts.progress else last.requested_at)).total_seconds() / 60)
    did = "did nothing" if not _owner_acted(last, facts.slot_state, facts.progress) else "made no new attempt"
    return _next_rung(facts, policy, failed=f"{owner} {did} for {minutes} min, so Evenkeel takes over the repair.")


def _after_failure(facts: RepairFacts, failure: RepairProgress, policy: RepairPolicy) -> RepairDecision:
    """Decide after the provider itself said that a repair failed. Want of capacity is not cured by asking again."""
    report = f"HyperPod reported {failure.code}{f': {failure.message}' if failure.message else ''}."
    if failure.code == NO_CAPACITY:
        return _decided(
            Repair.ASK_PERSON,
            f"{report} First check the zone, training plan and reservation of {facts.life.cluster}'s pool.",
            ("replace", "without capacity the next request would fail too"),
            ("loan", "no temporary capacity is available here"),
        )
    return _next_rung(facts, policy, failed=report)


def _without_machine(facts: RepairFacts, since: datetime, policy: RepairPolicy) -> RepairDecision:
    """Decide when the node disappeared before any request: wait for its replacement."""
    if facts.owner is not Owner.KARPENTER and facts.now < since + timedelta(seconds=policy.replace_deadline_seconds):
        return _decided(Repair.AWAIT, "The node is gone; Evenkeel waits for its replacement.")
    return _decided(Repair.NOT_NEEDED, "The node is gone, and no replacement came.")


def _is_well_by_itself(facts: RepairFacts, policy: RepairPolicy) -> bool:
    """A node that only went NotReady is well when it is Ready; for other faults a later healthy signal is needed."""
    if not facts.validity.is_valid or facts.invalid_at is not None:
        return False
    if facts.returns >= policy.lemon_returns:
        return False  # it comes back well each time, and does not stay so
    return facts.has_recovered or facts.fault_key == "node:not_ready"


def _next_rung(
    facts: RepairFacts, policy: RepairPolicy, *, failed: str, after: RepairRequest | None = None
) -> RepairDecision:
    """Choose the next provider call, or say why there is none."""
    prefix = f"{failed} " if failed else ""
    ours = [ask for ask in facts.requests if ask.requested_at >= facts.opened_at and ask.rung not in OWNERS]
    calls = [ask for ask in ours if ask.answer != NOT_NOW]
    if any(
        ask.rung == REPLACE and ask.answer in (*_ACCEPTED_ANSWERS, UNKNOWN, "") for ask in facts.requests
    ) and not _may_repeat(facts, REPLACE):
        reason = f"{prefix}Evenkeel already requested its replacement, which it does only once per node."
        return _decided(Repair.ASK_PERSON, reason, ("replace", "the earlier replacement may still succeed"))
    if not facts.ladder and facts.terms.ladder[0] in QUARANTINE_RUNGS:
        reason = f"{facts.terms.name}: Evenkeel keeps the node out of service and does not repair it."
        return _decided(Repair.STAND_DOWN, reason).but(drains=not facts.leaves_work)
    if facts.calls_today >= policy.max_attempts_a_day:
        reason = f"{prefix}{facts.calls_today} repair requests within a day for this node slot, which is the limit."
        return _decided(Repair.ASK_PERSON, reason)
    if len(calls) >= policy.max_attempts:
        return _decided(Repair.ASK_PERSON, f"{prefix}Evenkeel made {len(calls)} repair requests, which is the limit.")
    if len(ours) - len(calls) >= _MAX_REFUSALS:
        return _decided(Repair.ASK_PERSON, f"{prefix}The provider deferred the request {_MAX_REFUSALS} times.")
    rung, skipped = _first_open_rung(facts, policy)
    if not rung:
        return _decided(Repair.ASK_PERSON, f"{prefix}No rung is left for {facts.terms.name}.", *skipped)
    if after is not None and rung == after.rung:
        ready_at = after.requested_at + timedelta(seconds=policy.retry_seconds)
        if facts.now < ready_at:
            pause = max(1, round((ready_at - facts.now).total_seconds()))
            return RepairDecision(
                action=Repair.PAUSE, reason=f"{prefix}Evenkeel asks again in {pause} s.", wait_seconds=pause
            )
    if facts.provider_busy:
        return _decided(Repair.LATER, f"{prefix}{facts.provider_busy}")
    if facts.hold is not None:
        return _decided(Repair.HOLD, f"{prefix}{_hold_text(facts.hold)}")
    verdict = (
        check_guardrails(GuardedAction(rung), facts.guard, policy.guardrails)
        if facts.guard and rung in REPAIRS
        else ALLOWED
    )
    if verdict.rule == Rule.STALE_EVIDENCE:
        return _decided(Repair.HEALTHY, f"{prefix}{verdict.reason}", (rung, "its evidence is stale"))
    if not verdict.allowed:
        return _decided(Repair.BLOCKED, f"{prefix}{verdict.reason}", (rung, f"guardrail {verdict.rule}"))
    return _decided(Repair(rung.upper()), f"{prefix}{_rung_reason(facts, rung)}", *skipped).but(drains=True)


def _hold_text(hold: Hold) -> str:
    return f"{hold.by} holds automation: {hold.reason}"


def _first_open_rung(facts: RepairFacts, policy: RepairPolicy) -> tuple[str, list[tuple[str, str]]]:
    skipped: list[tuple[str, str]] = []
    for rung in facts.ladder:
        if rung == DIAGNOSE and facts.invalid_at is not None and facts.invalid_at >= facts.opened_at:
            skipped.append((DIAGNOSE, "the node already failed validation"))
        elif rung == REBOOT and facts.owner is Owner.KARPENTER:
            skipped.append((REBOOT, "Evenkeel does not reboot Karpenter nodes"))
        elif rung == REBOOT and facts.returns >= policy.lemon_returns:
            skipped.append((REBOOT, f"the node returned to service {facts.returns} times lately and failed again"))
        elif rung == REBOOT and _reboots_are_used(facts):
            skipped.append((REBOOT, "a reboot was already tried"))
        elif not _is_used(facts, rung):
            later = facts.ladder[facts.ladder.index(rung) + 1 :]
            return rung, [*skipped, *((each, f"{rung} comes first and is quicker") for each in later)]
        else:
            skipped.append((rung, "already tried"))
    return "", skipped


def _is_used(facts: RepairFacts, rung: str) -> bool:
    """Whether a rung of this incident is spent: taken once, or twice without a trace or with the provider's failure."""
    mine = [ask for ask in facts.requests if ask.rung == rung and ask.requested_at >= facts.opened_at]
    if any(
        ask.answer in _ACCEPTED_ANSWERS
        or (ask.answer in ("", UNKNOWN) and took_effect(ask, facts.slot_state, facts.progress))
        for ask in mine
    ):
        return True
    return len([ask for ask in mine if ask.answer in (FAILED, UNKNOWN, "")]) > 1


def _may_repeat(facts: RepairFacts, rung: str) -> bool:
    """Whether every call of this rung for this life had no reply and left no trace, and it was made but once."""
    mine = [ask for ask in facts.requests if ask.rung == rung and ask.answer not in (NOT_NOW, FAILED)]
    silent = [
        ask for ask in mine if ask.answer in ("", UNKNOWN) and not took_effect(ask, facts.slot_state, facts.progress)
    ]
    return len(mine) == len(silent) == 1


def _reboots_are_used(facts: RepairFacts) -> bool:
    """Whether this life was rebooted so recently, for an earlier incident, that the fault's row says to go on."""
    if _is_used(facts, REBOOT):
        return True
    fault = facts.terms
    since = facts.now - timedelta(hours=fault.recur_window_hours)
    earlier = [
        ask
        for ask in facts.requests
        if ask.rung == REBOOT and ask.answer in _ACCEPTED_ANSWERS and ask.requested_at >= since
    ]
    return 0 < fault.recur_count <= len(earlier) + 1


def _rung_reason(facts: RepairFacts, rung: str) -> str:
    name = facts.terms.name
    if rung == DIAGNOSE:
        return f"{name}: Evenkeel validates the node before it treats it as broken."
    if rung == REBOOT:
        return f"{name}: a reboot may clear the fault, is quickest and keeps the node."
    if facts.owner is Owner.KARPENTER:
        return f"{name}: Karpenter drains and terminates the node."
    if REBOOT in facts.ladder:
        return f"{name}: a reboot did not help or would not last, so Evenkeel replaces the node."
    if REBOOT in facts.terms.ladder:
        return f"{name}: HyperPod asks for a replacement."
    return f"{name}: a reboot does not clear this fault, so Evenkeel replaces the node."


def _decided(action: Repair, reason: str, *other: tuple[str, str]) -> RepairDecision:
    options = tuple(Alternative(option=option, why_not=why_not) for option, why_not in other)
    return RepairDecision(action=action, reason=reason, alternatives=options)
