"""The free accelerators of one node."""

from evenkeel.domain.nodes import NodeLife
from evenkeel.domain.values import Instant, Value

TAINTED = "tainted"
"""Why a machine is closed to those alone who do not tolerate its taints."""


UNHEALTHY = "unhealthy"
"""Why a node is closed that needs a repair and gets none, cordoned or not."""


class NodeCapacity(Value):
    """One machine as admission sees it."""

    life: NodeLife
    node_name: str
    cluster: str
    pool: str
    instance_type: str
    accelerators: int
    """Allocatable when it is in service; 0 where no node object says so yet."""
    free: int
    """Neither used by a pod nor charged to an attempt."""
    unschedulable_reason: str = ""
    """Why no pod may start on it now; empty where one may."""
    labels: dict[str, str] = {}
    """Of its node object: what flavors tell machines by."""
    taints: tuple[str, ...] = ()
    """`key=value:Effect`: those that keep pods off which do not tolerate them."""
    efa: int | None = None
    """EFA interfaces that its node object offers; None where no node object says so yet."""
    reserved_for: str = ""
    """The job that it was rented for: nobody else may have it; empty where it is anybody's."""
    usable_until: Instant | None = None
    """When work must have left it; None where nothing says that it goes."""

    @property
    def is_open(self) -> bool:
        """Whether a pod may start on it now."""
        return not self.unschedulable_reason

    @property
    def is_unused(self) -> bool:
        """Whether nothing at all uses it."""
        return self.is_open and self.free == self.accelerators
