"""Request each answer once, then allow it time. A request in every tick would start many functions for one answer."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.values import rfc3339
from evenkeel.ports import Clock, WaitAnswerRequests

REPEAT_INTERVAL = timedelta(seconds=10)
"""An answer takes well under a second, a cold start included. A lost request is repeated after this."""


class DebouncedWaitAnswerRequests:
    """A `WaitAnswerRequests` that records its requests.

    Args:
        answers: Receives the requests.
        clock: The clock.
        requested: Earlier requests and their times, from the `requested` of an earlier tick.
        defers_to_watch: Whether the watch runs. Then an answer that becomes due is recorded and left to the
            watch, and requested only if it is still due later.
    """

    def __init__(
        self,
        answers: WaitAnswerRequests,
        clock: Clock,
        requested: Mapping[str, str] | None = None,
        *,
        defers_to_watch: bool = False,
    ) -> None:
        self._answers = answers
        self._clock = clock
        self._before = dict(requested or {})
        self._defers_to_watch = defers_to_watch
        self.requested: dict[str, str] = {}
        """Answer that is due → when it was last requested, or first seen."""
        self.requests = 0

    def request(self, subject: str, name: str, generation: int, answer: Mapping[str, Any]) -> None:
        """Request the answer, unless that was done a moment ago."""
        now = self._clock.now()
        key = f"{subject}/{name}/{generation}"
        last_requested_at = self.requested.get(key) or self._before.get(key)
        if last_requested_at is not None and now - datetime.fromisoformat(last_requested_at) < REPEAT_INTERVAL:
            self.requested[key] = last_requested_at
            return
        self.requested[key] = rfc3339(now)
        if last_requested_at is None and self._defers_to_watch:
            return
        self.requests += 1
        self._answers.request(subject, name, generation, answer)
