"""EC2 Auto Scaling groups of EKS nodes: each group keeps its number of nodes.

Modelled: launches up to the desired capacity, missing capacity, suspended processes, protection from scale-in,
and termination of one instance. EKS node auto-repair of a managed node group. Not modelled: lifecycle hooks, health
checks of EC2, scaling policies, warm pools.

Source: the user guides of Amazon EC2 Auto Scaling and Amazon EKS.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from evenkeel_local.gpu_cluster import catalogue
from evenkeel_local.gpu_cluster.config import ClusterConfig, NodeGroupConfig
from evenkeel_local.gpu_cluster.errors import Obj
from evenkeel_local.gpu_cluster.karpenter_model import PERIOD_SECONDS, Instance, Offering
from evenkeel_local.gpu_cluster.kubelet import KubeletDirectory
from evenkeel_local.gpu_cluster.machines import node_status
from evenkeel_local.gpu_cluster.objects import condition_of
from evenkeel_local.gpu_cluster.registry import Registry

CLUSTER_TAG, NODEGROUP_TAG = "eks:cluster-name", "eks:nodegroup-name"
PENDING, IN_SERVICE, TERMINATING = "Pending", "InService", "Terminating"


@dataclass
class GroupInstance(Instance):
    """An instance of an Auto Scaling group."""

    group: str = ""
    lifecycle: str = PENDING
    is_protected: bool = False


class AutoScalingGroups:
    """The Auto Scaling groups of the cluster, in one loop."""

    def __init__(self, config: ClusterConfig, registry: Registry, directory: KubeletDirectory) -> None:
        self._config = config
        self._registry = registry
        self._directory = directory
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self.groups = {group.name: group for group in config.node_groups}
        self.members: list[GroupInstance] = []
        """Every instance that has not ended, oldest first."""
        self.suspended: dict[str, list[str]] = {name: [] for name in self.groups}
        """Suspended processes by group, such as `Launch`."""

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            for group in self.groups.values():
                self._fill(group)
                if group.repair_seconds is not None:
                    self._repair(group.name, group.repair_seconds)
            await asyncio.sleep(PERIOD_SECONDS)

    def stop(self) -> None:
        """Cancel everything, and switch every instance off."""
        for task in list(self._tasks):
            task.cancel()
        for member in self.members:
            if member.kubelet is not None:
                member.kubelet.power_off()

    @property
    def instances(self) -> list[Instance]:
        """The instances that are nodes now."""
        return [member for member in self.members if member.kubelet is not None]

    def members_of(self, group: str) -> list[GroupInstance]:
        """Return the instances of a group."""
        return [member for member in self.members if member.group == group]

    def find(self, instance_id: str) -> GroupInstance | None:
        """Return an instance; None if it is in no group."""
        return next((member for member in self.members if member.instance_id == instance_id), None)

    def tags_of(self, group: str) -> dict[str, str]:
        """Return the tags of a group, as EKS writes them."""
        return {CLUSTER_TAG: self._config.eks_cluster_name, NODEGROUP_TAG: group}

    def terminate(self, member: GroupInstance) -> None:
        """Terminate an instance. Idempotent: yes, an instance that is Terminating is left alone."""
        if member.lifecycle != TERMINATING:
            member.lifecycle = TERMINATING
            self._run_in_background(self._end(member))

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fill(self, group: NodeGroupConfig) -> None:
        members = self.members_of(group.name)
        limit = group.count if group.capacity is None else min(group.count, group.capacity)
        if "Launch" in self.suspended[group.name]:
            return
        for _ in range(limit - len(members)):
            offering = Offering(group.instance_type, group.availability_zone, "on-demand", 0.0, None)
            member = GroupInstance(claim="", offering=offering, group=group.name)
            self.members.append(member)
            self._run_in_background(self._launch(group, member))

    async def _launch(self, group: NodeGroupConfig, member: GroupInstance) -> None:
        await asyncio.sleep(group.launch)
        if member.lifecycle == TERMINATING:
            return
        number = next(self._numbers)
        address = f"10.3.{number // 250}.{number % 250 + 1}"
        member.node_name = f"ip-{address.replace('.', '-')}.{self._config.region}.compute.internal"
        member.kubelet = self._directory.create(member.node_name)
        zone = group.availability_zone
        labels = {
            "eks.amazonaws.com/nodegroup": group.name,
            "eks.amazonaws.com/capacityType": "ON_DEMAND",
            "node.kubernetes.io/instance-type": group.instance_type,
            "topology.kubernetes.io/zone": zone,
            "kubernetes.io/hostname": member.node_name,
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            **group.labels,
        }
        taints = [taint.model_dump() for taint in group.taints]
        member.kubelet.boot(
            {
                "metadata": {"name": member.node_name, "labels": labels},
                "spec": {
                    "providerID": f"aws:///{zone}/{member.instance_id}",
                    **({"taints": taints} if taints else {}),
                },
                "status": node_status(
                    member.offering.resources,
                    address,
                    member.node_name,
                    boot_id=str(uuid.uuid4()),
                    instance_id=member.instance_id,
                    uuid=member.instance_id,
                    system="Amazon Linux 2023/6.1.0",
                ),
            }
        )
        member.lifecycle = IN_SERVICE

    async def _end(self, member: GroupInstance) -> None:
        await asyncio.sleep(self._config.delays.terminate)
        member.ended = True
        if member.kubelet is not None:
            member.kubelet.power_off()
            self._directory.remove(member.node_name)
        node = self._node_of(member)
        if node is not None:
            self._registry.remove(node, {"propagationPolicy": "Background"})
        self.members.remove(member)

    def _node_of(self, member: GroupInstance) -> Obj | None:
        return self._registry.store.find(catalogue.NODES.key, "", member.node_name) if member.node_name else None

    def _repair(self, group: str, after: float) -> None:
        """Terminate nodes with broken accelerators, as EKS node auto-repair does."""
        for member in self.members_of(group):
            node = self._node_of(member)
            condition = condition_of(node, "AcceleratedHardwareReady") if node is not None else None
            if condition is None or condition["status"] != "False":
                continue
            if datetime.now(UTC) - datetime.fromisoformat(condition["lastTransitionTime"]) >= timedelta(seconds=after):
                self.terminate(member)
