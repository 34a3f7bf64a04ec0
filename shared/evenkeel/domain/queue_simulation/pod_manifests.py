"""The pod template of a Kueue Workload, as far as scheduling depends on it, and the requests of one pod."""

from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar

from pydantic import Field

from evenkeel.domain.kueue import quantities
from evenkeel.domain.kueue.objects import Requirement
from evenkeel.domain.queue_simulation.documents import Document, Quantity
from evenkeel.domain.queue_simulation.node_terms import Expression, PodToleration
from evenkeel.domain.queue_simulation.topology_manifests import PodTemplateMetadata


class ContainerResources(Document):
    """`Container.resources`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"claims"})
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}

    def effective(self) -> dict[str, Fraction]:
        """Return the requests; a missing request has the value of its limit."""
        return {name: quantities.parse(quantity) for name, quantity in (self.limits | self.requests).items()}

    @property
    def beyond_limits(self) -> list[str]:
        """Resources whose request exceeds their limit."""
        return sorted(
            name
            for name, request in self.requests.items()
            if name in self.limits and quantities.parse(request) > quantities.parse(self.limits[name])
        )


_IGNORED_CONTAINER_FIELDS = frozenset(
    {"name", "image", "command", "args", "workingDir", "ports", "envFrom", "env", "resizePolicy", "volumeMounts"}
    | {"volumeDevices", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "terminationMessagePath"}
    | {"terminationMessagePolicy", "imagePullPolicy", "securityContext", "stdin", "stdinOnce", "tty"}
)
_IGNORED_POD_FIELDS = frozenset(
    {"volumes", "ephemeralContainers", "restartPolicy", "terminationGracePeriodSeconds", "activeDeadlineSeconds"}
    | {"dnsPolicy", "serviceAccountName", "serviceAccount", "automountServiceAccountToken", "nodeName", "hostNetwork"}
    | {"hostPID", "hostIPC", "hostUsers", "shareProcessNamespace", "securityContext", "imagePullSecrets", "hostname"}
    | {"subdomain", "schedulerName", "hostAliases", "priority", "priorityClassName", "dnsConfig", "readinessGates"}
    | {"enableServiceLinks", "preemptionPolicy", "topologySpreadConstraints", "setHostnameAsFQDN"}
    | {"os", "schedulingGates", "resourceClaims"}
)


class Container(Document):
    """`PodSpec.containers[]` and `PodSpec.initContainers[]`."""

    ignored_fields: ClassVar[frozenset[str]] = _IGNORED_CONTAINER_FIELDS
    resources: ContainerResources = Field(default_factory=ContainerResources)
    restart_policy: str = ""


class NodeSelectorTerm(Document):
    """`NodeSelector.nodeSelectorTerms[]`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"matchFields"})
    match_expressions: tuple[Expression, ...] = ()


class NodeSelector(Document):
    """`NodeAffinity.requiredDuringSchedulingIgnoredDuringExecution`."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(Document):
    """`Affinity.nodeAffinity`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"preferredDuringSchedulingIgnoredDuringExecution"})
    required: NodeSelector | None = Field(None, alias="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Document):
    """`PodSpec.affinity`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"podAffinity", "podAntiAffinity"})
    node_affinity: NodeAffinity | None = None


class PodSpec(Document):
    """`PodTemplateSpec.spec`."""

    ignored_fields: ClassVar[frozenset[str]] = _IGNORED_POD_FIELDS
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, Quantity] = {}
    runtime_class_name: str = ""
    resources: ContainerResources | None = None
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[PodToleration, ...] = ()

    def requests(self) -> dict[str, Fraction]:
        """Return the requests of one pod.

        The requests are the sum of its containers, or the maximum that its start needs, whichever is larger. Init
        containers run one after another, next to the sidecars (init containers that always restart) started before
        them. Requests of the pod itself take precedence; its overhead is added. Source:
        https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
        """
        running: dict[str, Fraction] = {}
        peak: dict[str, Fraction] = {}
        sidecars: dict[str, Fraction] = {}
        for container in self.containers:
            add_amounts(running, container.resources.effective())
        for container in self.init_containers:
            requests = container.resources.effective()
            if container.restart_policy == "Always":
                add_amounts(running, requests)
                add_amounts(sidecars, requests)
                requests = dict(sidecars)
            else:
                add_amounts(requests, sidecars)
            for name, amount in requests.items():
                peak[name] = max(peak.get(name, Fraction(0)), amount)
        total = {name: max(running.get(name, Fraction(0)), peak.get(name, Fraction(0))) for name in {**running, **peak}}
        if self.resources is not None:
            total |= self.resources.effective()
        add_amounts(total, {name: quantities.parse(quantity) for name, quantity in self.overhead.items()})
        return total

    @property
    def beyond_limits(self) -> list[str]:
        """Resources that a container or the pod requests beyond its limit."""
        all_resources = (
            *(container.resources for container in (*self.init_containers, *self.containers)),
            self.resources or ContainerResources(),
        )
        return sorted({name for resource in all_resources for name in resource.beyond_limits})

    def terms(self) -> tuple[tuple[Requirement, ...], ...]:
        """Return the terms of the required node affinity."""
        node = self.affinity.node_affinity if self.affinity else None
        terms = node.required.node_selector_terms if node and node.required else ()
        return tuple(tuple(expression.to_requirement() for expression in term.match_expressions) for term in terms)


def add_amounts(to: dict[str, Fraction], amounts: Mapping[str, Fraction]) -> None:
    """Add amounts to another mapping, in place."""
    for name, amount in amounts.items():
        to[name] = to.get(name, Fraction(0)) + amount


class PodTemplate(Document):
    """`PodTemplateSpec` of Kubernetes."""

    metadata: PodTemplateMetadata = Field(default_factory=PodTemplateMetadata)
    spec: PodSpec = Field(default_factory=PodSpec)
