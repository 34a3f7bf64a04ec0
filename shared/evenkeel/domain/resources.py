"""Accelerators, CPU and memory: amounts that nodes offer, and that pods request."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

from evenkeel.domain.values import Value

_NodeKey = TypeVar("_NodeKey", bound=Hashable)


class Resources(Value):
    """Accelerators, CPU and memory of a node, or of one pod or several."""

    accelerators: int = 0
    """GPUs or Neuron devices."""
    cpu_millis: int = 0
    """Thousandths of a vCPU."""
    memory_mib: int = 0

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(
            accelerators=self.accelerators + other.accelerators,
            cpu_millis=self.cpu_millis + other.cpu_millis,
            memory_mib=self.memory_mib + other.memory_mib,
        )

    @property
    def cpu(self) -> float | None:
        """vCPU; None if no amount is stated."""
        return self.cpu_millis / 1000 if self.cpu_millis else None

    @property
    def memory_gib(self) -> float | None:
        """Memory in GiB, to a tenth; None if no amount is stated."""
        return round(self.memory_mib / 1024, 1) if self.memory_mib else None

    def minus(self, other: "Resources") -> "Resources":
        """Return the rest of each amount, at least 0."""
        return Resources(
            accelerators=max(0, self.accelerators - other.accelerators),
            cpu_millis=max(0, self.cpu_millis - other.cpu_millis),
            memory_mib=max(0, self.memory_mib - other.memory_mib),
        )

    def at_most(self, other: "Resources") -> "Resources":
        """Return the smaller amount of each resource."""
        return Resources(
            accelerators=min(self.accelerators, other.accelerators),
            cpu_millis=min(self.cpu_millis, other.cpu_millis),
            memory_mib=min(self.memory_mib, other.memory_mib),
        )

    def at_least(self, other: "Resources") -> "Resources":
        """Return the larger amount of each resource."""
        return Resources(
            accelerators=max(self.accelerators, other.accelerators),
            cpu_millis=max(self.cpu_millis, other.cpu_millis),
            memory_mib=max(self.memory_mib, other.memory_mib),
        )


NONE = Resources()


def why_too_small(requested: Resources, free: Resources, allocatable: Resources) -> str:
    """Return in a few words what is not free on a node for a pod; empty if the pod fits.

    Args:
        requested: The amounts that the pod requests.
        free: The free amounts of the node.
        allocatable: The allocatable amounts of the node. An amount of CPU or memory of 0 is not stated, so it limits no
            pod.
    """
    if free.accelerators < requested.accelerators:
        return "in use"
    if allocatable.cpu_millis and free.cpu_millis < requested.cpu_millis:
        return "short of CPU"
    if allocatable.memory_mib and free.memory_mib < requested.memory_mib:
        return "short of memory"
    return ""


def sum_by_node(parts: Iterable[tuple[_NodeKey, Resources]]) -> dict[_NodeKey, Resources]:
    """Return the sum of the amounts on each node."""
    totals: dict[_NodeKey, Resources] = {}
    for node, resources in parts:
        totals[node] = totals[node] + resources if node in totals else resources
    return totals
