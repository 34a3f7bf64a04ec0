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
        self._answers = {name: answer for name, answer in self._answers.items() if now < answer.until}

    def store(self, source: str, subject: str, answer: object) -> None:
        """Keep an answer that the caller read in this tick."""
        self._answers[source, subject] = _CachedAnswer(answer, None, self.now, self.now)

    def read_ahead(self, reads: Iterable[tuple[str, str, Callable[[], object]]]) -> None:
        """Make several reads of this tick side by side, each given by source, part and call. Keep every answer."""
        missing_reads = [
            (source, subject, call) for source, subject, call in reads if (source, subject) not in self._answers
        ]
        if not missing_reads:
            return
        with ThreadPoolExecutor(max_workers=_READS_AT_ONCE) as readers:
            answers = [readers.submit(self._read, source, call, self.now) for source, _, call in missing_reads]
        for (source, subject, _), answer in zip(missing_reads, answers, strict=True):
            self._answers[source, subject] = answer.result()

    def read(self, source: str, subject: str, call: Callable[[], T], *, seconds: float = 0) -> T:
        """Return the answer of a call, or raise its error, as it was when it was first read.

        Args:
            source: The control plane.
            subject: The part of it that the call reads.
            call: The read.
            seconds: How long later ticks may use the answer, or must not repeat the failure.
        """
        return self.read_with_time(source, subject, call, seconds=seconds)[0]

    def read_with_time(
        self, source: str, subject: str, call: Callable[[], T], *, seconds: float = 0
    ) -> tuple[T, datetime]:
        """Return the answer as `read` does, and the time at which it was read."""
        cached_answer = self._answers.get((source, subject))
        if cached_answer is None:
            cached_answer = self._answers[source, subject] = self._read(
                source, call, self.now + timedelta(seconds=seconds)
            )
        if cached_answer.error is not None:
            raise cached_answer.error.with_traceback(None)
        answer: T = cached_answer.answer
        return answer, cached_answer.read_at

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
