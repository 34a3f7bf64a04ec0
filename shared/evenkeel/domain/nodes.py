"""Machines: lives, seats, and what is seen of them."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from evenkeel.domain.values import Instant, Value

INCIDENT_ANNOTATION = "evenkeel.io/incident"
"""Our mark on a cordon. A cordon without it is a person's and is left alone."""

AWAITING_VALIDATION_TAINT = "evenkeel.io/awaiting-validation"
"""Instance groups and NodePools give it to new nodes; only a passed validation takes it off."""

KARPENTER_LABEL = "karpenter.sh/nodepool"
"""Karpenter's label on its nodes, with the name of their pool."""

INSTANCE_ID = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})", re.ASCII)

_PROVIDER_ID = re.compile(
    r"aws:///([^/]+)/(?:sagemaker/cluster/hyperpod-([a-z0-9]{12})-)?(i-[0-9a-f]{8}(?:[0-9a-f]{9})?)", re.ASCII
)


class ProviderId(NamedTuple):
    """The parts of a Kubernetes `spec.providerID`."""

    zone: str
    hyperpod_cluster_id: str | None
    instance_id: str


def parse_provider_id(provider_id: str) -> ProviderId | None:
    """Read a providerID of either half of the fleet; None for a node that is not ours to know.

    Source: kubernetes/autoscaler#7540 for the HyperPod form. Never an error: foreign forms are skipped.
    """
    match = _PROVIDER_ID.fullmatch(provider_id)
    return ProviderId(*match.groups()) if match else None


class NodeLife(Value):
    """One machine from its launch to its end. A reboot starts a new episode, a replacement a new life."""

    cluster: str
    """Name of the Kubernetes cluster the machine joined."""
    instance_id: str
    launched_at: Instant

    @property
    def key(self) -> str:
        """`<cluster>/<instance id>/<launch, epoch seconds>`: names this life everywhere."""
        return f"{self.cluster}/{self.instance_id}/{int(self.launched_at.timestamp())}"

    @classmethod
    def from_key(cls, key: str) -> "NodeLife":
        """Read a life back from its key."""
        cluster, instance_id, launched = key.rsplit("/", 2)
        return cls.model_validate(
            {"cluster": cluster, "instance_id": instance_id, "launched_at": datetime.fromtimestamp(int(launched), UTC)}
        )


class ProviderNode(Value):
    """A HyperPod node as its control plane tells it."""

    instance_id: str
    logical_id: str | None = None
    instance_group: str
    instance_type: str
    launched_at: Instant
    status: str
    """InstanceStatus.Status: Running, Failure, Pending, ShuttingDown, SystemUpdating, DeepHealthCheckInProgress, …"""
    message: str = ""
    ultra_server: str = ""
    """Id of the UltraServer that it is a part of; empty where it is none."""
    image: str = ""
    """CurrentImageReleaseVersion; empty where HyperPod does not tell."""


class ProviderCluster(Value):
    """The settings of the HyperPod cluster that decide who may repair."""

    name: str
    arn: str
    status: str
    repairs_by_itself: bool
    """NodeRecovery is Automatic."""
    is_continuous: bool
    """NodeProvisioningMode is Continuous: logical ids and cluster events exist."""


class NodeCondition(Value):
    """One condition of a node object, without its heartbeat, which changes though nothing does."""

    type: str
    status: str
    """`True`, `False` or `Unknown`."""
    reason: str = ""
    message: str = ""
    changed_at: Instant | None = None


class KubernetesNode(Value):
    """A node object, reduced to what decisions rest on."""

    cluster: str
    name: str
    instance_id: str | None = None
    hyperpod_cluster_id: str | None = None
    created_at: Instant | None = None
    """metadata.creationTimestamp: the launch of a machine that has no record at the provider."""
    pool: str = ""
    instance_type: str = ""
    zone: str = ""
    boot_id: str = ""
    resource_version: str = ""
    is_ready: bool = False
    not_ready_since: Instant | None = None
    """When Ready left True, by the condition's lastTransitionTime; None while Ready."""
    is_cordoned: bool = False
    incident_id: str | None = None
    """The incident whose mark the cordon carries."""
    is_awaiting_validation: bool = False
    taints: tuple[str, ...] = ()
    """`key=value:Effect` of every taint, ours included."""
    accelerators: int = 0
    """Allocatable GPUs or Neuron devices."""
    accelerator_resource: str = ""
    """`nvidia.com/gpu`, `aws.amazon.com/neuron`, or empty."""
    efa: int = 0
    """Allocatable EFA interfaces."""
    huge_pages_mib: int = 0
    """Allocatable huge pages of 2 MiB, together."""
    labels: dict[str, str] = {}
    fault_details: str = ""
    """HyperPod's `fault-details` annotation, verbatim."""
    conditions: tuple[NodeCondition, ...] = ()
    """What agents say of it; the kubelet's own conditions are left out."""

    @property
    def is_schedulable(self) -> bool:
        """Whether a new training pod with no special tolerations could land here."""
        return self.is_ready and not self.is_cordoned and not self.blocking_taints

    @property
    def blocking_taints(self) -> tuple[str, ...]:
        """The taints that keep pods off which do not tolerate them."""
        return tuple(taint for taint in self.taints if taint.endswith((":NoSchedule", ":NoExecute")))


class Node(Value):
    """One machine: both control planes' views joined. Either may be missing."""

    life: NodeLife
    kubernetes: KubernetesNode | None = None
    provider: ProviderNode | None = None

    @property
    def pool(self) -> str:
        """Instance group or NodePool name."""
        if self.provider:
            return self.provider.instance_group
        return self.kubernetes.pool if self.kubernetes else ""

    @property
    def slot(self) -> str:
        """The baseline seat: cluster and NodeLogicalId, which survive a replacement; the life where there is none."""
        if self.provider and self.provider.logical_id:
            return f"{self.life.cluster}/{self.provider.logical_id}"
        return self.life.key


def join_nodes(
    kubernetes: Iterable[KubernetesNode], provider: Iterable[ProviderNode], provider_cluster: str
) -> tuple[Node, ...]:
    """Join both control planes' views by instance id, ordered by life.

    A HyperPod machine that its provider does not list has no known launch time, so it is left out rather than guessed;
    a machine of the other half takes its node object's creation for its launch. Foreign nodes are left out.

    Args:
        kubernetes: Node objects of every cluster of the fleet.
        provider: HyperPod's list.
        provider_cluster: Name of the Kubernetes cluster that HyperPod's machines join.
    """
    records = {record.instance_id: record for record in provider}
    joined: dict[str, Node] = {}
    for seen in kubernetes:
        record = records.get(seen.instance_id or "") if seen.cluster == provider_cluster else None
        launched_at = record.launched_at if record else seen.created_at
        if seen.instance_id is None or launched_at is None or (seen.hyperpod_cluster_id and record is None):
            continue
        life = NodeLife(cluster=seen.cluster, instance_id=seen.instance_id, launched_at=launched_at)
        joined[life.key] = Node(life=life, kubernetes=seen, provider=record)
    known = {node.life.instance_id for node in joined.values() if node.provider}
    for record in records.values():
        if record.instance_id not in known:
            life = NodeLife(cluster=provider_cluster, instance_id=record.instance_id, launched_at=record.launched_at)
            joined[life.key] = Node(life=life, provider=record)
    return tuple(joined[key] for key in sorted(joined))


_IN_MAINTENANCE = ("SystemUpdating", "DeepHealthCheckInProgress", "ShuttingDown")
"""HyperPod's own work on a machine, asked for by its owner."""


class FleetNode(Value):
    """One machine as the ledger remembers it: the document of a `NODE#` row. The sweeper alone writes it."""

    life: NodeLife
    slot: str
    node_name: str = ""
    """Name of the node object; empty until it joined its cluster."""
    pool: str = ""
    instance_type: str = ""
    zone: str = ""
    boot_id: str = ""
    ultra_server: str = ""
    image: str = ""
    provider_status: str = ""
    """HyperPod's InstanceStatus; empty for a machine of the other half."""
    is_ready: bool = False
    not_ready_since: Instant | None = None
    is_cordoned: bool = False
    incident_id: str | None = None
    """The incident whose mark the cordon carries."""
    is_awaiting_validation: bool = False
    labels: dict[str, str] = {}
    """Those of its node object that a site gives by itself: what its pools are told by."""
    taints: tuple[str, ...] = ()
    """Those that keep pods off."""
    accelerators: int = 0
    accelerators_in_use: int = 0
    marks: tuple[str, ...] = ()
    """What marks it as broken: the provider's labels and taints, and the conditions of agents."""
    unmanaged_workloads: tuple[str, ...] = ()
    """Work with accelerators on it that Evenkeel did not start: `PyTorchJob research/llama`."""
    job_ids: tuple[str, ...] = ()
    """Evenkeel's own jobs on it."""
    is_gone: bool = False
    """No control plane shows it any more."""
    is_lemon: bool = False
    """It was returned to service too often lately: its next fault replaces it."""
    changed_at: Instant
    """When this row last changed. How fresh the whole list is, the sweeper's heartbeat tells."""

    @classmethod
    def seen(
        cls,
        node: Node,
        accelerators_in_use: int,
        now: datetime,
        *,
        is_lemon: bool = False,
        marks: tuple[str, ...] = (),
        unmanaged_workloads: tuple[str, ...] = (),
        job_ids: tuple[str, ...] = (),
    ) -> "FleetNode":
        """Reduce what both control planes show of a machine to what is remembered of it."""
        there = node.kubernetes
        return cls(
            life=node.life,
            slot=node.slot,
            node_name=there.name if there else "",
            pool=node.pool,
            instance_type=node.provider.instance_type if node.provider else (there.instance_type if there else ""),
            zone=there.zone if there else "",
            boot_id=there.boot_id if there else "",
            ultra_server=node.provider.ultra_server if node.provider else "",
            image=node.provider.image if node.provider else "",
            provider_status=node.provider.status if node.provider else "",
            is_ready=there.is_ready if there else False,
            not_ready_since=there.not_ready_since if there else None,
            is_cordoned=there.is_cordoned if there else False,
            incident_id=there.incident_id if there else None,
            is_awaiting_validation=there.is_awaiting_validation if there else False,
            labels=_own_labels(there.labels) if there else {},
            taints=there.blocking_taints if there else (),
            accelerators=there.accelerators if there else 0,
            accelerators_in_use=accelerators_in_use,
            is_lemon=is_lemon,
            marks=marks,
            unmanaged_workloads=unmanaged_workloads,
            job_ids=job_ids,
            changed_at=now,
        )

    @property
    def is_maintained(self) -> bool:
        """Whether it is out by plan, and no guardrail's business."""
        return self.provider_status in _IN_MAINTENANCE

    def can_be_acted_on(self, now: datetime, *, boot_seconds: int) -> bool:
        """Whether it counts among the machines of which some may be out: not gone, not booting, not in maintenance.

        Args:
            now: The time.
            boot_seconds: A machine younger than this that is not Ready yet is booting.
        """
        if self.is_gone or self.is_maintained:
            return False
        return self.is_ready or now - self.life.launched_at >= timedelta(seconds=boot_seconds)

    def is_same_as(self, other: "FleetNode") -> bool:
        """Whether nothing but the time of writing differs."""
        return all(
            getattr(self, name) == getattr(other, name) for name in type(self).model_fields if name != "changed_at"
        )


_OF_OTHERS = ("kubernetes.io", "k8s.io", "k8s.aws", "nvidia.com", "amazonaws.com", "karpenter.sh")
"""Whose labels are not remembered: there are dozens on each machine, and what they say of its kind is kept apart."""


def _own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if not name.partition("/")[0].endswith(_OF_OTHERS)}
