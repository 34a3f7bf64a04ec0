"""The HyperPod operations of SageMaker that this cluster has."""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections.abc import Callable

from evenkeel_local.gpu_cluster.aws_model import AwsError, Json, items_between, paged_answer
from evenkeel_local.gpu_cluster.cluster_events import ClusterEvents
from evenkeel_local.gpu_cluster.config import SECURITY_GROUPS, SUBNETS, InstanceGroupConfig
from evenkeel_local.gpu_cluster.hyperpod_capacity import Capacity
from evenkeel_local.gpu_cluster.hyperpod_governance import Governance
from evenkeel_local.gpu_cluster.hyperpod_operations import POLL_SECONDS, Operations
from evenkeel_local.gpu_cluster.machines import Machine, MachineFleet, ProviderCall
from evenkeel_local.gpu_cluster.registry import Registry

CLIENT_TOKEN_LIFE_SECONDS = 8 * 3600
UPKEEP = ("DeepHealthCheck", "SoftwareUpdate")
"""Operations of HyperPod itself. During these, callers get a wrong-status error, not an in-use error (assumed)."""
CHANGEABLE = {"ClusterName", "InstanceGroups", "InstanceGroupsToDelete", "NodeRecovery", "AutoScaling"}
Operation = Callable[[Json, str], Json]
Refusal = tuple[str, str]
"""A code and a message."""


class HyperPod:
    """The operations of one HyperPod cluster. Requests are checked before, and answers follow the model."""

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
        self.quotas = Governance(self._config, "ComputeQuota", "compute-quota", quota, fleet.call_later)
        self.schedulers = Governance(
            self._config, "ClusterSchedulerConfig", "cluster-scheduler-config", ("SchedulerConfig",), fleet.call_later
        )
        self.capacity = Capacity(fleet)
        self._rolling_back = 0
        self._added: dict[str, tuple[float, Json, list[str]]] = {}
        self.failing_nodes: dict[str, str] = {}
        """Instance ids for which the next repair call answers InternalServerError, with its message."""
        self.operations: dict[str, Operation] = {
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
            "ListClusterOperations": self._with_cluster_check(self.running.list_operations),
            "DescribeClusterOperation": self._with_cluster_check(self.running.describe_operation),
            "StartClusterHealthCheck": self._with_cluster_check(self.running.start_health_check),
            "UpdateClusterSoftware": self._with_cluster_check(self.running.update_software),
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

    def _with_cluster_check(self, operation: Callable[[Json], Json]) -> Operation:
        def call(body: Json, caller: str) -> Json:
            self._check_name(body["ClusterName"])
            return operation(body)

        return call

    # Clusters

    def _check_name(self, name: str) -> None:
        if name not in (self._config.cluster_name, self._config.cluster_arn):
            raise AwsError("ResourceNotFound", f"Could not find cluster with name or ARN {name}.")

    def _require_continuous(self, feature: str) -> None:
        if self._config.node_provisioning_mode != "Continuous":
            message = f"{feature} is supported only for clusters with NodeProvisioningMode set to Continuous."
            raise AwsError("ValidationException", message)

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
            "VpcConfig": {"SecurityGroupIds": SECURITY_GROUPS, "Subnets": SUBNETS},
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
        is_changing = any(machine.operation == "Delete" for machine in self._fleet.machines)
        return "Updating" if is_changing and self._config.node_provisioning_mode is None else "InService"

    def announce_status(self) -> None:
        """Send the cluster state change event for the current status."""
        description = self._describe_cluster({"ClusterName": self._config.cluster_name}, "")
        left_out = ("NodeProvisioningMode", "AutoScaling")
        detail = {key: value for key, value in description.items() if key not in left_out}
        # The bus carries milliseconds where the API gives seconds.
        detail["CreationTime"] = int(self._fleet.created_at * 1000)
        self._events.announce("SageMaker HyperPod Cluster State Change", detail)

    def _describe_group(self, group: InstanceGroupConfig) -> Json:
        machines = self._fleet.of_group(group.name)
        running_machines = [
            machine for machine in machines if machine.status in ("Running", "DeepHealthCheckInProgress")
        ]
        target = self._fleet.targets[group.name]
        answer: Json = {
            "InstanceGroupName": group.name,
            "InstanceType": group.instance_type,
            "CurrentCount": len(running_machines),
            "TargetCount": target,
            "Status": self._group_status(group.name),
            "ExecutionRole": f"arn:aws:iam::{self._config.account}:role/{self._config.cluster_name}-exec",
            "LifeCycleConfig": self._life_cycle,
            "ThreadsPerCore": 1,
        }
        if group.name in self.running.software_status:
            answer["SoftwareUpdateStatus"] = self.running.software_status[group.name]
        if group.training_plan:
            answer["TrainingPlanArn"] = self._config.arn(f"training-plan/{group.training_plan}")
            plans = {plan.name: plan.status for plan in self._config.training_plans}
            if group.training_plan in plans:
                answer["TrainingPlanStatus"] = plans[group.training_plan]
        if description := self._kubernetes_config(group):
            answer["KubernetesConfig"] = description
        return answer

    @property
    def _life_cycle(self) -> Json:
        return {"SourceS3Uri": f"s3://sagemaker-{self._config.cluster_name}/", "OnCreate": "on_create.sh"}

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
        running_machines = [
            machine for machine in machines if machine.status in ("Running", "DeepHealthCheckInProgress")
        ]
        return "InService" if len(running_machines) == target else "Updating" if len(machines) != target else "Degraded"

    def _list_clusters(self, body: Json, caller: str) -> Json:
        name_part = body.get("NameContains") or ""
        summary = {
            "ClusterArn": self._config.cluster_arn,
            "ClusterName": self._config.cluster_name,
            "CreationTime": self._fleet.created_at,
            "ClusterStatus": self._cluster_status(),
        }
        return {"ClusterSummaries": [summary] if name_part in self._config.cluster_name else []}

    # Nodes

    def _list_nodes(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        with_slots = bool(body.get("IncludeNodeLogicalIds"))
        if with_slots:
            self._require_continuous("IncludeNodeLogicalIds")
        machines = [machine for machine in self._fleet.machines if machine.is_visible]
        if not with_slots:
            machines = [machine for machine in machines if machine.status != "Pending" or machine.operation == "Reboot"]
        if group_part := body.get("InstanceGroupNameContains"):
            machines = [machine for machine in machines if group_part in machine.group]
        machines = items_between(machines, body, "CreationTime", lambda machine: machine.launch_time)
        by_name = body.get("SortBy") == "NAME"
        machines.sort(
            key=lambda machine: (machine.instance_id if by_name else machine.launch_time, machine.instance_id),
            reverse=body.get("SortOrder") == "Descending",
        )
        summary = functools.partial(self._summary, with_slot=with_slots)
        return paged_answer("ClusterNodeSummaries", machines, body, "ListClusterNodes", summary)

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
        instance_id, slot_id = body.get("NodeId"), body.get("NodeLogicalId")
        if not instance_id and not slot_id:
            raise AwsError("ValidationException", "Either NodeId or NodeLogicalId must be provided.")
        if instance_id and slot_id:
            raise AwsError("ValidationException", "Only one of NodeId and NodeLogicalId can be provided.")
        if slot_id:
            self._require_continuous("NodeLogicalId")
        machine = self._fleet.by_instance(instance_id) if instance_id else self._fleet.by_slot(str(slot_id))
        if machine is None or not machine.is_visible:
            message = f"Could not find node {instance_id or slot_id} in cluster {body['ClusterName']}."
            raise AwsError("ResourceNotFound", message)
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
            "LifeCycleConfig": self._life_cycle,
        }
        if description := self._kubernetes_config(group):
            details["KubernetesConfig"] = description
        return {"NodeDetails": details}

    # Repairs

    def _batch(
        self, action: str, body: Json, caller: str, code_field: str, refusal: Callable[[Machine | None], Refusal | None]
    ) -> Json:
        """Reboot, replace or delete nodes, each named by its instance id or by its slot."""
        self._check_name(body["ClusterName"])
        ids, slots = body.get("NodeIds") or [], body.get("NodeLogicalIds") or []
        if not ids and not slots:
            raise AwsError("ValidationException", "At least one of NodeIds and NodeLogicalIds must be provided.")
        if slots:
            self._require_continuous("NodeLogicalIds")
        act = {"Reboot": self._fleet.reboot, "Replace": self._fleet.replace, "Delete": self._fleet.remove}[action]
        answer: Json = {}
        for names, find, field, suffix in (
            (ids, self._fleet.by_instance, "NodeId", ""),
            (slots, self._fleet.by_slot, "NodeLogicalId", "NodeLogicalIds"),
        ):
            for name in dict.fromkeys(names):
                machine = find(name)
                refusal_code_and_text = refusal(machine)
                instance_id, slot_id = (name, "") if field == "NodeId" else ("", name)
                if machine is not None:
                    instance_id, slot_id = machine.instance_id, machine.logical_id
                code = refusal_code_and_text[0] if refusal_code_and_text is not None else ""
                call = ProviderCall(
                    action, instance_id, slot_id, refusal_code_and_text is None, code, time.time(), caller
                )
                self._fleet.calls.append(call)
                if refusal_code_and_text is None and machine is not None:
                    act(machine)
                    answer.setdefault(f"Successful{suffix}", []).append(name)
                elif refusal_code_and_text is not None:
                    failure = {field: name, code_field: code, "Message": refusal_code_and_text[1]}
                    answer.setdefault(f"Failed{suffix}", []).append(failure)
                if action == "Reboot" and code == "InternalServerError" and machine is not None:
                    message = f"Failed to submit reboot request for EC2 Instance {machine.instance_id}"
                    self._events.instance_event(machine, message, "Error")
        return answer

    def _repair_refusal(self, machine: Machine | None) -> Refusal | None:
        if machine is None:
            return "InstanceIdNotFound", "The instance was not found in the cluster."
        if self.failing_nodes.pop(machine.instance_id, None) is not None:
            return "InternalServerError", "An internal error occurred. Try again later."
        if machine.operation is None and machine.status in ("Running", "Failure"):
            return None
        if machine.operation in (None, *UPKEEP):
            message = f"The instance is in status {machine.status}; the operation needs it to be Running."
            return "InvalidInstanceStatus", message
        return "InstanceIdInUse", "Another operation is already in progress for this instance."

    def _delete_refusal(self, machine: Machine | None) -> Refusal | None:
        if machine is None:
            return "NodeIdNotFound", "The node was not found in the cluster."
        if machine.operation in UPKEEP:
            return "InvalidNodeStatus", f"The node is in status {machine.status}."
        if machine.operation is not None:
            return "NodeIdInUse", "Another operation is already in progress for this node."
        return None

    def _repair(self, action: str, body: Json, caller: str) -> Json:
        return self._batch(action, body, caller, "ErrorCode", self._repair_refusal)

    def _delete_nodes(self, body: Json, caller: str) -> Json:
        return self._batch("Delete", body, caller, "Code", self._delete_refusal)

    # Capacity

    def _add_nodes(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        self._require_continuous("BatchAddClusterNodes")
        token, now = str(body.get("ClientToken") or uuid.uuid4()), time.time()
        self._added = {key: added for key, added in self._added.items() if now - added[0] < CLIENT_TOKEN_LIFE_SECONDS}
        parameters = {key: value for key, value in body.items() if key != "ClientToken"}
        if token in self._added:
            _, earlier, slots = self._added[token]
            if earlier != parameters:
                raise AwsError("ValidationException", "The client token was used before with other parameters.")
            return {"Successful": [self._added_status(slot_id) for slot_id in slots], "Failed": []}
        total = sum(int(request["IncrementTargetCountBy"]) for request in body["NodesToAdd"])
        if total > 50:
            raise AwsError("ValidationException", "At most 50 nodes can be added in one call.")
        self._check_limit(total)
        answer: Json = {"Successful": [], "Failed": []}
        slots = []
        for request in body["NodesToAdd"]:
            refusal = self._add_refusal(request)
            if refusal is not None:
                answer["Failed"].append(refusal)
                continue
            for machine in self._fleet.add(request["InstanceGroupName"], int(request["IncrementTargetCountBy"])):
                slots.append(machine.logical_id)
                answer["Successful"].append(self._added_status(machine.logical_id))
        self._added[token] = (now, parameters, slots)
        return answer

    def _add_refusal(self, request: Json) -> Json | None:
        name = request["InstanceGroupName"]
        group = self._fleet.groups.get(name)
        if group is None:
            code, text = "InstanceGroupNotFound", f"Instance group {name} was not found."
        elif (status := self._group_status(name)) not in ("InService", "Updating", "Degraded"):
            code, text = "InvalidInstanceGroupStatus", f"Instance group {name} is in status {status}."
        elif (zones := request.get("AvailabilityZones")) and group.availability_zone not in zones:
            code, text = (
                "IncompatibleAvailabilityZones",
                f"Instance group {name} has no subnet in {', '.join(zones)}.",
            )
        elif (types := request.get("InstanceTypes")) and group.instance_type not in types:
            code, text = "IncompatibleInstanceTypes", f"Instance group {name} does not use {', '.join(types)}."
        else:
            return None
        count = int(request["IncrementTargetCountBy"])
        return {"InstanceGroupName": name, "ErrorCode": code, "FailedCount": count, "Message": text}

    def _added_status(self, slot_id: str) -> Json:
        machine = self._fleet.by_slot(slot_id)
        if machine is None:
            retired_machine = next((m for m in reversed(self._fleet.retired) if m.logical_id == slot_id), None)
            group = retired_machine.group if retired_machine is not None else next(iter(self._fleet.groups))
            return {"NodeLogicalId": slot_id, "InstanceGroupName": group, "Status": "NotFound"}
        return {"NodeLogicalId": slot_id, "InstanceGroupName": machine.group, "Status": machine.status}

    # Settings

    def _check_limit(self, added_count: int) -> None:
        limit = self._config.instance_limit
        if limit is not None and sum(self._fleet.targets.values()) + added_count > limit:
            message = (
                f"The account-level service limit for cluster instances is {limit}; {added_count} more would exceed it."
            )
            raise AwsError("ResourceLimitExceeded", message)

    def _update_cluster(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        if unknown_fields := sorted(set(body) - CHANGEABLE):
            raise AwsError(
                "UnknownOperationException", f"The local cluster does not change {', '.join(unknown_fields)}.", 501
            )
        if (status := self._cluster_status()) != "InService":
            raise AwsError("ConflictException", f"The cluster is in status {status}.")
        wishes = {requested["InstanceGroupName"]: requested for requested in body.get("InstanceGroups") or ()}
        groups_to_delete = body.get("InstanceGroupsToDelete") or []
        for name in (*wishes, *groups_to_delete):
            if name not in self._fleet.groups:
                raise AwsError("ValidationException", f"Instance group {name} was not found in the cluster.")
        growth = {
            name: int(requested["InstanceCount"]) - self._fleet.targets[name] for name, requested in wishes.items()
        }
        self._check_limit(sum(growth.values()))
        for name, difference in growth.items():
            if difference > 0:
                self._fleet.add(name, difference)
                self._fleet.run_in_background(self._await_minimum(name, int(wishes[name].get("MinInstanceCount") or 0)))
            elif difference < 0:
                idle_machines = [machine for machine in self._fleet.of_group(name) if machine.operation is None]
                for machine in idle_machines[difference:]:
                    self._fleet.remove(machine)
        for name in groups_to_delete:
            self.group_status_override[name] = "Deleting"
            self._fleet.run_in_background(self._delete_group(name))
        self._fleet.node_recovery = body.get("NodeRecovery") or self._fleet.node_recovery
        if scaler := body.get("AutoScaling"):
            is_enabled = scaler["Mode"] == "Enable"
            self._fleet.auto_scaling = scaler.get("AutoScalerType") or "Karpenter" if is_enabled else None
        return {"ClusterArn": self._config.cluster_arn}

    async def _await_minimum(self, name: str, minimum: int) -> None:
        """Roll back growth that did not reach the requested minimum in time."""
        await asyncio.sleep(self._config.delays.scaling_rollback)
        machines = self._fleet.of_group(name)
        if sum(machine.status == "Running" for machine in machines) < minimum:
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
        for by_group in (self._fleet.groups, self._fleet.targets, self.group_status_override):
            by_group.pop(name, None)

    # Events

    def _list_events(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        self._require_continuous("ListClusterEvents")
        return self._events.list(body)

    def _describe_event(self, body: Json, caller: str) -> Json:
        self._check_name(body["ClusterName"])
        self._require_continuous("DescribeClusterEvent")
        return self._events.describe(body)


def _without_caller(operation: Callable[[Json], Json]) -> Operation:
    return lambda body, caller: operation(body)
