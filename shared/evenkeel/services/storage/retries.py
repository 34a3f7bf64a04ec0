"""Commits when another writer was first: decided again, or left to the next run."""

from collections.abc import Callable
from typing import TypeVar

from evenkeel.ports import Conflict, Ledger, Write

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


def commit_if_unchanged(ledger: Ledger, *writes: Write) -> bool:
    """Commit, and return True. If another writer changed one of the rows first, return False.

    For writes that need no second try: the row of the other writer serves as well, or the next run reads it.
    Idempotent: yes, by the versions in the writes.
    """
    try:
        ledger.commit(*writes)
    except Conflict:
        return False
    return True
