"""The HyperPod operations through boto3, with botocore's own validation of requests and answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.local.gpu_cluster.conftest import QUICK, aws_client
from tests.local.gpu_cluster.kube_client import Json, eventually

GHOST = "i-0aaaaaaaaaaaaaaaa"


def code_of(refused: pytest.ExceptionInfo[ClientError]) -> str:
    return str(refused.value.response["Error"]["Code"])


def nodes(sagemaker: Any, cluster: ClusterHandle, **options: Any) -> list[Json]:
    answer = sagemaker.list_cluster_nodes(ClusterName=cluster.cluster_name, IncludeNodeLogicalIds=True, **options)
    return list(answer["ClusterNodeSummaries"])


@pytest.fixture
def classic(tmp_path: Path) -> Iterator[Any]:
    """A client of a cluster without NodeProvisioningMode=Continuous."""
    with gpu_cluster.start({**QUICK, "nodeProvisioningMode": None}, tmp_path / "classic") as handle:
        eventually(lambda: all(node["ready"] == "True" for node in handle.nodes()), "the nodes")
        yield aws_client("sagemaker", handle.sagemaker_url)


# Reading


@pytest.mark.parametrize("by", ["cluster_name", "cluster_arn"])
def test_cluster_is_found_by_name_and_arn(cluster: ClusterHandle, sagemaker: Any, by: str) -> None:
    described = sagemaker.describe_cluster(ClusterName=getattr(cluster, by))

    assert (described["ClusterName"], described["ClusterArn"]) == (cluster.cluster_name, cluster.cluster_arn)
    assert (described["ClusterStatus"], described["NodeRecovery"]) == ("InService", "None")
    assert described["NodeProvisioningMode"] == "Continuous"
    assert [(g["CurrentCount"], g["TargetCount"]) for g in described["InstanceGroups"]] == [(3, 3)]


def test_eks_cluster_shows_the_kubernetes_endpoint(cluster: ClusterHandle) -> None:
    eks = aws_client("eks", cluster.eks_url)

    described = eks.describe_cluster(name=cluster.eks_cluster_name)["cluster"]
    with pytest.raises(ClientError) as refused:
        eks.describe_cluster(name="other")

    assert (described["endpoint"], described["status"]) == (cluster.kubernetes_url, "ACTIVE")
    assert code_of(refused) == "ResourceNotFoundException"


def test_unknown_cluster_is_not_found(sagemaker: Any) -> None:
    with pytest.raises(ClientError) as refused:
        sagemaker.describe_cluster(ClusterName="nobodys")

    assert code_of(refused) == "ResourceNotFound"
    assert isinstance(refused.value, sagemaker.exceptions.ResourceNotFound)


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("describe_cluster", {"ClusterName": "a_b"}),
        ("describe_cluster_node", {"NodeId": "i-12345678abcdefghi"}),
        ("list_cluster_nodes", {"MaxResults": 101}),
        ("batch_reboot_cluster_nodes", {"NodeIds": [f"i-{n:017x}" for n in range(26)]}),
        ("batch_replace_cluster_nodes", {"NodeIds": ["i-1234"]}),
        ("batch_replace_cluster_nodes", {}),
        ("describe_cluster_node", {}),
        ("list_cluster_nodes", {"NextToken": "elsewhere"}),
        ("list_cluster_nodes", {"SortBy": "COLOUR"}),
    ],
)
def test_service_refuses_invalid_values_that_botocore_accepts(
    cluster: ClusterHandle, sagemaker: Any, operation: str, arguments: Json
) -> None:
    with pytest.raises(ClientError) as refused:
        getattr(sagemaker, operation)(**{"ClusterName": cluster.cluster_name, **arguments})

    assert code_of(refused) == "ValidationException"


def test_nodes_are_listed_in_pages_and_by_group(cluster: ClusterHandle, sagemaker: Any) -> None:
    everything = nodes(sagemaker, cluster)
    paged: list[Json] = []
    token: dict[str, str] = {}
    while True:
        answer = sagemaker.list_cluster_nodes(ClusterName=cluster.cluster_name, MaxResults=2, **token)
        paged += answer["ClusterNodeSummaries"]
        if "NextToken" not in answer:
            break
        token = {"NextToken": answer["NextToken"]}

    assert [node["InstanceId"] for node in paged] == [node["InstanceId"] for node in everything]
    assert all("NodeLogicalId" not in node for node in paged)
    assert len({node["NodeLogicalId"] for node in everything}) == 3
    assert nodes(sagemaker, cluster, InstanceGroupNameContains="other") == []
    by_name = nodes(sagemaker, cluster, SortBy="NAME", SortOrder="Descending")
    assert [n["InstanceId"] for n in by_name] == sorted((n["InstanceId"] for n in everything), reverse=True)


def test_node_is_described_by_id_and_by_slot(cluster: ClusterHandle, sagemaker: Any) -> None:
    node = nodes(sagemaker, cluster)[0]

    by_id = sagemaker.describe_cluster_node(ClusterName=cluster.cluster_name, NodeId=node["InstanceId"])["NodeDetails"]
    by_slot = sagemaker.describe_cluster_node(ClusterName=cluster.cluster_name, NodeLogicalId=node["NodeLogicalId"])

    assert by_id == by_slot["NodeDetails"]
    assert by_id["Placement"] == {"AvailabilityZone": "us-west-2a", "AvailabilityZoneId": "usw2-az1"}
    assert by_id["InstanceStatus"] == {"Status": "Running"}
    with pytest.raises(ClientError) as refused:
        sagemaker.describe_cluster_node(ClusterName=cluster.cluster_name, NodeId=GHOST)
    assert code_of(refused) == "ResourceNotFound"


# Repairs


@pytest.mark.parametrize("operation", ["batch_reboot_cluster_nodes", "batch_replace_cluster_nodes"])
def test_batch_repair_answers_for_each_node_separately(cluster: ClusterHandle, sagemaker: Any, operation: str) -> None:
    call = getattr(sagemaker, operation)
    fine, busy, broken = (node["InstanceId"] for node in nodes(sagemaker, cluster))
    call(ClusterName=cluster.cluster_name, NodeIds=[busy])
    cluster.control("POST", "failing-nodes", {"instanceId": broken})

    answer = call(ClusterName=cluster.cluster_name, NodeIds=[fine, busy, broken, GHOST])

    codes = {item["NodeId"]: item["ErrorCode"] for item in answer["Failed"]}
    assert answer["Successful"] == [fine]
    assert codes[broken] == "InternalServerError"
    assert codes[GHOST] == "InstanceIdNotFound"
    assert codes[busy] == "InstanceIdInUse"
    assert "SuccessfulNodeLogicalIds" not in answer


def test_repair_of_a_pending_instance_is_refused(cluster: ClusterHandle, sagemaker: Any) -> None:
    cluster.control("POST", "capacity", {"instanceGroup": "p5-workers", "machines": 3})
    added = sagemaker.batch_add_cluster_nodes(
        ClusterName=cluster.cluster_name,
        ClientToken="grow-1",
        NodesToAdd=[{"InstanceGroupName": "p5-workers", "IncrementTargetCountBy": 1}],
    )
    slot = added["Successful"][0]["NodeLogicalId"]

    answer = sagemaker.batch_reboot_cluster_nodes(ClusterName=cluster.cluster_name, NodeLogicalIds=[slot])

    assert answer["FailedNodeLogicalIds"][0]["ErrorCode"] == "InvalidInstanceStatus"


def test_replacement_is_recorded_in_events_newest_first(cluster: ClusterHandle, sagemaker: Any) -> None:
    node = nodes(sagemaker, cluster)[0]
    sagemaker.batch_replace_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[node["InstanceId"]])

    def told() -> list[Json] | None:
        events = list(sagemaker.list_cluster_events(ClusterName=cluster.cluster_name)["Events"])
        return events if any("completed successfully" in event["Description"] for event in events) else None

    events = eventually(told, "the replacement to complete")
    detail = sagemaker.describe_cluster_event(ClusterName=cluster.cluster_name, EventId=events[0]["EventId"])
    of_old = sagemaker.list_cluster_events(ClusterName=cluster.cluster_name, NodeId=node["InstanceId"])["Events"]
    ascending = sagemaker.list_cluster_events(ClusterName=cluster.cluster_name, SortOrder="Ascending")["Events"]

    assert events[0]["Description"].startswith("Instance ")
    assert all("EventDetails" not in event for event in events)
    metadata = detail["EventDetails"]["EventDetails"]["EventMetadata"]
    assert metadata["Instance"]["NodeLogicalId"] == node["NodeLogicalId"]
    assert [event["Description"].split()[0] for event in of_old] == ["Termination"]
    assert ascending == events[::-1]


def test_automatic_recovery_repairs_a_faulty_node(cluster: ClusterHandle, sagemaker: Any) -> None:
    sagemaker.update_cluster(ClusterName=cluster.cluster_name, NodeRecovery="Automatic")
    node = nodes(sagemaker, cluster)[0]
    before = node["InstanceId"]

    cluster.inject("gpu-xid79", node=before)
    slot = {"ClusterName": cluster.cluster_name, "NodeLogicalId": node["NodeLogicalId"]}
    after = eventually(
        lambda: (
            details
            if (details := sagemaker.describe_cluster_node(**slot)["NodeDetails"])["InstanceId"] != before
            and details["InstanceStatus"]["Status"] == "Running"
            else None
        ),
        "HyperPod to replace the node",
    )

    assert after["InstanceId"] != before
    assert cluster.control("GET", "counters")["accepted"]["replace"] == {}
    assert sagemaker.describe_cluster(ClusterName=cluster.cluster_name)["NodeRecovery"] == "Automatic"


# Capacity


def test_repeated_client_token_adds_nodes_once(cluster: ClusterHandle, sagemaker: Any) -> None:
    wish = {"InstanceGroupName": "p5-workers", "IncrementTargetCountBy": 2}
    arguments = {"ClusterName": cluster.cluster_name, "ClientToken": "grow", "NodesToAdd": [wish]}

    first = sagemaker.batch_add_cluster_nodes(**arguments)
    second = sagemaker.batch_add_cluster_nodes(**arguments)
    eventually(lambda: len([n for n in cluster.nodes() if n["ready"] == "True"]) == 5, "the new nodes")
    third = sagemaker.batch_add_cluster_nodes(**arguments)
    with pytest.raises(ClientError) as refused:
        sagemaker.batch_add_cluster_nodes(**{**arguments, "NodesToAdd": [{**wish, "IncrementTargetCountBy": 1}]})

    slots = [item["NodeLogicalId"] for item in first["Successful"]]
    assert [item["NodeLogicalId"] for item in second["Successful"]] == slots
    assert [item["Status"] for item in third["Successful"]] == ["Running", "Running"]
    assert len(nodes(sagemaker, cluster)) == 5
    assert code_of(refused) == "ValidationException"


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ({"InstanceGroupName": "none"}, "InstanceGroupNotFound"),
        ({"AvailabilityZones": ["us-west-2d"]}, "IncompatibleAvailabilityZones"),
        ({"InstanceTypes": ["ml.g5.8xlarge"]}, "IncompatibleInstanceTypes"),
    ],
)
def test_refused_node_addition_says_why(cluster: ClusterHandle, sagemaker: Any, wish: Json, code: str) -> None:
    document = {"InstanceGroupName": "p5-workers", "IncrementTargetCountBy": 1, **wish}

    answer = sagemaker.batch_add_cluster_nodes(ClusterName=cluster.cluster_name, NodesToAdd=[document])

    assert [item["ErrorCode"] for item in answer["Failed"]] == [code]
    assert answer["Successful"] == []


def test_deleted_nodes_lose_their_slots(cluster: ClusterHandle, sagemaker: Any) -> None:
    first, second, _ = nodes(sagemaker, cluster)

    answer = sagemaker.batch_delete_cluster_nodes(
        ClusterName=cluster.cluster_name, NodeIds=[first["InstanceId"], GHOST], NodeLogicalIds=[second["NodeLogicalId"]]
    )
    again = sagemaker.batch_delete_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[first["InstanceId"]])
    eventually(lambda: len(nodes(sagemaker, cluster)) == 1, "the nodes to be gone")

    assert (answer["Successful"], answer["SuccessfulNodeLogicalIds"]) == (
        [first["InstanceId"]],
        [second["NodeLogicalId"]],
    )
    assert answer["Failed"][0]["Code"] == "NodeIdNotFound"
    assert again["Failed"][0]["Code"] == "NodeIdInUse"
    group = sagemaker.describe_cluster(ClusterName=cluster.cluster_name)["InstanceGroups"][0]
    assert (group["CurrentCount"], group["TargetCount"]) == (1, 1)


def test_node_without_capacity_stays_pending_with_a_reason(cluster: ClusterHandle, sagemaker: Any) -> None:
    cluster.control("POST", "capacity", {"instanceGroup": "p5-workers", "machines": 2})
    node = nodes(sagemaker, cluster)[0]
    sagemaker.batch_replace_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=[node["InstanceId"]])

    def failed() -> Json | None:
        events = sagemaker.list_cluster_events(ClusterName=cluster.cluster_name)["Events"]
        return next((event for event in events if event["EventLevel"] == "Error"), None)

    event = eventually(failed, "the failure to be told")
    detail = sagemaker.describe_cluster_event(ClusterName=cluster.cluster_name, EventId=event["EventId"])
    cluster.control("POST", "capacity", {"instanceGroup": "p5-workers", "machines": None})
    eventually(lambda: len([n for n in cluster.nodes() if n["ready"] == "True"]) == 3, "the node to be back")

    message = detail["EventDetails"]["EventDetails"]["EventMetadata"]["Instance"]["FailureMessage"]
    assert message.startswith("We currently do not have sufficient capacity")


# Clusters without continuous mode


def test_cluster_without_continuous_mode_has_no_slots_or_events(classic: Any) -> None:
    assert "NodeProvisioningMode" not in classic.describe_cluster(ClusterName="research-train")
    listed = classic.list_cluster_nodes(ClusterName="research-train")["ClusterNodeSummaries"]
    described = classic.describe_cluster_node(ClusterName="research-train", NodeId=listed[0]["InstanceId"])
    assert (len(listed), "NodeLogicalId" in described["NodeDetails"]) == (3, False)
    for operation, arguments in (
        ("list_cluster_nodes", {"IncludeNodeLogicalIds": True}),
        ("list_cluster_events", {}),
        ("describe_cluster_event", {"EventId": "00000000-0000-0000-0000-000000000000"}),
        ("describe_cluster_node", {"NodeLogicalId": "a-slot"}),
        ("batch_reboot_cluster_nodes", {"NodeLogicalIds": ["a-slot"]}),
        ("batch_replace_cluster_nodes", {"NodeLogicalIds": ["a-slot"]}),
        ("batch_delete_cluster_nodes", {"NodeLogicalIds": ["a-slot"]}),
        ("batch_add_cluster_nodes", {"NodesToAdd": [{"InstanceGroupName": "x", "IncrementTargetCountBy": 1}]}),
    ):
        with pytest.raises(ClientError) as refused:
            getattr(classic, operation)(ClusterName="research-train", **arguments)
        assert code_of(refused) == "ValidationException"


# Faults of calls


def test_injected_call_faults_fail_throttle_and_lose_replies(cluster: ClusterHandle, sagemaker: Any) -> None:
    from botocore.exceptions import ConnectionClosedError

    rule = {"api": "hyperpod", "operation": "Batch*"}
    node = nodes(sagemaker, cluster)[0]["InstanceId"]
    call = {"ClusterName": cluster.cluster_name, "NodeIds": [node]}
    codes = []
    for effect in ({"effect": "throttle"}, {"effect": "error", "code": "ServiceUnavailable", "status": 503}):
        cluster.control("POST", "call-faults", {**rule, **effect})
        with pytest.raises(ClientError) as refused:
            sagemaker.batch_replace_cluster_nodes(**call)
        codes.append(code_of(refused))
    before = cluster.control("GET", "counters")["accepted"]["replace"]
    cluster.control("POST", "call-faults", {**rule, "effect": "lost-reply"})

    with pytest.raises(ConnectionClosedError):
        sagemaker.batch_replace_cluster_nodes(**call)

    assert codes == ["ThrottlingException", "ServiceUnavailable"]
    assert before == {}
    assert cluster.control("GET", "counters")["accepted"]["replace"] == {node: 1}
    assert nodes(sagemaker, cluster)


def test_calls_beyond_the_call_budget_are_throttled(tmp_path: Path) -> None:
    with gpu_cluster.start({**QUICK, "readsPerSecond": 2}, tmp_path / "run") as handle:
        sagemaker = aws_client("sagemaker", handle.sagemaker_url)

        def ask_often() -> None:
            for _ in range(20):
                sagemaker.describe_cluster(ClusterName=handle.cluster_name)

        with pytest.raises(ClientError) as refused:
            ask_often()

    assert code_of(refused) == "ThrottlingException"
