"""HyperPod operations that take time: scaling, deep health checks, software updates."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.aws_model import AwsError, Json, items_between, paged_answer
from evenkeel_local.gpu_cluster.cluster_events import ClusterEvents
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.health_agent import PENDING_REBOOT, PENDING_REPLACEMENT, STATUS_LABEL
from evenkeel_local.gpu_cluster.machines import PREFIX, Machine, MachineFleet
from evenkeel_local.gpu_cluster.objects import put
from evenkeel_local.gpu_cluster.registry import Registry
from evenkeel_local.gpu_cluster.store import name_of, namespace_of

POLL_SECONDS = 0.1
DONE, IN_PROGRESS, SUPERSEDED = "Done", "InProgress", "Superseded"


@dataclass
class ClusterOperation:
    """One entry of ListClusterOperations."""

    kind: str
    details: list[Json]
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    created_at: float = field(default_factory=time.time)
    status: str = IN_PROGRESS


class Operations:
    """Records operations on the cluster, and runs the checks and updates."""

    def __init__(self, fleet: MachineFleet, registry: Registry, events: ClusterEvents) -> None:
        self._fleet = fleet
        self._registry = registry
        self._events = events
        self.recorded: list[ClusterOperation] = []
        self.failing_checks: dict[str, str] = {}
        """Instances that the next deep health check finds faulty, with the repair that follows: reboot or replace."""
        self.software_updating: set[str] = set()
        self.software_status: dict[str, str] = {}
        """State of the last software update of each group."""

    # Records

    def scaling(self, group: str, original: int, desired: int) -> None:
        """Record that a group will grow or shrink; this supersedes a running operation of the same group."""
        for operation in self.recorded:
            names = {detail["InstanceGroupName"] for detail in operation.details}
            if operation.kind == "Scaling" and operation.status == IN_PROGRESS and group in names:
                operation.status = SUPERSEDED
        current = len(self._fleet.of_group(group))
        detail: Json = {
            "InstanceGroupName": group,
            "Original": {"CurrentCount": current, "TargetCount": original, "MinCount": 0},
            "Desired": {"CurrentCount": desired, "TargetCount": desired, "MinCount": 0},
        }
        operation = ClusterOperation("Scaling", [detail])
        self.recorded.append(operation)
        metadata = {"InstanceGroupScaling": {"InstanceCount": current, "TargetCount": desired, "MinCount": 0}}
        message = f"Scaling of IG {group} from {original} to {desired} instances has started"
        self._events.record("InstanceGroup", message, "Info", metadata, group, operation_id=operation.id)
        self._fleet.run_in_background(self._await_scaling(operation, group, desired))

    async def _await_scaling(self, operation: ClusterOperation, group: str, desired: int) -> None:
        while operation.status == IN_PROGRESS:
            running_machines = [m for m in self._fleet.of_group(group) if m.status == "Running" and m.operation is None]
            if len(running_machines) == desired == len(self._fleet.of_group(group)):
                operation.status = DONE
            await asyncio.sleep(POLL_SECONDS)

    def list_operations(self, body: Json) -> Json:
        """Answer ListClusterOperations."""
        operations = list(self.recorded)
        if kind := body.get("Type"):
            operations = [operation for operation in operations if operation.kind == kind]
        if status := body.get("Status"):
            operations = [operation for operation in operations if operation.status == status]
        operations = items_between(operations, body, "CreationTime", lambda operation: operation.created_at)
        operations.sort(key=lambda operation: operation.created_at, reverse=body.get("SortOrder") != "Ascending")
        return paged_answer("ClusterOperationSummaries", operations, body, "ListClusterOperations", self._summary)

    def describe_operation(self, body: Json) -> Json:
        """Answer DescribeClusterOperation."""
        for operation in self.recorded:
            if operation.id == body["OperationId"]:
                key = "ScalingDetails" if operation.kind == "Scaling" else "DeepHealthCheckDetails"
                details = operation.details
                if operation.kind == "Scaling":
                    details = [{**detail, "Status": operation.status} for detail in details]
                return {**self._summary(operation), key: details}
        raise AwsError("ResourceNotFound", f"Could not find operation {body['OperationId']}.")

    def _summary(self, operation: ClusterOperation) -> Json:
        return {
            "OperationId": operation.id,
            "ClusterArn": self._fleet.config.cluster_arn,
            "Type": operation.kind,
            "Status": operation.status,
            "CreationTime": operation.created_at,
        }

    # Deep health checks

    def start_health_check(self, body: Json) -> Json:
        """Answer StartClusterHealthCheck; as on AWS, the answer has no id."""
        chosen_machines: list[Machine] = []
        details: list[Json] = []
        for check in body["DeepHealthCheckConfigurations"]:
            group = check["InstanceGroupName"]
            if group not in self._fleet.groups:
                raise AwsError("ValidationException", f"Instance group {group} was not found in the cluster.")
            instance_ids = check.get("InstanceIds") or [machine.instance_id for machine in self._fleet.of_group(group)]
            for instance_id in instance_ids:
                machine = self._fleet.by_instance(instance_id)
                if machine is None or machine.group != group:
                    raise AwsError("ValidationException", f"Instance {instance_id} is not in instance group {group}.")
                if machine.operation is not None or machine.status != "Running":
                    raise AwsError("ValidationException", f"Instance {instance_id} is not in status Running.")
                chosen_machines.append(machine)
            details.append({**check, "InstanceIds": list(instance_ids)})
        operation = ClusterOperation("DeepHealthCheck", details)
        self.recorded.append(operation)
        for machine in chosen_machines:
            machine.operation, machine.status = "DeepHealthCheck", "DeepHealthCheckInProgress"
            self._label(machine, "InProgress", "Unschedulable")
        self._fleet.run_in_background(self._check(operation, chosen_machines))
        return {"ClusterArn": self._fleet.config.cluster_arn}

    async def _check(self, operation: ClusterOperation, machines: list[Machine]) -> None:
        await asyncio.sleep(self._fleet.config.delays.deep_health_check)
        for machine in machines:
            if machine not in self._fleet.machines:
                continue
            machine.operation = None
            machine.status = "Running"
            repair = self.failing_checks.pop(machine.instance_id, None)
            if repair == "reboot":
                self._label(machine, "Failed", PENDING_REBOOT)
                self._fleet.reboot(machine)
            elif repair is not None:
                self._label(machine, "Failed", PENDING_REPLACEMENT)
                self._fleet.replace(machine)
            else:
                self._label(machine, "Passed", "Schedulable")
        operation.status = DONE

    def _label(self, machine: Machine, check: str, health: str) -> None:
        def write(node: Obj) -> None:
            node["metadata"].setdefault("labels", {}).update(
                {f"{PREFIX}deep-health-check-status": check, STATUS_LABEL: health}
            )
            taints = [taint for taint in node["spec"].get("taints") or () if taint["key"] != STATUS_LABEL]
            if health != "Schedulable":
                taints.append({"key": STATUS_LABEL, "value": "Unschedulable", "effect": "NoSchedule"})
            put(node["spec"], "taints", taints)

        self._registry.mutate(catalogue.NODES, "", machine.node_name, write)

    # Software updates

    def update_software(self, body: Json) -> Json:
        """Answer UpdateClusterSoftware: nodes are patched one after another."""
        if self.software_updating:
            raise AwsError("ConflictException", "A software update is already in progress.")
        groups = [instance_group["InstanceGroupName"] for instance_group in body.get("InstanceGroups") or ()] or list(
            self._fleet.groups
        )
        for group in groups:
            if group not in self._fleet.groups:
                raise AwsError("ValidationException", f"Instance group {group} was not found in the cluster.")
        self.software_updating = set(groups)
        self.software_status.update(dict.fromkeys(groups, "Pending"))
        self._fleet.run_in_background(self._update_machines(groups))
        return {"ClusterArn": self._fleet.config.cluster_arn}

    async def _update_machines(self, groups: list[str]) -> None:
        for group in groups:
            self.software_status[group] = "InProgress"
            for machine in self._fleet.of_group(group):
                if machine.operation is not None or machine.status != "Running":
                    continue
                if self._is_blocked_by_disruption_budget(machine):
                    self._record_progress(machine, "skipped due to PodDisruptionBudget constraint.")
                    continue
                machine.operation, machine.status = "SoftwareUpdate", "SystemUpdating"
                self._record_progress(machine, "cordoned and pods evicted.")
                await self._fleet.restart(machine)
                self._record_progress(machine, "restored to schedulable state.")
            self.software_updating.discard(group)
            self.software_status[group] = "Succeeded"

    def _is_blocked_by_disruption_budget(self, machine: Machine) -> bool:
        """Whether a disruption budget blocks the eviction of a pod on a machine."""
        for pod in self._registry.store.pods_on(machine.node_name):
            try:
                self._registry.evict(namespace_of(pod), name_of(pod), {}, dry_run=True)
            except ApiError:
                return True
        return False

    def _record_progress(self, machine: Machine, stage: str) -> None:
        self._events.instance_event(machine, f"Instance {machine.instance_id} in IG {machine.group} {stage}")
