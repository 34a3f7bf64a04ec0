"""The repair ladder: the next thing to do about one machine.

    facts ─▶ over? ours? ─▶ a call under way or unanswered? ─▶ well again? ─▶ next rung ─▶ held? ─▶ REBOOT | REPLACE
              STAND_DOWN       AWAIT, until its deadline         HEALTHY       none left: ASK_PERSON

A rung is used up when its call was accepted and its deadline passed, or when the machine came back and is still sick.
A call without a reply is never simply repeated: it is awaited like an accepted one, for a while, and counts as
accepted as soon as anything shows that it took effect.
"""

from datetime import datetime, timedelta
from enum import StrEnum

from evenkeel.domain.decisions import Alternative
from evenkeel.domain.health.faults import look_up
from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.policy import RepairPolicy
from evenkeel.domain.recovery.leases import Hold, RepairAsk
from evenkeel.domain.recovery.plan import Owner
from evenkeel.domain.recovery.seats import GOOD_STATUS, SeatNow
from evenkeel.domain.recovery.validation import Validity
from evenkeel.domain.values import Instant, Value

REBOOT, REPLACE = "reboot", "replace"
OWNER = "owner"
"""Not a call of ours: HyperPod repairs, and this ask marks since when it is awaited."""

ACCEPTED, IN_USE, NOT_NOW, NO_SUCH_NODE, FAILED, UNKNOWN = (
    "ACCEPTED",
    "IN_USE",
    "NOT_NOW",
    "NO_SUCH_NODE",
    "FAILED",
    "UNKNOWN",
)
"""The provider's answers, as `ports.RepairAnswer` spells them."""
_TAKEN = (ACCEPTED, IN_USE, NO_SUCH_NODE)
_MOST_REFUSALS = 10


class Repair(StrEnum):
    """The next thing to do."""

    REBOOT = "REBOOT"
    REPLACE = "REPLACE"
    AWAIT = "AWAIT"
    """A repair is under way: wait for the machine, not for another call."""
    PAUSE = "PAUSE"
    HOLD = "HOLD"
    HEALTHY = "HEALTHY"
    """The seat holds a Ready machine: validate it."""
    ASK_PERSON = "ASK_PERSON"
    STAND_DOWN = "STAND_DOWN"


class RepairFacts(Value):
    """All that the choice rests on."""

    incident_id: str
    life: NodeLife
    fault_key: str
    ladder: tuple[str, ...]
    owner: Owner
    opened_at: Instant
    boot_id_at_opening: str
    has_recovered: bool
    not_allowed: str
    """Why nothing may be done; empty where it may."""
    is_persons_cordon: bool
    lease_holder: str
    """Another open incident that repairs this seat; empty where there is none."""
    asks: tuple[RepairAsk, ...]
    """Every call for this life, of earlier incidents too, in order."""
    seat: SeatNow
    validity: Validity
    """Of the machine in the seat."""
    invalid_at: Instant | None = None
    """When a machine in this seat last failed its validation."""
    hold: Hold | None
    now: Instant


class RepairDecision(Value):
    """What to do next about one machine, and why."""

    action: Repair
    reason: str
    wait_seconds: int = 0
    alternatives: tuple[Alternative, ...] = ()

    @property
    def rung(self) -> str:
        """The provider call it asks for; empty where it asks for none."""
        return self.action.lower() if self.action in (Repair.REBOOT, Repair.REPLACE) else ""


def choose_repair(facts: RepairFacts, policy: RepairPolicy) -> RepairDecision:
    """Choose the next thing to do about one machine."""
    if facts.not_allowed:
        return _decided(Repair.STAND_DOWN, facts.not_allowed)
    if facts.lease_holder:
        return _decided(Repair.STAND_DOWN, f"{facts.lease_holder} repairs this seat.")
    if facts.is_persons_cordon:
        return _decided(Repair.STAND_DOWN, "A person cordoned this node: it is left to them.")
    last = facts.asks[-1] if facts.asks and facts.asks[-1].asked_at >= facts.opened_at else None
    if facts.seat.successor is not None:
        return _with_successor(facts, last, policy)
    if last is not None:
        return _after(facts, last, policy)
    if _is_well_by_itself(facts):
        return _decided(Repair.HEALTHY, "It is Ready again and nothing else was seen: it only needs to be validated.")
    if facts.owner is Owner.HYPERPOD:
        return _decided(Repair.AWAIT, "HyperPod repairs this machine itself: it is awaited, not called.")
    return _next_rung(facts, policy, failed="")


def deadline_of(ask: RepairAsk, policy: RepairPolicy) -> datetime:
    """Return until when the machine is awaited after this call. One without a reply is awaited for less."""
    if ask.answer in ("", UNKNOWN):
        return ask.asked_at + timedelta(seconds=policy.reconcile_after_seconds)
    seconds = {
        REBOOT: policy.reboot_deadline_seconds,
        REPLACE: policy.replace_deadline_seconds,
        OWNER: policy.owner_deadline_seconds,
    }[ask.rung]
    return ask.asked_at + timedelta(seconds=seconds)


def took_effect(ask: RepairAsk, seat: SeatNow) -> str:
    """Say what shows that a call took effect; empty where nothing does."""
    if seat.successor is not None:
        return "another machine holds the seat"
    node, record = seat.patient.node, seat.patient.record
    if node and ask.boot_id and node.boot_id and node.boot_id != ask.boot_id:
        return "it has booted again since"
    if record and record.status not in (GOOD_STATUS, ask.status_before):
        return f"HyperPod calls it {record.status}"
    if not seat.patient.is_there:
        return "no control plane shows it any more"
    return ""


def _with_successor(facts: RepairFacts, last: RepairAsk | None, policy: RepairPolicy) -> RepairDecision:
    """Decide where another machine holds the seat already."""
    assert facts.seat.successor
    name = facts.seat.successor.instance_id
    asked_at = last.asked_at if last else facts.opened_at
    born_at = facts.seat.successor.record.launched_at if facts.seat.successor.record else asked_at
    if facts.invalid_at and facts.invalid_at >= born_at:
        reason = f"The machine that took its seat, {name}, failed its validation: {facts.validity.reason}"
        return _decided(Repair.ASK_PERSON, reason, ("replace", "a seat whose new machine fails has another cause"))
    if facts.validity.is_valid:
        return _decided(Repair.HEALTHY, f"{name} took the seat and is Ready.")
    deadline = max(asked_at, born_at) + timedelta(seconds=policy.replace_deadline_seconds)
    if last and last.rung == OWNER:
        deadline = max(deadline, deadline_of(last, policy))
    if facts.now < deadline:
        return _decided(Repair.AWAIT, f"{name} took the seat and is coming up.")
    reason = f"The machine that took its seat, {name}, does not come up: {facts.validity.reason}"
    return _decided(Repair.ASK_PERSON, reason, ("replace", "a seat whose new machine fails has another cause"))


def _after(facts: RepairFacts, last: RepairAsk, policy: RepairPolicy) -> RepairDecision:
    """Decide after a call of this incident."""
    if last.rung == REBOOT and _has_rebooted(facts, last):
        has_failed = facts.invalid_at is not None and facts.invalid_at >= last.asked_at
        if facts.validity.is_valid and not has_failed:
            return _decided(Repair.HEALTHY, "It has booted again and is Ready.")
        if facts.now < deadline_of(last.but(answer=ACCEPTED), policy) and not has_failed:
            return _decided(Repair.AWAIT, "It has booted again and is coming up.")
        return _next_rung(facts, policy, failed=f"The reboot did not clear it: {facts.validity.reason}")
    if last.answer in ("", UNKNOWN):
        shown = took_effect(last, facts.seat)
        if shown:
            accepted = last.but(answer=ACCEPTED)
            if facts.now < deadline_of(accepted, policy):
                return _decided(Repair.AWAIT, f"The {last.rung} had no reply, but took effect: {shown}.")
            return _next_rung(facts, policy, failed=f"The {last.rung} had no reply and did not bring it back.")
        if facts.now < deadline_of(last, policy):
            return _decided(Repair.AWAIT, f"The {last.rung} had no reply: evidence is awaited before it is repeated.")
        return _next_rung(facts, policy, failed=f"The {last.rung} had no reply and left no trace.")
    if last.answer in _TAKEN:
        if facts.now < deadline_of(last, policy):
            return _decided(Repair.AWAIT, f"The {last.rung} is under way.")
        if last.rung == OWNER:
            return _owner_is_late(facts)
        return _next_rung(facts, policy, failed=f"The {last.rung} was accepted and the machine did not come back.")
    if last.answer == NOT_NOW:
        return _next_rung(facts, policy, failed="The provider was not ready for it.", after=last)
    return _next_rung(facts, policy, failed="The provider failed on it.", after=last)


def _has_rebooted(facts: RepairFacts, last: RepairAsk) -> bool:
    node = facts.seat.patient.node
    return node is not None and bool(last.boot_id) and bool(node.boot_id) and node.boot_id != last.boot_id


def _owner_is_late(facts: RepairFacts) -> RepairDecision:
    if facts.validity.is_valid and _has_rebooted(facts, facts.asks[-1]):
        return _decided(Repair.HEALTHY, "HyperPod brought it back.")
    reason = "HyperPod owns this repair and has not brought the machine back in time."
    return _decided(Repair.ASK_PERSON, reason, ("replace", "HyperPod may still be at it, and two repairs would cross"))


def _is_well_by_itself(facts: RepairFacts) -> bool:
    """A node that only went NotReady is well when it is Ready; for other faults a later healthy signal is needed."""
    if not facts.validity.is_valid or facts.invalid_at is not None:
        return False
    return facts.has_recovered or facts.fault_key == "node:not_ready"


def _next_rung(
    facts: RepairFacts, policy: RepairPolicy, *, failed: str, after: RepairAsk | None = None
) -> RepairDecision:
    """Choose the next provider call, or say why there is none."""
    said = f"{failed} " if failed else ""
    ours = [ask for ask in facts.asks if ask.asked_at >= facts.opened_at and ask.rung != OWNER]
    calls = [ask for ask in ours if ask.answer != NOT_NOW]
    if any(ask.rung == REPLACE and ask.answer in (*_TAKEN, UNKNOWN, "") for ask in facts.asks) and not _may_repeat(
        facts, REPLACE
    ):
        reason = f"{said}This machine was to be replaced already, and a life is replaced once at most."
        return _decided(Repair.ASK_PERSON, reason, ("replace", "its outcome is not known to have failed"))
    if len(calls) >= policy.max_attempts:
        return _decided(Repair.ASK_PERSON, f"{said}{len(calls)} repair calls were made, which is the limit.")
    if len(ours) - len(calls) >= _MOST_REFUSALS:
        return _decided(Repair.ASK_PERSON, f"{said}The provider put the call off {_MOST_REFUSALS} times.")
    rung, skipped = _first_open_rung(facts)
    if not rung:
        return _decided(Repair.ASK_PERSON, f"{said}No rung is left for {look_up(facts.fault_key).name}.", *skipped)
    if after is not None and rung == after.rung:
        ready_at = after.asked_at + timedelta(seconds=policy.retry_seconds)
        if facts.now < ready_at:
            pause = max(1, round((ready_at - facts.now).total_seconds()))
            return RepairDecision(action=Repair.PAUSE, reason=f"{said}Asked again in {pause} s.", wait_seconds=pause)
    if facts.hold is not None:
        return _decided(Repair.HOLD, f"{said}{facts.hold.by} holds automation: {facts.hold.reason}")
    action = Repair.REBOOT if rung == REBOOT else Repair.REPLACE
    return _decided(action, f"{said}{_why(facts, rung)}", *skipped)


def _first_open_rung(facts: RepairFacts) -> tuple[str, list[tuple[str, str]]]:
    skipped: list[tuple[str, str]] = []
    for rung in facts.ladder:
        if rung == REBOOT and _reboots_are_used(facts):
            skipped.append((REBOOT, "a reboot was tried already"))
        elif not _is_used(facts, rung):
            later = facts.ladder[facts.ladder.index(rung) + 1 :]
            return rung, [*skipped, *((each, f"{rung} comes first and is quicker") for each in later)]
        else:
            skipped.append((rung, "tried already"))
    return "", skipped


def _is_used(facts: RepairFacts, rung: str) -> bool:
    """Whether a rung of this incident is spent: taken once, or twice without a trace or with the provider's failure."""
    mine = [ask for ask in facts.asks if ask.rung == rung and ask.asked_at >= facts.opened_at]
    if any(ask.answer in _TAKEN or (ask.answer in ("", UNKNOWN) and took_effect(ask, facts.seat)) for ask in mine):
        return True
    return len([ask for ask in mine if ask.answer in (FAILED, UNKNOWN, "")]) > 1


def _may_repeat(facts: RepairFacts, rung: str) -> bool:
    """Whether every call of this rung for this life had no reply and left no trace, and it was made but once."""
    mine = [ask for ask in facts.asks if ask.rung == rung and ask.answer not in (NOT_NOW, FAILED)]
    silent = [ask for ask in mine if ask.answer in ("", UNKNOWN) and not took_effect(ask, facts.seat)]
    return len(mine) == len(silent) == 1


def _reboots_are_used(facts: RepairFacts) -> bool:
    """Whether this life was rebooted so recently, for an earlier incident, that the fault's row says to go on."""
    if _is_used(facts, REBOOT):
        return True
    fault = look_up(facts.fault_key)
    since = facts.now - timedelta(hours=fault.recur_window_hours)
    earlier = [ask for ask in facts.asks if ask.rung == REBOOT and ask.answer in _TAKEN and ask.asked_at >= since]
    return 0 < fault.recur_count <= len(earlier) + 1


def _why(facts: RepairFacts, rung: str) -> str:
    name = look_up(facts.fault_key).name
    if rung == REBOOT:
        return f"{name}: a reboot may clear it, is quickest and keeps the machine."
    if REBOOT in facts.ladder:
        return f"{name}: a reboot did not help, so the machine is replaced."
    if REBOOT in look_up(facts.fault_key).ladder:
        return f"{name}: HyperPod asks for no less than a replacement."
    return f"{name}: no reboot clears this, so the machine is replaced."


def _decided(action: Repair, reason: str, *other: tuple[str, str]) -> RepairDecision:
    options = tuple(Alternative(option=option, why_not=why_not) for option, why_not in other)
    return RepairDecision(action=action, reason=reason, alternatives=options)
