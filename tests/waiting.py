"""Waits for a condition with a deadline, instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 30.0
_T = TypeVar("_T")


def until(condition: Callable[[], _T], what: str, patience_seconds: float = PATIENCE_SECONDS) -> _T:
    """Poll until `condition` returns a true value, and return it; fail with `what` after the timeout.

    Later polls are less frequent: polling takes time from the processes under test.
    """
    deadline = time.monotonic() + patience_seconds
    pause = 0.02
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {patience_seconds:.0f} s in vain for: {what}"
        time.sleep(pause)
        pause = min(0.5, pause * 1.2)
    return answer
