"""HyperPod's health agent: what it writes on a sick node, and the health events that go out."""

from __future__ import annotations

import json

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.cluster_events import Bus
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.machines import PREFIX, Fleet, Machine
from evenkeel_local.gpu_cluster.registry import Registry, set_condition, timestamp

HEALTH_EVENT = "SageMaker HyperPod Cluster Node Health Event"
REBOOT_TYPES = ("NvidiaErrorReboot",)


class HealthAgent:
    """Marks nodes and sends health events; with NodeRecovery=Automatic it has them repaired too."""

    def __init__(self, fleet: Fleet, registry: Registry, bus: Bus) -> None:
        self._fleet = fleet
        self._registry = registry
        self._bus = bus

    def detect(self, machine: Machine, fault_type: str, fault_reason: str, message: str) -> None:
        """Find a fault on a life: labels, annotation, condition, taint and event, as the real agent leaves them."""
        if machine not in self._fleet.machines or machine.kubelet is None or not machine.kubelet.is_connected:
            return
        machine.unhealthy = (fault_type, fault_reason)
        pending = "UnschedulablePendingReboot" if fault_type in REBOOT_TYPES else "UnschedulablePendingReplacement"

        def mark(node: Obj) -> None:
            labels = node["metadata"].setdefault("labels", {})
            labels[f"{PREFIX}node-health-status"] = pending
            labels[f"{PREFIX}fault-types"] = fault_type
            labels[f"{PREFIX}fault-reasons"] = fault_reason
            details = [
                {
                    "timestamp": timestamp(),
                    "type": fault_type,
                    "reason": fault_reason,
                    "message": message,
                }
            ]
            node["metadata"].setdefault("annotations", {})[f"{PREFIX}fault-details"] = json.dumps(details)
            taints = [t for t in node["spec"].get("taints") or () if t["key"] != f"{PREFIX}node-health-status"]
            taints.append({"key": f"{PREFIX}node-health-status", "value": "Unschedulable", "effect": "NoSchedule"})
            node["spec"]["taints"] = taints
            set_condition(node["status"], fault_type, "True", fault_reason, message)

        if self._registry.mutate(catalogue.NODES, "", machine.node_name, mark) is not None:
            recommendation = (
                "Please Reboot the Node." if fault_type in REBOOT_TYPES else "Please Replace the Faulty Node."
            )
            self._send(
                machine,
                "Unhealthy",
                f"HyperPod Health Monitoring Agent (HMA) has detected fault type {fault_type} on this node "
                "and is unhealthy.",
                recommendation,
            )
            if self._fleet.node_recovery == "Automatic":
                self._fleet.later(self._fleet.config.delays.auto_recovery, lambda: self.recover(machine))

    def recover(self, machine: Machine) -> None:
        """Repair a life that is still marked, as HyperPod does with NodeRecovery=Automatic."""
        if machine not in self._fleet.machines or machine.unhealthy is None or machine.operation is not None:
            return
        if machine.unhealthy[0] in REBOOT_TYPES:
            self._fleet.reboot(machine)
        else:
            self._fleet.replace(machine)

    def healthy(self, machine: Machine) -> None:
        """Take the marks off a life that a reboot cured, and say so."""

        def clear(node: Obj) -> None:
            labels = node["metadata"].get("labels") or {}
            labels[f"{PREFIX}node-health-status"] = "Schedulable"
            for key in ("fault-types", "fault-reasons"):
                labels.pop(f"{PREFIX}{key}", None)
            (node["metadata"].get("annotations") or {}).pop(f"{PREFIX}fault-details", None)
            taints = [t for t in node["spec"].get("taints") or () if t["key"] != f"{PREFIX}node-health-status"]
            node["spec"]["taints"] = taints
            if not taints:
                del node["spec"]["taints"]
            for condition in node["status"].get("conditions") or ():
                if condition["type"].startswith(("Nvidia", "Efa", "Instance")) and condition["status"] == "True":
                    set_condition(node["status"], condition["type"], "False", "Recovered", "")

        self._registry.mutate(catalogue.NODES, "", machine.node_name, clear)
        self._send(machine, "Healthy", "", "")

    def _send(self, machine: Machine, status: str, reason: str, recommendation: str) -> None:
        config = self._fleet.config
        self._bus.send(
            HEALTH_EVENT,
            {
                "ClusterName": config.cluster_name,
                "ClusterArn": config.cluster_arn,
                "InstanceId": machine.instance_id,
                "Tags": {},
                "HealthSummary": {
                    "HealthStatus": status,
                    "HealthStatusReason": reason,
                    "RepairAction": "None",
                    "Recommendation": recommendation,
                },
            },
            [config.cluster_arn],
        )
