"""Waiting for a condition, with a deadline: what tests do instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 30.0
_T = TypeVar("_T")


def until(condition: Callable[[], _T], what: str, patience_seconds: float = PATIENCE_SECONDS) -> _T:
    """Poll until `condition` answers something true, and return it. Fail with `what` after the patience.

    What takes long is looked at less often: whoever looks takes from those that are waited for.
    """
    deadline = time.monotonic() + patience_seconds
    pause = 0.02
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {patience_seconds:.0f} s in vain for: {what}"
        time.sleep(pause)
        pause = min(0.2, pause * 1.2)
    return answer
