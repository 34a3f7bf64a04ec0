"""Answers of the control planes, read once and shared with their age.

A list of a large fleet takes dozens of calls, and AWS throttles them. So only the watch and the sweep take lists, and
each list serves every wait. A failed read is kept like an answer: a thousand waits must not repeat it.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from evenkeel.ports import EvenkeelError, Unreachable

T = TypeVar("T")
_READS_AT_ONCE = 8


class _CachedAnswer(NamedTuple):
    """A cached answer or error of one read."""

    answer: Any
    error: EvenkeelError | None
    read_at: datetime
    until: datetime


class ReadCache:
    """The reads of one tick, and reads of earlier ticks that are still fresh enough."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._answers: dict[tuple[str, str], _CachedAnswer] = {}
        self._silent: dict[str, EvenkeelError] = {}
        """Sources that did not answer in this tick. The tick does not call them again."""

    def begin_tick(self, now: datetime) -> None:
        """Forget every read that is too old for a new tick."""
        self.now = now
        self._silent.clear()
        self._answers = {name: cached for name, cached in self._answers.items() if now < cached.until}

    def store(self, source: str, what: str, answer: object) -> None:
        """Keep an answer that the caller read in this tick."""
        self._answers[source, what] = _CachedAnswer(answer, None, self.now, self.now)

    def read_ahead(self, reads: Iterable[tuple[str, str, Callable[[], object]]]) -> None:
        """Make several reads of this tick side by side, each given by source, part and call. Keep every answer."""
        missing = [(source, what, call) for source, what, call in reads if (source, what) not in self._answers]
        if not missing:
            return
        with ThreadPoolExecutor(max_workers=_READS_AT_ONCE) as readers:
            answers = [readers.submit(self._read, source, call, self.now) for source, _, call in missing]
        for (source, what, _), answer in zip(missing, answers, strict=True):
            self._answers[source, what] = answer.result()

    def read(self, source: str, what: str, call: Callable[[], T], *, seconds: float = 0) -> T:
        """Return the answer of a call, or raise its error, as it was when it was first read.

        Args:
            source: The control plane.
            what: The part of it that the call reads.
            call: The read.
            seconds: How long later ticks may use the answer, or must not repeat the failure.
        """
        return self.read_with_time(source, what, call, seconds=seconds)[0]

    def read_with_time(
        self, source: str, what: str, call: Callable[[], T], *, seconds: float = 0
    ) -> tuple[T, datetime]:
        """Return the answer as `read` does, and the time at which it was read."""
        cached = self._answers.get((source, what))
        if cached is None:
            cached = self._answers[source, what] = self._read(source, call, self.now + timedelta(seconds=seconds))
        if cached.error is not None:
            raise cached.error.with_traceback(None)
        answer: T = cached.answer
        return answer, cached.read_at

    def _read(self, source: str, call: Callable[[], Any], until: datetime) -> _CachedAnswer:
        error: EvenkeelError | None = self._silent.get(source)
        answer = None
        if error is None:
            try:
                answer = call()
            except EvenkeelError as failure:
                error = failure
                if isinstance(failure, Unreachable):
                    self._silent[source] = failure
        return _CachedAnswer(answer, error, self.now, until)
