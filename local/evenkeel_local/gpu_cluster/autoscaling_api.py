"""The query protocol of EC2 Auto Scaling, for the calls that Evenkeel makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl
from xml.etree import ElementTree as ET

from evenkeel_local.gpu_cluster.aws_auth import AwsAuth, Incoming
from evenkeel_local.gpu_cluster.aws_model import AwsError
from evenkeel_local.gpu_cluster.call_faults import ApiCall, CallFaults
from evenkeel_local.gpu_cluster.config import ClusterConfig
from evenkeel_local.gpu_cluster.node_groups import IN_SERVICE, AutoScalingGroups, GroupInstance

VERSION = "2011-01-01"
_XML_NAMESPACE = f"http://autoscaling.amazonaws.com/doc/{VERSION}/"
_UNCHANGEABLE = ("Pending",)

Query = dict[str, str]


class AutoScalingApi:
    """Answers DescribeAutoScalingInstances, DescribeAutoScalingGroups and TerminateInstanceInAutoScalingGroup."""

    def __init__(self, config: ClusterConfig, groups: AutoScalingGroups, auth: AwsAuth, faults: CallFaults) -> None:
        self._config = config
        self._groups = groups
        self._auth = auth
        self._faults = faults
        self._operations: dict[str, Callable[[Query], dict[str, Any]]] = {
            "DescribeAutoScalingInstances": self._describe_instances,
            "DescribeAutoScalingGroups": self._describe_groups,
            "TerminateInstanceInAutoScalingGroup": self._terminate,
        }

    async def answer(self, incoming: Incoming) -> bytes:
        """Answer one request.

        Raises:
            AwsError: the request is not allowed, or the operation is not modelled.
        """
        query = dict(parse_qsl(incoming.body.decode()))
        name = query.get("Action", "")
        operation = self._operations.get(name)
        if operation is None:
            raise AwsError("InvalidAction", f"The local cluster does not have {name}.", 501)
        resource, tags = self._resource(query) if name.startswith("Terminate") else ("*", {})
        caller = await self._auth.check(incoming, f"autoscaling:{name}", resource, tags)
        call = ApiCall("autoscaling", name, query.get("InstanceId", ""), caller)
        await self._faults.before(call)
        result = operation(query)
        self._faults.after(call)
        return _to_xml(name, result)

    def _resource(self, query: Query) -> tuple[str, dict[str, str]]:
        member = self._groups.find(query.get("InstanceId", ""))
        if member is None:
            return self._arn("*"), {}
        return self._arn(member.group), self._groups.tags_of(member.group)

    def _arn(self, group: str) -> str:
        return self._config.arn(f"autoScalingGroup:{group}:autoScalingGroupName/{group}", "autoscaling")

    def _describe_instances(self, query: Query) -> dict[str, Any]:
        members = _list_parameter(query, "InstanceIds")
        instances = [item for item in self._groups.members if not members or item.instance_id in members]
        return {
            "AutoScalingInstances": [{**_instance_json(item), "AutoScalingGroupName": item.group} for item in instances]
        }

    def _describe_groups(self, query: Query) -> dict[str, Any]:
        members = _list_parameter(query, "AutoScalingGroupNames")
        names = [name for name in self._groups.groups if not members or name in members]
        return {"AutoScalingGroups": [self._group(name) for name in names]}

    def _group(self, name: str) -> dict[str, Any]:
        group = self._groups.groups[name]
        tags = [
            {
                "ResourceId": name,
                "ResourceType": "auto-scaling-group",
                "Key": key,
                "Value": value,
                "PropagateAtLaunch": "true",
            }
            for key, value in self._groups.tags_of(name).items()
        ]
        return {
            "AutoScalingGroupName": name,
            "AutoScalingGroupARN": self._arn(name),
            "MinSize": "0",
            "MaxSize": str(group.count),
            "DesiredCapacity": str(group.count),
            "DefaultCooldown": "300",
            "AvailabilityZones": [group.availability_zone],
            "HealthCheckType": "EC2",
            "CreatedTime": "2025-01-01T00:00:00Z",
            "Instances": [_instance_json(item) for item in self._groups.members_of(name)],
            "SuspendedProcesses": [
                {"ProcessName": process, "SuspensionReason": "User suspended"}
                for process in self._groups.suspended[name]
            ],
            "Tags": tags,
        }

    def _terminate(self, query: Query) -> dict[str, Any]:
        instance_id = query.get("InstanceId", "")
        member = self._groups.find(instance_id)
        if member is None:
            message = f"Instance Id not found - No managed instance found for instance ID: {instance_id}"
            raise AwsError("ValidationError", message)
        if query.get("ShouldDecrementDesiredCapacity") != "false":
            raise AwsError("ValidationError", "The local cluster does not change the desired capacity.")
        if member.lifecycle in _UNCHANGEABLE:
            raise AwsError("ValidationError", f"The instance {instance_id} is not in a state that can be terminated.")
        self._groups.terminate(member)
        return {
            "Activity": {
                "ActivityId": "5f1f6c3e-2b7e-4d3e-8b1e-2f6f3c1a9d10",
                "AutoScalingGroupName": member.group,
                "Cause": "instance was taken out of service in response to a user request",
                "StartTime": "2025-01-01T00:00:00Z",
                "StatusCode": "InProgress",
            }
        }


def _instance_json(item: GroupInstance) -> dict[str, str]:
    return {
        "InstanceId": item.instance_id,
        "InstanceType": item.offering.instance_type,
        "AvailabilityZone": item.offering.zone,
        "LifecycleState": item.lifecycle,
        "HealthStatus": "Healthy" if item.lifecycle == IN_SERVICE else "HEALTHY",
        "ProtectedFromScaleIn": str(item.is_protected).lower(),
    }


def _list_parameter(query: Query, name: str) -> list[str]:
    return [value for key, value in query.items() if key.startswith(f"{name}.member.")]


def _to_xml(operation: str, result: dict[str, Any]) -> bytes:
    root = ET.Element(f"{operation}Response", xmlns=_XML_NAMESPACE)
    _append_xml(ET.SubElement(root, f"{operation}Result"), result)
    return ET.tostring(root)


def _append_xml(parent: ET.Element, value: dict[str, Any]) -> None:
    for key, item in value.items():
        element = ET.SubElement(parent, key)
        if isinstance(item, dict):
            _append_xml(element, item)
        elif isinstance(item, list):
            _append_xml_list(element, item)
        else:
            element.text = item


def _append_xml_list(parent: ET.Element, items: Iterable[Any]) -> None:
    for item in items:
        element = ET.SubElement(parent, "member")
        if isinstance(item, dict):
            _append_xml(element, item)
        else:
            element.text = item


def error_xml(error: AwsError, request_id: str) -> bytes:
    """Return a refusal as the query protocol spells it."""
    root = ET.Element("ErrorResponse", xmlns=_XML_NAMESPACE)
    _append_xml(
        root, {"Error": {"Type": "Sender", "Code": error.code, "Message": error.message}, "RequestId": request_id}
    )
    return ET.tostring(root)
