"""Judge a case: was Evenkeel's decision the same, earlier or later, or would it have been wrong?

    first signal ── decision ─────────────── window closes
    ◀ lookback                    actions of the node's owners count here
                        healthy ─────────────── worked one window without a fault: no action was needed

A verdict needs evidence. Without this proof, the verdict is UNKNOWN, with its cause. An action that the
node did not need counts against Evenkeel, also if the node was idle.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from evenkeel.domain.recovery.plan import NodeOwner
from evenkeel.domain.recovery.repair_requests import DIAGNOSE, REBOOT, REPLACE
from evenkeel.domain.shadow.shadow_cases import Actor, NodeEvent, NodeEventKind, ShadowCase, ShadowDecision
from evenkeel.domain.values import Instant, Sentence, Value


class Verdict(StrEnum):
    """Result of the comparison."""

    SAME = "SAME"
    """The owner of the node did the same at about the same time, or neither acted."""
    EARLIER = "EARLIER"
    """Evenkeel would have acted before the owner did."""
    LATER = "LATER"
    """The owner acted before Evenkeel decided."""
    WOULD_HAVE_BEEN_WRONG = "WOULD_HAVE_BEEN_WRONG"
    """The node needed no such action: it worked for a whole window without it."""
    MISSED = "MISSED"
    """Evenkeel decided not to act, and an owner acted."""
    DIFFERENT = "DIFFERENT"
    """The owner replaced the node at once; Evenkeel would have tried a gentler repair first."""
    NOT_DECIDED = "NOT_DECIDED"
    """Evenkeel would have left the repair to the owner of the node."""
    UNKNOWN = "UNKNOWN"


class Cause(StrEnum):
    """Why a verdict is unknown."""

    WINDOW_OPEN = "WINDOW_OPEN"
    """The observation window is still open."""
    FAULT_RECURRED = "FAULT_RECURRED"
    """The fault came again before the node had worked for a whole window."""
    NOTHING_KNOWN = "NOTHING_KNOWN"
    """No source shows the node at the end of the window."""
    ACTED_TOO_SOON = "ACTED_TOO_SOON"
    """An owner acted before the node had worked for a whole window, but too late to compare with."""


RIGHT = (Verdict.SAME, Verdict.EARLIER, Verdict.LATER)
"""Verdicts on an action that the owner of the node took too."""


class ShadowTimes(Value):
    """The times that the verdicts depend on."""

    window_hours: Annotated[int, Field(ge=1, le=168)] = 24
    """The observation window: how long actions of the owners count, and how long a healthy node must work."""
    same_seconds: Annotated[int, Field(ge=0, le=3600)] = 60
    """Two actions at most this far apart are at the same time."""
    lookback_seconds: Annotated[int, Field(ge=0, le=86_400)] = 900
    """An action counts if it came at most this long before the first signal."""

    @property
    def window(self) -> timedelta:
        """The observation window."""
        return timedelta(hours=self.window_hours)


class Judgement(Value):
    """The verdict on one action of a decision."""

    verdict: Verdict
    reason: Sentence
    cause: Cause | None = None
    """Why the verdict is UNKNOWN."""
    actor: Actor | None = None
    happened_at: Instant | None = None
    """Time of the action that the decision is compared with."""
    seconds: float | None = None
    """Seconds from the decision to that action: positive if Evenkeel was earlier."""
    window_open_until: Instant | None = None
    evidence: tuple[Sentence, ...] = ()


class JudgedCase(Value):
    """A case with its two verdicts."""

    decision: ShadowDecision
    incident_ids: tuple[str, ...]
    known_until: Instant
    cordon: Judgement
    repair: Judgement


def judge_case(case: ShadowCase, times: ShadowTimes) -> JudgedCase:
    """Judge the cordon and the repair of a case. The order of its events does not matter."""
    timeline = _CaseTimeline(case, times)
    return JudgedCase(
        decision=case.decision,
        incident_ids=case.incident_ids,
        known_until=case.known_until,
        cordon=_judge_cordon(timeline),
        repair=_judge_repair(timeline),
    )


_REPAIRS = (NodeEventKind.REBOOTED, NodeEventKind.REPLACED, NodeEventKind.REMOVED)
_REPLACEMENTS = (NodeEventKind.REPLACED, NodeEventKind.REMOVED)
_CORDONS = (NodeEventKind.CORDONED, NodeEventKind.UNCORDONED)
_OUT_OF_SERVICE = (NodeEventKind.CORDONED, *_REPAIRS)
"""A reboot or a replacement takes the node out of service, with or without a cordon."""


class _CaseTimeline:
    """The events of a case, in order of time."""

    def __init__(self, case: ShadowCase, times: ShadowTimes) -> None:
        self.decision = case.decision
        self.times = times
        self.known_until, self.end_reason = case.known_until, case.end_reason
        self.decided_at = case.decision.decided_at
        self.closes_at = self.decided_at + times.window
        opens_at = case.decision.first_signal_at - timedelta(seconds=times.lookback_seconds)
        node_events = sorted(
            {event for event in case.events if event.at <= case.known_until},
            key=lambda event: (event.at, event.kind, event.actor, event.evidence),
        )
        cordons = [event for event in node_events if event.kind in _CORDONS and event.at < opens_at]
        # An older cordon counts if it was still in force.
        cordons_in_force = [cordon for cordon in cordons[-1:] if cordon.kind is NodeEventKind.CORDONED]
        self.events = [*cordons_in_force, *(event for event in node_events if event.at >= opens_at)]

    def first_action(self, kinds: Collection[NodeEventKind]) -> NodeEvent | None:
        """Return the first action of these kinds that counts, with its actor if a source names one."""
        action = next((event for event in self.events if event.kind in kinds and event.at <= self.closes_at), None)
        if action is None or action.actor is not Actor.UNKNOWN:
            return action
        until = action.at + timedelta(seconds=self.times.same_seconds)
        copies = [event for event in self.events if event.kind is action.kind and action.at <= event.at <= until]
        named_action = next((copy for copy in copies if copy.actor is not Actor.UNKNOWN), action)
        return named_action.replace(at=action.at)

    def healthy_since(self, since: datetime) -> tuple[datetime, str]:
        """Return the time from which the node showed no fault, with the evidence.

        It is after the last fault within the window.
        """
        faults = [event for event in self.events if event.kind is NodeEventKind.FAULT and event.at <= self.closes_at]
        last_fault_at = max([since, self.decision.last_signal_at, *(fault.at for fault in faults)])
        recoveries = [event for event in self.events if event.kind is NodeEventKind.RECOVERED]
        recovery = next((event for event in recoveries if last_fault_at <= event.at <= self.closes_at), None)
        return (recovery.at, recovery.evidence) if recovery else (last_fault_at, "")

    def judge_unmatched_action(self, action: str, since: datetime, excuse: str = "") -> Judgement:
        """Judge an action that no owner took: did the node work for a whole window without it?

        Args:
            action: The action, as the end of a sentence.
            since: The node must work from this time at the earliest.
            excuse: The other action that the owner took, as a sentence; empty if none.
        """
        healthy_at, evidence = self.healthy_since(since)
        until = healthy_at + self.times.window
        prefix = f"{excuse} " if excuse else ""
        later_events = [event for event in self.events if healthy_at < event.at <= until]
        fault = next((event for event in later_events if event.kind is NodeEventKind.FAULT), None)
        if fault is not None:
            reason = f"{prefix}The node had another fault at {_format_time(fault.at)}, and no owner had acted on it."
            return _unknown_judgement(Cause.FAULT_RECURRED, reason, fault.evidence)
        owner_action = next((event for event in later_events if event.kind in _OUT_OF_SERVICE), None)
        if owner_action is not None:
            acted_at = _format_time(owner_action.at)
            reason = f"{prefix}{owner_action.clause} at {acted_at}, before the observation window ended."
            return _unknown_judgement(Cause.ACTED_TOO_SOON, reason, owner_action.evidence)
        recovery_event = next(
            (event for event in self.events if event.kind is NodeEventKind.IN_SERVICE and event.at >= until), None
        )
        if recovery_event is not None:
            hours, since_text = self.times.window_hours, _format_time(healthy_at)
            reason = f"{prefix}The node worked for {hours} h without a fault from {since_text}, without {action}."
            return Judgement(
                verdict=Verdict.WOULD_HAVE_BEEN_WRONG,
                reason=reason,
                evidence=_nonempty_texts(evidence, recovery_event.evidence),
            )
        return self._judge_unseen(until, prefix)

    def compare_with_owner(self, owner_action: NodeEvent) -> Judgement:
        """Compare the time of the decision with the action of an owner."""
        seconds = (owner_action.at - self.decided_at).total_seconds()
        clause = owner_action.clause
        if abs(seconds) <= self.times.same_seconds:
            verdict, reason = Verdict.SAME, f"{clause} at about the same time."
        elif seconds > 0:
            verdict, reason = Verdict.EARLIER, f"{clause} {_format_duration(seconds)} after Evenkeel's decision."
        else:
            verdict, reason = Verdict.LATER, f"{clause} {_format_duration(-seconds)} before Evenkeel's decision."
        return _judgement_of_action(verdict, reason, owner_action).replace(seconds=seconds)

    def judge_inaction(self, owner_action: NodeEvent | None) -> Judgement:
        """Judge a decision not to act."""
        if owner_action is not None:
            reason = f"Evenkeel would not have acted. {owner_action.clause} at {_format_time(owner_action.at)}."
            return _judgement_of_action(Verdict.MISSED, reason, owner_action)
        recovery_events = [
            event for event in self.events if event.kind is NodeEventKind.IN_SERVICE and event.at >= self.closes_at
        ]
        if not recovery_events:
            return self._judge_unseen(self.closes_at)
        return Judgement(
            verdict=Verdict.SAME,
            reason="Neither Evenkeel nor an owner acted.",
            evidence=_nonempty_texts(recovery_events[0].evidence),
        )

    def _judge_unseen(self, until: datetime, prefix: str = "") -> Judgement:
        if self.known_until >= until or self.end_reason:
            reason = self.end_reason or f"No source shows the node in service after {_format_time(until)}."
            return _unknown_judgement(Cause.NOTHING_KNOWN, f"{prefix}{reason}")
        reason = f"{prefix}The observation window is open until {_format_time(until)}."
        return _unknown_judgement(Cause.WINDOW_OPEN, reason).replace(window_open_until=until)


def _judge_cordon(timeline: _CaseTimeline) -> Judgement:
    action = timeline.first_action(_OUT_OF_SERVICE)
    if not timeline.decision.cordons:
        return timeline.judge_inaction(action)
    if timeline.decision.owner == NodeOwner.PERSON and (action is None or action.at > timeline.decided_at):
        reason = "A person had cordoned the node before Evenkeel's decision; the time is unknown."
        return Judgement(verdict=Verdict.LATER, reason=reason, actor=Actor.PERSON)
    return (
        timeline.compare_with_owner(action)
        if action
        else timeline.judge_unmatched_action("a cordon", timeline.decided_at)
    )


def _judge_repair(timeline: _CaseTimeline) -> Judgement:
    decision, action = timeline.decision, timeline.first_action(_REPAIRS)
    if not decision.repair:
        if not decision.cordons:
            return timeline.judge_inaction(action)
        owner_text = f" {action.clause}." if action else ""
        return Judgement(
            verdict=Verdict.NOT_DECIDED, reason=f"Evenkeel would not have repaired the node itself.{owner_text}"
        )
    if action is None:
        return timeline.judge_unmatched_action(_REPAIR_NAMES[decision.repair], timeline.decided_at)
    replacement_event = timeline.first_action(_REPLACEMENTS)
    if decision.repair in (REBOOT, DIAGNOSE):
        return _judge_gentler_repair(timeline, action)
    if replacement_event is not None:
        return timeline.compare_with_owner(replacement_event)
    excuse = f"{action.clause} at {_format_time(action.at)}."
    return timeline.judge_unmatched_action("a replacement", max(action.at, timeline.decided_at), excuse)


def _judge_gentler_repair(timeline: _CaseTimeline, action: NodeEvent) -> Judgement:
    """Judge a decision to diagnose or reboot a node that an owner repaired."""
    repair = timeline.decision.repair
    if repair == REBOOT and action.kind is NodeEventKind.REBOOTED:
        return timeline.compare_with_owner(action)
    reason = f"Evenkeel would have started with {_REPAIR_NAMES[repair]}. {action.clause} at {_format_time(action.at)}."
    seconds = (action.at - timeline.decided_at).total_seconds()
    return _judgement_of_action(Verdict.DIFFERENT, reason, action).replace(seconds=seconds)


_REPAIR_NAMES = {DIAGNOSE: "a check of the node", REBOOT: "a reboot", REPLACE: "a replacement"}


def _judgement_of_action(verdict: Verdict, reason: str, action: NodeEvent) -> Judgement:
    return Judgement(
        verdict=verdict,
        reason=reason,
        actor=action.actor,
        happened_at=action.at,
        evidence=_nonempty_texts(action.evidence),
    )


def _unknown_judgement(cause: Cause, reason: str, *evidence: str) -> Judgement:
    return Judgement(verdict=Verdict.UNKNOWN, cause=cause, reason=reason, evidence=_nonempty_texts(*evidence))


def _nonempty_texts(*evidence: str) -> tuple[str, ...]:
    return tuple(text for text in evidence if text)


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _format_duration(seconds: float) -> str:
    """Return a length of time for people: 42 s, 7 min, 3 h 5 min."""
    if seconds < 120:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
