"""The share of a node that a pod requests if its job states no CPU or memory."""

import functools
from collections.abc import Iterable
from fractions import Fraction

from evenkeel.domain.capacity.instance_types import InstanceType, shipped_instance_types
from evenkeel.domain.capacity.node_capacity import NodeCapacity
from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.resources import NONE, Resources

_MIB_PER_GIB = 1024
_CPU_BANDS = ((1, Fraction(30, 100)), (1, Fraction(15, 100)), (1, Fraction(10, 100)), (1, Fraction(10, 100)))
_CPU_BASE, _CPU_REST = Fraction(10, 100), Fraction(6, 100)
_MEMORY_BANDS = ((4, Fraction(30, 100)), (4, Fraction(25, 100)), (8, Fraction(20, 100)), (112, Fraction(17, 100)))
_MEMORY_BASE, _MEMORY_REST = Fraction(1, 2), Fraction(7, 100)
_WITHOUT_ACCELERATORS = Resources(cpu_millis=1000, memory_mib=4096)
"""Request of a pod whose job names no accelerators, no CPU and no memory."""


def whole_machine(instance_type: InstanceType) -> Resources:
    """Return everything that an instance of a type has."""
    return Resources(
        accelerators=instance_type.accelerators,
        cpu_millis=instance_type.vcpu * 1000,
        memory_mib=int(instance_type.memory_gib * _MIB_PER_GIB),
    )


@functools.lru_cache(maxsize=1024)
def available_to_pods(node: Resources) -> Resources:
    """Return the amounts of a node that users' pods can request, after the node's own software.

    The allowance equals the HyperPod command line's: it leaves 179.97 of 192 vCPU, and 1,890.26 of 2,048 GiB.
    """
    cpu = Fraction(node.cpu_millis, 1000)
    memory = Fraction(node.memory_mib, _MIB_PER_GIB)
    cpu_left = cpu - _reserved_amount(cpu, _CPU_BASE, _CPU_BANDS, _CPU_REST)
    memory_left = memory - _reserved_amount(memory, _MEMORY_BASE, _MEMORY_BANDS, _MEMORY_REST)
    return Resources(
        accelerators=node.accelerators,
        cpu_millis=max(0, int(cpu_left * 1000)),
        memory_mib=max(0, int(memory_left * _MIB_PER_GIB)),
    )


def _reserved_amount(
    total: Fraction, base: Fraction, bands: tuple[tuple[int, Fraction], ...], of_the_rest: Fraction
) -> Fraction:
    """Return a base, plus a fraction of each band of an amount."""
    share, remainder = base, total
    for size, fraction in bands:
        slice_size = min(remainder, Fraction(size))
        share += slice_size * fraction
        remainder -= slice_size
    return share + remainder * of_the_rest


@functools.lru_cache(maxsize=4096)
def complete_request(requested: Resources, node: Resources, stated: Resources = NONE) -> Resources:
    """Return a pod's request on a node, with the CPU and the memory that its job does not state.

    An amount that is not stated follows from the largest stated share, as in HyperPod task governance. A request
    for all accelerators leaves room for the node's own software.

    Args:
        requested: The request. 0 CPU or memory = open.
        node: Everything that the node has.
        stated: The allocatable amounts of its node object; 0 = not stated. An open amount never exceeds its share.
    """
    usable = available_to_pods(node)
    usable = usable.replace(
        cpu_millis=min(usable.cpu_millis, stated.cpu_millis or usable.cpu_millis),
        memory_mib=min(usable.memory_mib, stated.memory_mib or usable.memory_mib),
    )
    if not (requested.accelerators or requested.cpu_millis or requested.memory_mib):
        return _WITHOUT_ACCELERATORS.at_most(usable)
    share = max(
        _share_of_node(requested.accelerators, node.accelerators),
        _share_of_node(requested.cpu_millis, node.cpu_millis),
        _share_of_node(requested.memory_mib, node.memory_mib),
    )
    return Resources(
        accelerators=requested.accelerators,
        cpu_millis=requested.cpu_millis or int(share * usable.cpu_millis),
        memory_mib=requested.memory_mib or int(share * usable.memory_mib),
    )


def _share_of_node(amount: int, total: int) -> Fraction:
    return min(Fraction(1), Fraction(amount, total)) if total else Fraction(0)


def smallest_request(requested: Resources, nodes: Iterable[tuple[Resources, Resources]]) -> Resources:
    """Return the one request of a pod for all nodes: the smallest of its requests on the nodes that fit.

    Requests are no limits: on a larger node the pod may use idle CPU and memory beyond its request.

    Args:
        requested: The request. 0 CPU or memory = open.
        nodes: All resources of each node, and the amounts that its node object states.
    """
    requests = [
        complete_request(requested, node, stated) for node, stated in nodes if _is_large_enough(node, requested)
    ]
    if not requests:
        return requested
    smallest_resources = requests[0]
    for resources in requests[1:]:
        smallest_resources = smallest_resources.at_most(resources)
    return smallest_resources


def _is_large_enough(node: Resources, requested: Resources) -> bool:
    return (
        node.accelerators >= requested.accelerators
        and node.cpu_millis >= requested.cpu_millis
        and node.memory_mib >= requested.memory_mib
    )


class NodeShares:
    """The CPU and memory that pods request on the nodes of a fleet if their jobs do not state them."""

    def __init__(self, capacities: Iterable[NodeCapacity], pools: Iterable[Pool] = ()) -> None:
        """Read the amounts of the nodes, and of pools without a node.

        Args:
            capacities: Nodes of the fleet.
            pools: Pools whose nodes may be rented.
        """
        self._amounts: dict[tuple[str, str], Resources] = {}
        """(cluster, instance type) → everything that such a node has."""
        self._stated: dict[tuple[str, str], Resources] = {}
        """(cluster, instance type) → the smallest amounts that such a node states."""
        self._found: dict[tuple[str, tuple[str, ...], Resources], Resources] = {}
        last_allocatable: dict[tuple[str, str], Resources] = {}
        for capacity in capacities:
            type_key = (capacity.cluster, capacity.instance_type)
            if last_allocatable.get(type_key) == capacity.allocatable:
                continue  # most nodes of a type offer the same
            last_allocatable[type_key] = capacity.allocatable
            largest = self._amounts.get(type_key, NONE).at_least(capacity.allocatable)
            self._amounts[type_key] = amounts_of(capacity.instance_type, largest)
            if capacity.allocatable.cpu_millis and capacity.allocatable.memory_mib:
                self._stated[type_key] = self._stated.get(type_key, capacity.allocatable).at_most(capacity.allocatable)
        for pool in pools:
            type_key = (pool.cluster, pool.instance_type)
            if type_key not in self._amounts:
                self._amounts[type_key] = amounts_of(
                    pool.instance_type, Resources(accelerators=pool.accelerators_per_node)
                )

    def request_of(self, requested: Resources, cluster: str, instance_types: tuple[str, ...] = ()) -> Resources:
        """Return the request of a pod, with the CPU and the memory that its job does not state.

        Args:
            requested: The amounts that the job names; 0 = open.
            cluster: Cluster of the job.
            instance_types: The types that the job may run on; empty = any.
        """
        key = (cluster, instance_types, requested)
        if key not in self._found:
            nodes = [
                (node, self._stated.get((node_cluster, instance_type), NONE))
                for (node_cluster, instance_type), node in self._amounts.items()
                if node_cluster == cluster and (not instance_types or instance_type in instance_types)
            ]
            # A job may name types of which the fleet shows no node yet, for example where Kueue admits.
            node_resources = nodes or [(amounts_of(instance_type, NONE), NONE) for instance_type in instance_types]
            self._found[key] = smallest_request(requested, node_resources)
        return self._found[key]


def amounts_of(instance_type: str, stated: Resources) -> Resources:
    """Return all resources of a node: as the catalogue states, else as its node object states.

    Args:
        instance_type: The instance type, with or without `ml.`.
        stated: The allocatable amounts of its node object.
    """
    hardware = shipped_instance_types().find(instance_type)
    return whole_machine(hardware) if hardware else stated


def expected_offer(instance_type: str, accelerators: int) -> Resources:
    """Return the amounts that a future node will offer to pods. CPU and memory of an unknown type are 0."""
    hardware = shipped_instance_types().find(instance_type)
    usable = available_to_pods(whole_machine(hardware)) if hardware else NONE
    return usable.replace_unchecked(accelerators=accelerators)
