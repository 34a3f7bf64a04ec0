"""The port Provider: the same tests for the fake and the adapter, and stubs for answers of AWS alone."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError, SSLError

from evenkeel.adapters.hyperpod import HyperPodProvider
from evenkeel.domain.nodes import ProviderNode
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.domain.recovery.validation import DEEP_CHECK_STATUS
from evenkeel.ports import EvenkeelError, NotAllowed, NotFound, Refused, Throttled, Unreachable
from tests.contract.clusters_under_test import (
    CLUSTER,
    PLAN_DAYS,
    PLAN_NAME,
    ClusterUnderTest,
    FakeClusterUnderTest,
    restored_fleet,
    tainted_machine,
)

ARN = "arn:aws:sagemaker:us-west-2:000000000000:cluster/abcdefghijkl"
MACHINE = "i-0123456789abcdef0"


@pytest.fixture(params=["twin", "local"])
def bench(request: pytest.FixtureRequest) -> Iterator[ClusterUnderTest]:
    if request.param == "twin":
        yield FakeClusterUnderTest()
    else:
        yield from restored_fleet(request.getfixturevalue("gpu_cluster"), request.param)


def test_cluster_shows_whether_hyperpod_repairs(bench: ClusterUnderTest) -> None:
    cluster = bench.provider.cluster()

    assert (cluster.name, cluster.status) == ("research-train", "InService")
    assert not cluster.repairs_by_itself


def test_training_plan_of_a_group_has_its_period(bench: ClusterUnderTest) -> None:
    plan_by_group = bench.provider.cluster().plan_by_group

    plan = bench.provider.training_plan(plan_by_group["p5-workers"])

    assert plan_by_group.keys() == {"p5-workers"}
    assert plan.name == PLAN_NAME
    (period,) = plan.periods
    assert period.ends_at - period.starts_at == timedelta(days=PLAN_DAYS)


def test_missing_training_plan_is_an_error(bench: ClusterUnderTest) -> None:
    arn = bench.provider.cluster().plan_by_group["p5-workers"].replace(PLAN_NAME, "p5-winter")

    with pytest.raises(EvenkeelError):
        bench.provider.training_plan(arn)


def test_listed_and_described_nodes_are_equal(bench: ClusterUnderTest) -> None:
    nodes = bench.provider.nodes()

    assert len(nodes) == 6
    assert len({node.logical_id for node in nodes if node.logical_id}) == 6
    assert bench.provider.node(nodes[0].instance_id) == nodes[0]
    assert nodes[0].logical_id
    assert bench.provider.node_in_slot(nodes[0].logical_id) == nodes[0]


def test_missing_instance_is_none(bench: ClusterUnderTest) -> None:
    assert bench.provider.node("i-0aaaaaaaaaaaaaaaa") is None
    assert bench.provider.node_in_slot("no-such-slot") is None


def test_new_nodes_are_those_launched_after_the_time(bench: ClusterUnderTest) -> None:
    nodes = bench.provider.nodes()
    oldest, newest = (choose(node.launched_at for node in nodes) for choose in (min, max))

    provider_nodes = bench.provider.nodes_launched_after(oldest - timedelta(seconds=1))

    assert {node.instance_id for node in provider_nodes} == {node.instance_id for node in nodes}
    assert bench.provider.nodes_launched_after(newest) == ()


def test_repair_of_a_missing_instance_is_answered_as_stale(bench: ClusterUnderTest) -> None:
    assert bench.provider.reboot("i-0aaaaaaaaaaaaaaaa") is RepairAnswer.NO_SUCH_NODE
    assert bench.provider.replace("i-0aaaaaaaaaaaaaaaa") is RepairAnswer.NO_SUCH_NODE


def test_reboot_keeps_the_instance_and_changes_the_boot_id(bench: ClusterUnderTest) -> None:
    machine = tainted_machine(bench)
    name = f"hyperpod-{machine.instance_id}"
    node = bench.eventually(lambda: bench.cluster.node(CLUSTER, name), "its node")

    first = bench.provider.reboot(machine.instance_id)
    second = bench.provider.reboot(machine.instance_id)

    assert (first, second) == (RepairAnswer.ACCEPTED, RepairAnswer.IN_USE)
    bench.complete_repair(machine.instance_id)

    def node_is_back() -> bool:
        now = bench.cluster.node(CLUSTER, name)
        return now is not None and now.is_ready and now.boot_id != node.boot_id

    bench.eventually(node_is_back, "the machine to be back from its reboot")
    after = bench.eventually(lambda: running(bench, machine.instance_id), "a running machine")
    assert (after.instance_id, after.logical_id) == (machine.instance_id, machine.logical_id)


def test_deep_health_check_of_one_node_shows_on_the_node(bench: ClusterUnderTest) -> None:
    machine = tainted_machine(bench)
    instance_ids = {node.instance_id for node in bench.provider.nodes() if node.status != "Running"}

    first = bench.provider.check_health(machine.instance_group, machine.instance_id)
    second = bench.provider.check_health(machine.instance_group, machine.instance_id)
    examined = {node.instance_id for node in bench.provider.nodes() if node.status == "DeepHealthCheckInProgress"}
    bench.pass_deep_health_check(machine.instance_id)

    assert (first, second) == (RepairAnswer.ACCEPTED, RepairAnswer.NOT_NOW)
    assert examined - instance_ids == {machine.instance_id}

    def check_has_passed() -> bool:
        node = bench.cluster.node(CLUSTER, f"hyperpod-{machine.instance_id}")
        return node is not None and node.labels.get(DEEP_CHECK_STATUS) == "Passed"

    bench.eventually(check_has_passed, "the check to pass")


def test_replacement_keeps_the_slot_and_starts_tainted(bench: ClusterUnderTest) -> None:
    machine = tainted_machine(bench)

    first = bench.provider.replace(machine.instance_id)
    second = bench.provider.replace(machine.instance_id)

    assert (first, second) == (RepairAnswer.ACCEPTED, RepairAnswer.IN_USE)
    bench.complete_repair(machine.instance_id)

    def new_node() -> ProviderNode | None:
        in_seat = [node for node in bench.provider.nodes() if node.logical_id == machine.logical_id]
        return next((n for n in in_seat if n.instance_id != machine.instance_id and n.status == "Running"), None)

    after: ProviderNode = bench.eventually(new_node, "the new machine")
    assert after.launched_at > machine.launched_at
    assert bench.provider.node(machine.instance_id) is None
    assert machine.logical_id
    assert bench.provider.node_in_slot(machine.logical_id) == after
    assert bench.provider.replace(machine.instance_id) is RepairAnswer.NO_SUCH_NODE

    node = bench.eventually(
        lambda: (
            (kubernetes_node := bench.cluster.node(CLUSTER, f"hyperpod-{after.instance_id}"))
            and kubernetes_node.is_ready
            and kubernetes_node
        ),
        "its node",
    )
    assert (node.is_awaiting_validation, node.is_schedulable) == (True, False)
    assert bench.cluster.node(CLUSTER, f"hyperpod-{machine.instance_id}") is None


def running(bench: ClusterUnderTest, instance_id: str) -> ProviderNode | None:
    node = bench.provider.node(instance_id)
    return node if node and node.status == "Running" else None


# ---------------------------------------------------------------- what only AWS answers


class StubSageMakerClient:
    """A client that gives the prepared answers."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    def _answer(self, **request: Any) -> Any:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    batch_reboot_cluster_nodes = batch_replace_cluster_nodes = _answer
    list_cluster_nodes = describe_cluster_node = describe_cluster = _answer


def refusal(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]  # only what is read
        "BatchReplaceClusterNodes",
    )


def provider(*answers: Any) -> tuple[HyperPodProvider, StubSageMakerClient]:
    client = StubSageMakerClient(*answers)
    return HyperPodProvider(ARN, client, client), client


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"Successful": [MACHINE], "Failed": []}, RepairAnswer.ACCEPTED),
        ({"Successful": [MACHINE]}, RepairAnswer.ACCEPTED),
        ({"Failed": [{"NodeId": MACHINE, "ErrorCode": "InstanceIdInUse"}]}, RepairAnswer.IN_USE),
        ({"Failed": [{"NodeId": MACHINE, "ErrorCode": "InvalidInstanceStatus"}]}, RepairAnswer.NOT_NOW),
        ({"Failed": [{"NodeId": MACHINE, "ErrorCode": "InstanceIdNotFound"}]}, RepairAnswer.NO_SUCH_NODE),
        ({"Failed": [{"NodeId": MACHINE, "ErrorCode": "InternalServerError"}]}, RepairAnswer.FAILED),
        ({"Failed": [{"NodeId": MACHINE, "ErrorCode": "SomethingNew"}]}, RepairAnswer.FAILED),
        ({"Successful": ["i-0aaaaaaaaaaaaaaaa"], "Failed": []}, RepairAnswer.UNKNOWN),
        ({}, RepairAnswer.UNKNOWN),
        (ReadTimeoutError(endpoint_url="x"), RepairAnswer.UNKNOWN),
        (ConnectTimeoutError(endpoint_url="x"), RepairAnswer.UNKNOWN),
        (SSLError(endpoint_url="x", error=OSError("broken")), RepairAnswer.UNKNOWN),
        (refusal("InternalFailure", 500), RepairAnswer.UNKNOWN),
        (refusal("ServiceUnavailable", 503), RepairAnswer.UNKNOWN),
    ],
)
@pytest.mark.parametrize("rung", ["reboot", "replace"])
def test_each_reply_to_a_repair_call_has_its_own_result(answer: Any, expected: RepairAnswer, rung: str) -> None:
    fleet, client = provider(answer)

    assert getattr(fleet, rung)(MACHINE) is expected

    assert client.requests == [{"ClusterName": ARN, "NodeIds": [MACHINE]}]


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (refusal("ThrottlingException"), Throttled),
        (refusal("AccessDeniedException"), NotAllowed),
        (refusal("ResourceNotFound"), NotFound),
        (refusal("ValidationException"), Refused),
        (refusal("SomethingNew"), ClientError),
    ],
)
def test_refused_repair_has_no_effect_and_a_reason(error: Exception, meaning: type[Exception]) -> None:
    fleet, _ = provider(error)

    with pytest.raises(meaning):
        fleet.replace(MACHINE)


def test_invalid_instance_id_never_reaches_the_service() -> None:
    fleet, client = provider()

    for bad in ("", "i-12345678abcdefghi", "i-0123456789ABCDEF0", "i-0123456789abcdef0 ", "*"):
        for call in (fleet.node, fleet.reboot, fleet.replace):
            with pytest.raises(Refused):
                call(bad)

    assert client.requests == []
    with pytest.raises(Refused):
        HyperPodProvider("arn:aws:sagemaker:us-west-2:000000000000:cluster/name")


def a_summary(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "InstanceGroupName": "g",
        "InstanceId": f"i-{number:017x}",
        "InstanceType": "ml.p5.48xlarge",
        "LaunchTime": datetime(2026, 1, 1, tzinfo=UTC),
        "InstanceStatus": {"Status": "Running"},
        **changes,
    }


def test_all_pages_are_read_and_empty_slots_skipped() -> None:
    fleet, client = provider(
        {"ClusterNodeSummaries": [a_summary(1, NodeLogicalId="seat-1"), a_summary(2, InstanceId="")], "NextToken": "t"},
        {"ClusterNodeSummaries": [a_summary(3), a_summary(4, InstanceStatus={"Status": "NotFound"})]},
    )

    nodes = fleet.nodes()

    assert [(node.instance_id[-1], node.logical_id) for node in nodes] == [("1", "seat-1"), ("3", None)]
    assert [request.get("NextToken") for request in client.requests] == [None, "t"]
    assert all(request["IncludeNodeLogicalIds"] for request in client.requests)


def test_refused_option_for_logical_ids_is_not_sent_again() -> None:
    fleet, client = provider(refusal("ValidationException"), *[{"ClusterNodeSummaries": [a_summary(1)]}] * 2)

    fleet.nodes()
    fleet.nodes()

    assert ["IncludeNodeLogicalIds" in request for request in client.requests] == [True, False, False]


def test_nodes_launched_at_or_before_the_time_are_dropped() -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    fleet, client = provider(
        {"ClusterNodeSummaries": [a_summary(1, LaunchTime=at), a_summary(2, LaunchTime=at + timedelta(seconds=1))]}
    )

    nodes = fleet.nodes_launched_after(at)

    assert [node.instance_id[-1] for node in nodes] == ["2"]
    assert client.requests[0]["CreationTimeAfter"] < at


def test_unreadable_node_does_not_count_as_gone() -> None:
    for error, meaning in ((refusal("ThrottlingException"), Throttled), (refusal("InternalFailure", 500), Unreachable)):
        fleet, _ = provider(error)
        with pytest.raises(meaning):
            fleet.node(MACHINE)
