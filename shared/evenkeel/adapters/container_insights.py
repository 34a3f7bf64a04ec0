"""The port UtilizationMetrics on CloudWatch Container Insights with enhanced observability.

The CloudWatch agent publishes the metrics of each node every minute, under the dimensions ClusterName, InstanceId and
NodeName. Other dimension sets of the same metrics belong to one GPU or to the whole cluster. The ledger knows the
nodes, so no metric has to be listed, and an instance that had the same name before has other dimensions.

Sources: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Container-Insights-metrics-enhanced-EKS.html;
aws/amazon-cloudwatch-agent, translator/translate/otel, which declares the dimensions and converts ratios to percent.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from evenkeel.adapters import aws
from evenkeel.domain.capacity import instance_types
from evenkeel.domain.capacity.utilization import SAMPLE, WINDOW, Measure, Sample
from evenkeel.domain.nodes import FleetNode
from evenkeel.ports import EvenkeelError, Measurements, NotAllowed, Unreachable

_NAMESPACE: Final = "ContainerInsights"
_HOST: Final = {Measure.CPU: "node_cpu_utilization", Measure.MEMORY: "node_memory_utilization"}
_GPU: Final = {Measure.GPU: "node_gpu_utilization", Measure.GPU_MEMORY: "node_gpu_memory_utilization"}
_NEURON: Final = {Measure.GPU: "node_neuroncore_utilization"}
"""The agent publishes the memory of Neuron devices in bytes only."""
_NODES_PER_CALL: Final = 500 // len(Measure)
"""GetMetricData takes 500 queries."""
_CALLS_AT_ONCE: Final = 8
"""CloudWatch allows 50 calls a second: https://repost.aws/knowledge-center/cloudwatch-getmetricdata-api."""
_SECONDS: Final = 15.0
"""Longest time of a read. The API function has 29 s, and reads the ledger before."""
_FAILED: Final[Mapping[str, type[EvenkeelError]]] = {"InternalError": Unreachable, "Forbidden": NotAllowed}
"""Status codes of one metric in a successful answer."""


class ContainerInsights:
    """Container Insights of one account and region."""

    def __init__(self, client: Any = None, seconds: float = _SECONDS) -> None:
        self._client = client or aws.client("cloudwatch")
        self._seconds = seconds

    def read(self, nodes: Sequence[FleetNode], now: datetime) -> Measurements:
        end = now.replace(second=0, microsecond=0)  # CloudWatch may still change the current minute
        pool = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="utilization")
        reads = [(batch, pool.submit(self._read, batch, end)) for batch in _batches(nodes)]
        wait([batch_read for _, batch_read in reads], self._seconds)
        pool.shutdown(wait=False, cancel_futures=True)
        samples: dict[str, Mapping[Measure, Sequence[Sample]]] = {}
        errors: dict[str, EvenkeelError] = {}
        for batch, batch_read in reads:
            try:
                if not batch_read.done() or batch_read.cancelled():
                    raise Unreachable(f"{_describe_read(batch)}: not finished within {self._seconds:g} s")
                answer = batch_read.result()
            except EvenkeelError as error:
                errors |= {node.life.key: error for node in batch}
            else:
                samples |= answer.samples
                errors |= answer.errors
        return Measurements(samples, errors)

    def _read(self, nodes: Sequence[FleetNode], end: datetime) -> Measurements:
        series = [(node.life.key, measure) for node in nodes for measure in _metrics_of(node)]
        samples: dict[str, dict[Measure, list[Sample]]] = defaultdict(lambda: defaultdict(list))
        statuses: dict[int, str] = {}
        with aws.translate_errors(_describe_read(nodes)):
            pages = self._client.get_paginator("get_metric_data").paginate(
                MetricDataQueries=[
                    {"Id": f"m{index}", "MetricStat": stat}
                    for index, stat in enumerate(stat for node in nodes for stat in _stats(node))
                ],
                StartTime=end - WINDOW,
                EndTime=end,
            )
            for result in (result for page in pages for result in page["MetricDataResults"]):
                index = int(result["Id"][1:])
                statuses[index] = result.get("StatusCode", "")  # a later page may complete a metric
                key, measure = series[index]
                for start, percent in zip(result.get("Timestamps", ()), result.get("Values", ()), strict=True):
                    samples[key][measure].append(Sample(start, percent))
        errors = {
            series[index][0]: _FAILED[status](f"{_describe_read(nodes)}: {status} for {series[index][1]}")
            for index, status in statuses.items()
            if status in _FAILED
        }
        return Measurements(samples, errors)


def _batches(nodes: Sequence[FleetNode]) -> Iterator[Sequence[FleetNode]]:
    """Yield the nodes of each call, all of one cluster. A node without a node object publishes nothing."""
    sorted_nodes = sorted((node for node in nodes if node.node_name), key=lambda node: node.life.cluster)
    for _, members in groupby(sorted_nodes, key=lambda node: node.life.cluster):
        batch = list(members)
        yield from (batch[start : start + _NODES_PER_CALL] for start in range(0, len(batch), _NODES_PER_CALL))


def _describe_read(nodes: Sequence[FleetNode]) -> str:
    return f"read the node metrics of {nodes[0].life.cluster}"


def _metrics_of(node: FleetNode) -> Mapping[Measure, str]:
    """Return the metrics that the agent publishes for a node. A type outside the catalogue may have GPUs."""
    known_type = instance_types.shipped_instance_types().find(node.instance_type)
    if known_type and known_type.neuron:
        return _NEURON | _HOST
    return _HOST if known_type and not known_type.accelerators else _GPU | _HOST


def _stats(node: FleetNode) -> Iterator[Mapping[str, Any]]:
    names = {"ClusterName": node.life.cluster, "InstanceId": node.life.instance_id, "NodeName": node.node_name}
    dimensions = [{"Name": name, "Value": value} for name, value in names.items()]
    for metric in _metrics_of(node).values():
        yield {
            "Metric": {"Namespace": _NAMESPACE, "MetricName": metric, "Dimensions": dimensions},
            "Period": int(SAMPLE.total_seconds()),
            "Stat": "Average",
        }
