"""The port UtilizationMetrics in memory."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from evenkeel.domain.capacity.utilization import WINDOW, Measure, Sample
from evenkeel.domain.nodes import FleetNode
from evenkeel.ports import EvenkeelError, Measurements


class InMemoryUtilization:
    """Samples by cluster, instance and node name, as Container Insights keeps them. A cluster in `errors` fails."""

    def __init__(self) -> None:
        self.errors: dict[str, EvenkeelError] = {}
        self._samples: dict[tuple[str, str, str], dict[Measure, list[Sample]]] = defaultdict(lambda: defaultdict(list))

    def put(self, node: FleetNode, measure: Measure, *samples: Sample) -> None:
        """Publish samples of a node."""
        self._samples[_series(node)][measure] += samples

    def read(self, nodes: Sequence[FleetNode], now: datetime) -> Measurements:
        end = now.replace(second=0, microsecond=0)
        samples: dict[str, dict[Measure, list[Sample]]] = {}
        for node in nodes:
            if node.life.cluster not in self.errors:
                recent = {
                    measure: [sample for sample in kept if end - WINDOW <= sample.start < end]
                    for measure, kept in self._samples.get(_series(node), {}).items()
                }
                samples[node.life.key] = {measure: kept for measure, kept in recent.items() if kept}
        errors = {node.life.key: self.errors[node.life.cluster] for node in nodes if node.life.cluster in self.errors}
        return Measurements({key: recent for key, recent in samples.items() if recent}, errors)


def _series(node: FleetNode) -> tuple[str, str, str]:
    return node.life.cluster, node.life.instance_id, node.node_name
