"""The part of Karpenter that renting uses: pools with limits, capacity pods, and nodes."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from evenkeel.domain.external.burst_check_protocol import RENTAL_NODE_LABEL
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.ports import CapacitySpec, LimitResult, NodeClaim


class FakeCapacity:
    """The renting part of the fake cluster. A test launches the machines with `launch_rented`."""

    by_name: dict[tuple[str, str], KubernetesNode]
    calls: list[tuple[Any, ...]]

    def __init__(self) -> None:
        self.limits: dict[tuple[str, str], tuple[int, int] | None] = {}
        """Limits of a NodePool in nodes and accelerators; None = unbounded. Absent = the pool does not exist."""
        self.capacity: dict[str, CapacitySpec] = {}
        """Capacity pods, by the name of their Job."""
        self.claimed: dict[str, tuple[str, NodeClaim]] = {}
        """Machines by claim: the pool, and the claim."""
        self.refusals: dict[str, tuple[datetime, str]] = {}
        """By pool: time and message of the last refusal."""
        self.slow_to_go = False
        """Whether a released machine stays until `go()`."""
        self.going: list[str] = []

    def create_capacity_pods(self, spec: CapacitySpec) -> None:
        if spec.name not in self.capacity:
            self.capacity[spec.name] = spec
            self.calls.append(("create_capacity_pods", spec.name, spec.pool))

    def delete_capacity_pods(self, cluster: str, namespace: str, name: str) -> bool:
        if self.capacity.pop(name, None) is not None:
            self.calls.append(("delete_capacity_pods", name))
        return True

    def label_rented_nodes(self, cluster: str, names: Iterable[str], rental: str) -> None:
        for name in names:
            node = self.by_name.get((cluster, name))
            if node is not None and node.labels.get(RENTAL_NODE_LABEL) != rental:
                self.by_name[cluster, name] = node.replace(labels={**node.labels, RENTAL_NODE_LABEL: rental})
                self.calls.append(("label_rented_node", name, rental))

    def set_pool_limit(self, cluster: str, pool: str, rented: Callable[[], tuple[int, int]]) -> LimitResult:
        if (cluster, pool) not in self.limits:
            return LimitResult.GONE
        before = self.limits[cluster, pool]
        wanted = rented()
        if before is None:
            return LimitResult.UNBOUNDED
        if before == wanted:
            return LimitResult.UNCHANGED
        self.limits[cluster, pool] = wanted
        self.calls.append(("set_pool_limit", pool, *wanted))
        return LimitResult.SET

    def node_claims(self, cluster: str, pool: str) -> tuple[NodeClaim, ...]:
        return tuple(claim for name, (of, claim) in sorted(self.claimed.items()) if of == pool)

    def delete_node_claim(self, cluster: str, name: str) -> None:
        if name in self.claimed:
            self.calls.append(("delete_node_claim", name))
            self.going.append(name)
            if not self.slow_to_go:
                self.go()

    def latest_capacity_refusal(self, cluster: str, pool: str, since: datetime) -> str:
        at, message = self.refusals.get(pool, (since, ""))
        return message if at >= since else ""

    # ------------------------------------------------------------ for tests

    def launch_rented(self, node: KubernetesNode) -> None:
        """Add a node of a pool."""
        self.by_name[node.cluster, node.name] = node
        name = f"{node.pool}-{len(self.claimed):05d}"
        self.claimed[name] = (node.pool, NodeClaim(name=name, node_name=node.name))

    def go(self) -> None:
        """Remove the nodes of ended rentals."""
        for name in self.going:
            _, claim = self.claimed.pop(name, ("", NodeClaim(name="")))
            for node_ref in [node_ref for node_ref in self.by_name if node_ref[1] == claim.node_name]:
                self.remove_node(claim.node_name, node_ref[0])
        self.going.clear()

    def remove_node(self, name: str, cluster: str) -> None:
        raise NotImplementedError
