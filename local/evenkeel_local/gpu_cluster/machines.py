"""The provider's side: instance groups, slots and machines.

A slot (`NodeLogicalId`) belongs to a group and survives a replacement. A machine is one instance in a slot: an instance
id and a launch time. A reboot changes the boot id only. A replacement ends the instance, with its disks and processes,
and starts another one in the same slot.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.config import ClusterConfig, InstanceGroupConfig
from evenkeel_local.gpu_cluster.errors import ApiError, Obj
from evenkeel_local.gpu_cluster.kubelet import Kubelet, KubeletDirectory
from evenkeel_local.gpu_cluster.registry import Registry

PREFIX = "sagemaker.amazonaws.com/"
Status = Literal[
    "Running", "Failure", "Pending", "ShuttingDown", "SystemUpdating", "DeepHealthCheckInProgress", "NotFound"
]

EFA = "vpc.amazonaws.com/efa"
SHAPES: dict[str, dict[str, str]] = {
    "ml.p5.48xlarge": {"nvidia.com/gpu": "8", "cpu": "192", "memory": "2048Gi", EFA: "32"},
    "ml.p5e.48xlarge": {"nvidia.com/gpu": "8", "cpu": "192", "memory": "2048Gi", EFA: "32"},
    "ml.p5en.48xlarge": {"nvidia.com/gpu": "8", "cpu": "192", "memory": "2048Gi", EFA: "16"},
    "ml.p5.4xlarge": {"nvidia.com/gpu": "1", "cpu": "16", "memory": "256Gi", EFA: "1"},
    "ml.p6-b200.48xlarge": {"nvidia.com/gpu": "8", "cpu": "192", "memory": "2048Gi", EFA: "8"},
    "ml.p4de.24xlarge": {"nvidia.com/gpu": "8", "cpu": "96", "memory": "1152Gi", EFA: "4"},
    "ml.p4d.24xlarge": {"nvidia.com/gpu": "8", "cpu": "96", "memory": "1152Gi", EFA: "4"},
    "ml.g5.8xlarge": {"nvidia.com/gpu": "1", "cpu": "32", "memory": "128Gi", EFA: "1"},
    "ml.g5.48xlarge": {"nvidia.com/gpu": "8", "cpu": "192", "memory": "768Gi", EFA: "1"},
    "ml.g6.12xlarge": {"nvidia.com/gpu": "4", "cpu": "48", "memory": "192Gi", EFA: "1"},
    "ml.trn1.32xlarge": {"aws.amazon.com/neuron": "16", "cpu": "128", "memory": "512Gi", EFA: "8"},
    "ml.trn2.48xlarge": {"aws.amazon.com/neuron": "16", "cpu": "192", "memory": "2048Gi", EFA: "16"},
    "ml.m5.2xlarge": {"cpu": "8", "memory": "32Gi"},
    "ml.c5.4xlarge": {"cpu": "16", "memory": "32Gi"},
}
"""Resources of a node by instance type. Source: the AWS pages of each EC2 type."""
HUGE_PAGES = {"hugepages-2Mi": "10256Mi"}
"""Memory that nodes with EFA reserve: EKS's accelerated images reserve 5128 pages of 2 MiB."""
DEFAULT_SHAPE = {"cpu": "16", "memory": "64Gi"}
PODS_PER_NODE = "110"
NO_CAPACITY = {
    "type": "We currently do not have sufficient capacity to launch new {type} instances. Please try again.",
    "zone": "We currently do not have sufficient capacity in the Availability Zone you requested ({zone}).",
}
"""The two capacity messages; the text after the zone is assumed."""
BOOT_FAILURES = {
    "start": "The instance did not start: its image could not be booted.",
    "efa": "EFA health checks did not run successfully. Ensure that your VPC and security groups are properly "
    "configured before attempting to create a new cluster.",
    "lifecycle": "Lifecycle scripts did not run successfully.",
}
"""Stages at which a new machine can fail, and HyperPod's message; the first text is assumed."""


def resources_of_type(instance_type: str) -> dict[str, str]:
    """Return the resources of a node by instance type, with or without SageMaker's prefix `ml.`."""
    shape = SHAPES.get(f"ml.{instance_type.removeprefix('ml.')}", DEFAULT_SHAPE)
    return {**shape, **HUGE_PAGES} if EFA in shape else shape


def node_status(
    resources: dict[str, str], address: str, name: str, *, boot_id: str, instance_id: str, uuid: str, system: str
) -> Obj:
    """Return the status with which a machine registers its node.

    Args:
        resources: The resources of the node.
        address: The machine's address.
        name: The node's name.
        boot_id: The boot id of the machine.
        instance_id: The EC2 instance id.
        uuid: The system UUID.
        system: The operating system and the kernel version, separated by `/`.
    """
    image, _, kernel = system.partition("/")
    addresses = [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]
    info = {
        "bootID": boot_id,
        "machineID": instance_id.removeprefix("i-"),
        "systemUUID": uuid,
        "architecture": "amd64",
        "operatingSystem": "linux",
        "osImage": image,
        "kernelVersion": kernel,
        "containerRuntimeVersion": "process://1",
        "kubeletVersion": "v1.33.0-local",
        "kubeProxyVersion": "",
    }
    return {"capacity": dict(resources), "allocatable": dict(resources), "addresses": addresses, "nodeInfo": info}


class EventSink(Protocol):
    """Receives the events of instances."""

    def instance_event(
        self, machine: Machine, description: str, level: str = "Info", metadata: Obj | None = None
    ) -> None:
        """Record one HyperPod cluster event about an instance."""

    def lost_readiness(self, nodes: int) -> None:
        """Record that nodes are no longer ready for work."""


@dataclass(frozen=True)
class HardwareFault:
    """A hardware fault, as the health agent reports it."""

    type: str
    reason: str
    message: str


@dataclass
class FailingBoots:
    """Makes new machines of a group fail at a stage: `times` machines, or all if None."""

    stage: str
    times: int | None = None


@dataclass(frozen=True)
class EmptySlot:
    """A slot between two launch attempts, with the state that the next machine gets."""

    group: str
    logical_id: str
    operation: str | None
    message: str


@dataclass
class Machine:
    """An instance in a slot."""

    instance_id: str
    logical_id: str
    group: str
    launch_time: float
    boot_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    status: Status = "Pending"
    message: str = ""
    operation: str | None = None
    is_visible: bool = True
    ip: str = ""
    kubelet: Kubelet | None = None
    unhealthy: tuple[str, str] | None = None
    """(fault type, fault reason) that the health agent reported for this instance."""
    lasting: HardwareFault | None = None
    """A fault that no reboot clears: the health agent finds it again after each reboot."""
    has_rebooted_in_vain: bool = False
    is_agent_silent: bool = False
    """Whether the health agent of this machine has died; a reboot restarts it."""
    kubernetes_labels: dict[str, str] = field(default_factory=dict)

    @property
    def node_name(self) -> str:
        """The Kubernetes node's name."""
        return f"hyperpod-{self.instance_id}"


@dataclass
class ProviderCall:
    """An accepted or refused request for one node. The drills count these."""

    action: str
    instance_id: str
    logical_id: str
    accepted: bool
    code: str
    at: float
    caller: str


class MachineFleet:
    """All machines of the HyperPod cluster."""

    def __init__(
        self,
        config: ClusterConfig,
        registry: Registry,
        directory: KubeletDirectory,
    ) -> None:
        self.config = config
        self._directory = directory
        self.created_at = time.time()
        self.node_recovery: str = config.node_recovery
        self.groups: dict[str, InstanceGroupConfig] = {group.name: group for group in config.instance_groups}
        self.targets: dict[str, int] = {group.name: group.count for group in config.instance_groups}
        self.capacity: dict[str, int | None] = {group.name: group.capacity for group in config.instance_groups}
        self.machines: list[Machine] = []
        self._by_node: dict[str, Machine] = {}
        self.retired: list[Machine] = []
        self.empty_slots: list[EmptySlot] = []
        """Slots between two launch attempts."""
        self.stuck_slots: dict[str, str] = {}
        """Slots whose replacement stays Pending, with the reason."""
        self.calls: list[ProviderCall] = []
        self.events: EventSink | None = None
        self.on_scaling: Callable[[str, int, int], None] | None = None
        self.on_rebooted: Callable[[Machine], None] | None = None
        self.auto_scaling: str | None = None
        """The autoscaler that UpdateCluster enabled; with an autoscaler, Replace only terminates."""
        self.zones_out: list[str] = []
        """Availability Zones without capacity; a zone occurs once for each outage."""
        self.failing_boots: dict[str, FailingBoots] = {}
        """Groups whose new machines fail."""
        self._registry = registry
        self._tasks: set[asyncio.Task[None]] = set()
        self._unstuck = asyncio.Event()
        self._restored: list[Machine] = []
        self._next_ip = 10

    # Finding

    def by_instance(self, instance_id: str) -> Machine | None:
        """Return the living machine with an instance id."""
        return next((m for m in self.machines if m.instance_id == instance_id), None)

    def by_slot(self, logical_id: str) -> Machine | None:
        """Return the current machine of a slot."""
        return next((m for m in self.machines if m.logical_id == logical_id), None)

    def by_node(self, node_name: str) -> Machine | None:
        """Return the living machine behind a node name."""
        return self._by_node.get(node_name)

    def of_group(self, group: str) -> list[Machine]:
        """Return a group's machines."""
        return [m for m in self.machines if m.group == group]

    # Starting

    def start(self) -> None:
        """Launch every group's machines."""
        for group in self.groups.values():
            for _ in range(group.count):
                self.run_in_background(
                    self._boot_new(self._new_machine(group.name, str(uuid.uuid4())), self.config.delays.boot)
                )

    def restore_machine(self, machine: Machine) -> None:
        """Restore a machine from a snapshot; it lost its power meanwhile."""
        self._next_ip += 1
        self.machines.append(machine)
        self._by_node[machine.node_name] = machine
        self._restored.append(machine)

    def resume(self) -> None:
        """Start the restored machines; each continues its operation."""
        for machine in self._restored:
            if machine.status == "ShuttingDown" and machine.operation == "Delete":
                self.run_in_background(self._remove(machine))
            elif machine.status == "ShuttingDown":
                self.run_in_background(self._replace(machine))
            elif machine.operation in ("Replace", "Launch") or (
                machine.operation is None and machine.status == "Pending"
            ):
                self.run_in_background(self._boot_until_up(machine))
            else:
                machine.operation = "Reboot"
                self.run_in_background(self._boot_new(machine, self.config.delays.boot))
        self._restored.clear()
        for empty_slot in self.empty_slots:
            self.run_in_background(self._resume_slot(empty_slot))

    def stop(self) -> None:
        """Switch everything off."""
        for task in list(self._tasks):
            task.cancel()
        for machine in self.machines:
            if machine.kubelet is not None:
                machine.kubelet.power_off()

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background until it ends or the cluster stops."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a machine's operation failed", "exception": failure, "task": task}
            )

    def call_later(self, seconds: float, work: Callable[[], None]) -> None:
        """Call a function after a delay, unless the cluster stops first."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            work()

        self.run_in_background(wait())

    def _new_machine(self, group: str, logical_id: str) -> Machine:
        self._next_ip += 1
        machine = Machine(
            instance_id=f"i-{secrets.token_hex(9)[:17]}",
            logical_id=logical_id,
            group=group,
            launch_time=time.time(),
            ip=f"10.1.{self._next_ip // 250}.{self._next_ip % 250 + 1}",
        )
        self.machines.append(machine)
        self._by_node[machine.node_name] = machine
        return machine

    async def _boot_new(self, machine: Machine, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        self._power_on(machine)

    def _power_on(self, machine: Machine) -> None:
        if machine.kubelet is None:
            machine.kubelet = self._directory.create(machine.node_name)
        machine.kubelet.boot(self.node_object(machine))
        machine.status, machine.operation = "Running", None

    def node_object(self, machine: Machine) -> Obj:
        """Return the Node object that a machine registers, with its group's taints."""
        group, config = self.groups[machine.group], self.config
        shape = group.resources or resources_of_type(group.instance_type)
        allocatable = {"pods": PODS_PER_NODE, "ephemeral-storage": "1Ti", **shape}
        labels = {
            f"{PREFIX}compute-type": "hyperpod",
            f"{PREFIX}cluster-name": config.cluster_name,
            f"{PREFIX}instance-group-name": group.name,
            f"{PREFIX}node-health-status": "Schedulable",
            "node.kubernetes.io/instance-type": group.instance_type,
            "beta.kubernetes.io/instance-type": group.instance_type,
            "topology.kubernetes.io/region": config.region,
            "topology.kubernetes.io/zone": group.availability_zone,
            "topology.k8s.aws/zone-id": group.availability_zone_id,
            "topology.k8s.aws/network-node-layer-1": "nn-1",
            "topology.k8s.aws/network-node-layer-2": f"nn-2-{group.name}",
            "topology.k8s.aws/network-node-layer-3": f"nn-3-{group.name}",
            "kubernetes.io/hostname": machine.node_name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            **group.labels,
            **machine.kubernetes_labels,
        }
        spec: Obj = {
            "providerID": f"aws:///{group.availability_zone_id}/sagemaker/cluster/"
            f"hyperpod-{config.cluster_id}-{machine.instance_id}"
        }
        if group.taints:
            spec["taints"] = [
                {"key": taint.key, **({"value": taint.value} if taint.value else {}), "effect": taint.effect}
                for taint in group.taints
            ]
        return {
            "metadata": {"name": machine.node_name, "labels": labels},
            "spec": spec,
            "status": {
                **node_status(
                    allocatable,
                    machine.ip,
                    machine.node_name,
                    boot_id=machine.boot_id,
                    instance_id=machine.instance_id,
                    uuid=machine.logical_id,
                    system="Amazon Linux 2/5.10.0",
                ),
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            },
        }

    # Repairs

    def reboot(self, machine: Machine) -> None:
        """Start a reboot: the instance stays, its boot id changes."""
        machine.operation, machine.status = "Reboot", "Pending"
        self._event(machine, "Reboot of EC2 Instance {id} is currently in progress on Cluster {cluster} and IG {group}")
        self.run_in_background(self.restart(machine))

    async def restart(self, machine: Machine) -> None:
        """Shut a machine down and start it again, with a new boot id."""
        if machine.kubelet is not None:
            machine.kubelet.shut_down()
        await asyncio.sleep(self.config.delays.reboot)
        machine.boot_id = str(uuid.uuid4())
        self._power_on(machine)
        if self.on_rebooted is not None:
            self.on_rebooted(machine)

    def replace(self, machine: Machine) -> None:
        """Start a replacement: a new instance starts in the same slot. With an autoscaler, the instance only ends."""
        if self.events is not None:
            self.events.lost_readiness(1)
        if self.auto_scaling is not None:
            self._report_termination(machine)
            self.remove(machine)
            return
        machine.operation, machine.status = "Replace", "ShuttingDown"
        self.run_in_background(self._replace(machine))

    async def _replace(self, machine: Machine) -> None:
        self._report_termination(machine)
        await asyncio.sleep(self.config.delays.terminate)
        self._destroy(machine)
        fresh = self._new_machine(machine.group, machine.logical_id)
        fresh.operation = "Replace"
        await self._boot_until_up(fresh)

    async def _boot_until_up(self, machine: Machine) -> None:
        """Launch machines in a slot until one boots; each attempt is a new instance, as on HyperPod."""
        while (failed_stage := await self._try_boot(machine)) is not None:
            purpose, machine.operation = machine.operation, machine.operation or "Launch"
            machine.status, machine.message = "Failure", BOOT_FAILURES[failed_stage]
            await asyncio.sleep(self.config.delays.replace)
            self._destroy(machine)
            empty_slot = EmptySlot(machine.group, machine.logical_id, purpose, machine.message)
            self.empty_slots.append(empty_slot)
            machine = await self._fill(empty_slot)
        if machine.status in ("ShuttingDown", "NotFound"):
            return  # the slot was deleted meanwhile
        self._run_lifecycle_script(machine)
        is_replacement = machine.operation == "Replace"
        self._power_on(machine)
        self._report_provisioned(machine)
        if is_replacement:
            message = "Instance {id} creation completed successfully as part of instance replacement"
            self._event(machine, message + " in Cluster {cluster} and IG {group}")

    async def _fill(self, empty_slot: EmptySlot) -> Machine:
        """Put a new machine into an empty slot; until then no list shows the slot."""
        await asyncio.sleep(self.config.delays.terminate)
        self.empty_slots.remove(empty_slot)
        machine = self._new_machine(empty_slot.group, empty_slot.logical_id)
        # The message stays: it describes an earlier attempt, as on AWS.
        machine.operation, machine.message = empty_slot.operation, empty_slot.message
        return machine

    async def _resume_slot(self, empty_slot: EmptySlot) -> None:
        await self._boot_until_up(await self._fill(empty_slot))

    async def _try_boot(self, machine: Machine) -> str | None:
        """Launch a machine; return the stage at which it fails, or None."""
        is_replacement = machine.operation == "Replace"
        failing_boots = self.failing_boots.get(machine.group)
        if failing_boots is not None and failing_boots.times is not None:
            failing_boots.times -= 1
            if failing_boots.times == 0:
                del self.failing_boots[machine.group]
        self._report_reservation(machine)
        if is_replacement and (failing_boots is None or failing_boots.stage != "start"):
            message = "Instance {id} is starting as part of instance replacement in Cluster {cluster} and IG {group}"
            self._event(machine, message)
        await self._await_capacity(machine)
        await asyncio.sleep(self.config.delays.replace if is_replacement else self.config.delays.boot)
        await self._await_capacity(machine)
        if failing_boots is None or machine.status != "Pending":
            return None
        if failing_boots.stage == "lifecycle":
            self._run_lifecycle_script(machine, "Failed")
        message = "Failed to provision EC2 Instance in Cluster {cluster} and IG {group}"
        if is_replacement:
            step = "failed to start" if failing_boots.stage == "start" else "creation failed"
            message = f"Instance {{id}} {step} as part of instance replacement in Cluster {{cluster}} and IG {{group}}"
        self._event(machine, message, {"FailureMessage": BOOT_FAILURES[failing_boots.stage]}, "Error")
        return failing_boots.stage

    async def _await_capacity(self, machine: Machine) -> None:
        is_recorded = False
        while machine.status == "Pending" and (missing_text := self._missing_capacity(machine)) is not None:
            if not is_recorded:
                is_recorded = True
                machine.message = missing_text
                failure_text = "Instance creation in Cluster {cluster} and InstanceGroup {group} failed"
                self._event(machine, failure_text, {"FailureMessage": missing_text}, "Error")
            self._unstuck.clear()
            await self._unstuck.wait()
        # The message stays: it describes an earlier attempt, as on AWS.

    def _missing_capacity(self, machine: Machine) -> str | None:
        """Return why the provider has no capacity for a machine; None if it has."""
        group = self.groups[machine.group]
        if group.availability_zone in self.zones_out:
            return NO_CAPACITY["zone"].format(zone=group.availability_zone)
        limit = self.capacity.get(machine.group)
        running_machines = [m for m in self.of_group(machine.group) if m is not machine and m.status != "Pending"]
        if machine.logical_id in self.stuck_slots or (limit is not None and len(running_machines) >= limit):
            return NO_CAPACITY["type"].format(type=group.instance_type)
        return None

    def recheck_pending(self) -> None:
        """Check again whether machines that wait for capacity can start."""
        self._unstuck.set()

    def _destroy(self, machine: Machine) -> None:
        """Remove a machine: kill its processes and delete its node, even behind a partition."""
        if machine.kubelet is not None:
            machine.kubelet.power_off()
            self._directory.remove(machine.node_name)
        try:
            self._registry.delete(catalogue.NODES, "", machine.node_name, {"propagationPolicy": "Background"})
        except ApiError as refusal:
            if refusal.code != 404:
                raise
        machine.status = "NotFound"
        if machine in self.machines:
            self.machines.remove(machine)
            self._by_node.pop(machine.node_name, None)
        self.retired.append(machine)
        self.recheck_pending()

    # Growing and shrinking

    def add(self, group: str, count: int) -> list[Machine]:
        """Launch more machines in a group."""
        self._scale(group, count)
        added_machines = [self._new_machine(group, str(uuid.uuid4())) for _ in range(count)]
        for machine in added_machines:
            self.run_in_background(self._boot_until_up(machine))
        return added_machines

    def _scale(self, group: str, by: int) -> None:
        original = self.targets.get(group, 0)
        self.targets[group] = max(original + by, 0)
        if self.on_scaling is not None:
            self.on_scaling(group, original, self.targets[group])

    def _report_reservation(self, machine: Machine) -> None:
        if self.groups[machine.group].training_plan is not None:
            reservation = f"cr-{machine.logical_id.replace('-', '')[:17]}"
            arn = self.config.arn(f"capacity-reservation/{reservation}", "ec2")
            message = f"Found CapacityReservation ID {reservation} for IG {{group}} in Cluster {{cluster}}"
            self._event(machine, message, {"CapacityReservation": {"Arn": arn, "Type": "ODCR"}})
        else:
            message = "No CapacityReservation found for IG {group} in Cluster {cluster}, using on-demand pool"
            self._event(machine, message)

    def _run_lifecycle_script(self, machine: Machine, end: str = "Succeeded") -> None:
        """Record the events of the lifecycle script, which runs on every new machine but not after a reboot."""
        for state in ("Started", end):
            message = "Instance lifecycle script execution for EC2 Instance {id} has " + state.lower()
            level = "Error" if state == "Failed" else "Info"
            self._event(machine, message + " in Cluster {cluster} and IG {group}", {"LcsExecutionState": state}, level)

    def _report_provisioned(self, machine: Machine) -> None:
        number = machine.instance_id.removeprefix("i-")
        message = "EC2 Instance {id} successfully provisioned in Cluster {cluster} and IG {group}"
        self._event(machine, message, {"CustomerEni": f"eni-{number}"})

    def remove(self, machine: Machine) -> None:
        """Terminate a machine and give up its slot."""
        machine.operation, machine.status = "Delete", "ShuttingDown"
        self._scale(machine.group, -1)
        self.run_in_background(self._remove(machine))

    async def _remove(self, machine: Machine) -> None:
        await asyncio.sleep(self.config.delays.terminate)
        self._destroy(machine)

    def _report_termination(self, machine: Machine) -> None:
        message = "Termination of EC2 Instance {id} is currently in progress on Cluster {cluster} and IG {group}"
        self._event(machine, message)

    def _event(self, machine: Machine, template: str, metadata: Obj | None = None, level: str = "Info") -> None:
        if self.events is not None:
            message = template.format(id=machine.instance_id, cluster=self.config.cluster_name, group=machine.group)
            self.events.instance_event(machine, message, level, metadata)
