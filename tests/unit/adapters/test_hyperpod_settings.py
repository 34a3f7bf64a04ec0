"""Settings of a HyperPod cluster that determine who repairs its nodes."""

from typing import Any

import pytest

from evenkeel.adapters.hyperpod import HyperPodProvider

ARN = "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl"


class DescribeClusterStub:
    """Answers DescribeCluster."""

    def __init__(self, **changes: Any) -> None:
        self.answer = {"ClusterArn": ARN, "ClusterName": "research", "ClusterStatus": "InService", **changes}

    def describe_cluster(self, **_: Any) -> dict[str, Any]:
        return self.answer


@pytest.mark.parametrize(
    ("changes", "repairs_by_itself", "has_karpenter"),
    [
        ({}, False, False),
        ({"NodeRecovery": "None", "AutoScaling": {"Mode": "Disable"}}, False, False),
        ({"NodeRecovery": "Automatic", "AutoScaling": {"Mode": "Enable", "AutoScalerType": "Karpenter"}}, True, True),
        ({"NodeRecovery": "Automatic", "AutoScaling": {"Mode": "Disable", "AutoScalerType": "Karpenter"}}, True, False),
    ],
)
def test_settings_name_the_owners_of_a_repair(
    changes: dict[str, Any], repairs_by_itself: bool, has_karpenter: bool
) -> None:
    settings = HyperPodProvider(ARN, reader=DescribeClusterStub(**changes), repairer=DescribeClusterStub()).cluster()

    assert (settings.repairs_by_itself, settings.has_karpenter) == (repairs_by_itself, has_karpenter)
