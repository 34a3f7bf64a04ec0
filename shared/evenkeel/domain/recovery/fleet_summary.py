"""The facts about the whole fleet that a recovery needs, so that it need not list the fleet."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from evenkeel.domain.nodes import FleetNode
from evenkeel.domain.recovery.opt_out import opted_out_pools
from evenkeel.domain.recovery.validation import most_accelerators
from evenkeel.domain.values import Value


class FleetSummary(Value):
    """The fleet as the last sweep saw it. The sweep's heartbeat shows how old this summary is."""

    nodes: dict[str, int] = {}
    """Pool → number of its nodes that can be acted on."""
    opted_out: tuple[str, ...] = ()
    """The pools of which every node is opted out of automation."""
    accelerators: dict[str, int] = {}
    """Instance type → the most accelerators that a Ready node of the type offers."""

    @classmethod
    def of(cls, nodes: Iterable[FleetNode], now: datetime, *, boot_seconds: int) -> "FleetSummary":
        """Summarise the present nodes. A node younger than `boot_seconds` that is not Ready yet counts as booting."""
        nodes = tuple(nodes)
        sizes = Counter(node.pool for node in nodes if node.can_be_acted_on(now, boot_seconds=boot_seconds))
        types_and_accelerators = (
            (node.instance_type, node.accelerators) for node in nodes if node.is_ready and node.accelerators
        )
        return cls(
            nodes=dict(sorted(sizes.items())),
            opted_out=tuple(sorted(opted_out_pools((node.pool, node.labels) for node in nodes))),
            accelerators=dict(sorted(most_accelerators(types_and_accelerators).items())),
        )
