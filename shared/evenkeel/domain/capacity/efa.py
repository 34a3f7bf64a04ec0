"""EFA: how many network interfaces each pod of a job asks for. Pure.

A job with several nodes asks for EFA. A job with one node does not: its pod talks to no other. A pod that takes a part
of a node's accelerators asks for the same part of its interfaces, rounded down, so that the pods of one node never ask
for more than the node has.

Sources of the counts: EC2's DescribeInstanceTypes (`MaximumEfaInterfaces`), as listed by instance type in
https://karpenter.sh/docs/reference/instance-types/; of the huge pages: the manifests of
https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from evenkeel.domain.capacity.instance_types import shipped
from evenkeel.domain.nodes import KubernetesNode

HUGE_PAGES_MIB = 5120
"""Huge pages of 2 MiB for a pod that takes a whole node: libfabric's buffers."""


class EfaNode(NamedTuple):
    """One node, reduced to what its EFA interfaces follow from."""

    pool: str
    instance_type: str
    accelerators: int = 0
    """Allocatable; counts where the type is not in the catalogue."""
    offered: int = 0
    """Allocatable EFA interfaces; count where nothing else says how many there should be."""

    @classmethod
    def of(cls, node: KubernetesNode) -> "EfaNode":
        """Return a node's facts."""
        return cls(node.pool, node.instance_type, node.accelerators, node.efa)


class EfaRequest(NamedTuple):
    """What one pod asks for, to use EFA."""

    interfaces: int = 0
    """`vpc.amazonaws.com/efa`; 0 = none."""
    huge_pages_mib: int = 0
    """`hugepages-2Mi`; 0 = none."""


NO_EFA = EfaRequest()


def expected_interfaces(machine: EfaNode, by_pool: Mapping[str, int]) -> int:
    """Return how many EFA interfaces a node should offer.

    Args:
        machine: The node.
        by_pool: The policy's `scheduling.efaInterfaces`: counts that differ from the instance type's.
    """
    if machine.pool in by_pool:
        return by_pool[machine.pool]
    known = shipped().of(machine.instance_type)
    if known is None or (known.efa_varies and machine.offered):
        return machine.offered
    return known.efa


def interfaces_per_pod(machine: EfaNode, nodes: int, accelerators: int, by_pool: Mapping[str, int]) -> int:
    """Return how many EFA interfaces each pod of a job asks for.

    Args:
        machine: A node that it may run on.
        nodes: Nodes of the job.
        accelerators: That each pod takes.
        by_pool: As for `expected_interfaces`.
    """
    known = shipped().of(machine.instance_type)
    whole = known.accelerators if known else machine.accelerators
    if nodes < 2 or not whole:
        return 0
    return expected_interfaces(machine, by_pool) * min(accelerators, whole) // whole


def efa_request(
    machine: EfaNode, nodes: int, accelerators: int, by_pool: Mapping[str, int], offered_huge_pages_mib: int = 0
) -> EfaRequest:
    """Return what each pod of a job asks for on nodes like one that is known.

    Huge pages are asked for where the node has set them aside: libfabric does without, and a pod that asks a node for
    pages that it does not have never starts.
    """
    interfaces = interfaces_per_pod(machine, nodes, accelerators, by_pool)
    if not interfaces:
        return NO_EFA
    # Whole pages, in the proportion of the interfaces.
    pages = HUGE_PAGES_MIB * interfaces // expected_interfaces(machine, by_pool) // 2 * 2
    return EfaRequest(interfaces, pages if offered_huge_pages_mib >= pages else 0)


def least_interfaces(machines: Iterable[EfaNode], nodes: int, accelerators: int, by_pool: Mapping[str, int]) -> int:
    """Return how many interfaces a pod may ask for that can run on any of several kinds of node."""
    return min((interfaces_per_pod(each, nodes, accelerators, by_pool) for each in machines), default=0)
