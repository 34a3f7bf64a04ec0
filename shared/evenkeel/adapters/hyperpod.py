"""The port Provider on SageMaker HyperPod."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from evenkeel.adapters import aws
from evenkeel.domain.capacity.pools import Reservation
from evenkeel.domain.capacity.training_plans import TrainingPlan
from evenkeel.domain.nodes import INSTANCE_ID, ProviderCluster, ProviderNode
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.ports import EvenkeelError, NotFound, Refused, Unreachable

_ARN = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}:cluster/[a-z0-9]{12}", re.ASCII)
_GONE = ("ResourceNotFound", "ResourceNotFoundException", "ValidationException")
"""Codes for a node that does not exist. Ids are validated before the call, so ValidationException means this too."""
_ANSWERS: Mapping[str, RepairAnswer] = {
    "InstanceIdInUse": RepairAnswer.IN_USE,
    "InvalidInstanceStatus": RepairAnswer.NOT_NOW,
    "InstanceIdNotFound": RepairAnswer.NO_SUCH_NODE,
    "InternalServerError": RepairAnswer.FAILED,
}
_PAGE = 100
_ULTRA_SERVER_CLOSING_SECONDS = 3600
"""How long before its end AWS takes back an UltraServer: twice as long as an instance."""
_LONGEST_LAUNCH = timedelta(hours=1)
"""How much later than its creation a node's launch time may be. The API filters by creation alone."""


class HyperPodProvider:
    """A HyperPod cluster, by ARN."""

    def __init__(self, cluster_arn: str, reader: Any = None, repairer: Any = None) -> None:
        if _ARN.fullmatch(cluster_arn) is None:
            raise Refused(f"{cluster_arn!r} is not the ARN of a HyperPod cluster")
        self._arn = cluster_arn
        self._reader = reader or aws.client("sagemaker")
        self._repairer = repairer or aws.client("sagemaker", aws.ONE_ATTEMPT)
        self._has_logical_ids = True

    def cluster(self) -> ProviderCluster:
        with aws.translate_errors(f"describe cluster {self._arn}"):
            answer = self._reader.describe_cluster(ClusterName=self._arn)
        auto_scaling = answer.get("AutoScaling") or {}
        return ProviderCluster(
            name=answer.get("ClusterName", ""),
            arn=answer["ClusterArn"],
            status=answer["ClusterStatus"],
            repairs_by_itself=answer.get("NodeRecovery") == "Automatic",
            has_karpenter=(auto_scaling.get("Mode"), auto_scaling.get("AutoScalerType")) == ("Enable", "Karpenter"),
            plan_by_group={
                group["InstanceGroupName"]: group["TrainingPlanArn"]
                for group in (*answer.get("InstanceGroups", ()), *answer.get("RestrictedInstanceGroups", ()))
                if group.get("InstanceGroupName") and group.get("TrainingPlanArn")
            },
        )

    def training_plan(self, arn: str) -> TrainingPlan:
        name = arn.rpartition("/")[2]
        attempt = f"describe training plan {name}"
        with aws.translate_errors(attempt):
            answer = self._reader.describe_training_plan(TrainingPlanName=name)
        with aws.translate_malformed_answer(attempt):
            return TrainingPlan(name=answer["TrainingPlanName"], periods=tuple(_periods(answer)))

    def nodes(self) -> tuple[ProviderNode, ...]:
        with aws.translate_errors(f"list nodes of {self._arn}"):
            if self._has_logical_ids:
                try:
                    return self._list_nodes(IncludeNodeLogicalIds=True)
                except ClientError as error:
                    # Only clusters with continuous provisioning have logical ids. Other clusters reject this option.
                    if aws.code_of(error) != "ValidationException":
                        raise
                    nodes = self._list_nodes()
                    self._has_logical_ids = False
                    return nodes
            return self._list_nodes()

    def node(self, instance_id: str) -> ProviderNode | None:
        _check_instance_id(instance_id)
        return self._describe_node(NodeId=instance_id)

    def node_in_slot(self, logical_id: str) -> ProviderNode | None:
        return self._describe_node(NodeLogicalId=logical_id)

    def nodes_launched_after(self, at: datetime) -> tuple[ProviderNode, ...]:
        with aws.translate_errors(f"list new nodes of {self._arn}"):
            recent_nodes = self._list_nodes(CreationTimeAfter=at - _LONGEST_LAUNCH)
        return tuple(node for node in recent_nodes if node.launched_at > at)

    def reboot(self, instance_id: str) -> RepairAnswer:
        return self._request_repair("reboot", instance_id, self._repairer.batch_reboot_cluster_nodes)

    def replace(self, instance_id: str) -> RepairAnswer:
        return self._request_repair("replace", instance_id, self._repairer.batch_replace_cluster_nodes)

    def check_health(self, instance_group: str, instance_id: str) -> RepairAnswer:
        _check_instance_id(instance_id)
        # Without InstanceIds the whole group would be checked. The answer has no result; labels of the node have it.
        configuration = {
            "InstanceGroupName": instance_group,
            "InstanceIds": [instance_id],
            "DeepHealthChecks": ["InstanceStress", "InstanceConnectivity"],
        }
        try:
            with aws.translate_errors(f"deep health check of {instance_id} of {self._arn}", _REFUSALS):
                self._repairer.start_cluster_health_check(
                    ClusterName=self._arn, DeepHealthCheckConfigurations=[configuration]
                )
        except Unreachable:
            return RepairAnswer.UNKNOWN
        except (Refused, NotFound):
            return RepairAnswer.NOT_NOW  # the status of the node does not allow a check
        return RepairAnswer.ACCEPTED

    def _describe_node(self, **name: str) -> ProviderNode | None:
        with aws.translate_errors(f"describe node {next(iter(name.values()))} of {self._arn}"):
            try:
                answer = self._reader.describe_cluster_node(ClusterName=self._arn, **name)
            except ClientError as error:
                if aws.code_of(error) in _GONE:
                    return None
                raise
        return _read_node(answer["NodeDetails"])

    def _list_nodes(self, **options: Any) -> tuple[ProviderNode, ...]:
        nodes: list[ProviderNode | None] = []
        token: dict[str, str] = {}
        while True:
            answer = self._reader.list_cluster_nodes(ClusterName=self._arn, MaxResults=_PAGE, **options, **token)
            nodes.extend(_read_node(summary) for summary in answer.get("ClusterNodeSummaries", ()))
            if not answer.get("NextToken"):
                return tuple(node for node in nodes if node is not None)
            token = {"NextToken": answer["NextToken"]}

    def _request_repair(self, rung: str, instance_id: str, call: Callable[..., Mapping[str, Any]]) -> RepairAnswer:
        """Make one call for one node, so that its outcome is either clear or UNKNOWN."""
        _check_instance_id(instance_id)
        try:
            with aws.translate_errors(f"{rung} {instance_id} of {self._arn}", _REFUSALS):
                answer = call(ClusterName=self._arn, NodeIds=[instance_id])
        except Unreachable:
            return RepairAnswer.UNKNOWN
        # Both lists are optional. If the node is in neither, the outcome is unknown.
        for failure in answer.get("Failed") or ():
            if failure.get("NodeId") == instance_id:
                return _ANSWERS.get(failure.get("ErrorCode", ""), RepairAnswer.FAILED)
        return RepairAnswer.ACCEPTED if instance_id in (answer.get("Successful") or ()) else RepairAnswer.UNKNOWN


_REFUSALS: Mapping[str, type[EvenkeelError]] = {"ResourceLimitExceeded": Refused, "ConflictException": Refused}


def _periods(plan: Mapping[str, Any]) -> Iterator[Reservation]:
    """Yield the periods of a plan's reserved capacities; of the plan itself, if they have no times.

    An extended plan keeps its nodes and states the later end. So a capacity that continues another is in the same
    period. If the plan ends after all its capacities, the last one ends with the plan
    (https://docs.aws.amazon.com/sagemaker/latest/dg/training-plan-extension.html).
    """
    summaries = plan.get("ReservedCapacitySummaries") or ()
    capacities = [*filter(_has_times, summaries)] or [*filter(_has_times, (plan,))]
    last_end = max((capacity["EndTime"] for capacity in capacities), default=None)
    usable = [capacity for capacity in capacities if capacity.get("Status") != "Failed"]
    merged_periods: list[dict[str, Any]] = []
    for capacity in sorted(usable, key=lambda summary: (summary.get("AvailabilityZone", ""), summary["StartTime"])):
        if merged_periods and _continues(merged_periods[-1], capacity):
            merged_periods[-1]["EndTime"] = capacity["EndTime"]
        else:
            merged_periods.append({**capacity})
    for capacity in merged_periods:
        ends_at = capacity["EndTime"]
        if ends_at == last_end and _has_times(plan):
            ends_at = max(ends_at, plan["EndTime"])
        is_ultra_server = capacity.get("ReservedCapacityType") == "UltraServer"
        closing_field = {"closing_seconds": _ULTRA_SERVER_CLOSING_SECONDS} if is_ultra_server else {}
        yield Reservation(starts_at=capacity["StartTime"], ends_at=ends_at, **closing_field)


def _has_times(capacity: Mapping[str, Any]) -> bool:
    return capacity.get("StartTime") is not None and capacity.get("EndTime") is not None


def _continues(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Whether a reserved capacity keeps the nodes of an earlier one: as many, in the same zone, without a gap."""
    same_fields = ("AvailabilityZone", "InstanceType", "TotalInstanceCount")
    return bool(earlier["EndTime"] == later["StartTime"]) and all(
        earlier.get(name) == later.get(name) for name in same_fields
    )


def _check_instance_id(instance_id: str) -> None:
    # botocore does not check patterns or lengths, so a malformed id would reach the service.
    if INSTANCE_ID.fullmatch(instance_id) is None:
        raise Refused(f"{instance_id!r} is not an instance id")


def _read_node(summary: Mapping[str, Any]) -> ProviderNode | None:
    """Parse a node summary or NodeDetails; None if the node slot has no node yet, or its node is gone."""
    status = summary.get("InstanceStatus", {})
    instance_id = summary.get("InstanceId", "")
    if INSTANCE_ID.fullmatch(instance_id) is None or status.get("Status") == "NotFound":
        return None
    return ProviderNode(
        instance_id=instance_id,
        logical_id=summary.get("NodeLogicalId") or None,
        instance_group=summary["InstanceGroupName"],
        instance_type=summary.get("InstanceType", ""),
        launched_at=summary["LaunchTime"],
        status=status.get("Status", ""),
        message=status.get("Message", ""),
        ultra_server=summary.get("UltraServerInfo", {}).get("Id", ""),
        image=summary.get("CurrentImageReleaseVersion", ""),
    )
