"""Machines: lives, seats, and what is seen of them."""

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from evenkeel.domain.values import Instant, Value

INCIDENT_ANNOTATION = "evenkeel.io/incident"
"""Our mark on a cordon. A cordon without it is a person's and is left alone."""

AWAITING_VALIDATION_TAINT = "evenkeel.io/awaiting-validation"
"""Instance groups and NodePools give it to new nodes; only a passed validation takes it off."""

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


class PoolKind(StrEnum):
    """Which half of the fleet a pool belongs to."""

    HYPERPOD = "HYPERPOD"
    KARPENTER = "KARPENTER"


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


class ProviderCluster(Value):
    """The settings of the HyperPod cluster that decide who may repair."""

    name: str
    arn: str
    status: str
    repairs_by_itself: bool
    """NodeRecovery is Automatic."""
    is_continuous: bool
    """NodeProvisioningMode is Continuous: logical ids and cluster events exist."""


class KubernetesNode(Value):
    """A node object, reduced to what decisions rest on."""

    cluster: str
    name: str
    instance_id: str | None = None
    hyperpod_cluster_id: str | None = None
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
    labels: dict[str, str] = {}
    fault_details: str = ""
    """HyperPod's `fault-details` annotation, verbatim."""

    @property
    def is_schedulable(self) -> bool:
        """Whether a new training pod with no special tolerations could land here."""
        blocking = any(t.endswith((":NoSchedule", ":NoExecute")) for t in self.taints)
        return self.is_ready and not self.is_cordoned and not blocking


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
