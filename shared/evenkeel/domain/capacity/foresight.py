"""When a waiting job is expected to start: its own queue played forward, thrice."""

from collections.abc import Sequence

from evenkeel.domain.capacity.start_estimates import RunningUse, WaitingUse, expected_starts, remaining_seconds
from evenkeel.domain.values import Value

BASIS = "Its own queue played forward on how long its last jobs ran; what others lend or take back is not foreseen."
_EARLY, _LIKELY, _LATE = 0.1, 0.5, 0.9


class StartEstimate(Value):
    """After how many seconds, and between which; None = no end is seen."""

    seconds: float | None
    earliest_seconds: float | None
    latest_seconds: float | None
    samples: int
    """Runs that it rests on."""


def estimate_start(
    free: int, held: Sequence[tuple[int, float]], ahead: Sequence[int], asked: int, runs: Sequence[float]
) -> StartEstimate:
    """Estimate a job's start from how long jobs ran: the median, and the band of the shortest and longest tenth.

    Args:
        free: Accelerators that its queue could have now.
        held: What runs in its queue: accelerators, and for how many seconds it has run.
        ahead: Accelerators of each job before it.
        asked: Its own.
        runs: Seconds that jobs of its queue ran, at least one.
    """
    ordered = sorted(runs)
    found = []
    for share in (_EARLY, _LIKELY, _LATE):
        long = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        running = [RunningUse(accelerators, remaining_seconds(long, ran)) for accelerators, ran in held]
        starts = expected_starts(free, running, [WaitingUse(each, long) for each in (*ahead, asked)])
        found.append(None if starts[-1] == float("inf") else round(starts[-1], 1))
    # A longer run of those that run already is not always a later start; the band holds what is likely all the same.
    known = [each for each in found if each is not None]
    return StartEstimate(
        seconds=found[1],
        earliest_seconds=min(known) if known else None,
        latest_seconds=max(known) if None not in found else None,
        samples=len(runs),
    )
