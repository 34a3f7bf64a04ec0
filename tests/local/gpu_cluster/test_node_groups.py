"""Auto Scaling groups of EKS nodes, through boto3 and the Kubernetes API."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from evenkeel_local import gpu_cluster
from evenkeel_local.gpu_cluster import ClusterHandle
from tests.local.gpu_cluster.conftest import QUICK, aws_client
from tests.local.gpu_cluster.kube_client import NODES, KubeClient, eventually

GROUPS = [
    {"name": "workers", "count": 2, "launch": 0.2},
    {"name": "full", "count": 2, "capacity": 1, "launch": 0.2},
    {"name": "repaired", "count": 1, "launch": 0.2, "repairSeconds": 0.2},
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    config = {**QUICK, "instanceGroups": [{"name": "none", "count": 0}], "nodeGroups": GROUPS}
    with gpu_cluster.start(config, tmp_path_factory.mktemp("groups")) as handle:
        yield handle


@pytest.fixture
def kube(cluster: ClusterHandle) -> Iterator[KubeClient]:
    client = KubeClient(cluster.kubernetes_url, cluster.ca_pem, cluster.admin_token)
    yield client
    client.close()


def nodes_of(kube: KubeClient, group: str) -> list[str]:
    documents = kube.items(NODES)
    return [
        str(node["spec"]["providerID"]).rpartition("/")[2]
        for node in documents
        if node["metadata"]["labels"]["eks.amazonaws.com/nodegroup"] == group
    ]


def await_nodes(kube: KubeClient, group: str, count: int, without: str = "") -> list[str]:
    def complete() -> list[str] | None:
        nodes = nodes_of(kube, group)
        return nodes if len(nodes) == count and without not in nodes else None

    return eventually(complete, f"{count} nodes of {group}")


def described(client: Any, group: str) -> Any:
    return client.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"][0]


def test_terminated_instance_is_replaced_at_the_same_desired_capacity(cluster: ClusterHandle, kube: KubeClient) -> None:
    client = aws_client("autoscaling", cluster.eks_url)
    first, second = await_nodes(kube, "workers", 2)

    client.terminate_instance_in_auto_scaling_group(InstanceId=first, ShouldDecrementDesiredCapacity=False)

    nodes = await_nodes(kube, "workers", 2, without=first)
    assert second in nodes
    group = described(client, "workers")
    assert (group["DesiredCapacity"], {item["InstanceId"] for item in group["Instances"]}) == (2, set(nodes))
    assert client.describe_auto_scaling_instances(InstanceIds=[first])["AutoScalingInstances"] == []


def test_group_names_its_cluster_and_node_group(cluster: ClusterHandle, kube: KubeClient) -> None:
    instance_id = await_nodes(kube, "repaired", 1)[0]
    client = aws_client("autoscaling", cluster.eks_url)

    member = client.describe_auto_scaling_instances(InstanceIds=[instance_id])["AutoScalingInstances"][0]
    tags = {tag["Key"]: tag["Value"] for tag in described(client, member["AutoScalingGroupName"])["Tags"]}
    eks = aws_client("eks", cluster.eks_url)
    settings = eks.describe_nodegroup(clusterName=cluster.eks_cluster_name, nodegroupName="repaired")["nodegroup"]

    assert (member["LifecycleState"], member["ProtectedFromScaleIn"]) == ("InService", False)
    assert tags == {"eks:cluster-name": cluster.eks_cluster_name, "eks:nodegroup-name": "repaired"}
    assert settings["nodeRepairConfig"]["enabled"] is True


def test_group_without_capacity_stays_incomplete(cluster: ClusterHandle, kube: KubeClient) -> None:
    client = aws_client("autoscaling", cluster.eks_url)
    await_nodes(kube, "full", 1)

    group = described(client, "full")

    assert (group["DesiredCapacity"], len(group["Instances"])) == (2, 1)


def test_eks_auto_repair_replaces_a_node_with_broken_gpu(cluster: ClusterHandle, kube: KubeClient) -> None:
    broken = await_nodes(kube, "repaired", 1)[0]

    cluster.control("POST", "faults", {"fault": "gpu-xid79", "node": broken})

    assert await_nodes(kube, "repaired", 1, without=broken) != [broken]


@pytest.mark.parametrize("instance_id", ["i-0123456789abcdef0", ""])
def test_unknown_instance_is_refused(cluster: ClusterHandle, instance_id: str) -> None:
    client = aws_client("autoscaling", cluster.eks_url)

    with pytest.raises(ClientError) as refused:
        client.terminate_instance_in_auto_scaling_group(
            InstanceId=instance_id or "x", ShouldDecrementDesiredCapacity=False
        )

    assert refused.value.response["Error"]["Code"] == "ValidationError"
