"""Start estimates: simulate a queue forward from the running jobs."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from evenkeel.domain.capacity.network_topology import NetworkLevel
from evenkeel.domain.values import Value

ESTIMATE_METHOD = (
    "Simulates the job's own queue with the run times of its last jobs. "
    "Borrowing and reclaiming by other queues are not included. "
    "If the job requires a network level, one domain must have enough empty nodes."
)
_EARLY, _LIKELY, _LATE = 0.1, 0.5, 0.9


class RunningUse(NamedTuple):
    """Accelerators in use, and how much longer they stay in use."""

    accelerators: int
    seconds_left: float


class WaitingUse(NamedTuple):
    """Accelerators that a pending job needs, and how long it will hold them."""

    accelerators: int
    seconds: float
    whole_nodes: int = 0
    """Nodes that it needs for itself; 0 if it may share a node with other jobs."""
    level: NetworkLevel | None = None
    """All of its nodes must be in one domain of this level; None if they may be anywhere in the pool."""


def expected_starts(
    free_accelerators: int, running_uses: Iterable[RunningUse], queue: Sequence[WaitingUse]
) -> tuple[float, ...]:
    """Return after how many seconds each job of a queue is expected to get its accelerators.

    Each job starts as soon as enough are free, and not before a job ahead of it. Nodes are not told apart: a job that
    needs whole nodes may wait longer. Infinite if even the empty pool is too small.
    """
    ends = [
        (running_use.seconds_left, running_use.accelerators) for running_use in running_uses if running_use.accelerators
    ]
    heapq.heapify(ends)
    total = free_accelerators + sum(accelerators for _, accelerators in ends)
    now, starts = 0.0, []
    for demand in queue:
        if demand.accelerators > total:
            starts.append(float("inf"))
            continue
        while free_accelerators < demand.accelerators:
            # The next end is never before `now`, because a job that starts ends later.
            now, accelerators = heapq.heappop(ends)
            free_accelerators += accelerators
        free_accelerators -= demand.accelerators
        starts.append(now)
        heapq.heappush(ends, (now + demand.seconds, demand.accelerators))
    return tuple(starts)


def after_whole_nodes(
    starts: Sequence[float], queue: Sequence[WaitingUse], empty_after: Sequence[float]
) -> tuple[float, ...]:
    """Delay the starts of a queue until enough nodes for each gang are expected to be empty at the same time.

    Free accelerators on many nodes are of no use to a job that needs whole nodes.

    Args:
        starts: Starts by the free accelerators alone.
        queue: The queue.
        empty_after: For each node, after how many seconds its last job is expected to end; 0 if it is empty.
    """
    seconds_until_empty, nodes_used, later = sorted(empty_after), 0, []
    for start, demand in zip(starts, queue, strict=True):
        nodes_used += demand.whole_nodes
        if demand.whole_nodes:
            later.append(max([start, *seconds_until_empty[min(nodes_used, len(seconds_until_empty)) - 1 :][:1]]))
        else:
            later.append(start)
    return tuple(later)


def after_domains(
    starts: Sequence[float],
    queue: Sequence[WaitingUse],
    empty_after: Mapping[NetworkLevel, Sequence[Sequence[float]]],
) -> tuple[float, ...]:
    """Delay the starts of gangs that require a network level until one domain is expected to have enough empty nodes.

    Each gang takes the domain that is ready first, and holds its nodes there for its run time. Infinite if no domain
    has enough nodes.

    Args:
        starts: Starts without regard to levels.
        queue: The queue.
        empty_after: Level → for each of its domains, after how many seconds each node is expected to be empty.
    """
    domains_by_level = {level: [sorted(domain) for domain in domains] for level, domains in empty_after.items()}
    later = []
    for start, demand in zip(starts, queue, strict=True):
        nodes = demand.whole_nodes
        if demand.level is None or not nodes:
            later.append(start)
            continue
        large_enough = [domain for domain in domains_by_level.get(demand.level, ()) if len(domain) >= nodes]
        domain = min(large_enough, key=lambda domain: domain[nodes - 1], default=None)
        begins = float("inf") if domain is None else max(start, domain[nodes - 1])
        if domain is not None:
            domain[:] = sorted([*domain[nodes:], *[begins + demand.seconds] * nodes])
        later.append(begins)
    return tuple(later)


def remaining_seconds(estimate_seconds: float, ran_seconds: float) -> float:
    """Return how much longer a run is expected to take.

    A run that has exceeded its estimate is expected to take half as long again as it already ran. Run times have heavy
    tails: the longer a run has lasted, the longer it will last.
    """
    seconds_left = estimate_seconds - ran_seconds
    return seconds_left if seconds_left > 0 else max(60.0, ran_seconds / 2)


def expected_wait(forecast_seconds: float, waited_seconds: float) -> float:
    """Return how much longer a job is expected to wait.

    A forecast does not include jobs that will arrive later and go ahead. A job that should have started but has waited
    for an hour is therefore expected to wait for another hour. So waiting costs at most a constant factor more than
    renting would have.
    """
    return max(forecast_seconds, waited_seconds)


class StartEstimate(Value):
    """The expected start in seconds from now, with a range; None if no running job is expected to end."""

    seconds: float | None
    earliest_seconds: float | None
    latest_seconds: float | None
    samples: int
    """Number of past runs from which the start is estimated."""


class DomainDemand(NamedTuple):
    """A gang that requires a network level, and the domains of that level."""

    level: NetworkLevel
    nodes: int
    """Nodes of the gang."""
    domains: Sequence[Sequence[float | None]]
    """For each domain, for how many seconds the newest job of each node has run; None if the node is idle."""


def estimate_start(
    free_accelerators: int,
    running_uses: Sequence[tuple[int, float]],
    ahead: Sequence[int],
    demand: int,
    runs: Sequence[float],
    in_domain: DomainDemand | None = None,
) -> StartEstimate:
    """Estimate a job's start from past run times: by the median, and by the shortest and longest tenth.

    Args:
        free_accelerators: Accelerators that its queue could use now.
        running_uses: Running jobs of its queue: accelerators, and for how many seconds they have run.
        ahead: Accelerators of each job before it.
        demand: Accelerators of the job itself.
        runs: Run times of past jobs of its queue in seconds, at least one.
        in_domain: The domains of the level that the job requires; None if it requires none.
    """
    sorted_runs = sorted(runs)
    estimates = []
    for share in (_EARLY, _LIKELY, _LATE):
        long_run = sorted_runs[min(len(sorted_runs) - 1, int(share * len(sorted_runs)))]
        uses = [RunningUse(accelerators, remaining_seconds(long_run, ran)) for accelerators, ran in running_uses]
        starts = expected_starts(
            free_accelerators, uses, [WaitingUse(accelerators, long_run) for accelerators in (*ahead, demand)]
        )
        if in_domain:
            empty_after = [
                [0.0 if ran is None else remaining_seconds(long_run, ran) for ran in domain]
                for domain in in_domain.domains
            ]
            own_use = WaitingUse(demand, long_run, in_domain.nodes, in_domain.level)
            starts = after_domains(starts[-1:], [own_use], {in_domain.level: empty_after})
        estimates.append(None if starts[-1] == float("inf") else round(starts[-1], 1))
    # A longer run time does not always mean a later start, so the range covers all three estimates.
    known_estimates = [estimate for estimate in estimates if estimate is not None]
    return StartEstimate(
        seconds=estimates[1],
        earliest_seconds=min(known_estimates) if known_estimates else None,
        latest_seconds=max(known_estimates) if None not in estimates else None,
        samples=len(runs),
    )
