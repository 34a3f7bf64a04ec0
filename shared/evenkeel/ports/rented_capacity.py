"""Rented nodes in a Kubernetes cluster: capacity pods, NodePool limits and NodeClaims of Karpenter."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CapacitySpec:
    """Capacity pods of a rental: one pod per node, which takes the whole node. They make Karpenter launch the nodes."""

    cluster: str
    namespace: str
    name: str
    """Name of the rental."""
    pool: str
    nodes: int
    accelerators: int
    """Accelerators of one node."""
    accelerator_resource: str
    image: str
    efa: int = 0
    """EFA interfaces of one node. Karpenter attaches them only if the pod requests them."""


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """A node that Karpenter has requested for a pool, or that already runs."""

    name: str
    node_name: str = ""
    """Name of the node object; empty until the node joins its cluster."""


class LimitResult(StrEnum):
    """Result of setting a pool's limit."""

    SET = "SET"
    UNCHANGED = "UNCHANGED"
    UNBOUNDED = "UNBOUNDED"
    """The pool has no limit of accelerators or nodes. It stays unchanged, and Evenkeel does not rent from it."""
    GONE = "GONE"


class RentedCapacity(Protocol):
    """The operations of renting in a Kubernetes cluster."""

    def create_capacity_pods(self, spec: CapacitySpec) -> None:
        """Create the capacity pods of a rental. Idempotent: yes, by name."""
        ...

    def delete_capacity_pods(self, cluster: str, namespace: str, name: str) -> bool:
        """Delete the capacity pods of a rental. Return whether none is left. Idempotent: yes, gone is success."""
        ...

    def label_rented_nodes(self, cluster: str, names: Iterable[str], rental: str) -> None:
        """Label nodes with the name of their rental, so that a node selector can name them.

        Idempotent: yes, it patches the version that it reads. A node that is gone is skipped.
        """
        ...

    def set_pool_limit(self, cluster: str, pool: str, rented: Callable[[], tuple[int, int]]) -> LimitResult:
        """Set the limits of a NodePool to the nodes and accelerators that are rented in it.

        Idempotent: yes, by the pool's resourceVersion: after a concurrent change, the rented nodes are counted again.

        Args:
            cluster: The cluster.
            pool: Name of the NodePool.
            rented: Counts the rented nodes and accelerators. The adapter calls it after it has read the pool.
        """
        ...

    def node_claims(self, cluster: str, pool: str) -> tuple[NodeClaim, ...]:
        """Return the NodeClaims of a NodePool, with and without a node."""
        ...

    def delete_node_claim(self, cluster: str, name: str) -> None:
        """Make Karpenter drain a node and terminate it. Idempotent: yes, gone is success."""
        ...

    def latest_capacity_refusal(self, cluster: str, pool: str, since: datetime) -> str:
        """Return Karpenter's error if it found no capacity for a pool since a time; empty if there is none."""
        ...
