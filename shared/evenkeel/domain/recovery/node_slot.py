"""Find the node in a slot: the node of an incident, or its replacement."""

from collections.abc import Iterable
from datetime import datetime

from pydantic import Field

from evenkeel.domain.nodes import KubernetesNode, NodeLife, ProviderNode
from evenkeel.domain.values import Value

RUNNING_STATUS = "Running"
DEEP_CHECK_RUNNING = "DeepHealthCheckInProgress"


class ObservedNode(Value):
    """A node as both control planes show it; either view may be missing."""

    provider_node: ProviderNode | None = Field(default=None, alias="record")
    node: KubernetesNode | None = None

    @property
    def is_listed(self) -> bool:
        """Whether any control plane lists the node."""
        return self.provider_node is not None or self.node is not None

    @property
    def is_running(self) -> bool:
        """Whether the provider's status is Running. True for a node without a provider record."""
        return self.provider_node is None or self.provider_node.status == RUNNING_STATUS

    @property
    def is_ready(self) -> bool:
        """Whether the node is running, and Ready in Kubernetes."""
        return self.is_running and self.node is not None and self.node.is_ready

    @property
    def instance_id(self) -> str:
        """Instance id of the node; empty if there is no node."""
        if self.provider_node:
            return self.provider_node.instance_id
        return (self.node.instance_id or "") if self.node else ""


class SlotState(Value):
    """A node slot: the faulty node, and its replacement if there is one."""

    original: ObservedNode
    replacement: ObservedNode | None = None


def find_slot_state(
    life: NodeLife,
    slot_id: str,
    group: str,
    *,
    provider_nodes: Iterable[ProviderNode],
    nodes: Iterable[KubernetesNode],
    since: datetime,
) -> SlotState:
    """Find the original node and the replacement of a node slot.

    HyperPod's logical id identifies a slot. A cluster that is not in Continuous mode has no logical ids. There, the
    first node of the group that was launched after `since` counts as the replacement.

    Args:
        life: The node life of the incident.
        slot_id: Its node slot, as in `Node.slot`.
        group: Its instance group.
        provider_nodes: HyperPod's list of nodes.
        nodes: Node objects of the same Kubernetes cluster.
        since: Time of the repair request, or the time at which the incident opened.
    """
    provider_nodes = tuple(provider_nodes)
    by_instance_id = {node.instance_id: node for node in nodes if node.instance_id}
    original = next(
        (provider_node for provider_node in provider_nodes if provider_node.instance_id == life.instance_id), None
    )
    replacement = _find_replacement(life, slot_id, group, provider_nodes, since)
    return SlotState(
        original=ObservedNode(provider_node=original, node=by_instance_id.get(life.instance_id)),
        replacement=ObservedNode(provider_node=replacement, node=by_instance_id.get(replacement.instance_id))
        if replacement
        else None,
    )


def _find_replacement(
    life: NodeLife, slot_id: str, group: str, provider_nodes: tuple[ProviderNode, ...], since: datetime
) -> ProviderNode | None:
    nodes = [provider_node for provider_node in provider_nodes if provider_node.instance_id != life.instance_id]
    prefix = f"{life.cluster}/"
    if slot_id != life.key and slot_id.startswith(prefix):
        logical_id = slot_id.removeprefix(prefix)
        candidates = [other for other in nodes if other.logical_id == logical_id]
    elif any(provider_node.instance_id == life.instance_id for provider_node in provider_nodes):
        return None
    else:
        candidates = [other for other in nodes if other.instance_group == group and other.launched_at > since]
    return min(
        candidates, key=lambda candidate: (candidate.status != RUNNING_STATUS, candidate.launched_at), default=None
    )
