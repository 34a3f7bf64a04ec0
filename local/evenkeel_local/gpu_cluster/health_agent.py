"""HyperPod's health agent: the marks on faulty nodes, and the health events."""

from __future__ import annotations

import json
from dataclasses import asdict

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.cluster_events import EventPublisher
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.machines import PREFIX, HardwareFault, Machine, MachineFleet
from evenkeel_local.gpu_cluster.objects import put
from evenkeel_local.gpu_cluster.registry import Registry, set_condition, timestamp
from evenkeel_local.gpu_cluster.store import StoreChange, name_of

HEALTH_EVENT = "SageMaker HyperPod Cluster Node Health Event"
REBOOT_TYPES = ("NvidiaErrorReboot",)
STATUS_LABEL, DETAILS = f"{PREFIX}node-health-status", f"{PREFIX}fault-details"
PENDING_REBOOT, PENDING_REPLACEMENT = "UnschedulablePendingReboot", "UnschedulablePendingReplacement"


class HealthAgent:
    """Marks nodes and sends health events; with NodeRecovery=Automatic it also repairs nodes."""

    def __init__(self, fleet: MachineFleet, registry: Registry, bus: EventPublisher) -> None:
        self._fleet = fleet
        self._registry = registry
        self._bus = bus

    def detect(self, machine: Machine, fault: HardwareFault) -> None:
        """Report a fault of a machine: labels, annotation, condition, taint and event, as the real agent does."""
        if machine not in self._fleet.machines or machine.kubelet is None or not machine.kubelet.is_connected:
            return
        if machine.is_agent_silent:
            return
        machine.unhealthy = (fault.type, fault.reason)
        may_reboot = fault.type in REBOOT_TYPES and not machine.has_rebooted_in_vain
        pending_status = PENDING_REBOOT if may_reboot else PENDING_REPLACEMENT

        def mark(node: Obj) -> None:
            labels, annotations = (node["metadata"].setdefault(field, {}) for field in ("labels", "annotations"))
            labels[STATUS_LABEL] = pending_status
            labels[f"{PREFIX}fault-types"] = fault.type
            labels[f"{PREFIX}fault-reasons"] = fault.reason
            details = json.loads(annotations.get(DETAILS) or "[]")
            details.append({"timestamp": timestamp(), **asdict(fault)})
            annotations[DETAILS] = json.dumps(details)
            taints = [t for t in node["spec"].get("taints") or () if t["key"] != STATUS_LABEL]
            taints.append({"key": STATUS_LABEL, "value": "Unschedulable", "effect": "NoSchedule"})
            node["spec"]["taints"] = taints
            set_condition(node["status"], fault.type, "True", fault.reason, fault.message)

        if self._registry.mutate(catalogue.NODES, "", machine.node_name, mark) is not None:
            message = f"HyperPod Health Monitoring Agent (HMA) has detected fault type {fault.type} on this node "
            advice = "Please Reboot the Node." if may_reboot else "Please Replace the Faulty Node."
            self._send(machine, "Unhealthy", message + "and is unhealthy.", advice)

    def notice(self, change: StoreChange) -> None:
        """Repair a node that gets a Pending label, with NodeRecovery=Automatic. Any client may set the label."""
        if change.key != catalogue.NODES.key or change.kind != "MODIFIED":
            return
        label, label_before = _status_of(change.new), _status_of(change.old or {})
        machine = self._fleet.by_node(name_of(change.new))
        if machine is not None and label != label_before and label in (PENDING_REBOOT, PENDING_REPLACEMENT):
            self._fleet.call_later(self._fleet.config.delays.auto_recovery, lambda: self._recover(machine))

    def _recover(self, machine: Machine) -> None:
        """Repair a machine that still has the label. CPU nodes are never replaced."""
        node = self._registry.store.find(catalogue.NODES.key, "", machine.node_name)
        if machine not in self._fleet.machines or node is None or machine.operation is not None:
            return
        if self._fleet.node_recovery != "Automatic":
            return
        if _status_of(node) == PENDING_REBOOT:
            self._fleet.reboot(machine)
        elif _status_of(node) == PENDING_REPLACEMENT and "nvidia.com/gpu" in node["status"]["allocatable"]:
            self._fleet.replace(machine)

    def recheck_after_reboot(self, machine: Machine) -> None:
        """Check a machine after a reboot: remove its marks, or report a lasting fault again."""
        machine.is_agent_silent = False
        if machine.lasting is not None:
            fault = machine.lasting
            machine.has_rebooted_in_vain = True
            self._fleet.call_later(self._fleet.config.delays.agent_detect, lambda: self.detect(machine, fault))
        else:
            self.clear_marks(machine)

    def clear_marks(self, machine: Machine) -> None:
        """Remove the marks of a machine that is healthy again, and send the event."""
        node = self._registry.store.find(catalogue.NODES.key, "", machine.node_name)
        if node is None or (
            machine.unhealthy is None and _status_of(node) not in (PENDING_REBOOT, PENDING_REPLACEMENT)
        ):
            return
        machine.unhealthy, machine.lasting, machine.has_rebooted_in_vain = None, None, False

        def clear(node: Obj) -> None:
            labels = node["metadata"].setdefault("labels", {})
            labels[STATUS_LABEL] = "Schedulable"
            for key in ("fault-types", "fault-reasons"):
                labels.pop(f"{PREFIX}{key}", None)
            node["metadata"].get("annotations", {}).pop(DETAILS, None)
            taints = [t for t in node["spec"].get("taints") or () if t["key"] != STATUS_LABEL]
            put(node["spec"], "taints", taints)
            for condition in node["status"].get("conditions") or ():
                if condition["type"].startswith(("Nvidia", "Efa", "Instance")) and condition["status"] == "True":
                    set_condition(node["status"], condition["type"], "False", "Recovered", "")

        self._registry.mutate(catalogue.NODES, "", machine.node_name, clear)
        self._send(machine, "Healthy", "", "")

    def mark_accelerator(self, node_name: str, reason: str, message: str, *, ready: bool = False) -> None:
        """Set the condition of the EKS node monitoring agent for the GPUs. It sets no label and sends no event."""

        def mark(node: Obj) -> None:
            set_condition(node["status"], "AcceleratedHardwareReady", str(ready), reason, message)

        self._registry.mutate(catalogue.NODES, "", node_name, mark)

    def _send(self, machine: Machine, status: str, reason: str, recommendation: str) -> None:
        config = self._fleet.config
        summary = {"HealthStatus": status, "HealthStatusReason": reason}
        detail = {
            "ClusterName": config.cluster_name,
            "ClusterArn": config.cluster_arn,
            "InstanceId": machine.instance_id,
            "Tags": {},
            "HealthSummary": {**summary, "RepairAction": "None", "Recommendation": recommendation},
        }
        self._bus.send(HEALTH_EVENT, detail, [config.cluster_arn])


def _status_of(node: Obj) -> str:
    return str(((node.get("metadata") or {}).get("labels") or {}).get(STATUS_LABEL) or "")
