"""The manifests of a topology and of the nodes in it: Topology, Node and Pod.

Field names: https://kueue.sigs.k8s.io/docs/reference/ (Topology), versions v1beta1 and v1beta2, and Kubernetes' v1.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.objects import PODS, Taint, TopologyNode
from evenkeel.domain.kueue.topology import HOSTNAME
from evenkeel.domain.queue_simulation.configuration import ResourceRules
from evenkeel.domain.queue_simulation.documents import Document, Quantity
from evenkeel.domain.queue_simulation.node_terms import NodeTaint
from evenkeel.domain.queue_simulation.pod_manifests import PodSpec
from evenkeel.domain.queue_simulation.queue_manifests import KubernetesManifest
from evenkeel.domain.queue_simulation.topology_manifests import TOPOLOGY_ANNOTATIONS

_DEFAULT_PODS = 110
"""The kubelet's default of `maxPods`, for a Node whose allocatable amounts have no `pods`."""


class Level(Document):
    """`Topology.spec.levels[]`."""

    node_label: str = Field(min_length=1)


class TopologySpec(Document):
    """`Topology.spec`."""

    levels: tuple[Level, ...] = Field(min_length=1, max_length=16)

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        labels = [level.node_label for level in self.levels]
        if len(set(labels)) != len(labels):
            raise ValueError("must not have a level twice")
        if HOSTNAME in labels[:-1]:
            raise ValueError(f"must have {HOSTNAME} as its lowest level, if at all")
        return self


class TopologyManifest(KubernetesManifest):
    """A Topology: the node labels that describe how close nodes are to each other, the widest first."""

    kind: Literal["Topology"] = "Topology"
    spec: TopologySpec

    @property
    def levels(self) -> tuple[str, ...]:
        """The node labels, the widest level first."""
        return tuple(level.node_label for level in self.spec.levels)


class NodeSpec(Document):
    """`Node.spec`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset(
        {"podCIDR", "podCIDRs", "providerID", "configSource", "externalID"}
    )
    unschedulable: bool = False
    taints: tuple[NodeTaint, ...] = ()


class NodeConditionManifest(Document):
    """`Node.status.conditions[]`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset(
        {"lastHeartbeatTime", "lastTransitionTime", "reason", "message"}
    )
    type: str
    status: str


class NodeStatus(Document):
    """`Node.status`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset(
        {"capacity", "addresses", "daemonEndpoints", "nodeInfo", "images", "phase", "volumesInUse", "volumesAttached"}
        | {"config", "runtimeHandlers", "features", "declaredFeatures"}
    )
    allocatable: dict[str, Quantity] = {}
    conditions: tuple[NodeConditionManifest, ...] = ()


class NodeManifest(KubernetesManifest):
    """A Node with its labels and the amounts that it offers to pods."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset()
    kind: Literal["Node"] = "Node"
    spec: NodeSpec = Field(default_factory=NodeSpec)
    status: NodeStatus = Field(default_factory=NodeStatus)

    @property
    def labels(self) -> dict[str, str]:
        """The labels. A missing host name is the node's name, as the kubelet sets it."""
        return {HOSTNAME: self.metadata.name} | self.metadata.labels

    @property
    def may_take_pods(self) -> bool:
        """Whether it is ready and not cordoned. Without a condition Ready, it counts as ready."""
        is_ready = all(condition.status == "True" for condition in self.status.conditions if condition.type == "Ready")
        return is_ready and not self.spec.unschedulable

    def matches(self, labels: Mapping[str, str], levels: tuple[str, ...]) -> bool:
        """Whether it belongs to a flavor with these labels and a topology with these levels."""
        own = self.labels
        return all(own.get(key) == value for key, value in labels.items()) and all(level in own for level in levels)

    def to_node(self, used: Mapping[str, int]) -> TopologyNode:
        """Return the node for the scheduler, with the requests of its unmanaged pods."""
        return TopologyNode(
            self.metadata.name,
            self.labels,
            {PODS: _DEFAULT_PODS}
            | {name: quantities.amount(name, quantity) for name, quantity in self.status.allocatable.items()},
            tuple(Taint(taint.key, taint.value, taint.effect) for taint in self.spec.taints),
            used,
        )


class RunningPodSpec(PodSpec):
    """`Pod.spec`."""

    node_name: str = ""


class PodStatus(Document):
    """`Pod.status`."""

    phase: str = ""


class PodManifest(KubernetesManifest):
    """A Pod that already uses a node."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset()
    kind: Literal["Pod"] = "Pod"
    spec: RunningPodSpec
    status: PodStatus = Field(default_factory=PodStatus)

    @property
    def takes_of_node(self) -> dict[str, int]:
        """The amounts that it uses of its node.

        Empty without a node, after its end, or with a topology annotation: then its workload counts.
        """
        has_ended = self.status.phase in ("Succeeded", "Failed")
        if not self.spec.node_name or has_ended or TOPOLOGY_ANNOTATIONS & self.metadata.annotations.keys():
            return {}
        return {**ResourceRules().counted(self.spec.requests()), PODS: 1}
