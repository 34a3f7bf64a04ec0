"""Measured utilization of nodes, and its figures for a group of nodes.

Utilization is how busy the hardware is. Allocation is what pods have requested. Neither follows from the other.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.values import Instant, Value

WINDOW = timedelta(minutes=15)
"""Time over which a node's utilization is averaged."""
SAMPLE = timedelta(minutes=1)
"""Time that one sample covers."""
_ROUNDING = 5
"""Readings up to this much above 100 % count as 100 %: agents measure their intervals inexactly."""


class Measure(StrEnum):
    """A part of a node whose use is measured."""

    GPU = "gpu"
    """GPUs, or Neuron devices."""
    GPU_MEMORY = "gpuMemory"
    CPU = "cpu"
    MEMORY = "memory"


class GroupBy(StrEnum):
    """The unit that one row of the view describes."""

    POOL = "pool"
    NODE = "node"


class Sample(NamedTuple):
    """The utilization of one minute, as its source reports it."""

    start: datetime
    percent: float


class NodeUtilization(Value):
    """The measured utilization of one node."""

    percent: dict[Measure, float] = {}
    """Average over the window, from 0 to 100. A measure without a reading is missing, and never 0."""
    measured_at: Instant | None = None
    """End of the newest sample, for the measure that was sampled least recently. None: nothing was measured."""
    invalid: tuple[Measure, ...] = ()
    """Measures with a value that is no percentage. Such measures have no reading."""

    @classmethod
    def of(cls, samples: Mapping[Measure, Sequence[Sample]], launched_at: datetime) -> "NodeUtilization":
        """Average the samples of a node. Samples from before its launch belong to an earlier node and do not count."""
        own_samples = {
            measure: [sample for sample in samples if sample.start >= launched_at]
            for measure, samples in samples.items()
        }
        samples_read = {measure: samples for measure, samples in own_samples.items() if samples}
        invalid = tuple(measure for measure, samples in samples_read.items() if not all(map(_is_percentage, samples)))
        valid = {measure: samples for measure, samples in samples_read.items() if measure not in invalid}
        return cls(
            percent={
                measure: sum(min(sample.percent, 100) for sample in samples) / len(samples)
                for measure, samples in valid.items()
            },
            measured_at=min(
                (max(sample.start for sample in samples) + SAMPLE for samples in valid.values()), default=None
            ),
            invalid=invalid,
        )


def _is_percentage(sample: Sample) -> bool:
    return 0 <= sample.percent <= 100 + _ROUNDING  # false for NaN


class NodeReading(NamedTuple):
    """A node of a group, and its reading of one measure."""

    instance_id: str
    amount: float | None
    """GPUs, vCPU or GiB of the node: its weight in the average. None: unknown."""
    percent: float | None
    """None: not measured."""


class GroupUtilization(Value):
    """The utilization of a group of nodes. The extremes show the nodes that an average hides."""

    average: float | None
    """Percent, weighted by the amount of each measured node. None: no node with a known amount was measured."""
    lowest: float | None
    lowest_node: str | None
    highest: float | None
    measured_nodes: int
    unknown_nodes: int
    """Nodes without a reading. No figure includes these nodes."""

    @classmethod
    def of(cls, readings: Iterable[NodeReading]) -> "GroupUtilization":
        """Return the figures of a group. Nodes without the hardware do not count. An unmeasured node is not idle."""
        readings_with_amount = [reading for reading in readings if reading.amount != 0]
        node_values = sorted(
            (reading.percent, reading.instance_id, reading.amount or 0)
            for reading in readings_with_amount
            if reading.percent is not None
        )
        weight = sum(amount for _, _, amount in node_values)
        return cls(
            average=rounded(sum(percent * amount for percent, _, amount in node_values) / weight) if weight else None,
            lowest=rounded(node_values[0][0]) if node_values else None,
            lowest_node=node_values[0][1] if node_values else None,
            highest=rounded(node_values[-1][0]) if node_values else None,
            measured_nodes=len(node_values),
            unknown_nodes=len(readings_with_amount) - len(node_values),
        )


def rounded(percent: float) -> float:
    """Return a percentage to a tenth, as the view shows it."""
    return round(percent, 1)
