"""EFA: how many network interfaces each pod of a job requests. Pure.

A job with several nodes requests EFA. A job with one node does not: its pod communicates with no other pod. A pod that
uses a part of a node's accelerators requests the same part of its interfaces, rounded down. So the pods of one node
never request more interfaces than the node has.

Source of the counts: EC2's DescribeInstanceTypes (`MaximumEfaInterfaces`), as listed by instance type in
https://karpenter.sh/docs/reference/instance-types/. Source of the huge pages: the manifests of
https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from evenkeel.domain.capacity.instance_types import shipped_instance_types
from evenkeel.domain.nodes import KubernetesNode

HUGE_PAGES_MIB = 5120
"""Huge pages of 2 MiB for a pod that uses a whole node: libfabric's buffers."""


class EfaNode(NamedTuple):
    """The properties of a node that determine its EFA interfaces."""

    pool: str
    instance_type: str
    accelerators: int = 0
    """Allocatable; used only if the instance type is not in the catalogue."""
    allocatable_interfaces: int = 0
    """Used only if no other source states the number."""

    @classmethod
    def of(cls, node: KubernetesNode) -> "EfaNode":
        """Return the facts of a Kubernetes node that determine its EFA interfaces."""
        return cls(node.pool, node.instance_type, node.accelerators, node.efa)


class EfaRequest(NamedTuple):
    """The resources that one pod requests for EFA."""

    interfaces: int = 0
    """`vpc.amazonaws.com/efa`; 0 = none."""
    huge_pages_mib: int = 0
    """`hugepages-2Mi`; 0 = none."""


NO_EFA = EfaRequest()


def expected_interfaces(node: EfaNode, by_pool: Mapping[str, int]) -> int:
    """Return how many EFA interfaces a node should offer.

    Args:
        node: The node.
        by_pool: The policy's `scheduling.efaInterfaces`: counts that differ from the instance type's.
    """
    if node.pool in by_pool:
        return by_pool[node.pool]
    instance_type = shipped_instance_types().find(node.instance_type)
    if instance_type is None or (instance_type.efa_varies and node.allocatable_interfaces):
        return node.allocatable_interfaces
    return instance_type.efa


def interfaces_per_pod(node: EfaNode, nodes: int, accelerators: int, by_pool: Mapping[str, int]) -> int:
    """Return how many EFA interfaces each pod of a job requests.

    Args:
        node: A node that the job may run on.
        nodes: Number of nodes of the job.
        accelerators: Accelerators of each pod.
        by_pool: Expected interfaces by pool, as in `expected_interfaces`.
    """
    instance_type = shipped_instance_types().find(node.instance_type)
    total = instance_type.accelerators if instance_type else node.accelerators
    if nodes < 2 or not total:
        return 0
    return expected_interfaces(node, by_pool) * min(accelerators, total) // total


def efa_request(
    node: EfaNode, nodes: int, accelerators: int, by_pool: Mapping[str, int], offered_huge_pages_mib: int = 0
) -> EfaRequest:
    """Return the EFA resources that each pod of a job requests on nodes like this node.

    Huge pages are requested only if the node offers them. libfabric works without them, and a pod that requests missing
    pages never starts.
    """
    interfaces = interfaces_per_pod(node, nodes, accelerators, by_pool)
    if not interfaces:
        return NO_EFA
    # Whole pages, in the proportion of the interfaces.
    pages = HUGE_PAGES_MIB * interfaces // expected_interfaces(node, by_pool) // 2 * 2
    return EfaRequest(interfaces, pages if offered_huge_pages_mib >= pages else 0)


def min_interfaces(efa_nodes: Iterable[EfaNode], nodes: int, accelerators: int, by_pool: Mapping[str, int]) -> int:
    """Return how many interfaces a pod may request so that it can run on each of several kinds of node."""
    return min((interfaces_per_pod(node, nodes, accelerators, by_pool) for node in efa_nodes), default=0)
