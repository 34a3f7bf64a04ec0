"""The port NodeGroups: the same tests for the fake and the adapter on moto, and stubs for answers of AWS alone."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.exceptions import ReadTimeoutError
from botocore.stub import Stubber

from evenkeel.adapters.autoscaling import AutoScalingNodeGroups
from evenkeel.domain.recovery.node_groups import IN_SERVICE, NodeGroup
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.ports import NodeGroups, NotAllowed, NotFound, Refused
from tests.fakes.node_groups import InMemoryNodeGroups

NODE = "i-0123456789abcdef0"
REQUEST = {"InstanceId": NODE, "ShouldDecrementDesiredCapacity": False}


class NodeGroupsUnderTest(NamedTuple):
    """A group `gpu-asg` of cluster `train` with two instances."""

    groups: NodeGroups
    instances: list[str]


@pytest.fixture(params=["memory", "moto"])
def bench(request: pytest.FixtureRequest) -> Iterator[NodeGroupsUnderTest]:
    if request.param == "memory":
        fake = InMemoryNodeGroups()
        yield NodeGroupsUnderTest(fake, fake.add(NodeGroup(name="gpu-asg", cluster="train", desired=2, in_service=0)))
        return
    request.getfixturevalue("monkeypatch").setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # thousands
    client_of = request.getfixturevalue("moto_client")
    client = client_of("autoscaling")
    image = client_of("ec2").register_image(Name="gpu")["ImageId"]
    client.create_launch_configuration(LaunchConfigurationName="gpu", ImageId=image, InstanceType="p5.48xlarge")
    client.create_auto_scaling_group(
        AutoScalingGroupName="gpu-asg",
        LaunchConfigurationName="gpu",
        MinSize=0,
        MaxSize=4,
        DesiredCapacity=2,
        AvailabilityZones=["us-west-2a"],
        Tags=[{"Key": "kubernetes.io/cluster/train", "Value": "owned", "PropagateAtLaunch": True}],
    )
    listed = client.describe_auto_scaling_instances()["AutoScalingInstances"]
    groups = AutoScalingNodeGroups(client, client, client_of("eks"))
    yield NodeGroupsUnderTest(groups, [instance["InstanceId"] for instance in listed])


def test_group_membership_of_an_instance_names_group_and_cluster(bench: NodeGroupsUnderTest) -> None:
    member = bench.groups.member(bench.instances[0])

    assert member is not None
    assert (member.instance_id, member.lifecycle, member.is_protected) == (bench.instances[0], IN_SERVICE, False)
    assert member.group == NodeGroup(name="gpu-asg", cluster="train", desired=2, in_service=2)


def test_instance_outside_every_group_is_no_member(bench: NodeGroupsUnderTest) -> None:
    assert bench.groups.member("i-0aaaaaaaaaaaaaaaa") is None
    assert bench.groups.group("no-such-group") is None


def test_terminated_instance_is_replaced_at_the_same_desired_capacity(bench: NodeGroupsUnderTest) -> None:
    faulty, other = bench.instances

    answer = bench.groups.terminate(faulty)

    group = bench.groups.group("gpu-asg")
    assert answer is RepairAnswer.ACCEPTED
    assert group is not None
    assert (group.desired, group.in_service) == (2, 2)
    assert bench.groups.member(faulty) is None
    assert bench.groups.member(other) is not None


def test_malformed_instance_id_is_refused(bench: NodeGroupsUnderTest) -> None:
    for instance_id in ("", "i-1", "my-node"):
        with pytest.raises(Refused):
            bench.groups.member(instance_id)
        with pytest.raises(Refused):
            bench.groups.terminate(instance_id)


# ---------------------------------------------------------------- answers that only AWS gives


class StubbedNodeGroups(NamedTuple):
    """The adapter on clients with prepared answers."""

    groups: AutoScalingNodeGroups
    autoscaling: Stubber
    eks: Stubber


@pytest.fixture
def stubs() -> Iterator[StubbedNodeGroups]:
    credentials = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    clients: list[Any] = [
        boto3.client(name, region_name="us-west-2", **credentials)  # type: ignore[call-overload]
        for name in ("autoscaling", "eks")
    ]
    autoscaling, eks = clients
    with Stubber(autoscaling) as stub, Stubber(eks) as eks_stub:
        yield StubbedNodeGroups(AutoScalingNodeGroups(autoscaling, autoscaling, eks), stub, eks_stub)
        stub.assert_no_pending_responses()
        eks_stub.assert_no_pending_responses()


def describe_member(stubs: StubbedNodeGroups, *, is_listed: bool = True) -> None:
    member = {
        "InstanceId": NODE,
        "AutoScalingGroupName": "eks-gpu",
        "AvailabilityZone": "us-west-2a",
        "LifecycleState": IN_SERVICE,
        "HealthStatus": "HEALTHY",
        "ProtectedFromScaleIn": True,
    }
    answer = {"AutoScalingInstances": [member] if is_listed else []}
    stubs.autoscaling.add_response("describe_auto_scaling_instances", answer, {"InstanceIds": [NODE]})


def describe_group(stubs: StubbedNodeGroups, tags: dict[str, str]) -> None:
    group = {
        "AutoScalingGroupName": "eks-gpu",
        "MinSize": 0,
        "MaxSize": 4,
        "DesiredCapacity": 2,
        "DefaultCooldown": 300,
        "AvailabilityZones": ["us-west-2a"],
        "HealthCheckType": "EC2",
        "CreatedTime": "2026-01-01T00:00:00Z",
        "SuspendedProcesses": [{"ProcessName": "Launch", "SuspensionReason": "User suspended"}],
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    answer = {"AutoScalingGroups": [group]}
    stubs.autoscaling.add_response("describe_auto_scaling_groups", answer, {"AutoScalingGroupNames": ["eks-gpu"]})


MANAGED = {"eks:cluster-name": "train", "eks:nodegroup-name": "gpu"}


@pytest.mark.parametrize(
    ("nodegroup", "expected"),
    [({"nodeRepairConfig": {"enabled": True}}, True), ({"nodeRepairConfig": {"enabled": False}}, False), ({}, False)],
)
def test_managed_node_group_shows_whether_eks_repairs_its_nodes(
    stubs: StubbedNodeGroups, nodegroup: Any, expected: bool
) -> None:
    describe_member(stubs)
    describe_group(stubs, MANAGED)
    stubs.eks.add_response(
        "describe_nodegroup", {"nodegroup": nodegroup}, {"clusterName": "train", "nodegroupName": "gpu"}
    )

    member = stubs.groups.member(NODE)

    assert member is not None
    assert member.is_protected
    assert (member.group.nodegroup, member.group.suspended) == ("gpu", ("Launch",))
    assert member.group.has_auto_repair is expected


def test_missing_node_group_is_an_error(stubs: StubbedNodeGroups) -> None:
    describe_group(stubs, MANAGED)
    stubs.eks.add_client_error("describe_nodegroup", "ResourceNotFoundException", http_status_code=404)

    with pytest.raises(NotFound):
        stubs.groups.group("eks-gpu")


@pytest.mark.parametrize(
    "tags",
    [
        {},
        {"kubernetes.io/cluster/train": "shared"},
        {"kubernetes.io/cluster/train": "owned", "kubernetes.io/cluster/other": "owned"},
    ],
)
def test_group_with_missing_or_ambiguous_tags_has_no_cluster(stubs: StubbedNodeGroups, tags: dict[str, str]) -> None:
    describe_group(stubs, tags)

    group = stubs.groups.group("eks-gpu")

    assert group is not None
    assert group.cluster == ""


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("ScalingActivityInProgress", 400, RepairAnswer.NOT_NOW),
        ("ResourceContention", 500, RepairAnswer.NOT_NOW),
        ("Throttling", 400, RepairAnswer.NOT_NOW),
        ("InternalFailure", 500, RepairAnswer.UNKNOWN),
    ],
)
def test_each_error_of_a_termination_call_maps_to_an_answer(
    stubs: StubbedNodeGroups, code: str, status: int, expected: RepairAnswer
) -> None:
    stubs.autoscaling.add_client_error(
        "terminate_instance_in_auto_scaling_group", code, http_status_code=status, expected_params=REQUEST
    )

    assert stubs.groups.terminate(NODE) is expected


@pytest.mark.parametrize(("is_listed", "expected"), [(True, RepairAnswer.NOT_NOW), (False, RepairAnswer.NO_SUCH_NODE)])
def test_rejected_termination_is_explained_by_the_membership(
    stubs: StubbedNodeGroups, is_listed: bool, expected: RepairAnswer
) -> None:
    stubs.autoscaling.add_client_error(
        "terminate_instance_in_auto_scaling_group", "ValidationError", http_status_code=400, expected_params=REQUEST
    )
    describe_member(stubs, is_listed=is_listed)
    if is_listed:
        describe_group(stubs, {"kubernetes.io/cluster/train": "owned"})

    assert stubs.groups.terminate(NODE) is expected


def test_forbidden_termination_is_an_error(stubs: StubbedNodeGroups) -> None:
    stubs.autoscaling.add_client_error("terminate_instance_in_auto_scaling_group", "AccessDenied", http_status_code=403)

    with pytest.raises(NotAllowed):
        stubs.groups.terminate(NODE)


def test_termination_without_a_reply_is_unknown() -> None:
    class NoReply:
        """A client whose answers are lost."""

        def terminate_instance_in_auto_scaling_group(self, **_: Any) -> None:
            raise ReadTimeoutError(endpoint_url="https://autoscaling")

    assert AutoScalingNodeGroups(NoReply(), NoReply(), NoReply()).terminate(NODE) is RepairAnswer.UNKNOWN
