"""Throughput of a job by size: an estimate between the sizes that are known."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from evenkeel.domain.submitted import Submitted
from evenkeel.domain.values import Value

MIN_POINTS = 2
"""Smallest number of known sizes. A single size shows no difference between sizes."""
MAX_POINTS = 32
_MAX_NODES = 1024
MIN_PER_SECOND = 1e-6
MAX_PER_SECOND = 10**15
"""A throughput outside these limits is a mistake, and the ledger cannot store every number."""


class SizeThroughput(Value):
    """The throughput of a job at one size."""

    nodes: Annotated[int, Submitted(limits=(1, _MAX_NODES), unit="nodes")]
    """Number of nodes."""
    per_second: Annotated[float, Submitted(limits=(0, MAX_PER_SECOND))]
    """Tokens, samples or other units of work per second, over all nodes; the same unit at each size."""


class Throughput(Value):
    """The throughput of a job by size."""

    points: Annotated[tuple[SizeThroughput, ...], Field(min_length=MIN_POINTS)]
    """The known sizes, ascending."""
    is_measured: bool
    """Whether the job's checkpoints report it. If not, its submission declares it."""

    def per_second(self, nodes: int) -> float:
        """Estimate the throughput at a size; never negative.

        Between two known sizes, the result is interpolated. Below the smallest, it is proportional to the nodes. Above
        the largest, it continues as between the two largest.
        """
        smallest_size = self.points[0]
        if nodes <= smallest_size.nodes:
            return smallest_size.per_second * nodes / smallest_size.nodes
        low, high = next((pair for pair in pairwise(self.points) if nodes <= pair[1].nodes), self.points[-2:])
        slope = (high.per_second - low.per_second) / (high.nodes - low.nodes)
        return max(0.0, low.per_second + slope * (nodes - low.nodes))

    def equivalent_nodes(self, nodes: int) -> float:
        """Estimate the throughput at a size, as the number of nodes that do this work at the smallest known size."""
        smallest_size = self.points[0]
        return self.per_second(nodes) * smallest_size.nodes / smallest_size.per_second


def known_throughput(
    declared_sizes: Sequence[SizeThroughput], measured_sizes: Iterable[SizeThroughput]
) -> Throughput | None:
    """Return the throughput to plan with: measured if two sizes are, else declared; None if neither is known.

    Both are never mixed, because their units may differ.
    """
    throughputs = sorted(measured_sizes, key=lambda point: point.nodes)
    if len(throughputs) >= MIN_POINTS:
        return Throughput(points=tuple(throughputs), is_measured=True)
    if len(declared_sizes) >= MIN_POINTS:
        return Throughput(points=tuple(sorted(declared_sizes, key=lambda point: point.nodes)), is_measured=False)
    return None
