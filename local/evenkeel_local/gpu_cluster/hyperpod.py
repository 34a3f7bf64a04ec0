"""The HyperPod operations of SageMaker, as far as this cluster has them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable

from evenkeel_local.gpu_cluster.aws_model import AwsError, Json, paged
from evenkeel_local.gpu_cluster.cluster_events import ClusterEvents
from evenkeel_local.gpu_cluster.config import InstanceGroupConfig
from evenkeel_local.gpu_cluster.hyperpod_capacity import Capacity
from evenkeel_local.gpu_cluster.hyperpod_governance import Governance
from evenkeel_local.gpu_cluster.hyperpod_operations import POLL_SECONDS, Operations
from evenkeel_local.gpu_cluster.machines import Machine, MachineFleet, ProviderCall
from evenkeel_local.gpu_cluster.registry import Registry

CLIENT_TOKEN_LIFE_SECONDS = 8 * 3600
UPKEEP = ("DeepHealthCheck", "SoftwareUpdate")
"""What HyperPod itself does to a node: to callers the node has the wrong status then, it is not in use (assumed)."""
CHANGEABLE = {"ClusterName", "InstanceGroups", "InstanceGroupsToDelete", "NodeRecovery", "AutoScaling"}
REPAIR_TEXTS = {
    "InstanceIdNotFound": "The instance was not found in the cluster.",
    "InvalidInstanceStatus": "The instance is in status {status}; the operation needs it to be Running.",
    "InstanceIdInUse": "Another operation is already in progress for this instance.",
    "InternalServerError": "An internal error occurred. Try again later.",
}


class HyperPod:
    """One HyperPod cluster's operations; each takes a checked request and returns an answer of the model's shape."""

    def __init__(self, fleet: MachineFleet, registry: Registry, events: ClusterEvents) -> None:
        self._fleet = fleet
        self._events = events
        self._config = fleet.config
        self.running = Operations(fleet, registry, events)
        fleet.on_scaling = self.running.scaling
        self.status_override: str | None = None
        """A cluster status that the control address set."""
        self.group_status_override: dict[str, str] = {}
        quota = ("ComputeQuotaConfig", "ComputeQuotaTarget", "ActivationState")
        self.quotas = Governance(self._config, "ComputeQuota", "compute-quota", quota, fleet.later)
        self.schedulers = Governance(
            self._config, "ClusterSchedulerConfig", "cluster-scheduler-config", ("SchedulerConfig",), fleet.later
        )
        self.capacity = Capacity(fleet)
        self._rolling_back = 0
        self._added: dict[str, tuple[float, Json, list[str]]] = {}
        self.failing_nodes: dict[str, str] = {}
        """Instance ids for which the next repair call answers InternalServerError, with its message."""
        self.operations: dict[str, Callable[[Json, str], Json]] = {
            "DescribeCluster": self._describe_cluster,
            "ListClusters": self._list_clusters,
            "ListClusterNodes": self._list_nodes,
            "DescribeClusterNode": self._describe_node,
            "BatchRebootClusterNodes": lambda body, caller: self._repair("Reboot", body, caller),
            "BatchReplaceClusterNodes": lambda body, caller: self._repair("Replace", body, caller),
            "BatchAddClusterNodes": self._add_nodes,
            "BatchDeleteClusterNodes": self._delete_nodes,
            "UpdateCluster": self._update_cluster,
            "ListClusterEvents": self._list_events,
            "DescribeClusterEvent": self._describe_event,
            "ListClusterOperations": self._of_cluster(self.running.list_operations),
            "DescribeClusterOperation": self._of_cluster(self.running.describe_operation),
            "StartClusterHealthCheck": self._of_cluster(self.running.start_health_check),
            "UpdateClusterSoftware": self._of_cluster(self.running.update_software),
            "SearchTrainingPlanOfferings": lambda body, caller: self.capacity.search_offerings(body),
            "DescribeTrainingPlan": lambda body, caller: self.capacity.describe_plan(body),
            "ListUltraServersByReservedCapacity": lambda body, caller: self.capacity.list_ultra_servers(body),
        }
        for name, plural, kind in (
            ("ComputeQuota", "ComputeQuotas", self.quotas),
            ("ClusterSchedulerConfig", "ClusterSchedulerConfigs", self.schedulers),
        ):
            self.operations |= {
                f"Create{name}": _without_caller(kind.create),
                f"Describe{name}": _without_caller(kind.describe),
                f"List{plural}": _without_caller(kind.list),
                f"Update{name}": _without_caller(kind.update),
                f"Delete{name}": _without_caller(kind.delete),
            }

    def _of_cluster(self, operation: Callable[[Json], Json]) -> Callable[[Json, str], Json]:
        def call(body: Json, caller: str) -> Json:
            self._check_name(body["ClusterName"])
            return operation(body)

        return call

    # Clusters

    def _check_name(self, name: str) -> None:
        if name not in (self._config.cluster_name, self._config.cluster_arn):
            raise AwsError("ResourceNotFound", f"Could not find cluster with name or ARN {name}.")

    def _need_continuous(self, what: str) -> None:
        if self._config.node_provisioning_mode != "Continuous":
            raise AwsError(
                "ValidationException",
                f"{what} is supported only for clusters with NodeProvisioningMode set to Continuous.",
            )

    def _describe_cluster(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        answer: Json = {
            "ClusterArn": self._config.cluster_arn,
            "ClusterName": self._config.cluster_name,
            "ClusterStatus": self._cluster_status(),
            "CreationTime": self._fleet.created_at,
            "FailureMessage": "",
            "InstanceGroups": [self._describe_group(group) for group in self._fleet.groups.values()],
            "NodeRecovery": self._fleet.node_recovery,
            "Orchestrator": {"Eks": {"ClusterArn": self._config.eks_arn}},
            "VpcConfig": {"SecurityGroupIds": ["sg-0b4e7c19d5a2f8036"], "Subnets": ["subnet-0c7f1e93b6d8a2540"]},
        }
        if self._config.node_provisioning_mode:
            answer["NodeProvisioningMode"] = self._config.node_provisioning_mode
        if self._fleet.auto_scaling:
            scaler = {"Mode": "Enable", "AutoScalerType": self._fleet.auto_scaling, "Status": "InService"}
            answer["AutoScaling"] = scaler
        return answer

    def _cluster_status(self) -> str:
        if self.status_override is not None:
            return self.status_override
        if self.running.software_updating:
            return "SystemUpdating"
        if self._rolling_back:
            return "RollingBack"
        changing = any(machine.operation == "Delete" for machine in self._fleet.machines)
        return "Updating" if changing and self._config.node_provisioning_mode is None else "InService"

    def announce_status(self) -> None:
        """Send the cluster state change event for the status of the moment."""
        described = self._describe_cluster({"ClusterName": self._config.cluster_name}, "")
        left_out = ("NodeProvisioningMode", "AutoScaling")
        detail = {key: value for key, value in described.items() if key not in left_out}
        # The bus carries milliseconds where the API gives seconds.
        detail["CreationTime"] = int(self._fleet.created_at * 1000)
        self._events.announce("SageMaker HyperPod Cluster State Change", detail)

    def _describe_group(self, group: InstanceGroupConfig) -> Json:
        machines = self._fleet.of_group(group.name)
        running = [machine for machine in machines if machine.status in ("Running", "DeepHealthCheckInProgress")]
        target = self._fleet.targets[group.name]
        answer: Json = {
            "InstanceGroupName": group.name,
            "InstanceType": group.instance_type,
            "CurrentCount": len(running),
            "TargetCount": target,
            "Status": self._group_status(group.name),
            "ExecutionRole": f"arn:aws:iam::{self._config.account}:role/{self._config.cluster_name}-exec",
            "LifeCycleConfig": {
                "SourceS3Uri": f"s3://sagemaker-{self._config.cluster_name}/",
                "OnCreate": "on_create.sh",
            },
            "ThreadsPerCore": 1,
        }
        if group.name in self.running.software_status:
            answer["SoftwareUpdateStatus"] = self.running.software_status[group.name]
        if group.training_plan:
            prefix = f"arn:aws:sagemaker:{self._config.region}:{self._config.account}:training-plan"
            answer["TrainingPlanArn"] = f"{prefix}/{group.training_plan}"
            plans = {plan.name: plan.status for plan in self._config.training_plans}
            if group.training_plan in plans:
                answer["TrainingPlanStatus"] = plans[group.training_plan]
        if shown := self._kubernetes_config(group):
            answer["KubernetesConfig"] = shown
        return answer

    def _kubernetes_config(self, group: InstanceGroupConfig) -> Json:
        if not group.labels and not group.taints:
            return {}
        taints = [
            {"Key": taint.key, **({"Value": taint.value} if taint.value else {}), "Effect": taint.effect}
            for taint in group.taints
        ]
        labels = dict(group.labels)
        return {"CurrentLabels": labels, "DesiredLabels": labels, "CurrentTaints": taints, "DesiredTaints": taints}

    def _group_status(self, name: str) -> str:
        if name in self.group_status_override:
            return self.group_status_override[name]
        if name in self.running.software_updating:
            return "SystemUpdating"
        machines, target = self._fleet.of_group(name), self._fleet.targets[name]
        running = [machine for machine in machines if machine.status in ("Running", "DeepHealthCheckInProgress")]
        return "InService" if len(running) == target else "Updating" if len(machines) != target else "Degraded"

    def _list_clusters(self, body: Json, caller: str) -> Json:
        wanted = body.get("NameContains") or ""
        summary = {
            "ClusterArn": self._config.cluster_arn,
            "ClusterName": self._config.cluster_name,
            "CreationTime": self._fleet.created_at,
            "ClusterStatus": self._cluster_status(),
        }
        return {"ClusterSummaries": [summary] if wanted in self._config.cluster_name else []}

    # Nodes

    def _list_nodes(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        with_slots = bool(body.get("IncludeNodeLogicalIds"))
        if with_slots:
            self._need_continuous("IncludeNodeLogicalIds")
        machines = [machine for machine in self._fleet.machines if machine.is_visible]
        if not with_slots:
            machines = [machine for machine in machines if machine.status != "Pending" or machine.operation == "Reboot"]
        if part := body.get("InstanceGroupNameContains"):
            machines = [machine for machine in machines if part in machine.group]
        if (after := body.get("CreationTimeAfter")) is not None:
            machines = [machine for machine in machines if machine.launch_time > after]
        if (before := body.get("CreationTimeBefore")) is not None:
            machines = [machine for machine in machines if machine.launch_time < before]
        by_name = body.get("SortBy") == "NAME"
        machines.sort(
            key=lambda machine: (machine.instance_id if by_name else machine.launch_time, machine.instance_id),
            reverse=body.get("SortOrder") == "Descending",
        )
        page, token = paged(machines, body, "ListClusterNodes")
        answer: Json = {"ClusterNodeSummaries": [self._summary(machine, with_slots) for machine in page]}
        return {**answer, "NextToken": token} if token else answer

    def _summary(self, machine: Machine, with_slot: bool) -> Json:
        group = self._fleet.groups[machine.group]
        answer: Json = {
            "InstanceGroupName": machine.group,
            "InstanceId": machine.instance_id,
            "InstanceType": group.instance_type,
            "LaunchTime": machine.launch_time,
            "InstanceStatus": self._status(machine),
            "PrivateDnsHostname": f"ip-{machine.ip.replace('.', '-')}.{self._config.region}.compute.internal",
        }
        if with_slot:
            answer["NodeLogicalId"] = machine.logical_id
        return answer

    def _status(self, machine: Machine) -> Json:
        status: Json = {"Status": machine.status}
        if machine.message:
            status["Message"] = machine.message
        return status

    def _describe_node(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        instance_id, slot = body.get("NodeId"), body.get("NodeLogicalId")
        if not instance_id and not slot:
            raise AwsError("ValidationException", "Either NodeId or NodeLogicalId must be provided.")
        if instance_id and slot:
            raise AwsError("ValidationException", "Only one of NodeId and NodeLogicalId can be provided.")
        if slot:
            self._need_continuous("NodeLogicalId")
        machine = self._fleet.by_instance(instance_id) if instance_id else self._fleet.by_slot(str(slot))
        if machine is None or not machine.is_visible:
            raise AwsError(
                "ResourceNotFound", f"Could not find node {instance_id or slot} in cluster {body['ClusterName']}."
            )
        group = self._fleet.groups[machine.group]
        details: Json = {
            **self._summary(machine, self._config.node_provisioning_mode == "Continuous"),
            "PrivatePrimaryIp": machine.ip,
            "ThreadsPerCore": 1,
            "Placement": {
                "AvailabilityZone": group.availability_zone,
                "AvailabilityZoneId": group.availability_zone_id,
            },
            "CapacityType": group.capacity_type,
            "LifeCycleConfig": {
                "SourceS3Uri": f"s3://sagemaker-{self._config.cluster_name}/",
                "OnCreate": "on_create.sh",
            },
        }
        if shown := self._kubernetes_config(group):
            details["KubernetesConfig"] = shown
        return {"NodeDetails": details}

    # Repairs

    def _repair(self, action: str, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        ids, slots = body.get("NodeIds") or [], body.get("NodeLogicalIds") or []
        if not ids and not slots:
            raise AwsError("ValidationException", "At least one of NodeIds and NodeLogicalIds must be provided.")
        if slots:
            self._need_continuous("NodeLogicalIds")
        answer: Json = {"Successful": [], "Failed": [], "FailedNodeLogicalIds": [], "SuccessfulNodeLogicalIds": []}
        for instance_id in dict.fromkeys(ids):
            code = self._repair_one(action, self._fleet.by_instance(instance_id), instance_id, "", caller)
            if code is None:
                answer["Successful"].append(instance_id)
            else:
                answer["Failed"].append({"NodeId": instance_id, "ErrorCode": code[0], "Message": code[1]})
        for slot in dict.fromkeys(slots):
            code = self._repair_one(action, self._fleet.by_slot(slot), "", slot, caller)
            if code is None:
                answer["SuccessfulNodeLogicalIds"].append(slot)
            else:
                answer["FailedNodeLogicalIds"].append({"NodeLogicalId": slot, "ErrorCode": code[0], "Message": code[1]})
        # AWS leaves lists out instead of sending them empty.
        return {name: value for name, value in answer.items() if value}

    def _repair_one(
        self, action: str, machine: Machine | None, instance_id: str, slot: str, caller: str
    ) -> tuple[str, str] | None:
        code = self._repair_refusal(machine)
        self._fleet.calls.append(
            ProviderCall(
                action=action,
                instance_id=machine.instance_id if machine is not None else instance_id,
                logical_id=machine.logical_id if machine is not None else slot,
                accepted=code is None,
                code=code or "",
                at=time.time(),
                caller=caller,
            )
        )
        if action == "Reboot" and code == "InternalServerError" and machine is not None:
            refused = f"Failed to submit reboot request for EC2 Instance {machine.instance_id}"
            self._events.instance_event(machine, refused, "Error")
        if code is not None or machine is None:
            told = REPAIR_TEXTS[code or "InstanceIdNotFound"]
            return code or "InstanceIdNotFound", told.format(status=machine.status if machine is not None else "")
        if action == "Reboot":
            self._fleet.reboot(machine)
        else:
            self._fleet.replace(machine)
        return None

    def _repair_refusal(self, machine: Machine | None) -> str | None:
        if machine is None:
            return "InstanceIdNotFound"
        if self.failing_nodes.pop(machine.instance_id, None) is not None:
            return "InternalServerError"
        if machine.operation is None and machine.status in ("Running", "Failure"):
            return None
        return "InvalidInstanceStatus" if machine.operation in (None, *UPKEEP) else "InstanceIdInUse"

    # Capacity

    def _add_nodes(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        self._need_continuous("BatchAddClusterNodes")
        token, now = str(body.get("ClientToken") or uuid.uuid4()), time.time()
        self._added = {key: kept for key, kept in self._added.items() if now - kept[0] < CLIENT_TOKEN_LIFE_SECONDS}
        parameters = {key: value for key, value in body.items() if key != "ClientToken"}
        if token in self._added:
            _, known, slots = self._added[token]
            if known != parameters:
                raise AwsError("ValidationException", "The client token was used before with other parameters.")
            return {"Successful": [self._added_status(slot) for slot in slots], "Failed": []}
        total = sum(int(requested["IncrementTargetCountBy"]) for requested in body["NodesToAdd"])
        if total > 50:
            raise AwsError("ValidationException", "At most 50 nodes can be added in one call.")
        self._check_limit(total)
        answer: Json = {"Successful": [], "Failed": []}
        slots = []
        for requested in body["NodesToAdd"]:
            refused = self._add_refusal(requested)
            if refused is not None:
                answer["Failed"].append(refused)
                continue
            for machine in self._fleet.add(requested["InstanceGroupName"], int(requested["IncrementTargetCountBy"])):
                slots.append(machine.logical_id)
                answer["Successful"].append(self._added_status(machine.logical_id))
        self._added[token] = (now, parameters, slots)
        return answer

    def _add_refusal(self, requested: Json) -> Json | None:
        name = requested["InstanceGroupName"]
        group = self._fleet.groups.get(name)
        code, told = "", ""
        if group is None:
            code, told = "InstanceGroupNotFound", f"Instance group {name} was not found."
        elif (status := self._group_status(name)) not in ("InService", "Updating", "Degraded"):
            code, told = "InvalidInstanceGroupStatus", f"Instance group {name} is in status {status}."
        elif (zones := requested.get("AvailabilityZones")) and group.availability_zone not in zones:
            code, told = "IncompatibleAvailabilityZones", f"Instance group {name} has no subnet in {', '.join(zones)}."
        elif (types := requested.get("InstanceTypes")) and group.instance_type not in types:
            code, told = "IncompatibleInstanceTypes", f"Instance group {name} does not use {', '.join(types)}."
        if not code:
            return None
        return {
            "InstanceGroupName": name,
            "ErrorCode": code,
            "FailedCount": int(requested["IncrementTargetCountBy"]),
            "Message": told,
        }

    def _added_status(self, slot: str) -> Json:
        machine = self._fleet.by_slot(slot)
        if machine is None:
            retired = next((m for m in reversed(self._fleet.retired) if m.logical_id == slot), None)
            group = retired.group if retired is not None else next(iter(self._fleet.groups))
            return {"NodeLogicalId": slot, "InstanceGroupName": group, "Status": "NotFound"}
        return {"NodeLogicalId": slot, "InstanceGroupName": machine.group, "Status": machine.status}

    def _delete_nodes(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        ids, slots = body.get("NodeIds") or [], body.get("NodeLogicalIds") or []
        if not ids and not slots:
            raise AwsError("ValidationException", "At least one of NodeIds and NodeLogicalIds must be provided.")
        if slots:
            self._need_continuous("NodeLogicalIds")
        answer: Json = {"Successful": [], "Failed": [], "FailedNodeLogicalIds": [], "SuccessfulNodeLogicalIds": []}
        for instance_id in dict.fromkeys(ids):
            code = self._delete_one(self._fleet.by_instance(instance_id), instance_id, "", caller)
            if code is None:
                answer["Successful"].append(instance_id)
            else:
                answer["Failed"].append({"NodeId": instance_id, "Code": code[0], "Message": code[1]})
        for slot in dict.fromkeys(slots):
            code = self._delete_one(self._fleet.by_slot(slot), "", slot, caller)
            if code is None:
                answer["SuccessfulNodeLogicalIds"].append(slot)
            else:
                answer["FailedNodeLogicalIds"].append({"NodeLogicalId": slot, "Code": code[0], "Message": code[1]})
        return {name: value for name, value in answer.items() if value}

    def _delete_one(self, machine: Machine | None, instance_id: str, slot: str, caller: str) -> tuple[str, str] | None:
        code: tuple[str, str] | None = None
        if machine is None:
            code = ("NodeIdNotFound", "The node was not found in the cluster.")
        elif machine.operation in UPKEEP:
            code = ("InvalidNodeStatus", f"The node is in status {machine.status}.")
        elif machine.operation is not None:
            code = ("NodeIdInUse", "Another operation is already in progress for this node.")
        self._fleet.calls.append(
            ProviderCall(
                action="Delete",
                instance_id=machine.instance_id if machine is not None else instance_id,
                logical_id=machine.logical_id if machine is not None else slot,
                accepted=code is None,
                code=code[0] if code is not None else "",
                at=time.time(),
                caller=caller,
            )
        )
        if code is None and machine is not None:
            self._fleet.remove(machine)
        return code

    # Settings

    def _check_limit(self, more: int) -> None:
        limit = self._config.instance_limit
        if limit is not None and sum(self._fleet.targets.values()) + more > limit:
            raise AwsError(
                "ResourceLimitExceeded",
                f"The account-level service limit for cluster instances is {limit}; {more} more would exceed it.",
            )

    def _update_cluster(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        if unknown := sorted(set(body) - CHANGEABLE):
            raise AwsError("UnknownOperationException", f"The local cluster does not change {', '.join(unknown)}.", 501)
        if (status := self._cluster_status()) != "InService":
            raise AwsError("ConflictException", f"The cluster is in status {status}.")
        wishes = {requested["InstanceGroupName"]: requested for requested in body.get("InstanceGroups") or ()}
        leaving = body.get("InstanceGroupsToDelete") or []
        for name in (*wishes, *leaving):
            if name not in self._fleet.groups:
                raise AwsError("ValidationException", f"Instance group {name} was not found in the cluster.")
        growth = {
            name: int(requested["InstanceCount"]) - self._fleet.targets[name] for name, requested in wishes.items()
        }
        self._check_limit(sum(growth.values()))
        for name, difference in growth.items():
            if difference > 0:
                self._fleet.add(name, difference)
                self._fleet.begin(self._await_minimum(name, int(wishes[name].get("MinInstanceCount") or 0)))
            elif difference < 0:
                idle = [machine for machine in self._fleet.of_group(name) if machine.operation is None]
                for machine in idle[difference:]:
                    self._fleet.remove(machine)
        for name in leaving:
            self.group_status_override[name] = "Deleting"
            self._fleet.begin(self._delete_group(name))
        self._fleet.node_recovery = body.get("NodeRecovery") or self._fleet.node_recovery
        if scaler := body.get("AutoScaling"):
            enabled = scaler["Mode"] == "Enable"
            self._fleet.auto_scaling = scaler.get("AutoScalerType") or "Karpenter" if enabled else None
        return {"ClusterArn": self._config.cluster_arn}

    async def _await_minimum(self, name: str, least: int) -> None:
        """Take back a growth that did not bring the least that was asked for in time."""
        await asyncio.sleep(self._config.delays.scaling_rollback)
        machines = self._fleet.of_group(name)
        if sum(machine.status == "Running" for machine in machines) < least:
            self._rolling_back += 1
            for machine in machines:
                if machine.operation is None and machine.status == "Pending":
                    self._fleet.remove(machine)
            await asyncio.sleep(self._config.delays.terminate)
            self._rolling_back -= 1

    async def _delete_group(self, name: str) -> None:
        while machines := self._fleet.of_group(name):
            for machine in machines:
                if machine.operation is None:
                    self._fleet.remove(machine)
            await asyncio.sleep(POLL_SECONDS)
        for kept in (self._fleet.groups, self._fleet.targets, self.group_status_override):
            kept.pop(name, None)

    # Events

    def _list_events(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        self._need_continuous("ListClusterEvents")
        return self._events.list(body)

    def _describe_event(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        self._need_continuous("DescribeClusterEvent")
        return self._events.describe(body)


def _without_caller(operation: Callable[[Json], Json]) -> Callable[[Json, str], Json]:
    return lambda body, caller: operation(body)
