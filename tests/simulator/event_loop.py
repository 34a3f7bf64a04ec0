"""Virtual time: a heap of scheduled events. Only events move the clock."""

import heapq
import itertools
from collections.abc import Callable
from datetime import datetime, timedelta

from tests.fakes.system import A_MOMENT


class VirtualTimeLoop:
    """Events in order of time, then of insertion. An event may run the loop itself: that is a pause."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def now(self) -> datetime:
        """The clock that services read."""
        return A_MOMENT + timedelta(seconds=self.seconds)

    def after(self, seconds: float, event: Callable[[], object]) -> None:
        heapq.heappush(self._heap, (self.seconds + seconds, next(self._numbers), event))

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Run all events that are due until then, or until `stop` returns true."""
        while self._heap and self._heap[0][0] <= until:
            at, _, event = heapq.heappop(self._heap)
            self.seconds = max(self.seconds, at)
            event()
            if stop():
                return
        self.seconds = max(self.seconds, until)
