"""Defaults and limits that a namespace and a runtime class add to pods: LimitRange and RuntimeClass.

Kueue applies them to the pod templates of a Workload before it counts requests: `AdjustResources` and
`ValidateLimitRange` in `pkg/workload/resources.go`, `Summarize` in `pkg/util/limitrange/limitrange.go`.
"""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import ClassVar, Literal

from pydantic import Field

from evenkeel.domain.kueue import quantities
from evenkeel.domain.queue_simulation.documents import Document, Quantity
from evenkeel.domain.queue_simulation.pod_manifests import Container, ContainerResources, PodSpec
from evenkeel.domain.queue_simulation.queue_manifests import KubernetesManifest

Quantities = dict[str, Quantity]
_CONTAINER, _POD = "Container", "Pod"


class LimitRangeItem(Document):
    """`LimitRange.spec.limits[]`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"maxLimitRequestRatio"})
    type: str
    """`Container` or `Pod`. Other types do not concern pods."""
    max: Quantities = {}
    min: Quantities = {}
    default: Quantities = {}
    """Limits of a container that states none."""
    default_request: Quantities = {}


class LimitRangeSpec(Document):
    """`LimitRange.spec`."""

    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(KubernetesManifest):
    """Defaults and limits of the pods of a namespace."""

    kind: Literal["LimitRange"] = "LimitRange"
    spec: LimitRangeSpec = Field(default_factory=LimitRangeSpec)


class Overhead(Document):
    """`RuntimeClass.overhead`."""

    pod_fixed: Quantities = {}


class RuntimeClass(KubernetesManifest):
    """A container runtime, with the resources that it takes beside the containers of each pod."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"handler", "scheduling"})
    kind: Literal["RuntimeClass"] = "RuntimeClass"
    overhead: Overhead = Field(default_factory=Overhead)


def summarize(ranges: Iterable[LimitRange]) -> dict[str, LimitRangeItem]:
    """Return one item for each type: the lowest maximum, the highest minimum, and the first default of each resource.

    Args:
        ranges: The LimitRanges of one namespace, by name.
    """
    summary: dict[str, LimitRangeItem] = {}
    for item in (_with_api_defaults(item) for limit_range in ranges for item in limit_range.spec.limits):
        known = summary.get(item.type, LimitRangeItem(type=item.type))
        summary[item.type] = LimitRangeItem(
            type=item.type,
            max=_merged(known.max, item.max, keeps_larger=False),
            min=_merged(known.min, item.min, keeps_larger=True),
            default=item.default | known.default,
            default_request=item.default_request | known.default_request,
        )
    return summary


def _with_api_defaults(item: LimitRangeItem) -> LimitRangeItem:
    """Return an item with the defaults that the Kubernetes API adds when it stores a LimitRange.

    A file from a cluster has them already. Source: `SetDefaults_LimitRangeItem` in `pkg/apis/core/v1/defaults.go` of
    Kubernetes.
    """
    if item.type != _CONTAINER:
        return item
    default = item.max | item.default
    return item.model_copy(update={"default": default, "default_request": item.min | default | item.default_request})


def with_defaults(
    spec: PodSpec, limits: Mapping[str, LimitRangeItem], runtime_classes: Mapping[str, RuntimeClass]
) -> PodSpec:
    """Return a pod with the overhead of its runtime class and the defaults of its namespace.

    Limits count as missing requests afterwards: `ContainerResources.effective`.

    Args:
        spec: The pod.
        limits: The summary of its namespace's LimitRanges.
        runtime_classes: Runtime classes by name.
    """
    changes: dict[str, object] = {}
    runtime_class = runtime_classes.get(spec.runtime_class_name)
    if runtime_class is not None and not spec.overhead:
        changes["overhead"] = runtime_class.overhead.pod_fixed
    containers = limits.get(_CONTAINER)
    if containers is not None:
        changes["containers"] = tuple(_with_default(container, containers) for container in spec.containers)
        changes["init_containers"] = tuple(_with_default(container, containers) for container in spec.init_containers)
    pods = limits.get(_POD)
    if pods is not None and spec.resources is not None:
        changes["resources"] = _default_resources(spec.resources, pods)
    return spec.model_copy(update=changes)


def broken_limits(spec: PodSpec, limits: Mapping[str, LimitRangeItem]) -> tuple[str, ...]:
    """Return the resources with which a pod breaks the LimitRanges of its namespace, each with the limit."""
    broken: list[str] = []
    containers = limits.get(_CONTAINER)
    for container in (*spec.init_containers, *spec.containers) if containers else ():
        resources = container.resources
        largest = _merged(resources.requests, resources.limits, keeps_larger=True)
        smallest = _merged(resources.requests, resources.limits, keeps_larger=False)
        assert containers is not None
        broken += _beyond(containers, _parsed(largest), _parsed(smallest))
    pods = limits.get(_POD)
    if pods is not None:
        broken += _beyond(pods, spec.requests(), spec.requests())
    return tuple(dict.fromkeys(broken))


def _beyond(item: LimitRangeItem, largest: Mapping[str, Fraction], smallest: Mapping[str, Fraction]) -> Iterator[str]:
    kind = item.type.lower()
    for name in sorted(item.max.keys() & largest.keys()):
        if largest[name] > quantities.parse(item.max[name]):
            yield f"{name} is above the maximum {item.max[name]} of a {kind}"
    for name in sorted(item.min.keys() & smallest.keys()):
        if smallest[name] < quantities.parse(item.min[name]):
            yield f"{name} is below the minimum {item.min[name]} of a {kind}"


def _parsed(amounts: Quantities) -> dict[str, Fraction]:
    return {name: quantities.parse(quantity) for name, quantity in amounts.items()}


def _with_default(container: Container, item: LimitRangeItem) -> Container:
    return container.model_copy(update={"resources": _default_resources(container.resources, item)})


def _default_resources(resources: ContainerResources, item: LimitRangeItem) -> ContainerResources:
    return resources.model_copy(
        update={"limits": item.default | resources.limits, "requests": item.default_request | resources.requests}
    )


def _merged(first: Quantities, second: Quantities, *, keeps_larger: bool) -> Quantities:
    """Return the quantities of both; of a resource in both, the larger or the smaller one."""
    merged = first | second
    for name in first.keys() & second.keys():
        is_first_larger = quantities.parse(first[name]) > quantities.parse(second[name])
        merged[name] = first[name] if is_first_larger == keeps_larger else second[name]
    return merged
