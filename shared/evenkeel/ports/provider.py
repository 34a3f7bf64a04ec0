"""HyperPod's control plane: its nodes, and requests to repair them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime

    from evenkeel.domain.capacity.training_plans import TrainingPlan
    from evenkeel.domain.nodes import ProviderCluster, ProviderNode
    from evenkeel.domain.recovery.repair_requests import RepairAnswer


class Provider(Protocol):
    """HyperPod's control plane."""

    def cluster(self) -> ProviderCluster:
        """Describe the cluster."""
        ...

    def training_plan(self, arn: str) -> TrainingPlan:
        """Describe a training plan."""
        ...

    def nodes(self) -> tuple[ProviderNode, ...]:
        """Return all nodes with their logical ids. Reads all pages, so only the watch and the sweep call it."""
        ...

    def node(self, instance_id: str) -> ProviderNode | None:
        """Describe one node; None if it does not exist."""
        ...

    def node_in_slot(self, logical_id: str) -> ProviderNode | None:
        """Describe the node that now has a logical id; None if there is none, or it has no instance yet."""
        ...

    def nodes_launched_after(self, at: datetime) -> tuple[ProviderNode, ...]:
        """Return the nodes that were launched after a time. Reads all pages of these nodes."""
        ...

    def reboot(self, instance_id: str) -> RepairAnswer:
        """Request a reboot, without retries. Idempotent: no, because there is no client token; guarded by the lease."""
        ...

    def replace(self, instance_id: str) -> RepairAnswer:
        """Request a replacement, without retries.

        Idempotent: no, because there is no client token; guarded by the lease.
        """
        ...

    def check_health(self, instance_group: str, instance_id: str) -> RepairAnswer:
        """Request a deep health check of one node.

        Idempotent: no, because there is no client token; guarded by the check that the incident records. A second check
        costs hours, but does no harm.
        """
        ...
