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
    own_manifests: Sequence[Manifest], resumed_step: int, running_at: datetime, ended_at: datetime | None = None
) -> datetime | None:
    """Return when an attempt trained again; None if fewer than two checkpoints show it.

    Args:
        own_manifests: The first checkpoints of the attempt, in any order.
        resumed_step: The step of its resume point.
        running_at: When every pod of it ran. The result is not before.
        ended_at: When the attempt ended; None if it runs. Checkpoints that began later show nothing: any program can
            write their times.
    """
    past = sorted(
        (checkpoint for checkpoint in own_manifests if checkpoint.step > resumed_step),
        key=lambda checkpoint: checkpoint.step,
    )
    if len(past) < 2:
        return None
    first_manifest, second_manifest = past[:2]
    if second_manifest.started_at <= first_manifest.started_at or first_manifest.started_at <= running_at:
        return None  # the clocks of the ranks disagree with each other or with the service
    if ended_at is not None and second_manifest.started_at > ended_at:
        return None
    step = (second_manifest.started_at - first_manifest.started_at) / (second_manifest.step - first_manifest.step)
    return max(running_at, first_manifest.started_at - (first_manifest.step - resumed_step) * step)


class SaveTimes(NamedTuple):
    """How long a save of an attempt takes, and how often it saves."""

    save_seconds: float
    """From the first rank that began to write until the manifest. At most this: a script may train meanwhile."""
    interval_seconds: float
    """From the start of a save to the start of the next save."""


def save_times(own_manifests: Sequence[Manifest]) -> SaveTimes | None:
    """Return the times of an attempt's first two saves; None if fewer than two checkpoints show them.

    Args:
        own_manifests: The first checkpoints of the attempt, in any order.
    """
    if len(own_manifests) < 2:
        return None
    first_manifest, second_manifest = sorted(own_manifests, key=lambda checkpoint: checkpoint.step)[:2]
    interval = (second_manifest.started_at - first_manifest.started_at).total_seconds()
    durations = [
        (checkpoint.created_at - checkpoint.started_at).total_seconds()
        for checkpoint in (first_manifest, second_manifest)
    ]
    if interval <= 0 or min(durations) < 0 or durations[0] > interval:
        return None  # the clocks of the ranks disagree
    return SaveTimes(sum(durations) / 2, interval)
