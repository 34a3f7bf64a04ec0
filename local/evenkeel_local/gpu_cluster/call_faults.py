"""Call-level faults: any call, by match, becomes slow, fails, is throttled, loses its answer or has its watch dropped.

Both API servers pass every call through `CallFaults`; drills and tests put rules in through the control address.
"""

from __future__ import annotations

import asyncio
import fnmatch
import itertools
from dataclasses import dataclass, field
from typing import Literal

Effect = Literal["latency", "error", "throttle", "lost-reply", "drop-watch"]


@dataclass(frozen=True)
class ApiCall:
    """One call, in the words a rule matches on.

    `operation` is an operation's name for the AWS APIs (`BatchReplaceClusterNodes`) and `verb resource` for Kubernetes
    (`patch nodes`, `create pods/eviction`).
    """

    api: Literal["hyperpod", "eks", "kubernetes"]
    operation: str
    subject: str = ""
    caller: str = ""


@dataclass
class CallFault:
    """A rule: which calls it applies to, what it does to them, and how often it still applies."""

    effect: Effect
    api: str = "*"
    operation: str = "*"
    subject: str = "*"
    caller: str = "*"
    times: int | None = 1
    seconds: float = 0.0
    status: int = 500
    code: str = "InternalServerError"
    message: str = "An internal error occurred."
    id: str = ""
    hits: int = 0

    def applies_to(self, call: ApiCall) -> bool:
        """Whether the rule is about this call and not used up."""
        return (self.times is None or self.hits < self.times) and all(
            fnmatch.fnmatchcase(actual, wanted)
            for actual, wanted in (
                (call.api, self.api),
                (call.operation, self.operation),
                (call.subject, self.subject),
                (call.caller, self.caller),
            )
        )


class CallFailed(Exception):
    """The rule says that this call fails before it has any effect."""

    def __init__(self, fault: CallFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class ReplyLost(Exception):
    """The rule says that the call takes effect and its answer never arrives."""


@dataclass
class CallFaults:
    """The rules in force, and the counters of what was called."""

    rules: list[CallFault] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def add(self, fault: CallFault) -> str:
        """Put a rule in force; return its id."""
        fault.id = f"call-{next(self._numbers)}"
        self.rules.append(fault)
        return fault.id

    def remove(self, fault_id: str) -> bool:
        """Take a rule out of force; return whether it was there."""
        before = len(self.rules)
        self.rules = [rule for rule in self.rules if rule.id != fault_id]
        return len(self.rules) < before

    def _match_rule(self, call: ApiCall, *effects: Effect) -> CallFault | None:
        for rule in self.rules:
            if rule.effect in effects and rule.applies_to(call):
                rule.hits += 1
                return rule
        return None

    async def before(self, call: ApiCall) -> None:
        """Delay or fail a call before it has any effect.

        Raises:
            CallFailed: a rule says so.
        """
        key = f"{call.api} {call.operation}"
        self.counts[key] = self.counts.get(key, 0) + 1
        if not self.rules:
            return
        slow = self._match_rule(call, "latency")
        if slow is not None:
            await asyncio.sleep(slow.seconds)
        failing = self._match_rule(call, "error", "throttle")
        if failing is not None:
            raise CallFailed(failing)

    def after(self, call: ApiCall) -> None:
        """Lose the answer of a call that had its effect.

        Raises:
            ReplyLost: a rule says so.
        """
        if self.rules and self._match_rule(call, "lost-reply") is not None:
            raise ReplyLost

    def drops_watch(self, call: ApiCall) -> bool:
        """Whether a rule breaks this watch now."""
        return bool(self.rules) and self._match_rule(call, "drop-watch") is not None
