"""Rules that disturb API calls: delay them, fail them, throttle them, drop their answers or end their watches.

Both API servers pass every call through `CallFaults`. Drills and tests add rules through the control address.
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
    """A call, with the fields that rules match.

    `operation` is the operation's name for the AWS APIs (`BatchReplaceClusterNodes`) and `verb resource` for Kubernetes
    (`patch nodes`, `create pods/eviction`).
    """

    api: Literal["hyperpod", "eks", "autoscaling", "kubernetes"]
    operation: str
    subject: str = ""
    caller: str = ""


@dataclass
class CallFault:
    """A rule that disturbs API calls: the calls that it matches, its effect, and how often it applies."""

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
        """Whether the rule matches this call and has not been applied the maximum number of times."""
        return (self.times is None or self.hits < self.times) and all(
            fnmatch.fnmatchcase(actual, pattern)
            for actual, pattern in (
                (call.api, self.api),
                (call.operation, self.operation),
                (call.subject, self.subject),
                (call.caller, self.caller),
            )
        )


class CallFailed(Exception):
    """Raised if a rule makes a call fail before it has an effect."""

    def __init__(self, fault: CallFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class ReplyLost(Exception):
    """Raised if a rule drops the answer of a call after the call had its effect."""


@dataclass
class CallFaults:
    """The rules that disturb API calls now, and the number of calls of each operation."""

    rules: list[CallFault] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def add(self, fault: CallFault) -> str:
        """Add a rule; return its id."""
        fault.id = f"call-{next(self._numbers)}"
        self.rules.append(fault)
        return fault.id

    def remove(self, fault_id: str) -> bool:
        """Remove a rule; return whether it existed."""
        count_before = len(self.rules)
        self.rules = [rule for rule in self.rules if rule.id != fault_id]
        return len(self.rules) < count_before

    def _match_rule(self, call: ApiCall, *effects: Effect) -> CallFault | None:
        for rule in self.rules:
            if rule.effect in effects and rule.applies_to(call):
                rule.hits += 1
                return rule
        return None

    async def before(self, call: ApiCall) -> None:
        """Delay or fail a call before it has an effect.

        Raises:
            CallFailed: a rule makes the call fail.
        """
        key = f"{call.api} {call.operation}"
        self.counts[key] = self.counts.get(key, 0) + 1
        if not self.rules:
            return
        slow = self._match_rule(call, "latency")
        if slow is not None:
            await asyncio.sleep(slow.seconds)
        failing_rule = self._match_rule(call, "error", "throttle")
        if failing_rule is not None:
            raise CallFailed(failing_rule)

    def after(self, call: ApiCall) -> None:
        """Drop the answer of a call that had its effect.

        Raises:
            ReplyLost: a rule drops the answer.
        """
        if self.rules and self._match_rule(call, "lost-reply") is not None:
            raise ReplyLost

    def drops_watch(self, call: ApiCall) -> bool:
        """Whether a rule drops this watch now."""
        return bool(self.rules) and self._match_rule(call, "drop-watch") is not None
