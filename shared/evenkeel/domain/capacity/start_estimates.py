"""When committed capacity is expected to have room: the queue played forward on what runs now."""

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class RunningUse(NamedTuple):
    """Accelerators that something runs on, and for how much longer."""

    accelerators: int
    seconds_left: float


class WaitingUse(NamedTuple):
    """Accelerators that a waiting job asks for, and how long it will hold them."""

    accelerators: int
    seconds: float


def expected_starts(free: int, held: Iterable[RunningUse], queue: Sequence[WaitingUse]) -> tuple[float, ...]:
    """Return after how many seconds each job of a queue is expected to have its accelerators.

    Each job starts as soon as enough are free and not before anybody ahead of it; nodes are not told apart, so a gang
    that needs whole ones may wait longer. Infinite where even the empty pool is too small.
    """
    ends = [(each.seconds_left, each.accelerators) for each in held if each.accelerators]
    heapq.heapify(ends)
    everything = free + sum(accelerators for _, accelerators in ends)
    now, starts = 0.0, []
    for asked in queue:
        if asked.accelerators > everything:
            starts.append(float("inf"))
            continue
        while free < asked.accelerators:
            # Whatever ends next ends no earlier than now: starts only push later ends.
            now, accelerators = heapq.heappop(ends)
            free += accelerators
        free -= asked.accelerators
        starts.append(now)
        heapq.heappush(ends, (now + asked.seconds, asked.accelerators))
    return tuple(starts)


def remaining_seconds(estimate_seconds: float, ran_seconds: float) -> float:
    """Return how much longer a run is expected to take.

    One that has outrun its estimate is expected to take as long again as it is over by a half: run times have heavy
    tails, and the longer one has lasted the longer it will.
    """
    left = estimate_seconds - ran_seconds
    return left if left > 0 else max(60.0, ran_seconds / 2)


def expected_wait(forecast_seconds: float, waited_seconds: float) -> float:
    """Return how much longer a job is expected to wait.

    A forecast knows nothing of who will yet come and go ahead. A job that was to start soon and has waited for an hour
    all the same is taken to wait for another: so nobody pays for waiting much longer than renting would have cost.
    """
    return max(forecast_seconds, waited_seconds)
