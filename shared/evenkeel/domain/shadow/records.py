"""Records of exports that the backtest reads besides facts: actions on nodes, and states of node objects.

A source names the node by its instance id, by HyperPod's logical id or by the name of its node object.
"""

from typing import TypeAlias

from evenkeel.domain.health.group_facts import GroupFact
from evenkeel.domain.health.incidents import NodeFact
from evenkeel.domain.shadow.shadow_cases import NodeEvent
from evenkeel.domain.values import Instant, Value


class NodeAction(Value):
    """An action on one node, as an audit log or a controller records it. Exactly one of the three names is set."""

    event: NodeEvent
    instance_id: str = ""
    logical_id: str = ""
    node_name: str = ""
    is_planned: bool = False
    """Whether the action is planned work, and no repair."""


class ReadinessChange(Value):
    """A node became Ready or NotReady."""

    node_name: str
    is_ready: bool
    evidence: str


class NodeSnapshot(Value):
    """A node object at one time."""

    cluster: str
    node_name: str
    instance_id: str
    created_at: Instant | None = None
    pool: str = ""
    instance_type: str = ""
    boot_id: str = ""
    is_hyperpod: bool = False
    is_karpenter: bool = False
    is_ready: bool = False
    not_ready_since: Instant | None = None
    is_cordoned: bool = False
    cordoned_at: Instant | None = None
    """Time of the cordon, if the object shows it."""
    is_manual_cordon: bool = False
    has_fault_marks: bool = False
    is_deleted: bool = False
    """The watch reported that the object is deleted."""

    @property
    def is_in_service(self) -> bool:
        """Whether the node takes work and shows no fault."""
        return self.is_ready and not (self.is_cordoned or self.has_fault_marks or self.is_deleted)


Content: TypeAlias = NodeFact | GroupFact | NodeAction | ReadinessChange | NodeSnapshot


class ExportedRecord(Value):
    """A record of an export."""

    key: str
    """Identity of the record, in every export that contains it."""
    at: Instant
    """Time from which Evenkeel could know it."""
    content: Content
