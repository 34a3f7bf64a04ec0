"""Ask for one answer, and then give it time: asking at every look would start a crowd of functions to do one thing."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from evenkeel.domain.values import rfc3339
from evenkeel.ports import Clock, WaitAnswers

REPEAT_INTERVAL = timedelta(seconds=10)
"""An answer takes well under a second, a cold start included; an ask that got lost is repeated after this."""


class DebouncedWaitAnswers:
    """A `WaitAnswers` that remembers what it asked for.

    Args:
        answers: Whom to ask.
        clock: The time.
        asked: What was asked for before, and when: from an earlier round's `asked`.
        leaves_first_to_watch: Whether somebody watches: then what is seen for the first time is noted and left to the
            watch, and asked for only if it is still there later.
    """

    def __init__(
        self,
        answers: WaitAnswers,
        clock: Clock,
        asked: Mapping[str, str] | None = None,
        *,
        defers_to_watch: bool = False,
    ) -> None:
        self._answers = answers
        self._clock = clock
        self._before = dict(asked or {})
        self._defers_to_watch = defers_to_watch
        self.asked: dict[str, str] = {}
        """When each answer that is due was last asked for, or first seen."""
        self.requests = 0

    def request(self, subject: str, name: str, generation: int, answer: Mapping[str, Any]) -> None:
        """Ask, unless that was done a moment ago."""
        now = self._clock.now()
        key = f"{subject}/{name}/{generation}"
        last = self.asked.get(key) or self._before.get(key)
        if last is not None and now - datetime.fromisoformat(last) < REPEAT_INTERVAL:
            self.asked[key] = last
            return
        self.asked[key] = rfc3339(now)
        if last is None and self._defers_to_watch:
            return
        self.requests += 1
        self._answers.request(subject, name, generation, answer)
