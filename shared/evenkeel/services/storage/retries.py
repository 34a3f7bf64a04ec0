"""Commits that are decided again when another writer was first."""

from collections.abc import Callable
from typing import TypeVar

from evenkeel.ports import Conflict

T = TypeVar("T")
MAX_TRIES = 5


def until_committed(attempt: Callable[[], T], message: str, *, tries: int = MAX_TRIES) -> T:
    """Return the result of `attempt`, which reads, decides and commits. Call it again if its commit conflicts.

    Idempotent: as far as `attempt` is. `attempt` must read its rows anew in each call.

    Raises:
        Conflict: every try conflicted; says `message`. A subclass of it passes at once.
    """
    for _ in range(tries):
        try:
            return attempt()
        except Conflict as conflict:
            if type(conflict) is not Conflict:
                raise  # an answer to the caller, such as `StaleVersion`: no further try changes it
    raise Conflict(message)
