"""HyperPod task governance: the compute quotas and the cluster's policy in SageMaker's API.

    team X            queue hyperpod-ns-X-clusterqueue; its jobs use LocalQueue hyperpod-ns-X-localqueue in namespace
                      hyperpod-ns-X
    InstanceType      the flavor of that name: cpu, memory, GPUs or Neuron devices, EFA interfaces, MIG profiles
    Count             this many whole instances. A pod can use a little less of each, so a quota never fills up
    granular amounts  an omitted amount follows from the largest share that is given
    Lend, DontLend    borrow nothing; lend all or nothing
    LendAndBorrow     lend all; borrow BorrowLimit % of the team's own quota

The user guide describes BorrowLimit as a percentage of the team's guaranteed quota, the API reference as a percentage
of idle compute. Evenkeel uses the team's own quota, rounded down. A team without weight has weight 0: it is the last
to borrow and the first to be preempted. Sources: SageMaker's API reference, CreateComputeQuota and
CreateClusterSchedulerConfig; the HyperPod user guide on task governance.
"""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_pascal

from evenkeel.domain.capacity.instance_types import EFA, INSTANCE_TYPE_LABEL, MIG_PREFIX, InstanceType, InstanceTypes
from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.objects import (
    Flavor,
    FlavorQuotas,
    PreemptionPolicy,
    PreemptionRules,
    Queue,
    Quota,
    ResourceGroup,
)
from evenkeel.domain.queue_simulation.documents import Document, DocumentError, Number, WholeNumber

COHORT = "hyperpod"
IDLE_PREFIX = "hyperpod-ns-idle-resource-sharing-cq-"
_QUEUE_SUFFIX = "-clusterqueue"
_NAMESPACE_PREFIX = "hyperpod-ns-"
_GIB = 2**30
_DEFAULT_BORROW_LIMIT = 50
MAX_CLASSES = 10


class _Aws(Document):
    """A document of the SageMaker API."""

    model_config = ConfigDict(extra="allow", alias_generator=to_pascal, populate_by_name=True, frozen=True)


class Partition(_Aws):
    """`AcceleratorPartitionConfig` of the SageMaker API."""

    type: str
    count: WholeNumber = Field(ge=0)


class QuotaResources(_Aws):
    """Amounts of an instance type."""

    instance_type: str
    count: WholeNumber | None = Field(None, ge=0)
    accelerators: WholeNumber | None = Field(None, ge=0)
    v_cpu: Number | None = Field(None, ge=0)
    memory_in_gi_b: Number | None = Field(None, ge=0, alias="MemoryInGiB")
    accelerator_partition: Partition | None = None

    def amounts(self, instance: InstanceType) -> dict[str, int]:
        """Return the amounts by resource."""
        count = self.count or 0
        partition = self.accelerator_partition
        on_gpu = instance.mig.get(partition.type, 0) if partition else 0
        shares = {
            "accelerators": _share(self.accelerators, instance.accelerators),
            "cpu": _share(self.v_cpu, instance.vcpu),
            "memory": _share(self.memory_in_gi_b, instance.memory_gib),
            "partition": _share(partition.count if partition else None, on_gpu * instance.gpus),
        }
        largest = max(shares.values())  # an omitted amount follows from the largest share that is given

        def amount_of(value: float | None, total: float) -> Fraction:
            granular = largest * Fraction(str(total)) if value is None else Fraction(str(value))
            return count * Fraction(str(total)) + granular

        amounts = {
            "cpu": quantities.amount("cpu", amount_of(self.v_cpu, instance.vcpu)),
            "memory": int(amount_of(self.memory_in_gi_b, instance.memory_gib) * _GIB),
        }
        if instance.accelerator:
            # Cores or memory alone include no accelerators.
            amounts[instance.accelerator] = count * instance.accelerators + (self.accelerators or 0)
        if instance.efa:
            amounts[EFA] = instance.efa * max(count, 1 if largest else 0)
        if partition is not None:
            amounts[f"{MIG_PREFIX}{partition.type}"] = partition.count
        return amounts


def _share(value: float | None, total: float) -> Fraction:
    return Fraction(str(value)) / Fraction(str(total)) if value and total else Fraction(0)


class ResourceSharing(_Aws):
    """`ResourceSharingConfig` of the SageMaker API."""

    strategy: Literal["Lend", "DontLend", "LendAndBorrow"] = "LendAndBorrow"
    borrow_limit: WholeNumber | None = Field(None, ge=0, le=10000)
    absolute_borrow_limits: tuple[QuotaResources, ...] = ()


class QuotaConfig(_Aws):
    """`ComputeQuotaConfig` of the SageMaker API."""

    compute_quota_resources: tuple[QuotaResources, ...] = ()
    resource_sharing_config: ResourceSharing = Field(default_factory=ResourceSharing)
    preempt_team_tasks: Literal["Never", "LowerPriority"] = "LowerPriority"


class QuotaTarget(_Aws):
    """`ComputeQuotaTarget` of the SageMaker API."""

    team_name: str
    fair_share_weight: WholeNumber = Field(0, ge=0, le=100)


_ANSWER_FIELDS = frozenset(
    {"ComputeQuotaArn", "ComputeQuotaId", "ComputeQuotaVersion", "ClusterSchedulerConfigArn", "Status"}
    | {"ClusterSchedulerConfigId", "ClusterSchedulerConfigVersion", "FailureReason", "StatusDetails", "ClusterArn"}
    | {"Description", "CreationTime", "CreatedBy", "LastModifiedTime", "LastModifiedBy", "Tags", "Id", "TargetVersion"}
    | {"ResponseMetadata"}
)


class ComputeQuota(_Aws):
    """A team's quota: the request of CreateComputeQuota, or the answer of DescribeComputeQuota."""

    ignored_fields: ClassVar[frozenset[str]] = _ANSWER_FIELDS
    name: str = ""
    compute_quota_config: QuotaConfig = Field(default_factory=QuotaConfig)
    compute_quota_target: QuotaTarget
    activation_state: Literal["Enabled", "Disabled"] = "Enabled"

    @property
    def team(self) -> str:
        """The name of the team."""
        return self.compute_quota_target.team_name

    def to_queue(self, types: InstanceTypes, where: str = "") -> Queue:
        """Return the team's queue.

        Args:
            types: The catalogue of instance types.
            where: The name of the document in error messages.

        Raises:
            DocumentError: An instance type is not in the catalogue.
        """
        where, config = where or f"ComputeQuota/{self.name or self.team}", self.compute_quota_config
        nominal_by_flavor = _sum_by_type(config.compute_quota_resources, types, where)
        limits = _sum_by_type(config.resource_sharing_config.absolute_borrow_limits, types, where)
        sharing = config.resource_sharing_config
        flavors = []
        for flavor, amounts in nominal_by_flavor.items():
            quotas = {}
            for resource, nominal in amounts.items():
                borrow, lend = 0, 0 if sharing.strategy == "DontLend" else None
                if sharing.strategy == "LendAndBorrow":
                    percent = _DEFAULT_BORROW_LIMIT if sharing.borrow_limit is None else sharing.borrow_limit
                    borrow = nominal * percent // 100
                    borrow = limits.get(flavor, {}).get(resource, borrow)
                quotas[resource] = Quota(nominal, borrow, lend)
            flavors.append(FlavorQuotas(flavor, quotas))
        return Queue(
            f"{_NAMESPACE_PREFIX}{self.team}{_QUEUE_SUFFIX}",
            COHORT,
            _one_group(flavors),
            float(self.compute_quota_target.fair_share_weight),
            PreemptionRules(PreemptionPolicy(config.preempt_team_tasks), PreemptionPolicy.ANY),
            inactive="" if self.activation_state == "Enabled" else "its compute quota is disabled",
        )


class PriorityClass(_Aws):
    """`PriorityClass` of the SageMaker API."""

    name: str
    weight: WholeNumber = Field(ge=0, le=100)


class Scheduling(_Aws):
    """`SchedulerConfig` of the SageMaker API."""

    priority_classes: tuple[PriorityClass, ...] = ()
    fair_share: Literal["Enabled", "Disabled"] = "Enabled"
    idle_resource_sharing: Literal["Enabled", "Disabled"] = "Disabled"


class SchedulerConfig(_Aws):
    """The policy of a cluster.

    It is the request of CreateClusterSchedulerConfig, or the answer of DescribeClusterSchedulerConfig.
    """

    ignored_fields: ClassVar[frozenset[str]] = _ANSWER_FIELDS
    name: str = ""
    scheduler_config: Scheduling

    @property
    def priorities(self) -> dict[str, int]:
        """Priority by class. Jobs append `-priority` to the name of the class."""
        return {
            f"{priority_class.name}-priority": priority_class.weight
            for priority_class in self.scheduler_config.priority_classes
        }


class InstanceGroup(_Aws):
    """`ClusterInstanceGroupDetails` of the SageMaker API."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset(
        {"InstanceGroupName", "Status", "TargetCount", "LifeCycleConfig", "ExecutionRole", "ThreadsPerCore"}
        | {"InstanceStorageConfigs", "OnStartDeepHealthChecks", "TrainingPlanArn", "TrainingPlanStatus", "MinCount"}
        | {"OverrideVpcConfig", "CapacityRequirements", "KubernetesConfig", "SoftwareUpdateStatus"}
    )
    instance_type: str
    current_count: WholeNumber = Field(ge=0)


class ClusterCapacity(_Aws):
    """The capacity of a cluster: DescribeCluster's instance groups. Needed only if idle capacity is shared."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"ClusterArn", "ClusterName", "ClusterStatus", "Orchestrator"})
    instance_groups: tuple[InstanceGroup, ...]


class ComputeQuotas(_Aws):
    """Several compute quotas in one file."""

    compute_quotas: tuple[ComputeQuota, ...]


def _sum_by_type(resources: Iterable[QuotaResources], types: InstanceTypes, where: str) -> dict[str, dict[str, int]]:
    """Add up the amounts of each instance type. A quota may combine whole instances and granular amounts."""
    amounts_by_type: dict[str, dict[str, int]] = {}
    for quota_resources in resources:
        instance = types.find(quota_resources.instance_type)
        if instance is None:
            raise DocumentError(
                where, "InstanceType", f"{quota_resources.instance_type} is not in the catalogue of instance types"
            )
        of_type = amounts_by_type.setdefault(quota_resources.instance_type, {})
        for resource, amount in quota_resources.amounts(instance).items():
            of_type[resource] = of_type.get(resource, 0) + amount
    return amounts_by_type


def _one_group(flavors: list[FlavorQuotas]) -> tuple[ResourceGroup, ...]:
    resources = tuple(dict.fromkeys(resource for flavor in flavors for resource in flavor.quotas))
    no_quota = Quota(0, 0)
    filled = (
        FlavorQuotas(flavor.flavor, dict.fromkeys(resources, no_quota) | dict(flavor.quotas)) for flavor in flavors
    )
    return (ResourceGroup(resources, tuple(filled)),) if flavors else ()


def idle_queue(groups: Iterable[InstanceGroup], teams: Iterable[Queue], types: InstanceTypes) -> Queue:
    """Return the queue that holds and lends the cluster's capacity beyond the teams' quotas."""
    in_cluster = [
        QuotaResources(instance_type=instance_group.instance_type, count=instance_group.current_count)
        for instance_group in groups
    ]
    idle = _sum_by_type(in_cluster, types, "InstanceGroups")
    for team in teams:
        for group in team.groups:
            for quotas in group.flavors:
                for resource, quota in quotas.quotas.items():
                    if resource in idle.get(quotas.flavor, {}):
                        idle[quotas.flavor][resource] -= quota.nominal
    flavors = [
        FlavorQuotas(flavor, {resource: Quota(max(0, amount), 0) for resource, amount in amounts.items()})
        for flavor, amounts in idle.items()
    ]
    return Queue(f"{IDLE_PREFIX}1", COHORT, _one_group(flavors), 0.0)


def flavor_of(instance_type: str) -> Flavor:
    """Return the flavor of an instance type."""
    return Flavor(instance_type, {INSTANCE_TYPE_LABEL: instance_type})


# ---------------------------------------------------------------- to HyperPod's format


def compute_quota_of(queue: Queue, types: InstanceTypes) -> tuple[ComputeQuota, list[str]]:
    """Return a queue as a compute quota, and the properties that HyperPod cannot express."""
    team = queue.name.removeprefix(_NAMESPACE_PREFIX).removesuffix(_QUEUE_SUFFIX)
    lost: list[str] = []

    def note_loss(loss: str) -> None:
        lost.append(f"{queue.name}: {loss}")

    resources, limits = [], []
    for quotas in (flavor for group in queue.groups for flavor in group.flavors):
        instance = types.find(quotas.flavor)
        if instance is None:
            note_loss(f"flavor {quotas.flavor} is not an instance type of the catalogue")
            continue
        known_resources = ("cpu", "memory", instance.accelerator, EFA)
        for resource in quotas.quotas:
            if (
                resource not in known_resources
                and not resource.startswith(f"{MIG_PREFIX}mig-")
                and quotas.quotas[resource].nominal
            ):
                note_loss(f"{quotas.flavor}: HyperPod has no field for {resource}")
        resources.append(_resources(quotas, instance, lambda quota: quota.nominal, note_loss))
        if any(quota.borrow is not None for quota in quotas.quotas.values()):
            limits.append(_resources(quotas, instance, lambda quota: quota.borrow or 0, note_loss))
    strategy, absolute = _sharing(queue, note_loss), tuple(limits)
    if strategy != "LendAndBorrow":
        absolute = ()
    weight = min(100, max(0, int(queue.fair_weight)))
    for loss in _lost_settings(queue, weight):
        note_loss(loss)
    quota = ComputeQuota(
        name=team,
        compute_quota_config=QuotaConfig(
            compute_quota_resources=tuple(resources),
            resource_sharing_config=ResourceSharing(
                strategy=strategy,
                borrow_limit=None if absolute or strategy != "LendAndBorrow" else 10000,
                absolute_borrow_limits=absolute,
            ),
            preempt_team_tasks="Never" if queue.preemption.within is PreemptionPolicy.NEVER else "LowerPriority",
        ),
        compute_quota_target=QuotaTarget(team_name=team, fair_share_weight=weight),
        activation_state="Disabled" if queue.inactive else "Enabled",
    )
    return quota, lost


def _lost_settings(queue: Queue, weight: int) -> Iterator[str]:
    if len(queue.groups) > 1:
        yield "its resource groups become one"
    if queue.cohort != COHORT:
        yield f"cohort {queue.cohort or 'none'} becomes {COHORT}, the only cohort of HyperPod"
    if queue.preemption.reclaim is not PreemptionPolicy.ANY:
        yield f"reclaim {queue.preemption.reclaim} becomes Any"
    if queue.preemption.borrow_within is not None:
        yield "HyperPod has no setting for preemption while borrowing"
    if queue.preemption.within is PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY:
        yield f"preemption in the team {queue.preemption.within} becomes LowerPriority"
    if weight != queue.fair_weight:
        yield f"weight {queue.fair_weight:g} becomes {weight}"
    defaults = Queue("", "")
    for name in ("fungibility", "strategy", "stop", "by_use"):
        if getattr(queue, name) != getattr(defaults, name):
            yield f"HyperPod has no setting for {name}"


def _resources(quotas: FlavorQuotas, instance: InstanceType, amount: Any, note_loss: Any) -> QuotaResources:
    amounts: Mapping[str, int] = {resource: amount(quota) for resource, quota in quotas.quotas.items()}
    count = amounts.get("cpu", 0) // (instance.vcpu * 1000)
    quota_resources = QuotaResources(instance_type=quotas.flavor, count=count)
    if {name: units for name, units in amounts.items() if units} == {
        name: units for name, units in quota_resources.amounts(instance).items() if units
    }:
        return quota_resources
    partitions = {name.removeprefix(MIG_PREFIX): units for name, units in amounts.items() if "/mig-" in name and units}
    if len(partitions) > 1:
        note_loss(
            f"{quotas.flavor}: HyperPod allows one accelerator partition per quota: only {min(partitions)} is kept"
        )
    partition = Partition(type=min(partitions), count=partitions[min(partitions)]) if partitions else None
    if any(units >= quantities.UNLIMITED for units in amounts.values()):
        note_loss(f"{quotas.flavor}: HyperPod cannot express an unlimited quota")
    cpu, memory = min(amounts.get("cpu", 0), 10**12), min(amounts.get("memory", 0), 2**60)
    return QuotaResources(
        instance_type=quotas.flavor,
        accelerators=min(amounts.get(instance.accelerator, 0), 2**31 - 1) if instance.accelerator else None,
        v_cpu=cpu / 1000,
        memory_in_gi_b=memory / _GIB,
        accelerator_partition=partition,
    )


def _sharing(queue: Queue, note_loss: Any) -> Literal["Lend", "DontLend", "LendAndBorrow"]:
    quotas = [
        quota for group in queue.groups for flavor in group.flavors for quota in flavor.quotas.values() if quota.nominal
    ]
    lends = {quota.lend for quota in quotas}
    borrows = {quota.borrow for quota in quotas}
    if lends == {0}:
        if borrows - {0}:
            note_loss("a team that lends nothing cannot borrow in HyperPod")
        return "DontLend"
    if lends - {None}:
        note_loss("HyperPod has no lending limits: the team lends all its quota")
    return "Lend" if borrows == {0} else "LendAndBorrow"
