"""Ports that count their calls, so that a test can compare fleets of two sizes."""

import functools
import math
from collections import Counter
from typing import Any

from evenkeel.ports import Page
from tests.fakes.world import FakeWorld

PAGES = {"provider.nodes": 100, "cluster.nodes": 500, "cluster.pods": 500, "cluster.workloads": 500}
"""Objects in one page of the API, by the method that reads all pages."""
COUNTED = (
    "ledger",
    "cluster",
    "provider",
    "node_groups",
    "capacity_reservations",
    "workflows",
    "wait_answers",
    "cycle_requests",
    "inbox",
)


class CountedCalls:
    """The ports of a world, each wrapped so that its calls are counted. A list counts once for each of its pages."""

    def __init__(self, world: FakeWorld) -> None:
        self.calls: Counter[str] = Counter()
        self.rows_read = 0
        """Rows that lists of the ledger returned."""
        self.ports: dict[str, Any] = {name: _Counting(name, getattr(world, name), self) for name in COUNTED}

    def clear(self) -> None:
        self.calls.clear()
        self.rows_read = 0

    def note(self, method: str, answer: Any) -> None:
        size = len(answer) if isinstance(answer, tuple) else 0
        self.calls[method] += max(1, math.ceil(size / PAGES.get(method, size or 1)))
        if isinstance(answer, Page):
            self.rows_read += len(answer.rows)


class _Counting:
    def __init__(self, name: str, port: Any, counted: CountedCalls) -> None:
        self._name, self._port, self._counted = name, port, counted

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._port, name)
        if not callable(member):
            return member

        @functools.wraps(member)
        def call(*args: Any, **kwargs: Any) -> Any:
            answer = member(*args, **kwargs)
            self._counted.note(f"{self._name}.{name}", answer)
            return answer

        return call
