"""The port NodeGroups on EC2 Auto Scaling and EKS."""

from collections.abc import Mapping
from typing import Any

from evenkeel.adapters import aws
from evenkeel.domain.nodes import INSTANCE_ID
from evenkeel.domain.recovery.node_groups import IN_SERVICE, GroupMember, NodeGroup
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.ports import EvenkeelError, Refused, Throttled, Unreachable

_CLUSTER_TAG, _NODEGROUP_TAG = "eks:cluster-name", "eks:nodegroup-name"
"""Tags that EKS writes on the group of a managed node group."""
_OWNED_TAG = "kubernetes.io/cluster/"
"""Prefix of the tag with which a user's own group names its cluster. Its value is `owned`."""
_NOT_NOW: Mapping[str, type[EvenkeelError]] = {"ScalingActivityInProgress": Throttled, "ResourceContention": Throttled}
"""Codes of a group that changes now: the request may be repeated later."""


class AutoScalingNodeGroups:
    """Reads Auto Scaling groups and terminates their instances, in one account and region."""

    def __init__(self, reader: Any = None, terminator: Any = None, eks: Any = None) -> None:
        self._reader = reader or aws.client("autoscaling")
        self._terminator = terminator or aws.client("autoscaling", aws.ONE_ATTEMPT)
        self._eks = eks or aws.client("eks")

    def member(self, instance_id: str) -> GroupMember | None:
        _check_instance_id(instance_id)
        with aws.translate_errors(f"describe Auto Scaling instance {instance_id}", _NOT_NOW):
            answer = self._reader.describe_auto_scaling_instances(InstanceIds=[instance_id])
        instance_document = next(
            (instance for instance in answer.get("AutoScalingInstances", ()) if instance["InstanceId"] == instance_id),
            None,
        )
        group = self.group(instance_document["AutoScalingGroupName"]) if instance_document else None
        if instance_document is None or group is None:
            return None
        return GroupMember(
            instance_id=instance_id,
            group=group,
            lifecycle=instance_document["LifecycleState"],
            is_protected=instance_document["ProtectedFromScaleIn"],
        )

    def group(self, name: str) -> NodeGroup | None:
        with aws.translate_errors(f"describe Auto Scaling group {name}", _NOT_NOW):
            answer = self._reader.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        group_document = next(
            (group for group in answer.get("AutoScalingGroups", ()) if group["AutoScalingGroupName"] == name), None
        )
        if group_document is None:
            return None
        tags = {tag["Key"]: tag.get("Value", "") for tag in group_document.get("Tags", ())}
        cluster, nodegroup = _cluster_of(tags), tags.get(_NODEGROUP_TAG, "")
        return NodeGroup(
            name=name,
            cluster=cluster,
            nodegroup=nodegroup,
            desired=group_document["DesiredCapacity"],
            in_service=sum(
                instance["LifecycleState"] == IN_SERVICE for instance in group_document.get("Instances", ())
            ),
            suspended=tuple(sorted(process["ProcessName"] for process in group_document.get("SuspendedProcesses", ()))),
            has_auto_repair=bool(nodegroup) and self._has_auto_repair(cluster, nodegroup),
        )

    def terminate(self, instance_id: str) -> RepairAnswer:
        _check_instance_id(instance_id)
        try:
            with aws.translate_errors(f"terminate {instance_id} in its Auto Scaling group", _NOT_NOW):
                self._terminator.terminate_instance_in_auto_scaling_group(
                    InstanceId=instance_id, ShouldDecrementDesiredCapacity=False
                )
        except Unreachable:
            return RepairAnswer.UNKNOWN
        except Throttled:
            return RepairAnswer.NOT_NOW
        except Refused:
            # ValidationError means that the instance is in no group, or that its state allows no termination.
            return RepairAnswer.NO_SUCH_NODE if self.member(instance_id) is None else RepairAnswer.NOT_NOW
        return RepairAnswer.ACCEPTED

    def _has_auto_repair(self, cluster: str, nodegroup: str) -> bool:
        with aws.translate_errors(f"describe node group {nodegroup} of {cluster}"):
            answer = self._eks.describe_nodegroup(clusterName=cluster, nodegroupName=nodegroup)
        return bool((answer["nodegroup"].get("nodeRepairConfig") or {}).get("enabled"))


def _cluster_of(tags: Mapping[str, str]) -> str:
    """Return the EKS cluster that the tags name. Several owners are none: such tags prove nothing."""
    if _CLUSTER_TAG in tags:
        return tags[_CLUSTER_TAG]
    owners = [key.removeprefix(_OWNED_TAG) for key in tags if key.startswith(_OWNED_TAG) and tags[key] == "owned"]
    return owners[0] if len(owners) == 1 else ""


def _check_instance_id(instance_id: str) -> None:
    # With an empty list of ids, EC2 Auto Scaling describes every instance. A malformed id must not reach the service.
    if INSTANCE_ID.fullmatch(instance_id) is None:
        raise Refused(f"{instance_id!r} is not an instance id")
