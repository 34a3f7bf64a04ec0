"""The cluster's configuration: one JSON document, checked when the process starts."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from evenkeel_local.gpu_cluster.aws_model import service_model

SECURITY_GROUPS = ["sg-0b4e7c19d5a2f8036"]
SUBNETS = ["subnet-0c7f1e93b6d8a2540"]


class ConfigModel(BaseModel):
    """A frozen model, camelCase in JSON. It refuses unknown keys, so that a misspelt delay fails."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="forbid")


class TaintConfig(ConfigModel):
    """A taint on new nodes of a group."""

    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class InstanceGroupConfig(ConfigModel):
    """One HyperPod instance group."""

    name: str = Field(pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9])*$", max_length=63)
    instance_type: str = "ml.p5.48xlarge"
    resources: dict[str, str] | None = None
    """Resources of its nodes, such as `{"nvidia.com/gpu": "8"}`; None: the resources of the instance type."""
    count: int = Field(default=1, ge=0, le=6758)
    labels: dict[str, str] = {}
    taints: tuple[TaintConfig, ...] = ()
    availability_zone: str = "us-west-2a"
    availability_zone_id: str = "usw2-az1"
    capacity_type: Literal["OnDemand", "Spot"] = "OnDemand"
    training_plan: str | None = None
    capacity: int | None = None
    """Number of machines that the provider has for this group; None: no limit."""


class TrainingPlanConfig(ConfigModel):
    """A training plan that instance groups may run on."""

    name: str
    instance_type: str = "ml.p5.48xlarge"
    total_instance_count: int = Field(default=0, ge=0)
    spare_instance_count: int = Field(default=0, ge=0)
    status: Literal["Pending", "Active", "Scheduled", "Expired", "Failed"] = "Active"
    duration_hours: int = Field(default=720, ge=1)
    remaining_seconds: int | None = Field(default=None, ge=0)
    """Time from the start of the local cluster to the end of the plan. None: the plan began an hour before."""
    ultra_server_type: str | None = None
    ultra_server_count: int = Field(default=0, ge=0)
    ultra_server_health: Literal["OK", "Impaired", "Insufficient-Data"] = "OK"


class ClusterDelays(ConfigModel):
    """Durations in seconds. The defaults suit a laptop; on AWS they are minutes."""

    boot: float = 0.0
    """From the launch of an instance until its node is Ready, at the cluster's start and after BatchAddClusterNodes."""
    reboot: float = 2.0
    replace: float = 4.0
    """From the launch of a replacement until its node is Ready."""
    terminate: float = 0.3
    heartbeat: float = 1.0
    node_monitor_grace: float = 5.0
    """Age of a heartbeat at which the node becomes NotReady (40 to 50 s in production)."""
    eviction_toleration: float | None = None
    """Overrides the 300 s for which pods tolerate not-ready and unreachable by default; None: no override."""
    pod_gc: float = 1.0
    agent_detect: float = 0.5
    event_delay: float = 0.1
    auto_recovery: float = 2.0
    deep_health_check: float = 3.0
    scaling_rollback: float = 10_800.0
    """Time after which growth below its MinInstanceCount is rolled back."""
    restart_backoff: float = 1.0
    """First delay before a container restarts. It doubles up to 30 times this value (10 s and 300 s in production)."""


class KarpenterOffering(ConfigModel):
    """An EC2 instance type that Karpenter can launch; `machines` is the capacity of each zone and capacity type."""

    instance_type: str
    zones: tuple[str, ...] = ("us-west-2a",)
    usd_per_hour: float | None = None
    spot_usd_per_hour: float | None = None
    machines: int | None = None


class KarpenterSettings(ConfigModel):
    """Karpenter's offerings and durations in seconds; in production they are minutes."""

    offerings: tuple[KarpenterOffering, ...] = (
        KarpenterOffering(instance_type="p5.48xlarge", usd_per_hour=55.04, spot_usd_per_hour=22.0),
        KarpenterOffering(instance_type="g5.8xlarge", usd_per_hour=2.45, spot_usd_per_hour=0.98),
    )
    launch: float = 1.0
    register_: float = Field(default=0.5, alias="register")
    capacity_memory: float = 5.0
    """Time for which Karpenter does not retry an offering without capacity (three minutes in production)."""
    spot_notice: float = 5.0
    """From the interruption warning to the end of the machine (two minutes on AWS)."""
    node_repair: dict[str, float] = {}
    """Seconds after which a false condition leads to a repair, by condition. Repair is off by default, as in Karpenter.
    In production: 600 for AcceleratedHardwareReady, 1800 for Ready and the other conditions of the node agent."""
    repair_drain: float = 1.0
    """From the start of a repair to the end of the machine, drained or not."""


class NodeGroupConfig(ConfigModel):
    """An EKS managed node group, with its Auto Scaling group of the same name."""

    name: str = Field(pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9])*$", max_length=63)
    instance_type: str = "p5.48xlarge"
    count: int = Field(default=1, ge=0, le=450)
    capacity: int | None = None
    """Number of instances that EC2 has for this group; None: no limit."""
    labels: dict[str, str] = {}
    taints: tuple[TaintConfig, ...] = ()
    availability_zone: str = "us-west-2a"
    launch: float = 1.0
    """Seconds from the launch of an instance until its node is Ready."""
    repair_seconds: float | None = None
    """Seconds for which a node may be broken before EKS node auto-repair ends it; None: auto-repair is off."""


class AccessPolicy(ConfigModel):
    """An EKS access policy of an entry, for some namespaces or for the cluster."""

    policy: str = Field(pattern=r"^(arn:aws:eks::aws:cluster-access-policy/)?AmazonEKS\w+Policy$")
    namespaces: tuple[str, ...] | None = None


class AccessEntry(ConfigModel):
    """An EKS access entry: the Kubernetes user and groups of an IAM principal."""

    principal_arn: str
    username: str | None = None
    kubernetes_groups: tuple[str, ...] = ()
    access_policies: tuple[str | AccessPolicy, ...] = ()
    """EKS access policies: AmazonEKSClusterAdminPolicy, …AdminPolicy, …EditPolicy, …ViewPolicy, …AdminViewPolicy. A
    name alone is for the whole cluster."""
    tags: dict[str, str] = {}


class PodIdentity(ConfigModel):
    """Environment variables for the pods of one service account, as EKS Pod Identity provides credentials."""

    namespace: str
    service_account: str
    env: dict[str, str]


class OtherEksCluster(ConfigModel):
    """An EKS cluster of another process, which the EKS API of this one also describes. One stack has one EKS API."""

    name: str
    endpoint: str
    ca_pem: str


class ClusterConfig(ConfigModel):
    """The configuration of the cluster."""

    cluster_name: str = Field(default="research-train", pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")
    cluster_id: str = Field(default="k3v9x2m7q1ab", pattern=r"^[a-z0-9]{12}$")
    eks_cluster_name: str = "research-eks"
    account: str = Field(default="000000000000", pattern=r"^\d{12}$")
    region: str = "us-west-2"
    node_recovery: Literal["Automatic", "None"] = "None"
    node_provisioning_mode: Literal["Continuous"] | None = "Continuous"
    instance_groups: tuple[InstanceGroupConfig, ...] = (InstanceGroupConfig(name="p5-workers", count=4),)
    delays: ClusterDelays = ClusterDelays()
    training_plans: tuple[TrainingPlanConfig, ...] = ()
    duplicate_events: bool = False
    reorder_events: bool = False
    cluster_events: bool = False
    """Whether to send HyperPod's cluster and state-change events, too; ListClusterEvents always has them."""
    karpenter: KarpenterSettings | None = None
    training_operators: bool = False
    """Whether stand-ins for the operators of JobSet, PyTorchJob and HyperPodPyTorchJob run."""
    node_groups: tuple[NodeGroupConfig, ...] = ()
    other_eks_clusters: tuple[OtherEksCluster, ...] = ()
    access_entries: tuple[AccessEntry, ...] = ()
    pod_identities: tuple[PodIdentity, ...] = ()
    auth_cache_seconds: float = Field(default=2.0, ge=0)
    reads_per_second: float = Field(default=0.0, ge=0)
    """Throttling of HyperPod reads and writes by a token bucket; 0 means none."""
    writes_per_second: float = Field(default=0.0, ge=0)
    instance_limit: int | None = Field(default=None, ge=0)
    """The account's limit of cluster instances; growth beyond it answers ResourceLimitExceeded."""
    watch_history: int = Field(default=8192, ge=1)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for kind, names in (
            ("instance group", [group.name for group in self.instance_groups]),
            ("node group", [group.name for group in self.node_groups]),
            ("training plan", [plan.name for plan in self.training_plans]),
        ):
            if twice := {name for name in names if names.count(name) > 1}:
                raise ValueError(f"there is more than one {kind} named {', '.join(sorted(twice))}")
        return self

    def arn(self, resource: str, service: str = "sagemaker") -> str:
        """Return the ARN of a resource of the account."""
        return f"arn:aws:{service}:{self.region}:{self.account}:{resource}"

    @property
    def cluster_arn(self) -> str:
        """The HyperPod cluster's ARN."""
        return self.arn(f"cluster/{self.cluster_id}")

    @property
    def eks_arn(self) -> str:
        """The EKS cluster's ARN."""
        return self.arn(f"cluster/{self.eks_cluster_name}", "eks")


def check_types(config: ClusterConfig) -> None:
    """Refuse instance types that SageMaker does not have: an answer with one would not fit the service model.

    Raises:
        ValueError: a group has such a type.
    """
    types: list[str] = getattr(service_model("sagemaker").shape_for("ClusterInstanceType"), "enum", [])
    for group in config.instance_groups:
        if group.instance_type not in types:
            raise ValueError(f"instanceGroups {group.name}: SageMaker has no instance type {group.instance_type}")


def error_text(wrong: ValidationError) -> str:
    """Return the errors of a document in one line."""
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the document'}: {e['msg']}" for e in wrong.errors())


def read_config(document: Any) -> ClusterConfig:
    """Read a configuration from decoded JSON.

    Raises:
        pydantic.ValidationError: a key is unknown or a value does not fit.
    """
    return ClusterConfig.model_validate(document)
