"""Nodes: their identity, their slots, and their state in Kubernetes and HyperPod."""

import itertools
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.resources import NONE, Resources
from evenkeel.domain.values import Instant, Value

INCIDENT_ANNOTATION = "evenkeel.io/incident"
"""Evenkeel's cordon annotation. A cordon without it belongs to a person, and Evenkeel does not change it."""

AWAITING_VALIDATION_TAINT = "evenkeel.io/awaiting-validation"
"""Taint that instance groups and NodePools set on new nodes. Evenkeel removes it after a passed validation."""

KARPENTER_LABEL = "karpenter.sh/nodepool"
"""Label of Karpenter on its nodes. Its value is the name of their pool."""

NETWORK_LAYER_LABEL = "topology.k8s.aws/network-node-layer-"
"""Start of the labels of EKS that name the network nodes above a node. The number of the layer follows.

Source: https://docs.aws.amazon.com/eks/latest/userguide/ml-workload-topology.html
"""
NETWORK_LAYERS = 4
"""Most instance types have three layers, some have four."""
ULTRA_SERVER_LABEL = "topology.k8s.aws/ultraserver-id"
"""Label of HyperPod that names the UltraServer of a node."""

INSTANCE_ID = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})", re.ASCII)

_PROVIDER_ID = re.compile(
    r"aws:///([^/]+)/(?:sagemaker/cluster/hyperpod-([a-z0-9]{12})-)?(i-[0-9a-f]{8}(?:[0-9a-f]{9})?)", re.ASCII
)


_SWEEP_MAX_AGE = timedelta(seconds=150)
"""Age up to which facts of the last sweep may replace a call: sweeps run each minute, and two of them may fail."""


class ProviderId(NamedTuple):
    """The parts of a Kubernetes `spec.providerID`."""

    zone: str
    hyperpod_cluster_id: str | None
    instance_id: str


def parse_provider_id(provider_id: str) -> ProviderId | None:
    """Parse the providerID of a HyperPod or EC2 node; None for any other format.

    Source: kubernetes/autoscaler#7540 for the format of HyperPod.
    """
    match = _PROVIDER_ID.fullmatch(provider_id)
    return ProviderId(*match.groups()) if match else None


class NodeLife(Value):
    """Identity of one node from its launch to its end. A reboot keeps it; a replacement node has another one."""

    cluster: str
    """Name of the Kubernetes cluster that the node joined."""
    instance_id: str
    launched_at: Instant

    @property
    def key(self) -> str:
        """`<cluster>/<instance id>/<launch time in epoch seconds>`: the id of this node life in rows and records."""
        return f"{self.cluster}/{self.instance_id}/{int(self.launched_at.timestamp())}"

    @classmethod
    def from_key(cls, key: str) -> "NodeLife":
        """Parse a node life from its key."""
        cluster, instance_id, launched_text = key.rsplit("/", 2)
        return cls.model_validate(
            {
                "cluster": cluster,
                "instance_id": instance_id,
                "launched_at": datetime.fromtimestamp(int(launched_text), UTC),
            }
        )


class ProviderNode(Value):
    """A node as HyperPod's control plane lists it."""

    instance_id: str
    logical_id: str | None = None
    instance_group: str
    instance_type: str
    launched_at: Instant
    status: str
    """InstanceStatus.Status: Running, Failure, Pending, ShuttingDown, SystemUpdating, DeepHealthCheckInProgress, …"""
    message: str = ""
    ultra_server: str = ""
    """Id of the UltraServer that the node belongs to; empty if none."""
    image: str = ""
    """CurrentImageReleaseVersion; empty if HyperPod does not report it."""


class ProviderCluster(Value):
    """A HyperPod cluster, with the settings that decide which system repairs its nodes."""

    name: str
    arn: str
    status: str
    repairs_by_itself: bool
    """Whether NodeRecovery is Automatic."""
    has_karpenter: bool = False
    """Whether HyperPod's own Karpenter scales the cluster. Then Replace only ends a node, and pods cause new nodes."""
    plan_by_group: dict[str, str] = {}
    """Instance group → ARN of the training plan that reserves its nodes. Groups without a plan are left out."""


class StoredProviderCluster(Value):
    """HyperPod's settings and status as the last sweep read them: the document of the row `HYPERPOD#cluster`.

    A recovery uses them instead of calls that HyperPod throttles when many nodes fail at once.
    """

    settings: ProviderCluster
    settings_read_at: Instant
    nodes_read_at: Instant | None = None
    """When a sweep last stored HyperPod's list of nodes in the nodes' rows; None if no sweep did."""

    def has_recent_settings(self, now: datetime) -> bool:
        """Whether a plan may use the settings: they are at most as old as two missed sweeps."""
        return _is_recent(self.settings_read_at, now)

    def has_recent_nodes(self, now: datetime) -> bool:
        """Whether a plan may use the status in a node's row."""
        return self.nodes_read_at is not None and _is_recent(self.nodes_read_at, now)


def _is_recent(read_at: datetime, now: datetime) -> bool:
    """Whether a time is near now. A time far ahead proves only that a clock is wrong."""
    return abs(now - read_at) <= _SWEEP_MAX_AGE


class NodeCondition(Value):
    """A condition of a node object. The heartbeat time is left out, because it changes even if nothing else does."""

    type: str
    status: str
    """`True`, `False` or `Unknown`."""
    reason: str = ""
    message: str = ""
    changed_at: Instant | None = None


class KubernetesNode(Value):
    """A node object, reduced to the fields that decisions need."""

    cluster: str
    name: str
    instance_id: str | None = None
    hyperpod_cluster_id: str | None = None
    created_at: Instant | None = None
    """metadata.creationTimestamp. It stands for the launch time of a node without a provider record."""
    pool: str = ""
    instance_type: str = ""
    zone: str = ""
    boot_id: str = ""
    resource_version: str = ""
    is_ready: bool = False
    not_ready_since: Instant | None = None
    """Time at which the node stopped being Ready (lastTransitionTime of the condition); None while it is Ready."""
    ready_since: Instant | None = None
    """Time at which the node became Ready (lastTransitionTime of the condition); None while it is not Ready. A reboot
    changes it if the control plane saw the node go down."""
    is_cordoned: bool = False
    incident_id: str | None = None
    """Incident in Evenkeel's cordon annotation; None without one."""
    is_awaiting_validation: bool = False
    taints: tuple[str, ...] = ()
    """All taints as `key=value:Effect`, including Evenkeel's own."""
    accelerators: int = 0
    """Allocatable GPUs or Neuron devices."""
    accelerator_resource: str = ""
    """`nvidia.com/gpu`, `aws.amazon.com/neuron`, or empty."""
    cpu_millis: int = 0
    """Allocatable CPU in thousandths of a vCPU; 0 if the node object states none."""
    memory_mib: int = 0
    """Allocatable memory; 0 if the node object states none."""
    efa: int = 0
    """Allocatable EFA interfaces."""
    huge_pages_mib: int = 0
    """Total size of the allocatable huge pages of 2 MiB."""
    labels: dict[str, str] = {}
    fault_details: str = ""
    """HyperPod's annotation `fault-details`, unchanged."""
    conditions: tuple[NodeCondition, ...] = ()
    """Conditions that agents set. The kubelet's own conditions are left out."""

    @property
    def allocatable(self) -> Resources:
        """The amounts that pods can request."""
        return Resources(accelerators=self.accelerators, cpu_millis=self.cpu_millis, memory_mib=self.memory_mib)

    @property
    def network_layers(self) -> tuple[str, ...]:
        """Ids of the network nodes above the node, from layer 1 down to the first layer without a label."""
        ids = (self.labels.get(f"{NETWORK_LAYER_LABEL}{layer}", "") for layer in range(1, NETWORK_LAYERS + 1))
        return tuple(itertools.takewhile(bool, ids))

    @property
    def ultra_server(self) -> str:
        """Id of its UltraServer by its label; empty without a label."""
        return self.labels.get(ULTRA_SERVER_LABEL, "")

    @property
    def is_schedulable(self) -> bool:
        """Whether a new training pod without special tolerations can start here."""
        return self.is_ready and not self.is_cordoned and not self.blocking_taints

    @property
    def blocking_taints(self) -> tuple[str, ...]:
        """The taints that block pods without a matching toleration."""
        return tuple(taint for taint in self.taints if taint.endswith((":NoSchedule", ":NoExecute")))


def is_lost(node: KubernetesNode | None, now: datetime, seconds: int) -> bool:
    """Whether a node is gone, or NotReady for so long that its pods are fenced out instead of waited for."""
    if node is None:
        return True
    return (
        not node.is_ready
        and node.not_ready_since is not None
        and (now - node.not_ready_since).total_seconds() >= seconds
    )


class Node(Value):
    """A node as Kubernetes and its provider show it; either view may be missing."""

    life: NodeLife
    kubernetes: KubernetesNode | None = None
    provider: ProviderNode | None = None

    @property
    def pool(self) -> str:
        """Name of the instance group or NodePool."""
        if self.provider:
            return self.provider.instance_group
        return self.kubernetes.pool if self.kubernetes else ""

    @property
    def ultra_server(self) -> str:
        """Id of the UltraServer that the node belongs to; empty if none is known."""
        label = self.kubernetes.ultra_server if self.kubernetes else ""
        return (self.provider.ultra_server if self.provider else "") or label

    @property
    def slot(self) -> str:
        """The node slot: cluster and NodeLogicalId, which a replacement node keeps. Without a logical id, the life."""
        if self.provider and self.provider.logical_id:
            return f"{self.life.cluster}/{self.provider.logical_id}"
        return self.life.key


def join_nodes(
    kubernetes: Iterable[KubernetesNode], provider: Iterable[ProviderNode], provider_cluster: str
) -> tuple[Node, ...]:
    """Join the views of Kubernetes and HyperPod by instance id, ordered by node life.

    A HyperPod node that HyperPod does not list is left out, because its launch time is unknown. For any other node, the
    creation time of its node object counts as its launch time. Nodes without an EC2 instance id are left out.

    Args:
        kubernetes: Node objects of every cluster of the fleet.
        provider: HyperPod's list of nodes.
        provider_cluster: Name of the Kubernetes cluster that HyperPod's nodes join.
    """
    provider_nodes = {provider_node.instance_id: provider_node for provider_node in provider}
    nodes_by_key: dict[str, Node] = {}
    for node_object in kubernetes:
        provider_node = (
            provider_nodes.get(node_object.instance_id or "") if node_object.cluster == provider_cluster else None
        )
        launched_at = provider_node.launched_at if provider_node else node_object.created_at
        if (
            node_object.instance_id is None
            or launched_at is None
            or (node_object.hyperpod_cluster_id and provider_node is None)
        ):
            continue
        life = NodeLife(cluster=node_object.cluster, instance_id=node_object.instance_id, launched_at=launched_at)
        nodes_by_key[life.key] = Node(life=life, kubernetes=node_object, provider=provider_node)
    listed_ids = {node.life.instance_id for node in nodes_by_key.values() if node.provider}
    for provider_node in provider_nodes.values():
        if provider_node.instance_id not in listed_ids:
            life = NodeLife(
                cluster=provider_cluster, instance_id=provider_node.instance_id, launched_at=provider_node.launched_at
            )
            nodes_by_key[life.key] = Node(life=life, provider=provider_node)
    return tuple(nodes_by_key[key] for key in sorted(nodes_by_key))


_IN_MAINTENANCE = ("SystemUpdating", "DeepHealthCheckInProgress", "ShuttingDown")
"""Provider statuses of planned work on a node."""


LEFT_WORKLOADS_KEPT = timedelta(minutes=15)
"""How long a node's row names workloads that have left the node."""


class NodeState(StrEnum):
    """The state of a node."""

    IN_SERVICE = "IN_SERVICE"
    STARTING = "STARTING"
    """Not Ready yet, or before its first validation."""
    REPAIRING = "REPAIRING"
    """An open incident repairs it."""
    BLOCKED = "BLOCKED"
    """An open incident waits: a guardrail blocks its next step."""
    WAITING = "WAITING"
    """An open incident does nothing yet: its plan awaits approval, or HyperPod is changing the cluster."""
    QUARANTINED = "QUARANTINED"
    """Cordoned by a settled incident: a person must act."""
    CORDONED = "CORDONED"
    """Cordoned by a person, or by another controller (`repairedBy`)."""
    NOT_READY = "NOT_READY"
    UNHEALTHY = "UNHEALTHY"
    """Marked as faulty, or left so by an incident: in service, without a repair."""
    GONE = "GONE"


class FleetNode(Value):
    """A node as the ledger stores it: the document of a `NODE#` row. Only the sweep writes it."""

    life: NodeLife
    slot: str
    node_name: str = ""
    """Name of the node object; empty until the node joins its cluster."""
    pool: str = ""
    instance_type: str = ""
    zone: str = ""
    boot_id: str = ""
    network_layers: tuple[str, ...] = ()
    """Ids of the network nodes above the node, from layer 1 down; empty if unknown."""
    ultra_server: str = ""
    image: str = ""
    provider_status: str = ""
    """HyperPod's InstanceStatus; empty for a node outside HyperPod."""
    is_ready: bool = False
    not_ready_since: Instant | None = None
    is_cordoned: bool = False
    incident_id: str | None = None
    """Incident in Evenkeel's cordon annotation; None without one."""
    repaired_by: str = ""
    """Another controller that repairs the node, with its mark; empty without one."""
    is_awaiting_validation: bool = False
    labels: dict[str, str] = {}
    """The site's own labels of the node object, and the label of its reservation. Rules for pools use them."""
    taints: tuple[str, ...] = ()
    """The taints that block pods, as `key=value:Effect`."""
    accelerators: int = 0
    cpu_millis: int = 0
    """Allocatable CPU in thousandths of a vCPU; 0 if the node object states none."""
    memory_mib: int = 0
    """Allocatable memory; 0 if the node object states none."""
    accelerators_in_use: int = 0
    cpu_millis_in_use: int = 0
    """Requested by live pods, pods of DaemonSets included."""
    memory_mib_in_use: int = 0
    """Requested by live pods, pods of DaemonSets included."""
    bound_in_use: Resources | None = None
    """Requested by pods of DaemonSets; included in the amounts above. None in rows of older releases."""
    marks: tuple[str, ...] = ()
    """Marks of a fault: labels and taints of the provider, and conditions of agents."""
    unmanaged_workloads: tuple[str, ...] = ()
    """Workloads with accelerators on the node that Evenkeel did not start: `PyTorchJob research/llama`."""
    left_workloads: dict[str, Instant] = {}
    """Such workloads that were on the node lately, and when the sweep first found them gone."""
    job_ids: tuple[str, ...] = ()
    """Evenkeel's own jobs on the node."""
    is_gone: bool = False
    """Whether the node is missing from both control planes."""
    is_lemon: bool = False
    """Whether the node returned to service too often lately. Its next fault then replaces it."""
    changed_at: Instant
    """Time of the last change of this row. The sweep's heartbeat shows the age of the whole list."""

    @classmethod
    def from_node(
        cls,
        node: Node,
        in_use: Resources,
        now: datetime,
        *,
        is_lemon: bool = False,
        marks: tuple[str, ...] = (),
        unmanaged_workloads: tuple[str, ...] = (),
        job_ids: tuple[str, ...] = (),
    ) -> "FleetNode":
        """Return the row for a node as both control planes show it now."""
        node_object = node.kubernetes
        allocatable = node_object.allocatable if node_object else NONE
        return cls(
            life=node.life,
            slot=node.slot,
            node_name=node_object.name if node_object else "",
            pool=node.pool,
            instance_type=node.provider.instance_type
            if node.provider
            else (node_object.instance_type if node_object else ""),
            zone=node_object.zone if node_object else "",
            boot_id=node_object.boot_id if node_object else "",
            network_layers=node_object.network_layers if node_object else (),
            ultra_server=node.ultra_server,
            image=node.provider.image if node.provider else "",
            provider_status=node.provider.status if node.provider else "",
            is_ready=node_object.is_ready if node_object else False,
            not_ready_since=node_object.not_ready_since if node_object else None,
            is_cordoned=node_object.is_cordoned if node_object else False,
            incident_id=node_object.incident_id if node_object else None,
            is_awaiting_validation=node_object.is_awaiting_validation if node_object else False,
            labels=_own_labels(node_object.labels) if node_object else {},
            taints=node_object.blocking_taints if node_object else (),
            accelerators=allocatable.accelerators,
            cpu_millis=allocatable.cpu_millis,
            memory_mib=allocatable.memory_mib,
            accelerators_in_use=in_use.accelerators,
            cpu_millis_in_use=in_use.cpu_millis,
            memory_mib_in_use=in_use.memory_mib,
            is_lemon=is_lemon,
            marks=marks,
            unmanaged_workloads=unmanaged_workloads,
            job_ids=job_ids,
            changed_at=now,
        )

    def with_history_of(self, stored_node: "FleetNode | None") -> "FleetNode":
        """Return this row with two values of its earlier row: workloads that have left, and unknown fields."""
        if stored_node is None:
            return self
        departures = dict.fromkeys(stored_node.unmanaged_workloads, self.changed_at) | stored_node.left_workloads
        recent_departures = {
            label: at
            for label, at in sorted(departures.items())
            if label not in self.unmanaged_workloads and at > self.changed_at - LEFT_WORKLOADS_KEPT
        }
        return self.replace(left_workloads=recent_departures).keeping_unknown(stored_node)

    @property
    def provider_node(self) -> ProviderNode | None:
        """HyperPod's record of the node, as the sweep saw it; None for a node outside HyperPod."""
        if not self.provider_status:
            return None
        return ProviderNode(
            instance_id=self.life.instance_id,
            logical_id=None if self.slot == self.life.key else self.slot.removeprefix(f"{self.life.cluster}/"),
            instance_group=self.pool,
            instance_type=self.instance_type,
            launched_at=self.life.launched_at,
            status=self.provider_status,
            ultra_server=self.ultra_server,
            image=self.image,
        )

    @property
    def allocatable(self) -> Resources:
        """The amounts that pods can request."""
        return Resources(accelerators=self.accelerators, cpu_millis=self.cpu_millis, memory_mib=self.memory_mib)

    @property
    def in_use(self) -> Resources:
        """The amounts that live pods request."""
        return Resources(
            accelerators=self.accelerators_in_use,
            cpu_millis=self.cpu_millis_in_use,
            memory_mib=self.memory_mib_in_use,
        )

    @property
    def is_maintained(self) -> bool:
        """Whether the node is in planned maintenance. Guardrails do not count such nodes."""
        return self.provider_status in _IN_MAINTENANCE

    def can_be_acted_on(self, now: datetime, *, boot_seconds: int) -> bool:
        """Whether guardrails count the node: not gone, not booting and not in maintenance.

        Args:
            now: The current time.
            boot_seconds: A node younger than this that is not Ready yet counts as booting.
        """
        if self.is_gone or self.is_maintained:
            return False
        return self.is_ready or now - self.life.launched_at >= timedelta(seconds=boot_seconds)

    def is_same_as(self, other_node: "FleetNode") -> bool:
        """Whether the rows are equal except for `changed_at`."""
        return all(
            getattr(self, name) == getattr(other_node, name) for name in type(self).model_fields if name != "changed_at"
        )


RESERVATION_LABELS = ("karpenter.k8s.aws/capacity-reservation-id", "eks.amazonaws.com/capacity-reservation-id")
"""Labels with the id of a node's capacity reservation: of Karpenter, and of EKS Auto Mode."""
_SYSTEM_DOMAINS = ("kubernetes.io", "k8s.io", "k8s.aws", "nvidia.com", "amazonaws.com", "karpenter.sh")
"""Domains of labels that rows do not store. Each node has dozens of labels; other fields hold the needed values."""


def _own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in labels.items()
        if name in RESERVATION_LABELS or not name.partition("/")[0].endswith(_SYSTEM_DOMAINS)
    }


def accelerator_resource_of(instance_type: str) -> str:
    """Return the Kubernetes resource of an instance type's accelerators, by the name of the type."""
    is_neuron = instance_type.removeprefix("ml.").startswith(("trn", "inf"))
    return "aws.amazon.com/neuron" if is_neuron else "nvidia.com/gpu"
