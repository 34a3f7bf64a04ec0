"""When a resumed attempt trained again, and the time of its saves, from the first checkpoints of the attempt.

    resumed at step a, pods run ──▶ trains again ──▶ step b saved ──▶ step c saved
                                    └── (b - a) steps ──┘└─ (c - b) steps ─┘

The steps before b took as long as those between b and c. A save between b and c makes the steps look longer, so the
result is too early by at most the time of one save.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from evenkeel.domain.checkpoints.manifest import Manifest


def trained_at(
    saved: Sequence[Manifest], resumed_step: int, running_at: datetime, ended_at: datetime | None = None
) -> datetime | None:
    """Return when an attempt trained again; None if fewer than two checkpoints show it.

    Args:
        saved: The first checkpoints of the attempt, in any order.
        resumed_step: The step of its resume point.
        running_at: When every pod of it ran. The result is not before.
        ended_at: When the attempt ended; None if it runs. Checkpoints that began later show nothing: any program can
            write their times.
    """
    past = sorted(
        (checkpoint for checkpoint in saved if checkpoint.step > resumed_step), key=lambda checkpoint: checkpoint.step
    )
    if len(past) < 2:
        return None
    first, second = past[:2]
    if second.started_at <= first.started_at or first.started_at <= running_at:
        return None  # the clocks of the ranks disagree with each other or with the service
    if ended_at is not None and second.started_at > ended_at:
        return None
    step = (second.started_at - first.started_at) / (second.step - first.step)
    return max(running_at, first.started_at - (first.step - resumed_step) * step)


class SaveTimes(NamedTuple):
    """How long a save of an attempt takes, and how often it saves."""

    save_seconds: float
    """From the first rank that began to write until the manifest. At most this: a script may train meanwhile."""
    interval_seconds: float
    """From the beginning of a save to that of the next one."""


def save_times(saved: Sequence[Manifest]) -> SaveTimes | None:
    """Return the times of an attempt's first two saves; None if fewer than two checkpoints show them.

    Args:
        saved: The first checkpoints of the attempt, in any order.
    """
    if len(saved) < 2:
        return None
    first, second = sorted(saved, key=lambda checkpoint: checkpoint.step)[:2]
    interval = (second.started_at - first.started_at).total_seconds()
    durations = [(checkpoint.created_at - checkpoint.started_at).total_seconds() for checkpoint in (first, second)]
    if interval <= 0 or min(durations) < 0 or durations[0] > interval:
        return None  # the clocks of the ranks disagree
    return SaveTimes(sum(durations) / 2, interval)
