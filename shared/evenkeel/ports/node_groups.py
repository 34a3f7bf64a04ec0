"""EC2 Auto Scaling groups of nodes, with and without an EKS managed node group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from evenkeel.domain.recovery.node_groups import GroupMember, NodeGroup
    from evenkeel.domain.recovery.repair_requests import RepairAnswer


class NodeGroups(Protocol):
    """The groups that launch nodes without HyperPod and Karpenter."""

    def member(self, instance_id: str) -> GroupMember | None:
        """Return the membership of an instance; None if it is in no group.

        Raises:
            Refused: The id is not an instance id.
            NotFound: The tags name a managed node group that does not exist.
        """
        ...

    def group(self, name: str) -> NodeGroup | None:
        """Describe a group; None if it does not exist."""
        ...

    def terminate(self, instance_id: str) -> RepairAnswer:
        """Terminate an instance. Its group keeps the desired capacity and launches another instance.

        Idempotent: yes, because the request names the instance. A repeat never ends another instance. The answer is
        UNKNOWN if there is no reply.
        """
        ...
