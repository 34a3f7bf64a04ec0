"""Find the node in a slot: the node of an incident, or its replacement."""

from collections.abc import Iterable
from datetime import datetime

from evenkeel.domain.nodes import KubernetesNode, NodeLife, ProviderNode
from evenkeel.domain.values import Value

RUNNING_STATUS = "Running"
DEEP_CHECK_RUNNING = "DeepHealthCheckInProgress"


class ObservedNode(Value):
    """A node as both control planes show it; either view may be missing."""

    record: ProviderNode | None = None
    node: KubernetesNode | None = None

    @property
    def is_there(self) -> bool:
        """Whether any control plane shows it."""
        return self.record is not None or self.node is not None

    @property
    def is_running(self) -> bool:
        """Whether the provider calls it Running; a machine without a provider record is judged by Kubernetes alone."""
        return self.record is None or self.record.status == RUNNING_STATUS

    @property
    def is_ready(self) -> bool:
        """Whether it runs and its node is Ready."""
        return self.is_running and self.node is not None and self.node.is_ready

    @property
    def instance_id(self) -> str:
        """Its instance id; empty where there is no machine."""
        if self.record:
            return self.record.instance_id
        return (self.node.instance_id or "") if self.node else ""


class SlotState(Value):
    """A node slot: the faulty node, and its replacement if there is one."""

    original: ObservedNode
    replacement: ObservedNode | None = None


def find_slot_state(
    life: NodeLife,
    slot: str,
    group: str,
    *,
    records: Iterable[ProviderNode],
    nodes: Iterable[KubernetesNode],
    since: datetime,
) -> SlotState:
    """Find the node in a slot.

    The seat is known by its logical id. Without one (a cluster that is not in Continuous mode) only counts can be
    compared: then the first machine of the group launched after `since` is taken for the successor.

    Args:
        life: The life the incident is about.
        slot: Its seat, as `Node.slot` names it.
        group: Its instance group.
        records: HyperPod's list.
        nodes: Node objects of the life's cluster.
        since: When the repair was asked for, or the incident opened.
    """
    records = tuple(records)
    by_machine = {node.instance_id: node for node in nodes if node.instance_id}
    mine = next((each for each in records if each.instance_id == life.instance_id), None)
    other = _find_replacement(life, slot, group, records, since)
    return SlotState(
        original=ObservedNode(record=mine, node=by_machine.get(life.instance_id)),
        replacement=ObservedNode(record=other, node=by_machine.get(other.instance_id)) if other else None,
    )


def _find_replacement(
    life: NodeLife, slot: str, group: str, records: tuple[ProviderNode, ...], since: datetime
) -> ProviderNode | None:
    others = [each for each in records if each.instance_id != life.instance_id]
    prefix = f"{life.cluster}/"
    if slot != life.key and slot.startswith(prefix):
        logical_id = slot.removeprefix(prefix)
        found = [each for each in others if each.logical_id == logical_id]
    elif any(each.instance_id == life.instance_id for each in records):
        return None
    else:
        found = [each for each in others if each.instance_group == group and each.launched_at > since]
    return min(found, key=lambda each: (each.status != RUNNING_STATUS, each.launched_at), default=None)
