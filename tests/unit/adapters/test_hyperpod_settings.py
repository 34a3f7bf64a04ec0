"""Settings of a HyperPod cluster that determine who repairs its nodes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evenkeel.adapters.hyperpod import HyperPodProvider
from evenkeel.ports import Unreadable

ARN = "arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl"
PLAN = "arn:aws:sagemaker:us-west-2:111122223333:training-plan/p5-autumn"
START, END = datetime(2026, 10, 1, 11, 30, tzinfo=UTC), datetime(2026, 12, 1, 11, 30, tzinfo=UTC)


class SageMakerStub:
    """Answers DescribeCluster and DescribeTrainingPlan."""

    def __init__(self, **changes: Any) -> None:
        self.answer = {"ClusterArn": ARN, "ClusterName": "research", "ClusterStatus": "InService", **changes}

    def describe_cluster(self, **_: Any) -> dict[str, Any]:
        return self.answer

    def describe_training_plan(self, **request: Any) -> dict[str, Any]:
        assert request == {"TrainingPlanName": "p5-autumn"}
        return {"TrainingPlanArn": PLAN, "TrainingPlanName": "p5-autumn", "Status": "Active", **self.answer}


@pytest.mark.parametrize(
    ("changes", "repairs_by_itself", "has_karpenter"),
    [
        ({}, False, False),
        ({"NodeRecovery": "None", "AutoScaling": {"Mode": "Disable"}}, False, False),
        ({"NodeRecovery": "Automatic", "AutoScaling": {"Mode": "Enable", "AutoScalerType": "Karpenter"}}, True, True),
        ({"NodeRecovery": "Automatic", "AutoScaling": {"Mode": "Disable", "AutoScalerType": "Karpenter"}}, True, False),
    ],
)
def test_cluster_settings_tell_whether_hyperpod_or_karpenter_repairs_nodes(
    changes: dict[str, Any], repairs_by_itself: bool, has_karpenter: bool
) -> None:
    settings = HyperPodProvider(ARN, reader=SageMakerStub(**changes), repairer=SageMakerStub()).cluster()

    assert (settings.repairs_by_itself, settings.has_karpenter) == (repairs_by_itself, has_karpenter)


def provider_with(**answer: Any) -> HyperPodProvider:
    return HyperPodProvider(ARN, reader=SageMakerStub(**answer), repairer=SageMakerStub())


def test_settings_name_the_training_plan_of_each_group() -> None:
    groups = [{"InstanceGroupName": "p5-workers", "TrainingPlanArn": PLAN}, {"InstanceGroupName": "cpu"}]
    restricted = [{"InstanceGroupName": "p5-nova", "TrainingPlanArn": PLAN}]

    settings = provider_with(InstanceGroups=groups, RestrictedInstanceGroups=restricted).cluster()

    assert settings.plan_by_group == {"p5-workers": PLAN, "p5-nova": PLAN}


def reserved(**changes: Any) -> dict[str, Any]:
    return {"ReservedCapacityArn": "arn", "Status": "Active", "StartTime": START, "EndTime": END, **changes}


def test_training_plan_has_a_period_for_each_reserved_capacity() -> None:
    later = {"StartTime": END + timedelta(days=3), "EndTime": END + timedelta(days=9), "Status": "Scheduled"}

    plan = provider_with(ReservedCapacitySummaries=[reserved(), reserved(**later)]).training_plan(PLAN)

    assert [(period.starts_at, period.ends_at) for period in plan.periods] == [
        (START, END),
        (later["StartTime"], later["EndTime"]),
    ]


def test_failed_capacity_and_capacity_without_times_have_no_period() -> None:
    summaries = [reserved(Status="Failed"), {"ReservedCapacityArn": "arn", "Status": "Pending"}]

    assert provider_with(ReservedCapacitySummaries=summaries).training_plan(PLAN).periods == ()


def test_plan_without_reserved_capacities_uses_its_own_times() -> None:
    (period,) = provider_with(StartTime=START, EndTime=END).training_plan(PLAN).periods

    assert (period.starts_at, period.ends_at) == (START, END)


DAY = timedelta(days=1)


def test_extended_plan_whose_capacity_has_the_old_end_ends_later() -> None:
    extended = provider_with(ReservedCapacitySummaries=[reserved()], StartTime=START, EndTime=END + 7 * DAY)

    (period,) = extended.training_plan(PLAN).periods

    assert (period.starts_at, period.ends_at) == (START, END + 7 * DAY)


def test_extension_without_a_gap_is_one_period() -> None:
    extension = reserved(StartTime=END, EndTime=END + 7 * DAY, Status="Scheduled")

    (period,) = provider_with(ReservedCapacitySummaries=[extension, reserved()]).training_plan(PLAN).periods

    assert (period.starts_at, period.ends_at) == (START, END + 7 * DAY)


@pytest.mark.parametrize(
    "changes", [{"StartTime": END + DAY}, {"AvailabilityZone": "us-west-2b"}, {"TotalInstanceCount": 2}]
)
def test_capacity_of_other_nodes_is_another_period(changes: dict[str, Any]) -> None:
    first = reserved(AvailabilityZone="us-west-2a", TotalInstanceCount=4)
    second = {**first, "StartTime": END, "EndTime": END + 9 * DAY, **changes}

    plan = provider_with(ReservedCapacitySummaries=[first, second]).training_plan(PLAN)

    assert {period.ends_at for period in plan.periods} == {END, END + 9 * DAY}


def test_failed_last_capacity_does_not_extend_the_others() -> None:
    failed = reserved(StartTime=END + DAY, EndTime=END + 9 * DAY, Status="Failed")
    answer = {"ReservedCapacitySummaries": [reserved(), failed], "StartTime": START, "EndTime": END + 9 * DAY}

    (period,) = provider_with(**answer).training_plan(PLAN).periods

    assert period.ends_at == END


def test_capacity_without_times_leaves_the_times_of_its_plan() -> None:
    pending = {"ReservedCapacityArn": "arn", "Status": "Pending"}

    (period,) = (
        provider_with(ReservedCapacitySummaries=[pending], StartTime=START, EndTime=END).training_plan(PLAN).periods
    )

    assert (period.starts_at, period.ends_at) == (START, END)


def test_ultra_servers_close_an_hour_before_their_end() -> None:
    ultra_server = reserved(ReservedCapacityType="UltraServer")

    (period,) = provider_with(ReservedCapacitySummaries=[ultra_server]).training_plan(PLAN).periods

    assert period.usable_until == END - timedelta(hours=1)


@pytest.mark.parametrize(
    "answer",
    [
        {"ReservedCapacitySummaries": [reserved(EndTime="soon")]},
        {"ReservedCapacitySummaries": [reserved(StartTime=3), reserved()]},
    ],
)
def test_malformed_training_plan_is_an_error_of_the_port(answer: dict[str, Any]) -> None:
    with pytest.raises(Unreadable, match="describe training plan"):
        provider_with(**answer).training_plan(PLAN)
