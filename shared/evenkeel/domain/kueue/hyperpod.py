"""HyperPod task governance: compute quotas and the cluster's policy, as SageMaker's API takes and answers them.

    team X            queue hyperpod-ns-X-clusterqueue, reached in namespace hyperpod-ns-X as hyperpod-ns-X-localqueue
    InstanceType      flavor of that name: cpu, memory, GPUs or Neuron devices, EFA interfaces, MIG profiles
    Count             that many whole instances, raw; a pod can have a little less of each, so it never fills up
    granular amounts  what is not said follows from the largest share that is
    Lend, DontLend    borrow nothing, lend all or nothing; LendAndBorrow: lend all, borrow BorrowLimit % of one's own

The user guide speaks of a percentage of the team's guaranteed quota, the API reference of idle compute; Evenkeel takes
the team's own quota, rounded down. A team without weight has weight 0: last in line for what is lent, first to go.
Sources: SageMaker's API reference, CreateComputeQuota and CreateClusterSchedulerConfig; the HyperPod user guide on task
governance.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_pascal

from evenkeel.domain.capacity.instance_types import EFA, MIG_PREFIX, InstanceType, InstanceTypes
from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.documents import Document, DocumentError, Number, Whole
from evenkeel.domain.kueue.objects import (
    UNLIMITED,
    Flavor,
    FlavorQuotas,
    Preemption,
    PreemptionPolicy,
    Queue,
    Quota,
    ResourceGroup,
)

COHORT = "hyperpod"
IDLE_PREFIX = "hyperpod-ns-idle-resource-sharing-cq-"
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
_QUEUE_SUFFIX = "-clusterqueue"
_NAMESPACE_PREFIX = "hyperpod-ns-"
_GIB = 2**30
_DEFAULT_BORROW_LIMIT = 50
MOST_CLASSES = 10


class _Aws(Document):
    model_config = ConfigDict(extra="allow", alias_generator=to_pascal, populate_by_name=True, frozen=True)


class Partition(_Aws):
    type: str
    count: Whole = Field(ge=0)


class QuotaResources(_Aws):
    """So much of one instance type."""

    instance_type: str
    count: Whole | None = Field(None, ge=0)
    accelerators: Whole | None = Field(None, ge=0)
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
        largest = max(shares.values())  # what is not said follows from the largest share that is

        def given(value: float | None, whole: float) -> Fraction:
            here = largest * Fraction(str(whole)) if value is None else Fraction(str(value))
            return count * Fraction(str(whole)) + here

        found = {
            "cpu": quantities.amount("cpu", given(self.v_cpu, instance.vcpu)),
            "memory": int(given(self.memory_in_gi_b, instance.memory_gib) * _GIB),
        }
        if instance.accelerator:
            # Cores or memory alone bring no accelerators with them.
            found[instance.accelerator] = count * instance.accelerators + (self.accelerators or 0)
        if instance.efa:
            found[EFA] = instance.efa * max(count, 1 if largest else 0)
        if partition is not None:
            found[f"{MIG_PREFIX}{partition.type}"] = partition.count
        return found


def _share(value: float | None, whole: float) -> Fraction:
    return Fraction(str(value)) / Fraction(str(whole)) if value and whole else Fraction(0)


class ResourceSharing(_Aws):
    strategy: Literal["Lend", "DontLend", "LendAndBorrow"] = "LendAndBorrow"
    borrow_limit: Whole | None = Field(None, ge=0, le=10000)
    absolute_borrow_limits: tuple[QuotaResources, ...] = ()


class QuotaConfig(_Aws):
    compute_quota_resources: tuple[QuotaResources, ...] = ()
    resource_sharing_config: ResourceSharing = Field(default_factory=ResourceSharing)
    preempt_team_tasks: Literal["Never", "LowerPriority"] = "LowerPriority"


class QuotaTarget(_Aws):
    team_name: str
    fair_share_weight: Whole = Field(0, ge=0, le=100)


_OF_AN_ANSWER = frozenset(
    {"ComputeQuotaArn", "ComputeQuotaId", "ComputeQuotaVersion", "ClusterSchedulerConfigArn", "Status"}
    | {"ClusterSchedulerConfigId", "ClusterSchedulerConfigVersion", "FailureReason", "StatusDetails", "ClusterArn"}
    | {"Description", "CreationTime", "CreatedBy", "LastModifiedTime", "LastModifiedBy", "Tags", "Id", "TargetVersion"}
    | {"ResponseMetadata"}
)


class ComputeQuota(_Aws):
    """A team's quota: CreateComputeQuota's request, DescribeComputeQuota's answer."""

    without_meaning: ClassVar[frozenset[str]] = _OF_AN_ANSWER
    name: str = ""
    compute_quota_config: QuotaConfig = Field(default_factory=QuotaConfig)
    compute_quota_target: QuotaTarget
    activation_state: Literal["Enabled", "Disabled"] = "Enabled"

    @property
    def team(self) -> str:
        """The team's name."""
        return self.compute_quota_target.team_name

    def to_queue(self, types: InstanceTypes, where: str = "") -> Queue:
        """Return the team's queue.

        Args:
            types: The catalogue of instance types.
            where: What it is called where something about it is wrong.

        Raises:
            DocumentError: an instance type is not in the catalogue.
        """
        where, config = where or f"ComputeQuota/{self.name or self.team}", self.compute_quota_config
        held = _together(config.compute_quota_resources, types, where)
        limits = _together(config.resource_sharing_config.absolute_borrow_limits, types, where)
        sharing = config.resource_sharing_config
        flavors = []
        for flavor, amounts in held.items():
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
            Preemption(PreemptionPolicy(config.preempt_team_tasks), PreemptionPolicy.ANY),
            inactive="" if self.activation_state == "Enabled" else "its compute quota is disabled",
        )


class PriorityClass(_Aws):
    name: str
    weight: Whole = Field(ge=0, le=100)


class Scheduling(_Aws):
    priority_classes: tuple[PriorityClass, ...] = ()
    fair_share: Literal["Enabled", "Disabled"] = "Enabled"
    idle_resource_sharing: Literal["Enabled", "Disabled"] = "Disabled"


class SchedulerConfig(_Aws):
    """The cluster's policy: CreateClusterSchedulerConfig's request, DescribeClusterSchedulerConfig's answer."""

    without_meaning: ClassVar[frozenset[str]] = _OF_AN_ANSWER
    name: str = ""
    scheduler_config: Scheduling

    @property
    def priorities(self) -> dict[str, int]:
        """Priority by class; jobs name the class with `-priority` behind it."""
        return {f"{each.name}-priority": each.weight for each in self.scheduler_config.priority_classes}


class InstanceGroup(_Aws):
    without_meaning: ClassVar[frozenset[str]] = frozenset(
        {"InstanceGroupName", "Status", "TargetCount", "LifeCycleConfig", "ExecutionRole", "ThreadsPerCore"}
        | {"InstanceStorageConfigs", "OnStartDeepHealthChecks", "TrainingPlanArn", "TrainingPlanStatus", "MinCount"}
        | {"OverrideVpcConfig", "CapacityRequirements", "KubernetesConfig", "SoftwareUpdateStatus"}
    )
    instance_type: str
    current_count: Whole = Field(ge=0)


class ClusterCapacity(_Aws):
    """What the cluster has: DescribeCluster's instance groups. Needed where idle capacity is shared."""

    without_meaning: ClassVar[frozenset[str]] = frozenset(
        {"ClusterArn", "ClusterName", "ClusterStatus", "Orchestrator"}
    )
    instance_groups: tuple[InstanceGroup, ...]


class Several(_Aws):
    """Several quotas in one file."""

    compute_quotas: tuple[ComputeQuota, ...]


def _together(resources: Iterable[QuotaResources], types: InstanceTypes, where: str) -> dict[str, dict[str, int]]:
    """Sum up what is said of each instance type; one quota may mix whole instances and granular amounts."""
    found: dict[str, dict[str, int]] = {}
    for each in resources:
        instance = types.of(each.instance_type)
        if instance is None:
            raise DocumentError(
                where, "InstanceType", f"{each.instance_type} is not in the catalogue of instance types"
            )
        of_type = found.setdefault(each.instance_type, {})
        for resource, amount in each.amounts(instance).items():
            of_type[resource] = of_type.get(resource, 0) + amount
    return found


def _one_group(flavors: list[FlavorQuotas]) -> tuple[ResourceGroup, ...]:
    resources = tuple(dict.fromkeys(resource for each in flavors for resource in each.quotas))
    none = Quota(0, 0)
    filled = (FlavorQuotas(each.flavor, dict.fromkeys(resources, none) | dict(each.quotas)) for each in flavors)
    return (ResourceGroup(resources, tuple(filled)),) if flavors else ()


def idle_queue(groups: Iterable[InstanceGroup], teams: Iterable[Queue], types: InstanceTypes) -> Queue:
    """Return the queue that holds, and lends, what the cluster has beyond what the teams hold."""
    wanted = [QuotaResources(instance_type=each.instance_type, count=each.current_count) for each in groups]
    idle = _together(wanted, types, "InstanceGroups")
    for team in teams:
        for group in team.groups:
            for each in group.flavors:
                for resource, quota in each.quotas.items():
                    if resource in idle.get(each.flavor, {}):
                        idle[each.flavor][resource] -= quota.nominal
    flavors = [
        FlavorQuotas(flavor, {resource: Quota(max(0, amount), 0) for resource, amount in amounts.items()})
        for flavor, amounts in idle.items()
    ]
    return Queue(f"{IDLE_PREFIX}1", COHORT, _one_group(flavors), 0.0)


def flavor_of(instance_type: str) -> Flavor:
    """Return the flavor of an instance type."""
    return Flavor(instance_type, {INSTANCE_TYPE_LABEL: instance_type})


# ---------------------------------------------------------------- the way back


def quota_of(queue: Queue, types: InstanceTypes) -> tuple[ComputeQuota, list[str]]:
    """Write a queue as a compute quota; return what HyperPod has no words for."""
    team = queue.name.removeprefix(_NAMESPACE_PREFIX).removesuffix(_QUEUE_SUFFIX)
    lost: list[str] = []

    def loses(what: str) -> None:
        lost.append(f"{queue.name}: {what}")

    resources, limits = [], []
    for each in (flavor for group in queue.groups for flavor in group.flavors):
        instance = types.of(each.flavor)
        if instance is None:
            loses(f"flavor {each.flavor} is not an instance type of the catalogue")
            continue
        known = ("cpu", "memory", instance.accelerator, EFA)
        for resource in each.quotas:
            if resource not in known and not resource.startswith(f"{MIG_PREFIX}mig-") and each.quotas[resource].nominal:
                loses(f"{each.flavor}: there is no place for {resource}")
        resources.append(_resources(each, instance, lambda quota: quota.nominal, loses))
        if any(quota.borrow is not None for quota in each.quotas.values()):
            limits.append(_resources(each, instance, lambda quota: quota.borrow or 0, loses))
    strategy, absolute = _sharing(queue, loses), tuple(limits)
    if strategy != "LendAndBorrow":
        absolute = ()
    if len(queue.groups) > 1:
        loses("its resource groups become one")
    if queue.cohort != COHORT:
        loses(f"cohort {queue.cohort or 'none'} becomes {COHORT}, the only one there is")
    if queue.preemption.reclaim is not PreemptionPolicy.ANY:
        loses(f"reclaim {queue.preemption.reclaim} becomes Any")
    if queue.preemption.borrow_within is not None:
        loses("preemption while borrowing has no setting")
    within = queue.preemption.within
    if within is PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY:
        loses(f"preemption in the team {within} becomes LowerPriority")
    weight = min(100, max(0, int(queue.fair_weight)))
    if weight != queue.fair_weight:
        loses(f"weight {queue.fair_weight:g} becomes {weight}")
    defaults = Queue("", "")
    for name in ("fungibility", "strategy", "stop", "by_use"):
        if getattr(queue, name) != getattr(defaults, name):
            loses(f"{name} has no setting")
    quota = ComputeQuota(
        name=team,
        compute_quota_config=QuotaConfig(
            compute_quota_resources=tuple(resources),
            resource_sharing_config=ResourceSharing(
                strategy=strategy,
                borrow_limit=None if absolute or strategy != "LendAndBorrow" else 10000,
                absolute_borrow_limits=absolute,
            ),
            preempt_team_tasks="Never" if within is PreemptionPolicy.NEVER else "LowerPriority",
        ),
        compute_quota_target=QuotaTarget(team_name=team, fair_share_weight=weight),
        activation_state="Disabled" if queue.inactive else "Enabled",
    )
    return quota, lost


def _resources(each: FlavorQuotas, instance: InstanceType, amount: Any, loses: Any) -> QuotaResources:
    of: Mapping[str, int] = {resource: amount(quota) for resource, quota in each.quotas.items()}
    count = of.get("cpu", 0) // (instance.vcpu * 1000)
    whole = QuotaResources(instance_type=each.flavor, count=count)
    if {name: held for name, held in of.items() if held} == {
        name: held for name, held in whole.amounts(instance).items() if held
    }:
        return whole
    partitions = {name.removeprefix(MIG_PREFIX): held for name, held in of.items() if "/mig-" in name and held}
    if len(partitions) > 1:
        loses(f"{each.flavor}: only one accelerator partition can be named, {min(partitions)}")
    partition = Partition(type=min(partitions), count=partitions[min(partitions)]) if partitions else None
    if any(held >= UNLIMITED for held in of.values()):
        loses(f"{each.flavor}: an amount without bound cannot be said")
    cpu, memory = min(of.get("cpu", 0), 10**12), min(of.get("memory", 0), 2**60)
    return QuotaResources(
        instance_type=each.flavor,
        accelerators=min(of.get(instance.accelerator, 0), 2**31 - 1) if instance.accelerator else None,
        v_cpu=cpu / 1000,
        memory_in_gi_b=memory / _GIB,
        accelerator_partition=partition,
    )


def _sharing(queue: Queue, loses: Any) -> Literal["Lend", "DontLend", "LendAndBorrow"]:
    quotas = [
        quota for group in queue.groups for each in group.flavors for quota in each.quotas.values() if quota.nominal
    ]
    lends = {quota.lend for quota in quotas}
    borrows = {quota.borrow for quota in quotas}
    if lends == {0}:
        if borrows - {0}:
            loses("a team that lends nothing cannot borrow either")
        return "DontLend"
    if lends - {None}:
        loses("lending limits become: lends all")
    return "Lend" if borrows == {0} else "LendAndBorrow"
