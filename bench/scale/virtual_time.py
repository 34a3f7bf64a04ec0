"""Modelled time: blocking code runs as processes, and only their waits advance the clock.

Only the process runs whose wait ends first, so a run depends on its seed alone. A process is a
thread, because the services are written as blocking code and are run unchanged.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, Self

from tests.fakes.system import A_MOMENT, FixedClock


class _Process(threading.Thread):
    """Blocking code whose waits take modelled time."""

    def __init__(self, time: VirtualTime, work: Callable[[], object], number: int) -> None:
        super().__init__(name=f"modelled-{number}", daemon=True)
        self.may_run = threading.Semaphore(0)
        self.error: BaseException | None = None
        self.context: Any = None
        """The invocation that this code belongs to, if any."""
        self._time, self._work = time, work

    def run(self) -> None:
        self.may_run.acquire()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised again by `VirtualTime.run`
            self.error = error
        self._time.hand_back()


class VirtualTime:
    """The clock, and the processes in the order in which their waits end."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._due: list[tuple[float, int, _Process]] = []
        self._numbers = itertools.count()
        self._idle = threading.Semaphore(0)
        self._current: _Process | None = None

    def spawn(self, work: Callable[[], object], *, after: float = 0.0, context: Any = None) -> None:
        """Start a process after a number of seconds."""
        process = _Process(self, work, next(self._numbers))
        process.context = context
        process.start()
        self._wake(process, after)

    def sleep(self, seconds: float) -> None:
        """Make the current process wait."""
        process = self.current
        self._wake(process, max(0.0, seconds))
        self._pause(process)

    def park(self) -> Callable[[], None]:
        """Return the function that wakes the current process. Call `pause` to wait for it."""
        process = self.current
        return lambda: self._wake(process, 0.0)

    def pause(self) -> None:
        """Wait until the function of `park` is called."""
        self._pause(self.current)

    @property
    def current(self) -> _Process:
        assert self._current is not None, "only a process can wait"
        return self._current

    @property
    def context(self) -> Any:
        return self._current.context if self._current else None

    def run(self) -> None:
        """Run until no process waits for the clock.

        Raises:
            BaseException: the first error of a process.
        """
        while self._due:
            self.seconds, _, process = heapq.heappop(self._due)
            self._current = process
            process.may_run.release()
            self._idle.acquire()
            self._current = None
            if process.error is not None:
                raise process.error

    def hand_back(self) -> None:
        """End the present process."""
        self._idle.release()

    def _wake(self, process: _Process, after: float) -> None:
        heapq.heappush(self._due, (self.seconds + after, next(self._numbers), process))

    def _pause(self, process: _Process) -> None:
        self._idle.release()
        process.may_run.acquire()


class Slots:
    """A number of slots. A process that finds none free waits in order of arrival."""

    def __init__(self, time: VirtualTime, limit: int) -> None:
        self._time, self.free = time, limit
        self.limit = limit
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def take(self, count: int = 1) -> float:
        """Take slots; return the seconds of waiting for them."""
        count, began = min(count, self.limit), self._time.seconds
        if self._waiting or self.free < count:
            self._waiting.append((count, self._time.park()))
            self._time.pause()
        else:
            self.free -= count
        return self._time.seconds - began

    def give(self, count: int = 1) -> None:
        """Release slots."""
        self.free += min(count, self.limit)
        while self._waiting and self._waiting[0][0] <= self.free:
            needed, wake = self._waiting.popleft()
            self.free -= needed
            wake()


class Bucket:
    """A token bucket with a capacity and a refill rate. A call without a token waits for one."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self._tokens, self._at = burst, 0.0

    def take(self, now: float) -> bool:
        """Take a token if there is one."""
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait_for(self, tokens: float, now: float) -> float:
        """Take tokens, and return how long the caller must wait for them."""
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        self._tokens -= tokens
        return max(0.0, -self._tokens / self.rate)


class ModelClock(FixedClock):
    """The modelled time, as services and fakes read it. It begins a minute after the fleet was built."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self._time = time

    def now(self) -> datetime:
        return A_MOMENT + timedelta(seconds=60 + self._time.seconds)

    def advance(self, seconds: float) -> datetime:
        self._time.sleep(seconds)
        return self.now()


def executor_of(time: VirtualTime) -> type[Any]:
    """Return a stand-in for `ThreadPoolExecutor` whose work runs as processes."""

    class Executor:
        """A thread pool on virtual time."""

        def __init__(self, max_workers: int = 1, **_: Any) -> None:
            self._slots = Slots(time, max_workers)
            self._open: list[_Branch] = []

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self.shutdown()

        def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
            branch = _Branch(time, self._slots, lambda: work(*given))
            self._open.append(branch)
            return branch

        def shutdown(self, **_: Any) -> None:
            for branch in self._open:
                branch.join()

    return Executor


class _Branch(Future[Any]):
    """Work of an executor. Its result is waited for in modelled time."""

    def __init__(self, time: VirtualTime, slots: Slots, work: Callable[[], Any]) -> None:
        super().__init__()
        self._time, self._wakers = time, list[Callable[[], None]]()
        self._parent = parent = time.context
        self._context = context = parent.fork() if parent is not None else None

        def run() -> None:
            slots.take()
            try:
                if context is not None:
                    context.resume()
                self.set_result(work())
            except Exception as error:  # noqa: BLE001 - raised again by `result`
                self.set_exception(error)
            if context is not None:
                context.settle()
            slots.give()
            for wake in self._wakers:
                wake()

        time.spawn(run, context=context)

    def join(self) -> None:
        if self._context is not None and self._time.context is self._parent:
            self._parent.join(self._context)
        if not self.done():
            self._wakers.append(self._time.park())
            self._time.pause()

    def result(self, timeout: float | None = None) -> Any:
        self.join()
        return super().result(timeout)
