"""The topology request of a pod set, in its manifest or in annotations, and the recorded assignment of domains.

Field names: https://kueue.sigs.k8s.io/docs/reference/, versions v1beta1 and v1beta2. The annotations are Kueue's and
those that HyperPod task governance documents.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from evenkeel.domain.kueue.objects import (
    SliceConstraint,
    TopologyAssignment,
    TopologyDomain,
    TopologyRequest,
)
from evenkeel.domain.queue_simulation.documents import Document, WholeNumber

_PREFIX = "kueue.x-k8s.io/podset-"
REQUIRED, PREFERRED = f"{_PREFIX}required-topology", f"{_PREFIX}preferred-topology"
UNCONSTRAINED = f"{_PREFIX}unconstrained-topology"
SLICE_TOPOLOGY, SLICE_SIZE = f"{_PREFIX}slice-required-topology", f"{_PREFIX}slice-size"
SLICE_CONSTRAINTS, GROUP_NAME = f"{_PREFIX}slice-required-topology-constraints", f"{_PREFIX}group-name"
TOPOLOGY_ANNOTATIONS = frozenset({REQUIRED, PREFERRED, UNCONSTRAINED, SLICE_TOPOLOGY, SLICE_CONSTRAINTS})
"""A pod with any of these has a topology assignment in its Workload."""
_MAX_LAYERS = 3


class SliceConstraintManifest(Document):
    """`topologyRequest.podsetSliceRequiredTopologyConstraints[]`."""

    topology: str = Field(min_length=1)
    size: WholeNumber = Field(ge=1)


class TopologyRequestManifest(Document):
    """`Workload.spec.podSets[].topologyRequest`."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset({"podIndexLabel", "subGroupIndexLabel", "subGroupCount"})
    required: str = ""
    preferred: str = ""
    unconstrained: bool | None = None
    pod_set_group_name: str | None = None
    pod_set_slice_required_topology: str = ""
    pod_set_slice_size: WholeNumber | None = Field(None, ge=1)
    podset_slice_required_topology_constraints: tuple[SliceConstraintManifest, ...] = Field((), max_length=_MAX_LAYERS)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if sum((bool(self.required), bool(self.preferred), self.unconstrained is not None)) > 1:
            raise ValueError("must be one of required, preferred and unconstrained")
        if bool(self.pod_set_slice_required_topology) is not (self.pod_set_slice_size is not None):
            raise ValueError("must have both podSetSliceRequiredTopology and podSetSliceSize, or neither")
        if self.pod_set_slice_required_topology and self.podset_slice_required_topology_constraints:
            raise ValueError("must not have podSetSliceRequiredTopology next to podsetSliceRequiredTopologyConstraints")
        return self

    def to_request(self) -> TopologyRequest | None:
        """Return the request; None if it asks for no topology, for example if it only names a group."""
        layers = self.podset_slice_required_topology_constraints
        slices = tuple(SliceConstraint(layer.topology, layer.size) for layer in layers)
        if self.pod_set_slice_size is not None:
            slices = (SliceConstraint(self.pod_set_slice_required_topology, self.pod_set_slice_size),)
        if not (self.required or self.preferred or slices or self.unconstrained is not None):
            return None
        return TopologyRequest(self.required, self.preferred, self.unconstrained, slices)


def _request_of(annotations: Mapping[str, str]) -> TopologyRequestManifest | None:
    """Return the request in the annotations of a pod template; None without such annotations.

    Raises:
        ValueError: An annotation has an invalid value, or two contradict each other.
    """
    fields: dict[str, Any] = {
        name: annotations[annotation]
        for name, annotation in (
            ("required", REQUIRED),
            ("preferred", PREFERRED),
            ("podSetGroupName", GROUP_NAME),
            ("podSetSliceRequiredTopology", SLICE_TOPOLOGY),
        )
        if annotation in annotations
    }
    if UNCONSTRAINED in annotations:
        if annotations[UNCONSTRAINED] not in ("true", "false"):
            raise ValueError(f"{UNCONSTRAINED} must be true or false")
        fields["unconstrained"] = annotations[UNCONSTRAINED] == "true"
    if SLICE_SIZE in annotations:
        if not re.fullmatch("[0-9]{1,9}", annotations[SLICE_SIZE]):
            raise ValueError(f"{SLICE_SIZE} must be a whole number of at most 9 digits")
        fields["podSetSliceSize"] = int(annotations[SLICE_SIZE])
    if SLICE_CONSTRAINTS in annotations:
        try:
            fields["podsetSliceRequiredTopologyConstraints"] = json.loads(annotations[SLICE_CONSTRAINTS])
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{SLICE_CONSTRAINTS} is not JSON") from error
    if not fields:
        return None
    if GROUP_NAME in annotations and not {REQUIRED, PREFERRED} & annotations.keys():
        raise ValueError(f"{GROUP_NAME} needs {REQUIRED} or {PREFERRED}")
    try:
        return TopologyRequestManifest.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise ValueError(f"the topology annotations are invalid: {where}{first['msg']}") from error


def _checked_annotations(annotations: dict[str, str]) -> dict[str, str]:
    _request_of(annotations)
    return annotations


class PodTemplateMetadata(Document):
    """`PodTemplateSpec.metadata`. Only the topology annotations matter."""

    ignored_fields: ClassVar[frozenset[str]] = frozenset(
        {"name", "namespace", "labels", "generateName", "creationTimestamp", "finalizers", "ownerReferences", "uid"}
        | {"resourceVersion", "generation", "managedFields", "selfLink", "deletionTimestamp"}
        | {"deletionGracePeriodSeconds"}
    )
    annotations: Annotated[dict[str, str], AfterValidator(_checked_annotations)] = {}

    def topology_request(self) -> TopologyRequestManifest | None:
        """Return the topology request in the annotations; None without one."""
        return _request_of(self.annotations)


# ---------------------------------------------------------------- a recorded assignment


class DomainManifest(Document):
    """`TopologyAssignment.domains[]` of v1beta1."""

    values: tuple[str, ...]
    count: WholeNumber = Field(ge=1)


class IndividualValues(Document):
    """`TopologyAssignment.slices[].valuesPerLevel[].individual` of v1beta2."""

    prefix: str = ""
    suffix: str = ""
    roots: tuple[str, ...]


class LevelValues(Document):
    """`TopologyAssignment.slices[].valuesPerLevel[]` of v1beta2."""

    universal: str | None = None
    individual: IndividualValues | None = None

    def value(self, position: int) -> str:
        if self.individual is None:
            return self.universal or ""
        return f"{self.individual.prefix}{self.individual.roots[position]}{self.individual.suffix}"


class PodCounts(Document):
    """`TopologyAssignment.slices[].podCounts` of v1beta2."""

    universal: WholeNumber | None = None
    individual: tuple[WholeNumber, ...] = ()


class AssignmentSlice(Document):
    """`TopologyAssignment.slices[]` of v1beta2: domains with common values written once."""

    domain_count: WholeNumber = Field(ge=1)
    values_per_level: tuple[LevelValues, ...]
    pod_counts: PodCounts

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        lists = [len(level.individual.roots) for level in self.values_per_level if level.individual]
        if self.pod_counts.universal is None:
            lists.append(len(self.pod_counts.individual))
        if any(length != self.domain_count for length in lists):
            raise ValueError(f"must have {self.domain_count} values in each list, as domainCount says")
        return self

    def domains(self) -> list[TopologyDomain]:
        """Return the domains one by one."""
        counts = self.pod_counts
        return [
            TopologyDomain(
                tuple(level.value(position) for level in self.values_per_level),
                counts.individual[position] if counts.universal is None else counts.universal,
            )
            for position in range(self.domain_count)
        ]


class TopologyAssignmentManifest(Document):
    """`Workload.status.admission.podSetAssignments[].topologyAssignment`."""

    levels: tuple[str, ...] = Field(min_length=1)
    domains: tuple[DomainManifest, ...] = ()
    """v1beta1."""
    slices: tuple[AssignmentSlice, ...] = ()

    @model_validator(mode="after")
    def _has_a_value_per_level(self) -> Self:
        if any(len(domain.values) != len(self.levels) for domain in self._domains()):
            raise ValueError("must have one value per level in each domain")
        return self

    def _domains(self) -> list[TopologyDomain]:
        listed = [TopologyDomain(domain.values, domain.count) for domain in self.domains]
        return listed + [domain for assignment_slice in self.slices for domain in assignment_slice.domains()]

    def to_assignment(self, flavors: tuple[str, ...]) -> TopologyAssignment:
        """Return the assignment of a pod set with these flavors."""
        return TopologyAssignment(flavors, self.levels, tuple(self._domains()))
