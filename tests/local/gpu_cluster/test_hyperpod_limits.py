"""Requests at the limits of the model: accepted values, and values that the service refuses but botocore does not."""

from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ParamValidationError

from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.local.gpu_cluster.conftest import QUICK, aws_client
from tests.local.gpu_cluster.kube_client import Json, eventually

GROUP = "p5-workers"
GHOST = "i-0aaaaaaaaaaaaaaaa"
REPAIRS = ("batch_reboot_cluster_nodes", "batch_replace_cluster_nodes")
OTHER_CLUSTER = "arn:aws:sagemaker:us-west-2:000000000000:cluster/abcdefghijkl"
OTHER_ACCOUNT = "arn:aws:sagemaker:us-west-2:999999999999:cluster/k3v9x2m7q1ab"


def ids(count: int) -> list[str]:
    return [f"i-{number:017x}" for number in range(count)]


def slots(count: int) -> list[str]:
    return [f"slot-{number}" for number in range(count)]


def outcome(client: Any, operation: str, arguments: Json) -> str:
    """Return the error's code; empty if the call was accepted."""
    try:
        getattr(client, operation)(**arguments)
    except ClientError as refused:
        return str(refused.response["Error"]["Code"])
    return ""


@pytest.fixture(scope="module")
def unchecked(running_cluster: ClusterHandle) -> Any:
    """A client without validation of requests, like the clients of other languages."""
    return boto3.client(
        "sagemaker",
        endpoint_url=running_cluster.sagemaker_url,
        region_name="us-west-2",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(retries={"total_max_attempts": 1}, proxies={}, parameter_validation=False),
    )


def an_added_node(count: int = 1, **more: Any) -> Json:
    return {"InstanceGroupName": "none", "IncrementTargetCountBy": count, **more}


def a_check(**more: Any) -> Json:
    return {"InstanceGroupName": GROUP, "InstanceIds": [GHOST], "DeepHealthChecks": ["InstanceStress"], **more}


TAKEN: list[tuple[str, Json]] = [
    *((operation, {"NodeIds": ids(25)}) for operation in REPAIRS),
    *((operation, {"NodeLogicalIds": slots(25)}) for operation in REPAIRS),
    *((operation, {"NodeIds": ids(25), "NodeLogicalIds": slots(25)}) for operation in REPAIRS),
    *((operation, {"NodeIds": ["i-0a1b2c3d"]}) for operation in REPAIRS),
    ("batch_delete_cluster_nodes", {"NodeIds": ids(3000), "NodeLogicalIds": slots(99)}),
    ("batch_add_cluster_nodes", {"NodesToAdd": [an_added_node(10)] * 5, "ClientToken": "!" * 64}),
    ("list_cluster_nodes", {"MaxResults": 1}),
    ("list_cluster_nodes", {"MaxResults": 100}),
    ("list_cluster_events", {"MaxResults": 100, "NodeId": GHOST}),
    ("list_cluster_nodes", {"CreationTimeAfter": 0, "CreationTimeBefore": 1}),
]
REFUSED: list[tuple[str, Json]] = [
    *((operation, {"NodeIds": ids(26)}) for operation in REPAIRS),
    *((operation, {"NodeLogicalIds": slots(26)}) for operation in REPAIRS),
    *((operation, {"NodeIds": []}) for operation in REPAIRS),
    *((operation, {}) for operation in REPAIRS),
    *((operation, {"NodeIds": [bad]}) for operation in REPAIRS for bad in ("i-12345678abcdefghi", "i-0A1B2C3D", "", 7)),
    *((operation, {"NodeIds": [GHOST, "i-1"]}) for operation in REPAIRS),
    *((operation, {"NodeLogicalIds": [bad]}) for operation in REPAIRS for bad in ("-a", "a b", "a" * 129)),
    ("batch_delete_cluster_nodes", {}),
    ("batch_delete_cluster_nodes", {"NodeIds": ids(3001)}),
    ("batch_delete_cluster_nodes", {"NodeLogicalIds": slots(100)}),
    ("batch_add_cluster_nodes", {"NodesToAdd": [an_added_node()] * 6}),
    ("batch_add_cluster_nodes", {"NodesToAdd": []}),
    ("batch_add_cluster_nodes", {"NodesToAdd": [an_added_node(0)]}),
    ("batch_add_cluster_nodes", {"NodesToAdd": [an_added_node(51)]}),
    ("batch_add_cluster_nodes", {"NodesToAdd": [an_added_node(26), an_added_node(25)]}),
    ("batch_add_cluster_nodes", {"NodesToAdd": [an_added_node()], "ClientToken": "a b"}),
    ("batch_add_cluster_nodes", {"NodesToAdd": [an_added_node()], "ClientToken": "a" * 65}),
    ("start_cluster_health_check", {"DeepHealthCheckConfigurations": []}),
    ("start_cluster_health_check", {"DeepHealthCheckConfigurations": [a_check(InstanceIds=[])]}),
    ("start_cluster_health_check", {"DeepHealthCheckConfigurations": [a_check(InstanceIds=ids(501))]}),
    ("start_cluster_health_check", {"DeepHealthCheckConfigurations": [a_check(DeepHealthChecks=["Everything"])]}),
    ("start_cluster_health_check", {"DeepHealthCheckConfigurations": [a_check(DeepHealthChecks=[])]}),
    *(
        (operation, {"MaxResults": bad})
        for operation in ("list_cluster_nodes", "list_cluster_events")
        for bad in (0, 101)
    ),
    ("list_cluster_nodes", {"NextToken": "elsewhere"}),
    ("list_cluster_nodes", {"NextToken": "2"}),
    ("list_cluster_nodes", {"SortBy": "COLOUR"}),
    ("list_cluster_events", {"NodeId": "i-1"}),
    ("describe_cluster_event", {"EventId": "one"}),
    ("describe_cluster_node", {}),
    ("describe_cluster_node", {"NodeId": GHOST, "NodeLogicalId": "a-slot"}),
    ("update_cluster", {"NodeRecovery": "Sometimes"}),
]


@pytest.mark.parametrize(("operation", "arguments"), TAKEN, ids=lambda value: value if isinstance(value, str) else "")
def test_value_at_the_limit_is_accepted(
    running_cluster: ClusterHandle, unchecked: Any, operation: str, arguments: Json
) -> None:
    assert outcome(unchecked, operation, {"ClusterName": running_cluster.cluster_name, **arguments}) == ""


@pytest.mark.parametrize(("operation", "arguments"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_value_beyond_a_limit_or_pattern_is_refused_without_effect(
    running_cluster: ClusterHandle, unchecked: Any, operation: str, arguments: Json
) -> None:
    before = running_cluster.control("GET", "provider-calls")["calls"]

    refused = outcome(unchecked, operation, {"ClusterName": running_cluster.cluster_name, **arguments})

    assert refused == "ValidationException"
    assert running_cluster.control("GET", "provider-calls")["calls"] == before


@pytest.mark.parametrize("name", ["nobodys", OTHER_CLUSTER, OTHER_ACCOUNT])
@pytest.mark.parametrize("operation", [*REPAIRS, "batch_delete_cluster_nodes", "list_cluster_nodes", "update_cluster"])
def test_unknown_cluster_is_not_found(
    running_cluster: ClusterHandle, unchecked: Any, operation: str, name: str
) -> None:
    arguments = {"NodeIds": [running_cluster.nodes()[0]["instanceId"]]} if operation.startswith("batch") else {}

    assert outcome(unchecked, operation, {"ClusterName": name, **arguments}) == "ResourceNotFound"


def test_botocore_refuses_an_empty_list(running_cluster: ClusterHandle) -> None:
    sagemaker = aws_client("sagemaker", running_cluster.sagemaker_url)

    with pytest.raises(ParamValidationError):
        sagemaker.batch_replace_cluster_nodes(ClusterName=running_cluster.cluster_name, NodeIds=[])


def test_node_named_twice_is_repaired_once(cluster: ClusterHandle, sagemaker: Any) -> None:
    node = cluster.nodes()[0]

    answer = sagemaker.batch_reboot_cluster_nodes(
        ClusterName=cluster.cluster_name,
        NodeIds=[node["instanceId"]] * 2,
        NodeLogicalIds=[node["nodeLogicalId"], "no-such-slot"],
    )

    assert answer["Successful"] == [node["instanceId"]]
    failed = {item["NodeLogicalId"]: item["ErrorCode"] for item in answer["FailedNodeLogicalIds"]}
    assert failed == {node["nodeLogicalId"]: "InstanceIdInUse", "no-such-slot": "InstanceIdNotFound"}
    assert cluster.control("GET", "counters")["accepted"]["reboot"] == {node["instanceId"]: 1}
    assert not {"Failed", "SuccessfulNodeLogicalIds"} & set(answer)


def test_twenty_five_nodes_are_replaced_in_one_call(tmp_path: Path) -> None:
    config = {**QUICK, "instanceGroups": [{"name": GROUP, "count": 25}]}
    with gpu_cluster.start(config, tmp_path / "run") as handle:
        eventually(lambda: all(node["ready"] == "True" for node in handle.nodes()), "the nodes")
        before = {node["instanceId"]: node["nodeLogicalId"] for node in handle.nodes()}
        sagemaker = aws_client("sagemaker", handle.sagemaker_url)

        answer = sagemaker.batch_replace_cluster_nodes(ClusterName=handle.cluster_name, NodeIds=list(before))
        eventually(
            lambda: sum(n["ready"] == "True" and n["instanceId"] not in before for n in handle.nodes()) == len(before),
            "all replacements",
        )

        assert sorted(answer["Successful"]) == sorted(before)
        assert sorted(node["nodeLogicalId"] for node in handle.nodes()) == sorted(before.values())


# Pages


def test_page_token_is_valid_only_for_its_own_query(cluster: ClusterHandle, sagemaker: Any) -> None:
    token = sagemaker.list_cluster_nodes(ClusterName=cluster.cluster_name, MaxResults=1)["NextToken"]
    requests: list[tuple[str, Json]] = [
        ("list_cluster_nodes", {"MaxResults": 2}),
        ("list_cluster_nodes", {"SortOrder": "Descending"}),
        ("list_cluster_nodes", {"InstanceGroupNameContains": "p5"}),
        ("list_cluster_events", {}),
        ("list_cluster_operations", {}),
    ]

    got = [
        outcome(sagemaker, op, {"ClusterName": cluster.cluster_name, "NextToken": token, **more})
        for op, more in requests
    ]

    assert got == ["", *["ValidationException"] * 4]


def test_page_token_past_the_end_gives_an_empty_page(cluster: ClusterHandle, sagemaker: Any) -> None:
    token = sagemaker.list_cluster_nodes(ClusterName=cluster.cluster_name, MaxResults=2)["NextToken"]
    every = [node["instanceId"] for node in cluster.nodes()]
    sagemaker.batch_delete_cluster_nodes(ClusterName=cluster.cluster_name, NodeIds=every[:2])
    eventually(lambda: len(cluster.nodes()) == 1, "the nodes to go")

    page = sagemaker.list_cluster_nodes(ClusterName=cluster.cluster_name, MaxResults=2, NextToken=token)

    assert page["ClusterNodeSummaries"] == []
    assert "NextToken" not in page
