"""The measured utilization of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from evenkeel.domain.capacity.utilization import Measure, Sample
    from evenkeel.domain.nodes import FleetNode
    from evenkeel.ports.errors import EvenkeelError


class Measurements(NamedTuple):
    """The samples of nodes, and the failed reads. Both go by `NodeLife.key`."""

    samples: Mapping[str, Mapping[Measure, Sequence[Sample]]]
    """A node or measure without a sample is missing."""
    errors: Mapping[str, EvenkeelError]
    """Why the metrics of a node were not read, or not all of them."""


class UtilizationMetrics(Protocol):
    """Metrics that agents on the nodes publish."""

    def read(self, nodes: Sequence[FleetNode], now: datetime) -> Measurements:
        """Read the samples of the last 15 minutes.

        Other nodes stay readable after a failed read of some nodes, so the failure is no exception. A node that has not
        joined its cluster has no samples. The call changes nothing, so it may be repeated.
        """
        ...
