"""Node capacity: the free accelerators of a node, and whether pods may start on it."""

from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.values import Instant, Value

TAINTED = "tainted"
"""Why a node accepts only pods that tolerate its taints."""


UNHEALTHY = "unhealthy"
"""Why a node accepts no pods: it needs a repair that is not under way, whether it is cordoned or not."""


class NodeCapacity(Value):
    """The capacity of a node, for admission."""

    life: NodeLife
    node_name: str
    cluster: str
    pool: str
    instance_type: str
    accelerators: int
    """Allocatable when the node is in service; 0 if no node object states it yet."""
    free: int
    """Accelerators that neither a pod nor an attempt's charge uses."""
    unschedulable_reason: str = ""
    """Why no pod may start on it now; empty if pods may."""
    labels: dict[str, str] = {}
    """Labels of its node object. Flavors select nodes by them."""
    taints: tuple[str, ...] = ()
    """`key=value:Effect` of the taints that keep off pods without a toleration."""
    efa: int | None = None
    """EFA interfaces that its node object offers; None if no node object states it yet."""
    reserved_for: str = ""
    """Job this node is reserved for; empty if unreserved."""
    usable_until: Instant | None = None
    """When jobs must have left the node; None if no end is known."""

    @property
    def is_open(self) -> bool:
        """Whether a pod may start on it now."""
        return not self.unschedulable_reason

    @property
    def is_unused(self) -> bool:
        """Whether no workload uses it."""
        return self.is_open and self.free == self.accelerators
