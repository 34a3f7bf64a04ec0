"""The part of Kueue's own configuration (`config.kueue.x-k8s.io`) that a plan depends on."""

from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar, Literal

from pydantic import Field

from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.recent_use import Decay
from evenkeel.domain.queue_simulation.documents import Document, Duration, Number, Quantity, WholeNumber, duration
from evenkeel.domain.queue_simulation.pod_manifests import add_amounts


class Transformation(Document):
    """`Configuration.resources.transformations[]`."""

    input: str
    strategy: Literal["Retain", "Replace"] = "Retain"
    multiply_by: str = ""
    outputs: dict[str, Quantity] = {}


class ResourceRules:
    """The resources of a request that count against quota: some are excluded, some are transformed."""

    def __init__(self, excluded: tuple[str, ...] = (), transformations: tuple[Transformation, ...] = ()) -> None:
        self.excluded = excluded
        self.transformations = {transformation.input: transformation for transformation in transformations}

    def counted(self, requests: Mapping[str, Fraction]) -> dict[str, int]:
        """Return the amounts per pod that count against quota, in the smallest units."""
        counted: dict[str, Fraction] = {}
        outputs: dict[str, Fraction] = {}
        for name, amount in requests.items():
            if any(name.startswith(prefix) for prefix in self.excluded):
                continue
            rule = self.transformations.get(name)
            if rule is None or rule.strategy != "Replace":
                add_amounts(counted, {name: amount})
            if rule is not None:
                factor = requests.get(rule.multiply_by, Fraction(1)) if rule.multiply_by else Fraction(1)
                add_amounts(
                    outputs, {output: quantities.parse(by) * amount * factor for output, by in rule.outputs.items()}
                )
        # A negative factor lowers the amounts that transformations add to a resource, never the pod's own request.
        add_amounts(counted, {name: max(Fraction(0), amount) for name, amount in outputs.items()})
        return {name: max(0, quantities.amount(name, amount)) for name, amount in counted.items()}


class ConfiguredResources(Document):
    """`Configuration.resources`."""

    quota_check_strategy: Literal["BlockUndeclared", "IgnoreUndeclared"] = "BlockUndeclared"
    exclude_resource_prefixes: tuple[str, ...] = ()
    transformations: tuple[Transformation, ...] = ()


class ConfiguredFairSharing(Document):
    """`Configuration.fairSharing`."""

    enable: bool = True
    preemption_strategies: tuple[Literal["LessThanOrEqualToFinalShare", "LessThanInitialShare"], ...] = (
        "LessThanOrEqualToFinalShare",
        "LessThanInitialShare",
    )


class AdmissionFairSharing(Document):
    """Order of a queue's LocalQueues by their recent use."""

    usage_half_life_time: Duration = "0s"
    usage_sampling_interval: Duration = "5m"
    resource_weights: dict[str, Number] = {}

    def to_decay(self) -> Decay | None:
        """Return how use decays; None if the half-life is 0, because then no past use counts."""
        half_life, sampling = duration(self.usage_half_life_time), duration(self.usage_sampling_interval)
        weights = tuple(sorted(self.resource_weights.items())) or (("", 1.0),)
        return Decay(half_life, sampling, weights) if half_life else None


class RequeuingStrategy(Document):
    """`Configuration.waitForPodsReady.requeuingStrategy`."""

    timestamp: Literal["Eviction", "Creation"] = "Eviction"
    backoff_base_seconds: WholeNumber = 60
    backoff_max_seconds: WholeNumber = 3600
    backoff_limit_count: WholeNumber | None = None


class WaitForPodsReady(Document):
    """`Configuration.waitForPodsReady`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"timeout", "recoveryTimeout"})
    requeuing_strategy: RequeuingStrategy = Field(default_factory=RequeuingStrategy)
    enable: bool | None = None
    """Only v1beta1 has this field. If it is missing there, Kueue does not wait for pods."""
    block_admission: bool | None = None


class Configuration(Document):
    """The part of Kueue's own configuration that a plan depends on."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset(
        {"kind", "metadata", "namespace", "webhook", "leaderElection", "metrics", "health"}
        | {"pprofBindAddress", "controller", "tls", "manageJobsWithoutQueueName", "managedJobsNamespaceSelector"}
        | {"internalCertManagement", "clientConnection", "integrations", "objectRetentionPolicies"}
        | {"visibilityServer", "queueVisibility"}
    )
    api_version: str = ""
    fair_sharing: ConfiguredFairSharing | None = None
    resources: ConfiguredResources = Field(default_factory=ConfiguredResources)
    wait_for_pods_ready: WaitForPodsReady = Field(default_factory=WaitForPodsReady)
    feature_gates: dict[str, bool] = {}
    admission_fair_sharing: AdmissionFairSharing | None = None

    @property
    def blocks_until_ready(self) -> bool:
        """Whether a workload is admitted only when the pods of all admitted workloads are ready.

        Source: Kueue's `apis/config`, `defaults.go`. By default, v1beta1 blocks if waiting is enabled, and v1beta2 does
        not block.
        """
        settings = self.wait_for_pods_ready
        if self.api_version.endswith("/v1beta1") and not settings.enable:
            return False
        if settings.enable is False:
            return False
        return bool(settings.enable) if settings.block_admission is None else settings.block_admission
