"""How a person opts a node out of automation: with a label, or by removing Evenkeel's cordon."""

from collections.abc import Container, Iterable, Mapping

from evenkeel.domain.health.incidents import Incident
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.domain.recovery.plan import NodeOwner

AUTOMATION_LABEL = "evenkeel.io/automation"
"""Label of a node. The value `off` opts the node out. Set it in the template of a NodePool or group for all nodes."""


def is_opted_out(labels: Mapping[str, str]) -> bool:
    """Whether the labels of a node opt it out of automation."""
    return labels.get(AUTOMATION_LABEL, "").lower() == "off"


def opted_out_pools(nodes: Iterable[tuple[str, Mapping[str, str]]]) -> frozenset[str]:
    """Return the pools of which every node is opted out. Each node is given by its pool and its labels."""
    opted_out: set[str] = set()
    automated_pools: set[str] = set()
    for pool, labels in nodes:
        (opted_out if is_opted_out(labels) else automated_pools).add(pool)
    return frozenset(opted_out - automated_pools)


def opt_out_reason(
    incident: Incident,
    own_node: KubernetesNode | None,
    nodes: Iterable[KubernetesNode] = (),
    *,
    pools: Container[str] | None = None,
) -> str:
    """Return how a person opted out of this recovery, as one sentence; empty if no person did.

    Args:
        incident: The incident.
        own_node: Its node; None if the node is gone. Then the other nodes of its pool show whether the pool opted out.
        nodes: All nodes of its cluster; not needed with `pools`.
        pools: The pools that opted out, if they are known without `nodes`.
    """
    if own_node is None:
        if pools is None:
            pools = opted_out_pools((node.pool, node.labels) for node in nodes)
        is_off = incident.pool in pools
        return (
            f"Pool {incident.pool} has the label {AUTOMATION_LABEL}=off, so Evenkeel leaves it alone." if is_off else ""
        )
    if is_opted_out(own_node.labels):
        return f"Node {own_node.name} has the label {AUTOMATION_LABEL}=off, so Evenkeel leaves it alone."
    if was_uncordoned(incident, own_node):
        return f"Node {own_node.name} was uncordoned during its recovery, so Evenkeel leaves it alone."
    return ""


def was_uncordoned(incident: Incident, node: KubernetesNode) -> bool:
    """Whether a person removed Evenkeel's cordon. Kubernetes does not record the person.

    A node object that is younger than the cordon never had it: the kubelet registered the node again. Another
    controller that repairs the node removes the cordon at the end of its repair.
    """
    if incident.plan is not None and incident.plan.owner == NodeOwner.CONTROLLER:
        return False
    marked_at = incident.cordon_marked_at
    if marked_at is None or node.is_cordoned or incident.node_branch:
        return False
    return node.created_at is None or node.created_at <= marked_at
