"""Goodput: productive step time over elapsed time. Every other second is in exactly one bucket.

The buckets have the names of https://github.com/AI-Hypercomputer/ml-goodput-measurement, so that figures compare.
"""

import math
from enum import StrEnum

from evenkeel.domain.economics.figure_checks import FigureDocument, WrongFigure, at_least, more_than_0
from evenkeel.domain.values import Value

_TOLERANCE_SECONDS = 1e-6
"""Allowed error of the sum per second of elapsed time."""


class Bucket(StrEnum):
    """Kinds of time other than productive steps."""

    TPU_INITIALIZATION = "TPU_INITIALIZATION"
    """Start of the accelerators, GPUs included."""
    TRAINING_PREP = "TRAINING_PREP"
    PROGRAM_STARTUP = "PROGRAM_STARTUP"
    DATA_LOADING_SYNC = "DATA_LOADING_SYNC"
    DATA_LOADING_ASYNC = "DATA_LOADING_ASYNC"
    """Overlaps with steps. It is reported and never added."""
    UNPRODUCTIVE_CHECKPOINT_SAVE_TIME = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"
    UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME = "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"
    WASTED_PROGRESS_FROM_DISRUPTION = "WASTED_PROGRESS_FROM_DISRUPTION"
    """Time from the last kept step to the crash."""
    INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
    """Time from the crash to the next start of the job."""
    CUSTOM_BADPUT_EVENTS = "CUSTOM_BADPUT_EVENTS"
    OTHER = "OTHER"
    ELASTIC_SLICE_DOWN = "ELASTIC_SLICE_DOWN"
    ELASTIC_SCALE_UP = "ELASTIC_SCALE_UP"
    ELASTIC_REINITIALIZATION = "ELASTIC_REINITIALIZATION"


OVERLAPPING = frozenset({Bucket.DATA_LOADING_ASYNC})


class TimeSpent(FigureDocument):
    """The measured times of a job, in seconds."""

    elapsed_seconds: float
    """Time since the job started."""
    productive_seconds: float
    """Time in steps whose progress was kept."""
    buckets: dict[Bucket, float] = {}
    """If OTHER is missing, the rest of the time counts as OTHER."""


class BucketShare(Value):
    """One bucket."""

    bucket: Bucket
    seconds: float
    share: float
    """Share of the elapsed time."""
    is_added: bool
    """False: it overlaps with steps."""


class Goodput(Value):
    """Use of a job's time. Productive time and the added buckets sum to the elapsed time."""

    elapsed_seconds: float
    productive_seconds: float
    goodput: float
    badput: float
    buckets: tuple[BucketShare, ...]
    sum_seconds: float
    """Productive time and added buckets."""


def goodput(spent: TimeSpent) -> Goodput:
    """Return goodput and the share of each bucket.

    Raises:
        WrongFigure: a time is negative, or the times do not sum to the elapsed time.
    """
    elapsed_seconds = more_than_0("elapsed_seconds", spent.elapsed_seconds)
    productive = at_least("productive_seconds", spent.productive_seconds)
    seconds = {bucket: at_least(f"buckets.{bucket}", value) for bucket, value in spent.buckets.items()}
    assigned_seconds = math.fsum(
        [productive, *(value for bucket, value in seconds.items() if bucket not in OVERLAPPING)]
    )
    unassigned_seconds, tolerance_seconds = elapsed_seconds - assigned_seconds, _TOLERANCE_SECONDS * elapsed_seconds
    if unassigned_seconds < -tolerance_seconds:
        raise WrongFigure(
            "buckets",
            f"and the productive time sum to {assigned_seconds:g} s, {-unassigned_seconds:g} s more than elapsed",
        )
    if Bucket.OTHER not in seconds:
        seconds[Bucket.OTHER] = max(0.0, unassigned_seconds)
    elif unassigned_seconds > tolerance_seconds:
        raise WrongFigure(
            "buckets",
            f"and the productive time sum to {assigned_seconds:g} s, {unassigned_seconds:g} s less than elapsed",
        )
    return Goodput(
        elapsed_seconds=elapsed_seconds,
        productive_seconds=productive,
        goodput=productive / elapsed_seconds,
        badput=1 - productive / elapsed_seconds,
        buckets=tuple(
            BucketShare(
                bucket=bucket,
                seconds=seconds[bucket],
                share=seconds[bucket] / elapsed_seconds,
                is_added=bucket not in OVERLAPPING,
            )
            for bucket in Bucket
            if bucket in seconds
        ),
        sum_seconds=math.fsum([productive, *(seconds[bucket] for bucket in seconds if bucket not in OVERLAPPING)]),
    )
