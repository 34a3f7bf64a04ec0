"""The port UtilizationMetrics: the same tests for fake, moto and engine, and stubs for answers of AWS alone."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.stub import Stubber

from evenkeel.adapters.container_insights import ContainerInsights
from evenkeel.domain.capacity.utilization import Measure, Sample
from evenkeel.domain.nodes import FleetNode, NodeLife
from evenkeel.ports import NotAllowed, Throttled, Unreachable, UtilizationMetrics
from tests.fakes.utilization import InMemoryUtilization

NOW = datetime.now(UTC)
"""The present: the engine keeps samples for two weeks."""
MINUTE = NOW.replace(second=0, microsecond=0)
NAMES = {
    Measure.GPU: "node_gpu_utilization",
    Measure.GPU_MEMORY: "node_gpu_memory_utilization",
    Measure.CPU: "node_cpu_utilization",
    Measure.MEMORY: "node_memory_utilization",
}


def a_node(number: int = 1, **changes: Any) -> FleetNode:
    instance = f"i-{number:017x}"
    facts = {
        "life": NodeLife(cluster=changes.pop("cluster", "train"), instance_id=instance, launched_at=NOW),
        "slot": f"slot-{number}",
        "node_name": f"hyperpod-{instance}",
        "instance_type": "ml.p5.48xlarge",
        "changed_at": NOW,
    }
    return FleetNode.model_validate(facts | changes)


def minutes_ago(minutes: int, percent: float) -> Sample:
    return Sample(MINUTE - timedelta(minutes=minutes), percent)


class MetricsUnderTest(NamedTuple):
    """The port, and an agent that publishes samples of a node."""

    metrics: UtilizationMetrics
    publish: Callable[..., None]


def publisher(client: Any) -> Callable[..., None]:
    """Return an agent that publishes as the CloudWatch agent does."""

    def publish(node: FleetNode, measure: Measure, *samples: Sample, more: dict[str, str] | None = None) -> None:
        names = {"ClusterName": node.life.cluster, "InstanceId": node.life.instance_id, "NodeName": node.node_name}
        dimensions = [{"Name": name, "Value": value} for name, value in (names | (more or {})).items()]
        data = [
            {"MetricName": NAMES[measure], "Dimensions": dimensions, "Timestamp": start, "Value": percent}
            for start, percent in samples
        ]
        client.put_metric_data(Namespace="ContainerInsights", MetricData=data)

    return publish


@pytest.fixture(params=["memory", "moto", "engine"])
def bench(request: pytest.FixtureRequest) -> MetricsUnderTest:
    if request.param == "memory":
        fake = InMemoryUtilization()
        return MetricsUnderTest(fake, fake.put)
    owner = request.getfixturevalue("engine_user" if request.param == "engine" else "moto_client")
    client = owner.client("cloudwatch") if request.param == "engine" else owner("cloudwatch")
    return MetricsUnderTest(ContainerInsights(client), publisher(client))


def test_samples_of_the_last_fifteen_minutes_are_read(bench: MetricsUnderTest) -> None:
    node = a_node(11)
    bench.publish(node, Measure.GPU, minutes_ago(16, 1), minutes_ago(15, 2), minutes_ago(1, 3), minutes_ago(0, 4))
    bench.publish(node, Measure.MEMORY, minutes_ago(2, 0))

    measurements = bench.metrics.read([node], NOW)

    read = {measure: sorted(samples) for measure, samples in measurements.samples[node.life.key].items()}
    assert read == {Measure.GPU: [minutes_ago(15, 2), minutes_ago(1, 3)], Measure.MEMORY: [minutes_ago(2, 0)]}
    assert measurements.errors == {}


def test_each_node_has_only_its_own_samples(bench: MetricsUnderTest) -> None:
    own_node, same_name = a_node(1), a_node(2, node_name=a_node(1).node_name)
    other_cluster, silent = a_node(1, cluster="serve"), a_node(3)
    for node, percent in ((own_node, 1), (same_name, 2), (other_cluster, 3)):
        bench.publish(node, Measure.CPU, minutes_ago(5, percent))

    samples = bench.metrics.read([own_node, same_name, other_cluster, silent], NOW).samples

    assert [samples[node.life.key][Measure.CPU] for node in (own_node, same_name, other_cluster)] == [
        [minutes_ago(5, percent)] for percent in (1, 2, 3)
    ]
    assert silent.life.key not in samples


def test_node_outside_kubernetes_and_empty_fleet_have_no_samples(bench: MetricsUnderTest) -> None:
    assert bench.metrics.read([a_node(node_name="")], NOW) == ({}, {})
    assert bench.metrics.read([], NOW) == ({}, {})


def test_series_of_single_gpu_or_cluster_are_ignored(moto_client: Any) -> None:
    client = moto_client("cloudwatch")
    node = a_node()
    one_gpu = {"InstanceType": node.instance_type, "GpuDevice": "nvidia0"}
    publisher(client)(node, Measure.GPU, minutes_ago(1, 97), more=one_gpu)
    cluster = [{"Name": "ClusterName", "Value": "train"}]
    datum = {"MetricName": NAMES[Measure.GPU], "Dimensions": cluster, "Timestamp": MINUTE - timedelta(minutes=1)}
    client.put_metric_data(Namespace="ContainerInsights", MetricData=[datum | {"Value": 50.0}])

    assert ContainerInsights(client).read([node], NOW).samples == {}


# ---------------------------------------------------------------- requests and answers that only AWS gives


class RecordingClient:
    """A client that records each request and answers it with one sample for each query."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def get_paginator(self, name: str) -> "RecordingClient":
        assert name == "get_metric_data"
        return self

    def paginate(self, **request: Any) -> list[dict[str, Any]]:
        self.requests.append(request)
        result = {"Timestamps": [MINUTE], "Values": [1.0], "StatusCode": "Complete"}
        return [{"MetricDataResults": [{"Id": query["Id"], **result} for query in request["MetricDataQueries"]]}]


def queried_metrics(client: RecordingClient) -> list[str]:
    queries = [query for request in client.requests for query in request["MetricDataQueries"]]
    return [query["MetricStat"]["Metric"]["MetricName"] for query in queries]


def test_large_fleet_needs_few_calls_of_at_most_500_queries() -> None:
    client = RecordingClient()
    nodes = [a_node(number, cluster=f"cluster-{number % 2}") for number in range(2000)]

    measurements = ContainerInsights(client).read(nodes, NOW)

    assert len(client.requests) == 16
    assert max(len(request["MetricDataQueries"]) for request in client.requests) == 500
    assert measurements.samples.keys() == {node.life.key for node in nodes}
    assert all(len(measures) == len(Measure) for measures in measurements.samples.values())


@pytest.mark.parametrize(
    ("instance_type", "expected"),
    [
        ("ml.p5.48xlarge", set(NAMES.values())),
        ("ml.m5.xlarge", {"node_cpu_utilization", "node_memory_utilization"}),
        (
            "ml.trn2.48xlarge",
            {"node_neuroncore_utilization", "node_cpu_utilization", "node_memory_utilization"},
        ),
        ("ml.new.48xlarge", set(NAMES.values())),
    ],
)
def test_only_metrics_of_the_hardware_are_queried(instance_type: str, expected: set[str]) -> None:
    client = RecordingClient()

    ContainerInsights(client).read([a_node(instance_type=instance_type)], NOW)

    assert set(queried_metrics(client)) == expected


class StubbedMetrics(NamedTuple):
    """The adapter on a client with prepared answers, and its node."""

    metrics: ContainerInsights
    stub: Stubber
    node: FleetNode

    def answer(self, *results: tuple[int, str, list[Sample]], token: str = "") -> None:
        """Prepare a page: for each result the number of its query, its status and its samples."""
        page: dict[str, Any] = {
            "MetricDataResults": [
                {
                    "Id": f"m{number}",
                    "StatusCode": status,
                    "Timestamps": [sample.start for sample in samples],
                    "Values": [sample.percent for sample in samples],
                }
                for number, status, samples in results
            ]
        }
        self.stub.add_response("get_metric_data", page | ({"NextToken": token} if token else {}))


@pytest.fixture
def stubs() -> Iterator[StubbedMetrics]:
    client = boto3.client("cloudwatch", region_name="us-west-2", aws_access_key_id="test", aws_secret_access_key="test")
    with Stubber(client) as stub:
        yield StubbedMetrics(ContainerInsights(client), stub, a_node(instance_type="ml.m5.xlarge"))
        stub.assert_no_pending_responses()


def test_pages_of_one_metric_series_are_joined(stubs: StubbedMetrics) -> None:
    stubs.answer((0, "PartialData", [minutes_ago(1, 10)]), token="next")
    stubs.answer((0, "Complete", [minutes_ago(2, 20)]), (1, "Complete", []))

    measurements = stubs.metrics.read([stubs.node], NOW)

    assert measurements.samples == {stubs.node.life.key: {Measure.CPU: [minutes_ago(1, 10), minutes_ago(2, 20)]}}
    assert measurements.errors == {}


@pytest.mark.parametrize(("status", "expected"), [("InternalError", Unreachable), ("Forbidden", NotAllowed)])
def test_failed_metric_series_is_an_error_and_keeps_others(
    stubs: StubbedMetrics, status: str, expected: type[Exception]
) -> None:
    stubs.answer((0, status, []), (1, "Complete", [minutes_ago(1, 30)]))

    measurements = stubs.metrics.read([stubs.node], NOW)

    assert measurements.samples == {stubs.node.life.key: {Measure.MEMORY: [minutes_ago(1, 30)]}}
    assert isinstance(measurements.errors[stubs.node.life.key], expected)


def test_metric_series_completed_on_later_page_is_no_error(stubs: StubbedMetrics) -> None:
    stubs.answer((0, "InternalError", []), token="next")
    stubs.answer((0, "Complete", [minutes_ago(1, 10)]))

    assert stubs.metrics.read([stubs.node], NOW).errors == {}


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("Throttling", 400, Throttled),
        ("AccessDenied", 403, NotAllowed),
        ("InternalServiceFault", 500, Unreachable),
    ],
)
def test_failed_call_leaves_the_other_cluster_readable(
    stubs: StubbedMetrics, code: str, status: int, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One call at a time, so that the answers meet their requests in order.
    monkeypatch.setattr("evenkeel.adapters.container_insights._CALLS_AT_ONCE", 1)
    lost = a_node(2, cluster="serve", instance_type="ml.m5.xlarge")
    stubs.stub.add_client_error("get_metric_data", code, http_status_code=status)
    stubs.answer((0, "Complete", [minutes_ago(1, 10)]))

    measurements = stubs.metrics.read([stubs.node, lost], NOW)

    assert measurements.samples == {stubs.node.life.key: {Measure.CPU: [minutes_ago(1, 10)]}}
    assert {key: type(error) for key, error in measurements.errors.items()} == {lost.life.key: expected}
    assert "node metrics of serve" in str(measurements.errors[lost.life.key])


def test_slow_call_times_out_with_an_error() -> None:
    answers = Event()

    class SlowPaginator(RecordingClient):
        """A client that does not answer for one cluster."""

        def paginate(self, **request: Any) -> list[dict[str, Any]]:
            dimensions = request["MetricDataQueries"][0]["MetricStat"]["Metric"]["Dimensions"]
            if {"Name": "ClusterName", "Value": "slow"} in dimensions:
                answers.wait(10)
            return super().paginate(**request)

    slow, fast = a_node(1, cluster="slow"), a_node(2)

    measurements = ContainerInsights(SlowPaginator(), seconds=0.2).read([slow, fast], NOW)
    answers.set()

    assert measurements.samples.keys() == {fast.life.key}
    assert isinstance(measurements.errors[slow.life.key], Unreachable)
