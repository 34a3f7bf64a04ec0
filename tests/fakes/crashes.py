"""A process that dies before or after an effect that a test chooses."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar, cast

from evenkeel.ports import Key, Ledger, Page, Row, Table, Write

Port = TypeVar("Port")


class Crash(BaseException):
    """The process died. Not an Exception, so that no handler catches it."""


class CrashTiming(StrEnum):
    """On which side of the effect the process dies."""

    BEFORE = "before"
    AFTER = "after"


@dataclass
class CrashPlan:
    """Counts effects over all ports that share it, and dies at the chosen one (1 = the first; 0 = never)."""

    at: int = 0
    when: CrashTiming | str = CrashTiming.BEFORE
    effects: list[str] = field(default_factory=list)
    """Name of every effect reached so far."""

    def around(self, name: str, effect: Callable[[], Any]) -> Any:
        self.effects.append(name)
        dies = len(self.effects) == self.at
        if dies and self.when == CrashTiming.BEFORE:
            raise Crash(f"before effect {self.at}, {name}")
        result = effect()
        if dies:
            raise Crash(f"after effect {self.at}, {name}")
        return result


class CrashingLedger:
    """A ledger that kills the process right before or right after its n-th commit."""

    def __init__(
        self,
        ledger: Ledger,
        at: int = 0,
        when: CrashTiming | str = CrashTiming.BEFORE,
        *,
        plan: CrashPlan | None = None,
    ) -> None:
        self._ledger = ledger
        self.plan = plan or CrashPlan(at, when)

    def get(self, key: Key) -> Row | None:
        return self._ledger.get(key)

    def batch_get(self, *keys: Key) -> tuple[Row | None, ...]:
        return self._ledger.batch_get(*keys)

    def partition(self, table: Table, pk: str, prefix: str = "") -> tuple[Row, ...]:
        return self._ledger.partition(table, pk, prefix)

    def by_state(
        self,
        table: Table,
        state: str,
        *,
        prefix: str = "",
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> Page:
        return self._ledger.by_state(table, state, prefix=prefix, limit=limit, cursor=cursor, newest_first=newest_first)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        self.plan.around("commit", lambda: self._ledger.commit(*writes, client_token=client_token))


def crashing(port: Port, plan: CrashPlan, *methods: str) -> Port:
    """Return a port whose named methods count as effects of the plan; other methods are unchanged."""

    class Crashing:
        def __getattr__(self, name: str) -> Any:
            member = getattr(port, name)
            if name not in methods:
                return member

            @functools.wraps(member)
            def call(*args: Any, **kwargs: Any) -> Any:
                return plan.around(name, lambda: member(*args, **kwargs))

            return call

    return cast("Port", Crashing())
