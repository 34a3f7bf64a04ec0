"""How much a job slows down if it resumes on nodes that are farther apart in the network.

    slowdown        = slowdown per level x levels that the nodes are farther apart than before
    expected time   = (1 - e^(-failures x remaining)) / failures      until the job ends, or a fault moves it again
    seconds lost    = slowdown x expected time

The expected time is the mean of an exponential time to the next fault, cut at the remaining time.
"""

import math
from typing import NamedTuple

from evenkeel.domain.capacity.network_topology import NetworkSpread
from evenkeel.domain.plurals import count_of
from evenkeel.domain.values import Sentence, Value


class NetworkFacts(Value):
    """How far apart the nodes of an interrupted job were, and the cost of a longer distance."""

    before: NetworkSpread | None
    """How far apart the nodes of the interrupted attempt were; None if the position of a node is unknown."""
    slowdown_per_level: float | None
    """The policy's figure; None if it is not set."""
    why_not_weighed: Sentence = ""
    """Why no slowdown counts for this job; empty if it counts."""
    remaining_seconds: float = 0
    """Expected remaining run time of the job."""
    failures_per_hour: float = 0
    """Expected faults of its nodes."""


class Slowdown(NamedTuple):
    """The slowdown of a resume option."""

    seconds: float | None = 0.0
    """Seconds that the job loses after it resumed; None if unknown, or not weighed."""
    text: str = ""
    """Why it is slower, or why that is unknown, in a few words; empty if the nodes are no farther apart."""


NO_SLOWDOWN = Slowdown()


def slowdown_on(spread: NetworkSpread | None, network: NetworkFacts | None) -> Slowdown:
    """Return the slowdown of a job on nodes with this distance.

    Args:
        spread: Distance between the nodes of the option; None if unknown.
        network: The facts of the job; None for a job on one node, and in records of earlier releases.
    """
    if network is None:
        return NO_SLOWDOWN
    if spread is None or network.before is None:
        is_weighed = network.slowdown_per_level is not None and not network.why_not_weighed
        text = "how far apart its nodes would be is unknown, so no slowdown is weighed" if is_weighed else ""
        return Slowdown(None, text)
    levels = spread.levels_apart - network.before.levels_apart
    if levels <= 0:
        return NO_SLOWDOWN
    distance = f"its nodes are {count_of(levels, 'network level')} farther apart than before"
    if network.why_not_weighed:
        return Slowdown(None, f"{distance}; {network.why_not_weighed}")
    if network.slowdown_per_level is None:
        return Slowdown(None, f"{distance}; no slowdown is weighed, because economy.slowdownPerNetworkLevel is not set")
    share = levels * network.slowdown_per_level
    seconds = _seconds_until_fault(network)
    return Slowdown(round(share * seconds, 3), f"{distance}, {share:.2%} slower for an expected {seconds / 3600:.1f} h")


def _seconds_until_fault(network: NetworkFacts) -> float:
    """Return how long the job is expected to stay on its next nodes."""
    if not network.failures_per_hour:
        return network.remaining_seconds
    per_second = network.failures_per_hour / 3600
    return -math.expm1(-per_second * network.remaining_seconds) / per_second
